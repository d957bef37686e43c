"""Rows by id: one question ("these rows, please") over every place that rows may lie.

A loader asks a `RowSource` and does not know whether the table is in memory or mapped from
disk, whether its pages are padded, or what its elements mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.disk.buffers import empty
from gnnstore.disk.counts import NO_READS, ReadCounts
from gnnstore.formats.arrays.paged_array import PagedArray

# A page fault blocks the thread that takes it, so a mapping is read faster by more threads
# than there are cores. A batch of 136,000 rows, none of them cached, two batches at a time,
# on a disk of 100,000 reads a second: 3.9 s with 1 thread, 0.54 s with 4, 0.27 s with 16,
# 0.21 s with 32. What they cost when every page is cached: half a millisecond.
MAX_FAULT_THREADS = 32
MIN_ROWS_PER_FAULT_THREAD = 512


class Gathered(NamedTuple):
    """Rows as they were asked for, and what reading them took."""

    rows: npt.NDArray[Any]
    counts: ReadCounts


class RowSource(Protocol):
    """A table of N rows that can be gathered by id. Safe to use from many threads at once."""

    @property
    def num_rows(self) -> int:
        """Rows in the table."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's values."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the table itself occupies."""

    def gather(self, ids: npt.NDArray[Any]) -> Gathered:
        """Return the rows of `ids` (int32 or int64 [n]) as a new array [n, *row_shape]."""


@dataclass(frozen=True, eq=False)
class _PagedRows:
    """Rows laid out in a body of bytes; where each lies is the format's page arithmetic."""

    body: npt.NDArray[np.uint8]
    num_rows: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows_per_page: int
    page_stride_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's values."""
        return math.prod(self.row_shape) * self.dtype.itemsize

    def _gather(self, ids: npt.NDArray[Any], num_threads: int) -> Gathered:
        out = empty((ids.size, *self.row_shape), self.dtype)
        if out.nbytes:
            _core.gather_rows(
                self.body,
                ids,
                out.reshape(-1).view(np.uint8),
                num_rows=self.num_rows,
                row_bytes=self.row_bytes,
                rows_per_page=self.rows_per_page,
                page_stride_bytes=self.page_stride_bytes,
                num_threads=num_threads,
            )
        return Gathered(out, NO_READS)


class MemoryRows(_PagedRows):
    """A dense table in memory: a whole attribute, one row behind the other."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the table occupies: all of it."""
        return self.body.nbytes

    @classmethod
    def from_array(cls, table: npt.NDArray[Any]) -> Self:
        """View an array [N, ...]; a copy is made only where it is not C-contiguous."""
        dense = np.ascontiguousarray(table)
        row_bytes = math.prod(dense.shape[1:]) * dense.itemsize
        body = dense.reshape(-1).view(np.uint8)
        return cls(body, len(dense), dense.shape[1:], dense.dtype, 1, row_bytes)

    @classmethod
    def load(cls, array: PagedArray, num_threads: int) -> Self:
        """Read a stored array into a huge-page buffer, dropping the padding of its pages."""
        return cls.from_array(array.load(num_threads))

    def gather(self, ids: npt.NDArray[Any]) -> Gathered:
        """Return the rows of `ids` (int32 or int64 [n]) as a new array [n, *row_shape].

        One thread: a loader prepares several batches side by side instead.
        """
        return self._gather(ids, 1)


@dataclass(frozen=True, eq=False)
class MappedRows(_PagedRows):
    """A stored table, mapped: the operating system reads a page when a row of it is touched."""

    array: PagedArray

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the table occupies: none that the system cannot take back."""
        return 0

    @classmethod
    def map(cls, array: PagedArray) -> Self:
        """Map a stored array, telling the system not to read around what is touched."""
        geometry = array.geometry
        return cls(
            array.map("random"),
            array.num_rows,
            array.row_shape,
            array.dtype,
            geometry.rows_per_page,
            geometry.page_stride_bytes,
            array,
        )

    def gather(self, ids: npt.NDArray[Any]) -> Gathered:
        """Return the rows of `ids` (int32 or int64 [n]) as a new array [n, *row_shape].

        Several threads share one call, so that their page faults overlap.

        Raises
        ------
        StorageError
            If a file has been truncated since it was mapped.
        """
        self.array.check_mapped_files()
        wanted = ids.size // MIN_ROWS_PER_FAULT_THREAD
        return self._gather(ids, max(1, min(MAX_FAULT_THREADS, wanted)))
