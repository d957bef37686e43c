"""Directories for the files that one run spills, removed however the run ends.

A run directory is `.gnnstore-run-MMMMMMMM-XXXXXXXX` in a directory of the user's, M from the names
of the machine. It is removed when it is closed, forgotten, or the interpreter ends. A killed
process cannot do that; the next run that makes a directory in the same place removes those whose
lock it can take (`gnnstore.formats.container.workdir`), and `gnnstore gc` finds them as well.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import socket
import tempfile
import time
import weakref
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from gnnstore import _core
from gnnstore.errors import NoSpaceError, NotFoundError, StorageError
from gnnstore.formats.container.files import directory_bytes
from gnnstore.formats.container.workdir import Leftover, State, last_change, locked, make_locked

_log = logging.getLogger(__name__)

_PREFIX = ".gnnstore-run-"
_NAME = re.compile(re.escape(_PREFIX) + "([0-9a-f]{4})([0-9a-f]{4})-[0-9a-f]{8}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# On a network file system that does not share locks, the lock of another machine's run is not
# seen; but a run at work writes to its directory every few minutes.
_FOREIGN_AGE_SECONDS = 24 * 3600.0


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
        try:
            return cls(*make_locked(parent, f"{_PREFIX}{''.join(_machine())}-", 0o700))
        except OSError as error:
            raise _create_error(error, parent, purpose) from error

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
    for path in _run_directories(parent):
        with suppress(OSError):
            if path.stat().st_uid == os.geteuid() and remove_run(path):
                _log.info("removed %s, which a run that was killed had left", path)
                removed.append(path)
    return removed


def find_runs(directory: Path) -> Iterator[Leftover]:
    """Yield every run directory in `directory`, with the state "running" or "stale"."""
    for path in _run_directories(directory):
        with locked(path) as is_free:
            state: State = "stale" if is_free and _is_dead(path) else "running"
        with suppress(OSError):  # it may end meanwhile
            age_seconds = max(0.0, time.time() - last_change(path))
            yield Leftover(path, None, state, directory_bytes(path), age_seconds)


def remove_run(path: Path) -> bool:
    """Delete a run directory if its run is dead, and return whether it is gone."""
    with locked(path) as is_free:
        return is_free and _is_dead(path) and _remove(path)


def _run_directories(parent: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(parent))  # noqa: PTH208
    except OSError:
        return []
    paths = [parent / name for name in names if _NAME.fullmatch(name)]
    return [path for path in paths if path.is_dir() and not path.is_symlink()]


def _machine() -> tuple[str, str]:
    """Return four digits each for the host's name and for the start of its kernel."""
    host = boot = socket.gethostname()
    with suppress(OSError):
        boot = _BOOT_ID.read_text().strip()
    return _digits(host), _digits(boot)


def _digits(name: str) -> str:
    return f"{zlib.crc32(name.encode()) & 0xFFFF:04x}"


def _is_dead(path: Path) -> bool:
    """Whether a run whose lock is free cannot be at work."""
    # All processes of one kernel see its locks, in containers too; and no process from before the
    # machine's last start runs now.
    found = _NAME.fullmatch(path.name)
    if found and any(map(str.__eq__, found.groups(), _machine())):
        return True
    with suppress(OSError):
        return time.time() - last_change(path) > _FOREIGN_AGE_SECONDS
    return False


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
    hidden = path.with_name(f"{path.name[:-8]}{secrets.token_hex(4)}")
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


def _create_error(error: OSError, parent: Path, purpose: str) -> OSError:
    reason = error.strerror or str(error)
    what = f"cannot make a directory for {purpose} in {parent}: {reason}"
    if error.errno == errno.ENOENT:
        return NotFoundError(f"{what}. Make it, or choose one that exists", path=parent)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(f"{what}. Free some space, or choose another disk", path=parent)
    return StorageError(f"{what}. Choose a directory that you may write to", path=parent)
