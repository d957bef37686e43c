"""Temporary files of a conversion: appended to, read back, removed; rows sorted with them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.inputs.ids import check_ids
from gnnstore.converters.inputs.source import (
    ArraySource,
    MemoryArray,
    RowTaker,
    read_ahead,
    row_bytes,
)
from gnnstore.errors import InputError, storage_errors
from gnnstore.formats.base.files import open_regular, require_space
from gnnstore.formats.container.reads import read_exactly
from gnnstore.units import format_count

# One part in so many of the memory for a range of nodes: one is in memory unsorted and sorted while
# the next is read ahead. Much smaller ranges would make the pieces of a read tiny.
_MEMORY_SHARE = 8
_MIN_RANGE_BYTES, _MAX_RANGE_BYTES = 2**20, 2**28


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


def in_order(
    source: ArraySource,
    places: npt.NDArray[Any],
    directory: Path,
    memory_bytes: int | None,
    *,
    at_once: int,
) -> AbstractContextManager[ArraySource]:
    """Provide the rows of all nodes in a new order, within a context."""
    num_bytes = row_bytes(source) * len(places)
    if num_bytes > at_once:
        nodes = MemoryArray("the new numbers", places)
        return closing(ScatteredRows(source, nodes, directory, memory_bytes))
    whole = _core.pool_empty(num_bytes).view(source.dtype).reshape(source.shape)
    done = 0
    for rows in source.pieces():
        whole[places[done : done + len(rows)]] = rows
        done += len(rows)
    return nullcontext(MemoryArray(source.label, whole))


class ScatteredRows(ArraySource):
    """An array sorted by node, made of rows in any order."""

    def __init__(
        self,
        source: ArraySource,
        nodes: ArraySource,
        directory: Path,
        memory_bytes: int | None = None,
    ) -> None:
        if len(nodes.shape) != 1 or nodes.dtype.kind not in "iu":
            raise InputError(
                f"{nodes.label}: is {list(nodes.shape)} of {nodes.dtype}, expected integers [N]"
            )
        if not source.shape or nodes.shape[0] != source.shape[0]:
            raise InputError(
                f"{nodes.label}: has {format_count(nodes.shape[0], 'id')}, but {source.label} has "
                f"rows of shape {list(source.shape)}; every row needs one"
            )
        self.label = f"{source.label} by {nodes.label}"
        self.shape = source.shape
        self.dtype = source.dtype
        self._source = source
        self._nodes = nodes
        self._directory = directory
        self._row_bytes = max(1, row_bytes(source))
        share = _MAX_RANGE_BYTES if memory_bytes is None else memory_bytes // _MEMORY_SHARE
        range_bytes = min(max(share, _MIN_RANGE_BYTES), _MAX_RANGE_BYTES)
        self._range_rows = max(1, range_bytes // self._row_bytes)
        self._files: RangeSort | None = None

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows of nodes start, start + 1, ..., at most `step` at a time."""
        if self._files is None:
            self._files = self._divide()
        for number in range(start // self._range_rows, -(-self.shape[0] // self._range_rows)):
            ordered = self._order(self._files, number)
            skipped = max(0, start - number * self._range_rows)
            for first in range(skipped, len(ordered), step):
                yield ordered[first : first + step]

    def close(self) -> None:
        """Remove the files."""
        if self._files is not None:
            self._files.close()
            self._files = None

    def _divide(self) -> RangeSort:
        """Write every row to the file of its node's range."""
        files = RangeSort(self._directory, "rows to put in order")
        require_space(
            self._directory,
            self.shape[0] * (self._row_bytes + 8),
            f"put the rows of {self._source.label} in order",
            "choose another place with spill_dir=",
        )
        taker, position = RowTaker(self._nodes), 0
        for rows in read_ahead(self._source.pieces()):
            nodes = taker.take(len(rows)).astype(np.int64)
            check_ids(nodes, self.shape[0], f"{self._nodes.label}: node id", position)
            position += len(rows)
            files.add(nodes // self._range_rows, nodes=nodes, rows=rows)
        return files

    def _order(self, files: RangeSort, number: int) -> npt.NDArray[Any]:
        first = number * self._range_rows
        count = min(self._range_rows, self.shape[0] - first)
        nodes = files.column(number, "nodes", np.int64) - first
        times = np.bincount(nodes, minlength=count)
        if (times != 1).any():
            # As many rows as nodes: if one has two, another has none, here or elsewhere.
            wrong = int(np.argmax(times != 1))
            raise InputError(
                f"{self._nodes.label}: node {first + wrong} has "
                f"{format_count(int(times[wrong]), 'row')}; every node needs exactly one"
            )
        ordered = np.empty((count, *self.shape[1:]), self.dtype)
        ordered[nodes] = files.column(number, "rows", self.dtype).reshape(ordered.shape)
        return ordered
