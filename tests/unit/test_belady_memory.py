"""What planning takes while it goes on: bounded by accesses and slots, whatever the ids are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gnnstore import _core
from gnnstore.budget.ledger import PLANNED, SLOTS, Ledger
from gnnstore.caching.belady import BELADY, BeladyPlanner
from gnnstore.caching.plan import PlanLocation, Trace, TraceBuilder
from tests.support.effort import choose, paired

# Of a slot, between two plans: the row, and how often it was needed.
STATE_BYTES = 12


def transient_bytes(num_batches: int, batch_rows: int, num_slots: int) -> int:
    """Return what a loader reserves for planning, beside the state of the planner."""
    memory = Ledger(0, tuple(BELADY.reserve(batch_rows)))
    return memory.peak({PLANNED: num_batches, SLOTS: num_slots}) - STATE_BYTES * num_slots


def spilled_transient_bytes(
    num_nodes: int, largest_batch: int, num_batches: int, num_slots: int, table_bytes: int
) -> int:
    """Return the same for planning in files."""
    reserved = BELADY.reserve_spilled(
        num_nodes=num_nodes, largest_batch=largest_batch, table_bytes=table_bytes
    )
    peak = Ledger(0, tuple(reserved)).peak({PLANNED: num_batches, SLOTS: num_slots})
    return peak - STATE_BYTES * num_slots


@pytest.fixture
def _nothing_kept() -> Iterator[None]:
    """Memory that is given back goes to the system, so that a peak shows above what is left."""
    _core.pool_trim()
    _core.pool_set_limit(0)
    yield
    _core.pool_set_limit(2**30)


def resident(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise AssertionError(name)


def start_counting() -> int:
    """Count the peak anew; return the memory that is held."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def taken_since(before: int) -> int:
    """Return the memory that was taken and given back; earlier garbage does not count."""
    return resident("VmHWM") - max(before, resident("VmRSS"))


def skewed_trace(num_batches: int, batch_rows: int, num_rows: int, stride: int) -> Trace:
    rng = np.random.default_rng(num_batches)
    dtype = np.int32 if num_rows * stride < 2**31 else np.int64
    rows = num_rows * rng.random(num_batches * batch_rows) ** 2
    offsets = batch_rows * np.arange(num_batches + 1)
    return Trace((rows.astype(np.int64) * stride).astype(dtype), offsets)


@pytest.mark.usefixtures("_nothing_kept")
@pytest.mark.parametrize(
    ("num_rows", "stride"),
    [
        (1 << 20, 1),
        (1 << 24, 1),  # eight ids for each access
        # Nearly all of 31 bits, and too far apart for a table by id.
        *choose([], [(1 << 20, 2039), (1 << 25, 1_000_003)]),
        (1 << 20, 2**42 + 1),
    ],
)
@pytest.mark.parametrize("num_batches", choose([500], [2, 3, 16, 500]))
@pytest.mark.parametrize(("num_threads", "num_slots"), paired([1, 4], [0, 300_000], 1))
def test_planning_takes_no_more_than_it_says(
    num_threads: int, num_batches: int, num_rows: int, stride: int, num_slots: int
) -> None:
    """Over two superbatches: the second finds a cache that is full."""
    num_accesses = choose(1 << 20, 1 << 21)
    trace = skewed_trace(num_batches, num_accesses // num_batches, num_rows, stride)
    state = (np.full(num_slots, -1), np.zeros(num_slots, np.int32))
    held = []
    for _ in range(2):
        before = start_counting()
        planned = _core.plan_belady(trace.ids, trace.offsets, *state, num_threads)
        taken = taken_since(before)
        assert taken <= transient_bytes(num_batches, num_accesses // num_batches, num_slots)
        # What it surely takes is seen: the slots of one batch, and what waits.
        assert taken + 2**20 >= 4 * (num_accesses // num_batches) + 8 * num_slots
        held.append(planned)  # what is given back would count as taken


@pytest.mark.usefixtures("_nothing_kept")
@pytest.mark.parametrize(("num_rounds", "num_slots"), paired([1, 4], [0, 1_000_000], 1))
# With room for next uses where a table of nodes would be, and without.
@pytest.mark.parametrize(
    ("num_batches", "num_nodes"), paired(choose([2, 500], [2, 500, 20_000]), [1 << 21, 1 << 23], 1)
)
def test_planning_in_files_takes_no_more_than_it_says(
    tmp_path: Path, num_nodes: int, num_batches: int, num_rounds: int, num_slots: int
) -> None:
    """Memory goes with slots, nodes and the largest batch: not with the trace."""
    num_accesses = 1 << 21
    needs_table = num_rounds > 1 or num_nodes <= num_accesses or num_batches == 2
    batch_rows = num_accesses // num_batches
    trace = skewed_trace(num_batches, batch_rows, num_nodes, 1)
    file = TraceBuilder(num_batches, num_nodes, tmp_path / "trace")
    for i in range(num_batches):
        file.put(i, trace.batch(i))
    spilled = file.build()
    del trace
    planner = BeladyPlanner(num_slots)
    table_bytes = 4 * num_nodes // num_rounds
    for name in ("first", "second"):
        before = start_counting()
        plan = planner.plan(spilled, PlanLocation(tmp_path / name, table_bytes))
        taken = taken_since(before)
        least = 12 * batch_rows + max(table_bytes, 4 * num_slots)
        if not needs_table:
            least = 12 * batch_rows + 4 * num_accesses + 4 * num_slots
            assert taken < table_bytes
        promised = spilled_transient_bytes(
            num_nodes, batch_rows, num_batches, num_slots, table_bytes
        )
        assert least <= taken + 2**20  # what it surely takes is seen
        assert taken + plan.num_bytes <= promised + plan.num_bytes
        plan.close()
    file.close()


@pytest.mark.usefixtures("_nothing_kept")
def test_going_on_from_other_rows_takes_little() -> None:
    num_slots = 2_000_000
    planner = BeladyPlanner(num_slots)
    nodes = np.random.default_rng(0).integers(-1, num_slots, num_slots)
    before = start_counting()
    planner.restart(nodes)
    taken = resident("VmHWM") - before
    assert 5 * num_slots <= taken <= 10 * num_slots + 2**21
