"""All or nothing: a directory that appears under its name complete, or not at all.

The directory is built beside its final name, as `.NAME.tmp-XXXXXXXX`, and renamed into
place after everything in it is durable. A lock on the temporary directory itself tells a
running writer from a dead one: the kernel drops the lock with the process, so whatever is
found unlocked was left by a crash, and the next writer of the same name sweeps it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from gnnstore import _core
from gnnstore.errors import (
    NotFoundError,
    StorageError,
    StoreExistsError,
    UsageError,
    storage_error,
)
from gnnstore.formats.files import directory_bytes, fsync_directory
from gnnstore.units import format_size

# What a file system without renameat2's flags answers.
_NO_RENAME_FLAGS = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


class DirectoryTransaction:
    """A directory under construction.

    Parameters
    ----------
    final : Path
        The name that the directory gets on commit.
    overwrite : bool
        Whether an existing directory is replaced; it stays untouched until the commit.
    is_replaceable : callable
        Told the existing directory before any work; returns whether it is of the kind that
        may be replaced. Keeps `--overwrite` from deleting someone's home directory.
    on_event : callable
        Told, in a sentence, when leftovers of a dead writer were removed.

    Raises
    ------
    StoreExistsError
        If the final name exists and `overwrite` is false.
    UsageError
        If what exists must not be replaced, or another process is writing it now.
    """

    def __init__(
        self,
        final: Path,
        *,
        overwrite: bool,
        is_replaceable: Callable[[Path], bool],
        on_event: Callable[[str], None],
    ) -> None:
        # Absolute, so that a later chdir changes nothing; not resolved, so that messages
        # show what the user typed as far as possible.
        self.final = Path(os.path.abspath(final))  # noqa: PTH100
        if overwrite and self.final.is_symlink() and self.final.exists():
            # Whoever links to another disk wants the new store there too.
            self.final = self.final.resolve()
        self.overwrite = overwrite
        if not self.final.parent.is_dir():
            raise NotFoundError(
                f"{self.final.parent}: the directory to write into does not exist; create it first",
                path=self.final.parent,
            )
        _sweep(self.final, on_event)
        self._check_final(is_replaceable)
        self.path, self._lock = self._create()

    def _check_final(self, is_replaceable: Callable[[Path], bool]) -> None:
        if not os.path.lexists(self.final):
            return
        if not self.overwrite:
            raise StoreExistsError(
                f"{self.final} exists; choose another output, or pass --overwrite "
                "(overwrite=True) to replace it once the new one is complete",
                path=self.final,
            )
        if not is_replaceable(self.final):
            raise UsageError(
                f"{self.final} exists and is not a gnnstore store, so it is not overwritten; "
                "remove it yourself or choose another output",
                path=self.final,
            )

    def _create(self) -> tuple[Path, int]:
        while True:
            path = self.final.parent / f".{self.final.name}.tmp-{uuid.uuid4().hex[:8]}"
            try:
                path.mkdir()
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except FileExistsError:
                continue
            except FileNotFoundError:
                continue  # a sweeper was faster
            except OSError as error:
                raise storage_error(error, "create the output", path) from error
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.is_dir():  # else a sweeper found it between mkdir and flock
                return path, lock
            os.close(lock)

    def commit(self) -> None:
        """Make every directory durable and give the directory its name.

        Raises
        ------
        StoreExistsError
            If the name was taken meanwhile.
        StorageError
            If the operating system refuses.
        """
        try:
            for root, _, _ in os.walk(self.path):
                fsync_directory(Path(root))
            self._rename()
            fsync_directory(self.final.parent)
        except OSError as error:
            if isinstance(error, (StorageError, StoreExistsError)):
                raise
            raise storage_error(error, "commit", self.final) from error
        os.close(self._lock)

    def _rename(self) -> None:
        new, final = os.fspath(self.path), os.fspath(self.final)
        if self.overwrite and self.final.exists():
            try:
                _core.rename_exchange(new, final)
            except OSError as error:
                if error.errno not in _NO_RENAME_FLAGS:
                    raise
                # Without an atomic exchange there is a moment with neither name. The old
                # store then lies under .old-, and the next sweep puts it back.
                old = self.final.parent / f".{self.final.name}.old-{uuid.uuid4().hex[:8]}"
                self.final.rename(old)
                self.path.rename(self.final)
                self.path = old
            # The old store, under the temporary name now.
            shutil.rmtree(self.path, ignore_errors=True)
            return
        try:
            try:
                _core.rename_noreplace(new, final)
            except OSError as error:
                if error.errno not in _NO_RENAME_FLAGS:
                    raise
                if os.path.lexists(final):
                    raise FileExistsError(errno.EEXIST, "exists", final) from None
                self.path.rename(self.final)
        except FileExistsError:
            raise StoreExistsError(
                f"{final} was created by someone else while it was being written; nothing was "
                "replaced. Choose another output or pass --overwrite",
                path=final,
            ) from None

    def abort(self) -> None:
        """Remove everything that was written."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def leftovers(final: Path) -> list[Path]:
    """Return the temporary directories beside `final`, of running writers and of dead ones."""
    # No glob: the name may hold characters that mean something to it.
    prefixes = (f".{final.name}.tmp-", f".{final.name}.old-")
    try:
        names = sorted(os.listdir(final.parent))  # noqa: PTH208
    except OSError:
        return []
    return [final.parent / name for name in names if name.startswith(prefixes)]


def _sweep(final: Path, on_event: Callable[[str], None]) -> None:
    for path in leftovers(final):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{final}: another process is writing this store right now ({path.name}); "
                "wait for it, or choose another output",
                path=final,
            ) from None
        else:
            if path.name.startswith(f".{final.name}.old-") and not final.exists():
                path.rename(final)
                on_event(f"restored {final}, which an interrupted overwrite had set aside")
                continue
            size = format_size(directory_bytes(path))
            shutil.rmtree(path, ignore_errors=True)
            on_event(f"removed {size} that an interrupted conversion had left in {path}")
        finally:
            os.close(lock)
