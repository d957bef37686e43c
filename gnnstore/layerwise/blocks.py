"""Blocks made from a store: consecutive nodes, as many as memory allows, and their in-neighbours.

The graph is read in order, a piece at a time. A set of one bit a node counts the distinct
in-neighbours of the pieces so far, so that a block grows until its rows fill its memory; then the
rows are read, near ones together. The larger blocks are, the fewer rows are read more than once,
and the closer the reads are to one pass in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore._core import ReadCounts, empty, pool_trim
from gnnstore.layerwise.graph import LISTED_BYTES, GraphReader
from gnnstore.layerwise.limits import BlockLimits, block_sizes
from gnnstore.layerwise.models.block import Block
from gnnstore.layerwise.packing import BlockPacker
from gnnstore.layerwise.plan import LayerPlan
from gnnstore.layerwise.rows import RecycledBlocks, RowReader

# A block is complete when it would grow by less than this share: small reads are not worth it.
_LEAST_GROWTH = 1 / 64


@dataclass(frozen=True, eq=False)
class MadeBlock:
    """A block whose targets are the nodes first ... last - 1."""

    first: int
    last: int
    block: Block


class BlockMaker:
    """Makes the blocks of one layer, in order. Not thread-safe."""

    def __init__(
        self,
        graph: GraphReader,
        rows: RowReader,
        plan: LayerPlan,
        limits: BlockLimits,
        *,
        scale: Tensor | None = None,
        packer: BlockPacker | None = None,
    ) -> None:
        self._packer = packer
        self._rows = rows
        self._recycled = RecycledBlocks(2 if limits.is_ahead else 1)
        self._graph = graph
        self._kind = plan.kind
        self._limits = limits
        self._needs_edges = plan.call.needs_edges
        self._takes = plan.call.takes
        self._scale = scale
        self.num_nodes = graph.num_nodes
        num_words = -(-self.num_nodes // 64) if self._needs_edges else 0
        self._words: npt.NDArray[np.uint64] = np.zeros(num_words, np.uint64)
        self._next = 0
        self._bytes_before = graph.counts.bytes_read  # by other layers

    @property
    def counts(self) -> ReadCounts:
        """Reads of rows."""
        return self._rows.counts

    @property
    def bytes_read(self) -> int:
        """Bytes of all reads: of rows, of the graph, and for packing."""
        packing = ReadCounts() if self._packer is None else self._packer.counts
        total = self.counts + self._graph.counts + packing
        return total.bytes_read - self._bytes_before

    @property
    def bytes_packed(self) -> int:
        """Bytes of packed rows that were written."""
        return 0 if self._packer is None else self._packer.bytes_written

    def stop(self) -> None:
        """End `blocks` soon, from another thread: no more blocks are needed."""
        if self._packer is not None:
            self._packer.stop.set()

    def blocks(self, first: int) -> Iterator[MadeBlock]:
        """Make the blocks of all nodes from `first` on."""
        self._next = first
        make = self._make if self._needs_edges else self._make_without_edges
        while self._next < self.num_nodes:
            yield make(self._next)  # only the caller refers to it

    def _make(self, first: int) -> MadeBlock:
        found = None
        if self._packer is not None:
            found = self._packer.find(first, self.num_nodes, self._outline)
        begins, pieces = self._grow(first, None if found is None else found[0])
        self._next = last = first + len(begins) - 1
        try:
            ranks, num_rows = _core.bitmap_count(self._words)
            self._recycle(int(begins[-1] - begins[0]), num_rows)
            num_below = int(_core.bitmap_rank(self._words, ranks, np.array([first], np.int64))[0])
            sources = self._numbered(pieces, ranks, num_below, last - first)
        except IndexError as error:
            raise self._graph.out_of_range(error) from error
        nodes = self._nodes(first, last, num_rows)
        edges = {
            name: self._edge_tensor(name, int(begins[0]), int(begins[-1])) for name in self._takes
        }
        local_begins = torch.from_numpy(begins - begins[0])
        scale = None if self._scale is None else self._scale[torch.from_numpy(nodes)]
        x = self._rows.read(nodes, last - first, None if found is None else found[1])
        return MadeBlock(first, last, Block(x, local_begins, sources, edges, scale))

    def _outline(self, first: int) -> tuple[int, npt.NDArray[np.int64]]:
        """Return the end of a block, and the ids of its rows after those of its targets."""
        begins, _ = self._grow(first, None)
        last = first + len(begins) - 1
        num_rows = int(_core.bitmap_count(self._words)[1])
        return last, self._nodes(first, last, num_rows)[last - first :]

    def _make_without_edges(self, first: int) -> MadeBlock:
        # One at least: a layer's largest block is checked before any is made.
        self._next = last = min(first + self._limits.most_rows, self.num_nodes)
        nodes = np.arange(first, last, dtype=np.int64)
        no_edges = torch.zeros(last - first + 1, dtype=torch.int64)
        self._recycle(0, len(nodes))
        x = self._rows.read(nodes, len(nodes), None)
        return MadeBlock(first, last, Block(x, no_edges, torch.empty(0, dtype=torch.int64)))

    def _recycle(self, num_edges: int, num_rows: int) -> None:
        """Free the buffers of earlier blocks that this one cannot use."""
        if self._takes or not self._kind.is_as_stored:
            pool_trim(0)  # buffers of converted rows always differ in size
        else:
            self._recycled.prepare(8 * num_edges, self._rows.memory_bytes(num_rows))

    def _grow(
        self, first: int, last: int | None
    ) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[Any]]]:
        """Add targets while they fit, or up to `last`; mark them and their in-neighbours."""
        graph = self._graph
        self._words[:] = 0
        begins = [graph.begins(first, first)]
        pieces: list[npt.NDArray[Any]] = []
        size = (0, 0, 0)  # edges, nodes, targets
        until = self.num_nodes if last is None else last
        while (at := first + size[2]) < until:
            window = graph.begins(at, min(at + graph.piece.targets, until))
            edges = window[1:] - window[0]
            most = max(1, int(np.searchsorted(edges, graph.piece.edges, "right")))
            taken = most if last is not None else min(most, self._num_fitting(edges, size))
            grown = int(edges[taken - 1]) + taken if taken else 0
            if not taken or (
                last is None and at + taken < until and grown < _LEAST_GROWTH * (size[0] + size[2])
            ):
                break
            sources = graph.sources(int(window[0]), int(window[taken]))
            self._mark(sources, at, at + taken)
            pieces.append(sources)
            begins.append(window[1 : taken + 1])
            num_nodes = int(_core.bitmap_count(self._words)[1])
            size = (size[0] + int(edges[taken - 1]), num_nodes, size[2] + taken)
        if not size[2]:
            degree = int(graph.begins(first, first + 1)[1]) - int(begins[0][0])
            one = block_sizes(degree, min(degree + 1, self.num_nodes), 1)
            raise self._limits.refusal(f"node {first} with its in-neighbours", one)
        return np.concatenate(begins), pieces

    def _num_fitting(self, edges: npt.NDArray[np.int64], size: tuple[int, int, int]) -> int:
        """Return the number of targets that still fit; `edges` are those of the first 1, 2, ..."""
        more = np.arange(1, len(edges) + 1)
        # Each edge may bring a new node.
        nodes = np.minimum(size[1] + edges + more, self.num_nodes)
        fits = self._limits.admits(block_sizes(size[0] + edges, nodes, size[2] + more))
        return int(np.count_nonzero(fits))

    def _mark(self, sources: npt.NDArray[Any], first: int, last: int) -> None:
        try:
            _core.bitmap_mark(self._words, np.ascontiguousarray(sources, np.int64))
        except IndexError as error:
            raise self._graph.out_of_range(error) from error
        _core.bitmap_mark(self._words, np.arange(first, last, dtype=np.int64))

    def _numbered(
        self,
        pieces: list[npt.NDArray[Any]],
        ranks: npt.NDArray[np.int64],
        num_below: int,
        num_targets: int,
    ) -> Tensor:
        """Return the row of each edge's source: targets first, then the others by id."""
        num_edges = sum(map(len, pieces))
        numbered = empty((num_edges,), np.int64)
        at = 0
        pieces.reverse()
        while pieces:
            piece = np.ascontiguousarray(pieces.pop(), np.int64)
            if len(piece) and int(piece.max()) >= self.num_nodes:
                raise IndexError(f"the id {int(piece.max())} is out of range")
            rank = _core.bitmap_rank(self._words, ranks, piece)
            below = rank < num_below
            among = ~below & (rank < num_below + num_targets)
            rank[below] += num_targets
            rank[among] -= num_below
            numbered[at : at + len(rank)] = rank
            at += len(rank)
        return torch.from_numpy(numbered)

    def _nodes(self, first: int, last: int, num_rows: int) -> npt.NDArray[np.int64]:
        """Return the ids of a block's rows: its targets, then the others, ascending."""
        nodes = np.empty(num_rows, np.int64)
        nodes[: last - first] = np.arange(first, last)
        at = last - first
        bits = self._words.view(np.uint8)
        for begin in range(0, len(bits), LISTED_BYTES):
            part = bits[begin : begin + LISTED_BYTES]
            if not part.any():
                continue
            found = np.flatnonzero(np.unpackbits(part, bitorder="little")) + 8 * begin
            if begin * 8 < last and first < (begin + LISTED_BYTES) * 8:
                found = found[(found < first) | (found >= last)]
            nodes[at : at + len(found)] = found
            at += len(found)
        return nodes

    def _edge_tensor(self, name: str, begin: int, end: int) -> Tensor:
        values = np.require(self._graph.data(name, begin, end), requirements="W")
        return torch.from_numpy(values).to(self._kind.dtype)
