"""The batches of packed epochs: one record for each, and its chunks of rows.

A record holds all of a batch but the rows of cached attributes: its subgraph, the slots of cached
rows, the rows that enter the cache, the places of missed rows, and the rows of the other
attributes. It is read in one piece and checked by its checksum.

In bytes a record is a header of int64, and then the arrays, padded to 8 bytes each. The header has
the number of arrays, and the dtype, number of axes and lengths of each. There are no pickles in
records.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts, empty
from gnnstore.disk.engines import Engine, open_engine
from gnnstore.errors import CorruptStoreError, storage_error, storage_errors
from gnnstore.features.chunk_rows import PackedRows, Places, Ranks, places_within, read_chunk
from gnnstore.features.chunks import chunk_reader
from gnnstore.features.file_rows import FileRows
from gnnstore.features.held import HeldRows
from gnnstore.features.planned import PlanStep
from gnnstore.features.segments import read_shared
from gnnstore.features.source import RowSource, RowSpec
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES, PageGeometry, plan_shards
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.arrays.zarr_metadata import MAX_DIMENSIONS
from gnnstore.formats.base.files import fill_at, open_regular
from gnnstore.formats.packed import PackedManifest, PackedReader, name_of_batch
from gnnstore.formats.store.schema import EdgeType
from gnnstore.sampling.compact import ONE_TYPE, CompactSample, Types
from gnnstore.sampling.row_space import RowRange, RowSpace

HELP = "Restore the epochs from a copy, or pack again; 'gnnstore verify' shows all that is damaged"
_ALIGNMENT_BYTES = 8
# Arrays of a record after its seeds' arrays: slots, changes (positions and slots), and places of
# missed rows (positions; targets and sources of repeated rows). With segments there follow
# positions and ranks of rows that batches share; then checksums of chunks and of shared rows, one
# array for each cached attribute of the manifest.
_STEP_ARRAYS = 6
_SHARED_ARRAYS = 2


@dataclass(frozen=True, eq=False)
class PackedRecord:
    """The contents of a batch of n nodes and m edges in packed epochs, without its packed rows."""

    # Attributes that describe the seeds: `input_id`, int64 [B], where these are nodes.
    seeds: tuple[npt.NDArray[Any], ...]
    slots: npt.NDArray[np.int32]  # int32 [n]
    change_positions: npt.NDArray[np.int32]  # int32 [c]: positions of rows that enter the cache
    change_slots: npt.NDArray[np.int32]  # int32 [c]: slots that they enter, see `PlanStep`
    positions: npt.NDArray[np.int32]  # positions of missed rows, see `places_within`
    repeat_targets: npt.NDArray[np.int32]  # positions that repeat a missed row
    repeat_sources: npt.NDArray[np.int32]  # positions of these rows
    # Rows of the attributes that are not cached, [n, ...] or [m, ...] of their type.
    plain: tuple[npt.NDArray[Any], ...]
    # Edge ids, int32 or int64 [m], for each edge type that has them; other positions are ids.
    edge_ids: tuple[npt.NDArray[Any], ...]
    subgraph: CompactSample
    # Positions and ranks, int32 [d] each, of rows that the batches of a segment share; None: there
    # are no segments.
    shared: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None = None
    # For each cached attribute, the checksums of the blocks of the batch's chunk.
    chunk_crcs: tuple[npt.NDArray[np.uint32], ...] = ()
    # For each cached attribute, the result of `chunks.shared_crcs` for the shared rows.
    shared_crcs: tuple[npt.NDArray[np.uint32], ...] = ()

    def step(self, space: RowSpace, held: HeldRows | None = None) -> PlanStep:
        """Return the cache plan of the batch, without the rows that a device holds."""
        changes = (self.change_positions, self.change_slots)
        return PlanStep(rows_left(self.subgraph, space, held), self.slots, *changes)

    def encode(self, number: int) -> tuple[list[memoryview], int, int]:
        """Return the bytes of the record in pieces, their number, and their crc32c."""
        arrays: list[npt.NDArray[Any]] = [*self.seeds, self.slots]
        arrays += [self.change_positions, self.change_slots]
        arrays += [self.positions, self.repeat_targets, self.repeat_sources]
        arrays += [*(self.shared or ()), *self.chunk_crcs, *self.shared_crcs, *self.plain]
        parts = encode_record([*arrays, *self.edge_ids, *self.subgraph.arrays()])
        crc = crc_seed(number)
        for part in parts:
            crc = _core.crc32c(np.frombuffer(part, np.uint8), crc)
        return parts, sum(map(len, parts)), crc

    @classmethod
    def from_arrays(
        cls,
        arrays: Sequence[npt.NDArray[Any]],
        num_plain: int,
        num_edge_ids: int,
        has_segments: bool = False,
        num_cached: int = 0,
        *,
        num_seeds: int = 1,
        types: Types = ONE_TYPE,
    ) -> PackedRecord:
        """Return the record that was encoded as these arrays; it keeps them."""
        left = iter(arrays)

        def take(number: int) -> Any:
            return tuple(islice(left, number))

        seeds, step = take(num_seeds), take(_STEP_ARRAYS)
        shared = take(_SHARED_ARRAYS) if has_segments else None
        chunk_crcs, shared_crcs = take(num_cached), take(num_cached if has_segments else 0)
        plain, edge_ids = take(num_plain), take(num_edge_ids)
        subgraph = CompactSample.from_arrays(list(left), types)
        fields = (seeds, *step, plain, edge_ids, subgraph, shared, chunk_crcs, shared_crcs)
        return cls(*fields)


@dataclass(frozen=True)
class RecordForm:
    """What the arrays of all records of some packed epochs must fit."""

    num_slots: int
    counts: Mapping[str | EdgeType, int]  # nodes and edges of the graph, by type
    # Attributes in records: path, node or edge type, dtype and shape of a row.
    plain: tuple[tuple[str, str | EdgeType, np.dtype[Any], tuple[int, ...]], ...]
    edge_ids: tuple[EdgeType, ...]  # edge types with ids in records

    @classmethod
    def from_manifest(cls, manifest: PackedManifest) -> Self:
        """Return the form of records by a manifest."""
        schema = manifest.schema
        owners = schema.owners()
        specs = {spec.path: spec for spec in (*schema.node_attributes(), *schema.edge_attributes())}
        counts: dict[str | EdgeType, int] = {}
        counts |= {node.name: node.num_nodes for node in schema.node_types}
        counts |= {edge.type: edge.num_edges for edge in schema.edge_types}
        plain = (
            (path, owners[path], STORAGE_DTYPES[specs[path].dtype], specs[path].shape[1:])
            for path in manifest.plain
        )
        return cls(manifest.num_slots, counts, tuple(plain), tuple(manifest.edge_id_paths))


def _check_vector(
    what: str, array: npt.NDArray[Any], length: int | None, most: int = 2**62, least: int = 0
) -> None:
    """Raise ValueError unless these are integers from `least` to below `most`; None: any length."""
    if array.ndim != 1 or array.dtype.kind != "i" or length not in (None, len(array)):
        raise ValueError(f"{what} are {array.dtype} {list(array.shape)}")
    if array.size and not least <= int(array.min()) <= int(array.max()) < most:
        raise ValueError(f"{what} are outside [{least}, {most})")


def _check_subgraph(
    subgraph: CompactSample, counts: Mapping[str | EdgeType, int]
) -> dict[str | EdgeType, int]:
    """Raise ValueError unless a subgraph is of a graph; return its nodes and edges by type."""
    num_rows: dict[str | EdgeType, int] = {}
    for name, nodes in subgraph.nodes.items():
        _check_vector("nodes", nodes, None, counts[name])
        num_rows[name] = len(nodes)
        if subgraph.trees is not None:
            _check_vector("trees", subgraph.trees[name], len(nodes))
    for of, edges in subgraph.edges.items():
        num_rows[of] = count = len(edges.sources)
        _check_vector("sources", edges.sources, None, num_rows[of[0]])
        _check_vector("edges", edges.positions, count, counts[of])
        _check_vector("in-degrees", edges.num_incoming, None, count + 1)
        is_sum = int(edges.num_incoming.sum(dtype=np.int64)) == count
        if not is_sum or len(edges.num_incoming) > num_rows[of[2]]:
            raise ValueError("in-degrees do not fit the edges")
    hops: list[tuple[str | EdgeType, tuple[int, ...]]] = [
        *(subgraph.hop_nodes or {}).items(),
        *(subgraph.hop_edges or {}).items(),
    ]
    if any(min(counts, default=0) < 0 or sum(counts) > num_rows[key] for key, counts in hops):
        raise ValueError("hops do not fit the nodes and edges")
    return num_rows


def rows_left(subgraph: CompactSample, space: RowSpace, held: HeldRows | None) -> npt.NDArray[Any]:
    """Return the numbers of a batch's rows, without those that a device holds."""
    return subgraph.rows(space) if held is None else space.rows(held.missed(subgraph.nodes))


def check_record(
    record: PackedRecord, form: RecordForm, space: RowSpace, held: HeldRows | None = None
) -> None:
    """Raise ValueError unless a record's arrays fit one another, and the graph of the epochs."""
    num_rows = _check_subgraph(record.subgraph, form.counts)
    count = len(rows_left(record.subgraph, space, held))
    _check_vector("slots", record.slots, count, max(1, form.num_slots), -1)
    for positions, values in (
        (record.change_positions, record.change_slots),
        (record.positions, record.positions),
        (record.repeat_targets, record.repeat_sources),
        *([] if record.shared is None else [record.shared]),
    ):
        _check_vector("positions of rows", positions, None, count)
        _check_vector("places of rows", values, len(positions), least=-(2**31))
    for crcs in (*record.chunk_crcs, *record.shared_crcs):
        if crcs.dtype != np.uint32 or crcs.ndim != 1:
            raise ValueError(f"checksums are {crcs.dtype} {list(crcs.shape)}")
    for (path, owner, dtype, shape), rows in zip(form.plain, record.plain, strict=True):
        if (rows.dtype, rows.shape) != (dtype, (num_rows[owner], *shape)):
            raise ValueError(f"rows of {path!r} are {rows.dtype} {list(rows.shape)}")
    for of, ids in zip(form.edge_ids, record.edge_ids, strict=True):
        _check_vector("edge ids", ids, num_rows[of])


def crc_seed(i: int) -> int:
    """Return the initial checksum of a record: a record of another number does not match."""
    return _core.crc32c(np.array([i], np.int64).view(np.uint8))


def _padding(num_bytes: int) -> int:
    return -num_bytes % _ALIGNMENT_BYTES


def encode_record(arrays: Sequence[npt.NDArray[Any]]) -> list[memoryview]:
    """Return the bytes of a record, in pieces that view the arrays."""
    header = [len(arrays)]
    parts: list[memoryview] = []
    for array in arrays:
        code = array.dtype.str.encode().ljust(_ALIGNMENT_BYTES, b"\0")
        header += [int.from_bytes(code, "little"), array.ndim, *array.shape]
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        parts += [flat.data, memoryview(bytes(_padding(flat.nbytes)))]
    return [np.array(header, np.int64).data.cast("B"), *parts]


def decode_record(record: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
    """Return a record's arrays as views; ValueError unless its bytes are arrays."""
    words = record.view(np.int64)
    shapes: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
    at = 1
    while len(shapes) < int(words[0]):
        axes = int(words[at + 1])
        end = at + 2 + axes
        if not 0 <= axes <= MAX_DIMENSIONS or end > len(words):
            raise ValueError(f"an array has {axes} axes")
        dtype = np.dtype(words[at].tobytes().rstrip(b"\0").decode())
        shapes.append((dtype, tuple(words[at + 2 : end].tolist())))
        at = end
    begin = at * _ALIGNMENT_BYTES
    arrays = []
    for dtype, shape in shapes:
        num_bytes = math.prod(shape) * dtype.itemsize
        if dtype.kind not in "biuf" or min(shape, default=0) < 0:
            raise ValueError(f"an array is {dtype} {list(shape)}")
        arrays.append(record[begin : begin + num_bytes].view(dtype).reshape(shape))
        begin += num_bytes + _padding(num_bytes)
    return arrays


def engine_of(reader: PackedReader, forced: str | None = None) -> Engine:
    """Return the engine that is asked for, or the fastest that can read packed epochs."""
    largest = max(reader.local_files, key=lambda entry: entry.size_bytes)
    return open_engine(reader.path / largest.path, forced)


class PackedTable(NamedTuple):
    """One cached attribute of the store, as its rows are packed."""

    spec: RowSpec
    rows: FileRows | None  # of a file that is open
    column: int  # its number among the cached attributes
    begins: npt.NDArray[np.int64]  # int64 [batches]: where chunks begin in the file


class PackedFiles:
    """The files of packed epochs, or of a part, open to be read. Safe to use from many threads."""

    def __init__(self, reader: PackedReader, engine: Engine, held: HeldRows | None = None) -> None:
        self.reader = reader
        self.engine = engine
        self.held = held  # rows that a device holds: they are in no record
        self._chunks = chunk_reader(engine.name)
        manifest = reader.manifest
        self._packed = {
            spec.path: PackedTable(
                RowSpec.of(spec), self.open_rows(spec), k, reader.chunk_begins(k)
            )
            for k, spec in enumerate(manifest.cached_specs)
        }
        # The arrays of a record, by the manifest.
        self._num_arrays: dict[str, Any] = {
            "num_plain": len(manifest.plain),
            "num_edge_ids": len(manifest.edge_id_paths),
            "has_segments": manifest.has_segments,
            "num_cached": len(manifest.cached),
            "num_seeds": manifest.num_seed_arrays,
            "types": Types.from_schema(manifest.schema),
        }
        self._form = RecordForm.from_manifest(manifest)
        self.space = RowSpace.of_schema(manifest.schema, set(manifest.cached))
        self._descriptor = -1
        self.open_records()

    def open_rows(self, spec: AttributeSpec) -> FileRows | None:
        """Open the packed rows of an attribute of the store."""
        packed = self.reader.rows[spec.path]
        geometry = PageGeometry(spec.row_bytes, DEFAULT_PAGE_BYTES)
        array = PagedArray(spec, plan_shards(geometry, spec.num_rows), packed.file_paths)
        files = packed.open_files(direct=self.engine.choice.is_direct)
        return FileRows(array, self.engine, files)

    def open_records(self) -> None:
        """Open the records."""
        reader = self.reader
        if reader.batches.file_paths:
            path = reader.batches.file_paths[0]
            with storage_errors("open packed epochs", path):
                self._descriptor = open_regular(path)
            reader.batches.check_place()
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            weakref.finalize(self, os.close, self._descriptor)

    @classmethod
    def open(
        cls, reader: PackedReader, forced: str | None = None, held: HeldRows | None = None
    ) -> PackedFiles:
        """Open packed epochs with the engine that is asked for, or the fastest that works."""
        return cls(reader, engine_of(reader, forced), held)

    def __reduce__(self) -> tuple[Any, ...]:
        return (PackedFiles.open, (self.reader, self.engine.name, self.held))

    @property
    def staging_bytes(self) -> int:
        """Bytes of memory for each thread that reads; its results not included."""
        records = self.reader.index[:, 1]
        shared = 0 if self.reader.segments is None else self.engine.staging_bytes
        return self._chunks.staging_bytes + shared + int(records.max(initial=0))

    def record(self, number: int) -> PackedRecord:
        """Read the record of a batch, by its number among all epochs."""
        record = self.read_record(number)
        if (problem := self.problem_of(number, record)) is not None:
            raise problem
        try:
            found_record = PackedRecord.from_arrays(decode_record(record), **self._num_arrays)
            check_record(found_record, self._form, self.space, self.held)
        except (ValueError, TypeError, IndexError) as error:  # CorruptStoreError included
            raise self.forged(number, error) from error
        return found_record

    def read_record(self, number: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a record, fewer where the file ends."""
        begin, num_bytes, _ = self._place(number)
        record = empty((num_bytes,), np.uint8)
        try:
            done = fill_at(self._descriptor, record.data, begin)
        except OSError as error:
            doing = f"read the record of {self.name_of(number)}"
            raise storage_error(error, doing, self.reader.batches.file_paths[0]) from error
        return record[:done]

    def problem_of(self, number: int, record: npt.NDArray[np.uint8]) -> CorruptStoreError | None:
        """Return what is wrong with the bytes of a record, if anything is."""
        begin, num_bytes, crc = self._place(number)
        if len(record) < num_bytes:
            return self._damaged(number, f"the file ends at byte {begin + len(record)}")
        actual_crc = _core.crc32c(record, crc_seed(number))
        if actual_crc != crc:
            return self._damaged(number, f"the crc32c is {actual_crc:08x}, not {crc:08x}")
        return None

    def _place(self, number: int) -> tuple[int, int, int]:
        """Return where the record of a batch begins, its bytes, and its crc32c."""
        begin, num_bytes, crc = self.reader.index[self._row(number), :3].tolist()
        return begin, num_bytes, crc

    def _row(self, number: int) -> int:
        """Return the row of the index that describes a batch."""
        return number - self.reader.manifest.first_batch

    def rows(self, number: int, record: PackedRecord) -> dict[str, RowSource]:
        """Return the sources of the rows that a batch misses, by the attribute's path."""
        return {
            path: PackedRows(table.spec, partial(self.read_missed, number, record, path))
            for path, table in self._packed.items()
        }

    def read_missed(  # noqa: PLR0917
        self,
        number: int,
        record: PackedRecord,
        path: str,
        part: RowRange,
        out: npt.NDArray[Any],
        ranks: Ranks | None = None,
    ) -> ReadCounts:
        """Write the packed rows of a part of a batch to their places; the others stay."""
        table = self._packed[path]
        column = table.column
        counts = ReadCounts()
        if record.shared is not None:
            # First: a repeated row may be a shared one.
            within = part.within(record.shared[0])
            positions = record.shared[0][within] - np.int32(part.first)
            shared = positions if ranks is None else ranks[positions], record.shared[1][within]
            try:
                crcs = record.shared_crcs[column]
                assert table.rows is not None  # noqa: S101 - shared rows are in files
                counts = read_shared(
                    self.reader, number, column, table.rows, places=shared, out=out, crcs=crcs
                )
            except CorruptStoreError as error:
                error.message += f"; they are of {self.name_of(number)}, {path!r}. {HELP}"
                raise
        places = record.positions, record.repeat_targets, record.repeat_sources
        in_part = places_within(part, *places, ranks=ranks)
        if not any(map(len, in_part)):  # if no batch has such rows, there is no file
            return counts
        crcs = record.chunk_crcs[column]
        return counts + self.read_chunk(number, table, in_part, out, crcs)

    def read_chunk(
        self,
        number: int,
        table: PackedTable,
        places: Places,
        out: npt.NDArray[Any],
        crcs: npt.NDArray[np.uint32],
    ) -> ReadCounts:
        """Write the rows of a chunk to their places, if it has any."""
        rows = table.rows
        assert rows is not None  # noqa: S101 - opened
        return read_chunk(
            self._chunks,
            rows.files,
            self.chunk_begin(number, table),
            places,
            out,
            path=rows.array.file_paths[0],
            what=lambda: f"{self.name_of(number)}, {self.path_of(table)!r}",
            advice=HELP,
            row_bytes=rows.row_bytes,
            crcs=crcs,
            piece_bytes=self.reader.manifest.piece_bytes,
        )

    def chunk_begin(self, number: int, table: PackedTable) -> int:
        """Return where the chunk of a batch begins in the file of a table."""
        return int(table.begins[self._row(number)])

    def path_of(self, table: PackedTable) -> str:
        """Return the path in the store of a table."""
        return self.reader.manifest.cached[table.column]

    @property
    def records_at(self) -> Path | str:
        """The file of the records, for messages."""
        return self.reader.batches.file_paths[0]

    def name_of(self, number: int) -> str:
        """Return the name of a batch in messages."""
        return name_of_batch(number, self.reader.manifest.batches_per_epoch)

    def forged(self, number: int, error: Exception) -> CorruptStoreError:
        """Return the error for a record whose checksum is right, and its contents are not."""
        return self._damaged(number, f"it is not a record of these epochs ({error})")

    def _damaged(self, number: int, what: str) -> CorruptStoreError:
        begin, num_bytes, _ = self._place(number)
        path = self.records_at
        return CorruptStoreError(
            f"{path}: bytes {begin} to {begin + num_bytes}, the record of {self.name_of(number)}, "
            f"are damaged: {what}. {HELP}",
            path=path,
            offset=begin,
        )
