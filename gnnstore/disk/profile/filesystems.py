"""Identifies the file system of a path, by which measurements of disks are saved.

A store is moved, copied and mounted elsewhere; the speed of its reads depends on the file system
alone.
"""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

_MOUNTS = Path("/proc/self/mounts")
# The kernel writes a space, tab, newline or backslash of a name as three octal digits.
_OCTAL = re.compile(r"\\([0-7]{3})")
# The complement of characters that are safe in names of files; "fuse.sshfs" stays readable.
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Mount:
    """A mounted file system, as the kernel lists it."""

    point: str
    device: str  # a block device, a server's export, or just a name
    kind: str  # its type, such as "ext4"


def find_mount(path: str | os.PathLike[str], mounts: Path = _MOUNTS) -> Mount | None:
    """Return the mount with the longest mount point above `path`; None if it is not known."""
    try:
        lines = os.fsdecode(mounts.read_bytes()).strip().split("\n")
    except OSError:
        return None
    place = Path(path).resolve()
    best: Mount | None = None
    for line in lines:
        device, point, kind = (_unescape(word) for word in (*line.split(" "), "", "")[:3])
        # Of two mounts on one point, the later one covers the earlier.
        if place.is_relative_to(point) and (best is None or len(point) >= len(best.point)):
            best = Mount(point, device, kind)
    return best


def _unescape(word: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), word)


def filesystem_id(path: str | os.PathLike[str]) -> str:
    """Return a name for the file system of `path`, such as "ext4-160a81ff238cf016"."""
    identity = os.statvfs(path).f_fsid
    mount = find_mount(path)
    kind = mount.kind if mount else "unknown"
    if identity == 0 and mount:
        # NFS and old layered file systems have none: device and mount point replace it.
        identity = zlib.crc32(os.fsencode(f"{mount.device} {mount.point}"))
    return f"{_NOT_IN_NAMES.sub('_', kind)}-{identity:x}"
