"""Subgraphs that are kept come back exactly as they were sampled, from memory and from disk."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gnnstore import _core
from gnnstore.disk.spool import FileSpool
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE
from gnnstore.formats.store.store import Csc
from gnnstore.sampling.compact import ONE_TYPE, CompactSample, Types
from gnnstore.sampling.neighbor import EdgeSample, NeighborSampler, Sample, SamplingConfig, only
from tests.support.effort import examples

# Sizes of the whole graph: its own, and those from which on ids no longer fit in int32.
SIZES = [0, 2**31, 2**31 + 1, 2**40]


@st.composite
def sampled(draw: st.DrawFn) -> tuple[Sample, Csc]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_nodes = draw(st.integers(1, 40))
    degrees = rng.integers(0, draw(st.sampled_from([1, 5, 30])), num_nodes)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    csc = Csc(indptr, rng.integers(0, num_nodes, indptr[-1]), num_nodes)
    modes = st.sampled_from(["directional", "bidirectional", "induced"])
    subgraph_type = draw(modes)
    config = SamplingConfig(
        fanouts=tuple(draw(st.lists(st.integers(-1, 5), max_size=4))),
        replace=draw(st.booleans()),
        subgraph_type=subgraph_type,  # type: ignore[arg-type]
        disjoint=subgraph_type != "induced" and draw(st.booleans()),
    )
    dtype: Any = draw(st.sampled_from(["int32", "int64"]))
    seeds = draw(st.lists(st.integers(0, num_nodes - 1), max_size=12))
    return NeighborSampler(csc, config, dtype).sample(seeds, epoch=1, batch=2), csc


def compacted(sample: Sample, num_nodes: int, num_edges: int) -> CompactSample:
    return CompactSample.from_sample(sample, id_dtype(num_nodes - 1), id_dtype(num_edges - 1))


def arrays(sample: Sample) -> list[npt.NDArray[Any]]:
    trees = [] if sample.trees is None else [only(sample.trees)]
    return [sample.n_id, sample.edge_index, sample.edge_pos, *trees]


def assert_same(found: Sample, expected: Sample) -> None:
    for one, other in zip(arrays(found), arrays(expected), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.flags.c_contiguous
        assert one.flags.writeable
        np.testing.assert_array_equal(one, other)
    for name in ("hop_nodes", "hop_edges", "num_seeds"):
        assert getattr(found, name) == getattr(expected, name)
        assert type(getattr(found, name)) is type(getattr(expected, name))


@settings(max_examples=examples(200), deadline=None)
@given(drawn=sampled(), size=st.sampled_from(SIZES), pooled=st.booleans())
def test_a_subgraph_comes_back_exactly(drawn: tuple[Sample, Csc], size: int, pooled: bool) -> None:
    subgraph, csc = drawn
    dtype: Any = subgraph.n_id.dtype.name
    num_nodes = csc.num_nodes if dtype == "int32" else max(size, csc.num_nodes)
    num_edges = max(size, csc.num_edges)
    compact = compacted(subgraph, num_nodes, num_edges)
    assert compact.n_id.dtype == ("int64" if num_nodes > 2**31 else "int32")
    assert compact.edge_pos.dtype == ("int64" if num_edges > 2**31 else "int32")
    assert compact.num_bytes == sum(array.nbytes for array in compact.arrays()[1:])
    expanded = compact.expand(dtype, _core.empty if pooled else np.empty)
    assert_same(expanded, subgraph)
    # Nothing is shared: a batch may be changed, and expanded again.
    for array in arrays(expanded):
        array[...] = -1
    assert_same(compact.expand(dtype), subgraph)


@settings(max_examples=examples(100), deadline=None)
@given(drawn=st.lists(sampled(), max_size=5), size=st.sampled_from(SIZES))
def test_subgraphs_come_back_exactly_from_disk(drawn: list[tuple[Sample, Csc]], size: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = FileSpool(Path(directory) / "kept", len(drawn), ONE_TYPE.max_arrays)
        for i, (subgraph, csc) in enumerate(drawn):
            of = compacted(subgraph, csc.num_nodes, max(size, csc.num_edges))
            file.append(i, of.shortened(with_ids=i % 2 == 0))
        for i, (subgraph, csc) in reversed(list(enumerate(drawn))):
            ids = [compacted(subgraph, csc.num_nodes, 1).n_id] if i % 2 else []
            found = CompactSample.from_shortened(file.read(i), ids)
            assert_same(found.expand(subgraph.n_id.dtype.name), subgraph)  # type: ignore[arg-type]


PAPER, AUTHOR, PLACE = "paper", "author", "place"
CITES, WRITES = (PAPER, "cites", PAPER), (AUTHOR, "writes", PAPER)
TYPES = Types((PAPER, AUTHOR, PLACE), (CITES, WRITES))


@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("hops", [True, False])
@pytest.mark.parametrize("ids_apart", [True, False])
def test_a_subgraph_of_several_types_comes_back(trees: bool, hops: bool, ids_apart: bool) -> None:
    """Types that nothing reached come back empty."""
    nodes = {PAPER: np.array([7, 3, 9]), AUTHOR: np.array([2, 5]), PLACE: np.empty(0, np.int64)}
    edges = {
        CITES: EdgeSample(np.array([[1, 2], [0, 1]]), np.array([30, 31])),
        WRITES: EdgeSample(np.array([[1, 0], [0, 2]]), np.array([4, 0])),
    }
    subgraph = Sample(
        nodes,
        edges,
        {name: np.arange(len(ids)) for name, ids in nodes.items()} if trees else None,
        {PAPER: [1, 2], AUTHOR: [0, 2], PLACE: [0, 0]} if hops else None,
        {CITES: [2], WRITES: [2]} if hops else None,
        1,
    )
    compact = compacted(subgraph, 10, 40)
    ids = list(compact.nodes.values()) if ids_apart else []
    shortened = compact.shortened(with_ids=not ids_apart)
    found = CompactSample.from_shortened(shortened, ids, TYPES).expand("int64")
    assert list(found.nodes) == list(TYPES.nodes)
    assert list(found.edges) == list(TYPES.edges)
    for name, expected in nodes.items():
        np.testing.assert_array_equal(found.nodes[name], expected)
    for kind, each in edges.items():
        np.testing.assert_array_equal(found.edges[kind].index, each.index)
        np.testing.assert_array_equal(found.edges[kind].positions, each.positions)
    assert (found.hop_nodes, found.hop_edges) == (subgraph.hop_nodes, subgraph.hop_edges)
    assert (found.trees is None) == (not trees)
    assert (found.num_nodes, found.num_edges, found.num_bytes) == (5, 4, subgraph.num_bytes)
    with pytest.raises(CorruptStoreError, match="are not a subgraph"):
        CompactSample.from_shortened(shortened, ids, ONE_TYPE)
    with pytest.raises(ValueError, match="too many values"):
        _ = found.n_id


def test_large_ids_come_back() -> None:
    n_id = np.array([2**33, 5, 2**31], np.int64)
    edges = np.array([[1, 2, 2], [0, 0, 1]])
    positions = np.array([2**40, 0, 2**31], np.int64)
    of_edges = {EDGE_TYPE: EdgeSample(edges, positions)}
    subgraph = Sample({NODE_TYPE: n_id}, of_edges, None, {NODE_TYPE: [1, 2]}, {EDGE_TYPE: [3]}, 1)
    compact = compacted(subgraph, 2**33 + 1, 2**40 + 1)
    assert_same(compact.expand("int64"), subgraph)
    # As many ids as fit: the largest is 2^31 - 1.
    of_edges = {EDGE_TYPE: EdgeSample(edges, positions % 2**31)}
    at_most = Sample({NODE_TYPE: n_id * 0 + 2**31 - 1}, of_edges, None, None, None, 1)
    compact = compacted(at_most, 2**31, 2**31)
    assert compact.n_id.dtype == compact.edge_pos.dtype == np.int32
    assert_same(compact.expand("int64"), at_most)


def test_a_subgraph_that_is_sampled_as_it_is_kept_is_not_copied() -> None:
    csc = Csc(np.arange(0, 301, 3), np.arange(300) % 100, 100)
    wide = NeighborSampler(csc, SamplingConfig((5, 5)))
    subgraph = wide.with_index_dtype("int32").sample(range(9), epoch=0, batch=0)
    assert wide.index_dtype == "int64"
    compact = compacted(subgraph, csc.num_nodes, csc.num_edges)
    assert np.shares_memory(only(compact.edges).sources, subgraph.edge_index)
    assert_same(compact.expand("int64"), wide.sample(range(9), epoch=0, batch=0))


def test_it_takes_a_third_of_the_memory() -> None:
    rng = np.random.default_rng(0)
    degrees = rng.integers(0, 40, 5000)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    csc = Csc(indptr, rng.integers(0, 5000, indptr[-1]), 5000)
    subgraph = NeighborSampler(csc, SamplingConfig((10, 10))).sample(range(100), epoch=0, batch=0)
    num_edges, num_nodes = len(subgraph.edge_pos), len(subgraph.n_id)
    compact = compacted(subgraph, csc.num_nodes, csc.num_edges)
    assert compact.num_bytes <= 8 * num_edges + 8 * num_nodes
    before = sum(array.nbytes for array in arrays(subgraph)[:3])
    assert before >= 24 * num_edges
    assert compact.num_bytes < 0.4 * before


def test_while_it_waits_it_takes_half_of_that() -> None:
    """A difference and its width are 2 to 3 bytes, of 4."""
    degrees = np.random.default_rng(0).integers(0, 40, 100_000)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    columns = np.random.default_rng(1).integers(0, len(degrees), indptr[-1])
    csc = Csc(indptr, columns, len(degrees))
    subgraph = NeighborSampler(csc, SamplingConfig((10, 10))).sample(range(100), epoch=0, batch=0)
    compact = compacted(subgraph, csc.num_nodes, csc.num_edges)
    shortened = sum(array.nbytes for array in compact.shortened(with_ids=False))
    assert shortened < 0.6 * (compact.num_bytes - compact.n_id.nbytes)


@settings(max_examples=examples(100), deadline=None)
@given(
    numbers=hnp.arrays(
        st.sampled_from([np.int32, np.int64]),
        st.integers(0, 40),
        elements=st.sampled_from([0, 1, -1, 127, 128, 2**15, -(2**23), 2**31 - 1, -(2**31)]),
    ),
    factor=st.sampled_from([1, 2**16, 2**32]),
)
def test_numbers_come_back_from_their_differences(numbers: npt.NDArray[Any], factor: int) -> None:
    """Also where a difference does not fit in the type: it wraps around, and back."""
    if numbers.dtype == np.int64:
        numbers = numbers * np.int64(factor)
    words = _core.shorten(numbers)
    assert words.dtype == np.int32
    assert words.nbytes <= 8 + numbers.size // 4 + 1 + numbers.nbytes + numbers.itemsize + 3
    restored = _core.restore(words)
    assert restored.dtype == numbers.dtype
    np.testing.assert_array_equal(restored, numbers)


@settings(max_examples=examples(200), deadline=None)
@given(
    words=hnp.arrays(np.int32, st.integers(0, 12)),
    head=st.integers(-2, 200) | st.integers(-(2**63), 2**63 - 1),
)
def test_other_words_are_refused(words: npt.NDArray[np.int32], head: int) -> None:
    """Or are numbers, but nothing beside them is read."""
    if len(words) >= 2:
        words[:2] = np.array([head], np.int64).view(np.int32)
    with suppress(ValueError):
        assert len(_core.shorten(_core.restore(words))) <= len(words)


def test_targets_and_their_counts_must_fit() -> None:
    assert _core.count_targets(np.array([0, 0, 2])).tolist() == [2, 0, 1]
    for targets, problem in (
        ([0, 2, 1, 2], "must ascend from 0, but 2 is at"),
        ([5, 6, 3], "must ascend from 0, but 5 is at"),
        ([-1], "negative"),
    ):
        with pytest.raises(ValueError, match=problem):
            _core.count_targets(np.array(targets))
    for counts, problem in (([3], "3 incoming edges"), ([-1, 3], "-1 inc"), ([1], "1 edges are")):
        with pytest.raises(ValueError, match=problem):
            _core.expand_edges(np.arange(2), np.array(counts), np.empty((2, 2), np.int32))
    with pytest.raises(ValueError, match="as many columns"):
        _core.expand_edges(np.arange(3), np.array([2]), np.empty((2, 2), np.int64))


@pytest.mark.parametrize(
    "arrays", [[], [np.arange(2)], [np.array([1, 1, 1, 1, 0]), *[np.arange(3)] * 4]]
)
def test_other_arrays_are_no_subgraph(arrays: list[npt.NDArray[Any]]) -> None:
    with pytest.raises(CorruptStoreError, match="are not a subgraph"):
        CompactSample.from_arrays(arrays)
    with pytest.raises(CorruptStoreError, match="are not a subgraph"):
        CompactSample.from_shortened(arrays)
