"""Record what torch_geometric's own loaders yield, for where they cannot be asked.

They sample only with pyg-lib or torch-sparse, which few machines have. Run this on one that
does, after a change of the cases: `python tests/conformance/record_expectations.py`. The
results are small JSON files, of NeighborLoader and of LinkNeighborLoader on graphs of one type and
of several, that `test_recorded_expectations.py` compares batches with.
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
from torch_geometric.data import Data, HeteroData
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


def typed_graph() -> dict[str, Any]:
    """Return a small graph of three node types, one of which no edge reaches or leaves."""
    rng = np.random.default_rng(43)
    counts = {"paper": 14, "author": 9, "venue": 3}
    edges = {}
    # Sorted by name, as torch-sparse goes through them; pyg-lib keeps the order of the graph.
    for source, relation, target, num_edges in (
        ("author", "knows", "author", 12),
        ("author", "writes", "paper", 25),
        ("paper", "cites", "paper", 40),
        ("paper", "written_by", "author", 20),
    ):
        ends = [rng.integers(0, counts[of], num_edges) for of in (source, target)]
        pairs = np.unique(np.stack(ends), axis=1)
        edges[f"{source}__{relation}__{target}"] = pairs.tolist()
    return {
        "num_nodes": counts,
        "x": {of: rng.integers(0, 100, (n, 2)).tolist() for of, n in counts.items()},
        "edges": edges,
        "edge_attr": {of: list(range(len(pairs[0]))) for of, pairs in edges.items()},
    }


def typed_cases() -> list[dict[str, Any]]:
    """Return arguments of loaders of nodes; seeds are a type and ids, a mask, or all."""
    mask = [node % 3 == 0 for node in range(14)]
    by_type = {
        "paper__cites__paper": [-1, 0],
        "author__writes__paper": [0, -1],
        "paper__written_by__author": [-1, -1],
        "author__knows__author": [0, 0],
    }
    found: list[dict[str, Any]] = [
        {"num_neighbors": [-1] * num_hops, "input_nodes": nodes, "batch_size": 3}
        for num_hops in (0, 1, 2, 3)
        for nodes in (["paper", mask], ["author", [7, 3, 3, 0, 8]], ["venue", None])
    ]
    return [*found, {**found[3], "num_neighbors": by_type}]


def typed_link_cases() -> list[dict[str, Any]]:
    """Return arguments of loaders of edges between two types, and within one."""
    pairs = [[3, 0, 6, 8, 7, 0, 3], [12, 9, 6, 3, 12, 9, 2]]
    return [
        {"num_neighbors": [-1] * num_hops, "edge_label_index": [of, pairs], "batch_size": 3, **more}
        for of in ("author__writes__paper", "paper__cites__paper")
        for num_hops in (0, 1, 2)
        for more in ({}, {"edge_label": [0, 1, 2, 0, 4, 5, 6]})
    ]


def to_typed_data(arrays: dict[str, Any]) -> HeteroData:
    """Return the graph of several types as `HeteroData`."""
    data = HeteroData()
    for of, x in arrays["x"].items():
        data[of].x = torch.tensor(x)
    for of, pairs in arrays["edges"].items():
        store = data[tuple(of.split("__"))]
        store.edge_index = torch.tensor(pairs)
        store.edge_attr = torch.tensor(arrays["edge_attr"][of])
    return data


def typed_arguments(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case's arguments as a loader takes them."""
    arguments = dict(case)
    if "input_nodes" in arguments:
        of, nodes = arguments["input_nodes"]
        arguments["input_nodes"] = (of, None if nodes is None else torch.tensor(nodes))
    if "edge_label_index" in arguments:
        of, pairs = arguments["edge_label_index"]
        arguments["edge_label_index"] = (tuple(of.split("__")), torch.tensor(pairs))
    if "edge_label" in arguments:
        arguments["edge_label"] = torch.tensor(arguments["edge_label"])
    if isinstance(arguments["num_neighbors"], dict):
        by_type = arguments["num_neighbors"]
        arguments["num_neighbors"] = {tuple(of.split("__")): n for of, n in by_type.items()}
    return arguments


def described_types(batch: HeteroData) -> dict[str, Any]:
    """Return the values of a batch by type, with their types, in JSON's types."""
    return {
        of if isinstance(of, str) else "__".join(of): described(store)
        for of, store in zip(batch.node_types + batch.edge_types, batch.stores[1:], strict=True)
    }


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


def described(batch: Any) -> dict[str, Any]:
    """Return a batch's values with their types, in JSON's types."""
    return {
        name: {"dtype": str(value.dtype), "values": value.tolist()}
        if isinstance(value, Tensor)
        else value
        for name, value in sorted(batch.to_dict().items())
    }


def record(
    output: Path, loader_class: type, cases: list[dict[str, Any]], *, is_typed: bool = False
) -> None:
    """Sample every case and write the file."""
    arrays = typed_graph() if is_typed else graph()
    recorded = []
    for case in cases:
        if is_typed:
            loader = loader_class(to_typed_data(arrays), **typed_arguments(case))
        else:
            loader = loader_class(to_data(arrays), **loader_arguments(case))
        describe = described_types if is_typed else described
        recorded.append({"arguments": case, "batches": [describe(batch) for batch in loader]})
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
    """Record both loaders, on both graphs."""
    warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation")
    # Without pyg-lib, PyG sorts edges by target with torch's unstable sort, so that the
    # order within a column is left to chance; with it, by a radix sort, which is stable.
    sampler_utils.index_sort = partial(index_sort, stable=True)
    record(DATA / "torch_geometric_batches.json", NeighborLoader, cases())
    record(DATA / "torch_geometric_link_batches.json", LinkNeighborLoader, link_cases())
    for name, loader_class, found in (
        ("typed", NeighborLoader, typed_cases()),
        ("typed_link", LinkNeighborLoader, typed_link_cases()),
    ):
        path = DATA / f"torch_geometric_{name}_batches.json"
        record(path, loader_class, found, is_typed=True)


if __name__ == "__main__":
    main()
