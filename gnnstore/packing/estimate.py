"""Estimates packing before anything is written: disk space, reads and time."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.caching.segments import Recurrences, search_segment
from gnnstore.features.tables import CachedTables
from gnnstore.strategies.superbatch_memory import epoch_bytes, mean_row_bytes
from gnnstore.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from gnnstore.disk.profile import DeviceProfile
    from gnnstore.packing.job import EpochPacker

# Share of the disk budget from which on a whole superbatch is sampled, to be sure.
_NEARLY = 0.9
# Share of the room that an estimate may fill: batches that were not sampled may miss a little more.
_SAFETY = 0.98
# Bytes of a shared row in the record of a batch: its rank and position.
_SHARED_BYTES = 4


@dataclass(frozen=True)
class PackEstimate:
    """An estimate of the disk space, reads and time that packing takes."""

    batches: int  # of all epochs
    rows_bytes: int
    records_bytes: int  # everything else in the packed epochs
    total_bytes: int
    read_bytes: int  # bytes that are read of the store at most: its tables once for each superbatch
    table_bytes: int  # of the attributes whose rows are packed
    blow_up: float  # total_bytes for each byte of the tables; 0 without tables
    superbatch: int
    num_slots: int  # rows that are cached in training
    cache_bytes: int
    segment: int  # batches that share rows on disk; 1: none do
    seconds: float | None  # reading and writing; None if the disk was not measured

    def check_disk(self, num_bytes: int) -> None:
        """Check that the packed epochs fit a disk budget."""
        shared = f", even with rows shared by {self.segment} batches at a time,"
        Ledger(
            num_bytes,
            (
                Reservation("packed rows", self.rows_bytes),
                Reservation("subgraphs and the rest", self.records_bytes),
            ),
            f"packing{shared if self.segment > 1 else ''}",
            "of disk",
            "--disk",
        ).check(
            {},
            "pack fewer epochs",
            "cache more rows (--memory)",
            "train with strategy='packed', which packs as it trains",
        )

    def describe(self) -> str:
        """Return the estimate in a sentence."""
        time = (
            "" if self.seconds is None else f", in about {format_duration(max(1.0, self.seconds))}"
        )
        times = f", {self.blow_up:.2g} times the store's rows" if self.table_bytes else ""
        shared = f", rows shared by {self.segment:,}" if self.segment > 1 else ""
        return (
            f"about {format_size(self.total_bytes)} on disk{times} ({format_size(self.rows_bytes)} "
            f"of rows, {format_size(self.records_bytes)} of subgraphs and the rest), for "
            f"{format_count(self.batches, 'batch')}, {self.superbatch:,} planned at a time"
            f"{shared}; {format_count(self.num_slots, 'row')} cached "
            f"({format_size(self.cache_bytes)}); up to {format_size(self.read_bytes)} are read of "
            f"the store{time}"
        )


def estimate_packing(packer: EpochPacker, profile: DeviceProfile | None) -> PackEstimate:
    """Sample some batches; let batches share rows if a disk budget asks for it."""
    settings, per_epoch = packer.settings, packer.batches_per_epoch
    epochs, budget, may_choose = settings.epochs, settings.disk_bytes, settings.segment is None
    misses, seen = packer.sampler.sampled
    cached, pools = (
        CachedTables.from_schema(packer.store.schema, packer.tables.keys()),
        packer.pools,
    )
    row_bytes = mean_row_bytes(cached, seen)
    rows, records = epoch_bytes(
        misses,
        seen,
        row_bytes=row_bytes,
        num_slots=packer.num_slots,
        superbatch=packer.superbatch,
        num_batches=per_epoch,
    )
    is_tight = may_choose and budget is not None and epochs * (rows + records) > _NEARLY * budget
    if packer.tables and (is_tight or packer.segment > 1):
        found = _recurrences(packer)
        missed = found.num_missed * per_epoch / max(1, found.num_batches)

        def shared(segment: int) -> tuple[int, int]:
            stored = missed * found.stored_rows(segment) / max(1, found.num_missed)
            # A row that is saved was one of at least two that are shared now.
            places = _SHARED_BYTES * 2 * (missed - stored)
            return int(stored * row_bytes), int(records + places)

        if is_tight and budget is not None:
            most = _SAFETY * budget / epochs
            shortest = search_segment(found, lambda segment: sum(shared(segment)) <= most)
            packer.segment = found.num_batches if shortest is None else shortest
        rows, records = shared(packer.segment)
    rows_bytes = epochs * rows
    if settings.is_fixed:  # they lie there once
        rows_bytes += packer.num_slots * row_bytes
    if (chosen := packer.sampler.sources.chosen) is not None:
        rows_bytes += chosen.num_bytes
    total = rows_bytes + epochs * records
    table_bytes = sum(table.num_rows * table.row_bytes for table in packer.tables.values())
    read_bytes = epochs * -(-per_epoch // packer.superbatch) * table_bytes
    seconds = None
    if profile is not None and profile.is_direct:
        # Packed rows are read back once, for their checksums.
        seconds = profile.sequential_seconds(read_bytes + total, total)
    return PackEstimate(
        batches=epochs * per_epoch,
        rows_bytes=rows_bytes,
        records_bytes=epochs * records,
        total_bytes=total,
        read_bytes=read_bytes,
        table_bytes=table_bytes,
        blow_up=total / table_bytes if table_bytes else 0.0,
        superbatch=packer.superbatch,
        num_slots=packer.num_slots,
        cache_bytes=packer.num_slots * (cached.slot_bytes if pools is None else pools.slot_bytes),
        segment=packer.segment,
        seconds=seconds,
    )


def _recurrences(packer: EpochPacker) -> Recurrences:
    """Sample and plan a superbatch; return how often its batches miss the same rows."""
    with closing(packer.first_superbatch()) as sample:
        missed = packer.collect_misses(sample, packer.packing_memory(sample))
        firsts = [own.first for own in missed.ranges]
        numbers = [
            missed.batch(i) + np.repeat(firsts, counts) for i, counts in enumerate(missed.counts)
        ]
        return Recurrences.from_missed(
            numbers, max(own.first + own.num_rows for own in missed.ranges)
        )
