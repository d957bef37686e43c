"""A cache policy as a value, and planners, which choose the rows that stay in a cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import PLANNED, SLOTS, Reservation
from gnnstore.caching.plan import CachePlan, PlanLocation, PlannedStep, Trace
from gnnstore.caching.scores import most_needed
from gnnstore.errors import UsageError
from gnnstore.formats.packed import MAX_SLOTS

if TYPE_CHECKING:
    from gnnstore.caching.reuse import InitialCache, ReuseCurve


class Planner(Protocol):
    """Plans superbatch after superbatch for one cache. Not to be used by two threads at once."""

    @property
    def num_slots(self) -> int:
        """Rows that the cache holds."""

    @property
    def nodes(self) -> npt.NDArray[np.int64]:
        """The row in each slot after the last plan, int64 [C]; -1: none that matters. A copy."""

    def plan(self, trace: Trace) -> CachePlan:
        """Plan the next superbatch. Plans are followed in the order in which they are made."""

    def restart(self, nodes: npt.NDArray[Any]) -> None:
        """Go on from a cache that holds these rows by slot, int64 [C]; -1: none.

        Nothing else is known. Where slots have the same row, the first counts.
        """


# The phase of memory that is freed once a plan is made.
PLANNING = "planning"
# Most batches that are planned together: with more, a plan reaches further than a cache does.
MAX_PLANNED = 1024


@dataclass(frozen=True)
class PlanningBytes:
    """The memory that a planner takes, on top of the trace and the plan."""

    fixed: int  # of any plan
    per_access: int  # for each row of all batches that are planned together
    per_slot: int  # for each row that the cache holds, also between plans
    more_per_slot: int = 0  # while a plan is made
    per_batch_row: int = 0  # for each row of the largest batch


class CachePolicy(ABC):
    """Decides which rows stay in a cache.

    A policy that is registered in `POLICIES` is compared with the others by `gnnstore predict`; a
    strategy that names it loads by its plans.

    Attributes
    ----------
    name, title : str
        As commands write it, and in a picture.
    looks_ahead : bool
        Whether it uses the rows that batches will need, so that the further it sees the less it
        misses, and a cache is worth filling beforehand.
    is_fixed : bool
        Whether the rows do not depend on the batches, so that a cache is always filled beforehand,
        and the number of batches that are planned together does not matter.
    spills : bool
        Whether its traces and plans can wait in files. Then its planner's `plan` also takes the
        `PlanLocation` of such a plan.
    planning : PlanningBytes
        Memory for planning.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    looks_ahead: ClassVar[bool] = False
    is_fixed: ClassVar[bool] = False
    spills: ClassVar[bool] = False
    planning: ClassVar[PlanningBytes]

    @abstractmethod
    def planner(self, num_slots: int) -> Planner:
        """Return a planner for a cache that is empty."""

    def initial_nodes(
        self,
        trace: Trace,
        num_nodes: int,
        num_slots: int,
        degrees: Callable[[], npt.NDArray[np.uint32] | None] = lambda: None,
    ) -> npt.NDArray[np.int64]:
        """Return the nodes whose rows warm up an empty cache; see `most_needed`."""
        return most_needed(trace, num_nodes, num_slots, degrees)

    def misses(
        self,
        reuse: ReuseCurve,
        num_slots: int,
        num_batches: int,
        *,
        initial: InitialCache,  # noqa: ARG002 - for policies that look ahead
    ) -> float:
        """Return the rows that some batches miss, planned together; as LRU by default."""
        return num_batches * reuse.lru_misses(num_slots, num_batches)

    def max_kept_distance(self, reuse: ReuseCurve, num_slots: int, num_batches: int) -> int:
        """Return the longest reuse distance over which rows stay in the cache."""
        return int(reuse.batches_held(num_slots, num_batches))

    def reserve(self, batch_rows: int) -> list[Reservation]:
        """Return the memory for making a plan, without the trace, the plan and the cached rows."""
        of = self.planning
        per = {PLANNED: of.per_access * batch_rows, SLOTS: of.more_per_slot}
        return [
            Reservation("planning", of.fixed + of.per_batch_row * batch_rows, per, PLANNING),
            Reservation("what a cache holds", 0, {SLOTS: of.per_slot}),
        ]

    def reserve_spilled(
        self, *, num_nodes: int, largest_batch: int, table_bytes: int
    ) -> list[Reservation]:
        """Return the memory for making a plan in files, without the cached rows."""
        raise NotImplementedError(f"plans of {self.name} do not wait in files")


def slot_layout(nodes: npt.NDArray[np.int64], num_slots: int) -> npt.NDArray[np.int64]:
    """Return the row in each slot: these nodes in the first slots, -1 in the others."""
    slots = np.full(num_slots, -1, np.int64)
    slots[: len(nodes)] = nodes
    return slots


def check_num_slots(num_slots: int) -> None:
    """Refuse a number of slots that no plan can be made for."""
    if not 0 <= num_slots <= MAX_SLOTS:
        raise UsageError(
            f"a planned cache has 0 to {MAX_SLOTS} slots, got {num_slots}; "
            "choose a number up to the number of rows"
        )


class Fixed(CachePolicy):
    """Keeps the rows of some nodes, which are chosen when they are first asked for (DiskGNN).

    A loader makes it of its own nodes, so that it is not registered. Memory is reserved as for the
    policy that it replaces.
    """

    name = title = "fixed"
    is_fixed = True

    def __init__(self, choose: Callable[[int], npt.NDArray[np.int64]], num_nodes: int) -> None:
        self._choose = choose
        self._chosen = {0: np.empty(0, np.int64)}  # by the number of slots; the last choice
        self._num_nodes = num_nodes

    def planner(self, num_slots: int) -> FixedPlanner:
        """Return a planner for an empty cache, which will hold the chosen rows."""
        return FixedPlanner(slot_layout(self.nodes(num_slots), num_slots), self._num_nodes)

    def initial_nodes(
        self,
        trace: Trace,  # noqa: ARG002 - the nodes do not depend on what batches need
        num_nodes: int,  # noqa: ARG002
        num_slots: int,
        degrees: object = None,  # noqa: ARG002
    ) -> npt.NDArray[np.int64]:
        """Return the nodes with rows that are always cached."""
        return self.nodes(num_slots)

    def nodes(self, num_slots: int) -> npt.NDArray[np.int64]:
        """Return the nodes for a cache of `num_slots` slots."""
        if num_slots not in self._chosen:
            self._chosen = {num_slots: self._choose(num_slots)}
        return self._chosen[num_slots]


class FixedPlanner:
    """Plans superbatch after superbatch for a cache that is to hold the rows of some nodes.

    A row keeps its slot for good. Usually the cache is filled beforehand, by `restart`:
    then plans bring no changes.
    """

    def __init__(self, nodes: npt.NDArray[np.int64], num_nodes: int) -> None:
        check_num_slots(len(nodes))
        self._fixed = nodes.astype(np.int64)
        held = self._fixed[: int(np.count_nonzero(self._fixed >= 0))]
        try:
            self._bits, self._ranks = _core.index_nodes(held, num_nodes)
        except (ValueError, IndexError) as error:
            raise UsageError(
                f"a fixed cache has nodes of the graph in ascending order, and -1 behind them: "
                f"{error}"
            ) from error
        self._held = np.zeros(len(nodes), np.uint8)

    @property
    def num_slots(self) -> int:
        """Number of slots, C."""
        return len(self._fixed)

    @property
    def nodes(self) -> npt.NDArray[np.int64]:
        """The row in each slot after the last plan, int64 [C]; -1: none that matters. A copy."""
        return np.where(self._held, self._fixed, -1)

    def plan(self, trace: Trace, location: PlanLocation | None = None) -> CachePlan:
        """Plan the next superbatch."""
        held = self._held.copy()
        plan = CachePlan.collect(trace.offsets, self._steps(trace, held), location)
        self._held = held
        return plan

    def _steps(self, trace: Trace, held: npt.NDArray[np.uint8]) -> Iterator[PlannedStep]:
        """Plan batch after batch; mark in `held` the rows that enter."""
        counted = np.zeros_like(self._bits)
        for i in range(trace.num_batches):
            ids = trace.batch(i)
            slots = np.empty(len(ids), np.int32)
            try:
                planned = _core.plan_fixed(self._bits, self._ranks, held, counted, ids, slots)
            except (ValueError, IndexError) as error:
                raise UsageError(f"cannot plan batch {i} of a superbatch: {error}") from error
            yield PlannedStep(slots, *planned)

    def restart(self, nodes: npt.NDArray[Any]) -> None:
        """Go on from a cache that holds these rows; rows in other slots do not count."""
        self._held = ((nodes == self._fixed) & (self._fixed >= 0)).astype(np.uint8)
