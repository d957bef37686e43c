"""Draws fixed negatives for the edges of a split: nodes that replace the target of each.

A negative is a hash of the seed and of its place, and depends on nothing else. On request,
negatives that are edges of the graph are drawn again. Edges are looked up in the adjacency and in
splits, both sorted by target and source.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.edges.split import NAMES, SplitRule
from gnnstore.converters.inputs.derived import GeneratedRows
from gnnstore.converters.keyed_random import hash_pairs
from gnnstore.converters.writer.adjacency import finished_array
from gnnstore.converters.writer.edge_splits import copy_array
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.arrays.paged_array import PagedArray
from gnnstore.formats.container import names
from gnnstore.formats.store.schema import EDGE_TYPE, EdgeTypeSpec
from gnnstore.formats.store.writer import StoreWriter
from gnnstore.progress import Progress

_LOG = logging.getLogger(__name__)

_SALT = 0x6E656761_74697665  # "negative"
_MAX_DRAWS = 17  # the first, and 16 more where it is an edge
_PIECE_VALUES = 2**17


def write_negatives(
    store: StoreWriter,
    edges: EdgeTypeSpec,
    rule: SplitRule,
    *,
    is_undirected: bool,
    progress: Progress,
) -> EdgeTypeSpec:
    """Write the negatives of each split; returns the schema with them."""
    finder = _Finder(store, edges, is_undirected) if rule.strict_negatives else None
    splits, num_nodes = {}, edges.indptr.num_rows - 1
    for name, split in edges.splits.items():
        ends = [finished_array(store, spec) for spec in (split.source, split.target)]
        seed = (rule.seed ^ _SALT) + NAMES.index(name) & 2**64 - 1
        drawer = _Drawer(ends, seed, rule.num_negatives, num_nodes, finder)
        shape, dtype = (split.num_edges, rule.num_negatives), id_dtype(num_nodes)
        source = GeneratedRows(f"negatives of {name}", shape, dtype, drawer.draw)
        directory = names.edge_split_directory(EDGE_TYPE, name)
        with progress.phase(f"draw negatives of {name}"):
            written = copy_array(store, directory, source, "target_negatives", dtype)
        splits[name] = replace(split, target_negatives=written)
        if drawer.num_kept:
            _LOG.warning(
                "the edge split %r: %d of %d negatives are edges, loops or the edge itself: "
                "%d draws found no other",
                *(name, drawer.num_kept, split.num_edges * rule.num_negatives, _MAX_DRAWS),
            )
    return replace(edges, splits=splits)


@dataclass
class _Drawer:
    """Draws the negatives of a split."""

    ends: list[PagedArray]
    seed: int
    width: int
    num_nodes: int
    finder: _Finder | None
    num_kept: int = 0  # negatives that are edges, loops or the edge itself

    def draw(self, first: int, last: int) -> npt.NDArray[Any]:
        """Return the negatives of edges first, ..., last - 1."""
        step = max(1, _PIECE_VALUES // self.width)
        pieces = [self._draw(begin, min(begin + step, last)) for begin in range(first, last, step)]
        return np.concatenate(pieces).reshape(-1, self.width)

    def _draw(self, first: int, last: int) -> npt.NDArray[Any]:
        sources, targets = (
            np.repeat(ends.read_slice(first, last).astype(np.int64), self.width)
            for ends in self.ends
        )
        places = np.arange(first * self.width, last * self.width)
        found = np.empty(len(places), np.int64)
        left = np.arange(len(places))
        for attempt in range(_MAX_DRAWS if self.finder else 1):
            words = hash_pairs(self.seed, places[left], np.full(len(left), attempt), None)
            found[left] = (words % np.uint64(self.num_nodes)).astype(np.int64)
            if self.finder is not None:
                there, wrong = found[left], sources[left]
                is_bad = (there == wrong) | (there == targets[left])
                left = left[is_bad | self.finder.are_edges(wrong, there)]
        self.num_kept += len(left) if self.finder else 0
        return found.astype(id_dtype(self.num_nodes))


class _Finder:
    """Finds edges of the adjacency and of the splits while the store is written."""

    def __init__(self, store: StoreWriter, edges: EdgeTypeSpec, is_undirected: bool) -> None:
        self._indptr, self._indices = (
            finished_array(store, spec).view() for spec in (edges.indptr, edges.indices)
        )
        self._splits = [
            tuple(finished_array(store, spec).view() for spec in (split.target, split.source))
            for split in edges.splits.values()
        ]
        self._is_undirected = is_undirected

    def are_edges(
        self, sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return for each pair [k] whether it is an edge."""
        places = self._indptr[targets], self._indptr[targets + 1]
        found = _contain(self._indices, *places, sources)
        if self._is_undirected:  # splits hold the ascending one of the two directions
            sources, targets = np.minimum(sources, targets), np.maximum(sources, targets)
        for columns, own_sources in self._splits:
            # In the columns' type: else NumPy would copy all columns.
            wanted = targets.astype(columns.dtype)
            low, high = (np.searchsorted(columns, wanted, side) for side in ("left", "right"))
            found |= _contain(own_sources, low, high, sources)
        return found


def _contain(
    values: npt.NDArray[Any],
    low: npt.NDArray[np.int64],
    high: npt.NDArray[np.int64],
    wanted: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Return whether ascending values[low:high] contain each number."""
    firsts, ends = _core.equal_ranges(values, low, high, wanted)
    return np.asarray(firsts < ends)
