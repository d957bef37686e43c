"""Packed epochs on disk: batches that were sampled and packed ahead of training.

They are a sealed directory by themselves, whose index says where each batch lies. Nothing else is
needed to train on them: neither the graph nor its features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base.names import encode, joined
from gnnstore.formats.base.strict_json import Fields
from gnnstore.formats.container.manifest import KINDS, Kind, Manifest
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.store.schema import EdgeType, Schema

PACKED_DIRECTORY = "plans"
PACKED_FORMAT_VERSION = 6
# What epochs of graphs without types are written as: their layout is as it was.
_VERSION_WITHOUT_TYPES = 5

INDEX_ARRAY = "index"
BATCHES_ARRAY = "batches"
ROWS_GROUP = "rows"
SEGMENTS_ARRAY = "segments"
# Columns of the index: where a batch's record begins, its bytes and its crc32c, and the rows it
# misses. One more for each cached attribute: where its chunk of rows begins. If these are
# of several node types, then one more for each: the rows of its chunk.
INDEX_COLUMNS = 4
# The most bytes of a chunk that one checksum covers: a reader reads no more at a time.
MAX_PIECE_BYTES = 512 << 10
# Rows shared by batches that one checksum covers.
CHECKED_ROWS = 64
# Columns of the segments: the first batch and the one behind the last, shared rows, and rows of a
# part. One more for each cached attribute: where the first part begins. If these are of several
# node types, then one more for each: the rows of its type.
SEGMENT_COLUMNS = 4
# Records, chunks and shared rows begin at multiples of this, so that reads can bypass the page
# cache.
PACKED_ALIGNMENT_BYTES = 4096

_MAX_EPOCHS = 2**31
# Records and kernels have 31 bits for a slot, and use two numbers that are no slots.
MAX_SLOTS = 2**31 - 3

# In a fingerprint, the kind of the seeds if they are no nodes.
KIND = "seeds"
# In a fingerprint, the number of arrays of a record that hold its batch's seeds; by default one,
# `input_id`.
SEED_ARRAYS = "seed arrays"
_MAX_SEED_ARRAYS = 64
# In a fingerprint, the number of seeds of an epoch: input nodes, or edges.
NUM_POSITIONS = "number of input_nodes"
# In a fingerprint, the value in place of a checksum for all edges of the graph.
ALL_EDGES = "all edges"


@dataclass(frozen=True, kw_only=True)
class PackedManifest(Manifest):
    """Identity, contents and files of packed epochs."""

    FORMAT: ClassVar[str] = "gnnstore-plan"
    VERSION: ClassVar[int] = PACKED_FORMAT_VERSION
    # There has been no release with older versions.
    OLDEST: ClassVar[int] = _VERSION_WITHOUT_TYPES
    WORD: ClassVar[str] = "directory of packed epochs"
    VERB: ClassVar[str] = "pack"
    MAKE: ClassVar[str] = "make one with 'gnnstore pack'"
    OMITTED: ClassVar[frozenset[str]] = frozenset({"slot_shares"})

    # All that the batches depend on except the seed, as in the state of a loader.
    fingerprint: Mapping[str, Any]
    seed: Annotated[int, 0, 2**64 - 1]
    epochs: Annotated[int, 1, _MAX_EPOCHS]  # epochs 0 to epochs - 1 are packed
    batches_per_epoch: int
    superbatch: Annotated[int, 1]  # batches that were planned at a time
    segment: Annotated[int, 1]  # batches that share rows on disk; 1: each has its own
    # Bytes of rows that one checksum in a record covers.
    piece_bytes: Annotated[int, PACKED_ALIGNMENT_BYTES, MAX_PIECE_BYTES]
    # Rows of each cached attribute in memory while the batches are assembled.
    num_slots: Annotated[int, 0, MAX_SLOTS]
    # Of slots of several widths, those of each pool of as many as all of these; see the format.
    slot_shares: tuple[Annotated[int, 1], ...] = ()
    cached_by: str  # the policy that chose the cached rows: "belady", "degree" or "frequency"
    largest_batch_bytes: int  # bytes of the largest batch with its attributes
    # Paths in the store of the node attributes whose missed rows are packed.
    cached: tuple[str, ...]
    # Paths of the other attributes, of nodes and of edges, whose rows are in the records.
    plain: tuple[str, ...]
    has_edge_ids: bool  # whether records hold edge ids; else positions are ids
    schema: Schema
    # All arrays but graph-level ones.
    paged_arrays: tuple[AttributeSpec, ...] = field(default=(), metadata={"key": "arrays"})

    @property
    def format_version(self) -> int:
        """Version of the format: epochs without types keep one that older readers know."""
        return _version_of(self.schema)

    @property
    def store_uuid(self) -> str | None:
        """Identity of the store that was packed; None if the fingerprint does not say."""
        return self.fingerprint.get("store")

    @property
    def num_batches(self) -> int:
        """Batches of all epochs."""
        return self.epochs * self.batches_per_epoch

    @property
    def has_segments(self) -> bool:
        """Whether batches share rows on disk."""
        return self.segment > 1

    @property
    def num_seed_arrays(self) -> int:
        """Arrays of a record that hold its batch's seeds; one for nodes."""
        count = self.fingerprint.get(SEED_ARRAYS, 1)
        return count if isinstance(count, int) and 0 < count <= _MAX_SEED_ARRAYS else 1

    @property
    def cached_columns(self) -> int:
        """Columns of the index, and of the segments, for the cached attributes."""
        return (2 if self.caches_types else 1) * len(self.cached)

    @property
    def caches_types(self) -> bool:
        """Whether cached attributes are of several node types."""
        owners = self.schema.owners()
        return len({owners[path] for path in self.cached}) > 1

    @property
    def cached_specs(self) -> tuple[AttributeSpec, ...]:
        """Descriptions of the cached attributes, in their order."""
        found = {spec.path: spec for spec in self.schema.node_attributes()}
        return tuple(found[path] for path in self.cached)

    @property
    def edge_id_paths(self) -> dict[EdgeType, str]:
        """Paths in the store of the edge ids that records hold, by edge type."""
        if not self.has_edge_ids:
            return {}
        edges = self.schema.edge_types
        return {edge.type: edge.edge_id.path for edge in edges if edge.edge_id is not None}

    def arrays(self) -> tuple[AttributeSpec, ...]:
        """Return the arrays, those that batches have whole included."""
        return (*self.paged_arrays, *self.schema.whole_arrays())

    @classmethod
    def parse(cls, own: Fields) -> Mapping[str, Any]:
        """Check the fields of packed epochs, and return them as arguments of the class."""
        found = own.values(cls, Manifest)
        schema, cached, plain = found["schema"], found["cached"], found["plain"]
        if own.integer("format_version") != _version_of(schema):
            raise own.fail("format_version", f"{_version_of(schema)}, as the schema has it")
        nodes = [spec.path for spec in schema.node_attributes()]
        edges = [spec.path for spec in schema.edge_attributes()]
        if not set(cached) <= set(nodes):
            raise own.fail("cached", "paths of node attributes of the schema")
        if sorted([*cached, *plain]) != sorted([*nodes, *edges]):
            raise own.fail("plain", "with 'cached', each attribute of the schema once")
        if MAX_PIECE_BYTES % found["piece_bytes"]:  # reads are multiples of it
            raise own.fail("piece_bytes", f"a part of {MAX_PIECE_BYTES}")
        return found


def _version_of(schema: Schema) -> int:
    return _VERSION_WITHOUT_TYPES if schema.is_homogeneous else PACKED_FORMAT_VERSION


def rows_array(schema: Schema, path: str) -> str:
    """Return the path in packed epochs of the packed rows of a node attribute."""
    name, node_type = next(
        (spec.name, node.name)
        for node in schema.node_types
        for spec in node.attributes.values()
        if spec.path == path
    )
    if schema.is_homogeneous:
        return f"{ROWS_GROUP}/{encode(name)}"
    return f"{ROWS_GROUP}/{joined(node_type, name, long='rows')}"


def name_of_batch(number: int, batches_per_epoch: int) -> str:
    """Return the name of a batch, by its number in all epochs together."""
    epoch, batch = divmod(number, max(1, batches_per_epoch))
    return f"batch {batch} of epoch {epoch}"


# A row for each segment; for its columns see `SEGMENT_COLUMNS`.
SegmentTable = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SegmentLayout:
    """Positions of the shared rows of one segment, of one attribute.

    They lie in parts of `part_rows` rows, one behind the other; each part begins at a multiple of
    4096, and the last one of a segment may be shorter.
    """

    num_rows: int
    row_bytes: int
    part_rows: int  # rows of a whole part
    part_bytes: int  # bytes from the beginning of a whole part to that of the next
    begin: int  # offset of the first part in the file

    def offset(self, rank: int) -> int:
        """Return the offset of the row with a rank."""
        whole, rest = divmod(rank, self.part_rows)
        return self.begin + whole * self.part_bytes + rest * self.row_bytes

    @property
    def end(self) -> int:
        """Offset of the byte behind the last row."""
        return self.offset(self.num_rows)


def segment_layout(
    segments: SegmentTable, specs: Sequence[AttributeSpec], segment: int, column: int
) -> SegmentLayout:
    """Return the layout of a segment's shared rows of a cached attribute, by its number."""
    _, _, num_rows, part_rows, *begins = (int(value) for value in segments[segment])
    if len(begins) > len(specs):  # of several node types
        num_rows = begins[len(specs) + column]
    row_bytes = specs[column].row_bytes
    unit = PACKED_ALIGNMENT_BYTES
    part_bytes = -(-part_rows * row_bytes // unit) * unit
    return SegmentLayout(num_rows, row_bytes, part_rows, part_bytes, begins[column])


class PackedReader(SealedReader[PackedManifest]):
    """Open, validated packed epochs. It does not read records and rows."""

    MANIFEST: ClassVar[type[PackedManifest]] = PackedManifest

    def check(self) -> None:
        """Read the index, and refuse one that names bytes outside of the files."""
        manifest = self.manifest
        expected: dict[str, tuple[tuple[str, ...], tuple[int | None, ...]]] = {
            INDEX_ARRAY: (
                ("int64",),
                (manifest.num_batches, INDEX_COLUMNS + manifest.cached_columns),
            ),
            BATCHES_ARRAY: (("uint8",), (None,)),
            **dict.fromkeys(self._rows_arrays(), (("uint8",), (None,))),
        }
        if manifest.has_segments:
            expected[SEGMENTS_ARRAY] = ("int64",), (None, SEGMENT_COLUMNS + manifest.cached_columns)
        self.expect(manifest.paged_arrays, expected)
        for path in expected:
            if (count := self._array(path).layout.num_shards) > 1:  # kernels read the only one
                raise self.corrupt(f"it has {count} files, expected one", path)
        self.batches = self._array(BATCHES_ARRAY)
        self.rows = {path: self._array(array) for array, path in self._rows_arrays().items()}
        self.segments: npt.NDArray[np.int64] | None = None
        if manifest.has_segments:
            self.segments = self._array(SEGMENTS_ARRAY).load()
        self.index = self._array(INDEX_ARRAY).load()
        self._check_index()

    def _array(self, path: str) -> PagedArray:
        return self.paged(self.manifest.spec(path))

    def _rows_arrays(self) -> dict[str, str]:
        """Return the path in the store of each cached attribute, by the path of its rows here."""
        schema = self.manifest.schema
        return {rows_array(schema, path): path for path in self.manifest.cached}

    def chunk_begins(self, column: int) -> npt.NDArray[np.int64]:
        """Return the first bytes of all chunks of a cached attribute, by its number."""
        begins: npt.NDArray[np.int64] = self.index[:, INDEX_COLUMNS + column]
        return begins

    def chunk_bytes(self, column: int) -> npt.NDArray[np.int64]:
        """Return the bytes on disk of all chunks of a cached attribute, by its number."""
        manifest = self.manifest
        rows = 3 if not manifest.caches_types else INDEX_COLUMNS + len(manifest.cached) + column
        return self.index[:, rows] * manifest.cached_specs[column].row_bytes

    def _check_index(self) -> None:
        """Refuse an index, and segments, that name bytes outside of the files."""
        index, segments, specs = self.index, self.segments, self.manifest.cached_specs
        counts = [index[:, [3, *range(INDEX_COLUMNS + len(specs), index.shape[1])]]]
        places = [(index[:, 0], index[:, 1], self.batches)]
        for column, spec in enumerate(specs):
            chunks = self.chunk_begins(column), self.chunk_bytes(column)
            places.append((*chunks, self.rows[spec.path]))
        if segments is not None:
            bounds = np.append(0, segments[:, 1])
            is_covered = bounds[-1] == self.manifest.num_batches and (np.diff(bounds) > 0).all()
            is_sound = (segments[:, 0] == bounds[:-1]) & (segments[:, 3] > 0)
            if not (is_covered and is_sound.all()):
                raise self.corrupt("these are not the segments of all batches", SEGMENTS_ARRAY)
            counts.append(segments[:, [2, 3, *range(4 + len(specs), segments.shape[1])]])
            for column, spec in enumerate(specs):
                layouts = [segment_layout(segments, specs, n, column) for n in range(len(segments))]
                shared = np.array([(each.begin, each.end) for each in layouts])
                places.append((shared[:, 0], shared[:, 1] - shared[:, 0], self.rows[spec.path]))
        if any(of.size and (of.min() < 0 or of.max() >= 2**31) for of in counts):
            raise self.corrupt("numbers of rows are out of range", INDEX_ARRAY)
        for begins, lengths, array in places:
            is_outside = (begins < 0) | (lengths < 0) | (begins % PACKED_ALIGNMENT_BYTES != 0)
            wrong = np.flatnonzero(is_outside | (lengths > array.num_rows - begins))
            if len(wrong):
                place = f"{lengths[wrong[0]]} bytes from byte {begins[wrong[0]]} on"
                raise self.corrupt(
                    f"it names {place} of {array.spec.path!r}, which has {array.num_rows}",
                    INDEX_ARRAY,
                )


PACKED = KINDS.register(
    Kind(
        PackedManifest,
        PackedReader.open,
        frozenset({INDEX_ARRAY, BATCHES_ARRAY, SEGMENTS_ARRAY, ROWS_GROUP, "graph"}),
        PACKED_DIRECTORY,
    )
)
