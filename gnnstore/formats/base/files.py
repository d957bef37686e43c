"""Files of a sealed directory: whole writes, running checksums, fsync, small reads."""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import (
    CorruptStoreError,
    GnnstoreError,
    NoSpaceError,
    storage_error,
    storage_errors,
)
from gnnstore.threads import Background
from gnnstore.units import format_at_least, format_size

BlockCrcs: TypeAlias = npt.NDArray[np.uint32]
StoredFile: TypeAlias = tuple[str, int, BlockCrcs]  # name, size, crc32c of each block

# Bytes of a block of a file, which has a checksum of its own.
BLOCK_BYTES = 2**20
# Least bytes of a write that pays for a thread; and the unit of direct writes, the largest usual
# sector.
_BEHIND_BYTES, ALIGNMENT = 2**20, 4096
_THREAD_NAME = "gnnstore-write"


@dataclass(frozen=True)
class Problem:
    """A defect of a file or a directory.

    Attributes
    ----------
    path : str
        File or directory.
    message : str
        The expected and the found value.
    first_byte, end_byte : int or None
        The damaged range of the file, half-open, where one is known.
    """

    path: str
    message: str
    first_byte: int | None = None
    end_byte: int | None = None

    def __str__(self) -> str:
        where = "" if self.first_byte is None else f" bytes {self.first_byte}-{self.end_byte}"
        # An error that was raised names the file by itself.
        return f"{self.path}{where}: {self.message.removeprefix(f'{self.path}: ')}"


def page_aligned(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return zeroed memory in pages of its own, which disks read into and write from directly."""
    if not num_bytes:
        return np.empty(0, np.uint8)
    mapped = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)


def fill_at(descriptor: int, out: memoryview, offset: int) -> int:
    """Read a file's bytes from an offset on; return their number, smaller at the file's end."""
    done = 0
    while done < len(out):
        count = os.preadv(descriptor, [out[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def read_part(descriptor: int, num_bytes: int, offset: int) -> npt.NDArray[np.uint8]:
    """Return bytes of a file from an offset on."""
    out = np.empty(num_bytes, np.uint8)
    count = fill_at(descriptor, out.data, offset)
    if count < num_bytes:
        raise OSError(f"the file ends at byte {offset + count}")
    return out


def write_part(descriptor: int, data: memoryview, offset: int) -> int:
    """Write bytes from an offset on; return the offset of their end."""
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)
    return offset + done


def write_direct(descriptor: int, data: memoryview, offset: int) -> int:
    """Write aligned bytes past the page cache; return how many, fewer if the disk is full."""
    done = 0
    while done < len(data):
        # A short write goes on at a whole block.
        count = os.pwrite(descriptor, data[done:], offset + done)
        if count < ALIGNMENT:
            break  # a buffered write raises what is wrong
        done += count // ALIGNMENT * ALIGNMENT
    return done


def write_all(file: FileIO, data: memoryview) -> None:
    """Write all bytes to an unbuffered file, in several writes if need be."""
    while data:
        data = data[file.write(data) :]


class BlockChecksums:
    """The crc32c of each block of bytes that are given in pieces."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._crcs: list[npt.NDArray[np.uint32]] = []
        self._partial_crc = 0

    def update(self, data: npt.NDArray[np.uint8]) -> None:
        """Add the bytes that come next."""
        into_block = self.num_bytes % BLOCK_BYTES
        self.num_bytes += len(data)
        if into_block:
            head = data[: BLOCK_BYTES - into_block]
            self._partial_crc = _core.crc32c(head, self._partial_crc)
            if into_block + len(head) < BLOCK_BYTES:
                return
            self._crcs.append(np.array([self._partial_crc], dtype=np.uint32))
            data = data[len(head) :]
        whole = len(data) // BLOCK_BYTES * BLOCK_BYTES
        if whole:
            self._crcs.append(_core.crc32c_blocks(data[:whole], BLOCK_BYTES))
        self._partial_crc = _core.crc32c(data[whole:])

    @property
    def crcs(self) -> npt.NDArray[np.uint32]:
        """The checksums so far; the last block may be short."""
        last = [self._partial_crc] if self.num_bytes % BLOCK_BYTES else []
        return np.concatenate([*self._crcs, np.array(last, dtype=np.uint32)])


class RangeCrcs:
    """The crc32c of each of several ranges of rows; the rows come in order, in pieces."""

    def __init__(self, bounds: npt.NDArray[np.int64]) -> None:
        self.crcs = np.zeros(len(bounds) - 1, np.uint32)
        self._bounds, self._done = bounds, 0

    def add(self, rows: npt.NDArray[Any]) -> None:
        """Add the rows that come next."""
        if not len(rows):
            return
        begin, end = self._done, self._done + len(rows)
        first = int(np.searchsorted(self._bounds, begin, side="right")) - 1
        last = int(np.searchsorted(self._bounds, end))
        cuts = np.clip(self._bounds[first : last + 1], begin, end) - begin
        add_crcs(rows, cuts[:-1], cuts[1:], self.crcs[first:last])
        self._done = end


def add_crcs(
    rows: npt.NDArray[Any],
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    crcs: npt.NDArray[np.uint32],
) -> None:
    """Continue the crc32c of each range by rows of an array."""
    row_bytes = rows[:1].nbytes
    data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    _core.crc32c_ranges(data, begins * row_bytes, ends * row_bytes, crcs)


class ChecksummedFile:
    """A new file that is written once, from start to end, with a crc32c of each block.

    The file is created exclusively, with the mode that the umask allows, and durable after `close`
    only. A thread does large writes while the caller prepares the next ones.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checksums = BlockChecksums()
        self._writing: Background[None] | None = None
        self._direct: int | None = None  # a descriptor for writes that bypass the page cache
        self._may_be_direct = True
        with storage_errors("create a file", path):
            self._file = path.open("xb", buffering=0)

    def write(self, data: npt.NDArray[np.uint8]) -> None:
        """Append the bytes of a contiguous uint8 array, unchanged until the next call."""
        self._wait()
        offset = self.size_bytes
        if len(data) >= _BEHIND_BYTES:
            self._writing = Background(partial(self._put, data, offset), _THREAD_NAME)
            self._checksums.update(data)
            return
        try:
            self._put(data, offset)
        except OSError as error:
            self._fail(error, "write")
        self._checksums.update(data)

    @property
    def size_bytes(self) -> int:
        """Bytes that were given to `write`."""
        return self._checksums.num_bytes

    def _put(self, data: npt.NDArray[np.uint8], offset: int) -> None:
        place = data.__array_interface__["data"][0]
        is_aligned = not (place | offset | len(data)) % ALIGNMENT
        if len(data) >= _BEHIND_BYTES and is_aligned and self._put_direct(data, offset):
            return
        self._file.seek(offset)
        write_all(self._file, data.data)

    def _put_direct(self, data: npt.NDArray[np.uint8], offset: int) -> bool:
        """Write past the page cache; return whether that was possible."""
        if self._direct is None:
            if not self._may_be_direct:
                return False
            self._may_be_direct = False
            with suppress(OSError):  # the file system has no direct writes
                flags = os.O_WRONLY | os.O_DIRECT
                self._direct = open_regular(self.path, flags)
            return self._direct is not None and self._put_direct(data, offset)
        try:
            return write_direct(self._direct, data.data, offset) == len(data)
        except OSError as error:
            # Some file systems take the flag and refuse the write.
            if error.errno != errno.EINVAL:
                raise
            self._close_direct()
            return False

    def _wait(self) -> None:
        """Wait for the write under way."""
        if self._writing is None:
            return
        self._writing.join()  # if interrupted, `abort` waits again
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except OSError as error:
            self._fail(error, "write")

    def _fail(self, error: OSError, doing: str) -> NoReturn:
        self.abort()
        raise storage_error(error, doing, self.path) from error

    def close(self) -> npt.NDArray[np.uint32]:
        """Make the file durable, close it, and return the crc32c of each block."""
        self._wait()
        try:
            os.fsync(self._file.fileno())
            self._close_direct()
            self._file.close()
        except OSError as error:
            self._fail(error, "synchronise")
        return self._checksums.crcs

    def _close_direct(self) -> None:
        direct, self._direct = self._direct, None
        if direct is not None:
            os.close(direct)

    def abort(self) -> None:
        """Close without making anything durable: the file is to be deleted. Idempotent."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        self._close_direct()
        self._file.close()


def encode_json(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file of JSON."""
    # One space of indentation: people do open these files.
    return json.dumps(document, indent=1).encode()


def write_json(path: Path, document: Mapping[str, Any]) -> StoredFile:
    """Write a new file of JSON durably, and return its name, size and checksums."""
    return write_new(path, encode_json(document))


def write_new(path: Path, data: bytes) -> StoredFile:
    """Write a new file durably, and return its name, size and checksums."""
    file = ChecksummedFile(path)
    file.write(np.frombuffer(data, dtype=np.uint8))
    crcs = file.close()
    return path.name, file.size_bytes, crcs


def crc32c_of(data: bytes) -> int:
    """Return the crc32c of bytes."""
    return _core.crc32c(np.frombuffer(data, dtype=np.uint8))


def fsync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(
    path: str | os.PathLike[str],
    flags: int = os.O_RDONLY,
    *,
    error: type[GnnstoreError] = CorruptStoreError,
) -> int:
    """Open a regular file, and return its descriptor; opening a FIFO would wait."""
    with suppress(FileNotFoundError):
        check_regular(Path(path), error)
    return os.open(path, flags | os.O_CLOEXEC, 0o666)


def open_binary(
    path: str | os.PathLike[str], *, error: type[GnnstoreError] = CorruptStoreError
) -> BinaryIO:
    """Open a regular file for reading."""
    return open(open_regular(path, error=error), "rb")


def check_regular(path: Path, error: type[GnnstoreError]) -> None:
    """Refuse an existing path that is not a regular file; links are followed."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise error(f"{path}: not a regular file; put a file there", path=path)


def read_small(path: Path, max_bytes: int) -> bytes:
    """Return the contents of a small file of a sealed directory."""
    try:
        with open_binary(path) as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise CorruptStoreError(f"{path}: the file is missing", path=path) from None
    except OSError as error:
        raise storage_error(error, "read", path) from error
    if len(data) > max_bytes:
        raise CorruptStoreError(
            f"{path}: larger than the {max_bytes} bytes that such a file may have", path=path
        )
    return data


def directory_bytes(path: Path) -> int:
    """Return the bytes of all files under a directory; files that vanish meanwhile count 0."""
    return sum(found.st_size for found in files_under(path))


def allocated_bytes(path: Path) -> int:
    """Return the bytes that all files under a directory take on disk, without holes."""
    return sum(512 * found.st_blocks for found in files_under(path))


def files_under(path: Path) -> Iterator[os.stat_result]:
    """Yield the status of all files under a directory, links themselves."""
    for root, _, names in os.walk(path):
        for name in names:
            try:
                yield (Path(root) / name).lstat()
            except OSError:
                continue


def free_bytes(path: Path) -> int:
    """Return the free bytes of the file system where a path is, or will be."""
    space = os.statvfs(next(place for place in (path, *path.parents) if place.exists()))
    return space.f_bavail * space.f_frsize


def require_space(place: Path, num_bytes: int, doing: str, *remedies: str) -> None:
    """Raise `NoSpaceError` at once if the disk has no room for a number of bytes."""
    with storage_errors(doing, place):
        free = free_bytes(place)
    if num_bytes > free:
        least = format_at_least(num_bytes - free)
        raise NoSpaceError(
            f"cannot {doing}: no space left for {place}: about {format_at_least(num_bytes)} are "
            f"needed, and {format_size(free)} are free. "
            f"{', or '.join([f'Free {least}', *remedies])}",
            path=place,
        )
