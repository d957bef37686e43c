"""Published layouts of graphs with several types, in miniature, through the command line."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import gnnstore
from gnnstore.tools.cli import main
from tests.support.hetero import WRITES, make_hetero
from tests.support.published import write_ogb_types
from tests.support.stores import assert_same_files


@pytest.fixture
def data() -> HeteroData:
    """Return a graph whose papers have years; their times are those of nodes."""
    return make_hetero()


def convert(*words: object) -> gnnstore.GraphStore:
    """Run `gnnstore convert`, and return the store: the last word but options."""
    assert main(["convert", *map(str, words), "-q"]) == 0
    return gnnstore.open(str(words[2]))


def refuse(capsys: pytest.CaptureFixture[str], *words: object, status: int = 1) -> str:
    """Run `gnnstore convert`, which must refuse its input and leave nothing; return the error."""
    capsys.readouterr()
    assert main(["convert", *map(str, words), "-q"]) == status
    assert not Path(str(words[2])).exists()
    return capsys.readouterr().err


def assert_edges(store: gnnstore.GraphStore, data: HeteroData, names: Any = None) -> None:
    """Check that a store has the edges of a graph, in the order of their ids."""
    for edge_type in data.edge_types:
        found = store[names(edge_type) if names else edge_type]
        assert torch.equal(found.edge_index.tensor(), data[edge_type].edge_index)
    assert not list(store.reader.meaningless())


@pytest.mark.parametrize("binary", [False, True])
def test_ogb(tmp_path: Path, data: HeteroData, binary: bool) -> None:
    root = write_ogb_types(tmp_path / "ogbn_mag", data, binary=binary)
    options = ("--time-attr", "node_year", "--weight-attr", "edge_w", "--reverse", "writes")
    del data["paper", "rev_writes", "author"]
    if (root / "raw" / "relations").exists():
        _remove_triplet(root, "paper,rev_writes,author")
    else:
        _remove_members(root, "paper___rev_writes___author")
    store = convert("ogb", root, tmp_path / "a.gnn", *options)
    assert store.node_types == tuple(sorted(data.node_types))
    assert store.edge_types[:-1] == tuple(sorted(data.edge_types))
    assert store.edge_types[-1] == ("paper", "rev_writes", "author")
    assert_edges(store, data)
    for name in ("paper", "author"):
        assert torch.equal(store[name].x[torch.arange(9)], data[name].x[:9])
        assert np.array_equal(store[name].attribute("node_year").read(), data[name].time)
    assert np.array_equal(store["paper"].labels[:, 0], data["paper"].y)
    assert np.array_equal(
        store["paper"].splits["train"], data["paper"].train_mask.nonzero().flatten()
    )
    assert set(store["paper"].splits) == {"train", "valid", "test"}
    assert store["institution"].num_nodes == 6
    assert torch.equal(store[WRITES].edge_w[:].flatten(), data[WRITES].w)
    assert store[WRITES].times == ("node_year",)
    assert store[WRITES].weights == ("edge_w",)


def _remove_triplet(root: Path, line: str) -> None:
    path = root / "raw" / "triplet-type-list.csv.gz"
    lines = gzip.decompress(path.read_bytes()).decode().replace(f"{line}\n", "")
    path.write_bytes(gzip.compress(lines.encode()))


def _remove_members(root: Path, name: str) -> None:
    for path in (root / "raw").glob("*.npz"):
        with np.load(path) as archive:
            members = {key: archive[key] for key in archive if key != name}
        np.savez(path, **members)


def test_ogb_bounded_and_resumed(tmp_path: Path, data: HeteroData) -> None:
    root = write_ogb_types(tmp_path / "ogbn_mag", data)
    for name in "ab":
        convert("ogb", root, tmp_path / f"{name}.gnn", *(["--memory", "60MB"] * (name == "b")))
    assert_same_files(tmp_path / "a.gnn", tmp_path / "b.gnn")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("num-node-dict", "paper,author\n60\n", "expected a line of node types and a line of"),
        ("num-node-dict", "paper,author,institution\n60,35,x\n", "expected a line of node types"),
        ("triplet-type-list", "paper,cites\n", "'paper,cites' is no head, relation and tail"),
        ("triplet-type-list", "paper,likes,paper\n", "relations/paper___likes___paper does not"),
    ],
)
def test_damaged_ogb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, message: str
) -> None:
    root = write_ogb_types(tmp_path / "ogbn_mag", make_hetero())
    (root / "raw" / f"{file}.csv.gz").write_bytes(gzip.compress(text.encode()))
    status = 3 if "does not" in message else 1
    assert message in refuse(capsys, "ogb", root, tmp_path / "a.gnn", status=status)


def test_ogb_refuses_what_is_for_one_type(
    tmp_path: Path, data: HeteroData, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_ogb_types(tmp_path / "ogbn_mag", data)
    words = ("ogb", root, tmp_path / "a.gnn", "--add-inverse-edge")
    assert "--reverse all" in refuse(capsys, *words, status=2)
