"""Sorts rows that come in any order by their nodes, in two sequential passes.

Fetching each row from where it lies would be a random read a row. Instead rows go to files
by ranges of nodes, each small enough for memory, and are put in order as a range is read
back: every byte is written and read once more, in large pieces.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.arrays.derived import RowTaker
from gnnstore.converters.arrays.source import ArraySource, SequentialArray, row_bytes
from gnnstore.converters.edges.node_ids import check_ids
from gnnstore.converters.read_ahead import read_ahead
from gnnstore.errors import (
    CorruptStoreError,
    GnnstoreError,
    InputError,
    NoSpaceError,
    storage_error,
)
from gnnstore.formats.container.files import free_bytes
from gnnstore.formats.container.regular_files import open_regular
from gnnstore.units import format_size

# Ranges of nodes: an eighth of the memory, since one is there as it lies and in order while
# the next is read ahead, and not so small that its pieces of a read are tiny.
_MEMORY_SHARE = 8
_MIN_RANGE_BYTES, _MAX_RANGE_BYTES = 2**20, 2**28
_STEP_BYTES = 2**23


class ScatteredRows(SequentialArray):
    """An array sorted by node, made of rows in any order.

    Parameters
    ----------
    source : ArraySource [N, ...]
        The rows as they come.
    nodes : ArraySource of integers [N]
        The node of each row; each node has exactly one.
    directory : Path
        Where files go, of the size of the array and 8 bytes a row; made if it is not there.
    memory_bytes : int, optional
        The most memory to use; None: about 2 GiB.

    Raises
    ------
    InputError
        If there are not as many nodes as rows; while rows are read, if a node has none or two.
    """

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
                f"{nodes.label}: has {nodes.shape[0]} ids, but {source.label} has rows of shape "
                f"{list(source.shape)}; every row needs one"
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
        self._is_divided = False

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows of nodes start, start + 1, ..., at most `step` at a time."""
        if not self._is_divided:
            self._divide()
            self._is_divided = True
        for number in range(start // self._range_rows, self._num_ranges):
            ordered = self._order(number)
            skipped = max(0, start - number * self._range_rows)
            for first in range(skipped, len(ordered), step):
                yield ordered[first : first + step]

    @property
    def _num_ranges(self) -> int:
        return math.ceil(self.shape[0] / self._range_rows)

    def close(self) -> None:
        """Remove the files."""
        if self._directory.is_dir():
            for file in self._directory.iterdir():
                file.unlink()
            self._directory.rmdir()
        self._is_divided = False

    def _files(self, number: int) -> tuple[Path, Path]:
        return self._directory / f"{number:06d}.nodes", self._directory / f"{number:06d}.rows"

    def _divide(self) -> None:
        """Send every row to the file of its node's range."""
        self._make_room()
        taker, position = RowTaker(self._nodes), 0
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        try:
            for rows in read_ahead(self._source.rows(max(1, _STEP_BYTES // self._row_bytes))):
                nodes = taker.take(len(rows)).astype(np.int64)
                check_ids(nodes, self.shape[0], f"{self._nodes.label}: node id", position)
                position += len(rows)
                ranges = nodes // self._range_rows
                order = np.argsort(ranges, kind="stable")
                present, begins = np.unique(ranges[order], return_index=True)
                for number, chosen in zip(present, np.split(order, begins[1:]), strict=True):
                    for file, values in zip(self._files(number), (nodes, rows), strict=True):
                        with open(self._opened(file, flags), "ab") as stream:  # noqa: PTH123
                            stream.write(np.ascontiguousarray(values[chosen]).data)
        except GnnstoreError:
            raise
        except OSError as error:
            raise storage_error(error, "put rows in order", self._directory) from error

    def _opened(self, file: Path, flags: int = os.O_RDONLY) -> int:
        return open_regular(file, flags, error=CorruptStoreError, root=self._directory)

    def _read(self, file: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        with open(self._opened(file), "rb") as stream:  # noqa: PTH123 - a descriptor
            return np.fromfile(stream, dtype)

    def _make_room(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            for old in self._directory.iterdir():  # of an attempt that was interrupted
                old.unlink()
        except OSError as error:
            raise storage_error(error, "make the directory", self._directory) from error
        needed = self.shape[0] * (self._row_bytes + 8)
        free = free_bytes(self._directory)
        if needed > free:
            raise NoSpaceError(
                f"no space left to put the rows of {self._source.label} in order: "
                f"{format_size(needed)} are needed in {self._directory}, {format_size(free)} are "
                "free; choose another place with spill_directory (--spill-dir)",
                path=self._directory,
            )

    def _order(self, number: int) -> npt.NDArray[Any]:
        first = number * self._range_rows
        count = min(self._range_rows, self.shape[0] - first)
        files = self._files(number)
        present = files[0].exists()
        nodes = self._read(files[0], np.int64) - first if present else np.empty(0, np.int64)
        times = np.bincount(nodes, minlength=count)
        if (times != 1).any():
            # As many rows as nodes: if one has two, another has none, here or elsewhere.
            wrong = int(np.argmax(times != 1))
            raise InputError(
                f"{self._nodes.label}: node {first + wrong} has {int(times[wrong])} rows; every "
                "node needs exactly one"
            )
        rows = self._read(files[1], self.dtype).reshape(-1, *self.shape[1:])
        ordered = np.empty_like(rows)
        ordered[nodes] = rows
        return ordered
