"""The partitions in memory, state after state; the next state's are read ahead.

While batches of a state are prepared, a thread reads the partitions that enter and builds the next
graph. It begins with the state after that once all batches of the one before have their rows: so
two graphs are in memory at a time, and the partitions of two states. While the last state of an
epoch is trained, the thread reads those partitions of the next epoch's first state that fit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts, empty
from gnnstore.disk.engines import Engine
from gnnstore.errors import CorruptStoreError, UsageError
from gnnstore.features.file_rows import FileRows
from gnnstore.features.memory_rows import MemoryRows
from gnnstore.features.source import Rows, RowsMemory, RowSpec
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.partitions import PartitionsReader
from gnnstore.partitions.policy import EdgesRead
from gnnstore.sampling.resident import Buckets, Members, ResidentGraph
from gnnstore.threads import CancelledError, Condition, prefetch

Int64Array = npt.NDArray[np.int64]

# Waits for a condition, without one not at all; raises if the iteration has ended.
Wait = Callable[..., None]

# Bytes of a piece; reading may be stopped between two.
_PIECE_BYTES = 2**26
_MOST_BUILDING = 8


class PartitionFiles:
    """Reads partitions in order, and compares what is read with its checksums.

    Its methods take a callable `proceed`, which is called between two pieces and raises to end
    reading.
    """

    def __init__(self, unit: PartitionsReader, engine: Engine) -> None:
        self.unit = unit
        self.engine = engine
        self.counts = ReadCounts()
        self._open: dict[str, FileRows] = {}

    def read_rows(
        self,
        spec: AttributeSpec,
        partition: int,
        out: npt.NDArray[Any],
        proceed: Callable[[], None],
    ) -> None:
        """Fill `out` with the rows of a partition."""
        rows, first = self._rows(spec), self.unit.rows(partition).start
        step = max(1, _PIECE_BYTES // max(1, rows.row_bytes))
        for begin in range(0, len(out), step):
            proceed()
            self.counts += rows.read_range(first + begin, out[begin : begin + step])
        self.unit.check_rows(partition, spec, out)

    def read_edges(
        self,
        spec: AttributeSpec,
        buckets: Int64Array,
        places: Int64Array,
        out: npt.NDArray[Any],
        proceed: Callable[[], None],
    ) -> None:
        """Read buckets of edges to their places in `out`, about a piece at a time."""
        bucket_ptr = self.unit.bucket_ptr
        firsts, ends, to = _joined(bucket_ptr[buckets], bucket_ptr[buckets + 1], places)
        rows = self._rows(spec)
        piece = np.cumsum(ends - firsts) * rows.row_bytes // _PIECE_BYTES
        cuts = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(firsts)]
        for begin, end in pairwise(cuts):
            proceed()
            cut = slice(begin, end)
            self.counts += rows.read_ranges(firsts[cut], ends[cut], to[cut], out)
        self.unit.check_edges(buckets, spec, places, out)

    def _rows(self, spec: AttributeSpec) -> FileRows:
        if spec.path not in self._open:
            self._open[spec.path] = FileRows.open(self.unit.paged(spec), self.engine)
        return self._open[spec.path]


class PartitionSlots:
    """Memory for the rows of some partitions: all node attributes, and the store's ids."""

    def __init__(self, files: PartitionFiles, num_slots: int) -> None:
        self.files = files
        self.num_slots = num_slots
        self.slot_of: dict[int, int] = {}  # slot of each partition that has its rows in memory
        unit = files.unit
        rows = num_slots * unit.rows_per_partition
        self._specs = {spec.path: spec for spec in (unit.order_spec, *unit.nodes.values())}
        self._tables = {
            path: MemoryRows(RowSpec.of(spec).empty(rows)) for path, spec in self._specs.items()
        }

    @staticmethod
    def row_bytes_of(unit: PartitionsReader) -> int:
        """Return the memory of a node in a slot: its id and its rows."""
        return sum(spec.row_bytes for spec in (unit.order_spec, *unit.nodes.values()))

    def read(self, partition: int, slot: int, proceed: Callable[[], None]) -> None:
        """Read the rows of a partition into a slot, which is overwritten."""
        self.slot_of = {known: its for known, its in self.slot_of.items() if its != slot}
        unit = self.files.unit
        new_ids, begin = unit.rows(partition), slot * unit.rows_per_partition
        for path, spec in self._specs.items():
            out = self._tables[path].table[begin : begin + len(new_ids)]
            self.files.read_rows(spec, partition, out, proceed)
            is_order = path == unit.order_spec.path
            if is_order and not 0 <= out.min() <= out.max() < unit.num_nodes:
                raise CorruptStoreError(
                    f"{unit.path / path}: partition {partition} has nodes outside [0, "
                    f"{unit.num_nodes}). It is damaged: run 'gnnstore verify', or partition the "
                    "store again",
                    path=unit.path / path,
                )
        self.slot_of[partition] = slot

    def free(self, kept: set[int]) -> int | None:
        """Return a slot that has none of the partitions to be kept, if there is one."""
        taken = {slot for partition, slot in self.slot_of.items() if partition in kept}
        return next((slot for slot in range(self.num_slots) if slot not in taken), None)

    def first_rows(self, partitions: Int64Array) -> Int64Array:
        """Return the row at which the slot of each partition begins [c]."""
        slots = [self.slot_of[partition] for partition in partitions.tolist()]
        return np.array(slots, np.int64) * self.files.unit.rows_per_partition

    def store_ids(self, rows: Int64Array) -> npt.NDArray[Any]:
        """Return the store's ids of the nodes in some rows."""
        return self._tables[self.files.unit.order_spec.path].gather(rows).values

    def gather(self, rows: Int64Array, memory: RowsMemory) -> dict[str, Rows]:
        """Return the attributes of the nodes in some rows, by name."""
        tables, nodes = self._tables, self.files.unit.nodes
        return {name: tables[spec.path].gather(rows, memory) for name, spec in nodes.items()}


def _joined(
    firsts: Int64Array, ends: Int64Array, places: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return ranges of rows and their places, without empty ones, and adjacent ones joined."""
    kept = ends > firsts
    firsts, ends, places = firsts[kept], ends[kept], places[kept]
    follows = (firsts[1:] == ends[:-1]) & (np.diff(places) == np.diff(firsts))
    begins = np.flatnonzero(np.concatenate([[True], ~follows])[: len(firsts)])
    lasts = np.append(begins[1:], len(firsts))[: len(begins)] - 1
    return firsts[begins], ends[lasts], places[begins]


def building_threads() -> int:
    """Return the number of threads that build the graph of a state."""
    return min(_MOST_BUILDING, len(os.sched_getaffinity(0)))


@dataclass
class BufferTotals:
    """Counts of the reads so far."""

    partitions: int = 0  # partitions read
    states: int = 0  # states that have been in memory
    seconds_waiting: float = 0.0  # time that the consumer waited for a state


class StateToRead(NamedTuple):
    """A state to bring into memory."""

    number: int  # number in its epoch
    partitions: Int64Array  # int64 [c]: ascending
    # bool [c * c] or None: whether the edges of each pair of partitions are trained in it, by
    # target and then source.
    trained: npt.NDArray[np.bool_] | None = None


class ResidentState:
    """A state whose partitions are in memory, as long as batches need them."""

    def __init__(
        self,
        number: int,
        members: Members,
        edges: ResidentGraph | Buckets | None,
        slots: PartitionSlots,
        changed: Condition,
    ) -> None:
        self.number, self.members = number, members
        # None if no edge is sampled or looked up.
        self.graph = edges if isinstance(edges, ResidentGraph) else None
        # The trained edges, if no others were read.
        self.buckets = edges if isinstance(edges, Buckets) else None
        self.prepared: Any = None  # the result of `prepare` for the state
        self._slots, self._changed = slots, changed
        self._first_rows = slots.first_rows(members.partitions)
        self._num_batches = self._num_reading = 0
        self._is_over = self._is_taken = False

    def begin_batch(self) -> None:
        """Keep the state in memory until the batch has its rows."""
        with self._changed.lock:
            self._num_batches += 1

    def end_batch(self) -> None:
        """End a batch's use of the state."""
        with self._changed.lock:
            self._num_batches -= 1
            self._changed.notify_all()

    def is_over(self) -> bool:
        """Whether the state is no longer needed."""
        return self._is_over and not self._num_batches

    def close(self) -> None:
        """Note that no more batches will begin."""
        with self._changed.lock:
            self._is_over = True
            self._changed.notify_all()

    def take_away(self) -> None:
        """Take the slots from batches without rows; wait for those that are reading rows."""
        self._is_taken = True
        self._changed.wait_until(lambda: None if self._num_reading else True)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._changed.lock:
            if self._is_taken:
                raise _superseded()
            self._num_reading += 1
        try:
            yield
        finally:
            with self._changed.lock:
                self._num_reading -= 1
                self._changed.notify_all()

    def store_ids(self, local: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the store's ids of nodes [n]."""
        with self._reading():
            return self._slots.store_ids(self._rows_of(local))

    def gather(self, local: npt.NDArray[Any], memory: RowsMemory = empty) -> dict[str, Rows]:
        """Return the attributes of nodes [n], by name."""
        with self._reading():
            return self._slots.gather(self._rows_of(local), memory)

    def _rows_of(self, local: npt.NDArray[Any]) -> Int64Array:
        rank, row = np.divmod(local.astype(np.int64, copy=False), self.members.rows)
        return self._first_rows[rank] + row


class StateBuffer:
    """The memory for the partitions of a loader, which its iterations take in turn."""

    def __init__(
        self, files: PartitionFiles, num_slots: int, *, edges: EdgesRead, num_threads: int
    ) -> None:
        self.files, self.totals = files, BufferTotals()
        self.changed = Condition()
        self._num_slots, self._edges, self._num_threads = num_slots, edges, num_threads
        self._slots: PartitionSlots | None = None
        self._graph: ResidentGraph | None = None
        self._run: StatesAhead | None = None

    @contextmanager
    def run(
        self,
        states: Sequence[StateToRead],
        *,
        in_thread: bool,
        following: Callable[[], Int64Array] | None = None,
        prepare: Callable[[ResidentState], Any] = lambda _: None,
    ) -> Iterator[StatesAhead]:
        """Bring states into memory one after the other; takes the memory from an older run."""
        if self._run is not None:
            self._run.cancel()
        self._run = ahead = StatesAhead(self, states, following, prepare, in_thread=in_thread)
        try:
            yield ahead
        finally:
            ahead.close()
            if self._run is ahead:
                self._run = None

    def load(self, wanted: StateToRead, before: ResidentState | None, wait: Wait) -> ResidentState:
        """Read the rows and edges that are missing, and build the graph."""
        unit, partitions = self.files.unit, wanted.partitions
        members = Members.from_partitions(partitions, unit.rows_per_partition, unit.num_nodes)
        slots = self.read_rows(partitions, before, wait, is_needed=True)
        edges: ResidentGraph | Buckets | None = None
        if self._edges == "graph":
            edges = self._graph = self._build(members, wait)
        elif self._edges == "trained":
            edges = self._read_trained(members, wanted.trained, wait)
        self.totals.states += 1
        return ResidentState(wanted.number, members, edges, slots, self.changed)

    def read_rows(
        self,
        partitions: Int64Array,
        before: ResidentState | None,
        wait: Wait,
        *,
        is_needed: bool,
    ) -> PartitionSlots:
        """Read the rows of partitions that are not there; unless needed, only those that fit."""
        slots = self._slots
        if slots is None:
            slots = self._slots = PartitionSlots(self.files, self._num_slots)
        kept = {*partitions.tolist()}
        used = set() if before is None else {*before.members.partitions.tolist()}
        for partition in partitions.tolist():
            if partition in slots.slot_of:
                continue
            free = slots.free(kept | used)
            if free is None and not is_needed:
                break
            if free is None and before is not None:
                wait(before.is_over)
                used = set()
                free = slots.free(kept)
            assert free is not None  # noqa: S101 - there are as many slots as a state has
            slots.read(partition, free, wait)
            self.totals.partitions += 1
        return slots

    def _build(self, members: Members, wait: Wait) -> ResidentGraph:
        before, unit = self._graph, self.files.unit
        if before is not None and np.array_equal(before.members.partitions, members.partitions):
            return before
        num_partitions, bucket_ptr = unit.num_partitions, unit.bucket_ptr
        starts = members.bucket_starts(bucket_ptr, num_partitions)
        entries = members.bucket_entries(num_partitions)
        buckets = Buckets.empty(starts, np.dtype(unit.position_spec.dtype))
        new = np.ones(len(entries), bool)
        if before is not None:
            before.pass_on(members, buckets, num_threads=self._num_threads)
            stays = np.isin(members.partitions, before.members.partitions)
            new = ~(stays[:, None] & stays).ravel()
        self._read_buckets(entries, new, buckets, wait)
        return ResidentGraph.build(
            members,
            buckets,
            num_edges=unit.num_edges,
            num_threads=self._num_threads,
            source=str(unit.path),
        )

    def _read_trained(
        self, members: Members, trained: npt.NDArray[np.bool_] | None, wait: Wait
    ) -> Buckets:
        unit = self.files.unit
        starts = members.bucket_starts(unit.bucket_ptr, unit.num_partitions, trained)
        buckets = Buckets.empty(starts, np.dtype(unit.position_spec.dtype))
        entries = members.bucket_entries(unit.num_partitions)
        new = np.ones(len(entries), bool) if trained is None else trained
        self._read_buckets(entries, new, buckets, wait)
        for what, values, end in (
            ("source", buckets.source, members.rows),
            ("target", buckets.target, members.rows),
            ("position", buckets.position, unit.num_edges),
        ):
            if (most := int(values.view(f"u{values.itemsize}").max(initial=0))) >= max(end, 1):
                raise CorruptStoreError(
                    f"{unit.path}: an edge between the partitions {members.partitions.tolist()} "
                    f"has the {what} {most} of {end}, out of range; run 'gnnstore verify', or "
                    "partition the store again",
                    path=unit.path,
                )
        return buckets

    def _read_buckets(
        self,
        entries: Int64Array,
        wanted: npt.NDArray[np.bool_],
        buckets: Buckets,
        wait: Wait,
    ) -> None:
        """Read some of the buckets to their places."""
        unit, places = self.files.unit, buckets.starts[:-1][wanted]
        for spec, out in (
            (unit.source_spec, buckets.source),
            (unit.target_spec, buckets.target),
            (unit.position_spec, buckets.position),
        ):
            self.files.read_edges(spec, entries[wanted], places, out, wait)


class StatesAhead:
    """The states of an iteration; the next one is read while one is in use."""

    def __init__(
        self,
        buffer: StateBuffer,
        states: Sequence[StateToRead],
        following: Callable[[], Int64Array] | None,
        prepare: Callable[[ResidentState], Any],
        *,
        in_thread: bool,
    ) -> None:
        self._buffer, self._states, self._changed = buffer, states, buffer.changed
        self._following, self._prepare = following, prepare
        self._is_stopped = self._is_cancelled = False
        self._num_loaded = self._num_taken = 0
        self._has_failed = False
        self._in_use: list[ResidentState] = []
        loaded = self._loaded()
        self._source = (
            prefetch(
                loaded,
                describe="while reading the partitions of state {} of this run".format,
                stop=self._stop,
            )
            if in_thread
            else loaded
        )

    def next(self) -> ResidentState:
        """Return the next state, once it is in memory. For the consumer's thread."""
        if self._is_cancelled:
            raise _superseded()
        start = time.perf_counter()
        state: ResidentState = next(self._source)
        self._buffer.totals.seconds_waiting += time.perf_counter() - start
        self._num_taken += 1
        return state

    @property
    def is_waited_for(self) -> bool:
        """Whether the next state is still being read."""
        return self._num_taken == self._num_loaded and not self._has_failed

    def cancel(self) -> None:
        """End the run for a newer one, even if its batches need rows."""
        self._is_cancelled = True
        self.close()
        for state in self._in_use:
            state.take_away()

    def close(self) -> None:
        """Stop reading, and wait for the thread."""
        self._stop()
        self._source.close()

    def _stop(self) -> None:
        with self._changed.lock:
            self._is_stopped = True
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool] = lambda: True) -> None:
        def look() -> bool | None:
            if self._is_stopped:
                raise CancelledError("the iteration ended while partitions were read")
            return True if condition() else None

        self._changed.wait_until(look)

    def _loaded(self) -> Generator[ResidentState, None, None]:
        before: ResidentState | None = None
        try:
            for wanted in self._states:
                self._wait_for_earlier()
                before = self._buffer.load(wanted, before, self._wait)
                before.prepared = self._prepare(before)
                self._in_use.append(before)
                self._num_loaded += 1
                yield before
            if before is not None and self._following is not None:
                self._wait_for_earlier()
                self._buffer.read_rows(self._following(), before, self._wait, is_needed=False)
        except BaseException:
            self._has_failed = True
            raise

    def _wait_for_earlier(self) -> None:
        """Wait until no state but the latest is in use."""
        while len(self._in_use) > 1:
            self._wait(self._in_use[0].is_over)
            self._in_use.pop(0)


def _superseded() -> UsageError:
    return UsageError(
        "another iteration of this loader has begun, and has the partitions in memory now; finish "
        "one before the next, or make a second loader"
    )
