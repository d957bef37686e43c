"""Runs all layers one after the other: their tables, and the point where a run resumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gnnstore import _core
from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import affordable_threads
from gnnstore.disk.engines import open_engine
from gnnstore.errors import UsageError
from gnnstore.features.opening import open_attribute, open_rows
from gnnstore.features.packed.chunks import CHUNK_STAGING_BYTES
from gnnstore.features.source import RowSource
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
from gnnstore.layerwise.limits import BlockLimits
from gnnstore.layerwise.models.gcn import DegreeNorm
from gnnstore.layerwise.models.layers import Layer
from gnnstore.layerwise.packing import BlockPacker, has_room
from gnnstore.layerwise.passes import PassStats, degree_scale, run_pass
from gnnstore.layerwise.plan import Hub, limit_blocks, plan_layers
from gnnstore.layerwise.result import ARRAY_NAME
from gnnstore.layerwise.rows import RowReader, part_memory_bytes
from gnnstore.progress import Progress
from gnnstore.threads import Workers

# Finished rows are journalled by shards: a resumed run repeats no more than one.
_LEAST_SHARD_BYTES = 64 << 20
_MAX_SHARDS = 64
# Share of a budget for the buffers of reads.
_STAGING_SHARE = 8
_WRITER_BYTES = 8 << 20


@dataclass(frozen=True, eq=False)
class InferenceRequest:
    """The arguments of an inference, checked one by one."""

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
    # Size of the files that are written; by default 64 MiB, and more if there would be many.
    shard_bytes: int | None
    progress: Progress


class InferenceRun:
    """An inference over all layers: planned and checked when it is made, and run by `execute`."""

    def __init__(self, request: InferenceRequest) -> None:
        self._request = request
        store = request.store
        edge = store.schema.edge
        # The plan of each layer.
        self.plans = plan_layers(
            request.layers,
            request.input_spec,
            request.edge_specs,
            id_bytes=store.reader.paged(edge.indices).dtype.itemsize,
            dtype=request.dtype,
            device=request.device,
        )
        indptr = store.reader.paged(edge.indptr)
        self._engine = shared_tables(store).engine(indptr.file_paths[0], request.io_engine)
        self._num_readers = self._readers_in(request.memory_bytes)
        self._pieces = Pieces.of(request.memory_bytes)
        self._num_nodes, self._num_edges = store.num_nodes, store.num_edges
        self.limits: list[BlockLimits] = []

    @property
    def result_bytes(self) -> int:
        """Bytes of the last layer's rows."""
        return self._num_nodes * self.plans[-1].row_bytes

    @property
    def shard_bytes(self) -> int:
        """Size of the files that rows are written to."""
        if self._request.shard_bytes is not None:
            return self._request.shard_bytes
        largest = max(plan.disk_bytes(self._num_nodes) for plan in self.plans)
        return max(_LEAST_SHARD_BYTES, largest // _MAX_SHARDS)

    def check_disk(self, directory: Path, present: Path | None, copy_bytes: int) -> None:
        """Check that the disk has room for all layers, before hours of work."""
        tables = [plan.disk_bytes(self._num_nodes) for plan in self.plans]
        needed = max([sum(tables[max(0, k - 1) : k + 1]) for k in range(len(tables))])
        needed = max(needed, tables[-1] + copy_bytes)
        require_space(
            directory,
            needed - (0 if present is None else directory_bytes(present)),
            "write the rows of all nodes, after one layer and the next",
            "choose an output on another file system",
            "write narrower rows (dtype='float16')",
        )

    def execute(self, writer: StoreWriter) -> tuple[AttributeSpec, list[PassStats]]:
        """Run all layers that are not finished."""
        request = self._request
        stats: list[PassStats] = []
        with Workers(self._num_readers) as workers:
            graph = self._open_graph(workers)
            self.limits = self._limit(graph)
            first, source, factors = self._find_start(writer)
            scale: Tensor | None = None
            norm: DegreeNorm | None = None
            for number, plan in enumerate(self.plans[first:], first):
                if plan.call.norm != norm:
                    norm, scale = plan.call.norm, None
                if norm is not None and scale is None:
                    name = f"degrees for {plan.call.layer.name}"
                    with request.progress.phase(name, self._num_nodes, "nodes") as phase:
                        scale = degree_scale(graph, norm, self._scale_dtype, phase.advance)
                with (
                    self._packer(writer, number, source) as packer,
                    request.progress.phase(
                        f"{plan.call.layer.name} of {len(self.plans)}", self._num_nodes, "nodes"
                    ) as phase,
                    self._begin(writer, number) as rows,
                ):
                    reader = RowReader(
                        source,
                        plan.kind,
                        self._pieces.part_bytes,
                        workers,
                        packer,
                        factors=factors if number == 0 else None,
                    )
                    done = run_pass(
                        plan.call,
                        BlockMaker(
                            graph, reader, plan, self.limits[number], scale=scale, packer=packer
                        ),
                        rows,
                        device=request.device,
                        out_dtype=getattr(torch, plan.dtype),
                        is_ahead=self.limits[number].is_ahead,
                        phase=phase,
                    )
                    del reader
                stats.append(done)
                request.progress.note(str(done), vars(done))
                source = _opened(rows, self._directory(writer, number), request.io_engine)
                if number:
                    _core.remove_tree(self._directory(writer, number - 1))
        del source
        last = len(self.plans) - 1
        if first > last:  # only the commit was missing
            with self._begin(writer, last) as rows:
                rows.skip(self._num_nodes)
        for number in range(last):
            _core.remove_tree(self._directory(writer, number))
        return self._spec(last), stats

    # ---- sizes

    def _open_graph(self, workers: Workers) -> GraphReader:
        store, edge = self._request.store, self._request.store.schema.edge
        indices = None
        if store.num_edges:
            indices = IndexRows.open(store.reader.paged(edge.indices), self._engine)
        edge_data = {name: self._rows_of(spec) for name, spec in self._request.edge_specs.items()}
        indptr = IndexRows.open(store.reader.paged(edge.indptr), self._engine)
        return GraphReader(
            indptr, indices, edge_data, str(store.path), pieces=self._pieces, workers=workers
        )

    def _limit(self, graph: GraphReader) -> list[BlockLimits]:
        return limit_blocks(
            self.plans,
            self._request.memory_bytes,
            lambda limit: Ledger(limit, self._reservations(limit)),
            num_nodes=self._num_nodes,
            num_edges=self._num_edges,
            hub=Hub(*graph.find_hub()),
        )

    @property
    def _scale_dtype(self) -> torch.dtype:
        """The type of degrees: that of the rows, if any layer computes with 8 bytes."""
        is_wide = any(plan.kind.dtype == torch.float64 for plan in self.plans)
        return torch.float64 if is_wide else torch.float32

    def _reservations(self, memory_bytes: int) -> tuple[Reservation, ...]:
        """Return the memory of a budget that is not for blocks."""
        pieces = Pieces.of(memory_bytes)
        num_readers = self._readers_in(memory_bytes)
        order = max(part_memory_bytes(plan.kind, pieces.part_bytes) for plan in self.plans)
        has_norm = any(plan.call.norm is not None for plan in self.plans)
        scale_bytes = self._scale_dtype.itemsize * self._num_nodes * has_norm
        per_node = self._num_nodes // 8 + self._num_nodes // 64 + scale_bytes
        return (
            Reservation("sets and degrees of nodes", per_node),
            Reservation("buffers for reading", num_readers * (self._engine.staging_bytes + order)),
            Reservation("pieces of the graph", pieces.num_bytes),
            Reservation("rows that are written", _WRITER_BYTES),
            Reservation("packed rows", CHUNK_STAGING_BYTES if has_room(memory_bytes) else 0),
        )

    def _readers_in(self, memory_bytes: int) -> int:
        """Return the number of threads that read, with buffers within a share of a budget."""
        each, most = self._engine.staging_bytes, self._request.num_threads
        return affordable_threads(memory_bytes, each, most, share=_STAGING_SHARE)

    # ---- tables

    @contextmanager
    def _packer(
        self, writer: StoreWriter, number: int, source: RowSource
    ) -> Iterator[BlockPacker | None]:
        """Yield the packer of a layer's input; None if there is no room or no use for it."""
        limits, files = self.limits[number], source.file_rows
        if (
            not has_room(self._request.memory_bytes)
            or not self.plans[number].call.needs_edges
            or files is None
            or not limits.is_ahead
        ):
            yield None
            return
        directory = writer.journal.spill_directory
        directory.mkdir(exist_ok=True)
        needed = self.plans[number].disk_bytes(self._num_nodes)
        packer = BlockPacker(
            files,
            directory,
            memory_bytes=limits.making.limit,
            disk_bytes=lambda: max(0, free_bytes(directory) - 2 * needed),
            num_threads=self._num_readers,
        )
        with closing(packer):
            yield packer

    def _rows_of(self, spec: AttributeSpec) -> RowSource:
        return open_attribute(self._request.store.reader, spec, self._engine)

    def _spec(self, number: int) -> AttributeSpec:
        """Return the array of a layer's results."""
        plan = self.plans[number]
        is_last = number == len(self.plans) - 1
        path = node_array(NODE_TYPE, ARRAY_NAME) if is_last else f"nodes/layer-{number + 1}"
        shape = (self._num_nodes, plan.width)
        return AttributeSpec(ARRAY_NAME, path, "paged", plan.dtype, shape)

    def _directory(self, writer: StoreWriter, number: int) -> Path:
        return writer.temporary_path / self._spec(number).path

    @contextmanager
    def _begin(self, writer: StoreWriter, number: int) -> Iterator[PagedArrayWriter]:
        """Yield the writer of a layer's results, which appends to those written before."""
        spec = self._spec(number)
        if number == len(self.plans) - 1:
            rows = writer.paged(
                spec.path,
                name=spec.name,
                row_shape=spec.shape[1:],
                dtype=spec.dtype,
                num_rows=spec.num_rows,
            )
        else:
            self._directory(writer, number).mkdir(parents=True, exist_ok=True)
            rows = self._writer(writer, number)
        with rows:
            yield rows

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
                directory = self._directory(writer, number)
                return number + 1, _opened(rows, directory, self._request.io_engine), None
        spec, store = self._request.input_spec, self._request.store
        scales = store.schema.scales_of(spec)
        factors = None if scales is None else as_tensor(store.reader.read(scales), scales.dtype)
        return 0, self._rows_of(spec), factors


def _opened(rows: PagedArrayWriter, directory: Path, io_engine: str | None) -> RowSource:
    """Open the rows that a layer has written, as the input of the next."""
    names = [shard_name(shard, 1) for shard in range(rows.layout.num_shards)]
    array = PagedArray(rows.spec, rows.layout, tuple(directory / name for name in names))
    # Their file system may differ from the store's.
    return open_rows(array, open_engine(array.file_paths[0], io_engine) if names else "memory")


def check_input(store: GraphStore, name: str) -> AttributeSpec:
    """Return the node attribute that the first layer takes."""
    spec = store.node_attribute(name).spec
    if len(spec.shape) != 2:
        raise UsageError(
            f"input={name!r}: layers take rows [N, F], but the attribute has the shape "
            f"{list(spec.shape)}"
        )
    return spec
