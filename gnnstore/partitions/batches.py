"""Batches of the states of an epoch: each is sampled while its state is in memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError
from gnnstore.features.tables import MemoryRows
from gnnstore.partitions.buffer import StateToRead
from gnnstore.pipeline.batch import Batch, BatchSource, EpochRun, sampled_from
from gnnstore.sampling.neighbor import NeighborSampler, SamplingConfig, only, seeds_alone

if TYPE_CHECKING:
    from gnnstore.partitions.buffer import ResidentState, StateBuffer, StatesAhead
    from gnnstore.partitions.order import PartitionOrder
    from gnnstore.partitions.seeds import SeedsByState
    from gnnstore.sampling.neighbor import IndexDtype


class Partitioned(Protocol):
    """The partitions of a loader, open; pickled without open files."""

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


class PartitionSource(BatchSource):
    """The batches of a loader by partitions."""

    def __init__(self, of: Partitioned, order: PartitionOrder, config: SamplingConfig) -> None:
        self.of, self.order, self.config = of, order, config

    @property
    def refusal(self) -> Callable[[str], Exception]:
        """Refuse to read other nodes than those of a batch."""
        return only_epochs

    @property
    def sampler(self) -> NeighborSampler:
        """Refuse to sample other seeds: only the graph of a state is in memory."""
        raise only_epochs("other seeds to sample from")

    def with_seed(self, seed: int) -> PartitionSource:
        """Return a source that samples under another seed."""
        return PartitionSource(self.of, self.order, self.config.with_seed(seed))

    @contextmanager
    def epoch(self, batches: Iterator[Batch], run: EpochRun) -> Iterator[Iterator[Batch]]:
        """Yield the batches of a run; the next state is read while those of one are prepared."""
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
            closing(_BatchesOfStates(self, batches, run, ahead)) as placed,
        ):
            yield placed

    def prepare(self, batch: Batch) -> None:
        """Sample from the partitions in memory, by the store's ids and positions."""
        place = batch.place
        if place is None:
            raise only_epochs(f"a batch of the positions {batch.index!r}")
        state, sampler = place.state, place.sampler
        seeds = self.of.seeds.select(place.seeds, batch.key, state)
        if sampler is None or state.graph is None:
            nodes = only(seeds.nodes)
            sample = seeds_alone(nodes, self.config, self.of.index_dtype)
        else:
            sample = sampled_from(sampler, seeds, batch.key)
            positions = MemoryRows.from_array(state.graph.positions).gather(sample.edge_pos).values
            sample = sample.with_only(edge_pos=positions.astype(np.int64, copy=False))
        batch.place = place._replace(local=sample.n_id)
        nodes = state.store_ids(sample.n_id).astype(self.of.index_dtype, copy=False)
        batch.sample, batch.labels = sample.with_only(n_id=nodes), seeds.labels

    def gather(self, batch: Batch) -> None:
        """Copy the rows of the nodes from the partitions in memory."""
        place, paths = batch.place, self.of.paths
        rows = place.state.gather(place.local)
        batch.rows = {paths[name]: found for name, found in rows.items()}

    def release(self, batch: Batch, error: BaseException | None = None) -> None:  # noqa: ARG002
        """Release the batch's state."""
        place, batch.place = batch.place, None
        if place is not None:
            place.state.end_batch()


class InMemory(NamedTuple):
    """The place of a batch: the state from which it is sampled."""

    state: ResidentState
    sampler: NeighborSampler | None
    seeds: npt.NDArray[Any]  # positions of the batch's seeds among the state's
    local: npt.NDArray[Any] | None = None  # ids in the state of the sampled nodes


class _BatchesOfStates(Iterator[Batch]):
    """The batches of a run, one state after the other."""

    def __init__(
        self,
        of: PartitionSource,
        batches: Iterator[Batch],
        run: EpochRun,
        ahead: StatesAhead,
    ) -> None:
        self._of, self._given, self._run, self._ahead = of, batches, run, ahead
        self._left = 0
        self._batches = self._all()

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        """Hand out no more; a generator that is not closed would keep this and the buffer alive."""
        self._batches.close()

    def is_ready(self) -> bool:
        """Whether the next batch's state is in memory."""
        return self._left > 0 or not self._ahead.is_waited_for

    def _all(self) -> Generator[Batch, None, None]:
        of, run = self._of, self._run
        epoch = of.order.of(run.seed, run.epoch)
        state: ResidentState | None = None
        try:
            for batch in self._given:
                place = batch.index
                if state is None or state.number != place.state:
                    with run.recorder.stage("partitions", epoch=run.epoch, state=place.state):
                        state = self._ahead.next()
                    positions, order = state.prepared
                    sampler = _sampler(state, of.config, of.of.index_dtype)
                    self._left = int(epoch.ends[place.state]) - batch.key.batch
                state.begin_batch()
                self._left -= 1
                if self._left == 0:
                    state.end()
                seeds = positions[order[place.begin : place.end]]
                batch.place = InMemory(state, sampler, seeds)
                yield batch
        finally:
            if state is not None:
                state.end()


def _sampler(
    state: ResidentState, config: SamplingConfig, index_dtype: IndexDtype
) -> NeighborSampler | None:
    return (
        None if state.graph is None else NeighborSampler(state.graph.columns, config, index_dtype)
    )


def only_epochs(what: str) -> UsageError:
    """Return the error for a use other than the batches of an epoch."""
    return UsageError(
        f"partitions= does not go with {what}: nodes are in memory in the course of an epoch "
        "only, a few partitions at a time; iterate over the loader, or make one without partitions="
    )
