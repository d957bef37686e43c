"""Pools of slots: rows of node types whose widths differ much are cached in slots of their own.

A slot is as long as the widest row that it may hold. Where some types' rows are more than twice as
wide as others', each class of widths has a part of the slots, and a plan of its own; the parts are
joined into one plan of all slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import PLANNED, Reservation
from gnnstore.caching.plan import CachePlan, PlannedStep, Trace
from gnnstore.caching.policies import PLANNING, CachePolicy, Planner, slot_layout
from gnnstore.caching.reuse import InitialCache, ReuseCurve
from gnnstore.sampling.row_space import RowRange

# Most times that the widest row may be as wide as others in the same slots.
_SPREAD = 2
# Bytes for each row of a trace while plans are made: its number in its pool's trace, and its slot
# and change in its pool's plan and in the joined one.
_JOINED_BYTES = 8 + 2 * (4 + 8)


@dataclass(frozen=True)
class SlotPools:
    """The slots of two or more classes of widths, one behind the other."""

    # The rows of each pool, by node type; the widest pool first, so that the place of a slot in
    # memory is a multiple of its width behind an offset that is never negative.
    ranges: tuple[tuple[RowRange, ...], ...]
    widths: tuple[int, ...]  # bytes of a slot in each pool
    shares: tuple[int, ...]  # slots of each pool, of as many as all of these

    @classmethod
    def from_widths(
        cls, widths: Mapping[RowRange, int], needed: Mapping[RowRange, int], num_bytes: int
    ) -> Self | None:
        """Divide memory as rows are needed, a pool getting no more than all of its rows.

        None if one pool will do. `widths` are the bytes of a row of each type, `needed` how many of
        its rows some batches need.
        """
        ranges = _classes(widths)
        if len(ranges) < 2:
            return None
        slot_widths = [widths[pool[0]] for pool in ranges]
        most = [sum(rows.num_rows for rows in pool) for pool in ranges]
        needs = [max(1, sum(needed.get(rows, 0) for rows in pool)) for pool in ranges]
        shares, open_pools = [0] * len(ranges), set(range(len(ranges)))
        while open_pools:
            used = sum(width * share for width, share in zip(slot_widths, shares, strict=True))
            per_need = sum(slot_widths[k] * needs[k] for k in open_pools)
            left = max(0, num_bytes - used)
            full = {k for k in open_pools if left * needs[k] >= most[k] * per_need}
            for k in full or open_pools:
                shares[k] = min(most[k], max(1, left * needs[k] // per_need))
            open_pools = open_pools - full if full else set()
        return cls.divided(widths, shares)

    @classmethod
    def divided(cls, widths: Mapping[RowRange, int], shares: Sequence[int]) -> Self:
        """Return pools with known shares of the slots; ValueError if there are more or fewer."""
        ranges = _classes(widths)
        if len(ranges) != len(shares):
            raise ValueError(f"{len(shares)} pools of slots for {len(ranges)} classes of widths")
        slot_widths = tuple(widths[pool[0]] for pool in ranges)
        return cls(tuple(map(tuple, ranges)), slot_widths, tuple(shares))

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot, on average over the pools."""
        total = sum(width * share for width, share in zip(self.widths, self.shares, strict=True))
        return -(-total // sum(self.shares))

    def sections(self, num_slots: int) -> list[slice]:
        """Return the slots of each pool; those that cannot be divided are of the narrowest."""
        total = sum(self.shares)
        counts = [num_slots * share // total for share in self.shares[:-1]]
        ends = [*accumulate(counts, initial=0), num_slots]
        return [slice(*ends) for ends in pairwise(ends)]

    def places(self, pool: int, rows: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return the places of a pool's rows among a batch's rows."""
        parts = [each.within(rows) for each in sorted(self.ranges[pool])]
        return np.concatenate([np.arange(p.start, p.stop, dtype=np.int32) for p in parts])

    def trace(self, pool: int, trace: Trace) -> Trace:
        """Return a trace of a pool's rows alone: a copy."""
        batches = [trace.batch(i) for i in range(trace.num_batches)]
        return Trace.of([ids[self.places(pool, ids)] for ids in batches])


def _classes(widths: Mapping[RowRange, int]) -> list[list[RowRange]]:
    """Return the rows whose widths may share slots, the widest first."""
    ranges: list[list[RowRange]] = []
    for rows in sorted(widths, key=lambda rows: (-widths[rows], rows)):
        if not ranges or _SPREAD * widths[rows] < widths[ranges[-1][0]]:
            ranges.append([])
        ranges[-1].append(rows)
    return ranges


def pooled(policy: CachePolicy, pools: SlotPools | None) -> CachePolicy:
    """Return a policy for slots in pools; the policy itself if all slots are alike."""
    return policy if pools is None else PooledPolicy(policy, pools)


class PooledPolicy(CachePolicy):
    """Decides in each pool by one policy. Traces and plans lie in memory."""

    def __init__(self, policy: CachePolicy, pools: SlotPools) -> None:
        self.name, self.title = policy.name, policy.title  # type: ignore[misc]
        self.looks_ahead, self.planning = policy.looks_ahead, policy.planning  # type: ignore[misc]
        self._policy, self._pools = policy, pools

    def planner(self, num_slots: int) -> PooledPlanner:
        """Return a planner for a cache that is empty."""
        sections = self._pools.sections(num_slots)
        planners = [self._policy.planner(section.stop - section.start) for section in sections]
        return PooledPlanner(self._pools, planners, sections)

    def initial_nodes(
        self,
        trace: Trace,
        num_nodes: int,
        num_slots: int,
        degrees: object = None,  # noqa: ARG002 - of all pools' rows
    ) -> npt.NDArray[np.int64]:
        """Return the row in each slot of a cache that is warmed up; -1: none."""
        layout = []
        for pool, section in enumerate(self._pools.sections(num_slots)):
            count, part = section.stop - section.start, self._pools.trace(pool, trace)
            nodes = self._policy.initial_nodes(part, num_nodes, count)
            layout.append(slot_layout(nodes, count))
        return np.concatenate(layout)

    def misses(
        self, reuse: ReuseCurve, num_slots: int, num_batches: int, *, initial: InitialCache
    ) -> float:
        """Return the rows that some batches miss, as if any slot held any row."""
        return self._policy.misses(reuse, num_slots, num_batches, initial=initial)

    def max_kept_distance(self, reuse: ReuseCurve, num_slots: int, num_batches: int) -> int:
        """Return the longest reuse distance over which rows stay in the cache."""
        return self._policy.max_kept_distance(reuse, num_slots, num_batches)

    def reserve(self, batch_rows: int) -> list[Reservation]:
        """Return the memory for making the plans of all pools, and the joined plan."""
        joining = Reservation("plans of pools", 0, {PLANNED: _JOINED_BYTES * batch_rows}, PLANNING)
        return [*self._policy.reserve(batch_rows), joining]


class PooledPlanner:
    """Plans each pool's rows for its slots."""

    def __init__(self, pools: SlotPools, planners: list[Planner], sections: list[slice]) -> None:
        self._pools, self._planners, self._sections = pools, planners, sections

    @property
    def num_slots(self) -> int:
        """Number of slots of all pools, C."""
        return int(self._sections[-1].stop)

    @property
    def nodes(self) -> npt.NDArray[np.int64]:
        """The row in each slot after the last plan, int64 [C]; -1: none that matters. A copy."""
        return np.concatenate([planner.nodes for planner in self._planners])

    def plan(self, trace: Trace) -> CachePlan:
        """Plan the next superbatch."""
        plans = [
            planner.plan(self._pools.trace(pool, trace))
            for pool, planner in enumerate(self._planners)
        ]
        return CachePlan.collect(trace.offsets, self._steps(trace, plans))

    def restart(self, nodes: npt.NDArray[Any]) -> None:
        """Go on from a cache that holds these rows; nothing else is known."""
        for planner, section in zip(self._planners, self._sections, strict=True):
            planner.restart(nodes[section])

    def _steps(self, trace: Trace, plans: list[CachePlan]) -> Iterator[PlannedStep]:
        """Join the plans of each batch."""
        for i in range(trace.num_batches):
            ids, positions, entering = trace.batch(i), [], []
            slots = np.empty(len(ids), np.int32)
            for pool, (plan, section) in enumerate(zip(plans, self._sections, strict=True)):
                places, part = self._pools.places(pool, ids), plan.batch_slots(i)
                slots[places] = np.where(part < 0, part, part + np.int32(section.start))
                changed, into = plan.batch_changes(i)
                positions.append(places[changed])
                entering.append(into + np.int32(section.start))
            num_missed = sum(int(plan.misses[i]) for plan in plans)
            changes = np.concatenate(positions), np.concatenate(entering)
            yield PlannedStep(slots, num_missed, *changes)
