"""Edges in text of which some ends are names, and tables of nodes with a column of names."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.source import ArraySource, cut_rows, joined
from gnnstore.converters.inputs.text_tables import INTEGER, TableFormat, TextColumn, TextTable
from gnnstore.converters.typed.inputs import EdgeInput
from gnnstore.errors import InputError

_LOG = logging.getLogger(__name__)
_EXACT_IN_FLOAT64 = 2**53


class BesideNames(ArraySource):
    """The columns of numbers [N, k], float64, of a text table with a column of names."""

    def __init__(self, path: Path, names: Sequence[str], named: str, budget: int | None) -> None:
        place = names.index(named)
        columns = [TextColumn(i, "float64", n) for i, n in enumerate(names) if i != place]
        table_format = TableFormat(
            "text",
            num_columns=len(names),
            ends=(place,),
            columns=tuple(columns),
            delimiter=None,
            what="node name",
            skip_header=True,
        )
        self.table = TextTable(path, table_format, memory_bytes=budget)
        self.label = str(path)
        self.shape = (sum(map(len, self.table.blocks())), len(columns))
        self.dtype = np.dtype(np.float64)
        self.memory_bytes = self.table.memory_bytes

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time."""
        return cut_rows(self._blocks(), step, start)

    def _blocks(self) -> Iterator[npt.NDArray[Any]]:
        for block in self.table.blocks():
            rows = np.empty((len(block), self.shape[1]))
            for i, column in enumerate(block.columns):
                rows[:, i] = column
            if (np.isfinite(rows) & (np.abs(rows) >= _EXACT_IN_FLOAT64)).any():
                raise InputError(
                    f"{self.label}: has numbers of 2^53 or more next to names, which would be "
                    "rounded; store the table as Parquet",
                    path=self.table.path,
                )
            yield rows


def open_text_edges(
    paths: Sequence[Path],
    of_numbers: TableFormat,
    of_names: TableFormat,
    has_names: tuple[bool, bool] | None,
    budget: int | None,
) -> tuple[EdgeInput, list[int]]:
    """Open files of edges, and count the edges of each.

    The forms are for ends that are all numbers, and for others. `has_names` says which ends are
    names; None: those of which not all are integers.
    """
    if has_names is None:
        try:
            return _open(paths, of_numbers, (False, False), budget)
        except InputError:
            has_names = _named_ends(paths, of_names, budget)
            if not any(has_names):
                raise
    return _open(paths, of_names if any(has_names) else of_numbers, has_names, budget)


def _named_ends(
    paths: Sequence[Path], table_format: TableFormat, budget: int | None
) -> tuple[bool, bool]:
    """Return which of the ends of edges are names: those of which not all are integers."""
    texts: list[bytes | None] = [None, None]
    integers = texts.copy()
    for table in _tables(paths, table_format, (True, True), budget):
        for block in table.blocks():
            for i, names in enumerate((block.names, block.labels.names)):
                for name in names:
                    known = integers if INTEGER.fullmatch(name) else texts
                    known[i] = known[i] or name
    for end, text, integer in zip(("source", "target"), texts, integers, strict=True):
        if text is not None and integer is not None:
            _LOG.warning(
                "%s: the column %s has integers, such as %s, and text, such as %r; all are taken "
                "as names",
                paths[0],
                end,
                integer.decode(),
                text.decode(),
            )
    return (texts[0] is not None, texts[1] is not None)


def _tables(
    paths: Sequence[Path],
    table_format: TableFormat,
    has_names: tuple[bool, bool],
    budget: int | None,
) -> list[TextTable]:
    form = table_format
    if any(has_names):
        own = form.ends[has_names.index(True)]
        other = form.ends[1] if all(has_names) else form.ends[has_names.index(False)]
        number = () if all(has_names) else (TextColumn(other, "int64", "node id"),)
        form = replace(
            form,
            dtype="text",
            ends=(own,),
            label_column=other if all(has_names) else None,
            columns=(*number, *form.columns),
            what="node name",
        )
    return [TextTable(path, form, memory_bytes=budget) for path in paths]


def _open(
    paths: Sequence[Path],
    table_format: TableFormat,
    has_names: tuple[bool, bool],
    budget: int | None,
) -> tuple[EdgeInput, list[int]]:
    tables = _tables(paths, table_format, has_names, budget)
    # The pass that counts them also finds the types of columns, which are those of all parts.
    counts = [sum(map(len, table.blocks())) for table in tables]
    tables[0].settle_types(*tables[1:])
    for table in tables:
        if any(has_names) and table.num_comments:
            _LOG.warning(
                "%s: %d lines that begin with # or %% were passed over as comments",
                table.path,
                table.num_comments,
            )

    def pairs() -> Iterator[Any]:
        for block in chain.from_iterable(table.blocks() for table in tables):
            if any(has_names):
                other = block.labels if all(has_names) else block.columns[0]
                yield (block, other) if has_names[0] else (other, block)
            else:
                yield (tables[0].ends(block) - (table_format.minimum or 0)).T

    first = len(tables[0].format.columns) - len(table_format.columns)  # an end may be before it
    attributes = {
        column.what: joined(
            [
                _TextColumn(table, count, place, column.what)
                for table, count in zip(tables, counts, strict=True)
            ]
        )
        for place, column in enumerate(table_format.columns, first)
    }
    memory = max(table.memory_bytes for table in tables)
    edges = EdgeInput(pairs, str(paths[0]), sum(counts), attributes, memory, has_names=has_names)
    return edges, counts


class _TextColumn(ArraySource):
    """A column of numbers of a text table of edges."""

    def __init__(self, table: TextTable, num_rows: int, place: int, name: str) -> None:
        self.label = f"{table.path}: {name}"
        self.shape = (num_rows,)
        self.dtype = np.dtype(table.types[place])
        self.memory_bytes = table.memory_bytes
        self._table = table
        self._place = place

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time."""
        blocks = (self._table.values(block, self._place) for block in self._table.blocks())
        return cut_rows(blocks, step, start)
