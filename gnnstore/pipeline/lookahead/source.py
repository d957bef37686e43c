"""The batches of a loader that samples ahead, as a source of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from gnnstore.pipeline.batch import EpochRun, Planned, Samplers, SamplingSource, Task
from gnnstore.pipeline.lookahead.driver import SamplingJob
from gnnstore.pipeline.lookahead.epochs import NextEpoch, Superbatches
from gnnstore.pipeline.seeds.base import BatchKey, Seeds, SeedSource
from gnnstore.timeline import Timeline

if TYPE_CHECKING:
    from gnnstore.sampling.neighbor import NeighborSampler, SamplingConfig


class LooksAhead(Samplers, Protocol):
    """An open graph whose batches are sampled and planned ahead."""

    superbatches: Superbatches | None


class LookaheadSource(SamplingSource):
    """Samples and plans batches a superbatch at a time, and hands them out as they were planned.

    Parameters
    ----------
    graph : LooksAhead
    seeds : SeedSource
    config : SamplingConfig
    """

    def __init__(self, graph: LooksAhead, seeds: SeedSource, config: SamplingConfig) -> None:
        super().__init__(graph, seeds, config)
        self._superbatches = graph.superbatches

    @contextmanager
    def epoch(self, planned: Iterator[Planned], run: EpochRun) -> Iterator[Iterator[Task]]:
        """Give the tasks of a run."""
        if self._superbatches is None:
            raise TypeError("nothing looks ahead")
        seeds, sampler = self.seeds, self.sampler

        def following() -> NextEpoch | None:
            found = run.following()
            if found is None:
                return None
            coming, items = found
            return NextEpoch((coming.epoch, coming.first), items, _job(coming, seeds, sampler))

        with self._superbatches.run(
            planned,
            _job(run, seeds, sampler),
            key=(run.epoch, run.first),
            following=following,
        ) as tasks:
            yield tasks


def _job(run: EpochRun, seeds: SeedSource, sampler: NeighborSampler) -> SamplingJob:
    """Return how the batches of a run are sampled."""
    seed, epoch, recorder = run.seed, run.epoch, run.recorder

    def select(planned: Planned) -> tuple[Seeds, BatchKey]:
        batch, index = planned
        key = BatchKey(seed, epoch, batch)
        return seeds.select(index, key), key

    def timeline() -> Timeline:
        return recorder.timeline

    return SamplingJob(
        select,
        sampler,
        num_threads=run.num_threads,
        initializer=run.initializer,
        timeout_seconds=run.timeout_seconds,
        joins_in_threads=run.joins_in_threads,
        describe=run.describe,
        timeline=timeline,
    )
