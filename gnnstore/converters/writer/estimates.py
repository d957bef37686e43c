"""Estimates the cost of a conversion before it starts, by the sizes of its inputs.

Headers of binary files state sizes exactly. Of text only the first megabyte is read, and taken as
typical of the rest. Of a file that is not understood the converter reports the errors.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gnnstore.budget.limits import available_bytes
from gnnstore.converters.edges.columns import EdgeRules, estimate_peak_bytes
from gnnstore.converters.edges.runs import record_bytes_for, spill_bytes_per_edge
from gnnstore.converters.inputs.files import open_npy, open_npz
from gnnstore.converters.inputs.opening import open_input
from gnnstore.converters.inputs.parts import Skipped, parts_of
from gnnstore.converters.inputs.source import ArraySource, row_bytes
from gnnstore.converters.writer.node_arrays import MAX_COMPRESSED_ROW_BYTES
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import GnnstoreError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES, id_dtype
from gnnstore.formats.arrays.pages import PageGeometry
from gnnstore.formats.container.files import directory_bytes, require_space
from gnnstore.formats.store.store import StoreWriter
from gnnstore.units import format_duration, format_size

# Rates of an ordinary laptop, for each second: edges sorted into columns, bytes written and
# synchronised, bytes of text parsed.
_EDGES, _WRITTEN, _TEXT = 20e6, 500e6, 150e6
# Times of sorting: of a conversion, of sorting on disk too, and of merging runs once more to count
# what is left of equal edges and missing loops.
_EDGE_WORK, _SPILL_WORK, _COUNT_WORK = 3.0, 1.1, 1.0
_BASE_MEMORY_BYTES = 2**27  # the interpreter, NumPy, pyarrow and buffers
_SAMPLE_BYTES = 2**20
_TEXT_ITEM_BYTES = 4  # numbers in text become float32
_EDGE_LISTS = ("edge", "edges", "edge_index")  # other names that begin with "edge": attributes


class NodeTable(NamedTuple):
    """The rows of a node attribute that lie in pages."""

    num_rows: int
    row_items: int
    item_bytes: int


@dataclass
class Workload:
    """The amount of data that a conversion reads, as far as known."""

    num_nodes: int = 0  # nodes of the input; 0 if unknown
    num_edges: int = 0  # edges of the input
    edge_row_bytes: int = 0  # attributes of one edge
    text_bytes: int = 0  # bytes of text to read, after decompression
    is_exact: bool = True  # whether all sizes are from headers
    node_tables: tuple[NodeTable, ...] = ()  # node attributes of wide rows

    def add_nodes(self, source: ArraySource) -> None:
        """Add an array of node attributes [N, ...]."""
        if source.shape and source.shape[0]:
            self.num_nodes = max(self.num_nodes, source.shape[0])
            if row_bytes(source) > MAX_COMPRESSED_ROW_BYTES:
                size = math.prod(source.shape[1:])
                self.node_tables += (NodeTable(source.shape[0], size, source.dtype.itemsize),)


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
    cast = options.feature_dtype
    num_nodes, num_edges = workload.num_nodes, workload.num_edges
    num_edges *= 2 if options.add_inverse_edge else 1
    total = num_edges * rules.copies + (num_nodes if rules.self_loops == "add" else 0)
    id_bytes = id_dtype(num_nodes).itemsize
    fixed = least = 8 * (num_nodes + 1)
    for num_rows, row_items, item_bytes in workload.node_tables:
        if not row_items:
            continue
        sizes = [
            PageGeometry.of(row_items * size, num_rows, options.page_bytes).body_bytes(num_rows)
            for size in (STORAGE_DTYPES[cast].itemsize if cast else item_bytes, item_bytes)
        ]
        fixed, least = fixed + sizes[0], least + min(sizes)
    id_of_edge = id_dtype(total).itemsize if rules.keep_ids else 0
    final = fixed + total * (id_bytes + workload.edge_row_bytes + id_of_edge)
    # Equal edges and self-loops may be almost all; ids are left out where they are 0, 1, 2, ...
    if not rules.undirected and rules.self_loops != "drop":
        least += num_edges * (id_bytes + workload.edge_row_bytes)
    peak = estimate_peak_bytes(rules, num_edges, num_nodes, workload.edge_row_bytes)
    spill, work = 0, _EDGE_WORK
    if peak > memory_bytes:
        spill = num_edges * spill_bytes_per_edge(
            rules, record_bytes_for(num_nodes - 1), workload.edge_row_bytes
        )
        counts = rules.undirected or rules.self_loops == "add"
        work *= _SPILL_WORK + (_COUNT_WORK if counts else 0)
    said = "roughly" if not workload.text_bytes else "guessed from the beginning of each file"
    return Estimate(
        final_bytes=final,
        least_bytes=least if workload.is_exact else 0,
        spill_bytes=spill,
        memory_bytes=min(peak, memory_bytes) + _BASE_MEMORY_BYTES,
        seconds=total / _EDGES * work
        + (final + 2 * spill) / _WRITTEN
        + workload.text_bytes / _TEXT,
        basis=f"sizes {'as the input states them' if workload.is_exact else said}, time at the "
        "rates of an ordinary laptop",
    )


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
            work.add_nodes(source)


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
    if num_fields == 2 and "feat" not in path.name:
        work.num_edges += num_rows
    elif path.name.startswith("edge"):
        work.edge_row_bytes += num_fields * _TEXT_ITEM_BYTES
    elif num_fields > 1:
        work.num_nodes = max(work.num_nodes, num_rows)
        work.node_tables += (NodeTable(num_rows, num_fields, _TEXT_ITEM_BYTES),)


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
