"""Rules that decide which edges a store has, and edges in memory sorted into columns.

Edges are sorted by target, and by source within a target (CSC), and handed to the writer chunk by
chunk. `merge` does the same for edges that do not fit in memory.

Many edges go to buckets of neighbouring targets, which are sorted while others are written: as they
are read, where targets can be sampled all over the input beforehand; else the memory of a block of
the input is used for buckets once its edges are in buckets. All columns are never in memory
together with the buckets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import Reservation
from gnnstore.converters.edges.buffer import BLOCK_BYTES, EdgeBuffer, glimpses
from gnnstore.converters.edges.equal import EqualEdges, SortedEnds
from gnnstore.converters.inputs.source import map_in_order, num_threads
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.threads import Background

# Columns are looked at in blocks of about this many edges.
_BLOCK_EDGES = 2**21


@dataclass(frozen=True)
class EdgeRules:
    """Rules that turn the E edges of an input into the edges of a store."""

    # Edge E + e is the reverse of edge e; of equal edges the one with the smallest id is kept.
    undirected: bool = False
    # "add": nodes without a self-loop get one, with an id after all others.
    self_loops: Literal["keep", "drop", "add"] = "keep"
    keep_ids: bool = True  # whether the store has the ids of its edges

    @property
    def copies(self) -> int:
        """Edges made from each edge of the input, before duplicates are removed."""
        return 2 if self.undirected else 1

    def needs_ids(self, *, has_attributes: bool) -> bool:
        """Return whether ids are needed: to be stored, for attribute rows, or for added loops."""
        return self.keep_ids or has_attributes or self.self_loops == "add"

    def attribute_rows(
        self, edge_ids: npt.NDArray[Any], num_input_edges: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
        """Return the input edge of each edge's attributes, and which edges are added loops."""
        rows = edge_ids.astype(np.int64)
        if self.undirected:
            reverse = (rows >= num_input_edges) & (rows < 2 * num_input_edges)
            rows[reverse] -= num_input_edges
        return rows, edge_ids >= num_input_edges * self.copies if self.self_loops == "add" else None


def compact_columns(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    edge_id: npt.NDArray[Any] | None,
    rules: EdgeRules,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Remove the edges that the rules do not keep, in place: a copy would be the peak of memory."""
    if not rules.undirected and rules.self_loops != "drop":
        return indices, edge_id
    write = 0
    for first, last, begin, end in _column_blocks(indptr):
        columns = np.repeat(np.arange(first, last), np.diff(indptr[first : last + 1]))
        sources = indices[begin:end]
        keep = np.ones(end - begin, dtype=bool)
        if rules.undirected:
            keep[1:] = (sources[1:] != sources[:-1]) | (columns[1:] != columns[:-1])
        if rules.self_loops == "drop":
            keep &= sources != columns
        kept = sources[keep]
        indices[write : write + len(kept)] = kept
        if edge_id is not None:
            edge_id[write : write + len(kept)] = edge_id[begin:end][keep]
        # The block's first entry still holds its old begin; the next block needs the last entry.
        indptr[first] = write
        counts = np.bincount(columns[keep] - first, minlength=last - first)
        indptr[first + 1 : last] = write + np.cumsum(counts)[:-1]
        write += len(kept)
    indptr[-1] = write
    return indices[:write], None if edge_id is None else edge_id[:write]


def _column_blocks(indptr: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int, int]]:
    """Yield (first column, last + 1, first edge, last + 1) of blocks; one column at least."""
    first, num_columns = 0, len(indptr) - 1
    begin = 0
    while first < num_columns:
        last = int(np.searchsorted(indptr[first:], begin + _BLOCK_EDGES, side="right")) + first - 1
        last = min(max(last, first + 1), num_columns)
        end = int(indptr[last])
        yield first, last, begin, end
        first, begin = last, end


def is_identity(edge_id: npt.NDArray[Any]) -> bool:
    """Whether every edge lies where its id says, so that ids need not be stored."""
    return all(
        np.array_equal(
            edge_id[begin : begin + _BLOCK_EDGES],
            np.arange(begin, min(begin + _BLOCK_EDGES, len(edge_id)), dtype=edge_id.dtype),
        )
        for begin in range(0, len(edge_id), _BLOCK_EDGES)
    )


# Chunks in which finished edges are handed over, with attributes of at most so many bytes: large
# enough for sequential writes.
CHUNK_EDGES, _CHUNK_BYTES = 2**21, 2**23
# Scratch of `csc_from_coo`: the low bits of each edge's target, and for each thread the keys and
# ids of the longest column, or of a few columns that it sorts at once.
_SHORT_TARGETS, _SHORT_TARGET_BYTES, _LONG_TARGET_BYTES = 2**27, 2, 4
_NARROW_KEYS, _NARROW_SCRATCH_BYTES, _WIDE_SCRATCH_BYTES = 2**32 - 1, 24, 40
_GROUP_EDGES, _GROUP_SHARE = 2**16, 256


@dataclass(frozen=True)
class SortedEdges:
    """Consecutive edges of a graph, in the order of targets, then sources."""

    sources: npt.NDArray[Any]  # int32 or int64 [k]: source nodes
    targets: npt.NDArray[Any]  # int32 or int64 [k]: target nodes
    edge_id: npt.NDArray[Any] | None  # int32 or int64 [k], or None: positions in the input
    attributes: Mapping[str, npt.NDArray[Any]]  # mapping of str to ndarray [k, ...]: attribute rows

    def take(self, rows: Any) -> SortedEdges:
        """Return the edges of some rows."""
        return SortedEdges(
            self.sources[rows],
            self.targets[rows],
            None if self.edge_id is None else self.edge_id[rows],
            {name: values[rows] for name, values in self.attributes.items()},
        )


@dataclass(frozen=True)
class EdgeChunk:
    """Consecutive edges of the finished adjacency."""

    indices: npt.NDArray[Any]  # int32 or int64, shape [k]: source nodes
    edge_id: npt.NDArray[Any] | None  # int32 or int64, shape [k], or None: positions in the input
    # Mapping of str to ndarray [k, ...]: attribute rows of these edges; zeros for self-loops that
    # were added.
    attributes: Mapping[str, npt.NDArray[Any]]
    # int64, shape [c]: the next entries of `indptr`; those of all chunks are its N + 1 entries.
    indptr: npt.NDArray[np.int64]
    # bool, shape [k], or None: which edges are self-loops that were added; None if none are.
    added: npt.NDArray[np.bool_] | None = None
    # By split: edges to predict, which lie between these but not in the adjacency.
    to_predict: Mapping[str, SortedEdges] = field(default_factory=dict)


class BuiltEdges(Protocol):
    """A finished adjacency, whose edges can be read in order once."""

    num_nodes: int  # N
    num_edges: int  # E
    index_dtype: np.dtype[Any]  # int32 if N < 2**31, else int64
    edge_id_dtype: np.dtype[Any] | None  # none if edges keep no ids of their own

    def chunks(self) -> Iterator[EdgeChunk]:
        """Yield all edges in column order, sorted by source within a column."""

    def close(self) -> None:
        """Remove temporary files, once the edges are written and durable."""


# The attribute that holds ids while edges are sorted; no user's attribute has this name.
CARRIED_IDS = ""


def sort_edges(buffer: EdgeBuffer, rules: EdgeRules, num_nodes: int) -> InMemoryEdges:
    """Sort the edges of a buffer into columns; the buffer is empty afterwards."""
    num_edges = buffer.num_edges
    loops = loops_to_add(buffer, rules, num_nodes)
    sources, targets = join_ends(buffer, rules, num_nodes, loops)
    attributes = {name: rows.joined() for name, rows in (buffer.attributes or {}).items()}
    indptr, indices, edge_id = _core.csc_from_coo(
        sources,
        targets,
        num_nodes,
        num_threads=num_threads(),
        with_edge_id=rules.needs_ids(has_attributes=bool(attributes)),
    )
    del sources, targets
    _core.pool_trim()  # the kernel's scratch memory
    if rules.undirected and attributes and edge_id is not None:
        equal = EqualEdges(num_edges, drops_loops=rules.self_loops == "drop")
        for first, last, begin, end in _column_blocks(indptr):
            columns = np.repeat(np.arange(first, last), np.diff(indptr[first : last + 1]))
            ids = edge_id[begin:end]
            rows = rules.attribute_rows(ids, num_edges)[0]
            ends = SortedEnds(indices[begin:end], columns, ids, rows)
            equal.compare(ends, attributes.items())
        equal.refuse()
    indices, edge_id = compact_columns(indptr, indices, edge_id, rules)
    stores_ids = edge_id is not None and rules.keep_ids and not is_identity(edge_id)
    return InMemoryEdges(
        partial(_slices, indptr, indices, edge_id),
        rules,
        attributes,
        num_nodes=num_nodes,
        num_edges=len(indices),
        num_input_edges=num_edges,
        index_dtype=indices.dtype,
        edge_id_dtype=edge_id.dtype if edge_id is not None and stores_ids else None,
    )


def loops_to_add(buffer: EdgeBuffer, rules: EdgeRules, num_nodes: int) -> npt.NDArray[np.int64]:
    """Return the nodes to add a self-loop to, ascending."""
    if rules.self_loops != "add":
        return np.empty(0, np.int64)
    missing = np.ones(num_nodes, dtype=bool)
    for sources, targets in zip(buffer.sources, buffer.targets, strict=True):
        missing[sources[sources == targets]] = False
    return np.flatnonzero(missing)


def join_ends(
    buffer: EdgeBuffer, rules: EdgeRules, num_nodes: int, loops: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Join the edges, their reverses and the added self-loops; free blocks meanwhile."""
    dtype, edges = id_dtype(num_nodes), buffer.num_edges
    total = edges * rules.copies + len(loops)
    sources, targets = np.empty(total, dtype), np.empty(total, dtype)
    for blocks, ends, reverse_ends in (
        (buffer.sources, sources, targets),
        (buffer.targets, targets, sources),
    ):
        for place, ids in blocks.drain():
            ends[place] = ids
            if rules.undirected:
                reverse_ends[edges + place.start : edges + place.stop] = ids
        ends[total - len(loops) :] = loops
    return sources, targets


# Edges in column order: source nodes, ids, and the next entries of `indptr`.
Columns = tuple[npt.NDArray[Any], npt.NDArray[Any] | None, npt.NDArray[np.int64]]


@dataclass
class InMemoryEdges:
    """A finished adjacency in memory, as `BuiltEdges`."""

    pieces: Callable[[], Iterator[Columns]]
    _rules: EdgeRules
    _attributes: Mapping[str, npt.NDArray[Any]]
    num_nodes: int
    num_edges: int
    num_input_edges: int
    index_dtype: np.dtype[Any]
    edge_id_dtype: np.dtype[Any] | None

    def chunks(self) -> Iterator[EdgeChunk]:
        """Yield all edges in column order."""
        has_rows = bool(self._attributes) or self._rules.self_loops == "add"
        row_bytes = sum(values[:1].nbytes for values in self._attributes.values())
        step = max(1, _CHUNK_BYTES // max(1, row_bytes))
        for indices, ids, indptr in _cut(self.pieces(), step):
            rows, added = {}, None
            if ids is not None and has_rows:
                places, added = self._rules.attribute_rows(ids, self.num_input_edges)
                rows = {
                    name: _take_rows(values, places, added)
                    for name, values in self._attributes.items()
                }
            yield EdgeChunk(
                indices, None if self.edge_id_dtype is None else ids, rows, indptr, added
            )

    def close(self) -> None:
        """Free the edges."""
        self.pieces = tuple[Columns]().__iter__
        _core.pool_trim()


def _cut(pieces: Iterable[Columns], step: int) -> Iterator[Columns]:
    """Yield columns in pieces of at most `step` edges."""
    for indices, ids, indptr in pieces:
        for begin in range(0, max(1, len(indices)), step):
            part = slice(begin, begin + step)
            yield indices[part], None if ids is None else ids[part], indptr[: 0 if begin else None]


def _slices(
    indptr: npt.NDArray[np.int64], indices: npt.NDArray[Any], ids: npt.NDArray[Any] | None
) -> Iterator[Columns]:
    """Yield columns in pieces; one empty piece, if there are no edges."""
    # All of indptr comes with the first piece, as it is in memory anyway.
    return _cut([(indices, ids, indptr)], CHUNK_EDGES)


def _take_rows(
    values: npt.NDArray[Any], rows: npt.NDArray[np.int64], added: npt.NDArray[np.bool_] | None
) -> npt.NDArray[Any]:
    if added is None or not added.any():
        return values[rows]
    taken = np.zeros((len(rows), *values.shape[1:]), values.dtype)
    taken[~added] = values[rows[~added]]
    return taken


def estimate_peak_bytes(
    rules: EdgeRules, num_edges: int, num_nodes: int, attribute_bytes_per_edge: int
) -> int:
    """Return the memory of `sort_edges` at its peak, without `sort_scratch`."""
    total = num_edges * rules.copies + (num_nodes if rules.self_loops == "add" else 0)
    id_bytes = id_dtype(num_nodes).itemsize
    has_ids = rules.needs_ids(has_attributes=attribute_bytes_per_edge > 0)
    edge_id_bytes = id_dtype(total).itemsize if has_ids else 0
    low_bytes = _SHORT_TARGET_BYTES if num_nodes <= _SHORT_TARGETS else _LONG_TARGET_BYTES
    columns = (3 * id_bytes + edge_id_bytes + low_bytes) * total + 8 * (num_nodes + 1)
    attributes = attribute_bytes_per_edge * num_edges
    return columns + attributes + (BLOCK_BYTES if attributes > BLOCK_BYTES else 0)


def sort_scratch(num_nodes: int, edges_at_once: int) -> Reservation:
    """Return the memory in which each kernel thread sorts `edges_at_once` edges."""
    is_narrow = max(num_nodes, edges_at_once) <= _NARROW_KEYS
    edge_bytes = _NARROW_SCRATCH_BYTES if is_narrow else _WIDE_SCRATCH_BYTES
    return Reservation("scratch to sort in", edge_bytes * edges_at_once * num_threads())


def longest_sort(buffer: EdgeBuffer, rules: EdgeRules, num_nodes: int) -> int:
    """Return the most edges that a thread sorts at once: a group of columns, or the longest."""
    counts = np.zeros(num_nodes, np.int64)
    for blocks in (buffer.targets, buffer.sources)[: rules.copies]:
        for ids in blocks:
            for begin in range(0, len(ids), CHUNK_EDGES):
                np.add.at(counts, ids[begin : begin + CHUNK_EDGES].astype(np.intp), 1)
    total = buffer.num_edges * rules.copies
    group = min(total, max(_GROUP_EDGES, total // _GROUP_SHARE))
    return max(group, int(counts.max(initial=0)))


# ---- buckets

# Below, the pieces in flight take so large a part of the memory that sorting all edges at once
# takes less.
MIN_EDGES = 2**25
# An edge is packed in 8 bytes, which limits its ends and its position.
_MAX_NODES, _MAX_EDGES = 2**27, 2**31 - 1
# Some buckets are sorted at a time. A larger share of the edges in one bucket, because of hubs or
# ids that crowd in few places, would take more memory than sorting all edges at once.
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
    return filler.finish(attributes, num_edges)


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
                self._latest = _follow(self._latest, some_sources, some_targets)
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

    def finish(
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


def _follow(
    latest: tuple[int, int], sources: npt.NDArray[np.int32], targets: npt.NDArray[np.int32]
) -> tuple[int, int] | None:
    """Return the last (target, source), if all edges are in the order of columns; else None."""
    if (int(targets[0]), int(sources[0])) < latest:
        return None
    rises = targets[1:] > targets[:-1]
    rises |= (targets[1:] == targets[:-1]) & (sources[1:] >= sources[:-1])
    return (int(targets[-1]), int(sources[-1])) if rises.all() else None
