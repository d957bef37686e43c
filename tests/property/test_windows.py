"""The order of a window's batches: the greedy chain, as its twin and the paper's rules have it."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gnnstore.caching.windows import distinct, overlaps, window_order, working_bytes
from gnnstore.pipeline.lookahead.ordering import WindowOrder, Windows
from gnnstore.sampling.row_space import RowSpace
from tests.support.twins import caches as twins

NUM_ROWS = 40

windows = st.lists(st.frozensets(st.integers(0, NUM_ROWS - 1), max_size=8), max_size=9)


def shared_by(window: list[Any], num_rows: int = NUM_ROWS) -> Any:
    """Return what the batches of a window share."""
    return overlaps([np.array(sorted(rows), np.int32) for rows in window], num_rows)


def kept(window: list[Any], order: list[int]) -> int:
    """Return the rows that batches share with the one before them."""
    return sum(len(window[i] & window[j]) for i, j in pairwise(order))


def moved(batches: list[Any]) -> int:
    """Return the rows of batches that the one before them does not have."""
    return sum(map(len, batches)) - kept(batches, [*range(len(batches))])


@given(windows)
@example([])
@example([frozenset()] * 3)
@example([frozenset({1}), frozenset({2}), frozenset({3})])  # none shares a row
@example([frozenset({1, 2}), frozenset({3}), frozenset({1, 2})])  # a batch twice
@example([frozenset({1, 2}), frozenset(), frozenset({2, 63 - 30}), frozenset({1, 2, 5})])
def test_the_order_is_the_greedy_chain_or_the_plain_one(window: list[frozenset[int]]) -> None:
    shared = shared_by(window)
    assert shared.tolist() == [[len(one & other) for other in window] for one in window]
    order, plain = window_order(shared), [*range(len(window))]
    assert order == twins.window_order(window)
    assert sorted(order) == plain, "a batch is lost, or comes twice"
    assert order[:1] == plain[:1]
    assert kept(window, order) >= kept(window, plain)
    if kept(window, plain) == sum(len(one & other) for one, other in pairwise(window)) == 0:
        is_alone = not (shared - np.diag(shared.diagonal())).any()
        assert order == plain or not is_alone


@given(st.lists(st.integers(0, NUM_ROWS - 1)), st.sampled_from([np.int32, np.int64]))
def test_rows_of_a_batch_are_taken_once(rows: list[int], dtype: type[Any]) -> None:
    found = distinct(np.array(rows, dtype))
    assert found.dtype == dtype
    assert found.tolist() == [*dict.fromkeys(rows)]


def test_comparing_batches_stops_where_a_check_fails() -> None:
    """Each is compared with all others, which takes long."""
    calls: list[None] = []

    def check() -> None:
        calls.append(None)
        if len(calls) == 3:
            raise InterruptedError

    batches = [np.array([k], np.int32) for k in range(NUM_ROWS)]
    with pytest.raises(InterruptedError):
        overlaps(batches, NUM_ROWS, check)
    assert len(calls) == 3


@pytest.mark.parametrize("is_typed", [False, True])
def test_a_window_takes_the_memory_that_is_reserved(is_typed: bool) -> None:
    """Batches that have nodes twice, or of two types, are there as nodes and as rows."""
    size, num_nodes, num_rows = 8, 6000, 12_000
    space = RowSpace.from_counts({"a": num_rows, "b": num_rows} if is_typed else {"a": num_rows})
    batches: list[Any] = [
        SimpleNamespace(position=k, key=SimpleNamespace(epoch=0)) for k in range(size)
    ]
    reserved = Windows(size, space).reserve(0, num_nodes, "")
    placed: list[int] = []
    draw = np.random.default_rng(3)
    distinct(np.arange(4, dtype=np.int32))  # what first calls import
    tracemalloc.start()
    try:
        order = WindowOrder(
            Windows(size, space),
            batches,
            put=lambda place, *_: placed.append(place),
            drop=placed.append,
            check=lambda: None,
        )
        for _ in batches:
            ids = draw.integers(0, num_rows, num_nodes, np.int32)
            ids[1] = ids[0]
            half = num_nodes // 2
            order.add({"a": ids[:half], "b": ids[half:]} if is_typed else {"a": ids})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert placed == [*range(size)]
    table_bytes = 32 * num_nodes  # is not NumPy's
    assert 0.7 * reserved.fixed < peak + table_bytes <= reserved.fixed
    assert reserved.fixed >= 2 * size * 4 * num_nodes + working_bytes(num_rows, num_nodes, 4)


@pytest.mark.parametrize(("windows_of", "most"), [(1, 1.0), (2, 0.85), (4, 0.6)])
def test_batches_of_communities_in_turn_are_put_together(windows_of: int, most: float) -> None:
    """K communities by turns, whose batches share 60 % of their rows: windows of 4 K halve moves.

    A window of K has one batch of each, and nothing to choose.
    """
    num_communities, size, draw = 8, 100, random.Random(5)
    # Two batches of 100 rows of 130 share 77 on average.
    batches = [
        frozenset(draw.sample(range(130 * k, 130 * k + 130), size))
        for _ in range(12)
        for k in range(num_communities)
    ]
    width, found = windows_of * num_communities, list[Any]()
    for first in range(0, len(batches), width):
        window = batches[first : first + width]
        order = window_order(shared_by(window, 130 * num_communities))
        found += [window[i] for i in order]
        if windows_of == 1:
            assert order == [*range(len(window))]
    ratio = moved(found) / moved(batches)
    assert ratio <= most
    assert windows_of > 1 or ratio == 1.0
