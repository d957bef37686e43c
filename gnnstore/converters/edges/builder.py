"""From edges in any order to in-neighbours by column: what stands between converters and CSC.

Converters only ever `add` chunks of edges, and the writer only ever takes finished columns
in order, chunk by chunk. What lies between is an `EdgeBuilder`; the one here keeps the
edges in memory, the one in `spill.py` sorts on disk, and neither side notices which.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.limits import available_bytes
from gnnstore.converters.edges.buffer import EdgeBuffer
from gnnstore.converters.edges.node_ids import check_ids, id_dtype
from gnnstore.converters.edges.rules import (
    EdgeRules,
    compact_columns,
    is_identity,
    missing_self_loops,
)
from gnnstore.errors import BudgetError
from gnnstore.units import format_size

# Chunks in which finished edges are handed over: large enough for sequential writes.
CHUNK_EDGES = 2**21
# What `csc_from_coo` takes beside its outputs: the low bits of each edge's target, and for each
# thread the keys and ids of the longest column, or of a few columns that it sorts at once.
_SHORT_TARGETS, _SHORT_TARGET_BYTES, _LONG_TARGET_BYTES = 2**27, 2, 4
_NARROW_KEYS, _NARROW_SCRATCH_BYTES, _WIDE_SCRATCH_BYTES = 2**32 - 1, 24, 40
_GROUP_EDGES, _GROUP_SHARE = 2**16, 256
_REMEDIES = {
    "allowed": "raise memory_bytes (--memory) or convert on a larger machine",
    "available": "free some, leave out edge ids (--no-edge-ids) or convert on a larger machine",
}


@dataclass(frozen=True)
class EdgeChunk:
    """Consecutive edges of the finished adjacency.

    Attributes
    ----------
    indices : ndarray of int32 or int64, shape [k]
        Source nodes.
    edge_id : ndarray of int32 or int64, shape [k], or None
        Positions in the input.
    attributes : Mapping of str to ndarray [k, ...]
        Attribute rows of these edges; zeros for self-loops that were added.
    indptr : ndarray of int64, shape [c]
        The next entries of `indptr`; those of all chunks are its N + 1 entries.
    added : ndarray of bool, shape [k], or None
        Which edges are self-loops that were added; None if none are.
    """

    indices: npt.NDArray[Any]
    edge_id: npt.NDArray[Any] | None
    attributes: Mapping[str, npt.NDArray[Any]]
    indptr: npt.NDArray[np.int64]
    added: npt.NDArray[np.bool_] | None = None


class BuiltEdges(Protocol):
    """A finished adjacency: sizes first, then its edges in order, once.

    Attributes
    ----------
    num_nodes, num_edges : int
        N and E.
    index_dtype : np.dtype
        int32 if N < 2**31, else int64.
    edge_id_dtype : np.dtype or None
        None if edges keep no ids of their own.
    """

    num_nodes: int
    num_edges: int
    index_dtype: np.dtype[Any]
    edge_id_dtype: np.dtype[Any] | None

    def chunks(self) -> Iterator[EdgeChunk]:
        """Yield all edges in column order, sorted by source within a column.

        There is at least one chunk, so that attributes are known even without edges.
        """

    def close(self) -> None:
        """Remove what the edges were kept in: they are written, and durable."""


class EdgeBuilder(Protocol):
    """Collects edges and sorts them into columns."""

    def set_num_nodes(self, num_nodes: int) -> None:
        """Learn how many nodes there are, to check ids as they come."""

    def reserve(self, num_bytes: int) -> None:
        """Leave so much of the memory to others."""

    def expect(self, num_edges: int) -> None:
        """Learn how many edges will come, to refuse at once what cannot be done."""

    def add(
        self,
        sources: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        attributes: Mapping[str, npt.NDArray[Any]],
        where: str,
    ) -> None:
        """Take a chunk of edges [k] with attribute rows [k, ...]; `where` names the input."""

    def finish(self, num_nodes: int | None) -> BuiltEdges:
        """Sort everything; None: the largest id says how many nodes there are."""


def num_build_threads() -> int:
    """Return how many threads sort columns: the processors we may use, at most 8."""
    return min(8, len(os.sched_getaffinity(0)))


class InMemoryEdgeBuilder:
    """Keeps all edges in memory.

    Peak memory is that of the input's ids, the finished columns and the attributes, side by
    side: with 32-bit ids 18 bytes per edge and its attributes (twice the edges, if reverse
    ones are added).

    Parameters
    ----------
    rules : EdgeRules
        What to add, drop and keep.
    num_nodes : int, optional
        N, if it is known already: ids are then checked as they come.
    memory_bytes : int, optional
        The most to use; by default what is available now, so that a graph that is too large
        is refused with a number instead of killed by the kernel half way.

    Attributes
    ----------
    buffer : EdgeBuffer
        The edges so far.
    """

    def __init__(
        self, rules: EdgeRules, *, num_nodes: int | None = None, memory_bytes: int | None = None
    ) -> None:
        self._rules = rules
        self.buffer = EdgeBuffer(num_nodes)
        self._memory_bytes = available_bytes() if memory_bytes is None else memory_bytes
        self._limit = "available" if memory_bytes is None else "allowed"

    def set_num_nodes(self, num_nodes: int) -> None:
        """Check the ids of the edges to come.

        Raises
        ------
        InputError
            If no graph has so many.
        """
        self.buffer.set_num_nodes(num_nodes)

    def reserve(self, num_bytes: int) -> None:
        """Leave so much of the memory to others."""
        self._memory_bytes -= num_bytes

    @property
    def num_edges(self) -> int:
        """Edges that came so far."""
        return self.buffer.num_edges

    def expect(self, num_edges: int) -> None:
        """Check the budget for a number of edges that is to come.

        Raises
        ------
        BudgetError
            Saying how much memory is needed.
        """
        self._check_budget(num_edges, self.buffer.num_nodes or 0)

    def add(
        self,
        sources: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        attributes: Mapping[str, npt.NDArray[Any]],
        where: str,
    ) -> None:
        """Take a chunk of edges.

        Raises
        ------
        InputError
            See `EdgeBuffer.append`.
        BudgetError
            If the edges so far cannot be built within the budget. They are in the buffer.
        """
        self.buffer.append(sources, targets, attributes, where)
        self._check_budget(self.num_edges, self.buffer.max_id + 1)

    def _check_budget(self, num_edges: int, num_nodes: int, sorted_at_once: int = 0) -> None:
        row_bytes = self.buffer.attribute_bytes
        is_narrow = max(num_nodes, sorted_at_once) <= _NARROW_KEYS
        scratch_bytes = _NARROW_SCRATCH_BYTES if is_narrow else _WIDE_SCRATCH_BYTES
        scratch = scratch_bytes * sorted_at_once * num_build_threads()
        need = estimate_peak_bytes(self._rules, num_edges, num_nodes, row_bytes) + scratch
        if need > self._memory_bytes:
            raise BudgetError(
                f"building the adjacency of {num_edges} edges needs {format_size(need)} of "
                f"memory, {format_size(need - self._memory_bytes)} more than the "
                f"{format_size(self._memory_bytes)} that are {self._limit}; "
                f"{_REMEDIES[self._limit]}"
            )

    def finish(self, num_nodes: int | None) -> InMemoryEdges:
        """Sort the edges into columns; the builder is empty afterwards.

        Raises
        ------
        InputError
            If an id is not below `num_nodes`.
        BudgetError
            If that cannot be done within the budget; the edges are in the buffer still.
        """
        buffer = self.buffer
        count = buffer.max_id + 1 if num_nodes is None else num_nodes
        if buffer.max_id >= count:
            self._refuse_first_outside(count)
        num_edges = self.num_edges
        self._check_columns(count)
        loops = np.empty(0, np.int64)
        if self._rules.self_loops == "add":
            loops = missing_self_loops(self._loop_nodes(), count)
        sources, targets = self._assemble(count, loops)
        attributes = {name: rows.joined() for name, rows in (buffer.attributes or {}).items()}
        indptr, indices, edge_id = _core.csc_from_coo(
            sources,
            targets,
            count,
            num_threads=num_build_threads(),
            with_edge_id=bool(self._rules.keep_ids or attributes),
        )
        del sources, targets
        _core.pool_trim()  # what it took beside its outputs
        indices, edge_id = compact_columns(indptr, indices, edge_id, self._rules)
        return InMemoryEdges(
            indptr, indices, edge_id, self._rules, attributes, num_input_edges=num_edges
        )

    def _refuse_first_outside(self, num_nodes: int) -> None:
        for ends, end in ((self.buffer.sources, "source"), (self.buffer.targets, "target")):
            position = 0
            for ids in ends:
                check_ids(ids, num_nodes, f"the edges: {end} node id", position)
                position += len(ids)

    def _check_columns(self, num_nodes: int) -> None:
        """Check the budget for sorting the longest column; counts only where that matters."""
        most = self.num_edges * self._rules.copies
        try:
            self._check_budget(self.num_edges, num_nodes, most)
        except BudgetError:
            counts = np.zeros(num_nodes, np.int64)
            ends = [self.buffer.targets]
            if self._rules.undirected:
                ends.append(self.buffer.sources)
            for blocks in ends:
                for ids in blocks:
                    for begin in range(0, len(ids), CHUNK_EDGES):
                        np.add.at(counts, ids[begin : begin + CHUNK_EDGES].astype(np.intp), 1)
            group = min(most, max(_GROUP_EDGES, most // _GROUP_SHARE))
            self._check_budget(self.num_edges, num_nodes, max(group, int(counts.max(initial=0))))

    def _loop_nodes(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the nodes with a self-loop, block by block."""
        for sources, targets in zip(self.buffer.sources, self.buffer.targets, strict=True):
            yield sources[sources == targets]

    def _assemble(
        self, num_nodes: int, loops: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Join the edges, their reverses and the added self-loops; the blocks are let go of."""
        dtype, edges = id_dtype(num_nodes), self.num_edges
        total = edges * self._rules.copies + len(loops)
        sources, targets = np.empty(total, dtype), np.empty(total, dtype)
        for blocks, ends, reverse_ends in (
            (self.buffer.sources, sources, targets),
            (self.buffer.targets, targets, sources),
        ):
            for place, ids in blocks.drain():
                ends[place] = ids
                if self._rules.undirected:
                    reverse_ends[edges + place.start : edges + place.stop] = ids
            ends[total - len(loops) :] = loops
        return sources, targets


@dataclass
class InMemoryEdges:
    """A finished adjacency in memory, as `BuiltEdges`."""

    indptr: npt.NDArray[np.int64]
    _indices: npt.NDArray[Any]
    _edge_id: npt.NDArray[Any] | None
    _rules: EdgeRules
    _attributes: Mapping[str, npt.NDArray[Any]]
    num_input_edges: int
    num_nodes: int = field(init=False)
    num_edges: int = field(init=False)
    index_dtype: np.dtype[Any] = field(init=False)
    edge_id_dtype: np.dtype[Any] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.num_nodes = len(self.indptr) - 1
        self.num_edges = len(self._indices)
        self.index_dtype = self._indices.dtype
        if self._edge_id is not None and self._rules.keep_ids and not is_identity(self._edge_id):
            self.edge_id_dtype = self._edge_id.dtype

    def chunks(self) -> Iterator[EdgeChunk]:
        """Yield all edges in column order; one empty chunk, if there are none."""
        for begin in range(0, max(1, self.num_edges), CHUNK_EDGES):
            part = slice(begin, min(begin + CHUNK_EDGES, self.num_edges))
            ids = None if self._edge_id is None else self._edge_id[part]
            attributes, added = {}, None
            if ids is not None and self._attributes:
                rows, added = self._rules.attribute_rows(ids, self.num_input_edges)
                for name, values in self._attributes.items():
                    attributes[name] = _take_rows(values, rows, added)
            stored_ids = None if self.edge_id_dtype is None else ids
            # All of indptr comes with the first chunk, as it is in memory anyway.
            pointers = self.indptr[: 0 if begin else None]
            yield EdgeChunk(self._indices[part], stored_ids, attributes, pointers, added)

    def close(self) -> None:
        """Do nothing: memory goes with the object."""


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
    """Return the memory that `InMemoryEdgeBuilder` needs at its peak, short of sort scratch.

    At that moment the edges as pairs of ids (2 per edge), the columns (1 id, and 1 edge id
    if there are any), the low bits of targets and `indptr` exist side by side, and the
    attributes as they came.
    """
    total = num_edges * rules.copies + (num_nodes if rules.self_loops == "add" else 0)
    id_bytes = id_dtype(num_nodes).itemsize
    has_ids = rules.keep_ids or attribute_bytes_per_edge > 0
    edge_id_bytes = id_dtype(total).itemsize if has_ids else 0
    low_bytes = _SHORT_TARGET_BYTES if num_nodes <= _SHORT_TARGETS else _LONG_TARGET_BYTES
    columns = (3 * id_bytes + edge_id_bytes + low_bytes) * total + 8 * (num_nodes + 1)
    return columns + attribute_bytes_per_edge * num_edges
