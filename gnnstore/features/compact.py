"""Tables of integers in memory, in as few bytes as their values need.

Labels are int64 for PyTorch's sake, and hardly ever have more than 256 values. Held in memory
while features are on disk, they take the place of cached rows: with 16 million
nodes, 134 MB, or 17 in a byte each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from gnnstore import _core
from gnnstore._core import empty
from gnnstore.features.source import RowSource, RowSpec
from gnnstore.features.tables import MemoryRows

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gnnstore._core import ReadCounts
    from gnnstore.formats.arrays.paged_array import PagedArray


# Wider rows are features, of which hardly any are integers: a search for them would read twice.
MAX_ROW_BYTES = 64


def held_row_bytes(array: PagedArray) -> int:
    """Return the bytes of a row of a stored array in memory."""
    row_bytes = array.geometry.row_bytes
    if row_bytes > MAX_ROW_BYTES:
        return row_bytes
    return row_bytes // array.dtype.itemsize * array.narrowest_dtype.itemsize


@dataclass(frozen=True, eq=False)
class CompactRows(RowSource):
    """A table of integers in memory that are narrower than in a batch."""

    table: MemoryRows
    dtype: np.dtype[Any]  # of the rows that are read

    @classmethod
    def load(cls, array: PagedArray) -> Self:
        """Load a stored array a piece at a time, so that memory never holds it in full width."""
        narrow, shape = array.narrowest_dtype, (array.num_rows, *array.row_shape)
        table = _core.pool_empty(math.prod(shape) * narrow.itemsize).view(narrow).reshape(shape)
        for first, piece in array.pieces():
            table[first : first + len(piece)] = piece
        return cls(MemoryRows(table), array.dtype)

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
