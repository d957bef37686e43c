"""Rows that stay in memory for a layer change what is read, and not the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("torch_geometric")

from torch_geometric.nn import GATConv, GCNConv, GINConv, GraphConv, LGConv, SAGEConv

import gnnstore
from gnnstore.caching.scores import select_nodes
from gnnstore.converters import ConvertOptions
from gnnstore.layerwise.plan import BlockLimits, GraphSize, LayerPlan
from gnnstore.layerwise.result import Embeddings
from gnnstore.layerwise.run import InferenceRun
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.conformance.test_inference import Notes, on_whole_graph
from tests.support.effort import choose, paired

NUM_NODES, WIDTH = 2000, 64
MEMORY = "2MB"
# In `make test` two that are not multiplied with a matrix, and one that is, with all rows kept.
SHORT = ["SAGE max", "GAT", "GCN without loops"]


@pytest.fixture(scope="module")
def graph() -> GraphArrays:
    """Draw a graph with hubs, self-loops, parallel edges and nodes without edges."""
    graph = random_graph(NUM_NODES, 40_000, seed=7, feature_dim=WIDTH, skew=2.0)
    edges = graph.edge_index % (NUM_NODES - 500)
    loops = np.tile(np.arange(0, 1000, 2), (2, 1))
    edges = np.concatenate([edges, loops, edges[:, :500]], axis=1)
    weights = np.random.default_rng(0).random((edges.shape[1],), dtype=np.float32)
    # Of parallel self-loops with different weights PyTorch Geometric keeps any one.
    weights[edges[0] == edges[1]] = 0.5
    return GraphArrays(NUM_NODES, edges, {"x": graph.attributes["x"], "edge_weight": weights})


@pytest.fixture(scope="module")
def path(graph: GraphArrays, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graph.write(tmp_path_factory.mktemp("kept") / "a.gnn")


@pytest.fixture(autouse=True)
def _memory_for_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InferenceRun, "_reservations", lambda *_: ())
    torch.manual_seed(0)


def keeping(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Let each layer that sums rows keep a share of those with edges."""

    def divide(
        self: LayerPlan, room: int, graph: GraphSize, counts: Any
    ) -> tuple[BlockLimits, Any]:
        if not self.call.sums:
            return self.limits(room, graph), np.empty(0, np.int64)
        number = int(share * np.count_nonzero(counts))
        left = room - number * (self.call.source_bytes + 12)
        return self.limits(left, graph), select_nodes(counts, number)

    monkeypatch.setattr(LayerPlan, "divide", divide)


def mean_of_own(x: tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
    assert torch.equal(x[0][: len(x[1])], x[1])
    sums = torch.zeros_like(x[1]).index_add_(0, edge_index[1], x[0][edge_index[0]])
    return sums / torch.bincount(edge_index[1], minlength=len(x[1])).clamp(1).unsqueeze(1)


def layers() -> dict[str, Callable[[], list[Any]]]:
    mlp, w = torch.nn.Linear, WIDTH
    return {
        "SAGE": lambda: [SAGEConv(w, 16), torch.relu, SAGEConv(16, 24)],
        "SAGE sum": lambda: [SAGEConv(w, 16, aggr="sum", root_weight=False, bias=False)],
        "SAGE normalized": lambda: [SAGEConv(w, 16, normalize=True)],
        "SAGE max": lambda: [SAGEConv(w, 16, aggr="max"), SAGEConv(16, 4, project=True)],
        "GCN": lambda: [GCNConv(w, 16), torch.relu, GCNConv(16, 24, improved=True)],
        "GCN without loops": lambda: [GCNConv(w, 80, add_self_loops=False)],
        "LGConv": lambda: [LGConv(), LGConv()],
        "GIN": lambda: [GINConv(mlp(w, 16)), torch.relu, GINConv(mlp(16, 4), train_eps=True)],
        "GraphConv": lambda: [GraphConv(w, 8), GraphConv(8, 16, aggr="mean")],
        "GAT": lambda: [GATConv(w, 8, heads=2), torch.relu, GATConv(16, 4)],
        "own": lambda: [mean_of_own, torch.nn.Linear(w, 8)],
    }


def expected_of(model: list[Any], graph: GraphArrays, **data: Tensor) -> Tensor:
    x, edges = torch.from_numpy(graph.attributes["x"]), torch.from_numpy(graph.edge_index)
    if model[0] is mean_of_own:
        with torch.no_grad():
            return model[1](mean_of_own((x, x), edges))  # type: ignore[no-any-return]
    return on_whole_graph(model, x, edges, **data)


@pytest.mark.parametrize(
    ("name", "share"), paired(choose(SHORT, [*layers()]), [0.0, 0.3, 1.0], 1), ids=str
)
def test_equals_the_whole_graph(
    graph: GraphArrays,
    path: Path,
    name: str,
    *,
    share: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeping(monkeypatch, share)
    model, notes = layers()[name](), Notes()
    found = gnnstore.inference(model, path, tmp_path / "out", memory=MEMORY, progress=notes)
    assert isinstance(found, Embeddings)
    torch.testing.assert_close(found.tensor(), expected_of(model, graph), atol=1e-5, rtol=1e-5)
    first = notes.stats[0]
    assert first["num_blocks"] > 2
    keeps_all = share == 1 and first["form"] == "sparse" and "max" not in name
    assert first["rows_read"] == 2 * NUM_NODES
    assert keeps_all == (first["bytes_packed"] == 0)
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("share", choose([0.3], [0.3, 1.0]))
def test_rows_of_a_compressed_attribute_are_kept(
    tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Narrow rows are held in memory, not in pages."""
    graph = random_graph(NUM_NODES, 40_000, seed=8, feature_dim=2, skew=2.0)
    narrow = {"h": graph.attributes["x"]}
    path = GraphArrays(NUM_NODES, graph.edge_index, narrow).write(tmp_path / "a.gnn")
    keeping(monkeypatch, share)
    model = [SAGEConv(2, 8)]
    found = gnnstore.inference(model, path, tmp_path / "out", input="h", memory=MEMORY)
    assert isinstance(found, Embeddings)
    x, edges = torch.from_numpy(narrow["h"]), torch.from_numpy(graph.edge_index)
    expected = on_whole_graph(model, x, edges)
    torch.testing.assert_close(found.tensor(), expected, atol=1e-5, rtol=1e-5)


def test_weighted_edges(graph: GraphArrays, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeping(monkeypatch, 0.3)
    weights = torch.from_numpy(graph.attributes["edge_weight"])
    # In `make test`, weights of edges without norms, which `test_inference` has.
    for model in ([GraphConv(WIDTH, 16), LGConv()], *choose((), ([GCNConv(WIDTH, 16)],))):
        found = gnnstore.inference(model, path, edge_weight="edge_weight", memory=MEMORY)
        expected = expected_of(model, graph, edge_weight=weights)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


WIDTHS_AND_KINDS = [(WIDTH, SAGEConv), (37, GATConv), (37, SAGEConv), (WIDTH, GATConv)]


@pytest.mark.parametrize(
    ("stored", "width", "kind"),
    [
        (stored, *others)
        for stored, others in paired(
            choose(
                ["float16", "int8 with scales"],
                ["float16", "float64", "uint8", "int8 with scales"],
            ),
            WIDTHS_AND_KINDS,
            1,
        )
    ],
)
def test_types(
    graph: GraphArrays,
    tmp_path: Path,
    *,
    stored: str,
    width: int,
    kind: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeping(monkeypatch, 0.3)
    x = 2 * graph.attributes["x"][:, :width]
    options = ConvertOptions()
    if stored.endswith("scales"):
        x *= np.linspace(0.2, 1, width, dtype=np.float32)
        options = ConvertOptions(feature_dtype="int8", feature_scale="column")
    else:
        x = np.abs(x).astype(stored)
    changed = GraphArrays(NUM_NODES, graph.edge_index, {"x": np.ascontiguousarray(x)})
    store = gnnstore.open(changed.write(tmp_path / "t.gnn", options=options))
    dense = store.features[:].float()
    model, notes = [kind(width, 8), torch.relu, kind(8, 4)], Notes()
    found = gnnstore.inference(
        model, store, tmp_path / "out", dtype="float16", memory=MEMORY, progress=notes
    )
    assert isinstance(found, Embeddings)
    expected = on_whole_graph(model, dense, torch.from_numpy(graph.edge_index))
    limit = 2e-3 * float(expected.abs().max())
    torch.testing.assert_close(found.tensor().float(), expected, atol=limit, rtol=1e-2)
    assert notes.stats[0]["bytes_packed"] > 0


def test_more_memory_moves_no_more_bytes(path: Path) -> None:
    moved = []
    for memory in choose(("1MB", "100MB"), ("1MB", "2MB", "4MB", "100MB")):
        notes = Notes()
        gnnstore.inference([SAGEConv(WIDTH, 16)], path, memory=memory, progress=notes)
        moved.append(notes.stats[0]["bytes_read"] + notes.stats[0]["bytes_written"])
    assert sorted(moved, reverse=True) == moved
    # All rows in one block: each is read once.
    assert notes.stats[0]["rows_read"] == NUM_NODES
