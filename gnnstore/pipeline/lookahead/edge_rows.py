"""Narrow rows of the edges of a superbatch, as ids and times, read in a pass over their tables.

The positions of each batch, sorted, go to a file in as many parts as the tables of an edge type
have pieces. Each piece that is needed is read once, and its rows of each batch go to another file,
until the batch is assembled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts, empty
from gnnstore.disk.spool import SPOOLED_BYTES, FileSpool
from gnnstore.features.source import Rows
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.formats.store.schema import EdgeType
from gnnstore.sampling.neighbor import Subgraph

# Edges of the table for each edge of a batch, at most, for which a pass is made: reading an edge's
# row by itself costs a page, which other edges seldom share.
EDGES_PER_READ = 64
# Widest rows that a pass reads: with wider ones it could read more than these pages.
MAX_ROW_BYTES = 64
_MAX_PIECES = 64
_PIECE_BYTES = 1 << 20
# Files with places at a time: two of the superbatch that is made, and files of rows of two others,
# of which one is being left.
_INDEXES = 4
_WORD_BYTES = 4  # bytes of an int32 in files


class PassSize(NamedTuple):
    """The sizes of tables of an edge type that are read in one pass."""

    num_rows: int
    widths: tuple[int, ...]  # bytes of a row of each table

    @property
    def record_bytes(self) -> int:
        """Bytes of an edge's rows in a file."""
        return -(-sum(self.widths) // _WORD_BYTES) * _WORD_BYTES

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables."""
        return self.num_rows * sum(self.widths)

    @property
    def kept_bytes(self) -> int:
        """Bytes on disk for each edge of a batch: its position, and its rows."""
        return id_dtype(self.num_rows - 1).itemsize + self.record_bytes

    @property
    def piece_rows(self) -> int:
        """Rows of a piece."""
        most = max(_PIECE_BYTES // self.record_bytes, -(-self.num_rows // _MAX_PIECES))
        return max(1, min(most, self.num_rows))

    @property
    def piece_bytes(self) -> int:
        """Memory of a pass: a piece of all tables, and of one as it is read."""
        is_copied = self.widths != (self.record_bytes,)
        return self.piece_rows * (self.record_bytes + is_copied * max(self.widths))

    @property
    def index_bytes(self) -> int:
        """Memory for each batch of a superbatch: of the places of its parts in files."""
        return _INDEXES * SPOOLED_BYTES * -(-self.num_rows // self.piece_rows)

    def is_worth_a_pass(self, num_edges: int) -> bool:
        """Whether a pass for so many edges costs less than reading each row by itself."""
        return num_edges * EDGES_PER_READ >= self.num_rows


class SuperbatchEdges:
    """The rows of the sampled edges of S batches. Safe to use from many threads at once."""

    def __init__(
        self,
        tables: Mapping[EdgeType, Sequence[PagedArray]],
        path: Path,
        num_batches: int,
        most_bytes: int,
    ) -> None:
        self._most_bytes = most_bytes  # on disk, of each of two superbatches
        self._types = {
            kind: _TypeRows(of_type, path.with_name(f"{path.name}-{number}"), num_batches)
            for number, (kind, of_type) in enumerate(tables.items())
        }

    def put(self, i: int, sample: Subgraph) -> None:
        """Note the edges of batch i, if there is room on disk."""
        if self.num_disk_bytes < self._most_bytes:
            for kind, own in self._types.items():
                own.put(i, sample.edges[kind].positions)

    def read(self, check: Callable[[], None]) -> int:
        """Read the rows of all edges; return the bytes that were read of the tables."""
        return sum(own.read(check) for own in self._types.values())

    def rows(self, i: int, sample: Subgraph) -> dict[str, Rows]:
        """Return the rows of the edges of batch i by table, and forget them."""
        found: dict[str, Rows] = {}
        for kind, own in self._types.items():
            found |= own.take(i, sample.edges[kind].positions)
        return found

    @property
    def num_disk_bytes(self) -> int:
        """Disk space that is taken, or will be once all rows are read."""
        return sum(own.num_disk_bytes for own in self._types.values())

    def close(self) -> None:
        """Remove the files and forget all rows. Idempotent."""
        types, self._types = self._types, {}
        for own in types.values():
            own.close()


class _TypeRows:
    """Rows of edges of one type."""

    def __init__(self, tables: Sequence[PagedArray], path: Path, num_batches: int) -> None:
        self._tables, self._num_batches = tables, num_batches
        widths = [table.geometry.row_bytes for table in tables]
        self._size = PassSize(tables[0].num_rows, tuple(widths))
        self._starts = np.arange(0, self._size.num_rows, self._size.piece_rows)
        self._id_dtype = id_dtype(self._size.num_rows - 1)
        # An edge's rows, one behind the other.
        self._record = np.dtype(
            {
                "names": [table.spec.path for table in tables],
                "formats": [(table.dtype, table.row_shape) for table in tables],
                "offsets": [sum(widths[:t]) for t in range(len(tables))],
                "itemsize": self._size.record_bytes,
            }
        )
        make = [path.with_name(f"{path.name}-{what}") for what in ("positions", "rows")]
        number = num_batches * len(self._starts)  # part k of batch i is number i * K + k
        # Each until it is not needed any more: the places of its parts take memory.
        self._positions: FileSpool | None
        self._rows: FileSpool | None
        self._positions, self._rows = (FileSpool(p, number, what="rows of edges") for p in make)
        self._num_edges = 0
        self._lock = threading.Lock()

    @property
    def num_disk_bytes(self) -> int:
        """Disk space of both files; for rows as they will be."""
        is_open = self._positions is not None or self._rows is not None
        return is_open * self._num_edges * self._size.kept_bytes

    def _numbers(self, i: int) -> range:
        return range(i * len(self._starts), (i + 1) * len(self._starts))

    def put(self, i: int, positions: npt.NDArray[np.int64]) -> None:
        """Write the positions of batch i's edges."""
        assert self._positions is not None  # noqa: S101 - for the type checker
        ordered = np.sort(positions.astype(self._id_dtype))
        ends = np.searchsorted(ordered, self._starts[1:])
        for number, part in zip(self._numbers(i), np.split(ordered, ends), strict=True):
            self._positions.append(number, [part])
        with self._lock:
            self._num_edges += len(positions)

    def read(self, check: Callable[[], None]) -> int:
        """Read the pieces that batches need, unless these have so few edges that it is more."""
        if not self._size.is_worth_a_pass(self._num_edges):
            self.close()
            return 0
        assert self._positions is not None and self._rows is not None  # noqa: S101, PT018 - as above
        batches, num_bytes = np.flatnonzero(self._have_all(self._positions)).tolist(), 0
        for k, first in enumerate(self._starts.tolist()):
            check()
            numbers = [self._numbers(i)[k] for i in batches]
            end = min(first + self._size.piece_rows, self._size.num_rows)
            if not self._positions.counts[numbers].any():
                end = first
            piece = self._piece(first, end)
            num_bytes += sum(self._size.widths) * (end - first)
            for number in numbers:
                (part,) = self._positions.read(number)
                self._rows.append(number, [piece.take(part - first).view(np.int32)])
        self._positions.close()
        self._positions = None
        return num_bytes

    def _piece(self, first: int, end: int) -> npt.NDArray[np.void]:
        """Return the rows of consecutive edges, without their fields: these copy one by one."""
        if len(self._tables) == 1 and self._size.widths == (self._record.itemsize,):
            piece = self._tables[0].read_slice(first, end).reshape(-1).view(self._record)
        else:
            piece = np.zeros(end - first, self._record)
            for table in self._tables:
                piece[table.spec.path] = table.read_slice(first, end)
        return piece.view(np.dtype((np.void, self._record.itemsize)))

    def _have_all(self, file: FileSpool) -> npt.NDArray[np.bool_]:
        """Return, for each batch, whether a file has all of its parts."""
        last = len(self._starts) - 1
        return file.counts[last :: len(self._starts), 0] >= 0

    def take(self, i: int, positions: npt.NDArray[np.int64]) -> dict[str, Rows]:
        """Return the rows of batch i's edges in their order, by table; nothing if not read."""
        file = self._rows
        if file is None or not self._have_all(file)[i]:
            return {}
        words = np.empty(len(positions) * self._record.itemsize // _WORD_BYTES, np.int32)
        end = 0
        for number in self._numbers(i):
            (part,) = file.read(number)
            words[end : end + len(part)] = part
            end += len(part)
            file.drop(number)
        records, order = words.view(self._record), np.argsort(positions.astype(self._id_dtype))
        found = {}
        for table in self._tables:
            rows = empty((len(positions), *table.row_shape), table.dtype)
            rows[order] = records[table.spec.path]
            found[table.spec.path] = Rows(rows, ReadCounts())
        return found

    def close(self) -> None:
        """Remove the files."""
        files = (self._positions, self._rows)
        self._positions = self._rows = None
        for file in files:
            if file is not None:
                file.close()
