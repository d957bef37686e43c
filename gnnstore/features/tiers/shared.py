"""A static cache that several loaders over one store share, and that can give memory back.

Training, validation and test loaders read the same rows, so they share one cache under one
budget. The loader that comes first sizes it; one that comes later with larger batches may
need some of its memory, and then the rows that are wanted least leave it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.caching.scores import SCORE_DTYPES, CacheCost, Score, select_nodes
from gnnstore.disk.buffers import trim
from gnnstore.features.direct import DirectRows
from gnnstore.features.source import Gathered, RowSource
from gnnstore.features.tiers.static import CachedRows, NodeSlots


def cache_cost(num_nodes: int, row_bytes: int, score: Score) -> CacheCost:
    """Return what a cache takes that holds `row_bytes` for each of its nodes."""
    index_bytes = NodeSlots.bytes_for(num_nodes, 0)
    node_bytes = NodeSlots.bytes_for(num_nodes, 1) - index_bytes
    score_bytes = np.dtype(SCORE_DTYPES[score]).itemsize
    return CacheCost(
        num_nodes, index_bytes, row_bytes + node_bytes + score_bytes if row_bytes else 0
    )


class SharedCache:
    """Rows of the same nodes from some tables, in memory. Thread-safe.

    Parameters
    ----------
    tables : Mapping of str to DirectRows
        The tables by path; what is not cached is read from them.
    num_nodes : int
        Rows of each.
    """

    def __init__(self, tables: Mapping[str, DirectRows], num_nodes: int) -> None:
        self._tables = dict(tables)
        self._num_nodes = num_nodes
        self._lock = threading.Lock()
        self._slots: NodeSlots | None = None
        self._scores: npt.NDArray[Any] = np.empty(0, np.uint8)
        self._current: dict[str, RowSource] = dict(tables)

    def fill(self, nodes: npt.NDArray[np.int64], scores: npt.NDArray[Any]) -> None:
        """Read the rows of some nodes.

        Parameters
        ----------
        nodes : ndarray of int64 [C]
            Ascending; none empties the cache.
        scores : ndarray of uint8 or uint32 [C]
            What the nodes were chosen by; the lowest leave first.

        Raises
        ------
        StorageError
            If a row cannot be read; the cache is empty then.
        """
        with self._lock:
            self._fill(nodes, scores)

    def shrink(self, num_rows: int) -> None:
        """Keep the best `num_rows` nodes only.

        Batches that are under way finish with the old cache; rows are read anew, because
        old and new cache together might not fit in memory.
        """
        with self._lock:
            if self._slots is None or num_rows >= self.num_rows:
                return
            # Nodes of score 0 are in a cache only if all are; then they leave as those of 1 do.
            kept = select_nodes(np.maximum(self._scores, 1), num_rows)
            nodes, scores = self._slots.nodes[kept], self._scores[kept]
            self._fill(nodes, scores)

    def _fill(self, nodes: npt.NDArray[np.int64], scores: npt.NDArray[Any]) -> None:
        self._current = dict(self._tables)
        self._slots, self._scores = None, np.empty(0, np.uint8)
        if len(nodes) == 0:
            return
        trim(0)  # what an old cache has left in the pool
        slots = NodeSlots.of(nodes, self._num_nodes)
        cached = {path: CachedRows.fill(rows, slots) for path, rows in self._tables.items()}
        self._slots, self._scores = slots, scores
        self._current = dict(cached)

    @property
    def num_rows(self) -> int:
        """Nodes whose rows are cached."""
        return 0 if self._slots is None else len(self._slots.nodes)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that rows, scores and index occupy."""
        index_bytes = 0 if self._slots is None else self._slots.num_bytes
        rows_bytes = sum(rows.resident_bytes for rows in self._current.values())
        return index_bytes + self._scores.nbytes + rows_bytes

    def holds(self, path: str) -> bool:
        """Whether rows of this table are cached."""
        return path in self._tables

    def rows(self, path: str) -> SharedRows:
        """Return one of the tables."""
        return SharedRows(self, path)

    def gather(self, path: str, ids: npt.NDArray[Any]) -> Gathered:
        """Return the rows of `ids` of one table."""
        return self._current[path].gather(ids)


@dataclass(frozen=True, eq=False)
class SharedRows:
    """One table of a shared cache, whatever the cache holds at the moment."""

    cache: SharedCache
    path: str

    @property
    def num_rows(self) -> int:
        """Rows in the table, cached or not."""
        return self.cache._current[self.path].num_rows

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's values."""
        return self.cache._current[self.path].row_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that this table's cached rows occupy."""
        return self.cache._current[self.path].resident_bytes

    def gather(self, ids: npt.NDArray[Any]) -> Gathered:
        """Return the rows of `ids` (int32 or int64 [n]) as a new array [n, *row_shape]."""
        return self.cache.gather(self.path, ids)
