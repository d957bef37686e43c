"""A cache that is filled once: some rows in memory, the others read (PaGraph, section 3.3).

Training, validation and test loaders read the same rows, so they share one cache under one budget.
The first loader sizes it; a later loader with larger batches may need some of its memory, and then
the rows with the lowest scores leave it. Filling it may take minutes: a background thread does it,
and batches read the rows that are not cached yet.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts, empty, pool_trim
from gnnstore.caching.scores import SCORE_DTYPES, CacheCost, Score, select_nodes
from gnnstore.features.source import Decoding, RowRequest, RowSource, Tier, TypedRows
from gnnstore.machine import PRIVATE, Arrays, Growing, Machine, share_of
from gnnstore.sampling.row_space import RowRange
from gnnstore.threads import LONG_READ_BYTES, Flag, run_in_background

FILLING_THREAD = "gnnstore-fill"
# Bytes of a piece in which a cache is warmed up: enough for many reads in flight, and little memory
# for sorting the ids.
WARM_UP_BYTES = 64 << 20
# Bytes of a piece in the background: after each piece, batches may use the disk, or filling ends.
_BACKGROUND_BYTES = 8 << 20
# Seconds between checks whether another process that fills a table has ended.
_LOOK_SECONDS = 1.0
# The least bytes that are read for a row of a scattered node.
_PAGE_BYTES = 4096

# Bytes of a buffer, or one part in so many of the pinned bytes, through which pinned rows and
# others are read together, in the order of the table: enough for many reads in flight.
_BUFFER_BYTES, _BUFFER_SHARE = 8 << 20, 64
# Bytes, without pinned rows, for sorting the ids of rows that are read straight into their slots.
_UNPINNED_BUFFER_BYTES = 2 << 20
# Bytes of a row in the buffer: its id, offset and slot.
_ROW_ON_ITS_WAY_BYTES = 4 * 8

_log = logging.getLogger(__name__)


def cache_cost(num_rows: int, row_bytes: int, score: Score, num_ranks: int = 1) -> CacheCost:
    """Return the cost of a cache; `row_bytes` are a node's bytes, with several types the widest."""
    index_bytes = SlotIndex.bytes_for(num_rows, 0)
    node_bytes = SlotIndex.bytes_for(num_rows, 1) - index_bytes
    score_bytes = np.dtype(SCORE_DTYPES[score]).itemsize
    return CacheCost(
        num_rows,
        index_bytes,
        row_bytes + node_bytes + score_bytes if row_bytes else 0,
        num_ranks,
    )


def bytes_to_read(num_rows: int, row_bytes: int, num_wanted: int) -> int:
    """Return the most bytes that are read, in order, for `num_wanted` rows of a table."""
    return min(num_rows * row_bytes, num_wanted * max(_PAGE_BYTES, row_bytes))


@dataclass(frozen=True, eq=False)
class SlotIndex:
    """The slots of the cached rows, in 1.5 bits per row of the row space.

    In a store of one node type rows are numbered as nodes are.
    """

    # int64 [C]: the cached rows in ascending order; row `nodes[s]` is in slot s.
    nodes: npt.NDArray[np.int64]
    bits: npt.NDArray[np.uint64]
    ranks: npt.NDArray[np.int32]

    @classmethod
    def from_rows(
        cls,
        nodes: npt.NDArray[np.int64],
        num_rows: int,
        machine: Machine = PRIVATE,
        key: str = "",
    ) -> Self:
        """Return the index of strictly ascending rows among `num_rows`."""
        bits, ranks = _core.index_nodes(nodes, num_rows)
        return cls(
            nodes,
            machine.share_values(f"{key}: bits", bits),
            machine.share_values(f"{key}: ranks", ranks),
        )

    @staticmethod
    def bytes_for(num_rows: int, num_cached: int) -> int:
        """Return the bytes of the index of `num_rows` rows, with the cached ones."""
        return 12 * (-(-num_rows // 64)) + 8 * num_cached

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the index occupies."""
        return self.nodes.nbytes + self.bits.nbytes + self.ranks.nbytes

    def slots(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return the slot of each row of `ids` (int32 or int64 [n]); -1: not cached."""
        return _core.find_slots(self.bits, self.ranks, ids)


def warm_up(
    rows: RowSource, nodes: npt.NDArray[np.int64], table: npt.NDArray[np.uint8]
) -> ReadCounts:
    """Read the rows of nodes (int64 [C], ascending) into a table [C, row_bytes]."""
    return sum((counts for _, counts in _warm_up(rows, nodes, table, WARM_UP_BYTES)), ReadCounts())


def _warm_up(
    rows: RowSource,
    nodes: npt.NDArray[np.int64],
    table: npt.NDArray[np.uint8],
    piece_bytes: int,
    first_row: int = 0,
) -> Iterator[tuple[int, ReadCounts]]:
    """Read rows piece by piece; yield the number of rows so far, and the counts of each piece."""
    step = max(1, piece_bytes // max(1, rows.row_bytes))
    for first in range(0, len(nodes), step):
        some = nodes[first : first + step]
        end = first + len(some)
        ids = some - first_row if first_row else some
        yield end, rows.read_rows(ids, table[first:end])


# The places of a type's rows among the rows of all types, and its node ids there, ascending.
Part = tuple[slice, npt.NDArray[np.int64]]


def fill_slots(
    table: RowSource, slots: npt.NDArray[np.uint8], num_planned: int, planned: Part, kept: Part
) -> ReadCounts:
    """Read the first rows of planned slots, and pinned rows behind them, in one pass."""
    counts, row_bytes, num_pinned = ReadCounts(), table.row_bytes, len(slots) - num_planned
    (places, nodes), (pinned_places, pinned) = planned, kept
    first_pinned = num_planned + pinned_places.start
    num_bytes = _UNPINNED_BUFFER_BYTES
    if num_pinned:
        num_bytes = buffer_bytes(num_pinned * row_bytes, row_bytes)
    most = max(1, num_bytes // (2 * (row_bytes + _ROW_ON_ITS_WAY_BYTES)))
    buffer = empty((2 * most * row_bytes,), np.uint8)
    for begin, end, first, last in _merged(nodes, pinned, most):
        ids = np.concatenate([nodes[begin:end], pinned[first:last]])
        into = np.arange(len(ids), dtype=np.int32)
        into[: end - begin] += places.start + begin
        into[end - begin :] += first_pinned + first - (end - begin)
        order = np.argsort(ids, kind="stable")
        part = buffer[: len(ids) * row_bytes]
        counts += table.read_rows(ids[order], part.reshape(len(ids), row_bytes))
        if row_bytes:
            positions = np.arange(len(ids), dtype=np.int32)
            _core.copy_to_slots(part, positions, slots, into[order])
    return counts


def buffer_bytes(pinned_bytes: int, row_bytes: int) -> int:
    """Return the bytes of the buffer for pinned rows, with their ids, places and slots."""
    least = 2 * (row_bytes + _ROW_ON_ITS_WAY_BYTES)
    return max(least, min(_BUFFER_BYTES, pinned_bytes // _BUFFER_SHARE))


def _merged(
    a: npt.NDArray[np.int64], b: npt.NDArray[np.int64], most: int
) -> Iterator[tuple[int, int, int, int]]:
    """Cut two ascending arrays at the same values, into pieces of at most `most` of each."""
    begin = first = 0
    while begin < len(a) or first < len(b):
        some = [part for part in (a[begin : begin + most], b[first : first + most]) if len(part)]
        highest = min(part[-1] for part in some)
        end, last = (int(np.searchsorted(part, highest, side="right")) for part in (a, b))
        yield begin, end, first, last
        begin, first = end, last


class StaticCache:
    """Rows from some tables in memory; tables of one type have the same nodes. Thread-safe.

    Nodes are given by their numbers in a row space. Caches with the same name and nodes share their
    rows among the processes of a machine.
    """

    def __init__(
        self,
        tables: Mapping[str, TypedRows[RowSource]],
        num_rows: int,
        machine: Machine = PRIVATE,
        name: str = "",
    ) -> None:
        self._tables = {path: StaticRows(*rows) for path, rows in tables.items()}
        self._num_rows = num_rows
        self._machine, self._name = machine, name
        self._lock = threading.Lock()
        self._index: SlotIndex | None = None
        self._scores: npt.NDArray[Any] = np.empty(0, np.uint8)
        self._end_warm_up: Callable[[], object] = lambda: None

    def warm_up(self, nodes: npt.NDArray[np.int64], scores: npt.NDArray[Any]) -> None:
        """Read some rows (int64, ascending numbers), in the order in which they lie on disk.

        If that takes long, a background thread does it; until then fewer rows are cached. Both
        arrays are kept where they are, which may be in memory that processes share.
        """
        with self._lock:
            self._warm_up(nodes, scores)

    def shrink(self, num_rows: int, most: int = 0, purpose: str = "") -> None:
        """Keep only the `num_rows` rows with the highest scores.

        If another process has shrunk such a cache for the same purpose, keep as many as it does,
        unless these are more than `most`.
        """
        with self._lock:
            if self._index is not None and num_rows < self.num_rows:
                self._warm_up(*self._best(num_rows, most, purpose))

    def _best(self, num_rows: int, most: int, purpose: str) -> Arrays:
        assert self._index is not None  # noqa: S101 - for the type checker
        nodes, scores = self._index.nodes, self._scores

        def make() -> Arrays:
            # Nodes of score 0, which filled the cache up, leave first.
            above_zero = np.add(scores, 1, dtype=np.promote_types(scores.dtype, np.uint16))
            kept = select_nodes(above_zero, num_rows)
            return nodes[kept], scores[kept]

        key = f"{self._key(nodes)} made smaller for {purpose}"
        found = self._machine.choose(key, (np.int64, scores.dtype), make)
        return found if len(found[0]) <= max(num_rows, most) else make()

    def close(self) -> None:
        """Free the memory of all rows, which are read from now on."""
        with self._lock:
            self._warm_up(np.empty(0, np.int64), np.empty(0, np.uint8))

    def _warm_up(self, nodes: npt.NDArray[np.int64], scores: npt.NDArray[Any]) -> None:
        self._end_warm_up()
        for rows in self._tables.values():
            rows.held = None
        self._index, self._scores = None, np.empty(0, np.uint8)
        if len(nodes) == 0:
            return
        pool_trim(0)  # the buffers of an old cache
        key = self._key(nodes)
        index = SlotIndex.from_rows(nodes, self._num_rows, self._machine, key)
        filling: list[_Filling] = []  # by this process
        held_by = {
            path: self._open(rows, index, f"{key}: {path}", filling)
            for path, rows in self._tables.items()
        }
        sizes = ((rows.num_rows, rows.row_bytes, len(held.table)) for rows, held in filling)
        is_long = sum(bytes_to_read(*each) for each in sizes) >= LONG_READ_BYTES
        if not is_long:
            _fill(filling, WARM_UP_BYTES, Flag())
        self._index, self._scores = index, scores
        for path, held in held_by.items():
            self._tables[path].held = held
        left = [(self._tables[path].below, held) for path, held in held_by.items() if held.lacks]
        if left:
            work = partial(_fill_in_background, left)
            self._end_warm_up = run_in_background(self, work, FILLING_THREAD)

    def _key(self, nodes: npt.NDArray[np.int64]) -> str:
        return f"{self._name} {len(nodes)} rows {_core.crc32c(nodes.view(np.uint8)):08x}"

    def _open(
        self, rows: StaticRows, index: SlotIndex, key: str, filling: list[_Filling]
    ) -> _CachedRows:
        """Return room for the rows of a table; add it to `filling` if this process fills it."""
        slots = rows.range.within(index.nodes)
        shape = slots.stop - slots.start, rows.row_bytes
        # Processes do not share the rows of a tier, which may be a user's.
        machine = self._machine if rows.below.file_rows is rows.below else PRIVATE
        to_fill: list[Growing] = []
        room = machine.share_growing(key, math.prod(shape), to_fill.append)
        held = _CachedRows(index, slots.start, rows.range.first, room.array.reshape(shape), room)
        if to_fill:
            filling.append((rows.below, held))
        return held

    @property
    def num_rows(self) -> int:
        """Nodes with cached rows."""
        return 0 if self._index is None else len(self._index.nodes)

    @property
    def num_bytes(self) -> int:
        """Bytes of rows, scores and index; of shared memory, the part that this process counts."""
        index_bytes = 0 if self._index is None else self._index.num_bytes
        rows_bytes = sum(rows.cached_bytes for rows in self._tables.values())
        return share_of(index_bytes + self._scores.nbytes + rows_bytes, self._machine.num_ranks)

    def holds(self, path: str) -> bool:
        """Whether rows of this table are cached."""
        return path in self._tables

    def rows(self, path: str) -> StaticRows:
        """Return one of the tables."""
        return self._tables[path]


@dataclass(eq=False)
class _CachedRows:
    """The cached rows of one table: `table[s]` is row `index.nodes[first_slot + s]`."""

    index: SlotIndex
    first_slot: int  # the first slot of the table's type in the index
    first_row: int  # the first number of the table's type in the row space
    table: npt.NDArray[np.uint8]  # uint8 [C, row_bytes]
    room: Growing  # the memory of the table, with the number of rows that are filled

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The number of the row in each row of `table`."""
        return self.index.nodes[self.first_slot : self.first_slot + len(self.table)]

    @property
    def lacks(self) -> bool:
        """Whether rows are still to be filled."""
        return self.room.num_filled < len(self.table)

    def fill(self, source: RowSource, piece_bytes: int, stop: Flag) -> None:
        """Read the rows that are not there yet, until `stop` is set."""
        done, table = self.room.num_filled, self.room.array.reshape(self.table.shape)
        rows = self.rows[done:], table[done:], piece_bytes, self.first_row
        for num_filled, _ in _warm_up(source, *rows):
            self.room.publish(done + num_filled)
            if stop.is_set():
                return

    def places(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return the position in `table` of each node's row; negative: it is not cached yet."""
        num_filled = self.room.num_filled
        if self.first_row:
            ids = np.add(ids, self.first_row, dtype=np.int64)
        slots = self.index.slots(ids)
        if self.first_slot:
            slots -= np.int32(self.first_slot)
        if num_filled < len(self.table):
            slots[slots >= num_filled] = -1
        return slots

    def request(self, ids: npt.NDArray[Any]) -> RowRequest:
        """Return the request for the rows of nodes, of which some are cached here."""
        return RowRequest(ids, self.places(ids), self.table)


_Filling = tuple[RowSource, _CachedRows]


def _fill(tables: list[_Filling], piece_bytes: int, stop: Flag) -> None:
    """Fill tables with rows from their sources, until `stop` is set."""
    for source, held in tables:
        if not stop.is_set():
            held.fill(source, piece_bytes, stop)


def _fill_in_background(tables: list[_Filling], stop: Flag) -> None:
    """Fill tables while batches are loaded, or watch another process fill them.

    If that process ends, one that watches goes on. The cache may be dropped meanwhile.
    """
    try:
        while tables and not stop.is_set():
            _fill([table for table in tables if table[1].room.take_over()], _BACKGROUND_BYTES, stop)
            tables = [table for table in tables if table[1].lacks]
            if tables:
                stop.wait(_LOOK_SECONDS)
    except Exception as error:
        # Rows that are not there are read by the batches that need them.
        _log.debug("a cache is not filled any further: %s", error)


class StaticRows(Tier):
    """One table of a static cache, with the rows that are cached so far. Thread-safe.

    Cached rows are copied while other rows are read, if the source below supports it.
    """

    held: _CachedRows | None = None  # replaced at once: reads in progress keep the old rows

    def __init__(self, below: RowSource, own: RowRange) -> None:
        super().__init__(below)
        self.range = own  # the numbers of its rows

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with the rows of `ids`, the cached ones from memory."""
        held = self.held
        if held is None:
            return self.below.read_rows(ids, out)
        return self.below.read_into(held.request(ids), out)

    def read_decoded(
        self, request: RowRequest, decoding: Decoding, out: npt.NDArray[Any]
    ) -> ReadCounts:
        """Decode the rows of a request to `out`, the cached ones straight from memory."""
        held = self.held
        if held is None or request.slots is not None:
            return super().read_decoded(request, decoding, out)
        return self.below.read_decoded(held.request(request.ids), decoding, out)

    @property
    def cached_bytes(self) -> int:
        """Bytes of memory that the cached rows occupy, without their index."""
        return 0 if self.held is None else self.held.table.nbytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that rows occupy, here and below."""
        return self.cached_bytes + self.below.resident_bytes
