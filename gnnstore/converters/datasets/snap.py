"""Text edge lists, as snap.stanford.edu serves them: one edge a line, ids as they come."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore.converters.datasets.external import Paths, open_external, open_labels
from gnnstore.converters.datasets.numbering import number_from_one, number_ids, number_names
from gnnstore.converters.edges.id_remap import IdMap
from gnnstore.converters.edges.name_ids import NameNumbering
from gnnstore.converters.inputs.files import RawLayout
from gnnstore.converters.inputs.npy import open_npy_directory
from gnnstore.converters.inputs.npz import open_npz
from gnnstore.converters.inputs.opening import (
    PathLike,
    describe_files,
    existing_file,
    existing_path,
)
from gnnstore.converters.inputs.source import ArraySource, SequentialArray, check_rows
from gnnstore.converters.inputs.text_blocks import read_blocks
from gnnstore.converters.inputs.text_tables import NameBlock, TableFormat, TextTable
from gnnstore.converters.stores.ordered import converter
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions, check_features
from gnnstore.converters.writer.splits import SPLIT_KEYS
from gnnstore.errors import InputError, UsageError
from gnnstore.progress import Progress

_COMMENTS = b"#%"
_NUM_ENDS = 2
_MATRIX_MARKET, _MAX_BANNER_LINES = b"%%matrixmarket", 10_000
_EXTRA_HINT = (
    ". Drop the columns after the first two (extra_columns='ignore'), "
    "or keep one as edge_weight (edge_weight=COLUMN)"
)
_TYPE_HINT = (
    ". If the line names the columns, skip it (skip_header=True); if nodes go by "
    "names, number them (string_ids=True)"
)


@converter()
def from_snap(
    input: PathLike,  # noqa: A002 - the word the command line uses
    output: PathLike,
    *,
    features: Paths | None = None,
    features_raw: RawLayout | None = None,
    features_ids: PathLike | None = None,
    labels: PathLike | None = None,
    splits: PathLike | None = None,
    num_nodes: int | None = None,
    extra_columns: Literal["refuse", "ignore"] = "refuse",
    skip_header: bool = False,
    edge_weight: int | None = None,
    string_ids: bool = False,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert a text edge list.

    A line is "source target", with a tab, spaces or a comma between; lines that begin with
    `#` or `%`, and blank ones, are skipped. The file may be gzipped. Quotation marks have no
    meaning. A Matrix Market file has as many nodes as its line of sizes says rows, of which
    those without entries are isolated.

    Ids need not be contiguous: nodes are numbered 0, ..., N - 1 in ascending order of their
    ids, and the store keeps the ids (`original_id`), unless they are 0, ..., N - 1 already.
    Features, labels and splits go by the new numbers: row i is that of the node with the
    i-th smallest id. With `num_nodes`, ids are taken as they are, and those that occur in no
    edge are isolated nodes.

    Parameters
    ----------
    input : path-like
        The edge list; read twice, unless `num_nodes` is given or it is a Matrix Market file.
    features : path-like, or sequence of path-like, optional
        The node attribute `x` [N, ...]: see `open_features` for the forms it may have.
    features_raw : RawLayout, optional
        The features are raw binary, like this.
    features_ids : path-like, optional
        `.npy` or CSV of integers [N]: the id, as in the edge list, of each row of the features,
        if they are not in ascending order of ids. Rows are then sorted on disk.
    labels : path-like, optional
        `y` [N] or [N, ...], as an array or in CSV.
    splits : path-like, optional
        `.npz`, or directory of `.npy`: arrays `train`, `valid` (or `val`) and `test` of node
        numbers, or masks [N].
    num_nodes : int, optional
        N, where ids are the node numbers already.
    extra_columns : "refuse" or "ignore"
        Whether columns after the first two (weights, times) are an error or are skipped.
    skip_header : bool
        Skip the first line that is no comment: it names the columns.
    edge_weight : int, optional
        Number of the column, counted from 1, that becomes the edge attribute `edge_weight`,
        float32 [E]; columns between are passed over.
    string_ids : bool
        Ids are names: UTF-8 text without the separator. Nodes are numbered in order of
        appearance, and the store keeps the names (`original_names`). Names that do not fit in
        half of the memory allowed are numbered on disk.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    NotFoundError
        If an input is not there.
    InputError
        If a line is no edge (the message has its number), the gzip stream is damaged, counts
        disagree, or there are no edges and `num_nodes` is not given.
    UsageError
        If something is said about features that are not given.
    """
    _check_ids(num_nodes, edge_weight, string_ids, features_ids)
    path = existing_file(input, "the edge list")
    x = open_external(features, features_raw, features_ids, options)
    check_features(options, has_features=x is not None, remedy="name their files with features=")
    y = None if labels is None else open_labels(labels)
    split_arrays = {} if splits is None else _open_splits(splits)
    num_rows = _rows_of_matrix(path, is_undirected=options is not None and options.undirected)
    last_id = num_rows if num_nodes is None and not string_ids else None
    array_files = [file for array in (x, y) if array is not None for file in array.files]
    source: dict[str, Any] = {
        "inputs": describe_files([path, *array_files, *_files_of(splits)]),
        "extra_columns": extra_columns,
        "num_nodes": num_nodes,
    }
    if features_raw is not None:
        source["features_raw"] = str(features_raw)
    more = {"skip_header": skip_header, "edge_weight": edge_weight, "string_ids": string_ids}
    source |= {name: value for name, value in more.items() if value}
    table_format = TableFormat(
        "text" if string_ids else "int64",
        num_columns=edge_weight or _NUM_ENDS,
        weight_column=None if edge_weight is None else edge_weight - 1,
        delimiter=None,
        comments=_COMMENTS,
        minimum=0 if last_id is None else 1,
        limit=num_nodes if last_id is None else last_id + 1,
        what="node name" if string_ids else "node id",
        ignore_extra=extra_columns == "ignore",
        skip_header=skip_header or num_rows is not None,
        extra_hint=_EXTRA_HINT,
        type_hint=_TYPE_HINT,
    )
    with GraphWriter(
        output, kind="snap", source=source, options=options, num_nodes=num_nodes, progress=progress
    ) as writer:
        table = TextTable(path, table_format, memory_bytes=writer.options.memory_bytes)
        writer.reserve_memory(table.memory_bytes)
        names = number_names(writer, lambda: _read_names(writer, table)) if string_ids else None
        ids = None
        if last_id is not None:
            ids = number_from_one(writer, last_id)
        elif num_nodes is None and names is None:
            ids = number_ids(writer, _read_ids(writer, table))
        if num_nodes is None and not writer.num_nodes:
            right = "" if string_ids else ", or give num_nodes= if that is right"
            raise InputError(f"{path}: has no edges; download or copy it again{right}", path=path)
        # A matrix has nodes without edges too.
        max_id = None if ids is None or last_id is not None else ids.max_id
        if x is not None:
            _check_rows(x.source, writer.num_nodes or 0, None if x.row_ids is not None else max_id)
            nodes = x.row_ids
            if nodes is not None and ids is not None:
                nodes = _NumberedIds(nodes, ids)
            x.write(writer, nodes)
        if y is not None:
            _check_rows(y.source, writer.num_nodes or 0, max_id)
            writer.set_node_attribute("y", y.source, dtype=y.dtype)
        for name, split in split_arrays.items():
            writer.set_split(name, split, where=split.label)
        if not writer.has_edges:
            _read_edges(writer, table, ids, names)
        if names is not None:
            names.close()
        return writer.commit()


def _rows_of_matrix(path: Path, *, is_undirected: bool) -> int | None:
    """Return the number of rows in the first line of a square matrix."""
    block = next(read_blocks(path), None)
    if block is None:
        return None
    banner = block.data.partition(b"\n")[0].lower()
    if not banner.startswith(_MATRIX_MARKET):
        return None
    words = banner.split()
    if b"coordinate" not in words:
        raise InputError(
            f"{path}: a dense matrix is no list of edges; write it in the coordinate format",
            path=path,
        )
    if b"general" not in words and not is_undirected:
        raise InputError(
            f"{path}: one half of a symmetric matrix, so that each edge has one direction; add the "
            "other with undirected=True",
            path=path,
        )
    if not {b"general", b"symmetric"} & set(words):
        raise InputError(
            f"{path}: of a {words[-1].decode(errors='replace')} matrix, the entries that are left "
            "out do not equal others; write it as a general one",
            path=path,
        )
    lines = (line.split() for line in block.data.split(b"\n", _MAX_BANNER_LINES))
    sizes = next((line for line in lines if line and not line[0].startswith(b"%")), [])
    if len(sizes) != 3 or not all(re.fullmatch(rb"\d{1,19}", size) for size in sizes):
        shown = b" ".join(sizes)[:100].decode(errors="replace")
        raise InputError(
            f"{path}: the first line that is no comment says {shown!r}; expected the numbers of "
            "rows, columns and entries of a Matrix Market file",
            path=path,
        )
    if sizes[0] != sizes[1]:
        shape = b" x ".join(sizes[:2]).decode(errors="replace")
        raise InputError(
            f"{path}: a matrix of {shape} joins two kinds of nodes, and row and column of one "
            "number would be one node; number them apart, as an edge list",
            path=path,
        )
    return int(sizes[0])


def _check_ids(
    num_nodes: int | None,
    edge_weight: int | None,
    string_ids: bool,
    features_ids: PathLike | None,
) -> None:
    if num_nodes is not None and num_nodes < 0:
        raise UsageError(f"num_nodes={num_nodes} is negative")
    if edge_weight is not None and edge_weight <= _NUM_ENDS:
        raise UsageError(
            f"edge_weight={edge_weight} is no column of weights: columns count from 1, and the "
            "first two are the ends of an edge"
        )
    if string_ids and (num_nodes is not None or features_ids is not None):
        raise UsageError(
            "string_ids numbers nodes in order of appearance; leave out num_nodes= and "
            "features_ids=, which go by ids that are numbers"
        )


class _NumberedIds(SequentialArray):
    """Ids of an edge list as node numbers."""

    def __init__(self, source: ArraySource, ids: IdMap) -> None:
        self.label = source.label
        self.shape = source.shape
        self.dtype = source.dtype
        self._source = source
        self._ids = ids.original_ids()

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        for piece in self._source.rows(step, start):
            # Compared with int64, unsigned numbers would be rounded; larger numbers are no ids.
            wanted = piece.astype(self._ids.dtype)
            numbers = np.searchsorted(self._ids, wanted)
            found = self._ids[np.minimum(numbers, len(self._ids) - 1)]
            is_unknown = (found != wanted) | ((wanted < 0) != (piece < 0))
            if is_unknown.any():
                unknown = piece[int(np.argmax(is_unknown))]
                raise InputError(f"{self.label}: the id {unknown} occurs in no edge")
            yield numbers


def _read_ids(writer: GraphWriter, table: TextTable) -> Iterator[npt.NDArray[Any]]:
    num_edges = 0
    with writer.progress.phase("read ids", table.path.stat().st_size, "bytes") as phase:
        for rows in table.blocks(phase):
            yield (rows["ends"] if rows.dtype.names else rows).reshape(-1)
            num_edges += len(rows)
            writer.expect_edges(num_edges)


def _read_names(writer: GraphWriter, table: TextTable) -> Iterator[NameBlock]:
    num_edges = 0
    with writer.progress.phase("read names", table.path.stat().st_size, "bytes") as phase:
        for block in table.blocks(phase):
            yield block
            num_edges += len(block)
            writer.expect_edges(num_edges)


def _read_edges(
    writer: GraphWriter, table: TextTable, ids: IdMap | None, names: NameNumbering | None
) -> None:
    with writer.progress.phase("read edges", table.path.stat().st_size, "bytes") as phase:
        for block in table.blocks(phase):
            pairs, weight = block, None
            if isinstance(block, NameBlock):
                weight = block.weight
            elif block.dtype.names:
                pairs, weight = block["ends"], block["weight"]
            if names is not None:
                pairs = names.numbers(block)
            elif ids is not None:
                pairs = ids.to_nodes(pairs)
            attributes = {} if weight is None else {"edge_weight": weight}
            sources, targets = pairs.T
            writer.add_edges(sources, targets, attributes, where=str(table.path))


def _check_rows(array: ArraySource, num_nodes: int, max_id: int | None) -> None:
    found = array.shape[0] if array.shape else 0
    hint = ""
    if max_id is not None and found > max_id:
        hint = (
            f"if row i belongs to the node with id i, pass num_nodes={found}: nodes without "
            "edges do not occur in the edge list"
        )
    check_rows(array, num_nodes, hint=hint)


def _files_of(splits: PathLike | None) -> list[Path]:
    if splits is None:
        return []
    path = Path(splits)
    return sorted(path.glob("*.npy")) if path.is_dir() else [path]


def _open_splits(path: PathLike) -> dict[str, ArraySource]:
    found = existing_path(path, "the splits")
    arrays = open_npy_directory(found) if found.is_dir() else open_npz(found)
    unknown = sorted(arrays.keys() - SPLIT_KEYS.keys())
    if unknown or not arrays:
        raise InputError(
            f"{found}: expected arrays called train, valid and test, found "
            f"{', '.join(sorted(arrays)) or 'none'}",
            path=found,
        )
    splits: dict[str, ArraySource] = {}
    for name, source in arrays.items():
        if (split := SPLIT_KEYS[name]) in splits:
            raise InputError(
                f"{found}: {name} is the split {split!r}, which was given already", path=found
            )
        splits[split] = source
    return splits
