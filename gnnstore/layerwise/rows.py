"""The rows of a block: those kept in memory, and those that are read.

Rows that lie one behind the other on disk are read straight to their places in the block: copying
them from staging memory is a fifth of the processor time of a cheap layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore._core import ReadCounts, empty, pool_trim
from gnnstore.disk.spool import FileSpool
from gnnstore.features.source import RowSource
from gnnstore.graph.arrays import as_tensor
from gnnstore.layerwise.models.block import Block
from gnnstore.layerwise.plan import LayerPlan
from gnnstore.threads import Workers

# A part of a block's rows is sorted by place before it is read, with 16 bytes a row.
_MAX_PART_ROWS = 1 << 18
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# A read of less is of single rows.
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
        return replace(block, x=x, own=own if self._plan.call.projection else None)


class SpilledRows:
    """Rows that the next layer keeps, in a file: this one has no memory for them."""

    def __init__(
        self,
        path: Path,
        chosen: npt.NDArray[np.uint8],
        num_rows: int,
        plan: LayerPlan,
        record_bytes: int,
    ) -> None:
        self._plan = plan
        self._chosen = chosen  # bits of the nodes
        self._record_bytes = record_bytes
        self._pending: list[npt.NDArray[np.uint8]] = []
        self._num_pending = 0
        num_records = num_rows * plan.source_bytes // record_bytes + 1
        self._spool = FileSpool(path, num_records, what="the next layer's rows")
        self._lengths: list[int] = []  # bytes of each record

    def offer(self, first: int, rows: Tensor) -> None:
        """Write those of the results of a layer that belong here."""
        last = first + len(rows)
        bits = np.unpackbits(self._chosen[first // 8 : -(-last // 8)])
        chosen = np.flatnonzero(bits[first % 8 : first % 8 + len(rows)])
        kind = self._plan.kind
        for begin in range(0, len(chosen), _MAX_PART_ROWS):
            some = rows[torch.from_numpy(chosen[begin : begin + _MAX_PART_ROWS])]
            sources = as_bits(self._plan.call.as_sources(some.to(kind.dtype)).contiguous())
            self._pending.append(sources.reshape(-1).view(np.uint8))
            self._num_pending += sources.nbytes
            if self._num_pending >= self._record_bytes:
                self.flush()

    def fill(self, kept: KeptRows) -> int:
        """Move all rows to memory; return the bytes read."""
        flat, at = as_bits(kept.rows).reshape(-1).view(np.uint8), 0
        for record, length in enumerate(self._lengths):
            (values,) = self._spool.read(record)
            flat[at : at + length] = values.view(np.uint8)[:length]
            at += length
        self.close()
        return at

    def flush(self) -> int:
        """Write the rows that were gathered; return the bytes in the file."""
        if self._pending:
            padding = np.zeros(-self._num_pending % 4, np.uint8)
            flat = np.concatenate([*self._pending, padding])
            self._spool.append(len(self._lengths), [flat.view(np.int32)])
            self._lengths.append(self._num_pending)
        self._pending.clear()
        self._num_pending = 0
        return sum(self._lengths)

    def close(self) -> None:
        """Remove the file. Idempotent."""
        self._spool.close()


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
        if self._kind.is_as_stored and len(x) * self._kind.stored_bytes >= _PAGE_BYTES:
            return self.source.read_range(first, as_bits(x))
        return self._read_rows(np.arange(first, first + len(x)), x)

    def _read_rows(self, ids: npt.NDArray[Any], x: Tensor) -> ReadCounts:
        if self._kind.is_as_stored:
            return self.source.read_rows(ids, as_bits(x))
        rows, counts = self.source.gather(ids)
        x.copy_(self.converted(rows))
        return counts

    def _read_ids(self, ids: npt.NDArray[Any], sources: Tensor) -> ReadCounts:
        if self.plan.call.projection is None:
            return self._read_rows(ids, sources)
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
