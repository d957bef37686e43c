"""The rows of a block: those kept in memory, and those that are read.

Rows that lie one behind the other on disk are read straight to their places in the block: copying
them from staging memory is a fifth of the processor time of a cheap layer. Fresh memory for each
block would cost another fifth: 6 GB of huge pages, which the system clears, for a table of 2 GB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore._core import ReadCounts, empty, pool_trim
from gnnstore.features.source import RowSource
from gnnstore.graph.arrays import as_tensor
from gnnstore.layerwise.models.block import Block
from gnnstore.layerwise.plan import LayerPlan
from gnnstore.threads import Workers

# A part of a block's rows is sorted by place before it is read, with 16 bytes a row.
_MAX_PART_ROWS = 1 << 18
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Direct reads are aligned to pages, on disk and in memory.
_PAGE_BYTES = 4096


class KeptRows:
    """Rows that stay in memory for a layer, as it sums them, in the order of their ids."""

    def __init__(
        self, nodes: npt.NDArray[np.int64], num_nodes: int, plan: LayerPlan, num_front: int
    ) -> None:
        self._plan = plan
        self._num_front = num_front  # rows of the largest block that come before the kept ones
        # Which nodes, and where each one's row is: see `_core.find_slots`.
        self.index = _core.index_nodes(nodes, num_nodes)
        self.nodes = nodes
        # Pages in front take memory once a block has filled them.
        rows = torch.empty(num_front + len(nodes), plan.source_width, dtype=plan.kind.dtype)
        self._rows = rows
        self.rows = rows[num_front:]

    def fill(self, first: int, sources: Tensor) -> None:
        """Keep those of some rows in order, as the layer sums them, that belong here."""
        begin, end = np.searchsorted(self.nodes, [first, first + len(sources)])
        chosen = torch.from_numpy(self.nodes[begin:end] - first)
        torch.index_select(sources, 0, chosen, out=self.rows[begin:end])

    def offer(self, first: int, rows: Tensor) -> None:
        """Keep those of the results of the layer before that belong here."""
        begin, end = np.searchsorted(self.nodes, [first, first + len(rows)])
        chosen = rows[torch.from_numpy(self.nodes[begin:end] - first)]
        self.rows[begin:end] = self._plan.call.as_sources(chosen.to(self._plan.kind.dtype))

    def copy(self, ids: npt.NDArray[np.int64], out: Tensor) -> None:
        """Copy rows that are kept."""
        slots = torch.from_numpy(_core.find_slots(*self.index, ids))
        torch.index_select(self.rows, 0, slots, out=out)

    def in_front(self, block: Block, others: Tensor) -> Block:
        """Return a block whose rows are those of its targets, others, and all that are kept."""
        own, num_rows = block.x, block.num_targets + len(others)
        x = self._rows[self._num_front - num_rows :]
        x[: block.num_targets] = self._plan.call.as_sources(own)
        x[block.num_targets : num_rows] = others
        return block.on_rows(x, own if self._plan.call.projection else None)


class RowReader:
    """Reads rows of a layer's input, converted for the layer. Not thread-safe."""

    def __init__(
        self,
        source: RowSource,
        plan: LayerPlan,
        part_bytes: int,
        workers: Workers,
        *,
        factors: Tensor | None = None,
    ) -> None:
        self.source = source
        self.plan = plan
        self.workers = workers
        self.part_rows = part_rows(plan, part_bytes)
        self._kind = plan.kind
        self._factors = factors
        self.counts = ReadCounts()

    def buffer(self, num_rows: int, width: int) -> Tensor:
        """Return room for rows, from the pool."""
        item_bytes = self._kind.dtype.itemsize
        raw = empty((buffer_bytes(num_rows, width * item_bytes),), np.uint8)
        raw = raw[: num_rows * width * item_bytes]
        x = torch.from_numpy(raw.view(f"i{item_bytes}").reshape(num_rows, width))
        return x.view(self._kind.dtype)

    def read_range(self, first: int, x: Tensor) -> None:
        """Read the rows of consecutive nodes, in parts, several at a time."""
        tasks: list[Callable[[], ReadCounts]] = []
        for begin in range(0, len(x), self.part_rows):
            part = x[begin : begin + self.part_rows]
            tasks.append(partial(self._read_range, first + begin, part))
        self.counts = sum(self.workers.run(tasks), self.counts)

    def read_ids(self, ids: npt.NDArray[Any], sources: Tensor) -> None:
        """Read rows as the layer sums them, in parts, several at a time."""
        tasks: list[Callable[[], ReadCounts]] = []
        for begin in range(0, len(ids), self.part_rows):
            part = slice(begin, begin + self.part_rows)
            tasks.append(partial(self._read_ids, ids[part], sources[part]))
        self.counts = sum(self.workers.run(tasks), self.counts)

    def stored_range(self, first: int, last: int) -> tuple[npt.NDArray[Any], ReadCounts]:
        """Read the rows of consecutive nodes as they are stored. Thread-safe."""
        rows = self.source.spec.empty(last - first)
        return rows, self.source.read_range(first, rows)

    def converted(self, rows: npt.NDArray[Any]) -> Tensor:
        """Return stored rows in the layer's type."""
        tensor = as_tensor(np.require(rows, requirements="W"), self._kind.stored)
        tensor = tensor.view(-1, self._kind.width).to(self._kind.dtype)
        return tensor if self._factors is None else tensor * self._factors

    def _read_range(self, first: int, x: Tensor) -> ReadCounts:
        # A read of less than a page is of single rows.
        if self._kind.is_as_stored and len(x) * self._kind.stored_bytes >= _PAGE_BYTES:
            return self.source.read_range(first, as_bits(x))
        return self._read_into(np.arange(first, first + len(x)), x)

    def _read_into(self, ids: npt.NDArray[Any], x: Tensor) -> ReadCounts:
        if self._kind.is_as_stored:
            return self.source.read_rows(ids, as_bits(x))
        rows, counts = self.source.gather(ids)
        x.copy_(self.converted(rows))
        return counts

    def _read_ids(self, ids: npt.NDArray[Any], sources: Tensor) -> ReadCounts:
        if self.plan.call.projection is None:
            return self._read_into(ids, sources)
        rows, counts = self.source.gather(ids)
        sources.copy_(self.plan.call.as_sources(self.converted(rows)))
        return counts


def as_bits(x: Tensor) -> npt.NDArray[Any]:
    """Return rows as integers of the same memory."""
    return x.view(_BITS[x.itemsize]).numpy()


def buffer_bytes(num_rows: int, row_bytes: int) -> int:
    """Return the size of the buffer for `num_rows` rows."""
    return num_rows * row_bytes + _PAGE_BYTES


def part_rows(plan: LayerPlan, part_bytes: int) -> int:
    """Return the number of rows in a part, the unit of reading."""
    return min(max(1, part_bytes // plan.kind.stored_bytes), _MAX_PART_ROWS)


def part_memory_bytes(plan: LayerPlan, part_bytes: int) -> int:
    """Return the bytes for reading a part: its order, and its rows if they are converted."""
    kind = plan.kind
    converted_bytes = 0 if kind.is_as_stored else kind.stored_bytes
    if plan.call.projection is not None:
        converted_bytes += kind.row_bytes + plan.source_bytes
    return part_rows(plan, part_bytes) * (16 + 8 + converted_bytes)


class RecycledBlocks:
    """Decides whether the pool keeps the buffers of a block for the one that is made next.

    A free buffer that the next block cannot use would add to its memory.
    """

    def __init__(self, num_alive: int) -> None:
        self._sizes: deque[tuple[int, ...]] = deque(maxlen=num_alive)

    def prepare(self, *num_bytes: int) -> bool:
        """Free the buffers that the next block cannot use; return whether any may be kept."""
        sizes = tuple(_size_class(each) for each in num_bytes)
        is_same = len(self._sizes) == self._sizes.maxlen and self._sizes[0] == sizes
        if not is_same:
            pool_trim(0)
        self._sizes.append(sizes)
        return is_same


def _size_class(num_bytes: int) -> int:
    """Return a number that is equal for buffers that the pool exchanges for one another."""
    least = max(num_bytes, _PAGE_BYTES)
    step = 1 << ((least - 1).bit_length() - 4)
    return -(-least // step) * step
