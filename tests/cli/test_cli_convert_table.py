"""Tables of nodes and edges: Parquet, Arrow and Feather files, and frames in memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import dataset, feather, parquet
from torch_geometric.data import Data, HeteroData, InMemoryDataset

import gnnstore
from gnnstore.converters import ConvertOptions, from_numpy, from_tables, from_triples
from gnnstore.converters.edges import numbering
from gnnstore.errors import BudgetError, GnnstoreError, InputError, NotFoundError, UsageError
from gnnstore.pipeline.check import verify
from gnnstore.progress import NullProgress, Phase
from tests.support.effort import choose, is_long
from tests.support.graphs import read_store
from tests.support.hetero import make_hetero

Writer = Callable[[pa.Table, Path], None]


def write_stream(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=3)


def write_arrow(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=3)


def write_parquet(table: pa.Table, path: Path) -> None:
    parquet.write_table(table, path, row_group_size=4)


WRITERS: dict[str, Writer] = {
    "parquet": write_parquet,
    "arrow": write_arrow,
    "stream": write_stream,
    "feather": feather.write_feather,
}


def edges_table(**columns: Any) -> pa.Table:
    ends = {"source": [0, 1, 2, 2, 4], "target": [1, 2, 0, 3, 4]}
    return pa.table({**ends, **columns})


def nodes_table(**columns: Any) -> pa.Table:
    x = pa.array(np.arange(10, dtype=np.float32).reshape(5, 2).tolist(), pa.list_(pa.float32(), 2))
    split = ["train", "train", "val", "test", None]
    return pa.table({"x": x, "y": [0, 1, 0, 1, 2], "split": split, **columns})


@pytest.mark.parametrize("kind", WRITERS)
def test_files_of_all_kinds(run: Any, tmp_path: Path, kind: str) -> None:
    weights = pa.array([5, 4, 3, 2, 1], pa.int64())
    WRITERS[kind](edges_table(w=weights, when=weights.cast(pa.timestamp("ms"))), tmp_path / "e")
    WRITERS[kind](nodes_table(), tmp_path / "n")
    done = run(
        *("convert", "table", tmp_path / "o.gnn", "--edges", tmp_path / "e", "--nodes"),
        *(tmp_path / "n", "--features", "x", "--label", "y", "--split", "split"),
        *("--edge-column", "edge_weight=w", "--edge-column", "when", "--memory", "40MB"),
    )
    assert done.status == 0, done.stderr
    assert "left out" not in done.stderr
    graph = read_store(tmp_path / "o.gnn")
    assert graph.pairs() == [(2, 0), (0, 1), (1, 2), (2, 3), (4, 4)]
    assert graph.edge_attributes["edge_weight"].tolist() == [3, 5, 4, 2, 1]
    assert graph.edge_attributes["when"].tolist() == [3, 5, 4, 2, 1]
    assert graph.attributes["x"].tolist() == np.arange(10).reshape(5, 2).tolist()
    assert graph.attributes["x"].dtype == np.float32
    assert graph.attributes["y"].tolist() == [0, 1, 0, 1, 2]
    splits = {name: ids.tolist() for name, ids in graph.splits.items()}
    assert splits == {"train": [0, 1], "valid": [2], "test": [3]}
    assert verify(tmp_path / "o.gnn", level="full").ok


def test_tables_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "edges.parquet"
    parquet.write_table(pa.table({"source": [0], "target": [1]}), path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for edges, place in ((path, str(path)), ({"source": [0], "target": [1]}, "the edges")):
        with pytest.raises(UsageError, match=rf"^{place}: .*pip install 'gnnstore\[parquet\]'$"):
            from_tables(edges, tmp_path / "out.gnn")
    (tmp_path / "edges.csv").write_text("0,1\n")
    with pytest.raises(InputError, match="neither Parquet, Arrow nor Feather"):
        from_tables(tmp_path / "edges.csv", tmp_path / "out.gnn")


@pytest.mark.parametrize("how", ["pattern", "directory", "list"])
def test_several_files_are_one_table(tmp_path: Path, how: str) -> None:
    (tmp_path / "parts").mkdir()
    for i in (0, 1, 2, 10):
        table = pa.table({"source": [i, i], "target": [1, 2]})
        parquet.write_table(table, tmp_path / "parts" / f"e-{i}.parquet")
    files = [tmp_path / "parts" / f"e-{i}.parquet" for i in (0, 1, 2, 10)]
    given = {"pattern": str(tmp_path / "parts" / "e-*.parquet"), "list": files}
    edges = given.get(how, tmp_path / "parts")
    out = from_tables(edges, tmp_path / "o.gnn", num_nodes=11)
    pairs = [(i, t) for i in (0, 1, 2, 10) for t in (1, 2)]
    assert sorted(read_store(out).pairs()) == sorted(pairs)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([2, 10, None, 2, 0]), {"0": [4], "2": [0, 3], "10": [1]}),
        (pa.array([True, False, None, True, True]), {"True": [0, 3, 4], "False": [1]}),
        (pa.array([b"train", b"val", b"", b"a", None]), {"train": [0], "valid": [1], "a": [3]}),
        (pa.array([b"ab", b"cd", b"cd", b"ab", None], pa.binary(2)), {"ab": [0, 3], "cd": [1, 2]}),
        (pa.array([1.5, float("nan"), 1.5, 0.0, 0.0]), {"1.5": [0, 2], "0.0": [3, 4]}),
        (pa.array(list("abacb")).dictionary_encode(), {"a": [0, 2], "b": [1, 4], "c": [3]}),
    ],
)
def test_values_of_splits(tmp_path: Path, values: pa.Array, expected: dict[str, list[int]]) -> None:
    nodes = pa.table({"split": values})
    out = from_tables(edges_table(), tmp_path / "o.gnn", nodes=nodes, split="split")
    assert {name: ids.tolist() for name, ids in read_store(out).splits.items()} == expected


def test_values_that_name_no_splits(tmp_path: Path) -> None:
    for values, message in (
        (pa.array([[i] for i in range(5)]), "whose values do not name splits"),
        (pa.array([b"\xff"] * 5), "split: is large_binary, whose values do not name splits"),
    ):
        nodes = pa.table({"split": values})
        with pytest.raises(InputError, match=message):
            from_tables(edges_table(), tmp_path / "o.gnn", nodes=nodes, split="split")


def test_equal_to_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 500, (2, 5000))
    weight = rng.random(5000, np.float32)
    parquet.write_table(
        pa.table({"source": ends[0], "target": ends[1], "edge_weight": weight}), tmp_path / "e"
    )
    np.savez(tmp_path / "e.npz", edge_index=ends, edge_weight=weight, num_nodes=500)
    one = from_tables(
        tmp_path / "e", tmp_path / "a.gnn", edge_columns=["edge_weight"], num_nodes=500
    )
    other = from_numpy(tmp_path / "e.npz", tmp_path / "b.gnn")
    files = [
        {p.relative_to(out): p.read_bytes() for p in out.rglob("c*") if p.is_file()}
        for out in (one, other)
    ]
    assert files[0] == files[1]
    assert len(files[0]) > 3


def test_ids_without_a_table_of_nodes_are_numbered(tmp_path: Path) -> None:
    table = pa.table({"source": pa.array([70, 5], pa.uint32()), "target": [5, 1000]})
    graph = read_store(from_tables(table, tmp_path / "o.gnn"))
    assert graph.pairs() == [(1, 0), (0, 2)]
    assert graph.original_ids is not None
    assert graph.original_ids.tolist() == [5, 70, 1000]


def test_ids_of_a_table_of_nodes_are_its_rows(tmp_path: Path) -> None:
    nodes = pa.table({"id": [70, 5, 1000], "a": [1, 2, 3], "b": [0.5, 1.5, 2.5]})
    table = pa.table({"source": [70, 5], "target": [5, 1000]})
    out = from_tables(table, tmp_path / "o.gnn", nodes=nodes, node_id="id", features=["a", "b"])
    graph = read_store(out)
    assert graph.pairs() == [(0, 1), (1, 2)]
    assert graph.original_ids is not None
    assert graph.original_ids.tolist() == [70, 5, 1000]
    assert graph.attributes["x"].tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, on_disk: bool) -> None:
    if on_disk:
        monkeypatch.setattr(numbering, "_ENTRY_BYTES", 2**23)

    def texts(values: list[str]) -> pa.Array:
        array = pa.array(values, pa.large_string() if kind == "large_string" else pa.string())
        return array.dictionary_encode() if kind == "dictionary" else array

    nodes = pa.table({"name": texts(["c", " a", "b"]), "y": [1, 2, 3]})
    edges = pa.table({"source": texts([" a", "b"]), "target": texts(["c", " a"]), "w": [7, 8]})
    options = ConvertOptions(memory_bytes=2**25, overwrite=True)
    arguments: dict[str, Any] = {"node_id": "name", "label": "y", "edge_columns": {"edge_w": "w"}}
    out = from_tables(edges, tmp_path / "o.gnn", nodes=nodes, options=options, **arguments)
    graph = read_store(out)
    assert graph.pairs() == [(1, 0), (2, 1)]
    assert graph.edge_attributes["edge_w"].tolist() == [7, 8]
    assert list(gnnstore.open(out).original_names or ()) == ["c", " a", "b"]
    out = from_tables(edges, tmp_path / "o.gnn", options=options)
    assert list(gnnstore.open(out).original_names or ()) == [" a", "c", "b"]
    more = pa.table({"source": texts(["d"]), "target": texts(["c"]), "w": [1]})
    with pytest.raises(InputError, match="the name 'd' is not in the nodes"):
        from_tables(more, tmp_path / "o.gnn", nodes=nodes, options=options, **arguments)
    twice = pa.table({"name": texts(["c", "c", "b"]), "y": [1, 2, 3]})
    with pytest.raises(InputError, match="row 1 has the name 'c', which row 0 has"):
        from_tables(more, tmp_path / "o.gnn", nodes=twice, options=options, **arguments)


class Frame:
    """What any other library's frame offers."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class LazyFrame:
    """What Polars' lazy frame offers, and Polars' frames."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def collect_schema(self) -> Any:
        raise NotImplementedError

    def head(self, rows: int) -> LazyFrame:
        return LazyFrame(self.table.slice(0, rows))

    def select(self, columns: list[str]) -> LazyFrame:
        return LazyFrame(self.table.select(columns))

    def collect(self) -> LazyFrame:
        return self

    def collect_batches(self, *, maintain_order: bool) -> Any:
        assert maintain_order
        return (LazyFrame(self.table.slice(first, 2)) for first in range(0, len(self.table), 2))

    def to_arrow(self) -> pa.Table:
        return self.table


def test_what_is_read_in_batches(tmp_path: Path) -> None:
    """Lazy frames, data sets and scanners have the columns and rows of their tables."""
    table = edges_table(w=[5, 4, 3, 2, 1])
    parquet.write_table(table, tmp_path / "e.parquet", row_group_size=2)
    found = dataset.dataset(tmp_path / "e.parquet")
    for i, frame in enumerate((LazyFrame(table), found, found.scanner())):
        out = from_tables(frame, tmp_path / f"{i}.gnn", edge_columns=["w"])
        assert gnnstore.open(out).edge_index.tolist() == [[0, 1, 2, 2, 4], [1, 2, 0, 3, 4]]
        assert gnnstore.open(out).w[:].tolist() == [5, 4, 3, 2, 1]


def test_names_of_polars(tmp_path: Path) -> None:
    """Categories and enumerations have a dictionary of views."""
    names = pa.array(["c", "a", "b"], pa.string_view())
    for i, codes in enumerate((pa.uint32(), pa.uint8())):
        ends = {
            "source": pa.DictionaryArray.from_arrays(pa.array([0, 2], codes), names),
            "target": pa.DictionaryArray.from_arrays(pa.array([2, 1], codes), names),
        }
        store = gnnstore.open(from_tables(pa.table(ends), tmp_path / f"{i}.gnn"))
        assert list(store.original_names or ()) == ["c", "b", "a"]
        assert store.edge_index.tolist() == [[0, 1], [1, 2]]


def test_levels_of_an_index_are_columns(tmp_path: Path) -> None:
    nodes = pa.table({"uid": [70, 5], "day": [1, 2], "y": [8, 9]}).to_pandas()
    edges = pa.table({"source": [5], "target": [70], "w": [3]}).to_pandas()
    out = from_tables(
        edges.set_index("source"),
        tmp_path / "o.gnn",
        nodes=nodes.set_index(["uid", "day"]),
        node_id="uid",
        node_columns=["day"],
        label="y",
    )
    store = gnnstore.open(out)
    assert store.edge_index.tolist() == [[1], [0]]
    assert (store.labels.tolist(), store.day.tolist()) == ([8, 9], [1, 2])
    nodes["uid"] = [70, "a"]
    for frame, message in (
        (edges.set_index("w", drop=False), "there are two columns 'w'"),
        (nodes, "the column 'uid' has values of several types, or objects that"),
    ):
        with pytest.raises(InputError, match=message):
            from_tables(frame, tmp_path / "p.gnn", source="y", target="y")


def test_decimals(tmp_path: Path) -> None:
    """Whole ones are int64, ids too; others are float64 that tells them apart."""
    ends = {name: pa.array([Decimal(1), Decimal(2)]) for name in ("source", "target")}
    money = pa.array([Decimal("0.10"), Decimal("1234567890.25")], pa.decimal128(38, 18))
    out = from_tables(pa.table({**ends, "m": money}), tmp_path / "o.gnn", edge_columns=["m"])
    ids = gnnstore.open(out).original_ids
    assert ids is not None
    assert ids.tolist() == [1, 2]
    assert gnnstore.open(out).m[:].tolist() == [0.1, 1234567890.25]
    for value, message in (
        ("1234567890123456.78", "m: row 1 has 1234567890123456.78, which float64 cannot hold"),
        ("12345678901234567890", "m: row 1 has 12345678901234567890, which int64 cannot hold"),
    ):
        wrong = pa.array([Decimal(0), Decimal(value)])
        with pytest.raises(InputError, match=message):
            from_tables(pa.table({**ends, "m": wrong}), tmp_path / "p.gnn", edge_columns=["m"])


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers())
    ends = pa.table({"source": text, "target": text})
    with pytest.raises(InputError, match="source: row 1 has '\ufffd', which is not UTF-8"):
        from_tables(ends, tmp_path / "o.gnn")
    ends = pa.table({"source": [0], "target": [1]})
    with pytest.raises(InputError, match="s: has text that is not UTF-8; convert it to UTF-8"):
        from_tables(ends, tmp_path / "o.gnn", nodes=pa.table({"s": text}), split="s")


def test_one_column_of_features(tmp_path: Path) -> None:
    out = from_tables(edges_table(), tmp_path / "o.gnn", nodes=nodes_table(), features="y")
    assert gnnstore.open(out).features.tolist() == [[0], [1], [0], [1], [2]]


@pytest.mark.parametrize("kind", ["csr", "bsr"])
def test_matrices_in_memory(tmp_path: Path, kind: str) -> None:
    """Entry [i, j] is the edge from i to j; zeros fill the blocks of a bsr matrix."""
    data = np.array([0.5, 0.0])
    coo = SimpleNamespace(row=np.array([0, 1]), col=np.array([2, 1]), data=data)
    matrix = SimpleNamespace(tocoo=lambda: coo, shape=(3, 3), format=kind)
    count = 1 if kind == "bsr" else 2
    for i, arrays in enumerate((matrix, {"edge_index": matrix, "y": [4, 5, 6]})):
        store = gnnstore.open(gnnstore.from_arrays(arrays, tmp_path / f"{i}.gnn"))
        assert store.edge_index.tolist() == [[0, 1][:count], [2, 1][:count]]
        assert store.edge_weight[:].tolist() == [0.5, 0.0][:count]
    assert store.labels.tolist() == [4, 5, 6]
    matrix.shape = (3, 4)
    with pytest.raises(InputError, match="a matrix of 3 x 4 joins two kinds of nodes"):
        gnnstore.from_arrays(matrix, tmp_path / "p.gnn")
    with pytest.raises(UsageError, match="num_nodes: the matrix has it already; leave it out"):
        gnnstore.from_arrays({"edge_index": matrix, "num_nodes": 3}, tmp_path / "p.gnn")


def test_frames(tmp_path: Path) -> None:
    table = edges_table()
    graphs = [
        read_store(gnnstore.from_tables(frame, tmp_path / f"{i}.gnn"))
        for i, frame in enumerate((table, table.to_pandas(), Frame(table), table.to_pydict()))
    ]
    assert all(graph.pairs() == graphs[0].pairs() for graph in graphs)
    labels = pa.table({"y": [1.0, None, 2, 0, 1]}).to_pandas()
    out = from_tables(table, tmp_path / "y.gnn", nodes=labels, label="y")
    assert gnnstore.open(out).num_classes == 3
    with pytest.raises(UsageError, match="the edges: a int is not a table"):
        from_tables(3, tmp_path / "z.gnn")


def test_arrays_in_memory(tmp_path: Path) -> None:
    out = gnnstore.from_arrays(
        {"edge_index": torch.tensor([[0, 1], [1, 2]]), "y": [0, 1, 2], "train": np.array([0])},
        tmp_path / "o.gnn",
    )
    graph = read_store(out)
    assert graph.pairs() == [(0, 1), (1, 2)]
    assert graph.attributes["y"].tolist() == [0, 1, 2]
    assert graph.splits["train"].tolist() == [0]
    with pytest.raises(UsageError, match="y: <U1 of type list cannot be stored"):
        gnnstore.from_arrays({"edge_index": [[0], [1]], "y": ["a", "b"]}, tmp_path / "p.gnn")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({}, {"source": "src"}, "has no columns 'src'; its columns are 'source', 'target'"),
        ({"w": [1, None, 3, 4, 5]}, {"edge_columns": ["w"]}, "w: row 1 has no value; fill it"),
        ({"w": list("abcde")}, {"edge_columns": ["w"]}, "w: is string, which is not a number"),
        ({"w": [[1], [2, 3], [4], [5], [6]]}, {"edge_columns": ["w"]}, "row 1 has 2 values"),
        ({"source": [0.5, 1, 2, 3, 4]}, {}, "source: is double; ids|source: is float64; ids"),
        ({"source": [-1, 1, 2, 3, 4]}, {}, r"source: row 0: -1 is outside \[0, 2\^63\)"),
        ({"source": [9, 1, 2, 3, 4]}, {"num_nodes": 5}, r"9 at position 0 is outside \[0, 5\)"),
        ({"target": list("abcde")}, {}, "one of source and target has names, the other numbers"),
        ({"source": [0, 1, None, 3, 4]}, {}, "source: row 2 has no value"),
    ],
)
def test_columns_that_cannot_be_stored(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    parquet.write_table(edges_table(**columns), tmp_path / "e.parquet")
    with pytest.raises(InputError, match=message):
        from_tables(tmp_path / "e.parquet", tmp_path / "o.gnn", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["e.parquet"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": nodes_table(id=[1, 2, 3, 4, 9]), "node_id": "id"}, "the id 0 is not in the nod"),
        ({"nodes": nodes_table(id=[0, 1, 1, 4, 9]), "node_id": "id"}, "id 1 is in rows 1 and 2"),
        ({"nodes": nodes_table(id=list("abcde")), "node_id": "id"}, "id has names, and the ends"),
        (
            {"nodes": nodes_table().to_pandas().iloc[::-1], "label": "y"},
            r"the nodes: the index of the frame is not 0 to N - 1, .* call frame.reset_index",
        ),
        (
            {"nodes": nodes_table(id=pa.array([0, 1, 2, 3, 2**63], pa.uint64())), "node_id": "id"},
            r"id: row 4: the id 9223372036854775808 is not below 2\^63; store ids as text",
        ),
        ({"label": "y"}, "node_id=, features=, label=, split= and node_columns= go with nodes="),
        ({"nodes": nodes_table(), "num_nodes": 5}, "num_nodes= goes without nodes="),
    ],
)
def test_nodes_that_do_not_go_with_edges(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((InputError, UsageError), match=message):
        from_tables(edges_table(), tmp_path / "o.gnn", **options)


@pytest.mark.parametrize("kind", choose(["parquet", "arrow"], list(WRITERS)))
def test_damaged_files(tmp_path: Path, kind: str) -> None:
    WRITERS[kind](edges_table(), tmp_path / "e")
    data = (tmp_path / "e").read_bytes()
    rng = np.random.default_rng(0)
    for end in (*rng.integers(8, len(data), choose(3, 15)), len(data) - 1):
        (tmp_path / "e").write_bytes(data[:end])
        with pytest.raises(InputError, match=r"e: the table is damaged|e: is no table"):
            from_tables(tmp_path / "e", tmp_path / "o.gnn")
    for place in rng.integers(0, len(data), choose(8, 60)):
        flipped = bytearray(data)
        flipped[place] ^= 0xFF
        (tmp_path / "e").write_bytes(flipped)
        with suppress(GnnstoreError):
            from_tables(tmp_path / "e", tmp_path / "o.gnn", options=ConvertOptions(overwrite=True))
    assert not list(tmp_path.glob(".o.gnn*"))


def damaged_arrow(place: Callable[[bytes], int]) -> bytes:
    """Return a file of names with a dictionary, in which one place holds 2^30 + 9."""
    ends = pa.array([f"node {i}" for i in range(9)])
    stream = pa.BufferOutputStream()
    table = pa.table({"source": ends, "target": ends.dictionary_encode()})
    with pa.ipc.new_file(stream, table.schema) as file:
        file.write_table(table)
    data = bytearray(stream.getvalue().to_pybytes())
    first = place(bytes(data))
    assert first > 0
    data[first : first + 4] = (2**30 + 9).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(10, dtype=np.int32) * 6, "Offset invariant failure"),  # of texts
        (np.arange(9, dtype=np.int32), "indices invalid"),  # of a dictionary
    ],
)
def test_an_arrow_file_that_lies(run: Any, tmp_path: Path, array: Any, message: str) -> None:
    path = tmp_path / "e.arrow"
    path.write_bytes(damaged_arrow(lambda data: data.rfind(array.tobytes()) + 16))
    done = run("convert", "table", tmp_path / "o.gnn", "--edges", path)
    assert done.status == 1, done.stderr
    assert "e.arrow: the table is damaged" in done.stderr
    assert message in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["e.arrow"]


class Rewriting(NullProgress):
    """Writes a file anew when edges are read."""

    def __init__(self, write: Callable[[], object]) -> None:
        self._write = write

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "items") -> Iterator[Phase]:
        if name.startswith(("read edges", "read triples")):
            self._write()
        with super().phase(name, total, unit) as phase:
            yield phase


@pytest.mark.parametrize("ends", [[["a", "bc"], ["d", "e"]], [[5, 70], [70, 900]]])
@pytest.mark.parametrize("kind", ["parquet", "triples"])
def test_a_file_that_changes_between_passes(tmp_path: Path, ends: Any, kind: str) -> None:
    path = tmp_path / "e"

    def write(sources: list[Any], targets: list[Any]) -> None:
        if kind == "parquet":
            parquet.write_table(pa.table({"source": sources, "target": targets}), path)
        else:
            rows = zip(sources, targets, strict=True)
            path.write_text("".join(f"{source}\tr\t{target}\n" for source, target in rows))

    write(*ends)
    others = [2 * list(reversed(end)) for end in reversed(ends)]
    others[0][0] = type(others[0][0])(31)
    convert: Any = from_tables if kind == "parquet" else from_triples
    with pytest.raises(InputError, match="e: has changed while it was read; convert it again"):
        convert(path, tmp_path / "o.gnn", progress=Rewriting(lambda: write(*others)))
    assert [file.name for file in tmp_path.iterdir()] == ["e"]


def test_files_that_are_none(run: Any, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\n0,1\n")
    done = run("convert", "table", tmp_path / "o.gnn", "--edges", tmp_path / "e.csv")
    assert "is neither Parquet, Arrow nor Feather; 'gnnstore convert snap' reads" in done.stderr
    done = run("convert", "table", tmp_path / "o.gnn", "--edges", tmp_path / "none.parquet")
    assert done.status == 3
    with pytest.raises(NotFoundError, match=r"has no file \*\.parquet"):
        from_tables(tmp_path, tmp_path / "o.gnn")
    parquet.write_table(edges_table(), tmp_path / "a.parquet")
    parquet.write_table(edges_table(source=[0.5] * 5), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b.parquet: the column 'source' is double, and int64 in"):
        from_tables(str(tmp_path / "?.parquet"), tmp_path / "o.gnn")


def test_columns_that_are_left_out_are_told(run: Any, tmp_path: Path) -> None:
    parquet.write_table(edges_table(w=[1, 2, 3, 4, 5]), tmp_path / "e.parquet")
    done = run("convert", "table", tmp_path / "o.gnn", "--edges", tmp_path / "e.parquet")
    assert done.status == 0
    assert "columns that no option names are left out: w" in done.stderr


@pytest.mark.parametrize("kind", ["file", "compressed", "stream", "dictionary", "parquet"])
def test_batches_and_rows_beyond_memory_are_refused(tmp_path: Path, kind: str) -> None:
    ends = np.zeros(2_600_000, np.int64)
    path, remedy = tmp_path / "e", "write it in smaller batches, or as Parquet"
    table = pa.table({"source": ends, "target": ends})
    if kind in {"dictionary", "parquet"}:
        values = pa.array([np.zeros(5_000_000, np.float32)])
        rows = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), values)
        row = values if kind == "parquet" else rows
        table = pa.table({"source": [0] * len(row), "target": [1] * len(row), "w": row})
        remedy = "split its lists" if kind == "parquet" else "dictionaries of e"
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd" if kind == "compressed" else None)
        new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with new(path, table.schema, options=options) as file:
            file.write_batch(table.combine_chunks().to_batches()[0])
    convert = ConvertOptions(memory_bytes=30_000_000)
    columns = ["w"] if "w" in table.schema.names else None
    with pytest.raises(BudgetError, match=remedy):
        from_tables(path, tmp_path / "o", edge_columns=columns, options=convert)


def test_an_interrupted_conversion_of_files_resumes(tmp_path: Path) -> None:
    parquet.write_table(edges_table(), tmp_path / "e.parquet")
    options = ConvertOptions(resume=True)
    out = from_tables(tmp_path / "e.parquet", tmp_path / "o.gnn", options=options)
    assert read_store(out).num_nodes == 5
    with pytest.raises(UsageError, match="cannot be resumed"):
        from_tables(edges_table(), tmp_path / "p.gnn", options=options)
    nodes = pa.table({"feature": np.arange(5.0)})
    parquet.write_table(nodes, tmp_path / "n.parquet")
    for edges, others in ((edges_table(), tmp_path / "n.parquet"), (tmp_path / "e.parquet", nodes)):
        with pytest.raises(UsageError, match="cannot be resumed"):
            from_tables(edges, tmp_path / "q.gnn", nodes=others, options=options)


def test_sparse_matrices_of_scipy(run: Any, tmp_path: Path) -> None:
    """Written as scipy does, which need not be there."""
    shape: dict[str, Any] = {"shape": np.array([3, 3]), "data": np.array([1.5, 2.5, 3.5])}
    csr: dict[str, Any] = {"indptr": np.array([0, 2, 2, 3]), "indices": np.array([1, 2, 0])}
    csc = {"indptr": np.array([0, 1, 2, 3]), "indices": np.array([2, 0, 0])}
    coo = {"row": np.array([0, 0, 2]), "col": np.array([1, 2, 0])}
    for kind, arrays in (("csr", csr), ("csc", csc), ("coo", coo)):
        names = np.array(kind), np.array(kind.encode("ascii"))
        for name in names[: 2 if is_long() or kind == "csr" else 1]:
            members: dict[str, Any] = {**arrays, **shape, "format": name, "_is_array": np.True_}
            np.savez(tmp_path / "a.npz", **members)
            done = run("convert", "numpy", tmp_path / "a.npz", tmp_path / "o.gnn", "--overwrite")
            assert done.status == 0, done.stderr
            graph = read_store(tmp_path / "o.gnn")
            weights = graph.edge_attributes["edge_weight"].tolist()
            values = (1.5, 2.5, 3.5) if kind != "csc" else (2.5, 3.5, 1.5)
            expected = dict(zip([(0, 1), (0, 2), (2, 0)], values, strict=True))
            assert dict(zip(graph.pairs(), weights, strict=True)) == expected
            assert graph.num_nodes == 3
    for kind, size, said in (("dia", 3, "in the format dia"), ("csr", 4, "3 x 4")):
        np.savez(
            tmp_path / "a.npz", **csr, data=shape["data"], shape=[3, size], format=np.array(kind)
        )
        done = run("convert", "numpy", tmp_path / "a.npz", tmp_path / "o.gnn", "--overwrite")
        assert done.status == 1
        assert said in done.stderr


def test_a_hetero_data_that_torch_saved(run: Any, tmp_path: Path) -> None:
    data = make_hetero()
    data.source = "small"
    used = data.clone()
    assert used["paper"].is_node_attr("x")
    collated, places = InMemoryDataset.collate([data])
    of_a_data_set = collated.to_dict(), places, HeteroData
    for saved in (used, of_a_data_set, *choose((), (data, data.to_dict()))):
        torch.save(saved, tmp_path / "data.pt")
        done = run("convert", "pyg", tmp_path / "data.pt", tmp_path / "o.gnn", "--overwrite")
        assert done.status == 0, done.stderr
        found = gnnstore.open(tmp_path / "o.gnn").to_pyg()
        assert found.source == "small"
        for of in (*data.node_types, *data.edge_types):
            for name, values in data[of].items():
                own = found[of][name]
                assert own == values if isinstance(values, int) else torch.equal(own, values)


@pytest.mark.usefixtures("small_budgets")
def test_a_data_that_torch_saved(run: Any, tmp_path: Path) -> None:
    data = Data(
        x=torch.rand(3, 2),
        edge_index=torch.tensor([[0, 1], [1, 2]]),
        y=torch.tensor([0, 1, 2]),
        train_mask=torch.tensor([True, False, False]),
        name="small",
        shape=[1, 2.5, None],
    )
    collated, slices = InMemoryDataset.collate([data])
    used = data.clone()
    assert used.is_node_attr("x")  # which it remembers, in an attribute of its own
    for saved in (data, used, data.to_dict(), (collated.to_dict(), slices, Data)):
        torch.save(saved, tmp_path / "data.pt")
        done = run("convert", "pyg", tmp_path / "data.pt", tmp_path / "o.gnn", "--overwrite")
        assert done.status == 0, done.stderr
        graph = read_store(tmp_path / "o.gnn")
        assert graph.pairs() == [(0, 1), (1, 2)]
        np.testing.assert_array_equal(graph.attributes["x"], data.x.numpy())
        assert graph.splits["train"].tolist() == [0]
        assert gnnstore.open(tmp_path / "o.gnn").to_pyg().name == "small"
    collated, slices = InMemoryDataset.collate([data, data])
    hetero, places = InMemoryDataset.collate([make_hetero(), make_hetero()])
    for saved, said in (
        ((collated.to_dict(), slices, Data), "a data set of 2 graphs; save one of them"),
        ((hetero.to_dict(), places, HeteroData), "a data set of 2 graphs; save one of them"),
        ({"x": os.getcwd}, "the name "),
        ([1, 2], "expected a Data or HeteroData of PyG as torch.save writes it, found a list"),
    ):
        torch.save(saved, tmp_path / "data.pt")
        done = run("convert", "pyg", tmp_path / "data.pt", tmp_path / "o.gnn", "--overwrite")
        assert done.status == 1
        assert said in done.stderr
    torch.save(data, tmp_path / "data.pt")
    done = run(
        *("convert", "pyg", tmp_path / "data.pt", tmp_path / "o.gnn", "--overwrite"),
        *("--memory", "1kB"),
    )
    assert done.status == 2
