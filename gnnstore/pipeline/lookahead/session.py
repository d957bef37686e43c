"""A session of a planned cache: turns are taken as they were planned, from warming it up on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts
from gnnstore.caching.policies.base import CachePolicy, Planner
from gnnstore.caching.policies.fixed import FixedPlanner
from gnnstore.caching.scores import most_needed

if TYPE_CHECKING:
    from gnnstore.caching.trace import Trace
    from gnnstore.features.tiers.planned import Lease, PlannedCache
    from gnnstore.pipeline.superbatch_size import SuperbatchSize


class FixedNodes:
    """The nodes whose rows a cache holds always, chosen when they are first asked for.

    Parameters
    ----------
    choose : callable
        Returns so many node ids, or fewer, ascending: int64.
    """

    def __init__(self, choose: Callable[[int], npt.NDArray[np.int64]], num_nodes: int) -> None:
        self._choose = choose
        self._chosen: dict[int, npt.NDArray[np.int64]] = {}
        self.num_nodes = num_nodes

    def of(self, num_slots: int) -> npt.NDArray[np.int64]:
        """Return the nodes for a cache of so many slots."""
        if num_slots not in self._chosen:
            self._chosen = {num_slots: self._choose(num_slots)}
        return self._chosen[num_slots]

    def planner(self, num_slots: int) -> FixedPlanner:
        """Return a planner of a cache that is empty, and is to hold them."""
        return FixedPlanner(slot_layout(self.of(num_slots), num_slots), self.num_nodes)


@dataclass(eq=False)
class CacheSession:
    """A lease of a cache, and the planner that knows what the cache holds.

    Plans are made in the order in which they are followed, so the next batch's number under the
    lease is that of batches planned so far.
    """

    lease: Lease
    planner: Planner
    fixed: FixedNodes | None = None
    num_planned: int = 0

    @classmethod
    def begin(cls, cache: PlannedCache, policy: CachePolicy, fixed: FixedNodes | None) -> Self:
        """Take the cache over, with the rows that are in it."""
        lease, num_slots = cache.begin(), cache.num_planned_slots
        planner = policy.planner(num_slots) if fixed is None else fixed.planner(num_slots)
        planner.restart(cache.planned_nodes)
        return cls(lease, planner, fixed)

    def warm_up(
        self,
        trace: Trace,
        num_nodes: int,
        degrees: Callable[[], npt.NDArray[np.uint32] | None] = lambda: None,
    ) -> ReadCounts:
        """Warm up a cache that is empty, with the rows that it always holds, or most batches need.

        The batches would read them too, but one by one and as they come; in order, most of a
        million rows out of 17 million come with one pass over the table. Where there is room for
        more rows than these batches need, the next epoch's other ones are most likely among those
        of high degree: on W with room for 1.4 times as many, that epoch reads 0.36 of the rows.

        Pinned rows that are not there yet are read in the same pass.

        Parameters
        ----------
        trace : Trace
            Of the first batches, without the rows that are pinned.
        num_nodes : int
            Of the graph; counting takes a byte for each.
        degrees : callable, optional
            See `most_needed`.

        Raises
        ------
        StorageError
            If a row cannot be read.
        """
        cache = self.lease.cache
        lacks_pinned = cache.pinned is not None and not cache.holds_pinned
        is_empty = trace.num_accesses > 0 and not (self.planner.nodes >= 0).any()
        if self.num_planned or not (is_empty or lacks_pinned):
            return ReadCounts()
        num_slots = self.planner.num_slots

        def other_degrees() -> npt.NDArray[np.uint32] | None:
            found = degrees()
            if found is not None and cache.pinned is not None:
                found[cache.pinned.nodes] = 0
            return found

        if self.fixed is None:
            nodes = most_needed(trace, num_nodes, num_slots, other_degrees)
        else:
            nodes = self.fixed.of(num_slots)
        filled = self.lease.warm_up(self.num_planned, nodes)
        if filled is None:
            return ReadCounts()
        self.num_planned += 1
        self.planner.restart(slot_layout(nodes, num_slots))
        return filled

    @property
    def is_followed(self) -> bool:
        """Whether all batches that were planned have been assembled."""
        return self.lease.num_gathered >= self.num_planned


def warms_up(policy: CachePolicy, size: SuperbatchSize, num_nodes: int, *, packs: bool) -> bool:
    """Whether a cache that decides by itself is warmed up before the first batch.

    One that does not know what is needed begins empty; and rows that are packed come with the pass
    that packs the others, so that filling would be one more.
    """
    return policy.looks_ahead and not packs and size.has_room_for_counts(num_nodes)


def slot_layout(nodes: npt.NDArray[np.int64], num_slots: int) -> npt.NDArray[np.int64]:
    """Return the row in each slot, where these nodes have the first ones."""
    slots = np.full(num_slots, -1, np.int64)
    slots[: len(nodes)] = nodes
    return slots
