"""One pass over a layer's input: rows to keep go to memory, those of blocks to chunks of their own.

The in-neighbours of a block lie anywhere in the table. If they are few, reading them one by one is
limited by a disk's reads per second. So the table is read once in order for a group of blocks, the
rows of each are written to a file, and each block then reads its own. Those of the first blocks
stay in memory.
"""

from __future__ import annotations

import logging
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gnnstore import _core
from gnnstore.disk.spool import FileSpool, MemorySpool
from gnnstore.errors import NoSpaceError, storage_error
from gnnstore.features.files import FileRows
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.layerwise.limits import BlockLimits
from gnnstore.layerwise.plan import LayerPlan
from gnnstore.layerwise.rows import KeptRows, RowReader, as_bits, part_rows
from gnnstore.strategies.predict.reads import count_reads
from gnnstore.threads import CancelledError, Flag

_log = logging.getLogger(__name__)

_MAX_BLOCKS = 1024
_PAGE_BYTES = 4096
# Costs are bytes that a disk moves in the same time; packing must be better by this factor.
_WORTHWHILE = 0.9
# The share of the memory of a block that is made for rows that are to be written together.
_PENDING_SHARE = 4
# Parts of the table that are read ahead of the one that is packed.
NUM_PARTS = 3

Outline = Callable[[int], tuple[int, npt.NDArray[np.int64]]]


class BlockPacker:
    """Packs the blocks of one layer, a group after the other. Not thread-safe."""

    def __init__(
        self,
        reader: RowReader,
        directory: Path,
        *,
        kept: KeptRows | None,  # to be filled
        needs_rows: bool,  # whether blocks need rows that are not kept
        limits: BlockLimits,
        disk_bytes: Callable[[], int],
    ) -> None:
        self._reader = reader
        self._directory = directory
        self._kept = kept
        self._is_filled = kept is None
        self._limits = limits
        # Of the first group: blocks whose rows stay in memory. The first block takes them over.
        self._num_in_memory = 1
        self._disk_bytes = disk_bytes
        self._is_wanted = needs_rows
        self._group: dict[int, tuple[int, int]] = {}  # first node -> last node, place
        self._packed: PackedRows | None = None
        self.bytes_written = 0  # bytes of packed rows
        self.bytes_read = 0  # bytes of packed rows; those of passes are the reader's
        self.stop = Flag()  # if set, packing ends soon, and `find` fails

    def find(self, first: int, num_nodes: int, outline: Outline) -> tuple[int, int] | None:
        """Return the end of a block, and its place in the group; None: it is not packed."""
        if first not in self._group and self._is_wanted:
            self.close()
            self._form(first, num_nodes, outline)
        if not self._is_filled:
            self._pass(None, [])
        return self._group.get(first)

    def read(self, place: int, sources: Tensor) -> None:
        """Read the packed rows of a block, as the layer sums them."""
        assert self._packed is not None  # noqa: S101 - the block is in a group
        self.bytes_read += self._packed.read(place, sources)

    def close(self) -> None:
        """Remove the packed rows. Idempotent."""
        self._group.clear()
        packed, self._packed = self._packed, None
        if packed is not None:
            packed.close()

    def _form(self, first: int, num_nodes: int, outline: Outline) -> None:
        files, row_bytes = self._reader.source.file_rows, self._reader.plan.packed_bytes
        assert files is not None  # noqa: S101 - else there is no packer
        dtype, room = id_dtype(num_nodes), self._disk_bytes()
        # Ids take the memory of blocks: of the one to be made, or of those that do not exist yet.
        limits, is_first = self._limits, self._num_in_memory > 0
        max_bytes = limits.making.limit // 2
        if is_first and limits.is_ahead:
            max_bytes = limits.running.limit
        max_rows = max_bytes // dtype.itemsize
        bounds: list[tuple[int, int]] = []
        wanted: list[npt.NDArray[Any]] = []
        total, direct = 0, 0.0
        while first < num_nodes and len(bounds) < _MAX_BLOCKS:
            if self.stop.is_set():
                raise CancelledError("blocks are no longer needed")
            last, ids = outline(first)
            total += len(ids)
            if bounds and (total > max_rows or total * row_bytes > room):
                break
            bounds.append((first, last))
            wanted.append(ids.astype(dtype))
            direct += _direct_bytes(files, ids)
            first = last
        num_bytes = sum(map(len, wanted[self._num_in_memory :])) * row_bytes
        table = min(direct, files.array.disk_bytes) if self._is_filled else 0
        if len(bounds) < 2 or table + 2 * num_bytes > _WORTHWHILE * direct or num_bytes > room:
            # Later blocks are similar: making their lists would be in vain.
            self._is_wanted = False
            return
        packed = PackedRows(
            self._directory,
            self._reader,
            len(bounds),
            num_bytes=total * row_bytes,
            pending_bytes=max(1, limits.making.limit // _PENDING_SHARE),
            num_in_memory=self._num_in_memory,
        )
        try:
            self._pass(packed, wanted)
        except NoSpaceError as error:
            packed.close()
            _log.info("rows are read block by block: %s", error)
            self._is_wanted = False
            return
        except BaseException:
            packed.close()
            raise
        self._packed = packed
        self.bytes_written += packed.bytes_written
        self._num_in_memory = 0
        self._group = {begin: (end, place) for place, (begin, end) in enumerate(bounds)}

    def _pass(self, packed: PackedRows | None, wanted: list[npt.NDArray[Any]]) -> None:
        """Read the table in order, and put its rows where they belong."""
        reader = self._reader
        projects = reader.plan.call.projection is not None
        fills = self._kept is not None and not self._is_filled
        for first, rows in self._parts():
            chosen = [np.searchsorted(ids, (first, first + len(rows))) for ids in wanted]
            is_needed = any(end > begin for begin, end in chosen)
            sources = None
            if fills or (projects and is_needed):
                sources = reader.plan.call.as_sources(reader.converted(rows))
            if fills:
                assert self._kept is not None  # noqa: S101 - see above
                assert sources is not None  # noqa: S101 - see above
                self._kept.fill(first, sources)
            if packed is None or not is_needed:
                continue
            stored = rows if sources is None or not projects else as_bits(sources)
            for block, (begin, end) in enumerate(chosen):
                if end > begin:
                    packed.append(block, stored[wanted[block][begin:end] - first])
        if packed is not None:
            packed.flush()
        self._is_filled = True

    def _parts(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Read the parts of the table in order, some ahead."""
        reader = self._reader
        coming: deque[tuple[int, Any]] = deque()
        for first in range(0, reader.source.num_rows, reader.part_rows):
            if self.stop.is_set():
                raise CancelledError("blocks are no longer needed")
            last = min(first + reader.part_rows, reader.source.num_rows)
            coming.append((first, reader.workers.submit(reader.stored_range, first, last)))
            if len(coming) == NUM_PARTS - 1:
                yield self._part(*coming.popleft())
        while coming:
            yield self._part(*coming.popleft())

    def _part(self, first: int, call: Any) -> tuple[int, npt.NDArray[Any]]:
        rows, counts = call.result()
        self._reader.counts += counts
        return first, rows


class PackedRows:
    """The rows of the blocks of a group, each in several runs."""

    def __init__(
        self,
        directory: Path,
        reader: RowReader,
        num_blocks: int,
        *,
        num_bytes: int,
        pending_bytes: int,
        num_in_memory: int,
    ) -> None:
        self._reader = reader
        self._pending_bytes = pending_bytes  # gathered before they are written, in a run each block
        self._num_in_memory = num_in_memory  # first blocks, which are not written
        self._num_runs = num_bytes // pending_bytes + 2
        self._pending: list[list[npt.NDArray[Any]]] = [[] for _ in range(num_blocks)]
        self._num_pending = 0
        self._runs: list[dict[int, int]] = [{} for _ in range(num_blocks)]  # run -> rows
        try:
            self._directory = Path(tempfile.mkdtemp(prefix="packed-", dir=directory))
        except OSError as error:
            raise storage_error(error, "make a directory for packed rows", directory) from error
        number = num_blocks * self._num_runs
        self._spool = FileSpool(self._directory / "rows", number, what="the packed rows")
        self._kept = MemorySpool()
        self._run = 0
        self.bytes_written = 0

    def append(self, block: int, rows: npt.NDArray[Any]) -> None:
        """Add rows to those of a block."""
        self._pending[block].append(rows)
        self._num_pending += rows.nbytes
        if self._num_pending >= self._pending_bytes:
            self.flush()

    def flush(self) -> None:
        """Write the rows that were gathered."""
        for block, pending in enumerate(self._pending):
            if not pending:
                continue
            rows = np.concatenate(pending)
            pending.clear()
            number = block * self._num_runs + self._run
            self._runs[block][number] = len(rows)
            if block < self._num_in_memory:
                self._kept.append(number, [rows])
                continue
            flat = rows.reshape(-1).view(np.uint8)
            if missing := -len(flat) % 4:
                flat = np.concatenate([flat, np.zeros(missing, np.uint8)])
            self._spool.append(number, [flat.view(np.int32)])
            self.bytes_written += len(flat)
        self._run += 1
        self._num_pending = 0

    def read(self, block: int, sources: Tensor) -> int:
        """Read the rows of a block, as its layer sums them; return the bytes read from the file."""
        tasks, at = [], 0
        for number, size in self._runs[block].items():
            tasks.append(partial(self._read, number, sources[at : at + size]))
            at += size
        return sum(self._reader.workers.run(tasks))

    def _read(self, number: int, out: Tensor) -> int:
        plan = self._reader.plan
        num_bytes = 0
        try:
            (stored,) = self._kept.read(number)
            self._kept.drop(number)
        except KeyError:
            (flat,) = self._spool.read(number)
            num_bytes = flat.nbytes
            stored = flat.view(np.uint8)[: len(out) * plan.packed_bytes]
        if plan.call.projection is not None:
            as_bits(out)[:] = stored.view(as_bits(out).dtype).reshape(out.shape)
        else:
            out.copy_(self._reader.converted(stored.view(plan.kind.stored_dtype)))
        return num_bytes

    def close(self) -> None:
        """Remove the rows. Idempotent."""
        self._kept.close()
        self._spool.close()
        _core.remove_tree(self._directory)


def pass_memory_bytes(plan: LayerPlan, part_bytes: int) -> int:
    """Return the memory of the parts of the table in a pass: as stored, converted, and chosen."""
    kind = plan.kind
    row_bytes = (NUM_PARTS + 1) * kind.stored_bytes
    row_bytes += 0 if kind.is_as_stored else kind.row_bytes
    row_bytes += 0 if plan.call.projection is None else plan.source_bytes
    return part_rows(plan, part_bytes) * row_bytes


def _direct_bytes(files: FileRows, ids: npt.NDArray[np.int64]) -> float:
    """Return the cost of reading rows one by one: bytes, with each read as a gap of bytes."""
    tuning = files.engine.tuning
    reads = count_reads(ids, files.array.layout, _PAGE_BYTES, tuning)
    return float(reads.num_bytes + reads.reads * tuning.gap_bytes)
