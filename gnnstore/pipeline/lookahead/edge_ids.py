"""Ids of the edges of a superbatch, read in one pass over their table instead of edge by edge.

The positions of each batch, sorted, go to a file in as many parts as the table has pieces. Each
piece is read once, and the ids of its part of each batch go to another file, until the batch is
assembled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts, empty
from gnnstore.disk.spool import SPOOLED_BYTES, FileSpool
from gnnstore.features.source import Rows

if TYPE_CHECKING:
    from gnnstore.formats.arrays.paged_array import PagedArray
    from gnnstore.formats.store.schema import EdgeType
    from gnnstore.sampling.neighbor import Subgraph

_MAX_PIECES = 64
_PIECE_BYTES = 1 << 20
# Files with places at a time: two of the superbatch that is made, and those of ids of two others,
# of which one is being left.
_INDEXES = 4
# A pass is made for batches with at least one edge for so many of the table: reading an edge's id
# by itself costs a page, which other edges seldom share.
_EDGES_PER_READ = 64


def piece_bytes(num_bytes: int) -> int:
    """Return the bytes of the pieces in which a table of ids is read."""
    whole_ids = -(-num_bytes // (8 * _MAX_PIECES)) * 8
    return min(num_bytes, max(_PIECE_BYTES, whole_ids))


def index_bytes(num_bytes: int) -> int:
    """Return the memory for each batch of a superbatch: of the places of its parts in files."""
    num_pieces = -(-num_bytes // max(1, piece_bytes(num_bytes)))
    return _INDEXES * SPOOLED_BYTES * num_pieces


class SuperbatchIds:
    """The ids of the sampled edges of S batches. Safe to use from many threads at once."""

    def __init__(
        self, tables: Mapping[EdgeType, PagedArray], path: Path, num_batches: int, most_bytes: int
    ) -> None:
        self._most_bytes = most_bytes  # on disk, of each of two superbatches
        self._tables = {
            kind: _TableIds(table, path.with_name(f"{path.name}-{number}"), num_batches)
            for number, (kind, table) in enumerate(tables.items())
        }

    def put(self, i: int, sample: Subgraph[Any]) -> None:
        """Note the edges of batch i, if there is room on disk."""
        if self.num_disk_bytes < self._most_bytes:
            for kind, table in self._tables.items():
                table.put(i, sample.edges[kind].positions)

    def read(self, check: Callable[[], None]) -> int:
        """Read the ids of all edges; return the bytes that were read of the tables."""
        return sum(table.read(check) for table in self._tables.values())

    def rows(self, i: int, sample: Subgraph[Any]) -> dict[str, Rows]:
        """Return the ids of the edges of batch i by table, and forget them."""
        found = {}
        for kind, table in self._tables.items():
            ids = table.take(i, sample.edges[kind].positions)
            if ids is not None:
                found[table.path] = Rows(ids, ReadCounts())
        return found

    @property
    def num_disk_bytes(self) -> int:
        """Disk space that is taken."""
        return sum(table.num_disk_bytes for table in self._tables.values())

    def close(self) -> None:
        """Remove the files and forget all ids. Idempotent."""
        tables, self._tables = self._tables, {}
        for table in tables.values():
            table.close()


class _TableIds:
    """Ids of edges of one type."""

    def __init__(self, table: PagedArray, path: Path, num_batches: int) -> None:
        self.path = table.spec.path
        self._table, self._num_batches = table, num_batches
        step = piece_bytes(table.spec.num_bytes) // table.dtype.itemsize
        self._starts = np.arange(0, max(1, table.num_rows), step)
        self._step = step
        make = [path.with_name(f"{path.name}-{what}") for what in ("positions", "ids")]
        number = num_batches * len(self._starts)  # part k of batch i is number i * K + k
        # Each until it is not needed any more: the places of its parts take memory.
        self._positions: FileSpool | None
        self._ids: FileSpool | None
        self._positions, self._ids = (FileSpool(p, number, what="ids of edges") for p in make)
        self._num_edges = 0
        self._lock = threading.Lock()

    @property
    def num_disk_bytes(self) -> int:
        """Disk space of both files; that of ids grows as large as that of positions."""
        file = self._positions or self._ids
        return 0 if file is None else 2 * file.num_disk_bytes

    def _numbers(self, i: int) -> range:
        return range(i * len(self._starts), (i + 1) * len(self._starts))

    def put(self, i: int, positions: npt.NDArray[np.int64]) -> None:
        """Write the positions of batch i's edges."""
        assert self._positions is not None  # noqa: S101 - for the type checker
        ordered = np.sort(positions.astype(self._table.dtype))
        ends = np.searchsorted(ordered, self._starts[1:])
        for number, part in zip(self._numbers(i), np.split(ordered, ends), strict=True):
            self._positions.append(number, [part])
        with self._lock:
            self._num_edges += len(positions)

    def read(self, check: Callable[[], None]) -> int:
        """Read all pieces of the table, unless there are so few edges that reading each is less."""
        if self._num_edges * _EDGES_PER_READ < self._table.num_rows:
            self.close()
            return 0
        assert self._positions is not None and self._ids is not None  # noqa: S101, PT018 - as above
        batches = np.flatnonzero(self._have_all(self._positions)).tolist()
        for k, first in enumerate(self._starts.tolist()):
            check()
            piece = self._table.read_slice(first, min(first + self._step, self._table.num_rows))
            for i in batches:
                number = self._numbers(i)[k]
                (part,) = self._positions.read(number)
                self._ids.append(number, [piece[part - first]])
        self._positions.close()
        self._positions = None
        return self._table.spec.num_bytes

    def _have_all(self, file: FileSpool) -> npt.NDArray[np.bool_]:
        """Return, for each batch, whether a file has all of its parts."""
        last = len(self._starts) - 1
        return file.counts[last :: len(self._starts), 0] >= 0

    def take(self, i: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any] | None:
        """Return the ids of batch i's edges in their order; None if they were not read."""
        file = self._ids
        if file is None or not self._have_all(file)[i]:
            return None
        parts = [part for number in self._numbers(i) for part in file.read(number)]
        for number in self._numbers(i):
            file.drop(number)
        ids = empty(positions.shape, self._table.dtype)
        ids[np.argsort(positions.astype(self._table.dtype))] = np.concatenate(parts)
        return ids

    def close(self) -> None:
        """Remove the files."""
        files = (self._positions, self._ids)
        self._positions = self._ids = None
        for file in files:
            if file is not None:
                file.close()
