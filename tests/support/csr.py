"""Batches as CSR next to the same ones as COO."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gnnstore
from gnnstore.nn import AdjT
from gnnstore.testing import assert_same_batches
from gnnstore.testing.graphs import GraphArrays, random_graph

WIDTH = 6


def looped_graph() -> GraphArrays:
    """Return a graph with self-loops, parallel edges, nodes without edges, and edge weights."""
    graph = random_graph(300, 2400, seed=2, feature_dim=WIDTH, num_classes=3, skew=2.0)
    rng = np.random.default_rng(3)
    graph.edge_index[1, :200] = graph.edge_index[0, :200]
    graph.attributes["edge_weight"] = rng.random(2400, dtype=np.float32) + 0.5
    graph.attributes["edge_attr"] = rng.random((2400, 1))
    graph.attributes["edge_wide"] = rng.random((2400, 2))
    return graph


def batch_pair(path: Path, fanouts: list[int], **options: Any) -> tuple[Any, Any]:
    """Return the first batch of a loader with `edge_index`, and the same one with `adj_t`."""
    given: dict[str, Any] = {"batch_size": 40, "seed": 1, "strategy": "memory", "num_threads": 0}
    given |= options
    adj_value = given.pop("adj_value", None)
    coo = gnnstore.NeighborLoader(path, fanouts, **given)
    csr = gnnstore.NeighborLoader(path, fanouts, edge_format="csr", adj_value=adj_value, **given)
    return next(iter(coo)), next(iter(csr))


def edges_of(adj_t: AdjT) -> Tensor:
    """Return the edges of a matrix as `edge_index`."""
    targets = torch.arange(adj_t.size(0)).repeat_interleave(adj_t.crow_indices().diff())
    return torch.stack([adj_t.col_indices(), targets])


def indices_of(adj_t: AdjT) -> list[Tensor]:
    """Return all indices that can be taken out of a matrix."""
    found = [adj_t.crow_indices(), adj_t.col_indices()]
    found += [each for of in adj_t.transposes for each in (of.ptr, of.index)]
    plain, coo = adj_t * 1, adj_t.to_sparse_coo()  # type: ignore[no-untyped-call]
    return [*found, plain.crow_indices(), plain.col_indices(), coo.indices()]


def assert_sound(adj_t: AdjT, edge_index: Tensor, hops: Any = None) -> None:
    """Check a matrix and its transposes against `edge_index`, and hops (of nodes, of edges)."""
    assert torch.equal(edges_of(adj_t), edge_index)
    nodes, edges = hops or ([adj_t.size(1)], [])
    ends = (
        [edge_index.size(1), *np.cumsum(edges)[-2::-1].tolist()] if edges else [edge_index.size(1)]
    )
    assert len(adj_t.transposes) == len(ends)
    for layer, (end, each) in enumerate(zip(ends, adj_t.transposes, strict=True)):
        order = torch.argsort(edge_index[0, :end], stable=True)
        assert torch.equal(each.index, edge_index[1, :end][order].long())
        assert len(each.ptr) == sum(nodes[: len(nodes) - layer]) + 1
        found = [each.index[a:b].tolist() for a, b in pairwise(each.ptr.tolist())]
        assert sum(map(len, found)) == end
        if adj_t.has_values:
            assert each.values is not None
            assert torch.equal(each.values, adj_t.values()[:end][order])
        else:
            assert each.values is None
    assert {each.dtype for each in indices_of(adj_t)} == {torch.int64}


def assert_those_of(csr: Iterable[Any], coo: Iterable[Any], adj_value: str | None = None) -> None:
    """Check that two loaders give the same batches but for the format of edges."""
    count = 0
    for ours, theirs in zip(csr, coo, strict=True):
        count += 1
        assert (ours.num_nodes, ours.num_edges) == (theirs.num_nodes, theirs.num_edges)
        for given, expected in zip(ours.edge_stores, theirs.edge_stores, strict=True):
            kind = expected._key
            source, target = (
                (theirs, theirs) if kind is None else (theirs[kind[0]], theirs[kind[2]])
            )
            adj_t, edge_index = given.pop("adj_t"), expected.pop("edge_index")
            assert adj_t.size() == (target.num_nodes, source.num_nodes)
            assert adj_t.has_values == (adj_value in expected)
            if adj_t.has_values:
                assert torch.equal(adj_t.values(), expected.pop(adj_value).reshape(-1).float())
            hops = None
            if "num_sampled_edges" in expected:
                hops = (source.num_sampled_nodes, expected.num_sampled_edges)
            assert_sound(adj_t, edge_index, hops)
        assert_same_batches([ours.to_dict()], [theirs.to_dict()])
    assert count > 1
