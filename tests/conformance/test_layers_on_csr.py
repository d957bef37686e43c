"""PyG's layers on a batch as CSR: outputs and gradients equal those of `edge_index`.

A layer that differs from `edge_index` must equal what it gives on a plain matrix of torch's, with
int64 indices: that is PyG's own difference. All layers of PyG are here that take an `edge_index`,
but `SplineConv` and `PANConv`, which need other packages, and `MeshCNNConv`, for meshes only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import jinja2
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from tests.support.csr import WIDTH as W
from tests.support.csr import batch_pair, looped_graph
from tests.support.effort import choose

# Of matrices that PyG makes.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")

HEADS: dict[str, Any] = {"heads": 2, "concat": False}


def mlp(rows: int, columns: int = W) -> nn.Module:
    return nn.Sequential(nn.Linear(rows, columns), nn.Tanh())


class Given:
    """Inputs of layers besides x and edges, in the order of a batch's nodes and edges."""

    def __init__(self, num_nodes: int, num_edges: int, sources: Tensor, targets: Tensor) -> None:
        draws = torch.Generator().manual_seed(5)
        self.weight = torch.rand(num_edges, generator=draws) + 0.5
        self.attr = torch.rand(num_edges, 3, generator=draws)
        self.wide = torch.rand(num_edges, W, generator=draws)
        self.pos = torch.rand(num_nodes, 3, generator=draws)
        self.normal = nn.functional.normalize(torch.rand(num_nodes, 3, generator=draws))
        # Of an edge by its ends, so that no order of edges matters.
        self.kinds = (sources + targets) % 3
        self.node_kinds = torch.arange(num_nodes) % 2
        self.x_0 = torch.rand(num_nodes, W, generator=draws)
        self.degrees = torch.bincount(torch.bincount(targets, minlength=num_nodes))


# How a layer is called: the module, x, edges, and other inputs.
Call = Callable[[Any, Tensor, Any, Given], Any]


def plain(conv: Any, x: Tensor, edges: Any, _: Given) -> Any:
    return conv(x, edges)


def attr(conv: Any, x: Tensor, edges: Any, given: Given) -> Any:
    return conv(x, edges, edge_attr=given.attr)


def wide(conv: Any, x: Tensor, edges: Any, given: Given) -> Any:
    return conv(x, edges, edge_attr=given.wide)


def kinds(conv: Any, x: Tensor, edges: Any, given: Given) -> Any:
    return conv(x, edges, edge_type=given.kinds)


def pos(conv: Any, x: Tensor, edges: Any, given: Given) -> Any:
    return conv(x, given.pos, edges)


def x_0(conv: Any, x: Tensor, edges: Any, given: Given) -> Any:
    return conv(x, given.x_0, edges)


Layers = dict[str, tuple[Callable[[Given], Any], Call]]

EQUAL: Layers = {
    "SimpleConv": (lambda _: pyg.SimpleConv("mean"), plain),
    "SAGEConv": (lambda _: pyg.SAGEConv(W, W), plain),
    "SAGEConv, std": (lambda _: pyg.SAGEConv(W, W, aggr="std"), plain),
    "SAGEConv, lstm": (lambda _: pyg.SAGEConv(W, W, aggr="lstm"), plain),
    "SAGEConv, several": (lambda _: pyg.SAGEConv(W, W, aggr=["mean", "max", "softmax"]), plain),
    "GraphConv": (lambda _: pyg.GraphConv(W, W), plain),
    "GatedGraphConv": (lambda _: pyg.GatedGraphConv(W, 2), plain),
    "ResGatedGraphConv": (lambda _: pyg.ResGatedGraphConv(W, W), plain),
    "ResGatedGraphConv, attributes": (lambda _: pyg.ResGatedGraphConv(W, W, edge_dim=3), attr),
    "GATConv, no loops": (lambda _: pyg.GATConv(W, W, add_self_loops=False, **HEADS), plain),
    "GATConv, attributes": (
        lambda _: pyg.GATConv(W, W, edge_dim=3, add_self_loops=False, **HEADS),
        attr,
    ),
    "GATv2Conv, no loops": (lambda _: pyg.GATv2Conv(W, W, add_self_loops=False, **HEADS), plain),
    "TransformerConv": (lambda _: pyg.TransformerConv(W, W, **HEADS), plain),
    "TransformerConv, attributes": (lambda _: pyg.TransformerConv(W, W, 2, edge_dim=3), attr),
    "AGNNConv, no loops": (lambda _: pyg.AGNNConv(add_self_loops=False), plain),
    "TAGConv": (lambda _: pyg.TAGConv(W, W), plain),
    "TAGConv, no norm": (lambda _: pyg.TAGConv(W, W, normalize=False), plain),
    "GINConv": (lambda _: pyg.GINConv(mlp(W), train_eps=True), plain),
    "GINEConv": (lambda _: pyg.GINEConv(mlp(W)), wide),
    "APPNP, no norm": (lambda _: pyg.APPNP(2, 0.1, normalize=False), plain),
    "FastRGCNConv": (lambda _: pyg.FastRGCNConv(W, W, 3), kinds),
    "RGATConv": (lambda _: pyg.RGATConv(W, W, 3), kinds),
    "SignedConv": (
        lambda _: pyg.SignedConv(W, W, first_aggr=True),
        lambda conv, x, edges, _: conv(x, edges, edges),
    ),
    "PointNetConv": (lambda _: pyg.PointNetConv(mlp(W + 3)), pos),
    "PointNetConv, no loops": (lambda _: pyg.PointNetConv(mlp(W + 3), add_self_loops=False), pos),
    "GMMConv": (lambda _: pyg.GMMConv(W, W, 3, 2), attr),
    "NNConv": (lambda _: pyg.NNConv(W, W, nn.Linear(3, W * W)), attr),
    "CGConv": (lambda _: pyg.CGConv(W, 3), attr),
    "EdgeConv": (lambda _: pyg.EdgeConv(mlp(2 * W)), plain),
    "PPFConv": (
        lambda _: pyg.PPFConv(mlp(W + 4)),
        lambda conv, x, edges, given: conv(x, given.pos, given.normal, edges),
    ),
    "FeaStConv, no loops": (lambda _: pyg.FeaStConv(W, W, 2, add_self_loops=False), plain),
    "LEConv": (lambda _: pyg.LEConv(W, W), plain),
    "PNAConv": (
        lambda given: pyg.PNAConv(
            W, W, ["mean", "max", "std"], ["identity", "linear"], given.degrees
        ),
        plain,
    ),
    "GENConv": (lambda _: pyg.GENConv(W, W, learn_t=True), plain),
    "GENConv, powermean": (lambda _: pyg.GENConv(W, W, "powermean", learn_p=True), plain),
    "GCN2Conv, no norm": (lambda _: pyg.GCN2Conv(W, 0.1, normalize=False), x_0),
    "WLConv": (
        lambda _: pyg.WLConv(),
        lambda conv, x, edges, given: x * conv(given.node_kinds, edges)[:, None],
    ),
    "FiLMConv": (lambda _: pyg.FiLMConv(W, W), plain),
    "GeneralConv": (lambda _: pyg.GeneralConv(W, W), plain),
    "GeneralConv, attention": (lambda _: pyg.GeneralConv(W, W, attention=True, heads=2), plain),
    "HGTConv": (
        lambda _: pyg.HGTConv(W, W, (["n"], [("n", "to", "n")]), heads=2),
        lambda conv, x, edges, _: conv({"n": x}, {("n", "to", "n"): edges})["n"],
    ),
    "HEATConv": (
        lambda _: pyg.HEATConv(W, W, 2, 3, 4, 3, 4, **HEADS),
        lambda conv, x, edges, given: conv(x, edges, given.node_kinds, given.kinds, given.attr),
    ),
    "HeteroConv": (
        lambda _: pyg.HeteroConv(
            {("n", k, "n"): pyg.GATConv(W, W, add_self_loops=False) for k in "ab"}
        ),
        lambda conv, x, edges, _: conv({"n": x}, {("n", k, "n"): edges for k in "ab"})["n"],
    ),
    "HANConv": (
        lambda _: pyg.HANConv(W, W, (["n"], [("n", "to", "n")]), heads=2),
        lambda conv, x, edges, _: conv({"n": x}, {("n", "to", "n"): edges})["n"],
    ),
    "LGConv": (lambda _: pyg.LGConv(), plain),
    "LGConv, no norm": (lambda _: pyg.LGConv(normalize=False), plain),
    "PointGNNConv": (lambda _: pyg.PointGNNConv(mlp(W, 3), mlp(W + 3), mlp(W)), pos),
    "GPSConv": (lambda _: pyg.GPSConv(W, pyg.GATConv(W, W, add_self_loops=False)), plain),
}
# PyG puts loops on the nodes of a matrix, or norms it, in another way: the results are the same
# only without self-loops and parallel edges.
EQUAL_WITHOUT_LOOPS: Layers = {
    "GCNConv": (lambda _: pyg.GCNConv(W, W), plain),
    "GATConv": (lambda _: pyg.GATConv(W, W, **HEADS), plain),
    "GATv2Conv": (lambda _: pyg.GATv2Conv(W, W, **HEADS), plain),
    "AGNNConv": (lambda _: pyg.AGNNConv(), plain),
    "SGConv": (lambda _: pyg.SGConv(W, W), plain),
    "SSGConv": (lambda _: pyg.SSGConv(W, W, 0.1), plain),
    "APPNP": (lambda _: pyg.APPNP(2, 0.1), plain),
    "DNAConv": (
        lambda _: pyg.DNAConv(W, heads=2),
        lambda conv, x, edges, _: conv(torch.stack([x, x * 2], 1), edges),
    ),
    "FeaStConv": (lambda _: pyg.FeaStConv(W, W, 2), plain),
    "ClusterGCNConv": (lambda _: pyg.ClusterGCNConv(W, W), plain),
    "GCN2Conv": (lambda _: pyg.GCN2Conv(W, 0.1), x_0),
    "FAConv": (lambda _: pyg.FAConv(W), x_0),
    "EGConv": (lambda _: pyg.EGConv(W, 8), plain),
    "AntiSymmetricConv": (lambda _: pyg.AntiSymmetricConv(W), plain),
    "MixHopConv": (lambda _: pyg.MixHopConv(W, W), plain),
}
# PyG mixes up sources and targets of a matrix.
DIFFERENT: Layers = {
    "PointTransformerConv": (lambda _: pyg.PointTransformerConv(W, W), pos),
    "PDNConv": (lambda _: pyg.PDNConv(W, W, 3, 4), attr),
}
# PyG takes the matrix for an `edge_index`.
REFUSED: Layers = {
    "ChebConv": (lambda _: pyg.ChebConv(W, W, 3), plain),
    "ARMAConv": (lambda _: pyg.ARMAConv(W, W), plain),
    "MFConv": (lambda _: pyg.MFConv(W, W, 3), plain),
    "RGCNConv": (lambda _: pyg.RGCNConv(W, W, 3), kinds),
    "HypergraphConv": (lambda _: pyg.HypergraphConv(W, W), plain),
    "WLConvContinuous": (lambda _: pyg.WLConvContinuous(), plain),
    "FiLMConv, kinds": (lambda _: pyg.FiLMConv(W, W, 3), kinds),
    "SuperGATConv": (lambda _: pyg.SuperGATConv(W, W, **HEADS), plain),
    "DirGNNConv": (lambda _: pyg.DirGNNConv(pyg.SAGEConv(W, W)), plain),
}


class Edges(NamedTuple):
    """A batch in three formats."""

    x: Tensor
    edge_index: Tensor
    adj_t: Any
    plain: Tensor
    given: Given


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Edges]:
    graph = looped_graph()
    ends, kept = np.unique(graph.edge_index, axis=1, return_index=True)
    kept = kept[ends[0] != ends[1]]
    simple = dataclasses.replace(
        graph, edge_index=graph.edge_index[:, kept], attributes={"x": graph.attributes["x"]}
    )
    found = {}
    for name, each in (("loops", graph), ("simple", simple)):
        path = each.write(tmp_path_factory.mktemp(name) / "s.gnn")
        coo, csr = batch_pair(path, [4, 3])
        adj_t = csr.adj_t
        plain = torch.sparse_csr_tensor(
            adj_t.crow_indices(),
            adj_t.col_indices(),
            torch.ones(coo.num_edges),
            adj_t.size(),
            check_invariants=False,
        )
        given = Given(coo.num_nodes, coo.num_edges, *coo.edge_index)
        found[name] = Edges(coo.x, coo.edge_index, adj_t, plain, given)
    return found


@pytest.fixture(scope="module", autouse=True)
def _parsed_once() -> Iterator[None]:
    """PyG parses its template of a layer's code anew for each class, most of the time here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jinja2.Environment, "compile", cache(jinja2.Environment.compile))
        # The first one that is made decides for its class whether all multiply with a matrix.
        pyg.SAGEConv(W, W)
        yield


def results(layer: tuple[Any, Call], edges: Any, batch: Edges) -> list[Tensor]:
    """Return the output, and the gradients of x and of all parameters."""
    make, call = layer
    torch.manual_seed(0)
    conv, x = make(batch.given), batch.x.clone().requires_grad_()
    out = call(conv, x, edges, batch.given)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    gradients = [x.grad, *(each.grad for each in conv.parameters())]
    return [out.detach(), *(each for each in gradients if each is not None)]


def are_close(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))
        for a, b in zip(ours, theirs, strict=True)
    )


def some(layers: Layers) -> list[str]:
    """Return the names of layers; in `make test` every fourth one."""
    return [*layers][:: choose(4, 1)]


@pytest.mark.parametrize("name", some(EQUAL))
def test_outputs_and_gradients_are_equal(name: str, batches: dict[str, Edges]) -> None:
    for batch in batches.values():
        expected = results(EQUAL[name], batch.edge_index, batch)
        assert are_close(results(EQUAL[name], batch.adj_t, batch), expected)


@pytest.mark.parametrize("name", some(EQUAL_WITHOUT_LOOPS))
def test_they_are_equal_without_loops(name: str, batches: dict[str, Edges]) -> None:
    layer, batch = EQUAL_WITHOUT_LOOPS[name], batches["simple"]
    assert are_close(results(layer, batch.adj_t, batch), results(layer, batch.edge_index, batch))
    assert_own_difference(layer, batches["loops"])


@pytest.mark.parametrize("name", DIFFERENT)
def test_differences_are_those_of_pyg(name: str, batches: dict[str, Edges]) -> None:
    for batch in batches.values():
        assert_own_difference(DIFFERENT[name], batch)


def assert_own_difference(layer: tuple[Any, Call], batch: Edges) -> None:
    found, expected = results(layer, batch.adj_t, batch), results(layer, batch.plain, batch)
    assert are_close(found, expected)
    assert not are_close(found, results(layer, batch.edge_index, batch))


@pytest.mark.parametrize("name", some(REFUSED))
def test_what_pyg_refuses(name: str, batches: dict[str, Edges]) -> None:
    batch = batches["simple"]
    results(REFUSED[name], batch.edge_index, batch)
    for edges in (batch.adj_t, batch.plain):
        with pytest.raises((RuntimeError, IndexError)):
            results(REFUSED[name], edges, batch)
