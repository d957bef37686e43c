"""Directories with files for each type, through the command line: arrays, tables, text, KONECT."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import feather, parquet
from torch_geometric.data import HeteroData

import gnnstore
from gnnstore.converters import ConvertOptions, HeteroGraphWriter, from_typed
from gnnstore.errors import InputError
from gnnstore.formats.base.names import joined
from gnnstore.tools.cli import main
from tests.support.effort import choose
from tests.support.hetero import AT, CITES, WRITES, make_hetero

Arrays = dict[str, Any]


@pytest.fixture
def data() -> HeteroData:
    """Return a graph in whose last paper and author the types end, so that edges count them."""
    data = make_hetero(degrees={CITES: 5, WRITES: 3, AT: 4})
    data[AT].edge_index[1, 0] = 5
    return data


def arrays_of_nodes(data: HeteroData, name: str) -> Arrays:
    own = data[name]
    found = {key: own[key].numpy() for key in ("x", "y", "time") if key in own}
    if "train_mask" in own:
        found |= {"train": own.train_mask.numpy(), "val": own.val_mask.numpy()}
    return found


def write_npy(path: Path, arrays: Arrays) -> None:
    path.mkdir(parents=True)
    for name, values in arrays.items():
        np.save(path / f"{name}.npy", values)


def write_npz(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path.with_name(f"{path.name}.npz"), **arrays)


def as_table(arrays: Arrays) -> pa.Table:
    columns = {}
    for name, values in arrays.items():
        if values.ndim == 2:
            flat = pa.array(values.reshape(-1))
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        else:
            columns[name] = pa.array(values)
    return pa.table(columns)


def write_parquet(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = as_table(arrays)
    parquet.write_table(table, path.with_name(f"{path.name}.parquet"), row_group_size=17)


def write_parts(path: Path, arrays: Arrays) -> None:
    """Write a table as two files, one Parquet, one Arrow."""
    path.mkdir(parents=True)
    table = as_table(arrays)
    parquet.write_table(table.slice(0, 3), path / "part-0.parquet")
    feather.write_feather(table.slice(3), path / "part-1.feather", compression="uncompressed")


def write_text(path: Path, arrays: Arrays, mark: str, ending: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns: Arrays = {}
    for name, values in arrays.items():
        if values.ndim == 2:
            columns |= {f"{name}_{i}": values[:, i] for i in range(values.shape[1])}
        else:
            columns[name] = values.astype(np.int64) if values.dtype == bool else values
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    lines = [mark.join(columns), *(mark.join(map(str, row)) for row in rows)]
    text = "\n".join(lines).encode() + b"\n"
    file = path.with_name(f"{path.name}{ending}")
    file.write_bytes(gzip.compress(text) if ending.endswith(".gz") else text)


FORMS: dict[str, Any] = {
    "npy": write_npy,
    "npz": write_npz,
    "parquet": write_parquet,
    "parts": write_parts,
    "csv": lambda path, arrays: write_text(path, arrays, ",", ".csv"),
    "tsv.gz": lambda path, arrays: write_text(path, arrays, "\t", ".tsv.gz"),
}


def write_typed(root: Path, data: HeteroData, form: str) -> Path:
    """Write papers, authors and all edges in a form; institutions are named by edges only."""
    for name in ("paper", "author"):
        FORMS[form](root / "nodes" / name, arrays_of_nodes(data, name))
    for edge_type in data.edge_types:
        own = data[edge_type]
        source, target = own.edge_index.numpy()
        arrays = {"time": own.edge_time.numpy(), "w": own.w.numpy()}
        ends = {"source": source, "target": target}
        if form == "npy":
            ends = {"edge_index": own.edge_index.numpy()}
        elif form == "npz" and edge_type == CITES:
            ends = {"edge_index": np.ascontiguousarray(own.edge_index.numpy().T)}
        FORMS[form](root / "edges" / joined(*edge_type, long="edge"), {**ends, **arrays})
    return root


def convert(root: Path, output: Path, *words: str) -> gnnstore.GraphStore:
    assert main(["convert", "typed", str(root), str(output), "-q", *words]) == 0
    return gnnstore.open(output)


# The others are those of the test after this one.
@pytest.mark.parametrize("form", choose(["npy", "parquet"], list(FORMS)))
def test_each_form(tmp_path: Path, data: HeteroData, form: str) -> None:
    root = write_typed(tmp_path / "in", data, form)
    options = ("--weight-attr", "w", "--reverse", "at", "--memory", "100MB")
    store = convert(root, tmp_path / "a.gnn", *options)
    assert store.node_types == ("author", "institution", "paper")
    assert store.edge_types[:-1] == tuple(sorted(data.edge_types))
    assert store["institution"].num_nodes == 6
    for edge_type in data.edge_types:
        own = store[edge_type]
        assert torch.equal(own.edge_index.tensor(), data[edge_type].edge_index)
        assert torch.equal(own.time[:], data[edge_type].edge_time)
        assert torch.allclose(own.w[:], data[edge_type].w)
        assert own.weights == ("w",)
    for name in ("paper", "author"):
        everything = torch.arange(data[name].num_nodes)
        assert torch.allclose(store[name].x[everything], data[name].x)
        assert np.array_equal(store[name].time.read(), data[name].time)
    assert np.array_equal(store["paper"].labels, data["paper"].y)
    if form not in ("csv", "tsv.gz"):
        ids = data["paper"].train_mask.nonzero().flatten()
        assert np.array_equal(store["paper"].splits["train"], ids)
    assert not list(store.reader.meaningless())


@pytest.mark.parametrize("form", choose(["npz"], ["npz", "parquet", "csv"]))
def test_edges_name_nodes_by_their_ids(tmp_path: Path, data: HeteroData, form: str) -> None:
    rng = np.random.default_rng(0)
    ids = {name: rng.permutation(10**6)[: data[name].num_nodes] for name in ("paper", "author")}
    for name, own in ids.items():
        FORMS[form](tmp_path / "in" / "nodes" / name, {"id": own, "x": data[name].x.numpy()})
    edges = data[WRITES].edge_index.numpy()
    ends = {"source": ids["author"][edges[0]], "target": ids["paper"][edges[1]]}
    FORMS[form](tmp_path / "in" / "edges" / "author__writes__paper", ends)
    store = convert(tmp_path / "in", tmp_path / "a.gnn")
    assert torch.equal(store[WRITES].edge_index.tensor(), data[WRITES].edge_index)
    original = store["paper"].original_ids
    assert original is not None
    assert np.array_equal(original, ids["paper"])
    assert store["paper"].ids_of([ids["paper"][7]]).tolist() == [7]
    ends["source"][3] = -1
    FORMS[form](tmp_path / "in" / "edges" / "author__writes__paper", ends)
    assert main(["convert", "typed", str(tmp_path / "in"), str(tmp_path / "b.gnn"), "-q"]) == 1


def test_konect_bipartite(tmp_path: Path) -> None:
    """Both sides count from 1, and are two types of nodes; the header has their numbers."""
    folder = tmp_path / "in" / "edges" / "user__rates__movie"
    folder.mkdir(parents=True)
    text = "% bip weighted asym\n% 4 5 3\n1 1 5 100\n2 1 3 90\n4 2 1 80\n1 1 2.5 110\n"
    (folder / "out.movielens").write_text(text)
    (folder / "README.movielens").write_text("About this graph\n")
    (folder / "meta.movielens").write_text("name: MovieLens\n")
    words = ("--time-attr", "time", "--weight-attr", "weight", "--reverse", "all")
    store = convert(tmp_path / "in", tmp_path / "a.gnn", *words)
    assert [(name, store[name].num_nodes) for name in store.node_types] == [
        *(("movie", 3), ("user", 5))
    ]
    rates = store["user", "rates", "movie"]
    assert rates.edge_index.tolist() == [[0, 1, 3, 0], [0, 0, 1, 0]]
    assert (rates.weight.tolist(), rates.time.tolist()) == ([5, 3, 1, 2.5], [100, 90, 80, 110])
    assert rates.weight.dtype == torch.float32
    assert (rates.times, rates.weights) == (("time",), ("weight",))
    assert store["movie", "rev_rates", "user"].edge_index.tolist() == [[0, 0, 1, 0], [0, 1, 3, 0]]


def test_konect_undirected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each edge would have one direction, unless its reverse becomes a type."""
    (tmp_path / "in" / "edges" / "a__knows__a").mkdir(parents=True)
    path = tmp_path / "in" / "edges" / "a__knows__a" / "out.friends"
    for header, reverse, warns in (
        ("% sym unweighted", (), True),
        ("% sym unweighted", ("knows",), False),
        ("% asym unweighted", (), False),
    ):
        caplog.clear()
        path.write_text(f"{header}\n1 2\n2 3\n")
        options = ConvertOptions(reverse=reverse, overwrite=True)
        from_typed(tmp_path / "in", tmp_path / "out.gnn", options=options)
        found = "the other direction as a type of its own with reverse='knows'" in caplog.text
        assert found == warns


def test_types_that_are_called_as_the_directories(tmp_path: Path) -> None:
    """Arrays in `nodes/nodes/` have the names of their files, and `nodes/edges.npy` is an x."""
    write_npy(tmp_path / "in" / "nodes" / "nodes", {"x": np.ones((3, 2)), "z": np.arange(3)})
    np.save(tmp_path / "in" / "nodes" / "edges.npy", np.zeros((2, 1)))
    ends = {"source": np.array([0, 1]), "target": np.array([1, 0]), "w": np.ones(2)}
    write_npy(tmp_path / "in" / "edges" / "nodes__to__edges", ends)
    store = convert(tmp_path / "in", tmp_path / "out.gnn")
    assert store["nodes"].z[torch.arange(3)].tolist() == [0, 1, 2]
    assert store["edges"].x[torch.arange(2)].tolist() == [[0], [0]]


def test_without_names_of_columns(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    (tmp_path / "edges").mkdir()
    (tmp_path / "nodes" / "a.csv").write_text("0.5,1\n2,3\n")
    (tmp_path / "edges" / "a__to__b.tsv").write_text("0\t3\n1\t0\n")
    store = convert(tmp_path, tmp_path / "out.gnn")
    assert store["a"].x[torch.arange(2)].tolist() == [[0.5, 1], [2, 3]]
    assert store["a", "to", "b"].edge_index.tolist() == [[0, 1], [3, 0]]
    assert store["b"].num_nodes == 4


def test_columns_of_text(tmp_path: Path) -> None:
    """Masks are 0 and 1; a column with inf has no integers."""
    (tmp_path / "nodes").mkdir()
    (tmp_path / "edges").mkdir()
    (tmp_path / "nodes" / "a.csv").write_text("train,size,year\n1,2,2001\n0,inf,2002\n1,4,2003\n")
    (tmp_path / "nodes" / "b.csv").write_text("7,year\n5,2004\n")
    (tmp_path / "edges" / "a__to__a.csv").write_text("0,1\n")
    store = convert(tmp_path, tmp_path / "out.gnn")
    assert store["b"].year.tolist() == [2004]
    assert store["a"].splits["train"].tolist() == [0, 2]
    assert store["a"].size[torch.arange(3)].tolist() == [2, float("inf"), 4]
    assert store["a"].year[torch.arange(3)].tolist() == [2001, 2002, 2003]


def test_fewer_edges_than_konect_states(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "edges" / "user__rates__movie"
    folder.mkdir(parents=True)
    (folder / "out.m").write_text("% bip unweighted\n% 3 5 3\n1 1\n2 1\n")
    with caplog.at_level(logging.WARNING):
        from_typed(tmp_path, tmp_path / "out.gnn")
    assert "its header states 3 edges, and it has 2" in caplog.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--time-attr", "tiem"), "there is no such node or edge attribute"),
        (("--weight-attr", "x"), "there is no such edge attribute"),
        (("--feature-dtype", "float16"), "there are no features to store"),
    ],
)
def test_options_of_nothing_are_refused_before_work(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr(HeteroGraphWriter, "read_edges", None)
    write_npz(tmp_path / "edges" / "a__to__b", {"edge_index": np.array([[0], [1]])})
    output = str(tmp_path / "out.gnn")
    assert main(["convert", "typed", str(tmp_path), output, "-q", *words]) == 2
    assert message in capsys.readouterr().err


def test_arrays_of_one_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "edges" / "a__to__b"
    write_npz(folder / "z", {"edge_index": np.array([[0], [1]]), "w": np.ones(1)})
    np.save(folder / "w.npy", np.zeros(1))
    assert main(["convert", "typed", str(tmp_path), str(tmp_path / "out.gnn"), "-q"]) == 1
    assert "'w' was given already" in capsys.readouterr().err


def test_names_with_odd_characters(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    edge_type = ("a/b", "is_", "_é__")
    name = joined(*edge_type, long="edge")
    write_npz(tmp_path / "edges" / name, {"edge_index": np.array([[1], [2]])})
    with caplog.at_level(logging.WARNING):
        store = gnnstore.open(from_typed(tmp_path, tmp_path / "out.gnn"))
    assert store.edge_types == (edge_type,)
    assert [store[own].num_nodes for own in ("a/b", "_é__")] == [2, 3]
    assert "a/b: only edges name its nodes, up to number 1" in caplog.text


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "there is nothing in edges/; expected SOURCE__RELATION__TARGET.parquet, .npz"),
        ({"edges/a__b.csv": "0,1\n"}, "'a__b' is not SOURCE__RELATION__TARGET"),
        ({"edges/a__b__c__d.csv": "0,1\n"}, "write _ next to _ as %5F"),
        ({"edges/a__to__b.txt": "0,1\n"}, "a__to__b.txt: is none of .npy, .npz, .parquet"),
        ({"edges/a__to__b.csv": "from,to\n0,1\n"}, "the columns are from, to; expected source"),
        ({"edges/a__to__b.csv": "0,1,2\n"}, "has 3 columns; name the columns behind source and"),
        (
            {"edges/a__to__b.csv": "source,target\n0,x\n", "nodes/b.csv": "y\n1\n"},
            "a__to__b.csv: names nodes of type 'b' by text, and these have no id; give them a",
        ),
        ({"edges/a__to__b/out.c": "% bip\n0 1\n"}, "line 2: column 1: node id 0 is outside [1,"),
        (
            {"edges/a__to__b.csv": "0,5\n", "nodes/b.csv": "y\n1\n2\n"},
            "edges of type ('a', 'to', 'b'): id of the target ('b') 5 at position 0 is outside",
        ),
        (
            {"edges/a__to__b.csv": "0,1\n", "nodes/b.csv": "id\n5\n5\n"},
            "the id 5 is in rows 0 and 1; each node has one row",
        ),
        (
            {"edges/a__to__b.csv": "0,1\n", "edges/a__to__b.tsv": "0\t1\n"},
            "a__to__b.csv and a__to__b.tsv are one table in two formats",
        ),
    ],
)
def test_what_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str], message: str
) -> None:
    root = tmp_path / "in"
    root.mkdir()
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    status = main(["convert", "typed", str(root), str(tmp_path / "out.gnn"), "-q"])
    assert status == (1 if files else 3)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.gnn").exists()


def test_arrays_that_disagree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arrays, message in (
        ({"source": np.arange(3), "target": np.arange(2)}, "has shape [2], expected [E] as source"),
        ({"source": np.arange(3)}, "expected edge_index, or source and target, found source"),
        ({"source": np.ones(3), "target": np.arange(3)}, "expected integers"),
        (
            {"edge_index": np.zeros((2, 3), int), "w": np.ones(2)},
            "has 2 rows, but the graph has 3 edges of type ('a', 'to', 'b')",
        ),
    ):
        write_npz(tmp_path / "in" / "edges" / "a__to__b", arrays)
        assert main(["convert", "typed", str(tmp_path / "in"), str(tmp_path / "o.gnn"), "-q"]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_compressed_edges(tmp_path: Path, data: HeteroData, form: str) -> None:
    """Arrays are by target, tables by source; attributes are in the order of `indices`."""
    own = data[WRITES]
    edge_index = own.edge_index.numpy()
    by_source = form == "parquet"
    rows = edge_index[0 if by_source else 1]
    order = np.argsort(rows, kind="stable")
    count = data["author" if by_source else "paper"].num_nodes
    indptr = np.searchsorted(rows[order], np.arange(count + 1))
    indices = edge_index[1 if by_source else 0][order]
    folder = tmp_path / "in" / "edges" / "author__writes__paper"
    if by_source:
        FORMS[form](folder / "indptr_writes", {"indptr": indptr})
        FORMS[form](folder / "indices_writes", {"target": indices, "w": own.w.numpy()[order]})
    else:
        FORMS[form](folder, {"indptr": indptr, "indices": indices, "w": own.w.numpy()[order]})
    for name in ("paper", "author"):
        FORMS["npz"](tmp_path / "in" / "nodes" / name, {"x": data[name].x.numpy()})
    if not by_source:
        with pytest.raises(InputError, match="counts edges by source or by target; pass layout="):
            from_typed(tmp_path / "in", tmp_path / "a.gnn")
    words = () if by_source else ("--layout", "csc")
    store = convert(tmp_path / "in", tmp_path / "a.gnn", *words)
    assert torch.equal(store[WRITES].edge_index.tensor(), own.edge_index[:, order])
    assert torch.equal(store[WRITES].w[:], own.w[order])


def write_matrix(path: Path, kind: str, shape: tuple[int, int], **arrays: Any) -> None:
    """Write what `scipy.sparse.save_npz` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, format=np.array(kind.encode()), shape=np.array(shape), **arrays)


@pytest.mark.parametrize("kind", [*choose([], ["csr"]), "csc", "coo"])
def test_matrices_of_scipy(tmp_path: Path, kind: str) -> None:
    """Rows are sources and columns targets, whose numbers the shape says; ids are not in it."""
    data = np.array([0.5, 2.0, 3.0])
    arrays = {
        "csr": {"indptr": np.array([0, 2, 2, 3]), "indices": np.array([0, 3, 1])},
        "csc": {"indptr": np.array([0, 1, 2, 2, 3, 3]), "indices": np.array([0, 2, 0])},
        "coo": {"row": np.array([0, 2, 0]), "col": np.array([3, 1, 0])},
    }
    path = tmp_path / "edges" / "user__rates__item.npz"
    write_matrix(path, kind, (3, 5), data=data, **arrays[kind])
    write_npz(tmp_path / "nodes" / "user", {"id": np.array([70, 5, 9])})
    store = gnnstore.open(from_typed(tmp_path, tmp_path / "a.gnn"))
    expected = {
        "csr": [(0, 0, 0.5), (0, 3, 2), (2, 1, 3)],
        "csc": [(0, 0, 0.5), (2, 1, 2), (0, 3, 3)],
        "coo": [(0, 3, 0.5), (2, 1, 2), (0, 0, 3)],
    }
    rates = store["user", "rates", "item"]
    rows = zip(*rates.edge_index.tolist(), rates.edge_weight.tolist(), strict=True)
    assert list(rows) == expected[kind]
    assert (store["user"].num_nodes, store["item"].num_nodes) == (3, 5)
    original = store["user"].original_ids
    assert original is not None
    assert original.tolist() == [70, 5, 9]
    write_npz(tmp_path / "nodes" / "item", {"num_nodes": np.array(4)})
    with pytest.raises(InputError, match="is a matrix with 5 nodes of type 'item', and there are"):
        from_typed(tmp_path, tmp_path / "b.gnn")


USERS = ["zoe", "#1", "é", "7"]
RATES: Arrays = {
    "source": np.array(["7", "zoe", "é"]),
    "target": np.array(["tt2", "tt1", "tt2"]),
    "w": np.array([1, 2, 3]),
}


@pytest.mark.parametrize("on_disk", [*choose([], [False]), True])
@pytest.mark.parametrize("form", choose(["csv"], ["parquet", "csv", "tsv.gz"]))
def test_names_of_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, on_disk: bool
) -> None:
    """Users go by the rows of their table, items by appearance, and ids of years are integers."""
    if on_disk:
        monkeypatch.setattr("gnnstore.converters.edges.numbering._ENTRY_BYTES", 2**23)
    write = FORMS[form]
    write(tmp_path / "nodes" / "user", {"id": np.array(USERS), "y": np.array([3, 4, 5, 6])})
    write(tmp_path / "edges" / "user__rates__item", RATES)
    follows = {"source": np.array(["#1", "zoe"]), "target": np.array(["zoe", "7"])}
    write(tmp_path / "edges" / "user__follows__user", follows)
    made = {"source": np.array(["tt0", "tt2"]), "target": np.array([1, 0])}
    write(tmp_path / "edges" / "item__from__year", made)
    alike = {"source": np.array(["tt9", "b"]), "target": np.array(["b", "tt0"])}
    write(tmp_path / "edges" / "item__like__item", alike)
    options = ConvertOptions(memory_bytes=2**25, reverse=("from",))
    store = gnnstore.open(from_typed(tmp_path, tmp_path / "a.gnn", options=options))
    assert list(store["user"].original_names or ()) == USERS
    # In the order of edge types: item__from__year, item__like__item, user__rates__item.
    assert list(store["item"].original_names or ()) == ["tt0", "tt2", "tt9", "b", "tt1"]
    assert store["year"].original_names is None
    assert store["user"].y.tolist() == [3, 4, 5, 6]
    found = {name: store[of].edge_index.tolist() for of in store.edge_types for name in [of[1]]}
    assert found == {
        "from": [[0, 1], [1, 0]],
        "rev_from": [[1, 0], [0, 1]],
        "follows": [[1, 0], [0, 3]],
        "rates": [[3, 0, 2], [1, 4, 1]],
        "like": [[2, 3], [3, 0]],
    }
    assert store["user", "rates", "item"].w.tolist() == [1, 2, 3]
    assert store["user"].ids_of([["é", "zoe"], ["7", "7"]]).tolist() == [[2, 0], [3, 3]]
    assert store["item"].ids_of("b").tolist() == 3
    with pytest.raises(InputError, match=r"no node has the original name 'tt0', 'x'; store\.o"):
        store["user"].ids_of(["tt0", "7", "x"])
    with pytest.raises(InputError, match="nodes have no names; look them up by integers"):
        store["year"].ids_of(["tt0"])


def test_names_without_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The types of a store without types have names, too, which are found piece by piece."""
    (tmp_path / "in" / "edges").mkdir(parents=True)
    text = "source,target\n" + "".join(f"n{i},n{i + 1}\n" for i in range(7))
    (tmp_path / "in" / "edges" / "node__to__node.csv").write_text(text)
    monkeypatch.setattr("gnnstore.graph.arrays._PIECE_TEXTS", 3)
    store = gnnstore.open(from_typed(tmp_path / "in", tmp_path / "a.gnn"))
    assert (store.num_nodes, store.ids_of(["n7", "n3", "n0"]).tolist()) == (8, [7, 3, 0])
    monkeypatch.setattr("gnnstore.graph.arrays._KEPT_BYTES", 0)
    assert gnnstore.open(tmp_path / "a.gnn").ids_of(np.array(["n6", "n6"])).tolist() == [6, 6]


def test_names_of_columns_are_utf8(tmp_path: Path) -> None:
    (tmp_path / "edges").mkdir()
    header = "source,target,größe\n"
    (tmp_path / "edges" / "a__to__a.csv").write_bytes(f"{header}0,1,2\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"the first line names a column .*, which is not UTF-8"):
        from_typed(tmp_path, tmp_path / "out.gnn")
    (tmp_path / "edges" / "a__to__a.csv").write_text(f"{header}0,1,2\n")
    (edge,) = gnnstore.open(from_typed(tmp_path, tmp_path / "out.gnn")).schema.edge_types
    assert list(edge.attributes) == ["größe"]


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ({"id": ["a", "b"]}, {"source": [0], "target": [1]}, "source: names nodes of type 'a' by"),
        ({"id": [0, 1]}, {"source": ["a"], "target": ["b"]}, "and these have integers as ids"),
        ({"y": [0, 1]}, {"source": ["a"], "target": ["b"]}, "and these have no id; give them a"),
        ({"id": ["a", "a"]}, {"source": ["a"], "target": ["a"]}, "row 1 has the name 'a', which"),
        ({"id": ["a", "b"]}, {"source": ["a", "b"], "target": ["b", "c"]}, "row 1: the name 'c' "),
        ({"id": ["a", ""]}, {"source": ["a"], "target": ["a"]}, "row 1 has an empty name"),
        ({"id": ["a", None]}, {"source": ["a"], "target": ["a"]}, "id: row 1 has no name"),
        ({"id": ["a", "b"]}, {"source": ["a"], "target": [b"\xff"]}, "is not UTF-8; convert it"),
    ],
)
def test_names_that_do_not_go_together(
    tmp_path: Path, nodes: Arrays, edges: Arrays, message: str
) -> None:
    for name in ("nodes", "edges"):
        (tmp_path / name).mkdir()
    columns = {
        name: pa.Array.from_buffers(pa.string(), 1, pa.array(values).buffers())
        if isinstance(values[0], bytes)
        else values
        for name, values in edges.items()
    }
    parquet.write_table(pa.table(nodes), tmp_path / "nodes" / "a.parquet")
    parquet.write_table(pa.table(columns), tmp_path / "edges" / "a__to__a.parquet")
    with pytest.raises(InputError, match=message):
        from_typed(tmp_path, tmp_path / "out.gnn")
    assert {path.name for path in tmp_path.iterdir()} == {"nodes", "edges"}


def test_names_beside_integers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file of digits alone has names if other files of the type have; mixtures are told."""
    for name in ("nodes", "edges"):
        (tmp_path / name).mkdir()
    (tmp_path / "edges" / "u__a__u.csv").write_text("source,target\n12,34\n")
    (tmp_path / "edges" / "u__b__u.csv").write_text("source,target\n34,5f\n")
    (tmp_path / "nodes" / "u.csv").write_text("id,x_0\n34,0.5\n5f,1\n12,2\n")
    store = gnnstore.open(from_typed(tmp_path, tmp_path / "a.gnn"))
    assert store["u", "a", "u"].edge_index.tolist() == [[2], [0]]
    assert store["u", "b", "u"].edge_index.tolist() == [[0], [1]]
    assert store["u"].x[torch.arange(3)].tolist() == [[0.5], [1], [2]]
    (tmp_path / "edges" / "u__b__u.csv").write_text("source,target\n34,5f\n34,12\n")
    from_typed(tmp_path, tmp_path / "b.gnn")
    assert "the column target has integers, such as 12, and text, such as '5f'" in caplog.text
    (tmp_path / "nodes" / "u.csv").write_text("id,z\n12,9007199254740993\n34,1\n5f,2\n")
    store = gnnstore.open(from_typed(tmp_path, tmp_path / "c.gnn"))
    assert store["u"].z.tolist() == [9007199254740993, 1, 2]


@pytest.mark.parametrize("folder", ["nodes", "edges"])
def test_two_files_of_one_type(tmp_path: Path, folder: str) -> None:
    names = {"nodes": ("a", "%61"), "edges": ("a__to__a", "%61__to__a")}[folder]
    write_npz(tmp_path / "edges" / "a__to__a", {"edge_index": np.array([[0], [1]])})
    for name in names:
        values = {"edge_index": np.array([[0], [1]])} if folder == "edges" else {"x": np.ones(2)}
        write_npz(tmp_path / folder / name, values)
    with pytest.raises(InputError, match=r"is the type of .*, written in another way; remove one"):
        from_typed(tmp_path, tmp_path / "out.gnn")


@pytest.mark.parametrize("form", choose(["csv"], ["parquet", "csv"]))
def test_a_column_that_may_have_the_ids(tmp_path: Path, form: str) -> None:
    """Ids of another name are refused until they are named; rows go by `TYPE=`."""
    users = {"user_id": np.array([70, 5, 9]), "age": np.array([30, 40, 40])}
    FORMS[form](tmp_path / "in" / "nodes" / "user", users)
    FORMS[form](tmp_path / "in" / "nodes" / "item", {"code": np.array([2, 0, 1])})
    ends = {"source": np.array([0, 1]), "target": np.array([2, 1])}
    FORMS[form](tmp_path / "in" / "edges" / "user__buys__item", ends)
    with pytest.raises(InputError, match=r"'code' has .*; pass node_id=.'item': 'code'. if they"):
        from_typed(tmp_path / "in", tmp_path / "a.gnn", node_id={"user": ""})
    with pytest.raises(InputError, match="'user_id' has different integers, as ids have, by wh"):
        from_typed(tmp_path / "in", tmp_path / "a.gnn", node_id={"item": "code"})
    store = convert(
        tmp_path / "in", tmp_path / "a.gnn", *("--node-id", "user=", "--node-id", "item=")
    )
    assert store["user", "buys", "item"].edge_index.tolist() == [[0, 1], [2, 1]]
    ends["source"] = np.array([5, 70])
    FORMS[form](tmp_path / "in" / "edges" / "user__buys__item", ends)
    ids = ("--node-id", "user=user_id", "--node-id", "item=code")
    store = convert(tmp_path / "in", tmp_path / "b.gnn", *ids)
    assert store["user", "buys", "item"].edge_index.tolist() == [[1, 0], [0, 2]]
    assert store["user"].age.tolist() == [30, 40, 40]
    original = store["user"].original_ids
    assert original is not None
    assert original.tolist() == [70, 5, 9]
    with pytest.raises(InputError, match="there is no column 'uid', which node_id= names; there"):
        from_typed(tmp_path / "in", tmp_path / "c.gnn", node_id={"user": "uid", "item": "code"})
