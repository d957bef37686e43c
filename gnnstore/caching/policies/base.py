"""One way to plan, whatever decides which rows stay in a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Union

from gnnstore.caching.policies import belady
from gnnstore.caching.policies.belady import BeladyPlanner
from gnnstore.caching.policies.online import SPILLED_SHARE, LruPlanner, SievePlanner
from gnnstore.caching.policies.settings import LOOKING_AHEAD
from gnnstore.caching.spilled_plan import SLOT_BYTES, spilled_transient_bytes

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from gnnstore.caching.policies.belady import SuperbatchPlan, Trace
    from gnnstore.caching.policies.settings import PlannedPolicy
    from gnnstore.caching.spilled_plan import SpilledPlan
    from gnnstore.caching.trace_file import SpilledTrace

# What a planner knows of a slot: the row, and how often it was needed; or, before a plan and
# again after it, the row, its place in the order, and whether it was visited.
_BELADY_STATE_BYTES = 8 + 4
_ONLINE_STATE_BYTES = 8 + 4 + 1
# What the kernel of the others takes: for each access the number of its row, and of the table
# that numbers them; for each row touched or cached where it stands in the list.
_ONLINE_ACCESS_BYTES = 6
_ONLINE_ROW_BYTES = 20
# And for each access of batches that are planned together from a trace on disk: its id, before
# and after they are joined, its slot, and the changes that it may bring.
_ONLINE_SPILLED_BYTES = _ONLINE_ACCESS_BYTES + _ONLINE_ROW_BYTES + 2 * 8 + 4 + 2 * 8

Plan = Union["SuperbatchPlan", "SpilledPlan"]


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

    def plan_spilled(self, trace: SpilledTrace, path: Path, *, table_bytes: int) -> SpilledPlan:
        """Plan the next superbatch in files: `path` with suffixes."""

    def restart(self, nodes: npt.NDArray[Any]) -> None:
        """Go on from a cache that holds these rows (int64 [C], -1: none), nothing else known."""

    def clear(self) -> None:
        """Forget the cache."""


def make_planner(policy: PlannedPolicy, num_slots: int) -> Planner:
    """Return the planner of a policy, for a cache that is empty."""
    if policy in LOOKING_AHEAD:
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
    if policy in LOOKING_AHEAD:
        return taken
    taken = belady.transient_bytes(0, 0) + _ONLINE_ACCESS_BYTES * num_accesses
    return taken + _ONLINE_ROW_BYTES * min(num_accesses, num_rows)


def slot_bytes(policy: PlannedPolicy) -> int:
    """Return what a planner takes for each slot, while it makes a plan."""
    if policy in LOOKING_AHEAD:
        return _BELADY_STATE_BYTES + belady.transient_bytes(0, 1) - belady.transient_bytes(0, 0)
    return 2 * _ONLINE_STATE_BYTES + _ONLINE_ROW_BYTES


def spilled_bytes(
    policy: PlannedPolicy,
    *,
    num_nodes: int,
    largest_batch: int,
    num_batches: int,
    table_bytes: int,
) -> int:
    """Return what making a plan in files takes, beside what slots take.

    Parameters
    ----------
    num_nodes : int
        Of the graph.
    largest_batch : int
        Rows of the largest batch.
    num_batches : int
        S.
    table_bytes : int
        For next uses; see `BeladyPlanner.plan_spilled`.
    """
    if policy in LOOKING_AHEAD:
        return spilled_transient_bytes(num_nodes, largest_batch, num_batches, 0, table_bytes)
    return belady.transient_bytes(0, 0) + _ONLINE_SPILLED_BYTES * largest_batch


def spilled_slot_bytes(policy: PlannedPolicy) -> int:
    """Return what a planner takes for each slot, while it makes a plan in files."""
    if policy in LOOKING_AHEAD:
        return _BELADY_STATE_BYTES + SLOT_BYTES
    return slot_bytes(policy) + -(-_ONLINE_SPILLED_BYTES // SPILLED_SHARE)
