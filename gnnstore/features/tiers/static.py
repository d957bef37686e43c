"""A cache that is filled once: some rows in memory, the others read (PaGraph, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.disk.buffers import empty
from gnnstore.disk.counts import ReadCounts
from gnnstore.features.direct import DirectRows
from gnnstore.features.source import Gathered

# Rows are read in pieces of this size while the cache is filled: many reads in flight, and
# little memory besides the cache for sorting the ids.
FILL_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class NodeSlots:
    """Which nodes are cached, and in which slot: 1.5 bits per node of the graph.

    Attributes
    ----------
    nodes : ndarray of int64 [C]
        The cached nodes in ascending order; node `nodes[s]` is in slot s.
    """

    nodes: npt.NDArray[np.int64]
    _bits: npt.NDArray[np.uint64]
    _ranks: npt.NDArray[np.int32]

    @classmethod
    def of(cls, nodes: npt.NDArray[np.int64], num_nodes: int) -> Self:
        """Index strictly ascending nodes of a graph of `num_nodes`."""
        return cls(nodes, *_core.index_nodes(nodes, num_nodes))

    @staticmethod
    def bytes_for(num_nodes: int, num_cached: int) -> int:
        """Return the memory that the index of a graph's nodes takes, the nodes included."""
        return 12 * (-(-num_nodes // 64)) + 8 * num_cached

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the index occupies."""
        return self.nodes.nbytes + self._bits.nbytes + self._ranks.nbytes

    def slots(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return the slot of each node of `ids` (int32 or int64 [n]); -1: not cached."""
        return _core.find_slots(self._bits, self._ranks, ids)


def fill_rows(
    rows: DirectRows,
    nodes: npt.NDArray[np.int64],
    table: npt.NDArray[np.uint8],
    advance: Callable[[int], None] | None = None,
) -> ReadCounts:
    """Read the rows of many nodes (int64 [C], ascending) into the beginning of a table.

    Parameters
    ----------
    table : ndarray of uint8 [at least C * row_bytes]
    advance : callable, optional
        Called with the number of bytes that have been read since the last call.

    Raises
    ------
    StorageError
        As in `DirectRows.gather`.
    """
    filling, row_bytes = ReadCounts(), rows.row_bytes
    step = max(1, FILL_BYTES // max(1, row_bytes))
    for first in range(0, len(nodes), step):
        some = nodes[first : first + step]
        part = table[first * row_bytes : (first + len(some)) * row_bytes]
        filling += rows.gather_into(some, part)
        if advance is not None:
            advance(part.nbytes)
    return filling


class CachedRows:
    """Some rows of a table in memory, the others on disk. Thread-safe.

    Reads go out first; cached rows are copied while they are in flight.
    """

    def __init__(
        self, rows: DirectRows, slots: NodeSlots, table: npt.NDArray[np.uint8], filling: ReadCounts
    ) -> None:
        self._rows = rows
        self._slots = slots
        self._table = table
        self.filling = filling

    @classmethod
    def fill(
        cls,
        rows: DirectRows,
        slots: NodeSlots,
        advance: Callable[[int], None] | None = None,
    ) -> Self:
        """Read the rows of the cached nodes, in the order in which they lie on disk.

        Parameters
        ----------
        rows : DirectRows
            Where rows are read, now and later.
        slots : NodeSlots
            The nodes to cache; may be shared by several tables.
        advance : callable, optional
            Called with the number of bytes that have been cached since the last call.

        Raises
        ------
        StorageError
            As in `DirectRows.gather`.
        """
        table = empty((len(slots.nodes) * rows.row_bytes,), np.uint8)
        filling = fill_rows(rows, slots.nodes, table, advance)
        return cls(rows, slots, table, filling)

    @property
    def num_rows(self) -> int:
        """Rows in the table, cached or not."""
        return self._rows.num_rows

    @property
    def num_cached(self) -> int:
        """Rows in the cache."""
        return len(self._slots.nodes)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's values."""
        return self._rows.row_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the cache occupies; the index of its nodes is not counted."""
        return self._table.nbytes

    def gather(self, ids: npt.NDArray[Any]) -> Gathered:
        """Return the rows of `ids` (int32 or int64 [n]) as a new array [n, *row_shape].

        Raises
        ------
        IndexError
            If an id is out of range.
        StorageError
            As in `DirectRows.gather`.
        """
        array = self._rows.array
        out = empty((ids.size, *array.row_shape), array.dtype)
        slots = self._slots.slots(ids)
        return Gathered(out, self._rows.gather_into(ids, out, self._table, slots))
