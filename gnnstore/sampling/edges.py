"""Looks edges up in a graph: by binary search, since a store's columns ascend."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.store.csc import Csc
from gnnstore.sampling.neighbor import Excluded

Int64Array = npt.NDArray[np.int64]


class EdgeFinder:
    """Finds the edges between pairs of nodes. Safe to use from many threads at once."""

    def __init__(self, csc: Csc) -> None:
        self._csc = csc

    def are_edges(self, sources: Int64Array, targets: Int64Array) -> npt.NDArray[np.bool_]:
        """Return for each pair [B] of nodes whether an edge leads from one to the other."""
        firsts, ends = self.ranges(sources, targets)
        return firsts < ends

    def ranges(self, sources: Int64Array, targets: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the first position of the edges between each pair [B], and the end."""
        indptr, indices = self._csc.indptr, self._csc.indices
        try:
            return _core.equal_ranges(
                indices, indptr[targets], indptr[targets + 1], np.ascontiguousarray(sources)
            )
        except IndexError as error:
            raise CorruptStoreError(
                f"cannot look edges up in {self._csc.label}: {error}. Its topology is damaged; "
                "run 'gnnstore verify' on it, or convert the graph again",
                path=self._csc.label,
            ) from error

    def excluding(self, sources: Int64Array, targets: Int64Array) -> Excluded:
        """Return the edges between some pairs [B] in the form that samplers leave them out."""
        begins, ends = self.ranges(sources, targets)
        there = np.flatnonzero(begins < ends)
        begins, first = np.unique(begins[there], return_index=True)
        return targets[there[first]], begins, ends[there[first]]

    def first_from(self, sources: Int64Array, targets: Int64Array) -> Int64Array:
        """Return the first position in the column of each target with a source not below [B]."""
        return self.ranges(sources, targets)[0]

    def targets_of(self, positions: Int64Array) -> Int64Array:
        """Return the nodes that the edges at some positions [B] lead to."""
        return np.searchsorted(self._csc.indptr, positions, side="right") - 1
