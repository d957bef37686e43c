"""Predicts an epoch by each strategy, and chooses the one that `strategy="auto"` stands for.

A store that fits in memory is loaded, and nothing is measured. Else the disk is measured, unless it
was; some batches are sampled; and each strategy is given what the budgets would leave it, by the
same rules that divide them later: what is predicted is what would run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gnnstore._core import release_memory
from gnnstore.caching.policies.base import CachePolicy
from gnnstore.caching.policies.registry import POLICIES
from gnnstore.caching.policies.settings import PlannedSettings
from gnnstore.caching.scores import SCORE_DTYPES, CacheSettings
from gnnstore.disk.profile.first_use import disk_profile
from gnnstore.errors import BudgetError, UsageError
from gnnstore.features.memory import MAX_FAULT_THREADS, MIN_ROWS_PER_FAULT_THREAD
from gnnstore.features.tiers.static import cache_cost
from gnnstore.graph.sizes import StoreSizes
from gnnstore.pipeline.margins import MANY_BATCHES, expected_bytes
from gnnstore.pipeline.superbatch_size import SuperbatchSize
from gnnstore.planning.calibrate import gather_bandwidth
from gnnstore.planning.cost_model import Machine, Prediction, Resources, predict
from gnnstore.planning.traits import Candidate
from gnnstore.planning.workload import Workload
from gnnstore.progress import NullProgress, Progress
from gnnstore.strategies.base import Auto
from gnnstore.strategies.placing import Placer, first_that_fits, place_for
from gnnstore.strategies.sampling_run import out_degrees, reads_of, sample_workload
from gnnstore.strategies.sizes.lookahead import LookaheadSizer, Misses
from gnnstore.strategies.sizes.placement import ASKED_FOR, Placement
from gnnstore.strategies.sizes.prefetch import check_two_batches, has_two_batches
from gnnstore.strategies.static import cache_rows

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.graph.topology import Topology
    from gnnstore.pipeline.lookahead.presample import Presampled
    from gnnstore.strategies.loader_spec import LoaderSpec, ReadOptions

# Rows of so many bytes in all are read in less time than measuring and sampling takes.
SMALLEST_BYTES = 32 << 20
_LEAST_SPARE_BYTES = 1 << 20
_WORTH_COUNTING = 2
_RUNNERS_UP = 2


@dataclass(frozen=True, eq=False)
class StrategyOptimizer:
    """What predictions for one loader go by.

    Attributes
    ----------
    loader : LoaderSpec
    engine : Engine
    specs : tuple of AttributeSpec
        Node attributes that are read from disk.
    structure : Topology
        That was sampled from.
    seen : Presampled
        The largest of some batches.
    workload : Workload
    machine : Machine
    disk_bytes : int
        That may be taken beside the store.
    spare_bytes : int
        Of the memory budget, beside what is held, other loaders' caches too.
    many_seen : list of Presampled
        More batches, once they have been needed.
    """

    loader: LoaderSpec
    engine: Engine
    specs: tuple[AttributeSpec, ...]
    structure: Topology
    seen: Presampled
    workload: Workload
    machine: Machine
    disk_bytes: int
    spare_bytes: int
    many_seen: list[Presampled] = field(default_factory=list)

    @classmethod
    def of(
        cls, loader: LoaderSpec, placement: Placement, progress: Progress | None = None
    ) -> StrategyOptimizer | None:
        """Measure, and sample; None if there is nothing to sample or to read.

        Parameters
        ----------
        placement : Placement
            By a strategy that reads from disk.
        """
        engine, specs = loader.open_engine(), loader.node_specs(placement)
        if engine is None or not specs or not len(loader.presampler.seeds):
            return None
        progress = progress or NullProgress()
        disk = disk_profile(loader.store.path, progress)
        num_threads = max(1, placement.staging_bytes // engine.staging_bytes)
        structure = loader.structure(placement, engine)
        # A cache that is shared later stays where it is while this is found out.
        spare = max(_LEAST_SPARE_BYTES, placement.left_bytes - loader.shared_cache_bytes())
        seen, workload = sample_workload(
            loader,
            structure,
            reads_of(loader, specs, engine),
            num_threads=num_threads,
            spare_bytes=spare if placement.budget_is_promise else None,
            progress=progress,
        )
        rate = gather_bandwidth(
            sum(spec.num_bytes // max(1, spec.num_rows) for spec in specs), spare
        )
        release_memory()
        num_cores = len(os.sched_getaffinity(0))
        faulting = int(workload.batch_rows) // MIN_ROWS_PER_FAULT_THREAD
        num_faulting = num_threads * max(1, min(MAX_FAULT_THREADS, faulting))
        return cls(
            loader=loader,
            engine=engine,
            specs=specs,
            structure=structure,
            seen=seen,
            workload=workload,
            machine=Machine(disk, rate, num_threads, num_cores, num_faulting),
            disk_bytes=loader.disk_bytes(),
            spare_bytes=spare,
        )

    @property
    def total_bytes(self) -> int:
        """What the store takes in memory."""
        return StoreSizes.of(self.loader.store.schema).total_bytes

    def ranked(self, candidates: Sequence[Candidate]) -> list[Prediction]:
        """Return what a loader may choose, the fastest first."""
        found = fastest_first(self.predictions(candidates))
        by_frequency = [p.cost for p in found if p.candidate.score == "frequency"]
        # Another score has never halved the misses; counting degrees takes seconds.
        if by_frequency and by_frequency[0] < _WORTH_COUNTING * found[0].cost:
            return fastest_first(self.with_degrees().predictions(candidates))
        return found

    def _see_many(self) -> Presampled:
        """Return batches enough to tell by what others may exceed them, sampled once if need be."""
        if self.seen.num_batches >= MANY_BATCHES:
            return self.seen
        if not self.many_seen:
            found = self.loader.presampler.run(
                self.structure, 1, spare_bytes=self.spare_bytes, num_batches=MANY_BATCHES
            )
            release_memory()
            self.many_seen.append(found)
        return self.many_seen[0]

    def choice(self, auto: Auto, predictions: list[Prediction]) -> Candidate:
        """Return which of all predictions "auto" goes by."""
        try:
            placement = place_for(self.loader, auto)
            if placement.strategy.mode == "memory" and placement.budget_is_promise:
                in_memory = placement.ledger, self.seen.largest_bytes
                if not has_two_batches(*in_memory):
                    auto = auto.on_disk
                    placement = place_for(self.loader, auto)
        except BudgetError:
            return auto.fallback("mmap")
        if not placement.reads_disk or not is_worth_it(self.loader, placement):
            return auto.fallback(placement.strategy.mode)
        own = [p for p in predictions if p.candidate in auto.loadable]
        return next((p.candidate for p in fastest_first(own)), auto.fallback("mmap"))

    def with_degrees(self) -> StrategyOptimizer:
        """Return the optimizer with a cache by out-degree among what can be predicted."""
        # A cache by degree takes as much while it is made, and as much again is for what is here.
        degrees = out_degrees(self.structure, self.spare_bytes // 2)
        if degrees is None:
            return self
        return replace(self, workload=self.workload.with_degrees(degrees))

    def predictions(
        self,
        candidates: Sequence[Candidate],
        *,
        memory: int | str | None = None,
        disk_bytes: int | None = None,
    ) -> list[Prediction]:
        """Predict an epoch by each of some strategies.

        Parameters
        ----------
        candidates : sequence of Candidate
        memory, disk_bytes : int, optional
            Budgets; by default the loader's own.
        """
        disk = self.disk_bytes if disk_bytes is None else disk_bytes
        found = []
        for candidate in candidates:
            if candidate.score == "degree" and self.workload.degree is None:
                problem = "out-degrees were not counted: the graph is large, or not in memory"
                found.append(Prediction.impossible(candidate, problem))
                continue
            try:
                resources = self._resources(candidate, memory, disk)
            except (BudgetError, UsageError) as error:
                found.append(Prediction.impossible(candidate, str(error)))
            else:
                found.append(predict(candidate, self.workload, self.machine, resources))
        return found

    def _resources(
        self, candidate: Candidate, memory: int | str | None, disk_bytes: int
    ) -> Resources:
        """Return what a strategy would have.

        Raises
        ------
        BudgetError
            If that is too little.
        """
        options = with_candidate(self.loader.options, candidate)
        if memory is not None:
            options = replace(options, memory=memory)
        # Beside another kind of cache there is none; all cost what they take of the budget.
        loader = replace(self.loader, options=options).without_second_cache()
        return first_that_fits(
            loader,
            candidate.strategy,
            lambda placed: self._divided(candidate, loader, placed, disk_bytes),
        )

    def _divided(
        self, candidate: Candidate, loader: LoaderSpec, placed: Placer, disk_bytes: int
    ) -> Resources:
        """Return what a strategy would have, with a store's parts placed in some way."""
        strategy, placement = candidate.strategy, placed(0)
        batch_bytes = 0
        if placement.budget_is_promise and not strategy.plans:
            batch_bytes = self.seen.largest_bytes
            batch_bytes = expected_bytes(batch_bytes) if strategy.reads_disk else batch_bytes
            check_two_batches(placement.ledger, batch_bytes)
        if strategy.mode == "memory":
            return Resources(placement.resident_bytes)
        if strategy.mode == "mmap":
            # A mapping has what the budget leaves for pages, although they are not counted.
            page_cache = max(0, placement.left_bytes - 2 * self.seen.largest_bytes)
            return Resources(placement.resident_bytes, cached_bytes=page_cache)
        held = placement.resident_bytes + placement.staging_bytes
        if not strategy.plans:
            if candidate.score is None:
                return Resources(held)
            settings = loader.options.cache or CacheSettings()
            cost = cache_cost(self.workload.num_rows, self.workload.row_bytes, settings.score)
            scores = self.workload.num_rows * SCORE_DTYPES[settings.score]().itemsize
            num_rows = 0
            if scores <= placement.left_bytes:
                num_rows = cache_rows(
                    placement, settings, cost, batch_bytes, self.machine.num_threads
                )
            taken = cost.bytes_of(num_rows)
            return Resources(held + taken, num_rows, num_rows * self.workload.row_bytes)
        structure, specs = self.structure, {spec.path for spec in self.specs}
        read = {path for path, mode in placement.modes.items() if mode == "disk"}
        work = self.workload
        misses = EstimatedMisses(work, POLICIES[strategy.policy])
        found = LookaheadSizer(
            placed=placed,
            seen=self.seen,
            see_many=self._see_many,
            misses=lambda *_: misses,
            strategy=strategy,
            settings=loader.options.planned or PlannedSettings(),
            num_rows=work.num_rows,
            row_bytes=work.row_bytes,
            epoch_batches=work.epoch_batches,
            num_threads=self.machine.num_threads,
            may_use_fewer=loader.may_use_fewer,
            staging_bytes=self.engine.staging_bytes,
            reads_neighbors=structure.is_read,
            reads_more=bool(read - specs),
            disk_bytes=disk_bytes,
            packed_bytes=misses.packed_bytes if candidate.is_offline else None,
        ).choose()
        size, disk, placement = found.size, found.disk_bytes, found.placement
        held = placement.resident_bytes + placement.staging_bytes
        return Resources(
            held + size.num_bytes,
            size.num_slots,
            size.num_slots * self.workload.row_bytes,
            size.num_batches,
            size.in_memory and size.plans_in_memory,
            disk,
            overlaps=size.overlaps,
            num_threads=found.num_threads,
        )


@dataclass(frozen=True)
class EstimatedMisses:
    """Misses of an epoch, from how often a sample needs rows again."""

    workload: Workload
    policy: CachePolicy

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return self.workload.epoch_batches

    @property
    def compares(self) -> bool:
        """Whether sizes of superbatches can be compared: any can."""
        return True

    def first(self, size: SuperbatchSize) -> Misses:
        """Return the misses of an epoch."""
        work, misses = self.workload, self.later(size)
        accesses = int(work.batch_rows * work.epoch_batches)
        each = int(misses / work.epoch_batches)
        return Misses(misses, int(misses), accesses, each, each)

    def later(self, size: SuperbatchSize) -> float:
        """Return the rows that an epoch misses."""
        return self.workload.misses(self.policy, size.num_slots, size.num_batches)

    def packed_bytes(self, size: SuperbatchSize) -> int:
        """Return the disk space of an epoch's records and packed rows, planned from no cache."""
        work = self.workload
        sizes = (size.num_slots, size.num_batches)
        misses = work.misses(self.policy, *sizes, initial="nothing")
        return int(misses * work.row_bytes + work.ids_bytes * work.epoch_batches)


def is_worth_it(loader: LoaderSpec, placement: Placement) -> bool:
    """Whether what is read from disk takes longer than measuring and sampling."""
    if not placement.reads_disk or loader.options.cache is not None:
        return False
    tables = StoreSizes.of(loader.store.schema).tables
    read = [t for t in tables if t.of_nodes and placement.modes[t.path] == "disk"]
    return sum(table.num_bytes for table in read) >= SMALLEST_BYTES


def fastest_first(predictions: list[Prediction]) -> list[Prediction]:
    """Return those that can be, in the order in which they are tried."""
    return sorted((p for p in predictions if p.is_feasible), key=lambda p: p.cost)


def with_candidate(options: ReadOptions, candidate: Candidate) -> ReadOptions:
    """Return the options that a user who wants this very thing would have given."""
    strategy = candidate.strategy
    if strategy.plans:
        return replace(options, strategy=strategy, planned=options.planned or PlannedSettings())
    cache = None if candidate.score is None else CacheSettings(candidate.score)
    engine = options.io_engine if strategy.reads_disk else None
    return replace(options, strategy=strategy, cache=cache, planned=None, io_engine=engine)


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


def choices_for(loader: LoaderSpec, auto: Auto) -> Iterator[Chosen]:
    """Yield what "auto" takes, and what it takes where that proves not to fit, best first.

    Raises
    ------
    BudgetError
        If nothing can be read within the budget.
    """
    options = loader.options
    simple = Chosen(replace(options, strategy=auto, planned=None))
    mapped = replace(simple, instead_of_static="strategy 'static' would need more")
    try:
        # Before an engine is opened, which reads as the disk's measurements say.
        if is_worth_it(loader, place_for(loader, auto, staging=False)):
            disk_profile(loader.store.path)
        placement = place_for(loader, auto)
    except BudgetError:
        if options.cache is not None:
            raise
        # A mapping works in the least memory: its pages can be taken back at any time.
        yield mapped
        return
    optimizer = None
    if is_worth_it(loader, placement):
        optimizer = StrategyOptimizer.of(loader, placement)
    if optimizer is None:
        yield simple
        if placement.strategy.mode == "memory":
            # All of it fits, but not beside two batches: what reads it may.
            yield from choices_for(loader, auto.on_disk)
        elif options.cache is None:
            yield mapped
        return
    predicted = optimizer.ranked(auto.loadable)
    del optimizer  # a sample of 100 MB, before a cache is filled
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
