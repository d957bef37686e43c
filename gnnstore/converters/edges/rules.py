"""Rules that decide which edges of an input a store has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

# Edges of a block in which columns are looked at, about.
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
    for first, last, begin, end in column_blocks(indptr):
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


def column_blocks(indptr: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int, int]]:
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
    """Whether every edge lies at the position of its id, so that ids need not be stored."""
    return all(
        np.array_equal(
            edge_id[begin : begin + _BLOCK_EDGES],
            np.arange(begin, min(begin + _BLOCK_EDGES, len(edge_id)), dtype=edge_id.dtype),
        )
        for begin in range(0, len(edge_id), _BLOCK_EDGES)
    )
