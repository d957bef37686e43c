"""Measures the inputs of a conversion by their sizes and beginnings, before work starts.

Headers of binary files state sizes exactly. Of text only the first megabyte is read, and taken as
typical of the rest. A file that is not understood here counts with its plain size; the converter
reports its errors.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

from gnnstore.converters.inputs.npy import open_npy
from gnnstore.converters.inputs.npz import open_npz
from gnnstore.converters.inputs.opening import open_input
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.writer.node_arrays import MAX_COMPRESSED_ROW_BYTES
from gnnstore.errors import GnnstoreError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.pages import PageGeometry
from gnnstore.formats.arrays.spec import AttributeSpec

_SAMPLE_BYTES = 2**20
_TEXT_ITEM_BYTES = 4  # numbers in text become float32
_COMMENTS = (b"#", b"%")
_EDGE_LISTS = ("edge", "edges", "edge_index")  # other names that begin with "edge": attributes


class NodeTable(NamedTuple):
    """The rows of a node attribute that lie in pages."""

    num_rows: int
    row_items: int
    item_bytes: int

    @classmethod
    def of(cls, shape: tuple[int, ...], item_bytes: int) -> Self:
        """Return the table of an array."""
        return cls(shape[0], math.prod(shape[1:]), item_bytes)

    @classmethod
    def of_attribute(cls, spec: AttributeSpec) -> Self:
        """Return the table of an attribute of a store."""
        return cls.of(spec.shape, STORAGE_DTYPES[spec.dtype].itemsize)

    def padding_bytes(self, item_bytes: int, page_bytes: int | None) -> int:
        """Return the bytes that pages are larger than their rows."""
        row_bytes = self.row_items * item_bytes
        if not row_bytes:
            return 0
        geometry = PageGeometry.of(row_bytes, self.num_rows, page_bytes)
        return geometry.body_bytes(self.num_rows) - row_bytes * self.num_rows


@dataclass(frozen=True)
class Workload:
    """The amount of data that a conversion reads, as far as known."""

    num_nodes: int = 0  # nodes of the input; 0 if unknown
    num_edges: int = 0  # edges of the input
    node_bytes: int = 0  # node attributes of wide rows, in the input's element types
    node_items: int = 0  # elements of these attributes
    edge_row_bytes: int = 0  # attributes of one edge
    binary_bytes: int = 0  # bytes of binary files to read
    text_bytes: int = 0  # bytes of text to read, after decompression
    is_exact: bool = True  # whether all sizes are from headers
    text_path: Path | None = None  # the largest text, for a trial of reading
    text_ratio: float = 1.0  # bytes of that text for each byte of its file
    node_tables: tuple[NodeTable, ...] = ()  # the attributes that `node_bytes` counts, if known

    def __add__(self, other: Workload) -> Workload:
        """Return the work of two inputs together."""
        larger = self if self.text_bytes >= other.text_bytes else other
        return Workload(
            max(self.num_nodes, other.num_nodes),
            self.num_edges + other.num_edges,
            self.node_bytes + other.node_bytes,
            self.node_items + other.node_items,
            self.edge_row_bytes + other.edge_row_bytes,
            self.binary_bytes + other.binary_bytes,
            self.text_bytes + other.text_bytes,
            self.is_exact and other.is_exact,
            larger.text_path,
            larger.text_ratio,
            self.node_tables + other.node_tables,
        )


def inspect_inputs(paths: Iterable[Path]) -> Workload:
    """Return the work of converting some input files."""
    total = Workload()
    for path in _files(paths):
        try:
            total += _inspect(path)
        except (GnnstoreError, OSError, zlib.error):
            total = replace(total, is_exact=False)
    return total


def node_workload(source: ArraySource) -> Workload:
    """Return the work of converting an array of node attributes [N, ...]."""
    num_bytes = math.prod(source.shape) * source.dtype.itemsize
    read = Workload(num_nodes=source.shape[0] if source.shape else 0, binary_bytes=num_bytes)
    if num_bytes <= read.num_nodes * MAX_COMPRESSED_ROW_BYTES:
        return read
    table = NodeTable.of(source.shape, source.dtype.itemsize)
    return replace(
        read, node_bytes=num_bytes, node_items=math.prod(source.shape), node_tables=(table,)
    )


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in found if file.is_file())


def _inspect(path: Path) -> Workload:
    if path.suffix == ".npy":
        return _sum_arrays({path.stem: open_npy(path)})
    if path.suffix == ".npz":
        return _sum_arrays(open_npz(path))
    if path.suffix in (".gz", ".csv", ".txt", ".tsv", ".edges"):
        return _inspect_text(path)
    num_bytes = path.stat().st_size
    return Workload(
        node_bytes=num_bytes,
        node_items=num_bytes // _TEXT_ITEM_BYTES,
        binary_bytes=num_bytes,
        is_exact=False,
    )


def _sum_arrays(arrays: Mapping[str, ArraySource]) -> Workload:
    total = Workload()
    for name, source in arrays.items():
        total += _inspect_array(name, source, "indptr" in arrays)
    return total


def _inspect_array(name: str, source: ArraySource, has_indptr: bool) -> Workload:
    shape = source.shape
    num_bytes = math.prod(shape) * source.dtype.itemsize
    read = Workload(binary_bytes=num_bytes)
    is_edges = name in _EDGE_LISTS and source.dtype.kind in "iu" and len(shape) == 2 and 2 in shape
    if is_edges:
        return replace(read, num_edges=shape[1] if shape[0] == 2 else shape[0])
    if has_indptr and name in ("indptr", "indices") and len(shape) == 1:
        is_indptr = name == "indptr"
        return replace(
            read, num_nodes=shape[0] - 1 if is_indptr else 0, num_edges=0 if is_indptr else shape[0]
        )
    if not shape or not shape[0]:
        return read
    row_bytes = num_bytes // shape[0]
    if name.startswith("edge"):
        return replace(read, edge_row_bytes=row_bytes)
    if row_bytes <= MAX_COMPRESSED_ROW_BYTES:
        return read
    table = NodeTable.of(shape, source.dtype.itemsize)
    return replace(
        read,
        num_nodes=shape[0],
        node_bytes=num_bytes,
        node_items=math.prod(shape),
        node_tables=(table,),
    )


def _inspect_text(path: Path) -> Workload:
    """Guess a table's size from its beginning."""
    size = path.stat().st_size
    with open_input(path) as file:
        head = file.read(_SAMPLE_BYTES)
    ratio = 1.0
    if head[:2] == b"\x1f\x8b":
        text = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, 16 * _SAMPLE_BYTES)
        ratio, head = len(text) / len(head), text
    text_bytes = round(size * ratio)
    lines = [
        line for line in head.splitlines()[:-1] or [head] if line and line[:1] not in _COMMENTS
    ]
    read = Workload(
        text_bytes=text_bytes, is_exact=False, text_path=path, text_ratio=max(ratio, 1e-6)
    )
    if not lines:
        return read
    num_lines = round(text_bytes * len(lines) / max(1, sum(len(line) + 1 for line in lines)))
    num_fields = len(lines[0].replace(b",", b" ").split())
    if num_fields == 2 and "feat" not in path.name:
        return replace(read, num_edges=num_lines)
    row_bytes = num_fields * _TEXT_ITEM_BYTES
    if path.name.startswith("edge"):
        return replace(read, edge_row_bytes=row_bytes)
    if num_fields == 1:
        return read
    return replace(
        read,
        num_nodes=num_lines,
        node_bytes=num_lines * row_bytes,
        node_items=num_lines * num_fields,
        node_tables=(NodeTable(num_lines, num_fields, _TEXT_ITEM_BYTES),),
    )
