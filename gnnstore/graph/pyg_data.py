"""A whole graph, or an attribute, as PyG has it: `Data`, `HeteroData`, tensors read when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gnnstore.budget.ledger import OF_FREE_MEMORY, Ledger, Reservation
from gnnstore.budget.limits import available_bytes
from gnnstore.errors import CorruptStoreError
from gnnstore.formats import AttributeSpec, EdgeTypeSpec, NodeTypeSpec, Schema, StoreReader
from gnnstore.graph.arrays import Attribute, Splits, as_tensor
from gnnstore.graph.lazy import LazyTensor

if TYPE_CHECKING:
    from gnnstore.formats.store.csc import Csc

# Names in PyG's data sets.
_MASKS = {"valid": "val_mask"}


def read_data(reader: StoreReader, csc: Csc) -> Data:
    """Return the graph of a store of one type."""
    schema = reader.schema
    _require_memory(reader, schema, "a Data")
    data = Data()
    node, edge = schema.node, schema.edge
    for attribute in node.attributes:
        data[attribute] = node_rows(reader, node.attributes[attribute])
    data.edge_index = read_edge_index(reader, edge, csc)
    _fill_edges(data, reader, edge)
    for mask, split in split_masks(node).items():
        if mask not in data:
            data[mask] = read_mask(reader, node, split)
    if schema.explicit_num_nodes or not node.attributes:
        data.num_nodes = node.num_nodes
    return data


def read_hetero(reader: StoreReader, columns: dict[tuple[str, str, str], Csc]) -> HeteroData:
    """Return the graph of a store of several types."""
    schema = reader.schema
    _require_memory(reader, schema, "a HeteroData")
    data = HeteroData()
    for node in schema.node_types:
        store = data[node.name]
        for name, spec in node.attributes.items():
            store[name] = node_rows(reader, spec)
        for mask, split in split_masks(node).items():
            if mask not in store:
                store[mask] = read_mask(reader, node, split)
        if node.explicit_num_nodes:
            store.num_nodes = node.num_nodes
    for edge in schema.edge_types:
        store = data[edge.type]
        store.edge_index = read_edge_index(reader, edge, columns[edge.type])
        _fill_edges(store, reader, edge)
    return data


def _fill_edges(data: object, reader: StoreReader, edge: EdgeTypeSpec) -> None:
    order = order_of_ids(reader, edge)
    for name, spec in edge.attributes.items():
        data[name] = edge_rows(reader, spec, order)  # type: ignore[index]


def _require_memory(reader: StoreReader, schema: Schema, what: str) -> None:
    specs = [*schema.node_attributes(), *schema.edge_attributes()]
    num_edges = sum(edge.num_edges for edge in schema.edge_types)
    needed = sum(spec.num_bytes for spec in specs) + 3 * 8 * num_edges
    memory = Ledger(available_bytes(), (), f"{reader.path}: {what}", OF_FREE_MEMORY, "")
    memory.add(Reservation("attributes and edges", needed)).check(
        None,
        "train from the store, with gnnstore.NeighborLoader",
        "give this process more memory",
    )


def node_rows(reader: StoreReader, spec: AttributeSpec) -> Tensor:
    """Return an attribute of nodes, its rows along the axis that they had."""
    return Attribute(reader, spec).tensor().movedim(0, spec.cat_dim)


def edge_rows(reader: StoreReader, spec: AttributeSpec, order: Tensor | None) -> Tensor:
    """Return an attribute of edges in the order of their ids."""
    rows = Attribute(reader, spec).tensor()
    return (rows if order is None else rows[order]).movedim(0, spec.cat_dim)


def split_masks(node: NodeTypeSpec) -> dict[str, str]:
    """Return the splits of nodes by the names that PyG's data sets give to their masks."""
    return {_MASKS.get(split, f"{split}_mask"): split for split in node.splits}


def read_mask(reader: StoreReader, node: NodeTypeSpec, split: str) -> Tensor:
    """Return a split of nodes as a mask."""
    mask = torch.zeros(node.num_nodes, dtype=torch.bool)
    mask[torch.from_numpy(Splits(reader, node)[split])] = True
    return mask


def read_edge_index(reader: StoreReader, edge: EdgeTypeSpec, csc: Csc) -> Tensor:
    """Return the ends of the edges of a type, [2, E], in the order of their ids."""
    memory = Ledger(available_bytes(), (), f"{reader.path}: edge_index", OF_FREE_MEMORY, "")
    arrays = 3 if edge.edge_id is None else 5  # ends, and the order, by which ends are copied
    memory.add(Reservation("edges and their order", arrays * 8 * edge.num_edges)).check(
        None, "sample from the store instead"
    )
    degrees = np.diff(csc.indptr)
    if degrees.min(initial=0) < 0:
        path = reader.path / edge.indptr.path
        raise CorruptStoreError(
            f"{path}: the pointer of column {int(np.argmin(degrees)) + 1} descends; run "
            "'gnnstore verify' on the store, and convert again",
            path=path,
        )
    found = np.empty((2, edge.num_edges), reader.schema.index_dtype)
    found[0] = csc.indices
    found[1] = np.repeat(np.arange(csc.num_nodes), degrees)
    edge_index, order = torch.from_numpy(found), order_of_ids(reader, edge)
    return edge_index if order is None else edge_index[:, order]


def order_of_ids(reader: StoreReader, edge: EdgeTypeSpec) -> Tensor | None:
    """Return the position of each edge by its id; None where positions are ids."""
    spec = edge.edge_id
    if spec is None:
        return None
    ids = reader.read(spec).astype(np.int64, copy=False)
    if not len(ids) or not 0 <= ids.min() <= ids.max() < len(ids):
        return None
    order = np.full(len(ids), -1, np.int64)
    order[ids] = np.arange(len(ids))
    return None if order.min() < 0 else torch.from_numpy(order)


def lazy_rows(owner: object, attribute: Attribute) -> LazyTensor:
    """Return an attribute of nodes that is read when it is used."""
    spec = attribute.spec
    return LazyTensor(
        owner,
        spec.name,
        _moved(spec),
        getattr(torch, spec.dtype),
        lambda: attribute.tensor().movedim(0, spec.cat_dim),
        select=None if spec.cat_dim else lambda key: as_tensor(attribute[key], spec.dtype),
    )


def lazy_edges(
    owner: object, reader: StoreReader, edge: EdgeTypeSpec, spec: AttributeSpec
) -> LazyTensor:
    """Return an attribute of edges that is read when it is used."""
    return LazyTensor(
        owner,
        spec.name,
        _moved(spec),
        getattr(torch, spec.dtype),
        lambda: edge_rows(reader, spec, order_of_ids(reader, edge)),
    )


def _moved(spec: AttributeSpec) -> list[int]:
    """Return the shape that an attribute has in PyG's `Data`, whose rows may not be first."""
    shape = list(spec.shape[1:])
    place = spec.cat_dim % len(spec.shape)
    return [*shape[:place], spec.shape[0], *shape[place:]]
