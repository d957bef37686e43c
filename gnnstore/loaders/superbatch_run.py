"""One iteration over batches that are sampled ahead: the superbatches that it makes and hands out.

Its course may be overtaken: where another loader takes the cache over, batches that were planned
before would read every row. When that loader is done, the rest is planned again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.io.buffers import release_heap
from gnnstore.io.kept_subgraphs import KeptSubgraphs, SubgraphsInMemory, SubgraphsOnDisk
from gnnstore.io.run_directory import RunDirectory
from gnnstore.loaders.ahead import sample_in_order
from gnnstore.loaders.course import Course
from gnnstore.loaders.planned_batch import BatchNote, PlannedBatch, PlannedPart, Superbatch
from gnnstore.loaders.rolling import PackedBatches, Packer
from gnnstore.planning.spilled_plan import SpilledPlan
from gnnstore.planning.trace_builder import TraceBuilder
from gnnstore.planning.trace_file import SpilledTrace, TraceFile
from gnnstore.sampling.compact import CompactSubgraph

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gnnstore.loaders.superbatches import Superbatches
    from gnnstore.loaders.timeline import Timeline
    from gnnstore.planning.belady import Trace
    from gnnstore.planning.planners import Plan
    from gnnstore.sampling.disk import BatchRequest
    from gnnstore.sampling.neighbor import NeighborSampler, SampledSubgraph

# A lease that was lost is not worth taking back for less: a plan is made, and its trace written.
_WORTH_PLANNING = 2

# The number of a batch in its epoch, and its positions in the input nodes.
Item = tuple[int, Any]


@dataclass(frozen=True, eq=False)
class SamplingJob:
    """How batches are sampled; see `Superbatches.run`."""

    request: Callable[[Item], tuple[BatchRequest, npt.NDArray[np.int64]]]
    sampler: NeighborSampler
    num_threads: int
    initializer: Callable[[], None] | None
    timeout_seconds: float | None
    joins_in_threads: bool
    describe: Callable[[int], str]
    timeline: Callable[[], Timeline]


class SuperbatchRun:
    """One iteration: the superbatches that it makes, and what is to be closed after it."""

    def __init__(self, of: Superbatches, course: Course, sampling: SamplingJob) -> None:
        self._of = of
        self.course = course
        self._sampling = sampling
        self._closing = ExitStack()
        self._directory: Path | None = None
        self._packer: Packer | None = None
        self._planning = threading.RLock()  # of one superbatch at a time
        self._num_again = 0

    def make(self, chunk: list[tuple[int, Item]]) -> Superbatch:
        """Sample and plan some batches; one call at a time."""
        of, first = self._of, chunk[0][0]
        kept = self._keep(first)
        trace = self._begin_trace(f"{first}", len(chunk))
        notes: list[BatchNote] = []
        error = self._sample_all(chunk, kept, trace, notes)
        joined = trace.build()
        release_heap()  # of subgraphs as they were sampled, before as much is taken for the plan
        part, seconds = self._plan(joined, f"{first}", fills=of.fills)
        packed = self._pack(joined, part)
        spilled = kept.num_disk_bytes + (0 if packed is None else packed.bytes_packed)
        if isinstance(joined, SpilledTrace):
            spilled += joined.num_disk_bytes
            joined.close()
        if isinstance(part.plan, SpilledPlan):
            spilled += part.plan.num_disk_bytes
        return Superbatch(kept, part, notes, seconds, spilled, packed, error)

    def _plan(
        self, trace: Trace | SpilledTrace, name: str, *, begin: int = 0, fills: bool = False
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
        of, sampling = self._of, self._sampling
        with self._planning:
            course = self._current_course()
            if fills:
                with sampling.timeline().span("filling"):
                    of.filling += course.fill(trace, of.num_nodes)
            start = time.perf_counter()
            with sampling.timeline().span("planning", batches=trace.num_batches) as args:
                if isinstance(trace, SpilledTrace):
                    path = self._run_directory() / f"plan-{name}"
                    table = of.size.table_bytes
                    plan: Plan = course.planner.plan_spilled(trace, path, table_bytes=table)
                else:
                    plan = course.planner.plan(trace)
                args |= {"rows": trace.num_accesses, "rows_missed": plan.num_misses}
            seconds = time.perf_counter() - start
            part = PlannedPart(plan, course.lease, begin, course.num_planned)
            course.num_planned += plan.num_batches
        if isinstance(plan, SpilledPlan):
            self._closing.callback(part.close)
        release_heap()
        return part, seconds

    def _begin_trace(self, name: str, num_batches: int) -> TraceBuilder | TraceFile:
        """Return where the trace of some batches goes."""
        of = self._of
        if of.size.plans_in_memory:
            return TraceBuilder(num_batches, of.num_nodes)
        trace = TraceFile(self._run_directory() / f"trace-{name}", num_batches, of.num_nodes)
        self._closing.callback(trace.close)
        return trace

    def _pack(self, trace: Trace | SpilledTrace, part: PlannedPart) -> PackedBatches | None:
        of, sampling, plan = self._of, self._sampling, part.plan
        tables = of.cache().tables
        if of.policy != "packed" or plan is None or plan.num_batches == 0 or not tables:
            return None
        if self._packer is None:
            self._packer = Packer(
                tables,
                self._run_directory(),
                memory_bytes=of.size.packing_bytes,
                disk_bytes=of.disk_bytes,
                num_threads=sampling.num_threads,
                may_wait=sampling.joins_in_threads,
            )
        with sampling.timeline().span("packing", batches=plan.num_batches) as args:
            packed = self._packer.pack(trace, plan)
            args["bytes"] = 0 if packed is None else packed.bytes_packed
        return packed

    def _run_directory(self) -> Path:
        if self._directory is None:
            run = RunDirectory.create(self._of.tmpdir, purpose="what a loader has sampled ahead")
            self._directory = self._closing.enter_context(run).path
        return self._directory

    def _keep(self, first: int) -> KeptSubgraphs:
        """Return where the subgraphs of a superbatch wait; `first` is its first batch's number."""
        of = self._of
        if of.size.in_memory:
            return SubgraphsInMemory()
        kept = SubgraphsOnDisk(self._run_directory() / f"batch-{first}")
        self._closing.callback(kept.close)
        return kept

    def _sample_all(
        self,
        chunk: list[tuple[int, Item]],
        kept: KeptSubgraphs,
        trace: TraceBuilder | TraceFile,
        notes: list[BatchNote],
    ) -> Exception | None:
        """Sample batches until one cannot be; return why."""
        of, sampling = self._of, self._sampling
        input_ids: dict[int, npt.NDArray[np.int64]] = {}

        def request(place: int, numbered: tuple[int, Item]) -> BatchRequest:
            wanted, input_ids[place] = sampling.request(numbered[1])
            return wanted

        def keep(place: int, subgraph: SampledSubgraph, seconds: float) -> float:
            start = time.perf_counter()
            compact = CompactSubgraph.of(subgraph, of.num_nodes, of.num_edges)
            trace.put(place, compact.n_id)
            kept.put(place, compact)
            return seconds + time.perf_counter() - start

        sampled = sample_in_order(
            sampling.sampler,
            chunk,
            request,
            keep,
            num_threads=sampling.num_threads,
            lookahead=lambda: 2 * max(1, sampling.num_threads),
            bulk_bytes=of.size.bulk_bytes,
            initializer=sampling.initializer,
            timeout_seconds=sampling.timeout_seconds,
            timeline=sampling.timeline,
            describe=lambda place: sampling.describe(chunk[min(place, len(chunk) - 1)][0]),
        )
        with closing(sampled):
            try:
                for place, seconds in enumerate(sampled):
                    notes.append(BatchNote(input_ids[place], seconds))
            except Exception as error:
                return error
        return None

    def _current_course(self) -> Course:
        # Another iteration may have taken the cache over. What was planned before goes on
        # without it, reading every row; from here on the cache is ours again.
        if not self.course.lease.is_current:
            self.course = self._of.begin_course()
        return self.course

    def hand_out(self, superbatches: Iterator[Superbatch]) -> Iterator[PlannedBatch]:
        """Yield the batches of the superbatches, one superbatch after the other."""
        for superbatch in superbatches:
            self._of.seconds_planning += superbatch.seconds_planning
            self._of.bytes_spilled += superbatch.bytes_spilled
            for i in range(len(superbatch)):
                if self._may_take_back(superbatch, len(superbatch) - i):
                    self._plan_again(superbatch, i)
                yield PlannedBatch(superbatch, superbatch.part, i, self._of.index_dtype)
            if superbatch.error is not None:
                raise superbatch.error

    def _may_take_back(self, superbatch: Superbatch, num_left: int) -> bool:
        """Whether another loader took the cache over, and has no use for it any more."""
        if not superbatch.part.lease.is_overtaken or superbatch.packed is not None:
            return False
        is_free = self._of.cache().is_free or self.course.lease.is_current
        return is_free and num_left >= _WORTH_PLANNING

    def _plan_again(self, superbatch: Superbatch, begin: int) -> None:
        """Plan the batches that have not been handed out, from what the cache holds now."""
        kept, name = superbatch.kept, f"{self._num_again}-again"
        self._num_again += 1
        trace = self._begin_trace(name, len(superbatch) - begin)
        for i in range(begin, len(superbatch)):
            trace.put(i - begin, kept.get(i).n_id)
        with self._planning:
            # Superbatches that have been planned come later, so they will be planned again too.
            self.course = self._of.begin_course()
            superbatch.part, seconds = self._plan(trace.build(), name, begin=begin)
        self._of.seconds_planning += seconds

    def stop(self) -> None:
        """End what takes long of the superbatch that is being made."""
        if self._packer is not None:
            self._packer.stop()

    def close(self) -> None:
        """Let go of everything that is held for batches that nobody will ask for."""
        self._closing.close()
        if not self.course.is_followed:
            self.course.lease.close()
