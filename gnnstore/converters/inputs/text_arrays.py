"""Reads tables of numbers in text as arrays: features and labels in CSV, plain or gzipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.opening import read_blocks
from gnnstore.converters.inputs.source import (
    EXACT_IN_FLOAT64,
    ArraySource,
    as_float32,
    check_count,
    cut_rows,
)
from gnnstore.converters.inputs.text_tables import TableFormat, TextTable
from gnnstore.errors import InputError

# Types whose values float32 holds exactly.
_OF_64_BITS = ("int64", "uint64")
_IN_FLOAT32 = ("bool", "int8", "uint8", "int16", "uint16")


class TextArray(ArraySource):
    """The lines of a text file as rows [N, F], or one column [N]."""

    def __init__(
        self,
        path: Path,
        dtype: str = "float32",
        *,
        is_exact: bool = False,
        what: str = "feature",
        num_rows: int | None = None,
        unit: str = "nodes",
        memory_bytes: int | None = None,
        skip_header: bool = False,
        hint: str = "",
        column: int | None = None,
    ) -> None:
        self.path = path
        self.label = str(path)
        self.dtype = np.dtype(dtype)
        self._unit = unit
        self._may_round = is_exact and dtype == "float64"
        self._column = column
        table_format = TableFormat(
            dtype, delimiter=None, what=what, skip_header=skip_header, hint=hint
        )
        if column is not None:
            table_format = replace(table_format, ends=(column,))
        self._table = TextTable(path, table_format, memory_bytes=memory_bytes)
        self.memory_bytes = self._table.memory_bytes  # the peak memory of reading
        num_columns = self._table.find_width()
        if num_rows is None:
            texts = (block.data for block in read_blocks(path))
            lines = sum(text.count(b"\n") + (not text.endswith(b"\n")) for text in texts)
            num_rows = lines - (skip_header and lines > 0)
        self.shape: tuple[int, ...] = (num_rows, num_columns)[: 1 if column is not None else 2]

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time."""
        return cut_rows(self._blocks(), step, start)

    def _blocks(self) -> Iterator[npt.NDArray[Any]]:
        num_rows, rows_read = self.shape[0], 0
        for rows in self._table.blocks():
            block = rows if self._column is None else self._table.ends(rows)[:, 0]
            if self._may_round:
                self._check_exact(block, rows_read)
            yield block[: max(0, num_rows - rows_read)]
            rows_read += len(block)
        check_count(self.label, rows_read, num_rows, self._unit)

    def _check_exact(self, rows: npt.NDArray[Any], first: int) -> None:
        rounded = np.isfinite(rows) & (np.abs(rows) >= EXACT_IN_FLOAT64)
        if rounded.any():
            place = np.unravel_index(int(np.argmax(rounded)), rounded.shape)
            raise InputError(
                f"{self.label}: row {first + int(place[0])}: {rows[place]:.17g} may have been "
                "rounded: numbers with a point or an exponent are read as float64, which does not "
                "tell integers this large apart; write them without, or store them as float64",
                path=self.path,
            )


def read_as_stored(
    path: Path, stored: str | None, *, skip_header: bool = False, **options: Any
) -> TextArray:
    """Return a table as an array of a type that can hold every value of the stored type."""
    is_exact = stored in _OF_64_BITS
    dtype = "float32" if stored in {None, "float32", *_IN_FLOAT32} else "float64"
    if is_exact:
        first = next(read_blocks(path), None)
        lines = b"" if first is None else first.data
        if skip_header:
            lines = lines.partition(b"\n")[2]
        dtype = "float64" if any(mark in lines for mark in b".eE") else "int64"
    return TextArray(path, dtype, is_exact=is_exact, skip_header=skip_header, **options)


def read_numbers(
    path: Path, what: str, *, skip_header: bool = False, hint: str = "", ids: int | None = None
) -> npt.NDArray[Any]:
    """Return a table as int64, or with fractions as float32, or float64 if that rounds some.

    A column of `ids` is left out.
    """
    lines = TableFormat(
        "float64",
        delimiter=None,
        what=what,
        allow_nan=False,
        skip_header=skip_header,
        hint=hint,
    )

    def read(dtype: str) -> npt.NDArray[Any]:
        table = TextTable(path, replace(lines, dtype=dtype)).read()
        return table if ids is None else np.delete(table, ids, axis=1)

    values = read("float64")
    if not np.all(values == np.rint(values)):
        return as_float32(values)
    if np.all(np.abs(values) < EXACT_IN_FLOAT64):
        return values.astype(np.int64)
    return read("int64")


class TextEdges:
    """A text file of edges: two node numbers in a line, separated by a comma."""

    def __init__(
        self,
        path: Path,
        num_nodes: int,
        *,
        num_edges: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        lines = TableFormat("int64", num_columns=2, minimum=0, limit=num_nodes, what="node id")
        self._table = TextTable(path, lines, memory_bytes=memory_bytes)
        self._num_edges = num_edges
        self.memory_bytes = self._table.memory_bytes  # the peak memory of reading

    def pairs(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield sources and targets, chunk by chunk."""
        edges_read = 0
        for rows in self._table.blocks():
            edges_read += len(rows)
            if self._num_edges is None or edges_read <= self._num_edges:
                yield rows[:, 0], rows[:, 1]
        if self._num_edges is not None and edges_read != self._num_edges:
            raise InputError(
                f"{self._table.path}: has {edges_read} edges, but the data set says "
                f"{self._num_edges}",
                path=self._table.path,
            )
