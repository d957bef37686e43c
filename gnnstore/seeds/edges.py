"""The seed edges that batches start from: resolved and checked before any work.

As for nodes, whatever a user gives as `edge_label_index` is checked when the loader is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.seeds.nodes import to_numpy

if TYPE_CHECKING:
    from gnnstore.graph.store import GraphStore


def resolve_edges(store: GraphStore, edge_label_index: Any) -> npt.NDArray[Any] | None:
    """Turn whatever names edges into sources and targets."""
    edge_label_index = _without_type(store, edge_label_index)
    if split := named_split(store, edge_label_index):
        return store.edge_splits[split].ends(id_dtype(store.num_nodes - 1))
    if isinstance(edge_label_index, str):
        edge_label_index = None
    if edge_label_index is None:
        if store.num_edges == 0:
            raise InputError(f"edge_label_index=None: {store.path} has no edges to start from")
        return None
    if isinstance(edge_label_index, (tuple, list)):  # of two tensors, which NumPy would walk
        edge_label_index = [to_numpy(ends) for ends in edge_label_index]
    try:
        values = to_numpy(edge_label_index)
    except ValueError as error:
        raise InputError(
            f"edge_label_index: {error}; expected sources and targets, [2, L]"
        ) from None
    if values.ndim != 2 or values.shape[0] != 2:
        raise InputError(
            f"edge_label_index has the shape {list(values.shape)}; expected sources and targets, "
            "[2, L]"
        )
    if values.shape[1] == 0:
        raise InputError("edge_label_index has no edges; expected at least one to start from")
    if values.dtype.kind not in "iu":
        raise InputError(
            f"edge_label_index has the element type {values.dtype}; expected node ids (integers)"
        )
    if values.min() < 0 or values.max() >= store.num_nodes:
        row, place = np.argwhere((values < 0) | (values >= store.num_nodes))[0]
        raise InputError(
            f"{('source', 'target')[row]} {values[row, place]} at position {place} of "
            f"edge_label_index is outside the graph, which has {store.num_nodes} nodes (0 to "
            f"{store.num_nodes - 1})"
        )
    return values.astype(id_dtype(store.num_nodes - 1), order="C")


def named_split(store: GraphStore, edge_label_index: Any) -> str | None:
    """Return the name of the edge split that was given; None for edges, or all of the graph."""
    name = _without_type(store, edge_label_index)
    splits = store.edge_splits
    is_all = splits.has_message_train and name in ("train", "training")
    if not isinstance(name, str) or is_all:
        return None
    splits[name]  # raises if it is not there
    return name


def check_ids_are_dense(store: GraphStore) -> None:
    """Raise unless a label for each edge of the graph can be found by the edge's id."""
    ids = store.topology("mmap").columns().edge_id
    if ids is not None and len(ids) and ids.max() >= store.num_edges:
        raise InputError(
            f"edge_label and input_id are by edge id, but ids of {store.path} run to {ids.max()} "
            f"and it has {store.num_edges} edges: others were left out of it, such as those of "
            "edge splits. Give the edges by their ends [2, L], and labels in their order"
        )


def _without_type(store: GraphStore, edge_label_index: Any) -> Any:
    """Check the edge type that edges may be given with, and return them without it."""
    if _is_edge_type(edge_label_index):
        edge_label_index = (edge_label_index, None)
    is_pair = isinstance(edge_label_index, tuple) and len(edge_label_index) == 2
    if is_pair and edge_label_index[0] is None:  # PyG's name of a homogeneous graph's edges
        edge_label_index = edge_label_index[1]
    elif is_pair and _is_edge_type(edge_label_index[0]):
        edge_type, edge_label_index = edge_label_index
        store.schema.edge_of(edge_type)  # raises if it is not there
    return edge_label_index


def _is_edge_type(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and all(isinstance(v, str) for v in value)


def resolve_labels(edge_label: Any, num_edges: int) -> torch.Tensor | None:
    """Check the labels of edges; returns a copy [L, ...]."""
    if edge_label is None:
        return None
    try:
        labels = torch.as_tensor(edge_label).detach().cpu().to_dense().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"edge_label is a {type(edge_label).__name__} ({error}); expected numbers, one for "
            "each edge"
        ) from None
    if labels.dim() == 0 or len(labels) != num_edges:
        raise InputError(
            f"edge_label has the shape {list(labels.shape)} for {num_edges} edges; give one label "
            "for each, or leave it out"
        )
    return labels
