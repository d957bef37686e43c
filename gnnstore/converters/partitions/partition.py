"""Write the partitions of a store: its nodes in a new order, its edges in buckets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.node_ids import check_ids, id_dtype
from gnnstore.converters.inputs import PathLike
from gnnstore.converters.partitions.order import node_order, rows_per_partition
from gnnstore.converters.stores.graph import StoreInput
from gnnstore.errors import InputError, UsageError, limits_named
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES, PageGeometry
from gnnstore.formats.partitions.manifest import (
    BUCKET_PTR_ARRAY,
    ORDER_ARRAY,
    PLACE_ARRAY,
    POSITION_ARRAY,
    SOURCE_ARRAY,
    TARGET_ARRAY,
    OrderKind,
    node_rows,
)
from gnnstore.formats.partitions.reader import PARTITIONS
from gnnstore.formats.partitions.writer import PartitionsWriter
from gnnstore.formats.store.units import make_units_directory, unit_path


@limits_named("partition the store")
def partition(
    store: PathLike,
    num_partitions: int,
    *,
    name: str | None = None,
    train_first: str | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> Path:
    """Write the nodes and edges of a store once more, in partitions, and return their path.

    Parameters
    ----------
    num_partitions : int
        p; none of them may be empty.
    name : str, optional
        Name of the partitioning in the store; by default its order and p, as in "random-16".
    train_first : str, optional
        A split whose nodes fill the first partitions. Nodes are spread at random otherwise.
    seed : int
        Which nodes go where; in [0, 2**64).
    overwrite : bool
        Whether to replace a partitioning of that name.

    Raises
    ------
    UsageError
        If a partition would be empty, there is no such split, or the store is heterogeneous.
    StoreExistsError
        If there is one of that name.
    NotFoundError, CorruptStoreError, StorageError
        If the store cannot be read, or the partitions not written.
    """
    graph = StoreInput(store)
    path, num_nodes, num_edges = graph.reader.path, graph.num_nodes, graph.num_edges
    if not 0 <= seed < 2**64:
        raise UsageError(f"seed={seed} is outside [0, 2^64)")
    attributes = graph.nodes.attributes
    page_bytes = next(
        (
            graph.reader.paged(spec).geometry.page_bytes
            for spec in attributes.values()
            if spec.layout == "paged"
        ),
        DEFAULT_PAGE_BYTES,
    )
    row_bytes = [id_dtype(num_nodes).itemsize, *(spec.row_bytes for spec in attributes.values())]
    rows = rows_per_partition(
        num_nodes,
        num_partitions,
        [PageGeometry(size, page_bytes).rows_per_page for size in row_bytes],
    )
    is_first = None if train_first is None else _nodes_of(graph, train_first)
    num_train = 0 if is_first is None else int(is_first.sum())
    order_kind: OrderKind = "random" if train_first is None else "train-first"
    final = unit_path(PARTITIONS, path, name or f"{order_kind}-{num_partitions}")
    make_units_directory(PARTITIONS, path)
    with PartitionsWriter(final, overwrite=overwrite, page_bytes=page_bytes) as writer:
        ids = id_dtype(num_nodes)
        order = np.concatenate(list(node_order(num_nodes, seed, is_first, 2**27)))
        place = np.empty(num_nodes, np.int64)
        place[order] = np.arange(num_nodes)
        for array, values in ((ORDER_ARRAY, order), (PLACE_ARRAY, place)):
            writer.values(array, ids.name, num_nodes).append(values.astype(ids))
        pieces = list(graph.edge_pieces(2**20))
        targets = np.concatenate([np.empty(0, np.int64), *(place[p.targets] for p in pieces)])
        sources = np.concatenate([np.empty(0, np.int64), *(place[p.sources] for p in pieces)])
        bucket = targets // rows * num_partitions + sources // rows
        position = np.lexsort((sources, targets, bucket))
        bucket_ptr = np.zeros(num_partitions**2 + 1, np.int64)
        np.cumsum(np.bincount(bucket, minlength=num_partitions**2), out=bucket_ptr[1:])
        writer.values(BUCKET_PTR_ARRAY, "int64", len(bucket_ptr)).append(bucket_ptr)
        for array, column in ((SOURCE_ARRAY, sources), (TARGET_ARRAY, targets)):
            values = (column[position] % rows).astype(np.int32)
            writer.values(array, "int32", num_edges).append(values)
        positions = id_dtype(num_edges)
        writer.values(POSITION_ARRAY, positions.name, num_edges).append(position.astype(positions))
        for attribute, spec in attributes.items():
            writer.paged(
                node_rows(attribute),
                name=attribute,
                row_shape=spec.shape[1:],
                dtype=spec.dtype,
                num_rows=num_nodes,
                cat_dim=spec.cat_dim,
            ).append(graph.reader.read(spec)[order])
        return writer.commit(
            store_uuid=graph.reader.uuid,
            num_nodes=num_nodes,
            num_edges=num_edges,
            num_partitions=num_partitions,
            rows_per_partition=rows,
            order_kind=order_kind,
            seed=seed,
            train_split=train_first,
            num_train_partitions=-(-num_train // rows),
        )


def _nodes_of(graph: StoreInput, split: str) -> npt.NDArray[np.bool_]:
    """Return which nodes are in a split; those that are in it twice count once."""
    spec = graph.nodes.splits.get(split)
    if spec is None:
        names = ", ".join(map(repr, graph.nodes.splits)) or "none"
        raise UsageError(
            f"{graph.reader.path} has no split {split!r}; its splits: {names}. Name one with "
            "--train-first, or leave that out"
        )
    found = np.zeros(graph.num_nodes, bool)
    nodes = graph.reader.read(spec)
    check_ids(nodes, graph.num_nodes, f"split {split!r}: node id")
    found[nodes] = True
    if not found.any():
        raise InputError(f"{graph.reader.path}: the split {split!r} has no nodes")
    return found
