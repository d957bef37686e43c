"""Packing with segments: rows that several batches of a segment miss are written once for them.

In one pass over a table (see `gnnstore.features.packed.pack`) each batch gets a chunk of the missed
rows that it does not share in its segment, and each segment its shared rows, cut into parts. The
pass writes a part in the order of the table; then each is read, put in the segment's own order (see
`gnnstore.caching.segments`) and written back, some megabytes at a time.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.segments import SharedRows, segments_of
from gnnstore.disk.spool import MemorySpool
from gnnstore.errors import CorruptStoreError, UsageError, storage_errors
from gnnstore.features.files import FileRows
from gnnstore.features.packed.chunks import (
    PACK_ELSEWHERE,
    ChunkChecksums,
    MissIndex,
    PackedChunks,
    shared_crcs,
)
from gnnstore.features.packed.misses import MissTable
from gnnstore.features.packed.pack import append_missed
from gnnstore.features.source import TypedRows
from gnnstore.formats.container.files import read_part, write_part
from gnnstore.formats.container.regular_files import open_regular

# Parts are put in order in pieces of this size, twice in memory.
_PART_BYTES = 4 << 20
# Each part has a buffer while it is packed, as each batch has. With more parts for a batch, parts
# grow instead.
_MAX_PARTS_PER_BATCH = 4
# As in packing; and for a range of the table, see `gnnstore.caching.segments`.
_LEAST_BUFFER_BYTES = 4 << 10
_LOOKING_BYTES = 24 << 20


@dataclass(frozen=True)
class SegmentPlace:
    """Positions of the shared rows of one segment."""

    first: int  # its first batch in the superbatch
    end: int  # the batch after its last one
    num_rows: int  # shared rows
    part_rows: int  # shared rows of a whole part
    first_part: int  # among all parts of the superbatch
    first_row: int  # among all shared rows of the superbatch


@dataclass(frozen=True, eq=False)
class DividedChunks:
    """Positions of the chunks and parts of a table in its file, and the checksums of their rows."""

    # int64 [S + parts + 1]: the begin of the chunk of each batch and of each part; the end of the
    # last.
    offsets: npt.NDArray[np.int64]
    # Of the chunks; those of parts are of rows that are not in their order yet.
    checksums: ChunkChecksums
    # crc32c of each shared row, segment by segment in its order.
    shared_crcs: npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class DividedMisses:
    """The misses of a superbatch: shared ones by segment, the others by batch."""

    missed: MissTable  # the packed chunks: one for each batch, and then one for each part
    index: MissIndex  # of all misses
    # The place of each shared row in its segment's order, in parallel to the positions of `index`.
    ranks: npt.NDArray[Any]
    own: npt.NDArray[np.int64]  # int64 [S]: rows in the chunk of each batch
    ordered: npt.NDArray[Any]  # the rows of all parts, in their segment's order
    segments: tuple[SegmentPlace, ...]

    @property
    def num_batches(self) -> int:
        """Number of batches, S."""
        return len(self.own)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        if not self.segments:
            return self.missed.num_bytes
        kept = self.index.num_bytes + self.ranks.nbytes + self.ordered.nbytes
        return kept + self.missed.num_bytes

    def batch(self, i: int) -> BatchMisses:
        """Return the places of the missed rows of a batch."""
        positions, targets, sources = self.index.batch(i)
        begin, own = int(self.missed.begins[i]), int(self.own[i])
        ranks = self.ranks[begin + own : begin + len(positions)].astype(np.int32)
        return BatchMisses(positions[:own], targets, sources, positions[own:], ranks)

    def batch_crcs(
        self, chunks: DividedChunks, i: int, ranks: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.uint32]:
        """Return the checksums of the shared rows of a batch, by their ranks."""
        place = self.segments[bisect_right(self.segments, i, key=lambda place: place.end)]
        return shared_crcs(chunks.shared_crcs[place.first_row + ranks])


@dataclass(frozen=True, eq=False)
class BatchMisses:
    """Destinations of the missed rows of one batch, all int32."""

    positions: npt.NDArray[np.int32]  # of each row of the batch's chunk
    repeat_targets: npt.NDArray[np.int32]  # positions that get the row of another one
    repeat_sources: npt.NDArray[np.int32]  # positions of these other rows
    # Positions of rows that the segment's batches share, in the order of their ranks.
    shared_positions: npt.NDArray[np.int32]
    # Ranks of these rows, ascending.
    shared_ranks: npt.NDArray[np.int32]


def divide_misses(
    missed: MissTable,
    segment: int,
    *,
    num_table_rows: int,
    row_bytes: int,
) -> DividedMisses:
    """Find the rows that the batches of each segment share. Changes `missed` and owns it."""
    index, rows = missed.index, missed.rows
    own = index.num_rows.copy()
    if segment == 1:
        return DividedMisses(missed, index, rows, own, rows[:0], ())
    if len(missed.ranges) > 1:
        raise UsageError(
            f"segment={segment} is for rows of one node type, and {len(missed.ranges)} types have "
            "rows to pack: leave it out"
        )
    num_batches = len(own)
    found: list[tuple[range, int]] = []
    ordered: list[npt.NDArray[Any]] = []
    for batches in segments_of(num_batches, segment):
        found_rows = [missed.batch(i) for i in batches]
        shared = SharedRows.of(found_rows, num_table_rows)
        ordered.append(shared.in_order())
        found.append((batches, shared.num_rows))
        for i, of_batch in zip(batches, found_rows, strict=True):
            own[i] = _divide_batch(of_batch, index.batch(i)[0], shared)
    total = sum(size for _, size in found)
    part_rows = max(1, _PART_BYTES // row_bytes)
    while total // part_rows > _MAX_PARTS_PER_BATCH * num_batches:
        part_rows *= 2
    segments, part, row = [], 0, 0
    for batches, size in found:
        segments.append(SegmentPlace(batches.start, batches.stop, size, part_rows, part, row))
        part += -(-size // part_rows)
        row += size
    in_order = np.concatenate([rows[:0], *ordered])
    ordered.clear()
    return DividedMisses(
        missed=_with_parts(missed, own, in_order, segments),
        index=index,
        ranks=rows,
        own=own,
        ordered=in_order,
        segments=tuple(segments),
    )


def segment_memory(misses: npt.NDArray[np.int64], id_bytes: int, num_tables: int) -> int:
    """Return the memory for dividing rows, on top of that for packing (see `least_memory`)."""
    total = int(misses.sum())
    # A copy for the kernel, and half as many shared rows in two orders, with their buffers, and
    # with a checksum of each.
    parts = _MAX_PARTS_PER_BATCH * len(misses) * _LEAST_BUFFER_BYTES
    crcs = 4 * (total // 2) * num_tables
    return total * id_bytes + total * id_bytes + parts + crcs + _LOOKING_BYTES


def append_divided(
    tables: Mapping[str, TypedRows[FileRows]],
    divided: DividedMisses,
    files: Mapping[str, tuple[Path, int]],
    *,
    memory_bytes: int,
    num_threads: int = 1,
) -> dict[str, DividedChunks]:
    """Write the chunks of batches, and then the parts of segments."""
    chunks = append_missed(
        tables,
        divided.missed,
        files,
        memory_bytes=memory_bytes - (divided.num_bytes - divided.missed.num_bytes),
        num_threads=num_threads,
    )
    return {
        path: DividedChunks(
            chunks[path].offsets,
            chunks[path].checksums,
            _reorder(divided, files[path][0], chunks[path], rows.table.row_bytes),
        )
        for path, rows in tables.items()
    }


def _divide_batch(
    rows: npt.NDArray[Any], positions: npt.NDArray[np.int32], shared: SharedRows
) -> int:
    """Bring a batch's own rows to the front, ranks behind them. Return the number of own rows."""
    ranks = shared.find(rows)
    is_own = ranks < 0
    own = int(np.count_nonzero(is_own))
    others = ranks[~is_own]
    by_rank = np.argsort(others)
    places = positions[~is_own]
    rows[:own], rows[own:] = rows[is_own], others[by_rank]
    positions[:own], positions[own:] = positions[is_own], places[by_rank]
    return own


def _with_parts(
    missed: MissTable,
    own: npt.NDArray[np.int64],
    ordered: npt.NDArray[Any],
    segments: list[SegmentPlace],
) -> MissTable:
    """Return the misses for the kernel to pack: parts of segments are further batches."""
    sizes = np.array([size for place in segments for size in _part_sizes(place)], np.int64)
    ends = np.cumsum(sizes)
    num_rows = len(missed.rows)
    packed = np.concatenate([missed.rows, ordered])
    for end, size in zip(num_rows + ends, sizes, strict=True):
        packed[end - size : end].sort()
    begins = np.concatenate([missed.begins, num_rows + ends - sizes])
    index = MissIndex(np.concatenate([own, sizes]), MemorySpool())
    return MissTable(packed, begins, index, missed.ranges, index.num_rows.reshape(-1, 1))


def _part_sizes(place: SegmentPlace) -> list[int]:
    return [
        min(place.part_rows, place.num_rows - first)
        for first in range(0, place.num_rows, place.part_rows)
    ]


def _reorder(
    divided: DividedMisses, path: Path, chunks: PackedChunks, row_bytes: int
) -> npt.NDArray[np.uint32]:
    """Put the rows of each part of a file in their segment's order; return their checksums."""
    sizes = [size for place in divided.segments for size in _part_sizes(place)]
    crcs = np.empty(sum(sizes), np.uint32)
    with storage_errors("order the rows of a segment", path):
        descriptor = open_regular(path, os.O_RDWR, error=CorruptStoreError, root=path.parent)
        try:
            begin = 0
            for part, size in enumerate(sizes, divided.num_batches):
                offset = int(chunks.offsets[part])
                order = np.argsort(divided.ordered[begin : begin + size])
                content = read_part(descriptor, size * row_bytes, offset)
                chunks.checksums.compare(part, content, offset, advice=PACK_ELSEWHERE)
                found = content.reshape(size, row_bytes)
                written = np.empty_like(found)
                written[order] = found
                crcs[begin : begin + size] = _core.crc32c_blocks(written.reshape(-1), row_bytes)
                write_part(descriptor, written.reshape(-1).data, offset)
                begin += size
        finally:
            os.close(descriptor)
    return crcs
