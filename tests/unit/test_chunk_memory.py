"""Memory for packed rows is taken where that moves fewer bytes, by the prediction."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gnnstore.budget.ledger import Ledger
from gnnstore.caching.policies.registry import BELADY
from gnnstore.features.packed.memory import PackedBatch
from gnnstore.pipeline.superbatch_size import SuperbatchSize
from gnnstore.strategies.sizes.packing import ChunkMemory
from gnnstore.strategies.sizes.settings import PlannedSettings
from gnnstore.strategies.sizes.superbatch import SuperbatchCosts, SuperbatchSizer

MB = 10**6
EPOCH = 200
COSTS = SuperbatchCosts(
    num_rows=10**6,
    row_bytes=512,
    batch_nodes=10_000,
    id_bytes=4,
    kept_bytes=100_000,
    policy=BELADY,
    packed=PackedBatch(10_000, 1000, 1000, 4),
    epoch_batches=EPOCH,
)


def memory_of(
    left: int,
    disk: int,
    *,
    missed: float = 0.0,
    least_missed: int = 1000,
    **settings: int | None,
) -> tuple[ChunkMemory, SuperbatchSizer]:
    """Return what weighs memory, where a batch misses so many rows more for each lost slot."""
    sizer = SuperbatchSizer(
        COSTS,
        PlannedSettings(settings.get("cache_bytes"), settings.get("num_batches")),
        Ledger(left, who="strategy 'packed'"),
        EPOCH,
        disk,
    )
    most_slots = left // 512

    def cost(costs: SuperbatchCosts, size: SuperbatchSize) -> float:
        on_disk = Ledger(disk, tuple(costs.packed_on_disk(size.num_batches)))
        if on_disk.left(costs.on_disk(size.num_batches)) < 0:
            return math.inf
        scans = EPOCH / size.num_batches
        misses = EPOCH * (least_missed + missed * (most_slots - size.num_slots))
        kept = scans * size.chunk_memory_bytes / costs.row_bytes
        return scans * costs.num_rows + 2 * max(0, misses - kept)

    return ChunkMemory(sizer, cost, lambda num: EPOCH / num * COSTS.num_rows), sizer


@pytest.mark.parametrize("disk", [0, 50 * MB, 10**10])
@pytest.mark.parametrize("left", [150 * MB, 300 * MB, 10**9])
@pytest.mark.parametrize("missed", [0.0, 1e-4, 1e-2])
def test_never_worse_than_without(disk: int, left: int, missed: float) -> None:
    memory, sizer = memory_of(left, disk, missed=missed)
    before = sizer.choose(lambda size: memory.cost(COSTS, size))
    costs, after = memory.improve(before)
    assert memory.cost(costs, after) <= memory.cost(COSTS, before)
    assert after.chunk_memory_bytes == costs.chunk_memory_bytes
    assert after.num_bytes <= left
    reserved = replace(COSTS, chunk_memory_bytes=after.chunk_memory_bytes).chunks
    assert sum(part.fixed for part in reserved) == 2 * after.chunk_memory_bytes


def test_without_disk_a_superbatch_is_kept_whole() -> None:
    memory, sizer = memory_of(300 * MB, 0)
    before = sizer.choose(lambda size: memory.cost(COSTS, size))
    costs, after = memory.improve(before)
    assert math.isinf(memory.cost(COSTS, before))
    assert after.chunk_memory_bytes >= COSTS.chunks_of(after.num_batches)
    assert math.isfinite(memory.cost(costs, after))


def test_rows_of_the_cache_that_save_more_stay() -> None:
    """A slot that saves a miss in most batches is worth more than a write and a read."""
    memory, sizer = memory_of(300 * MB, 10**10, missed=0.5)
    before = sizer.choose(lambda size: memory.cost(COSTS, size))
    assert memory.improve(before) == (COSTS, before)


def test_memory_that_no_cache_takes_is_used() -> None:
    memory, sizer = memory_of(10**9, 10**10, cache_bytes=MB)
    before = sizer.choose(lambda size: memory.cost(COSTS, size))
    _, after = memory.improve(before)
    assert after.num_slots == before.num_slots
    assert after.chunk_memory_bytes >= COSTS.chunks_of(after.num_batches)


def test_a_given_number_of_batches_stays() -> None:
    memory, sizer = memory_of(10**9, 0, num_batches=20)
    _, after = memory.improve(sizer.choose(lambda size: memory.cost(COSTS, size)))
    assert after.num_batches == 20
    assert after.chunk_memory_bytes >= COSTS.chunks_of(20)


def test_what_stays_in_memory_takes_no_disk() -> None:
    each = COSTS.chunks_of(1)
    costs = replace(COSTS, chunk_memory_bytes=7 * each)
    for num_batches, written in ((5, 0), (10, 2 * 3 * each), (EPOCH, 193 * each)):
        disk = Ledger(0, tuple(costs.packed_on_disk(num_batches)))
        assert disk.peak(costs.on_disk(num_batches)) == written
