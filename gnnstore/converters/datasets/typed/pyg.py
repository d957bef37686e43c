"""A `HeteroData` in memory, or a pair of PyG's stores with several types."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.datasets.pyg_values import (
    belongs_to,
    count_nodes,
    edge_array,
    edge_index_of,
    is_array,
    is_split_mask,
    json_value,
    to_numpy,
)
from gnnstore.converters.edges.node_ids import edge_pairs
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import ArraySource, MemoryArray
from gnnstore.converters.typed.graph_writer import HeteroGraphWriter
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.converters.writer.splits import SPLIT_KEYS
from gnnstore.errors import InputError
from gnnstore.formats.store.schema import EdgeType
from gnnstore.progress import Progress

if TYPE_CHECKING:
    from torch_geometric.data import FeatureStore, GraphStore, HeteroData


def has_types(data: object) -> bool:
    """Whether nodes and edges of a data object, or of a pair of PyG's stores, have types."""
    from torch_geometric.data import FeatureStore, GraphStore, HeteroData  # noqa: PLC0415

    if isinstance(data, HeteroData):
        return True
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    features, graph = data
    if not isinstance(features, FeatureStore) or not isinstance(graph, GraphStore):
        return False
    groups = [attr.group_name for attr in features.get_all_tensor_attrs() if _is_named(attr)]
    types = [attr.edge_type for attr in graph.get_all_edge_attrs()]
    return any(name is not None for name in (*groups, *types))


def _is_named(attr: Any) -> bool:
    return bool(attr.is_set("group_name"))


def from_hetero(
    data: HeteroData | tuple[FeatureStore, GraphStore],
    output: PathLike,
    options: ConvertOptions | None,
    progress: Progress | None,
) -> Path:
    """Convert a `HeteroData`, or a pair of PyG's stores with types; see `from_pyg`."""
    if isinstance(data, tuple | list):
        data = _of_stores(*data)
    counts = {name: count_nodes(data[name], f"data[{name!r}]") for name in data.node_types}
    edges = {
        edge_type: edge_array(data[edge_type], f"data[{edge_type}]")
        for edge_type in data.edge_types
    }
    narrow = next((ids.dtype == np.int32 for ids in edges.values()), False)
    with HeteroGraphWriter(
        output,
        counts,
        kind="pyg",
        source={"node_types": list(counts), "edge_types": list(map(list, edges))},
        options=options,
        index_dtype="int32" if narrow else "int64",
        progress=progress,
        edge_types=edges,
    ) as writer:
        for name in data.node_types:
            _write_nodes(writer, data, name)
        for name, value in data._global_store.items():
            if is_array(value):
                array, dtype = to_numpy(value, name)
                writer.set_graph_array(name, array, dtype=dtype)
            else:
                writer.set_graph_attribute(name, json_value(value, name))
        for edge_type, edge_index in edges.items():
            where = f"data[{edge_type}]"
            attributes: dict[str, ArraySource] = {}
            for name, rows, dtype, cat_dim in _rows(data, edge_type, where):
                writer.describe_edge_attribute(edge_type, name, dtype=dtype, cat_dim=cat_dim)
                attributes[name] = MemoryArray(f"{where}.{name}", rows)
            source = MemoryArray(f"{where}.edge_index", edge_index)
            writer.read_edges(
                edge_type,
                edge_pairs(source),
                edge_index.shape[1],
                attributes,
                where=source.label,
            )
        return writer.commit()


def _write_nodes(writer: HeteroGraphWriter, data: HeteroData, node_type: str) -> None:
    where = f"data[{node_type!r}]"
    if "num_nodes" in data[node_type]:
        writer.show_num_nodes(node_type)
    for name, rows, dtype, cat_dim in _rows(data, node_type, where):
        writer.set_node_attribute(node_type, name, rows, dtype=dtype, cat_dim=cat_dim)
        if is_split_mask(name, rows, dtype):
            writer.set_split(node_type, SPLIT_KEYS[name], rows, where=f"{where}.{name}")


def _rows(
    data: HeteroData, of: str | EdgeType, where: str
) -> Iterator[tuple[str, npt.NDArray[Any], str, int]]:
    """Yield name, rows, type and original axis of the attributes of a node or edge type."""
    store = data[of]
    is_own = store.is_node_attr if isinstance(of, str) else store.is_edge_attr
    for name, value in store.items():
        if name in ("edge_index", "num_nodes"):
            continue
        if not is_array(value) or not belongs_to(is_own, name, where):
            of_what = "node" if isinstance(of, str) else "edge"
            raise InputError(
                f"{where}.{name}: a {type(value).__name__}, which has no row for each {of_what}, "
                f"cannot be stored: make it a tensor with a row for each {of_what} (numeric "
                "columns or embeddings of tables and texts), set it on the graph as a whole "
                f"(data.{name}), or remove it"
            )
        array, dtype = to_numpy(value, name, where)
        cat_dim = data.__cat_dim__(name, value, store)
        yield name, np.moveaxis(array, cat_dim, 0), dtype, cat_dim


def _of_stores(features: FeatureStore, graph: GraphStore) -> HeteroData:
    """Return what is in a pair of PyG's stores."""
    from torch_geometric.data import HeteroData  # noqa: PLC0415  (seconds to import)

    data = HeteroData()
    for attr in features.get_all_tensor_attrs():
        whole = copy.copy(attr)
        whole.index = None
        data[attr.group_name][attr.attr_name] = features.get_tensor(whole)
    edges: dict[EdgeType, Any] = {}
    for attr in graph.get_all_edge_attrs():  # may have the same edges in several layouts
        edges.setdefault(attr.edge_type, attr)
    for edge_type, attr in edges.items():
        data[edge_type].edge_index = edge_index_of(graph, attr)
        for name, size in zip(edge_type[::2], attr.size or (None, None), strict=True):
            if size is not None and name not in data.node_types:
                data[name].num_nodes = int(size)
    return data
