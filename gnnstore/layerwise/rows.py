"""The rows of a block, read into memory that an earlier block has left.

Rows that lie one behind the other on disk are read straight to where they are wanted: copying
them from staging memory is a fifth of the processor time of a cheap layer. Fresh memory for each
block would be another: 6 GB of huge pages, which the system clears, for a table of 2 GB.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore.disk.buffers import empty, trim
from gnnstore.disk.counts import NO_READS, ReadCounts
from gnnstore.features.source import RowSource
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.store.schema import AttributeSpec
from gnnstore.graph.store import as_tensor
from gnnstore.layerwise.packing import PART_BYTES, BlockPacker

# A part of a block's rows is sorted by place before it is read, with 16 bytes a row.
_MAX_PART_ROWS = 1 << 18
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# What direct reads are aligned to, on disk and in memory, and what arithmetic on rows likes.
_PAGE_BYTES, _LINE_BYTES = 4096, 64


@dataclass(frozen=True)
class Table:
    """The rows that a layer works on, and what they are to become.

    Attributes
    ----------
    source : RowSource or None
        None: not there as yet.
    spec : AttributeSpec
        What they are: [N, F].
    kind : torch.dtype
        As the layer wants them.
    part_bytes : int
        Of rows that are read at a time.
    """

    source: RowSource | None
    spec: AttributeSpec
    kind: torch.dtype
    part_bytes: int

    @property
    def rows(self) -> RowSource:
        """What reads them."""
        assert self.source is not None  # noqa: S101 - whoever reads has opened it
        return self.source

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self.spec.shape[1]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as stored."""
        return self.width * STORAGE_DTYPES[self.spec.dtype].itemsize

    @property
    def is_as_wanted(self) -> bool:
        """Whether rows are stored as the layer wants them."""
        return self.spec.dtype == str(self.kind).removeprefix("torch.")

    @property
    def part_rows(self) -> int:
        """Rows that are read at a time."""
        return min(max(1, self.part_bytes // self.row_bytes), _MAX_PART_ROWS)

    @property
    def part_memory_bytes(self) -> int:
        """What reading a part takes: the order of its rows, and these if they are converted."""
        kept = 0 if self.is_as_wanted else self.row_bytes
        return self.part_rows * (16 + 8 + kept)


class RowReader:
    """Reads the rows of blocks, as a layer wants them. Not thread-safe.

    Parameters
    ----------
    table : Table
    readers : Executor
        Reads parts of a block's rows side by side.
    packer : BlockPacker, optional
        Where rows of many blocks are packed.
    """

    def __init__(self, table: Table, readers: Executor, packer: BlockPacker | None) -> None:
        self._table = table
        self._readers = readers
        self._packer = packer
        self.counts = NO_READS

    def memory_bytes(self, num_rows: int) -> int:
        """Return the size of the buffer that `read` takes for so many rows."""
        return num_rows * self._table.width * self._table.kind.itemsize + _PAGE_BYTES

    def read(self, nodes: npt.NDArray[np.int64], num_targets: int, place: int | None) -> Tensor:
        """Read rows in parts, some of them side by side: [n, F].

        Parameters
        ----------
        nodes : ndarray of int64 [n]
            Their ids; the first `num_targets` follow one another.
        place : int or None
            Of the block among those that are packed: the rows that are not its targets' lie in
            its run.

        Raises
        ------
        StorageError, CorruptStoreError
            If they cannot be read.
        """
        table = self._table
        x, bits = self._buffer(len(nodes), 0 if place is None else num_targets)
        num_scattered = len(nodes) if place is None else num_targets
        in_order = num_targets if self._lies_in_order(num_targets) else 0

        def one(begin: int) -> ReadCounts:
            if begin < in_order:
                end = min(begin + table.part_rows, in_order)
                return table.rows.read_range(int(nodes[begin]), bits[begin:end])
            ids = nodes[begin : min(begin + table.part_rows, num_scattered)]
            if table.is_as_wanted:
                return table.rows.read_rows(ids, bits[begin : begin + len(ids)])
            rows, counts = table.rows.gather(ids)
            values = as_tensor(np.require(rows, requirements="W"), table.spec.dtype)
            x[begin : begin + len(ids)] = values.view(len(ids), table.width)
            return counts

        begins = [*range(0, in_order, table.part_rows)]
        begins += range(in_order, num_scattered, table.part_rows)
        parts = [self._readers.submit(one, begin) for begin in begins]
        if place is not None and num_targets < len(nodes):
            parts += self._read_run(place, x[num_targets:], bits[num_targets:])
            self.counts += ReadCounts(rows_read=len(nodes) - num_targets)
        # All of them, also if one fails: what they fill must not be taken from them.
        wait(parts)
        for part in parts:
            self.counts += part.result()
        return x

    def _lies_in_order(self, num_targets: int) -> bool:
        """Whether rows that follow one another are worth being read as one range."""
        return self._table.is_as_wanted and num_targets * self._table.row_bytes >= _PAGE_BYTES

    def _buffer(self, num_rows: int, num_targets: int) -> tuple[Tensor, npt.NDArray[Any]]:
        """Return room for rows, and the same as integers; what a run fills begins a page."""
        width, item_bytes = self._table.width, self._table.kind.itemsize
        skipped = -num_targets * width * item_bytes % _PAGE_BYTES
        if skipped % _LINE_BYTES:
            skipped = 0
        raw = empty((self.memory_bytes(num_rows),), np.uint8)
        raw = raw[skipped : skipped + num_rows * width * item_bytes]
        x = torch.from_numpy(raw.view(f"i{item_bytes}").reshape(num_rows, width))
        x = x.view(self._table.kind)
        return x, x.view(_BITS[item_bytes]).numpy()

    def _read_run(self, place: int, x: Tensor, bits: npt.NDArray[Any]) -> list[Future[ReadCounts]]:
        """Begin to read packed rows, as the layer wants them."""
        packer, table = self._packer, self._table
        assert packer is not None  # noqa: S101 - else nothing is packed
        rows = (
            bits if table.is_as_wanted else empty(tuple(x.shape), STORAGE_DTYPES[table.spec.dtype])
        )
        run = rows.reshape(-1).view(np.uint8)
        step = max(1, table.part_bytes // PART_BYTES) * PART_BYTES
        begins = range(0, len(run), step)
        parts = [
            self._readers.submit(packer.read, place, begin, run[begin : begin + step])
            for begin in begins
        ]
        if not table.is_as_wanted:
            wait(parts)
            x.copy_(as_tensor(rows, table.spec.dtype))
        return parts


class RecycledBlocks:
    """Decides whether the pool keeps what a block has left, for the one that is made next.

    A free buffer that is of no use to it would come on top of what it takes.

    Parameters
    ----------
    num_alive : int
        Blocks that are there at once: while one is made, what is free is of the one so many
        before it.
    """

    def __init__(self, num_alive: int) -> None:
        self._sizes: deque[tuple[int, ...]] = deque(maxlen=num_alive)

    def prepare(self, *num_bytes: int) -> bool:
        """Free what the next block cannot use; whether there may be anything that it can.

        Parameters
        ----------
        num_bytes : int
            Of each buffer that it is going to take.
        """
        sizes = tuple(_size_class(each) for each in num_bytes)
        is_same = len(self._sizes) == self._sizes.maxlen and self._sizes[0] == sizes
        if not is_same:
            trim(0)
        self._sizes.append(sizes)
        return is_same


def _size_class(num_bytes: int) -> int:
    """Return a number that is the same for buffers which the pool uses for one another.

    It rounds up to 8 sizes for each power of two.
    """
    least = max(num_bytes, _PAGE_BYTES)
    step = 1 << ((least - 1).bit_length() - 4)
    return -(-least // step) * step
