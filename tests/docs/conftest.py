"""A directory with small data under the names that the documentation uses."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnstore.testing.graphs import random_graph
from tests.support import published
from tests.support.hetero import AT, CITES, WRITES, make_hetero

_NUM_NODES = 300


@pytest.fixture
def work_dir(_inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty directory filled with the inputs of the examples, and move into it."""
    shutil.copytree(_inputs, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def _inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the inputs of the examples."""
    root = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(0)
    for name, num_classes in (("ogbn_arxiv", 40), ("ogbn_products", 47)):
        _ogb(root / "dataset" / name, rng, num_classes)
    _ogb_links(root / "dataset", np.random.default_rng(1))
    edges = rng.integers(0, 500, (2000, 2))
    edges[:500, 0] = np.arange(500)  # every node occurs, so that there are 500 of them
    text = "# FromNodeId\tToNodeId\n" + "".join(f"{a}\t{b}\n" for a, b in edges)
    (root / "edges.txt").write_text(text)
    (root / "com-lj.ungraph.txt.gz").write_bytes(gzip.compress(text.encode()))
    rows = "".join(f"{t},{a},{b}\n" for t, (a, b) in enumerate(edges))
    (root / "edges.csv").write_text(f"time,src,dst\n{rows}")
    labels = "".join(f"{node},{node % 4}\n" for node in range(499, -1, -1))
    (root / "labels.csv").write_text(f"node_id,label\n{labels}")
    np.save(root / "x.npy", rng.standard_normal((500, 16), dtype=np.float32))
    np.save(root / "y.npy", rng.integers(0, 4, 500))
    splits = dict(
        zip(("train", "valid", "test"), np.split(np.arange(500), [300, 400]), strict=True)
    )
    savez: Any = np.savez  # whose types take arrays by name for its options
    savez(root / "splits.npz", **splits)
    savez(
        root / "graph.npz",
        edge_index=edges.T,
        x=np.load(root / "x.npy"),
        y=np.load(root / "y.npy"),
        **splits,
    )
    _published(root)
    _types(root)
    _downloads(root)
    return root


def _downloads(root: Path) -> None:
    """Name data sets as their archives unpack, for the README."""
    for name, place in (
        ("arxiv", "dataset/ogbn_arxiv"),
        ("products", "dataset/ogbn_products"),
        ("mag240m_kddcup2021", "dataset/mag240m_kddcup2021"),
        ("igb/tiny", "igb/small"),
        ("igb/large", "igb/small"),
        ("com-friendster.ungraph.txt.gz", "com-lj.ungraph.txt.gz"),
    ):
        link = root / name
        link.symlink_to(os.path.relpath(root / place, link.parent))


def _types(root: Path) -> None:
    """Write data sets of several types."""
    data = make_hetero(degrees={CITES: 5, WRITES: 3, AT: 4})
    published.write_ogb_types(root / "dataset" / "ogbn_mag", data)
    published.write_igbh(root / "igb-heterogeneous" / "small", data)
    published.write_graphbolt_types(root / "datasets" / "small-types", data)


def _published(root: Path) -> None:
    """Write the data sets that are not OGB's or SNAP's, and features in several files."""
    graph = random_graph(200, 900, feature_dim=16, num_classes=4, edge_feature_dim=2)
    published.write_graphbolt(root / "datasets" / "small", graph)
    graph.attributes["year"] = np.arange(200)
    published.write_papers100m(root / "papers100M-bin", graph)
    published.write_mag240m(root / "dataset", graph)
    graph.attributes["x"] = np.zeros((200, 1024), np.float32)
    published.write_igb(root / "igb" / "small", graph)
    (root / "parts").mkdir()
    for number, rows in enumerate(np.array_split(np.load(root / "x.npy"), 3)):
        rows.tofile(root / "parts" / f"x-{number}.bin")
    (root / "FB15k-237").mkdir()
    for split in ("train", "valid", "test"):
        text = f"/m/01\t/film/actor\t/m/02\n/m/02\t/film/genre\t/m/{split}\n"
        (root / "FB15k-237" / f"{split}.txt").write_text(text)
        (root / f"{split}.txt").write_text(text)


def _ogb(root: Path, rng: np.random.Generator, num_classes: int) -> None:
    _ogb_graph(root / "raw", rng)
    labels = rng.integers(0, num_classes, _NUM_NODES)
    published.write_csv_gz(root / "raw" / "node-label.csv.gz", labels)
    for name, ids in zip(
        ("train", "valid", "test"), np.split(np.arange(_NUM_NODES), [200, 250]), strict=True
    ):
        published.write_csv_gz(root / "split" / "time" / f"{name}.csv.gz", ids)


def _ogb_graph(raw: Path, rng: np.random.Generator) -> np.ndarray:
    """Write nodes with features and edges; return the edges, [E, 2]."""
    edges = rng.integers(0, _NUM_NODES, (1200, 2))
    published.write_csv_gz(raw / "edge.csv.gz", edges)
    published.write_csv_gz(raw / "num-node-list.csv.gz", np.array([_NUM_NODES]))
    published.write_csv_gz(raw / "num-edge-list.csv.gz", np.array([len(edges)]))
    features = rng.standard_normal((_NUM_NODES, 8)).round(3)
    published.write_csv_gz(raw / "node-feat.csv.gz", features)
    return edges


def _ogb_links(root: Path, rng: np.random.Generator) -> None:
    """Write `ogbl_collab` and `ogbl_wikikg2`."""
    for name in ("ogbl_collab", "ogbl_wikikg2"):
        edges = _ogb_graph(root / name / "raw", rng)
        relations = rng.integers(0, 9, len(edges))
        is_kg = name == "ogbl_wikikg2"
        attribute = "edge_reltype" if is_kg else "edge_weight"
        published.write_csv_gz(root / name / "raw" / f"{attribute}.csv.gz", relations)
        folder = root / name / "split" / "time"
        folder.mkdir(parents=True)
        for split, part in (("train", slice(None)), ("valid", slice(50)), ("test", slice(50, 90))):
            head, tail = edges[part].T.copy()
            arrays = {"edge": edges[part], "weight": relations[part]}
            if is_kg:
                arrays = {"head": head, "relation": relations[part], "tail": tail}
            if split != "train":
                negatives = rng.integers(0, _NUM_NODES, (2, len(head), 500))
                keys = ("head_neg", "tail_neg") if is_kg else ("edge_neg",)
                arrays |= dict(zip(keys, negatives if is_kg else edges[None, ::-1], strict=True))
            torch.save(arrays, folder / f"{split}.pt")
