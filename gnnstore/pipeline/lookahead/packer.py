"""Rolling packing: while one superbatch trains, the missed rows of the next are packed (DiskGNN).

Samples are as fresh as ever, and all that is read, is read in order: the table once for each
superbatch, and the runs of rows that its batches miss. Two superbatches are there at most; chunks
that memory has room for are not written.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from gnnstore._core import release_memory
from gnnstore.features.packed.pack import pack, packed_bytes
from gnnstore.features.source import ranges_of
from gnnstore.pipeline.batch import Recorder
from gnnstore.threads import CancelledError, Flag

if TYPE_CHECKING:
    from gnnstore.caching.plan import CachePlan, Trace
    from gnnstore.features.packed.chunks import PackedSuperbatch
    from gnnstore.features.source import FileRows, RowSource, TypedRows
    from gnnstore.sampling.row_space import RowRange

_POLL_SECONDS = 0.05
# Reads of single rows for each piece of a pass: packed rows are written and read as well.
_WORTH = 4 / 3
_LEAST_READ_BYTES = 4 << 10
# Each takes a byte, for as long as they are counted.
_MAX_PIECES = 1 << 22


class SuperbatchPacker:
    """Packs the superbatches of one iteration."""

    def __init__(
        self,
        tables: Mapping[str, TypedRows[FileRows]],
        directory: Path,
        *,
        quota: DiskQuota,
        memory_bytes: int,
        chunk_memory_bytes: int,
        num_threads: int,
        may_wait: bool,
        stop: Flag,
        waits_for_others: Callable[[], bool] = lambda: False,
        recorder: Recorder | None = None,
    ) -> None:
        self._tables = tables
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._chunk_memory_bytes = chunk_memory_bytes
        self._num_threads = num_threads
        self._may_wait = may_wait
        self._quota = quota
        self._stop = stop
        self._waits_for_others = waits_for_others
        self._recorder = recorder or Recorder()

    def is_faster(self, trace: Trace, plan: CachePlan) -> bool:
        """Whether packing what there is room for takes less time than reading it row by row."""
        num_batches, _ = self._fitting(trace, plan)
        tables_each = len(self._tables) / len(ranges_of(self._tables))
        reads = int(plan.misses[:num_batches].sum()) * tables_each
        pieces = [_Pieces.of(table) for table in self._tables.values()]
        if reads > _WORTH * sum(each.num_pieces for each in pieces):
            return True
        needed = sum(each.num_needed(trace, plan, num_batches) for each in pieces)
        release_memory()
        return reads > _WORTH * needed

    def pack(self, trace: Trace, plan: CachePlan) -> PackedBatches | None:
        """Pack the missed rows of a superbatch's batches."""
        num_batches, wanted = self._fitting(trace, plan)
        if num_batches == 0:
            return None
        while not self._quota.take(self, wanted):
            if not (self._may_wait and (self._waits_for_others() or self._quota.is_of(self))):
                return None
            if self._stop.wait(_POLL_SECONDS):
                raise CancelledError("packing was stopped before it began")
        release_memory()  # what batches have left free while room was waited for
        try:
            with self._recorder.phase("pack rows", unit="bytes") as advance:
                packed = pack(
                    self._tables,
                    trace.first(num_batches),
                    plan.first(num_batches),
                    self._directory,
                    memory_bytes=self._memory_bytes,
                    chunk_memory_bytes=self._chunk_memory_bytes,
                    num_threads=max(1, self._num_threads),
                    disk_bytes=self._quota.num_bytes,
                    stop=self._stop,
                    advance=advance,
                )
        except BaseException:
            self._quota.give_back(self, wanted)
            raise
        finally:
            release_memory()
        return PackedBatches(packed, plan.num_batches, lambda: self._quota.give_back(self, wanted))

    def _fitting(self, trace: Trace, plan: CachePlan) -> tuple[int, int]:
        """Return how many batches, from the first on, there is room for, and their disk space."""
        id_bytes = 0 if trace.file is None else trace.ids.itemsize

        def bytes_of(count: int) -> int:
            misses = plan.misses[:count]
            return packed_bytes(self._tables, misses, id_bytes, self._chunk_memory_bytes)

        if (wanted := bytes_of(plan.num_batches)) <= self._quota.num_bytes:
            return plan.num_batches, wanted

        counts = range(plan.num_batches + 1)
        most = bisect_right(counts, self._quota.num_bytes, key=bytes_of) - 1
        return most, bytes_of(most)


@dataclass(frozen=True)
class _Pieces:
    """A table in pieces, each of which a pass reads as fast as the disk reads a row by itself."""

    range: RowRange
    rows_each: int  # rows of a piece, and pieces of the table
    num_pieces: int  # rows of a piece, and pieces of the table

    @classmethod
    def of(cls, rows: TypedRows[FileRows]) -> Self:
        """Divide a table as its disk was measured: a gap that is as long as a read takes is one."""
        table = rows.table
        piece_bytes = table.place["gap_bytes"] + _LEAST_READ_BYTES
        rows_each = max(
            1, piece_bytes // max(1, table.row_bytes), -(-table.num_rows // _MAX_PIECES)
        )
        return cls(rows.range, rows_each, -(-table.num_rows // rows_each))

    def num_needed(self, trace: Trace, plan: CachePlan, num_batches: int) -> int:
        """Return the number of pieces of which the first batches miss a row."""
        is_needed = np.zeros(self.num_pieces, np.bool_)
        for i in range(num_batches):
            places, nodes = self.range.part(trace.batch(i))
            is_needed[nodes[plan.batch_slots(i)[places] < 0] // self.rows_each] = True
        return int(np.count_nonzero(is_needed))


class DiskQuota:
    """A limit of bytes on disk for the packed rows of at most two superbatches together."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        # A packer that was forgotten, its iteration's end cut off by Ctrl-C, has no files.
        self._taken: list[tuple[weakref.ref[SuperbatchPacker], int]] = []
        self._lock = threading.Lock()

    def take(self, packer: SuperbatchPacker, wanted: int) -> bool:
        """Take room for a superbatch, if there is some; one alone may always try."""
        with self._lock:
            taken = self._taken = [each for each in self._taken if each[0]() is not None]
            is_fitting = len(taken) == 1 and taken[0][1] + wanted <= self.num_bytes
            if not taken or is_fitting:
                taken.append((weakref.ref(packer), wanted))
                return True
            return False

    def is_of(self, packer: SuperbatchPacker) -> bool:
        """Whether all that is taken is one packer's."""
        with self._lock:
            return all(other() is packer for other, _ in self._taken)

    def give_back(self, packer: SuperbatchPacker, taken: int) -> None:
        """Give back what a superbatch has taken."""
        with self._lock:
            self._taken.remove((weakref.ref(packer), taken))


class PackedBatches:
    """The packed rows of a superbatch, until the last of its batches has them, or gives them up."""

    def __init__(
        self, packed: PackedSuperbatch, num_batches: int, removed: Callable[[], None]
    ) -> None:
        # Once it is closed, only reads that are under way hold on to it, and to its memory.
        self._packed: PackedSuperbatch | None = packed
        self._removed = removed
        self._num_waiting = num_batches
        self.bytes_packed = packed.num_bytes  # bytes on disk
        self.bytes_read = packed.counts.bytes_read  # bytes of the tables that were read for it
        self._lock = threading.Lock()

    def rows(self, i: int) -> dict[str, RowSource] | None:
        """Return the sources of the rows that batch i misses; None: they are in their tables."""
        packed = self._packed
        return packed.rows(i) if packed is not None and i < packed.num_batches else None

    def done(self, num_batches: int = 1) -> None:
        """Note that a batch has its rows, or failed; after the last one the files are removed."""
        with self._lock:
            self._num_waiting -= num_batches
            is_last = self._num_waiting == 0
        if is_last:
            self.close()

    def close(self) -> None:
        """Remove the files, whoever may want them still. Idempotent."""
        with self._lock:
            packed, self._packed = self._packed, None
        if packed is not None:
            packed.close()
            del packed  # its memory goes before another superbatch has the room
            self._removed()
