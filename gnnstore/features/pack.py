"""Batched packing: the rows that batches miss, written batch by batch in one pass over a table.

Reading single rows is limited by a disk's reads per second. Reading a whole table in order,
writing the rows that each batch of a superbatch needs to a chunk of its own, and reading each chunk
in order moves more bytes, all of them at the disk's bandwidth (DiskGNN, section 5.2). It pays
from about 3 % of the table missed in a superbatch, on a disk of 100,000 reads a second.
"""

from __future__ import annotations

import errno
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import PLANNED, Ledger, Reservation
from gnnstore.caching.plan import CachePlan, Trace
from gnnstore.disk.spool import translated
from gnnstore.errors import storage_error
from gnnstore.features import misses as sorted_misses
from gnnstore.features.chunks import (
    BLOCK_BYTES,
    CHUNK_ALIGNMENT_BYTES,
    PackedChunks,
    PackedSuperbatch,
    PackedTable,
    chunk_bytes,
    chunk_reader,
)
from gnnstore.features.file_rows import FileRows
from gnnstore.features.misses import (
    POOLED_UNIT_BYTES,
    SPILLED_BATCH_BYTES,
    MissTable,
    collect_misses,
    held_bytes,
    sorting_bytes,
    too_little_memory,
)
from gnnstore.features.source import RowSpec, TypedRows, ranges_of
from gnnstore.threads import CancelledError, Flag, interruptible
from gnnstore.units import format_size


@dataclass(frozen=True)
class PackingBuffers:
    """A few large windows and buffers, or less where memory is short."""

    num_windows: int  # parts of the table that are being read or copied
    extra_window_bytes: int  # bytes of a window beyond the least
    buffer_bytes: int  # bytes of a batch that are collected before a write
    num_spare_buffers: int  # buffers that are being written, by a thread each up to 16

    def window_bytes(self, table: FileRows) -> int:
        """Return the size of a window of a table."""
        least = _core.min_pack_window_bytes(table.files, **table.kernel_layout)
        unit = CHUNK_ALIGNMENT_BYTES
        return -(-(least + self.extra_window_bytes) // unit) * unit

    def num_bytes(self, table: FileRows, num_batches: int) -> int:
        """Return the memory for windows and buffers."""
        windows = self.num_windows * self.window_bytes(table)
        return windows + (num_batches + self.num_spare_buffers) * self.buffer_bytes


# Choices of windows and writes, from the most memory to the least; the first that fits is taken.
# With 1,024 batches, reading and writing 2.5 GB goes at 1.4 GB/s with writes of 256 or 64 KiB, at
# 1.1 with 32, 0.8 with 16, and 0.5 with 8: below 64 KiB a disk counts writes, not bytes.
_CHOICES = tuple(
    PackingBuffers(num_windows, extra_kib << 10, buffer_kib << 10, num_spare_buffers)
    for num_windows, extra_kib, num_spare_buffers, buffers in (
        (16, 768, 16, (256, 128, 64)),
        (8, 256, 32, (32, 16)),
        (3, 0, 16, (8, 4)),
    )
    for buffer_kib in buffers
)
_SMALLEST = _CHOICES[-1]
# Strides of the ids of a batch in preferred memory: with four times the least, a range of ids from
# a file uses three quarters of its memory or more, and a batch's part is read by some 16 KiB.
_PREFERRED_STRIDES = 4
# Bytes that planned packing gets for large windows and writes: for them, for a buffer of each
# batch, and where sorted rows are in files, for this many strides of a batch's ids at a time.
_ROOMY_BYTES = 24 << 20
_ROOMY_BUFFER_BYTES, _ROOMY_SPILLED_BUFFER_BYTES = 128 << 10, 64 << 10
_ROOMY_STRIDES = 4
# The phase of windows and buffers, which are there only while rows are packed.
_PACKING = "packing"
# Bytes of a missed row in memory: its id, of either width, and its position.
_ID_BYTES, _POSITION_BYTES = 8, 4
# Bytes of a row of a batch that is sorted: keys of 8, twice, in buffers that are rounded up.
_SORTED_ROW_BYTES = 2 * (8 + 1)
_SORTING_BUFFERS = 4


@dataclass(frozen=True)
class PackedBatch:
    """The sizes of a batch that is to be packed, as they are known in advance."""

    num_rows: int  # rows of the largest batch
    most_missed: int  # missed rows of a batch at most
    mean_missed: int  # missed rows of a batch on average
    id_bytes: int  # 4 or 8, as the trace has ids

    def reserve(self) -> list[Reservation]:
        """Return the memory for packing a superbatch by a trace in memory; positions stay."""
        per_batch = _ROOMY_BUFFER_BYTES + _ID_BYTES * self.mean_missed
        return [
            Reservation("packing", _ROOMY_BYTES, {PLANNED: per_batch}, _PACKING),
            self.reserve_positions(),
        ]

    def reserve_positions(self) -> Reservation:
        """Return the memory for a superbatch that has been packed by a trace in memory."""
        return Reservation("positions of rows", 0, {PLANNED: _POSITION_BYTES * self.mean_missed})

    def reserve_spilled(self) -> list[Reservation]:
        """Return the memory for packing by a trace on disk: almost none for each missed row."""
        stride_rows = sorted_misses.STRIDE_ROWS
        samples = 2 * (self.most_missed // stride_rows + 1)
        per_batch = SPILLED_BATCH_BYTES + samples * self.id_bytes
        buffers = _ROOMY_SPILLED_BUFFER_BYTES + _ROOMY_STRIDES * stride_rows * self.id_bytes
        row_bytes = _POSITION_BYTES + self.id_bytes
        sorting = self.most_missed * (_SORTED_ROW_BYTES + row_bytes)
        sorting += self.num_rows * (row_bytes + row_bytes // 8 + 1)
        sorting += _SORTING_BUFFERS * POOLED_UNIT_BYTES
        return [
            Reservation("sorting rows", sorting, phase="sorting rows"),
            Reservation("packing", _ROOMY_BYTES, {PLANNED: buffers}, _PACKING),
            Reservation("packing", 0, {PLANNED: per_batch}),
        ]

    def reserve_disk(self, row_bytes: int) -> Reservation:
        """Return the disk space for packed rows of `row_bytes` bytes in all tables."""
        unit = CHUNK_ALIGNMENT_BYTES
        chunk = -(-self.mean_missed * row_bytes // unit) * unit
        return Reservation("packed rows", 0, {PLANNED: chunk})

    def reserve_sorted(self) -> Reservation:
        """Return the disk space of missed rows that are sorted in files."""
        per_batch = (self.id_bytes + _POSITION_BYTES) * self.mean_missed
        return Reservation("sorted rows", 0, {PLANNED: per_batch})


def least_memory(
    tables: Mapping[str, TypedRows[FileRows]],
    misses: npt.NDArray[np.int64],
    id_bytes: int,
    read_rows: int = 0,
    *,
    spills: bool = False,
) -> int:
    """Return the least `memory_bytes` that packing works with; with more it is faster."""
    rows_bytes = id_bytes * _least_rows(misses) if spills else 0
    working = [_SMALLEST.num_bytes(t, len(misses)) + rows_bytes for t, _ in tables.values()]
    sorting = sorting_bytes(misses, 1, id_bytes, read_rows, spills=spills)
    return held_bytes(misses, id_bytes, spills=spills) + max(sorting, *working)


def choose_buffers(
    table: FileRows, misses: npt.NDArray[np.int64], id_bytes: int, memory_bytes: int
) -> tuple[PackingBuffers, int]:
    """Decide how memory is used while a table is packed, and how many ids of a file are read.

    `id_bytes` is 0 if ids are in memory.
    """
    total, least = int(misses.sum()), _least_rows(misses)
    left_bytes = memory_bytes - id_bytes * min(total, _PREFERRED_STRIDES * least)
    fitting = (each for each in _CHOICES if each.num_bytes(table, len(misses)) <= left_bytes)
    buffers = next(fitting, _SMALLEST)
    left_bytes = memory_bytes - buffers.num_bytes(table, len(misses))
    if (missing := id_bytes * least - left_bytes) > 0:
        raise too_little_memory(len(misses), memory_bytes, missing)
    return buffers, min(total, left_bytes // id_bytes) if id_bytes else 0


def _least_rows(misses: npt.NDArray[np.int64]) -> int:
    return int(np.minimum(misses, sorted_misses.STRIDE_ROWS).sum())


def _write_chunks(
    path: str,
    rows: TypedRows[FileRows],
    missed: MissTable,
    file: tuple[Path, int],
    *,
    memory_bytes: int,
    num_threads: int,
    stop: Flag | None = None,
    advance: Callable[[int], None] | None = None,
    grows: bool = False,
) -> tuple[PackedChunks, dict[str, int]]:
    """Pack the missed rows of a table in a file, from some byte on; `grows`: behind what it has."""
    table, own = rows.table, missed.of_type(rows.range)
    num_batches = len(own.num_rows)
    id_bytes = 0 if missed.file is None else own.samples.itemsize
    left_bytes = memory_bytes - missed.num_bytes
    buffers, max_rows = choose_buffers(table, own.num_rows, id_bytes, left_bytes)
    chunks = PackedChunks.from_num_rows(own.num_rows, table.row_bytes, file[1])
    progress = np.zeros(2, np.int64)  # bytes written so far; whether to stop
    outputs: tuple[Any, ...] = (
        [file[0]],
        [int(chunks.offsets[-1])],
        np.zeros(num_batches, np.int64),
        chunks.offsets[:-1],
        chunks.crcs,
        progress,
    )
    options: dict[str, Any] = {
        "engine": table.engine_name,
        **table.kernel_layout,
        "num_windows": buffers.num_windows,
        "window_bytes": buffers.window_bytes(table),
        "buffer_bytes": buffers.buffer_bytes,
        "num_spare_buffers": buffers.num_spare_buffers,
        "piece_bytes": BLOCK_BYTES,
        "num_threads": num_threads,
    }

    def work() -> dict[str, int]:
        if missed.file is None:
            in_memory = (missed.rows, own.begins, own.num_rows)
            return _core.pack_rows(table.files, *in_memory, *outputs, grows=grows, **options)
        ids = (missed.file.file, own.begins, own.num_rows, own.crcs, own.samples)
        options.update(stride=sorted_misses.STRIDE_ROWS, max_rows=max_rows)
        return _core.pack_spilled_rows(table.files, *ids, *outputs, **options)

    try:
        counts = interruptible(work, "gnnstore-pack", progress, stop, advance)
    except OSError as error:
        where = error.filename or table.array.file_paths[0]
        size = format_size(int(chunks.offsets[-1]) - file[1])
        doing = f"pack rows of the array {path!r} ({size})"
        if error.errno == errno.EBADMSG:  # of the sorted rows
            raise translated(error, doing, Path(where)) from error
        raise storage_error(error, doing, where) from error
    return chunks, counts


def packed_bytes(
    tables: Mapping[str, TypedRows[FileRows]],
    misses: npt.NDArray[np.int64],
    spilled_id_bytes: int = 0,
) -> int:
    """Return the bytes on disk that packing takes.

    With several types this is a bound, unless misses are given for each type: [S, T].
    """
    sorted_bytes = (spilled_id_bytes + 4) * int(misses.sum()) if spilled_id_bytes else 0
    ranges = ranges_of(tables)
    sizes = np.zeros((len(ranges), len(misses)), np.int64)
    for table, own in tables.values():
        t = ranges.index(own)
        sizes[t] += chunk_bytes(misses if misses.ndim == 1 else misses[:, t], table.row_bytes)
    if misses.ndim == 1 and len(ranges) > 1:
        # As if all were of the widest type; each chunk is filled up to whole units.
        sizes = sizes.max(axis=0) + CHUNK_ALIGNMENT_BYTES * len(tables)
    return int(sizes.sum()) + sorted_bytes


def pack(
    tables: Mapping[str, TypedRows[FileRows]],
    trace: Trace,
    plan: CachePlan,
    directory: Path,
    *,
    memory_bytes: int,
    num_threads: int = 1,
    disk_bytes: int | None = None,
    stop: Flag | None = None,
    advance: Callable[[int], None] | None = None,
) -> PackedSuperbatch:
    """Write the missed rows of each batch of a superbatch to files, reading each table once.

    A trace has the numbers of a row space; each table has a range of them.
    """
    if stop is not None and stop.is_set():
        raise CancelledError("packing was stopped before it began")
    ranges = ranges_of(tables)
    misses, id_bytes, spills = plan.misses, trace.ids.itemsize, False
    if trace.file is not None or memory_bytes < least_memory(tables, misses, id_bytes):
        least, spills = least_memory(tables, misses, id_bytes, trace.read_rows, spills=True), True
        if memory_bytes < least:
            raise too_little_memory(len(misses), memory_bytes, least - memory_bytes)
    try:
        own = Path(tempfile.mkdtemp(prefix="packed-", dir=directory))
    except OSError as error:
        raise storage_error(error, "make a directory for packed rows", directory) from error
    missed: MissTable | None = None
    try:
        missed = collect_misses(
            trace,
            plan,
            ranges,
            own if spills else None,
            memory_bytes=memory_bytes,
            num_threads=num_threads,
            stop=stop,
        )
        _core.release_memory()  # of sorting, before windows are taken
        num_bytes = packed_bytes(tables, missed.counts, id_bytes if spills else 0)
        if disk_bytes is not None and num_bytes > disk_bytes:
            disk = Ledger(disk_bytes, (), "packing a superbatch", "of disk space", "disk=")
            disk.add(Reservation("packed rows", num_bytes)).check(None, "make superbatches smaller")
        packed: dict[str, PackedTable] = {}
        counts = Counter[str]()
        for number, (path, rows) in enumerate(tables.items()):
            file = own / f"{number}.rows"
            chunks, more = _write_chunks(
                path,
                rows,
                missed,
                (file, 0),
                memory_bytes=memory_bytes,
                num_threads=num_threads,
                stop=stop,
                advance=advance,
            )
            is_direct, size = rows.table.files.is_direct, int(chunks.offsets[-1])
            try:
                files = _core.FileSet([file], [size], direct=is_direct)
            except OSError as error:
                raise storage_error(error, f"open the packed rows of {path!r}", file) from error
            packed[path] = PackedTable(file, chunks, RowSpec.of(rows.table.array.spec), files)
            counts.update(more)
        missed.close_rows()
        engine = next(iter(tables.values())).table.engine_name
        return PackedSuperbatch(own, misses, missed.places, packed, chunk_reader(engine), counts)
    except BaseException:
        if missed is not None:
            missed.close()
        _core.remove_tree(own)
        raise


def append_missed(
    tables: Mapping[str, TypedRows[FileRows]],
    missed: MissTable,
    files: Mapping[str, tuple[Path, int]],
    *,
    memory_bytes: int,
    num_threads: int = 1,
) -> dict[str, PackedChunks]:
    """Append collected misses to the packed rows of other superbatches, in files that are kept."""
    chunks: dict[str, PackedChunks] = {}
    for path, rows in tables.items():
        chunks[path], _ = _write_chunks(
            path,
            rows,
            missed,
            files[path],
            memory_bytes=memory_bytes,
            num_threads=num_threads,
            grows=True,
        )
    return chunks
