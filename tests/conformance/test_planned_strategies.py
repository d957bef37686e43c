"""The strategies that plan: the same batches, whatever is planned ahead."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.caching.policies import Fixed
from gnnstore.errors import BudgetError, StorageError, UsageError
from gnnstore.graph.cache_owner import shared_caches
from gnnstore.strategies.registry import STRATEGIES
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import choose, paired
from tests.support.faults import inject
from tests.support.graphs import WIDTH, N, graph_of_three_tables
from tests.support.loaders import override_sizes, slots_of, superbatches_of
from tests.support.references import BATCHES, OPTIONS, add_one, batches_in_memory, keep_half

PLANNED = [strategy.name for strategy in STRATEGIES if strategy.plans]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graph_of_three_tables().write(tmp_path_factory.mktemp("planned") / "s.gnn")


def loader_of(path: Any, **options: Any) -> NeighborLoader:
    defaults: dict[str, Any] = {"strategy": "belady", "cache_bytes": "100kB", "superbatch": 5}
    return NeighborLoader(path, [4, 4], "train", **(defaults | OPTIONS | options))


# --- equal batches -------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.parametrize(
    ("on_disk", "num_threads"), paired(["", "subgraphs", "plans"], [0, 4, 1, 2], 1)
)
def test_batches_are_the_same(
    tmp_path: Path, request: pytest.FixtureRequest, strategy: str, on_disk: str, num_threads: int
) -> None:
    path, expected = request.getfixturevalue("path"), request.getfixturevalue("expected")
    loader = loader_of(path, strategy=strategy, num_threads=num_threads, spill_dir=tmp_path)
    override_sizes(loader, in_memory=on_disk != "subgraphs")
    if on_disk == "plans":
        override_sizes(loader, table_bytes=256)
    assert_same_batches(batches_of(loader, 2), expected)
    stats = loader.stats()
    assert (stats.strategy, stats.cache, stats.superbatch) == (strategy, strategy, 5)
    assert stats.rows_read > 0
    assert stats.rows_cached > 0
    assert stats.bytes_useful > 0
    assert stats.seconds_planning > 0
    assert (stats.bytes_spilled > 0) == (STRATEGIES[strategy].packs or on_disk != "")
    del loader
    assert not list(tmp_path.iterdir()), "spilled subgraphs go with the loader at the latest"


@pytest.mark.parametrize("num_threads", choose([2], [0, 2]))
@pytest.mark.parametrize("score", choose(["degree"], ["degree", "frequency"]))
@pytest.mark.parametrize("on_disk", choose([True], [False, True]))
def test_packed_beside_a_cache_that_stays(
    path: Path, expected: Batches, score: str, num_threads: int, on_disk: bool
) -> None:
    """What DiskGNN does."""
    store = gnnstore.open(path)
    loader = loader_of(store, strategy="packed", cache=score, num_threads=num_threads)
    if on_disk:
        override_sizes(loader, table_bytes=256)
    assert_same_batches(batches_of(loader, 2), expected)
    first = loader.stats()
    assert first.rows_cached > 0
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader), expected[:BATCHES])
    policy = superbatches_of(loader).job.policy
    assert isinstance(policy, Fixed)
    nodes = policy.nodes(loader.stats().cache_rows)
    held = slots_of(store).planned_nodes
    assert held[held >= 0].tolist() == nodes.tolist()
    if score == "degree":
        degrees = np.bincount(store.topology("mmap").columns().indices, minlength=N)
        assert degrees[nodes].min() >= np.delete(degrees, nodes).max()


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES if s.reads_disk])
def test_topology_on_disk(path: Path, expected: Batches, strategy: str, num_threads: int) -> None:
    options: dict[str, Any] = {} if STRATEGIES[strategy].plans else {"superbatch": None}
    options |= {"cache_bytes": None} if STRATEGIES[strategy].alias_of else {}
    loader = loader_of(
        path, strategy=strategy, topology="disk", memory="80MB", num_threads=num_threads, **options
    )
    assert_same_batches(batches_of(loader, 2), expected)
    stats = loader.stats()
    assert stats.topology == "disk"
    assert stats.topology_bytes_read > 0
    state = loader.state_dict()
    other = loader_of(path, strategy=strategy, topology="mmap", **options)
    other.load_state_dict(state)


@pytest.mark.parametrize(
    ("superbatch", "cache_bytes"),
    choose(
        [(1, 1000), (100, "1GB"), ("auto", None)],
        paired([1, 2, BATCHES, 100, "auto", None], [0, 1000, "50kB", "1GB", None]),
    ),
)
def test_sizes(path: Path, expected: Batches, superbatch: Any, cache_bytes: Any) -> None:
    loader = loader_of(path, superbatch=superbatch, cache_bytes=cache_bytes)
    assert_same_batches(batches_of(loader, 2), expected)
    stats = loader.stats()
    assert 1 <= stats.superbatch <= BATCHES
    assert stats.cache_rows <= N
    if cache_bytes in {0, 1000}:
        assert stats.cache_rows == (0 if cache_bytes == 0 else 1000 // (WIDTH * 4 + 30 * 4 + 48))
    if cache_bytes == "1GB":
        assert stats.cache_rows == N
        assert node_rows(loader) <= 2 * N, "the rows of both tables are read once at most"


@pytest.mark.parametrize("disk", ["1kB", "100MB"])
def test_a_budget_of_disk(path: Path, expected: Batches, disk: str) -> None:
    """Plans stay in memory where there is no disk for them."""
    options: dict[str, Any] = {"memory": "20MB", "cache_bytes": None, "num_threads": 1}
    loader = loader_of(path, **options, superbatch=BATCHES, disk=disk)
    assert superbatches_of(loader).job.size.plans_in_memory or disk == "100MB"
    assert_same_batches(batches_of(loader), expected[:BATCHES])
    with pytest.raises(UsageError, match="has no use for disk="):
        loader_of(path, strategy="static", superbatch=None, disk=disk)


def node_rows(loader: NeighborLoader) -> int:
    """Return how many rows of nodes have been read: those of edges are never cached."""
    return loader.stats().rows_read - loader.stats().edges


def test_no_cache_misses_less(path: Path) -> None:
    def rows_read(**options: Any) -> int:
        loader = loader_of(path, **options)
        batches_of(loader)
        return node_rows(loader)

    all_rows = rows_read(strategy="direct", superbatch=None, cache_bytes=None)
    few = rows_read(superbatch=BATCHES)
    assert rows_read(superbatch=BATCHES, cache_bytes=0) == all_rows
    assert 0 < few < all_rows
    # Not even one that is filled beforehand with the best rows, which are read too.
    static = NeighborLoader(
        path, [4, 4], "train", strategy="static", cache_bytes="100kB", **OPTIONS
    )
    batches_of(static)
    assert few < node_rows(static) + 2 * static.stats().cache_rows


# --- iterations that are left, resumed, or run side by side --------------------------------


@pytest.mark.parametrize(
    ("num_taken", "num_threads"),
    paired(choose([5], [0, 1, 4, 5, 6, BATCHES - 1]), [2, 0], 1),
)
def test_an_iteration_that_is_left(
    path: Path, expected: Batches, num_threads: int, num_taken: int
) -> None:
    loader = loader_of(path, num_threads=num_threads)
    taken = [batch.to_dict() for batch in islice(loader, num_taken)]
    assert_same_batches(taken, expected[:num_taken])
    loader.set_epoch(1)
    assert_same_batches(batches_of(loader), expected[BATCHES:])


def test_the_cache_is_kept_between_epochs(path: Path) -> None:
    loader = loader_of(path, cache_bytes="1GB", superbatch=BATCHES)
    batches_of(loader)
    assert node_rows(loader) > 0
    loader.set_epoch(0)
    batches_of(loader)
    first = node_rows(loader)
    loader.set_epoch(0)
    batches_of(loader)
    assert node_rows(loader) == first, "every row that the epoch needs is there"


@pytest.mark.parametrize("num_threads", choose([2], [0, 2]))
def test_two_iterations_at_once(path: Path, expected: Batches, num_threads: int) -> None:
    loader = loader_of(path, num_threads=num_threads)
    pairs = [(a.to_dict(), b.to_dict()) for a, b in zip(loader, loader, strict=True)]
    assert_same_batches([a for a, _ in pairs], expected[:BATCHES])
    assert_same_batches([b for _, b in pairs], expected[BATCHES:])


@pytest.mark.parametrize("strategy", choose(["belady"], ["belady", "packed"]))
@pytest.mark.parametrize("validates", choose([False], [False, True]))
def test_loop_that_counts_batches_leaves_the_slots(
    path: Path, expected: Batches, caplog: pytest.LogCaptureFixture, strategy: str, validates: bool
) -> None:
    """Lightning asks for no batch after the last, and keeps the iterator until the next epoch's."""
    store = gnnstore.open(path)
    options: dict[str, Any] = {"strategy": strategy, "cache_bytes": "100kB", "superbatch": 7}
    train, alone = loader_of(store, **options), loader_of(path, **options)
    valid = NeighborLoader(store, [4], "valid", batch_size=40, seed=1, **options)
    found, iterator = [], iter(train)
    num_epochs = choose(3, 4)
    for epoch in range(num_epochs):
        iterator = iterator if epoch == 0 else iter(train)
        found += [next(iterator).to_dict() for _ in range(BATCHES)]
        if validates and epoch:
            assert len(batches_of(valid)) == len(valid)
            assert valid.stats().rows_cached > 0
    assert_same_batches(found[: 2 * BATCHES], expected)
    assert_same_batches(batches_of(alone, num_epochs), found)
    assert not [each for each in caplog.records if "another iteration" in each.getMessage()]
    if not validates:  # what was made ahead is used, and the cache is warm
        assert train.stats().rows_read == alone.stats().rows_read


@pytest.mark.parametrize("strategy", choose(["packed"], PLANNED))
def test_validation_in_the_middle_takes_nothing_from_training(
    path: Path, expected: Batches, caplog: pytest.LogCaptureFixture, strategy: str
) -> None:
    """The slots belong to the iteration that is open: validation reads all of its rows."""
    store = gnnstore.open(path)
    options: dict[str, Any] = {"strategy": strategy, "cache_bytes": "100kB", "superbatch": BATCHES}
    options["prefetch_batches"] = 1  # so that the last batches have no rows yet
    train, alone = loader_of(store, **options), loader_of(path, **options)
    valid = NeighborLoader(store, [4], "valid", batch_size=40, seed=1, **options)
    reference = batches_of(NeighborLoader(path, [4], "valid", batch_size=40, seed=1))
    found = []
    for i, batch in enumerate(train):
        found.append(batch.to_dict())
        if i in (1, 5):
            valid.set_epoch(0)
            assert_same_batches(batches_of(valid), reference)
    assert_same_batches(found, expected[:BATCHES])
    assert_same_batches(batches_of(alone), expected[:BATCHES])
    for name in ("rows_read", "reads", "bytes_packing"):
        assert getattr(train.stats(), name) == getattr(alone.stats(), name)
    assert valid.stats().rows_cached == valid.stats().bytes_packing == 0
    told = [each for each in caplog.records if "another iteration" in each.getMessage()]
    assert len(told) == 1, "once for each loader"
    # Once no other iteration is open, it has slots of its own.
    assert len(batches_of(valid, 2)) == 2 * len(valid)
    assert valid.stats().rows_cached > 0
    assert_same_batches(batches_of(train), expected[BATCHES:])


def test_an_iteration_that_somebody_holds_on_to_gives_the_slots_to_the_next(
    path: Path, expected: Batches
) -> None:
    """As a traceback does in a notebook, where the cell is run again."""
    loader, alone = loader_of(path, superbatch=BATCHES), loader_of(path, superbatch=BATCHES)
    left = iter(loader)
    first = [next(left).to_dict() for _ in range(3)]
    loader.set_epoch(0)
    before = loader.stats()
    assert_same_batches(batches_of(loader), expected[:BATCHES])
    batches_of(alone)
    stats = loader.stats().since(before)
    assert stats.rows_cached >= 0.9 * alone.stats().rows_cached
    rest = [batch.to_dict() for batch in left]
    assert_same_batches(first + rest, expected[:BATCHES])


def test_a_smaller_budget_takes_memory_back(path: Path, expected: Batches) -> None:
    store = gnnstore.open(path)
    large, small = loader_of(store, cache_bytes="100kB"), loader_of(store, cache_bytes="10kB")
    assert_same_batches(batches_of(large), expected[:BATCHES])
    former = shared_caches(store).cached_bytes
    assert 50_000 < former <= 100_000
    slots = slots_of(store)
    assert_same_batches(batches_of(small), expected[:BATCHES])
    assert shared_caches(store).cached_bytes <= 10_000
    assert slots.num_bytes < former / 50
    large.set_epoch(0)
    small.set_epoch(0)
    assert_same_batches(batches_of(large), expected[:BATCHES])
    assert_same_batches(batches_of(small, 2), expected)
    large.set_epoch(1)
    assert_same_batches(batches_of(large), expected[BATCHES:])


def test_sampler_output_that_is_changed(path: Path) -> None:
    """Rows follow the nodes that are left, or added, by `transform_sampler_output`."""
    for change in choose((add_one,), (keep_half, add_one)):
        found = batches_of(loader_of(path, transform_sampler_output=change), 2)
        assert_same_batches(found, batches_in_memory(path, transform_sampler_output=change))


def test_batches_on_demand(path: Path) -> None:
    plain = NeighborLoader(path, [4, 4], "train", strategy="memory", **OPTIONS)
    loader = loader_of(path)
    running: Any = iter(loader)
    next(running)
    for index in ([0, 1, 2], [5, 6]):
        assert_same_batches([loader(index).to_dict()], [plain(index).to_dict()])
    running.close()


# --- what goes wrong -----------------------------------------------------------------------


@pytest.mark.parametrize("num_threads", choose([0], [0, 1, 3]))
def test_a_sampler_that_fails(path: Path, expected: Batches, num_threads: int) -> None:
    """What was drawn before the failure is handed out; then the user's own error comes."""

    class Failing:
        def __iter__(self) -> Iterator[list[int]]:
            for k in range(7):
                yield [k]
            raise KeyError("the sampler is broken")

    loader = NeighborLoader(
        path,
        [4],
        batch_sampler=Failing(),
        strategy="belady",
        superbatch=3,
        num_threads=num_threads,
        seed=0,
    )
    got: list[Any] = []
    with pytest.raises(KeyError, match="broken"):
        got.extend(loader)
    assert len(got) == 7


@pytest.mark.parametrize("num_threads", choose([3], [0, 1, 3]))
def test_a_batch_that_cannot_be_sampled(
    path: Path, monkeypatch: pytest.MonkeyPatch, num_threads: int
) -> None:
    loader = loader_of(path, num_threads=num_threads)
    draw = loader._source.sampler.draw

    def failing(request: Any) -> Any:
        if request.batch == 7:
            raise StorageError("out of order", path="here")
        return draw(request)

    monkeypatch.setattr(loader._source.sampler, "draw", failing)
    got: list[Any] = []
    with pytest.raises(StorageError, match="out of order") as caught:
        got.extend(loader)
    assert len(got) == 7
    assert any("batch 7 of epoch 0" in note for note in caught.value.__notes__)
    monkeypatch.undo()
    loader.set_epoch(0)
    assert len(batches_of(loader)) == BATCHES, "the loader can be used again"


@pytest.mark.parametrize("num_threads", choose([4], [0, 1, 4]))
def test_a_read_that_fails(path: Path, expected: Batches, num_threads: int) -> None:
    """No thread waits for the turn of a batch that will never come."""
    loader = loader_of(path, num_threads=num_threads, io_engine="pread")
    done: list[Any] = []
    with inject("pread", errno=errno.EIO, skip=40, times=10**6), pytest.raises(StorageError):
        done.extend(loader)
    assert len(done) < BATCHES
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader), expected[:BATCHES])


def test_a_directory_that_is_not_there(path: Path, tmp_path: Path) -> None:
    loader = loader_of(path, spill_dir=tmp_path / "absent" / "deeper")
    override_sizes(loader, in_memory=False)
    with pytest.raises(StorageError, match="deeper: No such file or directory"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"superbatch": 0}, "superbatch=0: expected a number of batches, at least 1, or 'auto'"),
        ({"superbatch": "many"}, "superbatch='many'"),
        ({"superbatch": 2.5}, "superbatch=2.5"),
        ({"cache": "degree"}, "has no use for cache="),
        ({"strategy": "direct", "superbatch": 4}, "has no use for superbatch"),
        ({"strategy": "static", "superbatch": None, "spill_dir": "/x"}, "has no use for spill_dir"),
        ({"cache_bytes": -1}, "cache_bytes"),
        ({"strategy": "lru"}, "strategy='lru' is unknown; choose one of auto, memory, "),
    ],
)
def test_options_that_make_no_sense(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        loader_of(path, **options)


def test_a_budget_too_small(path: Path) -> None:
    with pytest.raises(BudgetError, match="raise memory= by at least"):
        loader_of(path, memory="9MB", num_threads=1, cache_bytes="50MB")
    with pytest.raises(BudgetError, match="raise memory= by at least"):
        loader_of(path, memory="8.5MB", num_threads=1, cache_bytes=None)
