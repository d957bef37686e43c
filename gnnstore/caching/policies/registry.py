"""The cache policies that there are, and those of them that loaders do not follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnstore.caching.policies.base import CachePolicy, PlanningBytes, SpillingPolicy
from gnnstore.caching.policies.belady import (
    FILE_SLOT_BYTES,
    BeladyPlanner,
    spilled_transient_bytes,
    transient_bytes,
)
from gnnstore.caching.policies.online import LruPlanner, SievePlanner
from gnnstore.registry import Registry

if TYPE_CHECKING:
    from gnnstore.caching.reuse import Held, ReuseCurve

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
    spilled_slot_bytes = _STATE_BYTES + FILE_SLOT_BYTES

    def planner(self, num_slots: int) -> BeladyPlanner:
        """Return a planner for a cache that is empty."""
        return BeladyPlanner(num_slots)

    def misses(self, reuse: ReuseCurve, num_slots: int, num_batches: int, *, holds: Held) -> float:
        """Return the rows that some batches miss, planned together."""
        return reuse.belady_misses(num_slots, num_batches, holds=holds)

    def longest_kept(self, reuse: ReuseCurve, num_slots: int, num_batches: int) -> int:
        """Return for how many batches rows are kept until they are needed again, at most."""
        return reuse.longest_kept(num_slots, num_batches)

    def spilled_bytes(
        self, *, num_nodes: int, largest_batch: int, num_batches: int, table_bytes: int
    ) -> int:
        """Return what making a plan in files takes, beside what slots take."""
        return spilled_transient_bytes(num_nodes, largest_batch, num_batches, 0, table_bytes)


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
