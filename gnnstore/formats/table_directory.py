"""The directory of a table: partitions are written to free slots, then committed.

The slots of a commit are never overwritten. A partition that changes goes to a free slot, and when
a commit has named the new slots, those that no kept commit names are free. So a table takes the
disk of its kept commits and of changed partitions, and a kill leaves the last commit whole.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import (
    CorruptStoreError,
    UsageError,
    storage_error,
    storage_errors,
)
from gnnstore.formats.base.files import (
    fill_at,
    open_regular,
    page_aligned,
    write_part,
)
from gnnstore.formats.container.workdir import DirectoryTransaction, take_lock
from gnnstore.formats.tables import SLOTS_FILE, Commit, TableManifest

# Reads of single rows at once, and the gap across which two rows share a read.
_READS, _GAP_BYTES = 16, 4096
# Bytes of a piece: a disk is busy with it, and it is in the cache for the checksum.
_PIECE_BYTES = 4 << 20
# Least bytes of a direct read: for less, the page cache costs less than a disk's answer.
_MIN_DIRECT_BYTES = 1 << 20
# Bytes of a block that file systems store whole, and disks take directly.
_BLOCK_BYTES = 4096


class SlotFile:
    """Slots that are read and written whole, bypassing the page cache if they are large.

    They are read into, and written from, memory in pages of its own (`page_aligned`), which disks
    ask for. Threads may read and write different slots at once.
    """

    def __init__(
        self, path: Path, slot_bytes: int, used_bytes: int, *, writable: bool = True
    ) -> None:
        self.path, self.slot_bytes = path, slot_bytes
        self._written_bytes = min(slot_bytes, -(-used_bytes // _BLOCK_BYTES) * _BLOCK_BYTES)
        self._extending = threading.Lock()
        self._descriptor = -1
        if not os.path.lexists(path):
            raise CorruptStoreError(
                f"{path}: missing, and the rows of the table were in it; restore the table from a "
                "copy",
                path=path,
            )
        flags = os.O_RDWR if writable else os.O_RDONLY
        with storage_errors("open the table", path):
            if slot_bytes >= _MIN_DIRECT_BYTES:
                with suppress(OSError):  # of file systems without direct reads
                    self._descriptor = open_regular(path, flags | os.O_DIRECT)
            if self._descriptor < 0:
                self._descriptor = open_regular(path, flags)

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
            with self._extending:
                if os.fstat(self._descriptor).st_size < offset + self.slot_bytes:
                    os.ftruncate(self._descriptor, offset + self.slot_bytes)
            for begin in range(0, self._written_bytes, _PIECE_BYTES):
                piece = data[begin : min(begin + _PIECE_BYTES, self._written_bytes)]
                crc = _core.crc32c(piece, crc)
                write_part(self._descriptor, piece.data, offset + begin)
        return _core.crc32c(data[self._written_bytes :], crc)

    def reopened(self) -> tuple[_core.FileSet, int]:
        """Open the same file, wherever it is now, for single rows; return it and its slots."""
        num_slots = os.fstat(self._descriptor).st_size // self.slot_bytes
        path, size = f"/proc/self/fd/{self._descriptor}", num_slots * self.slot_bytes
        return _core.FileSet([path], [size], direct=False), num_slots

    def sync(self) -> None:
        """Make all writes durable."""
        with storage_errors("synchronise embeddings", self.path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class TableDirectory:
    """An open table on disk, which this process alone may write."""

    def __init__(self, path: Path, commit: str | None = None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._lock_file, self._process = _locked(path), os.getpid()
        try:
            self.manifest = TableManifest.read(path)
            self.base = self.manifest.find(commit, path)
            sizes = self.manifest.slot_bytes, self.manifest.used_bytes
            self._file = SlotFile(path / SLOTS_FILE, *sizes)
        except BaseException:
            os.close(self._lock_file)
            raise
        self._slots, self._crcs = self.base.slots.copy(), self.base.crcs.copy()
        # Slots written since the last commit; and slots of a failed commit, in an unknown state.
        self._loose: set[int] = set()
        self._doubtful: set[int] = set()

    @classmethod
    def create(cls, path: Path, manifest: TableManifest, *, overwrite: bool = False) -> Self:
        """Make a table of initial rows, and open it."""
        if overwrite and TableManifest.is_at(path):
            os.close(_locked(path))  # raises if a process is writing the table
        on_event = logging.getLogger(__name__).warning
        transaction = DirectoryTransaction(path, TableManifest, overwrite, on_event)
        try:
            with storage_errors("create the table", path):
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
                os.close(open_regular(transaction.path / SLOTS_FILE, flags, error=UsageError))
            first = Commit.first(manifest.num_partitions)
            replace(manifest, commits=(first,)).write(transaction.path)
            transaction.commit()
        except BaseException:
            transaction.abort()
            raise
        return cls(path)

    def read(self, partition: int, out: npt.NDArray[np.uint8]) -> bool:
        """Read a partition as it was last written; return whether it was ever written."""
        slot = int(self._slots[partition])
        if slot >= 0:
            self._file.read(slot, out, int(self._crcs[partition]))
        return slot >= 0

    def is_written(self, partition: int) -> bool:
        """Return whether a partition was ever written."""
        return bool(self._slots[partition] >= 0)

    def read_rows(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.float32]) -> None:
        """Read the values of rows [n] of written partitions, without comparing checksums."""
        manifest = self.manifest
        partition, row = np.divmod(rows, manifest.rows_per_partition)
        with storage_errors("read embeddings", self._file.path):
            files, num_slots = self._file.reopened()
            _core.Reader("pread", queue_depth=_READS, num_threads=_READS).gather_rows(
                files,
                self._slots[partition] * manifest.rows_per_partition + row,
                out.reshape(-1).view(np.uint8),
                num_rows=num_slots * manifest.rows_per_partition,
                row_bytes=manifest.dim * out.itemsize,
                rows_per_page=manifest.rows_per_partition,
                page_stride_bytes=manifest.slot_bytes,
                gap_bytes=_GAP_BYTES,
            )

    def write(self, partition: int, data: npt.NDArray[np.uint8]) -> None:
        """Write a partition to a free slot."""
        with self._lock:
            slot = int(self._slots[partition])
            if slot not in self._loose:
                slot = self._free_slot()
                self._loose.add(slot)
        try:
            crc = self._file.write(slot, data)
        except BaseException:
            with self._lock:
                if slot != self._slots[partition]:
                    self._loose.discard(slot)
            raise
        with self._lock:
            self._slots[partition], self._crcs[partition] = slot, crc

    def _free_slot(self) -> int:
        taken = {*self._loose, *self._doubtful}
        for commit in self.manifest.commits:
            taken.update(commit.slots.tolist())
        return next(slot for slot in range(len(taken) + 1) if slot not in taken)

    def doubtful(self) -> list[int]:
        """Return the partitions whose latest bytes may be lost, since a commit failed."""
        return [k for k, slot in enumerate(self._slots.tolist()) if slot in self._doubtful]

    def commit(self, steps: int, position: Mapping[str, Any] | None) -> str:
        """Commit the partitions written since the last commit, and return the new commit's id."""
        for partition in self.doubtful():
            data = page_aligned(self.manifest.slot_bytes)
            self.read(partition, data)
            self.write(partition, data)
        with self._lock:
            new = Commit(
                uuid.uuid4().hex,
                self.base.id,
                steps,
                position,
                self._slots.copy(),
                self._crcs.copy(),
            )
            manifest = self.manifest.following(self.base, new)
            try:
                self._file.sync()
                # By the descriptor: another table may lie at the path by now.
                manifest.write(Path(f"/proc/self/fd/{self._lock_file}"), self.path)
            except BaseException:
                # After a failed fsync, the bytes on disk are unknown; after a failed rename, the
                # manifest is. Neither may be overwritten.
                self._doubtful |= self._loose
                self._loose = set()
                raise
            self.manifest, self.base = manifest, new
            self._loose, self._doubtful = set(), set()
            return new.id

    def close(self) -> None:
        """Close the files, and release the lock. Idempotent."""
        self._file.close()
        held, self._lock_file = self._lock_file, -1
        if held >= 0:
            if os.getpid() == self._process:
                fcntl.flock(held, fcntl.LOCK_UN)  # a forked child may have the descriptor as well
            os.close(held)


def _locked(path: Path) -> int:
    """Return a descriptor that holds the lock of a table until it is closed."""
    if not path.is_dir():
        TableManifest.read(path)  # raises: there is none
    with storage_errors("open the table", path):
        held = take_lock(path.resolve())
    if held is None:
        raise UsageError(
            f"{path}: the table is open already, here or in another process, and only one may "
            "write it; close() that one first"
        )
    return held
