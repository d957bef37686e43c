"""Many edges in memory, sorted in buckets of neighbouring targets while others are written.

Buckets are filled as the edges are read, where targets can be sampled all over the input
beforehand; else the memory of a block of the input is used for buckets once its edges are in
buckets. All columns are never in memory together with the buckets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.edges.buffer import EdgeBuffer, glimpses
from gnnstore.converters.edges.columns import Columns, InMemoryEdges, first_descent, loops_to_add
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.inputs.source import map_in_order, num_threads
from gnnstore.threads import Background

# Fewest edges that are put into buckets: for fewer, the pieces in flight take so large a part of
# the memory that sorting all at once takes less.
MIN_EDGES = 2**25
# Most nodes and edges: an edge is packed in 8 bytes, with its ends and its position.
_MAX_NODES, _MAX_EDGES = 2**27, 2**31 - 1
# The largest share of the edges in one bucket, and buckets that are sorted at a time. With more in
# one, because of hubs or ids that crowd in few places, sorting all edges at once takes less memory.
_LARGEST_SHARE, _MAX_AHEAD = 1 / 64, 8
# Edges that a thread puts into buckets at a time.
_PIECE_EDGES = 2**19
_THREAD_NAME = "gnnstore-buckets"


def begin_buckets(
    rules: EdgeRules, num_edges: int, num_nodes: int, targets: Iterable[npt.NDArray[Any]]
) -> BucketFiller | None:
    """Return a filler for a number of edges; None where sorting all at once is better."""
    if rules.undirected or rules.self_loops == "drop":
        return None
    if num_edges < MIN_EDGES or num_edges + num_nodes > _MAX_EDGES or num_nodes > _MAX_NODES:
        return None
    buckets = _core.EdgeBuckets(num_nodes, num_threads())
    for some in targets:
        # Other targets are an error when they are read.
        in_range = some[(some >= 0) & (some < num_nodes)]
        buckets.sample(in_range.astype(np.int32, copy=False))
    if buckets.plan(num_edges) > _LARGEST_SHARE * num_edges:
        return None
    return BucketFiller(buckets, rules, num_nodes)


def fill_buckets(buffer: EdgeBuffer, rules: EdgeRules, num_nodes: int) -> InMemoryEdges | None:
    """Move the edges of a buffer to buckets, and empty it; None as in `begin_buckets`."""
    num_edges = buffer.num_edges
    loops = loops_to_add(buffer, rules, num_nodes).astype(np.int32)
    blocks = (*buffer.targets, loops)
    some = (targets[place] for targets in blocks for place in glimpses(len(targets)))
    filler = begin_buckets(rules, num_edges + len(loops), num_nodes, some)
    del blocks
    if filler is None:
        return None
    for (_, sources), (_, targets) in zip(
        buffer.sources.drain(), buffer.targets.drain(), strict=True
    ):
        filler.add(sources, targets)
        filler.give(sources, targets)
        del sources, targets
    filler.add(loops, loops)
    attributes = {name: rows.joined() for name, rows in (buffer.attributes or {}).items()}
    return filler.build(attributes, num_edges)


class BucketFiller:
    """Puts edges into buckets in the background, piece by piece; see `begin_buckets`."""

    def __init__(self, buckets: _core.EdgeBuckets, rules: EdgeRules, num_nodes: int) -> None:
        self._buckets = buckets
        self._rules = rules
        self._num_nodes = num_nodes
        self._num_edges = 0
        self._latest: tuple[int, int] | None = (-1, -1)  # None: the edges are in no order
        self._tasks: deque[Background[None]] = deque()

    def add(self, sources: npt.NDArray[Any], targets: npt.NDArray[Any]) -> None:
        """Add the next edges, whose ids are in range; arrays must not change meanwhile."""
        for begin in range(0, len(sources), _PIECE_EDGES):
            part = slice(begin, begin + _PIECE_EDGES)
            some_sources = np.ascontiguousarray(sources[part], np.int32)
            some_targets = np.ascontiguousarray(targets[part], np.int32)
            if self._rules.keep_ids and self._latest is not None:
                descent = first_descent(self._latest, some_sources, some_targets)
                last = int(some_targets[-1]), int(some_sources[-1])
                self._latest = last if descent is None else None
            add = partial(self._buckets.add, some_sources, some_targets, self._num_edges)
            self._tasks.append(Background(add, _THREAD_NAME))
            self._num_edges += len(some_sources)
            self._wait(num_threads())

    def _wait(self, num_left: int) -> None:
        while len(self._tasks) > num_left:
            self._tasks.popleft().result()

    def give(self, *blocks: npt.NDArray[np.int32]) -> None:
        """Reuse the memory of added edges for buckets: fresh memory would have to be cleared."""
        self._wait(0)
        for ids in blocks:
            self._buckets.give(ids)

    def build(
        self, attributes: Mapping[str, npt.NDArray[Any]], num_input_edges: int
    ) -> InMemoryEdges:
        """Return the edges in columns, after all were added."""
        self._wait(0)
        is_even = self._buckets.finish() <= 2 * _LARGEST_SHARE * self._num_edges
        # Ids of edges in the order of columns need not be stored.
        stores_ids = self._rules.keep_ids and self._latest is None
        needs_ids = stores_ids or bool(attributes) or self._rules.self_loops == "add"
        # Some pieces wait for the disk meanwhile.
        num_ahead = min(2 * num_threads(), _MAX_AHEAD) if is_even else 0
        int32 = np.dtype(np.int32)
        return InMemoryEdges(
            partial(sorted_pieces, self._buckets, num_ahead, with_edge_id=needs_ids),
            self._rules,
            attributes,
            num_nodes=self._num_nodes,
            num_edges=self._num_edges,
            num_input_edges=num_input_edges,
            index_dtype=int32,
            edge_id_dtype=int32 if stores_ids else None,
        )


def sorted_pieces(
    buckets: _core.EdgeBuckets, num_ahead: int, *, with_edge_id: bool
) -> Iterator[Columns]:
    """Yield columns that are sorted while they are read."""
    sort = partial(buckets.sort, with_edge_id=with_edge_id)
    first = 0
    for indptr, indices, ids in map_in_order(sort, range(buckets.num_pieces), num_ahead):
        yield indices, ids, indptr[first:]  # each piece begins where the last one ended
        first = 1
