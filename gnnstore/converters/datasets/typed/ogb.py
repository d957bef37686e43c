"""OGB's data sets of several types: gzipped CSV (ogbn-mag), or archives of arrays by type.

Types and triplets are sorted, as in OGB's loader, so that ids of types agree with its.
"""

from __future__ import annotations

import csv
import gzip
import io
import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gnnstore.converters.datasets.ogb.csv import (
    attribute_name,
    open_edges,
    open_nodes,
    part_file,
    read_ids,
)
from gnnstore.converters.datasets.ogb.splits import SPLITS, open_split_file, split_file
from gnnstore.converters.inputs.derived import FloatLabels
from gnnstore.converters.inputs.npz import open_npz
from gnnstore.converters.inputs.opening import (
    PathLike,
    describe_files,
    existing_directory,
    open_input,
)
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.memory import memory_ledger
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, write_typed
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.converters.writer.splits import SPLIT_KEYS
from gnnstore.errors import InputError, NotFoundError
from gnnstore.formats.store.schema import EdgeType
from gnnstore.progress import Progress

_LOG = logging.getLogger(__name__)

_BETWEEN = "___"  # names of a triplet
_MAX_TABLE_BYTES = 2**20  # of tables that list types
_TEXT_COUNTS, _BINARY_COUNTS, _BINARY_EDGES = (
    *("num-node-dict", "num_nodes_dict.npz", "edge_index_dict.npz"),
)


def is_heterogeneous(raw: Path) -> bool:
    """Whether the `raw/` of a data set has several types."""
    is_text = any(part_file(raw, name) for name in (_TEXT_COUNTS, "triplet-type-list"))
    return is_text or any((raw / name).exists() for name in (_BINARY_COUNTS, _BINARY_EDGES))


def from_ogb_types(
    raw: Path,
    split: Path | None,
    output: PathLike,
    options: ConvertOptions,
    progress: Progress | None,
) -> Path:
    """Convert a data set of several types, given `raw/` and the directory of a split."""
    binary = any((raw / name).exists() for name in (_BINARY_COUNTS, _BINARY_EDGES))
    found = _Binary(raw) if binary else _Text(raw, options)
    nodes, edges = found.nodes(), found.edges()
    if split is not None:
        _set_splits(nodes, split, options)
    files = [path for path in sorted(raw.rglob("*")) if path.is_file()]
    if split is not None:
        files += [path for path in sorted(split.rglob("*")) if path.is_file()]
    source = {
        "inputs": describe_files(files),
        "split": None if split is None else split.name,
    }
    return write_typed(
        output,
        nodes,
        edges,
        kind="ogb",
        source=source,
        options=options,
        progress=progress,
    )


def _no_counts(raw: Path, name: str) -> NotFoundError:
    return NotFoundError(f"{raw}: has several types, but {name} is not there", path=raw / name)


def _set_splits(nodes: Mapping[str, NodeInput], split: Path, options: ConvertOptions) -> None:
    table = part_file(split, "nodetype-has-split")
    if table is not None:
        for node_type, has_split in _read_flags(table).items():
            if not has_split:
                continue
            own = _own(nodes, node_type, table)
            for name in SPLITS:
                path = part_file(existing_directory(split / node_type, "a split"), name)
                if path is not None:
                    own.splits[name] = read_ids(path)
            if not own.splits:
                raise NotFoundError(
                    f"{split / node_type}: none of the splits {', '.join(SPLITS)} is there",
                    path=split / node_type,
                )
        return
    path = split_file(split)
    if path is None and any((split / f"{name}.pt").exists() for name in SPLITS):
        _LOG.warning("%s: splits of edges of several types are left out", split)
        return
    if path is None:
        raise NotFoundError(
            f"{split}: neither nodetype-has-split.csv.gz nor split_dict.pt is there", path=split
        )
    for name, by_type in open_split_file(
        path, memory_ledger("reading the splits", options.memory_bytes)
    ).items():
        if not isinstance(by_type, Mapping):
            raise InputError(
                f"{path}: {name} is an array; expected a dict of node types", path=path
            )
        for node_type, ids in by_type.items():
            _own(nodes, node_type, path).splits[SPLIT_KEYS.get(name, name)] = ids


def _own(nodes: Mapping[str, NodeInput], node_type: str, path: Path) -> NodeInput:
    if node_type not in nodes:
        raise InputError(
            f"{path}: there is no node type {node_type!r}; there are: {', '.join(nodes)}", path=path
        )
    return nodes[node_type]


# ---- text


class _Text:
    """The layout of gzipped CSV files."""

    def __init__(self, raw: Path, options: ConvertOptions) -> None:
        self._raw = raw
        self._options = options
        path = part_file(raw, _TEXT_COUNTS)
        if path is None:
            raise _no_counts(raw, f"{_TEXT_COUNTS}.csv.gz")
        header, *rows = _read_table(path)
        if len(rows) != 1 or not all(map(str.isdecimal, rows[0])) or len(rows[0]) != len(header):
            raise InputError(
                f"{path}: expected a line of node types and a line of their counts", path=path
            )
        self._counts = dict(sorted(zip(header, map(int, rows[0]), strict=True)))

    def nodes(self) -> dict[str, NodeInput]:
        """Open the nodes of all types."""
        labels = part_file(self._raw, "nodetype-has-label")
        has_label = {} if labels is None else _read_flags(labels)
        nodes = {}
        for node_type, count in self._counts.items():
            found: dict[str, ArraySource] = {}
            directories = [self._raw / "node-feat" / node_type]
            if has_label.get(node_type):
                directories.append(
                    existing_directory(self._raw / "node-label" / node_type, "the labels")
                )
            for directory in directories:
                if directory.is_dir():
                    found |= open_nodes(directory, count, self._options)
            nodes[node_type] = NodeInput(count, found)
        return nodes

    def edges(self) -> dict[EdgeType, EdgeInput]:
        """Open the edges of all types."""
        path = part_file(self._raw, "triplet-type-list")
        if path is None:
            raise NotFoundError(
                f"{self._raw}: triplet-type-list.csv.gz is not there", path=self._raw
            )
        edges: dict[EdgeType, EdgeInput] = {}
        for row in sorted(_read_table(path)):
            if len(row) != 3:
                raise InputError(
                    f"{path}: {','.join(row)!r} is no head, relation and tail", path=path
                )
            edge_type: EdgeType = (row[0], row[1], row[2])
            edges[edge_type] = self._edges_of(edge_type)
        return edges

    def _edges_of(self, edge_type: EdgeType) -> EdgeInput:
        directory = existing_directory(
            self._raw / "relations" / _BETWEEN.join(edge_type), "the edges of a type"
        )
        count_file, num_edges = part_file(directory, "num-edge-list"), None
        if count_file is not None:
            counts = read_ids(count_file)
            if len(counts) != 1:
                raise InputError(f"{count_file}: lists {len(counts)} graphs", path=count_file)
            num_edges = int(counts[0])
        most = max(self._counts.get(name, 0) for name in (edge_type[0], edge_type[2]))
        return open_edges(directory, most, num_edges, self._options)


def _read_table(path: Path) -> list[list[str]]:
    """Return the fields of a small table of names."""
    try:
        with open_input(path) as file:
            data = file.read(_MAX_TABLE_BYTES + 1)
        if path.suffix == ".gz" and len(data) <= _MAX_TABLE_BYTES:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(_MAX_TABLE_BYTES + 1)
        if len(data) > _MAX_TABLE_BYTES:
            raise InputError(f"{path}: has more than 1 MiB of names of types", path=path)
        text = data.decode()
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is damaged ({error}); copy it again", path=path) from None
    rows = [[field.strip() for field in row] for row in csv.reader(text.splitlines()) if row]
    if not rows:
        raise InputError(f"{path}: is empty", path=path)
    return rows


def _read_flags(path: Path) -> dict[str, bool]:
    header, *rows = _read_table(path)
    if len(rows) != 1 or len(rows[0]) != len(header):
        raise InputError(
            f"{path}: expected a line of node types and a line of True and False", path=path
        )
    return {name: value.lower() == "true" for name, value in zip(header, rows[0], strict=True)}


# ---- binary


class _Binary:
    """The layout of archives with a member for each type."""

    def __init__(self, raw: Path) -> None:
        self._raw = raw
        path = raw / _BINARY_COUNTS
        if not path.exists():
            raise _no_counts(raw, _BINARY_COUNTS)
        self._counts = {name: _count(own) for name, own in sorted(open_npz(path).items())}
        self._archives = {
            path.stem: path
            for path in sorted(raw.glob("*.npz"))
            if path.stem not in ("num_nodes_dict", "num_edges_dict", "edge_index_dict")
        }

    def nodes(self) -> dict[str, NodeInput]:
        """Open the nodes of all types."""
        nodes = {name: NodeInput(count) for name, count in self._counts.items()}
        for stem, path in self._archives.items():
            if stem.startswith("edge"):
                continue
            if not stem.startswith("node"):
                raise InputError(
                    f"{path}: expected archives called edge_index_dict, node_... and edge_...; "
                    "remove or rename this one",
                    path=path,
                )
            name = attribute_name(stem.removesuffix("_dict"))
            for node_type, source in open_npz(path).items():
                own = _own(nodes, node_type, path)
                own.attributes[name] = FloatLabels(source) if name == "y" else source
        return nodes

    def edges(self) -> dict[EdgeType, EdgeInput]:
        """Open the edges of all types."""
        path = self._raw / _BINARY_EDGES
        ends = {self._triplet(key, path): source for key, source in open_npz(path).items()}
        edges = {edge_type: EdgeInput.of_array(ends[edge_type]) for edge_type in sorted(ends)}
        counts = self._raw / "num_edges_dict.npz"
        for key, source in open_npz(counts).items() if counts.exists() else ():
            own = self._edges_of(edges, key, counts)
            if own.num_edges != _count(source):
                raise InputError(
                    f"{own.label}: has {own.num_edges} edges, but {source.label} says "
                    f"{_count(source)}"
                )
        for stem, archive in self._archives.items():
            if not stem.startswith("edge"):
                continue
            name = attribute_name(stem.removesuffix("_dict"))
            for key, source in open_npz(archive).items():
                self._edges_of(edges, key, archive).attributes[name] = source
        return edges

    @staticmethod
    def _triplet(key: str, path: Path) -> EdgeType:
        names = key.split(_BETWEEN)
        if len(names) != 3:
            raise InputError(
                f"{path}: the member {key!r} is no head{_BETWEEN}relation{_BETWEEN}tail", path=path
            )
        return (names[0], names[1], names[2])

    def _edges_of(self, edges: Mapping[EdgeType, EdgeInput], key: str, path: Path) -> EdgeInput:
        edge_type = self._triplet(key, path)
        if edge_type not in edges:
            raise InputError(f"{path}: there are no edges of type {edge_type}", path=path)
        return edges[edge_type]


def _count(source: ArraySource) -> int:
    values: Any = source.read().reshape(-1)
    if len(values) != 1 or np.asarray(values).dtype.kind not in "iu" or values[0] < 0:
        raise InputError(f"{source.label}: expected one count, found {values[:5].tolist()}")
    return int(values[0])
