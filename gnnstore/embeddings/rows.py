"""The rows of a table: on disk, in memory, or not made yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore.embeddings.buffer import PartitionBuffer, Slot
from gnnstore.errors import BadIndexError, UsageError
from gnnstore.formats.partitions import PartitionsReader
from gnnstore.formats.table_directory import TableDirectory
from gnnstore.formats.tables import INITIAL, TableManifest
from gnnstore.graph.lazy import LazySource, Rows

FLOAT_BYTES = 4
_MAX_THREADS = 8
# A partition is read whole if at least one row in this many is needed.
_READ_WHOLE = 16

Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Int64Array = npt.NDArray[np.int64]


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
            raise BadIndexError(f"{path}: {error}; ids are those of the store") from None
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

    def take(self, rows: Rows) -> Tensor:
        """Return the rows of nodes [len(rows), dim] as they are now."""
        nodes = np.asarray(rows, np.int64)
        directory, manifest = self._directory, self._manifest
        dim, per_partition = manifest.dim, manifest.rows_per_partition
        out = np.empty((len(nodes), dim), np.float32)
        places = self._rows_of(nodes)
        partitions = places // per_partition
        order = np.argsort(partitions, kind="stable")
        cuts = np.flatnonzero(np.diff(partitions[order])) + 1
        alone = []
        for part in np.split(order, cuts) if len(order) else []:
            partition = int(partitions[part[0]])
            slot = self.buffer.find(partition)
            if slot is None and not directory.is_written(partition):
                made = np.empty(len(part) * dim, np.float32)
                _fill_initial(manifest, nodes[part], made, num_threads())
                out[part] = made.reshape(-1, dim)
                continue
            if slot is None:
                if len(part) * _READ_WHOLE < per_partition:
                    alone.append(part)
                    continue
                slot = np.empty(manifest.slot_floats, np.float32)
                directory.read(partition, slot.view(np.uint8))
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
