"""Describes a table of learned embeddings for `gnnstore inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.formats.container.files import allocated_bytes
from gnnstore.formats.tables.manifest import TableManifest
from gnnstore.units import format_size

if TYPE_CHECKING:
    from rich.console import Console


def describe_table(path: Path) -> dict[str, Any]:
    """Return the facts of a table and its commits, the newest last, as JSON values."""
    manifest = TableManifest.read(path)
    return {
        "path": str(path),
        "uuid": manifest.uuid,
        "store_uuid": manifest.store_uuid,
        "num_nodes": manifest.num_nodes,
        "dim": manifest.dim,
        "optimizer": manifest.optimizer,
        "init": manifest.init,
        "scale": manifest.scale,
        "seed": manifest.seed,
        "partitions": manifest.partitions,
        "num_partitions": manifest.num_partitions,
        "rows_per_partition": manifest.rows_per_partition,
        "slot_bytes": manifest.slot_bytes,
        "keep": manifest.keep,
        "commits": [
            {
                "id": commit.id,
                "parent": commit.parent,
                "steps": commit.steps,
                "epoch": (commit.position or {}).get("epoch"),
                "batches": (commit.position or {}).get("batches"),
                "learned_partitions": int((commit.slots >= 0).sum()),
            }
            for commit in manifest.commits
        ],
        "disk_bytes": allocated_bytes(path),
    }


def render_table(console: Console, table: Mapping[str, Any]) -> None:
    """Print the description of a table."""
    from gnnstore.tools.ui.tables import print_facts  # noqa: PLC0415 - rich on demand

    console.print(table["path"], style="bold", soft_wrap=True)
    cut = f"by {table['partitions']!r}" if table["partitions"] else "in the order of nodes"
    facts = {
        "rows": f"{table['num_nodes']:,} of {table['dim']} floats, and the state of "
        f"{table['optimizer']}",
        "begin as": f"{table['init']} times {table['scale']:g}, seed {table['seed']}",
        "partitions": f"{table['num_partitions']:,} of {table['rows_per_partition']:,} rows, {cut}"
        f"; {format_size(table['slot_bytes'])} each",
        "size": format_size(table["disk_bytes"]),
        "store": table["store_uuid"],
    }
    for commit in table["commits"]:
        at = (
            ""
            if commit["epoch"] is None
            else (f", at batch {commit['batches']:,} of epoch {commit['epoch']}")
        )
        facts[f"commit {commit['id']}"] = (
            f"{commit['steps']:,} steps{at}; {commit['learned_partitions']:,} partitions learned"
        )
    print_facts(console, facts)
