"""Numbers are not rounded: float32 is for what it holds, float64 for the rest, or a refusal."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import gnnstore
from gnnstore.converters import (
    ConvertOptions,
    from_graphbolt,
    from_ogb,
    from_snap,
    from_tables,
    from_typed,
)
from gnnstore.converters.inputs.source import FloatLabels, MemoryArray
from gnnstore.errors import InputError
from gnnstore.testing.graphs import random_graph
from tests.support import published
from tests.support.effort import choose

SECONDS = 1609459201  # float32 has 1609459200


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def values_of(found: Any) -> tuple[str, list[Any]]:
    return str(found.dtype).removeprefix("torch."), found[:].tolist()


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        ([str(SECONDS), "2", ".25"], "float64"),
        (["3", "0.1", "2"], "float32"),
        ([str(2**24), ".5", "1"], "float32"),
        ([str(2**53 + 1), "2", "3"], "int64"),
        ([str(2**64 - 1), "2", str(2**53 + 1)], "uint64"),
        (["-5", str(2**63), "3"], "float64"),
        *choose(
            [],
            [
                ([f"{SECONDS}.5", "2", ".25"], "float64"),
                (["1e17", "2e18", "3"], "float64"),
                (["1e300", "2", ".25"], "float64"),
            ],
        ),
    ],
)
def test_columns_of_edges_in_text(tmp_path: Path, column: list[str], dtype: str) -> None:
    lines = [f"{i} {i + 1} {value}\n" for i, value in enumerate(column)]
    path = write(tmp_path / "e.txt", "".join(lines))
    store = gnnstore.open(from_snap(path, tmp_path / "a.gnn", edge_columns={"v": 3}))
    convert: type = int if "int" in dtype else float
    assert values_of(store.v) == (
        dtype,
        [np.dtype(dtype).type(convert(value)).item() for value in column],
    )
    # In two parts, each of which has another type by itself.
    head, rest = "source,target,v\n", [line.replace(" ", ",") for line in lines]
    write(tmp_path / "t/edges/a__to__a/p0.csv", head + rest[0])
    write(tmp_path / "t/edges/a__to__a/p1.csv", head + "".join(rest[1:]))
    write(tmp_path / "t/nodes/a.csv", "v\n" + "\n".join([*column, "0"]) + "\n")
    typed = gnnstore.open(from_typed(tmp_path / "t", tmp_path / "b.gnn"))
    assert values_of(typed["a", "to", "a"].v) == values_of(store.v)
    assert values_of(typed["a"].v[:3]) == values_of(store.v)


@pytest.mark.parametrize("form", ["edges", "nodes", "names", "labels", "features"])
@pytest.mark.parametrize(
    "column",
    [
        [str(2**53 + 1), "1.0", "2"],
        [str(2**63 + 1), "-1", "2"],
        [str(2**53 + 1), ".5", "2"],
        [str(2**64), "1", "3"],
        ["1" * 30, "1", "2"],
    ],
)
def test_integers_that_a_column_of_floats_would_round(
    tmp_path: Path, column: list[str], form: str
) -> None:
    """One file has the integer, another the numbers that no integer is."""
    write(tmp_path / "e.txt", "0 1\n1 2\n")
    nodes, parts = "nodes/a", {"0": column[:1], "1": column[1:]}
    write(tmp_path / "t/edges/a__to__a.csv", "source,target\n" + "x,y\ny,z\n" * (form == "names"))
    if form == "edges":
        nodes = "edges/a__to__b"
    for part, values in parts.items():
        head = {"edges": "source,target,v\n", "nodes": "v,w\n", "names": "v,id\n"}.get(form, "")
        rows = [
            f"{v},{'xyz'[i + int(part)]}" if form == "names" else v for i, v in enumerate(values)
        ]
        if form in ("edges", "nodes"):
            rows = [f"0,1,{v}" if form == "edges" else f"{v},2" for v in values]
        write(tmp_path / f"t/{nodes}/{part}.csv", head + "\n".join(rows) + "\n")
    out = tmp_path / "a.gnn"
    more: dict[str, Any] = {form: f"{tmp_path}/t/nodes/a/*.csv"}
    convert: Any = partial(from_typed, tmp_path / "t", out)
    if form in ("labels", "features"):
        options = ConvertOptions(feature_dtype="uint64" if form == "features" else None)
        convert = partial(from_snap, tmp_path / "e.txt", out, **more, options=options)
    said = rf"column [13]: '{column[0][:20]}.*' is rounded by float64, which the column needs for"
    with pytest.raises(InputError, match=said):
        convert()


def test_whole_numbers_with_gaps(tmp_path: Path) -> None:
    path = write(tmp_path / "e.txt", f"0 1 {SECONDS}\n1 2 nan\n")
    store = gnnstore.open(from_snap(path, tmp_path / "a.gnn", edge_columns={"v": 3}))
    np.testing.assert_array_equal(store.v[:].numpy(), np.array([SECONDS, np.nan]))
    path = write(tmp_path / "f.txt", f"0 1 {2**53 + 1}\n1 2 nan\n")
    with pytest.raises(InputError, match=r"f\.txt: column 3 has whole numbers and gaps, which"):
        from_snap(path, tmp_path / "b.gnn", edge_columns={"v": 3})


def test_labels_in_text(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.txt", "0 1\n1 2\n")
    for i, (texts, dtype) in enumerate(
        (
            ([f"{SECONDS}\n.5\n1\n"], "float64"),
            ([f"{SECONDS}\n", ".5\n1\n"], "float64"),
            (["1e39\n.5\n", "1\n"], "float64"),
            (["7\n", ".5\n1\n"], "float32"),
        )
    ):
        for j, text in enumerate(texts):
            write(tmp_path / f"y{i}-{j}.csv", text)
        files = tmp_path / f"y{i}-*.csv"
        store = gnnstore.open(from_snap(edges, tmp_path / f"{i}.gnn", labels=files))
        expected = np.array("".join(texts).split(), dtype)
        assert values_of(store.y) == (dtype, expected.tolist())
    write(tmp_path / "z0.csv", f"{2**53 + 1}\n")
    write(tmp_path / "z1.csv", ".5\n1\n")
    files = tmp_path / "z?.csv"
    with pytest.raises(InputError, match="'9007199254740993' is rounded by float64, which the col"):
        from_snap(edges, tmp_path / "z.gnn", labels=files)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([SECONDS, 0.5]), "float64"),
        (np.array([SECONDS, np.nan]), "float64"),
        (np.array([2**24, np.nan]), "float32"),
        (np.array([0.1, 7]), "float32"),
        (np.array([2.0**24 + 1, 3]), "int64"),
    ],
)
def test_labels_that_are_floats(values: npt.NDArray[Any], dtype: str) -> None:
    labels = FloatLabels(MemoryArray("y", values))
    assert labels.dtype == dtype
    np.testing.assert_array_equal(labels.read(), values.astype(dtype))


def test_labels_of_tables_and_joined_columns(tmp_path: Path) -> None:
    edges = pa.table({"source": [0, 1], "target": [1, 0]})
    big, shares = pa.array([2**53, 3]), pa.array([0.5, 1], pa.float32())
    nodes = pa.table({"y": [SECONDS + 0.5, np.nan], "big": big, "share": shares})
    more: dict[str, Any] = {"nodes": nodes, "label": "y", "features": ["big", "share"]}
    store = gnnstore.open(from_tables(edges, tmp_path / "a.gnn", **more))
    assert store.y[0].item() == SECONDS + 0.5
    assert store.x[:].tolist() == [[2.0**53, 0.5], [3, 1]]
    more["nodes"] = nodes.set_column(1, "big", pa.array([2**53 + 1, 3]))
    with pytest.raises(InputError, match="joined columns are float64, which rounds 90071992547409"):
        from_tables(edges, tmp_path / "b.gnn", **more)


def test_labels_and_years_of_published_layouts(tmp_path: Path) -> None:
    graph = random_graph(20, 60, feature_dim=2, num_classes=3, edge_feature_dim=2)
    y = SECONDS + graph.attributes["y"] / 4
    root = published.write_graphbolt(tmp_path / "bolt", graph)
    for path in (root / "set").glob("*-labels.npy"):
        np.save(path, SECONDS + np.load(path) / 4)
    store = gnnstore.open(from_graphbolt(root, tmp_path / "a.gnn"))
    known = np.concatenate(list(graph.splits.values()))
    np.testing.assert_array_equal(store.y[known].numpy(), y[known])
    graph.attributes["y"] = y
    root, years = published.write_products(tmp_path / "ogb", graph), SECONDS + np.arange(60) / 2
    published.write_csv_gz(root / "raw" / "edge_year.csv.gz", years)
    store = gnnstore.open(from_ogb(root, tmp_path / "b.gnn"))
    np.testing.assert_array_equal(store.y[:, 0].numpy(), y)
    np.testing.assert_array_equal(store.edge_year[:, 0].numpy(), years)
