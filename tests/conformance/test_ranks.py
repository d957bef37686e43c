"""Several processes deal out the batches of one: none is lost, changed, or waited for in vain."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import islice, zip_longest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.distributed import DistributedSampler

import gnnstore
from gnnstore import GraphStore, NeighborLoader, UsageError
from gnnstore.converters import from_rmat
from gnnstore.pipeline.ranks import ALONE, RankSampler, RankShard
from tests.support.effort import choose

NUM_SEEDS = 150
BATCH_SIZE = 32
NUM_BATCHES = 5  # the last has 22 seeds
SEEDS = list(range(0, 3 * NUM_SEEDS, 3))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    directory = tmp_path_factory.mktemp("ranks")
    return gnnstore.open(from_rmat(directory / "s.gnn", scale=9, feature_dim=20, seed=3))


def make(store: GraphStore, **options: Any) -> NeighborLoader:
    defaults: dict[str, Any] = {
        "input_nodes": SEEDS,
        "batch_size": BATCH_SIZE,
        "num_threads": 0,
        "seed": 17,
        "strategy": "memory",
        "shuffle": True,
    }
    return NeighborLoader(store, [4, 4], **defaults | options)


def ranks(store: GraphStore, world_size: int, **options: Any) -> list[NeighborLoader]:
    return [make(store, rank=r, world_size=world_size, **options) for r in range(world_size)]


Shown = tuple[list[int], list[int], list[list[int]], float]


def shown(batch: Any) -> Shown:
    x = float(batch.x.double().sum())
    return (batch.input_id.tolist(), batch.n_id.tolist(), batch.edge_index.tolist(), x)


def epoch_of(loader: NeighborLoader) -> list[Shown]:
    return [shown(batch) for batch in loader]


def dealt(whole: Sequence[Shown], world_size: int, *, drop_last: bool = False) -> list[list[Shown]]:
    """Return what each rank is to get of the batches of a single process."""
    num_batches = len(whole)
    rounds = num_batches // world_size if drop_last else -(-num_batches // world_size)
    return [
        [whole[(r + k * world_size) % num_batches] for k in range(rounds)]
        for r in range(world_size)
    ]


@pytest.mark.parametrize(
    "options", [{}, {"strategy": "belady", "cache_bytes": "9kB", "superbatch": 2}]
)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", choose([3], [1, 2, 3, 7]))
@pytest.mark.filterwarnings("ignore:drop_last=True of NeighborLoader leaves no batch")  # 7 ranks
def test_batches_are_those_of_one_process(
    store: GraphStore, world_size: int, drop_last: bool, options: dict[str, Any]
) -> None:
    single = make(store, drop_last=drop_last)
    loaders = ranks(store, world_size, drop_last=drop_last, num_threads=2, **options)
    for _ in range(2):
        whole = epoch_of(single)
        expected = dealt(whole, world_size, drop_last=drop_last)
        assert [len(loader) for loader in loaders] == [len(part) for part in expected]
        assert [epoch_of(loader) for loader in loaders] == expected
    if not drop_last:
        found = {seed for part in expected for batch in part for seed in batch[0]}
        assert found == set(range(NUM_SEEDS))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_state_is_that_of_every_rank(store: GraphStore, shuffle: bool) -> None:
    """Whoever saved it, and however many go on: here 2 ranks, then 3, then one."""
    whole = epoch_of(make(store, shuffle=shuffle))
    first = ranks(store, 2, shuffle=shuffle)
    assert [shown(next(iter(loader))) for loader in first] == whole[:2]
    states = [loader.state_dict() for loader in first]
    assert states[0] == states[1]
    assert states[0]["batches"] == 2
    assert [loader.batches_left for loader in first] == [2, 2]

    second = ranks(store, 3, shuffle=shuffle)
    for loader in second:
        loader.load_state_dict(states[1])
    assert [loader.batches_left for loader in second] == [1, 1, 1]
    assert [shown(next(iter(loader))) for loader in second] == whole[2:5]
    alone = make(store, shuffle=shuffle)
    alone.load_state_dict(states[0])
    assert epoch_of(alone) == whole[2:]
    alone.load_state_dict(second[0].state_dict())
    assert (alone.batches_left, epoch_of(alone)) == (0, [])
    # What is left over for some ranks only is taken from the beginning, as at the end of any epoch.
    for loader in first:
        loader.load_state_dict(states[0])
    assert [epoch_of(loader) for loader in first] == [[whole[2], whole[4]], [whole[3], whole[0]]]


def test_every_position_of_every_rank(store: GraphStore) -> None:
    for loader, again in zip(ranks(store, 2), ranks(store, 2, num_threads=2), strict=True):
        whole, following = epoch_of(loader), epoch_of(loader)
        for num_batches in range(4):
            before = make(store, rank=loader.rank, world_size=2)
            list(islice(before, num_batches))
            again.load_state_dict(before.state_dict())
            assert again.batches_left == 3 - num_batches
            assert epoch_of(again) == whole[num_batches:]
            assert again.batches_left == 3
            assert epoch_of(again) == following


@given(
    num_batches=st.integers(0, 40),
    world_size=st.integers(1, 9),
    first=st.integers(0, 40),
    drop_last=st.booleans(),
)
def test_dealing(num_batches: int, world_size: int, first: int, drop_last: bool) -> None:
    first = min(first, num_batches)
    hands = [
        list(RankShard(rank, world_size).batches(first, num_batches, drop_last=drop_last))
        for rank in range(world_size)
    ]
    assert len({len(hand) for hand in hands}) == 1
    taken = [number for turn in zip_longest(*hands) for number, _ in turn]
    left = list(range(first, num_batches))
    if drop_last:
        assert taken == left[: len(left) - len(left) % world_size]
    else:
        repeated = taken[len(left) :]
        assert taken[: len(left)] == left
        assert len(repeated) < world_size
        assert repeated == [k % max(1, num_batches) for k in range(len(repeated))]
    for turn in zip_longest(*hands):
        assert len({done for _, done in turn}) == 1
    if hands[0]:
        done = hands[0][-1][1]
        assert done == (first + len(taken) if drop_last else num_batches)


def test_no_seeds_and_fewer_batches_than_ranks(store: GraphStore) -> None:
    assert [epoch_of(loader) for loader in ranks(store, 2, input_nodes=[])] == [[], []]
    few = ranks(store, 4, input_nodes=[5, 6], batch_size=1)
    whole = epoch_of(make(store, input_nodes=[5, 6], batch_size=1))
    assert [epoch_of(loader) for loader in few] == [[whole[k % 2]] for k in range(4)]
    with pytest.warns(UserWarning, match="leaves no batch of 2 seeds: .* each of 4 ranks"):
        dropped = ranks(store, 4, input_nodes=[5, 6], batch_size=1, drop_last=True)
    assert [(len(loader), epoch_of(loader)) for loader in dropped] == [(0, [])] * 4


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_sampler_tells_who_asks(store: GraphStore, shuffle: bool, drop_last: bool) -> None:
    """Frameworks look for a `DistributedSampler`, and build a loader anew from what it has."""
    for loader in ranks(store, 2, shuffle=shuffle, drop_last=drop_last):
        sampler = loader.sampler
        assert isinstance(sampler, DistributedSampler)
        positions = [seed for batch in epoch_of(loader) for seed in batch[0]]
        assert list(sampler) == positions
        assert len(sampler) == len(positions)
        options = {"rank": loader.rank, "world_size": 2, "drop_last": drop_last}
        anew = make(store, shuffle=False, sampler=sampler, **options)
        assert [seed for batch in epoch_of(anew) for seed in batch[0]] == positions
        copied = pickle.loads(pickle.dumps(make(store, shuffle=shuffle, **options)))  # noqa: S301
        assert [seed for batch in epoch_of(copied) for seed in batch[0]] == positions


def test_errors_name_the_batch_by_its_number_in_the_epoch(
    store: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = ranks(store, 2)[1]
    batches = iter(loader)
    next(batches)

    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("sample")

    monkeypatch.setattr(loader._source.sampler, "draw", fail)
    with pytest.raises(KeyError) as caught:
        next(batches)
    assert caught.value.__notes__ == ["while preparing batch 3 of epoch 0"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rank": 0}, "rank=0 and world_size=None: give both"),
        ({"world_size": 2}, "rank=None and world_size=2: give both"),
        (
            {"rank": 2, "world_size": 2},
            "rank=2 is none of the ranks of world_size=2; expected 0 to 1",
        ),
        ({"rank": -1, "world_size": 2}, "rank=-1 is none"),
        ({"rank": 0, "world_size": 2, "seed": None}, "rank= needs seed=, the same on every rank"),
        (
            {"rank": 0, "world_size": 2, "shuffle": False, "sampler": range(3)},
            "rank= deals out the batches of the loader's own order, and sampler= has another",
        ),
        ({"rank": 0, "world_size": 2, "batch_size": None, "shuffle": False}, "batch_size=None"),
    ],
)
def test_refused(store: GraphStore, options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        make(store, **options)


def test_alone() -> None:
    assert RankShard.from_options(None, None, None, {"sampler": range(3)}) == ALONE
    assert list(ALONE.batches(2, 5, drop_last=False)) == [(2, 3), (3, 4), (4, 5)]
    sampler = RankSampler(7, RankShard(1, 2), batch_size=2, shuffle=False, seed=0, drop_last=False)
    assert list(sampler) == [2, 3, 6]
    shuffled = RankSampler(7, RankShard(0, 2), batch_size=2, shuffle=True, seed=0, drop_last=False)
    epochs = [list(shuffled) for _ in range(2)]
    assert epochs[0] != epochs[1]
    shuffled.set_epoch(0)
    assert list(shuffled) == epochs[0]
