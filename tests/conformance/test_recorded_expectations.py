"""Batches equal those that torch_geometric's own loader yielded where it could sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import gnnstore
from gnnstore.converters import from_pyg

pytestmark = pytest.mark.usefixtures("way_of_reading")

RECORDED = json.loads((Path(__file__).parent / "data" / "torch_geometric_batches.json").read_text())
# torch-sparse does not count hops, and pyg-lib does not induce subgraphs.
MAY_BE_UNRECORDED = {"num_sampled_nodes", "num_sampled_edges"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    graph = RECORDED["graph"]
    data = Data(
        x=torch.tensor(graph["x"]),
        edge_index=torch.tensor(graph["edge_index"]),
        edge_attr=torch.tensor(graph["edge_attr"]),
    )
    return gnnstore.open(from_pyg(data, tmp_path_factory.mktemp("recorded") / "s.gnn"))


def name_of(case: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in case["arguments"].items())


@pytest.mark.parametrize("case", RECORDED["cases"], ids=name_of)
def test_batches_are_those_recorded(store: gnnstore.GraphStore, case: dict[str, Any]) -> None:
    arguments = dict(case["arguments"])
    if arguments["input_nodes"] is not None:
        arguments["input_nodes"] = torch.tensor(arguments["input_nodes"])
    if "order" in arguments:
        arguments["sampler"] = arguments.pop("order")
    unspecified: set[str] = set()
    if arguments.get("subgraph_type") == "bidirectional":
        # Which of two ids an edge gets that was chosen in both directions is left open by PyG.
        unspecified = {"e_id", "edge_attr"}
    loader = gnnstore.NeighborLoader(store, **arguments)
    assert len(case["batches"]) == len(loader) > 0
    for batch, recorded in zip(loader, case["batches"], strict=True):
        found = {
            name: {"dtype": str(value.dtype), "values": value.tolist()}
            if isinstance(value, Tensor)
            else value
            for name, value in batch.to_dict().items()
        }
        assert found.keys() - MAY_BE_UNRECORDED == recorded.keys() - MAY_BE_UNRECORDED
        for name, value in recorded.items():
            if name not in unspecified:
                assert found[name] == value, name
