"""How many batches to plan at a time, and how many rows to cache: both out of one budget.

The further a plan looks ahead, the fewer rows are missed. In memory it would take more and more of
what rows could have, so where the traces and plans of a whole epoch are not small beside the cache,
they go through files: then a plan takes the same memory however far it looks (Ginex, section 3.5,
divides memory between the two by a profile instead).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from gnnstore.caching.policies.settings import PlannedSettings
from gnnstore.errors import BudgetError
from gnnstore.sizing.superbatch_costs import KEPT_SHARE, SuperbatchCosts
from gnnstore.units import format_at_least, format_size

# With more, a plan reaches further than a cache does; and it is made before the first batch.
MAX_BATCHES = 1024
# Sizes that are tried where there is something to weigh: the largest that leaves half of the rest
# to rows, and smaller ones.
_TRIED = 4
_ROWS_SHARE = 2
# Of all that planning will take, for counts before it begins.
_COUNTS_SHARE = 4


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
    table_bytes : int
        Part of it for the table of a planner whose traces and plans are on disk; 0 where they
        are in memory.
    bulk_bytes : int
        Part of it for sampling batches together, where in-neighbours are on disk.
    overlaps : bool
        Whether disk has room for two superbatches, so that one can be made beside another.
    lends : bool
        Whether planning and packing have memory that sampling has at other times: nothing is
        planned while a superbatch is sampled.
    """

    num_batches: int
    num_slots: int
    in_memory: bool
    num_bytes: int
    planning_bytes: int = 0
    packing_bytes: int = 0
    table_bytes: int = 0
    bulk_bytes: int = 0
    overlaps: bool = True
    lends: bool = False

    @property
    def plans_in_memory(self) -> bool:
        """Whether traces and plans are in memory; else in files of the run."""
        return self.table_bytes == 0

    def fills(self, num_nodes: int) -> bool:
        """Whether there is room to count how often nodes are needed, before the first plan.

        A byte a node, where later rows are.
        """
        return num_nodes <= self.num_bytes // _COUNTS_SHARE

    def degrees_bytes(self, num_nodes: int) -> int:
        """Return the memory for the nodes' degrees where later rows are, beside those counts."""
        return max(0, self.num_bytes // _COUNTS_SHARE - num_nodes)

    def with_sampling(self, bulk_bytes: int, besides_bytes: int, *, lends: bool) -> Self:
        """Return the size with memory for sampling batches together, part of that besides."""
        num_bytes = self.num_bytes + besides_bytes
        return replace(self, num_bytes=num_bytes, bulk_bytes=bulk_bytes, lends=lends)

    def describe(self, policy: str) -> str:
        """Return a phrase for the loader's reason."""
        where = "in memory" if self.in_memory else "on disk"
        plans = (
            "" if self.plans_in_memory else ", plans too" if not self.in_memory else ", plans not"
        )
        return (
            f"{self.num_slots} rows cached as {policy!r} says, {self.num_batches} batches planned "
            f"at a time and kept {where}{plans}, {format_size(self.num_bytes)} in all"
        )


def size_of(
    costs: SuperbatchCosts,
    settings: PlannedSettings,
    left_bytes: int,
    num_batches: int,
    *,
    disk_bytes: int = 0,
    memory_for: Callable[[int], int] = int,
) -> SuperbatchSize:
    """Return what a superbatch of so many batches leaves for a cache.

    Parameters
    ----------
    left_bytes : int
        Memory for all of it.
    disk_bytes : int
        For traces, plans and subgraphs that are kept there.
    memory_for : callable
        Returns by how much `memory=` must grow for so many bytes more; said where they lack.

    Raises
    ------
    BudgetError
        If traces and plans do not fit, or a cache of a given size does not beside them.
    """
    planning, spills = costs.planning_bytes(num_batches), False
    if costs.may_spill and planning - costs.planning_bytes(0) > left_bytes // KEPT_SHARE:
        spilled = costs.spilled_planning_bytes(num_batches, left_bytes, settings.cache_bytes)
        spills = spilled < planning and costs.spilled_disk_bytes(num_batches) <= disk_bytes
        planning = spilled if spills else planning
    keeping = costs.keeping_bytes(num_batches)
    in_memory = keeping <= left_bytes // KEPT_SHARE
    beside = planning + (keeping if in_memory else 0)
    room = left_bytes - beside
    if settings.cache_bytes is None:
        num_slots, missing = costs.slots_in(room, spills=spills), -room
    else:
        num_slots = costs.slots_in(settings.cache_bytes, spills=spills)
        missing = costs.slots_bytes(num_slots, spills=spills) - room
    if missing > 0:
        what = "" if settings.cache_bytes is None else f"cache_bytes={settings.cache_bytes} and "
        raise BudgetError(
            f"strategy {costs.strategy!r}: {what}the plans of {num_batches} batches at a time "
            f"take {left_bytes + missing} bytes, but memory= leaves {max(0, left_bytes)} beside "
            f"the batches in flight: {memory_for(missing)} bytes too few; raise memory= by "
            f"at least {format_at_least(memory_for(missing))}, or lower superbatch="
            + ("" if settings.cache_bytes is None else " or cache_bytes=")
        )
    num_bytes = beside + costs.slots_bytes(num_slots, spills=spills)
    packing = costs.packing_bytes(num_batches, spills=spills) if costs.packed_rows else 0
    table = costs.table_bytes(left_bytes) if spills else 0
    return SuperbatchSize(num_batches, num_slots, in_memory, num_bytes, planning, packing, table)


def choose_size(
    costs: SuperbatchCosts,
    settings: PlannedSettings,
    left_bytes: int,
    num_batches: int,
    *,
    disk_bytes: int = 0,
    memory_for: Callable[[int], int] = int,
    cost: Callable[[SuperbatchSize], float] | None = None,
) -> SuperbatchSize:
    """Choose how many batches to plan at a time.

    Parameters
    ----------
    num_batches : int
        Batches of an epoch: to look further is of no use, since the next is not drawn yet.
    disk_bytes : int
        For what is kept on disk.
    memory_for : callable
        See `size_of`.
    cost : callable, optional
        Returns what batches sampled beforehand would cost with some size; infinity if it will
        not do. By default the more batches the better, as long as half of the memory is left to
        rows.

    Raises
    ------
    BudgetError
        If not even two batches can be planned at a time, or a size that was given does not fit.
    """

    def sized(count: int) -> SuperbatchSize:
        return size_of(
            costs, settings, left_bytes, count, disk_bytes=disk_bytes, memory_for=memory_for
        )

    most = max(1, min(num_batches, MAX_BATCHES))
    if settings.num_batches is not None:
        return sized(min(settings.num_batches, most))
    least = min(2, most)
    largest = _most_batches(costs, settings, left_bytes, range(least, most + 1), sized)
    if cost is None:
        return sized(largest)
    tried: list[tuple[float, SuperbatchSize]] = []
    while len(tried) < _TRIED:
        will_do = False
        try:
            size = sized(largest)
        except BudgetError:
            if largest == least:
                raise
        else:
            will_do = (found := cost(size)) < math.inf
            if will_do or largest == least:
                tried.append((found, size))
        if largest == least:
            break
        # Towards those that will do in small steps: the largest of them counts.
        largest = max(least, largest // 2 if will_do else largest * 7 // 8)
    # Of equal ones the smallest: it is planned soonest.
    return min(reversed(tried), key=lambda one: one[0])[1]


def takes_from_rows(
    size: SuperbatchSize, costs: SuperbatchCosts, settings: PlannedSettings, left_bytes: int
) -> bool:
    """Whether plans take so much memory that fewer batches at a time might miss less."""
    planning = size.planning_bytes - costs.planning_bytes(0)
    is_much = size.plans_in_memory and planning > left_bytes // KEPT_SHARE
    return is_much and size.num_slots > 0 and settings.cache_bytes is None


def _most_batches(
    costs: SuperbatchCosts,
    settings: PlannedSettings,
    left_bytes: int,
    counts: range,
    sized: Callable[[int], SuperbatchSize],
) -> int:
    """Return the most batches whose plans leave half of the rest to rows, or the fewest."""
    # Some of it is taken by any plan, which says nothing of how many batches are worth it.
    fixed = costs.planning_bytes(0)
    for_plans = fixed + max(0, left_bytes - fixed) // _ROWS_SHARE
    if settings.cache_bytes is not None:
        for_plans = left_bytes - costs.slots_bytes(costs.slots_in(settings.cache_bytes))

    def takes_too_much(count: int) -> bool:
        try:
            return sized(count).planning_bytes > for_plans
        except BudgetError:
            return True

    # False for the first of them, and from some count on true: files, where there is disk for
    # them, are cheaper from where they are taken.
    return counts[max(0, bisect_left(counts, True, key=takes_too_much) - 1)]
