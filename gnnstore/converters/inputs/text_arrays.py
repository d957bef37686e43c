"""Reads tables of numbers in text as arrays: features and labels in CSV, plain or gzipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.derived import cut_rows
from gnnstore.converters.inputs.source import SequentialArray, check_count
from gnnstore.converters.inputs.text_blocks import read_blocks
from gnnstore.converters.inputs.text_tables import TableFormat, TextTable
from gnnstore.errors import InputError

_EXACT_IN_FLOAT64 = 2**53

# Types whose values float32 holds exactly.
_OF_64_BITS = ("int64", "uint64")
_IN_FLOAT32 = ("bool", "int8", "uint8", "int16", "uint16")


class TextArray(SequentialArray):
    """The lines of a text file as rows [N, F]."""

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
        header_hint: str = "",
    ) -> None:
        self.path = path
        self.label = str(path)
        self.dtype = np.dtype(dtype)
        self._unit = unit
        self._may_round = is_exact and dtype == "float64"
        table_format = TableFormat(
            dtype, delimiter=None, what=what, skip_header=skip_header, type_hint=header_hint
        )
        self._table = TextTable(path, table_format, memory_bytes=memory_bytes)
        self.memory_bytes = self._table.memory_bytes  # the peak memory of reading
        num_columns, lines = _measure(self._table, count=num_rows is None)
        self.shape: tuple[int, ...] = (lines if num_rows is None else num_rows, num_columns)

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time."""
        return cut_rows(self._blocks(), step, start)

    def _blocks(self) -> Iterator[npt.NDArray[Any]]:
        num_rows, rows_read = self.shape[0], 0
        for block in self._table.blocks():
            if self._may_round:
                self._check_exact(block, rows_read)
            yield block[: max(0, num_rows - rows_read)]
            rows_read += len(block)
        check_count(self.label, rows_read, num_rows, self._unit)

    def _check_exact(self, rows: npt.NDArray[Any], first: int) -> None:
        rounded = np.isfinite(rows) & (np.abs(rows) >= _EXACT_IN_FLOAT64)
        if rounded.any():
            place = np.unravel_index(int(np.argmax(rounded)), rounded.shape)
            raise InputError(
                f"{self.label}: row {first + int(place[0])}: {rows[place]:.0f} may have been "
                "rounded: numbers with a point or an exponent are read as float64, which does not "
                "tell integers this large apart; write them without, or store them as float64",
                path=self.path,
            )


def read_as_stored(
    path: Path, stored: str | None, *, skip_header: bool = False, **options: Any
) -> TextArray:
    """Return a table as an array of a type that can hold every value of the stored type."""
    exact, dtype = stored in _OF_64_BITS, _text_type(stored, path, skip_header=skip_header)
    return TextArray(path, dtype, is_exact=exact, skip_header=skip_header, **options)


def _text_type(stored: str | None, path: Path, *, skip_header: bool) -> str:
    """Return the type in which to read a table, given the type that it is stored as."""
    if stored in _OF_64_BITS:
        first = next(read_blocks(path), None)
        lines = b"" if first is None else first.data
        if skip_header:
            lines = lines.partition(b"\n")[2]
        has_points = any(mark in lines for mark in b".eE")
        return "float64" if has_points else "int64"
    return "float32" if stored in {None, "float32", *_IN_FLOAT32} else "float64"


def _measure(table: TextTable, *, count: bool) -> tuple[int, int]:
    """Return the number of columns, and of lines if they are to be counted."""
    num_columns = lines = 0
    for block in read_blocks(table.path):
        if not num_columns:
            num_columns = table.columns_of(block)
        if not count:
            break
        lines += block.data.count(b"\n") + (not block.data.endswith(b"\n"))
    return num_columns, lines - (table.format.skip_header and lines > 0)


def read_numbers(
    path: Path, what: str, *, skip_header: bool = False, header_hint: str = ""
) -> npt.NDArray[Any]:
    """Return a table as int64, or as float32 if it has fractions."""

    def read(dtype: str) -> npt.NDArray[Any]:
        lines = TableFormat(
            dtype,
            delimiter=None,
            what=what,
            allow_nan=False,
            skip_header=skip_header,
            type_hint=header_hint,
        )
        return TextTable(path, lines).read()

    values = read("float64")
    if not np.all(values == np.rint(values)) or not np.isfinite(values).all():
        with np.errstate(over="ignore"):
            found = values.astype(np.float32)
        overflows = np.isfinite(found) != np.isfinite(values)
        return read("float32") if overflows.any() else found  # reading again names the line
    if np.all(np.abs(values) < _EXACT_IN_FLOAT64):
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
