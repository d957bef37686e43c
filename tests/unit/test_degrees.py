"""Degree distributions: counted right, and told apart where they differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gnnstore.converters import ConvertOptions, from_kronecker, from_rmat
from gnnstore.testing.graphs import random_graph
from gnnstore.tools.scan import (
    DegreeComparison,
    DegreeDistribution,
    compare_degrees,
)
from tests.support.effort import choose


def distribution(degrees: object) -> DegreeDistribution:
    return DegreeDistribution.of_blocks([np.array(degrees, np.int64)])


def distance(before: object, after: object) -> float:
    return DegreeComparison(distribution(before), distribution(after)).distance


@pytest.mark.parametrize("exponent", [2.0, 2.5, 3.5])
def test_the_tail_of_a_power_law(exponent: float) -> None:
    uniform = np.random.default_rng(1).random(200000)
    # Rounded from a continuous power law above 9.5: what the estimate is made for.
    degrees = np.rint(9.5 * uniform ** (-1 / (exponent - 1))).astype(np.int64)
    found = distribution(degrees).tail_exponent()
    assert found == pytest.approx(exponent, abs=0.05)


# Distances below 0.05 are those of degrees that were multiplied and rounded at random;
# graphs of other shapes are eight times as far apart (see the test below).
@pytest.mark.parametrize(
    ("factor", "edge_factor"), [(4, 8.8), *choose([], [(16, 16), (16, 40), (32, 90)])]
)
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
