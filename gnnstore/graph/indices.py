"""In-neighbours read from disk: `indices` as a table whose rows are single node ids."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts, empty
from gnnstore.disk.engines import Engine
from gnnstore.errors import CorruptStoreError
from gnnstore.features.source import RowSource
from gnnstore.features.tables import open_rows
from gnnstore.formats.arrays.paged import PagedArray

# A pass takes pieces of this many ids: 8 or 16 MB, read in pieces of 1 MB side by side. A
# multiple of any page, so that pieces go straight to where they are wanted.
SCAN_IDS = 1 << 21


class IndexRows:
    """The `indices` of a graph on disk. Thread-safe.

    `fetch` is what `gnnstore.sampling.DiskNeighborSampler` needs.
    """

    def __init__(self, rows: RowSource) -> None:
        files = rows.file_rows
        assert files is not None  # noqa: S101 - an engine reads files
        array = files.array
        if not array.geometry.is_exact or array.row_shape != ():
            raise CorruptStoreError(
                f"the array {array.spec.path!r} is no vector of node ids: found rows of "
                f"shape {list(array.row_shape)}, {files.row_bytes} bytes each, in pages of "
                f"{array.geometry.page_bytes}"
            )
        self._files = files
        self._rows = rows
        self._counts = ReadCounts()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, array: PagedArray, engine: Engine) -> Self:
        """Open the files of a stored array of node ids."""
        return cls(open_rows(array, engine))

    @property
    def num_edges(self) -> int:
        """Ids in the array."""
        return self._files.num_rows

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an id: int32 or int64."""
        return self._files.array.dtype

    @property
    def counts(self) -> ReadCounts:
        """Reads of all calls so far; a row is one id."""
        return self._counts

    def fetch(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Read the ids at some positions: [n], in the order of the positions."""
        gathered = self._rows.gather(positions)
        self._count(gathered.counts)
        return gathered.values

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Read the ids at positions start ... stop - 1, in large reads: [stop - start]."""
        out = empty((stop - start,), self.dtype)
        self._count(self._rows.read_range(start, out))
        return out

    def scan(self) -> Iterator[npt.NDArray[Any]]:
        """Read all ids in order, in pieces of up to `SCAN_IDS`."""
        for start in range(0, self.num_edges, SCAN_IDS):
            yield self.read(start, min(start + SCAN_IDS, self.num_edges))

    def _count(self, counts: ReadCounts) -> None:
        with self._lock:
            self._counts += counts
