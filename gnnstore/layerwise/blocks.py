"""Blocks made from a store: consecutive nodes, as many as memory allows, and their in-neighbours.

The graph is read in order, a piece at a time. A set of one bit a node counts the distinct
in-neighbours of the pieces so far, so that a block grows until its rows fill its memory. The blocks
of a group are found first, then their rows are packed in one pass over the table, and then they are
made one by one. The larger blocks are, the fewer rows are read more than once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore._core import ReadCounts, empty, pool_trim
from gnnstore.errors import CorruptStoreError
from gnnstore.features.source import RowSource
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.graph.topology import IndexRows
from gnnstore.layerwise.calls import Block, DegreeNorm
from gnnstore.layerwise.plan import NODES, TARGETS, BlockLimits
from gnnstore.layerwise.rows import KeptRows, PackedRows, TableReader
from gnnstore.threads import CancelledError, Flag, Workers

# Bytes of a part in which the set of a block's nodes is listed: 131,072 nodes.
LISTED_BYTES = 1 << 14
# Least share by which a block grows; it is complete instead of growing by less.
_LEAST_GROWTH = 1 / 64
_MAX_BLOCKS = 1024
# The share of the memory of a block that is made for rows that are to be written together.
_PENDING_SHARE = 4


class GraphReader:
    """The edges of a store, read in the order of their targets."""

    def __init__(
        self,
        indptr: IndexRows,
        indices: IndexRows | None,
        edge_data: Mapping[str, RowSource],
        path: str,
        *,
        piece: int,  # edges that are read at a time
        workers: Workers,
    ) -> None:
        self.piece = piece
        self.num_nodes = indptr.num_edges - 1
        self.num_edges = 0 if indices is None else indices.num_edges
        # Targets that are looked at together: about as many as have the edges of a piece.
        self.window = min(piece, max(1, piece * self.num_nodes // max(1, self.num_edges)))
        self._indptr, self._indices, self._edge_data = indptr, indices, edge_data
        self._path = path
        self._workers = workers
        self._counts = ReadCounts()

    @property
    def bytes_read(self) -> int:
        """Bytes read so far."""
        readers = [reader for reader in (self._indptr, self._indices) if reader is not None]
        return sum((one.counts for one in readers), self._counts).bytes_read

    def begins(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return the begins of the edges into nodes first ... last - 1, and the end of the last."""
        (begins,) = self._workers.run([partial(self._indptr.read, first, last + 1)])
        if begins[0] < 0 or begins[-1] > self.num_edges or (np.diff(begins) < 0).any():
            raise self._damaged(
                f"the edges of nodes {first} to {last} do not follow one another in 'indptr'"
            )
        return begins

    def sources(self, begin: int, end: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the sources of some edges, a piece at a time."""
        for at in range(begin, end, self.piece):
            assert self._indices is not None  # noqa: S101 - there are edges
            read = partial(self._indices.read, at, min(at + self.piece, end))
            (sources,) = self._workers.run([read])
            if int(sources.min()) < 0 or int(sources.max()) >= self.num_nodes:
                raise self._damaged(f"edges {at} to {at + len(sources)} come from unknown nodes")
            yield sources.astype(np.int64)

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
            begins = self.begins(first, min(first + self.window, self.num_nodes))
            last = max(1, int(np.searchsorted(begins, begins[0] + self.piece, "right")) - 1)
            yield first, begins[: last + 1]
            first += last

    def count_sources(self, advance: Callable[[int], None]) -> npt.NDArray[np.uint32]:
        """Count the edges out of each node, in one pass: uint32 [N]."""
        counts = np.zeros(self.num_nodes, np.uint32)
        for _, begins in self.pieces():
            for sources in self.sources(int(begins[0]), int(begins[-1])):
                _core.count_ids(sources, counts)
            advance(len(begins) - 1)
        return counts

    def find_hub(self) -> tuple[int, int]:
        """Return the node with the most in-neighbours, and their number."""
        hub = (0, 0)
        for first in range(0, self.num_nodes, self.piece):
            degrees = np.diff(self.begins(first, min(first + self.piece, self.num_nodes)))
            at = int(degrees.argmax())
            hub = max(hub, (first + at, int(degrees[at])), key=lambda one: one[1])
        return hub

    def degree_scale(
        self, norm: DegreeNorm, dtype: torch.dtype, advance: Callable[[int], None]
    ) -> Tensor:
        """Compute 1 / sqrt(degree) of all nodes, in one pass over the edges: [N] of some type."""
        scale = torch.empty(self.num_nodes, dtype=dtype)
        for first, begins in self.pieces():
            num_targets, begin, end = len(begins) - 1, int(begins[0]), int(begins[-1])
            found = [np.empty(0, np.int64), *self.sources(begin, end)]
            sources = torch.from_numpy(np.concatenate(found)).sub_(first)
            # Its source matters only if it is the target itself.
            sources[(sources < 0) | (sources >= num_targets)] = num_targets
            edges = {}
            if norm.weight_name is not None:
                weights = torch.from_numpy(self.data(norm.weight_name, begin, end))
                edges[norm.weight_name] = weights.to(dtype)
            rows = torch.empty(num_targets + 1, 0, dtype=dtype)
            block = Block(rows, torch.from_numpy(begins - begin), sources, edges)
            scale[first : first + num_targets] = norm.scale(block)
            advance(num_targets)
        return scale

    def _damaged(self, what: str) -> CorruptStoreError:
        return CorruptStoreError(
            f"{self._path}: the graph is damaged: {what}; run 'gnnstore verify' on the store, or "
            "convert the graph again",
            path=self._path,
        )


class BlockMaker:
    """Makes the blocks of one layer, in order. Not thread-safe."""

    def __init__(
        self,
        graph: GraphReader,
        table: TableReader,
        limits: BlockLimits,
        kept: KeptRows | None,  # of a layer that sums rows
        *,
        scale: Tensor | None,
        directory: Path,
        disk_bytes: Callable[[], int],
    ) -> None:
        self.limits = limits
        self.bytes_packed = self.bytes_unpacked = 0  # that were written, and read again
        self.stop = Flag()  # if set, packing ends soon, and making blocks fails
        self.graph = graph
        self.table = table
        self._call = table.plan.call
        self._kept = kept
        self._keeps_all = kept is not None and kept.is_all
        self._scale = scale
        self._kept_scale = None
        if kept is not None and scale is not None:
            self._kept_scale = scale[torch.from_numpy(kept.nodes)]
        self._directory = directory
        self._disk_bytes = disk_bytes
        self._making = int(limits.shares[0])
        self._id_bytes = int(limits.shares[1]) if limits.is_ahead else self._making // 2
        self._words = np.zeros(-(-graph.num_nodes // 64), np.uint64)

    def blocks(self, first: int) -> Iterator[tuple[int, Block, Tensor | None]]:
        """Make the blocks of all nodes from `first` on: first target, block, see `complete`."""
        num_nodes = self.graph.num_nodes
        while first < num_nodes:
            if not self._call.needs_edges:
                last = min(first + max(1, self.limits.most(NODES + TARGETS)), num_nodes)
                yield first, self._without_edges(first, last), None
                first = last
                continue
            bounds, wanted = self._outline_group(first)
            with closing(self._pack(wanted)) as packed:
                del wanted
                for number, (begin, last) in enumerate(bounds):
                    yield begin, *self._make(begin, last, number, packed)
            first = last

    def complete(self, block: Block, others: Tensor | None) -> Block:
        """Return a block with all its rows, when the layer is about to run on it."""
        if self._kept is None or others is None:
            return block
        return self._kept.in_front(block, others)

    def _outline_group(self, first: int) -> tuple[list[tuple[int, int]], list[npt.NDArray[Any]]]:
        """Find blocks whose rows are packed together: first and last node, ids of other rows."""
        dtype = id_dtype(self.graph.num_nodes)
        packed_bytes = self.table.plan.packed_bytes + dtype.itemsize
        room, total = self._disk_bytes(), 0
        bounds: list[tuple[int, int]] = []
        wanted: list[npt.NDArray[Any]] = []
        pool_trim(0)  # ids, and rows to be packed, take the place of a block
        while first < self.graph.num_nodes and len(bounds) < _MAX_BLOCKS:
            if self.stop.is_set():
                raise CancelledError("blocks are no longer needed")
            last = self._grow(first)
            ids = _listed(self._words)
            total += len(ids)
            if bounds and (total * dtype.itemsize > self._id_bytes or total * packed_bytes > room):
                break
            bounds.append((first, last))
            wanted.append(ids.astype(dtype))
            first = last
        # The first group has no block as yet; later the layer runs on one meanwhile.
        self._id_bytes = self._making // 2
        return bounds, wanted

    def _grow(self, first: int) -> int:
        """Add targets while they fit; return the last, with the other rows of the block marked."""
        graph = self.graph
        self._words[:] = 0
        size = (0, 0, 0)  # edges, nodes, targets
        while (at := first + size[2]) < graph.num_nodes:
            begins = graph.begins(at, min(at + graph.window, graph.num_nodes))
            ends = begins[1:] - begins[0]
            most = max(1, int(np.searchsorted(ends, graph.piece, "right")))
            # A node alone may bring few new rows.
            taken = self._num_fitting(ends[:most], size) or int(at == first)
            grown = int(ends[taken - 1]) + taken if taken else 0
            is_small = taken < most and grown < _LEAST_GROWTH * (size[0] + size[2])
            if not taken or is_small:
                break
            end = int(begins[0] if self._keeps_all else begins[taken])
            for sources in graph.sources(int(begins[0]), end):
                bits = None if self._kept is None else self._kept.index[0]
                rest: Any = sources if bits is None else _core.drop_pinned(bits, sources)
                _core.bitmap_mark(self._words, rest)
            _core.bitmap_mark(self._words, np.arange(at, at + taken, dtype=np.int64))
            num_nodes = int(_core.bitmap_count(self._words)[1])
            size = (size[0] + int(ends[taken - 1]), num_nodes, size[2] + taken)
        last = first + size[2]
        begin, end = first // 64, -(-last // 64)
        own = np.unpackbits(self._words[begin:end].view(np.uint8), bitorder="little")
        own[first - 64 * begin : last - 64 * begin] = 0
        self._words[begin:end] = np.packbits(own, bitorder="little").view(np.uint64)
        return last

    def _num_fitting(self, ends: npt.NDArray[np.int64], size: tuple[int, int, int]) -> int:
        """Return the number of targets that still fit; `ends` are the edges of the first 1, 2..."""

        def is_too_large(number: int) -> bool:
            more = int(ends[number])
            # Each edge may bring a new node.
            new = 0 if self._keeps_all else more
            num_nodes = min(size[1] + new + number + 1, self.graph.num_nodes)
            return not self.limits.admits((size[0] + more, num_nodes, size[2] + number + 1))

        return bisect_left(range(len(ends)), True, key=is_too_large)

    def _pack(self, wanted: list[npt.NDArray[Any]]) -> PackedRows:
        """Pack the rows of a group, and fill those that are kept the first time."""
        max_pending = self._making // _PENDING_SHARE // self.table.plan.packed_bytes
        packed = PackedRows(self.table, wanted, self._directory, max_pending)
        kept = None if self._kept is None or self._kept.is_filled else self._kept
        try:
            packed.fill(kept, self.stop)
        except BaseException:
            packed.close()
            raise
        if kept is not None:
            kept.is_filled = True
        self.bytes_packed += packed.bytes_written
        return packed

    def _make(
        self, first: int, last: int, number: int, packed: PackedRows
    ) -> tuple[Block, Tensor | None]:
        graph, call, num_targets = self.graph, self._call, last - first
        ids = packed.ids(number).astype(np.int64)
        begins = graph.begins(first, last)
        begin, end = int(begins[0]), int(begins[-1])
        num_own = num_targets if call.sums else num_targets + len(ids)
        num_bytes = 8 * (end - begin) + num_own * call.kind.row_bytes
        num_bytes += len(ids) * call.source_bytes * call.sums
        # What blocks before have left is used again, as far as there is room for both.
        pool_trim(max(0, self._making - num_bytes) if self.limits.is_ahead else 0)
        sources = torch.from_numpy(empty((end - begin,), np.int64))
        x = self._rows(num_own, call.kind.width)
        others = self._rows(len(ids), call.source_width) if call.sums else x[num_targets:]
        self._number(sources.numpy(), (first, last), (begin, end), ids)
        edges = {
            name: torch.from_numpy(graph.data(name, begin, end)).to(call.kind.dtype)
            for name in call.takes
        }
        self.table.read(first, x[:num_targets])
        self.bytes_unpacked += packed.read(number, others)
        scale = None
        if self._scale is not None:
            scale = self._scale[torch.from_numpy(np.concatenate([np.arange(first, last), ids]))]
            if self._kept_scale is not None:
                scale = torch.cat([scale, self._kept_scale])
        block = Block(x, torch.from_numpy(begins - begin), sources, edges, scale)
        return block, others if call.sums else None

    def _without_edges(self, first: int, last: int) -> Block:
        pool_trim(0)
        x = self._rows(last - first, self._call.kind.width)
        self.table.read(first, x)
        no_edges = torch.zeros(last - first + 1, dtype=torch.int64)
        return Block(x, no_edges, torch.empty(0, dtype=torch.int64))

    def _rows(self, number: int, width: int) -> Tensor:
        """Return room for rows, in memory of the pool."""
        dtype = self._call.kind.dtype
        return torch.from_numpy(empty((number, width), f"i{dtype.itemsize}")).view(dtype)

    def _number(
        self,
        out: npt.NDArray[np.int64],
        targets: tuple[int, int],
        edges: tuple[int, int],
        ids: npt.NDArray[np.int64],
    ) -> None:
        """Find the row of each edge's source: targets, then the others by id, then kept ones."""
        first, last = targets
        self._words[:] = 0
        _core.bitmap_mark(self._words, ids)
        ranks = _core.bitmap_count(self._words)[0]
        at = 0
        for piece in self.graph.sources(*edges):
            part = out[at : at + len(piece)]
            at += len(piece)
            is_own = (piece >= first) & (piece < last)
            is_other = ~is_own
            if self._kept is not None:
                slots = _core.find_slots(*self._kept.index, piece)
                np.add(slots, last - first + len(ids), out=part)
                is_other &= slots < 0
            np.subtract(piece, first, out=part, where=is_own)
            part[is_other] = _core.bitmap_rank(self._words, ranks, piece[is_other]) + last - first


def _listed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the ids in a set, ascending."""
    nodes = np.empty(int(_core.bitmap_count(words)[1]), np.int64)
    at = 0
    for begin in range(0, len(words), LISTED_BYTES // 8):
        part = words[begin : begin + LISTED_BYTES // 8]
        where = np.flatnonzero(part)
        bits = np.unpackbits(part[where].view(np.uint8), bitorder="little")
        word, bit = np.divmod(np.flatnonzero(bits), 64)
        nodes[at : at + len(word)] = 64 * (where[word] + begin) + bit
        at += len(word)
    return nodes
