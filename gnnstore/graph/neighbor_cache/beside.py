"""Chooses and fills a large neighbour cache in a thread, beside batches that are sampled meanwhile.

Draws are keyed, so batches are the same with the cache and without it: until it is there, all
in-neighbours are read from disk. The thread reads in pieces; after each it lets batches that are
fetching go on alone, but no longer than the piece took, so that it comes to an end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from time import monotonic

from gnnstore.errors import GnnstoreError
from gnnstore.formats.store.csc import Csc
from gnnstore.graph.indices import SCAN_IDS, IndexRows
from gnnstore.graph.neighbor_cache.cache import bytes_for_all, bytes_to_choose, open_neighbor_cache
from gnnstore.sampling.staged import CachedNeighbors
from gnnstore.threads import LONG_READ_BYTES, Flag, run_beside

FILLING_THREAD = "gnnstore-neighbors"
_POLL_SECONDS = 0.005
# Of ids: one that is read, what is wanted of it, and which.
_PIECES = 3

_log = logging.getLogger(__name__)


class NeighborCache:
    """The in-neighbour lists that are in memory at the moment. Thread-safe."""

    def __init__(self, csc: Csc, rows: IndexRows, num_bytes: int, uuid: str) -> None:
        self._filled: list[CachedNeighbors | None] = []
        self._num_bytes = num_bytes
        self.stop: Callable[[], object] = lambda: None
        own_bytes = num_bytes - _bytes_beside(csc, rows)
        if not _fills_beside(csc, num_bytes, own_bytes):
            self._filled.append(open_neighbor_cache(csc, rows, num_bytes, uuid))
            return
        open_from = partial(_open, csc, own_bytes, uuid)
        fill = partial(_fill, open_from, rows, self._filled)
        self.stop = run_beside(self, fill, FILLING_THREAD)

    @property
    def current(self) -> CachedNeighbors | None:
        """The cache, if it is there."""
        return self._filled[0] if self._filled else None

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that it takes, or will."""
        if not self._filled:
            return self._num_bytes
        return 0 if self._filled[0] is None else self._filled[0].num_bytes


def _bytes_beside(csc: Csc, rows: IndexRows) -> int:
    """Return the bytes that a thread reading beside others takes of the cache's memory."""
    return rows.staging_bytes + _PIECES * SCAN_IDS * csc.indices.itemsize


def _fills_beside(csc: Csc, num_bytes: int, own_bytes: int) -> bool:
    """Whether reading all lists takes long, and choosing them fits where the cache will be."""
    if csc.num_edges * csc.indices.itemsize < LONG_READ_BYTES:
        return False
    if num_bytes >= bytes_for_all(csc):
        return own_bytes >= bytes_for_all(csc)
    return bytes_to_choose(csc) <= own_bytes


def _open(csc: Csc, num_bytes: int, uuid: str, rows: IndexRows) -> CachedNeighbors | None:
    return open_neighbor_cache(csc, rows, num_bytes, uuid)


class _StoppedError(GnnstoreError):
    """An error that ends the filling of a cache that nobody wants any more."""


def _fill(
    open_from: Callable[[IndexRows], CachedNeighbors | None],
    rows: IndexRows,
    filled: list[CachedNeighbors | None],
    stop: Flag,
) -> None:
    """Choose the lists, and read them; without them batches are the same, and later."""

    def pause(seconds: float) -> None:
        ends = monotonic() + seconds
        while rows.is_fetching and monotonic() < ends and not stop.is_set():
            stop.wait(_POLL_SECONDS)
        if stop.is_set():
            raise _StoppedError("the cache of in-neighbours is not wanted any more")

    try:
        filled.append(open_from(rows.beside(pause)))
    except Exception as error:
        _log.debug("in-neighbours are not cached: %s", error)
