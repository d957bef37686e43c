"""A strategy as a value: it reserves memory for a loader, predicts an epoch, and opens its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

from gnnstore.strategies.predict import traits
from gnnstore.strategies.predict.traits import Mode, StrategyTraits

if TYPE_CHECKING:
    from gnnstore.strategies.loader_spec import LoaderSpec
    from gnnstore.strategies.predict.cost import Prediction
    from gnnstore.strategies.predict.sampled_epoch import SampledEpoch
    from gnnstore.strategies.sizes.placement import Placement, Placer
    from gnnstore.strategies.sources import OpenStore


class Kind(Protocol):
    """The functions of strategies that work alike: a module, or an object."""

    def reserve(self, loader: LoaderSpec, place: Placer) -> Placement:
        """Reserve memory for a loader; see `Strategy.reserve`."""

    def predict_epoch(
        self,
        candidate: Candidate,
        epoch: SampledEpoch,
        loader: LoaderSpec,
        place: Placer,
        disk_bytes: int,
    ) -> Prediction:
        """Predict an epoch of a loader; see `Strategy.predict`."""

    def open_rows(self, strategy: Strategy, loader: LoaderSpec, placement: Placement) -> OpenStore:
        """Open the sources of a loader's data; see `Strategy.open`."""


@dataclass(frozen=True)
class Strategy(StrategyTraits):
    """A way to reach the rows of attributes.

    Attributes
    ----------
    kind : callable
        Returns the functions that do the work; imports what reads stores no sooner.
    summary : str
        Description in one line, for --help and the docs.
    alias_of : str
        The strategy that it is, but for some options; empty if it stands for itself.
    takes_cache : bool
        Whether `cache=` may say by what score rows are chosen that stay in memory.
    scores : tuple of "degree" and "frequency"
        Scores for such a cache, where predictions differ by them.
    packed_before : str
        Name of the candidate whose epochs `gnnstore pack` packs before training; empty if it
        cannot.
    """

    kind: Callable[[], Kind] = field(kw_only=True, repr=False)
    summary: str = ""
    alias_of: str = ""
    takes_cache: bool = False
    scores: tuple[Literal["degree", "frequency"], ...] = ()
    packed_before: str = ""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The ways to use it that are predicted apart."""
        found = [Candidate(f"{self.name}-{score}", self, score) for score in self.scores]
        found = found or [Candidate(self.name, self)]
        if self.packed_before:
            found.append(Candidate(self.packed_before, self, is_offline=True))
        return tuple(found)

    def reserve(self, loader: LoaderSpec, place: Placer) -> Placement:
        """Divide the memory of a loader, by samples of its batches.

        Parameters
        ----------
        place : callable
            Returns where the store's parts lie with so many more bytes of memory than there are:
            a ledger with their reservations, to which those of the strategy are added.

        Raises
        ------
        BudgetError
            If two batches, or what the strategy needs besides, do not fit.
        """
        return self.kind().reserve(loader, place)

    def predict(
        self,
        candidate: Candidate,
        epoch: SampledEpoch,
        loader: LoaderSpec,
        place: Placer,
        disk_bytes: int,
    ) -> Prediction:
        """Predict an epoch, with the memory that `reserve` would give.

        Parameters
        ----------
        candidate : Candidate
            One of the strategy's.
        loader : LoaderSpec
            With the candidate's options.
        place : callable
            As of `reserve`.
        disk_bytes : int
            Disk space beside the store.

        Raises
        ------
        BudgetError
            As `reserve`.
        """
        return self.kind().predict_epoch(candidate, epoch, loader, place, disk_bytes)

    def open(self, loader: LoaderSpec, placement: Placement) -> OpenStore:
        """Open a store's parts where they were placed, with the sizes that were reserved."""
        return self.kind().open_rows(self, loader, placement)


@dataclass(frozen=True)
class Candidate(traits.Candidate):
    """One way to use a strategy, with the strategy that predicts it."""

    strategy: Strategy


@dataclass(frozen=True)
class Auto(StrategyTraits):
    """The choice among strategies that `strategy="auto"` leaves to predictions.

    A cache of other loaders is shared until something else is chosen.
    """

    name: str = "auto"
    mode: Mode = "disk"
    caches: bool = True
    strategies: tuple[Strategy, ...] = ()  # in the order in which they are predicted

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The ways that there are, those of `gnnstore pack` included."""
        return tuple(found for strategy in self.strategies for found in strategy.candidates)

    @property
    def loadable(self) -> tuple[Candidate, ...]:
        """Return the candidates among which a loader chooses by predictions."""
        return tuple(
            found
            for found in self.candidates
            if found.strategy.mode != "memory" and not found.is_offline
        )

    @property
    def on_disk(self) -> Auto:
        """The choice among those that do not load everything into memory."""
        return replace(self, strategies=tuple(s for s in self.strategies if s.mode != "memory"))

    def candidate(self, name: str) -> Candidate:
        """Return the candidate of that name."""
        return next(found for found in self.candidates if found.name == name)

    @property
    def by_mode(self) -> dict[Mode, Strategy]:
        """The strategies that are taken without predictions, by where rows are to lie."""
        found: dict[Mode, Strategy] = {}
        for strategy in self.strategies:
            if not strategy.alias_of and not strategy.plans:
                found.setdefault(strategy.mode, strategy)
        return found

    def fallback(self, mode: Mode) -> Candidate:
        """Return the candidate that is taken without predictions."""
        # Of scores the last, by which a cache is filled unless `cache=` says otherwise.
        return self.by_mode[mode].candidates[-1]
