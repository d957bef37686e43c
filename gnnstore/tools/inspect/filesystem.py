"""What a file system promises: its type, its free space and its direct-I/O alignment.

Whether reads that bypass the page cache are possible, and how they must be aligned, depends
on the file system under a store, so a bug report is incomplete without it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
from pathlib import Path
from typing import Any

from gnnstore.disk.profile.filesystems import find_mount
from gnnstore.errors import NotFoundError

_AT_FDCWD = -100
_STATX_DIOALIGN = 0x2000  # Linux 6.1
_STATX_BYTES = 256
_STATX_MASK_OFFSET = 0
_STATX_DIO_OFFSET = 152  # stx_dio_mem_align and stx_dio_offset_align, u32 each


def describe_filesystem(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return facts about the file system that holds `path`.

    Raises
    ------
    NotFoundError
        If there is no such file or directory.
    """
    place = Path(path)
    if not place.exists():
        raise NotFoundError(f"{place}: no such file or directory", path=place)
    space = os.statvfs(place)
    mount = find_mount(place)
    return {
        "path": str(place),
        "mount_point": mount.point if mount else None,
        "type": mount.kind if mount else None,
        "device": mount.device if mount else None,
        "read_only": bool(space.f_flag & os.ST_RDONLY),
        "block_bytes": space.f_bsize,
        "free_bytes": space.f_bavail * space.f_frsize,
        "total_bytes": space.f_blocks * space.f_frsize,
        "direct_io": _direct_io(place),
        "rotational": _rotational(place),
    }


def _direct_io(place: Path) -> dict[str, int] | None:
    """Return the alignments that direct I/O needs; None where the kernel cannot say."""
    if place.is_file():
        return _dio_alignment(place)
    try:  # the kernel answers for regular files only
        with tempfile.NamedTemporaryFile(dir=place, prefix=".gnnstore-info-") as probe:
            return _dio_alignment(Path(probe.name))
    except OSError:
        return None


def _dio_alignment(file: Path) -> dict[str, int] | None:
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if statx is None:
        return None
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(file), 0, _STATX_DIOALIGN, buffer) != 0:
        return None
    (mask,) = struct.unpack_from("=I", buffer, _STATX_MASK_OFFSET)
    if not mask & _STATX_DIOALIGN:
        return None
    memory, offset = struct.unpack_from("=II", buffer, _STATX_DIO_OFFSET)
    return {"memory_alignment_bytes": memory, "offset_alignment_bytes": offset}


def _rotational(place: Path) -> bool | None:
    """Return whether the disk spins; None for a network, memory or layered file system."""
    device = place.stat().st_dev
    node = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for queue in (node / "queue", node / ".." / "queue"):  # a partition's disk is one up
        try:
            return (queue / "rotational").read_text().strip() == "1"
        except OSError:
            continue
    return None
