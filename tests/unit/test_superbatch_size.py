"""How a budget is divided between cached rows and the plans that say which they are."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnstore.budget.ledger import PLANNED, SLOTS, Ledger
from gnnstore.caching.plan import TraceBuilder
from gnnstore.caching.policies.registry import BELADY
from gnnstore.errors import BudgetError
from gnnstore.features.files import FileRows
from gnnstore.features.packed.memory import (
    PackedBatch,
    PackingBuffers,
    share_with_rows,
    sorting_bytes,
    spilled_bytes,
)
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.pipeline.superbatch_size import SuperbatchSize
from gnnstore.strategies.sizes.settings import PlannedSettings
from gnnstore.strategies.sizes.superbatch import Horizon, Pins, SuperbatchCosts, SuperbatchSizer

MB = 10**6
COSTS = SuperbatchCosts(
    num_rows=10**6, row_bytes=512, batch_nodes=10_000, id_bytes=4, kept_bytes=60_000, policy=BELADY
)
FIXED = Ledger(0, tuple(BELADY.reserve(10_000))).peak({})  # what any plan takes
COUNTS = 9831  # of next uses, for each batch
EACH = 10_000 * (4 + 8 + 1 + 16) + COUNTS  # planned batch
SLOT = 512 + 8 + BELADY.planning.per_slot + BELADY.planning.more_per_slot


def sizer(
    left: int,
    num_batches: int = 1000,
    *,
    costs: SuperbatchCosts = COSTS,
    disk_bytes: int = 0,
    cache_bytes: int | None = None,
    superbatch: int | None = None,
    horizon: Horizon | None = None,
) -> SuperbatchSizer:
    memory = Ledger(left, who="strategy 'belady'")
    settings = PlannedSettings(cache_bytes, superbatch)
    return SuperbatchSizer(costs, settings, memory, num_batches, disk_bytes, horizon)


def test_what_plans_take() -> None:
    # An id and two slots of 4 bytes, 1 of the planner and its counts, twice a position and a slot.
    planning = Ledger(0, tuple(COSTS.plans))
    assert planning.peak({PLANNED: 1}) == EACH + FIXED
    few = COSTS.with_changes(changes=1000, accesses=10_000)
    assert few.changes_share == 0.125, "a quarter more than was measured"
    of_few = Ledger(0, tuple(few.plans))
    assert of_few.peak({PLANNED: 7}) == 7 * (10_000 * (4 + 8 + 1 + 2) + COUNTS) + FIXED
    assert COSTS.with_changes(10_000, 10_000).changes_share == 1.0
    assert COSTS.with_changes(0, 0).changes_share == 1.0


@pytest.mark.parametrize("cache_bytes", [None, 60 * MB])
def test_pinned_rows_are_reserved_apart(cache_bytes: int | None) -> None:
    pins = Pins(30_000, 0.4, np.arange(30_000, dtype=np.int32))
    costs = COSTS.with_changes(1000, 10_000).with_pins(pins)
    assert costs.planned_nodes == 4000
    assert costs.changes_share == pytest.approx(0.125 / 0.4)
    planned = Ledger(0, tuple(costs.plans))
    assert planned.bytes_each(PLANNED) < 0.5 * Ledger(0, tuple(COSTS.plans)).bytes_each(PLANNED)

    with_pins = sizer(100 * MB, costs=costs, cache_bytes=cache_bytes)
    size = with_pins.size_of(100)
    assert size.num_pinned == 30_000
    assert size.pinned is pins.nodes
    assert size.num_planned_slots == size.num_slots - 30_000
    assert size.sizes == {PLANNED: 100, SLOTS: size.num_planned_slots}
    parts = {part.what: part for part in size.reservations}
    # A row, its node, its place in the index and in a list of 4 bytes; 1.5 bits of each node.
    index = 12 * (10**6 // 64 + 1) if 10**6 % 64 else 12 * (10**6 // 64)
    assert parts["pinned rows"].fixed == 30_000 * (512 + 8 + 8 + 4) + index
    assert parts["filling the cache"].phase == "filling the cache"
    if cache_bytes is None:
        assert 0 <= 100 * MB - size.num_bytes < SLOT
    else:
        assert size.num_planned_slots == (60 * MB - costs.pinned_bytes) // SLOT
    alone = sizer(100 * MB, costs=replace(costs, pins=None), cache_bytes=cache_bytes)
    assert with_pins.choose().num_batches > alone.choose().num_batches


def test_what_is_left_is_for_rows() -> None:
    size = sizer(100 * MB).size_of(10)
    # The subgraphs of 20 batches, 2 MB, are less than a sixteenth.
    assert size.in_memory
    assert size.num_slots == (100 * MB - 10 * EACH - FIXED - 2 * MB) // SLOT
    assert size.num_bytes <= 100 * MB < size.num_bytes + SLOT
    more = sizer(100 * MB).size_of(32)
    assert not more.in_memory, "6.4 MB are more"
    assert more.num_slots == (100 * MB - 32 * EACH - FIXED) // SLOT
    assert sizer(10**12).size_of(10).num_slots == 10**6, "no more than there are rows"
    assert sizer(100 * MB, costs=replace(COSTS, row_bytes=0)).size_of(10).num_slots == 0


def test_a_cache_of_a_given_size() -> None:
    assert sizer(100 * MB, cache_bytes=100 * SLOT).size_of(10).num_slots == 100
    with pytest.raises(BudgetError, match=r"of cached rows \+ 8.96 MB of traces") as caught:
        sizer(100 * MB, cache_bytes=96 * MB).size_of(32)
    missing = 96 * MB // SLOT * SLOT + 32 * EACH + FIXED - 100 * MB
    assert f": {missing} bytes too few" in str(caught.value)
    assert str(caught.value).endswith(", lower cache_bytes=, or lower superbatch=")
    with pytest.raises(BudgetError, match=r"MB, or lower superbatch=$"):
        sizer(10 * MB).size_of(32)


def test_the_largest_size_that_disk_has_room_for_is_tried() -> None:
    tried: list[int] = []

    def misses(size: SuperbatchSize) -> float:
        tried.append(size.num_batches)
        return math.inf if size.num_batches > 100 else 1000 - size.num_batches

    assert sizer(100 * MB).choose(misses).num_batches == 92
    assert tried == [161, 140, 122, 106, 92, 46, 23, 12]
    # Where none will do, the smallest says what it would take.
    assert sizer(100 * MB).choose(lambda _: math.inf).num_batches == 2


def test_the_size_that_misses_least_is_chosen() -> None:
    tried: list[SuperbatchSize] = []

    def misses(size: SuperbatchSize) -> int:
        tried.append(size)
        return abs(size.num_batches - 40)

    chosen = sizer(100 * MB).choose(misses)
    assert [size.num_batches for size in tried] == [161, 81, 41, 21]
    assert chosen.num_batches == 41
    assert all(a.num_slots < b.num_slots for a, b in pairwise(tried))
    assert sizer(100 * MB).choose(lambda _: 7).num_batches == 21

    tried.clear()
    assert sizer(100 * MB, 20).choose(misses).num_batches == 20
    assert tried[0].num_batches == 20, "an epoch is as far as one can look"


def test_plans_that_are_large_go_to_the_disk() -> None:
    few = sizer(100 * MB, 10, disk_bytes=10**9).choose()
    assert few.plans_in_memory, "3 MB are less than a sixteenth"
    whole = sizer(100 * MB, 500, disk_bytes=10**9).choose()
    assert (whole.num_batches, whole.plans_in_memory) == (500, False)
    # However far it looks, it takes the same but for what is known of each batch.
    near = sizer(100 * MB, 500, disk_bytes=10**9, superbatch=100).choose()
    assert not near.plans_in_memory
    assert 0 <= near.num_slots - whole.num_slots <= 400 * 200 // 500
    assert whole.table_bytes == 4 * 10**6, "an entry for each row: one pass over the trace"
    assert COSTS.tables(48 * MB) == [4 * MB, 2 * MB], "two passes are worth their memory"
    assert COSTS.tables(0)[-1] == 10**6, "four"
    # Where packing takes more than planning does, in another phase, one pass takes nothing.
    packing = replace(packed(COSTS, 1000), epoch_batches=100)
    with_files = sizer(48 * MB, 100, costs=packing, disk_bytes=10**9).size_of(100)
    assert with_files.table_bytes == 4 * MB
    assert with_files.packing_bytes > 4 * MB + 10_000 * 24 + 4 * 2**20
    with_half = sizer(100 * MB, 500, disk_bytes=50 * MB).choose()
    assert with_half.plans_in_memory, "there is no room on the disk for so many"
    assert with_half.num_batches < 500


def test_a_roomier_table_leaves_room_for_all_else() -> None:
    """With a cache of a given size, subgraphs in memory have what is left."""
    costs = replace(COSTS, num_rows=2 * 10**6, batch_nodes=2000, kept_bytes=12_000)
    for megabytes in range(30, 51):
        limited = sizer(
            60 * MB, 400, costs=costs, disk_bytes=10**12, cache_bytes=megabytes * MB, superbatch=200
        )
        size = limited.choose()
        assert size.num_bytes <= 60 * MB
        assert not size.plans_in_memory


def packed(costs: SuperbatchCosts, rows: int) -> SuperbatchCosts:
    return replace(costs, packed=PackedBatch(costs.batch_nodes, rows, rows, costs.id_bytes))


def test_one_superbatch_at_a_time_where_there_is_no_other() -> None:
    costs = replace(packed(COSTS, 1000), epoch_batches=300)
    rows = Ledger(0, tuple(costs.packed_on_disk(300)))
    spilled = Ledger(0, tuple(costs.spilled_on_disk(299)))
    assert rows.peak(costs.on_disk(300)) == 300 * 512_000
    assert rows.peak(costs.on_disk(299)) == 2 * 299 * 512_000
    each = 10_000 * 16 + 60_000 + 1000 * 8
    assert spilled.peak(costs.on_disk(299)) == 2 * 299 * each


def test_packing_by_plans_on_disk_takes_nothing_for_each_row() -> None:
    few = packed(replace(COSTS, batch_nodes=500_000), 10_000)
    many = packed(few, 250_000)

    def taken(costs: SuperbatchCosts, batches: int) -> int:
        return Ledger(0, tuple(costs.spilled_packing)).peak({PLANNED: batches})

    for batches in (100, 1000):
        grows = taken(many, batches) - taken(few, batches)
        # Every 1024th row twice; and one batch is sorted at a time.
        assert grows <= batches * 240_000 * 2 * 4 // 1000 + 240_000 * 26
        planned = Ledger(0, tuple(many.spilled(10**6))).peak({PLANNED: batches})
        assert planned - taken(many, batches) < 4 * 10**7
    in_memory = Ledger(0, tuple(many.packing))
    assert in_memory.peak({PLANNED: 1000}) > 12 * 250_000 * 1000


def test_packing_has_what_was_promised() -> None:
    """With plans on disk: windows of 1 MiB, writes of 64 KiB, and reads of a batch's ids of 16."""
    table = cast(FileRows, None)
    for nodes, missed, batches, id_bytes in (
        (136_000, 20_000, 1024, 4),
        (500_000, 250_000, 1024, 8),
        (5_000_000, 5_000_000, 2, 4),
        (100, 3, 1024, 4),
    ):
        reserved = PackedBatch(nodes, missed, missed, id_bytes).reserve_spilled()
        memory_bytes = Ledger(0, tuple(reserved)).peak({PLANNED: batches})
        misses = np.full(batches, missed)
        held = spilled_bytes(misses, id_bytes)
        sorting = sorting_bytes(misses, 1, id_bytes, nodes, spills=True)
        assert held + sorting <= memory_bytes
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PackingBuffers, "window_bytes", lambda *_: (1 << 20) + (64 << 10))
            shares, rows = share_with_rows(table, misses, id_bytes, memory_bytes - held)
        assert shares.buffer_bytes >= 64 << 10
        assert rows >= batches * min(missed, 4096)


@pytest.mark.parametrize(("epoch", "expected"), [(0, 1), (1, 1), (2, 2)])
def test_short_epochs(epoch: int, expected: int) -> None:
    assert sizer(100 * MB, epoch).choose(lambda _: 0).num_batches == expected


def test_a_given_number_of_batches() -> None:
    def misses(_: SuperbatchSize) -> int:
        raise AssertionError("nothing is to be measured")

    for given_batches, expected in ((1, 1), (50, 50), (5000, 200)):
        chosen = sizer(200 * MB, 200, superbatch=given_batches).choose(misses)
        assert chosen.num_batches == expected


@pytest.mark.parametrize("left", [60, 70, 80])
@pytest.mark.parametrize("epoch", [500, 701])
def test_an_epoch_is_packed_in_equal_parts(left: int, epoch: int) -> None:
    """As often is the table read; and the last part is as long as others to pack the next in."""
    costs = replace(packed(COSTS, 5000), epoch_batches=epoch)
    size = sizer(left * MB, epoch, costs=costs, disk_bytes=10**12).choose()
    parts = math.ceil(epoch / size.num_batches)
    assert size.num_batches == math.ceil(epoch / parts)
    assert parts > 1, "or this says nothing"
    costs = replace(costs, packed=None)
    lengths = {sizer(left * MB, epoch, costs=costs).choose().num_batches for left in range(30, 60)}
    assert any(n != math.ceil(epoch / math.ceil(epoch / n)) for n in lengths), "others may be any"


@pytest.mark.parametrize(
    ("given", "epoch", "expected"),
    [(20, 10, 20), (39, 10, 20), (40, 10, 40), (4000, 10, 40), (19, 10, 10), (2000, 400, 800)],
)
def test_a_given_number_of_epochs(given: int, epoch: int, expected: int) -> None:
    known = Horizon(num_seeds=10_000)
    assert sizer(10**9, epoch, superbatch=given, horizon=known).choose().num_batches == expected
    assert sizer(10**9, epoch, superbatch=given).choose().num_batches == min(given, epoch)


@pytest.mark.parametrize(
    ("later", "one", "two"), [(100, 500, 275), (400, 500, 400), (600, 600, 600)]
)
def test_several_epochs_begin_with_a_full_cache(later: int, one: int, two: int) -> None:
    """There is room for the first epoch, which fills it, alone and with the one that follows."""
    costs = replace(packed(COSTS, 1000), epoch_batches=10, later_missed=later)
    assert costs.of_length(10) is costs
    for num_superbatches, mean in ((1, one), (2, two)):
        long = costs.of_length(20, num_superbatches)
        assert long.packed is not None
        assert long.packed.mean_missed == mean
        assert long.of_length(20) is long
    chunks = Ledger(0, tuple(costs.packed_on_disk(20))).peak(costs.on_disk(20))
    assert chunks >= 10 * (1000 + later) * 512
    assert chunks == 40 * -(-two * 512 // 4096) * 4096
    sizes = {PLANNED: 20}
    first = Ledger(0, (packed(COSTS, 1000).packing[-1],)).peak({PLANNED: 10})
    assert Ledger(0, (costs.of_length(20).packing[-1],)).peak(sizes) >= first
    unknown = replace(costs, later_missed=None)
    assert unknown.of_length(20) is unknown


def test_several_epochs_where_that_costs_less() -> None:
    def cost(size: SuperbatchSize) -> float:
        """Return a pass over the tables for each superbatch, and a read of what is not cached."""
        return 10 / size.num_batches * passes + (10**6 - size.num_slots) / 10**4

    def costs_of(size: SuperbatchSize) -> SuperbatchCosts:
        return COSTS

    known, passes = Horizon(num_seeds=10**6), 1000
    several = sizer(300 * MB, 10, horizon=known)
    one = several.choose()
    assert one.num_batches == 10
    _, four = several.lengthen(one, cost, costs_of)
    assert four.num_batches == 40
    # The orders of its epochs, 8 bytes a seed, lie in memory as well.
    alone = sizer(300 * MB, 40).size_of(40)
    assert (alone.num_slots - four.num_slots) * SLOT == pytest.approx(4 * 8 * MB, abs=SLOT)
    passes = 0
    assert several.lengthen(one, cost, costs_of)[1] is one
    passes = 1000
    assert sizer(300 * MB, 10).lengthen(one, cost, costs_of)[1] is one, (
        "nobody knows of other epochs"
    )
    part = several.size_of(5)
    assert several.lengthen(part, cost, costs_of)[1] is part, "not even one epoch was worth it"


def test_too_little_for_two_batches() -> None:
    with pytest.raises(BudgetError, match="of traces and plans"):
        sizer(FIXED + 500_000, 100).choose()
    assert sizer(FIXED + 620_000, 100).choose().num_batches == 2


@given(
    left=st.integers(0, 10**9),
    batches=st.integers(1, 2000),
    nodes=st.integers(0, 10**6),
    rows=st.integers(1, 10**8),
    cache=st.none() | st.integers(0, 10**9),
)
def test_what_planning_on_disk_takes_is_counted(
    left: int, batches: int, nodes: int, rows: int, cache: int | None
) -> None:
    costs = SuperbatchCosts(rows, 512, nodes, id_bytes=4, kept_bytes=10 * nodes, policy=BELADY)
    try:
        size = sizer(left, 2000, costs=costs, disk_bytes=10**15, cache_bytes=cache).size_of(batches)
    except BudgetError:
        return
    if size.plans_in_memory:
        return
    parts = BELADY.reserve_spilled(
        num_nodes=rows, largest_batch=nodes, table_bytes=size.table_bytes
    )
    taken = Ledger(0, tuple(parts)).peak({PLANNED: batches, SLOTS: size.num_slots})
    cached = (512 + 8) * size.num_slots
    kept = costs.samples.bytes_of(size.sizes) if size.in_memory else 0
    assert taken + cached + kept == size.num_bytes <= left


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
        policy=st.just(BELADY),
    ),
    settings=st.builds(
        PlannedSettings,
        cache_bytes=st.none() | st.integers(0, 10**10),
        num_batches=st.none() | st.integers(1, 5000),
    ),
    disk=st.integers(0, 10**11),
    has_cost=st.booleans(),
)
def test_a_choice_stays_within_the_budget(
    *,
    left: int,
    epoch: int,
    costs: SuperbatchCosts,
    settings: PlannedSettings,
    disk: int,
    has_cost: bool,
) -> None:
    cost = (lambda size: -size.num_slots) if has_cost else None
    sized = SuperbatchSizer(costs, settings, Ledger(left), epoch, disk)
    try:
        size = sized.choose(cost)
    except BudgetError:
        return
    assert size.num_bytes <= left
    on_disk = Ledger(disk, tuple(costs.spilled_on_disk(size.num_batches)))
    assert size.plans_in_memory or on_disk.left(costs.on_disk(size.num_batches)) >= 0
    assert 1 <= size.num_batches <= max(1, epoch)
    assert 0 <= size.num_slots <= costs.num_rows
    more = Ledger(left, size.reservations).peak({**size.sizes, SLOTS: size.num_slots + 1})
    is_free = settings.cache_bytes is None and costs.row_bytes
    assert not is_free or size.num_slots == costs.num_rows or more > left, "one more had room"


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
    assert [id_dtype(n).name for n in (2**31 - 1, 2**31)] == ["int32", "int64"]
