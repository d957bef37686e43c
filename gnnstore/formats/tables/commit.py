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
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore._version import __version__
from gnnstore.errors import (
    CorruptStoreError,
    NotFoundError,
    UnsupportedVersionError,
    UsageError,
    storage_errors,
)
from gnnstore.formats.container.files import crc32c_of, fsync_directory, read_small, write_new
from gnnstore.formats.container.strict_json import Fields, parse_object

FORMAT, VERSION = "gnnstore-table", 1
MANIFEST_FILE = "table.json"
SLOTS_FILE = "slots"

# Slots begin at multiples of this, so that any disk takes them directly.
_SLOT_ALIGNMENT = 64 << 10
_FLOAT_BYTES = 4
_MAX_BYTES = 2**26
_MAX_VALUES = 2**21  # a commit of 4,096 partitions has 8,200, and those of its position
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

    def fields(self) -> dict[str, Any]:
        """Return the commit as JSON values."""
        arrays = {"slots": self.slots.tolist(), "crcs": self.crcs.tolist()}
        return {**self.__dict__, **arrays}

    @classmethod
    def parse(cls, own: Fields, num_partitions: int) -> Self:
        """Return the commit of JSON values as `fields` returns them, checked."""
        slots = own.integers("slots", -1, _MAX_SLOTS - 1)
        crcs = own.integers("crcs", 0, 2**32 - 1)
        held = [slot for slot in slots if slot >= 0]
        if len(slots) != num_partitions or len(set(held)) < len(held):
            raise own.fail("slots", f"{num_partitions} slots, none of them twice")
        if len(crcs) != num_partitions:
            raise own.fail("crcs", f"{num_partitions} checksums")
        return cls(
            own.text("id"),
            own.text("parent") if own.has("parent") else None,
            own.integer("steps"),
            own.mapping("position") if own.has("position") else None,
            np.array(slots, np.int64),
            np.array(crcs, np.uint32),
        )


@dataclass(frozen=True, kw_only=True)
class TableManifest:
    """Shape and options of a table, and its last commits, the newest last."""

    uuid: str
    store_uuid: str
    # Name of the store's partitioning by which rows are cut; None: rows are in the order of nodes.
    partitions: str | None
    partitions_uuid: str | None  # identity of that partitioning
    num_nodes: int
    dim: int
    rows_per_partition: int  # rows of each partition but the last
    optimizer: str  # a key of `STATE_FLOATS`: decides the state of each row
    init: str  # a key of `INITIAL`: the distribution of initial rows
    scale: float  # the spread of initial rows, or its factor; see `InitialRows`
    seed: int  # seed of initial rows
    keep: int  # number of last commits to keep
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

    def write(self, directory: Path, opened: Path | None = None) -> None:
        """Write this manifest to a directory, durably and atomically; to the `opened` one there."""
        own = {key: value for key, value in self.__dict__.items() if key != "commits"}
        commits = [commit.fields() for commit in self.commits]
        table = {"format": FORMAT, "version": VERSION, "created_by": f"gnnstore {__version__}"}
        table |= {**own, "commits": commits}
        body = {"crc32c": crc32c_of(_canonical(table)), "table": table}
        text, path = json.dumps(body).encode(), directory / MANIFEST_FILE
        try:
            if len(text) > _MAX_BYTES:
                raise CorruptStoreError(f"{path}: more than {_MAX_BYTES} bytes", path=path)
            self._of_text(text, path)
        except CorruptStoreError as error:
            raise UsageError(
                f"{error.message}: readers would refuse this, so that nothing was committed; give "
                "commit() the state of a loader, and keep other values in the checkpoint"
            ) from None
        opened = directory if opened is None else opened
        new = opened / f"{MANIFEST_FILE}.tmp"
        with storage_errors("commit the table", directory):
            with suppress(FileNotFoundError):
                new.unlink()
            write_new(new, text)
            os.replace(new, opened / MANIFEST_FILE)  # noqa: PTH105 - what audit hooks see
            fsync_directory(opened)

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
        return cls._of_text(read_small(path, _MAX_BYTES), path)

    @classmethod
    def _of_text(cls, text: bytes, path: Path) -> Self:
        document = parse_object(text, path=str(path), max_values=_MAX_VALUES)
        whole = Fields(document, str(path))
        own = whole.fields("table")
        if own.text("format") != FORMAT:
            raise own.fail("format", FORMAT)
        if own.integer("version", 1) > VERSION:
            raise UnsupportedVersionError(
                f"{path.parent}: a table of version {own.integer('version')}, but this gnnstore "
                f"reads up to {VERSION}; install a newer one",
                path=path.parent,
            )
        if crc32c_of(_canonical(own.document)) != whole.integer("crc32c"):
            raise CorruptStoreError(
                f"{path}: damaged: its checksum is not that of its contents; restore the table "
                "from a copy",
                path=path,
            )
        return cls._parsed(own)

    @classmethod
    def _parsed(cls, own: Fields) -> Self:
        scale = own.document.get("scale")
        if not isinstance(scale, float):
            raise own.fail("scale", "a number")
        found = cls(
            uuid=own.text("uuid"),
            store_uuid=own.text("store_uuid"),
            partitions=own.text("partitions") if own.has("partitions") else None,
            partitions_uuid=own.text("partitions_uuid") if own.has("partitions_uuid") else None,
            num_nodes=own.integer("num_nodes", 1),
            dim=own.integer("dim", 1, MAX_DIM),
            rows_per_partition=own.integer("rows_per_partition", 1, own.integer("num_nodes", 1)),
            optimizer=own.choice("optimizer", tuple(STATE_FLOATS)),
            init=own.choice("init", tuple(INITIAL)),
            scale=scale,
            seed=own.integer("seed", 0, 2**64 - 1),
            keep=own.integer("keep", 1),
        )
        if found.num_partitions > MAX_PARTITIONS:
            raise own.fail("rows_per_partition", f"at most {MAX_PARTITIONS} partitions")
        commits = [Commit.parse(each, found.num_partitions) for each in own.children("commits")]
        if not commits:
            raise own.fail("commits", "at least one commit")
        return replace(found, commits=tuple(commits))


def _canonical(table: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest that its checksum covers."""
    return json.dumps(table, separators=(",", ":")).encode()
