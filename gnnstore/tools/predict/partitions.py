"""Predicts the reads of training by partitions, for `gnnstore predict --partitions`."""

from __future__ import annotations

from typing import Any

from gnnstore.budget.limits import MemoryBudget
from gnnstore.disk.measure import disk_profile
from gnnstore.disk.profile import DeviceProfile
from gnnstore.errors import UsageError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.graph.shared import shared_tables
from gnnstore.graph.sizes import StoreSizes
from gnnstore.graph.store import GraphStore
from gnnstore.graph.store import open as open_store
from gnnstore.partitions.buffer import building_threads
from gnnstore.partitions.sizes import BufferSizes, Contents, best_sizes, buffer_sizes
from gnnstore.tools.ui.layout import Block, Layout
from gnnstore.tools.ui.session import Session
from gnnstore.units import format_size

# Share of the sequential rate that reads of partitions and buckets are to reach.
_SHARE_OF_RATE = 0.9
_LEAST_BLOCK_BYTES = 1 << 16
# Row-wise Adagrad keeps one float32 for each row.
_STATE_BYTES = 4

PARTITIONS: Layout = (
    "A buffer of partitions for {store}",
    Block(
        "",
        {
            "train on": "{train_on}",
            "memory": "{memory_bytes}",
            "rows": "{node_bytes}[, embeddings of {embedding_dim} columns and their state among "
            "them]",
            "edges": "{edge_bytes}",
            "reads of": "{block_bytes} or more, at the disk's full rate",
        },
    ),
    Block(
        "Orders",
        {
            "order": "{order}[ {is_best:*}]",
            "partitions": "{num_partitions}",
            "in the buffer": "{capacity}",
            "disk time": "{seconds_per_epoch}",
            "bias": "{bias:.2f}",
            "read": "{bytes_read}",
            "memory": "{memory_bytes}",
            "reads": "{table_reads:.2f}",
            "logical": "{logical}",
            "written": "{bytes_written:-}",
        },
        "sizes",
    ),
    (
        "*: the shortest epoch. Reads: how often an epoch reads the rows of all nodes. Bias: the "
        "Edge Permutation Bias, 0 for a shuffle of all edges, at most 1. Memory is the buffer's, "
        "with rows read ahead and written back, and staging; seeds and batches need more."
    ),
)


def predict_partitions(
    session: Session,
    path: str,
    *,
    for_edges: bool,
    embedding_dim: int | None,
    memory_bytes: int | None,
) -> None:
    """Find the sizes that fit, and print them."""
    store = open_store(path)
    contents = _contents(store, embedding_dim)
    budget = MemoryBudget.of(memory_bytes)
    memory_bytes = budget.num_bytes
    with session.progress() as progress:
        profile = disk_profile(store.path, progress)
    block_bytes = full_rate_bytes(profile)
    found = buffer_sizes(
        contents, memory_bytes, block_bytes, for_edges=for_edges, source=budget.source
    )
    best = best_sizes(
        found,
        read_rate=profile.sequential_read_bytes_per_second,
        write_rate=profile.sequential_write_bytes_per_second,
    )
    document: dict[str, Any] = {
        "store": str(store.path),
        "train_on": "edges" if for_edges else "nodes",
        "memory_bytes": memory_bytes,
        "node_bytes": contents.node_bytes,
        "edge_bytes": contents.edge_bytes,
        "embedding_dim": embedding_dim,
        "block_bytes": block_bytes,
        "sizes": [_describe(sizes, profile, is_best=sizes is best) for sizes in found],
    }
    session.emit(document, PARTITIONS)


def _contents(store: GraphStore, embedding_dim: int | None) -> Contents:
    specs = [own for own in store.schema.node.attributes.values() if own.layout == "paged"]
    row_bytes = sum(spec.row_bytes for spec in specs)
    row_bytes += 0 if embedding_dim is None else 4 * embedding_dim + _STATE_BYTES
    if not row_bytes or not store.num_nodes or not store.num_edges:
        remedy = "; give --embedding-dim for a table of embeddings" if store.num_edges else ""
        raise UsageError(
            f"{store.path}: {store.num_nodes} nodes with "
            f"{format_size(row_bytes * store.num_nodes)} of rows and "
            f"{store.num_edges} edges: nothing to divide into partitions{remedy}"
        )
    return Contents(
        store.num_nodes,
        id_dtype(store.num_nodes).itemsize + row_bytes,
        store.num_edges,
        id_dtype(store.num_edges).itemsize,
        writes=embedding_dim is not None,
        num_building=building_threads(),
        fixed_bytes=_fixed_bytes(store),
    )


def _fixed_bytes(store: GraphStore) -> int:
    """Return the memory of a loader that does not depend on partitions, without batches."""
    path = store.reader.paged(store.schema.edge.indices).file_paths[0]
    engine = shared_tables(store).engine(path, None)
    return engine.staging_bytes + StoreSizes.of(store.schema).compressed_bytes


def full_rate_bytes(profile: DeviceProfile) -> int:
    """Return the smallest read that reaches most of the disk's sequential rate."""
    share = _SHARE_OF_RATE / (1 - _SHARE_OF_RATE)
    needed = share * profile.seconds_per_read * profile.sequential_read_bytes_per_second
    return max(_LEAST_BLOCK_BYTES, 1 << (int(needed) - 1).bit_length() if needed >= 1 else 0)


def _describe(sizes: BufferSizes, profile: DeviceProfile, *, is_best: bool) -> dict[str, Any]:
    seconds = sizes.io_seconds(
        profile.sequential_read_bytes_per_second, profile.sequential_write_bytes_per_second
    )
    return {
        "order": sizes.order,
        "num_partitions": sizes.num_partitions,
        "capacity": sizes.capacity,
        "logical": sizes.num_groups,
        "table_reads": sizes.table_reads,
        "bytes_read": sizes.bytes_read,
        "bytes_written": sizes.bytes_written,
        "bias": None if sizes.order == "dispersed" else sizes.bias(),
        "memory_bytes": sizes.memory_bytes,
        "seconds_per_epoch": seconds,
        "is_best": is_best,
    }
