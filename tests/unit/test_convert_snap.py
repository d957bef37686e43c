"""Text edge lists: ids as they come, compact numbers, and the arrays that go with them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gnnstore
from gnnstore.converters import ConvertOptions, from_numpy, from_rmat, from_snap
from gnnstore.converters.edges.numbering import IdCollector, OneBasedIds
from gnnstore.converters.inputs import source
from gnnstore.converters.inputs.text_tables import TextTable
from gnnstore.errors import (
    CorruptStoreError,
    GnnstoreError,
    InputError,
    NoSpaceError,
    UsageError,
)
from gnnstore.formats.store import checks
from gnnstore.pipeline.check import verify
from tests.support.effort import choose, paired
from tests.support.graphs import read_store

HEADER = "# Directed graph\n# FromNodeId\tToNodeId\n"


def edge_list(folder: Path, text: str, name: str = "edges.txt") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def convert(folder: Path, text: str, **arguments: Any) -> Any:
    arguments.setdefault("options", ConvertOptions(overwrite=True))
    return read_store(from_snap(edge_list(folder, text), folder / "out.gnn", **arguments))


def saved(folder: Path, name: str, values: npt.ArrayLike) -> Path:
    np.save(folder / name, np.asarray(values))
    return folder / name


@pytest.mark.parametrize("dense_limit", [2**27, 0, 60])
def test_scattered_ids_are_numbered_in_ascending_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dense_limit: int
) -> None:
    monkeypatch.setattr(IdCollector.__init__, "__defaults__", (dense_limit, None))
    stored = convert(tmp_path, HEADER + "70 5\n5 1000\n70 1000\n70 70\n")
    assert stored.num_nodes == 3
    assert stored.original_ids is not None
    assert stored.original_ids.tolist() == [5, 70, 1000]
    assert stored.pairs() == [(1, 0), (1, 1), (0, 2), (1, 2)]


def test_ids_of_any_size(tmp_path: Path) -> None:
    stored = convert(tmp_path, f"{2**62} 7\n7 {2**40}\n")
    assert stored.original_ids is not None
    assert stored.original_ids.tolist() == [7, 2**40, 2**62]
    assert stored.pairs() == [(2, 0), (0, 1)]


def test_a_given_count_takes_ids_as_they_are(tmp_path: Path) -> None:
    stored = convert(tmp_path, "5 1\n", num_nodes=8)
    assert stored.num_nodes == 8
    assert stored.pairs() == [(5, 1)]
    assert stored.original_ids is None
    with pytest.raises(InputError, match=r"line 1: column 1: node id 5 is outside \[0, 5\)"):
        convert(tmp_path, "5 1\n", num_nodes=5)
    with pytest.raises(UsageError, match="num_nodes=-1 is negative"):
        convert(tmp_path, "5 1\n", num_nodes=-1)


def test_undirected(tmp_path: Path) -> None:
    stored = convert(tmp_path, "0 1\n1 0\n1 2\n2 2\n1 2\n", options=ConvertOptions(undirected=True))
    assert stored.pairs() == [(1, 0), (0, 1), (2, 1), (1, 2), (2, 2)]
    # The reverse of edge e of 5 is 5 + e; of equal edges the first counts.
    assert stored.edge_id.tolist() == [1, 0, 7, 2, 3]


def test_no_edges(tmp_path: Path) -> None:
    """That may be what is left of a download."""
    with pytest.raises(InputError, match=r"edges\.txt: has no edges; .* or give num_nodes"):
        convert(tmp_path, HEADER)
    with pytest.raises(InputError, match=r"edges\.txt: has no edges; download or copy it again$"):
        convert(tmp_path, HEADER, string_ids=True)
    assert convert(tmp_path, HEADER, num_nodes=4).num_nodes == 4


@pytest.mark.parametrize(
    ("stored", "number", "expected"),
    [
        ("float64", "0.1", 0.1),
        ("uint32", "4294967295.0", 4294967295),
        ("int64", "9007199254740993", 9007199254740993),
        *choose(
            [],
            [
                ("float64", "16777217", 16777217.0),
                ("int32", "16777217", 16777217),
                ("uint64", "9007199254740993", 9007199254740993),
                ("int64", "1.0", 1),
            ],
        ),
        ("float16", "1.000488281251", np.float16(1.001)),  # by way of float32 it would be 1
        (None, "0.1", np.float32(0.1)),
    ],
)
def test_features_in_text_lose_nothing_that_their_type_holds(
    tmp_path: Path, stored: str | None, number: str, expected: float
) -> None:
    features = tmp_path / "x.csv"
    features.write_text(f"{number},1\n2,3\n")
    options = ConvertOptions(feature_dtype=stored)
    found = convert(tmp_path, "0 1\n", features=features, options=options).attributes["x"]
    assert found.dtype == (stored or "float32")
    assert found[0, 0] == expected


def test_features_labels_and_splits_go_by_the_new_numbers(tmp_path: Path) -> None:
    features = saved(tmp_path, "x.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    labels = saved(tmp_path, "y.npy", [7, 8, 9])
    np.savez(tmp_path / "splits.npz", train=[2, 0], val=np.array([False, True, False]))
    stored = convert(
        tmp_path,
        "70 5\n5 1000\n",
        features=features,
        labels=labels,
        splits=tmp_path / "splits.npz",
    )
    assert stored.attributes["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert stored.attributes["y"].tolist() == [7, 8, 9]
    assert {name: ids.tolist() for name, ids in stored.splits.items()} == {
        "train": [2, 0],
        "valid": [1],
    }


def test_splits_may_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "splits").mkdir()
    saved(tmp_path / "splits", "train.npy", [0])
    saved(tmp_path / "splits", "test_mask.npy", [False, True])
    stored = convert(tmp_path, "0 1\n", splits=tmp_path / "splits")
    assert {name: ids.tolist() for name, ids in stored.splits.items()} == {
        "train": [0],
        "test": [1],
    }


def test_rows_that_do_not_match_say_what_to_do(tmp_path: Path) -> None:
    features = saved(tmp_path, "x.npy", np.zeros((5, 2)))
    with pytest.raises(
        InputError,
        match=r"x.npy: has 5 rows, but the graph has 2 nodes; each needs .* pass num_nodes=",
    ):
        convert(tmp_path, "4 1\n", features=features)


def test_unknown_splits_are_named(tmp_path: Path) -> None:
    for names in (["training"], ["train", "train_idx"]):
        savez: Any = np.savez  # whose types take arrays by name for its options
        savez(tmp_path / "s.npz", **dict.fromkeys(names, np.array([0])))
        with pytest.raises(InputError, match=rf"arrays called train, .* found {', '.join(names)}"):
            convert(tmp_path, "0 1\n", splits=tmp_path / "s.npz")


@pytest.mark.long("the tests before it convert drawn graphs")
def test_twitch(tmp_path: Path, twitch_edges: Path) -> None:
    options = ConvertOptions(undirected=True)
    stored = read_store(from_snap(twitch_edges, tmp_path / "t.gnn", options=options))
    assert stored.num_nodes == 9498
    assert stored.edge_index.shape[1] == 2 * 153138
    assert stored.original_ids is None
    edges = np.loadtxt(twitch_edges, np.int64).T
    both = np.concatenate([edges, edges[::-1]], axis=1)
    np.testing.assert_array_equal(stored.edge_index, both[:, np.lexsort(both)])


# ---- columns, headers, names


def test_a_weight_column_becomes_an_edge_attribute(tmp_path: Path) -> None:
    path = tmp_path / "edges.csv"
    path.write_text("source,target,when,weight\n5,7,x,0.5\n\n7,9,y,1e-3\n9,5,z,-2\n")
    output = from_snap(path, tmp_path / "a.gnn", skip_header=True, edge_weight=4)
    stored = read_store(output)
    weights = dict(zip(stored.pairs(), stored.edge_attributes["edge_weight"], strict=True))
    assert weights == {(0, 1): np.float32(0.5), (1, 2): np.float32(1e-3), (2, 0): np.float32(-2)}
    assert stored.original_ids is not None
    assert stored.original_ids.tolist() == [5, 7, 9]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "1 2 0.5\n",
            {},
            "found 3 fields, expected 2.*extra_columns='ignore'.*edge_weight=COLUMN",
        ),
        ("ann bob\n", {}, "'ann' is not an integer.*string_ids=True"),
        ("1 2 x\n", {"edge_weight": 3}, "line 1: column 3: 'x' is not a number, expected a weight"),
        (
            "a b 1e39\n",
            {"edge_weight": "3:float32", "string_ids": True},
            "'1e39' overflows float32",
        ),
        ("1 2\n", {"edge_weight": 3}, "found 2 fields, expected 3"),
        ("a b c\n", {"string_ids": True}, "found 3 fields, expected 2.*gnnstore convert triples"),
        ("a,\n", {"string_ids": True}, "line 1: column 2 is empty: a node name is missing"),
        ("a b\rc d\n", {"string_ids": True}, "line 1: a carriage return without a line feed"),
    ],
)
def test_errors_name_the_option_that_helps(
    tmp_path: Path, text: str, options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "edges.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        from_snap(path, tmp_path / "a.gnn", **options)


MATRIX = "%%MatrixMarket matrix {} real {}\n% a comment\n300 300 3\n1 2 0.5\n2 3 0.25\n3 1 1\n"


def test_matrix_market_files_say_their_sizes_first(tmp_path: Path) -> None:
    path = tmp_path / "g.mtx"
    path.write_text(MATRIX.format("coordinate", "general"))
    stored = read_store(from_snap(path, tmp_path / "a.gnn", edge_weight=3))
    weights = dict(zip(stored.pairs(), stored.edge_attributes["edge_weight"], strict=True))
    assert weights == {(0, 1): 0.5, (1, 2): 0.25, (2, 0): 1}
    assert stored.num_nodes == 300
    np.testing.assert_array_equal(stored.original_ids, np.arange(1, 301))
    path.write_text(MATRIX.format("coordinate", "symmetric"))
    with pytest.raises(InputError, match=r"as in one half of a symmetric matrix.*undirected=True"):
        from_snap(path, tmp_path / "b.gnn", edge_weight=3)
    both = ConvertOptions(undirected=True)
    assert (
        len(read_store(from_snap(path, tmp_path / "b.gnn", edge_weight=3, options=both)).pairs())
        == 6
    )
    path.write_text(MATRIX.format("coordinate", "skew-symmetric"))
    with pytest.raises(InputError, match=r"its first line has .* skew-symmetric"):
        from_snap(path, tmp_path / "c.gnn", edge_weight=3, options=both)
    path.write_text(MATRIX.format("coordinate", "general").replace("300 300", "300 400"))
    with pytest.raises(InputError, match=r"sizes is '300 400 3'; .* joins two kinds of nodes"):
        from_snap(path, tmp_path / "c.gnn", edge_weight=3)
    path.write_text(MATRIX.format("array", "general"))
    with pytest.raises(InputError, match=r"its first line has .*; expected a matrix"):
        from_snap(path, tmp_path / "c.gnn")


@pytest.mark.parametrize("entries", ["2 5\n5 2\n", "5 5\n", ""])
def test_rows_without_entries_are_isolated_nodes(tmp_path: Path, entries: str) -> None:
    (tmp_path / "g.mtx").write_text(
        f"%%MatrixMarket matrix coordinate pattern general\n7 7 {entries.count(chr(10))}\n{entries}"
    )
    np.save(tmp_path / "x.npy", np.arange(14, dtype=np.float32).reshape(7, 2))
    stored = read_store(
        from_snap(tmp_path / "g.mtx", tmp_path / "g.gnn", features=tmp_path / "x.npy")
    )
    pairs = [tuple(int(end) - 1 for end in line.split()) for line in entries.splitlines()]
    assert (stored.num_nodes, sorted(stored.pairs())) == (7, sorted(pairs))
    np.testing.assert_array_equal(stored.attributes["x"][:, 0], np.arange(0, 14, 2))


def test_rows_of_a_matrix_are_numbered_a_piece_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, as the file's first line says: memory is not for all of them."""
    monkeypatch.delattr(OneBasedIds, "original_ids")
    monkeypatch.setattr(source, "_PIECE_BYTES", 8 * 100)
    (tmp_path / "g.mtx").write_text(
        "%%MatrixMarket matrix coordinate pattern general\n1234 1234 1\n7 1000\n"
    )
    store = gnnstore.open(from_snap(tmp_path / "g.mtx", tmp_path / "g.gnn"))
    assert np.asarray(store.original_ids).tolist() == list(range(1, 1235))
    np.save(tmp_path / "x.npy", np.zeros((1235, 1), np.float32))
    with pytest.raises(InputError, match="1,235"):
        from_snap(tmp_path / "g.mtx", tmp_path / "h.gnn", features=tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("sizes", "entries", "message"),
    [
        ("3 3 1", "4 1", r"line 3.*node id 4 is outside \[1, 4\)"),
        ("3 3 1", "0 1", r"line 3.*node id 0 is outside \[1, 4\)"),
        ("3 3", "1 2", r"is '3 3'; expected equal numbers of rows and columns"),
        ("x x 1", "1 2", r"is 'x x 1'; expected equal numbers of rows"),
        (f"{'9' * 5000} {'9' * 5000} 1", "1 2", "is '999.*; expected equal numbers of rows"),
        (f"{2**46} {2**46} 1", "1 2", f"cannot convert {2**46} nodes, whose pointers"),
    ],
)
def test_sizes_of_a_matrix_that_make_no_sense(
    tmp_path: Path, sizes: str, entries: str, message: str
) -> None:
    banner = "%%MatrixMarket matrix coordinate pattern general"
    (tmp_path / "g.mtx").write_text(f"{banner}\n{sizes}\n{entries}\n")
    with pytest.raises(GnnstoreError, match=message):
        from_snap(tmp_path / "g.mtx", tmp_path / "g.gnn")
    assert [path.name for path in tmp_path.iterdir()] == ["g.mtx"]


def named_edges(path: Path, separator: str, num_edges: int = choose(250, 600)) -> list[str]:
    """Write edges between names; return the names in order of appearance."""
    rng = np.random.default_rng(0)
    ends = [[f"Ö{n} x" if separator == "\t" else f"Ö{n}x" for n in rng.integers(0, 700, num_edges)]
            for _ in range(2)]  # fmt: skip
    lines = [
        f"{s}{separator}{t}{separator}{i / 8}" for i, (s, t) in enumerate(zip(*ends, strict=True))
    ]
    path.write_text("# names\n" + "\n\n".join(lines))
    return list(dict.fromkeys(name for pair in zip(*ends, strict=True) for name in pair))


@pytest.mark.parametrize(
    ("separator", "where"), paired([",", "\t", *choose([], [" "])], ["memory", "disk"], 1)
)
def test_names_are_numbered_in_order_of_appearance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str, where: str
) -> None:
    path = tmp_path / "edges.txt"
    names = named_edges(path, separator)
    defaults = {"block_bytes": 2**12, "memory_bytes": None}
    monkeypatch.setattr(TextTable.__init__, "__kwdefaults__", defaults)
    if where == "disk":
        monkeypatch.setattr("gnnstore.converters.edges.numbering._ENTRY_BYTES", 2**18)
        monkeypatch.setattr("gnnstore.converters.edges.numbering._MERGED", (2, 2**13))
        monkeypatch.setattr(
            "gnnstore.converters.edges.numbering._SpilledNames._records.__defaults__", ((3, 9),)
        )
        monkeypatch.setattr("gnnstore.converters.edges.numbering._CHUNK", (3, 2**20))
    output = from_snap(
        path,
        tmp_path / "a.gnn",
        string_ids=True,
        edge_weight=3,
        options=ConvertOptions(memory_bytes=2**26),
    )
    store = gnnstore.open(output)
    assert store.original_names is not None
    assert store.original_ids is None
    assert list(store.original_names) == names
    assert store.original_names[-1] == names[-1]
    assert store.original_names[1:3] == names[1:3]
    with pytest.raises(IndexError):
        store.original_names[len(names)]
    number = {name: i for i, name in enumerate(names)}
    lines = [line.split(separator) for line in path.read_text().split("\n")[1:] if line]
    stored = read_store(output)
    order = np.argsort(stored.edge_id)
    pairs = np.array(stored.pairs())[order].tolist()
    assert pairs == [[number[s], number[t]] for s, t, _ in lines]
    weights = stored.edge_attributes["edge_weight"][order]
    assert weights.tolist() == [float(weight) for *_, weight in lines]
    assert verify(output, level="full").ok
    assert not any("names" in file.name for file in tmp_path.rglob("*.names"))


@pytest.mark.parametrize("separator", [",", *choose([], ["\t"]), " "])
def test_names_with_more_columns_and_long_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str
) -> None:
    defaults = {"block_bytes": 2**12, "memory_bytes": None}
    monkeypatch.setattr(TextTable.__init__, "__kwdefaults__", defaults)
    about = "# a block of comments alone\n" * 1000
    rows = [["from", "to", "when", "note"], ["b", "a", "3", "x"], ["c", "b", "4", "y"]]
    lines = [separator.join(row) + "\n" for row in rows]
    path = tmp_path / "edges.txt"
    path.write_text(about.join(["", *lines, ""]))
    output = from_snap(
        path,
        tmp_path / "a.gnn",
        string_ids=True,
        source="from",
        target="to",
        comment="#",
    )
    names = gnnstore.open(output).original_names
    assert names is not None
    assert list(names) == ["b", "a", "c"]
    assert sorted(read_store(output).pairs()) == [(0, 1), (2, 0)]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_bytes(b"a b\nc \xff\xfe\n")
    with pytest.raises(InputError, match=r"line 2: column 2: .* is not UTF-8"):
        from_snap(path, tmp_path / "a.gnn", string_ids=True)


def test_texts_that_are_damaged_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("ä ö\n")
    output = from_snap(path, tmp_path / "a.gnn", string_ids=True)
    offsets = output / "maps/node/original_name/offsets/c.0"
    with offsets.open("r+b") as file:
        file.seek(8)
        file.write((1).to_bytes(8, "little"))  # in the middle of a letter
    assert not verify(output, level="full").ok
    store = gnnstore.open(output)
    text = store.schema.node.original_name
    assert text is not None
    (problem,) = checks._check_text(store.reader, text)
    assert "a text is not UTF-8" in str(problem)
    with offsets.open("r+b") as file:
        file.seek(8)
        file.write((99).to_bytes(8, "little"))
    (problem,) = checks._check_text(store.reader, text)
    assert "or is behind the 4 bytes" in str(problem)
    for place, byte, message in (
        (8, 2, ""),
        (0, 1, "the first text begins at byte 1, expected 0"),
        (16, 2, "the last text ends at byte 2 of 4"),
    ):
        whole = offsets.read_bytes()
        with offsets.open("r+b") as file:
            file.seek(place)
            file.write(byte.to_bytes(8, "little"))
        assert [problem.message for problem in checks._check_text(store.reader, text)] == (
            [message] if message else []
        )
        if message:
            offsets.write_bytes(whole)
    letters = output / "maps/node/original_name/bytes/c.0"
    letters.write_bytes(b"\xff\xff" + letters.read_bytes()[2:])
    (problem,) = checks._check_text(store.reader, text)
    assert problem.message == "a text is not UTF-8"
    with offsets.open("r+b") as file:
        file.seek(8)
        file.write((99).to_bytes(8, "little"))
    names = gnnstore.open(output).original_names
    assert names is not None
    with pytest.raises(CorruptStoreError, match="text 0 goes from byte 0 to 99 of 4"):
        names[0]


def test_a_number_of_nodes_that_no_disk_holds(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("1 2\n")
    with pytest.raises(NoSpaceError, match=r"1099511627776 nodes, whose pointers .* take 8\.8 TB"):
        from_snap(path, tmp_path / "a.gnn", num_nodes=2**40)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("separators", [" \t", *choose([], ["  ", "\f", "\t"]), "\v "])
@pytest.mark.parametrize("more", ["", "x  y 1 9\n"])
def test_any_white_space_separates_names(tmp_path: Path, separators: str, more: str) -> None:
    """Whatever the lines beside it are like, since they may be in another block."""
    text = f"a b 1 9\nc{separators}d{separators}3 4\n{more}"
    options: dict[str, Any] = {"string_ids": True, "edge_weight": 3, "extra_columns": "ignore"}
    options["skip_header"] = False
    out = from_snap(
        edge_list(tmp_path, text), tmp_path / "o.gnn", options=ConvertOptions(), **options
    )
    names = gnnstore.open(out).original_names
    assert names is not None
    stored = read_store(out)
    found = [(names[s], names[t]) for s, t in stored.pairs()]
    assert sorted(found) == sorted([("a", "b"), ("c", "d"), *[("x", "y")] * bool(more)])
    assert sorted(stored.edge_attributes["edge_weight"].tolist()) == [1.0] * (1 + bool(more)) + [3]


def test_labels_are_exact_or_refused(tmp_path: Path) -> None:
    edges = "0 1\n1 2\n2 3\n"

    def stored(*texts: str) -> npt.NDArray[Any]:
        paths = [tmp_path / f"y{i}.csv" for i in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        pattern = tmp_path / ("y?.csv" if len(paths) > 1 else "y0.csv")
        y: npt.NDArray[Any] = convert(tmp_path, edges, labels=str(pattern)).attributes["y"]
        return y

    for texts in (["9007199254740993\n2\n3\n4\n"], ["9007199254740993\n2\n", "3\n4\n"]):
        found = stored(*texts)
        assert (found.dtype.name, found.tolist()) == ("int64", [9007199254740993, 2, 3, 4])
    found = stored("1\n2\n", "0.5\n4\n")
    assert (found.dtype.name, found.tolist()) == ("float32", [1, 2, 0.5, 4])


def test_ids_of_rows_are_compared_exactly(tmp_path: Path) -> None:
    big = 2**53
    edges = f"{big} {big + 1}\n{big + 1} {big + 2}\n{big + 2} {big + 3}\n"
    x = saved(tmp_path, "x.npy", np.arange(8, dtype=np.float32).reshape(4, 2))
    order = [3, 1, 2, 0]
    for ids in (np.array(order, np.uint64) + big, np.array(order) + big):
        place = saved(tmp_path, "ids.npy", ids)
        convert(tmp_path, edges, features=x, features_ids=place)
        found = gnnstore.open(tmp_path / "out.gnn").node_attribute("x")[:, 0].tolist()
        assert found == [2.0 * order.index(i) for i in range(4)]
    place = saved(tmp_path, "ids.npy", np.array([2**64 - 1, 1, 2, 3], np.uint64))
    with pytest.raises(InputError, match="18446744073709551615 occurs in no edge"):
        convert(tmp_path, edges, features=x, features_ids=place)


def test_a_column_beyond_any_line_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found 3 fields, expected 1000000000"):
        convert(tmp_path, "1 2 .5\n", edge_weight=10**9)


@pytest.mark.parametrize(
    ("header", "column", "shown"),
    [
        ("Label,ID", "", "'ID'"),
        ("", ":1", "1"),
        *choose([], [("node_id,label", ":node_id", "'node_id'")]),
    ],
)
def test_ids_of_labels_in_their_own_file(
    tmp_path: Path, header: str, column: str, shown: str
) -> None:
    rows = ["1000,.7", "5,8", "16777217,9"]
    if header.startswith("Label"):
        rows = [",".join(row.split(",")[::-1]) for row in rows]
    labels = tmp_path / "y.csv"
    labels.write_text("\n".join([header, *rows] if header else rows) + "\n")
    edges = "16777217 5\n5 1000\n"
    with pytest.raises(InputError, match=rf"the column {shown} has .* labels_ids=y\.csv:"):
        convert(tmp_path, edges, labels=labels, labels_skip_header=bool(header))
    if column:
        with pytest.raises(InputError, match=r"the ids is unknown; write labels_ids=y\.csv:CO"):
            convert(tmp_path, edges, labels=labels, labels_ids=labels)
    stored = convert(tmp_path, edges, labels=labels, labels_ids=f"{labels}{column}")
    np.testing.assert_array_equal(stored.attributes["y"], np.array([8, 0.7, 9], np.float32))
    assert stored.attributes["y"].dtype == np.float32  # large as ids are, and labels are not
    with pytest.raises(InputError, match=r"'uid' is not a column; .* there are"):
        convert(tmp_path, edges, labels=labels, labels_ids=f"{labels}:uid")
    ids = saved(tmp_path, "ids.npy", [1000, 5, 16777217])
    stored = convert(tmp_path, edges, labels=saved(tmp_path, "y.npy", [7, 8, 9]), labels_ids=ids)
    assert stored.attributes["y"].tolist() == [8, 7, 9]


def test_ids_in_a_column_of_another_file(tmp_path: Path) -> None:
    labels = saved(tmp_path, "y.npy", [7, 8, 9])
    (tmp_path / "nodes.csv").write_text("name,code\n1,1000\n2,5\n3,70\n")
    ids = f"{tmp_path}/nodes.csv:code"
    stored = convert(tmp_path, "70 5\n5 1000\n", labels=labels, labels_ids=ids)
    assert stored.attributes["y"].tolist() == [8, 9, 7]
    with pytest.raises(UsageError, match=r"nodes.csv:code names a column, as labels_ids= does"):
        convert(tmp_path, "70 5\n5 1000\n", labels=ids)


@pytest.mark.parametrize(("header", "column"), [("", ":1"), ("id,a,b\n", "")])
def test_ids_of_features_in_their_own_files(tmp_path: Path, header: str, column: str) -> None:
    (tmp_path / "x-1.csv").write_text(f"{header}1000,0.5,1\n5,2,3\n")
    (tmp_path / "x-2.csv").write_text(f"{header}70,4,5\n")
    files = f"{tmp_path}/x-?.csv"
    more: dict[str, Any] = {"features": files, "features_skip_header": bool(header)}
    with pytest.raises(InputError, match="features_ids="):
        convert(tmp_path, "70 5\n5 1000\n", **more)
    stored = convert(tmp_path, "70 5\n5 1000\n", **more, features_ids=f"{files}{column}")
    assert stored.attributes["x"].tolist() == [[2, 3], [4, 5], [0.5, 1]]
    (tmp_path / "x-2.csv").write_text("a,id,b\n4,70,5\n" if header else "70,4\n")
    if header:  # ids may be elsewhere, other columns not
        stored = convert(tmp_path, "70 5\n5 1000\n", **more, features_ids=files)
        assert stored.attributes["x"].tolist() == [[2, 3], [4, 5], [0.5, 1]]
        (tmp_path / "x-2.csv").write_text("id,b,a\n70,5,4\n")
        with pytest.raises(InputError, match=r"x-2.csv: .* columns b, a, and in x-1.csv a, b; "):
            convert(tmp_path, "70 5\n5 1000\n", **more, features_ids=files)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("age,user_id\n30,70\n40,9\n40,5\n", "'user_id'"),
        ("age,code\n30,1000\n40,5\n40,70\n", "'code'"),
        ("30,70.0\n40,1000.0\n40,5.0\n", "2"),
    ],
)
def test_a_column_next_to_features_that_may_have_the_ids(
    tmp_path: Path, text: str, column: str
) -> None:
    """By its name, or by the ids of all nodes: whatever column it is."""
    (tmp_path / "x.csv").write_text(text)
    more: dict[str, Any] = {
        "features": tmp_path / "x.csv",
        "features_skip_header": text.startswith("age"),
    }
    said = f"the column {column} has different integers, as ids of nodes have, and would be"
    with pytest.raises(InputError, match=said):
        convert(tmp_path, "70 5\n5 1000\n", **more)
    np.savez(tmp_path / "g.npz", edge_index=[[0, 1], [1, 2]])
    text = text.replace("1000", "0").replace("70", "2").replace("5", "1")
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        from_numpy(tmp_path / "g.npz", tmp_path / "o.gnn", **more)


def test_a_first_column_of_features_that_only_resembles_ids(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1,2\n0,2\n3,2\n")
    stored = convert(tmp_path, "70 5\n5 1000\n", features=tmp_path / "x.csv")
    assert stored.attributes["x"].tolist() == [[1, 2], [0, 2], [3, 2]]


@pytest.mark.parametrize(
    ("separator", "ends", "more"),
    [
        (",", {"source": "src", "target": "dst"}, {"edge_columns": {"when": "time"}}),
        ("\t", {"source": 2, "target": "3"}, {"edge_columns": {"when": 1}, "skip_header": True}),
        (" ", {"source": "src", "target": "dst"}, {}),
    ],
)
@pytest.mark.parametrize("string_ids", [False, True])
def test_chosen_columns_are_the_ends(
    tmp_path: Path, separator: str, ends: dict[str, Any], more: dict[str, Any], string_ids: bool
) -> None:
    text = "time src dst w\n9 5 70 .5\n8 70 1000 .5\n".replace(" ", separator)
    stored = convert(tmp_path, text, **ends, **more, string_ids=string_ids)
    assert stored.pairs() == [(0, 1), (1, 2)]
    assert [list(rows) for rows in stored.edge_attributes.values()] == [[9, 8]] * bool(
        more.get("edge_columns")
    )
    swapped = {"source": ends["target"], "target": ends["source"]}
    stored = convert(tmp_path, text, **swapped, **more, string_ids=string_ids)
    assert sorted(stored.pairs()) == ([(0, 1), (2, 0)] if string_ids else [(1, 0), (2, 1)])


@pytest.mark.parametrize("string_ids", [False, True])
@pytest.mark.parametrize("header", ["time,from,to", "From ID,weight,to_id", "timestamp,a,b"])
def test_a_header_that_names_other_ends_is_refused(
    tmp_path: Path, header: str, string_ids: bool
) -> None:
    more: dict[str, Any] = {"skip_header": True, "extra_columns": "ignore"}
    with pytest.raises(InputError, match=r"with source= and target="):
        convert(tmp_path, f"{header}\n1,2,3\n", **more, string_ids=string_ids)


def test_columns_that_cannot_be_chosen(tmp_path: Path) -> None:
    for ends in ({"source": "a"}, {"source": "a", "target": "c"}, {"source": 0, "target": 1}):
        with pytest.raises(UsageError, match=r"give both|is not a column of edges"):
            convert(tmp_path, "a,b\n1,2\n", **ends)
    with pytest.raises(UsageError, match="come from one column"):
        convert(tmp_path, "a,b\n1,2\n", source="a", target="a")


def names_of(folder: Path) -> list[str]:
    return list(gnnstore.open(folder / "out.gnn").original_names or ())


def test_a_header_over_names_is_no_edge(tmp_path: Path) -> None:
    text = "'src','dst'\nann,bob\n".replace("'", '"')
    with pytest.raises(InputError, match="skip_header=True"):
        convert(tmp_path, text, string_ids=True)
    convert(tmp_path, text, string_ids=True, skip_header=True)
    assert names_of(tmp_path) == ["ann", "bob"]


def test_quotation_marks_around_names_are_no_part_of_them(tmp_path: Path) -> None:
    text = '"ann",bob\nann,"o""hara"\nbob,"5"" pipe"\n5" pipe,ann\n'
    stored = convert(tmp_path, text, string_ids=True)
    assert names_of(tmp_path) == ["ann", "bob", 'o"hara', '5" pipe']
    assert sorted(stored.pairs()) == [(0, 1), (0, 2), (1, 3), (3, 0)]
    for wrong in ('"Smith, J"\n', 'bob,"ann\n', 'bob,""\n', 'bob,"a"b"\n'):
        with pytest.raises(
            InputError, match=r"line 2: .* by tabs|line 2: .* between tabs|line 2: .*empty"
        ):
            convert(tmp_path, "a,b\n" + wrong, string_ids=True)


def test_options_may_be_single_arguments_and_sizes_text(tmp_path: Path) -> None:
    path = edge_list(tmp_path, "0 1\n")
    for _ in range(2):
        from_snap(path, tmp_path / "out.gnn", overwrite=True, memory_bytes="1GB")  # type: ignore[call-arg]
    assert ConvertOptions(memory_bytes="4GB").memory_bytes == 4 * 10**9  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is not a size"):
        ConvertOptions(memory_bytes="much")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="scale"):
        from_rmat(tmp_path / "r.gnn", scale="x")  # type: ignore[arg-type]
