"""A file that grows by a region at a time, and is a Zarr array of bytes in the end.

Some bytes are appended here; others are written by the kernel that packs rows, straight to disk,
and read back for their checksums. Until `finish` the file is bytes and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, storage_errors
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES, PageGeometry, plan_shards
from gnnstore.formats.arrays.zarr_metadata import (
    METADATA_FILE,
    paged_metadata,
    shard_index,
    shard_name,
)
from gnnstore.formats.container.files import BlockChecksums, fill_at, write_json, write_part
from gnnstore.formats.container.regular_files import open_regular

_READ_BYTES = 4 * 2**20
# Such an array is one file, however large.
ONE_SHARD_BYTES = 2**60
# Appended parts begin at multiples of this, so that reads can bypass the page cache.
ALIGNMENT_BYTES = 4096


class GrowingFile:
    """Bytes one behind the other, in regions that are made durable one by one."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self._directory = root / name
        self.file_path = self._directory / shard_name(0, 0)
        self.size_bytes = 0  # with the bytes appended to the open region
        self._region_begin = 0
        self._sums = BlockChecksums()
        self._compared: tuple[int, BlockChecksums] | None = None
        with storage_errors("create a file", self.file_path):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = open_regular(
                self.file_path, os.O_RDWR | os.O_CREAT, error=CorruptStoreError, root=root
            )

    def append(self, parts: Iterable[memoryview]) -> int:
        """Write bytes from the next multiple of 4096 on, and return the offset of the first."""
        begin = self.size_bytes + -self.size_bytes % ALIGNMENT_BYTES
        place = begin
        with storage_errors("write", self.file_path):
            for part in parts:
                place = write_part(self._descriptor, part, place)
        self.size_bytes = place
        return begin

    def grown_to(self, size_bytes: int) -> None:
        """Note that a kernel has written up to a size."""
        self.size_bytes = size_bytes

    def end_region(self) -> tuple[int, int]:
        """Make the written bytes durable, and return the region's end and crc32c."""
        with storage_errors("write", self.file_path):
            # The region is filled up to a whole page, so that the next one begins on a page.
            self.size_bytes += -self.size_bytes % ALIGNMENT_BYTES
            os.ftruncate(self._descriptor, self.size_bytes)
            os.fsync(self._descriptor)
            crc = self._read(self._region_begin, self.size_bytes, self._sums)
        self._region_begin = self.size_bytes
        return self.size_bytes, crc

    def take_region(self, end: int, crc: int) -> bool:
        """Compare the next region of an earlier attempt; return whether it is unchanged."""
        sums = self._sums.copy()
        try:
            if os.fstat(self._descriptor).st_size < end or end < self._region_begin:
                return False
            is_same = self._read(self._region_begin, end, sums) == crc
        except OSError:
            return False
        self._compared = (end, sums) if is_same else None
        return is_same

    def keep_region(self) -> None:
        """Take over the region that was compared last."""
        if self._compared is not None:
            self._region_begin, self._sums = self._compared
            self.size_bytes = self._region_begin
            self._compared = None

    def forget_region(self) -> None:
        """Leave the region that was compared last, to be written again."""
        self._compared = None

    def cut(self) -> None:
        """Cut the file off behind the regions that were taken over."""
        with storage_errors("continue", self.file_path):
            os.ftruncate(self._descriptor, self._region_begin)

    def finish(self) -> dict[str, tuple[int, npt.NDArray[np.uint32]]]:
        """Turn the bytes into a Zarr array; return its files: size and checksums by path."""
        layout = plan_shards(PageGeometry(1, DEFAULT_PAGE_BYTES), self.size_bytes, ONE_SHARD_BYTES)
        files = {}
        if layout.num_shards:
            padding = layout.shard_body_bytes(0) - self.size_bytes
            tail = np.concatenate([np.zeros(padding, np.uint8), shard_index(layout, 0)])
            self._sums.update(tail)
            self.append([tail.data])  # the end of a region is a multiple of 4096
            with storage_errors("write", self.file_path):
                os.fsync(self._descriptor)
            files[f"{self.name}/{self.file_path.name}"] = (self._sums.num_bytes, self._sums.crcs)
        self.close()
        if not layout.num_shards:
            self.file_path.unlink()
        document = paged_metadata("uint8", (), layout, [f"{self.name}_0"])
        name, size, crcs = write_json(self._directory / METADATA_FILE, document)
        return {**files, f"{self.name}/{name}": (size, crcs)}

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _read(self, begin: int, end: int, sums: BlockChecksums) -> int:
        """Add a part of the file to the checksums of its blocks; return the part's own."""
        crc = 0
        buffer = np.empty(_READ_BYTES, np.uint8)
        while begin < end:
            piece = buffer[: min(_READ_BYTES, end - begin)]
            count = fill_at(self._descriptor, piece.data, begin)
            if count < len(piece):
                raise OSError(f"the file ends at byte {begin + count}")
            crc = _core.crc32c(piece, crc)
            sums.update(piece)
            begin += count
        # The file is not read again before training, and there are better uses of memory.
        os.posix_fadvise(self._descriptor, 0, end, os.POSIX_FADV_DONTNEED)
        return crc
