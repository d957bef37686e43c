"""xarray opens the groups of a store as data sets, and a whole store as a tree of them."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray

from tests.support.stores import write_example_store

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "v1.gnn"


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_every_group_is_a_data_set(tmp_path: Path) -> None:
    example = write_example_store(tmp_path / "a.gnn")
    tree = xarray.open_datatree(example.path, engine="zarr", consolidated=False)
    for path, values in example.arrays.items():
        group, _, name = path.rpartition("/")
        for found in (
            tree[path],
            xarray.open_zarr(example.path / group, consolidated=False)[name],
            xarray.open_dataset(example.path / group, engine="zarr", consolidated=False)[name],
        ):
            assert found.dtype == values.dtype
            np.testing.assert_array_equal(found.values, values)
    nodes, edges = tree["nodes/node"], tree["edges/node__to__node"]
    assert nodes["x"].dims == ("node", "x_1")
    assert nodes["y"].dims == tree["maps/node/original_id"].dims == ("node",)
    assert edges["indices"].dims == edges["edge_id"].dims == ("edge",)
    assert edges["attrs/edge_attr"].dims == ("edge", "edge_attr_1")
    assert edges["indptr"].sizes == {"indptr_0": nodes.sizes["node"] + 1}


def test_stores_without_names_of_axes_are_the_reason(tmp_path: Path) -> None:
    """Stores of earlier writers open here, but not in xarray."""
    store = shutil.copytree(GOLDEN, tmp_path / "v1.gnn")
    with pytest.raises(KeyError, match="dimension_names"):
        xarray.open_zarr(store / "nodes" / "node", consolidated=False)


def test_bfloat16_as_documented(tmp_path: Path) -> None:
    example = write_example_store(tmp_path / "a.gnn", feature_dtype="bfloat16")
    bits = xarray.open_zarr(example.path / "nodes/node", consolidated=False)["x"].values
    assert bits.dtype == np.uint16
    values = (bits.astype("u4") << 16).view("f4")
    assert np.array_equal(values.view("u4") >> 16, example.arrays["nodes/node/x"])
