"""Directories for the files that one run spills, removed however the run ends.

A run directory is `.gnnstore-run-XXXXXXXX` in a directory of the user's. It is removed when it is
closed, forgotten, or the interpreter ends. A killed process cannot do that; but the kernel drops
its lock on the directory's owner file, and the next run that makes a directory in the same place
removes those that it can lock. `gnnstore gc` finds them as well.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import secrets
import socket
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, Self, TypeAlias

from gnnstore import _core
from gnnstore.errors import NoSpaceError, NotFoundError, StorageError
from gnnstore.formats.container.files import directory_bytes
from gnnstore.formats.container.leftovers import Leftover, State, last_change
from gnnstore.formats.container.regular_files import open_regular
from gnnstore.formats.container.strict_json import parse_object

Claim: TypeAlias = Literal["running", "dead", "empty", "foreign"]

_log = logging.getLogger(__name__)

_PREFIX = ".gnnstore-run-"
_NAME = re.compile(re.escape(_PREFIX) + "[0-9a-f]{8}")
_OWNER_FILE = "owner.json"
# Another run may sweep a directory whose maker slept before it could write the owner file.
_TRIES = 10
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# On a network file system that does not share locks, the lock of another machine's run is not
# seen; but a run at work writes to its directory every few minutes.
_FOREIGN_AGE_SECONDS = 24 * 3600.0
# A younger empty directory is one that is being made.
_MAKING_SECONDS = 60.0


class RunDirectory:
    """A directory of this process, which is removed with its contents.

    Forked processes do not remove it. While such a process lives, it is not stale.
    """

    def __init__(self, path: Path, owner: int) -> None:
        """Take over a directory and the locked descriptor of its owner file; see `create`."""
        self.path = path  # absolute
        self._finish = weakref.finalize(self, _leave, path, owner, os.getpid())

    @classmethod
    def create(cls, parent: Path, *, purpose: str) -> Self:
        """Make a directory, and sweep those that killed runs left in `parent`."""
        parent = parent.absolute()
        sweep_stale(parent)
        swept: OSError | None = None
        for _ in range(_TRIES):
            path = parent / f"{_PREFIX}{secrets.token_hex(4)}"
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                continue
            except OSError as error:
                raise _create_error(error, parent, purpose) from error
            except BaseException:  # an interrupt, which may come when it has just been made
                _remove(path)
                raise
            try:
                return cls(path, _own(path, purpose))
            except (FileNotFoundError, BlockingIOError) as error:
                swept = error
                _remove(path)
            except OSError as error:
                _remove(path)
                raise _create_error(error, parent, purpose) from error
            except BaseException:  # an interrupt
                _remove(path)
                raise
        raise StorageError(
            f"{parent}: a directory for {purpose} vanished as soon as it was made, {_TRIES} times; "
            "look for what removes it, or choose another directory",
            path=parent,
        ) from swept

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
        with _claimed(path) as claim:
            state: State = "stale" if claim in {"dead", "empty"} else "running"
        if claim == "foreign":
            continue
        with suppress(OSError):  # it may end meanwhile
            age_seconds = max(0.0, time.time() - last_change(path))
            yield Leftover(path, None, state, directory_bytes(path), age_seconds)


def remove_run(path: Path) -> bool:
    """Delete a run directory if its run is dead, and return whether it is gone."""
    with _claimed(path) as claim:
        if claim == "dead":
            return _remove(path)
        if claim == "empty":
            # The process that made it may still put its owner file there: then this fails.
            with suppress(OSError):
                path.rmdir()
                return True
    return False


def _run_directories(parent: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(parent))  # noqa: PTH208
    except OSError:
        return []
    paths = [parent / name for name in names if _NAME.fullmatch(name)]
    return [path for path in paths if path.is_dir() and not path.is_symlink()]


def _own(path: Path, purpose: str) -> int:
    """Make and lock the owner file of a new directory, and return its descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path / _OWNER_FILE, flags, 0o600)
    try:
        _lock(descriptor)
        if os.fstat(descriptor).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        record = {
            "purpose": purpose,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "boot_id": _boot_id(),
        }
        data = json.dumps(record).encode()
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        # A file system without locks. No other process can lock either, so none sweeps.
        return


@contextmanager
def _claimed(path: Path) -> Iterator[Claim]:
    """Yield the state of a directory, and hold its lock meanwhile if it is free."""
    try:
        descriptor = open_regular(path / _OWNER_FILE, os.O_RDWR, error=StorageError, root=path)
    except FileNotFoundError:
        yield _claim_without_owner(path)
        return
    except OSError:
        yield "running"
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield "running"
            return
        if os.fstat(descriptor).st_nlink == 0:  # its run has just ended
            yield "foreign"
            return
        yield "dead" if _is_dead(path, descriptor) else "running"
    finally:
        os.close(descriptor)


def _claim_without_owner(path: Path) -> Claim:
    try:
        if any(path.iterdir()):
            return "foreign"
        return "empty" if time.time() - last_change(path) > _MAKING_SECONDS else "running"
    except OSError:
        return "foreign"


def _is_dead(path: Path, owner: int) -> bool:
    """Whether a run whose lock is free cannot be at work."""
    try:
        record = parse_object(os.pread(owner, 4096, 0), path=str(path / _OWNER_FILE))
        # All processes of one kernel see its locks, in containers too; and no process from before
        # the machine's last start runs now.
        if record["host"] == socket.gethostname() or record["boot_id"] == _boot_id() is not None:
            return True
    except (OSError, ValueError, KeyError, TypeError):
        pass  # killed while it wrote the file, or damaged
    return time.time() - last_change(path) > _FOREIGN_AGE_SECONDS


def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None


def _leave(path: Path, owner: int, pid: int) -> None:
    """Remove a directory at the end of its run, and then its lock."""
    try:
        if os.getpid() == pid:
            _remove_own(path)
    finally:
        with suppress(OSError):
            os.close(owner)


def _remove_own(path: Path) -> None:
    path = _hide(path)
    try:
        if not _remove(path):
            _log.warning(
                "cannot remove %s completely; the next run or 'gnnstore gc' will try again", path
            )
    except BaseException:  # an interrupt: this is called once, and there is no second try
        _remove(path)
        raise


def _hide(path: Path) -> Path:
    """Rename a run directory, and return its path.

    When the interpreter ends, a thread may still be making files.
    """
    hidden = path.with_name(f"{_PREFIX}{secrets.token_hex(4)}")
    with suppress(OSError):
        path.rename(hidden)
        return hidden
    return path


def _remove(path: Path) -> bool:
    """Delete a directory, the owner file last, and return whether it is gone."""
    try:
        entries = [entry for entry in path.iterdir() if entry.name != _OWNER_FILE]
        for entry in entries:
            if entry.is_dir() and not entry.is_symlink():
                _core.remove_tree(entry)
            else:
                entry.unlink(missing_ok=True)
        if any(entry.exists() for entry in entries):
            return False
        (path / _OWNER_FILE).unlink(missing_ok=True)
        path.rmdir()
    except FileNotFoundError:
        return not path.exists()
    except OSError:
        return False
    return True


def _create_error(error: OSError, parent: Path, purpose: str) -> OSError:
    reason = error.strerror or str(error)
    what = f"cannot make a directory for {purpose} in {parent}: {reason}"
    if error.errno == errno.ENOENT:
        return NotFoundError(f"{what}. Make it, or choose one that exists", path=parent)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(f"{what}. Free some space, or choose another disk", path=parent)
    return StorageError(f"{what}. Choose a directory that you may write to", path=parent)
