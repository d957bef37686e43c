"""The texts of stores, arrays, packed epochs, partitions and tables; see `describe` for fields."""

from __future__ import annotations

from gnnstore.tools.ui.layout import Block, Document, Layout

_SIZE = "{disk_bytes}[ in {num_files} files]"
_SUMMARY = {
    "nodes": "{graph.num_nodes}",
    "edges": "{graph.num_edges} ({graph.mean_in_degree} per node)",
}
_SPLITS = {
    "splits": "{graph.node_types.0.splits}",
    "edge splits": "{graph.edge_types.0.splits}",
    "ordered by": "{graph.edge_types.0.orders}",
    "weighted by": "{graph.edge_types.0.weight_sums}",
}
_STATE = {
    "attributes": "{graph.attributes}",
    "size": "{state.disk_bytes} in {state.num_files} files",
    "state": "complete",
    "unfinished": "{state.unfinished_beside_it}",
    "format": "version {format_version}, written by {created_by}",
    "uuid": "{uuid}",
}
_TYPES = (
    Block(
        "Node types",
        {
            "type": "{name}",
            "nodes": "{num_nodes}",
            "attributes": "{attributes}",
            "splits": "{splits}",
        },
        "graph.node_types",
    ),
    Block(
        "Edge types",
        {
            "type": "{type.0} -> {type.2}",
            "relation": "{type.1}",
            "edges": "{num_edges}",
            "per target": "{mean_in_degree}",
            "attributes": "{attributes}",
            "times": "{orders}",
            "weights": "{weight_sums}",
            "splits": "{splits}",
        },
        "graph.edge_types",
    ),
)
_ARRAYS = Block(
    "Arrays",
    {
        "array": "{path}",
        "values": "{dtype}[ {shape:x}]",
        "on disk": "{disk_bytes}",
        "share": "{share}",
        "layout": "{geometry}",
        "padding": "{pages.padding_share:-}",
    },
    "arrays",
)
_DAMAGED = "\n{name} is damaged, see 'gnnstore verify': {problem}"
_STORE = (
    Block(
        "Packed epochs",
        {
            "name": "{name}",
            "epochs": "{epochs}",
            "batches": "{batches_per_epoch} an epoch",
            "on disk": "{disk_bytes}",
            "batch size": "{batch_size}",
            "seed": "{seed}",
            "fan-outs": "{num_neighbors}",
        },
        "packed",
    ),
    Block("", _DAMAGED, "packed"),
    Block(
        "Partitions",
        {
            "name": "{name}",
            "partitions": "{num_partitions}",
            "nodes of each": "{rows_per_partition}",
            "on disk": "{disk_bytes}",
            "order": "{order}",
            "seed": "{seed}",
        },
        "partitions",
    ),
    Block("", _DAMAGED, "partitions"),
    Block("Provenance", "provenance"),
    Block(
        "Reading it here",
        {"reason": "{reading.reason}", "memory available": "{reading.available_bytes}"},
    ),
)
STATS = (
    Block(
        "Degrees",
        {
            "in-degree": "{stats.degrees.in}",
            "mean": "{stats.degrees.mean:.2f}",
            "without in-edge": "{stats.degrees.no_in_edge} of {stats.degrees.num_nodes}",
            "isolated": "{stats.degrees.isolated} of {stats.degrees.num_nodes}",
        },
    ),
    Block(
        "Values",
        {
            "array": "{key}",
            "min": "{min}",
            "max": "{max}",
            "mean": "{mean}",
            "NaN": "{nan}",
            "infinite": "{infinite}",
        },
        "stats.values",
    ),
    Block("Labels", "stats.labels"),
)
ARRAY: Layout = (
    "{path}",
    Block(
        "",
        {
            "name": "{name}",
            "type": "{dtype}[ {shape:x}]",
            "layout": "{geometry}",
            "values": "{value_bytes}",
            "on disk": "{disk_bytes} ({share} of the store)",
            "row": "{pages.row_bytes:,} bytes",
            "padding": "{pages.padding_bytes} ({pages.padding_share})",
            "shards": "{pages.num_shards} of {pages.rows_per_shard} rows",
        },
    ),
    Block("Files", {"file": "{path}", "bytes": "{size_bytes:,}"}, "files"),
    *STATS,
)
PACKED: Layout = (
    "{path}",
    Block(
        "",
        {
            "batches": "{epochs} epochs of {batches_per_epoch}",
            "shuffled": "{shuffle}",
            "seeds": "{num_seeds} {seeds}[, {neg_sampling} negatives]",
            "fan-outs": "{num_neighbors}",
            "batch size": "{batch_size}",
            "seed": "{seed}",
            "cached rows": "{num_slots} by {cached_by}[, of {cached}]",
            "shared rows": "{shared_rows} in {num_segments} segments of {segment} batches",
            "largest batch": "{largest_batch_bytes}",
            "size": _SIZE,
            "store": "{store_uuid}",
            "written by": "{created_by}",
        },
    ),
)
PARTITIONS: Layout = (
    "{path}",
    Block(
        "",
        {
            "partitions": "{num_partitions} of {rows_per_partition} nodes",
            "order": "{order}[: {train_split} in the first {num_train_partitions}]",
            "seed": "{seed}",
            "rows of": "{nodes}",
            "edges of a bucket": "{mean_bucket:,.1f} on average, {largest_bucket} at most",
            "empty buckets": "{empty_buckets}",
            "size": _SIZE,
            "store": "{store_uuid}",
            "written by": "{created_by}",
        },
    ),
)
TABLE: Layout = (
    "{path}",
    Block(
        "",
        {
            "rows": "{num_nodes} of {dim} floats, and the state of {optimizer}",
            "begin as": "{init} times {scale:g}, seed {seed}",
            "partitions": "{num_partitions} of {rows_per_partition} rows, {slot_bytes} each"
            "[, by {partitions}]",
            "size": _SIZE,
            "store": "{store_uuid}",
        },
    ),
    Block(
        "Commits",
        {
            "commit": "{id}",
            "steps": "{steps}",
            "partitions learned": "{learned_partitions}",
            "epoch": "{epoch}",
            "batches": "{batches}",
        },
        "commits",
    ),
)


def summary(store: Document) -> Layout:
    """Return the layout of a store's numbers and arrays."""
    if store["graph"]["has_types"]:
        return ("{path}", Block("", _SUMMARY | _STATE), *_TYPES, _ARRAYS)
    return ("{path}", Block("", _SUMMARY | _SPLITS | _STATE), _ARRAYS)


def whole(store: Document) -> Layout:
    """Return the layout of all that is known of a store."""
    return (*summary(store), *_STORE, *STATS)
