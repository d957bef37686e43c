"""Directories of work in progress: each appears under its name complete, or not at all.

A store is built as `.NAME.tmp-XXXXXXXX`, next to its later NAME, and renamed into place after
everything in it is durable; a run spills to a directory of its own (`gnnstore.disk.spool`). The
maker holds a lock on the directory, which the kernel drops with the process; so a directory that
can be locked was left. The next writer of the same name continues or removes it.

`.NAME.old-XXXXXXXX` is a whole store that an overwrite had set aside when it stopped, on a file
system that cannot exchange two names. `.NAME.rows` is a finished store, whose rows are copied to
the file NAME.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gnnstore import _core
from gnnstore.errors import (
    NotFoundError,
    StorageError,
    StoreExistsError,
    UsageError,
    storage_errors,
)
from gnnstore.formats.arrays.journal import JOURNAL_FILE, SPILL_DIRECTORY, Journal
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE
from gnnstore.formats.base.files import directory_bytes, files_under, fsync_directory
from gnnstore.formats.container.manifest import CHECKSUMS_ARRAY, KINDS, Manifest, kind_of
from gnnstore.units import format_size

# Attempts to lock: 'gnnstore gc' holds a lock while it measures a directory; a writer holds it for
# good.
LOCK_ATTEMPTS = 5
_LOCK_SECONDS = 0.1
# Attempts to lock a name: directories are locked while another gets their name, for a few system
# calls.
_NAME_ATTEMPTS = 50

State = Literal["running", "resumable", "unfinished", "set aside", "stale"]

_NAME = re.compile(r"\.(?P<final>.+)\.(?:(?P<kind>tmp|old)-[0-9a-f]{8}|(?<=\.npy\.)rows)")
RUN_PREFIX = ".gnnstore-run-"  # prefix of directories of runs; see `gnnstore.disk.spool`
# Prefix of directories with contents that are put into a bucket, next to their locks; see
# `gnnstore.packing.parts`.
PUT_PREFIX = ".gnnstore-put-"
_PUT_NAME = re.compile(re.escape(PUT_PREFIX) + "[0-9a-f]{8}")
_RUN_NAME = re.compile(re.escape(RUN_PREFIX) + "[0-9a-f]{8}")
# A file that is being written, in the store from which it is copied.
COPY_FILE = "copy"
# Entries that a directory of any kind may hold while it is written.
_COMMON_ENTRIES = {CHECKSUMS_ARRAY, METADATA_FILE, JOURNAL_FILE, SPILL_DIRECTORY, COPY_FILE}


@dataclass(frozen=True)
class Leftover:
    """A temporary directory."""

    path: Path
    final: Path | None  # the store that it was to become, or was; None for spilled files of a run
    state: State
    num_bytes: int  # bytes of its files, spilled ones on other disks included
    age_seconds: float  # time since something in it last changed


def leftovers(final: Path) -> list[Path]:
    """Return the temporary directories for `final`, of running writers and of dead ones."""
    # No glob: the name may hold special characters.
    prefixes = (f".{final.name}.tmp-", f".{final.name}.old-")
    return [
        path
        for path in _entries(final.parent)
        if path.name.startswith(prefixes) and not path.name.endswith(f".{SPILL_DIRECTORY}")
    ]


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def rows_path(final: Path) -> Path:
    """Return where rows lie until they are copied to a file."""
    return final.parent / f".{final.name}.rows"


def find_leftovers(directory: Path) -> Iterator[Leftover]:
    """Yield every temporary directory of a conversion or a run in `directory`, not below it."""
    for path in sorted(directory.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match is None or path.is_symlink() or not path.is_dir() or not is_ours(path):
            continue
        final = directory / match["final"]
        with locked(path) as free:
            state: State = _state(path, final, match["kind"]) if free else "running"
            yield Leftover(path, final, state, leftover_bytes(path), _age_seconds(path))
    for path in _entries(directory):
        if _PUT_NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            with _locked_by_file(path) as free:
                state = "resumable" if free else "running"
                yield Leftover(path, None, state, directory_bytes(path), _age_seconds(path))
    for path in run_directories(directory):
        with locked(path) as free:
            state = "stale" if free else "running"
        with suppress(OSError):  # it may end meanwhile
            yield Leftover(path, None, state, directory_bytes(path), _age_seconds(path))


@contextmanager
def _locked_by_file(path: Path) -> Iterator[bool]:
    """Hold the lock of a directory, a file next to it, if it is free; yields whether it is.

    A process that was not killed has removed the file; a file that is left is removed here.
    """
    file, lock, is_free = Path(f"{path}.lock"), -1, True
    try:
        with suppress(FileNotFoundError):
            lock = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        is_free = False
    try:
        yield is_free
        if is_free and not path.exists():
            file.unlink(missing_ok=True)
    finally:
        if lock >= 0:
            os.close(lock)


def run_directories(parent: Path) -> list[Path]:
    """Return the directories of runs, which `gnnstore.disk.spool` makes."""
    paths = [path for path in _entries(parent) if _RUN_NAME.fullmatch(path.name)]
    return [path for path in paths if path.is_dir() and not path.is_symlink()]


def make_locked(parent: Path, prefix: str, mode: int = 0o777) -> tuple[Path, int]:
    """Make a directory with a new name; return it, and the descriptor that holds its lock."""
    while True:
        path, lock = parent / f"{prefix}{secrets.token_hex(4)}", -1
        try:
            path.mkdir(mode)
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with suppress(OSError):  # without locks no other process can lock it, either
                fcntl.flock(lock, fcntl.LOCK_EX)
            if path.is_dir():  # else a sweeper found it between mkdir and flock
                return path, lock
            os.close(lock)
        except (FileExistsError, FileNotFoundError):
            if not parent.is_dir():
                raise  # else the name is taken, or a sweeper was faster
        except BaseException:  # Ctrl-C: no other code can remove the directory yet
            _core.remove_tree(path)
            if lock >= 0:
                os.close(lock)
            raise


def take_lock(path: Path, attempts: int = 1) -> int | None:
    """Return a descriptor that holds the lock of a directory; None if a process works in it."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    for attempt in range(attempts):
        time.sleep(_LOCK_SECONDS if attempt else 0)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except OSError:  # a file system without locks
            os.close(lock)
            raise
        return lock
    os.close(lock)
    return None


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock of a temporary directory if it is free; yields whether it is."""
    try:
        lock = take_lock(path)
    except OSError:
        lock = None
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


@contextmanager
def alone_in(path: Path) -> Iterator[None]:
    """Hold the lock of a directory, if it exists; wait for processes that only measure it."""
    try:
        lock = take_lock(path, LOCK_ATTEMPTS)
    except OSError:  # there is none, or the file system has no locks
        yield
        return
    if lock is None:
        raise UsageError(
            f"{path}: another process is at work there right now; wait for it, or choose another "
            "output",
            path=path,
        )
    try:
        yield
    finally:
        os.close(lock)


def leftover_bytes(path: Path) -> int:
    """Return the bytes of all files of a temporary directory, spilled ones elsewhere too."""
    return sum(map(directory_bytes, [path, *_foreign_spill(path)]))


def is_resumable(path: Path) -> bool:
    """Whether a later attempt can use the contents of a temporary directory."""
    journal = Journal.read(path)
    return journal is not None and journal.has_work


def remove(path: Path) -> None:
    """Delete a locked temporary directory, and its spilled files elsewhere."""
    for spill in _foreign_spill(path):
        _core.remove_tree(spill)
    _core.remove_tree(path)


def remove_final(path: Path, what: str) -> None:
    """Remove a finished directory. What has it open goes on."""
    # Renamed first, so that it exists whole or not at all; 'gnnstore gc' finds the new name.
    doomed = path.with_name(f".{path.name}.tmp-{secrets.token_hex(4)}")
    with storage_errors(f"remove the {what}", path):
        path.rename(doomed)
        fsync_directory(path.parent)
    with locked(doomed):
        remove(doomed)
    if doomed.exists():
        raise StorageError(
            f"{doomed}: not all of the {what} could be removed; check whose it is, and try "
            "'gnnstore gc --yes'",
            path=doomed,
        )


def remove_leftovers(final: Path) -> None:
    """Remove the temporary directories for `final` that no process works in."""
    for path in leftovers(final):
        with locked(path) as free:
            if free:
                remove(path)


def is_ours(path: Path) -> bool:
    """Whether a directory holds only entries that a writer makes."""
    own = _COMMON_ENTRIES.union(*(kind.entries for kind in KINDS))
    try:
        return set(os.listdir(path)) <= own  # noqa: PTH208
    except OSError:
        return False


def _state(path: Path, final: Path, kind: str | None) -> State:
    if kind is None:
        return "resumable"
    if kind == "old" and not final.exists():
        return "set aside"
    return "resumable" if is_resumable(path) else "unfinished"


def _foreign_spill(path: Path) -> list[Path]:
    """Return the directories outside of `path` that hold runs of its edges."""
    journal = Journal.read(path)
    named = set() if journal is None else set(journal.spill_directories[1:])
    return [spill for spill in sorted(named) if spill.is_dir() and not spill.is_symlink()]


def _age_seconds(path: Path) -> float:
    """Return the seconds since something in a directory last changed."""
    latest = max(found.st_mtime for found in (path.stat(), *files_under(path)))
    return max(0.0, time.time() - latest)


# Errors of a file system that does not support the flags of renameat2.
_NO_RENAME_FLAGS = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


class DirectoryTransaction:
    """A directory under construction."""

    def __init__(
        self,
        final: Path,
        manifest: type[Manifest],
        overwrite: bool,
        on_event: Callable[[str], None],
        adopt: Callable[[Path], bool] | None = None,
        *,
        resume: bool = True,
        sweeps: bool = True,  # else others may be at work on machines whose locks are not seen
    ) -> None:
        # Absolute, so that a later chdir changes nothing; not resolved, so that messages
        # show what the user typed as far as possible.
        self.final = Path(os.path.abspath(final))  # noqa: PTH100
        if overwrite and self.final.is_symlink() and self.final.exists():
            # A link to another disk: the new store goes there too.
            self.final = self.final.resolve()
        self.overwrite = overwrite
        self._on_event = on_event
        check_parent(self.final)
        # The directory that this one is a unit of, if any.
        self._whole = check_outside(self.final, manifest)
        # What lies in the directory to be replaced, and would be removed with it.
        self._units = _units_in(self.final) if overwrite else set()
        if (working := _unit_at_work(self._units)) is not None:
            raise UsageError(_unit_message(self.final, working, "is being made"), path=self.final)
        found = _sweep(self.final, on_event, adopt, resume) if sweeps else None
        self.adopted = found is not None  # whether a dead writer left the directory
        try:
            check_final(self.final, manifest, overwrite)
        except BaseException:
            if found is not None:
                os.close(found[1])
            raise
        if found is None:
            with storage_errors("create the output", self.final), _in_place(self._whole):
                found = make_locked(self.final.parent, f".{self.final.name}.tmp-")
        self.path, self._lock = found

    def commit(self, before_rename: Callable[[], None] = lambda: None) -> None:
        """Make every directory durable and give the directory its name."""
        with storage_errors("commit", self.final):
            for root, _, _ in os.walk(self.path):
                fsync_directory(Path(root))
            before_rename()
            fsync_directory(self.path)
            self._rename()
            fsync_directory(self.final.parent)
        self.keep()

    def _rename(self) -> None:
        new, final = os.fspath(self.path), os.fspath(self.final)
        if self.overwrite and self.final.exists():
            with _in_place(self.final):
                self._refuse_new_units()
                self._exchange()
            # The old store, under the temporary name now.
            _core.remove_tree(self.path)
            if self.path.exists():
                self._on_event(
                    f"the replaced directory could not be removed from {self.path}; "
                    f"'gnnstore gc {self.final.parent}' removes it"
                )
            return
        try:
            with _in_place(self._whole):
                try:
                    _core.rename_noreplace(new, final)
                except OSError as error:
                    if error.errno not in _NO_RENAME_FLAGS:
                        raise
                    if os.path.lexists(final):
                        raise FileExistsError(errno.EEXIST, "exists", final) from None
                    self.path.rename(self.final)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # the latter without the flags
                raise
            raise StoreExistsError(
                f"{final} was created by another process while it was being written; nothing was "
                "replaced. Choose another output or pass --overwrite",
                path=final,
            ) from None

    def _exchange(self) -> None:
        """Exchange the names of the directory and of the one that it replaces."""
        try:
            _core.rename_exchange(os.fspath(self.path), os.fspath(self.final))
        except OSError as error:
            if error.errno not in _NO_RENAME_FLAGS:
                raise
            # Without an atomic exchange there is a moment with neither name. The old
            # store then lies under .old-, and the next sweep puts it back.
            old = self.final.parent / f".{self.final.name}.old-{secrets.token_hex(4)}"
            self.final.rename(old)
            try:
                self.path.rename(self.final)
            except BaseException:
                with suppress(OSError):  # the new one has the name
                    old.rename(self.final)
                raise
            self.path = old

    def _refuse_new_units(self) -> None:
        """Refuse to remove what another process has made in the directory, or is making."""
        units = _units_in(self.final)
        found, doing = next(iter(sorted(units - self._units)), None), "was made"
        if found is None or found.name.startswith("."):
            found, doing = _unit_at_work(units), "is being made"
        if found is not None:
            raise StorageError(_unit_message(self.final, found, doing), path=self.final)

    def abort(self) -> None:
        """Remove everything that was written."""
        remove(self.path)
        self.keep()

    def keep(self) -> None:
        """Leave everything as it is, for a later writer to go on with. Idempotent."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def check_parent(path: Path) -> None:
    """Raise unless there is a directory to write into."""
    if not path.parent.is_dir():
        raise NotFoundError(
            f"{path.parent}: the directory to write into does not exist; create it first",
            path=path.parent,
        )


@contextmanager
def _in_place(path: Path | None) -> Iterator[None]:
    """Hold the lock of a directory with a name, so that no process replaces it meanwhile."""
    with ExitStack() as held:
        is_there = path is None
        while path is not None and not is_there:
            try:
                lock = take_lock(path.resolve(), _NAME_ATTEMPTS)
            except OSError:  # a file system without locks, or the directory is gone
                break
            if lock is None:
                message = f"{path}: another process is at work there; wait for it, and try again"
                raise StorageError(message, path=path)
            held.callback(os.close, lock)
            is_there = os.path.samestat(os.fstat(lock), path.stat())
        yield


def _units_in(final: Path) -> set[Path]:
    """Return what lies in the directories for units of a directory, work in progress included."""
    places = [path for kind in KINDS if kind.directory for path in _entries(final / kind.directory)]
    return {path for path in places if METADATA_FILE not in path.name}


def _unit_at_work(units: Iterable[Path]) -> Path | None:
    """Return a directory that a process works in."""
    for path in sorted(units):
        if path.name.startswith("."):
            with locked(path) as free:
                if not free and path.is_dir():
                    return path
    return None


def _unit_message(final: Path, unit: Path, doing: str) -> str:
    match = _NAME.fullmatch(unit.name)
    name = unit.name if match is None else match["final"]
    return (
        f"{final}: {unit.parent.name}/{name} {doing} in it meanwhile by another process, and would "
        "be removed with what is replaced; wait for it, and move it, or remove it with 'gnnstore "
        "rm', before the command is repeated"
    )


def check_outside(final: Path, manifest: type[Manifest]) -> Path | None:
    """Raise if the output lies in another sealed directory, which it would damage.

    Return the directory that it is a unit of.
    """
    own_parent = final.parent.resolve()
    for parent in (own_parent, *own_parent.parents):
        if parent.name.startswith(".gnnstore-"):
            return None  # a run's directory, which is removed with the run
        kind = kind_of(parent)
        if kind is None:
            continue
        own = next(each.directory for each in KINDS if each.manifest is manifest)
        if own and own_parent == parent / own:
            return parent
        raise UsageError(
            f"{final}: lies inside {parent}, a {kind.manifest.WORD}; choose a place outside",
            path=final,
        )
    return None


def check_final(final: Path, manifest: type[Manifest], overwrite: bool) -> None:
    """Raise if a name is taken and may not be replaced."""
    if not os.path.lexists(final):
        return
    if not overwrite:
        raise StoreExistsError(
            f"{final} exists; choose another output, or pass overwrite=True to "
            "replace it once the new one is complete",
            path=final,
        )
    if not manifest.is_at(final):
        raise UsageError(
            f"{final} exists and is not a gnnstore {manifest.WORD}, so it is not overwritten; "
            "remove it yourself or choose another output",
            path=final,
        )


def _sweep(
    final: Path,
    on_event: Callable[[str], None],
    adopt: Callable[[Path], bool] | None,
    resume: bool,
) -> tuple[Path, int] | None:
    """Remove directories of dead writers; return the one to continue and its lock, if any.

    `adopt`: whether the writer can continue a directory, which raises where it is of another.
    """
    found: tuple[Path, int] | None = None
    with ExitStack() as locks:
        for path in leftovers(final):
            try:
                lock = take_lock(path, LOCK_ATTEMPTS)
            except OSError:
                continue
            if lock is None:
                raise UsageError(
                    f"{final}: another process is writing this store right now ({path.name}); "
                    "wait for it, or choose another output",
                    path=final,
                )
            locks.callback(os.close, lock)
            if path.name.startswith(f".{final.name}.old-") and not final.exists():
                path.rename(final)
                on_event(f"restored {final}, which an interrupted overwrite had set aside")
            elif found is None and resume and adopt is not None and adopt(path):
                found = path, lock
            else:
                num_bytes = leftover_bytes(path)
                hint = ""
                with suppress(UsageError):
                    if not resume and adopt is not None and adopt(path):
                        hint = "; --resume would have gone on with it"
                remove(path)
                if num_bytes:  # else another writer may just have made it, and will notice
                    on_event(
                        f"removed {format_size(num_bytes)} that an interrupted attempt had left "
                        f"in {path}{hint}"
                    )
        # Both descriptors have the lock.
        return None if found is None else (found[0], os.dup(found[1]))
