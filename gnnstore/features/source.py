"""Rows by id: one interface to rows in memory, mapped, or on disk.

A `RowSource` is one table. It may be in memory, mapped, read from disk or packed for a batch; a
`Tier` is a source in front of another one, such as a cache. Tiers stack on any source, and their
callers need not know them. Calls are per batch or per table, never per row.
"""

from __future__ import annotations

import errno
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts, empty
from gnnstore.disk.engines import Engine, remedy_for
from gnnstore.errors import CorruptStoreError, StorageError, UsageError, storage_error
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.machine import PRIVATE, Machine
from gnnstore.sampling.row_space import RowRange

# Two threads copy twice as fast as one; a few more are as fast as memory.
_MAX_COPYING = 4

# Of packed rows in a batch: see `places_within`.
Places = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]


class Rows(NamedTuple):
    """The rows of some ids, and the reads that they cost."""

    values: npt.NDArray[Any]
    counts: ReadCounts


@dataclass(frozen=True)
class RowSpec:
    """The rows of a table."""

    num_rows: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # of its elements; uint16 for bfloat16

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row's values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, attribute: AttributeSpec) -> Self:
        """Return the rows of a stored array."""
        dtype = STORAGE_DTYPES[attribute.dtype]
        return cls(attribute.shape[0], attribute.shape[1:], dtype)

    def empty(self, num_rows: int) -> npt.NDArray[Any]:
        """Return a buffer for a number of rows, [num_rows, *shape], from the pool."""
        return empty((num_rows, *self.shape), self.dtype)

    def view(self, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a buffer that is to be filled, of any element type, as [num_rows, *shape]."""
        return out.reshape(-1).view(np.uint8).view(self.dtype).reshape(len(out), *self.shape)


class RowRequest(NamedTuple):
    """A request for rows of a source."""

    ids: npt.NDArray[Any]  # int32 or int64 [n]: in any order, repeated or not
    # int32 [n], optional: negative: the row is read from this source.
    slots: npt.NDArray[np.int32] | None = None
    # uint8 [num_slots, row_bytes], optional: the rows of a tier above, by slot.
    cache: npt.NDArray[np.uint8] | None = None
    place: int = 0  # of the first id in its batch, for rows packed by batch

    def copy_cached(self, out: npt.NDArray[Any]) -> ReadCounts:
        """Copy the cached rows to their places in `out`, with a few threads."""
        if self.cache is None or self.slots is None or out.nbytes == 0:
            return ReadCounts()
        copied = _core.copy_from_slots(
            self.cache,
            self.slots,
            out.reshape(-1).view(np.uint8),
            num_threads=min(_MAX_COPYING, len(os.sched_getaffinity(0))),
        )
        return ReadCounts(rows_cached=copied)


class RowSource(ABC):
    """A table of N rows that can be read by id. Safe to use from many threads at once.

    A source defines `spec` and `read_rows`; the other methods follow from them, and are overridden
    if a source can do better.
    """

    @property
    @abstractmethod
    def spec(self) -> RowSpec:
        """The number, shape and type of the table's rows."""

    @abstractmethod
    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with the rows of all of `ids` (int32 or int64 [n]).

        Parameters
        ----------
        out : ndarray [n, ...] of row_bytes a row, C-ordered

        Raises
        ------
        IndexError
            If an id is out of range.
        StorageError
            If a row cannot be read.
        """

    def read_into(self, request: RowRequest, out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with the rows of a request, as `read_rows` does; cached ones from slots."""
        if request.slots is None:
            return self.read_rows(request.ids, out)
        positions = np.flatnonzero(request.slots < 0)
        counts = ReadCounts()
        if len(positions):
            rows = empty((len(positions), *out.shape[1:]), out.dtype)
            counts = self.read_rows(request.ids[positions], rows)
            out[positions] = rows
        return counts + request.copy_cached(out)

    def read_range(self, first: int, out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with rows that follow one another from `first` on, as `read_rows` does."""
        return self.read_rows(np.arange(first, first + len(out)), out)

    def gather(self, ids: npt.NDArray[Any]) -> Rows:
        """Return the rows of `ids` (int32 or int64 [n]) as a new array [n, *shape]."""
        out = self.spec.empty(ids.size)
        return Rows(out, self.read_rows(ids, out))

    @property
    def num_rows(self) -> int:
        """Rows in the table."""
        return self.spec.num_rows

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's values."""
        return self.spec.row_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that rows occupy, without those that the system can take back."""
        return 0

    @property
    def file_rows(self) -> FileRows | None:
        """The table's files, for packing; None if it is not in files."""
        return None


@dataclass(frozen=True, eq=False)
class MemoryRows(RowSource):
    """A dense table in memory."""

    table: npt.NDArray[Any]

    @classmethod
    def from_array(cls, table: npt.NDArray[Any]) -> Self:
        """Return a view of an array [N, ...], or a copy if it is not C-contiguous."""
        return cls(np.ascontiguousarray(table))

    @classmethod
    def load(cls, array: PagedArray, num_threads: int, machine: Machine = PRIVATE) -> Self:
        """Load a stored array into a huge-page buffer, without the padding of its pages."""
        return cls.from_array(array.load(num_threads, machine))

    @cached_property
    def spec(self) -> RowSpec:
        """The rows of the array."""
        return RowSpec(len(self.table), self.table.shape[1:], self.table.dtype)

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the whole table occupies."""
        return self.table.nbytes

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Copy the rows of `ids` to `out`.

        One thread: a loader prepares several batches side by side instead.
        """
        spec = self.spec
        return copy_rows(
            self._body,
            ids,
            out,
            num_rows=spec.num_rows,
            row_bytes=spec.row_bytes,
            rows_per_page=1,
            page_stride_bytes=spec.row_bytes,
        )

    @cached_property
    def _body(self) -> npt.NDArray[np.uint8]:
        return self.table.reshape(-1).view(np.uint8)


def copy_rows(
    body: npt.NDArray[np.uint8],
    ids: npt.NDArray[Any],
    out: npt.NDArray[Any],
    **options: int,
) -> ReadCounts:
    """Copy rows of a table in memory, or mapped."""
    if out.size:
        _core.gather_rows(body, ids, out.reshape(-1).view(np.uint8), **options)
    return ReadCounts()


@dataclass(frozen=True, eq=False)
class FileRows(RowSource):
    """A stored table whose rows an engine reads, past the page cache. Thread-safe.

    The files stay open: a store that is removed or replaced meanwhile is read to the end.
    """

    array: PagedArray
    engine: Engine
    files: _core.FileSet

    @classmethod
    def open(cls, array: PagedArray, engine: Engine) -> Self:
        """Open the files of a stored array for an engine."""
        return cls(array, engine, array.open_files(direct=engine.choice.is_direct))

    @cached_property
    def spec(self) -> RowSpec:
        """The rows of the array."""
        return RowSpec.of(self.array.spec)

    @property
    def file_rows(self) -> FileRows:
        """The table itself."""
        return self

    @cached_property
    def engine_name(self) -> str:
        """The engine's name in the core."""
        return self.engine.name

    @cached_property
    def place(self) -> dict[str, int]:
        """The kernels' arguments for the place of rows, and for how reads are merged."""
        return {**self.array.place, "gap_bytes": self.engine.tuning.gap_bytes}

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Read the rows of `ids` (int32 or int64 [n]) into `out`."""
        return self.read_into(RowRequest(ids), out)

    def read_into(self, request: RowRequest, out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with the rows of a request; cached rows are copied while others are read."""
        if out.size == 0:
            return ReadCounts()
        try:
            return self.engine.reader.gather_rows(
                self.files,
                request.ids,
                out.reshape(-1).view(np.uint8),
                **self.place,
                cache=request.cache,
                slots=request.slots,
            )
        except OSError as error:
            raise self._error(error) from error

    def read_range(self, first: int, out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with consecutive rows, in large reads if rows fill their pages."""
        if not self.array.geometry.is_exact:
            return super().read_range(first, out)
        begin = np.array([first])
        return self.read_ranges(begin, begin + len(out), np.zeros(1, np.int64), out)

    def read_ranges(
        self,
        firsts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        out: npt.NDArray[Any],
    ) -> ReadCounts:
        """Read ranges of rows that fill their pages in large reads, many in flight at a time."""
        wrong = np.flatnonzero((firsts < 0) | (ends < firsts) | (ends > self.num_rows))
        if wrong.size:
            first, end = firsts[wrong[0]], ends[wrong[0]]
            raise IndexError(f"[{first}, {end}) is not within [0, {self.num_rows})")
        there = np.flatnonzero(ends > firsts)
        if out.size == 0 or there.size == 0:
            return ReadCounts()
        firsts, ends, places = firsts[there], ends[there], places[there]
        shard_rows, row_bytes = self.array.layout.shard_rows, self.row_bytes
        first_shards = firsts // shard_rows
        num_shards = (ends - 1) // shard_rows - first_shards + 1
        of = np.repeat(np.arange(len(firsts)), num_shards)
        before = np.repeat(np.cumsum(num_shards) - num_shards, num_shards)
        shards = first_shards[of] + np.arange(len(of)) - before
        begins = np.maximum(shards * shard_rows, firsts[of])
        lasts = np.minimum((shards + 1) * shard_rows, ends[of])
        try:
            counts = self.engine.reader.read_ranges(
                self.files,
                shards,
                (begins - shards * shard_rows) * row_bytes,
                (lasts - begins) * row_bytes,
                (places[of] + begins - firsts[of]) * row_bytes,
                out.reshape(-1).view(np.uint8),
            )
        except OSError as error:
            raise self._error(error) from error
        return counts + ReadCounts(rows_read=int((ends - firsts).sum()))

    def _error(self, error: OSError) -> StorageError:
        array, engine = self.array, self.engine
        doing = f"read rows of the array {array.spec.path!r}"
        if error.filename:
            return storage_error(error, doing, error.filename)
        # No engine could be made for another thread, though the first worked.
        where = str(array.file_paths[0])
        return StorageError(
            f"cannot {doing}: {where}: the engine {engine.name!r} failed: {error.strerror}. "
            f"{remedy_for(engine.name, error)}",
            path=where,
        )


@dataclass(frozen=True, eq=False)
class AbsentRows(RowSource):
    """A table whose rows cannot be read by id: they come with the batches."""

    attribute: AttributeSpec
    # Returns the error for a request by id; a function of a module, which can be pickled.
    refusal: Callable[[str], Exception]

    @cached_property
    def spec(self) -> RowSpec:
        """The rows of the table."""
        return RowSpec.of(self.attribute)

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:  # noqa: ARG002
        """Refuse to read rows by id."""
        raise self.refusal(f"rows of {self.attribute.name!r} by id ({ids.size} of them)")


class PackedRows(RowSource):
    """The rows that one batch misses of a table, as they were packed for it, and no others."""

    def __init__(
        self,
        spec: RowSpec,
        # Given the part of the batch that the table's type is, and the output.
        read_missed: Callable[[RowRange, npt.NDArray[Any]], ReadCounts],
    ) -> None:
        self._spec = spec
        self._read_missed = read_missed

    @property
    def spec(self) -> RowSpec:
        """The rows of the table, packed or not."""
        return self._spec

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with the rows of a batch that misses all of them."""
        return self._read_missed(RowRange(0, ids.size), out)

    def read_into(self, request: RowRequest, out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with the rows of the batch; cached ones are copied when others are read."""
        if request.slots is None:
            return self.read_rows(request.ids, out)
        part = RowRange(request.place, len(request.slots))
        return self._read_missed(part, out) + request.copy_cached(out)


def places_within(
    part: RowRange,
    positions: npt.NDArray[np.int32],  # of each distinct row
    targets: npt.NDArray[np.int32],  # positions that get the row of another one
    sources: npt.NDArray[np.int32],  # positions of these other rows
) -> Places:
    """Return where packed rows go that are of a node type's part of a batch, from its first row on.

    Positions and targets ascend from type to type.
    """
    if not part.first and all((each[-1:] < part.num_rows).all() for each in (positions, targets)):
        return positions, targets, sources  # all are of the first type
    _, own = part.part(positions)
    repeats, own_targets = part.part(targets)
    sources = sources[repeats]
    return own, own_targets, sources - part.first if part.first else sources


def read_chunk(
    reader: _core.Reader,
    files: _core.FileSet,
    begin: int,
    places: Places,
    out: npt.NDArray[Any],
    *,
    path: Path,
    what: Callable[[], str],
    advice: str,
    **options: Any,  # `row_bytes`, `crcs` and `piece_bytes`
) -> ReadCounts:
    """Write the rows of a chunk to their places; `what` and `advice` are for messages."""
    if len(places[0]) + len(places[1]) == 0:
        return ReadCounts()
    content = out.reshape(-1).view(np.uint8)
    try:
        return _core.read_packed_rows(reader, files, 0, begin, *places, content, **options)
    except OSError as error:
        where = error.filename or path
        if error.errno != errno.EBADMSG:
            raise storage_error(error, f"read the packed rows of {what()}", where) from error
        raise CorruptStoreError(
            f"{where}: packed rows are damaged: {error.strerror}; they are of {what()}. {advice}",
            path=where,
            offset=begin,
        ) from error


_Table_co = TypeVar("_Table_co", bound=RowSource, covariant=True)


class TypedRows(NamedTuple, Generic[_Table_co]):
    """A table of a node type, by node id, and the numbers of its rows in a row space."""

    table: _Table_co
    range: RowRange


def of_one_type(tables: Mapping[str, _Table_co]) -> dict[str, TypedRows[_Table_co]]:
    """Return tables of a store's only node type: the numbers of rows are node ids."""
    return {path: TypedRows(rows, RowRange(0, rows.num_rows)) for path, rows in tables.items()}


def ranges_of(tables: Mapping[str, TypedRows[_Table_co]]) -> tuple[RowRange, ...]:
    """Return the rows of each type that has tables, ascending."""
    return tuple(sorted({rows.range for rows in tables.values()}))


def files_of(tables: Mapping[str, TypedRows[RowSource]]) -> dict[str, TypedRows[FileRows]]:
    """Return the files of tables, for packing."""
    files = {path: (rows.table.file_rows, rows.range) for path, rows in tables.items()}
    missing = [path for path, (found, _) in files.items() if found is None]
    if missing:
        raise UsageError(f"only rows in files can be packed; those of {missing} are in none")
    return {
        path: TypedRows(found, own) for path, (found, own) in files.items() if found is not None
    }


class Tier(RowSource):
    """A source in front of another, with the same rows. Other requests go on to `below`."""

    def __init__(self, below: RowSource) -> None:
        self.below = below

    @property
    def spec(self) -> RowSpec:
        """The rows of the table below."""
        return self.below.spec

    def read_range(self, first: int, out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with rows that follow one another, read below."""
        return self.below.read_range(first, out)

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that rows occupy below."""
        return self.below.resident_bytes

    @property
    def file_rows(self) -> FileRows | None:
        """The files of the table below."""
        return self.below.file_rows
