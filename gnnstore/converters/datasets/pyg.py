"""A `Data` or `HeteroData` of PyG, or a pair of its stores, with all their attributes.

PyG itself says whether an attribute is one of nodes, of edges or of neither, so that a batch of the
store holds exactly what a batch of the data object would.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.buffer import edge_pairs
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.pickled import open_saved_data
from gnnstore.converters.inputs.source import ArraySource, MemoryArray
from gnnstore.converters.typed.graph_writer import HeteroGraphWriter, reverse_types
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.node_arrays import SPLIT_KEYS
from gnnstore.converters.writer.options import ConvertOptions, converter
from gnnstore.errors import InputError, UsageError
from gnnstore.progress import Progress

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
    from torch_geometric.data.graph_store import EdgeAttr

_LOG = logging.getLogger(__name__)

_STRUCTURE = {"edge_index", "num_nodes"}


@converter
def from_pyg(
    data: Data | HeteroData | tuple[FeatureStore, GraphStore] | PathLike,
    output: PathLike,
    *,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
    **more: Any,
) -> Path:
    """Convert a `Data` or `HeteroData` with any node, edge and graph attributes.

    Tensors and arrays whose length along `Data.__cat_dim__` is N or E become node and edge
    attributes, as `Data.is_node_attr` and `is_edge_attr` say. Other tensors, numbers,
    strings, and lists and dicts of them, are kept as values of the whole graph. Masks
    `train_mask`, `val_mask` and `test_mask` of shape [N] are node attributes and also the
    splits train, valid and test. An `edge_index` of int32 gives batches of int32.

    Parameters
    ----------
    data : torch_geometric.data.Data, HeteroData, a pair (FeatureStore, GraphStore), or path-like
        On any device; or a file of `torch.save` with a `Data`, or the processed file of a data set
        of one graph. Such a file is unpickled with a list of allowed names, and read whole: four
        times the file counts in `options.memory_bytes`. Of a pair, one type of nodes or edges after
        the other is read into memory.
    output, options, progress
        See `gnnstore.converters`.
    **more
        Single options, as in `time_attr=("time",)`; see `ConvertOptions`.

    Raises
    ------
    InputError
        If an attribute cannot be stored (the message has its name), or ids are out of range.
    UsageError
        If `data` is something else.
    """
    if more:
        options = replace(options or ConvertOptions(), **more)
    if isinstance(data, str | os.PathLike):
        data = open_saved_data(data, None if options is None else options.memory_bytes)
    whole, has_types = _as_data(data)
    # Parts by their types; a `Data`, which has none, is the only part.
    nodes: dict[Any, tuple[Any, str]] = {(): (whole, "data")}
    edges = nodes
    if has_types:
        nodes = {(name,): (whole[name], f"data[{name!r}]") for name in whole.node_types}
        edges = {(own,): (whole[own], f"data[{own}]") for own in whole.edge_types}
    counts = [_count_nodes(*part) for part in nodes.values()]
    indices = {of: _edge_array(*part) for of, part in edges.items()}
    is_narrow = next((ids.dtype == np.int32 for ids in indices.values()), False)
    how: dict[str, Any] = {"kind": "pyg", "options": options, "progress": progress}
    how["index_dtype"] = "int32" if is_narrow else "int64"
    with (_typed_writer if has_types else _writer)(output, whole, counts, how) as writer:
        for of, (part, where) in nodes.items():
            for name, rows, dtype, cat_dim in _rows(whole, part, part.is_node_attr, where):
                writer.set_node_attribute(*of, name, rows, dtype=dtype, cat_dim=cat_dim)
                if _is_split_mask(name, rows, dtype, where):
                    writer.set_split(*of, SPLIT_KEYS[name], rows, where=f"{where}.{name}")
        for name, value in whole._global_store.items() if has_types else _of_graph(whole):
            if _is_array(value):
                array, dtype = _to_numpy(value, name)
                writer.set_graph_array(name, array, dtype=dtype)
            else:
                writer.set_graph_attribute(name, _json_value(value, name))
        for of, (part, where) in edges.items():
            attributes: dict[str, ArraySource] = {}
            for name, rows, dtype, cat_dim in _rows(whole, part, part.is_edge_attr, where):
                writer.describe_edge_attribute(*of, name, dtype=dtype, cat_dim=cat_dim)
                attributes[name] = MemoryArray(f"{where}.{name}", rows)
            index = MemoryArray(f"{where}.edge_index", indices[of])
            pairs, num_edges = edge_pairs(index), index.shape[1]
            writer.read_edges(*of, pairs, num_edges, attributes, where=index.label)
        path: Path = writer.commit()
        return path


def _writer(output: PathLike, data: Data, counts: list[int], how: dict[str, Any]) -> Any:
    source = {"attributes": sorted(data.keys())}
    writer = GraphWriter(output, num_nodes=counts[0], source=source, **how)
    writer.explicit_num_nodes = "num_nodes" in data
    return writer


def _typed_writer(
    output: PathLike, data: HeteroData, counts: list[int], how: dict[str, Any]
) -> Any:
    names, edges = data.node_types, data.edge_types
    source = {"node_types": names, "edge_types": list(map(list, edges))}
    by_type = dict(zip(names, counts, strict=True))
    options = how["options"] or ConvertOptions()
    reverse_types(options.reverse, edges)  # refuses unknown ones
    writer = HeteroGraphWriter(output, by_type, source=source, **how)
    for name in names:
        if "num_nodes" in data[name]:
            writer.show_num_nodes(name)
    return writer


def _as_data(data: Any) -> tuple[Any, bool]:
    """Return the graph as a `Data` or `HeteroData`, and whether it has types."""
    from torch_geometric.data import (  # noqa: PLC0415  (seconds to import)
        Data,
        FeatureStore,
        GraphStore,
        HeteroData,
    )

    if isinstance(data, Data | HeteroData):
        return data, isinstance(data, HeteroData)
    features, graph = data if isinstance(data, tuple | list) and len(data) == 2 else (None, None)
    if not isinstance(features, FeatureStore) or not isinstance(graph, GraphStore):
        raise UsageError(
            "expected a torch_geometric.data.Data or HeteroData, or a pair (FeatureStore, "
            f"GraphStore), got {type(data).__name__}"
        )
    tensors = features.get_all_tensor_attrs()
    edges: dict[Any, EdgeAttr] = {}
    for edge_attr in graph.get_all_edge_attrs():  # may have the same edges in several layouts
        edges.setdefault(edge_attr.edge_type, edge_attr)
    groups = [attr.group_name for attr in tensors if attr.is_set("group_name")]
    has_types = any(name is not None for name in (*groups, *edges))
    found: Any = HeteroData() if has_types else Data()
    for attr in tensors:
        all_rows = copy.copy(attr)
        all_rows.index = None
        if not attr.is_set("group_name"):  # in a Data, there is one group
            all_rows.group_name = None
        part = found[attr.group_name] if has_types else found
        part[attr.attr_name] = features.get_tensor(all_rows)
    for edge_type, edge_attr in edges.items():
        part = found[edge_type] if has_types else found
        part.edge_index = _edge_index_of(graph, edge_attr)
        sizes = edge_attr.size or (None, None)
        if has_types:
            for name, size in zip(edge_type[::2], sizes, strict=True):
                if size is not None and name not in found.node_types:
                    found[name].num_nodes = int(size)
        elif any(size is not None for size in sizes):
            found.num_nodes = max(size for size in sizes if size is not None)
    return found, has_types


def _rows(
    data: Any, part: Any, is_own: Callable[[str], bool], where: str
) -> Iterator[tuple[str, npt.NDArray[Any], str, int]]:
    """Yield name, rows, type and original axis of the attributes of nodes or edges."""
    has_types = part is not data
    for name in part.keys() if has_types else sorted(part.keys()):
        value = part[name]
        if name in _STRUCTURE:
            continue
        if _is_array(value) and _belongs_to(is_own, name, where):
            array, dtype = _to_numpy(value, name, where)
            cat_dim = data.__cat_dim__(name, value, part)
            yield name, np.moveaxis(array, cat_dim, 0), dtype, cat_dim
        elif has_types:
            raise InputError(
                f"{where}.{name}: a {type(value).__name__}, which has no row for each node or edge "
                "of the type, cannot be stored: make it a tensor with such rows (numeric columns "
                "or embeddings of tables and texts), set it on the graph as a whole "
                f"(data.{name}), or remove it"
            )


def _of_graph(data: Data) -> Iterator[tuple[str, Any]]:
    """Yield what belongs to neither nodes nor edges."""
    for name in sorted(set(data.keys()) - _STRUCTURE):
        is_own = (data.is_edge_attr, data.is_node_attr)
        if not _is_array(data[name]) or not any(_belongs_to(of, name) for of in is_own):
            yield name, data[name]


def _is_array(value: object) -> bool:
    """Whether a value is a tensor or a NumPy array."""
    import torch  # noqa: PLC0415

    return isinstance(value, (torch.Tensor, np.ndarray))


def _belongs_to(is_of: Callable[[str], bool], name: str, where: str = "data") -> bool:
    """Return PyG's answer for an attribute, which depends on shapes and the number of edges."""
    try:
        return is_of(name)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        raise InputError(
            f"{where}.{name}: PyG cannot tell whether it belongs to nodes or edges ({error}); "
            "rename or remove the attribute num_edges, if there is one, or this one"
        ) from error


def _to_numpy(value: Any, name: str, where: str = "data") -> tuple[npt.NDArray[Any], str]:
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


def _json_value(value: Any, name: str) -> Any:
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


def _edge_index_of(graph: GraphStore, edges: EdgeAttr) -> torch.Tensor:
    """Return sources and targets of the edges, in the order of the store."""
    import torch  # noqa: PLC0415

    rows, columns = graph.get_edge_index(edges)
    if edges.layout.value == "csr":  # pointers to the edges of each source
        rows = torch.repeat_interleave(torch.arange(len(rows) - 1), rows.diff())
    elif edges.layout.value == "csc":
        columns = torch.repeat_interleave(torch.arange(len(columns) - 1), columns.diff())
    return torch.stack([rows, columns.to(rows.dtype)])


def _count_nodes(data: Any, where: str = "data") -> int:
    """Return the number of nodes of a data object, or of one of its types."""
    with warnings.catch_warnings():  # counting nodes by the largest id is intended
        warnings.simplefilter("ignore")
        count = data.num_nodes
    if count is None:
        raise InputError(f"{where} does not say how many nodes it has; set {where}.num_nodes")
    return int(count)


def _edge_array(data: Any, where: str = "data") -> npt.NDArray[Any]:
    """Return the `edge_index` of a data object, or of one of its types, as an array [2, E]."""
    if "adj_t" in data:
        raise InputError(
            f"{where}.adj_t: adjacency matrices cannot be converted; keep the edges in "
            f"{where}.edge_index (leave out the ToSparseTensor transform)"
        )
    value = data["edge_index"] if "edge_index" in data else None  # noqa: SIM401 - no dict
    if value is None:
        return np.empty((2, 0), np.int64)
    if not _is_array(value):
        raise InputError(
            f"{where}.edge_index: expected a tensor of shape [2, E], got a {type(value).__name__}"
        )
    array, _ = _to_numpy(value, "edge_index", where)
    if array.ndim != 2 or array.shape[0] != 2:
        raise InputError(f"{where}.edge_index: has shape {list(array.shape)}, expected [2, E]")
    return array


def _is_split_mask(name: str, rows: npt.NDArray[Any], dtype: str, where: str) -> bool:
    """Whether a node attribute is the mask of a split; warn if only its name is one's."""
    if not name.endswith("_mask") or name not in SPLIT_KEYS:
        return False
    is_mask = dtype == "bool" and (rows.ndim == 1 or rows.shape[1:] == (1,))
    if not is_mask:
        found = (f"{where}.{name}", dtype, list(rows.shape))
        _LOG.warning("%s is %s %s, and no mask of a split; for a split, make it bool [N]", *found)
    return is_mask
