"""Places a store's parts for a loader: as the user wants, or with less in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from gnnstore.budget.limits import MemoryBudget
from gnnstore.disk.engines import Engine
from gnnstore.errors import BudgetError, DiskBudgetError
from gnnstore.graph.shared import shared_tables
from gnnstore.strategies.base import Auto
from gnnstore.strategies.loader_spec import LoaderSpec
from gnnstore.strategies.predict.traits import StrategyTraits
from gnnstore.strategies.sizes.placement import Placement, Placer, place

T = TypeVar("T")

# A refusal names what its check misses; the checks after it may miss more.
_MOST_RAISES = 4


def place_for(loader: LoaderSpec, strategy: StrategyTraits, *, staging: bool = True) -> Placement:
    """Return the places of a store's parts under a strategy, if the budget fits the rest."""
    return next(_placers(loader, strategy, staging=staging))(0)


def first_that_fits(
    loader: LoaderSpec,
    strategy: StrategyTraits,
    divide: Callable[[Placer], T],
    **reasons: Any,
) -> T:
    """Return the first placement of a store's parts that leaves enough memory for the rest."""
    refusals: list[tuple[BudgetError, Callable[..., Placement]]] = []
    for placed in _placers(loader, strategy, **reasons):
        is_placed = False
        try:
            placement = placed(0)
            is_placed = True
            # Also if a smaller placement came first: with more memory that would be tried again,
            # and a refusal tells the missing bytes.
            return divide(placed)
        except DiskBudgetError:
            raise
        except BudgetError as error:
            refusals.append((error, placed))
            if is_placed and placement.strategy.mode == "memory":
                break
    # Of several that miss the same the last one, which holds least.
    refusal, placed = min(reversed(refusals), key=lambda each: each[0].missing_bytes or math.inf)
    for _ in range(_MOST_RAISES):
        if not refusal.missing_bytes:
            break
        try:
            divide(partial(placed, lent=refusal.missing_bytes))
        except DiskBudgetError:
            break
        except BudgetError as error:
            refusal = error
        else:
            break
    raise refusal from None


def _placers(
    loader: LoaderSpec, strategy: StrategyTraits, *, staging: bool = True, **reasons: Any
) -> Iterator[Callable[..., Placement]]:
    """Yield placers, which may also lend bytes: what is refused counts these as missing."""
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

    def placer(topology: str, **how: Any) -> Callable[..., Placement]:
        return lambda more=0, lent=0: placed(
            more_bytes=more, lent_bytes=lent, topology=topology, **how
        )

    yield placer(topology)
    if strategy.mode == "memory":
        return
    if strategy.reads_disk and loader.sizes.edge_ids:  # before the topology gives way
        yield placer(topology, holds_ids=False)
    if topology != "auto":
        yield placer(topology, is_frugal=True)
        return
    if strategy.reads_disk:
        yield placer("disk", is_frugal=True)
    yield placer("mmap", is_frugal=True)


def with_engine(place: Placer, engine: Engine | None) -> Placer:
    """Return a placer whose reasons name the engine that reads."""
    if engine is None:
        return place
    reason = f"read by {engine.reason}"
    return lambda more_bytes: place(more_bytes).because(reason)
