"""The strategies "direct" and "static": the same batches, so many reads, and clear errors."""

from __future__ import annotations

import gc
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnstore
from gnnstore import NeighborLoader, _core
from gnnstore.converters import ConvertOptions
from gnnstore.disk.engines import ENGINES, ENVIRONMENT_VARIABLE, probe_engines
from gnnstore.errors import BudgetError, UsageError
from gnnstore.features.static import cache_cost
from gnnstore.graph.cache_owner import shared_caches
from gnnstore.strategies.placement import Placement
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import choose, paired
from tests.support.graphs import WIDTH, N, graph_of_three_tables
from tests.support.references import OPTIONS
from tests.support.twins.reads import plan_reads

ROW_BYTES = 4 * WIDTH

UNAVAILABLE = {p.name: p.detail for p in probe_engines(Path(__file__)) if not p.is_available}
AVAILABLE = [name for name in ENGINES if name not in UNAVAILABLE]


@pytest.fixture(scope="module")
def graph() -> GraphArrays:
    return graph_of_three_tables()


@pytest.fixture(scope="module")
def path(graph: GraphArrays, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graph.write(tmp_path_factory.mktemp("disk") / "s.gnn")


@pytest.fixture(scope="module")
def store(path: Path) -> gnnstore.GraphStore:
    return gnnstore.open(path)


def loader_of(store: Any, **options: Any) -> NeighborLoader:
    return NeighborLoader(store, [4, 4], "train", **(OPTIONS | options))


# --- equal batches -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache", "num_threads"), paired([None, "degree", "frequency"], [0, 1, 2, 4], 1)
)
def test_batches_are_the_same(
    path: Path, expected: Batches, num_threads: int, engine: str, cache: str | None
) -> None:
    loader = loader_of(
        path,
        strategy="direct",
        topology="mmap" if num_threads in {1, 4} else "memory",
        io_engine=engine,
        cache=cache,
        cache_bytes=None if cache is None else "100kB",
        num_threads=num_threads,
    )
    assert_same_batches(batches_of(loader, 2), expected)
    stats = loader.stats()
    assert stats.strategy == ("direct" if cache is None else "static")
    assert (stats.io_engine, stats.cache) == (engine, cache or "")
    assert stats.reads > 0
    assert stats.bytes_read >= stats.bytes_useful > 0
    assert stats.rows_read > 0
    assert (stats.rows_cached > 0) == (stats.cache_rows > 0) == (cache is not None)


@pytest.mark.ways("static", *(f"direct-{engine}" for engine in ENGINES))
def test_the_suite_really_reads_from_disk(path: Path, way_of_reading: Any) -> None:
    """What `way_of_reading` arranges: narrow rows too go through the engine it names."""
    loader = NeighborLoader(
        path, [4], "train", batch_size=60, cache_bytes=_few(way_of_reading), seed=0
    )
    num_rows = sum(batch.num_nodes for batch in loader)
    stats = loader.stats()
    assert stats.strategy == way_of_reading.strategy
    assert stats.io_engine == (way_of_reading.engine or AVAILABLE[0])
    assert stats.reads > 0
    assert stats.bytes_useful > 0
    assert stats.rows_read + stats.rows_cached >= 2 * num_rows, "x and h, whatever their width"


def _few(way: Any) -> int | None:
    return 20_000 if way.strategy == "static" else None


def cost(store: gnnstore.GraphStore, score: Any = "frequency") -> Any:
    return cache_cost(store.num_nodes, 400 + 120, score)


@pytest.mark.parametrize("score", ["degree", "frequency"])
@pytest.mark.parametrize("num_rows", choose([0, 20, 10 * N], [0, 1, 20, N, 10 * N]))
def test_caches_of_any_size(
    store: gnnstore.GraphStore, expected: Batches, score: str, num_rows: int
) -> None:
    """None, one row, fewer than a batch has, all, more than there are."""
    num_bytes = cost(store, score).index_bytes + num_rows * cost(store, score).node_bytes
    loader = loader_of(store, strategy="static", cache=score, cache_bytes=num_bytes)
    assert_same_batches(batches_of(loader, 2), expected)
    stats = loader.stats()
    assert stats.cache_rows == min(num_rows, N)
    if num_rows >= N:
        # Rows of both wide attributes of nodes, and none of edges.
        assert stats.rows_cached == 2 * sum(len(batch["n_id"]) for batch in expected)
        assert stats.rows_read == sum(len(batch["e_id"]) for batch in expected)
    assert bool(stats.rows_cached) == bool(num_rows)


@pytest.mark.parametrize("score", ["degree", "frequency"])
def test_a_strategy_with_a_score_in_its_name(
    store: gnnstore.GraphStore, expected: Batches, score: str
) -> None:
    options: dict[str, Any] = {"cache_bytes": 60_000, **OPTIONS}
    loader = NeighborLoader(store, [4, 4], "train", strategy=f"static-{score}", **options)
    assert_same_batches(batches_of(loader, 2), expected)
    stats = loader.stats()
    assert (stats.strategy, stats.cache) == (f"static-{score}", score)
    options |= {"strategy": "static", "cache": score}
    same = NeighborLoader(store, [4, 4], "train", **options)
    assert same._sources.cache is loader._sources.cache


def test_a_strategy_whose_name_has_a_score_takes_no_other(store: gnnstore.GraphStore) -> None:
    with pytest.raises(UsageError, match="has no use for cache='frequency'"):
        NeighborLoader(store, [4], strategy="static-degree", cache="frequency")
    for name in ("packed-epochs", "belady-degree", ["static"]):
        with pytest.raises(UsageError, match="static, static-degree, static-frequency, belady"):
            NeighborLoader(store, [4], strategy=name)  # type: ignore[arg-type]


# --- the narrow and the wide ---------------------------------------------------------------


def test_narrow_rows_are_held_in_memory(tmp_path: Path) -> None:
    graph = random_graph(200, 900, feature_dim=3, edge_feature_dim=40, num_classes=3)
    loader = NeighborLoader(graph.write(tmp_path / "s.gnn"), [3], strategy="direct", batch_size=20)
    for batch in loader:
        np.testing.assert_array_equal(batch.x, graph.attributes["x"][batch.n_id])
    num_edges = loader.stats().edges
    assert loader.stats().bytes_useful <= num_edges * 160, "edge_attr was read, and x was not"
    assert loader.stats().rows_read > 0


def test_a_store_with_nothing_to_read_needs_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "nonsense")
    bare = random_graph(50, 300).write(tmp_path / "s.gnn")
    for strategy in ("direct", "static"):
        loader = NeighborLoader(bare, [3], batch_size=20, strategy=strategy)
        assert sum(batch.num_nodes for batch in loader) > 50
        assert (loader.stats().io_engine, loader.stats().cache_rows) == ("", 0)


def test_a_topology_on_disk_is_read_by_an_engine_also_without_tables(tmp_path: Path) -> None:
    """Whether it was asked for, or lies there for want of memory."""
    path = random_graph(500, 3_000_000, seed=1).write(tmp_path / "edges.gnn")
    for topology in ("auto", "disk"):
        loader = NeighborLoader(
            path,
            [3],
            range(100),
            batch_size=50,
            seed=0,
            strategy="direct",
            topology=topology,
            memory="11MB",
            num_threads=1,
        )
        list(loader)
        stats = loader.stats()
        assert stats.topology == "disk"
        assert stats.io_engine
        assert stats.topology_reads > 0


def test_memory_needs_no_engine(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "nonsense")
    assert NeighborLoader(path, [3]).stats().strategy == "memory"
    with pytest.raises(UsageError, match="nonsense"):
        NeighborLoader(path, [3], strategy="direct")


# --- exactly so many reads -----------------------------------------------------------------


@pytest.fixture(scope="module")
def only_x(graph: GraphArrays, tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    """Pages of 4 KiB: row i is 400 bytes at 4096 * (i // 10) + 400 * (i % 10)."""
    options = ConvertOptions(page_bytes=4096)
    bare = GraphArrays(N, graph.edge_index, {"x": graph.attributes["x"]})
    path = bare.write(tmp_path_factory.mktemp("x") / "s.gnn", options=options)
    return gnnstore.open(path)


def test_reads_of_sampled_batches(only_x: gnnstore.GraphStore) -> None:
    loader = NeighborLoader(only_x, [5, 5], batch_size=30, strategy="direct", seed=1)
    source = loader._sources.tables["nodes/node/x"]
    files = source.file_rows
    assert files is not None
    assert (files.engine.tuning.gap_bytes, files.engine.tuning.max_read_bytes) == (4096, 65536)
    plans = [
        plan_reads(
            batch.n_id.numpy(),
            files.array.layout,
            files.files.alignment_bytes,
            files.engine.tuning.gap_bytes,
            files.engine.tuning.max_read_bytes,
        )
        for batch in loader
    ]
    loader.set_epoch(0)
    distinct = sum(len(batch.n_id.unique()) for batch in loader)
    stats = loader.stats()
    assert stats.reads == 2 * sum(map(len, plans)) > 60
    assert stats.bytes_read == 2 * sum(length for plan in plans for _, length in plan)
    assert stats.bytes_useful == 2 * distinct * ROW_BYTES
    assert (stats.rows_read, stats.rows_cached, stats.hit_rate) == (2 * distinct, 0, 0)
    assert stats.amplification == stats.bytes_read / stats.bytes_useful
    assert 1 <= stats.mean_queue_depth <= max(map(len, plans))
    assert 0 <= stats.seconds_reading <= stats.seconds_gathering


def test_a_cached_row_is_not_read(only_x: gnnstore.GraphStore) -> None:
    out_degrees = np.bincount(only_x.topology().columns().indices, minlength=N)
    best = np.argsort(-out_degrees, kind="stable")[:3].tolist()
    cost = cache_cost(N, ROW_BYTES, "degree")
    seeds = [*best, 700]
    assert 700 not in best
    loader = NeighborLoader(
        only_x,
        [],
        seeds,
        batch_size=4,
        strategy="static",
        cache="degree",
        cache_bytes=cost.bytes_of(3),
    )
    (batch,) = loader
    np.testing.assert_array_equal(batch.x, only_x.features[np.array(seeds)])
    stats = loader.stats()
    assert (stats.reads, stats.rows_read, stats.rows_cached) == (1, 1, 3)
    assert (stats.bytes_useful, stats.hit_rate, stats.cache_rows) == (ROW_BYTES, 0.75, 3)
    assert "75% of rows cached, 1 read, " in str(stats)
    assert "waited 0." in str(stats)
    assert "\n" not in str(stats)


def test_what_is_printed_leaves_out_reads_that_were_not_made(only_x: gnnstore.GraphStore) -> None:
    loader = NeighborLoader(only_x, [], [1], batch_size=1, strategy="direct")
    assert f"strategy direct, {loader.stats().io_engine}: nothing read yet" in str(loader.stats())
    held = NeighborLoader(only_x, [2], [1], batch_size=1, strategy="belady", memory="200MB")
    for _ in range(2):
        list(held)
    text = str(held.stats().since(held.stats()))
    for nothing in ("0.00 times", "0 reads", "0 at a time", "0%"):
        assert nothing not in text


# --- pre-sampling --------------------------------------------------------------------------


def test_frequency_knows_where_the_seeds_are(path: Path) -> None:
    """A cache of a tenth, for a few seeds that are nobody's neighbours."""
    store = gnnstore.open(path)
    seeds = range(940, 980)
    hits = {}
    for score in ("degree", "frequency"):
        loader = NeighborLoader(
            store,
            [1],
            seeds,
            batch_size=8,
            strategy="static",
            cache=score,
            cache_bytes=cost(store, score).bytes_of(100),
            seed=0,
        )
        batches_of(loader, 5)
        hits[score] = loader.stats().hit_rate
    assert hits["frequency"] > 1.2 * hits["degree"] > 0


def test_presampling_uses_nothing_up(path: Path) -> None:
    class Spy:
        def __init__(self) -> None:
            self.num_iterations = 0

        def __iter__(self) -> Iterator[int]:
            self.num_iterations += 1
            return iter(range(30))

    state = torch.get_rng_state()
    np_state = np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002
    generator = torch.Generator().manual_seed(4)
    before = generator.get_state()
    spy = Spy()
    for options in ({"sampler": spy}, {"shuffle": True, "generator": generator}):
        NeighborLoader(path, [3], range(30), strategy="static", memory="40MB", **options)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.random.get_state()[1].tolist() == np_state  # type: ignore[index] # noqa: NPY002
    assert torch.equal(generator.get_state(), before)
    assert spy.num_iterations == 0


def test_a_loader_chooses_the_same_rows_each_time(path: Path) -> None:
    counts = []
    for num_threads in choose((0, 3), (0, 1, 3)):
        loader = loader_of(path, strategy="static", cache_bytes=60_000, num_threads=num_threads)
        batches_of(loader)
        stats = loader.stats()
        counts.append((stats.cache_rows, stats.reads, stats.bytes_read, stats.rows_cached))
    assert len(set(counts)) == 1


# --- sharing -------------------------------------------------------------------------------


def test_loaders_share_a_cache(path: Path, expected: Batches) -> None:
    store = gnnstore.open(path)
    options: dict[str, Any] = {**OPTIONS, "strategy": "static", "cache_bytes": 60_000}
    train = NeighborLoader(store, [4, 4], "train", **options)
    held = shared_caches(store).cached_bytes
    valid = NeighborLoader(store, [-1], "valid", **options)
    assert shared_caches(store).cached_bytes == held
    assert train._sources.cache is valid._sources.cache
    other = NeighborLoader(store, [4, 4], "train", **{**options, "cache": "degree"})
    assert other._sources.cache is not train._sources.cache
    assert_same_batches(batches_of(train, 2), expected)


def test_a_cache_makes_room_for_larger_batches(path: Path) -> None:
    """One budget for all loaders: that of the later one counts too."""
    store = gnnstore.open(path)
    options: dict[str, Any] = {"strategy": "static", "num_threads": 2, "topology": "memory"}

    def small(**options: Any) -> NeighborLoader:
        return NeighborLoader(store, [2], range(0, N, 8), batch_size=5, seed=0, **options)

    def large(memory: int) -> NeighborLoader:
        return NeighborLoader(store, [4, 2], batch_size=20, memory=memory, seed=0, **options)

    with pytest.raises(BudgetError) as caught:
        large(17_000_000)
    memory = needed_by(caught.value) + 400_000
    expected = batches_of(small(strategy="memory"), 2)
    train = small(memory=memory, **options)
    assert train.stats().cache_rows == N
    running = iter(train)
    found = [next(running).to_dict()]
    later = large(memory)
    kept = train.stats().cache_rows
    assert 300 < kept < 700, "400 kB less a batch, at 529 bytes a node"
    assert later.stats().cache_rows == kept
    found += [batch.to_dict() for batch in running]
    assert_same_batches(found + batches_of(train), expected)
    for batch in later:
        np.testing.assert_array_equal(batch.x, store.features[batch.n_id])
    assert later.stats().rows_cached > 0


def test_a_pickled_loader_caches_the_same_rows(path: Path, expected: Batches) -> None:
    options: dict[str, Any] = {"strategy": "static", "cache_bytes": 60_000, **OPTIONS}
    loader = NeighborLoader(path, [4, 4], "train", **options)
    pickled = pickle.dumps(loader)
    assert len(pickled) < 20_000 + 16 * N
    copy = pickle.loads(pickled)  # noqa: S301 - our own
    assert_same_batches(batches_of(copy, 2), expected)
    batches_of(loader, 2)
    for name in ("cache_rows", "rows_cached", "rows_read", "reads", "reason"):
        assert getattr(copy.stats(), name) == getattr(loader.stats(), name)


def test_a_cache_goes_with_its_store(path: Path) -> None:
    gc.collect()
    before = _core.pool_stats()["bytes_in_use"]
    store = gnnstore.open(path)
    loader = NeighborLoader(store, [4], strategy="static", cache="degree")
    assert _core.pool_stats()["bytes_in_use"] > before
    del loader, store
    gc.collect()
    assert _core.pool_stats()["bytes_in_use"] == before


# --- budgets -------------------------------------------------------------------------------


def needed_by(error: BudgetError) -> int:
    return int(re.findall(r" needs (\d+) bytes", str(error))[0])


def budget_of(loader: NeighborLoader) -> int:
    """Return what a loader under a budget holds besides its batches."""
    chosen: Placement = loader._sources.placement
    return chosen.budget_bytes - chosen.left_bytes


@pytest.mark.parametrize("strategy", ["direct", "static"])
def test_too_small_for_two_batches_says_what_is_needed(path: Path, strategy: str) -> None:
    def loader(memory: int) -> NeighborLoader:
        options: dict[str, Any] = {"topology": "memory", "num_threads": 2, **OPTIONS}
        options["edge_ids"] = "store"
        return NeighborLoader(path, [4, 4], "train", strategy=strategy, memory=memory, **options)

    with pytest.raises(BudgetError) as caught:
        loader(17_500_000)
    message = str(caught.value)
    needed = needed_by(caught.value)
    assert message.endswith("or choose a smaller batch_size or fan-out")
    assert f", {needed - 17_500_000} bytes too few:\n" in message
    assert "- to do: raise memory= by at least " in message
    assert re.search(r"parts: [\d.]+ MB of staging for reads \+.* of batches in flight", message)
    with pytest.raises(BudgetError):
        loader(needed - 1)
    enough = loader(needed)
    assert len(batches_of(enough)) == 12
    assert enough.stats().cache_rows == 0


def test_a_cache_that_does_not_fit_says_so(path: Path) -> None:
    def loader(memory: int, cache_bytes: int) -> NeighborLoader:
        return NeighborLoader(
            path,
            [4],
            strategy="static",
            topology="memory",
            num_threads=2,
            memory=memory,
            cache_bytes=cache_bytes,
            edge_ids="store",
        )

    with pytest.raises(BudgetError) as caught:
        loader(budget_of(loader(60_000_000, 0)) + 100, 0)
    memory = needed_by(caught.value) + 301_000  # more batches are seen, and a larger one
    assert loader(memory, 300_000).stats().cache_rows > 500
    message = r"(?s)400 kB of cached rows \+ .*, or lower cache_bytes="
    with pytest.raises(BudgetError, match=message):
        loader(memory, 400_000)


def test_auto_reads_with_a_cache_what_does_not_fit(
    graph: GraphArrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph(60_000, 100_000, feature_dim=WIDTH)
    path = graph.write(tmp_path / "s.gnn")
    loader = NeighborLoader(path, [4], memory="22MB", num_threads=1, batch_size=100, seed=0)
    stats = loader.stats()
    assert stats.strategy == "static"
    assert "the 25.3 MB of the store do not fit 22 MB of the memory= budget" in stats.reason
    assert f"read by {stats.io_engine}" in stats.reason
    assert f"rows of the {stats.cache_rows} nodes that sampling needs most often" in stats.reason
    assert 10_000 < stats.cache_rows < 30_000
    chosen = loader._sources.placement
    assert chosen.resident_bytes + chosen.staging_bytes + stats.cache_rows * 400 < 22_000_000
    # A budget that staging alone would exceed is left to the page cache, unless told otherwise.
    with pytest.warns(UserWarning, match="leaves strategy 'mmap' only"):
        loader = NeighborLoader(path, [4], memory="8MB", num_threads=1, batch_size=100, seed=0)
    assert loader.stats().strategy == "mmap"
    assert "and strategy 'static' would need more" in loader.stats().reason
    asked: list[dict[str, Any]] = [{"cache": "degree"}, {"topology": "disk"}]
    for own in asked:  # which a mapping could not have
        with pytest.raises(BudgetError):
            NeighborLoader(path, [4], memory="8MB", num_threads=1, **own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"io_engine": "aio"}, "io_engine='aio' is unknown; choose one of io_uring, pread, mmap"),
        ({"strategy": "memory", "io_engine": "pread"}, "has no use for io_engine='pread'"),
        ({"strategy": "mmap", "cache": "degree"}, "has no use for cache='degree'"),
        ({"cache": "lru"}, "cache='lru' is unknown"),
    ],
)
def test_options_that_contradict_one_another(
    path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        NeighborLoader(path, [2], **options)
    assert message in str(caught.value)
