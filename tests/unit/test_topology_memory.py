"""The memory of a topology that was read for a placement which had no room for the rest."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.errors import BudgetError
from gnnstore.graph.table_registry import shared_tables
from gnnstore.testing.graphs import random_graph

NUM_NODES, NUM_EDGES = 3000, 300_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(NUM_NODES, NUM_EDGES, feature_dim=64, num_classes=3)
    return graph.write(tmp_path_factory.mktemp("graph") / "g.gnn")


def load(store: gnnstore.GraphStore, strategy: str, **options: Any) -> gnnstore.NeighborLoader:
    options |= {
        "batch_size": 500,
        "strategy": strategy,
        "edge_ids": None,
        "num_threads": 1,
        "seed": 0,
    }
    return gnnstore.NeighborLoader(store, [20, 20], np.arange(NUM_NODES), **options)


@pytest.mark.parametrize("strategy", ["static", "belady"])
def test_a_topology_that_leaves_no_room_is_freed(path: Path, strategy: str) -> None:
    too_little, enough = 1 << 20, 64 << 20  # the topology fits, with the rest, from between them on
    while enough - too_little > 200_000:
        memory = (too_little + enough) // 2
        store = gnnstore.open(path)
        try:
            in_memory = load(store, strategy, memory=memory).stats().topology == "memory"
        except BudgetError:
            in_memory = False
        too_little, enough = (too_little, memory) if in_memory else (memory, enough)
    store = gnnstore.open(path)
    loader = load(store, strategy, memory=too_little)
    assert loader.stats().topology != "memory"
    assert shared_tables(store).resident_bytes < 4 * NUM_EDGES
    expected = load(gnnstore.open(path), "memory")
    for batch, other in zip(loader, expected, strict=True):
        assert (batch.n_id == other.n_id).all()
        assert (batch.x == other.x).all()


def test_a_topology_that_a_loader_uses_stays(path: Path) -> None:
    store = gnnstore.open(path)
    loader = load(store, "static", topology="memory")
    used = weakref.ref(store.topology("memory"))
    load(store, "static", topology="disk")
    is_kept = used() is store.topology("memory")
    assert is_kept
    assert shared_tables(store).resident_bytes > 4 * NUM_EDGES
    del loader
    gc.collect()
    load(store, "static", topology="disk")
    assert used() is None
