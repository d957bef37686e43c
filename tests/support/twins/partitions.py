"""NumPy twins of partitions: what they hold on disk, and what a buffer of them computes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnstore import _core
from gnnstore.formats import StoreReader, load_csc
from gnnstore.partitions.orders import Schedule


def partitions_loaded(schedule: Schedule) -> int:
    """Return how many partitions an epoch reads, beginning with an empty buffer."""
    held: set[int] = set()
    loaded = 0
    for state in range(len(schedule.states)):
        before, held = held, set(schedule.partitions(state).tolist())
        loaded += len(held - before)
    return loaded


def resident_csc(
    starts: NDArray[np.int64],
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    position: NDArray[Any],
    *,
    count: int,
    rows: int,
    num_nodes: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[Any]]:
    """Return (indptr, indices, positions) of the buckets of partitions in memory."""
    to, origin = np.divmod(np.repeat(np.arange(count * count), np.diff(starts)), count)
    sources, targets = origin * rows + source, to * rows + target
    order = np.lexsort((position, sources, targets))
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(targets, minlength=num_nodes), out=indptr[1:])
    return indptr, sources[order].astype(np.int32), position[order]


def partition_reference(
    store: str | os.PathLike[str],
    order: NDArray[np.int64],
    num_partitions: int,
    rows_per_partition: int,
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a store's partitions, by path.

    `order` has the store's id of each node, by new id.
    """
    reader = StoreReader.open(store)
    csc = load_csc(reader, reader.schema.edge)
    num_nodes = csc.num_nodes
    place = np.argsort(order)
    targets = place[np.repeat(np.arange(num_nodes), np.diff(csc.indptr))]
    sources = place[csc.indices]
    bucket = targets // rows_per_partition * num_partitions + sources // rows_per_partition
    # The last key counts most; equal edges keep the order of their positions.
    position = np.lexsort((sources, targets, bucket))
    counts = np.bincount(bucket, minlength=num_partitions**2)
    ids = np.int32 if num_nodes < 2**31 else np.int64
    positions = np.int32 if csc.num_edges < 2**31 else np.int64
    bucket_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    edges = {
        "edges/source": (sources[position] % rows_per_partition).astype(np.int32),
        "edges/target": (targets[position] % rows_per_partition).astype(np.int32),
        "edges/position": position.astype(positions),
    }
    nodes = {name: reader.read(spec)[order] for name, spec in reader.schema.node.attributes.items()}
    rows = [order.astype(ids), *(nodes[name] for name in sorted(nodes))]
    return {
        "order": order.astype(ids),
        "place": place.astype(ids),
        "partition_crc32c": _crcs(
            rows, np.arange(num_partitions) * rows_per_partition, rows_per_partition
        ),
        "edges/bucket_ptr": bucket_ptr,
        "edges/bucket_crc32c": _crcs([*edges.values()], bucket_ptr[:-1], counts),
        **edges,
        **{f"nodes/{name}": values for name, values in nodes.items()},
    }


def _crcs(
    arrays: list[NDArray[Any]], begins: NDArray[np.int64], sizes: NDArray[np.int64] | int
) -> NDArray[np.uint32]:
    """Return the crc32c of each range of each array, [ranges, arrays]."""
    found = [
        [_core.crc32c_portable(np.frombuffer(a[i : i + n].tobytes(), np.uint8)) for a in arrays]
        for i, n in zip(begins, np.broadcast_to(sizes, begins.shape), strict=True)
    ]
    return np.array(found, np.uint32)
