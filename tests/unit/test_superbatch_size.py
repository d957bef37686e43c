"""How a budget is divided between cached rows and the plans that say which they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnstore.errors import BudgetError
from gnnstore.planning.belady import transient_bytes
from gnnstore.planning.planners import slot_bytes
from gnnstore.planning.superbatch_size import (
    PlannedSettings,
    SuperbatchCosts,
    SuperbatchSize,
    choose_size,
    size_of,
    with_measured_changes,
)
from gnnstore.planning.trace_builder import TraceBuilder, id_dtype

MB = 10**6
COSTS = SuperbatchCosts(
    num_rows=10**6, row_bytes=512, batch_nodes=10_000, id_bytes=4, kept_bytes=100_000
)
BELADY = PlannedSettings("belady")
FIXED = transient_bytes(0, 0)  # tables that any plan takes
SLOT = 512 + 8 + 2 * 12 + transient_bytes(0, 1) - FIXED


def test_what_plans_take() -> None:
    # An id and two slots of 4 bytes, 6 of the planner, twice a position and a slot.
    assert COSTS.planning_bytes(1) == 10_000 * (4 + 8 + 6 + 16) + FIXED
    few = with_measured_changes(COSTS, changes=1000, accesses=10_000)
    assert few.changes_share == 0.125, "a quarter more than was measured"
    assert few.planning_bytes(7) == 7 * 10_000 * (4 + 8 + 6 + 2) + FIXED
    assert with_measured_changes(COSTS, 10_000, 10_000).changes_share == 1.0
    assert with_measured_changes(COSTS, 0, 0).changes_share == 1.0


def test_what_other_planners_take() -> None:
    lru = replace(COSTS, policy="lru")
    # Numbers and a table instead of next uses; 20 bytes for each row touched, of 10^6 at most.
    assert lru.planning_bytes(1) == 10_000 * (4 + 8 + 6 + 16 + 20) + FIXED
    assert lru.planning_bytes(200) == 200 * 10_000 * (4 + 8 + 6 + 16) + 20 * 10**6 + FIXED
    assert lru.slots_bytes(1) == 512 + 8 + slot_bytes("lru")
    assert COSTS.slots_bytes(3) == 3 * SLOT


def test_what_is_left_is_for_rows() -> None:
    size = size_of(COSTS, BELADY, 100 * MB, 10)
    # The subgraphs of 20 batches, 2 MB, are less than a sixteenth.
    assert size.in_memory
    assert size.num_slots == (100 * MB - 3_400_000 - FIXED - 2 * MB) // SLOT
    assert size.num_bytes <= 100 * MB < size.num_bytes + SLOT
    more = size_of(COSTS, BELADY, 100 * MB, 32)
    assert not more.in_memory, "6.4 MB are more"
    assert more.num_slots == (100 * MB - 32 * 340_000 - FIXED) // SLOT
    assert size_of(COSTS, BELADY, 10**12, 10).num_slots == 10**6, "no more than there are rows"
    nothing = replace(COSTS, row_bytes=0)
    assert size_of(nothing, BELADY, 100 * MB, 10).num_slots == 0


def test_a_cache_of_a_given_size() -> None:
    settings = replace(BELADY, cache_bytes=100 * SLOT)
    assert size_of(COSTS, settings, 100 * MB, 10).num_slots == 100
    with pytest.raises(BudgetError, match="cache_bytes=96000000 and the plans of 32 batches") as e:
        size_of(COSTS, replace(BELADY, cache_bytes=96 * MB), 100 * MB, 32)
    missing = 96 * MB // SLOT * SLOT + 32 * 340_000 + FIXED - 100 * MB
    assert f": {missing} bytes too few" in str(e.value)
    with pytest.raises(BudgetError, match=r"or lower superbatch=$"):
        size_of(COSTS, BELADY, 10 * MB, 32)


def test_the_size_that_misses_least_is_chosen() -> None:
    tried: list[SuperbatchSize] = []

    def misses(size: SuperbatchSize) -> int:
        tried.append(size)
        return abs(size.num_batches - 35)

    chosen = choose_size(COSTS, BELADY, 100 * MB, 1000, misses)
    assert [size.num_batches for size in tried] == [17, 35, 71, 142]
    assert chosen.num_batches == 35
    assert all(a.num_slots > b.num_slots for a, b in pairwise(tried))
    assert choose_size(COSTS, BELADY, 100 * MB, 1000, lambda _: 7).num_batches == 17

    tried.clear()
    assert choose_size(COSTS, BELADY, 100 * MB, 20, misses).num_batches == 20
    assert tried[-1].num_batches == 20, "an epoch is as far as one can look"


@pytest.mark.parametrize(("epoch", "expected"), [(0, 1), (1, 1), (2, 2)])
def test_short_epochs(epoch: int, expected: int) -> None:
    assert choose_size(COSTS, BELADY, 100 * MB, epoch, lambda _: 0).num_batches == expected


def test_a_given_number_of_batches() -> None:
    def misses(_: SuperbatchSize) -> int:
        raise AssertionError("nothing is to be measured")

    for given_batches, expected in ((1, 1), (50, 50), (5000, 200)):
        settings = replace(BELADY, num_batches=given_batches)
        assert choose_size(COSTS, settings, 200 * MB, 200, misses).num_batches == expected


def test_too_little_for_two_batches() -> None:
    with pytest.raises(BudgetError, match="the plans of 2 batches at a time"):
        choose_size(COSTS, BELADY, FIXED + 600_000, 100, lambda _: 0)
    assert choose_size(COSTS, BELADY, FIXED + 700_000, 100, lambda _: 0).num_batches == 2


@given(
    left=st.integers(0, 10**10),
    epoch=st.integers(0, 5000),
    costs=st.builds(
        SuperbatchCosts,
        num_rows=st.just(10**7),
        row_bytes=st.integers(0, 5000),
        batch_nodes=st.integers(0, 10**6),
        id_bytes=st.sampled_from([4, 8]),
        kept_bytes=st.integers(0, 10**7),
    ),
    settings=st.builds(
        PlannedSettings,
        policy=st.just("belady"),
        cache_bytes=st.none() | st.integers(0, 10**10),
        num_batches=st.none() | st.integers(1, 5000),
    ),
)
def test_a_choice_stays_within_the_budget(
    left: int, epoch: int, costs: SuperbatchCosts, settings: PlannedSettings
) -> None:
    try:
        size = choose_size(costs, settings, left, epoch, lambda size: -size.num_slots)
    except BudgetError:
        return
    assert size.num_bytes <= left
    assert 1 <= size.num_batches <= max(1, epoch)
    assert size.num_slots >= 0


def test_a_trace_is_put_together_in_any_order() -> None:
    builder = TraceBuilder(4, num_nodes=1000)
    builder.put(2, np.array([7]))
    builder.put(0, np.array([5, 3], np.int64))
    builder.put(1, np.array([], np.int32))
    trace = builder.build()
    assert trace.ids.dtype == np.int32
    assert (trace.ids.tolist(), trace.offsets.tolist()) == ([5, 3, 7], [0, 2, 2, 3])


def test_a_trace_ends_before_the_first_batch_that_is_missing() -> None:
    builder = TraceBuilder(3, num_nodes=2**31 + 1)
    builder.put(0, np.array([1, 2]))
    builder.put(2, np.array([9]))
    trace = builder.build()
    assert trace.ids.dtype == np.int64
    assert (trace.ids.tolist(), trace.num_batches) == ([1, 2], 1)
    assert TraceBuilder(2, 10).build().num_batches == 0
    assert [id_dtype(n).name for n in (2**31, 2**31 + 1)] == ["int32", "int64"]
