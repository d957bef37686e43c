"""What is known of a loader before it is made: enough to predict an epoch by each strategy.

Each strategy is given what the budgets would leave it, by the rules that divide them in
`planned_sizing` and `caching`, so that what is predicted is what would run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gnnstore.budget.limits import MemoryBudget
from gnnstore.caching.policies.base import CachePolicy
from gnnstore.caching.policies.registry import POLICIES
from gnnstore.caching.policies.settings import PlannedSettings
from gnnstore.caching.scores import SCORE_DTYPES, CacheSettings
from gnnstore.disk.buffers import release
from gnnstore.disk.profile.first_use import disk_profile
from gnnstore.errors import BudgetError, DiskBudgetError, UsageError
from gnnstore.features.memory import MAX_FAULT_THREADS, MIN_ROWS_PER_FAULT_THREAD
from gnnstore.features.tiers.static import cache_cost
from gnnstore.graph.shared import shared_tables
from gnnstore.graph.sizes import StoreSizes
from gnnstore.pipeline.margins import MANY_BATCHES, expected_bytes
from gnnstore.pipeline.superbatch_size import SuperbatchSize
from gnnstore.planning.calibrate import gather_bandwidth
from gnnstore.planning.cost_model import Machine, Prediction, Resources, predict
from gnnstore.planning.traits import Candidate, StrategyTraits
from gnnstore.planning.workload import Workload
from gnnstore.progress import NullProgress, Progress
from gnnstore.strategies.base import Auto
from gnnstore.strategies.sampling_run import out_degrees, reads_of, sample_workload
from gnnstore.strategies.sizes.lookahead import LookaheadSizer, Misses
from gnnstore.strategies.sizes.placement import Placement, place
from gnnstore.strategies.sizes.prefetch import check_two_batches, has_two_batches
from gnnstore.strategies.static import cache_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gnnstore.disk.engines import Engine
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.graph.topology import Topology
    from gnnstore.pipeline.lookahead.presample import Presampled
    from gnnstore.strategies.request import ReadOptions, ReadRequest

T = TypeVar("T")
# Returns where a store's parts lie with so many more bytes of memory than there are.
Placer = Callable[[int], Placement]

# Rows of so many bytes in all are read in less time than measuring and sampling takes.
SMALLEST_BYTES = 32 << 20
_LEAST_SPARE_BYTES = 1 << 20
_WORTH_COUNTING = 2


def place_for(
    request: ReadRequest, strategy: StrategyTraits | Auto, *, staging: bool = True
) -> Placement:
    """Return where a strategy has the store's parts lie, if the budget has room for the rest.

    Parameters
    ----------
    staging : bool
        Whether an engine is opened to ask what it needs; else nothing is counted for it.

    Raises
    ------
    UsageError, BudgetError
        As `place`.
    """
    return next(_placers(request, strategy, staging=staging))(0)


def first_that_fits(
    request: ReadRequest,
    strategy: StrategyTraits | Auto,
    divide: Callable[[Placer], T],
    **reasons: Any,
) -> T:
    """Return what comes of the first placement of a store's parts that leaves enough to the rest.

    What may be in memory or elsewhere is held there only as long as the rest fits: so more memory
    never gives less.

    Parameters
    ----------
    divide : callable
        Divides what a placement leaves; raises BudgetError if that is too little.
    reasons : str
        See `gnnstore.strategies.sizes.placement.place`.

    Raises
    ------
    UsageError, BudgetError
        As `place` and `divide`: the refusal that asks for the least.
    """
    tried, refusals = [], []
    for placed in _placers(request, strategy, **reasons):
        try:
            placement = placed(0)
            if (way := (placement.topology, placement.resident_bytes)) not in tried:
                tried.append(way)
                return divide(placed)
        except DiskBudgetError:
            raise
        except BudgetError as error:
            refusals.append(error)
            if tried and placement.strategy.mode == "memory":
                break
    raise min(refusals, key=lambda error: error.missing_bytes or math.inf) from None


def _placers(
    request: ReadRequest, strategy: StrategyTraits | Auto, *, staging: bool = True, **reasons: Any
) -> Iterator[Placer]:
    """Yield callables that place a store's parts, given more bytes of memory than there are.

    The first as a loader would have them; others with less and less in memory.
    """
    options, shared = request.options, shared_tables(request.store)
    placed = partial(
        place,
        StoreSizes.of(request.store.schema),
        # What is free is looked at once.
        MemoryBudget.of(options.memory, shared.resident_bytes - shared.cached_bytes),
        strategy=strategy.by_mode if isinstance(strategy, Auto) else strategy,
        seeds_bytes=request.seeds_bytes,
        cached_bytes=shared.cached_bytes,
        taken_bytes=request.taken_bytes(strategy),
        shared_tables=shared.tables_in_memory,
        staging_bytes=request.staging_bytes if staging else lambda _: 0,
        **reasons,
    )
    topology = options.topology
    yield lambda more: placed(more_bytes=more, topology=topology)
    if not isinstance(strategy, Auto) and strategy.mode == "memory":
        return
    frugal = partial(placed, is_frugal=True)
    if topology != "auto":
        yield lambda more: frugal(more_bytes=more, topology=topology)
        return
    if isinstance(strategy, Auto) or strategy.reads_disk:
        yield lambda more: frugal(more_bytes=more, topology="disk")
    yield lambda more: frugal(more_bytes=more, topology="mmap")


@dataclass(frozen=True, eq=False)
class Situation:
    """What predictions for one loader go by.

    Attributes
    ----------
    request : ReadRequest
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

    request: ReadRequest
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
        cls, request: ReadRequest, placement: Placement, progress: Progress | None = None
    ) -> Situation | None:
        """Measure, and sample; None if there is nothing to sample or to read.

        Parameters
        ----------
        placement : Placement
            By a strategy that reads from disk.
        """
        engine, specs = request.open_engine(), request.node_specs(placement)
        if engine is None or not specs or not len(request.presampler.seeds):
            return None
        progress = progress or NullProgress()
        disk = disk_profile(request.store.path, progress)
        num_threads = max(1, placement.staging_bytes // engine.staging_bytes)
        structure = request.structure(placement, engine)
        # A cache that is shared later stays where it is while this is found out.
        spare = max(_LEAST_SPARE_BYTES, placement.left_bytes - request.shared_cache_bytes())
        seen, workload = sample_workload(
            request,
            structure,
            reads_of(request, specs, engine),
            num_threads=num_threads,
            spare_bytes=spare if placement.budget_is_promise else None,
            progress=progress,
        )
        rate = gather_bandwidth(
            sum(spec.num_bytes // max(1, spec.num_rows) for spec in specs), spare
        )
        release()
        num_cores = len(os.sched_getaffinity(0))
        faulting = int(workload.batch_rows) // MIN_ROWS_PER_FAULT_THREAD
        num_faulting = num_threads * max(1, min(MAX_FAULT_THREADS, faulting))
        return cls(
            request=request,
            engine=engine,
            specs=specs,
            structure=structure,
            seen=seen,
            workload=workload,
            machine=Machine(disk, rate, num_threads, num_cores, num_faulting),
            disk_bytes=request.disk_bytes(),
            spare_bytes=spare,
        )

    @property
    def total_bytes(self) -> int:
        """What the store takes in memory."""
        return StoreSizes.of(self.request.store.schema).total_bytes

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
            found = self.request.presampler.run(
                self.structure, 1, spare_bytes=self.spare_bytes, num_batches=MANY_BATCHES
            )
            release()
            self.many_seen.append(found)
        return self.many_seen[0]

    def choice(self, auto: Auto, predictions: list[Prediction]) -> Candidate:
        """Return which of all predictions "auto" goes by."""
        try:
            placement = place_for(self.request, auto)
            if placement.strategy.mode == "memory" and placement.budget_is_promise:
                in_memory = placement.ledger, self.seen.largest_bytes
                if not has_two_batches(*in_memory):
                    auto = auto.on_disk
                    placement = place_for(self.request, auto)
        except BudgetError:
            return auto.fallback("mmap")
        if not placement.reads_disk or not is_worth_it(self.request, placement):
            return auto.fallback(placement.strategy.mode)
        own = [p for p in predictions if p.candidate in auto.loadable]
        return next((p.candidate for p in fastest_first(own)), auto.fallback("mmap"))

    def with_degrees(self) -> Situation:
        """Return the situation with a cache by out-degree among what can be predicted."""
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
            Budgets; by default the request's.
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
        options = with_candidate(self.request.options, candidate)
        if memory is not None:
            options = replace(options, memory=memory)
        # Beside another kind of cache there is none; all cost what they take of the budget.
        request = replace(self.request, options=options).without_second_cache()
        return first_that_fits(
            request,
            candidate.strategy,
            lambda placed: self._divided(candidate, request, placed, disk_bytes),
        )

    def _divided(
        self, candidate: Candidate, request: ReadRequest, placed: Placer, disk_bytes: int
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
            settings = request.options.cache or CacheSettings()
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
            settings=request.options.planned or PlannedSettings(),
            num_rows=work.num_rows,
            row_bytes=work.row_bytes,
            epoch_batches=work.epoch_batches,
            num_threads=self.machine.num_threads,
            may_use_fewer=request.may_use_fewer,
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


def is_worth_it(request: ReadRequest, placement: Placement) -> bool:
    """Whether what is read from disk takes longer than measuring and sampling."""
    if not placement.reads_disk or request.options.cache is not None:
        return False
    tables = StoreSizes.of(request.store.schema).tables
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
