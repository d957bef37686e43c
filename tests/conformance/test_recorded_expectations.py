"""Batches equal those that torch_geometric's own loaders yielded where they could sample."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import gnnstore
from gnnstore.converters import from_pyg
from tests.conformance.record_expectations import described_types, to_typed_data, typed_arguments

pytestmark = pytest.mark.usefixtures("way_of_reading")

DATA = Path(__file__).parent / "data"
RECORDED = json.loads((DATA / "torch_geometric_batches.json").read_text())
LINKS = json.loads((DATA / "torch_geometric_link_batches.json").read_text())
TYPED = json.loads((DATA / "torch_geometric_typed_batches.json").read_text())
TYPED_LINKS = json.loads((DATA / "torch_geometric_typed_link_batches.json").read_text())
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


def test_both_loaders_were_recorded_on_one_graph() -> None:
    assert RECORDED["graph"] == LINKS["graph"]


@pytest.mark.parametrize("case", RECORDED["cases"], ids=name_of)
def test_batches_are_those_recorded(store: gnnstore.GraphStore, case: dict[str, Any]) -> None:
    compare(gnnstore.NeighborLoader, store, case)


@pytest.mark.parametrize("case", LINKS["cases"], ids=name_of)
def test_batches_of_links_are_those_recorded(
    store: gnnstore.GraphStore, case: dict[str, Any]
) -> None:
    compare(gnnstore.LinkNeighborLoader, store, case)


def compare(loader_class: Any, store: gnnstore.GraphStore, case: dict[str, Any]) -> None:
    """Compare the batches of a loader with those recorded."""
    arguments = dict(case["arguments"])
    for name in ("input_nodes", "edge_label_index", "edge_label"):
        if arguments.get(name) is not None:
            arguments[name] = torch.tensor(arguments[name])
    if "order" in arguments:
        arguments["sampler"] = arguments.pop("order")
    unspecified: set[str] = set()
    if arguments.get("subgraph_type") == "bidirectional":
        # Which of two ids an edge gets that was chosen in both directions is left open by PyG.
        unspecified = {"e_id", "edge_attr"}
    loader = loader_class(store, **arguments)
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


@pytest.fixture(scope="module")
def typed_store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    data = to_typed_data(TYPED["graph"])
    return gnnstore.open(from_pyg(data, tmp_path_factory.mktemp("typed") / "s.gnn"))


@pytest.mark.parametrize(
    ("loader_class", "case"),
    [
        *((gnnstore.NeighborLoader, case) for case in TYPED["cases"]),
        *((gnnstore.LinkNeighborLoader, case) for case in TYPED_LINKS["cases"]),
    ],
    ids=lambda value: name_of(value) if isinstance(value, dict) else value.__name__,
)
def test_batches_of_several_types_are_those_recorded(
    typed_store: gnnstore.GraphStore, loader_class: Any, case: dict[str, Any]
) -> None:
    assert TYPED["graph"] == TYPED_LINKS["graph"]
    arguments = typed_arguments(case["arguments"])
    is_alone = arguments.get("input_nodes", "")[:1] == ("venue",)
    match = "no edge type leads to 'venue'"
    with pytest.warns(UserWarning, match=match) if is_alone else nullcontext():
        loader = loader_class(typed_store, **arguments)
    assert len(case["batches"]) == len(loader) > 0
    for batch, recorded in zip(loader, case["batches"], strict=True):
        found = described_types(batch)
        assert list(found) == list(recorded)
        for of, values in recorded.items():
            own = found[of]
            assert own.keys() - MAY_BE_UNRECORDED == values.keys() - MAY_BE_UNRECORDED, of
            for name, value in values.items():
                assert own[name] == value, (of, name)
