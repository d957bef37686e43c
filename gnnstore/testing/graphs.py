"""Small graphs as plain arrays, and a function that writes arrays as a store.

Tests of samplers and loaders need graphs with the awkward parts of real ones: isolated nodes,
parallel edges, self-loops, skewed degrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import UsageError


@dataclass(frozen=True)
class GraphArrays:
    """A homogeneous graph as arrays.

    Attributes
    ----------
    num_nodes : int
        N.
    edge_index : ndarray of int64, shape [2, E]
        Sources above targets, in no order.
    attributes : dict of str to ndarray
        Node attributes [N, ...] and, with names that begin with "edge_", edge attributes
        [E, ...].
    splits : dict of str to ndarray of int64
        Node ids of train, valid and test.
    """

    num_nodes: int
    edge_index: npt.NDArray[np.int64]
    attributes: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    splits: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    @property
    def num_edges(self) -> int:
        """Number of edges, E."""
        return int(self.edge_index.shape[1])

    def in_neighbors(self, node: int) -> npt.NDArray[np.int64]:
        """Return the sources of the edges into a node, ascending, repeated as edges are."""
        return np.sort(self.edge_index[0, self.edge_index[1] == node])

    def write(self, path: PathLike, *, options: ConvertOptions | None = None) -> Path:
        """Write the graph as a store; see `write_store`."""
        return write_store(
            path,
            self.edge_index,
            num_nodes=self.num_nodes,
            splits=self.splits,
            options=options,
            **self.attributes,
        )


def random_graph(
    num_nodes: int,
    num_edges: int,
    *,
    seed: int = 0,
    feature_dim: int = 0,
    num_classes: int = 0,
    edge_feature_dim: int = 0,
    skew: float = 1.0,
    coalesced: bool = False,
) -> GraphArrays:
    """Draw a random directed graph.

    Parameters
    ----------
    num_nodes, num_edges : int
        N and E; there are no edges without nodes.
    seed : int
        Same seed, same graph.
    feature_dim : int
        Columns of `x` (float32); 0 for none.
    num_classes : int
        Classes of `y` (int64 [N]), and splits of 60, 20 and 20 %; 0 for neither.
    edge_feature_dim : int
        Columns of `edge_attr` (float32); 0 for none.
    skew : float
        1 draws nodes evenly; a larger one draws low ids more often (3: a few hubs).
    coalesced : bool
        Remove parallel edges and sort by target, then source: `edge_id` is then the
        position in a store. E may shrink.
    """
    rng = np.random.default_rng(seed)
    draws = rng.random((2, num_edges if num_nodes else 0)) ** skew
    edge_index = (draws * num_nodes).astype(np.int64)
    if coalesced:
        columns = np.unique(edge_index[::-1], axis=1)  # rows: target, source
        edge_index = np.ascontiguousarray(columns[::-1])
    attributes: dict[str, npt.NDArray[Any]] = {}
    splits: dict[str, npt.NDArray[np.int64]] = {}
    if feature_dim:
        attributes["x"] = rng.standard_normal((num_nodes, feature_dim), dtype=np.float32)
    if edge_feature_dim:
        shape = (edge_index.shape[1], edge_feature_dim)
        attributes["edge_attr"] = rng.standard_normal(shape, dtype=np.float32)
    if num_classes:
        attributes["y"] = rng.integers(0, num_classes, num_nodes)
        bounds = [round(num_nodes * share) for share in (0.6, 0.8)]
        parts = np.split(rng.permutation(num_nodes), bounds)
        splits = dict(zip(("train", "valid", "test"), map(np.sort, parts), strict=True))
    return GraphArrays(num_nodes, edge_index, attributes, splits)


def write_store(
    path: PathLike,
    edge_index: npt.ArrayLike,
    *,
    num_nodes: int | None = None,
    splits: Mapping[str, npt.NDArray[Any]] | None = None,
    original_ids: npt.NDArray[np.int64] | None = None,
    options: ConvertOptions | None = None,
    **attributes: npt.NDArray[Any],
) -> Path:
    """Write arrays as a store.

    Parameters
    ----------
    edge_index : array-like of integers, shape [2, E]
        Sources above targets.
    num_nodes : int, optional
        N; by default the rows of the node attributes, else one more than the largest id.
    splits : Mapping of str to ndarray, optional
        Node ids or masks.
    original_ids : ndarray of int64, shape [N], optional
        The ids that nodes had before.
    **attributes
        Node attributes [N, ...]; names that begin with "edge_": edge attributes [E, ...].

    Returns
    -------
    Path
        The store.
    """
    edges = np.asarray(edge_index)
    if edges.size == 0:
        edges = np.empty((2, 0), np.int64)
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise UsageError(f"edge_index has shape {list(edges.shape)}, expected [2, E]")
    edge_attributes = {k: v for k, v in attributes.items() if k.startswith("edge_")}
    node_attributes = {k: v for k, v in attributes.items() if k not in edge_attributes}
    if num_nodes is None and node_attributes:
        num_nodes = len(next(iter(node_attributes.values())))
    with GraphWriter(path, kind="arrays", options=options, num_nodes=num_nodes) as writer:
        for name, values in node_attributes.items():
            writer.set_node_attribute(name, values)
        for name, ids in (splits or {}).items():
            writer.set_split(name, ids)
        if original_ids is not None:
            writer.set_original_ids(original_ids)
        writer.add_edges(edges[0], edges[1], edge_attributes, where="edge_index")
        return writer.commit()
