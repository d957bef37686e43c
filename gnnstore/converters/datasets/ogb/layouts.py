"""OGB's layouts of graphs: a CSV file without a header for each part, or `.npz` archives.

Parts of graphs of several types lie in directories by type, or are members of an archive for each
part. Types and triplets are sorted, as in OGB's loader, so that ids of types agree with its.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.files import open_npz
from gnnstore.converters.inputs.opening import existing_directory, existing_file, read_blocks
from gnnstore.converters.inputs.source import (
    ArraySource,
    FloatLabels,
    MemoryArray,
    check_count,
    read_one_number,
)
from gnnstore.converters.inputs.text_arrays import TextArray, TextEdges, open_features, open_numbers
from gnnstore.converters.inputs.text_tables import TableFormat, TextTable
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError, NotFoundError
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE, EdgeType

_COUNTS, _TRIPLETS = "num-node-dict", "triplet-type-list"  # files of data sets of several types
_ONE_TYPE, _LABELS, _SEVERAL = "data.npz", "node-label.npz", "edge_index_dict.npz"
_ENDINGS = (".csv.gz", ".csv")
_UNREAD_ENDINGS = (".csv.bz2", ".csv.xz", ".csv.zst", ".csv.zip")

Graph = tuple[dict[str, NodeInput], dict[EdgeType, EdgeInput]]
T = TypeVar("T")
Key = TypeVar("Key")


def part_file(directory: Path, stem: str) -> Path | None:
    """Return the file of a part of a data set, gzipped or not; None if it is not there."""
    found, others = (
        [path for ending in endings if (path := directory / f"{stem}{ending}").exists()]
        for endings in (_ENDINGS, _UNREAD_ENDINGS)
    )
    if len(found) > 1:
        raise InputError(
            f"{directory}: both {found[0].name} and {found[1].name} are there; remove one",
            path=directory,
        )
    if others and not found:
        raise InputError(
            f"{others[0]}: only .csv.gz and .csv are read; decompress it", path=others[0]
        )
    return found[0] if found else None


def _existing_part(directory: Path, stem: str, what: str) -> Path:
    return part_file(directory, stem) or existing_file(directory / f"{stem}.csv.gz", what)


def _parts(directory: Path, prefix: str) -> dict[str, Path]:
    """Return the files of all parts whose names begin with a word, by their stems."""
    files = directory.glob(f"{prefix}[-_]*.csv*")
    stems = sorted({path.name.partition(".csv")[0] for path in files})
    return {stem: path for stem in stems if (path := part_file(directory, stem)) is not None}


def open_graph(raw: Path, options: ConvertOptions) -> Graph:
    """Open the nodes and edges of `raw/`."""
    archive = next((raw / name for name in (_ONE_TYPE, _SEVERAL) if (raw / name).exists()), None)
    tables = [path for name in ("edge", _COUNTS, _TRIPLETS) if (path := part_file(raw, name))]
    if archive and tables:
        raise InputError(
            f"{raw}: both {archive.name} and {tables[0]} have the edges; remove one", path=raw
        )
    if archive:
        return _open_archives(archive)
    if not tables:
        raise NotFoundError(
            f"{raw}: neither edge.csv.gz nor data.npz is there; give the directory of a downloaded "
            "OGB node- or link-property data set, or of MAG240M",
            path=raw,
        )
    has_types = not tables[-1].name.startswith("edge.")
    return (_open_types if has_types else _open_one_type)(raw, options)


def _open_archives(path: Path) -> Graph:
    """Open the archives in the directory of the one with the edges, or of one type with all."""
    labels, is_one = path.with_name(_LABELS), path.name == _ONE_TYPE
    parts: dict[str, Mapping[str, ArraySource]]
    if is_one:
        members = {**open_npz(path), **(open_npz(labels) if labels.exists() else {})}
        parts = {name.removesuffix("_list"): {NODE_TYPE: own} for name, own in members.items()}
    else:
        files = sorted(path.parent.glob("*.npz"))
        parts = {file.stem.removesuffix("_dict"): open_npz(file) for file in files}
    for name in ("num_nodes", "edge_index"):
        if name not in parts:
            raise InputError(f"{path}: there is no {name}, only {', '.join(parts)}", path=path)
    counts = parts.pop("num_nodes")
    nodes = {name: NodeInput(_count(counts[name])) for name in sorted(counts)}

    def edge_type(key: str) -> EdgeType:
        return EDGE_TYPE if is_one else triplet(key, path)

    ends = {edge_type(key): own for key, own in parts.pop("edge_index").items()}
    edges = {own: EdgeInput.of_array(ends[own]) for own in sorted(ends)}
    for part, sources in parts.items():
        name = attribute_name(part)
        for key, source in sources.items():
            if part.startswith("node"):
                own = of_type(nodes, key, path)
                own.attributes[name] = FloatLabels(source) if name == "y" else source
                continue
            edge = of_type(edges, edge_type(key), path)
            if part.startswith("edge"):
                edge.attributes[name] = source
            elif part != "num_edges":
                raise InputError(
                    f"{source.label}: expected edge_index, num_nodes, num_edges, node_... and "
                    "edge_...; remove or rename this one",
                    path=path,
                )
            elif edge.num_edges != _count(source):
                raise InputError(
                    f"{edge.label}: has {edge.num_edges} edges, but {source.label} states "
                    f"{_count(source)}",
                    path=path,
                )
    return nodes, edges


def _count(source: ArraySource) -> int:
    return read_one_number(source, "one count")


def _open_one_type(raw: Path, options: ConvertOptions) -> Graph:
    count, num_edges = (
        _read_count(_existing_part(raw, f"num-{what}-list", f"the number of {what}s"))
        for what in ("node", "edge")
    )
    node = NodeInput(count, _open_nodes(raw, count, options))
    return {NODE_TYPE: node}, {EDGE_TYPE: _open_edges(raw, count, num_edges, options)}


def _open_types(raw: Path, options: ConvertOptions) -> Graph:
    path = _existing_part(raw, _COUNTS, "the numbers of nodes of each type")
    labels = part_file(raw, "nodetype-has-label")
    has_label = [] if labels is None else true_types(labels)
    nodes = {}
    for name, number in sorted(_read_by_type(path).items()):
        if not number.isdecimal():
            raise InputError(f"{path}: {number!r} is not a number of nodes of {name!r}", path=path)
        attributes = _open_nodes(raw / "node-feat" / name, int(number), options, name)
        if name in has_label:
            directory = existing_directory(raw / "node-label" / name, "the labels")
            attributes |= _open_nodes(directory, int(number), options)
        nodes[name] = NodeInput(int(number), attributes)
    edges = {}
    path = _existing_part(raw, _TRIPLETS, "the types of edges")
    for edge_type in sorted(triplet("___".join(row), path) for row in _read_table(path)):
        directory = raw / "relations" / "___".join(edge_type)
        directory = existing_directory(directory, "the edges of a type")
        file = part_file(directory, "num-edge-list")
        most = max(nodes[name].count if name in nodes else 0 for name in edge_type[::2])
        stated = None if file is None else _read_count(file)
        edges[edge_type] = _open_edges(directory, most, stated, options)
    return nodes, edges


def attribute_name(stem: str) -> str:
    """Return the attribute that a file or an archive is, given its name without the ending."""
    name = stem.replace("-", "_")
    return {"node_feat": "x", "node_label": "y", "edge_feat": "edge_attr"}.get(name, name)


def _open_nodes(
    directory: Path, count: int, options: ConvertOptions, node_type: str = NODE_TYPE
) -> dict[str, ArraySource]:
    """Open the attributes of nodes in a directory."""
    found: dict[str, ArraySource] = {}
    for stem, path in _parts(directory, "node").items():
        if stem != "node-feat":
            values = open_numbers([path], stem.replace("-", " "), allow_nan=False).read()
            found[attribute_name(stem)] = MemoryArray(str(path), values)
            continue
        features = open_features([path], options.feature_dtype_of(node_type, "x"), num_rows=count)
        if features.shape[1]:
            found["x"] = features
        else:  # the file is empty
            check_count(str(path), 0, count)
    return found


def _open_edges(
    directory: Path, num_nodes: int, num_edges: int | None, options: ConvertOptions
) -> EdgeInput:
    """Open the edges in a directory, between at most `num_nodes` nodes, with their attributes."""
    path, budget = _existing_part(directory, "edge", "the edges"), options.memory_bytes
    edges = TextEdges(path, num_nodes, num_edges=num_edges, memory_bytes=budget)
    found = EdgeInput(edges.pairs, str(path), num_edges, memory_bytes=edges.memory_bytes)
    for stem, file in _parts(directory, "edge").items():
        what = "edge feature"
        found.attributes[attribute_name(stem)] = (
            TextArray(file, what=what, num_rows=num_edges, unit="edges", memory_bytes=budget)
            if stem == "edge-feat"
            else open_numbers([file], what, keeps_points=True, memory_bytes=budget)
        )
    return found


def read_ids(path: Path) -> npt.NDArray[np.int64]:
    """Return the node ids of a split file, one a line."""
    table = TextTable(path, TableFormat("int64", num_columns=1, what="node id"))
    return table.read()[:, 0]


def _read_count(path: Path) -> int:
    table = TextTable(path, TableFormat("int64", num_columns=1, minimum=0, what="number"))
    counts = table.read()[:, 0]
    if len(counts) != 1:
        raise InputError(
            f"{path}: lists {len(counts)} graphs; a node-property or link-property data set has "
            "exactly one",
            path=path,
        )
    return int(counts[0])


# ---- small tables of names


def _read_table(path: Path) -> list[list[str]]:
    """Return the fields of a small table of names."""
    try:
        blocks = [block.data.decode() for block in islice(read_blocks(path), 2)]
    except UnicodeDecodeError:
        raise InputError(
            f"{path}: has names that are not UTF-8; convert it to UTF-8", path=path
        ) from None
    if len(blocks) != 1:
        raise InputError(f"{path}: is empty, or has more than 1 MiB of names", path=path)
    return [[field.strip() for field in row] for row in csv.reader(blocks[0].splitlines()) if row]


def _read_by_type(path: Path) -> dict[str, str]:
    """Return the fields of a line of values, by the fields of a line of types before it."""
    header, *rows = _read_table(path)
    if len(rows) != 1 or len(rows[0]) != len(header):
        raise InputError(
            f"{path}: expected a line of node types and a line with a value for each", path=path
        )
    return dict(zip(header, rows[0], strict=True))


def true_types(path: Path) -> list[str]:
    """Return the node types that a table marks, such as `nodetype-has-split`."""
    return [name for name, flag in _read_by_type(path).items() if flag.lower() == "true"]


def triplet(name: str, path: Path) -> EdgeType:
    """Return the edge type of a name as head___relation___tail."""
    names = name.split("___")
    if len(names) != 3:
        raise InputError(f"{path}: {name!r} is not a head, a relation and a tail", path=path)
    return (names[0], names[1], names[2])


def of_type(parts: Mapping[Key, T], name: Key, path: Path) -> T:
    """Return the part of a type; refuse a type that is not there."""
    if name not in parts:
        found = ", ".join(map(str, parts))
        raise InputError(f"{path}: there is no type {name!r}; there are: {found}", path=path)
    return parts[name]
