"""A cache that follows a plan: rows come from the slots that it names, or from disk (Ginex).

The plan says which row is in which slot, and which rows enter after a batch (see
`caching.policies.belady`), so no row is looked up by node id. This module keeps the order: missed
rows of several batches may be read at once, but slots are used batch by batch (see
`features.tiers.sequencer`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts, empty
from gnnstore.budget.ledger import CACHED, SLOTS, Reservation
from gnnstore.caching.policies.belady import check_num_slots
from gnnstore.errors import UsageError
from gnnstore.features.pinned import PinnedRows
from gnnstore.features.source import RowRequest, Rows, RowSource
from gnnstore.features.static import warm_up
from gnnstore.features.turns import Sequencer
from gnnstore.formats.arrays.dtypes import id_dtype

_NODE_BYTES = 8
# Pinned rows and others are read together, in the order of the table, through a buffer of so many
# bytes, or a part of what is pinned: enough for many reads in flight.
_BUFFER_BYTES, _BUFFER_SHARE = 8 << 20, 64
# Of a row on its way through the buffer: its id, and its place and slot.
_ROW_ON_ITS_WAY_BYTES = 4 * 8


@dataclass(frozen=True, eq=False)
class PlanStep:
    """The part of a plan for one batch of n rows, of which c enter the cache."""

    ids: npt.NDArray[Any]  # int32 or int64 [n]: node ids, in the order of the batch's `n_id`
    # int32 [n]: the slot that each row is copied from; -1: the row is missed.
    slots: npt.NDArray[np.int32]
    # int32 [c]: rows at these positions of the batch are written to these slots afterwards.
    change_positions: npt.NDArray[np.int32]
    # int32 [c]: rows at these positions of the batch are written to these slots afterwards.
    change_slots: npt.NDArray[np.int32]


class PlannedCache:
    """C slots, each with room for one row of every table, and the nodes whose rows are in them.

    The last H slots may be for pinned rows: they are filled once, when the cache is warmed up for
    the first time, and stay whatever lease follows. Plans are made of the slots before them.
    """

    def __init__(
        self,
        tables: Mapping[str, RowSource],
        num_slots: int,
        pinned: npt.NDArray[Any] | None = None,
        num_nodes: int = 0,
    ) -> None:
        check_num_slots(num_slots)
        num_pinned = 0 if pinned is None else len(pinned)
        self._num_planned = num_slots - num_pinned
        self.pinned = (
            None if pinned is None else PinnedRows.of(pinned, num_nodes, self._num_planned)
        )
        self._holds_pinned = False
        self._tables = dict(tables)
        self._specs = {path: rows.spec for path, rows in self._tables.items()}
        self._rows = {
            path: empty((num_slots * spec.row_bytes,), np.uint8)
            for path, spec in self._specs.items()
        }
        self._nodes = np.full(num_slots, -1, np.int64)
        self._sequencer = Sequencer()

    @staticmethod
    def reserve(row_bytes: int) -> Reservation:
        """Return the memory of planned slots, where tables have `row_bytes` a node in all."""
        return Reservation(CACHED, 0, {SLOTS: row_bytes + _NODE_BYTES})

    @staticmethod
    def pinned_bytes(row_bytes: int, num_pinned: int, num_nodes: int) -> int:
        """Return the memory of pinned rows, and of whoever says which they are."""
        each = row_bytes + _NODE_BYTES + id_dtype(num_nodes - 1).itemsize
        return num_pinned * each + PinnedRows.bytes_for(num_nodes, num_pinned)

    @classmethod
    def reserve_pinned(cls, row_bytes: int, num_pinned: int, num_nodes: int) -> list[Reservation]:
        """Return the memory of pinned rows, and of filling the cache with them; none for none."""
        if not num_pinned:
            return []
        fixed = cls.pinned_bytes(row_bytes, num_pinned, num_nodes)
        buffer = _buffer_bytes(num_pinned * row_bytes, row_bytes)
        phase = "filling the cache"
        return [Reservation("pinned rows", fixed), Reservation(phase, buffer, phase=phase)]

    @property
    def tables(self) -> Mapping[str, RowSource]:
        """The tables by path."""
        return self._tables

    @property
    def num_slots(self) -> int:
        """C, pinned rows included."""
        return len(self._nodes)

    @property
    def num_planned_slots(self) -> int:
        """The number of slots whose rows change as planned: C - H."""
        return self._num_planned

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the slots and the ids of their nodes occupy."""
        index_bytes = 0 if self.pinned is None else self.pinned.num_bytes
        return index_bytes + self._nodes.nbytes + sum(rows.nbytes for rows in self._rows.values())

    @property
    def planned_nodes(self) -> npt.NDArray[np.int64]:
        """The node in each planned slot after the last batch, int64 [C - H]; -1: none. A copy."""
        return self._nodes[: self._num_planned].copy()

    @property
    def holds_pinned(self) -> bool:
        """Whether there are pinned rows, and they have been read."""
        return self._holds_pinned

    @property
    def is_free(self) -> bool:
        """Whether no lease is using the slots: none is current, or it rests."""
        return self._sequencer.is_free

    def begin(self) -> Lease:
        """Return a lease of the cache, as the last batch left it, to follow a new plan."""
        return Lease(self)

    def retire(self) -> None:
        """Free the slots' memory: no batch uses them any more, and leases read every row."""
        self._sequencer.retire()
        self._rows = {}
        self._nodes.fill(-1)
        self._holds_pinned = False

    def _check(self, step: PlanStep) -> None:
        """Refuse a plan that expects other rows in the slots than there are."""
        try:
            _core.check_cached(self._nodes, step.slots, step.ids)
        except ValueError as error:
            raise UsageError(f"the plan is not for what the cache holds: {error}") from error

    def _warm_up(self, nodes: npt.NDArray[np.int64]) -> ReadCounts:
        pinned = None if self._holds_pinned else self.pinned
        self._nodes[: self._num_planned if pinned is None else None] = -1
        counts = ReadCounts()
        for path, rows in self._tables.items():
            if pinned is None:
                counts += warm_up(rows, nodes, self._rows[path])
            else:
                counts += self._fill(path, nodes, pinned)
        self._nodes[: len(nodes)] = nodes
        if pinned is not None:
            self._nodes[self._num_planned :] = pinned.nodes
            self._holds_pinned = True
        return counts

    def _fill(self, path: str, nodes: npt.NDArray[np.int64], pinned: PinnedRows) -> ReadCounts:
        """Read the first rows of planned slots, and pinned rows, in one pass over a table."""
        table, row_bytes, counts = self._tables[path], self._specs[path].row_bytes, ReadCounts()
        num_bytes = _buffer_bytes(pinned.num_rows * row_bytes, row_bytes)
        most = max(1, num_bytes // (2 * (row_bytes + _ROW_ON_ITS_WAY_BYTES)))
        buffer = empty((2 * most * row_bytes,), np.uint8)
        for begin, end, first, last in _merged(nodes, pinned.nodes, most):
            ids = np.concatenate([nodes[begin:end], pinned.nodes[first:last]])
            slots = np.arange(len(ids), dtype=np.int32)
            slots[: end - begin] += begin
            slots[end - begin :] += pinned.first_slot + first - (end - begin)
            order = np.argsort(ids, kind="stable")
            part = buffer[: len(ids) * row_bytes]
            counts += table.read_rows(ids[order], part.reshape(len(ids), row_bytes))
            if row_bytes:
                _core.copy_to_slots(
                    part,
                    np.arange(len(ids), dtype=np.int32),
                    self._rows[path],
                    slots[order],
                    row_bytes=row_bytes,
                )
        return counts

    def _enter(self, step: PlanStep, out: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write rows of an assembled batch to their slots."""
        if step.change_slots.size == 0:
            return
        entering = step.ids[step.change_positions]
        # If this is interrupted, no slot is taken for the row that it had or was to get.
        self._nodes[step.change_slots] = -1
        for path, rows in out.items():
            if rows.nbytes:
                _core.copy_to_slots(
                    rows.reshape(-1).view(np.uint8),
                    step.change_positions,
                    self._rows[path],
                    step.change_slots,
                    row_bytes=self._specs[path].row_bytes,
                )
        self._nodes[step.change_slots] = entering


class Lease:
    """The right to use a cache's slots for the batches of one iteration, counted from 0.

    Made by `PlannedCache.begin`. Thread-safe. Each number must be gathered or fail once, in any
    order, because those after it wait for it.
    """

    def __init__(self, cache: PlannedCache) -> None:
        self._cache = cache
        # Apart from the lease: the cache knows the ticket, and must not keep itself alive.
        self._ticket = cache._sequencer.begin()

    @property
    def is_current(self) -> bool:
        """Whether it still has the cache: no later lease, not closed, and no batch failed."""
        return self._ticket.is_current

    @property
    def is_overtaken(self) -> bool:
        """Whether a later lease has taken the cache, and no batch has failed."""
        return self._ticket.is_overtaken

    @property
    def cache(self) -> PlannedCache:
        """The cache."""
        return self._cache

    @property
    def num_gathered(self) -> int:
        """Number of batches, from the first on, that are done and have entered their rows."""
        return self._ticket.num_done

    def gather(
        self, number: int, step: PlanStep, missed: Mapping[str, RowSource] | None = None
    ) -> dict[str, Rows]:
        """Return the rows of a batch as new arrays [n, *row_shape], one for each table.

        Missed rows are read at once.
        """
        try:
            return self._gather(number, step, missed)
        except BaseException as error:
            self.fail(number, error)
            raise

    def warm_up(self, number: int, nodes: npt.NDArray[np.int64]) -> ReadCounts | None:
        """Read some rows into the first slots, in the order in which they lie on disk."""
        try:
            if self._ticket.look(number) == "never":
                return None
            counts = self._cache._warm_up(nodes)
            self._ticket.done(number)
        except BaseException as error:
            self.fail(number, error)
            raise
        return counts

    def fail(self, number: int, error: BaseException) -> None:
        """Abandon a batch: those after it that wait for it, or will, fail.

        For errors that keep a batch from being gathered; `gather` calls it for its own.
        """
        self._ticket.fail(number, error)

    def rest(self, rests: bool = True) -> None:
        """Record that no more batches come for now, so that others may take the slots."""
        self._ticket.is_resting = rests

    def close(self) -> None:
        """End the lease: threads that wait for earlier batches fail. Idempotent."""
        self._ticket.close()

    def _gather(
        self, number: int, step: PlanStep, missed: Mapping[str, RowSource] | None
    ) -> dict[str, Rows]:
        cache, ticket = self._cache, self._ticket
        turn = ticket.look(number)
        if turn == "now":
            cache._check(step)
        # Without the slots, tables are asked for every row, and packed rows for theirs.
        slots = None if turn == "never" and missed is None else step.slots
        out: dict[str, npt.NDArray[Any]] = {}
        counts: dict[str, ReadCounts] = {}
        for path, table in cache._tables.items():
            spec = cache._specs[path]
            out[path] = empty((step.ids.size, *spec.shape), spec.dtype)
            cached = cache._rows[path] if turn == "now" else None
            source = table if missed is None else missed[path]
            counts[path] = source.read_into(RowRequest(step.ids, slots, cached), out[path])
        has_turn = turn == "now"
        if turn == "later":
            has_turn = ticket.wait(number)
            if has_turn:
                cache._check(step)
        if slots is not None and turn != "now":
            for path, rows in out.items():
                counts[path] += self._read_others(path, step, rows, has_turn)
        if has_turn:
            cache._enter(step, out)
            ticket.done(number)
        return {path: Rows(rows, counts[path]) for path, rows in out.items()}

    def _read_others(
        self, path: str, step: PlanStep, out: npt.NDArray[Any], has_turn: bool
    ) -> ReadCounts:
        """Fill the rows that have a slot: from it, or from the table if another lease has it."""
        if has_turn:
            # One batch at a time: those after it wait, and so do their threads. Others help for
            # the length of the call, which is milliseconds.
            return RowRequest(step.ids, step.slots, self._cache._rows[path]).copy_cached(out)
        missed = np.where(step.slots < 0, np.int32(0), np.int32(-1))
        return self._cache._tables[path].read_into(RowRequest(step.ids, missed), out)


def _buffer_bytes(pinned_bytes: int, row_bytes: int) -> int:
    """Return the bytes of the buffer through which pinned rows are read, and of what is with it."""
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
