"""Sorts rows in any order by their nodes, in memory or in two sequential passes over files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.edges.node_ids import check_ids
from gnnstore.converters.inputs.derived import RowTaker
from gnnstore.converters.inputs.source import ArraySource, MemoryArray, row_bytes
from gnnstore.converters.read_ahead import read_ahead
from gnnstore.converters.spill_files import RangeSort
from gnnstore.errors import InputError
from gnnstore.formats.container.files import require_space

# A range of nodes takes an eighth of the memory: one is in memory unsorted and sorted while the
# next is read ahead. Much smaller ranges would make the pieces of a read tiny.
_MEMORY_SHARE = 8
_MIN_RANGE_BYTES, _MAX_RANGE_BYTES = 2**20, 2**28
_STEP_BYTES = 2**23
_COPY_BYTES = 2**22  # bytes read at a time where the whole array fits in memory


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
    for rows in source.rows(max(1, _COPY_BYTES // max(1, row_bytes(source)))):
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
        for rows in read_ahead(self._source.rows(max(1, _STEP_BYTES // self._row_bytes))):
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
                f"{self._nodes.label}: node {first + wrong} has {int(times[wrong])} rows; every "
                "node needs exactly one"
            )
        ordered = np.empty((count, *self.shape[1:]), self.dtype)
        ordered[nodes] = files.column(number, "rows", self.dtype).reshape(ordered.shape)
        return ordered
