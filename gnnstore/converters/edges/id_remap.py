"""Numbers nodes 0, ..., N - 1 whose ids are scattered, within a memory budget.

The ids in an edge list define its nodes. They are collected in one pass over the edges and replaced
in the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.inputs.source import ArraySource, GeneratedRows
from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import id_dtype

# Up to here one bit per possible id (512 MiB) beats sorting by far: marking an id costs
# a few nanoseconds, sorting it about a hundred. Social networks' ids lie below.
DENSE_LIMIT = 2**32
# Share of the memory for ids: the rest is needed to sort edges.
_SHARE = 0.5
# Bytes of an id while runs are merged: two copies, and one that is sorted.
_MERGE_BYTES = 24
_STEP_WORDS = 2**17


def find_ids(
    known: npt.NDArray[np.int64], ids: npt.NDArray[Any], where: str, problem: str
) -> npt.NDArray[np.int64]:
    """Return the places of ids [k] among sorted ones; raise if one is not there."""
    wanted = ids.astype(np.int64)  # compared with unsigned numbers, they would be rounded
    places = np.searchsorted(known, wanted)
    is_unknown = (wanted < 0) != (ids < 0)
    is_unknown |= known[np.minimum(places, len(known) - 1)] != wanted if len(known) else True
    if is_unknown.any():
        raise InputError(f"{where}: the id {ids[int(np.argmax(is_unknown))]} {problem}")
    return places


class OneBasedIds:
    """Ids 1, ..., N; some may occur in no edge."""

    is_identity = False
    num_bytes = 0

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes

    def to_nodes(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the numbers of ids; any shape."""
        return ids - 1

    def original_ids(self) -> npt.NDArray[np.int64]:
        """Return the id of every node, ascending, shape [N]."""
        return np.arange(1, self.num_nodes + 1)

    @property
    def source(self) -> ArraySource:
        """The same ids, made piece by piece."""
        return GeneratedRows(
            "the rows of a matrix",
            (self.num_nodes,),
            np.int64,
            lambda first, last: np.arange(first + 1, last + 1),
        )


class IdCollector:
    """Collects distinct non-negative ids.

    Small ids are marked in a bitmap; from the first large id on, sorted runs are kept.
    """

    def __init__(self, dense_limit: int = DENSE_LIMIT, memory_bytes: int | None = None) -> None:
        self._max_id = -1
        self._memory_bytes = memory_bytes
        if memory_bytes is not None:
            # Growing the bitmap takes as much again for a moment.
            dense_limit = min(dense_limit, 4 * int(_SHARE * memory_bytes))
        self._dense_limit = dense_limit
        self._words: npt.NDArray[np.uint64] | None = np.zeros(0, np.uint64)
        self._merged: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._runs: list[npt.NDArray[np.int64]] = []

    def add(self, ids: npt.NDArray[np.int64]) -> None:
        """Add ids, shape [k]."""
        if not len(ids):
            return
        if self._words is not None:
            highest = int(ids.max())
            if highest < self._dense_limit:
                self._mark(np.ascontiguousarray(ids), highest)
                return
            self._merged = np.concatenate([np.empty(0, np.int64), *_members(self._words)])
            self._words = None
        self._runs.append(np.unique(ids))
        num_new = sum(map(len, self._runs))
        self._check_budget(len(self._merged) + num_new)
        if num_new > len(self._merged):
            self._merge()

    def _mark(self, ids: npt.NDArray[np.int64], highest: int) -> None:
        words = self._words
        if words is None:
            raise AssertionError("ids are sorted already")
        if highest // 64 >= len(words):
            grown = min(-(-self._dense_limit // 64), max(highest // 64 + 1, 2 * len(words)))
            self._words = np.zeros(grown, np.uint64)
            self._words[: len(words)] = words
            words = self._words
        _core.bitmap_mark(words, ids)
        self._max_id = max(self._max_id, highest)

    def _check_budget(self, num_ids: int) -> None:
        if self._memory_bytes is not None:
            memory = memory_ledger("numbering nodes by ids that vary widely", self._memory_bytes)
            ids = Reservation(f"{num_ids} distinct ids", _MERGE_BYTES * num_ids)
            sort_bytes = int(ids.fixed * (1 / _SHARE - 1))
            edges = Reservation("edges to sort at the same time", sort_bytes)
            memory.add(ids, edges).check(None, "number the nodes from 0 and pass num_nodes=")

    def _merge(self) -> None:
        self._merged = np.unique(np.concatenate([self._merged, *self._runs]))
        self._runs = []

    def finish(self) -> IdMap:
        """Return the map; the collector is empty afterwards."""
        if self._words is not None:
            words, self._words = self._words, None
            return _DenseMap(words, self._max_id)
        self._merge()
        return _SortedMap(self._merged)


def _members(words: npt.NDArray[np.uint64]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the ids of a bitmap, ascending, piece by piece."""
    for first in range(0, len(words), _STEP_WORDS):
        bits = words[first : first + _STEP_WORDS].view(np.uint8)
        found = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        yield found + 64 * first


class _DenseMap:
    """Counts smaller ids in a bitmap of all possible ids."""

    def __init__(self, words: npt.NDArray[np.uint64], max_id: int) -> None:
        self._words = words[: max_id // 64 + 1]
        self._ranks, self.num_nodes = _core.bitmap_count(self._words)
        self.is_identity = max_id + 1 == self.num_nodes
        self.num_bytes = self._words.nbytes + self._ranks.nbytes
        self._item_bytes = id_dtype(self.num_nodes).itemsize

    def to_nodes(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        if self.is_identity:
            return ids
        flat = np.ascontiguousarray(ids).reshape(-1)
        found = _core.bitmap_rank(self._words, self._ranks, flat, self._item_bytes)
        return found.reshape(ids.shape)

    def original_ids(self) -> npt.NDArray[np.int64]:
        ids = np.empty(self.num_nodes, np.int64)
        place = 0
        for piece in _members(self._words):
            ids[place : place + len(piece)] = piece
            place += len(piece)
        return ids


class _SortedMap:
    """Finds numbers by bisection among the sorted ids."""

    def __init__(self, ids: npt.NDArray[np.int64]) -> None:
        self._ids = ids
        self.num_nodes = len(ids)
        self.is_identity = not len(ids) or int(ids[-1]) + 1 == len(ids)
        self.num_bytes = ids.nbytes

    def to_nodes(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return ids if self.is_identity else np.searchsorted(self._ids, ids)

    def original_ids(self) -> npt.NDArray[np.int64]:
        return self._ids


# Ids and node numbers, both ways.
IdMap = OneBasedIds | _DenseMap | _SortedMap
