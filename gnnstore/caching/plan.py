"""Traces and plans: the rows that batches need, and the slots that each is read from.

A trace has the rows that the batches of a superbatch need. Its plan has the slot of each row, or
that it is missed, and the rows that enter slots after each batch. Both lie in memory, or in files
if they are large.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gnnstore.disk.spool import FileSpool
from gnnstore.formats.arrays.dtypes import id_dtype


@dataclass(frozen=True, eq=False)
class Trace:
    """The rows that the batches of a superbatch need, one batch behind the other.

    Safe to use from many threads.
    """

    # int32 or int64 [n]: numbers of rows in a row space, type after type in each batch, which may
    # repeat them; in a store of one node type they are node ids.
    ids: npt.NDArray[Any]
    # int64 [S + 1]: batch i needs ``ids[offsets[i]:offsets[i + 1]]``.
    offsets: npt.NDArray[np.int64]
    file: FileSpool | None = None  # holds the ids of a trace in a file, batch by batch
    num_nodes: int = 0  # rows of the row space, if the ids are in a file

    @classmethod
    def of(cls, batches: list[npt.NDArray[Any]]) -> Self:
        """Join the ids of some batches, all int32 or all int64; copies them."""
        ids = np.concatenate(batches) if batches else np.empty(0, np.int64)
        return cls(ids, _offsets([len(batch) for batch in batches]))

    @property
    def num_batches(self) -> int:
        """Number of batches, S."""
        return len(self.offsets) - 1

    @property
    def num_accesses(self) -> int:
        """Rows of all batches, repeated ones included."""
        return len(self.ids) if self.file is None else int(self.offsets[-1])

    @property
    def num_bytes(self) -> int:
        """Memory of the ids."""
        return self.ids.nbytes

    @property
    def num_disk_bytes(self) -> int:
        """Disk that the file takes."""
        return 0 if self.file is None else self.file.num_disk_bytes

    @property
    def read_rows(self) -> int:
        """Rows of the largest batch, if batches are read from a file; else 0."""
        return 0 if self.file is None else int(np.diff(self.offsets).max(initial=0))

    def batch(self, i: int) -> npt.NDArray[Any]:
        """Return the ids of a batch: a view, or a new array read from the file."""
        if self.file is not None:
            return self.file.read(i)[0]
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def first(self, num_batches: int) -> Trace:
        """Return the trace of the first batches; views."""
        offsets = self.offsets[: num_batches + 1]
        return replace(self, ids=self.ids[: offsets[-1]], offsets=offsets)

    def close(self) -> None:
        """Remove the file, if there is one. Idempotent."""
        if self.file is not None:
            self.file.close()


class TraceBuilder:
    """Collects the rows that batches need. `put` is safe to call from many threads."""

    def __init__(self, num_batches: int, num_nodes: int, path: Path | None = None) -> None:
        self.num_batches = num_batches
        self.id_dtype = id_dtype(num_nodes - 1)
        self._num_nodes = num_nodes
        # The file that has the ids, as they were put.
        self.file = None if path is None else FileSpool(path, num_batches, what="the trace")
        self._rows: dict[int, npt.NDArray[Any]] = {}  # without a file
        self._sizes = [-1] * num_batches  # -1: the batch is missing

    def put(self, i: int, n_id: npt.NDArray[Any]) -> None:
        """Take the rows of batch i; copies them if their element type differs."""
        rows = n_id.astype(self.id_dtype, copy=False)
        if self.file is None:
            self._rows[i] = rows
        else:
            self.file.append(i, [rows])
        self._sizes[i] = len(rows)

    def build(self) -> Trace:
        """Return the trace up to the first batch that is missing; it owns the file from now on."""
        sizes = list(takewhile(lambda size: size >= 0, self._sizes))
        offsets = _offsets(sizes)
        if self.file is not None:
            return Trace(np.empty(0, self.id_dtype), offsets, self.file, self._num_nodes)
        ids = np.empty(int(offsets[-1]), self.id_dtype)
        for i, (begin, end) in enumerate(pairwise(offsets)):
            # Fresh memory is touched as fast as old is freed: never twice the trace.
            ids[begin:end] = self._rows.pop(i)
        self._rows.clear()
        return Trace(ids, offsets)

    def close(self) -> None:
        """Forget the ids, and remove the file, even if a trace uses it. Idempotent."""
        self._rows.clear()
        if self.file is not None:
            self.file.close()


def _offsets(sizes: list[int]) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


@dataclass(frozen=True)
class PlanLocation:
    """The files of a plan that is made on disk."""

    # Without a suffix: `path.slots` and `path.changes` are made, and removed by the plan's `close`,
    # or if planning fails.
    path: Path
    # Memory for planning; see `gnnstore.caching.belady.BeladyPlanner.plan`.
    table_bytes: int = 0


class PlanFiles(NamedTuple):
    """The files of a plan."""

    slots: FileSpool  # a vector for each batch: the slot of each row
    # A vector for each batch: the positions, and then the slots, of the rows that enter.
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
        """Disk that the files take."""
        return self.slots.num_disk_bytes + self.changes.num_disk_bytes

    def close(self) -> None:
        """Remove the files. Idempotent."""
        self.slots.close()
        self.changes.close()


class PlannedStep(NamedTuple):
    """A batch's plan as a planner yields it, for n rows; `PlanStep` is what a cache follows."""

    slots: npt.NDArray[Any]  # [n]: the slot that each row is read from; -1: it is missed
    misses: int  # distinct rows that are missed
    change_positions: npt.NDArray[Any]  # positions in the batch of the rows that enter
    change_slots: npt.NDArray[Any]  # slots of these rows


_NONE = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class CachePlan:
    """The plan of a cache of C slots for S batches of n rows in all.

    Safe to use from many threads.
    """

    offsets: npt.NDArray[np.int64]  # int64 [S + 1]: the offsets of the trace
    # int32 [n]: the slot that each row of the trace is read from; -1: it is read from disk.
    slots: npt.NDArray[np.int32]
    misses: npt.NDArray[np.int64]  # int64 [S]: distinct rows of each batch that are read from disk
    change_offsets: npt.NDArray[np.int64]  # int64 [S + 1]
    change_positions: npt.NDArray[Any]
    change_slots: npt.NDArray[Any]
    # The slots and changes of a plan in files, whose arrays are empty.
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
        location: PlanLocation | None = None,
    ) -> Self:
        """Make a plan batch by batch, as planners do that do not look ahead."""
        if location is None:
            made = list(steps)
            changes = np.zeros(len(offsets), np.int64)
            np.cumsum([len(step.change_slots) for step in made], out=changes[1:])
            return cls(
                offsets,
                np.concatenate([_NONE, *(step.slots for step in made)], dtype=np.int32),
                np.array([step.misses for step in made], np.int64),
                changes,
                np.concatenate([_NONE, *(step.change_positions for step in made)], dtype=np.int32),
                np.concatenate([_NONE, *(step.change_slots for step in made)], dtype=np.int32),
            )
        misses = np.zeros(len(offsets) - 1, np.int64)
        files = PlanFiles.make(location.path, len(misses))
        try:
            for i, step in enumerate(steps):
                misses[i] = step.misses
                files.slots.append(i, [step.slots.astype(np.int32, copy=False)])
                both = [step.change_positions, step.change_slots]
                files.changes.append(i, [np.concatenate(both, dtype=np.int32)])
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
        """Disk that the files take, without the file of the trace."""
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
