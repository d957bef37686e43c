"""Belady over several types: the reads of a loader are those of the twin, within the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.sampling.row_space import RowSpace
from tests.support.batches import assert_same_batches, batches_of
from tests.support.effort import choose
from tests.support.hetero import hetero_store
from tests.support.loaders import slots_of
from tests.support.twins.caches import belady_plan

# Nodes of each type, and the width and type of their features.
NODES: dict[str, tuple[int, int, torch.dtype]] = {
    "institution": (20, 0, torch.float32),
    "paper": (400, 768, torch.float32),  # 3 KiB
    "venue": (90, 100, torch.float32),
    "author": (1_000_000, 1, torch.float16),  # 2 bytes
    "topic": (3000, 50, torch.float32),
}
OPTIONS: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 3, "num_threads": 1}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All edges lead to papers, from few nodes of each type, so that these are needed again."""
    data, rng = HeteroData(), torch.Generator().manual_seed(0)
    for name, (count, width, dtype) in NODES.items():
        if width:
            data[name].x = torch.rand(count, width, generator=rng).to(dtype)
        else:
            data[name].num_nodes = count
        ends = torch.randint(0, NODES["paper"][0], (1500,), generator=rng)
        sources = torch.randint(0, min(count, 300), (1500,), generator=rng) * (count // 300 or 1)
        data[name, "to", "paper"].edge_index = torch.stack([sources, ends])
    return hetero_store(tmp_path_factory.mktemp("typed") / "s.gnn", data).path


@pytest.mark.parametrize(
    ("memory", "read"),
    [("15MB", ("paper", "author", "topic")), *choose((), (("24MB", ("paper", "topic")),))],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_reads_are_those_of_the_twin(path: Path, memory: str, read: tuple[str, ...]) -> None:
    plain = NeighborLoader(path, [4, 3], "paper", strategy="memory", **OPTIONS)
    expected = batches_of(plain, 2)
    num_batches, store = len(plain), gnnstore.open(path)  # what others hold would be taken
    budget: dict[str, Any] = {"memory": memory, "cache_bytes": "500kB", "io_engine": "pread"}
    loader = NeighborLoader(
        store, [4, 3], "paper", strategy="belady", superbatch=num_batches, **budget, **OPTIONS
    )
    placement = loader._sources.placement
    assert placement.read_paths == {f"nodes/{name}/x" for name in read}
    assert placement.superbatch is not None
    used = placement.ledger.peak() + placement.superbatch.num_bytes
    assert used <= placement.budget_bytes == int(memory.removesuffix("MB")) * 10**6

    assert_same_batches(batches_of(loader), expected[:num_batches])
    slots, before = slots_of(store), loader.stats()
    # With slots of 3 KiB for rows of any type there would be room for 162.
    assert slots.num_bytes <= 500_000
    assert slots.num_slots > 1.5 * 162
    space = RowSpace.of_schema(store.schema, placement.read_paths)
    batches = [
        space.rows({name: batch[name]["n_id"].numpy() for name in NODES})
        for batch in expected[num_batches:]
    ]
    # Each type has slots of its own, the widest first.
    pools, num_missed = placement.superbatch.pools, 0
    assert pools is not None
    assert pools.widths == (3072, 200, 2)[: len(read)]
    for (own,), section in zip(pools.ranges, pools.sections(slots.num_slots), strict=True):
        planned = [rows[own.within(rows)].tolist() for rows in batches]
        held = slots.planned_nodes[section].tolist()
        num_missed += sum(belady_plan(planned, held, [0] * len(held)).misses)
    assert_same_batches(batches_of(loader), expected[num_batches:])
    since = loader.stats().since(before)
    assert since.rows_read == num_missed
    assert since.rows_cached == sum(map(len, batches)) - num_missed
    assert 0.1 < since.hit_rate < 0.9
    in_one_pool = belady_plan([rows.tolist() for rows in batches], [-1] * 162, [0] * 162)
    assert since.rows_read < sum(in_one_pool.misses)


def test_a_static_cache_is_filled_by_the_widths_of_its_rows(path: Path) -> None:
    """With 3 KiB for each node there would be room for 160."""
    plain = NeighborLoader(path, [4, 3], "paper", strategy="memory", **OPTIONS)
    store = gnnstore.open(path)
    budget: dict[str, Any] = {"memory": "24MB", "cache_bytes": "500kB", "io_engine": "pread"}
    loader = NeighborLoader(store, [4, 3], "paper", strategy="static", **budget, **OPTIONS)
    assert_same_batches(batches_of(loader), batches_of(plain))
    cache = loader._sources.placement.cache
    assert cache is not None
    assert 450_000 < cache.num_bytes <= 500_000
    assert cache.num_rows == loader.stats().cache_rows > 1.5 * 160


def test_packed_rows_of_all_widths(path: Path) -> None:
    """Rows of 200 bytes and of 3 KiB come from chunks, and from the slots of their pools."""
    plain = NeighborLoader(path, [4, 3], "paper", strategy="memory", **OPTIONS)
    store = gnnstore.open(path)
    budget: dict[str, Any] = {"memory": "40MB", "cache_bytes": "500kB", "io_engine": "pread"}
    loader = NeighborLoader(store, [4, 3], "paper", strategy="packed", **budget, **OPTIONS)
    superbatch = loader._sources.placement.superbatch
    assert superbatch is not None
    assert superbatch.pools is not None
    assert superbatch.pools.widths == (3072, 200)
    num_epochs = choose(1, 2)
    assert_same_batches(batches_of(loader, num_epochs), batches_of(plain, num_epochs))
    stats = loader.stats()
    assert stats.rows_cached > 100
    assert stats.bytes_packing > 0
    assert slots_of(store).num_bytes <= 500_000
