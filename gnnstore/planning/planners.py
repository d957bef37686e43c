"""One way to plan, whatever decides which rows stay in a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gnnstore.planning import belady
from gnnstore.planning.belady import BeladyPlanner
from gnnstore.planning.online import LruPlanner, SievePlanner

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gnnstore.planning.belady import SuperbatchPlan, Trace
    from gnnstore.planning.superbatch_size import PlannedPolicy


# What a planner knows of a slot before and after a plan: the row, and how often it was needed; or
# the row, its place in the order, and whether it was visited.
_BELADY_STATE_BYTES = 8 + 4
_ONLINE_STATE_BYTES = 8 + 4 + 1
# What the kernel of the others takes: for each access the number of its row, and of the table
# that numbers them; for each row touched or cached where it stands in the list.
_ONLINE_ACCESS_BYTES = 6
_ONLINE_ROW_BYTES = 20


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


def transient_bytes(policy: PlannedPolicy, num_accesses: int, num_rows: int) -> int:
    """Return what making a plan takes beside the trace, the plan and what slots take.

    Parameters
    ----------
    num_accesses : int
        Rows of all batches.
    num_rows : int
        Of the tables.
    """
    taken = belady.transient_bytes(num_accesses, 0)
    if policy in {"belady", "packed"}:
        return taken
    taken = belady.transient_bytes(0, 0) + _ONLINE_ACCESS_BYTES * num_accesses
    return taken + _ONLINE_ROW_BYTES * min(num_accesses, num_rows)


def slot_bytes(policy: PlannedPolicy) -> int:
    """Return what a planner takes for each slot, while it makes a plan."""
    if policy in {"belady", "packed"}:
        return 2 * _BELADY_STATE_BYTES + belady.transient_bytes(0, 1) - belady.transient_bytes(0, 0)
    return 2 * _ONLINE_STATE_BYTES + _ONLINE_ROW_BYTES
