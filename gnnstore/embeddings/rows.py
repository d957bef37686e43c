"""The rows of a table: on disk, in memory, or not made yet.

Partitions are in slots of memory; a few threads read the next ones and write the last ones. A
partition is *resident* if its rows may be used, and *held* if it has a slot: the resident ones,
those that left, and those that are being read. One that left stays until its slot is needed; if it
has changed, it is written first, by the thread that then reads into the slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial, wraps
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore.errors import BadIndexError, UsageError, limits_named
from gnnstore.formats.base.files import page_aligned
from gnnstore.formats.partitions import PartitionsReader
from gnnstore.formats.table_directory import TableDirectory
from gnnstore.formats.tables import INITIAL, TableManifest
from gnnstore.graph.lazy import LazySource, Rows
from gnnstore.threads import uninterrupted

FLOAT_BYTES = 4
_MAX_THREADS = 8
# A partition is read whole if at least one row in so many is needed.
_READ_WHOLE = 16
# Threads that read: a disk does more if the next request waits while the last is answered.
_NUM_THREADS = 2
THREAD_NAME = "gnnstore-table"

Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Int64Array = npt.NDArray[np.int64]
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
        self.cancel()
        self._held.clear()
        self.memory = np.empty(0, np.float32)  # first, or both would be in memory at once
        if num_slots:
            num_bytes = num_slots * self._slot_floats * self.memory.itemsize
            self.memory = page_aligned(num_bytes).view(np.float32)

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
                self._settle(next(unneeded), cancels=True)
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
                self.cancel()

    @_whole
    def cancel(self) -> None:
        """Give up reading ahead, and end the threads."""
        try:
            self._settle_all(cancels=True)
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

    def _settle(self, slot: int, *, cancels: bool = False) -> None:
        """Wait for the work on a slot, and note who holds it; a failure is raised.

        Unless reading is given up: then only an error of a write counts.
        """
        swap = self._swaps.pop(slot, None)
        if swap is None:
            return
        is_cancelled = cancels and swap.work.cancel()
        wait([swap.work])
        is_written = swap.before < 0 or not self.dirty[swap.before]
        if swap.after >= 0:
            if swap.before >= 0 and is_written:
                del self._held[swap.before]
            if is_cancelled or swap.work.exception() is not None:
                del self._held[swap.after]
        if not is_cancelled and not (cancels and is_written):
            swap.work.result()

    def _settle_all(self, *, cancels: bool = False) -> None:
        """Wait for all work; partitions that could not be written stay."""
        failure: BaseException | None = None
        for slot in list(self._swaps):
            try:
                self._settle(slot, cancels=cancels)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure


class TableRows(LazySource):
    """The rows of an open table, by node."""

    dtype = torch.float32

    def __init__(self, directory: TableDirectory, unit: PartitionsReader | None) -> None:
        self._directory, self._manifest = directory, directory.manifest
        self.name = str(directory.path)
        self.shape = self._manifest.num_nodes, self._manifest.dim
        # int32 or int64 [N], or None: row of each node; None: node i is in row i.
        self._place: Ids | None = None if unit is None else unit.new_ids()
        load, store = partial(_load, directory, unit), partial(_store, directory)
        manifest = self._manifest
        self.buffer = PartitionBuffer(manifest.num_partitions, manifest.slot_floats, load, store)

    @property
    def place_bytes(self) -> int:
        """Bytes of the array of nodes' rows."""
        return 0 if self._place is None else self._place.nbytes

    @property
    def are_resident(self) -> bool:
        """Whether all rows are in memory."""
        return len(self.buffer.resident()) == self._manifest.num_partitions

    def _rows_of(self, nodes: Int64Array) -> Int64Array:
        return nodes if self._place is None else self._place[nodes].astype(np.int64, copy=False)

    def find(self, nodes: Int64Array) -> Int64Array:
        """Return the places in memory of nodes' rows."""
        manifest, path = self._manifest, self._directory.path
        per_partition, places = manifest.rows_per_partition, np.empty(len(nodes), np.int64)
        slots = self.buffer.slots
        try:
            found = _core.resident_rows(
                nodes, self._place, manifest.num_nodes, per_partition, slots, places
            )
        except IndexError as error:
            raise BadIndexError(f"{path}: {error}; ids are the store's") from None
        if found < len(nodes):
            partition = int(self._rows_of(nodes[found : found + 1])[0]) // per_partition
            raise UsageError(
                f"{path}: node {int(nodes[found])} is of partition {partition}, which is not in "
                f"memory: resident are {self.buffer.resident()}. Ask for the nodes of the batch "
                "that the loader with tables=[table] handed out last; read any rows with "
                "table[ids]; or have all rows in memory with table.load()"
            )
        return places

    def gather(self, places: Int64Array) -> npt.NDArray[np.float32]:
        """Return the rows at some places in memory [len(places), dim]."""
        manifest = self._manifest
        out = _core.empty((len(places), manifest.dim), np.float32)
        if len(places):
            _core.gather_rows(
                self.buffer.memory.view(np.uint8),
                places,
                out.reshape(-1).view(np.uint8),
                num_rows=self.buffer.num_slots * manifest.rows_per_partition,
                row_bytes=manifest.dim * FLOAT_BYTES,
                rows_per_page=manifest.rows_per_partition,
                page_stride_bytes=manifest.slot_bytes,
                num_threads=num_threads(),
            )
        return out

    def prepare_update(
        self, places: Int64Array, gradients: npt.NDArray[np.float32], scalars: dict[str, float]
    ) -> Callable[[], object]:
        """Mark the partitions that change as changed, and return the kernel's call."""
        manifest, buffer = self._manifest, self.buffer
        held = np.zeros(buffer.num_slots, np.bool_)
        held[places // manifest.rows_per_partition] = True
        resident = buffer.resident()
        buffer.dirty[resident[held[buffer.slots[resident]]]] = True
        return partial(
            _core.update_rows,
            buffer.memory,
            places,
            gradients,
            dim=manifest.dim,
            rows_per_slot=manifest.rows_per_partition,
            slot_floats=manifest.slot_floats,
            rule=manifest.optimizer,
            num_threads=num_threads(),
            **scalars,
        )

    def enter(self, state: Int64Array, num_slots: int) -> None:
        """Have exactly the partitions of a state in memory, in some number of slots."""
        if self.buffer.num_slots != num_slots:
            self.buffer.resize(num_slots)
        self.buffer.enter(state)

    def read(self) -> Tensor:
        """Return all rows."""
        return self.take(range(self.shape[0]))

    def take(self, rows: Rows, compared: set[int] | None = None) -> Tensor:
        """Return the rows of nodes [len(rows), dim] as they are now.

        Single rows come without a checksum, unless `compared` is given: partitions whose checksums
        were compared, to which others are added.
        """
        nodes = np.asarray(rows, np.int64)
        directory, manifest = self._directory, self._manifest
        dim, per_partition = manifest.dim, manifest.rows_per_partition
        out = np.empty((len(nodes), dim), np.float32)
        places = self._rows_of(nodes)
        partitions = places // per_partition
        order = np.argsort(partitions, kind="stable")
        cuts = np.flatnonzero(np.diff(partitions[order])) + 1
        alone, spare = [], None
        for part in np.split(order, cuts) if len(order) else []:
            partition = int(partitions[part[0]])
            slot = self.buffer.find(partition)
            if slot is None and not directory.is_written(partition):
                made = np.empty(len(part) * dim, np.float32)
                _fill_initial(manifest, nodes[part], made, num_threads())
                out[part] = made.reshape(-1, dim)
                continue
            if slot is None:
                is_few = len(part) * _READ_WHOLE < per_partition
                if is_few and (compared is None or partition in compared):
                    alone.append(part)
                    continue
                spare = page_aligned(manifest.slot_bytes) if spare is None else spare
                directory.read(partition, spare)
                slot = spare.view(np.float32)
                if compared is not None:
                    compared.add(partition)
            values = slot[: per_partition * dim].reshape(-1, dim)
            out[part] = values[places[part] - partition * per_partition]
        if alone:
            few = np.concatenate(alone)
            found = np.empty((len(few), dim), np.float32)
            directory.read_rows(places[few], found)
            out[few] = found
        return torch.from_numpy(out)

    def commit(self, steps: int, position: dict[str, object] | None) -> str:
        """Write the partitions that have changed, and name what is written as a commit."""
        self.buffer.flush()
        try:
            return self._directory.commit(steps, position)
        except BaseException:
            again = np.array(self._directory.doubtful(), np.int64)
            self.buffer.dirty[again[self.buffer.slots[again] >= 0]] = True
            raise


def num_threads() -> int:
    """Return the number of threads that gather, change and make rows."""
    return min(_MAX_THREADS, torch.get_num_threads())


# Not methods: a buffer that refers to its owner would keep memory until garbage is collected.
def _load(
    directory: TableDirectory, unit: PartitionsReader | None, partition: int, slot: Slot
) -> None:
    """Fill a slot with a partition."""
    manifest = directory.manifest
    if directory.read(partition, slot.view(np.uint8)):
        return
    if unit is None:
        rows = manifest.rows(partition)
        nodes: Ids = np.arange(rows.start, rows.stop)
    else:
        nodes = unit.nodes_of(partition)
    end = len(nodes) * manifest.dim
    _fill_initial(manifest, nodes, slot[:end])
    slot[end:] = 0


def _store(directory: TableDirectory, partition: int, slot: Slot) -> None:
    """Write a slot as a partition."""
    directory.write(partition, slot.view(np.uint8))


def _fill_initial(manifest: TableManifest, ids: Ids, out: Slot, num_threads: int = 1) -> None:
    """Fill an array [n * dim] with the initial rows of nodes, by seed, node and column."""
    distribution, variance = INITIAL[manifest.init]
    if distribution is None:
        out[:] = 0
        return
    # As in a torch.nn.Embedding of this shape.
    spread = math.sqrt(variance / (manifest.num_nodes + manifest.dim)) if variance else 1.0
    _core.initial_rows(
        ids,
        out,
        dim=manifest.dim,
        distribution=distribution,
        scale=manifest.scale * spread,
        seed=manifest.seed,
        num_threads=num_threads,
    )
