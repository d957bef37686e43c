"""Places a store's parts for a loader: as the user wants, or with less in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from gnnstore.budget.limits import MemoryBudget
from gnnstore.errors import BudgetError, DiskBudgetError
from gnnstore.graph.shared import shared_tables
from gnnstore.strategies.base import Auto
from gnnstore.strategies.loader_spec import LoaderSpec
from gnnstore.strategies.predict.traits import StrategyTraits
from gnnstore.strategies.sizes.placement import Placement, place

T = TypeVar("T")

# A refusal names what its check misses; the checks after it may miss more.
_MOST_RAISES = 6


def place_for(loader: LoaderSpec, strategy: StrategyTraits, *, staging: bool = True) -> Placement:
    """Return the places of a store's parts under a strategy, if the budget fits the rest."""
    return next(_placers(loader, strategy, staging=staging))()


def first_that_fits(
    loader: LoaderSpec,
    strategy: StrategyTraits,
    divide: Callable[[Placement], T],
    **reasons: Any,
) -> T:
    """Return the first placement of a store's parts that leaves enough memory for the rest."""
    refusals: list[tuple[BudgetError, Callable[..., Placement]]] = []
    for placed in _placers(loader, strategy, **reasons):
        mode = None
        try:
            placement = placed()
            mode = placement.strategy.mode
            return divide(placement)
        except DiskBudgetError:
            raise
        except BudgetError as error:
            refusals.append((error, placed))
            if mode == "memory":
                break
    # Of several that miss the same the last one, which holds least.
    refusal, placed = min(reversed(refusals), key=lambda each: each[0].missing_bytes or math.inf)
    for _ in range(_MOST_RAISES):
        if not refusal.missing_bytes:
            break
        try:
            divide(placed(lent_bytes=refusal.missing_bytes))
            break
        except DiskBudgetError:
            break
        except BudgetError as error:
            refusal = error
    raise refusal from None


def _placers(
    loader: LoaderSpec, strategy: StrategyTraits, *, staging: bool = True, **reasons: Any
) -> Iterator[Callable[..., Placement]]:
    """Yield functions that place a store's parts, perhaps with bytes lent, the roomiest first."""
    options, shared = loader.options, shared_tables(loader.store)
    placed = partial(
        place,
        loader.sizes,
        # Free memory is measured once.
        MemoryBudget.of(options.memory, shared.resident_bytes - shared.cached_bytes),
        strategy=strategy.by_mode if isinstance(strategy, Auto) else strategy,
        seeds_bytes=loader.seeds_bytes,
        cached_bytes=shared.cached_bytes,
        taken_bytes=loader.taken_bytes(strategy),
        shared_tables=shared.tables_in_memory,
        held_row_bytes=partial(shared.held_row_bytes, loader.store, progress=loader.progress),
        staging_bytes=loader.staging_bytes if staging else lambda _: 0,
        reads_edges_ahead=bool(strategy.plans and loader.disk_bytes()),
        **reasons,
    )
    topology = options.topology
    yield partial(placed, topology=topology)
    if strategy.mode == "memory":
        return
    if strategy.reads_disk and loader.sizes.edge_ids:  # before the topology gives way
        yield partial(placed, topology=topology, holds_ids=False)
    for where in (topology,) if topology != "auto" else ("disk", "mmap"):
        if where != "disk" or strategy.reads_disk or topology == "disk":
            yield partial(placed, topology=where, is_frugal=True)
