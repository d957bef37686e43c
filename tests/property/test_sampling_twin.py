"""The sampling kernel equals its plain Python twin, on any graph and with any options."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore import _core
from gnnstore.testing.twins import sampling as reference
from tests.support.effort import examples

WORDS = st.integers(0, 2**64 - 1)
FANOUTS = st.lists(st.one_of(st.just(-1), st.integers(0, 12), st.integers(30, 50)), max_size=4)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Graphs in CSC form with hubs, isolated nodes, loops and repeated edges."""
    num_nodes = draw(st.integers(1, 60))
    max_degree = draw(st.sampled_from([0, 3, 15, 80]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    degrees = rng.integers(0, max_degree + 1, num_nodes) * rng.integers(0, 2, num_nodes)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    return indptr, rng.integers(0, num_nodes, indptr[-1]).astype(dtype)


@settings(max_examples=examples(300), deadline=None)
@given(
    graph=graphs(),
    data=st.data(),
    fanouts=FANOUTS,
    key=st.tuples(WORDS, WORDS, WORDS),
    replace=st.booleans(),
    mode=st.sampled_from(["joint", "disjoint", "induced"]),
    wide=st.booleans(),
    index_dtype=st.sampled_from(["int32", "int64"]),
)
def test_kernel_equals_twin(
    *,
    graph: tuple[npt.NDArray[np.int64], npt.NDArray[Any]],
    data: st.DataObject,
    fanouts: list[int],
    key: tuple[int, int, int],
    replace: bool,
    mode: str,
    wide: bool,
    index_dtype: Any,
) -> None:
    indptr, indices = graph
    num_nodes = len(indptr) - 1
    seeds = data.draw(st.lists(st.integers(0, num_nodes - 1), max_size=20), label="seeds")
    options: dict[str, Any] = {
        "seed": key[0],
        "epoch": key[1],
        "batch": key[2],
        "replace": replace,
        "disjoint": mode == "disjoint",
        "induced": mode == "induced",
    }
    want = reference.sample_neighbors(indptr, indices, seeds, fanouts, **options)
    n_id, edge_index, edge_pos, tree, num_sampled_nodes, num_sampled_edges = _core.sample_neighbors(
        indptr,
        indices,
        np.array(seeds, dtype=np.int64),
        fanouts,
        **options,
        # More possible ids than 32 bits hold choose the other table.
        num_src_nodes=2**33 if wide and index_dtype == "int64" else None,
        index_dtype=index_dtype,
    )
    assert n_id.tolist() == want.n_id
    assert edge_index.tolist() == [want.sources, want.targets]
    assert edge_pos.tolist() == want.edge_pos
    assert num_sampled_nodes == want.num_sampled_nodes
    assert num_sampled_edges == want.num_sampled_edges
    assert (tree is None) == (mode != "disjoint")
    if tree is not None:
        assert tree.tolist() == want.batch


@settings(max_examples=examples(200), deadline=None)
@given(
    num_nodes=st.integers(1, 30),
    num_edges=st.integers(0, 100),
    dtype=st.sampled_from([np.int32, np.int64]),
    seed=st.integers(0, 2**32),
)
def test_reverse_edges_equal_twin(num_nodes: int, num_edges: int, dtype: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    edge_index = rng.integers(0, num_nodes, (2, num_edges)).astype(dtype)
    edge_pos = rng.integers(0, 2**62, num_edges)
    got_index, got_pos = _core.add_reverse_edges(edge_index, edge_pos, num_nodes)
    want_index, want_pos = reference.add_reverse_edges(edge_index, edge_pos)
    np.testing.assert_array_equal(got_index, want_index)
    np.testing.assert_array_equal(got_pos, want_pos)


NUMBERS = st.one_of(st.integers(-3, 30), st.integers(-(2**63), 2**63 - 1))


@settings(max_examples=examples(500), deadline=None)
@given(
    indptr=st.lists(NUMBERS, min_size=1, max_size=20),
    indices=st.lists(NUMBERS, max_size=20),
    seeds=st.lists(NUMBERS, max_size=8),
    fanouts=FANOUTS,
    num_src_nodes=st.one_of(st.none(), NUMBERS),
    replace=st.booleans(),
    disjoint=st.booleans(),
    induced=st.booleans(),
    index_dtype=st.sampled_from(["int32", "int64"]),
)
def test_garbage_never_crashes(
    indptr: list[int], indices: list[int], seeds: list[int], fanouts: list[int], **options: Any
) -> None:
    try:
        n_id, edge_index, *_ = _core.sample_neighbors(
            np.array(indptr, dtype=np.int64),
            np.array(indices, dtype=np.int64),
            np.array(seeds, dtype=np.int64),
            fanouts,
            seed=0,
            epoch=0,
            batch=0,
            **options,
        )
    except (IndexError, ValueError):
        return
    assert n_id[: len(seeds)].tolist() == seeds
    assert edge_index.size == 0 or edge_index.max() < len(n_id)
