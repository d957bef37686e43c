"""Partitions of a table in memory; a few threads read the next ones and write the last ones.

A partition is *resident* if its rows may be used, and *held* if it has a slot of memory: the
resident ones, those that are being read ahead, and those that left and are being written. A held
partition that comes back is used as it is, so that no row is read before it is written.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore.errors import limits_named
from gnnstore.threads import uninterrupted

# A disk does more if the next request waits while the last is answered.
_NUM_THREADS = 2
THREAD_NAME = "gnnstore-table"

Slot = npt.NDArray[np.float32]
P = ParamSpec("P")
R = TypeVar("R")


def _whole(method: Callable[P, R]) -> Callable[P, R]:
    """Make a method uninterruptible: a part of its work would mix up slots."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return uninterrupted(lambda: method(*args, **kwargs))

    return call


class PartitionBuffer:
    """Slots of memory, each with a partition.

    Its methods are called from one thread, and are not interrupted in the middle: each is made in a
    thread of its own, which gets no signals.
    """

    def __init__(
        self,
        num_partitions: int,
        slot_floats: int,
        load: Callable[[int, Slot], None],
        store: Callable[[int, Slot], None],
    ) -> None:
        self._slot_floats = slot_floats
        self._load, self._store = load, store
        # int32 [p]: the slot of each resident partition, -1 of others.
        self.slots = np.full(num_partitions, -1, np.int32)
        # bool [p]: whether a partition has changed since it was read or written.
        self.dirty = np.zeros(num_partitions, np.bool_)
        self.memory: Slot = np.empty(0, np.float32)  # float32 [slots * slot_floats]
        self._held: dict[int, int] = {}
        self._free: list[int] = []
        self._reads: dict[int, Future[None]] = {}
        self._writes: dict[int, Future[None]] = {}
        # By partition that is being written: the one to read into its slot afterwards.
        self._heirs: dict[int, int] = {}
        self._pool: ThreadPoolExecutor | None = None

    @property
    def num_slots(self) -> int:
        """Slots of memory."""
        return len(self.memory) // self._slot_floats

    def resident(self) -> npt.NDArray[np.int64]:
        """Return the resident partitions, ascending."""
        return np.flatnonzero(self.slots >= 0)

    @_whole
    @limits_named("hold embeddings in memory")
    def resize(self, num_slots: int) -> None:
        """Change the number of slots; all are empty afterwards, and changed rows are written."""
        self.enter(np.empty(0, np.int64))
        self.flush()  # also partitions that could not be written before
        self.leave()
        self.memory = np.empty(0, np.float32)  # first, or both would be in memory at once
        if num_slots:
            # Whole pages, which disks write to directly.
            num_bytes = num_slots * self._slot_floats * self.memory.itemsize
            mapped = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(AttributeError, OSError):
                mapped.madvise(mmap.MADV_HUGEPAGE)
            self.memory = np.frombuffer(mapped, np.float32)
        self._free = list(range(num_slots))[::-1]

    def slot(self, partition: int) -> Slot:
        """Return the slot of a held partition."""
        begin = self._held[partition] * self._slot_floats
        return self.memory[begin : begin + self._slot_floats]

    @_whole
    def enter(self, state: npt.NDArray[np.int64]) -> None:
        """Make exactly these partitions resident."""
        wanted = set(state.tolist())
        for partition in self.resident().tolist():
            if partition not in wanted:
                self.slots[partition] = -1
                self._vacate(partition)
        for partition in sorted(wanted & self._writes.keys()):  # it comes back
            write = self._writes[partition]
            if partition in self._heirs:
                wait([write])
                continue
            self.slots[partition] = self._held[partition]
            if not write.cancel():
                wait([write])
        self._finish_writes()
        for partition in sorted(wanted):
            if partition not in self._held:
                self._begin_read(partition, self._take_slot(wanted))
        for partition in sorted(wanted):
            self._finish_read(partition)
            self.slots[partition] = self._held[partition]

    @_whole
    def expect(self, state: npt.NDArray[np.int64]) -> None:
        """Begin to read partitions of the next state, where slots are free or being written."""
        self._finish_writes()
        wanted = set(state.tolist())
        leaving = [k for k in self._writes if k not in wanted and k not in self._heirs]
        for partition in sorted(wanted - self._held.keys()):
            if self._free:
                self._begin_read(partition, self._free.pop())
            elif leaving:
                before = leaving.pop(0)
                self._heirs[before] = partition
                self._begin_read(partition, self._held[before], self._writes[before])

    @_whole
    def find(self, partition: int) -> Slot | None:
        """Return a partition's current rows, resident or not; None if those on disk are current."""
        # A partition being written may give its slot to another at any moment, unless the write
        # fails.
        is_given_away = partition in self._heirs and self._writes[partition].exception() is None
        is_here = partition in self._held and partition not in self._reads and not is_given_away
        return self.slot(partition) if is_here else None

    @_whole
    def flush(self) -> None:
        """Write all partitions that have changed."""
        is_idle = self._pool is None
        try:
            self._drain()
            for partition in [k for k in self._held if self.dirty[k]]:
                self._begin_write(partition)
            self._drain()
        finally:
            if is_idle:
                self.leave()

    @_whole
    def leave(self) -> None:
        """Free the slots of partitions that are not resident, and end the threads."""
        try:
            for partition in list(self._reads):
                self._drop_read(partition)
            self._drain()
        finally:
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown(wait=True)

    def _take_slot(self, wanted: set[int]) -> int:
        """Return a slot for a partition of a state, once there is one."""
        while not self._free:
            for partition in set(self._reads) - wanted:  # expected, but not needed
                self._drop_read(partition)
            for partition in set(self._held) - wanted - set(self._writes):
                self._vacate(partition)  # it could not be written before
            if self._free:
                break
            if self._writes:
                wait(self._writes.values(), return_when=FIRST_COMPLETED)
                self._finish_writes()
        return self._free.pop()

    def _vacate(self, partition: int) -> None:
        if self.dirty[partition]:
            self._begin_write(partition)
        else:
            self._release(partition)

    def _release(self, partition: int) -> None:
        self._free.append(self._held.pop(partition))

    def _begin_read(self, partition: int, slot: int, after: Future[None] | None = None) -> None:
        self._held[partition] = slot
        target = self.slot(partition)

        def read() -> None:
            if after is not None:  # it was submitted before, so that it runs by now
                after.result()
            self._load(partition, target)

        self._reads[partition] = self._threads().submit(read)

    def _begin_write(self, partition: int) -> None:
        work = self._threads().submit(self._store, partition, self.slot(partition))
        self._writes[partition] = work

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_NUM_THREADS, THREAD_NAME)
        return self._pool

    def _finish_read(self, partition: int) -> None:
        read = self._reads.get(partition)
        if read is None:
            return
        self._finish_writes(to_slot_of=partition)
        try:
            read.result()
        except BaseException:
            self._drop_read(partition)
            raise
        self._reads.pop(partition)

    def _drop_read(self, partition: int) -> None:
        """Free a partition that is being read, if it is not needed or reading failed."""
        read = self._reads.pop(partition)
        read.cancel()
        wait([read])
        before = next((k for k, heir in self._heirs.items() if heir == partition), None)
        if before is None:
            self._release(partition)
            return
        del self._heirs[before], self._held[partition]
        write = self._writes[before]
        wait([write])
        if write.exception() is None:  # else it is raised where writes are finished
            self._finish_write(before)

    def _finish_writes(self, to_slot_of: int = -1) -> None:
        """Finish the writes that are done; wait only for those whose slot is read into next."""
        for partition, write in list(self._writes.items()):
            if self._heirs.get(partition) == to_slot_of:
                wait([write])
            if write.done():
                self._finish_write(partition)

    def _finish_write(self, partition: int) -> None:
        write = self._writes.pop(partition)
        if write.cancelled():  # it came back, as it was
            return
        heir = self._heirs.pop(partition, None)
        if heir is not None and write.exception() is not None:
            wait([self._reads.pop(heir)])  # it fails with the write, and has read nothing
            del self._held[heir]
        write.result()
        self.dirty[partition] = False
        if heir is not None:
            del self._held[partition]  # the slot is that of the heir
        elif self.slots[partition] < 0:
            self._release(partition)

    def _drain(self) -> None:
        """Wait for all writes; failed partitions stay, and a failure is raised at the end."""
        wait(self._writes.values())
        failure: BaseException | None = None
        for partition in list(self._writes):
            try:
                self._finish_write(partition)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure
