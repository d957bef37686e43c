"""Shares tables, caches and the topology among all loaders on a store, and tells their sizes.

Training, validation and test loaders usually run over one store object. Open tables are kept
per store object and dropped with it, so three loaders cost the memory of one.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

from gnnstore._core import pool_trim
from gnnstore.disk.engines import ENVIRONMENT_VARIABLE, Engine, open_engine
from gnnstore.disk.profile import ReadTuning
from gnnstore.features.planned import SlotCache
from gnnstore.features.source import RowSource
from gnnstore.features.tables import Mode, held_row_bytes, open_attribute, open_rows
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import EdgeType, Schema
from gnnstore.graph.topology import (
    Topology,
    bytes_for_all,
    bytes_to_choose,
    open_neighbor_cache,
)
from gnnstore.sampling.neighbor import SamplingConfig

if TYPE_CHECKING:
    from gnnstore.formats.store.schema import EdgeType
    from gnnstore.formats.store.store import StoreReader, TopologyMode
    from gnnstore.graph.store import GraphStore
    from gnnstore.progress import Progress
    from gnnstore.sampling.disk import CachedNeighbors
    from gnnstore.sampling.sampled_graph import StoredColumns


class SharedCache(Protocol):
    """A cache of rows that loaders share."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that it occupies."""

    def retire(self) -> None:
        """Free its memory: a loader that still uses it reads every row from now on."""


class SlotOwner(Protocol):
    """What plans for the slots of a loader."""

    def ends(self) -> bool:
        """Whether all batches of its last iteration have their rows."""

    def lose_slots(self) -> None:
        """Free what was planned for them: another loader takes their memory."""


C = TypeVar("C", bound=SharedCache)


@dataclass(frozen=True)
class CacheKey(Generic[C]):
    """The key of a shared cache, typed by the cache."""

    kind: Hashable  # loaders of one kind share the memory of its caches, which others cannot have
    of: Hashable  # tells caches of a kind apart, such as by their tables


@dataclass(frozen=True)
class _Use:
    """One loader's use of a cache; without `cache`, of any later one of the kind."""

    kind: Hashable
    cache: SharedCache | None
    promised_bytes: int


class SharedTables:
    """The open tables and caches of one store. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: making a cache opens tables
        self._rows: dict[tuple[str, Mode], RowSource] = {}
        self._direct: dict[tuple[str, str, ReadTuning], RowSource] = {}
        self._tiers: list[tuple[str | None, Callable[[RowSource], RowSource]]] = []
        self._engines: dict[tuple[str | None, str | None], Engine] = {}
        self._caches: dict[CacheKey[Any], SharedCache] = {}
        self._uses: WeakKeyDictionary[object, _Use] = WeakKeyDictionary()
        # Slots of the loader that plans and iterated last; another loader's iteration frees them.
        self._slots: SlotCache | None = None
        self._slots_of: weakref.ref[SlotOwner] | None = None
        self._held_row_bytes: dict[str, int] = {}
        self._neighbors: dict[EdgeType, CachedNeighbors] = {}
        self._topology_bytes = 0
        self._stored: WeakSet[StoredColumns] = WeakSet()  # of times and weights

    def add_tier(self, tier: Callable[[RowSource], RowSource], path: str | None = None) -> None:
        """Put a tier in front of tables that are opened from now on, above earlier ones.

        Parameters
        ----------
        tier : callable
            Is given the table below, and returns a source of the same rows.
        path : str, optional
            The only table, by its directory in the store, as "nodes/node/x"; by default all.
        """
        with self._lock:
            self._tiers.append((path, tier))

    def rows(
        self, store: GraphStore, spec: AttributeSpec, mode: Mode, num_threads: int
    ) -> RowSource:
        """Return an attribute's rows, loading or mapping them the first time."""
        key = (spec.path, "memory" if spec.layout == "cold" else mode)
        with self._lock:
            if key not in self._rows:
                rows = open_attribute(store.reader, spec, mode, num_threads)
                self._rows[key] = self._behind_tiers(rows, spec)
            return self._rows[key]

    def rows_at_hand(self, store: GraphStore, spec: AttributeSpec) -> RowSource:
        """Return an attribute's rows in memory if they have been loaded, else mapped."""
        with self._lock:
            return self._rows.get((spec.path, "memory")) or self.rows(store, spec, "mmap", 1)

    def held_row_bytes(self, store: GraphStore, path: str, *, progress: Progress) -> int:
        """Return the bytes of a row of a paged attribute in memory."""
        with self._lock:
            if path not in self._held_row_bytes:
                spec = next(spec for spec in store.schema.arrays() if spec.path == path)
                with progress.phase(f"look at {path}"):
                    self._held_row_bytes[path] = held_row_bytes(store.reader.paged(spec))
            return self._held_row_bytes[path]

    def engine(self, path: Path, forced: str | None) -> Engine:
        """Return the engine that reads the store's files, choosing it the first time."""
        key = (forced, os.environ.get(ENVIRONMENT_VARIABLE))
        with self._lock:
            if key not in self._engines:
                self._engines[key] = open_engine(path, forced)
            return self._engines[key]

    def rows_on_disk(self, store: GraphStore, spec: AttributeSpec, engine: Engine) -> RowSource:
        """Return a paged attribute's rows on disk, opening its files the first time."""
        key = (spec.path, engine.name, engine.tuning)
        with self._lock:
            if key not in self._direct:
                rows = open_rows(store.reader.paged(spec), engine)
                self._direct[key] = self._behind_tiers(rows, spec)
            return self._direct[key]

    def _behind_tiers(self, rows: RowSource, spec: AttributeSpec) -> RowSource:
        for path, tier in self._tiers:
            if path is None or path == spec.path:
                rows = tier(rows)
        return rows

    def find_cache(self, key: CacheKey[C]) -> C | None:
        """Return the cache that another loader has made, if any."""
        with self._lock:
            return cast("C | None", self._caches.get(key))

    def cache(self, key: CacheKey[C], make: Callable[[], C]) -> C:
        """Return a cache, making it the first time."""
        with self._lock:
            if key not in self._caches:
                self._caches[key] = make()
            return cast("C", self._caches[key])

    def take_slots(self, owner: SlotOwner, make: Callable[[], SlotCache]) -> SlotCache | None:
        """Return slots for an iteration; None while that of another loader still needs its own.

        If the last iteration was another loader's, its slots are freed first.
        """
        with self._lock:
            former = None if self._slots_of is None else self._slots_of()
            if former is not None and former is not owner and not former.ends():
                return None
            if self._slots is None or former is not owner:
                self._free_slots()
                self._slots = make()
                self._slots_of = weakref.ref(owner)
            return self._slots

    def _free_slots(self) -> None:
        slots, of = self._slots, None if self._slots_of is None else self._slots_of()
        self._slots = self._slots_of = None
        if of is not None:
            of.lose_slots()
        if slots is not None:
            slots.retire()
            pool_trim(0)  # the freed buffers would not fit slots of another size

    def use(
        self,
        owner: object,
        kind: Hashable,
        cache: SharedCache | None = None,
        promised_bytes: int = 0,
    ) -> None:
        """Record that a cache is in use for as long as its owner lives."""
        with self._lock:
            self._uses[owner] = _Use(kind, cache, promised_bytes)

    def taken_bytes(self, kind: Hashable) -> int:
        """Return the bytes of the caches, made or promised, of other kinds."""
        with self._lock:
            if self._taken_bytes(kind):
                gc.collect()  # frees loaders in reference cycles
                self._give_up_unused(kind)
            return self._taken_bytes(kind)

    def own_bytes(self, kind: Hashable) -> int:
        """Return the bytes of the caches of one kind, made or promised."""
        with self._lock:
            made = sum(c.num_bytes for key, c in self._caches.items() if key.kind == kind)
            promised = [use.promised_bytes for use in self._uses.values() if use.kind == kind]
            return max(made, *promised, 0)

    def _taken_bytes(self, kind: Hashable) -> int:
        kinds = {key.kind for key in self._caches} | {use.kind for use in self._uses.values()}
        return sum(self.own_bytes(other) for other in kinds - {kind})

    def _give_up_unused(self, kind: Hashable) -> None:
        uses = list(self._uses.values())
        kept = {id(use.cache) for use in uses}
        promised = {kind, *(use.kind for use in uses if use.cache is None)}
        for key, cache in list(self._caches.items()):
            if key.kind not in promised and id(cache) not in kept:
                del self._caches[key]
                cache.retire()
        if self._slots_of is not None and self._slots_of() is None:
            self._free_slots()
        pool_trim(0)

    def topology(self, store: GraphStore, mode: TopologyMode, num_threads: int) -> Topology:
        """Return the topology, in memory or mapped."""
        with self._lock:
            topology = store.topology(mode, num_threads)
            self._stored.add(topology.stored)
            if mode != "mmap":
                self._topology_bytes = max(
                    self._topology_bytes,
                    sum(
                        csc.indptr.nbytes if mode == "disk" else csc.num_bytes
                        for csc in topology.csc.values()
                    ),
                )
            return topology

    def neighbors(
        self, topology: Topology, num_bytes: int, spare_bytes: int
    ) -> dict[EdgeType, CachedNeighbors]:
        """Return the neighbour caches of loaders that read in-neighbours from disk.

        Edge types share the memory in proportion to their in-neighbours.
        """
        total = max(1, sum(map(bytes_for_all, topology.csc.values())))
        with self._lock:
            if self._neighbors and self._neighbor_bytes <= num_bytes:
                return dict(self._neighbors)
            self._neighbors = {}
            for of, csc in topology.csc.items():
                share = num_bytes * bytes_for_all(csc) // total
                if share >= bytes_for_all(csc) or bytes_to_choose(csc) <= spare_bytes:
                    rows = topology.rows[of]
                    if (cache := open_neighbor_cache(csc, rows, share)) is not None:
                        self._neighbors[of] = cache
            return dict(self._neighbors)

    @property
    def _neighbor_bytes(self) -> int:
        return sum(cache.num_bytes for cache in self._neighbors.values())

    @property
    def tables_in_memory(self) -> frozenset[str]:
        """Paths of the attributes whose rows are all in memory."""
        with self._lock:
            return frozenset(path for path, mode in self._rows if mode == "memory")

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that everything opened so far occupies."""
        tables = sum(rows.resident_bytes for rows in self._rows.values())
        stored = sum(columns.num_bytes for columns in self._stored)
        return self._topology_bytes + stored + self._neighbor_bytes + tables + self.cached_bytes

    @property
    def cached_bytes(self) -> int:
        """Bytes that caches of rows occupy."""
        slots = 0 if self._slots is None else self._slots.num_bytes
        return slots + sum(cache.num_bytes for cache in self._caches.values())


# By the store's reader: PyG's base classes make the store itself unhashable.
_shared: WeakKeyDictionary[StoreReader, SharedTables] = WeakKeyDictionary()
_shared_lock = threading.Lock()


def shared_tables(store: GraphStore) -> SharedTables:
    """Return the tables that all loaders on this store object share."""
    with _shared_lock:
        return _shared.setdefault(store.reader, SharedTables())


@dataclass(frozen=True)
class TableSize:
    """A paged attribute: rows that can be read one by one."""

    path: str  # the attribute's path in the store
    num_rows: int  # number of rows
    row_bytes: int  # bytes of a row without padding
    of_nodes: bool = True  # whether rows belong to nodes; else to edges
    edge_type: EdgeType | None = None  # of the edges whose rows these are, by position

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.num_rows * self.row_bytes


@dataclass(frozen=True)
class StoreSizes:
    """Bytes that the parts of a store take when they lie in memory."""

    # `indptr` and `indices`; and what sampling by time or weight needs along edges.
    topology_bytes: int
    tables: tuple[TableSize, ...]  # paged attributes of nodes and edges
    # Attributes that are stored compressed and are therefore always read whole.
    compressed_bytes: int
    indptr_bytes: int  # bytes of `indptr`, part of `topology_bytes`
    indices_bytes: int  # bytes of `indices`, part of `topology_bytes`
    times_bytes: int = 0  # times of nodes, which sampling has in memory
    edge_ids: tuple[TableSize, ...] = ()  # ids of edges in the input, if batches show them
    has_types: bool = False  # whether nodes have several types

    @property
    def rows_bytes(self) -> int:
        """Bytes of all paged attributes, without padding."""
        return sum(table.num_bytes for table in self.tables)

    @property
    def edge_ids_bytes(self) -> int:
        """Bytes of the ids of edges."""
        return sum(table.num_bytes for table in self.edge_ids)

    @property
    def total_bytes(self) -> int:
        """Bytes of everything."""
        rows_bytes = self.rows_bytes + self.edge_ids_bytes
        return self.topology_bytes + self.times_bytes + rows_bytes + self.compressed_bytes

    @classmethod
    def of(
        cls,
        schema: Schema,
        config: SamplingConfig | None = None,
        *,
        whole: Schema | None = None,
        with_edge_ids: bool = True,
    ) -> StoreSizes:
        """Return the sizes of a store, all of its types together, as a loader needs it.

        `whole` has the times that sampling needs, if batches do not show them.
        """
        edges = schema.edge_types
        tables = _tables(schema.node_attributes(), of_nodes=True)
        for edge in edges:
            tables += _tables(edge.own_attributes(), edge_type=edge.type)
        ids = {edge.type: edge.edge_id for edge in edges if edge.edge_id and with_edge_ids}
        shared = [edge.shared_row for edge in edges if edge.shared_row]
        tables += _tables(spec for spec in shared if spec not in ids.values())
        attributes = [*schema.node_attributes(), *schema.whole_arrays()]
        attributes += [spec for edge in edges for spec in edge.own_attributes()]
        indptr_bytes = sum(edge.indptr.num_bytes for edge in edges)
        indices_bytes = sum(edge.indices.num_bytes for edge in edges)
        along, times_bytes = (0, 0) if config is None else _for_sampling(whole or schema, config)
        return cls(
            topology_bytes=indptr_bytes + indices_bytes + along,
            tables=tuple(tables),
            compressed_bytes=sum(spec.num_bytes for spec in attributes if spec.layout == "cold"),
            indptr_bytes=indptr_bytes,
            indices_bytes=indices_bytes,
            times_bytes=times_bytes,
            edge_ids=tuple(
                table for kind, spec in ids.items() for table in _tables([spec], edge_type=kind)
            ),
            has_types=len(schema.node_types) > 1,
        )


def _for_sampling(schema: Schema, config: SamplingConfig) -> tuple[int, int]:
    """Return the bytes that times and weights take along edges, and of nodes."""
    time, weight = config.time_attr or "", config.weight_attr or ""
    along = [
        spec
        for edge in schema.edge_types
        for spec in (
            edge.orders.get(time),
            edge.attributes.get(time),
            edge.weight_sums.get(weight),
        )
    ]
    of_nodes = [node.attributes.get(time) for node in schema.node_types]
    sizes = [sum(s.num_bytes for s in specs if s is not None) for specs in (along, of_nodes)]
    return sizes[0], sizes[1]


def _tables(
    specs: Iterable[AttributeSpec], *, of_nodes: bool = False, edge_type: EdgeType | None = None
) -> list[TableSize]:
    return [
        TableSize(spec.path, spec.num_rows, spec.row_bytes, of_nodes, edge_type)
        for spec in specs
        if spec.layout == "paged"
    ]
