"""True answers of queries among the edges of a graph or a list, for a range of nodes at a time.

A query (s, r, ?) is answered by the targets of edges from s, (?, r, t) by the sources of edges to
t. A store has edges by target, ascending by source: the sources of a target in a range of nodes
are one range of positions, found by binary search. The targets of a source are found by reading the
columns of the range once, in order, for all queries together. Only pieces are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore.formats.store.store import Csc
from gnnstore.sampling.sampled_graph import EdgeFinder

if TYPE_CHECKING:
    from gnnstore.graph.store import GraphStore

Int64Array = npt.NDArray[np.int64]
# The numbers of some queries, and an answer of each; a query may have several.
Pairs = tuple[Int64Array, Int64Array]

# Edges and pairs of a piece.
_PIECE = 1 << 16
# Memory of a piece: the part of the mapping that is read, and the arrays made from it.
PIECE_BYTES = 16 << 20
# Memory for an edge of a list: its ends, its relation, and the order in which it is sorted.
BYTES_PER_LISTED_EDGE = 40


@dataclass(frozen=True, eq=False)
class Queries:
    """Edges whose ends are asked for, by number: [q] each."""

    sources: Int64Array
    targets: Int64Array
    relations: npt.NDArray[Any] | None = None  # none where edges have none

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, part: slice) -> Queries:
        relations = None if self.relations is None else self.relations[part]
        return Queries(self.sources[part], self.targets[part], relations)


@dataclass(frozen=True, eq=False)
class KnownEdges:
    """Edges by target."""

    columns: Csc  # sources by target, ascending
    # The target of each column, ascending, and an empty column behind them; None: column v is that
    # of node v.
    nodes: Int64Array | None = None
    # Returns the relations of the edges at some positions in `columns`.
    relations: Callable[[Int64Array], npt.NDArray[Any]] | None = None

    @classmethod
    def of_store(cls, store: GraphStore, relation: str | None) -> Self:
        """Return all edges of a store, mapped, with the attribute that holds their relations."""
        columns = store.topology("mmap").columns()
        if relation is None:
            return cls(columns)
        attribute = store.edge_attribute(relation)
        return cls(columns, None, lambda at: attribute[at].view(-1).numpy())

    @classmethod
    def of_list(cls, edges: Queries) -> Self:
        """Return the edges of a list, sorted."""
        order = np.lexsort((edges.sources, edges.targets))
        nodes, counts = np.unique(edges.targets, return_counts=True)
        indptr = np.concatenate([[0], np.cumsum(counts), [len(order)]]).astype(np.int64)
        num_src = int(edges.sources.max(initial=-1)) + 1
        columns = Csc(indptr, edges.sources[order], num_src)
        relations = None if edges.relations is None else edges.relations[order]
        return cls(columns, nodes, None if relations is None else relations.__getitem__)

    def columns_of(self, targets: Int64Array) -> Int64Array:
        """Return the column of each target; the empty one of those that have no edges."""
        if self.nodes is None:
            return targets
        columns = np.searchsorted(self.nodes, targets)
        there = columns < len(self.nodes)
        there[there] = self.nodes[columns[there]] == targets[there]
        return np.where(there, columns, len(self.nodes))

    def targets_of(self, positions: Int64Array) -> Int64Array:
        """Return the nodes that the edges at some positions lead to."""
        columns = EdgeFinder(self.columns).targets_of(positions)
        return columns if self.nodes is None else self.nodes[columns]

    def positions_before(self, node: int) -> int:
        """Return the number of edges to targets below a node."""
        column = node if self.nodes is None else np.searchsorted(self.nodes, node)
        return int(self.columns.indptr[column])


class Answers:
    """Answers of a block of queries among known edges, for ascending ranges of nodes."""

    def __init__(self, edges: KnownEdges, queries: Queries) -> None:
        self._edges = edges
        self._queries = queries
        self._finder = EdgeFinder(edges.columns)
        self._columns = edges.columns_of(queries.targets)
        self._next = edges.columns.indptr[self._columns]  # in the column of each query
        # Queries by source: those from `source[i]` are numbers `order[first[i]:first[i + 1]]`.
        self._order = np.argsort(queries.sources, kind="stable")
        self._source, first = np.unique(queries.sources[self._order], return_index=True)
        self._first = np.append(first, len(queries))

    def sources(self, low: int, high: int) -> Iterator[Pairs]:
        """Yield the sources, low to high - 1, of edges to the targets of queries."""
        columns, queries = self._edges.columns, self._queries
        begins = self._next
        ends = begins.copy()
        more = np.flatnonzero(begins < columns.indptr[self._columns + 1])
        ends[more] = self._finder.ranges(np.full(len(more), high), self._columns[more])[0]
        self._next = ends
        for numbers, positions in _expanded(begins, ends - begins):
            found = columns.indices[positions].astype(np.int64)
            keep = (found != queries.sources[numbers]) & (found >= low) & (found < high)
            yield self._of_relation(numbers[keep], found[keep], positions[keep])

    def targets(self, low: int, high: int) -> Iterator[Pairs]:
        """Yield the targets, low to high - 1, of edges from the sources of queries."""
        queries, edges = self._queries, self._edges
        begin, end = edges.positions_before(low), edges.positions_before(high)
        for first in range(begin, end, _PIECE):
            piece = edges.columns.read_slice(first, min(first + _PIECE, end))
            slots = np.searchsorted(self._source, piece)
            slots[slots == len(self._source)] = 0
            hits = np.flatnonzero(self._source[slots] == piece)
            begins, ends = self._first[slots[hits]], self._first[slots[hits] + 1]
            nodes = edges.targets_of(first + hits)
            for hit, places in _expanded(begins, ends - begins):
                numbers, found = self._order[places], nodes[hit]
                keep = found != queries.targets[numbers]
                yield self._of_relation(numbers[keep], found[keep], first + hits[hit[keep]])

    def _of_relation(self, numbers: Int64Array, found: Int64Array, positions: Int64Array) -> Pairs:
        """Leave out answers by an edge of another relation."""
        wanted, relations = self._queries.relations, self._edges.relations
        if wanted is None or relations is None or not len(positions):
            return numbers, found
        keep = relations(positions) == wanted[numbers]
        return numbers[keep], found[keep]


def _expanded(begins: Int64Array, counts: Int64Array) -> Iterator[Pairs]:
    """Yield the number of each range, and each integer in it, a piece of all ranges at a time."""
    sums = np.cumsum(counts)
    first = 0
    while first < len(counts):
        done = sums[first - 1] if first else 0
        end = max(first + 1, int(np.searchsorted(sums, done + _PIECE, side="right")))
        part = counts[first:end]
        numbers = np.repeat(np.arange(first, end), part)
        starts = np.repeat(begins[first:end] - (sums[first:end] - part - done), part)
        yield numbers, starts + np.arange(len(numbers))
        first = end
