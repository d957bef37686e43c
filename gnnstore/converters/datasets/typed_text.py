"""Edges in text, of which some ends may be names."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from gnnstore.converters.inputs.text_arrays import TextColumns
from gnnstore.converters.inputs.text_tables import INTEGER, TableFormat, TextColumn, TextTable
from gnnstore.converters.typed.inputs import EdgeInput
from gnnstore.errors import InputError

_LOG = logging.getLogger(__name__)


def open_text_edges(
    paths: Sequence[Path],
    of_numbers: TableFormat,
    of_names: TableFormat,
    has_names: tuple[bool, bool] | None,
    budget: int | None,
) -> tuple[EdgeInput, list[int]]:
    """Open files of edges, and count the edges of each.

    The forms are for ends that are all numbers, and for others. `has_names` says which ends are
    names; None: columns in which not all are integers.
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
    """Return which of the ends of edges are names: ends of which not all are integers."""
    texts: list[bytes | None] = [None, None]
    integers = texts.copy()
    form = _with_names(table_format, (True, True))
    for path in paths:
        for block in TextTable(path, form, memory_bytes=budget).blocks():
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


def _with_names(form: TableFormat, has_names: tuple[bool, bool]) -> TableFormat:
    """Return a form of edges whose ends are names, or one of them."""
    if not any(has_names):
        return form
    own = form.ends[has_names.index(True)]
    other = form.ends[1] if all(has_names) else form.ends[has_names.index(False)]
    number = () if all(has_names) else (TextColumn(other, "int64", "node id"),)
    return replace(
        form,
        dtype="text",
        ends=(own,),
        label_column=other if all(has_names) else None,
        columns=(*number, *form.columns),
        what="node name",
    )


def _open(
    paths: Sequence[Path],
    table_format: TableFormat,
    has_names: tuple[bool, bool],
    budget: int | None,
) -> tuple[EdgeInput, list[int]]:
    form = _with_names(table_format, has_names)
    columns = TextColumns.open(paths, [form] * len(paths), budget)
    tables = columns.tables
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

    first = len(form.columns) - len(table_format.columns)  # an end may be before it
    attributes = {
        column.what: columns.column(place)
        for place, column in enumerate(table_format.columns, first)
    }
    count, memory = sum(columns.counts), columns.memory_bytes
    edges = EdgeInput(pairs, str(paths[0]), count, attributes, memory, has_names=has_names)
    return edges, columns.counts
