"""Batches sampled ahead a superbatch at a time, planned, and handed out with their plan (Ginex).

While the batches of one superbatch are assembled, the next is sampled, planned and packed by a
thread. During the last one of an epoch this is the first of the next epoch, which may have the
batches of several epochs, so that one pass over the tables packs the rows of all.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from gnnstore._core import empty
from gnnstore.features.planned import SlotCache
from gnnstore.pipeline.batch import Batch, EpochRun, Samplers, SamplingSource
from gnnstore.pipeline.lookahead.cuts import BatchLists, first_list
from gnnstore.pipeline.lookahead.producer import LookaheadJob, Producer, Session
from gnnstore.pipeline.lookahead.superbatch import EpochSlice, PlannedLocation, Superbatch
from gnnstore.sampling.neighbor import NeighborSampler, SamplingConfig
from gnnstore.seeds.base import SeedSource
from gnnstore.threads import THREAD_NAME, Background, Finalizer, ordered_map


class NextSuperbatch:
    """A superbatch that a thread makes before the iterations that have its batches begin.

    If the next iteration is another one, the loader is forgotten, or the interpreter ends, it is
    given up, and its files go.
    """

    def __init__(
        self,
        producer: Producer,
        parts: list[list[Batch]],
        *,
        plans: bool,
    ) -> None:
        self.producer = producer  # keeps its files
        # The keys of the batches of each iteration still to come.
        self.shares = [[batch.key for batch in part] for part in parts]
        self.plans = plans  # whether it is planned, and not only sampled
        self._begin = 0  # the first batch that has not been handed out
        producer.waits_for_others = True
        # The thread has no reference to this, so that it does not keep the loader alive.
        work = partial(_make, producer, [batch for part in parts for batch in part], plans)
        self.making = Background(work, THREAD_NAME, daemon=True)
        self.cancel = Finalizer(self, _cancel, producer, self.making)

    def is_for(self, lists: BatchLists, sampler: NeighborSampler) -> bool:
        """Whether an iteration begins with the next batches in their order, in this process."""
        is_own = os.getpid() == self.producer.pid and self.producer.sampler is sampler
        return is_own and bool(self.shares) and lists.begins_with(self.shares[0])

    def is_made(self) -> bool:
        """Wait until it is made; return whether it could be."""
        self.producer.waits_for_others = False
        try:
            self.making.result()
        except Exception as error:
            # A lasting cause shows again when an iteration that needs the superbatch makes it.
            _log.debug("the next superbatch cannot be made yet: %s", error)
            return False
        return True

    @property
    def superbatch(self) -> Superbatch:
        """The superbatch, once it is made."""
        return self.making.result()

    @property
    def num_left(self) -> int:
        """Batches that have not been handed out."""
        return len(self.superbatch) - self._begin

    @property
    def is_planned(self) -> bool:
        """Whether it was planned for what the slots held then."""
        return self.superbatch.slots is not None

    def take(self) -> EpochSlice:
        """Return the batches of the next iteration, planned."""
        if not self.is_planned:
            self.producer.plan_and_pack(self.superbatch)
        taken = EpochSlice.from_superbatch(self.superbatch, self._begin, len(self.shares.pop(0)))
        self._begin = taken.end
        return taken


def _make(producer: Producer, batches: list[Batch], plans: bool) -> Superbatch:
    superbatch = producer.sample(0, batches)
    if plans:
        return producer.plan_and_pack(superbatch)
    producer.session = None  # its slots may be another loader's by then
    return superbatch


def _cancel(producer: Producer, making: Background[Superbatch]) -> None:
    producer.cancel()
    try:
        making.join()
    finally:
        producer.close()


# Superbatches at a time: one that is assembled, and one that is made meanwhile.
_SUPERBATCHES = 2

_NO_SLOTS = (
    "another iteration over the store is open, which has the memory of cached rows: this one reads "
    "each batch's rows from disk; finish the other one, or close it"
)

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Iteration:
    """The iteration that has the slots, and what its end leaves to the next one."""

    _is_done: Callable[[], bool]  # whether all of its batches have their rows
    _leave: Callable[[], None]
    is_over: bool = False
    pid: int = field(default_factory=os.getpid)

    def close_if_done(self) -> bool:
        """Whether it is done; then what was made ahead is left to the next iteration."""
        if not self.is_over and self._is_done():
            self.is_over = True
            self._leave()
        return self.is_over


class _Kept(NamedTuple):
    """What an iteration that came to its end leaves to the next one."""

    session: Session | None = None
    coming: NextSuperbatch | None = None  # made ahead, for the next iteration or a later one
    carried: NextSuperbatch | None = None  # begun, with batches of the next iteration


class LookaheadEpochs:
    """Makes the superbatches of one loader, iteration after iteration."""

    def __init__(
        self,
        job: LookaheadJob,
        take_slots: Callable[[LookaheadEpochs], SlotCache | None],
    ) -> None:
        self.job = job
        self._take_slots = take_slots
        # The iteration that has the slots. It keeps the files of its superbatches, which go with it
        # where Ctrl-C came while it was closed.
        self._open: weakref.ref[_Iteration] | None = None
        # Set at once: with a part of it, batches would wait for turns that are never taken.
        self._kept = _Kept()
        # Iterations that came to their end since the slots were taken.
        self._num_ended = 0
        # Whether a plan for the next iteration is worth making: not if another loader takes the
        # slots between two iterations.
        self._plans_next = True
        self._has_told = False  # that an iteration has no slots

    def close_if_done(self) -> bool:
        """Whether all batches of the last iteration have their rows: the slots are free.

        A loop that counts batches, as Lightning's, asks for none after the last one: its iteration
        is closed after validation, or when the next one begins.
        """
        iteration = None if self._open is None else self._open()
        return iteration is None or iteration.pid != os.getpid() or iteration.close_if_done()

    def release_slots(self) -> None:
        """Free what was planned for the slots: another loader takes their memory."""
        self._plans_next, self._num_ended = False, 0
        kept, self._kept = self._kept, _Kept()
        if kept.coming is not None and not kept.coming.plans:
            self._kept = _Kept(coming=kept.coming)
        elif kept.coming is not None:
            kept.coming.cancel()
        if kept.carried is not None:
            kept.carried.cancel()

    @contextmanager
    def run(
        self,
        batches: Iterator[Batch],
        run: EpochRun,
        seeds: SeedSource,
        sampler: NeighborSampler,
    ) -> Iterator[Iterator[Batch]]:
        """Sample, plan and hand out the batches of one iteration."""
        self.close_if_done()
        # Until its superbatches have begun, no other loader takes the slots.
        former, beginning = self._open, _Iteration(lambda: False, lambda: None)
        self._open = weakref.ref(beginning)
        try:
            slots = self._take_slots(self)
        except BaseException:
            beginning.is_over = True
            raise
        if slots is None:
            self._open = former
            if not self._has_told:
                _log.warning("%s", _NO_SLOTS)
            self._has_told = True
            coming = self._kept.coming
            if coming is not None:  # sampled for this iteration, if not for one before
                self._kept = self._kept._replace(coming=None)
                coming.cancel()
            if self.job.windows is None or self.job.windows.size == 1:
                yield batches
                return
            producer = Producer(self.job, seeds, sampler, run)
            lists = BatchLists(batches, self.job.windows.size)
            windows = map(partial(_window, producer), lists)
            with closing(producer), closing(_PlannedBatches(self.job, windows)) as in_order:
                yield in_order
            return
        try:
            with self._run(batches, run, seeds, sampler, slots) as planned:
                yield planned
        finally:
            beginning.is_over = True

    @contextmanager
    def _run(
        self,
        batches: Iterator[Batch],
        run: EpochRun,
        seeds: SeedSource,
        sampler: NeighborSampler,
        slots: SlotCache,
    ) -> Iterator[Iterator[Batch]]:
        size = self.job.size
        lists = BatchLists(batches, size.num_batches)
        ahead, coming, session = self._begin(lists, run, sampler, slots)
        own = partial(Producer, self.job, seeds, sampler, run, session=session)
        producer = ahead.producer if ahead else own()
        num_unplanned = 0 if ahead else size.num_unplanned
        lists.begin_with(len(ahead.shares[0]) if ahead else num_unplanned)
        num_made = num_handed_out = 0
        is_carried = False  # whether the producer serves a later iteration

        def make(numbered: tuple[int, list[Batch]]) -> EpochSlice:
            nonlocal num_made
            first, chunk = numbered
            if ahead is not None and num_made == 0:
                taken = ahead.take()
                # The iteration's own batches have the position at which a state goes on.
                for i in range(taken.begin, taken.end):
                    taken.superbatch.batches[i].position = chunk[i - taken.begin].position
            else:
                is_planned = first >= num_unplanned
                superbatch = (producer.make if is_planned else producer.make_unplanned)(
                    first, chunk
                )
                taken = EpochSlice.from_superbatch(superbatch, 0, len(chunk))
            num_made += 1
            return taken

        def make_next() -> None:
            nonlocal num_handed_out
            num_handed_out += 1
            is_last = lists.are_all_taken and num_handed_out == lists.num_taken
            if is_last and not coming and run.num_threads and size.overlaps:
                coming.extend(self._make_next(producer, run, len(ahead.shares) if ahead else 0))

        def is_done() -> bool:
            if not lists.are_all_taken or num_handed_out < lists.num_taken:
                return False
            return producer.is_followed(ahead.num_left if ahead else 0)

        def leave() -> None:
            nonlocal is_carried
            is_carried = ahead is not None and bool(ahead.shares) and ahead.num_left > 0
            self._keep(ahead if is_carried else None, coming, session)

        iteration = _Iteration(is_done, leave)
        self._open = weakref.ref(iteration)
        with ExitStack() as stack:

            @stack.callback
            def close() -> None:
                try:
                    if not iteration.close_if_done():
                        session.turns.cancel()  # what waits for earlier batches fails
                        for superbatch in coming:
                            superbatch.cancel()
                finally:
                    if not is_carried:
                        producer.close()
                    iteration.is_over = True

            superbatches = ordered_map(
                make,
                lists,
                num_threads=min(1, run.num_threads),
                lookahead=lambda: _SUPERBATCHES,
                describe="while sampling superbatch {} of the iteration".format,
                stop=lambda: None if iteration.close_if_done() else producer.cancel(),
            )
            stack.enter_context(closing(superbatches))
            planned = _PlannedBatches(self.job, superbatches, make_next, lambda: num_made)
            with closing(planned):
                yield planned

    def _keep(
        self, carried: NextSuperbatch | None, coming: list[NextSuperbatch], session: Session
    ) -> None:
        self._num_ended += 1
        self._kept = _Kept(session, next(iter(coming), self._kept.coming), carried)

    def _begin(
        self, lists: BatchLists, run: EpochRun, sampler: NeighborSampler, slots: SlotCache
    ) -> tuple[NextSuperbatch | None, list[NextSuperbatch], Session]:
        """Return an iteration's superbatch made ahead, those being made, and its session."""
        (session, coming, carried), self._kept = self._kept, _Kept()
        if session is not None:  # the slots are as the last iteration left them
            self._plans_next = True
        if carried is not None:
            if session is not None and carried.is_for(lists, sampler):
                carried.producer.go_on(run)
                return carried, [] if coming is None else [coming], session
            carried.cancel()
            session = None  # what was planned will not be followed
        if coming is not None:
            is_made = coming.is_for(lists, sampler) and coming.is_made()
            # Planned for slots that are not followed on, it is of no use.
            if is_made and not (coming.is_planned and session is None):
                producer = coming.producer
                producer.run = run
                producer.session = session or self._new_session(slots)
                return coming, [], producer.session
            coming.cancel()
            session = None if coming.plans else session
        return None, [], session or self._new_session(slots)

    def _new_session(self, slots: SlotCache) -> Session:
        self._num_ended = 0
        return Session.begin(slots, self.job.policy)

    def _make_next(
        self, producer: Producer, run: EpochRun, num_carried: int
    ) -> Iterator[NextSuperbatch]:
        """Yield the first superbatch of the iteration after this and those carried, if known."""
        following = run.following()
        for _ in range(num_carried):
            following = None if following is None else following[0].following()
        if following is None:
            return
        # Where another loader takes the slots in between, what is planned beyond is lost.
        most_runs = 1 + self._num_ended if self._plans_next else 1
        parts = first_list(following, self.job.size.num_batches, most_runs)
        if not parts:
            return
        own = Producer(
            self.job,
            producer.seeds,
            producer.sampler,
            parts[0][0],
            session=producer.session,
        )
        yield NextSuperbatch(own, [batches for _, batches in parts], plans=self._plans_next)


def _window(producer: Producer, numbered: tuple[int, list[Batch]]) -> EpochSlice:
    """Put a window's batches in order, to be handed out without a plan."""
    superbatch = producer.make_unplanned(*numbered)
    return EpochSlice.from_superbatch(superbatch, 0, len(numbered[1]))


class LooksAhead(Samplers, Protocol):
    """An open graph whose batches are sampled and planned ahead."""

    superbatches: LookaheadEpochs


class LookaheadSource(SamplingSource):
    """Samples and plans batches a superbatch at a time, and hands them out as they were planned."""

    def __init__(self, graph: LooksAhead, seeds: SeedSource, config: SamplingConfig) -> None:
        super().__init__(graph, seeds, config)
        self._superbatches = graph.superbatches

    @contextmanager
    def epoch(self, batches: Iterator[Batch], run: EpochRun) -> Iterator[Iterator[Batch]]:
        """Give the batches of a run, each with its place in a superbatch."""
        with self._superbatches.run(batches, run, self.seeds, self.sampler) as planned:
            yield planned

    def stage_of(self, batch: Batch) -> str:
        """Return the name of preparing a batch, on a timeline."""
        return "sampling" if batch.place is None else "recalling"

    def prepare(self, batch: Batch) -> None:
        """Recall a batch as it was sampled ahead, or sample it now."""
        if batch.place is None:
            super().prepare(batch)
            return
        superbatch, i = batch.place.superbatch, batch.place.i
        before = () if batch.link is None else (batch.link.nodes_before,)
        compact, step, batch.split = superbatch.recall(i, *before)
        batch.place = PlannedLocation(superbatch, i, step)
        batch.sample = compact.expand(self._superbatches.job.index_dtype, empty)

    def gather(self, batch: Batch) -> None:
        """Gather the rows that the plan provides for, if there is one."""
        if batch.place is None or batch.sample is None:
            return
        superbatch, i, step, _ = batch.place
        batch.rows = superbatch.edge_rows_of(i, batch.sample)
        if step is None:
            return
        batch.rows |= superbatch.gather(i, step, batch.rows_memory, batch.decodings)
        batch.place = PlannedLocation(superbatch, i, has_rows=True)

    def release(self, batch: Batch, error: BaseException | None = None) -> None:
        """Give up the place of its packed rows, and its turn if it failed."""
        place, batch.place = batch.place, None
        if place is not None:
            place.superbatch.release(place.i, None if place.has_rows else error)


class _PlannedBatches(Iterator[Batch]):
    """The batches of some superbatches, one superbatch after the other."""

    def __init__(
        self,
        job: LookaheadJob,
        superbatches: Iterator[EpochSlice],
        then: Callable[[], None] = lambda: None,
        num_made: Callable[[], int] = lambda: 0,
    ) -> None:
        self._num_made = num_made
        self._num_begun = 0
        self._num_left = 0  # batches of the superbatch that was begun last
        self._batches = self._batches_of(job, superbatches, then)

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        """Hand out no more: begun and not closed, its generator would hold this and the loader."""
        self._batches.close()

    def is_ready(self) -> bool:
        """Whether the next batch has been sampled and planned."""
        return self._num_left > 0 or self._num_made() > self._num_begun

    def _batches_of(
        self, job: LookaheadJob, superbatches: Iterator[EpochSlice], then: Callable[[], None]
    ) -> Generator[Batch, None, None]:
        for each in superbatches:
            superbatch = each.superbatch
            self._num_begun += 1
            job.totals.add(superbatch, (each.end - each.begin) / max(1, len(superbatch)))
            for i in range(each.begin, each.end):
                self._num_left = each.end - i - 1
                if i == each.begin and superbatch.error is None:
                    then()
                batch = superbatch.batches.pop(i)
                batch.place = PlannedLocation(superbatch, i)
                yield batch
            if (error := each.error) is not None:
                try:
                    raise error
                finally:
                    del error, each, superbatch  # else error, traceback and frame hold each other
