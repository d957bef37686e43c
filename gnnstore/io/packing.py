"""Batched packing: the rows that batches miss, written batch by batch in one pass over a table.

Reading single rows is limited by a disk's reads per second. Reading a whole table in order,
writing what each batch of a superbatch needs of it to a run of its own, and reading each run
in order moves more bytes, all of them at the disk's bandwidth (DiskGNN, section 5.2). It pays
from about 3 % of the table missed in a superbatch, on a disk of 100,000 reads a second.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import BudgetError, GnnstoreError, NoSpaceError, UsageError, storage_error
from gnnstore.io.direct_rows import DirectRows
from gnnstore.io.packed_rows import (
    MissIndex,
    PackCounts,
    PackedSuperbatch,
    PackedTable,
    run_bytes,
    run_reader,
)
from gnnstore.io.packing_memory import (
    least_memory,
    place_of,
    share_out,
    sorting_bytes,
    too_little_memory,
)
from gnnstore.planning.belady import SuperbatchPlan, Trace
from gnnstore.units import format_at_least, format_size

__all__ = ["PackingStoppedError", "least_memory", "pack", "packed_bytes"]


class PackingStoppedError(GnnstoreError):
    """Packing was told to stop; what it had written has been removed."""


_POLL_SECONDS = 0.05


def packed_bytes(tables: Mapping[str, DirectRows], misses: npt.NDArray[np.int64]) -> int:
    """Return the bytes on disk that packing takes.

    Parameters
    ----------
    tables : Mapping of str to DirectRows
    misses : ndarray of int64 [S]
        Distinct missed rows of each batch, as in `SuperbatchPlan.misses`.
    """
    rows = np.asarray(misses, np.int64)
    return sum(int(run_bytes(rows, table.row_bytes).sum()) for table in tables.values())


def pack(
    tables: Mapping[str, DirectRows],
    trace: Trace,
    slots: SuperbatchPlan | npt.NDArray[Any],
    directory: Path,
    *,
    memory_bytes: int,
    num_threads: int = 1,
    disk_bytes: int | None = None,
    stop: threading.Event | None = None,
    advance: Callable[[int], None] | None = None,
) -> PackedSuperbatch:
    """Write the missed rows of each batch of a superbatch to files, reading each table once.

    Parameters
    ----------
    tables : Mapping of str to DirectRows
        Tables of the same nodes, by path in the store.
    trace : Trace
        Must not be changed meanwhile.
    slots : SuperbatchPlan, or ndarray of int32 or bool [n]
        Beside the trace's ids: negative, or false, is missed.
    directory : Path
        Where a directory for the files is made; it must exist.
    memory_bytes : int
        For everything, with what the result keeps (4 bytes for each miss).
    num_threads : int
        Threads that copy rows; one more plans and reads, and six wait for writes.
    disk_bytes : int, optional
        What may be written.
    stop : threading.Event, optional
        Once it is set, packing ends within milliseconds.
    advance : callable, optional
        Called now and then with the bytes that were read and written since the last call.

    Returns
    -------
    PackedSuperbatch

    Raises
    ------
    UsageError
        If trace, slots and tables do not fit together.
    BudgetError
        If a budget is too small; by how much. Nothing has been written.
    NoSpaceError
        If the file system has too little room; nothing is left behind.
    StorageError
        If a file cannot be made, read or written; nothing is left behind.
    PackingStoppedError
    """
    start = perf_counter()
    if stop is not None and stop.is_set():
        raise PackingStoppedError("packing was stopped before it began")
    slots = _as_slots(slots)
    num_rows = {table.num_rows for table in tables.values()}
    if len(num_rows) != 1:
        raise UsageError(
            "one or more tables of the same nodes are packed together; "
            f"got {len(tables)}, with {sorted(num_rows)} rows"
        )
    index = _index(trace, slots, num_rows.pop(), memory_bytes, num_threads)
    num_bytes = packed_bytes(tables, index.num_rows)
    _check_room(directory, num_bytes, disk_bytes)
    try:
        own = Path(tempfile.mkdtemp(prefix="packed-", dir=directory))
    except OSError as error:
        raise storage_error(error, "make a directory for packed rows", directory) from error
    try:
        packed: dict[str, PackedTable] = {}
        counts = PackCounts()
        for number, (path, table) in enumerate(tables.items()):
            job = _Job(path, table, trace, index, own / f"{number}.rows")
            offsets, more = job.run(memory_bytes, num_threads, stop, advance)
            packed[path] = job.opened(offsets)
            counts = _sum(counts, more)
        counts = replace(counts, seconds=perf_counter() - start)
        engine = next(iter(tables.values())).engine.name
        return PackedSuperbatch(own, index, packed, run_reader(engine), counts)
    except BaseException:
        shutil.rmtree(own, ignore_errors=True)
        raise


def append_packed(
    tables: Mapping[str, DirectRows],
    trace: Trace,
    slots: SuperbatchPlan | npt.NDArray[Any],
    files: Mapping[str, tuple[Path, int]],
    *,
    memory_bytes: int,
    num_threads: int = 1,
    disk_bytes: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> tuple[MissIndex, dict[str, npt.NDArray[np.int64]], PackCounts]:
    """Pack as `pack` does, but behind what other superbatches have in files that are kept.

    Parameters
    ----------
    files : Mapping of str to (Path, int)
        For each table a file, which exists, and a multiple of 4096 to begin at.
    disk_bytes : int, optional
        What may be written now.

    Returns
    -------
    MissIndex
        Where the rows go.
    dict of str to ndarray of int64 [S + 1]
        For each table, where the run of each batch begins in its file; the end of the last one.
    PackCounts

    Raises
    ------
    UsageError, BudgetError, NoSpaceError, StorageError
        As `pack`. Behind the beginnings, files may hold anything then.
    """
    start = perf_counter()
    slots = _as_slots(slots)
    num_rows = next(iter(tables.values())).num_rows
    index = _index(trace, slots, num_rows, memory_bytes, num_threads)
    directory = next(iter(files.values()))[0].parent
    _check_room(directory, packed_bytes(tables, index.num_rows), disk_bytes)
    offsets: dict[str, npt.NDArray[np.int64]] = {}
    counts = PackCounts()
    for path, table in tables.items():
        job = _Job(path, table, trace, index, *files[path], grows=True)
        offsets[path], more = job.run(memory_bytes, num_threads, None, advance)
        counts = _sum(counts, more)
    return index, offsets, replace(counts, seconds=perf_counter() - start)


def _as_slots(slots: SuperbatchPlan | npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    if isinstance(slots, SuperbatchPlan):
        return slots.slots
    if slots.dtype == np.bool_:
        return slots.astype(np.int32) - np.int32(1)
    if slots.dtype != np.int32:
        raise UsageError(f"slots are int32 (negative: missed) or bool, got {slots.dtype}")
    return slots


def _sum(a: PackCounts, b: PackCounts) -> PackCounts:
    return PackCounts(**{f.name: getattr(a, f.name) + getattr(b, f.name) for f in fields(a)})


def _check_room(directory: Path, num_bytes: int, disk_bytes: int | None) -> None:
    if disk_bytes is not None and num_bytes > disk_bytes:
        raise BudgetError(
            f"the packed rows of this superbatch take {format_at_least(num_bytes)} on disk, "
            f"{format_at_least(num_bytes - disk_bytes)} more than the budget of "
            f"{format_size(disk_bytes)}; raise it, or make superbatches smaller"
        )
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        raise storage_error(error, "pack rows", directory) from error
    if num_bytes > free:
        raise NoSpaceError(
            f"{directory}: the packed rows of this superbatch take {format_at_least(num_bytes)}, "
            f"but {format_size(free)} are free: {format_at_least(num_bytes - free)} too little. "
            "Free some space, choose a directory on another file system, or make superbatches "
            "smaller; nothing has been written",
            path=directory,
        )


def _index(
    trace: Trace, slots: npt.NDArray[np.int32], num_rows: int, memory_bytes: int, num_threads: int
) -> MissIndex:
    """Sort out the misses, with as many threads as there is memory for."""
    if len(slots) != trace.num_accesses:
        raise UsageError(
            f"the trace has {trace.num_accesses} rows, but there are {len(slots)} slots; "
            "pack with the plan that was made of this trace"
        )
    misses = np.zeros(trace.num_batches, np.int64)
    for i in range(trace.num_batches):
        misses[i] = np.count_nonzero(slots[trace.offsets[i] : trace.offsets[i + 1]] < 0)
    left = memory_bytes - 4 * int(misses.sum())
    while num_threads > 1 and sorting_bytes(misses, num_threads) > left:
        num_threads -= 1
    if (missing := sorting_bytes(misses, num_threads) - left) > 0:
        raise too_little_memory(trace.num_batches, memory_bytes, missing)
    return MissIndex.of(trace, slots, num_rows, num_threads)


@dataclass(frozen=True, eq=False)
class _Job:
    """One table of one superbatch, to be packed."""

    path: str
    table: DirectRows
    trace: Trace
    index: MissIndex
    file_path: Path
    begin: int = 0
    grows: bool = False

    def run(
        self,
        memory_bytes: int,
        num_threads: int,
        stop: threading.Event | None,
        advance: Callable[[int], None] | None,
    ) -> tuple[npt.NDArray[np.int64], PackCounts]:
        """Write the table's file; return where the run of each batch begins."""
        table, index, row_bytes = self.table, self.index, self.table.row_bytes
        id_bytes = self.trace.ids.itemsize
        left = memory_bytes - index.num_bytes
        shares, max_indexed_rows = share_out(table, index.num_rows, id_bytes, left)
        offsets = np.zeros(self.trace.num_batches + 1, np.int64)
        np.cumsum(run_bytes(index.num_rows, row_bytes), out=offsets[1:])
        offsets += self.begin
        file_bytes = int(offsets[-1])
        progress = np.zeros(2, np.int64)  # bytes so far; whether to stop

        def work() -> dict[str, int]:
            return _core.pack_rows(
                table.files,
                self.trace.ids,
                self.trace.offsets,
                index.positions,
                index.begins,
                index.num_rows,
                [self.file_path],
                [file_bytes],
                np.zeros(self.trace.num_batches, np.int64),
                offsets[:-1],
                progress,
                engine=table.engine.name,
                **place_of(table),
                num_windows=shares.num_windows,
                window_bytes=shares.window_bytes(table),
                buffer_bytes=shares.buffer_bytes,
                num_spare_buffers=shares.num_spare_buffers,
                max_indexed_rows=max_indexed_rows,
                num_threads=num_threads,
                grows=self.grows,
            )

        try:
            counts = _watched(work, progress, stop, advance)
        except OSError as error:
            raise self._error(error, file_bytes - self.begin) from error
        return offsets, PackCounts(**counts)

    def opened(self, offsets: npt.NDArray[np.int64]) -> PackedTable:
        """Return the file to be read."""
        file_bytes = int(offsets[-1])
        try:
            files = _core.FileSet([self.file_path], [file_bytes], direct=self.table.files.is_direct)
        except OSError as error:
            raise self._error(error, file_bytes) from error
        return PackedTable(self.file_path, offsets, self.table.row_bytes, files)

    def _error(self, error: OSError, file_bytes: int) -> OSError:
        where = error.filename or self.table.array.file_paths[0]
        doing = f"pack rows of the array {self.path!r} ({format_size(file_bytes)})"
        return storage_error(error, doing, where)


def _watched(
    work: Callable[[], dict[str, int]],
    progress: npt.NDArray[np.int64],
    stop: threading.Event | None,
    advance: Callable[[int], None] | None,
) -> dict[str, int]:
    """Run a kernel on a thread of its own, so that it can be interrupted."""
    result: list[dict[str, int]] = []
    failure: list[BaseException] = []
    # Not `Thread.join`: an interrupted one takes the thread for ended, in CPython 3.11, and files
    # would be removed that are being written.
    running = threading.Lock()
    running.acquire()

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)
        running.release()

    thread = threading.Thread(target=run, name="gnnstore-pack")
    thread.start()
    done = 0

    def report() -> None:
        nonlocal done
        now = int(progress[0])  # once: it goes up meanwhile
        if advance is not None and now > done:
            advance(now - done)
            done = now

    try:
        while not result and not failure:
            running.acquire(timeout=_POLL_SECONDS)
            report()
            if stop is not None and stop.is_set():
                progress[1] = 1
    finally:
        progress[1] = 1  # an exception, such as KeyboardInterrupt, ends the work
        while not result and not failure:
            with suppress(KeyboardInterrupt):  # the first one is on its way
                running.acquire(timeout=_POLL_SECONDS)
        thread.join()
    if failure and stop is not None and stop.is_set():
        raise PackingStoppedError("packing was stopped; what was written has been removed")
    if failure:
        raise failure[0]
    report()
    return result[0]
