"""The trace of a superbatch in a file: which rows its batches need, at no memory for each row.

The ids of a batch lie where the threads that sample come with them; a table in memory tells where
that is, and their checksum. So a superbatch may be as long as an epoch.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, NoSpaceError, UsageError, storage_error
from gnnstore.formats.container.files import free_bytes
from gnnstore.units import format_size

_Result = TypeVar("_Result")


def id_dtype(num_nodes: int) -> np.dtype[Any]:
    """Return the narrowest element type of node ids that the planners know."""
    return np.dtype(np.int32 if num_nodes <= 2**31 else np.int64)


def create(path: Path) -> _core.SpillFile:
    """Make a file for what a run spills.

    Raises
    ------
    StorageError
        If it cannot be made.
    """
    try:
        return _core.SpillFile(path)
    except OSError as error:
        raise storage_error(error, "create a file", path) from error


def guarded(call: Callable[[], _Result], doing: str, path: Path) -> _Result:
    """Return `call()`, with the system's errors as ours.

    Parameters
    ----------
    call : callable
        Something that `SpillFile`s are needed for.
    doing : str
        What that is, as in "write batch 3".
    path : Path
        Of the file; an error may name another one.

    Raises
    ------
    CorruptStoreError
        A file no longer holds what was written.
    NoSpaceError
        The disk is full.
    StorageError
        The system refuses otherwise.
    UsageError
        The file is closed, or what is called refuses its arguments.
    """
    try:
        return call()
    except (ValueError, IndexError) as error:
        raise UsageError(f"cannot {doing}: {error}") from error
    except OSError as error:
        raise translated(error, doing, Path(error.filename or path)) from error


def translated(error: OSError, doing: str, path: Path) -> Exception:
    """Return the system's error as ours; see `guarded`."""
    if error.errno == errno.EBADMSG:
        return CorruptStoreError(
            f"{path}: {error.strerror}. The disk or another program has changed it; start the run "
            "again, with another directory for what it spills if this comes again",
            path=path,
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = math.nan
        with suppress(OSError):
            free = free_bytes(path.parent)
        return NoSpaceError(
            f"cannot {doing}: no space left for {path} ({error.strerror}); {path.parent} has "
            f"{'an unknown number of bytes' if math.isnan(free) else format_size(int(free))} free. "
            "Free some space, let the run spill to another disk, or let it keep fewer batches "
            "(a smaller superbatch)",
            path=path,
        )
    return storage_error(error, doing, path)


class TraceFile:
    """Collects the nodes of a superbatch's batches. `put` is safe to call from many threads.

    Parameters
    ----------
    path : Path
        The file to make; removed by `close`.
    num_batches : int
        S.
    num_nodes : int
        Of the graph; below 2^31, ids take four bytes.

    Raises
    ------
    StorageError
        If the file cannot be made.
    """

    def __init__(self, path: Path, num_batches: int, num_nodes: int) -> None:
        self.num_batches = num_batches
        self.id_dtype = id_dtype(num_nodes)
        self._num_nodes = num_nodes
        self._path = path
        self._sizes = np.full(num_batches, -1, np.int64)  # -1: the batch is not there
        self._begins = np.zeros(num_batches, np.int64)
        self._crcs = np.zeros(num_batches, np.uint32)
        self._file = create(path)

    def put(self, i: int, n_id: npt.NDArray[Any]) -> None:
        """Write the nodes of batch i, in any order of batches.

        Raises
        ------
        NoSpaceError, StorageError
            If they cannot be written; the batch then counts as missing.
        UsageError
            If the file is closed.
        """
        ids = np.ascontiguousarray(n_id, self.id_dtype)
        begin, crc = guarded(
            lambda: self._file.append(ids, i), f"write the trace of batch {i}", self._path
        )
        self._begins[i], self._crcs[i] = begin, crc
        self._sizes[i] = len(ids)

    def build(self) -> SpilledTrace:
        """Return what was put, up to the first batch that is missing; it owns the file then."""
        sizes = np.fromiter(takewhile(lambda size: size >= 0, self._sizes.tolist()), np.int64)
        size = len(sizes)
        offsets = np.zeros(size + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        places = (offsets, self._begins[:size], self._crcs[:size])
        return SpilledTrace(self._path, self._file, self.id_dtype, self._num_nodes, *places)

    def close(self) -> None:
        """Remove the file, that of what was built too. Idempotent."""
        self._file.close()


@dataclass(frozen=True, eq=False)
class SpilledTrace:
    """The rows that the batches of a superbatch need, in a file. Made by `TraceFile.build`.

    Says the same as `gnnstore.caching.policies.belady.Trace`. Safe to use from many threads.

    Attributes
    ----------
    path : Path
        The file.
    file : SpillFile
    id_dtype : dtype
        int32 or int64.
    num_nodes : int
        N; ids are below.
    offsets : ndarray of int64 [S + 1]
        Batch i needs ``offsets[i + 1] - offsets[i]`` rows.
    begins : ndarray of int64 [S]
        The bytes at which they begin.
    crcs : ndarray of uint32 [S]
        Their checksums.
    """

    path: Path
    file: _core.SpillFile
    id_dtype: np.dtype[Any]
    num_nodes: int
    offsets: npt.NDArray[np.int64]
    begins: npt.NDArray[np.int64]
    crcs: npt.NDArray[np.uint32]

    @property
    def num_batches(self) -> int:
        """S."""
        return len(self.crcs)

    @property
    def num_accesses(self) -> int:
        """Rows of all batches, repeated ones included."""
        return int(self.offsets[-1])

    @property
    def num_disk_bytes(self) -> int:
        """Disk that the file takes."""
        return self.file.num_bytes

    def batch(self, i: int) -> npt.NDArray[Any]:
        """Read the ids of a batch, a new array of `id_dtype`.

        Raises
        ------
        CorruptStoreError
            If the file no longer holds them.
        StorageError
            If it cannot be read.
        UsageError
            If it is closed.
        """
        read = self.file.read_int32 if self.id_dtype == np.int32 else self.file.read_int64
        place = (int(self.begins[i]), int(self.offsets[i + 1] - self.offsets[i]))
        crc = int(self.crcs[i])
        return guarded(lambda: read(*place, crc, i), f"read the trace of batch {i}", self.path)

    def close(self) -> None:
        """Remove the file. Idempotent."""
        self.file.close()
