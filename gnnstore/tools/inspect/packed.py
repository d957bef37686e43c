"""Describes packed epochs for `gnnstore inspect` and `gnnstore pack`, and counts their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.formats.packed.manifest import KIND, NUM_POSITIONS
from gnnstore.formats.packed.reader import PackedReader
from gnnstore.progress import Progress
from gnnstore.tools.ui.options import describe_fanouts
from gnnstore.units import format_size

if TYPE_CHECKING:
    from rich.console import Console


def describe_packed(reader: PackedReader) -> dict[str, Any]:
    """Return the settings and sizes of packed epochs, as JSON values."""
    manifest = reader.manifest
    found = manifest.fingerprint
    return {
        "name": reader.path.name,
        "path": str(reader.path),
        "problem": None,
        "store_uuid": reader.manifest.store_uuid,
        "seeds": found.get(KIND, "nodes"),
        "num_seeds": found.get(NUM_POSITIONS),
        "neg_sampling": found.get("neg_sampling"),
        "num_neighbors": found.get("num_neighbors"),
        "batch_size": found.get("batch_size"),
        "shuffle": found.get("shuffle"),
        "seed": manifest.seed,
        "epochs": manifest.epochs,
        "batches_per_epoch": manifest.batches_per_epoch,
        "superbatch": manifest.superbatch,
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


def render_packed(console: Console, packed: Mapping[str, Any]) -> None:
    """Print the description of packed epochs."""
    from gnnstore.tools.ui.tables import print_facts  # noqa: PLC0415 - rich on demand

    console.print(packed["path"], style="bold", soft_wrap=True)
    order = "shuffled" if packed["shuffle"] else "in order"
    print_facts(
        console,
        {
            "batches": f"{packed['epochs']:,} epochs of {packed['batches_per_epoch']:,}, {order}",
            "seeds": f"{packed['num_seeds']:,} {packed['seeds'].rpartition(' ')[2]}"
            + (f", {packed['neg_sampling']} negatives" if packed["neg_sampling"] else ""),
            "fan-outs": describe_fanouts(packed) or "none",
            "batch size": f"{packed['batch_size']:,}",
            "seed": f"{packed['seed']}",
            "cached rows": (
                f"{packed['num_slots']:,} by {packed['cached_by']}, of "
                f"{', '.join(packed['cached']) or 'nothing'}"
            ),
            "shared rows": _describe_segments(packed),
            "largest batch": format_size(packed["largest_batch_bytes"]),
            "size": f"{format_size(packed['disk_bytes'])} in {packed['num_files']} files",
            "store": packed["store_uuid"],
            "written by": packed["created_by"],
        },
    )


def _describe_segments(packed: Mapping[str, Any]) -> str:
    if packed["segment"] == 1:
        return "none: each batch has its own"
    return (
        f"{packed['shared_rows']:,}, in {packed['num_segments']:,} segments of "
        f"{packed['segment']:,} batches"
    )


@dataclass(frozen=True, eq=False)
class PackedRowCounts:
    """Counts of packed epochs with S batches in all, B in each epoch."""

    # int64 [S]: rows of each batch.
    needed: npt.NDArray[np.int64]
    # int64 [S]: rows of each batch that miss the cache.
    missed: npt.NDArray[np.int64]
    # int64 [S]: rows in each batch's packed chunk.
    packed: npt.NDArray[np.int64]
    # int64 [B]: number of rows by reuse distance, in batches; at 0, rows that no earlier batch of
    # the epoch needed.
    ages: npt.NDArray[np.int64]
    batches_per_epoch: int
    num_slots: int  # capacity of the cache in rows

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return {
            "needed": self.needed.tolist(),
            "missed": self.missed.tolist(),
            "packed": self.packed.tolist(),
            "ages": self.ages.tolist(),
        }


def scan_packed(reader: PackedReader, progress: Progress) -> PackedRowCounts:
    """Count rows from records, in one pass and 4 bytes per node; reads no row."""
    from gnnstore.features.packed.saved import PackedFiles  # noqa: PLC0415 - engines, on demand

    manifest = reader.manifest
    packed = PackedFiles.open(reader)
    num_batches = manifest.num_batches
    needed, missed = np.zeros(num_batches, np.int64), np.zeros(num_batches, np.int64)
    ages = np.zeros(manifest.batches_per_epoch, np.int64)
    num_nodes = manifest.schema.edge.indptr.num_rows - 1
    last = np.empty(num_nodes, np.int32)
    with progress.phase("read the packed epochs", num_batches, "batches") as phase:
        for number in range(num_batches):
            place = number % manifest.batches_per_epoch
            if place == 0:
                last[:] = -1
            record = packed.record(number)
            nodes = record.subgraph.n_id
            needed[number] = len(nodes)
            missed[number] = np.count_nonzero(record.slots < 0)
            before = last[nodes]
            # Age 0 is "never", so that no row of an earlier batch can have it.
            age = np.where(before < 0, 0, place - before)
            ages += np.bincount(age, minlength=len(ages))
            last[nodes] = place
            phase.advance()
    num_packed = reader.index[:, 3].astype(np.int64)
    return PackedRowCounts(
        needed, missed, num_packed, ages, manifest.batches_per_epoch, manifest.num_slots
    )
