"""Finds the cache size and the superbatch of packed epochs, which differ from those in training.

A loader that samples, plans and trains at once divides its budget between all of these. With
packed epochs they come one after the other: while packing no row is cached, and while training
there is neither graph, nor trace, nor packing. So the cache may be larger, and so may superbatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnstore.budget.ledger import PLANNED, SLOTS, Ledger
from gnnstore.caching.policies.base import MAX_PLANNED
from gnnstore.features.planned import PlannedCache

if TYPE_CHECKING:
    from gnnstore.strategies.sizes.placement import Placement

# Without rows on disk, packing takes next to nothing.
_PACKING_BYTES = 24 << 20
# For records of batches while they are read: they were not part of a loader's staging.
_RECORDS_SHARE = 16


@dataclass(frozen=True)
class PackSize:
    """The decision."""

    num_slots: int  # rows that are cached in training
    superbatch: int  # batches that are planned and packed at a time
    memory_bytes: int  # for a superbatch: its trace, plan, subgraphs and packing
    # Of it for a planner whose traces and plans are on disk; 0: they are in memory.
    table_bytes: int = 0


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
    """Decide from what a loader that packs while it trains would have."""
    size = placement.superbatch
    if size is None:
        return PackSize(0, min(num_batches, MAX_PLANNED), _PACKING_BYTES)
    if row_bytes == 0 or num_rows == 0:
        return PackSize(0, size.num_batches, size.num_bytes, size.table_bytes)
    rows, slots = PlannedCache.reserve(row_bytes), PlannedCache.reserve(0)
    # While it is packed, what is known of the slots; in training, their rows.
    others = [part for part in size.reservations if part != rows]
    packing = Ledger(size.num_bytes, (*others, slots))
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
    return PackSize(num_slots, superbatch, memory_bytes, size.table_bytes)
