"""Batches sampled ahead a superbatch at a time, planned, and handed out with their plan (Ginex).

While the batches of one superbatch are assembled, those of the next are sampled by threads and
planned, which touches no row. A batch that is handed out knows its subgraph, and where each of
its rows comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.io.counts import NO_READS
from gnnstore.loaders.course import Course, FixedNodes
from gnnstore.loaders.pipeline import ordered_map
from gnnstore.loaders.planned_batch import PlannedBatch
from gnnstore.loaders.superbatch_run import Item, SamplingJob, SuperbatchRun
from gnnstore.loaders.timeline import OFF, Timeline

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gnnstore.io.planned_cache import PlannedCache
    from gnnstore.planning.planned_settings import PlannedPolicy
    from gnnstore.planning.superbatch_size import SuperbatchSize
    from gnnstore.sampling.disk import BatchRequest
    from gnnstore.sampling.neighbor import IndexDtype, NeighborSampler

# The superbatch that is assembled, and the one that is made meanwhile.
_SUPERBATCHES = 2


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
    fixed : FixedNodes, optional
        What the cache holds always; by default the policy decides.

    Attributes
    ----------
    cache, policy, size, tmpdir, disk_bytes, num_nodes, num_edges, index_dtype, fixed
        As given.
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
        fixed: FixedNodes | None = None,
    ) -> None:
        self.cache = cache
        self.policy: PlannedPolicy = policy
        self.size = size
        self.tmpdir = tmpdir
        self.disk_bytes = disk_bytes
        self.num_nodes = num_nodes
        self.num_edges = num_edges
        self.index_dtype: IndexDtype = index_dtype
        self._idle: Course | None = None  # of the last iteration, if it came to its end
        self.fixed = fixed
        self.seconds_planning = 0.0
        self.bytes_spilled = 0
        self.filling = NO_READS

    @property
    def num_slots(self) -> int:
        """Rows that there is room for."""
        return self.cache().num_slots

    @property
    def fills(self) -> bool:
        """Whether a cache that is empty is filled before the first batch."""
        return self.fixed is not None or self.size.fills(self.num_nodes)

    def begin_course(self) -> Course:
        """Take the cache over, from whoever has it."""
        return Course.begin(self.cache(), self.policy, self.fixed)

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
            course = self.begin_course()
        course.lease.rest(False)
        run = SuperbatchRun(
            self,
            course,
            SamplingJob(
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
            numbered = _chunks(enumerate(items), self.size.num_batches)
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
            run.course.lease.rest()
            self._idle = run.course


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
