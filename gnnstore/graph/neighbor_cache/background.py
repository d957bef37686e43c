"""Chooses and fills a large neighbour cache in a background thread, while batches are sampled.

Draws are keyed, so batches are the same with the cache and without it: until it is there, all
in-neighbours are read from disk. After each piece the thread pauses while batches fetch, but no
longer than the piece took, so that it comes to an end.
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
from gnnstore.threads import LONG_READ_BYTES, Flag, run_in_background

FILLING_THREAD = "gnnstore-neighbors"
_POLL_SECONDS = 0.005
# Vectors of ids in memory: those read, those to keep, and the mask of the latter.
_PIECES = 3

_log = logging.getLogger(__name__)


class NeighborCache:
    """The in-neighbour lists that are in memory at the moment. Thread-safe."""

    def __init__(self, csc: Csc, rows: IndexRows, num_bytes: int, uuid: str) -> None:
        self._filled: list[CachedNeighbors | None] = []
        self._num_bytes = num_bytes
        self.stop: Callable[[], object] = lambda: None
        own_bytes = num_bytes - _bytes_in_background(csc, rows)
        if not _fills_in_background(csc, num_bytes, own_bytes):
            self._filled.append(open_neighbor_cache(csc, rows, num_bytes, uuid))
            return
        open_from = partial(_open, csc, own_bytes, uuid)
        fill = partial(_fill, open_from, rows, self._filled)
        self.stop = run_in_background(self, fill, FILLING_THREAD)

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


def _bytes_in_background(csc: Csc, rows: IndexRows) -> int:
    """Return the part of the cache's memory that reading in the background takes."""
    return rows.staging_bytes + _PIECES * SCAN_IDS * csc.indices.itemsize


def _fills_in_background(csc: Csc, num_bytes: int, own_bytes: int) -> bool:
    """Whether reading all lists takes long, and choosing them fits the cache's own memory."""
    if csc.num_edges * csc.indices.itemsize < LONG_READ_BYTES:
        return False
    if num_bytes >= bytes_for_all(csc):
        return own_bytes >= bytes_for_all(csc)
    return bytes_to_choose(csc) <= own_bytes


def _open(csc: Csc, num_bytes: int, uuid: str, rows: IndexRows) -> CachedNeighbors | None:
    return open_neighbor_cache(csc, rows, num_bytes, uuid)


class _StoppedError(GnnstoreError):
    """An error that ends the filling of a cache that is no longer used."""


def _fill(
    open_from: Callable[[IndexRows], CachedNeighbors | None],
    rows: IndexRows,
    filled: list[CachedNeighbors | None],
    stop: Flag,
) -> None:
    """Choose and read the lists. An error is logged only: without a cache batches are the same."""

    def pause(seconds: float) -> None:
        ends = monotonic() + seconds
        while rows.is_fetching and monotonic() < ends and not stop.is_set():
            stop.wait(_POLL_SECONDS)
        if stop.is_set():
            raise _StoppedError("the cache of in-neighbours is not wanted any more")

    try:
        filled.append(open_from(rows.in_background(pause)))
    except Exception as error:
        _log.debug("in-neighbours are not cached: %s", error)
