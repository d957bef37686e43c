"""docs/format.md and its second page are normative: their tables say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import _core
from gnnstore.formats import packed as plan_manifest
from gnnstore.formats.arrays import pages, zarr_metadata
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES, zarr_data_type
from gnnstore.formats.base import files, names, strict_json
from gnnstore.formats.container import manifest as container
from gnnstore.formats.store import schema as manifest
from tests.support.stores import write_example_store

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("format.md", "reference/format-derived.md")
PAGE = "\n".join((DOCS / name).read_text() for name in PAGES)


def table_after(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its two header lines."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    first = section[section.index("\n|") + 1 :].split("\n\n", 1)[0]
    lines = [line for line in first.splitlines() if line.startswith("|")]
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
    from tests.support.packing import pack  # noqa: PLC0415

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
    from tests.support.packing import pack  # noqa: PLC0415

    graph = random_graph(50, 200, feature_dim=30, num_classes=2)
    packed = pack(graph.write(tmp_path / "s.gnn"), [2], epochs=1, batch_size=5, segment=2)
    own = json.loads((packed / "zarr.json").read_text())["attributes"]["gnnstore_plan"]
    assert own["segment"] == 2
    columns = PAGE.split("| of a segment, column | content |", 1)[1].split("\n\n", 1)[0]
    first = plan_manifest.SEGMENT_COLUMNS
    assert f"| {first - 1} |" in columns
    assert f"| {first}, {first + 1}, ... |" in columns
    section = PAGE.split("## Packed epochs", 1)[1].split("\n## ", 1)[0]
    ((version, typed, fixed),) = re.findall(
        r"\| `format_version` \| (\d+); \[(\d+) where .*?; \[(\d+) where", section
    )
    assert int(version) == own["format_version"] == plan_manifest.PackedManifest.OLDEST
    assert (int(typed), int(fixed)) == (6, plan_manifest.PACKED_FORMAT_VERSION)


def test_packed_epochs_in_parts(tmp_path: Path) -> None:
    """The rows of each batch are where the page says, with nothing of ours to read."""
    pytest.importorskip("torch_geometric")
    from gnnstore.testing.graphs import random_graph  # noqa: PLC0415
    from tests.support.packing import pack_part  # noqa: PLC0415

    graph = random_graph(50, 200, feature_dim=30, num_classes=2)
    store = graph.write(tmp_path / "s.gnn")
    given: dict[str, Any] = {"batch_size": 4, "cache_bytes": 10 * 128}
    parts = [pack_part(store, tmp_path / "p", k, 3, [2], **given) for k in range(3)]
    section = PAGE.split("### Packed epochs in parts", 1)[1].split("\n## ", 1)[0]
    table = section.split("| field of `part` | content |", 1)[1].split("\n\n", 1)[0]
    named = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line[:30])]
    number_of_batch, x = 0, graph.attributes["x"]

    def values(part: Path, name: str, dtype: Any, shape: list[int]) -> np.ndarray:
        (file,) = (each for each in (part / name).iterdir() if each.name != "zarr.json")
        return np.frombuffer(file.read_bytes(), dtype, int(np.prod(shape))).reshape(shape)

    for part in parts:
        assert f"  {part.name}/" in section
        own = json.loads((part / "zarr.json").read_text())["attributes"]["gnnstore_plan"]
        assert list(own["part"]) == named
        shapes = {spec["path"]: spec["shape"] for spec in own["arrays"]}
        if part is parts[0]:
            nodes = values(part, "cache/nodes", np.int64, shapes["cache/nodes"])
            assert len(nodes) == own["num_slots"] == 10
            rows = values(part, "cache/rows/x", np.float32, shapes["cache/rows/x"])
            np.testing.assert_array_equal(rows, x[nodes])
        assert own["part"]["cached_crc32c"] == _core.crc32c(nodes.view(np.uint8))
        assert own["part"]["first_batch"] == number_of_batch
        assert own["part"]["num_batches"] == own["superbatch"] == shapes["index"][0]
        records = values(part, "batches", np.uint8, shapes["batches"])
        for begin, size, crc, missed, chunk in values(
            part, "index", np.int64, shapes["index"]
        ).tolist():
            record = records[begin : begin + size]
            seed = _core.crc32c(np.array([number_of_batch]).view(np.uint8))
            assert _core.crc32c(record, seed) == crc
            number_of_batch += 1
            _, slots, changes, _, positions, *_, ids, _, _, _ = arrays_of(record.tobytes())
            assert len(changes) == 0
            np.testing.assert_array_equal(nodes[slots[slots >= 0]], ids[slots >= 0])
            body = values(part, "rows/x", np.uint8, shapes["rows/x"])[chunk:]
            found = body[: missed * 120].view(np.float32).reshape(-1, 30)
            np.testing.assert_array_equal(found, x[ids[positions]])


def arrays_of(record: bytes) -> list[np.ndarray]:
    """Read a record as the page says."""
    words, at, arrays = np.frombuffer(record, np.int64), 1, []
    for _ in range(words[0]):
        dtype, num_axes = words[at].tobytes().rstrip(b"\0").decode(), int(words[at + 1])
        arrays.append((np.dtype(dtype), words[at + 2 : at + 2 + num_axes]))
        at += 2 + num_axes
    begin, found = 8 * at, []
    for dtype, shape in arrays:
        count = int(shape.prod())
        found.append(np.frombuffer(record, dtype, count, begin).reshape(shape))
        begin += -(-count * dtype.itemsize // 8) * 8
    assert begin == len(record)
    return found


def test_packed_epochs_of_several_types(tmp_path: Path) -> None:
    """Each batch's missed rows and edges are where the page says, with nothing of ours to read."""
    pytest.importorskip("torch_geometric")
    from tests.support.hetero import hetero_store, make_hetero  # noqa: PLC0415
    from tests.support.packing import pack  # noqa: PLC0415

    data = make_hetero(widths={"paper": 60, "author": 25})
    path = hetero_store(tmp_path / "s.gnn", data).path
    packed = pack(
        path, [2], ("paper", "train"), epochs=1, batch_size=7, superbatch=3, cache_bytes="2kB"
    )
    own = json.loads((packed / "zarr.json").read_text())["attributes"]["gnnstore_plan"]
    assert own["format_version"] == 6
    cached = [path.split("/")[1] for path in own["cached"]]
    assert sorted(cached) == ["author", "paper"]
    names = [node["name"] for node in own["schema"]["node_types"]]
    edges = [
        (edge["source"], edge["relation"], edge["target"]) for edge in own["schema"]["edge_types"]
    ]
    shapes = {spec["path"]: spec["shape"] for spec in own["arrays"]}
    assert {f"rows/{name}__x" for name in cached} <= shapes.keys()

    def file_of(name: str) -> bytes:
        (file,) = (each for each in (packed / name).iterdir() if each.name != "zarr.json")
        return file.read_bytes()

    assert shapes["index"][1] == plan_manifest.INDEX_COLUMNS + 2 * len(cached)
    size = 8 * shapes["index"][0] * shapes["index"][1]
    index = np.frombuffer(file_of("index"), np.int64, size // 8).reshape(shapes["index"])
    num_seen = 0
    for begin, num_bytes, _, num_missed, *columns in index.tolist():
        record = arrays_of(file_of("batches")[begin : begin + num_bytes])
        subgraph = record[-len(names) - 3 * len(edges) - 1 :]
        header, nodes = subgraph[0], dict(zip(names, subgraph[1:], strict=False))
        assert header[:5].tolist() == [len(names), len(edges), header[2], 0, 2]
        assert len(header) == 5 + 2 * len(names) + len(edges)
        slots, _, _, positions = record[own["fingerprint"]["seed arrays"] :][:4]
        order = [name for name in names if name in cached]
        assert len(slots) == sum(len(nodes[name]) for name in order)
        assert num_missed == len(positions) == sum(columns[len(cached) :])
        for column, name in enumerate(cached):
            first = sum(len(nodes[each]) for each in order[: order.index(name)])
            ids = nodes[name]
            missed = positions[(positions >= first) & (positions < first + len(ids))] - first
            assert len(missed) == columns[len(cached) + column]
            x = data[name].x.numpy()
            rows = np.frombuffer(file_of(f"rows/{name}__x"), np.float32, offset=columns[column])
            rows = rows[: len(missed) * x.shape[1]].reshape(-1, x.shape[1])
            np.testing.assert_array_equal(rows, x[ids[missed]])
            num_seen += len(missed)
        for place, (source, _, target) in enumerate(edges):
            sources, incoming, found = subgraph[1 + len(names) + 3 * place :][:3]
            assert len(sources) == len(found) == incoming.sum()
            assert sources.max(initial=0) < max(1, len(nodes[source]))
            assert len(incoming) <= len(nodes[target])
    assert num_seen > 50


def test_versions_table_ends_with_the_current_version() -> None:
    assert int(table_after("Versions")[-1][0]) == manifest.FORMAT_VERSION
