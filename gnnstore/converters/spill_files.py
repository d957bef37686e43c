"""Temporary files of a conversion: appended to, read back, and removed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import CorruptStoreError, storage_errors
from gnnstore.formats.container.files import fill_at
from gnnstore.formats.container.regular_files import open_regular


def read_exactly(
    path: str | os.PathLike[str], offset: int, out: npt.NDArray[np.uint8], what: str
) -> None:
    """Fill an array with bytes of a file; `what` names the file in an error."""
    with storage_errors(f"read {what}", path):
        file = open_regular(path, error=CorruptStoreError, root=Path(path).parent)
        try:
            done = fill_at(file, out.data, offset)
        finally:
            os.close(file)
    if done < len(out):
        raise CorruptStoreError(
            f"{path}: ends at byte {offset + done}: it was truncated; restore it from a copy, or "
            "convert again",
            path=path,
        )


def by_key(keys: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Yield each of the keys with its positions, both ascending."""
    order = np.argsort(keys, kind="stable")
    present, begins = np.unique(keys[order], return_index=True)
    yield from zip(present.tolist(), np.split(order, begins[1:]), strict=True)


class SpillDirectory:
    """A directory of temporary files of one conversion attempt."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self._what = what
        with storage_errors("make the directory", path):
            path.mkdir(parents=True, exist_ok=True)
            for old in path.iterdir():
                old.unlink()

    def append(self, name: str, data: npt.NDArray[Any] | bytes) -> None:
        """Append an array, or bytes, to a file."""
        path, flags = self.path / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with storage_errors(f"write {self._what}", path):
            file = open_regular(path, flags, error=CorruptStoreError, root=self.path)
            with open(file, "ab") as stream:  # noqa: PTH123 - a descriptor
                stream.write(data if isinstance(data, bytes) else np.ascontiguousarray(data).data)

    def size_bytes(self, name: str) -> int:
        """Return the size of a file; 0 if nothing was appended to it."""
        path = self.path / name
        return path.stat().st_size if path.exists() else 0

    def read(self, name: str, dtype: npt.DTypeLike, first: int, count: int) -> npt.NDArray[Any]:
        """Return elements first, ..., first + count - 1 of a file of one type."""
        found = np.empty(count, dtype)
        if count:
            offset = first * found.itemsize
            read_exactly(self.path / name, offset, found.view(np.uint8), self._what)
        return found

    def remove(self, *names: str) -> None:
        """Remove files, if they are there."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the directory."""
        if self.path.is_dir():
            for file in self.path.iterdir():
                file.unlink()
            self.path.rmdir()
