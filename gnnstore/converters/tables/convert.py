"""Graphs in tables: one of edges, perhaps one of nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.converter import converter
from gnnstore.converters.datasets.numbering import collect_names, number_ids, record_names
from gnnstore.converters.edges.name_ids import NameBlock, NameNumbering
from gnnstore.converters.inputs.derived import FloatLabels
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.tables.columns import (
    TableColumns,
    edge_batches,
    is_text,
    name_batches,
)
from gnnstore.converters.tables.inputs import Table, describe_tables, open_table
from gnnstore.converters.tables.row_ids import RowIds
from gnnstore.converters.writer.estimates import Workload
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions, check_features
from gnnstore.converters.writer.splits import SPLIT_KEYS
from gnnstore.errors import InputError, UsageError
from gnnstore.progress import Progress

_LOG = logging.getLogger(__name__)

Columns = Mapping[str, str] | Sequence[str]


@dataclass(frozen=True)
class NodeTable:
    """The columns of a table that become attributes, ids and splits of nodes of one type."""

    table: Table
    id_column: str | None
    attributes: Mapping[str, ArraySource]  # by their names in the store
    split_column: str | None

    def splits(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return the rows of each split, by the names in a column of text."""
        if self.split_column is None:
            return {}
        rows: dict[str, list[npt.NDArray[np.int64]]] = {}
        done = 0
        for batch in self.table.record_batches([self.split_column]):
            names = batch.column(0).to_numpy(zero_copy_only=False).astype(object)
            for name in {name for name in names if name not in (None, "")}:
                split = SPLIT_KEYS.get(str(name), str(name))
                rows.setdefault(split, []).append(np.flatnonzero(names == name) + done)
            done += len(names)
        return {name: np.sort(np.concatenate(found)) for name, found in rows.items()}


@dataclass(frozen=True)
class EdgeTable:
    """The columns of a table that become the ends and the attributes of edges of one type."""

    table: Table
    source: str
    target: str
    columns: Mapping[str, str]  # columns of attributes, by their names in the store

    @property
    def is_named(self) -> bool:
        """Whether ends are names of nodes."""
        return is_text(self.table, self.source)

    def batches(
        self, to_nodes: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], dict[str, npt.NDArray[Any]]]]:
        """Yield sources, targets and attributes of the next edges; ends are integers."""
        ends = (self.source, self.target)
        for sources, targets, others in edge_batches(self.table, ends, list(self.columns.values())):
            rows = dict(zip(self.columns, others, strict=True))
            if to_nodes is not None:
                sources, targets = to_nodes(sources), to_nodes(targets)  # noqa: PLW2901
            yield sources, targets, rows

    def names(self) -> Iterator[NameBlock]:
        """Yield the names of the ends of the next edges, and their attributes."""
        return name_batches(self.table, (self.source, self.target), list(self.columns.values()))


def open_nodes(
    nodes: Any,
    *,
    node_id: str | None = None,
    features: str | Sequence[str] | None = None,
    label: str | None = None,
    split: str | None = None,
    node_columns: Columns | None = None,
    memory_bytes: int | None = None,
) -> NodeTable:
    """Open a table of nodes of one type; see `from_tables`."""
    table = open_table(nodes, "the nodes", memory_bytes)
    wide = [features] if isinstance(features, str) else list(features or ())
    names = as_mapping(node_columns)
    taken = {"x": bool(wide), "y": label is not None}
    for name in names:
        if taken.get(name):
            raise UsageError(f"the node attribute {name!r} is given twice")
    table.check_columns([c for c in (node_id, label, split, *wide, *names.values()) if c])
    attributes: dict[str, ArraySource] = {}
    if wide:
        x = TableColumns(table, wide)
        if len(x.shape) == 1:
            raise InputError(
                f"{x.label}: is one number a node, where features are [N, F]; name more columns, "
                "or a column of lists"
            )
        attributes["x"] = x
    if label is not None:
        attributes["y"] = FloatLabels(TableColumns(table, [label]))
    attributes |= {name: TableColumns(table, [column]) for name, column in names.items()}
    _tell_left_out(table, [node_id, label, split, *wide, *names.values()])
    return NodeTable(table, node_id, attributes, split)


def open_edges(
    edges: Any,
    *,
    source: str = "source",
    target: str = "target",
    edge_columns: Columns | None = None,
    memory_bytes: int | None = None,
) -> EdgeTable:
    """Open a table of edges of one type; see `from_tables`."""
    table = open_table(edges, "the edges", memory_bytes)
    columns = as_mapping(edge_columns)
    table.check_columns([source, target, *columns.values()])
    if is_text(table, source) != is_text(table, target):
        raise InputError(
            f"{table.label}: one of {source} and {target} has names, the other numbers; both are "
            "nodes of one type"
        )
    _tell_left_out(table, [source, target, *columns.values()])
    return EdgeTable(table, source, target, columns)


def as_mapping(columns: Columns | None) -> dict[str, str]:
    """Return columns by the names of their attributes, which are their own by default."""
    if isinstance(columns, Mapping):
        return dict(columns)
    return {name: name for name in columns or ()}


def _tell_left_out(table: Table, taken: Sequence[str | None]) -> None:
    left = [name for name in table.schema.names if name not in taken]
    if left:
        shown = ", ".join(left[:10]) + (", ..." if len(left) > 10 else "")
        _LOG.warning("%s: columns that no option names are left out: %s", table.label, shown)


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
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert tables of edges and nodes: Parquet, Arrow or Feather files, or frames in memory.

    Without `node_id`, integer ids are numbers of rows of `nodes`, or, if there is no such table and
    no `num_nodes`, are numbered in ascending order, and the store keeps them (`original_ids`).
    Columns of text are names: nodes are numbered in the order of `nodes`, else in order of
    appearance, and the store keeps the names (`original_names`).

    A column keeps its type; lists of equal length become rows [k, F], times int64 in their unit,
    and a missing float NaN. A missing integer is an error. A message lists columns left out.

    Parameters
    ----------
    edges : path-like, sequence of path-like, or table
        The edges: files of Parquet, Arrow IPC (files and streams) or Feather, patterns, or
        directories; or a table of pyarrow, a frame of pandas or Polars.
    source, target : str
        The columns of the ends of an edge.
    edge_columns : Mapping of str to str, or sequence of str, optional
        Columns by the names of the edge attributes that they become.
    nodes : path-like, sequence of path-like, or table, optional
        The nodes, a row for each.
    node_id : str, optional
        The column of `nodes` with the ids or names that edges go by.
    features : str, or sequence of str, optional
        The columns that become `x` [N, F]: one of lists, or several, which are joined.
    label : str, optional
        The column that becomes `y`: int64, or float32 with NaN where there is none.
    split : str, optional
        A column of text, with "train", "valid" (or "val") and "test".
    node_columns : Mapping of str to str, or sequence of str, optional
        More columns of `nodes` by the names of the node attributes that they become.
    num_nodes : int, optional
        N, where integer ids are the node numbers already and there is no table of nodes.
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
    about_nodes = (node_id, features, label, split, node_columns)
    if nodes is None and any(about_nodes):
        raise UsageError("node_id, features, label, split and node_columns go with nodes=")
    if nodes is not None and num_nodes is not None:
        raise UsageError("num_nodes= goes without nodes=, which has a row for each node")
    check_features(options, has_features=bool(features), remedy="name their columns (features=)")
    edge_table = open_edges(
        edges,
        source=source,
        target=target,
        edge_columns=edge_columns,
        memory_bytes=options.memory_bytes,
    )
    node_table = None
    if nodes is not None:
        node_table = open_nodes(
            nodes,
            node_id=node_id,
            features=features,
            label=label,
            split=split,
            node_columns=node_columns,
            memory_bytes=options.memory_bytes,
        )
    _check_ids(edge_table, node_table, num_nodes)
    origin: dict[str, Any] = {
        **describe_tables(edge_table.table, None if node_table is None else node_table.table),
        "source": source,
        "target": target,
        "edge_columns": dict(edge_table.columns),
        "node_id": node_id,
        "features": [features] if isinstance(features, str) else list(features or ()),
        "label": label,
        "split": split,
        "node_columns": as_mapping(node_columns),
        "num_nodes": num_nodes,
    }
    with GraphWriter(
        output,
        kind="table",
        source=origin,
        options=options,
        num_nodes=num_nodes,
        progress=progress,
        workload=_workload(edge_table, node_table),
    ) as writer:
        writer.reserve_memory(edge_table.table.memory_bytes)
        if node_table is not None:
            writer.set_num_nodes(node_table.table.num_rows)
        if edge_table.is_named:
            _write_named(writer, edge_table, node_table)
        else:
            _write_numbered(writer, edge_table, node_table)
        return writer.commit()


def _check_ids(edges: EdgeTable, nodes: NodeTable | None, num_nodes: int | None) -> None:
    id_column = None if nodes is None else nodes.id_column
    if edges.is_named and (num_nodes is not None or (nodes is not None and id_column is None)):
        raise UsageError(
            f"{edges.table.label}: nodes go by names; say which column of the nodes has them "
            "(node_id=), and leave out num_nodes="
        )
    if nodes is None or id_column is None or is_text(nodes.table, id_column) == edges.is_named:
        return
    kinds = ("numbers", "names") if edges.is_named else ("names", "numbers")
    raise InputError(
        f"{nodes.table.label}: {id_column} has {kinds[0]}, and the ends of the edges in "
        f"{edges.table.label} {kinds[1]}; store both alike"
    )


def _workload(edges: EdgeTable, nodes: NodeTable | None) -> Workload:
    import pyarrow as pa  # noqa: PLC0415

    wide = 0
    for column in edges.columns.values():
        kind = edges.table.schema.field(column).type
        wide += kind.bit_width // 8 if pa.types.is_primitive(kind) else 8
    work = Workload(num_edges=edges.table.num_rows, edge_row_bytes=wide)
    for source in () if nodes is None else nodes.attributes.values():
        work.add_nodes(source)
    return work


def _write_nodes(writer: GraphWriter, nodes: NodeTable | None) -> None:
    if nodes is None:
        return
    for name, ids in nodes.splits().items():
        writer.set_split(name, ids)
    for name, column in nodes.attributes.items():
        writer.set_node_attribute(name, column)


def _write_numbered(writer: GraphWriter, edges: EdgeTable, nodes: NodeTable | None) -> None:
    """Write a graph whose edges have integer ids."""
    where = edges.table.label
    to_nodes: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None
    if nodes is not None and nodes.id_column is not None:
        rows = RowIds(TableColumns(nodes.table, [nodes.id_column]), writer.options.memory_bytes)
        if not rows.is_identity:
            writer.reserve_memory(rows.num_bytes)
            writer.set_original_ids(rows.ids)
            to_nodes = lambda ids: rows.to_nodes(ids, where)  # noqa: E731
    elif writer.num_nodes is None:
        ids = number_ids(writer, _all_ids(edges))
        to_nodes = lambda some: ids.to_nodes(some.astype(np.int64))  # noqa: E731
        if not writer.num_nodes:
            raise InputError(f"{where}: has no edges; give num_nodes= if that is right")
    _write_nodes(writer, nodes)
    if writer.has_edges:
        return
    num_edges = edges.table.num_rows
    writer.expect_edges(num_edges)
    with writer.progress.phase("read edges", num_edges, "edges") as phase:
        for sources, targets, attributes in edges.batches(to_nodes):
            writer.add_edges(sources, targets, attributes, where=where)
            phase.advance(len(sources))


def _all_ids(edges: EdgeTable) -> Iterator[npt.NDArray[np.int64]]:
    plain = EdgeTable(edges.table, edges.source, edges.target, {})
    done = 0
    for sources, targets, _ in plain.batches():
        for name, ids in ((edges.source, sources), (edges.target, targets)):
            where = f"{edges.table.label}: {name}"
            if len(ids) and (ids.min() < 0 or ids.max() > np.iinfo(np.int64).max):
                row = done + int(np.argmax((ids < 0) | (ids > np.iinfo(np.int64).max)))
                raise InputError(f"{where}: row {row}: {ids[row - done]} is outside [0, 2^63)")
            yield ids.astype(np.int64)
        done += len(sources)


def _write_named(writer: GraphWriter, edges: EdgeTable, nodes: NodeTable | None) -> None:
    """Write a graph whose edges have names of nodes."""
    plain = EdgeTable(edges.table, edges.source, edges.target, {})

    def own_names() -> Iterator[NameBlock]:
        if nodes is None or nodes.id_column is None:
            return iter(())
        return name_batches(nodes.table, [nodes.id_column])

    with writer.progress.phase("read names"):
        names = collect_names(writer, lambda: chain(own_names(), plain.names()))
    _check_rows(names, own_names(), nodes)
    if nodes is not None and names.num_nodes > nodes.table.num_rows:
        all_names = chain.from_iterable(names.names())
        unknown = next(islice(all_names, nodes.table.num_rows, None)).decode()
        raise InputError(f"{edges.table.label}: the name {unknown!r} is not in {nodes.table.label}")
    record_names(writer, names)
    _write_nodes(writer, nodes)
    if not writer.has_edges:
        num_edges = edges.table.num_rows
        with writer.progress.phase("read edges", num_edges, "edges") as phase:
            for block in edges.names():
                sources, targets = names.numbers(block).T
                attributes = dict(zip(edges.columns, block.columns, strict=True))
                writer.add_edges(sources, targets, attributes, where=edges.table.label)
                phase.advance(len(block))
    names.close()


def _check_rows(names: NameNumbering, blocks: Iterator[NameBlock], nodes: NodeTable | None) -> None:
    """Raise if a name has several rows in the table of nodes."""
    done = 0
    for block in blocks:
        numbers = names.numbers(block)[:, 0]
        wrong = np.flatnonzero(numbers != np.arange(done, done + len(numbers)))
        if len(wrong) and nodes is not None:
            name = block.names[int(block.codes[wrong[0], 0])].decode()
            raise InputError(
                f"{nodes.table.label}: row {done + int(wrong[0])} has the name {name!r}, which row "
                f"{int(numbers[wrong[0]])} has; each node has one row"
            )
        done += len(numbers)
