"""Files read in pieces into temporary arrays, and compared with their checksums.

A mapping would be simpler, but every page that was touched would count as memory of the process.
What is written from a directory has checksums of its own, which would vouch for bytes that were
damaged before: so what makes one directory of another reads it by `CheckedFiles`, or compares the
files first (`SealedFiles.check_arrays`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, storage_errors
from gnnstore.formats.arrays.paged import PagedArray, SharedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base.files import BLOCK_BYTES, fill_at, open_regular
from gnnstore.formats.container.reader import SealedReader
from gnnstore.machine import PRIVATE, Machine

# Most bytes of a piece that is read into memory that was used before: the pages that the kernel
# clears in fresh memory are an eighth of the CPU time of a conversion. Whole arrays should not stay
# behind in the pool.
MAX_POOLED_BYTES = 2**24
_READ_BLOCKS = 8  # blocks that are read at a time, each compared with its checksum

# Fills an array with bytes of a file, from an offset on.
Fill = Callable[[Path, int, npt.NDArray[np.uint8]], None]


def empty_piece(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return uninitialised memory for a piece of an array; small ones come from a pool.

    Otherwise memory that threads allocate stays with the allocator of each thread.
    """
    dtype = np.dtype(dtype)
    if count * dtype.itemsize > MAX_POOLED_BYTES:
        return np.empty(count, dtype)
    return _core.pool_empty(count * dtype.itemsize).view(dtype)


def read_exactly(
    path: str | os.PathLike[str], offset: int, out: npt.NDArray[np.uint8], what: str
) -> None:
    """Fill an array with bytes of a file; `what` names the file in an error."""
    with storage_errors(f"read {what}", path):
        file = open_regular(path)
        try:
            done = fill_at(file, out.data, offset)
        finally:
            os.close(file)
    if done < len(out):
        raise CorruptStoreError(
            f"{path}: ends at byte {offset + done}: it was truncated; restore it from a copy, or "
            "convert again",
            path=path,
        )


@dataclass(frozen=True, kw_only=True)
class ReadArray(PagedArray):
    """A paged array that is read, not mapped."""

    fill: Fill = field(default=partial(read_exactly, what="the array"), repr=False, compare=False)

    @classmethod
    def from_array(cls, array: PagedArray, fill: Fill) -> ReadArray:
        """Return an array whose files are read by a function."""
        return cls(
            array.spec, array.layout, array.file_paths, array.check_place, array.uuid, fill=fill
        )

    def load(
        self,
        num_threads: int = 1,  # noqa: ARG002 - one reads
        machine: Machine = PRIVATE,  # noqa: ARG002
    ) -> npt.NDArray[Any]:
        """Read all rows, into memory of this process."""
        return self.read_slice(0, self.num_rows)

    def read_slice(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Read rows start, ..., stop - 1."""
        geometry, shard_rows = self.geometry, self.layout.shard_rows
        per_run, stride = geometry.rows_per_page, geometry.page_stride_bytes
        row_bytes = geometry.row_bytes
        out = empty_piece((stop - start) * row_bytes, np.uint8).reshape(stop - start, row_bytes)
        done = start
        while done < stop:
            shard, row = divmod(done, shard_rows)
            count = min(stop - done, shard_rows - row)
            here, path = out[done - start :][:count], self.file_paths[shard]
            if geometry.is_exact:
                self.fill(path, geometry.offset(row), here.reshape(-1))
            else:
                begin, end = row // per_run, geometry.num_runs(row + count)
                runs = empty_piece((end - begin) * stride, np.uint8).reshape(end - begin, stride)
                self.fill(path, begin * stride, runs.reshape(-1))
                rows = runs[:, : per_run * row_bytes].reshape(-1, row_bytes)
                here[:] = rows[row - begin * per_run :][:count]
            done += count
        self.check_place()
        return out.reshape(-1).view(self.dtype).reshape(stop - start, *self.row_shape)


class CheckedFiles:
    """The files of a sealed directory, read in pieces of any size; every block is compared.

    Where a piece needs a part of a block, the whole block is read.
    """

    def __init__(self, reader: SealedReader[Any]) -> None:
        self._reader = reader
        self._arrays: dict[str, PagedArray] = {}

    def read(self, spec: AttributeSpec) -> npt.NDArray[Any]:
        """Read any array whole, in its storage type."""
        if spec.layout == "paged":
            return self.paged(spec).load()
        self._reader.check_arrays(spec.path)
        return self._reader.compressed(spec)

    def paged(self, spec: AttributeSpec) -> PagedArray:
        """Return a paged array whose rows are compared as they are read in order."""
        if spec.path not in self._arrays:
            array = self._reader.paged(spec)
            if isinstance(array, SharedArray):  # its rows lie anywhere in the other array
                paths = {file.parent for one in (array, array.rows) for file in one.file_paths}
                of = self._reader.path
                self._reader.check_arrays(*(path.relative_to(of).as_posix() for path in paths))
            else:
                array = ReadArray.from_array(array, self.fill)
            self._arrays[spec.path] = array
        return self._arrays[spec.path]

    @cached_property
    def _files(self) -> dict[Path, tuple[int, npt.NDArray[np.uint32]]]:
        """The size of each file, and the crc32c of each of its blocks."""
        manifest, crcs = self._reader.manifest, self._reader.block_checksums()
        return {
            self._reader.path / entry.path: (entry.size_bytes, crcs[first:][: entry.num_blocks])
            for entry, first in zip(manifest.files, manifest.first_blocks()[:-1], strict=True)
        }

    def fill(self, path: Path, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Fill an array with bytes of a file, from an offset on."""
        end, (size, crcs) = offset + len(out), self._files[path]
        if not len(out):
            return
        for low in range(offset // BLOCK_BYTES * BLOCK_BYTES, end, _READ_BLOCKS * BLOCK_BYTES):
            last = min(low + _READ_BLOCKS * BLOCK_BYTES, -(-end // BLOCK_BYTES) * BLOCK_BYTES, size)
            blocks = empty_piece(last - low, np.uint8)
            read_exactly(path, low, blocks, "the store")
            first, found = low // BLOCK_BYTES, _core.crc32c_blocks(blocks, BLOCK_BYTES)
            self._reader.check_blocks(path, first, found, crcs[first : first + len(found)])
            begin, stop = max(low, offset), min(last, end)
            out[begin - offset : stop - offset] = blocks[begin - low : stop - low]
