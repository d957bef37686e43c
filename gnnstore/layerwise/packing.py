"""One pass over a layer's input: rows to keep go to memory, those of blocks to chunks of their own.

The in-neighbours of a block lie anywhere in the table. If they are few, reading them one by one is
limited by a disk's reads per second. So the table is read once in order for a group of blocks, the
rows of each are written to a file, and each block then reads its own.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gnnstore import _core
from gnnstore.disk.spool import guarded
from gnnstore.errors import storage_error
from gnnstore.features.source import FileRows
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.layerwise.memory import BlockLimits
from gnnstore.layerwise.rows import NUM_PARTS, KeptRows, RowReader, as_bits
from gnnstore.strategies.workload import count_reads
from gnnstore.threads import CancelledError, Flag

_MAX_BLOCKS = 1024
_PAGE_BYTES = 4096
# Costs are bytes that a disk moves in the same time; packing must be better by this factor.
_WORTHWHILE = 0.9
# The share of the memory of a block that is made for rows that are to be written together.
_PENDING_SHARE = 4
# Parts of the table whose rows are looked up together.
_PARTS_AT_A_TIME = 64

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
        self._unfilled = kept
        self._limits = limits
        self._is_first = True  # of the groups
        self._disk_bytes = disk_bytes
        self._is_wanted = needs_rows
        self._group: dict[int, tuple[int, int]] = {}  # first node -> last node, place
        self._packed: PackedRows | None = None
        self.bytes_written = 0  # bytes of packed rows
        self.bytes_read = 0  # bytes of packed rows; those of passes are the reader's
        self.stop = Flag()  # if set, packing ends soon, and `find` fails

    def find(self, first: int, outline: Outline) -> int | None:
        """Return the end of a block whose rows are packed; None: they are not."""
        if first not in self._group and self._is_wanted:
            self.close()
            self._form(first, outline)
        if self._unfilled is not None:
            self._pass(None)
        return self._group[first][0] if first in self._group else None

    def read(self, first: int, sources: Tensor) -> None:
        """Read the packed rows of a block, as the layer sums them."""
        assert self._packed is not None  # noqa: S101 - the block is in a group
        self.bytes_read += self._packed.read(self._group[first][1], sources)

    def close(self) -> None:
        """Remove the packed rows. Idempotent."""
        self._group.clear()
        packed, self._packed = self._packed, None
        if packed is not None:
            packed.close()

    def _form(self, first: int, outline: Outline) -> None:
        files, row_bytes = self._reader.source.file_rows, self._reader.plan.packed_bytes
        assert files is not None  # noqa: S101 - else there is no packer
        num_nodes, room, limits = self._reader.source.num_rows, self._disk_bytes(), self._limits
        dtype = id_dtype(num_nodes)
        # Ids take the memory of blocks: of the one to be made, or of those that do not exist yet.
        is_alone = self._is_first and limits.is_ahead
        max_rows = (limits.running if is_alone else limits.making // 2) // dtype.itemsize
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
        num_bytes = sum(map(len, wanted)) * row_bytes
        table = 0 if self._unfilled is not None else min(direct, files.array.disk_bytes)
        self._is_wanted = False  # later blocks are similar: making their lists would be in vain
        if len(bounds) < 2 or table + 2 * num_bytes > _WORTHWHILE * direct or num_bytes > room:
            return
        pending = max(limits.making // _PENDING_SHARE // row_bytes, self._reader.part_rows)
        self._packed = PackedRows(self._directory, self._reader, wanted, pending)
        self._pass(self._packed)
        self._is_wanted = True
        self.bytes_written += self._packed.num_bytes
        self._is_first = False
        self._group = {begin: (end, place) for place, (begin, end) in enumerate(bounds)}

    def _pass(self, packed: PackedRows | None) -> None:
        """Read the table in order, and put its rows where they belong."""
        reader, kept = self._reader, self._unfilled
        projects = reader.plan.call.projection is not None
        for first, part in self._parts():
            rows, counts = part.result()
            reader.counts += counts
            if kept is not None or projects:
                sources = reader.plan.call.as_sources(reader.converted(rows))
                if kept is not None:
                    kept.fill(first, sources)
                if projects:
                    rows = as_bits(sources)
            if packed is not None:
                packed.append(first, rows)
        if packed is not None:
            packed.flush()
        self._unfilled = None

    def _parts(self) -> Iterator[tuple[int, Any]]:
        """Read the parts of the table in order, some ahead."""
        reader = self._reader
        coming: deque[tuple[int, Any]] = deque()
        for first in range(0, reader.source.num_rows, reader.part_rows):
            if self.stop.is_set():
                raise CancelledError("blocks are no longer needed")
            last = min(first + reader.part_rows, reader.source.num_rows)
            coming.append((first, reader.workers.submit(reader.stored_range, first, last)))
            if len(coming) == NUM_PARTS - 1:
                yield coming.popleft()
        yield from coming


class PackedRows:
    """The rows of the blocks of a group, each in several runs."""

    def __init__(
        self,
        directory: Path,
        reader: RowReader,
        wanted: list[npt.NDArray[Any]],
        max_pending: int,
    ) -> None:
        self._reader = reader
        self._wanted = wanted  # the ids of the rows of each block, ascending
        self._places = np.zeros((len(wanted), 1), np.int64)  # see `_look_up`
        self._max_pending = max_pending  # rows gathered before they are written, a run each block
        self._pending: dict[int, list[npt.NDArray[Any]]] = defaultdict(list)
        self._num_pending = 0
        # The runs of each block: begin, words, checksum and number of rows.
        self._runs: list[list[tuple[int, int, int, int]]] = [[] for _ in wanted]
        self.num_bytes = 0  # in the file
        try:
            self._directory = Path(tempfile.mkdtemp(prefix="packed-", dir=directory))
            self.path = self._directory / "rows"
            self._file = _core.SpillFile(self.path)
        except OSError as error:
            raise storage_error(error, "make a file for packed rows", directory) from error

    def append(self, first: int, rows: npt.NDArray[Any]) -> None:
        """Add the rows of a part of the table to the blocks that need them."""
        begins, ends = self._look_up(first)
        for block in np.flatnonzero(ends > begins).tolist():
            ids = self._wanted[block][begins[block] : ends[block]]
            if self._num_pending + len(ids) > self._max_pending:
                self.flush()
            self._pending[block].append(rows[ids - first])
            self._num_pending += len(ids)

    def _look_up(self, first: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return where the ids of a part begin and end in the list of each block."""
        size = self._reader.part_rows
        number = first // size % _PARTS_AT_A_TIME
        if number == 0:
            bounds = first + size * np.arange(_PARTS_AT_A_TIME + 1)
            self._places = np.stack([np.searchsorted(ids, bounds) for ids in self._wanted])
            self._places = np.ascontiguousarray(self._places.T)
        return self._places[number], self._places[number + 1]

    def flush(self) -> None:
        """Write the rows that were gathered."""
        for block, pieces in self._pending.items():
            rows = np.concatenate(pieces)
            flat = rows.reshape(-1).view(np.uint8)
            if missing := -len(flat) % 4:
                flat = np.concatenate([flat, np.zeros(missing, np.uint8)])
            words = flat.view(np.int32)
            write = partial(self._file.append, words, block)
            begin, crc = guarded(write, "write the packed rows", self.path)
            self._runs[block].append((begin, len(words), crc, len(rows)))
            self.num_bytes += words.nbytes
        self._pending.clear()
        self._num_pending = 0

    def read(self, block: int, sources: Tensor) -> int:
        """Read the rows of a block, as its layer sums them; return the bytes read from the file."""
        tasks, at = [], 0
        for begin, num_words, crc, size in self._runs[block]:
            read = partial(self._file.read_int32, begin, num_words, crc, block)
            tasks.append(partial(self._read, read, sources[at : at + size]))
            at += size
        self._runs[block] = []
        return sum(self._reader.workers.run(tasks))

    def _read(self, read: Callable[[], npt.NDArray[np.int32]], out: Tensor) -> int:
        plan = self._reader.plan
        words = guarded(read, "read the packed rows", self.path)
        rows = words.view(np.uint8)[: len(out) * plan.packed_bytes]
        if plan.call.projection is not None:
            as_bits(out)[:] = rows.view(as_bits(out).dtype).reshape(out.shape)
        else:
            out.copy_(self._reader.converted(rows.view(plan.kind.stored_dtype)))
        return words.nbytes

    def close(self) -> None:
        """Remove the rows. Idempotent."""
        self._runs.clear()
        self._file.close()
        _core.remove_tree(self._directory)


def _direct_bytes(files: FileRows, ids: npt.NDArray[np.int64]) -> float:
    """Return the cost of reading rows one by one: bytes, with each read as a gap of bytes."""
    tuning = files.engine.tuning
    reads = count_reads(ids, files.array.layout, _PAGE_BYTES, tuning)
    return float(reads.num_bytes + reads.reads * tuning.gap_bytes)
