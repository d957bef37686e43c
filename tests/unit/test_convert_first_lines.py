"""Text as it is published: what its first line says, lines that are no edges, names and triples."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.converters import ConvertOptions, from_snap, from_triples, from_typed
from gnnstore.errors import InputError, UsageError
from tests.support.effort import choose
from tests.support.graphs import read_store

NAMES: dict[str, Any] = {"string_ids": True}
IGNORE: dict[str, Any] = {"extra_columns": "ignore"}


def edges(folder: Path, text: str, name: str = "e.txt", **how: Any) -> list[tuple[Any, Any]]:
    """Convert a text, and return the edges as the file has them, sorted."""
    (folder / name).write_text(text)
    path = from_snap(folder / name, folder / "o.gnn", options=ConvertOptions(overwrite=True), **how)
    store, pairs = gnnstore.open(path), read_store(path).pairs()
    if store.original_names is not None:
        names = list(store.original_names)
        return sorted((names[s], names[t]) for s, t in pairs)
    ids = range(store.num_nodes) if store.original_ids is None else store.original_ids[:].tolist()
    return sorted((ids[s], ids[t]) for s, t in pairs)


def triples(folder: Path, *texts: str, **how: Any) -> list[list[tuple[str, str, str]]]:
    """Convert the triples of train, valid and test, and return them as the files have them."""
    stems = ("train", "valid", "test")
    for stem, text in zip(stems, texts, strict=False):
        (folder / f"{stem}.txt").write_text(text)
    path = from_triples(folder, folder / "o.gnn", options=ConvertOptions(overwrite=True), **how)
    store = gnnstore.open(path)
    found = [(store.edge_index.tensor(), store.edge_type.tensor())]
    splits = store.edge_splits.values()
    found += [(own.edge_index, own.attributes["edge_type"].tensor()) for own in splits]
    ids = [str(i) for i in range(store.num_nodes)]
    names, relations = store.original_names or ids, store.relation_names or range(100)
    return [
        [
            (names[h], str(relations[r]), names[t])
            for (h, t), r in zip(index.T.tolist(), types.tolist(), strict=True)
        ]
        for index, types in found
    ]


def refused(folder: Path, text: str, message: str, **how: Any) -> None:
    with pytest.raises(InputError, match=message):
        edges(folder, text, **how)
    assert [path.name for path in folder.iterdir()] == ["e.txt"]


# ---- honest files


@pytest.mark.parametrize(
    ("text", "how", "expected"),
    [
        ("# Nodes: 3 Edges: 2\n# FromNodeId\tToNodeId\n5\t7\n7\t9\n", {}, [(5, 7), (7, 9)]),
        ("% asym\n1 2\t0.5\t119\n2 3\t1\t200\n", {"edge_weight": 3, **IGNORE}, [(1, 2), (2, 3)]),
        (
            "%%MatrixMarket matrix coordinate pattern general\n3 3 2\n1 2\n2 3\n",
            {},
            [(1, 2), (2, 3)],
        ),
        ("source,target,time,amount\n0,1,5,.5\n1,2,6,.5\n", {}, [(0, 1), (1, 2)]),
        ("time,dst,src\n5,0,1\n6,1,2\n", {}, [(1, 0), (2, 1)]),
        ('"source" "target" "w"\n"1" 5 7 .5\n"2" 7 9 1\n', {}, [(5, 7), (7, 9)]),
        ('"from" "to"\n"1" "a" "b"\n"2" "b" "c"\n', NAMES, [("a", "b"), ("b", "c")]),
        ("from to\n1 a b\n2 b c\n", NAMES, [("a", "b"), ("b", "c")]),
        ('"a b"\t"c"\n"c"\t"d"\n', NAMES, [("a b", "c"), ("c", "d")]),
        ('"a",b\nb,"c"\n', NAMES, [("a", "b"), ("b", "c")]),
        ("ann bob\n", NAMES, [("ann", "bob")]),
        *choose(
            [],
            [
                ("% asym positive\n% 2 3 3\n1 2\n2 3\n", {}, [(1, 2), (2, 3)]),
                ("Source,Target,Type,Id\n0,1,Directed,7\n1,2,Directed,8\n", {}, [(0, 1), (1, 2)]),
                ('"from" "to"\n"1" 5 7\n"2" 7 9\n', {}, [(5, 7), (7, 9)]),
                ("a b\tc d\nc d\te\n", NAMES, [("a b", "c d"), ("c d", "e")]),
                ('"a" "b"\n"b" "c"\n', NAMES, [("a", "b"), ("b", "c")]),
                ("5 1\n", {}, [(5, 1)]),
            ],
        ),
        ("5 9\n1 2\n2 5\n", {}, [(1, 2), (2, 5), (5, 9)]),  # no counts
        ("0 1 {}\n1 2 {'w': 3, 'at': 'b c'}\n", IGNORE, [(0, 1), (1, 2)]),
    ],
)  # fmt: skip
def test_honest_files_need_no_option(
    tmp_path: Path, text: str, how: dict[str, Any], expected: list[Any]
) -> None:
    assert edges(tmp_path, text, **how) == sorted(expected)


def test_honest_triples_need_no_option(tmp_path: Path) -> None:
    """First lines of splits have entities and relations that other lines have; or are alone."""
    train = [("a b", "r", "c"), ("c", "s", "d"), ("d", "r", "a b")]
    others = [[("c", "s", "a b"), ("d", "r", "c")], [("x", "t", "y")]]
    texts = ["".join("\t".join(row) + "\n" for row in rows) for rows in (train, *others)]
    assert triples(tmp_path, *texts) == [train, *others]
    quoted = [
        "".join("\t".join(f'"{n}"' for n in row) + "\n" for row in rows)
        for rows in (train, *others)
    ]
    assert triples(tmp_path, *quoted) == [train, *others]
    kept = triples(tmp_path, *quoted, quotes="keep")
    assert kept[2] == [('"x"', '"t"', '"y"')]
    counts = triples(tmp_path, "2\n0 1 0\n1 2 5\n", "1\n1 0 5\n", "1\n2 0 5\n",
                     columns="htr", integer_ids=True, skip_header=True)  # fmt: skip
    assert counts == [[("0", "0", "1"), ("1", "5", "2")], [("1", "5", "0")], [("2", "5", "0")]]


# ---- headers


@pytest.mark.parametrize(
    "header",
    [
        *("follower,followee", "protein1 protein2", "?item\t?value"),
        *choose([], [":START_ID,:END_ID", "src,dst"]),
    ],
)
@pytest.mark.parametrize("block_bytes", [8, 2**20])
def test_a_first_line_whose_names_occur_nowhere_else_is_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, block_bytes: int
) -> None:
    defaults = {"block_bytes": block_bytes, "memory_bytes": None}
    monkeypatch.setattr(
        "gnnstore.converters.inputs.text_tables.TextTable.__init__.__kwdefaults__", defaults
    )
    mark = next(mark for mark in ",\t " if mark in header)
    text = "".join(mark.join(row) + "\n" for row in (header.split(mark), "ab", "bc"))
    refused(
        tmp_path, text, r"looks like a header: .*skip_header=True, or .* skip_header=False", **NAMES
    )
    rows = [("a", "b"), ("b", "c")]
    assert edges(tmp_path, text, **NAMES, skip_header=True) == rows
    first = tuple(header.split(mark))
    assert edges(tmp_path, text, **NAMES, skip_header=False) == sorted([first, *rows])
    assert edges(tmp_path, f"{text}c{mark}{first[0]}\n", **NAMES) == sorted(
        [first, *rows, ("c", first[0])]
    )


def test_a_first_line_of_triples_is_a_header_if_all_of_its_names_occur_nowhere_else(
    tmp_path: Path,
) -> None:
    rows = [("a", "r", "b"), ("b", "r", "c")]
    text = "".join("\t".join(row) + "\n" for row in rows)
    said = r"looks like a header: none of its names \(head, tail, relation\) is in another line"
    for texts in ([f"head\trelation\ttail\n{text}"], [text, f"head\trelation\ttail\n{text}"]):
        with pytest.raises(InputError, match=said):
            triples(tmp_path, *texts)
        assert not (tmp_path / "o.gnn").exists()
    header = "head\trelation\ttail\n"
    with pytest.raises(InputError, match=f"train.txt: the first line {said}"):
        triples(tmp_path, header + text, header + text)
    assert triples(tmp_path, header + text, header + text, skip_header=True) == [rows, rows]
    for own in ("x\tr\ty\n", "b\ts\ty\n", "x\ts\tc\n"):
        assert triples(tmp_path, text, own + text)[1][1:] == rows


@pytest.mark.parametrize("skip_header", [None, True])
def test_other_columns_need_source_and_target(tmp_path: Path, skip_header: bool | None) -> None:
    text = "user_id,item_id,timestamp\n0,0,1\n1,0,2\n"
    refused(
        tmp_path,
        text,
        r"columns user_id, item_id, timestamp; choose .* source= and target=.*convert typed",
        skip_header=skip_header,
        **IGNORE,
    )
    ends = {"source": "user_id", "target": "item_id"}
    assert edges(tmp_path, text, **ends) == [(0, 0), (1, 0)]


def test_columns_that_are_left_out_are_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "w,source,target,amount\n.5,0,1,3\n.5,1,2,3\n"
    with caplog.at_level(logging.WARNING):
        edges(tmp_path, text, edge_weight="w")
    assert "columns that no option names are left out: amount" in caplog.text
    caplog.clear()
    edges(tmp_path, text, edge_weight="w", **IGNORE)
    assert not caplog.text


def test_fewer_names_than_columns(tmp_path: Path) -> None:
    refused(tmp_path, "source,target\n0,1,.5,x\n", "names 2 columns, and the next has 4 fields")
    with pytest.raises(UsageError, match="a column is chosen by its name; give numbers"):
        edges(tmp_path, "a,b\n0,1\n", source="a", target="b", skip_header=False)


# ---- quotation marks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '"a"\tb\n"b"\t"c"\n',
            "line 1: column 1: '\"a\"' has quotation marks around it, and other",
        ),
        ('a\tb\nb\t"c"\n', "line 2: column 2: '\"c\"' has quotation marks around it"),
        ('"a"\t"b"\nb\t"c"\n', "line 2: column 1: 'b' has no quotation marks around it"),
        ('"a"\t"b"\n"b"\t"c"@en\n', r"line 2: column 2: '\"c\"@en' has no quotation marks around"),
        ('"a"\t"b"\n"b"\t"c"d"\n', "line 2: column 2: .* has a quotation mark without"),
        ('"a"\t"b"\n""\t"c"\n', "line 2: column 1: .* is an empty name"),
    ],
)
def test_a_mixture_of_names_with_marks_and_without(tmp_path: Path, text: str, message: str) -> None:
    refused(tmp_path, text, message, **NAMES)
    fields = [tuple(line.split("\t")) for line in text.splitlines()]
    kept = edges(tmp_path, text, **NAMES, quotes="keep", skip_header=False)
    assert kept == sorted(fields)


def test_quotation_marks_are_stripped_on_demand(tmp_path: Path) -> None:
    text = '"a"\tb\nb\t"c ""x"""\n"c"@en\ta\n'
    found = edges(tmp_path, text, **NAMES, quotes="strip")
    assert found == [('"c"@en', "a"), ("a", "b"), ("b", 'c "x"')]
    assert edges(tmp_path, 'x\t"b"@en\nx\t5"\n', **NAMES) == [("x", '"b"@en'), ("x", '5"')]
    with pytest.raises(UsageError, match="quotes= is about names"):
        edges(tmp_path, "0 1\n", quotes="keep")


# ---- lines of differing length


@pytest.mark.parametrize("how", [{}, IGNORE, {**IGNORE, **NAMES}, {**IGNORE, "edge_weight": 3}])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 1 2 3\n1 2\n2 0 3\n3 0 1\n", "2 to 4"),  # networkx.write_adjlist
        ("4 4\n2 3 4\n1 3\n1 2 4\n1 3\n", "2 to 3"),  # METIS
        ("c shortest paths of a road\np sp 3 2\na 1 2 8\na 2 3 7\n", "4 to 6"),  # DIMACS
        ("p tw 3 2\n1 2\n2 3\n", "2 to 4"),  # PACE
        ("1 2\n2 3 5\n3 1\n", "2 to 3"),
    ],
)
def test_lines_have_as_many_fields_as_the_first(
    tmp_path: Path, text: str, said: str, how: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as caught:
        edges(tmp_path, text, **how)
    assert f"Lines have {said} fields: an adjacency list? Write one edge a line" in str(
        caught.value
    )
    assert "extra_columns" not in str(caught.value)
    assert not (tmp_path / "o.gnn").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 -> 2\n2 -> 3\n", "column 2 is '->' on every line; .* source= and target="),
        ("a 1 2 8\na 2 3 7\n", "column 1 is 'a' on every line"),  # DIMACS
    ],
)
def test_marks_are_no_ends(tmp_path: Path, text: str, message: str) -> None:
    refused(tmp_path, text, message, **NAMES, **IGNORE, skip_header=False)
    ends = (1, 3) if "->" in text else (2, 3)
    found = edges(tmp_path, text, **NAMES, source=ends[0], target=ends[1], skip_header=False)
    assert found == [("1", "2"), ("2", "3")]


# ---- lines of counts


@pytest.mark.parametrize("how", [{}, NAMES, {"num_nodes": 9}])
@pytest.mark.parametrize(
    "text",
    [
        "4 4\n1 2\n2 3\n3 4\n4 1\n",
        "3 3\n2 3\n1 3\n1 2\n",  # METIS: a triangle
        *choose([], ["4 3\n\n1 2\n2 3\n3 4\n", "6 6\n2 3\n1 3\n1 2\n5 6\n4 6\n4 5\n"]),
    ],
)
def test_a_line_of_counts_is_no_edge(tmp_path: Path, text: str, how: dict[str, Any]) -> None:
    refused(
        tmp_path,
        text,
        "fits the numbers of nodes and lines .*skip_header=True, .* skip_header=False.*METIS",
        **how,
    )
    kind: type = str if "string_ids" in how else int
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    pairs = [tuple(map(kind, line.split())) for line in lines]
    assert edges(tmp_path, text, **how, skip_header=True) == sorted(pairs[1:])
    assert edges(tmp_path, text, **how, skip_header=False) == sorted(pairs)


def test_counts_may_include_isolated_nodes(tmp_path: Path) -> None:
    text = "9 3\n1 2\n2 3\n3 4\n"
    refused(tmp_path, text, "fits the numbers of nodes and lines")
    assert len(edges(tmp_path, text.replace("9 3", "2 9"))) == 4


def test_lists_of_neighbours_are_refused_behind_a_skipped_line(tmp_path: Path) -> None:
    refused(
        tmp_path,
        "4 6\n2 3 4\n1 3 4\n1 2 4\n1 2 3\n",
        "lists of neighbours: write one edge a line",
        skip_header=True,
        **IGNORE,
    )


# ---- N-Triples


def test_n_triples_are_read_as_terms(tmp_path: Path) -> None:
    text = (
        "# a dump\n\n"
        '<x> <p> "b c"@en .\n'
        "<x>\t<p>\t<y>\t.\n"
        "<y> <p> <x>.\r\n"
        '_:b1 <q> "d \\" . e"^^<t>. # a comment\n'
        "<z><q>_:b1.\n"
    )
    assert triples(tmp_path, text, '<y> <q> "b c"@en .\n') == [
        [
            ("<x>", "<p>", '"b c"@en'),
            ("<x>", "<p>", "<y>"),
            ("<y>", "<p>", "<x>"),
            ("_:b1", "<q>", '"d \\" . e"^^<t>'),
            ("<z>", "<q>", "_:b1"),
        ],
        [("<y>", "<q>", '"b c"@en')],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<x> <p> <y> <g> .\n", "line 1: found 4 terms, as N-Quads have"),
        ("<x> <p> <y> .\n<x> <p> <y> <g> .\n", "line 2: found 4 terms, as N-Quads have"),
        ("<x> <p> <y> .\n<x> <p> <y>\n", "line 2: '<x> <p> <y>' is not of N-Triples"),
        ("<x> <p> <y> .\n<x> <p> e:y .\n", "line 2: '<x> <p> e:y .' is not of N-Triples"),
        ("@prefix e: <http://e> .\ne:x e:p e:y .\n", "line 1: this is Turtle, which is not read"),
        ("BASE <http://e>\n<x> <p> <y> .\n", "line 1: this is Turtle, which is not read"),
    ],
)
def test_other_forms_of_rdf_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        triples(tmp_path, text)
    assert [path.name for path in tmp_path.iterdir()] == ["train.txt"]


# ---- tabs, colons, tables of nodes


def test_tabs_alone_separate_tables_of_nodes(tmp_path: Path) -> None:
    for name, rows in (
        ("nodes/p.tsv", "a\tplace\n1\t48.1 11.5\n"),
        ("edges/p__r__p.csv", "source,target\n0,0\n"),
    ):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(rows)
    with pytest.raises(InputError, match=r"line 2: column 2: '48.1 11.5' is not a number"):
        from_typed(tmp_path / "in", tmp_path / "o.gnn")
    (tmp_path / "in/nodes/p.tsv").write_text("a\tb\n1\t2\t3\n")
    with pytest.raises(InputError, match="names 2 columns, and the next has 3 fields"):
        from_typed(tmp_path / "in", tmp_path / "o.gnn")
    (tmp_path / "in/nodes/p.tsv").write_text("a\tb\n1\t2\n")
    (tmp_path / "in/edges/p__r__p.csv").write_text("time,dst,src\n7,0,0\n")
    store = gnnstore.open(from_typed(tmp_path / "in", tmp_path / "o.gnn"))
    assert store["p", "r", "p"].time.tensor().tolist() == [7]


def test_tabs_alone_separate_features(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("1\t2\n48.1 11.5\n")
    with pytest.raises(InputError, match="line 2: found 1 field, expected 2"):
        edges(tmp_path, "0 1\n", features=tmp_path / "x.tsv")
    (tmp_path / "x.tsv").write_text('"a" "b"\n"1" 1 2\n"2" 3 4\n')
    with pytest.raises(InputError, match=r"the first column has no name.*row\.names=FALSE"):
        edges(tmp_path, "0 1\n", features=tmp_path / "x.tsv", features_skip_header=True)


def test_names_of_columns_may_have_colons(tmp_path: Path) -> None:
    text = "user:token\titem:token\trating:float\n0\t1\t3\n1\t2\t.5\n"
    ends = {"source": "user:token", "target": "item:token"}
    for column, dtype in (("rating:float", "float32"), ("rating:float:float64", "float64")):
        edges(tmp_path, text, **ends, edge_columns={"rating": column})
        rating = read_store(tmp_path / "o.gnn").edge_attributes["rating"]
        assert (rating.dtype, sorted(rating.tolist())) == (np.dtype(dtype), [0.5, 3])
    with pytest.raises(UsageError, match="'float' is not one of int64, float32, float64"):
        edges(tmp_path, text, **ends, edge_columns={"rating": "ratings:float"})
