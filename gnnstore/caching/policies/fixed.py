"""Plans of a cache whose rows are chosen once: by degree, or by how often sampling needs them.

DiskGNN keeps such a cache in front of packed rows. Which rows it holds is decided elsewhere (see
`gnnstore.caching.scores`); here it is planned like any other, so that loading and packing treat it
in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.plan import CachePlan, PlannedStep, PlanPlace, Trace
from gnnstore.caching.policies.base import CachePolicy, slot_layout
from gnnstore.caching.policies.belady import check_num_slots
from gnnstore.errors import UsageError


class Fixed(CachePolicy):
    """Keeps the rows of some nodes, which are chosen when they are first asked for.

    A loader makes it of its own nodes, so that it is not registered. Memory is reserved as for the
    policy in whose place it stands.
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
        """Return the nodes whose rows the cache always holds."""
        return self.nodes(num_slots)

    def nodes(self, num_slots: int) -> npt.NDArray[np.int64]:
        """Return the nodes for a cache of `num_slots` slots."""
        if num_slots not in self._chosen:
            self._chosen = {num_slots: self._choose(num_slots)}
        return self._chosen[num_slots]


class FixedPlanner:
    """Plans superbatch after superbatch for a cache that is to hold the rows of some nodes.

    A row keeps its slot for good. Usually the cache is filled beforehand, and `restart` says so:
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

    def plan(self, trace: Trace, place: PlanPlace | None = None) -> CachePlan:
        """Plan the next superbatch."""
        held = self._held.copy()
        plan = CachePlan.collect(trace.offsets, self._steps(trace, held), place)
        self._held = held
        return plan

    def _steps(self, trace: Trace, held: npt.NDArray[np.uint8]) -> Iterator[PlannedStep]:
        """Plan batch after batch; mark in `held` the rows that enter."""
        seen = np.zeros_like(self._bits)
        for i in range(trace.num_batches):
            ids = trace.batch(i)
            slots = np.empty(len(ids), np.int32)
            try:
                planned = _core.plan_fixed(self._bits, self._ranks, held, seen, ids, slots)
            except (ValueError, IndexError) as error:
                raise UsageError(f"cannot plan batch {i} of a superbatch: {error}") from error
            yield PlannedStep(slots, *planned)

    def restart(self, nodes: npt.NDArray[Any]) -> None:
        """Go on from a cache that holds these rows; rows in other slots do not count."""
        if nodes.shape != self._fixed.shape:
            raise UsageError(
                f"expected the rows in {self.num_slots} slots, got an array of shape {nodes.shape}"
            )
        self._held = ((nodes == self._fixed) & (self._fixed >= 0)).astype(np.uint8)
