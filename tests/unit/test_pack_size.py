"""What packed epochs cache, and are planned at a time, within the budget of a loader."""

from __future__ import annotations

import pytest

from gnnstore.budget.ledger import PLANNED, SLOTS, STAGING, Ledger, Reservation
from gnnstore.caching.belady import BELADY
from gnnstore.features.planned import SlotCache
from gnnstore.pipeline.lookahead.superbatch import SuperbatchSize
from gnnstore.strategies.placement import Placement
from gnnstore.strategies.registry import PACKED
from gnnstore.strategies.superbatch_memory import PackSize, SuperbatchMemory, size_packing

MIB = 1 << 20
COSTS = SuperbatchMemory(10**6, 400, 10_000, id_bytes=4, kept_bytes=100_000, policy=BELADY)


_STAGING = Reservation(STAGING, 8 * MIB)


def placement_of(num_slots: int, num_batches: int, resident: int, row_bytes: int) -> Placement:
    rows = SlotCache.reserve(row_bytes)
    parts = (rows, *COSTS.plans, COSTS.samples, Reservation("packing", 24 * MIB))
    return Placement(
        strategy=PACKED,
        topology="memory",
        modes={},
        ledger=Ledger(1000 * MIB, (Reservation("topology", resident), _STAGING)),
        budget_is_promise=True,
        reason="",
        superbatch=SuperbatchSize(num_batches, num_slots, True, parts),
    )


def sized(placement: Placement, row_bytes: int = 400, **options: bool) -> PackSize:
    given = {"cache_is_given": False, "superbatch_is_given": False} | options
    return size_packing(
        placement,
        row_bytes=row_bytes,
        num_rows=10**6,
        seeds_bytes=MIB,
        num_batches=300,
        **given,
    )


@pytest.mark.parametrize("row_bytes", [4, 80, 400, 4096])
@pytest.mark.parametrize("num_slots", [1000, 100_000, 700_000])
@pytest.mark.parametrize("resident", [2 * MIB, 200 * MIB])
def test_nothing_exceeds_what_the_loader_has(row_bytes: int, num_slots: int, resident: int) -> None:
    placement = placement_of(num_slots, 20, resident, row_bytes)
    assert placement.superbatch is not None
    num_bytes = placement.superbatch.num_bytes
    size = sized(placement, row_bytes)
    assert num_slots <= size.num_slots <= 10**6
    assert 20 <= size.superbatch <= 300
    # In training: the slots, in place of all that the loader held but seeds.
    held = SlotCache.reserve(row_bytes).bytes_of({SLOTS: size.num_slots})
    assert size.num_slots == num_slots or held <= resident + num_bytes - MIB
    # While packing: what is known of slots, as the planner's policy says, and superbatches.
    planned = (SlotCache.reserve(0), *placement.superbatch.reservations[1:])
    packing = Ledger(num_bytes, planned)
    assert size.num_slots == num_slots or packing.left(
        {SLOTS: size.num_slots, PLANNED: size.superbatch}
    ) in range(num_bytes)
    policy, planning = packing.bytes_each(SLOTS), COSTS.policy.reserve(10_000)
    assert policy == sum(part.per.get(SLOTS, 0) for part in planning) + 8
    assert size.memory_bytes + policy * size.num_slots == num_bytes


def test_more_is_cached_than_while_training_and_packing_at_once() -> None:
    size = sized(placement_of(100_000, 20, 200 * MIB, 400))
    assert size.num_slots > 5 * 100_000
    assert size.superbatch > 20


def test_what_the_user_has_decided_stays() -> None:
    placement = placement_of(100_000, 20, 200 * MIB, 400)
    assert sized(placement, cache_is_given=True).num_slots == 100_000
    assert sized(placement, superbatch_is_given=True).superbatch == 20


def test_bounds() -> None:
    placement = placement_of(100_000, 200, 9000 * MIB, 400)
    size = sized(placement)
    assert size.num_slots <= 10**6
    assert size.superbatch <= 300
    assert sized(placement, row_bytes=0).num_slots == 0
