"""A store that is damaged, hostile or from the future: a specific error, never a crash."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.converters import from_snap
from gnnstore.converters.stores.partition import partition
from gnnstore.errors import (
    CorruptStoreError,
    GnnstoreError,
    NotFoundError,
    UnsupportedVersionError,
)
from gnnstore.formats import (
    EDGE_TYPE,
    EdgeTypeSpec,
    NodeTypeSpec,
    Schema,
    StoreReader,
    StoreWriter,
)
from gnnstore.formats.partitions import PartitionsReader
from gnnstore.pipeline.check import verify
from tests.support.effort import choose
from tests.support.hostile import reseal, rewrite, write_sealed
from tests.support.stores import write_example_store

Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that no test changes."""
    return write_example_store(tmp_path_factory.mktemp("sound") / "a.gnn", shard_bytes=2**16).path


@pytest.fixture
def store(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "a.gnn")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"kind": "example"', '"kind": 1e999', "1e999 is not a number of JSON, or too large"),
        ('"kind": "example"', '"kind": NaN', "NaN is not a number of JSON"),
        ('"uuid":', '"created_by": "x",\n"uuid":', "a key appears twice among"),
        ('"nodes/node/zarr.json"', f'"{"n" * 256}/zarr.json"', "or is too long"),
        ('"nodes/node/zarr.json"', f'"{"n/" * 2000}zarr.json"', "or is too long"),
    ],
)
def test_texts_and_numbers_that_nothing_else_takes(
    store: Path, before: str, after: str, message: str
) -> None:
    text = (store / "zarr.json").read_text()
    assert before in text
    write_sealed(store / "zarr.json", text.replace(before, after))
    with pytest.raises(CorruptStoreError, match=message) as caught:
        StoreReader.open(store)
    str(caught.value).encode()
    assert not verify(store).ok


def rewrite_array(store: Path, path: str, change: Callable[[Manifest], object]) -> None:
    """Change an array's metadata, and what the manifest says of it."""
    file = store / path / "zarr.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    reseal(store)


def refuse(store: Path, match: str, error: type[GnnstoreError] = CorruptStoreError) -> None:
    with pytest.raises(error, match=match):
        StoreReader.open(store)


def test_resealing_alone_changes_nothing(store: Path) -> None:
    rewrite(store, lambda _: None)
    StoreReader.open(store)


# Files ------------------------------------------------------------------------------------


def test_missing_file_is_named(store: Path) -> None:
    (store / "nodes/node/x/c.0.0").unlink()
    refuse(store, r"nodes/node/x/c\.0\.0: the file is missing, .*restore it from a copy")


def test_short_file_is_named_with_both_sizes(store: Path) -> None:
    shard = store / "nodes/node/x/c.0.0"
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-1])
    refuse(store, rf"c\.0\.0: the file has {size - 1} bytes, but the manifest says {size}")


def test_long_file_is_named(store: Path) -> None:
    with (store / "nodes/node/y/c.0").open("ab") as file:
        file.write(b"\0")
    refuse(store, r"nodes/node/y/c\.0: the file has \d+ bytes, but the manifest says")


def test_shard_that_the_manifest_does_not_list(store: Path) -> None:
    name = "edges/node__to__node/indices/c.0"
    rewrite(store, lambda m: m.update(files=[e for e in m["files"] if e[0] != name]))
    refuse(store, r"indices' needs files that the manifest does not list \(c\.0\)")


def test_directory_of_an_array_that_is_a_file(store: Path) -> None:
    shutil.rmtree(store / "nodes/node/y")
    (store / "nodes/node/y").write_text("")
    refuse(store, r"nodes/node/y/c\.0: the file is missing, but the manifest says")


def test_file_of_another_size_that_is_listed(store: Path) -> None:
    shard = store / "nodes/node/x/c.0.0"
    size = shard.stat().st_size
    with shard.open("ab") as file:
        file.write(bytes(4096))
    reseal(store)
    refuse(store, rf"c\.0\.0: the file has {size + 4096} bytes, but the array's shape needs {size}")


def test_stray_file_is_found_by_verify(store: Path) -> None:
    (store / "nodes/notes.txt").write_text("mine")
    report = verify(store, "header")
    assert [str(p) for p in report.problems] == [
        f"{store}/nodes/notes.txt: the manifest does not list this file; remove it"
    ]


def test_file_that_may_not_be_read(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests may run as root, whom no mode stops.
    def refused(path: Any, *args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(OSError, match=r"cannot read: .*zarr\.json: Permission denied"):
        StoreReader.open(store)


# Bytes ------------------------------------------------------------------------------------


def test_flipped_byte_is_located(store: Path) -> None:
    shard = store / "nodes/node/x/c.0.0"
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    StoreReader.open(store)  # opening does not read the data
    report = verify(store, "checksums")
    (problem,) = report.problems
    assert problem.path == str(shard)
    assert (problem.first_byte, problem.end_byte) == (0, len(data))
    assert "checksum mismatch (expected " in problem.message


def test_flipped_byte_in_a_far_block_is_located(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = write_example_store(tmp_path / "a.gnn", num_nodes=5000, feature_shape=(256,))
    shard = example.path / "nodes/node/x/c.0.0"
    with shard.open("r+b") as file:
        for position in (2**20, 2 * 2**20 + 7, 4 * 2**20):
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 0x80]))
    ranges = [(p.first_byte, p.end_byte) for p in verify(example.path).problems]
    assert ranges == [(2**20, 3 * 2**20), (4 * 2**20, shard.stat().st_size)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [31]}, "the checksums are 31 uint32, but the manifest's files have 32 blocks"),
        ({"shape": ["a"]}, "malformed metadata: shape: expected a list of integers"),
    ],
)
def test_checksums_of_other_files(store: Path, change: Manifest, message: str) -> None:
    """The array of them is as it was written, by somebody who has not counted."""
    file = store / "checksums/zarr.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    reseal(store, lambda m: m["checksum_files"][-1].__setitem__(1, file.stat().st_size))
    (problem,) = verify(store).problems
    assert problem.path.startswith(str(store / "checksums"))
    assert message in problem.message


def test_altered_checksums_are_found(store: Path) -> None:
    shard = store / "checksums/c.0"
    data = bytearray(shard.read_bytes())
    data[0] ^= 1
    shard.write_bytes(data)
    (problem,) = verify(store).problems
    assert problem.path == str(shard)
    assert "the checksums are altered" in problem.message
    assert (problem.first_byte, problem.end_byte) == (0, len(data))


def test_altered_manifest_is_refused(store: Path) -> None:
    root = store / "zarr.json"
    root.write_text(root.read_text().replace('"kind": "example"', '"kind": "exampel"'))
    refuse(store, r"the manifest was altered after it was written \(its crc32c is")


def test_truncated_manifest_is_refused(store: Path) -> None:
    root = store / "zarr.json"
    root.write_bytes(root.read_bytes()[:-100])
    refuse(store, r"zarr\.json: malformed metadata: not JSON")


def test_undecodable_compressed_array(store: Path) -> None:
    chunk = store / "nodes/node/y/c.0"
    chunk.write_bytes(b"\xff" * chunk.stat().st_size)
    reader = StoreReader.open(store)
    with pytest.raises(CorruptStoreError, match=r"'nodes/node/y' cannot be decoded .*verify"):
        reader.compressed(reader.schema.node.attributes["y"])


def test_any_flipped_byte_of_the_manifest_is_an_error_of_ours(store: Path) -> None:
    root = store / "zarr.json"
    original = root.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.choice(len(original), choose(100, 400), replace=False):
        data = bytearray(original)
        data[position] ^= 1 << int(rng.integers(8))
        root.write_bytes(data)
        with pytest.raises(GnnstoreError):
            StoreReader.open(store)


# Versions ---------------------------------------------------------------------------------


def test_newer_version(store: Path) -> None:
    rewrite(store, lambda m: m.update(format_version=2, schema="unknown to us"))
    refuse(
        store,
        r"has format version 2; this gnnstore reads up to 1\. Upgrade with 'pip install",
        UnsupportedVersionError,
    )


def test_unknown_reader_feature(store: Path) -> None:
    rewrite(store, lambda m: m.update(reader_features=["quantum-rows"]))
    refuse(store, "needs the reader features quantum-rows", UnsupportedVersionError)


def test_unknown_writer_feature_does_not_stop_a_reader(store: Path) -> None:
    rewrite(store, lambda m: m.update(writer_features=["sealed-plans"]))
    assert StoreReader.open(store).manifest.writer_features == ("sealed-plans",)


# Hostile metadata -------------------------------------------------------------------------


def test_deep_json(store: Path) -> None:
    write_sealed(store / "zarr.json", "[" * 100_000 + "]" * 100_000)
    refuse(store, "malformed metadata")


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/passwd", "nodes/../../x", "nodes//x", ".", "a\\b", "a\0b"]
)
def test_paths_that_leave_the_store(store: Path, path: str) -> None:
    rewrite(store, lambda m: m["files"].append([path, 10]))
    refuse(store, "does not stay inside the store")


def test_array_path_that_leaves_the_store(store: Path) -> None:
    def change(manifest: Manifest) -> None:
        manifest["schema"]["node_types"][0]["attributes"]["x"]["path"] = "../../x"

    rewrite(store, change)
    refuse(store, "does not stay inside the store")


def test_huge_manifest(store: Path) -> None:
    with (store / "zarr.json").open("ab") as file:
        file.truncate(2**26 + 1)
    refuse(store, "larger than the 67108864 bytes")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["files"].append(m["files"][0]), "files: expected each file once"),
        (lambda m: m["files"].append(["a"]), r"files: expected a list of \[path, size in bytes"),
        (lambda m: m["files"].append(["a", -1]), r"files: expected a list of \[path, size in byt"),
        (
            lambda m: m["checksum_files"][0].__setitem__(2, "12"),
            "checksum_files: expected a crc32c of 8 hexadecimal digits",
        ),
        (lambda m: m.update(reader_features=[1]), "reader_features: expected a list of strings"),
        (lambda m: m["schema"]["node_types"].append(7), "should be an object, found int"),
        (
            lambda m: m["schema"]["node_types"].append(
                {**m["schema"]["node_types"][0], "attributes": {}, "splits": {},
                 "original_id": None}
            ),
            "two node types share a name",
        ),
        (
            lambda m: m["schema"]["edge_types"][0]["indptr"].update(dtype="int32"),
            r"indptr' is paged int32 \[301\]; expected paged int64 \[301\]",
        ),
        (
            lambda m: m["schema"]["node_types"][0]["attributes"]["x"].update(shape=["3"]),
            "shape: expected a list of integers between 0 and",
        ),
    ],
)  # fmt: skip
def test_manifests_that_make_no_sense(
    store: Path, change: Callable[[Manifest], object], message: str
) -> None:
    rewrite(store, change)
    refuse(store, message)


def test_texts_that_are_described_wrongly(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("a b\n")
    for part, change, message in (
        (
            "bytes",
            {"dtype": "int8"},
            r"bytes' is paged int8 \[2\]; expected paged uint8 \[n\]",
        ),
        ("offsets", {"shape": [2]}, r"offsets' is paged int64 \[2\]; expected paged int64 \[3\]"),
    ):
        store = from_snap(path, tmp_path / f"{part}.gnn", string_ids=True)

        def describe(manifest: Manifest, part: str = part, change: Any = change) -> None:
            manifest["schema"]["node_types"][0]["original_name"][part].update(change)

        rewrite(store, describe)
        refuse(store, message)


@pytest.mark.parametrize("count", [2**61, 2**63, -1, True, "5", 3.5, None])
def test_impossible_numbers_of_nodes(store: Path, count: Any) -> None:
    rewrite(store, lambda m: m["schema"]["node_types"][0].update(num_nodes=count))
    refuse(store, "malformed metadata|expected")


def test_huge_number_of_rows_that_agrees_everywhere(store: Path) -> None:
    """2^50 nodes in schema and arrays: refused without allocating or looping over shards."""

    def change(manifest: Manifest) -> None:
        node, edge = manifest["schema"]["node_types"][0], manifest["schema"]["edge_types"][0]
        node["num_nodes"] = 2**50
        for spec in [*node["attributes"].values(), node["original_id"]]:
            spec["shape"][0] = 2**50
        edge["indptr"]["shape"][0] = 2**50 + 1

    rewrite(store, change)
    rewrite_array(store, "nodes/node/x", lambda d: d["shape"].__setitem__(0, 2**50))
    refuse(store, r"'nodes/node/x' needs files that the manifest does not list")


def test_compressed_array_with_huge_chunks(store: Path) -> None:
    def change(document: Manifest) -> None:
        document["chunk_grid"]["configuration"]["chunk_shape"] = [2**40]

    rewrite_array(store, "nodes/node/y", change)
    refuse(store, r"chunk_shape \[1099511627776\] .*at most 16777216 bytes a chunk")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: d["attributes"]["gnnstore"].update(page_bytes=3000), "a power of two"),
        (lambda d: d["attributes"]["gnnstore"].update(page_bytes=2**40), "between 512 and"),
        (lambda d: d["attributes"]["gnnstore"].update(rows_per_page=1), "attributes: expected"),
        (lambda d: d["attributes"]["gnnstore"].update(shard_rows=0), "shard_rows: expected"),
        (lambda d: d["attributes"]["gnnstore"].update(chunk_rows=7), "chunk_rows: expected"),
        (lambda d: d["attributes"]["gnnstore"].update(chunk_rows=80), "chunk_rows: expected 40, "),
        (lambda d: d.update(data_type="float64"), "data_type: expected"),
        (lambda d: d.update(fill_value=1), "fill_value: expected"),
        (lambda d: d.update(shape=[300]), "malformed metadata"),
        (lambda d: d.update(shape=[300, 0]), "rows not empty"),
        (lambda d: d.update(shape=[300] * 40), "1 to 32 dimensions"),
        (lambda d: d.update(codecs=[]), "codecs: expected"),
        (lambda d: d.pop("attributes"), "attributes: expected an object, found nothing"),
    ],
)
def test_array_metadata_that_the_arithmetic_contradicts(
    store: Path, change: Callable[[Manifest], object], match: str
) -> None:
    rewrite_array(store, "nodes/node/x", change)
    refuse(store, match)


def test_compressed_array_of_another_type(store: Path) -> None:
    rewrite_array(store, "nodes/node/y", lambda d: d.update(data_type="int8"))
    refuse(store, "data_type: expected 'int64', found 'int8'")


def test_wrong_shapes_and_types_are_refused_by_name(store: Path) -> None:
    def change(manifest: Manifest) -> None:
        manifest["schema"]["node_types"][0]["attributes"]["x"]["dtype"] = "int32"

    rewrite(store, change)
    refuse(store, r"the array is float32 \[300, 25\], but the schema says int32 \[300, 25\]")


def test_two_arrays_with_one_path(store: Path) -> None:
    def change(manifest: Manifest) -> None:
        attributes = manifest["schema"]["node_types"][0]["attributes"]
        attributes["z"] = attributes["x"]

    rewrite(store, change)
    refuse(store, "two arrays of the schema share a path")


@pytest.mark.parametrize("cat_dim", [2, -3])
def test_a_row_axis_that_the_array_has_not(store: Path, cat_dim: int) -> None:
    def change(manifest: Manifest) -> None:
        manifest["schema"]["node_types"][0]["attributes"]["x"]["cat_dim"] = cat_dim

    rewrite(store, change)
    refuse(store, "cat_dim: expected an integer between -2 and 1")


def test_edges_between_unknown_types(store: Path) -> None:
    rewrite(store, lambda m: m["schema"]["edge_types"][0].update(source="ghost"))
    refuse(store, r"names unknown node types \['ghost'\]")


def test_indptr_that_does_not_end_at_the_number_of_edges(store: Path) -> None:
    shard = store / "edges/node__to__node/indptr/c.0"
    with shard.open("r+b") as file:
        file.seek(300 * 8)
        file.write((10**15).to_bytes(8, "little"))
    refuse(store, r"indptr runs from 0 to 1000000000000000, for 1,500 edges")


def overwrite(store: Path, path: str, place: int, value: int) -> None:
    """Write another number into an array of int64, and seal it."""
    with (store / path).open("r+b") as file:
        file.seek(8 * place)
        file.write(value.to_bytes(8, "little", signed=True))
    reseal(store)


def test_columns_that_descend_are_refused_by_all_who_read_them_whole(store: Path) -> None:
    pytest.importorskip("torch_geometric")
    overwrite(store, "edges/node__to__node/indptr/c.0", 5, 1400)
    opened = gnnstore.open(store)
    with pytest.raises(CorruptStoreError, match=r"the pointer of column \d+ descends"):
        opened.edge_index.tensor()
    with pytest.raises(CorruptStoreError, match="descends"):
        opened.to_pyg()


@pytest.mark.parametrize("value", [300, -1])
def test_edge_ids_that_are_no_positions_are_not_gone_by(store: Path, value: int) -> None:
    pytest.importorskip("torch_geometric")
    with (store / "edges/node__to__node/edge_id/c.0").open("r+b") as file:
        file.write((-value).to_bytes(4, "little", signed=True))
    reseal(store)
    assert gnnstore.open(store).edge_index.tensor().shape == (2, 1500)


@pytest.mark.parametrize(
    "ids", [np.array([0, 300]), np.array([-1]), np.array([0.5]), np.ones((2, 1), int)]
)
def test_a_split_of_other_things_than_nodes(tmp_path: Path, ids: Any) -> None:
    pytest.importorskip("torch_geometric")
    with StoreWriter(tmp_path / "a.gnn") as writer:
        spec = writer.compressed("splits/node/odd", ids, name="odd")
        pointers, indices = (
            writer.paged(f"edges/e/{name}", name=name, row_shape=(), dtype="int64", num_rows=count)
            for name, count in (("indptr", 301), ("indices", 0))
        )
        pointers.append(np.zeros(301, np.int64))
        node = NodeTypeSpec("node", 300, {}, {"odd": spec})
        edge = EdgeTypeSpec(*EDGE_TYPE, 0, pointers.spec, indices.spec)
        path = writer.commit(Schema((node,), (edge,)), {})
    (problem,) = verify(path, "full").problems
    assert problem.path == str(path / "splits/node/odd")
    store = gnnstore.open(path)
    with pytest.raises(
        CorruptStoreError, match="odd: the split is not a list of node ids below 300"
    ):
        _ = store.splits["odd"]
    with pytest.raises(CorruptStoreError, match="odd: the split is not a list"):
        store.to_pyg()


# What is not a store ----------------------------------------------------------------------


def test_missing_store_names_the_next_command(tmp_path: Path) -> None:
    refuse(tmp_path / "no.gnn", "no such store; make one with 'gnnstore convert'", NotFoundError)


def test_file_in_place_of_a_store(tmp_path: Path) -> None:
    (tmp_path / "a.gnn").write_text("hello")
    refuse(tmp_path / "a.gnn", "a file, not a gnnstore store", NotFoundError)


def test_directory_that_is_no_store(tmp_path: Path) -> None:
    refuse(tmp_path, r"not a gnnstore store \(it has no zarr\.json\)", NotFoundError)


def test_foreign_zarr_group(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    refuse(tmp_path, "a Zarr group, but not a gnnstore store")


def test_unfinished_conversion_is_mentioned(tmp_path: Path) -> None:
    unfinished = tmp_path / ".a.gnn.tmp-12345678"
    unfinished.mkdir()
    (unfinished / "part").write_bytes(b"x" * 5000)
    place = "an unfinished store lies next to it as .a.gnn.tmp-12345678"
    refuse(tmp_path / "a.gnn", f"{place}: remove it with 'gnnstore gc --yes'", NotFoundError)


def test_all_damage_is_listed_where_files_are_missing_or_short(tmp_path: Path) -> None:
    """Also flipped bytes beside it, and what is wrong with the partitions in the store."""
    path = write_example_store(tmp_path / "a.gnn", shard_bytes=2**16).path
    inner = partition(path, 2)
    reader = StoreReader.open(path)
    names = [entry.path for entry in reader.manifest.files if not entry.path.endswith("zarr.json")]
    cut, gone, flipped, *_ = (path / name for name in names)
    moved = inner / PartitionsReader.open(inner).manifest.files[-1].path
    cut.write_bytes(cut.read_bytes()[:-1])
    gone.unlink()
    moved.rename(moved.with_name("elsewhere"))
    data = flipped.read_bytes()
    flipped.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (path / "stray").touch()
    expected = {cut: "bytes, but", gone: "is missing", moved: "is missing"}
    expected |= {path / "stray": "not list", moved.with_name("elsewhere"): "not list"}
    with pytest.raises(CorruptStoreError):
        StoreReader.open(path)
    for level in ("header", "checksums", "full"):
        if level == "checksums":
            expected[flipped] = "checksum mismatch"
        found = {Path(problem.path): problem.message for problem in verify(path, level).problems}
        assert found.keys() == expected.keys()
        assert all(message in found[file] for file, message in expected.items())
