"""Directories of parts: their order, what is passed over, and columns in names of directories."""

from __future__ import annotations

import datetime as dt
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

import gnnstore
from gnnstore.converters import ConvertOptions, from_numpy, from_snap, from_tables, from_typed
from gnnstore.converters.writer.estimates import inspect_inputs
from gnnstore.errors import GnnstoreError, InputError, NotFoundError
from tests.support.effort import choose

EDGES = ("a", "to", "a")


def write(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)
    return path


def touch(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_typed(root: Path, ending: str) -> None:
    """Write twelve parts of nodes and edges without leading zeros, in two levels."""
    for i in range(12):
        row, ends = {"x_0": [float(i)], "y": [100 + i]}, {"source": [i], "target": [(i + 1) % 12]}
        for place, columns in (("nodes/a", row), ("edges/a__to__a", {**ends, "w": [i]})):
            path = root / place / f"run{i // 4 + 8}" / f"part.{i}{ending}"
            if ending == ".parquet":
                write(path, **columns)
            else:
                rows = zip(*columns.values(), strict=True)
                touch(path, "\n".join([",".join(columns), *(",".join(map(str, r)) for r in rows)]))


@pytest.mark.parametrize("ending", [*choose([], [".parquet"]), ".csv"])
def test_rows_are_in_the_order_of_the_numbers(tmp_path: Path, ending: str) -> None:
    """`run8/` is before `run10/`, and part.2 before part.10: rows are nodes, and ids of edges."""
    write_typed(tmp_path, ending)
    store = gnnstore.open(from_typed(tmp_path, tmp_path / "o.gnn"))
    assert store["a"].y[:].tolist() == list(range(100, 112))
    edges = store[EDGES]
    assert edges.edge_index.tolist() == [list(range(12)), [*range(1, 12), 0]]
    assert edges.w.tolist() == list(range(12))
    inputs = [Path(own["path"]).name for own in store.reader.manifest.provenance["inputs"]]
    assert inputs == 2 * [f"part.{i}{ending}" for i in range(12)]


def test_pointers_and_indices_in_parts(tmp_path: Path) -> None:
    folder = tmp_path / "edges" / "a__to__a"
    for i in range(12):
        write(folder / f"indptr_{i}.parquet", p=[i] if i < 11 else [11, 12])
        write(folder / f"indices_{i}.parquet", target=[(7 * i) % 12], w=[i])
    store = gnnstore.open(from_typed(tmp_path, tmp_path / "o.gnn"))
    assert store[EDGES].edge_index.tolist() == [list(range(12)), [7 * i % 12 for i in range(12)]]
    assert store[EDGES].w.tolist() == list(range(12))


def test_marks_of_writers_are_passed_over_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "_data"  # which is given, and therefore read
    for i in (2, 10):
        write(root / f"part.{i}.parquet", source=[i], target=[0])
    for name in ("_temporary/0/part.3.parquet", ".ipynb_checkpoints/part.4.parquet"):
        write(root / name, source=[11], target=[11])
    for name in ("_SUCCESS", ".part.2.parquet.crc", "notes.md"):
        touch(root / name)
    store = gnnstore.open(from_tables(root, tmp_path / "o.gnn", num_nodes=12))
    assert store.edge_index.tolist() == [[2, 10], [0, 0]]
    warning = "names that begin with _ or ., and files of other kinds: .ipynb_checkpoints, "
    assert caplog.text.count(warning) == 1
    for name in ("_SUCCESS", ".part.2.parquet.crc", "notes.md", "_temporary"):
        assert caplog.text.count(name) == 1
    assert from_tables(root / "_temporary", tmp_path / "p.gnn", num_nodes=12)
    touch(root / "._part.2.parquet", "a copy of a desktop")
    assert from_tables(str(root / "*.parquet"), tmp_path / "r.gnn", num_nodes=12)
    hidden = root / "_temporary" / "0" / "part.3.parquet"
    assert from_tables(hidden, tmp_path / "q.gnn", num_nodes=12)


def test_arrays_of_a_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Copies that a desktop leaves are not arrays."""
    for name in ("g", "s"):
        (tmp_path / name).mkdir()
        touch(tmp_path / name / "._x.npy", "\0\5\x16\7")
    np.save(tmp_path / "g" / "edge_index.npy", [[0, 1], [1, 2]])
    np.save(tmp_path / "g" / "x.npy", np.ones((3, 2), np.float32))
    np.save(tmp_path / "s" / "train.npy", [0, 2])
    touch(tmp_path / "e.txt", "0 1\n1 2\n")
    with caplog.at_level(logging.WARNING):
        store = gnnstore.open(from_numpy(tmp_path / "g", tmp_path / "a.gnn"))
        other = gnnstore.open(
            from_snap(tmp_path / "e.txt", tmp_path / "b.gnn", splits=tmp_path / "s")
        )
    assert (store.num_nodes, other.splits["train"].tolist()) == (3, [0, 2])
    assert caplog.text.count("._x.npy") == 2
    assert inspect_inputs([tmp_path / "g"]).is_exact


def test_columns_in_names_of_directories(tmp_path: Path) -> None:
    days = [dt.date(2020, 1, 31), dt.date(2020, 2, 1)]
    for i, (city, share) in enumerate((("S%C3%A3o%20Paulo", "0.5"), ("Pune", _MISSING))):
        place = tmp_path / "e" / f"city={city}" / f"year={2009 + i}" / f"day={days[i]}"
        write(place / f"share={share}" / "part.parquet", source=[i, i], target=[0, 1])
    names = ["year", "day", "share"]
    out = from_tables(tmp_path / "e", tmp_path / "o.gnn", edge_columns=names, num_nodes=2)
    store = gnnstore.open(out)
    assert store.edge_index.tolist() == [[1, 1, 0, 0], [0, 1, 0, 1]]  # Pune is before São Paulo
    assert store.year.tolist() == [2010, 2010, 2009, 2009]
    since = dt.date(1970, 1, 1)
    assert store.day.tolist() == [(days[i] - since).days for i in (1, 1, 0, 0)]
    assert np.array_equal(store.share[:].numpy(), [np.nan, np.nan, 0.5, 0.5], equal_nan=True)
    out = from_tables(tmp_path / "e", tmp_path / "p.gnn", source="city", target="city")
    names_of_nodes = gnnstore.open(out).original_names
    assert names_of_nodes is not None
    assert names_of_nodes[:] == ["Pune", "São Paulo"]


_MISSING = "__HIVE_DEFAULT_PARTITION__"


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_columns_of_directories_in_types(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    """All columns become attributes; text is left out, and named."""
    for i in (9, 10):
        edges = {"source": [i - 9], "target": [0], "w": [i]}
        for place, columns in (("nodes/a", {"y": [i]}), ("edges/a__to__a", edges)):
            path = tmp_path / place / f"month={i}" / "kind=x" / f"part{ending}"
            if ending == ".parquet":
                write(path, **columns)
            else:
                order = sorted(columns, key=["source", "target", "w", "y"].index)
                touch(path, ",".join(order) + "\n" + ",".join(str(columns[c][0]) for c in order))
    store = gnnstore.open(from_typed(tmp_path, tmp_path / "o.gnn"))
    assert store["a"].month[:].tolist() == [9, 10]
    assert (store[EDGES].month.tolist(), store[EDGES].w.tolist()) == ([9, 10], [9, 10])
    assert "names of directories state kind in text, which is left out" in caplog.text


def test_a_column_in_the_file_and_in_the_name(tmp_path: Path) -> None:
    write(tmp_path / "e" / "year=2019" / "p.parquet", source=[0], target=[1], year=[2019])
    write(tmp_path / "e" / "year=2020" / "p.parquet", source=[1], target=[0])
    how: dict[str, Any] = {"num_nodes": 2, "edge_columns": ["year"], "overwrite": True}
    store = gnnstore.open(from_tables(tmp_path / "e", tmp_path / "o.gnn", **how))
    assert store.year.tolist() == [2019, 2020]
    write(tmp_path / "e" / "year=2019" / "p.parquet", source=[0], target=[1], year=[2018])
    with pytest.raises(InputError, match="year: row 0 has 2018, and the name of the directory 201"):
        from_tables(tmp_path / "e", tmp_path / "o.gnn", **how)
    touch(tmp_path / "t" / "edges" / "a__to__a" / "year=3" / "p.csv", "source,target,year\n0,1,3\n")
    assert from_typed(tmp_path / "t", tmp_path / "o.gnn", options=ConvertOptions(overwrite=True))
    touch(tmp_path / "t" / "edges" / "a__to__a" / "year=3" / "p.csv", "source,target,year\n0,1,4\n")
    with pytest.raises(InputError, match="'year' differs from the names of directories"):
        from_typed(tmp_path / "t", tmp_path / "o.gnn", options=ConvertOptions(overwrite=True))


def test_parts_of_csv_may_be_empty_and_have_fractions(tmp_path: Path) -> None:
    texts = ("source,target,w\n0,1,3\n", "", "source,target,w\n", "source,target,w\n1,0,0.5\n")
    for i, text in enumerate(texts):
        touch(tmp_path / "edges" / "a__to__a" / f"{i}.csv", text)
        touch(tmp_path / "nodes" / "a" / f"{i}.csv", text.replace("source,target", "y,z"))
    store = gnnstore.open(from_typed(tmp_path, tmp_path / "o.gnn", node_id={"a": ""}))
    assert store[EDGES].edge_index.tolist() == [[0, 1], [1, 0]]
    assert store[EDGES].w.tolist() == [3, 0.5]
    assert (store["a"].y[:].tolist(), store["a"].w[:].tolist()) == ([0, 1], [3, 0.5])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["_delta_log/0.json", "p.parquet"], "is a table of Delta Lake, whose log in _delta_log/"),
        ([".hoodie/h.properties", "p.parquet"], "is a table of Hudi, whose log in .hoodie/"),
        (["metadata/v1.metadata.json", "data/p.parquet"], "is a table of Iceberg, whose log in"),
        (["p.parquet", "p.feather"], "p.feather and p.parquet are one table in two formats"),
        (["_SUCCESS", "notes.md"], "has no file .*, only _SUCCESS, notes.md"),
    ],
)
def test_directories_that_are_refused(tmp_path: Path, files: list[str], message: str) -> None:
    table = pa.table({"source": [0], "target": [1]})
    folder = tmp_path / "edges" / "a__to__a"
    for name in files:
        touch(folder / name)
        if name.endswith(".parquet"):
            parquet.write_table(table, folder / name)
        if name.endswith(".feather"):
            feather.write_feather(table, folder / name)
    kind: type[GnnstoreError] = NotFoundError if "no file" in message else InputError
    with pytest.raises(kind, match=message):
        from_tables(folder, tmp_path / "o.gnn")
    with pytest.raises(kind, match=message):
        from_typed(tmp_path, tmp_path / "o.gnn")
    assert not (tmp_path / "o.gnn").exists()


def test_parts_that_disagree(tmp_path: Path) -> None:
    folder = tmp_path / "edges" / "a__to__a"
    touch(folder / "0.csv", "source,target,w\n0,1,3\n")
    touch(folder / "1.csv", "1,0,2\n")
    with pytest.raises(InputError, match=r"1.csv: the first line names the columns \(none\), and"):
        from_typed(tmp_path, tmp_path / "o.gnn")
    (folder / "1.csv").unlink()
    write(folder / "1.parquet", source=[1], target=[0])
    with pytest.raises(InputError, match=r"edges in text .* and there is 1.parquet too; remove"):
        from_typed(tmp_path, tmp_path / "o.gnn")
