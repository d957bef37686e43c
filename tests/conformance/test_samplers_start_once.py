"""A user's sampler is started once an epoch and driven by `next`, as torch's `DataLoader` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import gnnstore
from gnnstore import GraphStore, NeighborLoader
from gnnstore.converters import from_rmat
from gnnstore.strategies.registry import STRATEGIES
from tests.support.effort import choose

SEEDS = list(range(0, 120, 3))
BATCHES = [[0, 1], [2, 3], [4], [7, 5, 6], [39]]
EPOCHS = 3


class Counting:
    """Counts how often it is started; yields from a generator of its own."""

    starts = 0

    def __iter__(self) -> Any:
        self.starts += 1
        return iter(BATCHES)

    def __len__(self) -> int:
        return len(BATCHES)


class Generated(Counting):
    """Is a generator function, in another order each time."""

    def __iter__(self) -> Iterator[list[int]]:
        self.starts += 1
        first = self.starts % len(BATCHES)
        yield from BATCHES[first:] + BATCHES[:first]


class OwnIterator(Counting):
    """Goes back to its start when it is started."""

    place = 0

    def __iter__(self) -> Any:
        self.starts += 1
        self.place = 0
        return self

    def __next__(self) -> list[int]:
        if self.place == len(BATCHES):
            raise StopIteration
        self.place += 1
        return BATCHES[self.place - 1]


class GoesOn(OwnIterator):
    """Is at its start when it ends, and there only."""

    def __iter__(self) -> Any:
        self.starts += 1
        return self

    def __next__(self) -> list[int]:
        try:
            return super().__next__()
        except StopIteration:
            self.place = 0
            raise


class Watched(Counting):
    """Keeps what it gave, as Lightning's does: its own iterator around another sampler's."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.within = BatchSampler(RandomSampler(SEEDS, generator=generator), 11, False)
        self.generator = generator
        self.given: list[list[int]] = []

    def __iter__(self) -> Any:
        self.starts += 1
        self.given = []
        self.iterator = iter(self.within)
        return self

    def __next__(self) -> list[int]:
        self.given.append(next(self.iterator))
        return self.given[-1]


class OnlyNext(Counting):
    """Gives an iterator that cannot be started itself."""

    class Iterator:
        def __init__(self) -> None:
            self.batches = iter(BATCHES)

        def __next__(self) -> list[int]:
            return next(self.batches)

    def __iter__(self) -> Any:
        self.starts += 1
        return self.Iterator()


class Stateful(OwnIterator):
    """Goes back to its start, and to where its state was."""

    def state_dict(self) -> dict[str, Any]:
        return {"place": torch.tensor([self.place]), "of": [len(BATCHES)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = int(state["place"])


class StatefulGoesOn(GoesOn, Stateful):
    """Goes on, after a new start as well."""


class TakesPlaceWhenStarted(Stateful):
    """Goes where its state was when it is started, once."""

    wanted = 0

    def __iter__(self) -> Any:
        self.starts += 1
        self.place, self.wanted = self.wanted, 0
        return self

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.wanted = int(state["place"])


KINDS: list[Callable[[], Any]] = [
    Counting,
    Generated,
    OwnIterator,
    GoesOn,
    Watched,
    OnlyNext,
    Stateful,
    StatefulGoesOn,
    TakesPlaceWhenStarted,
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    path = tmp_path_factory.mktemp("samplers") / "s.gnn"
    return gnnstore.open(from_rmat(path, scale=8, feature_dim=8, seed=3))


def make(store: GraphStore, **options: Any) -> NeighborLoader:
    options = {"strategy": "memory", "num_threads": 0, **options}
    return NeighborLoader(store, [2, 2], SEEDS, seed=1, **options)


def positions(batches: Any) -> list[list[int]]:
    return [batch.input_id.tolist() for batch in batches]


class Positions:
    """A data set whose samples are what they are asked for by."""

    def __getitem__(self, index: Any) -> Any:
        return index


def options_of(sampler: Any, keyword: str = "batch_sampler") -> dict[str, Any]:
    return {keyword: sampler, **({"batch_size": None} if keyword == "sampler" else {})}


def of_torch(
    kind: Callable[[], Any], keyword: str = "batch_sampler"
) -> tuple[list[list[list[int]]], int]:
    """Return the positions of each epoch, and how often the sampler was started."""
    sampler = kind()
    loader: Any = DataLoader(Positions(), collate_fn=list, **options_of(sampler, keyword))  # type: ignore[arg-type]
    return [list(loader) for _ in range(EPOCHS)], sampler.starts


@pytest.mark.parametrize("strategy", {type(each): each.name for each in STRATEGIES}.values())
@pytest.mark.parametrize("keyword", ["batch_sampler", "sampler"])
@pytest.mark.parametrize("kind", KINDS)
def test_as_torch(store: GraphStore, kind: Callable[[], Any], keyword: str, strategy: str) -> None:
    expected, starts = of_torch(kind, keyword)
    for num_threads in choose((2,), (0, 2)):
        sampler = kind()
        options = {"strategy": strategy, "num_threads": num_threads}
        loader = make(store, **options, **options_of(sampler, keyword))
        assert [positions(loader) for _ in range(EPOCHS)] == expected
        assert sampler.starts == starts == EPOCHS


def test_an_iterator_gives_one_epoch(store: GraphStore) -> None:
    loader = make(store, batch_sampler=iter(BATCHES))
    assert [positions(loader) for _ in range(2)] == [BATCHES, []]


@pytest.mark.parametrize("strategy", ["memory", "belady"])
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in (Generated, Stateful)][:: choose(2, 1)]
)
def test_going_on_after_any_batch(
    store: GraphStore, kind: Callable[[], Any], strategy: str
) -> None:
    """And once more through the next epoch, with one start for each and one for the end of one."""
    epochs, _ = of_torch(kind)
    whole = list(chain(*epochs))
    is_stateful = hasattr(kind, "state_dict")
    for stop in range(1, len(epochs[0]) + 2, choose(2, 1)):
        first = make(store, strategy=strategy, batch_sampler=kind())
        batches = chain.from_iterable(iter(lambda: first, None))  # noqa: B023 - used here
        assert positions(next(batches) for _ in range(stop)) == whole[:stop]
        sampler = kind()
        second = make(store, strategy=strategy, batch_sampler=sampler, num_threads=1)
        second.load_state_dict(first.state_dict())
        num_epochs = 2 if stop <= len(epochs[0]) else 1
        found = [batch for _ in range(num_epochs) for batch in positions(second)]
        assert found == whole[stop : 2 * len(epochs[0])], stop
        assert sampler.starts <= num_epochs, stop

    ended = make(store, strategy=strategy, batch_sampler=kind())
    assert positions(ended) == epochs[0]
    sampler = kind()
    third = make(store, strategy=strategy, batch_sampler=sampler)
    third.load_state_dict(ended.state_dict())
    assert positions(third) == epochs[1]
    assert sampler.starts <= 1 + is_stateful
