"""Estimates the rows and reads of an epoch, and the misses of any cache, from a short sample.

A hash chooses blocks of neighbouring rows; the sampled batches keep their rows in these blocks, and
caches are smaller in proportion (spatial sampling, as in SHARDS: Waldspurger et al., FAST 2015,
section 3): 1/8 of the blocks of W predicts misses within 2 %. Blocks are chosen, and not rows,
because rows that lie near each other share reads. Reads are counted by the rules of the readers,
which `tests.support.twins.reads.plan_reads` defines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore.caching.plan import Trace, TraceBuilder
from gnnstore.caching.policies import CachePolicy
from gnnstore.caching.reuse import InitialCache, ReuseCurve, ScoreCurve, reuse_distances
from gnnstore.disk.profile import DeviceProfile, ReadTuning
from gnnstore.formats.arrays.pages import ShardLayout

if TYPE_CHECKING:
    from gnnstore.formats.arrays.paged import PagedArray
    from gnnstore.sampling.row_space import RowRange


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
    # All pieces have the full size but the last of each extent, which its last row covers.
    missing = -(extent_end - extent_begin) % size
    return ReadTotals(reads, reads * size - int(missing.sum()))


PAGE_BYTES = 4096
# Uses of rows that are kept: to analyse them takes a second, and up to 77 bytes a use; to count the
# reads of so many rows takes up to 125 bytes a row.
_KEPT_USES = 2 << 20
_USE_BYTES = 128
# Bytes of a block: more than the gap between rows of one read (12 kB at most, on flash), so that
# most such rows are in one block.
_BLOCK_BYTES = 32 << 10
_LEAST_BLOCK_ROWS = 64
# The fewest blocks to keep: with fewer, a few that many batches need would decide the result.
_LEAST_BLOCKS = 1024
# Reads for a missed row are counted in so many of the last batches of a sample, whose reuse
# distances are known best.
_READ_BATCHES = 4
_MAX_DEGREE = 1 << 16
# Degrees that are counted at a time, in 3 MB.
_COUNTED_AT_ONCE = 1 << 18

_HASH = np.uint32(2654435761)


@dataclass(frozen=True)
class SpatialSampling:
    """The blocks of rows that represent a table."""

    # Rows of a block: logarithm to the base 2.
    block_bits: int = 0
    # Blocks for each block that is kept: logarithm to the base 2.
    share_bits: int = 0

    @classmethod
    def fit(
        cls, num_uses: int, num_rows: int, row_bytes: int, memory_bytes: int | None = None
    ) -> Self:
        """Return a sampling that keeps as many blocks as suffice."""
        block_rows = max(_LEAST_BLOCK_ROWS, _BLOCK_BYTES // max(1, row_bytes))
        block_bits = (block_rows - 1).bit_length()
        wanted = max(1, num_uses // _KEPT_USES).bit_length() - 1
        if memory_bytes is not None:
            room = max(1, memory_bytes // _USE_BYTES)
            wanted = max(wanted, (max(1, -(-num_uses // room)) - 1).bit_length())
        affordable = max(1, (num_rows >> block_bits) // _LEAST_BLOCKS).bit_length() - 1
        return cls(block_bits, min(wanted, affordable))

    @property
    def share(self) -> float:
        """The kept rows as a share of all."""
        return 0.5**self.share_bits

    def batches_in(self, memory_bytes: int, batch_nodes: int) -> int:
        """Return the number of sampled batches that fit in memory_bytes, at least 1."""
        kept_bytes = _USE_BYTES * self.share * max(1, batch_nodes)
        return max(1, int(memory_bytes / kept_bytes))

    def keeps(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return whether each of some rows is kept: bool [n]."""
        if self.share_bits == 0:
            return np.ones(len(ids), np.bool_)
        # Multiplied and mixed, so that neighbouring blocks are kept independently.
        mixed = (ids >> self.block_bits).astype(np.uint32) * _HASH
        mixed ^= mixed >> np.uint32(15)
        mixed *= np.uint32(2246822519)
        mixed ^= mixed >> np.uint32(13)
        kept: npt.NDArray[np.bool_] = (mixed >> np.uint32(32 - self.share_bits)) == 0
        return kept


class SampledTrace(TraceBuilder):
    """Collects the nodes of batches that spatial sampling keeps."""

    def __init__(self, num_batches: int, num_nodes: int, spatial: SpatialSampling) -> None:
        super().__init__(num_batches, num_nodes)
        self._spatial = spatial
        self._uses = np.zeros((2, num_batches))  # each batch's uses: all, and the kept ones

    @property
    def kept_share(self) -> float:
        """The kept uses of rows as a share of all."""
        total, kept = self._uses.sum(1)
        return float(kept / total) if kept else self._spatial.share

    def put(self, i: int, n_id: npt.NDArray[Any]) -> None:
        """Add the nodes of batch i, each once."""
        kept = n_id[self._spatial.keeps(n_id)]
        self._uses[:, i] = len(n_id), len(kept)
        super().put(i, np.unique(kept))


@dataclass(frozen=True, eq=False)
class TableReads:
    """The layout of the tables that are read from disk, and the merging of their reads."""

    layouts: tuple[ShardLayout, ...]  # the place of each table's rows
    alignments: tuple[int, ...]  # bytes that reads of each table are multiples of
    tuning: ReadTuning
    # Numbers of the rows of each table in a row space; empty: row numbers are node ids.
    ranges: tuple[RowRange, ...] = ()

    @classmethod
    def from_arrays(
        cls, arrays: Sequence[PagedArray], tuning: ReadTuning, ranges: tuple[RowRange, ...] = ()
    ) -> Self:
        """Return the layout of stored arrays, and the merging of their reads."""
        alignments = tuple(array.open_files().alignment_bytes for array in arrays)
        is_one_type = len(set(ranges)) <= 1
        layouts = tuple(array.layout for array in arrays)
        return cls(layouts, alignments, tuning, () if is_one_type else ranges)

    @property
    def row_bytes(self) -> int:
        """Bytes of a node's rows; with several types, on average over all rows."""
        widths = [layout.geometry.row_bytes for layout in self.layouts]
        if not self.ranges:
            return sum(widths)
        tables = zip(widths, self.ranges, strict=True)
        total = sum(width * rows.num_rows for width, rows in tables)
        return -(-total // max(1, sum(rows.num_rows for rows in set(self.ranges))))

    def count(self, rows: npt.NDArray[Any]) -> ReadTotals:
        """Count the reads that fetch the rows of distinct nodes, ascending."""
        totals = ReadTotals()
        for k, (layout, alignment_bytes) in enumerate(
            zip(self.layouts, self.alignments, strict=True)
        ):
            ids = self.ranges[k].part(rows)[1] if self.ranges else rows
            totals += count_reads(ids, layout, alignment_bytes, self.tuning)
        return totals


@dataclass(frozen=True, eq=False)
class Workload:
    """The rows that an epoch needs of the tables that are read from disk."""

    num_rows: int  # rows of the tables, one for each node
    row_bytes: int  # bytes of a node's rows in all tables
    epoch_batches: int
    sampled_batches: int
    # Bytes of a batch with its attributes.
    batch_bytes: float
    # Bytes of a batch's subgraph.
    ids_bytes: float
    # Bytes of a subgraph that waits for its batch, node ids not included.
    kept_bytes: float
    seconds_sampling: float  # seconds for a batch, with all threads sampling
    rows: ReuseCurve  # reuse of the tables' rows
    pages: ReuseCurve  # reuse of the rows' pages of 4 KiB
    frequency: ScoreCurve  # by the number of other batches that need a row
    degree: ScoreCurve | None  # by out-degree; None unless it was counted
    # By frequency, and by the out-degree of rows that no batch needs; None unless it was counted.
    filled_up: ScoreCurve | None
    _sample: _Sample = field(repr=False)
    # Whether sampling reads in-neighbours from disk, which is busy all the while.
    samples_from_disk: bool = False

    @property
    def batch_rows(self) -> float:
        """Rows of a batch."""
        return self.rows.batch_rows

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables."""
        return self.num_rows * self.row_bytes

    @classmethod
    def learn(
        cls,
        trace: Trace,
        spatial: SpatialSampling,
        reads: TableReads,
        *,
        num_rows: int,
        epoch_batches: int,
        batch_bytes: float,
        ids_bytes: float,
        kept_bytes: float,
        seconds_sampling: float,
        kept_share: float | None = None,
    ) -> Self:
        """Return the workload that a sample represents, given the share of all uses in it."""
        share, num_batches = spatial.share, trace.num_batches
        # The kept share of uses differs: the few rows that most batches need are kept or are not.
        kept_share = share if kept_share is None else kept_share
        ids, places = np.unique(trace.ids, return_inverse=True)
        dense = Trace(places.astype(np.int32), trace.offsets)
        distances = np.concatenate(list(reuse_distances(dense, len(ids))))
        counts = np.bincount(dense.ids, minlength=len(ids)).astype(np.int32)
        rows_of = np.bincount(counts, minlength=2).astype(np.float64)
        uses = np.zeros_like(rows_of)
        # By other batches: a row that c batches need is needed by c - 1 others.
        uses[:-1] = (rows_of * np.arange(len(rows_of)))[1:] / num_batches
        sample = _Sample(reads, trace, distances, counts[dense.ids] - 1, kept_share)
        return cls(
            num_rows=num_rows,
            row_bytes=reads.row_bytes,
            epoch_batches=epoch_batches,
            sampled_batches=num_batches,
            batch_bytes=batch_bytes,
            ids_bytes=ids_bytes,
            kept_bytes=kept_bytes,
            seconds_sampling=seconds_sampling,
            rows=ReuseCurve.from_distances(
                np.bincount(distances, minlength=num_batches), kept_share
            ),
            pages=_page_curve(trace, kept_share, reads),
            frequency=ScoreCurve(rows_of / share, uses / kept_share, num_rows),
            degree=None,
            filled_up=None,
            _sample=sample,
        )

    def direct_reads(self) -> ReadTotals:
        """Return the reads of an epoch without any cache."""
        return self._reads(self.batch_rows, np.ones(len(self._sample.distances), np.bool_))

    def static_reads(self, num_slots: int, *, by_degree: bool = False) -> ReadTotals:
        """Return the reads of an epoch with a static cache."""
        curve, scores = self.frequency, self._sample.others
        if by_degree and self.degree is not None:
            curve, scores = self.degree, self._sample.degrees
        elif self.filled_up is not None:
            curve, scores = self.filled_up, self._sample.filled_up
        is_missed = scores < curve.lowest_score(num_slots)
        return self._reads(curve.misses(num_slots), is_missed)

    def misses(
        self,
        policy: CachePolicy,
        num_slots: int,
        superbatch: int,
        *,
        initial: InitialCache = "last",
    ) -> float:
        """Return the misses of a planned cache in an epoch, planned by superbatches."""
        if num_slots >= self.num_rows and initial != "nothing":
            return 0.0
        if not policy.looks_ahead:  # how many batches are planned together does not matter
            return policy.misses(self.rows, num_slots, self.epoch_batches, initial=initial)
        size = max(1, min(superbatch, self.epoch_batches))
        num_more, rest = divmod(self.epoch_batches - size, size)
        misses = policy.misses(self.rows, num_slots, size, initial=initial)
        misses += num_more * policy.misses(self.rows, num_slots, size, initial="last")
        if rest:
            misses += policy.misses(self.rows, num_slots, rest, initial="last")
        if initial == "nothing":
            return misses
        # A cache that is planned over a few batches ends up with the rows that most batches need,
        # and hardly misses more than a static cache with these rows: on W with room for 3.3 million
        # rows, planned by 24 batches, it misses 1.1 million, a static cache 1.6 million, and the
        # sum above is 3 million.
        return min(misses, self.epoch_batches * self.frequency.misses(num_slots))

    def without_highest(self, num_rows: int, least: int) -> Self:
        """Return the workload without the rows that most batches need, which are cached anyway."""
        sample = self._sample
        lowest = max(least, self.frequency.lowest_score(num_rows))
        others = sample.distances[sample.others < lowest]
        rows = ReuseCurve.from_distances(
            np.bincount(others, minlength=sample.trace.num_batches), sample.kept_share
        )
        kept = np.arange(len(self.frequency.rows)) < lowest
        frequency = replace(
            self.frequency,
            rows=self.frequency.rows * kept,
            uses=self.frequency.uses * kept,
            num_rows=self.num_rows - num_rows,
        )
        return replace(self, rows=rows, frequency=frequency, num_rows=self.num_rows - num_rows)

    def planned_reads(self, policy: CachePolicy, num_slots: int, superbatch: int) -> ReadTotals:
        """Return the reads of an epoch with a planned cache."""
        misses = self.misses(policy, num_slots, superbatch) / self.epoch_batches
        longest = policy.max_kept_distance(self.rows, num_slots, superbatch)
        distances = self._sample.distances
        return self._reads(misses, (distances == 0) | (distances > longest))

    def pass_reads(self, epoch_misses: float, superbatch: int) -> ReadTotals:
        """Return the reads of one pass over the tables for the misses of a superbatch.

        Missed rows are counted as if they were anywhere in the tables.
        """
        misses = epoch_misses * superbatch / self.epoch_batches
        share = min(misses, self.rows.distinct_rows(superbatch)) / max(1, self.num_rows)
        share = min(1.0, share)
        reads, row_bytes = self._sample.reads, max(1, self.row_bytes)
        page_bytes = max(PAGE_BYTES, row_bytes)
        num_pages = self.table_bytes / page_bytes
        skipped = (1 - share) ** (page_bytes / row_bytes)  # the share of pages that no batch needs
        needed, gap = 1 - skipped, 1 + reads.tuning.gap_bytes // page_bytes
        # Pages that no batch needs are not read if they lie in gaps of at least `gap` pages.
        apart = skipped**gap
        num_bytes = self.table_bytes * (1 - apart * (skipped + gap * needed))
        num_reads = len(reads.layouts) * num_pages * needed * apart
        return ReadTotals(math.ceil(num_reads), int(num_bytes))

    def _reads(self, misses: float, is_missed: npt.NDArray[np.bool_]) -> ReadTotals:
        """Return the reads of an epoch in which batches miss `misses` rows each."""
        sample, totals, num_found = self._sample, ReadTotals(), 0
        last = sample.trace.num_batches
        for i in range(max(0, last - _READ_BATCHES), last):
            begin, end = sample.trace.offsets[i], sample.trace.offsets[i + 1]
            rows = sample.trace.ids[begin:end][is_missed[begin:end]]
            num_found += len(rows)
            totals += sample.reads.count(rows)
        if num_found == 0:  # so few rows that each takes a separate read
            num = round(misses * self.epoch_batches)
            return ReadTotals(num * len(sample.reads.layouts), num * self.row_bytes)
        return totals.scaled(misses * self.epoch_batches / num_found)

    def with_degrees(self, degrees: npt.NDArray[np.uint32]) -> Self:
        """Return the workload with the curves of caches by out-degree, and filled up by it."""
        capped = np.minimum(degrees[self._sample.trace.ids], _MAX_DEGREE - 1)
        sample, frequency = replace(self._sample, degrees=capped), self.frequency
        num_uses = sample.trace.num_batches * sample.kept_share
        rows, uses = _degree_histogram(degrees), _degree_histogram(capped) / num_uses
        # Rows that batches need, by their degrees: the others have the degrees that are left.
        ids, first = np.unique(sample.trace.ids, return_index=True)
        needed = _degree_histogram(capped[first]) * (frequency.rows.sum() / max(1, len(ids)))
        others = _degree_histogram(capped[sample.others == 0]) / num_uses
        return replace(
            self,
            degree=ScoreCurve(rows, uses, len(degrees)),
            filled_up=ScoreCurve(
                np.concatenate([np.maximum(rows - needed, 0.0), frequency.rows[1:]]),
                np.concatenate([others, frequency.uses[1:]]),
                len(degrees),
            ),
            _sample=sample,
        )


@dataclass(frozen=True, eq=False)
class _Sample:
    """The kept rows of a sample, to count their reads."""

    reads: TableReads
    trace: Trace
    # In the order of the trace's ids: the reuse distance of each.
    distances: npt.NDArray[Any]
    # In the order of the trace's ids: the number of other batches that need the row.
    others: npt.NDArray[Any]
    kept_share: float  # the kept uses of rows as a share of all
    # In the order of the trace's ids: the out-degree of each, if it was counted.
    degrees: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, np.uint32))

    @property
    def filled_up(self) -> npt.NDArray[Any]:
        """Scores of a cache by frequency that is filled up by out-degree."""
        return np.where(self.others > 0, _MAX_DEGREE - 1 + self.others, self.degrees)


def _page_curve(trace: Trace, share: float, reads: TableReads) -> ReuseCurve:
    """Return the curve of the widest table's pages, which is used for all tables."""
    geometry = max(reads.layouts, key=lambda layout: layout.geometry.row_bytes).geometry
    per_page = max(1, geometry.rows_per_page * PAGE_BYTES // geometry.page_stride_bytes)
    batches = [np.unique(trace.batch(i) // per_page) for i in range(trace.num_batches)]
    pages = Trace.of(batches)
    distinct, places = np.unique(pages.ids, return_inverse=True)
    dense = Trace(places.astype(np.int32), pages.offsets)
    per_row = max(1, -(-geometry.row_bytes // PAGE_BYTES))
    weight = per_row * reads.row_bytes / max(1, geometry.row_bytes)
    return ReuseCurve.of_trace(dense, len(distinct), share / weight)


def _degree_histogram(degrees: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """Return the number of nodes with each degree: float64 [_MAX_DEGREE]."""
    counts = np.zeros(_MAX_DEGREE, np.int64)
    for first in range(0, len(degrees), _COUNTED_AT_ONCE):
        capped = np.minimum(degrees[first : first + _COUNTED_AT_ONCE], _MAX_DEGREE - 1)
        counts += np.bincount(capped, minlength=_MAX_DEGREE)
    return counts.astype(np.float64)
