"""What superbatches miss, and take of memory and of disk, by the sizes of a batch.

The further a plan looks ahead, the fewer rows are missed. In memory it would take more and more of
the memory for rows, so if the traces and plans of a whole epoch are not small next to the cache,
they go through files: then a plan takes the same memory however far it looks (Ginex, section 3.5,
divides memory between the two by a profile instead).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gnnstore.budget.ledger import PLANNED, SLOTS, Ledger, Reservation
from gnnstore.caching.policies import MAX_PLANNED, CachePolicy
from gnnstore.caching.pools import SlotPools
from gnnstore.features.pack import PackedBatch
from gnnstore.features.planned import SlotCache
from gnnstore.strategies.workload import ReadTotals, Workload

if TYPE_CHECKING:
    from gnnstore.caching.reuse import InitialCache
    from gnnstore.features.tables import CachedTables
    from gnnstore.pipeline.lookahead.presample import Presampled
    from gnnstore.pipeline.lookahead.superbatch import SuperbatchSize
    from gnnstore.strategies.placement import Placement

# Least batches of a sample that show which rows are needed often.
_LEAST_TOLD = 16
# Batches among which a row that is pinned is needed once, at the most.
_RARELY = 32


@dataclass(frozen=True)
class Pins:
    """Rows that a cache may hold under any plan."""

    num_rows: int  # number of these rows
    planned_share: float  # share of a batch's rows that are not pinned


@dataclass(frozen=True)
class MissModel:
    """The rows of an epoch that a cache misses."""

    workload: Workload
    policy: CachePolicy
    by_degree: bool = False  # whether a fixed policy goes by out-degree; else by frequency
    _without: dict[int, Workload] = field(default_factory=dict, repr=False)  # by pinned rows

    @property
    def accesses(self) -> float:
        """Rows of an epoch."""
        return self.workload.batch_rows * self.workload.epoch_batches

    @property
    def least_uses(self) -> int:
        """Batches of the sample that need a row which is worth pinning."""
        return max(2, self.workload.sampled_batches // _RARELY)

    def misses(
        self,
        num_slots: int,
        num_batches: int,
        *,
        num_pinned: int = 0,
        initial: InitialCache = "last",
    ) -> float:
        """Return the rows that an epoch misses, planned by `num_batches` batches."""
        work = self.workload
        if self.policy.is_fixed:
            curve = work.degree if self.by_degree and work.degree is not None else work.frequency
            return work.epoch_batches * curve.misses(num_slots)
        if not num_pinned:
            return work.misses(self.policy, num_slots, num_batches, initial=initial)
        if num_pinned not in self._without:
            self._without[num_pinned] = work.without_highest(num_pinned, self.least_uses)
        others = self._without[num_pinned]
        return others.misses(self.policy, num_slots - num_pinned, num_batches, initial=initial)

    def pass_reads(self, epoch_misses: float, num_batches: int) -> ReadTotals:
        """Return the reads of a pass over the tables for the misses of a superbatch."""
        return self.workload.pass_reads(epoch_misses, num_batches)

    def pins(self, num_rows: int) -> Pins | None:
        """Return at most `num_rows` rows that most batches need; None if there are none."""
        work = self.workload
        if self.policy.is_fixed or work.sampled_batches < _LEAST_TOLD:
            return None
        num_pinned, uses = work.frequency.highest(num_rows, self.least_uses)
        if num_pinned == 0:
            return None
        return Pins(num_pinned, max(0.0, 1 - uses / work.batch_rows))


# Bytes of a row's slot, in the plan that is followed and in the one that is being made.
_ACCESS_BYTES = 2 * np.dtype(np.int32).itemsize
# Bytes of a row that enters the cache: its position and slot, in two plans.
_CHANGE_BYTES = 2 * 2 * np.dtype(np.int32).itemsize
# The share of the rest for the table in which a plan on disk finds next uses, but at least this.
_TABLE_SHARE, _LEAST_TABLE_BYTES = 16, 1 << 20
_TABLE_ENTRY_BYTES = 4
# Bytes on disk for each node of a batch: its slot, and the change that it may bring; its id is
# counted once for the trace and the subgraph.
_SPILLED_NODE_BYTES = 4 + 8

# Superbatches on disk at a time: one that is followed, and one that is being made.
_ON_DISK = 2


@dataclass(frozen=True)
class SuperbatchMemory:
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
    edges_bytes: int = 0  # of a batch, for the places of rows of edges that are read ahead
    changes_share: float = 1.0  # share of a batch's rows that enter the cache
    packed: PackedBatch | None = None  # None if missed rows are not packed
    # Rows that a batch misses on average with a cache that earlier epochs have filled, for
    # superbatches of several epochs, which are never the first; None: as in `packed`.
    later_missed: int | None = None
    # Batches of an iteration; with a superbatch of this many, there is one at a time.
    epoch_batches: int = 0
    pins: Pins | None = None  # the rows that are pinned
    pools: SlotPools | None = None  # of slots of several widths; no rows are pinned then

    def of_length(self, num_batches: int, num_superbatches: int = 1) -> SuperbatchMemory:
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
        """Nodes of the largest batch without pinned rows."""
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
        """The memory of superbatches with traces and plans in memory."""
        positions = [] if self.packed is None else [self.packed.reserve_positions()]
        return [*self._always, *self.plans, *self.packing, *positions]

    def spilled(self, table_bytes: int) -> list[Reservation]:
        """Return the memory of superbatches with traces and plans on disk."""
        planning = self.policy.reserve_spilled(
            num_nodes=self.num_rows, largest_batch=self.planned_nodes, table_bytes=table_bytes
        )
        return [*self._always, *planning, *self.spilled_packing]

    @property
    def _always(self) -> list[Reservation]:
        """The memory of cached rows, and of labels and rows of edges of two superbatches."""
        slot_bytes = self.row_bytes if self.pools is None else self.pools.slot_bytes
        found = [
            SlotCache.reserve(slot_bytes),
            *SlotCache.reserve_pinned(self.row_bytes, self.num_pinned, self.num_rows),
            Reservation("labels of seeds", 0, {PLANNED: 2 * self.labels_bytes}),
        ]
        if self.edges_bytes:
            found.append(Reservation("places of rows of edges", 0, {PLANNED: self.edges_bytes}))
        return found

    @property
    def pinned_bytes(self) -> int:
        """The bytes of pinned rows."""
        return SlotCache.pinned_bytes(self.row_bytes, self.num_pinned, self.num_rows)

    @property
    def samples(self) -> Reservation:
        """The memory of the subgraphs of two superbatches, if they stay in memory."""
        batch_bytes = self.kept_bytes + self.id_bytes * self.batch_nodes
        return Reservation("sampled subgraphs", 0, {PLANNED: 2 * batch_bytes})

    def table_bytes(self, left_bytes: int) -> int:
        """Return the size of a table of next uses.

        With fewer than 4 bytes a node, a plan reads its trace in several passes: 0.8 ms each for a
        batch of 136,000 nodes, and more if the files have to come from the disk.
        """
        whole = _TABLE_ENTRY_BYTES * max(1, self.num_rows)
        return min(whole, max(_LEAST_TABLE_BYTES, left_bytes // _TABLE_SHARE))

    def spilled_bytes(self, size: SuperbatchSize) -> int:
        """Return the bytes of a batch that wait on disk."""
        plan = self.planned_nodes * (self.id_bytes + _SPILLED_NODE_BYTES)
        sample = self.kept_bytes + self.id_bytes * self.batch_nodes
        return (not size.plans_in_memory) * plan + (not size.in_memory) * sample

    def packed_on_disk(self, num_batches: int) -> list[Reservation]:
        """Return the disk space of packed rows: of two superbatches, or an epoch's only one."""
        packed = self.of_length(num_batches, _ON_DISK).packed
        if packed is None:
            return []
        return [self._at_once(packed.reserve_disk(self.row_bytes), num_batches)]

    def spilled_on_disk(self, num_batches: int) -> list[Reservation]:
        """Return the disk space of traces, plans, subgraphs and sorted misses on disk."""
        batch_bytes = (self.id_bytes + _SPILLED_NODE_BYTES) * self.planned_nodes + self.kept_bytes
        if self.num_pinned:  # the subgraph has its ids apart from the trace
            batch_bytes += self.id_bytes * self.batch_nodes
        found = [Reservation("batches sampled ahead", 0, {PLANNED: batch_bytes})]
        packed = self.of_length(num_batches, _ON_DISK).packed
        found += [] if packed is None else [packed.reserve_sorted()]
        return [self._at_once(each, num_batches) for each in found]

    def _at_once(self, each: Reservation, num_batches: int) -> Reservation:
        count = (1 if num_batches == self.epoch_batches else _ON_DISK) * num_batches
        return Reservation(each.what, each.bytes_of({PLANNED: count}))

    def with_misses(
        self, first: float, later: float, accesses: float, kept: float, most: Callable[[int], int]
    ) -> SuperbatchMemory:
        """Return the costs if a run's first epoch, and later ones, miss some of the accessed rows.

        At the ends of superbatches the cache holds `kept` rows. `most` returns the number to expect
        where a sample has shown another one.
        """
        planned = accesses * (1.0 if self.pins is None else self.pins.planned_share)
        # A row enters only to be hit, or to be kept for later superbatches. And a quarter more:
        # more rows enter a cache while it is being filled than later.
        entering = 1.25 * min(first, max(0.0, planned - first) + kept)
        found = replace(self, changes_share=min(1.0, entering / max(planned, 1.0)))
        if self.packed is None:
            return found
        at_first, each = (
            max(1, most(math.ceil(missed / max(1, self.epoch_batches))))
            for missed in (first, later)
        )
        return replace(found, packed=replace(self.packed, mean_missed=at_first), later_missed=each)


# Bytes for packing without rows on disk: enough for next to nothing.
_PACKING_BYTES = 24 << 20
# One part in so many for records of batches while they are read, which were not part of a loader's
# staging.
_RECORDS_SHARE = 16
# Bytes of a number in a batch's plan; and the unit of a batch's packed rows.
_PLAN_BYTES, _CHUNK_BYTES = 4, 4096


class PackSize(NamedTuple):
    """Numbers of cached rows and of batches in a superbatch, with the memory for packing one."""

    num_slots: int
    superbatch: int
    memory_bytes: int  # for its trace, plan, subgraphs and packing


def size_packing(
    placement: Placement,
    *,
    row_bytes: int,
    num_rows: int,
    seeds_bytes: int,
    num_batches: int,
    cache_is_given: bool,
    superbatch_is_given: bool,
) -> PackSize:
    """Enlarge the sizes that a loader would have."""
    size = placement.superbatch
    if size is None:
        return PackSize(0, min(num_batches, MAX_PLANNED), _PACKING_BYTES)
    if row_bytes == 0 or num_rows == 0:
        return PackSize(0, size.num_batches, size.num_bytes)
    # While packing no row is cached; in training there is neither graph, nor trace, nor packing.
    rows = SlotCache.reserve(row_bytes)
    others = [part for part in size.reservations if part != rows]
    packing = Ledger(size.num_bytes, (*others, SlotCache.reserve(0)))
    room = placement.resident_bytes - seeds_bytes + size.num_bytes
    training = Ledger(room - room // _RECORDS_SHARE, (rows,))
    num_slots, superbatch = size.num_slots, size.num_batches
    if not cache_is_given:
        planned = packing.largest(SLOTS, {PLANNED: superbatch})
        num_slots = max(num_slots, min(planned, training.largest(SLOTS, most=num_rows)))
    if not superbatch_is_given:
        most = min(num_batches, MAX_PLANNED)
        superbatch = max(superbatch, packing.largest(PLANNED, {SLOTS: num_slots}, most))
    memory_bytes = size.num_bytes - num_slots * packing.bytes_each(SLOTS)
    return PackSize(num_slots, superbatch, memory_bytes)


def epoch_bytes(
    misses: MissModel | None,
    seen: Presampled,
    *,
    row_bytes: int,
    num_slots: int,
    superbatch: int,
    num_batches: int,
) -> tuple[int, int]:
    """Return the bytes of an epoch's packed rows, and of its records; without misses no rows."""
    mean = sum(seen.num_nodes) / max(1, seen.num_batches)
    plain = seen.largest_record_bytes - seen.largest_nodes * row_bytes
    plain = int(max(0, plain) * num_batches * mean / max(1, seen.largest_nodes))
    if misses is None:
        return 0, plain
    # Each packed epoch begins with an empty cache, since training may begin with any epoch.
    missed = misses.misses(num_slots, superbatch, initial="nothing")
    chunk = -(-math.ceil(missed / num_batches * row_bytes) // _CHUNK_BYTES) * _CHUNK_BYTES
    # The slot of each row; the place and slot of each that enters; the place of each missed row.
    return num_batches * chunk, plain + int(_PLAN_BYTES * (misses.accesses + 3 * missed))


def mean_row_bytes(tables: CachedTables, seen: Presampled) -> int:
    """Return the bytes of a node's rows, on average over those that batches need."""
    needed = {own: seen.needed.get(own, 0) for own in tables.widths}
    total = sum(width * needed[own] for own, width in tables.widths.items())
    return -(-total // max(1, sum(needed.values())))
