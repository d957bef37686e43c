"""The manifest of packed epochs: the sampled batches, how they were packed, and every file.

Packed epochs are a sealed directory by themselves. Nothing else is needed to train on them: neither
the graph nor its features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container.manifest import Manifest
from gnnstore.formats.container.names import encode, joined
from gnnstore.formats.container.strict_json import Fields
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
    NOUN: ClassVar[str] = "a directory of packed epochs"
    VERB: ClassVar[str] = "pack"
    ATTEMPT: ClassVar[str] = "attempt to pack"
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
    def index_columns(self) -> int:
        """Columns of the index."""
        return INDEX_COLUMNS + (2 if self.caches_types else 1) * len(self.cached)

    @property
    def segment_columns(self) -> int:
        """Columns of the segments."""
        return SEGMENT_COLUMNS + (2 if self.caches_types else 1) * len(self.cached)

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
        """Return the arrays, graph-level ones included."""
        return (*self.paged_arrays, *self.schema.graph_arrays.values())

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
