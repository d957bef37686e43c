"""A growing array of rows whose memory is freed in pieces.

Joining a list of small arrays needs their memory twice, since the allocator keeps the memory of
small arrays that are freed. Blocks past 32 MiB are mapped, and unmapped as soon as they are freed,
so that a join needs no more memory than the rows.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.threads import Background

# glibc never raises its threshold for mapping above 32 MiB (mallopt(3), M_MMAP_THRESHOLD).
# Pages of a block that are not written to yet cost nothing.
_BLOCK_BYTES = 33 * 2**20
_THREAD_NAME = "gnnstore-memory"


class RowBlocks:
    """A growing array of rows."""

    def __init__(self, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> None:
        self.dtype = np.dtype(dtype)
        self.row_shape = row_shape
        self.num_rows = 0
        self._blocks: list[npt.NDArray[Any]] = []
        self._last_rows = 0
        self._num_expected = 0
        self._ahead: Background[npt.NDArray[Any]] | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.row_shape)

    def expect(self, num_rows: int) -> None:
        """Announce the number of rows in all: memory for the next ones is prepared ahead."""
        self._num_expected = num_rows

    def append(self, rows: npt.NDArray[Any], dtype: npt.DTypeLike | None = None) -> None:
        """Copy rows [k, *row_shape]; `dtype` becomes the type of these and later ones."""
        if dtype is not None and np.dtype(dtype) != self.dtype:
            self.dtype = np.dtype(dtype)
            self._trim()
        self.num_rows += len(rows)
        while len(rows):
            if not self._blocks or self._last_rows == len(self._blocks[-1]):
                self._blocks.append(self._next_block())
                self._last_rows = 0
            block = self._blocks[-1]
            take = min(len(rows), len(block) - self._last_rows)
            block[self._last_rows : self._last_rows + take] = rows[:take]
            self._last_rows += take
            rows = rows[take:]

    def _next_block(self) -> npt.NDArray[Any]:
        ahead, self._ahead = self._ahead, None
        block = None if ahead is None else ahead.result()
        if block is None or block.dtype != self.dtype:  # a wider type is needed now
            block = _empty_block(self.dtype, self.row_shape)
        left = self._num_expected - sum(map(len, self._blocks)) - len(block)
        if left > 0:
            next_one = partial(_empty_block, self.dtype, self.row_shape, left)
            self._ahead = Background(next_one, _THREAD_NAME)
        return block

    def _trim(self) -> None:
        """Cut the last block off behind its rows."""
        if self._blocks:
            self._blocks[-1] = self._blocks[-1][: self._last_rows]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows in order, block by block."""
        self._trim()
        return iter(self._blocks)

    def drain(self) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Yield (their places, rows) block by block, freeing each."""
        self._trim()
        self._num_expected, self._ahead = 0, None
        self._blocks.reverse()
        begin = 0
        while self._blocks:
            rows = self._blocks.pop()
            yield slice(begin, begin + len(rows)), rows
            begin += len(rows)
            del rows
        self.num_rows = 0

    def front(self, num_rows: int) -> list[npt.NDArray[Any]]:
        """Return the first rows as views of the blocks that hold them."""
        self._trim()
        views = []
        for block in self._blocks:
            if num_rows <= 0:
                break
            views.append(block[:num_rows])
            num_rows -= len(block)
        return views

    def drop(self, num_rows: int) -> None:
        """Drop the first rows; a block is freed when all its rows are dropped."""
        self._trim()
        self._num_expected, self._ahead = 0, None
        self.num_rows -= num_rows
        whole = 0
        while num_rows and num_rows >= len(self._blocks[whole]):
            num_rows -= len(self._blocks[whole])
            whole += 1
        del self._blocks[:whole]
        if num_rows:
            self._blocks[0] = self._blocks[0][num_rows:]
        self._last_rows = len(self._blocks[-1]) if self._blocks else 0

    def joined(self) -> npt.NDArray[Any]:
        """Return all rows in one array [num_rows, *row_shape], and free the blocks."""
        values = np.empty((self.num_rows, *self.row_shape), self.dtype)
        for place, rows in self.drain():
            values[place] = rows
        return values


def _empty_block(
    dtype: np.dtype[Any], row_shape: tuple[int, ...], num_ready: int = 0
) -> npt.NDArray[Any]:
    """Return a block with memory for the first `num_ready` rows already mapped."""
    row_bytes = dtype.itemsize * math.prod(row_shape)
    block = np.empty((max(1, _BLOCK_BYTES // max(1, row_bytes)), *row_shape), dtype)
    if num_ready:
        block[:num_ready].reshape(-1).view(np.uint8)[:: mmap.PAGESIZE] = 0
    return block
