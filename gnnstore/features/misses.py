"""The rows that the batches of a superbatch miss, sorted: the input of packing.

Batches name rows by their numbers in a row space, in which types ascend: the missed rows of a type
are a part of each batch's, and kept by node id, as its tables have them. A row's id is kept while
it is packed, and its position until it is read. A superbatch may be as long as an epoch, and miss
many times more than fits in memory; then both are in files: ids, which are read once for each
table, range by range (see `_core.pack_spilled_rows`), and positions, which are read with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import Ledger
from gnnstore.caching.plan import CachePlan, Trace
from gnnstore.disk.spool import FileSpool, MemorySpool, Spool
from gnnstore.errors import BudgetError
from gnnstore.sampling.row_space import RowRange
from gnnstore.threads import CancelledError, Flag, for_each, interruptible

# Bytes of a batch in the index of missed rows: begin, number of rows, and number of repeated ones.
_BATCH_BYTES = 24
# Bytes of a batch with missed rows in files: where rows and positions begin, their numbers and
# checksums, and the state of packing.
SPILLED_BATCH_BYTES = 256
# Rows between two that are kept in memory too, to find the end of a range. A range has at least
# this many rows of each batch, 4 or 8 KiB: no more than its smallest buffers.
STRIDE_ROWS = 1024
# Unit to which the pool rounds buffers up, from half of one on.
POOLED_UNIT_BYTES = 2 << 20


@dataclass(frozen=True, eq=False)
class MissTable:
    """The distinct rows that each batch misses, and where they go."""

    # int32 or int64 [m]: ``rows[begins[i]:begins[i] + num_rows[i]]`` are the rows of batch i
    # by node id, type after type, in the order of the table.
    rows: npt.NDArray[Any]
    begins: npt.NDArray[np.int64]  # int64 [S]
    num_rows: npt.NDArray[np.int64]  # int64 [S]: distinct missed rows of each batch
    # Where the rows of each batch go, int32: see `places_within`.
    places: Spool
    ranges: tuple[RowRange, ...]  # T types, in the order of their rows
    counts: npt.NDArray[np.int64]  # int64 [S, T]: rows of each batch and type
    file: FileSpool | None = None  # the rows of each batch, an array for each type
    # For each type, of rows in a file: every `STRIDE_ROWS`-th of each batch, to find the ends of
    # ranges.
    samples: tuple[npt.NDArray[Any], ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of memory, while rows are packed."""
        if self.file is not None:
            samples = sum(each.nbytes for each in self.samples)
            return SPILLED_BATCH_BYTES * len(self.begins) + samples
        return self.rows.nbytes + 2 * self.begins.nbytes + self.places.num_bytes

    def batch(self, i: int) -> npt.NDArray[Any]:
        """Return the rows of a batch that are in memory: a view."""
        begin = int(self.begins[i])
        return self.rows[begin : begin + int(self.num_rows[i])]

    def of_type(self, rows: RowRange) -> TypeMisses:
        """Return the rows of a type."""
        t = self.ranges.index(rows)
        num_rows = np.ascontiguousarray(self.counts[:, t])
        if self.file is None:
            return TypeMisses(num_rows, self.begins + self.counts[:, :t].sum(axis=1))
        begins, crcs = self.file.begins[:, t].copy(), self.file.crcs[:, t].copy()
        return TypeMisses(num_rows, begins, crcs, self.samples[t])

    def close_rows(self) -> None:
        """Remove the file of ids, if there is one, when all tables are packed. Idempotent."""
        if self.file is not None:
            self.file.close()

    def close(self) -> None:
        """Remove all files. Idempotent."""
        self.close_rows()
        self.places.close()


class TypeMisses(NamedTuple):
    """The missed rows of a type in a `MissTable`, batch by batch."""

    num_rows: npt.NDArray[np.int64]  # int64 [S]
    begins: npt.NDArray[np.int64]  # int64 [S]: in `rows`, or in bytes of the file
    # For rows in a file: checksums, uint32 [S], and the samples of `MissTable`.
    crcs: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
    samples: npt.NDArray[Any] = np.empty(0, np.int32)


def collect_misses(
    trace: Trace,
    plan: CachePlan,
    ranges: Sequence[RowRange],
    directory: Path | None = None,
    *,
    memory_bytes: int,
    num_threads: int = 1,
    stop: Flag | None = None,
) -> MissTable:
    """Find and sort the rows that each batch misses, with as many threads as memory allows.

    In files of a directory, or in memory. `ranges` are the rows that may be missed: ascending, none
    in two of them.
    """
    most, id_bytes, spills = plan.misses, trace.ids.itemsize, directory is not None
    left_bytes = memory_bytes - held_bytes(most, id_bytes, spills=spills)

    def needed_bytes(threads: int) -> int:
        return sorting_bytes(most, threads, id_bytes, trace.read_rows, spills=spills)

    while num_threads > 1 and needed_bytes(num_threads) > left_bytes:
        num_threads -= 1
    if (missing := needed_bytes(num_threads) - left_bytes) > 0:
        raise too_little_memory(len(most), memory_bytes, missing)
    progress = np.zeros(2, np.int64)

    def each(sort_batch: Callable[[int], None]) -> None:
        def unless_stopped(i: int) -> None:
            if progress[1]:
                raise CancelledError("packing was cancelled while missed rows were sorted")
            sort_batch(i)

        for_each(len(most), num_threads, unless_stopped, "gnnstore-sort")

    sort = partial(_sort, trace, plan, tuple(ranges))

    def work() -> MissTable:
        if directory is None:
            return _in_memory(most, trace.ids.dtype, tuple(ranges), sort, each)
        # One for each thread. Not from the pool, which keeps what it gets back.
        largest, dtype = int(most.max(initial=0)), trace.ids.dtype
        idle = [(np.empty(largest, dtype), np.empty(largest, np.int32)) for _ in range(num_threads)]
        return _in_files(directory, most, tuple(ranges), idle, sort, each)

    return interruptible(work, "gnnstore-sort", progress, stop)


_Sort = Callable[..., tuple[list[npt.NDArray[Any]], npt.NDArray[np.int32], npt.NDArray[np.int32]]]
_ForEach = Callable[[Callable[[int], None]], None]


def _in_memory(
    most: npt.NDArray[np.int64],
    dtype: np.dtype[Any],
    ranges: tuple[RowRange, ...],
    sort: _Sort,
    each: _ForEach,
) -> MissTable:
    total, begins = int(most.sum()), np.cumsum(most) - most
    counts = np.zeros((len(most), len(ranges)), np.int64)
    # Not from the pool, which rounds up by an eighth, and keeps what it gets back.
    rows, positions = np.empty(total, dtype), np.empty(total, np.int32)
    places = MemorySpool()

    def sort_batch(i: int) -> None:
        begin, end = int(begins[i]), int(begins[i] + most[i])
        parts, *repeats = sort(i, rows[begin:end], positions[begin:end])
        counts[i] = [len(part) for part in parts]
        places.append(i, [positions[begin : begin + int(counts[i].sum())], *repeats])

    each(sort_batch)
    return MissTable(rows, begins, most, places, ranges, counts)


def _in_files(  # noqa: PLR0917
    directory: Path,
    most: npt.NDArray[np.int64],
    ranges: tuple[RowRange, ...],
    idle: list[tuple[npt.NDArray[Any], npt.NDArray[np.int32]]],
    sort: _Sort,
    each: _ForEach,
) -> MissTable:
    num_batches = len(most)
    counts = np.zeros((num_batches, len(ranges)), np.int64)
    samples: list[list[npt.NDArray[Any]]] = [[] for _ in range(num_batches)]
    with ExitStack() as files:
        what = "the rows that are missed"
        ids = FileSpool(directory / "missed", num_batches, len(ranges), what=what)
        files.callback(ids.close)
        what = "the places of packed rows"
        places = FileSpool(directory / "positions", num_batches, 3, what=what)
        files.callback(places.close)

        def sort_batch(i: int) -> None:
            scratch = idle.pop()
            parts, *repeats = sort(i, scratch[0][: most[i]], scratch[1][: most[i]])
            counts[i] = [len(part) for part in parts]
            samples[i] = [part[::STRIDE_ROWS].copy() for part in parts]
            ids.append(i, parts)
            places.append(i, [scratch[1][: counts[i].sum()], *repeats])
            idle.append(scratch)

        each(sort_batch)
        files.pop_all()
    none, begins = np.empty(0, idle[0][0].dtype), np.zeros(num_batches, np.int64)
    joined = tuple(np.concatenate([none, *(of[t] for of in samples)]) for t in range(len(ranges)))
    return MissTable(none, begins, most, places, ranges, counts, ids, joined)


def _sort(  # noqa: PLR0917
    trace: Trace,
    plan: CachePlan,
    ranges: tuple[RowRange, ...],
    i: int,
    rows: npt.NDArray[Any],
    positions: npt.NDArray[np.int32],
) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Find and sort a batch's missed rows; return each type's: views, by node id."""
    ids, slots = trace.batch(i), plan.batch_slots(i)
    end = ranges[-1].first + ranges[-1].num_rows
    found, targets, sources = _core.sort_misses(ids, slots, rows, positions, num_rows=end)
    if len(ranges) == 1 and not ranges[0].first:
        return [rows[:found]], targets, sources
    parts = [rows[:found][own.within(rows[:found])] for own in ranges]
    for own, part in zip(ranges, parts, strict=True):
        if own.first:
            np.subtract(part, own.first, out=part)
    return parts, targets, sources


def held_bytes(misses: npt.NDArray[np.int64], id_bytes: int, *, spills: bool = False) -> int:
    """Return the memory of sorted rows while they are packed: ids, positions and an index.

    For rows in files (`spills`), also while they are sorted.
    """
    if not spills:
        return (4 + id_bytes) * int(misses.sum()) + _BATCH_BYTES * len(misses) + 8
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
    return rounded_up if num_bytes < POOLED_UNIT_BYTES // 2 else rounded_up + POOLED_UNIT_BYTES


def too_little_memory(num_batches: int, memory_bytes: int, missing_bytes: int) -> BudgetError:
    """Return the error for packing that needs more memory than there is."""
    who = f"packing the rows of {num_batches} batches"
    left = Ledger(max(memory_bytes, 0), (), who, "of memory left for it", "the memory budget")
    return replace(left, raise_by=missing_bytes).refusal(None, "make superbatches smaller")
