"""What a sealed directory elsewhere has, and its bytes, each block compared with its checksum.

The manifest comes from elsewhere: nothing is allocated or written on its word alone before
that has been looked at. All that is copied, in either direction, is read by `Listing.read`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, NotFoundError
from gnnstore.formats.arrays.zarr_metadata import MAX_ARRAY_METADATA_BYTES, METADATA_FILE
from gnnstore.formats.assignments import ASSIGNMENTS
from gnnstore.formats.base.files import BLOCK_BYTES, BlockChecksums, BlockCrcs
from gnnstore.formats.base.strict_json import parse_object
from gnnstore.formats.container.manifest import (
    CHECKSUMS_ARRAY,
    MAX_MANIFEST_BYTES,
    FileEntry,
    Kind,
)
from gnnstore.formats.container.reader import checksums_array
from gnnstore.formats.container.reads import ReadArray
from gnnstore.formats.packed import PACKED
from gnnstore.formats.partitions import PARTITIONS
from gnnstore.formats.store.store import STORE
from gnnstore.progress import Phase
from gnnstore.remote.objects import PIECE_BYTES, Files, PathFiles
from gnnstore.threads import for_each

T = TypeVar("T")

# Most files of a store, which has some for each array, of gigabytes.
MAX_FILES = 100_000
# Most bytes of checksums for each block, which takes four, and for the padding of their pages.
_CHECKSUM_BYTES, _CHECKSUM_PADDING = 16, 2**24
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BLOCKS = PIECE_BYTES // BLOCK_BYTES
# What can be copied: a store, and what is made of it.
COPIED = (STORE, PACKED, PARTITIONS, ASSIGNMENTS)
THREAD_NAME = "gnnstore-copy"


@dataclass(frozen=True)
class ListedFile:
    """A file, and the crc32c of each of its blocks."""

    entry: FileEntry
    crcs: BlockCrcs


@dataclass(frozen=True)
class Piece:
    """Consecutive blocks of a file, which one request reads."""

    file: ListedFile
    first_block: int
    num_blocks: int

    @property
    def offset(self) -> int:
        """The piece's first byte."""
        return self.first_block * BLOCK_BYTES

    @property
    def num_bytes(self) -> int:
        """Length of the piece; the last block of a file may be short."""
        return min(self.num_blocks * BLOCK_BYTES, self.file.entry.size_bytes - self.offset)


class Listing:
    """A sealed directory elsewhere: its manifest, its files, and verified reads of them."""

    def __init__(
        self,
        files: Files,
        kind: Kind | None = None,
        stays: Callable[[FileEntry], bool] = lambda _: False,
    ) -> None:
        self.files = files
        self._stays = stays  # whether a file is not copied
        self.root = self._read_root()
        self._held: dict[str, npt.NDArray[np.uint8]] = {}  # the files of the checksums, once read
        name = files.name(METADATA_FILE)
        if kind is None:
            attributes = parse_object(self.root, path=name).get("attributes")
            keys = attributes if isinstance(attributes, dict) else {}
            kind = next((each for each in COPIED if each.manifest.key() in keys), STORE)
        self.kind = kind
        self.manifest = kind.manifest.decode(self.root, name)
        num_files = len(self.entries)
        if num_files > MAX_FILES:
            raise CorruptStoreError(
                f"{name}: lists {num_files:,} files; a {kind.name} has at most {MAX_FILES:,}; do "
                "not use it",
                path=name,
            )
        if not _UUID.fullmatch(self.uuid):
            raise CorruptStoreError(
                f"{name}: malformed metadata: uuid: expected a UUID, found {self.uuid[:80]!r}",
                path=name,
            )

    def _read_root(self) -> bytes:
        label = self.files.label
        try:
            return self.files.read_small(METADATA_FILE, MAX_MANIFEST_BYTES)
        except NotFoundError:
            where = "here" if isinstance(self.files, PathFiles) else "here, or no such bucket"
            raise NotFoundError(
                f"{label}: there is no gnnstore store {where}: it has no {METADATA_FILE}; name the "
                "store's own directory, which has this file",
                path=label,
            ) from None

    @property
    def uuid(self) -> str:
        """The directory's identity."""
        return self.manifest.uuid

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """Every file but the root `zarr.json`."""
        return (*(entry for entry, _ in self.manifest.checksum_files), *self.manifest.files)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files that are copied."""
        kept = (entry.size_bytes for entry in self.entries if not self._stays(entry))
        return sum(kept) + len(self.root)

    @property
    def copied(self) -> tuple[ListedFile, ...]:
        """The files that are copied."""
        return tuple(file for file in self.listed if not self._stays(file.entry))

    @cached_property
    def listed(self) -> tuple[ListedFile, ...]:
        """Every file but the root `zarr.json` with its checksums; reads those."""
        manifest, files = self.manifest, self.files
        sizes = sum(entry.size_bytes for entry, _ in manifest.checksum_files)
        if sizes > _CHECKSUM_BYTES * manifest.first_blocks()[-1] + _CHECKSUM_PADDING:
            raise CorruptStoreError(
                f"{files.label}: its checksums are said to take {sizes:,} bytes, far more than its "
                "files need; do not use it",
                path=files.label,
            )
        listed = []
        for entry, crc in manifest.checksum_files:
            # Their own checksum is of the whole file.
            data = self._held[entry.path] = self._checked_whole(entry, crc)
            checksums = BlockChecksums()
            checksums.update(data)
            listed.append(ListedFile(entry, checksums.crcs))
        document = self._held.get(f"{CHECKSUMS_ARRAY}/{METADATA_FILE}")
        if document is None or len(document) > MAX_ARRAY_METADATA_BYTES:
            raise CorruptStoreError(f"{files.label}: lists no checksums", path=files.label)
        directory = Path(files.label)
        array = checksums_array(
            directory, manifest, parse_object(document.tobytes(), path=files.name(CHECKSUMS_ARRAY))
        )

        def fill(path: Path, offset: int, out: npt.NDArray[np.uint8]) -> None:
            held = self._held.get(path.relative_to(directory).as_posix())
            if held is None or offset + len(out) > len(held):
                raise CorruptStoreError(f"{path}: ends too early for the checksums", path=path)
            out[:] = held[offset : offset + len(out)]

        table = ReadArray.from_array(array, fill).load()
        for entry, first in zip(manifest.files, manifest.first_blocks()[:-1], strict=True):
            listed.append(ListedFile(entry, table[first : first + entry.num_blocks]))
        return tuple(listed)

    def _checked_whole(self, entry: FileEntry, crc: int) -> npt.NDArray[np.uint8]:
        """Return a file whose checksum is one for all of it."""
        for _ in range(2):
            parts = [
                self._fetch(entry, offset, min(PIECE_BYTES, entry.size_bytes - offset)).copy()
                for offset in range(0, entry.size_bytes, PIECE_BYTES)
            ]
            data = np.concatenate([np.empty(0, np.uint8), *parts])
            found = _core.crc32c(data)
            if found == crc:
                return data
        raise self._damaged(entry, 0, entry.size_bytes, found, crc)

    def read(self, piece: Piece) -> npt.NDArray[np.uint8]:
        """Return the bytes of a piece, each block as it was written, valid until the next read.

        Raises
        ------
        CorruptStoreError
            If it is not what was written, also when read once more, or the file is too short.
        """
        entry = piece.file.entry
        if entry.path in self._held:
            return self._held[entry.path][piece.offset :][: piece.num_bytes]
        crcs = piece.file.crcs[piece.first_block :][: piece.num_blocks]

        def problem(data: npt.NDArray[np.uint8]) -> CorruptStoreError | None:
            found = _core.crc32c_blocks(data, BLOCK_BYTES)
            wrong = np.flatnonzero(found != crcs)
            if not len(wrong):
                return None
            begin = (piece.first_block + int(wrong[0])) * BLOCK_BYTES
            end = min(begin + BLOCK_BYTES, entry.size_bytes)
            return self._damaged(entry, begin, end, int(found[wrong[0]]), int(crcs[wrong[0]]))

        return self._fetch(entry, piece.offset, piece.num_bytes, problem)

    def _fetch(
        self,
        entry: FileEntry,
        offset: int,
        num_bytes: int,
        problem: Callable[[npt.NDArray[np.uint8]], CorruptStoreError | None] = lambda _: None,
    ) -> npt.NDArray[np.uint8]:
        """Read bytes of a file; once more if they are too few or there is a problem with them."""
        name = self.files.name(entry.path)
        error: CorruptStoreError | None = None
        for _ in range(2):  # a network or a cache may have damaged them on their way
            try:
                data = self.files.read(entry.path, offset, num_bytes)
            except NotFoundError as missing:
                raise CorruptStoreError(
                    f"{name}: the file is missing, but the manifest lists it; {self._advice}",
                    path=name,
                ) from missing
            if len(data) == num_bytes:
                error = problem(data)
            else:
                end, size = offset + len(data), entry.size_bytes
                error = CorruptStoreError(
                    f"{name}: ends at byte {end}, but the manifest says {size} bytes; "
                    f"{self._advice}",
                    path=name,
                    offset=end,
                )
            if error is None:
                return data
        assert error is not None  # noqa: S101 - of the last round
        raise error

    @property
    def _advice(self) -> str:
        return (
            f"it was replaced or damaged: put the {self.kind.name} there again, and repeat this; "
            "no such bytes were used"
        )

    def _damaged(
        self, entry: FileEntry, begin: int, end: int, found: int, expected: int
    ) -> CorruptStoreError:
        name = self.files.name(entry.path)
        return CorruptStoreError(
            f"{name}: bytes {begin}-{end} are not those that were written: their crc32c is "
            f"{found:08x}, expected {expected:08x}; {self._advice}",
            path=name,
            offset=begin,
        )

    def damages(self, listed: Sequence[ListedFile], phase: Phase) -> dict[str, CorruptStoreError]:
        """Read files here; return what is wrong with those that are not as listed, by path."""
        found: dict[str, CorruptStoreError] = {}

        def look(piece: Piece) -> None:
            try:
                self.read(piece)
            except CorruptStoreError as error:
                found[piece.file.entry.path] = error
            phase.advance(piece.num_bytes)

        pieces = [piece for file in listed for piece in pieces_of(file)]
        in_threads(self.files, pieces, look)
        return found


def in_threads(files: Files, items: Sequence[T], work: Callable[[T], None]) -> None:
    """Call a function for each item, as many at a time as suits a source."""
    for_each(len(items), files.in_flight, lambda i: work(items[i]), THREAD_NAME)


def pieces_of(file: ListedFile, wanted: npt.NDArray[np.bool_] | None = None) -> Iterator[Piece]:
    """Yield the pieces that have all wanted blocks of a file, and no others."""
    if wanted is None:
        wanted = np.ones(file.entry.num_blocks, np.bool_)
    turns = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
    for first, last in turns.reshape(-1, 2).tolist():
        for block in range(first, last, _BLOCKS):
            yield Piece(file, block, min(_BLOCKS, last - block))
