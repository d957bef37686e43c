"""What a device has of batches, by sets of nodes: which rows are there, and what is copied."""

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


def on_device(loader: Any, batches: Any) -> OnDevice:
    """Return what the device of a loader has of batches, which are dicts."""
    if (chosen := loader._sources.chosen) is None:
        return OnDevice(0, 0, 0, Counter())
    widths = Counter[str]()
    for spec in chosen.tables.specs:
        widths[chosen.tables.owners[spec.path]] += spec.row_bytes
    num_rows = num_bytes = numbers_bytes = 0
    missed = Counter[str]()
    for batch in batches:
        for name, held in chosen.held.nodes.items():
            there = set(held.tolist())
            ids = (batch if name == NODE_TYPE else batch[name])["n_id"].tolist()
            hits = sum(each in there for each in ids)
            num_rows += hits
            num_bytes += hits * widths[name]
            numbers_bytes += 4 * (len(ids) + hits) if hits else 0
            missed[name] += len(ids) - hits
    return OnDevice(num_rows, num_bytes, numbers_bytes, missed)
