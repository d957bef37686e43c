"""Arrays that lie in a store, read from their files in order.

A mapping would be simpler, but pages that were touched would count as memory of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.source import empty_piece
from gnnstore.converters.spill_files import read_exactly
from gnnstore.formats.arrays.paged_array import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec


class ReadArray:
    """A paged array whose rows are read from its files."""

    def __init__(self, array: PagedArray) -> None:
        self._array = array

    @property
    def spec(self) -> AttributeSpec:
        """Name, element type, shape."""
        return self._array.spec

    def pieces(self, num_bytes: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield the first row and consecutive rows, until all rows were yielded."""
        num_rows = self._array.num_rows
        step = max(1, num_bytes // max(1, self._array.geometry.row_bytes))
        for first in range(0, num_rows, step):
            yield first, self.read_slice(first, min(first + step, num_rows))

    def read_slice(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Read rows start, ..., stop - 1."""
        return read_rows(self._array, start, stop, partial(read_exactly, what="the array"))


def read_rows(
    array: PagedArray,
    first: int,
    last: int,
    fill: Callable[[Path, int, npt.NDArray[np.uint8]], None],
) -> npt.NDArray[Any]:
    """Read rows first, ..., last - 1; `fill` reads bytes of a file from an offset on."""
    geometry, shard_rows = array.geometry, array.layout.shard_rows
    per_run, stride, row_bytes = (
        geometry.rows_per_page,
        geometry.page_stride_bytes,
        geometry.row_bytes,
    )
    out = empty_piece((last - first) * row_bytes, np.uint8).reshape(last - first, row_bytes)
    done = first
    while done < last:
        shard, row = divmod(done, shard_rows)
        count = min(last - done, shard_rows - row)
        here, path = out[done - first :][:count], array.file_paths[shard]
        if geometry.is_exact:
            fill(path, geometry.offset(row), here.reshape(-1))
        else:
            begin, end = row // per_run, geometry.num_runs(row + count)
            runs = empty_piece((end - begin) * stride, np.uint8).reshape(end - begin, stride)
            fill(path, begin * stride, runs.reshape(-1))
            rows = runs[:, : per_run * row_bytes].reshape(-1, row_bytes)
            here[:] = rows[row - begin * per_run :][:count]
        done += count
    return out.reshape(-1).view(array.dtype).reshape(last - first, *array.row_shape)
