"""Divides a budget between batches in flight, sampling threads, cached rows and their plans.

A few batches show the sizes of batches; a model of misses gives the number of rows that are packed,
and the worth of a cache. Sizing a loader measures misses by planning batches; predicting an epoch
estimates them. The rest is the same: the prediction is of the epoch that would run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gnnstore.budget.ledger import IN_FLIGHT, Ledger, Reservation, least_more
from gnnstore.caching.policies.base import MAX_PLANNED
from gnnstore.caching.policies.registry import POLICIES
from gnnstore.caching.pools import SlotPools, pooled
from gnnstore.errors import BudgetError, DiskBudgetError
from gnnstore.features.packed.chunks import CHUNK_STAGING_BYTES
from gnnstore.features.packed.memory import PackedBatch
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.pipeline.lookahead.producer import warms_up
from gnnstore.pipeline.margins import with_margin
from gnnstore.pipeline.superbatch_size import SuperbatchSize
from gnnstore.strategies.predict.cost import EPOCHS
from gnnstore.strategies.sizes.packing import ChunkMemory
from gnnstore.strategies.sizes.prefetch import (
    PrefetchDepth,
    check_two_batches,
    prefetch_wish,
    with_batches,
)
from gnnstore.strategies.sizes.settings import PlannedSettings
from gnnstore.strategies.sizes.superbatch import (
    Horizon,
    Pins,
    SuperbatchCosts,
    SuperbatchSizer,
    per_batch,
)
from gnnstore.threads import LONG_READ_BYTES

if TYPE_CHECKING:
    from gnnstore.pipeline.lookahead.presample import Presampled
    from gnnstore.strategies.predict.traits import StrategyTraits
    from gnnstore.strategies.sizes.placement import Placement

# Without memory= the memory of the model is unknown.
_UNPROMISED_SHARE = 2
# The usual margin is half a batch, and an eighth of the other batches.
_MOST_MARGIN = 0.4
# From this many superbatches in an epoch on, waiting for each batch is worth it if superbatches get
# this many times longer.
_MANY, _WORTH_WAITING = 8, 4
# Packing rows and reading them by turns takes this many times as long as at once: on F an epoch of
# one superbatch takes 48 s, and 35 in two halves, although that is one more pass.
_BY_TURNS = 1.5
# Bytes of a plan for each node of a batch: its slot, and the change that brings it into one.
_STEP_BYTES = 4 + 8
_POSITION_BYTES = 4
# If in-neighbours are on disk, batches that are sampled together read each hop in one pass; with
# more memory there are fewer passes.
_BULK_SHARE = 8
# A batch takes about four times the bytes of its ids while it is sampled, and tables of its nodes.
_BULK_FACTOR, _BULK_LEAST_BYTES = 8, 1 << 16
# The share of a superbatch's batches that come without a plan while the others are made: reading
# all of their rows takes about as long as sampling the others.
_UNPLANNED_SHARE = 64
# The tables are read in order to make a superbatch; and sampling and planning a row takes as long
# as reading this many bytes.
_ROW_WORK_BYTES = 128
# Slots for pinned rows; and larger shares, if traces and plans take memory from rows.
_PINNED_SHARE, _MORE_PINNED_SHARES = 1 / 4, (1 / 2, 3 / 4)
# Batches that are sampled only to find rows to pin: 0.4 s for 136,000 nodes each.
_PIN_BATCHES = 32
# With pinned rows, the largest share of a batch's rows that may be left to plan, and the least
# share of slots that must remain: the index of pinned rows takes a little more than a bit for each
# node of the graph.
_MOST_PLANNED, _LEAST_CACHED = 0.9, 0.97
# A superbatch is sampled, planned and packed in turn.
_SAMPLING = "sampling"
_TOGETHER = "sampling batches together"


@dataclass(frozen=True)
class Misses:
    """The rows of some batches that caches miss."""

    num_missed: float  # rows that are missed
    num_changes: int  # rows that enter the cache
    num_accesses: int  # all rows of the batches
    most_missed: int  # most rows that one batch misses
    mean_missed: int  # mean number of rows that a batch misses


class MissModel(Protocol):
    """Counts the rows of some batches that caches miss."""

    @property
    def num_batches(self) -> int:
        """Number of batches whose misses are counted."""

    @property
    def compares(self) -> bool:
        """Whether the batches show how many are worth planning together."""

    def first(self, size: SuperbatchSize) -> Misses:
        """Return the misses of a loader's first batches."""

    def later(self, size: SuperbatchSize) -> float:
        """Return the rows that are missed in the middle of a run."""

    def pins(self, num_rows: int) -> Pins | None:
        """Return at most `num_rows` rows to pin; None if none are needed often enough."""


@dataclass(frozen=True)
class LookaheadSize:
    """The division of a budget."""

    placement: Placement  # with staging memory for `num_threads`
    num_threads: int
    size: SuperbatchSize
    disk_bytes: int  # disk space that superbatches take


@dataclass(frozen=True, eq=False)
class LookaheadSizer:
    """Sizes a strategy that samples and plans ahead."""

    # Returns the placement of a store's parts with this many more bytes of memory.
    placed: Callable[[int], Placement]
    seen: Presampled
    see_many: Callable[[], Presampled]  # samples more batches than were seen, if needed
    # Returns a model of misses, given the preparing threads and the most batches that may be
    # planned for it.
    misses: Callable[[int, int], MissModel]
    strategy: StrategyTraits
    settings: PlannedSettings
    num_rows: int  # rows of the tables that are cached together
    row_bytes: int  # bytes of a node's rows in these tables
    pools: SlotPools | None  # of slots of several widths
    epoch_batches: int
    horizon: Horizon | None  # reuse of rows in later epochs
    # Preparing threads; fewer will be started if staging memory is for fewer.
    num_threads: int
    may_use_fewer: bool  # whether one thread may be used if memory is short
    staging_bytes: int  # memory of a thread that reads; 0: nothing is read
    reads_neighbors: bool  # whether in-neighbours are read from disk
    # Whether sampling may read from disk: batches are not sampled only to find rows to pin.
    samples_slowly: bool
    reads_more: bool  # whether rows of other tables are read one by one
    # Disk for packed rows, and for traces and plans that do not fit in memory.
    disk_bytes: int
    # Returns the disk space of epochs that are packed before training.
    packed_bytes: Callable[[SuperbatchSize], int] | None = None

    def choose(self) -> LookaheadSize:
        """Return the sizes with as many batches in flight as fit."""
        split = BudgetSplit(self, self.placed(0), self.seen)
        if not split.placement.budget_is_promise:
            return split.size()
        # Fewer batches at once are slower, but may fit.
        found = None
        if split.packs:
            with suppress(BudgetError):
                found = replace(split, depth="double_buffered").size()
        if found is None:
            try:
                found = split.size()
            except DiskBudgetError:
                raise  # with less memory, more would be missing
            except BudgetError:
                pass
        # A pass over the table for every few batches is slower still.
        if found is not None and not (split.packs and self._is_short(found.size)):
            return found
        seen = self.see_many()
        if seen.margin <= _MOST_MARGIN:
            split = replace(split, seen=seen, depth="minimal")
        if found is None:
            return split.size(raise_by=least_more(split.missing_bytes))
        with suppress(BudgetError):
            longer = split.size()
            if longer.size.num_batches >= _WORTH_WAITING * found.size.num_batches:
                return longer
        return found

    def _is_short(self, size: SuperbatchSize) -> bool:
        """Whether an epoch takes many superbatches, though fewer were possible."""
        epoch_batches = min(self.epoch_batches, MAX_PLANNED)
        return self.settings.num_batches is None and size.num_batches < epoch_batches // _MANY


@dataclass(frozen=True, eq=False)
class BudgetSplit:
    """A budget that is divided for some depth of prefetching."""

    sizer: LookaheadSizer
    placement: Placement
    seen: Presampled
    depth: PrefetchDepth = "default"

    def size(self, raise_by: int = 0) -> LookaheadSize:
        """Divide the budget."""
        sizer, packs, held = self.sizer, self.packs, self._ledger(raise_by)
        sampling = self._sampling(held)
        superbatches = self._superbatches(held.add(*sampling))
        # Few of a batch's rows are missed, and few enter the cache. Memory that was set aside for
        # the worst case caches more then, so misses are counted before the sizes are compared.
        size = superbatches.choose()
        costs, cost = superbatches.costs, None
        weighs = packs or (size.num_slots > 0 and size.plans_in_memory)
        model = self._model(costs, MAX_PLANNED if weighs else _PIN_BATCHES)
        if weighs:
            found = model.first(size)
            costs = costs.with_changes(found.num_changes, found.num_accesses)
            if model.compares and found.num_missed > 0 and superbatches.takes_from_rows(size):
                cost = model.later
            if costs.packed is not None:
                # Misses vary more than nodes do.
                most = max(1, with_margin(found.most_missed))
                mean = max(1, self._expected(found.mean_missed))
                packed = replace(costs.packed, most_missed=most, mean_missed=mean)
                costs = self._costs_of(model, replace(costs, packed=packed), size)

                def cost(size: SuperbatchSize) -> float:
                    return self._packing_cost(model, costs, size)

        superbatches = replace(superbatches, costs=costs)
        size = superbatches.choose(cost)
        if self._pins(size) and (weighs or not sizer.samples_slowly):
            costs, size = self._with_pins(superbatches, size, model, compares=cost is not None)
        # Without memory= other uses of memory are unknown; but without disk there is no other place
        # for packed rows.
        may_keep = self.placement.budget_is_promise or not sizer.disk_bytes
        is_long = sizer.num_rows * sizer.row_bytes >= LONG_READ_BYTES
        if packs and cost is not None and is_long:
            costs, size = superbatches.lengthen(size, cost, partial(self._costs_of, model, costs))
            superbatches = replace(superbatches, costs=costs)
        if packs and sizer.packed_bytes is None and self.depth != "minimal" and may_keep:
            costs, size = ChunkMemory(
                superbatches,
                partial(self._packing_cost, model),
                lambda num_batches: model.num_batches / num_batches * costs.num_rows,
            ).improve(size)
            costs = self._costs_of(model, costs, size)
        disk, on_disk = self._disk(costs, size), costs.on_disk(size.num_batches)
        if sizer.packed_bytes is not None:
            epochs = Reservation("packed epochs", sizer.packed_bytes(size))
            disk, on_disk = replace(disk, reservations=(epochs,)), {}
        if packs and disk.left(on_disk) < 0:
            remedies = ["name a roomier tmpdir=", "choose strategy='belady'"]
            if size.num_batches > sizer.epoch_batches:  # as the user has set
                remedies.insert(0, "lower superbatch=")
            raise disk.refusal(on_disk, *remedies, error=DiskBudgetError)
        needed = disk.peak(on_disk)
        return LookaheadSize(
            self._thrifty,
            self.num_threads,
            replace(
                size,
                reservations=(*sampling, *size.reservations),
                bulk_bytes=sum(r.fixed for r in sampling if r.what == _TOGETHER),
                sampling_threads=self._sampling_threads if self.num_threads else None,
                overlaps=self._overlaps(size, needed),
                num_unplanned=self._num_unplanned(min(size.num_batches, sizer.epoch_batches)),
            ),
            needed,
        )

    def _model(self, costs: SuperbatchCosts, most: int) -> MissModel:
        """Return a model of misses, of at most `most` batches."""
        # Half of the later memory of batches and rows is for a trace and its plan; threads that
        # sample have the other half.
        plans = Ledger(self.placement.left_bytes // 2, tuple(costs.plans))
        affordable = plans.left() // max(1, per_batch(costs.plans))
        return self.sizer.misses(self.num_threads, min(affordable, most))

    def _pins(self, size: SuperbatchSize) -> bool:
        """Whether rows may be pinned: if the cache is warmed up, and memory is not short."""
        sizer = self.sizer
        is_part = 0 < size.num_slots < sizer.num_rows and self.depth != "minimal"
        is_part &= sizer.pools is None
        policy = POLICIES[sizer.strategy.policy]
        return is_part and warms_up(policy, size, sizer.num_rows, packs=sizer.strategy.packs)

    def _with_pins(
        self,
        superbatches: SuperbatchSizer,
        size: SuperbatchSize,
        model: MissModel,
        *,
        compares: bool,
    ) -> tuple[SuperbatchCosts, SuperbatchSize]:
        """Return a size with pinned rows, if some are worth it, and its costs."""
        best, least = (superbatches.costs, size), model.later(size) if compares else math.inf
        for share in (_PINNED_SHARE, *(_MORE_PINNED_SHARES if compares else ())):
            pins = model.pins(int(share * size.num_slots))
            if pins is None or pins.planned_share > _MOST_PLANNED:
                continue
            costs = superbatches.costs.with_pins(pins)
            with suppress(BudgetError):
                found = replace(superbatches, costs=costs).choose(model.later if compares else None)
                if compares:
                    if (price := model.later(found)) < least:
                        best, least = (costs, found), price
                elif found.num_slots >= _LEAST_CACHED * size.num_slots:
                    best = costs, found
        return best

    def _packing_cost(
        self, model: MissModel, costs: SuperbatchCosts, size: SuperbatchSize
    ) -> float:
        """Return the rows that packing reads and writes for the model's batches."""
        costs = self._costs_of(model, costs, size)
        disk, on_disk = self._disk(costs, size), costs.on_disk(size.num_batches)
        if disk.left(on_disk) < 0:
            return math.inf
        # The table is read once for each superbatch; packed rows are written and read, except for
        # those in memory.
        scans = model.num_batches / size.num_batches
        kept = scans * size.chunk_memory_bytes / costs.row_bytes
        first, later = model.first(size).num_missed, model.later(size)
        # The cache is filled once in a run.
        filling = model.num_batches / (EPOCHS * max(1, self.sizer.epoch_batches))
        missed = later + min(1.0, filling) * (first - later)
        moved = scans * costs.num_rows + 2 * max(0, missed - kept)
        return moved if self._overlaps(size, disk.peak(on_disk)) else _BY_TURNS * moved

    def _costs_of(
        self, model: MissModel, costs: SuperbatchCosts, size: SuperbatchSize
    ) -> SuperbatchCosts:
        """Return the costs with the expected misses of a full cache of some size."""
        later = math.ceil(model.later(size) / model.num_batches)
        return replace(costs, later_missed=max(1, self._expected(later)))

    def _overlaps(self, size: SuperbatchSize, disk_bytes: int) -> bool:
        """Whether two superbatches fit on disk, given their sizes or that of an epoch's one."""
        at_once = 1 if size.num_batches == self.sizer.epoch_batches else 2
        return 2 * disk_bytes <= at_once * self.sizer.disk_bytes

    def missing_bytes(self, more: int) -> int:
        """Return about how many bytes are missing with `more` more bytes of memory."""
        try:
            split = replace(self, placement=self.sizer.placed(more))
            held = split._ledger()
            split._superbatches(held.add(*split._sampling(held))).check()
        except BudgetError as error:
            return error.missing_bytes or max(1, more)
        return 0

    def _num_unplanned(self, num_batches: int) -> int:
        """Return the batches that come without a plan while `num_batches` batches are made."""
        sizer = self.sizer
        work_bytes = num_batches * self.seen.largest_nodes * _ROW_WORK_BYTES
        # If memory is short, there is none for reading rows in two ways.
        if (
            self.depth == "minimal"
            or sizer.num_rows * sizer.row_bytes + work_bytes < LONG_READ_BYTES
        ):
            return 0
        return max(1, num_batches // _UNPLANNED_SHARE)

    @property
    def packs(self) -> bool:
        """Whether missed rows are packed."""
        return self.sizer.strategy.packs and self.sizer.row_bytes > 0

    @property
    def num_threads(self) -> int:
        """Threads that prepare batches."""
        sizer = self.sizer
        if self._uses_one:
            return 1
        if not sizer.staging_bytes:
            return sizer.num_threads
        return max(1, min(sizer.num_threads, self.placement.staging_bytes // sizer.staging_bytes))

    @property
    def _sampling_threads(self) -> int:
        """Threads that sample ahead: one more than processors helps only if they wait."""
        sizer = self.sizer
        if sizer.samples_slowly:
            return self.num_threads
        return min(self.num_threads, len(os.sched_getaffinity(0)))

    @property
    def _uses_one(self) -> bool:
        return self.depth == "minimal" and self.sizer.may_use_fewer

    @property
    def _thrifty(self) -> Placement:
        """The placement, with staging memory for the threads that there are."""
        placement = self.placement
        if self.depth != "minimal":
            return placement
        if self._uses_one and self.sizer.staging_bytes:
            placement = placement.with_staging(self.sizer.staging_bytes)
        threads = "one thread, and " if self._uses_one else ""
        return placement.because(f"{threads}no batch that waits, for memory= has no room for more")

    def _expected(self, largest: int) -> int:
        """Return the size to expect of a batch, from that of the largest one seen."""
        if self.depth == "minimal":
            return with_margin(largest, self.seen.margin)
        return with_margin(largest)

    def _superbatches(self, memory: Ledger) -> SuperbatchSizer:
        """Return a sizer of superbatches whose batches may miss all of their rows."""
        sizer, seen, is_minimal = self.sizer, self.seen, self.depth == "minimal"
        batch_nodes = self._expected(seen.largest_nodes)
        id_bytes = id_dtype(sizer.num_rows - 1).itemsize
        packed = None
        if self.packs:
            packed = PackedBatch(batch_nodes, batch_nodes, batch_nodes, id_bytes)
        costs = SuperbatchCosts(
            num_rows=sizer.num_rows,
            row_bytes=sizer.row_bytes,
            batch_nodes=batch_nodes,
            id_bytes=id_bytes,
            kept_bytes=self._expected(seen.largest_kept_bytes),
            labels_bytes=self._expected(seen.largest_labels_bytes),
            packed=packed,
            policy=pooled(POLICIES[sizer.strategy.policy], sizer.pools),
            pools=sizer.pools,
            epoch_batches=sizer.epoch_batches,
        )
        # Plans that are packed before training are packed an epoch at a time.
        several = self.packs and sizer.packed_bytes is None and not is_minimal
        return SuperbatchSizer(
            costs,
            sizer.settings,
            memory,
            sizer.epoch_batches,
            sizer.disk_bytes,
            sizer.horizon if several else None,
        )

    def _ledger(self, raise_by: int = 0) -> Ledger:
        """Return the memory with batches in flight, and all other memory that is always used."""
        placement = self._thrifty
        memory = replace(placement.ledger, raise_by=raise_by)
        if not placement.budget_is_promise:
            left = memory.left()
            kept = Reservation("a model and batches in flight", left - left // _UNPROMISED_SHARE)
            return memory.add(kept)
        seen = self.seen
        batch_bytes = self._expected(seen.largest_bytes + _STEP_BYTES * seen.largest_nodes)
        check_two_batches(memory, batch_bytes)
        sample_bytes = self._expected(seen.largest_ids_bytes)
        wish = prefetch_wish(memory.left(), batch_bytes, sample_bytes, self.num_threads, self.depth)
        in_flight = with_batches(memory).solve(wish)[IN_FLIGHT]
        return memory.add(Reservation("batches in flight", in_flight))

    def _sampling(self, held: Ledger) -> list[Reservation]:
        """Return the memory of threads that sample, and of threads that read packed rows."""
        sizer, seen, num_threads = self.sizer, self.seen, self.num_threads
        found: list[Reservation] = []
        reads_unplanned = self._num_unplanned(sizer.epoch_batches) > 0
        if self.placement.budget_is_promise:
            if sizer.reads_neighbors:
                # One thread fetches in-neighbours; batches are sampled together, in memory that is
                # counted separately.
                found.append(Reservation("staging for in-neighbours", sizer.staging_bytes))
            else:
                # The sampler's result; as much while it is sampled; and as much until it is kept in
                # half the memory.
                ids_bytes = self._sampling_threads * 3 * self._expected(seen.largest_ids_bytes)
                found.append(
                    Reservation("subgraphs as they are sampled", ids_bytes, phase=_SAMPLING)
                )
            if self.packs:
                # Packed rows have their own reader, in place of the other if nothing else is read,
                # not even at first; and a place for each row.
                spared = 0 if sizer.reads_more or reads_unplanned else self._thrifty.staging_bytes
                reading = max(0, num_threads * CHUNK_STAGING_BYTES - spared)
                reading += num_threads * _POSITION_BYTES * self._expected(seen.largest_nodes)
                found.append(Reservation("reading packed rows", reading))
            elif reads_unplanned:
                # A reader keeps its buffers for the next read.
                found.append(
                    Reservation("filling the cache in the background", sizer.staging_bytes)
                )
        if sizer.reads_neighbors:
            # No more than for all batches of an epoch.
            most = (sizer.epoch_batches + num_threads) * (
                _BULK_FACTOR * self._expected(seen.largest_ids_bytes) + _BULK_LEAST_BYTES
            )
            bulk_bytes = min(most, max(0, held.add(*found).left()) // _BULK_SHARE)
            found.append(Reservation(_TOGETHER, bulk_bytes, phase=_SAMPLING))
        return found

    def _disk(self, costs: SuperbatchCosts, size: SuperbatchSize) -> Ledger:
        """Return the disk with the files of superbatches of some size."""
        who = self.placement.ledger.who
        disk = Ledger(self.sizer.disk_bytes, (), who, "of disk space", "disk=")
        spilled = [] if size.plans_in_memory else costs.spilled_on_disk(size.num_batches)
        return disk.add(*costs.packed_on_disk(size.num_batches), *spilled)
