"""Edges that come in the order of columns: written as they are read, without runs on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.buffer import EdgeBuffer
from gnnstore.converters.edges.columns import EdgeChunk, SortedEdges, first_descent
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.progress import Phase, Progress
from gnnstore.units import format_count

# Sources, targets and attribute rows of the next edges, numbered.
OrderedChunk = tuple[npt.NDArray[Any], npt.NDArray[Any], Mapping[str, npt.NDArray[Any]]]
# Entries of `indptr`, and self-loops to add, that a chunk may have.
_PIECE_COLUMNS = 2**20


@dataclass(frozen=True)
class EdgePlaces:
    """The rows of an input with edges, for messages."""

    ends: Callable[[], Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]]]  # as the input has them
    place_of: Callable[[int], tuple[str, int]]  # the file of a row, and its number in the file

    def refusal(self, row: int) -> InputError:
        """Return the error for a row whose edge comes before the edge of the row above it."""
        (file, number), (file_before, number_before) = map(self.place_of, (row, row - 1))
        (source, target), (source_before, target_before) = self._pairs(row)
        where = "" if file == file_before else f" of {file_before}"
        problem = (
            f"{file}: row {number} has source {source} and target {target}, and row "
            f"{number_before}{where}, before it, source {source_before} and target {target_before}"
        )
        if (target, source) >= (target_before, source_before):
            return InputError(
                f"{problem}: the table of nodes has these ids in another order, and nodes are "
                "numbered by it. Sort it by its ids, or leave sorted=True out"
            )
        names = "" if file == file_before else "; files are read in natural order of their names"
        return InputError(
            f"{problem}: edges are not in ascending order of target, then source{names}. Sort "
            "them so, or leave sorted=True out"
        )

    def _pairs(self, row: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return source and target of a row, and of the row before it."""
        pairs: dict[int, tuple[int, int]] = {}
        first = 0
        for sources, targets in self.ends():
            for wanted in (row - 1, row):
                if first <= wanted < first + len(sources):
                    place = wanted - first
                    pairs[wanted] = int(sources[place]), int(targets[place])
            first += len(sources)
            if row in pairs:
                break
        return pairs[row], pairs[row - 1]


class OrderedEdges:
    """An adjacency whose edges are read in the order of columns, as `BuiltEdges`.

    The edges are read once; twice if self-loops are dropped or added, to count the edges first.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[OrderedChunk]],
        rules: EdgeRules,
        places: EdgePlaces,
        *,
        num_nodes: int,
        num_edges: int,
        where: str,
        progress: Progress,
    ) -> None:
        self._read = read
        self._rules = rules
        self._places = places
        self._where = where
        self._num_input_edges = num_edges
        self.num_nodes = num_nodes
        self.num_edges = num_edges
        self.index_dtype = id_dtype(num_nodes)
        self._loops = np.empty(0, np.int64)  # the nodes to add a self-loop to, ascending
        self._no_rows: dict[str, npt.NDArray[Any]] = {}  # the attributes, without rows
        in_place = True
        if rules.self_loops != "keep":
            with progress.phase("count edges", num_edges, "edges") as phase:
                in_place = self._count(phase)
        id_type = id_dtype(num_edges + len(self._loops))
        self.edge_id_dtype = id_type if rules.keep_ids and not in_place else None

    def _checked(self) -> Iterator[SortedEdges]:
        """Yield the edges of the input with their ids; refuse edges in another order."""
        buffer = EdgeBuffer(self.num_nodes)
        latest = (-1, -1)
        for sources, targets, rows in self._read():
            first = buffer.num_seen
            buffer.check(sources, targets, rows, self._where)
            self._no_rows = {name: values[:0] for name, values in rows.items()}
            if not len(sources):
                continue
            descent = first_descent(latest, sources, targets)
            if descent is not None:
                raise self._places.refusal(first + descent)
            latest = int(targets[-1]), int(sources[-1])
            own_sources = sources.astype(self.index_dtype, copy=False)
            own_targets = targets.astype(self.index_dtype, copy=False)
            yield SortedEdges(own_sources, own_targets, np.arange(first, buffer.num_seen), rows)
        if buffer.num_seen != self._num_input_edges:
            raise InputError(
                f"{self._where}: has {format_count(buffer.num_seen, 'edge')}, and "
                f"{self._num_input_edges} when it "
                "was opened; do not change it while it is converted"
            )

    def _count(self, phase: Phase) -> bool:
        """Count the edges to write; return whether the ids of these are 0, 1, 2, ..."""
        missing = np.ones(self.num_nodes if self._rules.self_loops == "add" else 0, dtype=bool)
        last = (-1, -1)
        num_dropped, is_gap = 0, False
        for edges in self._checked():
            phase.advance(len(edges.sources))
            is_loop = edges.sources == edges.targets
            last = int(edges.targets[-1]), int(edges.sources[-1])
            if self._rules.self_loops == "add":
                missing[edges.sources[is_loop]] = False
                continue
            kept = np.flatnonzero(~is_loop)
            is_gap |= len(kept) > 0 and num_dropped + int(is_loop[: kept[-1]].sum()) > 0
            num_dropped += int(is_loop.sum())
        self._loops = np.flatnonzero(missing)
        self.num_edges += len(self._loops) - num_dropped
        return not is_gap and not _num_before(self._loops, *last)

    def _kept(self) -> Iterator[SortedEdges]:
        """Yield the edges of the input that stay."""
        for edges in self._checked():
            if self._rules.self_loops != "drop":
                yield edges
            elif (keep := edges.sources != edges.targets).any():
                yield edges.take(keep)

    def _with_loops(self) -> Iterator[SortedEdges]:
        """Yield the edges that stay and the loops that are added, in the order of columns."""
        done = 0
        for edges in self._kept():
            is_whole = False
            while not is_whole:
                loops = self._loops[done : done + _PIECE_COLUMNS]
                last = int(edges.targets[-1]), int(edges.sources[-1])
                loops = loops[: _num_before(loops, *last)]
                is_whole = len(loops) < _PIECE_COLUMNS
                end = len(edges.sources) if is_whole else _num_edges_before(edges, int(loops[-1]))
                yield self._merge(edges.take(slice(end)), loops, done)
                edges = edges.take(slice(end, None))  # noqa: PLW2901
                done += len(loops)
        none = np.empty(0, self.index_dtype)
        for first in range(done, len(self._loops), _PIECE_COLUMNS):
            loops = self._loops[first : first + _PIECE_COLUMNS]
            edges = SortedEdges(none, none, np.empty(0, np.int64), self._no_rows)
            yield self._merge(edges, loops, first)

    def _merge(self, edges: SortedEdges, loops: npt.NDArray[Any], first_loop: int) -> SortedEdges:
        """Merge edges and loops, the first of which is a number among those to add."""
        if not len(loops) or edges.edge_id is None:
            return edges
        first_id = self._num_input_edges + first_loop
        loop_ids = np.arange(first_id, first_id + len(loops))
        zeros = {n: np.zeros((len(loops), *r.shape[1:]), r.dtype) for n, r in self._no_rows.items()}
        sources = np.concatenate([edges.sources, loops])
        targets = np.concatenate([edges.targets, loops])
        ids = np.concatenate([edges.edge_id, loop_ids])
        rows = {n: np.concatenate([r, zeros[n]]) for n, r in edges.attributes.items()}
        return SortedEdges(sources, targets, ids, rows).take(np.lexsort((sources, targets)))

    def chunks(self) -> Iterator[EdgeChunk]:
        """Yield all edges in column order."""
        written = column = 0
        no_ids = np.empty(0, self.index_dtype)
        none = SortedEdges(no_ids, no_ids, no_ids, {})
        for edges in self._with_loops():
            none = edges.take(slice(0))
            end = int(edges.targets[-1]) + 1
            pointers = np.empty(0, np.int64)
            for begin in range(column, end, _PIECE_COLUMNS):
                if len(pointers):
                    yield self._chunk(none, pointers)
                pointers = _pointers(edges.targets, begin, min(begin + _PIECE_COLUMNS, end))
                pointers += written
            yield self._chunk(edges, pointers)
            written, column = written + len(edges.sources), max(column, end)
        if not written:
            none = SortedEdges(none.sources, none.targets, none.edge_id, self._no_rows)
        for begin in range(column, self.num_nodes + 1, _PIECE_COLUMNS):
            num_columns = min(_PIECE_COLUMNS, self.num_nodes + 1 - begin)
            yield self._chunk(none, np.full(num_columns, written))

    def _chunk(self, edges: SortedEdges, pointers: npt.NDArray[np.int64]) -> EdgeChunk:
        ids = None if self.edge_id_dtype is None else edges.edge_id
        added = None
        if self._rules.self_loops == "add" and edges.edge_id is not None:
            added = edges.edge_id >= self._num_input_edges
        return EdgeChunk(edges.sources, ids, edges.attributes, pointers, added)

    def close(self) -> None:
        """Do nothing: edges in order leave no temporary files."""


def _pointers(targets: npt.NDArray[Any], begin: int, end: int) -> npt.NDArray[np.int64]:
    """Return for each node of a range how many targets, which ascend, are smaller."""
    first, last = np.searchsorted(targets, (begin, end))
    counts = np.bincount(targets[first:last] - begin, minlength=end - begin)
    return int(first) + np.cumsum(counts) - counts


def _num_before(loops: npt.NDArray[np.int64], target: int, source: int) -> int:
    """Return how many loops, in ascending order, come before an edge in the order of columns."""
    # The loop of the target comes behind all edges from smaller nodes.
    return int(np.searchsorted(loops, target, side="right" if target < source else "left"))


def _num_edges_before(edges: SortedEdges, node: int) -> int:
    """Return how many edges come before the loop of a node in the order of columns."""
    first, end = np.searchsorted(edges.targets, (node, node + 1))
    return int(first) + int(np.searchsorted(edges.sources[first:end], node))
