"""Damage files, and work with what may not be done to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def flip(path: Path, offset: int, bit: int = 6) -> None:
    """Change one bit of a file; `bit` is counted from the byte at `offset`."""
    with path.open("r+b") as file:
        file.seek(offset + bit // 8)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1 << bit % 8]))


@contextmanager
def unprivileged() -> Iterator[None]:
    """Drop root's privileges, which ignore permissions, for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def raised(call: Callable[[], object]) -> OSError:
    """Return the error of a call that has to fail, to look at its number and its text."""
    with pytest.raises(OSError) as info:  # noqa: PT011  the callers check errno and text
        call()
    return info.value
