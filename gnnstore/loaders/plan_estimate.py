"""What a plan will take on disk and in time, from its first batches, before anything is written."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gnnstore.io.packing import packed_bytes
from gnnstore.planning.planners import make_planner
from gnnstore.units import format_duration, format_size

if TYPE_CHECKING:
    from gnnstore.loaders.plan_packing import PlanPacker
    from gnnstore.planning.device_profile import DeviceProfile

# As many as tell sizes within a few per cent. The cache is empty at first, so that what they
# miss is rather more than what later ones do.
_BATCHES = 32


@dataclass(frozen=True)
class PlanEstimate:
    """About what packing takes.

    Attributes
    ----------
    batches : int
        Of all epochs.
    sampled_batches : int
        That this was learnt from.
    rows_bytes, records_bytes : int
        Packed rows, and everything else that is kept of the batches.
    read_bytes : int
        What is read of the store, at most: its tables once for each superbatch.
    table_bytes : int
        Of the attributes whose rows are packed.
    superbatch, num_slots, cache_bytes : int
        Batches planned at a time; rows that are cached, and their bytes, in training too.
    seconds : float or None
        Reading and writing; None if the disk was not measured.
    """

    batches: int
    sampled_batches: int
    rows_bytes: int
    records_bytes: int
    read_bytes: int
    table_bytes: int
    superbatch: int
    num_slots: int
    cache_bytes: int
    seconds: float | None

    @property
    def total_bytes(self) -> int:
        """On disk, in the end."""
        return self.rows_bytes + self.records_bytes

    @property
    def blow_up(self) -> float:
        """Bytes of the plan for each byte of the tables; 0 without tables."""
        return self.total_bytes / self.table_bytes if self.table_bytes else 0.0

    def facts(self) -> dict[str, Any]:
        """Return the estimate as JSON values."""
        return {**asdict(self), "total_bytes": self.total_bytes, "blow_up": self.blow_up}

    def describe(self) -> str:
        """Return the estimate in a sentence."""
        time = "" if self.seconds is None else f", in about {format_duration(self.seconds)}"
        times = f", {self.blow_up:.2g} times the tables" if self.table_bytes else ""
        return (
            f"about {format_size(self.total_bytes)} on disk{times} ({format_size(self.rows_bytes)} "
            f"of rows, {format_size(self.records_bytes)} of subgraphs and the rest), for "
            f"{self.batches:,} batches, {self.superbatch:,} planned at a time; "
            f"{self.num_slots:,} rows cached ({format_size(self.cache_bytes)}); up to "
            f"{format_size(self.read_bytes)} are read of the store{time}"
        )


def estimate_plan(packer: PlanPacker, profile: DeviceProfile | None) -> PlanEstimate:
    """Sample some batches, plan them, and reckon up what all of them take.

    Parameters
    ----------
    profile : DeviceProfile or None
        Of the disk, if it was measured.
    """
    planner = make_planner("packed", packer.num_slots)
    sample = packer.first_batches(planner, _BATCHES)
    with closing(sample.kept):
        plan, count = sample.plan, sample.plan.num_batches
        rows = packed_bytes(packer.tables, plan.misses)
        records = sum(
            packer.record_bytes(
                sample.kept.get(i), len(plan.batch_changes(i)[0]), int(plan.misses[i])
            )
            for i in range(count)
        )
    batches = packer.settings.epochs * packer.batches_per_epoch
    rows_bytes, records_bytes = rows * batches // count, records * batches // count
    table_bytes = sum(table.num_rows * table.row_bytes for table in packer.tables.values())
    per_epoch = -(-packer.batches_per_epoch // packer.superbatch)
    read_bytes = packer.settings.epochs * per_epoch * table_bytes
    seconds = None
    if profile is not None and profile.is_direct:
        # What was written is read back once, for its checksums.
        written = rows_bytes + records_bytes
        seconds = (read_bytes + written) / profile.sequential_read_bytes_per_second
        seconds += written / profile.sequential_write_bytes_per_second
    row_bytes = sum(table.row_bytes for table in packer.tables.values())
    return PlanEstimate(
        batches=batches,
        sampled_batches=count,
        rows_bytes=rows_bytes,
        records_bytes=records_bytes,
        read_bytes=read_bytes,
        table_bytes=table_bytes,
        superbatch=packer.superbatch,
        num_slots=packer.num_slots,
        cache_bytes=packer.num_slots * row_bytes,
        seconds=seconds,
    )
