"""Hypothesis strategies for graphs and converter options, for our tests and for users'.

Needs the package `hypothesis`, which gnnstore itself does not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.testing.graphs import GraphArrays


@st.composite
def edge_indices(draw: st.DrawFn, num_nodes: int, max_edges: int = 40) -> npt.NDArray[np.int64]:
    """Draw edges [2, E] among `num_nodes` nodes, parallel ones and self-loops included."""
    node = st.integers(0, max(0, num_nodes - 1))
    edges = st.lists(st.tuples(node, node), max_size=max_edges if num_nodes else 0)
    return np.array(draw(edges), dtype=np.int64).reshape(-1, 2).T.copy()


@st.composite
def graphs(
    draw: st.DrawFn, *, min_nodes: int = 0, max_nodes: int = 12, max_edges: int = 40
) -> GraphArrays:
    """Draw graphs whose attributes name their rows: `x` is [node, -node], `edge_attr` is [edge].

    Small ones shrink to readable counter-examples; most defects with a large graph show with one
    of twelve nodes.
    """
    num_nodes = draw(st.integers(min_nodes, max_nodes))
    edge_index = draw(edge_indices(num_nodes, max_edges))
    nodes = np.arange(num_nodes, dtype=np.float32)
    attributes = {
        "x": np.stack([nodes, -nodes], axis=1),
        "edge_attr": np.arange(edge_index.shape[1], dtype=np.float32)[:, None],
    }
    return GraphArrays(num_nodes, edge_index, attributes)


def convert_options() -> st.SearchStrategy[ConvertOptions]:
    """Return the strategy of options that change which edges a store has."""
    return st.builds(
        ConvertOptions,
        undirected=st.booleans(),
        self_loops=st.sampled_from(("keep", "drop", "add")),
        edge_ids=st.sampled_from((None, True, False)),
        page_bytes=st.sampled_from((512, 4096)),
    )
