"""A cache with room for more rows than an epoch needs: what it takes in besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.converters import ConvertOptions, from_rmat
from tests.support.batches import assert_same_batches, batches_of
from tests.support.loaders import slots_of


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("store")
    options = ConvertOptions(edge_ids=False)
    return from_rmat(directory / "a.gnn", scale=13, feature_dim=128, options=options)


def loader_of(store: Any, **options: Any) -> NeighborLoader:
    # An epoch that needs a fifth of the nodes, others each time.
    return NeighborLoader(
        store,
        [5, 5],
        np.arange(0, 2**13, 64),
        batch_size=16,
        shuffle=True,
        seed=1,
        topology="memory",
        **options,
    )


def test_the_next_epoch_reads_less(store: Path) -> None:
    opened = gnnstore.open(store)
    loader = loader_of(opened, strategy="belady", cache_bytes=2 * 10**6)
    expected = loader_of(store, strategy="memory")
    rows_read = []
    for _ in range(2):
        before = loader.stats()
        assert_same_batches(batches_of(loader), batches_of(expected))
        rows_read.append(loader.stats().since(before).rows_read)
    held = slots_of(opened).planned_nodes
    # All slots have a row, although the first epoch needed fewer.
    num_cached = loader._sources.num_cached
    assert num_cached == rows_read[0]
    assert (held >= 0).all()
    again = loader_of(store, strategy="memory")
    needed = [np.unique(np.concatenate([b.n_id.numpy() for b in again])) for _ in range(2)]
    assert len(needed[0]) < num_cached
    others = np.setdiff1d(needed[1], needed[0])
    assert 0 < rows_read[1] < 0.7 * len(others)
