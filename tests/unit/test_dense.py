"""DENSE computes, layer by layer over segments, what PyG's layers compute of the same batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

import gnnstore
from gnnstore.testing.graphs import random_graph
from tests.support.effort import examples


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    """Write a skewed graph with parallel edges, loops, and nodes without in-neighbours."""
    graph = random_graph(80, 240, seed=3, feature_dim=5, skew=2.0)
    assert (np.bincount(graph.edge_index[1], minlength=80) == 0).any()
    return gnnstore.open(graph.write(tmp_path_factory.mktemp("dense") / "graph"))


def layers_of(num_hops: int) -> list[SAGEConv]:
    torch.manual_seed(0)
    return [SAGEConv(5, 5, aggr="sum").double() for _ in range(num_hops)]


def by_segments(batch: Data, layers: list[SAGEConv]) -> Tensor:
    """Algorithm 4 of the paper: h = W_1 (sum of the segment) + W_2 (the node's own row)."""
    dense = gnnstore.batch_to_dense(batch)
    h = torch.cat(dense.blocks(batch.x.double()))
    for number, layer in enumerate(layers):
        if number:
            dense = dense.truncate()
        sums = torch.segment_reduce(h[dense.repr_map], "sum", offsets=dense.nbr_offsets)
        h = layer.lin_l(sums) + layer.lin_r(h[dense.node_id_offsets[1] :])
    return h


def by_pyg(batch: Data, layers: list[SAGEConv]) -> Tensor:
    x, edge_index = batch.x.double(), batch.edge_index
    for number, layer in enumerate(layers):
        x, edge_index, _ = trim_to_layer(
            number, batch.num_sampled_nodes, batch.num_sampled_edges, x, edge_index
        )
        x = layer(x, edge_index)
    seeds: Tensor = x[: batch.num_sampled_nodes[0]]
    return seeds


@settings(max_examples=examples(40), deadline=None)
@given(
    seeds=st.lists(st.integers(0, 79), min_size=1, max_size=12),
    fanouts=st.lists(st.sampled_from([-1, 0, 1, 2, 3]), min_size=1, max_size=4),
    disjoint=st.booleans(),
)
def test_layers_over_segments_equal_those_of_pyg(
    store: gnnstore.GraphStore, seeds: list[int], fanouts: list[int], disjoint: bool
) -> None:
    """Repeated seeds, nodes without neighbours, hops that find nothing are among the examples."""
    loader = gnnstore.NeighborLoader(
        store, fanouts, torch.tensor(seeds), batch_size=len(seeds), disjoint=disjoint, seed=1
    )
    (batch,) = loader
    layers = layers_of(len(fanouts))
    torch.testing.assert_close(
        by_segments(batch, layers), by_pyg(batch, layers), rtol=1e-6, atol=1e-6
    )


def test_every_node_has_the_neighbours_that_the_batch_has(store: gnnstore.GraphStore) -> None:
    loader = gnnstore.LinkNeighborLoader(store, [3, 2, 2], batch_size=16, neg_sampling="binary")
    batch = next(iter(loader))
    dense = gnnstore.batch_to_dense(batch)
    k = len(batch.num_sampled_edges)
    assert dense.node_id_offsets[-1] == len(batch.n_id)
    assert [len(block) for block in dense.blocks(batch.n_id)] == batch.num_sampled_nodes[::-1]
    assert torch.cat(dense.blocks(batch.n_id)).equal(dense.node_ids)
    seeds = dense.node_ids[dense.node_id_offsets[k] :]
    assert seeds.equal(batch.n_id[: batch.num_sampled_nodes[0]])

    source, target = batch.n_id[batch.edge_index]
    owners = dense.node_ids[dense.node_id_offsets[1] :]
    assert len(owners.unique()) == len(owners)
    for node, nbrs in zip(
        owners, dense.node_ids[dense.repr_map].tensor_split(dense.nbr_offsets[1:-1]), strict=True
    ):
        assert nbrs.equal(source[target == node])  # in this order


def test_blocks_are_views(store: gnnstore.GraphStore) -> None:
    batch = next(iter(gnnstore.NeighborLoader(store, [2, 2], batch_size=4)))
    x = batch.x
    storage = x.untyped_storage().data_ptr()
    dense = gnnstore.batch_to_dense(batch)
    assert all(block.untyped_storage().data_ptr() == storage for block in dense.blocks(x))
    assert (
        dense.truncate().node_ids.untyped_storage().data_ptr()
        == dense.node_ids.untyped_storage().data_ptr()
    )


def test_seeds_alone(store: gnnstore.GraphStore) -> None:
    dense = gnnstore.batch_to_dense(next(iter(gnnstore.NeighborLoader(store, [], batch_size=4))))
    assert dense.node_ids.tolist() == [0, 1, 2, 3]
    assert dense.node_id_offsets == (0, 4)
    assert dense.nbr_offsets.tolist() == [0]
    assert dense.repr_map.tolist() == []
    with pytest.raises(gnnstore.UsageError, match="a batch of k hops has k layers"):
        dense.truncate()


@pytest.mark.parametrize("subgraph_type", ["bidirectional", "induced"])
def test_other_subgraphs_are_refused(store: gnnstore.GraphStore, subgraph_type: str) -> None:
    loader = gnnstore.NeighborLoader(store, [2], batch_size=4, subgraph_type=subgraph_type)
    with pytest.raises(gnnstore.UsageError, match="subgraph_type='directional'"):
        gnnstore.batch_to_dense(next(iter(loader)))


def test_a_batch_that_a_transform_has_changed_is_refused(store: gnnstore.GraphStore) -> None:
    loader = gnnstore.NeighborLoader(store, [3, 3], batch_size=8, seed=0)
    batch = next(iter(loader))
    dense = gnnstore.batch_to_dense(batch)

    changed = (batch.edge_index[:, 1:], batch.edge_index.flip(0), batch.edge_index.flip(1))
    for edge_index in changed:
        other = batch.clone()
        other.edge_index = edge_index
        with pytest.raises(gnnstore.UsageError, match="before transforms that change its nodes"):
            gnnstore.batch_to_dense(other)
    with pytest.raises(gnnstore.UsageError, match="a row for each of the"):
        dense.blocks(batch.x[1:])
