"""Predicts an epoch by each strategy, and chooses the one that `strategy="auto"` stands for.

A store that fits in memory is loaded, and nothing is measured. Otherwise the disk is measured once;
some batches are sampled; and each strategy gets the memory that the budgets would leave it, by the
same rules that divide them later: the prediction is of the epoch that would run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gnnstore.disk.measure import disk_profile
from gnnstore.errors import BudgetError, UsageError
from gnnstore.graph.sizes import StoreSizes
from gnnstore.progress import Progress
from gnnstore.strategies.base import Auto, Strategy
from gnnstore.strategies.predict.cost import Prediction
from gnnstore.strategies.predict.sampled_epoch import SampledEpoch
from gnnstore.strategies.predict.traits import StrategyTraits
from gnnstore.strategies.sizes.placement import ASKED_FOR, Placement
from gnnstore.strategies.sizes.placing import first_that_fits, place_for
from gnnstore.strategies.sizes.prefetch import has_two_batches
from gnnstore.strategies.sizes.settings import CacheSettings, PlannedSettings

if TYPE_CHECKING:
    from gnnstore.strategies.loader_spec import LoaderSpec, ReadOptions

# Rows of this many bytes are read in less time than measuring and sampling take.
SMALLEST_BYTES = 32 << 20
_RUNNERS_UP = 2


@dataclass(frozen=True, eq=False)
class StrategyOptimizer:
    """Predicts an epoch of one loader by each strategy, and ranks them."""

    loader: LoaderSpec
    epoch: SampledEpoch

    @classmethod
    def of(
        cls, loader: LoaderSpec, placement: Placement, progress: Progress | None = None
    ) -> StrategyOptimizer | None:
        """Measure, and sample; None if there is nothing to sample or to read."""
        epoch = SampledEpoch.of(loader, placement, progress or loader.progress)
        return None if epoch is None else cls(loader, epoch)

    @property
    def total_bytes(self) -> int:
        """Memory of the store's tables and topology."""
        return StoreSizes.of(self.loader.store.schema).total_bytes

    def choice(self, auto: Auto, predictions: list[Prediction]) -> StrategyTraits:
        """Return the strategy that "auto" chooses among all predictions."""
        try:
            placement = place_for(self.loader, auto)
            if placement.strategy.mode == "memory" and placement.budget_is_promise:
                in_memory = placement.ledger, self.epoch.seen.largest_bytes
                if not has_two_batches(*in_memory):
                    auto = auto.on_disk
                    placement = place_for(self.loader, auto)
        except BudgetError:
            return auto.fallback("mmap")
        if not placement.reads_disk or not is_worth_it(self.loader, placement):
            return auto.fallback(placement.strategy.mode)
        own = [p for p in predictions if p.strategy in auto.loadable]
        return next((p.strategy for p in fastest_first(own)), auto.fallback("mmap"))

    def with_degrees(self) -> StrategyOptimizer:
        """Return the optimizer with a cache by out-degree among the predictions."""
        return replace(self, epoch=self.epoch.with_degrees())

    def predictions(
        self, candidates: Sequence[Strategy], *, memory: int | None = None
    ) -> list[Prediction]:
        """Predict an epoch by each of some strategies."""
        found = []
        for strategy in candidates:
            if strategy.score == "degree" and self.epoch.workload.degree is None:
                problem = "out-degrees were not counted: the graph is large, or not in memory"
                found.append(Prediction.impossible(strategy, problem))
                continue
            try:
                found.append(self._predict(strategy, memory))
            except UsageError as error:
                missing = getattr(error, "missing_bytes", None)
                found.append(Prediction.impossible(strategy, str(error), missing))
        return found

    def _predict(self, strategy: Strategy, memory: int | None) -> Prediction:
        """Predict an epoch by one strategy."""
        options = with_candidate(self.loader.options, strategy)
        if memory is not None:
            options = replace(options, memory=memory)
        # Caches that other loaders have of another kind would take a part of the budget.
        loader = replace(self.loader, options=options).without_second_cache()

        def predict(placement: Placement) -> Prediction:
            epoch = self.epoch.sampled_for(loader, placement)
            found = strategy.predict(epoch, loader, placement)
            return replace(found, ids_note=placement.ids_note)

        return first_that_fits(loader, strategy, predict)


def is_worth_it(loader: LoaderSpec, placement: Placement) -> bool:
    """Whether reading from disk takes longer than measuring and sampling."""
    if not placement.reads_disk or loader.options.cache is not None:
        return False
    tables = StoreSizes.of(loader.store.schema).tables
    read = [t for t in tables if t.of_nodes and placement.modes[t.path] == "disk"]
    return sum(table.num_bytes for table in read) >= SMALLEST_BYTES


def fastest_first(predictions: list[Prediction]) -> list[Prediction]:
    """Return the feasible predictions, in the order in which they are tried."""
    return sorted((p for p in predictions if p.is_feasible), key=lambda p: p.cost)


def with_candidate(options: ReadOptions, strategy: StrategyTraits) -> ReadOptions:
    """Return the options of a user who asks for exactly this strategy."""
    if strategy.plans:
        return replace(options, strategy=strategy, planned=options.planned or PlannedSettings())
    cache = None if strategy.score is None else CacheSettings(strategy.score)
    engine = options.io_engine if strategy.reads_disk else None
    return replace(options, strategy=strategy, cache=cache, planned=None, io_engine=engine)


@dataclass(frozen=True)
class Chosen:
    """A strategy that "auto" may take."""

    options: ReadOptions  # with the strategy in place of "auto"
    why: str = ASKED_FOR  # the reason; see `gnnstore.strategies.sizes.placement.place`
    instead_of_static: str = ""  # why "static" is not used; see `place`
    predicted: Prediction | None = None  # the predicted epoch; None without a prediction
    missing_bytes: int | None = None  # by which memory= is too small for all but a mapping


def choices_for(loader: LoaderSpec, auto: Auto) -> Iterator[Chosen]:
    """Yield the choices of "auto", best first: the next one is for when one does not fit."""
    options = loader.options
    simple = Chosen(replace(options, strategy=auto, planned=None))
    mapped = replace(simple, instead_of_static="strategy 'static' would need more")
    # A mapping has no cache, and maps the topology.
    may_map = options.cache is None and options.topology != "disk"
    try:
        # Before an engine is opened, which uses the measurements of the disk.
        if is_worth_it(loader, place_for(loader, auto, staging=False)):
            disk_profile(loader.store.path, loader.progress)
        placement = place_for(loader, auto)
    except BudgetError as error:
        if not may_map:
            raise
        # A mapping works in the least memory: its pages can be taken back at any time.
        yield replace(mapped, missing_bytes=error.missing_bytes)
        return
    optimizer = None
    if is_worth_it(loader, placement):
        optimizer = StrategyOptimizer.of(loader, placement)
    if optimizer is None:
        yield simple
        if placement.strategy.mode == "memory":
            # The whole store fits, but not with two batches: strategies on disk may fit.
            yield from choices_for(loader, auto.on_disk)
        elif may_map:
            yield mapped
        return
    optimizer = optimizer.with_degrees()
    predicted = fastest_first(optimizer.predictions(auto.loadable))
    missing = None
    if all(prediction.strategy.mode == "mmap" for prediction in predicted):
        # Those that plan are refused by the first of several checks.
        refused = optimizer.predictions([s for s in auto.loadable if not s.plans])
        missing = min((p.missing_bytes for p in refused if p.missing_bytes), default=None)
    del optimizer  # frees a sample of 100 MB before a cache is filled
    for i, prediction in enumerate(predicted):
        others = _others(prediction, predicted[i + 1 :])
        first = describe_seconds(prediction.first_seconds)
        each = describe_seconds(prediction.seconds)
        more = "" if first == each else f", the first {first}"
        why = f"it is predicted to take {each} an epoch{more}{others}"
        chosen = with_candidate(options, prediction.strategy)
        yield Chosen(chosen, why, predicted=prediction, missing_bytes=missing)
    yield replace(mapped, missing_bytes=missing) if may_map else simple


def _others(chosen: Prediction, slower: list[Prediction]) -> str:
    """Return a phrase with the times of the next best other strategies."""
    named: dict[str, float] = {}
    for prediction in slower:
        name = prediction.strategy.name
        if name != chosen.strategy.name:
            named.setdefault(name, prediction.seconds)
    words = [f"{name} {describe_seconds(s)}" for name, s in list(named.items())[:_RUNNERS_UP]]
    return f" ({', '.join(words)})" if words else ""


def describe_seconds(seconds: float) -> str:
    """Return seconds as a phrase, to two digits."""
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:,.0f} s"
