"""What the batches of a packed plan need, miss and have packed, and how soon rows come again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.features.packed.saved import SavedPlan
from gnnstore.formats.packed.reader import PackedReader
from gnnstore.progress import Progress


@dataclass(frozen=True, eq=False)
class PlanRows:
    """Counts of one plan with S batches in all, B in each epoch.

    Attributes
    ----------
    needed, missed, packed : ndarray of int64 [S]
        Rows of each batch; those that are not in the cache when it is assembled; those that
        its packed run has. Where batches share rows on disk, a run has less than is missed.
    ages : ndarray of int64 [B]
        How many rows were last needed so many batches ago; at 0, those that no batch of their
        epoch needed before. An epoch begins with an empty cache.
    batches_per_epoch : int
    num_slots : int
        Rows that there is room for in the cache.
    """

    needed: npt.NDArray[np.int64]
    missed: npt.NDArray[np.int64]
    packed: npt.NDArray[np.int64]
    ages: npt.NDArray[np.int64]
    batches_per_epoch: int
    num_slots: int

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return {
            "needed": self.needed.tolist(),
            "missed": self.missed.tolist(),
            "packed": self.packed.tolist(),
            "ages": self.ages.tolist(),
        }


def scan_plan(reader: PackedReader, progress: Progress) -> PlanRows:
    """Read the records of a plan once, in order, with 4 bytes a node; no row is read.

    Raises
    ------
    CorruptStoreError
        If a record is damaged; says which batch.
    StorageError
        If it cannot be read.
    """
    manifest = reader.manifest
    plan = SavedPlan.open(reader)
    num_batches = manifest.num_batches
    needed, missed = np.zeros(num_batches, np.int64), np.zeros(num_batches, np.int64)
    ages = np.zeros(manifest.batches_per_epoch, np.int64)
    num_nodes = manifest.schema.edge.indptr.num_rows - 1
    last = np.empty(num_nodes, np.int32)
    with progress.phase("read the plan", num_batches, "batches") as phase:
        for number in range(num_batches):
            place = number % manifest.batches_per_epoch
            if place == 0:
                last[:] = -1
            record = plan.record(number)
            nodes = record.subgraph.n_id
            needed[number] = len(nodes)
            missed[number] = np.count_nonzero(record.slots < 0)
            before = last[nodes]
            # Age 0 is "never", so that no row of an earlier batch can have it.
            age = np.where(before < 0, 0, place - before)
            ages += np.bincount(age, minlength=len(ages))
            last[nodes] = place
            phase.advance()
    packed = reader.index[:, 3].astype(np.int64)
    return PlanRows(needed, missed, packed, ages, manifest.batches_per_epoch, manifest.num_slots)
