"""`gnnstore inspect`: what it says of a store, and of what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.budget import limits
from gnnstore.converters import from_numpy
from gnnstore.disk.engines import ENGINES, ENVIRONMENT_VARIABLE
from gnnstore.tools import scan
from gnnstore.tools.layout import flatten
from gnnstore.tools.scan import _ValueRange
from tests.support.stores import write_example_store


def test_the_description_adds_up(run: Any, example: Path) -> None:
    document = run("inspect", example, "--json").document
    assert document["path"] == str(example)
    assert document["graph"]["num_nodes"] == 300
    assert document["graph"]["num_edges"] == 1500
    assert document["graph"]["node_types"][0]["splits"] == {"train": 150, "valid": 150}
    assert document["graph"]["edge_types"][0]["attributes"] == ["edge_attr"]
    total = sum(array["disk_bytes"] for array in document["arrays"]) + document["metadata_bytes"]
    assert total == document["state"]["disk_bytes"]
    assert sum(array["share"] for array in document["arrays"]) < 1
    on_disk = sum(file.stat().st_size for file in example.rglob("*") if file.is_file())
    assert on_disk == total + (example / "zarr.json").stat().st_size


def test_a_store_of_many_files_names_the_first_ten(run: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "edge_index.npy", np.array([[0], [1]]))
    for i in range(11):
        np.save(tmp_path / "in" / f"x{i:02}.npy", np.arange(2))
    path = from_numpy(tmp_path / "in", tmp_path / "a.gnn")
    done = run("inspect", path)
    assert "… 2 more; --json has all" in done.stdout
    assert done.stdout.count(".npy (") == 10
    document = run("inspect", path, "--json").document
    assert len(document["provenance"]["inputs"]) == 12


def test_page_geometry(run: Any, tmp_path: Path) -> None:
    path = write_example_store(tmp_path / "a.gnn", feature_shape=(100,)).path
    arrays = {a["name"]: a for a in run("inspect", path, "--json").document["arrays"]}
    pages = arrays["x"]["pages"]
    assert (pages["row_bytes"], pages["rows_per_page"], pages["pages_per_row"]) == (400, 10, 1)
    assert not pages["rows_fill_pages"]
    assert pages["padding_bytes"] == 30 * 96
    assert arrays["indptr"]["pages"]["rows_fill_pages"]
    assert "pages" not in arrays["y"]


def test_rows_longer_than_a_page(run: Any, tmp_path: Path) -> None:
    path = write_example_store(tmp_path / "a.gnn", feature_shape=(1200,)).path
    assert "2 pages of 4 KiB a row" in run("inspect", path).stdout


def test_text_names_every_array_and_the_next_command(run: Any, example: Path) -> None:
    done = run("inspect", example)
    assert done.status == 0
    for text in ("nodes/node/x", "edges/node__to__node/indices", "compressed"):
        assert text in done.stdout
    assert f"gnnstore verify {example} --level full" in done.stdout
    assert done.stderr == ""


def test_what_will_be_used_to_read_it(run: Any, example: Path) -> None:
    reading = run("inspect", example, "--json").document["reading"]
    assert (reading["strategy"], reading["topology"]) == ("memory", "memory")
    assert "strategy 'memory' because all" in reading["reason"]
    assert "quantize" not in reading["reason"]
    assert reading["resident_bytes"] < reading["available_bytes"]
    assert reading["io_engine"] is None


def test_a_store_larger_than_memory_is_read_by_an_engine(
    run: Any, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "available_bytes", lambda: 50_000)
    reading = run("inspect", example, "--json").document["reading"]
    assert reading["strategy"] == "static"
    assert reading["io_engine"] in ENGINES
    assert f"; read by {reading['io_engine']}" in reading["reason"]
    assert "; 'gnnstore quantize' keeps x as int8, " in reading["reason"]

    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "pread")
    assert run("inspect", example, "--json").document["reading"]["io_engine"] == "pread"
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "floppy")
    done = run("inspect", example)
    assert done.status == 0
    assert "GNNSTORE_IO_ENGINE='floppy' is unknown" in " ".join(done.stdout.split())


def test_an_interrupted_conversion_beside_it_is_reported(run: Any, scratch: Path) -> None:
    (scratch.parent / f".{scratch.name}.tmp-0123abcd").mkdir()
    assert run("inspect", scratch, "--json").document["state"]["unfinished_beside_it"]
    lines = [line.split() for line in run("inspect", scratch).stdout.splitlines()]
    assert ["unfinished", ".scratch.gnn.tmp-0123abcd"] in lines


@pytest.mark.parametrize("name", ["nodes/node/x", "x", "/nodes/node/x/"])
def test_one_array_by_path_or_name(run: Any, example: Path, name: str) -> None:
    document = run("inspect", example, "--array", name, "--json").document
    assert document["path"] == "nodes/node/x"
    assert document["shape"] == [300, 25]
    files = {file["path"]: file["size_bytes"] for file in document["files"]}
    assert set(files) == {"nodes/node/x/zarr.json", "nodes/node/x/c.0.0"}
    assert files["nodes/node/x/c.0.0"] == (example / "nodes/node/x/c.0.0").stat().st_size
    assert "40 rows a page of 4 KiB" in run("inspect", example, "--array", name).stdout


def test_an_unknown_array_lists_those_there_are(run: Any, example: Path) -> None:
    done = run("inspect", example, "--array", "z")
    assert done.status == 3
    assert "there is no array 'z'; give one of these paths: nodes/node/x" in done.stderr


def test_stats_equal_numpy(run: Any, tmp_path: Path) -> None:
    written = write_example_store(tmp_path / "a.gnn", num_nodes=500, num_edges=700)
    stats = run("inspect", written.path, "--stats", "--json").document["stats"]
    arrays = written.arrays
    indptr = arrays["edges/node__to__node/indptr"]
    indices = arrays["edges/node__to__node/indices"]
    degrees = np.diff(indptr)
    found = stats["degrees"]
    assert found["mean"] == pytest.approx(degrees.mean())
    assert (found["in"]["min"], found["in"]["max"]) == (degrees.min(), degrees.max())
    for percent in (25, 50, 99):
        expected = np.percentile(degrees, percent, method="inverted_cdf")
        assert found["in"][f"p{percent}"] == expected
    assert found["no_in_edge"] == np.count_nonzero(degrees == 0)
    used = set(indices.tolist()) | set(np.flatnonzero(degrees).tolist())
    assert found["isolated"] == 500 - len(used)

    x, y = arrays["nodes/node/x"], arrays["nodes/node/y"]
    values = stats["values"]["nodes/node/x"]
    assert (values["min"], values["max"]) == (x.min(), x.max())
    assert values["mean"] == pytest.approx(x.mean(dtype=np.float64))
    labels, counts = np.unique(y, return_counts=True)
    expected_labels = {str(label): int(n) for label, n in zip(labels, counts, strict=True)}
    assert stats["labels"]["nodes/node/y"] == expected_labels


def test_stats_of_several_chunks_equal_those_of_one(
    run: Any, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("inspect", example, "--stats", "--json").document["stats"]
    monkeypatch.setattr("gnnstore.tools.scan._CHUNK_BYTES", 1000)
    pieces = run("inspect", example, "--stats", "--json").document["stats"]
    for path, found in pieces["values"].items():
        assert found.pop("mean") == pytest.approx(whole["values"][path].pop("mean"))
    assert pieces == whole


def test_labels_with_too_many_values_are_no_classes(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_example_store(tmp_path / "a.gnn").path
    labels = run("inspect", path, "--stats", "--json").document["stats"]["labels"]
    assert labels.keys() == {"nodes/node/y", "nodes/node/train_mask"}
    monkeypatch.setattr(scan, "_MAX_CLASSES", 2)
    labels = run("inspect", path, "--stats", "--json").document["stats"]["labels"]
    assert labels.keys() == {"nodes/node/train_mask"}


def test_pointers_that_descend_have_no_degrees(run: Any, scratch: Path) -> None:
    pointers = scratch / "edges/node__to__node/indptr/c.0"
    with pointers.open("r+b") as file:
        file.seek(5 * 8)
        file.write((2**40).to_bytes(8, "little"))
    done = run("inspect", scratch, "--stats")
    assert done.status == 1
    assert "indptr: descends, so there are no degrees to show; run 'gnnstore verify" in done.stderr


def test_stats_count_what_is_not_finite(run: Any, tmp_path: Path) -> None:
    found = _ValueRange()
    found.add(np.array([np.nan, np.inf, 2.0, -np.inf, 4.0], dtype=np.float32))
    assert found.to_json() == {"min": 2.0, "max": 4.0, "mean": 3.0, "nan": 1, "infinite": 2}
    empty = _ValueRange()
    empty.add(np.array([np.nan]))
    assert empty.to_json() == {"min": None, "max": None, "mean": None, "nan": 1, "infinite": 0}


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "uint8", "int64"])
def test_stats_of_every_kind_of_feature(run: Any, tmp_path: Path, dtype: str) -> None:
    path = write_example_store(tmp_path / "a.gnn", feature_dtype=dtype).path
    done = run("inspect", path, "--array", "x", "--stats")
    assert done.status == 0
    assert "NaN" in done.stdout


@pytest.mark.parametrize("num_nodes", [5, 0])
def test_stats_of_an_empty_graph(run: Any, tmp_path: Path, num_nodes: int) -> None:
    path = write_example_store(tmp_path / "a.gnn", num_nodes=num_nodes, num_edges=0).path
    stats = run("inspect", path, "--stats", "--json").document["stats"]
    assert (stats["degrees"]["isolated"], stats["degrees"]["mean"]) == (num_nodes, 0)
    assert run("inspect", path, "--stats").status == 0


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda _: None, "no such store; make one with 'gnnstore convert'"),
        (lambda path: path.mkdir(), "not a gnnstore store (it has no zarr.json)"),
        (lambda path: path.write_text("x"), "a file, not a gnnstore store"),
    ],
)
def test_what_is_no_store_exits_with_3(
    run: Any, tmp_path: Path, prepare: Any, message: str
) -> None:
    path = tmp_path / "none.gnn"
    prepare(path)
    done = run("inspect", path)
    assert done.status == 3
    assert message in done.stderr


def test_a_missing_file_exits_with_1_and_is_named(run: Any, scratch: Path) -> None:
    (scratch / "nodes/node/x/c.0.0").unlink()
    done = run("inspect", scratch)
    assert done.status == 1
    assert "nodes/node/x/c.0.0: the file is missing" in done.stderr


def test_a_newer_format_exits_with_4(run: Any, scratch: Path) -> None:
    root = scratch / "zarr.json"
    text = root.read_text().replace('"format_version": 1', '"format_version": 2')
    root.write_text(text)
    done = run("inspect", scratch)
    assert done.status == 4
    assert "has format version 2; this gnnstore reads up to 1" in done.stderr
    assert "pip install --upgrade gnnstore" in done.stderr


def test_options_by_type_and_for_all_types() -> None:
    options = {"split_fractions": {"": [0.6, 0.4], "user": [0.5, 0.5]}}
    assert flatten({"options": options}) == {
        "options.split_fractions": "0.6, 0.4",
        "options.split_fractions.user": "0.5, 0.5",
    }
