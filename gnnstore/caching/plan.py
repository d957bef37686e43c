"""The plan of a superbatch: where each row of its batches comes from, and which enter the cache.

Like the trace that it is made of, it lies in memory, or in files where that would take too much.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gnnstore.disk.spool import FileSpool


@dataclass(frozen=True)
class PlanPlace:
    """The files of a plan that is made on disk."""

    # Without a suffix: `path.slots` and `path.changes` are made, and removed by the plan's `close`,
    # or if planning fails.
    path: Path
    # Memory for planning; see `gnnstore.caching.policies.belady.BeladyPlanner.plan`.
    table_bytes: int = 0


class PlanFiles(NamedTuple):
    """The files of a plan."""

    slots: FileSpool  # of each batch one vector: the slot of each row
    # Of each batch one vector: the positions, and then the slots, of the rows that enter.
    changes: FileSpool

    @classmethod
    def make(cls, path: Path, num_batches: int) -> Self:
        """Make empty files."""
        slots = FileSpool(path.with_name(f"{path.name}.slots"), num_batches, what="the plan")
        try:
            changes = path.with_name(f"{path.name}.changes")
            return cls(slots, FileSpool(changes, num_batches, what="the plan"))
        except BaseException:
            slots.close()
            raise

    @property
    def num_disk_bytes(self) -> int:
        """Disk that they take."""
        return self.slots.num_disk_bytes + self.changes.num_disk_bytes

    def close(self) -> None:
        """Remove them. Idempotent."""
        self.slots.close()
        self.changes.close()


class PlannedStep(NamedTuple):
    """The plan of one batch of n rows."""

    slots: npt.NDArray[np.int32]  # int32 [n]: the slot that each row is read from; -1: it is missed
    misses: int  # distinct rows that are missed
    change_positions: npt.NDArray[np.int32]  # the rows that enter, and their slots
    change_slots: npt.NDArray[np.int32]  # the rows that enter, and their slots


_NONE = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class CachePlan:
    """The plan of a cache of C slots for S batches of n rows in all.

    Safe to use from many threads.
    """

    offsets: npt.NDArray[np.int64]  # int64 [S + 1]: the offsets of the trace
    # int32 [n]: the slot that a row is read from, beside the trace's ids; -1: it is read from disk.
    slots: npt.NDArray[np.int32]
    misses: npt.NDArray[np.int64]  # int64 [S]: distinct rows of each batch that are read from disk
    change_offsets: npt.NDArray[np.int64]  # int64 [S + 1]
    change_positions: npt.NDArray[np.int32]
    change_slots: npt.NDArray[np.int32]
    # Hold slots and changes of a plan in files, whose arrays of them are empty.
    files: PlanFiles | None = None

    @classmethod
    def in_files(
        cls, offsets: npt.NDArray[np.int64], misses: npt.NDArray[np.int64], files: PlanFiles
    ) -> Self:
        """Return a plan whose slots and changes have been written to files."""
        none = np.zeros(len(offsets), np.int64)
        return cls(offsets, _NONE, misses, none, _NONE, _NONE, files)

    @classmethod
    def collect(
        cls,
        offsets: npt.NDArray[np.int64],
        steps: Iterable[PlannedStep],
        place: PlanPlace | None = None,
    ) -> Self:
        """Make a plan batch by batch, as planners do that do not look ahead."""
        if place is None:
            made = list(steps)
            changes = np.zeros(len(offsets), np.int64)
            np.cumsum([len(step.change_slots) for step in made], out=changes[1:])
            return cls(
                offsets,
                np.concatenate([_NONE, *(step.slots for step in made)]),
                np.array([step.misses for step in made], np.int64),
                changes,
                np.concatenate([_NONE, *(step.change_positions for step in made)]),
                np.concatenate([_NONE, *(step.change_slots for step in made)]),
            )
        misses = np.zeros(len(offsets) - 1, np.int64)
        files = PlanFiles.make(place.path, len(misses))
        try:
            for i, step in enumerate(steps):
                misses[i] = step.misses
                files.slots.append(i, [step.slots])
                changes = np.concatenate([step.change_positions, step.change_slots])
                files.changes.append(i, [changes])
        except BaseException:
            files.close()
            raise
        return cls.in_files(offsets, misses, files)

    @property
    def num_batches(self) -> int:
        """Number of planned batches, S."""
        return len(self.misses)

    @property
    def num_misses(self) -> int:
        """Rows that are read from disk, counted once for each batch."""
        return int(self.misses.sum())

    @property
    def num_bytes(self) -> int:
        """Memory of the plan, the trace not included."""
        arrays = (self.slots, self.misses, self.change_offsets)
        whole = sum(a.nbytes for a in (*arrays, self.change_positions, self.change_slots))
        return whole + sum(spool.num_bytes for spool in self.files or ())

    @property
    def num_disk_bytes(self) -> int:
        """Disk that the files take, that of the trace not included."""
        return 0 if self.files is None else self.files.num_disk_bytes

    def batch_slots(self, i: int) -> npt.NDArray[np.int32]:
        """Return the slot of each row of a batch, or -1: int32 [rows], a view or new."""
        if self.files is not None:
            return self.files.slots.read(i)[0]
        return self.slots[self.offsets[i] : self.offsets[i + 1]]

    def batch_changes(self, i: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return (positions, slots) of the rows that enter after a batch: int32, views or new."""
        if self.files is not None:
            (both,) = self.files.changes.read(i)
            return both[: len(both) // 2], both[len(both) // 2 :]
        begin, end = self.change_offsets[i], self.change_offsets[i + 1]
        return self.change_positions[begin:end], self.change_slots[begin:end]

    def first(self, num_batches: int) -> Self:
        """Return the plan of the first batches; views."""
        offsets, changes = self.offsets[: num_batches + 1], self.change_offsets[: num_batches + 1]
        return replace(
            self,
            offsets=offsets,
            slots=self.slots[: offsets[-1]],
            misses=self.misses[:num_batches],
            change_offsets=changes,
            change_positions=self.change_positions[: changes[-1]],
            change_slots=self.change_slots[: changes[-1]],
        )

    def close(self) -> None:
        """Remove the files, if there are any. Idempotent."""
        if self.files is not None:
            self.files.close()
