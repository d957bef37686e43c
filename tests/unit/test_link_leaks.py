"""Link prediction without its answers: reverses of seed edges by type, and times of seed edges."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BidirectionalNeighborSampler

import gnnstore
from gnnstore.converters import from_pyg
from gnnstore.errors import UsageError
from tests.support.effort import choose

FOLLOW, FOLLOWED = ("user", "follow", "user"), ("user", "followed-by", "user")
CITES, SIMILAR = ("paper", "cites", "paper"), ("paper", "similar", "paper")


def random_pairs(num_nodes: int, num_edges: int, seed: int = 0) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    pairs = torch.randint(num_nodes, (2, num_edges), generator=draws)
    unique: Tensor = torch.unique(pairs[:, pairs[0] != pairs[1]], dim=1)
    return unique


def typed_store(path: Path, **edges: Tensor) -> Any:
    """Return a store of one node type, "user" or "paper", with edge types by relation."""
    data = HeteroData()
    name = "paper" if "cites" in edges else "user"
    data[name].x = torch.rand(40, 2)
    for relation, index in edges.items():
        data[name, relation.replace("_by", "-by"), name].edge_index = index
    return gnnstore.open(from_pyg(data, path))


def answers(batch: Any, kind: Any, others: Any) -> int:
    """Return how many seed edges a batch has in a type, or reversed in others."""
    nodes = batch[kind[0]].n_id
    seeds = nodes[batch[kind].edge_label_index]
    seeds = {tuple(pair) for pair in seeds.T.tolist()}
    found = 0
    for of, flips in others:
        index = nodes[batch[of].edge_index]
        found += sum(
            tuple(pair) in seeds for pair in (index.flip(0) if flips else index).T.tolist()
        )
    return found


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional"])
@pytest.mark.parametrize("seeds", [FOLLOW, FOLLOWED])
def test_reverses_of_a_type_by_another_name(tmp_path: Path, seeds: Any, subgraph_type: str) -> None:
    pairs = random_pairs(40, 300)
    store = typed_store(tmp_path / "s.gnn", follow=pairs, followed_by=pairs.flip(0))
    options: dict[str, Any] = {"batch_size": 20, "seed": 0, "exclude_edges": "reverse"}
    options |= {"subgraph_type": subgraph_type}
    with pytest.raises(UsageError, match=r"reverse_types=\{\('user', 'follow"):
        gnnstore.LinkNeighborLoader(store, [-1, -1], seeds, **options)
    other = FOLLOWED if seeds == FOLLOW else FOLLOW
    options["reverse_types"] = {FOLLOW: FOLLOWED}
    loader = gnnstore.LinkNeighborLoader(store, [-1, -1], seeds, **options)
    assert loader.reverse_types == {FOLLOW: FOLLOWED}
    batches = list(loader)
    assert sum(batch[other].edge_index.size(1) for batch in batches) > 1000
    assert [answers(batch, seeds, [(seeds, False), (other, True)]) for batch in batches] == [
        0
    ] * len(batches)


def test_a_type_beside_another_may_be_its_own_reverse(tmp_path: Path) -> None:
    pairs = random_pairs(40, 200)
    both = torch.cat([pairs, pairs.flip(0)], 1)
    store = typed_store(tmp_path / "s.gnn", cites=both, similar=random_pairs(40, 200, seed=1))
    options: dict[str, Any] = {"batch_size": 20, "seed": 0, "exclude_edges": "reverse"}
    with pytest.raises(UsageError, match="join the same node types") as refused:
        gnnstore.LinkNeighborLoader(store, [-1], CITES, **options)
    assert f"reverse_types={{{CITES}: {CITES}}}" in str(refused.value)
    given = {CITES: CITES}
    loader = gnnstore.LinkNeighborLoader(store, [-1], CITES, reverse_types=given, **options)
    for batch in loader:
        assert answers(batch, CITES, [(CITES, False), (CITES, True)]) == 0
        assert batch[SIMILAR].edge_index.size(1) > 0
    for wrong, what in (
        ({CITES: ("paper", "x", "paper")}, "x"),
        ({"cites": "cites"}, "reverse_types: 'cites' is not an edge type"),
    ):
        with pytest.raises((UsageError, gnnstore.GnnstoreError), match=what):
            gnnstore.LinkNeighborLoader(store, [-1], CITES, reverse_types=wrong, **options)
    with pytest.raises(UsageError, match="of use with exclude_edges='reverse'"):
        gnnstore.LinkNeighborLoader(store, [-1], CITES, reverse_types=given)


def test_a_reverse_by_its_name_is_found_from_both_sides(tmp_path: Path) -> None:
    pairs = random_pairs(40, 300)
    store = typed_store(tmp_path / "s.gnn", cites=pairs, rev_cites=pairs.flip(0), similar=pairs)
    reverse = ("paper", "rev_cites", "paper")
    for seeds, other in ((CITES, reverse), (reverse, CITES), (SIMILAR, SIMILAR)):
        loader = gnnstore.LinkNeighborLoader(
            store, [-1], seeds, batch_size=20, seed=0, exclude_edges="reverse"
        )
        batch = next(iter(loader))
        assert answers(batch, seeds, [(seeds, False), (other, True)]) == 0


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Return a random graph, whose edges, in both directions, have times."""
    draws = torch.Generator().manual_seed(3)
    pairs = random_pairs(400, choose(750, 1500))
    data = Data(
        x=torch.rand(400, 2, generator=draws), edge_index=torch.cat([pairs, pairs.flip(0)], 1)
    )
    data.time = torch.randint(1000, (pairs.size(1),), generator=draws).repeat(2)
    path = tmp_path_factory.mktemp("timed") / "s.gnn"
    data.store = gnnstore.open(from_pyg(data, path, time_attr=("time",)))
    return data


def auc_of_sight(loader: Any) -> float:
    """Return how well it tells edges from negatives to look for them in their own tree."""
    scores, labels = [], []
    for batch in loader:
        ends, edges = (
            (batch.batch[index[1]] * 400 + batch.n_id[index[0]]) * 400 + batch.n_id[index[1]]
            for index in (batch.edge_label_index, batch.edge_index)
        )
        scores += torch.isin(ends, edges).tolist()
        labels += batch.edge_label.tolist()
    score, label = torch.tensor(scores).double(), torch.tensor(labels).bool()
    difference = score[label][:, None] - score[~label][None]
    return float(((difference > 0).double() + 0.5 * (difference == 0).double()).mean())


def test_times_of_seeds_let_no_answers_through(timed: Data) -> None:
    """On a random graph nothing can be predicted."""
    given: dict[str, Any] = {"neg_sampling": "binary", "batch_size": 500, "seed": 0}
    given |= {"time_attr": "time", "edge_label_index": timed.edge_index}

    def make(**options: Any) -> Any:
        return gnnstore.LinkNeighborLoader(timed.store, [10, 10], **(given | options))

    with pytest.warns(UserWarning, match='exclude_edges="self".* - 1') as found:
        leaks = make(edge_label_time=timed.time)
    assert [each.filename for each in found] == [__file__]
    assert auc_of_sight(leaks) > 0.9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for honest in (
            make(edge_label_time=timed.time, exclude_edges="reverse"),
            make(edge_label_time=timed.time - 1),
        ):
            assert auc_of_sight(honest) < 0.55


def test_of_whose_times_loaders_warn(timed: Data) -> None:
    """Seeds that are all edges of the store, as `None`, have times by their ids."""
    late = timed.time.clone() - 1
    late[7] += 1
    given: dict[str, Any] = {"time_attr": "time", "seed": 0}
    make = gnnstore.LinkNeighborLoader
    for index in (None, timed.edge_index):
        with pytest.warns(UserWarning, match="edge_label_time of some seed edges"):
            make(timed.store, [2], index, edge_label_time=late, **given)
    strangers = random_pairs(400, 300, seed=9)
    known = set(map(tuple, timed.edge_index.T.tolist()))
    strangers = strangers[:, [tuple(pair) not in known for pair in strangers.T.tolist()]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(timed.store, [2], None, edge_label_time=timed.time - 1, **given)
        make(timed.store, [], None, edge_label_time=timed.time, **given)
        times = torch.full((strangers.size(1),), 2000)
        make(timed.store, [2], strangers, edge_label_time=times, **given)


def test_sampling_along_outgoing_edges_is_refused(timed: Data) -> None:
    for make in (gnnstore.NeighborLoader, gnnstore.LinkNeighborLoader):
        make(timed.store, [2], sample_direction="forward")
        with pytest.raises(UsageError, match="sample_direction='backward': gnnstore samples along"):
            make(timed.store, [2], sample_direction="backward")
        both = object.__new__(BidirectionalNeighborSampler)
        said = "neighbor_sampler=BidirectionalNeighborSampler: gnnstore samples along incoming"
        with pytest.raises(UsageError, match=said):
            make(timed.store, [2], neighbor_sampler=both)
