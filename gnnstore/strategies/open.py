"""Opens the data of a loader by its strategy, or by the one that "auto" chooses."""

from __future__ import annotations

from dataclasses import replace

from gnnstore.errors import BudgetError
from gnnstore.strategies.base import Auto
from gnnstore.strategies.builtin import STRATEGIES
from gnnstore.strategies.loader_spec import LoaderSpec
from gnnstore.strategies.optimizer import choices_for
from gnnstore.strategies.sizes.placement import Placement, Placer
from gnnstore.strategies.sizes.placing import first_that_fits
from gnnstore.strategies.sources import DataSources
from gnnstore.units import format_size


def open_sources(loader: LoaderSpec) -> DataSources:
    """Decide where a store's parts lie, and open them there.

    Raises
    ------
    UsageError
        If options contradict one another, or an engine is not available.
    BudgetError
        If the budget is too small for what must be held and two batches.
    StorageError, CorruptStoreError
        If the store cannot be read.
    """
    strategy = loader.options.strategy
    if not isinstance(strategy, Auto):
        return _open(loader, _reserved(loader))
    refusals: list[BudgetError] = []
    for chosen in choices_for(loader, strategy):
        own = replace(loader, options=chosen.options)
        try:
            placement = _reserved(own, why=chosen.why, instead_of_static=chosen.instead_of_static)
        except BudgetError as error:
            refusals.append(error)
        else:
            return _open(own, replace(placement, predicted=chosen.predicted))
    raise refusals[-1]


def _open(loader: LoaderSpec, placement: Placement) -> DataSources:
    return STRATEGIES[placement.strategy.name].open(loader, placement)


def _reserved(loader: LoaderSpec, **reasons: str) -> Placement:
    """Return where a store's parts lie, with what the strategy reserves beside them."""
    strategy, own = loader.options.strategy, loader.without_second_cache()

    def reserve(place: Placer) -> Placement:
        return STRATEGIES[place(0).strategy.name].reserve(own, place)

    if own is loader:
        return first_that_fits(loader, strategy, reserve, **reasons)
    taken = format_size(loader.taken_bytes(strategy))
    try:
        placement = first_that_fits(loader, strategy, reserve, **reasons)
    except BudgetError as error:
        error.message += (
            f". Of memory=, {taken} are the cache of a loader on the same store, with another "
            "strategy; give both the same, and they share it"
        )
        raise
    return placement.because(f"no cache, for {taken} of memory= are that of another strategy")
