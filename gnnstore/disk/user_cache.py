"""The user's cache: files that are kept between runs and can always be made again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gnnstore.errors import StorageError


def user_cache_directory(purpose: str) -> Path:
    """Return the directory for files of one kind: `$XDG_CACHE_HOME/gnnstore/PURPOSE`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        try:
            cache = Path.home() / ".cache"
        except RuntimeError:
            cache = Path()
    if not cache.is_absolute():
        raise StorageError(f"there is no home directory to keep {purpose} in; set XDG_CACHE_HOME")
    return cache / "gnnstore" / purpose


def write_whole(file: Path, parts: Iterable[Any]) -> None:
    """Write a file atomically: readers see the whole new file or the old one, never a part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with open(descriptor, "wb") as opened:  # noqa: PTH123 - a descriptor
            for part in parts:
                opened.write(part)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
