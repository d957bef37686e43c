"""`Data` into a store: every attribute, and torch_geometric's own order of columns."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.utils import to_csc
from torch_geometric.utils import add_remaining_self_loops, coalesce, to_undirected

import gnnstore
from gnnstore.converters import ConvertOptions, from_pyg, reorder
from gnnstore.errors import InputError, UsageError
from gnnstore.formats import StoreReader
from gnnstore.testing.graphs import random_graph
from tests.support.effort import choose
from tests.support.graphs import read_store
from tests.support.packing import pack

OVERWRITE = ConvertOptions(overwrite=True)


def data_of(num_nodes: int = 30, num_edges: int = 200, *, coalesced: bool = False) -> Data:
    graph = random_graph(
        num_nodes, num_edges, seed=3, feature_dim=4, num_classes=3, coalesced=coalesced
    )
    return Data(
        x=torch.from_numpy(graph.attributes["x"]),
        y=torch.from_numpy(graph.attributes["y"]),
        edge_index=torch.from_numpy(graph.edge_index),
        edge_attr=torch.arange(float(graph.num_edges)),
    )


@pytest.mark.parametrize("coalesced", [True, False])
def test_columns_are_those_of_torch_geometric(tmp_path: Path, coalesced: bool) -> None:
    data = data_of(coalesced=coalesced)
    if coalesced:
        data.edge_index = data.edge_index[:, torch.randperm(data.num_edges)]
    stored = read_store(from_pyg(data, tmp_path / "g.gnn"))
    colptr, row, perm = to_csc(data, device="cpu")
    indptr = np.concatenate(
        [[0], np.cumsum(np.bincount(stored.edge_index[1], minlength=data.num_nodes))]
    )
    np.testing.assert_array_equal(indptr, colptr)
    if coalesced:
        # Without parallel edges a column has one order by source: PyG's, once sorted.
        columns = np.repeat(np.arange(data.num_nodes), np.diff(colptr))
        order = np.lexsort((row, columns))
        np.testing.assert_array_equal(stored.edge_index[0], row[order])
        np.testing.assert_array_equal(stored.edge_id, perm[order])
        _, edge_attr = coalesce(data.edge_index, data.edge_attr, sort_by_row=False)
        np.testing.assert_array_equal(stored.edge_attributes["edge_attr"], edge_attr)
    np.testing.assert_array_equal(data.edge_index[:, stored.edge_id], stored.edge_index)
    np.testing.assert_array_equal(
        stored.edge_attributes["edge_attr"], data.edge_attr[stored.edge_id]
    )


def test_coalesced_input_keeps_its_order(tmp_path: Path) -> None:
    data = data_of()
    data.edge_index, data.edge_attr = coalesce(data.edge_index, data.edge_attr, sort_by_row=False)
    stored = read_store(from_pyg(data, tmp_path / "g.gnn"))
    np.testing.assert_array_equal(stored.edge_index, data.edge_index)
    np.testing.assert_array_equal(stored.edge_id, np.arange(data.num_edges))


def test_undirected_has_the_edges_of_to_undirected(tmp_path: Path) -> None:
    data = data_of()
    del data.edge_attr  # which differs among equal edges
    stored = read_store(from_pyg(data, tmp_path / "g.gnn", options=ConvertOptions(undirected=True)))
    expected = to_undirected(data.edge_index, num_nodes=data.num_nodes)
    np.testing.assert_array_equal(stored.edge_index, coalesce(expected, sort_by_row=False))


def test_added_self_loops_are_those_of_torch_geometric(tmp_path: Path) -> None:
    data = data_of()
    data.edge_weight = data.edge_attr + 2
    options = ConvertOptions(self_loops="add")
    stored = read_store(from_pyg(data, tmp_path / "g.gnn", options=options))
    loops = stored.edge_index[0] == stored.edge_index[1]
    assert set(stored.edge_index[0, loops]) == set(range(data.num_nodes))
    new = stored.edge_id >= data.num_edges
    have = set(data.edge_index[0, data.edge_index[0] == data.edge_index[1]].tolist())
    assert sorted(stored.edge_index[0, new]) == [v for v in range(30) if v not in have]
    assert np.all(np.diff(stored.edge_id[new]) == 1)
    assert set(stored.edge_attributes["edge_attr"][new]) == {0.0}
    _, weights = add_remaining_self_loops(data.edge_index, data.edge_weight)
    assert set(stored.edge_attributes["edge_weight"][new]) == {weights[-1].item()} == {1.0}
    old = data.edge_weight[stored.edge_id[~new]]
    np.testing.assert_array_equal(stored.edge_attributes["edge_weight"][~new], old)


def test_a_bfloat16_weight_of_an_added_loop_is_one(tmp_path: Path) -> None:
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    data.edge_weight = torch.tensor([3.0], dtype=torch.bfloat16)
    path = from_pyg(data, tmp_path / "g.gnn", options=ConvertOptions(self_loops="add"))
    bits = read_store(path).edge_attributes["edge_weight"]
    weights = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    assert weights.tolist() == [1.0, 3.0, 1.0]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.bool,
        *choose(
            [],
            [
                torch.int64,
                torch.uint8,
                torch.float64,
                torch.float16,
                torch.int32,
                torch.int16,
                torch.int8,
            ],
        ),
    ],
)
def test_attributes_of_every_type_and_shape(tmp_path: Path, dtype: torch.dtype) -> None:
    def values(*shape: int) -> torch.Tensor:
        return torch.randint(0, 2, shape).to(dtype)

    data = data_of()
    attributes = {
        "scalar": values(30),
        "narrow": values(30, 1),
        "wide": values(30, 9),
        "cube": values(30, 3, 2),
        "empty": values(30, 0),
        "some_index": values(2, 30),  # rows last, as PyG has it for every "index"
        "edge_label_index": values(2, 200),
        "edge_thing": values(200, 3),
        "strided": values(4, 30).T,
        "other": values(5, 6),
    }
    for name, value in attributes.items():
        data[name] = value
    path = from_pyg(data, tmp_path / "g.gnn")
    stored = read_store(path)
    schema = StoreReader.open(path).schema

    def check(name: str, found: Any, expected: torch.Tensor) -> None:
        bits = expected.contiguous().view(torch.int16) if dtype == torch.bfloat16 else expected
        np.testing.assert_array_equal(found.astype(bits.numpy().dtype), bits.numpy())

    for name in ("scalar", "narrow", "wide", "cube", "empty", "strided"):
        check(name, stored.attributes[name], attributes[name])
        assert schema.node.attributes[name].dtype == str(dtype).removeprefix("torch.")
    check("some_index", stored.attributes["some_index"].T, attributes["some_index"])
    assert schema.node.attributes["some_index"].cat_dim == -1
    edges = stored.edge_id
    check("edge_thing", stored.edge_attributes["edge_thing"], attributes["edge_thing"][edges])
    check(
        "edge_label_index",
        stored.edge_attributes["edge_label_index"].T,
        attributes["edge_label_index"][:, edges],
    )
    assert schema.edge.attributes["edge_label_index"].cat_dim == -1
    check("other", stored.graph_arrays["other"], attributes["other"])


def test_graph_values_come_back_as_they_are(tmp_path: Path) -> None:
    data = data_of()
    values = {"name": "test", "k": 3, "rate": 0.5, "yes": True, "list": [1, "a"], "d": {"a": [1]}}
    for name, value in values.items():
        data[name] = value
    data.numpy_number = np.float64(2.5)
    data.tensor_number = torch.tensor(7)
    path = from_pyg(data, tmp_path / "g.gnn")
    schema = StoreReader.open(path).schema
    assert schema.graph_attributes == {**values, "numpy_number": 2.5}
    assert read_store(path).graph_arrays["tensor_number"] == 7


def test_masks_are_attributes_and_splits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = data_of()
    data.train_mask = torch.arange(30) < 10
    data.val_mask = torch.arange(30) == 12
    data.test_mask = torch.zeros(30, 4, dtype=torch.bool)  # several splits: none is the one
    stored = read_store(from_pyg(data, tmp_path / "g.gnn"))
    assert {name: ids.tolist() for name, ids in stored.splits.items()} == {
        "train": list(range(10)),
        "valid": [12],
    }
    np.testing.assert_array_equal(stored.attributes["train_mask"], data.train_mask)
    assert stored.attributes["test_mask"].shape == (30, 4)
    assert "data.test_mask is bool [30, 4], and no mask of a split" in caplog.text
    data.train_mask = data.train_mask[:, None]
    data.val_mask = data.val_mask.to(torch.uint8)
    stored = read_store(from_pyg(data, tmp_path / "columns.gnn"))
    assert {name: ids.tolist() for name, ids in stored.splits.items()} == {"train": [*range(10)]}
    assert "data.val_mask is uint8 [30], and no mask of a split" in caplog.text


@pytest.mark.parametrize(
    ("given", "option", "stored"),
    [
        (torch.int64, None, "int64"),
        (torch.int32, None, "int64"),
        (torch.int32, "int64", "int64"),
        (torch.int64, "int32", "int32"),
    ],
)
def test_the_type_of_ids_in_batches(
    tmp_path: Path, given: torch.dtype, option: Any, stored: str
) -> None:
    data = data_of()
    data.edge_index = data.edge_index.to(given)
    path = from_pyg(data, tmp_path / "g.gnn", options=ConvertOptions(index_dtype=option))
    assert StoreReader.open(path).schema.index_dtype == stored


def test_a_count_of_nodes_is_remembered_if_it_was_said(tmp_path: Path) -> None:
    edge_index = torch.tensor([[0, 1], [1, 2]])
    for data, num_nodes, explicit in (
        (Data(edge_index=edge_index), 3, False),
        (Data(edge_index=edge_index, num_nodes=7), 7, True),
        (Data(x=torch.ones(4, 2)), 4, False),
    ):
        path = from_pyg(data, tmp_path / "g.gnn", options=OVERWRITE)
        schema = StoreReader.open(path).schema
        assert schema.node.num_nodes == num_nodes
        assert schema.explicit_num_nodes is explicit


def test_a_memory_map_is_an_attribute(tmp_path: Path) -> None:
    data = data_of()
    mapped = np.memmap(tmp_path / "x.bin", dtype=np.float32, mode="w+", shape=(30, 4))
    mapped[:] = np.arange(120).reshape(30, 4)
    data.x = mapped
    stored = read_store(from_pyg(data, tmp_path / "g.gnn"))
    np.testing.assert_array_equal(stored.attributes["x"], mapped)


def test_an_edge_index_with_metadata_is_an_edge_index(tmp_path: Path) -> None:
    data = data_of()
    plain = read_store(from_pyg(data, tmp_path / "g.gnn"))
    data.edge_index = EdgeIndex(data.edge_index, sparse_size=(30, 30))
    stored = read_store(from_pyg(data, tmp_path / "g.gnn", options=OVERWRITE))
    np.testing.assert_array_equal(stored.edge_index, plain.edge_index)


def test_gradients_and_strange_names_do_not_matter(tmp_path: Path) -> None:
    data = data_of()
    data.x = data.x.requires_grad_()
    data["a/b ~%"] = torch.ones(30)
    stored = read_store(from_pyg(data, tmp_path / "g.gnn"))
    assert stored.attributes["a/b ~%"].tolist() == [1.0] * 30


@pytest.mark.parametrize("feature_dtype", ["float16", "int8", *choose([], ["bfloat16", "float64"])])
def test_features_are_cast(tmp_path: Path, feature_dtype: str) -> None:
    data = data_of()
    data.x = torch.randint(-100, 100, (30, 5)).float()
    options = ConvertOptions(feature_dtype=feature_dtype)
    path = from_pyg(data, tmp_path / "g.gnn", options=options)
    assert StoreReader.open(path).schema.node.attributes["x"].dtype == feature_dtype
    found = torch.from_numpy(read_store(path).attributes["x"])
    if feature_dtype == "bfloat16":
        found = found.view(torch.bfloat16)
    assert torch.equal(found, data.x.to(found.dtype))


class Odd:
    """Something that no store can hold."""


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("thing", Odd(), "data.thing: a Odd like this cannot be stored as JSON"),
        ("thing", (1, Odd()), "data.thing: a tuple with Odd like this cannot be stored"),
        (
            "thing",
            [dt.datetime(2020, 1, 1)] * 30,
            "data.thing: a list with datetime like this",
        ),
        ("thing", {1: Odd()}, "data.thing: a dict like this cannot be stored"),
        ("y", torch.ones(20), "data.y: has shape [20], and there are 30 nodes and 5 edges; give"),
        ("num_nodes", float("nan"), "data.num_nodes: is nan, expected one non-negative integer"),
        ("num_nodes", torch.tensor([30, 31]), "data.num_nodes: is tensor([30, 31]), expected one"),
        ("num_nodes", 30.5, "data.num_nodes: is 30.5, expected one non-negative integer"),
        ("x", torch.tensor(3.0), "data: the number of nodes is unknown (Dimension specified"),
        ("y", [1, 2, 3], "data.y: has shape [3], and there are 30 nodes and 5 edges"),
        ("val_mask", torch.ones(29) > 0, "data.val_mask: has shape [29], and there are"),
        ("edge_attr", torch.ones(30, 2), "give it a row for each edge"),
        ("edge_weight", torch.ones(4), "data.edge_weight: has shape [4], and there are"),
        ("thing", float("nan"), "a float like this cannot be stored as JSON, which has no NaN"),
        ("thing", [torch.ones(2)], "data.thing: a list with Tensor like this cannot be stored"),
        (
            "thing",
            np.array(["a"]),
            "data.thing: elements of type str32 cannot be stored; use numbers",
        ),
        (
            "thing",
            torch.ones(2, dtype=torch.complex64),
            "elements of type complex64 cannot be stored",
        ),
        (
            "x",
            torch.ones(30, 2).to(torch.float8_e5m2),
            "data.x: a torch.strided tensor of float8_e5m2 cannot be stored",
        ),
        (
            "x",
            torch.ones(30, 2).to_sparse(),
            "data.x: a torch.sparse_coo tensor of float32 cannot be stored",
        ),
        (
            "x",
            torch.ones(30, 2, device="meta"),
            "data.x: a torch.strided tensor of float32 cannot be stored",
        ),
        (
            "thing",
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            "tensor of float32 cannot be stored",
        ),
        (
            "num_edges",
            torch.tensor([1, 2]),
            "PyG cannot decide whether it belongs to nodes or",
        ),
        ("adj_t", torch.ones(30, 30), "data.adj_t: adjacency matrices cannot be converted"),
        ("edge_index", [[0, 1], [1, 0]], "data.edge_index: expected a tensor of shape [2, E]"),
        ("edge_index", torch.ones(3, 5).long(), "data.edge_index: has shape [3, 5], expected"),
        ("edge_index", torch.ones(2, 5), "data.edge_index: source node id: has the element type"),
        (
            "edge_index",
            torch.full((2, 5), 30),
            "source node id 30 at position 0 is outside [0, 30)",
        ),
    ],
)
def test_what_cannot_be_stored_is_named(
    tmp_path: Path, name: str, value: Any, message: str
) -> None:
    data = data_of(num_edges=5)
    data[name] = value
    with pytest.raises(InputError) as caught:
        from_pyg(data, tmp_path / "g.gnn")
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_other_kinds_of_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a graph without a node type cannot be stored"):
        from_pyg(HeteroData(), tmp_path / "g.gnn")
    data = HeteroData({"a": {"num_nodes": "3"}, ("a", "r", "a"): {"edge_index": [[0], [0]]}})
    with pytest.raises(InputError, match=r"data\['a'\].num_nodes: is 3, expected one non-negative"):
        from_pyg(data, tmp_path / "g.gnn")
    with pytest.raises(
        UsageError,
        match=r"expected a torch_geometric\.data\.Data or HeteroData, or a pair .*, got dict",
    ):
        from_pyg({}, tmp_path / "g.gnn")
    with pytest.raises(InputError, match="data has no number of nodes"):
        from_pyg(Data(), tmp_path / "g.gnn")


def test_a_lazily_negated_tensor(tmp_path: Path) -> None:
    data = Data(x=torch._neg_view(torch.ones(2, 3)), edge_index=torch.tensor([[0], [1]]))
    reader = StoreReader.open(from_pyg(data, tmp_path / "a.gnn"))
    assert (reader.read(reader.schema.node.attributes["x"]) == -1).all()


def test_an_attribute_with_the_name_of_zarrs_own_file(tmp_path: Path) -> None:
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    data["zarr.json"] = torch.arange(4.0).view(2, 2)
    reader = StoreReader.open(from_pyg(data, tmp_path / "a.gnn"))
    spec = reader.schema.node.attributes["zarr.json"]
    assert reader.read(spec).tolist() == [[0, 1], [2, 3]]


# --- a pair of PyG's stores -----------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_a_pair_of_stores(tmp_path: Path, layout: str) -> None:
    from torch_geometric.testing import MyFeatureStore, MyGraphStore  # noqa: PLC0415

    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(50, (2, 400), generator=generator)
    x, mask = torch.rand(50, 7, generator=generator), torch.arange(50) < 20
    expected = Data(x=x, train_mask=mask, edge_index=edge_index)
    features, graph = MyFeatureStore(), MyGraphStore()
    features.put_tensor(x, group_name=None, attr_name="x", index=None)
    features.put_tensor(mask, group_name=None, attr_name="train_mask", index=None)
    order = {"coo": None, "csr": edge_index[0], "csc": edge_index[1]}[layout]
    rows, columns = edge_index
    if order is not None:
        place = order.argsort(stable=True)
        begins = torch.cat(
            [torch.zeros(1, dtype=torch.long), order.bincount(minlength=50).cumsum(0)]
        )
        rows, columns = rows[place], columns[place]
        rows, columns = (begins, columns) if layout == "csr" else (rows, begins)
    graph.put_edge_index((rows, columns), edge_type=None, layout=layout, size=(50, 50))
    found = gnnstore.open(from_pyg((features, graph), tmp_path / "a.gnn"))
    same = gnnstore.open(from_pyg(expected, tmp_path / "b.gnn"))
    assert torch.equal(found.to_pyg().x, x)
    assert found.splits["train"].tolist() == list(range(20))
    for name in ("indptr", "indices"):
        mine, theirs = (getattr(store.topology().columns(), name) for store in (found, same))
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("size", [None, (None, None), (3, None)])
def test_edges_whose_size_is_not_known(tmp_path: Path, size: Any) -> None:
    from torch_geometric.testing import MyFeatureStore, MyGraphStore  # noqa: PLC0415

    features, graph = MyFeatureStore(), MyGraphStore()
    features.put_tensor(torch.rand(3, 2), group_name=None, attr_name="x", index=None)
    ends = torch.tensor([0, 1]), torch.tensor([1, 2])
    graph.put_edge_index(ends, edge_type=None, layout="coo", size=size)
    assert gnnstore.open(from_pyg((features, graph), tmp_path / "a.gnn")).num_nodes == 3


def test_a_data_is_both_stores(tmp_path: Path) -> None:
    data = data_of()
    pair = read_store(from_pyg((data, data), tmp_path / "a.gnn"))
    alone = read_store(from_pyg(data, tmp_path / "b.gnn"))
    np.testing.assert_array_equal(pair.attributes["x"], alone.attributes["x"])
    assert pair.pairs() == alone.pairs()


def test_a_store_of_ours_is_a_pair_too(tmp_path: Path) -> None:
    data = Data(x=torch.rand(5, 2), edge_index=torch.tensor([[0, 1, 4], [1, 2, 0]]))
    store = gnnstore.open(from_pyg(data, tmp_path / "a.gnn"))
    again = gnnstore.open(from_pyg((store, store), tmp_path / "b.gnn")).to_pyg()
    assert torch.equal(again.x, data.x)
    assert {tuple(edge) for edge in again.edge_index.T.tolist()} == {(0, 1), (1, 2), (4, 0)}


def test_a_pair_with_several_types(tmp_path: Path) -> None:
    from torch_geometric.testing import MyFeatureStore, MyGraphStore  # noqa: PLC0415

    features, graph = MyFeatureStore(), MyGraphStore()
    for group in ("paper", "author"):
        features.put_tensor(torch.rand(3, 2), group_name=group, attr_name="x", index=None)
    writes = torch.tensor([[0, 2], [1, 1]])
    graph.put_edge_index(
        (writes[0], writes[1]), ("author", "writes", "paper"), layout="coo", size=(3, 3)
    )
    store = gnnstore.open(from_pyg((features, graph), tmp_path / "a.gnn"))
    assert [(node.name, node.num_nodes) for node in store.schema.node_types] == [
        *(("paper", 3), ("author", 3))
    ]
    for group in ("paper", "author"):
        assert torch.equal(
            store.get_tensor(group_name=group, attr_name="x", index=None),
            features.get_tensor(group_name=group, attr_name="x", index=None),
        )
    columns = store.topology().columns(("author", "writes", "paper"))
    assert (columns.indices.tolist(), columns.indptr.tolist()) == ([0, 2], [0, 0, 2, 2])
    with pytest.raises(UsageError, match=r"or a pair .*, got tuple"):
        from_pyg((features, features), tmp_path / "b.gnn")


def test_stores_with_more_rows_than_the_sizes_of_their_edges(tmp_path: Path) -> None:
    from torch_geometric.testing import MyFeatureStore, MyGraphStore  # noqa: PLC0415

    ends = torch.tensor([0, 1]), torch.tensor([1, 2])
    features, graph = MyFeatureStore(), MyGraphStore()
    feat = torch.arange(10.0)
    features.put_tensor(feat, group_name=None, attr_name="feat", index=None)
    graph.put_edge_index(ends, edge_type=None, layout="coo", size=(3, 3))
    store = gnnstore.open(from_pyg((features, graph), tmp_path / "a.gnn"))
    assert (store.num_nodes, store.feat.tolist()) == (10, feat.tolist())
    features.put_tensor(torch.ones(9), group_name=None, attr_name="time", index=None)
    with pytest.raises(InputError, match="time: has 9 rows, and there are 10 nodes"):
        from_pyg((features, graph), tmp_path / "b.gnn")


def test_groups_of_tensors_and_edges_without_a_type(tmp_path: Path) -> None:
    from torch_geometric.testing import MyFeatureStore, MyGraphStore  # noqa: PLC0415

    features, graph = MyFeatureStore(), MyGraphStore()
    features.put_tensor(torch.eye(3), group_name="paper", attr_name="x", index=None)
    ends = torch.tensor([0, 1]), torch.tensor([1, 2])
    graph.put_edge_index(ends, edge_type=None, layout="coo", size=(3, 3))
    store = gnnstore.open(from_pyg((features, graph), tmp_path / "a.gnn"))
    assert torch.equal(store.to_pyg().x, torch.eye(3))
    features.put_tensor(torch.eye(3), group_name="author", attr_name="x", index=None)
    with pytest.raises(InputError, match=r"edges without a type .* 'author', 'paper'; give each a"):
        from_pyg((features, graph), tmp_path / "b.gnn")


# --- values without a row for each node or edge ---------------------------------------------------


def test_one_row_of_y_is_a_label_of_the_graph(tmp_path: Path) -> None:
    data = data_of(num_edges=5)
    for i, y in enumerate((torch.tensor([4]), torch.tensor([[0.5, 1, 2]]), torch.tensor(4))):
        data.y = y
        store = gnnstore.open(from_pyg(data, tmp_path / f"{i}.gnn"))
        assert torch.equal(store.to_pyg().y, y)
        assert store.num_classes == (3 if i == 1 else 5)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_attributes_of_edges(tmp_path: Path, dtype: torch.dtype) -> None:
    data = Data(edge_index=torch.tensor([[1, 0, 2, 0], [2, 1, 0, 0]]), num_nodes=3)
    data.edge_attr = torch.tensor([7, 5, 6, 200]).to(dtype)
    data.y = torch.tensor([2, 0, 1]).to(dtype)
    store = gnnstore.open(from_pyg(data, tmp_path / "g.gnn"))
    for found in (store.to_pyg().edge_attr, store.edge_attr.tensor(), store.edge_attr[:]):
        assert (found.dtype, found.tolist()) == (dtype, [7, 5, 6, 200])
    assert store.num_classes == 3


def test_classes_by_type(tmp_path: Path) -> None:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.ones(3, 1), torch.ones(2, 1)
    data["a"].y = torch.tensor([0, 3, 1])
    data["a", "to", "b"].edge_index = torch.tensor([[0], [1]])
    store = gnnstore.open(from_pyg(data, tmp_path / "a.gnn"))
    assert (store.num_classes, store["a"].num_classes, store["b"].num_classes) == (4, 4, 0)
    data["b"].y = torch.eye(2)
    store = gnnstore.open(from_pyg(data, tmp_path / "b.gnn"))
    assert (store["a"].num_classes, store["b"].num_classes) == (4, 2)
    with pytest.raises(UsageError, match=r"of several types have y: write store\['a'\]"):
        _ = store.num_classes


def test_what_transforms_leave_in_the_types_of_a_heterodata(tmp_path: Path) -> None:
    writes, cites = ("a", "writes", "p"), ("p", "cites", "p")
    data = HeteroData()
    data["a"].x, data["p"].x = torch.eye(4), torch.eye(6)
    data[writes].edge_index = torch.tensor([[0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 4, 5]])
    data[cites].edge_index = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    # As RandomLinkSplit and AddMetaPaths leave them.
    data[writes].edge_label_index = torch.tensor([[0, 1, 3], [5, 1, 3]])
    data[writes].edge_label = torch.tensor([0.0, 1, 1])
    data.metapath_dict = {("a", "metapath_0", "p"): [writes, cites]}
    data[cites].source, data["p"].scale = "a file", torch.tensor([2, 3, 4])
    path = from_pyg(data, tmp_path / "g.gnn")
    store = gnnstore.open(path)
    assert store[cites].source == "a file"
    assert store[writes].edge_label.tolist() == [0, 1, 1]
    assert store["p"].scale.tolist() == [2, 3, 4]
    loader = gnnstore.NeighborLoader(store, num_neighbors=[2], input_nodes="p", batch_size=6)
    batches = pack(path, [2], "p", output=tmp_path / "packed", epochs=1, superbatch=None)
    for found in (store.to_pyg(), *loader, *gnnstore.open_packed(batches).loader()):
        assert torch.equal(found[writes].edge_label, data[writes].edge_label)
        assert torch.equal(found[writes].edge_label_index, data[writes].edge_label_index)
        assert found["p"].scale.tolist() == [2, 3, 4]
        assert (found[cites].source, found.metapath_dict) == ("a file", data.metapath_dict)


def test_lists_as_long_as_the_nodes_or_edges(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = Data(edge_index=torch.tensor([[3, 0, 1], [0, 2, 2]]), num_nodes=4)
    data.club, data.age, data.kind = ["w", "x", "y", "z"], [7, 8, 9, 2**40], ["p", "q", "r"]
    data.weight, data.names = [0.5, 0.25, 2], ("one", "two")
    path = from_pyg(data, tmp_path / "g.gnn")
    again = gnnstore.open(path).to_pyg()
    assert (again.club, again.kind, again.names) == (data.club, data.kind, ("one", "two"))
    assert again.age.tolist() == data.age
    assert again.weight.tolist() == data.weight
    caplog.clear()
    seeds = torch.tensor([3])
    (batch,) = gnnstore.NeighborLoader(gnnstore.open(path), num_neighbors=[2], input_nodes=seeds)
    (said,) = caplog.records
    assert said.message.startswith("batches are without club, kind, lists as long as the graph")
    assert "club" not in batch
    assert "kind" not in batch
    assert (batch.age.tolist(), batch.names) == ([2**40], ("one", "two"))
    moved = gnnstore.open(reorder(path, tmp_path / "r.gnn")).to_pyg()
    assert dict(zip(moved.age.tolist(), moved.club, strict=True)) == dict(
        zip(data.age, data.club, strict=True)
    )
    with pytest.raises(InputError, match=r"data\.kind: a list without numbers cannot follow edges"):
        from_pyg(data, tmp_path / "u.gnn", undirected=True)
