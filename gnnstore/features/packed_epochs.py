"""The files of packed epochs, in one directory or in parts, and the rows that all batches share."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts, empty
from gnnstore.caching.pools import SlotPools
from gnnstore.errors import CorruptStoreError, GnnstoreError, UsageError
from gnnstore.features.chunks import chunk_reader
from gnnstore.features.held import HeldRows
from gnnstore.features.packed_rows import HELP, PackedFiles, PackedRecord, engine_of
from gnnstore.features.planned import PlanStep
from gnnstore.features.remote_chunks import RemoteFiles
from gnnstore.features.source import (
    AS_STORED,
    Decodings,
    RowRequest,
    Rows,
    RowsMemory,
    RowSource,
    RowSpec,
)
from gnnstore.features.tables import CachedTables
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.packed import (
    CACHE_GROUP,
    CACHED_NODES_ARRAY,
    DEVICE_NODES_ARRAY,
    PackedParts,
    PackedReader,
    cache_array,
    device_array,
)
from gnnstore.machine import PRIVATE, Machine
from gnnstore.remote.streams import StreamedReader
from gnnstore.sampling.row_space import RowRange, RowSpace

# Parts with open files at a time: threads are seldom in more than two.
_MOST_OPEN = 8


def cached_nodes(
    reader: PackedReader, space: RowSpace, machine: Machine = PRIVATE
) -> npt.NDArray[np.int64]:
    """Load the numbers of the rows that are cached for all batches, ascending; int64 [C]."""
    manifest = reader.manifest
    part = manifest.part
    assert part is not None  # noqa: S101 - these epochs have them
    nodes = reader.load_checked(CACHED_NODES_ARRAY, machine)
    is_sound = len(nodes) <= manifest.num_slots and (np.diff(nodes) > 0).all()
    if len(nodes):
        is_sound = is_sound and nodes[0] >= 0 and nodes[-1] < space.num_rows
    if not is_sound or _core.crc32c(nodes.view(np.uint8)) != part.cached_crc32c:
        raise reader.corrupt("these are not the rows that are cached", CACHED_NODES_ARRAY)
    return nodes


def device_rows(reader: PackedReader, space: RowSpace) -> HeldRows | None:
    """Load the numbers of the rows that a device is to hold, of the unit or its first part."""
    device = reader.manifest.device
    if device is None:
        return None
    nodes = reader.load_checked(DEVICE_NODES_ARRAY, PRIVATE)
    is_sound = (np.diff(nodes) > 0).all() and nodes[0] >= 0 and nodes[-1] < space.num_rows
    if not is_sound or _core.crc32c(nodes.view(np.uint8)) != device.nodes_crc32c:
        raise reader.corrupt("these are not the rows that a device is to hold", DEVICE_NODES_ARRAY)
    held = {name: own.part(nodes)[1] for name, own in space.ranges.items()}
    schema, owners = reader.manifest.schema, reader.manifest.schema.owners()
    for spec in reader.manifest.cached_specs:
        name = device_array(schema, spec.path)
        found = reader.manifest.spec(name).num_rows
        if found != len(held[str(owners[spec.path])]):
            raise reader.corrupt(f"it has {found} rows of other nodes", name)
    return HeldRows.from_nodes(held, {name: own.num_rows for name, own in space.ranges.items()})


class DeviceTable(RowSource):
    """The rows of one attribute that a device is to hold, by node ids; others are refused."""

    def __init__(
        self, reader: PackedReader, spec: AttributeSpec, held: HeldRows, node_type: str
    ) -> None:
        self._arguments = (reader, spec, held, node_type)
        self._reader, self._spec = reader, RowSpec.of(spec)
        self._index = held.indexes[node_type]
        self._name = device_array(reader.manifest.schema, spec.path)
        self._is_checked = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (DeviceTable, self._arguments)

    @property
    def spec(self) -> RowSpec:
        """Number, shape and type of rows."""
        return self._spec

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Read rows, which are compared with their checksums the first time."""
        slots = np.full(len(ids), -1) if self._index is None else self._index.slots(ids)
        if (slots < 0).any():
            raise UsageError(
                f"packed epochs have rows of node {ids[slots < 0][0]} in its batches alone; read "
                "it from the store"
            )
        if not self._is_checked:
            self._reader.check_arrays(self._name)
            self._is_checked = True
        rows = self._reader.array_of(self._name).gather(slots)
        np.copyto(self._spec.view(out), self._spec.view(rows))
        return ReadCounts()


@dataclass(frozen=True, eq=False)
class CachedRows:
    """The rows that are cached for all batches, in memory."""

    nodes: npt.NDArray[np.int64]  # int64 [C]: numbers of rows in the row space, ascending
    # By the attribute's path, of the cached rows of its type: the rows, uint8 [c, row_bytes]; the
    # place of the first among all; and their type.
    tables: Mapping[str, tuple[npt.NDArray[np.uint8], int, RowRange]]

    @classmethod
    def load(cls, reader: PackedReader, space: RowSpace, machine: Machine = PRIVATE) -> Self:
        """Load the rows, each block compared with its checksum, where the machine has them."""
        manifest = reader.manifest
        schema, nodes = manifest.schema, cached_nodes(reader, space, machine)
        owners, tables = schema.owners(), {}
        for spec in manifest.cached_specs:
            own = space.range_of(str(owners[spec.path]))
            places = own.within(nodes)
            name = cache_array(schema, spec.path)
            rows = reader.load_checked(name, machine)
            if len(rows) != places.stop - places.start:
                raise reader.corrupt(f"it has {len(rows)} rows of other nodes", name)
            table = rows.reshape(-1).view(np.uint8).reshape(len(rows), spec.row_bytes)
            tables[spec.path] = table, places.start, own
        return cls(nodes, tables)

    def gather(
        self,
        step: PlanStep,
        missed: Mapping[str, RowSource],
        *,
        has_types: bool,
        memory: RowsMemory,
        decodings: Decodings,
    ) -> dict[str, Rows]:
        """Return the rows of a batch as new arrays, its missed ones from their sources.

        ValueError or IndexError: the batch expects other rows in the slots.
        """
        _core.check_cached(self.nodes, step.slots, step.ids)
        found = {}
        for path, (table, first, own) in self.tables.items():
            part = step.of_type(*own.part(step.ids)) if has_types else step
            slots = part.slots - np.int32(first) if first else part.slots
            request = RowRequest(part.ids, slots, table, part.row_offset)
            found[path] = missed[path].rows_of(request, decodings.get(path), memory)
        return found


class PackedEpochFiles:
    """The files of all parts of packed epochs. Safe to use from many threads at once.

    Files of a few parts are open at a time, and the rows that are cached for all batches are loaded
    when they are first needed.
    """

    def __init__(
        self, parts: PackedParts, forced: str | None = None, machine: Machine = PRIVATE
    ) -> None:
        self.parts, self.manifest, self._machine = parts, parts.manifest, machine
        manifest, readers = self.manifest, parts.parts
        self.engine = engine_of(readers[0], forced)
        self.chunks = chunk_reader(self.engine.name)
        self._open: dict[int, PackedFiles] = {}  # by the part's number, the last used at the end
        self._cached: CachedRows | None = None
        self._lock = threading.Lock()
        self.space = RowSpace.of_schema(manifest.schema, set(manifest.cached))
        owners = manifest.schema.owners()
        # The types of the tables' rows, by path in the store.
        self.ranges = {path: self.space.range_of(str(owners[path])) for path in manifest.cached}
        widths = CachedTables.from_schema(manifest.schema, set(manifest.cached)).widths
        # Pools of the slots of cached rows, if they are of several widths.
        self.pools: SlotPools | None = None
        if manifest.slot_shares:
            try:
                self.pools = SlotPools.divided(widths, manifest.slot_shares)
            except ValueError as error:
                raise CorruptStoreError(
                    f"{parts.path}: the manifest has {error}. {HELP}", path=parts.path
                ) from error
        # What a device is to hold; no batch misses these rows.
        self.held = device_rows(readers[0], self.space)
        with self._lock:
            self._part_at(0)  # so that what cannot be read is found out now

    def __reduce__(self) -> tuple[Any, ...]:
        return (PackedEpochFiles, (self.parts, self.engine.name, self._machine))

    @property
    def staging_bytes(self) -> int:
        """Bytes of memory for each thread that reads; its results not included."""
        parts = self.parts.parts
        record = int(max(part.index[:, 1].max(initial=0) for part in parts))
        if self.is_remote:  # what one request brings, next to the record
            columns = range(len(self.manifest.cached))
            chunks = (int(part.chunk_bytes(k).max(initial=0)) for part in parts for k in columns)
            return record + max(record, *chunks, 0)
        shared = self.engine.staging_bytes if self.manifest.has_segments else 0
        return self.chunks.staging_bytes + shared + record

    @property
    def is_remote(self) -> bool:
        """Whether records and rows are read from a bucket."""
        return isinstance(self.parts.parts[0], StreamedReader)

    @cached_property
    def cached_bytes(self) -> int:
        """Bytes of the rows that are cached for all batches, and their numbers; 0 if none are."""
        arrays = self.manifest.paged_arrays if self.manifest.holds_cache else ()
        return sum(spec.num_bytes for spec in arrays if spec.path.startswith(f"{CACHE_GROUP}/"))

    @property
    def device_tables(self) -> dict[str, DeviceTable]:
        """The rows that a device is to hold, by the attribute's path."""
        held, manifest = self.held, self.manifest
        if held is None:
            return {}
        owners, first = manifest.schema.owners(), self.parts.parts[0]
        return {
            spec.path: DeviceTable(first, spec, held, str(owners[spec.path]))
            for spec in manifest.cached_specs
        }

    @property
    def cached(self) -> CachedRows | None:
        """The rows that are cached for all batches; None where each batch changes them."""
        if not self.manifest.holds_cache:
            return None
        with self._lock:
            if self._cached is None:
                self._cached = CachedRows.load(self.parts.parts[0], self.space, self._machine)
            return self._cached

    def files_of(self, number: int) -> PackedFiles:
        """Return the files that have a batch, by its number among all epochs."""
        with self._lock:
            return self._part_at(self.parts.number_of(number))

    def _part_at(self, place: int) -> PackedFiles:
        found, reader = self._open.pop(place, None), self.parts.parts[place]
        if found is None:
            kind = RemoteFiles if isinstance(reader, StreamedReader) else PackedFiles
            found = kind(reader, self.engine, self.held)
        self._open[place] = found
        if len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]  # closed once no thread reads it
        return found

    def gather(
        self,
        number: int,
        record: PackedRecord,
        memory: RowsMemory = empty,
        decodings: Decodings = AS_STORED,
    ) -> dict[str, Rows]:
        """Return the rows of cached attributes of a batch whose record depends on no other."""
        files, cached = self.files_of(number), self.cached
        assert cached is not None  # noqa: S101 - so the manifest says
        try:
            missed = files.rows(number, record)
            return cached.gather(
                record.step(self.space, self.held),
                missed,
                has_types=len(self.space.ranges) > 1,
                memory=memory,
                decodings=decodings,
            )
        except (TypeError, IndexError, ValueError) as error:  # kernels refuse places of rows
            if isinstance(error, GnnstoreError):
                raise
            raise files.forged(number, error) from error
