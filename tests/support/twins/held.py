"""What a device has of batches, by sets of nodes: which rows are there, and what is copied.

With `reorder=`, those that the batch before has are there, too; an epoch's first has none before.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from gnnstore.formats import NODE_TYPE


class OnDevice(NamedTuple):
    """Totals over batches."""

    num_rows: int  # on the device; a node once for all its tables
    num_bytes: int
    numbers_bytes: int  # of the positions and slots that are copied
    missed: Counter[str]  # rows that come from the host, by node type
    num_kept: int  # rows of the batch before; they are on the device, and not among `num_rows`


def on_device(loader: Any, batches: Any) -> OnDevice:
    """Return what the device of a loader has of batches, which are dicts."""
    if (chosen := loader._sources.chosen) is None:
        return OnDevice(0, 0, 0, Counter(), 0)
    widths = Counter[str]()
    for spec in chosen.tables.specs:
        widths[chosen.tables.owners[spec.path]] += spec.row_bytes
    num_rows = num_bytes = numbers_bytes = num_kept = 0
    missed, matches, num_batches = Counter[str](), loader._placer.matches, len(loader)
    for name, held in chosen.held.nodes.items():
        there, before = set(held.tolist()), set[int]()
        for number, batch in enumerate(batches):
            if number % num_batches == 0 or not matches:
                before = set()
            ids = (batch if name == NODE_TYPE else batch[name])["n_id"].tolist()
            hits = sum(each in there for each in ids)
            kept = sum(each in before - there for each in ids)
            num_rows += hits
            num_kept += kept
            num_bytes += (hits + kept) * widths[name]
            numbers_bytes += 4 * (len(ids) + hits + kept) if hits or matches else 0
            missed[name] += len(ids) - hits - kept
            before = set(ids)
    return OnDevice(num_rows, num_bytes, numbers_bytes, missed, num_kept)


def has_repeats(value: Any) -> bool:
    """Return whether a node is in a batch twice."""
    if isinstance(value, list):
        return any(map(has_repeats, value))
    ids = value.get("n_id", [])
    of_types = [each for each in value.values() if isinstance(each, dict)]
    return len(set(map(int, ids))) < len(ids) or has_repeats(of_types)
