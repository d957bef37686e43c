"""OGB's own readers on the files that our tests of converters generate: the same graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import from_ogb
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support import published
from tests.support.graphs import read_store

pytest.importorskip("ogb")
# pandas and torch, as ogb uses them, warn of what is going to change.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> GraphArrays:
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # else a thread stays
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    graph = random_graph(50, 300, seed=3, feature_dim=6, num_classes=4)
    graph.attributes["year"] = np.arange(1970, 2020)
    return graph


def test_mag240m(tmp_path: Path, graph: GraphArrays) -> None:
    from ogb.lsc import MAG240MDataset  # noqa: PLC0415

    folder = published.write_mag240m(tmp_path, graph)
    theirs = MAG240MDataset(str(tmp_path))
    ours = read_store(from_ogb(folder, tmp_path / "out.gnn"))
    assert theirs.num_papers == ours.num_nodes
    edges = theirs.edge_index("paper", "paper")
    np.testing.assert_array_equal(edges[:, ours.edge_id], ours.edge_index)
    np.testing.assert_array_equal(theirs.paper_feat, ours.attributes["x"])
    np.testing.assert_array_equal(theirs.paper_label, ours.attributes["y"])
    np.testing.assert_array_equal(theirs.paper_year, ours.attributes["node_year"])
    for name, ids in theirs.get_idx_split().items():
        if name in ("train", "valid", "test-whole"):
            np.testing.assert_array_equal(ours.splits[name.removesuffix("-whole")], ids)


@pytest.mark.parametrize("name", ["ogbn-products", "ogbn-papers100M"])
def test_node_property_sets(tmp_path: Path, graph: GraphArrays, name: str) -> None:
    from ogb.nodeproppred import NodePropPredDataset  # noqa: PLC0415

    is_products = name == "ogbn-products"
    write = published.write_products if is_products else published.write_papers100m
    root = write(tmp_path / name.replace("-", "_"), graph)
    (root / "RELEASE_v1.txt").write_text("")
    (root / "processed").mkdir()
    (root / "mapping").mkdir()
    ours = read_store(from_ogb(root, tmp_path / "out.gnn", add_inverse_edge=is_products))
    dataset = NodePropPredDataset(name, root=str(tmp_path))
    found: Any = dataset[0]
    theirs, labels = found
    np.testing.assert_array_equal(theirs["edge_index"][:, ours.edge_id], ours.edge_index)
    np.testing.assert_array_equal(theirs["node_feat"], ours.attributes["x"])
    np.testing.assert_array_equal(labels, ours.attributes["y"])
    for split, ids in dataset.get_idx_split().items():
        np.testing.assert_array_equal(ids, ours.splits[split])
