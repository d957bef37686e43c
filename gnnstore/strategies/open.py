"""The parts of a store that one loader reads, opened where its budget allows them to lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gnnstore._core import release_memory
from gnnstore.caching.policies.registry import POLICIES
from gnnstore.errors import BudgetError
from gnnstore.features.memory import MemoryRows
from gnnstore.features.source import RowSource
from gnnstore.graph.shared import shared_tables
from gnnstore.pipeline.batch import SamplingSource
from gnnstore.pipeline.lookahead.epochs import Superbatches
from gnnstore.pipeline.lookahead.packer import DiskQuota, disk_budget
from gnnstore.pipeline.lookahead.producer import LookaheadJob
from gnnstore.pipeline.lookahead.source import LookaheadSource
from gnnstore.strategies.base import Auto
from gnnstore.strategies.loader_spec import LoaderSpec
from gnnstore.strategies.lookahead import size_superbatches
from gnnstore.strategies.optimizer import choices_for
from gnnstore.strategies.placing import Placer, first_that_fits
from gnnstore.strategies.sampling_run import out_degrees
from gnnstore.strategies.sizes.placement import Placement
from gnnstore.strategies.sizes.prefetch import check_two_batches
from gnnstore.strategies.static import divide_rest
from gnnstore.units import format_size

if TYPE_CHECKING:
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.pipeline.seeds.base import SeedSource
    from gnnstore.pipeline.stats import LoaderStats
    from gnnstore.sampling.neighbor import NeighborSampler, SamplingConfig


class DataSources:
    """The graph's structure and the rows of all attributes, open to be read.

    Pickles as the decisions that were made, not as data: a copy in another process opens
    the store itself, and fills a cache of the same rows.

    Attributes
    ----------
    placement : Placement
        Where everything lies, and why.
    structure : Topology
        The adjacency, and what reads it.
    num_threads : int
        Threads that may read at once, by the staging memory that there is for them.
    edge_ids : RowSource or None
        Ids of the edges in the input, by position.
    nodes, edges : dict of str to RowSource
        Rows by the attribute's name.
    engine : Engine or None
        What reads rows from disk, if anything does.
    cache : StaticCache or None
        Rows that need not be read.
    superbatches : Superbatches or None
        Samples and plans ahead, where rows are cached by plan.
    """

    def __init__(self, loader: LoaderSpec, placement: Placement) -> None:
        self._arguments = (loader, placement)
        self._index_dtype = loader.store.schema.index_dtype
        self.placement = placement
        store, num_threads = loader.store, loader.num_threads
        shared = shared_tables(store)
        self.engine = loader.open_engine() if placement.reads_disk else None
        self.structure = loader.structure(placement, self.engine)
        edge_id = self.structure.csc.edge_id
        self.edge_ids = None if edge_id is None else MemoryRows.from_array(edge_id)
        self.num_threads = num_threads
        if self.engine is not None:
            self.num_threads = placement.staging_bytes // self.engine.staging_bytes
        self.cache = None
        if placement.cache is not None and placement.cache.num_rows:
            maker = loader.cache_maker(placement, self.structure, self.engine)
            self.cache = None if maker is None else maker.open(placement.cache.num_rows)
        if self.cache is not None:
            shared.use(self, self.cache)

        self.superbatches = self._superbatches(loader)
        if self.superbatches is not None and placement.superbatch is not None:
            # Planners stay as well, and what plans took is not given back at once.
            shared.promise(self.superbatches, placement.superbatch.num_bytes)

        def open_rows(spec: AttributeSpec) -> RowSource:
            mode = placement.modes.get(spec.path, "memory")  # the others are stored compressed
            if mode == "disk" and self.engine is not None:
                if self.cache is not None and self.cache.holds(spec.path):
                    return self.cache.rows(spec.path)
                return shared.rows_on_disk(store, spec, self.engine)
            return shared.rows(store, spec, "mmap" if mode == "mmap" else "memory", num_threads)

        def opened(specs: Mapping[str, AttributeSpec]) -> dict[str, RowSource]:
            return {name: open_rows(spec) for name, spec in specs.items()}

        self.nodes = opened(store.schema.node.attributes)
        self.edges = opened(store.schema.edge.attributes)

    @property
    def cached_by(self) -> str:
        """By what rows are cached; empty without a cache."""
        if self.superbatches is not None:
            return self.placement.strategy.name
        return (
            "" if self.cache is None or self.placement.cache is None else self.placement.cache.score
        )

    @property
    def num_cached(self) -> int:
        """Nodes whose rows are cached, or have room to be."""
        if self.superbatches is not None:
            return self.superbatches.num_slots
        return 0 if self.cache is None else self.cache.num_rows

    def _superbatches(self, loader: LoaderSpec) -> Superbatches | None:
        settings, size = loader.options.planned, self.placement.superbatch
        engine, store = self.engine, loader.store
        if settings is None or size is None or engine is None:
            return None
        shared, specs = shared_tables(store), loader.node_specs(self.placement)
        tmpdir = loader.tmpdir(settings)
        job = LookaheadJob(
            lambda: shared.planned_cache(store, specs, engine, size.num_slots),
            POLICIES[self.placement.strategy.policy],
            size,
            packs=self.placement.strategy.packs,
            tmpdir=tmpdir,
            quota=DiskQuota(disk_budget(tmpdir, settings.disk_bytes)),
            num_nodes=self.structure.csc.num_nodes,
            num_edges=self.structure.csc.num_edges,
            index_dtype=store.schema.index_dtype,
            fixed=loader.fixed_nodes(self.placement, self.structure, engine),
            degrees=partial(
                out_degrees, self.structure, size.degrees_bytes(self.structure.csc.num_nodes)
            ),
        )
        return Superbatches(job)

    def __reduce__(self) -> tuple[Any, ...]:
        return (DataSources, self._arguments)

    def sampler(self, config: SamplingConfig) -> NeighborSampler:
        """Return what samples from the graph."""
        return self.structure.sampler(config, self._index_dtype)

    def batches(self, seeds: SeedSource, config: SamplingConfig) -> SamplingSource:
        """Return the batches that start from some seeds, prepared as the strategy does."""
        kind = SamplingSource if self.superbatches is None else LookaheadSource
        return kind(self, seeds, config)

    def account(self, stats: LoaderStats) -> LoaderStats:
        """Return the statistics of a loader with what was read and done here."""
        counts = self.structure.counts
        stats = replace(
            stats,
            cache_rows=self.num_cached,
            topology_reads=counts.reads,
            topology_bytes_read=counts.bytes_read,
        )
        if self.superbatches is None:
            return stats
        totals = self.superbatches.job.totals
        return replace(
            stats.plus_reads(totals.filling),
            seconds_planning=totals.seconds_planning,
            bytes_spilled=totals.bytes_spilled,
        )


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
        return DataSources(loader, _placed(loader))
    missing: BudgetError | None = None
    for chosen in choices_for(loader, strategy):
        own = replace(loader, options=chosen.options)
        try:
            placement = _placed(own, why=chosen.why, instead_of_static=chosen.instead_of_static)
        except BudgetError as error:
            missing = error
        else:
            return DataSources(own, replace(placement, predicted_seconds=chosen.seconds))
    raise missing if missing is not None else BudgetError("nothing fits the budget")


def _placed(loader: LoaderSpec, **reasons: str) -> Placement:
    strategy, own = loader.options.strategy, loader.without_second_cache()
    if own is loader:
        return first_that_fits(loader, strategy, partial(_divided, loader), **reasons)
    taken = format_size(loader.taken_bytes(strategy))
    try:
        placement = first_that_fits(loader, strategy, partial(_divided, own), **reasons)
    except BudgetError as error:
        raise BudgetError(
            f"{error}. Of memory=, {taken} are the cache of a loader on the same store, with "
            f"another strategy; give both the same, and they share it"
        ) from None
    return placement.because(f"no cache, for {taken} of memory= are that of another strategy")


def _check_two_batches(loader: LoaderSpec, placement: Placement) -> None:
    """Refuse a budget that has no room for two batches, before everything else is loaded."""
    if placement.budget_is_promise:
        structure = loader.structure(placement, None)
        seen = loader.presampler.run(structure, 1, spare_bytes=placement.spare_bytes)
        release_memory()
        check_two_batches(placement.ledger, seen.largest_bytes)


def _divided(loader: LoaderSpec, place: Placer) -> Placement:
    """Divide what a budget leaves between batches, a cache, and what says which rows it holds.

    Parameters
    ----------
    place : callable
        Returns the placement with so many more bytes of memory.
    """
    options, placement = loader.options, place(0)
    if not placement.reads_disk:
        _check_two_batches(loader, placement)
        return placement
    engine = loader.open_engine()

    def placed(more_bytes: int) -> Placement:
        found = place(more_bytes)
        return found if engine is None else found.because(f"read by {engine.reason}")

    placement = placed(0)
    structure = loader.structure(placement, engine)
    if options.planned is not None:
        specs = loader.node_specs(placement)
        placement = size_superbatches(
            placed,
            structure,
            loader.presampler,
            strategy=placement.strategy,
            settings=options.planned,
            specs=specs,
            num_threads=loader.num_threads,
            staging_bytes=0 if engine is None else engine.staging_bytes,
            may_use_fewer=loader.may_use_fewer,
            disk_bytes=disk_budget(loader.tmpdir(options.planned), options.planned.disk_bytes),
            fixed=loader.fixed_nodes(placement, structure, engine),
        )
        release_memory()  # of the batches that were sampled and planned to find the sizes
        return placement
    maker = loader.cache_maker(placement, structure, engine)
    return divide_rest(placement, structure, loader.presampler, maker, loader.num_threads)
