"""Writes a paged array: rows in any chunking go in, shards whose bodies are raw pages come out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import storage_dtype
from gnnstore.formats.arrays.paged_array import PagedArray
from gnnstore.formats.arrays.pages import PageGeometry, ShardLayout, plan_shards
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.arrays.zarr_metadata import (
    METADATA_FILE,
    paged_metadata,
    shard_index,
    shard_name,
)
from gnnstore.formats.container.files import ChecksummedFile, StoredFile, write_json
from gnnstore.formats.container.journal import Journal

# Rows are gathered into runs of pages in two buffers: one is written while the other is filled.
_BUFFER_BYTES = 2 * 2**20
# The place of buffers in memory, so that writes can bypass the page cache.
_ALIGNMENT = 4096


def _zeroed_pages(num_runs: int, run_bytes: int) -> npt.NDArray[np.uint8]:
    memory = np.zeros(num_runs * run_bytes + _ALIGNMENT, dtype=np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + num_runs * run_bytes].reshape(num_runs, run_bytes)


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
            PageGeometry.of(row_bytes, spec.num_rows, page_bytes), spec.num_rows, shard_bytes
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
                self._finish_shard()

    def _finish_shard(self) -> None:
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
        self._finish_shard()
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
