"""Sampling, filling a cache, planning and packing have memory by turns, whatever comes between."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from gnnstore import NeighborLoader
from gnnstore.pipeline.lookahead import superbatch as rolling
from gnnstore.pipeline.lookahead.producer import Session
from gnnstore.pipeline.lookahead.superbatch import SuperbatchFiles
from gnnstore.sampling.neighbor import NeighborSampler
from gnnstore.strategies.registry import STRATEGIES
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import choose

pytestmark = pytest.mark.timeout(60)

BATCHES = 16
OPTIONS: dict[str, Any] = {"batch_size": 25, "shuffle": True, "seed": 3, "num_threads": 2}


def loader_of(store: Any, **options: Any) -> NeighborLoader:
    defaults: dict[str, Any] = {"cache_bytes": "100kB", "superbatch": 4, "prefetch_batches": 1}
    return NeighborLoader(store, [4, 4], range(400), **(defaults | OPTIONS | options))


@pytest.fixture(scope="module")
def expected(path: Path) -> list[Batches]:
    """Four epochs."""
    memory = {"strategy": "memory", "cache_bytes": None, "superbatch": None}
    plain = loader_of(path, **memory)
    epochs = [batches_of(plain) for _ in range(4)]
    assert [len(epoch) for epoch in epochs] == [BATCHES] * 4
    return epochs


class Phases:
    """Notes which phases were there at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        self.together: set[tuple[str, ...]] = set()
        self._now: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._patch = monkeypatch
        self.note(NeighborSampler, "draw", "sampling")
        self.note(Session, "fill", "filling")
        self.note(SuperbatchFiles, "plan", "planning")
        self.note(rolling, "pack", "packing")

    def note(self, of: Any, name: str, phase: str) -> None:
        function = getattr(of, name)

        def noted(*args: Any, **options: Any) -> Any:
            with self._in(phase):
                time.sleep(0.002)
                return function(*args, **options)

        self._patch.setattr(of, name, noted)

    @contextmanager
    def _in(self, phase: str) -> Any:
        with self._lock:
            self._now[phase] += 1
            self.seen[phase] += 1
            self.together.add(tuple(sorted(+self._now)))
        try:
            yield
        finally:  # what nobody wants any more ends with an error
            with self._lock:
                self._now[phase] -= 1


@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES if s.plans])
def test_one_at_a_time(
    path: Path, expected: list[Batches], monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """In the epoch and beside it for the next, whose batches are others where one is left."""
    phases = Phases(monkeypatch)
    for superbatch in choose((4,), (4, BATCHES)):
        loader = loader_of(path, strategy=strategy, superbatch=superbatch)
        running, found = iter(loader), []
        for num_batches in (1, 1, 3, 1, 4, BATCHES):
            found += batches_of(islice(running, num_batches))
        assert_same_batches(found, expected[0])
        left: Any = iter(loader)
        assert_same_batches(batches_of(islice(left, 5)), expected[1][:5])
        left.close()
        for epoch in expected[2:]:
            assert_same_batches(batches_of(loader), epoch)
        del running, left, loader
        gc.collect()  # what it makes for the next epoch ends with it, in whatever thread
        while any(thread.name.startswith("gnnstore") for thread in threading.enumerate()):
            time.sleep(0.01)
    assert phases.together == {(phase,) for phase in phases.seen}
    last = "filling" if strategy == "belady" else "packing"
    assert set(phases.seen) == {"sampling", "planning", last}
