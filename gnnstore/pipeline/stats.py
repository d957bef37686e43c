"""Statistics of a loader: its batches, reads and times, and how long the consumer waited."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Self

from gnnstore._core import ReadCounts
from gnnstore.units import format_count, format_size


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
        Seconds that the consumer waited because no batch was ready; with `device=` also because
        the device still computed what the consumer had done with earlier ones.
    bytes_gathered : int
        Attribute values copied into batches.
    bytes_to_device : int
        Tensors of batches copied to the device, with `device=`.
    device_cache_bytes : int
        Rows that stay on the device, with `device_cache=`; 0 before the first iteration.
    rows_on_device : int
        Rows of batches that came from them; a node counts once for all tables of its type.
    rows_kept : int
        Rows of batches that came from the batch before, with `reorder=`; counted alike.
    peak_rss_bytes : int
        The most memory that the process has had resident, loader or not.
    strategy, topology, reason : str
        Where the data lies, and why.
    num_threads, prefetch_batches : int
        Preparing threads, and the most batches prepared ahead.
    io_engine : str
        The engine that reads rows from disk; empty if there is none.
    cache : str
        By what rows are cached: the score of a static cache, or the strategy that plans one; empty
        without a cache.
    cache_rows : int
        Nodes with cached rows, or with room for them.
    superbatch : int
        Batches that are planned at a time; 0 where nothing is planned.
    predicted_epoch_seconds : float or None
        Predicted time of an epoch without training, when "auto" chose the strategy; None if
        nothing was predicted.
    predicted_first_epoch_seconds : float or None
        Predicted time of the first epoch, in which a cache is filled, or nothing was sampled ahead.
    predicted_epoch_bytes : int or None
        Bytes that an epoch was predicted to read and write; see `moved_epoch_bytes`.
    reads, bytes_read : int
        Reads of attribute values, and their bytes, with what is read along.
    bytes_useful : int
        Bytes of the distinct rows among them that a batch asked for.
    rows_read, rows_cached : int
        Distinct rows that were read, and rows that came from the cache.
    seconds_reading : float
        Seconds that threads waited for the disk; part of `seconds_gathering`.
    depth_sum, waits : int
        Reads in flight at each such wait, summed, and the number of waits.
    topology_reads, topology_bytes_read : int
        Reads of in-neighbours and their bytes, where the topology is on disk.
    seconds_planning : float
        Planning of superbatches, in a thread beside the preparing ones.
    bytes_packing : int
        Read of the tables to pack rows, and of rows of edges in passes.
    bytes_spilled : int
        Subgraphs, plans and packed rows that were written to disk until their batch was assembled.
    negatives_kept : int
        Negatives that are edges after all, of loaders of edges that draw such ones again.
    partitions_read, states : int
        With `partitions=`: partitions that were read, and states that have been in memory.
    seconds_swapping : float
        Seconds that the consumer waited for a state; part of `seconds_waiting`.
    """

    strategy: str
    topology: str
    reason: str
    num_threads: int
    prefetch_batches: int
    io_engine: str = ""
    cache: str = ""
    cache_rows: int = 0
    superbatch: int = 0
    predicted_epoch_seconds: float | None = None
    predicted_first_epoch_seconds: float | None = None
    predicted_epoch_bytes: int | None = None
    epoch_batches: int = 0
    device_cache_bytes: int = 0
    # From here on totals, but for the peak at the end; see `since`.
    batches: int = 0
    nodes: int = 0
    edges: int = 0
    seconds_sampling: float = 0.0
    seconds_gathering: float = 0.0
    seconds_transforming: float = 0.0
    seconds_waiting: float = 0.0
    bytes_gathered: int = 0
    bytes_to_device: int = 0
    rows_on_device: int = 0
    rows_kept: int = 0
    reads: int = 0
    bytes_read: int = 0
    bytes_useful: int = 0
    rows_read: int = 0
    rows_cached: int = 0
    seconds_reading: float = 0.0
    depth_sum: int = 0
    waits: int = 0
    topology_reads: int = 0
    topology_bytes_read: int = 0
    seconds_planning: float = 0.0
    bytes_packing: int = 0
    bytes_spilled: int = 0
    partitions_read: int = 0
    states: int = 0
    seconds_swapping: float = 0.0
    negatives_kept: int = 0
    peak_rss_bytes: int = 0

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
        """Share of the rows that came from the cache; 0 where none was asked for."""
        rows = self.rows_cached + self.rows_read
        return self.rows_cached / rows if rows else 0.0

    @property
    def waiting_epoch_seconds(self) -> float:
        """Seconds that the consumer waits in an epoch, by the batches so far; NaN before the first.

        To be compared with what was predicted, if the consumer does nothing with the batches.
        """
        if not self.batches:
            return math.nan
        return self.seconds_waiting / self.batches * self.epoch_batches

    @property
    def moved_epoch_bytes(self) -> float:
        """Bytes of attributes that an epoch reads, and what it writes, by the batches so far.

        NaN before the first.
        """
        if not self.batches:
            return math.nan
        moved = self.bytes_read + self.bytes_packing + self.bytes_spilled
        return moved / self.batches * self.epoch_batches

    def plus(self, **amounts: float) -> Self:
        """Return these totals with amounts added."""
        return replace(self, **{name: getattr(self, name) + n for name, n in amounts.items()})

    def plus_reads(self, counts: ReadCounts) -> Self:
        """Return these totals with reads added."""
        return self.plus(
            reads=counts.reads,
            bytes_read=counts.bytes_read,
            bytes_useful=counts.bytes_useful,
            rows_read=counts.rows_read,
            rows_cached=counts.rows_cached,
            seconds_reading=counts.seconds_waiting,
            depth_sum=counts.depth_sum,
            waits=counts.waits,
        )

    def since(self, earlier: LoaderStats) -> Self:
        """Return the difference to an earlier reading; the peak stays a peak."""
        names = [field.name for field in fields(self)]
        names = names[names.index("batches") : names.index("peak_rss_bytes")]
        return replace(self, **{n: getattr(self, n) - getattr(earlier, n) for n in names})

    def __str__(self) -> str:
        """One line, short enough to stand beside a progress bar."""
        batches = format_count(self.batches, "batch")
        return (
            f"{batches}, sampling {self.seconds_sampling:.2f} s, "
            f"gathering {self.seconds_gathering:.2f} s "
            f"({format_size(self.bytes_gathered)}), over "
            f"{format_count(max(1, self.num_threads), 'thread')}; "
            f"waited {self.seconds_waiting:.2f} s; peak {format_size(self.peak_rss_bytes)}; "
            f"strategy {self.strategy}{self._reading()}{self._on_device()}{self._predicted()}"
        )

    def _predicted(self) -> str:
        if self.predicted_epoch_seconds is None:
            return ""
        first = self.predicted_first_epoch_seconds
        more = "" if first is None else f" ({first:.2f} s the first)"
        return (
            f"; predicted {self.predicted_epoch_seconds:.2f} s an epoch{more}, waited "
            f"{self.waiting_epoch_seconds:.2f} s an epoch"
        )

    def _on_device(self) -> str:
        parts = {
            f"{format_size(self.bytes_to_device)} copied": self.bytes_to_device,
            f"{format_size(self.device_cache_bytes)} of rows stay there": self.device_cache_bytes,
            f"{format_count(self.rows_on_device, 'row')} taken from these": self.rows_on_device,
            f"{format_count(self.rows_kept, 'row')} from the batch before": self.rows_kept,
        }
        found = ", ".join(text for text, amount in parts.items() if amount)
        return f"; device: {found}" if found else ""

    def _reading(self) -> str:
        if not self.io_engine:
            return ""
        planned = format_count(self.superbatch, "batch")
        useful = f" ({self.amplification:.2f} times what was asked for)"
        parts = {
            f"{self.hit_rate:.0%} of rows cached": self.cache and self.rows_cached,
            f"{planned} planned at a time ({self.seconds_planning:.2f} s)": self.superbatch,
            f"{format_count(self.reads, 'read')}, {format_size(self.bytes_read)}"
            f"{useful if self.bytes_useful else ''}": self.reads,
            f"{self.mean_queue_depth:.0f} at a time": self.waits,
            f"waited {self.seconds_reading:.2f} s for the disk": self.reads,
        }
        return f", {self.io_engine}: " + (
            ", ".join(text for text, amount in parts.items() if amount) or "nothing read yet"
        )
