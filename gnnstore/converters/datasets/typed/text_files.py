"""Nodes and edges of a type in text: CSV and TSV with names of columns, and KONECT's `out.*`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.datasets.headers import first_lines
from gnnstore.converters.inputs.source import ArraySource, MappedRows, cut_rows
from gnnstore.converters.inputs.text_arrays import TextArray
from gnnstore.converters.inputs.text_tables import (
    TableFormat,
    TextColumn,
    TextTable,
    fields_of,
    is_number,
)
from gnnstore.converters.typed.inputs import EdgeInput, Pair
from gnnstore.converters.writer.node_arrays import SPLIT_KEYS
from gnnstore.errors import InputError

_LOG = logging.getLogger(__name__)

ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_COMMENTS = b"#%"
_KONECT_COLUMNS = ("weight", "time")  # behind the ends
_KONECT_UNDIRECTED = re.compile(rb"%\s*sym\b", re.IGNORECASE)
_KONECT_SIZES = re.compile(rb"%\s*(\d{1,18})\s+(\d{1,18})\s+(\d{1,18})\s*")
_ENDS = (("source", "target"), ("src", "dst"))
_FEATURE = re.compile(r"x_\d+")
_STEP_ROWS = 2**16


def _names(path: Path, names: list[str]) -> list[str] | None:
    """Return the names of columns in the first line; None if it has numbers."""
    if all(is_number(name.encode()) for name in names):
        return None
    if len(set(names)) < len(names) or not all(names) or "\ufffd" in "".join(names):
        raise InputError(
            f"{path}: the first line has neither numbers nor different names of columns", path=path
        )
    return names


def _first_fields(path: Path) -> tuple[list[bytes], list[str]]:
    comments, line = first_lines(path)
    return comments, fields_of(line) if line else []


def open_text_nodes(path: Path, budget: int | None) -> dict[str, ArraySource]:
    """Open a table of nodes: an array for each column, or the features if columns have no names."""
    _, fields = _first_fields(path)
    names = _names(path, fields) if fields else []
    if not names:
        return {"x": TextArray(path, memory_bytes=budget)} if fields else {}
    table = TextArray(path, "float64", is_exact=True, skip_header=True, memory_bytes=budget)
    is_whole, is_mask = np.ones(len(names), bool), np.ones(len(names), bool)
    for rows in table.rows(_STEP_ROWS):
        is_whole &= (np.isfinite(rows) & (rows == np.rint(rows))).all(axis=0)
        is_mask &= ((rows == 0) | (rows == 1)).all(axis=0)
    features = [place for place, name in enumerate(names) if _FEATURE.fullmatch(name)]
    found: dict[str, ArraySource] = {}
    if features:
        found["x"] = _columns(table, features, np.dtype(np.float32))
    for place, name in enumerate(names):
        if place not in features:
            kind: type = np.int64 if is_whole[place] else np.float32
            kind = np.bool_ if name in SPLIT_KEYS and is_mask[place] else kind
            found[name] = _columns(table, place, np.dtype(kind))
    return found


def _columns(table: ArraySource, places: int | list[int], dtype: np.dtype[Any]) -> ArraySource:
    """Return a column of a table [N], or several [N, k], as another type."""
    row_shape = () if isinstance(places, int) else (len(places),)
    return MappedRows(
        table, lambda rows, _: rows[:, places].astype(dtype), row_shape=row_shape, dtype=dtype
    )


class TextEdgeFile:
    """The edges of a type in one file: ends in the first two columns, numbers in the others."""

    def __init__(self, path: Path, budget: int | None, *, is_konect: bool) -> None:
        comments, fields = _first_fields(path)
        self._path, self._is_konect = path, is_konect
        self.num_nodes: tuple[int, int] | None = None  # as KONECT's header states
        self.is_undirected = is_konect and any(map(_KONECT_UNDIRECTED.match, comments))
        stated: int | None = None
        if is_konect:
            names: list[str] | None = ["source", "target", *_KONECT_COLUMNS][: len(fields)]
            sizes = next(filter(None, map(_KONECT_SIZES.fullmatch, comments)), None)
            if sizes is not None:
                stated, self.num_nodes = int(sizes[1]), (int(sizes[2]), int(sizes[3]))
        else:
            names = _names(path, fields) if fields else ["source", "target"]
        has_header = names is not None and not is_konect and bool(fields)
        if has_header and names is not None and tuple(names[:2]) not in _ENDS:
            raise InputError(
                f"{path}: the first columns are {', '.join(names[:2])}; expected source and target",
                path=path,
            )
        if names is None and len(fields) > 2:
            raise InputError(
                f"{path}: has {len(fields)} columns; say what those behind source and target are "
                "called, in a first line as 'source,target,weight,time'",
                path=path,
            )
        if fields and len(fields) < 2:
            raise InputError(f"{path}: a line has one field; an edge has two", path=path)
        self._attributes = list((names or ())[2:])
        columns = tuple(
            TextColumn(place, None, name) for place, name in enumerate(self._attributes, 2)
        )
        table_format = TableFormat(
            "int64",
            num_columns=2 + len(columns),
            columns=columns,
            delimiter=None,
            comments=_COMMENTS,
            skip_blank=True,
            minimum=1 if is_konect else None,
            what="node id",
            skip_header=has_header,
        )
        self._table = TextTable(path, table_format, memory_bytes=budget)
        self.num_edges = 0
        for block in self._table.blocks():  # numbers the edges, and finds the types of columns
            self.num_edges += len(block)
        self._table.settle_types()
        if stated not in (None, self.num_edges):
            _LOG.warning(
                "%s: its header states %d edges, and it has %d; if the file was cut off, get it "
                "again", path, stated, self.num_edges,
            )  # fmt: skip

    def edges(self) -> EdgeInput:
        """Return the edges; the file is read once for them and once for each attribute."""
        attributes: dict[str, ArraySource] = {
            name: _TextColumn(self._table, self.num_edges, place, name)
            for place, name in enumerate(self._attributes)
        }
        memory = self._table.memory_bytes * (1 + len(attributes))
        return EdgeInput(self._pairs, str(self._path), self.num_edges, attributes, memory)

    def _pairs(self) -> Iterator[Pair]:
        for block in self._table.blocks():
            ends = self._table.ends(block)
            ends = ends - 1 if self._is_konect else ends
            yield ends[:, 0], ends[:, 1]


class _TextColumn(ArraySource):
    """A column of numbers of a text table of edges."""

    def __init__(self, table: TextTable, num_rows: int, place: int, name: str) -> None:
        self.label = f"{table.path}: {name}"
        self.shape = (num_rows,)
        self.dtype = np.dtype(table.types[place])
        self._table = table
        self._place = place

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time."""
        blocks = (self._table.values(block, self._place) for block in self._table.blocks())
        return cut_rows(blocks, step, start)
