"""The best cache of batches that are known in advance (Ginex), and others to compare it with.

Sampling runs ahead of training, so the rows that the next hundreds of batches need are known,
and so is the best possible cache: after each batch it keeps the cached or new rows that are needed
again soonest (Belady; Ginex, section 3.3). The plan of a superbatch gives the slot of each row of
each batch, and which rows of a batch are written to which slots once it has been assembled, so that
no row is looked up by its number at run time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import PLANNED, SLOTS, Reservation
from gnnstore.caching.plan import CachePlan, PlanFiles, PlanLocation, Trace
from gnnstore.caching.policies import (
    MAX_PLANNED,
    PLANNING,
    CachePolicy,
    PlanningBytes,
    check_num_slots,
)
from gnnstore.caching.scores import SCORES, Score, select_nodes
from gnnstore.disk.spool import guarded
from gnnstore.errors import UsageError
from gnnstore.units import Registry

if TYPE_CHECKING:
    from gnnstore.caching.reuse import InitialCache, ReuseCurve


# Bytes of the planner's state for each slot: the row, and how often it was needed. The state after
# a plan takes as much again.
_STATE_BYTES = 8 + 4
# The most memory that the kernel takes while it plans. For each access, its part of the tables of
# threads; for each row of one batch, 16 bytes for slots (twice) and for entering rows, of which 2
# are in the memory of accesses.
_ACCESS_BYTES, _PLANNED_ROW_BYTES = 1, 14
# To count next uses by batch: 2 bytes an access, or less, 8 bytes for each two batches, again for
# each window of this many accesses.
_COUNTED_ACCESS_BYTES, _COUNT_BYTES, _WINDOW = 2, 8, 50_000
# Bytes for each slot: where its row is used next; the place and slot of a row that waits for its
# next batch, and its link to others of that batch; and entering rows that the memory of accesses
# has no room for.
_SLOT_BYTES = 18
# Bytes of tables of groups and of batches, partly filled lists, and the end of a huge page: for up
# to ten thousand batches; beyond, 100 bytes a batch come on top.
_TABLES_BYTES = 3 * 2**20

# Bytes for plans in files: for each slot, where its row is used first; and for a row that waits for
# its next batch, its place, slot and link to others of that batch.
_FIRST_USE_BYTES, _WAITING_BYTES = 4, 10
# Bytes for a row of the largest batch: its id, next use and slot, and which rows enter where.
_BATCH_ROW_BYTES = 8 + 4 + 4 + 2 * 4
# Bytes for each batch: counts, and room for rows that wait in partly filled lists.
_BATCH_BYTES = 200
# Bytes of counts by frequency, of all batches and of one; of partly filled lists; and of the end of
# a huge page.
_FILE_TABLES_BYTES = 4 * 2**20
_NODE_BYTES = 4  # bytes of a node in the table of next uses


class Belady(CachePolicy):
    """Keeps the rows that are needed again soonest."""

    name, title = "belady", "Belady"
    looks_ahead = spills = True
    # Planning takes the same memory for all sets of needed rows, in graphs of any size and with ids
    # of any range. All memory but the state's is freed when the plan is made.
    planning: ClassVar[PlanningBytes] = PlanningBytes(
        _TABLES_BYTES, _ACCESS_BYTES, _STATE_BYTES, _SLOT_BYTES, _PLANNED_ROW_BYTES
    )

    def planner(self, num_slots: int) -> BeladyPlanner:
        """Return a planner for a cache that is empty."""
        return BeladyPlanner(num_slots)

    def misses(
        self, reuse: ReuseCurve, num_slots: int, num_batches: int, *, initial: InitialCache
    ) -> float:
        """Return the rows that some batches miss, planned together."""
        return reuse.belady_misses(num_slots, num_batches, initial=initial)

    def max_kept_distance(self, reuse: ReuseCurve, num_slots: int, num_batches: int) -> int:
        """Return the most batches for which rows are kept until they are needed again."""
        return reuse.max_kept_distance(num_slots, num_batches)

    def reserve(self, batch_rows: int) -> list[Reservation]:
        """Return the memory for making a plan, without the trace, the plan and the cached rows."""
        by_windows = _COUNT_BYTES * MAX_PLANNED * (1 + batch_rows / _WINDOW)
        counts = math.ceil(min(_COUNTED_ACCESS_BYTES * batch_rows, by_windows))
        planning = super().reserve(batch_rows)
        return [*planning, Reservation("counts of next uses", 0, {PLANNED: counts}, PLANNING)]

    def reserve_spilled(
        self, *, num_nodes: int, largest_batch: int, table_bytes: int
    ) -> list[Reservation]:
        """Return the memory for making a plan in files, without the cached rows."""
        fixed = _BATCH_ROW_BYTES * largest_batch + _FILE_TABLES_BYTES
        per = {PLANNED: _BATCH_BYTES, SLOTS: _FIRST_USE_BYTES}
        table = min(table_bytes, _NODE_BYTES * num_nodes)
        waiting = {SLOTS: _WAITING_BYTES}
        finding, choosing = f"{PLANNING}: next uses", f"{PLANNING}: choices"
        return [
            Reservation("what a cache holds", 0, {SLOTS: _STATE_BYTES}),
            *(Reservation("planning", fixed, per, phase) for phase in (finding, choosing)),
            Reservation("next uses", table, {}, finding),
            Reservation("rows that wait", 0, waiting, choosing),
        ]


def planning_threads() -> int:
    """Return the number of threads that look for next uses.

    A superbatch is planned once it is sampled, so the processors that sampled it are free.
    """
    return min(4, len(os.sched_getaffinity(0)))


class BeladyPlanner:
    """Plans superbatch after superbatch for one cache, which stays filled between them.

    The cache is empty at first. The batches after a superbatch are not known, so its plan ends with
    the rows in the cache that most batches have needed so far.
    """

    def __init__(self, num_slots: int) -> None:
        check_num_slots(num_slots)
        self._nodes = np.full(num_slots, -1, np.int64)
        self._frequencies = np.zeros(num_slots, np.int32)

    @property
    def num_slots(self) -> int:
        """Number of slots, C."""
        return len(self._nodes)

    @property
    def nodes(self) -> npt.NDArray[np.int64]:
        """The row in each slot after the last plan, int64 [C]; -1: none that matters. A copy."""
        return self._nodes.copy()

    def plan(self, trace: Trace, location: PlanLocation | None = None) -> CachePlan:
        """Plan the next superbatch: in memory, or in files if the trace is in one."""
        if location is not None:
            return self._plan_in_files(trace, location)
        try:
            planned = _core.plan_belady(
                trace.ids, trace.offsets, self._nodes, self._frequencies, planning_threads()
            )
        except (ValueError, IndexError) as error:
            raise UsageError(f"cannot plan a superbatch: {error}") from error
        return CachePlan(trace.offsets, *planned)

    def _plan_in_files(self, trace: Trace, location: PlanLocation) -> CachePlan:
        ids, num_batches, sizes = trace.file, trace.num_batches, np.diff(trace.offsets)
        assert ids is not None  # noqa: S101 - a plan goes to files if its trace is in one
        files = PlanFiles.make(location.path, num_batches)
        try:
            misses, slot_crcs, changes, change_crcs = guarded(
                lambda: _core.plan_belady_spilled(
                    ids.file,
                    ids.begins[:num_batches].reshape(-1),
                    ids.crcs[:num_batches].reshape(-1),
                    trace.offsets,
                    are_wide=trace.ids.dtype == np.int64,
                    num_nodes=trace.num_nodes,
                    nodes=self._nodes,
                    frequencies=self._frequencies,
                    table_bytes=location.table_bytes,
                    slots=files.slots.file,
                    changes=files.changes.file,
                    num_threads=planning_threads(),
                ),
                "plan a superbatch",
                location.path,
            )
        except BaseException:
            files.close()
            raise
        slot_bytes = np.dtype(np.int32).itemsize
        files.slots.note(slot_bytes * trace.offsets[:-1], sizes, slot_crcs)
        files.changes.note(2 * slot_bytes * changes[:-1], 2 * np.diff(changes), change_crcs)
        return CachePlan.in_files(trace.offsets, misses, files)

    def restart(self, nodes: npt.NDArray[Any]) -> None:
        """Go on from a cache that holds these rows, each needed once so far; see `Planner`."""
        # Takes 10 bytes a slot at most.
        _core.distinct_rows(np.ascontiguousarray(nodes, np.int64), self._nodes)
        np.greater_equal(self._nodes, 0, out=self._frequencies, casting="unsafe")


BELADY = Belady()
# The registered cache policies.
POLICIES: Registry[CachePolicy] = Registry((BELADY,))

# Positions of a trace that are searched at a time for rows to evict.
_SEARCHED_PLACES = 2**16


def policies() -> tuple[str, ...]:
    """Return the names of the caches that can be compared."""
    return (*SCORES, "lru", *POLICIES.names)


@dataclass(frozen=True, eq=False)
class PolicyRun:
    """Hits and misses of one cache while S batches of n rows in all were assembled.

    All caches work as a loader does, batch by batch: the hits of a batch are the rows that were
    cached before it. "degree" and "frequency" are filled once, with the rows of the highest scores;
    "lru" keeps the rows that were used last, a batch's one by one; "belady" sees the whole trace.
    """

    policy: str
    # bool [n]: whether each row of the trace was in the cache before its batch.
    is_hit: npt.NDArray[np.bool_]
    misses: npt.NDArray[np.int64]  # int64 [S]: distinct rows of each batch that were not cached
    # int64 [rows]: nodes whose rows are read before the first batch, ascending; empty where the
    # cache starts empty.
    filled: npt.NDArray[np.int64]

    @property
    def num_misses(self) -> int:
        """Rows that were read from disk for batches, counted once for each batch."""
        return int(self.misses.sum())

    def missed_rows(self, trace: Trace, i: int) -> npt.NDArray[Any]:
        """Return the distinct rows that are read from disk for batch i, ascending."""
        is_hit = self.is_hit[trace.offsets[i] : trace.offsets[i + 1]]
        return np.unique(trace.batch(i)[~is_hit])


def run_policy(
    policy: str, trace: Trace, num_slots: int, scores: Mapping[Score, npt.NDArray[Any]]
) -> PolicyRun:
    """Run a cache of some policy over a trace."""
    if policy in POLICIES:
        plan = POLICIES[policy].planner(num_slots).plan(trace)
        return PolicyRun(policy, plan.slots >= 0, plan.misses, np.empty(0, np.int64))
    if policy == "lru":
        nodes, is_hit = np.empty(0, np.int64), _lru_hits(trace, num_slots)
    else:
        values = scores[cast(Score, policy)]
        nodes = select_nodes(values, num_slots)
        is_hit = _core.find_slots(*_core.index_nodes(nodes, len(values)), trace.ids) >= 0
    run_of = PolicyRun(policy, is_hit, np.zeros(trace.num_batches, np.int64), nodes)
    run_of.misses[:] = [len(run_of.missed_rows(trace, i)) for i in range(trace.num_batches)]
    return run_of


def _lru_hits(trace: Trace, num_slots: int) -> npt.NDArray[np.bool_]:
    """Return whether each row is among the last used before its batch."""
    last = np.full(int(trace.ids.max(initial=-1)) + 1, -1, np.int32)  # the last use of each row
    is_last = np.zeros(len(trace.ids), np.bool_)
    is_hit = np.empty(len(trace.ids), np.bool_)
    oldest = 0  # rows with a last use here or later are cached
    for i in range(trace.num_batches):
        begin, end = trace.offsets[i : i + 2]
        ids = trace.batch(i)
        before = last[ids]
        is_hit[begin:end] = before >= oldest
        is_last[before[before >= 0]] = False
        last[ids] = np.arange(begin, end)  # a repeated row keeps its last position
        is_last[last[ids]] = True
        leaving = np.count_nonzero(is_last[oldest:end]) - num_slots
        while leaving > 0:
            places = np.flatnonzero(is_last[oldest : oldest + _SEARCHED_PLACES])[:leaving]
            leaving -= len(places)
            oldest += _SEARCHED_PLACES if leaving else int(places[-1]) + 1
    return is_hit


def distinct_rows(trace: Trace) -> int:
    """Return the rows that batches need, counted once for each batch: misses without a cache."""
    return sum(len(np.unique(trace.batch(i))) for i in range(trace.num_batches))
