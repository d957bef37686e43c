"""Counts the reads that fetch some rows, and their bytes, without making them.

The rules are the readers' (`gnnstore.testing.twins.reads.plan_reads` defines them): rows are
covered by whole units of the disk, neighbours share a read, and long reads are cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.disk.profile import DeviceProfile, ReadTuning
from gnnstore.formats.arrays.pages import ShardLayout


@dataclass(frozen=True)
class ReadTotals:
    """A number of reads, and their bytes."""

    reads: int = 0
    num_bytes: int = 0  # bytes read, gaps and alignment included

    def __add__(self, other: ReadTotals) -> ReadTotals:
        """Return the sum."""
        return ReadTotals(self.reads + other.reads, self.num_bytes + other.num_bytes)

    def scaled(self, factor: float) -> ReadTotals:
        """Return `factor` times the reads, rounded."""
        return ReadTotals(round(self.reads * factor), round(self.num_bytes * factor))

    def seconds_on(self, profile: DeviceProfile) -> float:
        """Return the time that a disk takes for the reads with its queue full, in seconds."""
        return self.reads * profile.seconds_per_read + self.num_bytes * profile.seconds_per_byte


def count_reads(
    rows: npt.NDArray[Any], layout: ShardLayout, alignment_bytes: int, tuning: ReadTuning
) -> ReadTotals:
    """Count the reads that fetch some rows of a stored array."""
    geometry = layout.geometry
    if geometry.row_bytes == 0:
        return ReadTotals()
    run, rank = np.divmod(rows.astype(np.int64, copy=False), geometry.rows_per_page)
    shard, run = np.divmod(run, layout.shard_runs)
    begins = run * geometry.page_stride_bytes + rank * geometry.row_bytes
    # Shards are more than a gap apart: no read spans two files.
    apart = (tuning.gap_bytes // alignment_bytes + 1) * alignment_bytes
    begins += shard * (layout.shard_runs * geometry.page_stride_bytes + apart)
    return count_extents(begins, geometry.row_bytes, alignment_bytes, tuning)


def count_extents(
    begins: npt.NDArray[np.int64], row_bytes: int, alignment_bytes: int, tuning: ReadTuning
) -> ReadTotals:
    """Count the reads that fetch rows of a file."""
    if len(begins) == 0:
        return ReadTotals()
    end = -(-(begins + row_bytes) // alignment_bytes) * alignment_bytes
    begin = begins // alignment_bytes * alignment_bytes

    starts_extent = np.ones(len(begin), np.bool_)
    starts_extent[1:] = begin[1:] - end[:-1] > tuning.gap_bytes
    first = np.flatnonzero(starts_extent)
    last = np.append(first[1:], len(begin)) - 1
    extent_begin, extent_end = begin[first], end[last]

    # An extent is cut from its beginning; pieces without rows are not read.
    size = tuning.max_read_bytes
    origin = np.repeat(extent_begin, last - first + 1)
    first_piece, last_piece = (begin - origin) // size, (end - 1 - origin) // size
    already = np.full(len(begin), -1)
    already[1:] = last_piece[:-1]
    already[first] = -1
    reads = int((last_piece - np.maximum(first_piece, already + 1) + 1).sum())
    # All pieces are whole but the last of each extent, which its last row covers.
    missing = -(extent_end - extent_begin) % size
    return ReadTotals(reads, reads * size - int(missing.sum()))
