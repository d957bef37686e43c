"""OGB's text layout: one CSV file, gzipped or not, without a header, for each part of the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.opening import existing_file
from gnnstore.converters.inputs.source import ArraySource, MemoryArray, check_count
from gnnstore.converters.inputs.text_arrays import (
    TextArray,
    TextEdges,
    read_as_stored,
    read_numbers,
)
from gnnstore.converters.inputs.text_tables import TableFormat, TextTable
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError

_ENDINGS = (".csv.gz", ".csv")
_UNREAD_ENDINGS = (".csv.bz2", ".csv.xz", ".csv.zst", ".csv.zip")


def part_file(directory: Path, stem: str) -> Path | None:
    """Return the file of a part of a data set, gzipped or not; None if it is not there."""
    found = [path for ending in _ENDINGS if (path := directory / f"{stem}{ending}").exists()]
    others = [
        path for ending in _UNREAD_ENDINGS if (path := directory / f"{stem}{ending}").exists()
    ]
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


def parts(directory: Path, prefix: str) -> dict[str, Path]:
    """Return the files of all parts whose names begin with a word, by their stems."""
    stems = sorted(
        {path.name.partition(".csv")[0] for path in directory.glob(f"{prefix}[-_]*.csv*")}
    )
    return {stem: path for stem in stems if (path := part_file(directory, stem)) is not None}


def _existing_part(directory: Path, stem: str, what: str) -> Path:
    return part_file(directory, stem) or existing_file(directory / f"{stem}.csv.gz", what)


def open_text(raw: Path, options: ConvertOptions) -> tuple[NodeInput, EdgeInput]:
    """Open the nodes and edges of `raw/`."""
    num_nodes = _read_count(raw, "num-node-list", "nodes")
    num_edges = _read_count(raw, "num-edge-list", "edges")
    nodes = NodeInput(num_nodes, open_nodes(raw, num_nodes, options))
    return nodes, open_edges(raw, num_nodes, num_edges, options)


def attribute_name(stem: str) -> str:
    """Return the attribute that a file or an archive is, given its name without the ending."""
    name = stem.replace("-", "_")
    return {"node_feat": "x", "node_label": "y", "edge_feat": "edge_attr"}.get(name, name)


def open_nodes(directory: Path, count: int, options: ConvertOptions) -> dict[str, ArraySource]:
    """Open the attributes of nodes in a directory."""
    found: dict[str, ArraySource] = {}
    for stem, path in parts(directory, "node").items():
        if stem != "node-feat":
            values = read_numbers(path, stem.replace("-", " "))
            found[attribute_name(stem)] = MemoryArray(str(path), values)
            continue
        features = read_as_stored(path, options.feature_dtype, num_rows=count)
        if features.shape[1]:
            found["x"] = features
        else:  # the file is empty
            check_count(str(path), 0, count)
    return found


def open_edges(
    directory: Path, num_nodes: int, num_edges: int | None, options: ConvertOptions
) -> EdgeInput:
    """Open the edges in a directory, between at most `num_nodes` nodes, with their attributes."""
    path, budget = _existing_part(directory, "edge", "the edges"), options.memory_bytes
    edges = TextEdges(path, num_nodes, num_edges=num_edges, memory_bytes=budget)
    found = EdgeInput(edges.pairs, str(path), num_edges, memory_bytes=edges.memory_bytes)
    for stem, file in parts(directory, "edge").items():
        table = TextArray(
            file,
            "float32" if stem == "edge-feat" else _number_type(file),
            what="edge feature",
            num_rows=num_edges,
            unit="edges",
            memory_bytes=budget,
        )
        found.memory_bytes += table.memory_bytes
        found.attributes[attribute_name(stem)] = table
    return found


def read_ids(path: Path) -> npt.NDArray[np.int64]:
    """Return the node ids of a split file, one a line."""
    table = TextTable(path, TableFormat("int64", num_columns=1, what="node id"))
    return table.read()[:, 0]


def _read_count(raw: Path, stem: str, what: str) -> int:
    path = _existing_part(raw, stem, f"the number of {what}")
    table = TextTable(
        path,
        TableFormat("int64", num_columns=1, minimum=0, what=f"number of {what}"),
    )
    counts = table.read()[:, 0]
    if len(counts) != 1:
        raise InputError(
            f"{path}: lists {len(counts)} graphs; a node-property or link-property data set has "
            "exactly one",
            path=path,
        )
    return int(counts[0])


def _number_type(path: Path) -> str:
    """Return "int64" if a table has integers only (relations, years), else "float32"."""
    try:
        for _ in TextTable(path, TableFormat("int64", delimiter=None)).blocks():
            pass
    except InputError:
        return "float32"
    return "int64"
