"""A temporary file to measure a disk with, which is always removed.

If the file system supports it, the file never has a name: then not even a killed process leaves it
behind. Otherwise it is removed as soon as it has been opened a second time for reading.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from gnnstore.errors import NoSpaceError, storage_error, storage_errors
from gnnstore.units import format_size

# 8 MiB a write: the kernel cuts it into requests that a drive works on side by side.
_WRITE_BYTES = 8 << 20
_BLOCK_BYTES = 4 << 10
# Without O_DIRECT a write is only a copy into memory. To measure the disk, and to keep to the time,
# it is synchronised now and then.
_SYNC_BYTES = 32 << 20


@dataclass
class ScratchFile:
    """An empty file that is open for writing."""

    directory: Path
    descriptor: int
    path: str  # opens the same file again, as long as `descriptor` is open
    is_direct: bool  # whether writes bypass the page cache
    has_name: bool

    def write(
        self, num_bytes: int, seconds: float, on_bytes: Callable[[int], None]
    ) -> tuple[int, float]:
        """Fill the file with incompressible bytes, from its beginning."""
        chunk = _random_chunk(min(_WRITE_BYTES, num_bytes))
        marks = np.frombuffer(chunk, np.uint64)[:: _BLOCK_BYTES // 8]
        written = unsynced = 0
        elapsed = 0.0
        try:
            while written < num_bytes and (written == 0 or elapsed < seconds):
                # Each block differs from all others: some disks store equal blocks once.
                marks += np.uint64(marks.size)
                size = min(len(chunk), num_bytes - written)
                started = perf_counter()
                self._write_all(memoryview(chunk)[:size], written)
                unsynced += size
                if not self.is_direct and unsynced >= _SYNC_BYTES:
                    os.fdatasync(self.descriptor)
                    unsynced = 0
                elapsed += perf_counter() - started
                written += size
                on_bytes(size)
            started = perf_counter()
            os.fdatasync(self.descriptor)
            elapsed += perf_counter() - started
        except OSError as error:
            raise _write_error(error, self.directory, written, num_bytes) from error
        # Pages that buffered writes left in the page cache must not serve the reads.
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return written, elapsed

    def _write_all(self, data: memoryview, offset: int) -> None:
        while data:
            try:
                done = os.pwrite(self.descriptor, data, offset)
            except OSError as error:
                # Some file systems take the flag and refuse the write.
                if error.errno != errno.EINVAL or not self.is_direct:
                    raise
                self.is_direct = False
                _set_direct(self.descriptor, wanted=False)
                continue
            data, offset = data[done:], offset + done

    def remove_name(self) -> None:
        """Remove the file's name: it vanishes with its last descriptor."""
        if self.has_name:
            Path(self.path).unlink(missing_ok=True)
            self.has_name = False


@contextmanager
def open_scratch_file(directory: Path) -> Iterator[ScratchFile]:
    """Make an empty file in a directory, for as long as the context lasts."""
    with storage_errors(
        "make a file to measure with (any directory on the same file system will do)", directory
    ):
        file = _nameless(directory) or _named(directory)
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):
            file.remove_name()
        os.close(file.descriptor)


def _nameless(directory: Path) -> ScratchFile | None:
    try:
        descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:  # not supported; or a reason that a named file will meet too
        return None
    path = f"/proc/self/fd/{descriptor}"
    if not os.access(path, os.R_OK):  # /proc is not mounted: it could not be opened again
        os.close(descriptor)
        return None
    return ScratchFile(directory, descriptor, path, _set_direct(descriptor), has_name=False)


def _named(directory: Path) -> ScratchFile:
    descriptor, path = tempfile.mkstemp(prefix=".gnnstore-bench-", dir=directory)
    return ScratchFile(directory, descriptor, path, _set_direct(descriptor), has_name=True)


def _set_direct(descriptor: int, *, wanted: bool = True) -> bool:
    """Turn O_DIRECT on or off, and return whether the file system did so."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if wanted else 0))
    except OSError:
        return False
    return True


def _random_chunk(num_bytes: int) -> mmap.mmap:
    """Return random bytes in page-aligned memory, for direct writes."""
    chunk = mmap.mmap(-1, num_bytes)
    chunk.write(np.random.default_rng().bytes(num_bytes))
    return chunk


def _write_error(error: OSError, directory: Path, written: int, num_bytes: int) -> OSError:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return storage_error(error, "write a file to measure with", directory)
    return NoSpaceError(
        f"{directory}: no space left after {format_size(written)} of a file of "
        f"{format_size(num_bytes)} to measure with ({error.strerror}); it has been removed. "
        f"Give a smaller --size, or free some space",
        path=directory,
    )
