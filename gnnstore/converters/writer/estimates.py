"""Estimates the cost of a conversion before it starts, by the sizes of its inputs.

Headers of binary files state sizes exactly. In text only the first megabyte is read, and taken as
typical of the rest. Errors of a file that cannot be estimated are left to the converter.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gnnstore.budget.limits import available_bytes
from gnnstore.converters.edges.columns import estimate_peak_bytes
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.edges.runs import record_bytes_for, spill_bytes_per_edge
from gnnstore.converters.inputs.files import open_npy, open_npz
from gnnstore.converters.inputs.opening import open_input
from gnnstore.converters.inputs.parts import Skipped, parts_of
from gnnstore.converters.inputs.source import ArraySource, MemoryArray, row_bytes
from gnnstore.converters.inputs.text_sizes import guess_sizes
from gnnstore.converters.inputs.text_tables import TableFormat
from gnnstore.converters.writer.node_arrays import MAX_COMPRESSED_ROW_BYTES
from gnnstore.converters.writer.options import ConvertOptions, Fractions
from gnnstore.errors import GnnstoreError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES, id_dtype
from gnnstore.formats.arrays.pages import PageGeometry
from gnnstore.formats.base.files import directory_bytes, require_space
from gnnstore.formats.store.schema import NODE_TYPE
from gnnstore.formats.store.store import StoreWriter
from gnnstore.units import format_duration, format_size

# Rates of an ordinary laptop, for each second: edges sorted into columns, bytes written and
# synchronised, bytes of text parsed.
_EDGES, _WRITTEN, _TEXT = 20e6, 500e6, 150e6
# Times of sorting: of a conversion, of sorting on disk too, and of merging runs once more to count
# what is left of equal edges and missing loops.
_EDGE_WORK, _SPILL_WORK, _COUNT_WORK = 3.0, 1.1, 1.0
_PIECE_BYTES = 2**26  # bytes of the edges in flight, where these are written as they are read
_BASE_MEMORY_BYTES = 2**27  # bytes of the interpreter, NumPy, pyarrow and buffers
_SAMPLE_BYTES, _SAMPLE_ROWS = 2**20, 2**14
# Bytes of a store without its arrays, and of the metadata of an array. Estimates are within this
# factor, in which a disk that has less room than estimated may have enough.
_FIXED_BYTES, _METADATA_BYTES, _TOLERANCE = 8_300, 1_020, 1.25
_TEXT_ITEM_BYTES = 4  # bytes of a number from text: float32
_OF_MATRIX = ("data", "format", "shape", "row", "col")
_EDGE_LISTS = ("edge", "edges", "edge_index")  # other names that begin with "edge": attributes


class EdgeTable(NamedTuple):
    """The edges of a type."""

    num_nodes: int  # which they may lead to
    num_edges: int  # of the input
    attribute_bytes: tuple[int, ...]  # of one edge, by attribute
    are_sorted: bool = False  # whether the positions of edges in the input are not stored


class NodeTable(NamedTuple):
    """The rows of a node attribute that lie in pages."""

    num_rows: int
    row_items: int
    item_bytes: int
    name: str = "x"
    node_type: str = NODE_TYPE


@dataclass
class Workload:
    """The amount of data that a conversion reads, as far as known."""

    num_nodes: int = 0  # nodes of the input; 0 if unknown
    num_edges: int = 0  # edges of the input
    edge_row_bytes: int = 0  # attributes of one edge
    text_bytes: int = 0  # bytes of text to read, after decompression
    is_exact: bool = True  # whether all sizes are from headers
    are_sorted: bool = False  # whether edges are written as they are read
    node_tables: tuple[NodeTable, ...] = ()  # node attributes of wide rows
    # Number of nodes and of edges, and bytes of each attribute, by edge type. Empty for one type,
    # which the fields above describe.
    edge_types: tuple[EdgeTable, ...] = field(default=(), compare=False)
    more_bytes: int = field(default=0, compare=False)  # what lies compressed, and ids of nodes
    node_counts: Mapping[str, int] = field(default_factory=dict, compare=False)  # of several types

    def add_nodes(self, source: ArraySource, name: str = "x", node_type: str = NODE_TYPE) -> None:
        """Add an array of node attributes [N, ...]."""
        if source.shape and source.shape[0]:
            self.num_nodes = max(self.num_nodes, source.shape[0])
            if row_bytes(source) <= MAX_COMPRESSED_ROW_BYTES:
                self.add_map(source)
            if row_bytes(source) > MAX_COMPRESSED_ROW_BYTES:
                size = math.prod(source.shape[1:])
                width = source.dtype.itemsize
                self.node_tables += (NodeTable(source.shape[0], size, width, name, node_type),)

    def add_map(self, source: ArraySource) -> None:
        """Add an array that lies compressed."""
        self.more_bytes += _METADATA_BYTES + _compressed_bytes(source)


@dataclass(frozen=True)
class Estimate:
    """The expected cost of a conversion."""

    final_bytes: int  # the finished store
    least_bytes: int  # a lower bound of the store, for the check of space
    spill_bytes: int  # temporary files while edges are sorted that memory cannot hold
    memory_bytes: int  # peak memory
    seconds: float
    basis: str  # the source of the numbers
    is_bound: bool = False  # whether the store may be much smaller, which is not known

    def __str__(self) -> str:
        most = "at most " if self.is_bound else ""
        spilled = f"{format_size(self.spill_bytes)} of temporary space, "
        return (
            f"expected: {most}{format_size(self.final_bytes)} in the store, "
            f"{spilled if self.spill_bytes else 'no temporary space, '}"
            f"up to {format_size(self.memory_bytes - _BASE_MEMORY_BYTES)} of memory and "
            f"{format_size(_BASE_MEMORY_BYTES)} for the program itself, "
            f"{'about ' if self.seconds >= 1 else 'at most '}"
            f"{format_duration(max(1.0, self.seconds))} ({self.basis})"
        )


def estimate(
    workload: Workload,
    rules: EdgeRules,
    memory_bytes: int,
    options: ConvertOptions = ConvertOptions(),  # noqa: B008 - frozen
) -> Estimate:
    """Estimate the cost of a conversion with some memory for edges."""
    num_nodes, num_edges = workload.num_nodes, workload.num_edges
    num_edges *= 2 if options.add_inverse_edge else 1
    total = num_edges * rules.copies + (num_nodes if rules.self_loops == "add" else 0)
    id_bytes = id_dtype(num_nodes).itemsize
    fixed, least = workload.more_bytes + _FIXED_BYTES, 8 * (num_nodes + 1)
    counts = workload.node_counts or {NODE_TYPE: num_nodes}
    fixed += sum(_split_bytes(options.fractions_of(name), n) for name, n in counts.items())
    for num_rows, row_items, item_bytes, name, node_type in workload.node_tables:
        if not row_items:
            continue
        cast = options.feature_dtype_of(node_type, name)
        sizes = [
            PageGeometry.for_rows(row_items * size, num_rows, options.page_bytes).body_bytes(
                num_rows
            )
            for size in (STORAGE_DTYPES[cast].itemsize if cast else item_bytes, item_bytes)
        ]
        fixed, least = fixed + sizes[0] + _METADATA_BYTES, least + min(sizes)
    of_edges = (workload.edge_row_bytes,) if workload.edge_row_bytes else ()
    times = 2 if options.add_inverse_edge else 1
    edge_types = workload.edge_types or (EdgeTable(num_nodes, num_edges // times, of_edges),)
    final = fixed + sum(
        _edge_bytes(
            own._replace(num_edges=times * own.num_edges, are_sorted=own.are_sorted and times == 1),
            rules,
            options.page_bytes,
            id_bytes,
        )
        for own in edge_types
    )
    # Equal edges and self-loops may be almost all; ids are left out where they are 0, 1, 2, ...
    is_bound = rules.undirected or rules.self_loops == "drop"
    if not is_bound:
        least += num_edges * (id_bytes + workload.edge_row_bytes)
    least = least if workload.is_exact else 0
    if not is_bound:
        least = max(least, round(final / _TOLERANCE))
    peak = estimate_peak_bytes(rules, num_edges, num_nodes, workload.edge_row_bytes)
    spill, work = 0, _EDGE_WORK
    if workload.are_sorted:
        peak, work = min(peak, _PIECE_BYTES), 1.0
    elif peak > memory_bytes:
        spill = num_edges * spill_bytes_per_edge(
            rules, record_bytes_for(num_nodes - 1), workload.edge_row_bytes
        )
        is_counted = rules.undirected or rules.self_loops == "add"
        work *= _SPILL_WORK + (_COUNT_WORK if is_counted else 0)
    said = "roughly" if not workload.text_bytes else "guessed from the beginning of each file"
    return Estimate(
        final_bytes=final,
        least_bytes=least,
        spill_bytes=spill,
        memory_bytes=min(peak, memory_bytes) + _BASE_MEMORY_BYTES,
        seconds=total / _EDGES * work
        + (final + 2 * spill) / _WRITTEN
        + workload.text_bytes / _TEXT,
        basis=f"sizes {'as the input states them' if workload.is_exact else said}, time at the "
        "rates of an ordinary laptop",
        is_bound=is_bound,
    )


def _edge_bytes(own: EdgeTable, rules: EdgeRules, page_bytes: int | None, id_bytes: int) -> int:
    """Return the bytes of the edges of a type in a store."""
    total = own.num_edges * rules.copies + (own.num_nodes if rules.self_loops == "add" else 0)
    arrays = [(own.num_nodes + 1, 8), (total, id_bytes), *((total, n) for n in own.attribute_bytes)]
    if rules.keep_ids and not (own.are_sorted and rules == EdgeRules()):
        arrays.append((total, id_dtype(total).itemsize))
    return sum(
        _METADATA_BYTES + PageGeometry.for_rows(width, rows, page_bytes).body_bytes(rows)
        for rows, width in arrays
        if width
    )


def _split_bytes(fractions: Fractions | None, num_nodes: int) -> int:
    """Return about the bytes of the splits that are drawn of some nodes, by a sample."""
    drawn = np.random.default_rng(0).random(min(num_nodes, _SAMPLE_ROWS))
    ids = [np.flatnonzero(drawn < share) for share in fractions or () if share]
    sampled = (_compressed_bytes(MemoryArray("a split", own)) for own in ids)
    return sum(_METADATA_BYTES + round(size * num_nodes / max(1, len(drawn))) for size in sampled)


def _compressed_bytes(source: ArraySource) -> int:
    """Return about the bytes of an array that lies compressed, by its first rows."""
    with suppress(GnnstoreError, StopIteration):
        rows = next(source.rows(_SAMPLE_ROWS))
        share = len(zlib.compress(np.ascontiguousarray(rows).tobytes(), 3)) / max(1, rows.nbytes)
        return round(share * source.shape[0] * row_bytes(source))
    return 0


def inspect_inputs(paths: Iterable[Path]) -> Workload:
    """Return the work of converting some input files, or all files of directories."""
    work = Workload()
    for path in paths:
        for file in _files_of(path):
            try:
                if file.suffix in (".npy", ".npz"):
                    _inspect_arrays(file, work)
                else:
                    work.is_exact = False
                    _inspect_text(file, work)
            except (GnnstoreError, OSError, zlib.error):
                work.is_exact = False
    return work


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path] if path.is_file() else []
    with suppress(GnnstoreError):  # a directory without files
        return parts_of(path, Path.is_file, "", skipped=Skipped(path))
    return []


def _inspect_arrays(path: Path, work: Workload) -> None:
    arrays = {path.stem: open_npy(path)} if path.suffix == ".npy" else open_npz(path)
    for name, source in arrays.items():
        shape = source.shape
        if name in _EDGE_LISTS and source.dtype.kind in "iu" and len(shape) == 2 and 2 in shape:
            work.num_edges += shape[1] if shape[0] == 2 else shape[0]
        elif name in ("indptr", "indices") and len(shape) == 1:
            work.num_edges += shape[0] if name == "indices" else 0
            work.num_nodes = max(work.num_nodes, shape[0] - 1 if name == "indptr" else 0)
        elif name.startswith("edge") and shape:
            work.edge_row_bytes += row_bytes(source)
        elif row_bytes(source) > MAX_COMPRESSED_ROW_BYTES:
            work.add_nodes(source, name)
        elif name == "data" and "format" in arrays:  # of a matrix
            work.edge_row_bytes += row_bytes(source)
        elif len(shape) and name not in _OF_MATRIX:
            work.add_map(source)


def _inspect_text(path: Path, work: Workload) -> None:
    """Guess a table's size from its beginning; other files are rows of float32."""
    num_bytes = path.stat().st_size
    if path.suffix not in (".gz", ".csv", ".txt", ".tsv", ".edges"):
        num_rows = num_bytes // _TEXT_ITEM_BYTES
        work.node_tables += (NodeTable(num_rows, 1, _TEXT_ITEM_BYTES),)
        return
    with open_input(path) as file:
        head = file.read(_SAMPLE_BYTES)
    if head[:2] == b"\x1f\x8b":
        text = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, 16 * _SAMPLE_BYTES)
        num_bytes, head = round(num_bytes * len(text) / len(head)), text
    work.text_bytes += num_bytes
    lines = [line for line in head.splitlines()[:-1] or [head] if line[:1] not in b"#%"]
    if not lines:
        return
    num_rows = round(num_bytes * len(lines) / sum(len(line) + 1 for line in lines))
    num_fields = len(lines[0].replace(b",", b" ").split())
    if num_fields == 2:
        work.num_edges += num_rows
    elif num_fields > 1:
        work.num_nodes = max(work.num_nodes, num_rows)
        work.node_tables += (NodeTable(num_rows, num_fields, _TEXT_ITEM_BYTES),)


def text_workload(
    paths: Sequence[Path],
    form: TableFormat,
    num_nodes: int | None = None,
    tables: Iterable[ArraySource] = (),
) -> Workload:
    """Return the work of converting edges in text, with attributes of nodes.

    The edges of files behind the first become edge splits.
    """
    work = Workload(is_exact=False)
    for path in paths:
        with suppress(GnnstoreError, OSError, ValueError, zlib.error):
            if (sizes := guess_sizes(path, form, num_nodes)) is None:
                continue
            work.text_bytes += sizes.num_bytes
            if path == paths[0]:
                work.num_nodes, work.num_edges = sizes.num_nodes, sizes.num_edges
                work.edge_row_bytes = sum(sizes.attribute_bytes)
                own = (sizes.num_nodes, sizes.num_edges, sizes.attribute_bytes)
                work.edge_types = (EdgeTable(*own, sizes.are_sorted),)
                if sizes.map_bytes:
                    work.more_bytes += sizes.map_bytes + 2 * _METADATA_BYTES
                continue
            id_bytes = id_dtype(work.num_nodes).itemsize
            for width in (id_bytes, id_bytes, *sizes.attribute_bytes):
                body = PageGeometry.for_rows(width, sizes.num_edges).body_bytes(sizes.num_edges)
                work.more_bytes += _METADATA_BYTES + body
    for source in tables:
        work.add_nodes(source)
    return work


def announce(
    store: StoreWriter,
    options: ConvertOptions,
    rules: EdgeRules,
    workload: Workload | None,
    provenance: Mapping[str, Any],
) -> str:
    """Return the expected cost of a conversion, if it is known; refuse what has no room on disk."""
    if workload is None:
        if "inputs" not in provenance:
            return ""
        workload = inspect_inputs(Path(entry["path"]) for entry in provenance["inputs"])
    expected = estimate(workload, rules, options.memory_bytes or available_bytes(), options)
    require_space(
        store.path,
        expected.least_bytes - directory_bytes(store.temporary_path),
        f"write a store of at least {format_size(expected.least_bytes)}",
        "choose an output on another file system; nothing was left under the final name.",
    )
    return str(expected)
