"""Which rows a cache should hold while batches that are known in advance are assembled (Ginex).

Sampling runs ahead of training, so the rows that the next hundreds of batches need are known,
and with them the best cache there can be: after each batch, of the rows at hand, it holds those
that are needed again soonest (Belady; Ginex, section 3.3). The plan of a superbatch says for
each row of each batch where it comes from, and which rows of a batch are written to which slots
once it has been assembled, so that nothing is looked up by node id at run time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.spilled_plan import (
    SpilledPlan,
    planning_threads,
    spilled_transient_bytes,
)
from gnnstore.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gnnstore.caching.trace_file import SpilledTrace

__all__ = [
    "BeladyPlanner",
    "SpilledPlan",
    "SuperbatchPlan",
    "Trace",
    "spilled_transient_bytes",
    "transient_bytes",
]

# Positions in a trace and slots of a cache have 31 bits in the kernel.
MAX_SLOTS = 2**31 - 3

# What the kernel takes at most while it plans: for each access 2 bytes to count next uses by batch,
# and of one batch, which may have half of the accesses, slots and which rows enter where.
_ACCESS_BYTES = 6
# For each slot: where its row is used next, and the place and slot of a row that waits; what links
# those that wait for the same batch; and the rows that enter, as far as accesses do not hold them.
_SLOT_BYTES = 18
# Tables of groups and of batches, lists that are partly filled, the end of a huge page.
_TABLES_BYTES = 3 * 2**20


@dataclass(frozen=True, eq=False)
class Trace:
    """The rows that the batches of a superbatch need, one batch behind the other.

    Attributes
    ----------
    ids : ndarray of int32 or int64 [n]
        Node ids, in the order of each batch's `n_id`; a batch may repeat them.
    offsets : ndarray of int64 [S + 1]
        Batch i needs ``ids[offsets[i]:offsets[i + 1]]``.
    """

    ids: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, batches: list[npt.NDArray[Any]]) -> Self:
        """Join the ids of some batches, int32 or int64 all of them; copies them."""
        offsets = np.zeros(len(batches) + 1, np.int64)
        np.cumsum([len(batch) for batch in batches], out=offsets[1:])
        return cls(np.concatenate(batches) if batches else np.empty(0, np.int64), offsets)

    @property
    def num_batches(self) -> int:
        """S."""
        return len(self.offsets) - 1

    @property
    def num_accesses(self) -> int:
        """Rows of all batches, repeated ones included."""
        return len(self.ids)

    def batch(self, i: int) -> npt.NDArray[Any]:
        """Return the ids of a batch, as a view."""
        return self.ids[self.offsets[i] : self.offsets[i + 1]]


@dataclass(frozen=True, eq=False)
class SuperbatchPlan:
    """What a cache of C slots does while S batches of n rows in all are assembled.

    Attributes
    ----------
    offsets : ndarray of int64 [S + 1]
        Those of the trace.
    slots : ndarray of int32 [n]
        The slot that a row is read from, beside the trace's ids; -1: it is read from disk.
    misses : ndarray of int64 [S]
        Distinct rows of each batch that are read from disk.
    change_offsets : ndarray of int64 [S + 1]
    change_positions, change_slots : ndarray of int32 [changes]
        Once batch i has been assembled, rows at ``change_positions[j]`` of it are written to
        slots ``change_slots[j]``, for j from ``change_offsets[i]`` to
        ``change_offsets[i + 1] - 1``. No slot is written that a later batch still reads.
    """

    offsets: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    misses: npt.NDArray[np.int64]
    change_offsets: npt.NDArray[np.int64]
    change_positions: npt.NDArray[np.int32]
    change_slots: npt.NDArray[np.int32]

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
        arrays = (self.slots, self.misses, self.change_offsets)
        return sum(a.nbytes for a in (*arrays, self.change_positions, self.change_slots))

    def batch_slots(self, i: int) -> npt.NDArray[np.int32]:
        """Return the slot of each row of a batch, or -1: a view, int32 [rows of the batch]."""
        return self.slots[self.offsets[i] : self.offsets[i + 1]]

    def batch_changes(self, i: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return (positions, slots) of the rows that enter after a batch: views, int32 each."""
        begin, end = self.change_offsets[i], self.change_offsets[i + 1]
        return self.change_positions[begin:end], self.change_slots[begin:end]


def transient_bytes(num_accesses: int, num_slots: int) -> int:
    """Return the memory that planning takes at most, beside the trace and the plan.

    It is given back when the plan is made. It does not depend on which rows are needed, or on how
    many there are: neither on the graph's size, nor on how far ids lie apart.

    Parameters
    ----------
    num_accesses : int
        n, rows of all batches. Where one batch has more than half of them, as with a superbatch
        of one batch, its rows beyond half take 4 bytes more each.
    num_slots : int
        C. Beside the state of a planner, which takes 12 bytes a slot, and 12 again for that
        after the plan.

    Notes
    -----
    Holds for up to ten thousand batches; beyond, 100 bytes a batch come on top.
    """
    return _ACCESS_BYTES * num_accesses + _SLOT_BYTES * num_slots + _TABLES_BYTES


def check_num_slots(num_slots: int) -> None:
    """Refuse a cache that no plan can be made for.

    Raises
    ------
    UsageError
        If the number of slots is out of range.
    """
    if not 0 <= num_slots <= MAX_SLOTS:
        raise UsageError(
            f"a planned cache has 0 to {MAX_SLOTS} slots, got {num_slots}; "
            "give it as many as there are rows at most"
        )


def distinct_nodes(
    nodes: npt.NDArray[Any], num_slots: int, out: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.int64]:
    """Return what each slot holds, int64 [C], a row in several slots named for the first only.

    A row that left a cache and entered it again may still lie where it was before. Takes 10
    bytes a slot at most, beside the result.

    Parameters
    ----------
    nodes : ndarray of int64 [C]
        -1: none.
    num_slots : int
        C.
    out : ndarray of int64 [C], optional
        Takes the result; may be `nodes`.

    Raises
    ------
    UsageError
        If there is not one entry per slot.
    """
    if nodes.shape != (num_slots,):
        raise UsageError(
            f"expected the rows in {num_slots} slots, got an array of shape {nodes.shape}"
        )
    distinct = np.empty(num_slots, np.int64) if out is None else out
    _core.distinct_rows(np.ascontiguousarray(nodes, np.int64), distinct)
    return distinct


class BeladyPlanner:
    """Plans superbatch after superbatch for one cache, which it leaves filled between them.

    A cache is empty at first. At the end of a superbatch nothing is known of the batches that
    follow, so it is left with the rows that the most batches have needed so far. Plans must be
    followed in the order in which they were made. Not to be used by two threads at once.

    Parameters
    ----------
    num_slots : int
        C, the rows that the cache holds; may be 0, or more than there are rows.

    Raises
    ------
    UsageError
        If the number is out of range.
    """

    def __init__(self, num_slots: int) -> None:
        check_num_slots(num_slots)
        self._nodes = np.full(num_slots, -1, np.int64)
        self._frequencies = np.zeros(num_slots, np.int32)

    @property
    def num_slots(self) -> int:
        """C."""
        return len(self._nodes)

    @property
    def nodes(self) -> npt.NDArray[np.int64]:
        """The row in each slot after the last plan, int64 [C]; -1: none that matters. A copy."""
        return self._nodes.copy()

    @property
    def frequencies(self) -> npt.NDArray[np.int32]:
        """How many batches have needed these rows so far, int32 [C]; 0 if there is none."""
        return self._frequencies.copy()

    def plan(self, trace: Trace) -> SuperbatchPlan:
        """Plan the next superbatch.

        Parameters
        ----------
        trace : Trace
            Must not be changed while the plan is used.

        Raises
        ------
        UsageError
            If the trace is not well-formed, or has 2^31 rows or more.
        """
        try:
            planned = _core.plan_belady(
                trace.ids, trace.offsets, self._nodes, self._frequencies, planning_threads()
            )
        except (ValueError, IndexError) as error:
            raise UsageError(f"cannot plan a superbatch: {error}") from error
        return SuperbatchPlan(trace.offsets, *planned)

    def plan_spilled(self, trace: SpilledTrace, path: Path, *, table_bytes: int) -> SpilledPlan:
        """Plan the next superbatch in files, in the same way.

        Takes the memory of `spilled_transient_bytes`. If it fails because a file cannot be read
        or written, the cache may count as empty afterwards.

        Parameters
        ----------
        trace : SpilledTrace
            Must not be closed meanwhile.
        path : Path
            Without a suffix: `path.slots` and `path.changes` are made, and removed by the plan's
            `close`, or if planning fails.
        table_bytes : int
            Memory for a table of next uses, 4 bytes for each node of the graph; never takes more
            than that. With less it goes through the trace several times.

        Raises
        ------
        CorruptStoreError
            If a file no longer holds what was written.
        NoSpaceError, StorageError
            If the files cannot be made, read or written.
        UsageError
            If the trace has 2^31 rows or more, or names nodes that the graph does not have; if it
            is closed; if the table has no place for a node.
        """
        return SpilledPlan(trace, path, self._nodes, self._frequencies, table_bytes)

    def restart(self, nodes: npt.NDArray[Any]) -> None:
        """Go on from a cache that holds these rows, each needed once so far.

        Parameters
        ----------
        nodes : ndarray of int64 [C]
            The row in each slot; -1: none. Of slots with the same row, the first counts.

        Raises
        ------
        UsageError
            If there is not one entry per slot.
        """
        distinct_nodes(nodes, self.num_slots, out=self._nodes)
        np.greater_equal(self._nodes, 0, out=self._frequencies, casting="unsafe")

    def clear(self) -> None:
        """Forget the cache, so that the next superbatch finds it empty."""
        self._nodes.fill(-1)
        self._frequencies.fill(0)
