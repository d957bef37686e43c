"""Finds the number of partitions that fit in a memory budget, and the cost of each choice.

The rules of MariusGNN (section 6), with an addition: the group that is read ahead is in memory,
too. So the number of groups in the buffer is not fixed at two but searched: with many small groups
less is read in all, and with two each pair of groups meets once, at the least bias for the even
order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isqrt
from typing import Literal

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.formats.partitions import MOST_PARTITIONS
from gnnstore.partitions.orders import (
    beta_swaps,
    edge_permutation_bias,
    states_of_buckets,
    two_level,
)

# Edges between the partitions in memory that a loader needs: to sample from, to train, or none.
EdgesRead = Literal["graph", "trained", "none"]

_ENDS_BYTES, _TARGET_BYTES = 8, 4  # bytes of an edge on disk; a graph has its target by its place
RESIDENT_GROUPS = (2, 3, 4, 6, 8, 12, 16)
# Bias hardly depends on the number of partitions beyond a few a group.
_PARTITIONS_FOR_BIAS = 64
# With 6 of 32 groups instead of 12 of 64, which read 5 % less, ranks were 16 % better.
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
        # Of those alike the fewest groups, not those that a set happens to yield first.
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
