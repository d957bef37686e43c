"""Number nodes 0, ..., N - 1 when their ids are scattered, in memory that follows the ids.

The ids of an edge list are all there is to know its nodes by. They are collected in one
pass over the edges and replaced in the next.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

# Up to here one byte per possible id (128 MiB) beats sorting by far: marking an id costs
# a few nanoseconds, sorting it about a hundred. Social networks' ids mostly lie below.
DENSE_LIMIT = 2**27


class IdMap(Protocol):
    """Ids and node numbers, both ways."""

    num_nodes: int
    max_id: int
    is_identity: bool

    def to_nodes(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the numbers of ids that were collected; any shape."""

    def original_ids(self) -> npt.NDArray[np.int64]:
        """Return the id of every node, ascending, shape [N]."""


class IdCollector:
    """Collects the distinct ones among non-negative ids.

    Marks them in an array while they are small, and keeps sorted runs once one is not. Runs
    are merged when together they are as long as what was merged before, so that each id is
    sorted a logarithmic number of times.
    """

    def __init__(self, dense_limit: int = DENSE_LIMIT) -> None:
        self.num_added = 0
        self._dense_limit = dense_limit
        self._seen: npt.NDArray[np.bool_] | None = np.zeros(0, dtype=bool)
        self._merged: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._runs: list[npt.NDArray[np.int64]] = []

    def add(self, ids: npt.NDArray[np.int64]) -> None:
        """Add ids, shape [k]."""
        if not len(ids):
            return
        self.num_added += len(ids)
        if self._seen is not None:
            highest = int(ids.max())
            if highest < self._dense_limit:
                if highest >= len(self._seen):
                    grown = min(self._dense_limit, max(highest + 1, 2 * len(self._seen)))
                    self._seen = np.concatenate(
                        [self._seen, np.zeros(grown - len(self._seen), bool)]
                    )
                self._seen[ids] = True
                return
            self._merged, self._seen = np.flatnonzero(self._seen), None
        self._runs.append(np.unique(ids))
        if sum(map(len, self._runs)) > len(self._merged):
            self._merge()

    def _merge(self) -> None:
        self._merged = np.unique(np.concatenate([self._merged, *self._runs]))
        self._runs = []

    def finish(self) -> IdMap:
        """Return the map; the collector is empty afterwards."""
        if self._seen is not None:
            ids, self._seen = self._seen, None
            return _DenseMap(ids)
        self._merge()
        return _SortedMap(self._merged)


class _DenseMap:
    """Looks numbers up in a table over all possible ids."""

    def __init__(self, seen: npt.NDArray[np.bool_]) -> None:
        self._seen = seen
        self.num_nodes = int(np.count_nonzero(seen))
        reversed_first = int(np.argmax(seen[::-1])) if self.num_nodes else len(seen)
        self.max_id = len(seen) - 1 - reversed_first
        self.is_identity = self.max_id + 1 == self.num_nodes
        # The number of a node is how many smaller ids there are.
        self._table = None
        if not self.is_identity:
            self._table = np.cumsum(seen, dtype=np.int32)
            self._table -= 1

    def to_nodes(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return ids if self._table is None else self._table[ids]

    def original_ids(self) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self._seen)


class _SortedMap:
    """Finds numbers by bisection among the sorted ids."""

    def __init__(self, ids: npt.NDArray[np.int64]) -> None:
        self._ids = ids
        self.num_nodes = len(ids)
        self.max_id = int(ids[-1]) if len(ids) else -1
        self.is_identity = self.max_id + 1 == len(ids)

    def to_nodes(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return ids if self.is_identity else np.searchsorted(self._ids, ids)

    def original_ids(self) -> npt.NDArray[np.int64]:
        return self._ids
