"""A directory with a table or arrays for each type: `nodes/TYPE...` and `edges/S__R__T...`.

What a type has is a file with an ending, or a directory of such files: `.npy` (the name is the
attribute), `.npz`, Parquet, Arrow and Feather, `.csv` and `.tsv`, gzipped or not; of edges also
KONECT's `out.*`, whose ids count from 1 in each column.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gnnstore.converters.datasets.numpy import CompressedEdges
from gnnstore.converters.datasets.typed.text_files import ENDINGS, TextEdgeFile, open_text_nodes
from gnnstore.converters.edges.node_ids import check_integers
from gnnstore.converters.inputs.files import open_npy, open_npz
from gnnstore.converters.inputs.opening import PathLike, describe_files, existing_directory
from gnnstore.converters.inputs.source import ArraySource, RowTaker, read_one_number
from gnnstore.converters.tables.columns import RowIds, TableColumns, edge_batches
from gnnstore.converters.tables.inputs import ENDINGS as _TABLES
from gnnstore.converters.tables.inputs import open_table
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, Pair, largest_ids, write_graph
from gnnstore.converters.typed.reverse import reverse_types
from gnnstore.converters.writer.node_arrays import SPLIT_KEYS
from gnnstore.converters.writer.options import ConvertOptions, converter
from gnnstore.errors import InputError, NotFoundError
from gnnstore.formats.container.names import decode
from gnnstore.formats.store.schema import EdgeType
from gnnstore.progress import Progress

_LOG = logging.getLogger(__name__)

_ARRAYS = (".npy", ".npz")
_ENDS = ("source", "target")
_PIECE_EDGES = 2**18
_ABOUT = ("README", "meta.", "ent.")  # files about the graph in KONECT's archives


@converter
def from_typed(
    input: PathLike,  # noqa: A002 - the word the command line uses
    output: PathLike,
    *,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert a directory with files for each node type and each edge type.

    `nodes/TYPE` and `edges/SOURCE__RELATION__TARGET` are directories, or files with an ending; in
    names, characters may be percent-encoded. Arrays and columns become attributes. Of nodes,
    `num_nodes` is their number, `train`, `valid` (or `val`) and `test` are splits (ids, or masks),
    and `id` has their ids, by which edges name them: without, nodes are numbered by their rows. Of
    edges, `edge_index` [2, E] or [E, 2], or `source` and `target` [E], are their ends; or `indptr`
    and `indices`, by target as in `from_numpy`, or by source in tables called so. Tables of
    text have a line with the names of columns; without one, those of nodes are features, and those
    of edges begin with the ends. Columns `x_0`, `x_1`, ... of text are features. Edges in `out.*`
    are KONECT's: source, target, perhaps `weight` and `time`.

    Node types that only edges name have as many nodes as the largest id says. Types are in the
    order of their names.

    Parameters
    ----------
    input : path-like
        The directory, with `edges/` in it, and perhaps `nodes/`.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    NotFoundError
        If there are no edges.
    InputError
        If a file is damaged or none of the forms, or parts of a type disagree.
    """
    options = options or ConvertOptions()
    root = existing_directory(input, "the data set")
    budget = options.memory_bytes
    endings = (*_ARRAYS, *_TABLES, *ENDINGS)
    nodes: dict[str, NodeInput] = {}
    ids: dict[str, RowIds] = {}  # by which edges name nodes
    for name, paths in _parts(root / "nodes", endings).items():
        nodes[decode(name)], own_ids = _open_nodes(paths, root / "nodes", budget)
        if own_ids is not None:
            ids[decode(name)] = own_ids
    found = _parts(root / "edges", endings)
    if not found:
        raise NotFoundError(
            f"{root}: there is nothing in edges/; expected SOURCE__RELATION__TARGET.parquet, .npz, "
            ".csv or .tsv, or directories of these names",
            path=root / "edges",
        )
    edges: dict[EdgeType, EdgeInput] = {}
    stated: dict[tuple[EdgeType, int], int] = {}  # numbers of nodes at the ends, by headers
    backward = set(reverse_types(options.reverse, [_edge_type(n, p[0]) for n, p in found.items()]))
    for name, paths in found.items():
        edge_type = _edge_type(name, paths[0])
        text = _open_text(paths, budget)
        if text is None:
            edges[edge_type] = _open_edges(paths, root / "edges", budget)
            continue
        edges[edge_type] = text.edges()
        stated |= {(edge_type, end): own for end, own in enumerate(text.num_nodes or ())}
        if text.is_undirected and edge_type not in backward:
            _LOG.warning(
                "%s: its header says that the graph is undirected; if each edge is listed once, "
                "add the other direction as a type of its own with reverse=%r",
                edges[edge_type].label,
                edge_type[1],
            )
    names = sorted({*nodes, *(end for edge_type in edges for end in edge_type[::2])})
    for name in names:
        node = nodes.setdefault(name, NodeInput(-1))
        if node.count < 0:
            own = [count for (of, end), count in stated.items() if of[::2][end] == name]
            node.count = max([largest_ids(edges, name) + 1, *own])
            _LOG.warning("%s: only edges name its nodes, up to number %d", name, node.count - 1)
    files = [path for name in ("nodes", "edges") for path in sorted((root / name).rglob("*"))]
    return write_graph(
        output,
        {name: nodes[name] for name in names},
        {edge_type: _numbered(own, edge_type, ids) for edge_type, own in edges.items()},
        kind="typed",
        source={"inputs": describe_files(path for path in files if path.is_file())},
        options=options,
        progress=progress,
    )


def _parts(directory: Path, endings: tuple[str, ...]) -> dict[str, list[Path]]:
    """Return the files of each type, by names as they are on disk, in the order of names."""
    found: dict[str, list[Path]] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if not file.name.startswith("."))
            found.setdefault(path.name, []).extend(files)
            continue
        ending = next((ending for ending in endings if path.name.endswith(ending)), None)
        if ending is None:
            raise _unknown(path)
        found.setdefault(path.name.removesuffix(ending), []).append(path)
    return {name: paths for name, paths in found.items() if paths}


def _unknown(path: Path) -> InputError:
    return InputError(
        f"{path}: is none of .npy, .npz, .parquet, .arrow, .feather, .csv, .tsv and KONECT's "
        "out.*; remove or convert it",
        path=path,
    )


def _edge_type(name: str, path: Path) -> EdgeType:
    names = name.split("__")
    if len(names) != 3 or not all(names):
        raise InputError(
            f"{path}: {name!r} is no SOURCE__RELATION__TARGET; write _ next to _ as %5F", path=path
        )
    return (decode(names[0]), decode(names[1]), decode(names[2]))


# ---- arrays of one type


def _arrays(
    paths: list[Path], directory: Path, whole: str, budget: int | None
) -> Iterator[tuple[str, ArraySource]]:
    """Yield the arrays in files that are no text; `whole` is the name of a `directory/TYPE.npy`."""
    for path in paths:
        if path.suffix == ".npy":
            yield (whole if path.parent == directory else path.stem), open_npy(path)
        elif path.suffix == ".npz":
            yield from open_npz(path).items()
        elif path.suffix not in _TABLES:
            raise _unknown(path)
    tables = [path for path in paths if path.suffix in _TABLES]
    if tables:
        table = open_table(tables, "a table", budget)
        for name in table.schema.names:
            yield name, TableColumns(table, [name])


def _open_nodes(
    paths: list[Path], directory: Path, budget: int | None
) -> tuple[NodeInput, RowIds | None]:
    """Open the nodes of a type, and their ids if they have some; -1 nodes if nothing tells."""
    found, ids = NodeInput(-1), None
    texts = [path for path in paths if path.name.endswith(ENDINGS)]
    others = [path for path in paths if path not in texts]
    arrays = list(_arrays(others, directory, "x", budget))
    for path in texts:
        arrays += open_text_nodes(path, budget).items()
    for name, source in arrays:
        if name == "num_nodes":
            found.count = read_one_number(source, "one non-negative integer")
            continue
        if name == "id":
            ids = RowIds(source, budget)
            found.original_ids = None if ids.is_identity else ids.ids
            found.memory_bytes = ids.num_bytes
            continue
        place: dict[str, Any] = found.splits if name in SPLIT_KEYS else found.attributes
        if SPLIT_KEYS.get(name, name) in place:
            raise InputError(f"{source.label}: {name!r} was given already")
        place[SPLIT_KEYS.get(name, name)] = source
    counts = [] if ids is None else [ids.num_nodes]
    counts += [source.shape[0] for source in found.attributes.values() if source.shape]
    if found.count < 0 and counts:
        found.count = counts[0]
    return found, ids


def _numbered(own: EdgeInput, edge_type: EdgeType, ids: Mapping[str, RowIds]) -> EdgeInput:
    """Return edges with numbers of nodes at their ends, which may be ids of nodes."""
    of_ends = [ids.get(name) for name in edge_type[::2]]
    if not any(of_ends):
        return own

    def pairs() -> Iterator[Pair]:
        for ends in own.pairs():
            sources, targets = (
                end if known is None else known.to_nodes(end, own.label)
                for known, end in zip(of_ends, ends, strict=True)
            )
            yield sources, targets

    return replace(own, pairs=pairs)


def _open_text(paths: list[Path], budget: int | None) -> TextEdgeFile | None:
    texts = [path for path in paths if path.name.endswith(ENDINGS) or _is_konect(path)]
    if not texts:
        return None
    others = [path for path in paths if path != texts[0] and not path.name.startswith(_ABOUT)]
    if others:
        raise InputError(
            f"{texts[0]}: edges in text are in one file, and there is {others[0].name} too; remove "
            "one",
            path=texts[0],
        )
    return TextEdgeFile(texts[0], budget, is_konect=_is_konect(texts[0]))


def _open_edges(paths: list[Path], directory: Path, budget: int | None) -> EdgeInput:
    others = [path for path in paths if not path.name.startswith(_ABOUT)]
    tables = [path for path in others if path.suffix in _TABLES]
    pointers = [path for path in tables if path.stem.startswith("indptr")]
    if pointers:
        return _of_pointers(pointers, tables, budget)
    if tables and len(tables) == len(others):
        return _of_table(tables, budget)
    arrays: dict[str, ArraySource] = {}
    for name, source in _arrays(others, directory, "edge_index", budget):
        if name in arrays:
            raise InputError(f"{source.label}: {name!r} was given already, by {arrays[name].label}")
        arrays[name] = source
    if {"indptr", "indices"} <= arrays.keys():
        return _compressed(arrays, "csc")
    if "edge_index" in arrays:
        return EdgeInput.of_array(arrays.pop("edge_index"), arrays)
    if not set(_ENDS) <= arrays.keys():
        where = others[0].parent if others else paths[0]
        raise InputError(
            f"{where}: expected edge_index, or source and target, found "
            f"{', '.join(sorted(arrays)) or 'no array'}",
            path=where,
        )
    ends = [arrays.pop(name) for name in _ENDS]
    for end in ends:
        check_integers(end)
        if end.shape != (ends[0].shape[0],):
            raise InputError(f"{end.label}: has shape {list(end.shape)}, expected [E] as source")

    def pairs() -> Iterator[Pair]:
        taker = RowTaker(ends[1])
        for sources in ends[0].rows(_PIECE_EDGES):
            yield sources, taker.take(len(sources))
        taker.finish(ends[0].shape[0])

    return EdgeInput(pairs, ends[0].label, ends[0].shape[0], arrays)


def _of_table(paths: list[Path], budget: int | None) -> EdgeInput:
    table = open_table(paths, "the edges", budget)
    table.check_columns(_ENDS)
    names = [name for name in table.schema.names if name not in _ENDS]

    def pairs() -> Iterator[Pair]:
        for sources, targets, _ in edge_batches(table, _ENDS, []):
            yield sources, targets

    attributes: dict[str, ArraySource] = {name: TableColumns(table, [name]) for name in names}
    memory = table.memory_bytes * (1 + len(names))
    return EdgeInput(pairs, table.label, table.num_rows, attributes, memory)


def _of_pointers(pointers: list[Path], tables: list[Path], budget: int | None) -> EdgeInput:
    """Return edges by source: tables `indptr...` and `indices...`, the latter with attributes."""
    columns = open_table(pointers, "the pointers", budget)
    others = [path for path in tables if path not in pointers]
    if not others or len(columns.schema.names) != 1:
        raise InputError(
            f"{columns.label}: expected one column of pointers, and files indices... next to it",
            path=pointers[0],
        )
    table = open_table(others, "the edges", budget)
    names = table.schema.names
    arrays: dict[str, ArraySource] = {name: TableColumns(table, [name]) for name in names}
    arrays["indices"] = arrays.pop("indices" if "indices" in names else names[0])
    arrays["indptr"] = TableColumns(columns, columns.schema.names)
    return _compressed(arrays, "csr")


def _compressed(arrays: dict[str, ArraySource], layout: str) -> EdgeInput:
    indptr, indices = arrays.pop("indptr"), arrays.pop("indices")
    for source in (indptr, indices):
        check_integers(source)
        if len(source.shape) != 1:
            raise InputError(f"{source.label}: has shape {list(source.shape)}, expected one axis")
    edges = CompressedEdges(indptr, indices, layout)
    return EdgeInput(edges.pairs, edges.label, edges.num_edges, arrays)


def _is_konect(path: Path) -> bool:
    return path.name.startswith("out.")
