"""Input nodes of every kind, wrong ones refused by name, and the seeded shuffle."""

from __future__ import annotations

import json
import re
import tracemalloc
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

import gnnstore
from gnnstore.errors import InputError, NotFoundError, UnsupportedVersionError, UsageError
from gnnstore.formats.packed import KIND
from gnnstore.pipeline.order import Position
from gnnstore.pipeline.ranks import KeyedOrder
from gnnstore.pipeline.shown_samplers import SeededShuffle
from gnnstore.pipeline.shuffle import (
    MAX_SORTED,
    KeyedBijection,
    epoch_order,
    order_bytes,
    shuffle_draws,
)
from gnnstore.seeds.labels import LinkLabels, labels_of
from gnnstore.seeds.nodes import NodeLabels, resolve_input_nodes
from tests.support.effort import choose
from tests.support.forks import ForkServer
from tests.support.stores import write_example_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    """100 nodes; split "train" holds the first 50, "valid" the rest."""
    path: Path = tmp_path_factory.mktemp("seeds") / "s.gnn"
    write_example_store(path, num_nodes=100, num_edges=400)
    return gnnstore.open(path)


MASK = np.zeros(100, dtype=bool)
MASK[[3, 7, 99]] = True


@pytest.mark.parametrize(
    ("given", "nodes", "input_id"),
    [
        ("train", range(50), range(50)),
        ("valid", range(50, 100), range(50)),
        ("val", range(50, 100), range(50)),
        (MASK, [3, 7, 99], [3, 7, 99]),
        (torch.from_numpy(MASK), [3, 7, 99], [3, 7, 99]),
        (MASK.tolist(), [3, 7, 99], [3, 7, 99]),
        (torch.tensor([5, 5, 99, 0]), [5, 5, 99, 0], range(4)),
        (torch.tensor([5, 9], dtype=torch.int32), [5, 9], range(2)),
        (np.array([5, 9], dtype=np.uint8), [5, 9], range(2)),
        ([9, 5], [9, 5], range(2)),
        ((9, 5), [9, 5], range(2)),
        (range(10, 40, 10), [10, 20, 30], range(3)),
        (None, range(100), range(100)),
        ([], [], []),
        (torch.tensor([], dtype=torch.int64), [], []),
        (np.zeros(100, dtype=bool), [], []),
        (("node", [4, 2]), [4, 2], range(2)),
        (("node", None), range(100), range(100)),
        (("node", "train"), range(50), range(50)),
    ],
)
def test_whatever_names_nodes(
    store: gnnstore.GraphStore, given: Any, nodes: Any, input_id: Any
) -> None:
    resolved = resolve_input_nodes(store, given)
    assert len(resolved) == len(nodes)
    by_type, labels, excluded, *_ = resolved.select(range(len(resolved)))
    seeds = by_type["node"]
    assert excluded is None
    (ids,) = labels.arrays()
    assert seeds.dtype == ids.dtype == np.int64
    assert seeds.tolist() == list(nodes)
    assert ids.tolist() == list(input_id)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            [0, 100],
            "node id 100 at position 1 of 2 is outside the graph, which has 100 nodes (0 to 99)",
        ),
        (torch.tensor([5, 3, -1, -2]), "node id -1 at position 2 of 4 is outside the graph"),
        (np.array([2**64 - 1], dtype=np.uint64), "node id 18446744073709551615 at position 0"),
        (MASK[:99], "the mask in input_nodes has 99 entries for 100 nodes"),
        (
            [0.5, 1.0],
            "input_nodes has the element type float64; give node ids (integers) or a mask",
        ),
        ([[1, 2]], "input_nodes has shape [1, 2]; give node ids or a mask, one-dimensional"),
        (7, "input_nodes has shape []"),
    ],
)
def test_wrong_seeds_are_named(store: gnnstore.GraphStore, given: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_input_nodes(store, given)
    assert message in str(caught.value)


def test_an_unknown_split_names_the_known(store: gnnstore.GraphStore) -> None:
    with pytest.raises(NotFoundError, match=r"no split 'dev'; the store's splits: train, valid"):
        resolve_input_nodes(store, "dev")


def test_an_unknown_node_type_names_the_known(store: gnnstore.GraphStore) -> None:
    with pytest.raises(UsageError, match="no node type 'paper'; there are: 'node'"):
        resolve_input_nodes(store, ("paper", [1]))


def test_input_id_can_be_given(store: gnnstore.GraphStore) -> None:
    resolved = resolve_input_nodes(store, MASK, torch.tensor([30, 70, 990]))
    seeds = resolved.select([2, 0])
    (ids,) = seeds.labels.arrays()
    assert (seeds.nodes["node"].tolist(), ids.tolist()) == ([99, 3], [990, 30])
    with pytest.raises(InputError, match="input_id has 2 entries for 3 input nodes"):
        resolve_input_nodes(store, MASK, [1, 2])


@pytest.mark.parametrize(
    "input_id", [[0.5, 1.7], [float("nan"), 1], np.array([2**64 - 1, 1], np.uint64), ["7", "8"]]
)
def test_an_input_id_that_would_be_altered_is_refused(
    store: gnnstore.GraphStore, input_id: Any
) -> None:
    with pytest.raises(InputError, match=r"input_id has values of .*give whole numbers"):
        gnnstore.NeighborLoader(store, [2], [1, 2], input_id=input_id)


NUMPYS: dict[str, Any] = {
    "seed": np.int64(5),
    "replace": np.bool_(True),
    "disjoint": 1,
    "num_threads": np.int32(1),
    "memory": np.int64(10**8),
    "superbatch": np.int64(2),
    "cache_bytes": np.uint32(10**5),
}


def test_numbers_of_numpy_are_numbers(store: gnnstore.GraphStore) -> None:
    """And what a loader says of itself is plain, for JSON and `torch.load(weights_only=True)`."""

    def loader_of(**options: Any) -> gnnstore.NeighborLoader:
        return gnnstore.NeighborLoader(
            store, [2], "train", batch_size=16, shuffle=True, strategy="belady", **options
        )

    loader, plain = (
        loader_of(**NUMPYS),
        loader_of(**{k: v.item() if hasattr(v, "item") else v for k, v in NUMPYS.items()}),
    )
    for epoch in (np.int64(3), np.uint8(255), torch.tensor(4)):
        loader.set_epoch(epoch)
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
        assert (state["epoch"], state["seed"]) == (int(epoch), 5)
        plain.load_state_dict(state)
        loader.load_state_dict(state)
        assert [b.n_id.tolist() for b in loader] == [b.n_id.tolist() for b in plain]
        assert loader.epoch == int(epoch) + 1


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 1.5},
        {"seed": True},
        {"seed": "1"},
        {"num_threads": 1.5},
        {"replace": "yes"},
        {"disjoint": 2},
        {"replace": np.array([1, 0])},
    ],
)
def test_what_is_no_number_is_named(store: gnnstore.GraphStore, options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(UsageError, match=f"^{name}={re.escape(repr(value))} is "):
        gnnstore.NeighborLoader(store, [2], "train", **options)
    loader = gnnstore.NeighborLoader(store, [2], "train")
    for epoch in (1.0, True, "1"):
        with pytest.raises(UsageError, match=f"^epoch={epoch!r} is not a whole number"):
            loader.set_epoch(epoch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefetch_batches": 1.5}, "prefetch_batches=1.5 is not a whole number"),
        ({"prefetch_batches": True}, "prefetch_batches=True is not a whole number"),
        ({"prefetch_batches": 0}, "at least 1"),
        ({"strategy": ["a"]}, r"strategy=\['a'\]"),
        ({"packed": 5}, "packed=5"),
        ({"memory": 10**30}, "more bytes than any machine has"),
        ({"memory": "9" * 400 + ".5GB"}, "more bytes than any machine has"),
    ],
)
def test_options_of_another_kind_are_named(
    store: gnnstore.GraphStore, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        gnnstore.NeighborLoader(store, [2], "train", **options)


def test_later_changes_of_the_users_array_do_not_matter(store: gnnstore.GraphStore) -> None:
    given = torch.tensor([1, 2, 3])
    resolved = resolve_input_nodes(store, given)
    given.fill_(50)
    assert resolved.select([0, 1, 2]).nodes["node"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("index", [[2, 0], torch.tensor([2, 0]), np.array([2, 0]), (2, 0)])
def test_an_index_of_any_kind(store: gnnstore.GraphStore, index: Any) -> None:
    assert resolve_input_nodes(store, [7, 8, 9]).select(index).nodes["node"].tolist() == [9, 7]


@pytest.mark.parametrize("index", [[0, 3], [-1], [0.5], [[0]], [True]])
def test_a_wrong_index_is_refused(store: gnnstore.GraphStore, index: Any) -> None:
    with pytest.raises(InputError, match="position"):
        resolve_input_nodes(store, [7, 8, 9]).select(index)


# --- shuffling -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_a_shuffle_is_a_permutation(n: int) -> None:
    assert sorted(epoch_order(n, 1, 2)) == list(range(n))


def test_a_shuffle_depends_on_seed_and_epoch_only() -> None:
    orders = {
        (seed, epoch): tuple(epoch_order(50, seed, epoch))
        for seed in (0, 1, 2**63 - 1)
        for epoch in range(5)
    }
    assert len(set(orders.values())) == 15
    assert orders[1, 3] == tuple(epoch_order(50, 1, 3))


def test_a_shuffle_is_the_same_everywhere() -> None:
    # Recorded: a run that is resumed on another machine must go on with the same batches.
    assert epoch_order(12, 7, 3).tolist() == [2, 6, 1, 3, 11, 4, 7, 0, 10, 9, 5, 8]


def test_a_shuffle_is_uniform() -> None:
    # Every position is first in 1 of 20 epochs; chi-square with 19 degrees of freedom.
    firsts = [int(epoch_order(20, 5, epoch)[0]) for epoch in range(4000)]
    counts = np.bincount(firsts, minlength=20)
    chi_square = float(((counts - 200) ** 2 / 200).sum())
    assert chi_square < 43.8, "one in a thousand by chance"


@pytest.mark.parametrize("n", [1, 2, 64, 65, 4097, *choose([], [3, 63, 70_000])])
def test_a_bijection_is_a_permutation(n: int) -> None:
    order = KeyedBijection(n, shuffle_draws(1, 2))
    positions = order[:].tolist()
    assert sorted(positions) == list(range(n))
    assert positions == [p for first in range(0, n, 1000) for p in order[first : first + 1000]]
    assert positions[-1] == order[-1] == order[n - 1]
    assert n < 63 or positions != KeyedBijection(n, shuffle_draws(1, 3))[:].tolist()


def test_a_bijection_is_the_same_everywhere() -> None:
    # Recorded: a run that is resumed on another machine must go on with the same batches.
    assert KeyedBijection(2**40, shuffle_draws(7, 3))[:3].tolist() == [
        669536985820,
        683021750813,
        101860299632,
    ]


def test_orders_of_many_positions_take_no_memory() -> None:
    num_seeds = MAX_SORTED + 1
    assert isinstance(epoch_order(num_seeds, 1, 2), KeyedBijection)
    assert isinstance(epoch_order(1000, 1, 2), np.ndarray)
    assert order_bytes(num_seeds, shuffles=True) == 0
    order = KeyedOrder(num_seeds, 1000, shuffles=True, drop_last=False)
    tracemalloc.start()
    batches = [index for _, index, _ in islice(order.batches(Position(2), 1), 3)]
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert np.array_equal(
        np.concatenate(batches), KeyedBijection(num_seeds, shuffle_draws(1, 2))[:3000]
    )


SHUFFLED_EPOCH = """
import sys
from collections import deque
from itertools import chain, islice
from pathlib import Path
from gnnstore.pipeline.ranks import KeyedOrder
from gnnstore.pipeline.order import Position

def resident(name):
    (line,) = (x for x in open("/proc/self/status") if x.startswith(name + ":"))
    return int(line.split()[1]) * 1024

num_seeds, num_batches = int(sys.argv[1]), int(sys.argv[2])
order = KeyedOrder(num_seeds, 2**16, shuffles=True, drop_last=False)
print(order.num_batches)
list(islice(order.batches(Position(0), 1), 2))  # what is loaded on first use is not counted
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
before = resident("VmRSS")
begin = order.batches(Position(1), 1)
end = order.batches(Position(1, order.num_batches - num_batches), 1)
seen = 0
for number, positions, _ in chain(islice(begin, num_batches), end):
    assert positions.min() >= 0 and positions.max() < num_seeds
    seen += len(positions)
print(seen, resident("VmHWM") - before)
"""


def test_shuffling_a_hundred_million_edges_takes_the_memory_of_a_batch(forks: ForkServer) -> None:
    """Sorting them would take 24 bytes each, and an array of them 8: the long form takes all."""
    num_seeds, size = 100_000_000, 2**16
    total = -(-num_seeds // size)
    num_batches = choose(20, total // 2)
    done = forks.run(SHUFFLED_EPOCH, num_seeds, num_batches, own_memory=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) == total
    seen, grown = map(int, done.stdout.split()[1:])
    assert seen == 2 * num_batches * size - (total * size - num_seeds)
    assert grown < 2**24


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_seeds", [0, 1, 7, 8, 9, 24])
def test_batches_are_cut_as_torch_cuts_them(num_seeds: int, drop_last: bool) -> None:
    for shuffles in (False, True):
        order = KeyedOrder(num_seeds, 8, shuffles, drop_last)
        sampler: Any = SequentialSampler(range(num_seeds))
        sampler = SeededShuffle(num_seeds, 1, 2) if shuffles else sampler
        expected = list(BatchSampler(sampler, 8, drop_last))
        assert [list(index) for _, index, _ in order.batches(Position(2), 1)] == expected
        assert order.num_batches == len(expected)


def test_the_sampler_is_a_random_sampler_of_python_integers() -> None:
    shuffle = SeededShuffle(70_000, seed=1, epoch=2)  # more than one piece of the list
    assert isinstance(shuffle, RandomSampler)
    assert len(shuffle) == 70_000
    positions = list(shuffle)
    assert all(type(position) is int for position in positions)
    assert positions == epoch_order(70_000, 1, 2).tolist()
    shuffle.set_epoch(2)
    assert next(iter(BatchSampler(shuffle, 4, False))) == positions[:4]
    assert list(SeededShuffle(0)) == []


@pytest.mark.parametrize("ranks", [{}, {"rank": 1, "world_size": 2}])
def test_the_loader_moves_on_with_its_sampler(
    store: gnnstore.GraphStore, ranks: dict[str, Any]
) -> None:
    loader, plain = (
        gnnstore.NeighborLoader(
            store, [2], "train", batch_size=8, shuffle=True, seed=3, num_threads=1, **ranks
        )
        for _ in range(2)
    )
    sampler: Any = loader.sampler

    def seeds_of(batches: Any) -> list[list[int]]:
        return [batch.input_id.tolist() for batch in batches]

    epochs = [seeds_of(plain) for _ in range(9)]
    begun = iter(loader)
    sampler.set_epoch(2)
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (2, 0)
    first = next(begun)
    sampler.set_epoch(0)  # it never goes back
    assert seeds_of([first, *begun]) == epochs[2]
    assert seeds_of(loader) == epochs[3]
    iter(loader)
    sampler.set_epoch(5)
    assert seeds_of(loader) == epochs[5]  # in the place of the one that gave no batch
    begun = iter(loader)
    first = next(begun)
    sampler.set_epoch(8)  # an iteration under way goes on
    assert seeds_of([first, *begun]) == epochs[6]
    assert seeds_of(loader) == epochs[8]


def test_kinds_of_seeds_are_told_by_the_fingerprint() -> None:
    assert labels_of({}) is NodeLabels
    assert labels_of(LinkLabels.fingerprint()) is LinkLabels


@pytest.mark.parametrize("name", ["times", "", None, 3, ["links"], {"links": 1}])
def test_an_unknown_kind_of_seeds_is_refused(name: Any) -> None:
    """What a manifest says may be any JSON value, also one that no table can be asked for."""
    with pytest.raises(UnsupportedVersionError, match="and this gnnstore has nodes"):
        labels_of({KIND: name})
