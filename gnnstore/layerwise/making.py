"""Blocks made from a store: consecutive nodes, as many as memory allows, and their in-neighbours.

The graph is read in order, a piece at a time. A set of one bit a node tells how many distinct
in-neighbours the pieces so far have, so that a block grows until its rows fill the memory that
there is for it; then the rows are read, near ones together. The larger blocks are, the fewer of
the rows are read more than once, and the closer the reads are to one pass in order.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore.disk.buffers import empty, trim
from gnnstore.disk.counts import NO_READS, ReadCounts
from gnnstore.errors import BudgetError
from gnnstore.layerwise.graph import LISTED_BYTES, GraphReader
from gnnstore.layerwise.memory import BlockLimits
from gnnstore.layerwise.models.blocks import Block
from gnnstore.layerwise.packing import BlockPacker
from gnnstore.layerwise.rows import RecycledBlocks, RowReader, Table

# What is left of a block's memory is given up when it would grow by less than this share.
_LEAST_GROWTH = 1 / 64


@dataclass(frozen=True, eq=False)
class MadeBlock:
    """A block, and which nodes its targets are: first ... last - 1."""

    first: int
    last: int
    block: Block


class BlockMaker:
    """Makes the blocks of one layer, in order. Not thread-safe.

    Parameters
    ----------
    graph : GraphReader or None
        None: the layer looks at no neighbour.
    table : Table
    limits : BlockLimits
    takes : tuple of str
        Data of edges that blocks carry.
    scale : Tensor [N], optional
        What a normalisation by degrees needs.
    readers : Executor
        Reads parts of a block's rows side by side.
    packer : BlockPacker, optional
        Packs rows of many blocks at once, where that is cheaper.
    """

    def __init__(
        self,
        graph: GraphReader | None,
        table: Table,
        limits: BlockLimits,
        *,
        takes: tuple[str, ...] = (),
        scale: Tensor | None = None,
        readers: Executor,
        packer: BlockPacker | None = None,
    ) -> None:
        self._packer = packer
        self._rows = RowReader(table, readers, packer)
        self._recycled = RecycledBlocks(2 if limits.is_ahead else 1)
        self._graph = graph
        self._table = table
        self._limits = limits
        self._takes = takes
        self._scale = scale
        self.num_nodes = table.spec.num_rows
        num_words = 0 if graph is None else -(-self.num_nodes // 64)
        self._words: npt.NDArray[np.uint64] = np.zeros(num_words, np.uint64)

    @property
    def counts(self) -> ReadCounts:
        """What was read of rows."""
        return self._rows.counts

    @property
    def all_counts(self) -> ReadCounts:
        """What was read, of rows and of the graph."""
        graph = NO_READS if self._graph is None else self._graph.counts
        packing = NO_READS if self._packer is None else self._packer.counts
        return self.counts + graph + packing

    @property
    def bytes_packed(self) -> int:
        """What was written for a while."""
        return 0 if self._packer is None else self._packer.bytes_written

    def stop(self) -> None:
        """Have `make` end soon, in another thread: what it makes is not wanted any more."""
        if self._packer is not None:
            self._packer.stop.set()

    def make(self, first: int) -> MadeBlock:
        """Make the block that begins with a node.

        Raises
        ------
        BudgetError
            If not even one node fits.
        StorageError, CorruptStoreError
            If the store cannot be read, or is damaged.
        """
        if self._graph is None:
            return self._make_without_edges(first)
        found = None
        if self._packer is not None:
            found = self._packer.find(first, self.num_nodes, self._outline)
        begins, pieces = self._grow(self._graph, first, None if found is None else found[0])
        last = first + len(begins) - 1
        try:
            ranks, num_rows = _core.bitmap_count(self._words)
            self._recycle(int(begins[-1] - begins[0]), num_rows)
            num_below = _rank(self._words, ranks, first)
            sources = self._numbered(pieces, ranks, num_below, last - first, num_rows)
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
        """Return where a block ends, and the ids of its rows that are not its targets'."""
        assert self._graph is not None  # noqa: S101 - without edges nothing is packed
        begins, _ = self._grow(self._graph, first, None)
        last = first + len(begins) - 1
        num_rows = int(_core.bitmap_count(self._words)[1])
        return last, self._nodes(first, last, num_rows)[last - first :]

    def _make_without_edges(self, first: int) -> MadeBlock:
        most = self._limits.most_rows
        if most < 1:
            raise BudgetError("not a single node fits; raise memory=")
        last = min(first + most, self.num_nodes)
        nodes = np.arange(first, last, dtype=np.int64)
        no_edges = torch.zeros(last - first + 1, dtype=torch.int64)
        self._recycle(0, len(nodes))
        x = self._rows.read(nodes, len(nodes), None)
        return MadeBlock(first, last, Block(x, no_edges, torch.empty(0, dtype=torch.int64)))

    def _recycle(self, num_edges: int, num_rows: int) -> None:
        """Free what earlier blocks have left and this one has no use for."""
        if self._takes or not self._table.is_as_wanted:
            trim(0)  # what is converted comes in buffers of sizes that are never the same
        else:
            self._recycled.prepare(8 * num_edges, self._rows.memory_bytes(num_rows))

    def _grow(
        self, graph: GraphReader, first: int, last: int | None
    ) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[Any]]]:
        """Add targets while they fit, or up to `last`; mark them and their in-neighbours.

        Returns
        -------
        ndarray of int64 [D + 1]
            Where the edges of the targets begin.
        list of ndarray
            Their sources, in pieces.
        """
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
            self._mark(graph, sources, at, at + taken)
            pieces.append(sources)
            begins.append(window[1 : taken + 1])
            num_nodes = int(_core.bitmap_count(self._words)[1])
            size = (size[0] + int(edges[taken - 1]), num_nodes, size[2] + taken)
        if not size[2]:
            raise BudgetError(f"node {first} with its in-neighbours does not fit; raise memory=")
        return np.concatenate(begins), pieces

    def _num_fitting(self, edges: npt.NDArray[np.int64], size: tuple[int, int, int]) -> int:
        """Return how many more targets fit; `edges` are those of the first 1, 2, ... of them."""
        more = np.arange(1, len(edges) + 1)
        # Each edge may bring a node that was not there yet.
        nodes = np.minimum(size[1] + edges + more, self.num_nodes)
        fits = self._limits.admits(size[0] + edges, nodes, size[2] + more)
        return int(np.count_nonzero(fits))

    def _mark(self, graph: GraphReader, sources: npt.NDArray[Any], first: int, last: int) -> None:
        try:
            _core.bitmap_mark(self._words, np.ascontiguousarray(sources, np.int64))
        except IndexError as error:
            raise graph.out_of_range(error) from error
        _core.bitmap_mark(self._words, np.arange(first, last, dtype=np.int64))

    def _numbered(
        self,
        pieces: list[npt.NDArray[Any]],
        ranks: npt.NDArray[np.int64],
        num_below: int,
        num_targets: int,
        num_rows: int,
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
        assert num_rows >= num_targets  # noqa: S101 - all targets are marked
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
        assert self._graph is not None  # noqa: S101 - only blocks with edges carry data of theirs
        values = np.require(self._graph.data(name, begin, end), requirements="W")
        return torch.from_numpy(values).to(self._table.kind)


def _rank(words: npt.NDArray[np.uint64], ranks: npt.NDArray[np.int64], node: int) -> int:
    """Return how many of the nodes of a set are smaller than one that is in it."""
    return int(_core.bitmap_rank(words, ranks, np.array([node], np.int64))[0])
