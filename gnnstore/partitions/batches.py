"""Batches of the states of an epoch: each is sampled while its state is in memory."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError
from gnnstore.features.memory import MemoryRows
from gnnstore.partitions.buffer import StateToRead
from gnnstore.pipeline.batch import BatchSource, EpochRun, Planned, Sampled, Task, reselected
from gnnstore.sampling.neighbor import NeighborSampler, SamplingConfig, seeds_alone
from gnnstore.seeds.base import BatchKey

if TYPE_CHECKING:
    from torch_geometric.sampler import SamplerOutput

    from gnnstore.features.source import Rows
    from gnnstore.partitions.buffer import ResidentState, StateBuffer, StatesAhead
    from gnnstore.partitions.order import PartitionOrder
    from gnnstore.partitions.seeds import SeedsByState
    from gnnstore.sampling.neighbor import IndexDtype


class Partitioned(Protocol):
    """The partitions of a loader, open; pickles as what is to be opened."""

    @property
    def buffer(self) -> StateBuffer:
        """The buffer that holds partitions in memory."""

    @property
    def seeds(self) -> SeedsByState:
        """The source of seeds."""

    @property
    def paths(self) -> Mapping[str, str]:
        """Path in the store of each node attribute by its name."""

    @property
    def index_dtype(self) -> IndexDtype:
        """Element type of ids in batches."""


class PartitionBatches(BatchSource):
    """The batches of a loader by partitions."""

    def __init__(self, of: Partitioned, order: PartitionOrder, config: SamplingConfig) -> None:
        self.of, self.order, self.config = of, order, config

    @property
    def sampler(self) -> NeighborSampler:
        """Refuse: there is no graph to sample from but that of a state."""
        raise only_epochs("other seeds to sample from")

    def with_seed(self, seed: int) -> PartitionBatches:
        """Return a source that samples under another seed."""
        return PartitionBatches(self.of, self.order, self.config.with_seed(seed))

    def task(self, index: Any, key: BatchKey) -> Task:  # noqa: ARG002
        """Refuse: the nodes of a batch lie in memory in the course of an epoch only."""
        raise only_epochs(f"a batch of the positions {index!r}")

    @contextmanager
    def epoch(self, planned: Iterator[Planned], run: EpochRun) -> Iterator[Iterator[Task]]:
        """Give the tasks of a run, and read the next state while those of one are prepared."""
        epoch, seeds = self.order.of(run.seed, run.epoch), self.of.seeds
        states = []
        for number in epoch.left(run.first):
            partitions = epoch.schedule.partitions(number)
            trained = seeds.trained(epoch.assigned, number, partitions)
            states.append(StateToRead(number, partitions, trained))

        def prepare(state: ResidentState) -> tuple[Any, Any]:
            positions = seeds.positions(epoch.assigned, state.number, state)
            return positions, epoch.order_of(state.number)

        def following() -> npt.NDArray[np.int64]:
            return self.order.shape.schedule(run.seed, run.epoch + 1).partitions(0)

        in_thread = bool(run.num_threads)
        with (
            self.of.buffer.run(
                states, in_thread=in_thread, following=following, prepare=prepare
            ) as ahead,
            closing(_TasksOfStates(self, planned, run, ahead)) as tasks,
        ):
            yield tasks


class _TasksOfStates(Iterator[Task]):
    """The tasks of a run, one state after the other."""

    def __init__(
        self,
        of: PartitionBatches,
        planned: Iterator[Planned],
        run: EpochRun,
        ahead: StatesAhead,
    ) -> None:
        self._of, self._planned, self._run, self._ahead = of, planned, run, ahead
        self._left = 0
        self._tasks = self._all()

    def __next__(self) -> Task:
        return next(self._tasks)

    def close(self) -> None:
        """Hand out no more: begun and not closed, its generator would hold this and the buffer."""
        self._tasks.close()

    def is_ready(self) -> bool:
        """Whether the next task is one of a state that is in memory."""
        return self._left > 0 or not self._ahead.is_waited_for

    def _all(self) -> Generator[Task, None, None]:
        of, run = self._of, self._run
        epoch = of.order.of(run.seed, run.epoch)
        state: ResidentState | None = None
        try:
            for number, place in self._planned:
                if state is None or state.number != place.state:
                    with run.recorder.stage("partitions", epoch=run.epoch, state=place.state):
                        state = self._ahead.next()
                    positions, order = state.prepared
                    sampler = _sampler(state, of.config, of.of.index_dtype)
                    self._left = int(epoch.ends[place.state]) - number
                state.begin_batch()
                self._left -= 1
                if self._left == 0:
                    state.end()
                index = positions[order[place.begin : place.end]]
                yield StateTask(run.key(number), index, of, state, sampler)
        finally:
            if state is not None:
                state.end()


class StateTask(Task):
    """A batch that is sampled from the partitions in memory."""

    def __init__(
        self,
        key: BatchKey,
        index: npt.NDArray[Any],
        batches: PartitionBatches,
        state: ResidentState,
        sampler: NeighborSampler | None,
    ) -> None:
        self.key = key
        self._index, self._of, self._state = index, batches.of, state
        self._config, self._sampler = batches.config, sampler
        self._local = self._nodes = np.empty(0, np.int64)
        self._is_done = False

    def sample(self) -> Sampled:
        """Return the sample, by the store's ids and positions."""
        key, state = self.key, self._state
        seeds = self._of.seeds.select(self._index, key, state)
        nodes, excluded = seeds.start_nodes()[None], seeds.excluded()
        if self._sampler is None or state.graph is None:
            sample = seeds_alone(nodes, self._config, self._of.index_dtype)
        else:
            sample = self._sampler.sample(
                nodes, epoch=key.epoch, batch=key.batch, excluded=excluded
            )
            positions = MemoryRows.from_array(state.graph.positions).gather(sample.edge_pos).values
            sample = replace(sample, edge_pos=positions.astype(np.int64, copy=False))
        self._local = sample.n_id
        found = state.store_ids(sample.n_id)
        self._nodes = found.astype(self._of.index_dtype, copy=False)
        return Sampled(replace(sample, n_id=self._nodes), seeds.labels)

    def rows(self, output: SamplerOutput) -> dict[str, Rows]:
        """Copy the rows of the nodes from the partitions in memory."""
        paths, wanted = self._of.paths, output.node.numpy()
        rows = {paths[name]: rows for name, rows in self._state.gather(self._local).items()}
        return reselected(rows, self._nodes, wanted, only_epochs)

    def finish(self, error: BaseException | None = None) -> None:  # noqa: ARG002
        """Let go of the state."""
        if not self._is_done:
            self._is_done = True
            self._state.end_batch()


def _sampler(
    state: ResidentState, config: SamplingConfig, index_dtype: IndexDtype
) -> NeighborSampler | None:
    return None if state.graph is None else NeighborSampler(state.graph.csc, config, index_dtype)


def only_epochs(what: str) -> UsageError:
    """Return that there is nothing but the batches of an epoch."""
    return UsageError(
        f"partitions= does not go with {what}: nodes are in memory in the course of an epoch "
        "only, a few partitions at a time; iterate over the loader, or make one without partitions="
    )
