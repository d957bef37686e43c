"""The edges of an input in memory: checked, in the smallest type that holds their ids.

Rows grow in blocks whose memory is freed in pieces: past 32 MiB they are mapped, and unmapped as
soon as they are freed, so that a join needs no more memory than the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.node_ids import MAX_NODES, check_ids
from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import id_dtype

# glibc never raises its threshold for mapping above 32 MiB (mallopt(3), M_MMAP_THRESHOLD).
# Pages of a block that are not written to yet cost nothing.
_BLOCK_BYTES = 33 * 2**20


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
                shape = (max(1, _BLOCK_BYTES // row_bytes), *self.row_shape)
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
        """Return all rows in one array [num_rows, *row_shape], and free the blocks."""
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
            raise InputError(f"the input says {num_nodes} nodes; a graph has at most 2^48")
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
        self._check(sources, targets, where)
        self._take_attributes(attributes, len(sources), where)
        dtype = id_dtype(self.num_nodes if self.num_nodes is not None else self.max_id + 1)
        self.sources.append(sources, dtype)
        self.targets.append(targets, dtype)
        self.num_seen += len(sources)

    def pass_on(self, sources: npt.NDArray[Any], targets: npt.NDArray[Any], where: str) -> None:
        """Check and count a chunk of edges that is stored elsewhere; see `append`."""
        self._check(sources, targets, where)
        self.num_seen += len(sources)

    def _check(self, sources: npt.NDArray[Any], targets: npt.NDArray[Any], where: str) -> None:
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

    def _take_attributes(
        self, attributes: Mapping[str, npt.NDArray[Any]], num_edges: int, where: str
    ) -> None:
        if self.attributes is None:
            self.attributes = {
                name: RowBlocks(rows.dtype, rows.shape[1:]) for name, rows in attributes.items()
            }
        earlier = {name: (own.dtype, own.row_shape) for name, own in self.attributes.items()}
        found = {name: (rows.dtype, rows.shape[1:]) for name, rows in attributes.items()}
        if found != earlier:
            raise InputError(
                f"{where}: edges come with attributes of types and row shapes {found}, earlier "
                f"ones with {earlier}; every edge needs the same"
            )
        for name, rows in attributes.items():
            if len(rows) != num_edges:
                raise InputError(
                    f"{where}: the edge attribute {name!r} has {len(rows)} rows for "
                    f"{num_edges} edges"
                )
            self.attributes[name].append(rows)

    def drop(self, num_edges: int) -> None:
        """Free the first edges."""
        for rows in (self.sources, self.targets, *(self.attributes or {}).values()):
            rows.drop(num_edges)
