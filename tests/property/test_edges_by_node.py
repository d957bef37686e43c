"""A batch's edges by target and by source: the kernel and its twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore import _core
from tests.support.effort import examples
from tests.support.twins import sampling as twins


@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 60),
    st.integers(0, 2**32),
    st.tuples(st.booleans(), st.sampled_from([np.int32, np.int64])),
)
def test_edges_are_those_of_the_twin(
    num_targets: int, num_sources: int, num_edges: int, seed: int, weights: tuple[bool, Any]
) -> None:
    weighted, dtype = weights
    rng = np.random.default_rng(seed)
    sources = rng.integers(0, num_sources, num_edges)
    targets = np.sort(rng.integers(0, num_targets, num_edges))
    kept = int(rng.integers(0, num_edges + 1))
    layers = [(num_edges, num_sources), (kept, int(sources[:kept].max(initial=-1)) + 1)]
    values = rng.random(num_edges, dtype=np.float32) if weighted else None
    arguments = (np.stack([sources, targets]).astype(dtype), num_targets, num_sources, layers)
    crow, col, transposes = _core.edges_by_node(*arguments, values)
    expected = twins.edges_by_node(*arguments, values)
    np.testing.assert_array_equal(crow, expected[0], strict=True)
    np.testing.assert_array_equal(col, expected[1], strict=True)
    for ours, theirs in zip(transposes, expected[2], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            if a is None or b is None:
                assert a is b
            else:
                np.testing.assert_array_equal(a, b, strict=True)


EDGES = np.array([[0, 1, 2], [0, 1, 1]])
ALL = [(3, 3)]
WRONG: dict[str, tuple[Any, ...]] = {
    "edge 1 is 0; targets must ascend": (np.array([[0, 1, 2], [1, 0, 1]]), 2, 3, ALL),
    "and be below 1": (EDGES, 1, 3, ALL),
    "edge 0 is -1; targets": (np.array([[0], [-1]]), 2, 3, [(1, 3)]),
    r"edge 2 comes from node 2, outside \[0, 2\)": (EDGES, 2, 2, [(3, 2)]),
    "edge 0 comes from node -1": (np.array([[-1], [0]]), 2, 2, [(1, 2)]),
    r"node 1, outside \[0, 1\)": (EDGES, 2, 3, [*ALL, (2, 1)]),
    "the first layer must have all": (EDGES, 2, 3, [(2, 3)]),
    "must have all edges": (EDGES, 2, 3, []),
    "a layer of 4 edges": (EDGES, 2, 3, [*ALL, (4, 3)]),
    "a layer of 1 edges and 4 sources": (EDGES, 2, 3, [*ALL, (1, 4)]),
    "fit in int32": (EDGES, 2**31, 3, ALL),
    r"shape \[2, m\]": (EDGES[0], 2, 3, ALL),
    "contiguous": (EDGES[:, ::2], 2, 3, [(2, 3)]),
    "one for each edge": (EDGES, 2, 3, ALL, np.ones(2, np.float32)),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_edges_are_an_error(message: str) -> None:
    with pytest.raises((ValueError, IndexError), match=message):
        _core.edges_by_node(*WRONG[message])
    with pytest.raises(TypeError, match="int32 or int64, got float"):
        _core.edges_by_node(EDGES.astype(np.float32), 2, 3, ALL)  # type: ignore[arg-type]
