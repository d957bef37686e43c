"""Arrays that lie in a store, read from their files in order.

A mapping would be simpler, but pages that were touched would count as memory of the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import CorruptStoreError, storage_errors
from gnnstore.formats.arrays.paged_array import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container.files import fill_at
from gnnstore.formats.container.regular_files import open_binary


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
        array = self._array
        geometry, shard_rows = array.geometry, array.layout.shard_rows
        per_run, stride = geometry.rows_per_page, geometry.page_stride_bytes
        out = np.empty((stop - start, geometry.row_bytes), np.uint8)
        done = start
        while done < stop:
            shard, row = divmod(done, shard_rows)
            count = min(stop - done, shard_rows - row)
            first, last = row // per_run, geometry.num_runs(row + count)
            runs = self._read(shard, first * stride, (last - first) * stride).reshape(-1, stride)
            rows = runs[:, : per_run * geometry.row_bytes].reshape(-1, geometry.row_bytes)
            out[done - start :][:count] = rows[row - first * per_run :][:count]
            done += count
        return out.reshape(-1).view(array.dtype).reshape(stop - start, *array.row_shape)

    def _read(self, shard: int, offset: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        path = self._array.file_paths[shard]
        found = np.empty(num_bytes, np.uint8)
        with (
            storage_errors("read the array", path),
            open_binary(path, error=CorruptStoreError, root=path.parent) as file,
        ):
            count = fill_at(file.fileno(), found.data, offset)
        if count < num_bytes:
            raise CorruptStoreError(f"{path}: ends early, at byte {offset + count}", path=path)
        return found
