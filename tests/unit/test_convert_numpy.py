"""Named arrays: which name means what, and the structures that edges come in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gnnstore.converters import ConvertOptions, from_numpy
from gnnstore.converters.edges import buckets as in_buckets
from gnnstore.converters.edges.buffer import EdgeBuffer
from gnnstore.converters.typed import inputs
from gnnstore.errors import BudgetError, InputError, NotFoundError, UsageError
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support.graphs import StoredGraph, read_store

OVERWRITE = ConvertOptions(overwrite=True)


def convert(
    folder: Path, arrays: Mapping[str, npt.ArrayLike], *, form: str = "npz", **arguments: Any
) -> StoredGraph:
    if form == "directory":
        source = folder / "arrays"
        source.mkdir()
        for name, values in arrays.items():
            np.save(source / f"{name}.npy", np.asarray(values))
    else:
        source = folder / "arrays.npz"
        save: Any = np.savez_compressed if form == "compressed" else np.savez
        save(source, **{name: np.asarray(values) for name, values in arrays.items()})
    arguments.setdefault("options", OVERWRITE)
    return read_store(from_numpy(source, folder / "out.gnn", **arguments))


@pytest.fixture
def graph() -> GraphArrays:
    return random_graph(50, 300, seed=2, feature_dim=3, num_classes=3, edge_feature_dim=2)


def test_a_store_is_the_same_if_edges_go_into_buckets_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: GraphArrays
) -> None:
    np.save(tmp_path / "edge_index.npy", graph.edge_index)
    np.save(tmp_path / "num_nodes.npy", np.array(graph.num_nodes))
    buffered = from_numpy(tmp_path, tmp_path / "buffered.gnn")
    monkeypatch.setattr(in_buckets, "MIN_EDGES", 0)
    monkeypatch.setattr(in_buckets, "_LARGEST_SHARE", 1)
    monkeypatch.setattr(EdgeBuffer, "append", None)
    as_read = from_numpy(tmp_path, tmp_path / "as_read.gnn")
    for file in buffered.rglob("*"):
        if file.is_file() and file != buffered / "zarr.json":  # which has the time
            assert (as_read / file.relative_to(buffered)).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("form", ["npz", "compressed", "directory"])
@pytest.mark.parametrize("structure", ["edge_index", "transposed", "csc", "csr"])
def test_every_form_gives_the_same_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: GraphArrays, form: str, structure: str
) -> None:
    monkeypatch.setattr(inputs, "_PIECE_EDGES", 37)
    monkeypatch.setattr(inputs, "_PIECE_NODES", 5)
    arrays: dict[str, npt.ArrayLike] = {**graph.attributes, **graph.splits}
    order = np.arange(graph.num_edges)
    if structure == "edge_index":
        arrays["edge_index"] = graph.edge_index
    elif structure == "transposed":  # saved as [E, 2] and turned: Fortran order
        arrays["edge_index"] = np.ascontiguousarray(graph.edge_index.T).T
    else:
        node, other = (1, 0) if structure == "csc" else (0, 1)
        order = np.argsort(graph.edge_index[node], kind="stable")
        degrees = np.bincount(graph.edge_index[node], minlength=graph.num_nodes)
        arrays["indptr"] = np.concatenate([[0], np.cumsum(degrees)])
        arrays["indices"] = graph.edge_index[other, order].astype(np.int32)
        arrays["edge_attr"] = graph.attributes["edge_attr"][order]
    layout = "csr" if structure == "csr" else "csc"
    stored = convert(tmp_path, arrays, form=form, layout=layout)
    edges = order[stored.edge_id]
    np.testing.assert_array_equal(graph.edge_index[:, edges], stored.edge_index)
    np.testing.assert_array_equal(
        stored.edge_attributes["edge_attr"], graph.attributes["edge_attr"][edges]
    )
    for name in ("x", "y"):
        np.testing.assert_array_equal(stored.attributes[name], graph.attributes[name])
        assert stored.attributes[name].dtype == graph.attributes[name].dtype
    for name, ids in graph.splits.items():
        np.testing.assert_array_equal(stored.splits[name], ids)


@pytest.mark.parametrize(
    ("extra", "num_nodes"),
    [({}, 3), ({"num_nodes": 9}, 9), ({"x": np.zeros((5, 1))}, 5), ({"pos": np.zeros(6)}, 6)],
)
def test_how_many_nodes_there_are(tmp_path: Path, extra: dict[str, Any], num_nodes: int) -> None:
    assert convert(tmp_path, {"edge_index": [[0, 1], [1, 2]], **extra}).num_nodes == num_nodes


def test_splits_are_ids_or_masks_under_many_names(tmp_path: Path) -> None:
    stored = convert(
        tmp_path,
        {
            "edge_index": [[0], [1]],
            "num_nodes": 4,
            "train_mask": [True, False, True, False],
            "val_idx": [3],
            "test": np.array([[1]]),
        },
    )
    assert {name: ids.tolist() for name, ids in stored.splits.items()} == {
        "train": [0, 2],
        "valid": [3],
        "test": [1],
    }


def test_no_edges_keep_the_attributes(tmp_path: Path) -> None:
    stored = convert(
        tmp_path,
        {"edge_index": np.empty((2, 0), int), "x": np.ones((3, 2)), "edge_attr": np.ones((0, 4))},
    )
    assert stored.num_nodes == 3
    assert stored.edge_attributes["edge_attr"].shape == (0, 4)


EDGES = {"edge_index": [[0, 1], [1, 2]]}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones((3, 1))}, "expected either edge_index, or indptr and indices, found x"),
        ({**EDGES, "indptr": [0], "indices": [0]}, "expected either edge_index, or indptr"),
        ({"indptr": [0, 1]}, "expected either edge_index, or indptr and indices, found indptr"),
        ({"edge_index": [[0, 1, 2]] * 3}, "has shape [3, 3], expected [2, E]: sources"),
        ({"edge_index": [[0.0, 1], [1, 2]]}, "has the element type float64, expected integers"),
        ({"edge_index": [[0.0, np.nan], [1, 2]]}, "node ids are never fractions or NaN"),
        ({"edge_index": [[0, -1], [1, 2]]}, "source node id -1 at position 1 is outside [0, 2^63)"),
        ({**EDGES, "num_nodes": 2}, "target node id 2 at position 1 is outside [0, 2) of 2 nodes"),
        ({**EDGES, "num_nodes": 2.5}, "num_nodes: expected one non-negative integer"),
        ({**EDGES, "x": np.ones((4, 1)), "y": [1]}, "y: has 1 row, but the graph has 4 nodes"),
        ({**EDGES, "num_nodes": 3, "x": [[1.0]]}, "x: has 1 row, but the graph has 3 nodes"),
        ({**EDGES, "x": np.ones((2, 1))}, "target node id 2 at position 1 is outside [0, 2)"),
        ({**EDGES, "edge_attr": [1.0]}, "edge_attr: has 1 row, but the graph has 2 edges"),
        ({**EDGES, "name": 3}, "name: is a single value; expected a row for each"),
        ({**EDGES, "train": [3]}, "train: node id 3 at position 0 is outside [0, 3)"),
        ({**EDGES, "train": [0.5]}, "train: node id: has the element type float64"),
        ({**EDGES, "train": [0, 1, 0]}, "train: 1 node ids are repeated, the first is 0"),
        ({**EDGES, "train": [True]}, "train: the mask has 1 entry, but the graph has 3 nodes"),
        ({**EDGES, "train": [[1, 2]]}, "train: has shape [1, 2]; a split is a list of node ids"),
        ({**EDGES, "val": [0], "valid": [1]}, "the split 'valid' was given already"),
        (
            {"indptr": [0, 2, 1, 2], "indices": [0, 1]},
            "indptr: is 1 at position 2; pointers",
        ),
        ({"indptr": [0, 1, 3], "indices": [0, 1]}, "indptr: is 3 at position 2; pointers begin"),
        ({"indptr": [1, 2], "indices": [0, 1]}, "indptr: is 1 at position 0; pointers begin"),
        ({"indptr": [], "indices": [0]}, "indptr: has the element type float64"),
        ({"indptr": [[0]], "indices": [0]}, "indptr: has shape [1, 1], expected [N + 1]"),
        ({"indptr": [0, 1], "indices": [[0]]}, "indices: has shape [1, 1], expected [E]"),
        ({"indptr": [0, 1], "indices": [1]}, "source node id 1 at position 0 is outside [0, 1)"),
        (
            {"indptr": [0, 1], "indices": [0], "num_nodes": 5},
            "indptr: has 1 row, but the graph has 5",
        ),
    ],
)
def test_bad_arrays_are_named(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        convert(tmp_path, arrays)
    assert message in str(caught.value)
    assert str(tmp_path / "arrays.npz") in str(caught.value)
    assert not (tmp_path / "out.gnn").exists()


def test_an_empty_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "arrays").mkdir()
    with pytest.raises(NotFoundError, match=r"arrays has no file \*\.npy"):
        from_numpy(tmp_path / "arrays", tmp_path / "out.gnn")


def test_an_unknown_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="layout='coo' is unknown; choose one of csc, csr"):
        convert(tmp_path, EDGES, layout="coo")


@pytest.mark.long("the tests before it convert drawn graphs")
def test_facebook(tmp_path: Path, facebook_npz: Path) -> None:
    stored = read_store(
        from_numpy(facebook_npz, tmp_path / "f.gnn", options=ConvertOptions(undirected=True))
    )
    with np.load(facebook_npz) as arrays:
        np.testing.assert_array_equal(stored.attributes["x"], arrays["x"])
        np.testing.assert_array_equal(stored.attributes["y"], arrays["y"])
        for name in ("train", "valid", "test"):
            np.testing.assert_array_equal(stored.splits[name], arrays[name])
        both = np.concatenate([arrays["edge_index"], arrays["edge_index"][::-1]], axis=1)
    expected = np.unique(both[::-1], axis=1)[::-1]  # by target, then source
    np.testing.assert_array_equal(stored.edge_index, expected)
    np.testing.assert_array_equal(both[:, stored.edge_id], expected)


def test_a_split_that_the_budget_has_no_room_for(tmp_path: Path) -> None:
    num_nodes = 2**21
    np.savez(
        tmp_path / "a.npz", edge_index=[[0], [1]], num_nodes=num_nodes, train=np.arange(num_nodes)
    )
    with pytest.raises(
        BudgetError,
        match=r"(?s)train: reading it .* needs 50331648 bytes.* 50.3 MB of a split of 2097152",
    ):
        from_numpy(
            tmp_path / "a.npz", tmp_path / "a.gnn", options=ConvertOptions(memory_bytes=2**25)
        )
    np.savez_compressed(tmp_path / "b.npz", edge_index=[[0], [1]], num_nodes=2, test=np.arange(9))
    with pytest.raises(InputError, match="test: has 9 entries, but the graph has 2 nodes"):
        from_numpy(tmp_path / "b.npz", tmp_path / "b.gnn")


@pytest.mark.skipif(np.__version__ < "2", reason="arrays of NumPy 1 have at most 32 axes")
@pytest.mark.parametrize("num_columns", [1, 3])
def test_more_axes_than_a_store_takes(tmp_path: Path, num_columns: int) -> None:
    """Kept compressed or in pages: refused before anything of it is written."""
    x = np.zeros((2, *[1] * 31, num_columns), np.float32)
    with pytest.raises(InputError, match="the attribute 'x' has 33 axes, an array may have 32"):
        convert(tmp_path, {"edge_index": np.array([[0], [1]]), "x": x})


@pytest.mark.parametrize("name", ["batch", "batch_size", "input_id", "num_sampled_nodes"])
def test_attributes_named_as_parts_of_a_batch(tmp_path: Path, name: str) -> None:
    arrays = {"indptr": np.array([0, 0, 1]), "indices": np.array([0]), name: np.zeros((2, 5))}
    with pytest.raises(InputError, match=rf"'{name}'"):
        convert(tmp_path, arrays)
