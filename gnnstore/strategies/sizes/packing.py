"""The sizes of packed epochs: cached rows, superbatches, and their bytes on disk.

A loader with strategy "packed" divides its budget between sampling, planning, packing and training.
Here these come one after the other, so that rows and superbatches may be larger.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from gnnstore.budget.ledger import PLANNED, SLOTS, Ledger
from gnnstore.caching.policies.base import MAX_PLANNED
from gnnstore.features.planned import SlotCache

if TYPE_CHECKING:
    from gnnstore.features.tables import CachedTables
    from gnnstore.pipeline.lookahead.presample import Presampled
    from gnnstore.strategies.sizes.misses import MissModel
    from gnnstore.strategies.sizes.placement import Placement

# Without rows on disk, packing takes next to nothing.
_PACKING_BYTES = 24 << 20
# For records of batches while they are read: they were not part of a loader's staging.
_RECORDS_SHARE = 16
# Of a number in the plan of a batch; and what packed rows of a batch are a multiple of.
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
