"""The policy that chooses the partitions in memory, the sizes that fit a budget, and their cost.

The rules of MariusGNN (section 6), with an addition: the group that is read ahead is in memory,
too. So the number of groups in the buffer is not fixed at two but searched: with many small groups
less is read in all, and with two each pair of groups meets once, at the least bias for the even
order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isqrt
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.errors import UsageError, as_plain, check_choice
from gnnstore.formats.partitions import MOST_PARTITIONS
from gnnstore.partitions.orders import (
    ASSIGNMENTS,
    ORDERS,
    Schedule,
    beta_swaps,
    dispersed,
    edge_permutation_bias,
    group_size,
    nearest,
    sequential,
    states_of_buckets,
    two_level,
)
from gnnstore.units import format_count

# Edges between the partitions in memory that a loader needs: to sample from, to train, or none.
EdgesRead = Literal["graph", "trained", "none"]

_ENDS_BYTES, _TARGET_BYTES = 8, 4  # bytes of an edge on disk; a graph has its target by its place
RESIDENT_GROUPS = (2, 3, 4, 6, 8, 12, 16)
# Partitions for measuring bias, which hardly depends on their number beyond a few a group.
_PARTITIONS_FOR_BIAS = 64
# Bytes of a choice that count as the least, in times of it: with 6 of 32 groups instead of 12 of
# 64, which read 5 % less, ranks were 16 % better.
_NEARLY_AS_LITTLE = 1.1


@dataclass(frozen=True)
class Contents:
    """The contents of a partition buffer, by their bytes."""

    num_nodes: int
    row_bytes: int  # a node's id, attributes, embeddings and the state of their optimizer
    num_edges: int = 0
    position_bytes: int = 4  # bytes of an edge's position in the store, next to its ends
    edges: EdgesRead = "graph"  # see `EdgesRead`
    writes: bool = False  # whether rows are learned and written back when they leave
    num_building: int = 1  # threads that build the graph of a state
    fixed_bytes: int = 0  # bytes of other memory, such as staging

    @property
    def node_bytes(self) -> int:
        """Bytes of the rows of all nodes."""
        return self.num_nodes * self.row_bytes

    @property
    def bucket_bytes(self) -> int:
        """Bytes of all edges on disk, in buckets."""
        return self.num_edges * (_ENDS_BYTES + self.position_bytes)

    @property
    def edge_bytes(self) -> int:
        """Bytes of the edges that are read."""
        return 0 if self.edges == "none" else self.bucket_bytes

    def reserve(
        self, num_partitions: int, capacity: int, rows: int, num_slots: int, most_edges: int
    ) -> list[Reservation]:
        """Return the memory of a buffer."""
        on_disk = _ENDS_BYTES + self.position_bytes
        in_graph = on_disk - _TARGET_BYTES
        # One state is freed, or still sampled from, while the next is built.
        num_states = 2 if capacity < num_partitions else 1
        edges = 0
        if self.edges == "graph":
            nodes = min(self.num_nodes, capacity * rows)
            graphs = num_states * (most_edges * in_graph + 8 * (nodes + 1))
            building = 8 * rows * self.num_building
            edges = graphs + most_edges * on_disk + building + 16 * capacity**2
        elif self.edges == "trained":
            edges = num_states * most_edges * on_disk + 16 * capacity**2
        return [
            Reservation(f"{num_slots} partitions", num_slots * rows * self.row_bytes),
            Reservation(f"edges between {capacity} partitions", edges),
            Reservation("places of buckets", places_bytes(num_partitions)),
        ]


@dataclass(frozen=True)
class BufferSizes:
    """Sizes of a partition buffer, and the cost of an epoch with them."""

    num_partitions: int  # p
    capacity: int  # c: partitions in the buffer
    num_groups: int  # l: logical groups
    order: str  # "even", "beta" or "dispersed"
    memory_bytes: int  # most memory of an epoch, for edges that are spread evenly over buckets
    bytes_read: int  # bytes read by an epoch from an empty buffer
    bytes_written: int  # bytes written by an epoch from an empty buffer

    @property
    def resident_groups(self) -> int:
        """Groups in the buffer, c_l."""
        return self.capacity * self.num_groups // self.num_partitions

    @property
    def table_reads(self) -> float:
        """Number of times that an epoch reads the rows of all nodes."""
        return _table_reads(self.num_groups, self.resident_groups, self.order)

    def bias(self) -> float:
        """Return the Edge Permutation Bias of an epoch on a graph of equal degrees."""
        if self.order == "dispersed":
            return 0.0
        size = max(1, _PARTITIONS_FOR_BIAS // self.num_groups)
        schedule = two_level(
            self.num_groups * size,
            self.resident_groups * size,
            self.num_groups,
            order=self.order,
        )
        return edge_permutation_bias(states_of_buckets(schedule))

    def io_seconds(self, read_rate: float, write_rate: float) -> float:
        """Return the seconds of an epoch's reads and writes, at bytes a second."""
        return self.bytes_read / read_rate + self.bytes_written / write_rate


def places_bytes(num_partitions: int) -> int:
    """Return the memory for the places of buckets, on disk and in memory."""
    return 8 * (num_partitions**2 + 1) + 12 * num_partitions**2


def most_partitions(contents: Contents, block_bytes: int) -> int:
    """Return the largest number of partitions whose files are read at the disk's full rate."""
    of_nodes = contents.node_bytes // block_bytes
    of_edges = isqrt(contents.bucket_bytes // block_bytes)
    return max(2, min(of_nodes, of_edges, MOST_PARTITIONS, contents.num_nodes))


def buffer_sizes(
    contents: Contents,
    memory_bytes: int,
    block_bytes: int,
    *,
    for_edges: bool = True,
    source: str = Ledger.source,
) -> list[BufferSizes]:
    """Return the sizes that fit a budget, one for each order and number of groups in the buffer."""
    most = most_partitions(contents, block_bytes)
    shapes = [("even", 2), *(("beta", resident) for resident in RESIDENT_GROUPS)]
    found, too_large = [], []
    for order, resident in shapes if for_edges else [("dispersed", 1)]:
        for num_groups in range(resident, most + 1):
            sizes = _sizes(contents, order, resident, num_groups, most)
            if sizes.memory_bytes <= memory_bytes:
                found.append(sizes)
                break
            too_large.append(sizes)
    if not found:
        least = min(too_large, key=lambda sizes: sizes.memory_bytes)
        ledger = Ledger(memory_bytes, who="the partition buffer", source=source)
        parts = Reservation(
            f"{least.capacity} of {least.num_partitions} partitions", least.memory_bytes
        )
        raise ledger.add(parts).refusal()
    return found


def sizes_of_partitions(
    contents: Contents, memory_bytes: int, num_partitions: int, *, order: str
) -> list[BufferSizes]:
    """Return the sizes for existing partitions, in one order: the best first."""
    residents = {"dispersed": (1,), "even": (2,)}.get(order, RESIDENT_GROUPS)
    found = {
        _sizes(contents, order, resident, num_groups, num_partitions)
        for resident in residents
        for num_groups in range(resident, num_partitions + 1)
        if num_partitions % num_groups == 0
    }
    fitting = [sizes.bytes_read for sizes in found if sizes.memory_bytes <= memory_bytes]
    least = min(fitting, default=0)

    def rank(sizes: BufferSizes) -> tuple[float, ...]:
        # The fewest groups among equals, not the groups that a set happens to yield first.
        last = sizes.bias(), sizes.num_groups
        if sizes.memory_bytes > memory_bytes:
            return 1, sizes.memory_bytes, *last
        if order == "dispersed":
            return 0, -sizes.capacity, *last
        is_near = sizes.bytes_read <= _NEARLY_AS_LITTLE * least
        return 0, not is_near, sizes.num_groups * is_near, sizes.bytes_read, *last

    return sorted(found, key=rank)


def best_sizes(found: list[BufferSizes], *, read_rate: float, write_rate: float) -> BufferSizes:
    """Return the sizes with the shortest epoch, and of those alike the one with the least bias."""
    return min(found, key=lambda s: (s.io_seconds(read_rate, write_rate), s.bias()))


def _sizes(
    contents: Contents, order: str, resident: int, num_groups: int, most: int
) -> BufferSizes:
    size = max(1, most // num_groups)
    num_partitions, capacity = num_groups * size, resident * size
    is_whole = resident == num_groups
    # Each group is read where the last was written back.
    slots = capacity + (0 if is_whole else size)
    most_edges = ceil(contents.num_edges * (capacity / num_partitions) ** 2)
    rows = ceil(contents.num_nodes / num_partitions)
    parts = contents.reserve(num_partitions, capacity, rows, slots, most_edges)
    reads = _table_reads(num_groups, resident, order)
    swaps = round(reads * num_groups) - resident
    entering = capacity**2 + swaps * size * (2 * capacity - size)
    writes = reads if contents.writes and not is_whole else float(contents.writes)
    return BufferSizes(
        num_partitions,
        capacity,
        num_groups,
        order,
        sum(part.fixed for part in parts) + contents.fixed_bytes,
        ceil(reads * contents.node_bytes + contents.edge_bytes * entering / num_partitions**2),
        ceil(writes * contents.node_bytes),
    )


def _table_reads(num_groups: int, resident: int, order: str) -> float:
    if order == "dispersed" or resident == num_groups:
        return 1.0
    return (resident + beta_swaps(num_groups, resident)) / num_groups


KINDS = ("two-level", "dispersed", "sequential")


@dataclass(frozen=True)
class BufferShape:
    """Partitions in memory and their order: the parameters that batches depend on."""

    kind: str  # as in `PartitionPolicy`
    order: str  # as in `PartitionPolicy`
    assignment: str  # as in `PartitionPolicy`
    num_partitions: int  # p
    capacity: int  # c: partitions in memory
    num_groups: int  # l: logical groups
    num_train: int = 0  # partitions that hold the training nodes, of "sequential"

    @property
    def num_spare(self) -> int:
        """Partitions that are read ahead while a state is trained."""
        if self.kind == "sequential" or self.capacity == self.num_partitions:
            return 0
        return self.num_partitions // self.num_groups

    def schedule(self, seed: int, epoch: int) -> Schedule:
        """Return the states of an epoch."""
        if self.kind == "sequential":
            args = (self.num_partitions, self.capacity, self.num_train)
            return sequential(*args, seed=seed, epoch=epoch)
        sizes = (self.num_partitions, self.capacity, self.num_groups)
        if self.kind == "dispersed":
            return dispersed(*sizes, seed=seed, epoch=epoch)
        return two_level(*sizes, order=self.order, seed=seed, epoch=epoch)

    def fingerprint(self) -> dict[str, Any]:
        """Return the parameters that batches depend on, as plain values by name."""
        found: dict[str, Any] = {
            "kind": self.kind,
            "num_partitions": self.num_partitions,
            "capacity": self.capacity,
        }
        if self.kind == "sequential":
            return found
        found["logical"] = self.num_groups
        if self.kind == "two-level":
            found |= {"order": self.order, "assignment": self.assignment}
        return found

    def describe(self) -> str:
        """Return a description of the buffer, for `stats().reason`."""
        groups = "" if self.kind == "sequential" else f" in {self.num_groups} logical groups"
        order = f", order {self.order!r}" if self.kind == "two-level" else ""
        return (
            f"{self.capacity} of {self.num_partitions} partitions in memory{groups}, "
            f"kind {self.kind!r}{order}"
        )


@dataclass(frozen=True)
class PartitionPolicy:
    """Trains on some partitions of a store at a time (MariusGNN); see `gnnstore partition`.

    Some partitions of the graph lie in memory at a time, and batches are sampled from these alone:
    unlike a strategy, a policy changes batches. Which partitions are together, and in which state
    an edge or a node is trained, is drawn anew in each epoch.

    Attributes
    ----------
    kind : "two-level", "dispersed" or "sequential"
        "two-level": all pairs of partitions meet, for training on edges. For training on nodes:
        "dispersed" reads each partition once an epoch; "sequential" holds the partitions of the
        training nodes, and others that change with the epoch (`gnnstore partition
        --train-first`).
    capacity : int, float or None
        Partitions in memory, or their share of all; None: as many as fit in `memory`.
    logical : int or "auto"
        Logical groups, of which one is replaced at a time; "auto": with `capacity`, the number with
        which `kind` holds the fewest groups in memory; else the number that suits the memory.
    order : "beta" or "even"
        For "two-level": Marius' BETA, or paths on which all groups are in memory equally often.
    assignment : "random" or "greedy"
        For "two-level": an edge is trained in any state that holds its ends, or in the first.
    memory : int, str or None
        Budget that decides `capacity`; by default the loader's. The capacity that it leads to is
        part of the loader's state.
    name : str, path-like or None
        Name of the partitions, if a store has several; or the path of their directory.

    Raises
    ------
    UsageError
        If a value is not allowed.

    Examples
    --------
    >>> policy = PartitionPolicy("two-level", capacity=4)
    """

    kind: str = "two-level"
    capacity: int | float | None = None
    logical: int | Literal["auto"] = "auto"
    order: str = "beta"
    assignment: str = "random"
    memory: int | str | None = None
    name: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        check_choice("order", self.order, ORDERS)
        check_choice("assignment", self.assignment, ASSIGNMENTS)
        if not isinstance(self.name, str | os.PathLike | None) or self.name == "":
            raise UsageError(f"name={self.name!r}: expected a name of partitions, or their path")
        for option in ("capacity", "logical"):
            object.__setattr__(self, option, as_plain(getattr(self, option)))
        capacity, logical = self.capacity, self.logical
        is_share = isinstance(capacity, float) and 0 < capacity <= 1
        if not is_share and type(capacity) not in (int, type(None)):
            raise UsageError(
                f"capacity={capacity!r}: expected a number of partitions, or a share of all, above "
                "0 and up to 1"
            )
        if logical != "auto" and (type(logical) is not int or logical < 1):
            raise UsageError(f"logical={logical!r}: expected a number of groups, or 'auto'")
        if self.kind == "sequential" and logical != "auto":
            raise UsageError(f"logical={logical}: kind='sequential' has no groups; leave it out")
        if capacity is None and logical != "auto":
            raise UsageError(f"logical={logical} without capacity=: give both, or neither")
        if capacity is not None and self.memory is not None:
            raise UsageError(
                f"capacity={capacity} and memory={self.memory!r}, which decides it: leave out one"
            )

    def shapes(
        self,
        num_partitions: int,
        *,
        for_edges: bool,
        num_train: int = 0,
        contents: Contents | None = None,
        memory_bytes: int | None = None,
    ) -> list[BufferShape]:
        """Return the shapes that the policy allows for a number of partitions, the best one first.

        `num_train` of these hold the training nodes; 0: all may hold some. With `for_edges` every
        pair of partitions must meet. `contents` and `memory_bytes` decide if no capacity was given.
        """
        if for_edges and self.kind != "two-level":
            raise UsageError(
                f"kind={self.kind!r}: not all pairs of partitions are in memory together in an "
                "epoch, so that edges between some would not be trained; use kind='two-level'"
            )
        if self.kind == "sequential" and num_train == 0:
            raise UsageError(
                "kind='sequential': training nodes lie in all partitions; partition the store "
                "with 'gnnstore partition --train-first', or use kind='dispersed'"
            )
        if self.capacity is not None:
            found = [self._of_capacity(num_partitions, self.capacity)]
        elif contents is None or memory_bytes is None:
            raise UsageError(
                "PartitionPolicy: capacity is not given; give it, or memory= to decide it by"
            )
        elif self.kind == "sequential":
            found = [(c, num_partitions) for c in range(num_partitions, num_train - 1, -1)]
        else:
            order = self.order if self.kind == "two-level" else self.kind
            sizes = sizes_of_partitions(contents, memory_bytes, num_partitions, order=order)
            found = [(each.capacity, each.num_groups) for each in sizes]
        shapes = [
            BufferShape(self.kind, self.order, self.assignment, num_partitions, *numbers, num_train)
            for numbers in found
        ]
        if self.capacity is not None:
            shapes[0].schedule(0, 0)  # refuses parameters that do not fit together
        return shapes

    def _of_capacity(self, num_partitions: int, capacity: int | float) -> tuple[int, int]:
        """Return the number of partitions in memory, and of groups of all partitions."""
        is_share = isinstance(capacity, float)
        found = max(1, int(num_partitions * capacity + 1e-9)) if is_share else int(capacity)
        if self.kind == "sequential":
            return found, num_partitions
        # Groups in memory if their number is chosen.
        each = 2 if self.kind == "two-level" else 1
        if self.logical != "auto":
            size = max(1, num_partitions // self.logical)
            found = max(each, found // size) * size if is_share else found
            group_size(num_partitions, found, self.logical)  # refuses what does not divide
            return found, self.logical
        sizes = [size for size in range(1, num_partitions // each + 1) if not num_partitions % size]
        allowed = sorted({*(each * size for size in sizes), num_partitions})
        if is_share:
            found = max([c for c in allowed if c <= found], default=allowed[0])
        if found not in allowed:
            raise UsageError(
                f"capacity={found} of {format_count(num_partitions, 'partition')}: "
                f"kind={self.kind!r} holds "
                f"{each} of the groups that they are divided into; the nearest that work are "
                f"{nearest(allowed, found)}"
            )
        return found, 1 if found == num_partitions else each * num_partitions // found


class Slots(NamedTuple):
    """Memory for partitions."""

    num_resident: int  # partitions of a state
    num_spare: int  # further partitions, which are being read ahead or written behind


@runtime_checkable
class ResidentTable(Protocol):
    """A table of rows by node with the partitions of a state in memory.

    All calls come from the thread that takes batches, between two batches.
    """

    def attach(self, unit_uuid: str) -> None:
        """Check that the table fits a loader by partitions; nothing changes."""

    def reserve(self, slots: Slots | None) -> Reservation:
        """Return the bytes of memory that the table takes with this many partitions at once."""

    def enter(self, state: npt.NDArray[np.int64] | None, slots: Slots | None) -> bool:
        """Load exactly the partitions of a state, in ascending order."""

    def expect(self, state: npt.NDArray[np.int64]) -> None:
        """Begin to read partitions of the next state into free slots; do not wait."""

    def leave(self, loader: object) -> None:
        """End an iteration, also by `break` or an exception: no thread is left, nothing is lost."""

    def check_position(self, state_dict: Mapping[str, Any]) -> None:
        """Compare the state from which a loader resumes with the state of the commit, if any."""

    def note_position(self, loader: object, state_dict: dict[str, Any]) -> None:
        """Take a loader's state with the batch that was handed out last, for the next commit."""
