"""What `sorted=True` refuses, what it says, and that it needs no room for runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import gnnstore
from gnnstore.converters import ConvertOptions, from_tables, from_typed
from gnnstore.converters.edges import builder
from gnnstore.converters.edges.builder import EdgeBuilder
from gnnstore.errors import GnnstoreError, InputError, UsageError
from tests.support.stores import assert_same_files


def write(path: Path, sources: Any, targets: Any, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"source": np.array(sources), "target": np.array(targets)})
    parquet.write_table(table, path, **how)
    return path


def refused(given: Any, output: Path, **how: Any) -> str:
    with pytest.raises(GnnstoreError) as found:
        from_tables(given, output, sorted=True, **how)
    assert [path for path in output.parent.iterdir() if "out" in path.name] == []
    return str(found.value)


def test_a_row_out_of_order_is_named_with_both_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "e.parquet", [7, 3, 9, 1], [20, 30, 30, 20], row_group_size=3)
    assert refused(path, tmp_path / "out.gnn") == (
        f"{path}: row 3 has source 1 and target 20, and row 2, before it, source 9 and target 30: "
        "edges are not in ascending order of target, then source. Sort them so, or leave "
        "sorted=True out"
    )
    path = write(tmp_path / "f.parquet", [4, 3], [5, 5])
    assert "row 1 has source 3 and target 5" in refused(path, tmp_path / "out.gnn", num_nodes=6)


def test_files_in_another_order_than_their_names(tmp_path: Path) -> None:
    first = write(tmp_path / "in/part-9.parquet", [0, 1], [6, 6])
    second = write(tmp_path / "in/part-10.parquet", [0, 1], [2, 2])
    said = refused(tmp_path / "in", tmp_path / "out.gnn")
    assert said.startswith(f"{second}: row 0 has source 0 and target 2, and row 1 of {first}")
    assert "files are read in natural order of their names" in said


def test_nodes_in_another_order_than_their_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "e.parquet", [10, 10], [10, 30])
    nodes = pa.table({"id": [30, 10], "x": [0.5, 1.5]})
    how: dict[str, Any] = {"nodes": nodes, "node_id": "id", "features": "x"}
    said = refused(path, tmp_path / "out.gnn", **how)
    assert "row 1 has source 10 and target 30, and row 0, before it, source 10 and target" in said
    assert "the table of nodes has these ids in another order" in said


@pytest.mark.parametrize("name", ["undirected", "add_inverse_edge"])
def test_reverse_edges(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "e.parquet", [0], [1])
    given: dict[str, Any] = {name: True}
    options = ConvertOptions(**given)
    assert f"sorted=True: {name}= adds" in refused(path, tmp_path / "out.gnn", options=options)


def test_ends_that_cannot_be_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "e.parquet", ["a"], ["b"])
    assert "and these are names" in refused(path, tmp_path / "out.gnn")
    assert "outside [0, 2^63)" in refused(
        pa.table({"source": [0, -1], "target": [1, 2]}), tmp_path / "out.gnn"
    )
    assert "row 1 has no value" in refused(
        pa.table({"source": [0, None], "target": [1, 2]}), tmp_path / "out.gnn"
    )
    assert "2^63" in refused(
        pa.table({"source": np.array([0, 2**63], np.uint64), "target": [1, 2]}),
        tmp_path / "out.gnn",
    )


def test_types(tmp_path: Path) -> None:
    path = write(tmp_path / "in/edges/user__buys__item.parquet", [2, 1], [3, 3])
    with pytest.raises(InputError, match="row 1 has source 1 and target 3, and row 0") as found:
        from_typed(tmp_path / "in", tmp_path / "out.gnn", sorted=True)
    assert str(found.value).startswith(str(path))
    with pytest.raises(UsageError, match=r"sorted=True: reverse= adds edge types"):
        from_typed(
            tmp_path / "in",
            tmp_path / "out.gnn",
            sorted=True,
            options=ConvertOptions(reverse=("all",)),
        )
    assert not (tmp_path / "out.gnn").exists()


def test_no_runs_within_a_small_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges that memory cannot hold go to runs on disk, and with sorted=True they do not."""
    num_nodes, num_edges = 5_000, 250_000
    keys = np.sort(np.random.default_rng(0).integers(0, num_nodes**2, num_edges))
    path = write(tmp_path / "e.parquet", keys % num_nodes, keys // num_nodes)
    spilled = []
    spill = EdgeBuilder._spill

    def spill_seen(own: EdgeBuilder) -> None:
        spilled.append(own)
        spill(own)

    monkeypatch.setattr(EdgeBuilder, "_spill", spill_seen)
    monkeypatch.setattr(builder, "MIN_SPILL_BYTES", 2**12)
    options = ConvertOptions(memory_bytes=2**22)
    how: dict[str, Any] = {"num_nodes": num_nodes, "options": options}
    store = gnnstore.open(from_tables(path, tmp_path / "a.gnn", sorted=True, **how))
    assert not spilled
    assert gnnstore.verify(store.path).ok
    np.testing.assert_array_equal(store.edge_index[0], keys % num_nodes)
    assert_same_files(from_tables(path, tmp_path / "b.gnn", **how), store.path)
    assert spilled
