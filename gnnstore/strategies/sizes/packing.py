"""Finds the memory for packed rows that are not written, which the cache loses.

A superbatch reads the tables once. Its packed rows are written and read back, unless they stay in
memory: then the next superbatch, which is made meanwhile, needs as much. Each row that is kept so
takes two rows from the cache, and saves one write and one read; so it pays if the cache has more
than it needs, or superbatches are short for lack of disk. A superbatch that is kept whole needs no
disk at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from gnnstore.budget.ledger import SLOTS
from gnnstore.errors import BudgetError
from gnnstore.pipeline.superbatch_size import SuperbatchSize
from gnnstore.strategies.sizes.superbatch import SuperbatchCosts, SuperbatchSizer

# Shares of the cache that packed rows may take: beyond, it misses too much with any length.
_MOST_OF_ROWS, _SOME_OF_ROWS = 3 / 4, 1 / 4
# A smaller cache misses more: a superbatch that is to be kept whole has room for this many times
# its packed rows.
_MORE_MISSES = 1.25
# Lengths that are tried; each is planned, which takes seconds.
_TRIED = 3

# Returns the cost of some batches with some size; infinity if the size is not possible.
Cost = Callable[[SuperbatchCosts, SuperbatchSize], float]


@dataclass(frozen=True)
class ChunkMemory:
    """Weighs memory for packed rows against longer superbatches, whose rows go to disk."""

    sizer: SuperbatchSizer
    cost: Cost  # cost of a size, given the costs that it was found with
    # Returns the least cost of superbatches of this many batches, with any memory.
    passes_cost: Callable[[int], float]

    def improve(self, size: SuperbatchSize) -> tuple[SuperbatchCosts, SuperbatchSize]:
        """Return the cheapest size; of equal ones the given size."""
        best = self.sizer.costs, size
        least = self.cost(*best)
        for num_batches, num_bytes in self._candidates(size, least):
            costs = replace(self.sizer.costs, chunk_memory_bytes=num_bytes)
            with suppress(BudgetError):
                found = replace(self.sizer, costs=costs).size_of(num_batches)
                if (price := self.cost(costs, found)) < least:
                    best, least = (costs, found), price
        return best

    def _candidates(self, size: SuperbatchSize, least: float) -> Iterator[tuple[int, int]]:
        """Yield numbers of batches, and memory for packed rows of this many."""
        costs = self.sizer.costs
        ledger = self.sizer.memory.add(*size.reservations)
        free = max(0, ledger.left(size.sizes))
        rows = size.num_slots * ledger.bytes_each(SLOTS)
        if self.sizer.settings.cache_bytes is not None:
            rows = 0  # the user has set their number
        whole = costs.chunks_of(size.num_batches)
        if free // 2 >= costs.chunks_of(1):  # it has no other use
            yield size.num_batches, min(free // 2, math.ceil(_MORE_MISSES * whole))
        if size.num_batches < self.sizer.num_batches:
            yield size.num_batches, int(free + _SOME_OF_ROWS * rows) // 2
        # Without disk for any length, lengths have not been compared.
        tried, num_batches = 0, size.num_batches if least < math.inf else self.sizer.counts[-1]
        fewest = min(2, num_batches)
        while tried < _TRIED and self.passes_cost(num_batches) < least:
            kept = math.ceil(_MORE_MISSES * costs.chunks_of(num_batches))
            if 2 * kept <= free + _MOST_OF_ROWS * rows:
                tried += 1
                yield num_batches, kept
            if num_batches == fewest or self.sizer.settings.num_batches is not None:
                break
            num_batches = max(fewest, num_batches // 2)
