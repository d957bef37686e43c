"""Copies of a store to another path or to a bucket: what the command `gnnstore copy` does.

In a bucket the root `zarr.json` is removed first and put last, so that what is there can be opened
whole, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnstore.errors import (
    CorruptStoreError,
    NotFoundError,
    StorageError,
    StoreExistsError,
    UnsupportedVersionError,
    UsageError,
)
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE
from gnnstore.formats.container.manifest import FileEntry
from gnnstore.progress import NullProgress, Phase, Progress
from gnnstore.remote.blocks import THREAD_NAME, ListedFile, Listing, pieces_of
from gnnstore.remote.objects import OBJECTS_IN_FLIGHT, Files, ObjectFiles, PathFiles, files_at
from gnnstore.remote.staging import copy_in
from gnnstore.threads import for_each


@dataclass(frozen=True)
class Copied:
    """A copy that was made, or was there."""

    source: str
    destination: str
    kind: str  # "store", or the word for another kind of directory
    uuid: str
    num_files: int
    num_bytes: int  # bytes of all files
    copied_bytes: int  # bytes that were copied now
    is_verified: bool  # whether the copy was read back


def copy(
    source: Any,
    destination: Any,
    *,
    verify: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Copied:
    """Copy a store, packed epochs or partitions; every block is compared as it is read.

    Parameters
    ----------
    source, destination : path-like, str, or store of obstore
        A path, a URL, or a store of obstore whose prefix is the directory.
    verify : bool
        Read the copy back, and compare it too; in a bucket, put again what differs.
    overwrite : bool
        Replace what is at the destination once the copy is complete; in a bucket, as it is made.
    """
    progress = progress or NullProgress()
    found, to = files_at(source), files_at(destination)
    _check_apart(found, to)
    if to.scheme == "https":
        raise UsageError(
            f"{to.label}: https:// is for reading only; copy to s3://, gs://, az:// or a path",
            path=to.label,
        )
    listing = Listing(found)
    if isinstance(to, ObjectFiles):
        copied = _copy_out(listing, to, progress, overwrite=overwrite)
    else:
        copied = copy_in(listing, Path(to.label), progress, overwrite=overwrite)
    if verify:
        damages = _read_back(listing, to, progress)
        if damages and isinstance(to, ObjectFiles):
            wrong = [file for file in listing.listed if file.entry.path in damages]
            copied += _put_files(listing, to, wrong, progress, replaces=True)
            damages = _read_back(listing, to, progress)
        for damage in damages.values():
            raise damage
    return Copied(
        listing.files.label,
        to.label,
        listing.kind.name,
        listing.uuid,
        len(listing.entries) + 1,
        listing.total_bytes,
        copied,
        verify,
    )


def _read_back(listing: Listing, to: Files, progress: Progress) -> dict[str, CorruptStoreError]:
    """Return what is wrong with the files of a copy, by path."""
    with progress.phase(f"read {to.label} back", listing.total_bytes, "bytes") as phase:
        there = Listing(to, listing.kind)
        if there.root != listing.root:
            raise StorageError(
                f"{to.label}: another process has written here meanwhile; repeat the copy with "
                "--overwrite",
                path=to.label,
            )
        return there.damages(listing.listed, phase)


def _check_apart(source: Files, destination: Files) -> None:
    """Refuse to copy a directory into itself, or to a place that has it."""
    if isinstance(source, PathFiles) and isinstance(destination, PathFiles):
        ends = [str(files.path.resolve()) for files in (source, destination)]
    elif isinstance(source, ObjectFiles) and isinstance(destination, ObjectFiles):
        # Stores of obstore without a scheme may be several in memory.
        ends = [files.label if files.scheme else str(id(files)) for files in (source, destination)]
    else:
        return
    first, second = (f"{end}/" for end in ends)
    if first.startswith(second) or second.startswith(first):
        raise UsageError(
            f"{destination.label}: is {source.label}, or one lies inside the other; copy to "
            "another place",
            path=destination.label,
        )


def _copy_out(listing: Listing, to: ObjectFiles, progress: Progress, *, overwrite: bool) -> int:
    """Put what a bucket has not of a directory; return the bytes that were put."""
    before = _root_at(to)
    if before is not None and before.root != listing.root and not overwrite:
        raise StoreExistsError(
            f"{to.label}: has another {before.kind.name} ({before.uuid}); copy to another place, "
            "or pass --overwrite to replace it",
            path=to.label,
        )
    wanted = list(listing.listed)
    if before is not None and before.root == listing.root and not overwrite:
        there = to.sizes()
        wanted = [file for file in wanted if not _is_whole(there, file.entry)]
    num_bytes = 0
    if before is None or wanted:
        num_bytes = _put_files(listing, to, wanted, progress, replaces=before is not None)
    if before is not None and before.root != listing.root:
        kept = {entry.path for entry in listing.entries}
        to.delete([entry.path for entry in before.entries if entry.path not in kept])
    return num_bytes


def _put_files(
    listing: Listing,
    to: ObjectFiles,
    wanted: Sequence[ListedFile],
    progress: Progress,
    *,
    replaces: bool,
) -> int:
    """Put files, compare sizes, and put the root last; return the files' bytes."""
    if replaces:
        to.delete([METADATA_FILE])  # so that a mixture cannot be opened
    num_bytes = sum(file.entry.size_bytes for file in wanted)
    with progress.phase(f"copy to {to.label}", num_bytes, "bytes") as phase:
        for_each(
            len(wanted),
            OBJECTS_IN_FLIGHT,
            lambda i: _put(listing, to, wanted[i], phase),
            THREAD_NAME,
        )
    there = to.sizes()
    wrong = [file.entry for file in wanted if not _is_whole(there, file.entry)]
    if wrong:
        raise StorageError(
            f"{to.name(wrong[0].path)}: has not the {wrong[0].size_bytes} bytes that were written; "
            "repeat the copy",
            path=to.name(wrong[0].path),
        )
    to.put(METADATA_FILE, iter([listing.root]), len(listing.root))
    return num_bytes


def _is_whole(sizes: Mapping[str, int], entry: FileEntry) -> bool:
    return sizes.get(entry.path) == entry.size_bytes


def _root_at(to: ObjectFiles) -> Listing | None:
    """Return what is in a bucket already; None for nothing."""
    try:
        return Listing(to)
    except NotFoundError:
        return None
    except (CorruptStoreError, UnsupportedVersionError) as error:
        raise UsageError(
            f"{to.label}: has something that is not a whole gnnstore store, and is not replaced: "
            f"{error}; remove it yourself, or copy to another place",
            path=to.label,
        ) from error


def _put(listing: Listing, to: ObjectFiles, file: ListedFile, phase: Phase) -> None:
    """Write an object from verified pieces of a file."""

    def pieces() -> Iterator[bytes]:
        for piece in pieces_of(file):
            yield listing.read(piece).tobytes()
            phase.advance(piece.num_bytes)

    to.put(file.entry.path, pieces(), file.entry.size_bytes)
