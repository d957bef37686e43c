"""OGB's text layout: one gzipped CSV file, without a header, for each part of the graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.arrays.text.arrays import TextArray, read_numbers
from gnnstore.converters.arrays.text.tables import TableFormat, TextTable
from gnnstore.converters.inputs import existing_file
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.errors import InputError

_ENDING = ".csv.gz"


def convert_csv(writer: GraphWriter, raw: Path, *, add_inverse_edge: bool) -> None:
    """Read `raw/` of the text layout into a writer.

    Raises
    ------
    NotFoundError, InputError
        Naming the file and the line.
    """
    num_nodes = _read_count(raw / "num-node-list.csv.gz", "nodes")
    num_edges = _read_count(raw / "num-edge-list.csv.gz", "edges")
    writer.set_num_nodes(num_nodes)
    writer.expect_edges(num_edges * (2 if add_inverse_edge else 1))
    for path in sorted(raw.glob(f"node[-_]*{_ENDING}")):
        _read_node_attribute(writer, path, num_nodes)
    if not writer.has_edges:
        _read_edges(writer, raw, num_nodes, num_edges, add_inverse_edge)


def read_ids(path: Path) -> npt.NDArray[np.int64]:
    """Return the node ids of a split file, one a line."""
    table = TextTable(path, TableFormat("int64", num_columns=1, what="node id"))
    return table.read()[:, 0]


def _read_count(path: Path, what: str) -> int:
    table = TextTable(
        existing_file(path, f"the number of {what}"),
        TableFormat("int64", num_columns=1, minimum=0, what=f"number of {what}"),
    )
    counts = table.read()[:, 0]
    if len(counts) != 1:
        raise InputError(
            f"{path}: lists {len(counts)} graphs; a node-property data set has exactly one",
            path=path,
        )
    return int(counts[0])


# ---- nodes


def _read_node_attribute(writer: GraphWriter, path: Path, num_nodes: int) -> None:
    stem = path.name.removesuffix(_ENDING)
    if stem == "node-feat":
        _copy_features(writer, path, num_nodes)
        return
    name = "y" if stem == "node-label" else stem.replace("-", "_")
    values = read_numbers(path, stem.replace("-", " "))
    _check_rows(path, len(values), num_nodes, "nodes")
    writer.set_node_attribute(name, values)


def _copy_features(writer: GraphWriter, path: Path, num_nodes: int) -> None:
    features = TextArray(path, num_rows=num_nodes)
    if features.shape[1]:
        writer.set_node_attribute("x", features)
    else:  # the file is empty
        _check_rows(path, 0, num_nodes, "nodes")


# ---- edges


def _read_edges(
    writer: GraphWriter, raw: Path, num_nodes: int, num_edges: int, add_inverse_edge: bool
) -> None:
    path = raw / "edge.csv.gz"
    budget = writer.options.memory_bytes
    lines = TableFormat("int64", num_columns=2, minimum=0, limit=num_nodes, what="node id")
    edges = TextTable(path, lines, memory_bytes=budget)
    attributes = {name: _Lockstep(file, budget) for name, file in _edge_attribute_files(raw)}
    readers = (edges, *(source.table for source in attributes.values()))
    writer.reserve_memory(sum(table.memory_bytes for table in readers))
    edges_read = 0
    with writer.progress.phase("read edges", path.stat().st_size, "bytes") as phase:
        for pairs in edges.blocks(phase):
            rows = {name: source.take(len(pairs)) for name, source in attributes.items()}
            edges_read += len(pairs)
            add_pairs(writer, pairs.T, rows, add_inverse_edge=add_inverse_edge, where=str(path))
    if edges_read != num_edges:
        raise InputError(
            f"{path}: has {edges_read} edges, but num-edge-list.csv.gz says {num_edges}", path=path
        )
    for source in attributes.values():
        source.finish(num_edges)


def _edge_attribute_files(raw: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(raw.glob(f"edge[-_]*{_ENDING}")):
        stem = path.name.removesuffix(_ENDING)
        yield ("edge_attr" if stem == "edge-feat" else stem.replace("-", "_")), path


class _Lockstep:
    """Reads a table in the pieces that another one came in."""

    def __init__(self, path: Path, memory_bytes: int | None) -> None:
        self._path = path
        lines = TableFormat("float32", what="edge feature")
        self.table = TextTable(path, lines, memory_bytes=memory_bytes)
        self._blocks = self.table.blocks()
        self._held: list[npt.NDArray[Any]] = []
        self._num_held = 0
        self._rows_read = 0

    def take(self, num_rows: int) -> npt.NDArray[np.float32]:
        """Return the next rows [num_rows, F]."""
        while self._num_held < num_rows:
            block = next(self._blocks, None)
            if block is None:
                raise InputError(
                    f"{self._path}: has {self._rows_read} rows, but edge.csv.gz has more edges; "
                    "every edge needs exactly one row",
                    path=self._path,
                )
            self._held.append(block)
            self._num_held += len(block)
            self._rows_read += len(block)
        rows = np.concatenate(self._held) if len(self._held) != 1 else self._held[0]
        self._held = [rows[num_rows:]]
        self._num_held -= num_rows
        return rows[:num_rows]

    def finish(self, num_edges: int) -> None:
        """Check that nothing is left."""
        rows_read = self._rows_read + sum(map(len, self._blocks))
        _check_rows(self._path, rows_read, num_edges, "edges")


def add_pairs(
    writer: GraphWriter,
    pairs: npt.NDArray[np.integer[Any]],
    attributes: dict[str, npt.NDArray[Any]],
    *,
    add_inverse_edge: bool,
    where: str,
) -> None:
    """Add edges [2, k], each followed by its reverse if OGB's loader would do that."""
    sources, targets = pairs
    if add_inverse_edge:
        sources, targets = (
            np.stack((sources, targets), axis=1).reshape(-1),
            np.stack((targets, sources), axis=1).reshape(-1),
        )
        attributes = {name: np.repeat(rows, 2, axis=0) for name, rows in attributes.items()}
    writer.add_edges(sources, targets, attributes, where=where)


def _check_rows(path: Path, found: int, expected: int, what: str) -> None:
    if found != expected:
        raise InputError(
            f"{path}: has {found} rows, but the graph has {expected} {what}", path=path
        )
