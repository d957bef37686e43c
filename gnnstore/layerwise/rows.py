"""The rows of a block, read into the memory of an earlier block.

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

from gnnstore._core import ReadCounts, empty, pool_trim
from gnnstore.features.source import RowSource
from gnnstore.graph.arrays import as_tensor
from gnnstore.layerwise.models.calls import RowKind
from gnnstore.layerwise.packing import PART_BYTES, BlockPacker
from gnnstore.threads import Workers

# A part of a block's rows is sorted by place before it is read, with 16 bytes a row.
_MAX_PART_ROWS = 1 << 18
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Direct reads are aligned to pages, on disk and in memory; arithmetic prefers whole cache lines.
_PAGE_BYTES, _LINE_BYTES = 4096, 64


def part_rows(kind: RowKind, part_bytes: int) -> int:
    """Return the number of rows in a part, the unit of reading."""
    return min(max(1, part_bytes // kind.stored_bytes), _MAX_PART_ROWS)


def part_memory_bytes(kind: RowKind, part_bytes: int) -> int:
    """Return the bytes for reading a part: its order, and its rows if they are converted."""
    converted_bytes = 0 if kind.is_as_stored else kind.stored_bytes
    return part_rows(kind, part_bytes) * (16 + 8 + converted_bytes)


class RowReader:
    """Reads the rows of blocks, converted for a layer. Not thread-safe."""

    def __init__(
        self,
        source: RowSource,
        kind: RowKind,
        part_bytes: int,
        workers: Workers,
        packer: BlockPacker | None,
        *,
        factors: Tensor | None = None,
    ) -> None:
        self._source = source
        self._kind = kind
        self._part_bytes = part_bytes
        self._part_rows = part_rows(kind, part_bytes)
        self._workers = workers
        self._packer = packer
        self._factors = factors
        self.counts = ReadCounts()

    def memory_bytes(self, num_rows: int) -> int:
        """Return the size of the buffer for `num_rows` rows."""
        return num_rows * self._kind.row_bytes + _PAGE_BYTES

    def read(self, nodes: npt.NDArray[np.int64], num_targets: int, place: int | None) -> Tensor:
        """Read rows in parts, several at a time: [n, F]."""
        x, bits = self._buffer(len(nodes), 0 if place is None else num_targets)
        num_scattered = len(nodes) if place is None else num_targets
        # One range, if there are enough targets.
        target_bytes = num_targets * self._kind.stored_bytes
        in_order = num_targets if self._kind.is_as_stored and target_bytes >= _PAGE_BYTES else 0
        tasks: list[Callable[[], ReadCounts]] = []
        for begin in range(0, in_order, self._part_rows):
            end = min(begin + self._part_rows, in_order)
            tasks.append(partial(self._source.read_range, int(nodes[begin]), bits[begin:end]))
        for begin in range(in_order, num_scattered, self._part_rows):
            part = slice(begin, min(begin + self._part_rows, num_scattered))
            tasks.append(partial(self._read_part, nodes[part], x[part], bits[part]))
        chunk = None
        if place is not None and num_targets < len(nodes):
            assert self._packer is not None  # noqa: S101 - else nothing is packed
            chunk = bits[num_targets:]
            if not self._kind.is_as_stored:
                chunk = empty((len(chunk), self._kind.width), self._kind.stored_dtype)
            tasks += self._chunk_tasks(self._packer, place, chunk.reshape(-1).view(np.uint8))
            self.counts += ReadCounts(rows_read=len(chunk))
        self.counts = sum(self._workers.run(tasks), self.counts)
        if chunk is not None and not self._kind.is_as_stored:
            self._convert(chunk, x[num_targets:])
        return x

    def _read_part(
        self, ids: npt.NDArray[np.int64], x: Tensor, bits: npt.NDArray[Any]
    ) -> ReadCounts:
        if self._kind.is_as_stored:
            return self._source.read_rows(ids, bits)
        rows, counts = self._source.gather(ids)
        self._convert(np.require(rows, requirements="W"), x)
        return counts

    def _convert(self, rows: npt.NDArray[Any], x: Tensor) -> None:
        x.copy_(as_tensor(rows, self._kind.stored).view(x.shape))
        if self._factors is not None:
            x.mul_(self._factors)

    def _chunk_tasks(
        self, packer: BlockPacker, place: int, chunk: npt.NDArray[np.uint8]
    ) -> list[Callable[[], ReadCounts]]:
        step = max(1, self._part_bytes // PART_BYTES) * PART_BYTES
        begins = range(0, len(chunk), step)
        return [partial(packer.read, place, at, chunk[at : at + step]) for at in begins]

    def _buffer(self, num_rows: int, num_targets: int) -> tuple[Tensor, npt.NDArray[Any]]:
        """Return room for rows, and the same memory as integers; packed rows begin at a page."""
        row_bytes, item_bytes = self._kind.row_bytes, self._kind.dtype.itemsize
        skipped = -num_targets * row_bytes % _PAGE_BYTES
        if skipped % _LINE_BYTES:
            skipped = 0
        raw = empty((self.memory_bytes(num_rows),), np.uint8)
        raw = raw[skipped : skipped + num_rows * row_bytes]
        x = torch.from_numpy(raw.view(f"i{item_bytes}").reshape(num_rows, self._kind.width))
        x = x.view(self._kind.dtype)
        return x, x.view(_BITS[item_bytes]).numpy()


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
