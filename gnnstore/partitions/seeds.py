"""Seeds that are trained while their partitions are in memory, state after state."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.store.schema import NODE_TYPE
from gnnstore.partitions.orders import Purpose, Schedule, draws, states_of_buckets, states_of_nodes
from gnnstore.partitions.policy import BufferShape, EdgesRead
from gnnstore.pipeline.order import Position
from gnnstore.pipeline.shuffle import MAX_SORTED, drawn_order
from gnnstore.sampling.sampled_graph import EdgeFinder
from gnnstore.seeds.base import BatchKey, SeedLabels, Seeds
from gnnstore.seeds.labels import LinkLabels
from gnnstore.seeds.links import LinkGraph, Links, edge_ids_of
from gnnstore.seeds.nodes import InputNodes

if TYPE_CHECKING:
    from gnnstore.formats.partitions import PartitionsReader
    from gnnstore.partitions.buffer import ResidentState

Int64Array = npt.NDArray[np.int64]

# Bytes of a seed in orders: two epochs are kept; one is sorted; a state's seeds are shuffled.
_ORDER_BYTES = 2 * 8 + 16 + 16


class GroupedByState:
    """Seeds that are known before their state is in memory."""

    def __init__(self, states: npt.NDArray[np.int32], num_states: int) -> None:
        self.counts = np.bincount(states, minlength=num_states).astype(np.int64)
        self._order = np.argsort(states, kind="stable")
        self._ends = np.cumsum(self.counts)

    def positions(self, state: int) -> Int64Array:
        """Return the positions that a state trains, ascending."""
        end = int(self._ends[state])
        return self._order[end - int(self.counts[state]) : end]


class NodesByState:
    """Seed nodes: each is trained in some state that holds its partition."""

    are_edges = False  # whether every pair of partitions must be in memory together in an epoch

    def __init__(self, nodes: InputNodes, unit: PartitionsReader) -> None:
        self._nodes, self._unit = nodes, unit
        self._new_ids = unit.new_ids(nodes.nodes)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._nodes, self._unit))

    def edges_read(self) -> EdgesRead:
        """Return the kind of edges that these seeds need, without those that batches sample."""
        return "none"

    def check_in_first(self, num_partitions: int) -> None:
        """Refuse seeds outside the first partitions, since others are not in every epoch."""
        of = self._new_ids // self._unit.rows_per_partition
        beyond = np.flatnonzero(of >= num_partitions)
        if beyond.size:
            place = int(beyond[0])
            node = place if self._nodes.nodes is None else int(self._nodes.nodes[place])
            raise UsageError(
                f"kind='sequential' trains on nodes of the first {num_partitions} partitions, and "
                f"{beyond.size} of the {len(of)} seed nodes are in others, first node {node} in "
                f"partition {of[place]}; partition the store with these nodes first "
                "(--train-first), or use kind='dispersed'"
            )

    def bytes_with(self, most_edges: int) -> int:  # noqa: ARG002
        """Return the bytes of the seeds, their ids by partition, and the order of two epochs."""
        count = len(self._nodes)
        return self._nodes.num_bytes + self._new_ids.nbytes + _ORDER_BYTES * count

    def trained(self, *_: Any) -> None:
        """Return None: no edges are seeds."""

    def assign(self, schedule: Schedule, seed: int, epoch: int) -> GroupedByState:
        """Draw a state for each node among those that hold its partition."""
        of = self._new_ids // self._unit.rows_per_partition
        states = states_of_nodes(schedule, of, seed=seed, epoch=epoch)
        return GroupedByState(states, len(schedule.states))

    def positions(self, assigned: Any, state: int, resident: ResidentState) -> Int64Array:  # noqa: ARG002
        """Return the positions in the input nodes."""
        found: Int64Array = assigned.positions(state)
        return found

    def select(
        self, index: npt.NDArray[Any], key: BatchKey, resident: ResidentState
    ) -> Seeds[SeedLabels]:
        """Return the seed nodes at some positions in the input nodes."""
        labels = self._nodes.select(index, key).labels
        return Seeds({NODE_TYPE: resident.members.local(self._new_ids[index])}, labels)


class EdgesOfStates:
    """Seed edges that are all edges of the graph: known by the pairs of partitions."""

    def __init__(self, states: npt.NDArray[np.int32], sizes: Int64Array, num_states: int) -> None:
        self.states = states
        counts = np.bincount(states.ravel(), sizes.ravel(), num_states)
        self.counts = counts.astype(np.int64)


Assigned = GroupedByState | EdgesOfStates


class LinksByState:
    """Seed edges: each is trained in the state that its pair of partitions is assigned to."""

    are_edges = True

    def __init__(self, links: Links, unit: PartitionsReader, assignment: str) -> None:
        self._links, self._unit, self._assignment = links, unit, assignment
        negatives = links.negatives
        if negatives is not None and negatives.num_bytes:
            raise UsageError(
                "partitions= and src_weight or dst_weight: negatives are drawn uniformly from the "
                "nodes in memory; leave the weights out (degree_fraction= draws by degree)"
            )
        self._new_ends: npt.NDArray[Any] | None = None
        if links.edges is not None:
            self._new_ends = unit.new_ids(links.edges.ravel()).reshape(2, -1)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._links, self._unit, self._assignment))

    def edges_read(self) -> EdgesRead:
        """Return "graph" if edges are looked up, "trained" if they are the seeds."""
        links = self._links
        is_strict = links.negatives is not None and links.negatives.is_strict
        is_all = links.edges is None
        looks_up = bool(links.attributes) and not is_all and links.split is None
        if is_strict or looks_up or links.exclude_edges is not None:
            return "graph"
        return "trained" if is_all else "none"

    def check_in_first(self, num_partitions: int) -> None:
        """Do nothing: edges are in all partitions."""

    def bytes_with(self, most_edges: int) -> int:
        """Return the bytes of the edges, their ids by partition, and the orders of two states."""
        shuffled = 16 * min(MAX_SORTED, len(self._links)) + 8 * min(most_edges, MAX_SORTED)
        if self._new_ends is None:
            id_bytes = id_dtype(most_edges).itemsize
            return self._links.num_bytes + 2 * id_bytes * most_edges + shuffled
        grouped = _ORDER_BYTES * len(self._links)
        return self._links.num_bytes + self._new_ends.nbytes + grouped + shuffled

    def assign(self, schedule: Schedule, seed: int, epoch: int) -> Assigned:
        """Draw a state for the edges of each pair of partitions."""
        states = states_of_buckets(schedule, assignment=self._assignment, seed=seed, epoch=epoch)
        unit, num_states = self._unit, len(schedule.states)
        if self._new_ends is None:
            sizes = np.diff(unit.bucket_ptr).reshape(states.shape).T
            return EdgesOfStates(states, sizes, num_states)
        source, target = self._new_ends // unit.rows_per_partition
        return GroupedByState(states[source, target], num_states)

    def trained(
        self, assigned: Any, state: int, partitions: Int64Array
    ) -> npt.NDArray[np.bool_] | None:
        """Return whether the edges of each pair of partitions are seeds of a state [c * c]."""
        if not isinstance(assigned, EdgesOfStates):
            return None
        found: npt.NDArray[np.bool_] = assigned.states[np.ix_(partitions, partitions)] == state
        return found.T.ravel()

    def positions(self, assigned: Any, state: int, resident: ResidentState) -> npt.NDArray[Any]:
        """Return positions among the given edges; of all edges, their places in memory."""
        if not isinstance(assigned, EdgesOfStates):
            return np.asarray(assigned.positions(state))
        if resident.graph is None:
            end = 0 if resident.buckets is None else int(resident.buckets.starts[-1])
            return np.arange(int(assigned.counts[state]), dtype=id_dtype(end))
        trained = self.trained(assigned, state, resident.members.partitions)
        assert trained is not None  # noqa: S101 - of all edges it is not
        return resident.graph.edges_of(trained)

    def select(
        self, index: npt.NDArray[Any], key: BatchKey, resident: ResidentState
    ) -> Seeds[LinkLabels]:
        """Return the seed edges at some of these positions, and their negatives."""
        members, graph, buckets = resident.members, resident.graph, resident.buckets
        index = index.astype(np.int64, copy=False)
        finder = None if graph is None else EdgeFinder(graph.columns)
        known = None if graph is None else graph.positions
        ids = edge_ids_of(self._links.store, self._links.given.edge)
        within = LinkGraph(finder, (members.num_nodes, members.num_nodes), known, ids)
        if self._new_ends is not None:
            source, target = (members.local(of) for of in self._new_ends[:, index])
        elif graph is not None and finder is not None:
            source, target = graph.columns.indices[index].astype(np.int64), finder.targets_of(index)
            index = graph.positions[index].astype(np.int64)
        elif buckets is not None:
            source, target = buckets.ends(members, index)
            index = buckets.position[index].astype(np.int64)
        return self._links.seeds_in(within, index, (source, target), key)


SeedsByState = NodesByState | LinksByState


def by_state(seeds: Any, unit: PartitionsReader, assignment: str) -> SeedsByState:
    """Return the seeds of a loader, grouped by the partitions of a store."""
    if isinstance(seeds, InputNodes):
        return NodesByState(seeds, unit)
    if isinstance(seeds, Links):
        return LinksByState(seeds, unit, assignment)
    raise UsageError(
        f"partitions= and seeds of the kind {type(seeds).__name__}: these cannot be trained by "
        "partitions; leave partitions= out"
    )


class InState(NamedTuple):
    """The seeds of a batch: a range in the order of its state's seeds."""

    state: int
    begin: int
    end: int


@dataclass(frozen=True, eq=False)
class EpochByStates:
    """The states of an epoch, and their batches."""

    seed: int
    epoch: int
    schedule: Schedule
    assigned: Assigned
    num_batches: Int64Array  # int64 [n]: batches of each state
    shuffles: bool

    @cached_property
    def ends(self) -> Int64Array:
        """Number of the batch after the last one of each state."""
        return np.cumsum(self.num_batches)

    @property
    def total(self) -> int:
        """Number of batches."""
        return int(self.num_batches.sum())

    def state_of(self, batch: int) -> int:
        """Return the state of a batch."""
        return int(np.searchsorted(self.ends, batch, side="right"))

    def left(self, done: int) -> list[int]:
        """Return the states that have batches after the first `done` of the epoch."""
        return np.flatnonzero((self.num_batches > 0) & (self.ends > done)).tolist()

    def order_of(self, state: int) -> Any:
        """Return the order in which a state's seeds are taken, to be sliced."""
        count = int(self.assigned.counts[state])
        if not self.shuffles:
            return range(count)
        return drawn_order(count, draws(self.seed, self.epoch, Purpose.SEEDS, state))


@dataclass(frozen=True, eq=False)
class PartitionOrder:
    """Divides the seeds of each state into batches, state after state; an `EpochOrder`."""

    shape: BufferShape
    seeds: SeedsByState
    batch_size: int
    shuffles: bool
    drop_last: bool
    _known: dict[tuple[int, int], EpochByStates] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    name = None
    is_keyed = varies = True

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.shape, self.seeds, self.batch_size, self.shuffles, self.drop_last)
        return (type(self), arguments)

    def states_of(self, seed: int, epoch: int) -> EpochByStates:
        """Return the states of an epoch; the last two epochs are cached."""
        with self._lock:
            known = self._known.get((seed, epoch))
            if known is None:
                schedule = self.shape.schedule(seed, epoch)
                assigned = self.seeds.assign(schedule, seed, epoch)
                size = self.batch_size
                num_batches = (assigned.counts + (0 if self.drop_last else size - 1)) // size
                known = EpochByStates(seed, epoch, schedule, assigned, num_batches, self.shuffles)
                for key in [*self._known][:-1]:
                    del self._known[key]
                self._known[seed, epoch] = known
            return known

    def start(self) -> None:
        """Do nothing: the order follows from (seed, epoch)."""

    def check(self, position: Position, seed: int) -> None:
        """Check that an epoch has at least the batches that were handed out."""
        total = self.states_of(seed, position.epoch).total
        if position.batches > total:
            raise UsageError(
                f"the state's 'batches' is {position.batches}; expected at most {total}, which is "
                f"epoch {position.epoch}"
            )

    def number(self, first: int, k: int) -> int:
        """Return the number in its epoch of the k-th batch after the first `first` batches."""
        return first + k

    def num_left(self, position: Position, seed: int | None) -> int:
        """Return the number of batches of an epoch that follow a position."""
        if seed is None:
            raise UsageError("the number of batches depends on seed=, which is not drawn yet")
        return max(0, self.states_of(seed, position.epoch).total - position.batches)

    def batches(self, start: Position, seed: int) -> Iterator[tuple[int, InState, Position]]:
        """Yield the number, the seeds and the place after each batch from `start` on."""
        epoch, size = self.states_of(seed, start.epoch), self.batch_size
        for state in epoch.left(start.batches):
            count, end = int(epoch.assigned.counts[state]), int(epoch.ends[state])
            first = end - int(epoch.num_batches[state])
            for number in range(max(first, start.batches), end):
                begin = (number - first) * size
                seeds = InState(state, begin, min(begin + size, count))
                yield number, seeds, Position(start.epoch, number + 1)
