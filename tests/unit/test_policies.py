"""Caches compared on one trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gnnstore.caching import belady
from gnnstore.caching.belady import distinct_rows, policies, run_policy
from gnnstore.caching.plan import Trace
from gnnstore.caching.scores import Score
from tests.support.twins.caches import run_lru

NUM_NODES = 300

Scores = dict[Score, npt.NDArray[Any]]


@pytest.fixture
def trace() -> Trace:
    rng = np.random.default_rng(0)
    rows = (NUM_NODES * rng.random((30, 60)) ** 3).astype(np.int64)
    return Trace.of(list(rows))


@pytest.fixture
def scores(trace: Trace) -> Scores:
    counts = np.bincount(trace.ids, minlength=NUM_NODES)
    return {"degree": counts.astype(np.uint32), "frequency": counts.astype(np.uint8)}


@pytest.mark.parametrize("policy", policies())
@pytest.mark.parametrize("num_slots", [0, 1, 50, NUM_NODES, 2 * NUM_NODES])
def test_misses_are_the_rows_without_hits(
    trace: Trace, scores: Scores, policy: str, num_slots: int
) -> None:
    run = run_policy(policy, trace, num_slots, scores)
    assert run.is_hit.dtype == np.bool_
    for i in range(trace.num_batches):
        begin, end = trace.offsets[i : i + 2]
        missed = set(trace.ids[begin:end][~run.is_hit[begin:end]].tolist())
        assert run.missed_rows(trace, i).tolist() == sorted(missed)
        assert run.misses[i] == len(missed)
    assert run.num_misses <= distinct_rows(trace)
    if num_slots == 0:
        assert run.num_misses == distinct_rows(trace)
    is_static = policy in {"degree", "frequency"}
    assert len(run.filled) == (min(num_slots, NUM_NODES) if is_static else 0)


@given(
    st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=25),
    st.integers(0, 45),
    st.sampled_from([np.int32, np.int64]),
    st.sampled_from([1, 5, 2**16]),
)
@example([[1, 2, 1], [1, 3, 4, 1, 2], [5, 6, 1]], 2, np.int32, 1)
@example([[], [7, 7], [7]], 1, np.int64, 1)
def test_lru_is_what_an_ordered_dict_keeps(
    batches: list[list[int]], num_slots: int, dtype: type, searched: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(belady, "_SEARCHED_PLACES", searched)
        trace = Trace.of([np.array(batch, dtype) for batch in batches])
        found = run_policy("lru", trace, num_slots, {})
    assert (found.is_hit.tolist(), found.misses.tolist()) == run_lru(batches, num_slots)


def test_a_static_cache_holds_the_best_rows(trace: Trace, scores: Scores) -> None:
    run = run_policy("degree", trace, 20, scores)
    worst_inside = scores["degree"][run.filled].min()
    outside = np.delete(scores["degree"], run.filled)
    assert outside.max() <= worst_inside
    assert (run.is_hit == np.isin(trace.ids, run.filled)).all()


def test_belady_reads_least(trace: Trace, scores: Scores) -> None:
    """Its initial fill is among its misses; a static cache's comes on top."""
    for num_slots in (5, 50, 200):
        reads = {}
        for policy in policies():
            run = run_policy(policy, trace, num_slots, scores)
            reads[policy] = run.num_misses + len(run.filled)
        assert min(reads, key=lambda name: reads[name]) == "belady"
        assert sorted(reads.values())[1] > reads["belady"]


def test_distinct_rows_of_repeated_ids() -> None:
    assert distinct_rows(Trace.of([np.array([3, 3, 4]), np.array([3])])) == 3
    assert distinct_rows(Trace.of([])) == 0


def test_a_trace_of_batches() -> None:
    parts = [np.array([1, 2], np.int32), np.array([], np.int32), np.array([2], np.int32)]
    trace = Trace.of(parts)
    assert (trace.num_batches, trace.num_accesses) == (3, 3)
    assert trace.ids.dtype == np.int32
    assert [trace.batch(i).tolist() for i in range(3)] == [[1, 2], [], [2]]
