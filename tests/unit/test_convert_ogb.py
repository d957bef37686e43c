"""OGB's two layouts: what is read from where, and that a store holds exactly it."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gnnstore.converters import ConvertOptions, from_ogb
from gnnstore.errors import InputError, NotFoundError, UsageError
from gnnstore.formats import StoreReader
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support.effort import choose
from tests.support.graphs import StoredGraph, read_store


def write_csv(path: Path, rows: npt.NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = (rows[:, None] if rows.ndim == 1 else rows).tolist()
    text = "".join(",".join(map(repr, row)) + "\n" for row in table)
    path.write_bytes(gzip.compress(text.encode()))


def write_splits(root: Path, graph: GraphArrays, name: str = "random") -> None:
    for split, ids in graph.splits.items():
        write_csv(root / "split" / name / f"{split}.csv.gz", ids)


def csv_data_set(root: Path, graph: GraphArrays) -> Path:
    raw = root / "raw"
    write_csv(raw / "edge.csv.gz", graph.edge_index.T)
    write_csv(raw / "num-node-list.csv.gz", np.array([graph.num_nodes]))
    write_csv(raw / "num-edge-list.csv.gz", np.array([graph.num_edges]))
    names = {"x": "node-feat", "y": "node-label", "edge_attr": "edge-feat"}
    for name, values in graph.attributes.items():
        write_csv(raw / f"{names.get(name, name)}.csv.gz", values)
    write_splits(root, graph)
    return root


def binary_data_set(root: Path, graph: GraphArrays, *, labels: npt.NDArray[Any]) -> Path:
    raw = root / "raw"
    raw.mkdir(parents=True)
    names = {"x": "node_feat", "edge_attr": "edge_feat"}
    attributes: Any = {names.get(k, k): v for k, v in graph.attributes.items() if k != "y"}
    np.savez(
        raw / "data.npz",
        edge_index=graph.edge_index,
        num_nodes_list=np.array([graph.num_nodes]),
        num_edges_list=np.array([graph.num_edges]),
        **attributes,
    )
    np.savez(raw / "node-label.npz", node_label=labels)
    write_splits(root, graph)
    return root


@pytest.fixture
def graph() -> GraphArrays:
    graph = random_graph(60, 400, seed=5, feature_dim=7, num_classes=4, edge_feature_dim=2)
    graph.attributes["node_year"] = np.arange(1960, 2020)
    graph.attributes["edge_reltype"] = np.arange(400, dtype=np.float32)[:, None]
    return graph


def check(stored: StoredGraph, graph: GraphArrays) -> None:
    assert stored.num_nodes == graph.num_nodes
    np.testing.assert_array_equal(graph.edge_index[:, stored.edge_id], stored.edge_index)
    assert sorted(stored.edge_id.tolist()) == list(range(graph.num_edges))
    np.testing.assert_array_equal(stored.attributes["x"], graph.attributes["x"])
    for name in ("edge_attr", "edge_reltype"):
        expected = graph.attributes[name][stored.edge_id]
        np.testing.assert_array_equal(stored.edge_attributes[name], expected)
        assert stored.edge_attributes[name].dtype == np.float32
    assert stored.splits.keys() == {"train", "valid", "test"}
    for name, ids in graph.splits.items():
        np.testing.assert_array_equal(stored.splits[name], ids)


def test_csv(tmp_path: Path, graph: GraphArrays) -> None:
    root = csv_data_set(tmp_path / "data", graph)
    stored = read_store(from_ogb(root, tmp_path / "out.gnn"))
    check(stored, graph)
    # OGB's tables have two dimensions, whatever their width.
    np.testing.assert_array_equal(stored.attributes["y"], graph.attributes["y"][:, None])
    assert stored.attributes["y"].dtype == np.int64
    assert stored.attributes["node_year"].tolist() == [[year] for year in range(1960, 2020)]


@pytest.mark.parametrize("missing_labels", [*choose([], [False]), True])
def test_binary(tmp_path: Path, graph: GraphArrays, missing_labels: bool) -> None:
    labels = graph.attributes["y"][:, None].astype(np.float32)
    if missing_labels:
        labels[3] = np.nan
    root = binary_data_set(tmp_path / "data", graph, labels=labels)
    stored = read_store(from_ogb(root, tmp_path / "out.gnn"))
    check(stored, graph)
    np.testing.assert_array_equal(stored.attributes["y"], labels)
    assert stored.attributes["y"].dtype == (np.float32 if missing_labels else np.int64)
    np.testing.assert_array_equal(stored.attributes["node_year"], graph.attributes["node_year"])


def test_labels_with_fractions_are_float32(tmp_path: Path, graph: GraphArrays) -> None:
    graph.attributes["y"] = np.linspace(0, 1, 60)
    root = csv_data_set(tmp_path / "data", graph)
    labels = read_store(from_ogb(root, tmp_path / "out.gnn")).attributes["y"]
    np.testing.assert_array_equal(labels, np.linspace(0, 1, 60, dtype=np.float32)[:, None])


@pytest.mark.parametrize("layout", ["csv", "binary"])
def test_inverse_edges_are_numbered_as_by_ogb(
    tmp_path: Path, graph: GraphArrays, layout: str
) -> None:
    if layout == "csv":
        root = csv_data_set(tmp_path / "data", graph)
    else:
        root = binary_data_set(tmp_path / "data", graph, labels=graph.attributes["y"])
    stored = read_store(from_ogb(root, tmp_path / "out.gnn", add_inverse_edge=True))
    # ogb/io/read_graph_raw.py: repeat every edge, then swap the ends of every second one.
    expected = np.repeat(graph.edge_index, 2, axis=1)
    expected[0, 1::2], expected[1, 1::2] = expected[1, 0::2].copy(), expected[0, 0::2].copy()
    np.testing.assert_array_equal(expected[:, stored.edge_id], stored.edge_index)
    np.testing.assert_array_equal(
        stored.edge_attributes["edge_attr"],
        np.repeat(graph.attributes["edge_attr"], 2, axis=0)[stored.edge_id],
    )


def test_the_directory_raw_itself_may_be_given(tmp_path: Path, graph: GraphArrays) -> None:
    root = csv_data_set(tmp_path / "data", graph)
    check(read_store(from_ogb(root / "raw", tmp_path / "out.gnn")), graph)


def test_the_directory_raw_may_be_the_working_directory(
    tmp_path: Path, graph: GraphArrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = csv_data_set(tmp_path / "data", graph)
    monkeypatch.chdir(root / "raw")
    check(read_store(from_ogb(".", tmp_path / "out.gnn")), graph)


def test_what_need_not_be_there(tmp_path: Path) -> None:
    graph = random_graph(9, 0)
    root = csv_data_set(tmp_path / "data", graph)
    stored = read_store(from_ogb(root, tmp_path / "out.gnn"))
    assert stored.num_nodes == 9
    assert stored.edge_index.shape == (2, 0)
    assert not stored.attributes
    assert not stored.splits


def test_a_split_is_chosen_by_name(tmp_path: Path, graph: GraphArrays) -> None:
    root = csv_data_set(tmp_path / "data", graph)
    write_csv(root / "split" / "time" / "train.csv.gz", np.array([4, 2]))
    with pytest.raises(UsageError, match=r"several splits; choose one .*: random, time"):
        from_ogb(root, tmp_path / "out.gnn")
    with pytest.raises(NotFoundError, match=r"no split 'year'; there is random, time"):
        from_ogb(root, tmp_path / "out.gnn", split="year")
    stored = read_store(from_ogb(root, tmp_path / "out.gnn", split="time"))
    assert {name: ids.tolist() for name, ids in stored.splits.items()} == {"train": [4, 2]}


def test_splits_of_nodes_in_one_file(tmp_path: Path, graph: GraphArrays) -> None:
    root = csv_data_set(tmp_path / "data", graph)
    shutil.rmtree(root / "split" / "random")
    (root / "split" / "random").mkdir()
    with pytest.raises(NotFoundError, match=r"random: none of train.csv.gz, .* is there"):
        from_ogb(root, tmp_path / "out.gnn")
    path = root / "split" / "random" / "split_dict.npz"
    np.savez(path, **graph.splits)  # type: ignore[arg-type]
    check(read_store(from_ogb(root, tmp_path / "out.gnn")), graph)
    path.unlink()
    torch.save({**graph.splits, "year": {"a": np.arange(3)}}, path.with_suffix(".pt"))
    with pytest.raises(InputError, match=r"split_dict.pt: year is a dict; expected the ids of nod"):
        from_ogb(root, tmp_path / "again.gnn")


def test_features_without_a_row(tmp_path: Path, graph: GraphArrays) -> None:
    root = csv_data_set(tmp_path / "data", graph)
    write_csv(root / "raw" / "node-feat.csv.gz", np.empty((0, 3)))
    with pytest.raises(InputError, match=r"node-feat.csv.gz: has 0 rows, but the graph has 60 nod"):
        from_ogb(root, tmp_path / "out.gnn")


def test_provenance(tmp_path: Path, graph: GraphArrays) -> None:
    root = csv_data_set(tmp_path / "data", graph)
    path = from_ogb(root, tmp_path / "out.gnn", options=ConvertOptions(self_loops="drop"))
    found = StoreReader.open(path).manifest.provenance
    assert found["kind"] == "ogb"
    assert found["options"]["self_loops"] == "drop"
    edges = root / "raw" / "edge.csv.gz"
    assert {"path": str(edges), "size_bytes": edges.stat().st_size} in found["inputs"]
    assert found["split"] == "random"


def test_reverse_edges_are_asked_for_once(tmp_path: Path, graph: GraphArrays) -> None:
    root = csv_data_set(tmp_path / "data", graph)
    with pytest.raises(UsageError, match=r"add_inverse_edge and undirected both add reverse"):
        from_ogb(
            root,
            tmp_path / "out.gnn",
            add_inverse_edge=True,
            options=ConvertOptions(undirected=True),
        )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("triplet-type-list.csv.gz", r"of each type: .*num-node-dict\.csv\.gz does not exist"),
        ("num-node-dict.csv.gz", r"num-node-dict\.csv\.gz: not a gzip file"),
        ("edge_index_dict.npz", r"both edge_index_dict\.npz and .*edge\.csv\.gz have the edges"),
    ],
)
def test_parts_of_data_sets_of_several_types(
    tmp_path: Path, graph: GraphArrays, name: str, message: str
) -> None:
    root = csv_data_set(tmp_path / "data", graph)
    (root / "raw" / name).write_bytes(b"")
    with pytest.raises((InputError, NotFoundError), match=message):
        from_ogb(root, tmp_path / "out.gnn")


def test_names_of_types_are_utf8(tmp_path: Path, graph: GraphArrays) -> None:
    root = csv_data_set(tmp_path / "data", graph)
    (root / "raw" / "edge.csv.gz").unlink()
    for name in ("triplet-type-list.csv.gz", "num-node-dict.csv.gz"):
        (root / "raw" / name).write_bytes(gzip.compress("größe\n1\n".encode("latin-1")))
    with pytest.raises(InputError, match="names that are not UTF-8; convert it to UTF-8"):
        from_ogb(root, tmp_path / "out.gnn")


@pytest.mark.long("the tests before it convert drawn graphs")
def test_cora(tmp_path: Path, cora_directory: Path) -> None:
    stored = read_store(from_ogb(cora_directory, tmp_path / "cora.gnn"))
    assert stored.num_nodes == 2708
    assert stored.edge_index.shape == (2, 10556)
    assert stored.attributes["x"].shape == (2708, 1433)
    assert stored.attributes["x"].dtype == np.float32
    assert set(np.unique(stored.attributes["y"])) == set(range(7))
    assert {name: len(ids) for name, ids in stored.splits.items()} == {
        "train": 140,
        "valid": 500,
        "test": 1000,
    }
    with gzip.open(cora_directory / "raw" / "edge.csv.gz", "rt") as file:
        lines = [tuple(map(int, line.split(","))) for line in file]
    assert [lines[e] for e in stored.edge_id] == stored.pairs()


def test_a_missing_split_is_said(
    tmp_path: Path, graph: GraphArrays, caplog: pytest.LogCaptureFixture
) -> None:
    root = csv_data_set(tmp_path / "a", graph)
    (root / "split/random/test.csv.gz").unlink()
    from_ogb(root, tmp_path / "a.gnn")
    sizes = ", ".join(f"{name} has {len(graph.splits[name])}" for name in ("train", "valid"))
    assert f"the split test is not there ({sizes}, of 60 nodes)" in caplog.messages[-1]
    shutil.rmtree(root / "split")
    from_ogb(root, tmp_path / "b.gnn")
    assert "the split train, valid, test is not there (there is none, of" in caplog.messages[-1]
