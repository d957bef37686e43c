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
from tests.support.effort import choose
from tests.support.hetero import AT, CITES, WRITES, make_hetero
from tests.support.published import (
    write_graphbolt_types,
    write_igbh,
    write_mag240m_types,
    write_ogb_types,
)
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
        assert np.array_equal(store[name].node_year.read(), data[name].time)
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


@pytest.mark.long("test_hetero_store has a small budget")
def test_ogb_bounded_and_resumed(tmp_path: Path, data: HeteroData) -> None:
    root = write_ogb_types(tmp_path / "ogbn_mag", data)
    for name in "ab":
        convert("ogb", root, tmp_path / f"{name}.gnn", *(["--memory", "60MB"] * (name == "b")))
    assert_same_files(tmp_path / "a.gnn", tmp_path / "b.gnn")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("num-node-dict", "paper,author\n60\n", "expected a line of node types and a line with"),
        ("num-node-dict", "paper,author,institution\n60,35,x\n", "'x' is not a number of nodes of"),
        (
            "triplet-type-list",
            "paper,cites\n",
            "'paper___cites' is not a head, a relation and a tail",
        ),
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


def _as_mag(edge_type: Any) -> Any:
    return ("author", "affiliated_with", "institution") if edge_type == AT else edge_type


@pytest.mark.parametrize("reverse", [("writes", "affiliated_with"), *choose([], [(), ("all",)])])
def test_mag240m(tmp_path: Path, reverse: tuple[str, ...]) -> None:
    data = make_hetero(degrees={CITES: 5, WRITES: 3, AT: 4})
    root = write_mag240m_types(tmp_path, data)
    words = [word for name in reverse for word in ("--reverse", name)]
    store = convert("mag240m", root, tmp_path / "a.gnn", *words, "--time-attr", "node_year")
    assert store.node_types == ("paper", "author", "institution")
    assert [own[1] for own in store.edge_types[:3]] == ["cites", "writes", "affiliated_with"]
    expected = {
        (): [],
        ("all",): ["rev_cites", "rev_writes", "rev_affiliated_with"],
    }.get(reverse, ["rev_writes", "rev_affiliated_with"])
    assert [own[1] for own in store.edge_types[3:]] == expected
    assert_edges(store, data, _as_mag)
    papers = store["paper"]
    assert papers.x[torch.arange(60)].dtype == torch.float16
    assert torch.equal(papers.x[torch.arange(60)], data["paper"].x.half())
    labelled = (data["paper"].train_mask | data["paper"].val_mask).numpy()
    assert np.array_equal(papers.labels.isnan(), ~labelled)
    assert set(papers.splits) == {"train", "valid", "test_dev"}
    assert [store[name].num_nodes for name in ("author", "institution")] == [35, 6]
    assert store[CITES].times == ("node_year",)
    assert store[WRITES].times == ()


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"paper": 60, "author": 35}, "has no number of institutions, only paper, author"),
        ({"paper": "60"}, "something else than a dict of counts"),
        ({"paper": torch.ones(3)}, "something else than a dict of counts"),
        ([1, 2], "expected a dict of counts as torch.save writes it, found the opcode EMPTY_LIST"),
        ({"paper": 61, "author": 35, "institution": 6}, "has 60 rows, but the graph has 61 nodes"),
        (
            {"paper": 60, "author": 34, "institution": 6},
            "edges of type ('author', 'writes', 'paper'): id of the source ('author') 34 at",
        ),
    ],
)
def test_mag240m_with_other_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], meta: Any, message: str
) -> None:
    data = make_hetero(degrees={CITES: 5, WRITES: 9, AT: 4})
    data[WRITES].edge_index[0, 0] = 34
    root = write_mag240m_types(tmp_path, data, meta=meta)
    assert message in refuse(capsys, "mag240m", root, tmp_path / "a.gnn")


def test_nothing_in_meta_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    data = make_hetero(degrees={CITES: 5, WRITES: 3, AT: 4})
    root = write_mag240m_types(tmp_path, data, meta={"paper": Evil()})
    refuse(capsys, "mag240m", root, tmp_path / "a.gnn")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("raw", [False, True])
def test_igbh(tmp_path: Path, raw: bool) -> None:
    data = make_hetero(degrees={CITES: 5, ("paper", "written_by", "author"): 3, AT: 4})
    data[AT].edge_index[1, 0] = 5  # institutions are counted by the edges
    root = write_igbh(tmp_path / "small", data, raw=raw)
    store = convert("igbh", root, tmp_path / "a.gnn", "--feature-dtype", "float16")
    assert store.node_types == ("paper", "author", "institution")
    assert [own[1] for own in store.edge_types] == ["cites", "written_by", "at"]
    assert_edges(store, data)
    for name in ("paper", "author"):
        x = store[name].x[torch.arange(data[name].num_nodes)]
        assert (x.shape[1], x.dtype) == (1024, torch.float16)
        width = data[name].x.shape[1]
        assert torch.equal(x[:, :width], data[name].x.half())
    assert np.array_equal(store["paper"].labels, data["paper"].y)
    assert {n: len(ids) for n, ids in store["paper"].splits.items()} == {
        "train": 36,
        "valid": 12,
        "test": 12,
    }
    assert store["institution"].num_nodes == 6


def test_igbh_with_a_file_that_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = make_hetero(degrees={CITES: 5, ("paper", "written_by", "author"): 3})
    root = write_igbh(tmp_path / "small", data, raw=True)
    file = root / "processed" / "author" / "node_feat.npy"
    file.write_bytes(file.read_bytes()[:-100])
    assert "are not the rows of 4096 bytes" in refuse(capsys, "igbh", root, tmp_path / "a.gnn")
    file.write_bytes(file.read_bytes()[: -(4096 - 100)])
    message = refuse(capsys, "igbh", root, tmp_path / "a.gnn")
    assert "id of the target ('author') 34" in message or "is outside [0, 34)" in message


def test_igbh_of_one_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_igbh(tmp_path / "small", make_hetero(degrees={CITES: 5}))
    message = refuse(capsys, "igbh", root, tmp_path / "a.gnn", status=3)
    assert "gnnstore convert igb is for the homogeneous graphs" in message


@pytest.mark.parametrize("edge_format", choose(["csv"], ["numpy", "csv"]))
def test_graphbolt(tmp_path: Path, data: HeteroData, edge_format: str) -> None:
    root = write_graphbolt_types(tmp_path / "set", data, edge_format=edge_format)
    store = convert("graphbolt", root, tmp_path / "a.gnn", "--weight-attr", "edge_w")
    assert store.metadata() == data.metadata()
    assert_edges(store, data)
    for name in ("paper", "author"):
        assert torch.equal(store[name].x[torch.arange(9)], data[name].x[:9])
    for split, mask in (("train", "train_mask"), ("valid", "val_mask")):
        ids = data["paper"][mask].nonzero().flatten()
        assert np.array_equal(store["paper"].splits[split], ids)
        assert np.array_equal(store["paper"].labels[ids], data["paper"].y[ids])
    assert torch.equal(store[WRITES].edge_w[:], data[WRITES].w)
    assert store[WRITES].weights == ("edge_w",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("author:writes:paper", "author:writes", "'author:writes' is not SOURCE:RELATION:TARGET"),
        ("type: paper, num", "type: author, num", "graph: has a type twice"),
        ("num: 35", "num: many", "num: 'many' is not a number of nodes"),
        ("- type: paper", "- type: 'author:writes:paper'", "seeds of edges cannot be a split"),
        ("- type: paper", "- type: venue", "there is no type 'venue'"),
        ("domain: node, type: author", "domain: node, type: x", "there is no type 'x'"),
    ],
)
def test_damaged_graphbolt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    root = write_graphbolt_types(tmp_path / "set", make_hetero())
    path = root / "metadata.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert message in refuse(capsys, "graphbolt", root, tmp_path / "a.gnn")
