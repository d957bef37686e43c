"""The graph of the partitions in memory: from buckets of edges to columns, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore import _core
from tests.support.effort import examples
from tests.support.twins import partitions as twins

Buckets = dict[str, Any]


def bucketed(
    edges: np.ndarray, parts: np.ndarray, rows: int, num_nodes: int, dtype: Any = np.int64
) -> Buckets:
    """Return the buckets of the edges [2, E] between some partitions of a graph, and its shape."""
    place = np.arange(edges.shape[1])
    number = np.searchsorted(parts, edges // rows).clip(0, len(parts) - 1)
    inside = (parts[number] == edges // rows).all(axis=0)
    edges, number, place = edges[:, inside], number[:, inside], place[inside]
    bucket = number[1] * len(parts) + number[0]
    source, target = (edges % rows).astype(np.int32)
    order = np.lexsort((place, source, target, bucket))
    starts = np.searchsorted(bucket[order], np.arange(len(parts) ** 2 + 1))
    ends = np.minimum((parts + 1) * rows, num_nodes)
    return {
        "starts": starts.astype(np.int64),
        "source": source[order],
        "target": target[order],
        "position": place[order].astype(dtype),
        "count": len(parts),
        "rows": rows,
        "num_nodes": int((ends - parts * rows).sum()),
    }


@st.composite
def graphs(draw: Any) -> tuple[np.ndarray, int, int, np.random.Generator]:
    rows, count = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    num_nodes = rows * (count - 1) + draw(st.integers(1, rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    edges = rng.integers(0, num_nodes, (2, draw(st.integers(0, 200))))
    return edges, rows, num_nodes, rng


def some_partitions(rng: np.random.Generator, rows: int, num_nodes: int) -> np.ndarray:
    count = -(-num_nodes // rows)
    return np.sort(rng.choice(count, rng.integers(1, count + 1), replace=False))


@settings(max_examples=examples(100), deadline=None)
@given(graphs(), st.sampled_from([np.int32, np.int64]), st.integers(1, 4))
def test_columns_are_those_of_the_twin(graph: Any, dtype: Any, num_threads: int) -> None:
    edges, rows, num_nodes, rng = graph
    given = bucketed(edges, some_partitions(rng, rows, num_nodes), rows, num_nodes, dtype)
    found = _core.resident_csc(**given, num_positions=edges.shape[1], num_threads=num_threads)
    for ours, expected in zip(found, twins.resident_csc(**given), strict=True):
        np.testing.assert_array_equal(ours, expected)
    assert found[2].dtype == dtype


@settings(max_examples=examples(100), deadline=None)
@given(graphs(), st.integers(1, 4))
def test_what_stays_is_in_its_buckets_of_the_next_state(graph: Any, num_threads: int) -> None:
    edges, rows, num_nodes, rng = graph
    before, after = (some_partitions(rng, rows, num_nodes) for _ in range(2))
    old, new = (bucketed(edges, parts, rows, num_nodes) for parts in (before, after))
    columns = _core.resident_csc(**old, num_positions=edges.shape[1])
    stays = np.isin(before, after)
    kept = np.where(stays, np.searchsorted(after, before), -1)
    out = {name: np.full_like(new[name], -7) for name in ("source", "target", "position")}
    _core.resident_buckets(
        *columns,
        kept,
        rows=rows,
        starts=new["starts"],
        new_count=len(after),
        num_threads=num_threads,
        **out,
    )
    to, origin = np.divmod(np.arange(len(after) ** 2), len(after))
    both = np.isin(after, before)[to] & np.isin(after, before)[origin]
    written = np.repeat(both, np.diff(new["starts"]))
    for name, values in out.items():
        np.testing.assert_array_equal(values[written], new[name][written])
        assert (values[~written] == -7).all()


DAMAGE = {
    "a source beyond its partition": ("source", 0, 3),
    "a negative source": ("source", 0, -1),
    "a target beyond the last, short partition": ("target", -1, 2),
    "a negative target": ("target", -1, -1),
    "a position beyond the edges": ("position", 0, 99),
    "a bucket out of order": ("source", 0, 2),
    "buckets that overlap": ("starts", 1, 99),
    "buckets that do not begin at 0": ("starts", 0, -1),
    "edges beyond the last bucket": ("starts", -1, 2),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_buckets_are_an_error(damage: str) -> None:
    """Two partitions of 3 and 2 nodes."""
    edges = np.array([[0, 1, 2, 4, 3], [0, 0, 4, 1, 4]])
    given = bucketed(edges, np.arange(2), 3, 5)
    _core.resident_csc(**given, num_positions=5)
    name, place, value = DAMAGE[damage]
    given[name][place] = value
    with pytest.raises(ValueError, match="bucket"):
        _core.resident_csc(**given, num_positions=5)


def test_buckets_of_another_size_are_an_error() -> None:
    given = bucketed(np.array([[0, 1, 2], [2, 1, 0]]), np.arange(2), 2, 3)
    columns = _core.resident_csc(**given, num_positions=3)
    names = ("source", "target", "position")
    for starts in ([0, 2, 3, 3, 3], [0, 0, 3, 3, 3]):
        out = {name: np.zeros_like(given[name]) for name in names}
        with pytest.raises(ValueError, match="edges than stay"):
            _core.resident_buckets(
                *columns, np.arange(2), rows=2, starts=np.array(starts), new_count=2, **out
            )
    for kept in ([0, 0], [1, 0]):
        out = {name: np.zeros_like(given[name]) for name in names}
        with pytest.raises(ValueError, match="must ascend"):
            _core.resident_buckets(
                *columns,
                np.array(kept),
                rows=2,
                starts=np.array([0, 2, 3, 3, 3]),
                new_count=2,
                **out,
            )
    with pytest.raises(ValueError, match="2\\^31"):
        _core.resident_csc(
            **{**given, "count": 2, "rows": 2**31 - 1, "num_nodes": 2**32 - 2}, num_positions=3
        )
