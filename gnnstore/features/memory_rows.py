"""Rows in memory: as wide as in a batch, or narrower."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts, empty
from gnnstore.features.source import Decoding, RowRequest, RowSource, RowSpec
from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.machine import PRIVATE, Machine


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
        return self._copy(ids, out)

    def read_decoded(
        self, request: RowRequest, decoding: Decoding, out: npt.NDArray[Any]
    ) -> ReadCounts:
        """Decode the rows of a request to `out`."""
        if request.slots is not None:
            return super().read_decoded(request, decoding, out)
        return self._copy(request.ids, out, decoding)

    def _copy(
        self, ids: npt.NDArray[Any], out: npt.NDArray[Any], decoding: Decoding | None = None
    ) -> ReadCounts:
        spec = self.spec
        return copy_rows(
            self._body,
            ids,
            out,
            decoding,
            num_rows=spec.num_rows,
            row_bytes=spec.row_bytes,
            rows_per_page=1,
            page_stride_bytes=spec.row_bytes,
        )

    @cached_property
    def _body(self) -> npt.NDArray[np.uint8]:
        return self.table.reshape(-1).view(np.uint8)


@dataclass(frozen=True, eq=False)
class CompactRows(RowSource):
    """A table of integers in memory, narrower than in a batch.

    Labels are int64 for PyTorch's sake, and few have more than 256 values: of 16 million nodes they
    take 17 MB instead of 134, which cached rows have then.
    """

    table: MemoryRows
    dtype: np.dtype[Any]  # of the rows that are read

    @classmethod
    def load(cls, array: PagedArray, machine: Machine = PRIVATE) -> Self:
        """Load a stored array a piece at a time, so that memory never holds it in full width."""
        narrow, shape = array.narrowest_dtype, (array.num_rows, *array.row_shape)

        def fill(out: npt.NDArray[np.uint8]) -> None:
            table = out.view(narrow).reshape(shape)
            for first, piece in array.pieces():
                table[first : first + len(piece)] = piece

        found = machine.share(array.key(narrow), math.prod(shape) * narrow.itemsize, fill)
        return cls(MemoryRows(found.view(narrow).reshape(shape)), array.dtype)

    @cached_property
    def spec(self) -> RowSpec:
        """The rows as they are read."""
        held = self.table.spec
        return RowSpec(held.num_rows, held.shape, self.dtype)

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the table occupies."""
        return self.table.resident_bytes

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Copy the rows of `ids` to `out`, widened."""
        spec = self.table.spec
        rows = empty((len(ids), *spec.shape), spec.dtype)
        counts = self.table.read_rows(ids, rows)
        out.reshape(-1).view(self.dtype)[:] = rows.reshape(-1)
        return counts


def copy_rows(
    body: npt.NDArray[np.uint8],
    ids: npt.NDArray[Any],
    out: npt.NDArray[Any],
    decoding: Decoding | None = None,
    **options: int,
) -> ReadCounts:
    """Copy rows of a table in memory, or mapped, as they are or decoded."""
    if out.size:
        target = out.reshape(-1).view(np.uint8)
        if decoding is None:
            _core.gather_rows(body, ids, target, **options)
        else:
            scales, dtype = decoding.by_column, decoding.dtype
            _core.gather_decoded(body, ids, scales, target, dtype=dtype, **options)
    return ReadCounts()
