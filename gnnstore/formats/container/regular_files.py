"""Files of untrusted origin: opened without waiting, or refused.

A store, a cache or a data set may come from anywhere, and hold something else than regular files.
Opening a FIFO waits for its other end, a device may act on being opened, and a symbolic link leads
out of the directory. So every such file is opened here; the core has the same rule in its own
`open_regular`.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gnnstore.errors import CorruptStoreError, GnnstoreError

_CAUTIOUS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# Where a file without a name is opened again; /proc shows it as a link.
_OWN_DESCRIPTORS = Path("/proc/self/fd")
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(
    path: str | os.PathLike[str],
    flags: int = os.O_RDONLY,
    *,
    error: type[GnnstoreError],
    root: Path | None = None,
) -> int:
    """Open a regular file, and return its descriptor."""
    path = Path(path)
    if root == _OWN_DESCRIPTORS:
        root = None
    try:
        if root is None:
            descriptor = os.open(path, flags | _CAUTIOUS, 0o666)
        else:
            descriptor = _open_below(root, path, flags | _CAUTIOUS | os.O_NOFOLLOW)
    except OSError as reason:
        _refuse_special(path, root, error)
        reason.filename = os.fspath(path)
        raise
    try:
        found = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(found):
            raise _refusal(path, found, error)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_binary(
    path: str | os.PathLike[str],
    *,
    error: type[GnnstoreError],
    root: Path | None = None,
) -> BinaryIO:
    """Open a regular file for reading, as `open_regular` does."""
    descriptor = open_regular(path, error=error, root=root)
    return open(descriptor, "rb")  # noqa: PTH123 - a descriptor


def stat_below(root: Path, name: str, checked: set[str]) -> os.stat_result:
    """Return the status of a file of a sealed directory."""
    check_directories(root, os.path.dirname(name), checked)  # noqa: PTH120 - a str, many times
    path = root / name
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise _refusal(path, found.st_mode, CorruptStoreError)
    return found


def check_directories(root: Path, name: str, checked: set[str] | None = None) -> None:
    """Refuse a path in a sealed directory that leads over a symbolic link."""
    if not name or (checked is not None and name in checked):
        return
    check_directories(root, os.path.dirname(name), checked)  # noqa: PTH120 - see above
    if (root / name).is_symlink():
        raise _refusal(root / name, stat.S_IFLNK, CorruptStoreError)
    if checked is not None:
        checked.add(name)


def check_tree(root: Path) -> None:
    """Refuse a directory that holds anything but directories and regular files, at any depth."""
    for place, directories, names in os.walk(root):
        for name in (*directories, *names):
            path = Path(place, name)
            with suppress(FileNotFoundError):
                found = path.lstat().st_mode
                if not stat.S_ISREG(found) and not stat.S_ISDIR(found):
                    raise _refusal(path, found, CorruptStoreError)


def _open_below(root: Path, path: Path, flags: int) -> int:
    *directories, name = path.relative_to(root).parts
    place = os.open(root, _DIRECTORY)
    try:
        for directory in directories:
            below = os.open(directory, _DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = below
        return os.open(name, flags, 0o666, dir_fd=place)
    finally:
        os.close(place)


def _refuse_special(path: Path, root: Path | None, error: type[GnnstoreError]) -> None:
    """Raise if a path could not be opened because it is a link, a socket or a FIFO."""
    places = [path]
    if root is not None:
        below = path.relative_to(root).parts
        places = [root.joinpath(*below[:depth]) for depth in range(1, len(below) + 1)]
    for place in places:
        try:
            found = place.stat().st_mode if root is None else place.lstat().st_mode
        except OSError:
            return
        if stat.S_ISLNK(found) or (place == path and not stat.S_ISREG(found)):
            raise _refusal(place, found, error) from None


def check_regular(path: Path, error: type[GnnstoreError]) -> None:
    """Refuse an existing path that is no regular file; links are followed."""
    found = path.stat().st_mode
    if not stat.S_ISREG(found):
        raise _refusal(path, found, error)


def _refusal(path: Path, mode: int, error: type[GnnstoreError]) -> GnnstoreError:
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
    instead = "a copy of what it leads to" if stat.S_ISLNK(mode) else "a file"
    return error(f"{path}: not a regular file but {kind}; replace it with {instead}", path=path)
