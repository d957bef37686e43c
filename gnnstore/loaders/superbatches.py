"""Batches sampled ahead a superbatch at a time, planned, and handed out with their plan (Ginex).

While the batches of one superbatch are assembled, those of the next are sampled by threads and
planned, which touches no row. A batch that is handed out knows its subgraph, and where each of
its rows comes from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.io.buffers import release_heap
from gnnstore.io.counts import NO_READS
from gnnstore.io.kept_subgraphs import KeptSubgraphs, SubgraphsInMemory, SubgraphsOnDisk
from gnnstore.io.run_directory import RunDirectory
from gnnstore.loaders.ahead import sample_in_order
from gnnstore.loaders.course import Course
from gnnstore.loaders.pipeline import ordered_map
from gnnstore.loaders.planned_batch import BatchNote, PlannedBatch, Superbatch
from gnnstore.loaders.rolling import PackedBatches, Packer
from gnnstore.loaders.timeline import OFF, Timeline
from gnnstore.planning.trace_builder import TraceBuilder
from gnnstore.sampling.compact import CompactSubgraph

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gnnstore.io.planned_cache import PlannedCache
    from gnnstore.planning.belady import SuperbatchPlan, Trace
    from gnnstore.planning.superbatch_size import PlannedPolicy, SuperbatchSize
    from gnnstore.sampling.disk import BatchRequest
    from gnnstore.sampling.neighbor import IndexDtype, NeighborSampler, SampledSubgraph

# The superbatch that is assembled, and the one that is made meanwhile.
_SUPERBATCHES = 2

# The number of a batch in its epoch, and its positions in the input nodes.
Item = tuple[int, Any]


class Superbatches:
    """Makes the superbatches of one loader, iteration after iteration.

    Parameters
    ----------
    cache : callable
        Returns the slots. They may be shared with other loaders, which take turns.
    policy : "belady", "lru" or "sieve"
    size : SuperbatchSize
        As it was decided.
    tmpdir : Path
        Where subgraphs wait that do not fit in memory, and packed rows.
    disk_bytes : int
        For packed rows.
    num_nodes, num_edges : int
        Of the graph.
    index_dtype : "int64" or "int32"
        Of `n_id` and `edge_index` in a batch.

    Attributes
    ----------
    seconds_planning : float
        Of all superbatches that have been handed out.
    bytes_spilled : int
        Of their subgraphs and packed rows, on disk.
    filling : ReadCounts
        What filling the cache has taken.
    """

    def __init__(
        self,
        cache: Callable[[], PlannedCache],
        policy: PlannedPolicy,
        size: SuperbatchSize,
        *,
        tmpdir: Path,
        disk_bytes: int,
        num_nodes: int,
        num_edges: int,
        index_dtype: IndexDtype,
    ) -> None:
        self._cache = cache
        self.policy: PlannedPolicy = policy
        self._size = size
        self._tmpdir = tmpdir
        self._disk_bytes = disk_bytes
        self._num_nodes = num_nodes
        self._num_edges = num_edges
        self._index_dtype: IndexDtype = index_dtype
        self._idle: Course | None = None  # of the last iteration, if it came to its end
        self.seconds_planning = 0.0
        self.bytes_spilled = 0
        self.filling = NO_READS

    @property
    def num_slots(self) -> int:
        """Rows that there is room for."""
        return self._cache().num_slots

    @contextmanager
    def run(
        self,
        items: Iterable[Item],
        request: Callable[[Item], tuple[BatchRequest, npt.NDArray[np.int64]]],
        sampler: NeighborSampler,
        *,
        num_threads: int,
        initializer: Callable[[], None] | None = None,
        timeout_seconds: float | None = None,
        joins_in_threads: bool = False,
        describe: Callable[[int], str],
        timeline: Callable[[], Timeline] = lambda: OFF,
    ) -> Iterator[Iterator[PlannedBatch]]:
        """Sample, plan and hand out the batches of one iteration.

        Parameters
        ----------
        items : iterable
            The batches in order; consumed in the consumer's thread, two superbatches ahead.
        request : callable
            Returns what to sample for one of them, and what its `input_id` shows.
        sampler : NeighborSampler
        num_threads : int
            Threads that sample; 0: the consumer's thread samples and plans.
        initializer : callable, optional
            Called once in each of these threads.
        timeout_seconds : float, optional
            The longest wait for a batch to be sampled.
        joins_in_threads : bool
            Whether batches are joined by others than the consumer, so that one superbatch may
            wait for another to be done with.
        describe : callable
            What the k-th batch of the iteration is; noted on an exception.
        timeline : callable, optional
            Returns where stages are recorded at present.

        Yields
        ------
        iterator of PlannedBatch
            To be prepared in any order, joined in theirs. Where a batch cannot be sampled, it
            raises that error once those before it have been handed out.
        """
        course, self._idle = self._idle, None
        if course is None or not course.lease.is_current:
            course = Course.begin(self._cache(), self.policy)
        run = _Run(
            self,
            course,
            _Sampling(
                request,
                sampler,
                num_threads,
                initializer,
                timeout_seconds,
                joins_in_threads,
                describe,
                timeline,
            ),
        )
        with ExitStack() as stack:
            stack.callback(run.close)
            numbered = _chunks(enumerate(items), self._size.num_batches)
            superbatches = ordered_map(
                run.make,
                numbered,
                num_threads=min(1, num_threads),
                lookahead=lambda: _SUPERBATCHES,
                describe="while sampling superbatch {} of the iteration".format,
            )
            stack.enter_context(closing(superbatches))
            stack.callback(run.stop)  # first, or closing would wait for what is being packed
            yield run.hand_out(superbatches)
        if run.course.is_followed:
            self._idle = run.course


@dataclass(frozen=True, eq=False)
class _Sampling:
    """How batches are sampled; see `Superbatches.run`."""

    request: Callable[[Item], tuple[BatchRequest, npt.NDArray[np.int64]]]
    sampler: NeighborSampler
    num_threads: int
    initializer: Callable[[], None] | None
    timeout_seconds: float | None
    joins_in_threads: bool
    describe: Callable[[int], str]
    timeline: Callable[[], Timeline]


class _Run:
    """One iteration: the superbatches that it makes, and what is to be closed after it."""

    def __init__(self, of: Superbatches, course: Course, sampling: _Sampling) -> None:
        self._of = of
        self.course = course
        self._sampling = sampling
        self._closing = ExitStack()
        self._directory: Path | None = None
        self._packer: Packer | None = None

    def make(self, chunk: list[tuple[int, Item]]) -> Superbatch:
        """Sample and plan some batches; one call at a time."""
        of = self._of
        kept = self._keep(chunk[0][0])
        trace = TraceBuilder(len(chunk), of._num_nodes)
        notes: list[BatchNote] = []
        error = self._sample_all(chunk, kept, trace, notes)
        course = self._current_course()
        joined = trace.build()
        release_heap()  # of subgraphs as they were sampled, before as much is taken for the plan
        if of._size.fills(of._num_nodes):
            with self._sampling.timeline().span("filling"):
                of.filling += course.fill(joined, of._num_nodes)
        start = time.perf_counter()
        with self._sampling.timeline().span("planning", batches=len(notes)) as args:
            plan = course.planner.plan(joined)
            args |= {"rows": len(plan.slots), "rows_missed": plan.num_misses}
        seconds = time.perf_counter() - start
        release_heap()
        packed = self._pack(joined, plan)
        spilled = kept.num_disk_bytes + (0 if packed is None else packed.bytes_packed)
        first, course.num_planned = course.num_planned, course.num_planned + len(notes)
        return Superbatch(kept, plan, notes, course.lease, first, seconds, spilled, packed, error)

    def _pack(self, trace: Trace, plan: SuperbatchPlan) -> PackedBatches | None:
        of, sampling = self._of, self._sampling
        tables = of._cache().tables
        if of.policy != "packed" or plan.num_batches == 0 or not tables:
            return None
        if self._packer is None:
            self._packer = Packer(
                tables,
                self._run_directory(),
                memory_bytes=of._size.packing_bytes,
                disk_bytes=of._disk_bytes,
                num_threads=sampling.num_threads,
                may_wait=sampling.joins_in_threads,
            )
        with sampling.timeline().span("packing", batches=plan.num_batches) as args:
            packed = self._packer.pack(trace, plan)
            args["bytes"] = 0 if packed is None else packed.bytes_packed
        return packed

    def _run_directory(self) -> Path:
        if self._directory is None:
            run = RunDirectory.create(self._of._tmpdir, purpose="what a loader has sampled ahead")
            self._directory = self._closing.enter_context(run).path
        return self._directory

    def _keep(self, first: int) -> KeptSubgraphs:
        """Return where the subgraphs of a superbatch wait; `first` is its first batch's number."""
        of = self._of
        if of._size.in_memory:
            return SubgraphsInMemory()
        kept = SubgraphsOnDisk(self._run_directory() / f"batch-{first}")
        self._closing.callback(kept.close)
        return kept

    def _sample_all(
        self,
        chunk: list[tuple[int, Item]],
        kept: KeptSubgraphs,
        trace: TraceBuilder,
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
            compact = CompactSubgraph.of(subgraph, of._num_nodes, of._num_edges)
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
            bulk_bytes=of._size.bulk_bytes,
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
            self.course = Course.begin(self._of._cache(), self._of.policy)
        return self.course

    def hand_out(self, superbatches: Iterator[Superbatch]) -> Iterator[PlannedBatch]:
        """Yield the batches of the superbatches, one superbatch after the other."""
        for superbatch in superbatches:
            self._of.seconds_planning += superbatch.seconds_planning
            self._of.bytes_spilled += superbatch.bytes_spilled
            for i in range(len(superbatch)):
                yield PlannedBatch(superbatch, i, self._of._index_dtype)
            if superbatch.error is not None:
                raise superbatch.error

    def stop(self) -> None:
        """End what takes long of the superbatch that is being made."""
        if self._packer is not None:
            self._packer.stop()

    def close(self) -> None:
        """Let go of everything that is held for batches that nobody will ask for."""
        self._closing.close()
        if not self.course.is_followed:
            self.course.lease.close()


def _chunks(items: Iterable[Any], size: int) -> Generator[list[Any], None, None]:
    """Yield lists of `size` items; what came before an error is yielded before it is raised."""
    chunk: list[Any] = []
    try:
        for item in items:
            chunk.append(item)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except Exception:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk
