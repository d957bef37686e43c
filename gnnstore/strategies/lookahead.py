"""Reserves, predicts and opens what is sampled and planned ahead.

A loader is sized by the misses of batches that are planned beforehand, a prediction by an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore._core import release_memory
from gnnstore.caching.policies.base import CachePolicy, Planner
from gnnstore.caching.policies.registry import POLICIES
from gnnstore.caching.policies.settings import PlannedSettings
from gnnstore.caching.scores import most_needed
from gnnstore.caching.trace import Trace, TraceBuilder
from gnnstore.features.tiers.pinned import PinnedRows
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.graph.shared import shared_tables
from gnnstore.pipeline.lookahead.epochs import LookaheadEpochs
from gnnstore.pipeline.lookahead.packer import DiskQuota
from gnnstore.pipeline.lookahead.producer import LookaheadJob
from gnnstore.pipeline.lookahead.session import FixedNodes, slot_layout, warms_up
from gnnstore.pipeline.margins import MANY_BATCHES
from gnnstore.pipeline.superbatch_size import SuperbatchSize
from gnnstore.planning.cost_model import Prediction, Resources, predict
from gnnstore.planning.workload import Workload
from gnnstore.strategies.base import Candidate, Strategy
from gnnstore.strategies.loader_spec import LoaderSpec
from gnnstore.strategies.sampled_epoch import SampledEpoch, out_degrees
from gnnstore.strategies.sizes.lookahead import LookaheadSizer, Misses
from gnnstore.strategies.sizes.placement import Placement, Placer
from gnnstore.strategies.sizes.placing import with_engine
from gnnstore.strategies.sizes.superbatch import Horizon, Pins
from gnnstore.strategies.sources import DataSources
from gnnstore.strategies.static import CacheMaker

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.graph.topology import Topology
    from gnnstore.pipeline.lookahead.presample import Presampled, Presampler

# Sampling and planning these takes about 1.5 s for batches of 136,000 nodes: less than a tenth
# of an epoch that they make faster. Small ones are done at once.
_PROFILE_BATCHES = 128
# Fewer do not tell how often rows are needed again.
_LEAST_TOLD = 16
# Rows that less than one in so many batches needs are not pinned.
_RARELY = 32


def reserve(loader: LoaderSpec, place: Placer) -> Placement:
    """Decide how many batches are planned at a time, and how many rows are cached.

    Raises
    ------
    BudgetError
        If two batches, a plan of two, a cache of a given size, or packed rows do not fit.
    """
    engine, presampler = loader.open_engine(place(0).topology), loader.presampler
    placed, num_threads = with_engine(place, engine), loader.num_threads
    placement = placed(0)
    strategy, topology = placement.strategy, loader.open_topology(placement, engine)
    specs = loader.node_specs(placement)
    fixed = _fixed_nodes(loader, placement, topology, engine)
    staging_bytes = 0 if engine is None else engine.staging_bytes
    spare_bytes = placement.spare_bytes

    def sample(num_threads: int, **options: Any) -> Presampled:
        found = presampler.run(topology, num_threads, spare_bytes=spare_bytes, **options)
        release_memory()  # the samples' buffers: nothing gives them back before the first batch
        return found

    def misses(num_threads: int, num_batches: int) -> MeasuredMisses:
        return MeasuredMisses(
            topology,
            presampler,
            policy=POLICIES[strategy.policy],
            packs=strategy.packs,
            num_batches=max(1, min(_PROFILE_BATCHES, presampler.epoch_batches, num_batches)),
            num_threads=num_threads,
            spare_bytes=spare_bytes,
            fixed=fixed,
        )

    sampling = num_threads
    if staging_bytes:
        sampling = max(1, min(num_threads, placement.staging_bytes // staging_bytes))
    found = _sizer(
        loader,
        placement,
        topology,
        specs,
        placed=placed,
        seen=sample(sampling),
        see_many=lambda: sample(1, num_batches=MANY_BATCHES),
        misses=misses,
        num_threads=num_threads,
        staging_bytes=staging_bytes,
        disk_bytes=loader.disk_bytes(),
    ).choose()
    release_memory()  # of the batches that were sampled and planned to find the sizes
    return found.placement.with_superbatch(found.size)


def predict_epoch(
    candidate: Candidate,
    epoch: SampledEpoch,
    loader: LoaderSpec,
    place: Placer,
    disk_bytes: int,
) -> Prediction:
    """Predict an epoch, its misses estimated from how often rows are needed again."""
    work = epoch.workload
    misses = EstimatedMisses(work, POLICIES[candidate.strategy.policy])
    found = _sizer(
        loader,
        place(0),
        epoch.topology,
        epoch.specs,
        placed=place,
        seen=epoch.seen,
        see_many=epoch.see_many,
        misses=lambda *_: misses,
        num_threads=epoch.machine.num_threads,
        staging_bytes=epoch.engine.staging_bytes,
        disk_bytes=disk_bytes,
        packed_bytes=misses.packed_bytes if candidate.is_offline else None,
    ).choose()
    size, placement = found.size, found.placement
    resources = Resources(
        placement.resident_bytes + placement.staging_bytes + size.num_bytes,
        size.num_slots,
        size.num_slots * work.row_bytes,
        size.num_batches,
        size.in_memory and size.plans_in_memory,
        found.disk_bytes,
        size.chunk_memory_bytes,
        overlaps=size.overlaps,
        num_threads=found.num_threads,
        num_unplanned=size.num_unplanned,
    )
    return predict(candidate, work, epoch.machine, resources)


def _sizer(
    loader: LoaderSpec,
    placement: Placement,
    topology: Topology,
    specs: tuple[AttributeSpec, ...],
    **measured: Any,
) -> LookaheadSizer:
    """Return the sizer of a loader; fields that differ in a prediction are given by name."""
    read = {path for path, mode in placement.modes.items() if mode == "disk"}
    presampler = loader.presampler
    return LookaheadSizer(
        strategy=placement.strategy,
        settings=loader.options.planned or PlannedSettings(),
        num_rows=topology.csc.num_nodes,
        row_bytes=sum(spec.row_bytes for spec in specs),
        epoch_batches=presampler.epoch_batches,
        horizon=Horizon(len(presampler.seeds)) if loader.knows_epochs else None,
        may_use_fewer=loader.may_use_fewer,
        reads_neighbors=topology.is_read,
        samples_slowly=topology.is_slow or topology.is_read,
        reads_more=bool(read - {spec.path for spec in specs}),
        **measured,
    )


def open_rows(strategy: Strategy, loader: LoaderSpec, placement: Placement) -> DataSources:
    """Open the tables, and what samples and plans ahead; it begins with the first batch."""
    engine, superbatches = loader.open_engine(placement.topology), None
    topology = loader.open_topology(placement, engine)
    settings, size = loader.options.planned, placement.superbatch
    if settings is not None and size is not None and engine is not None:
        store, num_nodes = loader.store, topology.csc.num_nodes
        shared, specs = shared_tables(store), loader.node_specs(placement)
        job = LookaheadJob(
            lambda: shared.planned_cache(
                store,
                specs,
                engine,
                size.num_slots,
                pinned=size.pinned,
                slot_bytes=size.slot_bytes,
            ),
            POLICIES[strategy.policy],
            size,
            packs=strategy.packs,
            tmpdir=loader.tmpdir(settings),
            quota=DiskQuota(loader.disk_bytes()),
            num_nodes=num_nodes,
            num_edges=topology.csc.num_edges,
            index_dtype=store.schema.index_dtype,
            fixed=_fixed_nodes(loader, placement, topology, engine),
            degrees=partial(out_degrees, topology, size.degrees_bytes(num_nodes)),
        )
        superbatches = LookaheadEpochs(job)
    again = partial(strategy.open, loader, placement)
    return DataSources(loader, placement, topology, engine, again=again, superbatches=superbatches)


def _fixed_nodes(
    loader: LoaderSpec, placement: Placement, topology: Topology, engine: Engine | None
) -> FixedNodes | None:
    """Return whose rows a planned cache holds always; None if its policy decides."""
    if loader.options.planned is None or loader.options.cache is None:
        return None
    maker = CacheMaker.of(loader, placement, topology, engine)
    return None if maker is None else FixedNodes(maker.choose, loader.store.num_nodes)


class MeasuredMisses:
    """Misses of batches that are sampled beforehand, and planned."""

    def __init__(
        self,
        topology: Topology,
        presampler: Presampler,
        *,
        policy: CachePolicy,
        packs: bool,
        num_batches: int,
        num_threads: int,
        spare_bytes: int | None,
        fixed: FixedNodes | None,
    ) -> None:
        self._topology = topology
        self._presampler = presampler
        self._policy, self._packs = policy, packs
        self.num_batches = num_batches
        self._num_threads = num_threads
        self._spare_bytes = spare_bytes
        self._fixed = fixed
        self._trace: Trace | None = None
        self._planned: dict[tuple[int, ...], Misses] = {}
        self._unpinned: tuple[npt.NDArray[Any], Trace] | None = None

    @property
    def compares(self) -> bool:
        """Whether the sample tells how many batches are worth planning together."""
        # A fixed choice of cached rows does not depend on how many batches are planned.
        return self._fixed is None and self.num_batches >= _LEAST_TOLD

    def first(self, size: SuperbatchSize) -> Misses:
        """Return the misses from where a loader begins."""
        return self._plan(size, size.num_batches)

    def later(self, size: SuperbatchSize) -> float:
        """Return the rows that are missed in mid-run: from a cache of what most of it needs."""
        return self._plan(size, self.num_batches).num_missed

    def _plan(self, size: SuperbatchSize, num_filled_for: int) -> Misses:
        """Plan from a cache that is filled for so many batches, if it would be filled."""
        trace = self._sampled()
        # Of superbatches as long as the sample, or longer, there is one.
        at_once = max(1, min(size.num_batches, trace.num_batches))
        num_filled_for = min(num_filled_for, trace.num_batches)
        key = (at_once, size.num_slots, size.num_pinned, num_filled_for)
        if key not in self._planned:
            trace = self._without(size.pinned)
            planner = self._planner(size, trace.first(num_filled_for))
            misses = changes = most = 0
            progress = self._presampler.progress.phase(
                "plan batches beforehand", trace.num_batches, "batches"
            )
            with progress as shown:
                for first in range(0, trace.num_batches, at_once):
                    offsets = trace.offsets[first : first + at_once + 1]
                    ids = trace.ids[offsets[0] : offsets[-1]]
                    plan = planner.plan(Trace(ids, offsets - offsets[0]))
                    misses += plan.num_misses
                    changes += len(plan.change_positions)
                    most = max(most, int(plan.misses.max(initial=0)))
                    shown.advance(plan.num_batches)
            mean = -(-misses // self.num_batches)
            self._planned[key] = Misses(misses, changes, trace.num_accesses, most, mean)
        return self._planned[key]

    def pins(self, num_rows: int) -> Pins | None:
        """Return the rows that most batches need, at most so many."""
        trace, num_nodes = self._sampled(), self._topology.csc.num_nodes
        if self._fixed is not None or trace.num_batches < _LEAST_TOLD:
            return None
        least = max(2, trace.num_batches // _RARELY)
        nodes = most_needed(trace, num_nodes, num_rows, least=least)
        if len(nodes) == 0:
            return None
        nodes = nodes.astype(id_dtype(num_nodes - 1))
        others = np.diff(self._without(nodes).offsets).max()
        return Pins(len(nodes), float(others / np.diff(trace.offsets).max()), nodes)

    def _without(self, pinned: npt.NDArray[Any] | None) -> Trace:
        """Return the trace without pinned rows."""
        trace = self._sampled()
        if pinned is None:
            return trace
        if self._unpinned is None or self._unpinned[0] is not pinned:
            self._unpinned = None  # there is memory for one
            rows = PinnedRows.of(pinned, self._topology.csc.num_nodes, 0)
            batches = [trace.batch(i) for i in range(trace.num_batches)]
            others = batches if rows is None else [rows.drop(ids) for ids in batches]
            self._unpinned = pinned, Trace.of(others)
        return self._unpinned[1]

    def _planner(self, size: SuperbatchSize, first: Trace) -> Planner:
        """Return a planner of a cache as the first batches find it."""
        num_slots, num_nodes = size.num_planned_slots, self._topology.csc.num_nodes
        if self._fixed is not None:
            planner: Planner = self._fixed.planner(num_slots)
            planner.restart(slot_layout(self._fixed.of(num_slots), num_slots))
            return planner
        planner = self._policy.planner(num_slots)
        if warms_up(self._policy, size, num_nodes, packs=self._packs):
            planner.restart(slot_layout(most_needed(first, num_nodes, num_slots), num_slots))
        return planner

    def _sampled(self) -> Trace:
        if self._trace is None:
            builder = TraceBuilder(self.num_batches, self._topology.csc.num_nodes)
            # Without a bound, batches that are sampled together from disk would take 1 GB.
            spare = None if self._spare_bytes is None else self._spare_bytes // 2
            self._presampler.run(
                self._topology, self._num_threads, spare_bytes=spare, trace=builder
            )
            self._trace = builder.build()
            release_memory()
        return self._trace


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

    def pins(self, num_rows: int) -> Pins | None:
        """Return how many rows most batches need, at most so many, and what of a batch they are."""
        work = self.workload
        if work.sampled_batches < _LEAST_TOLD:
            return None
        least = max(2, work.sampled_batches // _RARELY)
        num_pinned, uses = work.frequency.highest(num_rows, least)
        if num_pinned == 0:
            return None
        return Pins(num_pinned, max(0.0, 1 - uses / work.batch_rows))

    def packed_bytes(self, size: SuperbatchSize) -> int:
        """Return the disk space of an epoch's records and packed rows, planned from no cache."""
        work = self.workload
        sizes = (size.num_slots, size.num_batches)
        misses = work.misses(self.policy, *sizes, initial="nothing")
        return int(misses * work.row_bytes + work.ids_bytes * work.epoch_batches)
