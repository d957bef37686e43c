"""Record what torch_geometric's own loaders yield, for where they cannot be asked.

They sample only with pyg-lib or torch-sparse, which few machines have. Run this on one that
does, after a change of the cases: `python tests/conformance/record_expectations.py`. The
results are small JSON files, of NeighborLoader and of LinkNeighborLoader, that
`test_recorded_expectations.py` compares batches with.
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
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.sampler import utils as sampler_utils
from torch_geometric.utils import index_sort

DATA = Path(__file__).with_name("data")
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


def link_cases() -> list[dict[str, Any]]:
    """Return arguments of loaders of edges: of the graph, loops, and some that it does not have."""
    pairs = [[3, 0, 6, 9, 7, 0, 15, 5, 2, 3], [12, 9, 6, 14, 12, 9, 15, 2, 9, 12]]
    found: list[dict[str, Any]] = [
        {"num_neighbors": [-1] * num_hops, "edge_label_index": pairs, "batch_size": 4}
        for num_hops in (0, 1, 2, 3)
    ]
    found += [
        {**found[2], "edge_label": [0, 1, 2, 0, 4, 5, 6, 7, 8, 9]},
        {**found[2], "edge_label": [[i / 2, -i / 4] for i in range(10)]},
        {**found[2], "edge_label": [1.5] * 10, "order": [9, 0, 4, 4, 2, 1, 3, 8, 5, 6]},
        {**found[1], "num_neighbors": [1000, 50]},
        {**found[1], "num_neighbors": [-1, 0, -1]},
        {**found[1], "batch_size": 10},
        {**found[2], "batch_size": 1},
        {**found[2], "subgraph_type": "induced"},
        {**found[2], "subgraph_type": "bidirectional"},
        {**found[1], "subgraph_type": "induced", "edge_label": list(range(10))},
        {**found[1], "subgraph_type": "bidirectional", "edge_label": list(range(10))},
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
    for name in ("input_nodes", "edge_label_index", "edge_label"):
        if arguments.get(name) is not None:
            arguments[name] = torch.tensor(arguments[name])
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


def record(output: Path, loader_class: type, cases: list[dict[str, Any]]) -> None:
    """Sample every case and write the file."""
    arrays = graph()
    recorded = []
    for case in cases:
        loader = loader_class(to_data(arrays), **loader_arguments(case))
        recorded.append({"arguments": case, "batches": [described(batch) for batch in loader]})
    typing = torch_geometric.typing
    sampler = "pyg-lib" if typing.WITH_PYG_LIB else "torch-sparse"
    document = {
        "recorded_with": f"torch_geometric {torch_geometric.__version__}, {sampler}",
        "graph": arrays,
        "cases": recorded,
    }
    lines = json.dumps(document, separators=(",", ":")).replace('{"arguments"', '\n{"arguments"')
    output.write_text(lines + "\n")


def main() -> None:
    """Record both loaders."""
    warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation")
    # Without pyg-lib, PyG sorts edges by target with torch's unstable sort, so that the
    # order within a column is left to chance; with it, by a radix sort, which is stable.
    sampler_utils.index_sort = partial(index_sort, stable=True)
    record(DATA / "torch_geometric_batches.json", NeighborLoader, cases())
    record(DATA / "torch_geometric_link_batches.json", LinkNeighborLoader, link_cases())


if __name__ == "__main__":
    main()
