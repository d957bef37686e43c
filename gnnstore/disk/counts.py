"""Counts of the reads that requests took: plain sums that add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True)
class ReadCounts:
    """Counts of reads by engines, and of rows that came from a cache instead.

    Rows in memory or in a mapping are not counted: the first take no read, and only the operating
    system knows those of the second.

    Attributes
    ----------
    reads : int
        Reads submitted; one that the system cuts short and continues counts once.
    bytes_read : int
        Bytes of these reads, with the rest of their pages and the gaps that they span.
    bytes_useful : int
        Bytes of the distinct rows that were read.
    rows_read, rows_cached : int
        Distinct rows that were read, and rows that were copied from a cache.
    depth_sum, waits : int
        The sum of the reads in flight whenever a thread began to wait, and the number of waits.
    seconds_waiting : float
        Time that threads waited for reads, without the copying meanwhile.
    """

    reads: int = 0
    bytes_read: int = 0
    bytes_useful: int = 0
    rows_read: int = 0
    rows_cached: int = 0
    depth_sum: int = 0
    waits: int = 0
    seconds_waiting: float = 0.0

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Self:
        """Return the counts of one call of the core."""
        amounts = dict(counts)
        nanoseconds = amounts.pop("nanoseconds_waiting")
        return cls(**amounts, seconds_waiting=nanoseconds * 1e-9)

    def __add__(self, other: ReadCounts) -> ReadCounts:
        return ReadCounts(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    @property
    def amplification(self) -> float:
        """Bytes read for each useful byte; 0 if none were."""
        return self.bytes_read / self.bytes_useful if self.bytes_useful else 0.0

    @property
    def mean_queue_depth(self) -> float:
        """Mean number of reads in flight while a thread waited; 0 if none did."""
        return self.depth_sum / self.waits if self.waits else 0.0

    @property
    def hit_rate(self) -> float:
        """Share of the rows that came from a cache; 0 if there were none."""
        rows = self.rows_cached + self.rows_read
        return self.rows_cached / rows if rows else 0.0


NO_READS = ReadCounts()
