"""A file of equally long slots, each with a checksum that the caller keeps."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, storage_error, storage_errors
from gnnstore.formats.container.files import fill_at, write_part
from gnnstore.formats.container.regular_files import open_regular

# A disk is busy with pieces of this size, and their bytes are in the cache for the checksum.
_PIECE_BYTES = 4 << 20
# Below, the page cache costs less than a disk's answer.
_MIN_DIRECT_BYTES = 1 << 20
# File systems store whole blocks of this size, and disks take them directly.
_BLOCK_BYTES = 4096


class SlotFile:
    """Slots that are read and written whole, bypassing the page cache if they are large.

    Threads may read and write different slots at once.
    """

    def __init__(
        self, path: Path, slot_bytes: int, used_bytes: int, *, writable: bool = True
    ) -> None:
        self.path, self.slot_bytes = path, slot_bytes
        self._written_bytes = min(slot_bytes, -(-used_bytes // _BLOCK_BYTES) * _BLOCK_BYTES)
        self._extending = threading.Lock()
        self._flags = os.O_RDWR if writable else os.O_RDONLY
        self._descriptor = -1
        if not os.path.lexists(path):
            raise CorruptStoreError(
                f"{path}: missing, and the rows of the table were in it; restore the table from a "
                "copy",
                path=path,
            )
        with storage_errors("open the table", path):
            if slot_bytes >= _MIN_DIRECT_BYTES:
                try:
                    self._descriptor = self._open(os.O_DIRECT)
                except OSError as error:
                    if error.errno != errno.EINVAL:  # of file systems without direct reads
                        raise
            if self._descriptor < 0:
                self._descriptor = self._open(0)

    def _open(self, more: int) -> int:
        flags = self._flags | more
        return open_regular(self.path, flags, error=CorruptStoreError, root=self.path.parent)

    def read(self, slot: int, out: npt.NDArray[np.uint8], crc: int) -> None:
        """Read a slot, and compare its checksum."""
        offset, found = slot * self.slot_bytes, 0
        for begin in range(0, self.slot_bytes, _PIECE_BYTES):
            piece = out[begin : begin + _PIECE_BYTES]
            try:
                count = fill_at(self._descriptor, piece.data, offset + begin)
            except OSError as error:
                failure = storage_error(error, f"read bytes from {offset + begin} on", self.path)
                failure.offset = offset + begin
                raise failure from error
            if count < len(piece):
                raise self._damaged(offset + begin + count, "the file ends here")
            found = _core.crc32c(piece, found)
        if found != crc:
            raise self._damaged(
                offset,
                f"the {self.slot_bytes} bytes from here on have the checksum {found:08x}, expected "
                f"{crc:08x}",
            )

    def _damaged(self, offset: int, problem: str) -> CorruptStoreError:
        return CorruptStoreError(
            f"{self.path}: damaged at byte {offset}: {problem}; restore the table from a copy",
            path=self.path,
            offset=offset,
        )

    def write(self, slot: int, data: npt.NDArray[np.uint8]) -> int:
        """Write a slot, and return its checksum. It is durable after `sync`."""
        offset, crc = slot * self.slot_bytes, 0
        with storage_errors("write embeddings", self.path):
            self._extend(offset + self.slot_bytes)
            for begin in range(0, self._written_bytes, _PIECE_BYTES):
                piece = data[begin : min(begin + _PIECE_BYTES, self._written_bytes)]
                crc = _core.crc32c(piece, crc)
                write_part(self._descriptor, piece.data, offset + begin)
        return _core.crc32c(data[self._written_bytes :], crc)

    def _extend(self, num_bytes: int) -> None:
        """Make the file at least `num_bytes` long, before a write."""
        with self._extending:
            if os.fstat(self._descriptor).st_size < num_bytes:
                os.ftruncate(self._descriptor, num_bytes)

    def sync(self) -> None:
        """Make all writes durable."""
        with storage_errors("synchronise embeddings", self.path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
