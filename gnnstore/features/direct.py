"""Rows read from disk by an engine, around the page cache: only what a batch asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.disk.buffers import empty
from gnnstore.disk.counts import NO_READS, ReadCounts
from gnnstore.disk.engines import Engine, remedy_for
from gnnstore.errors import StorageError, UsageError, storage_error
from gnnstore.features.source import Gathered
from gnnstore.formats.arrays.paged_array import PagedArray


@dataclass(frozen=True, eq=False)
class DirectRows:
    """A stored table whose rows are read when they are asked for. Thread-safe.

    The files stay open: a store that is removed or replaced meanwhile is read to the end.
    """

    array: PagedArray
    engine: Engine
    files: _core.FileSet

    @classmethod
    def open(cls, array: PagedArray, engine: Engine) -> Self:
        """Open the files of a stored array for an engine.

        Raises
        ------
        StorageError
            If a file cannot be opened, or is shorter than its part of the array.
        """
        try:
            files = _core.FileSet(
                array.file_paths, array.body_bytes, direct=engine.choice.is_direct
            )
        except OSError as error:
            raise _storage_error(array, error) from error
        return cls(array, engine, files)

    @property
    def num_rows(self) -> int:
        """Rows in the table."""
        return self.array.num_rows

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's values."""
        return self.array.geometry.row_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the table occupies: none."""
        return 0

    def gather(self, ids: npt.NDArray[Any]) -> Gathered:
        """Read the rows of `ids` (int32 or int64 [n]) into a new array [n, *row_shape].

        Raises
        ------
        IndexError
            If an id is out of range.
        StorageError
            Naming the file and offset of a read that failed, or met the end of its file.
        """
        out = empty((ids.size, *self.array.row_shape), self.array.dtype)
        return Gathered(out, self.gather_into(ids, out))

    def gather_into(
        self,
        ids: npt.NDArray[Any],
        out: npt.NDArray[Any],
        cache: npt.NDArray[np.uint8] | None = None,
        slots: npt.NDArray[np.int32] | None = None,
    ) -> ReadCounts:
        """Fill `out` with the rows of `ids`, from a cache where they are in it.

        Parameters
        ----------
        ids : ndarray of int32 or int64 [n]
        out : ndarray [n, *row_shape], C-ordered
        cache : ndarray of uint8 [num_slots * row_bytes], optional
        slots : ndarray of int32 [n], optional
            Where each row lies in the cache; negative: it is read. Without a cache, rows that
            have a slot are left as they are.
        """
        if math.prod(out.shape) == 0:
            return NO_READS
        geometry = self.array.geometry
        try:
            counts = self.engine.reader.gather_rows(
                self.files,
                ids,
                out.reshape(-1).view(np.uint8),
                num_rows=self.num_rows,
                row_bytes=geometry.row_bytes,
                rows_per_page=geometry.rows_per_page,
                page_stride_bytes=geometry.page_stride_bytes,
                gap_bytes=self.engine.tuning.gap_bytes,
                cache=cache,
                slots=slots,
            )
        except OSError as error:
            if not error.filename:
                raise self._engine_error(error) from error
            raise _storage_error(self.array, error) from error
        return ReadCounts.of(counts)

    def read_into(self, first: int, out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with rows that follow one another, in large reads.

        Reads go straight to `out` where both places are multiples of what direct reads ask for.

        Parameters
        ----------
        first : int
            The first of them.
        out : ndarray [n, ...] of row_bytes a row, C-ordered

        Raises
        ------
        UsageError
            If rows do not fill their pages, so that they do not lie one behind the other.
        IndexError, StorageError
            As in `gather`.
        """
        array, row_bytes = self.array, self.row_bytes
        if not array.geometry.is_exact:
            raise UsageError(f"rows of the array {array.spec.path!r} are read with `gather_into`")
        last = first + len(out)
        if not 0 <= first <= last <= self.num_rows:
            raise IndexError(f"[{first}, {last}) is not within [0, {self.num_rows})")
        if math.prod(out.shape) == 0:
            return NO_READS
        shard_rows = array.layout.shard_rows
        shards = np.arange(first // shard_rows, (last - 1) // shard_rows + 1)
        begins = np.maximum(shards * shard_rows, first)
        ends = np.minimum((shards + 1) * shard_rows, last)
        try:
            counts = self.engine.reader.read_ranges(
                self.files,
                shards,
                (begins - shards * shard_rows) * row_bytes,
                (ends - begins) * row_bytes,
                (begins - first) * row_bytes,
                out.reshape(-1).view(np.uint8),
            )
        except OSError as error:
            if not error.filename:
                raise self._engine_error(error) from error
            raise _storage_error(array, error) from error
        return replace(ReadCounts.of(counts), rows_read=len(out))

    def _engine_error(self, error: OSError) -> StorageError:
        """Return that no engine could be made for another thread, though the first worked."""
        name = self.engine.name
        where = str(self.array.file_paths[0])
        return StorageError(
            f"cannot read rows of the array {self.array.spec.path!r}: {where}: the engine {name!r} "
            f"failed: {error.strerror}. {remedy_for(name, error)}",
            path=where,
        )


def _storage_error(array: PagedArray, error: OSError) -> StorageError:
    return storage_error(error, f"read rows of the array {array.spec.path!r}", error.filename)
