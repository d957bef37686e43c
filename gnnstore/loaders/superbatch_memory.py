"""What a budget leaves to cached rows and plans, beside batches in flight and sampling threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnstore.io.packed_rows import RUN_STAGING_BYTES
from gnnstore.planning.in_flight import check_two_batches, expected_bytes, in_flight_bytes

if TYPE_CHECKING:
    from gnnstore.loaders.presampling import Presampled
    from gnnstore.planning.placement import Placement

# Without memory= nobody has said what the model needs besides.
_UNPROMISED_SHARE = 2
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
    threads_bytes : int
        For what threads have at hand while they sample, and read what is packed.
    """

    num_bytes: int
    bulk_bytes: int
    threads_bytes: int


def planned_batch_bytes(seen: Presampled) -> int:
    """Return what a batch may take that is assembled by a plan."""
    return expected_bytes(seen.largest_bytes + _STEP_BYTES * seen.largest_nodes)


def superbatch_memory(
    placement: Placement,
    seen: Presampled,
    *,
    num_threads: int,
    structure_staging_bytes: int | None,
    packs: bool,
    spared_bytes: int = 0,
    overlaps: bool = False,
) -> SuperbatchMemory:
    """Divide a budget.

    Parameters
    ----------
    structure_staging_bytes : int or None
        Where in-neighbours are on disk, the memory of the thread that reads them; else None.
    packs : bool
        Whether missed rows are packed.
    spared_bytes : int
        Staging memory that nothing needs, because only packed rows are read.
    overlaps : bool
        See `gnnstore.planning.in_flight.in_flight_bytes`.

    Raises
    ------
    BudgetError
        If two batches do not fit.
    """
    left, threads_bytes = placement.left_bytes, 0
    if placement.budget_is_promise:
        batch_bytes = planned_batch_bytes(seen)
        check_two_batches(placement, batch_bytes)
        if structure_staging_bytes is not None:
            # In-neighbours are fetched by a thread of their own; batches are sampled together, in
            # memory that is counted apart.
            threads_bytes = structure_staging_bytes
        else:
            # A subgraph as the sampler gives it, and as much until it is kept in half the memory.
            threads_bytes = num_threads * 2 * expected_bytes(seen.largest_ids_bytes)
        if packs:
            # Runs have a reader of their own, in place of the other where nothing else is read;
            # and where the rows of a run go.
            threads_bytes += max(0, num_threads * RUN_STAGING_BYTES - spared_bytes)
            threads_bytes += num_threads * _POSITION_BYTES * expected_bytes(seen.largest_nodes)
        left -= in_flight_bytes(placement, batch_bytes, num_threads, overlaps=overlaps)
        left -= threads_bytes
    else:
        left //= _UNPROMISED_SHARE
    bulk_bytes = 0 if structure_staging_bytes is None else max(0, left) // _BULK_SHARE
    return SuperbatchMemory(left - bulk_bytes, bulk_bytes, threads_bytes)
