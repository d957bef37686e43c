"""Rows that an engine reads from disk on request, bypassing the page cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts
from gnnstore.disk.engines import Engine, remedy_for
from gnnstore.errors import StorageError, storage_error
from gnnstore.features.files import FileRows
from gnnstore.features.source import RowRequest, RowSource, RowSpec
from gnnstore.formats.arrays.paged_array import PagedArray


@dataclass(frozen=True, eq=False)
class DirectRows(RowSource):
    """A stored table whose rows are read on request. Thread-safe."""

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
