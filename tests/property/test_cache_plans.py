"""Plans of caches: kernels equal their twins, no cache misses less, plans can be followed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gnnstore import _core
from gnnstore.caching.belady import POLICIES, BeladyPlanner
from gnnstore.caching.plan import CachePlan, Trace
from gnnstore.errors import UsageError
from tests.support.effort import choose
from tests.support.twins import caches as twin

Batches = list[list[int]]

index_dtypes = st.sampled_from([np.int32, np.int64])
# Far apart, ids go to the hash table; close to each other, they are places.
strides = st.sampled_from([1, 1_000_003])


def batches_of(num_rows: int, max_batches: int, max_rows: int) -> st.SearchStrategy[Batches]:
    batch = st.lists(st.integers(0, num_rows - 1), max_size=max_rows)
    return st.lists(batch, max_size=max_batches)


def distinct_batches(num_rows: int, max_batches: int, max_rows: int) -> st.SearchStrategy[Batches]:
    batch = st.lists(st.integers(0, num_rows - 1), max_size=max_rows, unique=True)
    return st.lists(batch, max_size=max_batches)


small = batches_of(12, 12, 8) | distinct_batches(30, 25, 12)


def trace_of(batches: Batches, dtype: type = np.int64, stride: int = 1) -> Trace:
    return Trace.of([np.array(batch, dtype) * dtype(stride) for batch in batches])


def scaled(batches: Batches, stride: int) -> Batches:
    return [[row * stride for row in batch] for batch in batches]


def random_batches(seed: int, num_rows: int, num_batches: int, batch_rows: int) -> Batches:
    """Batches of skewed rows, some of them repeated."""
    rng = np.random.default_rng(seed)
    rows = (num_rows * rng.random((num_batches, batch_rows)) ** 3).astype(int)
    return [row.tolist() for row in rows]


def assert_equals_twin(
    found: tuple[npt.NDArray[Any], ...], expected: twin.TwinPlan, dtypes: tuple[type, ...]
) -> None:
    for array, values, dtype in zip(found, vars(expected).values(), dtypes, strict=True):
        assert array.dtype == dtype
        assert array.tolist() == values


PLAN_DTYPES = (np.int32, np.int64, np.int64, np.int32, np.int32, np.int64, np.int32)


@given(small, st.integers(0, 40), index_dtypes, strides, st.integers(0, 12))
@example([], 3, np.int64, 1, 0)
@example([[], []], 3, np.int32, 1, 0)
@example([[5, 5, 5]], 1, np.int64, 1, 0)
def test_plan_equals_its_twin(
    batches: Batches, num_slots: int, dtype: type, stride: int, num_first: int
) -> None:
    """Over two superbatches, so that the second begins with a cache that holds something."""
    rows = scaled(batches, stride)
    nodes, frequencies = [-1] * num_slots, [0] * num_slots
    state = (np.full(num_slots, -1), np.zeros(num_slots, np.int32))
    for part in (rows[:num_first], rows[num_first:]):
        expected = twin.belady_plan(part, nodes, frequencies)
        trace = trace_of(part, dtype)
        found = (*_core.plan_belady(trace.ids, trace.offsets, *state), *state)
        assert_equals_twin(found, expected, PLAN_DTYPES)
        nodes, frequencies = expected.nodes, expected.frequencies


@pytest.mark.parametrize("num_slots", [0, 1, 40, 120, 300, 999, 1000, 5000])
@pytest.mark.parametrize("stride", [1, 2**33 + 1])
def test_plan_equals_its_twin_on_a_longer_trace(num_slots: int, stride: int) -> None:
    batches = random_batches(num_slots, num_rows=1000, num_batches=40, batch_rows=120)
    rows = scaled(batches, stride)
    trace = trace_of(batches, stride=stride)
    state = (np.full(num_slots, -1), np.zeros(num_slots, np.int32))
    expected = twin.belady_plan(rows, *(array.tolist() for array in state))
    found = (*_core.plan_belady(trace.ids, trace.offsets, *state), *state)
    assert_equals_twin(found, expected, PLAN_DTYPES)


@given(batches_of(6, 8, 4), st.integers(0, 7), st.integers(0, 8))
def test_no_cache_misses_less(batches: Batches, num_slots: int, num_first: int) -> None:
    planner = BeladyPlanner(num_slots)
    planner.plan(trace_of(batches[:num_first]))
    held = [row for row in planner.nodes.tolist() if row >= 0]
    plan = planner.plan(trace_of(batches[num_first:]))
    assert plan.num_misses == twin.minimum_misses(batches[num_first:], num_slots, held)


@given(small, st.integers(0, 40))
def test_misses_are_those_of_beladys_rule(batches: Batches, num_slots: int) -> None:
    plan = BeladyPlanner(num_slots).plan(trace_of(batches))
    assert plan.num_misses == sum(twin.belady_misses(batches, num_slots))


# --- following a plan ----------------------------------------------------------------------------


def follow(plan: CachePlan, trace: Trace, cache: npt.NDArray[np.int64]) -> int:
    """Assemble every batch by a plan, with node ids in the place of rows; return the reads."""
    reads = 0
    for i in range(plan.num_batches):
        ids, slots = trace.batch(i), plan.batch_slots(i)
        is_hit = slots >= 0
        assert (cache[slots[is_hit]] == ids[is_hit]).all()
        missed = np.unique(ids[~is_hit])
        assert not np.isin(missed, ids[is_hit]).any()  # repeated rows are all hits or all misses
        assert len(missed) == plan.misses[i]
        reads += len(missed)
        positions, targets = plan.batch_changes(i)
        assert len(np.unique(targets)) == len(targets)
        assert np.isin(ids[positions], missed).all()  # what is in the cache is not written again
        cache[targets] = ids[positions]
    return reads


@given(
    st.integers(0, 2**16),
    st.integers(0, 400),
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
)
def test_plans_can_be_followed(seed: int, num_slots: int, sizes: list[int]) -> None:
    batches = random_batches(seed, num_rows=300, num_batches=sum(sizes), batch_rows=50)
    planner = BeladyPlanner(num_slots)
    cache = np.full(num_slots, -1)
    for size in sizes:
        part, batches = batches[:size], batches[size:]
        trace = trace_of(part)
        plan = planner.plan(trace)
        assert follow(plan, trace, cache) == plan.num_misses
        held = planner.nodes
        assert (cache[held >= 0] == held[held >= 0]).all()


def test_every_kept_row_is_needed_again() -> None:
    """Rows enter to be hits, or to stay to the end: nothing is copied in vain."""
    trace = trace_of(random_batches(3, num_rows=500, num_batches=60, batch_rows=80))
    planner = BeladyPlanner(100)
    plan = planner.plan(trace)
    is_read = np.zeros(len(plan.change_slots), bool)
    last_change = np.full(100, -1)
    for i in range(plan.num_batches):
        slots = plan.batch_slots(i)
        is_read[last_change[slots[slots >= 0]]] = True
        begin, end = plan.change_offsets[i : i + 2]
        last_change[plan.change_slots[begin:end]] = np.arange(begin, end)
    is_read[last_change[planner.nodes >= 0]] = True
    assert is_read.all()


def test_frequencies_stop_at_their_largest() -> None:
    state = (np.array([7, 8]), np.array([65534, 65535], np.int32))
    trace = trace_of([[7, 8]] * 3)
    _core.plan_belady(trace.ids, trace.offsets, *state)
    nodes, frequencies = state
    assert nodes.tolist() == [7, 8]
    assert frequencies.tolist() == [twin.MAX_FREQUENCY] * 2


def test_many_batches_with_few_rows() -> None:
    """One pass: tens of thousands of batches must not be looked through for each of them."""
    rows = np.random.default_rng(0).integers(0, 1000, choose(40_000, 100_000))
    is_there = rows < 500
    offsets = np.concatenate([[0], np.cumsum(is_there)])
    trace = Trace(rows[is_there], offsets)
    plan = BeladyPlanner(100).plan(trace)
    is_missed = np.zeros(len(rows), bool)
    is_missed[is_there] = plan.slots < 0
    np.testing.assert_array_equal(plan.misses, is_missed)
    # As `follow` does, for batches of one row, of which there are too many for arrays.
    cache = [-1] * 100
    has_changes = np.diff(plan.change_offsets)
    assert (has_changes <= is_there).all()
    has_changes = has_changes[is_there].tolist()
    targets = iter(plan.change_slots.tolist())
    assert (plan.change_positions == 0).all()
    for row, slot, enters in zip(trace.ids.tolist(), plan.slots.tolist(), has_changes, strict=True):
        assert slot < 0 or cache[slot] == row
        if enters:
            assert slot < 0  # what is in the cache is not written again
            cache[next(targets)] = row
    batches = [[row] if row < 500 else [] for row in rows.tolist()]
    assert plan.num_misses < sum(twin.run_lru(batches, 100)[1])


@pytest.mark.parametrize("num_batches", [4 * 100 + 63, 4 * 100 + 64, 4 * 100 + 65, 1000])
def test_an_empty_cache_before_many_batches(num_batches: int) -> None:
    """Beyond four batches a slot, next uses are looked up instead of gone through."""
    rows = np.random.default_rng(0).integers(0, 500, num_batches)
    offsets = np.arange(num_batches + 1)
    misses = []
    for nodes in (np.full(100, -1), np.arange(500, 600)):  # no rows, and none that are used
        frequencies = (nodes >= 0).astype(np.int32)
        plan = _core.plan_belady(rows, offsets, nodes, frequencies, 1)
        misses.append(plan[1].tolist())
    assert misses[0] == misses[1]
    assert set(misses[0]) <= {0, 1}


@pytest.mark.long("a trace of one window is planned in both")
def test_threads_and_windows_do_not_change_a_plan() -> None:
    """Of a trace that is long enough for several; its second part begins with a full cache."""
    num_rows, num_slots, strides = 300_000, 50_000, choose((1_000_003,), (1, 1_000_003))
    rng = np.random.default_rng(0)
    rows = (num_rows * rng.random(2 * 3_300_000) ** 2).astype(np.int64)
    cuts = np.sort(rng.integers(0, len(rows) // 2, 9))
    offsets = np.concatenate([[0], cuts, [len(rows) // 2]])
    one, *others = (
        (np.full(num_slots, -1), np.zeros(num_slots, np.int32)) for _ in range(1 + len(strides))
    )
    for part in np.split(rows, 2):
        expected = _core.plan_belady(part.astype(np.int32), offsets, *one, 1)
        for stride, state in zip(strides, others, strict=True):
            found = _core.plan_belady(part * stride, offsets, *state, 3)
            for array, values in zip(found, expected, strict=True):
                np.testing.assert_array_equal(array, values)
            np.testing.assert_array_equal(state[0], np.where(one[0] < 0, -1, one[0] * stride))
            np.testing.assert_array_equal(state[1], one[1])
        for i in range(len(cuts) + 1):
            batch = part[offsets[i] : offsets[i + 1]]
            is_missed = np.zeros(num_rows, bool)
            is_missed[batch[expected[0][offsets[i] : offsets[i + 1]] < 0]] = True
            assert expected[1][i] == is_missed.sum()


# --- a cache of which only its rows are known ----------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES.names)
@given(st.integers(0, 2**16), st.integers(0, 120), st.data())
def test_a_plan_begins_with_any_rows(policy: str, seed: int, num_slots: int, data: Any) -> None:
    """Whatever an iteration that was left has put there: some slots empty, some rows twice."""
    rng = np.random.default_rng(seed)
    nodes = rng.integers(-1, 150, num_slots)
    planner = POLICIES[policy].planner(num_slots)
    if data.draw(st.booleans()):
        planner.plan(trace_of(random_batches(seed, 150, 5, 40)))
    planner.restart(nodes)
    held = planner.nodes
    assert set(held.tolist()) - {-1} == set(nodes.tolist()) - {-1}
    assert ((held == -1) | (held == nodes)).all()
    assert len(np.unique(held[held >= 0])) == (held >= 0).sum()
    batches = random_batches(seed + 1, num_rows=150, num_batches=8, batch_rows=40)
    trace = trace_of(batches)
    plan = planner.plan(trace)
    assert follow(plan, trace, nodes) == plan.num_misses
    assert plan.misses[0] == len(set(batches[0]) - set(held.tolist()))


# --- what is refused -----------------------------------------------------------------------------


def call(
    ids: Any = (1, 2),
    offsets: Any = (0, 2),
    nodes: Any = (-1,),
    counts: Any = (0,),
    threads: int = 1,
) -> None:
    _core.plan_belady(
        np.array(ids, np.int64),
        np.array(offsets, np.int64),
        np.array(nodes, np.int64),
        np.array(counts, np.int32),
        threads,
    )


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"ids": (1, -2)}, IndexError, "row id -2 at position 1 is negative"),
        ({"offsets": ()}, ValueError, "offsets must not be empty"),
        ({"offsets": (0, 1)}, ValueError, "offsets must go from 0 to the 2 ids, .* 0 to 1"),
        ({"offsets": (1, 2)}, ValueError, "offsets must go from 0"),
        ({"offsets": (0, 2, 1, 2)}, ValueError, "1 at position 2 follows 2"),
        ({"nodes": (1, 3, 1), "counts": (1, 1, 1)}, ValueError, "1 stands there twice, .* slot 2"),
        ({"nodes": (9, 9), "counts": (1, 1)}, ValueError, "9 stands there twice, .* slot 1"),
        ({"nodes": (4,)}, ValueError, "slot 0 must have a frequency of at least 1, got 0"),
        ({"nodes": ()}, ValueError, "nodes and frequencies must have the same length"),
        ({"threads": 0}, ValueError, "num_threads must be between 1 and 1024, got 0"),
    ],
)
def test_bad_arguments(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    call()
    with pytest.raises(error, match=message):
        call(**changed)


@pytest.mark.parametrize("policy", POLICIES.names)
def test_a_planner_says_what_is_wrong(policy: str) -> None:
    with pytest.raises(UsageError, match="0 to 2147483645 slots, got -1"):
        POLICIES[policy].planner(-1)
    planner = POLICIES[policy].planner(2)
    planner.plan(trace_of([[1, 2], [2]]))
    before = planner.nodes
    with pytest.raises(UsageError, match="cannot plan a superbatch: row id -1"):
        planner.plan(trace_of([[-1]]))
    assert (planner.nodes == before).all()
