"""Slots that follow a plan: rows come from slots or from disk (Ginex).

The plan gives the row in each slot, and the rows that enter after a batch (see
`gnnstore.caching.belady`), so no row is looked up by its number. Missed rows of several batches may
be read at once; slots are used batch by batch, by turns.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts, empty
from gnnstore.budget.ledger import CACHED, SLOTS, Reservation
from gnnstore.caching.policies import check_num_slots
from gnnstore.caching.pools import SlotPools
from gnnstore.errors import GnnstoreError, UsageError, described
from gnnstore.features.source import (
    AS_STORED,
    Decodings,
    RowRequest,
    Rows,
    RowsMemory,
    RowSource,
    TypedRows,
    ranges_of,
)
from gnnstore.features.static import Part, SlotIndex, buffer_bytes, fill_slots, warm_up
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.sampling.row_space import RowRange
from gnnstore.threads import Condition

_NODE_BYTES = 8


@dataclass(frozen=True, eq=False)
class PlanStep:
    """The part of a plan for one batch of n rows, of which c enter the cache."""

    # int32 or int64 [n]: numbers of rows in the order of the batch, type after type; in a store of
    # one node type the batch's `n_id`.
    ids: npt.NDArray[Any]
    # int32 [n]: the slot that each row is copied from; -1: the row is missed.
    slots: npt.NDArray[np.int32]
    # int32 [c]: positions in the batch of the rows that are written to slots afterwards.
    change_positions: npt.NDArray[np.int32]
    # int32 [c]: the slots of these rows.
    change_slots: npt.NDArray[np.int32]
    row_offset: int = 0  # of a type's part: the place of its first row in the batch

    def of_type(self, places: slice, nodes: npt.NDArray[Any]) -> PlanStep:
        """Return the part of a type, by its node ids."""
        changes = self.change_positions
        is_inside = (changes >= places.start) & (changes < places.stop)
        positions, slots = changes[is_inside] - np.int32(places.start), self.change_slots[is_inside]
        return PlanStep(nodes, self.slots[places], positions, slots, places.start)


@dataclass(frozen=True, eq=False)
class PinnedRows:
    """Rows that most batches need, which are always cached, in slots behind the planned ones.

    The best plan would keep them anyway, but they are most of the rows that batches need: without
    them traces and plans are less than half as long.
    """

    index: SlotIndex
    first_slot: int  # the number of slots that are planned

    @classmethod
    def from_nodes(cls, nodes: npt.NDArray[Any], num_nodes: int, first_slot: int) -> Self | None:
        """Index strictly ascending nodes of a graph of `num_nodes`; None if there are none."""
        if len(nodes) == 0:
            return None
        return cls(SlotIndex.from_rows(nodes.astype(np.int64), num_nodes), first_slot)

    @property
    def nodes(self) -> npt.NDArray[np.int64]:
        """Int64 [H]: ascending; the row of ``nodes[k]`` is in slot ``first_slot + k``."""
        return self.index.nodes

    def drop(self, ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the ids (int32 or int64) that are not pinned, in their order: a new array."""
        return _core.drop_pinned(self.index.bits, ids)

    def add(
        self,
        ids: npt.NDArray[Any],
        slots: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the plan of a batch from the plan of its unpinned ids."""
        index = self.index
        return _core.add_pinned(
            index.bits, index.ranks, ids, slots, positions, first_slot=self.first_slot
        )


class TurnLock:
    """The turns of batches 0, 1, 2, ..., one after the other.

    Each number must take its turn or fail, because later ones wait for it. After a fork the threads
    that take turns are gone, also one that may have had the lock.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._next = 0
        self._in_turn: int | None = None
        self._failure: tuple[int, str] | None = None
        self._is_cancelled = False
        self.is_closed = False  # because new turns have begun
        self._pid = os.getpid()

    @property
    def num_done(self) -> int:
        """Number of batches, from the first on, that have had their turn."""
        return self._next

    def look(self, number: int) -> bool | None:
        """Take the turn of a batch if it has come; return whether it has, None if it never will."""
        with self._changed.lock:
            if self._failure is not None and number > self._failure[0]:
                failed, error = self._failure
                raise GnnstoreError(
                    f"cannot assemble batch {number}: an earlier batch failed, {failed}, whose "
                    f"rows the cache was to receive ({error}). Start a new iteration"
                )
            if self._is_cancelled:
                raise UsageError(f"cannot assemble batch {number}: its iteration was ended")
            if self.is_closed:
                return None
            if number > self._next:
                return False
            self._in_turn = number
            return True

    def wait(self, number: int) -> bool:
        """Take the turn of a batch when it comes; return False if turns are closed."""

        def look() -> bool | None:
            has_turn = self.look(number)
            return None if has_turn is False else bool(has_turn)

        return bool(self._changed.wait_until(look))

    def done(self, number: int) -> None:
        """End the turn of a batch, and begin the next batch's."""
        with self._changed.lock:
            self._next = number + 1
            self._release(number)

    def fail(self, number: int, error: BaseException) -> None:
        """Give up a batch: those after it fail when they look, or now if they wait."""
        with self._changed.lock:
            is_first = self._failure is None or number < self._failure[0]
            if is_first and not self._is_cancelled:
                # Not the error itself: its traceback would keep the buffers of the batch.
                self._failure = (number, described(error))
            self._release(number)

    def cancel(self) -> None:
        """End all turns; batches that wait fail. Idempotent."""
        self._is_cancelled = True
        if os.getpid() == self._pid:
            self._changed.notify_all()

    def close(self) -> None:
        """Give no more turns after the batch that has one is done."""
        self.is_closed = True
        if os.getpid() == self._pid:
            self._changed.notify_all()
            self._changed.wait_until(lambda: self._in_turn is None or None)

    def _release(self, number: int) -> None:
        if self._in_turn == number:
            self._in_turn = None
        self._changed.notify_all()


class SlotCache:
    """C slots, each with room for a node's row of every table of its type, and the rows in them.

    Rows are numbered as in a row space. If all tables are of one node type, each table has an array
    of slots; otherwise all types, or the types of a pool, share slots as wide as the widest type.

    The last H slots may be for pinned rows: they are filled once, when the cache is warmed up for
    the first time, and stay from then on. Plans are made for the slots before them.

    One iteration at a time uses the slots, its batches by turns. Each batch must be gathered or
    fail once, in any order, because those after it wait for it. Thread-safe.
    """

    def __init__(
        self,
        tables: Mapping[str, TypedRows[RowSource]],
        num_slots: int,
        pinned: npt.NDArray[Any] | None = None,
        num_rows: int = 0,
        pools: SlotPools | None = None,
    ) -> None:
        check_num_slots(num_slots)
        num_pinned = 0 if pinned is None else len(pinned)
        self._num_planned = num_slots - num_pinned
        self.pinned = (
            None if pinned is None else PinnedRows.from_nodes(pinned, num_rows, self._num_planned)
        )
        self._holds_pinned = False
        self._tables = dict(tables)
        self._ranges = ranges_of(self._tables)
        self._has_types = len(self._ranges) > 1 or any(own.first for own in self._ranges)
        self._specs = {path: rows.table.spec for path, rows in self._tables.items()}
        # The slots of each type's rows.
        self._sections = dict.fromkeys(self._ranges, slice(0, num_slots))
        if pools is not None:
            sections = zip(pools.ranges, pools.sections(num_slots), strict=True)
            self._sections = {own: section for ranges, section in sections for own in ranges}
        # uint8 [C, row_bytes] each: a table's rows by slot.
        self._slots, self._slots_bytes = _make_slots(self._tables, self._sections)
        self._nodes = np.full(num_slots, -1, np.int64)
        self._turns = TurnLock()
        self._beginning = threading.Lock()

    @staticmethod
    def reserve(slot_bytes: int) -> Reservation:
        """Return the memory of planned slots, by the bytes of a node's rows in all tables.

        With several types these are the bytes of the widest type, or the mean over pools.
        """
        return Reservation(CACHED, 0, {SLOTS: slot_bytes + _NODE_BYTES})

    @staticmethod
    def pinned_bytes(slot_bytes: int, num_pinned: int, num_rows: int) -> int:
        """Return the memory of pinned rows, and of the list of their nodes."""
        each = slot_bytes + _NODE_BYTES + id_dtype(num_rows - 1).itemsize
        return num_pinned * each + (SlotIndex.bytes_for(num_rows, num_pinned) if num_pinned else 0)

    @classmethod
    def reserve_pinned(cls, slot_bytes: int, num_pinned: int, num_rows: int) -> list[Reservation]:
        """Return the memory of pinned rows, if any, and of filling the cache with them."""
        if not num_pinned:
            return []
        fixed = cls.pinned_bytes(slot_bytes, num_pinned, num_rows)
        buffer = buffer_bytes(num_pinned * slot_bytes, slot_bytes)
        phase = "filling the cache"
        return [Reservation("pinned rows", fixed), Reservation(phase, buffer, phase=phase)]

    @property
    def tables(self) -> Mapping[str, TypedRows[RowSource]]:
        """The tables by path."""
        return self._tables

    @property
    def num_slots(self) -> int:
        """C, pinned rows included."""
        return len(self._nodes)

    @property
    def num_planned_slots(self) -> int:
        """The number of slots with rows that change as planned: C - H."""
        return self._num_planned

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the slots and the numbers of their rows occupy."""
        index_bytes = 0 if self.pinned is None else self.pinned.index.num_bytes
        return index_bytes + self._nodes.nbytes + self._slots_bytes

    @property
    def planned_nodes(self) -> npt.NDArray[np.int64]:
        """The row in each planned slot after the last batch, int64 [C - H]; -1: none. A copy."""
        return self._nodes[: self._num_planned].copy()

    @property
    def holds_pinned(self) -> bool:
        """Whether there are pinned rows, and they have been read."""
        return self._holds_pinned

    def begin(self) -> TurnLock:
        """Return new turns, to follow plans that begin with the rows that the slots hold now.

        Batches of former turns read all of their rows from now on.
        """
        with self._beginning:
            self._turns.close()
            self._turns = TurnLock()
            return self._turns

    def gather(  # noqa: PLR0917
        self,
        turns: TurnLock,
        number: int,
        step: PlanStep,
        missed: Mapping[str, RowSource] | None = None,
        memory: RowsMemory = empty,
        decodings: Decodings = AS_STORED,
    ) -> dict[str, Rows]:
        """Return the rows of a batch as new arrays [n, *row_shape], one for each table.

        With several types, n counts the batch's nodes of the table's type. Missed rows are read
        before its turn, from `missed` or from the table. Nothing is returned if turns are closed.
        Slots keep rows as stored, also of tables whose rows are decoded.
        """
        try:
            if (has_turn := turns.look(number)) is None:
                return {}
            if has_turn:
                self._check(step)
            parts = self._steps(step)
            out: dict[str, npt.NDArray[Any]] = {}
            counts: dict[str, ReadCounts] = {}
            stored: dict[str, npt.NDArray[Any]] = {}  # missed rows that are still to be decoded
            for path, (table, own) in self._tables.items():
                spec, part, decoding = self._specs[path], parts[own], decodings.get(path)
                cached = self._slots[path] if has_turn else None
                source = table if missed is None else missed[path]
                request = RowRequest(part.ids, part.slots, cached, part.row_offset)
                if decoding is None:
                    out[path] = spec.empty(part.ids.size, memory)
                    counts[path] = source.read_into(request, out[path])
                else:
                    out[path] = decoding.empty(part.ids.size, memory)
                    stored[path], counts[path] = source.read_missed(request)
            if not has_turn:
                if not turns.wait(number):
                    return {}
                self._check(step)
            for path, rows in out.items():
                # Later batches wait for this one, and so do their threads. Other threads help with
                # the call, which takes milliseconds.
                part = parts[self._tables[path].range]
                request = RowRequest(part.ids, part.slots, self._slots[path])
                if path in stored:
                    counts[path] += decodings[path].join_into(stored[path], request, rows)
                elif not has_turn:
                    counts[path] += request.copy_cached(rows)
            self._enter(step, parts, out, stored)
            turns.done(number)
        except BaseException as error:
            turns.fail(number, error)
            raise
        return {path: Rows(rows, counts[path]) for path, rows in out.items()}

    def warm_up(self, turns: TurnLock, number: int, nodes: npt.NDArray[np.int64]) -> ReadCounts:
        """Read some rows into the first slots, and pinned rows, in the order of the tables.

        With pools, the nodes of each pool are filled up with -1.
        """
        try:
            if not turns.wait(number):
                return ReadCounts()
            counts = self._warm_up(nodes)
            turns.done(number)
        except BaseException as error:
            turns.fail(number, error)
            raise
        return counts

    def close(self) -> None:
        """Free the slots' memory: no batch uses them any more."""
        self._turns.close()
        self._slots, self._slots_bytes = {}, 0
        self._nodes.fill(-1)
        self._holds_pinned = False

    def _check(self, step: PlanStep) -> None:
        """Refuse a plan that expects other rows in the slots."""
        try:
            _core.check_cached(self._nodes, step.slots, step.ids)
        except ValueError as error:
            raise UsageError(f"the plan is not for the rows in the cache: {error}") from error

    def _parts(self, rows: npt.NDArray[Any]) -> dict[RowRange, tuple[slice, npt.NDArray[Any]]]:
        """Return the places of each type among rows, and its node ids there."""
        if not self._has_types:
            return dict.fromkeys(self._ranges, (slice(0, len(rows)), rows))
        parts = {own: own.part(rows) for own in self._ranges}
        if parts and sum(len(nodes) for _, nodes in parts.values()) != len(rows):
            raise IndexError("rows do not ascend by type, or are of no table")
        return parts

    def _filled(self, nodes: npt.NDArray[np.int64]) -> dict[RowRange, Part]:
        """Return the slots of each type among those to fill, and its node ids there."""
        found = {}
        for own, section in self._sections.items():
            held = nodes[section]
            places, ids = own.part(held[: np.count_nonzero(held >= 0)])
            found[own] = slice(section.start + places.start, section.start + places.stop), ids
        return found

    def _steps(self, step: PlanStep) -> dict[RowRange, PlanStep]:
        """Return the part of each type of a batch."""
        if not self._has_types:
            return dict.fromkeys(self._ranges, step)
        return {own: step.of_type(*part) for own, part in self._parts(step.ids).items()}

    def _warm_up(self, nodes: npt.NDArray[np.int64]) -> ReadCounts:
        pinned = None if self._holds_pinned else self.pinned
        self._nodes[: self._num_planned if pinned is None else None] = -1
        counts, planned = ReadCounts(), self._filled(nodes)
        kept = self._parts(nodes[:0] if pinned is None else pinned.nodes)
        for path, (table, own) in self._tables.items():
            slots, (places, ids) = self._slots[path], planned[own]
            if pinned is None and slots.flags.c_contiguous:
                counts += warm_up(table, ids, slots[places])
            else:
                counts += fill_slots(table, slots, self._num_planned, planned[own], kept[own])
        self._nodes[: len(nodes)] = nodes
        if pinned is not None:
            self._nodes[self._num_planned :] = pinned.nodes
            self._holds_pinned = True
        return counts

    def _enter(
        self,
        step: PlanStep,
        parts: Mapping[RowRange, PlanStep],
        out: Mapping[str, npt.NDArray[Any]],
        stored: Mapping[str, npt.NDArray[Any]],
    ) -> None:
        """Write rows of an assembled batch to their slots, in the stored type."""
        if step.change_slots.size == 0:
            return
        entering = step.ids[step.change_positions]
        # If this is interrupted, a slot may hold neither its old row nor its new one.
        self._nodes[step.change_slots] = -1
        for path, found in out.items():
            rows = found
            if rows.nbytes:
                part, slots = parts[self._tables[path].range], self._slots[path]
                places = part.change_positions
                if path in stored:
                    rows, places = _entering(part, stored[path], slots)
                content = rows.reshape(-1).view(np.uint8)
                _core.copy_to_slots(content, places, slots, part.change_slots)
        self._nodes[step.change_slots] = entering


def _entering(
    step: PlanStep, missed: npt.NDArray[Any], slots: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32]]:
    """Return rows as stored, and the places among them of those that enter slots."""
    positions = step.change_positions
    held = step.slots[positions]
    places = np.cumsum(step.slots < 0, dtype=np.int32)[positions] - np.int32(1)
    if (held < 0).all():
        return missed, places
    # A policy may have rows in slots enter others, which may be each other's.
    rows = slots[held]
    as_bytes = missed.reshape(-1).view(np.uint8).reshape(-1, slots.shape[1])
    rows[held < 0] = as_bytes[places[held < 0]]
    return rows, np.arange(len(rows), dtype=np.int32)


def _make_slots(
    tables: Mapping[str, TypedRows[RowSource]], sections: Mapping[RowRange, slice]
) -> tuple[dict[str, npt.NDArray[np.uint8]], int]:
    """Return each table's rows by slot, and the bytes of all slots."""
    row_bytes, slots = Counter[RowRange](), dict[str, npt.NDArray[np.uint8]]()
    for rows in tables.values():
        row_bytes[rows.range] += rows.table.row_bytes
    if len(sections) == 1:  # contiguous, so that rows are read straight into slots
        (section,) = sections.values()
        for path, rows in tables.items():
            slots[path] = empty((section.stop, rows.table.row_bytes), np.uint8)
        return slots, sum(own.nbytes for own in slots.values())
    bounds = {own: (section.start, section.stop) for own, section in sections.items()}
    widths = Counter[tuple[int, int]]()
    for own, pool in bounds.items():
        widths[pool] = max(widths[pool], row_bytes[own])
    num_bytes = sum((end - first) * width for (first, end), width in widths.items())
    buffer, begin = empty((num_bytes,), np.uint8), 0
    shared = dict[tuple[int, int], npt.NDArray[np.uint8]]()
    for first, end in sorted(widths):
        # Slots before the first are wider: counted from there, no row begins before the buffer.
        width = widths[first, end]
        origin, begin = begin - first * width, begin + (end - first) * width
        shared[first, end] = buffer[origin:begin].reshape(end, width)
    ends = Counter[RowRange]()
    for path, rows in tables.items():
        place = ends[rows.range]
        ends[rows.range] += rows.table.row_bytes
        slots[path] = shared[bounds[rows.range]][:, place : ends[rows.range]]
    return slots, buffer.nbytes
