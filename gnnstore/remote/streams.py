"""Packed epochs in a bucket, whose records and rows are read there, batch by batch.

Only the index, and the rows that are cached for all batches, are copied to a disk of this machine,
to `CACHE_DIR/UUID.index`, which cannot be mistaken for a copy of all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from gnnstore.errors import CorruptStoreError, NotFoundError, UsageError
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE
from gnnstore.formats.container.manifest import MAX_MANIFEST_BYTES, FileEntry, Kind
from gnnstore.formats.container.reader import SealedFiles
from gnnstore.formats.packed import (
    BATCHES_ARRAY,
    PACKED,
    ROWS_GROUP,
    PackedManifest,
    PackedParts,
    PackedReader,
    check_complete,
    check_whole,
    parts_in,
)
from gnnstore.progress import NullProgress, Progress
from gnnstore.remote.blocks import Listing
from gnnstore.remote.objects import Files, FilesBelow, ObjectFiles, files_at, is_elsewhere
from gnnstore.remote.staging import Origin, make_copy, origin_of, prepared, stage
from gnnstore.threads import for_each

_THREAD = "gnnstore-open"


def stays(entry: FileEntry) -> bool:
    """Whether a file stays where it is: the records, and the rows of all batches."""
    directory, _, name = entry.path.rpartition("/")
    is_data = directory == BATCHES_ARRAY or directory.startswith(f"{ROWS_GROUP}/")
    return is_data and name != METADATA_FILE


class StreamedReader(PackedReader):
    """Packed epochs, or a part, whose records and rows are in a bucket."""

    files_there: Files  # set by `open_streamed`

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open the copy of what is not streamed."""
        found: SealedFiles[Any] = SealedFiles.find(path, cls.MANIFEST)
        for entry, error in found.wrong_files():
            if not stays(entry):
                raise error
        return cls(found.path, found.manifest)

    @property
    def local_files(self) -> tuple[FileEntry, ...]:
        """The files that are here: not those that stay."""
        return tuple(entry for entry in self.files if not stays(entry))

    def object_of(self, array: str) -> str:
        """Return the name of the only file of an array."""
        entries = (entry for entry in self.files if stays(entry))
        name = next((e.path for e in entries if e.path.rpartition("/")[0] == array), None)
        if name is None:
            raise CorruptStoreError(f"{self.path}: {array!r} has no file", path=self.path)
        return name


class StreamedParts(PackedParts):
    """Packed epochs in a bucket, or their parts. Pickles as its URL, which is opened once."""

    names: Sequence[str] = ()  # of the parts' directories; "": the place itself
    origin: Origin | None = None  # None: a store of obstore, which has secrets

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is None:
            raise UsageError(
                f"{self.label}: packed epochs that were opened from a store of obstore cannot be "
                "pickled, for it may have secrets; open them by their URL"
            )
        own = [
            (name, str(reader.path), reader.uuid)
            for name, reader in zip(self.names, self.parts, strict=True)
        ]
        return (_reopened, (self.origin, own))


_STREAMED = Kind(PackedManifest, StreamedReader.open, PACKED.entries, PACKED.directory)


def open_elsewhere(
    place: Any, cache_dir: str | os.PathLike[str] | None = None, progress: Progress | None = None
) -> PackedParts:
    """Open packed epochs, or a directory of parts, where records and rows are left in a bucket.

    What is on a path is copied whole to `cache_dir`, and read there.
    """
    progress = progress or NullProgress()
    files = files_at(place)
    parts = [] if _is_sealed(files) else _names_of(files)
    if parts:
        check_complete(files.label, parts)
    names = [name for *_, name in parts] or [""]
    found: dict[str, PackedReader] = {}

    def open_part(k: int) -> None:
        own = place
        if isinstance(place, str | os.PathLike) and not is_elsewhere(place):
            own = Path(place) / names[k]
        found[names[k]] = _open(own, _below(files, names[k]), cache_dir, progress)

    for_each(len(names), files.in_flight, open_part, _THREAD)
    first = found[names[0]]
    kind = StreamedParts if isinstance(first, StreamedReader) else PackedParts
    if not parts:
        check_whole(files.label, first.manifest)
        opened = kind(first.path, [first], files.label)
    else:
        opened = kind.from_readers(first.path, {name: found[name] for name in names}, files.label)
    if isinstance(opened, StreamedParts):
        opened.names, opened.origin = names, origin_of(place, cache_dir)
    return opened


def _below(files: Files, name: str) -> Files:
    return FilesBelow(files, name) if name else files


def _is_sealed(files: Files) -> bool:
    try:
        files.read_small(METADATA_FILE, MAX_MANIFEST_BYTES)
    except NotFoundError:
        return False
    return True


def _names_of(files: Files) -> list[tuple[int, int, str]]:
    """Return the parts in a directory."""
    if isinstance(files, ObjectFiles):
        return parts_in(files.names_below(""))
    path = Path(files.label)
    return parts_in(os.listdir(path) if path.is_dir() else [])  # noqa: PTH208


def _open(
    place: Any, files: Files, cache_dir: str | os.PathLike[str] | None, progress: Progress
) -> PackedReader:
    """Open one directory, by a copy of all of it or of what is not streamed."""
    if not is_elsewhere(place):
        return PackedReader.open(stage(place, cache_dir, kind=PACKED, progress=progress))
    listing = Listing(files, _STREAMED, stays)
    manifest = listing.manifest
    if isinstance(manifest, PackedManifest) and manifest.has_segments:
        raise UsageError(
            f"{files.label}: {manifest.segment} batches at a time share rows on disk, which would "
            "take many small requests; copy these epochs first (gnnstore copy URL PATH), or pack "
            "them with --segment 1",
            path=files.label,
        )
    directory = prepared(cache_dir, listing)
    copy = make_copy(listing, directory / f"{listing.uuid}.index", directory, progress)
    return _streamed(copy, files)


def _streamed(copy: Path, files: Files) -> StreamedReader:
    reader = StreamedReader.open(copy)
    reader.files_there = files
    return reader


def _reopened(origin: Origin, parts: Sequence[tuple[str, str, str]]) -> PackedParts:
    """Open pickled epochs by the copies on this machine, each of which is made if there is none.

    `parts`: name, copy and UUID of each.
    """
    files, readers = files_at(origin.place), []
    for name, path, uuid in parts:
        own = _below(files, name)
        reader: PackedReader
        if os.path.lexists(Path(path) / METADATA_FILE):
            reader = _streamed(Path(path), own)
        else:
            reader = _open(origin.place, own, origin.cache_dir, NullProgress())
        reader.require(uuid)
        readers.append(reader)
    opened = StreamedParts(readers[0].path, readers, files.label)
    opened.names, opened.origin = [name for name, *_ in parts], origin
    return opened
