"""Makes superbatches one after the other: samples their batches, plans them, packs their rows.

It serves loaders, `gnnstore pack`, `gnnstore predict`, and what decides sizes.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts, release_heap, release_memory
from gnnstore.caching.policies import CachePolicy, Planner, slot_layout
from gnnstore.features.file_rows import files_of
from gnnstore.features.held import ChosenRows, HeldRows
from gnnstore.features.planned import PinnedRows, SlotCache, TurnLock
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.formats.store.schema import EdgeType, Schema
from gnnstore.pipeline.batch import (
    RELEASED_BYTES,
    Batch,
    EpochRun,
    Recorder,
    request_of,
    sample_batch,
)
from gnnstore.pipeline.lookahead.edge_rows import SuperbatchEdges
from gnnstore.pipeline.lookahead.ordering import Nodes, WindowOrder, Windows
from gnnstore.pipeline.lookahead.superbatch import (
    DiskQuota,
    Superbatch,
    SuperbatchFiles,
    SuperbatchSize,
)
from gnnstore.sampling.compact import CompactSample, Types
from gnnstore.sampling.neighbor import BatchRequest, IndexDtype, NeighborSampler
from gnnstore.sampling.row_space import RowSpace
from gnnstore.seeds.base import SeedSource
from gnnstore.threads import CancelledError, Flag, ordered_map

T = TypeVar("T")

# Bytes for sampling batches together without a budget: a few hundred are read in nearly one pass.
BULK_BYTES = 1 << 30
_POLL_SECONDS = 0.05


def sample_batches(
    seeds: SeedSource,
    sampler: NeighborSampler,
    batches: Iterable[Batch],
    then: Callable[[int, Batch], T],
    *,
    num_threads: int,
    lookahead: Callable[[], int],
    describe: Callable[[int], str],
    bulk_bytes: int | None = None,
    one_by_one: bool = False,
    initializer: Callable[[], None] | None = None,
    timeout_seconds: float | None = None,
    recorder: Recorder | None = None,
    check: Callable[[], None] = lambda: None,
) -> Generator[T, None, None]:
    """Sample batches in threads; or together, where each hop is then one pass over a file.

    Yields what `then` makes of each place and batch, which has its sample and labels there.
    """
    recorder = recorder or Recorder()

    if sampler.samples_together and not one_by_one:
        waiting: deque[Batch] = deque()

        def requests() -> Iterator[BatchRequest]:
            for batch in batches:
                check()
                selected = seeds.select(batch.index, batch.key)
                batch.labels = selected.labels
                waiting.append(batch)
                yield request_of(selected, batch.key)

        together = sampler.sample_many(
            requests(), memory_bytes=bulk_bytes or BULK_BYTES, num_threads=max(1, num_threads)
        )
        done, start = 0, time.perf_counter()
        try:
            with recorder.stage("sampling", together=True) as stage:
                for sample in together:
                    batch = waiting.popleft()
                    batch.sample = sample
                    del sample
                    batch.cost.seconds_sampling = time.perf_counter() - start
                    result = then(done, batch)
                    done += 1
                    yield result
                    start = time.perf_counter()
                stage.args["batches"] = done
        except Exception as error:
            error.add_note(f"{describe(done)}, or one that was sampled together with it")
            raise
        return

    def sample_one(numbered: tuple[int, Batch]) -> T:
        place, batch = numbered
        check()
        key = batch.key
        with recorder.stage("sampling", epoch=key.epoch, batch=key.batch) as stage:
            sample_batch(batch, seeds, sampler)
            assert batch.sample is not None  # noqa: S101 - for the type checker
            stage.args |= {"nodes": batch.sample.num_nodes, "edges": batch.sample.num_edges}
        batch.cost.seconds_sampling = stage.seconds
        return then(place, batch)

    yield from ordered_map(
        sample_one,
        enumerate(batches),
        num_threads=num_threads,
        lookahead=lookahead,
        timeout_seconds=timeout_seconds,
        initializer=initializer,
        describe=describe,
    )


@dataclass
class LookaheadTotals:
    """The cost of the superbatches that have been handed out."""

    seconds_planning: float = 0.0
    bytes_spilled: int = 0  # of their subgraphs and packed rows, on disk
    bytes_packing: int = 0  # read of the tables to pack rows, and of edges' rows in passes
    warm_up: ReadCounts = field(default_factory=ReadCounts)  # of warming the cache up

    def add(self, superbatch: Superbatch, share: float = 1.0) -> None:
        """Count a superbatch, or a share of one."""
        self.seconds_planning += share * superbatch.seconds_planning
        self.bytes_spilled += round(share * superbatch.bytes_spilled)
        self.bytes_packing += round(share * superbatch.bytes_packing)


@dataclass(eq=False)
class LookaheadJob:
    """The way in which the superbatches of a loader are made, and what has been done for them."""

    policy: CachePolicy
    size: SuperbatchSize  # as it was decided
    packs: bool  # whether missed rows are packed
    spill_dir: Path  # where subgraphs wait that do not fit in memory, and packed rows
    quota: DiskQuota  # for packed rows
    space: RowSpace  # the rows that are cached
    types: Types
    index_dtype: IndexDtype  # of ids in a batch
    most_ids: tuple[int, int]  # all node ids, and all positions of edges, are below
    chosen: ChosenRows | None = None  # rows that stay on a device
    windows: Windows | None = None  # in which batches are put in another order; None: they are not
    # Returns the nodes' out-degrees, new ones each time; None if there is no memory for them.
    degrees: Callable[[], npt.NDArray[np.uint32] | None] = lambda: None
    totals: LookaheadTotals = field(default_factory=LookaheadTotals)
    # Tables of edges on disk that are read in a pass, and bytes of disk for a superbatch's rows.
    edge_tables: Mapping[EdgeType, Sequence[PagedArray]] = field(default_factory=dict)
    edge_rows_bytes: int = 0

    @property
    def held(self) -> HeldRows | None:
        """The rows that what is made from now on does not need."""
        if self.chosen is None:
            return None
        if self.chosen.left_out is None and self.windows is not None:  # rows of the batch before
            return HeldRows(dict.fromkeys(self.chosen.held.indexes))
        return self.chosen.left_out

    @cached_property
    def warms_up(self) -> bool:
        """Whether a cache that is empty is filled before the first batch."""
        return warms_up(self.policy, self.size, self.space.num_rows, packs=self.packs)


def most_ids(schema: Schema) -> tuple[int, int]:
    """Return numbers that all node ids and all positions of edges of a store are below."""
    nodes = max((each.num_nodes for each in schema.node_types), default=0)
    return nodes, max((each.num_edges for each in schema.edge_types), default=0)


def warms_up(policy: CachePolicy, size: SuperbatchSize, num_rows: int, *, packs: bool) -> bool:
    """Whether a cache that is empty is filled before the first batch."""
    if policy.is_fixed:
        return True
    # A byte a node counts how often nodes are needed.
    return policy.looks_ahead and not packs and num_rows <= size.counts_bytes


@dataclass(eq=False)
class Session:
    """Slots, and the planner that keeps track of their rows.

    Plans are followed in the order in which they are made, so the turn of the next batch is the
    number of batches planned so far.
    """

    slots: SlotCache
    turns: TurnLock
    planner: Planner
    policy: CachePolicy
    num_planned: int = 0

    @classmethod
    def begin(cls, slots: SlotCache, policy: CachePolicy) -> Session:
        """Begin with the rows that are in the slots."""
        turns, planner = slots.begin(), policy.planner(slots.num_planned_slots)
        planner.restart(slots.planned_nodes)
        return cls(slots, turns, planner, policy)

    def pinned(self, *, packs: bool, fills: bool) -> PinnedRows | None:
        """Return the rows that plans are made without, for they are always cached."""
        comes = fills and not self.num_planned
        return self.slots.pinned if not packs and (self.slots.holds_pinned or comes) else None

    def fill(self, superbatch: Superbatch, job: LookaheadJob) -> ReadCounts:
        """Fill empty slots with pinned rows, and the rows that most batches need."""
        slots, trace = self.slots, superbatch.trace
        lacks_pinned = slots.pinned is not None and not slots.holds_pinned
        is_empty = trace.num_accesses > 0 and not (self.planner.nodes >= 0).any()
        if self.num_planned or not (is_empty or lacks_pinned):
            return ReadCounts()

        def other_degrees() -> npt.NDArray[np.uint32] | None:
            found = job.degrees()
            if found is not None and slots.pinned is not None:
                found[slots.pinned.nodes] = 0
            if found is not None and superbatch.held is not None:
                found[superbatch.held.rows_in(job.space)] = 0
            return found

        num_slots = self.planner.num_slots
        nodes = self.policy.initial_nodes(trace, job.space.num_rows, num_slots, other_degrees)
        counts = slots.warm_up(self.turns, self.num_planned, nodes)
        self.num_planned += 1
        self.planner.restart(slot_layout(nodes, num_slots))
        return counts


def _released(sampled: Iterable[tuple[int, T]]) -> Iterator[T]:
    """Yield what comes with the bytes of subgraphs, and return their free pages to the system."""
    unreleased = 0
    for num_bytes, found in sampled:
        unreleased += num_bytes
        if unreleased >= RELEASED_BYTES:
            release_heap()
            unreleased = 0
        yield found


class Producer:
    """Makes superbatches, one at a time, and keeps what is to be closed after them."""

    def __init__(
        self,
        job: LookaheadJob,
        seeds: SeedSource,
        sampler: NeighborSampler,
        run: EpochRun,
        *,
        session: Session | None = None,
        purpose: str = "what a loader has sampled ahead",
    ) -> None:
        self.job, self.seeds, self.sampler = job, seeds, sampler
        self.run = run  # without threads in it, the consumer samples
        self.session = session
        self._packed: list[Superbatch] = []  # that have packed rows, and others before them
        self._files = SuperbatchFiles(
            job.spill_dir,
            job.space,
            job.types,
            most_in_memory=job.size.num_batches if job.size.in_memory else 0,
            table_bytes=job.size.table_bytes,
            purpose=purpose,
        )
        self.pid = os.getpid()  # of the process that has the files
        self._last: tuple[int, Nodes] | None = None  # the last batch that was sampled in order
        self._end = 0  # the turn after the last batch that was planned here
        self._is_stopped = Flag()
        self._reading = Flag()  # not set while batches without a plan are read: packing waits
        self._reading.set()
        # Whether packing may wait for room on disk that another superbatch has: not if the thread
        # that reads that one waits for this one.
        self.waits_for_others = False

    def is_followed(self, num_left: int) -> bool:
        """Whether all batches that were planned here have been assembled, but the last few."""
        session = self.session
        return (
            session is not None
            and not session.turns.is_closed
            and session.turns.num_done >= self._end - num_left
        )

    def go_on(self, run: EpochRun) -> None:
        """Go on in another iteration, after the one that it was stopped with."""
        self.run = run
        self._is_stopped.clear()

    def make(self, first: int, batches: list[Batch]) -> Superbatch:
        """Sample, plan and pack batches that follow all those before; `first` is their number."""
        return self.plan_and_pack(self.sample(first, batches))

    def make_unplanned(self, first: int, batches: list[Batch]) -> Superbatch:
        """Sample batches that will read all of their rows."""
        superbatch = self.sample(first, batches, reads_edges=False)
        superbatch.release_trace()
        if self.run.num_threads:
            self._reading = superbatch.read
        return superbatch

    def sample(
        self,
        first: int,
        batches: list[Batch],
        pinned: PinnedRows | None = None,
        *,
        reads_edges: bool = True,
    ) -> Superbatch:
        """Sample and keep batches up to the first that fails.

        The trace is without pinned rows, and without those that a device has.
        """
        job, run, session = self.job, self.run, self.session
        if session is not None:
            pinned = session.pinned(packs=job.packs, fills=job.warms_up)
        num_threads = min(run.num_threads, job.size.sampling_threads or run.num_threads)
        name, space, held = f"{first}", job.space, None if job.chosen is None else job.held
        trace = self._files.trace(name, len(batches))
        has_ids = pinned is None and held is None
        samples = self._files.samples(name, len(batches), trace.file if has_ids else None)
        edge_rows = self._edge_rows(name, len(batches)) if reads_edges else None
        ids, positions = (id_dtype(most - 1) for most in job.most_ids)

        def put(place: int, nodes: Nodes, before: Nodes | None = None) -> None:
            rows = (
                next(iter(nodes.values()))  # of one type ids are the numbers
                if held is None and len(nodes) == 1
                else space.rows(nodes if held is None else held.missed(nodes, before))
            )
            trace.put(place, rows if pinned is None else pinned.drop(rows))

        drop, windows = samples.spool.drop, job.windows
        order = (
            None
            if windows is None
            else WindowOrder(
                windows, batches, self._last, put=put, drop=drop, check=self._check_wanted
            )
        )

        def keep(place: int, batch: Batch) -> tuple[int, Nodes]:
            start, sample = time.perf_counter(), batch.sample
            assert sample is not None  # noqa: S101 - for the type checker
            compact = CompactSample.from_sample(sample, ids, positions)
            if order is None:
                put(place, compact.nodes)
            samples.append(place, compact)
            if edge_rows is not None:
                edge_rows.put(place, sample)
            batch.sample = batch.index = None
            batch.cost.seconds_sampling += time.perf_counter() - start
            return sample.num_bytes, {} if order is None else compact.nodes

        def describe(place: int) -> str:
            key = batches[min(place, len(batches) - 1)].key
            return f"while preparing batch {key.batch} of epoch {key.epoch}"

        release_memory()  # what preparing batches has left free
        sampled = sample_batches(
            self.seeds,
            # In the type in which samples are kept: half as much to write, and nothing to convert.
            self.sampler.with_index_dtype("int32" if ids == np.int32 else "int64"),
            batches,
            keep,
            num_threads=num_threads,
            lookahead=lambda: 2 * max(1, num_threads),
            bulk_bytes=job.size.bulk_bytes,
            initializer=run.initializer,
            timeout_seconds=run.timeout_seconds,
            recorder=run.recorder,
            check=self._check_wanted,
            describe=describe,
        )
        done, failure = 0, None
        with closing(sampled), run.recorder.phase("sample ahead", len(batches), "batches") as more:
            try:
                for nodes in _released(sampled):
                    done += 1
                    if order is not None:
                        order.add(nodes)
                    more(1)
            except Exception as error:
                # Without this frame, which has the superbatch, and that the error.
                failure = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        self._check_wanted()
        self._last = None if order is None else order.last
        release_memory()  # of subgraphs as they were sampled, before as much is taken for the plan
        if edge_rows is not None:
            edge_bytes = edge_rows.read(self._check_wanted)
        superbatch = Superbatch(
            first,
            dict(enumerate(batches[:done] if order is None else order.batches)),
            samples,
            trace.build(),
            space,
            failure,
            pinned,
            held,
            None if order is None else order.sampled,
        )
        superbatch.bytes_spilled = samples.spool.num_disk_bytes + superbatch.trace.num_disk_bytes
        if edge_rows is not None:
            superbatch.edge_rows, superbatch.bytes_packing = edge_rows, edge_bytes
            superbatch.bytes_spilled += edge_rows.num_disk_bytes
        return superbatch

    def _edge_rows(self, name: str, num_batches: int) -> SuperbatchEdges | None:
        """Return where rows of edges wait that are read in a pass over their tables."""
        job = self.job
        if not job.edge_tables or not job.edge_rows_bytes:
            return None
        path = self._files.directory / f"edges-{name}"
        found = SuperbatchEdges(job.edge_tables, path, num_batches, job.edge_rows_bytes)
        return self._files.register(found)

    def plan_and_pack(self, superbatch: Superbatch) -> Superbatch:
        """Plan batches that have been sampled, after all that have been planned, and pack them."""
        session = self.session
        if session is not None and len(superbatch):
            release_memory()
            if self.job.warms_up:
                self._fill(session, superbatch)
            self.plan(superbatch, session.planner)
            release_memory()
            superbatch.slots, superbatch.turns = session.slots, session.turns
            superbatch.first_turn = session.num_planned
            self._end = session.num_planned = session.num_planned + len(superbatch)
            self._check_wanted()
            self._pack(superbatch)
        superbatch.release_trace()  # its memory is counted for the superbatch that is made next
        return superbatch

    def plan(self, superbatch: Superbatch, planner: Planner) -> None:
        """Plan a superbatch."""
        recorder, trace = self.run.recorder, superbatch.trace
        with (
            recorder.phase("plan"),
            recorder.stage("planning", batches=trace.num_batches) as stage,
        ):
            plan = superbatch.plan = self._files.plan(planner, trace, f"{superbatch.first}")
            stage.args |= {"rows": trace.num_accesses, "rows_missed": plan.num_misses}
        superbatch.seconds_planning = stage.seconds
        superbatch.bytes_spilled += plan.num_disk_bytes

    def _fill(self, session: Session, superbatch: Superbatch) -> None:
        if session.num_planned:
            return
        recorder = self.run.recorder
        self._leave_disk()
        with recorder.stage("filling"), recorder.phase("fill the cache"):
            self.job.totals.warm_up += session.fill(superbatch, self.job)
        release_memory()  # planning is a phase of its own

    def _pack(self, superbatch: Superbatch) -> None:
        """Pack what a plan misses, unless it has no use or no room."""
        job, run, plan, slots = self.job, self.run, superbatch.plan, superbatch.slots
        if not job.packs or plan is None or slots is None or not slots.tables:
            return
        self._leave_disk()
        start_ns = time.perf_counter_ns()
        packed = superbatch.pack(
            files_of(slots.tables),
            self._files.directory,
            quota=job.quota,
            memory_bytes=job.size.packing_bytes,
            num_threads=run.num_threads,
            may_wait=self._may_wait,
            stop=self._is_stopped,
            recorder=run.recorder,
        )
        # By what records now: it takes seconds, in which a recording of an epoch may begin.
        run.recorder.add(
            "packing",
            start_ns,
            time.perf_counter_ns(),
            batches=plan.num_batches,
            bytes=0 if packed is None else packed.num_bytes,
        )
        if packed is not None:
            superbatch.packed = packed
            self._packed = [each for each in self._packed if each.packed is not None]
            self._packed.append(superbatch)
            superbatch.bytes_spilled += packed.num_bytes
            superbatch.bytes_packing += packed.counts["bytes_read"]

    def _may_wait(self) -> bool:
        is_own = self.job.quota.is_of(self._is_stopped)
        return self.run.joins_in_threads and (self.waits_for_others or is_own)

    def _leave_disk(self) -> None:
        """Wait until a batch without a plan has been read, if there is one."""
        while not self._reading.wait(_POLL_SECONDS):
            self._check_wanted()

    def _check_wanted(self) -> None:
        if self._is_stopped.is_set():
            raise CancelledError("a superbatch was given up before it was made")

    def cancel(self) -> None:
        """End what is being made, as soon as may be. Nothing is made until `go_on`."""
        self._is_stopped.set()

    def close(self) -> None:
        """Free all that is held for batches that will not be asked for. Idempotent."""
        if os.getpid() == self.pid:
            try:
                for superbatch in self._packed:
                    superbatch.close_packed()
            finally:
                self._files.close()
