"""Runs all layers one after the other: their tables, and the point where a run resumes.

While a layer runs on a block, the next is made in one thread, and the result for the block before
is written in another: a copy to the page cache, checksums, and the wait for each finished file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import affordable_threads
from gnnstore.disk.engines import open_engine
from gnnstore.errors import UsageError
from gnnstore.features.source import Decoding, RowSource
from gnnstore.features.tables import open_attribute, open_rows
from gnnstore.formats import NODE_TYPE, AttributeSpec, PagedArray, PagedArrayWriter, StoreWriter
from gnnstore.formats.arrays.zarr_metadata import shard_name
from gnnstore.formats.base.files import directory_bytes, free_bytes, require_space
from gnnstore.formats.base.names import node_array
from gnnstore.graph.store import GraphStore
from gnnstore.graph.table_registry import shared_tables
from gnnstore.graph.topology import IndexRows
from gnnstore.layerwise.blocks import LISTED_BYTES, BlockMaker, GraphReader
from gnnstore.layerwise.calls import DegreeNorm
from gnnstore.layerwise.layers import Layer
from gnnstore.layerwise.plan import (
    DTYPES,
    NODES,
    BlockLimits,
    GraphSize,
    plan_layers,
    rooms_of,
)
from gnnstore.layerwise.result import ARRAY_NAME
from gnnstore.layerwise.rows import KeptRows, TableReader, reading_bytes
from gnnstore.progress import Phase, Progress
from gnnstore.threads import Workers, ordered_map, prefetch

# Least bytes of a shard: finished rows are journalled by shards, and a resumed run repeats no more
# than one.
_LEAST_SHARD_BYTES = 64 << 20
_MAX_SHARDS = 64
# Share of a budget for the buffers of reads.
_STAGING_SHARE = 16
_READERS = 4
_WRITER_BYTES = 8 << 20
_PIECE_BYTES = 96  # bytes for each edge of a piece while it is numbered
# Memory for each node while out-degrees are counted and compared.
_COUNT_BYTES = 4 + 8 + 1
_SUMMARY = (
    "{name}: {num_blocks} blocks in {seconds:.1f} s, {seconds_running:.1f} s of them in the layer; "
    "read {bytes_read:,} bytes, wrote {bytes_written:,} ({bytes_packed:,} packed)"
)


def _piece(memory_bytes: int) -> int:
    """Return the edges or targets of a piece of the graph: a small share of a small budget."""
    return min(max(memory_bytes // 2048, 1 << 10), 1 << 18)


def _part_bytes(memory_bytes: int) -> int:
    """Return the bytes of rows that each thread reads at a time."""
    return min(max(memory_bytes // 128, 1 << 16), 16 << 20)


@dataclass(eq=False)
class InferenceRun:
    """An inference over all layers: planned and checked when it is made, and run by `execute`."""

    store: GraphStore
    layers: tuple[Layer, ...]
    input_spec: AttributeSpec  # node attribute that the first layer takes
    # Edge attributes by the argument of the layers that take them.
    edge_specs: Mapping[str, AttributeSpec]
    dtype: str | None  # the type in which rows are written
    device: torch.device
    memory_bytes: int
    asked_shard_bytes: int | None
    progress: Progress

    def __post_init__(self) -> None:
        reader, edge = self.store.reader, self.store.schema.edge
        self.plans = plan_layers(
            self.layers, self.input_spec, self.edge_specs, dtype=self.dtype, device=self.device
        )
        path = reader.paged(edge.indptr).file_paths[0]
        self._engine = shared_tables(self.store).engine(path, None)
        self._num_nodes, self._num_edges = self.store.num_nodes, self.store.num_edges
        self._tables = [plan.disk_bytes(self._num_nodes) for plan in self.plans]
        self._num_sources = -1  # nodes with edges, once they are counted
        # The memory for blocks of each layer that is to run, and bits of the nodes that it keeps.
        self._places: dict[int, tuple[BlockLimits, npt.NDArray[np.uint8]]] = {}

    @property
    def result_bytes(self) -> int:
        """Bytes of the last layer's rows."""
        return self._num_nodes * self.plans[-1].row_bytes

    @property
    def shard_bytes(self) -> int:
        """Size of the files that rows are written to; more if there would be many."""
        if self.asked_shard_bytes is not None:
            return self.asked_shard_bytes
        return max(_LEAST_SHARD_BYTES, max(self._tables) // _MAX_SHARDS)

    def compare(self) -> None:
        """Compare the checksums of the store's files that the layers read."""
        edge = self.store.schema.edge
        scaled = self.input_spec.scaled
        specs = [edge.indptr, edge.indices, self.input_spec, *self.edge_specs.values()]
        specs += [] if scaled is None else [scaled.scales]
        with self.progress.phase("compare checksums"):
            self.store.reader.check_arrays(*(spec.path for spec in specs))

    def check_disk(self, directory: Path, present: Path | None, copy_bytes: int) -> None:
        """Check that the disk has room for all layers, before hours of work."""
        # Rows of blocks are packed in groups; with less room, groups are smaller, and more passes.
        packed = [plan.packed_bytes for plan in self.plans if plan.call.needs_edges]
        room = min(self.memory_bytes, self._num_nodes * max(packed, default=0))
        needed = max(map(sum, pairwise([0, *self._tables]))) + room
        require_space(
            directory,
            max(needed, self._tables[-1] + copy_bytes)
            - (0 if present is None else directory_bytes(present)),
            "write the rows of all nodes, after one layer and the next, and pack rows of blocks",
            "choose an output on another file system",
            "write narrower rows (dtype='float16')",
        )

    def execute(self, writer: StoreWriter) -> AttributeSpec:
        """Run all layers that are not finished."""
        last = len(self.plans) - 1
        spills = writer.journal.spill_directory
        spills.mkdir(exist_ok=True)
        with Workers(self._readers_in(self.memory_bytes)) as workers:
            graph = self._open_graph(workers)
            first, source, decoding = self._find_start(writer)
            self._divide_memory(graph, first)
            scale: Tensor | None = None
            norm: DegreeNorm | None = None
            for number, plan in enumerate(self.plans[first:], first):
                if plan.call.norm != norm:
                    norm = plan.call.norm
                    scale = None if norm is None else self._degree_scale(graph, norm, number)
                part_bytes = _part_bytes(self.memory_bytes)
                name = plan.call.layer.name
                with (
                    self._begin(writer, number) as rows,
                    self.progress.phase(f"{name} of {last + 1}", self._num_nodes, "nodes") as phase,
                ):
                    maker = BlockMaker(
                        graph,
                        TableReader(source, plan, part_bytes, workers, decoding),
                        self._places[number][0],
                        self._kept(number),
                        scale=scale,
                        directory=spills,
                        disk_bytes=partial(_room_next_to, rows, spills),
                    )
                    facts = {"name": name, "form": plan.call.form, **run_pass(maker, rows, phase)}
                    del maker
                _core.release_memory()
                self.progress.note(_SUMMARY.format_map(facts), facts)
                source, decoding = self._opened(rows, self._directory(writer, number)), None
                if number:
                    _core.remove_tree(self._directory(writer, number - 1))
        del source
        if first > last:  # only the commit was missing
            with self._begin(writer, last) as rows:
                rows.skip(self._num_nodes)
        for number in range(last):
            _core.remove_tree(self._directory(writer, number))
        return self._spec(last)

    # ---- sizes

    def _open_graph(self, workers: Workers) -> GraphReader:
        paged, edge = self.store.reader.paged, self.store.schema.edge
        return GraphReader(
            IndexRows.open(paged(edge.indptr), self._engine),
            IndexRows.open(paged(edge.indices), self._engine) if self._num_edges else None,
            {
                name: open_attribute(self.store.reader, spec, self._engine)
                for name, spec in self.edge_specs.items()
            },
            str(self.store.path),
            piece=_piece(self.memory_bytes),
            workers=workers,
        )

    def _divide_memory(self, graph: GraphReader, first: int) -> None:
        """Divide the memory of each layer that is to run, and choose the rows that it keeps."""
        size = GraphSize(self._num_nodes, self._num_edges, graph.find_hub())
        rooms = rooms_of(
            self.plans,
            self.memory_bytes,
            lambda limit: Ledger(limit, self._reservations(limit)),
            size,
        )
        layers = [*enumerate(zip(self.plans, rooms, strict=True))][first:]
        counts = None
        if self._num_edges and any(
            plan.call.sums
            and room > _COUNT_BYTES * self._num_nodes
            and not plan.takes_whole(room, size)
            for _, (plan, room) in layers
        ):
            with self.progress.phase("out-degrees", self._num_nodes, "nodes") as phase:
                counts = graph.count_sources(phase.advance)
                self._num_sources = int(np.count_nonzero(counts))
        for number, (plan, room) in layers:
            limits, kept = plan.divide(room, size, counts)
            is_kept = np.zeros(self._num_nodes, np.bool_)
            is_kept[kept] = True
            self._places[number] = limits, np.packbits(is_kept)

    def _degree_scale(self, graph: GraphReader, norm: DegreeNorm, number: int) -> Tensor:
        name = f"degrees for {self.plans[number].call.layer.name}"
        with self.progress.phase(name, self._num_nodes, "nodes") as phase:
            return graph.degree_scale(norm, self._scale_dtype, phase.advance)

    @property
    def _scale_dtype(self) -> torch.dtype:
        """The type of degrees: the rows', if any layer computes with 8 bytes."""
        is_wide = any(plan.call.kind.dtype == torch.float64 for plan in self.plans)
        return torch.float64 if is_wide else torch.float32

    def _reservations(self, memory_bytes: int) -> tuple[Reservation, ...]:
        """Return the memory of a budget that is not for blocks and kept rows."""
        part_bytes, readers = _part_bytes(memory_bytes), self._readers_in(memory_bytes)
        parts = max(reading_bytes(plan, part_bytes, readers) for plan in self.plans)
        has_norm = any(plan.call.norm is not None for plan in self.plans)
        scale_bytes = self._scale_dtype.itemsize * self._num_nodes * has_norm
        # The set of a block's nodes; the set of kept rows, with ranks; sets that layers keep.
        num_sets = 2 + 1.5 + 2 + len(self.plans)
        per_node = int(num_sets * self._num_nodes // 8) + scale_bytes
        pieces = _PIECE_BYTES * _piece(memory_bytes) + 8 * 8 * LISTED_BYTES * 2
        return (
            Reservation("sets and degrees of nodes", per_node),
            Reservation("buffers for reading", readers * self._engine.staging_bytes),
            Reservation("parts of the table", parts),
            Reservation("pieces of the graph", pieces),
            Reservation("rows that are written", _WRITER_BYTES),
        )

    def _readers_in(self, memory_bytes: int) -> int:
        """Return the number of threads that read, with buffers within a share of a budget."""
        each, readers = self._engine.staging_bytes, min(_READERS, len(os.sched_getaffinity(0)))
        return affordable_threads(memory_bytes, each, readers, share=_STAGING_SHARE)

    def _kept(self, number: int) -> KeptRows | None:
        """Return room for the rows that a layer keeps, and refers to where they are."""
        plan, (limits, bits) = self.plans[number], self._places[number]
        if not plan.call.sums:
            return None
        nodes = np.flatnonzero(np.unpackbits(bits, count=self._num_nodes))
        most = min(limits.most(NODES, stages=2), self._num_nodes)
        is_all = len(nodes) == self._num_sources
        return KeptRows(nodes, self._num_nodes, plan, most, is_all=is_all)

    # ---- tables

    def _spec(self, number: int) -> AttributeSpec:
        """Return the array of a layer's results."""
        plan = self.plans[number]
        is_last = number == len(self.plans) - 1
        path = node_array(NODE_TYPE, ARRAY_NAME) if is_last else f"nodes/layer-{number + 1}"
        shape = (self._num_nodes, plan.width)
        return AttributeSpec(ARRAY_NAME, path, "paged", plan.dtype, shape)

    def _directory(self, writer: StoreWriter, number: int) -> Path:
        return writer.temporary_path / self._spec(number).path

    def _begin(self, writer: StoreWriter, number: int) -> PagedArrayWriter:
        """Return the writer of a layer's results, which appends to those written before."""
        spec = self._spec(number)
        if number < len(self.plans) - 1:
            self._directory(writer, number).mkdir(parents=True, exist_ok=True)
            return self._writer(writer, number)
        return writer.paged(
            spec.path,
            name=spec.name,
            row_shape=spec.shape[1:],
            dtype=spec.dtype,
            num_rows=spec.num_rows,
        )

    def _writer(self, writer: StoreWriter, number: int) -> PagedArrayWriter:
        return PagedArrayWriter(
            self._directory(writer, number),
            self._spec(number),
            writer.page_bytes,
            writer.shard_bytes,
            writer.journal,
        )

    def _find_start(self, writer: StoreWriter) -> tuple[int, RowSource, Decoding | None]:
        """Return the first unfinished layer, its input, and how that is decoded."""
        for number in reversed(range(len(self.plans))):
            rows = self._writer(writer, number)
            if self._num_nodes and rows.num_committed_rows == self._num_nodes:
                return number + 1, self._opened(rows, self._directory(writer, number)), None
        decoding = Decoding.from_attribute(self.input_spec, self.store.column_scales)
        return 0, open_attribute(self.store.reader, self.input_spec, self._engine), decoding

    def _opened(self, rows: PagedArrayWriter, directory: Path) -> RowSource:
        """Open the rows that a layer has written, as the input of the next."""
        names = [shard_name(shard, 1) for shard in range(rows.layout.num_shards)]
        array = PagedArray(rows.spec, rows.layout, tuple(directory / name for name in names))
        if not names:
            return open_rows(array, "memory")
        # Their file system may differ from the store's.
        return open_rows(array, open_engine(array.file_paths[0]))


def check_input(store: GraphStore, name: str) -> AttributeSpec:
    """Return the node attribute that the first layer takes."""
    spec = store.node_attribute(name).spec
    if spec.scaled is None:  # also where it is shown as int8
        spec = store.stored_schema.node.attributes[spec.name]
    if len(spec.shape) != 2:
        raise UsageError(
            f"input={name!r}: layers take rows [N, F], but the attribute has the shape "
            f"{list(spec.shape)}"
        )
    return spec


def _room_next_to(rows: PagedArrayWriter, directory: Path) -> int:
    """Return the free bytes that what is still to be written of a table leaves."""
    return max(0, free_bytes(directory) - rows.remaining_bytes)


def run_pass(maker: BlockMaker, writer: PagedArrayWriter, phase: Phase) -> dict[str, Any]:
    """Run a layer on the rows that are not written; return counts and times."""
    start, plan, table, graph = perf_counter(), maker.table.plan, maker.table, maker.graph
    done = writer.skip(writer.num_committed_rows)
    phase.advance(done)
    before = table.counts.bytes_read + graph.bytes_read, writer.remaining_bytes
    ran, num_blocks = 0.0, 0
    num_ahead = 1 if maker.limits.is_ahead else 0
    blocks = prefetch(
        maker.blocks(done),
        num_ahead=num_ahead,
        describe="while making block {}".format,
        stop=maker.stop.set,
    )

    def run_next() -> Tensor:
        nonlocal done, ran, num_blocks
        first, block, others = next(blocks)
        began = perf_counter()
        whole = maker.complete(block, others).to(plan.call.kind.device)
        last = first + whole.num_targets
        rows = plan.call.run(whole, DTYPES[plan.dtype], f"nodes {first} to {last - 1}")
        ran += perf_counter() - began
        done = last
        num_blocks += 1
        del block, others, whole  # frees it before another block is begun
        _core.release_heap()
        return rows

    def results() -> Iterator[Tensor]:
        while done < writer.spec.num_rows:
            yield run_next()

    def write(rows: Tensor) -> int:
        # A store has bfloat16 as its bits.
        is_half = rows.dtype == torch.bfloat16
        writer.append(rows.view(torch.int16).numpy().view(np.uint16) if is_half else rows.numpy())
        return len(rows)

    written = ordered_map(
        write,
        results(),
        num_threads=1,  # rows and lines of the journal keep their order
        lookahead=lambda: num_ahead + 1,
        describe="while writing the rows of block {}".format,
    )
    with closing(blocks), closing(written):
        for num_rows in written:
            phase.advance(num_rows)
    return {
        # Rows of the layer's input; one that is kept or packed counts again.
        "rows_read": table.counts.rows_read,
        "bytes_read": maker.bytes_unpacked + table.counts.bytes_read + graph.bytes_read - before[0],
        "bytes_written": maker.bytes_packed + before[1] - writer.remaining_bytes,
        "bytes_packed": maker.bytes_packed,  # of rows that are removed again
        "num_blocks": num_blocks,
        "seconds": perf_counter() - start,
        "seconds_running": ran,  # in the layer
    }
