"""Indexing a lazy tensor gives what torch gives, and reads the rows of that and no others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gnnstore
from gnnstore.formats import PagedArray
from gnnstore.graph.arrays import stored
from gnnstore.graph.lazy import LazyTensor
from tests.support.effort import choose
from tests.support.stores import write_example_store


@dataclass
class Example:
    """A lazy tensor, what it holds, and which rows were read."""

    lazy: LazyTensor
    values: torch.Tensor
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
    spec = store.features.spec
    if request.param == "compressed":
        spec = store.schema.graph_arrays["weights"]
    if request.param == "one axis":
        assert store.schema.edge.edge_id is not None
        spec = store.schema.edge.edge_id
    if request.param == "rows across pages":
        assert store.reader.paged(spec).layout.num_shards > 1
    return Example(stored(store.reader, spec), torch.from_numpy(written.arrays[spec.path]))


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Draw what chooses rows, and perhaps a slice of the next axis."""
    length = shape[0]
    if draw(st.booleans()):
        rows: Any = draw(st.integers(-length, length - 1) | st.slices(length))
        if isinstance(rows, slice) and (rows.step or 1) < 0:
            rows = slice(None, None, -rows.step)
    elif draw(st.booleans()):
        seed, share = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([0, 0.02, 0.5, 1]))
        rows = torch.from_numpy(np.random.default_rng(seed).random(length) < share)
    else:
        dtype: np.dtype[Any] = np.dtype(draw(st.sampled_from(["int32", "int64"])))
        sides = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)
        ids = st.integers(-length, length - 1)
        array = draw(hnp.arrays(dtype, sides, elements=ids))
        forms = [
            array,
            torch.from_numpy(array),
            *([array.tolist()] if array.size and array.ndim == 1 else []),
        ]
        rows = draw(st.sampled_from(forms))
    is_plain = isinstance(rows, slice) and len(shape) > 1
    return (rows, slice(None, None, 2)) if is_plain and draw(st.booleans()) else rows


@settings(max_examples=choose(10, 150), deadline=None)
@given(data=st.data())
def test_as_torch(example: Example, data: st.DataObject) -> None:
    values, read = example.values, example.rows_read
    key: Any = data.draw(keys(tuple(values.shape)))
    expected = values[key]
    gather, read_slice = PagedArray.gather, PagedArray.read_slice

    def note_gather(array: PagedArray, ids: Any, **options: Any) -> Any:
        read.extend(ids)
        return gather(array, ids, **options)

    def note_slice(array: PagedArray, start: int, stop: int) -> Any:
        read.extend(range(start, stop))
        return read_slice(array, start, stop)

    read.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PagedArray, "gather", note_gather)
        patch.setattr(PagedArray, "read_slice", note_slice)
        found = example.lazy[key]
    assert type(found) is torch.Tensor
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
    found.zero_()  # a copy of its own
    assert torch.equal(example.lazy[key], expected)
    is_all = isinstance(key, slice) and len(range(len(values))[key]) == len(values)
    if expected.numel() and example.lazy.spec.layout == "paged" and not is_all:
        rows: Any = key[0] if isinstance(key, tuple) else key
        if not isinstance(key, tuple) or len(range(len(values))[rows]) < len(values):
            assert sorted(set(read)) == torch.arange(len(values))[rows].unique().tolist()
