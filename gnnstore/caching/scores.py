"""Chooses the rows of a static cache: one that is filled once and never changes.

Two scores rank the nodes. "degree" is the out-degree: the number of neighbour lists that a node is
in, and so its chance to be drawn (PaGraph, section 3.3). "frequency" is the number of batches,
sampled beforehand, that a node occurs in; it also reflects the fan-outs and where the seeds are
(GNNLab's pre-sampling). The nodes with the highest scores are cached, of equal ones the lowest ids,
so that a cache depends on nothing but its settings. Where more fit than were sampled, those with
the highest out-degrees follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError
from gnnstore.machine import share_of
from gnnstore.sampling.row_space import RowRange
from gnnstore.units import format_size

if TYPE_CHECKING:
    from gnnstore.caching.plan import Trace


# Keys, uint32 [n], and the weight of each, int64 [n]; None: 1 each.
Pieces = Iterable[tuple[npt.NDArray[Any], npt.NDArray[np.int64] | None]]

_NUM_BINS = 1 << 16


def highest_that_overflows(pieces: Callable[[], Pieces], room: int) -> tuple[int, int]:
    """Return the highest key that does not fit with all above it, and the room above leaves."""
    # By their upper and, within the bin that matters, their lower 16 bits.
    upper, left = _highest_bin(((keys >> 16, weights) for keys, weights in pieces()), room)
    if upper < 0:
        return 0, left
    lower, left = _highest_bin(_within(pieces(), upper), left)
    return (upper << 16) + lower, left


def _within(pieces: Pieces, upper: int) -> Pieces:
    for keys, weights in pieces:
        inside = keys >> 16 == upper
        yield keys[inside] & 0xFFFF, None if weights is None else weights[inside]


def _highest_bin(pieces: Pieces, room: int) -> tuple[int, int]:
    """Return the highest bin that does not fit with all above it; -1: none."""
    sums = np.zeros(_NUM_BINS, np.int64)
    for bins, weights in pieces:
        sums += np.bincount(bins, weights, _NUM_BINS).astype(np.int64, copy=False)
    reached = np.cumsum(sums[::-1])
    place = int(np.searchsorted(reached, room, side="right"))
    return _NUM_BINS - 1 - place, room - (int(reached[place - 1]) if place else 0)


Score = Literal["degree", "frequency"]
SCORES: tuple[Score, ...] = ("degree", "frequency")

# Most batches that are counted for each node, in one byte.
MAX_COUNTED_BATCHES = 255
SCORE_DTYPES: dict[Score, type[np.unsignedinteger[Any]]] = {
    "degree": np.uint32,
    "frequency": np.uint8,
}
_WORDS = {"degree": "of the highest out-degree", "frequency": "that sampling needs most often"}

# Scores that are searched at a time, so that selecting takes only a few MB more.
_CHUNK = 1 << 20


@dataclass(frozen=True)
class StaticCacheInfo:
    """The size and content of a static cache."""

    score: Score
    num_rows: int  # nodes with rows in it
    num_bytes: int  # memory that it takes, its index included
    note: str = ""  # a remark for the user, such as why the cache is empty

    def describe(self) -> str:
        """Return the phrase that the loader's reason describes the cache with."""
        size = format_size(self.num_bytes)
        note = f" ({self.note})" if self.note else ""
        return f"rows of the {self.num_rows} nodes {_WORDS[self.score]} cached in {size}{note}"


@dataclass(frozen=True)
class CacheCost:
    """Bytes of a static cache: an index of the graph's nodes, and the rows of each cached node.

    Where ranks of one machine share the cache, each counts its part.
    """

    num_nodes: int
    index_bytes: int
    node_bytes: int
    num_ranks: int = 1

    @property
    def whole(self) -> CacheCost:
        """The bytes that all ranks count together."""
        return replace(self, num_ranks=1)

    def rows_in(self, num_bytes: int) -> int:
        """Return the number of nodes for which each rank's bytes have room."""
        if self.node_bytes == 0:  # no attribute is read, so there is nothing to cache
            return 0
        left = num_bytes * self.num_ranks - self.index_bytes
        return max(0, min(self.num_nodes, left // self.node_bytes))

    def bytes_of(self, num_rows: int) -> int:
        """Return the bytes that a rank counts of a cache for a number of nodes; 0 for none."""
        whole = self.index_bytes + num_rows * self.node_bytes if num_rows else 0
        return share_of(whole, self.num_ranks)


def count_out_degrees(
    columns: Iterable[npt.NDArray[Any]], counts: int | npt.NDArray[np.uint32], source: str
) -> npt.NDArray[np.uint32]:
    """Count the out-degree of each node: uint32 [N], new ones of N nodes, or added to some."""
    if isinstance(counts, int):
        counts = np.zeros(counts, np.uint32)
    try:
        for part in columns:
            _core.count_ids(part, counts)
    except IndexError as error:
        raise CorruptStoreError(
            f"cannot count the degrees of {source}: {error}. Its topology is damaged; run "
            "'gnnstore verify' on it, or convert the graph again",
            path=source,
        ) from error
    return counts


def select_nodes(scores: npt.NDArray[Any], num_rows: int) -> npt.NDArray[np.int64]:
    """Choose the nodes with the highest scores; of equal scores, the lowest ids."""
    if num_rows >= len(scores):
        return np.arange(len(scores), dtype=np.int64)
    num_rows = min(num_rows, int(np.count_nonzero(scores)))
    nodes = np.empty(max(0, num_rows), np.int64)
    if num_rows <= 0:
        return nodes
    firsts = range(0, len(scores), _CHUNK)
    threshold, num_ties = highest_that_overflows(
        lambda: ((scores[i : i + _CHUNK].astype(np.uint32), None) for i in firsts), num_rows
    )
    filled = 0
    for first in firsts:
        part = scores[first : first + _CHUNK]
        chosen = part > threshold
        ties = np.flatnonzero(part == threshold)[:num_ties]
        num_ties -= len(ties)
        chosen[ties] = True
        places = np.flatnonzero(chosen)
        nodes[filled : filled + len(places)] = places + first
        filled += len(places)
    return nodes


def num_that_fit(
    scores: npt.NDArray[Any], row_bytes: Mapping[RowRange, int], num_bytes: int
) -> int:
    """Return how many of the nodes with the highest scores fit, in the order of `select_nodes`.

    A row saves its bytes each time that it is needed, and costs its bytes: so the score alone
    decides, for types of any widths.
    """
    if sum(own.num_rows * each for own, each in row_bytes.items()) <= num_bytes:
        return len(scores)

    def pieces() -> Iterator[tuple[npt.NDArray[Any], int]]:
        for own, each in row_bytes.items():
            for first in range(own.first, own.first + own.num_rows, _CHUNK):
                yield scores[first : min(first + _CHUNK, own.first + own.num_rows)], each

    threshold, left = highest_that_overflows(
        lambda: (
            (part.astype(np.uint32), np.full(len(part), each, np.int64)) for part, each in pieces()
        ),
        num_bytes,
    )
    found = sum(int(np.count_nonzero(part > threshold)) for part, _ in pieces())
    for part, each in pieces() if threshold else ():
        num_ties = int(np.count_nonzero(part == threshold))
        num_fitting = left // each if each else num_ties
        found += min(num_ties, num_fitting)
        if num_fitting < num_ties:
            break
        left -= num_ties * each
    return found


def most_needed(
    trace: Trace,
    num_nodes: int,
    num_rows: int,
    degrees: Callable[[], npt.NDArray[np.uint32] | None] = lambda: None,
    *,
    least: int = 1,
) -> npt.NDArray[np.int64]:
    """Choose the nodes that occur in most of the first 255 batches of a trace.

    Takes a byte for each node of the graph in the meantime, and the degrees.
    """
    counts = np.zeros(num_nodes, np.uint8)
    for i in range(min(trace.num_batches, MAX_COUNTED_BATCHES)):
        _core.count_ids(trace.batch(i), counts)
    if least > 1:
        counts[counts < least] = 0
    is_short = np.count_nonzero(counts) < num_rows
    return select_nodes(filled_up(counts, degrees) if is_short else counts, num_rows)


def filled_up(
    counts: npt.NDArray[np.uint8], degrees: Callable[[], npt.NDArray[np.uint32] | None]
) -> npt.NDArray[Any]:
    """Return scores for a cache with room for more rows than were counted.

    The others are scored by their out-degrees, which are overwritten: a row of many lists is likely
    to be drawn, although no sampled batch needs it. Without degrees, the counts are returned.
    """
    scores = degrees()
    if scores is None:
        return counts
    for first in range(0, len(counts), _CHUNK):
        part = slice(first, first + _CHUNK)
        scores[part][counts[part] > 0] = np.iinfo(scores.dtype).max
    return scores
