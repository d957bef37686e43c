"""Messages name what there is, where, and the remedy that applies, spelt as the reader has it."""

from __future__ import annotations

import gzip
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gnnstore.converters import (
    from_graphbolt,
    from_igb,
    from_igbh,
    from_mag240m,
    from_numpy,
    from_ogb,
    from_pyg,
    from_snap,
    from_tables,
    from_triples,
    from_typed,
)
from gnnstore.errors import GnnstoreError, InputError, UsageError

EDGES = pa.table({"source": [0, 1], "target": [1, 2]})


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        *((word, "snap") for word in ("csv", "TSV", "txt", "edgelist", "mtx")),
        *((word, "table") for word in ("parquet", "feather", "pandas")),
        *((word, "numpy") for word in ("npz", "npy")),
        ("pt", "pyg"),
        ("openke", "triples"),
    ],
)
def test_names_of_formats_lead_to_the_kind_that_reads_them(run: Any, word: str, kind: str) -> None:
    done = run("convert", word, "a", "b")
    assert done.status == 2
    assert f"No such kind {word!r}. 'gnnstore convert {kind}' reads" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("e.csv", "source,target\n1,2\n", "snap"),
        ("e.txt", "# comment\n1 2\n2 3\n", "snap"),
        ("e.csv", "source,target,weight\n1,2,0.5\n", "snap"),
        ("missing.tsv", None, "snap"),
        ("kg.tsv", "a\tlikes\tb\nb\tlikes\tc\n", "triples"),
        ("kg", "<a> <b> <c> .\n", "triples"),
        ("a.npz", None, "numpy"),
        ("data.pt", None, "pyg"),
        ("shop/edges/a__b__c.csv", "", "typed"),
        ("fb15k/train.txt", "", "triples"),
        ("arxiv/split/time/train.csv.gz", "", "ogb"),
        ("products/metadata.yaml", "", "graphbolt"),
        ("arrays/edge_index.npy", "", "numpy"),
    ],
)
def test_an_input_without_its_kind_leads_to_the_kind(
    run: Any, tmp_path: Path, name: str, content: str | None, kind: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    given = tmp_path / Path(name).parts[0]
    done = run("convert", given, "g.gnn", "--undirected")
    assert done.status == 2
    assert f"\n  gnnstore convert {kind} {given} g.gnn --undirected\n" in done.stderr
    alone = run("convert", given)
    assert f"\n  gnnstore convert {kind} {given} {given.stem}.gnn\n" in alone.stderr


def test_what_is_no_input_of_a_converter_leads_elsewhere(
    run: Any, tmp_path: Path, example: Path
) -> None:
    spaced = tmp_path / "my graph.gnn"
    spaced.symlink_to(example)
    assert f"  gnnstore inspect {example}\n" in run("convert", example, "g.gnn").stderr
    assert "Read it with networkx" in run("convert", "g.graphml", "g.gnn").stderr
    tables = run("convert", "e.parquet", "g.gnn").stderr
    assert "gnnstore convert table g.gnn --edges e.parquet --source COLUMN" in tables
    assert "Choose graphbolt" in run("convert", "g.thing", "g.gnn").stderr
    assert f"  gnnstore inspect '{spaced}'\n" in run("convert", spaced, "g.gnn").stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("e.txt.gz", gzip.compress(bytes(100))[:12] + bytes(50)),  # damaged
        ("e.txt.gz", b"1 2\n"),
        ("e.txt", b""),
        ("cora/raw/ind.cora.x", b""),  # of PyG's data set
    ],
)
def test_no_kind_is_suggested_for_what_is_like_none(
    run: Any, tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    done = run("convert", tmp_path / Path(name).parts[0], "g.gnn")
    assert done.status == 2
    assert "Choose graphbolt, igb" in done.stderr


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("e.csv --undirected o.gnn", "snap e.csv --undirected o.gnn"),
        ("e.csv --seed 3", "snap e.csv e.gnn --seed 3"),
        ("e.csv --seed 3 o.gnn", "snap e.csv --seed 3 o.gnn"),
        ("e.pq --seed 3", "table e.gnn --edges e.pq --source COLUMN --target COLUMN --seed 3"),
        ("e.pq o.gnn", "table o.gnn --edges e.pq --source COLUMN --target COLUMN"),
    ],
)
def test_an_output_is_added_where_none_is_given(run: Any, words: str, wanted: str) -> None:
    assert f"\n  gnnstore convert {wanted}\n" in run("convert", *words.split()).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("snap", "e.txt"), "'OUTPUT'. Give the path of the store to write, such as graph.gnn."),
        (("rmat",), "'OUTPUT'. Give the path of the store to write"),
        (("snap",), "'INPUT'. Give the path of the data to convert."),
        (("quantize", "a.gnn"), "It is a command of its own: gnnstore quantize."),
        (
            ("snap", "e.txt", "o.gnn", "--split-fractions", "80,10,10"),
            "-fractions 80,10,10 are not",
        ),
        (("snap", "kg.tsv", "o.gnn"), "'gnnstore convert triples' reads lines of head, relation"),
        (("snap", ".", "o.gnn"), "is a directory; name a file in it"),
        (("snap", "e.txt", "o.gnn", "--time-attr", "t"), "node or edge attribute; there are none"),
    ],
)
def test_mistakes_lead_to_what_to_type(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.txt").write_text("0 1\n1 2\n")
    Path("kg.tsv").write_text("a\tlikes\tb\nb\tlikes\tc\n")
    done = run("convert", *words)
    assert done.status in {1, 2}
    assert said in done.stderr
    assert not Path("o.gnn").exists()


def said_of(tmp_path: Path, text: str, **options: Any) -> str:
    (tmp_path / "e.txt").write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(GnnstoreError) as raised:
            from_snap(tmp_path / "e.txt", tmp_path / "o.gnn", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["e.txt"]
    return str(raised.value)


@pytest.mark.parametrize("string_ids", [False, True])
@pytest.mark.parametrize(("mark", "name"), [(";", "semicolons"), ("|", "bars")])
def test_other_separators_are_named(tmp_path: Path, mark: str, name: str, string_ids: bool) -> None:
    said = said_of(tmp_path, f"0{mark}1\n1{mark}2\n", string_ids=string_ids)
    assert said.endswith(
        f". If {name} separate the columns, which is not read, write tabs in their place, and "
        "points in numbers"
    )


def test_semicolons_next_to_commas_in_numbers_are_named(tmp_path: Path) -> None:
    said = said_of(tmp_path, "0;1;0,5\n1;2;1,5\n")
    assert "line 1: column 1: '0;1;0' is not an integer" in said
    assert "If semicolons separate the columns" in said


def test_numbers_that_are_not_written_as_integers(tmp_path: Path) -> None:
    said = said_of(tmp_path, "0 1\n1.01e+02 1\n")
    assert said.endswith(
        "line 2: column 1: '1.01e+02' is not written as an integer, expected a node id"
    )
    said = said_of(tmp_path, "0 1 1\n1 2 1.01e+02\n", edge_weight="3:int64")
    assert said.endswith("column 3: '1.01e+02' is not written as an integer, expected a weight")


def test_the_line_of_a_weight_that_float32_does_not_hold(tmp_path: Path) -> None:
    text = "# head\n" + "".join(f"{i} {i + 1} 1.5\n" for i in range(5)) + "5 6 1e300\n"
    said = said_of(tmp_path, text, edge_weight="3:float32")
    assert said.endswith(
        "line 7: column 3: '1e300' overflows float32; give the type, as in 3:float64"
    )


REMEDIES = {
    "0 1 5\n1 2 6\n": "the other columns with --ignore-extra-columns, or keep them with "
    "--edge-weight COLUMN and --edge-column",
    "4\n0 1\n1 2\n": "If the first, which alone differs, is not an edge, skip it (--skip-header)",
    "0 1\n1 2 3\n": "Lines have 2 to 3 fields: an adjacency list? Write one edge a line",
    "n m\n0 1\n": "If the line names the columns, skip it with --skip-header",
    "ann bob\nbob cy\n": "If nodes go by names, number them with --string-ids",
    "a 0 1\na 1 2\n": "Say which columns are the ends of an edge, with --source and --target",
    "0 1 1e400\n": "overflows float64; it holds numbers up to 1.79e308, and inf",
}


def test_the_remedy_that_applies_is_named_alone(run: Any, tmp_path: Path) -> None:
    for text, remedy in REMEDIES.items():
        (tmp_path / "e.txt").write_text(text)
        more = ["--edge-weight", "3"] if "1e" in text else []
        more = ["--ignore-extra-columns"] if text[0] == "a" else more
        done = run("convert", "snap", tmp_path / "e.txt", tmp_path / "o.gnn", *more)
        assert done.status == 1
        assert done.stderr.endswith(f"{remedy}\n"), text
        told = ("--skip-header", "--string-ids", "--ignore-", "--source")
        assert not [o for o in told if o in done.stderr and o not in remedy], text
        assert "=" not in done.stderr.partition("error:")[2].replace(str(tmp_path), ""), text


def test_remedies_for_triples(run: Any, tmp_path: Path) -> None:
    for text, remedy in (
        (
            "2\n0 1 2\n0 1 2\n",
            "If files begin with the number of triples, as OpenKE's do, pass --openke",
        ),
        ("a b r\nb c r\n", "If entities and relations go by names, leave out --integer-ids"),
        ("h t r\n0 1 2\n", "If the line names the columns, skip it with --skip-header"),
    ):
        (tmp_path / "t.txt").write_text(text)
        done = run("convert", "triples", tmp_path / "t.txt", tmp_path / "o.gnn", "--integer-ids")
        assert done.stderr.endswith(f". {remedy}\n"), text


def test_options_of_other_kinds_are_spelt_as_there(run: Any, tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("0 1 2\n")
    cases: list[tuple[list[Any], str]] = [
        (
            ["snap", tmp_path / "e.txt", "OUT", "--edge-column", "t=3:int9"],
            "--edge-column t='3:int9'",
        ),
        (["table", "OUT", "--edges", "e", "--features", "x"], "--features, --label, --split and"),
    ]
    for words, said in cases:
        done = run("convert", *[tmp_path / "o.gnn" if word == "OUT" else word for word in words])
        assert (done.status, said in done.stderr) == (2, True), done.stderr


def test_the_row_of_a_value_in_lists(tmp_path: Path) -> None:
    for values, said in (
        ([[1, 2], [3, None], [5, 6]], "x: row 1 has no value"),
        ([[1, 2], [3, 4], None], "x: row 2 has no value"),
        ([[[1], [2]], [[3], [4]], [[5], [None]]], "x: row 2 has no value"),
        ([[[1], [2]], [[3], [4, 5]], [[5], [6]]], "x: row 1 has 2 values, and row 0 1"),
    ):
        nodes = pa.table({"x": pa.array(values)})
        with pytest.raises(InputError, match=said):
            from_tables(EDGES, tmp_path / "o.gnn", nodes=nodes, features="x")


def test_labels_of_text_are_refused_as_text(tmp_path: Path) -> None:
    nodes = pa.table({"c": ["a", None, "b"]})
    with pytest.raises(InputError, match="c: is string, which is not a number"):
        from_tables(EDGES, tmp_path / "o.gnn", nodes=nodes, label="c")


def test_ids_of_labels_next_to_names(tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("a b\n")
    (tmp_path / "y.csv").write_text("0,1\n")
    with pytest.raises(UsageError, match=r"from_tables takes nodes= and node_id="):
        from_snap(
            tmp_path / "e.txt",
            tmp_path / "o.gnn",
            string_ids=True,
            labels=tmp_path / "y.csv",
            labels_ids=tmp_path / "y.csv",
        )


CONVERTERS: dict[str, Any] = {
    "ogb": from_ogb,
    "igb": from_igb,
    "igbh": from_igbh,
    "mag240m": from_mag240m,
    "graphbolt": from_graphbolt,
    "triples": from_triples,
    "numpy": from_numpy,
    "typed": from_typed,
    "snap": from_snap,
    "pyg": from_pyg,
}
DIRECTORIES = {
    "typed": "edges/a__b__a.csv",
    "numpy": "edge_index.npy",
    "triples": "train.txt",
    "ogb": "raw/edge.csv.gz",
    "graphbolt": "metadata.yaml",
    "igb": "processed/paper__cites__paper/edge_index.npy",
}


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_directories_of_other_kinds(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "d" / DIRECTORIES[kind]
    file.parent.mkdir(parents=True)
    if file.suffix == ".npy":
        np.save(file, np.array([[0], [1]]))
    else:
        file.write_text("0,1\n")
    for own, convert in CONVERTERS.items():
        is_taken = own == kind or {own, kind} == {"igb", "igbh"}
        # In a directory without .npy files arrays are none, but a file may be one.
        if is_taken:
            continue
        with pytest.raises(GnnstoreError) as raised:
            convert(tmp_path / "d", tmp_path / "o.gnn")
        assert f". 'gnnstore convert {kind}' reads such a directory" in str(raised.value), own
