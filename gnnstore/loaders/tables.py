"""The parts of a store that one loader reads, opened where its budget allows them to lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gnnstore.errors import BudgetError
from gnnstore.io.buffers import release
from gnnstore.io.index_rows import IndexRows
from gnnstore.io.resident import residents_of
from gnnstore.io.rows import MemoryRows, RowSource
from gnnstore.io.run_directory import default_parent
from gnnstore.io.structure import Structure
from gnnstore.loaders.caching import CacheMaker, divide_rest
from gnnstore.loaders.choosing import choices_for
from gnnstore.loaders.course import FixedNodes
from gnnstore.loaders.planned_sizing import size_superbatches
from gnnstore.loaders.rolling import disk_budget
from gnnstore.loaders.situation import place_for
from gnnstore.loaders.superbatches import Superbatches
from gnnstore.loaders.workload_sampling import out_degrees
from gnnstore.planning.in_flight import check_two_batches
from gnnstore.planning.placement import ASKED_FOR, Placement
from gnnstore.planning.planned_settings import PLANNED, PlannedSettings
from gnnstore.planning.sizes import StoreSizes
from gnnstore.planning.static_cache import CacheSettings
from gnnstore.units import format_size

if TYPE_CHECKING:
    from gnnstore.formats.schema import AttributeSpec
    from gnnstore.io.engines import Engine
    from gnnstore.loaders.presampling import Presampler
    from gnnstore.loaders.saved_batches import SavedBatches
    from gnnstore.store import GraphStore

# Of a budget, for buffers that reads go to: on a machine of 64 cores they could take it all.
_STAGING_SHARE = 4


@dataclass(frozen=True)
class ReadOptions:
    """How the user wants a store to be read; see `NeighborLoader`."""

    strategy: str = "auto"
    topology: str = "auto"
    memory: int | str | None = None
    io_engine: str | None = None
    cache: CacheSettings | None = None
    planned: PlannedSettings | None = None
    plan: str | None = None


@dataclass(frozen=True, eq=False)
class ReadRequest:
    """What one loader asks of a store.

    Attributes
    ----------
    presampler : Presampler
        How it will sample.
    seeds_bytes : int
        What the loader holds besides: its seed nodes and their order.
    num_threads : int
        Threads that will read, each with staging memory of its own.
    may_use_fewer : bool
        Whether fewer threads will do, since nobody asked for so many.
    """

    store: GraphStore
    options: ReadOptions
    presampler: Presampler
    seeds_bytes: int
    num_threads: int
    may_use_fewer: bool = False

    def staging_bytes(self, budget_bytes: int) -> int:
        """Return what staging takes, with as many threads as the budget allows."""
        engine = self.open_engine()
        if engine is None:
            return 0
        num_threads = self.num_threads
        if self.may_use_fewer:
            most = budget_bytes // _STAGING_SHARE // engine.staging_bytes
            num_threads = max(1, min(num_threads, most))
        return engine.staging_bytes * num_threads

    def open_engine(self) -> Engine | None:
        """Return what reads the store's arrays; None if there is nothing to read."""
        schema = self.store.schema
        tables = [table for table in StoreSizes.of(schema).tables if table.num_rows]
        if tables:
            largest = max(tables, key=lambda table: table.num_bytes).path
        elif self.options.topology == "disk" and schema.edge.indices.num_rows:
            largest = schema.edge.indices.path
        else:
            return None
        spec = next(spec for spec in schema.arrays() if spec.path == largest)
        path = self.store.reader.paged(spec).file_paths[0]
        return residents_of(self.store).engine(path, self.options.io_engine)

    def structure(self, placement: Placement, engine: Engine | None) -> Structure:
        """Return the graph's structure, where it is to lie."""
        store, shared = self.store, residents_of(self.store)
        csc = shared.csc(store, placement.topology, self.num_threads)
        if placement.topology != "disk" or engine is None:
            return Structure(csc)
        rows = IndexRows.open(store.reader.paged(store.schema.edge.indices), engine)
        spare = placement.left_bytes + placement.neighbors_bytes
        neighbors = shared.neighbors(store, csc, rows, placement.neighbors_bytes, spare)
        return Structure(csc, rows, neighbors)

    def tmpdir(self, settings: PlannedSettings) -> Path:
        """Return where runs put what they need for a while."""
        return default_parent(self.store.path) if settings.tmpdir is None else Path(settings.tmpdir)

    def disk_bytes(self) -> int:
        """Return what may be taken on disk beside the store, for a while."""
        settings = self.options.planned or PlannedSettings("packed")
        return disk_budget(self.tmpdir(settings), settings.disk_bytes)

    def taken_bytes(self, strategy: str) -> int:
        """Return what other loaders' caches take of the budget, under some strategy."""
        if self.options.memory in {None, "auto"}:
            return 0
        shared = residents_of(self.store)
        if strategy in PLANNED:
            return shared.taken_bytes("planned")
        return shared.taken_bytes(
            (self.options.cache or CacheSettings()) if strategy in {"auto", "static"} else None
        )

    def shared_cache_bytes(self) -> int:
        """Return what caches hold that "auto" may share, of what its placement says is left."""
        shared = residents_of(self.store)
        if self.options.memory in {None, "auto"}:
            return shared.cached_bytes
        return shared.own_bytes(self.options.cache or CacheSettings())

    def without_second_cache(self) -> Self:
        """Return the request of a loader that has no cache if another kind has the memory.

        A cache takes what its loader's batches leave. Were there another in what this loader's
        leave, the larger batches of the two would not fit. What the user sized, they have counted.
        """
        options = self.options
        if not self.taken_bytes(options.strategy):
            return self
        if options.planned is not None and options.planned.cache_bytes is None:
            return replace(
                self, options=replace(options, planned=replace(options.planned, cache_bytes=0))
            )
        cache = options.cache or (CacheSettings() if options.strategy == "static" else None)
        if cache is not None and cache.num_bytes is None:
            return replace(self, options=replace(options, cache=replace(cache, num_bytes=0)))
        return self

    def node_specs(self, placement: Placement) -> tuple[AttributeSpec, ...]:
        """Return the node attributes that are read from disk."""
        attributes = self.store.schema.node.attributes.values()
        return tuple(spec for spec in attributes if placement.modes.get(spec.path) == "direct")

    def cache_maker(
        self, placement: Placement, structure: Structure, engine: Engine | None
    ) -> CacheMaker | None:
        """Return what makes a cache; None if none is wanted."""
        settings = self.options.cache
        if settings is None and placement.strategy == "static":
            settings = CacheSettings()
        if settings is None or engine is None:
            return None
        specs = self.node_specs(placement)
        return CacheMaker(
            self.store, structure, engine, settings, specs, self.presampler, self.num_threads
        )

    def fixed_nodes(
        self, placement: Placement, structure: Structure, engine: Engine | None
    ) -> FixedNodes | None:
        """Return whose rows a planned cache holds always; None if its policy decides."""
        if self.options.planned is None or self.options.cache is None:
            return None
        maker = self.cache_maker(placement, structure, engine)
        if maker is None:
            return None
        return FixedNodes(maker.choose, self.store.num_nodes)


class Tables:
    """The graph's structure and the rows of all attributes, open to be read.

    Pickles as the decisions that were made, not as data: a copy in another process opens
    the store itself, and fills a cache of the same rows.

    Attributes
    ----------
    placement : Placement
        Where everything lies, and why.
    structure : Structure
        The adjacency, and what reads it.
    num_threads : int
        Threads that may read at once, by the staging memory that there is for them.
    edge_ids : MemoryRows or None
        Ids of the edges in the input, by position.
    nodes, edges : dict of str to RowSource
        Rows by the attribute's name.
    engine : Engine or None
        What reads rows from disk, if anything does.
    cache : SharedCache or None
        Rows that need not be read.
    superbatches : Superbatches or None
        Samples and plans ahead, where rows are cached by plan.
    saved : SavedBatches or None
        Batches that were packed, with a plan.
    """

    saved: SavedBatches | None = None

    def __init__(self, request: ReadRequest, placement: Placement) -> None:
        self._arguments = (request, placement)
        self.placement = placement
        store, num_threads = request.store, request.num_threads
        shared = residents_of(store)
        self.engine = request.open_engine() if placement.reads_disk else None
        self.structure = request.structure(placement, self.engine)
        edge_id = self.structure.csc.edge_id
        self.edge_ids = None if edge_id is None else MemoryRows.from_array(edge_id)
        self.num_threads = num_threads
        if self.engine is not None:
            self.num_threads = placement.staging_bytes // self.engine.staging_bytes
        self.cache = None
        if placement.cache is not None and placement.cache.num_rows:
            maker = request.cache_maker(placement, self.structure, self.engine)
            self.cache = None if maker is None else maker.open(placement.cache.num_rows)
        if self.cache is not None:
            shared.use(self, self.cache)

        self.superbatches = self._superbatches(request)
        if self.superbatches is not None and placement.superbatch is not None:
            # Planners stay as well, and what plans took is not given back at once.
            shared.promise(self.superbatches, placement.superbatch.num_bytes)

        def open_rows(spec: AttributeSpec) -> RowSource:
            mode = placement.modes.get(spec.path, "memory")  # the others are stored compressed
            if mode == "direct" and self.engine is not None:
                if self.cache is not None and self.cache.holds(spec.path):
                    return self.cache.rows(spec.path)
                return shared.direct_rows(store, spec, self.engine)
            return shared.rows(store, spec, "mmap" if mode == "mmap" else "memory", num_threads)

        def opened(specs: Mapping[str, AttributeSpec]) -> dict[str, RowSource]:
            return {name: open_rows(spec) for name, spec in specs.items()}

        self.nodes = opened(store.schema.node.attributes)
        self.edges = opened(store.schema.edge.attributes)

    @property
    def cached_by(self) -> str:
        """By what rows are cached; empty without a cache."""
        if self.superbatches is not None:
            return self.superbatches.policy
        return (
            "" if self.cache is None or self.placement.cache is None else self.placement.cache.score
        )

    @property
    def num_cached(self) -> int:
        """Nodes whose rows are cached, or have room to be."""
        if self.superbatches is not None:
            return self.superbatches.num_slots
        return 0 if self.cache is None else self.cache.num_rows

    def _superbatches(self, request: ReadRequest) -> Superbatches | None:
        settings, size = request.options.planned, self.placement.superbatch
        engine, store = self.engine, request.store
        if settings is None or size is None or engine is None:
            return None
        shared, specs = residents_of(store), request.node_specs(self.placement)
        tmpdir = request.tmpdir(settings)
        return Superbatches(
            lambda: shared.planned_cache(store, specs, engine, size.num_slots),
            settings.policy,
            size,
            tmpdir=tmpdir,
            disk_bytes=disk_budget(tmpdir, settings.disk_bytes),
            num_nodes=self.structure.csc.num_nodes,
            num_edges=self.structure.csc.num_edges,
            index_dtype=store.schema.index_dtype,
            fixed=request.fixed_nodes(self.placement, self.structure, engine),
            degrees=partial(
                out_degrees, self.structure, size.degrees_bytes(self.structure.csc.num_nodes)
            ),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (Tables, self._arguments)


def open_tables(request: ReadRequest) -> Tables:
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
    if request.options.strategy != "auto":
        return Tables(request, _placed(request))
    missing: BudgetError | None = None
    for chosen in choices_for(request):
        own = replace(request, options=chosen.options)
        try:
            placement = _placed(own, chosen.why, chosen.instead_of_static)
        except BudgetError as error:
            missing = error
        else:
            return Tables(own, replace(placement, predicted_seconds=chosen.seconds))
    raise missing if missing is not None else BudgetError("nothing fits the budget")


def _placed(request: ReadRequest, why: str = ASKED_FOR, instead_of_static: str = "") -> Placement:
    options = request.options
    placement = place_for(request, options.strategy, why=why, instead_of_static=instead_of_static)
    if not placement.reads_disk:
        _check_two_batches(request, placement)
        return placement
    own = request.without_second_cache()
    if own is request:
        return _divided(request, placement)
    taken = format_size(request.taken_bytes(options.strategy))
    try:
        placement = _divided(own, placement)
    except BudgetError as error:
        raise BudgetError(
            f"{error}. Of memory=, {taken} are the cache of a loader on the same store, with "
            f"another strategy; give both the same, and they share it"
        ) from None
    return placement.because(f"no cache, for {taken} of memory= are that of another strategy")


def _check_two_batches(request: ReadRequest, placement: Placement) -> None:
    """Refuse a budget that has no room for two batches, before everything else is loaded."""
    if placement.budget_is_promise:
        structure = request.structure(placement, None)
        seen = request.presampler.run(structure, 1, spare_bytes=placement.spare_bytes)
        release()
        check_two_batches(placement, seen.largest_bytes)


def _divided(request: ReadRequest, placement: Placement) -> Placement:
    """Divide what a budget leaves between batches, a cache, and what says which rows it holds."""
    options = request.options
    engine = request.open_engine()
    if engine is not None:
        placement = placement.because(f"read by {engine.reason}")
    structure = request.structure(placement, engine)
    if options.planned is not None:
        specs = request.node_specs(placement)
        placement = size_superbatches(
            placement,
            structure,
            request.presampler,
            settings=options.planned,
            specs=specs,
            num_threads=request.num_threads,
            staging_bytes=0 if engine is None else engine.staging_bytes,
            may_use_fewer=request.may_use_fewer,
            disk_bytes=disk_budget(request.tmpdir(options.planned), options.planned.disk_bytes),
            fixed=request.fixed_nodes(placement, structure, engine),
        )
        release()  # of the batches that were sampled and planned to find the sizes
        return placement
    maker = request.cache_maker(placement, structure, engine)
    return divide_rest(placement, structure, request.presampler, maker, request.num_threads)
