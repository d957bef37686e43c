"""Writes splits of edges into a store: ends, fixed negatives and attributes, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.node_ids import check_ids
from gnnstore.converters.inputs.source import (
    ArraySource,
    MemoryArray,
    as_source,
    check_count,
    check_rows,
    row_bytes,
)
from gnnstore.converters.read_ahead import read_ahead
from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import dtype_name, id_dtype
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container import names
from gnnstore.formats.store.edge_splits import EdgeSplitSpec
from gnnstore.formats.store.schema import EDGE_TYPE
from gnnstore.formats.store.writer import StoreWriter

Rows = npt.NDArray[Any] | ArraySource
_COPY_BYTES = 2**23


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
    sources = {n: _source(f"{where}: {n}", rows) for n, rows in parts.items() if rows is not None}
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
        source = _source(f"{where}: {attribute}", rows)
        check_rows(source, num_edges, "edges")
        stored, cat_dim = attribute_types.get(attribute, (None, 0))
        written_attributes[attribute] = copy_array(
            store, f"{directory}/attrs", source, attribute, stored=stored, cat_dim=cat_dim
        )
    return EdgeSplitSpec(**written, attributes=written_attributes)


def _source(label: str, rows: Rows | npt.ArrayLike) -> ArraySource:
    found = as_source(rows, label)
    return MemoryArray(label, found) if isinstance(found, np.ndarray) else found


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
    step = max(1, _COPY_BYTES // max(1, row_bytes(source)))
    for rows in read_ahead(source.rows(step, done)):
        width = rows.size // len(rows)
        if id_dtype is not None:
            check_ids(rows.reshape(-1), limit, f"{source.label}: id", done * width)
        array.append(rows.astype(dtype, copy=False))
        done += len(rows)
    array.close()  # now: work before the commit may be interrupted
    return array.spec
