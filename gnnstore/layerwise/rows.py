"""The rows of a block: those kept in memory, and those that are read.

Rows that lie one behind the other on disk are read straight to their places in the block: copying
them from staging memory is a fifth of the processor time of a cheap layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
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
_PAGE_BYTES = 4096
# Parts of the table that are in memory in a pass over it.
NUM_PARTS = 3


class Arena:
    """Memory for a block, which is used again: the system clears fresh memory first."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)
        self._at = 0

    def begin(self, num_bytes: int, max_bytes: int) -> None:
        """Make room for the arrays of a block; what earlier blocks used stays up to a limit."""
        num_bytes += 8 * _PAGE_BYTES
        if not num_bytes <= len(self._bytes) <= max(num_bytes, max_bytes):
            self.clear()
            self._bytes = empty((num_bytes,), np.uint8)
        self._at = 0

    def clear(self) -> None:
        """Return the memory to the system."""
        self._bytes = np.empty(0, np.uint8)
        pool_trim(0)

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the next part of it as a tensor, which begins at a page."""
        begin, num_bytes = self._at, math.prod(shape) * dtype.itemsize
        self._at += -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES
        return torch.from_numpy(self._bytes[begin : begin + num_bytes]).view(dtype).view(shape)


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
        self._rows = torch.empty(num_front + len(nodes), plan.source_width, dtype=plan.kind.dtype)
        self.rows = self._rows[num_front:]

    def fill(self, first: int, sources: Tensor) -> None:
        """Keep those of some rows in order, as the layer sums them, that belong here."""
        begin, end = np.searchsorted(self.nodes, [first, first + len(sources)])
        chosen = torch.from_numpy(self.nodes[begin:end] - first)
        torch.index_select(sources, 0, chosen, out=self.rows[begin:end])

    def copy(self, ids: npt.NDArray[np.int64], out: Tensor) -> None:
        """Copy rows that are kept."""
        slots = torch.from_numpy(_core.find_slots(*self.index, ids))
        torch.index_select(self.rows, 0, slots, out=out)

    def in_front(self, block: Block) -> Block:
        """Return a block whose rows are those of its targets, others, and all that are kept."""
        others = block.others
        if others is None:  # it has copies
            return block
        own, num_rows = block.x, block.num_targets + len(others)
        x = self._rows[self._num_front - num_rows :]
        x[: block.num_targets] = self._plan.call.as_sources(own)
        x[block.num_targets : num_rows] = others
        return replace(block, x=x, own=own if self._plan.call.projection else None, others=None)


class RowReader:
    """Reads rows of a layer's input, converted for the layer. Not thread-safe."""

    def __init__(
        self,
        source: RowSource,
        plan: LayerPlan,
        part_bytes: int,
        workers: Workers,
        factors: Tensor | None,  # of the columns
    ) -> None:
        self.source = source
        self.plan = plan
        self.workers = workers
        self.part_rows = part_rows(plan, part_bytes)
        self._kind = plan.kind
        self._factors = factors
        self.counts = ReadCounts()

    def read_range(self, first: int, x: Tensor) -> None:
        """Read the rows of consecutive nodes."""
        self._in_parts(lambda part: self._read_range(first + part.start, x[part]), len(x))

    def read_ids(self, ids: npt.NDArray[Any], sources: Tensor) -> None:
        """Read rows as the layer sums them."""
        self._in_parts(lambda part: self._read_ids(ids[part], sources[part]), len(ids))

    def stored_range(self, first: int, last: int) -> tuple[npt.NDArray[Any], ReadCounts]:
        """Read the rows of consecutive nodes as they are stored. Thread-safe."""
        rows = self.source.spec.empty(last - first)
        return rows, self.source.read_range(first, rows)

    def converted(self, rows: npt.NDArray[Any]) -> Tensor:
        """Return stored rows in the layer's type."""
        tensor = as_tensor(np.require(rows, requirements="W"), self._kind.stored)
        tensor = tensor.view(-1, self._kind.width).to(self._kind.dtype)
        return tensor if self._factors is None else tensor * self._factors

    def _in_parts(self, read: Callable[[slice], ReadCounts], num_rows: int) -> None:
        """Read some parts at the same time."""
        begins = range(0, num_rows, self.part_rows)
        tasks = [partial(read, slice(begin, begin + self.part_rows)) for begin in begins]
        self.counts = sum(self.workers.run(tasks), self.counts)

    def _read_range(self, first: int, x: Tensor) -> ReadCounts:
        if self._kind.is_as_stored:
            return self.source.read_range(first, as_bits(x))
        rows, counts = self.stored_range(first, first + len(x))
        x.copy_(self.converted(rows))
        return counts

    def _read_ids(self, ids: npt.NDArray[Any], sources: Tensor) -> ReadCounts:
        if self._kind.is_as_stored and self.plan.call.projection is None:
            return self.source.read_rows(ids, as_bits(sources))
        rows, counts = self.source.gather(ids)
        sources.copy_(self.plan.call.as_sources(self.converted(rows)))
        return counts


def as_bits(x: Tensor) -> npt.NDArray[Any]:
    """Return rows as integers of the same memory."""
    return x.view(_BITS[x.itemsize]).numpy()


def part_rows(plan: LayerPlan, part_bytes: int) -> int:
    """Return the number of rows in a part, the unit of reading."""
    return min(max(1, part_bytes // plan.kind.stored_bytes), _MAX_PART_ROWS)


def part_memory(plan: LayerPlan, part_bytes: int) -> tuple[int, int]:
    """Return the bytes for reading a part of a block's rows, and for a pass over the table."""
    kind, number = plan.kind, part_rows(plan, part_bytes)
    converted = 0 if kind.is_as_stored else kind.stored_bytes
    mapped = 0 if plan.call.projection is None else plan.source_bytes
    order = 16 + 8 + converted + mapped + (kind.row_bytes if mapped else 0)
    # As stored, converted, mapped, and chosen.
    in_pass = (NUM_PARTS + 1) * kind.stored_bytes + mapped
    return number * order, number * (in_pass + (0 if kind.is_as_stored else kind.row_bytes))
