"""Ways to keep on disk what batches miss, side by side: what each takes and reads in an epoch.

Packing writes a row for every batch that misses it. With segments, batches share rows, and read
them from among those of others. A loader with strategy "packed" packs a superbatch at a time while
it trains, so that it needs the disk of two superbatches, and reads the tables once for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore.caching.policies.registry import POLICIES
from gnnstore.caching.segments import SharedRows, segments_of
from gnnstore.caching.trace import Trace
from gnnstore.features.packed.chunks import chunk_bytes
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES
from gnnstore.strategies.builtin import PACKED
from gnnstore.strategies.predict.reads import ReadTotals, count_extents
from gnnstore.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gnnstore.disk.profile.device_profile import DeviceProfile
    from gnnstore.disk.profile.tuning import ReadTuning

_NO_READS = ReadTotals()
# Batches that lengths of superbatches are tried on.
_ROLLING_BATCHES = 128
_ROLLING_AT_ONCE = 2
# In the record of a batch that needs a shared row: its rank, beside the position of any row.
SHARED_BYTES = 4


@dataclass(frozen=True)
class Layout:
    """Estimated disk space and reads of one layout."""

    name: Literal["packed", "segmented", "rolling"]
    segment: int  # batches that share rows on disk; 1: none do
    superbatch: int  # batches that are planned, and packed, at a time
    disk_bytes: int  # at most at a time; of that everything but rows
    records_bytes: int  # at most at a time; of that everything but rows
    blow_up: float  # the same for each byte of the tables
    epoch_read_bytes: int  # of an epoch of training
    epoch_written_bytes: int  # of an epoch of training
    epoch_reads: int  # reads of rows that batches share, which lie apart; all others are in order
    # Reading and writing of an epoch; None if the disk was not measured.
    epoch_seconds: float | None
    fits: bool  # whether the budget of disk has room for it

    def describe(self) -> str:
        """Return it in a sentence."""
        ahead = f"{self.superbatch:,} batches" if self.superbatch != 1 else "a batch"
        names = {
            "packed": "each batch with rows of its own",
            "segmented": f"segments of {self.segment:,} batches that share rows",
            "rolling": f"strategy='packed' while training, {ahead} at a time",
        }
        apart = f", {self.epoch_reads:,} reads apart" if self.epoch_reads else ""
        written = f", {format_size(self.epoch_written_bytes)} written"
        seconds = self.epoch_seconds
        return (
            f"{names[self.name]}: {format_size(self.disk_bytes)} on disk "
            f"({self.blow_up:.2g} times the tables), an epoch reads "
            f"{format_size(self.epoch_read_bytes)}{apart}"
            f"{written if self.epoch_written_bytes else ''}"
            f"{'' if seconds is None else f', {seconds:.2g} s'}"
            f"{'' if self.fits else '; does not fit'}"
        )


@dataclass(frozen=True, eq=False)
class Costs:
    """The quantities from which layouts are estimated."""

    row_bytes: tuple[int, ...]  # of each table
    table_bytes: int  # of all tables
    batches_per_epoch: int
    epochs: int
    records_bytes: int  # of one batch
    disk_bytes: int | None
    tuning: ReadTuning | None  # settings of the reads of shared rows; None without tables
    profile: DeviceProfile | None  # none if the disk was not measured

    def layout(
        self,
        name: Literal["packed", "segmented", "rolling"],
        *,
        segment: int = 1,
        superbatch: int,
        disk_bytes: int,
        records_bytes: int,
        read_bytes: int,
        written_bytes: int = 0,
        apart: ReadTotals = _NO_READS,
    ) -> Layout:
        """Return a layout; `read_bytes` are all that is read of it, those apart included."""
        return Layout(
            name=name,
            segment=segment,
            superbatch=superbatch,
            disk_bytes=disk_bytes,
            records_bytes=records_bytes,
            blow_up=disk_bytes / self.table_bytes if self.table_bytes else 0.0,
            epoch_read_bytes=read_bytes,
            epoch_written_bytes=written_bytes,
            epoch_reads=apart.reads,
            epoch_seconds=self.seconds(read_bytes, written_bytes, apart),
            fits=self.disk_bytes is None or disk_bytes <= self.disk_bytes,
        )

    def seconds(
        self, read_bytes: int, written_bytes: int, apart: ReadTotals = _NO_READS
    ) -> float | None:
        """Return the seconds of reading and writing; None if the disk was not measured."""
        profile = self.profile
        if profile is None or not profile.is_direct:
            return None
        in_order = profile.sequential_seconds(read_bytes - apart.num_bytes, written_bytes)
        return in_order + apart.seconds_on(profile)

    def scanned(self, superbatch: int) -> int:
        """Return the bytes of an epoch's passes over the tables, one for each superbatch."""
        return -(-self.batches_per_epoch // superbatch) * self.table_bytes

    def per_epoch(self, amount: float, num_batches: int) -> int:
        """Return an amount of some batches, scaled to an epoch."""
        return int(amount * self.batches_per_epoch / max(1, num_batches))

    def chunks(self, misses: npt.NDArray[np.int64]) -> int:
        """Return the bytes of chunks of so many rows each."""
        return sum(int(chunk_bytes(misses, width).sum()) for width in self.row_bytes)


def packed_layout(costs: Costs, misses: npt.NDArray[np.int64], superbatch: int) -> Layout:
    """Return the layout in which each batch has its own rows."""
    records = costs.records_bytes * costs.batches_per_epoch
    num_bytes = records + costs.per_epoch(costs.chunks(misses), len(misses))
    return costs.layout(
        "packed",
        superbatch=superbatch,
        disk_bytes=num_bytes * costs.epochs,
        records_bytes=records * costs.epochs,
        read_bytes=num_bytes,
    )


def segmented_layout(
    costs: Costs,
    missed: Sequence[npt.NDArray[Any]],
    num_table_rows: int,
    segment: int,
    superbatch: int,
) -> Layout:
    """Return the layout in segments, whose shared rows are found and ordered for some batches."""
    tuning = costs.tuning
    assert tuning is not None  # noqa: S101 - where rows are missed, they are read
    stored = own_bytes = num_shared = 0
    apart = ReadTotals()
    for part in segments_of(len(missed), segment):
        batches = [missed[i] for i in part]
        shared = SharedRows.of(batches, num_table_rows)
        stored += sum(shared.num_rows * width for width in costs.row_bytes)
        for rows in batches:
            ranks = shared.find(rows)
            ranks.sort()
            first = int(np.searchsorted(ranks, 0))
            num_shared += len(ranks) - first
            own_bytes += costs.chunks(np.array([first]))
            for width in costs.row_bytes:
                begins = ranks[first:].astype(np.int64) * width
                apart += count_extents(begins, width, DEFAULT_PAGE_BYTES, tuning)
    count = len(missed)
    records = costs.records_bytes * costs.batches_per_epoch
    records += costs.per_epoch(SHARED_BYTES * num_shared, count)
    return costs.layout(
        "segmented",
        segment=segment,
        superbatch=superbatch,
        disk_bytes=(costs.per_epoch(stored + own_bytes, count) + records) * costs.epochs,
        records_bytes=records * costs.epochs,
        read_bytes=costs.per_epoch(own_bytes + apart.num_bytes, count) + records,
        apart=ReadTotals(
            costs.per_epoch(apart.reads, count), costs.per_epoch(apart.num_bytes, count)
        ),
    )


def rolling_layout(
    costs: Costs, batches: Sequence[npt.NDArray[Any]], superbatch: int, num_slots: int
) -> Layout:
    """Return the layout of packing while training, with the same memory and disk."""
    some = list(batches[:_ROLLING_BATCHES])
    size = max(1, min(superbatch, costs.batches_per_epoch))
    for _ in range(2):  # fewer at a time miss more rows, so once more for how many that are
        planner = POLICIES[PACKED.policy].planner(num_slots)
        misses = np.concatenate(
            [np.empty(0, np.int64)]
            + [
                planner.plan(Trace.of(some[first : first + size])).misses
                for first in range(0, len(some), size)
            ]
        )
        chunk = max(1, costs.chunks(misses) // max(1, len(misses)))
        at_once = 1 if size >= costs.batches_per_epoch else _ROLLING_AT_ONCE
        if costs.disk_bytes is not None:
            size = max(1, min(size, costs.disk_bytes // (at_once * chunk)))
    at_once = 1 if size >= costs.batches_per_epoch else _ROLLING_AT_ONCE
    packed = costs.per_epoch(costs.chunks(misses), len(misses))
    return costs.layout(
        "rolling",
        superbatch=size,
        disk_bytes=at_once * size * chunk,
        records_bytes=0,
        read_bytes=costs.scanned(size) + packed,
        written_bytes=packed,
    )
