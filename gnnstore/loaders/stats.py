"""What a loader has done so far and where its time went: the answer to "is it the loader?"."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass, fields, replace
from typing import Self

from gnnstore.units import format_size

# ru_maxrss counts KiB on Linux and bytes on macOS.
_MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
_SETTINGS = ("strategy", "topology", "reason", "num_threads", "prefetch_batches")


def peak_rss_bytes() -> int:
    """Return the most memory that this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT_BYTES


@dataclass(frozen=True)
class LoaderStats:
    """Totals of one loader since it was made, or between two moments (`since`).

    Attributes
    ----------
    batches, nodes, edges : int
        Batches handed out, and what they held.
    seconds_sampling, seconds_gathering : float
        Summed over the preparing threads: divide by `num_threads` for the time they cover.
    seconds_transforming : float
        In the consumer's thread: `transform`, `transform_sampler_output`, pinning.
    seconds_waiting : float
        How long the consumer was stalled because no batch was ready.
    bytes_gathered : int
        Attribute values copied into batches.
    peak_rss_bytes : int
        The most memory that the process has had resident, loader or not.
    strategy, topology, reason : str
        Where the data lies, and why.
    num_threads, prefetch_batches : int
        Preparing threads, and the most batches prepared ahead.
    """

    strategy: str
    topology: str
    reason: str
    num_threads: int
    prefetch_batches: int
    batches: int = 0
    nodes: int = 0
    edges: int = 0
    seconds_sampling: float = 0.0
    seconds_gathering: float = 0.0
    seconds_transforming: float = 0.0
    seconds_waiting: float = 0.0
    bytes_gathered: int = 0
    peak_rss_bytes: int = 0

    def plus(self, **amounts: float) -> Self:
        """Return these totals with amounts added."""
        return replace(self, **{name: getattr(self, name) + n for name, n in amounts.items()})

    def since(self, earlier: LoaderStats) -> Self:
        """Return what was added after an earlier reading; the peak stays a peak."""
        kept = {*_SETTINGS, "peak_rss_bytes"}
        names = [field.name for field in fields(self) if field.name not in kept]
        return replace(self, **{n: getattr(self, n) - getattr(earlier, n) for n in names})

    def __str__(self) -> str:
        """One line, short enough to stand beside a progress bar."""
        return (
            f"{self.batches} batches, sampling {self.seconds_sampling:.2f} s, "
            f"gathering {self.seconds_gathering:.2f} s "
            f"({format_size(self.bytes_gathered)}), over {max(1, self.num_threads)} threads; "
            f"stalled {self.seconds_waiting:.2f} s; peak {format_size(self.peak_rss_bytes)}; "
            f"strategy {self.strategy}"
        )
