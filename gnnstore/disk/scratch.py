"""Directories for the files that one run spills, removed however the run ends.

A run directory is `.gnnstore-run-XXXXXXXX` in a directory of the user's. It is removed when it is
closed, forgotten, or the interpreter ends. A killed process cannot do that; the next run that makes
a directory in the same place removes those whose lock it can take
(`gnnstore.formats.container.workdir`), and `gnnstore gc` finds them as well.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Self

from gnnstore import _core
from gnnstore.errors import storage_errors
from gnnstore.formats.container.files import directory_bytes
from gnnstore.formats.container.workdir import RUN_PREFIX, locked, make_locked, run_directories

_log = logging.getLogger(__name__)


class RunDirectory:
    """A directory of this process, which is removed with its contents.

    Forked processes do not remove it. While such a process lives, it is not stale.
    """

    def __init__(self, path: Path, lock: int) -> None:
        """Take over a directory and the descriptor that holds its lock; see `create`."""
        self.path = path  # absolute
        self._finish = weakref.finalize(self, _leave, path, lock, os.getpid())

    @classmethod
    def create(cls, parent: Path, *, purpose: str) -> Self:
        """Make a directory, and sweep those that killed runs left in `parent`."""
        parent = parent.absolute()
        sweep_stale(parent)
        doing = f"make a directory for {purpose} (any that you may write to will do)"
        with storage_errors(doing, parent):
            return cls(*make_locked(parent, RUN_PREFIX, 0o700))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_bytes(self) -> int:
        """Bytes of all files in the directory."""
        return directory_bytes(self.path)

    def close(self) -> None:
        """Remove the directory, in the process that made it. Idempotent."""
        self._finish()


def default_parent(store: Path) -> Path:
    """Return where the runs on a store spill: the store's parent, or where temporary files go."""
    parent = store.absolute().parent
    # A file system that is mounted read-only counts as one that cannot be written.
    return parent if os.access(parent, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def sweep_stale(parent: Path) -> list[Path]:
    """Remove the run directories in `parent` whose runs are dead, and return their paths."""
    removed = []
    for path in run_directories(parent):
        with suppress(OSError), locked(path) as is_free:
            if is_free and path.stat().st_uid == os.geteuid() and _remove(path):
                _log.info("removed %s, which a run that was killed had left", path)
                removed.append(path)
    return removed


def _leave(path: Path, lock: int, pid: int) -> None:
    """Remove a directory at the end of its run, and then its lock."""
    try:
        if os.getpid() == pid:
            _remove_own(path)
    finally:
        with suppress(OSError):
            os.close(lock)


def _remove_own(path: Path) -> None:
    # When the interpreter ends, a thread may still be making files: not under another name.
    hidden = path.with_name(f"{RUN_PREFIX}{secrets.token_hex(4)}")
    with suppress(OSError):
        path.rename(hidden)
        path = hidden
    try:
        if not _remove(path):
            _log.warning(
                "cannot remove %s completely; the next run or 'gnnstore gc' will try again", path
            )
    except BaseException:  # an interrupt: this is called once, and there is no second try
        _remove(path)
        raise


def _remove(path: Path) -> bool:
    """Delete a directory, and return whether it is gone."""
    _core.remove_tree(path)
    return not path.exists()
