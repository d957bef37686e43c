"""Inference layer by layer equals the model on the whole graph in memory."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

pytest.importorskip("torch_geometric")

from torch_geometric.data import Data
from torch_geometric.nn import (
    APPNP,
    BatchNorm,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    GraphConv,
    LGConv,
    PairNorm,
    PNAConv,
    SAGEConv,
    SGConv,
    TransformerConv,
)
from torch_geometric.nn.models import GAT, GCN, GIN, MLP, GraphSAGE

import gnnstore
from gnnstore.converters import from_numpy, from_ogb, from_pyg
from gnnstore.errors import (
    BudgetError,
    CorruptStoreError,
    NoSpaceError,
    NotFoundError,
    StorageError,
    StoreExistsError,
    UsageError,
    storage_error,
)
from gnnstore.formats import Schema, StoreWriter
from gnnstore.formats.container.workdir import find_leftovers
from gnnstore.layerwise import run as inference_run
from gnnstore.layerwise.layers import describe, read_layers
from gnnstore.layerwise.result import Embeddings
from gnnstore.progress import NullProgress
from gnnstore.testing.graphs import GraphArrays, random_graph
from gnnstore.units import parse_size
from tests.support.effort import choose, is_long, paired
from tests.support.graphs import read_store

NUM_FEATURES, HIDDEN, NUM_CLASSES = 20, 16, 5
# So small that a graph of a thousand nodes takes many blocks: an engine's buffers come on top.
SMALL = 400_000


class Notes(NullProgress):
    """Keeps what is said of each layer."""

    def __init__(self) -> None:
        self.stats: list[dict[str, Any]] = []
        self.texts: list[str] = []

    def note(self, text: str, facts: Any = None) -> None:
        self.texts.append(text)
        if facts:
            self.stats.append(dict(facts))


def on_whole_graph(layers: Any, x: Tensor, edges: Tensor, **data: Tensor) -> Tensor:
    """Run a model as PyTorch Geometric does."""
    with torch.no_grad():
        if isinstance(layers, torch.nn.Module):
            return layers.eval()(x, edges, **data)  # type: ignore[no-any-return]
        for layer in layers:
            if isinstance(layer, torch.nn.Module):
                layer.eval()
            is_conv = hasattr(layer, "propagate")
            x = layer(x, edges, **data) if is_conv else layer(x)
    return x


def tensors_of(graph: GraphArrays) -> tuple[Tensor, Tensor]:
    """Return the features and the edges of a graph."""
    return torch.from_numpy(graph.attributes["x"]), torch.from_numpy(graph.edge_index)


def awkward_graph(num_nodes: int) -> GraphArrays:
    """Draw a graph with hubs, parallel edges, self-loops and nodes without edges."""
    graph = random_graph(num_nodes, num_nodes * 15 // 2, feature_dim=NUM_FEATURES, skew=2.0)
    edges = graph.edge_index % (num_nodes - 50)  # the last 50 have none
    loops = np.tile(np.arange(0, 200, 2), (2, 1))
    edges = np.concatenate([edges, loops, loops[:, :20], edges[:, :500]], axis=1)
    rng = np.random.default_rng(0)
    weights = rng.random((edges.shape[1],), dtype=np.float32)
    vectors = rng.random((edges.shape[1], 3), dtype=np.float32)
    data: dict[str, NDArray[Any]]
    data = {"x": graph.attributes["x"], "edge_weight": weights, "edge_attr": vectors}
    data["y"] = np.arange(num_nodes)
    return GraphArrays(num_nodes, edges, data)


@pytest.fixture(scope="module")
def graph() -> GraphArrays:
    return awkward_graph(1200)


@pytest.fixture(scope="module")
def path(graph: GraphArrays, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graph.write(tmp_path_factory.mktemp("inference") / "a.gnn")


@pytest.fixture(autouse=True)
def _small_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave small budgets to blocks: what engines, writers and packing take is the same always."""
    monkeypatch.setattr(inference_run.InferenceRun, "_reservations", lambda *_: ())
    torch.manual_seed(0)


def convolutions() -> dict[str, Callable[[], Any]]:
    f, h, c = NUM_FEATURES, HIDDEN, NUM_CLASSES
    mlp = torch.nn.Linear
    return {
        "SAGE": lambda: [SAGEConv(f, h), torch.relu, SAGEConv(h, c)],
        "SAGE max": lambda: [SAGEConv(f, h, aggr="max"), torch.relu, SAGEConv(h, c, project=True)],
        "GCN": lambda: [GCNConv(f, h), torch.nn.ReLU(), GCNConv(h, c, improved=True)],
        "GCN without loops": lambda: [GCNConv(f, h, add_self_loops=False), GCNConv(h, c)],
        "GCN not normalised": lambda: [GCNConv(f, c, normalize=False)],
        "GCN cached": lambda: [GCNConv(f, c, cached=True)],
        "LGConv": lambda: [LGConv(), LGConv()],
        "GAT": lambda: [GATConv(f, 4, heads=4), torch.nn.ELU(), GATConv(h, c)],
        "GATv2": lambda: [GATv2Conv(f, 4, heads=4, add_self_loops=False), GATv2Conv(h, c)],
        "GIN": lambda: [GINConv(mlp(f, h)), GINConv(mlp(h, c), train_eps=True)],
        "GraphConv": lambda: [GraphConv(f, c)],
        "Transformer": lambda: [TransformerConv(f, c)],
        "row by row": lambda: [mlp(f, h), torch.tanh, SAGEConv(h, h), BatchNorm(h), mlp(h, c)],
        "a Sequential": lambda: [torch.nn.Sequential(mlp(f, h), torch.nn.ReLU()), SAGEConv(h, c)],
        "no edges": lambda: [mlp(f, h), torch.relu, mlp(h, c)],
        "models.GraphSAGE": lambda: GraphSAGE(f, h, 3, c, dropout=0.5, norm="batch_norm"),
        "models.GCN": lambda: GCN(f, h, 2, c, act_first=True, norm="batch_norm"),
        "models.GAT": lambda: GAT(f, h, 2, c, heads=2, jk="last"),
        "models.GIN": lambda: GIN(f, h, 2, c),
    }


# In `make test` not those whose steps another one has, or `test_inference_kept` tries.
LONG = ["SAGE", "GCN without loops", "GCN not normalised", "GATv2", "models.GAT", "models.GIN"]
NAMES = [name for name in convolutions() if is_long() or name not in LONG]


def least_memory(layers: Any, path: Path, output: Path) -> int:
    """Return the least budget, by the message that names it."""
    with pytest.raises(BudgetError, match="raise memory= by at least") as info:
        gnnstore.inference(layers, path, output, memory=1000)
    return 1000 + parse_size(str(info.value).split("by at least ")[1].split(",")[0])


@pytest.fixture(scope="module")
def small_graph() -> GraphArrays:
    return awkward_graph(choose(300, 1200))


@pytest.fixture(scope="module")
def small_path(small_graph: GraphArrays, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_graph.write(tmp_path_factory.mktemp("small") / "a.gnn")


@pytest.mark.parametrize(
    ("name", "times_least"),
    # Without edges there is no least: a row at a time fits in next to nothing.
    [
        (name, times)
        for name, times in paired(NAMES, choose([4, None], [1, 2, None]), 1)
        if name != "no edges" or times is None
    ],
)
def test_equals_the_whole_graph(
    small_graph: GraphArrays, small_path: Path, name: str, times_least: int | None, tmp_path: Path
) -> None:
    layers, path = convolutions()[name](), small_path
    x, edges = tensors_of(small_graph)
    notes = Notes()
    memory = times_least * least_memory(layers, path, tmp_path / "out") if times_least else 10**9
    found = gnnstore.inference(layers, path, tmp_path / "out", memory=memory, progress=notes)
    assert isinstance(found, Embeddings)
    expected = on_whole_graph(layers, x, edges)
    # Sums over the edges of a hub are rounded as the largest of what they add.
    atol = 1e-5 * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found.tensor(), expected, atol=atol, rtol=1e-5)
    if times_least:
        assert max(stats["num_blocks"] for stats in notes.stats) > 2
    else:
        assert all(stats["num_blocks"] == 1 for stats in notes.stats)
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


def test_weighted_edges(graph: GraphArrays, path: Path, tmp_path: Path) -> None:
    x, edges = tensors_of(graph)
    weights = torch.from_numpy(graph.attributes["edge_weight"])
    # Of parallel self-loops with different weights PyTorch Geometric keeps any one.
    loops = edges[0] == edges[1]
    weights[loops] = edges[0, loops].float() / 100 + 0.5
    data = {**graph.attributes, "edge_weight": weights.numpy()}
    store = GraphArrays(graph.num_nodes, graph.edge_index, data).write(tmp_path / "w.gnn")
    others: list[Any] = [
        [GraphConv(NUM_FEATURES, HIDDEN), LGConv()],
        GCN(NUM_FEATURES, HIDDEN, 2, 3),
    ]
    for layers in (
        [GCNConv(NUM_FEATURES, HIDDEN), torch.relu, GCNConv(HIDDEN, 3, improved=True)],
        *choose((), others),
    ):
        found = gnnstore.inference(layers, store, edge_weight="edge_weight", memory=SMALL)
        expected = on_whole_graph(layers, x, edges, edge_weight=weights)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_edges_with_attributes(small_graph: GraphArrays, small_path: Path) -> None:
    x, edges = tensors_of(small_graph)
    vectors = torch.from_numpy(small_graph.attributes["edge_attr"])
    layers = [GATConv(NUM_FEATURES, 8, edge_dim=3), GATv2Conv(8, 4, edge_dim=3)]
    # Nodes without edges of their own get an empty mean, and parallel self-loops are dropped.
    found = gnnstore.inference(layers, small_path, edge_attr="edge_attr", memory=SMALL // 4)
    expected = on_whole_graph(layers, x, edges, edge_attr=vectors)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_functions_of_ones_own(graph: GraphArrays, path: Path) -> None:
    weight = torch.randn(NUM_FEATURES, 4)

    def sums(x: tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
        rows = x[0] @ weight
        out = x[1] @ weight
        return out.index_add(0, edge_index[1], rows[edge_index[0]])

    x, edges = tensors_of(graph)
    found = gnnstore.inference([sums, lambda rows: rows * 2], path, memory=SMALL)
    torch.testing.assert_close(found, 2 * sums((x, x), edges), atol=1e-4, rtol=1e-5)
    alone = gnnstore.inference(sums, path, dtype=torch.float16)
    assert isinstance(alone, Tensor)
    assert alone.dtype == torch.float16
    torch.testing.assert_close(alone.float(), sums((x, x), edges), atol=1e-1, rtol=1e-2)


def test_ids_are_listed_a_part_of_the_bitmap_at_a_time(
    graph: GraphArrays, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnstore.layerwise.blocks.LISTED_BYTES", 8)
    layers = [SAGEConv(NUM_FEATURES, 3)]
    found = gnnstore.inference(layers, path, memory=SMALL)
    x, edges = tensors_of(graph)
    torch.testing.assert_close(found, on_whole_graph(layers, x, edges), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", torch.float64, None])
@pytest.mark.parametrize("stored", ["float16", "float64", "uint8"])
def test_types(tmp_path: Path, dtype: Any, stored: str) -> None:
    graph = random_graph(400, 3000, seed=2)
    x = np.random.default_rng(0).integers(0, 4, (400, 8)).astype(stored)
    store = GraphArrays(400, graph.edge_index, {"x": x}).write(tmp_path / "t.gnn")
    layers = [SAGEConv(8, 8), SAGEConv(8, 3)]
    found = gnnstore.inference(layers, store, tmp_path / "out", dtype=dtype, memory=SMALL)
    assert isinstance(found, Embeddings)
    assert found.spec.dtype == str(dtype or "float32").removeprefix("torch.")
    expected = on_whole_graph(
        layers, torch.from_numpy(x).float(), torch.from_numpy(graph.edge_index)
    )
    atol = {"float16": 1e-2, "bfloat16": 6e-2}.get(found.spec.dtype, 1e-5)
    torch.testing.assert_close(found.tensor().float(), expected, atol=atol, rtol=atol)


@pytest.mark.long("a drawn graph is tried in both")
@pytest.mark.parametrize(
    ("kind", "data"),
    paired(["gat", *choose((), ("sage max", "sage", "gcn", "gin"))], ["cora", "facebook"], 1),
)
def test_real_graphs(data: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if data == "cora":
        store = from_ogb(request.getfixturevalue("cora_directory"), tmp_path / "s.gnn")
    else:
        store = from_numpy(request.getfixturevalue("facebook_npz"), tmp_path / "s.gnn")
    stored = read_store(store)
    x, edges = torch.from_numpy(stored.attributes["x"]), torch.from_numpy(stored.edge_index)
    f, h, c = x.shape[1], HIDDEN, 7
    layers: Sequence[Any] = {
        "sage": lambda: [SAGEConv(f, h), torch.relu, SAGEConv(h, c)],
        "sage max": lambda: [SAGEConv(f, h, aggr="max"), torch.relu, SAGEConv(h, c, aggr="max")],
        "gcn": lambda: [GCNConv(f, h), torch.relu, GCNConv(h, c)],
        "gin": lambda: [GINConv(torch.nn.Linear(f, h)), torch.relu, GINConv(torch.nn.Linear(h, c))],
        "gat": lambda: [GATConv(f, 8, heads=2), torch.relu, GATConv(h, c)],
    }[kind]()
    found = gnnstore.inference(layers, store, memory="20MB")
    torch.testing.assert_close(found, on_whole_graph(layers, x, edges), atol=1e-5, rtol=1e-5)


def test_the_result_can_be_opened(graph: GraphArrays, path: Path, tmp_path: Path) -> None:
    layers = [SAGEConv(NUM_FEATURES, 6)]
    output = tmp_path / "embeddings"
    found = gnnstore.inference(layers, path, output, memory="1GB")
    again = gnnstore.open_embeddings(output)
    assert repr(again) == f"Embeddings({str(output)!r}, float32, shape=[1200, 6])"
    assert len(again) == 1200
    whole = again.read()
    np.testing.assert_array_equal(again[[5, 3, 5]], whole[[5, 3, 5]])
    rows: list[NDArray[Any]] = [part for _, part in again.scan()]
    np.testing.assert_array_equal(np.concatenate(rows), whole)
    assert gnnstore.verify(output).ok
    assert again.provenance["store"] == gnnstore.open(path).reader.uuid
    mapped = gnnstore.inference(layers, path, tmp_path / "e.npy", memory="1GB")
    np.testing.assert_array_equal(mapped, whole)
    np.testing.assert_array_equal(np.load(tmp_path / "e.npy"), whole)
    assert isinstance(found, Embeddings)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["e.npy", "embeddings"]
    with pytest.raises(StoreExistsError, match=r"e\.npy exists.*overwrite=True"):
        gnnstore.inference(layers, path, tmp_path / "e.npy")
    with pytest.raises(StoreExistsError, match="exists"):
        gnnstore.inference(layers, path, output)
    with pytest.raises(UsageError, match=r"not as \.parquet; name .*e\.npy, or a directory"):
        gnnstore.inference(layers, path, tmp_path / "e.parquet")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["e.npy", "embeddings"]
    gnnstore.inference(layers, path, tmp_path / "e.npy", overwrite=True)
    gnnstore.inference(layers, path, output, overwrite=True)
    with pytest.raises(NotFoundError, match="not one that inference has written"):
        gnnstore.open_embeddings(path)
    with StoreWriter(tmp_path / "other") as writer:
        writer.commit(Schema((), ()), {})
    with pytest.raises(NotFoundError, match="not one that inference has written"):
        gnnstore.open_embeddings(tmp_path / "other")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again)).read(), whole)  # noqa: S301


def test_modules_are_as_they_were(path: Path) -> None:
    model = GraphSAGE(NUM_FEATURES, 8, 2, 3, dropout=0.5, norm="batch_norm").train()
    model.convs[0].eval()
    conv = GCNConv(NUM_FEATURES, 3, cached=True)
    state = torch.get_rng_state()
    gnnstore.inference(model, path)
    gnnstore.inference([conv], path)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert not model.convs[0].training
    assert conv.normalize
    assert conv.cached
    assert conv._cached_edge_index is None


@pytest.mark.parametrize("weighted", [False, True])
def test_degrees_are_as_exact_as_the_rows(
    graph: GraphArrays, tmp_path: Path, weighted: bool
) -> None:
    wide = graph.attributes["x"].astype(np.float64)
    attributes = {**graph.attributes, "x": wide}
    store = GraphArrays(graph.num_nodes, graph.edge_index, attributes).write(tmp_path / "w.gnn")
    conv = GCNConv(NUM_FEATURES, 3).double()
    edges = torch.from_numpy(graph.edge_index)
    data: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if weighted:
        data["edge_weight"] = torch.from_numpy(graph.attributes["edge_weight"]).double()
        options["edge_weight"] = "edge_weight"
    with torch.no_grad():
        expected = conv(torch.from_numpy(wide), edges, **data)
    found = gnnstore.inference([conv], store, **options)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [APPNP, SGConv])
def test_what_is_refused_leaves_no_graph_in_its_cache(
    graph: GraphArrays, path: Path, kind: type
) -> None:
    """Of the trial graph: the user's next result would be of that."""
    args: tuple[Any, ...] = (2, 0.1) if kind is APPNP else (NUM_FEATURES, 3, 2)
    conv = kind(*args, cached=True).eval()
    with pytest.raises(UsageError, match="not layer-wise"):
        gnnstore.inference([conv], path)
    assert conv.cached
    x, edges = tensors_of(graph)
    found = conv(x, edges)
    conv.cached, conv._cached_edge_index, conv._cached_x = False, None, None
    assert torch.equal(found, conv(x, edges))


def test_modules_with_a_forward_of_their_own(graph: GraphArrays, path: Path) -> None:
    """Are called, or refused: never taken apart as if they were the base."""

    class Softmax(GraphSAGE):  # type: ignore[misc]
        def forward(self, *args: Any) -> Any:
            return super().forward(*args).log_softmax(-1)

    class Residual(torch.nn.Sequential):
        def forward(self, rows: Any) -> Any:
            return rows + super().forward(rows)  # type: ignore[no-untyped-call]

    hooked = GraphSAGE(NUM_FEATURES, 8, 2, 3)
    hooked.register_forward_hook(lambda *args: args[-1] * 2)
    for model in (Softmax(NUM_FEATURES, 8, 2, 3), hooked):
        with pytest.raises(UsageError, match=r"a forward\(\) of its own, or hooks"):
            gnnstore.inference(model, path)
    twice = torch.nn.Sequential(torch.nn.Linear(8, 8))
    twice.register_forward_hook(lambda *args: args[-1] * 2)
    conv = SAGEConv(NUM_FEATURES, 8)
    x, edges = tensors_of(graph)
    with torch.no_grad():
        for rows in (Residual(torch.nn.Linear(8, 8), torch.nn.ReLU()), twice):
            expected = rows(conv(x, edges))
            torch.testing.assert_close(gnnstore.inference([conv, rows], path), expected)


class Scaled(torch.nn.Module):
    """Keeps a number wherever modules can."""

    def __init__(self, place: str, number: float) -> None:
        super().__init__()
        self.values = [number if place == "list" else 1.0]
        self.plain = torch.tensor(number if place == "tensor" else 1.0)
        self._hidden = number if place == "hidden" else 1.0
        buffered = torch.tensor(number if place == "buffer" else 1.0)
        self.register_buffer("buffered", buffered, persistent=False)

    def __repr__(self) -> str:
        return "Scaled()"

    def forward(self, rows: Tensor) -> Tensor:
        return rows * self.values[0] * self._hidden * self.plain * self.get_buffer("buffered")


@pytest.mark.parametrize("place", ["list", "tensor", "hidden", "buffer"])
def test_another_model_is_not_what_an_attempt_is_resumed_with(place: str) -> None:
    one, other = (describe(read_layers([Scaled(place, k)])[0]) for k in (1.0, 2.0))
    assert one != other
    assert one == describe(read_layers([Scaled(place, 1.0)])[0])
    assert json.loads(json.dumps(one)) == one


def test_the_parts_of_a_model_are_told_apart() -> None:
    degrees = torch.tensor([1, 2, 3])
    for one, other in (
        (MLP([4, 4, 4], act="relu"), MLP([4, 4, 4], act="silu")),
        (partial(torch.clamp, max=1), partial(torch.clamp, max=2)),
        (
            PNAConv(4, 4, ["mean"], ["amplification"], degrees),
            PNAConv(4, 4, ["mean"], ["attenuation"], degrees),
        ),
    ):
        settings = [describe(read_layers([each])[0])[0]["settings"] for each in (one, other)]
        assert settings[0] != settings[1]


class Killed(BaseException):
    """Ends a run as a kill would: nothing is tidied up."""


Left = tuple[Path, Path, NDArray[Any]]


@pytest.fixture
def left(graph: GraphArrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Left:
    """Return a store, a file and its rows; killed while it removed those it was copied from."""
    store, output = graph.write(tmp_path / "g.gnn"), tmp_path / "e.npy"

    def killed(self: Embeddings) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Embeddings, "remove", killed)
        with pytest.raises(Killed):
            gnnstore.inference([torch.relu], store, output)
    rows = output.with_name(f".{output.name}.rows")
    assert [(found.path, found.state) for found in find_leftovers(output.parent)] == [
        (rows, "resumable")
    ]
    return store, output, np.load(output)


def goes_on(left: Left, *, resume: bool = True, overwrite: bool = False) -> None:
    """Run again, and check the result and that nothing else is left."""
    store, output, expected = left
    options = {"resume": resume, "overwrite": overwrite}
    found = gnnstore.inference([torch.relu], store, output, **options)  # type: ignore[call-overload]
    np.testing.assert_array_equal(found, expected)
    assert sorted(path.name for path in output.parent.iterdir()) == ["e.npy", "g.gnn"]


def test_a_file_comes_from_rows_that_are_finished(left: Left, tmp_path: Path) -> None:
    (tmp_path / "..e.npy.rows.tmp-0123abcd").mkdir()  # of an attempt that began anew
    left[1].unlink()
    goes_on(left)


def test_a_file_is_not_replaced_by_finished_rows(left: Left) -> None:
    store, output, expected = left
    with pytest.raises(StoreExistsError, match="exists; choose another output"):
        gnnstore.inference([torch.relu], store, output, resume=True)
    np.testing.assert_array_equal(np.load(output), expected)
    goes_on(left, overwrite=True)


@pytest.mark.parametrize("is_brief", [False, True])
def test_rows_that_somebody_holds_are_not_computed_again(
    left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_brief: bool
) -> None:
    """A process at work is left alone; `gnnstore gc` only measures, and is waited for."""
    store, output, _ = left
    output.unlink()
    lock = os.open(tmp_path / ".e.npy.rows", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def sleep(_: float) -> None:
        if is_brief:
            fcntl.flock(lock, fcntl.LOCK_UN)

    def never(*_: object) -> None:
        raise AssertionError("rows are computed again")

    monkeypatch.setattr("gnnstore.formats.container.workdir.time.sleep", sleep)
    monkeypatch.setattr("gnnstore.layerwise.api._to_directory", never)
    try:
        if is_brief:
            goes_on(left)
        else:
            with pytest.raises(UsageError, match="another process is at work there right now"):
                gnnstore.inference([torch.relu], store, output, resume=True)
            assert (tmp_path / ".e.npy.rows" / "zarr.json").exists()
    finally:
        os.close(lock)


def test_what_inference_reads_or_did_not_write_is_never_replaced(
    graph: GraphArrays, tmp_path: Path
) -> None:
    store = graph.write(tmp_path / "g.gnn")
    link = tmp_path / "link"
    link.symlink_to(store)
    for output in (store, link):
        with pytest.raises(UsageError, match="is the store to be read"):
            gnnstore.inference([torch.relu], store, output, overwrite=True)
    (other := tmp_path / ".e.npy.rows").mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(StoreExistsError, match=r"\.e\.npy\.rows exists, which is where rows lie"):
        gnnstore.inference([torch.relu], store, tmp_path / "e.npy")
    (tmp_path / "d.npy").mkdir()
    with pytest.raises(UsageError, match="is a directory"):
        gnnstore.inference([torch.relu], store, tmp_path / "d.npy", overwrite=True)
    assert gnnstore.open(store).num_edges > 0
    assert (other / "notes.txt").exists()
    assert not list((tmp_path / "d.npy").iterdir())


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([SGConv(NUM_FEATURES, 3, K=2)], r"layer 1 \(SGConv\) is not layer-wise"),
        ([SAGEConv(NUM_FEATURES, 3), APPNP(2, 0.1)], r"layer 2 \(APPNP\) is not layer-wise"),
        ([SAGEConv(NUM_FEATURES, 3), PairNorm()], r"layer 1 \(SAGEConv\) is not layer-wise"),
        ([SAGEConv(NUM_FEATURES, 3), torch.nn.functional.dropout], "not layer-wise.*random"),
        (GCN(NUM_FEATURES, 8, 2, 3, norm="layer_norm"), r"layer 1 \(GCNConv\) is not layer-wise"),
        ([SAGEConv(7, 3)], r"layer 1 \(SAGEConv\) fails on rows of 20 float32"),
        ([GINEConv(torch.nn.Linear(NUM_FEATURES, 3))], "name an attribute: edge_attr="),
        ([SAGEConv(NUM_FEATURES, 3), lambda x: x.argmax(-1)], "gives|not layer-wise|fails"),
        (GraphSAGE(NUM_FEATURES, 8, 2, 3, jk="cat"), "jk='cat'.*layer by layer"),
        ([SAGEConv(-1, 3)], "without a shape as yet"),
        ([PairNorm()], r"layer 1 \(PairNorm\) is not layer-wise"),
        ([lambda x, edges: x[1] * x[0].mean() * len(edges)], "is not layer-wise"),
        ([lambda x, edges: x[0][: len(edges) - 1]], r"it gives \[1, 20\] for 40 nodes"),
        (
            [SAGEConv(NUM_FEATURES, 3), lambda x: x[:50]],
            r"\(SAGEConv\) fails on 1,024 rows of zeros .* it gives \[50, 3\] for 1,024 nodes",
        ),
        (
            [lambda x: x.to(torch.int8)],
            "gives int8, but rows are written as one of float16",
        ),
        ([], "no layer to run"),
        (["SAGE"], r"layers\[0\] is a str"),
    ],
    ids=[
        "two hops",
        "ten hops",
        "statistics",
        "norm",
        "random",
        "width",
        "edge data",
        "labels",
        "jk",
        "lazy",
        "statistics alone",
        "statistics of sources",
        "few rows",
        "few rows in the end",
        "integers",
        "",
        "str",
    ],
)
def test_models_that_are_refused(path: Path, layers: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gnnstore.inference(layers, path)


def test_options_that_are_refused(path: Path, tmp_path: Path) -> None:
    layers = [SAGEConv(NUM_FEATURES, 3)]
    for options, error, message in (
        ({"edge_weight": "edge_weight"}, UsageError, "no layer takes.*'edge_weight'"),
        ({"edge_attr": "nothing"}, NotFoundError, "no edge attribute 'nothing'"),
        ({"input": "z"}, NotFoundError, "no node attribute 'z'"),
        ({"dtype": "int8"}, UsageError, "written as one of float16"),
        ({"memory": "much"}, UsageError, "not a size"),
        ({"device": "nope"}, UsageError, "device='nope'"),
        ({"output": ""}, UsageError, "expected the name of a file or directory"),
        ({"resume": True}, UsageError, "need an output="),
        ({"output": tmp_path / "a.npy", "dtype": "bfloat16"}, UsageError, "no bfloat16"),
        ({"output": tmp_path / "no" / "a"}, NotFoundError, "does not exist"),
        ({"input": "y"}, UsageError, r"input='y': layers take rows \[N, F\].* the shape \[1200\]"),
    ):
        with pytest.raises(error, match=message):
            gnnstore.inference(layers, path, **options)
    with pytest.raises(UsageError, match=r"gives rows without elements"):
        gnnstore.inference([lambda x: x[:, :0]], path)
    assert list(tmp_path.iterdir()) == []


def test_budgets_that_are_too_small(path: Path, tmp_path: Path) -> None:
    layers = [SAGEConv(NUM_FEATURES, 3)]
    with pytest.raises(
        BudgetError, match=r"(?s)node \d+ with its \d+ in-neighbours.*at least"
    ) as info:
        gnnstore.inference(layers, path, tmp_path / "a", memory=10_000)
    least = 10_000 + parse_size(str(info.value).split("by at least ")[1].split(",")[0])
    assert gnnstore.inference(layers, path, tmp_path / "b", memory=least) is not None
    assert [item.name for item in tmp_path.iterdir()] == ["b"]
    with pytest.raises(
        BudgetError, match=r"(?s)in memory does not fit.* needs 14400 bytes.* 14\.4 kB of rows"
    ):
        gnnstore.inference(layers, path, memory=5_000)


def test_rows_that_a_layer_widens(tmp_path: Path) -> None:
    """Parts of the table are counted as wide as they become."""
    rng = np.random.default_rng(0)
    edges = torch.from_numpy(rng.integers(0, 500, (2, 3000)))
    data = Data(x=torch.rand(500, 1), edge_index=edges, num_nodes=500)
    layers = [GCNConv(1, 64)]
    found = gnnstore.inference(layers, from_pyg(data, tmp_path / "s.gnn"), memory="64MB")
    with torch.no_grad():
        torch.testing.assert_close(torch.as_tensor(found), layers[0](data.x, edges))


def test_a_disk_that_is_too_small(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnstore.formats.base.files.free_bytes", lambda _: 1000)
    with pytest.raises(NoSpaceError, match=r"and 1 kB are free\. Free .* narrower rows"):
        gnnstore.inference([SAGEConv(NUM_FEATURES, 3)], path, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", [2**30, 1205])  # in the last word of a bitmap, too
def test_a_damaged_graph(graph: GraphArrays, tmp_path: Path, source: int) -> None:
    store = graph.write(tmp_path / "d.gnn")
    (shard,) = store.glob("edges/*/indices/c.0")
    with shard.open("r+b") as file:
        file.seek(400)
        file.write(np.array([source], np.int32).tobytes())
    with pytest.raises(CorruptStoreError, match=r"indices/c\.0: bytes 0-\d+ are damaged"):
        gnnstore.inference([SAGEConv(NUM_FEATURES, 3)], store, tmp_path / "a", memory=SMALL)


def test_pointers_that_descend(graph: GraphArrays, tmp_path: Path) -> None:
    store = graph.write(tmp_path / "d.gnn")
    (shard,) = store.glob("edges/*/indptr/c.0")
    with shard.open("r+b") as file:
        file.seek(8 * 700)
        file.write(bytes(8))
    with pytest.raises(CorruptStoreError, match=r"indptr/c\.0: bytes 0-\d+ are damaged"):
        gnnstore.inference([SAGEConv(NUM_FEATURES, 3)], store, tmp_path / "a", memory="10MB")


@pytest.mark.parametrize(
    "failing", choose(["replace", "commit"], ["save", "replace", "killed", "commit"])
)
def test_what_fails_at_the_end_is_all_that_is_done_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    layers = [SAGEConv(NUM_FEATURES, 4), SAGEConv(4, 3)]
    whole: Any = gnnstore.inference(layers, path)
    output = tmp_path / ("e" if failing == "commit" else "e.npy")

    def full(*_: Any) -> None:
        raise storage_error(OSError(errno.ENOSPC, "no space"), "write", output)

    def refused(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    def killed(_: Embeddings, unfinished: Path) -> None:
        unfinished.write_bytes(b"the first bytes")
        raise KeyboardInterrupt

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    fault: dict[str, tuple[Any, str, Any]] = {
        "save": (Embeddings, "save_npy", full),
        "replace": (Path, "replace", refused),
        "killed": (Embeddings, "save_npy", killed),
        "commit": (StoreWriter, "commit", interrupted),
    }
    message = {
        "save": "no space left",
        "replace": r"cannot write the embeddings: .*e\.npy: P",
    }.get(failing)
    with monkeypatch.context() as patch:
        patch.setattr(*fault[failing])
        with pytest.raises(StorageError if message else KeyboardInterrupt, match=message):
            gnnstore.inference(layers, path, output)
    assert not output.exists()
    monkeypatch.setattr(inference_run, "run_pass", None)
    found: Any = gnnstore.inference(layers, path, output, resume=True)
    np.testing.assert_array_equal(found.read() if failing == "commit" else found, whole)
    assert [item.name for item in tmp_path.iterdir()] == [output.name]


@pytest.mark.parametrize(
    ("num_nodes", "num_edges"), [(0, 0), *choose((), ((1, 0), (70, 0))), (1, 3)]
)
def test_graphs_of_next_to_nothing(tmp_path: Path, num_nodes: int, num_edges: int) -> None:
    graph = random_graph(num_nodes, num_edges, feature_dim=4)
    store = graph.write(tmp_path / "n.gnn")
    layers = [GCNConv(4, 5), torch.relu, SAGEConv(5, 2)]
    found = gnnstore.inference(layers, store, tmp_path / "out", memory="1GB")
    assert isinstance(found, Embeddings)
    expected = on_whole_graph(layers, *tensors_of(graph))
    torch.testing.assert_close(found.tensor(), expected, atol=1e-5, rtol=1e-5)


def test_how_layers_are_called(path: Path) -> None:
    """Sparse matrices where a convolution takes them: they save a copy of a row for each edge."""
    notes = Notes()
    layers = [
        *(SAGEConv(NUM_FEATURES, 4), GCNConv(4, 4), GATConv(4, 4)),
        *(GraphConv(4, 4), SAGEConv(4, 4, aggr="max")),
    ]
    gnnstore.inference(layers, path, progress=notes)
    forms = [stats["form"] for stats in notes.stats]
    assert forms == ["sparse", "sparse", "pair", "sparse", "sparse"]


class Renamed(GCNConv):  # type: ignore[misc]
    """A convolution that is one of PyTorch Geometric's in all but its name."""


class Negated(SAGEConv):  # type: ignore[misc]
    """Has messages of its own, which a product with a sparse matrix does not see."""

    def message(self, x_j: Tensor) -> Tensor:
        return -x_j


def test_subclasses_and_half_precision(small_graph: GraphArrays, small_path: Path) -> None:
    x, edges = tensors_of(small_graph)
    layers = [Renamed(NUM_FEATURES, 8), Negated(8, 3)]
    found = gnnstore.inference(layers, small_path, memory=SMALL // 4)
    torch.testing.assert_close(found, on_whole_graph(layers, x, edges), atol=1e-5, rtol=1e-5)
    for conv in (GCNConv(NUM_FEATURES, 3), SAGEConv(NUM_FEATURES, 3)):
        expected = on_whole_graph([conv], x, edges)
        half: Any = gnnstore.inference([conv.bfloat16()], small_path, memory=SMALL // 4)
        torch.testing.assert_close(half.float(), expected, atol=0.05, rtol=0.05)
