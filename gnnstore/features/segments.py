"""Packing with segments: rows that several batches of a segment miss are written once for them.

In one pass over a table (see `gnnstore.features.pack`) each batch gets a chunk of the missed
rows that it does not share in its segment, and each segment its shared rows, cut into parts. The
pass writes parts in the order of the table; then they are read, put in the segment's order (see
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
from gnnstore._core import ReadCounts
from gnnstore.caching.segments import SharedRows, segments_of
from gnnstore.disk.spool import MemorySpool, Spool
from gnnstore.errors import CorruptStoreError, storage_error, storage_errors
from gnnstore.features.chunks import PackedChunks, shared_crcs
from gnnstore.features.file_rows import FileRows
from gnnstore.features.misses import MissTable
from gnnstore.features.pack import append_missed
from gnnstore.features.source import TypedRows
from gnnstore.formats.base.files import open_regular, read_part, write_part
from gnnstore.formats.packed import CHECKED_ROWS, PackedReader, segment_layout

# Bytes of a piece of parts that are put in order, twice in memory.
_PART_BYTES = 4 << 20
# Most parts for a batch; with more, parts grow instead. Each part has a buffer while it is packed,
# as each batch has.
_MAX_PARTS_PER_BATCH = 4
# Least bytes of a buffer, as in packing; and bytes to look for shared rows in a range of the table,
# see `gnnstore.caching.segments`.
_LEAST_BUFFER_BYTES = 4 << 10
_LOOKING_BYTES = 24 << 20


@dataclass(frozen=True)
class SegmentLocation:
    """The batches of one segment, and the positions of their shared rows."""

    first: int  # its first batch in the superbatch
    end: int  # the batch after its last one
    num_rows: tuple[int, ...]  # shared rows of each type
    part_rows: int  # shared rows of a full part, which are of one type
    first_part: tuple[int, ...]  # by type: its first part among all parts of the superbatch
    first_row: tuple[int, ...]  # by type: its first row among its shared rows of the superbatch


@dataclass(frozen=True, eq=False)
class DividedChunks(PackedChunks):
    """The chunks of S batches in a file, and then the parts, and the checksums of their rows.

    Checksums of blocks of parts were computed before the rows were put in order.
    """

    # crc32c of each shared row, segment by segment in its order.
    shared_crcs: npt.NDArray[np.uint32]
    of_type: int = 0  # the index of the table's type among the types of the missed rows


@dataclass(frozen=True, eq=False)
class DividedMisses:
    """The misses of a superbatch: shared ones by segment, the others by batch."""

    missed: MissTable  # the packed chunks: one for each batch, and then one for each part
    places: Spool  # where all missed rows go, by batch
    # The rank of each shared row in its segment's order, in parallel to the positions of `places`.
    ranks: npt.NDArray[Any]
    own: npt.NDArray[np.int64]  # int64 [S]: rows in the chunk of each batch
    ordered: npt.NDArray[Any]  # the rows of all parts, in their segment's order
    segments: tuple[SegmentLocation, ...]
    # int64 [S, T]: shared rows of each batch and type; types follow one another in `ranks`.
    shared: npt.NDArray[np.int64]

    @property
    def num_batches(self) -> int:
        """Number of batches, S."""
        return len(self.own)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        if not self.segments:
            return self.missed.num_bytes
        kept = self.places.num_bytes + self.ranks.nbytes + self.ordered.nbytes
        return kept + self.missed.num_bytes

    def batch(self, i: int) -> BatchMisses:
        """Return the places of the missed rows of a batch."""
        positions, targets, sources = self.places.read(i)
        begin, own = int(self.missed.begins[i]), int(self.own[i])
        ranks = self.ranks[begin + own : begin + len(positions)].astype(np.int32)
        return BatchMisses(positions[:own], targets, sources, positions[own:], ranks)

    def batch_crcs(
        self, chunks: DividedChunks, i: int, ranks: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.uint32]:
        """Return the checksums of the shared rows of a batch, by their ranks."""
        place = self.segments[bisect_right(self.segments, i, key=lambda place: place.end)]
        of_type, counts = chunks.of_type, self.shared[i]
        type_ranks = ranks[counts[:of_type].sum() :][: counts[of_type]]
        return shared_crcs(chunks.shared_crcs[place.first_row[of_type] + type_ranks])


@dataclass(frozen=True, eq=False)
class BatchMisses:
    """Destinations of the missed rows of one batch, all int32."""

    positions: npt.NDArray[np.int32]  # positions of the rows of the batch's chunk
    repeat_targets: npt.NDArray[np.int32]  # positions that get the row of another one
    repeat_sources: npt.NDArray[np.int32]  # positions of these other rows
    # Positions of rows that the segment's batches share, type after type in the order of ranks.
    shared_positions: npt.NDArray[np.int32]
    # Ranks of these rows among the rows of their type, ascending in each.
    shared_ranks: npt.NDArray[np.int32]


def divide_misses(
    missed: MissTable,
    segment: int,
    *,
    row_bytes: int,
) -> DividedMisses:
    """Find the rows that the batches of each segment share. Changes `missed` and owns it."""
    rows, own = missed.rows, missed.num_rows.copy()
    if segment == 1:
        none = np.zeros_like(missed.counts)
        return DividedMisses(missed, missed.places, rows, own, rows[:0], (), none)
    num_batches, counts = len(own), missed.counts
    own_counts = np.zeros_like(counts)
    sizes_of: list[tuple[range, list[int]]] = []
    ordered: list[npt.NDArray[Any]] = []
    for batches in segments_of(num_batches, segment):
        parts = [np.split(missed.batch(i), np.cumsum(counts[i])[:-1]) for i in batches]
        shared = [
            SharedRows.from_missed([part[t] for part in parts], of_type.num_rows)
            for t, of_type in enumerate(missed.ranges)
        ]
        ordered += [rows_of_type.in_order() for rows_of_type in shared]
        sizes_of.append((batches, [rows_of_type.num_rows for rows_of_type in shared]))
        for i, part in zip(batches, parts, strict=True):
            own_counts[i] = _divide_batch(missed.batch(i), part, missed.places.read(i)[0], shared)
    own = own_counts.sum(axis=1)
    total = sum(sum(sizes) for _, sizes in sizes_of)
    part_rows = max(1, _PART_BYTES // row_bytes)
    while total // part_rows > _MAX_PARTS_PER_BATCH * num_batches:
        part_rows *= 2
    segments, num_parts, first_row = [], 0, np.zeros(len(missed.ranges), np.int64)
    for batches, sizes in sizes_of:
        cut = [-(-size // part_rows) for size in sizes]
        firsts = tuple(num_parts + sum(cut[:t]) for t in range(len(cut)))
        place = (tuple(sizes), part_rows, firsts, tuple(first_row.tolist()))
        segments.append(SegmentLocation(batches.start, batches.stop, *place))
        num_parts += sum(cut)
        first_row += sizes
    in_order = np.concatenate([rows[:0], *ordered])
    ordered.clear()
    return DividedMisses(
        missed=_with_parts(missed, own_counts, in_order, segments),
        places=missed.places,
        ranks=rows,
        own=own,
        ordered=in_order,
        segments=tuple(segments),
        shared=counts - own_counts,
    )


def segment_memory(misses: npt.NDArray[np.int64], id_bytes: int, num_tables: int) -> int:
    """Return the memory for dividing rows, on top of that for packing (see `least_memory`)."""
    total = int(misses.sum())
    # A copy for the kernel; half as many shared rows in two orders; their buffers; and a checksum
    # of each shared row.
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
    found: dict[str, DividedChunks] = {}
    for path, (table, own) in tables.items():
        of_type, each = divided.missed.ranges.index(own), chunks[path]
        crcs = _reorder(divided, files[path][0], each, table.row_bytes, of_type)
        found[path] = DividedChunks(each.offsets, each.crcs, each.crc_begins, crcs, of_type)
    return found


def _divide_batch(
    rows: npt.NDArray[Any],
    parts: list[npt.NDArray[Any]],
    positions: npt.NDArray[np.int32],
    shared: list[SharedRows],
) -> list[int]:
    """Bring a batch's own rows to the front, ranks behind them. Return the own ones of each type.

    `parts` are its rows by type.
    """
    own: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
    others: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
    places = np.split(positions, np.cumsum([len(part) for part in parts])[:-1])
    for part, place, of_type in zip(parts, places, shared, strict=True):
        ranks = of_type.find(part)
        is_own = ranks < 0
        by_rank = np.argsort(ranks[~is_own])
        own.append((part[is_own], place[is_own]))
        others.append((ranks[~is_own][by_rank], place[~is_own][by_rank]))
    rows[:] = np.concatenate([found for found, _ in (*own, *others)])
    positions[:] = np.concatenate([found for _, found in (*own, *others)])
    return [len(found) for found, _ in own]


def _with_parts(
    missed: MissTable,
    own: npt.NDArray[np.int64],
    ordered: npt.NDArray[Any],
    segments: list[SegmentLocation],
) -> MissTable:
    """Return the misses for the kernel to pack: parts of segments are further batches."""
    parts = [part for place in segments for part in _parts(place)]
    counts = np.zeros((len(parts), len(missed.ranges)), np.int64)
    for part, (of_type, size) in enumerate(parts):
        counts[part, of_type] = size
    sizes = counts.sum(axis=1)
    ends = np.cumsum(sizes)
    num_rows = len(missed.rows)
    packed = np.concatenate([missed.rows, ordered])
    for end, size in zip(num_rows + ends, sizes, strict=True):
        packed[end - size : end].sort()
    begins = np.concatenate([missed.begins, num_rows + ends - sizes])
    counts = np.concatenate([own, counts])
    return MissTable(packed, begins, counts.sum(axis=1), MemorySpool(), missed.ranges, counts)


def _parts(place: SegmentLocation) -> list[tuple[int, int]]:
    """Return the type and the rows of each part of a segment."""
    return [
        (of_type, min(place.part_rows, num_rows - first))
        for of_type, num_rows in enumerate(place.num_rows)
        for first in range(0, num_rows, place.part_rows)
    ]


def _reorder(
    divided: DividedMisses, path: Path, chunks: PackedChunks, row_bytes: int, of_type: int
) -> npt.NDArray[np.uint32]:
    """Put the rows of each part of a file in their segment's order; return their checksums."""
    parts = [part for place in divided.segments for part in _parts(place)]
    crcs = np.empty(sum(size for t, size in parts if t == of_type), np.uint32)
    with storage_errors("order the rows of a segment", path):
        descriptor = open_regular(path, os.O_RDWR)
        try:
            begin = end = 0
            for part, (t, size) in enumerate(parts, divided.num_batches):
                end += size
                if t != of_type:
                    continue
                offset = int(chunks.offsets[part])
                order = np.argsort(divided.ordered[end - size : end])
                content = read_part(descriptor, size * row_bytes, offset)
                chunks.compare(part, content, offset)
                found = content.reshape(size, row_bytes)
                written = np.empty_like(found)
                written[order] = found
                crcs[begin : begin + size] = _core.crc32c_blocks(written.reshape(-1), row_bytes)
                write_part(descriptor, written.reshape(-1).data, offset)
                begin += size
        finally:
            os.close(descriptor)
    return crcs


_IS_READ, _IS_LEFT = np.int32(-1), np.int32(0)


def read_shared(
    reader: PackedReader,
    number: int,
    column: int,
    table: FileRows,
    *,
    places: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]],
    out: npt.NDArray[Any],
    crcs: npt.NDArray[np.uint32],
) -> ReadCounts:
    """Write the rows that a packed batch shares with others to their places; the others stay."""
    positions, ranks = places
    if len(positions) == 0 or table.row_bytes == 0:
        return ReadCounts()
    segments = reader.segments
    assert segments is not None  # noqa: S101 - a batch has shared rows
    segment = int(np.searchsorted(segments[:, 1], number, side="right"))
    specs = reader.manifest.cached_specs
    layout = segment_layout(segments, specs, segment, column)
    ids = np.zeros(len(out), np.int32)
    slots = np.full(len(out), _IS_LEFT)
    try:
        ids[positions], slots[positions] = ranks, _IS_READ
        counts = table.engine.reader.gather_rows(
            table.files,
            ids,
            out.reshape(-1).view(np.uint8),
            num_rows=layout.num_rows,
            row_bytes=layout.row_bytes,
            rows_per_page=layout.part_rows,
            page_stride_bytes=layout.part_bytes,
            begin_bytes=layout.begin,
            gap_bytes=table.engine.tuning.gap_bytes,
            slots=slots,
        )
    except IndexError as error:
        path = table.array.file_paths[0]
        raise CorruptStoreError(
            f"{path}: a batch shares rows that its segment or it does not have ({error})",
            path=path,
        ) from error
    except OSError as error:
        where = error.filename or table.array.file_paths[0]
        first, end = segments[segment, :2]
        doing = f"read the rows that the packed batches {first} to {end - 1} share"
        raise storage_error(error, doing, where) from error
    content = out.reshape(-1).view(np.uint8)
    found = shared_crcs(_core.crc32c_rows(content, positions, layout.row_bytes))
    bad = np.flatnonzero(found != crcs)
    if len(bad):
        first = int(bad[0])
        some = ranks[first * CHECKED_ROWS : (first + 1) * CHECKED_ROWS]
        begin, last = layout.offset(int(some[0])), layout.offset(int(some[-1]))
        path = table.array.file_paths[0]
        raise CorruptStoreError(
            f"{path}: bytes {begin} to {last + layout.row_bytes}, packed rows that batches "
            f"share, are damaged: the crc32c of {len(some)} rows among them is "
            f"{found[first]:08x}, not {crcs[first]:08x}",
            path=path,
            offset=begin,
        )
    return counts
