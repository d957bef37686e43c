"""Packed epochs in a bucket, whose records and rows are read there, batch by batch.

Only what says where these lie, and the rows that are cached for all batches, is copied to a disk of
this machine, to `CACHE_DIR/UUID.index`; it cannot be mistaken for a copy of all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from gnnstore.errors import CorruptStoreError, NotFoundError, UsageError
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE
from gnnstore.formats.base.files import read_small
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
    parts_in,
)
from gnnstore.progress import NullProgress, Progress
from gnnstore.remote.blocks import Listing
from gnnstore.remote.objects import Files, FilesBelow, ObjectFiles, files_at, is_elsewhere
from gnnstore.remote.staging import make_copy, prepared, stage
from gnnstore.threads import for_each

_THREAD = "gnnstore-open"


def stays(entry: FileEntry) -> bool:
    """Whether a file stays where it is: the records, and the rows of all batches."""
    directory, _, name = entry.path.rpartition("/")
    is_data = directory == BATCHES_ARRAY or directory.startswith(f"{ROWS_GROUP}/")
    return is_data and name != METADATA_FILE


class StreamedReader(PackedReader):
    """Packed epochs, or a part, whose records and rows are in a bucket. Pickles as its URL."""

    files_there: Files  # set by `open_streamed`
    place: str | None = None  # the URL; None: a store of obstore, which has secrets

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

    def __reduce__(self) -> tuple[Any, ...]:
        if self.place is None:
            raise UsageError(
                f"{self.files_there.label}: packed epochs that were opened from a store of obstore "
                "cannot be pickled, for it may have secrets; open them by their URL"
            )
        return (_reopened, (str(self.path), self.uuid, self.place))


_STREAMED = Kind(PackedManifest, StreamedReader.open, PACKED.entries, PACKED.directory)


def open_elsewhere(
    place: Any, cache_dir: str | os.PathLike[str] | None = None, progress: Progress | None = None
) -> PackedParts:
    """Open packed epochs, or a directory of parts, where records and rows are left in a bucket.

    What is on a path is copied whole to `cache_dir`, and read there.
    """
    progress = progress or NullProgress()
    files = files_at(place)
    names = [] if _is_sealed(files) else _names_of(files)
    if not names:
        reader = _open(place, files, cache_dir, progress)
        return PackedParts(reader.path, [reader], files.label)
    check_complete(files.label, names)
    found: dict[int, PackedReader] = {}

    def open_part(k: int) -> None:
        name = names[k][-1]
        own = f"{os.fspath(place).rstrip('/')}/{name}" if isinstance(place, str) else place
        own = Path(place) / name if isinstance(place, os.PathLike) else own
        found[k] = _open(own, FilesBelow(files, name), cache_dir, progress)

    for_each(len(names), files.in_flight, open_part, _THREAD)
    parts = [found[k] for k in range(len(names))]
    return PackedParts.of(parts[0].path, parts, files.label)


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
    return _streamed(copy, files, place if isinstance(place, str) else None)


def _streamed(copy: Path, files: Files, place: str | None) -> StreamedReader:
    reader = StreamedReader.open(copy)
    reader.files_there, reader.place = files, place
    return reader


def _reopened(path: str, uuid: str, place: str) -> PackedReader:
    """Open pickled epochs by the copy on this machine, which is made if there is none."""
    try:
        read_small(Path(path) / METADATA_FILE, MAX_MANIFEST_BYTES)
        reader: PackedReader = _streamed(Path(path), files_at(place), place)
    except (NotFoundError, OSError):
        (reader,) = open_elsewhere(place, Path(path).parent).parts
    reader.require(uuid)
    return reader
