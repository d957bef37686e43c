"""Paged arrays: rows of one shape and type in shards of raw pages, how they are read and written.

Reads here are for structure, labels and looking around. Training reads rows through the
engines of `gnnstore.disk`, which use the same geometry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, InputError, StorageError, storage_error
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES, storage_dtype
from gnnstore.formats.arrays.journal import Journal
from gnnstore.formats.arrays.pages import PageGeometry, ShardLayout, plan_shards
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.arrays.zarr_metadata import (
    METADATA_FILE,
    paged_metadata,
    shard_index,
    shard_name,
)
from gnnstore.formats.base.files import (
    ChecksummedFile,
    StoredFile,
    page_aligned,
    write_json,
)
from gnnstore.machine import PRIVATE, Machine

Advice = Literal["normal", "random", "sequential"]


@dataclass(frozen=True)
class PagedArray:
    """Rows of one shape and type in shards of raw pages."""

    spec: AttributeSpec  # name, element type, shape
    layout: ShardLayout  # page geometry and the cut into shards
    file_paths: tuple[Path, ...]  # the shards, in order
    # Called when the shards have been opened; raises if they are not this array's.
    check_place: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    uuid: str = ""  # identity of the directory that it lies in; empty while that is written
    _maps: dict[Advice, npt.NDArray[np.uint8]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def geometry(self) -> PageGeometry:
        """Row and page sizes."""
        return self.layout.geometry

    @property
    def kernel_layout(self) -> dict[str, Any]:
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

    def load(self, num_threads: int = 1, machine: Machine = PRIVATE) -> npt.NDArray[Any]:
        """Read the whole array into memory, densely, on huge pages."""
        num_bytes = self.num_rows * self.geometry.row_bytes
        fill = partial(self.read_whole, num_threads=num_threads)
        dense = machine.share(self.key(self.dtype), num_bytes, fill)
        return dense.view(self.dtype).reshape(self.spec.shape)

    def read_whole(self, dense: npt.NDArray[np.uint8], num_threads: int = 1) -> None:
        """Read the whole array, densely, into memory that is there."""
        try:
            _core.read_pages(
                [str(path) for path in self.file_paths],
                self.body_bytes,
                dense,
                **self.kernel_layout,
                num_threads=num_threads,
            )
        except OSError as error:
            raise self._storage_error(error, "read") from error
        self.check_place()

    def key(self, dtype: np.dtype[Any]) -> str:
        """Return the name of the whole array in memory, as elements of a type, on a machine."""
        return self.spec.key(self.uuid, dtype)

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
        self._copy_rows(wanted, out, num_threads)
        return out.view(self.dtype).reshape(len(wanted), *self.row_shape)

    def _copy_rows(
        self, wanted: npt.NDArray[Any], out: npt.NDArray[np.uint8], num_threads: int
    ) -> None:
        try:
            _core.gather_rows(
                self.map(),
                wanted,
                out,
                **self.kernel_layout,
                num_threads=num_threads,
            )
        except IndexError as error:
            raise InputError(f"{self.spec.path}: {error}") from None

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

    def load(self, num_threads: int = 1, machine: Machine = PRIVATE) -> npt.NDArray[Any]:
        """Return all rows."""

        def fill(out: npt.NDArray[np.uint8]) -> None:
            self._copy_rows(np.ascontiguousarray(self.rows.load(), np.int64), out, num_threads)

        num_bytes = self.rows.num_rows * self.geometry.row_bytes
        out = machine.share(self.key(self.dtype), num_bytes, fill)
        return out.view(self.dtype).reshape(self.rows.num_rows, *self.row_shape)

    def gather(self, ids: npt.ArrayLike, num_threads: int = 1) -> npt.NDArray[Any]:
        """Copy rows out of the mapping of the other array."""
        return super().gather(self.rows.gather(ids, num_threads), num_threads)

    def read_slice(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Copy consecutive rows, which lie anywhere in the other array."""
        return super().gather(self.rows.read_slice(start, stop))


# Bytes of two buffers for runs of pages: one is written while the other is filled.
_BUFFER_BYTES = 2 * 2**20


def _zeroed_pages(num_runs: int, run_bytes: int) -> npt.NDArray[np.uint8]:
    return page_aligned(num_runs * run_bytes).reshape(num_runs, run_bytes)


class PagedArrayWriter:
    """Streams the rows of one array into its shards.

    Memory is two buffers of about 2 MiB (or one row, where rows are longer), for arrays of any
    size. Used through `StoreWriter.paged`; not thread-safe.
    """

    def __init__(
        self,
        directory: Path,
        spec: AttributeSpec,
        page_bytes: int | None,
        shard_bytes: int | None,
        journal: Journal | None = None,
        *,
        row_dimension: str | None = None,
    ) -> None:
        self.spec = spec
        self.row_shape = spec.shape[1:]
        self.dtype = storage_dtype(spec.dtype, what=f"the attribute {spec.name!r}")
        row_bytes = self.dtype.itemsize * int(np.prod(self.row_shape, dtype=object))
        self.layout: ShardLayout = plan_shards(
            PageGeometry.for_rows(row_bytes, spec.num_rows, page_bytes), spec.num_rows, shard_bytes
        )
        self._directory = directory
        geometry = self.layout.geometry
        buffer_runs = max(1, _BUFFER_BYTES // geometry.page_stride_bytes)
        # Zeroed once: the pages' tails are never written to and so stay zero.
        self._pages, self._other_pages = (
            _zeroed_pages(buffer_runs, geometry.page_stride_bytes) for _ in range(2)
        )
        self._buffer_rows = 0
        self._rows_done = 0
        self._shard: ChecksummedFile | None = None
        self._journal = journal
        self._dimension_names = spec.dimension_names(row_dimension)
        self.files: list[StoredFile] = []
        if journal is not None:
            self.files = journal.committed_shards(spec, self.layout)
        # Rows, from the first, that an earlier attempt has written.
        self.num_committed_rows = min(spec.num_rows, len(self.files) * self.layout.shard_rows)
        self._runs_flushed = len(self.files) * self.layout.shard_runs

    @property
    def is_complete(self) -> bool:
        """Whether all rows were appended."""
        return self._rows_done == self.spec.num_rows

    @property
    def remaining_bytes(self) -> int:
        """Bytes that are still to be written, buffered rows included."""
        layout = self.layout
        done = len([name for name, _, _ in self.files if name != METADATA_FILE])
        whole = sum(layout.shard_file_bytes(number) for number in range(done, layout.num_shards))
        return whole - (0 if self._shard is None else self._shard.size_bytes)

    def committed(self) -> PagedArray:
        """Return the rows that an earlier attempt has written."""
        num_rows = self.num_committed_rows
        spec = replace(self.spec, shape=(num_rows, *self.row_shape))
        paths = tuple(self._directory / name for name, _, _ in self.files)
        return PagedArray(spec, replace(self.layout, num_rows=num_rows), paths)

    def skip(self, num_rows: int) -> int:
        """Pass over rows that an earlier attempt has written."""
        known = max(0, min(num_rows, self.num_committed_rows - self._rows_done))
        self._rows_done += known
        return known

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Append rows."""
        if rows.shape[1:] != self.row_shape or rows.ndim == 0 or rows.dtype != self.dtype:
            raise InputError(
                f"the attribute {self.spec.name!r} was declared with rows of shape "
                f"{list(self.row_shape)} {self.spec.dtype}, but got {list(rows.shape[1:])} "
                f"{rows.dtype}"
            )
        if self._rows_done + len(rows) > self.spec.num_rows:
            raise InputError(
                f"the attribute {self.spec.name!r} was declared with {self.spec.num_rows} rows, "
                f"but got at least {self._rows_done + len(rows)}"
            )
        rows = rows[self.skip(len(rows)) :]
        if len(rows) == 0:
            return
        self._rows_done += len(rows)
        geometry = self.layout.geometry
        as_bytes = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), geometry.row_bytes)
        per_run = geometry.rows_per_page
        capacity = len(self._pages) * per_run
        while len(as_bytes):
            # One strided view over all rows of the buffer, tails of pages left out.
            slots = self._pages[:, : per_run * geometry.row_bytes].reshape(
                len(self._pages), per_run, geometry.row_bytes
            )
            run, rank = divmod(self._buffer_rows, per_run)
            if rank or len(as_bytes) < per_run:  # complete a run, or begin the last one
                take = min(per_run - rank, len(as_bytes))
                slots[run, rank : rank + take] = as_bytes[:take]
            else:
                runs = min(len(self._pages) - run, len(as_bytes) // per_run)
                take = runs * per_run
                slots[run : run + runs] = as_bytes[:take].reshape(runs, per_run, -1)
            as_bytes = as_bytes[take:]
            self._buffer_rows += take
            if self._buffer_rows == capacity:
                self._flush()

    def _flush(self) -> None:
        geometry = self.layout.geometry
        runs, last_rank = divmod(self._buffer_rows, geometry.rows_per_page)
        if last_rank:  # only at the end: clear what an earlier flush left behind the last row
            self._pages[runs, last_rank * geometry.row_bytes :] = 0
            runs += 1
        self._buffer_rows = 0
        self._write_runs(self._pages[:runs].reshape(-1))
        # The other buffer, written before this one, has reached the disk and can be filled again.
        self._pages, self._other_pages = self._other_pages, self._pages

    def _write_runs(self, pages: npt.NDArray[np.uint8]) -> None:
        """Write whole runs of pages to their shards."""
        geometry = self.layout.geometry
        while len(pages):
            if self._shard is None:
                name = shard_name(len(self.files), len(self.row_shape))
                self._shard = ChecksummedFile(self._directory / name)
            used_runs = self._runs_flushed % self.layout.shard_runs
            take = min(
                len(pages), (self.layout.shard_runs - used_runs) * geometry.page_stride_bytes
            )
            self._shard.write(pages[:take])
            self._runs_flushed += take // geometry.page_stride_bytes
            pages = pages[take:]
            if self._runs_flushed % self.layout.shard_runs == 0:
                self._write_shard_end()

    def _write_shard_end(self) -> None:
        shard = self._shard
        if shard is None:
            return
        number = len(self.files)
        padding = self.layout.shard_body_bytes(number) - shard.size_bytes
        if padding:  # Zarr's inner chunks are whole, also the last one
            shard.write(np.zeros(padding, dtype=np.uint8))
        shard.write(shard_index(self.layout, number))
        crcs = shard.close()
        self.files.append((shard.path.name, shard.size_bytes, crcs))
        self._shard = None
        if self._journal is not None:
            self._journal.record_shard(self.spec, self.layout, number, self.files[-1])

    def close(self) -> None:
        """Finish the array: complete the last shard, write the Zarr metadata. Idempotent."""
        if self.files and self.files[-1][0] == METADATA_FILE:
            return
        if not self.is_complete:
            raise InputError(
                f"the attribute {self.spec.name!r} was declared with {self.spec.num_rows} rows, "
                f"but only {self._rows_done} came"
            )
        self._flush()
        self._write_shard_end()
        # Frees the buffers before the commit.
        self._pages = self._other_pages = np.empty((0, 0), dtype=np.uint8)
        document = paged_metadata(
            self.spec.dtype, self.row_shape, self.layout, self._dimension_names
        )
        self.files.append(write_json(self._directory / METADATA_FILE, document))

    def abort(self) -> None:
        """Stop writing; the files are to be deleted."""
        if self._shard is not None:
            self._shard.abort()
            self._shard = None

    def __enter__(self) -> PagedArrayWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()
