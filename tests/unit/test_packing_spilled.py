"""Packing from traces and plans on disk: the same files, and no memory for what is missed."""

from __future__ import annotations

import errno
import gc
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore import _core
from gnnstore.caching.belady import BeladyPlanner
from gnnstore.caching.plan import PlanLocation, Trace, TraceBuilder
from gnnstore.disk.engines import open_engine
from gnnstore.errors import BudgetError, CorruptStoreError, StorageError, UsageError
from gnnstore.features.chunks import BLOCK_BYTES
from gnnstore.features.file_rows import FileRows
from gnnstore.features.misses import collect_misses
from gnnstore.features.pack import append_missed, least_memory, pack
from gnnstore.features.source import of_one_type
from gnnstore.sampling.row_space import RowRange
from gnnstore.threads import CancelledError, Flag, for_each
from tests.support.faults import inject
from tests.support.files import flip
from tests.support.packing import MEMORY_BYTES, PackingCase, watched_memory
from tests.support.traces import Spilled, spill
from tests.support.twins.packing import packed_file, piece_crcs
from tests.support.twins.reads import write_array

NUM_ROWS, ROW_BYTES = 4000, 300


class Case(PackingCase):
    """A table, a place for files, and superbatches with repeated ids and an empty batch."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, NUM_ROWS, {"x": ROW_BYTES}, engine=None)
        self.traces = [
            Trace.of([self.rng.integers(0, NUM_ROWS, n, np.int32) for n in sizes])
            for sizes in ([900, 0, 700, 800], [1], [500] * 9)
        ]

    def spilled(self, num_slots: int = 0) -> Spilled:
        return spill(self.traces[0], BeladyPlanner(num_slots), self.directory, NUM_ROWS)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("num_slots", [0, 300])
def test_the_same_files(case: Case, num_slots: int, num_threads: int) -> None:
    """Over several superbatches, alone and behind each other in one file."""
    one, other = BeladyPlanner(num_slots), BeladyPlanner(num_slots)
    file, end = case.directory / "packed", 0
    file.touch()
    for trace in case.traces:
        expected = one.plan(trace)
        spilled = spill(trace, other, case.directory, NUM_ROWS)
        content = packed_file(case.rows["x"], trace.ids, trace.offsets, expected.slots)
        with case.packed(*spilled, num_threads=num_threads) as packed:
            assert packed.tables["x"].file_path.read_bytes() == content
            for i in range(trace.num_batches):
                case.check_batch(packed, i, trace.batch(i), expected.batch_slots(i))
        missed = collect_misses(
            *spilled, [RowRange(0, NUM_ROWS)], memory_bytes=MEMORY_BYTES, num_threads=num_threads
        )
        runs = append_missed(
            case.tables,
            missed,
            {"x": (file, end)},
            memory_bytes=MEMORY_BYTES,
            num_threads=num_threads,
        )
        assert file.read_bytes()[end:] == content
        assert runs["x"].crcs.tolist() == piece_crcs(
            file.read_bytes(),
            runs["x"].offsets[:-1].tolist(),
            (expected.misses * ROW_BYTES).tolist(),
            BLOCK_BYTES,
        )
        end = int(runs["x"].offsets[-1])
        np.testing.assert_array_equal(missed.num_rows, expected.misses)
        spilled.close()
    assert case.left() == [file.name]


@pytest.mark.long("tests/budget packs under a real limit")
def test_memory_is_not_for_what_is_missed(tmp_path: Path) -> None:
    """A trace and plan of 24 MB, and some 12 % of it missed."""
    num_rows, num_batches, batch_rows = 300_000, 20, 150_000
    rng = np.random.default_rng(1)
    array = write_array(tmp_path / "x", np.arange(num_rows, dtype=np.int64).reshape(-1, 1))
    tables = of_one_type({"x": FileRows.open(array, open_engine(array.file_paths[0], "pread"))})
    file = TraceBuilder(num_batches, num_rows, tmp_path / "trace")
    for i in range(num_batches):
        file.put(i, rng.permutation(num_rows)[:batch_rows].astype(np.int32))
    trace = file.build()
    planner = BeladyPlanner(200_000)
    planner.restart(np.arange(200_000))
    plan = planner.plan(trace, PlanLocation(tmp_path / "plan", 1 << 21))
    assert 250_000 < plan.num_misses < 500_000
    least = least_memory(tables, plan.misses, 4, batch_rows, spills=True)
    in_memory = least_memory(tables, plan.misses, 4, batch_rows)
    # One batch is held while it is sorted, and some of all of them.
    assert least + 7 * plan.num_misses < in_memory + 8 * plan.misses.max()
    with pytest.raises(BudgetError, match="raise the memory budget by at least 1 B"):
        pack(tables, trace, plan, tmp_path, memory_bytes=least - 1)

    def packed() -> int:
        """Pack, and return the most that was taken."""
        _core.pool_trim()
        gc.collect()
        with (
            watched_memory() as most,
            pack(tables, trace, plan, tmp_path, memory_bytes=least, num_threads=4) as done,
        ):
            ids = trace.batch(3)
            out = np.full(len(ids), -1)
            done.read(3, "x", RowRange(0, len(ids)), out.view(np.uint8))
        missed = plan.batch_slots(3) < 0
        np.testing.assert_array_equal(out, np.where(missed, ids, -1))
        return most[0]

    packed()  # what is there to stay, such as malloc's arenas
    # Threads have stacks, and a batch is read back here.
    assert packed() <= least + (4 << 20)
    trace.close()
    plan.close()


@pytest.mark.parametrize("suffix", ["trace", "plan.slots"])
def test_what_was_damaged_is_not_packed(case: Case, suffix: str) -> None:
    spilled = case.spilled()
    path = case.directory / suffix
    flip(path, 4 * 1000)  # of batch 2 in the plan; of another one in the trace
    before = case.left()
    with pytest.raises(CorruptStoreError, match=f"{suffix}.*batch"):
        case.packed(*spilled)
    assert case.left() == before
    spilled.close()


def test_what_cannot_be_read_is_not_packed(case: Case) -> None:
    spilled = case.spilled()
    with inject("pread", errno=errno.EIO, skip=2), pytest.raises(StorageError, match="batch"):
        case.packed(*spilled, num_threads=1)
    spilled.close()
    with pytest.raises(UsageError, match="closed"):
        case.packed(*spilled, num_threads=1)
    assert case.left() == []


def test_sorting_can_be_stopped(case: Case) -> None:
    spilled = case.spilled()
    read: list[int] = []

    class Watched(Trace):
        """The trace; the second batch that is read ends it."""

        def batch(self, i: int) -> NDArray[Any]:
            read.append(i)
            if len(read) == 2:
                stop.set()
                waited.wait(0.2)  # for whoever packs to notice
            return super().batch(i)

    stop, waited = Flag(), threading.Event()
    before = case.left()
    trace = Watched(*(getattr(spilled.trace, f.name) for f in fields(Trace)))
    with pytest.raises(CancelledError):
        case.packed(trace, spilled.plan, num_threads=1, stop=stop)
    assert len(read) == 2
    assert case.left() == before
    spilled.close()


def test_threads_that_cannot_be_started_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    done: list[int] = []
    for_each(5, 8, done.append, "gnnstore-sort")
    assert done == list(range(5))
