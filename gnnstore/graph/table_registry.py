"""The tables of a store that are open: rows, topology and neighbour caches, each of them once.

Training, validation and test loaders usually run over one store object. Open tables are kept
per store object and dropped with it, so three loaders cost the memory of one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from gnnstore._core import pool_trim
from gnnstore.disk.engines import ENVIRONMENT_VARIABLE, Engine, open_engine
from gnnstore.disk.profile import ReadTuning
from gnnstore.errors import UsageError
from gnnstore.features.source import RowSource
from gnnstore.features.tables import Mode, held_row_bytes, open_attribute, open_rows
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.graph.topology import (
    Topology,
    bytes_for_all,
    bytes_to_choose,
    open_neighbor_cache,
)
from gnnstore.machine import PRIVATE, Machine

if TYPE_CHECKING:
    from gnnstore.formats.store.schema import EdgeType
    from gnnstore.formats.store.store import StoreReader, TopologyMode
    from gnnstore.graph.store import GraphStore
    from gnnstore.progress import Progress
    from gnnstore.sampling.disk import CachedNeighbors
    from gnnstore.sampling.sampled_graph import StoredColumns


# What plug-ins called here before caches had an owner.
_OF_CACHES = (
    "find_cache",
    "cache",
    "take_slots",
    "use",
    "taken_bytes",
    "own_bytes",
    "cached_bytes",
)


class TableRegistry:
    """The open tables of one store. Thread-safe.

    Arrays that are read whole lie where the `machine` of a loader puts them. Memory that a loader
    shares with other processes takes the place of private memory, and the reverse; later loaders
    have it too.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: rows at hand may have to be opened
        self._rows: dict[tuple[str, Mode], RowSource] = {}
        self._direct: dict[tuple[str, str, ReadTuning], RowSource] = {}
        self._tiers: list[tuple[str | None, Callable[[RowSource], RowSource]]] = []
        self._engines: dict[tuple[str | None, str | None], Engine] = {}
        self._held_row_bytes: dict[str, int] = {}
        self._neighbors: dict[EdgeType, CachedNeighbors] = {}
        self._topology_bytes: dict[TopologyMode, int] = {}
        self._stored: WeakSet[StoredColumns] = WeakSet()  # of times and weights
        self._machine = PRIVATE

    @contextmanager
    def machine_for(self, given: Machine | None) -> Iterator[Machine]:
        """Enter with the place of arrays for a loader: the given one, else an earlier loader's.

        What lies in memory of another kind is opened anew there. After an error, the place is the
        earlier one again.
        """
        former = self._machine
        try:
            yield self._take_machine(given or former)
        except BaseException:
            self._take_machine(former)
            raise

    def _take_machine(self, given: Machine) -> Machine:
        with self._lock:
            if (given.num_ranks > 1) != (self._machine.num_ranks > 1):
                self._rows = {key: own for key, own in self._rows.items() if key[1] == "mmap"}
                self._neighbors = {}
            self._machine = given
            return given

    if not TYPE_CHECKING:  # so that misspelt names are still found

        def __getattr__(self, name: str) -> object:
            if name in _OF_CACHES:
                raise UsageError(
                    f"shared_tables(store).{name}: caches have an owner of their own now, "
                    f"shared_caches(store).{name}"
                )
            raise AttributeError(f"a table registry has no attribute {name!r}")

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

    def has_tier(self, paths: Set[str]) -> bool:
        """Whether any of some tables is behind a tier that was put in front of it."""
        with self._lock:
            return any(path is None or path in paths for path, _ in self._tiers)

    def rows(
        self,
        store: GraphStore,
        spec: AttributeSpec,
        mode: Mode,
        num_threads: int,
        machine: Machine = PRIVATE,
    ) -> RowSource:
        """Return an attribute's rows, loading or mapping them the first time."""
        key = (spec.path, "memory" if spec.layout == "cold" else mode)
        with self._lock:
            if key not in self._rows:
                rows = open_attribute(store.reader, spec, mode, num_threads, machine)
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

    def topology(
        self,
        store: GraphStore,
        mode: TopologyMode,
        num_threads: int,
        machine: Machine = PRIVATE,
    ) -> Topology:
        """Return the topology, in memory or mapped."""
        with self._lock:
            topology = store.topology(mode, num_threads, machine)
            self._stored.add(topology.stored)
            if mode != "mmap":
                self._topology_bytes[mode] = sum(
                    csc.indptr.nbytes if mode == "disk" else csc.num_bytes
                    for csc in topology.csc.values()
                )
            return topology

    def free_topology(self, store: GraphStore) -> None:
        """Free a topology in memory that no loader uses: one that was read, and left no room."""
        with self._lock:
            if store.free_topology():
                self._topology_bytes.pop("memory", None)
                pool_trim(0)

    def neighbors(
        self,
        topology: Topology,
        num_bytes: int,
        spare_bytes: int,
        machine: Machine = PRIVATE,
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
                    if (cache := open_neighbor_cache(csc, rows, share, machine)) is not None:
                        self._neighbors[of] = cache
            return dict(self._neighbors)

    @property
    def _neighbor_bytes(self) -> int:
        return sum(cache.num_bytes for cache in self._neighbors.values())

    @property
    def tables_in_memory(self) -> frozenset[str]:
        """Paths of the attributes that are in memory as a whole."""
        with self._lock:
            return frozenset(path for path, mode in self._rows if mode == "memory")

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that everything opened so far occupies, without caches of rows."""
        tables = sum(rows.resident_bytes for rows in self._rows.values())
        stored = sum(columns.num_bytes for columns in self._stored)
        topology = max(self._topology_bytes.values(), default=0)
        return topology + stored + self._neighbor_bytes + tables


# By the store's reader: PyG's base classes make the store itself unhashable.
_registries: WeakKeyDictionary[StoreReader, TableRegistry] = WeakKeyDictionary()
_registries_lock = threading.Lock()


def shared_tables(store: GraphStore) -> TableRegistry:
    """Return the tables that all loaders on this store object share."""
    with _registries_lock:
        return _registries.setdefault(store.reader, TableRegistry())
