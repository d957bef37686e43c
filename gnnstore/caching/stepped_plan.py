"""Plans in files that are made batch by batch, by planners that do not look ahead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.spilled_plan import SpilledPlan
from gnnstore.caching.trace_file import create, guarded

if TYPE_CHECKING:
    from pathlib import Path

    from gnnstore.caching.trace_file import SpilledTrace


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """What is planned for one batch of n rows.

    Attributes
    ----------
    slots : ndarray of int32 [n]
        As in `SuperbatchPlan`.
    misses : int
        Distinct rows that are read.
    change_positions, change_slots : ndarray of int32
    """

    slots: npt.NDArray[np.int32]
    misses: int
    change_positions: npt.NDArray[np.int32]
    change_slots: npt.NDArray[np.int32]


class SteppedPlan(SpilledPlan):
    """A plan in files, written one batch after the other.

    Parameters
    ----------
    trace : SpilledTrace
    path : Path
        Without a suffix: `path.slots` and `path.changes` are made; removed if anything fails.
    steps : iterable of PlannedStep
        Of each batch in turn.

    Raises
    ------
    NoSpaceError, StorageError
        If the files cannot be made or written; and whatever `steps` raises.
    """

    def __init__(self, trace: SpilledTrace, path: Path, steps: Iterable[PlannedStep]) -> None:
        num_batches = trace.num_batches
        self.offsets = trace.offsets
        self.misses = np.zeros(num_batches, np.int64)
        self._path = path
        self._slot_crcs, self._change_crcs = (np.zeros(num_batches, np.uint32) for _ in range(2))
        self._change_offsets = np.zeros(num_batches + 1, np.int64)
        self._slots = create(path.with_name(f"{path.name}.slots"))
        try:
            self._changes = create(path.with_name(f"{path.name}.changes"))
        except BaseException:
            self._slots.close()
            raise
        try:
            for i, step in enumerate(steps):
                self._add(i, step)
        except BaseException:
            self.close()
            raise

    def _add(self, i: int, step: PlannedStep) -> None:
        # Each begins where the one before ended: nobody else writes to these files.
        self.misses[i] = step.misses
        self._change_offsets[i + 1] = self._change_offsets[i] + len(step.change_slots)
        self._slot_crcs[i] = self._append(self._slots, step.slots, i)
        changes = np.concatenate([step.change_positions, step.change_slots])
        self._change_crcs[i] = self._append(self._changes, changes, i)

    def _append(self, file: _core.SpillFile, values: npt.NDArray[np.int32], i: int) -> int:
        doing = f"write the plan of batch {i}"
        return guarded(lambda: file.append(values, i), doing, self._path)[1]
