"""Any graph under any options: a store that verifies, and edges that add up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import gnnstore
from gnnstore.converters import ConvertOptions
from gnnstore.formats import StoreReader
from gnnstore.testing.graphs import GraphArrays
from tests.support.effort import examples
from tests.support.graphs import StoredGraph, read_store
from tests.support.strategies import convert_options, graphs


def check_edges(graph: GraphArrays, stored: StoredGraph, options: ConvertOptions) -> None:
    """Hold the stored edges against the input's, as sets and counts."""
    given_pairs = Counter((int(s), int(t)) for s, t in graph.edge_index.T)
    found = Counter(stored.pairs())
    loops = {(v, v) for v in range(graph.num_nodes)}
    expected = set(given_pairs)
    if options.undirected:
        expected |= {(t, s) for s, t in expected}
        assert set(found.values()) <= {1}
    if options.self_loops == "add":
        expected |= loops
    if options.self_loops == "drop":
        expected -= loops
    assert set(found) == expected
    if not options.undirected:
        for pair, count in found.items():
            assert count == given_pairs.get(pair, 1)
    # Columns ascend, and sources within them.
    assert np.all(np.diff(stored.edge_index[1]) >= 0)
    assert sorted(stored.pairs(), key=lambda pair: pair[::-1]) == stored.pairs()


def check_ids(graph: GraphArrays, stored: StoredGraph) -> None:
    """Hold each edge's id and attribute against the edge of the input that they name."""
    num_edges = graph.num_edges
    rows = stored.edge_attributes["edge_attr"][:, 0].tolist()
    for (source, target), e, row in zip(stored.pairs(), stored.edge_id.tolist(), rows, strict=True):
        if e < num_edges:
            assert tuple(graph.edge_index[:, e]) == (source, target)
            assert row == e
        elif source != target:
            assert tuple(graph.edge_index[:, e - num_edges]) == (target, source)
            assert row == e - num_edges


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(graph=graphs(), options=convert_options())
def test_a_store_holds_the_graph(
    tmp_path_factory: pytest.TempPathFactory, graph: GraphArrays, options: ConvertOptions
) -> None:
    if options.undirected:  # edges that differ in an attribute would be refused
        low, high = np.sort(graph.edge_index, axis=0)
        once = np.unique(low * graph.num_nodes + high, return_index=True)[1]
        rows = {"x": graph.attributes["x"], "edge_attr": graph.attributes["edge_attr"][: len(once)]}
        graph = GraphArrays(graph.num_nodes, graph.edge_index[:, once], rows)
    path: Path = graph.write(tmp_path_factory.mktemp("g") / "g.gnn", options=options)
    report = gnnstore.verify(path, level="full")
    assert report.ok, report.problems
    stored = read_store(path)
    assert stored.num_nodes == graph.num_nodes
    np.testing.assert_array_equal(stored.attributes["x"], graph.attributes["x"])
    check_edges(graph, stored, options)
    has_ids = StoreReader.open(path).schema.edge.edge_id is not None
    if options.edge_ids is False:
        assert not has_ids
    else:
        check_ids(graph, stored)
