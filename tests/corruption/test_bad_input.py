"""Every way an input can be wrong: a specific error, and nothing left where the store would be."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import (
    ConvertOptions,
    GraphWriter,
    from_numpy,
    from_ogb,
    from_rmat,
    from_snap,
)
from gnnstore.converters.writer.node_arrays import Caster
from gnnstore.errors import (
    GnnstoreError,
    InputError,
    NoSpaceError,
    NotFoundError,
    StorageError,
    StoreExistsError,
    UsageError,
)
from gnnstore.formats import StoreReader
from gnnstore.formats.container.workdir import find_leftovers
from gnnstore.testing.graphs import random_graph, write_store
from tests.support.files import unprivileged
from tests.support.graphs import read_store

NUM_NODES, NUM_EDGES = 20, 100


def pack(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


@pytest.fixture
def ogb(tmp_path: Path) -> Path:
    """Write a sound data set in OGB's text layout, for a test to spoil."""
    root, rng = tmp_path / "input", np.random.default_rng(0)
    edges = rng.integers(0, NUM_NODES, (NUM_EDGES, 2))
    pack(root / "raw" / "edge.csv.gz", "".join(f"{s},{t}\n" for s, t in edges))
    pack(root / "raw" / "edge-feat.csv.gz", "0.5,1\n" * NUM_EDGES)
    pack(root / "raw" / "node-feat.csv.gz", "0.5,1,2\n" * NUM_NODES)
    pack(root / "raw" / "node-label.csv.gz", "3\n" * NUM_NODES)
    pack(root / "raw" / "num-node-list.csv.gz", f"{NUM_NODES}\n")
    pack(root / "raw" / "num-edge-list.csv.gz", f"{NUM_EDGES}\n")
    for i, name in enumerate(("train", "valid", "test")):
        pack(root / "split" / "random" / f"{name}.csv.gz", f"{i}\n{i + 3}\n")
    return root


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "store.gnn"


def refused(kind: type[GnnstoreError], output: Path, run: Callable[[], object]) -> str:
    """Return what the error says, having checked that nothing was left behind."""
    with pytest.raises(kind) as caught:
        run()
    assert list(output.parent.iterdir()) == []
    assert type(caught.value) is kind
    return str(caught.value)


def edit(path: Path, line: int, text: str | None) -> None:
    """Replace one line (from 1) of a gzipped file; None removes it."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    lines[line - 1 : line] = [] if text is None else [text]
    pack(path, "".join(f"{kept}\n" for kept in lines))


def test_the_sound_data_set_is_sound(ogb: Path, output: Path) -> None:
    stored = read_store(from_ogb(ogb, output))
    assert stored.edge_index.shape == (2, NUM_EDGES)
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.parametrize(
    ("file", "edited", "message"),
    [
        ("raw/edge.csv.gz", (7, "3,x"), "line 7: column 2: 'x' is not an integer, expected a node"),
        (
            "raw/edge.csv.gz",
            (7, "3,"),
            "line 7: column 2: '' is not an integer, expected a node id",
        ),
        ("raw/edge.csv.gz", (7, "3,4,5"), "line 7: found 3 fields, expected 2"),
        ("raw/edge.csv.gz", (7, "3,20"), "line 7: column 2: node id 20 is outside [0, 20)"),
        ("raw/edge.csv.gz", (1, None), "has 99 edges, but the data set states 100"),
        ("raw/edge-feat.csv.gz", (1, None), "has 99 rows, but the graph has 100 edges"),
        ("raw/node-feat.csv.gz", (1, None), "has 19 rows, but the graph has 20 nodes"),
        ("raw/node-feat.csv.gz", (20, "1,2,3\n4,5,6"), "has 21 rows, but the graph has 20 nodes"),
        (
            "raw/node-feat.csv.gz",
            (9, "1,,2"),
            "line 9: column 2: '' is not a number, expected a feature",
        ),
        ("raw/node-feat.csv.gz", (9, "1,2"), "line 9: found 2 fields, expected 3"),
        ("raw/node-feat.csv.gz", (9, "1,1e40,3"), "line 9: column 2: '1e40' overflows float32"),
        ("raw/node-label.csv.gz", (1, None), "has 19 rows, but the graph has 20 nodes"),
        ("raw/node-label.csv.gz", (4, "nan"), "line 4: column 1: NaN is not a node label"),
        ("raw/num-node-list.csv.gz", (1, "20\n30"), "lists 2 graphs; a node-property or"),
        ("raw/num-node-list.csv.gz", (1, "many"), "line 1: column 1: 'many' is not an integer"),
        ("raw/num-node-list.csv.gz", (1, "-2"), "number -2 is outside [0, 2^63)"),
        ("raw/num-edge-list.csv.gz", (1, "90"), "edge.csv.gz: has 100 edges, but the data set"),
        ("split/random/train.csv.gz", (2, "20"), "node id 20 at position 1 is outside [0, 20)"),
        ("split/random/train.csv.gz", (2, "0"), "1 node ids are repeated, the first is 0"),
    ],
)
def test_a_spoiled_line_is_named(
    ogb: Path, output: Path, file: str, edited: tuple[int, str | None], message: str
) -> None:
    edit(ogb / file, *edited)
    said = refused(InputError, output, lambda: from_ogb(ogb, output))
    assert message in said
    named = ogb / ("raw/edge.csv.gz" if "num-edge" in file else file)
    assert said.startswith(str(named))


@pytest.mark.parametrize(
    "file",
    [
        "raw/edge.csv.gz",
        "raw/edge-feat.csv.gz",
        "raw/node-feat.csv.gz",
        "raw/node-label.csv.gz",
        "raw/num-node-list.csv.gz",
        "split/random/train.csv.gz",
    ],
)
def test_truncated_and_damaged_gzip_streams_are_named(ogb: Path, output: Path, file: str) -> None:
    whole = (ogb / file).read_bytes()
    (ogb / file).write_bytes(whole[:-5])
    said = refused(InputError, output, lambda: from_ogb(ogb, output))
    assert said.startswith(f"{ogb / file}: the gzip stream is damaged or ends early")
    assert "download or copy it again" in said
    (ogb / file).write_bytes(whole[:-8] + b"\0\0\0\0" + whole[-4:])
    said = refused(InputError, output, lambda: from_ogb(ogb, output))
    assert said.startswith(f"{ogb / file}: the gzip stream is damaged or ends early")
    (ogb / file).write_bytes(b"not gzip")
    said = refused(InputError, output, lambda: from_ogb(ogb, output))
    assert said.startswith(f"{ogb / file}: not a gzip file, though it is named .gz")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("raw/edge.csv.gz", "neither edge.csv.gz nor data.npz is there"),
        ("raw/num-node-list.csv.gz", "the number of nodes: "),
        ("raw/num-edge-list.csv.gz", "the number of edges: "),
    ],
)
def test_a_missing_file_is_named(ogb: Path, output: Path, file: str, message: str) -> None:
    (ogb / file).unlink()
    said = refused(NotFoundError, output, lambda: from_ogb(ogb, output))
    assert message in said
    assert Path(file).name in said


def test_a_pickled_split_is_not_loaded(ogb: Path, output: Path) -> None:
    for file in (ogb / "split" / "random").iterdir():
        file.unlink()
    (ogb / "split" / "random" / "split_dict.pt").write_bytes(b"cos\nsystem\n")
    said = refused(InputError, output, lambda: from_ogb(ogb, output))
    assert "split_dict.pt: expected a dict of arrays as torch.save writes it" in said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_index": None}, "data.npz: there is no edge_index, only num_"),
        ({"num_nodes_list": np.array([20, 20])}, "num_nodes_list: expected one count, found"),
        ({"num_nodes_list": np.array([20.5])}, "found float64 of shape [1]"),
        ({"num_edges_list": np.array([99])}, "edge_index: has 100 edges, but "),
        (
            {"edge_index": np.zeros((2, 100))},
            "edge_index: has the element type float64, expected integers",
        ),
        ({"edge_index": np.full((2, 100), 20)}, "source node id 20 at position 0 is outside [0, 2"),
        ({"node_feat": np.zeros((19, 2))}, "node_feat: has 19 rows, but the graph has 20 nodes"),
        ({"edge_feat": np.zeros((99, 2))}, "edge_feat: has 99 rows, but the graph has 100 edges"),
        ({"node_feat": np.array([{}] * 20)}, "node_feat: holds pickled Python objects"),
        ({"notes": np.zeros(3)}, "notes: expected edge_index, num_nodes"),
    ],
)
def test_a_spoiled_archive_is_named(
    tmp_path: Path, output: Path, changes: dict[str, Any], message: str
) -> None:
    arrays = {
        "num_edges_list": np.array([NUM_EDGES]),
        "num_nodes_list": np.array([NUM_NODES]),
        "edge_index": np.zeros((2, NUM_EDGES), int),
        **changes,
    }
    (tmp_path / "raw").mkdir()
    kept: Any = {name: values for name, values in arrays.items() if values is not None}
    np.savez(tmp_path / "raw" / "data.npz", **kept)
    said = refused(InputError, output, lambda: from_ogb(tmp_path, output))
    assert message in said
    assert str(tmp_path / "raw" / "data.npz") in said


# ---- every converter


@pytest.mark.parametrize("convert", [from_ogb, from_snap, from_numpy])
def test_a_missing_input_is_named(tmp_path: Path, output: Path, convert: Any) -> None:
    said = refused(NotFoundError, output, lambda: convert(tmp_path / "nothing", output))
    assert f"{tmp_path / 'nothing'} does not exist; check the path" in said


def test_an_input_of_the_wrong_kind_is_named(tmp_path: Path, output: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("0 1\n")
    said = refused(InputError, output, lambda: from_ogb(file, output))
    assert f"should be a directory, but {file} is a file" in said
    said = refused(InputError, output, lambda: from_snap(tmp_path, output))
    assert f"should be a file, but {tmp_path} is a directory" in said
    said = refused(InputError, output, lambda: from_numpy(file, output))
    assert f"{file}: is text; 'gnnstore convert snap' reads lists of edges" in said
    (tmp_path / "empty").mkdir()
    said = refused(NotFoundError, output, lambda: from_ogb(tmp_path / "empty", output))
    assert "neither edge.csv.gz nor data.npz is there" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# head\n1 2\n3 x\n", "edges.txt: line 3: column 2: 'x' is not an integer, expected a n"),
        ("1 2\n3\n", "edges.txt: line 2: found 1 field, expected 2"),
        ("1 2 3\n", "edges.txt: line 1: found 3 fields, expected 2"),
        ("1 2\n3 -4\n", "edges.txt: line 2: column 2: node id -4 is outside [0, 2^63)"),
        ("1 2\n3 nan\n", "edges.txt: line 2: column 2: 'nan' is not an integer"),
        ("1,2\n3,\n", "edges.txt: line 2: column 2: '' is not an integer, expected a"),
    ],
)
def test_a_spoiled_edge_list_is_named(
    tmp_path: Path, output: Path, text: str, message: str
) -> None:
    (tmp_path / "edges.txt").write_text(text)
    assert message in refused(InputError, output, lambda: from_snap(tmp_path / "edges.txt", output))


def test_arrays_beside_an_edge_list_are_checked(tmp_path: Path, output: Path) -> None:
    edges = tmp_path / "edges.txt"
    edges.write_text("0 1\n1 2\n")
    np.save(tmp_path / "two.npy", np.zeros(2))
    np.savez(tmp_path / "late.npz", train=[3])
    np.savez(tmp_path / "mask.npz", train=[True])
    for arguments, message in (
        ({"features": tmp_path / "two.npy"}, "two.npy: has 2 rows, but the graph has 3 nodes"),
        ({"labels": tmp_path / "two.npy"}, "two.npy: has 2 rows, but the graph has 3 nodes"),
        ({"splits": tmp_path / "late.npz"}, "train: node id 3 at position 0 is outside [0, 3)"),
        ({"splits": tmp_path / "mask.npz"}, "train: the mask has 1 entry, but the graph has 3"),
    ):
        run: Any = partial(from_snap, edges, output, **arguments)  # type: ignore[arg-type]
        assert message in refused(InputError, output, run)
    said = refused(
        NotFoundError, output, lambda: from_snap(edges, output, features=tmp_path / "none.npy")
    )
    assert f"{tmp_path / 'none.npy'} does not exist" in said


def test_a_bomb_in_what_is_read_whole_is_refused(
    ogb: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file of labels that holds more numbers than memory could: its rows are counted."""
    monkeypatch.setattr(
        "gnnstore.converters.inputs.text_tables.available_bytes", lambda: 20_000_000
    )
    pack(ogb / "raw" / "node-label.csv.gz", "0\n" * 5_000_000)
    assert (ogb / "raw" / "node-label.csv.gz").stat().st_size < 20_000
    said = refused(InputError, output, lambda: from_ogb(ogb, output))
    assert said.startswith(
        f"{ogb / 'raw' / 'node-label.csv.gz'}: has 5,000,000 rows, but the graph"
    )


def test_a_file_that_may_not_be_read_is_named() -> None:
    folder = Path(tempfile.mkdtemp(prefix="gnnstore-secret-", dir="/tmp"))
    try:
        (folder / "out").mkdir()
        (folder / "in").mkdir()
        (folder / "e.txt").write_text("0 1\n")
        np.savez(folder / "e.npz", edge_index=np.array([[0], [1]]))
        np.save(folder / "in" / "edge_index.npy", np.array([[0], [1]]))
        for path in (folder / "e.txt", folder / "e.npz", folder / "in" / "edge_index.npy"):
            path.chmod(0)
        folder.chmod(0o755)
        (folder / "out").chmod(0o777)
        output = folder / "out" / "g.gnn"
        for convert, source, named in (
            (from_snap, "e.txt", "the text file: .*e.txt"),
            (from_numpy, "e.npz", "the archive: .*e.npz"),
            (from_numpy, "in", "the array: .*edge_index.npy"),
        ):
            with (
                unprivileged(),
                pytest.raises(StorageError, match=f"cannot read {named}: Permission denied"),
            ):
                convert(folder / source, output)
            assert list(output.parent.iterdir()) == []
    finally:
        shutil.rmtree(folder)


def test_an_error_of_the_disk_is_named(output: Path) -> None:
    """A file that can be opened and not be read."""
    source = Path("/proc/self/mem")
    if not source.exists():
        pytest.skip("there is no /proc here")
    with pytest.raises(StorageError, match=r"cannot read the text file: /proc/self/mem: Input/o"):
        from_snap(source, output)
    assert list(output.parent.iterdir()) == []


# ---- the output


def test_an_existing_output_is_kept(ogb: Path, output: Path) -> None:
    from_ogb(ogb, output)
    uuid = StoreReader.open(output).uuid
    for name in ("edge", "node-feat", "node-label"):
        (ogb / "raw" / f"{name}.csv.gz").write_bytes(b"this would fail, if it were read")
    for run in (partial(from_ogb, ogb, output), partial(from_rmat, output, scale=3)):
        with pytest.raises(StoreExistsError, match=r"store\.gnn exists; choose another output"):
            run()
    assert StoreReader.open(output).uuid == uuid


def test_a_failed_overwrite_keeps_the_old_store(ogb: Path, output: Path) -> None:
    from_ogb(ogb, output)
    uuid = StoreReader.open(output).uuid
    options = ConvertOptions(overwrite=True)
    edit(ogb / "raw" / "edge.csv.gz", 50, "x,y")
    with pytest.raises(InputError, match="line 50"):
        from_ogb(ogb, output, options=options)
    assert list(output.parent.iterdir()) == [output]
    assert StoreReader.open(output).uuid == uuid
    edit(ogb / "raw" / "edge.csv.gz", 50, "1,2")
    from_ogb(ogb, output, options=options)
    assert StoreReader.open(output).uuid != uuid
    assert list(output.parent.iterdir()) == [output]


def test_what_is_no_store_is_never_overwritten(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years")
    with pytest.raises(UsageError, match=r"is not a gnnstore store, so it is not overwritten"):
        from_rmat(precious, scale=3, options=ConvertOptions(overwrite=True))
    assert (precious / "thesis.tex").read_text() == "years"


def test_an_output_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none: the directory to write into does not exist"):
        from_rmat(tmp_path / "none" / "r.gnn", scale=3)


def test_an_output_that_may_not_be_written_is_named() -> None:
    folder = Path(tempfile.mkdtemp(prefix="gnnstore-read-only-", dir="/tmp"))
    try:
        folder.chmod(0o555)
        with unprivileged(), pytest.raises(StorageError, match=r"cannot create the output: .*deni"):
            from_rmat(folder / "r.gnn", scale=3)
        assert list(folder.iterdir()) == []
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("scale", [10, 12, 14])
def test_no_space_left_is_said_and_leaves_no_store(tiny_disk: Path, scale: int) -> None:
    with pytest.raises(NoSpaceError, match=r"no space left for .*nothing was left under the fin"):
        from_rmat(tiny_disk / "r.gnn", scale=scale)
    assert not (tiny_disk / "r.gnn").exists()
    # What is finished, if anything is, can be gone on with (tests/crash).
    assert all(item.state == "resumable" for item in find_leftovers(tiny_disk))


def test_no_space_left_for_an_overwrite_keeps_the_old_store(tiny_disk: Path) -> None:
    old = write_store(tiny_disk / "r.gnn", [[0, 1], [1, 0]])
    uuid = StoreReader.open(old).uuid
    with pytest.raises(NoSpaceError, match=r"no space left"):
        from_rmat(old, scale=12, options=ConvertOptions(overwrite=True))
    assert all(path == old or path.name[0] == "." for path in tiny_disk.iterdir())
    assert StoreReader.open(old).uuid == uuid


# ---- values


@pytest.mark.parametrize(
    ("target", "values", "message"),
    [
        ("float16", [[1, 65519], [70000, 1]], "row 11, column 0: 70000.0 overflows float16"),
        ("bfloat16", [[1, 2], [1, 3.4e38]], "row 11, column 1: 3.4e+38 overflows bfloat16"),
        ("int8", [[1, 2], [1, 128]], "row 11, column 1: 128.0 has no exact value in int8"),
        ("int8", [[1, 2.5], [1, 1]], "row 10, column 1: 2.5 has no exact value in int8"),
        ("uint8", [[1, -1], [1, 1]], "row 10, column 1: -1.0 has no exact value in uint8"),
        ("int64", [[1, np.nan], [1, 1]], "row 10, column 1: nan has no exact value in int64"),
        ("int64", [[1, 1], [np.inf, 1]], "row 11, column 0: inf has no exact value in int64"),
        ("int64", [[1, 1], [2.0**63, 1]], "row 11, column 0: 9.223372e+18 has no exact value in"),
        ("bool", [[1, 0], [2, 1]], "row 11, column 0: 2.0 has no exact value in bool"),
    ],
)
def test_a_feature_that_would_change_is_named(
    target: str, values: list[list[float]], message: str
) -> None:
    cast = Caster("x", "float32", target)
    cast(np.zeros((10, 2), np.float32))
    with pytest.raises(InputError) as caught:
        cast(np.array(values, np.float32))
    assert f"the attribute 'x', {message}" in str(caught.value)
    assert "choose a wider type or rescale the data" in str(caught.value)


def test_rounding_and_infinities_are_no_errors() -> None:
    values = np.array([[0.1, np.inf, -np.inf, np.nan, 65504.0]], np.float32)
    found = Caster("x", "float32", "float16")(values)
    np.testing.assert_array_equal(found, values.astype(np.float16))
    bits = Caster("x", "float32", "bfloat16")(values)
    back = Caster("x", "bfloat16", "float32")(bits)
    np.testing.assert_allclose(back[0, [0, 4]], values[0, [0, 4]], rtol=2**-8)
    assert np.isinf(back[0, 1:3]).all()
    assert np.isnan(back[0, 3])


def test_a_type_that_no_store_holds_is_named() -> None:
    with pytest.raises(InputError, match=r"the attribute 'x' has the element type 'complex64'"):
        Caster("x", "complex64", "float32")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"self_loops": "maybe"}, "self_loops='maybe' is unknown; choose one of keep, drop, add"),
        ({"feature_dtype": "float8"}, "feature_dtype='float8' is unknown; choose one of bool, int"),
        ({"index_dtype": "int16"}, "index_dtype='int16' is unknown; choose one of int64, int32"),
        ({"memory_bytes": -1}, "memory_bytes=-1 is negative"),
    ],
)
def test_bad_options_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ConvertOptions(**arguments)
    assert message in str(caught.value)


# ---- the writer


def test_the_writer_checks_counts_and_names(output: Path) -> None:
    def write(steps: Callable[[GraphWriter], object], num_nodes: int | None = None) -> None:
        with GraphWriter(output, kind="test", num_nodes=num_nodes) as writer:
            writer.add_edges(np.array([0]), np.array([3]))
            steps(writer)
            writer.commit()

    ones = np.ones((5, 4))
    for steps, num_nodes, message in (
        (lambda w: w.set_node_attribute("x", ones), None, "'x': has 5 rows, but the graph has 4"),
        (lambda w: w.set_node_attribute("x", ones), 4, "'x': has 5 rows, but the graph has 4"),
        (lambda w: w.set_node_attribute("y", ones[:, 0]), 4, "'y': has 5 rows, but the graph has"),
        (lambda w: w.set_node_attribute("y", np.array(1)), 4, "is a single value; expected a row"),
        (lambda w: w.set_original_ids(np.arange(3)), 4, "the original ids: has 3 rows, but the"),
        (lambda w: w.set_num_nodes(5), 4, "the input states 4 nodes in one place and 5 in another"),
        (lambda w: w.set_split("train", np.array([4])), 4, "the split 'train': node id 4 at pos"),
        (lambda w: w.set_graph_attribute("f", {1, 2}), 4, "cannot be written as JSON"),
        (lambda w: w.set_graph_array("f", np.array(["a"])), 4, "element type 'str32', which a"),
    ):
        assert message in refused(InputError, output, partial(write, steps, num_nodes))

    def twice(writer: GraphWriter) -> None:
        writer.set_node_attribute("y", ones[:4, 0])
        writer.set_node_attribute("y", ones[:4, 0])

    assert "the name 'y' is used twice" in refused(InputError, output, lambda: write(twice, 4))

    def few_rows(writer: GraphWriter) -> None:
        with writer.node_rows("x", num_rows=4, row_shape=(2,), dtype="float32") as sink:
            sink.append(np.zeros((3, 2), np.float32))

    said = refused(InputError, output, lambda: write(few_rows, 4))
    assert "the attribute 'x' was declared with 4 rows, but only 3 came" in said


def test_an_empty_graph_is_a_graph(output: Path) -> None:
    for num_nodes in (0, 1, 7):
        graph = random_graph(num_nodes, 0, feature_dim=3, num_classes=2)
        options = ConvertOptions(overwrite=True, undirected=True, self_loops="drop")
        stored = read_store(graph.write(output, options=options))
        assert stored.num_nodes == num_nodes
        assert stored.edge_index.shape == (2, 0)
        assert stored.attributes["x"].shape == (num_nodes, 3)
