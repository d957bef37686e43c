"""Graphs whose stores many tests read, and stores read whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.opening import PathLike
from gnnstore.formats import AttributeSpec, StoreReader, load_csc
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


@dataclass(frozen=True)
class StoredGraph:
    """The contents of a store, read into memory."""

    num_nodes: int
    edge_index: npt.NDArray[np.int64]  # [2, E]: sources above targets, in the order of the columns
    edge_id: npt.NDArray[np.int64]  # [E]: positions in the input; 0, ..., E - 1 if there are none
    attributes: dict[str, npt.NDArray[Any]]
    edge_attributes: dict[str, npt.NDArray[Any]]
    splits: dict[str, npt.NDArray[Any]]
    graph_arrays: dict[str, npt.NDArray[Any]]
    original_ids: npt.NDArray[np.int64] | None  # that nodes had before [N]
    scales: dict[str, npt.NDArray[np.float32]]  # of the columns of attributes, by their names

    def pairs(self) -> list[tuple[int, int]]:
        """Return the edges as (source, target), in the order of the columns."""
        return [(int(source), int(target)) for source, target in self.edge_index.T]


def read_store(path: PathLike) -> StoredGraph:
    """Read a whole homogeneous store, for tests that compare contents."""
    reader = StoreReader.open(path)
    node, edge = reader.schema.node, reader.schema.edge

    def read_all(specs: Mapping[str, AttributeSpec]) -> dict[str, npt.NDArray[Any]]:
        return {name: reader.read(spec) for name, spec in specs.items()}

    csc = load_csc(reader, edge)
    targets = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    ids = edge.ids_in_input
    edge_id = np.arange(csc.num_edges) if ids is None else reader.read(ids)
    return StoredGraph(
        node.num_nodes,
        np.stack([csc.indices.astype(np.int64), targets]),
        edge_id.astype(np.int64),
        read_all(node.attributes),
        read_all(edge.attributes),
        read_all(node.splits),
        read_all(reader.schema.graph_arrays),
        None if node.original_id is None else reader.read(node.original_id),
        {spec.name: reader.scales[spec.path] for spec, _ in reader.schema.scaled_attributes()},
    )


def pair_weights(edge_index: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return a weight for each edge, the same for its reverse and for edges that are equal."""
    low, high = np.sort(edge_index, axis=0).astype(np.int64)
    weights: npt.NDArray[np.float32] = ((low * 7919 + high) % 997).astype(np.float32)
    return weights
