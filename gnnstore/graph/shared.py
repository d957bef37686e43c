"""Shares tables, caches and the topology among all loaders on a store.

Training, validation and test loaders usually run over one store object. What they open is kept
per store object and dropped with it, so three loaders cost the memory of one.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from gnnstore._core import pool_trim
from gnnstore.disk.engines import ENVIRONMENT_VARIABLE, Engine, open_engine
from gnnstore.features.compact import held_row_bytes
from gnnstore.features.opening import Mode, open_attribute, open_rows
from gnnstore.features.source import RowSource, Tier
from gnnstore.features.tiers.planned import PlannedCache
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.graph.neighbor_cache.beside import NeighborCache
from gnnstore.graph.neighbor_cache.cache import bytes_for_all, bytes_to_choose

if TYPE_CHECKING:
    import numpy.typing as npt

    from gnnstore.caching.scores import CacheSettings
    from gnnstore.features.tiers.static import StaticCache
    from gnnstore.formats.store.csc import Csc, TopologyMode
    from gnnstore.formats.store.reader import StoreReader
    from gnnstore.graph.indices import IndexRows
    from gnnstore.graph.store import GraphStore
    from gnnstore.progress import Progress


class SharedTables:
    """The open tables and caches of one store. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a cache is made of tables
        self._rows: dict[tuple[str, Mode], RowSource] = {}
        self._direct: dict[tuple[str, str], RowSource] = {}
        self._tiers: list[Callable[[RowSource], Tier]] = []
        self._engines: dict[tuple[str | None, str | None], Engine] = {}
        self._caches: dict[Hashable, StaticCache] = {}
        self._cache_users: WeakKeyDictionary[object, StaticCache] = WeakKeyDictionary()
        self._planned: dict[Hashable, PlannedCache] = {}
        self._promised: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._held_row_bytes: dict[str, int] = {}
        self._neighbors: NeighborCache | None = None
        self._topology_bytes = 0

    def add_tier(self, tier: Callable[[RowSource], Tier]) -> None:
        """Put a tier in front of every table that is opened from now on, above earlier ones.

        Parameters
        ----------
        tier : callable
            Returns a tier over the table that it is given.
        """
        with self._lock:
            self._tiers.append(tier)

    def rows(
        self, store: GraphStore, spec: AttributeSpec, mode: Mode, num_threads: int
    ) -> RowSource:
        """Return an attribute's rows, loading or mapping them the first time.

        Attributes that are stored compressed are in memory in either mode.
        """
        key = (spec.path, "memory" if spec.layout == "cold" else mode)
        with self._lock:
            if key not in self._rows:
                rows = open_attribute(store.reader, spec, mode, num_threads)
                self._rows[key] = self._behind_tiers(rows)
            return self._rows[key]

    def held_row_bytes(self, store: GraphStore, path: str, *, progress: Progress) -> int:
        """Return what a row of a paged attribute takes in memory, finding it out the first time.

        Parameters
        ----------
        progress : Progress
            Displays that the values of narrow integers are read.

        Raises
        ------
        StorageError
            If they cannot be read.
        """
        with self._lock:
            if path not in self._held_row_bytes:
                spec = next(spec for spec in store.schema.arrays() if spec.path == path)
                with progress.phase(f"look at {path}"):
                    self._held_row_bytes[path] = held_row_bytes(store.reader.paged(spec))
            return self._held_row_bytes[path]

    def engine(self, path: Path, forced: str | None) -> Engine:
        """Return the engine that reads the store's files, choosing it the first time.

        Parameters
        ----------
        path, forced
            As in `open_engine`.
        """
        key = (forced, os.environ.get(ENVIRONMENT_VARIABLE))
        with self._lock:
            if key not in self._engines:
                self._engines[key] = open_engine(path, forced)
            return self._engines[key]

    def rows_on_disk(self, store: GraphStore, spec: AttributeSpec, engine: Engine) -> RowSource:
        """Return a paged attribute's rows on disk, opening its files the first time."""
        key = (spec.path, engine.name)
        with self._lock:
            if key not in self._direct:
                self._direct[key] = self._behind_tiers(open_rows(store.reader.paged(spec), engine))
            return self._direct[key]

    def _behind_tiers(self, rows: RowSource) -> RowSource:
        for tier in self._tiers:
            rows = tier(rows)
        return rows

    def find_cache(self, key: Hashable) -> StaticCache | None:
        """Return the cache that another loader with the same settings has made, if any."""
        with self._lock:
            return self._caches.get(key)

    def cache(self, key: Hashable, make: Callable[[], StaticCache]) -> StaticCache:
        """Return a cache, making it the first time."""
        with self._lock:
            if key not in self._caches:
                self._caches[key] = make()
            return self._caches[key]

    def planned_cache(
        self,
        store: GraphStore,
        specs: Sequence[AttributeSpec],
        engine: Engine,
        num_slots: int,
        *,
        pinned: npt.NDArray[Any] | None = None,
        slot_bytes: int = 1,
    ) -> PlannedCache:
        """Return the slots that loaders over the same attributes share, taking turns.

        A loader whose budget has room for less replaces them; one with room for more makes do
        with those that exist, and with the rows that are pinned in them.

        Parameters
        ----------
        pinned : ndarray of int32 or int64 [H], optional
            The nodes whose rows are pinned in the last of the slots, if they are to be made.
        slot_bytes : int
            Memory that the loader has reserved for each planned slot.
        """
        key = (engine.name, tuple(spec.path for spec in specs))
        row_bytes, num_nodes = sum(spec.row_bytes for spec in specs), store.num_nodes

        def needed_bytes(num_slots: int, num_pinned: int) -> int:
            pinned_bytes = PlannedCache.pinned_bytes(row_bytes, num_pinned, num_nodes)
            return slot_bytes * (num_slots - num_pinned) + pinned_bytes

        with self._lock:
            known = self._planned.get(key)
            if known is not None:
                num_pinned = known.num_slots - known.num_planned_slots
                own = needed_bytes(num_slots, 0 if pinned is None else len(pinned))
                # Of a budget, less than a slot is left over: equal ones hold each other's caches.
                if needed_bytes(known.num_slots, num_pinned) < own + slot_bytes:
                    return known
            tables = {spec.path: self.rows_on_disk(store, spec, engine) for spec in specs}
            if known is not None:
                del self._planned[key]
                known.retire()  # loaders that still use it read every row from now on
                pool_trim(0)  # of another size, the new ones would not fit where these lay
            self._planned[key] = PlannedCache(tables, num_slots, pinned, num_nodes)
            return self._planned[key]

    def use(self, owner: object, cache: StaticCache) -> None:
        """Record that a cache is in use for as long as its owner lives."""
        with self._lock:
            self._cache_users[owner] = cache

    def promise(self, owner: object, num_bytes: int) -> None:
        """Record the bytes of a planned cache, which is made when a loader is first iterated.

        Parameters
        ----------
        owner : object
            The promise ends when it is gone.
        """
        with self._lock:
            self._promised[owner] = num_bytes

    def taken_bytes(self, shared: CacheSettings | Literal["planned"] | None) -> int:
        """Return the bytes of caches, made or promised, that a loader does not share.

        Caches whose loaders are all gone are dropped first.

        Parameters
        ----------
        shared : CacheSettings, "planned" or None
            The loader's own kind of cache; loaders of one kind share one.
        """
        with self._lock:
            if self._taken_bytes(shared):
                gc.collect()  # loaders that only a cycle of references keeps
                self._give_up_unused(shared)
            return self._taken_bytes(shared)

    def own_bytes(self, shared: CacheSettings) -> int:
        """Return the bytes of the caches that loaders with these settings share."""
        with self._lock:
            others = sum(cache.num_bytes for _, cache in self._other_caches(shared))
            return sum(cache.num_bytes for cache in self._caches.values()) - others

    def _taken_bytes(self, shared: CacheSettings | Literal["planned"] | None) -> int:
        others = sum(cache.num_bytes for _, cache in self._other_caches(shared))
        if shared == "planned":
            return others
        made = sum(cache.num_bytes for cache in self._planned.values())
        return others + max(made, *self._promised.values(), 0)

    def _other_caches(
        self, shared: CacheSettings | Literal["planned"] | None
    ) -> list[tuple[Hashable, StaticCache]]:
        # A cache's key begins with its settings.
        return [
            (key, cache)
            for key, cache in self._caches.items()
            if not (isinstance(key, tuple) and key[:1] == (shared,))
        ]

    def _give_up_unused(self, shared: CacheSettings | Literal["planned"] | None) -> None:
        used = {id(cache) for cache in self._cache_users.values()}
        for key, cache in self._other_caches(shared):
            if id(cache) not in used:
                del self._caches[key]
        if shared != "planned" and not len(self._promised):
            for planned in self._planned.values():
                planned.retire()
            self._planned.clear()
        pool_trim(0)

    def csc(self, store: GraphStore, mode: TopologyMode, num_threads: int) -> Csc:
        """Return the topology's arrays, in memory or mapped."""
        with self._lock:
            csc = store.topology(mode, num_threads)
            held = csc.indptr.nbytes if mode == "disk" else csc.num_bytes
            self._topology_bytes = max(self._topology_bytes, held if mode != "mmap" else 0)
            return csc

    def neighbors(
        self, store: GraphStore, csc: Csc, rows: IndexRows, num_bytes: int, spare_bytes: int
    ) -> NeighborCache | None:
        """Return the neighbour cache of loaders that read in-neighbours from disk.

        That of a large graph is chosen and filled beside batches, in its own memory. A loader with
        room for a larger one makes do with it; one with less room replaces it.

        Parameters
        ----------
        num_bytes : int
            Memory for the cache.
        spare_bytes : int
            Memory for choosing its lists; there is no cache where it does not suffice.
        """
        with self._lock:
            known = self._neighbors
            if known is not None and known.num_bytes <= num_bytes:
                return known
            if known is not None:
                known.stop()
            self._neighbors = None
            if num_bytes >= bytes_for_all(csc) or bytes_to_choose(csc) <= spare_bytes:
                uuid = store.reader.manifest.uuid
                self._neighbors = NeighborCache(csc, rows, num_bytes, uuid)
            return self._neighbors

    @property
    def tables_in_memory(self) -> frozenset[str]:
        """Paths of the attributes whose rows are all in memory."""
        with self._lock:
            return frozenset(path for path, mode in self._rows if mode == "memory")

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that everything opened so far occupies."""
        tables = sum(rows.resident_bytes for rows in self._rows.values())
        neighbors = 0 if self._neighbors is None else self._neighbors.num_bytes
        return self._topology_bytes + neighbors + tables + self.cached_bytes

    @property
    def cached_bytes(self) -> int:
        """Bytes that caches of rows occupy."""
        planned = sum(cache.num_bytes for cache in self._planned.values())
        return planned + sum(cache.num_bytes for cache in self._caches.values())


# By the store's reader: PyG's base classes make the store itself unhashable.
_shared: WeakKeyDictionary[StoreReader, SharedTables] = WeakKeyDictionary()
_shared_lock = threading.Lock()


def shared_tables(store: GraphStore) -> SharedTables:
    """Return the tables that all loaders on this store object share."""
    with _shared_lock:
        return _shared.setdefault(store.reader, SharedTables())
