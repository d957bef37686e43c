"""The options of one loader and its store, and the places that these leave the store's parts."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from gnnstore._core import release_memory
from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import MemoryBudget, affordable_threads, available_bytes
from gnnstore.disk.spool import default_parent
from gnnstore.errors import BudgetError, DiskBudgetError, UsageError
from gnnstore.features.held import ChosenRows
from gnnstore.features.tables import CachedTables
from gnnstore.formats.base.files import free_bytes
from gnnstore.graph.cache_owner import shared_caches
from gnnstore.graph.sizes import StoreSizes
from gnnstore.graph.table_registry import shared_tables
from gnnstore.machine import PRIVATE, Machine, SharedMachine, share_of
from gnnstore.pipeline.lookahead.edge_rows import MAX_ROW_BYTES, PassSize
from gnnstore.pipeline.lookahead.ordering import Windows
from gnnstore.progress import NullProgress, Progress
from gnnstore.strategies.options import (
    CacheSettings,
    DeviceCache,
    PlannedSettings,
    StrategyTraits,
)
from gnnstore.strategies.placement import Placement, check_two_batches, place, read_tables

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.formats.store.schema import EdgeType
    from gnnstore.graph.store import GraphStore
    from gnnstore.graph.topology import Topology
    from gnnstore.pipeline.lookahead.presample import Presampler

_log = logging.getLogger(__name__)

# Ids of edges that batches show: the input's, or positions in the store.
EdgeIds = Literal["input", "store"]

# One part in so many of the free space: packed rows, if the user sets no limit.
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
    packed: Any = None  # a name, path or URL of packed epochs, or what `open_packed` returned
    edge_ids: EdgeIds | None = "input"
    reorder: int = 0  # batches of a window in which they are put in order; 0: the option is not set
    device_cache: DeviceCache | None = None  # rows that stay on the device


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
    machine: Machine = PRIVATE  # the place of arrays that are loaded whole
    # What rows that stay on a device take of the host's memory.
    of_device: tuple[Reservation, ...] = ()
    # The rows that stay on its device, once they are chosen, by the paths of their tables.
    chosen: dict[frozenset[str], ChosenRows] = field(default_factory=dict, repr=False)
    # Paths of the node attributes that are cached, with any memory; None: what is read.
    cached: frozenset[str] | None = None

    @property
    def sizes(self) -> StoreSizes:
        """Memory that the parts of the store would take."""
        with_ids = self.options.edge_ids == "input"
        return StoreSizes.from_schema(
            self.store.schema,
            self.presampler.config,
            whole=self.store.reader.schema,
            with_edge_ids=with_ids,
        ).shared_by(self.machine.num_ranks)

    @property
    def budget(self) -> MemoryBudget:
        """Memory that the loader may use; free memory is measured now, or was by the first rank."""
        memory, machine = self.options.memory, self.machine
        resident = shared_tables(self.store).resident_bytes
        if machine.num_ranks == 1 or memory not in {None, "auto"}:
            return MemoryBudget.of(memory, resident)
        if self.job is None:
            raise UsageError(
                f"memory={memory!r} with {machine.num_ranks} ranks on this machine: the first one "
                "measures free memory for all, and they find one another by MASTER_ADDR and "
                "MASTER_PORT of the environment, which are not set; set them on all ranks, give "
                "each a budget in bytes, such as memory='8GB', or local_world_size=1 to share "
                "nothing"
            )
        free = machine.agree(f"{self.job}: free memory", lambda: str(available_bytes() + resident))
        return MemoryBudget.of_rank(memory, int(free), machine.num_ranks)

    def agree(self, what: str, make: Callable[[], str]) -> str:
        """Return what the first rank made that has such a loader, or what this one makes now."""
        if self.job is None:
            return make()
        sampler = self.presampler
        loader = f"{len(sampler.seeds)} seeds, {sampler.batch_size} a batch, {sampler.config}"
        return self.machine.agree(f"{self.job}: {what} of {loader}", make)

    def note_other_options(self) -> None:
        """Say so where the first rank of this machine has other options, which share less."""
        options = self.options
        cached = [own.num_bytes for own in (options.cache,) if own is not None]
        cached += [own.cache_bytes for own in (options.planned,) if own is not None]
        own = ", ".join(
            f"{name}={value!r}"
            for name, value in (
                ("strategy", options.strategy.name),
                ("topology", options.topology),
                ("memory", options.memory),
                ("cache_bytes", next((each for each in cached if each is not None), None)),
            )
        )
        if (first := self.agree("options", lambda: own)) != own:
            _log.warning(
                "%s: this rank has %s, and the first rank of this machine %s; what these size or "
                "choose is not shared: each holds its own",
                *(self.store.path, own, first),
            )

    def limit_unshared(self, placement: Placement) -> None:
        """Let arrays that cannot be shared take what a placement leaves, before they are loaded."""
        if isinstance(self.machine, SharedMachine):
            self.machine.spare_bytes = placement.spare_bytes

    def check_shared(self, placement: Placement) -> None:
        """Check that there is room for arrays that could not be shared, and count whole."""
        machine = self.machine
        more = machine.private_bytes - share_of(machine.private_bytes, machine.num_ranks)
        if placement.budget_is_promise and more > placement.left_bytes:
            unshared = Reservation("arrays that could not be shared", more)
            ledger = replace(placement.ledger, raise_by=more - placement.left_bytes)
            raise ledger.add(unshared).refusal(None, "look in the log for why they could not")

    @property
    def is_measured(self) -> bool:
        """Whether the budget is free memory, in which caches of other loaders are not."""
        return self.options.memory in {None, "auto"} and self.machine.num_ranks == 1

    @property
    def job(self) -> str | None:
        """The name of the run on this store, by which its ranks find one another, if it has one."""
        address, port = (os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))
        return f"{address}:{port} {self.store.reader.uuid}" if address and port else None

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
        if where == "memory" and placement.trial_bytes > 0:
            where = "mmap"
        self.limit_unshared(placement)
        if where != "memory":
            shared.free_topology(store)  # which an earlier placement may have read
        with self.progress.phase("load the topology"):
            topology = shared.topology(store, where, self.num_threads, self.machine)
        if placement.topology != "disk" or engine is None:
            return topology
        topology = topology.on_disk(store.reader, engine)
        if placement.trial_bytes > 0:
            return topology
        spare = placement.left_bytes + placement.neighbors_bytes
        whole = placement.neighbors_bytes * self.machine.num_ranks
        neighbors = shared.neighbors(topology, whole, spare, self.machine)
        return replace(topology, neighbors=neighbors)

    def check_two_batches(self, placement: Placement) -> None:
        """Check that a budget which the user set has room for a batch and the one before it."""
        if placement.budget_is_promise:
            topology = self.open_topology(placement, None)
            seen = self.presampler.run(topology, 1, spare_bytes=placement.spare_bytes)
            release_memory()  # the samples' buffers, which would stay until the first batch
            check_two_batches(placement.ledger, seen.expected_bytes)

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
        if self.is_measured:
            return 0
        return shared_caches(self.store).taken_bytes(self.cache_kind(strategy))

    def cache_kind(self, strategy: StrategyTraits) -> Hashable:
        """Return what loaders share that have the same cache, of the same tables."""
        if strategy.plans:
            return "planned"
        return self.static_kind(self.options.cache or CacheSettings()) if strategy.caches else None

    def place_of_cached(self, tables: CachedTables) -> Machine:
        """Return the place of cached rows: a tier's, which may be a user's, are private."""
        paths = {spec.path for spec in tables.specs}
        return PRIVATE if shared_tables(self.store).has_tier(paths) else self.machine

    def static_kind(self, settings: CacheSettings) -> Hashable:
        """Return what loaders share that have the same static cache, of the same tables."""
        selected = self.store.selected
        return settings if selected is None else (settings, selected)

    def shared_cache_bytes(self) -> int:
        """Return the bytes of caches, part of a placement's rest, that "auto" may share."""
        shared = shared_caches(self.store)
        if self.is_measured:
            return shared.cached_bytes
        return shared.own_bytes(self.static_kind(self.options.cache or CacheSettings()))

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

    @property
    def windows(self) -> Windows | None:
        """The windows in which batches are put in order; None: they are not."""
        schema = self.store.schema
        paths = {spec.path for spec in read_tables(schema.node_attributes())}
        if not self.options.reorder or not paths:
            return None
        return Windows(self.options.reorder, CachedTables.from_schema(schema, paths).space)

    def cached_tables(self, placement: Placement) -> CachedTables:
        """Return the node attributes with cached rows: all that are read from disk."""
        paths = placement.read_paths if self.cached is None else self.cached
        return CachedTables.from_schema(self.store.schema, paths)


T = TypeVar("T")

# Most refusals in a row: each names what its check misses, and the checks after it may miss more.
_MOST_RAISES = 6


def place_for(loader: LoaderSpec, strategy: StrategyTraits, *, staging: bool = True) -> Placement:
    """Return the places of a store's parts under a strategy, if the budget fits the rest."""
    return next(_placers(loader, strategy, staging=staging))()


def first_that_fits(
    loader: LoaderSpec,
    strategy: StrategyTraits,
    divide: Callable[[Placement], T],
    **reasons: Any,
) -> T:
    """Return the first placement of a store's parts that leaves enough memory for the rest."""
    refusals: list[tuple[BudgetError, Callable[..., Placement]]] = []
    for placed in _placers(loader, strategy, **reasons):
        mode = None
        try:
            placement = placed()
            mode = placement.strategy.mode
            return divide(placement)
        except DiskBudgetError:
            raise
        except BudgetError as error:
            # Without frames, which have what was read for this placement.
            refusals.append((error.with_traceback(None), placed))
            if mode == "memory":
                break
    # The last of several that miss the same, which holds least.
    refusal, placed = min(reversed(refusals), key=lambda each: each[0].missing_bytes or math.inf)
    for _ in range(_MOST_RAISES):
        if not refusal.missing_bytes:
            break
        try:
            divide(placed(trial_bytes=refusal.missing_bytes))
            break
        except DiskBudgetError:
            break
        except BudgetError as error:
            refusal = error
    raise refusal from None


def _placers(
    loader: LoaderSpec, strategy: StrategyTraits, *, staging: bool = True, **reasons: Any
) -> Iterator[Callable[..., Placement]]:
    """Yield functions that place a store's parts, perhaps with more bytes on trial."""
    options, shared = loader.options, shared_tables(loader.store)
    placed = partial(
        place,
        loader.sizes,
        # Free memory is measured once.
        loader.budget,
        strategy=strategy.by_mode or strategy,
        seeds_bytes=loader.seeds_bytes,
        of_device=loader.of_device,
        cached_bytes=shared_caches(loader.store).cached_bytes,
        taken_bytes=loader.taken_bytes(strategy),
        shared_tables=shared.tables_in_memory,
        cached_tables=loader.cached or (),
        held_row_bytes=partial(shared.held_row_bytes, loader.store, progress=loader.progress),
        staging_bytes=loader.staging_bytes if staging else lambda _: 0,
        reads_edges_ahead=bool(strategy.plans and loader.disk_bytes()),
        **reasons,
    )
    topology = options.topology
    yield partial(placed, topology=topology)
    if strategy.mode == "memory":
        return
    if strategy.reads_disk and loader.sizes.edge_ids:  # before the topology gives way
        yield partial(placed, topology=topology, holds_ids=False)
    for where in (topology,) if topology != "auto" else ("disk", "mmap"):
        if where != "disk" or strategy.reads_disk or topology == "disk":
            yield partial(placed, topology=where, is_frugal=True)
