"""A strategy: it reserves memory for a loader, predicts an epoch, and opens the loader's data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gnnstore.caching.scores import SCORES
from gnnstore.strategies.predict.traits import Mode, StrategyTraits

if TYPE_CHECKING:
    from gnnstore.strategies.loader_spec import LoaderSpec
    from gnnstore.strategies.predict.cost import Prediction
    from gnnstore.strategies.predict.sampled_epoch import SampledEpoch
    from gnnstore.strategies.sizes.placement import Placement
    from gnnstore.strategies.sources import OpenStore


@dataclass(frozen=True)
class Strategy(StrategyTraits, ABC):
    """A way to reach the rows of attributes."""

    summary: str = ""  # description in one line, for --help and the docs
    alias_of: str = ""  # the strategy of which it is a special case
    takes_cache: bool = False  # whether `cache=` may name a score for rows

    @property
    def candidates(self) -> tuple[Strategy, ...]:
        """The strategy with each of the options that predictions compare."""
        scored = [replace(self, score=score) for score in SCORES] if self.caches else [self]
        packed = [replace(self, is_offline=True)] if self.packed_before else []
        return (*scored, *packed)

    @abstractmethod
    def reserve(self, loader: LoaderSpec, placement: Placement) -> Placement:
        """Divide the memory of a loader, by samples of its batches.

        Parameters
        ----------
        placement : Placement
            Where the store's parts lie, with the ledger to which the strategy adds its own
            reservations.

        Raises
        ------
        BudgetError
            If two batches, or the strategy's other memory, do not fit.
        """

    @abstractmethod
    def predict(self, epoch: SampledEpoch, loader: LoaderSpec, placement: Placement) -> Prediction:
        """Predict an epoch, with the memory that `reserve` would give.

        Raises
        ------
        BudgetError
            As in `reserve`.
        """

    @abstractmethod
    def open(self, loader: LoaderSpec, placement: Placement) -> OpenStore:
        """Open a store's parts where they were placed, with the sizes that were reserved."""


@dataclass(frozen=True)
class Auto(StrategyTraits):
    """The choice among strategies that `strategy="auto"` leaves to predictions.

    A cache of other loaders is shared until another strategy is chosen.
    """

    name: str = "auto"
    mode: Mode = "disk"
    caches: bool = True
    strategies: tuple[Strategy, ...] = ()  # in the order in which they are predicted

    @property
    def candidates(self) -> tuple[Strategy, ...]:
        """All candidates for predictions, epochs of `gnnstore pack` included."""
        return tuple(found for strategy in self.strategies for found in strategy.candidates)

    @property
    def loadable(self) -> tuple[Strategy, ...]:
        """Return the candidates among which a loader chooses by predictions."""
        return tuple(s for s in self.candidates if s.mode != "memory" and not s.is_offline)

    @property
    def on_disk(self) -> Auto:
        """The choice among those that do not load everything into memory."""
        return replace(self, strategies=tuple(s for s in self.strategies if s.mode != "memory"))

    @property
    def by_choice(self) -> dict[str, Strategy]:
        """The candidates by name; "static" alone is that of the score `cache=` has by default."""
        found: dict[str, Strategy] = {}
        for candidate in self.candidates:
            found |= {candidate.name: candidate} if candidate.score else {}
            found[candidate.choice] = candidate
        return found

    @property
    def by_mode(self) -> dict[Mode, Strategy]:
        """The strategies that are taken without predictions, by the place of rows."""
        found: dict[Mode, Strategy] = {}
        for strategy in self.strategies:
            if not strategy.alias_of and not strategy.plans:
                found.setdefault(strategy.mode, strategy)
        return found

    def fallback(self, mode: Mode) -> Strategy:
        """Return the candidate that is taken without predictions."""
        # Of scores the last, by which a cache is filled unless `cache=` says otherwise.
        return self.by_mode[mode].candidates[-1]
