"""Plans of caches that do not know the future: LRU, and SIEVE, which GraphBolt uses.

They are made from the same trace as Belady's plan, so that a comparison compares the choice of rows
and nothing else. But what is decided after a batch depends on that batch and those before it only,
as if the cache had met them one by one. Loaders do not follow them: Belady's misses less.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.plan import CachePlan
from gnnstore.caching.policies.base import CachePolicy
from gnnstore.caching.policies.belady import check_num_slots, distinct_nodes
from gnnstore.caching.trace import Trace
from gnnstore.errors import UsageError

# The row of each slot; slots in the order of their rows; whether a row was visited; the hand.
_State = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.uint8], int]


class OnlinePlanner:
    """Plans superbatch after superbatch for one cache, empty at first.

    Plans must be followed in the order in which they were made. Not to be used by two threads at
    once.
    """

    def __init__(self, policy: Literal["lru", "sieve"], num_slots: int) -> None:
        check_num_slots(num_slots)
        self._policy: Literal["lru", "sieve"] = policy
        order = np.full(num_slots, -1, np.int32)
        nodes = np.full(num_slots, -1, np.int64)
        self._state: _State = (nodes, order, np.zeros(num_slots, np.uint8), -1)

    @property
    def num_slots(self) -> int:
        """Number of slots, C."""
        return len(self._state[0])

    @property
    def nodes(self) -> npt.NDArray[np.int64]:
        """The row in each slot after the last plan, int64 [C]; -1: none. A copy."""
        return self._state[0].copy()

    def plan(self, trace: Trace) -> CachePlan:
        """Plan the next superbatch; see `Planner.plan`."""
        try:
            planned = _core.plan_online(self._policy, trace.ids, trace.offsets, *self._state)
        except (ValueError, IndexError) as error:
            raise UsageError(f"cannot plan a superbatch: {error}") from error
        self._state = planned[5:]
        return CachePlan(trace.offsets, *planned[:5])

    def restart(self, nodes: npt.NDArray[Any]) -> None:
        """Go on from a cache that holds these rows, in any order; see `Planner.restart`."""
        distinct = distinct_nodes(nodes, self.num_slots)
        held = np.flatnonzero(distinct >= 0)
        order = np.full(self.num_slots, -1, np.int32)
        order[: len(held)] = held
        self._state = (distinct, order, np.zeros(self.num_slots, np.uint8), -1)


class Lru(CachePolicy):
    """Keeps the rows that were used last. After a batch its rows are used one by one, in order."""

    name, title = "lru", "LRU"

    def planner(self, num_slots: int) -> OnlinePlanner:
        """Return a planner for a cache that is empty."""
        return OnlinePlanner("lru", num_slots)


class Sieve(CachePolicy):
    """Keeps rows by SIEVE (Zhang et al., NSDI '24).

    A batch marks its hits as visited; then its other rows enter in order.
    """

    name, title = "sieve", "SIEVE"

    def planner(self, num_slots: int) -> OnlinePlanner:
        """Return a planner for a cache that is empty."""
        return OnlinePlanner("sieve", num_slots)
