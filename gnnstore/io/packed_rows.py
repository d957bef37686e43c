"""The rows that batches miss, packed on disk: each batch reads its own with a few large reads.

What lies on disk is one file for each table. In it, each batch has a run: the distinct rows
that it misses, one behind the other in the order of the table, from a multiple of 4096 bytes
on. Where in the batch each row goes is kept in memory, 4 bytes a row.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import UsageError, storage_error
from gnnstore.io.counts import NO_READS, ReadCounts

if TYPE_CHECKING:
    from gnnstore.io.planned_cache import BatchStep
    from gnnstore.planning.belady import Trace

# Runs begin at multiples of this: what direct reads of any common disk are aligned to.
RUN_ALIGNMENT_BYTES = 4096

# Reads of a run: 16 of 512 KiB reach a disk's full bandwidth, in as much staging memory
# (8 MiB) as an engine takes that reads single rows.
_READ_BYTES = 512 << 10
_QUEUE_DEPTH = 16
_READING_THREADS = 8  # of an engine that has threads
# For each thread that reads runs.
RUN_STAGING_BYTES = _READ_BYTES * _QUEUE_DEPTH


def run_bytes(num_rows: npt.NDArray[np.int64], row_bytes: int) -> npt.NDArray[np.int64]:
    """Return the bytes on disk of runs of so many rows, int64 each."""
    unit = RUN_ALIGNMENT_BYTES
    return -(-(num_rows * row_bytes) // unit) * unit


@dataclass(frozen=True, eq=False)
class MissIndex:
    """Which accesses of a trace are missed: those of each batch by row.

    Attributes
    ----------
    positions : ndarray of int32 [misses]
        From ``begins[i]`` on: where in batch i each of its ``num_rows[i]`` distinct missed rows
        comes first, in the order of the table; then where they come again.
    begins : ndarray of int64 [S + 1]
    num_rows : ndarray of int64 [S]
    repeat_sources : ndarray of int32 [misses - distinct ones]
        For those that come again, batch by batch: where in the batch the same row comes first.
    """

    positions: npt.NDArray[np.int32]
    begins: npt.NDArray[np.int64]
    num_rows: npt.NDArray[np.int64]
    repeat_sources: npt.NDArray[np.int32]

    @classmethod
    def of(
        cls, trace: Trace, slots: npt.NDArray[np.int32], num_table_rows: int, num_threads: int = 1
    ) -> Self:
        """Index the accesses whose slot is negative.

        Raises
        ------
        UsageError
            If trace and slots do not fit together, or an id is not below `num_table_rows`.
        """
        try:
            return cls(
                *_core.index_misses(
                    trace.ids,
                    trace.offsets,
                    slots,
                    num_rows=num_table_rows,
                    num_threads=num_threads,
                )
            )
        except (ValueError, IndexError) as error:
            raise UsageError(f"cannot pack a superbatch: {error}") from error

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        arrays = (self.positions, self.begins, self.num_rows, self.repeat_sources)
        return sum(array.nbytes for array in arrays)

    def batch(
        self, i: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return where the rows of a batch go: views, int32 each.

        Returns
        -------
        positions [num_rows[i]]
            Of each row of the run.
        repeat_targets, repeat_sources
            Positions that get the row of another one.
        """
        begin, end = self.begins[i], self.begins[i + 1]
        last = begin + self.num_rows[i]
        first_repeat = begin - int(self.num_rows[:i].sum())
        sources = self.repeat_sources[first_repeat : first_repeat + (end - last)]
        return self.positions[begin:last], self.positions[last:end], sources


@dataclass(frozen=True, eq=False)
class PackedTable:
    """The file with the packed rows of one table.

    Attributes
    ----------
    file_path : Path
    run_offsets : ndarray of int64 [S + 1]
        Where the run of each batch begins; the end of the last one.
    row_bytes : int
    files : _core.FileSet
        The file, open: it is read to the end even if it has been removed.
    """

    file_path: Path
    run_offsets: npt.NDArray[np.int64]
    row_bytes: int
    files: _core.FileSet


@dataclass(frozen=True)
class PackCounts:
    """What packing has read and written.

    Attributes
    ----------
    reads, bytes_read : int
        Of the tables, with the gaps between rows that are needed.
    writes, bytes_written : int
    rows_packed : int
        Distinct rows of each batch, over all batches and tables.
    passes : int
        Ranges of ids, each with its own sorting; one for each table if memory allows.
    seconds : float
    """

    reads: int = 0
    bytes_read: int = 0
    writes: int = 0
    bytes_written: int = 0
    rows_packed: int = 0
    passes: int = 0
    seconds: float = 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes read and written in a second; 0 where nothing was."""
        done = self.bytes_read + self.bytes_written
        return done / self.seconds if self.seconds else 0.0


# One reader for each engine, so that its staging memory is there once for each thread that
# reads, however many superbatches are packed.
_readers: WeakValueDictionary[str, _core.Reader] = WeakValueDictionary()


def run_reader(engine: str) -> _core.Reader:
    """Return what reads runs with an engine; shared as long as anybody holds it."""
    reader = _readers.get(engine)
    if reader is None:
        reader = _core.Reader(
            engine,
            queue_depth=_QUEUE_DEPTH,
            num_threads=_READING_THREADS,
            max_read_bytes=_READ_BYTES,
        )
        reader = _readers.setdefault(engine, reader)
    return reader


class PackedSuperbatch:
    """The packed rows of a superbatch. Thread-safe; a context manager that closes it.

    Parameters
    ----------
    directory : Path
        Holds the files of `tables` and nothing else; removed by `close`.
    index : MissIndex
    tables : Mapping of str to PackedTable
        By the table's path in the store.
    reader : _core.Reader
    counts : PackCounts
    """

    def __init__(
        self,
        directory: Path,
        index: MissIndex,
        tables: Mapping[str, PackedTable],
        reader: _core.Reader,
        counts: PackCounts,
    ) -> None:
        self.directory = directory
        self.index = index
        self.tables = dict(tables)
        self.counts = counts
        self._reader = reader

    @property
    def num_batches(self) -> int:
        """S."""
        return len(self.index.num_rows)

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return sum(int(table.run_offsets[-1]) for table in self.tables.values())

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that are kept: where rows go. Staging memory is not counted."""
        offsets = sum(table.run_offsets.nbytes for table in self.tables.values())
        return self.index.num_bytes + offsets

    @property
    def staging_bytes(self) -> int:
        """Bytes of memory for each thread that reads, besides what it reads to."""
        return self._reader.staging_bytes

    def source(self, i: int) -> PackedSource:
        """Return where the missed rows of batch `i` are read, a `MissSource`.

        Raises
        ------
        IndexError
            If there is no such batch.
        """
        if not 0 <= i < self.num_batches:
            raise IndexError(f"batch {i} is outside [0, {self.num_batches})")
        return PackedSource(self, i)

    def read(self, i: int, path: str, out: npt.NDArray[np.uint8]) -> ReadCounts:
        """Write the missed rows of batch `i` of a table to their places; the others stay.

        Parameters
        ----------
        i : int
        path : str
            Of the table in the store.
        out : ndarray of uint8 [rows of the batch * row_bytes]

        Raises
        ------
        StorageError
            Naming the file and offset of a read that failed, or met the end of its file.
        """
        table = self.tables[path]
        positions, targets, sources = self.index.batch(i)
        if len(positions) == 0:
            return NO_READS
        try:
            counts = _core.read_packed_rows(
                self._reader,
                table.files,
                0,
                int(table.run_offsets[i]),
                positions,
                targets,
                sources,
                out,
                row_bytes=table.row_bytes,
            )
        except OSError as error:
            where = error.filename or table.file_path
            doing = f"read the packed rows of batch {i} of the array {path!r}"
            raise storage_error(error, doing, where) from error
        return ReadCounts.of(counts)

    def close(self) -> None:
        """Remove the files. Idempotent; reads that are under way finish."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, eq=False)
class PackedSource:
    """Where one batch's missed rows are read: a `MissSource` of the planned cache."""

    superbatch: PackedSuperbatch
    batch: int

    def read_missed(self, path: str, step: BatchStep, out: npt.NDArray[Any]) -> ReadCounts:
        """Write the rows whose slot is -1 to their places in `out`; the others stay.

        Parameters
        ----------
        path : str
            Of the table in the store.
        step : BatchStep
            Of the same batch, with the slots that were packed.
        out : ndarray [n, *row_shape], C-ordered

        Raises
        ------
        UsageError
            If other rows are missed than were packed.
        StorageError
            As in `PackedSuperbatch.read`.
        """
        index = self.superbatch.index
        begin, end = index.begins[self.batch], index.begins[self.batch + 1]
        packed = index.positions[begin:end]
        num_missed = int(np.count_nonzero(step.slots < 0))
        if num_missed != len(packed) or (num_missed and step.slots[packed].max() >= 0):
            raise UsageError(
                f"batch {self.batch} misses {num_missed} rows by its plan, but {len(packed)} were "
                "packed, or others: pack the superbatch anew for this plan"
            )
        return self.superbatch.read(self.batch, path, out.reshape(-1).view(np.uint8))
