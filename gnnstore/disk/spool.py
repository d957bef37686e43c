"""Arrays that wait for their batch, in memory or in files; the directories of such files.

A run that looks ahead keeps samples, traces, plans and the places of packed rows until the batch is
assembled. Arrays that do not fit in memory lie in files of the run's directory, which are read back
once and soon.

A run directory is `.gnnstore-run-XXXXXXXX` in a directory of the user's. It is removed when it is
closed, forgotten, or the interpreter ends. A killed process cannot do that; the next run that makes
a directory in the same place removes those whose lock it can take
(`gnnstore.formats.container.workdir`), and `gnnstore gc` finds them as well.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import (
    CorruptStoreError,
    NoSpaceError,
    UsageError,
    storage_error,
    storage_errors,
)
from gnnstore.formats.base.files import free_bytes
from gnnstore.formats.container.workdir import RUN_PREFIX, locked, make_locked, run_directories
from gnnstore.units import format_size

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)
SPOOLED_BYTES = 21  # memory for each vector of a `FileSpool`


class MemorySpool:
    """Keeps arrays in memory, as they are given: nothing is copied."""

    num_disk_bytes = 0

    def __init__(self) -> None:
        self._records: dict[int, list[npt.NDArray[Any]]] = {}

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays."""
        return sum(array.nbytes for arrays in list(self._records.values()) for array in arrays)

    def append(self, i: int, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Keep the arrays of batch i."""
        self._records[i] = list(arrays)

    def read(self, i: int) -> list[npt.NDArray[Any]]:
        """Return the arrays of batch i themselves."""
        return self._records[i]

    def drop(self, i: int) -> None:
        """Free the arrays of batch i, if there are any."""
        self._records.pop(i, None)

    def close(self) -> None:
        """Free all arrays. Idempotent."""
        self._records.clear()


class FileSpool:
    """Keeps vectors of int32 and int64 in one file, in the order in which threads append them.

    Positions and checksums are in memory: `SPOOLED_BYTES` for each vector. A process that was
    forked off may read. Kernels read and write the file, too.
    """

    def __init__(
        self, path: Path, num_batches: int, num_arrays: int = 1, *, what: str = "the arrays"
    ) -> None:
        self.path = path
        self.num_batches = num_batches
        # int64 [S, num_arrays]: the byte at which each vector begins.
        self.begins = np.zeros((num_batches, num_arrays), np.int64)
        # int64 [S, num_arrays]: the length of each vector; -1: there is none.
        self.counts = np.full((num_batches, num_arrays), -1, np.int64)
        # uint32 [S, num_arrays]: checksums, which cover the number of the batch.
        self.crcs = np.zeros((num_batches, num_arrays), np.uint32)
        self._are_wide = np.zeros((num_batches, num_arrays), np.bool_)
        self._what = what
        with storage_errors("create a file", path):
            self.file = _core.SpillFile(path)

    @property
    def num_bytes(self) -> int:
        """Memory of the index; the kernel may reclaim the file's page cache at any time."""
        tables = (self.begins, self.counts, self.crcs, self._are_wide)
        return sum(table.nbytes for table in tables)

    @property
    def num_disk_bytes(self) -> int:
        """Disk space of the arrays, until the spool is closed."""
        return self.file.num_bytes

    def append(self, i: int, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Write the vectors of batch i at the end of the file."""

        def write() -> None:
            for k, array in enumerate(arrays):
                place = self.file.append(np.ascontiguousarray(array), i)
                self.begins[i, k], self.crcs[i, k] = place
                self._are_wide[i, k] = array.itemsize == np.dtype(np.int64).itemsize

        guarded(write, f"write {self._what} of batch {i}", self.path)
        self.counts[i, : len(arrays)] = [len(array) for array in arrays]

    def note(
        self,
        begins: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        crcs: npt.NDArray[np.uint32],
    ) -> None:
        """Add the vectors that a kernel wrote to the file: one of int32 for each batch."""
        self.begins[:, 0], self.counts[:, 0], self.crcs[:, 0] = begins, counts, crcs

    def read(self, i: int) -> list[npt.NDArray[Any]]:
        """Read the vectors of batch i: new arrays."""
        if self.counts[i, 0] < 0:
            raise KeyError(f"{self.path} has nothing of batch {i}")

        def read(k: int) -> npt.NDArray[Any]:
            of_file = self.file.read_int64 if self._are_wide[i, k] else self.file.read_int32
            begin, count, crc = (int(of[i, k]) for of in (self.begins, self.counts, self.crcs))
            return of_file(begin, count, crc, i)

        doing = f"read {self._what} of batch {i}"
        num_arrays = np.count_nonzero(self.counts[i] >= 0)
        return guarded(lambda: [read(k) for k in range(num_arrays)], doing, self.path)

    def drop(self, i: int) -> None:
        """Forget the vectors of batch i, if there are any. The file keeps its length."""
        self.counts[i] = -1

    def close(self) -> None:
        """Remove the file, in the process that made it. Idempotent; waits for other calls."""
        self.file.close()


Spool: TypeAlias = MemorySpool | FileSpool


def guarded(call: Callable[[], _Result], doing: str, path: Path) -> _Result:
    """Return `call()`, with the system's errors as ours."""
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
            "again, and if this happens again, with another directory for its files",
            path=path,
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpaceError(
            f"cannot {doing}: no space left for {path} ({error.strerror}); {path.parent} has "
            f"{format_size(free_bytes(path.parent))} free. "
            "Free some space, let the run spill to another disk, or let it keep fewer batches "
            "(a smaller superbatch)",
            path=path,
        )
    return storage_error(error, doing, path)


class RunDirectory:
    """A directory of this process, which is removed with its contents.

    Forked processes do not remove it. While such a process lives, it is not stale.
    """

    def __init__(self, path: Path, lock: int) -> None:
        """Take over a directory and the descriptor that holds its lock; see `create`."""
        self.path = path  # absolute
        self._finish = weakref.finalize(self, _leave, path, lock, os.getpid())

    @classmethod
    def create(cls, parent: Path, *, purpose: str) -> Self:
        """Make a directory, and sweep those that killed runs left in `parent`."""
        parent = parent.absolute()
        sweep_stale(parent)
        doing = f"make a directory for {purpose} (any that you may write to will do)"
        with storage_errors(doing, parent):
            return cls(*make_locked(parent, RUN_PREFIX, 0o700))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the directory, in the process that made it. Idempotent."""
        self._finish()


def default_parent(store: Path) -> Path:
    """Return where the runs on a store spill: the store's parent, or where temporary files go."""
    parent = store.absolute().parent
    # A file system that is mounted read-only counts as one that cannot be written.
    return parent if os.access(parent, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def sweep_stale(parent: Path) -> list[Path]:
    """Remove the run directories in `parent` whose runs are dead, and return their paths."""
    removed = []
    for path in run_directories(parent):
        with suppress(OSError), locked(path) as is_free:
            if is_free and path.stat().st_uid == os.geteuid() and _remove(path):
                _log.info("removed %s, which a run that was killed had left", path)
                removed.append(path)
    return removed


def _leave(path: Path, lock: int, pid: int) -> None:
    """Remove a directory at the end of its run, and then its lock."""
    try:
        if os.getpid() == pid:
            _remove_own(path)
    finally:
        with suppress(OSError):
            os.close(lock)


def _remove_own(path: Path) -> None:
    # When the interpreter ends, a thread may still be making files: not under another name.
    hidden = path.with_name(f"{RUN_PREFIX}{secrets.token_hex(4)}")
    with suppress(OSError):
        path.rename(hidden)
        path = hidden
    try:
        if not _remove(path):
            _log.warning(
                "cannot remove %s completely; the next run or 'gnnstore gc' will try again", path
            )
    except BaseException:  # an interrupt: this is called once, and there is no second try
        _remove(path)
        raise


def _remove(path: Path) -> bool:
    """Delete a directory, and return whether it is gone."""
    _core.remove_tree(path)
    return not path.exists()
