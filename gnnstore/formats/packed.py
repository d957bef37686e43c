"""Packed epochs on disk: batches that were sampled and packed ahead of training.

They are a sealed directory by themselves, whose index says where each batch lies. Nothing else is
needed to train on them: neither the graph nor its features. Where the cached rows are the same for
all batches, they may be in parts, each a sealed directory, side by side in one.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from gnnstore.errors import NotFoundError, UsageError
from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE
from gnnstore.formats.base.names import encode, joined
from gnnstore.formats.base.strict_json import Fields
from gnnstore.formats.container.manifest import KINDS, FileEntry, Kind, Manifest
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.store.scales import read_scales
from gnnstore.formats.store.schema import SCALED_ATTRIBUTES, EdgeType, Schema
from gnnstore.machine import Machine
from gnnstore.units import format_count

PACKED_DIRECTORY = "plans"
# The version of epochs in which cached rows lie in the plan once.
PACKED_FORMAT_VERSION = 7
# The versions of other epochs, in the layout as it was: of graphs with types, and without.
_VERSION_WITH_TYPES, _VERSION_WITHOUT_TYPES = 6, 5

INDEX_ARRAY = "index"
BATCHES_ARRAY = "batches"
ROWS_GROUP = "rows"
SEGMENTS_ARRAY = "segments"
CACHE_GROUP = "cache"
# The numbers of the rows that are cached for all batches, ascending.
CACHED_NODES_ARRAY = f"{CACHE_GROUP}/nodes"
# Rows that a device is to hold, which no batch misses, and their numbers, ascending.
DEVICE_GROUP = "device"
DEVICE_NODES_ARRAY = f"{DEVICE_GROUP}/nodes"
# The reader feature of epochs that have such rows.
DEVICE_ROWS = "device-rows"
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
# Alignment of records, chunks and shared rows, so that reads can bypass the page cache.
PACKED_ALIGNMENT_BYTES = 4096

_MAX_EPOCHS = 2**31
# Most slots: records and kernels have 31 bits for a slot, and use two numbers that are not slots.
MAX_SLOTS = 2**31 - 3

# In a fingerprint, the kind of the seeds if they are not nodes.
KIND = "seeds"
# In a fingerprint, the number of arrays of a record that hold its batch's seeds; by default one,
# `input_id`.
SEED_ARRAYS = "seed arrays"
_MAX_SEED_ARRAYS = 64
# In a fingerprint, the number of seeds of an epoch: input nodes, or edges.
NUM_POSITIONS = "number of input_nodes"
# In a fingerprint, the value in place of a checksum for all edges of the graph.
ALL_EDGES = "all edges"


# The name of a part's directory: its number, and how many there are.
_PART_NAME = re.compile(r"part-(\d{5,})-of-(\d{5,})")
_MAX_PARTS = 2**31
_MAX_NAMED = 5  # names in a message


def part_name(number: int, of: int) -> str:
    """Return the name of the directory of a part."""
    return f"part-{number:05d}-of-{of:05d}"


def parts_in(names: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return the number, the number of all, and the name of each part among names, ascending."""
    matches = ((_PART_NAME.fullmatch(name), name) for name in names)
    found = [(int(match[1]), int(match[2]), name) for match, name in matches if match]
    return sorted(own for own in found if own[2] == part_name(*own[:2]))


def has_parts(path: Path) -> bool:
    """Whether a directory holds parts of packed epochs, and is not a sealed one itself."""
    try:
        names = os.listdir(path)  # noqa: PTH208
    except (OSError, ValueError):  # no path has a null byte
        return False
    return METADATA_FILE not in names and bool(parts_in(names))


@dataclass(frozen=True)
class PackedPart:
    """Consecutive batches of all epochs, whose records do not depend on others.

    The batches of part i of n are those from number i T // n to (i + 1) T // n, of all T.
    """

    number: Annotated[int, 0, _MAX_PARTS]  # i
    of: Annotated[int, 1, _MAX_PARTS]  # n
    first_batch: int
    num_batches: int
    cached_crc32c: Annotated[int, 0, 2**32 - 1]  # of the numbers of the cached rows

    @classmethod
    def divided(cls, number: int, of: int, total: int, cached_crc32c: int) -> Self:
        """Return a part of the batches of all epochs."""
        first, end = (k * total // of for k in (number, number + 1))
        return cls(number, of, first, end - first, cached_crc32c)


@dataclass(frozen=True)
class DeviceLevel:
    """The rows that a device is to hold while the batches are assembled."""

    asked_bytes: Annotated[int, 1]  # the memory of the device that was given
    num_rows: Annotated[int, 1]
    nodes_crc32c: Annotated[int, 0, 2**32 - 1]  # of their numbers


@dataclass(frozen=True, kw_only=True)
class PackedManifest(Manifest):
    """Identity, contents and files of packed epochs."""

    FORMAT: ClassVar[str] = "gnnstore-plan"
    VERSION: ClassVar[int] = PACKED_FORMAT_VERSION
    READER_FEATURES: ClassVar[frozenset[str]] = frozenset({SCALED_ATTRIBUTES, DEVICE_ROWS})
    # There has been no release with older versions.
    OLDEST: ClassVar[int] = _VERSION_WITHOUT_TYPES
    WORD: ClassVar[str] = "directory of packed epochs"
    VERB: ClassVar[str] = "pack"
    MAKE: ClassVar[str] = "make one with 'gnnstore pack'"
    OMITTED: ClassVar[frozenset[str]] = frozenset({"slot_shares", "part", "device"})

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
    # By pool, if slots have several widths: a pool has as many as all of these; see the format.
    slot_shares: tuple[Annotated[int, 1], ...] = ()
    cached_by: str  # the policy that chose the cached rows: "belady", "degree" or "frequency"
    largest_batch_bytes: int  # bytes of the largest batch with its attributes
    # Paths in the store of the node attributes whose missed rows are packed.
    cached: tuple[str, ...]
    # Paths of the other attributes, of nodes and of edges, whose rows are in the records.
    plain: tuple[str, ...]
    has_edge_ids: bool  # whether records hold edge ids; else positions are ids
    schema: Schema
    # Set if cached rows are the same for all batches; else records follow one another.
    part: PackedPart | None = None
    device: DeviceLevel | None = None  # rows that no batch misses; None: there are none
    # All arrays but graph-level ones.
    paged_arrays: tuple[AttributeSpec, ...] = field(default=(), metadata={"key": "arrays"})

    @property
    def format_version(self) -> int:
        """Version of the format: what older readers know keeps theirs."""
        return _version_of(self.schema, self.part)

    @property
    def store_uuid(self) -> str | None:
        """Identity of the store that was packed; None if the fingerprint does not say."""
        return self.fingerprint.get("store")

    @property
    def num_batches(self) -> int:
        """Batches of all epochs, or of a part of them."""
        return self.total_batches if self.part is None else self.part.num_batches

    @property
    def total_batches(self) -> int:
        """Batches of all epochs."""
        return self.epochs * self.batches_per_epoch

    @property
    def first_batch(self) -> int:
        """Number of the first batch here among the batches of all epochs."""
        return 0 if self.part is None else self.part.first_batch

    @property
    def batches(self) -> range:
        """Numbers of the batches here among the batches of all epochs."""
        return range(self.first_batch, self.first_batch + self.num_batches)

    @property
    def holds_cache(self) -> bool:
        """Whether the rows that are cached for all batches lie here."""
        return self.part is not None and self.part.number == 0

    @property
    def holds_device_rows(self) -> bool:
        """Whether the rows that a device is to hold lie here: once, in the first part."""
        return self.device is not None and (self.part is None or self.part.number == 0)

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
        features = own.texts("reader_features")
        found["schema"] = found["schema"].with_graph_scales(features)
        schema, cached, plain = found["schema"], found["cached"], found["plain"]
        part: PackedPart | None = found.get("part")
        if own.integer("format_version") != (version := _version_of(schema, part)):
            raise own.fail("format_version", f"{version}, as the schema and 'part' have it")
        if part is not None:
            total = found["epochs"] * found["batches_per_epoch"]
            own_part = (part.number, part.of, total, part.cached_crc32c)
            if part.number >= part.of or part != PackedPart.divided(*own_part):
                raise own.fail("part", f"the batches of one of the parts of {total}")
            if part.of > 1 and found["segment"] > 1:
                raise own.fail("segment", "1, since there are several parts")
            if found.get("slot_shares"):
                raise own.fail("slot_shares", "nothing, since cached rows are the same for all")
        if (found.get("device") is None) == (DEVICE_ROWS in features):
            raise own.fail("reader_features", f"{DEVICE_ROWS!r} where 'device' is, and only there")
        if found.get("device") is not None and not cached:
            raise own.fail("device", "nothing, since no attribute's missed rows are packed")
        nodes = [spec.path for spec in schema.node_attributes()]
        edges = [spec.path for spec in schema.edge_attributes()]
        if not set(cached) <= set(nodes):
            raise own.fail("cached", "paths of node attributes of the schema")
        if sorted([*cached, *plain]) != sorted([*nodes, *edges]):
            raise own.fail("plain", "with 'cached', each attribute of the schema once")
        if MAX_PIECE_BYTES % found["piece_bytes"]:  # reads are multiples of it
            raise own.fail("piece_bytes", f"a part of {MAX_PIECE_BYTES}")
        return found


def _version_of(schema: Schema, part: PackedPart | None) -> int:
    if part is not None:
        return PACKED_FORMAT_VERSION
    return _VERSION_WITHOUT_TYPES if schema.is_homogeneous else _VERSION_WITH_TYPES


def cache_array(schema: Schema, path: str) -> str:
    """Return the path in packed epochs of the cached rows of a node attribute."""
    return f"{CACHE_GROUP}/{rows_array(schema, path)}"


def device_array(schema: Schema, path: str) -> str:
    """Return the path in packed epochs of the rows of a node attribute that a device holds."""
    return f"{DEVICE_GROUP}/{rows_array(schema, path)}"


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
    part_bytes: int  # bytes from the beginning of a whole part to the next part's
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
        """Read the index, and refuse one that names bytes outside of the files; read scales."""
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
        if manifest.holds_cache:
            expected[CACHED_NODES_ARRAY] = ("int64",), (None,)
            for spec in manifest.cached_specs:
                shape = (None, *spec.shape[1:])
                expected[cache_array(manifest.schema, spec.path)] = (spec.dtype,), shape
        if manifest.device is not None and manifest.holds_device_rows:
            expected[DEVICE_NODES_ARRAY] = ("int64",), (manifest.device.num_rows,)
            for spec in manifest.cached_specs:
                shape = (None, *spec.shape[1:])
                expected[device_array(manifest.schema, spec.path)] = (spec.dtype,), shape
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
        self.scales = read_scales(self, manifest.schema)

    def array_of(self, path: str) -> PagedArray:
        """Return one of the paged arrays."""
        return self._array(path)

    @property
    def local_files(self) -> tuple[FileEntry, ...]:
        """The files that are here."""
        return self.files

    def _array(self, path: str) -> PagedArray:
        return self.paged(self.manifest.spec(path))

    def _rows_arrays(self) -> dict[str, str]:
        """Return the path in the store of each cached attribute, by the path of its rows here."""
        schema = self.manifest.schema
        return {rows_array(schema, path): path for path in self.manifest.cached}

    def load_checked(self, path: str, machine: Machine) -> npt.NDArray[Any]:
        """Load a paged array whole, each block compared with its checksum."""
        array = self._array(path)

        def fill(dense: npt.NDArray[np.uint8]) -> None:
            self.check_arrays(path)
            array.read_whole(dense)

        num_bytes = array.num_rows * array.geometry.row_bytes
        dense = machine.share(array.key(array.dtype), num_bytes, fill)
        return dense.view(array.dtype).reshape(array.spec.shape)

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


class PackedParts:
    """Packed epochs that are open: a directory, or the parts in one, in their order."""

    def __init__(self, path: Path, parts: Sequence[PackedReader], label: str = "") -> None:
        self.path, self.parts = path, tuple(parts)
        self.label = label or str(path)  # for messages: the URL of what is in a bucket
        self.manifest = parts[0].manifest  # of the first: what all have in common
        self._firsts = [part.manifest.first_batch for part in parts]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open packed epochs, whole.

        Raises
        ------
        NotFoundError, UnsupportedVersionError, CorruptStoreError, StorageError
            As `PackedReader.open`; NotFoundError also where a part is missing.
        UsageError
            If the parts are not of one run.
        """
        directory = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would hide links
        if not has_parts(directory):
            reader = PackedReader.open(path)
            check_whole(str(directory), reader.manifest)
            return cls(reader.path, [reader])
        names = parts_in(os.listdir(directory))  # noqa: PTH208
        check_complete(str(directory), names)
        return cls.from_readers(
            directory, {name: PackedReader.open(directory / name) for *_, name in names}
        )

    @classmethod
    def from_readers(cls, path: Path, parts: Mapping[str, PackedReader], label: str = "") -> Self:
        """Return all parts, ascending, by the names of their directories, if they are one run's."""
        label = label or str(path)
        (first, known), *_ = parts.items()
        for name, reader in parts.items():
            part = reader.manifest.part
            if part is None or part_name(part.number, part.of) != name:
                what = "all batches" if part is None else f"part {part.number} of {part.of}"
                raise UsageError(
                    f"{label}/{name}: has {what} by its manifest, and not what its name says; "
                    "remove it, and pack this part as the others",
                    path=label,
                )
            if different := other_run(known.manifest, reader.manifest):
                raise UsageError(
                    f"{label}: {name} is of another run than {first}: {'; '.join(different)}; "
                    "remove one of the two, and pack it as the others",
                    path=label,
                )
        return cls(path, list(parts.values()), label)

    @property
    def total_bytes(self) -> int:
        """Bytes of all parts, the root metadata not counted."""
        return sum(part.total_bytes for part in self.parts)

    @property
    def largest_batch_bytes(self) -> int:
        """Bytes of the largest batch of all parts, with its attributes."""
        return max(part.manifest.largest_batch_bytes for part in self.parts)

    @cached_property
    def index_bytes(self) -> int:
        """Bytes of the index in memory."""
        return sum(part.index.nbytes for part in self.parts)

    def number_of(self, batch: int) -> int:
        """Return the place among the parts of that which has a batch."""
        return bisect_right(self._firsts, batch) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.path, self.parts, self.label))


def check_whole(place: str, manifest: PackedManifest) -> None:
    """Refuse a part alone."""
    part = manifest.part
    if part is not None and part.of > 1:
        raise UsageError(
            f"{place}: is part {part.number} of {part.of}; open the directory that holds all of "
            f"them: {place.rstrip('/').rpartition('/')[0]}",
            path=place,
        )


def check_complete(directory: str, names: Sequence[tuple[int, int, str]]) -> None:
    """Raise unless these are all parts of one number."""
    counts = sorted({of for _, of, _ in names})
    if len(counts) > 1:
        raise UsageError(
            f"{directory}: has parts of {' and of '.join(map(str, counts))}; keep the parts of one "
            "number, and remove the others",
            path=directory,
        )
    there = {number for number, *_ in names}
    missing = [number for number in range(counts[0]) if number not in there]
    if missing:
        shown = ", ".join(map(str, missing[:_MAX_NAMED]))
        more = "" if len(missing) <= _MAX_NAMED else f" and {len(missing) - _MAX_NAMED} more"
        raise NotFoundError(
            f"{directory}: {format_count(len(missing), 'part')} of {counts[0]} not there: {shown}"
            f"{more}; make each with the command that made the others and --part I/{counts[0]}, "
            f"such as --part {missing[0]}/{counts[0]}",
            path=directory,
        )


# What all parts of a run have in common, besides their fingerprint.
_OF_A_RUN = (
    *("seed", "epochs", "batches_per_epoch", "cached_by", "num_slots", "cached", "plain"),
    *("has_edge_ids", "piece_bytes", "schema", "device"),
)


def other_run(one: PackedManifest, other: PackedManifest) -> list[str]:
    """Return in words by what parts differ that are not of one run."""
    first, second = _of_run(one), _of_run(other)
    return [
        f"another {name}"
        if name == "schema"
        else f"{name} is {second.get(name)!r}, not {first.get(name)!r}"
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name)
    ]


def _of_run(manifest: PackedManifest) -> dict[str, Any]:
    choice = None if manifest.part is None else f"{manifest.part.cached_crc32c:08x}"
    own = {name: getattr(manifest, name) for name in _OF_A_RUN}
    return {**own, **manifest.fingerprint, "choice of cached rows": choice}


PACKED = KINDS.register(
    Kind(
        PackedManifest,
        PackedReader.open,
        frozenset(
            {INDEX_ARRAY, BATCHES_ARRAY, SEGMENTS_ARRAY, ROWS_GROUP, CACHE_GROUP, DEVICE_GROUP}
            | {"graph", "values", "scales"}
        ),
        PACKED_DIRECTORY,
    )
)
