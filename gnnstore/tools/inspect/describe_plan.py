"""What `gnnstore inspect` and `gnnstore pack` say about a packed plan, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.errors import GnnstoreError
from gnnstore.formats.packed.manifest import find_plans
from gnnstore.formats.packed.reader import PackedReader
from gnnstore.units import format_size

if TYPE_CHECKING:
    from rich.console import Console


def describe_plan(reader: PackedReader) -> dict[str, Any]:
    """Return what a plan was packed for, and what it takes."""
    manifest = reader.manifest
    found = manifest.fingerprint
    return {
        "name": reader.path.name,
        "path": str(reader.path),
        "problem": None,
        "store_uuid": found.get("store"),
        "num_neighbors": found.get("num_neighbors"),
        "batch_size": found.get("batch_size"),
        "shuffle": found.get("shuffle"),
        "seed": manifest.seed,
        "epochs": manifest.epochs,
        "batches_per_epoch": manifest.batches_per_epoch,
        "superbatch": manifest.superbatch,
        "compression": manifest.compression,
        "segment": manifest.segment,
        "num_segments": 0 if reader.segments is None else len(reader.segments),
        "shared_rows": 0 if reader.segments is None else int(reader.segments[:, 2].sum()),
        "num_slots": manifest.num_slots,
        "cached_by": manifest.cached_by,
        "largest_batch_bytes": manifest.largest_batch_bytes,
        "cached": list(manifest.cached),
        "disk_bytes": reader.total_bytes,
        "num_files": len(reader.files) + 1,
        "created_by": manifest.created_by,
    }


def render_plan(console: Console, plan: Mapping[str, Any]) -> None:
    """Print what a plan is."""
    from gnnstore.tools.ui.tables import print_facts  # noqa: PLC0415 - rich on demand

    console.print(plan["path"], style="bold", soft_wrap=True)
    order = "shuffled" if plan["shuffle"] else "in order"
    print_facts(
        console,
        {
            "batches": f"{plan['epochs']:,} epochs of {plan['batches_per_epoch']:,}, {order}",
            "fan-outs": ", ".join(map(str, plan["num_neighbors"] or [])) or "none",
            "batch size": f"{plan['batch_size']:,}",
            "seed": f"{plan['seed']}",
            "cached rows": (
                f"{plan['num_slots']:,} by {plan['cached_by']}, of "
                f"{', '.join(plan['cached']) or 'nothing'}"
            ),
            "shared rows": _describe_segments(plan),
            "compression": plan["compression"] or "none",
            "largest batch": format_size(plan["largest_batch_bytes"]),
            "size": f"{format_size(plan['disk_bytes'])} in {plan['num_files']} files",
            "store": plan["store_uuid"],
            "written by": plan["created_by"],
        },
    )


def _describe_segments(plan: Mapping[str, Any]) -> str:
    if plan["segment"] == 1:
        return "none: each batch has its own"
    return (
        f"{plan['shared_rows']:,}, in {plan['num_segments']:,} segments of {plan['segment']:,} "
        "batches"
    )


def describe_plans(store: Path) -> list[dict[str, Any]]:
    """Return the plans of a store; of one that cannot be opened, why."""
    found = []
    for path in find_plans(store):
        try:
            found.append(describe_plan(PackedReader.open(path)))
        except GnnstoreError as error:
            found.append({"name": path.name, "path": str(path), "problem": str(error)})
    return found
