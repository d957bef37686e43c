"""Opens the data of a loader by its strategy, or by the choice of "auto"."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import cast

from gnnstore.errors import BudgetError
from gnnstore.strategies.auto import Chosen, choices_for
from gnnstore.strategies.base import Auto, Strategy
from gnnstore.strategies.loader_spec import LoaderSpec
from gnnstore.strategies.sizes.placement import Placement
from gnnstore.strategies.sizes.placing import first_that_fits
from gnnstore.strategies.sources import OpenStore
from gnnstore.units import format_at_least, format_size


def open_sources(loader: LoaderSpec) -> OpenStore:
    """Decide on the places of a store's parts, and open them."""
    given = _strategy_of(loader)
    choices = choices_for(loader, given) if isinstance(given, Auto) else [Chosen(loader.options)]
    refusals: list[BudgetError] = []
    for chosen in choices:
        own = replace(loader, options=chosen.options)
        reasons = {"why": chosen.why, "instead_of_static": chosen.instead_of_static}
        try:
            strategy, placement = _reserved(own, **reasons)
        except BudgetError as error:
            refusals.append(error)
        else:
            if strategy.mode == "mmap" and chosen.missing_bytes:
                least = f"others need at least {format_at_least(chosen.missing_bytes)} more"
                placement = placement.because(least)
                warnings.warn(
                    f"memory={loader.options.memory!r} leaves strategy {strategy.name!r} only, "
                    f"the slowest; {least}",
                    UserWarning,
                    stacklevel=5,  # behind the loader's constructor
                )
            return strategy.open(own, replace(placement, predicted=chosen.predicted))
    raise refusals[-1]


def _strategy_of(loader: LoaderSpec) -> Strategy | Auto:
    # Options know strategies only by their traits, since strategies take options.
    return cast("Strategy | Auto", loader.options.strategy)


def _reserved(loader: LoaderSpec, **reasons: str) -> tuple[Strategy, Placement]:
    """Return the strategy, and the places of a store's parts with the strategy's reservations."""
    given, own = _strategy_of(loader), loader.without_second_cache()

    def reserve(placement: Placement) -> tuple[Strategy, Placement]:
        strategy = given
        if isinstance(strategy, Auto):
            strategy = strategy.by_mode[placement.strategy.mode]
        return strategy, strategy.reserve(own, placement)

    if own is loader:
        return first_that_fits(loader, given, reserve, **reasons)
    taken = format_size(loader.taken_bytes(given))
    try:
        strategy, placement = first_that_fits(loader, given, reserve, **reasons)
    except BudgetError as error:
        error.message += (
            f". Of memory=, {taken} are the cache of a loader on the same store, with another "
            "strategy; give both the same, and they share it"
        )
        raise
    note = f"no cache, for {taken} of memory= are that of another strategy"
    return strategy, placement.because(note)
