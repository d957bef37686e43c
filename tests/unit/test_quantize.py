"""Stores whose features become int8 with scales, and commands that copy such stores."""

import errno
import os
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import (
    ConvertOptions,
    from_arrays,
    from_kronecker,
    from_planted_types,
    quantize,
    reorder,
    split_edges,
)
from gnnstore.errors import InputError, NoSpaceError, UsageError
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base import files
from gnnstore.formats.container.workdir import leftovers
from gnnstore.formats.store.store import StoreReader, StoreWriter
from gnnstore.pipeline.check import verify
from tests.support.effort import choose, is_long
from tests.support.stores import assert_same_files

RNG = np.random.default_rng(5)
EDGES = RNG.integers(0, 300, (2, 900))
X = RNG.standard_normal((300, 9)).astype(np.float32)
INT8 = ConvertOptions(feature_dtype="int8", feature_scale="column")


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of floats: wide rows, narrow ones, and others."""
    data = {"edge_index": EDGES, "x": X, "emb": X[:, :3], "y": np.arange(300), "train": [3, 1]}
    return from_arrays(data, tmp_path_factory.mktemp("floats") / "g.gnn")


@pytest.fixture(scope="module")
def whole(floats: Path) -> Path:
    """Return the store with both of its features quantized."""
    return quantize(floats, floats.with_name("whole.gnn"), {"x": "int8", "emb": "int8"})


def test_it_is_what_a_conversion_makes(floats: Path, tmp_path: Path) -> None:
    found = StoreReader.open(quantize(floats, tmp_path / "q.gnn"))
    data = {"edge_index": EDGES, "x": X, "emb": X[:, :3], "y": np.arange(300), "train": [3, 1]}
    expected = StoreReader.open(from_arrays(data, tmp_path / "c.gnn", options=INT8))
    assert found.schema == expected.schema
    for spec in expected.schema.arrays():
        np.testing.assert_array_equal(found.read(spec), expected.read(spec))
    assert found.manifest.provenance["kind"] == "quantize"
    assert verify(found.path, level="full").ok


def _features(reader: StoreReader) -> dict[str, AttributeSpec]:
    return {spec.path: spec for spec in reader.schema.node_attributes() if spec.name == "x"}


def test_types_keep_all_that_they_have(tmp_path: Path) -> None:
    options = ConvertOptions(reverse=("all",), time_attr=("edge_time",), weight_attr=("weight",))
    store = from_planted_types(tmp_path / "a.gnn", num_papers=100, options=options)
    before = StoreReader.open(store)
    path = quantize(store, tmp_path / "q.gnn", {"paper:x": "int8"})
    after = StoreReader.open(path)
    types = {path: spec.dtype for path, spec in _features(after).items()}
    assert types == {"nodes/paper/x": "int8", "nodes/author/x": "float32"}
    assert after.schema.edge_types == before.schema.edge_types
    for spec in before.schema.arrays():
        if spec.path != "nodes/paper/x":
            np.testing.assert_array_equal(after.read(spec), before.read(spec))
    assert verify(path, level="full").ok
    if not is_long():
        return
    both = StoreReader.open(quantize(store, tmp_path / "both.gnn"))
    assert [own.name for own, _ in both.schema.scaled_attributes()] == ["x", "x"]
    # What has scales stays as it is while another attribute gets some.
    rest = StoreReader.open(quantize(path, tmp_path / "rest.gnn"))
    assert rest.schema == both.schema
    for spec in both.schema.arrays():
        np.testing.assert_array_equal(rest.read(spec), both.read(spec))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"feature_dtype": "e=int8"},
            "'e=int8': there is no such attribute of nodes",
        ),
        ({"feature_dtype": "float16"}, "a store is quantized to int8, with scales"),
        ({"feature_dtype": "y=float16"}, "'y=float16': a store is quantized to int8"),
        ({"undirected": True}, "undirected is not for quantizing a store"),
        ({"edge_ids": False}, "edge_ids is not for quantizing a store"),
    ],
)
def test_options_that_are_refused(
    floats: Path, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        quantize(floats, tmp_path / "q.gnn", **given)
    assert not any(tmp_path.iterdir())


def test_stores_that_are_refused(floats: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is the store that is read"):
        quantize(floats, floats, options=ConvertOptions(overwrite=True))
    path = quantize(floats, tmp_path / "q.gnn")
    with pytest.raises(UsageError, match="the features x are int8 with scales already"):
        quantize(path, tmp_path / "r.gnn")
    with pytest.raises(UsageError, match="nodes/node/x is int8 with a scale per column already"):
        quantize(path, tmp_path / "r.gnn", {"x": "int8", "emb": "int8"})
    none = {"edge_index": EDGES, "x": X[:, :0], "emb": X}
    empty = from_arrays(none, tmp_path / "empty.gnn")
    with pytest.raises(UsageError, match="nodes/node/x has rows without values; leave it out"):
        quantize(empty, tmp_path / "r.gnn", {"x": "int8", "emb": "int8"})
    with pytest.raises(UsageError, match="has no features x of floats; name attributes with"):
        quantize(empty, tmp_path / "r.gnn")
    bare = from_arrays({"edge_index": EDGES, "y": np.arange(300)}, tmp_path / "bare.gnn")
    with pytest.raises(UsageError, match="has no features x of floats; name attributes with"):
        quantize(bare, tmp_path / "r.gnn")
    assert sorted(own.name for own in tmp_path.iterdir()) == ["bare.gnn", "empty.gnn", "q.gnn"]


def test_a_large_error_is_refused(tmp_path: Path) -> None:
    x = RNG.standard_normal((2000, 2)).astype(np.float32)
    x[7, 1] = 100
    store = from_arrays({"edge_index": EDGES, "x": x}, tmp_path / "a.gnn")
    with pytest.raises(InputError, match="column 1 as int8 differs from the input by 9%"):
        quantize(store, tmp_path / "q.gnn")
    assert [own.name for own in tmp_path.iterdir()] == ["a.gnn"]
    quantize(store, tmp_path / "q.gnn", allow_error=True)


def test_it_goes_on_where_it_stopped(
    floats: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    output = tmp_path / "q.gnn"
    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "commit", stop)
        with pytest.raises(KeyboardInterrupt):
            quantize(floats, output, {"x": "int8", "emb": "int8"})
    assert len(leftovers(output)) == 1
    options = ConvertOptions(resume=True)
    assert quantize(floats, output, {"x": "int8", "emb": "int8"}, options=options) == output
    assert_same_files(output, whole)
    assert not leftovers(output)


def test_a_full_disk_leaves_nothing(
    floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnstore.formats.container.writer.free_bytes", lambda _: 1000)
    with pytest.raises(NoSpaceError, match="no space left for"):
        quantize(floats, tmp_path / "q.gnn")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("skip", choose([0, 2], [0, 1, 2]))
def test_a_disk_that_fills_is_told_and_the_work_goes_on(
    floats: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skip: int
) -> None:
    real, left = files.write_all, iter(range(skip))

    def write(file: FileIO, data: memoryview) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file, data)

    output = tmp_path / "q.gnn"
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_all", write)
        with pytest.raises(NoSpaceError, match="no space left"):
            quantize(floats, output, {"x": "int8", "emb": "int8"})
    assert not output.exists()
    both = ConvertOptions(resume=True)
    quantize(floats, output, {"x": "int8", "emb": "int8"}, options=both)
    assert_same_files(output, whole)
    assert not leftovers(output)


@pytest.mark.parametrize("command", ["reorder", "split-edges", "kronecker"])
def test_copies_have_the_scales(whole: Path, tmp_path: Path, command: str) -> None:
    before, output = StoreReader.open(whole), tmp_path / "copy.gnn"
    if command == "reorder":
        reorder(whole, output)
    elif command == "split-edges":
        split_edges(whole, output)
    else:
        from_kronecker(whole, output, factor=2, feature_noise=0)
    after = StoreReader.open(output)
    for name in ("x", "emb"):
        own, copied = (each.schema.node.attributes[name] for each in (before, after))
        assert copied.scaled == own.scaled
        assert (copied.dtype, copied.layout) == ("int8", "paged")
        np.testing.assert_array_equal(after.scales[copied.path], before.scales[own.path])
        rows = np.sort(np.unique(after.read(copied), axis=0), axis=0)
        np.testing.assert_array_equal(rows, np.sort(np.unique(before.read(own), axis=0), axis=0))


def test_noise_has_no_error_of_the_input(floats: Path, tmp_path: Path) -> None:
    store = quantize(floats, tmp_path / "q.gnn")
    path = from_kronecker(store, tmp_path / "k.gnn", factor=2)
    scaled = StoreReader.open(path).schema.node.attributes["x"].scaled
    assert scaled is not None
    assert scaled.error is None
