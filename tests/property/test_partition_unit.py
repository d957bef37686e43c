"""Partitions on disk equal their NumPy twin, whatever the graph and its attributes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnstore.converters import reorder
from gnnstore.converters.stores.partition import node_order, partition, rows_per_partition
from gnnstore.errors import InputError, NotFoundError, UsageError
from gnnstore.formats import StoreReader
from gnnstore.formats.partitions import (
    MOST_ROWS,
    PARTITIONS,
    PartitionsReader,
    open_partitions,
)
from gnnstore.formats.store.units import find_units
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support.effort import choose
from tests.support.stores import write_example_store
from tests.support.twins.partitions import partition_reference


def check(store: Path, unit: PartitionsReader) -> None:
    """Compare every array with the twin, given the order of the nodes."""
    order = unit.read(unit.order_spec).astype(np.int64)
    assert np.array_equal(np.sort(order), np.arange(unit.num_nodes))
    expected = partition_reference(store, order, unit.num_partitions, unit.rows_per_partition)
    specs = {spec.path: spec for spec in unit.manifest.arrays()}
    assert specs.keys() == expected.keys()
    for path, values in expected.items():
        found = unit.read(specs[path])
        assert found.dtype == values.dtype, path
        np.testing.assert_array_equal(found, values, err_msg=path)
    np.testing.assert_array_equal(unit.bucket_ptr, expected["edges/bucket_ptr"])


def make(store: Path, num_partitions: int, **arguments: Any) -> PartitionsReader:
    return PartitionsReader.open(partition(store, num_partitions, **arguments))


@settings(
    max_examples=choose(2, 25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    num_nodes=st.integers(2, 60),
    seed=st.integers(0, 2**64 - 1),
    train_first=st.booleans(),
    data=st.data(),
)
def test_partitions_equal_their_twin(
    tmp_path_factory: pytest.TempPathFactory,
    num_nodes: int,
    seed: int,
    train_first: bool,
    data: st.DataObject,
) -> None:
    """Empty buckets, self-loops and parallel edges among them."""
    partitions = data.draw(st.integers(2, num_nodes))
    num_edges = data.draw(st.integers(0, 300))
    graph = random_graph(num_nodes, num_edges, seed=seed % 1000, num_classes=2, feature_dim=3)
    store = graph.write(tmp_path_factory.mktemp("graph") / "graph.gnn")
    train = graph.splits["train"]
    try:
        unit = make(
            store,
            partitions,
            train_first="train" if train_first and len(train) else None,
            seed=seed,
        )
    except UsageError as error:
        rows = -(-num_nodes // partitions)
        assert rows * (partitions - 1) >= num_nodes
        offers = [int(word) for word in str(error).rpartition("take ")[2].split(" or ")]
        for offer in offers:
            make(store, offer, seed=seed)
        return
    check(store, unit)
    if unit.order_kind == "train-first":
        rows = unit.rows_per_partition
        order = unit.read(unit.order_spec)
        assert set(order[: len(train)].tolist()) == set(train.tolist())
        assert unit.num_train_partitions == -(-len(train) // rows)


@pytest.mark.parametrize("num_partitions", choose([3, 16], [2, 3, 7, 16]))
@pytest.mark.parametrize("width", choose([0, 25, 1100], [0, 1, 25, 129, 1100]))
def test_rows_of_any_width(tmp_path: Path, num_partitions: int, width: int) -> None:
    graph = random_graph(501, 3000, feature_dim=width, edge_feature_dim=3, skew=3)
    store = graph.write(tmp_path / "graph.gnn")
    check(store, make(store, num_partitions))


def test_a_reordered_store(tmp_path: Path) -> None:
    graph = random_graph(300, 2000, feature_dim=5, num_classes=3, edge_feature_dim=2, skew=2)
    store = reorder(graph.write(tmp_path / "graph.gnn"), tmp_path / "reordered.gnn")
    check(store, make(store, 4, train_first="train"))


def test_the_order_of_the_store(tmp_path: Path) -> None:
    graph = random_graph(300, 2000, feature_dim=5, num_classes=3, edge_feature_dim=2, skew=2)
    store = graph.write(tmp_path / "graph.gnn")
    unit = make(store, 4, order="none")
    check(store, unit)
    assert (unit.name, unit.order_kind, unit.num_train_partitions) == ("none-4", "none", 0)
    np.testing.assert_array_equal(unit.read(unit.order_spec), np.arange(300))
    with pytest.raises(UsageError, match="leave out one"):
        make(store, 4, order="none", train_first="train")
    with pytest.raises(UsageError, match="choose one of random, none"):
        make(store, 4, order="degree")


def test_xarray_opens_partitions_in_their_store(tmp_path: Path) -> None:
    """Axes of one name have one length, in all groups below one another."""
    xarray = pytest.importorskip("xarray")
    store = random_graph(50, 300, feature_dim=4).write(tmp_path / "graph.gnn")
    unit = make(store, 4, name="a")
    tree = xarray.open_datatree(store, engine="zarr", consolidated=False)
    found = tree["partitions/a"]
    assert found["nodes/x"].dims == ("node", "x_1")
    assert found["edges/source"].dims == found["edges/position"].dims == ("edge",)
    np.testing.assert_array_equal(found["edges/bucket_ptr"].values, unit.bucket_ptr)


def test_types_and_shapes_of_attributes_stay(tmp_path: Path) -> None:
    example = write_example_store(
        tmp_path / "graph.gnn", feature_dtype="bfloat16", feature_shape=(3, 7), shard_bytes=2**16
    )
    unit = make(example.path, 3)
    check(example.path, unit)
    x = StoreReader.open(example.path).schema.node.attributes["x"]
    found = unit.nodes["x"]
    assert (found.dtype, found.shape, found.cat_dim) == (x.dtype, x.shape, x.cat_dim)


def test_the_order_is_a_function_of_the_seed_alone() -> None:
    """However much of it is drawn at once, with and without nodes that come first."""
    first = np.arange(1000) % 3 == 0
    for mask in (None, first):
        whole = np.concatenate(list(node_order(1000, 7, mask, 2**20)))
        parts = list(node_order(1000, 7, mask, 100))
        assert len(parts) >= 10
        assert np.array_equal(np.concatenate(parts), whole)
        assert np.array_equal(np.sort(whole), np.arange(1000))
        assert not np.array_equal(whole, np.concatenate(list(node_order(1000, 8, mask, 2**20))))
    assert first[whole[: first.sum()]].all()


def test_train_nodes_are_spread_evenly_within_their_partitions() -> None:
    """Neither by id nor by the order of the split."""
    first = np.arange(4096) < 1024
    order = np.concatenate(list(node_order(4096, 3, first, 2**20)))[:1024]
    means = order.reshape(8, 128).mean(axis=1)
    assert (np.abs(means - 511.5) < 5 * 1024 / np.sqrt(12 * 128)).all()


def test_partitions_begin_at_pages_where_that_keeps_them_even() -> None:
    assert rows_per_partition(11_000, 4, [1, 8, 1024]) == 3072
    assert rows_per_partition(2708, 16, [1, 512]) == 170


@pytest.mark.parametrize("num_partitions", [-1, 0, 1, 41, 5000])
def test_numbers_of_partitions_that_cannot_be(tmp_path: Path, num_partitions: int) -> None:
    store = random_graph(40, 100).write(tmp_path / "graph.gnn")
    with pytest.raises(UsageError, match=r"partitions?: expected 2 to 40 for 40 nodes"):
        partition(store, num_partitions)
    assert not (store / "partitions").exists()


def test_partitions_that_are_too_large() -> None:
    with pytest.raises(UsageError, match=rf"fill 3 partitions of {MOST_ROWS}; take 3"):
        rows_per_partition(2 * MOST_ROWS + 1, 2, [1])


def test_what_no_order_can_begin_with(tmp_path: Path) -> None:
    graph = random_graph(40, 100, num_classes=2)
    store = replace(graph, splits={"none": np.empty(0, np.int64)}).write(tmp_path / "graph.gnn")
    with pytest.raises(InputError, match=r"graph\.gnn: the split 'none' has no nodes"):
        partition(store, 4, train_first="none")
    with pytest.raises(UsageError, match=r"seed=-1 is outside \[0, 2\^64\)"):
        partition(store, 4, seed=-1)


def test_labels_do_not_influence_the_order(tmp_path: Path) -> None:
    """Nor does the order of the split."""
    graph = random_graph(200, 900, num_classes=4)
    other = replace(
        graph,
        attributes={"y": graph.attributes["y"][::-1].copy()},
        splits={"train": graph.splits["train"][::-1]},
    )
    orders = []
    for number, one in enumerate((graph, other)):
        unit = make(one.write(tmp_path / f"{number}.gnn"), 4, train_first="train")
        orders.append(unit.read(unit.order_spec))
    assert np.array_equal(orders[0], orders[1])


def test_opening_by_name(tmp_path: Path, small: GraphArrays) -> None:
    store = small.write(tmp_path / "graph.gnn")
    uuid = StoreReader.open(store).uuid
    with pytest.raises(UsageError, match="gnnstore partition"):
        open_partitions(store, None, store_uuid=uuid)
    first = partition(store, 4)
    assert first == store / "partitions" / "random-4"
    assert open_partitions(store, None, store_uuid=uuid).path == first
    partition(store, 5, name="other")
    assert [path.name for path in find_units(PARTITIONS, store)] == ["other", "random-4"]
    with pytest.raises(UsageError, match="the name of one: 'other', 'random-4'"):
        open_partitions(store, None, store_uuid=uuid)
    with pytest.raises(NotFoundError, match=r"no partitioning 'third'.* has 'other', 'random-4'"):
        open_partitions(store, "third", store_uuid=uuid)
    with pytest.raises(UsageError, match="of another store"):
        open_partitions(store, "other", store_uuid="another")


@pytest.fixture
def small() -> GraphArrays:
    return random_graph(50, 300, feature_dim=4)
