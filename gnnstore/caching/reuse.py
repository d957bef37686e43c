"""Predicts the misses of any cache from the reuse distances of the rows in some batches.

The reuse distance of a row in a batch is the number of batches since it was last needed. Belady's
cache keeps the shortest of these intervals that there is room for, so its misses follow from the
number of intervals of each length: on R-MAT graphs within 2.5 % of its planner's, for caches
from 1 % of the rows on. An LRU cache keeps a row while fewer other rows are needed than it has
slots, which follows from the same numbers. So one sample gives the misses of caches of all sizes.

Where an epoch is longer than the sample, distances beyond it follow a power law that is fitted to
the farther half of those in the sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from gnnstore.caching.plan import Trace

# The content of a cache when a plan begins.
InitialCache = Literal["last", "nothing"]

# The steepest fall of a curve far out; curves of graphs fall more slowly, but three batches may
# give a steeper one.
_MAX_EXPONENT = 4.0


@dataclass(frozen=True, eq=False)
class ReuseCurve:
    """The distribution of the reuse distances of the rows in a batch."""

    # float64 [T]: rows of a batch whose reuse distance exceeds g, for each g below T, the number of
    # batches sampled; the first is all rows of a batch.
    farther: npt.NDArray[np.float64]
    # Misses that have been computed: sizes are compared that differ in other things.
    _misses: dict[tuple[int, int, InitialCache], float] = field(default_factory=dict, repr=False)

    @classmethod
    def from_distances(cls, distances: npt.NDArray[np.int64], share: float = 1.0) -> Self:
        """Return the curve of a sample."""
        num_batches = len(distances)
        distance = np.arange(1, num_batches)
        # A sample of T batches has T - g pairs that are g batches apart.
        rates = distances[1:] / (num_batches - distance)
        farther = np.empty(num_batches)
        farther[0] = distances.sum() / num_batches
        farther[1:] = farther[0] - np.cumsum(rates)
        # The pairs farthest apart are few, so that their rates may add up to more than 1.
        return cls(np.maximum(farther, 0.0) / share)

    @classmethod
    def of_trace(cls, trace: Trace, num_rows: int, share: float = 1.0) -> Self:
        """Return the curve of the batches of a trace, at least one; see `reuse_distances`."""
        counts = np.zeros(trace.num_batches, np.int64)
        for distances in reuse_distances(trace, num_rows):
            counts += np.bincount(distances, minlength=trace.num_batches)
        return cls.from_distances(counts, share)

    @property
    def batch_rows(self) -> float:
        """Rows of a batch."""
        return float(self.farther[0])

    @cached_property
    def _exponent(self) -> float:
        last = len(self.farther) - 1
        middle = last // 2
        if middle == 0 or self.farther[last] <= 0:
            return 1.0
        fall = float(np.log(self.farther[middle] / self.farther[last]))
        return min(max(0.0, fall / float(np.log(last / middle))), _MAX_EXPONENT)

    def reaching(self, num_batches: int) -> npt.NDArray[np.float64]:
        """Return `farther` for a number of batches, extrapolated where the sample has fewer."""
        known = len(self.farther)
        if num_batches <= known:
            return self.farther[:num_batches]
        beyond = np.arange(known, num_batches) / max(1, known - 1)
        return np.concatenate([self.farther, self.farther[-1] * beyond**-self._exponent])

    def distinct_rows(self, num_batches: int) -> float:
        """Return the number of distinct rows in a number of consecutive batches."""
        # The rows of batch t that are new are those not needed in the t before it.
        return float(self.reaching(num_batches).sum())

    def belady_misses(
        self, num_slots: int, num_batches: int, *, initial: InitialCache = "last"
    ) -> float:
        """Return the rows that Belady's cache misses in batches that are planned together."""
        known, key = self._misses, (num_slots, num_batches, initial)
        if key not in known:
            known[key] = self._belady_misses(*key)
        return known[key]

    def _belady_misses(self, num_slots: int, num_batches: int, initial: InitialCache) -> float:
        farther = self.reaching(num_batches)
        first_uses = float(farther.sum())
        if initial == "last":
            before = int(self.batches_held(num_slots, 2 * num_batches))
            still = self.reaching(num_batches + before)[before:]
            first_uses = max(first_uses - num_slots, float(still.sum()))
        distance = np.arange(1, num_batches)
        # An interval of g batches occupies a slot in g of them.
        rates = farther[:-1] - farther[1:]
        kept = self._kept_shares(rates, distance, num_slots)
        return first_uses + float(((1 - kept) * rates * (num_batches - distance)).sum())

    def max_kept_distance(self, num_slots: int, num_batches: int) -> int:
        """Return the longest reuse distance over which Belady's cache keeps a row."""
        farther = self.reaching(num_batches)
        rates, distance = farther[:-1] - farther[1:], np.arange(1, num_batches)
        return int((self._kept_shares(rates, distance, num_slots) > 0.5).sum())

    @staticmethod
    def _kept_shares(
        rates: npt.NDArray[np.float64], distance: npt.NDArray[Any], num_slots: int
    ) -> npt.NDArray[np.float64]:
        """Return the share of the intervals of each length that the cache has room for."""
        slots = rates * distance
        before = np.cumsum(slots) - slots
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = (num_slots - before) / slots
        return _clipped(shares)

    def lru_misses(self, num_slots: int, num_batches: int) -> float:
        """Return the rows of a batch that an LRU cache misses."""
        farther = self.reaching(num_batches + 1)
        held = self.batches_held(num_slots, num_batches)
        return float(np.interp(held, np.arange(num_batches + 1), farther))

    def lru_first_misses(self, num_slots: int, num_batches: int) -> float:
        """Return the additional misses of an LRU cache in an epoch that it begins empty."""
        farther = self.reaching(num_batches)
        later = self.lru_misses(num_slots, num_batches)
        return float(np.maximum(farther - later, 0.0).sum())

    def batches_held(self, num_slots: int, most: int) -> float:
        """Return the number of batches whose distinct rows fit in the cache, at most `most`."""
        needed = np.concatenate([[0.0], np.cumsum(self.reaching(most))])
        if num_slots >= needed[-1]:
            return float(most)
        whole = int(np.searchsorted(needed, num_slots, side="right")) - 1
        return whole + float((num_slots - needed[whole]) / (needed[whole + 1] - needed[whole]))


@dataclass(frozen=True, eq=False)
class ScoreCurve:
    """The distribution of rows and their uses over the score that a static cache goes by."""

    # float64 [M]: rows of each score from 0 on.
    rows: npt.NDArray[np.float64]
    # float64 [M]: uses of these rows by a batch.
    uses: npt.NDArray[np.float64]
    num_rows: int  # rows of the table; a cache of this many holds all

    def misses(self, num_slots: int) -> float:
        """Return the rows of a batch that a cache of the rows with the highest scores misses."""
        if num_slots >= self.num_rows:
            return 0.0
        held = _held(self.rows, num_slots)
        held[0] = 0.0  # a row with no score is not cached
        return float(((1 - held) * self.uses).sum())

    def highest(self, num_rows: int, least: int) -> tuple[int, float]:
        """Return the number of rows with the highest scores, and their number in a batch."""
        rows, uses = self.rows[least:], self.uses[least:]
        held = _held(rows, num_rows)
        return int((held * rows).sum()), float((held * uses).sum())

    def lowest_score(self, num_slots: int) -> int:
        """Return the lowest score of which most rows are in the cache."""
        if num_slots >= self.num_rows:
            return 0
        above = np.cumsum(self.rows[::-1])[::-1] - self.rows
        held = above + self.rows / 2 <= num_slots
        held[0] = False
        return int(np.argmax(held)) if held.any() else len(held)


def _held(rows: npt.NDArray[np.float64], num_slots: int) -> npt.NDArray[np.float64]:
    """Return the share of the rows of each score that are among the rows of the highest scores."""
    above = np.cumsum(rows[::-1])[::-1] - rows
    with np.errstate(divide="ignore", invalid="ignore"):
        return _clipped((num_slots - above) / rows)


def _clipped(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.fmin(np.fmax(shares, 0.0), 1.0)  # NaN, of nothing in no room, becomes 0


def reuse_distances(trace: Trace, num_rows: int) -> Iterator[npt.NDArray[np.int32]]:
    """Yield the number of batches since each row of a batch was last needed; 0: never before."""
    last = np.full(num_rows, -1, np.int32)
    for i in range(trace.num_batches):
        ids = trace.batch(i)
        before = last[ids]
        last[ids] = i
        yield np.where(before < 0, 0, i - before).astype(np.int32)
