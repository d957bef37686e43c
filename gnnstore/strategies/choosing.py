"""Which strategy `strategy="auto"` takes: what is predicted to be fastest within the budgets.

A store that fits in memory is loaded, and nothing is measured. Else the disk is measured, unless it
was; some batches are sampled; and each strategy is given what the budgets would leave it, by the
same rules that divide them later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gnnstore.disk.profile.first_use import disk_profile
from gnnstore.errors import BudgetError
from gnnstore.planning.cost_model import Prediction
from gnnstore.strategies.optimizer import (
    Situation,
    is_worth_it,
    place_for,
    with_candidate,
)
from gnnstore.strategies.sizes.placement import ASKED_FOR

if TYPE_CHECKING:
    from gnnstore.strategies.base import Auto
    from gnnstore.strategies.request import ReadOptions, ReadRequest

_RUNNERS_UP = 2


@dataclass(frozen=True)
class Chosen:
    """A strategy that "auto" may take.

    Attributes
    ----------
    options : ReadOptions
        With the strategy in place of "auto".
    why, instead_of_static : str
        See `gnnstore.strategies.sizes.placement.place`.
    seconds : float or None
        Predicted of an epoch; None where nothing was.
    """

    options: ReadOptions
    why: str = ASKED_FOR
    instead_of_static: str = ""
    seconds: float | None = None


def choices_for(request: ReadRequest, auto: Auto) -> Iterator[Chosen]:
    """Yield what "auto" takes, and what it takes where that proves not to fit, best first.

    Raises
    ------
    BudgetError
        If nothing can be read within the budget.
    """
    options = request.options
    simple = Chosen(replace(options, strategy=auto, planned=None))
    mapped = replace(simple, instead_of_static="strategy 'static' would need more")
    try:
        # Before an engine is opened, which reads as the disk's measurements say.
        if is_worth_it(request, place_for(request, auto, staging=False)):
            disk_profile(request.store.path)
        placement = place_for(request, auto)
    except BudgetError:
        if options.cache is not None:
            raise
        # A mapping works in the least memory: its pages can be taken back at any time.
        yield mapped
        return
    situation = None
    if is_worth_it(request, placement):
        situation = Situation.of(request, placement)
    if situation is None:
        yield simple
        if placement.strategy.mode == "memory":
            # All of it fits, but not beside two batches: what reads it may.
            yield from choices_for(request, auto.on_disk)
        elif options.cache is None:
            yield mapped
        return
    predicted = situation.ranked(auto.loadable)
    del situation  # a sample of 100 MB, before a cache is filled
    for i, prediction in enumerate(predicted):
        others = _others(prediction, predicted[i + 1 :])
        why = f"it is predicted to take {describe_seconds(prediction.seconds)} an epoch{others}"
        chosen = with_candidate(options, prediction.candidate)
        yield Chosen(chosen, why, seconds=prediction.seconds)
    yield mapped


def _others(chosen: Prediction, slower: list[Prediction]) -> str:
    """Return what those of other strategies would take that come next."""
    named: dict[str, float] = {}
    for prediction in slower:
        name = prediction.candidate.strategy.name
        if name != chosen.candidate.strategy.name:
            named.setdefault(name, prediction.seconds)
    words = [f"{name} {describe_seconds(s)}" for name, s in list(named.items())[:_RUNNERS_UP]]
    return f" ({', '.join(words)})" if words else ""


def describe_seconds(seconds: float) -> str:
    """Return seconds in words, to two digits."""
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:,.0f} s"
