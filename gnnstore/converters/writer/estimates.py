"""Estimates the cost of a conversion before it starts, by the sizes of its inputs.

Headers of binary files state sizes exactly. Of text only the first megabyte is read, and taken as
typical of the rest. Of a file that is not understood the converter reports the errors.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

from gnnstore.budget.limits import available_bytes
from gnnstore.converters.edges.columns import estimate_peak_bytes
from gnnstore.converters.edges.on_disk.runs import record_bytes_for, spill_bytes_per_edge
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.inputs.npy import open_npy
from gnnstore.converters.inputs.npz import open_npz
from gnnstore.converters.inputs.opening import open_input
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.writer.node_arrays import MAX_COMPRESSED_ROW_BYTES
from gnnstore.errors import GnnstoreError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES, id_dtype
from gnnstore.formats.arrays.pages import PageGeometry
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.units import format_duration, format_size

# Rates of an ordinary laptop, for each second: edges sorted into columns, bytes written and
# synchronised, bytes of text parsed.
_EDGES, _WRITTEN, _TEXT = 20e6, 500e6, 150e6
# Whole conversions take three times as long per edge as the sort alone: the ends are read, checked,
# joined and written as well. Sorting on disk takes 1.1 times as long, without writing and reading,
# and once more where runs are merged to count what is left of equal edges and missing loops.
_EDGE_WORK, _SPILL_WORK, _COUNT_WORK = 3.0, 1.1, 1.0
_BASE_MEMORY_BYTES = 2**27  # the interpreter, NumPy, pyarrow and buffers
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
    def of(cls, spec: AttributeSpec | ArraySource) -> Self:
        """Return the table of an array, or of an attribute of a store."""
        dtype = STORAGE_DTYPES[spec.dtype] if isinstance(spec, AttributeSpec) else spec.dtype
        return cls(spec.shape[0], math.prod(spec.shape[1:]), dtype.itemsize)

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows."""
        return self.num_rows * self.row_items * self.item_bytes

    def stored_bytes(self, item_bytes: int | None, page_bytes: int | None) -> int:
        """Return the bytes of the pages that hold the rows, perhaps in another element type."""
        row_bytes = self.row_items * (item_bytes or self.item_bytes)
        if not row_bytes:
            return 0
        return PageGeometry.of(row_bytes, self.num_rows, page_bytes).body_bytes(self.num_rows)


@dataclass(frozen=True)
class Workload:
    """The amount of data that a conversion reads, as far as known."""

    num_nodes: int = 0  # nodes of the input; 0 if unknown
    num_edges: int = 0  # edges of the input
    edge_row_bytes: int = 0  # attributes of one edge
    text_bytes: int = 0  # bytes of text to read, after decompression
    is_exact: bool = True  # whether all sizes are from headers
    node_tables: tuple[NodeTable, ...] = ()  # node attributes of wide rows

    def __add__(self, other: Workload) -> Workload:
        """Return the work of two inputs together."""
        return Workload(
            max(self.num_nodes, other.num_nodes),
            self.num_edges + other.num_edges,
            self.edge_row_bytes + other.edge_row_bytes,
            self.text_bytes + other.text_bytes,
            self.is_exact and other.is_exact,
            self.node_tables + other.node_tables,
        )


@dataclass(frozen=True)
class Estimate:
    """The expected cost of a conversion."""

    final_bytes: int  # the finished store
    least_bytes: int  # a lower bound of the store; 0 if the inputs do not state their sizes exactly
    spill_bytes: int  # temporary files while edges are sorted that memory cannot hold
    memory_bytes: int  # peak memory
    seconds: float
    basis: str  # the source of the numbers

    def __str__(self) -> str:
        spilled = f"{format_size(self.spill_bytes)} of temporary space, "
        return (
            f"expected: {format_size(self.final_bytes)} in the store, "
            f"{spilled if self.spill_bytes else 'no temporary space, '}"
            f"up to {format_size(self.memory_bytes)} of memory, "
            f"{'about ' if self.seconds >= 1 else 'at most '}"
            f"{format_duration(max(1.0, self.seconds))} ({self.basis})"
        )


def estimate(
    workload: Workload,
    rules: EdgeRules,
    *,
    memory_bytes: int | None = None,
    page_bytes: int | None = None,
    feature_item_bytes: int | None = None,
) -> Estimate:
    """Estimate the cost of a conversion."""
    num_nodes, num_edges, row_bytes = (
        workload.num_nodes,
        workload.num_edges,
        workload.edge_row_bytes,
    )
    total = num_edges * rules.copies + (num_nodes if rules.self_loops == "add" else 0)
    id_bytes = id_dtype(num_nodes).itemsize
    edge_bytes = id_bytes + row_bytes + (id_dtype(total).itemsize if rules.keep_ids else 0)
    nodes, at_least = (
        sum(table.stored_bytes(size, page_bytes) for table in workload.node_tables)
        for size in (feature_item_bytes, None)
    )
    fixed = 8 * (num_nodes + 1)
    final = fixed + nodes + total * edge_bytes
    # De-duplication and dropped self-loops may remove almost all edges, edge ids are left out where
    # they are 0, 1, 2, ..., and the type of features is not that of other attributes.
    shrinks = rules.undirected or rules.self_loops == "drop"
    least = fixed + min(nodes, at_least) + (0 if shrinks else num_edges * (id_bytes + row_bytes))
    peak = estimate_peak_bytes(rules, num_edges, num_nodes, row_bytes)
    budget = available_bytes() if memory_bytes is None else memory_bytes
    spill, work = 0, _EDGE_WORK
    if peak > budget:
        spill = num_edges * spill_bytes_per_edge(rules, record_bytes_for(num_nodes - 1), row_bytes)
        counts = rules.undirected or rules.self_loops == "add"
        work *= _SPILL_WORK + (_COUNT_WORK if counts else 0)
    sizes = "sizes as the input states them"
    if not workload.is_exact:
        is_guessed = workload.text_bytes > 0
        sizes = "sizes guessed from the beginning of each file" if is_guessed else "sizes roughly"
    return Estimate(
        final_bytes=final,
        least_bytes=least if workload.is_exact else 0,
        spill_bytes=spill,
        memory_bytes=min(peak, budget) + _BASE_MEMORY_BYTES,
        seconds=total / _EDGES * work
        + (final + 2 * spill) / _WRITTEN
        + workload.text_bytes / _TEXT,
        basis=f"{sizes}, time at the rates of an ordinary laptop",
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
    if not source.shape or not source.shape[0]:
        return Workload()
    table = NodeTable.of(source)
    is_wide = table.row_items * table.item_bytes > MAX_COMPRESSED_ROW_BYTES
    return Workload(num_nodes=table.num_rows, node_tables=(table,) * is_wide)


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in found if file.is_file())


def _inspect(path: Path) -> Workload:
    if path.suffix in (".npy", ".npz"):
        arrays = {path.stem: open_npy(path)} if path.suffix == ".npy" else open_npz(path)
        return sum((_inspect_array(*own, "indptr" in arrays) for own in arrays.items()), Workload())
    if path.suffix in (".gz", ".csv", ".txt", ".tsv", ".edges"):
        return _inspect_text(path)
    items = path.stat().st_size // _TEXT_ITEM_BYTES
    return Workload(is_exact=False, node_tables=(NodeTable(items, 1, _TEXT_ITEM_BYTES),))


def _inspect_array(name: str, source: ArraySource, has_indptr: bool) -> Workload:
    shape = source.shape
    if name in _EDGE_LISTS and source.dtype.kind in "iu" and len(shape) == 2 and 2 in shape:
        return Workload(num_edges=shape[1] if shape[0] == 2 else shape[0])
    if has_indptr and name == "indptr" and len(shape) == 1:
        return Workload(num_nodes=shape[0] - 1)
    if has_indptr and name == "indices" and len(shape) == 1:
        return Workload(num_edges=shape[0])
    if name.startswith("edge") and shape:
        return Workload(edge_row_bytes=source.dtype.itemsize * math.prod(shape[1:]))
    found = node_workload(source)
    return found if found.node_tables else Workload()


def _inspect_text(path: Path) -> Workload:
    """Guess a table's size from its beginning."""
    with open_input(path) as file:
        head = file.read(_SAMPLE_BYTES)
    ratio = 1.0
    if head[:2] == b"\x1f\x8b":
        text = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, 16 * _SAMPLE_BYTES)
        ratio, head = len(text) / len(head), text
    read = Workload(text_bytes=round(path.stat().st_size * ratio), is_exact=False)
    lines = [
        line for line in head.splitlines()[:-1] or [head] if line and line[:1] not in _COMMENTS
    ]
    if not lines:
        return read
    num_lines = round(read.text_bytes * len(lines) / max(1, sum(len(line) + 1 for line in lines)))
    num_fields = len(lines[0].replace(b",", b" ").split())
    if num_fields == 2 and "feat" not in path.name:
        return replace(read, num_edges=num_lines)
    if path.name.startswith("edge"):
        return replace(read, edge_row_bytes=num_fields * _TEXT_ITEM_BYTES)
    if num_fields == 1:
        return read
    table = NodeTable(num_lines, num_fields, _TEXT_ITEM_BYTES)
    return replace(read, num_nodes=num_lines, node_tables=(table,))
