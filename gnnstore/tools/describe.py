"""Describes stores and what was made from them, by metadata alone: documents, and their layouts.

Nothing here reads an array, so a store of terabytes on a slow disk is described at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gnnstore.budget.limits import MemoryBudget, available_bytes
from gnnstore.disk.engines import choose_engine
from gnnstore.errors import GnnstoreError, NotFoundError
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.assignments import ASSIGNMENTS, AssignmentReader
from gnnstore.formats.base.files import allocated_bytes
from gnnstore.formats.container.manifest import CHECKSUMS_ARRAY
from gnnstore.formats.container.workdir import leftovers
from gnnstore.formats.packed import (
    KIND,
    NUM_POSITIONS,
    PACKED,
    PackedManifest,
    PackedReader,
)
from gnnstore.formats.partitions import PARTITIONS, PartitionsReader
from gnnstore.formats.store.store import StoreReader
from gnnstore.formats.store.units import find_units
from gnnstore.formats.tables import TableManifest
from gnnstore.graph.sizes import StoreSizes
from gnnstore.strategies.placement import place
from gnnstore.strategies.registry import auto
from gnnstore.tools.layout import Block, Document, Layout, block_name
from gnnstore.units import format_size


def describe_store(reader: StoreReader) -> dict[str, Any]:
    """Return identity, state, graph, arrays, provenance and reading plan of a store."""
    schema = reader.schema
    num_nodes = sum(node.num_nodes for node in schema.node_types)
    num_edges = sum(edge.num_edges for edge in schema.edge_types)
    arrays = [describe_array(reader, spec) for spec in schema.arrays()]
    counts = {node.name: node.num_nodes for node in schema.node_types}
    return {
        "path": str(reader.path),
        "uuid": reader.uuid,
        "created_by": reader.manifest.created_by,
        "format_version": reader.manifest.format_version,
        "state": _state(reader),
        "graph": {
            "num_nodes": num_nodes,
            "num_edges": num_edges,
            "mean_in_degree": num_edges / num_nodes if num_nodes else 0.0,
            "index_dtype": schema.index_dtype,
            "part": None if schema.part is None else asdict(schema.part),
            "has_types": not schema.is_homogeneous,
            "node_types": [
                {
                    "name": node.name,
                    "num_nodes": node.num_nodes,
                    "attributes": sorted(node.attributes),
                    "splits": {name: spec.num_rows for name, spec in node.splits.items()},
                    "original_ids": node.original_id is not None,
                    "original_names": node.original_name is not None,
                }
                for node in schema.node_types
            ],
            "edge_types": [
                {
                    "type": list(edge.type),
                    "num_edges": edge.num_edges,
                    "mean_in_degree": edge.num_edges / max(1, counts[edge.type[2]]),
                    "attributes": sorted(edge.attributes),
                    "edge_ids": edge.edge_id is not None,
                    "original_edge_ids": edge.original_id is not None,
                    "orders": list(edge.orders),
                    "weight_sums": list(edge.weight_sums),
                    "splits": {name: split.num_edges for name, split in edge.splits.items()},
                    "negatives": {
                        f"{name} {part}": list(spec.shape)
                        for name, split in edge.splits.items()
                        for part, spec in split.negatives.items()
                    },
                    "value_names": {
                        name: text.offsets.num_rows - 1 for name, text in edge.value_names.items()
                    },
                }
                for edge in schema.edge_types
            ],
            "attributes": dict(schema.graph_attributes),
        },
        "arrays": sorted(arrays, key=lambda array: -array["disk_bytes"]),
        # Files of no array: group metadata and the checksums.
        "metadata_bytes": reader.total_bytes - sum(array["disk_bytes"] for array in arrays),
        "packed": _describe_units(
            find_units(PACKED, reader.path), lambda path: describe_packed([PackedReader.open(path)])
        ),
        "partitions": _describe_units(
            find_units(PARTITIONS, reader.path),
            lambda path: describe_partitions(PartitionsReader.open(path)),
        ),
        "assignments": _describe_units(
            find_units(ASSIGNMENTS, reader.path),
            lambda path: describe_assignment(AssignmentReader.open(path)),
        ),
        "provenance": dict(reader.manifest.provenance),
        "reading": _reading(reader),
    }


def _describe_units(
    paths: Iterable[Path], describe: Callable[[Path], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Describe the units of a store; a damaged one by its name and the reason."""
    found = []
    for path in paths:
        try:
            found.append(describe(path))
        except GnnstoreError as error:
            found.append({"name": path.name, "path": str(path), "problem": str(error)})
    return found


def describe_array(reader: StoreReader, spec: AttributeSpec) -> dict[str, Any]:
    """Return type, shape, sizes and, for a paged array, the page geometry."""
    disk_bytes = sum(entry["size_bytes"] for entry in describe_files(reader, spec))
    described: dict[str, Any] = {
        "path": spec.path,
        "name": spec.name,
        "layout": spec.layout,
        "geometry": "compressed",
        "dtype": spec.dtype,
        "time_unit": spec.time_unit,
        "scaled": _describe_scaled(spec),
        "shape": list(spec.shape),
        "value_bytes": spec.num_bytes,
        "disk_bytes": disk_bytes,
        "share": disk_bytes / reader.total_bytes if reader.total_bytes else 0.0,
    }
    if spec.layout == "paged":
        array = reader.paged(spec)
        geometry = array.geometry
        body_bytes, page = sum(array.body_bytes), block_name(geometry.page_bytes)
        described["geometry"] = f"{geometry.rows_per_page:,} rows a page of {page}"
        if geometry.pages_per_row > 1:
            described["geometry"] = f"{geometry.pages_per_row} pages of {page} a row"
        described["pages"] = {
            "page_bytes": geometry.page_bytes,
            "row_bytes": geometry.row_bytes,
            "rows_per_page": geometry.rows_per_page,
            "pages_per_row": geometry.pages_per_row,
            "rows_fill_pages": geometry.is_exact,
            "padding_bytes": body_bytes - spec.num_bytes,
            "padding_share": (body_bytes - spec.num_bytes) / max(1, body_bytes),
            "index_bytes": array.disk_bytes - body_bytes,
            "num_shards": array.layout.num_shards,
            "rows_per_shard": array.layout.shard_rows,
        }
    return described


def _describe_scaled(spec: AttributeSpec) -> dict[str, Any] | None:
    """Return what multiples of scales are decoded to, and their errors, where these are known."""
    if spec.scaled is None:
        return None
    error = spec.scaled.error
    return {
        "decoded": spec.scaled.decoded,
        "worst_error": None if error is None else error.worst,
        "worst_column": None if error is None else error.column,
        "median_error": None if error is None else error.median,
    }


def describe_files(reader: StoreReader, spec: AttributeSpec) -> list[dict[str, Any]]:
    """Return the files of one array with their sizes."""
    found = (entry for entry in reader.files if entry.path.startswith(f"{spec.path}/"))
    return [{"path": entry.path, "size_bytes": entry.size_bytes} for entry in found]


def find_array(reader: StoreReader, wanted: str) -> AttributeSpec:
    """Return the array with this path, or with this name if only one has it."""
    arrays = reader.schema.arrays()
    found = [spec for spec in arrays if spec.path == wanted.strip("/")]
    found = found or [spec for spec in arrays if spec.name == wanted]
    if len(found) == 1:
        return found[0]
    paths = ", ".join(spec.path for spec in found or arrays)
    what = f"{len(found)} arrays are named" if found else "there is no array"
    raise NotFoundError(
        f"{reader.path}: {what} {wanted!r}; give one of these paths: {paths}", path=reader.path
    )


def _state(reader: StoreReader) -> dict[str, Any]:
    read_only = bool(os.statvfs(reader.path).f_flag & os.ST_RDONLY)
    return {
        # Opening has checked that every file is there with its exact size.
        "complete": True,
        "num_files": len(reader.files) + 1,
        "disk_bytes": reader.total_bytes,
        "checksummed": any(e.path.startswith(f"{CHECKSUMS_ARRAY}/") for e in reader.files),
        "writable": not read_only and os.access(reader.path, os.W_OK),
        "unfinished_beside_it": [path.name for path in leftovers(reader.path)],
    }


def _reading(reader: StoreReader) -> dict[str, Any]:
    """Return the way in which a loader with default arguments would read this store."""
    try:
        sizes = StoreSizes.from_schema(reader.schema)
        placement = place(sizes, MemoryBudget.of(None), strategy=auto().by_mode)
        paths = {table.path for table in sizes.tables if table.num_rows}
        read = [reader.paged(spec) for spec in reader.schema.arrays() if spec.path in paths]
        is_read = bool(placement.reads_disk and read)
        engine = choose_engine(read[0].file_paths[0]) if is_read else None
    except GnnstoreError as error:  # too large, no such engine
        return {"strategy": None, "reason": str(error)}
    if engine is not None:
        placement = placement.because(f"read by {engine.reason}")
    if placement.strategy.mode != "memory" and sizes.saved_by_int8:
        saved = format_size(sizes.saved_by_int8)
        placement = placement.because(f"'gnnstore quantize' keeps x as int8, {saved} less")
    return {
        "strategy": placement.strategy.name,
        "topology": placement.topology,
        "io_engine": None if engine is None else engine.name,
        "resident_bytes": placement.resident_bytes,
        "available_bytes": available_bytes(),
        "reason": placement.reason,
    }


def describe_packed(readers: Sequence[PackedReader], path: Path | None = None) -> dict[str, Any]:
    """Return the settings and sizes of packed epochs, or of parts at a path, as JSON values."""
    segments = readers[0].segments
    found = describe_manifests([each.manifest for each in readers], path or readers[0].path)
    shared = 0 if segments is None else int(segments[:, 2].sum())
    return found | {"num_segments": 0 if segments is None else len(segments), "shared_rows": shared}


def describe_manifests(manifests: Sequence[PackedManifest], path: Path | str) -> dict[str, Any]:
    """Return what manifests say of packed epochs, or of all parts, as JSON values."""
    manifest = manifests[0]
    given, part = manifest.fingerprint, manifest.part
    own = ["epochs", "batches_per_epoch", "superbatch", "segment"]
    own += ["num_slots", "cached_by", "seed", "created_by", "store_uuid"]
    names = ("neg_sampling", "num_neighbors", "batch_size", "shuffle")
    is_parts = part is not None and part.of > 1
    entries = [entry for each in manifests for entry in each.files]
    entries += [entry for each in manifests for entry, _ in each.checksum_files]
    return {
        "name": str(path).rstrip("/").rpartition("/")[2],
        "path": str(path),
        "problem": None,
        "part": part.number if part is not None and is_parts and len(manifests) == 1 else None,
        "num_parts": part.of if part is not None and is_parts else None,
        "num_batches": sum(each.num_batches for each in manifests),
        "seeds": given.get(KIND, "nodes"),
        "num_seeds": given.get(NUM_POSITIONS),
        **{name: given.get(name) for name in names},
        **{name: getattr(manifest, name) for name in own},
        "largest_batch_bytes": max(each.largest_batch_bytes for each in manifests),
        "num_segments": 0,
        "shared_rows": 0,
        "cached": list(manifest.cached),
        "device_rows": None if manifest.device is None else manifest.device.num_rows,
        "disk_bytes": sum(entry.size_bytes for entry in entries),
        "num_files": len(entries) + len(manifests),
    }


def describe_partitions(reader: PartitionsReader) -> dict[str, Any]:
    """Return the numbers and sizes of partitions, as JSON values."""
    manifest, sizes = reader.manifest, np.diff(reader.bucket_ptr)
    own = ["name", "store_uuid", "uuid", "num_partitions", "rows_per_partition", "num_nodes"]
    own += ["num_edges", "seed", "num_train_partitions"]
    return {
        **{name: getattr(reader, name) for name in own},
        "path": str(reader.path),
        "problem": None,
        "order": reader.order_kind,
        "train_split": manifest.train_split,
        "nodes": list(reader.nodes),
        "largest_bucket": int(sizes.max()),
        "mean_bucket": float(sizes.mean()),
        "empty_buckets": int((sizes == 0).sum()),
        "disk_bytes": reader.total_bytes,
        "num_files": len(reader.files) + 1,
        "created_by": manifest.created_by,
    }


def describe_assignment(reader: AssignmentReader) -> dict[str, Any]:
    """Return the numbers and sizes of an assignment, as JSON values."""
    manifest = reader.manifest
    own = ["store_uuid", "uuid", "input_nodes", "num_seeds", "num_parts", "num_hops", "fanout"]
    own += ["seed", "created_by"]
    return {
        "name": reader.name,
        "path": str(reader.path),
        "problem": None,
        **{name: getattr(manifest, name) for name in own},
        "part_seeds": {"least": manifest.num_seeds // manifest.num_parts}
        | {"most": -(-manifest.num_seeds // manifest.num_parts)},
        "part_nodes": {"least": min(manifest.part_nodes), "most": max(manifest.part_nodes)},
        "disk_bytes": reader.total_bytes,
        "num_files": len(reader.files) + 1,
    }


def describe_table(path: Path) -> dict[str, Any]:
    """Return the facts of a table and its commits, the newest last, as JSON values."""
    manifest = TableManifest.read(path)
    own = ["uuid", "store_uuid", "num_nodes", "dim", "optimizer", "init", "scale", "seed"]
    own += ["partitions", "num_partitions", "rows_per_partition", "slot_bytes", "keep"]
    return {
        "path": str(path),
        **{name: getattr(manifest, name) for name in own},
        "commits": [
            {
                **{name: getattr(commit, name) for name in ("id", "parent", "steps")},
                **{name: (commit.position or {}).get(name) for name in ("epoch", "batches")},
                "learned_partitions": int((commit.slots >= 0).sum()),
            }
            for commit in manifest.commits
        ],
        "disk_bytes": allocated_bytes(path),
    }


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
    "part": "{graph.part.part} of {graph.part.num_parts}, with {graph.part.num_hops:hop}",
    "of the store": "{graph.part.store_uuid}",
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
        "values": "{dtype}[ {shape:x}][ in {time_unit}][ for {scaled.decoded}]",
        "on disk": "{disk_bytes}",
        "share": "{share}",
        "layout": "{geometry}",
        "padding": "{pages.padding_share:-}",
        "error of int8": "{scaled.median_error:.2%}, at most {scaled.worst_error:.2%}",
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
    Block(
        "Assignments",
        {
            "name": "{name}",
            "parts": "{num_parts}",
            "seeds": "{num_seeds} ({input_nodes})",
            "hops": "{num_hops}",
            "nodes of a part": "{part_nodes.least} to {part_nodes.most}",
            "seed": "{seed}",
        },
        "assignments",
    ),
    Block("", _DAMAGED, "assignments"),
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
ARRAY_TEXT: Layout = (
    "{path}",
    Block(
        "",
        {
            "name": "{name}",
            "type": "{dtype}[ {shape:x}][ for {scaled.decoded}]",
            "error of int8": (
                "{scaled.median_error:.2%} of a column's standard deviation (median), at most "
                "{scaled.worst_error:.2%} (column {scaled.worst_column})"
            ),
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
PACKED_TEXT: Layout = (
    "{path}",
    Block(
        "",
        {
            "epochs": "{epochs}",
            "batches": "{batches_per_epoch} an epoch",
            "parts": "[{num_batches:batch} in part {part} of ]{num_parts}",
            "shuffled": "{shuffle}",
            "seeds": "{num_seeds} {seeds}[, {neg_sampling} negatives]",
            "fan-outs": "{num_neighbors}",
            "batch size": "{batch_size}",
            "seed": "{seed}",
            "rows on the device": "{device_rows}",
            "cached rows": "{num_slots} by {cached_by}[, of {cached}]",
            "shared rows": "{shared_rows:+} in {num_segments:segment} of {segment:batch}",
            "largest batch": "{largest_batch_bytes}",
            "size": _SIZE,
            "store": "{store_uuid}",
            "written by": "{created_by}",
        },
    ),
)
PARTITIONS_TEXT: Layout = (
    "{path}",
    Block(
        "",
        {
            "partitions": "{num_partitions} of {rows_per_partition:node}",
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
ASSIGNMENT_TEXT: Layout = (
    "{path}",
    Block(
        "",
        {
            "seeds": "{num_seeds} ({input_nodes})",
            "parts": "{num_parts}, of at most {part_seeds.most:seed}",
            "neighbourhoods": "{num_hops:hop}, of up to {fanout} in-neighbours of a node",
            "nodes of a part": "{part_nodes.least} to {part_nodes.most}",
            "seed": "{seed}",
            "size": _SIZE,
            "store": "{store_uuid}",
            "written by": "{created_by}",
        },
    ),
)
TABLE_TEXT: Layout = (
    "{path}",
    Block(
        "",
        {
            "rows": "{num_nodes} of {dim} floats, and the state of {optimizer}",
            "begin as": "{init} times {scale:g}, seed {seed}",
            "partitions": "{num_partitions} of {rows_per_partition:row}, {slot_bytes} each"
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
