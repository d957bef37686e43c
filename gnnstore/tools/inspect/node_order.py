"""Estimates the savings of another order of nodes, from the rows that batches need."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore.disk.profile import load_profile, tune_reads
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.reader import StoreReader
from gnnstore.units import format_size

# Smaller tables stay in memory, and a smaller share is not worth new ids.
_WORTH_BYTES, _WORTH_SHARE = 2**30, 0.1
_PIECE_RUNS = 2**18


@dataclass(frozen=True)
class OrderSaving:
    """The bytes that a pass over a table reads for the rows that batches need."""

    table: str  # the widest paged attribute of nodes, by its path
    table_bytes: int  # bytes of its pages
    # Bytes that a pass reads now, with gaps that cost less than a read of their own.
    read_bytes: int
    # Bytes that a pass would read if the needed rows lay in front of the others.
    ordered_bytes: int
    needed_share: float  # share of rows that are needed

    @classmethod
    def of(cls, reader: StoreReader, needed: npt.NDArray[np.bool_]) -> Self | None:
        """Estimate the savings of a store; None if no attribute of nodes lies in pages."""
        spec = _widest(reader)
        if spec is None or not len(needed):
            return None
        geometry = reader.paged(spec).geometry
        stride, per_run = geometry.page_stride_bytes, geometry.rows_per_page
        step = _PIECE_RUNS * per_run
        runs = np.concatenate(
            [
                first // per_run
                + np.flatnonzero(np.logical_or.reduceat(part, np.arange(0, len(part), per_run)))
                for first in range(0, len(needed), step)
                for part in (needed[first : first + step],)
            ]
        )
        gaps = np.diff(runs) - 1
        gap_runs = tune_reads(load_profile(reader.path)).gap_bytes // stride
        num_needed = int(np.count_nonzero(needed))
        return cls(
            spec.path,
            geometry.num_runs(spec.num_rows) * stride,
            (len(runs) + int(gaps[gaps <= gap_runs].sum())) * stride,
            geometry.num_runs(num_needed) * stride,
            num_needed / len(needed),
        )

    @property
    def share(self) -> float:
        """Share of a pass that another order would not read."""
        return 1 - self.ordered_bytes / self.read_bytes if self.read_bytes else 0.0

    @property
    def is_worth_it(self) -> bool:
        """Whether the savings are worth new node numbers."""
        return self.read_bytes >= _WORTH_BYTES and self.share >= _WORTH_SHARE

    def to_json(self) -> dict[str, Any]:
        """Return the estimate, and advice if it is worth it, as JSON values."""
        advice = self.describe() if self.is_worth_it else None
        return {**asdict(self), "is_worth_it": self.is_worth_it, "advice": advice}

    def describe(self) -> str:
        """Return a sentence on the bytes of a pass."""
        return (
            f"a pass over {self.table} reads {format_size(self.read_bytes)}; for the rows that are "
            f"needed, side by side, it would read {format_size(self.ordered_bytes)}: "
            f"{self.share:.0%} less"
        )


def reorder_command(path: str) -> tuple[str, ...]:
    """Return the command that puts the nodes of a store in order."""
    store = Path(path)
    return "gnnstore", "reorder", path, str(store.with_name(f"{store.stem}-ordered.gnn"))


def _widest(reader: StoreReader) -> AttributeSpec | None:
    schema = reader.schema
    if len(schema.node_types) != 1:
        return None
    paged = [spec for spec in schema.node.attributes.values() if spec.layout == "paged"]
    return max(paged, key=lambda spec: spec.num_bytes, default=None)
