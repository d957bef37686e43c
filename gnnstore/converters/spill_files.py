"""Temporary files of a conversion: appended to, read back, and removed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import CorruptStoreError, storage_errors
from gnnstore.formats.container.files import fill_at, open_regular


def read_exactly(
    path: str | os.PathLike[str], offset: int, out: npt.NDArray[np.uint8], what: str
) -> None:
    """Fill an array with bytes of a file; `what` names the file in an error."""
    with storage_errors(f"read {what}", path):
        file = open_regular(path)
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
            file = open_regular(path, flags)
            with open(file, "ab") as stream:  # noqa: PTH123 - a descriptor
                stream.write(data if isinstance(data, bytes) else np.ascontiguousarray(data).data)

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


class RangeSort(SpillDirectory):
    """Sorts rows in two sequential passes: into files by ranges of their keys, then range by range.

    Fetching each row from its place would be a random read a row. So every byte is written and read
    once more, in large pieces, and the user of a range, which fits in memory, puts it in order.
    """

    def add(self, ranges: npt.NDArray[Any], **columns: npt.NDArray[Any] | list[bytes]) -> None:
        """Append rows to the files of their ranges, column by column."""
        for number, chosen in by_key(ranges):
            for column, rows in columns.items():
                if isinstance(rows, list):
                    some = [rows[i] for i in chosen.tolist()]
                    self.append(f"{number:06d}.{column}", b"".join(some))
                    lengths = np.fromiter(map(len, some), np.int64, len(some))
                    self.append(f"{number:06d}.{column}.lengths", lengths)
                else:
                    self.append(f"{number:06d}.{column}", rows.take(chosen, axis=0))

    def column(self, number: int, column: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return the elements of a column in a range, in the order in which they came."""
        path = self.path / f"{number:06d}.{column}"
        count = path.stat().st_size // np.dtype(dtype).itemsize if path.exists() else 0
        return self.read(path.name, dtype, 0, count)

    def texts(self, number: int, column: str) -> list[bytes]:
        """Return the texts of a column in a range, in the order in which they came."""
        letters = self.column(number, column, np.uint8).tobytes()
        ends = np.cumsum(self.column(number, f"{column}.lengths", np.int64)).tolist()
        return [letters[begin:end] for begin, end in pairwise((0, *ends))]
