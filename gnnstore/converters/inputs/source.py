"""Arrays read in pieces: the interface between input files and converters.

The arrays of a large graph do not fit in memory: a source may be a file, a member of an archive, a
table of text, several such files, or a function of other arrays. Reading, decompressing and parsing
release the interpreter's lock for most of their time, so that a thread per piece overlaps them.
Threads live no longer than their piece. Unlike with `threads.ordered_map`, a conversion goes on,
without overlap, where no thread can be started.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.errors import InputError, UsageError
from gnnstore.threads import Background
from gnnstore.units import format_count

EXACT_IN_FLOAT32, EXACT_IN_FLOAT64 = 2**24, 2**53  # least whole numbers that are rounded
_SMALL_BYTES = 2**26  # bytes of arrays that are read without asking for free memory
_PIECE_ITEMS = 2**18  # elements that are read at a time into an array that is there
Items = Callable[[int, int], npt.NDArray[Any]]  # returns elements: the first, and their number
_STEP_ROWS = 2**20
_PIECE_BYTES = 2**23
T = TypeVar("T")
R = TypeVar("R")
_THREAD_NAME = "gnnstore-convert"


class ArraySource(ABC):
    """An array that can be read in order, a piece at a time, any number of times."""

    label: str  # name for messages: "graph.npz: x"
    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # element type, in native byte order
    memory_bytes: int = 0  # the peak memory of reading, where that is not little
    time_unit: str | None = None  # of times since 1970, where the input states it

    @abstractmethod
    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the array along its first axis from row `start` on, at most `step` at a time."""

    def place_of(self, row: int) -> tuple[str, int]:
        """Return the file of a row, for messages, and the number of the row in the file."""
        return self.label, row

    def pieces(self, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, 8 MiB at a time."""
        return self.rows(max(1, _PIECE_BYTES // max(1, row_bytes(self))), start)

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
        for piece in self.pieces():
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


def as_array(values: Any, what: str) -> npt.NDArray[Any]:
    """Return an array, a tensor or a list of numbers as an array that a store can hold."""
    if isinstance(values, np.ndarray) and not values.dtype.hasobject:
        return values  # their type is checked where they are written
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{what}: is not an array of numbers ({error})") from None
    if found.size == 0 and isinstance(values, list | tuple):
        found = found.astype(np.int64)
    if found.dtype.kind not in "biuf" or found.dtype.itemsize > 8:
        raise UsageError(
            f"{what}: {found.dtype} of type {type(values).__name__} cannot be stored; use arrays, "
            "tensors or lists of integers or of floats of at most 64 bits"
        )
    return found


def as_source(values: Any, what: str) -> ArraySource:
    """Return an `ArraySource` as it is, and anything else as a source of `as_array`."""
    return values if isinstance(values, ArraySource) else MemoryArray(what, as_array(values, what))


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
            f"{label}: has {format_count(num_rows, 'row')}, but the graph has {expected:,} {what}; "
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


class JoinedArrays(ArraySource):
    """Arrays of like rows, joined along their first axis."""

    def __init__(self, parts: Sequence[ArraySource]) -> None:
        first = parts[0]
        for part in parts:
            if part.shape[1:] != first.shape[1:] or not part.shape or part.dtype != first.dtype:
                raise InputError(
                    f"{part.label}: is {part.dtype} {list(part.shape)}, but {first.label} "
                    f"{first.dtype} {list(first.shape)}; files of one array need rows of the same "
                    "shape and type"
                )
        self.label = f"{first.label} to {parts[-1].label}"
        self.shape: tuple[int, ...] = (sum(part.shape[0] for part in parts), *first.shape[1:])
        self.dtype = first.dtype
        self.memory_bytes = max(part.memory_bytes for part in parts)
        self._parts = parts

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time, never across a part's end."""
        for part in self._parts:
            if start < part.shape[0]:
                yield from part.rows(step, start)
            start = max(0, start - part.shape[0])


def joined(parts: Sequence[ArraySource]) -> ArraySource:
    """Return arrays of like rows as one."""
    return parts[0] if len(parts) == 1 else JoinedArrays(parts)


class MappedRows(ArraySource):
    """A function of the rows of another array, and of the number of the first one."""

    def __init__(
        self,
        source: ArraySource,
        function: Callable[[npt.NDArray[Any], int], npt.NDArray[Any]],
        *,
        row_shape: tuple[int, ...] | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        self.label = source.label
        tail = source.shape[1:] if row_shape is None else row_shape
        self.shape: tuple[int, ...] = (*source.shape[:1], *tail)
        self.dtype = source.dtype if dtype is None else np.dtype(dtype)
        self._source = source
        self._function = function

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time."""
        for piece in self._source.rows(step, start):
            yield self._function(piece, start)
            start += len(piece)


class GeneratedRows(ArraySource):
    """Rows that are a function of the numbers of the first one and of the one behind the last."""

    def __init__(
        self,
        label: str,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        generate: Callable[[int, int], npt.NDArray[Any]],
    ) -> None:
        self.label = label
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._generate = generate

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time."""
        for first in range(start, self.shape[0], step):
            yield self._generate(first, min(first + step, self.shape[0]))


def cut_rows(
    blocks: Iterable[npt.NDArray[Any]], step: int, start: int
) -> Iterator[npt.NDArray[Any]]:
    """Yield the rows of blocks of any size from row `start` on, at most `step` at a time."""
    for block in blocks:
        for first in range(start, len(block), step):
            yield block[first : first + step]
        start = max(0, start - len(block))


def as_float32(values: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """Return numbers as float32, or as they are if that changed one of 2^24 or more."""
    return values if rounds(values).any() else values.astype(np.float32)


def rounds(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which numbers float32 rounds before the point, such as times in seconds.

    Smaller ones may lose digits behind the point.
    """
    if values.dtype.kind == "f" and values.dtype.itemsize <= 4:
        return np.zeros(values.shape, np.bool_)
    with np.errstate(over="ignore"):
        is_changed = values.astype(np.float32) != values
    if values.dtype.kind in "iu":  # which are compared as float64
        is_changed |= np.abs(values) > EXACT_IN_FLOAT64
    found: npt.NDArray[np.bool_] = is_changed & np.isfinite(values)
    found &= np.abs(values) >= EXACT_IN_FLOAT32
    return found


class FloatLabels(MappedRows):
    """Labels as int64, or, if some are fractions, NaN or beyond int64, as float32 or float64.

    Public data sets store class numbers as float32 to have NaN for nodes without one. Where every
    node has a class they are integers, as a loss expects. float64 is for what float32 rounds.
    """

    def __init__(self, source: ArraySource) -> None:
        is_whole, is_wide = True, False
        for rows in source.rows(_STEP_ROWS) if source.dtype.kind == "f" else ():
            is_whole &= _is_whole(rows)
            is_wide |= bool(rounds(rows).any())
            if is_wide and not is_whole:
                break
        dtype = np.int64 if is_whole else np.float64 if is_wide else np.float32
        super().__init__(source, self._cast, dtype=dtype)

    def _cast(self, values: npt.NDArray[Any], first: int) -> npt.NDArray[Any]:
        with np.errstate(over="ignore"):
            found = values.astype(self.dtype, copy=False)
        is_unsigned = values.dtype.kind == "u"
        lost = found < 0 if is_unsigned else np.isfinite(values) & ~np.isfinite(found)
        if lost.any():
            at = np.argwhere(lost)[0]
            raise InputError(
                f"{self.label}: row {first + int(at[0])}: {values[tuple(at)]} overflows "
                f"{self.dtype}; labels are stored as int64, float32 or float64"
            )
        return found


def _is_whole(values: npt.NDArray[Any]) -> bool:
    # NaN is unequal to itself; an infinity is not a class, and would not fit int64.
    return bool(np.all((values == np.rint(values)) & (np.abs(values) < np.float64(2**63))))


class RowTaker:
    """Returns the rows of an array in pieces of any size."""

    def __init__(self, source: ArraySource, num_bytes: int = _PIECE_BYTES) -> None:
        check_rows(source, None, "edges")
        self.source = source
        self._pieces = source.rows(max(1, num_bytes // max(1, row_bytes(source))))
        self._pending = np.empty((0, *source.shape[1:]), source.dtype)
        self._num_taken = 0

    def take(self, num_rows: int) -> npt.NDArray[Any]:
        """Return the next rows [num_rows, ...]."""
        self._num_taken += num_rows
        if self._num_taken > self.source.shape[0]:
            check_rows(self.source, self._num_taken, "edges or more")
        while (rows := self._pending).shape[0] < num_rows:
            piece = next(self._pieces)
            self._pending = np.concatenate([rows, piece]) if len(rows) else piece
        self._pending = rows[num_rows:]
        return rows[:num_rows]

    def check_end(self, num_edges: int) -> None:
        """Raise unless all rows were taken; read to the end, where sources are checked."""
        check_rows(self.source, num_edges, "edges")
        for _ in self._pieces:
            pass


_END: Any = object()


def num_threads() -> int:
    """Return the number of pieces to work on at a time: our processors, at most 8."""
    return min(8, len(os.sched_getaffinity(0)))


def read_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items of an iterable, making the next item while one is in use."""
    iterator = iter(items)
    task: Background[T] = Background(partial(next, iterator, _END), _THREAD_NAME)
    while (item := task.result()) is not _END:
        task = Background(partial(next, iterator, _END), _THREAD_NAME)
        yield item
        del item
    _core.release_memory()  # later allocations have other sizes


def map_in_order(
    function: Callable[[T], R], items: Iterable[T], threads: int
) -> Generator[R, None, None]:
    """Yield function(item) for each item, in order, with up to `threads` calls at a time.

    The items themselves are made by the caller's thread, between the results it takes.
    """
    waiting: deque[Background[R]] = deque()
    for item in items:
        waiting.append(Background(partial(function, item), _THREAD_NAME))
        if len(waiting) > threads:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
