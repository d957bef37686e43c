"""Opens files of untrusted origin: opening a FIFO would wait, so it is refused."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gnnstore.errors import GnnstoreError


def open_regular(
    path: str | os.PathLike[str], flags: int = os.O_RDONLY, *, error: type[GnnstoreError]
) -> int:
    """Open a regular file, and return its descriptor."""
    with suppress(FileNotFoundError):
        check_regular(Path(path), error)
    return os.open(path, flags | os.O_CLOEXEC, 0o666)


def open_binary(path: str | os.PathLike[str], *, error: type[GnnstoreError]) -> BinaryIO:
    """Open a regular file for reading."""
    return open(open_regular(path, error=error), "rb")


def check_regular(path: Path, error: type[GnnstoreError]) -> None:
    """Refuse an existing path that is no regular file; links are followed."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise error(f"{path}: not a regular file; put a file there", path=path)
