"""Graphs in tables: one of edges, perhaps one of nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.datasets.table_files import (
    RowIds,
    Table,
    TableColumns,
    edge_batches,
    is_text,
    name_batches,
    open_table,
    plain,
)
from gnnstore.converters.datasets.text import number_ids
from gnnstore.converters.edges.ordered import EdgePlaces, OrderedChunk
from gnnstore.converters.inputs.opening import PathLike, describe_files
from gnnstore.converters.inputs.source import ArraySource, FloatLabels, MappedRows
from gnnstore.converters.inputs.times import TimesInUnit, settle_units
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, Pair, workload_of
from gnnstore.converters.typed.names import Names, NodeNames
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.node_arrays import SPLIT_KEYS
from gnnstore.converters.writer.options import (
    ConvertOptions,
    check_features,
    check_sorted,
    converter,
)
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.arrays.dtypes import dtype_name
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE
from gnnstore.progress import Progress

_LOG = logging.getLogger(__name__)
_INT64 = np.iinfo(np.int64)

Columns = Mapping[str, str] | Sequence[str]


@converter
def from_tables(
    edges: Any,
    output: PathLike,
    *,
    source: str = "source",
    target: str = "target",
    edge_columns: Columns | None = None,
    nodes: Any = None,
    node_id: str | None = None,
    features: str | Sequence[str] | None = None,
    label: str | None = None,
    split: str | None = None,
    node_columns: Columns | None = None,
    num_nodes: int | None = None,
    sorted: bool = False,  # noqa: A002 - the word the command line uses
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert tables of edges and nodes: Parquet, Arrow or Feather files, or frames in memory.

    Without `node_id`, integer ids are numbers of rows of `nodes`, or, if there is no such table and
    no `num_nodes`, are numbered in ascending order, and the store keeps them (`original_ids`).
    Columns of text are names: nodes are numbered in the order of `nodes`, else in order of
    appearance, and the store keeps the names (`original_names`).

    A column keeps its type; lists of equal length become rows [k, F], dates and timestamps int64 in
    one unit for each name, the finest, and a missing float NaN. A missing integer or time is an
    error. A message lists columns left out.

    Parameters
    ----------
    edges : path-like, sequence of path-like, or table
        The edges: files of Parquet, Arrow IPC (files and streams) or Feather, patterns, or
        directories; or a table, data set or scanner of pyarrow, a frame of pandas, in which levels
        of the index with a name are columns, or a frame of Polars, lazy or not.
    source, target : str
        The columns of the ends of an edge.
    edge_columns : Mapping of str to str, or sequence of str, optional
        Columns by the names of the edge attributes that they become.
    nodes : path-like, sequence of path-like, or table, optional
        The nodes, a row for each.
    node_id : str, optional
        The column of `nodes` with the ids or names that edges go by.
    features : str, or sequence of str, optional
        The columns that become `x` [N, F]: one of lists or numbers, or several, which are joined.
    label : str, optional
        The column that becomes `y`: int64; with fractions or NaN float32, or float64 if that would
        round a number of 2^24 or more.
    split : str, optional
        A column with "train", "valid" (or "val") and "test", or other values, whose texts name the
        splits.
    node_columns : Mapping of str to str, or sequence of str, optional
        More columns of `nodes` by the names of the node attributes that they become.
    num_nodes : int, optional
        N, where integer ids are the node numbers already and there is no table of nodes.
    sorted : bool
        Whether rows are in ascending order of target, then source, over all files: edges are then
        written as they are read, without temporary files. Ends are integers; a table of nodes is in
        ascending order of `node_id`. The store is the same as without.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    NotFoundError
        If a file is not there.
    InputError
        If a table is damaged, lacks a column, or has values that cannot be stored, or an edge
        has a node that is not in `nodes`.
    UsageError
        If something is said about nodes that are not given.
    """
    options = options or ConvertOptions()
    wide = [features] if isinstance(features, str) else list(features or ())
    more, edge_attributes = _as_mapping(node_columns), _as_mapping(edge_columns)
    node_names = [c for c in (node_id, label, split, *wide, *more.values()) if c]
    if nodes is None and node_names:
        raise UsageError("node_id=, features=, label=, split= and node_columns= go with nodes=")
    if nodes is not None and num_nodes is not None:
        raise UsageError("num_nodes= goes without nodes=, which has a row for each node")
    own_names = {**({"x": wide} if wide else {}), **({"y": label} if label else {}), **more}
    check_features(options, {NODE_TYPE: own_names}, "name their columns (features=)")
    table = open_table(edges, "the edges", options.memory_bytes)
    _check_columns(table, [source, target, *edge_attributes.values()])
    is_named = is_text(table, source)
    if sorted:
        check_sorted(options, table.label, has_names=is_named or is_text(table, target))
    if is_named != is_text(table, target):
        raise InputError(
            f"{table.label}: one of {source} and {target} has names, the other numbers; both are "
            "nodes of one type"
        )
    node_table, attributes = None, {}
    if nodes is not None:
        node_table = open_table(nodes, "the nodes", options.memory_bytes)
        _check_columns(node_table, node_names)
        if node_id is None and node_table.is_reindexed:
            raise InputError(
                f"{node_table.label}: the index of the frame is not 0 to N - 1, so that rows may "
                "not be the nodes of their numbers; call frame.reset_index() and name the column "
                "of ids (node_id=), or frame.reset_index(drop=True) if rows are the nodes"
            )
        attributes = _node_attributes(node_table, wide, label, more)
    _check_ids(table, node_table, node_id, num_nodes, is_named=is_named)
    own: dict[str, ArraySource] = {
        name: TableColumns(table, [column]) for name, column in edge_attributes.items()
    }
    settle_units({NODE_TYPE: attributes, EDGE_TYPE: own}, options.time_attr, options.time_units)
    tables = [table] if node_table is None else [table, node_table]
    # A table in memory may not be the interrupted run's.
    files = [file for own in tables for file in own.files] if all(t.files for t in tables) else []
    origin: dict[str, Any] = {
        **({"inputs": describe_files(files)} if files else {}),
        "source": source,
        "target": target,
        "edge_columns": edge_attributes,
        "node_id": node_id,
        "features": wide,
        "label": label,
        "split": split,
        "node_columns": more,
        "num_nodes": num_nodes,
    }
    ends = (source, target)
    columns = EdgeInput(tuple, table.label, table.num_rows)
    columns.attributes |= own
    if sorted:
        columns.places = EdgePlaces(partial(_pairs, table, ends), table.place_of)
    with GraphWriter(
        output,
        kind="table",
        source=origin,
        options=options,
        num_nodes=num_nodes,
        progress=progress,
        workload=workload_of({NODE_TYPE: NodeInput(0, attributes)}, {EDGE_TYPE: columns}),
    ) as writer:
        writer.reserve_memory(table.memory_bytes)
        if node_table is not None and not is_named:
            writer.set_num_nodes(node_table.num_rows)
        own_ids = None if node_table is None or node_id is None else (node_table, node_id)
        number = _number_names if is_named else _number_ids
        read, close = number(writer, table, ends, list(edge_attributes.values()), own_ids)
        if node_table is not None and split is not None:
            for name, ids in _splits(node_table, split).items():
                writer.set_split(name, ids)
        for name, column in attributes.items():
            writer.set_node_attribute(name, column)
        _write_edges(writer, table, own, read, columns.places, is_named=is_named)
        close()
        return writer.commit()


def _as_mapping(columns: Columns | None) -> dict[str, str]:
    """Return columns by the names of their attributes, which are their own by default."""
    if isinstance(columns, Mapping):
        return dict(columns)
    return {name: name for name in columns or ()}


def _check_columns(table: Table, taken: Sequence[str]) -> None:
    """Raise if a column is not there; note the columns that are left out."""
    table.check_columns(taken)
    left = [name for name in table.schema.names if name not in taken]
    if left:
        _LOG.warning(
            "%s: columns that no option names are left out: %s", table.label, ", ".join(left[:10])
        )


def _node_attributes(
    table: Table, wide: list[str], label: str | None, more: Mapping[str, str]
) -> dict[str, ArraySource]:
    attributes: dict[str, ArraySource] = {}
    if wide:
        x: ArraySource = TableColumns(table, wide)
        if len(x.shape) == 1:  # one column of numbers
            x = MappedRows(x, lambda rows, _: rows[:, None], row_shape=(1,))
        attributes["x"] = x
    if label is not None:
        attributes["y"] = FloatLabels(TableColumns(table, [label]))
    if twice := attributes.keys() & more.keys():
        raise UsageError(f"the node attribute {min(twice)!r} is given twice")
    return attributes | {name: TableColumns(table, [column]) for name, column in more.items()}


def _splits(table: Table, column: str) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of each split, named by the texts of a column's values."""
    rows: dict[str, list[npt.NDArray[np.int64]]] = {}
    done = 0
    for batch in table.record_batches([column]):
        for name, found in _rows_by_value(batch.column(0), f"{table.label}: {column}"):
            rows.setdefault(SPLIT_KEYS.get(name, name), []).append(found + done)
        done += batch.num_rows
    return {name: np.sort(np.concatenate(found)) for name, found in rows.items()}


def _rows_by_value(column: Any, where: str) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Yield the text of each value of an Arrow array, in their order, and its rows."""
    import pyarrow as pa  # noqa: PLC0415

    column = plain(column)
    try:
        if "binary" in str(column.type):  # of any width
            column = column.cast(pa.large_binary())
        if "binary" in str(column.type) or "view" in str(column.type):
            column = column.cast(pa.large_string())
        encoded = column.dictionary_encode()
        values = encoded.dictionary.to_pylist()
    except UnicodeDecodeError:
        raise InputError(f"{where}: has text that is not UTF-8; convert it to UTF-8") from None
    except pa.ArrowException as error:
        raise InputError(
            f"{where}: is {column.type}, whose values do not name splits ({error}); name them in "
            "text"
        ) from None
    codes = encoded.indices.fill_null(-1).to_numpy()
    texts = ["" if value != value else str(value) for value in values]  # noqa: PLR0124 - NaN
    for text, code in sorted(zip(texts, range(len(texts)), strict=True)):
        if text:
            yield text, np.flatnonzero(codes == code)


def _check_ids(
    edges: Table, nodes: Table | None, node_id: str | None, num_nodes: int | None, *, is_named: bool
) -> None:
    if is_named and (num_nodes is not None or (nodes is not None and node_id is None)):
        raise UsageError(
            f"{edges.label}: nodes go by names; choose the column of the nodes that has them "
            "(node_id=), and leave out num_nodes="
        )
    if nodes is None or node_id is None or is_text(nodes, node_id) == is_named:
        return
    kinds = ("numbers", "names") if is_named else ("names", "numbers")
    raise InputError(
        f"{nodes.label}: {node_id} has {kinds[0]}, and the ends of the edges in "
        f"{edges.label} {kinds[1]}; store both alike"
    )


# Sources, targets and attributes of the next edges.
_Edges = Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], Sequence[npt.NDArray[Any]]]]
_Ends = tuple[str, str]
_OwnIds = tuple[Table, str] | None  # the nodes, and the column with their ids or names
_Reading = tuple[Callable[[], _Edges], Callable[[], None]]


def _write_edges(
    writer: GraphWriter,
    table: Table,
    attributes: Mapping[str, ArraySource],
    read: Callable[[], _Edges],
    places: EdgePlaces | None,
    *,
    is_named: bool,
) -> None:
    for name, column in attributes.items():
        dtype = dtype_name(column.dtype)
        writer.describe_edge_attribute(name, dtype=dtype, time_unit=column.time_unit)
    if writer.has_edges:
        return

    def chunks() -> Iterator[OrderedChunk]:
        done = 0
        for sources, targets, others in read():
            rows = dict(zip(attributes, others, strict=True))
            for name, column in attributes.items():
                if isinstance(column, TimesInUnit):
                    rows[name] = column.convert(rows[name], done)
            yield sources, targets, rows
            done += len(sources)
        if not done:  # the attributes' types still have to be known
            none = np.empty(0, np.int64)
            empty = {n: np.empty((0, *c.shape[1:]), c.dtype) for n, c in attributes.items()}
            yield none, none, empty

    if places is not None:
        writer.write_in_order(chunks, table.num_rows, places, where=table.label)
        return
    if not is_named:
        writer.expect_edges(table.num_rows)
    with writer.progress.phase("read edges", table.num_rows, "edges") as phase:
        for sources, targets, rows in chunks():
            writer.add_edges(sources, targets, rows, where=table.label)
            phase.advance(len(sources))


def _pairs(table: Table, ends: _Ends) -> Iterator[Pair]:
    """Yield sources and targets as the table has them."""
    for sources, targets, _ in edge_batches(table, ends, []):
        yield sources, targets


def _number_ids(
    writer: GraphWriter, edges: Table, ends: _Ends, columns: list[str], own_ids: _OwnIds
) -> _Reading:
    """Assign numbers to integer ids; return what reads these, and what ends it."""
    to_nodes: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = lambda ids: ids  # noqa: E731
    if own_ids is not None:
        nodes, node_id = own_ids
        rows = RowIds(TableColumns(nodes, [node_id]), writer.options.memory_bytes)
        if not rows.is_identity:
            writer.reserve_memory(rows.num_bytes)
            writer.set_original_ids(rows.ids)
            to_nodes = lambda ids: rows.to_nodes(ids, edges.label)  # noqa: E731
    elif writer.num_nodes is None:
        numbers = number_ids(writer, _all_ids(edges, ends))
        to_nodes = lambda ids: numbers.to_nodes(ids.astype(np.int64))  # noqa: E731
        if not writer.num_nodes:
            raise InputError(f"{edges.label}: has no edges; give num_nodes= if that is right")

    def read() -> _Edges:
        for sources, targets, others in edge_batches(edges, ends, columns):
            yield to_nodes(sources), to_nodes(targets), others

    return read, lambda: None


def _all_ids(edges: Table, ends: tuple[str, str]) -> Iterator[npt.NDArray[np.int64]]:
    done = 0
    for *pair, _ in edge_batches(edges, ends, []):
        for name, ids in zip(ends, pair, strict=True):
            is_wrong = (ids < 0) | (ids > _INT64.max)
            if is_wrong.any():
                row = int(np.argmax(is_wrong))
                raise InputError(
                    f"{edges.label}: {name}: row {done + row}: {ids[row]} is outside [0, 2^63)"
                )
            yield ids.astype(np.int64)
        done += len(pair[0])


def _number_names(
    writer: GraphWriter, edges: Table, ends: _Ends, columns: list[str], own_ids: _OwnIds
) -> _Reading:
    """Assign numbers to names; return what reads these, and what ends it."""
    table = None
    if own_ids is not None:
        table = Names(own_ids[0].label, lambda: name_batches(own_ids[0], [own_ids[1]]))
    names = NodeNames(table)
    names.add(Names(edges.label, lambda: name_batches(edges, ends)))
    names.number(writer)

    def read() -> _Edges:
        for block in name_batches(edges, ends, columns):
            sources, targets = names.numbering.numbers(block).T
            yield sources, targets, block.columns

    return read, names.numbering.close
