"""`LinkNeighborLoader` on graphs of several types gives the batches of PyG's."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.loader import LinkLoader
from torch_geometric.sampler import NegativeSampling

import gnnstore
from gnnstore import LinkNeighborLoader
from gnnstore.converters import from_pyg
from gnnstore.errors import InputError, NotFoundError, UsageError
from tests.support.effort import choose
from tests.support.hetero import CITES, TEACHES, WRITES, WRITTEN_BY, hetero_store, make_hetero

DATA = make_hetero()
PAIRS = DATA[WRITES].edge_index[:, :40]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    return hetero_store(tmp_path_factory.mktemp("typed") / "s.gnn", DATA)


def ends_of(batch: HeteroData, kind: tuple[str, str, str]) -> torch.Tensor:
    """Return the seed edges of a batch in the ids of the graph."""
    index = batch[kind].edge_label_index
    return torch.stack([batch[kind[0]].n_id[index[0]], batch[kind[2]].n_id[index[1]]])


@pytest.mark.parametrize(
    ("given", "kind", "expected"),
    [
        (WRITES, WRITES, None),
        (("author", "paper"), WRITES, None),
        ((WRITES, None), WRITES, None),
        ((WRITES, PAIRS), WRITES, PAIRS),
        ([list(CITES), DATA[CITES].edge_index[:, 5:30]], CITES, DATA[CITES].edge_index[:, 5:30]),
    ],
    ids=["type", "ends", "all", "pairs", "own type"],
)
@pytest.mark.parametrize("disjoint", [False, True])
def test_seed_edges(
    store: gnnstore.GraphStore, given: Any, kind: Any, expected: Any, disjoint: bool
) -> None:
    loader = LinkNeighborLoader(store, [2, 2], given, batch_size=10, disjoint=disjoint, seed=1)
    assert repr(loader) == "LinkNeighborLoader()"
    found, ids = [], []
    for batch in loader:
        assert batch.input_type == kind
        assert set(batch[kind].keys()) >= {"input_id", "edge_label_index"}
        assert "edge_label" not in batch[kind]
        assert "batch_size" not in batch[kind[0]]
        found.append(ends_of(batch, kind))
        ids.append(batch[kind].input_id)
        count = batch[kind].edge_label_index.shape[1]
        sizes = {name: batch[name].num_sampled_nodes[0] for name in batch.node_types}
        if disjoint:
            assert sum(sizes.values()) == 2 * count
            for side, name in zip(batch[kind].edge_label_index, (kind[0], kind[2]), strict=True):
                assert torch.equal(batch[name].batch[side], torch.arange(count))
        else:
            for name in batch.node_types:
                ends = [found[-1][row] for row in (0, 1) if kind[2 * row] == name]
                distinct = torch.cat(ends).unique() if ends else torch.empty(0)
                assert sizes[name] == len(distinct)
                assert torch.equal(batch[name].n_id[: sizes[name]], distinct.long())
    whole, of_graph = torch.cat(found, dim=1), DATA[kind].edge_index
    if expected is not None:
        assert torch.equal(whole, expected)
        assert torch.cat(ids).tolist() == list(range(expected.shape[1]))
    else:
        assert torch.equal(whole, of_graph[:, torch.cat(ids)])
        assert sorted(torch.cat(ids).tolist()) == list(range(of_graph.shape[1]))


@pytest.mark.parametrize("kind", [WRITES, CITES])
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("amount", [0.5, 1, 3])
def test_binary_negatives(
    store: gnnstore.GraphStore, kind: Any, disjoint: bool, amount: float
) -> None:
    """Labels with minimum 0 are raised; negative j belongs to positive j mod P."""
    pairs = DATA[kind].edge_index[:, :30]
    loader = LinkNeighborLoader(
        *(store, [2], (kind, pairs)),
        edge_label=torch.arange(30) % 3,
        neg_sampling=NegativeSampling("binary", amount),
        batch_size=8,
        disjoint=disjoint,
        seed=1,
    )
    counts = [DATA[name].num_nodes for name in (kind[0], kind[2])]
    drawn = []
    for number, batch in enumerate(loader):
        num = len(batch[kind].input_id)
        ends, labels = ends_of(batch, kind), batch[kind].edge_label
        assert torch.equal(ends[:, :num], pairs[:, number * 8 : number * 8 + num])
        assert labels.dtype == torch.int64
        assert torch.equal(labels[:num], torch.arange(number * 8, number * 8 + num) % 3 + 1)
        assert labels[num:].tolist() == [0] * int(np.ceil(num * amount))
        drawn.append(ends[:, num:])
        if disjoint:
            for side, name in zip(batch[kind].edge_label_index, (kind[0], kind[2]), strict=True):
                trees = batch[name].batch[side]
                assert trees[:num].tolist() == list(range(num))
                assert trees[num:].tolist() == [j % num for j in range(len(trees) - num)]
    negatives = torch.cat(drawn, dim=1)
    assert (negatives.max(dim=1).values < torch.tensor(counts)).all()
    if amount == 3:  # of both counts, the last nodes too
        assert (negatives.max(dim=1).values > torch.tensor(counts) * 0.8).all()


@pytest.mark.parametrize("kind", [WRITES, CITES])
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("amount", [1, 2])
@pytest.mark.parametrize("side", ["dst", "src", "both"])
def test_triplets(
    store: gnnstore.GraphStore, kind: Any, disjoint: bool, amount: int, side: str
) -> None:
    """[test_link_neighbor_loader.py: triplets]."""
    source, _, target = kind
    loader = LinkNeighborLoader(
        *(store, [2], kind),
        neg_sampling=NegativeSampling("triplet", amount),
        neg_side=side,
        batch_size=choose(20, 7),
        disjoint=disjoint,
        seed=1,
    )
    for batch in loader:
        num = len(batch[kind].input_id)
        assert "edge_label_index" not in batch[kind]
        src, pos = batch[source].src_index, batch[target].dst_pos_index
        ends = torch.stack([batch[source].n_id[src], batch[target].n_id[pos]])
        assert torch.equal(ends, DATA[kind].edge_index[:, batch[kind].input_id])
        assert ("dst_neg_index" in batch[target]) == (side != "src")
        assert ("src_neg_index" in batch[source]) == (side != "dst")
        negatives = [(target, batch[target].get("dst_neg_index"))]
        negatives.append((source, batch[source].get("src_neg_index")))
        for name, index in negatives:
            if index is None:
                continue
            assert index.shape == ((num,) if amount == 1 else (num, amount))
            assert index.max() < batch[name].num_nodes
            if disjoint:
                trees = batch[name].batch[index].view(num, -1)
                assert torch.equal(trees, torch.arange(num)[:, None].expand(num, amount))
        if disjoint and source != target and side == "dst":
            assert src.tolist() == pos.tolist() == list(range(num))
            neg = batch[target].dst_neg_index.view(num, amount)
            assert neg.T.flatten().tolist() == list(range(num, num * (amount + 1)))
        if disjoint:
            for name in batch.node_types:
                seeds = batch[name].num_sampled_nodes[0]
                assert batch[name].batch[:seeds].tolist() == [i % num for i in range(seeds)]


def test_equal_ids_of_two_types_are_no_loop(tmp_path: Path) -> None:
    """A strict negative between types may have equal ids; within a type it is a loop."""
    counts = {"paper": 3, "author": 3, "institution": 1}
    # No author wrote a paper but of another number.
    data = make_hetero(counts=counts, degrees={WRITES: 0, CITES: 0})
    others = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
    for kind in (WRITES, CITES):
        size = others.shape[1]
        data[kind].edge_index = others
        data[kind].edge_time, data[kind].w = torch.zeros(size).long(), torch.ones(size)
    data[CITES].edge_attr = torch.zeros(6, 2)
    store = hetero_store(tmp_path / "s.gnn", data)
    options: dict[str, Any] = {"neg_sampling": "binary", "strict_negatives": True, "batch_size": 6}
    (batch,) = LinkNeighborLoader(store, [1], WRITES, seed=0, **options)
    negatives = ends_of(batch, WRITES)[:, 6:]
    assert torch.equal(negatives[0], negatives[1])
    loader = LinkNeighborLoader(store, [1], CITES, seed=0, **options)
    list(loader)
    assert loader.stats().negatives_kept == 6


def test_weights_by_type(store: gnnstore.GraphStore) -> None:
    sources, targets = torch.zeros(35), torch.zeros(60)
    sources[4], targets[57] = 1.0, 1.0
    sampling = NegativeSampling("binary", 2, src_weight=sources, dst_weight=targets)
    for batch in LinkNeighborLoader(store, [1], WRITES, neg_sampling=sampling, batch_size=9):
        num = len(batch[WRITES].input_id)
        assert ends_of(batch, WRITES)[:, num:].T.unique(dim=0).tolist() == [[4, 57]]
    with pytest.raises(
        InputError, match=r"src_weight has the shape \[60\]; expected .* the 35 nod"
    ):
        LinkNeighborLoader(
            store, [1], WRITES, neg_sampling=NegativeSampling("binary", 1, targets, targets)
        )


@pytest.mark.parametrize(
    ("kind", "how", "without"),
    [
        (WRITES, "self", (WRITES,)),
        (WRITES, "reverse", (WRITES, WRITTEN_BY)),
        (CITES, "reverse", (CITES,)),
        (TEACHES, "self", (TEACHES,)),
    ],
)
def test_seed_edges_are_left_out(
    store: gnnstore.GraphStore, kind: Any, how: str, without: Any
) -> None:
    for disjoint in choose((how == "self",), (False, True)):
        loader = LinkNeighborLoader(
            store, [-1, -1], kind, batch_size=5, exclude_edges=how, disjoint=disjoint
        )
        for batch in loader:
            seeds = {tuple(pair) for pair in ends_of(batch, kind).T.tolist()}
            for other in batch.edge_types:
                edges = DATA[other].edge_index[:, batch[other].e_id]
                found = {tuple(pair) for pair in edges.T.tolist()}
                if other not in without:
                    continue
                if other == kind:
                    assert not found & seeds
                if how == "reverse" and (other != kind or kind[0] == kind[2]):
                    assert not found & {pair[::-1] for pair in seeds}
    with pytest.raises(UsageError, match="no edge type is the reverse of"):
        LinkNeighborLoader(store, [1], ("author", "at", "institution"), exclude_edges="reverse")


def test_attributes_of_seed_edges(store: gnnstore.GraphStore) -> None:
    loader = LinkNeighborLoader(
        store, [1], CITES, edge_label_attrs=["edge_attr", "w"], batch_size=9
    )
    for batch in loader:
        ids = batch[CITES].input_id
        assert torch.equal(batch[CITES].label_edge_attr, DATA[CITES].edge_attr[ids])
        assert torch.equal(batch[CITES].label_w, DATA[CITES].w[ids])
    with pytest.raises(
        NotFoundError, match=r"edge type \('author', 'writes', 'paper'\) of .* no a"
    ):
        LinkNeighborLoader(store, [1], WRITES, edge_label_attrs=["edge_attr"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"give for example edge_label_index=\(\('paper', 'cites', 'paper'\), None\)"),
        (PAIRS, "edge_label_index does not name an edge type"),
        (("paper", "x", "paper"), r"no edge type \('paper', 'x', 'paper'\).*; there are:"),
        ((("paper", "x", "y"), PAIRS), r"no edge type \('paper', 'x', 'y'\).*; there are:"),
        (("institution", "paper"), "0 edge types lead from 'institution' to 'paper'"),
        ((WRITES, "train"), "there is no edge split 'train'"),
        (
            (WRITES, [[35], [0]]),
            "source 35 at position 0 of 1 is outside 'author'",
        ),
        (
            (WRITES, [[0], [60]]),
            "target 60 at position 0 of 1 is outside 'paper'",
        ),
    ],
)
def test_seed_edges_that_cannot_be(store: gnnstore.GraphStore, given: Any, message: str) -> None:
    with pytest.raises((UsageError, InputError, NotFoundError), match=message):
        LinkNeighborLoader(store, [1], given)


def test_seed_edges_of_a_type_without_edges(store: gnnstore.GraphStore) -> None:
    """As in PyG, a type that is only predicted has no edges in the graph that is sampled."""
    kind = ("author", "likes", "paper")
    how: dict[str, Any] = {"batch_size": 9, "neg_sampling": "binary", "seed": 3}
    likes = LinkNeighborLoader(store, [2, 1], (kind, PAIRS), **how)
    writes = LinkNeighborLoader(store, [2, 1], (WRITES, PAIRS), **how)
    assert len(likes) == 5
    for batch, like in zip(likes, writes, strict=True):
        assert batch.input_type == kind
        for name in ("edge_label_index", "edge_label", "input_id"):
            assert torch.equal(batch[kind][name], like[WRITES][name])
        assert torch.equal(batch[WRITES].edge_index, like[WRITES].edge_index)
    with pytest.raises(UsageError, match=r"no edges of .* to leave out"):
        LinkNeighborLoader(store, [1], (kind, PAIRS), exclude_edges="self")


def test_seed_edges_of_a_graph_of_types_without_edges(tmp_path: Path) -> None:
    store = from_pyg(HeteroData(paper={"num_nodes": 9}), tmp_path / "s.gnn")
    loader = LinkNeighborLoader(store, [], (("paper", "paper"), [[0, 3], [8, 3]]), batch_size=2)
    (batch,) = loader
    assert batch["paper", "to", "paper"].edge_label_index.tolist() == [[0, 1], [2, 1]]
    assert batch["paper"].n_id.tolist() == [0, 3, 8]
    with pytest.raises(UsageError, match=r"for example edge_label_index=\(TYPE, None\)"):
        LinkNeighborLoader(store, [], [[0], [8]])


# --- the same batches however they come ------------------------------------------------------


@pytest.mark.parametrize("neg_sampling", [None, "binary", "triplet"])
def test_pygs_own_loader_takes_the_sampler(store: gnnstore.GraphStore, neg_sampling: Any) -> None:
    loader = LinkNeighborLoader(store, [2], WRITES)
    given = loader.input_data
    assert given.input_type == WRITES
    theirs = LinkLoader(
        DATA,
        link_sampler=loader.link_sampler,
        edge_label_index=(WRITES, PAIRS),
        neg_sampling=neg_sampling,
        batch_size=8,
    )
    for batch in theirs:
        assert batch.input_type == WRITES
        for kind in batch.edge_types:
            edges = batch[kind]
            ends = torch.stack(
                [
                    batch[kind[0]].n_id[edges.edge_index[0]],
                    batch[kind[2]].n_id[edges.edge_index[1]],
                ]
            )
            assert torch.equal(ends, DATA[kind].edge_index[:, edges.e_id])


def test_bidirectional_edges_between_types(store: gnnstore.GraphStore) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is the reverse of")
        loader = LinkNeighborLoader(
            store, [2, 2], WRITES, subgraph_type="bidirectional", batch_size=9
        )
    for batch in loader:
        flipped = batch[WRITTEN_BY].edge_index.flip(0)
        assert torch.equal(batch[WRITES].edge_index, flipped)
        assert "e_id" not in batch[WRITES]
        assert "w" not in batch[WRITES]
        assert "num_sampled_edges" not in batch[WRITES]
        assert "num_sampled_nodes" not in batch["paper"]


def test_labels_given_to_the_node_loader(store: gnnstore.GraphStore) -> None:
    """[I pyg#3958, #4351]: the message names the loader of links."""
    with pytest.raises(UsageError, match="edge_label is an option of LinkNeighborLoader"):
        gnnstore.NeighborLoader(store, [1], ("paper", "train"), edge_label=[1])
