"""The life of a batch: from the number that it has in its epoch to the training loop.

A source of batches turns an order of seeds into tasks. A task travels: any thread samples it, asks
it for rows and assembles them (`Finisher.prepare`); the consumer's thread transforms and counts
what came of it (`Finisher.finish`). Tasks differ by strategy, and nothing else here does.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from gnnstore._core import ReadCounts, pool_exchange, pool_trim
from gnnstore.errors import limits_named
from gnnstore.features.source import Rows
from gnnstore.progress import WaitProgress
from gnnstore.seeds.base import BatchKey, SeedLabels, SeedSource
from gnnstore.threads import Lookahead, MemoryGate, ordered_map
from gnnstore.timeline import OFF, Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gnnstore.pipeline.order.cursor import Iteration
    from gnnstore.pipeline.order.epoch import EpochOrder
    from gnnstore.pipeline.order.state import Position
    from gnnstore.sampling.neighbor import NeighborSampler, Sample, SamplingConfig

# Number of a batch in its epoch, and the positions of its seeds.
Planned = tuple[int, Any]


class Sampled(NamedTuple):
    """A sample and what the batch shows of the seeds that it was drawn from."""

    sample: Sample
    labels: SeedLabels


class Task(ABC):
    """A batch that is to be prepared; in any thread, and among the other tasks in any order.

    Attributes
    ----------
    stage : str
        Name of sampling it, on a timeline.
    seconds_ahead : float
        Time that was spent on sampling it before.
    """

    key: BatchKey
    stage: ClassVar[str] = "sampling"
    seconds_ahead: float = 0.0

    @abstractmethod
    def sample(self) -> Sampled:
        """Return the sample; to be called once."""

    def rows(self, output: Any) -> Mapping[str, Rows]:  # noqa: ARG002
        """Return rows that were provided for this batch, by the attribute's path.

        Parameters
        ----------
        output : SamplerOutput
            The sample, which the user may have changed. Rows that are not returned are gathered by
            its ids.
        """
        return {}

    def finish(self, error: BaseException | None = None) -> None:  # noqa: B027 - most hold nothing
        """Release the resources of the batch, which has its rows, or failed with an error."""


def reselected(
    rows: dict[str, Rows],
    ids: NDArray[Any],
    wanted: NDArray[Any],
    refusal: Callable[[str], Exception] | None = None,
    what: str = "nodes",
) -> dict[str, Rows]:
    """Return rows for what `transform_sampler_output` has left of a batch, or put in its place."""
    if not rows or np.array_equal(wanted, ids):
        return rows
    order = np.argsort(ids, kind="stable")
    places = np.minimum(np.searchsorted(ids, wanted, sorter=order), max(0, len(ids) - 1))
    places = order[places] if len(ids) else places
    if len(ids) and np.array_equal(ids[places], wanted):
        return {path: Rows(values[places], counts) for path, (values, counts) in rows.items()}
    if refusal is not None:
        raise refusal(f"{what} for transform_sampler_output to add to a batch")
    return {}


class Recorder:
    """Receives the stages of a loader and its threads; one recorder for all."""

    def __init__(self, progress: WaitProgress | None = None) -> None:
        self.timeline: Timeline = OFF
        self.progress = progress or WaitProgress()

    def stage(self, name: str, **args: Any) -> Stage:
        """Return a context that measures a stage, and records it if somebody asked for that."""
        return Stage(self, name, args)

    def add(self, name: str, start_ns: int, end_ns: int, **args: Any) -> None:
        """Record a stage that has been measured."""
        if self.timeline is not OFF:
            self.timeline.add(name, start_ns, end_ns, **args)


class Stage:
    """A stage that is measured; made by `Recorder.stage`."""

    __slots__ = ("_name", "_recorder", "_start_ns", "args", "seconds")

    def __init__(self, recorder: Recorder, name: str, args: dict[str, Any]) -> None:
        self._recorder = recorder
        self._name = name
        self.args = args  # shown with it
        self.seconds = 0.0  # seconds that the stage took, once it is over

    def __enter__(self) -> Stage:
        self._start_ns = time.perf_counter_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end_ns = time.perf_counter_ns()
        self.seconds = (end_ns - self._start_ns) * 1e-9
        if kind is not None:
            self.args["error"] = kind.__name__
        self._recorder.add(self._name, self._start_ns, end_ns, **self.args)


@dataclass(frozen=True, eq=False)
class EpochRun:
    """One iteration over an epoch, or over the rest of it, as a source of batches sees it.

    It does not hold the loader, which may be forgotten before the run ends.
    """

    seed: int  # first words of the keys
    epoch: int  # first words of the keys
    first: int  # batches of the epoch that were handed out before
    num_threads: int
    joins_in_threads: bool  # whether the threads that sample batches also assemble them
    initializer: Callable[[], None] | None  # called in each thread that a source starts
    timeout_seconds: float | None  # the longest wait for a batch
    describe: Callable[[int], str]  # describes the k-th batch of the run, to be noted on errors
    recorder: Recorder
    # Returns the run that is expected next and its batches; None if that is not known.
    following: Callable[[], tuple[EpochRun, Iterator[Planned]] | None] = lambda: None

    def key(self, batch: int) -> BatchKey:
        """Return the key of a batch by its number in the epoch."""
        return BatchKey(self.seed, self.epoch, batch)


class BatchSource(ABC):
    """A source of a loader's batches. Pickles without data."""

    @property
    @abstractmethod
    def sampler(self) -> NeighborSampler:
        """The sampler of its batches; refused where they were sampled long ago."""

    def agree(
        self,
        fingerprint: Mapping[str, Any],  # noqa: ARG002 - any batch can be sampled
        seed: int | None,
        world_size: int,  # noqa: ARG002
    ) -> int | None:
        """Check that it has the batches of a loader; return their seed, None if any will do.

        Raises
        ------
        UsageError
            If the loader has other batches.
        """
        return seed

    @abstractmethod
    def with_seed(self, seed: int) -> BatchSource:
        """Return a source of batches of another seed."""

    @abstractmethod
    def task(self, index: Any, key: BatchKey) -> Task:
        """Return a batch for any positions, outside of an epoch."""

    @abstractmethod
    def epoch(
        self, planned: Iterator[Planned], run: EpochRun
    ) -> AbstractContextManager[Iterator[Task]]:
        """Give the tasks of a run, in the order of its batches.

        Parameters
        ----------
        planned : iterator
            Number and positions of each batch; consumed in the consumer's thread.
        """


class Samplers(Protocol):
    """An open graph that can be sampled; pickles as what is to be opened."""

    def sampler(self, config: SamplingConfig) -> NeighborSampler:
        """Return a sampler."""


class SamplingSource(BatchSource):
    """Samples each batch when its turn comes, in the thread that assembles it."""

    def __init__(self, graph: Samplers, seeds: SeedSource, config: SamplingConfig) -> None:
        self._arguments = (graph, seeds, config)
        self.seeds = seeds
        self._sampler = graph.sampler(config)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self._arguments)

    @property
    def sampler(self) -> NeighborSampler:
        """The sampler of its batches."""
        return self._sampler

    def with_seed(self, seed: int) -> SamplingSource:
        """Return a source that samples under another seed."""
        graph, seeds, config = self._arguments
        return type(self)(graph, seeds, config.with_seed(seed))

    def task(self, index: Any, key: BatchKey) -> SampleTask:
        """Return a batch for any positions."""
        return SampleTask(key, index, self.seeds, self.sampler)

    @contextmanager
    def epoch(self, planned: Iterator[Planned], run: EpochRun) -> Iterator[Iterator[Task]]:
        """Give the tasks of a run."""
        seeds, sampler = self.seeds, self.sampler
        yield (SampleTask(run.key(batch), index, seeds, sampler) for batch, index in planned)


class SampleTask(Task):
    """A batch that is sampled now; its rows are gathered by their ids."""

    def __init__(
        self, key: BatchKey, index: Any, seeds: SeedSource, sampler: NeighborSampler
    ) -> None:
        self.key = key
        self._index = index
        self._seeds = seeds
        self._sampler = sampler

    def sample(self) -> Sampled:
        """Select the seeds, and sample from them."""
        key = self.key
        seeds = self._seeds.select(self._index, key)
        nodes, excluded = seeds.start_nodes()[None], seeds.excluded()
        sample = self._sampler.sample(nodes, epoch=key.epoch, batch=key.batch, excluded=excluded)
        return Sampled(sample, seeds.labels)


class Assembler(Protocol):
    """Makes batches of samples and rows."""

    def output(self, sampled: Sampled) -> Any:
        """Return a sample as PyG's `SamplerOutput`."""

    def assemble(
        self,
        output: Any,
        labels: SeedLabels,
        rows: Mapping[str, Rows],
        hold: Callable[[NDArray[Any]], None],
    ) -> tuple[Any, int, ReadCounts]:
        """Return a batch, the bytes gathered for it, and what reading them took."""


class PreparedBatch:
    """A batch on its way from the threads to the consumer, and what it cost."""

    __slots__ = (
        "bytes_gathered",
        "counts",
        "key",
        "labels",
        "num_bytes",
        "num_edges",
        "num_nodes",
        "output",
        "sample_bytes",
        "seconds_gathering",
        "seconds_sampling",
        "seed_counts",
        "task",
    )

    def __init__(self, task: Task, sampled: Sampled, output: Any) -> None:
        sample, labels = sampled
        self.task: Task | None = task
        self.key = task.key
        self.labels = labels
        # Of the labels as they were drawn, whatever `transform_sampler_output` makes of them.
        self.seed_counts = labels.counts
        self.output = output  # the sample alone, or joined with its attributes
        self.num_nodes = sum(map(len, sample.nodes.values()))
        self.num_edges = sum(map(len, sample.edges.values()))
        # Bytes of the sample, and of the attributes once they are there; of the sample alone.
        self.num_bytes = sample.num_bytes + sum(array.nbytes for array in labels.arrays())
        # Bytes of the sample, and of the attributes once they are there; of the sample alone.
        self.sample_bytes = self.num_bytes
        self.seconds_sampling = 0.0
        self.seconds_gathering = 0.0
        self.bytes_gathered = 0
        self.counts = ReadCounts()  # counts of the reads of attributes


class Totals:
    """Counts of the batches that a loader has handed out."""

    def __init__(self) -> None:
        self.amounts: dict[str, float] = {}  # sums by their names in `LoaderStats`
        self.counts = ReadCounts()  # reads of attribute values

    def add(self, counts: ReadCounts, **amounts: float) -> None:
        """Count a batch."""
        known = self.amounts
        added = {name: known.get(name, 0) + amount for name, amount in amounts.items()}
        self.amounts = known | added
        self.counts += counts


@dataclass(frozen=True, eq=False)
class Finisher:
    """Finishes batches after their seeds are known, in the same way for all sources."""

    assembler: Assembler
    # The user's; called in the consumer's thread, in the order of the batches.
    transform: Callable[[Any], Any] | None
    # The user's; called in the consumer's thread, in the order of the batches.
    transform_sampler_output: Callable[[Any], Any] | None
    pin: Callable[[Any], Any] | None  # copies a batch to where a GPU can fetch it by itself
    totals: Totals
    recorder: Recorder
    # Where a batch waits for its memory in a thread; None: it does not.
    admission: MemoryGate | None = None

    def prepare(self, task: Task) -> PreparedBatch:
        """Sample a batch and assemble it, as far as its turn need not have come."""
        try:
            with self._stage(task.stage, task.key) as stage:
                sampled = task.sample()
                batch = PreparedBatch(task, sampled, self.assembler.output(sampled))
                stage.args |= {"nodes": batch.num_nodes, "edges": batch.num_edges}
            batch.seconds_sampling = task.seconds_ahead + stage.seconds
            if self.transform_sampler_output is not None:
                return batch
            if self.admission is None:
                self._join(batch)
            else:
                with self.admission.enter(task.key.batch) as hold:
                    self._join(batch, hold)
        except BaseException as error:
            task.finish(error)
            raise
        if self.transform is None:
            self._pin(batch)
        return batch

    def finish(self, batch: PreparedBatch, seconds_waiting: float) -> Any:
        """Do in the consumer's thread what must happen in the order of the batches."""
        start = time.perf_counter()
        gathering = 0.0
        if self.transform_sampler_output is not None:
            with self._stage("transform_sampler_output", batch.key):
                batch.output = self.transform_sampler_output(batch.output)
            batch.labels = batch.labels.from_metadata(batch.output.metadata)
            try:
                self._join(batch)
            except BaseException as error:
                if batch.task is not None:
                    batch.task.finish(error)
                raise
            gathering = batch.seconds_gathering
        if self.transform is not None:
            with self._stage("transform", batch.key):
                batch.output = self.transform(batch.output)
        if self.transform is not None or self.transform_sampler_output is not None:
            self._pin(batch)
        self.totals.add(
            batch.counts,
            batches=1,
            nodes=batch.num_nodes,
            edges=batch.num_edges,
            seconds_sampling=batch.seconds_sampling,
            seconds_gathering=batch.seconds_gathering,
            seconds_transforming=time.perf_counter() - start - gathering,
            seconds_waiting=seconds_waiting + gathering,
            bytes_gathered=batch.bytes_gathered,
            **batch.seed_counts,
        )
        return batch.output

    def _join(
        self, batch: PreparedBatch, hold: Callable[[NDArray[Any]], None] = lambda _: None
    ) -> None:
        """Join a sample with its attributes."""
        task = batch.task
        if task is None:
            return
        with self._stage("gathering", batch.key) as stage:
            rows = task.rows(batch.output)
            batch.output, num_bytes, counts = self.assembler.assemble(
                batch.output, batch.labels, rows, hold
            )
            stage.args |= {
                "bytes": num_bytes,
                "rows_read": counts.rows_read,
                "rows_cached": counts.rows_cached,
                "reads": counts.reads,
                "bytes_read": counts.bytes_read,
                "ms_reading": round(counts.seconds_waiting * 1e3, 3),
            }
        task.finish()
        batch.task = None
        batch.seconds_gathering = stage.seconds
        batch.bytes_gathered = num_bytes
        batch.num_bytes += num_bytes
        batch.counts = counts

    def _stage(self, name: str, key: BatchKey) -> Stage:
        return self.recorder.stage(name, epoch=key.epoch, batch=key.batch)

    def _pin(self, batch: PreparedBatch) -> None:
        if self.pin is not None:
            with self._stage("pinning", batch.key):
                batch.output = self.pin(batch.output)


def load_batches(
    run: EpochRun,
    iteration: Iteration,
    order: EpochOrder,
    source: BatchSource,
    finisher: Finisher,
    *,
    lookahead: Lookahead,
    initializer: Callable[[], None] | None,
) -> Generator[Any, None, None]:
    """Yield the batches of a run, prepared ahead by threads."""
    ahead: deque[Position] = deque()
    recorder, admission = finisher.recorder, finisher.admission

    def planned() -> Iterator[Planned]:
        for number, index, after in order.batches(iteration.start, run.seed):
            ahead.append(after)
            if admission is not None:
                admission.expect(number)
            yield number, index

    def waiting(k: int) -> AbstractContextManager[object]:
        if admission is not None:
            admission.want(k + 1)
        return recorder.progress.waiting(k)

    if lookahead.recycled_bytes is not None:
        pool_exchange(True)
    with limits_named("prepare a batch"), ExitStack() as stack:
        tasks: Iterable[Task] = stack.enter_context(source.epoch(planned(), run))
        batches = ordered_map(
            finisher.prepare,
            tasks,
            num_threads=run.num_threads,
            lookahead=lookahead,
            timeout_seconds=run.timeout_seconds,
            initializer=initializer,
            describe=run.describe,
            stop=(lambda: None) if admission is None else admission.close,
            waiting=waiting,
        )
        stack.enter_context(closing(batches))
        start_ns = time.perf_counter_ns()
        for batch in batches:
            key = batch.key
            end_ns = time.perf_counter_ns()
            recorder.add("wait", start_ns, end_ns, epoch=key.epoch, batch=key.batch)
            lookahead.observe(batch.num_bytes, batch.sample_bytes)
            if lookahead.recycled_bytes is not None:
                pool_trim(lookahead.recycled_bytes)
            output = finisher.finish(batch, (end_ns - start_ns) * 1e-9)
            iteration.position, iteration.is_left = ahead.popleft(), False
            start_ns = time.perf_counter_ns()
            yield output
            # Let go of it before the next is waited for: its buffers are recycled.
            del batch, output
            end_ns = time.perf_counter_ns()
            recorder.add("training", start_ns, end_ns, epoch=key.epoch, batch=key.batch)
            start_ns = end_ns
    iteration.end()
