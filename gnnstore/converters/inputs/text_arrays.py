"""Reads tables of numbers in text as arrays: features and labels in CSV, plain or gzipped.

Where the type is not given, a pass over the files finds it by column: integers of 64 bits, floats
where there are fractions or gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.opening import read_blocks
from gnnstore.converters.inputs.source import (
    ArraySource,
    MappedRows,
    check_count,
    cut_rows,
    joined,
)
from gnnstore.converters.inputs.text_tables import TableFormat, TextColumn, TextTable
from gnnstore.errors import InputError
from gnnstore.units import format_count

# Stored types whose values float64 does not hold, and types whose values float32 holds.
_OF_64_BITS = ("int64", "uint64")
_IN_FLOAT32 = ("bool", "int8", "uint8", "int16", "uint16")


class TextArray(ArraySource):
    """The lines of a text file as rows [N, F], or one column [N]."""

    def __init__(
        self,
        path: Path,
        dtype: str = "float32",
        *,
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
            yield block[: max(0, num_rows - rows_read)]
            rows_read += len(block)
        check_count(self.label, rows_read, num_rows, self._unit)


@dataclass(frozen=True)
class TextColumns:
    """Columns of numbers of one table in several files."""

    tables: list[TextTable]
    counts: list[int]  # of rows

    @classmethod
    def open(
        cls, paths: Sequence[Path], forms: Sequence[TableFormat], memory_bytes: int | None = None
    ) -> TextColumns:
        """Open files, count their rows, and decide the types of columns, one for all files."""
        tables = [
            TextTable(path, form, memory_bytes=memory_bytes)
            for path, form in zip(paths, forms, strict=True)
        ]
        counts = [sum(map(len, table.blocks())) for table in tables]
        tables[0].settle_types(*tables[1:])
        return cls(tables, counts)

    @property
    def memory_bytes(self) -> int:
        """The peak memory of reading."""
        return max(table.memory_bytes for table in self.tables)

    def column(self, number: int, dtype: npt.DTypeLike | None = None) -> ArraySource:
        """Return a column [N], of the type found or another."""
        return self._joined([number], dtype or self.tables[0].types[number], ())

    def array(self, places: Sequence[int], dtype: npt.DTypeLike) -> ArraySource:
        """Return columns as an array [N, k] of a type."""
        return self._joined(places, dtype, (len(places),))

    def whole_type(self, number: int) -> str:
        """Return the type of a column: int64 if all are whole, even if written as 1.0."""
        kind = self.tables[0].types[number]
        return "int64" if self.tables[0].found[number].is_whole else kind

    def is_mask(self, number: int) -> bool:
        """Whether all numbers of a column are 0 or 1."""
        return self.tables[0].found[number].is_mask

    def _joined(
        self, places: Sequence[int], dtype: npt.DTypeLike, row_shape: tuple[int, ...]
    ) -> ArraySource:
        return joined(
            [
                _Rows(table, (count, *row_shape), places, np.dtype(dtype))
                for table, count in zip(self.tables, self.counts, strict=True)
            ]
        )

    def common_type(self, *, keeps_points: bool) -> str:
        """Return the type that holds all columns; refuse integers that it rounds.

        Whole numbers written as 1.0 are integers, unless a type `keeps_points`.
        """
        first = self.tables[0]
        types, found = first.types, first.found
        integers = [own for own, dtype in zip(found, types, strict=True) if "int" in dtype]
        if len(integers) == len(found) or (
            not keeps_points and all(own in integers or own.is_whole for own in found)
        ):
            dtype = "uint64" if "uint64" in types else "int64"
            lost = next((own.low for own in found if own.low < 0 and dtype == "uint64"), None)
        else:
            is_wide = "float64" in types or any(own.is_wide for own in found)
            dtype = "float64" if is_wide else "float32"
            lost = next((own.huge for own in integers if own.huge is not None), None)
        if lost is not None:
            raise InputError(
                f"{first.path}: {dtype}, which other columns need, does not hold {lost:.0f}; put "
                "them into files of their own",
                path=first.path,
            )
        return dtype


class _Rows(ArraySource):
    """Columns of one file."""

    def __init__(
        self, table: TextTable, shape: tuple[int, ...], places: Sequence[int], dtype: np.dtype[Any]
    ) -> None:
        name = table.format.columns[places[0]].what
        self.label = f"{table.path}: {name}" if len(shape) == 1 else str(table.path)
        self.shape, self.dtype = shape, dtype
        self.memory_bytes = table.memory_bytes
        self._table, self._places = table, places

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time."""
        return cut_rows(self._blocks(), step, start)

    def _blocks(self) -> Iterator[npt.NDArray[Any]]:
        done = 0
        for block in self._table.blocks():
            values = (self._table.values(block, number) for number in self._places)
            columns = [own.astype(self.dtype, copy=False) for own in values]
            yield columns[0] if len(self.shape) == 1 else np.stack(columns, axis=1)
            done += len(block)
        if done != self.shape[0]:
            raise InputError(
                f"{self.label}: has {format_count(done, 'row')}, and had {self.shape[0]} when "
                "they were counted; convert it when nothing writes to it",
                path=self._table.path,
            )


def open_numbers(
    paths: Sequence[Path],
    what: str,
    *,
    ids: Sequence[int | None] = (),
    allow_nan: bool = True,
    keeps_points: bool = False,
    skip_header: bool = False,
    hint: str = "",
    memory_bytes: int | None = None,
) -> ArraySource:
    """Open tables of numbers as one array [N, k] of a type that holds all of them.

    `ids` has the columns with ids, one for each file or none, which are left out. Whole numbers
    written as 1.0 are integers, unless the type `keeps_points`.
    """
    lines = TableFormat(
        "float64",
        delimiter=None,
        what=what,
        allow_nan=allow_nan,
        skip_header=skip_header,
        hint=hint,
    )
    forms: list[TableFormat] = []
    for path, left_out in zip_longest(paths, ids):
        width = TextTable(path, lines).find_width()
        columns = tuple(TextColumn(i, None, what) for i in range(width) if i != left_out)
        forms.append(replace(lines, dtype="int64", ends=(), columns=columns))
        if len(columns) != len(forms[0].columns):
            raise InputError(
                f"{path}: has {format_count(len(columns), 'column')} of numbers, and {paths[0]} "
                f"{len(forms[0].columns)}; files of one table need the same columns",
                path=path,
            )
    table = TextColumns.open(paths, forms, memory_bytes)
    dtype = table.common_type(keeps_points=keeps_points)
    return table.array(range(len(forms[0].columns)), dtype)


def open_features(
    paths: Sequence[Path],
    stored: str | None,
    *,
    ids: Sequence[int | None] = (),
    num_rows: int | None = None,
    **how: Any,
) -> ArraySource:
    """Open features in text as an array of a type that holds every value of the stored type.

    `num_rows` counts a single file, where it is known.
    """
    if stored in _OF_64_BITS:
        return open_numbers(paths, "feature", ids=ids, **how)
    dtype = "float32" if stored in {None, "float32", *_IN_FLOAT32} else "float64"
    parts = []
    for path, left_out in zip_longest(paths, ids):
        part: ArraySource = TextArray(path, dtype, num_rows=num_rows, **how)
        if left_out is not None:
            remove = partial(_without, number=left_out)
            part = MappedRows(part, remove, row_shape=(part.shape[1] - 1,))
        parts.append(part)
    return joined(parts)


def _without(rows: npt.NDArray[Any], _: int, *, number: int) -> npt.NDArray[Any]:
    return np.delete(rows, number, axis=1)


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
                f"{self._table.path}: has {format_count(edges_read, 'edge')}, but the data set "
                f"states {self._num_edges}",
                path=self._table.path,
            )
