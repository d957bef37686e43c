"""How many batches to plan at a time, and how many rows to cache: both out of one budget.

The further a plan looks ahead, the fewer rows are missed, and the more memory goes to traces and
plans instead of cached rows. What a superbatch takes is known to the byte from the size of a
batch; what it spares is found by planning some batches that were sampled beforehand (Ginex,
section 3.5, sizes its caches by a profile too).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

import numpy as np

from gnnstore.errors import BudgetError, UsageError
from gnnstore.planning.planners import slot_bytes, transient_bytes
from gnnstore.units import format_at_least, format_size, parse_size

PlannedPolicy = Literal["belady", "lru", "sieve", "packed"]
PLANNED: tuple[PlannedPolicy, ...] = get_args(PlannedPolicy)

# The slot of each row, in the plan that is followed and in the one that is made.
_ACCESS_BYTES = 2 * np.dtype(np.int32).itemsize
# A row that enters the cache: its position and slot, in two plans.
_CHANGE_BYTES = 2 * 2 * np.dtype(np.int32).itemsize
# For each slot, which row is in it, beside what the planner knows.
_NODE_BYTES = 8
# Of what is left, for subgraphs in memory: beyond, they are cheap to write to disk and read back
# (2.8 MB for a batch of 136,000 nodes, read in one piece) and rows are not.
_KEPT_SHARE = 16
# What packing takes: windows of the table and buffers that are being written, a buffer for each
# batch, and for each missed row its place, in two superbatches, and its id.
_PACKING_BYTES = 24 << 20
_PACKING_BATCH_BYTES = 128 << 10
_PACKED_ROW_BYTES = 2 * 4 + 8
# A batch's run of rows begins on a page.
_PAGE_BYTES = 4096
# With more, a plan reaches further than a cache does; and it is made before the first batch.
MAX_BATCHES = 1024
# Sizes that are tried: the largest that leaves half of the rest to rows, and smaller ones.
_TRIED = 4
_ROWS_SHARE = 2


@dataclass(frozen=True)
class PlannedSettings:
    """What the user asked for.

    Attributes
    ----------
    policy : "belady", "lru", "sieve" or "packed"
        By what rows stay in the cache. "packed" is as "belady", and what is missed is packed.
    cache_bytes : int or None
        Memory for the cached rows; None: what the budget leaves.
    num_batches : int or None
        Batches of a superbatch; None: found by a profile.
    tmpdir : str or None
        Where subgraphs are written to that do not fit in memory, and packed rows; None: beside
        the store.
    disk_bytes : int or None
        For packed rows; None: half of what is free there.
    """

    policy: PlannedPolicy
    cache_bytes: int | None = None
    num_batches: int | None = None
    tmpdir: str | None = None
    disk_bytes: int | None = None

    @classmethod
    def read(
        cls,
        strategy: str,
        cache_bytes: int | str | None,
        superbatch: int | str | None,
        tmpdir: object = None,
        disk: int | str | None = None,
    ) -> Self | None:
        """Read the loader's options; None where the strategy plans nothing.

        Raises
        ------
        UsageError
            If an option makes no sense, or the strategy has no use for it.
        """
        if disk is not None and strategy != "packed":
            raise UsageError(
                f"strategy={strategy!r} has no use for disk={disk!r}: it packs nothing; choose "
                "strategy='packed', or leave the option out"
            )
        if strategy not in PLANNED:
            if superbatch is not None or tmpdir is not None:
                name = "superbatch" if superbatch is not None else "tmpdir"
                value = superbatch if superbatch is not None else tmpdir
                raise UsageError(
                    f"strategy={strategy!r} has no use for {name}={value!r}: it plans no "
                    "superbatches; choose strategy='belady', or leave the option out"
                )
            return None
        if superbatch == "auto":
            superbatch = None
        if superbatch is not None and (
            not isinstance(superbatch, int) or isinstance(superbatch, bool) or superbatch < 1
        ):
            raise UsageError(
                f"superbatch={superbatch!r}: expected a number of batches, at least 1, or 'auto'"
            )
        num_bytes = None if cache_bytes is None else parse_size(cache_bytes, name="cache_bytes")
        return cls(
            strategy,
            num_bytes,
            superbatch,
            None if tmpdir is None else str(tmpdir),
            None if disk is None else parse_size(disk, name="disk"),
        )


@dataclass(frozen=True)
class SuperbatchCosts:
    """What superbatches of one loader take.

    Attributes
    ----------
    num_rows : int
        Rows of the tables: more slots are of no use.
    row_bytes : int
        Bytes of a row, of all tables that are cached.
    batch_nodes : int
        Nodes of the largest batch.
    id_bytes : int
        Of a node id in a trace.
    kept_bytes : int
        Of a batch's subgraph, from when it is sampled until it is joined with its rows.
    changes_share : float
        Rows of a batch that enter the cache, among all of it.
    packed_rows : int
        Rows of a batch that are packed; 0 where none are.
    policy : "belady", "lru", "sieve" or "packed"
        Whose planner it is.
    """

    num_rows: int
    row_bytes: int
    batch_nodes: int
    id_bytes: int
    kept_bytes: int
    changes_share: float = 1.0
    packed_rows: int = 0
    policy: PlannedPolicy = "belady"

    def planning_bytes(self, num_batches: int) -> int:
        """Return what traces and plans of two superbatches take: one made, one followed."""
        access_bytes = self.id_bytes + _ACCESS_BYTES
        access_bytes += int(np.ceil(_CHANGE_BYTES * self.changes_share))
        num_accesses = num_batches * self.batch_nodes
        planning = num_accesses * access_bytes
        planning += transient_bytes(self.policy, num_accesses, self.num_rows)
        if not self.packed_rows:
            return planning
        per_batch = _PACKING_BATCH_BYTES + _PACKED_ROW_BYTES * self.packed_rows
        return planning + _PACKING_BYTES + num_batches * per_batch

    def packing_bytes(self, num_batches: int) -> int:
        """Return the part of `planning_bytes` that packing one superbatch takes."""
        per_batch = _PACKING_BATCH_BYTES + (_PACKED_ROW_BYTES - 4) * self.packed_rows
        return _PACKING_BYTES + num_batches * per_batch

    def disk_bytes(self, num_batches: int) -> int:
        """Return what the packed rows of two superbatches take on disk."""
        run = -(-self.packed_rows * self.row_bytes // _PAGE_BYTES) * _PAGE_BYTES
        return 2 * num_batches * run

    def keeping_bytes(self, num_batches: int) -> int:
        """Return what the subgraphs of two superbatches take."""
        return 2 * num_batches * self.kept_bytes

    def slots_in(self, num_bytes: int) -> int:
        """Return how many rows can be cached; none where no table is read."""
        if self.row_bytes == 0:
            return 0
        return max(0, min(self.num_rows, num_bytes // self._slot_bytes))

    def slots_bytes(self, num_slots: int) -> int:
        """Return what cached rows take, and what is known of them."""
        return num_slots * self._slot_bytes

    @property
    def _slot_bytes(self) -> int:
        return self.row_bytes + _NODE_BYTES + slot_bytes(self.policy)


@dataclass(frozen=True)
class SuperbatchSize:
    """The decision.

    Attributes
    ----------
    num_batches : int
        S.
    num_slots : int
        C, the rows that are cached.
    in_memory : bool
        Whether sampled subgraphs stay in memory until they are used; else on disk.
    num_bytes : int
        Memory for all of it: rows, traces, plans, subgraphs.
    planning_bytes, packing_bytes : int
        Part of it for traces and plans, and of that for packing a superbatch.
    bulk_bytes : int
        Part of it for sampling batches together, where in-neighbours are on disk.
    threads_bytes : int
        Part of it for what threads have at hand while they sample, and read what is packed.
    """

    num_batches: int
    num_slots: int
    in_memory: bool
    num_bytes: int
    planning_bytes: int = 0
    packing_bytes: int = 0
    bulk_bytes: int = 0
    threads_bytes: int = 0

    def fills(self, num_nodes: int) -> bool:
        """Whether there is room to count how often nodes are needed, before the first plan.

        A byte a node, where later the plan is that is followed.
        """
        return num_nodes <= self.planning_bytes // 2

    def with_sampling(self, bulk_bytes: int, threads_bytes: int) -> Self:
        """Return the size with memory for what samples, together or in threads."""
        return replace(
            self,
            num_bytes=self.num_bytes + bulk_bytes + threads_bytes,
            bulk_bytes=bulk_bytes,
            threads_bytes=threads_bytes,
        )

    def describe(self, policy: str) -> str:
        """Return a phrase for the loader's reason."""
        where = "in memory" if self.in_memory else "on disk"
        return (
            f"{self.num_slots} rows cached as {policy!r} says, {self.num_batches} batches planned "
            f"at a time and kept {where}, {format_size(self.num_bytes)} in all"
        )


def size_of(
    costs: SuperbatchCosts, settings: PlannedSettings, left_bytes: int, num_batches: int
) -> SuperbatchSize:
    """Return what a superbatch of so many batches leaves for a cache.

    Parameters
    ----------
    left_bytes : int
        Memory for all of it.

    Raises
    ------
    BudgetError
        If traces and plans do not fit, or a cache of a given size does not beside them.
    """
    planning = costs.planning_bytes(num_batches)
    keeping = costs.keeping_bytes(num_batches)
    in_memory = keeping <= left_bytes // _KEPT_SHARE
    beside = planning + (keeping if in_memory else 0)
    room = left_bytes - beside
    if settings.cache_bytes is None:
        num_slots, missing = costs.slots_in(room), -room
    else:
        num_slots = costs.slots_in(settings.cache_bytes)
        missing = costs.slots_bytes(num_slots) - room
    if missing > 0:
        what = "" if settings.cache_bytes is None else f"cache_bytes={settings.cache_bytes} and "
        raise BudgetError(
            f"strategy {settings.policy!r}: {what}the plans of {num_batches} batches at a time "
            f"take {left_bytes + missing} bytes, but memory= leaves {left_bytes} beside the "
            f"batches in flight: {missing} bytes too few; raise memory= by at least "
            f"{format_at_least(missing)}, or lower superbatch="
            + ("" if settings.cache_bytes is None else " or cache_bytes=")
        )
    num_bytes = beside + costs.slots_bytes(num_slots)
    packing = costs.packing_bytes(num_batches) if costs.packed_rows else 0
    return SuperbatchSize(num_batches, num_slots, in_memory, num_bytes, planning, packing)


def choose_size(
    costs: SuperbatchCosts,
    settings: PlannedSettings,
    left_bytes: int,
    num_batches: int,
    cost: Callable[[SuperbatchSize], float],
) -> SuperbatchSize:
    """Choose how many batches to plan at a time.

    Parameters
    ----------
    num_batches : int
        Batches of an epoch: to look further is of no use, since the next is not drawn yet.
    cost : callable
        Returns what batches sampled beforehand would cost with some size; infinity if it will
        not do.

    Raises
    ------
    BudgetError
        If not even two batches can be planned at a time, or a size that was given does not fit.
    """
    most = max(1, min(num_batches, MAX_BATCHES))
    if settings.num_batches is not None:
        return size_of(costs, settings, left_bytes, min(settings.num_batches, most))
    least = min(2, most)
    # Some of it is taken by any plan, which says nothing of how many batches are worth it.
    fixed = costs.planning_bytes(0)
    for_plans = fixed + max(0, left_bytes - fixed) // _ROWS_SHARE
    if settings.cache_bytes is not None:
        for_plans = left_bytes - costs.slots_bytes(costs.slots_in(settings.cache_bytes))
    counts = range(least, most + 1)
    fitting = bisect_right(counts, for_plans, key=costs.planning_bytes)
    largest = counts[max(0, fitting - 1)]
    tried: list[SuperbatchSize] = []
    while len(tried) < _TRIED and largest >= least:
        try:
            tried.append(size_of(costs, settings, left_bytes, largest))
        except BudgetError:
            if largest == least:
                raise
        if largest == least:
            break
        largest = max(least, largest // 2)
    if len(tried) == 1 or all(size.num_slots == 0 for size in tried):
        return tried[-1]
    # Of equal ones the smallest: it is planned soonest.
    return min(reversed(tried), key=cost)


def with_measured_changes(costs: SuperbatchCosts, changes: int, accesses: int) -> SuperbatchCosts:
    """Return the costs where so many of the rows of some batches entered the cache."""
    # A quarter more: a cache that is still being filled takes in more than later.
    share = min(1.0, 1.25 * changes / accesses) if accesses else 1.0
    return replace(costs, changes_share=share)
