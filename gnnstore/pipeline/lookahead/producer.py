"""Batches sampled ahead a superbatch at a time, planned, and handed out with their plan (Ginex).

While the batches of one superbatch are assembled, those of the next are sampled by threads and
planned, which touches no row. A batch that is handed out knows its subgraph, and where each of
its rows comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.parallel import ordered_map
from gnnstore.pipeline.batch import Planned
from gnnstore.pipeline.lookahead.driver import SampledSuperbatch, SamplingJob
from gnnstore.pipeline.lookahead.handover import hand_out
from gnnstore.pipeline.lookahead.job import SuperbatchJob, Totals
from gnnstore.pipeline.lookahead.maker import SuperbatchMaker
from gnnstore.pipeline.lookahead.next_epoch import Made, NextSuperbatch
from gnnstore.pipeline.lookahead.packer import Room
from gnnstore.pipeline.lookahead.session import Course, FixedNodes
from gnnstore.pipeline.lookahead.superbatch import PlannedTask, Superbatch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gnnstore.caching.policies.base import CachePolicy
    from gnnstore.features.tiers.planned import PlannedCache
    from gnnstore.pipeline.superbatch_size import SuperbatchSize
    from gnnstore.sampling.neighbor import IndexDtype

# The superbatch that is assembled, and the one that is made meanwhile.
_SUPERBATCHES = 2


@dataclass(frozen=True, eq=False)
class Following:
    """The iteration that is expected to come next.

    Attributes
    ----------
    key : object
        Equal to that of the iteration, if it is the one.
    items : iterable
        Its batches in order.
    sampling : SamplingJob
        How they are sampled. It lives as long as that takes, so it should not hold the loader.
    """

    key: Hashable
    items: Iterable[Planned]
    sampling: SamplingJob


class Superbatches:
    """Makes the superbatches of one loader, iteration after iteration.

    Parameters
    ----------
    cache : callable
        Returns the slots. They may be shared with other loaders, which take turns.
    policy : CachePolicy
    size : SuperbatchSize
        As it was decided.
    packs : bool
        Whether missed rows are packed.
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
    degrees : callable, optional
        Returns the nodes' out-degrees, new ones each time; None if there is no memory for them.

    Attributes
    ----------
    cache, policy, size, packs, tmpdir, num_nodes, num_edges, index_dtype, fixed, degrees
        As given.
    room : Room
        For packed rows.
    totals : Totals
        What all iterations have taken.
    """

    def __init__(
        self,
        cache: Callable[[], PlannedCache],
        policy: CachePolicy,
        size: SuperbatchSize,
        *,
        packs: bool = False,
        tmpdir: Path,
        disk_bytes: int,
        num_nodes: int,
        num_edges: int,
        index_dtype: IndexDtype,
        fixed: FixedNodes | None = None,
        degrees: Callable[[], npt.NDArray[np.uint32] | None] = lambda: None,
    ) -> None:
        self.cache = cache
        self.policy = policy
        self.packs = packs
        self.size = size
        self.tmpdir = tmpdir
        self.num_nodes = num_nodes
        self.num_edges = num_edges
        self.index_dtype: IndexDtype = index_dtype
        self.fixed = fixed
        self.degrees = degrees
        self.totals = Totals()
        self.room = Room(disk_bytes)
        self._idle: Course | None = None  # of the last iteration, if it came to its end
        self._next: NextSuperbatch | None = None
        # Whether a plan for the next iteration would be worth making: not if another loader uses
        # the cache between two iterations.
        self._plans_next = True

    @property
    def num_slots(self) -> int:
        """Rows that there is room for."""
        return self.cache().num_slots

    @contextmanager
    def run(
        self,
        items: Iterable[Planned],
        sampling: SamplingJob,
        *,
        key: Hashable = None,
        following: Callable[[], Following | None] = lambda: None,
    ) -> Iterator[Iterator[PlannedTask]]:
        """Sample, plan and hand out the batches of one iteration.

        Parameters
        ----------
        items : iterable
            The batches in order; consumed in the consumer's thread, two superbatches ahead.
        sampling : SamplingJob
            Without threads in it, the consumer's samples and plans.
        key : object
            What this iteration is, as one before may have told with `following`.
        following : callable, optional
            Returns the next iteration, if it is known. Its first superbatch is made once the
            last of this one is, if disk has room for both.

        Yields
        ------
        iterator of PlannedTask
            To be prepared in any order, joined in theirs. Where a batch cannot be sampled, it
            raises that error once those before it have been handed out.
        """
        maker, made = self._begin(key, sampling)
        maker.course.lease.rest(False)
        chunks = _Chunks(enumerate(items), self.size.num_batches)
        coming: list[NextSuperbatch] = []
        num_handed_out = 0

        def make(chunk: list[tuple[int, Planned]]) -> Superbatch:
            first = made.pop() if made else None
            if isinstance(first, SampledSuperbatch):
                return maker.finish(first)
            return maker.make(chunk) if first is None else first

        def make_next() -> None:
            nonlocal num_handed_out
            num_handed_out += 1
            is_last = chunks.are_all_taken and num_handed_out == chunks.num_taken
            if is_last and sampling.num_threads and self.size.overlaps:
                coming.extend(self._make_next(maker, following()))

        with ExitStack() as stack:
            stack.callback(maker.close)
            superbatches = ordered_map(
                make,
                chunks,
                num_threads=min(1, sampling.num_threads),
                lookahead=lambda: _SUPERBATCHES,
                describe="while sampling superbatch {} of the iteration".format,
                stop=maker.stop,
            )
            stack.enter_context(closing(superbatches))
            unless_done = stack.enter_context(ExitStack())
            unless_done.callback(lambda: [superbatch.give_up() for superbatch in coming])
            yield hand_out(maker, superbatches, make_next)
            unless_done.pop_all()
        if maker.is_followed:
            self._idle = maker.course
        for superbatch in coming:
            self._next = superbatch

    def forget_next(self) -> None:
        """Give up what is being made, or was, for an iteration that has not begun."""
        coming, self._next = self._next, None
        if coming is not None:
            coming.give_up()

    def _begin(self, key: Hashable, sampling: SamplingJob) -> tuple[SuperbatchMaker, list[Made]]:
        """Return what makes an iteration's superbatches, and the first one if there is one."""
        course, self._idle = self._idle, None
        coming, self._next = self._next, None
        if course is not None:
            self._plans_next = course.lease.is_current
        if coming is not None:
            is_it = coming.key == key and coming.maker.sampling.sampler is sampling.sampler
            made = coming.take() if is_it else None
            if made is not None:
                maker = coming.maker
                maker.sampling = sampling
                if not maker.course.lease.is_current:
                    maker.take_over(_if_usable(course))
                return maker, [made]
            coming.give_up()
        course = _if_usable(course) or self._job().begin_course()
        return SuperbatchMaker(self._job(), course, sampling), []

    def _make_next(
        self, maker: SuperbatchMaker, following: Following | None
    ) -> Iterator[NextSuperbatch]:
        """Yield the first superbatch of the next iteration, if there is to be one."""
        if following is None:
            return
        chunk = next(_Chunks(enumerate(following.items), self.size.num_batches), None)
        if chunk is not None:
            own = SuperbatchMaker(self._job(), maker.course, following.sampling)
            yield NextSuperbatch(following.key, own, chunk, plans=self._plans_next)

    def _job(self) -> SuperbatchJob:
        return SuperbatchJob(
            self.cache,
            self.policy,
            self.packs,
            self.size,
            self.tmpdir,
            self.room,
            self.num_nodes,
            self.num_edges,
            self.index_dtype,
            self.fixed,
            self.degrees,
            self.totals,
        )


def _if_usable(course: Course | None) -> Course | None:
    """Return a course that has the cache, none of whose batches is yet to come.

    The process that this one was forked from may have planned some, which nobody will assemble.
    """
    is_usable = course is not None and course.lease.is_current and course.is_followed
    return course if is_usable else None


class _Chunks(Iterator[list[Any]]):
    """Lists of `size` items; what came before an error is yielded before it is raised."""

    def __init__(self, items: Iterable[Any], size: int) -> None:
        self._items = iter(items)
        self._size = size
        self._error: Exception | None = None
        self.are_all_taken = False
        self.num_taken = 0

    def __next__(self) -> list[Any]:
        chunk: list[Any] = []
        while len(chunk) < self._size and not self.are_all_taken:
            try:
                chunk.append(next(self._items))
            except StopIteration:
                self.are_all_taken = True
            except Exception as error:
                self.are_all_taken, self._error = True, error
        if chunk:
            self.num_taken += 1
            return chunk
        ended_by, self._error = self._error, None
        raise StopIteration if ended_by is None else ended_by
