"""Makes the superbatches of one iteration: samples their batches, plans them, packs their rows."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gnnstore.caching.plan import PlanPlace
from gnnstore.caching.trace import TraceBuilder
from gnnstore.disk.buffers import release, release_heap
from gnnstore.disk.scratch import RunDirectory
from gnnstore.disk.spool import FileSpool, MemorySpool, Spool
from gnnstore.features.source import files_of
from gnnstore.parallel import CancelledError
from gnnstore.pipeline.lookahead.driver import sample_in_order
from gnnstore.pipeline.lookahead.job import SamplingJob, SuperbatchJob
from gnnstore.pipeline.lookahead.packer import PackedBatches, Packer
from gnnstore.pipeline.lookahead.session import Course
from gnnstore.pipeline.lookahead.superbatch import BatchNote, PlannedPart, Superbatch
from gnnstore.sampling.compact import MAX_ARRAYS, CompactSubgraph

if TYPE_CHECKING:
    from gnnstore.caching.plan import CachePlan
    from gnnstore.caching.policies.base import SpillingPlanner
    from gnnstore.caching.trace import Trace
    from gnnstore.pipeline.batch import Planned
    from gnnstore.pipeline.seeds.base import BatchKey, SeedLabels
    from gnnstore.sampling.disk import BatchRequest
    from gnnstore.sampling.neighbor import SampledSubgraph


@dataclass(eq=False)
class SampledSuperbatch:
    """S batches that are sampled, but not planned.

    Attributes
    ----------
    first : int
        Number of the first in its iteration.
    error : Exception or None
        Why there are no more batches after these.
    """

    first: int
    kept: Spool
    trace: Trace
    notes: list[BatchNote]
    error: Exception | None


class SuperbatchMaker:
    """Makes superbatches, one at a time, and keeps what is to be closed after them.

    Parameters
    ----------
    job : SuperbatchJob
    course : Course
        Goes on with the next plan.
    sampling : SamplingJob
    """

    def __init__(self, job: SuperbatchJob, course: Course, sampling: SamplingJob) -> None:
        self.job = job
        self.course = course
        self.sampling = sampling
        self._end = 0  # under the course's lease, of what was planned here
        self._closing = ExitStack()
        self._directory: Path | None = None
        self._packer: Packer | None = None
        self._planning = threading.RLock()  # of one superbatch at a time
        self._is_stopped = threading.Event()
        self._num_again = 0
        # Whether packing waits for room on disk that another iteration has: for ever, if whoever
        # drives that one waits for this.
        self.waits_for_others = False

    @property
    def is_followed(self) -> bool:
        """Whether all batches that were planned here have been assembled."""
        lease = self.course.lease
        return lease.is_current and lease.num_gathered >= self._end

    def make(self, chunk: list[tuple[int, Planned]]) -> Superbatch:
        """Sample, plan and pack some batches."""
        return self.finish(self.sample(chunk))

    def sample(self, chunk: list[tuple[int, Planned]]) -> SampledSuperbatch:
        """Sample some batches, numbered as they come in the iteration."""
        first = chunk[0][0]
        kept = self._keep(first, len(chunk))
        trace = self._begin_trace(f"{first}", len(chunk))
        notes: list[BatchNote] = []
        error = self._sample_all(chunk, kept, trace, notes)
        self._check_wanted()
        joined = trace.build()
        release()  # of subgraphs as they were sampled, before as much is taken for the plan
        return SampledSuperbatch(first, kept, joined, notes, error)

    def finish(self, sampled: SampledSuperbatch) -> Superbatch:
        """Plan batches that have been sampled, after all that have been planned, and pack them."""
        kept, trace = sampled.kept, sampled.trace
        part, seconds = self._plan(trace, f"{sampled.first}", fills=self.job.fills)
        self._check_wanted()
        part.packed = self._pack(trace, part)
        spilled = kept.num_disk_bytes + trace.num_disk_bytes + _disk_bytes(part)
        trace.close()
        return Superbatch(kept, part, sampled.notes, seconds, spilled, sampled.error)

    def plan_again(self, superbatch: Superbatch, begin: int) -> None:
        """Plan the batches from one on, which nobody has, from what the cache holds now.

        Their rows are packed again if reading them one by one would take longer.
        """
        kept, name = superbatch.kept, f"{self._num_again}-again"
        self._num_again += 1
        superbatch.part.give_up(len(superbatch) - begin)
        builder = self._begin_trace(name, len(superbatch) - begin)
        for i in range(begin, len(superbatch)):
            builder.put(i - begin, CompactSubgraph.from_arrays(kept.read(i)).n_id)
        with self._planning:
            # Superbatches that have been planned come later, so they will be planned again too.
            self.take_over()
            trace = builder.build()
            part, seconds = self._plan(trace, name, begin=begin)
        part.packed = self._pack(trace, part, only_if_faster=True)
        trace.close()
        superbatch.part = part
        self.job.totals.seconds_planning += seconds
        self.job.totals.bytes_spilled += _disk_bytes(part)

    def _plan(
        self, trace: Trace, name: str, *, begin: int = 0, fills: bool = False
    ) -> tuple[PlannedPart, float]:
        """Plan batches that come after all that have been planned; return the seconds as well.

        Parameters
        ----------
        name : str
            Of files that it may take.
        begin : int
            The first of the batches in its superbatch.
        fills : bool
            Whether a cache that is empty is to be filled before.
        """
        job, sampling = self.job, self.sampling
        with self._planning:
            if not self.course.lease.is_current:
                self.take_over()
            course = self.course
            if fills:
                with sampling.timeline().span("filling"):
                    job.totals.filling += course.fill(trace, job.num_nodes, job.degrees)
            start = time.perf_counter()
            with sampling.timeline().span("planning", batches=trace.num_batches) as args:
                plan = self._cache_plan(trace, name)
                args |= {"rows": trace.num_accesses, "rows_missed": plan.num_misses}
            seconds = time.perf_counter() - start
            part = PlannedPart(plan, course.lease, begin, course.num_planned)
            course.num_planned += plan.num_batches
            self._end = course.num_planned
        if plan.files is not None:
            self._closing.callback(part.close)
        release_heap()
        return part, seconds

    def _cache_plan(self, trace: Trace, name: str) -> CachePlan:
        planner = self.course.planner
        if trace.file is None:
            return planner.plan(trace)
        place = PlanPlace(self._run_directory() / f"plan-{name}", self.job.size.table_bytes)
        return cast("SpillingPlanner", planner).plan(trace, place)

    def _begin_trace(self, name: str, num_batches: int) -> TraceBuilder:
        """Return where the trace of some batches goes."""
        job = self.job
        if job.size.plans_in_memory:
            return TraceBuilder(num_batches, job.num_nodes)
        path = self._run_directory() / f"trace-{name}"
        trace = TraceBuilder(num_batches, job.num_nodes, path)
        self._closing.callback(trace.close)
        return trace

    def _pack(
        self, trace: Trace, part: PlannedPart, *, only_if_faster: bool = False
    ) -> PackedBatches | None:
        job, sampling, plan = self.job, self.sampling, part.plan
        tables = job.cache().tables
        if not job.packs or plan is None or plan.num_batches == 0 or not tables:
            return None
        if self._packer is None:
            self._packer = Packer(
                files_of(tables),
                self._run_directory(),
                room=job.room,
                memory_bytes=job.size.packing_bytes,
                num_threads=sampling.num_threads,
                may_wait=sampling.joins_in_threads,
                stop=self._is_stopped,
                waits_for_others=lambda: self.waits_for_others,
            )
        if only_if_faster and not self._packer.is_faster(plan.num_misses):
            return None
        start_ns = time.perf_counter_ns()
        packed = self._packer.pack(trace, plan)
        num_bytes = 0 if packed is None else packed.bytes_packed
        # By whatever records now: it takes seconds, in which a recording of an epoch may begin.
        sampling.timeline().add(
            "packing",
            start_ns,
            time.perf_counter_ns(),
            batches=plan.num_batches,
            bytes=num_bytes,
        )
        if packed is not None:
            self._closing.callback(packed.close)
        return packed

    def _run_directory(self) -> Path:
        if self._directory is None:
            run = RunDirectory.create(self.job.tmpdir, purpose="what a loader has sampled ahead")
            self._directory = self._closing.enter_context(run).path
        return self._directory

    def _keep(self, first: int, num_batches: int) -> Spool:
        """Return where the subgraphs of a superbatch wait; `first` is its first batch's number."""
        if self.job.size.in_memory:
            return MemorySpool()
        path = self._run_directory() / f"batch-{first}"
        kept = FileSpool(path, num_batches, MAX_ARRAYS, what="the subgraph")
        self._closing.callback(kept.close)
        return kept

    def _sample_all(
        self,
        chunk: list[tuple[int, Planned]],
        kept: Spool,
        trace: TraceBuilder,
        notes: list[BatchNote],
    ) -> Exception | None:
        """Sample batches until one cannot be; return why."""
        job, sampling = self.job, self.sampling
        labelled: dict[int, tuple[BatchKey, SeedLabels]] = {}

        def request(place: int, numbered: tuple[int, Planned]) -> BatchRequest:
            self._check_wanted()
            seeds, key = sampling.select(numbered[1])
            labelled[place] = key, seeds.labels
            return seeds.start_nodes()[None], key.epoch, key.batch

        def keep(place: int, subgraph: SampledSubgraph, seconds: float) -> float:
            start = time.perf_counter()
            compact = CompactSubgraph.of(subgraph, job.num_nodes, job.num_edges)
            trace.put(place, compact.n_id)
            kept.append(place, compact.arrays())
            return seconds + time.perf_counter() - start

        sampled = sample_in_order(
            sampling.sampler,
            chunk,
            request,
            keep,
            num_threads=sampling.num_threads,
            lookahead=lambda: 2 * max(1, sampling.num_threads),
            bulk_bytes=job.size.bulk_bytes,
            initializer=sampling.initializer,
            timeout_seconds=sampling.timeout_seconds,
            timeline=sampling.timeline,
            describe=lambda place: sampling.describe(chunk[min(place, len(chunk) - 1)][0]),
        )
        with closing(sampled):
            try:
                for place, seconds in enumerate(sampled):
                    notes.append(BatchNote(*labelled[place], seconds))
            except Exception as error:
                return error
        return None

    def take_over(self, course: Course | None = None) -> None:
        """Go on with another course, by default one that takes the cache from whoever has it.

        What was planned before goes on without the cache, reading every row.
        """
        self.course = self.job.begin_course() if course is None else course
        self._end = 0

    def _check_wanted(self) -> None:
        if self._is_stopped.is_set():
            raise CancelledError("a superbatch was given up before it was made")

    def stop(self) -> None:
        """End what is being made, as soon as may be. It is not to be used any more."""
        self._is_stopped.set()

    def close(self) -> None:
        """Let go of everything that is held for batches that nobody will ask for. Idempotent."""
        self._closing.close()
        # A lease that was overtaken keeps nobody waiting; and the next epoch may have been planned
        # under it by now, whose batches go on without the cache, or are planned again.
        lease = self.course.lease
        if lease.is_current and lease.num_gathered < self._end:
            lease.close()
        elif lease.is_current:
            lease.rest()


def _disk_bytes(part: PlannedPart) -> int:
    """Return what a plan and the rows that were packed for it take on disk."""
    planned = 0 if part.plan is None else part.plan.num_disk_bytes
    return planned + (0 if part.packed is None else part.packed.bytes_packed)
