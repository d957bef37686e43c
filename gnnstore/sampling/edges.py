"""Looks edges up in a graph, by binary search in its columns, and adds reverse edges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.store.csc import Csc
from gnnstore.sampling.neighbor import EdgeSample, EdgeType, Excluded, Sample

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


def reverse_of(edge_type: EdgeType, edge_types: Iterable[EdgeType]) -> EdgeType | None:
    """Return the type of the reverses of a type's edges, as PyTorch Geometric finds it."""
    source, relation, target = edge_type
    if (named := (target, f"rev_{relation}", source)) in (edge_types := tuple(edge_types)):
        return named
    if source == target:
        return edge_type
    candidates = [other for other in edge_types if (other[0], other[2]) == (target, source)]
    return candidates[0] if len(candidates) == 1 else None


def with_reverse_edges(sample: Sample) -> Sample:
    """Return the bidirectional subgraph of a sample of several edge types.

    Each type is joined with the reverses of its reverse type's edges, each edge once, sorted by
    target. A reverse type that is named after it, "rev_…", becomes the flipped edges, in their
    order. Edges have no positions afterwards but those of types that have no reverse.
    """
    sampled = sample.edges
    joined: dict[EdgeType, EdgeSample] = dict(sampled)
    none = np.empty(0, np.int64)
    for edge_type in sampled:
        reverse = reverse_of(edge_type, sampled)
        if reverse is None or edge_type[1].startswith("rev_"):
            continue
        index = _joined(sampled[edge_type].index, sampled[reverse].index)
        joined[edge_type] = EdgeSample(index, none)
        if reverse[1] == f"rev_{edge_type[1]}":
            joined[reverse] = EdgeSample(np.ascontiguousarray(index[::-1]), none)
    return replace(sample, edges=joined, hop_nodes=None, hop_edges=None)


def _joined(index: npt.NDArray[Any], reverse: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the union of edges and flipped reverses, sorted by target, then source."""
    both = np.concatenate([index, reverse[::-1]], axis=1)
    order = np.lexsort(both)
    both = both[:, order]
    is_new = np.ones(both.shape[1], np.bool_)
    is_new[1:] = (both[:, 1:] != both[:, :-1]).any(axis=0)
    return np.ascontiguousarray(both[:, is_new])
