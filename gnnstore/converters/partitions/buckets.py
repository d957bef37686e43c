"""Sorts the edges of a store into buckets: within a memory budget, in two sequential passes.

The key of an edge is its bucket, then the rows of its target and of its source. A sample of edges
says where to cut the range of keys into groups that fit in memory. One pass over the store sends
each edge to the file of its group; then group by group is read and sorted. A node of very many
edges is cut like any other, since its sources are part of the key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.converters.edges.on_disk.runs import NARROW_BYTES, WIDE_BYTES, record_dtype
from gnnstore.converters.read_ahead import num_threads, read_ahead
from gnnstore.converters.spill_files import SpillDirectory, by_key
from gnnstore.converters.stores.graph import EdgePiece, StoreInput
from gnnstore.formats.container.files import require_space
from gnnstore.progress import Progress

PIECE_EDGES = 2**17
# Groups come out within a few per cent of the size that such a sample promises.
_SAMPLE_EDGES, _FILL = 2**16, 0.75
_KEY_BITS = 64
# Records and as much scratch; the pool adds up to an eighth.
_BYTES_TO_SORT = 2 * WIDE_BYTES * 9 // 8


@dataclass(frozen=True)
class Grid:
    """Nodes in partitions of R rows, edges in a bucket for each pair of partitions."""

    num_partitions: int  # p
    rows: int  # R
    place: npt.NDArray[Any]  # int32 or int64 [N]: new id of each node

    def split(
        self, piece: EdgePiece, step: slice = slice(None)
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the bucket, the row of the target and the row of the source of each edge."""
        targets, target = np.divmod(self.place[piece.targets[step]].astype(np.int64), self.rows)
        sources, source = np.divmod(self.place[piece.sources[step]].astype(np.int64), self.rows)
        targets *= self.num_partitions
        targets += sources
        return targets, target, source


@dataclass
class _Group:
    """Edges that are sorted together."""

    name: str
    base: int  # least place of a target among the rows of all buckets; records count from there
    record_bytes: int  # 12 or 24
    num_edges: int = 0


class BucketedEdges:
    """The edges of a store, sorted by bucket, target, source and position."""

    def __init__(self, graph: StoreInput, grid: Grid, directory: Path, memory: Ledger) -> None:
        self._graph = graph
        self._grid = grid
        self._directory = directory
        self._memory = memory
        self._most = edges_at_once(memory)
        self._files: SpillDirectory | None = None
        self._whole = np.empty(0, np.uint8)
        self._groups: list[_Group] = []
        self._splitters = np.empty(0, np.uint64)
        # int64 [p * p]: edges of each bucket, known after `divide`.
        self.counts = np.zeros(grid.num_partitions**2, np.int64)
        # A key has the place of the target among all rows of all buckets, then the high bits of the
        # source's row that fit.
        source_bits = (grid.rows - 1).bit_length()
        place_bits = (len(self.counts) * grid.rows - 1).bit_length()
        self._lost_bits = np.uint64(max(0, source_bits + place_bits - _KEY_BITS))
        self._kept_bits = np.uint64(source_bits) - self._lost_bits

    def divide(self, progress: Progress) -> None:
        """Send every edge to its group, and count the edges of each bucket."""
        num_edges = self._graph.num_edges
        if num_edges > self._most:
            self._choose_splitters(progress)
            require_space(
                self._directory,
                WIDE_BYTES * num_edges,
                f"sort {num_edges} edges on disk",
                "allow more memory (memory_bytes=)",
            )
            self._files = SpillDirectory(self._directory, "edges to sort")
        bounds = [0, *(int(key) >> int(self._kept_bits) for key in self._splitters)]
        ends = [*(bound + 1 for bound in bounds[1:]), len(self.counts) * self._grid.rows]
        for number, (base, end) in enumerate(zip(bounds, ends, strict=True)):
            is_narrow = max(end - base, num_edges) < 2**32
            record_bytes = NARROW_BYTES if is_narrow else WIDE_BYTES
            self._groups.append(_Group(f"{number:06d}", base, record_bytes))
        if self._files is None:
            self._whole = _core.pool_empty(num_edges * self._groups[0].record_bytes)
        with progress.phase("divide edges", num_edges, "edges") as phase:
            for piece in read_ahead(self._graph.edge_pieces(PIECE_EDGES)):
                self._send(piece)
                phase.advance(len(piece.sources))

    def _choose_splitters(self, progress: Progress) -> None:
        """Sample edges at equal distances, and choose cuts that make groups of equal size."""
        num_edges = self._graph.num_edges
        stride = max(1, num_edges // _SAMPLE_EDGES)
        keys = []
        with progress.phase("sample edges", num_edges, "edges") as phase:
            for piece in read_ahead(self._graph.edge_pieces(PIECE_EDGES)):
                chosen = slice(-piece.first % stride, None, stride)
                keys.append(self._key(*self._grid.split(piece, chosen)))
                phase.advance(len(piece.sources))
        sample = np.sort(np.concatenate(keys))
        num_groups = -(-num_edges // max(1, int(_FILL * self._most)))
        cuts = np.arange(1, num_groups) * len(sample) // num_groups
        self._splitters = np.unique(sample[cuts])

    def _key(
        self,
        bucket: npt.NDArray[np.int64],
        target: npt.NDArray[np.int64],
        source: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint64]:
        places = (bucket * self._grid.rows + target).astype(np.uint64)
        return (places << self._kept_bits) | (source.astype(np.uint64) >> self._lost_bits)

    def _send(self, piece: EdgePiece) -> None:
        bucket, target, source = self._grid.split(piece)
        np.add.at(self.counts, bucket, 1)
        position = np.arange(piece.first, piece.first + len(target))
        places: list[tuple[int, Any]] = [(0, slice(None))]
        if len(self._splitters):
            groups = np.searchsorted(self._splitters, self._key(bucket, target, source), "right")
            places = list(by_key(groups.astype(np.uint32)))
        for number, chosen in places:
            group = self._groups[number]
            records = np.empty(len(position[chosen]), record_dtype(group.record_bytes))
            records["target"] = bucket[chosen] * self._grid.rows + target[chosen] - group.base
            records["source"] = source[chosen]
            records["position"] = position[chosen]
            if self._files is None:
                begin = group.num_edges * group.record_bytes
                self._whole[begin : begin + records.nbytes] = records.view(np.uint8)
            else:
                self._files.append(group.name, records)
            group.num_edges += len(records)

    def sorted(
        self,
    ) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
        """Yield the rows of sources and of targets, and positions of all edges, in order."""
        for group in self._groups:
            if group.num_edges:
                yield from self._sort(group)
        if self._files is not None:
            self._files.close()

    def _sort(
        self, group: _Group
    ) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
        num_bytes = group.num_edges * group.record_bytes
        if 2 * num_bytes > self._most * _BYTES_TO_SORT:
            needed = Reservation(f"{group.num_edges} edges between a few nodes", 2 * num_bytes)
            raise self._memory.add(needed).refusal()
        if self._files is None:
            records, self._whole = self._whole, np.empty(0, np.uint8)
        else:
            records = self._files.read(group.name, np.uint8, 0, num_bytes)
            self._files.remove(group.name)
        scratch = _core.pool_empty(num_bytes)
        _core.sort_edges(
            records, scratch, group.record_bytes, group.num_edges, False, num_threads()
        )
        del scratch
        found = records.view(record_dtype(group.record_bytes))
        for begin in range(0, len(found), PIECE_EDGES):
            part = found[begin : begin + PIECE_EDGES]
            yield (
                part["source"].astype(np.int32),
                ((part["target"].astype(np.int64) + group.base) % self._grid.rows).astype(np.int32),
                part["position"].astype(np.int64),
            )


def edges_at_once(memory: Ledger) -> int:
    """Return the number of edges that can be sorted in the memory that is left."""
    return max(0, memory.left()) // _BYTES_TO_SORT
