"""Arrays that loaders read whole lie where a machine puts them, each under one key."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gnnstore
from gnnstore._core import ReadCounts
from gnnstore.disk.engines import open_engine
from gnnstore.features import static
from gnnstore.features.source import RowSource, Tier, of_one_type
from gnnstore.features.static import StaticCache
from gnnstore.features.tables import open_attribute
from gnnstore.graph.topology import bytes_for_all, open_neighbor_cache
from gnnstore.machine import PRIVATE, Growing, Machine
from gnnstore.shared_memory import Bytes
from gnnstore.testing.graphs import random_graph

N = 400


class Remembering(Machine):
    """Gives out an array once more, read-only, to whoever wants the same content."""

    def __init__(self) -> None:
        self.arrays: dict[str, Bytes] = {}
        self.growing: dict[str, Growing] = {}

    def share(self, key: str, num_bytes: int, fill: Callable[[Bytes], None]) -> Bytes:
        if key not in self.arrays:
            self.arrays[key] = super().share(key, num_bytes, fill)
            self.arrays[key].flags.writeable = False
        assert len(self.arrays[key]) == num_bytes
        return self.arrays[key]

    def share_growing(self, key: str, num_bytes: int, fill: Callable[[Growing], None]) -> Growing:
        if key not in self.growing:
            self.growing[key] = super().share_growing(key, num_bytes, fill)
        return self.growing[key]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(N, 3000, feature_dim=20, num_classes=5)
    return graph.write(tmp_path_factory.mktemp("machine") / "g.gnn")


def test_a_topology_and_tables_are_filled_once(path: Path) -> None:
    machine, ids = Remembering(), np.arange(0, N, 3)
    expected = gnnstore.open(path)
    num_arrays = []
    for _ in range(2):  # as two processes do
        store = gnnstore.open(path)
        csc = store.topology("memory", 1, machine).columns()
        np.testing.assert_array_equal(csc.indices, expected.topology().columns().indices)
        for spec in store.schema.node_attributes():
            rows = open_attribute(store.reader, spec, "memory", 1, machine)
            own = open_attribute(store.reader, spec, "memory")
            np.testing.assert_array_equal(rows.gather(ids).values, own.gather(ids).values)
        num_arrays.append(len(machine.arrays))
    specs = [*store.schema.node_attributes(), store.schema.edge.indptr, store.schema.edge.indices]
    assert num_arrays == [len(specs)] * 2
    assert all(key.startswith(store.reader.uuid) for key in machine.arrays)


def test_caches_of_the_same_choice_are_filled_once(path: Path) -> None:
    machine, store = Remembering(), gnnstore.open(path)
    engine = open_engine(path / "zarr.json", "pread")
    table = open_attribute(store.reader, store.schema.node.attributes["x"], engine)
    scores = np.random.default_rng(0).integers(1, 9, N).astype(np.uint8)

    def cached(rows: RowSource, num_rows: int) -> int:
        """Return how many of all rows come from a cache of some, which must have all filled."""
        cache = StaticCache(of_one_type({"x": rows}), N, machine, "a store's cache")
        nodes = np.arange(N - num_rows, N)
        cache.warm_up(nodes, scores[nodes])
        found = cache.rows("x").gather(np.arange(N))
        np.testing.assert_array_equal(found.values, table.gather(np.arange(N)).values)
        return found.counts.rows_cached

    assert [cached(table, 100), cached(table, 100), len(machine.growing)] == [100, 100, 1]
    assert [cached(table, 90), len(machine.growing)] == [90, 2]

    topology = store.topology("disk").on_disk(store.reader, engine)
    ((of, csc),) = topology.csc.items()
    limit, rows = bytes_for_all(csc) // 2, topology.rows[of]
    one, other = (open_neighbor_cache(csc, rows, limit, machine) for _ in range(2))
    own = open_neighbor_cache(csc, rows, limit, PRIVATE)
    assert one is not None
    assert other is not None
    assert own is not None
    assert one.neighbors.base is other.neighbors.base
    for name in ("bits", "starts", "neighbors"):
        np.testing.assert_array_equal(getattr(one, name), getattr(own, name))


class Left(Growing):
    """Rows that another process has begun to fill."""

    is_left = False

    def take_over(self) -> bool:
        return self.is_left


def test_a_cache_that_another_process_has_left_is_filled(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static, "_LOOK_SECONDS", 0.001)
    store = gnnstore.open(path)
    engine = open_engine(path / "zarr.json", "pread")
    table = open_attribute(store.reader, store.schema.node.attributes["x"], engine)
    begun: list[Left] = []

    class Other(Machine):
        def share_growing(
            self,
            key: str,  # noqa: ARG002
            num_bytes: int,
            fill: Callable[[Growing], None],  # noqa: ARG002
        ) -> Growing:
            array = np.zeros(num_bytes, np.uint8)
            rows = array.reshape(-1, table.row_bytes)
            table.read_rows(np.arange(30), rows[:30])
            begun.append(Left(array, 30))
            return begun[0]

    cache = StaticCache(of_one_type({"x": table}), N, Other(), "a store's cache")
    cache.warm_up(np.arange(100), np.ones(100, np.uint8))

    def cached() -> int:
        found = cache.rows("x").gather(np.arange(N))
        np.testing.assert_array_equal(found.values, table.gather(np.arange(N)).values)
        return found.counts.rows_cached

    assert cached() == 30
    begun[0].is_left = True
    deadline = time.monotonic() + 60
    while cached() < 100:
        assert time.monotonic() < deadline
    cache.close()
    assert static.FILLING_THREAD not in {thread.name for thread in threading.enumerate()}


def test_rows_of_a_tier_are_of_one_process(path: Path) -> None:
    """A user's tier may change rows, in this process alone."""
    machine, store = Remembering(), gnnstore.open(path)
    engine = open_engine(path / "zarr.json", "pread")
    table = open_attribute(store.reader, store.schema.node.attributes["x"], engine)

    class Doubled(Tier):
        def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
            counts = self.below.read_rows(ids, out)
            out.reshape(-1).view(np.float32)[:] *= 2
            return counts

    for rows, factor in ((table, 1), (Doubled(table), 2)):
        cache = StaticCache(of_one_type({"x": rows}), N, machine, "a store's cache")
        cache.warm_up(np.arange(N), np.ones(N, np.uint8))
        found = cache.rows("x").gather(np.arange(N)).values
        np.testing.assert_array_equal(found, factor * table.gather(np.arange(N)).values)
