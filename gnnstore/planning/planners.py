"""One way to plan, whatever decides which rows stay in a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gnnstore.planning.belady import BeladyPlanner
from gnnstore.planning.online import LruPlanner, SievePlanner

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gnnstore.planning.belady import SuperbatchPlan, Trace
    from gnnstore.planning.superbatch_size import PlannedPolicy


class Planner(Protocol):
    """Plans superbatch after superbatch for one cache. Not to be used by two threads at once."""

    @property
    def num_slots(self) -> int:
        """Rows that the cache holds."""

    @property
    def nodes(self) -> npt.NDArray[np.int64]:
        """The row in each slot after the last plan, int64 [C]; -1: none that matters. A copy."""

    def plan(self, trace: Trace) -> SuperbatchPlan:
        """Plan the next superbatch."""

    def restart(self, nodes: npt.NDArray[Any]) -> None:
        """Go on from a cache that holds these rows (int64 [C], -1: none), nothing else known."""

    def clear(self) -> None:
        """Forget the cache."""


def make_planner(policy: PlannedPolicy, num_slots: int) -> Planner:
    """Return the planner of a policy, for a cache that is empty."""
    if policy in {"belady", "packed"}:
        return BeladyPlanner(num_slots)
    return LruPlanner(num_slots) if policy == "lru" else SievePlanner(num_slots)
