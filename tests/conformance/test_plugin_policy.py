"""A cache policy and a strategy that stand in this file alone: they load, and are predicted.

Registering them is all that it takes. Were a list of names anywhere else, something here would not
know them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gnnstore import NeighborLoader
from gnnstore.plugins import (
    POLICIES,
    STRATEGIES,
    CachePlan,
    CachePolicy,
    LookaheadStrategy,
    PlannedStep,
    PlanningBytes,
    Trace,
)
from gnnstore.testing import assert_resumes
from gnnstore.tools.bench.ways import ways
from gnnstore.tools.cli import main
from tests.support.batches import assert_same_batches, batches_of
from tests.support.references import OPTIONS, batches_in_memory

CACHE = {"strategy": "hashed", "cache_bytes": "100kB"}


class DirectMappedPlanner:
    """Gives each row the one slot that its id is hashed to, and evicts the row that is there."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._nodes = np.full(num_slots, -1, np.int64)

    @property
    def nodes(self) -> npt.NDArray[np.int64]:
        return self._nodes.copy()

    def _slot_of(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return (ids.astype(np.int64) * 2654435761 >> 7) % self.num_slots

    def plan(self, trace: Trace) -> CachePlan:
        batches = (trace.batch(i) for i in range(trace.num_batches))
        return CachePlan.collect(trace.offsets, map(self._step, batches))

    def _step(self, ids: npt.NDArray[Any]) -> PlannedStep:
        if not self.num_slots:
            return PlannedStep(np.full(len(ids), -1), len(np.unique(ids)), ids[:0], ids[:0])
        own = self._slot_of(ids)
        hit = self._nodes[own] == ids
        missed = np.flatnonzero(~hit)
        entered, first = np.unique(own[missed], return_index=True)
        self._nodes[entered] = ids[missed[first]]
        misses = len(np.unique(ids[missed]))
        return PlannedStep(np.where(hit, own, -1), misses, missed[first], entered)

    def restart(self, nodes: npt.NDArray[Any]) -> None:
        self._nodes = nodes.copy()


class DirectMapped(CachePolicy):
    name, title = "direct-mapped", "direct-mapped"
    planning = PlanningBytes(fixed=1 << 20, per_access=80, per_slot=24)

    def planner(self, num_slots: int) -> DirectMappedPlanner:
        return DirectMappedPlanner(num_slots)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    strategy = LookaheadStrategy(
        "hashed", "disk", policy="direct-mapped", summary="a cache as processors'"
    )
    with POLICIES.having(DirectMapped()), STRATEGIES.having(strategy):
        yield


def loader_of(path: Path, **options: Any) -> NeighborLoader:
    return NeighborLoader(path, [4, 4], "train", **(OPTIONS | options))


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="'direct-mapped' is registered already"):
        POLICIES.register(DirectMapped())


def test_a_context_forgets_what_was_registered_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectMapped, "name", "another")
    with POLICIES.having():
        POLICIES.register(DirectMapped())
        assert "another" in POLICIES
    assert "another" not in POLICIES


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("superbatch", [1, 5, None])
def test_it_loads_the_same_batches(path: Path, num_threads: int, superbatch: int | None) -> None:
    loader = loader_of(path, **CACHE, num_threads=num_threads, superbatch=superbatch)
    assert_same_batches(batches_of(loader, 2), batches_in_memory(path))
    stats = loader.stats()
    assert (stats.strategy, stats.cache) == ("hashed", "hashed")
    assert stats.rows_cached > 0
    assert stats.cache_rows > 100


@pytest.mark.parametrize("other", ["hashed", "static"])
def test_it_goes_on_where_another_stopped(path: Path, other: str) -> None:
    options = cycle((CACHE, CACHE | {"strategy": other}))
    assert_resumes(lambda: loader_of(path, **next(options)))


def test_it_is_predicted_and_compared(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def plan(*more: str) -> str:
        words = ["--num-neighbors", "4,4", "--batch-size", "50", "--batches", "5", "--threads", "1"]
        assert main(["predict", str(path), *words, "--cache-bytes", "10%", *more]) == 0
        return capsys.readouterr().out

    document = json.loads(plan("--json"))
    found = {one["strategy"]: one for one in document["predictions"]["strategies"]}
    hashed, belady = found["hashed"], found["belady"]
    assert hashed["problem"] is None
    assert hashed["seconds_per_epoch"] > 0
    assert hashed["superbatch"] == belady["superbatch"]
    (cache,) = document["caches"]
    misses = {policy["policy"]: policy["misses"] for policy in cache["policies"]}
    assert misses["belady"] < misses["direct-mapped"] < document["rows_needed"]
    assert "hashed" in plan("--strategies", "hashed,belady")
    assert ways()["hashed"].strategy == "hashed"
