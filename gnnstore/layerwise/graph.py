"""Reads the edges of a store in the order of their targets, to make blocks from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts
from gnnstore.errors import CorruptStoreError
from gnnstore.features.source import RowSource
from gnnstore.graph.indices import IndexRows
from gnnstore.threads import Workers

# The set of a block's nodes is listed in parts of this many bytes: 131,072 nodes.
LISTED_BYTES = 1 << 14


@dataclass(frozen=True)
class Pieces:
    """The sizes of pieces in which a block is made."""

    read_ids: int  # ids or pointers that are read at a time
    edges: int  # most edges that are added to a block at a time
    targets: int  # most targets that are added to a block at a time
    part_bytes: int  # bytes of rows that each worker reads at a time

    @classmethod
    def of(cls, memory_bytes: int) -> Pieces:
        """Choose sizes that take about an eighth of a small budget, and less of a large one."""

        def size(share: int, least: int, most: int) -> int:
            return min(max(memory_bytes // share, least), most)

        edges = size(2048, 1 << 10, 1 << 18)
        return cls(size(1024, 1 << 12, 1 << 20), edges, edges // 4, size(128, 1 << 16, 16 << 20))

    @property
    def num_bytes(self) -> int:
        """Bytes of ids that are read ahead, of pieces while they are numbered, and of lists."""
        return 3 * 8 * self.read_ids + 64 * (self.edges + self.targets) + 8 * 8 * LISTED_BYTES * 2


class OrderedReader:
    """Reads a stored vector in order, in chunks, from which pieces are taken that may overlap."""

    def __init__(self, rows: IndexRows, read_ids: int, workers: Workers) -> None:
        self.rows = rows
        self._workers = workers
        self._read_ids = read_ids
        self._start = 0
        self._chunk: npt.NDArray[Any] = np.empty(0, rows.dtype)

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return values that lie elsewhere, and nothing around them."""
        return self._workers.run([partial(self.rows.read, start, stop)])[0]

    def take(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return values start ... stop - 1, a new array; earlier ones are read again."""
        end = self._start + len(self._chunk)
        if not self._start <= start <= end:
            self._start, self._chunk, end = start, self._chunk[:0], start
        if stop > end:
            until = min(max(stop, end + self._read_ids), self.rows.num_edges)
            self._chunk = np.concatenate(
                [self._chunk[start - self._start :], self.read(end, until)]
            )
            self._start = start
        return self._chunk[start - self._start : stop - self._start].copy()


class GraphReader:
    """The edges of a store, read in order of their targets."""

    def __init__(
        self,
        indptr: IndexRows,
        indices: IndexRows | None,
        edge_data: Mapping[str, RowSource],
        path: str,
        *,
        pieces: Pieces,
        workers: Workers,
    ) -> None:
        self.piece = pieces
        self.num_nodes = indptr.num_edges - 1
        self.num_edges = 0 if indices is None else indices.num_edges
        self._workers = workers
        self._edge_data = edge_data
        self._path = path
        self._indptr = OrderedReader(indptr, pieces.read_ids, workers)
        self._indices = (
            None if indices is None else OrderedReader(indices, pieces.read_ids, workers)
        )
        self._counts = ReadCounts()

    @property
    def bytes_read(self) -> int:
        """Bytes read so far."""
        readers = [reader for reader in (self._indptr, self._indices) if reader is not None]
        return sum((one.rows.counts for one in readers), self._counts).bytes_read

    def begins(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return the begins of the edges into nodes first ... last - 1, and the end of the last."""
        begins = self._indptr.take(first, last + 1)
        if begins[0] < 0 or begins[-1] > self.num_edges or (np.diff(begins) < 0).any():
            raise self.damaged(
                f"the edges of nodes {first} to {last} do not follow one another in 'indptr'"
            )
        return begins

    def sources(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return the sources of some edges: int32 or int64 [end - begin]."""
        return np.empty(0, np.int64) if self._indices is None else self._indices.take(begin, end)

    def data(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        """Return data of some edges, writable."""
        positions = np.arange(begin, end, dtype=np.int64)
        (rows,) = self._workers.run([partial(self._edge_data[name].gather, positions)])
        self._counts += rows.counts
        return np.require(rows.values, requirements="W")

    def pieces(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yield pieces of the graph in order: the first target, and the begins of the edges."""
        first = 0
        while first < self.num_nodes:
            begins = self.begins(first, min(first + self.piece.targets, self.num_nodes))
            last = max(1, int(np.searchsorted(begins, begins[0] + self.piece.edges, "right")) - 1)
            yield first, begins[: last + 1]
            first += last

    def count_sources(self, advance: Callable[[int], None]) -> npt.NDArray[np.uint32]:
        """Count the edges out of each node, in one pass: uint32 [N]."""
        counts = np.zeros(self.num_nodes, np.uint32)
        for _, begins in self.pieces():
            sources = self.sources(int(begins[0]), int(begins[-1]))
            try:
                _core.count_ids(np.ascontiguousarray(sources), counts)
            except IndexError as error:
                raise self.damaged(error) from error
            advance(len(begins) - 1)
        return counts

    def find_hub(self) -> tuple[int, int]:
        """Return the node with the most in-neighbours, and their number."""
        hub = (0, 0)
        for first in range(0, self.num_nodes, self.piece.read_ids):
            degrees = np.diff(self.begins(first, min(first + self.piece.read_ids, self.num_nodes)))
            at = int(degrees.argmax())
            hub = max(hub, (first + at, int(degrees[at])), key=lambda one: one[1])
        return hub

    def damaged(self, what: object) -> CorruptStoreError:
        """Return the error of edges that cannot be."""
        return CorruptStoreError(
            f"{self._path}: the graph is damaged: {what}; run 'gnnstore verify' on the store, or "
            "convert the graph again",
            path=self._path,
        )
