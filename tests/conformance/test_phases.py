"""Sampling, filling a cache, planning and packing have memory by turns, whatever comes between."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from gnnstore.pipeline.lookahead.session import CacheSession
from gnnstore.pipeline.lookahead.spools import Spools

from gnnstore import NeighborLoader
from gnnstore._core import release_heap
from gnnstore.pipeline.lookahead import driver
from gnnstore.pipeline.lookahead import packer as rolling
from gnnstore.pipeline.lookahead.producer import LookaheadProducer
from gnnstore.sampling.neighbor import NeighborSampler
from gnnstore.strategies.builtin import STRATEGIES
from tests.support.batches import assert_same_batches, batches_of

pytestmark = pytest.mark.timeout(60)

BATCHES = 16
OPTIONS: dict[str, Any] = {"batch_size": 25, "shuffle": True, "seed": 3, "num_threads": 2}


def loader_of(store: Any, **options: Any) -> NeighborLoader:
    defaults: dict[str, Any] = {"cache_bytes": "100kB", "superbatch": 4, "prefetch_batches": 1}
    return NeighborLoader(store, [4, 4], range(400), **(defaults | OPTIONS | options))


@pytest.fixture(scope="module")
def expected(path: Path) -> list[dict[str, Any]]:
    memory = {"strategy": "memory", "cache_bytes": None, "superbatch": None}
    found = batches_of(loader_of(path, **memory))
    assert len(found) == BATCHES
    return found


class Phases:
    """Notes which phases were there at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        self.together: set[tuple[str, ...]] = set()
        self._now: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._patch = monkeypatch
        self.note(NeighborSampler, "sample", "sampling")
        self.note(CacheSession, "warm_up", "filling")
        self.note(Spools, "plan", "planning")
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


def overtake(loader: NeighborLoader) -> None:
    """Take the cache over as another loader would, which has no use for it any more."""
    superbatches = loader._sources.superbatches
    assert superbatches is not None
    superbatches.job.cache().begin().close()


@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES if s.plans])
def test_one_at_a_time(
    path: Path, expected: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Whatever is planned again, for another loader has had the cache."""
    phases, again = Phases(monkeypatch), []
    plan_again = LookaheadProducer.plan_again

    def noted(*args: Any) -> bool:
        again.append(plan_again(*args))
        return again[-1]

    monkeypatch.setattr(LookaheadProducer, "plan_again", noted)
    # Rows are packed again.
    monkeypatch.setattr(rolling.SuperbatchPacker, "is_faster", lambda *_: True)
    for _ in range(4):
        loader = loader_of(path, strategy=strategy)
        running, found = iter(loader), []
        for num_batches in (1, 1, 3, 1, 4, BATCHES):
            found += batches_of(islice(running, num_batches))
            overtake(loader)
        assert_same_batches(found, expected)
        del running, loader
        gc.collect()  # what it makes for the next epoch ends with it, in whatever thread
        while any(thread.name.startswith("gnnstore") for thread in threading.enumerate()):
            time.sleep(0.01)
    assert any(again)
    assert phases.together == {(phase,) for phase in phases.seen}
    last = "filling" if strategy == "belady" else "packing"
    assert set(phases.seen) == {"sampling", "planning", last}


def test_a_batch_does_not_wait_for_the_plan_of_a_later_superbatch(
    path: Path, expected: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While that is made, it comes without a plan of its own."""
    loader = loader_of(path, strategy="belady", cache_bytes="50kB")
    goes_on, is_planning = threading.Event(), threading.Event()
    plan: Callable[..., Any] = Spools.plan

    def slow(self: Spools, planner: Any, trace: Any, name: str) -> Any:
        if name == "4":
            is_planning.set()
            assert goes_on.wait(30)
        return plan(self, planner, trace, name)

    monkeypatch.setattr(Spools, "plan", slow)
    running = iter(loader)
    found = batches_of(islice(running, 1))
    assert is_planning.wait(30)
    overtake(loader)
    found += batches_of(islice(running, 2))
    without = loader.stats().rows_cached
    goes_on.set()
    found += batches_of(running)
    assert_same_batches(found, expected)
    assert loader.stats().rows_cached > without


def test_free_memory_is_released_as_batches_are_sampled(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Malloc would keep what it has for the arrays of many, beside the batches of the last."""
    each = NeighborLoader(path, [4, 4], range(25), strategy="memory", batch_size=25)
    sample = NeighborSampler.sample
    sizes: list[int] = []

    def sampled(*args: Any, **options: Any) -> Any:
        found = sample(*args, **options)
        sizes.append(found.num_bytes)
        return found

    monkeypatch.setattr(NeighborSampler, "sample", sampled)
    assert len(batches_of(each)) == 1
    (num_bytes,) = sizes
    monkeypatch.setattr(driver, "_RELEASED_BYTES", 2 * num_bytes)
    seen: list[int] = []

    def released() -> None:
        release_heap()
        seen.append(len(sizes) - first)

    monkeypatch.setattr(driver, "release_heap", released)
    loader = loader_of(path, strategy="belady", superbatch=BATCHES)
    first = len(sizes)
    assert len(batches_of(loader)) == BATCHES
    # Of two threads with two batches ahead each, some are sampled while it is decided.
    assert len(seen) >= BATCHES // 4
    assert max(b - a for a, b in zip([0, *seen], seen, strict=False)) <= 3 + 4
