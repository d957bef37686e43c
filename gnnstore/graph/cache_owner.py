"""The caches of rows that loaders on one store share, and which loader has the slots.

Training, validation and test loaders usually run over one store object, under one budget. Caches
are kept per store object and dropped with it; a loader that needs memory which another kind of
cache has gets it when no loader uses that any more.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from gnnstore._core import pool_trim
from gnnstore.errors import UsageError

if TYPE_CHECKING:
    from gnnstore.features.planned import SlotCache
    from gnnstore.formats.store.store import StoreReader
    from gnnstore.graph.store import GraphStore


class SharedCache(Protocol):
    """A cache of rows that loaders share."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that it occupies."""

    def close(self) -> None:
        """Free its memory: a loader that still uses it reads every row from now on."""


class SlotOwner(Protocol):
    """What plans for the slots of a loader."""

    def close_if_done(self) -> bool:
        """Whether all batches of its last iteration have their rows, which ends it."""

    def release_slots(self) -> None:
        """Free what was planned for them: another loader takes their memory."""


C = TypeVar("C", bound=SharedCache)


@dataclass(frozen=True)
class CacheKey(Generic[C]):
    """The key of a shared cache, typed by the cache."""

    kind: Hashable  # loaders of one kind share the memory of its caches, which others cannot have
    of: Hashable  # the cache among others of its kind, such as its tables


@dataclass(frozen=True)
class _Use:
    """One loader's use of a cache; without `cache`, of any later one of the kind."""

    kind: Hashable
    cache: SharedCache | None
    promised_bytes: int


class CacheOwner:
    """The caches of one store's rows. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: freeing a loader may free its caches
        self._caches: dict[CacheKey[Any], SharedCache] = {}
        self._uses: WeakKeyDictionary[object, _Use] = WeakKeyDictionary()
        # Slots of the loader that plans and iterated last; another loader's iteration frees them.
        self._slots: SlotCache | None = None
        self._slots_of: weakref.ref[SlotOwner] | None = None

    def find_cache(self, key: CacheKey[C]) -> C | None:
        """Return the cache that another loader has made, if any."""
        with self._lock:
            return cast("C | None", self._caches.get(key))

    def cache(self, key: CacheKey[C], make: Callable[[], C]) -> C:
        """Return a cache, making it the first time."""
        with self._lock:
            if key not in self._caches:
                made = make()
                if not hasattr(made, "close"):
                    raise UsageError(
                        f"a {type(made).__name__} has no close(), by which a shared cache frees "
                        "its memory: rename its retire() to close()"
                    )
                self._caches[key] = made
            return cast("C", self._caches[key])

    def close(self, key: CacheKey[Any]) -> bool:
        """Free a cache, if there is one: loaders that use it read every row from now on."""
        with self._lock:
            found = self._caches.pop(key, None)
            if found is not None:
                found.close()
            return found is not None

    def take_slots(self, owner: SlotOwner, make: Callable[[], SlotCache]) -> SlotCache | None:
        """Return slots for an iteration; None while another loader's still needs its own.

        If the last iteration was another loader's, its slots are freed first.
        """
        with self._lock:
            former = None if self._slots_of is None else self._slots_of()
            if former is not None and former is not owner and not former.close_if_done():
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
            of.release_slots()
        if slots is not None:
            slots.close()
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
                cache.close()
        if self._slots_of is not None and self._slots_of() is None:
            self._free_slots()
        pool_trim(0)

    @property
    def cached_bytes(self) -> int:
        """Bytes that caches of rows occupy."""
        slots = 0 if self._slots is None else self._slots.num_bytes
        return slots + sum(cache.num_bytes for cache in self._caches.values())


# By the store's reader: PyG's base classes make the store itself unhashable.
_owners: WeakKeyDictionary[StoreReader, CacheOwner] = WeakKeyDictionary()
_owners_lock = threading.Lock()


def shared_caches(store: GraphStore) -> CacheOwner:
    """Return the owner of the caches that all loaders on this store object share."""
    with _owners_lock:
        return _owners.setdefault(store.reader, CacheOwner())
