"""How much of a budget a packed plan caches, and plans at a time: other than while training.

A loader that samples, plans and trains at once divides its budget between all of these. With a
plan they come one after the other: while it is packed no row is cached, and while it is trained on
there is neither graph, nor trace, nor packing. So the cache may be larger, and so may superbatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnstore.sizing.superbatch_size import MAX_BATCHES

if TYPE_CHECKING:
    from gnnstore.sizing.placement import Placement

# What is known of a slot while plans are made (as of superbatches), and while they are followed.
_PLANNED_SLOT_BYTES = 48
_FOLLOWED_SLOT_BYTES = 8
# Packing takes this much before the first batch (as of superbatches).
_PACKING_BYTES = 24 << 20
# For records of batches while they are read: they were not part of a loader's staging.
_RECORDS_SHARE = 16


@dataclass(frozen=True)
class PlanSize:
    """The decision.

    Attributes
    ----------
    num_slots : int
        Rows that are cached in training.
    superbatch : int
        Batches that are planned and packed at a time.
    memory_bytes : int
        For a superbatch: its trace, plan, subgraphs and packing.
    table_bytes : int
        Of it for a planner whose traces and plans are on disk; 0: they are in memory.
    """

    num_slots: int
    superbatch: int
    memory_bytes: int
    table_bytes: int = 0


def size_plan(
    placement: Placement,
    *,
    row_bytes: int,
    num_rows: int,
    seeds_bytes: int,
    num_batches: int,
    cache_is_given: bool,
    superbatch_is_given: bool,
) -> PlanSize:
    """Decide from what a loader that packs while it trains would have.

    Parameters
    ----------
    placement : Placement
        Of such a loader, with the size of its superbatches.
    row_bytes, num_rows : int
        Of the attributes that are packed, together.
    seeds_bytes : int
        Seed nodes and their order, which training holds too.
    num_batches : int
        Of an epoch.
    cache_is_given, superbatch_is_given : bool
        Whether the user has decided.
    """
    size = placement.superbatch
    if size is None:
        return PlanSize(0, min(num_batches, MAX_BATCHES), _PACKING_BYTES)
    if row_bytes == 0 or num_rows == 0:
        return PlanSize(0, size.num_batches, size.num_bytes, size.table_bytes)
    rolling_bytes = size.num_bytes - size.num_slots * (row_bytes + _PLANNED_SLOT_BYTES)
    num_slots = size.num_slots
    if not cache_is_given:
        room = placement.resident_bytes - seeds_bytes + size.num_bytes
        room -= room // _RECORDS_SHARE
        most = (size.num_bytes - rolling_bytes) // _PLANNED_SLOT_BYTES
        larger = min(room // (row_bytes + _FOLLOWED_SLOT_BYTES), most, num_rows)
        num_slots = max(num_slots, larger)
    memory_bytes = size.num_bytes - num_slots * _PLANNED_SLOT_BYTES
    superbatch = size.num_batches
    if not superbatch_is_given:
        # Of two superbatches; what that is too much goes to subgraphs in memory.
        planning_bytes = rolling_bytes - (_PACKING_BYTES if rolling_bytes > _PACKING_BYTES else 0)
        batch_bytes = max(1, planning_bytes // size.num_batches)
        larger = (memory_bytes - _PACKING_BYTES) // batch_bytes
        superbatch = max(superbatch, min(larger, num_batches, MAX_BATCHES))
    return PlanSize(num_slots, superbatch, memory_bytes, size.table_bytes)
