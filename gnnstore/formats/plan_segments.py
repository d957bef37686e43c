"""Where the rows lie that batches of a plan share: a table of segments, checked when it is opened.

The shared rows of a segment are in the file of the runs, in chunks of `chunk_rows` rows. Each chunk
begins at a multiple of 4096, one behind the other; the last one of a segment may be shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gnnstore.formats.plan_manifest import PLAN_ALIGNMENT_BYTES, rows_array

if TYPE_CHECKING:
    from gnnstore.formats.plan_reader import PlanReader
    from gnnstore.formats.schema import AttributeSpec

_MAX_ROWS = 2**31


@dataclass(frozen=True)
class SegmentLayout:
    """Where the shared rows of one segment are, of one attribute.

    Attributes
    ----------
    num_rows, row_bytes : int
    chunk_rows, chunk_bytes : int
        Of a whole chunk; bytes from the beginning of one to that of the next.
    begin : int
        Of the first chunk in the file.
    """

    num_rows: int
    row_bytes: int
    chunk_rows: int
    chunk_bytes: int
    begin: int

    def offset(self, rank: int) -> int:
        """Return where the row of a rank begins."""
        whole, rest = divmod(rank, self.chunk_rows)
        return self.begin + whole * self.chunk_bytes + rest * self.row_bytes

    @property
    def end(self) -> int:
        """Behind the last row."""
        return self.offset(self.num_rows)


def row_bytes_of(spec: AttributeSpec) -> int:
    """Return the bytes of a row of an attribute."""
    return spec.num_bytes // max(1, spec.num_rows)


def segment_layout(reader: PlanReader, segment: int, column: int) -> SegmentLayout:
    """Return where the shared rows of a segment are, of the cached attribute with a number."""
    assert reader.segments is not None  # noqa: S101 - for the type checker
    _, _, num_rows, chunk_rows, *begins = (int(value) for value in reader.segments[segment])
    row_bytes = row_bytes_of(reader.manifest.cached_specs[column])
    unit = PLAN_ALIGNMENT_BYTES
    chunk_bytes = -(-chunk_rows * row_bytes // unit) * unit
    return SegmentLayout(num_rows, row_bytes, chunk_rows, chunk_bytes, begins[column])


def batches_sharing(reader: PlanReader, array: str, first_byte: int, end_byte: int) -> set[int]:
    """Return the batches of the segments whose shared rows lie in a part of a file."""
    found: set[int] = set()
    if reader.segments is None:
        return found
    for column, spec in enumerate(reader.manifest.cached_specs):
        if array != rows_array(spec):
            continue
        for number, segment in enumerate(reader.segments):
            layout = segment_layout(reader, number, column)
            if layout.num_rows and layout.begin < end_byte and layout.end > first_byte:
                found.update(range(int(segment[0]), int(segment[1])))
    return found


def check_segments(reader: PlanReader) -> str:
    """Return what is wrong with the table of segments; empty if nothing is."""
    table = reader.segments
    if table is None:
        return ""
    bounds = [0, *table[:, 1].tolist()]
    is_covered = table[:, 0].tolist() == bounds[:-1] and bounds[-1] == reader.manifest.num_batches
    if not is_covered or (np.diff(bounds) < 1).any():
        return "the segments are not those of all batches, one behind the other"
    for number in range(len(table)):
        if not (0 <= table[number, 2] < _MAX_ROWS and 1 <= table[number, 3] < _MAX_ROWS):
            return f"segment {number} has rows that are out of range"
        for column, spec in enumerate(reader.manifest.cached_specs):
            layout = segment_layout(reader, number, column)
            size = reader.rows[spec.path].num_rows
            if not 0 <= layout.begin <= size or layout.begin % PLAN_ALIGNMENT_BYTES:
                return f"segment {number} begins at byte {layout.begin} of {size}"
            if layout.end > size:
                return f"segment {number} ends at byte {layout.end} of {size}"
    return ""
