"""`gnnstore convert snap`: what text files say of themselves, and what their columns hold."""

from __future__ import annotations

import gzip
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import gnnstore
from tests.support.effort import choose
from tests.support.graphs import read_store

ENTRIES = "1 2 .5\n2 3 1.5\n4 1 2.5\n"
BANNERS = (
    "%%MatrixMarket matrix coordinate real general\n",
    "%MatrixMarket matrix coordinate real general\n",
    "\n%%MatrixMarket matrix coordinate real general\n",
    "% a comment\n%%matrixmarket matrix coordinate real general\n% another\n",
)


@pytest.fixture
def convert(run: Any, tmp_path: Path) -> Any:
    """Return a function that converts a text, and returns what was printed."""

    def convert_text(text: str, *options: str, name: str = "edges.txt") -> Any:
        (tmp_path / name).write_text(text)
        return run("convert", "snap", tmp_path / name, tmp_path / "o.gnn", "--overwrite", *options)

    return convert_text


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    return lambda: read_store(tmp_path / "o.gnn")


@pytest.mark.parametrize("banner", BANNERS)
@pytest.mark.parametrize("name", ["g.mtx", "g.txt"])
def test_a_matrix_is_known_by_its_banner(convert: Any, stored: Any, banner: str, name: str) -> None:
    assert convert(f"{banner}4 4 3\n{ENTRIES}", "--edge-weight", "3", name=name).status == 0
    graph = stored()
    assert (graph.num_nodes, graph.pairs()) == (4, [(3, 0), (0, 1), (1, 2)])
    assert graph.edge_attributes["edge_weight"].tolist() == [2.5, 0.5, 1.5]


def test_a_matrix_without_a_banner_is_refused(convert: Any) -> None:
    done = convert(f"4 4 3\n{ENTRIES}", "--edge-weight", "3", name="g.mtx")
    assert done.status == 1
    assert "has no line '%%MatrixMarket matrix coordinate ...'" in done.stderr


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        ("real general\n4 4 9\n", ["--edge-weight", "3"], "has 3 edges, but .* has 9"),
        ("real general\n4 4 2\n", ["--edge-weight", "3"], "has 3 edges, but .* has 2"),
        (
            "real general\n4 4 3\n",
            ["--num-nodes", "5", "--edge-weight", "3"],
            "has 5 nodes by --num-nodes, but its line",
        ),
        ("pattern general\n4 4 3\n", ["--edge-weight", "3"], "a pattern matrix have no values"),
        ("real symmetric\n4 4 3\n", ["--edge-weight", "3"], "one half of a symmetric matrix"),
        ("general\n4 4 3\n", [], "its first line has .*; expected a matrix that is"),
    ],
)
def test_what_a_matrix_states_must_be_so(
    convert: Any, header: str, options: list[str], message: str
) -> None:
    done = convert(f"%%MatrixMarket matrix coordinate {header}{ENTRIES}", *options)
    assert done.status == 1
    assert re.search(message, " ".join(done.stderr.split()))


def test_a_matrix_of_integers_has_integers(convert: Any, stored: Any) -> None:
    text = "%%MatrixMarket matrix coordinate {} general\n2 2 1\n1 2 7\n"
    for field, dtype in (("integer", "int64"), ("real", "float32")):
        assert convert(text.format(field), "--edge-weight", "3").status == 0
        assert stored().edge_attributes["edge_weight"].dtype == dtype


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("# Nodes: 3 Edges: 2\n0 1\n1 2\n", [], ""),
        ("# Undirected graph: a.txt\n0 1\n", [], "describes an undirected graph"),
        ("# Undirected graph: a.txt\n0 1\n", ["--undirected"], ""),
        ("# Directed graph: a.txt\n0 1\n", [], ""),
        ("% sym unweighted\n% 2 3 3\n1 2\n2 3\n", [], "describes an undirected graph"),
        ("% sym unweighted\n% 2 3 3\n1 2\n2 3\n", ["--undirected"], ""),
    ],
)
def test_comments_that_differ_are_warned_of(
    convert: Any, text: str, options: list[str], said: str
) -> None:
    done = convert(text, *options)
    assert done.status == 0
    printed = " ".join(done.stderr.split())
    assert said in printed
    assert said or not any(word in printed for word in ("header", "undirected"))


def test_a_bipartite_graph_is_refused(convert: Any) -> None:
    done = convert("% bip unweighted\n% 2 2 2\n1 1\n2 2\n")
    assert done.status == 1
    assert "two kinds of nodes have the same numbers" in " ".join(done.stderr.split())


# ---- columns


@pytest.mark.parametrize("ids", [[], ["--num-nodes", "9"], ["--string-ids"]])
def test_columns_keep_their_types(convert: Any, stored: Any, ids: list[str]) -> None:
    text = "0 1 1609459201 -1 .5 x\n1 2 1609459202 3 7 y\n"
    columns = ["--edge-weight", "5", "--edge-column", "time=3", "--edge-column", "sign=4:float64"]
    assert convert(text, *columns, "--ignore-extra-columns", *ids).status == 0
    found = stored().edge_attributes
    assert found["time"].tolist() == [1609459201, 1609459202]
    assert found["edge_weight"].tolist() == [0.5, 7]
    assert found["sign"].tolist() == [-1, 3]
    assert [found[name].dtype.name for name in ("time", "edge_weight", "sign")] == [
        *("int64", "float32", "float64")
    ]


@pytest.mark.parametrize("ids", [[], *choose([], [["--num-nodes", "9"]]), ["--string-ids"]])
def test_a_late_fraction_makes_a_column_float32(convert: Any, stored: Any, ids: list[str]) -> None:
    text = "0 1 7\n" * 180_000 + "0 2 .25\n"
    assert convert(text, "--edge-weight", "3", *ids).status == 0
    weights = stored().edge_attributes["edge_weight"]
    assert (weights.dtype, weights.max(), weights.min()) == (np.float32, 7, 0.25)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("0 1 1609459201.5\n", "3:int64", "'1609459201.5' is not an integer, expected a time"),
        ("0 1 99999999999999999999\n", "3", "write all as integers of 64 bits"),
        ("0 1 '7'\n", "3", "is not a number, expected a time"),
        ("0 1 7\n", "2", "come from one column"),
        ("0 1 7\n", "3:int16", "'int16' is not one of int64, float32, float64"),
        ("0 1 7\n", "x", "is not a column of edges.txt; give its number"),
    ],
)
def test_columns_that_would_lose_something(
    convert: Any, text: str, column: str, message: str
) -> None:
    done = convert(text, "--edge-column", f"time={column}")
    assert done.status in (1, 2)
    assert message in " ".join(done.stderr.split())


# ---- comments among names


def names(tmp_path: Path) -> list[str]:
    found = gnnstore.open(tmp_path / "o.gnn").original_names
    assert found is not None
    return list(found)


def test_names_that_begin_with_a_mark_are_names(tmp_path: Path, convert: Any) -> None:
    text = "# from\tto\n\ncats\tdogs\n#cats\t#dogs\n%x\tcats\n"
    done = convert(text, "--string-ids")
    assert done.status == 0
    assert names(tmp_path) == ["cats", "dogs", "#cats", "#dogs", "%x"]
    assert "1 lines that begin with # or % were passed over" in " ".join(done.stderr.split())
    assert convert(text, "--string-ids", "--comment", "#").status == 0
    assert names(tmp_path) == ["cats", "dogs", "%x"]
    done = convert(text, "--string-ids", "--comment", "", "--no-header")
    assert names(tmp_path)[:2] == ["# from", "to"]
    assert "passed over" not in done.stderr


def test_a_missing_class_is_no_class(tmp_path: Path, convert: Any) -> None:
    np.save(tmp_path / "y.npy", np.array([0, 1, np.nan, np.nan, 2], np.float32))
    assert convert("0 1\n", "--num-nodes", "5", "--labels", str(tmp_path / "y.npy")).status == 0
    assert gnnstore.open(tmp_path / "o.gnn").num_classes == 3


# ---- triples, features and labels with headers


def test_triples_with_a_header(run: Any, tmp_path: Path) -> None:
    (tmp_path / "kg.tsv").write_text("node1\tlabel\tnode2\na\tr\tb\n")
    done = run("convert", "triples", tmp_path / "kg.tsv", tmp_path / "o.gnn")
    said = "looks like a header: none of its names (node1, node2, label) is in another line"
    assert said in " ".join(done.stderr.split())
    assert "Skip it with --skip-header, or keep it with --no-header" in " ".join(
        done.stderr.split()
    )
    done = run("convert", "triples", tmp_path / "kg.tsv", tmp_path / "o.gnn", "--skip-header")
    assert done.status == 0
    assert names(tmp_path) == ["a", "b"]


def test_openke(run: Any, tmp_path: Path) -> None:
    directory = tmp_path / "FB15K"
    directory.mkdir()
    (directory / "train2id.txt").write_text("2\n0 1 0\n1 2 5\n")
    (directory / "test2id.txt").write_text("1\n0 2 5\n")
    words = ("convert", "triples", directory, tmp_path / "o.gnn", "--openke", "--overwrite")
    assert run(*words).status == 0
    graph = read_store(tmp_path / "o.gnn")
    assert graph.pairs() == [(0, 1), (1, 2)]
    assert graph.edge_attributes["edge_type"].tolist() == [0, 5]
    (directory / "train2id.txt").write_text("3\n0 1 0\n1 2 5\n")
    done = run(*words)
    assert done.status == 1
    assert "has 2 triples, but its first line is '3'" in done.stderr
    done = run(*words[:2], directory / "train2id.txt", *words[3:4], "--integer-ids", "--overwrite")
    assert "pass --openke" in done.stderr


def test_features_and_labels_with_headers(run: Any, tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("0 1\n")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "y.csv").write_text("class\n7\n8\n")
    words = ["convert", "snap", tmp_path / "e.txt", tmp_path / "o.gnn", "--overwrite"]
    words += ["--features", tmp_path / "x.csv", "--labels", tmp_path / "y.csv"]
    done = run(*words, "--features-skip-header")
    assert "If the line names the columns, skip it (--labels-skip-header" in done.stderr
    done = run(*words, "--labels-skip-header")
    assert "If the line names the columns, skip it (--features-skip-header" in done.stderr
    done = run(*words, "--labels-skip-header", "--features-skip-header", "--feature-dtype", "int64")
    assert done.status == 0
    attributes = read_store(tmp_path / "o.gnn").attributes
    assert attributes["x"].tolist() == [[1, 2], [3, 4]]
    assert attributes["y"].ravel().tolist() == [7, 8]


# ---- advice


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (",s,t\n0,5,7\n", ["--skip-header", "--ignore-extra-columns"], "index that pandas writes"),
        ('"ann","bob"\n', [], "quotation marks have no meaning in numbers"),
        ('"Smith, J",bob\n', ["--string-ids"], "and a comma within them is not read"),
        ("1;2\n", [], "found 1 field, expected 2, in '1;2'"),
    ],
)
def test_advice_leads_to_what_helps(
    convert: Any, text: str, options: list[str], message: str
) -> None:
    done = convert(text, *options)
    assert done.status == 1
    assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        (
            "snap",
            "a.npz",
            "one of arrays (.npz) is read by 'gnnstore convert numpy'",
        ),
        ("snap", "a.npy", "is an array (.npy); give it to an option that takes arrays"),
        ("snap", "a.tar", "is a tar archive; extract what is in it"),
        ("snap", "a.tar.gz", "is a tar archive; extract what is in it"),
        ("snap", "a.parquet", "is a Parquet file; convert it with 'gnnstore convert table'"),
        ("numpy", "a.parquet", "is a Parquet file; convert it with 'gnnstore convert table'"),
        ("numpy", "a.npy", "is one array (.npy), where edge_index and others are wanted"),
        ("numpy", "a.tar", "is a tar archive; extract what is in it"),
        ("snap", "a.h5", "is an HDF5 file, which is not read; save its arrays with numpy.savez"),
        ("snap", "a.html", "is a web page; download the file itself"),
    ],
)
def test_a_file_of_another_kind_is_named(
    run: Any, tmp_path: Path, kind: str, name: str, said: str
) -> None:
    array = np.array([[0, 1], [1, 0]])
    np.savez(tmp_path / "a.npz", edge_index=array)
    np.save(tmp_path / "a.npy", array)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "a.npy", "a.npy")
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress((tmp_path / "a.tar").read_bytes()))
    parquet.write_table(pa.table({"s": [0], "t": [1]}), tmp_path / "a.parquet")
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    (tmp_path / "a.html").write_text("<!DOCTYPE html>\n<html>404</html>\n")
    done = run("convert", kind, tmp_path / name, tmp_path / "o.gnn")
    assert done.status == 1
    assert said in " ".join(done.stderr.split())


def test_names_may_begin_as_a_file_of_tables_does(run: Any, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("PAR1\tTP53\nPAR1\tpar10\n")
    done = run("convert", "snap", tmp_path / "a.tsv", tmp_path / "o.gnn", "--string-ids")
    assert done.status == 0, done.stderr


def test_no_edges_within_memory_that_holds_no_pointers(convert: Any, tmp_path: Path) -> None:
    options = ("--num-nodes", "4000000", "--memory", "24MB", "--self-loops")
    for loops, num_edges in (("keep", 0), ("add", 4_000_000)):
        assert convert("# a comment\n", *options, loops).status == 0
        assert gnnstore.open(tmp_path / "o.gnn").num_edges == num_edges


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_ogb_takes_parts_that_were_unpacked(run: Any, tmp_path: Path, ending: str) -> None:
    raw = tmp_path / "ogbn" / "raw"
    raw.mkdir(parents=True)

    def write(stem: str, text: str, ending: str = ending) -> None:
        data = text.encode()
        data = gzip.compress(data) if ending.endswith("gz") else data
        (raw / f"{stem}{ending}").write_bytes(data)

    for stem, text in (("num-node-list", "2\n"), ("num-edge-list", "1\n"), ("edge", "0,1\n")):
        write(stem, text)
    words = ("convert", "ogb", tmp_path / "ogbn", tmp_path / "o.gnn", "--overwrite")
    done = run(*words)
    assert "there are no features: the store has no x" in done.stderr
    write("node-feat", "1,2\n3,4\n", ".csv")
    write("edge-feat", "5\n", ".csv.gz")
    assert run(*words).status == 0
    graph = read_store(tmp_path / "o.gnn")
    assert graph.attributes["x"].tolist() == [[1, 2], [3, 4]]
    assert graph.edge_attributes["edge_attr"].tolist() == [[5]]
    write("node-feat", "1,2\n3,4\n", ".csv.gz")
    assert "both node-feat.csv.gz and node-feat.csv are there" in run(*words).stderr
    (raw / "node-feat.csv.gz").rename(raw / "node-feat.csv.xz")
    (raw / "node-feat.csv").unlink()
    assert "node-feat.csv.xz: only .csv.gz and .csv are read" in run(*words).stderr
