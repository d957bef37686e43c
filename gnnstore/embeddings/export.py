"""Writes an embedding table as an ordinary node attribute, which every loader and tool reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError
from gnnstore.formats import AttributeSpec, NodeTypeSpec, Schema, StoreReader, StoreWriter
from gnnstore.formats.container.names import node_array
from gnnstore.formats.container.writer import SealedWriter


def export_rows(
    pieces: Iterator[npt.NDArray[np.float32]],
    dim: int,
    source: StoreReader,
    path: str | os.PathLike[str],
    *,
    name: str,
    provenance: Mapping[str, Any],
    with_graph: bool,
    overwrite: bool,
) -> Path:
    """Write rows, some at a time, as a store of their own or with all arrays of another store."""
    schema, node = source.schema, source.schema.node
    if not with_graph:
        schema = Schema((NodeTypeSpec(node.name, node.num_nodes, {}),), ())
        node = schema.node
    if name in node.attributes:
        raise UsageError(
            f"{source.path} has an attribute {name!r}; choose another name for the embeddings"
        )
    if Path(path).resolve() == source.path.resolve():
        raise UsageError(f"{path} is the store of the table; choose another place for the rows")
    with StoreWriter(path, overwrite=overwrite) as writer:
        if with_graph:
            for spec in source.manifest.arrays():
                _copy(writer, source, spec)
        rows = writer.paged(
            node_array(node.name, name),
            name=name,
            row_shape=(dim,),
            dtype="float32",
            num_rows=node.num_nodes,
        )
        with rows:
            for piece in pieces:
                rows.append(piece)
        nodes = replace(node, attributes={**node.attributes, name: rows.spec})
        before = source.manifest.provenance if with_graph else {"kind": "embeddings"}
        whole = {**before, "embeddings": {**provenance, "name": name}}
        return writer.commit(replace(schema, node_types=(nodes,)), whole)


def _copy(writer: SealedWriter, source: StoreReader, spec: AttributeSpec) -> None:
    if spec.layout == "cold":
        values = source.read(spec)
        writer.compressed(spec.path, values, name=spec.name, dtype=spec.dtype, cat_dim=spec.cat_dim)
        return
    copy = writer.paged(
        spec.path,
        name=spec.name,
        row_shape=spec.shape[1:],
        dtype=spec.dtype,
        num_rows=spec.num_rows,
        cat_dim=spec.cat_dim,
    )
    with copy:
        for _, rows in source.paged(spec).pieces():
            copy.append(rows)
