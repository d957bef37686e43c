"""The batches of a loader that samples ahead, as a source of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from gnnstore.pipeline.batch import EpochRun, Planned, Samplers, SamplingSource, Task
from gnnstore.pipeline.lookahead.driver import SamplingJob
from gnnstore.pipeline.lookahead.epochs import NextEpoch, Superbatches
from gnnstore.pipeline.seeds.base import SeedSource

if TYPE_CHECKING:
    from gnnstore.sampling.neighbor import SamplingConfig


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
            sampling = SamplingJob(coming, seeds, sampler)
            return NextEpoch((coming.epoch, coming.first), items, sampling)

        with self._superbatches.run(
            planned,
            SamplingJob(run, seeds, sampler),
            key=(run.epoch, run.first),
            following=following,
        ) as tasks:
            yield tasks
