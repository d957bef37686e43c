"""Rolling packing: while one superbatch trains, the missed rows of the next are packed (DiskGNN).

Samples are as fresh as ever, and all that is read, is read in order: the table once for each
superbatch, and the runs of rows that its batches miss. Two superbatches are on disk at most.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gnnstore.io.packing import PackingStoppedError, pack, packed_bytes

if TYPE_CHECKING:
    from gnnstore.io.direct_rows import DirectRows
    from gnnstore.io.packed_rows import PackedSource, PackedSuperbatch
    from gnnstore.planning.belady import SuperbatchPlan, Trace

_POLL_SECONDS = 0.05
# Of what is free where packed rows go, if nobody has said how much they may take.
_FREE_SHARE = 2


def disk_budget(directory: Path, given: int | None) -> int:
    """Return the bytes that packed rows may take in a directory."""
    if given is not None:
        return given
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return shutil.disk_usage(existing).free // _FREE_SHARE


class Packer:
    """Packs the superbatches of one iteration.

    Parameters
    ----------
    tables : Mapping of str to DirectRows
        The tables whose missed rows are packed, by path.
    directory : Path
        Where files go; removed with what is in it by whoever made it.
    memory_bytes, disk_bytes : int
        For packing one superbatch, and for the files of two.
    num_threads : int
        Threads that copy rows.
    may_wait : bool
        Whether batches are assembled by other threads than the one that asks for more, so that
        packing may wait until an earlier superbatch is done with.
    """

    def __init__(
        self,
        tables: Mapping[str, DirectRows],
        directory: Path,
        *,
        memory_bytes: int,
        disk_bytes: int,
        num_threads: int,
        may_wait: bool,
    ) -> None:
        self._tables = tables
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._disk_bytes = disk_bytes
        self._num_threads = num_threads
        self._may_wait = may_wait
        self._room = _Room(disk_bytes)
        self._stop = threading.Event()

    def pack(self, trace: Trace, plan: SuperbatchPlan) -> PackedBatches | None:
        """Pack the missed rows of a superbatch's batches.

        Returns
        -------
        PackedBatches or None
            None: there is no room beside earlier superbatches, whose batches the caller itself
            is to assemble. These rows are better read one by one than waited for.

        Raises
        ------
        BudgetError, NoSpaceError, StorageError
            As `gnnstore.io.packing.pack`.
        PackingStoppedError
            If `stop` is called meanwhile.
        """
        wanted = packed_bytes(self._tables, plan.misses)
        while not self._room.take(wanted):
            if not self._may_wait:
                return None
            if self._stop.wait(_POLL_SECONDS):
                raise PackingStoppedError("packing was stopped before it began")
        try:
            packed = pack(
                self._tables,
                trace,
                plan,
                self._directory,
                memory_bytes=self._memory_bytes,
                num_threads=max(1, self._num_threads),
                disk_bytes=self._disk_bytes,
                stop=self._stop,
            )
        except BaseException:
            self._room.give_back(wanted)
            raise
        return PackedBatches(packed, lambda: self._room.give_back(wanted))

    def stop(self) -> None:
        """End what is being packed."""
        self._stop.set()


class _Room:
    """For two superbatches on disk at most, within a number of bytes together."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._taken: list[int] = []
        self._lock = threading.Lock()

    def take(self, wanted: int) -> bool:
        """Take room for a superbatch, if there is some; one alone may always try."""
        with self._lock:
            is_fitting = len(self._taken) == 1 and self._taken[0] + wanted <= self._num_bytes
            if not self._taken or is_fitting:
                self._taken.append(wanted)
                return True
            return False

    def give_back(self, taken: int) -> None:
        """Give back what a superbatch has taken."""
        with self._lock:
            self._taken.remove(taken)


class PackedBatches:
    """The packed rows of a superbatch, until the last of its batches has them, or gives them up.

    Parameters
    ----------
    packed : PackedSuperbatch
    removed : callable
        Called once its files are gone.
    """

    def __init__(self, packed: PackedSuperbatch, removed: Callable[[], None]) -> None:
        self._packed = packed
        self._removed = removed
        self._num_waiting = packed.num_batches
        self._lock = threading.Lock()

    @property
    def bytes_packed(self) -> int:
        """Bytes on disk."""
        return self._packed.num_bytes

    def source(self, i: int) -> PackedSource:
        """Return where the missed rows of batch i are read."""
        return self._packed.source(i)

    def done(self) -> None:
        """Note that a batch has its rows, or failed; after the last one the files are removed."""
        with self._lock:
            self._num_waiting -= 1
            is_last = self._num_waiting == 0
        if is_last:
            self._packed.close()
            self._removed()
