"""A `torch_geometric.data.Data` in memory, or a pair of PyG's stores, with all their attributes.

`Data` itself says whether an attribute is one of nodes, of edges or of neither, so that a
batch of the store holds exactly what a batch of the `Data` would.
"""

from __future__ import annotations

import copy
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.converter import converter
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
from gnnstore.converters.datasets.typed.pyg import from_hetero, has_types
from gnnstore.converters.edges.node_ids import edge_pairs
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.pickled import open_saved_data
from gnnstore.converters.inputs.source import MemoryArray
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions, IndexDtype
from gnnstore.converters.writer.splits import SPLIT_KEYS
from gnnstore.errors import UsageError
from gnnstore.progress import Progress

if TYPE_CHECKING:
    from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData

_LOG = logging.getLogger(__name__)


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
    if has_types(data):
        return from_hetero(data, output, options, progress)
    data = _as_data(data)
    edge_index = edge_array(data)
    num_nodes = count_nodes(data)
    index_dtype: IndexDtype = "int32" if edge_index.dtype == np.int32 else "int64"
    with GraphWriter(
        output,
        kind="pyg",
        source={"attributes": sorted(data.keys())},
        options=options,
        num_nodes=num_nodes,
        index_dtype=index_dtype,
        progress=progress,
    ) as writer:
        writer.explicit_num_nodes = "num_nodes" in data
        edge_attributes = {}
        for name in sorted(set(data.keys()) - {"edge_index", "num_nodes"}):
            if is_array(data[name]) and belongs_to(data.is_edge_attr, name):
                rows, dtype, cat_dim = _rows(data, name)
                writer.describe_edge_attribute(name, dtype=dtype, cat_dim=cat_dim)
                edge_attributes[name] = MemoryArray(name, rows)
            else:
                _copy_attribute(writer, data, name)
        writer.read_edges(
            edge_pairs(MemoryArray("data.edge_index", edge_index)),
            edge_index.shape[1],
            edge_attributes,
            where="data.edge_index",
        )
        return writer.commit()


def _as_data(data: Any) -> Data:
    """Return the graph as a `Data`."""
    from torch_geometric.data import Data, FeatureStore, GraphStore  # noqa: PLC0415  (seconds)

    if isinstance(data, Data):
        return data
    if not (
        isinstance(data, tuple | list)
        and len(data) == 2
        and isinstance(data[0], FeatureStore)
        and isinstance(data[1], GraphStore)
    ):
        raise UsageError(
            "expected a torch_geometric.data.Data or HeteroData, or a pair (FeatureStore, "
            "GraphStore), got "
            f"{type(data).__name__}"
        )
    features, graph = data
    tensors, edges = features.get_all_tensor_attrs(), graph.get_all_edge_attrs()
    found = Data()
    for attr in tensors:
        all_rows = copy.copy(attr)
        all_rows.index = None
        if not attr.is_set("group_name"):  # in a Data, there is one group
            all_rows.group_name = None
        found[attr.attr_name] = features.get_tensor(all_rows)
    if edges:
        found.edge_index = edge_index_of(graph, edges[0])
        lengths = [length for length in edges[0].size or () if length is not None]
        if lengths:
            found.num_nodes = max(lengths)
    return found


def _rows(data: Data, name: str) -> tuple[npt.NDArray[Any], str, int]:
    """Return an attribute with its rows first, its type, and the original axis of rows."""
    array, dtype = to_numpy(data[name], name)
    cat_dim = data.__cat_dim__(name, data[name])
    return np.moveaxis(array, cat_dim, 0), dtype, cat_dim


def _copy_attribute(writer: GraphWriter, data: Data, name: str) -> None:
    value = data[name]
    if not is_array(value):
        writer.set_graph_attribute(name, json_value(value, name))
        return
    if not belongs_to(data.is_node_attr, name):
        array, dtype = to_numpy(value, name)
        writer.set_graph_array(name, array, dtype=dtype)
        return
    rows, dtype, cat_dim = _rows(data, name)
    writer.set_node_attribute(name, rows, dtype=dtype, cat_dim=cat_dim)
    if is_split_mask(name, rows, dtype):
        writer.set_split(SPLIT_KEYS[name], rows, where=f"data.{name}")
    elif name.endswith("_mask") and name in SPLIT_KEYS:
        _LOG.warning(
            "data.%s is %s %s, and no mask of a split; for a split, make it bool [N]",
            name,
            dtype,
            list(rows.shape),
        )
