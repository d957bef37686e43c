"""Loaders that sample by time or by weight: no edge that a seed may not see, however it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import gnnstore
from gnnstore import LinkNeighborLoader, NeighborLoader
from gnnstore.converters import from_pyg
from gnnstore.errors import InputError, UsageError
from tests.support.batches import batches_of
from tests.support.effort import choose
from tests.support.hetero import CITES, COUNTS, WRITES, hetero_store, make_hetero

DATA = make_hetero(widths={"paper": 60, "author": 25})
TRAIN = ("paper", "train")
TIMES = ("time", "edge_time")
# Those of the papers that are seeds.
# Batches are compared, and nothing is predicted.
pytestmark = pytest.mark.filterwarnings("ignore:edge_label_time of some seed edges:UserWarning")

INPUT_TIME = torch.arange(int(DATA["paper"].train_mask.sum())) * 7 - 40


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    directory = tmp_path_factory.mktemp("timed")
    return hetero_store(directory / "s.gnn", DATA, time_attr=TIMES, weight_attr=["w"])


def homogeneous() -> Data:
    rng = torch.Generator().manual_seed(2)
    edge_index = torch.randint(0, 50, (2, 400), generator=rng)
    return Data(
        x=torch.rand(50, 60, generator=rng),
        edge_index=edge_index,
        time=torch.randint(-20, 90, (50,), generator=rng),
        when=torch.randint(-20, 90, (400,), generator=rng),
        w=torch.rand(400, generator=rng) * (torch.rand(400, generator=rng) < 0.8),
    )


PLAIN = homogeneous()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options: dict[str, Any] = {"time_attr": ("time", "when"), "weight_attr": ("w",)}
    return from_pyg(PLAIN, tmp_path_factory.mktemp("plain") / "s.gnn", **options)


def times_of_trees(batch: HeteroData, own: dict[str, Tensor]) -> Tensor:
    """Return the time of each tree of a batch, from those of its seeds."""
    times: dict[int, int] = {}
    for name, of_seeds in own.items():
        trees = batch[name].batch[: len(of_seeds)].tolist()
        times |= dict(zip(trees, of_seeds.tolist(), strict=True))
    return torch.tensor([times[tree] for tree in sorted(times)])


@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("fanouts", [[2, 2], [-1, -1]])
def test_times_of_nodes(
    store: gnnstore.GraphStore, strategy: Any, window: int | None, given: bool, fanouts: list[int]
) -> None:
    """No node is later than its *seed*, at any hop; types without times are unconstrained."""
    loader = NeighborLoader(
        *(store, fanouts, TRAIN),
        input_time=INPUT_TIME if given else None,
        time_attr="time",
        temporal_strategy=strategy,
        time_window=window,
        batch_size=5,
        seed=1,
    )
    later_middles = 0
    for batch in loader:
        size = batch["paper"].batch_size
        if given:
            assert torch.equal(batch["paper"].seed_time, INPUT_TIME[batch["paper"].input_id])
        else:
            assert "seed_time" not in batch["paper"]
        own = batch["paper"].get("seed_time", batch["paper"].time[:size])
        times = times_of_trees(batch, {"paper": own})
        for kind in batch.edge_types:
            if kind[0] == "institution":
                continue
            sources, targets = batch[kind].edge_index
            found, limit = batch[kind[0]].time[sources], times[batch[kind[0]].batch[sources]]
            assert (found <= limit).all(), kind
            if window is not None:
                assert (found > limit - window).all(), kind
            if kind[2] != "institution":
                later_middles += int((found > batch[kind[2]].time[targets]).sum())
            if fanouts == [-1, -1]:  # all that are allowed
                everything = DATA[kind].edge_index
                ends = batch[kind[2]].n_id[targets]
                for place in targets.unique().tolist():
                    tree = int(batch[kind[2]].batch[place])
                    node = int(batch[kind[2]].n_id[place])
                    all_times = DATA[kind[0]].time[everything[0, everything[1] == node]]
                    allowed = all_times <= times[tree]
                    if window is not None:
                        allowed &= all_times > times[tree] - window
                    assert int((targets == place).sum()) == int(allowed.sum())
                assert len(ends) == len(targets)
    if not given:
        assert later_middles > 0  # the middle node's time does not matter


def test_the_last_edges_are_chosen(store: gnnstore.GraphStore) -> None:
    batch = next(
        iter(
            NeighborLoader(
                *(store, {kind: [3] for kind in DATA.edge_types}, TRAIN),
                input_time=torch.full_like(INPUT_TIME, 60),
                time_attr="edge_time",
                temporal_strategy="last",
                batch_size=50,
            )
        )
    )
    for kind in (CITES, WRITES):
        edges = batch[kind]
        for place in edges.edge_index[1].unique().tolist():
            node = int(batch["paper"].n_id[place])
            every = DATA[kind].edge_time[DATA[kind].edge_index[1] == node]
            allowed = every[every <= 60].sort().values
            found = edges.edge_time[edges.edge_index[1] == place].sort().values
            assert torch.equal(found, allowed[-3:])


@pytest.mark.parametrize("given", ["paper", "both"])
def test_times_of_edges(store: gnnstore.GraphStore, given: str) -> None:
    nodes: Any = {"paper": "train", "author": [4, 4, 8]}
    times: Any = {"paper": INPUT_TIME, "author": torch.tensor([-10, 150, 0])}
    if given == "paper":
        nodes, times = TRAIN, INPUT_TIME
    loader = NeighborLoader(
        store, [3, 3], nodes, input_time=times, time_attr="edge_time", batch_size=6, seed=0
    )
    for batch in loader:
        own = {
            name: batch[name].seed_time
            for name in ("paper", "author")
            if "seed_time" in batch[name]
        }
        limits = times_of_trees(batch, own)
        for kind in batch.edge_types:
            trees = batch[kind[2]].batch[batch[kind].edge_index[1]]
            assert (batch[kind].edge_time <= limits[trees]).all()
            assert torch.equal(trees, batch[kind[0]].batch[batch[kind].edge_index[0]])


def test_one_node_as_two_seeds(store: gnnstore.GraphStore) -> None:
    """[RelBench]: two trees, two rows, each with its own time; `input_id` leads to the label."""
    loader = NeighborLoader(
        *(store, [-1], ("paper", [5, 5])),
        input_time=torch.tensor([-30, 190]),
        time_attr="time",
        batch_size=2,
    )
    (batch,) = loader
    assert batch["paper"].n_id[:2].tolist() == [5, 5]
    assert batch["paper"].batch[:2].tolist() == [0, 1]
    assert batch["paper"].seed_time.tolist() == [-30, 190]
    assert batch["paper"].input_id.tolist() == [0, 1]
    sources, _ = batch[CITES].edge_index
    found = batch["paper"].batch[sources].bincount(minlength=2)
    assert found[0] < found[1]


def test_at_the_seeds_time(tmp_path: Path) -> None:
    """In at the time itself, out one later; seeds earlier than everything are alone."""
    for time in (5, 2**31, -(10**18), 17 * 10**17):
        times = [time, time + 1]
        data = HeteroData()
        data["item"].num_nodes = 3
        data["item", "to", "item"].edge_index = torch.tensor([[0, 1], [2, 2]])
        data["item", "to", "item"].t = torch.tensor(times)
        store = hetero_store(tmp_path / f"{time}.gnn", data, time_attr=["t"])
        for seed_time, expected in ((times[0], [0]), (times[1], [0, 1]), (times[0] - 1, [])):
            for strategy in ("uniform", "last"):
                (batch,) = NeighborLoader(
                    *(store, [-1], ("item", [2])),
                    input_time=[seed_time],
                    time_attr="t",
                    temporal_strategy=strategy,
                )
                assert batch["item"].n_id[1:].tolist() == expected
                assert batch["item", "item"].t.tolist() == times[: len(expected)]


# --- edges with times ------------------------------------------------------------------------


def link_loader(store: gnnstore.GraphStore, **options: Any) -> LinkNeighborLoader:
    pairs = DATA[WRITES].edge_index[:, :40]
    arguments: dict[str, Any] = {
        "num_neighbors": [2, 2],
        "edge_label_index": (WRITES, pairs),
        "edge_label_time": DATA[WRITES].edge_time[:40],
        "time_attr": "time",
        "batch_size": 7,
        "seed": 1,
    }
    return LinkNeighborLoader(store, **(arguments | options))


@pytest.mark.parametrize("amount", [0.5, 1, 2])
def test_times_of_pairs(store: gnnstore.GraphStore, amount: float) -> None:
    """[I pyg#6401, #7807]: one time for each pair; negatives exist at that of their positive."""
    num_old = 0
    for batch in link_loader(store, neg_sampling={"mode": "binary", "amount": amount}):
        edges = batch[WRITES]
        num = len(edges.input_id)
        assert (
            edges.edge_label_index.shape[1] == len(edges.edge_label) == len(edges.edge_label_time)
        )
        expected = DATA[WRITES].edge_time[edges.input_id]
        assert torch.equal(edges.edge_label_time[:num], expected)
        assert torch.equal(
            edges.edge_label_time[num:],
            torch.tensor([expected[j % num] for j in range(len(edges.edge_label) - num)]),
        )
        for row, name in ((0, "author"), (1, "paper")):
            nodes = batch[name].n_id[edges.edge_label_index[row]][num:]
            times, limits = DATA[name].time[nodes], edges.edge_label_time[num:]
            oldest = DATA[name].time.argmin()
            is_oldest = nodes == oldest
            assert ((times <= limits) | is_oldest).all()
            num_old += int(is_oldest.sum())
        own = dict.fromkeys(("author", "paper"), edges.edge_label_time)
        trees = times_of_trees(batch, {n: t[:num] for n, t in own.items()})
        for kind in batch.edge_types:
            if kind[0] != "institution":
                sources = batch[kind].edge_index[0]
                found = batch[kind[0]].time[sources]
                assert (found <= trees[batch[kind[0]].batch[sources]]).all()
    assert num_old < 40


@pytest.mark.parametrize("amount", [1, 3])
@pytest.mark.parametrize("chunks", [None, 2])
def test_times_of_triplets(store: gnnstore.GraphStore, amount: int, chunks: int | None) -> None:
    loader = link_loader(
        *(store,),
        neg_sampling={"mode": "triplet", "amount": amount},
        negative_chunks=chunks,
        degree_fraction=0.4 if chunks and amount > 1 else 0.0,
    )
    for batch in loader:
        times = DATA[WRITES].edge_time[batch[WRITES].input_id]
        assert torch.equal(batch["author"].seed_time, times)
        assert torch.equal(batch["paper"].seed_time, times)
        assert "edge_label_time" not in batch[WRITES]
        nodes = batch["paper"].n_id[batch["paper"].dst_neg_index].view(len(times), amount)
        is_old = DATA["paper"].time[nodes] <= times[:, None]
        assert (is_old | (nodes == DATA["paper"].time.argmin())).all()


def test_nobody_is_old_enough(store: gnnstore.GraphStore) -> None:
    early = torch.full((40,), -200)
    loader = link_loader(store, edge_label_time=early, neg_sampling="binary", strict_negatives=True)
    for batch in loader:
        num = len(batch[WRITES].input_id)
        for row, name in ((0, "author"), (1, "paper")):
            nodes = batch[name].n_id[batch[WRITES].edge_label_index[row]][num:]
            assert (nodes == DATA[name].time.argmin()).all()
        assert batch["institution"].num_nodes == 0


def test_negatives_of_edges_with_times_are_unconstrained(store: gnnstore.GraphStore) -> None:
    options = {"neg_sampling": "binary", "num_neighbors": [0]}
    timed = batches_of(link_loader(store, time_attr="edge_time", **options))
    free = batches_of(
        link_loader(store, time_attr=None, edge_label_time=None, disjoint=True, **options)
    )
    for ours, theirs in zip(timed, free, strict=True):
        assert torch.equal(ours["paper"]["n_id"], theirs["paper"]["n_id"])


def test_seed_edges_are_left_out_under_times(store: gnnstore.GraphStore) -> None:
    everything = {"num_neighbors": [-1], "batch_size": 4}
    with_seeds: list[Any] = batches_of(link_loader(store, **everything))
    without = list(link_loader(store, exclude_edges="self", **everything))
    for whole, batch in zip(with_seeds, without, strict=True):
        index = batch[WRITES].edge_label_index
        seeds = {
            (int(batch["author"].n_id[a]), int(batch["paper"].n_id[p])) for a, p in index.T.tolist()
        }
        edges = DATA[WRITES].edge_index
        kept = [
            e for e in whole[WRITES]["e_id"].tolist() if tuple(edges[:, e].tolist()) not in seeds
        ]
        assert sorted(kept) == sorted(batch[WRITES].e_id.tolist())


# --- weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("replace", [False, True])
def test_weights(store: gnnstore.GraphStore, replace: bool) -> None:
    """Edges of weight 0 never come; heavy ones come more often."""
    chosen = torch.zeros(DATA[CITES].num_edges)
    for seed in range(choose(10, 60)):
        loader = NeighborLoader(
            store, [2], "paper", weight_attr="w", replace=replace, batch_size=60, seed=seed
        )
        (batch,) = loader
        for kind in batch.edge_types:
            assert (batch[kind].w > 0).all()
        chosen += batch[CITES].e_id.bincount(minlength=len(chosen))
    weights = DATA[CITES].w
    assert (chosen[weights == 0] == 0).all()
    assert chosen[weights > 0.8].mean() > 3 * chosen[(weights > 0) & (weights < 0.2)].mean()
    (batch,) = NeighborLoader(store, [-1], "paper", weight_attr="w", batch_size=60)
    assert batch[CITES].num_edges == DATA[CITES].num_edges


# --- however they come -----------------------------------------------------------------------

NODES: dict[str, Any] = {"input_nodes": {"paper": "train", "author": [3, 3, 9]}}


def test_states_of_other_times_and_weights(store: gnnstore.GraphStore, plain: Path) -> None:
    times: Any = {"paper": INPUT_TIME, "author": torch.tensor([-10, 150, 0])}
    options: dict[str, Any] = {**NODES, "time_attr": "time", "temporal_strategy": "last", "seed": 3}
    options |= {"num_neighbors": [3, 2], "input_time": times}
    state = NeighborLoader(store, **options).state_dict()
    for change in (
        {"temporal_strategy": "uniform"},
        {"time_window": 5},
        {"input_time": {**times, "author": torch.tensor([-10, 150, 1])}},
        {"input_time": None},
        {"time_attr": "edge_time"},
    ):
        with pytest.raises(UsageError, match="not of a loader like this one"):
            NeighborLoader(store, **(options | change)).load_state_dict(state)
    state = NeighborLoader(plain, [3, 2], weight_attr="w").state_dict()
    with pytest.raises(UsageError, match="weight_attr: expected nothing, found 'w'"):
        NeighborLoader(plain, [3, 2]).load_state_dict(state)


@pytest.mark.parametrize("way", ["memory", "packed"])
@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_links_of_a_graph_without_types(plain: Path, way: str, mode: str) -> None:
    options: dict[str, Any] = {
        "edge_label_time": PLAIN.when,
        "time_attr": "when",
        "neg_sampling": mode,
        "batch_size": 20,
        "seed": 1,
    }
    for batch in LinkNeighborLoader(plain, [2, 2], **options, strategy=way):
        own = PLAIN.when[batch.input_id]
        limits = own[batch.batch[batch.edge_index[1]]]
        assert (batch.when <= limits).all()
        shown = batch.edge_label_time[: len(own)] if mode == "binary" else batch.seed_time
        assert torch.equal(shown, own)


# --- what cannot be --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_attr": "t"}, "time_attr='t': there is no such attribute of nodes or edges"),
        (
            {"time_attr": "y"},
            r"no order of its edges by 'y' .* gnnstore add-order .*--time-attr y",
        ),
        (
            {"weight_attr": "edge_time"},
            r"no sums of 'edge_time' .*add-order .*--weight-attr edge",
        ),
        (
            {"weight_attr": "x"},
            "weight_attr='x': there is no such edge attribute; there are:",
        ),
        (
            {"time_attr": "edge_time"},
            r"seed nodes of 'paper' have no 'edge_time' of their own",
        ),
        (
            {"input_nodes": "institution", "time_attr": "time"},
            "have no 'time' of their own",
        ),
        ({"time_attr": "time", "weight_attr": "w"}, "time_attr and weight_attr exclude each other"),
        ({"time_window": 4}, "time_window and temporal_strategy need time_attr"),
        ({"time_attr": "time", "time_window": 0}, "time_window must be 1 or more"),
        ({"input_time": INPUT_TIME}, "input_time is set while time_attr is not"),
        ({"time_attr": "time", "subgraph_type": "induced"}, "disjoint=True and subgraph_type='ind"),
        ({"time_attr": "time", "temporal_strategy": "first"}, "temporal_strategy='first' is unkno"),
    ],
)
def test_options_that_cannot_be(
    store: gnnstore.GraphStore, options: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {"input_nodes": TRAIN} | options
    with pytest.raises(UsageError, match=message):
        NeighborLoader(store, [2], **arguments)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (torch.rand(len(INPUT_TIME)), "input_time has values of float32; give whole numbers"),
        (np.array(["NaT"] * len(INPUT_TIME), "M8[s]"), r"input_time has values of datetime64\[s\]"),
        ([1, 2], "input_time has 2 entries for 31 input nodes; give one for each"),
    ],
)
def test_input_times_that_cannot_be(store: gnnstore.GraphStore, times: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        NeighborLoader(store, [2], TRAIN, input_time=times, time_attr="time")


def test_some_seeds_without_times(store: gnnstore.GraphStore) -> None:
    with pytest.raises(UsageError, match=r"input_time has no times of \['author'\]"):
        NeighborLoader(
            store, [2], NODES["input_nodes"], input_time={"paper": INPUT_TIME}, time_attr="time"
        )


def test_times_of_links_that_cannot_be(store: gnnstore.GraphStore) -> None:
    with pytest.raises(UsageError, match="'edge_label_time' is not set while 'time_attr' is set"):
        link_loader(store, edge_label_time=None)
    with pytest.raises(UsageError, match="'time_attr' is not set while 'edge_label_time' is set"):
        link_loader(store, time_attr=None)
    with pytest.raises(InputError, match="edge_label_time has 3 entries for 40 edges"):
        link_loader(store, edge_label_time=[1, 2, 3])


def test_partitions_have_neither_times_nor_weights(plain: Path) -> None:
    policy = gnnstore.PartitionPolicy("dispersed", capacity=0.5)
    with pytest.raises(UsageError, match="partitions= has no use for weight_attr='w'"):
        NeighborLoader(plain, [2], partitions=policy, weight_attr="w")


def test_memory_for_times_and_weights(store: gnnstore.GraphStore) -> None:
    """Orders, times and sums count with the topology, and only if they are used."""
    store = gnnstore.open(store.path)
    cases: dict[str, dict[str, Any]] = {
        "none": {},
        "nodes": {"time_attr": "time"},
        "weights": {"weight_attr": "w"},
    }
    loaders = {
        name: NeighborLoader(store, [2], TRAIN, strategy="memory", **options)
        for name, options in cases.items()
    }
    fixed = {
        name: {r.what: r.fixed for r in loader._sources.placement.ledger.reservations}
        for name, loader in loaders.items()
    }
    num_edges = sum(DATA[kind].num_edges for kind in DATA.edge_types)
    timed = sum(DATA[kind].num_edges for kind in DATA.edge_types if kind[0] != "institution")
    topology = {name: own["topology"] for name, own in fixed.items()}
    assert topology["nodes"] - topology["none"] == 2 * timed  # uint16
    assert fixed["nodes"]["times of nodes"] == 8 * (COUNTS["paper"] + COUNTS["author"])
    assert topology["weights"] - topology["none"] == 8 * num_edges
    assert not fixed["none"].get("times of nodes")
