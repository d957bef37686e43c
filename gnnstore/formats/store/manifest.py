"""The manifest: what makes a directory of Zarr arrays a store.

Zarr reads a missing chunk as zeros and cannot see a flipped byte. The manifest lists every
file with its exact size and refers to a checksum of every block of every file. It is the
attributes of the root group's `zarr.json`: written last, checked first, and no loose file
for Zarr readers to stumble on. `docs/format.md` is normative.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, StorageError, UnsupportedVersionError
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE, group_metadata
from gnnstore.formats.container.names import check_relative_path
from gnnstore.formats.container.regular_files import open_binary
from gnnstore.formats.container.strict_json import Fields, parse_object
from gnnstore.formats.store.schema import Schema

FORMAT_NAME = "gnnstore"
FORMAT_VERSION = 1
# Features that a reader must know beyond the version. Version 1 has none; a store that
# names one is refused by readers that do not know it. (Writer features are recorded for
# tools that add to a store, and never stop a reader.)
READER_FEATURES: frozenset[str] = frozenset()

BLOCK_BYTES = 2**20
CHECKSUMS_ARRAY = "checksums"
MAX_MANIFEST_BYTES = 2**26

_CRC_FIELD = re.compile(rb'"manifest_crc32c": ?"([0-9a-f]{8})"')
ZERO_CRC = "0" * 8


@dataclass(frozen=True)
class FileEntry:
    """A file of the store: path relative to the store, and exact size."""

    path: str
    size_bytes: int

    @property
    def num_blocks(self) -> int:
        """Checksummed blocks of the file."""
        return -(-self.size_bytes // BLOCK_BYTES)


@dataclass(frozen=True)
class Manifest:
    """Identity, contents and files of a store.

    Attributes
    ----------
    files : tuple of FileEntry
        Every file but the root `zarr.json` and the checksums; in the order in which their
        blocks stand in the checksums array.
    checksum_files : tuple of (FileEntry, int)
        The files of the checksums array, each with the crc32c of the whole file.
    """

    uuid: str
    created_by: str
    schema: Schema
    files: tuple[FileEntry, ...]
    checksum_files: tuple[tuple[FileEntry, int], ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()

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
                "gnnstore": {
                    "format": FORMAT_NAME,
                    "format_version": self.format_version,
                    "reader_features": list(self.reader_features),
                    "writer_features": list(self.writer_features),
                    "manifest_crc32c": ZERO_CRC,
                    "uuid": self.uuid,
                    "created_by": self.created_by,
                    "provenance": dict(self.provenance),
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
        # One space of indentation: people do open this file.
        zeroed = json.dumps(document, indent=1, allow_nan=False).encode()
        return seal(zeroed, crc32c_of(zeroed))

    @classmethod
    def decode(cls, text: bytes, path: str) -> Manifest:
        """Check the bytes of a root `zarr.json` and return the manifest in it.

        Raises
        ------
        UnsupportedVersionError
            If the format version or a reader feature is unknown; this comes before every
            other check, since a newer format may differ in all the rest.
        CorruptStoreError
            If the file is not a manifest, is malformed or altered.
        """
        document = parse_object(text, path=path)
        attributes = document.get("attributes")
        if not isinstance(attributes, dict) or "gnnstore" not in attributes:
            raise CorruptStoreError(
                f"{path}: a Zarr group, but not a gnnstore store (no 'gnnstore' attribute); "
                "convert a data set with 'gnnstore convert'",
                path=path,
            )
        own = Fields(attributes["gnnstore"], path, "attributes.gnnstore")
        own.choice("format", (FORMAT_NAME,))
        version = own.integer("format_version", 1)
        features = tuple(str(item) for item in own.array("reader_features"))
        _check_supported(path, version, features)
        check_seal(text, path)
        if own.integer("block_bytes") != BLOCK_BYTES:
            raise own.fail("block_bytes", str(BLOCK_BYTES))
        files = [file_entry(own, "files", item, 2) for item in own.array("files")]
        checksums = [
            (file_entry(own, "checksum_files", item, 3), crc_field(own, item[2]))
            for item in own.array("checksum_files")
        ]
        paths = [entry.path for entry in files] + [entry.path for entry, _ in checksums]
        if len(set(paths)) != len(paths):
            raise own.fail("files", "each file once")
        return cls(
            uuid=own.text("uuid"),
            created_by=own.text("created_by"),
            schema=Schema.from_json(own.fields("schema")),
            files=tuple(files),
            checksum_files=tuple(checksums),
            provenance=own.mapping("provenance"),
            format_version=version,
            reader_features=features,
            writer_features=tuple(str(item) for item in own.array("writer_features")),
        )


def is_store(path: Path) -> bool:
    """Whether a directory looks like a store, of any version, intact or not.

    Decides what `overwrite` may replace; reads nothing but the start of the root metadata.
    """
    try:
        with open_binary(path / METADATA_FILE, error=StorageError, root=path) as file:
            head = file.read(4096)
    except OSError:
        return False
    return b'"gnnstore"' in head


def crc32c_of(data: bytes) -> int:
    """Return the crc32c of bytes."""
    return _core.crc32c(np.frombuffer(data, dtype=np.uint8))


def content_uuid(manifest: bytes, blocks: npt.NDArray[np.uint32]) -> str:
    """Return the identity of a store: equal for equal contents, whenever they were written.

    Parameters
    ----------
    manifest : bytes
        The root metadata, with an empty uuid.
    blocks : ndarray of uint32
        The checksum of every block of every file.
    """
    digest = hashlib.sha256(manifest + blocks.astype("<u4").tobytes()).digest()
    return str(uuid.UUID(bytes=_as_version_8(digest[:16])))


def _as_version_8(value: bytes) -> bytes:
    """Mark 16 bytes as a UUID whose bits mean what its maker says (RFC 9562, version 8)."""
    marked = bytearray(value)
    marked[6] = marked[6] & 0x0F | 0x80
    marked[8] = marked[8] & 0x3F | 0x80
    return bytes(marked)


def seal(zeroed: bytes, crc: int) -> bytes:
    """Put a checksum where the zeros stand."""
    match = _CRC_FIELD.search(zeroed)
    assert match is not None  # encode() has just written the field  # noqa: S101
    return zeroed[: match.start(1)] + f"{crc:08x}".encode() + zeroed[match.end(1) :]


def check_seal(text: bytes, path: str) -> None:
    """Refuse a sealed document that is not what it was.

    Raises
    ------
    CorruptStoreError
    """
    matches = list(_CRC_FIELD.finditer(text))
    if len(matches) == 1:
        (match,) = matches
        zeroed = text[: match.start(1)] + ZERO_CRC.encode() + text[match.end(1) :]
        found, expected = crc32c_of(zeroed), int(match[1], 16)
        if found == expected:
            return
        reason = f"its crc32c is {found:08x}, but it says {expected:08x}"
    else:
        reason = f"expected one manifest_crc32c, found {len(matches)}"
    raise CorruptStoreError(
        f"{path}: the manifest was altered after it was written ({reason}); "
        "convert again or restore the file from a copy",
        path=path,
    )


def _check_supported(path: str, version: int, features: tuple[str, ...]) -> None:
    unknown = sorted(set(features) - READER_FEATURES)
    if version > FORMAT_VERSION:
        what = f"has format version {version}; this gnnstore reads up to {FORMAT_VERSION}"
    elif unknown:
        what = f"needs the reader features {', '.join(unknown)}, which this gnnstore does not know"
    else:
        return
    raise UnsupportedVersionError(
        f"{path}: the store {what}. Upgrade with 'pip install --upgrade gnnstore'", path=path
    )


def file_entry(own: Fields, key: str, item: Any, length: int) -> FileEntry:
    """Check an item of a list of files: path, size, and what else there is of `length`.

    Raises
    ------
    CorruptStoreError
    """
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


def crc_field(own: Fields, text: Any) -> int:
    """Check a crc32c in a list of checksum files.

    Raises
    ------
    CorruptStoreError
    """
    if not isinstance(text, str) or not re.fullmatch("[0-9a-f]{8}", text):
        raise own.fail("checksum_files", "a crc32c of 8 hexadecimal digits")
    return int(text, 16)
