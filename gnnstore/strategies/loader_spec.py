"""The options of one loader, and its store."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from gnnstore._core import release_memory
from gnnstore.budget.limits import affordable_threads
from gnnstore.disk.spool import default_parent
from gnnstore.features.tables import CachedTables
from gnnstore.formats.container.files import free_bytes
from gnnstore.graph.shared import shared_tables
from gnnstore.graph.sizes import StoreSizes
from gnnstore.pipeline.lookahead.edge_rows import MAX_ROW_BYTES, PassSize
from gnnstore.progress import NullProgress, Progress
from gnnstore.strategies.predict.traits import StrategyTraits
from gnnstore.strategies.sizes.placement import Placement
from gnnstore.strategies.sizes.prefetch import check_two_batches
from gnnstore.strategies.sizes.settings import CacheSettings, PlannedSettings

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.formats.store.schema import EdgeType
    from gnnstore.graph.store import GraphStore
    from gnnstore.graph.topology import Topology
    from gnnstore.pipeline.lookahead.presample import Presampler

# Ids of edges that batches show: those of the input, or positions in the store.
EdgeIds = Literal["input", "store"]

# Of the free space for packed rows, if the user sets no limit.
_FREE_SHARE = 2


@dataclass(frozen=True)
class ReadOptions:
    """The user's options for reading a store; see `NeighborLoader`."""

    strategy: StrategyTraits
    topology: str = "auto"
    memory: int | str | None = None
    io_engine: str | None = None
    cache: CacheSettings | None = None
    planned: PlannedSettings | None = None
    packed: str | None = None
    edge_ids: EdgeIds | None = "input"


def static_kind(store: GraphStore, settings: CacheSettings | None) -> Hashable:
    """Return what loaders share that have the same fixed cache, of the same tables."""
    return settings if settings is None or store.selected is None else (settings, store.selected)


def pass_size(specs: Sequence[AttributeSpec]) -> PassSize:
    """Return the sizes of arrays of an edge type that are read in one pass."""
    return PassSize(specs[0].num_rows, tuple(spec.row_bytes for spec in specs))


@dataclass(frozen=True, eq=False)
class LoaderSpec:
    """A loader that is to be made, with the facts that strategies need."""

    store: GraphStore
    options: ReadOptions
    presampler: Presampler  # samples some of its batches beforehand
    seeds_bytes: int  # other memory of the loader: its seed nodes and their order
    num_threads: int  # threads that will read, each with its own staging memory
    may_use_fewer: bool = False  # whether fewer threads may be used, since the user set no number
    # Whether the batches of later epochs are known, and there are threads to prepare them.
    knows_epochs: bool = False
    progress: Progress = field(default_factory=NullProgress)  # displays long waits

    @property
    def sizes(self) -> StoreSizes:
        """Memory that the parts of the store would take."""
        with_ids = self.options.edge_ids == "input"
        return StoreSizes.of(
            self.store.schema,
            self.presampler.config,
            whole=self.store.reader.schema,
            with_edge_ids=with_ids,
        )

    def staging_bytes(self, budget_bytes: int) -> int:
        """Return the memory for staging, with as many threads as the budget allows."""
        engine = self.open_engine("disk")
        if engine is None:
            return 0
        num_threads = self.num_threads
        if self.may_use_fewer:
            num_threads = affordable_threads(budget_bytes, engine.staging_bytes, num_threads)
        return engine.staging_bytes * num_threads

    def open_engine(self, topology: str) -> Engine | None:
        """Return the engine that reads the store's arrays; None if there is nothing to read."""
        schema = self.store.schema
        attributes = (*schema.node_attributes(), *schema.edge_attributes())
        specs = [spec for spec in attributes if spec.layout == "paged" and spec.num_rows]
        if not specs and topology == "disk":
            specs = [edge.indices for edge in schema.edge_types if edge.num_edges]
        if not specs:
            return None
        largest = max(specs, key=lambda spec: spec.num_bytes)
        path = self.store.reader.paged(largest).file_paths[0]
        return shared_tables(self.store).engine(path, self.options.io_engine)

    def open_topology(self, placement: Placement, engine: Engine | None) -> Topology:
        """Return the graph's topology in its place."""
        store, shared = self.store, shared_tables(self.store)
        where = placement.topology
        if where == "memory" and placement.is_trial:
            where = "mmap"
        with self.progress.phase("load the topology"):
            topology = shared.topology(store, where, self.num_threads)
        if placement.topology != "disk" or engine is None:
            return topology
        topology = topology.on_disk(store.reader, engine)
        if placement.is_trial:
            return topology
        spare = placement.left_bytes + placement.neighbors_bytes
        neighbors = shared.neighbors(topology, placement.neighbors_bytes, spare)
        return replace(topology, neighbors=neighbors)

    def check_two_batches(self, placement: Placement) -> None:
        """Check that a budget which the user set has room for a batch and the one before it."""
        if placement.budget_is_promise:
            topology = self.open_topology(placement, None)
            seen = self.presampler.run(topology, 1, spare_bytes=placement.spare_bytes)
            release_memory()  # the samples' buffers, which would stay until the first batch
            check_two_batches(placement.ledger, seen.largest_bytes)

    @property
    def planned(self) -> PlannedSettings:
        """The user's options for sampling and planning ahead."""
        return self.options.planned or PlannedSettings()

    @property
    def spill_dir(self) -> Path:
        """The directory for temporary files."""
        given = self.planned.spill_dir
        return default_parent(self.store.path) if given is None else Path(given)

    def disk_bytes(self) -> int:
        """Return the disk space for temporary files."""
        given = self.planned.disk_bytes
        return free_bytes(self.spill_dir) // _FREE_SHARE if given is None else given

    def taken_bytes(self, strategy: StrategyTraits) -> int:
        """Return the part of the budget in other loaders' caches, under some strategy."""
        if self.options.memory in {None, "auto"}:
            return 0
        settings = (self.options.cache or CacheSettings()) if strategy.caches else None
        kind = strategy.cache_kind or static_kind(self.store, settings)
        return shared_tables(self.store).taken_bytes(kind)

    def shared_cache_bytes(self) -> int:
        """Return the bytes of caches, part of a placement's rest, that "auto" may share."""
        shared = shared_tables(self.store)
        if self.options.memory in {None, "auto"}:
            return shared.cached_bytes
        return shared.own_bytes(static_kind(self.store, self.options.cache or CacheSettings()))

    def without_second_cache(self) -> Self:
        """Return the loader without a cache of its own if another kind has the memory."""
        options = self.options
        if not self.taken_bytes(options.strategy):
            return self
        if options.planned is not None and options.planned.cache_bytes is None:
            return replace(
                self, options=replace(options, planned=replace(options.planned, cache_bytes=0))
            )
        cache = options.cache or (CacheSettings() if options.strategy.caches else None)
        if cache is not None and cache.num_bytes is None:
            return replace(self, options=replace(options, cache=replace(cache, num_bytes=0)))
        return self

    def edges_read_ahead(self, placement: Placement) -> dict[EdgeType, list[AttributeSpec]]:
        """Return the arrays of edges that are read in a pass for a superbatch, by edge type."""
        if not self.disk_bytes():
            return {}
        found = {
            edge.type: [
                spec
                for spec in (edge.edge_id, *edge.own_attributes())
                if spec is not None
                and placement.modes.get(spec.path) == "disk"
                and 0 < spec.row_bytes <= MAX_ROW_BYTES
            ]
            for edge in self.store.schema.edge_types
        }
        return {kind: specs for kind, specs in found.items() if specs}

    def cached_tables(self, placement: Placement) -> CachedTables:
        """Return the node attributes that are read from disk."""
        return CachedTables.of(self.store.schema, placement.read_paths)
