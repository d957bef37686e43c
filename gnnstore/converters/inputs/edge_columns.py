"""The columns of a text edge list that are ends and attributes of edges, by its first line."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gnnstore.converters.inputs.text_tables import (
    NO_NAME,
    TextColumn,
    TextHead,
    is_number,
    is_quoted,
)
from gnnstore.errors import InputError, UsageError
from gnnstore.units import format_count

_LOG = logging.getLogger(__name__)

_ENDS = (("source", "target"), ("src", "dst"))
_TYPES = ("int64", "float32", "float64")
_NODE_NAMES = ("x", "y", "edge_index", "num_nodes", "n_id", "e_id", "batch_size", "input_id")


@dataclass(frozen=True)
class EdgeColumns:
    """The columns of a text edge list."""

    ends: tuple[int, int]
    attributes: dict[str, TextColumn]  # by the names of edge attributes
    has_header: bool  # whether the first line is skipped
    ignores_others: bool  # whether other columns are skipped
    may_be_marks: bool  # whether the ends are the first two of more columns, which have no names


def named_ends(names: list[str]) -> tuple[int, int] | None:
    """Return the positions of the columns that are called as the ends of an edge are."""
    plain = [name.lower() for name in names]
    for source, target in _ENDS:
        if source in plain and target in plain:
            return plain.index(source), plain.index(target)
    return None


def choose_columns(
    path: Path,
    head: TextHead,
    given_ends: tuple[int | str | None, int | str | None],
    given: Mapping[str, int | str],
    *,
    skip_header: bool | None,
    is_named: bool,
    ignores: bool,
) -> EdgeColumns:
    """Return the columns that options choose, and otherwise those that the first line names.

    Where nodes have names (`is_named`), a first line of names may be an edge: only other lines show
    whether it is. Columns beside named ends are left out with a warning, unless `ignores`.
    """
    chosen = [str(c) for c in (*given_ends, *given.values()) if c is not None]
    by_name = any(not (c.rpartition(":")[0] or c).isdecimal() for c in chosen)
    if by_name and skip_header is False:
        raise UsageError(
            "skip_header=False makes the first line an edge, and a column is chosen by its name; "
            "give numbers, counted from 1"
        )
    first, second = head.names(), head.fields(1)
    if any(is_number(name.encode()) for name in first):
        first = []
    is_sure = bool(skip_header) or by_name or not is_named
    has_row_names = bool(first) and skip_header is not False and _begins_with_names(head, is_sure)
    has_ends = named_ends(first) is not None
    has_header = by_name or has_row_names or (has_ends and not is_named)
    has_header = has_header if skip_header is None else skip_header
    names = [""] * has_row_names + first if has_header else []
    place_of = _Places(path, names)
    if None not in given_ends:
        source, target = given_ends
        ends = place_of(str(source), f"{source=}"), place_of(str(target), f"{target=}")
    elif given_ends != (None, None):
        raise UsageError("source= and target= go together; give both")
    else:
        has_others = len(first) > 2 or first[:1] == [""]
        # A column of integers has one in the next line; else neither is a line of a table.
        has_rows = is_named or not second or any(map(is_number, second[1:2]))
        if not has_ends and has_others and has_rows and skip_header is not False and is_sure:
            raise InputError(_word_header(path, first), path=path)
        ends = named_ends(names) or (int(has_row_names), 1 + has_row_names)
    attributes = {name: _attribute(name, str(text), place_of) for name, text in given.items()}
    taken = {*ends, *(column.position for column in attributes.values())}
    if len(taken) < 2 + len(attributes):
        raise UsageError("two of the ends and attributes come from one column; give each its own")
    row = second if has_header else head.fields(0)
    is_other = len(row) < len(names) or any(row[len(names) :])  # tabs at its end are not fields
    if names and row and (by_name or has_ends) and is_other:
        raise InputError(
            f"{path}: the first line names {format_count(len(names), 'column')}, and the next has "
            f"{len(row)} fields; choose columns by their numbers, counted from 1",
            path=path,
        )
    has_named_ends = given_ends != (None, None) or (has_header and has_ends)
    labels = ["row names", *first] if has_row_names else list(names)
    width = max(len(row), len(names))
    labels += [""] * (width - len(labels))
    others = [labels[i] or str(i + 1) for i in range(width) if i not in taken]
    if has_named_ends and others and not ignores:
        _LOG.warning("%s: columns that no option names are left out: %s", path, ", ".join(others))
    return EdgeColumns(
        ends, attributes, has_header, ignores or has_named_ends, ignores and not has_named_ends
    )


def _begins_with_names(head: TextHead, is_sure: bool) -> bool:
    """Whether rows begin with R's names of rows, for which the first line has no name.

    Where it is not sure that the first line has names of columns, the first of rows is called 1.
    """
    row = head.fields(1)
    is_shorter = len(head.fields(0)) + 1 == len(row)
    return is_shorter and (row[0].strip(b'"') == b"1" or (is_sure and is_quoted(row[0])))


def _word_header(path: Path, names: list[str]) -> str:
    """Return what to write for a first line with names of columns that are not the ends."""
    about = NO_NAME if names[:1] == [""] else ""
    return (
        f"{path}: {about}the first line looks like a header, with the columns "
        f"{', '.join(name or repr(name) for name in names[:20])}; choose the ends of an edge "
        "with source= and target=. If these are two kinds of nodes, which may have the same "
        "numbers, convert them as such ('gnnstore convert typed'); if the line is an edge between "
        "names, pass string_ids=True"
    )


@dataclass(frozen=True)
class _Places:
    """The positions of columns, by numbers or by names in the first line."""

    path: Path
    names: list[str]

    def __call__(self, text: str, given: str) -> int:
        if not text.isdecimal() and self.names.count(text) == 1:
            return self.names.index(text)
        if text.isascii() and text.isdecimal() and 0 < int(text[:11]) < 10**10:
            return int(text) - 1
        raise UsageError(
            f"{given} is not a column of {self.path.name}; give its number, counted from 1, or its "
            f"name in the first line, as in {', '.join(self.names) or '3'}"
        )


def _attribute(name: str, text: str, place_of: _Places) -> TextColumn:
    """Return the column of an attribute: `name`, which may have a colon, or `name:type`."""
    what = "edge_weight" if name == "edge_weight" else f"edge_columns={name}"
    place, mark, dtype = text.rpartition(":")
    if text in place_of.names or not mark:
        place, dtype = text, ""
    if dtype and dtype not in _TYPES:
        raise UsageError(f"{what}={text!r}: {dtype!r} is not one of {', '.join(_TYPES)}")
    if not name.isidentifier() or name in _NODE_NAMES:
        raise UsageError(f"{name!r} cannot be the name of an edge attribute; choose another")
    position = place_of(place, f"{what}={text!r}")
    return TextColumn(position, dtype or None, name.removeprefix("edge_"))
