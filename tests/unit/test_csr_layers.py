"""PyG's layers on a batch as CSR: outputs and gradients are those of `edge_index`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Linear
from torch_geometric.nn import GCNConv, GINConv, GraphConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from gnnstore.errors import UsageError
from gnnstore.nn import AdjT, gcn_norm, trim
from tests.support.csr import WIDTH, batch_pair, edges_of, looped_graph
from tests.support.effort import choose, paired

LAYERS: dict[str, Callable[[], Any]] = {
    "SAGE, mean": lambda: SAGEConv(WIDTH, WIDTH),
    "SAGE, sum": lambda: SAGEConv(WIDTH, WIDTH, aggr="sum"),
    "SAGE, max": lambda: SAGEConv(WIDTH, WIDTH, aggr="max"),
    "SAGE, min": lambda: SAGEConv(WIDTH, WIDTH, aggr="min"),
    "SAGE with projection": lambda: SAGEConv(WIDTH, WIDTH, project=True),
    "GIN": lambda: GINConv(Linear(WIDTH, WIDTH)),
    "GraphConv": lambda: GraphConv(WIDTH, WIDTH),
    "GraphConv, mean": lambda: GraphConv(WIDTH, WIDTH, aggr="mean"),
    "GCN": lambda: GCNConv(WIDTH, WIDTH, normalize=False),
}
BATCHES: dict[str, tuple[list[int], dict[str, Any]]] = {
    "trees": ([4, 3, 2], {}),
    "repeated edges": ([4, 3], {"replace": True}),
    "all neighbours": ([-1, -1], {}),
    "disjoint": ([4, 3], {"disjoint": True}),
    "induced": ([4, 3], {"subgraph_type": "induced"}),
    "bidirectional": ([4, 3], {"subgraph_type": "bidirectional"}),
    "hops without edges": ([3, 0, 2], {}),
    "no edges": ([0], {}),
    "no hops": ([], {}),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return looped_graph().write(tmp_path_factory.mktemp("csr") / "s.gnn")


def mm(adj_t: Tensor, x: Tensor, reduce: str) -> Tensor:
    product: Tensor = torch.sparse.mm(adj_t, x, reduce)
    return product


def layers_of(make: Callable[[], Any], depth: int) -> Any:
    torch.manual_seed(0)
    return torch.nn.ModuleList(make() for _ in range(depth))


def results(layers: Any, forward: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Return the output, and the gradients of x and of all parameters."""
    layers.zero_grad()
    given = x.clone().requires_grad_()
    out = forward(given)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    (out * weights).sum().backward()
    of_parameters = [p.grad for p in layers.parameters() if p.grad is not None]
    return [out, *([] if given.grad is None else [given.grad]), *of_parameters]


def assert_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "layer"), paired(BATCHES, LAYERS, 1))
def test_layers_equal_those_of_edge_index(path: Path, layer: str, kind: str) -> None:
    fanouts, options = BATCHES[kind]
    coo, csr = batch_pair(path, fanouts, **options)
    layers = layers_of(LAYERS[layer], max(1, len(fanouts)))

    def forward(edges: Tensor) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            for conv in layers:
                x = conv(x, edges)
            return x

        return run

    expected = results(layers, forward(coo.edge_index), coo.x)
    assert_close(results(layers, forward(csr.adj_t), csr.x), expected)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize(
    ("layer", "kind"),
    paired(LAYERS, ["trees", "repeated edges", "disjoint", "hops without edges"]),
)
def test_trimmed_layers_equal_those_of_edge_index(
    path: Path, layer: str, kind: str, pairs: bool
) -> None:
    if pairs and layer.startswith("GCN"):
        pytest.skip("GCN takes no pairs")
    fanouts, options = BATCHES[kind]
    coo, csr = batch_pair(path, fanouts, **options)
    layers = layers_of(LAYERS[layer], len(fanouts))

    def of_coo(x: Tensor) -> Tensor:
        edges = coo.edge_index
        for i, conv in enumerate(layers):
            x, edges, _ = trim_to_layer(i, coo.num_sampled_nodes, coo.num_sampled_edges, x, edges)
            x = conv(x, edges)
        return x[: coo.batch_size]

    def of_csr(x: Any) -> Any:
        adj_t = csr.adj_t
        for i, conv in enumerate(layers):
            x, adj_t, _ = trim(
                i, csr.num_sampled_nodes, csr.num_sampled_edges, x, adj_t, pairs=pairs
            )
            assert len(adj_t.transposes) == len(fanouts) - i
            x = conv(x, adj_t)
        assert not pairs or len(x) == csr.batch_size
        return x[: csr.batch_size]

    assert_close(results(layers, of_csr, csr.x), results(layers, of_coo, coo.x))


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize(("kind", "adj_value"), paired(BATCHES, [None, "edge_weight"], 1))
def test_norm_of_gcn_equals_that_of_edge_index(
    path: Path, kind: str, adj_value: str | None, trims: bool
) -> None:
    fanouts, options = BATCHES[kind]
    if trims and "subgraph_type" in options:
        pytest.skip("there are no hops to trim")
    if adj_value is not None and kind == "all neighbours":
        pytest.skip("parallel self-loops of different weights, of which PyG takes any")
    coo, csr = batch_pair(path, fanouts, adj_value=adj_value, **options)
    weights = None if adj_value is None else coo.edge_weight
    depth = max(1, len(fanouts))
    plain, normed = (
        layers_of(partial(GCNConv, WIDTH, WIDTH, normalize=norm), depth) for norm in (True, False)
    )

    def of_coo(x: Tensor) -> Tensor:
        edges, of_edges = coo.edge_index, weights
        for i, conv in enumerate(plain):
            if trims:
                hops = (coo.num_sampled_nodes, coo.num_sampled_edges)
                x, edges, of_edges = trim_to_layer(i, *hops, x, edges, of_edges)
            x = conv(x, edges, of_edges)
        return x[: coo.batch_size]

    def of_csr(x: Tensor) -> Tensor:
        adj_t = csr.adj_t
        for i, conv in enumerate(normed):
            if trims:
                hops = (csr.num_sampled_nodes, csr.num_sampled_edges)
                x, adj_t, _ = trim(i, *hops, x, adj_t)
            x = conv(x, gcn_norm(adj_t))
        return x[: csr.batch_size]

    assert_close(results(normed, of_csr, csr.x), results(plain, of_coo, coo.x))


def test_values_are_the_weights_of_edges(path: Path) -> None:
    coo, csr = batch_pair(path, [4, 3], adj_value="edge_weight")
    layers = layers_of(LAYERS["GraphConv"], 2)

    def of_coo(x: Tensor) -> Tensor:
        for conv in layers:
            x = conv(x, coo.edge_index, coo.edge_weight)
        return x

    def of_csr(x: Tensor) -> Tensor:
        for conv in layers:
            x = conv(x, csr.adj_t)
        return x

    assert_close(results(layers, of_csr, csr.x), results(layers, of_coo, coo.x))
    # SAGE ignores weights next to `edge_index`, and multiplies by the values of a matrix.
    mean = SAGEConv(WIDTH, WIDTH)
    assert not torch.allclose(mean(csr.x, csr.adj_t), mean(coo.x, coo.edge_index), atol=1e-2)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # of PyG's own matrix
def test_plain_norm_of_gcn_differs_on_loops(path: Path) -> None:
    """Why `gcn_norm` exists: PyG adds a second loop to a node that has one."""
    coo, csr = batch_pair(path, [-1, -1])
    conv = GCNConv(WIDTH, WIDTH)
    expected = conv(coo.x, coo.edge_index)
    assert not torch.allclose(conv(csr.x, csr.adj_t), expected, atol=1e-2)


@pytest.mark.parametrize(
    ("dtype", "reduce"),
    paired([torch.float16, torch.bfloat16, torch.float64], ["sum", "mean", "max"]),
)
@pytest.mark.parametrize("adj_value", [None, "edge_weight"])
def test_values_are_of_the_type_of_x(
    path: Path, reduce: str, dtype: torch.dtype, adj_value: str | None
) -> None:
    _, csr = batch_pair(path, [4, 3], adj_value=adj_value)
    layers = layers_of(LAYERS["GIN"], 0)

    def product(x: Tensor) -> Tensor:
        return mm(csr.adj_t, x, reduce)

    found = results(layers, product, csr.x.to(dtype))
    assert {each.dtype for each in found} == {dtype}
    for a, b in zip(found, results(layers, product, csr.x.to(dtype).float()), strict=True):
        torch.testing.assert_close(a.float(), b, rtol=2e-2, atol=5e-2)


def test_autocast_gives_what_edge_index_gives(path: Path) -> None:
    coo, csr = batch_pair(path, [4, 3])
    layers = layers_of(LAYERS["SAGE, mean"], 2)

    def forward(edges: Tensor) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                for conv in layers:
                    x = conv(x, edges)
                return x

        return run

    ours, theirs = (results(layers, forward(edges), coo.x) for edges in (csr.adj_t, coo.edge_index))
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("adj_value", [*choose([], [None]), "edge_weight"])
@pytest.mark.parametrize("reduce", [*choose([], ["sum"]), "mean"])
def test_gradients_of_gradients(path: Path, reduce: str, adj_value: str | None) -> None:
    _, csr = batch_pair(path, [2, 2], batch_size=3, adj_value=adj_value)
    x = csr.x[:, :2].double().requires_grad_()

    def product(x: Tensor) -> Tensor:
        return mm(csr.adj_t, x, reduce)

    assert torch.autograd.gradcheck(product, (x,))
    assert torch.autograd.gradgradcheck(product, (x,))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("adj_value", [None, "edge_weight"])
def test_without_transposes_gradients_are_the_same(
    path: Path, reduce: str, adj_value: str | None
) -> None:
    _, csr = batch_pair(path, [4, 3], adj_value=adj_value)
    adj_t, layers = csr.adj_t, layers_of(LAYERS["GIN"], 0)
    values = adj_t.values() if adj_value else None
    bare = AdjT(adj_t.crow_indices(), adj_t.col_indices(), values, size=adj_t.size())
    ours, theirs = (
        results(layers, partial(mm, adj, reduce=reduce), csr.x) for adj in (adj_t, bare)
    )
    assert_close(ours, theirs)


def test_trimming_takes_attributes_of_edges(path: Path) -> None:
    coo, csr = batch_pair(path, [4, 3, 2])
    hops = (csr.num_sampled_nodes, csr.num_sampled_edges)
    for layer in range(3):
        x, adj_t, attr = trim(layer, *hops, csr.x, csr.adj_t, csr.edge_attr)
        expected: Any = (coo.x, coo.edge_index, coo.edge_attr)
        for i in range(layer + 1):
            expected = trim_to_layer(i, *hops, *expected)
        assert torch.equal(x, expected[0])
        named = trim(
            layer=layer,
            num_sampled_nodes_per_hop=hops[0],
            num_sampled_edges_per_hop=hops[1],
            x=csr.x,
            edge_index=csr.adj_t,
        )
        assert torch.equal(edges_of(named[1]), edges_of(adj_t)), "PyG's keywords"
        assert torch.equal(edges_of(adj_t), expected[1])
        assert torch.equal(attr, expected[2])
        assert adj_t.size() == (len(x), len(x))


def test_trimming_by_type(path: Path) -> None:
    """Nodes of two types, and edges to each of them."""
    num_nodes = {"a": [2, 1, 2], "b": [0, 2, 1]}
    num_edges = {("a", "x", "a"): [1, 2], ("b", "y", "a"): [2, 1], ("a", "z", "b"): [0, 2]}
    edges = {
        ("a", "x", "a"): torch.tensor([[2, 3, 4], [0, 2, 2]]),
        ("b", "y", "a"): torch.tensor([[0, 1, 2], [0, 1, 2]]),
        ("a", "z", "b"): torch.tensor([[0, 4], [0, 1]]),
    }
    x = {"a": torch.randn(5, 2), "b": torch.randn(3, 2)}
    attr = {kind: torch.arange(index.size(1)) for kind, index in edges.items()}
    adj_t: Any = {}
    for kind, (sources, targets) in edges.items():
        size = (len(x[kind[2]]), len(x[kind[0]]))
        crow = torch.searchsorted(targets.contiguous(), torch.arange(size[0] + 1))
        adj_t[kind] = AdjT(crow.int(), sources.int(), size=size)
    for layer in range(2):
        ours = trim(layer, num_nodes, num_edges, x, adj_t, attr)
        theirs = trim_to_layer(layer, num_nodes, num_edges, x, edges, attr)
        for name, rows in theirs[0].items():
            assert torch.equal(ours[0][name], rows)
        for kind, index in theirs[1].items():
            assert torch.equal(edges_of(ours[1][kind]), index)
            assert ours[1][kind].size() == (len(ours[0][kind[2]]), len(ours[0][kind[0]]))
            assert torch.equal(ours[2][kind], theirs[2][kind])


def test_what_cannot_be_trimmed_is_refused(path: Path) -> None:
    coo, csr = batch_pair(path, [4, 3])
    hops = (csr.num_sampled_nodes, csr.num_sampled_edges)
    with pytest.raises(UsageError, match="sampled hop by hop"):
        trim(0, None, None, csr.x, csr.adj_t)
    with pytest.raises(UsageError, match="layer 3 of a batch of 2 hops"):
        trim(3, *hops, csr.x, csr.adj_t)
    with pytest.raises(UsageError, match="trim_to_layer"):
        trim(1, *hops, coo.x, coo.edge_index)
    with pytest.raises(UsageError, match="narrowed, as by PyG"):
        trim_to_layer(1, *hops, csr.x, csr.adj_t)
    with pytest.raises(UsageError, match="trim before gcn_norm"):
        trim(1, *hops, csr.x, gcn_norm(csr.adj_t))
    with pytest.raises(UsageError, match="pairs=True"):
        trim(1, *hops, {}, {}, pairs=True)
    _, adj_t, _ = trim(0, *hops, csr.x, csr.adj_t, pairs=True)
    with pytest.raises(UsageError, match="trim without pairs"):
        gcn_norm(adj_t)


# torch 2.7 has a slow `scatter_add_` under `vmap`, which PyG calls, and says so.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_transformations_of_torch_func(path: Path, reduce: str) -> None:
    coo, csr = batch_pair(path, [4, 3])
    conv = SAGEConv(WIDTH, WIDTH, aggr=reduce)

    def loss(params: Any, x: Tensor, edges: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(conv, params, (x, edges))
        return out.square().sum()

    params, xs = dict(conv.named_parameters()), torch.stack([csr.x, 2 * csr.x])
    jvp: Any = torch.func.jvp
    transforms: list[Any] = [
        lambda edges: torch.func.grad(loss)(params, csr.x, edges)["lin_l.weight"],
        lambda edges: torch.vmap(lambda x: conv(x, edges))(xs),
        lambda edges: torch.vmap(torch.func.grad(lambda x: loss(params, x, edges)))(xs),
        lambda edges: jvp(lambda x: conv(x, edges), (csr.x,), (csr.x,))[1],
    ]
    for transform in transforms:
        assert_close([transform(csr.adj_t)], [transform(coo.edge_index)])
    with pytest.raises(UsageError, match=r'the max over neighbours .* edge_format="coo"'):
        torch.func.grad(lambda x: mm(csr.adj_t, x, "max").sum())(csr.x)
    with pytest.raises(UsageError, match=r'to_dense of an AdjT .* edge_format="coo"'):
        torch.func.grad(lambda x: (csr.adj_t.to_dense() @ x).sum())(csr.x)
