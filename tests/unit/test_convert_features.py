"""Features from files of every form: pieces are the array, and what is wrong is named."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnstore
from gnnstore.converters import (
    ConvertOptions,
    GraphWriter,
    from_kronecker,
    from_numpy,
    from_snap,
    partition,
)
from gnnstore.converters.datasets.external import open_arrays
from gnnstore.converters.inputs.files import RawLayout, open_npy
from gnnstore.converters.inputs.source import (
    ArraySource,
    FloatLabels,
    JoinedArrays,
    MemoryArray,
    RowTaker,
)
from gnnstore.converters.inputs.text_arrays import TextArray
from gnnstore.converters.spill_files import ScatteredRows
from gnnstore.errors import CorruptStoreError, InputError, NotFoundError, UsageError
from gnnstore.formats import StoreReader
from gnnstore.formats.arrays.compressed import write_compressed_files
from gnnstore.formats.arrays.dtypes import to_bfloat16_bits
from gnnstore.pipeline.check import verify
from tests.support.effort import choose, examples
from tests.support.graphs import read_store
from tests.support.hostile import reseal, rewrite

ROWS = np.random.default_rng(0).random((11, 3)).astype(np.float32)
LAYOUT = RawLayout("float32", (-1, 3))


def save_npy(folder: Path) -> ArraySource:
    np.save(folder / "x.npy", ROWS)
    return open_arrays(folder / "x.npy", "features").source


def save_fortran(folder: Path) -> ArraySource:
    np.save(folder / "x.npy", np.asfortranarray(ROWS))
    return open_arrays(folder / "x.npy", "features").source


def save_big_endian(folder: Path) -> ArraySource:
    np.save(folder / "x.npy", ROWS.astype(">f4"))
    return open_arrays(folder / "x.npy", "features").source


def save_only_member(folder: Path) -> ArraySource:
    np.savez_compressed(folder / "x.npz", feat=ROWS)
    return open_arrays(folder / "x.npz", "features").source


def save_member(folder: Path) -> ArraySource:
    np.savez(folder / "x.npz", other=np.zeros(3), feat=ROWS)
    return open_arrays(f"{folder}/x.npz:feat", "features").source


def save_raw(folder: Path) -> ArraySource:
    ROWS.tofile(folder / "x.bin")
    return open_arrays(folder / "x.bin", "features", raw=LAYOUT).source


def save_csv(folder: Path) -> ArraySource:
    (folder / "x.csv").write_text("".join(",".join(map(repr, r)) + "\n" for r in ROWS.tolist()))
    return open_arrays(folder / "x.csv", "features").source


def save_csv_gz(folder: Path) -> ArraySource:
    text = "\n".join("\t".join(map(repr, row)) for row in ROWS.tolist())
    (folder / "x.tsv.gz").write_bytes(gzip.compress(text.encode()))
    return open_arrays(folder / "x.tsv.gz", "features").source


def save_many_raw(folder: Path) -> ArraySource:
    for number, (first, last) in enumerate([(0, 2), (2, 3), (3, 11)]):
        ROWS[first:last].tofile(folder / f"x-{9 + number}.bin")  # x-9, x-10, x-11
    found = open_arrays(f"{folder}/x-*.bin", "features", raw=RawLayout("float32", (11, 3)))
    assert [path.name for path in found.files] == ["x-9.bin", "x-10.bin", "x-11.bin"]
    return found.source


def save_of_different_forms(folder: Path) -> ArraySource:
    np.save(folder / "a.npy", ROWS[:4])
    np.savez(folder / "b.npz", ROWS[4:5])
    (folder / "c.csv").write_text("".join(",".join(map(repr, r)) + "\n" for r in ROWS[5:].tolist()))
    return open_arrays([folder / "a.npy", folder / "b.npz", folder / "c.csv"], "features").source


@pytest.mark.parametrize(
    "save",
    [
        save_npy,
        save_fortran,
        save_big_endian,
        save_member,
        save_csv_gz,
        save_many_raw,
        *choose([], [save_only_member, save_raw, save_csv]),
        save_of_different_forms,
    ],
)
def test_pieces_from_any_row_on_are_the_array(
    tmp_path: Path, save: Callable[[Path], ArraySource]
) -> None:
    source = save(tmp_path)
    assert source.shape == (11, 3)
    assert source.dtype == np.float32
    np.testing.assert_array_equal(source.read(), ROWS)
    np.testing.assert_array_equal(np.concatenate(list(source.columns(2)), axis=1), ROWS)
    for step in (1, 4, 100):
        for start in (0, 1, 3, 10, 11):
            pieces = list(source.rows(step, start))
            assert all(0 < len(piece) <= step for piece in pieces)
            found = np.concatenate([np.empty((0, 3), np.float32), *pieces])
            np.testing.assert_array_equal(found, ROWS[start:])


def test_whole_numbers_in_text_are_labels(tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text("3\n1\n2\n")
    labels = open_arrays(tmp_path / "y.csv", "labels").source.read()
    assert labels.tolist() == [3, 1, 2]
    assert labels.dtype == np.int64
    np.save(tmp_path / "y.npy", np.array([1.0, 2.5]))
    assert open_arrays(tmp_path / "y.npy", "labels").source.read().tolist() == [1, 2.5]


def test_labels_that_were_saved_as_floats_become_integers() -> None:
    for values, dtype in (
        ([1.0, 2.0], np.int64),
        ([1.0, np.nan], np.float32),
        ([1.0, np.inf], np.float32),
        ([1.0, 2.5], np.float32),
        ([1.0, 1e20], np.float64),
        ([1.0, -(2.0**62)], np.int64),
    ):
        source = FloatLabels(MemoryArray("y", np.array(values)))
        assert source.dtype == dtype
        np.testing.assert_array_equal(source.read(), np.array(values).astype(dtype))


# ---- what is wrong


def test_labels_that_cannot_be_stored_are_named() -> None:
    labels = FloatLabels(MemoryArray("y", np.array([1, 2**63], np.uint64)))
    for read in (labels.read, lambda: list(labels.rows(1))):
        assert "y: row 1: " in refused(read)


def refused(run: Callable[[], object], kind: type[Exception] = InputError) -> str:
    with pytest.raises(kind) as caught:
        run()
    return str(caught.value)


def test_one_file_of_another_width_or_type_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "part-0.npy", ROWS)
    np.save(tmp_path / "part-1.npy", ROWS)
    np.save(tmp_path / "part-2.npy", ROWS[:, :2])
    said = refused(lambda: open_arrays(f"{tmp_path}/part-*.npy", "features"))
    assert f"{tmp_path}/part-2.npy: is float32 [11, 2], but" in said
    assert f"{tmp_path}/part-0.npy float32 [11, 3]" in said
    np.save(tmp_path / "part-2.npy", ROWS.astype(np.float64))
    said = refused(lambda: open_arrays(f"{tmp_path}/part-*.npy", "features"))
    assert "part-2.npy: is float64" in said
    np.save(tmp_path / "part-2.npy", np.float32(1))
    assert "part-2.npy: is float32 []" in refused(
        lambda: open_arrays(f"{tmp_path}/part-*.npy", "features")
    )


@pytest.mark.parametrize(
    ("size", "layout", "message"),
    [
        (
            130,
            "float32,-1,3",
            "has 130 bytes, which are not the rows of 12 bytes that the layout float32,-1,3 has",
        ),
        (
            132,
            "float32,12,3",
            "has 11 rows of 12 bytes, but the layout float32,12,3 has 12",
        ),
    ],
)
def test_raw_files_of_another_size_are_refused(
    tmp_path: Path, size: int, layout: str, message: str
) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"\0" * size)
    said = refused(lambda: open_arrays(path, "features", raw=RawLayout.parse(layout)))
    assert message in said
    assert str(path) in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("float32", "'float32' is not a layout; give TYPE,ROWS,WIDTH"),
        ("float32,many,3", "is not a layout"),
        ("complex64,-1,3", "raw layout complex64,-1,3: expected one of 'bool'"),
        ("float32,-2,3", "raw layout float32,-2,3: expected one of"),
        ("float32,5,0", "raw layout float32,5,0: expected one of"),
    ],
)
def test_layouts_that_are_none(text: str, message: str) -> None:
    assert message in refused(lambda: RawLayout.parse(text), UsageError)


def test_files_that_nobody_described_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\0" * 12)
    said = refused(lambda: open_arrays(tmp_path / "x.bin", "features"), UsageError)
    assert "is neither .npy, .npz nor .csv; if it is raw binary, pass its type and shape" in said
    for missing in ("x.npy", "x.csv", "y.bin", "x-*.npy"):
        refused(partial(open_arrays, tmp_path / missing, "features"), NotFoundError)
    np.savez(tmp_path / "x.npz", a=ROWS, b=ROWS)
    assert "has the arrays a, b; choose one as" in refused(
        lambda: open_arrays(tmp_path / "x.npz", "features")
    )
    assert "there is no 'c'" in refused(lambda: open_arrays(f"{tmp_path}/x.npz:c", "features"))
    assert "no file was given" in refused(lambda: open_arrays([], "features"), UsageError)


def test_csv_that_is_shorter_or_longer_than_said(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1,2\n3,4\n")
    for num_rows in (1, 3):
        source = TextArray(tmp_path / "x.csv", num_rows=num_rows)
        said = refused(partial(list, source.rows(10)))
        assert f"has 2 rows, but the graph has {num_rows} nodes" in said


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, ROWS)
    pieces = open_npy(path).rows(5)
    next(pieces)
    path.write_bytes(path.read_bytes()[:-4])
    said = refused(lambda: list(pieces))
    assert "x.npy: ends 4 bytes early; copy it again" in said


def test_attributes_are_taken_in_other_pieces_than_they_come() -> None:
    parts = [MemoryArray("a", ROWS[:4]), MemoryArray("b", ROWS[4:5]), MemoryArray("c", ROWS[5:])]
    taker = RowTaker(JoinedArrays(parts))
    taken = [taker.take(count) for count in (0, 1, 5, 5, 0)]
    assert [len(rows) for rows in taken] == [0, 1, 5, 5, 0]
    np.testing.assert_array_equal(np.concatenate(taken), ROWS)
    taker.check_end(11)
    assert "has 11 rows, but the graph has 12 edges or more" in refused(lambda: taker.take(1))
    assert "has 11 rows, but the graph has 10 edges" in refused(lambda: taker.check_end(10))


# ---- through converters


def test_features_beside_an_edge_list(tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("".join(f"{i} {(i + 1) % 11}\n" for i in range(11)))
    (tmp_path / "y.csv").write_text("".join(f"{i}\n" for i in range(11)))
    for number, part in enumerate(np.array_split(ROWS, 3)):
        part.tofile(tmp_path / f"x-{number}.bin")
    path = from_snap(
        tmp_path / "edges.txt",
        tmp_path / "out.gnn",
        features=f"{tmp_path}/x-*.bin",
        features_raw=LAYOUT,
        labels=tmp_path / "y.csv",
    )
    stored = read_store(path)
    np.testing.assert_array_equal(stored.attributes["x"], ROWS)
    assert stored.attributes["y"].tolist() == list(range(11))
    found = StoreReader.open(path).manifest.provenance
    names = [Path(entry["path"]).name for entry in found["inputs"]]
    assert names == ["edges.txt", "x-0.bin", "x-1.bin", "x-2.bin", "y.csv"]
    assert found["features_raw"] == "float32,-1,3"


def test_bfloat16_in_raw_files_stays_what_it_is(tmp_path: Path) -> None:
    bits = to_bfloat16_bits(ROWS)
    bits.tofile(tmp_path / "x.bin")
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1], [1, 10]]))
    path = from_numpy(
        tmp_path / "g.npz",
        tmp_path / "out.gnn",
        features=tmp_path / "x.bin",
        features_raw=RawLayout("bfloat16", (11, 3)),
    )
    reader = StoreReader.open(path)
    assert reader.schema.node.attributes["x"].dtype == "bfloat16"
    np.testing.assert_array_equal(reader.read(reader.schema.node.attributes["x"]), bits)


# ---- rows in any order


@settings(max_examples=examples(60), deadline=None)
@given(
    num_rows=st.integers(0, 60),
    width=st.integers(1, 40),
    seed=st.integers(0, 1000),
    step=st.integers(1, 30),
    start=st.integers(0, 60),
)
def test_rows_in_any_order_are_put_into_that_of_nodes(  # noqa: PLR0917 - drawn by Hypothesis
    tmp_path_factory: pytest.TempPathFactory,
    num_rows: int,
    width: int,
    seed: int,
    step: int,
    start: int,
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.random((num_rows, width)).astype(np.float32)
    order = rng.permutation(num_rows)
    folder = tmp_path_factory.mktemp("s")
    parts = [
        MemoryArray("a", rows[order][: num_rows // 3]),
        MemoryArray("b", rows[order][num_rows // 3 :]),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gnnstore.converters.spill_files._MIN_RANGE_BYTES", 400)
        patch.setattr("gnnstore.converters.inputs.source._PIECE_BYTES", 300)
        found = ScatteredRows(JoinedArrays(parts), MemoryArray("ids", order), folder / "s", 0)
        for _ in range(2):  # scales take two passes
            pieces = [np.empty((0, width), np.float32), *found.rows(step, min(start, num_rows))]
            np.testing.assert_array_equal(np.concatenate(pieces), rows[start:])
    found.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 1, 1], "ids: node 1 has 2 rows; every node needs exactly one"),
        ([0, 2, 2], "ids: node 1 has 0 rows"),
        ([0, 1, 3], "ids: node id 3 at position 2 is outside [0, 3)"),
        ([0, 1, -1], "ids: node id -1 at position 2 is outside [0, 3)"),
        ([0, 1], "ids: has 2 ids, but x has rows of shape [3, 2]"),
        ([0.0, 1, 2], "ids: is [3] of float64, expected integers [N]"),
    ],
)
def test_rows_of_no_node_or_of_one_twice_are_named(
    tmp_path: Path, ids: list[int], message: str
) -> None:
    def run() -> object:
        x = MemoryArray("x", np.zeros((3, 2)))
        return list(ScatteredRows(x, MemoryArray("ids", np.array(ids)), tmp_path / "s").rows(2))

    assert message in refused(run)


def test_features_by_ids_of_an_edge_list(tmp_path: Path) -> None:
    order = np.random.default_rng(5).permutation(11)
    lines = "".join(f"{7 * i} {7 * ((i + 1) % 11)}\n" for i in range(11))
    (tmp_path / "edges.txt").write_text(lines)
    np.save(tmp_path / "x.npy", ROWS[order])
    (tmp_path / "ids.csv").write_text("".join(f"{7 * i}\n" for i in order))
    arguments: Any = {"features": tmp_path / "x.npy", "features_ids": tmp_path / "ids.csv"}
    (tmp_path / "out").mkdir()
    stored = read_store(from_snap(tmp_path / "edges.txt", tmp_path / "out" / "a.gnn", **arguments))
    np.testing.assert_array_equal(stored.attributes["x"], ROWS)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.gnn"]
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1], [1, 10]]))
    np.save(tmp_path / "ids.npy", order)
    arguments["features_ids"] = tmp_path / "ids.npy"
    stored = read_store(from_numpy(tmp_path / "g.npz", tmp_path / "out" / "b.gnn", **arguments))
    np.testing.assert_array_equal(stored.attributes["x"], ROWS)
    (tmp_path / "ids.csv").write_text("8\n" + "".join(f"{7 * i}\n" for i in order[1:]))
    arguments["features_ids"] = tmp_path / "ids.csv"
    said = refused(lambda: from_snap(tmp_path / "edges.txt", tmp_path / "c.gnn", **arguments))
    assert "ids.csv: the id 8 occurs in no edge" in said


def test_features_are_given_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0], [1]]), x=ROWS)
    np.save(tmp_path / "x.npy", ROWS)
    said = refused(
        lambda: from_numpy(tmp_path / "g.npz", tmp_path / "o.gnn", features=tmp_path / "x.npy")
    )
    assert "g.npz: has an array x already; remove it, or the features" in said


# ---- int8 with a scale per column

INT8 = ConvertOptions(feature_dtype="int8", feature_scale="column")


def convert_scaled(folder: Path, x: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    edges = np.array([[0, 1], [1, 0]])
    np.savez(folder / "g.npz", edge_index=edges, x=x)
    stored = read_store(from_numpy(folder / "g.npz", folder / "out.gnn", options=INT8))
    return stored.attributes["x"], stored.scales["x"]


@pytest.mark.parametrize("dtype", ["float16", *choose([], ["float32", "float64"]), "int32"])
def test_scaled_features_are_within_half_a_step(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((500, 6)) * [1, 100, 1e-3, 0, 5, 30]
    x = (x * (1e6 if dtype == "int32" else 1)).astype(dtype)
    stored, scales = convert_scaled(tmp_path, x)
    assert stored.dtype == np.int8
    assert scales.dtype == np.float32
    assert scales.shape == (6,)
    largest = np.abs(x.astype(np.float64)).max(axis=0)
    np.testing.assert_allclose(scales[largest > 0], (largest / 127)[largest > 0], rtol=1e-6)
    assert (scales[largest == 0] == 1).all()
    error = np.abs(stored * scales.astype(np.float64) - x.astype(np.float64))
    assert (error <= scales * 0.5001).all()
    assert (np.abs(stored).max(axis=0)[largest > 0] == 127).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_has_no_scale_is_named(tmp_path: Path, value: float) -> None:
    x = np.ones((9, 4), np.float32)
    x[7, 2] = value
    said = refused(lambda: convert_scaled(tmp_path, x))
    assert f"x: row 7, column 2: {value} has no place in int8 with a scale" in said


def test_a_scale_needs_int8_and_rows_that_can_be_read_twice(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"feature_scale='column' goes with feature_dtype='int8'"):
        ConvertOptions(feature_scale="column", feature_dtype="float16")
    with pytest.raises(UsageError, match=r"feature_scale='row' is unknown; choose one of column"):
        ConvertOptions(feature_scale="row")  # type: ignore[arg-type]
    with (
        GraphWriter(tmp_path / "g.gnn", kind="mine", options=INT8, num_nodes=2) as writer,
        pytest.raises(UsageError, match=r"features that can be read twice, which these cannot"),
        writer.node_rows("x", num_rows=2, row_shape=(3,), dtype="float32"),
    ):
        pass


def test_batches_have_the_features(tmp_path: Path) -> None:
    x = np.random.default_rng(2).standard_normal((30, 5)).astype(np.float32)
    edges = np.random.default_rng(3).integers(0, 30, (2, 90))
    np.savez(tmp_path / "g.npz", edge_index=edges, x=x)
    path = from_numpy(tmp_path / "g.npz", tmp_path / "out.gnn", options=INT8)
    loader = gnnstore.NeighborLoader(gnnstore.open(path), num_neighbors=[3], batch_size=10)
    for batch in loader:
        atol = float(np.abs(x).max()) / 127
        np.testing.assert_allclose(batch.x.numpy(), x[batch.n_id.numpy()], atol=atol)


def test_many_small_rows_are_not_held_to_be_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0], [1]]), y=np.arange(500))
    monkeypatch.setattr("gnnstore.converters.writer.node_arrays.MAX_COMPRESSED_BYTES", 1000)
    path = from_numpy(tmp_path / "g.npz", tmp_path / "out.gnn")
    spec = StoreReader.open(path).schema.node.attributes["y"]
    assert (spec.layout, spec.shape) == ("paged", (500,))
    np.testing.assert_array_equal(read_store(path).attributes["y"], np.arange(500))
    loader = gnnstore.NeighborLoader(gnnstore.open(path), num_neighbors=[2], batch_size=100)
    for batch in loader:
        np.testing.assert_array_equal(batch.y, batch.n_id)


def as_at_first(store: Path) -> None:
    """Let a store have scales as stores had them before there was a reader feature for these."""
    reader_features: list[str] = []
    rewrite(store, lambda own: own.update(reader_features=reader_features))


def test_scales_are_checked_where_a_store_is_opened(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "s.gnn", kind="test", num_nodes=2) as writer:
        writer.set_node_attribute("x", np.zeros((2, 3), np.int8))
        writer.set_graph_array("x_scale", np.ones(3, np.float32))
        writer.commit()
    as_at_first(tmp_path / "s.gnn")
    reader = StoreReader.open(tmp_path / "s.gnn")
    assert reader.scales["nodes/node/x"].tolist() == [1, 1, 1]
    assert reader.schema.graph_arrays == {}
    ((spec, scaled),) = reader.schema.scaled_attributes()
    assert (spec.name, scaled.scales.path, scaled.decoded) == ("x", "graph/x_scale", "float32")
    for value in (0, -1, 1e-40, np.nan, np.inf):
        for file in (tmp_path / "s.gnn" / scaled.scales.path).iterdir():
            file.unlink()
        bad = np.array([1, 1, value], np.float32)
        write_compressed_files(tmp_path / "s.gnn" / scaled.scales.path, scaled.scales, bad)
        reseal(tmp_path / "s.gnn")
        with pytest.raises(CorruptStoreError, match="the scale of column 2 of 'x' is"):
            gnnstore.open(tmp_path / "s.gnn")
    with GraphWriter(tmp_path / "t.gnn", kind="test", num_nodes=2) as writer:
        writer.set_node_attribute("x", np.zeros((2, 3), np.int8))
        writer.set_graph_array("x_scale", np.array([0], np.float32))  # not of a row's shape
        writer.commit()
    assert StoreReader.open(tmp_path / "t.gnn").manifest.reader_features == ()
    assert read_store(tmp_path / "t.gnn").graph_arrays["x_scale"].tolist() == [0]


def test_scales_of_another_shape_are_damage(tmp_path: Path) -> None:
    convert_scaled(tmp_path, np.ones((2, 3), np.float32))

    def shorten(manifest: dict[str, Any]) -> None:
        (node,) = manifest["schema"]["node_types"]
        node["attributes"]["x"]["scaled"]["scales"]["shape"] = [2]

    assert StoreReader.open(tmp_path / "out.gnn").manifest.reader_features == ("scaled-attributes",)
    rewrite(tmp_path / "out.gnn", shorten)
    with pytest.raises(CorruptStoreError, match=r"'nodes/node/x' is int8 \[2, 3\], and its scales"):
        gnnstore.open(tmp_path / "out.gnn")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_features_that_are_no_numbers_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dtype: str
) -> None:
    x = np.ones((50, 4), dtype)
    x[3, 1] = x[40, 0] = np.nan
    x[7] = np.inf
    np.savez(tmp_path / "a.npz", edge_index=[[0], [1]], x=x, y=np.full(50, np.nan, np.float32))
    from_numpy(tmp_path / "a.npz", tmp_path / "a.gnn")
    (said,) = caplog.messages
    assert "a.npz: x: of 200 values 2 are NaN and 4 infinite" in said


def test_the_name_of_scales_is_taken_where_there_are_any(tmp_path: Path) -> None:
    """Else a batch would show one of the two, and nobody would know which."""
    edges = np.array([[0, 1], [1, 2]])
    np.savez(tmp_path / "a.npz", edge_index=edges, x=ROWS[:3], x_scale=np.full((3, 4), 7.0))
    with pytest.raises(InputError, match="'x_scale' is what batches call the scales"):
        from_numpy(
            tmp_path / "a.npz",
            tmp_path / "s.gnn",
            options=ConvertOptions(feature_dtype="int8", feature_scale="column"),
        )
    stored = read_store(from_numpy(tmp_path / "a.npz", tmp_path / "s.gnn"))
    assert stored.attributes["x_scale"].shape == (3, 4)


def test_rows_that_hold_nothing(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", edge_index=[[0, 1], [1, 2]], x=np.zeros((3, 0), np.float32))
    store = from_numpy(tmp_path / "a.npz", tmp_path / "s.gnn")
    with pytest.raises(InputError, match="rows of the attribute 'x' hold nothing"):
        partition(store, 2)
    expanded = from_kronecker(store, tmp_path / "k.gnn", factor=2)
    assert read_store(expanded).attributes["x"].shape == (6, 0)
    assert verify(expanded, level="full").ok


def test_a_path_that_is_no_utf8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.npz"))
    np.savez(path, edge_index=[[0, 1], [1, 2]])
    reader = StoreReader.open(from_numpy(path, tmp_path / "s.gnn"))
    assert r"\xff.npz" in str(reader.manifest.provenance)


def test_files_are_ordered_by_the_numbers_in_their_names(tmp_path: Path) -> None:
    names = ["1²10.npy", "1²2.npy"]
    for i, name in enumerate(names):
        np.save(tmp_path / name, np.full((2, 2), i, np.float32))
    found = open_arrays(str(tmp_path / "1²*.npy"), "features").source
    assert np.concatenate(list(found.rows(10)))[:, 0].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("first", "message"),
    [("a,b", "line 1: column 1: 'a' is not a number"), (" ", "line 1: the line is blank where")],
)
def test_a_first_line_that_is_no_row_is_named_before_rows_are_counted(
    tmp_path: Path, first: str, message: str
) -> None:
    (tmp_path / "e.txt").write_text("0 1\n1 2\n")
    (tmp_path / "x.csv").write_text(f"{first}\n1,2\n3,4\n5,6\n")
    with pytest.raises(InputError, match=message):
        from_snap(tmp_path / "e.txt", tmp_path / "a.gnn", features=tmp_path / "x.csv")


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_features_of_64_bits_in_text(tmp_path: Path, dtype: str) -> None:
    """Numbers with a point beside them change nothing, in a part or in a column of their own."""
    (tmp_path / "e.txt").write_text("0 1\n1 2\n")
    most = np.iinfo(dtype).max
    (tmp_path / "x0.csv").write_text(f"1.0,{most}\n2.0,9007199254740993\n")
    (tmp_path / "x1.csv").write_text("4,5\n")
    options = ConvertOptions(feature_dtype=dtype, overwrite=True)
    more: dict[str, Any] = {"features": f"{tmp_path}/x?.csv", "options": options}
    stored = read_store(from_snap(tmp_path / "e.txt", tmp_path / "a.gnn", **more))
    x = stored.attributes["x"]
    assert (x.dtype.name, x.tolist()) == (dtype, [[1, most], [2, 2**53 + 1], [4, 5]])
    (tmp_path / "x1.csv").write_text("-4,5\n")
    if dtype == "uint64":
        with pytest.raises(InputError, match="uint64, which other columns need, does not hold -4"):
            from_snap(tmp_path / "e.txt", tmp_path / "a.gnn", **more)
