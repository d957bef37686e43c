"""Divides the memory of packing among its buffers, and computes the least that it needs.

Missed rows of each batch are sorted in memory, ids and positions; or in files, from which the ids
of a range of the table are read. Sorting takes memory for a batch in each thread. Packing then
holds windows of the table, which are being read or copied, and for each batch a buffer with the
rows to write next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import PLANNED, Ledger, Reservation
from gnnstore.errors import BudgetError
from gnnstore.features.packed.chunks import CHUNK_ALIGNMENT_BYTES
from gnnstore.features.source import FileRows, TypedRows


@dataclass(frozen=True)
class PackingBuffers:
    """A few large windows and buffers, or less where memory is short."""

    num_windows: int  # parts of the table that are being read or copied
    extra_window_bytes: int  # bytes of a window beyond the least
    buffer_bytes: int  # bytes of a batch that are collected before a write
    num_spare_buffers: int  # buffers that are being written, by a thread each up to 16

    def window_bytes(self, table: FileRows) -> int:
        """Return the size of a window of a table."""
        least = _core.min_pack_window_bytes(table.files, **table.place)
        unit = CHUNK_ALIGNMENT_BYTES
        return -(-(least + self.extra_window_bytes) // unit) * unit

    def num_bytes(self, table: FileRows, num_batches: int) -> int:
        """Return the memory for windows and buffers."""
        windows = self.num_windows * self.window_bytes(table)
        return windows + (num_batches + self.num_spare_buffers) * self.buffer_bytes


# From the most memory to the least; the first that fits is taken. With 1,024 batches, reading and
# writing 2.5 GB goes at 1.4 GB/s with writes of 256 or 64 KiB, at 1.1 with 32, 0.8 with 16, and
# 0.5 with 8: below 64 KiB a disk counts writes, not bytes.
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
# Of each batch, in the index of missed rows: begin, number of rows, and number of repeated ones.
_BATCH_BYTES = 24
# Of each batch whose missed rows are in files: where rows and positions begin, their numbers and
# checksums, and the state of packing.
SPILLED_BATCH_BYTES = 256
# Every 1024th row is also kept in memory, to find the end of a range. A range has at least this
# many rows of each batch, 4 or 8 KiB: no more than its smallest buffers.
STRIDE_ROWS = 1024
# With four times the least, a range uses three quarters of its memory or more, and a batch's part
# is read by some 16 KiB.
_PREFERRED_STRIDES = 4
# The pool rounds buffers up to whole ones, from half a one on.
_POOLED_UNIT_BYTES = 2 << 20

# Packing that is planned with gets room for large windows and writes: for them, for a buffer of
# each batch, and where sorted rows are in files, for this many strides of a batch's ids at a time.
_ROOMY_BYTES = 24 << 20
_ROOMY_BUFFER_BYTES, _ROOMY_SPILLED_BUFFER_BYTES = 128 << 10, 64 << 10
_ROOMY_STRIDES = 4
# The phase of windows and buffers, which are there only while rows are packed.
_PACKING = "packing"
# Of each missed row in memory: its id, of either width, and its position.
_ID_BYTES, _POSITION_BYTES = 8, 4
# Of each row of a batch that is sorted: keys of 8 bytes, twice, in buffers that are rounded up.
_SORTED_ROW_BYTES = 2 * (8 + 1)
_SORTING_BUFFERS = 4


@dataclass(frozen=True)
class PackedBatch:
    """A batch whose missed rows are to be packed, as it is known in advance."""

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
        samples = 2 * (self.most_missed // STRIDE_ROWS + 1)
        per_batch = SPILLED_BATCH_BYTES + samples * self.id_bytes
        buffers = _ROOMY_SPILLED_BUFFER_BYTES + _ROOMY_STRIDES * STRIDE_ROWS * self.id_bytes
        row_bytes = _POSITION_BYTES + self.id_bytes
        sorting = self.most_missed * (_SORTED_ROW_BYTES + row_bytes)
        sorting += self.num_rows * (row_bytes + row_bytes // 8 + 1)
        sorting += _SORTING_BUFFERS * _POOLED_UNIT_BYTES
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


def held_bytes(num_missed: int, num_batches: int, id_bytes: int) -> int:
    """Return the bytes of sorted rows while they are packed: ids, positions, and an index."""
    return (4 + id_bytes) * num_missed + _BATCH_BYTES * num_batches + 8


def spilled_bytes(misses: npt.NDArray[np.int64], id_bytes: int) -> int:
    """Return the bytes in memory of rows in files, while they are sorted or packed."""
    # Twice: samples of each batch become one array.
    samples = 2 * id_bytes * int((-(-misses // STRIDE_ROWS)).sum())
    return SPILLED_BATCH_BYTES * len(misses) + samples


def sorting_bytes(
    misses: npt.NDArray[np.int64],
    num_threads: int,
    id_bytes: int,
    read_rows: int = 0,
    *,
    spills: bool = False,
) -> int:
    """Return the memory for sorting the misses of batches: keys of 8 bytes, twice."""
    largest = int(misses.max(initial=0))
    keys = 2 * _pooled_bytes(8 * largest)
    read = _pooled_bytes(id_bytes * read_rows) + _pooled_bytes(4 * read_rows)
    scratch = (4 + id_bytes) * largest if spills else 0
    return (keys + read + scratch) * min(num_threads, len(misses))


def _pooled_bytes(num_bytes: int) -> int:
    """Return the most memory that an array from the pool of buffers takes."""
    rounded_up = num_bytes + num_bytes // 8
    return rounded_up if num_bytes < _POOLED_UNIT_BYTES // 2 else rounded_up + _POOLED_UNIT_BYTES


def least_memory(
    tables: Mapping[str, TypedRows[FileRows]],
    misses: npt.NDArray[np.int64],
    id_bytes: int,
    read_rows: int = 0,
    *,
    spills: bool = False,
) -> int:
    """Return the least `memory_bytes` that packing works with; with more it is faster."""
    num_batches, total = len(misses), int(misses.sum())
    if spills:
        rows_bytes = id_bytes * _least_rows(misses)
        working = [_SMALLEST.num_bytes(t, num_batches) + rows_bytes for t, _ in tables.values()]
        sorting = sorting_bytes(misses, 1, id_bytes, read_rows, spills=True)
        return spilled_bytes(misses, id_bytes) + max(sorting, *working)
    held = held_bytes(total, num_batches, id_bytes)
    working = [_SMALLEST.num_bytes(table, num_batches) for table, _ in tables.values()]
    return held + max(sorting_bytes(misses, 1, id_bytes, read_rows), *working)


def choose_buffers(table: FileRows, num_batches: int, memory_bytes: int) -> PackingBuffers:
    """Decide how memory is used while a table is packed."""
    for buffers in _CHOICES:
        if buffers.num_bytes(table, num_batches) <= memory_bytes:
            return buffers
    missing = _SMALLEST.num_bytes(table, num_batches) - memory_bytes
    raise too_little_memory(num_batches, memory_bytes, missing)


def share_with_rows(
    table: FileRows, misses: npt.NDArray[np.int64], id_bytes: int, memory_bytes: int
) -> tuple[PackingBuffers, int]:
    """Decide how memory is used while a table is packed by rows that are in a file."""
    num_batches, total, least = len(misses), int(misses.sum()), _least_rows(misses)
    left_bytes = memory_bytes - id_bytes * min(total, _PREFERRED_STRIDES * least)
    fitting = (s for s in _CHOICES if s.num_bytes(table, num_batches) <= left_bytes)
    buffers = next(fitting, _SMALLEST)
    left_bytes = memory_bytes - buffers.num_bytes(table, num_batches)
    if (missing := id_bytes * least - left_bytes) > 0:
        raise too_little_memory(num_batches, memory_bytes, missing)
    return buffers, min(total, left_bytes // id_bytes)


def _least_rows(misses: npt.NDArray[np.int64]) -> int:
    return int(np.minimum(misses, STRIDE_ROWS).sum())


def too_little_memory(num_batches: int, memory_bytes: int, missing_bytes: int) -> BudgetError:
    """Return the error for packing that needs more memory than there is."""
    who = f"packing the rows of {num_batches} batches"
    left = Ledger(max(memory_bytes, 0), (), who, "of memory left for it", "the memory budget")
    return replace(left, raise_by=missing_bytes).refusal(None, "make superbatches smaller")
