"""Seeds that are trained while their partitions are in memory."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.caching.partitions.assignment import states_of_nodes
from gnnstore.pipeline.order.partition import Assigned, Assigner, Int64Array
from gnnstore.pipeline.seeds.base import BatchKey, Seeds
from gnnstore.pipeline.seeds.nodes import InputNodes, NodeSeeds

if TYPE_CHECKING:
    from gnnstore.caching.partitions.orders import Schedule
    from gnnstore.formats.partitions.reader import PartitionsReader
    from gnnstore.pipeline.partitions.buffer import ResidentState


class SeedsByState(Assigner):
    """What batches start from, where it lies among the partitions in memory."""

    @abstractmethod
    def positions(self, assigned: Any, state: int, resident: ResidentState) -> npt.NDArray[Any]:
        """Return the positions of the seeds of a state, which is in memory, in their own order."""

    @abstractmethod
    def select(self, index: npt.NDArray[Any], key: BatchKey, resident: ResidentState) -> Seeds:
        """Return the seeds at some of these positions; nodes by their ids in the state."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of memory that dividing them takes, and what is kept of it."""


class GroupedByState(Assigned):
    """Seeds that are known before their state is in memory.

    Parameters
    ----------
    states : ndarray of int32 [k]
        State that trains each position.
    """

    def __init__(self, states: npt.NDArray[np.int32], num_states: int) -> None:
        self.counts = np.bincount(states, minlength=num_states).astype(np.int64)
        self._order = np.argsort(states, kind="stable")
        self._ends = np.cumsum(self.counts)

    def positions(self, state: int) -> Int64Array:
        """Return the positions that a state trains, ascending."""
        end = int(self._ends[state])
        return self._order[end - int(self.counts[state]) : end]


class NodesByState(SeedsByState):
    """Seed nodes: each is trained in some state that its partition is in.

    Parameters
    ----------
    nodes : InputNodes
        By the store's ids.
    """

    def __init__(self, nodes: InputNodes, unit: PartitionsReader) -> None:
        self._nodes, self._unit = nodes, unit
        place = unit.paged(unit.place_spec)
        self._new_ids = place.load() if nodes.nodes is None else place.gather(nodes.nodes)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._nodes, self._unit))

    @property
    def num_bytes(self) -> int:
        """Bytes of the ids, and of the order of two epochs."""
        return self._new_ids.nbytes + 2 * 8 * len(self._nodes) + 16 * len(self._nodes)

    def assign(self, schedule: Schedule, seed: int, epoch: int) -> GroupedByState:
        """Draw a state for each node, of those that hold its partition."""
        of = self._new_ids // self._unit.rows_per_partition
        states = states_of_nodes(schedule, of, seed=seed, epoch=epoch)
        return GroupedByState(states, len(schedule.states))

    def positions(self, assigned: Any, state: int, resident: ResidentState) -> Int64Array:  # noqa: ARG002
        """Return the positions in the input nodes."""
        found: Int64Array = assigned.positions(state)
        return found

    def select(self, index: npt.NDArray[Any], key: BatchKey, resident: ResidentState) -> NodeSeeds:
        """Return the seed nodes at some positions in the input nodes."""
        labels = self._nodes.select(index, key).labels
        return NodeSeeds(resident.members.local(self._new_ids[index]), labels)
