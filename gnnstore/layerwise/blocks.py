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
from gnnstore.layerwise.rows import KeptRows, RecycledBlocks, RowReader, buffer_bytes

# A block is complete when it would grow by less than this share: small reads are not worth it.
_LEAST_GROWTH = 1 / 64


@dataclass(frozen=True, eq=False)
class MadeBlock:
    """A block whose targets are the nodes first ... last - 1."""

    first: int
    last: int
    block: Block
    others: Tensor | None = None  # the other rows, where the block has only those of its targets


class BlockMaker:
    """Makes the blocks of one layer, in order. Not thread-safe."""

    def __init__(
        self,
        graph: GraphReader,
        rows: RowReader,
        limits: BlockLimits,
        *,
        kept: KeptRows | None = None,
        scale: Tensor | None = None,
        packer: BlockPacker | None = None,
    ) -> None:
        plan = rows.plan
        self._packer = packer
        self._rows = rows
        self._recycled = RecycledBlocks(2 if limits.is_ahead else 1)
        self._graph = graph
        self._plan = plan
        self._limits = limits
        self._needs_edges = plan.call.needs_edges
        self._takes = plan.call.takes
        self._scale = scale
        self._kept = kept
        # Whether rows that are kept are used where they are; else they are copied.
        self._is_in_front = kept is not None and plan.call.sums
        self._kept_scale = None
        if self._is_in_front and scale is not None:
            assert kept is not None  # noqa: S101 - see above
            self._kept_scale = scale[torch.from_numpy(kept.nodes)]
        self.num_nodes = graph.num_nodes
        num_words = -(-self.num_nodes // 64) if self._needs_edges else 0
        self._words: npt.NDArray[np.uint64] = np.zeros(num_words, np.uint64)
        self._next = 0

    @property
    def counts(self) -> ReadCounts:
        """Reads of rows."""
        return self._rows.counts

    @property
    def bytes_read(self) -> int:
        """Bytes of all reads of rows, packed ones included."""
        return self.counts.bytes_read + (0 if self._packer is None else self._packer.bytes_read)

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

    def complete(self, made: MadeBlock) -> Block:
        """Return a block with all its rows, when the layer is about to run on it."""
        if made.others is None:
            return made.block
        assert self._kept is not None  # noqa: S101 - else the block has them
        return self._kept.in_front(made.block, made.others)

    def _make(self, first: int) -> MadeBlock:
        found = None
        if self._packer is not None:
            found = self._packer.find(first, self.num_nodes, self._outline)
        begins, pieces = self._grow(first, None if found is None else found[0])
        self._next = last = first + len(begins) - 1
        others, kept = self._others(first, last)
        ids, kept_ids = self._listed(others), self._listed(kept)
        try:
            sources = self._numbered(pieces, (first, last), others, len(ids), kept)
        except IndexError as error:
            raise self._graph.out_of_range(error) from error
        edges = {
            name: self._edge_tensor(name, int(begins[0]), int(begins[-1])) for name in self._takes
        }
        local_begins = torch.from_numpy(begins - begins[0])
        num_targets, num_others = last - first, len(ids)
        kind = self._plan.kind
        self._recycle(len(sources), num_targets, num_others, len(kept_ids))
        if self._is_in_front:
            x = self._rows.buffer(num_targets, kind.width)
            rest = self._rows.buffer(num_others, self._plan.source_width)
        else:
            x = self._rows.buffer(num_targets + num_others + len(kept_ids), kind.width)
            rest = x[num_targets : num_targets + num_others]
        self._rows.read_range(first, x[:num_targets])
        if found is None:
            self._rows.read_ids(ids, rest)
        else:
            assert self._packer is not None  # noqa: S101 - it has found the block
            self._packer.read(found[1], rest)
        if len(kept_ids):
            assert self._kept is not None  # noqa: S101 - it has these rows
            self._kept.copy(kept_ids, x[num_targets + num_others :])
        scale = None
        if self._scale is not None:
            nodes = np.concatenate([np.arange(first, last), ids, kept_ids])
            scale = self._scale[torch.from_numpy(nodes)]
            if self._kept_scale is not None:
                scale = torch.cat([scale, self._kept_scale])
        block = Block(x, local_begins, sources, edges, scale)
        return MadeBlock(first, last, block, rest if self._is_in_front else None)

    def _outline(self, first: int) -> tuple[int, npt.NDArray[np.int64]]:
        """Return the end of a block, and the ids of its rows that are read for it alone."""
        begins, _ = self._grow(first, None)
        last = first + len(begins) - 1
        return last, self._listed(self._others(first, last)[0])

    def _make_without_edges(self, first: int) -> MadeBlock:
        # One at least: a layer's largest block is checked before any is made.
        self._next = last = min(first + self._limits.most_rows, self.num_nodes)
        no_edges = torch.zeros(last - first + 1, dtype=torch.int64)
        self._recycle(0, last - first, 0, 0)
        x = self._rows.buffer(last - first, self._plan.kind.width)
        self._rows.read_range(first, x)
        return MadeBlock(first, last, Block(x, no_edges, torch.empty(0, dtype=torch.int64)))

    def _recycle(self, num_edges: int, num_targets: int, num_others: int, num_copies: int) -> None:
        """Free the buffers of earlier blocks that this one cannot use."""
        kind = self._plan.kind
        if self._takes or not kind.is_as_stored:
            pool_trim(0)  # buffers of converted rows always differ in size
            return
        numbers = {kind.row_bytes: num_targets + num_others + num_copies}
        if self._is_in_front:
            numbers = {kind.row_bytes: num_targets, self._plan.source_bytes: num_others}
        sizes = [buffer_bytes(number, row_bytes) for row_bytes, number in numbers.items()]
        self._recycled.prepare(8 * num_edges, *sizes)

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
            # Of a node alone, few in-neighbours may be new rows.
            taken = taken or int(not size[2])
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
        sizes = block_sizes(*size)
        if not self._limits.admits(sizes):
            raise self._limits.refusal(f"node {first} with its in-neighbours", sizes)
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
            if self._is_in_front:
                assert self._kept is not None  # noqa: S101 - see above
                sources = _core.drop_pinned(self._kept.index[0], np.ascontiguousarray(sources))
            _core.bitmap_mark(self._words, np.ascontiguousarray(sources, np.int64))
        except IndexError as error:
            raise self._graph.out_of_range(error) from error
        _core.bitmap_mark(self._words, np.arange(first, last, dtype=np.int64))

    def _others(
        self, first: int, last: int
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return the sets of the block's other rows: those to read, and those to copy."""
        begin, end = first // 64, -(-last // 64)
        bits = np.unpackbits(self._words[begin:end].view(np.uint8), bitorder="little")
        bits[first - 64 * begin : last - 64 * begin] = 0
        self._words[begin:end] = np.packbits(bits, bitorder="little").view(np.uint64)
        if self._kept is None or self._is_in_front:
            return self._words, np.empty(0, np.uint64)
        return self._words & ~self._kept.index[0], self._words & self._kept.index[0]

    def _numbered(
        self,
        pieces: list[npt.NDArray[Any]],
        targets: tuple[int, int],
        others: npt.NDArray[np.uint64],
        num_others: int,
        kept: npt.NDArray[np.uint64],
    ) -> Tensor:
        """Return the row of each edge's source: targets, then the others by id, then kept ones."""
        first, last = targets
        num_targets = last - first
        ranks, kept_ranks = _core.bitmap_count(others)[0], _core.bitmap_count(kept)[0]
        numbered = empty((sum(map(len, pieces)),), np.int64)
        at = 0
        pieces.reverse()
        while pieces:
            piece = np.ascontiguousarray(pieces.pop(), np.int64)
            if len(piece) and int(piece.max()) >= self.num_nodes:
                raise IndexError(f"the id {int(piece.max())} is out of range")
            out = numbered[at : at + len(piece)]
            at += len(piece)
            is_own = (piece >= first) & (piece < last)
            is_other = ~is_own
            if self._kept is not None:
                slots = _core.find_slots(*self._kept.index, piece)
                if self._is_in_front:
                    np.add(slots, num_targets + num_others, out=out)
                else:
                    is_copy = is_other & (slots >= 0)
                    copies = _core.bitmap_rank(kept, kept_ranks, piece[is_copy])
                    out[is_copy] = copies + (num_targets + num_others)
                is_other &= slots < 0
            np.subtract(piece, first, out=out, where=is_own)
            out[is_other] = _core.bitmap_rank(others, ranks, piece[is_other]) + num_targets
        return torch.from_numpy(numbered)

    def _listed(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
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

    def _edge_tensor(self, name: str, begin: int, end: int) -> Tensor:
        values = np.require(self._graph.data(name, begin, end), requirements="W")
        return torch.from_numpy(values).to(self._plan.kind.dtype)
