"""The manifest of an embedding table: its shape and options, and its last commits.

A commit names the slot and the checksum of each partition. It exists when the manifest that lists
it has its name, and was durable before: opening a table finds the last commit whole, whenever the
writer was killed.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from gnnstore.errors import (
    CorruptStoreError,
    NotFoundError,
    UsageError,
    storage_errors,
)
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base.files import (
    crc32c_of,
    fsync_directory,
    read_small,
    write_new,
)
from gnnstore.formats.base.strict_json import Fields, parse_object, to_json
from gnnstore.formats.container.manifest import KINDS, Kind, Manifest

MANIFEST_FILE = "table.json"
SLOTS_FILE = "slots"

# Alignment of slots, so that any disk takes them directly.
_SLOT_ALIGNMENT = 64 << 10
_FLOAT_BYTES = 4
_MAX_BYTES = 2**26
MAX_PARTITIONS = 2**16
# Partitions of all kept commits and of the next one.
MAX_KEPT = 2**19
# Slots of these partitions, and of a failed commit.
_MAX_SLOTS = 2**20
MAX_DIM = 2**20

# How rows begin: the distribution, and c, where the spread has the factor sqrt(c / (N + dim)) for
# the matrix of all rows [N, dim]; 0: no such factor.
INITIAL: dict[str, tuple[str | None, float]] = {
    "xavier_uniform": ("uniform", 6.0),
    "xavier_normal": ("normal", 2.0),
    "uniform": ("uniform", 0.0),
    "normal": ("normal", 0.0),
    "zeros": (None, 0.0),
}

# State of each row by optimizer: floats for the row, and floats for each column.
STATE_FLOATS = {
    "rowwise_adagrad": (1, 0),
    "adagrad": (0, 1),
    "sgd": (0, 0),
    "sparse_adam": (0, 2),
}


@dataclass(frozen=True)
class Commit:
    """Rows as they were at a moment."""

    id: str  # unique identity
    parent: str | None  # the commit before it
    steps: int  # steps of the optimizer before it
    # State of the loader at that moment, as its `state_dict` returned it.
    position: Mapping[str, Any] | None
    # int64 [p]: the slot of each partition; -1: its rows have their initial values.
    slots: npt.NDArray[np.int64]
    crcs: npt.NDArray[np.uint32]  # uint32 [p]: checksum of each slot; 0 where there is none

    @classmethod
    def first(cls, num_partitions: int) -> Self:
        """Return the first commit of a table: all rows have their initial values."""
        slots = np.full(num_partitions, -1, np.int64)
        return cls(uuid.uuid4().hex, None, 0, None, slots, np.zeros(num_partitions, np.uint32))

    @classmethod
    def from_json(cls, own: Fields) -> Self:
        """Return the commit of JSON values, checked."""
        slots = own.integers("slots", -1, _MAX_SLOTS - 1)
        crcs = own.integers("crcs", 0, 2**32 - 1)
        return cls(
            own.text("id"),
            own.text("parent") if own.has("parent") else None,
            own.integer("steps"),
            own.mapping("position") if own.has("position") else None,
            np.array(slots, np.int64),
            np.array(crcs, np.uint32),
        )


@dataclass(frozen=True, kw_only=True)
class TableManifest(Manifest):
    """Shape and options of a table, and its last commits, the newest last."""

    FORMAT: ClassVar[str] = "gnnstore-table"
    VERSION: ClassVar[int] = 1
    FILE: ClassVar[str] = MANIFEST_FILE
    WORD: ClassVar[str] = "table"
    VERB: ClassVar[str] = "create"
    MAKE: ClassVar[str] = "make one with gnnstore.EmbeddingTable.create"

    store_uuid: str
    # Name of the store's partitioning by which rows are cut; None: rows are in the order of nodes.
    partitions: str | None
    partitions_uuid: str | None  # identity of that partitioning
    num_nodes: Annotated[int, 1]
    dim: Annotated[int, 1, MAX_DIM]
    rows_per_partition: Annotated[int, 1]  # rows of each partition but the last
    optimizer: str  # a key of `STATE_FLOATS`: decides the state of each row
    init: str  # a key of `INITIAL`: the distribution of initial rows
    scale: float  # the spread of initial rows, or its factor; see `InitialRows`
    seed: Annotated[int, 0, 2**64 - 1]  # seed of initial rows
    keep: Annotated[int, 1]  # number of last commits to keep
    commits: tuple[Commit, ...] = ()

    @property
    def num_partitions(self) -> int:
        """Number of partitions."""
        return -(-self.num_nodes // self.rows_per_partition)

    @property
    def state_floats(self) -> int:
        """Floats of a row's state."""
        fixed, per_column = STATE_FLOATS[self.optimizer]
        return fixed + per_column * self.dim

    @property
    def used_bytes(self) -> int:
        """Bytes of the values and state of a partition."""
        return self.rows_per_partition * (self.dim + self.state_floats) * _FLOAT_BYTES

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot: a partition, and padding that aligns the next one."""
        return -(-self.used_bytes // _SLOT_ALIGNMENT) * _SLOT_ALIGNMENT

    @property
    def slot_floats(self) -> int:
        """Floats of a slot."""
        return self.slot_bytes // _FLOAT_BYTES

    def rows(self, partition: int) -> range:
        """Return the rows of a partition."""
        begin = partition * self.rows_per_partition
        return range(begin, min(begin + self.rows_per_partition, self.num_nodes))

    def find(self, commit: str | None, path: Path) -> Commit:
        """Return a commit by its id; by default the last one."""
        if commit is None:
            return self.commits[-1]
        for found in self.commits:
            if found.id == commit:
                return found
        raise UsageError(
            f"{path}: the commit {commit} is not in this table, which has kept "
            f"{', '.join(found.id for found in self.commits)}; take the checkpoint that belongs to "
            "one of these, and create tables with a larger keep= to go back further"
        )

    def following(self, base: Commit, new: Commit) -> Self:
        """Return the manifest with a new commit that follows another."""
        before = self.commits[: 1 + [each.id for each in self.commits].index(base.id)]
        return replace(self, commits=(*before, new)[-self.keep :])

    def write(self, directory: Path, named: Path | None = None) -> None:
        """Write this manifest to a directory, durably and atomically; messages may name another."""
        text, path = self.encode(), (named or directory) / MANIFEST_FILE
        try:
            if len(text) > _MAX_BYTES:
                raise CorruptStoreError(f"{path}: more than {_MAX_BYTES} bytes", path=path)
            self.decode(text, str(path))
        except CorruptStoreError as error:
            raise UsageError(
                f"{error.message}: readers would refuse this, so that nothing was committed; give "
                "commit() the state of a loader, and keep other values in the checkpoint"
            ) from None
        new = directory / f"{MANIFEST_FILE}.tmp"
        with storage_errors("commit the table", named or directory):
            with suppress(FileNotFoundError):
                new.unlink()
            write_new(new, text)
            os.replace(new, directory / MANIFEST_FILE)  # noqa: PTH105 - what audit hooks see
            fsync_directory(directory)

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read and check the manifest of a directory."""
        path = directory / MANIFEST_FILE
        if not path.exists():
            raise NotFoundError(
                f"{directory}: there is no table of embeddings (no {MANIFEST_FILE}); make one with "
                "gnnstore.EmbeddingTable.create",
                path=directory,
            )
        return cls.decode(read_small(path, _MAX_BYTES), str(path))

    def encode(self) -> bytes:
        """Return the bytes of the manifest, with their checksum."""
        table = {
            "format": self.FORMAT,
            "version": self.VERSION,
            "created_by": self.created_by,
            "uuid": self.uuid,
            **to_json(self, Manifest),
        }
        return json.dumps({"crc32c": crc32c_of(canonical(table)), "table": table}).encode()

    @classmethod
    def decode(cls, text: bytes, path: str) -> Self:
        """Check the bytes of a manifest and return it."""
        whole = Fields(parse_object(text, path=path), path)
        own = whole.fields("table")
        own.choice("format", (cls.FORMAT,))
        cls.check_version(own, own.integer("version", 1))
        if crc32c_of(canonical(own.document)) != whole.integer("crc32c"):
            raise CorruptStoreError(
                f"{path}: damaged: its checksum does not fit its contents; restore the table "
                "from a copy",
                path=path,
            )
        created_by, identity = own.text("created_by"), own.text("uuid")
        return cls(created_by=created_by, uuid=identity, **cls.parse(own))

    @classmethod
    def parse(cls, own: Fields) -> Mapping[str, Any]:
        """Check the fields of a table, and return them as arguments of the class."""
        own.choice("optimizer", tuple(STATE_FLOATS))
        own.choice("init", tuple(INITIAL))
        rows = own.integer("rows_per_partition", 1, own.integer("num_nodes", 1))
        num_partitions = -(-own.integer("num_nodes") // rows)
        if num_partitions > MAX_PARTITIONS:
            raise own.fail("rows_per_partition", f"at most {MAX_PARTITIONS} partitions")
        found = own.values(cls, Manifest)
        if not found.get("commits"):
            raise own.fail("commits", "at least one commit")
        for each, commit in zip(own.children("commits"), found["commits"], strict=True):
            written = commit.slots[commit.slots >= 0]
            if len(commit.slots) != num_partitions or len(np.unique(written)) < len(written):
                raise each.fail("slots", f"{num_partitions} slots, none of them twice")
            if len(commit.crcs) != num_partitions:
                raise each.fail("crcs", f"{num_partitions} checksums")
        return found

    @classmethod
    def is_at(cls, path: Path) -> bool:
        """Whether a directory looks like a table."""
        return (path / MANIFEST_FILE).exists()

    def arrays(self) -> tuple[AttributeSpec, ...]:
        """Return no arrays: rows are in slots."""
        return ()


def canonical(table: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest that its checksum covers."""
    return json.dumps(table, separators=(",", ":")).encode()


TABLE = KINDS.register(
    Kind(
        TableManifest,
        TableManifest.read,
        frozenset({SLOTS_FILE, MANIFEST_FILE, f"{MANIFEST_FILE}.tmp"}),
    )
)
