"""A directory with a table or arrays for each type: `nodes/TYPE...` and `edges/S__R__T...`.

What a type has is a file with an ending, or a directory of such files: `.npy` (the name is the
attribute), `.npz`, Parquet, Arrow and Feather, `.csv` and `.tsv` with names of columns, gzipped or
not; of edges also KONECT's `out.*`, whose ids count from 1 in each column.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore.converters.datasets.numpy import matrix_kind, open_matrix
from gnnstore.converters.datasets.table_files import ENDINGS as _TABLES
from gnnstore.converters.datasets.table_files import (
    RowIds,
    Table,
    TableColumns,
    directory_column,
    edge_batches,
    end_batches,
    is_text,
    name_batches,
    open_table,
    to_array,
)
from gnnstore.converters.datasets.typed_text import open_text_edges
from gnnstore.converters.edges.numbering import may_be_ids
from gnnstore.converters.inputs.edge_columns import named_ends
from gnnstore.converters.inputs.files import open_npy, open_npz
from gnnstore.converters.inputs.name_blocks import NameBlock, join_columns
from gnnstore.converters.inputs.opening import PathLike, describe_files, existing_directory
from gnnstore.converters.inputs.parts import (
    Skipped,
    directory_columns,
    entries,
    is_hidden,
    parts_of,
    refuse_two_formats,
)
from gnnstore.converters.inputs.source import (
    ArraySource,
    GeneratedRows,
    joined,
    read_ahead,
    read_one_number,
)
from gnnstore.converters.inputs.text_arrays import TextArray, TextColumns
from gnnstore.converters.inputs.text_tables import (
    TableFormat,
    TextColumn,
    TextHead,
    is_number,
    read_head,
    separator_hint,
)
from gnnstore.converters.typed.graph_writer import check_node_type
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, Pair, largest_ids, write_graph
from gnnstore.converters.typed.names import Names, NodeNames
from gnnstore.converters.typed.reverse import reverse_types
from gnnstore.converters.writer.node_arrays import SPLIT_KEYS
from gnnstore.converters.writer.options import ConvertOptions, check_sorted, converter
from gnnstore.errors import InputError, NotFoundError, check_choice
from gnnstore.formats.base.names import decode
from gnnstore.formats.store.schema import EdgeType
from gnnstore.progress import Progress
from gnnstore.units import format_count

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_Ids = RowIds | Names | None

_TEXTS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_ENDINGS = (".npy", ".npz", *_TABLES, *_TEXTS)
_ENDS = ("source", "target")
_WANTED = ".npy, .npz, .parquet, .arrow, .feather, .csv, .tsv and KONECT's out.*"
_KONECT = "out."  # the beginning of names of KONECT's files of edges
_KONECT_UNDIRECTED = re.compile(rb"%\s*sym\b", re.IGNORECASE)
_KONECT_SIZES = re.compile(rb"%\s*(\d{1,18})\s+(\d{1,18})\s+(\d{1,18})\s*")
_FEATURE = re.compile(r"x_\d+")
_STEP_ROWS = 2**16


@converter
def from_typed(
    input: PathLike,  # noqa: A002 - the word the command line uses
    output: PathLike,
    *,
    layout: Literal["csc", "csr"] | None = None,
    node_id: Mapping[str, str] | None = None,
    sorted: bool = False,  # noqa: A002 - the word the command line uses
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert a directory with files for each node type and each edge type.

    `nodes/TYPE` and `edges/SOURCE__RELATION__TARGET` are directories, or files with an ending; in
    names, characters may be percent-encoded. Arrays and columns become attributes. For nodes,
    `num_nodes` is their number, `train`, `valid` (or `val`) and `test` are splits (ids, or masks),
    and `id` has their ids, integers or text, by which edges name them: without, nodes are numbered
    by their rows. For edges, `edge_index` [2, E] or [E, 2], or `source` and `target` [E], are their
    ends; or `indptr` and `indices`, whose `layout` has to be given, or by source in tables called
    so; or a matrix of `scipy.sparse.save_npz`, whose entry [i, j] is the edge from row i of the
    sources to row j of the targets, with its value as `edge_weight`. Tables of text have a line
    with the names of columns; without one, columns of nodes are features, and edges' columns begin
    with the ends. Columns `x_0`, `x_1`, ... of text are features. Edges in `out.*` are KONECT's:
    source, target, perhaps `weight` and `time`.

    Node types that only edges name have one node more than the largest id, or, by text, are
    numbered as edges name them first; the store keeps names (`original_names`). Types are in the
    order of their names.

    Parameters
    ----------
    input : path-like
        The directory, with `edges/` in it, and perhaps `nodes/`.
    layout : "csc" or "csr", optional
        The meaning of `indptr`: "csc" counts the edges to each target, whose sources are in
        `indices`; "csr" counts the edges from each source.
    node_id : Mapping of str to str, optional
        By node type, the column with its ids, if that is not `id`; "": the numbers of rows are the
        ids, also if there are columns of ids. Without, nodes that have no `id` are refused if a
        column of different integers, other than 0, ..., N - 1, has a name that ends in "id", or has
        every id by which edges name them.
    sorted : bool
        Whether the edges of each type are in ascending order of target, then source, over all
        files of the type: they are then written as they are read, without temporary files. Their
        ends are integers, and tables of nodes in ascending order of ids. The store is the same as
        without.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    NotFoundError
        If there are no edges.
    InputError
        If a file is damaged or none of the forms, or parts of a type disagree.
    """
    check_choice("layout", layout or "csc", ("csc", "csr"))
    options = options or ConvertOptions()
    root = existing_directory(input, "the data set")
    budget = options.memory_bytes
    nodes: dict[str, NodeInput] = {}
    ids: dict[str, _Ids] = {}  # by which edges name nodes
    node_files = _parts(root / "nodes", lambda name, _: decode(name), _is_table)
    named_ids = dict(node_id or {})
    for name in named_ids:
        check_node_type(name, node_files, "node_id: ")
    open_nodes = partial(_open_nodes, directory=root / "nodes", budget=budget)
    for name, paths in node_files.items():
        nodes[name], ids[name] = open_nodes(paths, node_id=named_ids.get(name, "id"))
    edge_files = _parts(root / "edges", _edge_type, _is_edges)
    if not edge_files:
        raise NotFoundError(
            f"{root}: there is nothing in edges/; expected SOURCE__RELATION__TARGET.parquet, .npz, "
            ".csv or .tsv, or directories of these names",
            path=root / "edges",
        )
    edges: dict[EdgeType, EdgeInput] = {}
    stated: dict[tuple[EdgeType, int], int] = {}  # numbers of nodes at the ends, by headers
    backward = set(reverse_types(options.reverse, list(edge_files)))
    open_edges = partial(_open_edges, directory=root / "edges", budget=budget, layout=layout)
    for edge_type, paths in edge_files.items():
        comments = list[bytes]()
        edges[edge_type] = open_edges(paths, comments=comments)
        if sizes := next(filter(None, map(_KONECT_SIZES.fullmatch, comments)), None):
            stated |= {(edge_type, 0): int(sizes[2]), (edge_type, 1): int(sizes[3])}
            if edges[edge_type].num_edges != int(sizes[1]):
                _LOG.warning(
                    "%s: its header states %s edges, and it has %d; if the file was cut off, get "
                    "it again",
                    edges[edge_type].label,
                    sizes[1].decode(),
                    edges[edge_type].num_edges,
                )
        if any(map(_KONECT_UNDIRECTED.match, comments)) and edge_type not in backward:
            _LOG.warning(
                "%s: its header describes an undirected graph; if each edge is listed once, "
                "add the other direction as a type of its own with reverse=%r",
                edges[edge_type].label,
                edge_type[1],
            )
    _settle_names(
        nodes,
        ids,
        edges,
        lambda name: open_nodes(
            node_files[name], node_id=named_ids.get(name, "id"), has_names=True
        ),
        lambda of, has: open_edges(edge_files[of], comments=[], has_names=has),
    )
    for some in edges.values() if sorted else ():
        check_sorted(options, some.label, has_names=any(some.has_names))
    names = _type_names(nodes, edges)
    for name in names:
        of_type = nodes.get(name)
        if of_type and name not in named_ids and ids.get(name) is None and not of_type.names:
            _refuse_ids(name, of_type, edges)
    for name in names:
        node = nodes.setdefault(name, NodeInput(-1))
        _take_shapes(name, node, edges)
        if node.count < 0:
            own = [count for (of, end), count in stated.items() if of[::2][end] == name]
            node.count = max([largest_ids(edges, name) + 1, *own])
            _LOG.warning("%s: only edges name its nodes, up to number %d", name, node.count - 1)
    return write_graph(
        output,
        {name: nodes[name] for name in names},
        {
            edge_type: numbered.in_order(own) if sorted else numbered
            for edge_type, own in edges.items()
            for numbered in [_numbered(own, edge_type, nodes, ids)]
        },
        kind="typed",
        source={
            "inputs": describe_files(chain(*node_files.values(), *edge_files.values())),
            **({"layout": layout} if layout else {}),
            **({"node_id": named_ids} if named_ids else {}),
        },
        options=options,
        progress=progress,
    )


def _type_names(nodes: Iterable[str], edges: Iterable[EdgeType]) -> list[str]:
    """Return the node types in the order of their names."""
    return sorted({*nodes, *(end for edge_type in edges for end in edge_type[::2])})


def _is_table(path: Path) -> bool:
    return path.name.endswith(_ENDINGS)


def _is_edges(path: Path) -> bool:
    return _is_table(path) or path.name.startswith(_KONECT)


def _parts(
    directory: Path, type_of: Callable[[str, Path], T], is_part: Callable[[Path], bool]
) -> dict[T, list[Path]]:
    """Return the files of each type, in natural order of their names on disk."""
    found: dict[str, list[Path]] = {}
    skipped = Skipped(directory)
    for path in entries(directory, skipped) if directory.is_dir() else ():
        if path.is_dir():
            files = parts_of(path, is_part, f"of {_WANTED}", skipped=skipped)
            found.setdefault(path.name, []).extend(files)
        elif _is_table(path):
            ending = next(ending for ending in _ENDINGS if path.name.endswith(ending))
            found.setdefault(path.name.removesuffix(ending), []).append(path)
        else:
            skipped.paths.append(path)
    for paths in found.values():
        refuse_two_formats(paths, (*_TABLES, *_TEXTS))
    if not found and (others := [path for path in skipped.paths if not is_hidden(path)]):
        raise InputError(f"{others[0]}: is none of {_WANTED}; remove or convert it", path=others[0])
    skipped.warn()
    types: dict[T, list[Path]] = {}
    for name, paths in found.items():
        if paths and (known := types.setdefault(type_of(name, paths[0]), paths)) is not paths:
            raise InputError(
                f"{paths[0]}: {name!r} is the type of {known[0]} too, written in another way; "
                "remove one, or give it another name",
                path=paths[0],
            )
    return types


def _edge_type(name: str, path: Path) -> EdgeType:
    names = name.split("__")
    if len(names) != 3 or not all(names):
        raise InputError(
            f"{path}: {name!r} is not SOURCE__RELATION__TARGET; write _ next to _ as %5F", path=path
        )
    return (decode(names[0]), decode(names[1]), decode(names[2]))


# ---- what one type has


def _arrays(
    paths: list[Path], directory: Path, whole: str, budget: int | None, node_id: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the arrays, and names `node_id`, in files that are not text.

    `whole` is the name of a `directory/TYPE.npy`.
    """
    for path in paths:
        if path.suffix == ".npy":
            yield (whole if path.parent == directory else path.stem), open_npy(path)
        elif path.suffix == ".npz":
            yield from open_npz(path).items()
    tables = [path for path in paths if path.suffix in _TABLES]
    if tables:
        table = open_table(tables, "a table", budget)
        for name in _columns_of(table):
            if name == node_id and is_text(table, name):
                read = partial(name_batches, table, [name])
                yield name, Names(f"{table.label}: {name}", read, table.num_rows)
                continue
            yield name, TableColumns(table, [name])


def _columns_of(table: Table) -> list[str]:
    """Return the columns that become attributes: all but texts that name directories."""
    texts = [name for name in table.of_directories if is_text(table, name)]
    _warn_of_texts(table.label, texts)
    return [name for name in table.schema.names if name not in texts]


def _warn_of_texts(label: str, names: list[str]) -> None:
    if names:
        _LOG.warning(
            "%s: names of directories state %s in text, which is left out; number it to keep it",
            label,
            ", ".join(names),
        )


def _open_nodes(
    paths: list[Path],
    directory: Path,
    budget: int | None,
    *,
    node_id: str = "id",
    has_names: bool = False,
) -> tuple[NodeInput, _Ids]:
    """Open the nodes of a type, and their ids if they have some; -1 nodes if it is not known.

    The column `node_id` has these; with `has_names`, ids in text are names.
    """
    found = NodeInput(-1)
    ids: _Ids = None
    texts = [path for path in paths if path.name.endswith(_TEXTS)]
    others = [path for path in paths if path not in texts]
    arrays = list(_arrays(others, directory, "x", budget, node_id))
    for names, parts in _by_header(texts).items():
        arrays += _open_text_nodes(parts, names, budget, node_id, has_names=has_names).items()
    for name, source in arrays:
        if name == "num_nodes":
            found.count = read_one_number(source, "one non-negative integer")
            continue
        if isinstance(source, Names):
            found.count, ids = source.num_rows, source
            continue
        if name == node_id:
            ids = rows = RowIds(source, budget)
            found.original_ids = None if rows.is_identity else rows.ids
            found.memory_bytes = rows.num_bytes
            continue
        place: dict[str, Any] = found.splits if name in SPLIT_KEYS else found.attributes
        if SPLIT_KEYS.get(name, name) in place:
            raise InputError(f"{source.label}: {name!r} was given already")
        place[SPLIT_KEYS.get(name, name)] = source
    if ids is None and node_id not in ("", "id"):
        raise InputError(
            f"{paths[0]}: there is no column {node_id!r}, which node_id= names; there are "
            f"{', '.join(name for name, _ in arrays) or 'none'}",
            path=paths[0],
        )
    counts = [ids.num_nodes] if isinstance(ids, RowIds) else []
    counts += [source.shape[0] for source in found.attributes.values() if source.shape]
    if found.count < 0 and counts:
        found.count = counts[0]
    return found, ids


def _settle_names(
    nodes: dict[str, NodeInput],
    ids: dict[str, _Ids],
    edges: dict[EdgeType, EdgeInput],
    nodes_with_names: Callable[[str], tuple[NodeInput, _Ids]],
    edges_with_names: Callable[[EdgeType, tuple[bool, bool]], EdgeInput],
) -> None:
    """Let all files name the nodes of a type by text if some do; refuse those that cannot."""
    named = {name for name, own in ids.items() if isinstance(own, Names)}
    for edge_type, own in edges.items():
        named |= {end for end, has in zip(edge_type[::2], own.has_names, strict=True) if has}
    for name in sorted(named & nodes.keys()):
        if not isinstance(ids[name], Names):
            nodes[name], ids[name] = nodes_with_names(name)
            _check_named(name, ids[name], edges)
    for edge_type, own in edges.items():
        wanted = (edge_type[0] in named, edge_type[2] in named)
        if own.has_names != wanted and own.shape is None:
            edges[edge_type] = edges_with_names(edge_type, wanted)
            _check_ends(edge_type, edges[edge_type], wanted)
    for name in sorted(named):
        known = ids.get(name)
        of_type = nodes.setdefault(name, NodeInput(0))
        of_type.names = NodeNames(known if isinstance(known, Names) else None)


def _refuse_ids(name: str, node: NodeInput, edges: Mapping[EdgeType, EdgeInput]) -> None:
    """Refuse nodes without ids one of whose columns may have them."""
    for attribute, source in node.attributes.items():
        if len(source.shape) != 1 or source.dtype.kind not in "iu" or not source.shape[0]:
            continue
        values = source.read()
        if (values == np.arange(len(values))).all():
            continue
        if may_be_ids(attribute, values, partial(_has_all, name, edges)):
            raise InputError(
                f"{source.label}: {attribute!r} has different integers, as ids have, by which "
                f"edges may name the nodes of type {name!r}; pass node_id={{{name!r}: "
                f"{attribute!r}}} if they are the ids, as --node-id {name}={attribute}, or "
                f"{{{name!r}: ''}}, as --node-id {name}=, "
                "if the numbers of rows are"
            )


def _has_all(name: str, edges: Mapping[EdgeType, EdgeInput], ascending: npt.NDArray[Any]) -> bool:
    """Whether a column, sorted, has every id by which edges name nodes of a type."""
    has_some = False
    for edge_type, own in edges.items():
        wanted = [i for i, end in enumerate(edge_type[::2]) if end == name]
        for ends in own.pairs() if wanted and own.shape is None else ():
            for i in wanted:
                ids = np.asarray(ends[i]).astype(ascending.dtype)
                places = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
                if (ascending[places] != ids).any():
                    return False
                has_some |= len(ids) > 0
    return has_some


def _take_shapes(name: str, node: NodeInput, edges: Mapping[EdgeType, EdgeInput]) -> None:
    """Take a type's number of nodes from its matrices; refuse one with another number."""
    for edge_type, own in edges.items():
        for end, count in zip(edge_type[::2], own.shape or (), strict=False):
            if end != name:
                continue
            if node.count < 0:
                node.count = count
            if node.names is not None and not node.count:
                raise InputError(
                    f"{own.label}: is a matrix, and other edges name nodes of type {name!r} by "
                    "text; give nodes with a column id, in the order of the matrix"
                )
            if node.count != count:
                raise InputError(
                    f"{own.label}: is a matrix with {format_count(count, 'node')} of type "
                    f"{name!r}, and there are "
                    f"{node.count}; rows and columns are the nodes in their order"
                )


def _check_named(name: str, ids: _Ids, edges: Mapping[EdgeType, EdgeInput]) -> None:
    """Refuse nodes without names that edges name by text."""
    if isinstance(ids, Names):
        return
    by_name = next(
        own.label
        for edge_type, own in edges.items()
        if (name, True) in zip(edge_type[::2], own.has_names, strict=True)
    )
    there = "have no id" if ids is None else f"have integers as ids, in {ids.label}"
    raise InputError(
        f"{by_name}: names nodes of type {name!r} by text, and these {there}; give them a column "
        "id with the names"
    )


def _check_ends(edge_type: EdgeType, own: EdgeInput, wanted: tuple[bool, bool]) -> None:
    """Refuse edges that name nodes by integers whose names are text in other files."""
    for end, name, has, needs in zip(_ENDS, edge_type[::2], own.has_names, wanted, strict=True):
        if needs and not has:
            raise InputError(
                f"{own.label}: {end}: names nodes of type {name!r} by integers, and other files "
                "by text; store them alike"
            )


def _numbered(
    own: EdgeInput, edge_type: EdgeType, nodes: Mapping[str, NodeInput], ids: Mapping[str, _Ids]
) -> EdgeInput:
    """Return edges with numbers of nodes at their ends, which may be ids or names of nodes."""
    if own.shape is not None:
        return own
    types = edge_type[::2]
    rows = [ids.get(name) for name in types]
    named = [nodes[name].names for name in types]
    is_one = types[0] == types[1] and named[0] is not None  # names of both ends are one text

    def read(column: int) -> Iterator[NameBlock]:
        blocks: Iterable[Any] = own.pairs()
        for ends in blocks:
            yield join_columns(*ends) if is_one else ends[column]

    texts = [
        0 if names is None or (is_one and i) else names.add(Names(own.label, partial(read, i)))
        for i, names in enumerate(named)
    ]

    def to_nodes(column: int, end: Any) -> npt.NDArray[Any]:
        names, known = named[column], rows[column]
        if names is not None:
            return names.numbering.numbers(end)
        return known.to_nodes(end, own.label) if isinstance(known, RowIds) else end

    def pairs() -> Iterator[Pair]:
        for names, text in zip(named, texts, strict=True):
            if names is not None and text:
                names.numbering.begin(text)
        blocks: Iterable[Any] = own.pairs()
        for ends in blocks:
            if is_one:
                sources, targets = to_nodes(0, join_columns(*ends)).T
                yield sources, targets
            else:
                sources, targets = to_nodes(0, ends[0]), to_nodes(1, ends[1])
                yield sources.reshape(-1), targets.reshape(-1)

    is_plain = not any(texts) and not any(isinstance(known, RowIds) for known in rows)
    return own if is_plain else replace(own, pairs=pairs)


def _open_edges(
    paths: list[Path],
    directory: Path,
    budget: int | None,
    *,
    comments: list[bytes],
    layout: str | None,
    has_names: tuple[bool, bool] | None = None,
) -> EdgeInput:
    """Open the edges of a type; `comments` becomes the header of a file of KONECT.

    `has_names` says which ends in text are names; None: the text does.
    """
    texts = [p for p in paths if p.name.endswith(_TEXTS) or p.name.startswith(_KONECT)]
    whole = next((path for path in texts if path.name.startswith(_KONECT)), None)
    more = [path for path in paths if path not in texts or whole not in (None, path)]
    if texts and more:
        raise InputError(
            f"{whole or texts[0]}: edges in text are all in one kind of files, and there is "
            f"{more[0].name} too; remove one",
            path=whole or texts[0],
        )
    if texts:
        return _open_text_edges(texts, budget, comments, has_names)
    tables = [path for path in paths if path.suffix in _TABLES]
    pointers = [path for path in tables if path.stem.startswith("indptr")]
    if pointers:  # by source, next to tables of the targets with attributes
        columns = dict(_arrays(pointers, directory, "", budget))
        rest = [path for path in tables if path not in pointers]
        arrays = dict(_arrays(rest, directory, "", budget))
        if len(columns) != 1 or not arrays:
            raise InputError(
                f"{pointers[0]}: expected one column of pointers, and files indices... next to it",
                path=pointers[0],
            )
        indices = arrays.pop("indices" if "indices" in arrays else next(iter(arrays)))
        return EdgeInput.of_columns(columns.popitem()[1], indices, layout or "csr", arrays)
    if tables and tables == paths:
        return _of_table(open_table(tables, "the edges", budget))
    if matrix := next((p for p in paths if p.suffix == ".npz" and matrix_kind(p)), None):
        return _of_matrix(matrix, paths)
    arrays = {}
    for name, source in _arrays(paths, directory, "edge_index", budget):
        if name in arrays:
            raise InputError(f"{source.label}: {name!r} was given already, by {arrays[name].label}")
        arrays[name] = source
    return _of_arrays(arrays, paths[0], layout)


def _of_arrays(arrays: dict[str, ArraySource], path: Path, layout: str | None) -> EdgeInput:
    """Open edges of arrays by their names, one of which lies at a path."""
    if {"indptr", "indices"} <= arrays.keys():
        if layout is None:
            raise InputError(
                f"{arrays['indptr'].label}: counts edges by source or by target; pass layout='csr' "
                "(from each source) or layout='csc' (to each target)"
            )
        return EdgeInput.of_columns(arrays.pop("indptr"), arrays.pop("indices"), layout, arrays)
    if "edge_index" in arrays:
        return EdgeInput.of_array(arrays.pop("edge_index"), arrays)
    if not set(_ENDS) <= arrays.keys():
        where = path.parent
        raise InputError(
            f"{where}: expected edge_index, or source and target, found "
            f"{', '.join(sorted(arrays)) or 'no array'}",
            path=where,
        )
    return EdgeInput.of_ends(arrays.pop("source"), arrays.pop("target"), arrays)


def _of_matrix(path: Path, paths: list[Path]) -> EdgeInput:
    """Open a matrix of `scipy.sparse.save_npz`: rows are sources, columns targets."""
    kind = matrix_kind(path) or ""
    arrays, shape = open_matrix(path, kind)
    if len(paths) > 1 or len(shape) != 2:
        other = next((own.name for own in paths if own != path), "")
        found = f"{other} is next to it" if other else f"it has {len(shape)} axes"
        raise InputError(
            f"{path}: a matrix has all edges of a type, and {found}; give it alone, with two axes",
            path=path,
        )
    weights = {"edge_weight": arrays.pop("edge_weight")}
    if kind == "coo":
        edges = EdgeInput.of_ends(arrays["row"], arrays["col"], weights)
    else:
        edges = EdgeInput.of_columns(arrays["indptr"], arrays["indices"], kind, weights)
    return replace(edges, shape=(shape[0], shape[1]))


def _of_table(table: Table) -> EdgeInput:
    table.check_columns(_ENDS)
    has_names = (is_text(table, _ENDS[0]), is_text(table, _ENDS[1]))

    def pairs() -> Iterator[Any]:
        if any(has_names):
            yield from read_ahead(end_batches(table, _ENDS, has_names))
            return
        for sources, targets, _ in edge_batches(table, _ENDS, []):
            yield sources, targets

    attributes: dict[str, ArraySource] = {
        name: TableColumns(table, [name]) for name in _columns_of(table) if name not in _ENDS
    }
    return EdgeInput(
        pairs,
        table.label,
        table.num_rows,
        attributes,
        table.memory_bytes,
        has_names=has_names,
        place_of=table.place_of,
    )


# ---- text


def _column_names(path: Path, head: TextHead) -> list[str]:
    """Return the names of columns in the first line; none if it has numbers alone."""
    if all(map(is_number, head.fields(0))):
        return []
    names = head.names()
    for field, name in zip(head.fields(0), names, strict=True):
        if b"\xef\xbf\xbd" not in field and "\ufffd" in name:  # put in place of other bytes
            raise InputError(
                f"{path}: the first line names a column {name!r}, which is not UTF-8; convert the "
                "file to UTF-8",
                path=path,
            )
    if len(set(names)) < len(names):
        raise InputError(f"{path}: the first line has two columns of one name", path=path)
    if head.lines[1:] and len(names) != len(head.fields(1)):
        raise InputError(
            f"{path}: the first line names {format_count(len(names), 'column')}, and the next has "
            f"{len(head.fields(1))} fields; name each column",
            path=path,
        )
    return names


def _by_header(paths: list[Path]) -> dict[tuple[str, ...], list[Path]]:
    """Return files of text by the names of their columns; () if these have none."""
    found: dict[tuple[str, ...], list[Path]] = {}
    for path in paths:
        head = read_head(path, b"")
        if head.lines:
            found.setdefault(tuple(_column_names(path, head)), []).append(path)
    return found


def _of_directories(paths: list[Path], counts: list[int]) -> dict[str, ArraySource]:
    """Return the columns that names of directories state, given the rows of each file."""
    stated = [directory_columns(path) for path in paths]
    found: dict[str, ArraySource] = {}
    texts = []
    for name in dict.fromkeys(chain.from_iterable(stated)):
        without = next((p for p, own in zip(paths, stated, strict=True) if name not in own), None)
        if without is not None:
            raise InputError(
                f"{without}: the names of its directories do not state {name!r}, which other files "
                "have there; move it",
                path=without,
            )
        column = directory_column([own[name] for own in stated])
        if column.type == "string":
            texts.append(name)
            continue
        values = to_array(column, f"{paths[0].parent}: {name}")
        found[name] = joined(
            [
                GeneratedRows(f"{path}: {name}", (count,), values.dtype, partial(_repeated, value))
                for path, count, value in zip(paths, counts, values, strict=True)
            ]
        )
    _warn_of_texts(str(paths[0]), texts)
    return found


def _with_stated(
    own: dict[str, ArraySource], stated: Mapping[str, ArraySource]
) -> dict[str, ArraySource]:
    """Return columns with those that names of directories state; refuse one that differs."""
    for name in own.keys() & stated.keys():
        pairs = zip(own[name].rows(_STEP_ROWS), stated[name].rows(_STEP_ROWS), strict=True)
        if not all(np.array_equal(*pair) for pair in pairs):
            raise InputError(
                f"{own[name].label}: the column {name!r} differs from the names of directories; "
                "rename these"
            )
    return {**stated, **own}


def _repeated(value: Any, first: int, last: int) -> npt.NDArray[Any]:
    return np.full(last - first, value)


def _open_text_nodes(
    paths: list[Path], names: tuple[str, ...], budget: int | None, node_id: str, *, has_names: bool
) -> dict[str, Any]:
    """Open a table of nodes: an array for each column, or the features if columns have no names.

    A column `node_id` is `Names` if not all of it are integers, or with `has_names`.
    """
    if not names:
        parts = [TextArray(path, memory_bytes=budget) for path in paths]
        stated = _of_directories(paths, [own.shape[0] for own in parts])
        return _with_stated({"x": joined(parts)}, stated)
    ends: tuple[int, ...] = ()  # of names
    if node_id in names and (has_names or not _has_integers(paths, names.index(node_id), budget)):
        ends = (names.index(node_id),)
    form = TableFormat(
        "text" if ends else "int64",
        num_columns=len(names),
        ends=ends,
        columns=tuple(
            TextColumn(i, "float32" if _FEATURE.fullmatch(name) else None, name)
            for i, name in enumerate(names)
            if i not in ends
        ),
        delimiter=None,
        what="node name",
        skip_header=True,
    )
    table = TextColumns.open(paths, [form] * len(paths), budget)
    found: dict[str, Any] = {}
    features = [i for i, column in enumerate(form.columns) if column.dtype]
    if features:
        found["x"] = table.array(features, np.float32)
    for i, column in enumerate(form.columns):
        if not column.dtype:
            is_mask = column.what in SPLIT_KEYS and table.is_mask(i)
            found[column.what] = table.column(i, np.bool_ if is_mask else table.whole_type(i))
    if ends:
        found[node_id] = Names(
            f"{paths[0]}: {node_id}",
            lambda: chain.from_iterable(own.blocks() for own in table.tables),
            sum(table.counts),
        )
    return _with_stated(found, _of_directories(paths, table.counts))


def _has_integers(paths: list[Path], place: int, budget: int | None) -> bool:
    """Whether a column of a table of text has integers alone."""
    try:
        for path in paths:
            ids = TextArray(path, "int64", column=place, skip_header=True, memory_bytes=budget)
            for _ in ids.rows(_STEP_ROWS):
                pass
    except InputError:
        return False  # what is wrong with other columns is found where these are read
    return True


def _open_text_edges(
    paths: list[Path],
    budget: int | None,
    comments: list[bytes],
    has_names: tuple[bool, bool] | None,
) -> EdgeInput:
    """Open edges in text: ends in the first two columns, numbers in the others.

    The files are read once for the ends and once for each attribute. `has_names` says which ends
    are names; None: columns in which not all are integers.
    """
    is_konect = paths[0].name.startswith(_KONECT)
    heads = {path: read_head(path, mixes=True) for path in paths}
    paths = [path for path in paths if heads[path].lines] or paths[:1]  # parts may be empty
    path, head = paths[0], heads[paths[0]]
    headers = {own: _column_names(own, heads[own]) for own in paths}
    names = headers[path]
    other = next((own for own in paths if headers[own] != names), None)
    if other is not None:
        raise InputError(
            f"{other}: the first line names the columns {', '.join(headers[other]) or '(none)'},"
            f" and the one of {path.name} {', '.join(names) or '(none)'}; files of one table "
            "need the same first line",
            path=other,
        )
    num_columns = len(head.fields(0)) if head.lines else 2
    if is_konect:
        comments += head.comments
        names = [*_ENDS, "weight", "time"][:num_columns]
    ends = named_ends(names) if names else (0, 1)
    if ends is None:
        raise InputError(
            f"{path}: the columns are {', '.join(names)}; expected source and target"
            + separator_hint(head.lines[0].data if head.lines else b""),
            path=path,
        )
    if not names and num_columns != 2:
        raise InputError(
            f"{path}: has {format_count(num_columns, 'column')}; name the columns behind source "
            "and target in a first line, as 'source,target,weight,time'",
            path=path,
        )
    columns = tuple(
        TextColumn(place, None, name) for place, name in enumerate(names) if place not in ends
    )
    table_format = TableFormat(
        "int64",
        num_columns=2 + len(columns),
        ends=ends,
        columns=columns,
        delimiter=None,
        comments=b"#%",
        skip_blank=True,
        minimum=1 if is_konect else None,
        what="node id",
        skip_header=bool(names) and not is_konect,
    )
    # Names may begin with the mark of a comment, if a line names the columns.
    marks = b"" if names and not any(head.comments) else table_format.comments
    of_names = replace(table_format, comments=marks, comments_lead=True)
    has_names = (False, False) if is_konect else has_names
    edges, counts = open_text_edges(paths, table_format, of_names, has_names, budget)
    stated = _of_directories(paths, counts)
    return replace(edges, attributes=_with_stated(edges.attributes, stated))
