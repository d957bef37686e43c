"""A loader that is resumed gives the batches that the interrupted one would have given."""

from __future__ import annotations

import copy
import io
import json
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import gnnstore
from gnnstore import GraphStore, NeighborLoader, UsageError
from gnnstore.converters import from_rmat
from tests.support.batches import digest_of, digests
from tests.support.effort import choose, is_long

NUM_SEEDS = 150
BATCH_SIZE = 32
NUM_BATCHES = 5  # the last has 22 seeds
SEEDS = list(range(0, 3 * NUM_SEEDS, 3))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("resume")
    return from_rmat(directory / "s.gnn", scale=9, feature_dim=20, seed=3)


@pytest.fixture(scope="module")
def store(path: Path) -> GraphStore:
    return gnnstore.open(path)


def make(store: Any, num_neighbors: Any = (4, 4), **options: Any) -> NeighborLoader:
    defaults = {
        "input_nodes": SEEDS,
        "batch_size": BATCH_SIZE,
        "num_threads": 0,
        "seed": 17,
        "strategy": "memory",
    }
    if "batch_sampler" in options:
        del defaults["batch_size"]
    return NeighborLoader(store, list(num_neighbors), **{**defaults, **options})


def as_stored(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(state))
    assert found == state
    return found


def run_and_stop_everywhere(
    loader: NeighborLoader, num_epochs: int = 2, before_epoch: Callable[[int], Any] | None = None
) -> tuple[list[list[str]], list[tuple[int, int, dict[str, Any]]]]:
    """Return the batches of each epoch, and (epoch, batches handed out, state) everywhere.

    States at the end of an epoch, when the iterator has not said so yet, count as of the
    epoch; after that, as of the start of the next.
    """
    epochs: list[list[str]] = []
    states = []
    for epoch in range(num_epochs):
        if before_epoch is not None:
            before_epoch(epoch)
        states.append((epoch, 0, as_stored(loader.state_dict())))
        batches = iter(loader)
        states.append((epoch, 0, as_stored(loader.state_dict())))
        epochs.append([])
        for batch in batches:
            epochs[-1].append(digest_of(batch))
            states.append((epoch, len(epochs[-1]), as_stored(loader.state_dict())))
    states.append((num_epochs, 0, as_stored(loader.state_dict())))
    return epochs, states


# --- positions -----------------------------------------------------------------------------


@pytest.mark.parametrize("num_threads", choose([2], [0, 1, 2]))
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_position(
    store: GraphStore, shuffle: bool, drop_last: bool, num_threads: int
) -> None:
    options = {"shuffle": shuffle, "drop_last": drop_last}
    epochs, states = run_and_stop_everywhere(make(store, num_threads=num_threads, **options))
    assert [len(epoch) for epoch in epochs] == [NUM_BATCHES - drop_last] * 2
    assert len({*epochs[0], *epochs[1]}) == 2 * len(epochs[0])
    epochs += [digests(resumed(make(store, **options), states[-1][2]))]
    for epoch, batches, state in states:
        assert (state["epoch"], state["batches"]) == (epoch, batches)
        other = resumed(make(store, num_threads=2 - num_threads, **options), state)
        assert digests(other) == epochs[epoch][batches:]
        if epoch < 2:
            assert digests(other) == epochs[epoch + 1]


def resumed(loader: NeighborLoader, state: dict[str, Any]) -> NeighborLoader:
    loader.load_state_dict(state)
    return loader


WAYS: list[dict[str, Any]] = [
    {"strategy": "memory"},
    {"strategy": "mmap", "num_threads": 1},
    {"strategy": "direct", "num_threads": 2, "prefetch_batches": 7},
    {"strategy": "direct", "io_engine": "pread", "num_threads": 4},
    {"strategy": "static", "cache": "degree", "cache_bytes": 9_000},
    {"strategy": "static", "cache": "frequency", "cache_bytes": "1MB", "num_threads": 2},
    {"strategy": "belady", "cache_bytes": "9kB", "superbatch": 3},
    {"strategy": "packed", "cache_bytes": "9kB", "superbatch": 2, "num_threads": 2},
    {"strategy": "mmap", "topology": "mmap", "memory": "2MB"},
]


@pytest.mark.parametrize(
    "way",
    choose([*WAYS[:3], *WAYS[5:8]], WAYS),
    ids=lambda way: "-".join(map(str, way.values())),
)
def test_in_another_way(path: Path, way: dict[str, Any]) -> None:
    """Each takes the state of the one before it, and the first that of the last."""
    whole = digests(make(path, shuffle=True), 2)
    before = make(path, shuffle=True, **WAYS[WAYS.index(way) - 1])
    for batches in (2, *choose((), (0, NUM_BATCHES))):
        before.set_epoch(0)
        iterator = iter(before)
        assert [digest_of(batch) for batch in islice(iterator, batches)] == whole[:batches]
        state = as_stored(before.state_dict())
        iterator.close()  # type: ignore[attr-defined]
        after = resumed(make(path, shuffle=True, **way), state)
        assert digests(after, 2) == whole[batches:]


def test_of_a_copy_of_the_store(path: Path, store: GraphStore, tmp_path: Path) -> None:
    whole = digests(make(store))
    loader = make(store)
    next(iter(loader))
    copied = Path(shutil.copytree(path, tmp_path / "elsewhere.gnn"))
    assert digests(resumed(make(copied), loader.state_dict())) == whole[1:]


# --- what a state is -----------------------------------------------------------------------


def test_a_state_is_small_and_plain(store: GraphStore) -> None:
    loader = make(store, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    assert len(json.dumps(state)) < 1000
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state
    assert state["version"] == 1
    assert state["seed"] == 17
    assert state["fingerprint"]["store"] == store.reader.uuid


def test_a_state_belongs_to_the_user(store: GraphStore) -> None:
    loader = make(store)
    next(iter(loader))
    state = loader.state_dict()
    expected = as_stored(state)
    state["fingerprint"].clear()
    assert loader.state_dict() == expected
    other = resumed(make(store), given := as_stored(expected))
    given["batches"] = 4
    assert other.state_dict() == expected, "what was loaded is what is said"
    assert len(list(other)) == NUM_BATCHES - 1


def test_the_order_of_all_nodes_may_be_spelled_out(store: GraphStore) -> None:
    loader = make(store, input_nodes=None)
    next(iter(loader))
    spelled = make(store, input_nodes=torch.arange(store.num_nodes))
    assert (
        digests(resumed(spelled, loader.state_dict())) == digests(make(store, input_nodes=None))[1:]
    )


def test_what_is_prepared_ahead_does_not_count(store: GraphStore) -> None:
    loader = make(store, num_threads=2, prefetch_batches=4)
    prepared: list[int] = []
    draw: Any = loader._source.sampler.draw

    def note(request: Any) -> Any:
        prepared.append(request.batch)
        return draw(request)

    loader._source.sampler.draw = note  # type: ignore[method-assign]
    batches = iter(loader)
    next(batches)
    deadline = time.monotonic() + 20
    while len(prepared) < 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(prepared) >= 4
    assert loader.state_dict()["batches"] == 1
    batches.close()  # type: ignore[attr-defined]


def test_batches_that_were_handed_out_are_not_sampled_again(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {**make(store).state_dict(), "batches": 3}
    loader = resumed(make(store, num_threads=2), state)
    draw, sampled = loader._source.sampler.draw, []

    def note(request: Any) -> Any:
        sampled.append((request.epoch, request.batch))
        return draw(request)

    monkeypatch.setattr(loader._source.sampler, "draw", note)
    assert len(list(loader)) == 2
    assert sorted(sampled) == [(0, 3), (0, 4)]


def test_an_error_in_a_batch_leaves_it_to_be_done(store: GraphStore) -> None:
    whole = digests(make(store))
    calls = iter([False, False, True])

    def fail_at_2(batch: Any) -> Any:
        if next(calls):
            raise KeyError("transform")
        return batch

    loader = make(store, transform=fail_at_2)
    with pytest.raises(KeyError):
        list(loader)
    assert loader.state_dict()["batches"] == 2
    assert digests(resumed(make(store), loader.state_dict())) == whole[2:]


@pytest.mark.parametrize("num_threads", [0, 2])
def test_no_input_nodes(store: GraphStore, num_threads: int) -> None:
    loader = make(store, input_nodes=[], num_threads=num_threads)
    assert list(loader) == []
    other = resumed(make(store, input_nodes=[], shuffle=False), loader.state_dict())
    assert other.epoch == 1
    assert list(other) == []


# --- epochs, statistics, iterators ---------------------------------------------------------


def test_epochs_and_statistics_after_resuming(store: GraphStore) -> None:
    before = make(store, shuffle=True)
    before.set_epoch(6)
    list(islice(before, 3))
    loader = resumed(make(store, shuffle=True), before.state_dict())
    assert loader.epoch == 6
    assert len(loader) == NUM_BATCHES
    assert len(list(loader)) == 2
    assert loader.stats().batches == 2
    assert loader.epoch == 7
    assert len(list(loader)) == NUM_BATCHES
    assert loader.stats().batches == 7


def test_set_epoch_after_loading(store: GraphStore) -> None:
    whole = digests(make(store, shuffle=True), 3)
    before = make(store, shuffle=True)
    list(islice(before, 3))
    state = before.state_dict()
    loader = resumed(make(store, shuffle=True), state)
    loader.set_epoch(0)  # as a loop over epochs does that begins with the state's
    assert loader.state_dict() == state
    assert digests(loader) == whole[3:5]
    loader.load_state_dict(state)
    loader.set_epoch(5)
    assert [loader.state_dict()[key] for key in ("epoch", "batches")] == [5, 0]
    loader.set_epoch(0)  # back again, and nothing happened
    assert loader.state_dict() == state
    loader.load_state_dict(state)
    loader.set_epoch(2)
    assert loader.state_dict()["batches"] == 0
    assert digests(loader) == whole[10:]
    loader.set_epoch(0)
    assert digests(loader) == whole[:5], "a state is for one iteration"


def test_leaving_a_loop(store: GraphStore) -> None:
    whole = digests(make(store, shuffle=True), 2)
    loader = make(store, shuffle=True, num_threads=2)
    for _ in loader:
        break
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (0, 1)
    loader.set_epoch(1)
    assert [loader.state_dict()[key] for key in ("epoch", "batches")] == [1, 0]
    assert digests(resumed(make(store, shuffle=True), state), 2) == whole[1:]
    assert digests(loader) == whole[5:]


def test_set_epoch_in_the_loop(store: GraphStore) -> None:
    loader = make(store)
    batches = iter(loader)
    loader.set_epoch(4)
    next(batches)
    assert [loader.state_dict()[key] for key in ("epoch", "batches")] == [0, 1]
    list(batches)
    assert [loader.state_dict()[key] for key in ("epoch", "batches")] == [4, 0]


def test_the_newest_iterator_counts(store: GraphStore) -> None:
    loader = make(store, num_threads=1)
    first, second = iter(loader), iter(loader)
    assert loader.state_dict()["epoch"] == 1
    next(second)
    loader.set_epoch(7)
    list(first)
    assert [loader.state_dict()[key] for key in ("epoch", "batches")] == [7, 0]
    loader.set_epoch(2)
    next(second)
    assert [loader.state_dict()[key] for key in ("epoch", "batches")] == [1, 2]
    list(second)
    assert [loader.state_dict()[key] for key in ("epoch", "batches")] == [2, 0]


@pytest.mark.parametrize("made_by", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize(
    "strategy", choose(["static", "packed"], ["memory", "static", "belady", "packed"])
)
def test_a_copy_has_a_position_of_its_own(
    path: Path, strategy: str, made_by: Callable[[NeighborLoader], NeighborLoader]
) -> None:
    whole = digests(make(path, shuffle=True), 2)
    loader = make(path, shuffle=True, strategy=strategy, num_threads=1)
    batches = iter(loader)
    found = [digest_of(next(batches)) for _ in range(2)]
    copied = made_by(loader)
    state = loader.state_dict()
    assert copied.state_dict() == state
    found.append(digest_of(next(batches)))
    assert copied.state_dict() == state
    copied.load_state_dict(state)
    in_turn = iter(copied)
    assert digest_of(next(in_turn)) == whole[2]
    found.append(digest_of(next(batches)))
    assert [digest_of(batch) for batch in in_turn] == whole[3:NUM_BATCHES]
    copied.set_epoch(7)
    assert (copied.state_dict()["epoch"], loader.state_dict()["batches"]) == (7, 4)
    found += [digest_of(batch) for batch in batches]
    assert found + digests(loader) == whole
    assert (loader.stats().batches, copied.stats().batches) == (2 * NUM_BATCHES, NUM_BATCHES)


def test_a_copy_is_traced_by_itself(store: GraphStore, tmp_path: Path) -> None:
    loader = make(store)
    copied = copy.copy(loader)
    with loader.trace(tmp_path / "trace.json"):
        list(copied)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M"}, "names alone, and no stages"


def test_a_copy_shares_the_sampler(store: GraphStore) -> None:
    loader = make(store, sampler=InTurn())
    next(iter(loader))
    copied = copy.copy(loader)
    assert copied.sampler is loader.sampler
    assert copied.state_dict() == loader.state_dict()


def test_a_drawn_seed(store: GraphStore) -> None:
    torch.manual_seed(5)
    loader = make(store, seed=None, shuffle=True)
    early = loader.state_dict()
    whole = digests(loader, 2)
    late = loader.state_dict()
    assert early["seed"] == late["seed"]
    assert digests(resumed(make(store, seed=None, shuffle=True), early), 2) == whole
    used = make(store, seed=None, shuffle=True)
    assert digests(used) != whole[:5]
    used.load_state_dict(early)
    assert digests(used, 2) == whole
    assert used.state_dict() == late
    explicit = make(store, seed=early["seed"], shuffle=True)
    assert digests(resumed(explicit, early), 2) == whole


# --- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seed": 18}, ["seed: expected 18, found 17"]),
        ({"num_neighbors": [4, 5]}, ["num_neighbors: expected [4, 5], found [4, 4]"]),
        ({"num_neighbors": [4]}, ["num_neighbors: expected [4], found [4, 4]"]),
        ({"replace": True}, ["replace: expected True, found False"]),
        ({"subgraph_type": "induced"}, ["subgraph_type: expected 'induced', found 'directional'"]),
        ({"disjoint": True}, ["disjoint: expected True, found False"]),
        ({"batch_size": 31}, ["batch_size: expected 31, found 32"]),
        ({"drop_last": True}, ["drop_last: expected True, found False"]),
        ({"shuffle": True}, ["shuffle: expected True, found False"]),
        ({"sampler": RandomSampler(SEEDS)}, ["sampler: expected 'BatchSampler(RandomSampler)'"]),
        ({"input_nodes": SEEDS[:-1]}, ["number of input_nodes: expected 149, found 150"]),
        ({"input_nodes": SEEDS[::-1]}, ["crc32c of input_nodes: expected '"]),
        ({"input_id": SEEDS}, ["crc32c of input_id: expected '"]),
        ({"seed": 18, "batch_size": 31, "replace": True}, ["seed: ", "batch_size: ", "replace: "]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_other_options(store: GraphStore, options: dict[str, Any], named: list[str]) -> None:
    state = make(store).state_dict()
    loader = make(store, **options)
    untouched = loader.state_dict()
    with pytest.raises(UsageError) as caught:
        loader.load_state_dict({**state, "epoch": 3, "batches": 2})
    for text in named:
        assert text in str(caught.value)
    found = str(caught.value).split("other batches: ")[1].split(". Make the loader")[0]
    if not any("input_nodes" in text for text in named):
        assert len(found.split("; ")) == len(named), "and nothing but that"
    assert loader.state_dict() == untouched


def test_another_store(store: GraphStore, tmp_path: Path) -> None:
    other = gnnstore.open(from_rmat(tmp_path / "o.gnn", scale=9, feature_dim=20, seed=4))
    expected = f"store: expected '{other.reader.uuid}', found '{store.reader.uuid}'"
    with pytest.raises(UsageError, match=expected):
        make(other).load_state_dict(make(store).state_dict())


MALFORMED: list[tuple[Any, str]] = [
    ([], "the state is a list; expected the dict that state_dict"),
    ({}, "the state has 'version': nothing; expected int"),
    ({"version": 2}, "version 2, and this gnnstore reads version 1"),
    ({"version": "1"}, "'version': '1'; expected int"),
    ({"epoch": "0"}, "'epoch': '0'; expected int"),
    ({"epoch": -1}, "'epoch': -1; expected int"),
    ({"batches": True}, "'batches': True; expected int"),
    ({"batches": 6}, "'batches' is 6; expected at most 5"),
    ({"seed": None}, "'seed': None"),
    ({"seed": 2**64}, "'seed': 18446744073709551616; expected int"),
    ({"fingerprint": []}, r"'fingerprint': \[\]; expected dict"),
    ({"fingerprint": {}}, "store: expected '.*', found nothing"),
    ({"fingerprint": {"num_neighbors": np.array([3, 2])}}, r"found array\(\[3, 2\]\)"),
    ({"fingerprint": {"num_neighbors": [torch.arange(2)]}}, r"found \[tensor\(\[0, 1\]\)\]"),
    ({"sampler": "x"}, "'sampler': 'x'; expected dict or None"),
]


@pytest.mark.parametrize(("change", "message"), MALFORMED, ids=lambda v: str(v)[:30])
def test_malformed_states(store: GraphStore, change: Any, message: str) -> None:
    loader = make(store)
    state = {**loader.state_dict(), **change} if change else change
    with pytest.raises(UsageError, match=message):
        loader.load_state_dict(state)
    assert len(list(loader)) == NUM_BATCHES


# --- samplers of the user's ----------------------------------------------------------------


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


class InTurn(Sampler[int]):
    """Keeps its place, and the end of an epoch as its place, as torchdata's own sampler does."""

    def __init__(self, num_positions: int = NUM_SEEDS) -> None:
        self.num_positions = num_positions
        self.given = 0
        self.next_given: int | None = None
        self.epochs = 0

    def __iter__(self) -> Iterator[int]:
        self.given, self.next_given = self.next_given or 0, None
        if self.given == 0:
            self.epochs += 1
        while self.given < self.num_positions:
            self.given += 1
            yield (self.given * 7 + self.epochs) % self.num_positions

    def __len__(self) -> int:
        return self.num_positions

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next_given, self.epochs = state["given"], state["epochs"]


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "random": lambda: {"sampler": RandomSampler(SEEDS, generator=seeded())},
    "random with replacement": lambda: {
        "sampler": RandomSampler(SEEDS, replacement=True, num_samples=100, generator=seeded())
    },
    "weighted": lambda: {
        "sampler": WeightedRandomSampler(torch.arange(150.0).tolist(), 140, generator=seeded())
    },
    "random, drop_last": lambda: {
        "sampler": RandomSampler(SEEDS, generator=seeded()),
        "drop_last": True,
    },
    "distributed": lambda: {"sampler": DistributedSampler(SEEDS, 2, 1)},  # type: ignore[arg-type]
    "fewer, in order": lambda: {"sampler": SequentialSampler(range(100))},
    "list": lambda: {"sampler": list(range(149, -1, -2))},
    "batches in a list": lambda: {"batch_sampler": [[5, 3], [9], list(range(50)), [0]]},
    "batch sampler": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(SEEDS, generator=seeded()), 40, False)
    },
    "batches from a sampler": lambda: {
        "sampler": BatchSampler(RandomSampler(SEEDS, generator=seeded()), 40, False),
        "batch_size": None,
    },
    "single positions": lambda: {"sampler": [7, 0, 149], "batch_size": None},
    "our own order, single positions": lambda: {"input_nodes": [7, 0, 9], "batch_size": None},
    "our own shuffle, single positions": lambda: {
        "input_nodes": [7, 0, 9],
        "batch_size": None,
        "shuffle": True,
    },
    "stateful": lambda: {"sampler": InTurn()},
    "stateful, whole batches": lambda: {"sampler": InTurn(4 * BATCH_SIZE)},
    "stateful, drop_last": lambda: {"sampler": InTurn(), "drop_last": True},
    "stateful within batches": lambda: {"batch_sampler": BatchSampler(InTurn(), 40, False)},
}


# In `make test` not those that differ from another in how batches are made of positions.
ALIKE = [
    "random, drop_last",
    "fewer, in order",
    "batches in a list",
    "stateful, whole batches",
    "stateful, drop_last",
]


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("name", [name for name in SAMPLERS if is_long() or name not in ALIKE])
def test_samplers(store: GraphStore, name: str, num_threads: int) -> None:
    def loader(num_threads: int) -> NeighborLoader:
        return make(store, num_threads=num_threads, prefetch_batches=3, **SAMPLERS[name]())

    first = loader(num_threads)
    epochs, states = run_and_stop_everywhere(first)
    epochs.append(digests(first))
    assert all(epochs)
    for epoch, batches, state in states[:: choose(4, 1)]:
        other = resumed(loader(2 - num_threads), state)
        assert other.state_dict() == state
        assert digests(other) == epochs[epoch][batches:], (epoch, batches)
        if epoch < 2:
            assert digests(other) == epochs[epoch + 1], (epoch, batches)


def test_a_distributed_sampler_needs_its_epoch(store: GraphStore) -> None:
    def loader() -> tuple[NeighborLoader, DistributedSampler[Any]]:
        sampler: DistributedSampler[Any] = DistributedSampler(SEEDS, 2, 0)  # type: ignore[arg-type]
        return make(store, sampler=sampler, batch_size=10), sampler

    first, sampler = loader()
    epochs, states = run_and_stop_everywhere(first, before_epoch=sampler.set_epoch)
    second, sampler = loader()
    state = next(state for epoch, batches, state in states if (epoch, batches) == (1, 3))
    second.load_state_dict(state)
    with pytest.raises(UsageError, match=r"gives another order than before.*set_epoch"):
        next(iter(second))
    sampler.set_epoch(1)
    assert digests(resumed(second, state)) == epochs[1][3:]


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_sampler_that_is_not_seeded_is_found_out(store: GraphStore, num_threads: int) -> None:
    options = {"sampler": RandomSampler(SEEDS), "num_threads": num_threads}
    first = make(store, **options)
    list(islice(first, 2))
    second = resumed(make(store, **options), first.state_dict())
    with pytest.raises(UsageError, match=r"gives another order than before.*first 2 batches"):
        next(iter(second))


def test_a_sampler_that_gives_less_than_before_is_found_out(store: GraphStore) -> None:
    first = make(store, batch_sampler=[[1], [2], [3]])
    list(islice(first, 3))
    second = resumed(make(store, batch_sampler=[[1], [2]]), first.state_dict())
    with pytest.raises(UsageError, match=r"first 3 batches had .* now 2 have"):
        next(iter(second))


def test_a_sampler_is_taken_up_without_drawing_the_skipped_batches(store: GraphStore) -> None:
    first = make(store, sampler=InTurn())
    list(islice(first, 3))
    sampler = InTurn()
    second = resumed(make(store, sampler=sampler), first.state_dict())
    next(iter(second))
    assert sampler.epochs == 1
    assert sampler.given == 4 * BATCH_SIZE


class Renamed(InTurn):
    """As `InTurn`, under the name of a sampler without a state."""


Forgetful = type("Renamed", (Sampler,), {"__iter__": lambda _: iter(SEEDS[:50])})


@pytest.mark.parametrize(
    ("before", "after"), [(Renamed, Forgetful), (Forgetful, Renamed)], ids=["lost", "gained"]
)
def test_a_sampler_that_lost_or_gained_a_state(store: GraphStore, before: Any, after: Any) -> None:
    state = make(store, sampler=before()).state_dict()
    with pytest.raises(UsageError, match="resume with the sampler as it was"):
        make(store, sampler=after()).load_state_dict(state)


def test_the_generator_is_as_after_an_epoch_that_was_not_resumed(store: GraphStore) -> None:
    generator, other = seeded(), seeded()
    first = make(store, sampler=RandomSampler(SEEDS, generator=generator))
    state = None
    for _ in first:
        state = state or first.state_dict()
    other.manual_seed(99)
    second = make(store, sampler=RandomSampler(SEEDS, generator=other))
    second.load_state_dict(state or {})
    list(second)
    assert torch.equal(generator.get_state(), other.get_state())
