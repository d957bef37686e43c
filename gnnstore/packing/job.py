"""Packs the batches of whole epochs, sampled, planned and packed ahead of any training.

Like a loader with strategy "packed", it samples, plans and packs superbatch by superbatch, but
keeps the packed rows. Each epoch begins with an empty cache, so that training may begin with any
epoch; or a cache with the same rows for all batches is packed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._version import __version__
from gnnstore.caching.policies import Planner, slot_layout
from gnnstore.caching.pools import SlotPools, pooled
from gnnstore.errors import NoSpaceError, UsageError
from gnnstore.features.chunks import BLOCK_BYTES
from gnnstore.features.file_rows import files_of
from gnnstore.features.misses import MissTable, collect_misses
from gnnstore.features.pack import least_memory, packed_bytes
from gnnstore.features.packed_rows import PackedRecord
from gnnstore.features.segments import (
    BatchMisses,
    DividedChunks,
    DividedMisses,
    append_divided,
    divide_misses,
    segment_memory,
)
from gnnstore.features.source import RowSource, TypedRows, ranges_of
from gnnstore.features.tables import CachedTables
from gnnstore.formats.packed import (
    CACHED_NODES_ARRAY,
    DEVICE_NODES_ARRAY,
    DeviceLevel,
    PackedManifest,
    cache_array,
    device_array,
    name_of_batch,
    rows_array,
)
from gnnstore.formats.packed_writer import PackedWriter
from gnnstore.formats.store.schema import Schema
from gnnstore.graph.store import GraphStore
from gnnstore.graph.table_registry import shared_tables
from gnnstore.packing.sampling import EpochSampler, PackSettings
from gnnstore.pipeline.lookahead.superbatch import Superbatch
from gnnstore.progress import NullProgress, Progress
from gnnstore.threads import ordered_map
from gnnstore.units import format_at_least, format_size

# Bytes of a piece in which cached rows are read and written.
_CACHED_PIECE_BYTES = 8 << 20
_NOWHERE = np.empty(0, np.int32)
_NONE_MISSED = BatchMisses(_NOWHERE, _NOWHERE, _NOWHERE, _NOWHERE, _NOWHERE)
# Bytes of an input node's id, of a position and of an edge's id in a batch.
_WIDE_BYTES = 8


class EpochPacker:
    """Samples, plans and packs the batches of some epochs."""

    def __init__(self, store: GraphStore, settings: PackSettings) -> None:
        self.store = store
        self.settings = settings
        self.sampler = EpochSampler(store, settings)
        self.batches_per_epoch = self.sampler.batches_per_epoch
        cached = [spec.path for spec in self.sampler.tables.specs]
        size = self.sampler.size
        segment, pools = settings.segment or 1, self.sampler.pools
        shares = () if pools is None else pools.shares
        self._decide(cached, size.num_slots, shares, size.superbatch, segment)

    def _decide(
        self,
        cached: Sequence[str],
        num_slots: int,
        shares: Sequence[int],
        superbatch: int,
        segment: int,
    ) -> None:
        """Set the attributes that are packed, the cached rows, and the length of superbatches."""
        widths = CachedTables.from_schema(self.store.schema, cached).widths
        self.pools = SlotPools.divided(widths, shares) if shares else None
        store, engine = self.store, self.sampler.sources.engine
        nodes, edges = store.schema.node_attributes(), store.schema.edge_attributes()
        self.num_slots, self.superbatch = num_slots, superbatch
        opened: dict[str, TypedRows[RowSource]] = {}
        if engine is not None:
            shared, found = shared_tables(store), CachedTables.from_schema(store.schema, cached)
            opened = found.open(lambda spec: shared.rows_on_disk(store, spec, engine))
        self._typed = files_of(opened)
        self.tables = {path: rows.table for path, rows in self._typed.items()}
        # Without rows on disk there is nothing to share.
        self.segment = min(segment, superbatch) if self.tables else 1
        # The attributes whose rows are in the records: of nodes, and then of edges.
        self.plain = (*(spec for spec in nodes if spec.path not in self.tables), *edges)

    def pack(
        self,
        path: Path,
        *,
        overwrite: bool = False,
        resume: bool = False,
        sweeps: bool = True,
        progress: Progress | None = None,
        on_event: Callable[[str], None] = lambda _: None,
    ) -> Path:
        """Pack the epochs, or the part, and give them their name once they are complete."""
        settings, progress = self.settings, progress or NullProgress()
        writer = PackedWriter(
            path,
            asked={
                "fingerprint": self.sampler.fingerprint,
                "seed": settings.config.seed,
                "epochs": settings.epochs,
                "memory": settings.memory,
                "cache": settings.cached_by,
                "cache_bytes": settings.cache_bytes,
                "device_cache": settings.device_cache,
                "superbatch": settings.superbatch,
                "segment": settings.segment,
                "part": settings.part,
                "program": __version__,
            },
            decided={
                "cached": list(self.tables),
                "rows": [rows_array(self.store.schema, path) for path in self.tables],
                "device_rows": self._device_crc,
                "num_slots": self.num_slots,
                "slot_shares": list(self._slot_shares),
                "superbatch": self.superbatch,
                "segment": self.segment,
            },
            overwrite=overwrite,
            resume=resume,
            sweeps=sweeps,
            on_event=on_event,
        )
        with writer:
            known = writer.journal.decided
            names = ("cached", "num_slots", "slot_shares", "superbatch", "segment")
            would_cache = list(self.tables)
            self._decide(*(known[name] for name in names))
            # The choice of cached rows is made over the tables that this machine would cache.
            if known["cached"] != (would_cache if settings.is_fixed else list(self.tables)):
                writer.abort(keep=True)
                raise UsageError(
                    f"{path}: was begun with cached rows of {_names(known['cached'])}, and with "
                    f"the memory of now they would be of {_names(would_cache)}; resume with as "
                    "much memory as before, or start anew without --resume",
                    path=path,
                )
            if known["device_rows"] != self._device_crc:
                writer.abort(keep=True)
                raise UsageError(
                    f"{path}: was begun with other rows for a device than would be chosen with the "
                    "memory of now; resume with as much memory as before, or start anew without "
                    "--resume",
                    path=path,
                )
            with progress.phase("pack", self.num_batches, "batches") as phase:
                phase.advance(len(writer.index))
                self._pack_epochs(writer, phase.advance)
            manifest = self._manifest(writer)
            if manifest.holds_cache:
                with progress.phase("pack the cached rows"):
                    self._pack_common(writer, CACHED_NODES_ARRAY, cache_array, self.cached_nodes)
            if manifest.holds_device_rows:
                nodes = self.sampler.device_nodes
                with progress.phase("pack the rows for a device"):
                    self._pack_common(writer, DEVICE_NODES_ARRAY, device_array, nodes)
            arrays = self.store.stored_schema.whole_arrays()
            with progress.phase("commit"):
                return writer.commit(
                    manifest, {spec.path: self.store.reader.read(spec) for spec in arrays}
                )

    def _manifest(self, writer: PackedWriter) -> PackedManifest:
        settings, part, device = self.settings, None, None
        if settings.device_cache and (crc := self._device_crc) is not None:
            device = DeviceLevel(settings.device_cache, len(self.sampler.device_nodes), crc)
        if settings.is_fixed:
            part = self.sampler.part(_core.crc32c(self.cached_nodes.view(np.uint8)))
        return PackedManifest(
            part=part,
            device=device,
            fingerprint=self.sampler.fingerprint,
            seed=settings.config.seed,
            epochs=settings.epochs,
            batches_per_epoch=self.batches_per_epoch,
            # Records that depend on no other are the same however many are planned at a time.
            superbatch=self.superbatch if part is None else part.num_batches,
            num_slots=self.num_slots,
            slot_shares=self._slot_shares,
            largest_batch_bytes=writer.largest_batch_bytes,
            schema=self.store.stored_schema,
            cached=tuple(self.tables),
            plain=tuple(spec.path for spec in self.plain),
            has_edge_ids=bool(self.sampler.sources.edge_ids),
            segment=self.segment,
            cached_by=settings.cached_by,
            piece_bytes=BLOCK_BYTES,
        )

    @property
    def num_batches(self) -> int:
        """Batches that are packed."""
        return self.sampler.part(0).num_batches

    def _pack_epochs(self, writer: PackedWriter, advance: Callable[[int], None]) -> None:
        """Pack what has not been packed of each epoch."""
        num_before = 0  # superbatches
        for epoch, batches in self.sampler.epochs:
            count = -(-len(batches) // self.superbatch)
            num_done = max(0, writer.num_superbatches - num_before)
            num_before += count
            if num_done < count:
                self._pack_epoch(writer, epoch, batches, num_done, advance)

    def _pack_epoch(
        self,
        writer: PackedWriter,
        epoch: int,
        batches: range,
        num_done: int,
        advance: Callable[[int], None],
    ) -> None:
        """Pack the rest of an epoch; the batches packed before are planned again if need be."""
        if self.settings.is_fixed:
            batches, num_done = batches[num_done * self.superbatch :], 0
        planner = self._make_planner()
        superbatches = self.sampler.superbatches(epoch, self.superbatch, planner, batches)
        for number, superbatch in enumerate(superbatches):
            with closing(superbatch):
                if number >= num_done:
                    self._pack_superbatch(writer, superbatch, advance)

    def _make_planner(self) -> Planner:
        """Return the planner of cached rows: for the empty cache of an epoch, or a fixed one."""
        planner = pooled(self.sampler.policy, self.pools).planner(self.num_slots)
        if self.settings.is_fixed:
            planner.restart(slot_layout(self.cached_nodes, self.num_slots))
        return planner

    @property
    def _device_crc(self) -> int | None:
        """The checksum of the numbers of the rows that a device is to hold, if there are any."""
        nodes = self.sampler.device_nodes
        return _core.crc32c(nodes.view(np.uint8)) if len(nodes) else None

    def _pack_common(
        self,
        writer: PackedWriter,
        nodes_array: str,
        array_of: Callable[[Schema, str], str],
        nodes: npt.NDArray[np.int64],
    ) -> None:
        """Write rows that all batches have in common, and their numbers."""
        schema = self.store.schema
        writer.cached(nodes_array, "int64", nodes.shape, [nodes])
        for spec in schema.node_attributes():
            if spec.path in self._typed:
                rows = self._typed[spec.path]
                _, ids = rows.range.part(nodes)
                pieces = _in_pieces(rows.table, ids)
                name, shape = array_of(schema, spec.path), (len(ids), *spec.shape[1:])
                writer.cached(name, spec.dtype, shape, pieces)

    @property
    def cached_nodes(self) -> npt.NDArray[np.int64]:
        """The rows that are cached for all batches: as many as an earlier attempt has chosen."""
        return self.sampler.cached_nodes(self.num_slots)

    @property
    def _slot_shares(self) -> tuple[int, ...]:
        return () if self.pools is None else self.pools.shares

    def first_superbatch(self) -> Superbatch:
        """Sample and plan the first batches; to be closed by the caller."""
        planner, (epoch, batches) = self._make_planner(), self.sampler.epochs[0]
        return next(
            self.sampler.superbatches(epoch, self.superbatch, planner, batches, reads_edges=False)
        )

    def close(self) -> None:
        """Remove the scratch files. Idempotent."""
        self.sampler.close()

    def _pack_superbatch(
        self, writer: PackedWriter, superbatch: Superbatch, advance: Callable[[int], None]
    ) -> None:
        misses, chunks = self._pack_rows(writer, superbatch)
        offsets = [found.offsets.tolist() for found in chunks]
        # With several types the missed rows of each table.
        counts_of = [
            misses.missed.of_type(rows.range).num_rows
            for rows in self._typed.values()
            if misses is not None and len(misses.missed.ranges) > 1
        ]

        index, largest = [], 0
        made = ordered_map(
            lambda i: self._record(superbatch, i, misses, chunks),
            range(superbatch.planned.num_batches),
            num_threads=self.settings.num_threads,
            lookahead=lambda: self.settings.num_threads + 1,
            describe=lambda i: (
                f"while packing {name_of_batch(superbatch.first + i, self.batches_per_epoch)}"
            ),
        )
        with closing(made):
            for i, (record, batch_bytes) in enumerate(made):
                parts, num_bytes, crc = record.encode(superbatch.first + i)
                self._check_disk(writer, num_bytes)
                begin = writer.batches.append(parts)
                num_missed = 0 if misses is None else int(misses.own[i])
                rows = [int(counts[i]) for counts in counts_of]
                index.append([begin, num_bytes, crc, num_missed, *(o[i] for o in offsets), *rows])
                largest = max(largest, batch_bytes)
                advance(1)
        types = [found.of_type for found in chunks]
        segments = [
            [
                superbatch.first + place.first,
                superbatch.first + place.end,
                sum(place.num_rows),
                place.part_rows,
                *(
                    o[superbatch.planned.num_batches + place.first_part[t]]
                    for o, t in zip(offsets, types, strict=True)
                ),
                *(place.num_rows[t] for t in types if len(place.num_rows) > 1),
            ]
            for place in (() if misses is None else misses.segments)
        ]
        writer.finish_superbatch(index, largest, segments)
        if superbatch.edge_rows is not None:
            superbatch.edge_rows.close()

    def _record(
        self,
        superbatch: Superbatch,
        i: int,
        misses: DividedMisses | None,
        chunks: Sequence[DividedChunks],
    ) -> tuple[PackedRecord, int]:
        """Return the record of a batch of a superbatch, and the batch's bytes as it is loaded."""
        subgraph, labels = superbatch.samples.read(i), superbatch.batches[i].labels
        assert labels is not None  # noqa: S101 - for the type checker
        superbatch.samples.spool.drop(i)
        edge_rows = superbatch.edge_rows_of(i, subgraph)
        places = _NONE_MISSED if misses is None else misses.batch(i)
        shared = None
        shared_crcs: tuple[npt.NDArray[np.uint32], ...] = ()
        if misses is not None and misses.segments:
            shared = (places.shared_positions, places.shared_ranks)
            shared_crcs = tuple(misses.batch_crcs(crcs, i, places.shared_ranks) for crcs in chunks)
        change_positions, change_slots = superbatch.planned.batch_changes(i)
        sources, schema = self.sampler.sources, self.store.schema
        ids_of: dict[str, npt.NDArray[Any]] = {}  # node ids, or positions of edges
        for path, owner in schema.owners().items():
            ids_of[path] = (
                subgraph.nodes[owner] if isinstance(owner, str) else subgraph.edges[owner].positions
            )
        rows = [
            edge_rows.get(spec.path) or sources.tables[spec.path].gather(ids_of[spec.path])
            for spec in self.plain
        ]
        edge_ids = []
        for edge_type, ids in sources.edge_ids.items():
            spec = schema.edge_of(edge_type).edge_id
            known = None if spec is None else edge_rows.get(spec.path)
            edge_ids.append(known or ids.gather(subgraph.edges[edge_type].positions))
        record = PackedRecord(
            seeds=tuple(labels.arrays()),
            slots=superbatch.planned.batch_slots(i),
            change_positions=change_positions,
            change_slots=change_slots,
            positions=places.positions,
            repeat_targets=places.repeat_targets,
            repeat_sources=places.repeat_sources,
            plain=tuple(found.values for found in rows),
            edge_ids=tuple(found.values for found in edge_ids),
            subgraph=subgraph,
            shared=shared,
            chunk_crcs=tuple(found.of_chunk(i) for found in chunks),
            shared_crcs=shared_crcs,
        )
        id_bytes = np.dtype(schema.index_dtype).itemsize
        batch_bytes = (
            subgraph.num_nodes * (id_bytes + (0 if subgraph.trees is None else _WIDE_BYTES))
            + subgraph.num_edges * (2 * id_bytes + 2 * _WIDE_BYTES)
            + subgraph.num_seeds * _WIDE_BYTES
        )
        stored = self.store.stored_schema
        for spec in (*stored.node_attributes(), *stored.edge_attributes()):
            decoded_bytes = spec.shown_row_bytes if spec.scaled else 0
            batch_bytes += len(ids_of[spec.path]) * (spec.row_bytes + decoded_bytes)
        return record, batch_bytes

    def _pack_rows(
        self, writer: PackedWriter, superbatch: Superbatch
    ) -> tuple[DividedMisses | None, list[DividedChunks]]:
        """Append the rows that the batches miss; return their places in batches and in the file."""
        if not self.tables:
            return None, []
        schema = self.store.schema
        files = {path: writer.rows(rows_array(schema, path)) for path in self.tables}
        memory_bytes = self.packing_memory(superbatch)
        misses = divide_misses(
            self.collect_misses(superbatch, memory_bytes),
            self.segment,
            row_bytes=max(table.row_bytes for table in self.tables.values()),
        )
        self._check_disk(writer, packed_bytes(self._typed, misses.missed.counts))
        chunks = append_divided(
            self._typed,
            misses,
            {path: (file.file_path, file.size_bytes) for path, file in files.items()},
            memory_bytes=memory_bytes,
            num_threads=self.settings.num_threads,
        )
        for path, file in files.items():
            file.size_bytes = int(chunks[path].offsets[-1])
        return misses, list(chunks.values())

    def packing_memory(self, superbatch: Superbatch) -> int:
        """Return the memory for packing a superbatch."""
        # Packing that is continued keeps its sizes; the memory left now may differ.
        return max(
            self._least_memory(superbatch), self.sampler.size.memory_bytes - superbatch.num_bytes
        )

    def collect_misses(self, superbatch: Superbatch, memory_bytes: int) -> MissTable:
        """Return the distinct rows that each batch misses, ascending."""
        return collect_misses(
            superbatch.trace,
            superbatch.planned,
            ranges_of(self._typed),
            memory_bytes=memory_bytes,
            num_threads=self.settings.num_threads,
        )

    def _least_memory(self, superbatch: Superbatch) -> int:
        least = least_memory(
            self._typed, superbatch.planned.misses, superbatch.id_bytes, superbatch.trace.read_rows
        )
        if self.segment == 1:
            return least
        return least + segment_memory(
            superbatch.planned.misses, superbatch.id_bytes, len(self.tables)
        )

    def _check_disk(self, writer: PackedWriter, more_bytes: int) -> None:
        """Stop, so that packing can be resumed, if the disk budget is used up."""
        most = self.settings.disk_bytes
        if most is None or (missing := writer.num_bytes + more_bytes - most) <= 0:
            return
        done, total = len(writer.index), self.num_batches
        raise NoSpaceError(
            f"{writer.path}: the epochs take more than the {format_size(most)} of disk they may: "
            f"{done} of {total} batches take {format_size(writer.num_bytes)}, and at least "
            f"{format_at_least(missing)} are missing; raise --disk, pack fewer epochs, or have "
            "rows shared by more batches (--segment).",
            path=writer.path,
        )


def _in_pieces(table: RowSource, ids: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
    """Yield the rows of some ids, a few MB at a time."""
    step = max(1, _CACHED_PIECE_BYTES // max(1, table.row_bytes))
    for first in range(0, len(ids), step):
        yield table.gather(ids[first : first + step]).values


def _names(paths: Sequence[str]) -> str:
    return ", ".join(paths) or "no attribute"
