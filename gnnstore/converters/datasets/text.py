"""What text says of itself before the first row, and numbers for the nodes that it has.

A Matrix Market file states its rows, entries and symmetry, which are taken as they are or refused.
Of SNAP's and KONECT's comments only the direction counts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gnnstore.converters.edges.numbering import (
    IdCollector,
    IdMap,
    NameBlock,
    NameNumbering,
    OneBasedIds,
)
from gnnstore.converters.inputs.opening import read_blocks
from gnnstore.converters.inputs.text_tables import fields_of, is_number
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.errors import InputError

_LOG = logging.getLogger(__name__)

# Sites and editors drop one of the two per cent signs.
_BANNER = re.compile(rb"%{1,2}\s*matrixmarket\b(.*)", re.IGNORECASE)
_SIZES = re.compile(rb"(\d{1,19})\s+(\d{1,19})\s+(\d{1,19})")
_UNDIRECTED = re.compile(rb"\bundirected\b", re.IGNORECASE)
_KONECT = re.compile(rb"^%\s*(sym|asym|bip)\b", re.IGNORECASE | re.MULTILINE)
_MAX_LINES = 10_000
# Names of columns, in lower case and without marks between words.
_SOURCE = re.compile(r"(source|src|from)s?(node)?(id)?|head|h|subj(ect)?|node1|u")
_TARGET = re.compile(r"(target|dst|to)s?(node)?(id)?|dest|destination|tail|t|obj(ect)?|node2|v")
_NO_END = re.compile(r"time|timestamp|ts|date|weight|edgeid|eid|index")
_ID = re.compile(r"(node|vertex)?ids?|nid|nodes?|vertex")
_FIELDS = {b"pattern": None, b"real": "float32", b"integer": "int64", b"complex": "float32"}


@dataclass(frozen=True)
class Header:
    """The symmetry that a file states, and the counts of a matrix."""

    path: Path
    is_matrix: bool = False  # in Matrix Market's format: a line of sizes follows, ids count from 1
    num_nodes: int | None = None  # of a matrix
    num_edges: int | None = None  # of a matrix: lines with an entry
    is_undirected: bool = False  # whether each edge is there in one direction
    value_dtype: str | None = None  # of the third column of a matrix; None: it has none

    def check_count(self, what: str, found: int | None, stated: int | None) -> None:
        """Raise if a number of nodes or edges is not as a matrix states."""
        if None not in (found, stated) and found != stated:
            raise InputError(
                f"{self.path}: has {found} {what}, but its line of sizes says {stated}; download "
                "or copy it again",
                path=self.path,
            )

    def check_direction(self, *, undirected: bool) -> None:
        """Refuse half of a symmetric matrix, and warn of other undirected graphs."""
        if not self.is_undirected or undirected:
            return
        problem = (
            "its header says that the graph is undirected; if each edge is listed once, as in one "
            "half of a symmetric matrix, add the other direction with undirected=True"
        )
        if self.is_matrix:
            raise InputError(f"{self.path}: {problem}", path=self.path)
        _LOG.warning("%s: %s", self.path, problem)


def first_lines(path: Path, marks: bytes = b"#%") -> tuple[list[bytes], bytes]:
    """Return the comments before the first row, and its line."""
    block = next(read_blocks(path), None)
    comments: list[bytes] = []
    for line in [] if block is None else block.data.split(b"\n", _MAX_LINES):
        text = line.strip()
        if text and text[0] not in marks:
            return comments, text
        comments.append(text)
    return comments, b""


def column_names(line: bytes) -> list[str]:
    """Return the names of columns in a first line; none if it has a number."""
    names = fields_of(line) if line else []
    return [] if any(is_number(name.encode()) for name in names) else names


def _place(names: list[str], words: re.Pattern[str]) -> int | None:
    """Return the position of the first name that is one of some words."""
    plain = (re.sub(r"[\s_.:-]", "", name.lower()) for name in names)
    return next((place for place, name in enumerate(plain) if words.fullmatch(name)), None)


def id_column(names: list[str]) -> int | None:
    """Return the position of a column that is called as ids of nodes are."""
    return _place(names, _ID)


def are_ends(names: list[str]) -> bool:
    """Whether the first name and the last are called as the ends of an edge are."""
    return _place(names[:1], _SOURCE) == 0 and _place(names[-1:], _TARGET) == 0


def check_ends(path: Path, names: list[str], *, is_skipped: bool) -> None:
    """Refuse names of columns of which the first two are not the ends of an edge."""
    ends = (_place(names, _SOURCE), _place(names, _TARGET))
    is_odd = len(names) > 2 and _place(names[:2], _NO_END) is not None
    if ends == (0, 1):
        advice = "skip it (skip_header=True), or, if it is an edge, move it down"
    else:
        advice = "say which are the ends of an edge, with source= and target="
    if (ends == (0, 1) and not is_skipped) or (ends != (0, 1) and (None not in ends or is_odd)):
        raise InputError(
            f"{path}: the first line names the columns {', '.join(names)}; {advice}", path=path
        )


def read_header(path: Path) -> Header:
    """Return what a file states before its first edge."""
    comments, first = first_lines(path)
    banner = next(filter(None, map(_BANNER.match, comments)), None)
    if banner is not None:
        return _read_matrix(path, banner[1].lower().split(), first)
    if path.with_suffix("" if path.suffix == ".gz" else path.suffix).suffix == ".mtx":
        raise InputError(
            f"{path}: has no line '%%MatrixMarket matrix coordinate ...'; put it first, or, if the "
            "file is a list of edges without a line of sizes, rename it",
            path=path,
        )
    header = b"\n".join(comments)
    konect = _KONECT.search(header)
    if konect is not None and konect[1].lower() == b"bip":
        raise InputError(
            f"{path}: a bipartite graph: its two kinds of nodes have the same numbers; convert it "
            "as a graph with two node types ('gnnstore convert typed')",
            path=path,
        )
    is_symmetric = konect is not None and konect[1].lower() == b"sym"
    return Header(path, is_undirected=is_symmetric or _UNDIRECTED.search(header) is not None)


def _read_matrix(path: Path, words: list[bytes], line: bytes) -> Header:
    symmetry = next((word for word in words if word in (b"general", b"symmetric")), None)
    field = next((word for word in words if word in _FIELDS), None)
    if b"coordinate" not in words or symmetry is None or field is None:
        raise InputError(
            f"{path}: its first line says {b' '.join(words).decode(errors='replace')!r}; expected "
            "a matrix that is coordinate, general or symmetric, and pattern, real, integer or "
            "complex",
            path=path,
        )
    sizes = _SIZES.fullmatch(line)
    if sizes is None or sizes[1] != sizes[2]:
        raise InputError(
            f"{path}: the line of sizes is {line[:100].decode(errors='replace')!r}; expected "
            "equal numbers of rows and columns, and the number of entries. A matrix with others "
            "joins two kinds of nodes: convert it as a graph with two node types ('gnnstore "
            "convert typed')",
            path=path,
        )
    return Header(
        path,
        is_matrix=True,
        num_nodes=int(sizes[1]),
        num_edges=int(sizes[3]),
        is_undirected=symmetry == b"symmetric",
        value_dtype=_FIELDS[field],
    )


# ---- numbers of nodes


def number_ids(writer: GraphWriter, ids: Iterable[npt.NDArray[Any]]) -> IdMap:
    """Assign numbers to the nodes of a text by ascending ids, which are given in pieces."""
    collector = IdCollector(memory_bytes=writer.options.memory_bytes)
    for some in ids:
        collector.add(some)
    found = collector.finish()
    writer.reserve_memory(found.num_bytes)
    writer.set_num_nodes(found.num_nodes)
    if not found.is_identity:
        writer.set_original_ids(found.original_ids())
    return found


def number_from_one(writer: GraphWriter, num_nodes: int) -> IdMap:
    """Assign numbers to nodes whose ids are 1, ..., N."""
    writer.set_num_nodes(num_nodes)
    found = OneBasedIds(num_nodes)
    writer.set_original_ids(found.source)
    return found


def number_names(writer: GraphWriter, read: Callable[[], Iterable[NameBlock]]) -> NameNumbering:
    """Assign numbers to names by first appearance; each `read()` starts anew."""
    names = NameNumbering(writer.spill_directory / "names", writer.options.memory_bytes)
    names.collect(read)
    writer.reserve_memory(names.memory_bytes)
    writer.set_num_nodes(names.num_nodes)
    writer.set_original_names(names.names(), names.num_nodes, names.name_bytes)
    return names
