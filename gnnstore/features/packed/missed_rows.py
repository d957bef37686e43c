"""The rows that the batches of a superbatch miss, sorted: what packing works from, in memory.

Of each such row its id is there while it is packed, and its position until it is read. Where that
is too much, see `missed_files`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.features.packed.chunks import MissIndex
from gnnstore.features.packed.memory import held_bytes
from gnnstore.features.packed.miss_sorting import (
    BatchPlan,
    BatchTrace,
    MissSorting,
    Stopped,
    for_each,
    id_dtype,
)

__all__ = ["BatchPlan", "BatchTrace", "MissedRows", "Stopped", "id_dtype", "sort_out"]


@dataclass(frozen=True, eq=False)
class MissedRows:
    """The distinct rows that each batch misses, and where they go.

    Attributes
    ----------
    rows : ndarray of int32 or int64 [m]
        Those of batch i are ``rows[begins[i]:begins[i] + num_rows[i]]`` by the index, in the
        order of the table.
    index : MissIndex
    """

    rows: npt.NDArray[Any]
    index: MissIndex

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return self.rows.nbytes + self.index.num_bytes


def sort_out(
    trace: BatchTrace,
    slots: BatchPlan | npt.NDArray[Any],
    num_table_rows: int,
    *,
    memory_bytes: int,
    num_threads: int = 1,
    is_stopped: Callable[[], bool] = lambda: False,
) -> MissedRows:
    """Find and sort the rows that each batch misses, with as many threads as memory allows.

    Parameters
    ----------
    slots : BatchPlan, or ndarray of int32 or bool [n]
        Negative, or false, is missed.
    is_stopped : callable
        Asked before each batch.

    Raises
    ------
    UsageError
        If trace and slots do not fit together, or an id is not below `num_table_rows`.
    BudgetError
        If there is too little memory.
    StorageError, CorruptStoreError
        If a trace or plan on disk cannot be read.
    Stopped
        If `is_stopped` says so.
    """
    sorting = MissSorting.of(trace, slots, num_table_rows)
    most, dtype = sorting.most, sorting.id_dtype
    total = int(most.sum())
    left = memory_bytes - held_bytes(total, trace.num_batches, dtype.itemsize)
    num_threads = sorting.num_threads(num_threads, memory_bytes, left, spills=False)
    begins = np.cumsum(most) - most
    num_rows = np.zeros(trace.num_batches, np.int64)
    # Not from the pool, which rounds up by an eighth, and keeps what it gets back.
    rows, positions = np.empty(total, dtype), np.empty(total, np.int32)
    repeats: list[Any] = [None] * trace.num_batches

    def sort_batch(i: int) -> None:
        if is_stopped():
            raise Stopped
        place = slice(begins[i], begins[i] + most[i])
        num_rows[i], *repeats[i] = sorting.sort(i, rows[place], positions[place])

    for_each(trace.num_batches, num_threads, sort_batch)
    sorting.check(num_rows)
    repeat_begins = np.zeros(trace.num_batches + 1, np.int64)
    np.cumsum([len(targets) for targets, _ in repeats], out=repeat_begins[1:])
    targets, sources = (
        np.concatenate([np.empty(0, np.int32), *(pair[side] for pair in repeats)])
        for side in (0, 1)
    )
    return MissedRows(rows, MissIndex(positions, begins, num_rows, targets, sources, repeat_begins))
