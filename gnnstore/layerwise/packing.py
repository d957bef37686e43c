"""Packs the rows of many blocks in one pass over the table, if that is cheaper.

The in-neighbours of a block lie anywhere in the table. If they are few, reading them one by one is
limited by a disk's reads per second; packing reads the table once in order for a group of blocks,
writes the rows of each to a chunk of its own, and each block then reads its chunk in order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts
from gnnstore.caching.plan import Trace
from gnnstore.errors import BudgetError, NoSpaceError
from gnnstore.features.files import FileRows
from gnnstore.features.packed.chunks import (
    BLOCK_BYTES,
    CHUNK_STAGING_BYTES,
    PackedSuperbatch,
    chunk_bytes,
)
from gnnstore.features.packed.pack import pack
from gnnstore.features.source import of_one_type
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.strategies.predict.reads import count_reads
from gnnstore.threads import CancelledError, Flag

_log = logging.getLogger(__name__)

# The share of a block's memory for the places of a group's rows: 4 bytes a row, and up to 21 while
# the group is packed.
INDEX_SHARE = 8
_INDEX_BYTES = 4
_MAX_BLOCKS = 1024
_PAGE_BYTES = 4096
# Costs are bytes that a disk moves in the same time; packing must be better by this factor.
_WORTHWHILE = 0.9
_NAME = "rows"
# Packed rows have a checksum for each piece of this size.
PART_BYTES = BLOCK_BYTES

Outline = Callable[[int], tuple[int, npt.NDArray[np.int64]]]


def has_room(memory_bytes: int) -> bool:
    """Return whether a budget has room for the smallest packing."""
    return memory_bytes >= 8 * CHUNK_STAGING_BYTES


class BlockPacker:
    """Packs the blocks of one layer, a group after the other. Not thread-safe."""

    def __init__(
        self,
        rows: FileRows,
        directory: Path,
        *,
        memory_bytes: int,
        disk_bytes: Callable[[], int],
        num_threads: int,
    ) -> None:
        self._rows = rows
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._max_rows = memory_bytes // INDEX_SHARE // _INDEX_BYTES
        self._disk_bytes = disk_bytes
        self._num_threads = num_threads
        self._group: dict[int, tuple[int, int]] = {}  # first node -> last node, place
        self._packed: PackedSuperbatch | None = None
        self._is_wanted = True
        self.bytes_written = 0  # bytes of packed rows
        self.counts = ReadCounts()  # reads of packing
        self.stop = Flag()  # if set, packing ends within milliseconds, and `find` fails

    def find(self, first: int, num_nodes: int, outline: Outline) -> tuple[int, int] | None:
        """Return the end of a block, and its place in the group; None: it is not packed."""
        if first not in self._group and self._is_wanted:
            self.close()
            self._form(first, num_nodes, outline)
        return self._group.get(first)

    def read(self, place: int, begin: int, out: npt.NDArray[np.uint8]) -> ReadCounts:
        """Read a part of a block's chunk. Thread-safe."""
        assert self._packed is not None  # noqa: S101 - the block is in a group
        # Not the reader of chunks: it would take staging memory for each thread.
        reader = self._rows.engine.reader
        return self._packed.read_in_order(place, _NAME, out, begin, reader)

    def close(self) -> None:
        """Remove the packed rows. Idempotent."""
        self._group.clear()
        packed, self._packed = self._packed, None
        if packed is not None:
            packed.close()

    def _form(self, first: int, num_nodes: int, outline: Outline) -> None:
        dtype = id_dtype(num_nodes)
        room = self._disk_bytes()
        bounds: list[tuple[int, int]] = []
        batches: list[npt.NDArray[Any]] = []
        total = num_bytes = 0
        direct = 0.0
        while first < num_nodes and len(bounds) < _MAX_BLOCKS:
            if self.stop.is_set():
                raise CancelledError("blocks are no longer needed")
            last, ids = outline(first)
            total += len(ids)
            num_bytes += int(chunk_bytes(np.array([len(ids)]), self._rows.row_bytes)[0])
            if bounds and (total > self._max_rows or num_bytes > room):
                break
            bounds.append((first, last))
            batches.append(ids.astype(dtype))
            direct += self._direct_bytes(ids)
            first = last
        packing = min(direct, self._rows.array.disk_bytes) + 2 * num_bytes
        if len(bounds) < 2 or packing > _WORTHWHILE * direct or num_bytes > room:
            # Later blocks are similar: making their lists would be in vain.
            self._is_wanted = False
            return
        trace = Trace.of(batches)
        del batches
        try:
            self._packed = pack(
                of_one_type({_NAME: self._rows}),
                trace,
                np.zeros(trace.num_accesses, bool),
                self._directory,
                memory_bytes=self._memory_bytes - trace.ids.nbytes - trace.num_accesses,
                num_threads=self._num_threads,
                stop=self.stop,
            )
        except (BudgetError, NoSpaceError) as error:
            _log.info("rows are read block by block: %s", error)
            self._is_wanted = False
            return
        counts = self._packed.counts
        self.bytes_written += counts.bytes_written
        self.counts += ReadCounts(reads=counts.reads, bytes_read=counts.bytes_read)
        self._group = {begin: (end, place) for place, (begin, end) in enumerate(bounds)}

    def _direct_bytes(self, ids: npt.NDArray[np.int64]) -> float:
        """Return the cost of reading rows one by one: bytes, with each read as a gap of bytes."""
        tuning = self._rows.engine.tuning
        reads = count_reads(ids, self._rows.array.layout, _PAGE_BYTES, tuning)
        return float(reads.num_bytes + reads.reads * tuning.gap_bytes)
