"""The neighbour cache of sampling from disk: the most important lists (Ginex, section 3.2).

It is static: filled once, in the order in which the lists lie on disk. The choice of the lists is
saved between runs, so that the next start only reads them. A large cache is chosen and filled in a
background thread: draws are keyed, so batches are the same with the cache and without it. After
each piece the thread pauses while batches fetch, but no longer than the piece took.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from time import monotonic

import numpy as np
import numpy.typing as npt

from gnnstore._core import empty
from gnnstore.caching.scores import count_out_degrees
from gnnstore.errors import GnnstoreError
from gnnstore.formats.store.csc import Csc
from gnnstore.graph.indices import SCAN_IDS, IndexRows
from gnnstore.graph.neighbor_cache.importance import (
    ListsKey,
    all_lists,
    choose_lists,
    in_degrees,
    load_lists,
    num_words,
    save_lists,
    unpack_bits,
)
from gnnstore.sampling.disk import CachedNeighbors
from gnnstore.threads import LONG_READ_BYTES, Flag, run_in_background

# For 64 nodes, their bits and the start of their lists.
_WORD_BYTES = 16
# Budgets that follow the free memory differ from start to start: their capacities are rounded
# down to this many significant bits, by 3 % at most, or no saved choice would ever fit.
_CAPACITY_BITS = 6


def index_bytes(num_nodes: int) -> int:
    """Return the bytes of a neighbour cache without its lists."""
    return _WORD_BYTES * num_words(num_nodes)


def bytes_for_all(csc: Csc) -> int:
    """Return the bytes of a neighbour cache of all lists."""
    return index_bytes(csc.num_nodes) + csc.num_edges * csc.indices.itemsize


def bytes_to_choose(csc: Csc) -> int:
    """Return the bytes that choosing the lists takes, before the cache is filled."""
    return 4 * csc.num_src + 3 * SCAN_IDS * csc.indices.itemsize


def open_neighbor_cache(
    csc: Csc, rows: IndexRows, num_bytes: int, uuid: str
) -> CachedNeighbors | None:
    """Return the most important in-neighbour lists that fit; None if none does."""
    capacity = (num_bytes - index_bytes(csc.num_nodes)) // csc.indices.itemsize
    if capacity <= 0:
        return None
    if capacity >= csc.num_edges:
        return _fill(csc, rows, all_lists(csc))
    dropped = max(0, capacity.bit_length() - _CAPACITY_BITS)
    capacity = capacity >> dropped << dropped
    key = ListsKey(uuid, rows.path, csc.num_nodes, capacity)
    bits = load_lists(key)
    if bits is not None:
        cache = _fill(csc, rows, bits, capacity)
        if cache is not None:
            return cache
    out_degrees = count_out_degrees(rows.scan(), csc.num_src, csc.label)
    bits = choose_lists(csc, out_degrees, capacity)
    del out_degrees
    save_lists(key, bits)
    return _fill(csc, rows, bits)


def _fill(
    csc: Csc, rows: IndexRows, bits: npt.NDArray[np.uint64], capacity: int | None = None
) -> CachedNeighbors | None:
    """Return the lists of the chosen nodes; None if they are empty, or exceed the capacity."""
    starts = np.zeros(len(bits) + 1, np.int64)
    num_nodes = 0
    for first, degrees in in_degrees(csc):
        cached = unpack_bits(bits, first, len(degrees))
        num_nodes += int(np.count_nonzero(cached))
        words = np.zeros(num_words(len(degrees)) * 64, np.int64)
        words[: len(degrees)] = degrees * cached
        sums = words.reshape(-1, 64).sum(axis=1)
        starts[first // 64 + 1 : first // 64 + 1 + len(sums)] = sums
    np.cumsum(starts, out=starts)
    total = int(starts[-1])
    if total == 0 or (capacity is not None and total > capacity):
        return None
    neighbors = empty((total,), rows.dtype)
    filled = 0
    for start in range(0, csc.num_edges, SCAN_IDS):
        stop = min(start + SCAN_IDS, csc.num_edges)
        wanted = _wanted(csc, bits, start, stop)
        if wanted is not None:
            ids = rows.read(start, stop)[wanted]
            neighbors[filled : filled + len(ids)] = ids
            filled += len(ids)
    return CachedNeighbors(bits, starts[:-1], neighbors, num_nodes)


def _wanted(
    csc: Csc, bits: npt.NDArray[np.uint64], start: int, stop: int
) -> npt.NDArray[np.bool_] | None:
    """Return whether each position in [start, stop) is in a cached node's list; None: none is."""
    # From the first node whose list reaches into the range, and down to the beginning of its
    # word, to the last one whose list begins there.
    first = int(np.searchsorted(csc.indptr, start, side="right")) - 1
    last = int(np.searchsorted(csc.indptr, stop, side="left"))
    first = first // 64 * 64
    cached = unpack_bits(bits, first, last - first)
    bounds: npt.NDArray[np.int64] = np.clip(csc.indptr[first : last + 1], start, stop)
    lengths = bounds[1:] - bounds[:-1]
    if not (cached & (lengths > 0)).any():
        return None
    return np.repeat(cached, lengths)


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
        open_from = partial(open_neighbor_cache, csc, num_bytes=own_bytes, uuid=uuid)
        fill = partial(_fill_behind, open_from, rows, self._filled)
        self.stop = run_in_background(self, fill, FILLING_THREAD)

    def current(self) -> CachedNeighbors | None:
        """Return the cache, if it is there."""
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


def _fill_behind(
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
            raise GnnstoreError("the cache of in-neighbours is not wanted any more")

    try:
        filled.append(open_from(rows.in_background(pause)))
    except Exception as error:
        _log.debug("in-neighbours are not cached: %s", error)
