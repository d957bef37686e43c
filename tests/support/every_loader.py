"""Every kind of loader: of nodes and links, with types, times and weights, and ways to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

import gnnstore
from gnnstore import GraphStore, LinkNeighborLoader, NeighborLoader
from gnnstore.converters import from_pyg
from tests.support.hetero import (
    AT,
    CITES,
    TEACHES,
    WRITES,
    WRITTEN_BY,
    hetero_store,
    make_hetero,
)

# Rows that are wide enough to be read from disk.
DATA = make_hetero(widths={"paper": 60, "author": 25})
NUM_TRAIN = int(DATA["paper"].train_mask.sum())
TRAIN = ("paper", "train")
SEVERAL: dict[str, Any] = {"paper": "train", "author": [3, 3, 9, 30, 11, 2, 0]}
TIMES = {"paper": torch.arange(NUM_TRAIN) * 7 - 40, "author": torch.arange(7) * 30 - 60}
FANOUTS = {CITES: [3, 2], WRITES: [2, 2], WRITTEN_BY: [2, 1], TEACHES: [1, 1], AT: [4, 4]}
PAIRS = DATA[WRITES].edge_index[:, :40]

WAYS: list[dict[str, Any]] = [
    {"strategy": "memory", "num_threads": 8},
    {"strategy": "mmap", "num_threads": 2},
    {"strategy": "direct", "topology": "disk"},
    {"strategy": "direct", "io_engine": "pread", "memory": "20MB"},
    {"strategy": "direct", "io_engine": "mmap"},
    {"strategy": "static", "cache_bytes": "1kB"},
    {"strategy": "static", "cache": "degree", "cache_bytes": "1kB", "num_threads": 8},
    {"strategy": "belady", "cache_bytes": "1kB", "superbatch": 3},
    {"strategy": "belady", "cache_bytes": "0", "topology": "disk"},
    {"strategy": "packed", "cache_bytes": "1kB", "superbatch": 2},
    {"strategy": "packed", "cache": "frequency", "cache_bytes": "1kB", "topology": "disk"},
    {"strategy": "auto"},
]
# In `make test`, where what is tested is the same for all ways by a strategy.
ONE_BY_STRATEGY = [*{way["strategy"]: way for way in reversed(WAYS)}.values()][::-1]
# Of a graph with types, unless "plain".
NODES: dict[str, dict[str, Any]] = {
    "nodes": {"input_nodes": TRAIN},
    "nodes, fan-outs by type": {"input_nodes": SEVERAL, "num_neighbors": FANOUTS},
    "nodes, disjoint": {"input_nodes": SEVERAL, "disjoint": True},
    "nodes, bidirectional": {"input_nodes": TRAIN, "subgraph_type": "bidirectional"},
    "nodes, induced": {"input_nodes": SEVERAL, "subgraph_type": "induced"},
    "times of nodes": {"input_nodes": SEVERAL, "time_attr": "time"},
    "last by times": {
        "input_nodes": SEVERAL,
        "time_attr": "time",
        "temporal_strategy": "last",
        "input_time": TIMES,
    },
    "times of edges": {
        "input_nodes": SEVERAL,
        "time_attr": "edge_time",
        "input_time": TIMES,
        "time_window": 90,
    },
    "weights": {"input_nodes": SEVERAL, "weight_attr": "w"},
    "weights, drawn": {
        "input_nodes": SEVERAL,
        "weight_attr": "w",
        "replace": True,
        "disjoint": True,
    },
    "plain, times of nodes": {"time_attr": "time"},
    "plain, last by times": {
        "time_attr": "time",
        "temporal_strategy": "last",
        "input_nodes": [4, 4, 9, 30],
        "input_time": [1, 80, 50, -3],
    },
    "plain, times of edges": {"time_attr": "when", "input_time": torch.arange(50)},
    "plain, weights": {"weight_attr": "w"},
}
LINKS: dict[str, dict[str, Any]] = {
    "links": {"edge_label_index": WRITES, "neg_sampling": "binary", "exclude_edges": "reverse"},
    "links, triplets": {
        "edge_label_index": CITES,
        "neg_sampling": {"mode": "triplet", "amount": 2},
        "disjoint": True,
        "strict_negatives": True,
        "edge_label_attrs": ["w"],
    },
    "links with labels": {
        "edge_label_index": (WRITES, PAIRS),
        "edge_label": torch.arange(40),
        "disjoint": True,
    },
    "links with times": {
        "edge_label_index": (WRITES, PAIRS),
        "edge_label_time": DATA[WRITES].edge_time[:40],
        "time_attr": "time",
        "neg_sampling": "binary",
    },
    "plain, links": {"neg_sampling": "triplet", "exclude_edges": "self", "batch_size": 60},
}
CASES = [*NODES, *LINKS]


def write_stores(directory: Path, **more: Any) -> tuple[Path, Path]:
    """Write a graph of several types, and one without, with options of converters."""
    rng = torch.Generator().manual_seed(2)
    plain = Data(
        x=torch.rand(50, 60, generator=rng),
        edge_index=torch.randint(0, 50, (2, 400), generator=rng),
        time=torch.randint(-20, 90, (50,), generator=rng),
        when=torch.randint(-20, 90, (400,), generator=rng),
        w=torch.rand(400, generator=rng) * (torch.rand(400, generator=rng) < 0.8),
    )
    options: dict[str, Any] = {"time_attr": ("time", "when"), "weight_attr": ("w",), **more}
    return (
        hetero_store(
            directory / "typed.gnn",
            DATA,
            time_attr=["time", "edge_time"],
            weight_attr=["w"],
            **more,
        ).path,
        from_pyg(plain, directory / "plain.gnn", **options),
    )


OpenStores = tuple[GraphStore, GraphStore]


def open_stores(directory: Path, **more: Any) -> OpenStores:
    """Write the graphs, and open their stores once for all loaders, which costs more than these."""
    typed, plain = map(gnnstore.open, write_stores(directory, **more))
    return typed, plain


def make(stores: tuple[Path, Path] | OpenStores, case: str, **options: Any) -> Any:
    """Return a loader of a case."""
    given: dict[str, Any] = {"num_neighbors": [3, 2], "shuffle": True, "seed": 3}
    given["batch_size"] = 6 if case in NODES else 25
    kind = NeighborLoader if case in NODES else LinkNeighborLoader
    given |= (NODES | LINKS)[case] | options
    return kind(stores[case.startswith("plain")], **given)
