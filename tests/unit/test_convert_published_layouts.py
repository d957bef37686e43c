"""Public data sets in the layouts they are published in: what becomes what, and bad input."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import ConvertOptions, from_graphbolt, from_igb, from_ogb, from_snap
from gnnstore.converters.datasets import graphbolt
from gnnstore.errors import GnnstoreError, InputError, NotFoundError, UsageError
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support import published
from tests.support.effort import choose
from tests.support.graphs import StoredGraph, read_store


@pytest.fixture
def graph() -> GraphArrays:
    """Return a graph whose last nodes are in no split."""
    graph = random_graph(50, 300, seed=3, feature_dim=6, num_classes=4, edge_feature_dim=2)
    graph.attributes["year"] = np.arange(1970, 2020)
    graph.splits["test"] = graph.splits["test"][:-4]
    return graph


def check_edges(stored: StoredGraph, graph: GraphArrays) -> None:
    assert stored.num_nodes == graph.num_nodes
    np.testing.assert_array_equal(graph.edge_index[:, stored.edge_id], stored.edge_index)
    assert sorted(stored.edge_id.tolist()) == list(range(graph.num_edges))


def check_splits(stored: StoredGraph, graph: GraphArrays) -> None:
    assert stored.splits.keys() == graph.splits.keys()
    for name, ids in graph.splits.items():
        np.testing.assert_array_equal(stored.splits[name], ids)


# ---- OGB


@pytest.mark.parametrize("above", [False, True])
def test_mag240m_is_its_papers_and_citations(
    tmp_path: Path, graph: GraphArrays, above: bool
) -> None:
    folder = published.write_mag240m(tmp_path, graph)
    stored = read_store(from_ogb(tmp_path if above else folder, tmp_path / "out.gnn"))
    check_edges(stored, graph)
    check_splits(stored, graph)
    x = stored.attributes["x"]
    assert x.dtype == np.float16
    np.testing.assert_array_equal(x, graph.attributes["x"].astype(np.float16))
    known = np.concatenate(list(graph.splits.values()))
    y = stored.attributes["y"]
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y[known], graph.attributes["y"][known])
    assert np.isnan(np.delete(y, known)).all()
    np.testing.assert_array_equal(stored.attributes["node_year"], graph.attributes["year"])


@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (
            lambda d: (d / "processed/paper___cites___paper/edge_index.npy").unlink(),
            NotFoundError,
            "edge_index.npy is not there",
        ),
        (
            lambda d: np.save(d / "processed/paper/node_year.npy", np.zeros(49)),
            InputError,
            "node_year.npy: has 49 rows, but the graph has 50 nodes",
        ),
        (
            lambda d: np.save(d / "processed/paper/node_feat.npy", np.zeros(50)),
            InputError,
            "node_feat.npy: has shape [50], expected [N, F]",
        ),
        (
            lambda d: np.save(
                d / "processed/paper___cites___paper/edge_index.npy", np.full((2, 9), 50)
            ),
            InputError,
            "edge_index.npy: source node id 50 at position 0 is outside [0, 50)",
        ),
        (
            lambda d: shutil.rmtree(d / "processed/paper"),
            NotFoundError,
            "none of node_feat.npy, node_label.npy, node_year.npy is there",
        ),
    ],
)
def test_mag240m_with_an_error_is_refused(
    tmp_path: Path,
    graph: GraphArrays,
    spoil: Callable[[Path], object],
    kind: type[GnnstoreError],
    message: str,
) -> None:
    folder = published.write_mag240m(tmp_path / "in", graph)
    spoil(folder)
    (tmp_path / "out").mkdir()
    with pytest.raises(kind) as caught:
        from_ogb(folder, tmp_path / "out" / "out.gnn")
    assert message in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_papers100m(tmp_path: Path, graph: GraphArrays) -> None:
    root = published.write_papers100m(tmp_path / "ogbn_papers100M", graph)
    options = ConvertOptions(feature_dtype="float16")
    stored = read_store(from_ogb(root, tmp_path / "out.gnn", options=options))
    check_edges(stored, graph)
    check_splits(stored, graph)
    np.testing.assert_array_equal(stored.attributes["x"], graph.attributes["x"].astype(np.float16))
    assert stored.attributes["y"].shape == (50, 1)
    assert np.isnan(stored.attributes["y"]).sum() == 4
    np.testing.assert_array_equal(stored.attributes["node_year"][:, 0], graph.attributes["year"])


def test_products(tmp_path: Path, graph: GraphArrays) -> None:
    root = published.write_products(tmp_path / "ogbn_products", graph)
    stored = read_store(from_ogb(root, tmp_path / "out.gnn", add_inverse_edge=True))
    assert stored.edge_index.shape == (2, 2 * graph.num_edges)
    check_splits(stored, graph)
    np.testing.assert_array_equal(stored.attributes["x"], graph.attributes["x"])
    np.testing.assert_array_equal(stored.attributes["y"][:, 0], graph.attributes["y"])


# ---- SNAP


@pytest.mark.parametrize("name", sorted(published.SNAP_HEADERS))
@pytest.mark.parametrize(
    ("ending", "line_end"),
    [("", "\n"), (".gz", "\r\n"), *choose([], [("", "\r\n"), (".gz", "\n")])],
)
def test_snap_files_as_published(
    tmp_path: Path, graph: GraphArrays, name: str, ending: str, line_end: str
) -> None:
    # Ids are not contiguous: 101, 104, 107, ...
    scattered = GraphArrays(graph.num_nodes, graph.edge_index * 3 + 101)
    path = published.write_snap(tmp_path / f"{name}{ending}", scattered, line_end=line_end)
    stored = read_store(from_snap(path, tmp_path / "out.gnn"))
    used = np.unique(graph.edge_index)
    assert stored.num_nodes == len(used)
    np.testing.assert_array_equal(stored.original_ids, used * 3 + 101)
    np.testing.assert_array_equal(used[stored.edge_index], graph.edge_index[:, stored.edge_id])


# ---- IGB


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("classes", ["19", "2K"])
def test_igb(tmp_path: Path, graph: GraphArrays, raw: bool, classes: Any) -> None:
    graph.attributes["x"] = np.random.default_rng(0).random((50, 1024), np.float32)
    root = published.write_igb(tmp_path / "small", graph, raw=raw)
    stored = read_store(from_igb(root, tmp_path / "out.gnn", classes=classes))
    check_edges(stored, graph)
    np.testing.assert_array_equal(stored.attributes["x"], graph.attributes["x"])
    expected = graph.attributes["y"] + (100 if classes == "2K" else 0)
    np.testing.assert_array_equal(stored.attributes["y"], expected)
    assert stored.attributes["y"].dtype == np.int64
    sizes = {name: (ids[0], len(ids)) for name, ids in stored.splits.items()}
    assert sizes == {"train": (0, 30), "valid": (30, 10), "test": (40, 10)}
    again = read_store(from_igb(root / "processed", tmp_path / "again.gnn"))
    check_edges(again, graph)


def test_igb_without_labels(
    tmp_path: Path, graph: GraphArrays, caplog: pytest.LogCaptureFixture
) -> None:
    root = published.write_igb(tmp_path / "igb" / "small", graph)
    for file in (root / "processed" / "paper").glob("node_label_*.npy"):
        file.unlink()
    stored = read_store(from_igb(root, tmp_path / "out.gnn"))
    assert (set(stored.attributes), len(stored.splits)) == ({"x"}, 0)
    assert "neither labels nor splits" in caplog.text


def test_igb_with_an_error_is_refused(tmp_path: Path, graph: GraphArrays) -> None:
    root = published.write_igb(tmp_path / "igb" / "small", graph)
    papers = root / "processed" / "paper"
    edges = root / "processed" / "paper__cites__paper" / "edge_index.npy"

    def refused(kind: type[GnnstoreError] = InputError, where: Path = root, **more: Any) -> str:
        with pytest.raises(kind) as caught:
            from_igb(where, tmp_path / "out.gnn", **more)
        return str(caught.value)

    assert "is not there; give the directory of one size" in refused(
        NotFoundError, tmp_path / "igb"
    )
    assert "classes='20' is unknown; choose one of 19, 2K" in refused(UsageError, classes="20")
    np.save(papers / "node_label_19.npy", np.zeros(49))
    assert "node_label_19.npy: has 49 rows, but the graph has 50 nodes" in refused()
    (papers / "node_feat.npy").write_bytes(b"\0" * 5000)
    assert "has 5000 bytes, which are not the rows of 4096 bytes" in refused()
    np.save(edges, np.zeros((4, 3), np.int64))
    assert "edge_index.npy: has shape [4, 3], expected [2, E]" in refused()
    np.save(edges, np.zeros((4, 2)))
    assert "has the element type float64, expected integers" in refused()
    np.save(papers / "node_label_19.npy", np.zeros((50, 1)))
    np.save(edges, np.zeros((4, 2), np.int64))
    (papers / "node_feat.npy").unlink()
    assert "node_label_19.npy: has shape [50, 1], expected [N]" in refused()
    (papers / "node_label_19.npy").unlink()
    assert "take them with classes=2K" in refused(NotFoundError)


# ---- GraphBolt


@pytest.mark.parametrize("edge_format", ["numpy", "csv"])
def test_graphbolt(tmp_path: Path, graph: GraphArrays, edge_format: str) -> None:
    root = published.write_graphbolt(tmp_path / "set", graph, edge_format=edge_format)
    stored = read_store(from_graphbolt(root, tmp_path / "out.gnn"))
    check_edges(stored, graph)
    check_splits(stored, graph)
    np.testing.assert_array_equal(stored.attributes["x"], graph.attributes["x"])
    np.testing.assert_array_equal(
        stored.edge_attributes["edge_attr"], graph.attributes["edge_attr"][stored.edge_id]
    )
    known = np.concatenate(list(graph.splits.values()))
    np.testing.assert_array_equal(stored.attributes["y"][known], graph.attributes["y"][known])
    assert set(np.delete(stored.attributes["y"], known)) == {-1}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  nodes:\n", "  nodes:\n    - num: 3\n", "type: expected a text, found NoneType"),
        ("num: 50", "num: many", "num: 'many' is not a number of nodes"),
        ("num: 50", "num: 49", "node id 49 at position"),
        ("graph:", "graph_topology:", "has no graph; of what GraphBolt made of a data set, give"),
        ("graph:", "grap:", "metadata.yaml: is not metadata of GraphBolt: has no graph"),
        (
            "format: numpy\n    path: data/n",
            "format: torch\n    path: data/n",
            "a pickle, which is",
        ),
        ("domain: node", "domain: nod", "feature_data: domain 'nod' is not 'node' or 'edge'"),
        ("path: data/node", "path: ../data/node", "leaves the directory of the data set"),
        ("path: data/node", "path: /data/node", "leaves the directory of the data set"),
        ("name: seeds", "name: pairs", "metadata.yaml: the train set has no 'seeds', "),
        ("- data:", "- data: []\n        more:", "which name its nodes: no data"),
        ("data/node-feat.npy", "data/edge-feat.npy", "edge-feat.npy: has 300 rows, but the graph"),
        ("data/edge-feat.npy", "data/node-feat.npy", "node-feat.npy: has 50 rows, but the graph"),
        (
            "dataset_name: small",
            "dataset_name: [",
            "metadata.yaml: is not metadata of GraphBolt: while parsing",
        ),
        (
            "domain: edge\n    name: feat",
            "domain: node\n    name: x",
            "the feature 'x' becomes 'x'",
        ),
        ("tasks:", "tasks: 3\nmore:", "tasks: expected a list of mappings"),
        ("    train_set:\n", "    train_set:\n      - type: a\n", "train set: has a type twice"),
        ("path: data/node-feat.npy", "path: [3]", "path: expected a text, found list"),
        ("set/train-seeds.npy", "edges/bulk.npy", "has shape [2, 300]; a split is a list of"),
        ("set/train-labels.npy", "set/test-seeds.npy", "has labels of shape [6] int64 for 30"),
        ("set/train-labels.npy", "set/one-label.npy", "has labels of shape [] int64 for 30 seeds"),
        ("set/train-labels.npy", "set/floats.npy", "has labels of shape [10] int64 for 10 seeds"),
        ("set/train-labels.npy", "set/large.npy", "18446744073709551615"),
        ("set/train-seeds.npy", "set/mask.npy", "has labels of shape [30] int64 for 50 seeds"),
    ],
)
def test_graphbolt_with_an_error_is_refused(
    tmp_path: Path, graph: GraphArrays, old: str, new: str, message: str
) -> None:
    root = published.write_graphbolt(tmp_path / "set", graph)
    np.save(root / "set" / "one-label.npy", np.array(3))
    num_train = len(graph.splits["train"])
    np.save(root / "set" / "floats.npy", np.zeros(num_train))
    np.save(root / "set" / "large.npy", np.full(num_train, 2**64 - 1, np.uint64))
    np.save(root / "set" / "mask.npy", np.ones(50, np.bool_))
    path = root / "metadata.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError) as caught:
        from_graphbolt(root, tmp_path / "out" / "out.gnn")
    assert message in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_graphbolt_with_labels_of_half_precision(tmp_path: Path, graph: GraphArrays) -> None:
    root = published.write_graphbolt(tmp_path / "set", graph)
    for path in (root / "set").glob("*-labels.npy"):
        np.save(path, (np.load(path) / 8).astype(np.float16))
    stored = read_store(from_graphbolt(root, tmp_path / "out.gnn"))
    known = np.concatenate(list(graph.splits.values()))
    expected = (graph.attributes["y"][known] / 8).astype(np.float16)
    np.testing.assert_array_equal(stored.attributes["y"][known], expected)


def test_graphbolt_of_older_versions(tmp_path: Path, graph: GraphArrays) -> None:
    """Seeds in a column, data of sets without names, and a feature of another name."""
    root = published.write_graphbolt(tmp_path / "set", graph)
    seeds = root / "set" / "train-seeds.npy"
    np.save(seeds, np.load(seeds)[:, None])
    path = root / "metadata.yaml"
    text = path.read_text().replace("- name: seeds\n            format", "- format")
    text = text.replace("- name: labels\n            format", "- format")
    path.write_text(text.replace("domain: edge\n    name: feat", "domain: edge\n    name: weight"))
    stored = read_store(from_graphbolt(root, tmp_path / "out.gnn"))
    check_splits(stored, graph)
    known = np.concatenate(list(graph.splits.values()))
    np.testing.assert_array_equal(stored.attributes["y"][known], graph.attributes["y"][known])
    assert list(stored.edge_attributes) == ["edge_weight"]


def test_metadata_that_are_too_large_or_cannot_be_read(
    tmp_path: Path, graph: GraphArrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = published.write_graphbolt(tmp_path / "set", graph)
    size = (root / "metadata.yaml").stat().st_size
    monkeypatch.setattr(graphbolt, "_MAX_BYTES", size - 1)
    with pytest.raises(InputError, match=rf"yaml: has more than {size - 1} bytes"):
        from_graphbolt(root, tmp_path / "out.gnn")


def test_a_missing_file_of_graphbolt_is_named(tmp_path: Path, graph: GraphArrays) -> None:
    root = published.write_graphbolt(tmp_path / "set", graph)
    (root / "edges" / "bulk.npy").unlink()
    with pytest.raises(NotFoundError, match=r"a file of the data set: .*bulk\.npy does not exist"):
        from_graphbolt(root, tmp_path / "out.gnn")
    with pytest.raises(NotFoundError, match=r"metadata: .*metadata\.yaml does not exist"):
        from_graphbolt(root / "edges", tmp_path / "out.gnn")


def test_one_of_several_tasks_is_chosen(tmp_path: Path, graph: GraphArrays) -> None:
    root = published.write_graphbolt(tmp_path / "set", graph)
    with (root / "metadata.yaml").open("a") as file:
        file.write("  - name: other\n    train_set:\n      - data:\n          - name: seeds\n")
        file.write("            format: numpy\n            path: set/test-seeds.npy\n")
    with pytest.raises(UsageError, match=r"several tasks; choose one .*: node_classification, oth"):
        from_graphbolt(root, tmp_path / "out.gnn")
    with pytest.raises(NotFoundError, match=r"there is no task 'third'; there is node_classific"):
        from_graphbolt(root, tmp_path / "out.gnn", task="third")
    stored = read_store(from_graphbolt(root, tmp_path / "out.gnn", task="other"))
    assert stored.splits.keys() == {"train"}
    np.testing.assert_array_equal(stored.splits["train"], graph.splits["test"])
    assert "y" not in stored.attributes
