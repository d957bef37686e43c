"""Rows by id: one interface to rows, wherever they lie.

A `RowSource` is one table. It may be in memory, mapped, read from files or packed for a batch, each
of which has a module of its own. A `Tier` is a source in front of another one, such as a cache.
Tiers stack on any source, and callers see no difference. Calls are per batch or per table,
never per row.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts, empty
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.spec import AttributeSpec, DecodedDtype
from gnnstore.sampling.row_space import RowRange

# Returns a buffer of a shape and an element type that rows are gathered into, as `empty` does.
RowsMemory: TypeAlias = Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]

# Most threads that copy: two are twice as fast as one, and a few more are as fast as memory.
_MAX_COPYING = 4


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

    def empty(self, num_rows: int, memory: RowsMemory = empty) -> npt.NDArray[Any]:
        """Return a buffer for a number of rows, [num_rows, *shape]; by default from the pool."""
        return memory((num_rows, *self.shape), self.dtype)

    def view(self, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a buffer that is to be filled, of any element type, as [num_rows, *shape]."""
        return out.reshape(-1).view(np.uint8).view(self.dtype).reshape(len(out), *self.shape)


@dataclass(frozen=True, eq=False)
class Decoding:
    """What makes numbers of rows of int8: scales of their columns, and the type of the numbers.

    One multiplication in float32 and one rounding, so that all ways to a batch have the same bits.
    """

    scales: npt.NDArray[np.float32]  # of the shape of a row
    dtype: DecodedDtype

    @classmethod
    def from_attribute(
        cls, attribute: AttributeSpec, scales: Mapping[str, npt.NDArray[np.float32]]
    ) -> Self | None:
        """Return how an attribute is decoded, by scales by path; None: it is shown as stored."""
        scaled = attribute.scaled
        return None if scaled is None else cls(scales[attribute.path], scaled.decoded)

    @cached_property
    def storage(self) -> np.dtype[Any]:
        """The element type of the numbers; uint16 for bfloat16."""
        return STORAGE_DTYPES[self.dtype]

    @cached_property
    def by_column(self) -> npt.NDArray[np.float32]:
        """The scales as kernels take them, [row_bytes]."""
        return np.ascontiguousarray(self.scales).reshape(-1)

    def decode(self, rows: npt.NDArray[Any], memory: RowsMemory = empty) -> npt.NDArray[Any]:
        """Return what rows stand for, in a new array."""
        out = memory(rows.shape, self.storage)
        self.decode_into(rows, out)
        return out

    def empty(self, num_rows: int, memory: RowsMemory = empty) -> npt.NDArray[Any]:
        """Return a buffer for the numbers of some rows, [num_rows, *shape]."""
        return memory((num_rows, *self.scales.shape), self.storage)

    def decode_into(self, rows: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """Fill `out` with what rows stand for."""
        if out.size:
            target = out.reshape(-1).view(np.uint8)
            _core.decode_rows(_bytes_of(rows), self.by_column, target, dtype=self.dtype)

    def join_into(
        self, missed: npt.NDArray[Any], request: RowRequest, out: npt.NDArray[Any]
    ) -> ReadCounts:
        """Fill `out` with what the rows of a request stand for: cached ones, and those missed."""
        if request.cache is None or request.slots is None or out.size == 0:
            self.decode_into(missed, out)
            return ReadCounts()
        copied = _core.decode_from_slots(
            request.cache,
            request.slots,
            _bytes_of(missed),
            self.by_column,
            out.reshape(-1).view(np.uint8),
            dtype=self.dtype,
            num_threads=_copying_threads(),
        )
        return ReadCounts(rows_cached=copied)


def _bytes_of(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8)


def _copying_threads() -> int:
    return min(_MAX_COPYING, len(os.sched_getaffinity(0)))


# How rows are decoded on their way into a batch, by the table's path; others come as stored.
Decodings: TypeAlias = Mapping[str, Decoding]
AS_STORED: Decodings = {}


class RowRequest(NamedTuple):
    """A request for rows of a source."""

    ids: npt.NDArray[Any]  # int32 or int64 [n]: in any order, repeated or not
    # int32 [n], optional: negative: the row is read from this source.
    slots: npt.NDArray[np.int32] | None = None
    # uint8 [num_slots, row_bytes], optional: the rows of a tier above, by slot.
    cache: npt.NDArray[np.uint8] | None = None
    row_offset: int = 0  # of the first id in its batch, for rows packed by batch

    def copy_cached(self, out: npt.NDArray[Any]) -> ReadCounts:
        """Copy the cached rows to their places in `out`, with a few threads."""
        if self.cache is None or self.slots is None or out.nbytes == 0:
            return ReadCounts()
        copied = _core.copy_from_slots(
            self.cache,
            self.slots,
            out.reshape(-1).view(np.uint8),
            num_threads=_copying_threads(),
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

    def read_missed(self, request: RowRequest) -> Rows:
        """Return the rows of a request that have no slot, one behind the other: a new array."""
        slots = request.slots
        return self.gather(request.ids if slots is None else request.ids[slots < 0])

    def read_decoded(
        self, request: RowRequest, decoding: Decoding, out: npt.NDArray[Any]
    ) -> ReadCounts:
        """Fill `out` with what the rows of a request stand for, of the type of the decoding."""
        missed, counts = self.read_missed(request)
        return counts + decoding.join_into(missed, request, out)

    def read_range(self, first: int, out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with rows that follow one another from `first` on, as `read_rows` does."""
        return self.read_rows(np.arange(first, first + len(out)), out)

    def rows_of(
        self, request: RowRequest, decoding: Decoding | None, memory: RowsMemory = empty
    ) -> Rows:
        """Return the rows of a request as a new array, or what they stand for by a decoding."""
        if decoding is None:
            out = self.spec.empty(request.ids.size, memory)
            is_all = request.slots is None
            read = self.read_rows(request.ids, out) if is_all else self.read_into(request, out)
            return Rows(out, read)
        out = decoding.empty(request.ids.size, memory)
        return Rows(out, self.read_decoded(request, decoding, out))

    def gather(self, ids: npt.NDArray[Any], memory: RowsMemory = empty) -> Rows:
        """Return the rows of `ids` (int32 or int64 [n]) as a new array [n, *shape]."""
        out = self.spec.empty(ids.size, memory)
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
    def file_rows(self) -> RowSource | None:
        """The table's rows in files, for packing (`FileRows`); None if it is not in files."""
        return None


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
    def file_rows(self) -> RowSource | None:
        """The rows of the table below in files."""
        return self.below.file_rows
