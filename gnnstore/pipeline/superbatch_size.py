"""The size of superbatches: how many batches are planned together, and how many rows are cached."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy.typing as npt

from gnnstore.budget.ledger import PLANNED, SLOTS, Ledger, Reservation
from gnnstore.caching.pools import SlotPools
from gnnstore.units import format_size

# Of all that planning will take, for counts before it begins.
_COUNTS_SHARE = 4


@dataclass(frozen=True)
class SuperbatchSize:
    """The size of the superbatches of one loader, and the memory that they take."""

    num_batches: int
    num_slots: int  # C, the rows that are cached, pinned ones included
    in_memory: bool  # whether sampled subgraphs stay in memory until they are used; else on disk
    # Memory for all of it: rows, traces, plans, subgraphs, and sampling them.
    reservations: tuple[Reservation, ...] = ()
    packing_bytes: int = 0  # part of it for packing a superbatch
    # Part of it for the table of a planner whose traces and plans are on disk; 0 where they are in
    # memory.
    table_bytes: int = 0
    bulk_bytes: int = 0  # part of it for sampling batches together, where in-neighbours are on disk
    # Threads that sample ahead, at most: there is memory for so many.
    sampling_threads: int | None = None
    # Whether disk has room for two superbatches, so that one can be made beside another.
    overlaps: bool = True
    # Batches that begin an iteration whose first superbatch nobody has made beforehand: they read
    # all of their rows while it is made.
    num_unplanned: int = 0
    num_pinned: int = 0  # H, the rows that are cached whatever is planned
    # int32 or int64 [H], or None: the nodes whose rows these are, ascending; None in a prediction,
    # or if there are none.
    pinned: npt.NDArray[Any] | None = field(default=None, repr=False, compare=False)
    pools: SlotPools | None = None  # of slots of several widths

    def with_pinned(self, nodes: npt.NDArray[Any]) -> Self:
        """Return the size with these rows pinned; if they are fewer, there are fewer slots."""
        num_slots = self.num_planned_slots + len(nodes)
        pinned = nodes if len(nodes) else None
        return replace(self, num_slots=num_slots, num_pinned=len(nodes), pinned=pinned)

    @property
    def num_planned_slots(self) -> int:
        """The number of slots that a plan decides on: C - H."""
        return self.num_slots - self.num_pinned

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that reservations grow with."""
        return {PLANNED: self.num_batches, SLOTS: self.num_planned_slots}

    @property
    def num_bytes(self) -> int:
        """Memory for all of it."""
        return Ledger(0, self.reservations).peak(self.sizes)

    @property
    def slot_bytes(self) -> int:
        """Memory for each planned slot, and for planning it."""
        return Ledger(0, self.reservations).bytes_each(SLOTS)

    @property
    def plans_in_memory(self) -> bool:
        """Whether traces and plans are in memory; else in files of the run."""
        return self.table_bytes == 0

    def has_room_for_counts(self, num_nodes: int) -> bool:
        """Whether there is room to count how often nodes are needed, before the first plan.

        A byte a node, where later rows are.
        """
        return num_nodes <= self.num_bytes // _COUNTS_SHARE

    def degrees_bytes(self, num_nodes: int) -> int:
        """Return the memory for the nodes' degrees where later rows are, beside those counts."""
        return max(0, self.num_bytes // _COUNTS_SHARE - num_nodes)

    def describe(self, policy: str) -> str:
        """Return a phrase for the loader's reason."""
        where = "in memory" if self.in_memory else "on disk"
        plans = (
            "" if self.plans_in_memory else ", plans too" if not self.in_memory else ", plans not"
        )
        pinned = f" ({self.num_pinned} of them pinned)" if self.num_pinned else ""
        found = (
            f"{self.num_slots} rows cached as {policy!r} says{pinned}, "
            f"{self.num_batches} batches planned at a time and kept {where}{plans}, "
            f"{format_size(self.num_bytes)} in all"
        )
        if not self.num_unplanned:
            return found
        first = "batch reads" if self.num_unplanned == 1 else f"{self.num_unplanned} batches read"
        return f"{found}; the first {first} all rows from disk while the others are planned"
