"""Limits the size of blocks, so that those in memory stay within the budget.

While a layer runs on one block, the next is made, and the result of the one before is written. The
three stages share the memory for blocks; if the node with the most in-neighbours needs all of it,
they take place one after the other instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.errors import BudgetError

# The sizes of a block; targets are nodes as well.
EDGES, NODES, TARGETS = "edges", "nodes", "targets"


def block_sizes(num_edges: Any, num_nodes: Any, num_targets: Any) -> dict[str, Any]:
    """Return the sizes of a block for a ledger, or of several (arrays)."""
    return {EDGES: num_edges, NODES: num_nodes, TARGETS: num_targets}


@dataclass(frozen=True)
class BlockCosts:
    """The memory of a block while it is made, run by the layer, and written."""

    making: tuple[Reservation, ...]  # by the block's sizes, the block included
    running: tuple[Reservation, ...]  # by the block's sizes, the block included
    writing: tuple[Reservation, ...]  # by the block's sizes, its result only


@dataclass(frozen=True)
class BlockLimits:
    """The memory for blocks in their three stages."""

    # For the block that is made.
    making: Ledger
    # For the block on which the layer runs.
    running: Ledger
    # For the result that is written.
    writing: Ledger
    is_ahead: bool  # whether the three stages take place at once

    @classmethod
    def of(
        cls, costs: BlockCosts, memory_bytes: int, mean: dict[str, float], largest: dict[str, int]
    ) -> BlockLimits:
        """Divide memory between three blocks, or give it to one if a hub needs all of it.

        `mean` has the sizes of a block for each target.
        """
        stages = (costs.making, costs.running, costs.writing)
        needed = [
            max(1.0, sum(r.fixed + sum(n * mean[name] for name, n in r.per.items()) for r in stage))
            for stage in stages
        ]
        making, running, writing = (int(part / sum(needed) * memory_bytes) for part in needed)
        shares = cls(
            Ledger(making, costs.making),
            Ledger(running, costs.running),
            Ledger(writing, costs.writing),
            is_ahead=True,
        )
        return shares if shares.admits(largest) else shares._alone(memory_bytes)

    def _alone(self, memory_bytes: int) -> BlockLimits:
        """Return the limits of stages that take place one after the other."""
        return BlockLimits(
            self.making.with_limit(memory_bytes),
            self.running.with_limit(memory_bytes),
            self.writing.with_limit(memory_bytes),
            is_ahead=False,
        )

    @property
    def stages(self) -> tuple[Ledger, Ledger, Ledger]:
        """The three ledgers."""
        return self.making, self.running, self.writing

    def admits(self, sizes: dict[str, Any]) -> Any:
        """Return whether a block may have these sizes; for several sizes (arrays), for each."""
        fits: Any = True
        for stage in self.stages:
            fits = fits & (stage.left(sizes) >= 0)
        return fits

    @property
    def most_rows(self) -> int:
        """Targets of the largest block without edges."""
        row = block_sizes(0, 1, 1)
        return min(stage.limit // max(stage.peak(row), 1) for stage in self.stages)

    @property
    def most_nodes(self) -> int:
        """Nodes of the largest block."""
        return min(self.making.largest(NODES), self.running.largest(NODES))

    def refusal(self, who: str, sizes: dict[str, int]) -> BudgetError:
        """Return the error for a block that may not have these sizes."""
        worst = min(self.stages, key=lambda one: one.left(sizes))
        return replace(worst, who=who, source="of memory= for blocks").refusal(sizes)

    def least_bytes(self, sizes: dict[str, int]) -> int:
        """Return the memory with which a block is admitted."""
        return max(stage.peak(sizes) for stage in self.stages)
