"""The neighbour cache of a large graph is filled in the background; batches are the same."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import NeighborLoader, threads
from gnnstore.disk.engines import open_engine
from gnnstore.formats.store.csc import Csc
from gnnstore.graph.indices import IndexRows
from gnnstore.graph.neighbor_cache import cache
from gnnstore.graph.neighbor_cache.cache import NeighborCache, bytes_for_all, open_neighbor_cache
from gnnstore.graph.store import GraphStore
from gnnstore.graph.topology import Topology
from gnnstore.sampling import SamplingConfig
from gnnstore.testing.graphs import random_graph
from tests.support.batches import assert_same_batches, batches_of

CONFIG = SamplingConfig((5, 3), seed=2)
THREAD = "gnnstore-neighbors"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return random_graph(2000, 30_000, seed=3, feature_dim=8).write(tmp_path / "s.gnn")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have any graph's lists be read in a thread, in no memory of its own."""
    monkeypatch.setattr(cache, "LONG_READ_BYTES", 0)
    monkeypatch.setattr(cache, "_bytes_in_background", lambda *_: 0)
    monkeypatch.setattr(cache, "bytes_to_choose", lambda _: 0)


class Gate:
    """Reads of lists that wait until they may begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.error: Exception | None = None
        read = IndexRows.read

        def later(rows: Any, start: int, stop: int) -> Any:
            if threading.current_thread().name == THREAD:
                assert self.go_on.wait(60)
                if self.error is not None:
                    raise self.error
            return read(rows, start, stop)

        monkeypatch.setattr(IndexRows, "read", later)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.go_on.set()
    join()


def join() -> None:
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join()


def opened(path: Path) -> tuple[Topology, Csc, IndexRows, str]:
    store = GraphStore(path)
    engine = open_engine(store.path / "zarr.json")
    topology = store.topology("disk").on_disk(store.reader, engine)
    (rows,) = topology.rows.values()
    return topology, topology.columns(), rows, store.reader.uuid


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("share", [3, 1])
def test_batches_do_not_wait_for_it(path: Path, gate: Gate, share: int) -> None:
    topology, csc, rows, uuid = opened(path)
    num_bytes = bytes_for_all(csc) // share
    cache = NeighborCache(csc, rows, num_bytes, uuid)
    sampler = replace(topology, neighbors={csc.edge_type: cache}).sampler(CONFIG, "int64")

    def sample() -> tuple[Any, int]:
        before = rows.counts.rows_read
        sample = sampler.sample(np.arange(64), epoch=0, batch=0)
        return sample, rows.counts.rows_read - before

    first, num_first = sample()
    assert cache.current() is None
    assert cache.num_bytes == num_bytes, "it is counted from the beginning"
    gate.go_on.set()
    join()
    expected = open_neighbor_cache(csc, rows, num_bytes, uuid)
    filled = cache.current()
    assert filled is not None
    assert expected is not None
    np.testing.assert_array_equal(filled.bits, expected.bits)
    np.testing.assert_array_equal(filled.neighbors, expected.neighbors)
    assert cache.num_bytes == expected.num_bytes <= num_bytes
    later, num_later = sample()
    assert num_later < num_first
    for name in ("n_id", "edge_index", "edge_pos"):
        np.testing.assert_array_equal(getattr(later, name), getattr(first, name))


@pytest.mark.usefixtures("large")
def test_nobody_wants_it_any_more(path: Path, gate: Gate) -> None:
    _, csc, rows, uuid = opened(path)
    cache = NeighborCache(csc, rows, bytes_for_all(csc) // 3, uuid)
    filled, stop = cache._filled, cache.stop
    gate.go_on.set()
    gate_is_open = time.monotonic()
    del cache
    gc.collect()
    join()
    assert time.monotonic() - gate_is_open < 30
    stop()
    assert len(filled) <= 1


@pytest.mark.usefixtures("large")
def test_a_list_that_cannot_be_read_is_told_by_the_batch_that_needs_it(
    path: Path, gate: Gate
) -> None:
    gate.error = OSError("no such sector")
    gate.go_on.set()
    topology, csc, rows, uuid = opened(path)
    cache = NeighborCache(csc, rows, bytes_for_all(csc), uuid)
    join()
    assert cache.current() is None
    sampler = replace(topology, neighbors={csc.edge_type: cache}).sampler(CONFIG, "int64")
    sampler.sample(np.arange(9), epoch=0, batch=0)


@pytest.mark.usefixtures("large")
def test_a_loader(path: Path, gate: Gate) -> None:
    options: dict[str, Any] = {"batch_size": 50, "shuffle": True, "seed": 1}
    plain = NeighborLoader(path, [4, 4], range(500), strategy="memory", **options)
    loader = NeighborLoader(
        path, [4, 4], range(500), strategy="static", topology="disk", memory="80MB", **options
    )
    assert_same_batches(batches_of(loader), batches_of(plain))
    gate.go_on.set()
    join()
    before = loader.stats()
    assert_same_batches(batches_of(loader), batches_of(plain))
    since = loader.stats().since(before)
    assert since.topology_reads < before.topology_reads


def test_memory_that_there_is_for_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread reads only where it fits into the memory that the cache is promised."""
    _, csc, rows, uuid = opened(path)
    small = bytes_for_all(csc)
    begun = []
    monkeypatch.setattr(threading.Thread, "start", lambda t: begun.append(t.name))
    NeighborCache(csc, rows, 1 << 30, uuid)
    assert not begun, "it is read at once"
    monkeypatch.setattr(cache, "LONG_READ_BYTES", 0)
    assert NeighborCache(csc, rows, small, uuid).current() is not None
    assert NeighborCache(csc, rows, small // 2, uuid).current() is not None
    assert not begun, "there is no memory for a thread"
    monkeypatch.setattr(threads, "Finalizer", lambda *_: None)
    waiting = NeighborCache(csc, rows, 1 << 30, uuid)
    assert waiting.current() is None
    assert begun == [THREAD]
