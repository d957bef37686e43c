"""How a budget is divided between cached rows and the plans that say which they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.budget.ledger import PLANNED, STAGING, Ledger, Reservation
from gnnstore.caching.belady import BELADY
from gnnstore.caching.plan import TraceBuilder
from gnnstore.errors import BudgetError, DiskBudgetError
from gnnstore.features.file_rows import FileRows
from gnnstore.features.misses import held_bytes, sorting_bytes
from gnnstore.features.pack import PackedBatch, PackingBuffers, choose_buffers
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.pipeline.lookahead.presample import Presampled
from gnnstore.pipeline.lookahead.superbatch import SuperbatchSize
from gnnstore.strategies.base import Strategy
from gnnstore.strategies.options import PlannedSettings
from gnnstore.strategies.placement import Placement
from gnnstore.strategies.registry import BELADY as BELADY_STRATEGY
from gnnstore.strategies.registry import PACKED
from gnnstore.strategies.solve import SizingInputs, solve
from gnnstore.strategies.superbatch_memory import Pins, SuperbatchMemory
from gnnstore.strategies.workload import ReadTotals
from tests.support.effort import choose, examples

MB = 10**6
NUM_ROWS, EPOCH_ACCESSES = 10**6, 100 * 10_000
COSTS = SuperbatchMemory(
    num_rows=10**6, row_bytes=512, batch_nodes=10_000, id_bytes=4, kept_bytes=60_000, policy=BELADY
)
FIXED = Ledger(0, tuple(BELADY.reserve(10_000))).peak({})  # what any plan takes
COUNTS = 9831  # of next uses, for each batch
EACH = 10_000 * (4 + 8 + 1 + 16) + COUNTS  # planned batch
SLOT = 512 + 8 + BELADY.planning.per_slot + BELADY.planning.more_per_slot


def misses(num_slots: int, num_batches: int, **_: object) -> float:
    """Return fewer rows for more slots, and for plans that look further."""
    return EPOCH_ACCESSES * max(0.0, 1 - num_slots / NUM_ROWS) * (0.4 + 2 / (num_batches + 3))


@dataclass(frozen=True)
class Misses:
    """Stands for a model of misses."""

    accesses: float = 100 * 10_000
    least_uses: int = 2
    pinned_share: float | None = None
    misses: Callable[..., float] = misses

    def pass_reads(self, epoch_misses: float, num_batches: int) -> ReadTotals:
        """Return the read of the whole table, or of the rows that are missed if these are fewer."""
        return ReadTotals(1, int(512 * min(NUM_ROWS, epoch_misses * num_batches)))

    def pins(self, num_rows: int) -> Pins | None:
        """Return a share of a batch's rows that is always the same."""
        return None if self.pinned_share is None else Pins(num_rows, self.pinned_share)


def facts(
    memory: int,
    *,
    epoch: int = 100,
    disk_bytes: int = 0,
    cache_bytes: int | None = None,
    superbatch: int | None = None,
    order_bytes: int | None = None,
    strategy: Strategy = BELADY_STRATEGY,
    model: Misses | None = None,
    is_promise: bool = True,
    **others: Any,
) -> SizingInputs:
    placement = Placement(
        strategy=strategy,
        topology="memory",
        modes={},
        ledger=Ledger(memory, (Reservation(STAGING, 2 * MB),), "strategy 'belady'"),
        budget_is_promise=is_promise,
        reason="",
    )
    sizes = (10_000, 60_000, (10_000,) * 64, (6 * MB,) * 64, 0, 60_000)
    seen = Presampled(64, 6 * MB, *sizes)
    given: dict[str, Any] = {
        "misses": model or Misses(),
        "num_rows": NUM_ROWS,
        "row_bytes": 512,
        "pools": None,
        "epoch_batches": epoch,
        "num_threads": 2,
        "may_use_fewer": True,
        "staging_bytes": MB,
        "reads_neighbors": False,
        "samples_slowly": False,
        "reads_more": False,
    }
    return SizingInputs(
        placement=placement,
        seen=seen,
        settings=PlannedSettings(cache_bytes, superbatch),
        order_bytes=order_bytes,
        disk_bytes=disk_bytes,
        **{**given, **others},
    )


def solved(memory: int, **options: Any) -> SuperbatchSize:
    return solve(facts(memory, **options)).size


def test_places_of_rows_of_edges_are_counted() -> None:
    """Of each batch, wherever its trace is; so memory for cached rows is less."""
    for memory in (80 * MB, 200 * MB):
        plain, size = (solved(memory, superbatch=20, edges_bytes=n) for n in (0, MB))
        (places,) = (part for part in size.reservations if "rows of edges" in part.what)
        assert places.bytes_of(size.sizes) == 20 * MB
        assert (plain.num_slots - size.num_slots) * 512 > 15 * MB
        assert size.num_bytes <= memory


def test_what_plans_take() -> None:
    # An id and two slots of 4 bytes, 1 of the planner and its counts, twice a position and a slot.
    planning = Ledger(0, tuple(COSTS.plans))
    assert planning.peak({PLANNED: 1}) == EACH + FIXED
    few = COSTS.with_misses(100 * 1000, 0, 100 * 10_000, 0, lambda largest: largest)
    assert few.changes_share == 0.125, "a quarter more than are missed"
    of_few = Ledger(0, tuple(few.plans))
    assert of_few.peak({PLANNED: 7}) == 7 * (10_000 * (4 + 8 + 1 + 2) + COUNTS) + FIXED
    missed = COSTS.with_misses(90, 90, 100, 5, lambda largest: largest)
    assert missed.changes_share == 0.1875, "10 are hit, and 5 are kept"
    assert COSTS.with_misses(10, 10, 10, 10, lambda largest: largest).changes_share == 1.0
    pinned = replace(COSTS, pins=Pins(30_000, 0.4))
    assert pinned.planned_nodes == 4000
    found = pinned.with_misses(100 * 1000, 0, 100 * 10_000, 0, lambda largest: largest)
    assert found.changes_share == pytest.approx(0.125 / 0.4)
    planned = Ledger(0, tuple(found.plans))
    assert planned.bytes_each(PLANNED) < 0.5 * planning.bytes_each(PLANNED)


def test_what_is_missed_is_packed() -> None:
    costs = replace(packed(COSTS, 10_000), epoch_batches=100)
    found = costs.with_misses(5000, 3000, 10**6, 0, lambda largest: largest + 10)
    assert found.packed is not None
    assert (found.packed.mean_missed, found.later_missed) == (60, 40)
    assert found.packed.most_missed == 10_000, "the first batch misses all of its rows"


def test_more_memory_is_for_rows() -> None:
    memories = range(60, 400, choose(60, 20))
    sizes = [solved(memory * MB) for memory in memories]
    slots = [size.num_slots for size in sizes]
    assert slots == sorted(slots)
    assert slots[0] < slots[-1]
    for memory, size in zip(memories, sizes, strict=True):
        assert size.num_bytes <= memory * MB
    assert solved(10**12).num_slots == NUM_ROWS, "no more than there are rows"
    assert solved(100 * MB, row_bytes=0).num_slots == 0


def test_plans_that_are_large_go_to_the_disk() -> None:
    assert solved(10**9, epoch=10, disk_bytes=10**9).plans_in_memory
    model = Misses(5 * EPOCH_ACCESSES, misses=lambda *sizes, **_: 5 * misses(*sizes))
    whole = solved(100 * MB, epoch=500, disk_bytes=10**9, model=model)
    assert (whole.num_batches, whole.plans_in_memory) == (500, False)
    without = solved(100 * MB, epoch=500, model=model)
    assert without.plans_in_memory
    assert without.num_batches < 500
    assert COSTS.table_bytes(48 * MB) == 3 * MB
    assert COSTS.table_bytes(0) == 2**20, "four passes"


def test_rows_are_pinned_where_that_misses_less() -> None:
    pins = solved(100 * MB, epoch=500, model=Misses(pinned_share=0.3))
    assert pins.num_pinned > 0
    assert pins.num_planned_slots == pins.num_slots - pins.num_pinned
    assert pins.num_slots > solved(100 * MB, epoch=500).num_slots, "plans are shorter"
    assert solved(100 * MB, epoch=500, model=Misses(pinned_share=0.95)).num_pinned == 0
    nodes = np.arange(pins.num_pinned - 5)
    fewer = pins.with_pinned(nodes)
    assert fewer.num_slots == pins.num_slots - 5
    assert fewer.sizes == pins.sizes


def test_a_cache_of_a_given_size() -> None:
    size = solved(100 * MB, cache_bytes=100 * SLOT)
    assert size.num_slots == 100
    with pytest.raises(BudgetError, match=r"raise memory= by [^,]*, or lower cache_bytes=$"):
        solved(100 * MB, cache_bytes=96 * MB)


def test_options_are_named_that_are_enough_to_lower() -> None:
    many: dict[str, Any] = {"epoch": 500, "superbatch": 400}
    with pytest.raises(BudgetError, match=r"raise memory= by [^,]*, or lower superbatch=$"):
        solved(100 * MB, **many)
    either = r"raise memory= by [^,]*, lower cache_bytes=, or lower superbatch=$"
    with pytest.raises(BudgetError, match=either):
        solved(200 * MB, cache_bytes=100 * MB, **many)
    neither = r"to do: raise memory= by [^,]*$"
    with pytest.raises(BudgetError, match=neither):
        solved(100 * MB, cache_bytes=96 * MB, **many)


@pytest.mark.parametrize(
    ("given", "epoch", "expected"),
    [(20, 10, 20), (39, 10, 20), (40, 10, 40), (4000, 10, 40), (19, 10, 10), (2000, 400, 800)],
)
def test_a_given_number_of_batches(given: int, epoch: int, expected: int) -> None:
    options: dict[str, Any] = {"strategy": PACKED, "disk_bytes": 10**12, "epoch": epoch}
    size = solved(10**10, superbatch=given, order_bytes=1000, **options)
    assert size.num_batches == expected
    assert solved(10**10, superbatch=given, **options).num_batches == min(given, epoch)
    assert solved(10**10, superbatch=given, epoch=epoch).num_batches == min(given, epoch)


@pytest.mark.parametrize("memory", [120, 130, 140])
@pytest.mark.parametrize("epoch", [500, 701])
def test_an_epoch_is_packed_in_equal_parts(memory: int, epoch: int) -> None:
    """As often is the table read; and the last part is as long as others to pack the next in."""
    options: dict[str, Any] = {"strategy": PACKED, "epoch": epoch}
    size = solved(memory * MB, disk_bytes=200 * MB, **options)
    parts = math.ceil(epoch / size.num_batches)
    assert parts > 1
    assert size.num_batches == math.ceil(epoch / parts)


def test_several_epochs_share_a_pass() -> None:
    options: dict[str, Any] = {"strategy": PACKED, "disk_bytes": 10**12, "row_bytes": 4096}
    assert solved(4000 * MB, order_bytes=800, **options).num_batches == 400
    assert solved(4000 * MB, **options).num_batches == 100, "nobody knows of other epochs"


def test_packed_rows_need_disk() -> None:
    with pytest.raises(DiskBudgetError, match="or choose strategy='belady'"):
        solved(10**9, strategy=PACKED, disk_bytes=0)


def test_one_thread_before_a_refusal() -> None:
    assert solve(facts(100 * MB)).num_threads == 2
    with pytest.raises(BudgetError) as caught:
        solve(facts(12 * MB))
    least = 12 * MB
    while missing := caught.value.missing_bytes:
        least += missing
        try:
            found = solve(facts(least))
        except BudgetError as error:
            caught.value.missing_bytes = error.missing_bytes
        else:
            break
    assert found.num_threads == 1
    assert "one thread" in found.placement.reason
    with pytest.raises(BudgetError):
        solve(facts(least, may_use_fewer=False))


@pytest.mark.parametrize(
    "options",
    [
        {"epoch": 12},
        *choose(
            [],
            [
                {"epoch": 100, "disk_bytes": 10**9},
                {"epoch": 12, "strategy": PACKED, "disk_bytes": 10**9},
            ],
        ),
        {"epoch": 100, "strategy": PACKED, "disk_bytes": 300 * MB, "order_bytes": 80},
    ],
)
def test_more_memory_never_costs_more(options: dict[str, Any]) -> None:
    model = Misses(
        options["epoch"] * 10_000,
        pinned_share=0.6,
        misses=lambda *sizes, **_: (options["epoch"] / 100) * misses(*sizes),
    )
    prices: list[tuple[float, int, SuperbatchSize]] = []
    num_steps = choose(12, 240)
    for step in range(num_steps):
        memory = int(17 * MB * 30 ** ((step / num_steps) ** 2))  # more of them where little fits
        try:
            found = solve(facts(memory, model=model, **options))
        except BudgetError:
            assert not prices, "what fits within less memory fits within more"
            continue
        prices.append((found.price, found.num_threads, found.size))
    assert {threads for _, threads, _ in prices} == {1, 2}
    rises = [(a, b) for a, b in pairwise(prices) if b[0] > a[0] * (1 + 1e-9)]
    assert not rises, rises


@given(
    memory=st.integers(0, 10**10),
    epoch=st.integers(1, 3000),
    row_bytes=st.integers(0, 5000),
    cache_bytes=st.none() | st.integers(0, 10**10),
    superbatch=st.none() | st.integers(1, 5000),
    disk=st.integers(0, 10**11),
    packs=st.booleans(),
    pinned=st.none() | st.floats(0.1, 1),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_choice_stays_within_the_budget(
    *,
    memory: int,
    epoch: int,
    row_bytes: int,
    cache_bytes: int | None,
    superbatch: int | None,
    disk: int,
    packs: bool,
    pinned: float | None,
) -> None:
    asked = facts(
        memory,
        epoch=epoch,
        row_bytes=row_bytes,
        cache_bytes=cache_bytes,
        superbatch=superbatch,
        disk_bytes=disk,
        strategy=PACKED if packs else BELADY_STRATEGY,
        model=Misses(pinned_share=pinned),
        order_bytes=80,
    )
    try:
        found = solve(asked)
    except BudgetError:
        return
    size = found.size
    assert found.placement.ledger.add(*size.reservations).left(size.sizes) >= 0
    assert not packs or not row_bytes or found.disk_bytes <= disk
    most = max(1, epoch)
    assert 1 <= size.num_batches <= (4 * most if packs else most)
    assert 0 <= size.num_pinned <= size.num_slots <= NUM_ROWS


def packed(costs: SuperbatchMemory, rows: int) -> SuperbatchMemory:
    return replace(costs, packed=PackedBatch(costs.batch_nodes, rows, rows, costs.id_bytes))


def test_one_superbatch_at_a_time_where_there_is_no_other() -> None:
    costs = replace(packed(COSTS, 1000), epoch_batches=300)
    rows = [Ledger(0, tuple(costs.packed_on_disk(n))).peak() for n in (300, 299)]
    assert rows == [300 * 512_000, 2 * 299 * 512_000]
    each = 10_000 * 16 + 60_000 + 1000 * 8
    assert Ledger(0, tuple(costs.spilled_on_disk(299))).peak() == 2 * 299 * each


def test_packing_by_plans_on_disk_takes_nothing_for_each_row() -> None:
    few = packed(replace(COSTS, batch_nodes=500_000), 10_000)
    many = packed(few, 250_000)

    def taken(costs: SuperbatchMemory, batches: int) -> int:
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
        held = held_bytes(misses, id_bytes, spills=True)
        sorting = sorting_bytes(misses, 1, id_bytes, nodes, spills=True)
        assert held + sorting <= memory_bytes
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PackingBuffers, "window_bytes", lambda *_: (1 << 20) + (64 << 10))
            shares, rows = choose_buffers(table, misses, id_bytes, memory_bytes - held)
        assert shares.buffer_bytes >= 64 << 10
        assert rows >= batches * min(missed, 4096)


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
    chunks = Ledger(0, tuple(costs.packed_on_disk(20))).peak()
    assert chunks >= 10 * (1000 + later) * 512
    assert chunks == 40 * -(-two * 512 // 4096) * 4096
    sizes = {PLANNED: 20}
    first = Ledger(0, (packed(COSTS, 1000).packing[-1],)).peak({PLANNED: 10})
    assert Ledger(0, (costs.of_length(20).packing[-1],)).peak(sizes) >= first
    unknown = replace(costs, later_missed=None)
    assert unknown.of_length(20) is unknown


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
