"""What was read to serve a request, and at what depth: plain sums that add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True)
class ReadCounts:
    """Reads that the engines did, and rows that a cache spared them.

    Rows that lie in memory or are mapped count nothing: the first cost no read, and of the
    second only the operating system knows.

    Attributes
    ----------
    reads : int
        Reads submitted; one that the system cuts short and continues counts once.
    bytes_read : int
        Bytes of these reads, with the rest of their pages and the gaps that they span.
    bytes_useful : int
        Bytes of the distinct rows that were asked for and not cached.
    rows_read, rows_cached : int
        Distinct rows that were read, and rows that were copied from a cache.
    depth_sum, waits : int
        Reads in flight when a thread began to wait for some, summed, and how often.
    seconds_waiting : float
        Time that threads spent waiting for reads; what they copied meanwhile is not in it.
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
        """Take the counts of one call of the core."""
        amounts = dict(counts)
        nanoseconds = amounts.pop("nanoseconds_waiting")
        return cls(**amounts, seconds_waiting=nanoseconds * 1e-9)

    def __add__(self, other: ReadCounts) -> ReadCounts:
        return ReadCounts(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    @property
    def amplification(self) -> float:
        """Bytes read for each byte that was asked for; 0 where nothing was read."""
        return self.bytes_read / self.bytes_useful if self.bytes_useful else 0.0

    @property
    def mean_queue_depth(self) -> float:
        """Reads in flight while a thread waited; 0 where none did."""
        return self.depth_sum / self.waits if self.waits else 0.0

    @property
    def hit_rate(self) -> float:
        """Share of the rows that came from a cache; 0 where nothing was asked for."""
        rows = self.rows_cached + self.rows_read
        return self.rows_cached / rows if rows else 0.0


NO_READS = ReadCounts()
