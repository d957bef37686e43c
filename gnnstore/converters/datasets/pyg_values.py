"""The values of PyG's data objects as a store can hold them: arrays, or JSON."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.writer.splits import SPLIT_KEYS
from gnnstore.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import GraphStore
    from torch_geometric.data.graph_store import EdgeAttr


def is_array(value: object) -> bool:
    """Whether a value is a tensor or a NumPy array."""
    import torch  # noqa: PLC0415

    return isinstance(value, (torch.Tensor, np.ndarray))


def belongs_to(is_of: Callable[[str], bool], name: str, where: str = "data") -> bool:
    """Return PyG's answer for an attribute, which depends on shapes and the number of edges."""
    try:
        return is_of(name)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        raise InputError(
            f"{where}.{name}: PyG cannot tell whether it belongs to nodes or edges ({error}); "
            "rename or remove the attribute num_edges, if there is one, or this one"
        ) from error


def to_numpy(value: Any, name: str, where: str = "data") -> tuple[npt.NDArray[Any], str]:
    """Return a tensor or array, without a copy if on the CPU, and its type's name."""
    import torch  # noqa: PLC0415

    if isinstance(value, np.ndarray):
        array, dtype = value, value.dtype.newbyteorder("=").name
    else:
        dtype = str(value.dtype).removeprefix("torch.")
        try:
            tensor = value.detach().cpu().resolve_conj().resolve_neg().as_subclass(torch.Tensor)
            if dtype == "bfloat16":  # NumPy has no such type: a store takes the bits
                return tensor.view(torch.int16).numpy().view(np.uint16), dtype
            array = tensor.numpy()
        except (TypeError, RuntimeError, NotImplementedError) as error:  # sparse, nested, meta
            raise InputError(
                f"{where}.{name}: a {value.layout} tensor of {dtype} cannot be stored ({error}); "
                "make it dense, convert it, or remove it"
            ) from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"{where}.{name}: elements of type {dtype} cannot be stored; use numbers")
    return array, dtype


def json_value(value: Any, name: str) -> Any:
    """Return a graph-level value; refuse one that JSON would change."""
    if isinstance(value, np.generic):
        value = value.item()
    try:
        if json.loads(json.dumps(value, allow_nan=False)) == value:
            return value
    except (TypeError, ValueError, RecursionError):
        pass
    raise InputError(
        f"data.{name}: a {type(value).__name__} like this cannot be stored as JSON, which has no "
        "NaN or infinity; use a tensor, a finite number, a string, or a list or dict (with text "
        "keys) of them, or remove it"
    )


def edge_index_of(graph: GraphStore, edges: EdgeAttr) -> torch.Tensor:
    """Return sources and targets of the edges, in the order of the store."""
    import torch  # noqa: PLC0415

    rows, columns = graph.get_edge_index(edges)
    if edges.layout.value == "csr":  # pointers to the edges of each source
        rows = torch.repeat_interleave(torch.arange(len(rows) - 1), rows.diff())
    elif edges.layout.value == "csc":
        columns = torch.repeat_interleave(torch.arange(len(columns) - 1), columns.diff())
    return torch.stack([rows, columns.to(rows.dtype)])


def count_nodes(data: Any, where: str = "data") -> int:
    """Return the number of nodes of a data object, or of one of its types."""
    with warnings.catch_warnings():  # counting nodes by the largest id is intended
        warnings.simplefilter("ignore")
        count = data.num_nodes
    if count is None:
        raise InputError(f"{where} does not say how many nodes it has; set {where}.num_nodes")
    return int(count)


def edge_array(data: Any, where: str = "data") -> npt.NDArray[Any]:
    """Return the `edge_index` of a data object, or of one of its types, as an array [2, E]."""
    if "adj_t" in data:
        raise InputError(
            f"{where}.adj_t: adjacency matrices cannot be converted; keep the edges in "
            f"{where}.edge_index (leave out the ToSparseTensor transform)"
        )
    value = data["edge_index"] if "edge_index" in data else None  # noqa: SIM401 - no dict
    if value is None:
        return np.empty((2, 0), np.int64)
    if not is_array(value):
        raise InputError(
            f"{where}.edge_index: expected a tensor of shape [2, E], got a {type(value).__name__}"
        )
    array, _ = to_numpy(value, "edge_index", where)
    if array.ndim != 2 or array.shape[0] != 2:
        raise InputError(f"{where}.edge_index: has shape {list(array.shape)}, expected [2, E]")
    return array


def is_split_mask(name: str, rows: npt.NDArray[Any], dtype: str) -> bool:
    """Whether a node attribute is the mask of a split."""
    is_mask = dtype == "bool" and (rows.ndim == 1 or rows.shape[1:] == (1,))
    return is_mask and name.endswith("_mask") and name in SPLIT_KEYS
