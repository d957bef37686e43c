"""The neighbour cache of sampling from disk: the most important lists (Ginex, section 3.2).

The importance of a node is its out-degree over its in-degree: the number of lists that it can be
drawn from, and so how often its own is needed, over the length of its own. The most important lists
are cached until the cache is full, of equally important ones those of the lowest ids.

The cache is filled once, when it is opened: a pass over the graph counts out-degrees, with 4 bytes
of memory a node, and another reads the lists, in the order in which they lie on disk.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gnnstore._core import empty
from gnnstore.caching.scores import count_out_degrees
from gnnstore.caching.thresholds import highest_that_overflows
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.store.store import Csc
from gnnstore.graph.indices import SCAN_IDS, IndexRows
from gnnstore.sampling.disk import CachedNeighbors

# For 64 nodes, their bits and the start of their lists.
_WORD_BYTES = 16


def index_bytes(num_nodes: int) -> int:
    """Return the bytes of a neighbour cache without its lists."""
    return _WORD_BYTES * num_words(num_nodes)


def bytes_for_all(csc: Csc) -> int:
    """Return the bytes of a neighbour cache of all lists."""
    return index_bytes(csc.num_nodes) + csc.num_edges * csc.indices.itemsize


def bytes_to_choose(csc: Csc) -> int:
    """Return the bytes that choosing the lists takes, before the cache is filled."""
    return 4 * csc.num_src + 3 * SCAN_IDS * csc.indices.itemsize


def open_neighbor_cache(csc: Csc, rows: IndexRows, num_bytes: int) -> CachedNeighbors | None:
    """Return the most important in-neighbour lists that fit; None if none does."""
    capacity = (num_bytes - index_bytes(csc.num_nodes)) // csc.indices.itemsize
    if capacity <= 0:
        return None
    if capacity >= csc.num_edges:
        return _fill(csc, rows, all_lists(csc))
    out_degrees = count_out_degrees(rows.scan(), csc.num_src, csc.label)
    bits = choose_lists(csc, out_degrees, capacity)
    del out_degrees
    return _fill(csc, rows, bits)


def _fill(csc: Csc, rows: IndexRows, bits: npt.NDArray[np.uint64]) -> CachedNeighbors | None:
    """Return the lists of the chosen nodes; None if they are empty."""
    starts = np.zeros(len(bits) + 1, np.int64)
    for first, degrees in in_degrees(csc):
        cached = unpack_bits(bits, first, len(degrees))
        words = np.zeros(num_words(len(degrees)) * 64, np.int64)
        words[: len(degrees)] = degrees * cached
        sums = words.reshape(-1, 64).sum(axis=1)
        starts[first // 64 + 1 : first // 64 + 1 + len(sums)] = sums
    np.cumsum(starts, out=starts)
    total = int(starts[-1])
    if total == 0:
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
    return CachedNeighbors(bits, starts[:-1], neighbors)


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


# Nodes are processed in pieces, so that choosing takes only a few MB more than the out-degrees.
# A multiple of 64: pieces fill whole words of a bitmap.
_CHUNK = 1 << 18


def choose_lists(
    csc: Csc, out_degrees: npt.NDArray[np.uint32], max_neighbors: int
) -> npt.NDArray[np.uint64]:
    """Choose the most important lists that hold at most `max_neighbors` in-neighbours."""
    threshold, left = highest_that_overflows(
        lambda: ((keys, degrees * (keys > 0)) for _, degrees, keys in _keys(csc, out_degrees)),
        max_neighbors,
    )
    bits = np.zeros(num_words(csc.num_nodes), np.uint64)
    for first, degrees, keys in _keys(csc, out_degrees):
        chosen = keys > threshold
        # Of equally important lists the first ones, up to the first that does not fit.
        ties = np.flatnonzero((keys == threshold) & (keys > 0))
        fitting = np.cumsum(degrees[ties]) <= left
        chosen[ties[fitting]] = True
        left = left - int(degrees[ties].sum()) if fitting.all() else 0
        _set_bits(bits, first, chosen)
    return bits


def all_lists(csc: Csc) -> npt.NDArray[np.uint64]:
    """Choose all lists that are not empty: uint64 [ceil(N / 64)]."""
    bits = np.zeros(num_words(csc.num_nodes), np.uint64)
    for first, degrees in in_degrees(csc):
        _set_bits(bits, first, degrees > 0)
    return bits


def num_words(num_nodes: int) -> int:
    """Return the number of elements in a bitmap of nodes."""
    return -(-num_nodes // 64)


def unpack_bits(bits: npt.NDArray[np.uint64], first: int, count: int) -> npt.NDArray[np.bool_]:
    """Return the bits of `count` nodes from `first`, a multiple of 64, as bool [count]."""
    words = bits[first // 64 : num_words(first + count)].astype("<u8", copy=False)
    return np.unpackbits(words.view(np.uint8), count=count, bitorder="little").view(bool)


def _set_bits(bits: npt.NDArray[np.uint64], first: int, chosen: npt.NDArray[np.bool_]) -> None:
    words = np.zeros(num_words(len(chosen)) * 8, np.uint8)
    packed = np.packbits(chosen, bitorder="little")
    words[: len(packed)] = packed
    bits[first // 64 : first // 64 + len(words) // 8] = words.view("<u8")


def in_degrees(csc: Csc) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the first node of a piece and the lengths of its lists, for all nodes."""
    expected = 0
    for first in range(0, csc.num_nodes, _CHUNK):
        part = csc.indptr[first : first + _CHUNK + 1]
        degrees = np.diff(part)
        if part[0] != expected or (degrees < 0).any():
            raise _damaged(csc)
        expected = int(part[-1])
        yield first, degrees
    if expected != csc.num_edges:
        raise _damaged(csc)


def _keys(
    csc: Csc, out_degrees: npt.NDArray[np.uint32]
) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.uint32]]]:
    """Yield first node, lengths of lists, and importance as integers in its order; 0: none."""
    for first, degrees in in_degrees(csc):
        uses = np.zeros(len(degrees), np.float32)
        found = out_degrees[first : first + len(degrees)]
        uses[: len(found)] = found
        # Positive floats are ordered as their bits are.
        keys = (uses / np.maximum(degrees, 1).astype(np.float32)).view(np.uint32)
        keys[degrees == 0] = 0
        yield first, degrees, keys


def _damaged(csc: Csc) -> CorruptStoreError:
    return CorruptStoreError(
        f"cannot choose the in-neighbour lists to cache of {csc.label}: indptr does not ascend "
        f"from 0 to {csc.num_edges}, the number of edges. Its topology is damaged; run 'gnnstore "
        "verify' on it, or convert the graph again",
        path=csc.label,
    )
