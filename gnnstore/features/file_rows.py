"""Rows in files that an engine reads, past the page cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts
from gnnstore.disk.engines import Engine, remedy_for
from gnnstore.errors import StorageError, UsageError, storage_error
from gnnstore.features.source import RowRequest, RowSource, RowSpec, TypedRows
from gnnstore.formats.arrays.paged import PagedArray


@dataclass(frozen=True, eq=False)
class FileRows(RowSource):
    """A stored table that an engine reads, past the page cache. Thread-safe.

    The files stay open: a store that is removed or replaced meanwhile is read to the end.
    """

    array: PagedArray
    engine: Engine
    files: _core.FileSet

    @classmethod
    def open(cls, array: PagedArray, engine: Engine) -> Self:
        """Open the files of a stored array for an engine."""
        return cls(array, engine, array.open_files(direct=engine.choice.is_direct))

    @cached_property
    def spec(self) -> RowSpec:
        """The rows of the array."""
        return RowSpec.of(self.array.spec)

    @property
    def file_rows(self) -> FileRows:
        """The table itself."""
        return self

    @cached_property
    def engine_name(self) -> str:
        """The engine's name in the core."""
        return self.engine.name

    @cached_property
    def kernel_layout(self) -> dict[str, int]:
        """The kernels' arguments for the place of rows, and for how reads are merged."""
        return {**self.array.kernel_layout, "gap_bytes": self.engine.tuning.gap_bytes}

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Read the rows of `ids` (int32 or int64 [n]) into `out`."""
        return self.read_into(RowRequest(ids), out)

    def read_into(self, request: RowRequest, out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with the rows of a request; cached rows are copied while others are read."""
        if out.size == 0:
            return ReadCounts()
        try:
            return self.engine.reader.gather_rows(
                self.files,
                request.ids,
                out.reshape(-1).view(np.uint8),
                **self.kernel_layout,
                cache=request.cache,
                slots=request.slots,
            )
        except OSError as error:
            raise self._error(error) from error

    def read_range(self, first: int, out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with consecutive rows, in large reads if rows fill their pages."""
        if not self.array.geometry.is_exact:
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
        """Read ranges of rows that fill their pages in large reads, many in flight at a time."""
        wrong = np.flatnonzero((firsts < 0) | (ends < firsts) | (ends > self.num_rows))
        if wrong.size:
            first, end = firsts[wrong[0]], ends[wrong[0]]
            raise IndexError(f"[{first}, {end}) is not within [0, {self.num_rows})")
        there = np.flatnonzero(ends > firsts)
        if out.size == 0 or there.size == 0:
            return ReadCounts()
        firsts, ends, places = firsts[there], ends[there], places[there]
        shard_rows, row_bytes = self.array.layout.shard_rows, self.row_bytes
        first_shards = firsts // shard_rows
        num_shards = (ends - 1) // shard_rows - first_shards + 1
        of = np.repeat(np.arange(len(firsts)), num_shards)
        before = np.repeat(np.cumsum(num_shards) - num_shards, num_shards)
        shards = first_shards[of] + np.arange(len(of)) - before
        begins = np.maximum(shards * shard_rows, firsts[of])
        lasts = np.minimum((shards + 1) * shard_rows, ends[of])
        try:
            counts = self.engine.reader.read_ranges(
                self.files,
                shards,
                (begins - shards * shard_rows) * row_bytes,
                (lasts - begins) * row_bytes,
                (places[of] + begins - firsts[of]) * row_bytes,
                out.reshape(-1).view(np.uint8),
            )
        except OSError as error:
            raise self._error(error) from error
        return counts + ReadCounts(rows_read=int((ends - firsts).sum()))

    def _error(self, error: OSError) -> StorageError:
        array, engine = self.array, self.engine
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


def files_of(tables: Mapping[str, TypedRows[RowSource]]) -> dict[str, TypedRows[FileRows]]:
    """Return the files of tables, for packing."""
    files = {path: (rows.table.file_rows, rows.range) for path, rows in tables.items()}
    found = {
        path: TypedRows(table, own)
        for path, (table, own) in files.items()
        if isinstance(table, FileRows)
    }
    if missing := [path for path in files if path not in found]:
        raise UsageError(f"only rows in files can be packed; rows of {missing} are in none")
    return found
