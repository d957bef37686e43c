"""Ranks of one machine: what they share, what each of them counts, and what is refused.

All ranks are loaders in this process, each on a store object of its own. That their batches are
those of a single process is in `test_every_loader.py`.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch_geometric.data.graph_store import EdgeAttr

import gnnstore
from gnnstore import machine, shared_memory
from gnnstore._core import ReadCounts
from gnnstore.converters import ConvertOptions, from_rmat
from gnnstore.errors import BudgetError, UsageError
from gnnstore.features.source import Tier
from gnnstore.graph.table_registry import shared_tables
from gnnstore.pipeline.lookahead.presample import Presampler
from gnnstore.shared_memory import Unshared
from gnnstore.strategies import loader_spec, placement
from gnnstore.units import format_size
from tests.support.batches import assert_same_batches, batches_of
from tests.support.effort import choose

MB = 10**6


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return from_rmat(tmp_path_factory.mktemp("ranks") / "r.gnn", scale=12, feature_dim=128)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return from_rmat(tmp_path_factory.mktemp("wide") / "r.gnn", scale=12, feature_dim=2048)


def rank_of(
    store: Path | gnnstore.GraphStore, rank: int, size: int = 2, **options: Any
) -> gnnstore.NeighborLoader:
    given = {"rank": rank, "world_size": size, "local_world_size": size}
    return loader_on(store, **given | options)


def loader_on(store: Path | gnnstore.GraphStore, **options: Any) -> gnnstore.NeighborLoader:
    given: dict[str, Any] = {"batch_size": 64, "shuffle": True, "seed": 3, "num_threads": 1}
    return gnnstore.NeighborLoader(store, [4, 2], "train", **given | options)


def held_bytes(loader: gnnstore.NeighborLoader) -> int:
    return int(loader._sources.placement.resident_bytes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_world_size": 0}, "local_world_size=0: expected the number of ranks on this"),
        ({"local_world_size": -2, "rank": None}, "local_world_size=-2: expected the number"),
        ({"local_world_size": 1.5}, "local_world_size"),
        ({"local_world_size": 4, "rank": None}, "local_world_size=4 counts the ranks of this mach"),
        (
            {"memory": None},
            "memory=None with 2 ranks on this machine: .* MASTER_ADDR",
        ),
        ({"memory": "auto"}, "memory='auto' with 2 ranks on this machine"),
        ({"local_world_size": 3}, "local_world_size=3 counts .* world_size=2 the ranks of all"),
    ],
)
def test_what_is_refused(
    path: Path, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    given: dict[str, Any] = {"rank": 0, "world_size": 2, "local_world_size": 2, "memory": "1GB"}
    given |= options
    if given["rank"] is None:
        del given["rank"], given["world_size"]
    store = gnnstore.open(path)
    with pytest.raises(UsageError, match=message):
        loader_on(store, **given)
    assert loader_on(store)._machine is machine.PRIVATE


def test_the_environment_names_the_ranks(
    path: Path, shares_all: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only of a loader with a rank, and unless the option does."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    options = {"rank": 0, "world_size": 2, "memory": "1GB"}
    assert loader_on(path, **options)._machine.num_ranks == 2
    assert loader_on(path, **options, local_world_size=1)._machine.num_ranks == 1
    assert loader_on(path)._machine.num_ranks == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")  # of a launcher around this run
    assert loader_on(path, **options)._machine.num_ranks == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "two")
    with pytest.raises(UsageError, match="LOCAL_WORLD_SIZE='two' in the environment: expected the"):
        loader_on(path, **options)


def test_each_rank_counts_its_part(path: Path, shares_all: None) -> None:
    """Two ranks load what a budget of each would not hold."""
    whole = held_bytes(loader_on(path, strategy="memory"))
    memory = int(0.8 * whole)
    with pytest.raises(BudgetError):
        loader_on(path, strategy="memory", memory=memory)
    ranks = [rank_of(path, rank, strategy="memory", memory=memory) for rank in range(2)]
    assert [held_bytes(each) for each in ranks] == [pytest.approx(whole / 2, rel=0.05)] * 2
    assert "2 ranks of this machine share what is held" in ranks[0].stats().reason
    assert shared_memory.server.num_handed_on


@pytest.mark.parametrize("score", choose(["frequency"], ["degree", "frequency"]))
def test_the_cache_is_that_of_one_process_with_the_whole_budget(
    path: Path, score: str, shares_all: None
) -> None:
    options: dict[str, Any] = {"strategy": "static", "cache": score, "topology": "memory"}
    alone = loader_on(path, **options, cache_bytes=MB)
    list(alone)
    ranks = [rank_of(path, rank, **options, cache_bytes=MB) for rank in range(2)]
    for each in ranks:
        list(each)
    whole, parts = alone.stats(), [each.stats() for each in ranks]
    assert [each.cache_rows for each in parts] == [whole.cache_rows] * 2
    assert whole.cache_rows > 1000
    # The last batch of the second rank is the first one, once more.
    repeated = len(ranks[0]) * 2 - len(alone)
    hits = sum(each.rows_cached for each in parts)
    assert hits >= whole.rows_cached
    assert repeated or hits == whole.rows_cached
    tables = [each._sources.cache.rows("nodes/node/x").held.table for each in ranks]
    assert not tables[1].flags.writeable
    np.testing.assert_array_equal(*tables)
    counted = [each._sources.cache.num_bytes for each in ranks]
    assert counted == [pytest.approx(MB / 2, rel=0.01)] * 2


def test_a_budget_without_cache_bytes_is_of_all_ranks(path: Path, shares_all: None) -> None:
    """Half of the memory for each of two leads to a cache of about as many rows."""
    options: dict[str, Any] = {"strategy": "static", "topology": "memory"}
    alone = loader_on(path, **options, memory="12MB").stats()
    ranks = [rank_of(path, rank, **options, memory="11MB").stats() for rank in range(2)]
    assert ranks[0].cache_rows == ranks[1].cache_rows > alone.cache_rows / 2


def test_one_rank_samples_for_all(
    path: Path, shares_all: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To size the cache, and to choose its rows."""
    numbers: list[int] = []
    run = Presampler.run

    def counted(self: Presampler, *args: Any, **options: Any) -> Any:
        numbers.append(1)
        return run(self, *args, **options)

    monkeypatch.setattr(Presampler, "run", counted)
    options: dict[str, Any] = {"strategy": "static", "topology": "memory", "memory": "11MB"}
    ranks = [rank_of(path, rank, **options) for rank in range(2)]
    assert len(numbers) == 1
    rows = [each._sources.cache._index.nodes for each in ranks]
    assert len(rows[0]) > 1000
    assert np.shares_memory(rows[0], rows[1]) or np.array_equal(*rows)


@pytest.mark.parametrize("threads", choose([(1, 2)], [(2, 1), (1, 2)]), ids=str)
def test_ranks_with_other_numbers_of_threads_have_one_cache(
    wide: Path, shares_all: None, caplog: pytest.LogCaptureFixture, threads: tuple[int, int]
) -> None:
    """That of the first, if the other has room for it: cores may be dealt out unevenly."""
    options: dict[str, Any] = {"strategy": "static", "memory": "30MB", "io_engine": "pread"}
    options |= {"topology": "memory", "batch_size": 4}
    ranks = [
        rank_of(wide, rank, **options, num_threads=number) for rank, number in enumerate(threads)
    ]
    first, other = (each.stats().cache_rows for each in ranks)
    assert 1000 < other <= first
    assert (other < first) == (threads == (1, 2)) == ("does not fit here" in caplog.text)


def test_free_memory_is_measured_once(
    path: Path, shares_all: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the strategy chosen once: a rank that starts when less is free has the same number."""
    monkeypatch.setattr(loader_spec, "available_bytes", lambda: 80 * MB)
    first = rank_of(path, 0, memory="auto")
    monkeypatch.setattr(loader_spec, "available_bytes", lambda: 10 * MB)
    later = [rank_of(path, 1, memory="auto"), rank_of(path, 1)]
    placed = [each._sources.placement for each in (first, *later)]
    assert [each.budget_bytes for each in placed] == [30 * MB, 30 * MB, 40 * MB]
    assert [each.strategy.name for each in placed] == ["memory"] * 3
    assert "three quarters of the 80 MB that were free for 2 ranks" in placed[0].ledger.source
    assert "the first rank of this machine chose it" in later[0].stats().reason


def test_later_loaders_on_the_store_share_too(path: Path, shares_all: None) -> None:
    """And what an earlier one has loaded for this process alone is let go."""
    store = gnnstore.open(path)
    alone = loader_on(store, strategy="memory")
    batches = batches_of(alone, 2)
    ranked = rank_of(store, 0, strategy="memory", memory="64MB")
    later = loader_on(store, strategy="memory")
    with shared_tables(store).machine_for(None) as place:
        assert place.num_ranks == 2
    for loader in (ranked, later):
        assert not loader._sources.topology.columns().indices.flags.writeable
        assert not loader._sources.tables["nodes/node/x"].table.flags.writeable
    assert alone._sources.topology.columns().indices.flags.writeable
    assert_same_batches(batches_of(later), batches[: len(later)])
    alone.set_epoch(0)
    assert_same_batches(batches_of(alone), batches[: len(alone)])


def test_a_loader_of_one_local_rank_has_memory_of_its_own(path: Path, shares_all: None) -> None:
    store = gnnstore.open(path)
    ranked = rank_of(store, 0, strategy="memory", memory="64MB")
    for options in ({"rank": 0, "world_size": 2}, {}):
        alone = loader_on(store, strategy="memory", local_world_size=1, **options)
        assert alone._sources.topology.columns().indices.flags.writeable
        assert alone._sources.tables["nodes/node/x"].table.flags.writeable
    assert held_bytes(alone) > 1.9 * held_bytes(ranked)
    later = loader_on(store, strategy="memory")
    assert later._sources.tables["nodes/node/x"] is alone._sources.tables["nodes/node/x"]


def test_a_rank_has_no_cache_of_an_earlier_loader(
    path: Path, shares_all: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Its cache is that of all ranks, and takes the earlier one's place in the budget."""
    options: dict[str, Any] = {"strategy": "static", "topology": "memory", "cache_bytes": MB}
    store = gnnstore.open(path)
    alone = loader_on(store, **options)
    batches = batches_of(alone, 2)
    ranked = rank_of(store, 0, **options, memory="64MB")
    assert ranked._sources.cache.num_bytes == pytest.approx(MB / 2, rel=0.01)
    assert "makes room for the cache of all ranks" in caplog.text
    assert alone._sources.cache.num_bytes == 0
    alone.set_epoch(0)
    assert_same_batches(batches_of(alone), batches[: len(alone)])
    assert loader_on(store, **options)._sources.cache is ranked._sources.cache


def test_a_cache_of_other_attributes_counts(path: Path) -> None:
    options: dict[str, Any] = {"strategy": "static", "topology": "memory", "io_engine": "pread"}
    store = gnnstore.open(path)
    first = loader_on(store, **options, memory="14MB", attributes=["x"])
    assert first.stats().cache_rows > 1000
    other = loader_on(store, **options, memory="14MB").stats()
    assert other.cache_rows == 0
    assert "belong to a loader with another strategy, cache or attributes" in other.reason
    small = loader_on(store, **options, memory="14MB", attributes=["x", "y"], cache_bytes=MB // 4)
    assert 0 < small.stats().cache_rows < 500
    taken = format_size(first._sources.cache.num_bytes)
    assert f"less {taken} of other caches" in small._sources.placement.ledger.source


def test_a_cache_behind_a_tier_counts_whole(path: Path, shares_all: None) -> None:
    class Same(Tier):
        def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
            return self.below.read_rows(ids, out)

    store = gnnstore.open(path)
    shared_tables(store).add_tier(Same)
    ranked = rank_of(store, 0, strategy="static", memory="64MB", cache_bytes=MB)
    assert ranked._sources.cache.num_bytes == pytest.approx(MB, rel=0.01)


def test_every_rank_keeps_its_options_when_the_first_chooses(
    wide: Path,
    shares_all: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {"cache": "degree", "cache_bytes": MB, "batch_size": 4}
    options["memory"] = "14MB"  # less than half of the store
    ranks = [rank_of(wide, rank, **options) for rank in range(2)]
    found = [each.stats() for each in ranks]
    assert [each.strategy for each in found] == ["static"] * 2
    assert found[0].cache_rows == found[1].cache_rows > 100
    assert [each._sources.placement.cache.score for each in ranks] == ["degree"] * 2
    # With other options it chooses for itself; and if what the first has chosen does not fit.
    other = rank_of(wide, 1, memory="64MB")
    assert other.stats().strategy == "memory"
    assert "the first rank" not in other.stats().reason

    def refuse(*sizes: Any, **options: Any) -> Any:
        if not isinstance(options["strategy"], dict):  # one strategy, and not a choice
            raise BudgetError("it does not fit")
        return placement.place(*sizes, **options)

    monkeypatch.setattr(loader_spec, "place", refuse)
    other = rank_of(wide, 0, memory="64MB")
    assert "the first rank" not in other.stats().reason
    assert "does not fit here, and this rank chooses for itself: it does not fit" in caplog.text


def test_a_store_that_is_converted_anew_is_another_one(tmp_path: Path, shares_all: None) -> None:
    """At the same path; a rank that started before goes on with what it has."""
    here = from_rmat(tmp_path / "r.gnn", scale=8, feature_dim=32)
    before = rank_of(here, 0, strategy="memory", batch_size=16)
    batches = batches_of(before, 2)
    anew = ConvertOptions(overwrite=True)
    from_rmat(here, scale=8, feature_dim=32, seed=5, options=anew)
    alone = batches_of(loader_on(here, strategy="mmap", batch_size=16))
    after = rank_of(here, 1, strategy="memory", batch_size=16)
    assert_same_batches(batches_of(after)[:1], alone[1:2])
    before.set_epoch(1)
    assert_same_batches(batches_of(before), batches[len(before) :])


def test_users_get_copies(path: Path, shares_all: None) -> None:
    """Torch does not know of memory that must not be written to: that would be a SIGSEGV."""
    store, other = gnnstore.open(path), gnnstore.open(path)
    ranks = [rank_of(each, rank, strategy="memory") for rank, each in enumerate((store, other))]
    for each in (store, other):
        row, colptr = each.get_edge_index(EdgeAttr(None, "csc"))
        row[:] = colptr[:] = 7
    assert int(ranks[0]._sources.topology.columns().indptr[0]) == 0


def test_what_ranks_say(
    path: Path,
    shares_all: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, of ranks that do not meet, and of other options."""
    with caplog.at_level(logging.WARNING):
        first = rank_of(path, 0, strategy="static", memory="20MB", cache_bytes=MB)
        for _ in range(2):
            next(iter(first))
    (said,) = caplog.messages
    assert "this rank has loaded" in said
    assert "no other has taken a part of it so far" in said
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        other = rank_of(path, 1, strategy="static", memory="19MB", cache_bytes=MB // 2)
        next(iter(other))
    (said,) = caplog.messages
    assert "this rank has strategy='static', topology='auto', memory='19MB'" in said
    assert "memory='20MB', cache_bytes=1000000; what these size or choose is not shared" in said
    assert other.stats().cache_rows < first.stats().cache_rows
    other.set_epoch(0)
    batches = batches_of(loader_on(path))
    assert_same_batches(batches_of(other), [*batches, *batches][1 : len(batches) + 1 : 2])

    def refuse() -> None:
        raise Unshared("there is none")

    monkeypatch.setattr(shared_memory, "_memory", refuse)
    with pytest.raises(BudgetError, match=r"could not be shared .* \(there is none\): arrays that"):
        rank_of(path, 0, size=3, strategy="memory", memory="2MB")
