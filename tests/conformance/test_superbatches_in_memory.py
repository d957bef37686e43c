"""Where there is no disk for plans, longer ones leave less memory to rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import NeighborLoader
from gnnstore.converters import ConvertOptions, from_rmat
from gnnstore.strategies.sizes.misses import MissModel
from tests.support.batches import assert_same_batches, batches_of


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("store")
    options = ConvertOptions(edge_ids=False)
    return from_rmat(directory / "a.gnn", scale=16, feature_dim=128, options=options)


def loader_of(store: Path, strategy: str, **options: Any) -> NeighborLoader:
    return NeighborLoader(
        store,
        [5, 5],
        np.arange(0, 2**16, 4),
        batch_size=128,
        shuffle=True,
        seed=1,
        num_threads=1,
        topology="memory",
        strategy=strategy,
        **options,
    )


def test_the_length_that_misses_least(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = loader_of(store, "memory")
    in_memory.set_epoch(1)
    expected = batches_of(in_memory)

    def second_epoch(**options: Any) -> tuple[int, int]:
        """Return S, and the rows that are read."""
        loader = loader_of(store, "belady", memory="26MB", disk="0B", **options)
        for _ in loader:
            pass
        before = loader.stats()
        assert_same_batches(batches_of(loader), expected)
        return before.superbatch, loader.stats().since(before).rows_read

    pinned = second_epoch()[1]
    assert pinned < 0.97 * second_epoch(superbatch=64)[1]
    assert pinned < 0.95 * second_epoch(superbatch=4)[1]
    # Without pinned rows, traces and plans leave less memory to rows, the longer the less.
    monkeypatch.setattr(MissModel, "pins", lambda *_: None)
    chosen, rows_read = second_epoch()
    longest = second_epoch(superbatch=64)[1]
    shortest = second_epoch(superbatch=4)[1]
    assert 8 <= chosen <= 40
    assert rows_read < 0.9 * longest
    assert rows_read < 0.95 * shortest
    assert pinned < 0.95 * rows_read


def test_a_cache_of_a_given_size_leaves_the_rest_to_plans(store: Path) -> None:
    loader = loader_of(store, "belady", memory="26MB", disk="0B", cache_bytes="500kB")
    assert loader.stats().superbatch > 64
