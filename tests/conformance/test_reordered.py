"""`reorder=`: the batches of each window in the greedy order, and nothing else of them changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count, islice, pairwise
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import gnnstore
from gnnstore import LinkNeighborLoader, NeighborLoader
from gnnstore.caching.windows import overlaps
from gnnstore.errors import BudgetError, UsageError
from gnnstore.pipeline.lookahead import ordering
from gnnstore.testing import assert_resumes
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.communities import (
    BATCH_SIZE,
    NUM_BATCHES,
    NUM_COMMUNITIES,
    SEEDS,
    in_windows,
    write_communities,
)
from tests.support.effort import choose, paired
from tests.support.every_loader import OpenStores, make, open_stores

WINDOW = 2 * NUM_COMMUNITIES
NUM_EPOCHS = choose(2, 3)

WAYS: list[dict[str, Any]] = [
    {"strategy": "belady", "cache_bytes": "1kB", "superbatch": WINDOW},
    {"strategy": "belady", "cache_bytes": "4kB", "num_threads": 0},
    {"strategy": "belady", "cache_bytes": "1kB", "topology": "disk", "superbatch": 2 * WINDOW},
    {"strategy": "packed", "cache_bytes": "1kB", "superbatch": WINDOW, "num_threads": 2},
    {"strategy": "packed", "cache_bytes": "2kB", "superbatch": 5 * WINDOW},
    {"strategy": "packed", "memory": "45MB", "cache": "degree"},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_communities(tmp_path_factory.mktemp("reorder") / "s.gnn")


def loader_of(path: Any, **options: Any) -> Any:
    """Return a loader whose batches are of one community each, unless they are shuffled."""
    given: dict[str, Any] = {"input_nodes": SEEDS, "batch_size": BATCH_SIZE, "seed": 3}
    return NeighborLoader(path, [4, 4], **given | options)


def reordered(path: Any, size: int = WINDOW, **options: Any) -> Any:
    """Return a loader whose batches come by windows."""
    return loader_of(path, **{"strategy": "belady", **options, "reorder": size, "device": "cpu"})


def by_epoch(batches: Batches, size: int, num_batches: int = NUM_BATCHES) -> Batches:
    """Return epochs of batches, each in windows of a size."""
    epochs = range(0, len(batches), num_batches)
    return [b for k in epochs for b in in_windows(batches[k : k + num_batches], size)]


def kept(batches: Batches) -> int:
    """Return the rows that are in the batch before."""
    sets = [set(batch["n_id"].tolist()) for batch in batches]
    return sum(len(one & other) for one, other in pairwise(sets))


@pytest.fixture(scope="module")
def plain(path: Path) -> dict[bool, Batches]:
    """Return the batches of some epochs, in their own order and shuffled."""
    return {
        shuffle: batches_of(loader_of(path, shuffle=shuffle), NUM_EPOCHS)
        for shuffle in (False, True)
    }


@pytest.mark.parametrize(
    ("way", "shuffle"),
    paired(choose(WAYS[2:4], WAYS), [False, True], 1),
    ids=lambda way: "-".join(map(str, way.values())) if isinstance(way, dict) else str(way),
)
def test_every_way_gives_one_order(
    path: Path, plain: dict[bool, Batches], way: dict[str, Any], *, shuffle: bool
) -> None:
    found = batches_of(reordered(path, shuffle=shuffle, **way), NUM_EPOCHS)
    assert_same_batches(found, by_epoch(plain[shuffle], WINDOW))
    if not shuffle:
        # With two batches of each community in a window, half of them follow one of their own.
        assert kept(found[:NUM_BATCHES]) > 5 * kept(plain[shuffle][:NUM_BATCHES])


@pytest.mark.parametrize("size", [*choose((), (1,)), NUM_COMMUNITIES, 3 * NUM_BATCHES])
def test_other_sizes_of_windows(path: Path, size: int) -> None:
    """One batch, one of each community, and an epoch that is shorter than a window."""
    plain = batches_of(loader_of(path))
    found = batches_of(reordered(path, size))
    assert_same_batches(found, plain if size <= NUM_COMMUNITIES else in_windows(plain, size))


def test_one_is_for_each_strategy(path: Path) -> None:
    plain = batches_of(loader_of(path, shuffle=True), 2)
    # Whose batches with `reorder=1` `test_matched` compares, too.
    for strategy in choose(("static",), ("memory", "mmap", "direct", "static", "auto")):
        assert_same_batches(
            batches_of(reordered(path, 1, strategy=strategy, shuffle=True), 2), plain
        )
    given = [[5, 3], [1], [2, 2]]
    options: dict[str, Any] = {"batch_sampler": given, "batch_size": 1}
    found = batches_of(reordered(path, 1, **options))
    assert_same_batches(found, batches_of(loader_of(path, **options)))


def test_next_to_a_loader_that_has_the_slots(path: Path) -> None:
    """Then batches come without a plan, and in their order all the same."""
    store = gnnstore.open(path)
    expected = in_windows(batches_of(loader_of(path)), WINDOW)
    loader, other = reordered(store), loader_of(store, strategy="belady")
    with_slots = iter(other)
    next(with_slots)
    found = batches_of(loader)
    assert_same_batches(found, expected)
    assert len([*with_slots]) == NUM_BATCHES - 1
    loader.set_epoch(0)
    batches = iter(loader)
    found = [next(batches).to_dict() for _ in range(3)]
    assert len([*other]) == NUM_BATCHES  # without slots, which the first one has
    assert_same_batches(found + batches_of(batches), expected)


def states_of(loader: Any, num_batches: int) -> list[Any]:
    """Return the states after each of the first batches."""
    found = [loader.state_dict()]
    found += [loader.state_dict() for _ in islice(loader, num_batches)]
    return found


def test_resuming_at_every_place(path: Path) -> None:
    plain = batches_of(loader_of(path, shuffle=True), 2)
    expected = by_epoch(plain, WINDOW)
    ways = choose(WAYS[2:4], WAYS)
    states = states_of(reordered(path, shuffle=True, **ways[0]), NUM_BATCHES)
    assert [state["batches"] for state in states] == [*range(NUM_BATCHES + 1)]
    loaders = [reordered(path, shuffle=True, **way) for way in ways]
    for place, state in [*enumerate(states)][:: choose(9, 1)]:
        loader = loaders[place % len(loaders)]
        loader.load_state_dict(state)
        assert loader.batches_left == NUM_BATCHES - place
        found = batches_of(loader)
        assert_same_batches(found, expected[place:NUM_BATCHES])
    loader.load_state_dict(states[-1])
    assert batches_of(loader) == []
    assert_same_batches(batches_of(loader), expected[NUM_BATCHES:])


@pytest.mark.long("the test before is in both")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["strategy"])
def test_resumed_loaders_go_on(path: Path, way: dict[str, Any]) -> None:
    options: dict[str, Any] = {**way, "superbatch": 3}
    assert_resumes(lambda: reordered(path, 3, shuffle=True, **options))


@pytest.mark.long("resuming in an epoch is tested in both")
def test_what_was_made_ahead_is_not_for_a_loader_that_resumes_there(path: Path) -> None:
    """The next epoch's batches from the first on are ready; a state of its second comes."""
    expected = by_epoch(batches_of(loader_of(path, shuffle=True), 2), WINDOW)
    states = states_of(reordered(path, shuffle=True), 2 * NUM_BATCHES)
    other = reordered(path, shuffle=True)
    other.set_epoch(1)
    state = states_of(other, 2)[-1]
    loader = reordered(path, shuffle=True)
    assert len([*loader]) == len(states) - 1 == NUM_BATCHES
    loader.load_state_dict(state)
    assert_same_batches(batches_of(loader), expected[NUM_BATCHES + 2 :])


def test_each_rank_has_windows_of_its_own_batches(path: Path) -> None:
    size, plain = 3, batches_of(loader_of(path, shuffle=True), 2)
    for rank in choose((1,), (0, 1)):
        options: dict[str, Any] = {"rank": rank, "world_size": 2, "shuffle": True}
        own = plain[rank::2]
        expected = by_epoch(own, size, NUM_BATCHES // 2)
        loader = reordered(path, size, **options)
        found = [batch.to_dict() for batch in islice(loader, 4)]
        state = loader.state_dict()
        assert state["batches"] == 8
        resumed = reordered(path, size, **options, strategy="packed")
        resumed.load_state_dict(state)
        assert_same_batches(found + batches_of(resumed, 2), expected)
    del options["shuffle"]
    for given in ({"size": 3}, {"size": 4, **options}, {"size": 1, **options}):
        with pytest.raises(UsageError, match=r"(reorder|world_size): expected"):
            reordered(path, shuffle=True, **given).load_state_dict(state)
    with pytest.raises(UsageError, match=r"batches: reorder: expected nothing, found 3\. Make"):
        reordered(path, 1, shuffle=True).load_state_dict(state)
    state = loader_of(path, shuffle=True).state_dict()
    reordered(path, 1, shuffle=True).load_state_dict(state)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> OpenStores:
    return open_stores(tmp_path_factory.mktemp("types"))


@pytest.mark.parametrize(
    ("case", "strategy"),
    paired(["nodes, disjoint", "links, triplets", "plain, links"], ["belady", "packed"]),
)
def test_types_links_and_nodes_twice(case: str, strategy: str, stores: OpenStores) -> None:
    def loader(**options: Any) -> Any:
        return make(stores, case, **options)

    plain = batches_of(loader(strategy="memory"))
    size = choose(4, 3)
    found = batches_of(loader(strategy=strategy, reorder=size, device="cpu"))
    assert_same_batches(found, in_windows(plain, size))


def test_an_error_names_the_batch_by_its_number(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that comes third is another one than number 2."""
    loader = reordered(path, num_threads=2)
    numbers = [int(batch.input_id[0]) // BATCH_SIZE for batch in loader]
    assert sorted(numbers) == [*range(NUM_BATCHES)]
    third = numbers[2]
    assert third != 2
    loader.set_epoch(0)
    assemble = loader._assembler.assemble

    def fail(batch: Any, *rest: Any) -> None:
        if batch.key.batch == third:
            raise ValueError("this one")
        assemble(batch, *rest)

    monkeypatch.setattr(loader._assembler, "assemble", fail)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    with pytest.raises(ValueError, match="this one") as failure:
        next(batches)
    assert failure.value.__notes__ == [f"while preparing batch {third} of epoch 0"]
    assert loader.state_dict()["batches"] == 2


def test_windows_before_one_that_cannot_be_sampled_come(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = reordered(path, 4, superbatch=16)
    draw = loader._source.sampler.draw

    def fail(request: Any) -> Any:
        if request.batch == 9:
            raise ValueError("this one")
        return draw(request)

    monkeypatch.setattr(loader._source.sampler, "draw", fail)
    batches = iter(loader)
    for _ in range(8):
        next(batches)
    with pytest.raises(ValueError, match="this one") as failure:
        next(batches)
    assert "batch 9 of epoch 0" in failure.value.__notes__[0]
    assert loader.state_dict()["batches"] == 8


def test_closing_does_not_wait_until_batches_are_compared(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, windows = Event(), count()

    def compare_slowly(rows: Any, num_rows: int, check: Callable[[], None]) -> Any:
        if next(windows) != 1:
            return overlaps(rows, num_rows, check)
        began.set()
        for _ in range(3000):
            check()
            time.sleep(0.01)
        raise AssertionError("nobody has ended it")

    monkeypatch.setattr(ordering, "overlaps", compare_slowly)
    batches = iter(reordered(path, 4, superbatch=4, num_threads=2))
    next(batches)
    assert began.wait(20)
    batches.close()


REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({"reorder": bad}, "from 1 to 1024") for bad in (0, -1, True, 1.5, "2", 1025)),
    ({"reorder": 2, "device": None}, 'there is no device=; give it, such as device="cuda"'),
    ({"reorder": 1, "transform_sampler_output": lambda output: output}, "leave one of them out"),
    ({"reorder": 2, "strategy": "auto"}, "strategy='auto'; choose strategy=\"packed\""),
    ({"reorder": 2, "strategy": "static"}, "strategy='static'; choose strategy=\"packed\""),
    ({"reorder": 1, "packed": "base", "strategy": "auto"}, "no use for reorder=1"),
    ({"reorder": 2, "sampler": SEEDS[::-1]}, "another order than .* gives; leave out sampler="),
    ({"reorder": 3, "superbatch": 5}, "give superbatch=3 or 6"),
    ({"reorder": 3, "superbatch": 2}, "give superbatch=3, or leave it out"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_does_not_work_is_refused(path: Path, options: dict[str, Any], message: str) -> None:
    given = {"strategy": "belady", "device": "cpu", **options}
    makers: list[Callable[..., Any]] = [lambda **more: loader_of(path, **more)]
    if "sampler" not in options:
        makers.append(lambda **more: LinkNeighborLoader(path, [2], **more))
    for maker in makers:
        with pytest.raises(UsageError, match=message):
            maker(**given)


def test_memory_for_fewer_batches_than_a_window_is_refused(path: Path) -> None:
    """By a sum of what needs how much; smaller windows fit."""
    options: dict[str, Any] = {"input_nodes": SEEDS * 60, "num_threads": 1, "io_engine": "pread"}
    assert reordered(path, 2, memory="12MB", **options).stats().superbatch % 2 == 0
    with pytest.raises(BudgetError, match=r"to do: raise memory= by .*, or lower reorder=$"):
        reordered(path, 1000, memory="12MB", **options)
    with pytest.raises(BudgetError, match=r"to do: raise memory= by [^,]* MB$"):
        reordered(path, 2, memory="2MB", **options)
    assert reordered(path, 1000, memory="14MB", **options).stats().superbatch == 1000
