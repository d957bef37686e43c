"""Arrays made of other arrays or functions: joined, mapped, as whole numbers, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.source import (
    ArraySource,
    check_rows,
    row_bytes,
)
from gnnstore.errors import InputError

_STEP_ROWS = 2**20
_STEP_BYTES = 2**23


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
        self._parts = parts

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time, never across a part's end."""
        for part in self._parts:
            if start < part.shape[0]:
                yield from part.rows(step, start)
            start = max(0, start - part.shape[0])


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


class FloatLabels(MappedRows):
    """Labels as int64, or as float32 if some are fractions, NaN or beyond int64.

    Public data sets store class numbers as float32 to have NaN for nodes without one. Where every
    node has a class they are integers, as a loss expects.
    """

    def __init__(self, source: ArraySource) -> None:
        is_whole = source.dtype.kind != "f" or all(map(_is_whole, source.rows(_STEP_ROWS)))
        super().__init__(source, self._cast, dtype=np.int64 if is_whole else np.float32)

    def _cast(self, values: npt.NDArray[Any], first: int) -> npt.NDArray[Any]:
        with np.errstate(over="ignore"):
            found = values.astype(self.dtype, copy=False)
        is_unsigned = values.dtype.kind == "u"
        lost = found < 0 if is_unsigned else np.isfinite(values) & ~np.isfinite(found)
        if lost.any():
            at = np.argwhere(lost)[0]
            raise InputError(
                f"{self.label}: row {first + int(at[0])}: {values[tuple(at)]} overflows "
                f"{self.dtype}; labels are stored as int64 or float32"
            )
        return found


def _is_whole(values: npt.NDArray[Any]) -> bool:
    # NaN is unequal to itself; an infinity is not a class, and would not fit int64.
    return bool(np.all((values == np.rint(values)) & (np.abs(values) < np.float64(2**63))))


class RowTaker:
    """Returns the rows of an array in pieces of any size."""

    def __init__(self, source: ArraySource) -> None:
        check_rows(source, None, "edges")
        self.source = source
        self._pieces = source.rows(max(1, _STEP_BYTES // max(1, row_bytes(source))))
        self._pending: list[npt.NDArray[Any]] = []
        self._num_pending = 0
        self._num_taken = 0

    def take(self, num_rows: int) -> npt.NDArray[Any]:
        """Return the next rows [num_rows, ...]."""
        self._num_taken += num_rows
        if self._num_taken > self.source.shape[0]:
            check_rows(self.source, self._num_taken, "edges or more")
        while self._num_pending < num_rows:
            self._pending.append(next(self._pieces))
            self._num_pending += len(self._pending[-1])
        empty = np.empty((0, *self.source.shape[1:]), self.source.dtype)
        rows = (
            self._pending[0] if len(self._pending) == 1 else np.concatenate([empty, *self._pending])
        )
        self._pending = [rows[num_rows:]]
        self._num_pending -= num_rows
        return rows[:num_rows]

    def finish(self, num_edges: int) -> None:
        """Raise unless all rows were taken; read to the end, where sources are checked."""
        check_rows(self.source, num_edges, "edges")
        for _ in self._pieces:
            pass
