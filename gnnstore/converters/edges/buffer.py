"""The edges of an input: node ids are checked, and kept in the smallest type that holds them.

Rows grow in blocks whose memory is freed in pieces: past 32 MiB they are mapped, and unmapped as
soon as they are freed, so that a join needs no more memory than the rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.files import FileArray
from gnnstore.converters.inputs.ids import check_ids
from gnnstore.converters.inputs.source import ArraySource, read_ahead
from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.units import format_count

_CHUNK_BYTES = 2**22
# Places in which targets are sampled, at most, and targets in each: a kilobyte or two.
_MAX_GLIMPSES, _GLIMPSE_TARGETS = 2**12, 2**8

# Nodes for each end of an edge that are suspicious, in graphs of more nodes than the second number.
_NODES_PER_END, _FEW_NODES = 16, 2**20
_LOG = logging.getLogger(__name__)

# Most nodes of a graph: more than any disk has bytes, so that a larger id or count is garbage.
MAX_NODES = 2**48


def warn_of_stray_ids(num_nodes: int, num_ends: int, where: str) -> None:
    """Warn if, by the largest id, there are far more nodes than edges have ends."""
    if num_nodes > max(_FEW_NODES, _NODES_PER_END * num_ends):
        _LOG.warning(
            "%s: %s nodes, at most %s with edges: are these ids of a database? 'gnnstore convert "
            "snap' and 'table' number such ids; state the number of nodes if it is right",
            *(where, f"{num_nodes:,}", f"{num_ends:,}"),
        )


def check_edge_index(source: ArraySource) -> None:
    """Raise unless an array can be `edge_index` [2, E]."""
    if len(source.shape) != 2 or source.shape[0] != 2:
        raise InputError(
            f"{source.label}: has shape {list(source.shape)}, expected [2, E]: sources above "
            "targets"
        )
    check_integers(source)


def check_integers(source: ArraySource) -> None:
    """Raise unless an array holds integers."""
    if source.dtype.kind not in "iu":
        raise InputError(
            f"{source.label}: has the element type {source.dtype}, expected integers: node ids "
            "are never fractions or NaN"
        )


def edge_pairs(
    source: ArraySource, *, by_row: bool = False
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield sources and targets of an array [2, E], or [E, 2] if edges lie by row."""
    num_edges = _CHUNK_BYTES // (2 * source.dtype.itemsize)
    if by_row:
        for rows in read_ahead(source.rows(num_edges)):
            yield rows[:, 0], rows[:, 1]
    else:
        for columns in read_ahead(source.columns(num_edges)):
            yield columns[0], columns[1]


def glimpses(num_targets: int) -> Iterator[slice]:
    """Yield the places of a sample, all over a number of targets."""
    step = max(_GLIMPSE_TARGETS, num_targets // _MAX_GLIMPSES)
    for begin in range(0, num_targets, step):
        yield slice(begin, min(begin + _GLIMPSE_TARGETS, num_targets))


def some_targets(source: ArraySource) -> Iterator[npt.NDArray[Any]] | None:
    """Return targets from all over an array [2, E]; None if they do not lie together in a file."""
    if not isinstance(source, FileArray) or source.fortran_order:
        return None
    return source.look_at(1, glimpses(source.shape[1]))


def columns_of_edges(
    first: int, indptr: npt.NDArray[np.int64], max_edges: int
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the edges of consecutive columns as (first edge, column of each edge), in pieces."""
    for begin in range(int(indptr[0]), int(indptr[-1]), max_edges):
        end = min(begin + max_edges, int(indptr[-1]))
        # Edge e is of the column v with indptr[v] <= e < indptr[v + 1].
        low, high = np.searchsorted(indptr, (begin, end - 1), side="right") - 1
        bounds = np.clip(indptr[low : high + 2], begin, end)
        yield begin, np.repeat(np.arange(first + low, first + high + 1), np.diff(bounds))


# glibc never raises its threshold for mapping above 32 MiB (mallopt(3), M_MMAP_THRESHOLD).
# Pages of a block that are not written to yet cost nothing.
BLOCK_BYTES = 33 * 2**20


class RowBlocks:
    """A growing array of rows."""

    def __init__(self, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> None:
        self.dtype = np.dtype(dtype)
        self.row_shape = row_shape
        self.num_rows = 0
        self._blocks: list[npt.NDArray[Any]] = []
        self._last_rows = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.row_shape)

    def append(self, rows: npt.NDArray[Any], dtype: npt.DTypeLike | None = None) -> None:
        """Copy rows [k, *row_shape]; `dtype` becomes the type of these and later ones."""
        if dtype is not None and np.dtype(dtype) != self.dtype:
            self.dtype = np.dtype(dtype)
            self._trim()
        self.num_rows += len(rows)
        while len(rows):
            if not self._blocks or self._last_rows == len(self._blocks[-1]):
                row_bytes = max(1, self.row_bytes)
                shape = (max(1, BLOCK_BYTES // row_bytes), *self.row_shape)
                self._blocks.append(np.empty(shape, self.dtype))
                self._last_rows = 0
            block = self._blocks[-1]
            take = min(len(rows), len(block) - self._last_rows)
            block[self._last_rows : self._last_rows + take] = rows[:take]
            self._last_rows += take
            rows = rows[take:]

    def _trim(self) -> None:
        """Cut the last block off behind its rows."""
        if self._blocks:
            self._blocks[-1] = self._blocks[-1][: self._last_rows]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows in order, block by block."""
        self._trim()
        return iter(self._blocks)

    def drain(self) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        """Yield (their places, rows) block by block, freeing each."""
        self._trim()
        self._blocks.reverse()
        begin = 0
        while self._blocks:
            rows = self._blocks.pop()
            yield slice(begin, begin + len(rows)), rows
            begin += len(rows)
            del rows
        self.num_rows = 0

    def front(self, num_rows: int) -> list[npt.NDArray[Any]]:
        """Return the first rows as views of the blocks that hold them."""
        self._trim()
        views = []
        for block in self._blocks:
            if num_rows <= 0:
                break
            views.append(block[:num_rows])
            num_rows -= len(block)
        return views

    def drop(self, num_rows: int) -> None:
        """Drop the first rows; a block is freed when all its rows are dropped."""
        self._trim()
        self.num_rows -= num_rows
        whole = 0
        while num_rows and num_rows >= len(self._blocks[whole]):
            num_rows -= len(self._blocks[whole])
            whole += 1
        del self._blocks[:whole]
        if num_rows:
            self._blocks[0] = self._blocks[0][num_rows:]
        self._last_rows = len(self._blocks[-1]) if self._blocks else 0

    def joined(self) -> npt.NDArray[Any]:
        """Return all rows in one array [num_rows, *row_shape], and free the blocks.

        A single block is not copied; while several are, one of them is in memory twice.
        """
        if [block.dtype for block in self._blocks] == [self.dtype]:
            self._trim()
            self.num_rows = 0
            return self._blocks.pop()
        values = np.empty((self.num_rows, *self.row_shape), self.dtype)
        for place, rows in self.drain():
            values[place] = rows
        return values


class EdgeBuffer:
    """Edges in memory, in the order of the input."""

    def __init__(self, num_nodes: int | None = None) -> None:
        self.sources = RowBlocks(np.int32)
        self.targets = RowBlocks(np.int32)
        # Attribute rows of the edges; None before the first chunk.
        self.attributes: dict[str, RowBlocks] | None = None
        self.num_nodes: int | None = None  # N if known: ids must be below
        self.num_seen = 0  # edges of the input so far, including those that have left the buffer
        self.max_id = -1  # the largest id so far, -1 without edges
        if num_nodes is not None:
            self.set_num_nodes(num_nodes)

    def set_num_nodes(self, num_nodes: int) -> None:
        """Set N, so that the ids of later edges are checked."""
        if num_nodes > MAX_NODES:
            raise InputError(
                f"the input states {format_count(num_nodes, 'node')}; a graph has at most 2^48"
            )
        self.num_nodes = num_nodes

    @property
    def num_edges(self) -> int:
        """Edges in the buffer."""
        return self.sources.num_rows

    @property
    def attribute_bytes(self) -> int:
        """Bytes of all attributes of one edge."""
        return sum(rows.row_bytes for rows in (self.attributes or {}).values())

    @property
    def num_bytes(self) -> int:
        """Bytes of all edges in the buffer."""
        ends = 2 * self.sources.dtype.itemsize
        return (ends + self.attribute_bytes) * self.num_edges

    def append(
        self,
        sources: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        attributes: Mapping[str, npt.NDArray[Any]],
        where: str,
    ) -> None:
        """Take a chunk of edges."""
        self.check(sources, targets, attributes, where)
        for name, rows in (self.attributes or {}).items():
            rows.append(attributes[name])
        dtype = id_dtype(self.num_nodes if self.num_nodes is not None else self.max_id + 1)
        self.sources.append(sources, dtype)
        self.targets.append(targets, dtype)

    def count(self, sources: npt.NDArray[Any], targets: npt.NDArray[Any], where: str) -> None:
        """Check and count a chunk of edges."""
        if sources.shape != targets.shape or sources.ndim != 1:
            raise InputError(
                f"{where}: {list(sources.shape)} sources and {list(targets.shape)} targets; "
                "an edge has one of each"
            )
        for ids, end in ((sources, "source"), (targets, "target")):
            top = check_ids(ids, self.num_nodes, f"{where}: {end} node id", self.num_seen)
            if top >= MAX_NODES:
                raise InputError(
                    f"{where}: {end} node id {top}: a graph has at most 2^48 nodes, numbered from "
                    "0. Renumber them; ids in a text edge list ('snap') are renumbered for you"
                )
            self.max_id = max(self.max_id, top)
        self.num_seen += len(sources)

    def check(
        self,
        sources: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        attributes: Mapping[str, npt.NDArray[Any]],
        where: str,
    ) -> None:
        """Check and count a chunk of edges with attributes, without taking it."""
        self.count(sources, targets, where)
        if self.attributes is None:
            self.attributes = {
                name: RowBlocks(rows.dtype, rows.shape[1:]) for name, rows in attributes.items()
            }
        earlier = {name: (rows.dtype, rows.row_shape) for name, rows in self.attributes.items()}
        given = {name: (rows.dtype, rows.shape[1:]) for name, rows in attributes.items()}
        if given != earlier:
            raise InputError(
                f"{where}: edges come with attributes of types and row shapes {given}, earlier "
                f"ones with {earlier}; every edge needs the same"
            )
        for name, rows in attributes.items():
            if len(rows) != len(sources):
                raise InputError(
                    f"{where}: the edge attribute {name!r} has {format_count(len(rows), 'row')} "
                    f"for {format_count(len(sources), 'edge')}"
                )

    def drop(self, num_edges: int) -> None:
        """Free the first edges."""
        for rows in (self.sources, self.targets, *(self.attributes or {}).values()):
            rows.drop(num_edges)
