"""Drops files from the page cache, so that they are read from the disk and not from memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def drop_from_cache(paths: Iterable[Path]) -> None:
    """Ask the kernel to drop the cached pages of files; needs no privilege once they are clean."""
    for path in paths:
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.is_file():
                descriptor = os.open(file, os.O_RDONLY)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)
