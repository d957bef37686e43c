"""Degree distributions: counted right, and told apart where they differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gnnstore.converters import ConvertOptions, from_kronecker, from_rmat
from gnnstore.converters.synthetic.degrees import (
    DegreeComparison,
    DegreeDistribution,
    compare_degrees,
)
from gnnstore.testing.graphs import random_graph


def distribution(degrees: object) -> DegreeDistribution:
    return DegreeDistribution.of_blocks([np.array(degrees, np.int64)])


def distance(before: object, after: object) -> float:
    return DegreeComparison(distribution(before), distribution(after)).distance


def test_counting() -> None:
    blocks = [np.array(block, np.int64) for block in ([0, 3, 3], [], [1], [3, 0, 9])]
    found = DegreeDistribution.of_blocks(blocks)
    assert found.degrees.tolist() == [0, 1, 3, 9]
    assert found.counts.tolist() == [2, 1, 3, 1]
    assert (found.num_nodes, found.num_edges, found.max) == (7, 19, 9)
    assert found.mean == pytest.approx(19 / 7)
    assert found.survival().tolist() == pytest.approx([1, 5 / 7, 4 / 7, 1 / 7])
    assert found.zero_share == pytest.approx(2 / 7)


def test_shares_between_degrees_are_interpolated() -> None:
    found = distribution([0, 1, 1, 4])
    places = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.5, 4.0, 4.5, 9.0])
    expected = [0.25, 0.25, 0.5, 0.75, 0.75, 0.75, 0.875, 1, 1]
    assert found.share_below(places).tolist() == pytest.approx(expected)


def test_the_same_degrees_are_no_distance_apart() -> None:
    assert distance([0, 1, 2, 2, 7], [7, 2, 0, 1, 2] * 3) == pytest.approx(0)
    assert distance([], []) == 0
    assert distance([0, 0], []) == 0
    assert distance([0], [1]) == 1


def test_multiplied_degrees_are_close_and_others_are_not() -> None:
    rng = np.random.default_rng(0)
    degrees = np.rint(1 / rng.random(20000) ** 0.7).astype(np.int64)
    thinned = rng.binomial(3, 0.75, (degrees.max() + 1, 20000))
    random_sums = np.array([thinned[:d, i].sum() for i, d in enumerate(degrees.tolist())])
    assert distance(degrees, 3 * degrees) < 0.2  # the steps of 3, where most nodes have 1
    assert distance(degrees, random_sums) < 0.2
    assert distance(degrees, rng.poisson(degrees.mean(), 20000)) > 0.3
    assert distance(degrees, np.full(20000, 5)) > 0.5


def test_isolated_nodes_count() -> None:
    assert distance([1, 1, 1, 1], [0, 0, 2, 2]) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("exponent", [2.0, 2.5, 3.5])
def test_the_tail_of_a_power_law(exponent: float) -> None:
    uniform = np.random.default_rng(1).random(200000)
    # Rounded from a continuous power law above 9.5: what the estimate is made for.
    degrees = np.rint(9.5 * uniform ** (-1 / (exponent - 1))).astype(np.int64)
    found = distribution(degrees).tail_exponent()
    assert found == pytest.approx(exponent, abs=0.05)


@pytest.mark.parametrize("degrees", [[], [0, 0], [3, 3, 3], [0] * 5 + [1]])
def test_no_tail(degrees: list[int]) -> None:
    assert distribution(degrees).tail_exponent() is None


# Distances below 0.05 are those of degrees that were multiplied and rounded at random;
# graphs of other shapes are eight times as far apart (see the test below).
@pytest.mark.parametrize(("factor", "edge_factor"), [(4, 8.8), (16, 16), (16, 40), (32, 90)])
def test_an_expanded_graph_keeps_the_shape(tmp_path: Path, factor: int, edge_factor: float) -> None:
    options = ConvertOptions(self_loops="drop")  # which are copied once for each node
    seed = from_rmat(tmp_path / "seed.gnn", scale=11, edge_factor=8, feature_dim=0, options=options)
    expanded = from_kronecker(
        seed, tmp_path / "expanded.gnn", factor=factor, edge_factor=edge_factor
    )
    comparison = compare_degrees(seed, expanded)
    assert comparison.distance < 0.05
    before, after = comparison.before.tail_exponent(), comparison.after.tail_exponent()
    assert before == pytest.approx(after, abs=0.1)
    document = comparison.to_json()
    assert document["node_factor"] == factor
    assert document["edge_factor"] == pytest.approx(edge_factor, rel=2e-3)
    assert document["after"]["zero_share"] == document["before"]["zero_share"]


def test_a_graph_of_another_shape_is_told_apart(tmp_path: Path) -> None:
    seed = from_rmat(tmp_path / "seed.gnn", scale=11, edge_factor=8, feature_dim=0)
    options = ConvertOptions(edge_ids=False)
    uniform = random_graph(8 * 2048, 8 * 8 * 2048).write(tmp_path / "u.gnn", options=options)
    assert compare_degrees(seed, uniform).distance > 0.4
