"""The manifest of a packed plan: what was sampled, how it was packed, and every file.

A plan is a Zarr group like a store, and its manifest is the attributes of the root group too,
sealed in the same way. Nothing else is needed to train: neither the graph nor its features.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from gnnstore.errors import CorruptStoreError, StorageError, UnsupportedVersionError
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE, group_metadata
from gnnstore.formats.container.names import encode
from gnnstore.formats.container.regular_files import open_binary
from gnnstore.formats.container.strict_json import Fields, parse_object
from gnnstore.formats.store.manifest import (
    BLOCK_BYTES,
    ZERO_CRC,
    FileEntry,
    check_seal,
    crc32c_of,
    crc_field,
    file_entry,
    seal,
)
from gnnstore.formats.store.schema import AttributeSpec, Schema

PLANS_DIRECTORY = "plans"
PLAN_FORMAT_NAME = "gnnstore-plan"
PLAN_FORMAT_VERSION = 3
# What a plan is without checksums of its rows: with segments or compression, and without them.
_UNCHECKED_VERSION = 2
_PLAIN_VERSION = 1

INDEX_ARRAY = "index"
BATCHES_ARRAY = "batches"
ROWS_GROUP = "rows"
SEGMENTS_ARRAY = "segments"
# Of the index: where a batch's record begins, its bytes and its crc32c, the rows it misses. Then,
# for each cached attribute, where its run of rows begins.
INDEX_COLUMNS = 4
# In a plan that is compressed: then, for each cached attribute, the bytes of its run as it is kept;
# then their crc32c, for each.
FRAME_COLUMNS = 2
COMPRESSIONS = ("lz4", "zstd")
# A run that is kept as it is has a checksum for each piece of so many bytes at most: a reader reads
# no more at a time.
MAX_PIECE_BYTES = 512 << 10
# Of rows that batches share, in one checksum.
CHECKED_ROWS = 64
# Of the segments: the first batch and the one behind the last, shared rows, and rows of a chunk.
# Then, for each cached attribute, where the first chunk begins.
SEGMENT_COLUMNS = 4
# Records, runs and chunks begin at multiples of this, so that they can be read around the page
# cache.
PLAN_ALIGNMENT_BYTES = 4096

_MAX_EPOCHS = 2**31

# In a fingerprint, the number of arrays by which a record says what its batch starts from; by
# default one, `input_id`.
SEED_ARRAYS = "seed arrays"
_MAX_SEED_ARRAYS = 64


@dataclass(frozen=True)
class PlanManifest:
    """Identity, contents and files of a plan.

    Attributes
    ----------
    fingerprint : Mapping
        All that the batches depend on besides the seed, as in the state of a loader.
    seed : int
    epochs : int
        Epochs 0 to epochs - 1 are packed.
    batches_per_epoch : int
    superbatch : int
        Batches that were planned at a time.
    segment : int
        Batches that share rows on disk; 1: each has its own.
    compression : str or None
        How runs are kept: "lz4" or "zstd"; None: as they are.
    piece_bytes : int or None
        What one checksum of rows in a record is of; None: records have none.
    num_slots : int
        Rows of each cached attribute that are held while the batches are assembled.
    cached_by : str
        What decided which: "belady", "degree" or "frequency".
    largest_batch_bytes : int
        Of a batch with its attributes.
    schema : Schema
        Of the store.
    cached : tuple of str
        Paths in the store of the node attributes whose missed rows are packed.
    plain : tuple of str
        Paths of the other attributes, of nodes and of edges, whose rows are in the records.
    has_edge_ids : bool
        Whether records hold edge ids; else positions are ids.
    files, checksum_files
        As in `Manifest`.
    """

    created_by: str
    fingerprint: Mapping[str, Any]
    seed: int
    epochs: int
    batches_per_epoch: int
    superbatch: int
    num_slots: int
    largest_batch_bytes: int
    schema: Schema
    cached: tuple[str, ...]
    plain: tuple[str, ...]
    has_edge_ids: bool
    segment: int = 1
    cached_by: str = "belady"
    compression: str | None = None
    piece_bytes: int | None = None
    files: tuple[FileEntry, ...] = ()
    checksum_files: tuple[tuple[FileEntry, int], ...] = ()

    @property
    def num_batches(self) -> int:
        """Batches of all epochs."""
        return self.epochs * self.batches_per_epoch

    @property
    def has_segments(self) -> bool:
        """Whether batches share rows on disk."""
        return self.segment > 1

    @property
    def format_version(self) -> int:
        """The oldest version whose readers can read the plan."""
        if self.piece_bytes is not None:
            return PLAN_FORMAT_VERSION
        is_plain = not self.has_segments and self.compression is None
        return _PLAIN_VERSION if is_plain else _UNCHECKED_VERSION

    @property
    def is_checked(self) -> bool:
        """Whether all rows are compared with checksums as they are read."""
        # Frames have theirs in the index, in every version.
        is_framed = self.compression is not None and not self.has_segments
        return not self.cached or is_framed or self.piece_bytes is not None

    @property
    def num_seed_arrays(self) -> int:
        """Arrays of a record that say what the batch shows of its seeds; one of nodes."""
        count = self.fingerprint.get(SEED_ARRAYS, 1)
        return count if isinstance(count, int) and 0 < count <= _MAX_SEED_ARRAYS else 1

    @property
    def crc_arrays(self) -> tuple[int, int]:
        """How many arrays a record has with checksums of runs, and of rows that batches share."""
        if self.piece_bytes is None:
            return 0, 0
        num_cached = len(self.cached)
        of_runs = num_cached if self.compression is None else 0
        return of_runs, num_cached if self.has_segments else 0

    @property
    def index_columns(self) -> int:
        """How many the index has."""
        each = 1 + (0 if self.compression is None else FRAME_COLUMNS)
        return INDEX_COLUMNS + each * len(self.cached)

    @property
    def cached_specs(self) -> tuple[AttributeSpec, ...]:
        """Descriptions of the cached attributes, in their order."""
        return self._specs(self.cached)

    @property
    def plain_specs(self) -> tuple[AttributeSpec, ...]:
        """Descriptions of the attributes in the records, in their order."""
        return self._specs(self.plain)

    def _specs(self, paths: tuple[str, ...]) -> tuple[AttributeSpec, ...]:
        found = {spec.path: spec for spec in self.schema.arrays()}
        return tuple(found[path] for path in paths)

    def all_files(self) -> tuple[FileEntry, ...]:
        """Return every file that must be there, but the root `zarr.json`."""
        return (*self.files, *(entry for entry, _ in self.checksum_files))

    def first_blocks(self) -> list[int]:
        """Return the position of each file's first block in the checksums; then their number."""
        return [0, *accumulate(entry.num_blocks for entry in self.files)]

    def encode(self) -> bytes:
        """Return the bytes of the root `zarr.json`, sealed with their own crc32c."""
        document = group_metadata(
            {
                "gnnstore_plan": {
                    "format": PLAN_FORMAT_NAME,
                    "format_version": self.format_version,
                    "manifest_crc32c": ZERO_CRC,
                    "created_by": self.created_by,
                    "fingerprint": dict(self.fingerprint),
                    "seed": self.seed,
                    "epochs": self.epochs,
                    "batches_per_epoch": self.batches_per_epoch,
                    "superbatch": self.superbatch,
                    **({"segment": self.segment} if self.has_segments else {}),
                    **({} if self.compression is None else {"compression": self.compression}),
                    **({} if self.piece_bytes is None else {"piece_bytes": self.piece_bytes}),
                    "num_slots": self.num_slots,
                    "cached_by": self.cached_by,
                    "largest_batch_bytes": self.largest_batch_bytes,
                    "cached": list(self.cached),
                    "plain": list(self.plain),
                    "has_edge_ids": self.has_edge_ids,
                    "schema": self.schema.to_json(),
                    "block_bytes": BLOCK_BYTES,
                    "files": [[entry.path, entry.size_bytes] for entry in self.files],
                    "checksum_files": [
                        [entry.path, entry.size_bytes, f"{crc:08x}"]
                        for entry, crc in self.checksum_files
                    ],
                }
            }
        )
        zeroed = json.dumps(document, indent=1, allow_nan=False).encode()
        return seal(zeroed, crc32c_of(zeroed))

    @classmethod
    def decode(cls, text: bytes, path: str) -> PlanManifest:
        """Check the bytes of a root `zarr.json` and return the manifest in it.

        Raises
        ------
        UnsupportedVersionError
            If it was written by a newer gnnstore; this comes before every other check.
        CorruptStoreError
            If it is no plan, malformed or altered.
        """
        attributes = parse_object(text, path=path).get("attributes")
        if not isinstance(attributes, dict) or "gnnstore_plan" not in attributes:
            raise CorruptStoreError(
                f"{path}: a Zarr group, but not a packed plan (no 'gnnstore_plan' attribute); "
                "make one with 'gnnstore pack'",
                path=path,
            )
        own = Fields(attributes["gnnstore_plan"], path, "attributes.gnnstore_plan")
        own.choice("format", (PLAN_FORMAT_NAME,))
        version = own.integer("format_version", 1)
        if version > PLAN_FORMAT_VERSION:
            raise UnsupportedVersionError(
                f"{path}: the plan has format version {version}; this gnnstore reads up to "
                f"{PLAN_FORMAT_VERSION}. Upgrade with 'pip install --upgrade gnnstore'",
                path=path,
            )
        check_seal(text, path)
        if own.integer("block_bytes") != BLOCK_BYTES:
            raise own.fail("block_bytes", str(BLOCK_BYTES))
        manifest = cls(
            created_by=own.text("created_by"),
            fingerprint=own.mapping("fingerprint"),
            seed=own.integer("seed", 0, 2**64 - 1),
            epochs=own.integer("epochs", 1, _MAX_EPOCHS),
            batches_per_epoch=own.integer("batches_per_epoch"),
            superbatch=own.integer("superbatch", 1),
            # Written from the first version on, but for the first plans of it.
            cached_by=own.text("cached_by") if "cached_by" in own.document else "belady",
            segment=own.integer("segment", 2) if "segment" in own.document else 1,
            compression=(
                own.choice("compression", COMPRESSIONS) if "compression" in own.document else None
            ),
            piece_bytes=_piece_bytes(own) if "piece_bytes" in own.document else None,
            num_slots=own.integer("num_slots"),
            largest_batch_bytes=own.integer("largest_batch_bytes"),
            schema=Schema.from_json(own.fields("schema")),
            cached=tuple(str(item) for item in own.array("cached")),
            plain=tuple(str(item) for item in own.array("plain")),
            has_edge_ids=bool(own.document.get("has_edge_ids")),
            files=tuple(file_entry(own, "files", item, 2) for item in own.array("files")),
            checksum_files=tuple(
                (file_entry(own, "checksum_files", item, 3), crc_field(own, item[2]))
                for item in own.array("checksum_files")
            ),
        )
        return manifest._checked(own)

    def _checked(self, own: Fields) -> PlanManifest:
        """Compare what is packed with what the schema has."""
        node, edge = self.schema.node, self.schema.edge
        nodes = [spec.path for spec in node.attributes.values()]
        edges = [spec.path for spec in edge.attributes.values()]
        if not set(self.cached) <= set(nodes):
            raise own.fail("cached", "paths of node attributes of the schema")
        if sorted([*self.cached, *self.plain]) != sorted([*nodes, *edges]):
            raise own.fail("plain", "with 'cached', each attribute of the schema once")
        paths = [entry.path for entry in self.all_files()]
        if len(set(paths)) != len(paths):
            raise own.fail("files", "each file once")
        return self


def _piece_bytes(own: Fields) -> int:
    """Return what a checksum is of: a reader's reads are of whole pieces."""
    value = own.integer("piece_bytes", PLAN_ALIGNMENT_BYTES, MAX_PIECE_BYTES)
    if MAX_PIECE_BYTES % value:
        raise own.fail("piece_bytes", f"a part of {MAX_PIECE_BYTES}")
    return value


def rows_array(spec: AttributeSpec) -> str:
    """Return the path in a plan of the packed rows of an attribute."""
    return f"{ROWS_GROUP}/{encode(spec.name)}"


def is_plan(path: Path) -> bool:
    """Whether a directory looks like a packed plan, of any version, intact or not."""
    try:
        with open_binary(path / METADATA_FILE, error=StorageError, root=path) as file:
            head = file.read(4096)
    except OSError:
        return False
    return b'"gnnstore_plan"' in head


def find_plans(store: Path) -> list[Path]:
    """Return the packed plans in the directory of a store, by name; links are none."""
    directory = store / PLANS_DIRECTORY
    if directory.is_symlink():
        return []
    try:
        found = sorted(directory.iterdir())
    except OSError:
        return []
    return [
        path
        for path in found
        if not path.name.startswith(".") and not path.is_symlink() and is_plan(path)
    ]
