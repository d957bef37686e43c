"""Arrays of a different length per batch, in one pair of files: what a run spills and reads back.

`NAME.values` holds the records one behind the other, in the order in which threads come with
them; `NAME.offsets` three int64 for each number i: where record i begins, where it ends, and its
crc32c. A record is a header of int64 (the number of arrays; for each its dtype, the number of its
axes and their lengths) and then the arrays, each padded with zeros to 8 bytes. No pickles, and
two files however many batches there are.
"""

from __future__ import annotations

import errno
import math
import os
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.disk.buffers import empty
from gnnstore.errors import (
    CorruptStoreError,
    NoSpaceError,
    StorageError,
    UsageError,
    storage_error,
)
from gnnstore.formats.container.files import free_bytes
from gnnstore.units import format_at_least, format_size

_ALIGNMENT_BYTES = 8
_ENTRY_BYTES = 3 * 8
_KINDS = "biuf"  # flags and numbers


class RaggedFile:
    """Records of arrays by number, each written once. Safe to use from many threads at once.

    A process that was forked off may read, but not write.

    Parameters
    ----------
    path : Path
        Without a suffix: `path.values` and `path.offsets` are made, and removed by `close`.

    Raises
    ------
    StorageError
        If the files cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._values_path = path.with_name(f"{path.name}.values")
        self._offsets_path = path.with_name(f"{path.name}.offsets")
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._end = 0
        # Records that are written, or being written.
        self._kept: set[int] = set()
        self._values = _create(self._values_path)
        try:
            self._offsets = _create(self._offsets_path)
        except BaseException:
            os.close(self._values)
            self._values_path.unlink()
            raise
        # A file that nobody closes is at least not kept open.
        files = ((self._values, self._values_path), (self._offsets, self._offsets_path))
        self._close = weakref.finalize(self, _remove, files, self._pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_bytes(self) -> int:
        """Disk that both files take."""
        with self._lock:
            return self._end + len(self._kept) * _ENTRY_BYTES

    def append(self, i: int, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Write record i.

        Parameters
        ----------
        i : int
            At least 0; the file of offsets has a hole where numbers are left out.
        arrays : sequence of ndarray
            Of flags or numbers, of any shape.

        Raises
        ------
        NoSpaceError
            If the disk is full. The record may then be written again.
        StorageError
            If the operating system refuses otherwise.
        UsageError
            If there is a record i, or an array of something else.
        """
        self._check_open()
        if os.getpid() != self._pid:
            raise UsageError(f"{self._values_path} was made before a fork; write where it was made")
        parts = encode_record(arrays)
        num_bytes = sum(len(part) for part in parts)
        crc = crc_seed(i)
        for part in parts:
            crc = _core.crc32c(np.frombuffer(part, np.uint8), crc)
        with self._lock:
            if i < 0 or i in self._kept:
                raise UsageError(f"{self._values_path}: record {i} is there already, or negative")
            self._kept.add(i)
            begin, self._end = self._end, self._end + num_bytes
        try:
            _write_all(self._values, parts, begin)
            entry = np.array([begin, begin + num_bytes, crc], np.int64)
            _write_all(self._offsets, [entry.data.cast("B")], i * _ENTRY_BYTES)
        except BaseException as error:
            self._take_back(i, begin, begin + num_bytes)
            if isinstance(error, OSError):
                raise self._write_error(error, i, num_bytes) from error
            raise

    def read(self, i: int) -> list[npt.NDArray[Any]]:
        """Return the arrays of record i, as they were written; views of one new buffer.

        Raises
        ------
        KeyError
            If there is no such record.
        CorruptStoreError
            If the files no longer hold what was written.
        StorageError
            If they cannot be read.
        """
        self._check_open()
        if i not in self._kept:
            raise KeyError(f"{self._values_path} has no record {i}")
        try:
            data = os.pread(self._offsets, _ENTRY_BYTES, i * _ENTRY_BYTES)
            if len(data) < _ENTRY_BYTES:
                raise self._damaged(i, f"of its offsets {len(data)} bytes are there")
            begin, end, crc = np.frombuffer(data, np.int64).tolist()
            size = os.fstat(self._values).st_size
            if not 0 <= begin <= end <= size:
                raise self._damaged(i, f"it lies at bytes {begin} to {end} of {size}")
            record = empty((end - begin,), np.uint8)
            done = 0
            while done < len(record):
                count = os.preadv(self._values, [record[done:].data], begin + done)
                if count == 0:
                    raise self._damaged(i, f"the file ends at byte {begin + done}")
                done += count
        except StorageError:
            raise
        except OSError as error:
            raise storage_error(error, f"read record {i}", self._values_path) from error
        found = _core.crc32c(record, crc_seed(i))
        if found != crc:
            raise self._damaged(
                i, f"bytes {begin} to {end} have the crc32c {found:08x}, not {crc:08x}", begin
            )
        return decode_record(record)

    def drop(self, i: int) -> None:
        """Forget record i, if there is one; without any, the files are emptied."""
        with self._lock:
            if i not in self._kept or os.getpid() != self._pid:
                return
            self._kept.remove(i)
            if self._kept or not self._close.alive:
                return
            # What cannot be given back now is when the files are removed.
            with suppress(OSError):
                os.ftruncate(self._values, 0)
                os.ftruncate(self._offsets, 0)
            self._end = 0

    def _take_back(self, i: int, begin: int, end: int) -> None:
        """Forget a record that was written in part, and give back its space if it is the last."""
        with self._lock:
            if self._end == end:
                with suppress(OSError):
                    os.ftruncate(self._values, begin)
                self._end = begin
        self.drop(i)

    def close(self) -> None:
        """Remove the files. Idempotent; nobody may be reading or writing."""
        self._close()
        with self._lock:
            self._kept.clear()
            self._end = 0

    def _check_open(self) -> None:
        if not self._close.alive:
            raise UsageError(f"{self._values_path} is closed")

    def _damaged(self, i: int, what: str, offset: int | None = None) -> CorruptStoreError:
        return CorruptStoreError(
            f"{self._values_path}: record {i} is not what was written: {what}. The disk or another "
            "program has changed it; start the run again, with another directory for what it "
            "spills if this comes again",
            path=self._values_path,
            offset=offset,
        )

    def _write_error(self, error: OSError, i: int, num_bytes: int) -> StorageError:
        directory = self._values_path.parent
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return storage_error(error, f"write record {i}", self._values_path)
        free = 0
        with suppress(OSError):
            free = free_bytes(directory) if error.errno == errno.ENOSPC else 0
        return NoSpaceError(
            f"{directory}: no space left for record {i} of {self._values_path.name}, of "
            f"{format_size(num_bytes)}, after {format_size(self.num_bytes)} ({error.strerror}): at "
            f"least {format_at_least(max(1, num_bytes - free))} are missing. Free some space, let "
            "the run spill to another disk, or let it keep fewer batches (a smaller superbatch)",
            path=self._values_path,
        )


def _create(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise storage_error(error, "create a file", path) from error


def _remove(files: Sequence[tuple[int, Path]], pid: int) -> None:
    for descriptor, path in files:
        with suppress(OSError):
            os.close(descriptor)
        if os.getpid() == pid:
            with suppress(OSError):
                path.unlink()


def crc_seed(i: int) -> int:
    """Return what the checksum of a record begins with: found under another number, it is wrong."""
    return _core.crc32c(np.array([i], np.int64).view(np.uint8))


def _padding(num_bytes: int) -> int:
    return -num_bytes % _ALIGNMENT_BYTES


def encode_record(arrays: Sequence[npt.NDArray[Any]]) -> list[memoryview]:
    """Return the bytes of a record, in pieces that view the arrays."""
    header = [len(arrays)]
    parts: list[memoryview] = []
    for array in arrays:
        if array.dtype.kind not in _KINDS:
            raise UsageError(f"an array of {array.dtype} cannot be spilled; only numbers can")
        code = array.dtype.str.encode().ljust(_ALIGNMENT_BYTES, b"\0")
        header += [int.from_bytes(code, "little"), array.ndim, *array.shape]
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        parts += [flat.data, memoryview(bytes(_padding(flat.nbytes)))]
    return [np.array(header, np.int64).data.cast("B"), *parts]


def decode_record(record: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
    """Return the arrays of a record whose checksum is right, as views."""
    words = record.view(np.int64)
    shapes: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
    at = 1
    for _ in range(int(words[0])):
        code = int(words[at]).to_bytes(_ALIGNMENT_BYTES, "little").rstrip(b"\0").decode()
        end = at + 2 + int(words[at + 1])
        shapes.append((np.dtype(code), tuple(words[at + 2 : end].tolist())))
        at = end
    begin = at * _ALIGNMENT_BYTES
    arrays = []
    for dtype, shape in shapes:
        num_bytes = math.prod(shape) * dtype.itemsize
        arrays.append(record[begin : begin + num_bytes].view(dtype).reshape(shape))
        begin += num_bytes + _padding(num_bytes)
    return arrays


def _write_all(descriptor: int, parts: list[memoryview], offset: int) -> None:
    left = [part for part in parts if len(part)]
    while left:
        done = os.pwritev(descriptor, left, offset)  # may be short
        offset += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if done:
            left[0] = left[0][done:]
