"""One use of a planned cache: turns are taken as they were planned, from filling it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from gnnstore import _core
from gnnstore.io.counts import NO_READS, ReadCounts
from gnnstore.planning.planners import Planner, make_planner
from gnnstore.planning.static_cache import MAX_COUNTED_BATCHES, select_nodes

if TYPE_CHECKING:
    from gnnstore.io.planned_cache import Lease, PlannedCache
    from gnnstore.planning.belady import Trace
    from gnnstore.planning.superbatch_size import PlannedPolicy


@dataclass(eq=False)
class Course:
    """A lease of a cache, and the planner that knows what the cache holds.

    Plans are made in the order in which they are followed, so the next batch's number under the
    lease is that of batches planned so far.
    """

    policy: PlannedPolicy
    lease: Lease
    planner: Planner
    num_planned: int = 0

    @property
    def is_followed(self) -> bool:
        """Whether all batches that were planned have been assembled, so the planner is right."""
        return self.lease.is_current and self.lease.num_gathered == self.num_planned

    @classmethod
    def begin(cls, cache: PlannedCache, policy: PlannedPolicy) -> Self:
        """Take the cache over, with the rows that are in it."""
        lease = cache.begin()
        planner = make_planner(policy, cache.num_slots)
        planner.restart(cache.nodes)
        return cls(policy, lease, planner)

    def fill(self, trace: Trace, num_nodes: int) -> ReadCounts:
        """Fill a cache that is empty with the rows that most batches of a trace need.

        The batches would read them too, but one by one and as they come; in order, most of a
        million rows out of 17 million come with one pass over the table. Caches that do not
        know what is needed stay empty, to compare.

        Parameters
        ----------
        num_nodes : int
            Of the graph; counting takes a byte for each.

        Raises
        ------
        StorageError
            If a row cannot be read.
        """
        knows = self.policy in {"belady", "packed"}
        if not knows or self.num_planned or not trace.num_accesses or self._holds_rows:
            return NO_READS
        counts = np.zeros(num_nodes, np.uint8)
        for i in range(min(trace.num_batches, MAX_COUNTED_BATCHES)):
            _core.count_ids(trace.batch(i), counts)
        nodes = select_nodes(counts, self.planner.num_slots)
        del counts
        filled = self.lease.fill(self.num_planned, nodes)
        if filled is None:
            return NO_READS
        self.num_planned += 1
        slots = np.full(self.planner.num_slots, -1, np.int64)
        slots[: len(nodes)] = nodes
        self.planner.restart(slots)
        return filled

    @property
    def _holds_rows(self) -> bool:
        return bool((self.planner.nodes >= 0).any())
