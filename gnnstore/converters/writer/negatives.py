"""Draws fixed negatives for the edges of a split: nodes that replace the target of each.

A negative is a hash of the seed and of its place, and depends on nothing else. On request,
negatives that are edges of the graph are drawn again. Edges are looked up in the adjacency and in
splits, both sorted by target and source.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
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
from gnnstore.formats.store.edge_splits import EdgeSplitSpec
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
    num_nodes: int,
    is_undirected: bool,
    progress: Progress,
) -> EdgeTypeSpec:
    """Write the negatives of each split; returns the schema with them."""
    finder = _Finder(store, edges, is_undirected) if rule.strict_negatives else None
    splits = {}
    for name, split in edges.splits.items():
        drawer = _Drawer(store, name, split, rule, num_nodes)
        shape, dtype = (split.num_edges, rule.num_negatives), id_dtype(num_nodes)
        source = GeneratedRows(f"negatives of {name}", shape, dtype, partial(drawer.draw, finder))
        directory = names.edge_split_directory(EDGE_TYPE, name)
        with progress.phase(f"draw negatives of {name}"):
            written = copy_array(store, directory, source, "target_negatives", dtype)
        splits[name] = replace(split, target_negatives=written)
        if drawer.num_kept:
            _LOG.warning(
                "the edge split %r: %d of %d negatives are edges, loops or the edge itself: "
                "%d draws found no other",
                name,
                drawer.num_kept,
                split.num_edges * rule.num_negatives,
                _MAX_DRAWS,
            )
    return replace(edges, splits=splits)


class _Drawer:
    """Draws the negatives of a split."""

    def __init__(
        self, store: StoreWriter, name: str, split: EdgeSplitSpec, rule: SplitRule, num_nodes: int
    ) -> None:
        self.num_kept = 0  # negatives that are edges, loops or the edge itself
        self._width = rule.num_negatives
        self._ends = finished_array(store, split.source), finished_array(store, split.target)
        self._seed = (rule.seed ^ _SALT) + NAMES.index(name) & 2**64 - 1
        self._num_nodes = np.uint64(num_nodes)

    def draw(self, finder: _Finder | None, first: int, last: int) -> npt.NDArray[Any]:
        """Return the negatives of edges first, ..., last - 1."""
        step = max(1, _PIECE_VALUES // self._width)
        pieces = [
            self._draw(finder, begin, min(begin + step, last)) for begin in range(first, last, step)
        ]
        return np.concatenate(pieces).reshape(-1, self._width)

    def _draw(self, finder: _Finder | None, first: int, last: int) -> npt.NDArray[Any]:
        sources, targets = (
            np.repeat(ends.read_slice(first, last).astype(np.int64), self._width)
            for ends in self._ends
        )
        places = np.arange(first * self._width, last * self._width)
        found = np.empty(len(places), np.int64)
        left = np.arange(len(places))
        for attempt in range(_MAX_DRAWS if finder else 1):
            words = hash_pairs(self._seed, places[left], np.full(len(left), attempt), None)
            found[left] = (words % self._num_nodes).astype(np.int64)
            if finder is not None:
                there, wrong = found[left], sources[left]
                is_bad = (there == wrong) | (there == targets[left])
                left = left[is_bad | finder.are_edges(wrong, there)]
        self.num_kept += len(left) if finder else 0
        return found.astype(id_dtype(int(self._num_nodes)))


class _Finder:
    """Finds edges of the adjacency and of the splits while the store is written."""

    def __init__(self, store: StoreWriter, edges: EdgeTypeSpec, is_undirected: bool) -> None:
        self._indptr = finished_array(store, edges.indptr)
        self._indices = finished_array(store, edges.indices)
        self._splits: list[tuple[PagedArray, PagedArray]] = [
            (finished_array(store, split.target), finished_array(store, split.source))
            for split in edges.splits.values()
        ]
        self._is_undirected = is_undirected

    def are_edges(
        self, sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return for each pair [k] whether it is an edge."""
        indptr = self._indptr.view()
        found = _contain(self._indices.view(), indptr[targets], indptr[targets + 1], sources)
        if self._is_undirected:  # splits hold the ascending one of the two directions
            sources, targets = np.minimum(sources, targets), np.maximum(sources, targets)
        for own_targets, own_sources in self._splits:
            columns = own_targets.view()
            # In the columns' type: else NumPy would copy all columns.
            wanted = targets.astype(columns.dtype)
            low, high = (np.searchsorted(columns, wanted, side) for side in ("left", "right"))
            found |= _contain(own_sources.view(), low, high, sources)
        return found


def _contain(
    values: npt.NDArray[Any],
    low: npt.NDArray[np.int64],
    high: npt.NDArray[np.int64],
    wanted: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Return whether ascending values[low:high] contain each number."""
    firsts, ends = _core.equal_ranges(values, low, high, wanted)
    found: npt.NDArray[np.bool_] = firsts < ends
    return found
