"""Opens packed epochs: a sealed directory whose index says where each batch lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gnnstore.formats.arrays.paged_array import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container.files import Problem
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
    name_of_batch,
    rows_array,
)

_MAX_BATCHES = 8  # named for a damaged range
# A row for each segment; for its columns see `SEGMENT_COLUMNS`.
SegmentTable = npt.NDArray[np.int64]

_MAX_ROWS = 2**31


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


def batches_sharing(
    segments: SegmentTable,
    specs: Sequence[AttributeSpec],
    path: str | None,
    first_byte: int,
    end_byte: int,
) -> set[int]:
    """Return the batches of the segments whose shared rows lie in a part of a file."""
    found: set[int] = set()
    for column, spec in enumerate(specs):
        if path != spec.path:
            continue
        for number, segment in enumerate(segments):
            layout = segment_layout(segments, specs, number, column)
            if layout.num_rows and layout.begin < end_byte and layout.end > first_byte:
                found.update(range(int(segment[0]), int(segment[1])))
    return found


def check_segments(
    table: SegmentTable,
    specs: Sequence[AttributeSpec],
    *,
    num_batches: int,
    file_bytes: Mapping[str, int],
) -> str:
    """Return the defect of a table of segments; empty if it has none."""
    bounds = [0, *table[:, 1].tolist()]
    is_covered = table[:, 0].tolist() == bounds[:-1] and bounds[-1] == num_batches
    if not is_covered or (np.diff(bounds) < 1).any():
        return "the segments are not those of all batches, one behind the other"
    for number in range(len(table)):
        if not (0 <= table[number, 2] < _MAX_ROWS and 1 <= table[number, 3] < _MAX_ROWS):
            return f"segment {number} has rows that are out of range"
        for column, spec in enumerate(specs):
            layout = segment_layout(table, specs, number, column)
            size = file_bytes[spec.path]
            if not 0 <= layout.begin <= size or layout.begin % PACKED_ALIGNMENT_BYTES:
                return f"segment {number} begins at byte {layout.begin} of {size}"
            if not 0 <= layout.num_rows < _MAX_ROWS or layout.end > size:
                return f"segment {number} ends at byte {layout.end} of {size}"
    return ""


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

    def explain(self, problem: Problem) -> Problem:
        """Return a problem of damaged bytes, with the batches that these belong to."""
        if problem.first_byte is None or problem.end_byte is None:
            return problem
        file = Path(problem.path).relative_to(self.path).as_posix()
        numbers = self.batches_in(file, problem.first_byte, problem.end_byte)
        if not numbers:
            return problem
        names = [name_of_batch(n, self.manifest.batches_per_epoch) for n in numbers]
        shown = names if len(names) <= _MAX_BATCHES else [names[0], "...", names[-1]]
        return replace(problem, message=f"{problem.message}, in {', '.join(shown)}")

    def chunk_begins(self, column: int) -> npt.NDArray[np.int64]:
        """Return the first bytes of all chunks of a cached attribute, by its number."""
        begins: npt.NDArray[np.int64] = self.index[:, INDEX_COLUMNS + column]
        return begins

    def chunk_bytes(self, column: int) -> npt.NDArray[np.int64]:
        """Return the bytes on disk of all chunks of a cached attribute, by its number."""
        manifest = self.manifest
        rows = 3 if not manifest.caches_types else INDEX_COLUMNS + len(manifest.cached) + column
        return self.index[:, rows] * manifest.cached_specs[column].row_bytes

    def batches_in(self, file: str, first_byte: int, end_byte: int) -> list[int]:
        """Return the numbers of the batches that have bytes in a part of a file."""
        begins, ends = self._extents(file)
        hit = (begins < end_byte) & (ends > first_byte)
        numbers = {int(number) for number in np.flatnonzero(hit)}
        if self.segments is not None:
            path = self._rows_arrays().get(file.rpartition("/")[0])
            specs = self.manifest.cached_specs
            numbers.update(batches_sharing(self.segments, specs, path, first_byte, end_byte))
        return sorted(numbers)

    def _extents(self, file: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        array = file.rpartition("/")[0]
        if array == BATCHES_ARRAY:
            return self.index[:, 0], self.index[:, 0] + self.index[:, 1]
        path = self._rows_arrays().get(array)
        for column, cached in enumerate(self.manifest.cached):
            if cached == path:
                begins = self.chunk_begins(column)
                return begins, begins + self.chunk_bytes(column)
        none = np.empty(0, np.int64)
        return none, none

    def _check_index(self) -> None:
        """Refuse an index that names bytes outside of the files."""
        if self.segments is not None:
            reason = check_segments(
                self.segments,
                self.manifest.cached_specs,
                num_batches=self.manifest.num_batches,
                file_bytes={path: rows.num_rows for path, rows in self.rows.items()},
            )
            if reason:
                raise self.corrupt(reason, INDEX_ARRAY)
        index = self.index
        ends = [(index[:, 0], index[:, 1], self.batches)]
        for column, spec in enumerate(self.manifest.cached_specs):
            counts = index[:, [3, *range(INDEX_COLUMNS + len(self.rows), index.shape[1])]]
            if index.size and (counts.min() < 0 or counts.max() > 2**31):
                raise self.corrupt("rows that are missed are out of range", INDEX_ARRAY)
            ends.append((self.chunk_begins(column), self.chunk_bytes(column), self.rows[spec.path]))
        for begins, lengths, array in ends:
            if index.size == 0:
                continue
            is_inside = (begins >= 0) & (lengths >= 0) & (begins <= array.num_rows)
            is_inside &= lengths <= array.num_rows - begins
            if not is_inside.all() or (begins % PACKED_ALIGNMENT_BYTES).any():
                number = int(np.flatnonzero(~is_inside | (begins % PACKED_ALIGNMENT_BYTES != 0))[0])
                raise self.corrupt(
                    f"batch {number} has {lengths[number]} bytes from byte {begins[number]} on of "
                    f"{array.spec.path!r}, which has {array.num_rows}",
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
