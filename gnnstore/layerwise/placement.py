"""Decides which rows of each layer's input stay in memory: those that move the fewest bytes.

A layer's memory is divided between rows that are kept, those that most edges come from, and blocks.
Rows that are not kept move with each block that needs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.layerwise.memory import BlockLimits
from gnnstore.layerwise.plan import GraphSize, LayerPlan

# Kept rows are tried with these shares of a layer's memory, in sixteenths.
_SHARES = (0, 2, 4, 6, 8, 10, 11, 12, 13, 14)
# What a block costs besides its rows, as bytes that move in the same time: calls, and sets of ids.
_BYTES_PER_BLOCK = 1 << 20
_NODES_PER_BYTE = 2
# A layer takes this factor longer if a block is read, computed and written before the next.
_ONE_AFTER_THE_OTHER = 1.5


@dataclass(frozen=True, eq=False)
class OutDegrees:
    """How many nodes have each out-degree, in descending order of degrees."""

    degrees: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    counts: npt.NDArray[np.uint32]  # of each node

    @classmethod
    def of(cls, counts: npt.NDArray[np.uint32]) -> OutDegrees:
        """Count nodes by their out-degree."""
        degrees, numbers = np.unique(counts[counts > 0], return_counts=True)
        return cls(degrees[::-1].astype(np.int64), numbers[::-1].astype(np.int64), counts)

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


@dataclass(frozen=True, eq=False)
class Placer:
    """Places the rows of layers by the bytes that move."""

    graph: GraphSize
    degrees: OutDegrees | None  # None: no rows are kept
    gap_bytes: int  # bytes that a disk moves in the time of one read

    def place(self, plan: LayerPlan, room: int) -> Placement:
        """Return the placement of a layer that moves the fewest bytes."""
        degrees = self.degrees
        if degrees is None or not plan.call.needs_edges:
            return Placement(plan.limits(room, self.graph))
        most = [share * room // 16 // plan.kept_bytes for share in _SHARES]
        numbers = sorted({max(0, min(number, degrees.num_sources)) for number in most})
        # Without kept rows the largest block was admitted.
        tried = filter(None, (self._placed(plan, degrees, room, number) for number in numbers))
        return min(tried, key=lambda one: one[0])[1]

    def _placed(
        self, plan: LayerPlan, degrees: OutDegrees, room: int, num_kept: int
    ) -> tuple[float, Placement] | None:
        """Return the cost and the placement with some kept rows; None if they have no room."""
        graph, left = self.graph, room - num_kept * plan.kept_bytes
        if left <= 0:
            return None
        limits, num_blocks = self._blocks(plan, degrees, num_kept, left)
        if not limits.admits(plan.largest_block(graph)):
            return None
        keeps_all = num_kept == degrees.num_sources
        accesses = 0.0 if keeps_all else degrees.accesses(num_kept, num_blocks)
        table = graph.num_nodes * plan.kind.stored_bytes
        id_bytes = id_dtype(graph.num_nodes).itemsize
        once = table if num_kept else 0
        packed = accesses * plan.packed_bytes
        alone = accesses * (plan.kind.stored_bytes + self.gap_bytes)  # read one by one
        # The ids of packed rows take the memory of blocks meanwhile.
        passes = table * ceil(accesses * id_bytes / max(1, limits.running))
        # Blocks are outlined before their rows are packed: another pass over the edges.
        overhead = num_blocks * (_BYTES_PER_BLOCK + graph.num_nodes // _NODES_PER_BYTE)
        overhead += table + (graph.num_edges * id_bytes if accesses else 0)
        cost = overhead + min(max(once, passes) + 2 * packed, once + alone)
        cost *= 1.0 if limits.is_ahead else _ONE_AFTER_THE_OTHER
        return cost, Placement(limits, num_kept, keeps_all)

    def _blocks(
        self, plan: LayerPlan, degrees: OutDegrees, num_kept: int, room: int
    ) -> tuple[BlockLimits, int]:
        """Divide memory between blocks, and estimate their number; each depends on the other."""
        num_nodes, sums = max(1, self.graph.num_nodes), plan.call.sums
        number = 1.0
        for _ in range(4):
            others = degrees.accesses(num_kept if sums else 0, number) / num_nodes
            limits = plan.limits(room, self.graph, others)
            sizes = np.array([self.graph.num_edges / num_nodes, others + 1, 1])
            shares = plan.costs @ sizes / np.maximum(limits.shares, 1)
            number = max(1.0, num_nodes * float(shares.max()))
        return limits, ceil(number)
