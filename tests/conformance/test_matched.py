"""`reorder=` keeps rows of the batch before on the device: what is moved is what sets of nodes say.

The device is the host's memory here; `test_devices` has one that is late.
"""

from __future__ import annotations

import copy
import json
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.loaders import device as devices
from tests.support.batches import Batches, assert_goes_on, assert_same_batches, batches_of
from tests.support.communities import (
    NUM_BATCHES,
    NUM_COMMUNITIES,
    SEEDS,
    in_windows,
    write_communities,
)
from tests.support.effort import choose, is_long, paired
from tests.support.every_loader import (
    CASES,
    NODES,
    ONE_BY_STRATEGY,
    WAYS,
    OpenStores,
    make,
    open_stores,
)
from tests.support.twins.held import has_repeats, on_device

MATCH: dict[str, Any] = {"device": "cpu", "reorder": 1}
NUM_EPOCHS = choose(2, 3)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> OpenStores:
    return open_stores(tmp_path_factory.mktemp("matched"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_communities(tmp_path_factory.mktemp("matched") / "s.gnn")


@pytest.fixture(scope="module")
def expected() -> dict[Any, Batches]:
    return {}


def cells() -> list[Any]:
    """Return cases with ways to read; in `make test` one by each strategy but "auto"."""
    cases = CASES if is_long() else ["nodes", "nodes, disjoint", "plain, links"]
    return [
        pytest.param(case, way, id=f"{case}: {'-'.join(map(str, way.values()))}")
        for case, way in paired(cases, choose(ONE_BY_STRATEGY, WAYS), 2)
    ]


@pytest.mark.filterwarnings("ignore:edge_label_time of some seed edges")
@pytest.mark.parametrize(("case", "way"), cells())
def test_rows_moved_are_the_twins(
    stores: OpenStores, expected: dict[Any, Batches], case: str, way: dict[str, Any]
) -> None:
    options = {"batch_size": choose(14, 6)} if case in NODES else {}
    if case not in expected:
        plain = make(stores, case, strategy="memory", **options)
        expected[case] = batches_of(plain, NUM_EPOCHS)
    held_ways: list[dict[str, Any]] = [{"device_cache": "2kB"}, {}, {"device_cache": "1GB"}]
    for held in choose(held_ways[(turn := WAYS.index(way) % 2) : turn + 1], held_ways):
        loader = make(stores, case, **options, **way, **MATCH, **held)
        found = batches_of(loader, NUM_EPOCHS)
        assert_same_batches(found, expected[case])
        there, stats = on_device(loader, found), loader.stats()
        assert (stats.rows_on_device, stats.rows_kept) == (there.num_rows, there.num_kept)
        has_before = len(loader) > 1 and held.get("device_cache") != "1GB"
        assert there.num_kept > 0 or not has_before
        owners = loader._sources.chosen.tables.owners
        paths = loader._sources.placement.read_paths & owners.keys()
        if paths and not has_repeats(found):  # else a batch may read a row more than once
            missed = sum(there.missed[owners[each]] for each in paths)
            found_rows = stats.rows_read + stats.rows_cached
            assert missed <= found_rows <= missed + stats.cache_rows


def loader_of(path: Path, **options: Any) -> Any:
    """Return a loader whose batches are of one community each."""
    given: dict[str, Any] = {"input_nodes": SEEDS, "batch_size": 6, "seed": 3, **options}
    return NeighborLoader(path, [4, 4], **given)


@pytest.mark.parametrize("strategy", choose(["packed"], ["belady", "packed"]))
@pytest.mark.parametrize("num_threads", choose([3], [0, 3]))
def test_windows_move_less(path: Path, strategy: str, num_threads: int) -> None:
    """Communities by turns share no row; in windows of 4 K a third of the rows stays."""
    plain = batches_of(loader_of(path), 2)
    size = 4 * NUM_COMMUNITIES
    options: dict[str, Any] = {
        "strategy": strategy,
        "cache_bytes": "1kB",
        "num_threads": num_threads,
    }
    loader = loader_of(path, **options, **MATCH | {"reorder": size})
    found = batches_of(loader, 2)
    assert_same_batches(
        found, in_windows(plain[:NUM_BATCHES], size) + in_windows(plain[NUM_BATCHES:], size)
    )
    stats, there = loader.stats(), on_device(loader, found)
    assert stats.rows_kept == there.num_kept
    matched = loader_of(path, **options, **MATCH)
    assert_same_batches(batches_of(matched, 2), plain)
    assert matched.stats().rows_kept < stats.nodes / 50
    assert stats.rows_kept > stats.nodes / 4
    # What is on the device is not read.
    assert (
        stats.rows_read + stats.rows_cached
        <= matched.stats().rows_read + matched.stats().rows_cached - stats.rows_kept / 2
    )


def test_a_users_transform_and_loops_that_are_left(path: Path) -> None:
    """Kept rows are not the user's, and the first batch of an iteration has none before it."""

    def transform(batch: Any) -> Any:
        batch.x.zero_()
        return batch

    expected = batches_of(loader_of(path, transform=transform))
    for strategy in choose(("belady",), ("memory", "belady")):
        options: dict[str, Any] = {
            "strategy": strategy,
            "superbatch": None if strategy == "memory" else 3,
        }
        loader = loader_of(path, **options, **MATCH)
        for number in choose((4,), (2, 4, 3)):
            loader.set_epoch(0)
            for batch in islice(loader, number):
                batch.x.zero_()
                del batch
        loader.set_epoch(0)
        assert_same_batches(batches_of(loader), batches_of(loader_of(path)))
        zeroed = batches_of(loader_of(path, transform=transform, **options, **MATCH))
        assert_same_batches(zeroed, expected)


@pytest.mark.long("without a device it is tested in both")
def test_next_to_a_loader_that_takes_the_slots(path: Path) -> None:
    store = gnnstore.open(path)
    options: dict[str, Any] = {"strategy": "belady", "cache_bytes": "2kB", "superbatch": 4, **MATCH}
    one, other = loader_of(store, **options), loader_of(store, **options, device_cache="2kB")
    plain = batches_of(loader_of(path), 2)
    batches = iter(one)
    found = [next(batches).to_dict() for _ in range(3)]
    assert_same_batches(batches_of(other), plain[:NUM_BATCHES])
    found += batches_of(batches)
    assert_same_batches(batches_of(other), plain[NUM_BATCHES:])
    assert_same_batches(found + batches_of(one), plain)


def test_resuming(path: Path) -> None:
    """Inside a window, too: the first batch after a stop has no other before it."""
    seeds = SEEDS[: 6 * 7]
    options: dict[str, Any] = {"input_nodes": seeds, "strategy": "packed", "shuffle": True}
    for reorder in choose((3,), (1, 3)):
        given = {**options, **MATCH, "reorder": reorder}
        assert_goes_on(lambda given=given: loader_of(path, **given))  # type: ignore[misc]
    loader = loader_of(path, **options, **MATCH)
    first = [*islice(loader, 2)]
    assert len(first) == 2
    resumed = loader_of(path, **options | {"strategy": "memory"}, **MATCH)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert_same_batches(
        batches_of(resumed), batches_of(loader_of(path, input_nodes=seeds, shuffle=True))[2:]
    )


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "belady", "cache_bytes": "1kB", "superbatch": 4, "reorder": 2},
        *choose(
            (),
            (
                {"strategy": "memory"},
                {"strategy": "belady", "cache_bytes": "1kB", "superbatch": 4},
                {"strategy": "packed", "superbatch": 4, "reorder": 2},
            ),
        ),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_copies_match_too(path: Path, options: dict[str, Any]) -> None:
    loader = loader_of(path, shuffle=True, **MATCH | options)
    copies = [pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)]  # noqa: S301
    expected = batches_of(loader)
    assert loader.stats().rows_kept > 0
    for each in copies:
        assert_same_batches(batches_of(each), expected)
        assert each.stats().rows_kept == loader.stats().rows_kept


def test_rows_that_are_kept_in_host_memory_are_within_the_budget(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their batch counts for as long as they are there, even if the consumer has let go of it."""
    place, left = devices.Placing.place, list[Any]()

    def placed(self: Any, batch: Any) -> None:
        place(self, batch)
        left.append(self._kept)

    monkeypatch.setattr(devices.Placing, "place", placed)
    loader = loader_of(path, strategy="memory", memory="100MB", num_threads=0, **MATCH)
    all(loader)
    assert loader._gate.num_living == len(left) == NUM_BATCHES
    left.clear()
    assert loader._gate.num_living == 0


def test_belady_misses_no_more(path: Path) -> None:
    """In one superbatch: a row that enters there would have been missed without."""
    options: dict[str, Any] = {"strategy": "belady", "shuffle": True, "superbatch": NUM_BATCHES}
    for cache_bytes in choose(("4kB",), ("1kB", "4kB", "9kB")):
        plain = loader_of(path, **options, cache_bytes=cache_bytes)
        matched = loader_of(path, **options, cache_bytes=cache_bytes, **MATCH)
        assert_same_batches(batches_of(matched), batches_of(plain))
        assert matched.stats().rows_read <= plain.stats().rows_read


def test_an_error_ends_those_that_wait_for_its_nodes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in ({"strategy": "memory"}, {"strategy": "belady", "superbatch": 4}):
        loader = loader_of(path, num_threads=3, prefetch_batches=8, **options, **MATCH)
        prepare = loader._source.prepare

        def fail(batch: Any, prepare: Any = prepare) -> None:
            if batch.key.batch == 2:
                raise ValueError("the third batch")
            prepare(batch)

        monkeypatch.setattr(loader._source, "prepare", fail)
        batches = iter(loader)
        next(batches)
        next(batches)
        with pytest.raises(ValueError, match="the third batch"):
            next(batches)
