"""With full fan-outs nothing is random, so every batch can be written down from PyG's contract."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import gnnstore
from gnnstore.converters import from_pyg

N, E, B = 60, 240, 8
ENDS = ("src_index", "dst_pos_index", "dst_neg_index")

pytestmark = pytest.mark.usefixtures("way_of_reading")


def make_data(index_dtype: torch.dtype = torch.int64, *, coalesced: bool = True) -> Data:
    """Return a graph with attributes of every kind, isolated nodes and self-loops."""
    rng = np.random.default_rng(3)
    pairs = rng.integers(0, N - 5, (2, E))  # the last five nodes are isolated
    if coalesced:
        pairs = np.unique(pairs, axis=1)
    num_edges = pairs.shape[1]
    data = Data(
        x=torch.from_numpy(rng.random((N, 7), dtype=np.float32)),
        y=torch.from_numpy(rng.integers(0, 5, N)),
        edge_index=torch.from_numpy(pairs).to(index_dtype),
        edge_attr=torch.from_numpy(rng.random((num_edges, 3))),
    )
    data.h = torch.from_numpy(rng.random((N, 2, 3), dtype=np.float32)).to(torch.bfloat16)
    data.tag = torch.from_numpy(rng.integers(-100, 100, N).astype(np.int8))
    data.train_mask = torch.from_numpy(rng.random(N) < 0.5)
    data.anchor_index = torch.from_numpy(rng.integers(0, 9, (2, N)))  # rows along the last axis
    data.edge_weight = torch.from_numpy(rng.random(num_edges, dtype=np.float32)).to(torch.float16)
    data.edge_type = torch.from_numpy(rng.integers(0, 3, num_edges).astype(np.uint8))
    data.prototypes = torch.from_numpy(rng.random((4, 2)))
    data.name = "reference"
    data.depth = 3
    return data


@dataclass
class Reference:
    """A sampled subgraph, grown one edge at a time."""

    n_id: list[int] = field(default_factory=list)
    trees: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    cols: list[int] = field(default_factory=list)
    e_id: list[int] = field(default_factory=list)
    nodes_per_hop: list[int] = field(default_factory=list)
    edges_per_hop: list[int] = field(default_factory=list)


def in_edges(data: Data) -> list[list[tuple[int, int]]]:
    """Return for each node its in-edges (source, edge id), in the order of a column."""
    columns: list[list[tuple[int, int]]] = [[] for _ in range(int(data.num_nodes or 0))]
    for edge, (source, target) in enumerate(data.edge_index.t().tolist()):
        columns[target].append((source, edge))
    return [sorted(column) for column in columns]


def sample_all(data: Data, seeds: list[int], num_hops: int, *, disjoint: bool = False) -> Reference:
    columns = in_edges(data)
    found = Reference(n_id=list(seeds), trees=list(range(len(seeds))))
    local: dict[tuple[int, int], int] = {}
    for i, seed in enumerate(seeds):
        local.setdefault((i if disjoint else 0, seed), i)
    found.nodes_per_hop.append(len(seeds))
    begin, end = 0, len(seeds)
    for _ in range(num_hops):
        num_edges = len(found.e_id)
        for target in range(begin, end):
            for source, edge in columns[found.n_id[target]]:
                key = (found.trees[target] if disjoint else 0, source)
                if key not in local:
                    local[key] = len(found.n_id)
                    found.n_id.append(source)
                    found.trees.append(found.trees[target])
                found.rows.append(local[key])
                found.cols.append(target)
                found.e_id.append(edge)
        begin, end = end, len(found.n_id)
        found.nodes_per_hop.append(end - begin)
        found.edges_per_hop.append(len(found.e_id) - num_edges)
    return found


def induce(data: Data, found: Reference) -> None:
    """Replace the edges by all edges between the nodes, by target and column order."""
    columns = in_edges(data)
    local: dict[int, int] = {}
    for i, node in enumerate(found.n_id):
        local.setdefault(node, i)
    edges = [
        (local[source], target, edge)
        for target, node in enumerate(found.n_id)
        for source, edge in columns[node]
        if source in local
    ]
    found.rows, found.cols, found.e_id = (list(column) for column in zip(*edges, strict=True))


def check_attributes(batch: Data, data: Data, *, has_num_nodes: bool = False) -> None:
    """Every attribute: gathered by node or edge id, or passed through; and no others."""
    assert data.edge_index is not None
    n_id, e_id = batch.n_id.to(torch.int64), batch.e_id
    for name in data.keys():  # noqa: SIM118 - Data iterates over pairs
        value = data[name]
        if name == "num_nodes":
            continue
        if name == "edge_index":
            assert batch.edge_index.dtype == value.dtype
        elif isinstance(value, Tensor) and data.is_node_attr(name):
            same(batch[name], value.index_select(data.__cat_dim__(name, value), n_id))
        elif isinstance(value, Tensor) and data.is_edge_attr(name):
            same(batch[name], value.index_select(data.__cat_dim__(name, value), e_id))
        elif isinstance(value, Tensor):
            same(batch[name], value)
        else:
            assert batch[name] == value
    added = {"n_id", "e_id", "input_id", "batch_size", "batch"}
    added |= {"num_sampled_nodes", "num_sampled_edges"}
    assert set(batch.keys()) <= set(data.keys()) | added
    assert ("num_nodes" in batch.keys()) == has_num_nodes  # noqa: SIM118 - not `in batch`
    assert batch.num_nodes == len(n_id)


def same(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.is_contiguous()
    assert torch.equal(found, expected)


def batches_of(order: list[int]) -> Iterator[list[int]]:
    for first in range(0, len(order), B):
        yield order[first : first + B]


@pytest.fixture(scope="module")
def data() -> Data:
    return make_data()


@pytest.fixture(scope="module")
def store(data: Data, tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    return gnnstore.open(from_pyg(data, tmp_path_factory.mktemp("reference") / "s.gnn"))


MASK = torch.zeros(N, dtype=torch.bool)
MASK[[0, 3, 4, 17, 18, 19, 30, 41, 55, 58]] = True
INDEX = torch.tensor([7, 3, 59, 22, 1, 54, 9, 30, 31, 2, 12])


@pytest.mark.parametrize("topology", ["memory", "mmap"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("given", ["mask", "index", "all"])
@pytest.mark.parametrize("num_hops", [0, 1, 2, 3])
def test_directional(  # noqa: PLR0917
    store: gnnstore.GraphStore,
    data: Data,
    way_of_reading: Any,
    topology: str,
    shuffle: bool,
    given: str,
    num_hops: int,
) -> None:
    input_nodes = {"mask": MASK, "index": INDEX, "all": None}[given]
    loader = gnnstore.NeighborLoader(
        store,
        [-1] * num_hops,
        input_nodes,
        batch_size=B,
        shuffle=shuffle,
        topology="memory" if way_of_reading.strategy == "memory" else topology,
        seed=11,
        num_threads=2,
    )
    seeds = {"mask": MASK.nonzero().view(-1), "index": INDEX, "all": torch.arange(N)}[given]
    order = list(range(len(seeds)))
    batches = list(loader)
    if shuffle:  # any order will do, but each seed once: told by input_id
        ids = torch.cat([batch.input_id for batch in batches])
        order = [seeds.tolist().index(i) for i in ids] if given == "mask" else ids.tolist()
        assert sorted(order) == list(range(len(seeds)))
        assert order != sorted(order)
    for batch, positions in zip(batches, batches_of(order), strict=True):
        expected = sample_all(data, seeds[positions].tolist(), num_hops)
        assert batch.n_id.tolist() == expected.n_id
        assert batch.edge_index.tolist() == [expected.rows, expected.cols]
        assert batch.e_id.tolist() == expected.e_id
        assert batch.num_sampled_nodes == expected.nodes_per_hop
        assert batch.num_sampled_edges == expected.edges_per_hop
        assert type(batch.num_sampled_nodes) is type(batch.num_sampled_edges) is list
        assert type(batch.batch_size) is int
        assert batch.batch_size == len(positions)
        shown = seeds[positions] if given == "mask" else torch.tensor(positions)
        assert torch.equal(batch.input_id, shown)
        assert {batch.n_id.dtype, batch.e_id.dtype, batch.input_id.dtype} == {torch.int64}
        assert "batch" not in batch
        check_attributes(batch, data)


def test_int32_stays_int32(tmp_path: Path) -> None:
    """Where a store was asked for it, and with a warning: layers may be wrong on it."""
    data = make_data(torch.int32)
    path = from_pyg(data, tmp_path / "s.gnn", index_dtype="int32")
    links: dict[str, Any] = {"neg_sampling": "triplet", "seed": 0}
    for make in (
        partial(gnnstore.NeighborLoader, path, [-1, -1], INDEX, batch_size=B),
        partial(gnnstore.LinkNeighborLoader, path, [-1], batch_size=200, **links),
    ):
        with pytest.warns(UserWarning, match='Convert with index_dtype="int64"') as found:
            loader = make()
        assert [each.filename for each in found] == [__file__]
        for batch in loader:
            assert batch.n_id.dtype == batch.edge_index.dtype == torch.int32
            ends = [batch.pop(name) for name in ENDS if name in batch]
            assert {ids.dtype for ids in (batch.e_id, batch.input_id, *ends)} == {torch.int64}
            check_attributes(batch, data)
        make(edge_format="csr")  # gives int64 in any case


def test_num_nodes_is_there_if_the_source_has_it(tmp_path: Path) -> None:
    data = make_data()
    data.num_nodes = N
    store = gnnstore.open(from_pyg(data, tmp_path / "s.gnn"))
    for batch in gnnstore.NeighborLoader(store, [-1, -1], INDEX, batch_size=B):
        check_attributes(batch, data, has_num_nodes=True)


def test_edges_that_repeat_keep_the_order_of_the_input(tmp_path: Path) -> None:
    data = make_data(coalesced=False)
    data.edge_index = torch.cat([data.edge_index[:, :200], data.edge_index[:, :40]], dim=1)
    store = gnnstore.open(from_pyg(data, tmp_path / "s.gnn"))
    for batch, seeds in zip(
        gnnstore.NeighborLoader(store, [-1, -1], batch_size=B),
        batches_of(list(range(N))),
        strict=True,
    ):
        expected = sample_all(data, seeds, 2)
        assert batch.n_id.tolist() == expected.n_id
        assert batch.edge_index.tolist() == [expected.rows, expected.cols]
        assert batch.e_id.tolist() == expected.e_id
        check_attributes(batch, data)


def test_seeds_that_repeat(store: gnnstore.GraphStore, data: Data) -> None:
    seeds = [5, 5, 9, 5, 30, 9, 1, 1]
    (batch,) = gnnstore.NeighborLoader(store, [-1, -1], seeds, batch_size=B)
    expected = sample_all(data, seeds, 2)
    assert batch.n_id.tolist() == expected.n_id
    assert batch.edge_index.tolist() == [expected.rows, expected.cols]
    assert batch.e_id.tolist() == expected.e_id
    assert batch.num_sampled_nodes == expected.nodes_per_hop
    assert batch.batch_size == 8
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    check_attributes(batch, data)


@pytest.mark.parametrize("seeds", [[5, 30, 9, 1], [5, 5, 9]])
def test_disjoint(store: gnnstore.GraphStore, data: Data, seeds: list[int]) -> None:
    (batch,) = gnnstore.NeighborLoader(store, [-1, -1], seeds, disjoint=True, batch_size=B)
    expected = sample_all(data, seeds, 2, disjoint=True)
    assert batch.n_id.tolist() == expected.n_id
    assert batch.batch.tolist() == expected.trees
    assert batch.batch.dtype == torch.int64
    assert batch.edge_index.tolist() == [expected.rows, expected.cols]
    assert batch.e_id.tolist() == expected.e_id
    assert batch.num_sampled_nodes == expected.nodes_per_hop
    assert batch.num_sampled_edges == expected.edges_per_hop
    check_attributes(batch, data)


def test_induced(store: gnnstore.GraphStore, data: Data) -> None:
    loader = gnnstore.NeighborLoader(store, [-1], INDEX, subgraph_type="induced", batch_size=B)
    for batch, positions in zip(loader, batches_of(list(range(len(INDEX)))), strict=True):
        expected = sample_all(data, INDEX[positions].tolist(), 1)
        num_chosen = len(expected.e_id)
        induce(data, expected)
        assert len(expected.e_id) > num_chosen
        assert batch.n_id.tolist() == expected.n_id
        assert batch.edge_index.tolist() == [expected.rows, expected.cols]
        assert batch.e_id.tolist() == expected.e_id
        assert "num_sampled_nodes" not in batch
        assert "num_sampled_edges" not in batch
        check_attributes(batch, data)


def test_bidirectional(store: gnnstore.GraphStore, data: Data) -> None:
    loader = gnnstore.NeighborLoader(
        store, [-1, -1], INDEX, subgraph_type="bidirectional", batch_size=B
    )
    for batch, positions in zip(loader, batches_of(list(range(len(INDEX)))), strict=True):
        expected = sample_all(data, INDEX[positions].tolist(), 2)
        chosen = set(zip(expected.cols, expected.rows, strict=True))
        both = sorted(chosen | {(source, target) for target, source in chosen})
        assert batch.n_id.tolist() == expected.n_id
        assert batch.edge_index.t().tolist() == [[source, target] for target, source in both]
        # The id of an edge is its own, or that of the edge it was made the reverse of.
        ends = batch.n_id[batch.edge_index].sort(dim=0).values
        assert torch.equal(ends, data.edge_index[:, batch.e_id].sort(dim=0).values)
        assert "num_sampled_nodes" not in batch
        assert "num_sampled_edges" not in batch
        check_attributes(batch, data)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("fanouts", [[3, 2], [1], [2, -1, 2], [5, 0, 5], [1000, 1]])
def test_invariants_of_finite_fanouts(
    store: gnnstore.GraphStore, data: Data, fanouts: list[int], disjoint: bool, replace: bool
) -> None:
    columns = in_edges(data)
    loader = gnnstore.NeighborLoader(
        store, fanouts, INDEX, replace=replace, disjoint=disjoint, batch_size=B, seed=4
    )
    for batch in loader:
        seeds = INDEX[batch.input_id]
        num_nodes = batch.num_sampled_nodes
        assert batch.n_id[: batch.batch_size].tolist() == seeds.tolist()
        assert len(num_nodes) == len(fanouts) + 1
        assert len(batch.num_sampled_edges) == len(fanouts)
        assert (sum(num_nodes), num_nodes[0]) == (len(batch.n_id), batch.batch_size)
        assert sum(batch.num_sampled_edges) == batch.edge_index.shape[1] == len(batch.e_id)
        trees = batch.batch.tolist() if disjoint else [0] * len(batch.n_id)
        keys = list(zip(trees, batch.n_id.tolist(), strict=True))
        assert len(set(keys)) == len(keys), "a node stands in a batch (or tree) once"
        rows, cols = batch.edge_index.tolist()
        assert cols == sorted(cols)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        for target, source in zip(cols, rows, strict=True):
            assert trees[target] == trees[source]

        # Hop by hop: who is expanded, how often, and that each is reached from the hop before.
        ends = np.cumsum([0, *num_nodes]).tolist()
        edge_ends = np.cumsum([0, *batch.num_sampled_edges]).tolist()
        newest = batch.batch_size
        for hop, fanout in enumerate(fanouts):
            hop_edges = slice(edge_ends[hop], edge_ends[hop + 1])
            for target in range(ends[hop], ends[hop + 1]):
                ids = [
                    e
                    for e, c in zip(batch.e_id[hop_edges].tolist(), cols[hop_edges], strict=True)
                    if c == target
                ]
                degree = len(columns[int(batch.n_id[target])])
                if fanout == -1:
                    assert len(ids) == degree
                elif replace:
                    assert len(ids) == (fanout if degree else 0)
                else:
                    assert len(ids) == min(fanout, degree)
                if not replace or fanout == -1:
                    assert len(set(ids)) == len(ids)
            assert all(ends[hop] <= c < ends[hop + 1] for c in cols[hop_edges])
            for source in rows[hop_edges]:  # local ids are given in the order of discovery
                assert source <= newest
                newest = max(newest, source + 1)
            assert newest == ends[hop + 2]
        check_attributes(batch, data)
