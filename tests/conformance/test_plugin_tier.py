"""A tier that only this file knows of: stacked on each source, and through each kind of loader."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.disk.engines import open_engine
from gnnstore.errors import UsageError
from gnnstore.features.source import of_one_type
from gnnstore.features.static import StaticCache
from gnnstore.features.tables import open_rows
from gnnstore.plugins import (
    STRATEGIES,
    CacheKey,
    ReadCounts,
    RowRequest,
    RowSource,
    Tier,
    shared_caches,
    shared_tables,
)
from gnnstore.testing.graphs import random_graph
from tests.support.batches import assert_same_batches, batches_of
from tests.support.effort import choose

N, E, WIDTH = 600, 6000, 30


class RecentRows(Tier):
    """Keeps the rows that were asked for last, in a dict: slow, but a tier."""

    num_hits = 0

    def __init__(self, below: RowSource) -> None:
        super().__init__(below)
        self._rows: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def read_rows(self, ids: NDArray[Any], out: NDArray[Any]) -> ReadCounts:
        values = self.spec.view(out)
        with self._lock:
            found = {k: self._rows[i] for k, i in enumerate(ids.tolist()) if i in self._rows}
            RecentRows.num_hits += len(found)
        missed = np.array([k not in found for k in range(len(ids))], np.bool_)
        rows = self.spec.empty(int(np.count_nonzero(missed)))
        counts = self.below.read_rows(ids[missed], rows)
        values[missed] = rows
        for k, row in found.items():
            values[k] = row
        with self._lock:
            for i, row in zip(ids.tolist(), values, strict=True):
                self._rows[i] = row.copy()
                self._rows.move_to_end(i)
            while len(self._rows) > 100:
                self._rows.popitem(last=False)
        return counts + ReadCounts(rows_cached=len(found))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(N, E, seed=5, feature_dim=WIDTH, num_classes=7, skew=2.0)
    graph.attributes["edge_attr"] = np.random.default_rng(0).random((E, 20), dtype=np.float32)
    return graph.write(tmp_path_factory.mktemp("tier") / "s.gnn")


def in_memory(store: gnnstore.GraphStore) -> RowSource:
    return open_rows(store.reader.paged(store.schema.node.attributes["x"]), "memory")


def mapped(store: gnnstore.GraphStore) -> RowSource:
    return open_rows(store.reader.paged(store.schema.node.attributes["x"]), "mmap")


def direct(store: gnnstore.GraphStore) -> RowSource:
    array = store.reader.paged(store.schema.node.attributes["x"])
    return open_rows(array, open_engine(array.file_paths[0]))


def static(store: gnnstore.GraphStore) -> RowSource:
    return behind_a_static_cache(direct(store))


def behind_a_static_cache(rows: RowSource) -> RowSource:
    cache = StaticCache(of_one_type({"x": rows}), N)
    cache.warm_up(np.arange(0, N, 3), np.ones(N // 3, np.uint8))
    return cache.rows("x")


def plain(rows: RowSource) -> RowSource:
    return rows


@pytest.mark.parametrize("above", [plain, RecentRows, behind_a_static_cache])
@pytest.mark.parametrize("source", [in_memory, mapped, direct, static])
def test_stacked_on_each_source(
    path: Path,
    source: Callable[[gnnstore.GraphStore], RowSource],
    above: Callable[[RowSource], RowSource],
) -> None:
    """Below another tier as well: all rows, those without a slot, and others copied meanwhile."""
    store = gnnstore.open(path)
    expected = in_memory(store).gather(np.arange(N)).values
    below = source(store)
    rows = above(RecentRows(below))
    assert rows.spec == below.spec
    assert rows.file_rows is below.file_rows
    rng = np.random.default_rng(0)
    held = rng.random((40, WIDTH), dtype=np.float32)
    hits = RecentRows.num_hits
    for count in (0, 1, 200, 200):
        ids = rng.integers(0, N, count)
        np.testing.assert_array_equal(rows.gather(ids).values, expected[ids])
        slots = rng.integers(-1, 40, count).astype(np.int32)
        slots[rng.random(count) < 0.5] = -1
        out = np.full((count, WIDTH), 7, np.float32)
        rows.read_into(RowRequest(ids, slots), out)
        wanted = np.where(slots[:, None] < 0, expected[ids], np.float32(7))
        np.testing.assert_array_equal(out, wanted)
        counts = rows.read_into(RowRequest(ids, slots, held.view(np.uint8)), out)
        assert counts.rows_cached >= np.count_nonzero(slots >= 0)
        np.testing.assert_array_equal(out, np.where(slots[:, None] < 0, expected[ids], held[slots]))
    out = np.empty((50, WIDTH), np.float32)
    rows.read_range(7, out)
    np.testing.assert_array_equal(out, expected[7:57])
    assert RecentRows.num_hits > hits


@pytest.mark.parametrize(
    "strategy", choose(["memory", "static", "packed"], ["auto", *STRATEGIES.names])
)
def test_through_a_loader(path: Path, strategy: str) -> None:
    def loader_of(store: gnnstore.GraphStore, strategy: str) -> NeighborLoader:
        options: dict[str, Any] = {"batch_size": 50, "shuffle": True, "seed": 3}
        if strategy in STRATEGIES and (STRATEGIES[strategy].caches or STRATEGIES[strategy].plans):
            options["cache_bytes"] = "40kB"
        return NeighborLoader(store, [4, 4], "train", strategy=strategy, num_threads=2, **options)

    expected = batches_of(loader_of(gnnstore.open(path), "memory"), 2)
    store = gnnstore.open(path)
    shared_tables(store).add_tier(RecentRows)
    hits = RecentRows.num_hits
    assert_same_batches(batches_of(loader_of(store, strategy), 2), expected)
    assert RecentRows.num_hits > hits


def test_in_front_of_one_table(path: Path) -> None:
    store = gnnstore.open(path)
    asked: list[tuple[int, ...]] = []

    class Named(RecentRows):
        def read_rows(self, ids: NDArray[Any], out: NDArray[Any]) -> ReadCounts:
            asked.append(self.spec.shape)
            return super().read_rows(ids, out)

    shared_tables(store).add_tier(Named, store.schema.edge.attributes["edge_attr"].path)
    loader = NeighborLoader(store, [4, 4], "train", batch_size=50, strategy="direct")
    assert all("x" in batch and "edge_attr" in batch for batch in loader)
    assert set(asked) == {(20,)}


def test_names_that_plug_ins_had_before_are_refused_with_the_new_ones(path: Path) -> None:
    class Former:
        num_bytes = 0

        def retire(self) -> None:
            """Free its memory."""

    store, make = gnnstore.open(path), cast("Any", Former)
    with pytest.raises(UsageError, match=r"shared_caches\(store\)\.find_cache"):
        cast("Any", shared_tables(store)).find_cache(CacheKey("kind", "x"))
    with pytest.raises(UsageError, match=r"Former has no close\(\).* rename its retire\(\)"):
        shared_caches(store).cache(CacheKey("kind", "x"), make)
