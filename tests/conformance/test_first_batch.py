"""The first batches of an epoch that nobody has prepared: they come while the others are planned.

They are read without a plan, so nothing waits for one: not the first batch for the others to be
sampled, planned and packed, and not the batches before a superbatch for the superbatch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from gnnstore import GraphStore, NeighborLoader
from gnnstore.errors import InputError
from gnnstore.features import static as static_tier
from gnnstore.pipeline.lookahead.producer import Producer
from gnnstore.strategies import solve as sizes
from gnnstore.strategies import static as static_strategy
from gnnstore.strategies.registry import STRATEGIES
from tests.support.batches import Batches, assert_goes_on, assert_same_batches, batches_of
from tests.support.effort import choose
from tests.support.graphs import N

pytestmark = pytest.mark.timeout(120)

BATCHES = 8
OPTIONS: dict[str, Any] = {"batch_size": 25, "shuffle": True, "seed": 3}
PLANNED = [s.name for s in STRATEGIES if s.plans]


@pytest.fixture(scope="module")
def expected(path: Path) -> list[Batches]:
    """Two epochs."""
    plain = NeighborLoader(path, [4, 4], range(200), strategy="memory", **OPTIONS)
    return [batches_of(plain) for _ in range(2)]


@pytest.fixture(autouse=True)
def _planning_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have two batches of an epoch come first, as if the graph were large."""
    for module in (sizes, static_tier, static_strategy):
        monkeypatch.setattr(module, "LONG_READ_BYTES", 0)
    monkeypatch.setattr(sizes, "_UNPLANNED_SHARE", BATCHES // 2)


def loader_of(path: Any, strategy: str = "packed", **options: Any) -> NeighborLoader:
    defaults: dict[str, Any] = {"cache_bytes": "20kB", "num_threads": 2, "strategy": strategy}
    return NeighborLoader(path, [4, 4], range(200), **(defaults | OPTIONS | options))


def unplanned(loader: NeighborLoader) -> int:
    number: int = loader._sources.superbatches.job.size.num_unplanned
    return number


class Held:
    """Superbatches that are not planned before somebody says so, and what has been planned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.planned: list[int] = []
        plan_and_pack = Producer.plan_and_pack

        def plan_later(producer: Any, sampled: Any) -> Any:
            assert self.go_on.wait(60), "a batch waits for a plan that it does not need"
            self.planned.append(len(sampled))
            return plan_and_pack(producer, sampled)

        monkeypatch.setattr(Producer, "plan_and_pack", plan_later)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.go_on.set()


@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.parametrize("memory", [None, "200MB"])
def test_they_do_not_wait_for_a_plan(
    path: Path, expected: list[Batches], held: Held, strategy: str, memory: str | None
) -> None:
    loader = loader_of(path, strategy, memory=memory)
    num_unplanned = unplanned(loader)
    assert "all rows from disk while the others are planned" in loader.stats().reason
    batches = iter(loader)
    found = [batch.to_dict() for batch in islice(batches, num_unplanned)]
    assert not held.planned
    first = loader.stats()
    assert first.rows_cached == 0
    assert first.rows_read >= sum(len(batch["n_id"]) for batch in found)
    held.go_on.set()
    found += [batch.to_dict() for batch in batches]
    assert_same_batches(found, expected[0])
    assert held.planned[0] == BATCHES - num_unplanned
    # The second epoch was prepared beside this one, from its first batch on.
    assert_same_batches(batches_of(loader), expected[1])
    assert held.planned[1] == BATCHES


@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.parametrize("superbatch", [3, BATCHES])
def test_without_threads(
    path: Path, expected: list[Batches], held: Held, strategy: str, superbatch: int
) -> None:
    loader = loader_of(path, strategy, num_threads=0, superbatch=superbatch)
    batches = iter(loader)
    found = [next(batches).to_dict()]
    assert not held.planned
    held.go_on.set()
    found += [batch.to_dict() for batch in batches]
    assert_same_batches(found, expected[0])
    assert_same_batches(batches_of(loader), expected[1])


@pytest.mark.parametrize("strategy", choose(["packed"], PLANNED))
def test_an_epoch_goes_on_anywhere(path: Path, strategy: str) -> None:
    assert_goes_on(lambda: loader_of(path, strategy))


def test_a_batch_that_cannot_be_prepared(path: Path) -> None:
    nodes = [[*range(25 * k, 25 * k + 25)] for k in range(4)]
    for wrong in range(3):
        batches = [*nodes[:wrong], [10**6], *nodes[wrong:]]
        loader = NeighborLoader(
            path,
            [4],
            range(200),
            batch_sampler=batches,
            strategy="belady",
            cache_bytes="20kB",
            seed=1,
        )
        found: list[Any] = []
        with pytest.raises(InputError):
            found.extend(loader)
        assert len(found) == wrong


def test_another_loader_reads_meanwhile(path: Path, expected: list[Batches]) -> None:
    store = GraphStore(path)
    training, other = loader_of(store), loader_of(store)
    found = []
    for k, batch in enumerate(training):
        found.append(batch.to_dict())
        if k in (0, 4):
            assert_same_batches(batches_of(other), expected[k // 4])
    assert_same_batches(found, expected[0])


@pytest.mark.parametrize("strategy", PLANNED)
def test_bytes_that_an_epoch_moves(path: Path, strategy: str) -> None:
    loader = loader_of(path, strategy, shuffle=False)  # no second epoch is prepared
    assert math.isnan(loader.stats().moved_epoch_bytes)
    list(loader)
    stats = loader.stats()
    assert (stats.bytes_packing >= 400) == (strategy == "packed"), "a row at least"
    assert stats.bytes_packing <= 2 * N * 400
    moved = stats.bytes_read + stats.bytes_packing + stats.bytes_spilled
    assert stats.moved_epoch_bytes == moved


@pytest.mark.parametrize("cache_bytes", ["20kB", "500kB"])
def test_a_static_cache_is_filled_beside_batches(
    path: Path, expected: list[Batches], cache_bytes: str
) -> None:
    loader = loader_of(path, "static", cache_bytes=cache_bytes, memory="50MB")
    assert_same_batches(batches_of(loader, 2), expected[0] + expected[1])
    for thread in threading.enumerate():
        if thread.name == "gnnstore-fill":
            thread.join()
    before = loader.stats()
    batches_of(loader)
    since = loader.stats().since(before)
    assert since.rows_cached > 0
    assert (since.rows_read == 0) == (cache_bytes == "500kB"), "all rows fit"
