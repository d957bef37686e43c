"""Partitions of a table in memory; a few threads read the next ones and write the last ones.

A partition is *resident* if its rows may be used, and *held* if it has a slot of memory: the
resident ones, those that left, and those that are being read. One that left stays until its slot
is needed; if it has changed, it is written first, by the thread that then reads into the slot.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

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


class _Swap(NamedTuple):
    """The work of a thread on a slot; -1 for no partition."""

    before: int  # partition that is written
    after: int  # partition that is read into the slot then
    work: Future[None]


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
        self._swaps: dict[int, _Swap] = {}  # by slot
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
        self.slots[:] = -1
        self.flush()  # also partitions that could not be written before
        self.leave()
        self._held.clear()
        self.memory = np.empty(0, np.float32)  # first, or both would be in memory at once
        if num_slots:
            # Whole pages, which disks write to directly.
            num_bytes = num_slots * self._slot_floats * self.memory.itemsize
            mapped = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(AttributeError, OSError):
                mapped.madvise(mmap.MADV_HUGEPAGE)
            self.memory = np.frombuffer(mapped, np.float32)

    def slot(self, partition: int) -> Slot:
        """Return the slot of a held partition."""
        return self._memory_of(self._held[partition])

    def _memory_of(self, slot: int) -> Slot:
        return self.memory[slot * self._slot_floats : (slot + 1) * self._slot_floats]

    @_whole
    def enter(self, state: npt.NDArray[np.int64]) -> None:
        """Make exactly these partitions resident."""
        wanted = set(state.tolist())
        for partition in set(self.resident().tolist()) - wanted:
            self.slots[partition] = -1
        for slot, swap in list(self._swaps.items()):
            if swap.before in wanted:  # it comes back
                self._settle(slot)
        for partition in sorted(wanted - self._held.keys()):
            while (place := self._take(wanted)) is None:
                unneeded = (k for k, swap in self._swaps.items() if swap.after not in wanted)
                self._settle(next(unneeded), gives_up=True)
            self._begin(*place, partition)
        for partition in sorted(wanted):
            self._settle(self._held[partition])
            self.slots[partition] = self._held[partition]

    @_whole
    def expect(self, state: npt.NDArray[np.int64]) -> None:
        """Begin to read partitions of the next state, to slots of those that are not resident."""
        for slot in [slot for slot, swap in self._swaps.items() if swap.work.done()]:
            self._settle(slot)
        wanted = set(state.tolist())
        for partition in sorted(wanted - self._held.keys()):
            if (place := self._take(wanted)) is None:
                return
            self._begin(*place, partition)

    @_whole
    def find(self, partition: int) -> Slot | None:
        """Return a partition's current rows, resident or not; None if those on disk are current."""
        swap = self._swaps.get(self._held.get(partition, -1))
        if partition not in self._held or (swap is not None and swap.after == partition):
            return None
        if swap is not None and swap.after >= 0:
            wait([swap.work])
            if not self.dirty[partition]:  # else it could not be written, and is still here
                return None
        return self.slot(partition)

    @_whole
    def flush(self) -> None:
        """Write all partitions that have changed."""
        is_idle = self._pool is None
        try:
            self._settle_all()
            for partition, slot in self._held.items():
                if self.dirty[partition]:
                    self._begin(slot, partition, -1)
            self._settle_all()
        finally:
            if is_idle:
                self.leave()

    @_whole
    def leave(self) -> None:
        """Give up reading ahead, and end the threads."""
        try:
            self._settle_all(gives_up=True)
        finally:
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.shutdown(wait=True)

    def _take(self, wanted: set[int]) -> tuple[int, int] | None:
        """Return a slot for a partition of a state, and the partition to write first or -1."""
        used = {*self._held.values(), *self._swaps}
        if len(used) < self.num_slots:
            return next(slot for slot in range(self.num_slots) if slot not in used), -1
        leaving = [
            partition
            for partition, slot in self._held.items()
            if self.slots[partition] < 0 and partition not in wanted and slot not in self._swaps
        ]
        for partition in leaving:
            if not self.dirty[partition]:
                return self._held.pop(partition), -1
        return (self._held[leaving[0]], leaving[0]) if leaving else None

    def _begin(self, slot: int, before: int, after: int) -> None:
        memory = self._memory_of(slot)

        def swap() -> None:
            if before >= 0:
                self._store(before, memory)
                self.dirty[before] = False
            if after >= 0:
                self._load(after, memory)

        self._swaps[slot] = _Swap(before, after, self._threads().submit(swap))
        if after >= 0:
            self._held[after] = slot

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_NUM_THREADS, THREAD_NAME)
        return self._pool

    def _settle(self, slot: int, *, gives_up: bool = False) -> None:
        """Wait for the work on a slot, and note who holds it; a failure is raised.

        Unless reading is given up: then only that of a write counts.
        """
        swap = self._swaps.pop(slot, None)
        if swap is None:
            return
        is_cancelled = gives_up and swap.work.cancel()
        wait([swap.work])
        is_written = swap.before < 0 or not self.dirty[swap.before]
        if swap.after >= 0:
            if swap.before >= 0 and is_written:
                del self._held[swap.before]
            if is_cancelled or swap.work.exception() is not None:
                del self._held[swap.after]
        if not is_cancelled and not (gives_up and is_written):
            swap.work.result()

    def _settle_all(self, *, gives_up: bool = False) -> None:
        """Wait for all work; partitions that could not be written stay."""
        failure: BaseException | None = None
        for slot in list(self._swaps):
            try:
                self._settle(slot, gives_up=gives_up)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure
