"""A verified copy of a store on a disk of this machine, made once for all processes.

The copy lies at `CACHE_DIR/UUID` and is an ordinary store. A lock on `CACHE_DIR/.UUID.lock` is
taken before anything is looked at, so that one of several processes copies, and the others wait and
open what they find. What a killed process left is gone on with: blocks with their checksums stay.
Where there are no locks, or other machines may not see them, each copies into a directory of its
own, and the last to finish opens the copy that is there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.disk.profile import find_mount
from gnnstore.errors import (
    CorruptStoreError,
    GnnstoreError,
    NotFoundError,
    StoreExistsError,
    UsageError,
    storage_errors,
)
from gnnstore.formats.arrays.journal import Journal
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE
from gnnstore.formats.base.files import (
    ALIGNMENT,
    BLOCK_BYTES,
    allocated_bytes,
    require_space,
    write_direct,
    write_new,
    write_part,
)
from gnnstore.formats.container.manifest import Kind
from gnnstore.formats.container.workdir import DirectoryTransaction, check_outside
from gnnstore.formats.store.units import find_units, make_units_directory, unit_path
from gnnstore.progress import NullProgress, Phase, Progress
from gnnstore.remote.blocks import ListedFile, Listing, Piece, in_threads, pieces_of
from gnnstore.remote.objects import ObjectFiles, files_at, is_elsewhere

_IN_MEMORY = ("tmpfs", "ramfs")
# Types of mounts that several machines may share: some hide the locks of one from the others.
_SHARED = re.compile("nfs|lustre|ceph|gpfs|beegfs|cifs|smb|9p|afs|fuse|unknown")
# Least bytes of a write that bypasses the page cache.
_DIRECT_BYTES = 2**20
_OTHER_DIRECTORY = "give another cache_dir="


@dataclass(frozen=True)
class Origin:
    """Where a store was copied from, and to: what it is opened again by."""

    place: str  # a URL or an absolute path
    cache_dir: str | None  # None: the default of the machine


def origin_of(place: Any, cache_dir: str | os.PathLike[str] | None) -> Origin | None:
    """Return what a store is opened again by; None for a store of obstore, which has secrets."""
    if not isinstance(place, str | os.PathLike):
        return None
    text = os.fspath(place)
    return Origin(
        text.rstrip("/") if is_elsewhere(place) else os.path.abspath(text),  # noqa: PTH100
        None if cache_dir is None else os.path.abspath(cache_dir),  # noqa: PTH100
    )


def default_cache_directory() -> Path:
    """Return the directory of copies where none is named; on a cluster TMPDIR is node-local."""
    return Path(tempfile.gettempdir()) / f"gnnstore-{os.getuid()}"


def copy_of(uuid: str, cache_dir: str | os.PathLike[str] | None) -> Path | None:
    """Return the copy of a store on this machine; None if there is none, or not of our own."""
    directory = default_cache_directory() if cache_dir is None else Path(cache_dir)
    found = directory / uuid
    with storage_errors("open the copy", found):
        if not (found / METADATA_FILE).exists():
            return None
    _check_owner(directory, found, is_default=cache_dir is None)
    return found


def stage(
    place: Any,
    cache_dir: str | os.PathLike[str] | None = None,
    *,
    kind: Kind | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the verified copy of a store in a directory on this machine; make it if need be.

    Parameters
    ----------
    place : path-like, str, or store of obstore
        The store: a path, a URL, or a store whose prefix is the store's directory.
    cache_dir : path-like, optional
        The directory of copies, which is made if there is none.
    """
    listing = Listing(files_at(place), kind)
    directory = prepared(cache_dir, listing)
    return make_copy(listing, directory / listing.uuid, directory, progress or NullProgress())


def stage_unit(
    origin: Origin, kind: Kind, store: Path, name: str | os.PathLike[str] | None, progress: Progress
) -> None:
    """Copy a unit of a store, such as packed epochs, into the store's copy, if it is not there.

    What is not where the store came from either is left to what looks for it.
    """
    if name is None:
        name = None if find_units(kind, store) else _only_unit(origin, kind)
    text = os.fspath(name or "")
    if not text or "/" in text:  # a path has been given
        return
    final = unit_path(kind, store, text)
    if (final / METADATA_FILE).exists():
        return
    try:
        listing = Listing(files_at(f"{origin.place}/{kind.directory}/{text}"), kind)
    except NotFoundError:
        return
    make_units_directory(kind, store)
    make_copy(listing, final, store.parent, progress)


def _only_unit(origin: Origin, kind: Kind) -> str | None:
    """Return the name of the unit of a kind that a store has; None if there is none."""
    files = files_at(origin.place)
    if isinstance(files, ObjectFiles):
        names = files.names_below(kind.directory)
    else:
        names = [path.name for path in find_units(kind, Path(files.label))]
    if len(names) > 1:
        raise UsageError(
            f"{files.label} has several {kind.directory}; give the name of one: "
            f"{', '.join(map(repr, sorted(names)))}",
            path=files.label,
        )
    return names[0] if names else None


def make_copy(listing: Listing, final: Path, directory: Path, progress: Progress) -> Path:
    """Return a copy of its own name; the one that is there, or a new one."""
    lock = directory / f".{final.relative_to(directory).as_posix().replace('/', '.')}.lock"
    with alone(lock, final, progress, f"make a copy ({_OTHER_DIRECTORY})") as is_alone:
        if not os.path.lexists(final):
            try:
                copy_in(listing, final, progress, goes_on=is_alone)
            except (GnnstoreError, OSError):
                if not os.path.lexists(final):  # else another was faster
                    raise
    _check_owner(directory, final, is_default=directory == default_cache_directory())
    _check_same(listing, final)
    return final


def copy_in(
    listing: Listing,
    final: Path,
    progress: Progress,
    *,
    overwrite: bool = False,
    goes_on: bool = True,
) -> int:
    """Copy a directory to a path, and return the bytes read.

    Goes on with an interrupted attempt, unless what looks like one may be at work elsewhere.
    """
    transaction = DirectoryTransaction(
        final,
        listing.kind.manifest,
        overwrite,
        progress.note,
        _is_of_copying,
        sweeps=goes_on,
    )
    target, num_bytes = transaction.path, 0
    try:
        room = listing.total_bytes - allocated_bytes(target) * transaction.adopted
        require_space(
            final.parent,
            room,
            f"copy {listing.files.label}",
            _OTHER_DIRECTORY,
            "read it where it is: packed epochs from the bucket, or a path without cache_dir=",
        )
        _remove_others(listing, target)
        pieces = _missing_pieces(listing, target)
        num_bytes = sum(piece.num_bytes for piece in pieces)
        with progress.phase(f"copy {listing.files.label}", num_bytes, "bytes") as phase:
            _copy_pieces(listing, target, pieces, phase)
        write_new(target / METADATA_FILE, listing.root)
        listing.kind.open(target)
        transaction.commit()
    except StoreExistsError:
        transaction.abort()
        raise
    except BaseException:
        if goes_on and _has_entries(target):
            transaction.keep()
        else:
            transaction.abort()
        raise
    return num_bytes


def _is_of_copying(path: Path) -> bool:
    """Whether a directory was left by a copy, and not by a writer of a store or an overwrite."""
    return path.suffix.startswith(".tmp-") and Journal.read(path) is None


def _has_entries(path: Path) -> bool:
    with suppress(OSError), os.scandir(path) as entries:
        return any(entries)
    return False


def _remove_others(listing: Listing, target: Path) -> None:
    """Remove what an earlier attempt left that is not a file of the directory."""
    listed = {entry.path for entry in listing.entries}
    for root, directories, names in os.walk(target):
        for name in (*directories, *names):
            path = Path(root) / name
            with storage_errors("look at what an earlier attempt left", path):
                mode = path.lstat().st_mode
                is_listed = path.relative_to(target).as_posix() in listed
                if not (stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and is_listed)):
                    path.unlink()


def _missing_pieces(listing: Listing, target: Path) -> list[Piece]:
    """Make every file with its size; return the pieces whose blocks are not there yet."""
    pieces: list[Piece] = []
    threads = min(8, len(os.sched_getaffinity(0)))
    for file in listing.copied:
        path, size = target / file.entry.path, file.entry.size_bytes
        wanted = None
        with storage_errors("create a file", path):
            if path.exists():
                with path.open("r+b") as found:
                    found.truncate(size)
                crcs = _core.crc32c_file(str(path), BLOCK_BYTES, threads)
                wanted = crcs != file.crcs if size else np.empty(0, np.bool_)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as made:
                    made.truncate(size)
        pieces += pieces_of(file, wanted)
    return pieces


def _copy_pieces(listing: Listing, target: Path, pieces: list[Piece], phase: Phase) -> None:
    """Read pieces, and write each where it belongs; then make the files durable."""

    def copy(piece: Piece) -> None:
        data = listing.read(piece)
        path = target / piece.file.entry.path
        with storage_errors("write", path):
            done = _write_direct(path, data, piece.offset)
            if done < len(data):
                with _opened(path, os.O_WRONLY) as file:
                    write_part(file, data.data[done:], piece.offset + done)
        phase.advance(piece.num_bytes)

    def synchronise(file: ListedFile) -> None:
        path = target / file.entry.path
        with storage_errors("synchronise", path), _opened(path, os.O_RDONLY) as descriptor:
            os.fsync(descriptor)

    in_threads(listing.files, pieces, copy)
    in_threads(listing.files, listing.copied, synchronise)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield file
    finally:
        os.close(file)


def _write_direct(path: Path, data: npt.NDArray[np.uint8], offset: int) -> int:
    """Write bytes past the page cache, which would write them later and slower; return how many.

    Fewer than all, perhaps none, where the file system or their place does not allow it.
    """
    whole = len(data) // ALIGNMENT * ALIGNMENT
    if whole < _DIRECT_BYTES or data.__array_interface__["data"][0] % ALIGNMENT:
        return 0
    try:
        with _opened(path, os.O_WRONLY | os.O_DIRECT) as file:
            return write_direct(file, data.data[:whole], offset)
    except OSError as error:
        if error.errno != errno.EINVAL:  # of file systems that have no such writes
            raise
        return 0


def _check_same(listing: Listing, final: Path) -> None:
    """Refuse a copy that is not of the directory whose manifest was read."""
    try:
        found = (final / METADATA_FILE).read_bytes()
        listing.kind.open(final)
    except (CorruptStoreError, OSError) as error:
        raise CorruptStoreError(
            f"{final}: the copy of {listing.files.label} is damaged: {error}; remove the "
            "directory, and open the store again",
            path=final,
        ) from error
    if found != listing.root:
        raise CorruptStoreError(
            f"{final}: is not the store at {listing.files.label}, although both have the identity "
            f"{listing.uuid}; remove the directory if it is not needed, or {_OTHER_DIRECTORY}",
            path=final,
        )


def prepared(cache_dir: str | os.PathLike[str] | None, listing: Listing) -> Path:
    """Return the directory of copies, made and looked at."""
    is_default = cache_dir is None
    named = default_cache_directory() if cache_dir is None else cache_dir
    directory = Path(os.path.abspath(named))  # noqa: PTH100 - links are shown as they are
    check_outside(directory / listing.uuid, listing.kind.manifest)
    kind = find_mount(directory).kind
    if kind in _IN_MEMORY:
        raise UsageError(
            f"{directory}: is on {kind}, which is memory, so that a copy there would take the "
            f"memory that training needs; {_OTHER_DIRECTORY} on a disk",
            path=directory,
        )
    with storage_errors(f"make the directory of copies ({_OTHER_DIRECTORY})", directory):
        if is_default:
            directory.mkdir(0o700, exist_ok=True)
            _check_private(directory)
        else:
            directory.mkdir(parents=True, exist_ok=True)
    return directory


def _check_private(directory: Path) -> None:
    """Refuse a default directory that another user could have filled."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UsageError(
            f"{directory}: is not a directory that only you can write to (owner "
            f"{status.st_uid}, mode {stat.S_IMODE(status.st_mode):03o}); {_OTHER_DIRECTORY}, or "
            "remove it",
            path=directory,
        )


def _check_owner(directory: Path, final: Path, *, is_default: bool) -> None:
    """Refuse a copy that another user made in a directory that many can write to."""
    if is_default:
        _check_private(directory)
    with storage_errors("look at the copy", final):
        owner, around = final.lstat().st_uid, directory.stat().st_uid
    if owner not in {0, os.getuid(), around}:
        raise UsageError(
            f"{final}: was made by another user ({owner}), who may have changed it; "
            f"{_OTHER_DIRECTORY}",
            path=final,
        )


@contextmanager
def alone(path: Path, final: Path, progress: Progress, doing: str) -> Iterator[bool]:
    """Hold a lock, a file; wait for the process that has it. Yields whether no other can have it.

    `final` is what is made meanwhile, and `doing` says so. Where it is there, its directory need
    not be one that can be written to.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        lock = os.open(path, flags, 0o644)
    except OSError as error:
        if os.path.lexists(final):  # in a directory that cannot be written to
            yield False
            return
        with storage_errors(doing, path.parent):
            raise error
    is_alone = False
    try:
        with suppress(OSError):  # without locks no process waits for another
            while not _is_held(lock, path, final, progress):
                path.parent.mkdir(exist_ok=True)  # who had it has removed the file
                again = os.open(path, flags, 0o644)
                os.close(lock)
                lock = again
            is_alone = _SHARED.search(find_mount(path.parent).kind) is None
        with suppress(OSError):  # for messages only
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield is_alone
    finally:
        with suppress(OSError):  # processes forked meanwhile have the descriptor too
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _is_held(lock: int, path: Path, final: Path, progress: Progress) -> bool:
    """Take a lock, and return whether its file is still the one at the path."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 200, 0).decode(errors="replace") or "another process"
        progress.note(f"{final}: waiting for {holder}, which makes it")
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False
