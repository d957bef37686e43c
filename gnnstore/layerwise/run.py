"""Runs all layers one after the other: their tables, and the point where a run resumes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import affordable_threads
from gnnstore.disk.engines import open_engine
from gnnstore.errors import UsageError
from gnnstore.features.source import RowSource
from gnnstore.features.tables import open_attribute, open_rows
from gnnstore.formats import NODE_TYPE, AttributeSpec, PagedArray, PagedArrayWriter, StoreWriter
from gnnstore.formats.arrays.zarr_metadata import shard_name
from gnnstore.formats.container.files import directory_bytes, free_bytes, require_space
from gnnstore.formats.container.names import node_array
from gnnstore.graph.arrays import as_tensor
from gnnstore.graph.indices import IndexRows
from gnnstore.graph.shared import shared_tables
from gnnstore.graph.store import GraphStore
from gnnstore.layerwise.blocks import BlockMaker
from gnnstore.layerwise.graph import GraphReader, Pieces
from gnnstore.layerwise.memory import NODES
from gnnstore.layerwise.models.block import DegreeNorm
from gnnstore.layerwise.models.layers import Layer
from gnnstore.layerwise.packing import BlockPacker
from gnnstore.layerwise.passes import degree_scale, run_pass, summary
from gnnstore.layerwise.placement import OutDegrees, Placement, Placer
from gnnstore.layerwise.plan import GraphSize, plan_layers, rooms_of
from gnnstore.layerwise.result import ARRAY_NAME
from gnnstore.layerwise.rows import KeptRows, RowReader, part_memory
from gnnstore.progress import Progress
from gnnstore.threads import Workers

# Finished rows are journalled by shards: a resumed run repeats no more than one.
_LEAST_SHARD_BYTES = 64 << 20
_MAX_SHARDS = 64
# Share of a budget for the buffers of reads.
_STAGING_SHARE = 16
_WRITER_BYTES = 8 << 20
# Memory for each node while out-degrees are counted and compared.
_COUNT_BYTES = 4 + 8 + 1


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
    num_threads: int
    io_engine: str | None
    asked_shard_bytes: int | None
    progress: Progress

    def __post_init__(self) -> None:
        reader, edge = self.store.reader, self.store.schema.edge
        self.plans = plan_layers(
            self.layers,
            self.input_spec,
            self.edge_specs,
            id_bytes=reader.paged(edge.indices).dtype.itemsize,
            dtype=self.dtype,
            device=self.device,
        )
        path = reader.paged(edge.indptr).file_paths[0]
        self._engine = shared_tables(self.store).engine(path, self.io_engine)
        self._pieces = Pieces.of(self.memory_bytes)
        self._num_nodes, self._num_edges = self.store.num_nodes, self.store.num_edges
        self._tables = [plan.disk_bytes(self._num_nodes) for plan in self.plans]
        self._places: list[Placement] = []
        self._chosen: dict[int, npt.NDArray[np.uint8]] = {}  # bits of the nodes that layers keep

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

    def check_disk(self, directory: Path, present: Path | None, copy_bytes: int) -> None:
        """Check that the disk has room for all layers, before hours of work."""
        needed = max(map(sum, pairwise([0, *self._tables])))
        require_space(
            directory,
            max(needed, self._tables[-1] + copy_bytes)
            - (0 if present is None else directory_bytes(present)),
            "write the rows of all nodes, after one layer and the next",
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
            first, source, factors = self._find_start(writer)
            self._place(graph, first)
            scale: Tensor | None = None
            norm: DegreeNorm | None = None
            graph_bytes = 0
            for number, plan in enumerate(self.plans[first:], first):
                if plan.call.norm != norm:
                    norm = plan.call.norm
                    scale = None if norm is None else self._degree_scale(graph, norm, number)
                reader = RowReader(source, plan, self._pieces.part_bytes, workers, factors)
                name = plan.call.layer.name
                kept = self._kept(number)
                place = self._places[number]
                packer = BlockPacker(
                    reader,
                    spills,
                    kept=kept if place.num_kept else None,
                    needs_rows=not place.keeps_all and source.file_rows is not None,
                    limits=place.limits,
                    disk_bytes=partial(self._free_bytes, number, spills),
                )
                with (
                    self._begin(writer, number) as rows,
                    closing(packer),
                    self.progress.phase(f"{name} of {last + 1}", self._num_nodes, "nodes") as phase,
                ):
                    maker = BlockMaker(graph, reader, place.limits, packer, kept=kept, scale=scale)
                    written, times = run_pass(plan, maker, rows, phase)
                packed = packer.bytes_written
                read = reader.counts.bytes_read + packer.bytes_read
                facts = {
                    "name": name,
                    "form": plan.call.form,
                    # Of the layer's input; one that k blocks need counts k times.
                    "rows_read": reader.counts.rows_read,
                    "bytes_read": read + graph.bytes_read - graph_bytes,
                    "bytes_written": written + packed,
                    "bytes_packed": packed,  # of rows that are removed again
                    **times,
                }
                graph_bytes = graph.bytes_read
                del kept, maker, packer, reader
                _core.release_memory()
                self.progress.note(summary(facts), facts)
                source, factors = self._opened(rows, self._directory(writer, number)), None
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
            pieces=self._pieces,
            workers=workers,
        )

    def _place(self, graph: GraphReader, first: int) -> None:
        """Divide the memory of each layer that is to run, and choose the rows that it keeps."""
        size = GraphSize(self._num_nodes, self._num_edges, graph.find_hub())
        rooms = rooms_of(
            self.plans,
            self.memory_bytes,
            lambda limit: Ledger(limit, self._reservations(limit)),
            size,
        )
        # Out-degrees are counted if there is room, and a layer of more than one block.
        whole = (self._num_edges, self._num_nodes, self._num_nodes)
        degrees = None
        if self._num_edges and any(
            plan.call.needs_edges
            and room > _COUNT_BYTES * self._num_nodes
            and not plan.limits(room, size).admits(whole)
            for plan, room in zip(self.plans[first:], rooms[first:], strict=True)
        ):
            with self.progress.phase("out-degrees", self._num_nodes, "nodes") as phase:
                counts = graph.count_sources(phase.advance)
            degrees = OutDegrees.of(counts)
        placer = Placer(size, degrees, self._engine.tuning.gap_bytes)
        self._places = list(map(placer.place, self.plans, rooms))
        for number, place in enumerate(self._places):
            if degrees is not None and place.num_kept:
                self._chosen[number] = np.packbits(degrees.largest(place.num_kept))

    def _degree_scale(self, graph: GraphReader, norm: DegreeNorm, number: int) -> Tensor:
        name = f"degrees for {self.plans[number].call.layer.name}"
        with self.progress.phase(name, self._num_nodes, "nodes") as phase:
            return degree_scale(graph, norm, self._scale_dtype, phase.advance)

    @property
    def _scale_dtype(self) -> torch.dtype:
        """The type of degrees: that of the rows, if any layer computes with 8 bytes."""
        is_wide = any(plan.kind.dtype == torch.float64 for plan in self.plans)
        return torch.float64 if is_wide else torch.float32

    def _reservations(self, memory_bytes: int) -> tuple[Reservation, ...]:
        """Return the memory of a budget that is not for blocks and kept rows."""
        pieces = Pieces.of(memory_bytes)
        parts = [part_memory(plan, pieces.part_bytes) for plan in self.plans]
        order, in_pass = (max(sizes) for sizes in zip(*parts, strict=True))
        staging = self._readers_in(memory_bytes) * (self._engine.staging_bytes + order)
        has_norm = any(plan.call.norm is not None for plan in self.plans)
        scale_bytes = self._scale_dtype.itemsize * self._num_nodes * has_norm
        # The set of a block's nodes; those of two layers' kept rows, with ranks.
        num_sets = 1 + 2 * 1.5 + 2 + len(self.plans)
        per_node = int(num_sets * self._num_nodes // 8) + scale_bytes
        return (
            Reservation("sets and degrees of nodes", per_node),
            Reservation("buffers for reading", staging),
            Reservation("parts of the table", in_pass),
            Reservation("rows for the next layer", 3 * pieces.part_bytes),
            Reservation("pieces of the graph", pieces.num_bytes),
            Reservation("rows that are written", _WRITER_BYTES),
        )

    def _readers_in(self, memory_bytes: int) -> int:
        """Return the number of threads that read, with buffers within a share of a budget."""
        each = self._engine.staging_bytes
        return affordable_threads(memory_bytes, each, self.num_threads, share=_STAGING_SHARE)

    # ---- rows that are kept and packed

    def _kept(self, number: int) -> KeptRows | None:
        """Return room for the rows that a layer keeps, or refers to where they are."""
        plan, place = self.plans[number], self._places[number]
        if not (place.num_kept or plan.call.projection):
            return None
        chosen = self._chosen.get(number, np.empty(0, np.uint8))
        nodes = np.flatnonzero(np.unpackbits(chosen, count=self._num_nodes if len(chosen) else 0))
        most = min(place.limits.most(NODES, stages=2), self._num_nodes) if plan.call.sums else 0
        return KeptRows(nodes, self._num_nodes, plan, most)

    def _free_bytes(self, number: int, directory: Path) -> int:
        """Return the space that a layer may use besides its results and those of the next."""
        return max(0, free_bytes(directory) - 2 * self._tables[number])

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

    def _find_start(self, writer: StoreWriter) -> tuple[int, RowSource, Tensor | None]:
        """Return the first unfinished layer, its input, and factors of the input's columns."""
        for number in reversed(range(len(self.plans))):
            rows = self._writer(writer, number)
            if self._num_nodes and rows.num_committed_rows == self._num_nodes:
                return number + 1, self._opened(rows, self._directory(writer, number)), None
        scales = self.store.schema.scales_of(self.input_spec)
        factors = (
            None if scales is None else as_tensor(self.store.reader.read(scales), scales.dtype)
        )
        return 0, open_attribute(self.store.reader, self.input_spec, self._engine), factors

    def _opened(self, rows: PagedArrayWriter, directory: Path) -> RowSource:
        """Open the rows that a layer has written, as the input of the next."""
        names = [shard_name(shard, 1) for shard in range(rows.layout.num_shards)]
        array = PagedArray(rows.spec, rows.layout, tuple(directory / name for name in names))
        if not names:
            return open_rows(array, "memory")
        # Their file system may differ from the store's.
        return open_rows(array, open_engine(array.file_paths[0], self.io_engine))


def check_input(store: GraphStore, name: str) -> AttributeSpec:
    """Return the node attribute that the first layer takes."""
    spec = store.node_attribute(name).spec
    if len(spec.shape) != 2:
        raise UsageError(
            f"input={name!r}: layers take rows [N, F], but the attribute has the shape "
            f"{list(spec.shape)}"
        )
    return spec
