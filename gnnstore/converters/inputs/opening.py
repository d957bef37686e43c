"""Checks that a converter's inputs are there, and describes them for provenance."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from gnnstore.errors import InputError, NotFoundError, UsageError, storage_errors
from gnnstore.formats.container.regular_files import check_regular, open_binary

PathLike = str | os.PathLike[str]


def existing_path(path: PathLike, what: str) -> Path:
    """Return the path of an input that exists."""
    found = Path(path)
    with storage_errors(f"look for {what}", found):
        exists = found.exists()
    if not exists:
        raise NotFoundError(f"{what}: {found} does not exist; check the path", path=found)
    return found


def existing_file(path: PathLike, what: str) -> Path:
    """Return the path of an input that exists and is a file."""
    found = existing_path(path, what)
    if found.is_dir():
        raise InputError(f"{what} should be a file, but {found} is a directory", path=found)
    check_regular(found, InputError)
    return found


def open_input(path: Path) -> BinaryIO:
    """Open an input for reading; it may be a link."""
    return open_binary(path, error=InputError)


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive for reading, as `open_input` does."""
    with open_input(path) as file, zipfile.ZipFile(file) as archive:
        yield archive


def existing_directory(path: PathLike, what: str) -> Path:
    """Return the path of an input that exists and is a directory."""
    found = existing_path(path, what)
    if not found.is_dir():
        raise InputError(f"{what} should be a directory, but {found} is a file", path=found)
    return found


def describe_files(paths: Iterable[PathLike]) -> list[dict[str, Any]]:
    """Return the absolute path and the size in bytes of each input, for provenance.

    Bytes of a path that are no UTF-8 are escaped: JSON cannot hold them.
    """
    found = [Path(path).absolute() for path in paths]
    return [
        {
            "path": os.fsencode(path).decode("utf-8", "backslashreplace"),
            "size_bytes": existing_path(path, "an input").stat().st_size,
        }
        for path in found
    ]


def choose_name(names: Sequence[str], wanted: str | None, kind: str, path: Path) -> str | None:
    """Return the name of the split or task to take from a data set; None if it has none."""
    listed = ", ".join(names) or "none"
    if wanted is not None and wanted not in names:
        raise NotFoundError(f"{path}: there is no {kind} {wanted!r}; there is {listed}", path=path)
    if wanted is None and len(names) > 1:
        raise UsageError(
            f"{path}: there are several {kind}s; choose one with {kind}= (--{kind}): {listed}"
        )
    return wanted or next(iter(names), None)
