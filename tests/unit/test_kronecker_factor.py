"""The factor graph: derived from communities, balanced, and cut into patterns without a rest."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.converters import ConvertOptions
from gnnstore.converters.keyed_random import hash_pairs
from gnnstore.converters.stores.graph import StoreInput
from gnnstore.converters.synthetic.factor_graph import (
    FactorGraph,
    _Splitter,
    balance,
    check_factor,
    derive_factor,
    draw_patterns,
    group_densities,
    round_ratio,
)
from gnnstore.errors import UsageError
from gnnstore.progress import NullProgress
from gnnstore.testing.graphs import write_store
from tests.support.effort import examples

SIZES = [(1, 1.0), (1, 0.5), (2, 3.3), (4, 8.8), (4, 0.25), (5, 25.0), (16, 16.0), (16, 255.9)]


def lumpy(size: int) -> npt.NDArray[np.float64]:
    """Return densities with communities, and groups without any edge between them."""
    densities = np.random.default_rng(size).random((size, size)) ** 4 + 2 * np.eye(size)
    densities[densities < 0.05] = 0
    result: npt.NDArray[np.float64] = densities + densities.T
    return result


def make(size: int, edge_factor: float, seed: int = 0) -> tuple[FactorGraph, float, Any]:
    bits, ratio = round_ratio(edge_factor / size, size)
    target = balance(lumpy(size), ratio)
    return draw_patterns(target, ratio, bits, seed), ratio, target


@pytest.mark.parametrize(("size", "edge_factor"), SIZES)
def test_rows_and_columns_are_balanced(size: int, edge_factor: float) -> None:
    ratio = edge_factor / size
    found = balance(lumpy(size), ratio)
    np.testing.assert_allclose(found.sum(axis=0), ratio, rtol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), ratio, rtol=1e-12)
    assert found.min() > 0
    assert found.max() <= 1
    assert found.max() < 1 or ratio == size


def test_balancing_keeps_what_is_balanced_already() -> None:
    circulant = np.array([[4.0, 2, 1, 2], [2, 4, 2, 1], [1, 2, 4, 2], [2, 1, 2, 4]])
    found = balance(circulant, 0.9)
    # But for the even share of 2 % twice.
    np.testing.assert_allclose(found, circulant * 0.1, rtol=0.1)
    assert found[0, 0] > found[0, 1] > found[0, 2]


def test_a_graph_without_edges_has_an_even_factor() -> None:
    assert np.all(balance(np.zeros((3, 3)), 1.5) == 0.5)


@pytest.mark.parametrize(("size", "edge_factor"), SIZES)
def test_patterns_are_the_probabilities_and_each_is_balanced(size: int, edge_factor: float) -> None:
    factor, ratio, target = make(size, edge_factor)
    found = factor.probabilities()
    assert np.all(np.abs(found - target) < 1 / factor.num_patterns + 1e-9)
    np.testing.assert_allclose(found.sum(axis=0), ratio, rtol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), ratio, rtol=1e-12)
    assert factor.edge_factor == pytest.approx(edge_factor, rel=2e-3)
    for pattern in range(factor.num_patterns):
        place = slice(factor.offsets[pattern], factor.offsets[pattern + 1])
        rows, columns = factor.rows[place], factor.columns[place]
        assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == len(rows)
        for ends in (rows, columns):
            degrees = np.bincount(ends, minlength=size)
            assert degrees.min() >= np.floor(ratio)
            assert degrees.max() <= np.ceil(ratio)


def test_patterns_differ_and_follow_the_seed() -> None:
    first, again, other = (make(16, 16.0, seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first.rows, again.rows)
    assert np.array_equal(first.columns, again.columns)
    assert not np.array_equal(first.columns, other.columns)
    patterns = {first.columns[16 * p : 16 * p + 16].tobytes() for p in range(first.num_patterns)}
    assert len(patterns) > 0.9 * first.num_patterns


def test_ratios_are_met_closely() -> None:
    for size, edge_factor in [*SIZES, (90, 327.0), (256, 256.0), (3, 0.05), (200, 3.3)]:
        wanted = edge_factor / size
        bits, ratio = round_ratio(wanted, size)
        assert ratio == pytest.approx(wanted, rel=1e-4 if wanted >= 0.1 else 2e-3)
        assert ratio * 2**bits == round(ratio * 2**bits)
        assert 2**bits * edge_factor <= 2**22


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(1, 6).flatmap(
        lambda size: st.tuples(
            st.just(size), st.lists(st.integers(0, 9), min_size=size**2, max_size=size**2)
        )
    ),
    st.integers(0, 2**64 - 1),
)
def test_halves_are_halves(matrix: tuple[int, list[int]], seed: int) -> None:
    """Of every class of parallel edges, and of the edges of every row and column."""
    size, entries = matrix
    counts = np.array(entries).reshape(size, size)
    codes = np.flatnonzero(counts)
    halves = []
    for part, left in _Splitter(size, seed).halve(codes, counts.reshape(-1)[codes]):
        assert np.all(left > 0)
        half = np.zeros(size**2, np.int64)
        half[part] = left
        halves.append(half.reshape(size, size))
    assert np.array_equal(halves[0] + halves[1], counts)
    difference = halves[0] - halves[1]
    assert np.abs(difference).max() <= 1
    assert np.abs(difference.sum(axis=0)).max() <= 1
    assert np.abs(difference.sum(axis=1)).max() <= 1


def cliques(folder: Path, num_cliques: int, size: int) -> StoreInput:
    """Return complete graphs with a few edges between them, their nodes shuffled."""
    rng = np.random.default_rng(1)
    nodes = rng.permutation(num_cliques * size)
    pairs = np.array([(a, b) for a in range(size) for b in range(a)]).T
    edges = np.concatenate(
        [
            *(pairs + size * clique for clique in range(num_cliques)),
            rng.integers(0, num_cliques * size, (2, 2 * num_cliques)),
        ],
        axis=1,
    )
    options = ConvertOptions(undirected=True, edge_ids=False)
    return StoreInput(
        write_store(
            folder / "cliques.gnn", nodes[edges], num_nodes=num_cliques * size, options=options
        )
    )


def test_groups_are_communities(tmp_path: Path) -> None:
    """16 cliques of 12 nodes in four groups: nearly all edges lie within groups."""
    graph = cliques(tmp_path, 16, 12)
    densities = group_densities(graph, 4, NullProgress())
    assert np.array_equal(densities, densities.T)
    assert np.trace(densities) / densities.sum() > 0.85  # a quarter by chance
    assert densities.sum() == pytest.approx(2 * graph.num_edges, rel=1e-9)
    factor = derive_factor(graph, 4, 4.0, 0, NullProgress())
    assert np.trace(factor.probabilities()) > 3.2


def test_groups_have_about_the_same_size(tmp_path: Path) -> None:
    densities = group_densities(cliques(tmp_path, 16, 12), 4, NullProgress())
    sums = densities.sum(axis=1)
    assert sums.max() < 1.5 * sums.min()


@pytest.mark.parametrize(
    ("factor", "edge_factor"), [(0, 1.0), (257, 257.0), (2, 4.1), (2, 0.03), (2, float("nan"))]
)
def test_sizes_that_cannot_be(factor: int, edge_factor: float) -> None:
    with pytest.raises(UsageError):
        check_factor(factor, edge_factor)


def test_hashes_of_pairs_are_spread_evenly() -> None:
    """Over their leading bits, for pairs as regular as those of a graph."""
    low, high = (ids.reshape(-1) for ids in np.meshgrid(np.arange(256), np.arange(256)))
    words = hash_pairs(5, low, high, None)
    assert len(np.unique(words)) == len(words)
    counts = np.bincount((words >> np.uint64(56)).astype(np.int64), minlength=256)
    chi_square = float(((counts - 256) ** 2 / 256).sum())
    assert abs(chi_square - 255) < 5 * np.sqrt(2 * 255)
    ranked = hash_pairs(5, low, high, np.arange(len(low)) % 2)
    assert np.array_equal(ranked[::2], words[::2])
    assert not np.any(ranked[1::2] == words[1::2])
    assert Counter(hash_pairs(6, low, high, None) == words)[True] == 0
