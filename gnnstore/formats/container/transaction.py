"""Transactions of directories: each appears under its name complete, or not at all.

The directory is built next to its final name, as `.NAME.tmp-XXXXXXXX`, and renamed into
place after everything in it is durable. A lock on the temporary directory itself tells a
running writer from a dead one: the kernel drops the lock with the process, so an unlocked
directory was left by a crash. The next writer of the same name continues or removes it.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gnnstore import _core
from gnnstore.errors import (
    NotFoundError,
    StoreExistsError,
    UsageError,
    storage_errors,
)
from gnnstore.formats.container.files import fsync_directory
from gnnstore.formats.container.manifest import KINDS, Manifest, kind_of
from gnnstore.formats.container.workdir import (
    LOCK_ATTEMPTS,
    is_resumable,
    leftover_bytes,
    leftovers,
    make_locked,
    remove,
    take_lock,
)
from gnnstore.units import format_size

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
        _check_outside(self.final, manifest)
        found = _sweep(self.final, on_event, adopt, manifest.ATTEMPT)
        self.adopted = found is not None  # whether a dead writer left the directory
        try:
            check_final(self.final, manifest, overwrite)
        except BaseException:
            if found is not None:
                os.close(found[1])
            raise
        if found is None:
            with storage_errors("create the output", self.final):
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
            try:
                _core.rename_exchange(new, final)
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
            # The old store, under the temporary name now.
            _core.remove_tree(self.path)
            if self.path.exists():
                self._on_event(
                    f"the replaced directory could not be removed from {self.path}; "
                    f"'gnnstore gc {self.final.parent}' removes it"
                )
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
                f"{final} was created by another process while it was being written; nothing was "
                "replaced. Choose another output or pass --overwrite",
                path=final,
            ) from None

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


def _check_outside(final: Path, manifest: type[Manifest]) -> None:
    """Raise if the output lies in another sealed directory, which it would damage."""
    own_parent = final.parent.resolve()
    for parent in (own_parent, *own_parent.parents):
        if parent.name.startswith(".gnnstore-"):
            return  # a run's directory, which is removed with the run
        kind = kind_of(parent)
        if kind is None:
            continue
        own = next(each.directory for each in KINDS if each.manifest is manifest)
        if own and own_parent == parent / own:
            return
        raise UsageError(
            f"{final}: lies inside {parent}, which is {kind.manifest.NOUN}; choose a place outside",
            path=final,
        )


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
            f"{final} exists and is not {manifest.NOUN}, so it is not overwritten; remove it "
            "yourself or choose another output",
            path=final,
        )


def _sweep(
    final: Path,
    on_event: Callable[[str], None],
    adopt: Callable[[Path], bool] | None,
    attempt: str,
) -> tuple[Path, int] | None:
    """Remove directories of dead writers; return the one to continue and its lock, if any."""
    found: tuple[Path, int] | None = None
    for path in leftovers(final):
        try:
            lock = take_lock(path, LOCK_ATTEMPTS)
        except OSError:
            continue
        is_kept = False
        try:
            if lock is None:
                raise UsageError(
                    f"{final}: another process is writing this store right now ({path.name}); "
                    "wait for it, or choose another output",
                    path=final,
                )
            if path.name.startswith(f".{final.name}.old-") and not final.exists():
                path.rename(final)
                on_event(f"restored {final}, which an interrupted overwrite had set aside")
            elif found is None and adopt is not None and adopt(path):
                found, is_kept = (path, lock), True
            else:
                num_bytes = leftover_bytes(path)
                hint = "; --resume would have gone on with it" if is_resumable(path) else ""
                remove(path)
                if num_bytes:  # else another writer may just have made it, and will notice
                    on_event(
                        f"removed {format_size(num_bytes)} that an interrupted {attempt} had left "
                        f"in {path}{hint}"
                    )
        except BaseException:
            if found is not None and not is_kept:
                os.close(found[1])
            raise
        finally:
            if lock is not None and not is_kept:
                os.close(lock)
    return found
