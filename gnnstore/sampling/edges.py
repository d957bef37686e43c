"""Looks edges up in a graph: by binary search, since a store's columns ascend."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gnnstore.formats.store.csc import Csc, bisect_columns
from gnnstore.sampling.neighbor import Excluded

Int64Array = npt.NDArray[np.int64]

# Copies of an edge are passed one by one while they are no more than these, then by a search.
_FEW_COPIES = 8


class EdgeFinder:
    """Finds the edges between pairs of nodes. Safe to use from many threads at once.

    Parameters
    ----------
    csc : Csc
        The graph, in memory or mapped. A look-up reads log2(in-degree) of its indices.
    """

    def __init__(self, csc: Csc) -> None:
        self._csc = csc

    def are_edges(self, sources: Int64Array, targets: Int64Array) -> npt.NDArray[np.bool_]:
        """Tell for each pair [B] of nodes of the graph whether an edge leads from one to the other.

        Raises
        ------
        StorageError
            If a file of a mapped graph has been truncated.
        """
        self._csc.check_mapped_files()
        firsts, ends = self._bound(sources, targets, side="left"), self._csc.indptr[targets + 1]
        found = firsts < ends
        found[found] = self._csc.indices[firsts[found]] == sources[found]
        return found

    def ranges(self, sources: Int64Array, targets: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the first position of the edges between each pair [B], and the one after the last.

        Edges that a graph has more than once stand side by side in its columns.

        Raises
        ------
        StorageError
            If a file of a mapped graph has been truncated.
        """
        self._csc.check_mapped_files()
        indices = self._csc.indices
        firsts, last = self._bound(sources, targets, side="left"), self._csc.indptr[targets + 1]
        ends = firsts.copy()
        more = np.arange(len(ends))
        for _ in range(_FEW_COPIES):
            more = more[ends[more] < last[more]]
            more = more[indices[ends[more]] == sources[more]]
            if not more.size:
                return firsts, ends
            ends[more] += 1
        ends[more] = self._bound(sources[more], targets[more], side="right")
        return firsts, ends

    def excluding(self, sources: Int64Array, targets: Int64Array) -> Excluded:
        """Return the edges between some pairs [B] in the form that samplers leave them out.

        Returns
        -------
        ndarray of int64 [n], three of them
            Target, first position and the one after the last of each pair that has edges, once
            each and ascending.
        """
        begins, ends = self.ranges(sources, targets)
        there = np.flatnonzero(begins < ends)
        begins, first = np.unique(begins[there], return_index=True)
        return targets[there[first]], begins, ends[there[first]]

    def first_from(self, sources: Int64Array, targets: Int64Array) -> Int64Array:
        """Return the first position in the column of each target with a source not below [B].

        Raises
        ------
        StorageError
            If a file of a mapped graph has been truncated.
        """
        self._csc.check_mapped_files()
        return self._bound(sources, targets, side="left")

    def targets_of(self, positions: Int64Array) -> Int64Array:
        """Return the nodes that the edges at some positions [B] lead to."""
        return np.searchsorted(self._csc.indptr, positions, side="right") - 1

    def _bound(self, sources: Int64Array, targets: Int64Array, side: str) -> Int64Array:
        """Return where each source belongs in the column of its target, as np.searchsorted."""
        indptr = self._csc.indptr
        return bisect_columns(
            self._csc.indices, indptr[targets], indptr[targets + 1], sources, side
        )
