"""docs/format.md is normative: its tables say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gnnstore.formats.arrays import pages, zarr_metadata
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES, zarr_data_type
from gnnstore.formats.container import files, names, strict_json
from gnnstore.formats.container import manifest as container
from gnnstore.formats.packed import manifest as plan_manifest
from gnnstore.formats.store import schema as manifest
from tests.support.stores import write_example_store

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


def table_after(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its two header lines."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_element_types() -> None:
    documented = {name: (zarr, int(size)) for name, zarr, size in table_after("Element types")}
    assert documented == {
        name: (zarr_data_type(name), dtype.itemsize) for name, dtype in STORAGE_DTYPES.items()
    }


def test_limits() -> None:
    documented = {name: int(value) for name, value in table_after("Limits")}
    homes = [manifest, container, pages, zarr_metadata, strict_json, files, names]
    actual = {
        name: next(getattr(home, name) for home in homes if hasattr(home, name))
        for name in documented
    }
    assert documented == actual


def test_manifest_fields(tmp_path: Path) -> None:
    store = write_example_store(tmp_path / "a.gnn").path

    own = json.loads((store / "zarr.json").read_text())["attributes"]["gnnstore"]
    assert [row[0] for row in table_after("Manifest")] == list(own)


def test_paged_attributes(tmp_path: Path) -> None:

    store = write_example_store(tmp_path / "a.gnn").path
    own = json.loads((store / "nodes/node/x/zarr.json").read_text())["attributes"]["gnnstore"]
    section = PAGE.split("| attribute | meaning |", 1)[1].split("\n\n", 1)[0]
    named = re.findall(
        r"`(\w+)`", "\n".join(line.split("|")[1] for line in section.splitlines() if line)
    )
    assert named == list(own)


def test_plan_manifest_fields(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    from gnnstore.testing.graphs import random_graph  # noqa: PLC0415
    from tests.support.packed import pack  # noqa: PLC0415

    graph = random_graph(50, 200, feature_dim=30, num_classes=2)
    packed = pack(graph.write(tmp_path / "s.gnn"), [2], epochs=1)
    own = json.loads((packed / "zarr.json").read_text())["attributes"]["gnnstore_plan"]
    table = PAGE.split("## Packed epochs\n", 1)[1].split("| field | content |", 1)[1]
    rows = [line.split("|") for line in table.split("\n\n", 1)[0].splitlines() if "`" in line]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert named == own.keys()
    assert [spec["path"] for spec in own["arrays"]] == ["batches", "rows/x", "index"]
    pieces = next(row[2] for row in rows if "`piece_bytes`" in row[1])
    assert f"at most {plan_manifest.MAX_PIECE_BYTES}" in pieces
    assert f"each {plan_manifest.CHECKED_ROWS} of these" in PAGE
    fingerprint = next(row[2] for row in rows if "`fingerprint`" in row[1])
    assert re.findall(r"`([\w ]+)`", fingerprint) == list(own["fingerprint"])
    columns = PAGE.split("| column | content |", 1)[1].split("\n\n", 1)[0]
    assert columns.count("\n") - 2 == plan_manifest.INDEX_COLUMNS
    assert f"multiple of {plan_manifest.PACKED_ALIGNMENT_BYTES}" in columns


def test_packed_epochs_with_segments(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    from gnnstore.testing.graphs import random_graph  # noqa: PLC0415
    from tests.support.packed import pack  # noqa: PLC0415

    graph = random_graph(50, 200, feature_dim=30, num_classes=2)
    packed = pack(graph.write(tmp_path / "s.gnn"), [2], epochs=1, batch_size=5, segment=2)
    own = json.loads((packed / "zarr.json").read_text())["attributes"]["gnnstore_plan"]
    assert own["segment"] == 2
    columns = PAGE.split("| of a segment, column | content |", 1)[1].split("\n\n", 1)[0]
    first = plan_manifest.SEGMENT_COLUMNS
    assert f"| {first - 1} |" in columns
    assert f"| {first}, {first + 1}, ... |" in columns
    section = PAGE.split("## Packed epochs", 1)[1].split("\n## ", 1)[0]
    (version,) = re.findall(r"\| `format_version` \| (\d+) \|", section)
    assert int(version) == own["format_version"] == plan_manifest.PACKED_FORMAT_VERSION


def test_versions_table_ends_with_the_current_version() -> None:
    assert int(table_after("Versions")[-1][0]) == manifest.FORMAT_VERSION
