"""The plan of a superbatch in files: planned, and followed, at no memory for each row."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.trace_file import create, guarded
from gnnstore.errors import UsageError

if TYPE_CHECKING:
    from gnnstore.caching.trace_file import SpilledTrace

# For each slot a row that waits for its next batch: its place and slot, and what links those that
# wait for the same one. The table of next uses has the same memory before.
WAITING_BYTES = 10
# And where its row is used first.
SLOT_BYTES = WAITING_BYTES + 4
# Of the largest batch: ids, next uses, slots, and which rows enter where.
_ROW_BYTES = 8 + 4 + 4 + 2 * 4
# What is counted by batch; and how many rows may wait in lists that are partly filled.
_BATCH_BYTES = 200
# Counts by frequency, and of one batch by frequency; partly filled lists; the end of a huge page.
_TABLES_BYTES = 4 * 2**20
_NODE_BYTES = 4  # of the table of next uses


def planning_threads() -> int:
    """Return how many threads look for next uses.

    Plans do not depend on them. A superbatch is sampled when it is planned, so processors that
    sampled it are free. Half of planning is done by one thread: more than four would hardly make
    it shorter.
    """
    return min(4, len(os.sched_getaffinity(0)))


def spilled_transient_bytes(
    num_nodes: int, largest_batch: int, num_batches: int, num_slots: int, table_bytes: int
) -> int:
    """Return the memory that planning in files takes at most, beside the plan.

    It is given back when the plan is made. What the system keeps of the files in its page cache
    is not counted: it gives that up when somebody needs the memory.

    Parameters
    ----------
    num_nodes : int
        N, of the graph.
    largest_batch : int
        Rows of the largest batch.
    num_batches : int
        S.
    num_slots : int
        C. Beside the state of a planner, which takes 12 bytes a slot.
    table_bytes : int
        Of the table of next uses. Where there are fewer than 4 for each node, planning goes
        through the trace several times.
    """
    table = min(table_bytes, _NODE_BYTES * num_nodes)
    fixed = _ROW_BYTES * largest_batch + _BATCH_BYTES * num_batches + _TABLES_BYTES
    first_uses = 4 * num_slots
    # The table's memory is used again for what waits.
    return fixed + first_uses + max(table, SLOT_BYTES * num_slots - first_uses)


class SpilledPlan:
    """What a cache does while S batches are assembled, in files. Made by `BeladyPlanner`.

    Says the same as a `SuperbatchPlan`. Safe to use from many threads.

    Attributes
    ----------
    offsets : ndarray of int64 [S + 1]
        Those of the trace.
    misses : ndarray of int64 [S]
        Distinct rows of each batch that are read from disk.
    """

    def __init__(
        self,
        trace: SpilledTrace,
        path: Path,
        nodes: npt.NDArray[np.int64],
        frequencies: npt.NDArray[np.int32],
        table_bytes: int,
    ) -> None:
        """Plan; see `BeladyPlanner.plan_spilled`. nodes and frequencies become those after it."""
        if table_bytes < _NODE_BYTES:
            raise UsageError(
                f"a table of next uses has at least {_NODE_BYTES} bytes, got {table_bytes}; "
                f"with {_NODE_BYTES} for each node, planning is fastest"
            )
        self.offsets = trace.offsets
        self._path = path
        self._slots = create(path.with_name(f"{path.name}.slots"))
        try:
            self._changes = create(path.with_name(f"{path.name}.changes"))
        except BaseException:
            self._slots.close()
            raise
        try:
            planned = guarded(
                lambda: _core.plan_belady_spilled(
                    trace.file,
                    trace.begins,
                    trace.crcs,
                    trace.offsets,
                    are_wide=trace.id_dtype == np.int64,
                    num_nodes=trace.num_nodes,
                    nodes=nodes,
                    frequencies=frequencies,
                    table_bytes=table_bytes,
                    slots=self._slots,
                    changes=self._changes,
                    num_threads=planning_threads(),
                ),
                "plan a superbatch",
                path,
            )
        except BaseException:
            self.close()
            raise
        self.misses, self._slot_crcs, self._change_offsets, self._change_crcs = planned

    @property
    def num_batches(self) -> int:
        """S."""
        return len(self.misses)

    @property
    def num_misses(self) -> int:
        """Rows that are read from disk, counted once for each batch."""
        return int(self.misses.sum())

    @property
    def num_bytes(self) -> int:
        """Memory of the plan, the trace not included."""
        arrays = (self.misses, self._slot_crcs, self._change_offsets, self._change_crcs)
        return sum(array.nbytes for array in arrays)

    @property
    def num_disk_bytes(self) -> int:
        """Disk that the files take, that of the trace not included."""
        return self._slots.num_bytes + self._changes.num_bytes

    def batch_slots(self, i: int) -> npt.NDArray[np.int32]:
        """Read the slot of each row of a batch, or -1: a new array, int32 [rows of the batch].

        Raises
        ------
        CorruptStoreError
            If the file no longer holds what was planned.
        StorageError
            If it cannot be read.
        UsageError
            If it is closed.
        """
        begin, size = 4 * int(self.offsets[i]), int(self.offsets[i + 1] - self.offsets[i])
        return self._read(self._slots, begin, size, int(self._slot_crcs[i]), i)

    def batch_changes(self, i: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Read (positions, slots) of the rows that enter after a batch: new, int32 each.

        Raises as `batch_slots` does.
        """
        offsets = self._change_offsets
        begin, size = int(offsets[i]), int(offsets[i + 1] - offsets[i])
        both = self._read(self._changes, 8 * begin, 2 * size, int(self._change_crcs[i]), i)
        return both[:size], both[size:]

    def _read(
        self, file: _core.SpillFile, begin: int, size: int, crc: int, i: int
    ) -> npt.NDArray[np.int32]:
        return guarded(
            lambda: file.read_int32(begin, size, crc, i), f"read the plan of batch {i}", self._path
        )

    def close(self) -> None:
        """Remove the files. Idempotent."""
        self._slots.close()
        self._changes.close()
