"""Text edge lists, as snap.stanford.edu serves them: one edge a line, ids as they come."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore.converters.datasets.external import Paths, open_arrays, open_external, recorded
from gnnstore.converters.datasets.text import (
    Header,
    check_counts,
    number_from_one,
    number_ids,
    number_names,
    read_header,
    refuse_header,
    refuse_marks,
)
from gnnstore.converters.edges.numbering import IdMap, NameNumbering, find_ids
from gnnstore.converters.inputs.edge_columns import choose_columns
from gnnstore.converters.inputs.files import RawLayout, npy_files, open_npy, open_npz
from gnnstore.converters.inputs.name_blocks import NameBlock
from gnnstore.converters.inputs.opening import (
    PathLike,
    describe_files,
    existing_file,
    existing_path,
)
from gnnstore.converters.inputs.source import ArraySource, MappedRows, check_rows
from gnnstore.converters.inputs.text_tables import (
    INTEGER,
    OddLine,
    TableFormat,
    TextColumn,
    TextTable,
    read_head,
)
from gnnstore.converters.writer.estimates import text_workload
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.node_arrays import SPLIT_KEYS
from gnnstore.converters.writer.options import ConvertOptions, check_features, converter
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.store.schema import NODE_TYPE
from gnnstore.progress import Progress

_LOG = logging.getLogger(__name__)

_COMMENTS = b"#%"
_ROWS_HINT = (
    "each needs exactly one row; if the node with id i has row i, and some ids occur in no edge, "
    "pass num_nodes="
)


@converter
def from_snap(
    input: PathLike,  # noqa: A002 - the word the command line uses
    output: PathLike,
    *,
    features: Paths | None = None,
    features_raw: RawLayout | None = None,
    features_ids: Paths | None = None,
    features_skip_header: bool = False,
    labels: PathLike | None = None,
    labels_ids: PathLike | None = None,
    labels_skip_header: bool = False,
    splits: PathLike | None = None,
    num_nodes: int | None = None,
    extra_columns: Literal["refuse", "ignore"] = "refuse",
    skip_header: bool | None = None,
    edge_weight: int | str | None = None,
    edge_columns: Mapping[str, int | str] | None = None,
    source: int | str | None = None,
    target: int | str | None = None,
    string_ids: bool = False,
    quotes: Literal["keep", "strip"] | None = None,
    comment: str | None = None,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert a text edge list.

    A line is "source target", with a tab, spaces or a comma (CSV) between; lines that begin with
    `#` or `%`, and blank ones, are skipped. The file may be gzipped. Columns that the first line
    calls source and target, or src and dst, are the ends wherever they stand; names of rows, as R
    writes them, are passed over. A first line of two integers that fit the numbers of nodes and
    lines is refused, unless `skip_header` states what it is.

    A Matrix Market file has as many nodes as its line of sizes has rows, and nodes without entries
    are isolated; it must have as many entries as the line states, and be general, or
    symmetric with `options.undirected`. KONECT's bipartite graphs are refused.

    Ids need not be contiguous: nodes are numbered 0, ..., N - 1 in ascending order of their
    ids, and the store keeps the ids (`original_id`), unless they are 0, ..., N - 1 already.
    Features, labels and splits go by the new numbers: row i belongs to the node with the
    i-th smallest id. With `num_nodes`, ids are taken as they are, and those that occur in no
    edge are isolated nodes.

    Parameters
    ----------
    input : path-like
        The edge list; read twice, unless `num_nodes` is given or it is a Matrix Market file.
    features : path-like, or sequence of path-like, optional
        The node attribute `x` [N, ...]: `.npy`, one array of a `.npz` ("x.npz:NAME"), CSV or raw
        binary, one file or several.
    features_raw : RawLayout, optional
        The features are raw binary, like this.
    features_ids : path-like, or sequence of path-like, optional
        `.npy` or CSV of integers [N]: the id, as in the edge list, of each row of the features,
        if they are not in ascending order of ids; or a column of CSV, which may be the
        features' own: "x.csv:node", by its name in the first line, or "x.csv:1", by its number;
        without, the column `id`. Rows are then sorted on disk.
    features_skip_header, labels_skip_header : bool
        Skip the first line of each file of text: it names the columns.
    labels : path-like, optional
        `y` [N] or [N, ...], as an array or in CSV.
    labels_ids : path-like, optional
        The ids of the rows of the labels, as `features_ids`.
    splits : path-like, optional
        `.npz`, or directory of `.npy`: arrays `train`, `valid` (or `val`) and `test` of node
        numbers, or masks [N].
    num_nodes : int, optional
        N, where ids are the node numbers already.
    extra_columns : "refuse" or "ignore"
        Whether columns after the first two (weights, times) are an error or are skipped. All lines
        have as many.
    skip_header : bool, optional
        Whether the first line that is not a comment is skipped, since it names the columns, or is
        an edge. By default it is skipped if a column is chosen by its name, or if ids are integers
        and it has names for the ends; a line of names that are in no other line is refused.
    source, target : int or str, optional
        The columns of sources and targets, if they are not the first two: numbers, counted from 1,
        or names in the first line. Columns that nothing names are skipped then; a message lists
        them.
    edge_weight : int or str, optional
        Number or name of the column that becomes the edge attribute `edge_weight` [E]; columns
        between are skipped. Perhaps with a type, as in "3:float64": int64, float32 or float64.
        Without, integers are int64, and a column with fractions or gaps is float32, or float64 if
        that would round a number of 2^24 or more. (A matrix states the type of its entries.)
    edge_columns : Mapping of str to int or str, optional
        More columns of numbers by the names of their edge attributes, such as {"time": 4}
        or {"time": "timestamp"}.
    string_ids : bool
        Ids are names: UTF-8 text without the separator. Nodes are numbered in order of
        appearance, and the store keeps the names (`original_names`). Names that do not fit in
        half of the memory allowed are numbered on disk. Lines that begin with `#` or `%` are
        comments before the first edge, and edges of such names behind it.
    quotes : "keep" or "strip", optional
        Whether quotation marks around names belong to the names. By default they are not, between
        commas; between tabs or blanks, if all names have them, and a mixture is refused.
    comment : str, optional
        Characters that begin comments, wherever they are: "#". With "" no line is a comment.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    NotFoundError
        If an input is not there.
    InputError
        If a line is not an edge (the message has its number), the gzip stream is damaged, counts
        disagree, or there are no edges and `num_nodes` is not given.
    UsageError
        If something is said about features that are not given.
    """
    options = options or ConvertOptions()
    _check_ids(num_nodes, features_ids or labels_ids, string_ids=string_ids)
    if quotes is not None and not string_ids:
        raise UsageError("quotes= is about names of nodes; give string_ids=True, or leave it out")
    path = existing_file(input, "the edge list")
    x = open_external(
        features, features_raw, features_ids, options, skip_header=features_skip_header
    )
    y = None
    if labels is not None:
        y = open_arrays(labels, "labels", skip_header=labels_skip_header, ids=labels_ids)
    elif labels_ids is not None or labels_skip_header:
        raise UsageError("labels_ids= and labels_skip_header= describe labels; give the labels too")
    own_names = [name for name, own in (("x", x), ("y", y)) if own is not None]
    check_features(options, {NODE_TYPE: own_names}, "name their files with features=")
    split_files = [] if splits is None else _files_of(splits)
    split_arrays = {} if splits is None else _open_splits(Path(splits), split_files)
    marks = _COMMENTS if comment is None else comment.encode()
    header = read_header(path)
    chosen = choose_columns(
        path,
        read_head(path, marks, is_named=string_ids, mixes=not string_ids),
        (source, target),
        _attribute_columns(edge_weight, edge_columns or {}),
        skip_header=skip_header,
        is_named=string_ids,
        ignores=extra_columns == "ignore",
    )
    columns = chosen.attributes
    header.check_direction(undirected=options.undirected or options.add_inverse_edge)
    header.check_count("nodes by num_nodes=", num_nodes, header.num_nodes)
    last_id = None
    if header.is_matrix:
        columns = _of_matrix(columns, header, string_ids=string_ids)
        last_id, num_nodes = header.num_nodes, None
    provenance = {
        "inputs": describe_files(
            [path, *(file for own in (x, y) if own for file in own.files), *split_files]
        ),
        "extra_columns": extra_columns,
        "num_nodes": num_nodes,
        **recorded(
            features_raw=features_raw,
            skip_header=skip_header,
            features_ids=features_ids,
            labels_ids=labels_ids,
            features_skip_header=features_skip_header,
            labels_skip_header=labels_skip_header,
            edge_weight=edge_weight,
            edge_columns=dict(edge_columns or {}),
            source=source,
            target=target,
            string_ids=string_ids,
            quotes=quotes,
            comment=comment,
        ),
    }
    table_format = TableFormat(
        "text" if string_ids else "int64",
        num_columns=1 + max([*chosen.ends, *(column.position for column in columns.values())]),
        ends=chosen.ends,
        columns=tuple(columns.values()),
        delimiter=None,
        comments=marks,
        comments_lead=string_ids and comment is None,
        skip_blank=True,
        minimum=0 if last_id is None else 1,
        limit=num_nodes if last_id is None else last_id + 1,
        what="node name" if string_ids else "node id",
        ignore_extra=chosen.ignores_others,
        skip_header=chosen.has_header or header.is_matrix,
        quotes=quotes,
        advise=partial(_advise, ends=chosen.ends),
    )
    with GraphWriter(
        output,
        kind="snap",
        source=provenance,
        options=options,
        num_nodes=num_nodes,
        progress=progress,
        workload=text_workload(
            [path],
            table_format,
            header.num_nodes if header.is_matrix else num_nodes,
            [own.source for own in (x, y) if own is not None],
        ),
    ) as writer:
        table = TextTable(path, table_format, memory_bytes=writer.options.memory_bytes)
        writer.reserve_memory(table.memory_bytes)
        is_open = skip_header is None and not table_format.skip_header
        ids, numbering = _number_nodes(
            writer, table, header, num_nodes, is_open=is_open, checks_ends=chosen.may_be_marks
        )
        check_counts(table, numbering, is_skipped=not is_open)
        for name, found in (("x", x), ("y", y)):
            if found is not None:
                nodes = found.row_ids
                check_rows(found.source, writer.num_nodes, hint=_ROWS_HINT)
                if nodes is not None and ids is not None:
                    nodes = MappedRows(nodes, partial(_find, ids.original_ids(), nodes.label))
                found.write(writer, name, nodes, None if ids is None else ids.original_ids)
        for name, split in split_arrays.items():
            writer.set_split(name, split, where=split.label)
        if not writer.has_edges:
            num_edges = _read_edges(writer, table, list(columns), ids, numbering)
            header.check_count("edges", num_edges, header.num_edges)
            check_counts(table, numbering, is_skipped=not is_open)
        if numbering is not None:
            numbering.close()
        return writer.commit()


_IN_TRIPLE = 3  # fields of a line


def _advise(line: OddLine, ends: tuple[int, int]) -> str:
    """Return the remedy for a line that is not an edge."""
    counts = {*line.counts}
    if len(counts) > 1:
        skip = ". If the first, which alone differs, is not an edge, skip it (skip_header=True)"
        return (
            f". Lines have {min(counts)} to {max(counts)} fields: an adjacency list? Write one "
            f"edge a line{skip if line.has_wrong_first else ''}"
        )
    if len(line.fields) == _IN_TRIPLE and not any(map(_is_number, line.fields[1:])):
        return ". 'gnnstore convert triples' reads lines of head, relation and tail"
    if len(line.fields) != line.num_wanted:
        return (
            ". Skip the other columns with extra_columns='ignore', or keep them with "
            "edge_weight=COLUMN and edge_columns="
            if len(line.fields) > line.num_wanted
            else ""
        )
    numbers = [place for place, field in enumerate(line.fields) if INTEGER.fullmatch(field)]
    if line.is_first and not {*ends}.intersection(numbers) and _are_ids(line.next_fields, ends):
        return ". If the line names the columns, skip it with skip_header=True"
    if len(numbers) > 1:
        return ". Say which columns are the ends of an edge, with source= and target="
    return ". If nodes go by names, number them with string_ids=True"


def _is_number(field: bytes) -> bool:
    with suppress(ValueError):
        return float(field) is not None
    return False


def _are_ids(fields: list[bytes], ends: tuple[int, int]) -> bool:
    return len(fields) > max(ends) and all(INTEGER.fullmatch(fields[place]) for place in ends)


def _number_nodes(
    writer: GraphWriter,
    table: TextTable,
    header: Header,
    num_nodes: int | None,
    *,
    is_open: bool,
    checks_ends: bool,
) -> tuple[IdMap | None, NameNumbering | None]:
    """Read the edges a first time, where that is needed to number nodes or to find types.

    Other lines show whether the first is an edge, if that `is_open`, and whether ends are marks.
    """
    ids, names, path = None, None, table.path
    if table.format.dtype == "text":

        def read() -> Iterator[NameBlock]:
            blocks = _blocks(writer, table, "read names")
            blocks = refuse_marks(path, blocks) if checks_ends else blocks
            return refuse_header(path, blocks) if is_open else blocks

        names = number_names(writer, read)
    elif header.is_matrix:
        ids = number_from_one(writer, header.num_nodes or 0)
    elif num_nodes is None:
        blocks = _blocks(writer, table, "read ids")
        ids = number_ids(writer, (table.ends(rows).reshape(-1) for rows in blocks))
    elif not (table.has_all_types or writer.has_edges):
        for _ in _blocks(writer, table, "find the types of columns"):
            pass
    table.settle_types()
    if table.num_comments:
        _LOG.warning(
            "%s: %d lines that begin with %s were passed over as comments; comment= "
            "sets how a comment begins",
            path,
            table.num_comments,
            " or ".join(table.format.comments.decode()),
        )
    if num_nodes is None and not writer.num_nodes:
        right = ", or give num_nodes= if that is right" if names is None else ""
        raise InputError(f"{path}: has no edges; download or copy it again{right}", path=path)
    return ids, names


def _attribute_columns(
    edge_weight: int | str | None, edge_columns: Mapping[str, int | str]
) -> dict[str, int | str]:
    if edge_weight is None:
        return dict(edge_columns)
    if "edge_weight" in edge_columns:
        raise UsageError("edge_weight= is given twice; leave it out of edge_columns=")
    return {"edge_weight": edge_weight, **edge_columns}


def _of_matrix(
    columns: dict[str, TextColumn], header: Header, *, string_ids: bool
) -> dict[str, TextColumn]:
    """Return columns with the type that a matrix states."""
    if string_ids:
        raise UsageError(
            f"{header.path}: rows of a matrix have numbers, and no names; leave out string_ids="
        )
    if columns and header.value_dtype is None:
        raise InputError(
            f"{header.path}: the entries of a pattern matrix have no values; leave out "
            "edge_weight= and edge_columns=",
            path=header.path,
        )
    return {
        name: replace(column, dtype=column.dtype or header.value_dtype)
        for name, column in columns.items()
    }


def _check_ids(num_nodes: int | None, row_ids: Paths | None, *, string_ids: bool) -> None:
    if num_nodes is not None and num_nodes < 0:
        raise UsageError(f"num_nodes={num_nodes} is negative")
    if string_ids and num_nodes is not None:
        raise UsageError(
            "string_ids=True numbers nodes in order of appearance; leave out num_nodes=, which is "
            "about ids that are numbers"
        )
    if string_ids and row_ids is not None:
        raise UsageError(
            "features_ids= and labels_ids= go by ids that are numbers, and string_ids=True by "
            "names; with names, put edges and nodes into tables: from_tables takes nodes= and "
            "node_id=, and 'gnnstore convert table' --nodes and --node-id"
        )


def _find(
    known: npt.NDArray[np.int64], label: str, piece: npt.NDArray[Any], _: int
) -> npt.NDArray[Any]:
    return find_ids(known, piece, label, "occurs in no edge")


def _blocks(writer: GraphWriter, table: TextTable, name: str) -> Iterator[Any]:
    num_edges = 0
    with writer.progress.phase(name, table.path.stat().st_size, "bytes") as phase:
        for block in table.blocks(phase):
            yield block
            num_edges += len(block)
            writer.expect_edges(num_edges)


def _read_edges(
    writer: GraphWriter,
    table: TextTable,
    columns: list[str],
    ids: IdMap | None,
    names: NameNumbering | None,
) -> int:
    """Read the edges into a writer, and return their number."""
    num_edges = 0
    for block in _blocks(writer, table, "read edges"):
        if names is not None:
            pairs = names.numbers(block)
        else:
            pairs = table.ends(block)
            pairs = pairs if ids is None else ids.to_nodes(pairs)
        attributes = {name: table.values(block, i) for i, name in enumerate(columns)}
        sources, targets = pairs.T
        writer.add_edges(sources, targets, attributes, where=str(table.path))
        num_edges += len(block)
    return num_edges


def _files_of(splits: PathLike) -> list[Path]:
    path = existing_path(splits, "the splits")
    return npy_files(path) if path.is_dir() else [path]


def _open_splits(path: Path, files: list[Path]) -> dict[str, ArraySource]:
    is_one = files == [path]
    arrays = open_npz(path) if is_one else {file.stem: open_npy(file) for file in files}
    splits = {SPLIT_KEYS[name]: source for name, source in arrays.items() if name in SPLIT_KEYS}
    if not arrays or len(splits) < len(arrays):
        raise InputError(
            f"{path}: expected arrays called train, valid and test, each once, found "
            f"{', '.join(sorted(arrays)) or 'none'}; save them with numpy.savez('splits.npz', "
            "train=..., valid=..., test=...)",
            path=path,
        )
    return splits
