"""An epoch as far as a short sample tells: rows, reads and misses of any cache.

Of the sampled batches only some blocks of neighbouring rows are kept, chosen by a hash, with a
cache that is smaller by as much (as SHARDS does, Waldspurger et al., FAST 2015, section 3): 1/8 of
the blocks of W tells misses within 2 %. Blocks, because rows that lie near each other share reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore.caching.policies.base import CachePolicy
from gnnstore.caching.reuse import InitialCache, ReuseCurve, ScoreCurve, reuse_distances
from gnnstore.caching.trace import Trace, TraceBuilder
from gnnstore.disk.profile.tuning import ReadTuning
from gnnstore.formats.arrays.pages import ShardLayout
from gnnstore.planning.reads import ReadTotals, count_reads

PAGE_BYTES = 4096
# Uses of rows that are kept: looking at them takes a second. Learning takes up to 77 bytes for
# each, and counting the reads of as many rows 125.
_KEPT_USES = 2 << 20
_USE_BYTES = 128
# Rows no further apart than a read's gap (12 kB at most, on flash) should be in one block.
_BLOCK_BYTES = 32 << 10
_LEAST_BLOCK_ROWS = 64
# With fewer blocks, a few that many batches need would decide.
_LEAST_BLOCKS = 1024
# The last batches of a sample, whose rows are known to be old or new: what is read of these tells
# how many reads a missed row takes.
_READ_BATCHES = 4
_MAX_DEGREE = 1 << 16
# Degrees are looked at in pieces: 3 MB beside them.
_COUNTED_AT_ONCE = 1 << 18

_HASH = np.uint32(2654435761)


@dataclass(frozen=True)
class SpatialSampling:
    """Chooses the blocks of rows that are looked at, by a hash of their ids (SHARDS).

    Attributes
    ----------
    block_bits, share_bits : int
        Rows of a block, and blocks for each one that is kept: logarithms to the base 2.
    """

    block_bits: int = 0
    share_bits: int = 0

    @classmethod
    def fit(
        cls, num_uses: int, num_rows: int, row_bytes: int, memory_bytes: int | None = None
    ) -> Self:
        """Keep as many blocks as suffice.

        Parameters
        ----------
        num_uses : int
            Rows that all batches of the sample need.
        num_rows, row_bytes : int
            Of the table.
        memory_bytes : int, optional
            For looking at them.
        """
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
        """Of all rows, those that are kept."""
        return 0.5**self.share_bits

    def batches_in(self, memory_bytes: int, batch_nodes: int) -> int:
        """Return how many batches of kept rows fit in `memory_bytes` (at least 1).

        Of a small graph, half of the blocks would be too few, whatever the memory.
        """
        kept_bytes = _USE_BYTES * self.share * max(1, batch_nodes)
        return max(1, int(memory_bytes / kept_bytes))

    def keeps(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return which of some rows are kept: bool [n]."""
        if self.share_bits == 0:
            return np.ones(len(ids), np.bool_)
        # Multiplied and mixed, so that blocks of like ids have nothing in common.
        mixed = (ids >> self.block_bits).astype(np.uint32) * _HASH
        mixed ^= mixed >> np.uint32(15)
        mixed *= np.uint32(2246822519)
        mixed ^= mixed >> np.uint32(13)
        kept: npt.NDArray[np.bool_] = (mixed >> np.uint32(32 - self.share_bits)) == 0
        return kept


class SampledTrace(TraceBuilder):
    """Collects the nodes of batches that spatial sampling keeps."""

    def __init__(self, num_batches: int, num_nodes: int, sampling: SpatialSampling) -> None:
        super().__init__(num_batches, num_nodes)
        self._sampling = sampling

    def put(self, i: int, n_id: npt.NDArray[Any]) -> None:
        """Take the nodes of batch i, each once."""
        super().put(i, np.unique(n_id[self._sampling.keeps(n_id)]))


@dataclass(frozen=True, eq=False)
class TableReads:
    """How the rows of the tables that are read from disk come.

    Attributes
    ----------
    layouts : tuple of ShardLayout
        Where the rows of each table lie.
    alignments : tuple of int
        What reads of each are rounded to, in bytes.
    tuning : ReadTuning
    """

    layouts: tuple[ShardLayout, ...]
    alignments: tuple[int, ...]
    tuning: ReadTuning

    @property
    def row_bytes(self) -> int:
        """Bytes of a node's rows."""
        return sum(layout.geometry.row_bytes for layout in self.layouts)

    def count(self, rows: npt.NDArray[Any]) -> ReadTotals:
        """Count the reads that fetch the rows of some nodes, ascending, each once."""
        totals = ReadTotals()
        for layout, alignment_bytes in zip(self.layouts, self.alignments, strict=True):
            totals += count_reads(rows, layout, alignment_bytes, self.tuning)
        return totals


@dataclass(frozen=True, eq=False)
class Workload:
    """What an epoch needs of the tables that are read from disk.

    Attributes
    ----------
    num_rows, row_bytes : int
        Of the tables, which have a row for each node.
    epoch_batches : int
        Batches of an epoch.
    sampled_batches : int
        Batches that this was learnt from.
    batch_bytes, ids_bytes : float
        Of a batch with its attributes, and of its subgraph alone.
    seconds_sampling : float
        Of a batch, with all threads sampling.
    rows, pages : ReuseCurve
        Of the tables' rows, and of the pages of 4 KiB that they lie on.
    frequency : ScoreCurve
        By how many other batches need a row.
    degree : ScoreCurve or None
        By out-degree; None unless it was counted.
    """

    num_rows: int
    row_bytes: int
    epoch_batches: int
    sampled_batches: int
    batch_bytes: float
    ids_bytes: float
    seconds_sampling: float
    rows: ReuseCurve
    pages: ReuseCurve
    frequency: ScoreCurve
    degree: ScoreCurve | None
    _sample: _Sample = field(repr=False)

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
        sampling: SpatialSampling,
        reads: TableReads,
        *,
        num_rows: int,
        epoch_batches: int,
        batch_bytes: float,
        ids_bytes: float,
        seconds_sampling: float,
    ) -> Self:
        """Look at a sample.

        Parameters
        ----------
        trace : Trace
            From a `SampledTrace`, at least one batch.
        """
        share, num_batches = sampling.share, trace.num_batches
        ids, places = np.unique(trace.ids, return_inverse=True)
        dense = Trace(places.astype(np.int32), trace.offsets)
        distances = reuse_distances(dense, len(ids))
        counts = np.bincount(dense.ids, minlength=len(ids)).astype(np.int32)
        rows_of = np.bincount(counts, minlength=2).astype(np.float64)
        uses = np.zeros_like(rows_of)
        # Whatever a batch needs is in one batch more than others need it in.
        uses[:-1] = (rows_of * np.arange(len(rows_of)))[1:] / num_batches
        sample = _Sample(
            reads,
            share,
            ids,
            counts,
            trace,
            distances,
            counts[dense.ids] - 1,
        )
        return cls(
            num_rows=num_rows,
            row_bytes=reads.row_bytes,
            epoch_batches=epoch_batches,
            sampled_batches=num_batches,
            batch_bytes=batch_bytes,
            ids_bytes=ids_bytes,
            seconds_sampling=seconds_sampling,
            rows=ReuseCurve.of(np.bincount(distances, minlength=num_batches), share),
            pages=_page_curve(trace, share, reads),
            frequency=ScoreCurve(rows_of / share, uses / share, num_rows),
            degree=None,
            _sample=sample,
        )

    def direct_reads(self) -> ReadTotals:
        """Return the reads of an epoch without any cache."""
        return self._reads(self.batch_rows, lambda sample: np.ones(len(sample.distances), np.bool_))

    def static_reads(self, num_slots: int, *, by_degree: bool = False) -> ReadTotals:
        """Return the reads of an epoch beside a static cache."""
        curve = self.degree if by_degree and self.degree is not None else self.frequency
        lowest = curve.lowest_score(num_slots)

        def missed(sample: _Sample) -> npt.NDArray[np.bool_]:
            scores = sample.degrees if by_degree and sample.degrees is not None else sample.others
            return scores < lowest

        return self._reads(curve.misses(num_slots), missed)

    def misses(
        self, policy: CachePolicy, num_slots: int, superbatch: int, *, holds: InitialCache = "last"
    ) -> float:
        """Return the rows that a planned cache misses in an epoch, planned by superbatches.

        Parameters
        ----------
        holds : "last", "best" or "nothing"
            What the cache holds when the epoch begins: what the one before has left; or, in a
            first epoch, the rows that its first superbatch needs most.
        """
        if num_slots >= self.num_rows and holds != "nothing":
            return 0.0
        if not policy.looks_ahead:  # how many batches are planned together does not matter
            return policy.misses(self.rows, num_slots, self.epoch_batches, holds=holds)
        size = max(1, min(superbatch, self.epoch_batches))
        num_more, rest = divmod(self.epoch_batches - size, size)
        misses = policy.misses(self.rows, num_slots, size, holds=holds)
        misses += num_more * policy.misses(self.rows, num_slots, size, holds="last")
        if rest:
            misses += policy.misses(self.rows, num_slots, rest, holds="last")
        if holds == "nothing":
            return misses
        # A cache that sees a few batches ahead is left with rows that most batches have needed,
        # and hardly misses more than one of just these: on W with room for 3.3 million, planned
        # by 24 batches, 1.1 million, where that misses 1.6 and what is said above is 3.
        return min(misses, self.epoch_batches * self.frequency.misses(num_slots))

    def planned_reads(self, policy: CachePolicy, num_slots: int, superbatch: int) -> ReadTotals:
        """Return the reads of an epoch beside a planned cache."""
        misses = self.misses(policy, num_slots, superbatch) / self.epoch_batches
        longest = policy.max_kept_distance(self.rows, num_slots, superbatch)
        return self._reads(misses, lambda s: (s.distances == 0) | (s.distances > longest))

    def fill_reads(self, num_slots: int) -> ReadTotals:
        """Return the reads that fill a cache with the rows that most batches need."""
        sample = self._sample
        lowest = min(self.frequency.lowest_score(num_slots), int(sample.counts.max(initial=0)))
        chosen = sample.ids[sample.counts >= lowest]
        totals = sample.reads.count(chosen)
        # Beyond what batches need, those of high degree.
        num_filled = min(num_slots, self.num_rows)
        return _scaled(totals, num_filled / max(1, len(chosen)))

    def scan_bytes(self, policy: CachePolicy, num_slots: int, superbatch: int) -> int:
        """Return what one pass over the tables reads for what a superbatch misses."""
        sample = self._sample
        misses = self.misses(policy, num_slots, superbatch) * superbatch / self.epoch_batches
        expected = min(misses, self.rows.distinct_rows(superbatch))
        if superbatch <= sample.trace.num_batches:
            longest = policy.max_kept_distance(self.rows, num_slots, superbatch)
            filled = sample.others + 1 >= self.frequency.lowest_score(num_slots)
            missed = (sample.distances > longest) | ((sample.distances == 0) & ~filled)
            end = int(sample.trace.offsets[superbatch])
            rows = np.unique(sample.trace.ids[:end][missed[:end]])
            # A cache that is nearly as large as the sample misses rows that are not in it.
            if len(rows) / sample.share >= expected / 2:
                scanned = sample.reads.count(rows).num_bytes / sample.share
                return int(min(scanned, self.table_bytes))
        # As if missed rows were anywhere in the table; gaps between them are read along.
        missed_share = min(1.0, expected / max(1, self.num_rows))
        gap_rows = sample.reads.tuning.gap_bytes / max(1, self.row_bytes)
        return int(self.table_bytes * (1 - (1 - missed_share) ** (1 + gap_rows)))

    def _reads(
        self, misses: float, missed: Callable[[_Sample], npt.NDArray[np.bool_]]
    ) -> ReadTotals:
        """Return the reads of an epoch of which each batch misses so many rows."""
        sample = self._sample
        which, totals, found = missed(sample), ReadTotals(), 0
        last = sample.trace.num_batches
        for i in range(max(0, last - _READ_BATCHES), last):
            begin, end = sample.trace.offsets[i], sample.trace.offsets[i + 1]
            rows = sample.trace.ids[begin:end][which[begin:end]]
            found += len(rows)
            totals += sample.reads.count(rows)
        if found == 0:  # so few that each is a read of its own
            num = round(misses * self.epoch_batches)
            return ReadTotals(num * len(sample.reads.layouts), num * self.row_bytes)
        return _scaled(totals, misses * self.epoch_batches / found)

    def with_degrees(self, degrees: npt.NDArray[np.uint32]) -> Self:
        """Return the workload with what a cache by out-degree would hold.

        Parameters
        ----------
        degrees : ndarray of uint32 [N]
            Of all nodes.
        """
        sample = self._sample
        capped = np.minimum(degrees[sample.trace.ids], _MAX_DEGREE - 1)
        curve = _degree_curve(sample.trace, sample.share, degrees)
        return replace(self, degree=curve, _sample=replace(sample, degrees=capped))


@dataclass(frozen=True, eq=False)
class _Sample:
    """What is kept of a sample to count reads of.

    Attributes
    ----------
    share : float
        Of all rows, those that are here.
    ids, counts : ndarray [n]
        Rows, ascending, and in how many batches each was.
    trace : Trace
        The batches.
    distances, others, degrees : ndarray
        Beside their ids: batches since the row was needed before, other batches that need it,
        and out-degrees.
    """

    reads: TableReads
    share: float
    ids: npt.NDArray[Any]
    counts: npt.NDArray[Any]
    trace: Trace
    distances: npt.NDArray[Any]
    others: npt.NDArray[Any]
    degrees: npt.NDArray[Any] | None = None


def _scaled(totals: ReadTotals, factor: float) -> ReadTotals:
    return ReadTotals(round(totals.reads * factor), round(totals.num_bytes * factor))


def _page_curve(trace: Trace, share: float, reads: TableReads) -> ReuseCurve:
    """Return the curve of pages, those of the widest table standing for the others."""
    geometry = max(reads.layouts, key=lambda layout: layout.geometry.row_bytes).geometry
    per_page = max(1, geometry.rows_per_page * PAGE_BYTES // geometry.page_stride_bytes)
    batches = [np.unique(trace.batch(i) // per_page) for i in range(trace.num_batches)]
    pages = Trace.of(batches)
    found, places = np.unique(pages.ids, return_inverse=True)
    distances = reuse_distances(Trace(places.astype(np.int32), pages.offsets), len(found))
    per_row = max(1, -(-geometry.row_bytes // PAGE_BYTES))
    weight = per_row * reads.row_bytes / max(1, geometry.row_bytes)
    return ReuseCurve.of(np.bincount(distances, minlength=trace.num_batches), share / weight)


def _degree_curve(trace: Trace, share: float, degrees: npt.NDArray[np.uint32]) -> ScoreCurve:
    uses = _degree_histogram(degrees[trace.ids]) / (trace.num_batches * share)
    return ScoreCurve(_degree_histogram(degrees), uses, len(degrees))


def _degree_histogram(degrees: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """Return how many nodes have each degree, in pieces: float64 [_MAX_DEGREE].

    Of an array of 32-bit numbers, `bincount` makes one of 64-bit numbers first: beside the 67 MB of
    16.8 million degrees that, and the capped ones, were 201 MB more than any budget knew of.
    """
    counts = np.zeros(_MAX_DEGREE, np.int64)
    for first in range(0, len(degrees), _COUNTED_AT_ONCE):
        capped = np.minimum(degrees[first : first + _COUNTED_AT_ONCE], _MAX_DEGREE - 1)
        counts += np.bincount(capped, minlength=_MAX_DEGREE)
    return counts.astype(np.float64)
