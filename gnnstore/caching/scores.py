"""Which rows a cache should hold that is filled once and never changes (PaGraph, section 3.3).

Two scores order the nodes. "degree": the out-degree, which is how often a node stands in the
columns that neighbours are drawn from, and so the chance that it is drawn (PaGraph).
"frequency": in how many of some batches, sampled beforehand, a node occurs; it also knows the
fan-outs and where the seeds are (GNNLab's pre-sampling). The highest scores are cached, of
equal ones the lowest ids, so that a cache depends on nothing but its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, UsageError
from gnnstore.units import format_size, parse_size

if TYPE_CHECKING:
    from gnnstore.caching.trace import Trace

Score = Literal["degree", "frequency"]
SCORES: tuple[Score, ...] = ("degree", "frequency")

# One byte counts the batches that a node occurs in.
MAX_COUNTED_BATCHES = 255
SCORE_DTYPES: dict[Score, type[np.unsignedinteger[Any]]] = {
    "degree": np.uint32,
    "frequency": np.uint8,
}
_WORDS = {"degree": "of the highest out-degree", "frequency": "that sampling needs most often"}

# Scores are looked at in pieces, so that selecting takes a few MB beside them.
_CHUNK = 1 << 20


@dataclass(frozen=True)
class CacheSettings:
    """What the user asked for.

    Attributes
    ----------
    score : "degree" or "frequency"
        What makes a node's rows worth keeping.
    num_bytes : int or None
        Memory for the cache, its index included; None: what the budget leaves.
    """

    score: Score = "frequency"
    num_bytes: int | None = None


@dataclass(frozen=True)
class CachePlan:
    """A cache as it was made.

    Attributes
    ----------
    score : "degree" or "frequency"
    num_rows : int
        Nodes whose rows it holds.
    num_bytes : int
        Memory that it takes, its index included.
    note : str
        What should be known besides, such as why it is empty.
    """

    score: Score
    num_rows: int
    num_bytes: int
    note: str = ""

    def describe(self) -> str:
        """Return a phrase for the loader's reason."""
        size = format_size(self.num_bytes)
        note = f" ({self.note})" if self.note else ""
        return f"rows of the {self.num_rows} nodes {_WORDS[self.score]} cached in {size}{note}"


@dataclass(frozen=True)
class CacheCost:
    """What a cache takes: an index of the graph's nodes, and so much for each cached node."""

    num_nodes: int
    index_bytes: int
    node_bytes: int

    def rows_in(self, num_bytes: int) -> int:
        """Return the number of nodes whose rows fit."""
        if self.node_bytes == 0:  # no attribute is read, so there is nothing to cache
            return 0
        return max(0, min(self.num_nodes, (num_bytes - self.index_bytes) // self.node_bytes))

    def bytes_of(self, num_rows: int) -> int:
        """Return what the rows of some nodes take; no rows need no index."""
        return self.index_bytes + num_rows * self.node_bytes if num_rows else 0


def read_cache_settings(
    strategy: str, cache: str | None, cache_bytes: int | str | None, *, reads_disk: bool = True
) -> CacheSettings | None:
    """Read the loader's options `cache` and `cache_bytes`; None where no cache is asked for.

    Parameters
    ----------
    strategy : str
        Its name.
    reads_disk : bool
        Whether it reads rows from disk.

    Raises
    ------
    UsageError
        If the score is unknown, or the strategy has no use for a cache.
    """
    if cache is not None and cache not in SCORES:
        raise UsageError(f"cache={cache!r} is unknown; choose one of {', '.join(SCORES)}")
    num_bytes = None if cache_bytes is None else parse_size(cache_bytes, name="cache_bytes")
    if cache is None and num_bytes is None:
        return None
    if not reads_disk:
        given = f"cache={cache!r}" if cache is not None else f"cache_bytes={cache_bytes!r}"
        raise UsageError(
            f"strategy={strategy!r} has no use for {given}: its rows are in memory or in the "
            "system's page cache; choose strategy='static', or leave the option out"
        )
    return CacheSettings(cache or "frequency", num_bytes)


def count_out_degrees(
    columns: Iterable[npt.NDArray[Any]], num_nodes: int, source: str
) -> npt.NDArray[np.uint32]:
    """Count how often each node is an in-neighbour: uint32 [num_nodes].

    Parameters
    ----------
    columns : iterable of ndarray of int32 or int64
        The in-neighbours of all columns, in pieces.
    source : str
        Where they come from, for the message.

    Raises
    ------
    CorruptStoreError
        If one of them is no node.
    """
    counts = np.zeros(num_nodes, np.uint32)
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
    """Choose the nodes of the highest scores; of equal scores, the lowest ids.

    A node that nobody asked for is not cached, unless there is room for all nodes: its rows
    would have to be read for nothing.

    Parameters
    ----------
    scores : ndarray of uint8 or uint32 [N]
    num_rows : int
        The most nodes to choose.

    Returns
    -------
    ndarray of int64 [<= num_rows]
        Node ids, ascending.
    """
    if num_rows >= len(scores):
        return np.arange(len(scores), dtype=np.int64)
    num_rows = min(num_rows, int(np.count_nonzero(scores)))
    nodes = np.empty(max(0, num_rows), np.int64)
    if num_rows <= 0:
        return nodes
    threshold, num_above = _threshold(scores, num_rows)
    num_ties, filled = num_rows - num_above, 0
    for first in range(0, len(scores), _CHUNK):
        part = scores[first : first + _CHUNK]
        chosen = part > threshold
        ties = np.flatnonzero(part == threshold)[:num_ties]
        num_ties -= len(ties)
        chosen[ties] = True
        found = np.flatnonzero(chosen)
        nodes[filled : filled + len(found)] = found + first
        filled += len(found)
    return nodes


def most_needed(
    trace: Trace,
    num_nodes: int,
    num_rows: int,
    degrees: Callable[[], npt.NDArray[np.uint32] | None] = lambda: None,
) -> npt.NDArray[np.int64]:
    """Choose the nodes that most batches of a trace need, of its first 255.

    Takes a byte for each node of the graph meanwhile, beside the degrees.

    Parameters
    ----------
    degrees : callable, optional
        Asked if there is room for more nodes than the trace needs: returns out-degrees [N], by
        which others are chosen that later batches may need, or None. They are changed.

    Returns
    -------
    ndarray of int64 [<= num_rows]
        Node ids, ascending.

    Raises
    ------
    StorageError, CorruptStoreError
        If a trace on disk cannot be read back as it was written.
    """
    counts = np.zeros(num_nodes, np.uint8)
    for i in range(min(trace.num_batches, MAX_COUNTED_BATCHES)):
        _core.count_ids(trace.batch(i), counts)
    scores = degrees() if np.count_nonzero(counts) < num_rows else None
    if scores is None:
        return select_nodes(counts, num_rows)
    for first in range(0, num_nodes, _CHUNK):
        part = slice(first, first + _CHUNK)
        scores[part][counts[part] > 0] = np.iinfo(scores.dtype).max
    return select_nodes(scores, num_rows)


def _threshold(scores: npt.NDArray[Any], num_rows: int) -> tuple[int, int]:
    """Return the score of the num_rows-th best node, and how many nodes have a higher one."""
    # By histograms of the upper and, within the bin that matters, of the lower 16 bits:
    # sorting the scores of 100 million nodes would take 800 MB for their order alone.
    upper, above = _bin_of_rank(_histogram(scores, shift=16), num_rows, 0)
    lower, above = _bin_of_rank(_histogram(scores, shift=0, upper=upper), num_rows, above)
    return (upper << 16) + lower, above


def _histogram(
    scores: npt.NDArray[Any], *, shift: int, upper: int | None = None
) -> npt.NDArray[np.int64]:
    counts = np.zeros(1 << 16, np.int64)
    for first in range(0, len(scores), _CHUNK):
        part = scores[first : first + _CHUNK].astype(np.uint32)
        if upper is not None:
            part = part[part >> 16 == upper]
        counts += np.bincount((part >> shift) & 0xFFFF, minlength=1 << 16)
    return counts


def _bin_of_rank(counts: npt.NDArray[np.int64], rank: int, above: int) -> tuple[int, int]:
    """Return the highest bin down to which there are `rank` nodes, and how many are above it."""
    reached = above + np.cumsum(counts[::-1])
    place = int(np.searchsorted(reached, rank))
    return len(counts) - 1 - place, int(reached[place - 1]) if place else above
