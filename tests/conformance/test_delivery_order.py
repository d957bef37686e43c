"""Batches may be delivered in another order than that of the epoch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from gnnstore import NeighborLoader
from gnnstore.pipeline.batch import Batch, BatchSource, EpochRun
from gnnstore.pipeline.order import EpochOrder, Position
from tests.support.batches import assert_same_batches, batches_of
from tests.support.effort import choose

WINDOW = 4
OPTIONS: dict[str, Any] = {"batch_size": 20, "shuffle": True, "seed": 5}


def places(epoch: int, window: int, size: int) -> list[int]:
    """Return the order of a window's batches; the first windows of four epochs are permuted."""
    return [int(place) for place in np.random.default_rng([epoch + 2, window]).permutation(size)]


class Permuted:
    """The batches of a source, permuted within windows by the epoch and the window's number."""

    def __init__(self, source: BatchSource, order: EpochOrder) -> None:
        self._source, self._order = source, order

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    @contextmanager
    def epoch(self, batches: Iterator[Batch], run: EpochRun) -> Iterator[Iterator[Batch]]:
        del batches  # a resumed epoch begins with the window that it was left in
        begin = run.first // WINDOW * WINDOW
        whole = run.batches(self._order, Position(run.epoch, begin))
        with self._source.epoch(self._permuted(whole, run, begin), run) as placed:
            yield placed

    def _permuted(self, whole: Iterator[Batch], run: EpochRun, begin: int) -> Iterator[Batch]:
        delivered = begin
        while window := list(islice(whole, WINDOW)):
            order = places(run.epoch, delivered // WINDOW, len(window))
            positions = [batch.position for batch in window]
            for position, place in zip(positions, order, strict=True):
                delivered += 1
                if delivered > run.first:
                    window[place].position = position
                    yield window[place]


def permuted(path: Path, **options: Any) -> NeighborLoader:
    loader = NeighborLoader(path, [4, 4], range(200), **(OPTIONS | options))
    loader._source = cast("BatchSource", Permuted(loader._source, loader._order))
    return loader


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from gnnstore.testing.graphs import write_store  # noqa: PLC0415

    where = tmp_path_factory.mktemp("store") / "graph.gnn"
    draws = np.random.default_rng(1)
    edges = draws.integers(0, 300, (2, 2000))
    return write_store(where, edges, x=draws.random((300, 4), np.float32))


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "mmap", "memory": "2MB"},  # the gate has room for few batches
        *choose(
            (),
            (
                {"strategy": "memory"},
                {"strategy": "static", "cache_bytes": "4kB"},
                {"strategy": "memory", "num_threads": 0},
            ),
        ),
        {"strategy": "belady", "cache_bytes": "4kB", "superbatch": 3},
        {"strategy": "packed", "cache_bytes": "4kB", "superbatch": 3},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_resumed_in_the_middle_of_a_window(path: Path, options: dict[str, Any]) -> None:
    plain = batches_of(NeighborLoader(path, [4, 4], range(200), strategy="memory", **OPTIONS))
    whole = batches_of(permuted(path, **options))
    assert len(whole) == len(plain) == 10
    firsts = [batch["input_id"].tolist() for batch in whole]
    assert firsts != [batch["input_id"].tolist() for batch in plain]
    assert sorted(firsts) == sorted(batch["input_id"].tolist() for batch in plain)
    for stop in choose((6,), (1, 2, 3, 4, 6, 9, 10)):
        loader = permuted(path, **options)
        batches = iter(loader)
        taken = [batch.to_dict() for batch in islice(batches, stop)]
        assert_same_batches(taken, whole[:stop])
        state = json.loads(json.dumps(loader.state_dict()))
        batches.close()  # type: ignore[attr-defined]
        resumed = permuted(path, **options)
        resumed.load_state_dict(state)
        assert_same_batches([batch.to_dict() for batch in resumed], whole[stop:])


@pytest.mark.parametrize("strategy", ["belady", "packed"])
@pytest.mark.parametrize(
    "options", [{"superbatch": 3}, {"superbatch": 33}, {"num_threads": 0}], ids=str
)
def test_epoch_after_epoch(path: Path, strategy: str, options: dict[str, Any]) -> None:
    """Superbatches that were made ahead are of the order in which batches are delivered."""
    plain = NeighborLoader(path, [4, 4], range(200), strategy="memory", **OPTIONS)
    loader = permuted(path, strategy=strategy, cache_bytes="4kB", **options)
    for epoch in range(choose(2, 4)):
        expected = batches_of(plain)
        windows = [places(epoch, first // WINDOW, min(WINDOW, 10 - first)) for first in (0, 4, 8)]
        assert windows[0] != list(range(WINDOW))  # else the first batches are as without
        order = [WINDOW * i + place for i, window in enumerate(windows) for place in window]
        assert_same_batches(batches_of(loader), [expected[number] for number in order])
