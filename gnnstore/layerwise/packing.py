"""Rows of many blocks, taken out of a table in one pass over it, where that is cheaper.

The in-neighbours of a block lie anywhere in the table. Where they are few in it, reading them by
themselves is limited by a disk's reads per second; packing reads the table once in order for a
group of blocks, writes what each of them needs to a run of its own, and each block then reads
its run in order.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.caching.trace import Trace
from gnnstore.disk.counts import NO_READS, ReadCounts
from gnnstore.errors import BudgetError, NoSpaceError
from gnnstore.features.files import FileRows
from gnnstore.features.packed.checksum_blocks import PIECE_BYTES
from gnnstore.features.packed.chunks import RUN_STAGING_BYTES, PackedSuperbatch, run_bytes
from gnnstore.features.packed.pack import pack
from gnnstore.parallel import CancelledError

_log = logging.getLogger(__name__)

# Of the memory in which a block is made, for where the rows of a group go while it is used: 4
# bytes a row, and up to 21 while the group is packed.
INDEX_SHARE = 8
_INDEX_BYTES = 4
_MAX_BLOCKS = 1024
_PAGE_BYTES = 4096
# Estimates are of bytes that a disk moves in the same time; packing has to be that much better.
_WORTHWHILE = 0.9
_NAME = "rows"
# Rows of a run are compared by pieces of this size.
PART_BYTES = PIECE_BYTES

Outline = Callable[[int], tuple[int, npt.NDArray[np.int64]]]


def has_room(memory_bytes: int) -> bool:
    """Whether a budget has room for what packing and reading runs take at least."""
    return memory_bytes >= 8 * RUN_STAGING_BYTES


class BlockPacker:
    """The groups of blocks of one layer, one after the other. Not thread-safe.

    Parameters
    ----------
    rows : FileRows
        The layer's input.
    directory : Path
        Where packed rows lie for a while.
    memory_bytes : int
        For forming and packing a group.
    disk_bytes : callable
        Returns what may be written now.
    num_threads : int
        Threads that copy rows.

    Attributes
    ----------
    bytes_written : int
        By packing.
    counts : ReadCounts
        Of packing.
    stop : threading.Event
        Set by anybody: packing ends within milliseconds, and `find` fails.
    """

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
        self.bytes_written = 0
        self.counts = NO_READS
        self.stop = threading.Event()

    def find(self, first: int, num_nodes: int, outline: Outline) -> tuple[int, int] | None:
        """Return where a block ends and its place in the group; None: it is not packed.

        Parameters
        ----------
        first : int
            Its first node.
        num_nodes : int
            N; packs no group of a single block with all nodes.
        outline : callable
            Returns where the block that begins with a node ends, and the ids of its rows that
            are not its targets', ascending.
        """
        if first not in self._group and self._is_wanted:
            self.close()
            self._form(first, num_nodes, outline)
        return self._group.get(first)

    def read(self, place: int, begin: int, out: npt.NDArray[np.uint8]) -> ReadCounts:
        """Read rows of a block that are not its targets'; by several threads, if need be.

        Parameters
        ----------
        place : int
        begin : int
            Bytes of rows before those that are read: a multiple of `PART_BYTES`.
        out : ndarray of uint8
            For whole parts, or the rest of the rows.

        Raises
        ------
        StorageError, CorruptStoreError
            As `PackedSuperbatch.read_in_order`.
        """
        assert self._packed is not None  # noqa: S101 - the block is in a group
        # Not the reader of runs: it would take staging memory for each thread.
        reader = self._rows.engine.reader
        return self._packed.read_in_order(place, _NAME, out, begin, reader)

    def close(self) -> None:
        """Remove what is packed. Idempotent."""
        self._group.clear()
        packed, self._packed = self._packed, None
        if packed is not None:
            packed.close()

    def _form(self, first: int, num_nodes: int, outline: Outline) -> None:
        dtype = np.int32 if num_nodes < 2**31 else np.int64
        room = self._disk_bytes()
        bounds: list[tuple[int, int]] = []
        batches: list[npt.NDArray[Any]] = []
        total = num_bytes = 0
        direct = 0.0
        while first < num_nodes and len(bounds) < _MAX_BLOCKS:
            if self.stop.is_set():
                raise CancelledError("blocks are not wanted any more")
            last, ids = outline(first)
            total += len(ids)
            num_bytes += int(run_bytes(np.array([len(ids)]), self._rows.row_bytes)[0])
            if bounds and (total > self._max_rows or num_bytes > room):
                break
            bounds.append((first, last))
            batches.append(ids.astype(dtype))
            direct += self._direct_bytes(ids)
            first = last
        packing = min(direct, self._rows.array.disk_bytes) + 2 * num_bytes
        if len(bounds) < 2 or packing > _WORTHWHILE * direct or num_bytes > room:
            # The blocks to come are alike: their lists would be made for nothing.
            self._is_wanted = False
            return
        trace = Trace.of(batches)
        del batches
        try:
            self._packed = pack(
                {_NAME: self._rows},
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
        """Return what reading rows by themselves costs: bytes, and each read as a gap of bytes."""
        if not len(ids):
            return 0.0
        geometry, gap_bytes = self._rows.array.geometry, self._rows.engine.tuning.gap_bytes
        runs, ranks = np.divmod(ids, geometry.rows_per_page)
        begins = runs * geometry.page_stride_bytes + ranks * geometry.row_bytes
        pages = begins // _PAGE_BYTES
        ends = (begins + geometry.row_bytes - 1) // _PAGE_BYTES + 1
        gaps = np.maximum(pages[1:] - ends[:-1], 0) * _PAGE_BYTES
        is_apart = gaps > gap_bytes
        num_reads = int(np.count_nonzero(is_apart)) + 1
        span = int(ends[-1] - pages[0]) * _PAGE_BYTES - int(gaps[is_apart].sum())
        return float(span + num_reads * gap_bytes)
