"""Indexing an attribute gives what NumPy gives, and reads the rows of that and no others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gnnstore
from gnnstore.formats import PagedArray
from gnnstore.graph import arrays as store_arrays
from gnnstore.graph.arrays import Attribute
from tests.support.effort import examples
from tests.support.stores import write_example_store


@dataclass
class Example:
    """An attribute, what it holds, and which rows were read."""

    attribute: Attribute
    values: npt.NDArray[Any]
    rows_read: list[int] = field(default_factory=list)


@pytest.fixture(
    scope="module",
    params=["rows across pages", "rows that fill pages", "three axes", "one axis", "compressed"],
)
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Example:
    widths = {"rows across pages": (400,), "rows that fill pages": (16,), "three axes": (3, 4)}
    written = write_example_store(
        tmp_path_factory.mktemp("indexing") / "a.gnn",
        num_nodes=97,
        feature_shape=widths.get(request.param, (25,)),
        page_bytes=512,
        shard_bytes=1,
    )
    store = gnnstore.open(written.path)
    if request.param == "compressed":
        weights = Attribute(store.reader, store.schema.graph_arrays["weights"])
        return Example(weights, written.arrays["graph/weights"])
    if request.param == "one axis":
        edge_id = store.schema.edge.edge_id
        assert edge_id is not None
        return Example(Attribute(store.reader, edge_id), written.arrays[edge_id.path])
    if request.param == "rows across pages":
        assert store.reader.paged(store.features.spec).layout.num_shards > 1
    return Example(store.features, written.arrays["nodes/node/x"])


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Draw a key: before and behind an Ellipsis, or with none."""
    num_left = draw(st.integers(0, len(shape)))
    num_right = draw(st.none() | st.integers(0, len(shape) - num_left))
    at = draw(st.integers(-1, len(shape) - 1))  # the axis of the array; not always there
    parts: list[Any] = []

    def draw_axes(begin: int, end: int) -> None:
        axis = begin
        while axis < end:
            if draw(st.integers(0, 4)) == 0:
                parts.append(None)
            if axis != at:
                index = st.integers(-shape[axis], shape[axis] - 1)
                parts.append(draw(index | st.slices(shape[axis])))
                axis += 1
            else:
                array, num_axes = draw(arrays(shape[axis:end]))
                parts.append(array)
                axis += num_axes

    draw_axes(0, num_left)
    if num_right is not None:
        parts.append(Ellipsis)
        draw_axes(len(shape) - num_right, len(shape))
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, int]:
    """Draw an index array for the first of some axes, or a mask of several; and how many."""
    if draw(st.booleans()):
        num_axes = draw(st.integers(1, len(shape)))
        seed, share = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([0, 0.02, 0.5, 1]))
        array: Any = np.random.default_rng(seed).random(shape[:num_axes]) < share
    else:
        num_axes = 1
        dtype: np.dtype[Any] = np.dtype(
            draw(st.sampled_from(["int8", "int32", "int64", "uint8", "uint64"]))
        )
        least = 0 if dtype.kind == "u" else -min(shape[0], 128)
        ids = st.integers(least, min(shape[0] - 1, int(np.iinfo(dtype.name).max)))
        sides = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)
        array = draw(hnp.arrays(dtype, sides, elements=ids))
    form = draw(st.sampled_from(["array", "list", "tensor"]))
    if form == "list" and array.size:
        return array.tolist(), num_axes
    return torch.from_numpy(array) if form == "tensor" else array, num_axes


def of_numpy(part: Any) -> Any:
    return part.numpy() if isinstance(part, torch.Tensor) else part


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_as_numpy(example: Example, data: st.DataObject) -> None:
    values, read = example.values, example.rows_read
    key = data.draw(keys(values.shape))
    as_numpy = tuple(map(of_numpy, key)) if isinstance(key, tuple) else of_numpy(key)
    expected = values[as_numpy]

    gather, read_slice = PagedArray.gather, PagedArray.read_slice

    def note_gather(array: PagedArray, ids: Any, **options: Any) -> Any:
        read.extend(ids)
        return gather(array, ids, **options)

    def note_slice(array: PagedArray, start: int, stop: int) -> Any:
        read.extend(range(start, stop))
        return read_slice(array, start, stop)

    read.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_arrays, "_PIECE_BYTES", data.draw(st.sampled_from([1, 1000, 1 << 24])))
        patch.setattr(PagedArray, "gather", note_gather)
        patch.setattr(PagedArray, "read_slice", note_slice)
        found = example.attribute[key]

    np.testing.assert_array_equal(found, expected)
    assert type(found) is type(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if isinstance(found, np.ndarray):
        assert found.flags.c_contiguous
        assert found.flags.writeable
        found[...] = 0  # a copy of its own
        np.testing.assert_array_equal(example.attribute[key], expected)
    if key is not None:  # which means all of it there
        np.testing.assert_array_equal(example.attribute.tensor(key).numpy(), expected)
    if expected.size and example.attribute.spec.layout == "paged":
        rows = np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1))
        needed = np.unique(np.broadcast_to(rows, values.shape)[as_numpy])
        assert sorted(set(read)) == needed.tolist()
