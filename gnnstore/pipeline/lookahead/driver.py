"""Samples batches one after the other, or together, in the way that suits where the graph lies."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gnnstore._core import release_heap, release_memory
from gnnstore.pipeline.batch import EpochRun, Planned, Recorder
from gnnstore.pipeline.lookahead.spools import BatchNote, SampledSuperbatch, Spools
from gnnstore.sampling.compact import CompactSample
from gnnstore.sampling.neighbor import BatchRequest, NeighborSampler, Sample
from gnnstore.threads import SharedLock, ordered_map

if TYPE_CHECKING:
    from gnnstore.features.pinned import PinnedRows
    from gnnstore.seeds.base import BatchKey, SeedLabels, Seeds, SeedSource

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
    """Sample batches in threads; or together, where each hop is then one pass over a file."""
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
    """A batch that is to be sampled."""

    number: int  # its place in its iteration
    planned: Planned
    run: EpochRun  # the iteration that it belongs to

    def describe(self) -> str:
        """Return a description of the batch, to be noted on errors."""
        return self.run.describe(self.number)


@dataclass(frozen=True, eq=False)
class SamplingJob:
    """The sampler and the seeds of a superbatch, and the run that samples it."""

    run: EpochRun  # without threads in it, whoever asks for a superbatch samples it
    seeds: SeedSource
    sampler: NeighborSampler

    def select(self, coming: Coming) -> tuple[Seeds, BatchKey]:
        """Return the seeds of a batch, and its key."""
        batch, index = coming.planned
        key = coming.run.key(batch)
        return self.seeds.select(index, key), key

    def sample(
        self,
        chunk: list[Coming],
        spools: Spools,
        *,
        bulk_bytes: int | None = None,
        check: Callable[[], None] = lambda: None,
        pinned: PinnedRows | None = None,
        most_threads: int | None = None,
        turn: SharedLock | None = None,
    ) -> SampledSuperbatch:
        """Sample batches until one cannot be, and keep them."""
        first, run = chunk[0].number, self.run
        num_threads = run.num_threads
        if most_threads is not None:
            num_threads = min(num_threads, most_threads)
        turn = turn or SharedLock()
        trace = spools.trace(f"{first}", len(chunk))
        kept = spools.samples(f"{first}", len(chunk), trace.file if pinned is None else None)
        labelled: dict[int, tuple[BatchKey, SeedLabels]] = {}
        notes: list[BatchNote] = []
        failure: Exception | None = None

        def request(place: int, coming: Coming) -> BatchRequest:
            check()
            seeds, key = self.select(coming)
            labelled[place] = key, seeds.labels
            return request_of(seeds, key)

        def keep(place: int, subgraph: Sample, seconds: float) -> tuple[float, int]:
            start = time.perf_counter()
            compact = CompactSample.of(subgraph, spools.num_nodes, spools.num_edges)
            trace.put(place, compact.n_id if pinned is None else pinned.drop(compact.n_id))
            kept.append(place, compact)
            return seconds + time.perf_counter() - start, subgraph.num_bytes

        release_memory()  # what preparing batches has left free
        unreleased = 0
        sampled = sample_in_order(
            self.sampler,
            chunk,
            request,
            keep,
            num_threads=num_threads,
            lookahead=lambda: 2 * max(1, num_threads),
            bulk_bytes=bulk_bytes,
            initializer=run.initializer,
            timeout_seconds=run.timeout_seconds,
            recorder=run.recorder,
            turn=partial(turn.alone if self.sampler.samples_together else turn.shared, check),
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
