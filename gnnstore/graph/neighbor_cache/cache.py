"""The neighbour cache of sampling from disk: the most important lists (Ginex, section 3.2).

It is static: filled once, in the order in which the lists lie on disk. The choice of the lists is
saved between runs, so that the next start only reads them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gnnstore._core import empty
from gnnstore.caching.scores import count_out_degrees
from gnnstore.formats.store.csc import Csc
from gnnstore.graph.indices import SCAN_IDS, IndexRows
from gnnstore.graph.neighbor_cache.importance import (
    all_lists,
    choose_lists,
    in_degrees,
    num_words,
    unpack_bits,
)
from gnnstore.graph.neighbor_cache.saved import ListsKey, load_lists, save_lists
from gnnstore.sampling.staged import CachedNeighbors

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
