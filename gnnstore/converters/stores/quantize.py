"""A store whose node features are int8 with a scale per column, made from a store of floats.

Other arrays are copied as they are: all that the store has stays, for every type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import read_ahead
from gnnstore.converters.stores.graph import CopiedRows, StoreArrays
from gnnstore.converters.writer.base import open_store, provenance
from gnnstore.converters.writer.node_arrays import NodeArrays
from gnnstore.converters.writer.options import (
    ConvertOptions,
    check_features,
    refuse_options,
    refuse_rules,
    single_options,
)
from gnnstore.errors import UsageError, limits_named
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.spec import AttributeSpec, Scaled
from gnnstore.formats.base.files import directory_bytes, require_space
from gnnstore.formats.store.schema import NODE_TYPE, Schema
from gnnstore.formats.store.store import StoreWriter
from gnnstore.progress import NullProgress, Progress
from gnnstore.units import format_size

_TOLERANCE = 1.1  # factor of the estimate, for padding of pages and scales
_OF_NODES = "is not for quantizing a store, which keeps all but the types of node attributes"


@limits_named("quantize")
@single_options
def quantize(
    store: PathLike,
    output: PathLike,
    feature_dtype: Mapping[str, str] | str | None = None,
    *,
    allow_error: bool = False,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write a store again with node attributes as int8, and a scale for each of their columns.

    Everything else is as in the store. An attribute is read twice, the rest once.

    Parameters
    ----------
    store : path-like
        The store, with types or without.
    feature_dtype : str or Mapping of str to str, optional
        The attributes and their types, as in `ConvertOptions`: "emb=int8", {"paper:x": "int8"}.
        None: `x` of every node type that has it as floats.
    allow_error : bool
        As in `ConvertOptions`.
    output, options, progress
        See `gnnstore.converters`; single options as well, such as `overwrite=True`. The rules for
        edges are not for stores.

    Raises
    ------
    UsageError
        If an attribute is not there, or has scales already; if there is none to quantize.
    InputError
        If an attribute has NaN or infinities, or a column that `allow_error` is for.
    NotFoundError, CorruptStoreError, StorageError
        If the store cannot be read.
    """
    graph = StoreArrays(store)
    options = quantize_options(graph, feature_dtype, options, allow_error=allow_error)
    progress = progress or NullProgress()
    if Path(output).resolve() == graph.reader.path.resolve():
        raise UsageError(f"{output} is the store that is read; choose another place for the result")
    schema = graph.reader.schema
    origin = provenance("quantize", graph.source(), options)
    with open_store(output, options, origin, {}) as writer:
        size = estimate_bytes(graph, options)
        require_space(
            writer.path,
            round(size / _TOLERANCE) - directory_bytes(writer.temporary_path),
            f"write a store of at least {format_size(round(size / _TOLERANCE))}",
            "choose an output on another file system; nothing was left under the final name.",
        )
        progress.note(f"expected: {format_size(size)} in the store")
        changed = changed_attributes(schema, options)
        node_types = []
        for node in schema.node_types:
            arrays = NodeArrays(writer, options, progress, node.name, num_nodes=node.num_nodes)
            for spec in node.attributes.values():
                if spec.path in changed:
                    rows = CopiedRows(graph, spec)
                    arrays.write(spec.name, rows, dtype=spec.dtype, cat_dim=spec.cat_dim)
            node_types.append(replace(node, attributes={**node.attributes, **arrays.attributes}))
        for spec in schema.arrays():
            if spec.path not in changed:
                _copy(writer, graph, spec, progress)
        with progress.phase("commit"):
            return writer.commit(replace(schema, node_types=tuple(node_types)), origin)


def quantize_options(
    graph: StoreArrays,
    feature_dtype: Mapping[str, str] | str | None = None,
    options: ConvertOptions | None = None,
    *,
    allow_error: bool = False,
) -> ConvertOptions:
    """Return the options by which attributes of a store get scales; refuse those that cannot."""
    options = options or ConvertOptions()
    schema = graph.reader.schema
    schema.refuse_part(graph.reader.path, "gnnstore quantize")
    given = feature_dtype or options.feature_dtype
    rules = replace(options, feature_dtype=None, feature_scale=None, allow_error=False)
    refuse_rules(rules, "quantizing a store")
    refuse_options(options, ("edge_ids", "index_dtype", "split_fractions", "spill_dir"), _OF_NODES)
    if given is None:
        features = {of.name: own for of in schema.node_types if (own := of.attributes.get("x"))}
        floats = [
            name
            for name, own in features.items()
            if own.scaled is None and _is_float(own) and 0 not in own.shape[1:]
        ]
        if not floats:
            raise UsageError(
                f"{graph.reader.path}: the features x are int8 with scales already"
                if any(own.scaled for own in features.values())
                else f"{graph.reader.path}: has no features x of floats; name attributes with "
                "feature_dtype="
            )
        given = {"x" if name == NODE_TYPE else f"{name}:x": "int8" for name in floats}
    for name, dtype in replace(rules, feature_dtype=given).feature_dtypes.items():
        if dtype != "int8":
            raise UsageError(
                f"feature_dtype={f'{name}={dtype}'!r}: a store is quantized to int8, with scales; "
                "other types are for conversions"
            )
    options = replace(
        options,
        feature_dtype=given,
        feature_scale="column",
        allow_error=allow_error or options.allow_error,
    )
    check_features(options, {node.name: node.attributes for node in schema.node_types})
    times = {name for edge in schema.edge_types for name in edge.orders}
    for spec in changed_attributes(schema, options).values():
        if spec.scaled is not None:
            raise UsageError(
                f"{graph.reader.path}: {spec.path} is int8 with a scale per column already; leave "
                "it out"
            )
        if 0 in spec.shape[1:]:
            raise UsageError(
                f"{graph.reader.path}: {spec.path} has rows without values; leave it out"
            )
        if spec.name in times or spec.time_unit is not None:
            raise UsageError(f"{graph.reader.path}: {spec.path} has times; leave it out")
    _with_scales(schema, options).refuse_taken_names(graph.reader.path)
    return options


def _with_scales(schema: Schema, options: ConvertOptions) -> Schema:
    """Return the schema with scales where there will be some, before their values are known."""
    changed = {
        path: replace(spec, scaled=Scaled(spec, "float32"))
        for path, spec in changed_attributes(schema, options).items()
    }
    return replace(
        schema,
        node_types=tuple(
            replace(
                node,
                attributes={
                    name: changed.get(spec.path, spec) for name, spec in node.attributes.items()
                },
            )
            for node in schema.node_types
        ),
    )


def _is_float(spec: AttributeSpec) -> bool:
    return spec.dtype == "bfloat16" or STORAGE_DTYPES[spec.dtype].kind == "f"


def changed_attributes(schema: Schema, options: ConvertOptions) -> dict[str, AttributeSpec]:
    """Return the attributes that options give another type, by their paths."""
    return {
        spec.path: spec
        for node in schema.node_types
        for name, spec in node.attributes.items()
        if options.feature_dtype_of(node.name, name) is not None
    }


def estimate_bytes(graph: StoreArrays, options: ConvertOptions) -> int:
    """Return about the bytes of the store that is made."""
    size, schema = graph.reader.total_bytes, graph.reader.schema
    for node in schema.node_types:
        for name, spec in node.attributes.items():
            if options.feature_dtype_of(node.name, name) is not None:
                size -= spec.num_bytes - spec.num_bytes // STORAGE_DTYPES[spec.dtype].itemsize
    return size


def _copy(writer: StoreWriter, graph: StoreArrays, spec: AttributeSpec, progress: Progress) -> None:
    """Copy an array."""
    how: dict[str, Any] = {"name": spec.name, "dtype": spec.dtype, "cat_dim": spec.cat_dim}
    if spec.layout == "cold":
        writer.compressed(spec.path, graph.read(spec), **how)
        return
    array = writer.paged(spec.path, row_shape=spec.shape[1:], num_rows=spec.num_rows, **how)
    done = array.skip(spec.num_rows)
    with progress.phase(f"copy {spec.path}", spec.num_rows, "rows") as phase:
        phase.advance(done)
        for rows in read_ahead(CopiedRows(graph, spec).pieces(done)):
            array.append(rows)
            phase.advance(len(rows))
    array.close()
