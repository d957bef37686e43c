"""Estimates the disk space and time of a plan from its first batches, before anything is written.

Where a budget of disk is too small for packing, this is also where the batches are found that have
to share rows: as few as the budget allows.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.caching.segment_search import Recurrences, search_segment
from gnnstore.features.packed.misses import collect_misses
from gnnstore.packing.compression import CompressionChoice, choose_compression
from gnnstore.packing.layouts import (
    SHARED_BYTES,
    Costs,
    Layout,
    packed_layout,
    rolling_layout,
    segmented_layout,
)
from gnnstore.sampling.row_space import RowRange
from gnnstore.units import format_duration, format_size

if TYPE_CHECKING:
    import numpy.typing as npt

    from gnnstore.disk.profile.device_profile import DeviceProfile
    from gnnstore.packing.job import PlanPacker
    from gnnstore.packing.sampling import PlannedSuperbatch

# As many as tell sizes within a few per cent. The cache is empty at first, so that what they
# miss is rather more than what later ones do.
_BATCHES = 32
# From this share of the budget on, a whole superbatch is sampled to be sure.
_NEARLY = 0.9
# Batches that were not sampled may miss a little more than those that were.
_SAFETY = 0.98


@dataclass(frozen=True)
class PlanEstimate:
    """An estimate of the disk space, reads and time that packing takes."""

    batches: int  # of all epochs
    sampled_batches: int  # batches that the estimate was made from
    rows_bytes: int  # packed rows, and everything else that is kept of the batches
    records_bytes: int  # packed rows, and everything else that is kept of the batches
    read_bytes: int  # bytes that are read of the store at most: its tables once for each superbatch
    table_bytes: int  # of the attributes whose rows are packed
    # Batches planned at a time; rows that are cached, and their bytes, in training too.
    superbatch: int
    # Batches planned at a time; rows that are cached, and their bytes, in training too.
    num_slots: int
    # Batches planned at a time; rows that are cached, and their bytes, in training too.
    cache_bytes: int
    segment: int  # batches that share rows on disk; 1: each has its own
    seconds: float | None  # reading and writing; None if the disk was not measured
    # Packing without segments, with them if there are to be some, and packing while training.
    layouts: tuple[Layout, ...] = ()
    compression: CompressionChoice | None = None  # the choice, where it was left to the estimate

    @property
    def total_bytes(self) -> int:
        """Bytes of the finished plan on disk."""
        return self.rows_bytes + self.records_bytes

    @property
    def blow_up(self) -> float:
        """Bytes of the plan for each byte of the tables; 0 without tables."""
        return self.total_bytes / self.table_bytes if self.table_bytes else 0.0

    def check_disk(self, num_bytes: int) -> None:
        """Check that the plan fits a budget of disk."""
        shared = f", even with rows shared by {self.segment} batches at a time,"
        rolling = next((layout for layout in self.layouts if layout.name == "rolling"), None)
        Ledger(
            num_bytes,
            (
                Reservation("packed rows", self.rows_bytes),
                Reservation("subgraphs and the rest", self.records_bytes),
            ),
            f"the plan{shared if self.segment > 1 else ''}",
            "of disk",
            "--disk",
        ).check(
            {},
            "pack fewer epochs",
            "cache more rows (--memory)",
            *([] if rolling is None or not rolling.fits else [f"use {rolling.describe()}"]),
        )

    def facts(self) -> dict[str, Any]:
        """Return the estimate as JSON values."""
        return {**asdict(self), "total_bytes": self.total_bytes, "blow_up": self.blow_up}

    def describe(self) -> str:
        """Return the estimate in a sentence."""
        time = "" if self.seconds is None else f", in about {format_duration(self.seconds)}"
        times = f", {self.blow_up:.2g} times the tables" if self.table_bytes else ""
        shared = f", rows shared by {self.segment:,}" if self.segment > 1 else ""
        return (
            f"about {format_size(self.total_bytes)} on disk{times} ({format_size(self.rows_bytes)} "
            f"of rows, {format_size(self.records_bytes)} of subgraphs and the rest), for "
            f"{self.batches:,} batches, {self.superbatch:,} planned at a time{shared}; "
            f"{self.num_slots:,} rows cached ({format_size(self.cache_bytes)}); up to "
            f"{format_size(self.read_bytes)} are read of the store{time}"
        )

    def describe_choices(self) -> list[str]:
        """Return a sentence for each way to keep the rows, and one on compressing them."""
        said = [layout.describe() for layout in self.layouts]
        if self.compression is not None:
            name = self.compression.compression or "not worth it"
            said.append(f"compression: {name} ({self.compression.reason})")
        return said


def estimate_plan(
    packer: PlanPacker, profile: DeviceProfile | None, *, must_fit: bool = True
) -> PlanEstimate:
    """Sample some batches, plan them, and reckon up what all of them take."""
    settings, budget = packer.settings, packer.settings.disk_bytes
    found = _estimate(packer, profile, _BATCHES)
    shares = settings.segment is None and budget is not None and bool(packer.tables)
    if budget is not None and shares and found.total_bytes > _NEARLY * budget:
        found = _estimate(packer, profile, packer.superbatch, budget)
        if must_fit:
            found.check_disk(budget)
    elif packer.segment > 1:
        found = _estimate(packer, profile, packer.superbatch)
    packer.segment = found.segment
    if settings.compress != "auto":
        return found
    choice = choose_compression(packer, profile)
    packer.compression = choice.compression
    return replace(found, compression=choice)


def _estimate(
    packer: PlanPacker, profile: DeviceProfile | None, most: int, budget: int | None = None
) -> PlanEstimate:
    """Estimate from some batches; with a budget, with the shortest segments that fit it."""
    sample = packer.first_batches(packer.make_planner(), most)
    with closing(sample):
        plan, count = sample.plan, sample.plan.num_batches
        records = sum(
            packer.record_bytes(
                sample.sampled.subgraph(i), len(plan.batch_changes(i)[0]), int(plan.misses[i])
            )
            for i in range(count)
        )
        costs = Costs(
            row_bytes=tuple(table.row_bytes for table in packer.tables.values()),
            table_bytes=sum(t.num_rows * t.row_bytes for t in packer.tables.values()),
            batches_per_epoch=packer.batches_per_epoch,
            epochs=packer.settings.epochs,
            records_bytes=records // count,
            disk_bytes=packer.settings.disk_bytes,
            tuning=next((t.engine.tuning for t in packer.tables.values()), None),
            profile=profile,
        )
        layouts = [packed_layout(costs, plan.misses, packer.superbatch)]
        segment = packer.segment
        if packer.tables and (budget is not None or segment > 1):
            missed, num_rows = _missed_rows(packer, sample)
            if budget is not None:
                segment = _shortest(missed, num_rows, layouts[0], costs, budget)
            if segment > 1:
                layout = segmented_layout(costs, missed, num_rows, segment, packer.superbatch)
                layouts.append(layout)
            del missed
        chosen = layouts[-1]
        if packer.tables and packer.rolling is not None:
            batches = [sample.trace.batch(i) for i in range(min(count, _BATCHES))]
            rolling = rolling_layout(costs, batches, *packer.rolling)
            layouts.append(rolling)
    return _of_layout(packer, costs, chosen, tuple(layouts), count)


def _of_layout(
    packer: PlanPacker, costs: Costs, chosen: Layout, layouts: tuple[Layout, ...], sampled: int
) -> PlanEstimate:
    batches = costs.epochs * costs.batches_per_epoch
    records_bytes = chosen.records_bytes
    read_bytes, written_bytes = costs.epochs * costs.scanned(packer.superbatch), chosen.disk_bytes
    return PlanEstimate(
        batches=batches,
        sampled_batches=sampled,
        rows_bytes=chosen.disk_bytes - records_bytes,
        records_bytes=records_bytes,
        read_bytes=read_bytes,
        table_bytes=costs.table_bytes,
        superbatch=packer.superbatch,
        num_slots=packer.num_slots,
        cache_bytes=packer.num_slots * sum(costs.row_bytes),
        segment=chosen.segment,
        # Packed rows are read back once, for their checksums.
        seconds=costs.seconds(read_bytes + written_bytes, written_bytes),
        layouts=layouts,
    )


def _missed_rows(
    packer: PlanPacker, sample: PlannedSuperbatch
) -> tuple[list[npt.NDArray[Any]], int]:
    """Return the distinct rows that each batch misses, ascending; and the rows of the tables."""
    num_rows = next(iter(packer.tables.values())).num_rows
    missed = collect_misses(
        sample.trace,
        sample.plan,
        [RowRange(0, num_rows)],
        memory_bytes=packer.packing_memory(sample),
        num_threads=packer.settings.num_threads,
    )
    count = sample.plan.num_batches
    return [missed.batch(i) for i in range(count)], num_rows


def _shortest(
    missed: list[npt.NDArray[Any]], num_rows: int, packed: Layout, costs: Costs, budget: int
) -> int:
    """Return the shortest segment with which a plan fits; of all batches where none does."""
    records = costs.records_bytes * costs.batches_per_epoch * costs.epochs
    rows_bytes = packed.disk_bytes - records
    recurrences = Recurrences.of(missed, num_rows)
    batches = costs.batches_per_epoch * costs.epochs
    num_missed = recurrences.num_missed * batches / max(1, len(missed))

    def fits(share: float) -> bool:
        # A row that is spared was one of two at least that are shared now.
        shared_bytes = SHARED_BYTES * 2 * (1 - share) * num_missed
        return records + shared_bytes + share * rows_bytes <= _SAFETY * budget

    found = search_segment(recurrences, fits)
    return len(missed) if found is None else found
