"""What `verify --level full` sees that checksums cannot: numbers that were wrong when written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gnnstore.errors import NotFoundError, UsageError
from gnnstore.formats import (
    EDGE_TYPE,
    AttributeSpec,
    EdgeTypeSpec,
    NodeTypeSpec,
    Schema,
    StoreWriter,
)
from gnnstore.formats.arrays.zarr_metadata import group_metadata
from gnnstore.pipeline.check import LEVELS, verify
from tests.support.stores import write_example_store
from tests.support.traces import Recorder


def write_raw(
    path: Path,
    indptr: list[int],
    indices: list[int],
    split: npt.ArrayLike = (),
    ids: Any = None,
    *,
    source: dict[str, Any] | None = None,
) -> Path:
    """Write a store of exactly these numbers, right or wrong."""
    num_nodes = len(indptr) - 1
    with StoreWriter(path) as writer:
        specs: dict[str, AttributeSpec] = {}
        values = {"indptr": np.array(indptr), "indices": np.array(indices, dtype=np.int32)}
        if ids is not None:
            values["edge_id"] = np.array(ids)
        for name, array in values.items():
            paged = writer.paged(
                f"edges/node__to__node/{name}",
                name=name,
                row_shape=(),
                dtype=array.dtype.name,
                num_rows=len(array),
            )
            paged.append(array)
            specs[name] = paged.spec
        train = writer.compressed(
            "splits/node/train", np.asarray(split, dtype=np.int64), name="train"
        )
        node = NodeTypeSpec("node", num_nodes, {}, {"train": train})
        edge = EdgeTypeSpec(
            *EDGE_TYPE, len(indices), specs["indptr"], specs["indices"], specs.get("edge_id")
        )
        return writer.commit(Schema((node,), (edge,)), source or {})


@pytest.mark.parametrize("id_bytes", [2, 100])
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3, 1, 0, 1], "several edges have the id 1"),
        ([3, 1, 3, 1], "several edges have the id 1"),
        ([2**40, 1, 0, 2**40], f"several edges have the id {2**40}"),
        ([3, 1, 0, -1], f"edge ids: entry 3 is edge -1, outside [0, {2**63 - 1})"),
        ([3, 1, 0, 9], None),
    ],
)
def test_edge_ids(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    id_bytes: int,
    ids: list[int],
    message: str | None,
) -> None:
    """Edges of the input may be left out, so that ids beyond E are sound; no edge comes twice."""
    monkeypatch.setattr("gnnstore.formats.store.checks.ID_BYTES", id_bytes)
    store = write_raw(tmp_path / "a.gnn", [0, 2, 4], [0, 1, 0, 1], ids=ids)
    found = [problem.message for problem in verify(store, "full").problems]
    assert found == ([] if message is None else [message])


def test_edge_ids_beyond_the_input(tmp_path: Path) -> None:
    """Where no edge of the input was left out."""
    whole = {"options": {"undirected": False, "self_loops": "keep"}}
    store = write_raw(tmp_path / "a.gnn", [0, 2, 4], [0, 1, 0, 1], ids=[3, 1, 0, 4], source=whole)
    (problem,) = verify(store, "full").problems
    assert problem.message == "edge ids: entry 3 is edge 4, outside [0, 4)"


@pytest.mark.parametrize("content", [None, b"{", b"\xff" * 5000])
def test_packed_epochs_whose_root_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    store = write_example_store(tmp_path / "a.gnn").path
    packed = store / "plans" / "base"
    packed.mkdir(parents=True)
    (packed.parent / "zarr.json").write_text(json.dumps(group_metadata()))
    if content is not None:
        (packed / "zarr.json").write_bytes(content)
    (problem,) = verify(store, "header").problems
    assert problem.path.startswith(str(packed))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(25,), (128,), (3000,)])
def test_sound_stores_pass_at_every_level(tmp_path: Path, level: Any, shape: Any) -> None:
    example = write_example_store(tmp_path / "a.gnn", feature_shape=shape, shard_bytes=2**16)
    told = Recorder()
    report = verify(example.path, level, progress=told)
    assert report.ok, report.problems
    counts = {name: counts for name, _, *counts in told.phases}
    assert counts.get("compare checksums", [0, 0]) == [report.bytes_read] * 2
    assert (report.bytes_read > 0) == (level != "header")
    assert ("look at what the numbers mean" in counts) == (level == "full")


def test_a_stray_file_does_not_hide_damage(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "a.gnn", [0, 2, 4], [0, 1, 0, 1])
    (path / "stray").touch()
    (damaged,) = path.rglob("indices/c.0")
    content = bytearray(damaged.read_bytes())
    content[0] ^= 1
    damaged.write_bytes(content)
    found = {problem.path for problem in verify(path).problems}
    assert found == {str(path / "stray"), str(damaged)}


def test_empty_graph_passes(tmp_path: Path) -> None:
    assert verify(write_raw(tmp_path / "a.gnn", [0, 0, 0], []), "full").ok
    assert verify(write_raw(tmp_path / "b.gnn", [0], []), "full").ok


def test_sources_may_descend_between_columns_and_repeat_within(tmp_path: Path) -> None:
    store = write_raw(tmp_path / "a.gnn", [0, 2, 2, 4, 4], [1, 3, 0, 0])
    assert verify(store, "full").ok


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 3, 1, 4], [0, 1, 2, 0], "the pointer of column 2 descends"),
        ([0, 2, 4], [0, 1, 0, 2], r"sources of edges: entry 3 is node 2, outside \[0, 2\)"),
        ([0, 2, 4], [0, -1, 0, 1], r"sources of edges: entry 1 is node -1, outside"),
        ([0, 2, 4], [0, 1, 1, 0], "the sources of a column are not sorted at edge 3"),
    ],
)
def test_wrong_adjacency(
    tmp_path: Path, indptr: list[int], indices: list[int], message: str
) -> None:
    store = write_raw(tmp_path / "a.gnn", indptr, indices)
    assert verify(store, "checksums").ok
    (problem,) = verify(store, "full").problems
    assert problem.path.startswith(f"{store}/edges/node__to__node/")
    assert re.search(message, problem.message)


def test_split_that_names_no_node(tmp_path: Path) -> None:
    store = write_raw(tmp_path / "a.gnn", [0, 0, 0], [], split=[1, 2])
    (problem,) = verify(store, "full").problems
    assert "split 'train': entry 1 is node 2, outside [0, 2)" in str(problem)


def test_unsorted_column_across_the_pieces_of_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnstore.formats.store.checks._SCAN_BYTES", 16)
    sound = write_raw(tmp_path / "a.gnn", [0, 8, *[8] * 8], list(range(8)))
    assert verify(sound, "full").ok
    broken = write_raw(tmp_path / "b.gnn", [0, 8, *[8] * 8], [0, 1, 2, 3, 0, 1, 2, 3])
    assert "not sorted at edge 4" in str(verify(broken, "full").problems[0])


def test_unknown_level_and_missing_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose one of header, checksums, full"):
        verify(tmp_path, "everything")  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match="no such store"):
        verify(tmp_path / "a.gnn")
