"""Writes a finished adjacency into a store, or takes one of an earlier attempt.

Sorting the edges is most of a conversion's work, and features, splits and the commit may
still be interrupted after it. So the journal records when the adjacency is whole, and a later
attempt neither reads the edges nor sorts them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.columns import CARRIED_IDS, BuiltEdges, EdgeChunk, SortedEdges
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES, dtype_name, to_bfloat16_bits
from gnnstore.formats.arrays.paged import PagedArray, PagedArrayWriter
from gnnstore.formats.arrays.pages import PageGeometry, ShardLayout, plan_shards
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.arrays.zarr_metadata import shard_name
from gnnstore.formats.base import names
from gnnstore.formats.base.strict_json import Fields
from gnnstore.formats.container.reads import ReadArray
from gnnstore.formats.store.schema import EDGE_TYPE, EdgeSplitSpec, EdgeType, EdgeTypeSpec
from gnnstore.formats.store.store import StoreWriter
from gnnstore.progress import Progress


def write_adjacency(
    store: StoreWriter,
    built: BuiltEdges,
    attribute_types: Mapping[str, tuple[str, int]],
    progress: Progress,
    *,
    split_sizes: Mapping[str, int] | None = None,
    edge_type: EdgeType = EDGE_TYPE,
    num_targets: int | None = None,
    are_renumbered: bool = False,
    carried_ids: np.dtype[Any] | None = None,
) -> EdgeTypeSpec:
    """Write `indptr`, `indices`, ids of edges, the edge attributes and edge splits.

    Edges between nodes of two types come numbered as of one; only the first columns are targets.
    If edges are numbered by their positions here, their ids are the original data's. Carried
    ids are an attribute while edges are sorted.
    """
    directory = names.edge_directory(*edge_type)
    num_pointers = (built.num_nodes if num_targets is None else num_targets) + 1
    indptr = _array(store, directory, "indptr", "int64", num_pointers)
    edges = _EdgeArrays(
        store,
        built,
        attribute_types,
        directory=directory,
        ends=("indices",),
        num_edges=built.num_edges,
        id_dtype=built.edge_id_dtype if carried_ids is None else carried_ids,
        ids="original_id" if are_renumbered else "edge_id",
    )
    splits = {
        name: _EdgeArrays(
            store,
            built,
            attribute_types,
            directory=names.edge_split_directory(edge_type, name),
            ends=("source", "target"),
            num_edges=num_edges,
            id_dtype=built.edge_id_dtype,
        )
        for name, num_edges in (split_sizes or {}).items()
    }
    with progress.phase("write edges", built.num_edges, "edges") as phase:
        for chunk in built.chunks():
            if carried_ids is not None:
                attributes = dict(chunk.attributes)
                own_ids = attributes.pop(CARRIED_IDS)
                chunk = replace(chunk, edge_id=own_ids, attributes=attributes)  # noqa: PLW2901
            indptr.append(chunk.indptr[:num_pointers])
            num_pointers -= len(chunk.indptr[:num_pointers])
            edges.append((chunk.indices,), chunk)
            for name, part in chunk.to_predict.items():
                splits[name].append((part.sources, part.targets), part)
            phase.advance(len(chunk.indices))
    # Complete now rather than at the commit: later work may be interrupted.
    indptr.close()
    return EdgeTypeSpec(
        *edge_type,
        num_edges=built.num_edges,
        indptr=indptr.spec,
        splits={name: EdgeSplitSpec(**arrays.close()) for name, arrays in splits.items()},
        **edges.close(),
    )


class _EdgeArrays:
    """The arrays of some edges: their ends, ids and attributes, which grow together."""

    def __init__(
        self,
        store: StoreWriter,
        built: BuiltEdges,
        attribute_types: Mapping[str, tuple[str, int]],
        *,
        directory: str,
        ends: tuple[str, ...],
        num_edges: int,
        id_dtype: np.dtype[Any] | None,
        ids: str = "edge_id",
    ) -> None:
        self._store = store
        self._directory = directory
        self._num_edges = num_edges
        self._types = attribute_types
        self._ends = {
            name: _array(store, directory, name, built.index_dtype.name, num_edges) for name in ends
        }
        self._edge_id: PagedArrayWriter | None = None
        if id_dtype is not None:
            self._edge_id = _array(store, directory, ids, id_dtype.name, num_edges)
        self._ids = ids
        self._attributes: dict[str, PagedArrayWriter] | None = None

    def append(self, ends: tuple[npt.NDArray[Any], ...], edges: EdgeChunk | SortedEdges) -> None:
        """Append edges with their ends, ids and attributes."""
        for array, ids in zip(self._ends.values(), ends, strict=True):
            array.append(ids.astype(array.spec.dtype, copy=False))
        if self._edge_id is not None and edges.edge_id is not None:
            dtype = self._edge_id.spec.dtype
            self._edge_id.append(edges.edge_id.astype(dtype, copy=False))
        if self._attributes is None:
            self._attributes = {n: self._array_for(n, r) for n, r in edges.attributes.items()}
        for name, array in self._attributes.items():
            array.append(_attribute_rows(name, edges, array.spec.dtype))

    def _array_for(self, name: str, rows: npt.NDArray[Any]) -> PagedArrayWriter:
        dtype, cat_dim = self._types.get(name, (dtype_name(rows.dtype), 0))
        return self._store.paged(
            f"{self._directory}/attrs/{names.encode(name)}",
            name=name,
            row_shape=rows.shape[1:],
            dtype=dtype,
            num_rows=self._num_edges,
            cat_dim=cat_dim,
        )

    def close(self) -> dict[str, Any]:
        """Complete the arrays, and return them by their names in a schema."""
        attributes = self._attributes or {}
        arrays = {**self._ends, **({self._ids: self._edge_id} if self._edge_id else {})}
        for array in (*arrays.values(), *attributes.values()):
            array.close()
        specs = {name: array.spec for name, array in arrays.items()}
        return {**specs, "attributes": {name: array.spec for name, array in attributes.items()}}


def _array(
    store: StoreWriter, directory: str, name: str, dtype: str, num_rows: int
) -> PagedArrayWriter:
    return store.paged(
        f"{directory}/{name}", name=name, row_shape=(), dtype=dtype, num_rows=num_rows
    )


def _attribute_rows(name: str, edges: EdgeChunk | SortedEdges, dtype: str) -> npt.NDArray[Any]:
    rows = edges.attributes[name]
    added = edges.added if isinstance(edges, EdgeChunk) else None
    if name == "edge_weight" and added is not None and added.any():
        # A loop of weight 0 has no effect, so added loops have 1, as in torch_geometric.
        one = np.ones((), np.float32)
        rows[added] = to_bfloat16_bits(one) if dtype == "bfloat16" else one
    return rows


def finished_edges(store: StoreWriter) -> dict[EdgeType, tuple[EdgeTypeSpec, int]]:
    """Take the adjacencies, and N of each, that an earlier attempt finished into the store."""
    finished = {}
    for record in store.journal.edges:
        spec = Fields(record, "journal").fields("spec").parse(EdgeTypeSpec)
        if not all(_is_whole(store, array) for array in spec.arrays()):
            continue
        for array in spec.arrays():
            writer = store.paged(
                array.path,
                name=array.name,
                row_shape=array.shape[1:],
                dtype=array.dtype,
                num_rows=array.num_rows,
                cat_dim=array.cat_dim,
            )
            writer.skip(array.num_rows)
            writer.close()
        finished[spec.type] = spec, record["num_nodes"]
    return finished


def finished_array(store: StoreWriter, spec: AttributeSpec) -> PagedArray:
    """Return a complete paged array of a store that is being written."""
    layout = _layout(store, spec)
    names_of_shards = (shard_name(n, len(spec.shape) - 1) for n in range(layout.num_shards))
    directory = store.temporary_path / spec.path
    return ReadArray(spec, layout, tuple(directory / name for name in names_of_shards))


def _layout(store: StoreWriter, spec: AttributeSpec) -> ShardLayout:
    row_bytes = STORAGE_DTYPES[spec.dtype].itemsize * math.prod(spec.shape[1:])
    geometry = PageGeometry.for_rows(row_bytes, spec.num_rows, store.page_bytes)
    return plan_shards(geometry, spec.num_rows, store.shard_bytes)


def _is_whole(store: StoreWriter, spec: AttributeSpec) -> bool:
    layout = _layout(store, spec)
    return len(store.journal.committed_shards(spec, layout)) == layout.num_shards
