"""Sampling with in-neighbours on disk is sampling in memory, bit for bit, however it fetches.

Whatever the graph and the options, whichever lists a neighbour cache holds, alone or together
with other batches; and what is damaged on disk is an error that says so.
"""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.disk.engines import Engine, open_engine
from gnnstore.errors import CorruptStoreError, StorageError
from gnnstore.formats.store.store import Csc
from gnnstore.graph.topology import (
    IndexRows,
    all_lists,
    bytes_for_all,
    choose_lists,
    index_bytes,
    open_neighbor_cache,
)
from gnnstore.sampling.disk import CachedNeighbors, DiskNeighborSampler, StagedBatch
from gnnstore.sampling.neighbor import BatchRequest, NeighborSampler, Sample, SamplingConfig
from tests.support.effort import examples
from tests.support.faults import inject
from tests.support.twins.reads import write_array

FANOUTS = st.lists(st.one_of(st.just(-1), st.integers(0, 12), st.integers(30, 50)), max_size=3).map(
    tuple
)


def random_csc(num_nodes: int, max_degree: int, dtype: Any, seed: int) -> Csc:
    """Make a graph with hubs, isolated nodes, loops and repeated edges."""
    rng = np.random.default_rng(seed)
    degrees = rng.integers(0, max_degree + 1, num_nodes) * rng.integers(0, 2, num_nodes)
    if num_nodes > 3:
        degrees[num_nodes // 3] = 5 * max_degree
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    skewed = (num_nodes * rng.random(indptr[-1]) ** 2).astype(dtype)
    return Csc(indptr, skewed, num_nodes, label="the/store")


def cached_lists(csc: Csc, nodes: npt.NDArray[Any]) -> CachedNeighbors:
    """Build a cache of some nodes' lists, one node at a time."""
    bits = np.zeros(-(-csc.num_nodes // 64), np.uint64)
    starts = np.zeros(len(bits), np.int64)
    lists = [np.empty(0, csc.indices.dtype)]
    for node in range(csc.num_nodes):
        if node % 64 == 0:
            starts[node // 64] = sum(map(len, lists))
        if node in nodes:
            bits[node // 64] |= np.uint64(1 << node % 64)
            lists.append(csc.indices[csc.indptr[node] : csc.indptr[node + 1]])
    return CachedNeighbors(bits, starts, np.concatenate(lists))


def assert_same(got: Sample, want: Sample) -> None:
    for name in ("n_id", "edge_index", "edge_pos"):
        ours, theirs = getattr(got, name), getattr(want, name)
        np.testing.assert_array_equal(ours, theirs, err_msg=name, strict=True)
    np.testing.assert_equal(got.trees, want.trees)
    assert (got.hop_nodes, got.hop_edges) == (want.hop_nodes, want.hop_edges)
    assert got.num_seeds == want.num_seeds


@settings(max_examples=examples(300), deadline=None)
@given(
    num_nodes=st.integers(1, 150),
    max_degree=st.sampled_from([0, 3, 15, 60]),
    dtype=st.sampled_from([np.int32, np.int64]),
    graph_seed=st.integers(0, 2**32),
    data=st.data(),
    fanouts=FANOUTS,
    seed=st.integers(0, 2**64 - 1),
    replace_=st.booleans(),
    kind=st.sampled_from(["directional", "bidirectional", "induced", "disjoint", "both"]),
    index_dtype=st.sampled_from(["int32", "int64"]),
    share_cached=st.sampled_from([None, 0.0, 0.3, 1.0]),
    column_positions=st.sampled_from([1, 7, 1 << 20]),
)
def test_equal_to_sampling_in_memory(
    *,
    num_nodes: int,
    max_degree: int,
    dtype: Any,
    graph_seed: int,
    data: st.DataObject,
    fanouts: tuple[int, ...],
    seed: int,
    replace_: bool,
    kind: str,
    index_dtype: Any,
    share_cached: float | None,
    column_positions: int,
) -> None:
    csc = random_csc(num_nodes, max_degree, dtype, graph_seed)
    config = SamplingConfig(
        fanouts,
        replace=replace_,
        subgraph_type="directional"
        if kind == "disjoint"
        # type: ignore[arg-type]
        else "bidirectional"
        if kind == "both"
        else kind,
        disjoint=kind in ("disjoint", "both"),
        seed=seed,
    )
    cache = None
    if share_cached is not None:
        rng = np.random.default_rng(graph_seed)
        cache = cached_lists(csc, np.flatnonzero(rng.random(num_nodes) < share_cached))
    seeds = st.lists(st.integers(0, num_nodes - 1), max_size=12)
    requests = [
        (data.draw(seeds, label="seeds"), epoch, batch) for epoch in range(2) for batch in range(3)
    ]
    sampler = NeighborSampler(csc, config, index_dtype)
    want = [sampler.sample(ids, epoch=epoch, batch=batch) for ids, epoch, batch in requests]

    asked = []

    def fetch(positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        asked.append(len(positions))
        return csc.indices[positions]

    # Only its length and dtype may be looked at.
    hidden = replace(csc, indices=np.full_like(csc.indices, -1))
    disk = disk_sampler(hidden, config, index_dtype, fetch, cache)
    for (ids, epoch, batch), expected in zip(requests, want, strict=True):
        assert_same(disk.sample(ids, epoch=epoch, batch=batch), expected)
    assert sum(asked) == 0 or share_cached != 1.0

    num_threads = data.draw(st.integers(1, 3), label="threads")
    memory_bytes = data.draw(st.sampled_from([0, 20_000, 10**9]), label="memory")
    many = disk.sample_many(
        starmap(BatchRequest, requests), memory_bytes=memory_bytes, num_threads=num_threads
    )
    for got, expected in zip(many, want, strict=True):
        assert_same(got, expected)

    # Whole columns in pieces of any size.
    staged = StagedBatch(disk, BatchRequest(*requests[0]), disk.caches, column_positions)
    while (drawn := staged.draw()) is not None:
        assert all(len(positions) > 0 for _, positions in drawn)
        staged.take([csc.indices[positions] for _, positions in drawn])
    assert_same(staged.result(), want[0])


def disk_sampler(
    csc: Csc,
    config: SamplingConfig,
    index_dtype: Any,
    fetch: Any,
    cache: CachedNeighbors | None = None,
) -> DiskNeighborSampler:
    caches = {} if cache is None else {csc.edge_type: cache}
    fetches: dict[Any, Any] = {(csc.edge_type, "indices"): fetch}
    return DiskNeighborSampler(csc, config, index_dtype, fetches, caches)


@pytest.fixture(scope="module")
def opened(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    file = tmp_path_factory.mktemp("opened") / "file"
    file.write_bytes(bytes(4096))
    return open_engine(file, engine)


@pytest.fixture(params=[np.int32, np.int64])
def stored(request: pytest.FixtureRequest, tmp_path: Path, opened: Engine) -> tuple[Csc, IndexRows]:
    """Return a graph in memory, and its indices on disk: several shards of them."""
    csc = random_csc(3000, 60, request.param, 5)
    array = write_array(tmp_path / "indices", csc.indices, shard_bytes=1 << 16)
    assert array.layout.num_shards > 2
    return csc, IndexRows.open(array, opened)


CONFIGS = [
    SamplingConfig((10, 5), seed=3),
    SamplingConfig((-1, 3), replace=True, disjoint=True),
    SamplingConfig((4, 0, 2), subgraph_type="bidirectional"),
    SamplingConfig((3,), subgraph_type="induced"),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_from_disk(stored: tuple[Csc, IndexRows], config: SamplingConfig) -> None:
    csc, rows = stored
    memory = NeighborSampler(csc, config)
    requests = [(np.arange(100 * batch, 100 * batch + 64), 1, batch) for batch in range(12)]
    want = [memory.sample(ids, epoch=epoch, batch=batch) for ids, epoch, batch in requests]
    largest = bytes_for_all(csc)
    hidden = replace(csc, indices=np.full_like(csc.indices, -1))
    read = []
    for num_bytes in (0, largest // 4, largest):
        cache = open_neighbor_cache(hidden, rows, num_bytes)
        assert (cache is None) == (num_bytes == 0)
        assert cache is None or cache.num_bytes <= num_bytes
        disk = disk_sampler(hidden, config, "int64", rows.fetch, cache)
        before = rows.counts.reads
        with ThreadPoolExecutor(3) as pool:
            alone = pool.map(lambda r, s=disk: s.sample(r[0], epoch=r[1], batch=r[2]), requests)
            for got, expected in zip(alone, want, strict=True):
                assert_same(got, expected)
        read.append(rows.counts.reads - before)
        together = disk.sample_many(
            starmap(BatchRequest, requests), memory_bytes=1 << 22, num_threads=2
        )
        for got, expected in zip(together, want, strict=True):
            assert_same(got, expected)
    assert read[0] > read[2] == 0


def test_together_reads_less(stored: tuple[Csc, IndexRows]) -> None:
    csc, rows = stored
    disk = disk_sampler(csc, CONFIGS[0], "int64", rows.fetch)
    requests = [(np.arange(10 * batch, 10 * batch + 10), 0, batch) for batch in range(128)]
    for ids, epoch, batch in requests:
        disk.sample(ids, epoch=epoch, batch=batch)
    alone = rows.counts
    list(disk.sample_many(starmap(BatchRequest, requests), memory_bytes=1 << 30))
    # Groups of 1, 2, 4 and so on; two hops each.
    assert rows.counts.bytes_read - alone.bytes_read < alone.bytes_read / 2


def importance(csc: Csc) -> npt.NDArray[np.float32]:
    in_degrees = np.diff(csc.indptr)
    out_degrees = np.bincount(csc.indices, minlength=csc.num_nodes)
    ratio = out_degrees.astype(np.float32) / np.maximum(in_degrees, 1).astype(np.float32)
    return np.where(in_degrees > 0, ratio, 0).astype(np.float32)


@settings(max_examples=examples(200), deadline=None)
@given(
    num_nodes=st.integers(0, 300),
    max_degree=st.sampled_from([0, 1, 4, 40]),
    seed=st.integers(0, 2**32),
    share=st.floats(0, 1.1),
)
def test_the_most_important_lists_are_chosen(
    num_nodes: int, max_degree: int, seed: int, share: float
) -> None:
    csc = random_csc(num_nodes, max_degree, np.int32, seed)
    room = int(share * csc.num_edges)
    out_degrees = np.bincount(csc.indices, minlength=num_nodes).astype(np.uint32)
    chosen = choose_lists(csc, out_degrees, room)[:num_nodes]
    worth, sizes = importance(csc), np.diff(csc.indptr)
    # In order of importance, then of ids, until the first list that does not fit.
    order = np.argsort(-worth, kind="stable")
    order = order[worth[order] > 0]
    want = order[np.cumsum(sizes[order]) <= room]
    np.testing.assert_array_equal(np.flatnonzero(chosen), np.sort(want))
    np.testing.assert_array_equal(all_lists(csc)[:num_nodes], sizes > 0)


def test_what_the_cache_holds(stored: tuple[Csc, IndexRows]) -> None:
    csc, rows = stored
    for num_bytes in (1, index_bytes(csc.num_nodes) + 4000, bytes_for_all(csc) // 2, 10**9):
        cache = open_neighbor_cache(csc, rows, num_bytes)
        if num_bytes <= index_bytes(csc.num_nodes):
            assert cache is None
            continue
        assert cache is not None
        nodes = np.flatnonzero(np.unpackbits(cache.bits.view(np.uint8), bitorder="little"))
        want = cached_lists(csc, nodes)
        np.testing.assert_array_equal(cache.starts, want.starts)
        np.testing.assert_array_equal(cache.neighbors, want.neighbors, strict=True)
        assert cache.neighbors.dtype == csc.indices.dtype


@pytest.mark.parametrize("neighbor", [-1, 3000, 2**31 - 1])
@pytest.mark.parametrize("config", CONFIGS)
def test_corrupt_indices(
    tmp_path: Path, opened: Engine, config: SamplingConfig, neighbor: int
) -> None:
    csc = random_csc(3000, 60, np.int32, 5)
    damaged = csc.indices.copy()
    node = int(np.argmax(np.diff(csc.indptr) == 2))
    position = int(csc.indptr[node])
    damaged[position : position + 2] = neighbor
    rows = IndexRows.open(write_array(tmp_path / "indices", damaged), opened)
    message = rf"cannot sample from the/store: indices: the node id {neighbor} at position "
    message += rf"({position}|{position + 1}) is outside \[0, 3000\). Its topology is damaged"
    cached = cached_lists(replace(csc, indices=damaged), np.arange(3000))
    for cache in (None, cached):
        disk = disk_sampler(csc, config, "int64", rows.fetch, cache)
        with pytest.raises(CorruptStoreError, match=message) as caught:
            disk.sample([node], epoch=0, batch=0)
        assert caught.value.path == "the/store"
        with pytest.raises(CorruptStoreError, match=message):
            list(
                disk.sample_many(
                    [BatchRequest([0], 0, 0), BatchRequest([node], 0, 1)] * 3, memory_bytes=10**9
                )
            )
    with pytest.raises(CorruptStoreError, match="cannot count the degrees of the/store"):
        open_neighbor_cache(csc, rows, bytes_for_all(csc) // 2)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_truncated_file(tmp_path: Path, opened: Engine, config: SamplingConfig) -> None:
    csc = random_csc(3000, 60, np.int32, 5)
    array = write_array(tmp_path / "indices", csc.indices)
    rows = IndexRows.open(array, opened)
    disk = disk_sampler(csc, config, "int64", rows.fetch)
    (file,) = array.file_paths
    with file.open("r+b") as cut_off:
        cut_off.truncate(4096)
    seeds = np.arange(2000, 2100)
    for attempt in (
        lambda: disk.sample(seeds, epoch=0, batch=0),
        lambda: list(disk.sample_many([BatchRequest(seeds, 0, 0)] * 3, memory_bytes=10**9)),
        lambda: rows.read(0, rows.num_edges),
        lambda: open_neighbor_cache(csc, rows, bytes_for_all(csc)),
    ):
        with pytest.raises(StorageError, match=str(file)):
            attempt()
    with pytest.raises(StorageError, match=str(file)):
        IndexRows.open(array, opened)


def test_a_read_that_fails_once(tmp_path: Path) -> None:
    csc = random_csc(3000, 60, np.int32, 5)
    array = write_array(tmp_path / "indices", csc.indices)
    rows = IndexRows.open(array, open_engine(array.file_paths[0], "pread"))
    disk = disk_sampler(csc, CONFIGS[0], "int64", rows.fetch)
    want = NeighborSampler(csc, CONFIGS[0]).sample(np.arange(50), epoch=0, batch=0)
    failed = pytest.raises(StorageError, match="cannot read rows of the array")
    with inject("pread", errno=errno.EIO, skip=2) as fault, failed:
        disk.sample(np.arange(50), epoch=0, batch=0)
    assert fault.count == 1
    assert_same(disk.sample(np.arange(50), epoch=0, batch=0), want)


@pytest.mark.parametrize("indptr", [[0, 2, 1, 3], [1, 2, 2, 3], [0, 1, 2, 4], [0, 1, 2, 2]])
def test_corrupt_indptr(tmp_path: Path, opened: Engine, indptr: list[int]) -> None:
    csc = Csc(np.array(indptr), np.array([1, 2, 0]), 3, label="the/store")
    rows = IndexRows.open(write_array(tmp_path / "indices", csc.indices), opened)
    for num_bytes in (index_bytes(3) + 16, 10**6):
        with pytest.raises(CorruptStoreError, match="indptr does not ascend from 0 to 3"):
            open_neighbor_cache(csc, rows, num_bytes)


def test_ranges_are_read_in_order(stored: tuple[Csc, IndexRows]) -> None:
    csc, rows = stored
    rng = np.random.default_rng(0)
    for start, stop in [(0, csc.num_edges), *np.sort(rng.integers(0, csc.num_edges, (20, 2)))]:
        got = rows.read(int(start), int(stop))
        np.testing.assert_array_equal(got, csc.indices[start:stop], strict=True)
    np.testing.assert_array_equal(np.concatenate(list(rows.scan())), csc.indices)
    with pytest.raises(IndexError):
        rows.fetch(np.array([csc.num_edges]))
