"""Misses of a planned cache, as a loader finds them from batches that it samples beforehand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnnstore.caching.plan import Trace
from gnnstore.caching.policies.registry import POLICIES
from gnnstore.pipeline.superbatch_size import SuperbatchSize
from gnnstore.progress import NullProgress
from gnnstore.sampling.row_space import RowSpace
from gnnstore.strategies.sizes.misses import MeasuredMisses

NUM_NODES, NUM_BATCHES = 20_000, 64


@pytest.fixture(scope="module")
def batches() -> list[Any]:
    """As on graphs, few rows are needed often, and most seldom: two runs of as many batches."""
    rng = np.random.default_rng(3)
    return [
        np.unique((NUM_NODES * rng.random(2000) ** 3).astype(np.int32))
        for _ in range(2 * NUM_BATCHES)
    ]


def measured(
    batches: list[Any], num_batches: int = NUM_BATCHES, spare_bytes: int | None = None
) -> MeasuredMisses:
    def run(*_: Any, trace: Any, **__: Any) -> None:
        for i in range(num_batches):
            trace.put(i, batches[i])

    topology: Any = None
    space = RowSpace.of({"node": NUM_NODES})
    presampler: Any = SimpleNamespace(run=run, progress=NullProgress(), space=space)
    return MeasuredMisses(
        topology,
        presampler,
        policy=POLICIES["belady"],
        packs=True,
        num_batches=num_batches,
        num_threads=1,
        spare_bytes=spare_bytes,
    )


def size_of(num_slots: int) -> SuperbatchSize:
    return SuperbatchSize(NUM_BATCHES, num_slots, in_memory=True)


@pytest.mark.parametrize("num_slots", [5000, 8000, 12_000])
def test_packed_rows_of_later_superbatches(batches: list[Any], num_slots: int) -> None:
    """The first one fills the cache, those after it find it full."""
    model, size = measured(batches), size_of(num_slots)
    planner = POLICIES["belady"].planner(num_slots)
    first = planner.plan(Trace.of(batches[:NUM_BATCHES])).num_misses
    later = planner.plan(Trace.of(batches[NUM_BATCHES:])).num_misses
    assert model.first(size).num_missed == first
    assert model.later(size) == pytest.approx(later, rel=0.2)
    assert model.later(size) < 0.9 * first


def test_without_memory_to_estimate_them_they_are_those_of_the_first(batches: list[Any]) -> None:
    model, size = measured(batches, spare_bytes=10_000), size_of(6000)
    assert model.later(size) == model.first(size).num_missed


@pytest.mark.parametrize("num_batches", [1, 2])
def test_a_few_batches_do_not_tell_of_later_ones(batches: list[Any], num_batches: int) -> None:
    model, size = measured(batches, num_batches), size_of(6000)
    assert model.later(size) == model.first(size).num_missed
