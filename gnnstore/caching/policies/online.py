"""Plans of caches that do not know the future: LRU, and SIEVE, which GraphBolt uses.

They are made from the same trace as Belady's plan, and followed in the same way, so that a
comparison compares the choice of rows and nothing else. But what is decided after a batch
depends on that batch and those before it only, as if the cache had met them one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.policies.belady import (
    SuperbatchPlan,
    Trace,
    check_num_slots,
    distinct_nodes,
)
from gnnstore.caching.stepped_plan import PlannedStep, SteppedPlan
from gnnstore.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gnnstore.caching.spilled_plan import SpilledPlan
    from gnnstore.caching.trace_file import SpilledTrace

__all__ = ["SPILLED_SHARE", "LruPlanner", "SievePlanner"]

# The kernel looks at every slot before it plans, so that a trace on disk is planned so many
# batches at a time as have a quarter as many rows as there are slots.
SPILLED_SHARE = 4

# The row of each slot; slots in the order of their rows; whether a row was visited; the hand.
_State = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.uint8], int]


class _OnlinePlanner:
    """Plans superbatch after superbatch for one cache, empty at first.

    Plans must be followed in the order in which they were made. Not to be used by two threads
    at once.

    Parameters
    ----------
    num_slots : int
        C, the rows that the cache holds; may be 0, or more than there are rows.

    Raises
    ------
    UsageError
        If the number is out of range.
    """

    _policy: ClassVar[Literal["lru", "sieve"]]

    def __init__(self, num_slots: int) -> None:
        check_num_slots(num_slots)
        order = np.full(num_slots, -1, np.int32)
        nodes = np.full(num_slots, -1, np.int64)
        self._state: _State = (nodes, order, np.zeros(num_slots, np.uint8), -1)

    @property
    def num_slots(self) -> int:
        """C."""
        return len(self._state[0])

    @property
    def nodes(self) -> npt.NDArray[np.int64]:
        """The row in each slot after the last plan, int64 [C]; -1: none. A copy."""
        return self._state[0].copy()

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
        plan, self._state = self._planned(trace, self._state)
        return plan

    def plan_spilled(
        self,
        trace: SpilledTrace,
        path: Path,
        *,
        table_bytes: int = 0,  # noqa: ARG002 - that of planners that look ahead
    ) -> SpilledPlan:
        """Plan the next superbatch in files, in the same way.

        Parameters
        ----------
        trace : SpilledTrace
            Must not be closed meanwhile.
        path : Path
            Without a suffix: `path.slots` and `path.changes` are made, and removed by the plan's
            `close`, or if planning fails.
        table_bytes : int
            Not needed.

        Raises
        ------
        CorruptStoreError
            If the trace's file no longer holds what was written.
        NoSpaceError, StorageError
            If the files cannot be made, read or written.
        UsageError
            If the trace is not well-formed.
        """
        state = self._state

        def steps() -> Iterator[PlannedStep]:
            nonlocal state
            for batches in _chunks(trace, self.num_slots // SPILLED_SHARE):
                plan, state = self._planned(Trace.of(batches), state)
                for i in range(plan.num_batches):
                    changes = plan.batch_changes(i)
                    yield PlannedStep(plan.batch_slots(i), int(plan.misses[i]), *changes)

        spilled = SteppedPlan(trace, path, steps())
        self._state = state
        return spilled

    def _planned(self, trace: Trace, state: _State) -> tuple[SuperbatchPlan, _State]:
        """Return the plan, and what is known of the cache after it."""
        try:
            planned = _core.plan_online(self._policy, trace.ids, trace.offsets, *state)
        except (ValueError, IndexError) as error:
            raise UsageError(f"cannot plan a superbatch: {error}") from error
        return SuperbatchPlan(trace.offsets, *planned[:5]), planned[5:]

    def restart(self, nodes: npt.NDArray[Any]) -> None:
        """Go on from a cache that holds these rows, in any order: their past is not known.

        Parameters
        ----------
        nodes : ndarray of int64 [C]
            The row in each slot; -1: none. Of slots with the same row, the first counts.

        Raises
        ------
        UsageError
            If there is not one entry per slot.
        """
        distinct = distinct_nodes(nodes, self.num_slots)
        held = np.flatnonzero(distinct >= 0)
        order = np.full(self.num_slots, -1, np.int32)
        order[: len(held)] = held
        self._state = (distinct, order, np.zeros(self.num_slots, np.uint8), -1)

    def clear(self) -> None:
        """Forget the cache, so that the next superbatch finds it empty."""
        self.restart(np.full(self.num_slots, -1, np.int64))


def _chunks(trace: SpilledTrace, num_rows: int) -> Iterator[list[npt.NDArray[Any]]]:
    """Read the batches of a trace, as many at a time as have so many rows, or one."""
    chunk: list[npt.NDArray[Any]] = []
    sizes = np.diff(trace.offsets)
    taken = 0
    for i in range(trace.num_batches):
        if chunk and taken + sizes[i] > num_rows:
            yield chunk
            chunk, taken = [], 0
        chunk.append(trace.batch(i))
        taken += int(sizes[i])
    if chunk:
        yield chunk


class LruPlanner(_OnlinePlanner):
    """Keeps the rows that were used last. After a batch its rows are used one by one, in order."""

    _policy = "lru"


class SievePlanner(_OnlinePlanner):
    """Keeps rows by SIEVE (Zhang et al., NSDI '24).

    A batch marks its hits as visited; then its other rows enter in order. To make room, a hand
    goes from the oldest row to the newest, and around: it takes the first row that is not
    visited, and on its way makes visited rows unvisited.
    """

    _policy = "sieve"
