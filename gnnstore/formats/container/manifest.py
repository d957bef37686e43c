"""The manifest of a sealed directory: its kind, its version, and every file that belongs to it.

A sealed directory is a Zarr group whose attributes are its manifest. Zarr reads a missing chunk as
zeros and cannot see a flipped byte; the manifest lists every file with its exact size, and refers
to a checksum of every block of every file. It is written last and checked first. A kind of
directory (a store, packed epochs) is a subclass that adds fields of its own.
`docs/format.md` is normative.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from gnnstore._version import __version__
from gnnstore.errors import CorruptStoreError, StorageError, UnsupportedVersionError
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE, group_metadata
from gnnstore.formats.base.files import BLOCK_BYTES, crc32c_of, open_binary
from gnnstore.formats.base.names import check_relative_path
from gnnstore.formats.base.strict_json import Fields, parse_object, to_json
from gnnstore.units import Registry

CHECKSUMS_ARRAY = "checksums"
MAX_MANIFEST_BYTES = 2**26
ZERO_CRC = "0" * 8

_CRC_FIELD = re.compile(rb'"manifest_crc32c": ?"([0-9a-f]{8})"')
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class FileEntry:
    """A file of a sealed directory: relative path and exact size."""

    path: str
    size_bytes: int

    @property
    def num_blocks(self) -> int:
        """Checksummed blocks of the file."""
        return -(-self.size_bytes // BLOCK_BYTES)


@dataclass(frozen=True, kw_only=True)
class Manifest(ABC):
    """Fields that the manifests of all kinds have.

    A kind defines `arrays` and the fields of its own.
    """

    FORMAT: ClassVar[str]
    FILE: ClassVar[str] = METADATA_FILE  # of the manifest
    VERSION: ClassVar[int]
    # The first version that is still read.
    OLDEST: ClassVar[int] = 1
    # Features that a reader must know beyond the version. (Writer features are recorded for tools
    # that add to a directory, and never stop a reader.)
    READER_FEATURES: ClassVar[frozenset[str]] = frozenset()
    # Words for messages: "store", "convert".
    WORD: ClassVar[str]
    VERB: ClassVar[str]
    # Advice where a directory is missing: "make one with 'gnnstore convert'".
    MAKE: ClassVar[str]

    created_by: str = f"gnnstore {__version__}"
    uuid: str = ""
    # Every file but the root `zarr.json` and the checksums; in the order in which their blocks
    # stand in the checksums array.
    files: tuple[FileEntry, ...] = ()
    # The files of the checksums array, each with the crc32c of the whole file.
    checksum_files: tuple[tuple[FileEntry, int], ...] = ()
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()

    @classmethod
    def parse(cls, own: Fields) -> Mapping[str, Any]:
        """Check the fields of this kind, and return them as arguments of the class."""
        return own.values(cls, Manifest)

    @abstractmethod
    def arrays(self) -> tuple[AttributeSpec, ...]:
        """Return every required array but the checksums."""

    def spec(self, path: str) -> AttributeSpec:
        """Return the description of an array."""
        return next(spec for spec in self.arrays() if spec.path == path)

    @classmethod
    def is_at(cls, path: Path) -> bool:
        """Whether a directory seems to be of this kind, of any version, intact or not."""
        try:
            with open_binary(path / cls.FILE, error=StorageError) as file:
                return f'"{cls.key()}"'.encode() in file.read(_HEAD_BYTES)
        except OSError:
            return False

    @classmethod
    def key(cls) -> str:
        """Return the name of the root group's attribute that holds the manifest."""
        return cls.FORMAT.replace("-", "_")

    @property
    def format_version(self) -> int:
        """Version of the format."""
        return self.VERSION

    def first_blocks(self) -> list[int]:
        """Return the position of each file's first block in the checksums; last, their number."""
        return [0, *accumulate(entry.num_blocks for entry in self.files)]

    def encode(self) -> bytes:
        """Return the bytes of the root `zarr.json`, sealed with their own crc32c."""
        own = {
            "format": self.FORMAT,
            "format_version": self.format_version,
            "reader_features": list(self.reader_features),
            "writer_features": list(self.writer_features),
            "manifest_crc32c": ZERO_CRC,
            "uuid": self.uuid,
            "created_by": self.created_by,
            **to_json(self, Manifest),
            "block_bytes": BLOCK_BYTES,
            "files": [[entry.path, entry.size_bytes] for entry in self.files],
            "checksum_files": [
                [entry.path, entry.size_bytes, f"{crc:08x}"] for entry, crc in self.checksum_files
            ],
        }
        # One space of indentation: people do open this file.
        document = group_metadata({self.key(): own})
        zeroed = json.dumps(document, indent=1, allow_nan=False).encode()
        return seal(zeroed, crc32c_of(zeroed))

    @classmethod
    def decode(cls, text: bytes, path: str) -> Self:
        """Check the bytes of a root `zarr.json` and return the manifest in it."""
        attributes = parse_object(text, path=path).get("attributes")
        if not isinstance(attributes, dict) or cls.key() not in attributes:
            raise CorruptStoreError(
                f"{path}: a Zarr group, but not a gnnstore {cls.WORD} (no {cls.key()!r} "
                f"attribute); {cls.MAKE}",
                path=path,
            )
        own = Fields(attributes[cls.key()], path, f"attributes.{cls.key()}")
        own.choice("format", (cls.FORMAT,))
        cls.check_version(own, own.integer("format_version", 1))
        check_seal(text, path, cls.VERB)
        if own.integer("block_bytes") != BLOCK_BYTES:
            raise own.fail("block_bytes", str(BLOCK_BYTES))
        files = [_file_entry(own, "files", item, 2) for item in own.array("files")]
        checksums = [
            (_file_entry(own, "checksum_files", item, 3), _crc_field(own, item[2]))
            for item in own.array("checksum_files")
        ]
        paths = [entry.path for entry in files] + [entry.path for entry, _ in checksums]
        if len(set(paths)) != len(paths):
            raise own.fail("files", "each file once")
        return cls(
            uuid=own.text("uuid"),
            created_by=own.text("created_by"),
            files=tuple(files),
            checksum_files=tuple(checksums),
            reader_features=own.texts("reader_features"),
            writer_features=own.texts("writer_features"),
            **cls.parse(own),
        )

    @classmethod
    def check_version(cls, own: Fields, version: int) -> None:
        """Refuse a version that is not read, and reader features that are not known."""
        features = own.texts("reader_features") if own.has("reader_features") else ()
        known = f"this gnnstore reads up to {cls.VERSION}"
        upgrade = "Upgrade with 'pip install --upgrade gnnstore'"
        if version < cls.OLDEST:
            what = f"has format version {version}; this gnnstore reads {cls.OLDEST} and later ones"
            advice = f"{cls.VERB.capitalize()} again"
        elif version > cls.VERSION:
            what, advice = f"has format version {version}; {known}", upgrade
        elif unknown := sorted(set(features) - cls.READER_FEATURES):
            names = ", ".join(unknown)
            what = f"needs the reader features {names}, which this gnnstore does not know"
            advice = upgrade
        else:
            return
        raise UnsupportedVersionError(f"{own.path}: the {cls.WORD} {what}. {advice}", path=own.path)


@dataclass(frozen=True)
class Kind:
    """A kind of sealed directory."""

    manifest: type[Manifest]  # fields and version
    open: Callable[[Path], Any]  # opens a directory of this kind: returns its `SealedReader`
    # Entries that a directory of this kind may hold while it is written, with every kind's.
    entries: frozenset[str]
    directory: str = ""  # the directory of this kind's units in a store; "": there is none
    has_output: bool = True  # whether commands write such a directory elsewhere, too

    @property
    def name(self) -> str:
        """The word for a directory of this kind."""
        return self.manifest.WORD


KINDS: Registry[Kind] = Registry()


def kind_of(path: Path) -> Kind | None:
    """Return the kind that a directory seems to be, of any version, intact or not."""
    return next((kind for kind in KINDS if kind.manifest.is_at(path)), None)


def content_uuid(manifest: bytes, blocks: npt.NDArray[np.uint32]) -> str:
    """Return the identity of a directory: equal for equal contents, whenever they were written."""
    digest = hashlib.sha256(manifest + blocks.astype("<u4").tobytes()).digest()
    # A UUID with bits of our own choice (RFC 9562, version 8).
    marked = bytearray(digest[:16])
    marked[6] = marked[6] & 0x0F | 0x80
    marked[8] = marked[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(marked)))


def seal(zeroed: bytes, crc: int) -> bytes:
    """Return a document with its checksum in the place of the zeros."""
    match = _CRC_FIELD.search(zeroed)
    assert match is not None  # encode() has just written the field  # noqa: S101
    return zeroed[: match.start(1)] + f"{crc:08x}".encode() + zeroed[match.end(1) :]


def check_seal(text: bytes, path: str, verb: str) -> None:
    """Refuse a sealed document that was altered."""
    match, found = _CRC_FIELD.search(text), None
    if match is not None:
        found = crc32c_of(text[: match.start(1)] + ZERO_CRC.encode() + text[match.end(1) :])
    if match is None or found != int(match[1], 16):
        raise CorruptStoreError(
            f"{path}: the manifest was altered after it was written (its crc32c is not the one "
            f"that it says); {verb} again or restore the file from a copy",
            path=path,
        )


def _file_entry(own: Fields, key: str, item: Any, length: int) -> FileEntry:
    """Check an item of a list of files: `length` values that begin with path and size."""
    if (
        not isinstance(item, list)
        or len(item) != length
        or not isinstance(item[0], str)
        or not isinstance(item[1], int)
        or isinstance(item[1], bool)
        or not 0 <= item[1] < 2**62
    ):
        raise own.fail(key, "a list of [path, size in bytes, ...]")
    return FileEntry(check_relative_path(item[0], file=own.path), item[1])


def _crc_field(own: Fields, text: Any) -> int:
    if not isinstance(text, str) or not re.fullmatch("[0-9a-f]{8}", text):
        raise own.fail("checksum_files", "a crc32c of 8 hexadecimal digits")
    return int(text, 16)
