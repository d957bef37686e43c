"""What loaders hold of a store, loaded once and shared by all loaders on that store.

Training, validation and test loaders usually run over one store object. Tables are kept
per store object and dropped with it, so three loaders cost the memory of one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from gnnstore.formats.schema import AttributeSpec
from gnnstore.io.rows import MappedRows, MemoryRows, RowSource

if TYPE_CHECKING:
    from gnnstore.formats.csc import Csc
    from gnnstore.formats.reader import StoreReader
    from gnnstore.store import GraphStore

Mode = Literal["memory", "mmap"]


class Residents:
    """The tables that have been opened of one store, by array and mode. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, Mode], RowSource] = {}
        self._topology_bytes = 0

    def rows(
        self, store: GraphStore, spec: AttributeSpec, mode: Mode, num_threads: int
    ) -> RowSource:
        """Return an attribute's rows, loading or mapping them the first time.

        Attributes that are stored compressed are in memory in either mode.
        """
        key = (spec.path, "memory" if spec.layout == "cold" else mode)
        with self._lock:
            if key not in self._rows:
                self._rows[key] = _open_rows(store, spec, mode, num_threads)
            return self._rows[key]

    def csc(self, store: GraphStore, mode: Mode, num_threads: int) -> Csc:
        """Return the graph's structure, in memory or mapped."""
        with self._lock:
            csc = store.topology(mode, num_threads)
            if mode == "memory":
                self._topology_bytes = csc.num_bytes
            return csc

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that everything opened so far occupies."""
        return self._topology_bytes + sum(rows.resident_bytes for rows in self._rows.values())


# By the store's reader: PyG's base classes make the store itself unhashable.
_residents: WeakKeyDictionary[StoreReader, Residents] = WeakKeyDictionary()
_residents_lock = threading.Lock()


def residents_of(store: GraphStore) -> Residents:
    """Return the tables that are shared by all loaders on this store object."""
    with _residents_lock:
        return _residents.setdefault(store.reader, Residents())


def _open_rows(store: GraphStore, spec: AttributeSpec, mode: Mode, num_threads: int) -> RowSource:
    if spec.layout == "cold":
        return MemoryRows.from_array(store.reader.cold(spec))
    array = store.reader.paged(spec)
    return MappedRows.map(array) if mode == "mmap" else MemoryRows.load(array, num_threads)
