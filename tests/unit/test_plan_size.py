"""What a packed plan caches, and plans at a time, within the budget of a loader."""

from __future__ import annotations

import pytest

from gnnstore.sizing.placement import Placement
from gnnstore.sizing.plan_size import PlanSize, size_plan
from gnnstore.sizing.superbatch_size import SuperbatchSize
from gnnstore.strategies.builtin import PACKED

MIB = 1 << 20


def placement_of(num_slots: int, num_batches: int, num_bytes: int, resident: int) -> Placement:
    return Placement(
        strategy=PACKED,
        topology="memory",
        modes={},
        resident_bytes=resident,
        staging_bytes=8 * MIB,
        budget_bytes=1000 * MIB,
        budget_is_promise=True,
        reason="",
        superbatch=SuperbatchSize(num_batches, num_slots, True, num_bytes),
    )


def sized(placement: Placement, row_bytes: int = 400, **options: bool) -> PlanSize:
    given = {"cache_is_given": False, "superbatch_is_given": False} | options
    return size_plan(
        placement,
        row_bytes=row_bytes,
        num_rows=10**6,
        seeds_bytes=MIB,
        num_batches=300,
        **given,
    )


@pytest.mark.parametrize("row_bytes", [4, 80, 400, 4096])
@pytest.mark.parametrize("slot_share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("resident", [2 * MIB, 200 * MIB])
def test_nothing_exceeds_what_the_loader_has(
    row_bytes: int, slot_share: float, resident: int
) -> None:
    num_bytes = 300 * MIB
    slots = int(slot_share * num_bytes) // (row_bytes + 48)
    planning = num_bytes - slots * (row_bytes + 48)
    placement = placement_of(slots, 20, num_bytes, resident)
    size = sized(placement, row_bytes)
    assert size.num_slots >= min(slots, 10**6) or size.num_slots == slots
    assert size.superbatch >= 20
    # In training: the slots, in place of all that the loader held but seeds.
    held = size.num_slots * (row_bytes + 8)
    assert held <= max(resident + num_bytes - MIB, slots * (row_bytes + 48))
    # While packing: what the planner knows of slots, and superbatches.
    per_batch = (planning - 24 * MIB) // 20 if planning > 24 * MIB else planning // 20
    assert size.memory_bytes + 48 * size.num_slots == num_bytes
    if size.superbatch > 20:
        assert 24 * MIB + size.superbatch * per_batch <= size.memory_bytes


def test_more_is_cached_than_while_training_and_packing_at_once() -> None:
    placement = placement_of(100_000, 20, 100_000 * 448 + 100 * MIB, 200 * MIB)
    size = sized(placement)
    assert size.num_slots > 5 * 100_000
    assert size.superbatch > 20


def test_what_the_user_has_decided_stays() -> None:
    placement = placement_of(100_000, 20, 100_000 * 448 + 100 * MIB, 200 * MIB)
    assert sized(placement, cache_is_given=True).num_slots == 100_000
    assert sized(placement, superbatch_is_given=True).superbatch == 20


def test_bounds() -> None:
    placement = placement_of(100_000, 200, 100_000 * 448 + 30 * MIB, 9000 * MIB)
    size = sized(placement)
    assert size.num_slots <= 10**6
    assert size.superbatch <= 300
    assert sized(placement, row_bytes=0).num_slots == 0
