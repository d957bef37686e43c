"""Tables of rows: in memory, mapped from files, or read from disk by an engine on request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts
from gnnstore.disk.engines import Engine, remedy_for
from gnnstore.errors import StorageError, storage_error
from gnnstore.features.files import FileRows
from gnnstore.features.source import RowRequest, RowSource, RowSpec
from gnnstore.formats.arrays.paged_array import PagedArray

# A page fault blocks the thread that takes it, so a mapping is read faster by more threads
# than there are cores. A batch of 136,000 rows, none of them cached, two batches at a time,
# on a disk of 100,000 reads a second: 3.9 s with 1 thread, 0.54 s with 4, 0.27 s with 16,
# 0.21 s with 32. Their cost when every page is cached: half a millisecond.
MAX_FAULT_THREADS = 32
MIN_ROWS_PER_FAULT_THREAD = 512


@dataclass(frozen=True, eq=False)
class MemoryRows(RowSource):
    """A dense table in memory."""

    table: npt.NDArray[Any]

    @classmethod
    def from_array(cls, table: npt.NDArray[Any]) -> Self:
        """Return a view of an array [N, ...], or a copy if it is not C-contiguous."""
        return cls(np.ascontiguousarray(table))

    @classmethod
    def load(cls, array: PagedArray, num_threads: int) -> Self:
        """Load a stored array into a huge-page buffer, without the padding of its pages."""
        return cls.from_array(array.load(num_threads))

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
        spec = self.spec
        return _copy(
            self._body,
            ids,
            out,
            num_rows=spec.num_rows,
            row_bytes=spec.row_bytes,
            rows_per_page=1,
            page_stride_bytes=spec.row_bytes,
        )

    @cached_property
    def _body(self) -> npt.NDArray[np.uint8]:
        return self.table.reshape(-1).view(np.uint8)


@dataclass(frozen=True, eq=False)
class MappedRows(RowSource):
    """A stored table, mapped: the operating system reads a page on the first access to it."""

    array: PagedArray
    body: npt.NDArray[np.uint8]

    @classmethod
    def map(cls, array: PagedArray) -> Self:
        """Map a stored array, advising the system not to read ahead."""
        return cls(array, array.map("random"))

    @cached_property
    def spec(self) -> RowSpec:
        """The rows of the array."""
        return RowSpec.of(self.array.spec)

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Copy the rows of `ids` to `out`.

        Several threads share one call, so that their page faults overlap.
        """
        self.array.check_mapped_files()
        num_threads = max(1, min(MAX_FAULT_THREADS, ids.size // MIN_ROWS_PER_FAULT_THREAD))
        return _copy(self.body, ids, out, **self.array.place, num_threads=num_threads)


@dataclass(frozen=True, eq=False)
class DirectRows(RowSource):
    """A stored table whose rows an engine reads, past the page cache. Thread-safe."""

    stored: FileRows

    @classmethod
    def open(cls, array: PagedArray, engine: Engine) -> Self:
        """Open the files of a stored array for an engine."""
        return cls(FileRows.open(array, engine))

    @cached_property
    def spec(self) -> RowSpec:
        """The rows of the array."""
        return RowSpec.of(self.stored.array.spec)

    @property
    def file_rows(self) -> FileRows:
        """The files of the table."""
        return self.stored

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Read the rows of `ids` (int32 or int64 [n]) into `out`."""
        return self.read_into(RowRequest(ids), out)

    def read_into(self, request: RowRequest, out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with the rows of a request; cached rows are copied while others are read."""
        if out.size == 0:
            return ReadCounts()
        stored = self.stored
        try:
            counts = stored.engine.reader.gather_rows(
                stored.files,
                request.ids,
                out.reshape(-1).view(np.uint8),
                **stored.place,
                cache=request.cache,
                slots=request.slots,
            )
        except OSError as error:
            raise self._error(error) from error
        return counts

    def read_range(self, first: int, out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with consecutive rows, in large reads if rows fill their pages."""
        if not self.stored.array.geometry.is_exact:
            return super().read_range(first, out)
        begin = np.array([first])
        return self.read_ranges(begin, begin + len(out), np.zeros(1, np.int64), out)

    def read_ranges(
        self,
        firsts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        out: npt.NDArray[Any],
    ) -> ReadCounts:
        """Read ranges of rows that fill their pages; see `FileRows.read_ranges`."""
        try:
            counts = self.stored.read_ranges(firsts, ends, places, out)
        except OSError as error:
            raise self._error(error) from error
        return counts + ReadCounts(rows_read=int((ends - firsts).sum()))

    def _error(self, error: OSError) -> StorageError:
        array, engine = self.stored.array, self.stored.engine
        doing = f"read rows of the array {array.spec.path!r}"
        if error.filename:
            return storage_error(error, doing, error.filename)
        # No engine could be made for another thread, though the first worked.
        where = str(array.file_paths[0])
        return StorageError(
            f"cannot {doing}: {where}: the engine {engine.name!r} failed: {error.strerror}. "
            f"{remedy_for(engine.name, error)}",
            path=where,
        )


@dataclass(frozen=True, eq=False)
class SharedRows(RowSource):
    """Rows of another table, in an order of its own."""

    table: RowSource
    rows: RowSource  # int32 or int64: the row of each in the other table

    @property
    def spec(self) -> RowSpec:
        """The rows of the other table, as many as there are here."""
        return replace(self.table.spec, num_rows=self.rows.num_rows)

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with the rows of `ids`."""
        places, counts = self.rows.gather(ids)
        return counts + self.table.read_rows(places, out)


def _copy(
    body: npt.NDArray[np.uint8],
    ids: npt.NDArray[Any],
    out: npt.NDArray[Any],
    **options: int,
) -> ReadCounts:
    if out.size:
        _core.gather_rows(body, ids, out.reshape(-1).view(np.uint8), **options)
    return ReadCounts()
