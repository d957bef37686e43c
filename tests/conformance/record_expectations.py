"""Record what torch_geometric's own NeighborLoader yields, for where it cannot be asked.

It samples only with pyg-lib or torch-sparse, which few machines have. Run this on one that
does, after a change of the cases: `python tests/conformance/record_expectations.py`. The
result is a small JSON file that `test_recorded_expectations.py` compares batches with.
"""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import utils as sampler_utils
from torch_geometric.utils import index_sort

OUTPUT = Path(__file__).with_name("data") / "torch_geometric_batches.json"
NUM_NODES, NUM_EDGES = 16, 44


def graph() -> dict[str, Any]:
    """Return a small coalesced graph with two isolated nodes, a sink and self-loops."""
    rng = np.random.default_rng(42)
    pairs = np.unique(rng.integers(0, NUM_NODES - 2, (2, NUM_EDGES)), axis=1)
    pairs = pairs[:, pairs[0] != 5]
    return {
        "num_nodes": NUM_NODES,
        "edge_index": pairs.tolist(),
        "x": rng.integers(0, 100, (NUM_NODES, 2)).tolist(),
        "edge_attr": rng.integers(0, 100, pairs.shape[1]).tolist(),
    }


def cases() -> list[dict[str, Any]]:
    """Return the loaders' arguments, in JSON's types; `order` are positions for a sampler."""
    mask = [node in {0, 3, 5, 6, 9, 15} for node in range(NUM_NODES)]
    index = [7, 3, 15, 0, 12]
    found: list[dict[str, Any]] = [
        {"num_neighbors": [-1] * num_hops, "input_nodes": nodes, "batch_size": 3}
        for num_hops in (0, 1, 2, 3)
        for nodes in (None, mask, index)
    ]
    found += [
        {**found[6], "input_nodes": mask, "order": [5, 0, 2, 4, 1, 3]},
        {**found[6], "input_nodes": index, "order": [4, 1, 0, 2, 3]},
        {**found[6], "input_nodes": [4, 4, 1, 4, 1, 8], "batch_size": 4},
        {**found[6], "input_nodes": index, "num_neighbors": [1000, 50]},
        {**found[6], "input_nodes": index, "num_neighbors": [-1, 0, -1]},
        {**found[6], "input_nodes": index, "subgraph_type": "induced"},
        {**found[6], "input_nodes": index, "subgraph_type": "bidirectional"},
    ]
    return found


def to_data(arrays: dict[str, Any]) -> Data:
    """Return the graph as `Data`."""
    return Data(
        x=torch.tensor(arrays["x"]),
        edge_index=torch.tensor(arrays["edge_index"]),
        edge_attr=torch.tensor(arrays["edge_attr"]),
    )


def loader_arguments(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case's arguments as a loader takes them."""
    arguments = dict(case)
    if arguments["input_nodes"] is not None:
        arguments["input_nodes"] = torch.tensor(arguments["input_nodes"])
    if "order" in arguments:
        arguments["sampler"] = arguments.pop("order")
    return arguments


def described(batch: Data) -> dict[str, Any]:
    """Return a batch's values with their types, in JSON's types."""
    return {
        name: {"dtype": str(value.dtype), "values": value.tolist()}
        if isinstance(value, Tensor)
        else value
        for name, value in sorted(batch.to_dict().items())
    }


def main() -> None:
    """Sample every case and write the file."""
    warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation")
    # Without pyg-lib, PyG sorts edges by target with torch's unstable sort, so that the
    # order within a column is left to chance; with it, by a radix sort, which is stable.
    sampler_utils.index_sort = partial(index_sort, stable=True)
    arrays = graph()
    recorded = []
    for case in cases():
        loader = NeighborLoader(to_data(arrays), **loader_arguments(case))
        recorded.append({"arguments": case, "batches": [described(batch) for batch in loader]})
    typing = torch_geometric.typing
    sampler = "pyg-lib" if typing.WITH_PYG_LIB else "torch-sparse"
    document = {
        "recorded_with": f"torch_geometric {torch_geometric.__version__}, {sampler}",
        "graph": arrays,
        "cases": recorded,
    }
    OUTPUT.parent.mkdir(exist_ok=True)
    lines = json.dumps(document, separators=(",", ":")).replace('{"arguments"', '\n{"arguments"')
    OUTPUT.write_text(lines + "\n")


if __name__ == "__main__":
    main()
