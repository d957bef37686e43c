"""Edges in memory dealt to buckets of neighbouring targets, and sorted while others are written.

The memory of a block of the input serves for buckets once its edges are dealt, and what is sorted
goes to the writer piece by piece: neither all edges in order nor all columns are ever there beside
the buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.edges.buffer import EdgeBuffer
from gnnstore.converters.edges.columns import EdgeChunk, edge_chunk, loops_to_add
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.read_ahead import map_in_order, num_threads

# Below, the block that is being dealt is too large a part of the memory for this to take less than
# sorting all edges at once.
MIN_EDGES = 2**25
# What 8 bytes hold of an edge.
_MAX_NODES, _MAX_EDGES = 2**27, 2**31 - 1
# Some buckets are sorted at once. A larger share in one, as hubs have it, and ids that crowd in few
# places, would take more memory than sorting all edges at once.
_LARGEST_SHARE, _MAX_AHEAD = 1 / 64, 8
_ORDER_EDGES = 2**18

Blocks = Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]


def deal_edges(buffer: EdgeBuffer, rules: EdgeRules, num_nodes: int) -> DealtEdges | None:
    """Deal the edges of a buffer, which is empty afterwards.

    At its peak this, and sorting, takes less than `estimate_peak_bytes` says.

    Returns
    -------
    DealtEdges or None
        None for `sort_edges` to sort them all at once: if edges have to go, so that their number is
        known late, or there are too few or too many of them, also in one place.
    """
    num_edges = buffer.num_edges
    if rules.undirected or rules.self_loops == "drop":
        return None
    if num_edges < MIN_EDGES or num_edges + num_nodes > _MAX_EDGES or num_nodes > _MAX_NODES:
        return None
    loops = loops_to_add(buffer, rules, num_nodes).astype(np.int32)
    total = num_edges + len(loops)
    buckets = _core.EdgeBuckets(num_nodes, num_threads())
    for block in _blocks(buffer, loops):
        buckets.sample(*block)
        del block
    if buckets.plan(total) > _LARGEST_SHARE * total:
        return None
    keeps_ids = rules.keep_ids and not _is_in_order(_blocks(buffer, loops))
    for (_, sources), (_, targets) in zip(
        buffer.sources.drain(), buffer.targets.drain(), strict=True
    ):
        buckets.add(sources, targets)
        # Fresh memory would have to be cleared.
        buckets.give(sources)
        buckets.give(targets)
        del sources, targets
    buckets.add(loops, loops)
    buckets.finish()
    attributes = {name: rows.joined() for name, rows in (buffer.attributes or {}).items()}
    int32 = np.dtype(np.int32)
    return DealtEdges(
        buckets,
        rules,
        attributes,
        num_nodes=num_nodes,
        num_edges=total,
        num_input_edges=num_edges,
        index_dtype=int32,
        edge_id_dtype=int32 if keeps_ids else None,
    )


@dataclass
class DealtEdges:
    """A finished adjacency whose columns are sorted as they are asked for, as `BuiltEdges`."""

    _buckets: _core.EdgeBuckets | None
    _rules: EdgeRules
    _attributes: Mapping[str, npt.NDArray[Any]]
    num_nodes: int
    num_edges: int
    num_input_edges: int
    index_dtype: np.dtype[Any]
    edge_id_dtype: np.dtype[Any] | None

    def chunks(self, *, ends_only: bool = False) -> Iterator[EdgeChunk]:
        """Yield all edges in column order."""
        buckets = self._buckets
        if buckets is None:
            raise AssertionError("the edges are closed")
        attributes = {} if ends_only else self._attributes
        stores_ids = not ends_only and self.edge_id_dtype is not None
        needs_ids = stores_ids or bool(attributes) or self._rules.self_loops == "add"
        sort = partial(buckets.sort, with_edge_id=needs_ids)
        first = 0
        for indptr, indices, ids in map_in_order(sort, range(buckets.num_pieces), _num_ahead()):
            # Each begins where the last one ended.
            yield edge_chunk(
                (indices, ids, indptr[first:]),
                attributes,
                self._rules,
                self.num_input_edges,
                stores_ids=stores_ids,
            )
            first = 1

    def close(self) -> None:
        """Let go of the edges' memory."""
        self._buckets = None
        _core.pool_trim()


def _num_ahead() -> int:
    """Return how many pieces to sort at a time: some for the disk while the processors wait."""
    return min(2 * num_threads(), _MAX_AHEAD)


def _blocks(buffer: EdgeBuffer, loops: npt.NDArray[np.int32]) -> Blocks:
    """Yield sources and targets, block by block, those of added self-loops last."""
    yield from zip(buffer.sources, buffer.targets, strict=True)
    if len(loops):
        yield loops, loops


def _is_in_order(blocks: Blocks) -> bool:
    """Whether edges lie in the order of columns, so that their ids need not be stored."""
    latest = -1, -1
    for all_sources, all_targets in blocks:
        for begin in range(0, len(all_sources), _ORDER_EDGES):
            part = slice(begin, begin + _ORDER_EDGES)
            sources, targets = all_sources[part], all_targets[part]
            if (int(targets[0]), int(sources[0])) < latest:
                return False
            rises = targets[1:] > targets[:-1]
            rises |= (targets[1:] == targets[:-1]) & (sources[1:] >= sources[:-1])
            if not rises.all():
                return False
            latest = int(targets[-1]), int(sources[-1])
    return True
