"""OGB's text layout: one CSV file, gzipped or not, without a header, for each part of the graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnstore.converters.datasets.ogb.links import RawEdges
from gnnstore.converters.inputs.opening import existing_file
from gnnstore.converters.inputs.source import MemoryArray, check_count
from gnnstore.converters.inputs.text_arrays import (
    TextArray,
    TextEdges,
    read_as_stored,
    read_numbers,
)
from gnnstore.converters.inputs.text_tables import TableFormat, TextTable
from gnnstore.converters.writer.graph_writer import GraphWriter
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


def convert_csv(writer: GraphWriter, raw: Path, *, add_inverse_edge: bool) -> RawEdges:
    """Read `raw/` of the text layout into a writer, and return its edges."""
    num_nodes = _read_count(raw, "num-node-list", "nodes")
    num_edges = _read_count(raw, "num-edge-list", "edges")
    writer.set_num_nodes(num_nodes)
    writer.expect_edges(num_edges * (2 if add_inverse_edge else 1))
    found = parts(raw, "node")
    for stem, name in (("node-feat", "x"), ("node-label", "y")):
        if stem not in found:
            writer.progress.note(f"{raw}: there is no {stem}.csv.gz: the store has no {name}")
    for stem, path in found.items():
        _read_node_attribute(writer, stem, path, num_nodes)
    return _read_edges(writer, raw, num_nodes, num_edges, add_inverse_edge)


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


# ---- nodes


def _read_node_attribute(writer: GraphWriter, stem: str, path: Path, num_nodes: int) -> None:
    if stem == "node-feat":
        _copy_features(writer, path, num_nodes)
        return
    name = "y" if stem == "node-label" else stem.replace("-", "_")
    values = read_numbers(path, stem.replace("-", " "))
    writer.set_node_attribute(name, MemoryArray(str(path), values))


def _copy_features(writer: GraphWriter, path: Path, num_nodes: int) -> None:
    features = read_as_stored(path, writer.options.feature_dtype, num_rows=num_nodes)
    if features.shape[1]:
        writer.set_node_attribute("x", features)
    else:  # the file is empty
        check_count(str(path), 0, num_nodes)


# ---- edges


def _read_edges(
    writer: GraphWriter, raw: Path, num_nodes: int, num_edges: int, add_inverse_edge: bool
) -> RawEdges:
    path = _existing_part(raw, "edge", "the edges")
    budget = writer.options.memory_bytes
    edges = TextEdges(path, num_nodes, num_edges=num_edges, memory_bytes=budget)
    attributes = {
        name: TextArray(
            file,
            "float32" if name == "edge_attr" else number_type(file),
            what="edge feature",
            num_rows=num_edges,
            unit="edges",
            memory_bytes=budget,
        )
        for name, file in _edge_attribute_files(raw)
    }
    writer.reserve_memory(
        edges.memory_bytes + sum(table.memory_bytes for table in attributes.values())
    )
    writer.read_edges(
        edges.pairs(),
        num_edges,
        attributes,
        where=str(path),
        add_inverse_edge=add_inverse_edge,
    )
    return RawEdges(num_edges, edges.pairs, attributes)


def number_type(path: Path) -> str:
    """Return "int64" if a table has integers only (relations, years), else "float32"."""
    try:
        for _ in TextTable(path, TableFormat("int64", delimiter=None)).blocks():
            pass
    except InputError:
        return "float32"
    return "int64"


def _edge_attribute_files(raw: Path) -> Iterator[tuple[str, Path]]:
    for stem, path in parts(raw, "edge").items():
        yield ("edge_attr" if stem == "edge-feat" else stem.replace("-", "_")), path
