"""A directory with small data under the names that the documentation uses."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from gnnstore.testing import published
from gnnstore.testing.graphs import random_graph


@pytest.fixture
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty directory filled with the inputs of the examples, and move into it."""
    rng = np.random.default_rng(0)
    for name, num_classes in (("ogbn_arxiv", 40), ("ogbn_products", 47)):
        _ogb(tmp_path / "dataset" / name, rng, num_classes)
    edges = rng.integers(0, 500, (2000, 2))
    edges[:500, 0] = np.arange(500)  # every node occurs, so that there are 500 of them
    text = "# FromNodeId\tToNodeId\n" + "".join(f"{a}\t{b}\n" for a, b in edges)
    (tmp_path / "edges.txt").write_text(text)
    (tmp_path / "com-lj.ungraph.txt.gz").write_bytes(gzip.compress(text.encode()))
    np.save(tmp_path / "x.npy", rng.standard_normal((500, 16), dtype=np.float32))
    np.save(tmp_path / "y.npy", rng.integers(0, 4, 500))
    splits = dict(
        zip(("train", "valid", "test"), np.split(np.arange(500), [300, 400]), strict=True)
    )
    np.savez(tmp_path / "splits.npz", allow_pickle=False, **splits)
    np.savez(
        tmp_path / "graph.npz",
        allow_pickle=False,
        edge_index=edges.T,
        x=np.load(tmp_path / "x.npy"),
        y=np.load(tmp_path / "y.npy"),
        **splits,
    )
    _published(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _published(root: Path) -> None:
    (root / "FB15k-237").mkdir()
    for split in ("train", "valid", "test"):
        text = f"/m/01\t/film/actor\t/m/02\n/m/02\t/film/genre\t/m/{split}\n"
        (root / "FB15k-237" / f"{split}.txt").write_text(text)
        (root / f"{split}.txt").write_text(text)
    """Write the data sets that are not OGB's or SNAP's, and features in several files."""
    graph = random_graph(200, 900, feature_dim=16, num_classes=4, edge_feature_dim=2)
    published.write_graphbolt(root / "datasets" / "small", graph)
    graph.attributes["year"] = np.arange(200)
    published.write_mag240m(root / "dataset", graph)
    graph.attributes["x"] = np.zeros((200, 1024), np.float32)
    published.write_igb(root / "igb" / "small", graph)
    (root / "parts").mkdir()
    for number, rows in enumerate(np.array_split(np.load(root / "x.npy"), 3)):
        rows.tofile(root / "parts" / f"x-{number}.bin")


def _ogb(root: Path, rng: np.random.Generator, num_classes: int) -> None:
    num_nodes, num_edges = 300, 1200

    def write(name: str, rows: np.ndarray) -> None:
        file = root / f"{name}.csv.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(",".join(map(str, np.atleast_1d(row).tolist())) + "\n" for row in rows)
        file.write_bytes(gzip.compress(text.encode()))

    write("raw/edge", rng.integers(0, num_nodes, (num_edges, 2)))
    write("raw/num-node-list", np.array([num_nodes]))
    write("raw/num-edge-list", np.array([num_edges]))
    write("raw/node-feat", rng.standard_normal((num_nodes, 8)).round(3))
    write("raw/node-label", rng.integers(0, num_classes, num_nodes))
    for name, ids in zip(
        ("train", "valid", "test"), np.split(np.arange(num_nodes), [200, 250]), strict=True
    ):
        write(f"split/time/{name}", ids)
