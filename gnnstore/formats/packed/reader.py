"""Opens packed epochs: a sealed directory whose index says where each batch lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gnnstore.formats.arrays.paged_array import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container.manifest import KINDS, Kind
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.packed.manifest import (
    BATCHES_ARRAY,
    INDEX_ARRAY,
    INDEX_COLUMNS,
    PACKED_ALIGNMENT_BYTES,
    PACKED_DIRECTORY,
    ROWS_GROUP,
    SEGMENTS_ARRAY,
    PackedManifest,
    rows_array,
)

# A row for each segment; for its columns see `SEGMENT_COLUMNS`.
SegmentTable = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SegmentLayout:
    """Positions of the shared rows of one segment, of one attribute.

    They lie in parts of `part_rows` rows, one behind the other; each part begins at a multiple of
    4096, and the last one of a segment may be shorter.
    """

    num_rows: int
    row_bytes: int
    part_rows: int  # rows of a whole part
    part_bytes: int  # bytes from the beginning of a whole part to that of the next
    begin: int  # offset of the first part in the file

    def offset(self, rank: int) -> int:
        """Return the offset of the row with a rank."""
        whole, rest = divmod(rank, self.part_rows)
        return self.begin + whole * self.part_bytes + rest * self.row_bytes

    @property
    def end(self) -> int:
        """Offset of the byte behind the last row."""
        return self.offset(self.num_rows)


def segment_layout(
    segments: SegmentTable, specs: Sequence[AttributeSpec], segment: int, column: int
) -> SegmentLayout:
    """Return the layout of a segment's shared rows of a cached attribute, by its number."""
    _, _, num_rows, part_rows, *begins = (int(value) for value in segments[segment])
    if len(begins) > len(specs):  # of several node types
        num_rows = begins[len(specs) + column]
    row_bytes = specs[column].row_bytes
    unit = PACKED_ALIGNMENT_BYTES
    part_bytes = -(-part_rows * row_bytes // unit) * unit
    return SegmentLayout(num_rows, row_bytes, part_rows, part_bytes, begins[column])


class PackedReader(SealedReader[PackedManifest]):
    """Open, validated packed epochs. It does not read records and rows."""

    MANIFEST: ClassVar[type[PackedManifest]] = PackedManifest

    def check(self) -> None:
        """Read the index, and refuse one that names bytes outside of the files."""
        manifest = self.manifest
        expected: dict[str, tuple[tuple[str, ...], tuple[int | None, ...]]] = {
            INDEX_ARRAY: (("int64",), (manifest.num_batches, manifest.index_columns)),
            BATCHES_ARRAY: (("uint8",), (None,)),
            **dict.fromkeys(self._rows_arrays(), (("uint8",), (None,))),
        }
        if manifest.has_segments:
            expected[SEGMENTS_ARRAY] = ("int64",), (None, manifest.segment_columns)
        self.expect(manifest.paged_arrays, expected)
        for path in expected:
            if (count := self._array(path).layout.num_shards) > 1:  # kernels read the only one
                raise self.corrupt(f"it has {count} files, expected one", path)
        self.batches = self._array(BATCHES_ARRAY)
        self.rows = {path: self._array(array) for array, path in self._rows_arrays().items()}
        self.segments: npt.NDArray[np.int64] | None = None
        if manifest.has_segments:
            self.segments = self._array(SEGMENTS_ARRAY).load()
        self.index = self._array(INDEX_ARRAY).load()
        self._check_index()

    def _array(self, path: str) -> PagedArray:
        return self.paged(self.manifest.spec(path))

    def _rows_arrays(self) -> dict[str, str]:
        """Return the path in the store of each cached attribute, by the path of its rows here."""
        schema = self.manifest.schema
        return {rows_array(schema, path): path for path in self.manifest.cached}

    def chunk_begins(self, column: int) -> npt.NDArray[np.int64]:
        """Return the first bytes of all chunks of a cached attribute, by its number."""
        begins: npt.NDArray[np.int64] = self.index[:, INDEX_COLUMNS + column]
        return begins

    def chunk_bytes(self, column: int) -> npt.NDArray[np.int64]:
        """Return the bytes on disk of all chunks of a cached attribute, by its number."""
        manifest = self.manifest
        rows = 3 if not manifest.caches_types else INDEX_COLUMNS + len(manifest.cached) + column
        return self.index[:, rows] * manifest.cached_specs[column].row_bytes

    def _check_index(self) -> None:
        """Refuse an index, and segments, that name bytes outside of the files."""
        index, segments, specs = self.index, self.segments, self.manifest.cached_specs
        counts = [index[:, [3, *range(INDEX_COLUMNS + len(specs), index.shape[1])]]]
        places = [(index[:, 0], index[:, 1], self.batches)]
        for column, spec in enumerate(specs):
            chunks = self.chunk_begins(column), self.chunk_bytes(column)
            places.append((*chunks, self.rows[spec.path]))
        if segments is not None:
            bounds = np.append(0, segments[:, 1])
            is_covered = bounds[-1] == self.manifest.num_batches and (np.diff(bounds) > 0).all()
            is_sound = (segments[:, 0] == bounds[:-1]) & (segments[:, 3] > 0)
            if not (is_covered and is_sound.all()):
                raise self.corrupt("these are not the segments of all batches", SEGMENTS_ARRAY)
            counts.append(segments[:, [2, 3, *range(4 + len(specs), segments.shape[1])]])
            for column, spec in enumerate(specs):
                layouts = [segment_layout(segments, specs, n, column) for n in range(len(segments))]
                shared = np.array([(each.begin, each.end) for each in layouts])
                places.append((shared[:, 0], shared[:, 1] - shared[:, 0], self.rows[spec.path]))
        if any(of.size and (of.min() < 0 or of.max() >= 2**31) for of in counts):
            raise self.corrupt("numbers of rows are out of range", INDEX_ARRAY)
        for begins, lengths, array in places:
            is_outside = (begins < 0) | (lengths < 0) | (begins % PACKED_ALIGNMENT_BYTES != 0)
            wrong = np.flatnonzero(is_outside | (lengths > array.num_rows - begins))
            if len(wrong):
                place = f"{lengths[wrong[0]]} bytes from byte {begins[wrong[0]]} on"
                raise self.corrupt(
                    f"it names {place} of {array.spec.path!r}, which has {array.num_rows}",
                    INDEX_ARRAY,
                )


PACKED = KINDS.register(
    Kind(
        PackedManifest,
        PackedReader.open,
        frozenset({INDEX_ARRAY, BATCHES_ARRAY, SEGMENTS_ARRAY, ROWS_GROUP, "graph"}),
        PACKED_DIRECTORY,
    )
)
