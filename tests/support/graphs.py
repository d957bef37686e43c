"""Graphs whose stores many tests read."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnstore.testing.graphs import GraphArrays, random_graph

N, E, WIDTH = 1000, 12_000, 100  # 400 bytes a row: ten rows a page, and 96 bytes of padding


def graph_with_hubs() -> GraphArrays:
    """Return a graph with features, classes and splits, some of whose nodes have many edges."""
    return random_graph(N, E, seed=5, feature_dim=WIDTH, num_classes=7, skew=2.0)


def graph_of_three_tables(**attributes: Any) -> GraphArrays:
    """Return a graph with hubs whose nodes have a second table of features, and edges a third."""
    graph = graph_with_hubs()
    rng = np.random.default_rng(9)
    graph.attributes["h"] = rng.random((N, 30), dtype=np.float32)
    graph.attributes["edge_attr"] = rng.random((E, 20), dtype=np.float32)
    graph.attributes.update(attributes)
    return graph
