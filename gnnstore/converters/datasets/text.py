"""The head of a text before its first row, and numbers for the nodes in it.

A Matrix Market file states its rows, entries and symmetry, which are taken as they are or refused.
Of SNAP's and KONECT's comments only the direction counts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.numbering import IdCollector, IdMap, NameNumbering, OneBasedIds
from gnnstore.converters.inputs.name_blocks import NameBlock
from gnnstore.converters.inputs.text_tables import TextTable, read_head
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.errors import InputError

_LOG = logging.getLogger(__name__)

# The first line of Matrix Market; sites and editors drop one of the two per cent signs.
_BANNER = re.compile(rb"%{1,2}\s*matrixmarket\b(.*)", re.IGNORECASE)
_SIZES = re.compile(rb"(\d{1,19})\s+(\d{1,19})\s+(\d{1,19})")
_UNDIRECTED = re.compile(rb"\bundirected\b", re.IGNORECASE)
_KONECT = re.compile(rb"^%\s*(sym|asym|bip)\b", re.IGNORECASE | re.MULTILINE)
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
                f"{self.path}: has {found} {what}, but its line of sizes has {stated}; download "
                "or copy it again",
                path=self.path,
            )

    def check_direction(self, *, undirected: bool) -> None:
        """Refuse half of a symmetric matrix, and warn of other undirected graphs."""
        if not self.is_undirected or undirected:
            return
        problem = (
            "its header describes an undirected graph; if each edge is listed once, as in one "
            "half of a symmetric matrix, add the other direction with undirected=True"
        )
        if self.is_matrix:
            raise InputError(f"{self.path}: {problem}", path=self.path)
        _LOG.warning("%s: %s", self.path, problem)


# ---- first lines that name columns


def id_column(names: list[str]) -> int | None:
    """Return the position of a column that is called as ids of nodes are."""
    return next((place for place, name in enumerate(names) if name.lower() == "id"), None)


class HeaderSearch:
    """Finds first rows of files that share no name with any other row: names of columns."""

    def __init__(self) -> None:
        self._num_rows: dict[Path, int] = {}
        # Names of ends and labels in the first rows that have none in common with others.
        self._first: dict[Path, tuple[set[bytes], set[bytes]]] = {}

    def add(self, path: Path, block: NameBlock | None) -> None:
        """Add a file by its first rows, before any other row is seen."""
        self._num_rows[path] = 0
        if block is not None:
            self._first[path] = (set(_names(block, 0, 1)), set(_names(block.labels, 0, 1)))

    def see(self, path: Path, block: NameBlock) -> None:
        """Look at the next rows of a file."""
        if path not in self._num_rows:
            self.add(path, block)
        begin = int(not self._num_rows[path])
        self._num_rows[path] += len(block)
        if not self._first:
            return
        ends, labels = _names(block, begin), _names(block.labels, begin)
        self._first = {
            path: own
            for path, own in self._first.items()
            if own[0].isdisjoint(ends) and own[1].isdisjoint(labels)
        }

    def check(self) -> None:
        """Raise if the first row of a file is a header."""
        for path, own in self._first.items():
            if self._num_rows[path] > 1:
                names = b", ".join(sorted(own[0]) + sorted(own[1])).decode()
                raise InputError(
                    f"{path}: the first line looks like a header: none of its names ({names}) is "
                    "in another line. Skip it with skip_header=True, or keep it with "
                    "skip_header=False",
                    path=path,
                )


def refuse_header(path: Path, blocks: Iterable[NameBlock]) -> Iterator[NameBlock]:
    """Yield the rows of a file, and raise if the first is a header."""
    search = HeaderSearch()
    for block in blocks:
        search.see(path, block)
        yield block
    search.check()


def refuse_marks(path: Path, blocks: Iterable[NameBlock]) -> Iterator[NameBlock]:
    """Yield the rows of a file, and raise if a column of ends has the same name in each.

    Columns behind the ends are skipped then, which may be the ends: "->" stands between, or "a"
    before them.
    """
    same: dict[int, bytes] = {}
    num_rows = 0
    for block in blocks:
        if not num_rows:
            same = {i: block.names[code] for i, code in enumerate(block.codes[0])}
        num_rows += len(block)
        for i, name in list(same.items()):
            codes = block.codes[:, i]
            if block.names[codes[0]] != name or (codes != codes[0]).any():
                del same[i]
        yield block
    if same and num_rows > 1:
        place, name = next(iter(same.items()))
        raise InputError(
            f"{path}: column {place + 1} is {name.decode()!r} on every line; choose the columns of "
            "the ends of an edge with source= and target=",
            path=path,
        )


def check_counts(table: TextTable, names: NameNumbering | None, *, is_skipped: bool) -> None:
    """Refuse a first line of two integers that fit the numbers of nodes and lines behind it.

    So does METIS's first line: behind it are lists of neighbours, which each edge is in twice. If
    the line is skipped by an option, only a list of more than two is surely not an edge.
    """
    path, num_lines = table.path, table.num_rows - (not is_skipped)
    first = _integers(table.header.split() if is_skipped else table.first_ends())
    if len(first) != 2 or num_lines < 1:
        return
    has_lists = first[0] == num_lines and 2 * first[1] == num_lines * table.num_fields
    if is_skipped:
        if has_lists and table.num_fields > 2:
            raise InputError(
                f"{path}: these are lists of neighbours: write one edge a line", path=path
            )
        return
    if table.num_fields != 2 or first[1] != num_lines:
        return
    if not (has_lists or _are_counted(table, names, first[0])):
        return
    raise InputError(
        f"{path}: the first line, {first[0]} {first[1]}, fits the numbers of nodes and lines "
        "behind it; skip it with skip_header=True, or, if it is an edge, keep it with "
        "skip_header=False. If lines are lists of neighbours, as in METIS, write one edge a line",
        path=path,
    )


def _integers(fields: Iterable[bytes | int]) -> list[int]:
    """Return fields as integers; none if some are not."""
    texts = [field if isinstance(field, bytes) else b"%d" % field for field in fields]
    return [int(text) for text in texts] if all(text.isdigit() for text in texts) else []


def _are_counted(table: TextTable, names: NameNumbering | None, count: int) -> bool:
    """Whether the rows behind the first have a number of nodes, perhaps with isolated ones."""
    begin = 1
    if names is not None:
        seen: set[bytes] = set()
        first = set(table.first_ends())
        for block in table.blocks():
            seen |= first.intersection(_names(block, begin))
            begin = 0
        return names.num_nodes - len(first - seen) == count
    collector, highest = IdCollector(), 0
    for block in table.blocks():
        ids = table.ends(block)[begin:].reshape(-1)
        highest, begin = max(highest, int(ids.max(initial=0))), 0
        collector.add(ids)
    return collector.build().num_nodes == count or highest <= count


def _names(block: NameBlock | None, begin: int, end: int | None = None) -> list[bytes]:
    """Return the distinct names in some rows."""
    if block is None:
        return []
    if not begin and end is None:
        return block.names
    return [block.names[code] for code in np.unique(block.codes[begin:end])]


# ---- what comments and lines of sizes state


def read_header(path: Path) -> Header:
    """Return what a file states before its first edge."""
    head = read_head(path)
    comments, first = head.comments, head.lines[0].data.strip() if head.lines else b""
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
            f"{path}: its first line has {b' '.join(words).decode(errors='replace')!r}; expected "
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
    found = collector.build()
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
