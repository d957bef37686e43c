"""Finds the length of a superbatch and the size of the cache, both within one budget.

The further a plan looks ahead, the fewer rows are missed. In memory it would take more and more of
the memory for rows, so if the traces and plans of a whole epoch are not small next to the cache,
they go through files: then a plan takes the same memory however far it looks (Ginex, section 3.5,
divides memory between the two by a profile instead).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import PLANNED, SLOTS, Ledger, Reservation
from gnnstore.caching.policies.base import MAX_PLANNED, CachePolicy, SpillingPolicy
from gnnstore.caching.pools import SlotPools
from gnnstore.errors import BudgetError
from gnnstore.features.packed.memory import PackedBatch
from gnnstore.features.planned import SlotCache
from gnnstore.pipeline.superbatch_size import SuperbatchSize
from gnnstore.strategies.sizes.settings import PlannedSettings

# The slot of each row, in the plan that is followed and in the one that is being made.
_ACCESS_BYTES = 2 * np.dtype(np.int32).itemsize
# A row that enters the cache: its position and slot, in two plans.
_CHANGE_BYTES = 2 * 2 * np.dtype(np.int32).itemsize
# A share of the rest for subgraphs in memory, and as much for plans: more is cheap to write to disk
# and read back (2.8 MB for a batch of 136,000 nodes, in one piece), unlike rows.
_KEPT_SHARE = 16
# The same share at most for the table in which a plan on disk finds next uses, but at least this.
_LEAST_TABLE_BYTES = 1 << 20
_TABLE_ENTRY_BYTES = 4
# On disk, for each node of a batch: its slot, and the change that it may bring; its id is counted
# once for the trace and the subgraph.
_SPILLED_NODE_BYTES = 4 + 8

# Superbatches on disk at a time: one that is followed, and one that is being made.
_ON_DISK = 2
# Epochs that a superbatch may have, if their batches are known. With twice as many the tables are
# read half as often; but training may stop before it uses all packed rows.
_EPOCHS = (2, 4)
# A superbatch of more epochs is chosen if it costs less than this share of the best one so far.
_WORTH_LENGTHENING = 0.9
_ORDER_BYTES = 8  # bytes of a seed in the order of an epoch

# Sizes that are tried if there is a choice: the largest that leaves half of the rest to rows, and
# smaller ones.
_TRIED = 4
_ROWS_SHARE = 2


@dataclass(frozen=True)
class Horizon:
    """The epochs after the next one, whose batches are known before they begin."""

    num_seeds: int  # seeds of an epoch, whose order is kept while its batches wait

    def reserve(self, epoch_batches: int) -> Reservation:
        """Return the memory of the orders of epochs that are planned together."""
        per_batch = -(-_ORDER_BYTES * self.num_seeds // max(1, epoch_batches))
        return Reservation("orders of later epochs", 0, {PLANNED: per_batch})


@dataclass(frozen=True, eq=False)
class Pins:
    """Rows that a cache may hold under any plan."""

    num_rows: int  # number of these rows
    planned_share: float  # largest share of a batch's rows that are not pinned
    # int32 or int64 [num_rows], or None: nodes of these rows, ascending; None if their number is
    # only estimated.
    nodes: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class SuperbatchCosts:
    """The reservations of superbatches, by the sizes of a batch."""

    num_rows: int  # rows of the tables: more slots are of no use
    row_bytes: int  # bytes of a row, of all tables that are cached
    batch_nodes: int  # nodes of the largest batch
    id_bytes: int  # bytes of a node id in a trace
    # Bytes of a batch's subgraph without node ids, from sampling until it is joined with its rows.
    kept_bytes: int
    policy: CachePolicy  # the policy that plans
    # Bytes of a batch's labels, in memory from sampling until they are joined.
    labels_bytes: int = 0
    changes_share: float = 1.0  # share of a batch's rows that enter the cache
    packed: PackedBatch | None = None  # None if missed rows are not packed
    # Rows that a batch misses on average with a cache that earlier epochs have filled, for
    # superbatches of several epochs, which are never the first; None: as in `packed`.
    later_missed: int | None = None
    # Batches of an iteration; with a superbatch of this many, there is one at a time.
    epoch_batches: int = 0
    chunk_memory_bytes: int = 0  # for packed rows of a superbatch that are not written
    pins: Pins | None = None  # the rows that are pinned
    pools: SlotPools | None = None  # of slots of several widths; no rows are pinned then

    def of_length(self, num_batches: int, num_superbatches: int = 1) -> SuperbatchCosts:
        """Return the costs of superbatches of `num_batches` batches.

        Two superbatches of one epoch each come before them, and the first of these fills the cache:
        it packs more rows an epoch; they must fit as well, next to the second.
        """
        packed, later, epoch = self.packed, self.later_missed, self.epoch_batches
        if packed is None or later is None or num_batches <= epoch:
            return self
        at_first = epoch * (packed.mean_missed + (num_superbatches - 1) * later)
        most = max(later, -(-at_first // (num_superbatches * num_batches)))
        mean_missed = min(packed.mean_missed, most)
        return replace(self, packed=replace(packed, mean_missed=mean_missed), later_missed=None)

    @property
    def planned_nodes(self) -> int:
        """Nodes of the largest batch whose rows are not pinned."""
        share = 1.0 if self.pins is None else self.pins.planned_share
        return math.ceil(self.batch_nodes * share)

    @property
    def num_pinned(self) -> int:
        """Rows that are pinned."""
        return 0 if self.pins is None else self.pins.num_rows

    @property
    def plans(self) -> list[Reservation]:
        """The memory of traces and plans of two superbatches: one made, one followed."""
        access_bytes = self.id_bytes + _ACCESS_BYTES
        access_bytes += math.ceil(_CHANGE_BYTES * self.changes_share)
        return [
            Reservation("traces and plans", 0, {PLANNED: self.planned_nodes * access_bytes}),
            *self.policy.reserve(self.planned_nodes),
        ]

    @property
    def packing(self) -> list[Reservation]:
        """The memory for packing a superbatch with its trace and plan in memory."""
        return [] if self.packed is None else self.packed.reserve()

    @property
    def spilled_packing(self) -> list[Reservation]:
        """The memory for packing a superbatch with its trace and plan on disk."""
        return [] if self.packed is None else self.packed.reserve_spilled()

    @property
    def in_memory(self) -> list[Reservation]:
        """The memory of superbatches whose traces and plans are in memory."""
        positions = [] if self.packed is None else [self.packed.reserve_positions()]
        rows = [self.rows, *self.pinned_rows]
        return [*rows, *self.plans, *self.packing, *positions, *self.chunks, self.labels]

    def spilled(self, table_bytes: int) -> list[Reservation]:
        """Return the memory of superbatches whose traces and plans are on disk."""
        planning = cast("SpillingPolicy", self.policy).reserve_spilled(
            num_nodes=self.num_rows, largest_batch=self.planned_nodes, table_bytes=table_bytes
        )
        rows = [self.rows, *self.pinned_rows]
        return [*rows, *planning, *self.spilled_packing, *self.chunks, self.labels]

    @property
    def chunks(self) -> list[Reservation]:
        """The memory of packed rows of two superbatches, if they are not written."""
        kept = 2 * self.chunk_memory_bytes
        return [Reservation("packed rows in memory", kept)] if kept else []

    @property
    def rows(self) -> Reservation:
        """The memory of cached rows that are not pinned."""
        return SlotCache.reserve(self.row_bytes if self.pools is None else self.pools.slot_bytes)

    @property
    def pinned_rows(self) -> list[Reservation]:
        """The memory of pinned rows, and of filling the cache with them."""
        return SlotCache.reserve_pinned(self.row_bytes, self.num_pinned, self.num_rows)

    @property
    def pinned_bytes(self) -> int:
        """The bytes of pinned rows."""
        return SlotCache.pinned_bytes(self.row_bytes, self.num_pinned, self.num_rows)

    @property
    def samples(self) -> Reservation:
        """The memory of the subgraphs of two superbatches, if they stay in memory."""
        batch_bytes = self.kept_bytes + self.id_bytes * self.batch_nodes
        return Reservation("sampled subgraphs", 0, {PLANNED: 2 * batch_bytes})

    @property
    def labels(self) -> Reservation:
        """The memory of the labels of two superbatches."""
        return Reservation("labels of seeds", 0, {PLANNED: 2 * self.labels_bytes})

    @property
    def may_spill(self) -> bool:
        """Whether traces and plans may be on disk."""
        return isinstance(self.policy, SpillingPolicy)

    def tables(self, left_bytes: int) -> list[int]:
        """Return the possible sizes of a table of next uses, from the largest down.

        With fewer than 4 bytes a node, a plan reads its trace in several passes: 0.8 ms each for a
        batch of 136,000 nodes, and more if the files have to come from the disk.
        """
        whole = _TABLE_ENTRY_BYTES * max(1, self.num_rows)
        most = max(_LEAST_TABLE_BYTES, left_bytes // _KEPT_SHARE)
        return [-(-whole // num_passes) for num_passes in range(1, 1 - (-whole // most))]

    def chunks_of(self, num_batches: int) -> int:
        """Return the bytes of the packed rows of `num_batches` batches."""
        packed = self.of_length(num_batches).packed
        if packed is None:
            return 0
        return packed.reserve_disk(self.row_bytes).bytes_of({PLANNED: num_batches})

    def packed_on_disk(self, num_batches: int) -> list[Reservation]:
        """Return the disk space of packed rows of superbatches of `num_batches` batches."""
        packed = self.of_length(num_batches, _ON_DISK).packed
        if packed is None:
            return []
        all_of_them = packed.reserve_disk(self.row_bytes)
        if not self.chunk_memory_bytes:
            return [all_of_them]
        written = max(0, self.chunks_of(num_batches) - self.chunk_memory_bytes)
        num_superbatches = self.on_disk(num_batches)[PLANNED] // num_batches
        return [replace(all_of_them, fixed=num_superbatches * written, per={})]

    def spilled_on_disk(self, num_batches: int) -> list[Reservation]:
        """Return the disk space of traces, plans, subgraphs and sorted misses on disk."""
        batch_bytes = (self.id_bytes + _SPILLED_NODE_BYTES) * self.planned_nodes + self.kept_bytes
        if self.num_pinned:  # the subgraph has its ids apart from the trace
            batch_bytes += self.id_bytes * self.batch_nodes
        found = [Reservation("batches sampled ahead", 0, {PLANNED: batch_bytes})]
        packed = self.of_length(num_batches, _ON_DISK).packed
        return found if packed is None else [*found, packed.reserve_sorted()]

    def on_disk(self, num_batches: int) -> dict[str, int]:
        """Return the sizes by which disk space grows: two superbatches, or an epoch's only one."""
        return {PLANNED: (1 if num_batches == self.epoch_batches else _ON_DISK) * num_batches}

    def with_changes(self, changes: int, accesses: int) -> SuperbatchCosts:
        """Return the costs if `changes` of `accesses` rows of some batches entered the cache."""
        # A quarter more: more rows enter a cache while it is being filled than later.
        share = min(1.0, 1.25 * changes / accesses) if accesses else 1.0
        return replace(self, changes_share=share)

    def with_pins(self, pins: Pins) -> SuperbatchCosts:
        """Return the costs with some rows pinned: as many of a batch's other rows enter."""
        share = min(1.0, self.changes_share / max(pins.planned_share, 1e-9))
        return replace(self, pins=pins, changes_share=share)


def per_batch(reservations: list[Reservation]) -> int:
    """Return the bytes by which some reservations grow with each planned batch."""
    return sum(reservation.per.get(PLANNED, 0) for reservation in reservations)


@dataclass(frozen=True)
class SuperbatchSizer:
    """Sizes superbatches within the budgets of a loader."""

    costs: SuperbatchCosts
    settings: PlannedSettings  # the sizes that the user has given
    memory: Ledger  # with all other memory, batches in flight included
    num_batches: int  # batches of an epoch
    disk_bytes: int = 0  # disk space for files of superbatches
    # Facts on later epochs if superbatches may have several; only if rows are packed are they worth
    # it.
    horizon: Horizon | None = None

    @cached_property
    def _left_bytes(self) -> int:
        return self.memory.left()

    @property
    def counts(self) -> range:
        """The numbers of batches that may be planned at a time."""
        most = max(1, min(self.num_batches, MAX_PLANNED))
        given = self.settings.num_batches
        if given is not None and (several := [n for n in self._several if n <= given]):
            return range(several[-1], several[-1] + 1)
        least = min(2 if given is None else given, most)
        return range(least, (most if given is None else least) + 1)

    @property
    def _several(self) -> list[int]:
        """Batches of several epochs, for as many as may be planned at a time."""
        if self.horizon is None:
            return []
        return [n for k in _EPOCHS if 1 < (n := k * self.num_batches) <= MAX_PLANNED]

    def size_of(self, num_batches: int) -> SuperbatchSize:
        """Return a superbatch of `num_batches` batches, with the cache that fits next to it."""
        costs, left = self.costs.of_length(num_batches), self._left_bytes
        sizes, memory = {PLANNED: num_batches}, self.memory
        if self.horizon is not None and num_batches > self.num_batches:
            memory = memory.add(self.horizon.reserve(self.num_batches))
        samples = Ledger(left // _KEPT_SHARE, (costs.samples,))
        in_memory = samples.left(sizes) >= 0
        kept = [costs.samples] * in_memory
        ledger, table, packing = memory.add(*costs.in_memory, *kept), 0, costs.packing
        if costs.may_spill and num_batches * per_batch(costs.in_memory) > left // _KEPT_SHARE:
            tables = costs.tables(left)
            spilled = memory.add(*costs.spilled(tables[-1]), *kept)
            with_rows = sizes | {SLOTS: self._slots(spilled, sizes)}
            saves = spilled.peak(with_rows) < ledger.peak(with_rows)
            on_disk = Ledger(self.disk_bytes, tuple(costs.spilled_on_disk(num_batches)))
            if saves and on_disk.left(costs.on_disk(num_batches)) >= 0:
                # With memory that other phases leave free there are fewer passes.
                roomier = ((t, memory.add(*costs.spilled(t), *kept)) for t in tables[:-1])
                found = (each for each in roomier if each[1].left(with_rows) >= 0)
                table, ledger = next(found, (tables[-1], spilled))
                packing = costs.spilled_packing
        sizes[SLOTS] = self._slots(ledger, sizes)
        given = self.settings.cache_bytes is not None
        ledger.check(sizes, *["lower cache_bytes="] * given, "lower superbatch=")
        return SuperbatchSize(
            num_batches,
            sizes[SLOTS] + costs.num_pinned,
            in_memory,
            reservations=ledger.reservations[len(self.memory.reservations) :],
            packing_bytes=Ledger(0, tuple(packing)).peak(sizes),
            chunk_memory_bytes=costs.chunk_memory_bytes,
            table_bytes=table,
            num_pinned=costs.num_pinned,
            pinned=None if costs.pins is None else costs.pins.nodes,
            pools=costs.pools,
        )

    def choose(self, cost: Callable[[SuperbatchSize], float] | None = None) -> SuperbatchSize:
        """Choose the number of batches to plan at a time."""
        least, *others = self.counts
        if not others:
            return self.size_of(least)
        largest = self._even(self._most_batches(self.counts))
        if cost is None:
            return self.size_of(largest)
        tried: list[tuple[float, SuperbatchSize]] = []
        while len(tried) < _TRIED:
            will_do = False
            try:
                size = self.size_of(largest)
            except BudgetError:
                if largest == least:
                    raise
            else:
                will_do = (found := cost(size)) < math.inf
                if will_do or largest == least:
                    tried.append((found, size))
            if largest == least:
                break
            # Small steps towards possible counts: the largest possible one is best.
            largest = max(least, self._even(-(-largest // 2) if will_do else largest * 7 // 8))
        # The smallest of equal ones: it is planned soonest.
        return min(reversed(tried), key=lambda one: one[0])[1]

    def _even(self, num_batches: int) -> int:
        """Return the fewest batches that give the same number of packed superbatches an epoch."""
        if self.costs.packed is None:
            return num_batches
        return -(-self.num_batches // -(-self.num_batches // num_batches))

    def lengthen(
        self,
        size: SuperbatchSize,
        cost: Callable[[SuperbatchSize], float],
        costs_of: Callable[[SuperbatchSize], SuperbatchCosts],
    ) -> tuple[SuperbatchCosts, SuperbatchSize]:
        """Return a size of several epochs instead of one whole epoch, if it costs less."""
        if self.settings.num_batches is not None or size.num_batches < self.num_batches:
            return self.costs, size
        best, least = (self.costs, size), cost(size)
        for num_batches in self._several:
            with suppress(BudgetError):
                # Plans in memory leave fewer slots, which miss more.
                costs = costs_of(self.size_of(num_batches))
                found = replace(self, costs=costs).size_of(num_batches)
                if (price := cost(found)) < _WORTH_LENGTHENING * least:
                    best, least = (costs, found), price
        return best

    def check(self) -> None:
        """Check that some size fits."""
        try:
            # If any size fits, this one nearly always does, at a hundredth of the work.
            self.size_of(self.counts[0])
        except BudgetError:
            self.choose()

    def takes_from_rows(self, size: SuperbatchSize) -> bool:
        """Whether plans take enough memory that shorter superbatches might miss less."""
        plans_bytes = size.num_batches * per_batch(self.costs.in_memory)
        is_much = size.plans_in_memory and plans_bytes > self._left_bytes // _KEPT_SHARE
        return is_much and size.num_slots > 0 and self.settings.cache_bytes is None

    def _slots(self, ledger: Ledger, sizes: dict[str, int]) -> int:
        """Return the number of rows to cache next to pinned ones; 0 if no table is read."""
        costs, given = self.costs, self.settings.cache_bytes
        if costs.row_bytes == 0:
            return 0
        most = costs.num_rows - costs.num_pinned
        if given is None:
            return ledger.largest(SLOTS, sizes, most)
        return min(most, max(0, given - costs.pinned_bytes) // ledger.bytes_each(SLOTS))

    def _most_batches(self, counts: range) -> int:
        """Return the most batches whose plans leave half of the rest to rows, or the fewest."""
        # Memory that any plan takes does not show how many batches are worth it.
        ledger, pinned = self.memory.add(*self.costs.in_memory), self.costs.pinned_bytes
        most = ledger.peak() - pinned + max(0, ledger.left() + pinned) // _ROWS_SHARE
        if self.settings.cache_bytes is not None:
            most = ledger.limit - self._slots(ledger, {}) * ledger.bytes_each(SLOTS) - pinned

        def takes_too_much(count: int) -> bool:
            try:
                size = self.size_of(count)
            except BudgetError:
                return True
            with_size = self.memory.with_limit(most).add(*size.reservations)
            rows_bytes = pinned + size.num_planned_slots * with_size.bytes_each(SLOTS)
            kept_bytes = self.costs.samples.bytes_of(size.sizes) if size.in_memory else 0
            return with_size.left(size.sizes) + rows_bytes + kept_bytes < 0

        # False for the first counts, and true from some count on: files, if there is disk for them,
        # are cheaper from where they begin.
        return counts[max(0, bisect_left(counts, True, key=takes_too_much) - 1)]
