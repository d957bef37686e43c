"""What the batches of a planned cache do when one of them fails, is overtaken, or is given up."""

from __future__ import annotations

import errno
import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore import _core
from gnnstore._core import ReadCounts
from gnnstore.budget.ledger import SLOTS
from gnnstore.caching.belady import BeladyPlanner
from gnnstore.caching.plan import Trace
from gnnstore.disk.engines import open_engine
from gnnstore.errors import GnnstoreError, StorageError, UsageError
from gnnstore.features import planned as planned_cache
from gnnstore.features import planned as turns_module
from gnnstore.features.file_rows import FileRows
from gnnstore.features.planned import PlanStep, SlotCache, TurnLock
from gnnstore.features.source import RowSource, RowSpec, of_one_type
from tests.support.faults import inject
from tests.support.twins.reads import write_array

NUM_ROWS, ROW_BYTES, NUM_SLOTS = 600, 64, 80
NUM_BATCHES = 12
# Nothing here takes long; what waits for this has failed.
LIMIT_SECONDS = 20.0


@pytest.fixture
def rows() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (NUM_ROWS, ROW_BYTES), dtype=np.uint8)


@pytest.fixture
def table(tmp_path: Path, rows: NDArray[np.uint8]) -> FileRows:
    array = write_array(tmp_path / "x", rows)
    return FileRows.open(array, open_engine(array.file_paths[0], "pread"))


@pytest.fixture
def cache(table: FileRows) -> SlotCache:
    return SlotCache(of_one_type({"x": table}), NUM_SLOTS)


@pytest.fixture
def steps() -> list[PlanStep]:
    return planned_steps(BeladyPlanner(NUM_SLOTS))


@pytest.fixture
def pool(cache: SlotCache) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor
        cache._turns.cancel()  # a test that fails may leave threads that wait


def planned_steps(planner: BeladyPlanner, seed: int = 1) -> list[PlanStep]:
    """Batches every one of which has hits, misses and, but for the last, rows that enter."""
    rng = np.random.default_rng(seed)
    batches = [(NUM_ROWS * rng.random(60) ** 3).astype(np.int64) for _ in range(NUM_BATCHES)]
    trace = Trace.of(batches)
    plan = planner.plan(trace)
    return [
        PlanStep(trace.batch(i), plan.batch_slots(i), *plan.batch_changes(i))
        for i in range(NUM_BATCHES)
    ]


@dataclass
class Gate(RowSource):
    """Rows from memory, once the gate is open; or an error."""

    rows: NDArray[np.uint8]
    error: BaseException | None = None
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    @property
    def spec(self) -> RowSpec:
        return RowSpec(len(self.rows), self.rows.shape[1:], self.rows.dtype)

    def read_rows(self, ids: NDArray[Any], out: NDArray[Any]) -> ReadCounts:
        self.reached.set()
        assert self.opened.wait(LIMIT_SECONDS)
        if self.error is not None:
            raise self.error
        out[:] = self.rows[ids]
        return ReadCounts()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def wait_until_waiting(turns: TurnLock, *numbers: int) -> None:
    """Return when batches have read what they miss, and wait for their turns."""
    wait_for(lambda: len(turns._changed._waiting) == len(numbers))


def assert_is(
    cache: SlotCache, turns: TurnLock, number: int, step: PlanStep, rows: NDArray[np.uint8]
) -> None:
    gathered = cache.gather(turns, number, step)["x"]
    assert (gathered.values == rows[step.ids]).all()
    assert gathered.counts.rows_cached == (step.slots >= 0).sum()


def failed(future: Future[Any]) -> BaseException:
    error = future.exception(LIMIT_SECONDS)
    assert error is not None
    return error


# --- in order ------------------------------------------------------------------------------------


def test_batches_may_come_in_any_order(
    cache: SlotCache, steps: list[PlanStep], rows: NDArray[np.uint8], pool: ThreadPoolExecutor
) -> None:
    turns = cache.begin()
    last_first = {i: pool.submit(cache.gather, turns, i, steps[i]) for i in (5, 4, 3, 2, 1)}
    wait_until_waiting(turns, *last_first)
    assert turns.num_done == 0
    assert_is(cache, turns, 0, steps[0], rows)
    for i, future in last_first.items():
        gathered = future.result(LIMIT_SECONDS)["x"]
        assert (gathered.values == rows[steps[i].ids]).all()
        missed = steps[i].ids[steps[i].slots < 0]
        assert gathered.counts.rows_read == len(np.unique(missed))
        assert gathered.counts.rows_cached == (steps[i].slots >= 0).sum()
    assert turns.num_done == 6


def test_missed_rows_are_read_before_the_turn_comes(
    cache: SlotCache, steps: list[PlanStep], rows: NDArray[np.uint8], pool: ThreadPoolExecutor
) -> None:
    turns = cache.begin()
    gates = [Gate(rows), Gate(rows)]
    futures = [pool.submit(cache.gather, turns, i, steps[i], {"x": gates[i]}) for i in (0, 1)]
    for gate in gates:
        assert gate.reached.wait(LIMIT_SECONDS)
    gates[1].opened.set()
    wait_until_waiting(turns, 1)
    gates[0].opened.set()
    for i in (0, 1):
        assert (futures[i].result(LIMIT_SECONDS)["x"].values == rows[steps[i].ids]).all()


def test_no_slots_at_all(table: FileRows, rows: NDArray[np.uint8]) -> None:
    cache = SlotCache(of_one_type({"x": table}), 0)
    assert (cache.num_slots, cache.num_bytes) == (0, 0)
    turns = cache.begin()
    for i, step in enumerate(planned_steps(BeladyPlanner(0))):
        assert_is(cache, turns, i, step, rows)
    with pytest.raises(UsageError, match="0 to 2147483645 slots, got -1"):
        SlotCache(of_one_type({"x": table}), -1)


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [StorageError, KeyboardInterrupt, MemoryError])
def test_a_failure_ends_the_batches_that_wait(
    cache: SlotCache,
    steps: list[PlanStep],
    rows: NDArray[np.uint8],
    pool: ThreadPoolExecutor,
    kind: type[BaseException],
) -> None:
    """Those after it, at once; not those before it."""
    error = kind("bad disk")
    turns = cache.begin()
    gates = [Gate(rows), Gate(rows, error)]
    futures = [pool.submit(cache.gather, turns, i, steps[i], {"x": gates[i]}) for i in (0, 1)]
    after = [pool.submit(cache.gather, turns, i, steps[i]) for i in (2, 3, 4)]
    wait_until_waiting(turns, 2, 3, 4)
    gates[1].opened.set()
    assert failed(futures[1]) is error
    for future in after:
        assert type(failed(future)) is GnnstoreError
        assert "batch failed, 1, whose rows the cache was to receive" in str(failed(future))
        assert f"({kind.__name__}: bad disk)" in str(failed(future))
    assert not futures[0].done()
    gates[0].opened.set()
    assert (futures[0].result(LIMIT_SECONDS)["x"].values == rows[steps[0].ids]).all()
    assert turns.num_done == 1
    with pytest.raises(GnnstoreError, match="cannot assemble batch 7: an earlier batch failed, 1"):
        cache.gather(turns, 7, steps[7])

    # The rows that batch 0 has brought are good.
    turns = cache.begin()
    planner = BeladyPlanner(NUM_SLOTS)
    planner.restart(cache.planned_nodes)
    assert (cache.planned_nodes >= 0).any()
    for i, step in enumerate(planned_steps(planner, seed=2)):
        assert_is(cache, turns, i, step, rows)


@pytest.mark.parametrize("has_turn", [True, False])
def test_a_disk_that_fails(
    cache: SlotCache,
    steps: list[PlanStep],
    rows: NDArray[np.uint8],
    pool: ThreadPoolExecutor,
    has_turn: bool,
) -> None:
    """When a batch reads with the slots in its hands, or before it has them."""
    turns = cache.begin()
    assert_is(cache, turns, 0, steps[0], rows)
    number = 1 if has_turn else 2
    later = pool.submit(cache.gather, turns, 3, steps[3])
    wait_until_waiting(turns, 3)
    with inject("pread", errno=errno.EIO, times=-1) as fault:
        with pytest.raises(StorageError, match=r"array 'x'.*Input/output error"):
            cache.gather(turns, number, steps[number])
        assert "Input/output error" in str(failed(later))
    assert fault.count > 0
    fresh = cache.begin()  # does not wait for the failed one
    planner = BeladyPlanner(NUM_SLOTS)
    planner.restart(cache.planned_nodes)
    for i, step in enumerate(planned_steps(planner, seed=3)):
        assert_is(cache, fresh, i, step, rows)


@pytest.mark.parametrize("is_interrupted_before", [True, False])
def test_slots_that_may_be_half_written_are_unknown(
    table: FileRows,
    rows: NDArray[np.uint8],
    monkeypatch: pytest.MonkeyPatch,
    is_interrupted_before: bool,
) -> None:
    """With two tables, an error between them leaves nodes of which one row is the new one."""
    cache = SlotCache(of_one_type({"x": table, "y": table}), NUM_SLOTS)
    planner = BeladyPlanner(NUM_SLOTS)
    steps = planned_steps(planner)
    turns = cache.begin()
    cache.gather(turns, 0, steps[0])
    before = cache.planned_nodes
    copy_to_slots = _core.copy_to_slots
    calls = []

    def interrupted(*arguments: Any) -> None:
        calls.append(1)
        if not is_interrupted_before or len(calls) == 2:
            copy_to_slots(*arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_core, "copy_to_slots", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.gather(turns, 1, steps[1])
    assert len(calls) == 2
    assert len(steps[1].change_slots) > 0
    expected = before.copy()
    expected[steps[1].change_slots] = -1
    assert (cache.planned_nodes == expected).all()

    turns = cache.begin()
    planner.restart(cache.planned_nodes)
    for i, step in enumerate(planned_steps(planner, seed=4)):
        gathered = cache.gather(turns, i, step)
        for path in "xy":
            assert (gathered[path].values == rows[step.ids]).all()


# --- a plan for another cache --------------------------------------------------------------------


def test_a_plan_for_other_contents_is_refused(cache: SlotCache, steps: list[PlanStep]) -> None:
    """Rows of other nodes would be silent errors."""
    turns = cache.begin()
    cache.gather(turns, 0, steps[0])
    with pytest.raises(
        UsageError, match=r"not for the rows in the cache: slot \d+ should hold row"
    ):
        cache.gather(turns, 1, steps[3])
    turns = cache.begin()
    with pytest.raises(UsageError, match=r"but holds (none|row)"):
        cache.gather(turns, 0, steps[5])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slots", NUM_SLOTS),
        ("change_slots", NUM_SLOTS),
        ("change_positions", 60),
        ("ids", NUM_ROWS),
    ],
)
def test_a_plan_that_is_out_of_range(
    cache: SlotCache, steps: list[PlanStep], name: str, value: int
) -> None:
    """Nothing is written, and nothing is taken for what it is not."""
    turns = cache.begin()
    changed = getattr(steps[0], name).copy()
    changed[0] = value
    with pytest.raises((IndexError, UsageError), match=str(value)):
        cache.gather(turns, 0, replace(steps[0], **{name: changed}))
    assert (cache.planned_nodes == -1).all()


# --- other turns ---------------------------------------------------------------------------------


def test_new_turns_take_over(
    cache: SlotCache, steps: list[PlanStep], rows: NDArray[np.uint8], pool: ThreadPoolExecutor
) -> None:
    """In the middle, with batches in all states: those of former turns are read otherwise."""
    turns = cache.begin()
    assert_is(cache, turns, 0, steps[0], rows)
    gates = [Gate(rows) for _ in range(4)]
    reading = [pool.submit(cache.gather, turns, i, steps[i], {"x": gates[i - 2]}) for i in (2, 3)]
    waiting = [pool.submit(cache.gather, turns, i, steps[i]) for i in (5, 6)]
    for gate in gates[:2]:
        assert gate.reached.wait(LIMIT_SECONDS)
    wait_until_waiting(turns, 5, 6)
    second = cache.begin()
    for future in waiting:
        assert future.result(LIMIT_SECONDS) == {}
    assert (turns.is_closed, second.is_closed) == (True, False)

    planner = BeladyPlanner(NUM_SLOTS)
    planner.restart(cache.planned_nodes)
    for i, step in enumerate(planned_steps(planner, seed=5)):
        assert_is(cache, second, i, step, rows)
        if i == 3:
            for gate in gates:
                gate.opened.set()
    for future in reading:
        assert future.result(LIMIT_SECONDS) == {}
    # Those that begin only now, too, by either source; a number that was left out holds nobody up.
    for i, source in ((7, None), (8, {"x": gates[3]})):
        assert cache.gather(turns, i, steps[i], source) == {}
    assert not gates[3].reached.is_set()
    assert cache.warm_up(turns, 9, np.arange(5)) == ReadCounts()
    assert turns.num_done == 1


def test_a_retired_cache_has_no_slots_any_more(
    cache: SlotCache, steps: list[PlanStep], rows: NDArray[np.uint8], pool: ThreadPoolExecutor
) -> None:
    """Batches of its turns read every row otherwise."""
    turns = cache.begin()
    assert_is(cache, turns, 0, steps[0], rows)
    gate = Gate(rows)
    inside = pool.submit(cache.gather, turns, 1, steps[1], {"x": gate})
    waiting = pool.submit(cache.gather, turns, 2, steps[2])
    assert gate.reached.wait(LIMIT_SECONDS)
    wait_until_waiting(turns, 2)
    retiring = pool.submit(cache.close)
    assert waiting.result(LIMIT_SECONDS) == {}
    assert not retiring.done(), "a batch copies from the slots"
    gate.opened.set()
    retiring.result(LIMIT_SECONDS)
    assert (inside.result(LIMIT_SECONDS)["x"].values == rows[steps[1].ids]).all()
    assert cache.num_bytes == 8 * NUM_SLOTS
    assert cache.gather(turns, 3, steps[3]) == {}
    assert cache.warm_up(turns, 4, np.arange(5)) == ReadCounts()
    assert (cache.planned_nodes == -1).all()


def test_turns_that_interleave(
    cache: SlotCache, rows: NDArray[np.uint8], pool: ThreadPoolExecutor
) -> None:
    """Iterations that begin at any time, four threads each: every row is right."""

    def iterate(seed: int) -> int:
        turns = cache.begin()
        planner = BeladyPlanner(NUM_SLOTS)
        planner.restart(cache.planned_nodes)
        steps = planned_steps(planner, seed)
        with ThreadPoolExecutor(4) as own:
            futures = [own.submit(cache.gather, turns, i, step) for i, step in enumerate(steps)]
            num_cached = 0
            for future, step in zip(futures, steps, strict=True):
                if gathered := future.result(LIMIT_SECONDS):
                    assert (gathered["x"].values == rows[step.ids]).all()
                    num_cached += gathered["x"].counts.rows_cached
                else:
                    assert turns.is_closed
        return num_cached

    num_cached = list(pool.map(iterate, range(40)))
    assert max(num_cached) > 0


def test_a_fork_with_a_batch_in_turn(
    cache: SlotCache, steps: list[PlanStep], rows: NDArray[np.uint8], pool: ThreadPoolExecutor
) -> None:
    """The child has not the thread that has the turn."""
    turns = cache.begin()
    assert_is(cache, turns, 0, steps[0], rows)
    gate = Gate(rows)
    inside = pool.submit(cache.gather, turns, 1, steps[1], {"x": gate})
    assert gate.reached.wait(LIMIT_SECONDS)
    is_held, is_forked = threading.Event(), threading.Event()

    def hold() -> None:
        with turns._changed.lock:
            is_held.set()
            assert is_forked.wait(LIMIT_SECONDS)

    holding = pool.submit(hold)
    assert is_held.wait(LIMIT_SECONDS)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(LIMIT_SECONDS))
            own = cache.begin()
            turns.cancel()
            planner = BeladyPlanner(NUM_SLOTS)
            planner.restart(cache.planned_nodes)
            for i, step in enumerate(planned_steps(planner, seed=6)):
                assert_is(cache, own, i, step, rows)
            cache.close()
            status = 0 if turns.is_closed else 1
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    is_forked.set()
    holding.result(LIMIT_SECONDS)
    assert os.waitstatus_to_exitcode(ended) == 0
    gate.opened.set()
    assert (inside.result(LIMIT_SECONDS)["x"].values == rows[steps[1].ids]).all()
    assert_is(cache, turns, 2, steps[2], rows)


# --- close and interrupts ------------------------------------------------------------------------


def test_closing_releases_those_that_wait(
    cache: SlotCache, steps: list[PlanStep], rows: NDArray[np.uint8], pool: ThreadPoolExecutor
) -> None:
    turns = cache.begin()
    gate = Gate(rows)
    running = pool.submit(cache.gather, turns, 0, steps[0], {"x": gate})
    assert gate.reached.wait(LIMIT_SECONDS)
    waiting = [pool.submit(cache.gather, turns, i, steps[i]) for i in (1, 2, 5)]
    wait_until_waiting(turns, 1, 2, 5)
    turns.cancel()
    for future in waiting:
        assert isinstance(failed(future), UsageError)
        assert "its iteration was ended" in str(failed(future))
    gate.opened.set()
    assert (running.result(LIMIT_SECONDS)["x"].values == rows[steps[0].ids]).all()
    turns.cancel()
    with pytest.raises(UsageError, match="batch 1: its iteration was ended"):
        cache.gather(turns, 1, steps[1])
    second = cache.begin()
    turns.cancel()
    planner = BeladyPlanner(NUM_SLOTS)
    planner.restart(cache.planned_nodes)
    assert_is(cache, second, 0, planned_steps(planner, seed=7)[0], rows)


def test_closing_from_within(cache: SlotCache, steps: list[PlanStep]) -> None:
    """The garbage collector may do so at any point, with the lock in the same thread's hands."""
    turns = cache.begin()
    with turns._changed.lock:
        turns.cancel()
        turns.fail(3, KeyboardInterrupt())
    with pytest.raises(UsageError, match="was ended"):
        cache.gather(turns, 0, steps[0])


def test_an_interrupted_wait_leaves_nothing_locked(
    cache: SlotCache, steps: list[PlanStep], pool: ThreadPoolExecutor
) -> None:
    """Ctrl-C in the main thread while it waits for its turn, and others for theirs after it."""
    turns = cache.begin()
    later = pool.submit(cache.gather, turns, 2, steps[2])

    def interrupt() -> None:
        wait_until_waiting(turns, 1, 2)
        time.sleep(0.02)  # from there to the lock
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = pool.submit(interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.gather(turns, 1, steps[1])
    interrupting.result(LIMIT_SECONDS)
    assert "an earlier batch failed, 1" in str(failed(later))
    assert not turns._changed._waiting
    cache.begin()


class InterruptAt:
    """Ctrl-C at the k-th line that this thread runs in the modules of the cache."""

    def __init__(self, k: int) -> None:
        self._left = k
        self.has_happened = False

    def __enter__(self) -> InterruptAt:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        is_ours = frame.f_code.co_filename in {planned_cache.__file__, turns_module.__file__}
        return self._line if is_ours else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not line.startswith("with ") and not self.has_happened:
            self.has_happened = self._left == 0
            self._left -= 1
            if self.has_happened:
                raise KeyboardInterrupt
        return self._line


@pytest.mark.parametrize("must_wait", [False, True])
def test_an_interrupt_at_any_line(
    cache: SlotCache, rows: NDArray[np.uint8], pool: ThreadPoolExecutor, must_wait: bool
) -> None:
    """Nobody hangs, and the slots hold what the cache says."""
    planner = BeladyPlanner(NUM_SLOTS)
    for k in range(1, 1000):
        turns = cache.begin()
        planner.restart(cache.planned_nodes)
        steps = planned_steps(planner, seed=k)
        gate = Gate(rows)
        before = pool.submit(cache.gather, turns, 0, steps[0], {"x": gate})
        assert gate.reached.wait(LIMIT_SECONDS)
        after = pool.submit(cache.gather, turns, 2, steps[2])
        wait_until_waiting(turns, 2)
        is_over = threading.Event()

        def open_gate(
            turns: TurnLock = turns, gate: Gate = gate, is_over: threading.Event = is_over
        ) -> None:
            waiting = turns._changed._waiting
            wait_for(lambda: not must_wait or len(waiting) == 2 or is_over.is_set())
            gate.opened.set()

        opening = pool.submit(open_gate)
        if not must_wait:
            before.result(LIMIT_SECONDS)
        with InterruptAt(k) as interrupt:
            try:
                gathered = cache.gather(turns, 1, steps[1])["x"]
            except KeyboardInterrupt:
                gathered = None
        is_over.set()
        opening.result(LIMIT_SECONDS)
        assert (before.result(LIMIT_SECONDS)["x"].values == rows[steps[0].ids]).all()
        if gathered is not None:
            assert not interrupt.has_happened
            assert (gathered.values == rows[steps[1].ids]).all()
            assert (after.result(LIMIT_SECONDS)["x"].values == rows[steps[2].ids]).all()
            break
        if (error := after.exception(LIMIT_SECONDS)) is not None:
            assert "an earlier batch failed, 1" in str(error)
        assert not turns._changed._waiting
    assert k > 30  # lines that were tried


# --- pinned rows ---------------------------------------------------------------------------------

PINNED = np.arange(3, 120, 4)


@dataclass
class Counting(RowSource):
    """Rows from memory, and the ids that were asked for."""

    rows: NDArray[np.uint8]
    asked: list[NDArray[Any]] = field(default_factory=list)
    fails: bool = False

    @property
    def spec(self) -> RowSpec:
        return RowSpec(len(self.rows), self.rows.shape[1:], self.rows.dtype)

    def read_rows(self, ids: NDArray[Any], out: NDArray[Any]) -> ReadCounts:
        if self.fails and self.asked:
            raise StorageError("no more")
        self.asked.append(ids)
        out[:] = self.rows[ids]
        return ReadCounts(rows_read=len(ids))


@pytest.mark.parametrize("others", [np.arange(0, 600, 13), np.arange(40, 90), np.arange(0)])
def test_pinned_rows_are_read_once_and_with_the_others(
    rows: NDArray[np.uint8], others: NDArray[np.int64]
) -> None:
    source = Counting(rows)
    cache = SlotCache(of_one_type({"x": source}), NUM_SLOTS, PINNED, NUM_ROWS)
    num_planned = NUM_SLOTS - len(PINNED)
    assert (cache.num_slots, cache.num_planned_slots) == (NUM_SLOTS, num_planned)
    assert not cache.holds_pinned
    reserved = SlotCache.reserve(ROW_BYTES).bytes_of({SLOTS: num_planned})
    reserved += SlotCache.pinned_bytes(ROW_BYTES, len(PINNED), NUM_ROWS)
    assert cache.num_bytes == reserved - 4 * len(PINNED), "whoever names them has a list"

    turns = cache.begin()
    counts = cache.warm_up(turns, 0, others)
    assert counts.rows_read == len(others) + len(PINNED)
    asked = np.concatenate(source.asked)
    assert (np.diff(asked) >= 0).all(), "in one pass over the table"
    assert sorted(asked) == sorted([*others, *PINNED])
    assert cache.holds_pinned
    assert (cache.planned_nodes[: len(others)] == others).all()

    def gathered(number: int) -> Any:
        pinned, ids = cache.pinned, np.concatenate([PINNED[::-1], others[:5], [599, 3]])
        assert pinned is not None
        kept = pinned.drop(ids)
        slots = np.full(len(kept), -1, np.int32)
        slots[: len(kept) - 1] = np.searchsorted(others, kept[:-1])
        none = np.empty(0, np.int32)
        slots, positions = pinned.add(ids, slots, none)
        found = cache.gather(turns, number, PlanStep(ids, slots, positions, none))["x"]
        assert (found.values == rows[ids]).all()
        return found.counts

    overlapping = np.isin(others, PINNED).any()
    if not overlapping:
        assert gathered(1).rows_read == 1
    source.asked.clear()
    counts = cache.warm_up(cache.begin(), 0, np.arange(7))
    assert counts.rows_read == 7
    assert cache.holds_pinned
    assert (cache.planned_nodes[7:] == -1).all()
    cache.close()
    assert not cache.holds_pinned


def test_pinned_rows_that_cannot_be_read_are_read_later(rows: NDArray[np.uint8]) -> None:
    source = Counting(rows, fails=True)
    cache = SlotCache(of_one_type({"x": source}), NUM_SLOTS, PINNED, NUM_ROWS)
    with pytest.raises(StorageError, match="no more"):
        cache.warm_up(cache.begin(), 0, np.arange(300, 330))
    assert not cache.holds_pinned
    assert (cache.planned_nodes == -1).all()
    source.fails = False
    assert cache.warm_up(cache.begin(), 0, np.arange(300, 330)).rows_read == 30 + len(PINNED)
    assert cache.holds_pinned
