"""An open store: arrays by name and id, PyG's two protocols, and life in other processes."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, Dataset, FeatureStore
from torch_geometric.data import GraphStore as PygGraphStore
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

import gnnstore
from gnnstore.converters import from_pyg
from gnnstore.errors import NotFoundError, UsageError
from gnnstore.testing.graphs import write_store
from tests.support.forks import ForkServer
from tests.support.stores import ExampleStore, write_example_store


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> ExampleStore:
    """Return a store that no test changes."""
    return write_example_store(tmp_path_factory.mktemp("store") / "a.gnn", shard_bytes=2**16)


@pytest.fixture
def store(example: ExampleStore) -> gnnstore.GraphStore:
    return gnnstore.open(example.path)


def test_counts_and_names(store: gnnstore.GraphStore) -> None:
    assert (store.num_nodes, store.num_edges) == (300, 1500)
    assert list(store.schema.node.attributes) == ["x", "y", "train_mask"]
    assert "num_nodes=300" in repr(store)
    assert repr(store.features) == "LazyTensor(nodes/node/x: float32 [300, 25], 30 kB on disk)"
    assert repr(store.splits) == "Splits(train: 150, valid: 150)"


def test_attributes_as_of_pyg_data(tmp_path: Path) -> None:
    """Those of the graph, masks of splits, and names that the store itself has."""
    data = Data(
        x=torch.arange(12.0).reshape(4, 3),
        edge_index=torch.tensor([[0, 1], [1, 2]]),
        features=torch.arange(4),
        labels=torch.arange(8).reshape(4, 2),
        name="small",
        names=["a", "b"],
        centre=torch.tensor([1.0, 2.0]),
        train_mask=torch.tensor([True, False, False, True]),
    )
    store: Any = gnnstore.open(from_pyg(data, tmp_path / "a.gnn"))
    assert store.name == "small"
    assert all(name in store for name in data.keys())  # noqa: SIM118
    assert "z" not in store
    store.names.append("c")
    assert store.names == ["a", "b"]
    hidden = Data(edge_index=data.edge_index, _lock="text", num_nodes=3)
    assert gnnstore.open(from_pyg(hidden, tmp_path / "b.gnn")).num_nodes == 3
    assert torch.equal(store.centre, data.centre)
    again = store.to_pyg()
    for key in data.keys():  # noqa: SIM118 - a method of PyG's
        assert (
            torch.equal(again[key], data[key])
            if torch.is_tensor(data[key])
            else (again[key] == data[key])
        ), key
    assert store.x[None].shape == (1, 4, 3)
    assert torch.equal(store.x[None, 1], data.x[None, 1])


def test_a_mask_for_each_of_several_splits(tmp_path: Path) -> None:
    edges, masks = torch.tensor([[0], [1]]), torch.eye(4).bool()
    data = Data(edge_index=edges, train_mask=masks, num_nodes=4)
    store: Any = gnnstore.open(from_pyg(data, tmp_path / "a.gnn"))
    with pytest.raises(NotFoundError, match="there is no split 'train'"):
        store.splits["train"]
    loader = gnnstore.NeighborLoader(store, [1], store.train_mask[:, 2])
    assert [batch.n_id.tolist() for batch in loader] == [[2]]


def test_masks_of_splits(store: gnnstore.GraphStore) -> None:
    lazy: Any = store
    assert lazy.val_mask.shape == (300,)
    assert torch.equal(lazy.val_mask, store.to_pyg().val_mask)
    assert lazy.val_mask.sum() == len(store.splits["valid"])
    with pytest.raises(AttributeError, match="has no attribute 'test_mask'"):
        lazy.test_mask  # noqa: B018


@pytest.mark.filterwarnings("ignore:Found floating-point labels")
@pytest.mark.parametrize(
    ("y", "num_classes"),
    [
        (np.array([0, 2, 1, 0]), 3),
        (np.array([[0, 1, 0]] * 4), 3),
        (np.array([0.5, 2.5, 0.5, 1.0]), 3),
        (np.empty((4, 0)), 0),
        (None, 0),
    ],
)
def test_classes_and_widths_are_counted_as_by_pyg(tmp_path: Path, y: Any, num_classes: int) -> None:
    attributes = {} if y is None else {"y": y, "edge_attr": np.ones(3)}
    path = write_store(tmp_path / "a.gnn", [[0, 1, 3], [1, 2, 0]], **attributes)
    found = gnnstore.open(path)
    data = found.to_pyg()
    assert found.num_classes == num_classes
    if y is not None and y.size:
        assert Dataset._infer_num_classes(None, data.y) == num_classes
    assert (found.num_node_features, data.num_node_features) == (0, 0)
    assert found.num_edge_features == data.num_edge_features == len(attributes) // 2


def test_a_graph_without_edges_has_empty_ones(tmp_path: Path) -> None:
    data = Data(
        x=torch.ones(2, 3),
        edge_index=torch.zeros(2, 0, dtype=torch.long),
        edge_attr=torch.zeros(0, 4),
    )
    store = gnnstore.open(from_pyg(data, tmp_path / "a.gnn"))
    found = store.to_pyg()
    assert (found.edge_index.shape, found.edge_attr.shape) == ((2, 0), (0, 4))
    assert (store.num_edge_features, store.edge_attr.shape) == (4, (0, 4))


def test_features_by_id(example: ExampleStore, store: gnnstore.GraphStore) -> None:
    x = example.arrays["nodes/node/x"]
    ids = np.array([5, 299, 0, 5], dtype=np.uint16)
    np.testing.assert_array_equal(store.features[ids], x[ids])
    assert store.features[[]].shape == (0, 25)
    assert (store.features.shape, store.features.ndim) == ((300, 25), 2)
    assert (len(store.features), store.features.dtype) == (300, torch.float32)


def test_bits_of_bfloat16_for_numpy(tmp_path: Path) -> None:
    path = write_example_store(tmp_path / "a.gnn", feature_dtype="bfloat16").path
    features = gnnstore.open(path).features
    assert features[[3, 1]].dtype == torch.bfloat16
    bits = features.read()
    assert bits.dtype == np.uint16
    assert torch.equal(
        torch.from_numpy(bits).view(torch.int16), features.tensor().view(torch.int16)
    )


def test_a_split_that_is_not_there(store: gnnstore.GraphStore) -> None:
    with pytest.raises(
        KeyError, match="there is no split 'nope'; the store's splits: train, valid"
    ):
        store.splits["nope"]
    with pytest.raises(NotFoundError, match="there is no split 'nope'"):
        store.splits["nope"]
    assert store.splits.get("nope") is None


def test_labels_splits_and_original_ids(example: ExampleStore, store: gnnstore.GraphStore) -> None:
    np.testing.assert_array_equal(store.labels, example.arrays["nodes/node/y"])
    assert list(store.splits) == ["train", "valid"]
    np.testing.assert_array_equal(store.splits["train"], np.arange(150))
    np.testing.assert_array_equal(store.splits["val"], store.splits["valid"])
    assert "val" in store.splits
    assert "test" not in store.splits
    np.testing.assert_array_equal(store.original_ids, np.arange(300) * 10)


def test_graph_level_attributes(example: ExampleStore, store: gnnstore.GraphStore) -> None:
    attributes = store.graph_attributes()
    assert attributes["name"] == "example"
    np.testing.assert_array_equal(attributes["weights"], example.arrays["graph/weights"])


def test_missing_attribute_lists_those_there_are(store: gnnstore.GraphStore) -> None:
    with pytest.raises(NotFoundError, match=r"no node attribute 'z'; there are: x, y, train_mask"):
        store.node_attribute("z")
    with pytest.raises(NotFoundError, match=r"no edge attribute 'z'; there are: edge_attr"):
        store.edge_attribute("z")


@pytest.mark.parametrize("mode", ["memory", "mmap"])
def test_adjacency(example: ExampleStore, store: gnnstore.GraphStore, mode: str) -> None:
    topology = store.topology(mode)  # type: ignore[arg-type]
    csc = topology.columns()
    np.testing.assert_array_equal(csc.indptr, example.arrays["edges/node__to__node/indptr"])
    np.testing.assert_array_equal(csc.indices, example.arrays["edges/node__to__node/indices"])
    assert store.topology(mode) is topology  # type: ignore[arg-type]


# PyG --------------------------------------------------------------------------------------


def test_is_both_of_pygs_stores(store: gnnstore.GraphStore) -> None:
    assert isinstance(store, FeatureStore)
    assert isinstance(store, PygGraphStore)


def test_pyg_feature_store(example: ExampleStore, store: gnnstore.GraphStore) -> None:
    x = torch.from_numpy(example.arrays["nodes/node/x"])
    names = [attr.attr_name for attr in store.get_all_tensor_attrs()]
    assert names == ["x", "y", "train_mask"]
    assert torch.equal(store.get_tensor(group_name="node", attr_name="x", index=None), x)
    index = torch.tensor([4, 2])
    assert torch.equal(store.get_tensor(group_name="node", attr_name="x", index=index), x[index])
    assert torch.equal(store["node", "x", index], x[index])
    assert torch.equal(store["node"].x[3:9], x[3:9])
    assert store.get_tensor_size(group_name="node", attr_name="x") == (300, 25)
    with pytest.raises(KeyError, match="no tensor 'x' of 'ghost'"):
        store.get_tensor(group_name="ghost", attr_name="x", index=None)


def test_pyg_graph_store(example: ExampleStore, store: gnnstore.GraphStore) -> None:
    (attr,) = store.get_all_edge_attrs()
    assert (attr.edge_type, attr.layout, attr.is_sorted) == (None, EdgeLayout.CSC, True)
    assert attr.size == (300, 300)
    row, colptr = store.get_edge_index(attr)
    np.testing.assert_array_equal(row, example.arrays["edges/node__to__node/indices"])
    np.testing.assert_array_equal(colptr, example.arrays["edges/node__to__node/indptr"])
    assert [part.tolist() for part in store.csc()[:2]] == [row.tolist(), colptr.tolist()]
    for other in (EdgeAttr(None, EdgeLayout.COO), EdgeAttr(("a", "to", "b"), EdgeLayout.CSC)):
        with pytest.raises(KeyError):
            store.get_edge_index(other)
    source, target, _ = store.coo()
    np.testing.assert_array_equal(source, row)
    np.testing.assert_array_equal(target, np.repeat(np.arange(300), np.diff(colptr)))


def test_pyg_cannot_write(store: gnnstore.GraphStore) -> None:
    with pytest.raises(UsageError, match="a store is immutable; change batches with transform="):
        store.put_tensor(torch.zeros(300, 1), group_name="node", attr_name="z", index=None)
    with pytest.raises(UsageError, match="a store is immutable"):
        store.remove_tensor(group_name="node", attr_name="x", index=None)
    (attr,) = store.get_all_edge_attrs()
    with pytest.raises(UsageError, match="a store is immutable"):
        store.put_edge_index(store.get_edge_index(attr), attr)
    with pytest.raises(UsageError, match="a store is immutable"):
        store.remove_edge_index(attr)


def test_what_is_on_disk_cannot_be_assigned_to(store: gnnstore.GraphStore) -> None:
    """No loader would see it."""
    anything: Any = store
    for name in ("x", "y", "edge_index"):
        with pytest.raises(
            UsageError, match=f"'{name}' cannot be assigned to; change batches with"
        ):
            setattr(anything, name, torch.zeros(300))
    with pytest.raises(UsageError, match="'val_mask' cannot be assigned to"):
        anything.val_mask = torch.zeros(300)
    with pytest.raises(UsageError, match="'x' cannot be deleted"):
        del anything.x
    assert [] not in anything
    anything.note = "mine"
    assert anything.note == "mine"
    anything.note = "yours"
    assert anything.note == "yours"


@pytest.mark.parametrize("name", ["selected", "assigned", "reader", "select", "topology"])
def test_names_of_its_own_cannot_be_assigned_to(store: Any, name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' is a name of the store's own; assign to anoth"):
        setattr(store, name, torch.rand(300) > 0.5)
    gnnstore.NeighborLoader(store, [2])


def test_writes_in_place_are_refused(store: Any) -> None:
    """Loaders would not see them."""
    with pytest.raises(UsageError, match="node/y: it belongs to a store and cannot be written to"):
        store.y[:5] = 0
    store.labels[:5] = -1  # a copy
    assert torch.equal(store.labels, store.y)


def test_what_a_store_has_already_may_be_assigned(store: gnnstore.GraphStore) -> None:
    """As scripts do that prepare a `Data`: nothing changes."""
    anything: Any = store
    anything.y = anything.y
    anything.edge_index = anything.edge_index
    anything.num_nodes = store.num_nodes
    anything.num_classes = store.num_classes
    for name, value in (("num_nodes", 7), ("num_classes", 99), ("y", anything.x), ("labels", 3)):
        with pytest.raises(UsageError, match=f"'{name}' cannot be assigned to"):
            setattr(anything, name, value)


def test_a_store_stays_where_it_is(store: gnnstore.GraphStore) -> None:
    assert store.to("cpu") is store.to(torch.device("cpu"), non_blocking=True) is store
    message = r"stays on disk .* move each batch \(batch\.to\(device\)\)"
    for device in ("cuda:1", "meta"):
        with pytest.raises(UsageError, match=message):
            store.to(device, "x")


# Processes --------------------------------------------------------------------------------


def test_pickles_as_its_path(store: gnnstore.GraphStore) -> None:
    store.topology("memory")
    data = pickle.dumps(store)
    assert len(data) < 1000
    assert pickle.loads(data).path == store.path  # noqa: S301 - our own bytes


def _sum_of_row(store: gnnstore.GraphStore, row: int, out: multiprocessing.Queue[float]) -> None:
    out.put(float(store.features[row].sum()))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_works_in_a_forked_process(store: gnnstore.GraphStore) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_sum_of_row, args=(store, 12, queue))
    process.start()
    assert queue.get(timeout=60) == pytest.approx(float(store.features[12].sum()))
    process.join(60)
    assert process.exitcode == 0


def test_works_in_an_unrelated_process(store: gnnstore.GraphStore, forks: ForkServer) -> None:
    done = forks.run("print(float(given.features[12].sum()))", given=store)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(float(store.features[12].sum()))


def test_read_only_files(example: ExampleStore) -> None:
    paths = [example.path, *example.path.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        store = gnnstore.open(example.path)
        np.testing.assert_array_equal(store.features[[1]], example.arrays["nodes/node/x"][[1]])
        assert store.topology("mmap").columns().num_edges == 1500
    finally:
        for path in paths:
            path.chmod(0o700)
