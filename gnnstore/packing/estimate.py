"""Estimates packing before anything is written: disk space, reads and time.

Some batches are sampled and planned, and three layouts of their rows compared: a row for each batch
that misses it; segments of batches that share rows, as short as a budget of disk allows; and
strategy "packed", which packs a superbatch at a time while it trains, and keeps two superbatches.
"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.caching.segment_search import Recurrences, search_segment
from gnnstore.caching.segments import SharedRows, segments_of
from gnnstore.features.packed.chunks import chunk_bytes
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES
from gnnstore.strategies.predict.reads import ReadTotals, count_extents
from gnnstore.strategies.sizes.packing import epoch_bytes
from gnnstore.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gnnstore.disk.profile import DeviceProfile
    from gnnstore.packing.job import EpochPacker
    from gnnstore.pipeline.superbatch_size import SuperbatchSize
    from gnnstore.strategies.sizes.misses import MissModel

_NO_READS = ReadTotals()
# Enough to tell sizes within a few per cent. The first batches miss a little more than later ones.
_BATCHES = 32
# From this share of the disk budget on, a whole superbatch is sampled to be sure.
_NEARLY = 0.9
# Batches that were not sampled may miss a little more than those that were.
_SAFETY = 0.98
# In the record of a batch that needs a shared row: its rank and position.
_SHARED_BYTES = 4


@dataclass(frozen=True)
class Layout:
    """Estimated disk space and reads of one way to keep the missed rows of batches."""

    name: Literal["packed", "segmented", "rolling"]
    segment: int  # batches that share rows on disk; 1: none do
    superbatch: int  # batches that are planned, and packed, at a time
    disk_bytes: int  # the most at any time
    records_bytes: int  # everything but rows, part of `disk_bytes`
    blow_up: float  # disk_bytes for each byte of the tables
    epoch_read_bytes: int
    epoch_written_bytes: int
    epoch_reads: int  # reads of rows that batches share, which lie apart; all others are in order
    epoch_seconds: float | None  # reading and writing; None if the disk was not measured
    fits: bool  # whether it fits the disk budget

    def describe(self) -> str:
        """Return the layout in a sentence."""
        ahead = f"{self.superbatch:,} batches" if self.superbatch != 1 else "a batch"
        names = {
            "packed": "each batch with rows of its own",
            "segmented": f"segments of {self.segment:,} batches that share rows",
            "rolling": f"strategy='packed' while training, {ahead} at a time",
        }
        apart = f", {self.epoch_reads:,} reads apart" if self.epoch_reads else ""
        written = self.epoch_written_bytes
        seconds = self.epoch_seconds
        return (
            f"{names[self.name]}: {format_size(self.disk_bytes)} on disk "
            f"({self.blow_up:.2g} times the tables), an epoch reads "
            f"{format_size(self.epoch_read_bytes)}{apart}"
            f"{f', {format_size(written)} written' if written else ''}"
            f"{'' if seconds is None else f', {seconds:.2g} s'}"
            f"{'' if self.fits else '; does not fit'}"
        )


@dataclass(frozen=True)
class PackEstimate:
    """An estimate of the disk space, reads and time that packing takes."""

    batches: int  # of all epochs
    sampled_batches: int  # batches that the estimate was made from
    rows_bytes: int
    records_bytes: int  # everything else in the packed epochs
    total_bytes: int
    read_bytes: int  # bytes that are read of the store at most: its tables once for each superbatch
    table_bytes: int  # of the attributes whose rows are packed
    blow_up: float  # total_bytes for each byte of the tables; 0 without tables
    superbatch: int
    num_slots: int  # rows that are cached in training
    cache_bytes: int
    segment: int
    seconds: float | None  # reading and writing; None if the disk was not measured
    layouts: tuple[Layout, ...]  # the chosen one is the last of "packed" and "segmented"

    def check_disk(self, num_bytes: int) -> None:
        """Check that the packed epochs fit a disk budget."""
        shared = f", even with rows shared by {self.segment} batches at a time,"
        rolling = [one for one in self.layouts if one.name == "rolling" and one.fits]
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
            *(f"use {one.describe()}" for one in rolling),
        )

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


def estimate_packing(packer: EpochPacker, profile: DeviceProfile | None) -> PackEstimate:
    """Sample and plan some batches; let batches share rows if a disk budget asks for it."""
    budget = packer.settings.disk_bytes
    found = _estimate(packer, profile, _BATCHES)
    may_share = packer.settings.segment is None and packer.tables
    if budget is not None and may_share and found.total_bytes > _NEARLY * budget:
        found = _estimate(packer, profile, packer.superbatch, budget)
    elif packer.segment > 1:
        found = _estimate(packer, profile, packer.superbatch)
    packer.segment = found.segment
    return found


def _estimate(
    packer: EpochPacker, profile: DeviceProfile | None, most: int, budget: int | None = None
) -> PackEstimate:
    """Estimate from some batches; with a budget, with the shortest segments that fit it."""
    sample = packer.first_batches(packer.make_planner(), most)
    with closing(sample):
        plan, count = sample.planned, sample.planned.num_batches
        records = sum(
            packer.record_bytes(
                sample.samples.read(i), len(plan.batch_changes(i)[0]), int(plan.misses[i])
            )
            for i in range(count)
        )
        shares = packer.shares_of_types(sample)
        misses, epoch_records = plan.misses, records // count * packer.batches_per_epoch
        model = None
        if packer.tables:
            model, seen = packer.miss_model()
            if count < packer.superbatch:  # the first batches of a superbatch miss the most
                sizes = {"num_slots": packer.num_slots, "superbatch": packer.superbatch}
                _, epoch_records = epoch_bytes(model, seen, **sizes)
                missed_rows = model.misses(packer.num_slots, packer.superbatch, initial="nothing")
                each = math.ceil(missed_rows / packer.batches_per_epoch)
                misses = np.full(packer.batches_per_epoch, each)
        costs = _Costs(packer, profile, epoch_records, shares)
        layouts = [costs.packed(misses)]
        if packer.tables and (budget is not None or packer.segment > 1):
            table = packer.collect_misses(sample, packer.packing_memory(sample))
            ends = np.cumsum(table.counts, axis=1)
            parts = [np.split(table.batch(i), ends[i][:-1]) for i in range(count)]
            missed = [[part[t] for part in parts] for t in range(len(table.ranges))]  # by type
            segment = packer.segment
            if budget is not None:
                *firsts, total = np.cumsum([0, *(of.num_rows for of in table.ranges)]).tolist()
                numbers = [np.concatenate(list(map(np.add, part, firsts))) for part in parts]
                segment = costs.shortest_segment(numbers, total, layouts[0], budget)
                del numbers
            if segment > 1:
                layouts.append(costs.segmented(missed, segment))
            del table, missed, parts
        chosen = layouts[-1]
        if model is not None and packer.rolling is not None:
            layouts.append(costs.rolling(model, packer.rolling))
    read_bytes = packer.settings.epochs * costs.scanned(packer.superbatch)
    return PackEstimate(
        batches=packer.settings.epochs * packer.batches_per_epoch,
        sampled_batches=count,
        rows_bytes=chosen.disk_bytes - chosen.records_bytes,
        records_bytes=chosen.records_bytes,
        total_bytes=chosen.disk_bytes,
        read_bytes=read_bytes,
        table_bytes=costs.table_bytes,
        blow_up=chosen.blow_up,
        superbatch=packer.superbatch,
        num_slots=packer.num_slots,
        cache_bytes=packer.num_slots * packer.slot_bytes,
        segment=chosen.segment,
        # Packed rows are read back once, for their checksums.
        seconds=costs.seconds(read_bytes + chosen.disk_bytes, chosen.disk_bytes),
        layouts=tuple(layouts),
    )


class _Costs:
    """Estimates layouts from the rows that some batches miss."""

    def __init__(
        self,
        packer: EpochPacker,
        profile: DeviceProfile | None,
        records_bytes: int,
        shares: Sequence[float],
    ) -> None:
        self._profile = profile
        self._records_bytes = records_bytes  # of an epoch
        self._epochs, self._num_batches = packer.settings.epochs, packer.batches_per_epoch
        self._superbatch, self._budget = packer.superbatch, packer.settings.disk_bytes
        self._tables = list(packer.tables.values())
        self._types = packer.types_of_tables
        self.row_bytes = [table.row_bytes for table in self._tables]
        self._shares = shares  # of missed rows that each table has
        self.table_bytes = sum(table.num_rows * table.row_bytes for table in self._tables)

    def packed(self, misses: npt.NDArray[np.int64]) -> Layout:
        """Return the layout in which each batch has its own rows."""
        num_bytes = self._records_bytes + self._per_epoch(self._chunks(misses), len(misses))
        records = self._records_bytes * self._epochs
        return self._layout("packed", num_bytes * self._epochs, records, num_bytes)

    def shortest_segment(
        self, missed: list[npt.NDArray[Any]], num_rows: int, packed: Layout, budget: int
    ) -> int:
        """Return the shortest segment with which the epochs fit; all batches where none does."""
        records, rows_bytes = packed.records_bytes, packed.disk_bytes - packed.records_bytes
        recurrences = Recurrences.of(missed, num_rows)
        num_missed = recurrences.num_missed * self._num_batches * self._epochs / len(missed)

        def fits(share: float) -> bool:
            # A row that is saved was one of at least two that are shared now.
            shared_bytes = _SHARED_BYTES * 2 * (1 - share) * num_missed
            return records + shared_bytes + share * rows_bytes <= _SAFETY * budget

        found = search_segment(recurrences, fits)
        return len(missed) if found is None else found

    def segmented(self, missed: list[list[npt.NDArray[Any]]], segment: int) -> Layout:
        """Return the layout in segments, with their shared rows found and put in order."""
        tuning, count, apart = self._tables[0].engine.tuning, len(missed[0]), ReadTotals()
        own_bytes = shared_bytes = num_shared = 0
        for of_type, part in product(range(len(missed)), segments_of(count, segment)):
            tables = [t for t, k in zip(self._tables, self._types, strict=True) if k == of_type]
            batches = [missed[of_type][i] for i in part]
            shared = SharedRows.of(batches, tables[0].num_rows)
            shared_bytes += shared.num_rows * sum(table.row_bytes for table in tables)
            for rows in batches:
                ranks = np.sort(shared.find(rows)).astype(np.int64)  # negative: its own rows
                own = int(np.searchsorted(ranks, 0))
                num_shared += len(ranks) - own
                for width in (table.row_bytes for table in tables):
                    own_bytes += int(chunk_bytes(np.array([own]), width).sum())
                    apart += count_extents(ranks[own:] * width, width, DEFAULT_PAGE_BYTES, tuning)
        scale = partial(self._per_epoch, num_batches=count)
        records = self._records_bytes + scale(_SHARED_BYTES * num_shared)
        return self._layout(
            "segmented",
            (scale(shared_bytes + own_bytes) + records) * self._epochs,
            records * self._epochs,
            scale(own_bytes + apart.num_bytes) + records,
            apart=ReadTotals(scale(apart.reads), scale(apart.num_bytes)),
            segment=segment,
        )

    def rolling(self, model: MissModel, rolling: SuperbatchSize) -> Layout:
        """Return the layout of packing while training, with the same memory and disk."""
        size = min(rolling.num_batches, self._num_batches)
        for _ in range(2):  # a shorter superbatch misses more rows: again with its own number
            each = math.ceil(model.misses(rolling.num_slots, size) / self._num_batches)
            chunk = max(1, self._chunks(np.array([each])))
            if self._budget is not None:
                at_once = 1 if size >= self._num_batches else 2
                size = max(1, min(size, self._budget // (at_once * chunk)))
        at_once = 1 if size >= self._num_batches else 2
        written = chunk * self._num_batches
        disk_bytes, read_bytes = at_once * size * chunk, self.scanned(size) + written
        return self._layout("rolling", disk_bytes, 0, read_bytes, written, superbatch=size)

    def _layout(
        self,
        name: Literal["packed", "segmented", "rolling"],
        disk_bytes: int,
        records_bytes: int,
        read_bytes: int,
        written_bytes: int = 0,
        *,
        apart: ReadTotals = _NO_READS,
        segment: int = 1,
        superbatch: int = 0,
    ) -> Layout:
        """Return a layout; what an epoch reads includes reads that lie apart."""
        return Layout(
            name=name,
            segment=segment,
            superbatch=superbatch or self._superbatch,
            disk_bytes=disk_bytes,
            records_bytes=records_bytes,
            blow_up=disk_bytes / self.table_bytes if self.table_bytes else 0.0,
            epoch_read_bytes=read_bytes,
            epoch_written_bytes=written_bytes,
            epoch_reads=apart.reads,
            epoch_seconds=self.seconds(read_bytes, written_bytes, apart),
            fits=self._budget is None or disk_bytes <= self._budget,
        )

    def seconds(
        self, read_bytes: int, written_bytes: int, apart: ReadTotals = _NO_READS
    ) -> float | None:
        """Return the seconds of reading and writing; None if the disk was not measured."""
        profile = self._profile
        if profile is None or not profile.is_direct:
            return None
        in_order = profile.sequential_seconds(read_bytes - apart.num_bytes, written_bytes)
        return in_order + apart.seconds_on(profile)

    def scanned(self, superbatch: int) -> int:
        """Return the bytes of an epoch's passes over the tables, one for each superbatch."""
        return -(-self._num_batches // superbatch) * self.table_bytes

    def _per_epoch(self, amount: int, num_batches: int) -> int:
        return int(amount * self._num_batches / num_batches)

    def _chunks(self, misses: npt.NDArray[np.int64]) -> int:
        """Return the bytes of chunks with some numbers of rows."""
        widths = zip(self.row_bytes, self._shares, strict=True)
        return sum(
            int(chunk_bytes(misses if share == 1 else (misses * share).astype(np.int64), w).sum())
            for w, share in widths
        )
