"""A paged array of an open store: where its rows lie, and plain ways to read them.

Reads here are for structure, labels and looking around. Training reads rows through the
engines of `gnnstore.disk`, which use the same geometry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, InputError, StorageError, storage_error
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.pages import PageGeometry, ShardLayout
from gnnstore.formats.arrays.spec import AttributeSpec

Advice = Literal["normal", "random", "sequential"]


@dataclass(frozen=True)
class PagedArray:
    """Rows of one shape and type in shards of raw pages."""

    spec: AttributeSpec  # name, element type, shape
    layout: ShardLayout  # page geometry and the cut into shards
    file_paths: tuple[Path, ...]  # the shards, in order
    # Called when the shards have been opened; raises if they are not this array's.
    check_place: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    _maps: dict[Advice, npt.NDArray[np.uint8]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def geometry(self) -> PageGeometry:
        """Row and page sizes."""
        return self.layout.geometry

    @property
    def place(self) -> dict[str, Any]:
        """The kernels' arguments for the place of rows in the shards' bodies."""
        return {
            "num_rows": self.num_rows,
            "row_bytes": self.geometry.row_bytes,
            "rows_per_page": self.geometry.rows_per_page,
            "page_stride_bytes": self.geometry.page_stride_bytes,
        }

    @property
    def num_rows(self) -> int:
        """Length of the row axis."""
        return self.layout.num_rows

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.spec.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy type of the stored elements; uint16 for bfloat16."""
        return STORAGE_DTYPES[self.spec.dtype]

    @cached_property
    def narrowest_dtype(self) -> np.dtype[Any]:
        """The smallest type that has all values; reads them once if they are integers."""
        if self.dtype.kind not in "iu" or self.dtype.itemsize == 1:
            return self.dtype
        least = greatest = 0
        for _, piece in self.pieces():
            least = min(least, int(piece.min(initial=0)))
            greatest = max(greatest, int(piece.max(initial=0)))
            if greatest >> 4 * self.dtype.itemsize:  # more than half of the bits
                return self.dtype
        kind = "i" if least < 0 else "u"
        narrower = (np.iinfo(f"{kind}{n}") for n in (1, 2, 4) if n < self.dtype.itemsize)
        fits = (info.dtype for info in narrower if info.min <= least and greatest <= info.max)
        return next(fits, self.dtype)

    @property
    def body_bytes(self) -> list[int]:
        """Bytes of raw pages at the start of each shard."""
        return [self.layout.shard_body_bytes(shard) for shard in range(self.layout.num_shards)]

    @property
    def disk_bytes(self) -> int:
        """Bytes of all shards, padding and indexes included."""
        return sum(self.layout.shard_file_bytes(s) for s in range(self.layout.num_shards))

    def map(self, advice: Advice = "random") -> npt.NDArray[np.uint8]:
        """Map the bodies of all shards, one behind the other, read-only.

        Row i starts at byte `geometry.offset(i)`.
        """
        with self._lock:
            mapped = self._maps.get(advice)
            if mapped is None:
                try:
                    mapped = _core.map_files(
                        [str(path) for path in self.file_paths], self.body_bytes, advice
                    )
                except OSError as error:
                    raise self._storage_error(error, "map") from error
                self.check_place()
                self._maps[advice] = mapped
            return mapped

    def view(self, advice: Advice = "random") -> npt.NDArray[Any]:
        """Return the array [rows, *row_shape] as a view of the mapping."""
        if not self.geometry.is_exact:
            raise InputError(
                f"{self.spec.path}: rows of {self.geometry.row_bytes} bytes do not fill their "
                f"pages of {self.geometry.page_bytes}; use gather() or load()"
            )
        used = self.num_rows * self.geometry.row_bytes
        return self.map(advice)[:used].view(self.dtype).reshape(self.spec.shape)

    def load(self, num_threads: int = 1) -> npt.NDArray[Any]:
        """Read the whole array into memory, densely, on huge pages."""
        dense = _core.pool_empty(self.num_rows * self.geometry.row_bytes)
        try:
            _core.read_pages(
                [str(path) for path in self.file_paths],
                self.body_bytes,
                dense,
                **self.place,
                num_threads=num_threads,
            )
        except OSError as error:
            raise self._storage_error(error, "read") from error
        self.check_place()
        return dense.view(self.dtype).reshape(self.spec.shape)

    def gather(self, ids: npt.ArrayLike, num_threads: int = 1) -> npt.NDArray[Any]:
        """Copy rows out of the mapping."""
        wanted = np.asarray(ids)
        if wanted.size == 0:
            wanted = wanted.astype(np.int64)
        if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
            raise InputError(
                f"{self.spec.path}: rows are chosen by a one-dimensional array of integers, "
                f"found shape {list(wanted.shape)} {wanted.dtype}"
            )
        wanted = np.ascontiguousarray(wanted, dtype=np.int64)
        out = _core.pool_empty(len(wanted) * self.geometry.row_bytes)
        try:
            _core.gather_rows(
                self.map(),
                wanted,
                out,
                **self.place,
                num_threads=num_threads,
            )
        except IndexError as error:
            raise InputError(f"{self.spec.path}: {error}") from None
        return out.view(self.dtype).reshape(len(wanted), *self.row_shape)

    def read_slice(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Copy consecutive rows out of a sequential mapping; for scans."""
        geometry = self.geometry
        per_run, stride = geometry.rows_per_page, geometry.page_stride_bytes
        first, last = start // per_run, geometry.num_runs(stop)
        runs = self.map("sequential")[first * stride : last * stride].reshape(-1, stride)
        rows = runs[:, : per_run * geometry.row_bytes].reshape(-1, geometry.row_bytes)
        rows = np.ascontiguousarray(rows[start - first * per_run : stop - first * per_run])
        return rows.view(self.dtype).reshape(stop - start, *self.row_shape)

    def pieces(self, num_bytes: int = 4 << 20) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield the first row and a copy of consecutive rows, until all rows were yielded."""
        step = max(1, num_bytes // max(1, self.geometry.row_bytes))
        for first in range(0, self.num_rows, step):
            yield first, self.read_slice(first, min(first + step, self.num_rows))

    def open_files(self, *, direct: bool = False) -> _core.FileSet:
        """Open the files of the array's rows; `direct` reads past the page cache."""
        try:
            files = _core.FileSet(self.file_paths, self.body_bytes, direct=direct)
        except OSError as error:
            raise self._storage_error(error, "open") from error
        self.check_place()
        return files

    def _storage_error(self, error: OSError, doing: str) -> StorageError | CorruptStoreError:
        self.check_place()  # raises a better message
        where = error.filename or (self.file_paths[0] if self.file_paths else self.spec.path)
        return storage_error(error, f"{doing} the array {self.spec.path!r}", where)


@dataclass(frozen=True, kw_only=True)
class SharedArray(PagedArray):
    """Rows that another array has, in an order of its own: its layout and files are the other's."""

    rows: PagedArray  # int32 or int64 [rows]: the row of each in the other array

    def load(self, num_threads: int = 1) -> npt.NDArray[Any]:
        """Return all rows."""
        return super().gather(self.rows.load(), num_threads)

    def gather(self, ids: npt.ArrayLike, num_threads: int = 1) -> npt.NDArray[Any]:
        """Copy rows out of the mapping of the other array."""
        return super().gather(self.rows.gather(ids, num_threads), num_threads)

    def read_slice(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Copy consecutive rows, which lie anywhere in the other array."""
        return super().gather(self.rows.read_slice(start, stop))
