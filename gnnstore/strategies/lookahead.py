"""Reserves, predicts and opens batches that are sampled and planned ahead."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gnnstore._core import release_memory
from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.caching.belady import POLICIES
from gnnstore.caching.policies import CachePolicy, Fixed
from gnnstore.caching.pools import SlotPools, pooled
from gnnstore.caching.scores import select_nodes
from gnnstore.errors import DiskBudgetError
from gnnstore.features.planned import SlotCache
from gnnstore.features.tables import CachedTables
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.graph.cache_owner import shared_caches
from gnnstore.graph.table_registry import shared_tables
from gnnstore.pipeline.lookahead.epochs import LookaheadEpochs, LookaheadSource
from gnnstore.pipeline.lookahead.producer import LookaheadJob, most_ids
from gnnstore.pipeline.lookahead.superbatch import DiskQuota
from gnnstore.sampling.compact import Types
from gnnstore.strategies.base import OpenStore, Strategy
from gnnstore.strategies.device_rows import chosen_rows, left_out
from gnnstore.strategies.loader_spec import LoaderSpec, pass_size
from gnnstore.strategies.options import StrategyTraits
from gnnstore.strategies.placement import Placement
from gnnstore.strategies.prediction import (
    EPOCHS,
    EpochCosts,
    HardwareRates,
    Prediction,
    Resources,
)
from gnnstore.strategies.sampled_epoch import SampledEpoch, out_degrees, sample_workload
from gnnstore.strategies.solve import SizingInputs, solve
from gnnstore.strategies.static import CacheMaker
from gnnstore.strategies.superbatch_memory import (
    MissModel,
    epoch_bytes,
    mean_row_bytes,
    size_packing,
)
from gnnstore.strategies.workload import ReadTotals, Workload

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.graph.topology import Topology
    from gnnstore.pipeline.lookahead.presample import Presampled
    from gnnstore.pipeline.lookahead.superbatch import SuperbatchSize
    from gnnstore.pipeline.stats import LoaderStats
    from gnnstore.sampling.neighbor import SamplingConfig
    from gnnstore.seeds.base import SeedSource

# Counts of rows may take one part in so many of the memory for batches, before batches need it.
_COUNTS_SHARE = 4
# One part in so many of the disk is for rows of edges, of one of two superbatches.
_EDGES_SHARE = 8
# Seconds of a processor of 3 GHz to plan a row (Belady, with its trace on disk).
_PLAN_SECONDS = 20e-9
# Bytes of a seed in the order of an epoch.
_ORDER_BYTES = 8
# On disk, for each row of a planned batch: its id, its slot, and an entry of the cache.
_SPILLED_ROW_BYTES = 16


class LookaheadStrategy(Strategy):
    """Batches are sampled and planned ahead, a superbatch at a time."""

    def reserve(self, loader: LoaderSpec, placement: Placement) -> Placement:
        """Choose the number of batches that are planned at a time, and of rows that are cached."""
        engine, num_threads = loader.open_engine(placement.topology), loader.num_threads
        topology = loader.open_topology(placement, engine)
        loader = left_out(loader, chosen_rows(loader, placement, topology))
        tables = loader.cached_tables(placement)
        presampler = loader.presampler.over(tables.space)
        spare_bytes = placement.spare_bytes
        policy = policy_of(loader, placement, topology, engine)
        counts = model = None
        # Tables that are cached with any memory are sized without a sample of misses.
        is_sized = loader.cached is not None
        if engine is None or not tables.specs or not presampler.epoch_batches or is_sized:
            seen = presampler.run(topology, num_threads, spare_bytes=spare_bytes)
        else:
            sampling = max(1, min(num_threads, placement.staging_bytes // engine.staging_bytes))
            has_room = spare_bytes is None or tables.space.num_rows <= spare_bytes // _COUNTS_SHARE
            if not (self.packs or policy.is_fixed) and has_room:
                counts = np.zeros(tables.space.num_rows, np.uint8)
            seen, workload = sample_workload(
                loader,
                tables,
                topology,
                engine,
                num_threads=sampling,
                spare_bytes=spare_bytes,
                progress=loader.progress,
                counts=counts,
            )
            model = MissModel(workload, policy)
        release_memory()  # the samples' buffers, which would stay until the first batch
        pools = None if policy.is_fixed else _pools(loader, tables, seen, placement)
        solved = solve(_facts(loader, placement, topology, tables, engine, seen, model, pools))
        size = solved.size
        if size.num_pinned and counts is not None and model is not None:
            counts[counts < model.least_uses] = 0
            nodes = select_nodes(counts, size.num_pinned)
            size = size.with_pinned(nodes.astype(id_dtype(tables.space.num_rows - 1)))
        return solved.placement.with_superbatch(size)

    def predict(self, epoch: SampledEpoch, loader: LoaderSpec, placement: Placement) -> Prediction:
        """Predict an epoch, its misses estimated from how often rows are needed again."""
        work, tables, seen = epoch.workload, epoch.tables, epoch.seen
        pools = _pools(loader, tables, seen, placement)
        model = MissModel(work, POLICIES[self.policy])
        facts = replace(
            _facts(loader, placement, epoch.topology, tables, epoch.engine, seen, model, pools),
            num_threads=epoch.machine.num_threads,
        )
        solved = solve(facts)
        size, placement, disk_bytes = solved.size, solved.placement, solved.disk_bytes
        if self.is_offline:
            size, disk_bytes = self._before(facts, placement.with_superbatch(size), loader, tables)
        resources = Resources(
            placement.resident_bytes + placement.staging_bytes + size.num_bytes,
            size.num_slots,
            size.num_slots * (tables.slot_bytes if pools is None else pools.slot_bytes),
            size.num_batches,
            size.in_memory and size.plans_in_memory,
            disk_bytes,
            overlaps=size.overlaps,
            num_threads=solved.num_threads,
            num_unplanned=size.num_unplanned,
            edges=epoch.edge_pass(loader, placement, size.num_batches),
        )
        return self.predict_with(work, epoch.machine, resources)

    def _before(
        self,
        facts: SizingInputs,
        placement: Placement,
        loader: LoaderSpec,
        tables: CachedTables,
    ) -> tuple[SuperbatchSize, int]:
        """Return the sizes of packed epochs, and the disk that one takes; check that it fits."""
        size, settings = placement.superbatch, facts.settings
        assert size is not None and facts.misses is not None  # noqa: S101, PT018 - just solved
        larger = size_packing(
            placement,
            row_bytes=facts.row_bytes if facts.pools is None else facts.pools.slot_bytes,
            num_rows=facts.num_rows,
            seeds_bytes=loader.seeds_bytes,
            num_batches=facts.epoch_batches,
            cache_is_given=settings.cache_bytes is not None,
            superbatch_is_given=settings.num_batches is not None,
        )
        rows, records = epoch_bytes(
            facts.misses,
            facts.seen,
            row_bytes=mean_row_bytes(tables, facts.seen),
            num_slots=larger.num_slots,
            superbatch=larger.superbatch,
            num_batches=facts.epoch_batches,
        )
        parts = Reservation("packed rows", rows), Reservation("records", records)
        disk = Ledger(facts.disk_bytes, parts, placement.ledger.who, "of disk space", "disk=")
        if disk.left() < 0:
            raise disk.refusal(None, "name a roomier spill_dir=", error=DiskBudgetError)
        size = replace(size, num_slots=larger.num_slots, num_batches=larger.superbatch)
        return size, rows + records

    def predict_with(
        self, workload: Workload, machine: HardwareRates, resources: Resources
    ) -> Prediction:
        """Predict an epoch with some resources."""
        if resources.num_threads:
            machine = replace(machine, num_threads=resources.num_threads)
        epoch = _Epoch(workload, machine, self, resources)
        return epoch.from_packed() if self.is_offline else epoch.planned()

    def open(self, loader: LoaderSpec, placement: Placement) -> OpenStore:
        """Open the tables, and the planner, which begins with the first batch."""
        if loader.open_engine(placement.topology) is None:  # there is nothing to read
            return OpenStore(loader, placement)
        return LookaheadSources(loader, placement)


def _facts(  # noqa: PLR0917 - of one loader
    loader: LoaderSpec,
    placement: Placement,
    topology: Topology,
    tables: CachedTables,
    engine: Engine | None,
    seen: Presampled,
    misses: MissModel | None,
    pools: SlotPools | None,
) -> SizingInputs:
    """Return what the budget of a loader is divided by."""
    presampler = loader.presampler
    edges, disk_bytes = loader.edges_read_ahead(placement), loader.disk_bytes()
    read_ahead = {spec.path for of_type in (tables.specs, *edges.values()) for spec in of_type}
    epoch_batches, num_seeds = presampler.epoch_batches, len(presampler.seeds)
    order_bytes = -(-_ORDER_BYTES * num_seeds // max(1, epoch_batches))
    return SizingInputs(
        placement=placement.read_by(engine),
        seen=seen,
        misses=misses,
        settings=loader.planned,
        num_rows=tables.space.num_rows,
        row_bytes=tables.slot_bytes,
        pools=pools,
        epoch_batches=epoch_batches,
        order_bytes=order_bytes if loader.knows_epochs else None,
        num_threads=loader.num_threads,
        may_use_fewer=loader.may_use_fewer,
        staging_bytes=0 if engine is None else engine.staging_bytes,
        reads_neighbors=topology.is_read,
        samples_slowly=topology.is_slow or topology.is_read,
        disk_bytes=disk_bytes - (2 * _edges_disk_bytes(disk_bytes) if edges else 0),
        edges_bytes=sum(pass_size(specs).index_bytes for specs in edges.values()),
        reads_more=bool(placement.read_paths - read_ahead),
        windows=loader.windows,
    )


def _edges_disk_bytes(disk_bytes: int) -> int:
    """Return the disk for rows of edges of one of two superbatches."""
    return disk_bytes // _EDGES_SHARE


def _pools(
    loader: LoaderSpec, tables: CachedTables, seen: Presampled, placement: Placement
) -> SlotPools | None:
    """Return pools of slots, if types' rows are of widths that differ much."""
    given = loader.planned.cache_bytes
    return SlotPools.from_widths(
        tables.widths, seen.needed, placement.left_bytes if given is None else given
    )


def make_job(
    loader: LoaderSpec,
    placement: Placement,
    topology: Topology,
    policy: CachePolicy,
    size: SuperbatchSize,
) -> LookaheadJob:
    """Return the options of making superbatches, within their promised memory and disk."""
    schema, space = loader.store.schema, loader.cached_tables(placement).space
    edges, disk_bytes = loader.edges_read_ahead(placement), loader.disk_bytes()
    edges_bytes = _edges_disk_bytes(disk_bytes) if edges else 0
    return LookaheadJob(
        policy,
        size,
        packs=placement.strategy.packs,
        spill_dir=loader.spill_dir,
        quota=DiskQuota(disk_bytes - 2 * edges_bytes),
        space=space,
        types=Types.from_schema(schema),
        chosen=chosen_rows(loader, placement, topology),
        index_dtype=schema.index_dtype,
        most_ids=most_ids(schema),
        degrees=partial(out_degrees, topology, space, size.counts_bytes - space.num_rows),
        windows=loader.windows,
        edge_tables={
            kind: [*map(loader.store.reader.paged, specs)] for kind, specs in edges.items()
        },
        edge_rows_bytes=edges_bytes,
    )


class LookaheadSources(OpenStore):
    """The parts of a store whose batches are sampled and planned ahead."""

    superbatches: LookaheadEpochs

    def open_cache(self, loader: LoaderSpec) -> None:
        """Make the source of planned batches, within its promised memory."""
        placement, engine = self.placement, self.engine
        size, tables = placement.superbatch, loader.cached_tables(placement)
        assert size is not None and engine is not None  # noqa: S101, PT018 - else nothing is read
        policy = pooled(policy_of(loader, placement, self.topology, engine), size.pools)
        job = make_job(loader, placement, self.topology, policy, size)
        store, shared = loader.store, shared_tables(loader.store)

        def make() -> SlotCache:
            opened = tables.open(lambda spec: shared.rows_on_disk(store, spec, engine))
            return SlotCache(opened, size.num_slots, size.pinned, tables.space.num_rows, size.pools)

        caches = shared_caches(store)
        self.superbatches = LookaheadEpochs(job, partial(caches.take_slots, make=make))
        # Planners stay as well, and the memory of plans is not freed at once.
        kind = loader.cache_kind(placement.strategy)
        caches.use(self.superbatches, kind, promised_bytes=size.num_bytes)

    @property
    def cached_by(self) -> str:
        """Name of the strategy: its policy chooses the cached rows."""
        return self.placement.strategy.name

    @property
    def num_cached(self) -> int:
        """Nodes for which the cache has room."""
        return self.superbatches.job.size.num_slots

    def batches(self, seeds: SeedSource, config: SamplingConfig) -> LookaheadSource:
        """Return the batches that start from some seeds, sampled and planned ahead."""
        return LookaheadSource(self, seeds, config)

    def account(self, stats: LoaderStats) -> LoaderStats:
        """Return the statistics of a loader, with reads of the graph and times of planning."""
        totals = self.superbatches.job.totals
        return replace(
            super().account(stats).plus_reads(totals.warm_up),
            seconds_planning=totals.seconds_planning,
            bytes_packing=totals.bytes_packing,
            bytes_spilled=totals.bytes_spilled,
        )


def policy_of(
    loader: LoaderSpec, placement: Placement, topology: Topology, engine: Engine | None
) -> CachePolicy:
    """Return the strategy's policy, or a fixed choice of rows if `cache=` asks for one."""
    maker = None
    if loader.options.planned is not None and loader.options.cache is not None:
        maker = CacheMaker.for_loader(loader, placement, topology, engine)
    if maker is None:
        return POLICIES[placement.strategy.policy]
    scores = maker.scores
    return Fixed(lambda num_rows: select_nodes(scores(), num_rows), maker.num_rows)


@dataclass(frozen=True, eq=False)
class _Epoch(EpochCosts):
    """An epoch by superbatches: while one is used, the next is made.

    The first superbatch of the next epoch is made too, if the disk has room for both; only the very
    first one is waited for.
    """

    strategy: StrategyTraits
    resources: Resources

    def planned(self) -> Prediction:
        """Predict batches that are sampled and planned a superbatch at a time."""
        found, epoch_batches = self._by_superbatches(), self.workload.epoch_batches
        if self.resources.superbatch <= epoch_batches:
            return found
        # Superbatches of several epochs come later; the first one has one.
        shorter = replace(self.resources, superbatch=epoch_batches)
        first = replace(self, resources=shorter)._by_superbatches()
        more = max(0.0, first.seconds - found.seconds)
        return replace(found, seconds_once=first.seconds_once + more)

    def _by_superbatches(self) -> Prediction:
        work, machine, has = self.workload, self.machine, self.resources
        disk, policy, packs = machine.disk, POLICIES[self.strategy.policy], self.strategy.packs
        sizes = has.num_slots, max(1, has.superbatch)
        num = work.epoch_batches / sizes[1]  # less than 1 if a superbatch has several epochs
        passes = num if num < 1 else math.ceil(num)
        # Written until their batch is assembled, without packed rows.
        kept_bytes = has.edges.kept_bytes
        if not has.keeps_in_memory:
            kept_bytes += work.kept_bytes + _SPILLED_ROW_BYTES * work.batch_rows
        kept = int(kept_bytes * work.epoch_batches)
        planning = work.batch_rows * work.epoch_batches * _PLAN_SECONDS
        in_order, written = kept + int(passes * has.edges.table_bytes), kept
        writing, recalling = disk.sequential_seconds(0, kept), disk.sequential_seconds(kept)
        reading_edges = disk.sequential_seconds(in_order - kept)
        making_disk, making_computing = writing + reading_edges, self.sampling + planning
        stages = {"sampling": self.sampling, "planning": planning}
        if packs:
            misses = work.misses(policy, *sizes)
            reads, packed = ReadTotals(), int(misses * work.row_bytes)
            scanned = work.pass_reads(misses, sizes[1]).scaled(passes)
            packing = machine.pass_seconds(scanned) + disk.sequential_seconds(0, packed)
            reading = disk.sequential_seconds(packed)
            in_order, written = in_order + scanned.num_bytes + packed, written + packed
            stages |= {"packing": packing + reading_edges, "reading packed": reading}
            making_disk += packing
        else:
            reads = work.planned_reads(policy, *sizes)
            reading = machine.random_seconds(reads)
            stages |= {"reading rows": reading}
        assembling = self.assembling + self.issuing(reads)
        stages |= {"assembling": assembling}
        # Subgraphs are written while others are sampled; packing needs the plan of all.
        making = max(self.sampling, writing) + planning + (making_disk - writing)
        following = max(reading + recalling, assembling)
        # While batches are assembled, sampling and planning have half of the processors; and while
        # batches are read, sampling from disk has half of the disk.
        shared = min(making_computing, assembling)
        shared += min(self.reading_neighbors, reading + recalling)
        busiest = max(
            self.reading_neighbors + making_disk + reading + recalling,
            making_computing + assembling,
        )
        # If rows are packed, the initial rows of the cache come with the others.
        once = self.warming_up(has.num_slots) if policy.looks_ahead and not packs else 0.0
        if once:
            stages = {"filling": once, **stages}
        if has.overlaps:
            seconds = max(making + shared, following, busiest)
            share = has.num_unplanned / max(1, work.epoch_batches)
            # The first batches read all rows, and the disk does nothing else.
            once += making / math.ceil(num) + share * machine.random_seconds(work.direct_reads())
        elif num <= 1:
            seconds = making + following
        else:  # each superbatch is used while the next one is made
            together = (1 - 1 / num) * max(making + shared, following)
            seconds = max((making + following) / num + together, busiest)
        return Prediction(self.strategy, has, seconds, once, stages, reads, in_order, written)

    def from_packed(self) -> Prediction:
        """Predict batches that were sampled and packed before training."""
        work, machine, has = self.workload, self.machine, self.resources
        size = max(1, min(has.superbatch, work.epoch_batches))
        packed = replace(self, resources=replace(has, keeps_in_memory=True)).planned()
        recorded = int(work.ids_bytes * work.epoch_batches)
        # Each packed epoch begins with an empty cache, since training may begin with any epoch.
        policy = POLICIES[self.strategy.policy]
        rows = work.misses(policy, has.num_slots, size, initial="nothing") * work.row_bytes
        in_order = recorded + int(rows)
        reading = machine.disk.sequential_seconds(in_order)
        packing = sum(packed.stages[name] for name in ("sampling", "planning", "packing"))
        packing += machine.disk.sequential_seconds(0, recorded)
        # Packing is done for each epoch, but before training.
        return Prediction(
            self.strategy,
            has,
            max(reading, self.assembling),
            packing * EPOCHS,
            {"reading packed": reading, "assembling": self.assembling, "packing": packing},
            ReadTotals(),
            in_order,
        )
