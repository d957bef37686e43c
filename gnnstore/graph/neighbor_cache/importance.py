"""Chooses the in-neighbour lists of a neighbour cache (Ginex, section 3.2).

The importance of a node is its out-degree over its in-degree: the number of lists that it can be
drawn from, and so how often its own is needed, over the length of its own. The most important lists
are cached until the cache is full, of equally important ones those of the lowest ids.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gnnstore.caching.thresholds import highest_that_overflows
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.store.csc import Csc

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
