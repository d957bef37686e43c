"""What text says of itself before the first row: Matrix Market, SNAP, KONECT, names of columns.

A Matrix Market file states its rows, entries and symmetry, which are taken as they are or refused.
SNAP's and KONECT's comments are a custom: what differs from them is a warning.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from gnnstore.converters.inputs.text_blocks import read_blocks
from gnnstore.converters.inputs.text_lines import fields_of, is_number
from gnnstore.errors import InputError

_LOG = logging.getLogger(__name__)

# Sites and editors drop one of the two per cent signs.
_BANNER = re.compile(rb"%{1,2}\s*matrixmarket\b(.*)", re.IGNORECASE)
_SIZES = re.compile(rb"(\d{1,19})\s+(\d{1,19})\s+(\d{1,19})")
_SNAP_NODES = re.compile(rb"\bnodes:\s*([\d,]+)", re.IGNORECASE)
_SNAP_EDGES = re.compile(rb"\bedges:\s*([\d,]+)", re.IGNORECASE)
_UNDIRECTED = re.compile(rb"\bundirected\b", re.IGNORECASE)
_KONECT = re.compile(rb"%\s*(sym|asym|bip)\b", re.IGNORECASE)
_KONECT_SIZES = re.compile(rb"%\s*(\d{1,19})(?:\s+(\d{1,19})\s+(\d{1,19}))?")
_MAX_LINES = 10_000
# Names of columns, in lower case and without marks between words.
_SOURCES = {
    *("source", "sources", "sourceid", "sourcenode", "sourcenodeid", "src", "srcid", "srcnode"),
    *("from", "fromid", "fromnode", "fromnodeid", "head", "u"),
}
_TARGETS = {
    *("target", "targets", "targetid", "targetnode", "targetnodeid", "dst", "dstid", "dstnode"),
    *("dest", "destination", "to", "toid", "tonode", "tonodeid", "tail", "v"),
}
_NO_ENDS = {"time", "timestamp", "ts", "date", "weight", "edgeid", "eid", "index"}
_IDS = {"id", "ids", "node", "nodes", "nodeid", "nodeids", "nid", "vertex", "vertexid"}
_FIELDS = {b"pattern": None, b"real": "float32", b"integer": "int64", b"complex": "float32"}


@dataclass(frozen=True)
class Header:
    """The counts and the symmetry that a file states."""

    path: Path
    is_matrix: bool = False  # in Matrix Market's format: a line of sizes follows, ids count from 1
    num_nodes: int | None = None
    num_edges: int | None = None  # lines with an edge
    is_undirected: bool = False  # whether each edge is there in one direction
    value_dtype: str | None = None  # of the third column of a matrix; None: it has none

    def check_edges(self, num_edges: int) -> None:
        """Compare the number of edges that were read."""
        if self.num_edges is None or self.num_edges == num_edges:
            return
        if self.is_matrix:
            raise InputError(
                f"{self.path}: has {num_edges} entries, but its line of sizes says "
                f"{self.num_edges}; download or copy it again",
                path=self.path,
            )
        _LOG.warning(
            "%s: has %d edges, but its header says %d; if it was not cut on purpose, download or "
            "copy it again",
            self.path,
            num_edges,
            self.num_edges,
        )

    def check_nodes(self, num_nodes: int, *, is_given: bool) -> None:
        """Compare the number of nodes: of those in edges, or given by the user."""
        if self.is_matrix:
            if is_given and num_nodes != self.num_nodes:
                raise InputError(
                    f"{self.path}: a matrix of {self.num_nodes} rows has that many nodes, and not "
                    f"num_nodes={num_nodes}; leave it out",
                    path=self.path,
                )
            return
        if self.num_nodes is None or num_nodes == self.num_nodes:
            return
        if not is_given or num_nodes < self.num_nodes:
            _LOG.warning(
                "%s: %s %d nodes, but its header says %d",
                self.path,
                "num_nodes= says" if is_given else "its edges have",
                num_nodes,
                self.num_nodes,
            )

    def check_direction(self, *, undirected: bool) -> None:
        """Say so if only one direction of each edge would be in the store."""
        if not self.is_undirected or undirected:
            return
        if self.is_matrix:
            raise InputError(
                f"{self.path}: one half of a symmetric matrix, so that each edge has one "
                "direction; add the other with undirected=True",
                path=self.path,
            )
        _LOG.warning(
            "%s: its header says that the graph is undirected; if each edge is listed once, add "
            "the other direction with undirected=True",
            self.path,
        )


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


def _place(names: list[str], words: set[str]) -> int | None:
    """Return the position of the first name that is one of some words."""
    plain = (re.sub(r"[\s_.:-]", "", name.lower()) for name in names)
    return next((place for place, name in enumerate(plain) if name in words), None)


def id_column(names: list[str]) -> int | None:
    """Return the position of a column that is called as ids of nodes are."""
    return _place(names, _IDS)


def check_ends(path: Path, names: list[str], *, is_skipped: bool) -> None:
    """Refuse names of columns of which the first two are not the ends of an edge."""
    ends = (_place(names, _SOURCES), _place(names, _TARGETS))
    if None not in ends and ends != (0, 1):
        source, target = (names[place] for place in ends if place is not None)
        raise InputError(
            f"{path}: the first line names the columns {', '.join(names)}; say which are the ends "
            f"of an edge, with source={source} and target={target}",
            path=path,
        )
    if len(names) > 2 and ends != (0, 1) and _place(names[:2], _NO_ENDS) is not None:
        raise InputError(
            f"{path}: the first line names the columns {', '.join(names)}, and the first two do "
            "not seem to be the ends of an edge; say which are, with source= and target=",
            path=path,
        )
    if ends == (0, 1) and not is_skipped:
        raise InputError(
            f"{path}: the first line names the columns {', '.join(names)}; skip it "
            "(skip_header=True), or, if it is an edge, move it down",
            path=path,
        )


def read_header(path: Path) -> Header:
    """Return what a file states before its first edge."""
    comments, first = first_lines(path)
    banner = next(filter(None, map(_BANNER.match, comments)), None)
    if banner is not None:
        return _read_matrix(path, banner[1].lower().split(), first)
    if path.with_suffix("" if path.suffix == ".gz" else path.suffix).suffix == ".mtx":
        raise InputError(
            f"{path}: has no line '%%MatrixMarket matrix coordinate ...', without which nothing "
            "says whether the matrix is symmetric; put it first, or, if the file is a list of "
            "edges without a line of sizes, rename it",
            path=path,
        )
    konect = next((i for i, line in enumerate(comments) if _KONECT.match(line)), None)
    if konect is not None:
        return _read_konect(path, comments[konect:])
    header = b"\n".join(comments)
    nodes, edges = _SNAP_NODES.search(header), _SNAP_EDGES.search(header)
    return Header(
        path,
        num_nodes=None if nodes is None else _count(nodes[1]),
        num_edges=None if edges is None else _count(edges[1]),
        is_undirected=_UNDIRECTED.search(header) is not None,
    )


def _count(digits: bytes) -> int | None:
    number = digits.replace(b",", b"")
    return int(number) if 0 < len(number) < 20 else None


def _read_konect(path: Path, comments: list[bytes]) -> Header:
    form = _KONECT.match(comments[0])
    kind = b"" if form is None else form[1].lower()
    if kind == b"bip":
        raise InputError(
            f"{path}: a bipartite graph: its two kinds of nodes have the same numbers, and node 1 "
            "of both would be one node. Convert it as a graph with two node types ('gnnstore "
            "convert typed'), or number them apart",
            path=path,
        )
    sizes = None if len(comments) < 2 else _KONECT_SIZES.fullmatch(comments[1])
    return Header(
        path,
        num_nodes=None if sizes is None or sizes[2] is None else int(sizes[2]),
        num_edges=None if sizes is None else int(sizes[1]),
        is_undirected=kind == b"sym",
    )


def _read_matrix(path: Path, words: list[bytes], sizes: bytes) -> Header:
    if b"coordinate" not in words:
        raise InputError(
            f"{path}: a dense matrix is no list of edges; write it in the coordinate format",
            path=path,
        )
    symmetry = next((word for word in words if word in (b"general", b"symmetric")), None)
    if symmetry is None:
        kind = words[-1].decode(errors="replace")
        raise InputError(
            f"{path}: of a {kind} matrix, the entries that are left out do not equal others; write "
            "it as a general one",
            path=path,
        )
    field = next((word for word in words if word in _FIELDS), None)
    if field is None:
        raise InputError(
            f"{path}: its first line does not say whether entries are pattern, real, integer or "
            "complex; complete it",
            path=path,
        )
    found = _SIZES.fullmatch(sizes)
    if found is None:
        raise InputError(
            f"{path}: the first line that is no comment says "
            f"{sizes[:100].decode(errors='replace')!r}; expected the numbers of rows, columns and "
            "entries of a Matrix Market file",
            path=path,
        )
    rows, columns, entries = map(int, found.groups())
    if rows != columns:
        raise InputError(
            f"{path}: a matrix of {rows} x {columns} joins two kinds of nodes, and row and column "
            "of one number would be one node; convert it as a graph with two node types "
            "('gnnstore convert typed'), or number them apart, as an edge list",
            path=path,
        )
    return Header(
        path,
        is_matrix=True,
        num_nodes=rows,
        num_edges=entries,
        is_undirected=symmetry == b"symmetric",
        value_dtype=_FIELDS[field],
    )
