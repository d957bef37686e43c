"""Blocks made from a store: consecutive nodes, as many as memory allows, and their in-neighbours.

The graph is read in order, a piece at a time. A set of one bit a node counts the distinct
in-neighbours of the pieces so far, so that a block grows until its rows fill its memory; then the
rows are read, near ones together. The larger blocks are, the fewer rows are read more than once,
and the closer the reads are to one pass in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore.layerwise.graph import LISTED_BYTES, GraphReader
from gnnstore.layerwise.memory import NODES, TARGETS, BlockLimits
from gnnstore.layerwise.models.block import Block
from gnnstore.layerwise.packing import BlockPacker
from gnnstore.layerwise.rows import Arena, KeptRows, RowReader

# A block is complete when it would grow by less than this share: small reads are not worth it.
_LEAST_GROWTH = 1 / 64

Words = npt.NDArray[np.uint64]


class BlockMaker:
    """Makes the blocks of one layer, in order. Not thread-safe."""

    def __init__(
        self,
        graph: GraphReader,
        rows: RowReader,
        limits: BlockLimits,
        packer: BlockPacker,
        *,
        kept: KeptRows | None = None,
        scale: Tensor | None = None,
    ) -> None:
        self.limits = limits
        self.packer = packer
        self._rows = rows
        self._graph = graph
        self._plan = rows.plan
        self._scale = scale
        self._kept = kept
        # Of the block that is made, and of the one on which the layer runs.
        self._arenas = [Arena() for _ in range(2 if limits.is_ahead else 1)]
        # Whether rows that are kept are used where they are; else they are copied.
        self._is_in_front = kept is not None and rows.plan.call.sums
        self._kept_scale = None
        if kept is not None and self._is_in_front and scale is not None:
            self._kept_scale = scale[torch.from_numpy(kept.nodes)]
        num_words = -(-graph.num_nodes // 64) if rows.plan.call.needs_edges else 0
        self._words: Words = np.zeros(num_words, np.uint64)

    def blocks(self, first: int) -> Iterator[tuple[int, Block]]:
        """Make the blocks of all nodes from `first` on, with the first target of each."""
        make = self._make if self._plan.call.needs_edges else self._make_without_edges
        while first < self._graph.num_nodes:
            made = [make(first)]
            first += made[0].num_targets
            yield first - made[0].num_targets, made.pop()  # only the caller refers to it

    def complete(self, block: Block) -> Block:
        """Return a block with all its rows, when the layer is about to run on it."""
        return block if self._kept is None else self._kept.in_front(block)

    def _make(self, first: int) -> Block:
        graph, kind = self._graph, self._plan.kind
        packed_until = self.packer.find(first, self._outline)
        begins, pieces = self._grow(first, packed_until)
        num_targets, begin, end = len(begins) - 1, int(begins[0]), int(begins[-1])
        last = first + num_targets
        others, copied = self._others(first, last)
        ids, copied_ids = _listed(others), _listed(copied)
        # Rows of the targets; others; copies of kept ones: together, or kept ones stay in place.
        num_rows = num_targets if self._is_in_front else num_targets + len(ids) + len(copied_ids)
        arena = self._next_arena(end - begin, num_rows, len(ids) if self._is_in_front else 0)
        numbered = arena.take((end - begin,), torch.int64)
        x = arena.take((num_rows, kind.width), kind.dtype)
        rest = x[num_targets : num_targets + len(ids)]
        if self._is_in_front:
            rest = arena.take((len(ids), self._plan.source_width), kind.dtype)
        self._number(numbered.numpy(), pieces, (first, last), others, copied)
        edges = {
            name: torch.from_numpy(graph.data(name, begin, end)).to(kind.dtype)
            for name in self._plan.call.takes
        }
        self._rows.read_range(first, x[:num_targets])
        if packed_until is None:
            self._rows.read_ids(ids, rest)
        else:
            self.packer.read(first, rest)
        if len(copied_ids):
            assert self._kept is not None  # noqa: S101 - it has these rows
            self._kept.copy(copied_ids, x[num_targets + len(ids) :])
        scale = None
        if self._scale is not None:
            nodes = np.concatenate([np.arange(first, last), ids, copied_ids])
            scale = self._scale[torch.from_numpy(nodes)]
            if self._kept_scale is not None:
                scale = torch.cat([scale, self._kept_scale])
        return Block(
            x,
            torch.from_numpy(begins - begin),
            numbered,
            edges,
            scale,
            others=rest if self._is_in_front else None,
        )

    def _outline(self, first: int) -> tuple[int, npt.NDArray[np.int64]]:
        """Return the end of a block, and the ids of its rows that are read for it alone."""
        self._arenas[0].clear()  # ids, and rows to be packed, take its place
        begins, _ = self._grow(first, None)
        last = first + len(begins) - 1
        return last, _listed(self._others(first, last)[0])

    def _make_without_edges(self, first: int) -> Block:
        kind = self._plan.kind
        num_rows = min(max(1, self.limits.most(NODES + TARGETS)), self._graph.num_nodes - first)
        arena = self._next_arena(0, num_rows, 0)
        x = arena.take((num_rows, kind.width), kind.dtype)
        self._rows.read_range(first, x)
        no_edges = torch.zeros(num_rows + 1, dtype=torch.int64)
        return Block(x, no_edges, torch.empty(0, dtype=torch.int64))

    def _next_arena(self, num_edges: int, num_rows: int, num_sources: int) -> Arena:
        """Return the memory that the block before the last one has left."""
        self._arenas.append(self._arenas.pop(0))
        plan, arena = self._plan, self._arenas[-1]
        num_bytes = 8 * num_edges + num_rows * plan.kind.row_bytes + num_sources * plan.source_bytes
        # Sources as stored, lists of ids and the like are there as well.
        others = 8 * (num_edges + num_rows + num_sources)
        arena.begin(num_bytes, self.limits.making - others if self.limits.is_ahead else 0)
        return arena

    def _grow(
        self, first: int, last: int | None
    ) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[Any]]]:
        """Add targets while they fit, or up to `last`; mark them and their in-neighbours."""
        graph = self._graph
        self._words[:] = 0
        begins = [graph.begins(first, first)]
        pieces: list[npt.NDArray[Any]] = []
        size = (0, 0, 0)  # edges, nodes, targets
        until = self._graph.num_nodes if last is None else last
        while (at := first + size[2]) < until:
            window = graph.begins(at, min(at + graph.piece.targets, until))
            edges = window[1:] - window[0]
            most = max(1, int(np.searchsorted(edges, graph.piece.edges, "right")))
            taken = most if last is not None else self._num_fitting(edges[:most], size)
            # Of a node alone, few in-neighbours may be new rows.
            taken = taken or int(at == first)
            grown = int(edges[taken - 1]) + taken if taken else 0
            is_small = grown < _LEAST_GROWTH * (size[0] + size[2]) and at + taken < until
            if not taken or (last is None and is_small):
                break
            sources = graph.sources(int(window[0]), int(window[taken]))
            self._mark(sources, at, at + taken)
            pieces.append(sources)
            begins.append(window[1 : taken + 1])
            num_nodes = int(_core.bitmap_count(self._words)[1])
            size = (size[0] + int(edges[taken - 1]), num_nodes, size[2] + taken)
        return np.concatenate(begins), pieces

    def _num_fitting(self, edges: npt.NDArray[np.int64], size: tuple[int, int, int]) -> int:
        """Return the number of targets that still fit; `edges` are those of the first 1, 2, ..."""

        def is_too_large(number: int) -> bool:
            more = int(edges[number])
            # Each edge may bring a new node.
            num_nodes = min(size[1] + more + number + 1, self._graph.num_nodes)
            return not self.limits.admits((size[0] + more, num_nodes, size[2] + number + 1))

        return bisect_left(range(len(edges)), True, key=is_too_large)

    def _mark(self, sources: npt.NDArray[Any], first: int, last: int) -> None:
        try:
            sources = np.ascontiguousarray(sources)
            if len(sources) and int(sources.max()) >= self._graph.num_nodes:
                raise IndexError(f"the id {int(sources.max())} is out of range")
            if self._is_in_front:
                assert self._kept is not None  # noqa: S101 - see above
                sources = _core.drop_pinned(self._kept.index[0], sources)
            _core.bitmap_mark(self._words, sources.astype(np.int64, copy=False))
        except IndexError as error:
            raise self._graph.damaged(error) from error
        _core.bitmap_mark(self._words, np.arange(first, last, dtype=np.int64))

    def _others(self, first: int, last: int) -> tuple[Words, Words]:
        """Return the sets of the block's other rows: those to read, and those to copy."""
        begin, end = first // 64, -(-last // 64)
        bits = np.unpackbits(self._words[begin:end].view(np.uint8), bitorder="little")
        bits[first - 64 * begin : last - 64 * begin] = 0
        self._words[begin:end] = np.packbits(bits, bitorder="little").view(np.uint64)
        if self._kept is None or self._is_in_front:
            return self._words, self._words[:0]
        return self._words & ~self._kept.index[0], self._words & self._kept.index[0]

    def _number(
        self,
        numbered: npt.NDArray[np.int64],
        pieces: list[npt.NDArray[Any]],
        targets: tuple[int, int],
        others: Words,
        copied: Words,
    ) -> None:
        """Find the row of each edge's source: targets, then the others by id, then kept ones."""
        first, last = targets
        ranks, num_others = _core.bitmap_count(others)
        copied_ranks, num_before = _core.bitmap_count(copied)[0], last - first + num_others
        at = 0
        pieces.reverse()
        while pieces:
            piece = np.ascontiguousarray(pieces.pop(), np.int64)
            out = numbered[at : at + len(piece)]
            at += len(piece)
            is_own = (piece >= first) & (piece < last)
            is_other = ~is_own
            if self._kept is not None:
                slots = _core.find_slots(*self._kept.index, piece)
                if self._is_in_front:
                    np.add(slots, num_before, out=out)
                else:
                    is_copy = is_other & (slots >= 0)
                    copies = _core.bitmap_rank(copied, copied_ranks, piece[is_copy])
                    out[is_copy] = copies + num_before
                is_other &= slots < 0
            np.subtract(piece, first, out=out, where=is_own)
            out[is_other] = _core.bitmap_rank(others, ranks, piece[is_other]) + (last - first)


def _listed(words: Words) -> npt.NDArray[np.int64]:
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
