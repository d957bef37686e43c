"""What a budget leaves to cached rows and plans, beside batches in flight and sampling threads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeVar

from gnnstore.errors import BudgetError, DiskBudgetError
from gnnstore.features.packed.chunks import RUN_STAGING_BYTES
from gnnstore.sizing.in_flight import Crowd, check_two_batches, expected_bytes, in_flight_bytes
from gnnstore.sizing.superbatch_costs import LEAST_PACKING_BYTES

if TYPE_CHECKING:
    from gnnstore.pipeline.lookahead.presample import Presampled
    from gnnstore.sizing.placement import Placement

T = TypeVar("T")

# Without memory= nobody has said what the model needs besides.
_UNPROMISED_SHARE = 2
# A half batch more is what is kept otherwise, and an eighth of the others.
_MOST_MARGIN = 0.4
# What a plan says of each node of a batch: a slot, and one that it enters.
_STEP_BYTES = 4 + 8
_POSITION_BYTES = 4
# Where in-neighbours are on disk, batches that are sampled together read each hop of theirs in
# one pass; more memory makes for fewer passes.
_BULK_SHARE = 8


@dataclass(frozen=True)
class SuperbatchMemory:
    """How much there is.

    Attributes
    ----------
    num_bytes : int
        For rows, traces, plans and subgraphs; may be negative.
    bulk_bytes : int
        For sampling batches together, where in-neighbours are on disk.
    besides_bytes : int
        Beside `num_bytes`, for `bulk_bytes` and what threads have at hand while they sample, and
        read what is packed.
    lent_bytes : int
        Of all of it, what sampling lends to planning, and to packing.
    memory_for : callable
        Returns by how much `memory=` must grow for `num_bytes` to grow by so much.
    """

    num_bytes: int
    bulk_bytes: int
    besides_bytes: int
    lent_bytes: int
    memory_for: Callable[[int], int]


@dataclass(frozen=True)
class Division:
    """For how many batches and threads there is to be room.

    Attributes
    ----------
    placement : Placement
        With staging memory for as many threads.
    seen : Presampled
        Some batches.
    num_threads : int
        That prepare batches.
    crowd : "overlapping", "usual" or "fewest"
        See `gnnstore.sizing.in_flight`.
    """

    placement: Placement
    seen: Presampled
    num_threads: int
    crowd: Crowd = "usual"

    def expected(self, largest: int) -> int:
        """Return what a batch may have of something of which the largest seen has so much."""
        if self.crowd == "fewest":
            return expected_bytes(largest, self.seen.margin)
        return expected_bytes(largest)

    def _frugal(self, seen: Presampled, staging_bytes: int, may_use_fewer: bool) -> Self:
        """Return the division with room for two batches, and for one thread if that will do."""
        placement, num_threads = self.placement, self.num_threads
        if may_use_fewer:
            num_threads = 1
            if staging_bytes:
                placement = replace(placement, staging_bytes=staging_bytes)
        threads = "one thread, and " if may_use_fewer else ""
        placement = placement.because(
            f"{threads}no batch that waits, for memory= has no room for more"
        )
        return replace(
            self, placement=placement, seen=seen, num_threads=num_threads, crowd="fewest"
        )

    def first_that_fits(
        self,
        sized: Callable[[Division], T],
        *,
        packs: bool,
        staging_bytes: int,
        may_use_fewer: bool,
        look_again: Callable[[], Presampled] | None = None,
    ) -> T:
        """Return what comes of more and more frugal divisions.

        Parameters
        ----------
        sized : callable
            Takes a division; raises BudgetError if it does not do.
        packs : bool
            Whether missed rows are packed.
        staging_bytes : int
            Of a thread that reads.
        may_use_fewer : bool
            Whether fewer threads will do.
        look_again : callable, optional
            Samples more batches than were seen, if it comes to that.

        Raises
        ------
        BudgetError
            If none does: what the most frugal one lacks that may be tried.
        """
        if not self.placement.budget_is_promise:
            return sized(self)
        # Fewer batches at once are slower, but may fit.
        if packs:
            try:
                return sized(replace(self, crowd="overlapping"))
            except BudgetError:
                pass
        try:
            return sized(self)
        except DiskBudgetError:
            raise  # with less memory it would be more
        except BudgetError as error:
            refused = error
        seen = self.seen if look_again is None else look_again()
        if seen.margin > _MOST_MARGIN:
            raise refused
        return sized(self._frugal(seen, staging_bytes, may_use_fewer))


def superbatch_memory(
    division: Division,
    *,
    structure_staging_bytes: int | None,
    packs: bool,
    spared_bytes: int = 0,
) -> SuperbatchMemory:
    """Divide a budget.

    Parameters
    ----------
    division : Division
    structure_staging_bytes : int or None
        Where in-neighbours are on disk, the memory of the thread that reads them; else None.
    packs : bool
        Whether missed rows are packed.
    spared_bytes : int
        Staging memory that nothing needs, because only packed rows are read.

    Raises
    ------
    BudgetError
        If two batches do not fit.
    """
    placement, seen, num_threads = division.placement, division.seen, division.num_threads
    left, threads_bytes, ids_bytes = placement.left_bytes, 0, 0
    if placement.budget_is_promise:
        batch_bytes = division.expected(seen.largest_bytes + _STEP_BYTES * seen.largest_nodes)
        check_two_batches(placement, batch_bytes)
        if structure_staging_bytes is not None:
            # In-neighbours are fetched by a thread of their own; batches are sampled together, in
            # memory that is counted apart.
            threads_bytes = structure_staging_bytes
        else:
            # A subgraph as the sampler gives it, and as much until it is kept in half the memory.
            ids_bytes = num_threads * 2 * division.expected(seen.largest_ids_bytes)
            threads_bytes = ids_bytes
        if packs:
            # Runs have a reader of their own, in place of the other where nothing else is read;
            # and where the rows of a run go.
            threads_bytes += max(0, num_threads * RUN_STAGING_BYTES - spared_bytes)
            threads_bytes += num_threads * _POSITION_BYTES * division.expected(seen.largest_nodes)
        left -= in_flight_bytes(placement, batch_bytes, num_threads, division.crowd)
        left -= threads_bytes
    else:
        left //= _UNPROMISED_SHARE

    def for_sampling(left: int) -> tuple[int, int, int]:
        """Return what is for sampling together, what sampling lends, and that to packing."""
        bulk_bytes = 0 if structure_staging_bytes is None else max(0, left) // _BULK_SHARE
        if division.crowd != "fewest":
            # For a cache that another loader had meanwhile, a superbatch is planned and packed
            # again while the next one is sampled.
            return bulk_bytes, 0, 0
        lent_bytes = ids_bytes + bulk_bytes
        return bulk_bytes, lent_bytes, min(lent_bytes, LEAST_PACKING_BYTES) if packs else 0

    def for_plans(left: int) -> int:
        bulk_bytes, _, packing_bytes = for_sampling(left)
        return left - bulk_bytes + packing_bytes

    def memory_for(missing_bytes: int) -> int:
        wanted = for_plans(left) + missing_bytes
        more = range(2 * missing_bytes + 1)
        return placement.memory_for(
            bisect_left(more, True, key=lambda bytes_more: for_plans(left + bytes_more) >= wanted)
        )

    bulk_bytes, lent_bytes, packing_bytes = for_sampling(left)
    besides_bytes = bulk_bytes + threads_bytes - packing_bytes
    return SuperbatchMemory(for_plans(left), bulk_bytes, besides_bytes, lent_bytes, memory_for)
