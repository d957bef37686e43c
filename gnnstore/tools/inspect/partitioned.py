"""Describes the partitions of a store for `gnnstore inspect` and `gnnstore partition`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnstore.formats.partitions.reader import PartitionsReader
from gnnstore.units import format_size

if TYPE_CHECKING:
    from rich.console import Console


def describe_partitions(reader: PartitionsReader) -> dict[str, Any]:
    """Return the numbers and sizes of partitions, as JSON values."""
    manifest, sizes = reader.manifest, np.diff(reader.bucket_ptr)
    return {
        "name": reader.name,
        "path": str(reader.path),
        "problem": None,
        "store_uuid": reader.store_uuid,
        "uuid": reader.uuid,
        "num_partitions": reader.num_partitions,
        "rows_per_partition": reader.rows_per_partition,
        "num_nodes": reader.num_nodes,
        "num_edges": reader.num_edges,
        "order": reader.order_kind,
        "seed": reader.seed,
        "train_split": manifest.train_split,
        "num_train_partitions": reader.num_train_partitions,
        "nodes": list(reader.nodes),
        "largest_bucket": int(sizes.max()),
        "empty_buckets": int((sizes == 0).sum()),
        "disk_bytes": reader.total_bytes,
        "num_files": len(reader.files) + 1,
        "created_by": manifest.created_by,
    }


def describe_order(found: Mapping[str, Any]) -> str:
    """Return a phrase on the order of nodes."""
    if found["order"] == "train-first":
        return f"{found['train_split']} first, in {found['num_train_partitions']:,}"
    return "as in the store" if found["order"] == "none" else str(found["order"])


def render_partitions(console: Console, found: Mapping[str, Any]) -> None:
    """Print the description of partitions."""
    from gnnstore.tools.ui.tables import print_facts  # noqa: PLC0415 - rich on demand

    console.print(found["path"], style="bold", soft_wrap=True)
    mean = found["num_edges"] / found["num_partitions"] ** 2
    print_facts(
        console,
        {
            "partitions": f"{found['num_partitions']:,} of {found['rows_per_partition']:,} nodes",
            "order": describe_order(found),
            "seed": f"{found['seed']}",
            "rows of": ", ".join(found["nodes"]) or "nothing",
            "edges of a bucket": f"{mean:,.1f} on average, {found['largest_bucket']:,} at most",
            "empty buckets": f"{found['empty_buckets']:,}",
            "size": f"{format_size(found['disk_bytes'])} in {found['num_files']} files",
            "store": found["store_uuid"],
            "written by": found["created_by"],
        },
    )
