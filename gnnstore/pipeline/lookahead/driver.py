"""Batches sampled one after the other, in the way that suits where the graph lies.

Superbatches of them wait for their plan and their turn: subgraphs, traces and plans lie in memory
or in files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from gnnstore._core import release_heap, release_memory
from gnnstore.caching.plan import PlanPlace
from gnnstore.caching.trace import Trace, TraceBuilder
from gnnstore.disk.scratch import RunDirectory
from gnnstore.disk.spool import FileSpool, MemorySpool, Spool
from gnnstore.parallel import ordered_map
from gnnstore.pipeline.batch import EpochRun, Planned, Recorder
from gnnstore.sampling.compact import MAX_ARRAYS, CompactSample
from gnnstore.sampling.neighbor import BatchRequest, NeighborSampler, Sample
from gnnstore.threads import SharedLock

if TYPE_CHECKING:
    from gnnstore.caching.plan import CachePlan
    from gnnstore.caching.policies.base import Planner, SpillingPlanner
    from gnnstore.features.tiers.pinned import PinnedRows
    from gnnstore.pipeline.seeds.base import BatchKey, SeedLabels, Seeds, SeedSource

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")


# Without a budget: enough for a few hundred batches to be read in nearly one pass.
BULK_BYTES = 1 << 30
# Batches are sampled beside others that are assembled, and both leave holes in the heap. After so
# many bytes of subgraphs its free pages go back to the system, which takes a millisecond: on W they
# would grow to 60 MB in five threads.
_RELEASED_BYTES = 32 << 20


def request_of(seeds: Seeds, key: BatchKey) -> BatchRequest:
    """Return the sampling request for the seeds of a batch."""
    return BatchRequest(seeds.start_nodes()[None], key.epoch, key.batch, seeds.excluded())


def sample_in_order(
    sampler: NeighborSampler,
    items: Iterable[I],
    request: Callable[[int, I], BatchRequest],
    then: Callable[[int, Sample, float], T],
    *,
    num_threads: int,
    lookahead: Callable[[], int],
    bulk_bytes: int | None,
    describe: Callable[[int], str],
    one_by_one: bool = False,
    initializer: Callable[[], None] | None = None,
    timeout_seconds: float | None = None,
    recorder: Recorder | None = None,
    turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    is_held_up: Callable[[], bool] = lambda: False,
) -> Generator[T, None, None]:
    """Sample batches in threads; or together, where each hop is then one pass over a file.

    Parameters
    ----------
    items : iterable
        The batches to sample; consumed in the calling thread.
    request : callable
        Returns what to sample for the k-th item; in the thread that samples it.
    then : callable
        Takes the k-th subgraph, and the seconds that sampling it has taken; called in that thread
        too.
    lookahead : callable
        Number of batches that may be sampled ahead, if they are sampled one by one.
    bulk_bytes : int or None
        Memory of batches that are sampled together.
    describe : callable
        Describes the k-th batch; noted on an exception.
    one_by_one : bool
        Whether batches are never sampled together, as those of a loader that plans nothing.
    initializer : callable, optional
        Called once in each thread.
    timeout_seconds : float, optional
        The longest wait for a batch, where they are sampled one by one.
    turn : callable
        Returns a context in which a batch is sampled, or all that are sampled together.
    is_held_up : callable
        Whether that is waited for.

    Yields
    ------
    object
        Results of `then`, in the order of the requests.
    """
    recorder = recorder or Recorder()
    if sampler.samples_together and not one_by_one:
        together = sampler.sample_many(
            (request(k, item) for k, item in enumerate(items)),
            memory_bytes=bulk_bytes or BULK_BYTES,
            num_threads=max(1, num_threads),
        )
        done, start = 0, time.perf_counter()
        try:
            with turn(), recorder.stage("sampling", together=True) as stage:
                for subgraph in together:
                    result = then(done, subgraph, time.perf_counter() - start)
                    del subgraph
                    done += 1
                    yield result
                    start = time.perf_counter()
                stage.args["batches"] = done
        except Exception as error:
            error.add_note(f"{describe(done)}, or one that was sampled together with it")
            raise
        return

    def sample(numbered: tuple[int, I]) -> T:
        place, item = numbered
        with turn():
            asked = request(place, item)
            with recorder.stage("sampling", epoch=asked.epoch, batch=asked.batch) as stage:
                subgraph = sampler.sample(
                    asked.seeds, epoch=asked.epoch, batch=asked.batch, excluded=asked.excluded
                )
                stage.args |= {"nodes": len(subgraph.n_id), "edges": len(subgraph.edge_pos)}
            return then(place, subgraph, stage.seconds)

    yield from ordered_map(
        sample,
        enumerate(items),
        num_threads=num_threads,
        lookahead=lookahead,
        timeout_seconds=timeout_seconds,
        initializer=initializer,
        describe=describe,
        is_held_up=is_held_up,
    )


class Coming(NamedTuple):
    """A batch that is to be sampled.

    Attributes
    ----------
    number : int
        Its place in its iteration.
    run : EpochRun
        The iteration that it belongs to.
    """

    number: int
    planned: Planned
    run: EpochRun

    def describe(self) -> str:
        """Return a description of the batch, to be noted on errors."""
        return self.run.describe(self.number)


@dataclass(frozen=True, eq=False)
class SamplingJob:
    """The sampler and the seeds of a superbatch, and the run that samples it.

    Attributes
    ----------
    run : EpochRun
        Without threads in it, whoever asks for a superbatch samples it.
    """

    run: EpochRun
    seeds: SeedSource
    sampler: NeighborSampler

    def select(self, coming: Coming) -> tuple[Seeds, BatchKey]:
        """Return the seeds of a batch, and its key."""
        batch, index = coming.planned
        key = coming.run.key(batch)
        return self.seeds.select(index, key), key


@dataclass(frozen=True)
class BatchNote:
    """A batch's facts beside its subgraph."""

    key: BatchKey
    labels: SeedLabels
    seconds_sampling: float


class KeptSubgraphs:
    """The subgraphs of a superbatch, shortened. Safe to use from many threads at once.

    Parameters
    ----------
    spool : Spool
        Where they wait. Closed by `close`.
    ids : FileSpool or None
        Holds the node ids of each batch: the file of their trace. Ids are not written twice. Not
        closed.
    """

    def __init__(self, spool: Spool, ids: FileSpool | None) -> None:
        self._spool = spool
        self._ids = ids

    @property
    def has_ids(self) -> bool:
        """Whether node ids are kept here, and not with the trace."""
        return self._ids is None

    @property
    def num_bytes(self) -> int:
        """Memory that they take."""
        return self._spool.num_bytes

    @property
    def num_disk_bytes(self) -> int:
        """Disk that they take, node ids in a trace not included."""
        return self._spool.num_disk_bytes

    def append(self, i: int, subgraph: CompactSample) -> None:
        """Keep the subgraph of batch i, which has none yet.

        Raises
        ------
        NoSpaceError, StorageError, UsageError
            See `Spool.append`.
        """
        self._spool.append(i, subgraph.shortened(with_ids=self.has_ids))

    def read(self, i: int) -> CompactSample:
        """Return the subgraph of batch i.

        Raises
        ------
        CorruptStoreError, KeyError, StorageError, UsageError
            See `Spool.read`.
        """
        n_id = None if self._ids is None else self._ids.read(i)[0]
        return CompactSample.from_shortened(self._spool.read(i), n_id)

    def drop(self, i: int) -> None:
        """Let go of the subgraph of batch i, if there is one."""
        self._spool.drop(i)

    def close(self) -> None:
        """Let go of all of them. Idempotent."""
        self._spool.close()


@dataclass(eq=False)
class SampledSuperbatch:
    """S batches that are sampled, but not planned.

    Attributes
    ----------
    first : int
        Number of the first in its iteration.
    error : Exception or None
        Why there are no more batches after these.
    pinned : PinnedRows or None
        The rows that were left out of the trace.
    """

    first: int
    kept: KeptSubgraphs
    trace: Trace
    notes: list[BatchNote]
    error: Exception | None
    pinned: PinnedRows | None = None

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self.kept.num_bytes + self.trace.num_bytes

    def subgraph(self, i: int) -> CompactSample:
        """Return the subgraph of batch i."""
        return self.kept.read(i)

    def forget_trace(self) -> None:
        """Let go of the trace: once a plan is made of it, or none will be. Idempotent.

        Its file stays, as long as the subgraphs' node ids are in it.
        """
        if self.kept.has_ids:
            self.trace.close()
            self.trace = Trace.of([])

    def close(self) -> None:
        """Let go of samples and trace. Idempotent."""
        self.kept.close()
        self.trace.close()


class Spools:
    """The samples, traces and plans of superbatches, in memory or in files of one directory.

    Parameters
    ----------
    tmpdir : Path
        Where a directory for files is made once there are any.
    most_in_memory : int
        Batches of a superbatch whose samples stay in memory; those of a longer one go to a file.
    table_bytes : int
        Memory for planning from files; 0: traces and plans stay in memory.
    purpose : str
        Purpose of the directory, for people who find it.
    """

    def __init__(
        self,
        tmpdir: Path,
        num_nodes: int,
        num_edges: int,
        *,
        most_in_memory: int,
        table_bytes: int,
        purpose: str,
    ) -> None:
        self.num_nodes, self.num_edges = num_nodes, num_edges
        self._tmpdir = tmpdir
        self._most_in_memory = most_in_memory
        self._table_bytes = table_bytes
        self._purpose = purpose
        self._directory: Path | None = None
        self._closing = ExitStack()

    @property
    def directory(self) -> Path:
        """The directory for files, which is removed by `close`."""
        if self._directory is None:
            run = RunDirectory.create(self._tmpdir, purpose=self._purpose)
            self._directory = self._closing.enter_context(run).path
        return self._directory

    def samples(self, name: str, num_batches: int, ids: FileSpool | None = None) -> KeptSubgraphs:
        """Return where the subgraphs of a superbatch wait.

        Parameters
        ----------
        ids : FileSpool, optional
            Will hold their node ids.
        """
        if num_batches <= self._most_in_memory:
            return KeptSubgraphs(MemorySpool(), ids)
        path = self.directory / f"batch-{name}"
        spool = FileSpool(path, num_batches, MAX_ARRAYS, what="the subgraph")
        self._closing.callback(spool.close)
        return KeptSubgraphs(spool, ids)

    def trace(self, name: str, num_batches: int) -> TraceBuilder:
        """Return where the trace of some batches goes."""
        if not self._table_bytes:
            return TraceBuilder(num_batches, self.num_nodes)
        trace = TraceBuilder(num_batches, self.num_nodes, self.directory / f"trace-{name}")
        self._closing.callback(trace.close)
        return trace

    def trace_again(
        self, sampled: SampledSuperbatch, span: range, pinned: PinnedRows | None, name: str
    ) -> Trace:
        """Return the trace of some batches of a superbatch, from their subgraphs."""
        trace = self.trace(name, len(span))
        for k, i in enumerate(span):
            ids = sampled.subgraph(i).n_id
            trace.put(k, ids if pinned is None else pinned.drop(ids))
        return trace.build()

    def plan(self, planner: Planner, trace: Trace, name: str) -> CachePlan:
        """Plan a superbatch, in files if its trace is in one."""
        if trace.file is None:
            return planner.plan(trace)
        place = PlanPlace(self.directory / f"plan-{name}", self._table_bytes)
        plan = cast("SpillingPlanner", planner).plan(trace, place)
        self._closing.callback(plan.close)
        return plan

    def sample(
        self,
        chunk: list[Coming],
        sampling: SamplingJob,
        *,
        bulk_bytes: int | None = None,
        check: Callable[[], None] = lambda: None,
        pinned: PinnedRows | None = None,
        most_threads: int | None = None,
        turn: SharedLock | None = None,
    ) -> SampledSuperbatch:
        """Sample batches until one cannot be, and keep them.

        Parameters
        ----------
        chunk : list of Coming
            The batches, of one iteration or of several in a row.
        bulk_bytes : int, optional
            Memory for those that are sampled together.
        check : callable, optional
            Called before each batch and after the last; raises if they are not wanted any more.
        pinned : PinnedRows, optional
            The rows to leave out of the trace; subgraphs keep all of their ids then.
        most_threads : int, optional
            Threads that sample, at most; by default as many as prepare batches.
        turn : SharedLock, optional
            Held as long as subgraphs take memory: shared for a batch, or alone for batches that are
            sampled together.
        """
        first, run = chunk[0].number, sampling.run
        num_threads = run.num_threads
        if most_threads is not None:
            num_threads = min(num_threads, most_threads)
        turn = turn or SharedLock()
        trace = self.trace(f"{first}", len(chunk))
        kept = self.samples(f"{first}", len(chunk), trace.file if pinned is None else None)
        labelled: dict[int, tuple[BatchKey, SeedLabels]] = {}
        notes: list[BatchNote] = []
        failure: Exception | None = None

        def request(place: int, coming: Coming) -> BatchRequest:
            check()
            seeds, key = sampling.select(coming)
            labelled[place] = key, seeds.labels
            return request_of(seeds, key)

        def keep(place: int, subgraph: Sample, seconds: float) -> tuple[float, int]:
            start = time.perf_counter()
            compact = CompactSample.of(subgraph, self.num_nodes, self.num_edges)
            trace.put(place, compact.n_id if pinned is None else pinned.drop(compact.n_id))
            kept.append(place, compact)
            return seconds + time.perf_counter() - start, subgraph.num_bytes

        release_memory()  # what preparing batches has left free
        unreleased = 0
        sampled = sample_in_order(
            sampling.sampler,
            chunk,
            request,
            keep,
            num_threads=num_threads,
            lookahead=lambda: 2 * max(1, num_threads),
            bulk_bytes=bulk_bytes,
            initializer=run.initializer,
            timeout_seconds=run.timeout_seconds,
            recorder=run.recorder,
            turn=partial(turn.alone if sampling.sampler.samples_together else turn.shared, check),
            is_held_up=lambda: turn.is_alone,
            describe=lambda place: chunk[min(place, len(chunk) - 1)].describe(),
        )
        progress = run.recorder.progress.phase("sample ahead", len(chunk), "batches")
        with closing(sampled), progress as phase:
            try:
                for place, (seconds, num_bytes) in enumerate(sampled):
                    notes.append(BatchNote(*labelled[place], seconds))
                    unreleased += num_bytes
                    if unreleased >= _RELEASED_BYTES:
                        release_heap()
                        unreleased = 0
                    phase.advance()
            except Exception as error:
                failure = error
        check()
        release_memory()  # of subgraphs as they were sampled, before as much is taken for the plan
        joined = trace.build()
        return SampledSuperbatch(first, kept, joined, notes, failure, pinned)

    def close(self) -> None:
        """Remove the files, and let go of all that waits. Idempotent."""
        self._closing.close()
