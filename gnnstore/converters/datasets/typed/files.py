"""A directory with a table or arrays for each type: `nodes/TYPE...` and `edges/S__R__T...`.

What a type has is a file with an ending, or a directory of such files: `.npy` (the name is the
attribute), `.npz`, Parquet, Arrow and Feather, `.csv` and `.tsv`, gzipped or not; of edges also
KONECT's `out.*`, whose ids count from 1 in each column.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.converter import converter
from gnnstore.converters.datasets.numpy import CompressedEdges
from gnnstore.converters.datasets.typed.text_files import ENDINGS, TextEdgeFile, open_text_nodes
from gnnstore.converters.edges.node_ids import check_integers
from gnnstore.converters.inputs.derived import RowTaker
from gnnstore.converters.inputs.npy import open_npy
from gnnstore.converters.inputs.npz import open_npz
from gnnstore.converters.inputs.opening import PathLike, describe_files, existing_directory
from gnnstore.converters.inputs.source import ArraySource, read_one_number
from gnnstore.converters.tables.columns import RowIds, TableColumns, edge_batches
from gnnstore.converters.tables.inputs import ENDINGS as _TABLES
from gnnstore.converters.tables.inputs import open_table
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, Pair, largest_ids, write_graph
from gnnstore.converters.typed.reverse import reverse_types
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.converters.writer.splits import SPLIT_KEYS
from gnnstore.errors import InputError, NotFoundError
from gnnstore.formats.container.names import decode
from gnnstore.formats.store.schema import EdgeType
from gnnstore.progress import Progress

_LOG = logging.getLogger(__name__)

_ARRAYS = (".npy", ".npz")
_ENDS = ("source", "target")
_PIECE_EDGES = 2**18


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
    nodes = {
        decode(name): _open_nodes(paths, root / "nodes", budget)
        for name, paths in _parts(root / "nodes", (*_ARRAYS, *_TABLES, *ENDINGS)).items()
    }
    found = _parts(root / "edges", (*_ARRAYS, *_TABLES, *ENDINGS))
    if not found:
        raise NotFoundError(
            f"{root}: there is nothing in edges/; expected SOURCE__RELATION__TARGET.parquet, .npz, "
            ".csv or .tsv, or directories of these names",
            path=root / "edges",
        )
    edges = {
        _edge_type(name, paths[0]): _open_edges(paths, root / "edges", budget)
        for name, paths in found.items()
    }
    backward = reverse_types(options.reverse, tuple(edges))
    for edge_type, own in edges.items():
        if own.is_undirected and edge_type not in backward:
            _LOG.warning(
                "%s: its header says that the graph is undirected; if each edge is listed once, "
                "add the other direction as a type of its own with reverse=%r",
                own.own.label,
                edge_type[1],
            )
    counts = _count(nodes, edges)
    files = [path for name in ("nodes", "edges") for path in sorted((root / name).rglob("*"))]
    return write_graph(
        output,
        {
            name: NodeInput(
                count,
                nodes[name].attributes if name in nodes else {},
                nodes[name].splits if name in nodes else {},
                nodes[name].original_ids if name in nodes else None,
                nodes[name].id_bytes if name in nodes else 0,
            )
            for name, count in counts.items()
        },
        {edge_type: own.numbered(edge_type, nodes) for edge_type, own in edges.items()},
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


@dataclass
class _Nodes:
    """The nodes of a type, as far as their files tell."""

    count: int | None = None
    attributes: dict[str, ArraySource] = field(default_factory=dict)
    splits: dict[str, ArraySource | npt.NDArray[Any]] = field(default_factory=dict)
    ids: RowIds | None = None

    @property
    def original_ids(self) -> npt.NDArray[np.int64] | None:
        """The ids that edges name nodes by, unless these are the numbers of rows."""
        return None if self.ids is None or self.ids.is_identity else self.ids.ids

    @property
    def id_bytes(self) -> int:
        """Bytes of the ids in memory."""
        return 0 if self.ids is None else self.ids.num_bytes


def _open_nodes(paths: list[Path], directory: Path, budget: int | None) -> _Nodes:
    found = _Nodes()
    texts = [path for path in paths if path.name.endswith(ENDINGS)]
    others = [path for path in paths if path not in texts]
    arrays = list(_arrays(others, directory, "x", budget))
    for path in texts:
        arrays += open_text_nodes(path, budget).items()
    for name, source in arrays:
        if name == "num_nodes":
            found.count = read_one_number(source, "one non-negative integer")
        elif name in SPLIT_KEYS:
            split = SPLIT_KEYS[name]
            if split in found.splits:
                raise InputError(f"{source.label}: the split {split!r} was given already")
            found.splits[split] = source
        elif name == "id":
            found.ids = RowIds(source, budget)
            found.count = found.count or found.ids.num_nodes
        elif name in found.attributes:
            raise InputError(f"{source.label}: {name!r} was given already")
        else:
            found.attributes[name] = source
    for source in found.attributes.values():
        if found.count is None and source.shape:
            found.count = source.shape[0]
    return found


@dataclass
class _Edges:
    """The edges of a type, whose ends may be ids of nodes."""

    own: EdgeInput
    largest: tuple[int, int] | None = None  # numbers of nodes that a header states
    is_undirected: bool = False  # whether a header says so

    def numbered(self, edge_type: EdgeType, nodes: Mapping[str, _Nodes]) -> EdgeInput:
        """Return the edges with numbers of nodes at their ends."""
        ids = [nodes[name].ids if name in nodes else None for name in edge_type[::2]]
        if not any(ids):
            return self.own
        read, label = self.own.pairs, self.own.label

        def pairs() -> Iterator[Pair]:
            for ends in read():
                sources, targets = (
                    end if own is None else own.to_nodes(end, label)
                    for own, end in zip(ids, ends, strict=True)
                )
                yield sources, targets

        return replace(self.own, pairs=pairs)


def _open_edges(paths: list[Path], directory: Path, budget: int | None) -> _Edges:
    texts = [path for path in paths if path.name.endswith(ENDINGS) or _is_konect(path)]
    # KONECT's archives hold files about the graph, too.
    others = [
        path
        for path in paths
        if path not in texts and not path.name.startswith(("README", "meta.", "ent."))
    ]
    if texts and (others or len(texts) > 1):
        other = (others or texts[1:])[0]
        raise InputError(
            f"{texts[0]}: edges in text are in one file, and there is {other.name} too; remove one",
            path=texts[0],
        )
    if texts:
        text = TextEdgeFile(texts[0], budget, is_konect=_is_konect(texts[0]))
        return _Edges(text.edges(), text.num_nodes, text.is_undirected)
    tables = [path for path in others if path.suffix in _TABLES]
    pointers = [path for path in tables if path.stem.startswith("indptr")]
    if pointers:
        return _Edges(_of_pointers(pointers, tables, budget))
    if tables and len(tables) == len(others):
        return _Edges(_of_table(tables, budget))
    arrays: dict[str, ArraySource] = {}
    for name, source in _arrays(others, directory, "edge_index", budget):
        if name in arrays:
            raise InputError(f"{source.label}: {name!r} was given already, by {arrays[name].label}")
        arrays[name] = source
    if {"indptr", "indices"} <= arrays.keys():
        return _Edges(_compressed(arrays, "csc"))
    if "edge_index" in arrays:
        return _Edges(EdgeInput.of_array(arrays.pop("edge_index"), arrays))
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
    return _Edges(
        EdgeInput(_pairs_of(ends), ends[0].label, ends[0].shape[0], arrays),
    )


def _pairs_of(ends: list[ArraySource]) -> Callable[[], Iterator[Pair]]:
    def pairs() -> Iterator[Pair]:
        taker = RowTaker(ends[1])
        for sources in ends[0].rows(_PIECE_EDGES):
            yield sources, taker.take(len(sources))
        taker.finish(ends[0].shape[0])

    return pairs


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


def _count(nodes: Mapping[str, _Nodes], edges: Mapping[EdgeType, _Edges]) -> dict[str, int]:
    """Return the number of nodes of each type, in the order of names."""
    counts: dict[str, int] = {}
    names = {*nodes, *(name for edge_type in edges for name in edge_type[::2])}
    for name in sorted(names):
        known = nodes[name].count if name in nodes else None
        if known is None:
            stated = [
                own.largest[place]
                for edge_type, own in edges.items()
                if own.largest is not None
                for place in (0, 1)
                if edge_type[::2][place] == name
            ]
            largest = largest_ids({of: own.own for of, own in edges.items()}, name) + 1
            known = max([largest, *stated])
            _LOG.warning("%s: only edges name its nodes, up to number %d", name, known - 1)
        counts[name] = known
    return counts
