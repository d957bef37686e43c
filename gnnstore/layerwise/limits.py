"""Limits the size of blocks, so that those in memory stay within the budget.

While a layer runs on one block, the next is made, and the result of the one before is written. The
three stages share the memory for blocks; if the node with the most in-neighbours needs all of it,
they take place one after the other instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# The sizes of a block are an array: edges, nodes, targets (which are nodes as well).
EDGES, NODES, TARGETS = np.eye(3, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class BlockLimits:
    """The memory for blocks in three stages: made, run by the layer, written."""

    # int64 [3, 3]: bytes for each edge, node and target, in each stage; blocks included.
    costs: npt.NDArray[np.int64]
    shares: npt.NDArray[np.int64]  # the memory of each stage
    is_ahead: bool  # whether the three stages take place at once

    @classmethod
    def of(
        cls, costs: npt.NDArray[np.int64], room: int, mean: Any, largest: npt.NDArray[np.int64]
    ) -> BlockLimits:
        """Divide memory between three blocks, or give it to one if a hub needs all of it.

        `mean` has the sizes of a block for each target.
        """
        needed = np.maximum(costs @ mean, 1.0)
        shares = cls(costs, (needed / needed.sum() * room).astype(np.int64), is_ahead=True)
        if shares.admits(largest):
            return shares
        return cls(costs, np.full(3, room), is_ahead=False)

    def admits(self, sizes: npt.ArrayLike) -> bool:
        """Return whether a block may have these sizes."""
        return bool((self.costs @ np.asarray(sizes) <= self.shares).all())

    @property
    def making(self) -> int:
        """The memory in which blocks are made."""
        return int(self.shares[0])

    @property
    def running(self) -> int:
        """The memory in which the layer runs."""
        return int(self.shares[1])

    def most(self, sizes: npt.NDArray[np.int64], stages: int = 3) -> int:
        """Return the largest block, as a multiple of some sizes, that the first stages admit."""
        return int((self.shares // np.maximum(self.costs @ sizes, 1))[:stages].min())
