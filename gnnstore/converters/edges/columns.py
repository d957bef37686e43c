"""Edges in memory, sorted into columns.

Edges are sorted by target, and by source within a target (CSC), and handed to the writer chunk by
chunk. `buckets` does the same for many edges, and `merge` for edges that do not fit in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import Reservation
from gnnstore.converters.edges.buffer import BLOCK_BYTES, EdgeBuffer
from gnnstore.converters.edges.equal import EqualEdges, SortedEnds
from gnnstore.converters.edges.rules import EdgeRules, column_blocks, compact_columns, is_identity
from gnnstore.converters.inputs.source import num_threads
from gnnstore.formats.arrays.dtypes import id_dtype

# Edges and attribute bytes, at most, of a chunk of finished edges: large enough for sequential
# writes.
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
    # int64, shape [c]: the next entries of `indptr`; all chunks have its N + 1 entries.
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


def first_descent(
    latest: tuple[int, int], sources: npt.NDArray[Any], targets: npt.NDArray[Any]
) -> int | None:
    """Return the first edge that comes before the one in front of it, which may be `latest`."""
    if (int(targets[0]), int(sources[0])) < latest:
        return 0
    falls = targets[1:] < targets[:-1]
    falls |= (targets[1:] == targets[:-1]) & (sources[1:] < sources[:-1])
    return int(np.argmax(falls)) + 1 if falls.any() else None


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
        for first, last, begin, end in column_blocks(indptr):
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
