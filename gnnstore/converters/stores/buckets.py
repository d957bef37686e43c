"""Sorts the edges of a store into buckets, in memory or in two sequential passes over files.

The key of an edge is its bucket, then the rows of its target and of its source. A sample of edges
decides where to cut the range of keys into groups that fit in memory. A node of many edges is cut
like any other, since its sources are part of the key.
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
from gnnstore.converters.edges.runs import NARROW_BYTES, WIDE_BYTES, record_dtype
from gnnstore.converters.inputs.source import num_threads, read_ahead
from gnnstore.converters.spill_files import RangeSort
from gnnstore.converters.stores.graph import EdgePiece, StoreInput
from gnnstore.formats.base.files import require_space
from gnnstore.progress import Progress

Int64Array = npt.NDArray[np.int64]
SortedPiece = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], Int64Array]

_PIECE_EDGES = 2**17
# Edges that are sampled for the sizes of groups, and the share of memory that groups fill: they
# come out within a few per cent of the size that such a sample promises.
_SAMPLE_EDGES, _FILL = 2**16, 0.75
_KEY_BITS = 64
# Bytes of a record while it is sorted, with as much scratch; the pool adds up to an eighth.
_BYTES_TO_SORT = 2 * WIDE_BYTES * 9 // 8


@dataclass(frozen=True)
class Grid:
    """Nodes in partitions of R rows, edges in a bucket for each pair of partitions."""

    num_partitions: int  # p
    rows: int  # R
    new_ids: npt.NDArray[Any]  # int32 or int64 [N]: new id of each node

    def split(
        self, piece: EdgePiece, step: slice = slice(None)
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the bucket, the row of the target and the row of the source of each edge."""
        targets, target = np.divmod(self.new_ids[piece.targets[step]].astype(np.int64), self.rows)
        sources, source = np.divmod(self.new_ids[piece.sources[step]].astype(np.int64), self.rows)
        targets *= self.num_partitions
        targets += sources
        return targets, target, source


class BucketedEdges:
    """The edges of a store, sorted by bucket, target, source and position."""

    def __init__(self, graph: StoreInput, grid: Grid, memory: Ledger) -> None:
        self._graph = graph
        self._grid = grid
        self._memory = memory
        self._most = edges_at_once(memory)
        self._files: RangeSort | None = None
        self._whole = np.empty(0, np.uint8)  # the records of all edges, if they fit in memory
        self._splitters = np.empty(0, np.uint64)
        # int64 [p * p]: edges of each bucket, known after `divide`.
        self.counts = np.zeros(grid.num_partitions**2, np.int64)
        # A key has the place of the target among all rows of all buckets, then the high bits of the
        # source's row that fit.
        source_bits = (grid.rows - 1).bit_length()
        place_bits = (len(self.counts) * grid.rows - 1).bit_length()
        self._lost_bits = np.uint64(max(0, source_bits + place_bits - _KEY_BITS))
        self._kept_bits = np.uint64(source_bits) - self._lost_bits

    def divide(self, directory: Path, progress: Progress) -> None:
        """Send every edge to its group, and count the edges of each bucket."""
        num_edges = self._graph.num_edges
        if num_edges > self._most:
            self._choose_splitters(progress)
            require_space(
                directory,
                WIDE_BYTES * num_edges,
                f"sort {num_edges} edges on disk",
                "allow more memory (memory_bytes=)",
            )
            self._files = RangeSort(directory, "edges to sort")
        # Records of a group count from the least place of a target among the rows of all buckets.
        bounds = [0, *(int(key) >> int(self._kept_bits) for key in self._splitters)]
        ends = [*(bound + 1 for bound in bounds[1:]), len(self.counts) * self._grid.rows]
        self._bases = np.array(bounds, np.int64)
        self._sizes = np.zeros(len(bounds), np.int64)
        is_narrow = max(num_edges, *np.subtract(ends, bounds)) < 2**32
        self._record = record_dtype(NARROW_BYTES if is_narrow else WIDE_BYTES)
        if self._files is None:
            self._whole = _core.pool_empty(num_edges * self._record.itemsize)
        with progress.phase("divide edges", num_edges, "edges") as phase:
            for piece in read_ahead(self._graph.edge_pieces(_PIECE_EDGES)):
                self._send(piece)
                phase.advance(len(piece.sources))

    def _choose_splitters(self, progress: Progress) -> None:
        """Sample edges at equal distances, and choose cuts that make groups of equal size."""
        num_edges = self._graph.num_edges
        stride = max(1, num_edges // _SAMPLE_EDGES)
        keys = []
        with progress.phase("sample edges", num_edges, "edges") as phase:
            for piece in read_ahead(self._graph.edge_pieces(_PIECE_EDGES)):
                chosen = slice(-piece.first % stride, None, stride)
                keys.append(self._key(*self._grid.split(piece, chosen)))
                phase.advance(len(piece.sources))
        sample = np.sort(np.concatenate(keys))
        num_groups = -(-num_edges // max(1, int(_FILL * self._most)))
        cuts = np.arange(1, num_groups) * len(sample) // num_groups
        self._splitters = np.unique(sample[cuts])

    def _key(
        self, bucket: Int64Array, target: Int64Array, source: Int64Array
    ) -> npt.NDArray[np.uint64]:
        places = (bucket * self._grid.rows + target).astype(np.uint64)
        return (places << self._kept_bits) | (source.astype(np.uint64) >> self._lost_bits)

    def _send(self, piece: EdgePiece) -> None:
        bucket, target, source = self._grid.split(piece)
        np.add.at(self.counts, bucket, 1)
        groups = np.zeros(len(target), np.uint32)
        if len(self._splitters):
            keys = self._key(bucket, target, source)
            groups = np.searchsorted(self._splitters, keys, "right").astype(np.uint32)
        self._sizes += np.bincount(groups, minlength=len(self._sizes))
        records = np.empty(len(target), self._record)
        records["target"] = bucket * self._grid.rows + target - self._bases[groups]
        records["source"] = source
        records["position"] = np.arange(piece.first, piece.first + len(target))
        if self._files is None:
            begin = piece.first * self._record.itemsize
            self._whole[begin : begin + records.nbytes] = records.view(np.uint8)
        else:
            self._files.add(groups, records=records)

    def sorted(self) -> Iterator[SortedPiece]:
        """Yield the rows of sources and of targets, and positions of all edges, in order."""
        for group, num_edges in enumerate(self._sizes.tolist()):
            if num_edges:
                yield from self._sort(group, num_edges)
        if self._files is not None:
            self._files.close()

    def _sort(self, group: int, num_edges: int) -> Iterator[SortedPiece]:
        num_bytes = num_edges * self._record.itemsize
        if 2 * num_bytes > self._most * _BYTES_TO_SORT:
            needed = Reservation(f"{num_edges} edges between a few nodes", 2 * num_bytes)
            raise self._memory.add(needed).refusal()
        if self._files is None:
            records, self._whole = self._whole, np.empty(0, np.uint8)
        else:
            records = self._files.column(group, "records", np.uint8)
        scratch = _core.pool_empty(num_bytes)
        _core.sort_edges(records, scratch, self._record.itemsize, num_edges, False, num_threads())
        del scratch
        found = records.view(self._record)
        for begin in range(0, len(found), _PIECE_EDGES):
            part = found[begin : begin + _PIECE_EDGES]
            targets = (part["target"].astype(np.int64) + self._bases[group]) % self._grid.rows
            sources, positions = part["source"].astype(np.int32), part["position"]
            yield sources, targets.astype(np.int32), positions.astype(np.int64)


def edges_at_once(memory: Ledger) -> int:
    """Return the number of edges that can be sorted in the memory that is left."""
    return max(0, memory.left()) // _BYTES_TO_SORT
