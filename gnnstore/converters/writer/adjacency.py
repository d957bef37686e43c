"""Write a finished adjacency into a store, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.builder import BuiltEdges, EdgeChunk
from gnnstore.formats.arrays.dtypes import dtype_name, to_bfloat16_bits
from gnnstore.formats.arrays.paged_writer import PagedArrayWriter
from gnnstore.formats.container import names
from gnnstore.formats.store.schema import EDGE_TYPE, EdgeTypeSpec
from gnnstore.formats.store.writer import StoreWriter
from gnnstore.progress import Progress

_DIRECTORY = names.edge_directory(*EDGE_TYPE)


def write_adjacency(
    store: StoreWriter,
    built: BuiltEdges,
    attribute_types: Mapping[str, tuple[str, int]],
    progress: Progress,
    on_degrees: Callable[[npt.NDArray[np.int64]], None] | None = None,
) -> EdgeTypeSpec:
    """Write `indptr`, `indices`, `edge_id` and the edge attributes side by side.

    Parameters
    ----------
    built : BuiltEdges
        The edges; consumed.
    attribute_types : Mapping of str to (str, int)
        Element type and original row axis of attributes, where they are not NumPy's and 0.
    on_degrees : callable, optional
        Told the in-degrees of the next nodes, piece by piece.

    Returns
    -------
    EdgeTypeSpec
        What was written.
    """
    indptr = _array(store, "indptr", "int64", built.num_nodes + 1)
    indices = _array(store, "indices", built.index_dtype.name, built.num_edges)
    edge_id = None
    if built.edge_id_dtype is not None:
        edge_id = _array(store, "edge_id", built.edge_id_dtype.name, built.num_edges)
    attributes: dict[str, PagedArrayWriter] = {}
    latest = np.empty(0, np.int64)
    with progress.phase("write edges", built.num_edges, "edges") as phase:
        for number, chunk in enumerate(built.chunks()):
            if number == 0:
                attributes = {
                    name: _attribute_array(store, name, rows, attribute_types, built.num_edges)
                    for name, rows in chunk.attributes.items()
                }
            indptr.append(chunk.indptr)
            if on_degrees is not None:
                latest = np.concatenate([latest[-1:], chunk.indptr])
                on_degrees(np.diff(latest))
            indices.append(chunk.indices)
            if edge_id is not None and chunk.edge_id is not None:
                edge_id.append(chunk.edge_id)
            for name, array in attributes.items():
                array.append(_attribute_rows(name, chunk, array.spec.dtype))
            phase.advance(len(chunk.indices))
    # Complete now rather than at the commit: what comes later may be interrupted.
    for array in filter(None, (indptr, indices, edge_id, *attributes.values())):
        array.close()
    return EdgeTypeSpec(
        *EDGE_TYPE,
        num_edges=built.num_edges,
        indptr=indptr.spec,
        indices=indices.spec,
        edge_id=None if edge_id is None else edge_id.spec,
        attributes={name: array.spec for name, array in attributes.items()},
    )


def _array(store: StoreWriter, name: str, dtype: str, num_rows: int) -> PagedArrayWriter:
    return store.paged(
        f"{_DIRECTORY}/{name}", name=name, row_shape=(), dtype=dtype, num_rows=num_rows
    )


def _attribute_array(
    store: StoreWriter,
    name: str,
    rows: npt.NDArray[Any],
    attribute_types: Mapping[str, tuple[str, int]],
    num_edges: int,
) -> PagedArrayWriter:
    dtype, cat_dim = attribute_types.get(name, (dtype_name(rows.dtype), 0))
    return store.paged(
        f"{_DIRECTORY}/attrs/{names.encode(name)}",
        name=name,
        row_shape=rows.shape[1:],
        dtype=dtype,
        num_rows=num_edges,
        cat_dim=cat_dim,
    )


def _attribute_rows(name: str, chunk: EdgeChunk, dtype: str) -> npt.NDArray[Any]:
    rows = chunk.attributes[name]
    if name == "edge_weight" and chunk.added is not None:
        # A loop of weight 0 would be none, so torch_geometric, too, gives added ones 1.
        one = np.ones((), np.float32)
        rows[chunk.added] = to_bfloat16_bits(one) if dtype == "bfloat16" else one
    return rows
