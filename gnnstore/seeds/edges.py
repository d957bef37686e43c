"""The seed edges that batches start from: resolved and checked before any work.

As for nodes, whatever a user gives as `edge_label_index` is checked when the loader is made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt
import torch

from gnnstore.errors import InputError, UsageError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.store.schema import EdgeTypeSpec, Schema
from gnnstore.graph.edge_splits import EdgeSplits
from gnnstore.graph.store import GraphStore
from gnnstore.seeds.nodes import check_range, to_numpy


class GivenEdges(NamedTuple):
    """The seed edges of a loader, of one edge type."""

    edge: EdgeTypeSpec
    ends: npt.NDArray[Any] | None  # int32 or int64 [2, L]; None: all of the graph
    split: str | None = None  # the edge split that they are


def resolve_edges(store: GraphStore, edge_label_index: Any) -> GivenEdges:
    """Turn whatever names edges into sources and targets."""
    edge, given = _typed(store, edge_label_index)
    splits = EdgeSplits(store.reader, edge)
    counts = [store.schema.node_of(name).num_nodes for name in (edge.source, edge.target)]
    dtype = id_dtype(max(counts) - 1)
    if isinstance(given, str):
        if splits.has_message_train and given in ("train", "training"):
            return GivenEdges(edge, None)
        return GivenEdges(edge, splits[given].ends(dtype), given)
    if given is None:
        return GivenEdges(edge, None)
    if isinstance(given, (tuple, list)):  # of two tensors, which NumPy would walk
        given = [to_numpy(ends) for ends in given]
    values = to_numpy(given)
    if values.ndim != 2 or values.shape[0] != 2:
        raise InputError(
            f"edge_label_index has the shape {list(values.shape)}; expected sources and targets, "
            "[2, L]"
        )
    if values.size and values.dtype.kind not in "iu":
        raise InputError(f"edge_label_index has values of {values.dtype}; expected node ids")
    for own, count, what, of in zip(
        values, counts, ("source", "target"), (edge.source, edge.target), strict=True
    ):
        where = "the graph" if store.schema.is_homogeneous else repr(of)
        check_range(own, count, f"edge_label_index: {what}", where, "nodes")
    return GivenEdges(edge, values.astype(dtype, order="C"))


def check_ids_are_dense(store: GraphStore, edge: EdgeTypeSpec) -> None:
    """Raise unless a label for each edge of the graph can be found by the edge's id."""
    if edge.edge_id is None:
        return
    pieces = store.reader.paged(edge.edge_id).pieces()
    largest = max((int(piece.max(initial=0)) for _, piece in pieces), default=0)
    if largest >= edge.num_edges:
        raise InputError(
            f"edge_label and input_id are by edge id, but ids of {store.path} run to {largest} "
            f"and it has {edge.num_edges} edges: others were left out of it, such as those of "
            "edge splits. Give the edges by their ends [2, L], and labels in their order"
        )


def _typed(store: GraphStore, edge_label_index: Any) -> tuple[EdgeTypeSpec, Any]:
    """Return the edge type that edges are given with, and the edges without it."""
    schema, given = store.schema, edge_label_index
    if _is_edge_type(given):
        return _edge_of(schema, given), None
    is_pair = isinstance(given, (tuple, list)) and len(given) == 2
    if is_pair and _is_edge_type(given[0]):
        return _edge_of(schema, given[0]), given[1]
    if not schema.is_homogeneous:
        example = schema.edge_types[0].type
        raise UsageError(
            "edge_label_index does not name an edge type, and the store's types have names; give "
            f"for example edge_label_index=({example}, None). {_edge_types(schema)}"
        )
    if is_pair and given[0] is None:  # PyG's name of a homogeneous graph's edges
        given = given[1]
    return schema.edge, given


def _edge_of(schema: Schema, given: Any) -> EdgeTypeSpec:
    """Return an edge type, also by its source and target if no other has them, as in PyG."""
    if len(given) == 3:
        return schema.edge_of(tuple(given))
    found = [edge for edge in schema.edge_types if (edge.source, edge.target) == tuple(given)]
    if len(found) != 1:
        raise UsageError(
            f"edge_label_index: {len(found)} edge types lead from {given[0]!r} to {given[1]!r}; "
            f"name one by source, relation and target. {_edge_types(schema)}"
        )
    return found[0]


def _edge_types(schema: Schema) -> str:
    return f"There are the edge types {', '.join(str(edge.type) for edge in schema.edge_types)}"


def _is_edge_type(value: Any) -> bool:
    is_tuple = isinstance(value, (tuple, list)) and len(value) in {2, 3}
    return is_tuple and all(isinstance(each, str) for each in value)


def resolve_labels(edge_label: Any, num_edges: int) -> torch.Tensor | None:
    """Check the labels of edges; returns a copy [L, ...]."""
    if edge_label is None:
        return None
    try:
        labels = torch.as_tensor(edge_label).detach().cpu().to_dense().clone()
        if labels.dim() == 0 or len(labels) != num_edges:
            raise ValueError(f"it has the shape {list(labels.shape)}")
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"edge_label is a {type(edge_label).__name__} ({error}); expected numbers, one for "
            f"each of {num_edges} edges"
        ) from None
    return labels
