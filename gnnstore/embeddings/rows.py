"""The rows of a table: on disk, in memory, or not made yet."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from gnnstore.embeddings.buffer import PartitionBuffer
from gnnstore.embeddings.layout import InitialRows, RowLayout
from gnnstore.formats.tables.directory import TableDirectory

_MAX_THREADS = 8
# A partition is read whole if at least one row in this many is needed.
_READ_WHOLE = 16


def num_threads() -> int:
    """Return the number of threads that gather, change and make rows."""
    return min(_MAX_THREADS, torch.get_num_threads())


class StoredRows:
    """Fills slots of memory from disk or with initial rows, and writes them."""

    def __init__(self, directory: TableDirectory, layout: RowLayout, initial: InitialRows) -> None:
        self._directory, self._layout, self._initial = directory, layout, initial

    def load(self, partition: int, slot: npt.NDArray[np.float32]) -> None:
        """Fill a slot with a partition."""
        if self._directory.read(partition, slot.view(np.uint8)):
            return
        nodes = self._layout.nodes_of(partition)
        end = len(nodes) * self._initial.dim
        self._initial.fill(nodes, slot[:end])
        slot[end:] = 0

    def store(self, partition: int, slot: npt.NDArray[np.float32]) -> None:
        """Write a slot as a partition."""
        self._directory.write(partition, slot.view(np.uint8))

    def read(
        self, nodes: npt.NDArray[np.int64], buffer: PartitionBuffer
    ) -> npt.NDArray[np.float32]:
        """Return the rows of nodes [len(nodes), dim] as they are now."""
        dim, per_partition = self._initial.dim, self._directory.manifest.rows_per_partition
        out = np.empty((len(nodes), dim), np.float32)
        rows = self._layout.rows_of(nodes)
        partitions = rows // per_partition
        order = np.argsort(partitions, kind="stable")
        cuts = np.flatnonzero(np.diff(partitions[order])) + 1
        alone = []
        for part in np.split(order, cuts) if len(order) else []:
            partition = int(partitions[part[0]])
            slot = buffer.find(partition)
            if slot is None and not self._directory.is_written(partition):
                made = np.empty(len(part) * dim, np.float32)
                self._initial.fill(nodes[part], made, num_threads())
                out[part] = made.reshape(-1, dim)
                continue
            if slot is None:
                if len(part) * _READ_WHOLE < per_partition:
                    alone.append(part)
                    continue
                slot = np.empty(self._directory.manifest.slot_floats, np.float32)
                self._directory.read(partition, slot.view(np.uint8))
            values = slot[: per_partition * dim].reshape(-1, dim)
            out[part] = values[rows[part] - partition * per_partition]
        if alone:
            few = np.concatenate(alone)
            found = np.empty((len(few), dim), np.float32)
            self._directory.read_rows(rows[few], found)
            out[few] = found
        return out
