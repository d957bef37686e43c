"""Batches sampled ahead a superbatch at a time, planned, and handed out with their plan (Ginex).

While the batches of one superbatch are assembled, those of the next are sampled by threads and
planned, which touches no row. A batch that is handed out knows its subgraph, and where each of
its rows comes from. A superbatch may have the batches of several epochs, so that one pass over the
tables packs the rows of all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from gnnstore.pipeline.batch import EpochRun, Planned, Samplers, SamplingSource, Task
from gnnstore.pipeline.lookahead.driver import Coming, SamplingJob
from gnnstore.pipeline.lookahead.next_epoch import Carried, NextSuperbatch, Share
from gnnstore.pipeline.lookahead.producer import LookaheadJob, LookaheadProducer
from gnnstore.pipeline.lookahead.session import CacheSession
from gnnstore.pipeline.lookahead.superbatch import PlannedPart, PlannedTask, Portion, Superbatch
from gnnstore.seeds.base import SeedSource
from gnnstore.threads import ordered_map

if TYPE_CHECKING:
    from gnnstore.sampling.neighbor import SamplingConfig

# The superbatch that is assembled, and the one that is made meanwhile.
_SUPERBATCHES = 2
# A lease that was lost is not worth taking back for less: a plan is made, and its trace written.
_WORTH_PLANNING = 2


@dataclass(frozen=True, eq=False)
class NextEpoch:
    """The iteration that is expected to come next."""

    key: Hashable  # equal to that of the iteration, if it is the one
    items: Iterable[Planned]  # its batches in order
    sampling: SamplingJob  # the sampling of a superbatch
    # Returns the iteration after it; None if that is not known.
    following: Callable[[], NextEpoch | None] = lambda: None

    @property
    def coming(self) -> Iterator[Coming]:
        """Batches of the iteration, to be sampled."""
        return _coming(self.items, self.sampling)


class LookaheadEpochs:
    """Makes the superbatches of one loader, iteration after iteration."""

    def __init__(self, job: LookaheadJob) -> None:
        self.job = job
        self._idle: CacheSession | None = None  # of the last iteration, if it came to its end
        self._next: NextSuperbatch | None = None
        # A superbatch whose next share is the coming iteration's.
        self._carried: Carried | None = None
        # Iterations that came to their end since the cache was taken over.
        self._num_ended = 0
        # Whether a plan for the next iteration would be worth making: not if another loader uses
        # the cache between two iterations.
        self._plans_next = True

    @property
    def num_slots(self) -> int:
        """Rows that there is room for."""
        return self.job.cache().num_slots

    def _most_planned(self, producer: LookaheadProducer) -> int:
        """Return how many batches may be planned at a time, with the cache that there is."""
        return self.job.most_planned(self.job.pinned(producer.session))

    @contextmanager
    def run(
        self,
        items: Iterable[Planned],
        sampling: SamplingJob,
        *,
        key: Hashable = None,
        following: Callable[[], NextEpoch | None] = lambda: None,
    ) -> Iterator[Iterator[PlannedTask]]:
        """Sample, plan and hand out the batches of one iteration."""
        producer, carried, coming = self._begin(key, sampling)
        producer.session.lease.rest(False)
        size = self.job.size
        num_unplanned = 0 if carried else size.num_unplanned
        num_first = carried.shares[0].num_batches if carried else num_unplanned
        most = self._most_planned(producer)
        chunks = _Chunks(_coming(items, sampling), most, num_first)
        num_made = num_handed_out = 0

        def make(chunk: list[Coming]) -> Portion:
            nonlocal num_made
            if carried is not None and num_made == 0:
                portion = carried.take()
            else:
                is_planned = chunk[0].number >= num_unplanned
                superbatch = (producer.make if is_planned else producer.make_unplanned)(chunk)
                portion = Portion.of(superbatch, 0, len(chunk))
            num_made += 1
            return portion

        def make_next() -> None:
            nonlocal num_handed_out
            num_handed_out += 1
            is_last = chunks.are_all_taken and num_handed_out == chunks.num_taken
            if is_last and not coming and sampling.run.num_threads and self.job.size.overlaps:
                num_carried = len(carried.shares) if carried else 0
                coming.extend(self._make_next(producer, _after(following, num_carried)))

        with ExitStack() as stack:
            unless_kept = stack.enter_context(ExitStack())
            unless_kept.callback(producer.close)
            superbatches = ordered_map(
                make,
                chunks,
                num_threads=min(1, sampling.run.num_threads),
                lookahead=lambda: _SUPERBATCHES,
                describe="while sampling superbatch {} of the iteration".format,
                stop=producer.stop,
            )
            stack.enter_context(closing(superbatches))
            unless_done = stack.enter_context(ExitStack())
            unless_done.callback(_abandon, coming)
            tasks = _PlannedTasks(producer, superbatches, make_next, lambda: num_made)
            with closing(tasks):
                yield tasks
            unless_done.pop_all()
            self._num_ended += 1
            if carried is not None and carried.has_more:
                unless_kept.pop_all()
        if carried is not None and carried.has_more:
            carried.keep()
            self._carried = carried
        elif producer.is_followed:
            self._idle = producer.session
        for superbatch in coming:
            self._next = superbatch

    def _begin(
        self, key: Hashable, sampling: SamplingJob
    ) -> tuple[LookaheadProducer, Carried | None, list[NextSuperbatch]]:
        """Return an iteration's producer, its superbatch made before, and those being made."""
        session, self._idle = self._idle, None
        coming, self._next = self._next, None
        carried, self._carried = self._carried, None
        if carried is not None:
            producer = carried.producer
            if carried.is_for(key, sampling):
                self._plans_next = producer.session.lease.is_current
                carried.go_on(sampling)
                return producer, carried, [] if coming is None else [coming]
            carried.abandon()
        if session is not None:
            self._plans_next = session.lease.is_current
        if coming is not None:
            carried = coming.take() if coming.is_for(key, sampling) else None
            if carried is not None:
                producer = carried.producer
                producer.sampling = sampling
                if not producer.session.lease.is_current:
                    producer.take_over(_if_usable(session))
                return producer, carried, []
            coming.abandon()
        session = _if_usable(session)
        if session is None:
            session, self._num_ended = self.job.begin_session(), 0
        return LookaheadProducer(self.job, session, sampling), None, []

    def _make_next(
        self, producer: LookaheadProducer, following: NextEpoch | None
    ) -> Iterator[NextSuperbatch]:
        """Yield the first superbatch of the next iteration, if there is to be one."""
        if following is None:
            return
        most = self._most_planned(producer)
        chunk = next(_Chunks(following.coming, most), None)
        if chunk is None:
            return
        shares, sampling = [Share(following.key, len(chunk))], following.sampling
        # Where another loader uses the cache in between, what is planned beyond is planned again.
        while self._plans_next and len(shares) <= self._num_ended and len(chunk) < most:
            following = following.following()
            more = [] if following is None else list(islice(following.coming, most + 1))
            if following is None or not more or len(chunk) + len(more) > most:
                break
            chunk += more
            shares.append(Share(following.key, len(more)))
        own = LookaheadProducer(self.job, producer.session, sampling, producer.turn)
        yield NextSuperbatch(own, chunk, shares, plans=self._plans_next)


class LooksAhead(Samplers, Protocol):
    """An open graph whose batches are sampled and planned ahead."""

    superbatches: LookaheadEpochs


class LookaheadSource(SamplingSource):
    """Samples and plans batches a superbatch at a time, and hands them out as they were planned."""

    def __init__(self, graph: LooksAhead, seeds: SeedSource, config: SamplingConfig) -> None:
        super().__init__(graph, seeds, config)
        self._superbatches = graph.superbatches

    @contextmanager
    def epoch(self, planned: Iterator[Planned], run: EpochRun) -> Iterator[Iterator[Task]]:
        """Give the tasks of a run."""
        seeds, sampler = self.seeds, self.sampler

        def following(run: EpochRun) -> NextEpoch | None:
            found = run.following()
            if found is None:
                return None
            coming, items = found
            sampling, then = SamplingJob(coming, seeds, sampler), partial(following, coming)
            return NextEpoch((coming.epoch, coming.first), items, sampling, then)

        with self._superbatches.run(
            planned,
            SamplingJob(run, seeds, sampler),
            key=(run.epoch, run.first),
            following=partial(following, run),
        ) as tasks:
            yield tasks


class _PlannedTasks(Iterator[PlannedTask]):
    """The batches of some superbatches, one superbatch after the other.

    A session may be overtaken: where another loader takes the cache over, batches that were planned
    before would read every row. When that loader is done, the rest is planned again.
    """

    def __init__(
        self,
        producer: LookaheadProducer,
        superbatches: Iterator[Portion],
        then: Callable[[], None],
        num_made: Callable[[], int],
    ) -> None:
        self._num_made = num_made
        self._num_begun = 0
        self._num_left = 0  # batches of the superbatch that was begun last
        self._tasks = self._batches_of(producer, superbatches, then)

    def __next__(self) -> PlannedTask:
        return next(self._tasks)

    def close(self) -> None:
        """Hand out no more: begun and not closed, its generator would hold this and the loader."""
        self._tasks.close()

    def is_ready(self) -> bool:
        """Whether the next batch has been sampled and planned."""
        return self._num_left > 0 or self._num_made() > self._num_begun

    def _batches_of(
        self,
        producer: LookaheadProducer,
        superbatches: Iterator[Portion],
        then: Callable[[], None],
    ) -> Generator[PlannedTask, None, None]:
        job = producer.job
        for portion in superbatches:
            superbatch = portion.superbatch
            self._num_begun += 1
            made = superbatch.seconds_planning, superbatch.bytes_spilled
            job.totals.add(superbatch.part, *made, portion.share)
            for i in range(portion.begin, portion.end):
                self._num_left = portion.end - i - 1
                part = _planned(producer, superbatch, i)
                if i == portion.begin and superbatch.sampled.error is None:
                    then()
                yield PlannedTask(superbatch, part, i, job.index_dtype)
            if portion.error is not None:
                raise portion.error


def _abandon(superbatches: list[NextSuperbatch]) -> None:
    for superbatch in superbatches:
        superbatch.abandon()


def _coming(items: Iterable[Planned], sampling: SamplingJob) -> Iterator[Coming]:
    """Yield the batches of an iteration, to be sampled."""
    for number, planned in enumerate(items):
        yield Coming(number, planned, sampling.run)


def _after(following: Callable[[], NextEpoch | None], num_epochs: int) -> NextEpoch | None:
    """Return the iteration after so many others that follow; None if it is not known."""
    found = following()
    for _ in range(num_epochs):
        found = None if found is None else found.following()
    return found


def _planned(producer: LookaheadProducer, superbatch: Superbatch, i: int) -> PlannedPart | None:
    """Return how batch i is planned, planning it again where that is of use; None: it is not."""
    part = superbatch.part
    if part is None:
        return None
    is_new = i >= part.end
    again = is_new or _may_take_back(producer, part, len(superbatch) - i)
    if again and producer.plan_again(superbatch, part, i):
        return superbatch.part
    return None if is_new else part


def _may_take_back(producer: LookaheadProducer, part: PlannedPart, num_left: int) -> bool:
    """Whether another loader took the cache over, and has no use for it any more."""
    if not part.lease.is_overtaken:
        return False
    is_free = producer.job.cache().is_free or producer.session.lease.is_current
    return is_free and num_left >= _WORTH_PLANNING


def _if_usable(session: CacheSession | None) -> CacheSession | None:
    """Return a session that has the cache, none of whose batches is yet to come."""
    is_usable = session is not None and session.lease.is_current and session.is_followed
    return session if is_usable else None


class _Chunks(Iterator[list[Any]]):
    """Lists of `size` items; what came before an error is yielded before it is raised."""

    def __init__(self, items: Iterable[Any], size: int, num_first: int = 0) -> None:
        self._items = iter(items)
        self._size = size
        self._num_first = num_first
        self._error: Exception | None = None
        self.are_all_taken = False
        self.num_taken = 0

    def __next__(self) -> list[Any]:
        chunk: list[Any] = []
        size, self._num_first = self._num_first or self._size, 0
        while len(chunk) < size and not self.are_all_taken:
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
