"""Sorting what the batches of a superbatch miss, one batch at a time on some threads.

Traces and plans are read batch by batch, so that they may lie on disk.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.policies.belady import Trace
from gnnstore.errors import UsageError
from gnnstore.features.packed.memory import sorting_bytes, too_little_memory


class TraceOnDisk(Protocol):
    """A trace that is read batch by batch, such as `SpilledTrace`."""

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Of all batches: int32 or int64."""

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Where each batch begins among all rows; the end of the last one: int64 [S + 1]."""

    @property
    def num_batches(self) -> int:
        """S."""

    @property
    def num_accesses(self) -> int:
        """Rows of all batches."""

    def batch(self, i: int) -> npt.NDArray[Any]:
        """Return the ids of a batch."""


BatchTrace = Trace | TraceOnDisk


class BatchPlan(Protocol):
    """A plan, wherever it lies: `SuperbatchPlan`, or `SpilledPlan`."""

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Those of the trace."""

    @property
    def misses(self) -> npt.NDArray[np.int64]:
        """Distinct rows of each batch that are missed, int64 [S]."""

    def batch_slots(self, i: int) -> npt.NDArray[np.int32]:
        """Return the slot of each row of a batch; negative: it is missed."""


class Stopped(Exception):  # noqa: N818 - it goes from one thread to another
    """Sorting was told to stop."""


def id_dtype(trace: BatchTrace) -> np.dtype[Any]:
    """Return the element type of a trace's ids."""
    return trace.ids.dtype if isinstance(trace, Trace) else trace.id_dtype


@dataclass(frozen=True, eq=False)
class MissSorting:
    """The batches of a superbatch, to be sorted. Made by `of`, which checks what it is given.

    Attributes
    ----------
    trace : Trace or SpilledTrace
    slots : BatchPlan, or ndarray of int32 or bool [n]
    num_table_rows : int
    slots_of : callable
        Returns the slot of each row of a batch.
    most : ndarray of int64 [S]
        Distinct rows that each batch misses, at most; exactly, if a plan says it.
    """

    trace: BatchTrace
    slots: BatchPlan | npt.NDArray[Any]
    num_table_rows: int
    slots_of: Callable[[int], npt.NDArray[np.int32]]
    most: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls, trace: BatchTrace, slots: BatchPlan | npt.NDArray[Any], num_table_rows: int
    ) -> MissSorting:
        """Check that trace and slots fit together.

        Raises
        ------
        UsageError
            If they do not.
        """
        _check_offsets(trace)
        return cls(trace, slots, num_table_rows, *_slots_of(trace, slots))

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Of all batches: int32 or int64."""
        return id_dtype(self.trace)

    @property
    def read_rows(self) -> int:
        """Rows of the largest batch, if they are read from disk; else 0."""
        if isinstance(self.trace, Trace):
            return 0
        return int(np.diff(self.trace.offsets).max(initial=0))

    def num_threads(self, wanted: int, memory_bytes: int, left_bytes: int, *, spills: bool) -> int:
        """Return how many threads there is memory for.

        Parameters
        ----------
        wanted : int
            No more than these.
        memory_bytes, left_bytes : int
            What packing has, and what is left of it for sorting.
        spills : bool
            Whether what is sorted goes to files, from memory of each thread.

        Raises
        ------
        BudgetError
            If there is too little for one.
        """

        def needed_bytes(threads: int) -> int:
            itemsize = self.id_dtype.itemsize
            return sorting_bytes(self.most, threads, itemsize, self.read_rows, spills=spills)

        while wanted > 1 and needed_bytes(wanted) > left_bytes:
            wanted -= 1
        if (missing := needed_bytes(wanted) - left_bytes) > 0:
            raise too_little_memory(self.trace.num_batches, memory_bytes, missing)
        return wanted

    def sort(
        self, i: int, rows: npt.NDArray[Any], positions: npt.NDArray[np.int32]
    ) -> tuple[int, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Find and sort what a batch misses.

        Parameters
        ----------
        rows, positions : ndarray [k]
            Receive the distinct rows in the order of the table, and where each comes first.

        Returns
        -------
        int
            How many rows they are.
        repeat_targets, repeat_sources : ndarray of int32
            Where rows come again, and where the same row comes first.

        Raises
        ------
        UsageError
            If an id is not below `num_table_rows`, or there are more rows than k.
        StorageError, CorruptStoreError
            If a trace or plan on disk cannot be read.
        """
        ids, slots = self.trace.batch(i), self.slots_of(i)
        try:
            return _core.sort_misses(ids, slots, rows, positions, num_rows=self.num_table_rows)
        except (ValueError, IndexError) as error:
            raise UsageError(f"cannot pack batch {i} of a superbatch: {error}") from error

    def check(self, num_rows: npt.NDArray[np.int64]) -> None:
        """Refuse the plan if it says other numbers of rows than were found."""
        most = self.most
        if not isinstance(self.slots, np.ndarray) and not np.array_equal(num_rows, most):
            i = int(np.flatnonzero(num_rows != most)[0])
            raise UsageError(
                f"batch {i} misses {num_rows[i]} rows, but {most[i]} by its plan; pack with the "
                "plan that was made of this trace"
            )


def for_each(num_tasks: int, num_threads: int, work: Callable[[int], None]) -> None:
    """Call work(0), ... work(num_tasks - 1), on some threads; the calling one is among them."""
    numbers = itertools.count()  # `next` of it is one step of the interpreter
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not failures and (i := next(numbers)) < num_tasks:
                work(i)
        except BaseException as error:
            failures.append(error)

    helpers = [
        threading.Thread(target=run, name="gnnstore-sort")
        for _ in range(min(num_threads, num_tasks) - 1)
    ]
    started = []
    for helper in helpers:
        with suppress(RuntimeError):  # fewer threads change the time, not the result
            helper.start()
            started.append(helper)
    run()
    for helper in started:
        helper.join()
    if failures:
        raise failures[0]


def _check_offsets(trace: BatchTrace) -> None:
    """Refuse offsets that are not those of the ids: rows would be taken for other batches'."""
    offsets, sizes = trace.offsets, np.diff(trace.offsets)
    if offsets[0] != 0 or offsets[-1] != trace.num_accesses:
        raise UsageError(
            f"cannot pack a superbatch: its offsets go from {offsets[0]} to {offsets[-1]}, not "
            f"from 0 to its {trace.num_accesses} rows"
        )
    if len(sizes) and sizes.min() < 0:
        i = int(sizes.argmin())
        raise UsageError(f"cannot pack a superbatch: batch {i} has {sizes[i]} rows")


def _slots_of(
    trace: BatchTrace, slots: BatchPlan | npt.NDArray[Any]
) -> tuple[Callable[[int], npt.NDArray[np.int32]], npt.NDArray[np.int64]]:
    """Return what gives a batch's slots, and how many rows each batch misses at most."""
    offsets = trace.offsets
    if not isinstance(slots, np.ndarray):
        if not np.array_equal(slots.offsets, offsets):
            raise UsageError(
                f"the trace has {trace.num_accesses} rows in {trace.num_batches} batches, but "
                f"there are {int(slots.offsets[-1])} slots in {len(slots.offsets) - 1}; pack "
                "with the plan that was made of this trace"
            )
        return slots.batch_slots, slots.misses
    if slots.dtype not in (np.bool_, np.int32):
        raise UsageError(f"slots are int32 (negative: missed) or bool, got {slots.dtype}")
    if len(slots) != trace.num_accesses:
        raise UsageError(
            f"the trace has {trace.num_accesses} rows, but there are {len(slots)} slots; "
            "pack with the plan that was made of this trace"
        )

    def slots_of(i: int) -> npt.NDArray[np.int32]:
        part = slots[offsets[i] : offsets[i + 1]]
        return part.astype(np.int32) - np.int32(1) if part.dtype == np.bool_ else part

    counts = [np.count_nonzero(slots_of(i) < 0) for i in range(trace.num_batches)]
    return slots_of, np.array(counts, np.int64)
