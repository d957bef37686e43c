"""Traces and plans in files: what is put comes back, or an error says why; nothing is left."""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gnnstore.caching.belady import BeladyPlanner
from gnnstore.caching.plan import CachePlan, PlanLocation, Trace, TraceBuilder
from gnnstore.disk.spool import FileSpool
from gnnstore.errors import CorruptStoreError, NoSpaceError, StorageError, UsageError
from tests.support.effort import choose
from tests.support.faults import inject
from tests.support.files import flip

NUM_BATCHES, NUM_NODES, NUM_SLOTS = 12, 500, 60
TABLE_BYTES = 4 * NUM_NODES // 2  # two rounds
SMALL = 80  # rows of batches, at least


@dataclass(frozen=True)
class Shape:
    """Rows of batches, at least, and nodes of the graph, of which they need the first few."""

    least: int = SMALL
    num_nodes: int = NUM_NODES
    num_rounds: int = 2

    @property
    def table_bytes(self) -> int:
        """Memory for next uses."""
        return 4 * self.num_nodes // self.num_rounds


# Several threads look for next uses of large batches; and where the table of them leaves room for
# two, one is read and another written while a third is planned. Where it leaves room for the next
# uses themselves, there is none.
LARGE, ROOMY, NO_TABLE = Shape(1 << 15), Shape(1 << 15, 1 << 20), Shape(1 << 15, 1 << 21, 1)
SHAPES = pytest.mark.parametrize("shape", [Shape(), LARGE, ROOMY, NO_TABLE])


def batch(i: int, least: int = SMALL) -> npt.NDArray[np.int32]:
    rng = np.random.default_rng(i)
    return (NUM_NODES * rng.random(least + i) ** 2).astype(np.int32)


@pytest.fixture
def shape() -> Shape:
    return Shape()


@pytest.fixture
def trace(tmp_path: Path, shape: Shape) -> Iterator[Trace]:
    file = TraceBuilder(NUM_BATCHES, shape.num_nodes, tmp_path / "trace")
    for i in reversed(range(NUM_BATCHES)):
        file.put(i, batch(i, shape.least))
    yield file.build()
    file.close()


@pytest.fixture
def plan(trace: Trace, tmp_path: Path) -> Iterator[CachePlan]:
    planned = BeladyPlanner(NUM_SLOTS).plan(trace, PlanLocation(tmp_path / "plan", TABLE_BYTES))
    yield planned
    planned.close()


def spool_of(trace: Trace) -> FileSpool:
    assert trace.file is not None
    return trace.file


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def test_what_is_put_by_many_threads_comes_back(tmp_path: Path) -> None:
    batches = [np.arange(i % 7 * 100, dtype=np.int64) for i in range(64)]
    file = TraceBuilder(len(batches), NUM_NODES, tmp_path / "trace")
    order = np.random.default_rng(0).permutation(len(batches)).tolist()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: file.put(i, batches[i]), order))
        built = file.build()
        found = list(pool.map(built.batch, range(len(batches))))
    assert built.num_batches == len(batches)
    assert built.num_accesses == sum(map(len, batches))
    assert built.num_disk_bytes == 4 * built.num_accesses
    assert built.num_disk_bytes == (tmp_path / "trace").stat().st_size
    assert np.diff(built.offsets).tolist() == [len(each) for each in batches]
    for ids, expected in zip(found, batches, strict=True):
        assert ids.dtype == built.ids.dtype == np.int32
        assert ids.tolist() == expected.tolist()
    file.close()


def test_a_trace_ends_where_a_batch_is_missing(tmp_path: Path) -> None:
    file = TraceBuilder(5, NUM_NODES, tmp_path / "trace")
    for i in (0, 1, 3):
        file.put(i, batch(i))
    trace = file.build()
    assert trace.num_batches == 2
    assert trace.batch(1).tolist() == batch(1).tolist()
    file.close()


def test_files_are_removed_once(plan: CachePlan, trace: Trace, tmp_path: Path) -> None:
    assert names(tmp_path) == ["plan.changes", "plan.slots", "trace"]
    assert plan.num_disk_bytes == sum(
        (tmp_path / name).stat().st_size for name in ("plan.changes", "plan.slots")
    )
    assert plan.num_bytes < 64 * NUM_BATCHES
    for _ in range(2):
        plan.close()
        trace.close()
    assert names(tmp_path) == []
    for read in (trace.batch, plan.batch_slots, plan.batch_changes):
        with pytest.raises(UsageError, match="is closed"):
            read(0)


def test_a_forked_process_removes_nothing(trace: Trace, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        trace.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert names(tmp_path) == ["trace"]
    assert trace.batch(2).tolist() == batch(2).tolist()


def test_a_process_forked_while_a_thread_reads(trace: Trace, tmp_path: Path) -> None:
    """There the file is never read to the end, and closing it waits for nobody."""
    file, ids = spool_of(trace), np.zeros(1 << 22, np.int32)
    begin, crc = file.file.append(ids, 0)
    is_done = threading.Event()

    def read() -> None:
        while not is_done.is_set():
            file.file.read_int32(begin, len(ids), crc, 0)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(choose(1, 10)):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                file.file.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        is_done.set()
        thread.join()
    assert names(tmp_path) == ["trace"]


# --- a disk that is full, or fails ---------------------------------------------------------------


def test_a_full_disk_while_a_trace_is_put(tmp_path: Path) -> None:
    file = TraceBuilder(2, NUM_NODES, tmp_path / "trace")
    file.put(0, batch(0))
    with (
        inject("pwrite", errno=errno.ENOSPC) as fault,
        pytest.raises(NoSpaceError, match=r"write the trace of batch 1: no space left for .*trace"),
    ):
        file.put(1, batch(1))
    assert fault.count == 1
    assert file.build().num_batches == 1
    file.put(1, batch(1))  # there is room again
    assert file.build().batch(1).tolist() == batch(1).tolist()
    file.close()


def test_short_writes_and_reads_go_on(trace: Trace, tmp_path: Path) -> None:
    expected = BeladyPlanner(NUM_SLOTS).plan(trace, PlanLocation(tmp_path / "first", TABLE_BYTES))
    with inject("pwrite", short_bytes=77, times=40) as fault:
        plan = BeladyPlanner(NUM_SLOTS).plan(trace, PlanLocation(tmp_path / "second", TABLE_BYTES))
    assert fault.count == 40
    with inject("pread", short_bytes=33, times=5) as fault:
        found = [plan.batch_slots(i).tolist() for i in range(NUM_BATCHES)]
    assert fault.count == 5
    assert found == [expected.batch_slots(i).tolist() for i in range(NUM_BATCHES)]
    plan.close()
    expected.close()


@SHAPES
@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (("pwrite", errno.ENOSPC), NoSpaceError, "plan a superbatch: no space left for .*plan"),
        (("fallocate", errno.ENOSPC), NoSpaceError, r"no space .*slots \(cannot set \d+ bytes"),
        (("pwrite", errno.EIO), StorageError, "plan a superbatch: .*cannot write .* at offset"),
        (("pread", errno.EIO), StorageError, "plan a superbatch: .*cannot read .* at offset"),
    ],
)
def test_planning_on_a_disk_that_fails(
    *,
    trace: Trace,
    shape: Shape,
    tmp_path: Path,
    fault: tuple[Any, int],
    error: type[Exception],
    text: str,
) -> None:
    """At any of its calls: no file is left, and the planner goes on."""
    call, code = fault
    table_bytes = shape.table_bytes
    skips = itertools.count(0, 1 if call == "fallocate" else choose(20, 7))
    for skip in skips:
        planner = BeladyPlanner(NUM_SLOTS)
        planner.plan(trace, PlanLocation(tmp_path / "before", table_bytes)).close()
        before = planner.nodes
        raised: list[str] = []
        with inject(call, errno=code, skip=skip) as injection:
            try:
                planner.plan(trace, PlanLocation(tmp_path / "plan", table_bytes)).close()
            except error as found:
                raised.append(str(found))
        assert names(tmp_path) == ["trace"]
        assert len(raised) == injection.count
        if not raised:
            break
        assert re.search(text, raised[0])
        # What was not reached leaves the cache as it is; from then on it counts as empty.
        held = planner.nodes
        assert (held == before).all() or (held == -1).all()
        again = planner.plan(trace, PlanLocation(tmp_path / "again", table_bytes))
        assert again.misses[0] == len(np.setdiff1d(batch(0, len(trace.batch(0))), held))
        again.close()
    assert skip > 0


# --- files that change ---------------------------------------------------------------------------


@SHAPES
def test_a_bit_of_the_trace(trace: Trace, shape: Shape, tmp_path: Path) -> None:
    flip(tmp_path / "trace", int(spool_of(trace).begins[4, 0]) + 13)
    text = r"trace: batch 4 is not what was written: \d+ bytes at offset \d+ have the crc32c"
    with pytest.raises(CorruptStoreError, match=text) as raised:
        trace.batch(4)
    assert raised.value.path == str(tmp_path / "trace")
    assert trace.batch(3).tolist() == batch(3, len(trace.batch(0))).tolist()
    with pytest.raises(CorruptStoreError, match=text):
        BeladyPlanner(NUM_SLOTS).plan(trace, PlanLocation(tmp_path / "plan", shape.table_bytes))
    assert names(tmp_path) == ["trace"]


def test_a_bit_of_a_plan(plan: CachePlan, tmp_path: Path) -> None:
    flip(tmp_path / "plan.slots", 4 * int(plan.offsets[6]) + 2)
    with pytest.raises(CorruptStoreError, match=r"plan\.slots: batch 6 is not what was written"):
        plan.batch_slots(6)
    positions, _ = plan.batch_changes(2)
    begin = 8 * sum(len(plan.batch_changes(i)[0]) for i in range(2))
    flip(tmp_path / "plan.changes", begin + 8 * len(positions) - 1)
    with pytest.raises(CorruptStoreError, match=r"plan\.changes: batch 2 is not what was written"):
        plan.batch_changes(2)
    assert len(plan.batch_changes(3)[0]) >= 0


@SHAPES
def test_a_file_that_ends_early_between_the_passes(
    trace: Trace, shape: Shape, tmp_path: Path
) -> None:
    skip = NUM_BATCHES * (1 if shape == NO_TABLE else 3)
    with (
        inject("pread", short_bytes=0, skip=skip, times=1),
        pytest.raises(StorageError, match="the file ends at byte"),
    ):
        BeladyPlanner(NUM_SLOTS).plan(trace, PlanLocation(tmp_path / "plan", shape.table_bytes))


def test_a_batch_that_lies_where_another_should(trace: Trace) -> None:
    """Its checksum knows which batch it is."""
    size = len(batch(4))
    spool = spool_of(trace)
    with pytest.raises(OSError, match="batch 5 is not what was written"):
        spool.file.read_int32(int(spool.begins[4, 0]), size, int(spool.crcs[4, 0]), 5)


# --- what is refused -----------------------------------------------------------------------------


def test_nodes_that_the_graph_does_not_have(tmp_path: Path) -> None:
    file = TraceBuilder(1, NUM_NODES, tmp_path / "trace")
    file.put(0, np.array([1, NUM_NODES]))
    with pytest.raises(UsageError, match=r"row id 500 at position 1 is outside \[0, 500\)"):
        BeladyPlanner(2).plan(file.build(), PlanLocation(tmp_path / "plan", TABLE_BYTES))
    file.close()
    planner = BeladyPlanner(2)
    planner.restart(np.array([NUM_NODES, 0]))
    file = TraceBuilder(1, NUM_NODES, tmp_path / "trace")
    file.put(0, np.array([1, 2]))
    with pytest.raises(UsageError, match="slot 0 holds row 500, but there are only 500"):
        planner.plan(file.build(), PlanLocation(tmp_path / "plan", TABLE_BYTES))
    assert sorted(planner.nodes.tolist()) == [0, NUM_NODES]
    assert names(tmp_path) == ["trace"]
    file.close()
