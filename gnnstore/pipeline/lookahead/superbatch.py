"""A superbatch: batches that are sampled, planned and packed together, until each has its rows.

Samples, trace and plan lie in memory or in files, and are freed batch by batch.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, cast
from weakref import WeakSet, ref

import numpy.typing as npt

from gnnstore._core import release_memory
from gnnstore.budget.ledger import PLANNED, SLOTS, Ledger, Reservation
from gnnstore.caching.belady import BeladyPlanner
from gnnstore.caching.plan import CachePlan, PlanLocation, Trace, TraceBuilder
from gnnstore.caching.policies import Planner
from gnnstore.caching.pools import SlotPools
from gnnstore.disk.spool import FileSpool, MemorySpool, RunDirectory, Spool
from gnnstore.features.chunks import PackedSuperbatch
from gnnstore.features.file_rows import FileRows
from gnnstore.features.held import HeldRows, Nodes, Split
from gnnstore.features.pack import pack, packed_bytes
from gnnstore.features.planned import PinnedRows, PlanStep, SlotCache, TurnLock
from gnnstore.features.source import Decodings, Rows, RowsMemory, TypedRows
from gnnstore.pipeline.batch import Batch, Recorder
from gnnstore.pipeline.lookahead.edge_rows import SuperbatchEdges
from gnnstore.sampling.compact import CompactSample, Types
from gnnstore.sampling.neighbor import Subgraph
from gnnstore.sampling.row_space import RowSpace
from gnnstore.threads import CancelledError, Flag
from gnnstore.units import format_count, format_size

# One part in so many of the memory for planning, which counts take before it begins.
_COUNTS_SHARE = 4


@dataclass(frozen=True)
class SuperbatchSize:
    """The size of the superbatches of one loader, and the memory that they take."""

    num_batches: int
    num_slots: int  # C, the rows that are cached, pinned ones included
    in_memory: bool  # whether sampled subgraphs stay in memory until they are used; else on disk
    # All memory: rows, traces, plans, subgraphs, and sampling them.
    reservations: tuple[Reservation, ...] = ()
    packing_bytes: int = 0  # the part for packing a superbatch
    # The part for a planner's table, if traces and plans are on disk; 0 where they are in memory.
    table_bytes: int = 0
    bulk_bytes: int = 0  # the part for sampling batches together, where in-neighbours are on disk
    # Threads that sample ahead, at most: there is memory for so many.
    sampling_threads: int | None = None
    # Whether disk has room for two superbatches, so that one can be made beside another.
    overlaps: bool = True
    # Batches that begin an iteration, unless its first superbatch is made beforehand: they read all
    # of their rows while it is made.
    num_unplanned: int = 0
    num_pinned: int = 0  # H, the rows that are cached under any plan
    # int32 or int64 [H]: the nodes of these rows, ascending; None in a prediction, or without such
    # rows.
    pinned: npt.NDArray[Any] | None = field(default=None, repr=False, compare=False)
    pools: SlotPools | None = None  # of slots of several widths

    def with_pinned(self, nodes: npt.NDArray[Any]) -> Self:
        """Return the size with these rows pinned; if they are fewer, there are fewer slots."""
        num_slots = self.num_planned_slots + len(nodes)
        pinned = nodes if len(nodes) else None
        return replace(self, num_slots=num_slots, num_pinned=len(nodes), pinned=pinned)

    @property
    def num_planned_slots(self) -> int:
        """The number of slots that a plan decides on: C - H."""
        return self.num_slots - self.num_pinned

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that reservations grow with."""
        return {PLANNED: self.num_batches, SLOTS: self.num_planned_slots}

    @property
    def num_bytes(self) -> int:
        """All memory of the superbatches."""
        return Ledger(0, self.reservations).peak(self.sizes)

    @property
    def slot_bytes(self) -> int:
        """Memory for each planned slot, and for planning it."""
        return Ledger(0, self.reservations).bytes_each(SLOTS)

    @property
    def plans_in_memory(self) -> bool:
        """Whether traces and plans are in memory; else in files of the run."""
        return self.table_bytes == 0

    @property
    def counts_bytes(self) -> int:
        """Memory for counts of nodes before the first plan, where later rows are."""
        return self.num_bytes // _COUNTS_SHARE

    def describe(self, policy: str) -> str:
        """Return a phrase for the loader's reason."""
        where = "in memory" if self.in_memory else "on disk"
        plans = (
            "" if self.plans_in_memory else ", plans too" if not self.in_memory else ", plans not"
        )
        pinned = f" ({self.num_pinned} of them pinned)" if self.num_pinned else ""
        found = (
            f"{format_count(self.num_slots, 'row')} cached as {policy!r} says{pinned}, "
            f"{format_count(self.num_batches, 'batch')} planned at a time and kept {where}{plans}, "
            f"{format_size(self.num_bytes)} in all"
        )
        if not self.num_unplanned:
            return found
        first = "batch reads" if self.num_unplanned == 1 else f"{self.num_unplanned} batches read"
        return f"{found}; the first {first} all rows from disk while the others are planned"


_POLL_SECONDS = 0.05


C = TypeVar("C")


class KeptSamples:
    """The samples of a superbatch, shortened. Safe to use from many threads at once."""

    def __init__(self, types: Types, spool: Spool, ids: FileSpool | None) -> None:
        self.spool = spool  # has all but node ids that the trace has
        self._types = types
        self._ids = ids  # the trace, if it has their node ids

    @property
    def has_ids(self) -> bool:
        """Whether node ids are kept here, and not with the trace."""
        return self._ids is None

    def append(self, i: int, sample: CompactSample) -> None:
        """Keep the sample of batch i, which has none yet."""
        self.spool.append(i, sample.shortened(with_ids=self.has_ids))

    def read(self, i: int) -> CompactSample:
        """Return the sample of batch i."""
        ids = () if self._ids is None else self._ids.read(i)
        return CompactSample.from_shortened(self.spool.read(i), ids, self._types)


@dataclass(eq=False)
class Superbatch:
    """S batches that are sampled; and planned and packed, once they are."""

    first: int  # number of the first in its iteration
    batches: dict[int, Batch]  # by place; a batch that is handed out leaves
    samples: KeptSamples
    trace: Trace
    space: RowSpace
    error: Exception | None  # the failure of the batch after these
    pinned: PinnedRows | None = None  # the rows that were left out of the trace
    held: HeldRows | None = None  # and before them the rows that a device has
    # Places of the batches among those that were sampled; None: the same.
    sampled: Sequence[int] | None = None
    # How the batches are planned; None: they read all of their rows. Freed with the last batch:
    # memory is counted for the plan that is followed and the one that is made.
    plan: CachePlan | None = None
    slots: SlotCache | None = None
    turns: TurnLock | None = None
    first_turn: int = 0  # the turn of the first batch
    packed: PackedSuperbatch | None = None  # rows that the plan misses; None: in the tables
    # Rows of edges that were read ahead; None: they are in their tables.
    edge_rows: SuperbatchEdges | None = None
    seconds_planning: float = 0.0
    bytes_spilled: int = 0
    bytes_packing: int = 0  # read of tables to pack rows, and for rows of edges
    # Set once all of its batches have their rows, or failed.
    read: Flag = field(default_factory=Flag)

    def __post_init__(self) -> None:
        self._num_batches = self._num_waiting = self._num_unread = len(self.batches)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._num_batches

    @property
    def num_bytes(self) -> int:
        """Memory that samples, trace and plan take."""
        plan = 0 if self.plan is None else self.plan.num_bytes
        return self.samples.spool.num_bytes + self.trace.num_bytes + plan

    @property
    def planned(self) -> CachePlan:
        """The plan, of a superbatch that has one."""
        assert self.plan is not None  # noqa: S101 - for the type checker
        return self.plan

    @property
    def id_bytes(self) -> int:
        """Bytes of a row number in the trace: 4 or 8."""
        return self.trace.ids.itemsize

    def recall(
        self, i: int, before: Callable[[], Nodes | None] = lambda: None
    ) -> tuple[CompactSample, PlanStep | None, Mapping[str, Split] | None]:
        """Return and free batch i: its sample, its step of the plan, and where its rows come from.

        `before` returns the nodes of the rows that a device keeps of the batch before.
        """
        place = i if self.sampled is None else self.sampled[i]
        sample = self.samples.read(place)
        # As when it was sampled, and not by what a device has by now.
        split = None if self.held is None else self.held.split(sample.nodes, before())
        step = None
        if self.plan is not None:
            split = split or {}
            step = self._step(self.plan, i, sample, split)
        self.samples.spool.drop(place)
        with self._lock:
            self._num_waiting -= 1
            is_last = self._num_waiting == 0
        if is_last:
            self.close()
        return sample, step, split

    def _step(
        self, plan: CachePlan, i: int, sample: CompactSample, split: Mapping[str, Split]
    ) -> PlanStep:
        missed = {name: sample.nodes[name][own.missed] for name, own in split.items()}
        rows = self.space.rows({**sample.nodes, **missed})
        slots, (positions, entering) = plan.batch_slots(i), plan.batch_changes(i)
        if self.pinned is not None:
            slots, positions = self.pinned.add(rows, slots, positions)
        return PlanStep(rows, slots, positions, entering)

    def edge_rows_of(self, i: int, sample: Subgraph) -> dict[str, Rows]:
        """Return the rows of the edges of batch i, by table, if they were read ahead."""
        place = i if self.sampled is None else self.sampled[i]
        return {} if self.edge_rows is None else self.edge_rows.rows(place, sample)

    def gather(
        self, i: int, step: PlanStep, memory: RowsMemory, decodings: Decodings
    ) -> dict[str, Rows]:
        """Return the rows of batch i, by table."""
        if self.slots is None or self.turns is None:
            return {}
        packed = self.packed
        missed = None if packed is None or i >= packed.num_batches else packed.rows(i)
        del packed
        return self.slots.gather(self.turns, self.first_turn + i, step, missed, memory, decodings)

    def release(self, i: int, error: BaseException | None = None) -> None:
        """Note that batch i has its rows, or failed: then what waits for its turn fails too."""
        if error is not None and self.turns is not None:
            self.turns.fail(self.first_turn + i, error)
        with self._lock:
            self._num_unread -= 1
            is_last = self._num_unread == 0
        if is_last:
            self.close_packed()
            self.read.set()
            if self.edge_rows is not None:
                self.edge_rows.close()

    def pack(
        self,
        tables: Mapping[str, TypedRows[FileRows]],
        directory: Path,
        *,
        quota: DiskQuota,
        memory_bytes: int,
        num_threads: int,
        may_wait: Callable[[], bool],
        stop: Flag,
        recorder: Recorder,
    ) -> PackedSuperbatch | None:
        """Pack the missed rows of its batches, unless that has no use or no room (DiskGNN).

        All that is read is read in order: the tables once, and the runs of rows that batches miss.
        """
        trace, plan = self.trace, self.planned
        id_bytes = 0 if trace.file is None else trace.ids.itemsize

        def bytes_of(count: int) -> int:
            return packed_bytes(tables, plan.misses[:count], id_bytes)

        num_batches, wanted = plan.num_batches, bytes_of(plan.num_batches)
        if wanted > quota.num_bytes:  # the first batches that there is room for
            counts = range(plan.num_batches + 1)
            num_batches = bisect_right(counts, quota.num_bytes, key=bytes_of) - 1
            wanted = bytes_of(num_batches)
        if num_batches == 0:
            return None
        while not quota.take(stop, wanted):
            if not may_wait():
                return None
            if stop.wait(_POLL_SECONDS):
                raise CancelledError("packing was stopped before it began")
        release_memory()  # what batches have left free while room was waited for
        try:
            with recorder.phase("pack rows", unit="bytes") as advance:
                packed = pack(
                    tables,
                    trace.first(num_batches),
                    plan.first(num_batches),
                    directory,
                    memory_bytes=memory_bytes,
                    num_threads=max(1, num_threads),
                    disk_bytes=quota.num_bytes,
                    stop=stop,
                    advance=advance,
                )
        except BaseException:
            quota.release(stop, wanted)
            raise
        finally:
            release_memory()
        packed.removed = partial(quota.release, stop, wanted)
        return packed

    def release_trace(self) -> None:
        """Free the trace: once a plan is made of it, or none will be. Idempotent."""
        if self.samples.has_ids:
            self.trace.close()
            self.trace = Trace.of([])

    def close_packed(self) -> None:
        """Remove packed rows, also if they may still be wanted. Idempotent."""
        with self._lock:
            packed, self.packed = self.packed, None
        if packed is not None:
            packed.close()
            removed = packed.removed
            del packed  # its memory goes before another superbatch has the room
            removed()

    def close(self) -> None:
        """Free samples, trace and plan. Idempotent."""
        self.samples.spool.close()
        self.trace.close()
        plan, self.plan = self.plan, None
        if plan is not None:
            plan.close()


class PlannedLocation(NamedTuple):
    """The place of a batch in its superbatch."""

    superbatch: Superbatch
    i: int
    step: PlanStep | None = None  # known once it has been recalled
    has_rows: bool = False  # so that its turn is over


@dataclass(frozen=True, eq=False)
class EpochSlice:
    """The batches of a superbatch that one iteration hands out, from `begin` to `end`."""

    superbatch: Superbatch
    begin: int
    end: int
    error: Exception | None = None  # the failure of the batch after these, in this iteration

    @classmethod
    def from_superbatch(cls, superbatch: Superbatch, begin: int, wanted: int) -> EpochSlice:
        """Return the wanted batches from one on, or those that could be sampled."""
        end = min(begin + wanted, len(superbatch))
        return cls(superbatch, begin, end, superbatch.error if end - begin < wanted else None)


class SuperbatchFiles:
    """The samples, traces and plans of superbatches, in memory or in files of one directory."""

    def __init__(
        self,
        spill_dir: Path,
        space: RowSpace,
        types: Types,
        *,
        most_in_memory: int,
        table_bytes: int,
        purpose: str,
    ) -> None:
        self.space, self.types = space, types
        self._spill_dir = spill_dir
        self._most_in_memory = most_in_memory
        self._table_bytes = table_bytes
        self._purpose = purpose
        self._run: RunDirectory | None = None
        self._open = WeakSet[Any]()

    @property
    def directory(self) -> Path:
        """The directory for files, which is removed by `close`."""
        if self._run is None:
            self._run = RunDirectory.create(self._spill_dir, purpose=self._purpose)
        return self._run.path

    def register(self, file: C) -> C:
        """Note a file that `close` closes, if it is still open."""
        self._open.add(file)
        return file

    def samples(self, name: str, num_batches: int, ids: FileSpool | None = None) -> KeptSamples:
        """Return where the samples of a superbatch wait; their node ids may be in its trace."""
        if len(self.types.nodes) > 1:  # a trace has rows, and not of every type
            ids = None
        if num_batches <= self._most_in_memory:
            return KeptSamples(self.types, MemorySpool(), ids)
        path, most = self.directory / f"batch-{name}", self.types.max_arrays
        file = FileSpool(path, num_batches, most, what="the subgraph")
        return KeptSamples(self.types, self.register(file), ids)

    def trace(self, name: str, num_batches: int) -> TraceBuilder:
        """Return where the trace of some batches goes."""
        if not self._table_bytes:
            return TraceBuilder(num_batches, self.space.num_rows)
        path = self.directory / f"trace-{name}"
        trace = TraceBuilder(num_batches, self.space.num_rows, path)
        if trace.file is not None:
            self.register(trace.file)
        return trace

    def plan(self, planner: Planner, trace: Trace, name: str) -> CachePlan:
        """Plan a superbatch, in files if its trace is in one."""
        if trace.file is None:
            return planner.plan(trace)
        location = PlanLocation(self.directory / f"plan-{name}", self._table_bytes)
        return self.register(cast("BeladyPlanner", planner).plan(trace, location))

    def close(self) -> None:
        """Remove the files, and free all that waits. Idempotent."""
        for file in list(self._open):
            file.close()
        if self._run is not None:
            self._run.close()


class DiskQuota:
    """A limit of bytes on disk for the packed rows of at most two superbatches together."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        # By the flag that stops a producer: one that was forgotten, its iteration's end cut off by
        # Ctrl-C, has no files.
        self._taken: list[tuple[ref[Flag], int]] = []
        self._lock = threading.Lock()

    def take(self, owner: Flag, wanted: int) -> bool:
        """Take room for a superbatch, if there is some; one alone may always try."""
        with self._lock:
            taken = self._taken = [each for each in self._taken if each[0]() is not None]
            is_fitting = len(taken) == 1 and taken[0][1] + wanted <= self.num_bytes
            if not taken or is_fitting:
                taken.append((ref(owner), wanted))
                return True
            return False

    def is_of(self, owner: Flag) -> bool:
        """Whether all that is taken is one producer's."""
        with self._lock:
            return all(other() is owner for other, _ in self._taken)

    def release(self, owner: Flag, taken: int) -> None:
        """Give back what a superbatch has taken."""
        with self._lock:
            self._taken.remove((ref(owner), taken))
