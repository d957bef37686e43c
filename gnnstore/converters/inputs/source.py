"""Arrays read in pieces: the interface between input files and converters.

The arrays of a large graph do not fit in memory: a source may be a file, a member of an archive, a
table of text, or several such files.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import Reservation
from gnnstore.converters.memory import memory_ledger
from gnnstore.errors import InputError, UsageError

# Pieces of up to this size are read into memory that was used before: the pages that the kernel
# clears in fresh memory are an eighth of the CPU time of a conversion. Whole arrays should not
# stay behind in the pool.
MAX_POOLED_BYTES = 2**24
_SMALL_BYTES = 2**26  # smaller arrays are read without asking for free memory
_PIECE_ITEMS = 2**18  # read at a time where elements go to an array that is there


Items = Callable[[int, int], npt.NDArray[Any]]  # returns elements: the first, and their number


class ArraySource(ABC):
    """An array that can be read in order, a piece at a time, any number of times."""

    label: str  # name for messages: "graph.npz: x"
    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # element type, in native byte order

    @abstractmethod
    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the array along its first axis from row `start` on, at most `step` at a time."""

    def columns(self, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield a two-dimensional array along its second axis, `step` columns at a time."""
        whole = self.read()
        for first in range(0, self.shape[1], step):
            yield whole[:, first : first + step]

    def read(self) -> npt.NDArray[Any]:
        """Return the whole array."""
        check_fits(self)
        whole = np.empty(self.shape, self.dtype)
        filled = 0
        for piece in self.rows(2**20):
            whole[filled : filled + len(piece)] = piece
            filled += len(piece)
        return whole


class MemoryArray(ArraySource):
    """An array that is in memory, or a memory map."""

    def __init__(self, label: str, array: npt.NDArray[Any]) -> None:
        self.label = label
        self.shape = array.shape
        self.dtype = array.dtype.newbyteorder("=")
        self._array = array

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the array along its first axis from row `start` on, `step` rows at a time."""
        for first in range(start, self.shape[0], step):
            yield self._array[first : first + step].astype(self.dtype, copy=False)

    def columns(self, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield a two-dimensional array along its second axis, `step` columns at a time."""
        for first in range(0, self.shape[1], step):
            yield self._array[:, first : first + step].astype(self.dtype, copy=False)

    def read(self) -> npt.NDArray[Any]:
        """Return the whole array (a view where the byte order is native)."""
        return self._array.astype(self.dtype, copy=False)


class StoredArray(ArraySource):
    """An array that lies in C or Fortran order."""

    # Bytes of rows that are gathered at a time from an array in Fortran order.
    _block_bytes = 2**24

    def __init__(
        self, label: str, shape: tuple[int, ...], dtype: np.dtype[Any], *, fortran_order: bool
    ) -> None:
        self.label = label
        self.shape = shape
        self.dtype = dtype.newbyteorder("=")
        self._stored_dtype = dtype
        # One-dimensional arrays are in both orders at once.
        self.fortran_order = fortran_order and len(shape) > 1

    @abstractmethod
    def _open(self) -> AbstractContextManager[Items]:
        """Open what holds the elements; they are asked for in ascending order."""

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the array along its first axis from row `start` on, `step` rows at a time."""
        num_rows, tail = self.shape[0], self.shape[1:]
        row_items = math.prod(tail)
        if not self.fortran_order:
            with self._open() as items:
                for first in range(start, num_rows, step):
                    count = min(step, num_rows - first)
                    yield items(first * row_items, count * row_items).reshape(count, *tail)
            return
        # Seen in C order the axes are reversed, and rows are its columns.
        fitting = self._block_bytes // (row_items * self.dtype.itemsize)
        block_rows = min(max(step, fitting), num_rows)
        # One block in memory, never two: pieces are copies, which do not keep it alive.
        memory = np.empty((row_items, block_rows), self.dtype)
        for first in range(start, num_rows, block_rows):
            block = memory[:, : num_rows - first]
            with self._open() as items:
                for column in range(row_items):
                    _fill(block[column], items, column * num_rows + first)
            found = block.reshape(*tail[::-1], block.shape[1]).T
            for begin in range(0, len(found), step):
                piece = _core.empty((min(step, len(found) - begin), *tail), self.dtype)
                piece[:] = found[begin : begin + step]
                yield piece

    def columns(self, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield a two-dimensional array along its second axis, `step` columns at a time."""
        height, width = self.shape
        with ExitStack() as stack:
            rows = [
                stack.enter_context(self._open())
                for _ in range(1 if self.fortran_order else height)
            ]
            for first in range(0, width, step):
                count = min(step, width - first)
                if self.fortran_order:
                    yield rows[0](first * height, count * height).reshape(count, height).T
                    continue
                found = _core.empty((height, count), self.dtype)
                for row, items in enumerate(rows):
                    _fill(found[row], items, row * width + first)
                yield found

    def read(self) -> npt.NDArray[Any]:
        """Return the whole array."""
        check_fits(self)
        with self._open() as items:
            flat = items(0, math.prod(self.shape))
        return flat.reshape(self.shape[::-1]).T if self.fortran_order else flat.reshape(self.shape)


def _fill(out: npt.NDArray[Any], items: Items, first: int) -> None:
    """Read elements from `first` on into an array, by way of small pieces."""
    for begin in range(0, len(out), _PIECE_ITEMS):
        piece = out[begin : begin + _PIECE_ITEMS]
        piece[:] = items(first + begin, len(piece))


def empty_piece(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return uninitialised memory for a piece of an array; small ones come from a pool.

    Otherwise memory that threads allocate stays with the allocator of each thread.
    """
    dtype = np.dtype(dtype)
    if count * dtype.itemsize > MAX_POOLED_BYTES:
        return np.empty(count, dtype)
    return _core.pool_empty(count * dtype.itemsize).view(dtype)


def as_array(values: Any, what: str) -> npt.NDArray[Any]:
    """Return an array, a tensor or a list of numbers as an array that a store can hold."""
    if isinstance(values, np.ndarray) and not values.dtype.hasobject:
        return values  # whose type is checked where it is written
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{what}: is no array of numbers ({error})") from None
    if found.size == 0 and isinstance(values, list | tuple):
        found = found.astype(np.int64)
    if found.dtype.kind not in "biuf" or found.dtype.itemsize > 8:
        raise UsageError(
            f"{what}: {found.dtype} of type {type(values).__name__} cannot be stored; use arrays, "
            "tensors or lists of integers or of floats of at most 64 bits"
        )
    return found


def as_source(values: Any, what: str) -> npt.NDArray[Any] | ArraySource:
    """Return an `ArraySource` as it is, and anything else as `as_array` does."""
    return values if isinstance(values, ArraySource) else as_array(values, what)


def row_bytes(source: ArraySource) -> int:
    """Return the bytes of one row of a source."""
    return source.dtype.itemsize * math.prod(source.shape[1:])


def check_rows(
    source: ArraySource, expected: int | None, what: str = "nodes", hint: str = ""
) -> None:
    """Check that an array has a row for each node or edge; see `check_count`."""
    if not source.shape:
        raise InputError(
            f"{source.label}: is a single value; expected a row for each of the {what}. Remove "
            "it, or call it num_nodes if that is what it is"
        )
    check_count(source.label, source.shape[0], expected, what, hint)


def check_count(
    label: str, num_rows: int, expected: int | None, what: str = "nodes", hint: str = ""
) -> None:
    """Check that there are as many rows as nodes or edges; None: their number is unknown yet."""
    if expected is not None and num_rows != expected:
        raise InputError(
            f"{label}: has {num_rows} rows, but the graph has {expected} {what}; "
            f"{hint or 'each needs exactly one row'}"
        )


def check_fits(source: ArraySource) -> None:
    """Raise if a source is too large to be read whole."""
    num_bytes = source.dtype.itemsize * math.prod(source.shape)
    if num_bytes > _SMALL_BYTES:
        array = Reservation(f"{list(source.shape)} of {source.dtype}", num_bytes)
        memory_ledger(f"{source.label}: reading it whole", None).add(array).check(
            None,
            "convert what is too large to be a split or a label, or lies in Fortran order, to a "
            "smaller array in C order",
        )


def read_one_number(source: ArraySource, what: str) -> int:
    """Return the single non-negative integer that an array holds."""
    values = source.read().reshape(-1) if math.prod(source.shape) == 1 else np.empty(0)
    if values.dtype.kind not in "iu" or values[0] < 0:
        raise InputError(
            f"{source.label}: expected {what}, found {source.dtype} of shape {list(source.shape)}"
        )
    return int(values[0])
