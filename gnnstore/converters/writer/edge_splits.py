"""Writes splits of edges into a store: ends, fixed negatives and attributes, piece by piece.

A negative that is drawn is a hash of the seed and of its place, and depends on nothing else. On
request, those that are edges of the graph are drawn again. Edges are looked up in the adjacency and
in splits, both sorted by target and source.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.edges.split import NAMES, SplitRule
from gnnstore.converters.inputs.ids import check_ids
from gnnstore.converters.inputs.source import (
    ArraySource,
    GeneratedRows,
    as_source,
    check_count,
    check_rows,
    read_ahead,
)
from gnnstore.converters.writer.adjacency import finished_array
from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import dtype_name, id_dtype
from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base import names
from gnnstore.formats.store.schema import EDGE_TYPE, EdgeSplitSpec, EdgeTypeSpec
from gnnstore.formats.store.store import StoreWriter
from gnnstore.progress import Progress
from gnnstore.random_words import hash_pairs

Rows = npt.NDArray[Any] | ArraySource

_LOG = logging.getLogger(__name__)
_SALT = 0x6E656761_74697665  # "negative"
_MAX_DRAWS = 17  # draws of a negative: the first, and 16 more where it is an edge
_PIECE_VALUES = 2**17


def write_edge_split(
    store: StoreWriter,
    name: str,
    parts: Mapping[str, Rows | npt.ArrayLike | None],
    attributes: Mapping[str, Rows],
    attribute_types: Mapping[str, tuple[str, int]],
    *,
    num_nodes: int,
    where: str,
) -> EdgeSplitSpec:
    """Write the arrays of a split."""
    directory = names.edge_split_directory(EDGE_TYPE, name)
    sources = {n: as_source(rows, f"{where}: {n}") for n, rows in parts.items() if rows is not None}
    num_edges = sources["source"].shape[0] if sources["source"].shape else 0
    if not num_edges:
        raise InputError(f"{where}: the split {name!r} has no edges; leave it out")
    num_shared = sources["negative_source"].shape[0] if "negative_source" in sources else None
    written: dict[str, AttributeSpec] = {}
    for part, source in sources.items():
        num_axes = 2 if part.endswith("_negatives") else 1
        if len(source.shape) != num_axes or 0 in source.shape or source.dtype.kind not in "iu":
            raise InputError(
                f"{source.label}: is {source.dtype} {list(source.shape)}; expected integers with "
                f"{num_axes} {'axis' if num_axes == 1 else 'axes'}, not empty"
            )
        if part.startswith("negative_"):
            check_count(source.label, source.shape[0], num_shared, "negative sources")
        else:
            check_count(source.label, source.shape[0], num_edges, "edges in this split")
        limit: int | None = num_nodes
        dtype = id_dtype(num_nodes)
        if part == "edge_id":
            limit, dtype = None, np.dtype(np.int32 if source.dtype == np.int32 else np.int64)
        written[part] = copy_array(store, directory, source, part, dtype, limit=limit)
    written_attributes = {}
    for attribute, rows in attributes.items():
        source = as_source(rows, f"{where}: {attribute}")
        check_rows(source, num_edges, "edges")
        stored, cat_dim = attribute_types.get(attribute, (None, 0))
        written_attributes[attribute] = copy_array(
            store, f"{directory}/attrs", source, attribute, stored=stored, cat_dim=cat_dim
        )
    return EdgeSplitSpec(**written, attributes=written_attributes)


def copy_array(
    store: StoreWriter,
    directory: str,
    source: ArraySource,
    name: str,
    id_dtype: np.dtype[Any] | None = None,
    *,
    limit: int | None = None,
    stored: str | None = None,
    cat_dim: int = 0,
) -> AttributeSpec:
    """Copy an array into pages and complete it; with a type of ids, check the ids."""
    dtype = id_dtype or source.dtype
    array = store.paged(
        f"{directory}/{names.encode(name)}",
        name=name,
        row_shape=source.shape[1:],
        dtype=stored or dtype_name(dtype),
        num_rows=source.shape[0],
        cat_dim=cat_dim,
    )
    done = array.skip(array.num_committed_rows)
    for rows in read_ahead(source.pieces(done)):
        width = rows.size // len(rows)
        if id_dtype is not None:
            check_ids(rows.reshape(-1), limit, f"{source.label}: id", done * width)
        array.append(rows.astype(dtype, copy=False))
        done += len(rows)
    array.close()  # now: work before the commit may be interrupted
    return array.spec


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
            words = hash_pairs(self.seed, places[left], np.full(len(left), attempt))
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
