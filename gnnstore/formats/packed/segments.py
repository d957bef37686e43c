"""Positions of the rows that packed batches share: a table of segments, checked when opened.

The shared rows of a segment are in the file of packed chunks, in parts of `part_rows` rows. Each
part begins at a multiple of 4096, one behind the other; the last one of a segment may be shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gnnstore.formats.packed.manifest import PACKED_ALIGNMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gnnstore.formats.arrays.spec import AttributeSpec

# A row for each segment; for its columns see `SEGMENT_COLUMNS`.
SegmentTable = npt.NDArray[np.int64]

_MAX_ROWS = 2**31


@dataclass(frozen=True)
class SegmentLayout:
    """Positions of the shared rows of one segment, of one attribute."""

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
