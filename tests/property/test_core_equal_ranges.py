"""Searches in many ascending ranges: the positions of what equals a number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore import _core
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.store.store import Csc
from gnnstore.sampling.sampled_graph import EdgeFinder
from tests.support.effort import examples


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.lists(st.integers(-3, 9), max_size=40), min_size=1, max_size=40),
    st.sampled_from([np.int32, np.int64]),
    st.integers(0, 2**32),
)
def test_every_search_finds_what_numpy_finds(
    columns: list[list[int]], dtype: type, seed: int
) -> None:
    bounds = np.concatenate([[0], np.cumsum([len(column) for column in columns])])
    values = np.concatenate([np.sort(np.array(column, dtype)) for column in columns])
    rng = np.random.default_rng(seed)
    which = rng.integers(0, len(columns), 50)
    wanted = rng.integers(-4, 11, 50)
    firsts, ends = _core.equal_ranges(values, bounds[which], bounds[which + 1], wanted)
    for column, number, first, end in zip(which, wanted, firsts, ends, strict=True):
        own = values[bounds[column] : bounds[column + 1]]
        assert first == bounds[column] + np.searchsorted(own, number, "left")
        assert end == bounds[column] + np.searchsorted(own, number, "right")


def test_long_ranges_of_equal_numbers() -> None:
    values = np.repeat(np.array([-(2**40), 7, 2**40]), 1000)
    found = _core.equal_ranges(
        values, np.zeros(3, np.int64), np.full(3, 3000), np.array([-(2**40), 7, 2**40])
    )
    assert [part.tolist() for part in found] == [[0, 1000, 2000], [1000, 2000, 3000]]


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (2, 1), (0, 4)])
def test_ranges_outside_of_the_array_are_refused(begin: int, end: int) -> None:
    ranges = np.array([0, begin]), np.array([1, end])
    with pytest.raises(IndexError, match="range 1"):
        _core.equal_ranges(np.arange(3), *ranges, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="same length"):
        _core.equal_ranges(np.arange(3), *ranges, np.zeros(3, np.int64))
    csc = Csc(np.array([0, begin, end]), np.arange(3), 3, "graph.gnn")
    with pytest.raises(CorruptStoreError, match="graph"):
        EdgeFinder(csc).are_edges(np.array([0]), np.array([1]))
