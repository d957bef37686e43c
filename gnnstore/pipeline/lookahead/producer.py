"""Makes superbatches one after the other: samples their batches, plans them, packs their rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from gnnstore._core import ReadCounts, release_memory
from gnnstore.features.source import files_of
from gnnstore.pipeline.lookahead.driver import Coming, SamplingJob
from gnnstore.pipeline.lookahead.packer import DiskQuota, PackedBatches, SuperbatchPacker
from gnnstore.pipeline.lookahead.session import CacheSession, warms_up
from gnnstore.pipeline.lookahead.spools import SampledSuperbatch, Spools
from gnnstore.pipeline.lookahead.superbatch import PlannedPart, Superbatch
from gnnstore.threads import CancelledError, Flag, SharedLock

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gnnstore.caching.policies.base import CachePolicy
    from gnnstore.caching.trace import Trace
    from gnnstore.features.pinned import PinnedRows
    from gnnstore.features.planned import PlannedCache
    from gnnstore.pipeline.superbatch_size import SuperbatchSize
    from gnnstore.sampling.neighbor import IndexDtype

_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 1.0  # for batches that are being read, and have room on disk


@dataclass
class LookaheadTotals:
    """The cost of the superbatches that have been handed out."""

    seconds_planning: float = 0.0
    bytes_spilled: int = 0  # of their subgraphs and packed rows, on disk
    bytes_packing: int = 0  # read of the tables to pack rows
    warm_up: ReadCounts = field(default_factory=ReadCounts)  # of warming the cache up

    def add(
        self,
        part: PlannedPart | None,
        seconds_planning: float,
        bytes_spilled: int,
        share: float = 1.0,
    ) -> None:
        """Count a superbatch or a share of it, or the rest of one that was planned again."""
        self.seconds_planning += share * seconds_planning
        self.bytes_spilled += round(share * bytes_spilled)
        if part is not None and part.packed is not None:
            self.bytes_packing += round(share * part.packed.bytes_read)


@dataclass(eq=False)
class LookaheadJob:
    """The way in which the superbatches of a loader are made, and what has been done for them."""

    cache: Callable[[], PlannedCache]  # returns the slots
    policy: CachePolicy
    size: SuperbatchSize  # as it was decided
    packs: bool  # whether missed rows are packed
    tmpdir: Path  # where subgraphs wait that do not fit in memory, and packed rows
    quota: DiskQuota  # for packed rows
    num_nodes: int
    num_edges: int
    index_dtype: IndexDtype  # of `n_id` and `edge_index` in a batch
    # Returns the nodes' out-degrees, new ones each time; None if there is no memory for them.
    degrees: Callable[[], npt.NDArray[np.uint32] | None] = lambda: None
    totals: LookaheadTotals = field(default_factory=LookaheadTotals)

    def begin_session(self) -> CacheSession:
        """Take the cache over, from whoever has it."""
        return CacheSession.begin(self.cache(), self.policy)

    def pinned(self, session: CacheSession, *, warms_up: bool = True) -> PinnedRows | None:
        """Return the rows that plans of a session are made without, for they are always cached."""
        cache = session.lease.cache
        comes = warms_up and self.warms_up and not session.num_planned
        return cache.pinned if not self.packs and (cache.holds_pinned or comes) else None

    def most_planned(self, pinned: PinnedRows | None) -> int:
        """Return how many batches may be planned at a time, without the rows that are pinned."""
        of = self.size.pinned
        as_sized = of is None if pinned is None else pinned.is_of(of)
        return self.size.num_batches if as_sized else self.size.num_batches_repinned

    @cached_property
    def warms_up(self) -> bool:
        """Whether a cache that is empty is warmed up before the first batch."""
        return warms_up(self.policy, self.size, self.num_nodes, packs=self.packs)


class LookaheadProducer:
    """Makes superbatches, one at a time, and keeps what is to be closed after them."""

    def __init__(
        self,
        job: LookaheadJob,
        session: CacheSession,
        sampling: SamplingJob,
        turn: SharedLock | None = None,
    ) -> None:
        self.job = job
        self.session = session
        self.sampling = sampling
        self.turn = turn or SharedLock()
        self._end = 0  # under the session's lease, of what was planned here
        self._closing = ExitStack()
        self._spools = Spools(
            job.tmpdir,
            job.num_nodes,
            job.num_edges,
            most_in_memory=job.size.num_batches if job.size.in_memory else 0,
            table_bytes=job.size.table_bytes,
            purpose="what a loader has sampled ahead",
        )
        self._closing.callback(self._spools.close)
        self._packer: SuperbatchPacker | None = None
        self._is_stopped = Flag()
        self._num_again = 0
        self._reading = Flag()  # batches that the disk is left to, if it is not set
        self._reading.set()
        # Whether packing waits for room on disk that another iteration has: for ever, if whoever
        # drives that one waits for this.
        self.waits_for_others = False

    @property
    def is_followed(self) -> bool:
        """Whether all batches that were planned here have been assembled."""
        lease = self.session.lease
        return lease.is_current and lease.num_gathered >= self._end

    def go_on(self, sampling: SamplingJob) -> None:
        """Go on in another iteration, after the one that it was stopped with."""
        self.sampling = sampling
        self._is_stopped.clear()

    def make(self, chunk: list[Coming]) -> Superbatch:
        """Sample, plan and pack some batches."""
        return self.finish(self.sample(chunk))

    def sample(self, chunk: list[Coming]) -> SampledSuperbatch:
        """Sample some batches."""
        return self.sampling.sample(
            chunk,
            self._spools,
            bulk_bytes=self.job.size.bulk_bytes,
            check=self._check_wanted,
            pinned=self.job.pinned(self.session),
            most_threads=self.job.size.sampling_threads,
            turn=self.turn,
        )

    def finish(self, sampled: SampledSuperbatch) -> Superbatch:
        """Plan batches that have been sampled, after all that have been planned, and pack them."""
        with self._alone():
            part, trace, seconds = self._plan(sampled)
        self._check_wanted()
        part.packed = self._pack(trace, part)
        spilled = sampled.kept.num_disk_bytes + trace.num_disk_bytes + _disk_bytes(part)
        if trace is not sampled.trace:
            trace.close()
        sampled.forget_trace()  # its memory is counted for the superbatch that is made next
        return Superbatch(sampled, part, seconds, spilled)

    def make_unplanned(self, chunk: list[Coming]) -> Superbatch:
        """Sample some batches that will read all of their rows."""
        sampled = self.sample(chunk)
        spilled = sampled.kept.num_disk_bytes + sampled.trace.num_disk_bytes
        sampled.forget_trace()
        superbatch = Superbatch(sampled, None, 0.0, spilled)
        if self.sampling.run.num_threads:
            self._reading = superbatch.read
        return superbatch

    def plan_again(self, superbatch: Superbatch, former: PlannedPart, begin: int) -> bool:
        """Plan the batches from one on, which nobody has, from what the cache holds now."""
        with self.turn.alone_unless_taken() as is_mine:
            if not is_mine:
                return False
            former.abandon(max(0, former.end - begin))
            # Superbatches that have been planned come later, so they will be planned again too.
            self.take_over()
            with _released():
                part, trace, seconds = self._plan(superbatch.sampled, begin=begin)
        part.packed = self._pack(trace, part, is_asked_for=True)
        trace.close()
        superbatch.part = part
        self.job.totals.add(part, seconds, _disk_bytes(part))
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Take the turn that sampling shares, and leave no memory to whoever has it next."""
        with self.turn.alone(self._check_wanted), _released():
            yield

    def _name_again(self) -> str:
        """Return a name for files that something takes once more."""
        self._num_again += 1
        return f"{self._num_again - 1}-again"

    def _plan(
        self, sampled: SampledSuperbatch, *, begin: int | None = None
    ) -> tuple[PlannedPart, Trace, float]:
        """Plan batches that come after all that have been planned."""
        job, recorder = self.job, self.sampling.run.recorder
        if not self.session.lease.is_current:
            self.take_over()
        session, is_first = self.session, begin is None
        pinned = job.pinned(session, warms_up=is_first and job.warms_up)
        trace = self._trace_of(sampled, begin, pinned)
        if is_first and job.warms_up and not session.num_planned:
            self._leave_disk()
            with recorder.stage("filling"), recorder.progress.phase("fill the cache"):
                job.totals.warm_up += session.warm_up(trace, job.num_nodes, job.degrees)
            release_memory()  # planning is a phase of its own
        with (
            recorder.progress.phase("plan"),
            recorder.stage("planning", batches=trace.num_batches) as stage,
        ):
            name = f"{sampled.first}" if is_first else self._name_again()
            plan = self._spools.plan(session.planner, trace, name)
            stage.args |= {"rows": trace.num_accesses, "rows_missed": plan.num_misses}
        begin, first = begin or 0, session.num_planned
        end = begin + plan.num_batches
        part = PlannedPart(plan, session.lease, begin, end, first, pinned=pinned)
        session.num_planned += plan.num_batches
        self._end = session.num_planned
        return part, trace, stage.seconds

    def _trace_of(
        self, sampled: SampledSuperbatch, begin: int | None, pinned: PinnedRows | None
    ) -> Trace:
        """Return the trace to plan, of as many batches as there is memory for a plan of."""
        num_batches, first = len(sampled.notes), begin or 0
        end = min(num_batches, first + self.job.most_planned(pinned))
        if begin is None and pinned is sampled.pinned and end == num_batches:
            return sampled.trace
        sampled.forget_trace()
        name = self._name_again()
        return self._spools.trace_again(sampled, range(first, end), pinned, name)

    def _pack(
        self, trace: Trace, part: PlannedPart, *, is_asked_for: bool = False
    ) -> PackedBatches | None:
        """Pack what a plan misses, unless it has no use or no room."""
        job, sampling, plan = self.job, self.sampling, part.plan
        if not job.packs or plan is None or plan.num_batches == 0:
            return None
        if self._packer is None:
            tables = job.cache().tables
            if not tables:
                return None
            self._packer = SuperbatchPacker(
                files_of(tables),
                self._spools.directory,
                quota=job.quota,
                memory_bytes=job.size.packing_bytes,
                chunk_memory_bytes=job.size.chunk_memory_bytes,
                num_threads=sampling.run.num_threads,
                may_wait=sampling.run.joins_in_threads,
                turn=self._alone,
                stop=self._is_stopped,
                waits_for_others=lambda: self.waits_for_others,
                progress=sampling.run.recorder.progress,
            )
        # Without disk there is memory for some of the rows, perhaps for too few.
        only_if_faster = is_asked_for or job.quota.num_bytes == 0
        if only_if_faster and not self._packer.is_faster(trace, plan):
            return None
        if not is_asked_for:
            self._leave_disk()
        start_ns = time.perf_counter_ns()
        packed = self._packer.pack(trace, plan, patience=_PATIENCE_SECONDS if is_asked_for else inf)
        num_bytes = 0 if packed is None else packed.bytes_packed
        # By whatever records now: it takes seconds, in which a recording of an epoch may begin.
        sampling.run.recorder.add(
            "packing",
            start_ns,
            time.perf_counter_ns(),
            batches=plan.num_batches,
            bytes=num_bytes,
        )
        if packed is not None:
            self._closing.callback(packed.close)
        return packed

    def take_over(self, session: CacheSession | None = None) -> None:
        """Go on with another session, by default one that takes the cache from whoever has it."""
        self.session = self.job.begin_session() if session is None else session
        self._end = 0

    def _leave_disk(self) -> None:
        """Wait until a batch without a plan has been read, if there is one."""
        while not self._reading.wait(_POLL_SECONDS):
            self._check_wanted()

    def _check_wanted(self) -> None:
        if self._is_stopped.is_set():
            raise CancelledError("a superbatch was given up before it was made")

    def stop(self) -> None:
        """End what is being made, as soon as may be. Nothing is made until `go_on`."""
        self._is_stopped.set()

    def close(self) -> None:
        """Let go of everything that is held for batches that nobody will ask for. Idempotent."""
        self._closing.close()
        # A lease that was overtaken keeps nobody waiting; and the next epoch may have been planned
        # under it by now, whose batches go on without the cache, or are planned again.
        lease = self.session.lease
        if lease.is_current and lease.num_gathered < self._end:
            lease.close()
        elif lease.is_current:
            lease.rest()


@contextmanager
def _released() -> Iterator[None]:
    """Release what the pool of buffers has kept of others, and then of what is done within."""
    release_memory()
    try:
        yield
    finally:
        release_memory()


def _disk_bytes(part: PlannedPart) -> int:
    """Return the bytes of a plan and the rows packed for it on disk."""
    planned = 0 if part.plan is None else part.plan.num_disk_bytes
    return planned + (0 if part.packed is None else part.packed.bytes_packed)
