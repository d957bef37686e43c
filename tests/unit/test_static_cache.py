"""Which nodes a static cache holds: scores, ties, settings; and the cache that loaders share."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gnnstore
from gnnstore.caching import scores as static_cache
from gnnstore.caching.scores import Score, count_out_degrees, num_that_fit, select_nodes
from gnnstore.disk.engines import open_engine
from gnnstore.errors import CorruptStoreError, StorageError, UsageError
from gnnstore.features import static as tier
from gnnstore.features.file_rows import FileRows
from gnnstore.features.source import Tier, of_one_type
from gnnstore.features.static import StaticCache, cache_cost
from gnnstore.formats.base.names import edge_directory
from gnnstore.graph.cache_owner import shared_caches
from gnnstore.graph.table_registry import TableRegistry
from gnnstore.loaders.options import read_options
from gnnstore.sampling.row_space import RowRange
from gnnstore.strategies.loader_spec import ReadOptions
from gnnstore.strategies.options import CacheSettings
from gnnstore.testing.graphs import random_graph
from tests.support.stores import CITES, WRITES, write_example_store, write_two_typed_store


def best_nodes(scores: npt.NDArray[Any], num_rows: int) -> list[int]:
    """Return what `select_nodes` must: by sorting, which it does not do."""
    if num_rows >= len(scores):
        return list(range(len(scores)))
    by_score = sorted(range(len(scores)), key=lambda node: (-int(scores[node]), node))
    return sorted(node for node in by_score[:num_rows] if scores[node])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 499, 998, 999, 1000, 1001])
@pytest.mark.parametrize("most", [1, 3, 250])
def test_the_highest_scores_are_chosen(dtype: type, num_rows: int, most: int) -> None:
    drawn = np.random.default_rng(num_rows).integers(0, most, 1000)
    scores: npt.NDArray[Any] = drawn.astype(dtype)
    nodes = select_nodes(scores, num_rows)
    assert nodes.dtype == np.int64
    assert nodes.tolist() == best_nodes(scores, num_rows)


def test_what_nobody_asked_for_is_cached_only_with_all_the_rest() -> None:
    scores = np.array([0, 2, 0, 1], np.uint8)
    assert select_nodes(scores, 3).tolist() == [1, 3]
    assert select_nodes(scores, 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("most", [1, 3, 250])
@pytest.mark.parametrize("num_bytes", [0, 39, 40, 333, 9000, 30_000, 44_399, 44_400])
def test_rows_of_all_widths_are_taken_by_their_score(most: int, num_bytes: int) -> None:
    scores = np.random.default_rng(most).integers(0, most, 1000).astype(np.uint8)
    widths = {RowRange(0, 10): 40, RowRange(10, 490): 0, RowRange(500, 500): 88}
    of_row = np.repeat([*widths.values()], [own.num_rows for own in widths])
    in_order = sorted(range(1000), key=lambda row: (-int(scores[row]), row))
    wanted = [row for row in in_order if scores[row] or num_bytes >= of_row.sum()]
    fitting = int(np.count_nonzero(np.cumsum(of_row[wanted]) <= num_bytes))
    found = num_that_fit(scores, widths, num_bytes)
    assert select_nodes(scores, found).tolist() == sorted(wanted[:fitting])


def test_an_out_degree_counts_the_columns_that_a_node_stands_in() -> None:
    graph = random_graph(50, 400, seed=2)
    sources = np.sort(graph.edge_index[0])
    for pieces in (1, 3, 17):
        counts = count_out_degrees(np.array_split(sources, pieces), 50, "the graph")
        assert counts.dtype == np.uint32
        np.testing.assert_array_equal(counts, np.bincount(sources, minlength=50))


def test_a_damaged_topology_is_an_error_not_a_crash() -> None:
    with pytest.raises(CorruptStoreError, match=r"the degrees of g\.gnn: .*50.*run 'gnnstore ver"):
        count_out_degrees([np.array([3, 50])], 50, "g.gnn")


# --- settings ------------------------------------------------------------------------------


def read(strategy: str, cache: str | None, cache_bytes: Any) -> ReadOptions:
    nothing: dict[str, Any] = {"topology": "auto", "memory": None, "io_engine": None}
    return read_options(strategy=strategy, cache=cache, cache_bytes=cache_bytes, **nothing)


@pytest.mark.parametrize(
    ("given", "strategy", "settings"),
    [
        (("auto", None, None), "auto", None),
        (("direct", None, None), "direct", None),
        (("static", None, None), "static", CacheSettings("frequency")),
        (("direct", "degree", None), "static", CacheSettings("degree")),
        (("auto", "degree", "1kB"), "auto", CacheSettings("degree", 1000)),
        (("direct", None, 0), "static", CacheSettings("frequency", 0)),
        (("static", "frequency", "1GB"), "static", CacheSettings("frequency", 10**9)),
        (("memory", None, None), "memory", None),
    ],
)
def test_settings(given: tuple[Any, Any, Any], strategy: str, settings: Any) -> None:
    options = read(*given)
    assert (options.strategy.name, options.cache) == (strategy, settings)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("static", "lru", None), "cache='lru' is unknown; choose one of degree, frequency"),
        (("static", None, "much"), "cache_bytes='much' is not a size"),
        (("static", None, -1), "cache_bytes=-1 is negative"),
        (("memory", "degree", None), "strategy='memory' has no use for cache='degree'"),
        (("mmap", None, 5), "strategy='mmap' has no use for cache_bytes=5; leave it out"),
    ],
)
def test_settings_that_make_no_sense(given: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(*given)
    assert message in str(caught.value)


# --- the cache that loaders share ----------------------------------------------------------

N = 300


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[FileRows, Any]:
    path: Path = tmp_path_factory.mktemp("cache") / "s.gnn"
    stored = write_example_store(path, num_nodes=N, feature_shape=(30,))
    store = gnnstore.open(path)
    array = store.reader.paged(store.schema.node.attributes["x"])
    return FileRows.open(array, open_engine(array.file_paths[0])), stored.arrays["nodes/node/x"]


IDS = np.random.default_rng(1).integers(0, N, 500)


def fill(table: FileRows, scores: npt.NDArray[Any], num_rows: int) -> StaticCache:
    cache = StaticCache(of_one_type({"x": table}), N)
    nodes = select_nodes(scores, num_rows)
    cache.warm_up(nodes, scores[nodes])
    return cache


@pytest.mark.parametrize("score", ["degree", "frequency"])
@pytest.mark.parametrize("num_rows", [0, 1, 100, N])
def test_rows_are_the_same_and_fewer_are_read(
    table: tuple[FileRows, Any], num_rows: int, score: Score
) -> None:
    rows, expected = table
    dtype = static_cache.SCORE_DTYPES[score]
    scores = np.random.default_rng(0).integers(1, 200, N).astype(dtype)
    cache = fill(rows, scores, num_rows)
    found = cache.rows("x").gather(IDS)
    np.testing.assert_array_equal(found.values, expected[IDS])
    cached = np.isin(IDS, select_nodes(scores, num_rows))
    assert found.counts.rows_cached == cached.sum()
    assert found.counts.rows_read == len(np.unique(IDS[~cached]))
    assert cache.num_rows == num_rows
    assert cache.num_bytes == cache_cost(N, rows.row_bytes, score).bytes_of(num_rows)
    assert cache.rows("x").resident_bytes == num_rows * 120
    assert (cache.rows("x").num_rows, cache.rows("x").row_bytes) == (N, 120)
    assert (cache.holds("x"), cache.holds("y")) == (True, False)


def test_a_cache_shrinks_to_its_best(table: tuple[FileRows, Any]) -> None:
    rows, expected = table
    scores = np.random.default_rng(0).permutation(N).astype(np.uint32)
    cache = fill(rows, scores, 200)
    shared = cache.rows("x")
    for num_rows in (250, 200, 80, 1, 0):
        cache.shrink(num_rows)
        assert cache.num_rows == min(num_rows, 200)
        # The same object goes on, and knows the same rows.
        found = shared.gather(IDS)
        np.testing.assert_array_equal(found.values, expected[IDS])
        best = np.argsort(scores)[N - min(num_rows, 200) :]
        assert found.counts.rows_cached == np.isin(IDS, best).sum()
    assert cache.num_bytes == 0


def test_what_filled_a_cache_up_leaves_first(table: tuple[FileRows, Any]) -> None:
    cache, counts = StaticCache(of_one_type({"x": table[0]}), N), np.zeros(N, np.uint8)
    counts[[5, 70, 200]] = 1, 255, 1
    cache.warm_up(np.arange(0, N, 5), counts[::5])
    cache.shrink(3)
    cached = [cache.rows("x").gather(np.array([node])).counts.rows_cached for node in range(N)]
    assert np.flatnonzero(cached).tolist() == [5, 70, 200]


@pytest.mark.parametrize("topology", ["memory", "mmap", "disk"])
def test_a_cache_is_filled_up_by_degree(tmp_path: Path, topology: str) -> None:
    """Sampling beforehand needs few rows; the cache has room for more."""
    graph = random_graph(2000, 9000, feature_dim=64, num_classes=3)
    sources, targets = graph.edge_index
    store = gnnstore.open(graph.write(tmp_path / "g.gnn"))
    seeds = np.array([7, 99, 1234])

    def load(fanout: int, nodes: npt.NDArray[Any]) -> gnnstore.LoaderStats:
        options: dict[str, Any] = {"strategy": "static", "cache_bytes": "100kB"}
        options |= {"topology": topology, "batch_size": len(nodes)}
        loader = gnnstore.NeighborLoader(store, [fanout], nodes, **options)
        for _ in loader:
            pass
        stats: gnnstore.LoaderStats = loader.stats()
        return stats

    num_rows = load(-1, seeds).cache_rows
    assert num_rows == cache_cost(2000, 256, "frequency").whole.rows_in(100_000)
    degrees = np.bincount(sources, minlength=2000)
    degrees[np.union1d(seeds, sources[np.isin(targets, seeds)])] = 9000  # were counted
    expected = np.argsort(-degrees, kind="stable")[:num_rows]
    assert load(0, np.arange(2000)).rows_cached == num_rows
    assert load(0, expected).rows_cached == num_rows


def test_rows_of_all_types_fill_a_cache_up(tmp_path: Path) -> None:
    stored = write_two_typed_store(tmp_path / "g.gnn", widths=(50, 20))
    store = gnnstore.open(stored.path)

    def load(fanout: int, kind: str, nodes: Any) -> gnnstore.LoaderStats:
        options: dict[str, Any] = {"strategy": "static", "cache_bytes": "20kB"}
        seeds = (kind, np.asarray(nodes))
        loader = gnnstore.NeighborLoader(store, [fanout], seeds, batch_size=len(nodes), **options)
        for _ in loader:
            pass
        stats: gnnstore.LoaderStats = loader.stats()
        return stats

    num_rows = load(-1, "paper", [7, 30]).cache_rows
    scores = {"paper": np.zeros(300, np.int64), "author": np.zeros(170, np.int64)}
    for kind, (source, _, _) in (("cites", CITES), ("writes", WRITES)):
        directory = edge_directory(source, kind, "paper")
        indptr, indices = (stored.arrays[f"{directory}/{name}"] for name in ("indptr", "indices"))
        scores[source] += np.bincount(indices, minlength=len(scores[source]))
        for seed in (7, 30):
            scores[source][indices[indptr[seed] : indptr[seed + 1]]] = 10**6
    scores["paper"][[7, 30]] = 10**6
    merged = np.concatenate([np.minimum(own, 10**6) for own in scores.values()])
    best = np.argsort(-merged, kind="stable")
    row_bytes = np.where(best < 300, 200, 80) + 9
    room = cache_cost(470, 200, "frequency").whole.rows_in(20_000) * 209
    expected = best[np.cumsum(row_bytes) <= room]
    assert num_rows == len(expected) > 100
    assert load(0, "paper", np.arange(300)).rows_cached == (expected < 300).sum()


# --- filling it beside batches --------------------------------------------------------------


class Gated(Tier):
    """Reads in order wait, from a row on; others do not."""

    def __init__(self, below: FileRows, first_waiting: int) -> None:
        super().__init__(below)
        self.first_waiting = first_waiting
        self.go_on = threading.Event()
        self.waits = threading.Event()
        self.fails = False

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> Any:
        if threading.current_thread().name == "gnnstore-fill" and ids[0] >= self.first_waiting:
            self.waits.set()
            assert self.go_on.wait(60)
            if self.fails:
                raise StorageError("the disk is gone")
        return self.below.read_rows(ids, out)


def filling_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gnnstore-fill"]


@pytest.fixture
def gated(table: tuple[FileRows, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Gated]:
    monkeypatch.setattr(tier, "LONG_READ_BYTES", 0)
    monkeypatch.setattr(tier, "_BACKGROUND_BYTES", 10 * 120)
    gated = Gated(table[0], 60)
    yield gated
    gated.go_on.set()
    for thread in filling_threads():
        thread.join()


def begun(gated: Gated) -> StaticCache:
    """Return a cache of every second row, of which the first 60 rows' are there."""
    cache = StaticCache(of_one_type({"x": gated}), N)
    nodes = np.arange(0, N, 2)
    cache.warm_up(nodes, np.arange(1, len(nodes) + 1).astype(np.uint32))
    assert gated.waits.wait(60)
    return cache


def check(cache: StaticCache, expected: Any, num_cached: int) -> None:
    found = cache.rows("x").gather(np.arange(N))
    np.testing.assert_array_equal(found.values, expected)
    assert found.counts.rows_cached == num_cached
    assert found.counts.rows_read == N - num_cached


def test_batches_read_what_is_not_there_yet(table: tuple[FileRows, Any], gated: Gated) -> None:
    cache = begun(gated)
    assert cache.num_rows == N // 2, "room is taken for all of them"
    check(cache, table[1], 30)
    gated.go_on.set()
    for thread in filling_threads():
        thread.join()
    check(cache, table[1], N // 2)


def test_a_cache_shrinks_while_it_is_filled(table: tuple[FileRows, Any], gated: Gated) -> None:
    cache = begun(gated)
    gated.go_on.set()
    cache.shrink(20)
    for thread in filling_threads():
        thread.join()
    assert cache.num_rows == 20
    check(cache, table[1], 20)


def test_what_cannot_be_read_is_the_batchs_affair(
    table: tuple[FileRows, Any], gated: Gated
) -> None:
    gated.fails = True
    cache = begun(gated)
    gated.go_on.set()
    for thread in filling_threads():
        thread.join()
    check(cache, table[1], 30)


def test_a_cache_that_is_forgotten_is_not_filled(gated: Gated) -> None:
    cache = begun(gated)
    gated.go_on.set()
    del cache
    gc.collect()
    assert not filling_threads()


def test_a_cache_is_in_use_while_its_loader_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tables are loaded meanwhile: another loader that needs memory must not take it."""
    graph = random_graph(2000, 9000, feature_dim=64, num_classes=3)
    store = gnnstore.open(graph.write(tmp_path / "g.gnn"))
    caches, rows = shared_caches(store), TableRegistry.rows

    def loaded(self: TableRegistry, *args: Any) -> Any:
        caches.taken_bytes("another kind")
        return rows(self, *args)

    monkeypatch.setattr(TableRegistry, "rows", loaded)
    loader = gnnstore.NeighborLoader(
        store, [3], np.arange(500), batch_size=50, strategy="static", cache_bytes="100kB"
    )
    for _ in loader:
        pass
    assert loader.stats().cache_rows > 0
    assert loader.stats().rows_cached > 0
