"""Divides a budget between batches in flight, sampling threads, cached rows and their plans.

Each division has a price: the bytes that an epoch moves, twice as many where one thread prepares
all batches. Divisions differ in the length of superbatches, from some epochs to two batches; in
where samples and plans wait, in memory or on disk; in rows that are pinned, pools of slots, and the
batches in flight. Cached rows get the rest of the memory, and the cheapest division is taken. Rates
of the machine play no part, so that sizes are the same in every run; and since more memory leaves
every division possible, it never raises the price. Predictions and loaders are solved alike.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gnnstore.budget.ledger import IN_FLIGHT, PLANNED, SLOTS, Ledger, Reservation
from gnnstore.caching.belady import POLICIES
from gnnstore.caching.policies import MAX_PLANNED
from gnnstore.caching.pools import SlotPools, pooled
from gnnstore.errors import BudgetError, DiskBudgetError
from gnnstore.features.chunks import CHUNK_STAGING_BYTES
from gnnstore.features.pack import PackedBatch
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.pipeline.lookahead.presample import MARGIN, MOST_MARGIN, with_margin
from gnnstore.pipeline.lookahead.producer import warms_up
from gnnstore.pipeline.lookahead.superbatch import SuperbatchSize
from gnnstore.strategies.placement import check_two_batches, prefetch_wish, with_batches
from gnnstore.strategies.superbatch_memory import SuperbatchMemory
from gnnstore.strategies.workload import ReadTotals
from gnnstore.threads import LONG_READ_BYTES

if TYPE_CHECKING:
    from gnnstore.pipeline.lookahead.ordering import Windows
    from gnnstore.pipeline.lookahead.presample import Presampled
    from gnnstore.strategies.options import PlannedSettings, StrategyTraits
    from gnnstore.strategies.placement import Placement
    from gnnstore.strategies.superbatch_memory import MissModel

# Epochs that a superbatch may have, if their batches are known. With twice as many the tables are
# read half as often; but training may stop before it uses all packed rows, so that several epochs
# must cost less than this share of one.
_EPOCHS, _WORTH_LENGTHENING = (2, 4), 0.9
# Share of the slots for pinned rows.
_PINNED_SHARE = 1 / 2
# The price of planning a row, in bytes, and the least price of a read.
_PLANNING_BYTES, _LEAST_READ_BYTES = 20, 4096
# With pinned rows, the largest share of a batch's rows that may be left to plan: the index of
# pinned rows takes a little more than a bit for each node of the graph.
_MOST_PLANNED = 0.9
# Time of packing and reading rows by turns, over the time of doing both at once: on F an epoch
# takes 48 s in one superbatch, and 35 s in two, although these read the tables twice.
_BY_TURNS = 1.5
_NO_LIMIT = 2**62
# The price of a byte where one thread samples and assembles all batches.
_ONE_THREAD = 2
# One part in so many of free memory is used if memory= is not set: the model's needs are unknown.
_UNPROMISED_SHARE = 2
# Bytes of a plan for each node of a batch: its slot, and the change that brings it into one.
_STEP_BYTES = 4 + 8
_POSITION_BYTES = 4
# One part in so many of the memory is for sampling batches together, where in-neighbours are on
# disk: each hop is read in one pass, and more memory makes fewer passes.
_BULK_SHARE = 8
# Bytes of a batch that is sampled with others, in bytes of its ids, and at least.
_BULK_FACTOR, _BULK_LEAST_BYTES = 8, 1 << 16
# One batch in so many of a superbatch comes without a plan, while the others are sampled: reading
# all of its rows takes about as long.
_UNPLANNED_SHARE = 64
# Bytes that are read in the time of sampling and planning a row.
_ROW_WORK_BYTES = 128
# Names of a phase and of a part of the memory.
_SAMPLING, _TOGETHER = "sampling", "sampling batches together"


@dataclass(frozen=True, eq=False)
class SizingInputs:
    """The facts by which the budget of a strategy that plans ahead is divided."""

    placement: Placement
    seen: Presampled
    misses: MissModel | None  # None if no rows are read
    settings: PlannedSettings
    num_rows: int  # rows of the tables that are cached together
    row_bytes: int  # bytes of a node's rows in these tables
    pools: SlotPools | None  # of slots of several widths
    epoch_batches: int
    # Bytes of the orders of later epochs, for each batch; None if their batches are not known.
    order_bytes: int | None
    # Preparing threads; fewer will be started if staging memory is for fewer.
    num_threads: int
    may_use_fewer: bool  # whether one thread may be used if memory is short
    staging_bytes: int  # memory of a thread that reads; 0: nothing is read
    reads_neighbors: bool  # whether in-neighbours are read from disk
    samples_slowly: bool  # whether sampling may wait for a disk
    reads_more: bool  # whether rows of other tables are read one by one
    # Disk for packed rows, and for traces and plans that do not fit in memory.
    disk_bytes: int
    edges_bytes: int = 0  # memory for each planned batch, of rows of edges that are read ahead
    windows: Windows | None = None  # a superbatch has only whole ones

    @property
    def strategy(self) -> StrategyTraits:
        """The strategy."""
        return self.placement.strategy

    @property
    def packs(self) -> bool:
        """Whether missed rows are packed."""
        return self.strategy.packs and self.row_bytes > 0

    @property
    def is_long(self) -> bool:
        """Whether reading the tables once takes long."""
        return self.num_rows * self.row_bytes >= LONG_READ_BYTES


@dataclass(frozen=True)
class Solved:
    """The division of a budget."""

    placement: Placement  # with staging memory for `num_threads`
    num_threads: int
    size: SuperbatchSize
    disk_bytes: int  # disk space that superbatches take
    price: float = 0.0  # bytes that an epoch moves, weighted; infinite where the disk is too small


def solve(facts: SizingInputs) -> Solved:
    """Return the cheapest sizes."""
    pools = dict.fromkeys((facts.pools, None))
    solutions: list[Solved] = []
    refusals: list[BudgetError] = []
    # Without a promise, batches in flight are not counted.
    for is_thrifty in (False, True) if facts.placement.budget_is_promise else (False,):
        for divided in pools:
            try:
                solutions.append(Sizer(replace(facts, pools=divided), is_thrifty).solve())
            except BudgetError as error:
                refusals.append(error)
    if solutions:
        return min(solutions, key=lambda solved: solved.price)
    # If memory suffices and disk does not, disk is what to raise.
    disk_refusals = [error for error in refusals if isinstance(error, DiskBudgetError)]
    raise min(disk_refusals or refusals, key=lambda error: error.missing_bytes or 0)


@dataclass(frozen=True)
class _Storage:
    """Where the samples and the plans of superbatches wait."""

    keeps_samples: bool  # in memory; else on disk
    keeps_plans: bool


@dataclass(frozen=True, eq=False)
class Sizer:
    """A budget that is divided for several threads, or thriftily for one."""

    facts: SizingInputs
    is_thrifty: bool = False

    def solve(self) -> Solved:
        """Divide the budget."""
        facts, memory = self.facts, self._ledger
        sampling = self._sampling(memory)
        memory = memory.add(*sampling)
        # What is refused does not depend on a sample, which may be small where memory is.
        least = self.costs, self._least(memory)
        sizes = list(self._candidates(memory))
        costs, size = min(sizes, key=lambda each: self._price(*each), default=least)
        price = self._price(costs, size)
        disk = self._disk(costs, size)
        if disk.left() < 0:  # so none fits
            disk = min((self._disk(*each) for each in sizes), key=Ledger.peak, default=disk)
        if facts.packs and disk.left() < 0:
            remedies = ["name a roomier spill_dir=", "choose strategy='belady'"]
            if size.num_batches > facts.epoch_batches:  # as the user has set
                remedies.insert(0, "lower superbatch=")
            raise disk.refusal(None, *remedies, error=DiskBudgetError)
        size = replace(
            size,
            reservations=(*sampling, *size.reservations),
            bulk_bytes=sum(r.fixed for r in sampling if r.what == _TOGETHER),
            sampling_threads=self._sampling_threads if self._num_threads else None,
            overlaps=self._overlaps(size, disk),
            num_unplanned=self._num_unplanned(min(size.num_batches, facts.epoch_batches)),
        )
        return Solved(self._placed, self._num_threads, size, disk.peak(), price)

    # --- what is always used -----------------------------------------------------------------

    def _expected(self, largest: int) -> int:
        """Return the size to expect of a batch, from the largest one seen."""
        most = MOST_MARGIN if self.is_thrifty else MARGIN
        return with_margin(largest, min(most, self.facts.seen.margin))

    @cached_property
    def costs(self) -> SuperbatchMemory:
        """The costs of superbatches in which batches miss all of their rows."""
        facts, seen = self.facts, self.facts.seen
        batch_nodes = self._expected(seen.largest_nodes)
        id_bytes = id_dtype(facts.num_rows - 1).itemsize
        packed = PackedBatch(batch_nodes, batch_nodes, batch_nodes, id_bytes)
        return SuperbatchMemory(
            num_rows=facts.num_rows,
            row_bytes=facts.row_bytes,
            batch_nodes=batch_nodes,
            id_bytes=id_bytes,
            kept_bytes=self._expected(seen.largest_kept_bytes),
            labels_bytes=self._expected(seen.largest_labels_bytes),
            edges_bytes=facts.edges_bytes,
            packed=packed if facts.packs else None,
            policy=pooled(POLICIES[facts.strategy.policy], facts.pools),
            pools=facts.pools,
            epoch_batches=facts.epoch_batches,
        )

    @property
    def _num_threads(self) -> int:
        """Threads that prepare batches."""
        facts = self.facts
        if self.is_thrifty and facts.may_use_fewer:
            return 1
        if not facts.staging_bytes:
            return facts.num_threads
        affordable = facts.placement.staging_bytes // facts.staging_bytes
        return max(1, min(facts.num_threads, affordable))

    @property
    def _sampling_threads(self) -> int:
        """Threads that sample ahead: one more than processors helps only if they wait."""
        if self.facts.samples_slowly:
            return self._num_threads
        return min(self._num_threads, len(os.sched_getaffinity(0)))

    @property
    def _placed(self) -> Placement:
        """The placement, with staging memory for the threads that there are."""
        facts, placement = self.facts, self.facts.placement
        if not self.is_thrifty:
            return placement
        if facts.may_use_fewer and facts.staging_bytes:
            placement = placement.with_staging(facts.staging_bytes)
        threads = "one thread, and " if facts.may_use_fewer else ""
        return placement.because(f"{threads}no batch that waits, for memory= has no room for more")

    def _num_unplanned(self, num_batches: int) -> int:
        """Return the batches that come without a plan while `num_batches` batches are made."""
        facts = self.facts
        work_bytes = num_batches * facts.seen.largest_nodes * _ROW_WORK_BYTES
        # If memory is short, there is none for reading rows in two ways.
        if self.is_thrifty or facts.num_rows * facts.row_bytes + work_bytes < LONG_READ_BYTES:
            return 0
        return -(-max(1, num_batches // _UNPLANNED_SHARE) // self._window) * self._window

    @property
    def _ledger(self) -> Ledger:
        """The memory with batches in flight, and all other memory that is always used."""
        seen, memory = self.facts.seen, self._placed.ledger
        if not self.facts.placement.budget_is_promise:
            left = memory.left()
            kept = Reservation("a model and batches in flight", left - left // _UNPROMISED_SHARE)
            return memory.add(kept)
        batch_bytes = self._expected(seen.largest_bytes + _STEP_BYTES * seen.largest_nodes)
        check_two_batches(memory, batch_bytes)
        in_flight = 2 * batch_bytes
        if not self.is_thrifty:
            sample_bytes = self._expected(seen.largest_ids_bytes)
            wish = prefetch_wish(memory.left(), batch_bytes, sample_bytes, self._num_threads)
            in_flight = with_batches(memory).solve(wish)[IN_FLIGHT]
        return memory.add(Reservation("batches in flight", in_flight))

    def _sampling(self, memory: Ledger) -> list[Reservation]:
        """Return the memory of threads that sample, and of threads that read packed rows."""
        facts, seen, num_threads = self.facts, self.facts.seen, self._num_threads
        ids_bytes = self._expected(seen.largest_ids_bytes)
        reservations: list[Reservation] = []
        reads_unplanned = self._num_unplanned(facts.epoch_batches) > 0
        if facts.placement.budget_is_promise:
            if facts.reads_neighbors:
                # One thread fetches in-neighbours; batches are sampled together, in memory that is
                # counted separately.
                staging = Reservation("staging for in-neighbours", facts.staging_bytes)
                reservations.append(staging)
            else:
                # The sampler's result; as much while it is sampled; and as much until it is kept in
                # half the memory.
                sampled = self._sampling_threads * 3 * ids_bytes
                what = "subgraphs as they are sampled"
                reservations.append(Reservation(what, sampled, phase=_SAMPLING))
            if facts.packs:
                # Packed rows have a separate reader, in place of the other one if nothing else is
                # read, not even at first; and a position for each row.
                spared = 0 if facts.reads_more or reads_unplanned else self._placed.staging_bytes
                reading = max(0, num_threads * CHUNK_STAGING_BYTES - spared)
                reading += num_threads * _POSITION_BYTES * self._expected(seen.largest_nodes)
                reservations.append(Reservation("reading packed rows", reading))
            elif reads_unplanned:
                # A reader keeps its buffers for the next read.
                filling = "filling the cache in the background"
                reservations.append(Reservation(filling, facts.staging_bytes))
        if facts.windows is not None:
            nodes = self._expected(seen.largest_nodes)
            reservations.append(facts.windows.reserve(self._sampling_threads, nodes, _SAMPLING))
        if facts.reads_neighbors:
            # No more than for all batches of an epoch.
            batch_bytes = _BULK_FACTOR * ids_bytes + _BULK_LEAST_BYTES
            most = (facts.epoch_batches + num_threads) * batch_bytes
            bulk_bytes = min(most, max(0, memory.add(*reservations).left()) // _BULK_SHARE)
            reservations.append(Reservation(_TOGETHER, bulk_bytes, phase=_SAMPLING))
        return reservations

    # --- the sizes that are compared ---------------------------------------------------------

    @property
    def _storages(self) -> list[_Storage]:
        """Where samples and plans may wait, of equal ones the best first."""
        may_spill = self.costs.policy.spills and self.facts.row_bytes > 0
        plans = (True, False) if may_spill else (True,)
        return [_Storage(samples, keeps) for keeps in plans for samples in (True, False)]

    def _least(self, memory: Ledger) -> SuperbatchSize:
        """Return the smallest size; refuse memory that has no room for it."""
        missing: dict[_Storage, int] = {}
        for storage in reversed(self._storages):
            try:
                return self._size(memory, self.costs, self._counts[0], storage)
            except DiskBudgetError:
                continue  # plans can be in memory
            except BudgetError as error:
                missing[storage] = error.missing_bytes or 0
        storage = min(missing, key=missing.__getitem__)
        return self._size(memory, self.costs, self._counts[0], storage, self._remedies)

    @property
    def _remedies(self) -> list[str]:
        """What to do where no size fits: lower an option of which a small value does."""
        facts, settings, windows = self.facts, self.facts.settings, self.facts.windows
        ledger = facts.placement.ledger
        ledger = replace(ledger.with_limit(ledger.limit - ledger.trial_bytes), trial_bytes=0)
        facts = replace(facts, placement=replace(facts.placement, ledger=ledger))
        lower: dict[str, SizingInputs] = {}
        if settings.cache_bytes is not None:
            lower["cache_bytes="] = replace(facts, settings=replace(settings, cache_bytes=0))
        if windows is not None and windows.size > 1:
            lower["reorder="] = replace(facts, windows=replace(windows, size=1))
        shortest = replace(settings, num_batches=self._window)
        lower["superbatch="] = replace(facts, settings=shortest)
        return [
            f"lower {option}"
            for option, other in lower.items()
            if Sizer(other, self.is_thrifty)._has_size
        ]

    @property
    def _has_size(self) -> bool:
        """Whether the smallest size fits."""
        with suppress(BudgetError):
            memory = self._ledger
            memory = memory.add(*self._sampling(memory))
            for storage in self._storages:
                with suppress(BudgetError):
                    self._size(memory, self.costs, self._counts[0], storage)
                    return True
        return False

    def _candidates(self, memory: Ledger) -> Iterator[tuple[SuperbatchMemory, SuperbatchSize]]:
        """Yield sizes, of equal ones the best first: of the longest superbatches."""
        for length in self._lengths:
            for storage in self._storages:
                try:
                    costs, size = self._sized(memory, self.costs, length, storage)
                except BudgetError:
                    continue
                yield costs, size
                # Not over several epochs, which need many rows and few passes.
                pinned = self._with_pins(size) if length <= self.facts.epoch_batches else None
                if pinned is not None:
                    with suppress(BudgetError):
                        yield self._sized(memory, pinned, length, storage)

    @property
    def _lengths(self) -> list[int]:
        """The numbers of batches to try, the longest first: some epochs, one, and parts of it."""
        counts, epoch = self._counts, self.facts.epoch_batches
        if len(counts) == 1:
            return [*counts]
        parts = [2, 3, *(k << n for n in range(counts[-1].bit_length()) for k in (4, 5, 6, 7))]
        found = {counts[0], counts[-1], *(n for k in parts if (n := -(-epoch // k)) in counts)}
        found = {*map(self._whole, found)}
        if self.facts.is_long:
            found.update(self._several)
        return sorted(found, reverse=True)

    @property
    def _counts(self) -> range:
        """The numbers of batches, of one epoch at most unless the user set one."""
        facts, given = self.facts, self.facts.settings.num_batches
        most = max(1, min(facts.epoch_batches, MAX_PLANNED))
        if given is not None:
            most = self._whole(min(given, most))
            only = max((n for n in self._several if n <= given), default=most)
            return range(only, only + 1)
        return range(min(max(2, self._window), most), most + 1)

    @property
    def _window(self) -> int:
        """The batches of a window."""
        return 1 if self.facts.windows is None else self.facts.windows.size

    def _whole(self, num_batches: int) -> int:
        """Return the batches of a superbatch that holds whole windows, or an epoch's."""
        is_epoch = num_batches == self.facts.epoch_batches
        return num_batches if is_epoch else num_batches - num_batches % self._window

    @property
    def _several(self) -> list[int]:
        """The batches of superbatches of several epochs; none unless they may share passes."""
        facts, epoch = self.facts, self.facts.epoch_batches
        is_known = facts.order_bytes is not None and not facts.strategy.is_offline
        if not (facts.packs and is_known) or self.is_thrifty:
            return []
        return [n for k in _EPOCHS if 1 < (n := k * epoch) <= MAX_PLANNED]

    def _with_pins(self, size: SuperbatchSize) -> SuperbatchMemory | None:
        """Return costs with pinned rows, if the cache is warmed up and memory is not short."""
        facts, model = self.facts, self.facts.misses
        policy = POLICIES[facts.strategy.policy]
        is_part = 0 < size.num_slots < facts.num_rows and not self.is_thrifty
        warms = warms_up(policy, size, facts.num_rows, packs=facts.strategy.packs)
        if model is None or not is_part or facts.pools is not None or not warms:
            return None
        pins = model.pins(int(_PINNED_SHARE * size.num_slots))
        if pins is None or pins.planned_share > _MOST_PLANNED:
            return None
        return replace(self.costs, pins=pins)

    # --- the size of a length ----------------------------------------------------------------

    def _sized(
        self, memory: Ledger, costs: SuperbatchMemory, num_batches: int, storage: _Storage
    ) -> tuple[SuperbatchMemory, SuperbatchSize]:
        """Return a size, and the costs with the rows that it misses."""
        try:
            size = self._size(memory, costs, num_batches, storage)
        except BudgetError:
            # Batches that miss all rows are the worst case, and may not fit.
            size = SuperbatchSize(num_batches, costs.num_pinned, storage.keeps_samples)
        for _ in range(2):
            costs, before = self._expecting(costs, size), size
            size = self._size(memory, costs, num_batches, storage)
            if size.num_slots == before.num_slots:  # so that the misses stay the same
                break
        return costs, size

    def _expecting(self, costs: SuperbatchMemory, size: SuperbatchSize) -> SuperbatchMemory:
        """Return the costs with the misses to expect of a size."""
        model = self.facts.misses
        if model is None:
            return costs
        first = later = self._misses(size)
        if self.facts.packs:  # the cache is filled by the first batches
            first = model.misses(size.num_slots, size.num_batches, initial="nothing")
        kept = size.num_planned_slots * -(-self.facts.epoch_batches // size.num_batches)
        return costs.with_misses(first, later, model.accesses, kept, self._expected)

    def _misses(self, size: SuperbatchSize) -> float:
        """Return the rows that an epoch misses, in the middle of a run."""
        model = self.facts.misses
        if model is None:
            return 0.0
        return model.misses(size.num_slots, size.num_batches, num_pinned=size.num_pinned)

    def _price(self, costs: SuperbatchMemory, size: SuperbatchSize) -> float:
        """Return the bytes that an epoch moves, weighted."""
        facts, model = self.facts, self.facts.misses
        missed, spilled = self._misses(size), 2 * facts.epoch_batches * costs.spilled_bytes(size)
        if facts.packs:
            disk = self._disk(costs, size)
            if disk.left() < 0:
                return math.inf
            # Each superbatch reads the tables in a pass; and packed rows are written and read.
            passes = facts.epoch_batches / size.num_batches
            scanned = ReadTotals() if model is None else model.pass_reads(missed, size.num_batches)
            moved = passes * (scanned.num_bytes + _LEAST_READ_BYTES * scanned.reads)
            moved += 2 * missed * facts.row_bytes
            if size.num_batches > facts.epoch_batches:
                moved /= _WORTH_LENGTHENING
            if not self._overlaps(size, disk):
                moved *= _BY_TURNS
        else:
            moved = missed * max(_LEAST_READ_BYTES, facts.row_bytes)
            if model is not None:
                share = 1.0 if costs.pins is None else costs.pins.planned_share
                moved += _PLANNING_BYTES * share * model.accesses
        return (_ONE_THREAD if self.is_thrifty else 1) * (moved + spilled)

    def _size(
        self,
        memory: Ledger,
        costs: SuperbatchMemory,
        num_batches: int,
        storage: _Storage,
        remedies: Sequence[str] = (),
    ) -> SuperbatchSize:
        """Return a superbatch of `num_batches` batches, with the cache that fits next to it."""
        facts = self.facts
        # With `gnnstore pack`, plans on disk are small next to the packed rows.
        disk_bytes = _NO_LIMIT if facts.strategy.is_offline else facts.disk_bytes
        on_disk = Ledger(disk_bytes, tuple(costs.spilled_on_disk(num_batches)))
        costs, left = costs.of_length(num_batches), memory.left()
        sizes, kept_memory = {PLANNED: num_batches}, memory
        if facts.order_bytes is not None and num_batches > facts.epoch_batches:
            memory = memory.add(
                Reservation("orders of later epochs", 0, {PLANNED: facts.order_bytes})
            )
        kept = [costs.samples] * storage.keeps_samples
        if storage.keeps_plans:
            table, parts, packing = 0, costs.in_memory, costs.packing
        else:
            if on_disk.left() < 0:
                raise on_disk.refusal(error=DiskBudgetError)
            table = costs.table_bytes(left)
            parts, packing = costs.spilled(table), costs.spilled_packing
        ledger = memory.add(*parts, *kept)
        sizes[SLOTS] = self._slots(ledger, costs, sizes)
        ledger.check(sizes, *remedies)
        return SuperbatchSize(
            num_batches,
            sizes[SLOTS] + costs.num_pinned,
            storage.keeps_samples,
            reservations=ledger.reservations[len(kept_memory.reservations) :],
            packing_bytes=Ledger(0, tuple(packing)).peak(sizes),
            table_bytes=table,
            num_pinned=costs.num_pinned,
            pools=costs.pools,
        )

    def _slots(self, ledger: Ledger, costs: SuperbatchMemory, sizes: dict[str, int]) -> int:
        """Return the number of rows to cache next to pinned ones; 0 if no table is read."""
        given = self.facts.settings.cache_bytes
        if costs.row_bytes == 0:
            return 0
        most = costs.num_rows - costs.num_pinned
        if given is None:
            return ledger.largest(SLOTS, sizes, most)
        return min(most, max(0, given - costs.pinned_bytes) // ledger.bytes_each(SLOTS))

    def _overlaps(self, size: SuperbatchSize, disk: Ledger) -> bool:
        """Whether two superbatches fit on disk; `disk` counts two, or one of an epoch's length."""
        at_once = 1 if size.num_batches == self.facts.epoch_batches else 2
        return 2 * disk.peak() <= at_once * self.facts.disk_bytes

    def _disk(self, costs: SuperbatchMemory, size: SuperbatchSize) -> Ledger:
        """Return the disk with the files of superbatches of some size."""
        who = self.facts.placement.ledger.who
        disk = Ledger(self.facts.disk_bytes, (), who, "of disk space", "disk=")
        if self.facts.strategy.is_offline:  # all that is packed is kept, and compared by `pack`
            return disk
        spilled = [] if size.plans_in_memory else costs.spilled_on_disk(size.num_batches)
        return disk.add(*costs.packed_on_disk(size.num_batches), *spilled)
