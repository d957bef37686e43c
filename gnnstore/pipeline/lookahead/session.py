"""A session of a planned cache: turns are taken as they were planned, from warming it up on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts
from gnnstore.caching.policies.base import CachePolicy, Planner, slot_layout

if TYPE_CHECKING:
    from gnnstore.caching.trace import Trace
    from gnnstore.features.planned import Lease, PlannedCache
    from gnnstore.pipeline.superbatch_size import SuperbatchSize


@dataclass(eq=False)
class CacheSession:
    """A lease of a cache, and the planner that knows what the cache holds.

    Plans are made in the order in which they are followed, so the next batch's number under the
    lease is that of batches planned so far.
    """

    lease: Lease
    planner: Planner
    policy: CachePolicy
    num_planned: int = 0

    @classmethod
    def begin(cls, cache: PlannedCache, policy: CachePolicy) -> Self:
        """Take the cache over, with the rows that are in it."""
        lease, planner = cache.begin(), policy.planner(cache.num_planned_slots)
        planner.restart(cache.planned_nodes)
        return cls(lease, planner, policy)

    def warm_up(
        self,
        trace: Trace,
        num_nodes: int,
        degrees: Callable[[], npt.NDArray[np.uint32] | None] = lambda: None,
    ) -> ReadCounts:
        """Warm up an empty cache with pinned rows and the rows that most batches need."""
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

        nodes = self.policy.initial_nodes(trace, num_nodes, num_slots, other_degrees)
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
    """Whether a cache that is empty is warmed up before the first batch."""
    if policy.is_fixed:
        return True
    return policy.looks_ahead and not packs and size.has_room_for_counts(num_nodes)
