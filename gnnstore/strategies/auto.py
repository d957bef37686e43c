"""The strategy that `strategy="auto"` stands for, and the parts of a store that a loader opens.

A store that fits in memory is loaded, and nothing is measured. Otherwise the disk is measured once;
some batches are sampled; and each strategy gets the memory that the budgets would leave it, by the
same rules that divide them later: the prediction is of the epoch that would run.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from gnnstore.disk.measure import disk_profile
from gnnstore.errors import BudgetError, DiskBudgetError, UsageError
from gnnstore.graph.sizes import StoreSizes
from gnnstore.progress import Progress
from gnnstore.strategies.base import Auto, OpenStore, Strategy
from gnnstore.strategies.loader_spec import LoaderSpec, first_that_fits, place_for
from gnnstore.strategies.options import CacheSettings, PlannedSettings, StrategyTraits
from gnnstore.strategies.placement import ASKED_FOR, Placement, has_two_batches
from gnnstore.strategies.prediction import Prediction
from gnnstore.strategies.registry import DIRECT
from gnnstore.strategies.sampled_epoch import SampledEpoch
from gnnstore.units import format_at_least, format_size

if TYPE_CHECKING:
    from gnnstore.strategies.loader_spec import ReadOptions


_log = logging.getLogger(__name__)

# Bytes of rows that are read in less time than measuring and sampling take.
SMALLEST_BYTES = 32 << 20
_RUNNERS_UP = 2


@dataclass(frozen=True, eq=False)
class StrategyOptimizer:
    """Predicts an epoch of one loader by each strategy, and ranks them."""

    loader: LoaderSpec
    epoch: SampledEpoch

    @classmethod
    def for_loader(
        cls, loader: LoaderSpec, placement: Placement, progress: Progress | None = None
    ) -> StrategyOptimizer | None:
        """Measure, and sample; None if there is nothing to sample or to read."""
        epoch = SampledEpoch.of(loader, placement, progress or loader.progress)
        return None if epoch is None else cls(loader, epoch)

    def choice(self, auto: Auto, predictions: list[Prediction]) -> StrategyTraits:
        """Return the strategy that "auto" chooses among all predictions."""
        try:
            placement = place_for(self.loader, auto)
            if placement.strategy.mode == "memory" and placement.budget_is_promise:
                in_memory = placement.ledger, self.epoch.seen.expected_bytes
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
        return [self._predict(strategy, memory) for strategy in candidates]

    def _predict(self, strategy: Strategy, memory: int | None) -> Prediction:
        if strategy.score == "degree" and self.epoch.workload.degree is None:
            problem = "out-degrees were not counted: the graph is large, or not in memory"
            return Prediction.impossible(strategy, problem)
        options = with_candidate(self.loader.options, strategy)
        if memory is not None:
            options = replace(options, memory=memory)
        # Caches that other loaders have of another kind would take a part of the budget.
        loader = replace(self.loader, options=options).without_second_cache()

        def predict(placement: Placement) -> Prediction:
            epoch = self.epoch.sampled_for(loader, placement)
            found = strategy.predict(epoch, loader, placement)
            return replace(found, ids_note=placement.ids_note)

        try:
            return first_that_fits(loader, strategy, predict)
        except UsageError as error:
            return Prediction.impossible(strategy, error)


def is_worth_it(loader: LoaderSpec, placement: Placement) -> bool:
    """Whether reading from disk takes longer than measuring and sampling."""
    if not placement.reads_disk or loader.options.cache is not None:
        return False
    tables = StoreSizes.from_schema(loader.store.schema).tables
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
    why: str = ASKED_FOR  # the reason; see `gnnstore.strategies.placement.place`
    instead_of_static: str = ""  # why "static" is not used; see `place`
    predicted: Prediction | None = None  # the predicted epoch; None without a prediction
    is_last: bool = False  # a mapping, which is taken because the others do not fit


def choices_for(loader: LoaderSpec, auto: Auto) -> Iterator[Chosen]:
    """Yield the choices of "auto", best first: the next one is for when one does not fit."""
    options, optimizer = loader.options, None
    simple = Chosen(replace(options, strategy=auto, planned=None))
    mapped = replace(simple, instead_of_static="strategy 'static' would need more", is_last=True)
    # A mapping has no cache, and maps the topology. It works in the least memory: its pages can be
    # taken back at any time.
    may_map = options.cache is None and options.topology != "disk"
    last = [*_needing_little(options, auto), mapped] if may_map else [simple]
    try:
        # Before an engine is opened, which uses the measurements of the disk.
        if is_worth_it(loader, place_for(loader, auto, staging=False)):
            disk_profile(loader.store.path, loader.progress)
        placement = place_for(loader, auto)
    except BudgetError:
        yield from last
        return
    if is_worth_it(loader, placement):
        optimizer = StrategyOptimizer.for_loader(loader, placement)
    if optimizer is None:
        yield simple
        if placement.strategy.mode == "memory":
            # The whole store fits, but not with two batches: strategies on disk may fit.
            yield from choices_for(loader, auto.on_disk)
        elif may_map:
            yield from last
        return
    optimizer = optimizer.with_degrees()
    predicted = fastest_first(optimizer.predictions(auto.loadable))
    is_last = all(prediction.strategy.mode == "mmap" for prediction in predicted)
    if is_last:
        yield from last[:-1]
        last = last[-1:]
    del optimizer  # frees a sample of 100 MB before a cache is filled
    for i, prediction in enumerate(predicted):
        first = describe_seconds(prediction.first_seconds)
        each = describe_seconds(prediction.seconds)
        more = "" if first == each else f", the first {first}"
        others = _others(prediction, predicted[i + 1 :])
        why = f"it is predicted to take {each} an epoch{more}{others}"
        chosen = with_candidate(options, prediction.strategy)
        yield Chosen(chosen, why, predicted=prediction, is_last=is_last)
    yield from last


def _needing_little(options: ReadOptions, auto: Auto) -> list[Chosen]:
    """Return the choices that need the least memory, but for a mapping: the last that are tried."""
    may_load = "memory" in auto.by_mode and options.topology not in {"mmap", "disk"}
    found = [auto.fallback("memory"), DIRECT] if may_load else [DIRECT]
    why = "the others need more memory"
    return [Chosen(with_candidate(options, strategy), why) for strategy in found]


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


def open_sources(loader: LoaderSpec) -> OpenStore:
    """Decide on the places of a store's parts, and open them."""
    given = loader.options.strategy
    found: list[tuple[OpenStore, str]] = []

    def choose() -> str:
        """Open by the first choice that fits, and return its name, for other ranks."""
        assert isinstance(given, Auto)  # noqa: S101 - for the type checker
        found.append(_open_first(loader, choices_for(loader, given)))
        return found[0][0].placement.strategy.choice

    if not isinstance(given, Auto):
        found.append(_open_first(loader, [Chosen(loader.options)]))
    elif (name := loader.agree(f"strategy by {_said(loader.options)}", choose)) and not found:
        # A name alone is of the strategy itself, and not of that with one of its options.
        known = given.by_choice | {own.choice: own for own in given.strategies}
        options = with_candidate(loader.options, known[name])
        if (cache := loader.options.cache) is not None:
            options = replace(options, cache=cache, planned=None)
        why = "the first rank of this machine chose it"
        try:
            found.append(_open_first(loader, [Chosen(options, why)]))
        except BudgetError as error:
            _log.warning(
                "%s: strategy %r, which the first rank of this machine chose, does not fit here, "
                "and this rank chooses for itself: %s",
                *(loader.store.path, name, str(error)),
            )
            choose()
    opened, warning = found[0]
    loader.check_shared(opened.placement)
    if warning:
        warnings.warn(warning, UserWarning, stacklevel=5)  # behind the loader's constructor
    return opened


def _said(options: ReadOptions) -> str:
    """Return the options that decide on a strategy, by which ranks find who decides alike."""
    return f"memory={options.memory!r}, topology={options.topology!r}, {options.cache}"


def _open_first(loader: LoaderSpec, choices: Iterable[Chosen]) -> tuple[OpenStore, str]:
    """Open by the first choice that fits; return a warning, too, if it is a poor one."""
    own, placement, warning = first_choice(loader, choices)
    own.limit_unshared(placement)
    return cast("Strategy", placement.strategy).open(own, placement), warning


def first_choice(
    loader: LoaderSpec, choices: Iterable[Chosen]
) -> tuple[LoaderSpec, Placement, str]:
    """Return the first choice that fits, its placement, and a warning if it is a poor one."""
    refusals: list[BudgetError] = []
    for chosen in choices:
        own = replace(loader, options=chosen.options)
        try:
            placement = _reserved(own, why=chosen.why, instead_of_static=chosen.instead_of_static)
        except BudgetError as error:
            refusals.append(error)
            continue
        warning = ""
        if chosen.is_last and (least := _least_of_others(refusals)):
            placement = placement.because(least)
            warning = (
                f"memory={loader.options.memory!r} leaves strategy {placement.strategy.name!r} "
                f"only, the slowest; {least}"
            )
        return own, replace(placement, predicted=chosen.predicted), warning
    *others, refusal = refusals
    if chosen.is_last and (least := _least_of_others(others)):
        refusal.message += f"\n- strategy 'mmap' needs the least, and is the slowest; {least}"
    raise refusal


def _least_of_others(refusals: list[BudgetError]) -> str:
    """Return a phrase with the least by which `memory=` is too small for all but a mapping."""
    of_memory = [error for error in refusals if not isinstance(error, DiskBudgetError)]
    missing = min((e.missing_bytes for e in of_memory if e.missing_bytes), default=0)
    return f"others need at least {format_at_least(missing)} more" if missing else ""


def _reserved(loader: LoaderSpec, **reasons: str) -> Placement:
    """Return the places of a store's parts with the reservations of the strategy taken there."""
    given, own = loader.options.strategy, loader.without_second_cache()

    def reserve(placement: Placement) -> Placement:
        # Options have only the traits of strategies, since strategies import options.
        return cast("Strategy", placement.strategy).reserve(own, placement)

    if own is loader:
        return first_that_fits(loader, given, reserve, **reasons)
    taken = format_size(loader.taken_bytes(given))
    try:
        placement = first_that_fits(loader, given, reserve, **reasons)
    except BudgetError as error:
        error.message += (
            f". A loader on the same store has {taken} of memory= for its cache, with another "
            "strategy, cache or attributes; give both the same, and they share it"
        )
        raise
    return placement.because(
        f"no cache, for {taken} of memory= belong to a loader with another strategy, cache or "
        "attributes"
    )
