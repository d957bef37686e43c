"""The cache policies that there are, and those of them that loaders do not follow."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gnnstore.budget.ledger import PLANNED, SLOTS, Reservation
from gnnstore.caching.policies.base import CachePolicy, PlanningBytes, SpillingPolicy
from gnnstore.caching.policies.belady import (
    FILE_SLOT_BYTES,
    WAITING_BYTES,
    BeladyPlanner,
    spilled_transient_bytes,
    transient_bytes,
)
from gnnstore.caching.policies.online import LruPlanner, SievePlanner
from gnnstore.registry import Registry

if TYPE_CHECKING:
    from gnnstore.caching.reuse import InitialCache, ReuseCurve

# What Belady's planner knows of a slot: the row, and how often it was needed.
_STATE_BYTES = 8 + 4


class Belady(SpillingPolicy):
    """Keeps the rows that are needed again soonest."""

    name, title = "belady", "Belady"
    looks_ahead = True
    planning = PlanningBytes(
        fixed=transient_bytes(0, 0),
        per_access=transient_bytes(1, 0) - transient_bytes(0, 0),
        per_slot=_STATE_BYTES + transient_bytes(0, 1) - transient_bytes(0, 0),
    )

    def planner(self, num_slots: int) -> BeladyPlanner:
        """Return a planner for a cache that is empty."""
        return BeladyPlanner(num_slots)

    def misses(
        self, reuse: ReuseCurve, num_slots: int, num_batches: int, *, initial: InitialCache
    ) -> float:
        """Return the rows that some batches miss, planned together."""
        return reuse.belady_misses(num_slots, num_batches, initial=initial)

    def max_kept_distance(self, reuse: ReuseCurve, num_slots: int, num_batches: int) -> int:
        """Return for how many batches rows are kept until they are needed again, at most."""
        return reuse.max_kept_distance(num_slots, num_batches)

    def reserve_spilled(
        self, *, num_nodes: int, largest_batch: int, table_bytes: int
    ) -> list[Reservation]:
        """Return the memory for making a plan in files, beside the cached rows."""
        of = partial(spilled_transient_bytes, num_nodes, largest_batch)
        per_batch = of(1, 0, 0) - of(0, 0, 0)
        per_slot = _STATE_BYTES + FILE_SLOT_BYTES - WAITING_BYTES
        # Slots have the table's memory afterwards, while they wait.
        return [
            Reservation("planning", of(0, 0, 0), {PLANNED: per_batch, SLOTS: per_slot}),
            Reservation("next uses", of(0, 0, table_bytes) - of(0, 0, 0), {}, "finding next uses"),
            Reservation("rows that wait", 0, {SLOTS: WAITING_BYTES}, "choosing rows"),
        ]


class Lru(CachePolicy):
    """Keeps the rows that were used last."""

    name, title = "lru", "LRU"

    def planner(self, num_slots: int) -> LruPlanner:
        """Return a planner for a cache that is empty."""
        return LruPlanner(num_slots)


class Sieve(CachePolicy):
    """Keeps rows as SIEVE decides."""

    name, title = "sieve", "SIEVE"

    def planner(self, num_slots: int) -> SievePlanner:
        """Return a planner for a cache that is empty."""
        return SievePlanner(num_slots)


BELADY = Belady()
# The last is the one that nothing misses fewer rows than.
POLICIES: Registry[CachePolicy] = Registry((Lru(), Sieve(), BELADY))
