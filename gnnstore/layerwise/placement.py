"""Decides which rows of each layer's input stay in memory: those that move the fewest bytes.

A layer's memory is divided between rows that are kept, those that most edges come from, and blocks.
Rows that are not kept move with each block that needs them. The layer before may keep rows as it
computes them, or write these alone: then the table is read for the targets only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.layerwise.memory import BlockLimits
from gnnstore.layerwise.plan import GraphSize, LayerPlan
from gnnstore.units import format_count, format_size

# Kept rows are tried with these shares of a layer's memory, in sixteenths.
_SHARES = (0, 2, 4, 6, 8, 10, 11, 12, 13, 14)
# What a block costs besides its rows, as bytes that move in the same time: calls, and sets of ids.
_BYTES_PER_BLOCK = 1 << 20
_NODES_PER_BYTE = 2
# A layer takes this factor longer if a block is read, computed and written before the next.
_ONE_AFTER_THE_OTHER = 1.5

# Seconds for bytes that are read and written.
Seconds = Callable[[float, float], float]


@dataclass(frozen=True, eq=False)
class OutDegrees:
    """How many nodes have each out-degree, in descending order of degrees."""

    degrees: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    counts: npt.NDArray[np.uint32]  # of each node
    # Most in-neighbours of a node that have at most k edges; see `GraphReader.most_others`.
    most_others: npt.NDArray[np.int64]

    @classmethod
    def of(cls, counts: npt.NDArray[np.uint32], most_others: npt.NDArray[np.int64]) -> OutDegrees:
        """Count nodes by their out-degree."""
        degrees, numbers = np.unique(counts[counts > 0], return_counts=True)
        return cls(
            degrees[::-1].astype(np.int64), numbers[::-1].astype(np.int64), counts, most_others
        )

    @property
    def num_sources(self) -> int:
        """Number of nodes with an edge."""
        return int(self.numbers.sum())

    def accesses(self, num_kept: int, num_blocks: float) -> float:
        """Estimate the rows that blocks need of other blocks' nodes, without those kept."""
        before = np.cumsum(self.numbers) - self.numbers
        others = self.numbers - np.clip(num_kept - before, 0, self.numbers)
        within = 1.0 / max(1.0, num_blocks)
        blocks = (1.0 - (1.0 - within) ** self.degrees) / within * (1.0 - within)
        return float((others * blocks).sum())

    def largest_others(self, num_kept: int) -> int:
        """Bound the in-neighbours of a node that are not kept."""
        at = int(np.searchsorted(np.cumsum(self.numbers), num_kept))
        if at == len(self.numbers):
            return 0
        return int(self.most_others[min(self.degrees[at], len(self.most_others) - 1)])

    def largest(self, num_kept: int) -> npt.NDArray[np.bool_]:
        """Return for each node whether it is among those with the most edges."""
        counts, ends = self.counts, np.cumsum(self.numbers)
        at = int(np.searchsorted(ends, num_kept))
        least = int(self.degrees[at])
        # Of nodes with the least degree those with the lowest ids.
        missing = num_kept - (int(ends[at - 1]) if at else 0)
        chosen = counts > least
        chosen[np.flatnonzero(counts == least)[:missing]] = True
        return chosen


@dataclass(frozen=True)
class Placement:
    """What a layer does with its memory."""

    limits: BlockLimits
    num_kept: int = 0
    keeps_all: bool = False  # no block needs other rows
    is_carried: bool = False  # the layer before keeps the rows as it computes them
    is_spilled: bool = False  # the layer before writes the rows once more, alone
    bytes_read: float = 0  # of rows, as estimated
    bytes_packed: float = 0
    seconds: float = 0

    def describe(self, plan: LayerPlan, num_nodes: int) -> str:
        """Return what the layer will do, as a sentence."""
        how = ", as they are computed" * self.is_carried + ", written for it" * self.is_spilled
        return (
            f"{plan.call.layer.name}: keeps {format_count(self.num_kept, 'row')} of {num_nodes:,} "
            f"in {format_size(self.num_kept * plan.kept_bytes)} of memory{how}; about "
            f"{format_size(int(self.bytes_read))} of rows are read and "
            f"{format_size(int(self.bytes_packed))} packed"
        )


@dataclass(frozen=True, eq=False)
class Placer:
    """Places the rows of layers by the time that moving bytes takes."""

    graph: GraphSize
    degrees: OutDegrees | None  # None: no rows are kept
    seconds: Seconds
    gap_bytes: int  # bytes that a disk moves in the time of one read

    def place(self, plans: Sequence[LayerPlan], rooms: Sequence[int]) -> list[Placement]:
        """Place all layers, the last one first: it says what the one before keeps for it."""
        found: list[Placement] = []
        carried_bytes = 0  # taken of a layer's memory for rows of the next
        for k in reversed(range(len(plans))):
            room = rooms[k] - carried_bytes
            own = self._best(plans[k], room)
            assert own is not None  # noqa: S101 - the largest block was admitted
            carried_bytes = 0
            if k and self.degrees is not None and plans[k].call.needs_edges:
                own = self._spilled(plans[k], own)
                number = self.degrees.num_sources
                num_bytes = number * plans[k].kept_bytes
                carried = self._placed(plans[k], self.degrees, room, number, is_carried=True)
                less = self._best(plans[k - 1], rooms[k - 1] - num_bytes)
                apart = self._best(plans[k - 1], rooms[k - 1])
                if (
                    carried is not None
                    and less is not None
                    and apart is not None
                    and carried.seconds + less.seconds < own.seconds + apart.seconds
                ):
                    own, carried_bytes = carried, num_bytes
            found.append(own)
        return found[::-1]

    def _spilled(self, plan: LayerPlan, own: Placement) -> Placement:
        """Return the placement with rows that the layer before writes, if that moves less."""
        rows = own.num_kept * plan.source_bytes
        table = self.graph.num_nodes * plan.kind.stored_bytes
        saved = self.seconds(table, 0) - self.seconds(rows, rows)
        if not own.keeps_all or saved <= 0:
            return own
        read = own.bytes_read - table + rows
        return replace(own, is_spilled=True, bytes_read=read, seconds=own.seconds - saved)

    def _best(self, plan: LayerPlan, room: int) -> Placement | None:
        """Return the placement that takes the least time; None if the room does not suffice."""
        degrees = self.degrees
        if degrees is None or not plan.call.needs_edges:
            limits = plan.limits(room, self.graph)
            if not limits.admits(plan.largest_block(self.graph)) and self.graph.num_nodes:
                return None
            table = self.graph.num_nodes * plan.kind.stored_bytes
            return Placement(limits, bytes_read=table, seconds=self.seconds(table, 0))
        most = [share * room // 16 // plan.kept_bytes for share in _SHARES]
        numbers = sorted({max(0, min(number, degrees.num_sources)) for number in most})
        tried = [self._placed(plan, degrees, room, number) for number in numbers]
        possible = [one for one in tried if one is not None]
        return min(possible, key=lambda one: one.seconds, default=None)

    def _placed(
        self,
        plan: LayerPlan,
        degrees: OutDegrees,
        room: int,
        num_kept: int,
        *,
        is_carried: bool = False,
    ) -> Placement | None:
        graph, left = self.graph, room - num_kept * plan.kept_bytes
        if left <= 0:
            return None
        limits, num_blocks = self._blocks(plan, degrees, num_kept, left)
        others = degrees.largest_others(num_kept) if plan.call.sums else None
        if not limits.admits(plan.largest_block(graph, others)):
            return None
        keeps_all = num_kept == degrees.num_sources
        accesses = 0.0 if keeps_all else degrees.accesses(num_kept, num_blocks)
        table = graph.num_nodes * plan.kind.stored_bytes
        id_bytes = id_dtype(graph.num_nodes).itemsize
        once = 0 if is_carried or not num_kept else table
        packed = accesses * plan.packed_bytes
        alone = accesses * (plan.kind.stored_bytes + self.gap_bytes)  # read one by one
        # The ids of packed rows take the memory of blocks meanwhile.
        passes = table * ceil(accesses * id_bytes / max(1, limits.running))
        choices = ((table + max(once, passes) + packed, packed), (table + once + alone, 0.0))
        overhead = num_blocks * (_BYTES_PER_BLOCK + graph.num_nodes // _NODES_PER_BYTE)
        # Blocks are outlined before their rows are packed: another pass over the edges.
        overhead += graph.num_edges * id_bytes if accesses else 0
        slower = 1.0 if limits.is_ahead else _ONE_AFTER_THE_OTHER
        costs = [slower * self.seconds(read + overhead, written) for read, written in choices]
        seconds, (read, written) = min(zip(costs, choices, strict=True))
        return Placement(limits, num_kept, keeps_all, is_carried, False, read, written, seconds)

    def _blocks(
        self, plan: LayerPlan, degrees: OutDegrees, num_kept: int, room: int
    ) -> tuple[BlockLimits, int]:
        """Divide memory between blocks, and estimate their number; each depends on the other."""
        num_nodes, sums = max(1, self.graph.num_nodes), plan.call.sums
        most = degrees.largest_others(num_kept) if sums else None
        number = 1.0
        for _ in range(4):
            others = degrees.accesses(num_kept if sums else 0, number) / num_nodes
            limits = plan.limits(room, self.graph, others, most)
            sizes = np.array([self.graph.num_edges / num_nodes, others + 1, 1])
            shares = plan.costs @ sizes / np.maximum(limits.shares, 1)
            number = max(1.0, num_nodes * float(shares.max()))
        return limits, ceil(number)
