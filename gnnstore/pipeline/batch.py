"""The life of a batch: from its number in an epoch to the training loop.

One object, a `Batch`, goes through all steps. The order of seeds makes it, a source of batches
samples or recalls it and provides rows (`BatchSource`), an assembler joins sample and rows
(`BatchPreparer.prepare`, in any thread), and the consumer's thread transforms and counts the output
(`BatchPreparer.deliver`). Sources differ by strategy, and nothing else here does.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from numpy.typing import NDArray

from gnnstore._core import ReadCounts, empty, pool_exchange, pool_trim, release_heap
from gnnstore.errors import limits_named
from gnnstore.features.held import Nodes, Split
from gnnstore.features.source import Decodings, Rows, RowsMemory
from gnnstore.graph.topology import Topology
from gnnstore.pipeline.order import EpochOrder, Iteration, Position
from gnnstore.progress import WaitProgress
from gnnstore.sampling.neighbor import BatchRequest, NeighborSampler, Sample, SamplingConfig
from gnnstore.seeds.base import BatchKey, SeedLabels, Seeds, SeedSource
from gnnstore.threads import Lookahead, MemoryGate, Pending, in_one_step, ordered_map
from gnnstore.timeline import OFF, Timeline

# Threads that sample, recall and assemble leave holes in the heap. After this many bytes of
# subgraphs the heap's free pages go back to the system, which takes a millisecond: on W the holes
# would grow to 80 MB in five threads.
RELEASED_BYTES = 32 << 20


def _hold_nothing(_: object) -> None:
    pass


@dataclass(slots=True)
class BatchCost:
    """The size of a batch, and what preparing it took."""

    num_nodes: int = 0
    num_edges: int = 0
    sample_bytes: int = 0  # the sample, with the labels of its seeds
    # Bytes of the sample; later also of its attributes and of the staging memory for a device.
    num_bytes: int = 0
    bytes_gathered: int = 0
    working_bytes: int = 0  # besides, while it is prepared: of rows that are decoded
    bytes_to_device: int = 0
    rows_on_device: int = 0
    rows_kept: int = 0
    seconds_sampling: float = 0.0
    seconds_gathering: float = 0.0
    counts: ReadCounts = field(default_factory=ReadCounts)  # reads of attributes
    seeds: Mapping[str, int] = field(default_factory=dict)  # numbers of drawn seeds, by kind


@dataclass(eq=False, slots=True)
class Link:
    """The nodes of kept rows, which a batch takes from the one before and leaves to the next.

    A batch waits for the split of the one before, which was submitted earlier and so has begun.
    """

    before: Pending[Nodes] | None  # None: it is the first of its iteration
    kept: Pending[Nodes] = field(default_factory=Pending)

    def nodes_before(self) -> Nodes | None:
        """Wait for the nodes of the kept rows of the batch before; None: there is none."""
        before, self.before = self.before, None
        return None if before is None else before.result()


@dataclass(eq=False, slots=True)
class Batch:
    """A batch on its way. Its source fills `labels`, `sample` and `rows`; then comes `output`."""

    key: BatchKey
    index: Any = None  # positions of its seeds
    position: Position | None = None  # where a state saved after this batch goes on
    labels: SeedLabels | None = None  # labels of its seeds
    sample: Sample | None = None
    rows: Mapping[str, Rows] = field(default_factory=dict)  # by table; others are read by ids
    cost: BatchCost = field(default_factory=BatchCost)
    place: Any = None  # its location in the source; None: it is sampled now
    output: Any = None  # the sample alone, or joined with its attributes
    rows_memory: RowsMemory = empty  # makes the arrays that rows are gathered to
    decodings: Decodings = field(default_factory=dict)  # of rows that are decoded on the host
    # Sources of rows by node type. None: not decided yet; empty: a device holds no rows.
    split: Mapping[str, Split] | None = None
    link: Link | None = None  # to the batches before and after; None: it shares no rows with them
    staged: Any = None  # the staging memory from which it is copied to a device
    placed: Any = None  # once it is on the device: the copies that its consumer waits for


def request_of(seeds: Seeds[SeedLabels], key: BatchKey) -> BatchRequest:
    """Return the request that samples from a batch's seeds."""
    return BatchRequest(
        seeds.nodes, key.epoch, key.batch, seeds.excluded, seeds.times, seeds.places
    )


def sample_batch(batch: Batch, seeds: SeedSource, sampler: NeighborSampler) -> None:
    """Select the seeds of a batch and sample from them: set its sample and labels."""
    selected = seeds.select(batch.index, batch.key)
    batch.labels = selected.labels
    batch.sample = sampler.draw(request_of(selected, batch.key))


@dataclass(slots=True)
class Stage:
    """A stage that is measured; see `Recorder.stage`."""

    args: dict[str, Any]  # shown with it
    seconds: float = 0.0  # that it took, once it is over


class Recorder:
    """Receives the stages of a loader and its threads; one recorder for all."""

    def __init__(self, progress: WaitProgress | None = None) -> None:
        self.timeline: Timeline = OFF
        self.progress = progress or WaitProgress()
        self._shows = self.progress.is_shown

    @contextmanager
    def stage(self, name: str, **args: Any) -> Iterator[Stage]:
        """Measure a stage, and record it if that is asked for."""
        stage, start_ns = Stage(args), time.perf_counter_ns()
        try:
            yield stage
        except BaseException as error:
            args["error"] = type(error).__name__
            raise
        finally:
            end_ns = time.perf_counter_ns()
            stage.seconds = (end_ns - start_ns) * 1e-9
            self.add(name, start_ns, end_ns, **args)

    def waiting(self, k: int) -> AbstractContextManager[object]:
        """Return a context in which the consumer waits for the k-th batch."""
        return self.progress.waiting(k) if self._shows else nullcontext()

    @contextmanager
    def phase(
        self, name: str, total: int | None = None, unit: str = "items"
    ) -> Iterator[Callable[[int], None]]:
        """Begin a phase that is displayed while it is waited for; yield what advances it."""
        if not self._shows:
            yield lambda _: None
            return
        with self.progress.phase(name, total, unit) as phase:
            yield phase.advance

    def add(self, name: str, start_ns: int, end_ns: int, **args: Any) -> None:
        """Record a stage that has been measured."""
        if self.timeline is not OFF:
            self.timeline.add(name, start_ns, end_ns, **args)


@dataclass(frozen=True, eq=False)
class EpochRun:
    """One iteration over an epoch, or over the rest of it, as a source of batches sees it.

    It does not hold the loader, which may be forgotten before the run ends.
    """

    seed: int  # the keys of batches begin with it and the epoch
    epoch: int
    first: int  # batches of the epoch that were handed out before
    num_threads: int
    joins_in_threads: bool  # whether the threads that sample batches also assemble them
    initializer: Callable[[], None] | None  # called in each thread that a source starts
    timeout_seconds: float | None  # the longest wait for a batch
    describe: Callable[[int], str]  # describes the k-th batch of the run, to be noted on errors
    recorder: Recorder
    # Returns the run that is expected next and its batches; None if that is not known.
    following: Callable[[], tuple[EpochRun, Iterator[Batch]] | None] = lambda: None
    # Batches of all ranks that are put in order together; 1: they come as they are numbered.
    window: int = 1

    def batches(self, order: EpochOrder, start: Position) -> Iterator[Batch]:
        """Yield the batches of an order from a position on.

        From inside a window, yield all of its batches, since its order depends on all: the first,
        as many as were handed out before, have no position.
        """
        if handed_out := start.batches % self.window:
            if not order.num_left(start, self.seed):
                return
            start = start._replace(batches=start.batches - handed_out)
        for number, index, after in order.batches(start, self.seed):
            position = after if after.batches > self.first else None
            yield Batch(BatchKey(self.seed, self.epoch, number), index, position)


class BatchSource(ABC):
    """A source of a loader's batches. Pickles without data.

    The steps of a batch, each of which happens once: `prepare`, `gather`, `release`; the first two
    in any thread, and among the other batches in any order. Between `prepare` and `gather` a batch
    waits until there is memory for its rows.
    """

    @property
    @abstractmethod
    def sampler(self) -> NeighborSampler:
        """The sampler of its batches; an error if they were sampled before, as packed epochs."""

    @property
    def refusal(self) -> Callable[[str], Exception] | None:
        """Makes the error for rows of nodes that a batch lacks; None: such rows can be read."""
        return None

    def agree(
        self,
        fingerprint: Mapping[str, Any],  # noqa: ARG002 - any batch can be sampled
        seed: int | None,
        world_size: int,  # noqa: ARG002
    ) -> int | None:
        """Refuse a loader of other batches; return their seed, None if any will do."""
        return seed

    @abstractmethod
    def with_seed(self, seed: int) -> BatchSource:
        """Return a source of batches of another seed."""

    @abstractmethod
    def epoch(
        self, batches: Iterator[Batch], run: EpochRun
    ) -> AbstractContextManager[Iterator[Batch]]:
        """Give the batches of a run in any order, with `place` set if it is known.

        They are iterated in the consumer's thread.
        """

    def stage_of(self, batch: Batch) -> str:  # noqa: ARG002 - most sample
        """Return the name of preparing a batch, on a timeline."""
        return "sampling"

    @abstractmethod
    def prepare(self, batch: Batch) -> None:
        """Sample or recall a batch: set its sample and labels.

        A batch without a place is sampled now.
        """

    def gather(self, batch: Batch) -> None:  # noqa: B027 - most rows are read by the assembler
        """Set the rows that are provided for this batch; others are read by ids."""

    def release(self, batch: Batch, error: BaseException | None = None) -> None:  # noqa: B027
        """Let go of a batch, which has its rows, or failed with an error."""


class Samplers(Protocol):
    """An open graph that can be sampled; pickles as what is to be opened."""

    topology: Topology

    def sampler(self, config: SamplingConfig) -> NeighborSampler:
        """Return a sampler."""


class SamplingSource(BatchSource):
    """Samples each batch when its turn comes, in the thread that assembles it."""

    def __init__(self, graph: Samplers, seeds: SeedSource, config: SamplingConfig) -> None:
        self._arguments = (graph, seeds, config)
        self.seeds = seeds.over(graph.topology)
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

    @contextmanager
    def epoch(self, batches: Iterator[Batch], run: EpochRun) -> Iterator[Iterator[Batch]]:  # noqa: ARG002
        """Give the batches of a run."""
        yield batches

    def prepare(self, batch: Batch) -> None:
        """Select the seeds, and sample from them."""
        sample_batch(batch, self.seeds, self._sampler)


class Assembler(Protocol):
    """Makes PyG's batches of samples and rows."""

    @property
    def decodings(self) -> Decodings:
        """How rows of nodes are decoded, unless a device does it."""

    def assemble(self, batch: Batch, hold: Callable[[NDArray[Any]], None]) -> None:
        """Set a batch's output and what gathering it took; `hold(array)` keeps large ones."""


class OutputAssembler(Protocol):
    """The round trip through PyG's `SamplerOutput`, for `transform_sampler_output`."""

    def output(self, batch: Batch) -> Any:
        """Return a batch's sample as PyG's `SamplerOutput`."""

    def assemble_output(self, batch: Batch, output: Any) -> None:
        """Set a batch's output by what `transform_sampler_output` returned."""


class Placing(Protocol):
    """The batches of an iteration on their way to a device, in their order."""

    def begin(self, recorder: Recorder) -> None:
        """Begin, in the consumer's thread: copy what stays on the device, which may take long."""

    def expect(self, batch: Batch) -> None:
        """Place a batch after all that were expected before."""

    def ask(self) -> None:
        """Note that the consumer, who calls this, asks for the next batch."""

    def split(self, batch: Batch) -> None:
        """Decide where the rows of a sampled batch come from, unless its plan has decided."""

    def staging(self, batch: Batch, hold: Callable[[Any], None]) -> AbstractContextManager[object]:
        """Return a context in which rows of a batch are gathered straight into staging memory.

        The batch has the memory, with which `hold` is called, until it has been copied.
        """

    def stage(self, batch: Batch) -> None:
        """Copy the rest of a batch's output to its staging memory."""

    def turn(self, batch: Batch) -> AbstractContextManager[object]:
        """Return a context in which a batch is placed, once the ones before it are."""

    def place(self, batch: Batch) -> None:
        """Begin to copy a batch's output to the device, and replace it by the copy."""

    def hand_over(self, batch: Batch) -> None:
        """Let what the calling thread does next on the device wait for a batch."""

    def close(self) -> None:
        """Place no more; batches that wait fail. Idempotent."""


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
class BatchPreparer:
    """Prepares and finishes the batches of a source, in the same way for all sources."""

    source: BatchSource
    assembler: Assembler
    # The user's; called in the consumer's thread, in the order of the batches.
    transform: Callable[[Any], Any] | None
    transform_sampler_output: Callable[[Any], Any] | None
    from_output: OutputAssembler | None  # with `transform_sampler_output`
    # Copies an output to pinned memory; the second argument is called with the memory of the copy.
    pin: Callable[[Any, Callable[[Any], None]], Any] | None
    totals: Totals
    recorder: Recorder
    # Where a batch waits for its memory in a thread; None: it does not.
    gate: MemoryGate | None = None
    placing: Placing | None = None  # None: batches stay in host memory

    def prepare(self, batch: Batch) -> Batch:
        """Sample and assemble a batch, except what must wait for its turn."""
        source, cost = self.source, batch.cost
        hold: Callable[[Any], None] = _hold_nothing
        with ExitStack() as stack:
            try:
                with self._stage(source.stage_of(batch), batch.key) as stage:
                    source.prepare(batch)
                    _measure(batch)
                    if self.placing is not None and self.from_output is None:
                        self.placing.split(batch)
                    stage.args |= {"nodes": cost.num_nodes, "edges": cost.num_edges}
                cost.seconds_sampling += stage.seconds
                if self.from_output is not None:
                    return batch
                if self.gate is not None:
                    admitted = stack.enter_context(self.gate.enter(batch))
                    hold = admitted.hold
                    batch.rows_memory = admitted.filled_by(batch.rows_memory)
                if self.placing is not None:
                    stack.enter_context(self.placing.staging(batch, hold))
                self._join(batch, hold)
            except BaseException as error:
                source.release(batch, error)
                if batch.link is not None:
                    batch.link.kept.cancel()  # which the next one waits for
                raise
            self._pin(batch, hold)
            if self.pin is not None:
                cost.num_bytes *= 2  # while it is copied
            if self.placing is not None:
                self._place(batch, self.placing)
        return batch

    def deliver(self, batch: Batch, seconds_waiting: float) -> Any:
        """Do in the consumer's thread what must happen in the order of the batches."""
        start, cost = time.perf_counter(), batch.cost
        gathering = 0.0
        if self.from_output is not None and self.transform_sampler_output is not None:
            try:
                with self._stage("transform_sampler_output", batch.key):
                    output = self.transform_sampler_output(self.from_output.output(batch))
                self._join(batch, output=output)
            except BaseException as error:
                self.source.release(batch, error)
                raise
            gathering = cost.seconds_gathering
            if self.placing is not None:
                self.placing.expect(batch)
                with self.placing.staging(batch, _hold_nothing):
                    self._place(batch, self.placing)
        if self.placing is not None:
            self.placing.hand_over(batch)
        if self.transform is not None:
            with self._stage("transform", batch.key):
                batch.output = self.transform(batch.output)
        if self.transform is not None or self.from_output is not None:
            self._pin(batch)  # what a transform has made; tensors that are pinned stay as they are
        self.totals.add(
            cost.counts,
            batches=1,
            nodes=cost.num_nodes,
            edges=cost.num_edges,
            seconds_sampling=cost.seconds_sampling,
            seconds_gathering=cost.seconds_gathering,
            seconds_transforming=time.perf_counter() - start - gathering,
            seconds_waiting=seconds_waiting + gathering,
            bytes_gathered=cost.bytes_gathered,
            bytes_to_device=cost.bytes_to_device,
            rows_on_device=cost.rows_on_device,
            rows_kept=cost.rows_kept,
            **cost.seeds,
        )
        output, batch.output = batch.output, None  # held by the consumer alone
        return output

    def _join(
        self,
        batch: Batch,
        hold: Callable[[NDArray[Any]], None] = _hold_nothing,
        *,
        output: Any = None,
    ) -> None:
        """Join a sample with its attributes."""
        cost = batch.cost
        with self._stage("gathering", batch.key) as stage:
            if batch.staged is None:
                batch.decodings = self.assembler.decodings
            self.source.gather(batch)
            if self.from_output is None:
                self.assembler.assemble(batch, hold)
                if self.placing is not None:
                    self.placing.stage(batch)
            else:
                self.from_output.assemble_output(batch, output)
            counts = cost.counts
            stage.args |= {
                "bytes": cost.bytes_gathered,
                "rows_read": counts.rows_read,
                "rows_cached": counts.rows_cached,
                "reads": counts.reads,
                "bytes_read": counts.bytes_read,
                "ms_reading": round(counts.seconds_waiting * 1e3, 3),
            }
        self.source.release(batch)
        batch.sample, batch.rows, batch.place = None, {}, None
        cost.seconds_gathering = stage.seconds
        cost.num_bytes = cost.sample_bytes + cost.bytes_gathered

    def _stage(self, name: str, key: BatchKey) -> AbstractContextManager[Stage]:
        return self.recorder.stage(name, epoch=key.epoch, batch=key.batch)

    def _pin(self, batch: Batch, hold: Callable[[Any], None] = _hold_nothing) -> None:
        if self.pin is not None:
            with self._stage("pinning", batch.key):
                batch.output = self.pin(batch.output, hold)

    def _place(self, batch: Batch, placing: Placing) -> None:
        with placing.turn(batch), self._stage("placing", batch.key) as stage:
            placing.place(batch)
            stage.args["bytes"] = batch.cost.bytes_to_device


def _measure(batch: Batch) -> None:
    """Note the size of a batch that has its sample."""
    sample, labels, cost = batch.sample, batch.labels, batch.cost
    if sample is None or labels is None:
        raise TypeError(f"batch {batch.key} came without a sample from its source")
    cost.num_nodes, cost.num_edges, cost.seeds = sample.num_nodes, sample.num_edges, labels.counts
    cost.sample_bytes = sample.num_bytes + sum(array.nbytes for array in labels.arrays())
    cost.num_bytes = cost.sample_bytes


class _Submitted(Iterator[Batch]):
    """Batches that gates admit in the order in which they are submitted."""

    def __init__(self, batches: Iterator[Batch], *gates: MemoryGate | Placing) -> None:
        self._batches, self._gates = batches, gates
        self.is_ready = getattr(batches, "is_ready", None)

    def __next__(self) -> Batch:
        batch = next(self._batches)
        for gate in self._gates:
            gate.expect(batch)
        return batch


class _Reordered(_Submitted):
    """Batches in another order than their numbers'."""

    def __init__(self, batches: Iterator[Batch], *gates: MemoryGate | Placing) -> None:
        super().__init__(batches, *gates)
        self._keys: list[BatchKey] = []

    def __next__(self) -> Batch:
        batch = super().__next__()
        self._keys.append(batch.key)
        return batch

    def describe(self, k: int) -> str:
        """Describe the k-th batch."""
        return f"while preparing batch {self._keys[k].batch} of epoch {self._keys[k].epoch}"


def load_batches(
    run_from: Callable[[Position], EpochRun],
    iteration: Iteration,
    order: EpochOrder,
    preparer: BatchPreparer,
    *,
    lookahead: Lookahead,
    initializer: Callable[[], None] | None,
) -> Generator[Any, None, None]:
    """Yield the batches of an iteration, prepared ahead by threads."""
    start = iteration.begin()
    run, unreleased = run_from(start), 0
    recorder, gate, placing = preparer.recorder, preparer.gate, preparer.placing
    gates = [each for each in (gate, placing) if each is not None]
    # Batches that are joined in the consumer's thread are placed there, one at a time.
    orders = gates if preparer.from_output is None else []

    def waiting(k: int) -> AbstractContextManager[object]:
        if gate is not None:
            gate.want(k + 1)
        return recorder.waiting(k)

    if lookahead.recycled_bytes is not None:
        pool_exchange(True)
        pool_trim(lookahead.recycled_bytes)  # what other loaders have left free
    with limits_named("prepare a batch"), ExitStack() as stack:
        if placing is not None:
            placing.begin(recorder)
            placing.ask()
        batches = stack.enter_context(preparer.source.epoch(run.batches(order, start), run))
        submitted, describe = batches, run.describe
        if run.window > 1:
            submitted = reordered = _Reordered(batches, *orders)
            describe = reordered.describe
        elif orders:
            submitted = _Submitted(batches, *orders)
        prepared = ordered_map(
            preparer.prepare,
            submitted,
            num_threads=run.num_threads,
            lookahead=lookahead,
            timeout_seconds=run.timeout_seconds,
            initializer=initializer,
            describe=describe,
            stop=partial(in_one_step, *(each.close for each in gates)),
            waiting=waiting,
        )
        stack.enter_context(closing(prepared))
        start_ns = time.perf_counter_ns()
        for batch in prepared:
            key, cost = batch.key, batch.cost
            end_ns = time.perf_counter_ns()
            recorder.add("wait", start_ns, end_ns, epoch=key.epoch, batch=key.batch)
            lookahead.observe(cost.num_bytes, cost.sample_bytes, cost.working_bytes)
            unreleased += cost.sample_bytes
            output = preparer.deliver(batch, (end_ns - start_ns) * 1e-9)
            if batch.position is not None:
                iteration.position, iteration.is_left = batch.position, False
            start_ns = time.perf_counter_ns()
            del batch, cost
            yield output
            if lookahead.recycled_bytes is not None:
                # What has lain idle; not the buffers of this batch, which the next one takes.
                pool_trim(lookahead.recycled_bytes)
                if unreleased >= RELEASED_BYTES:
                    release_heap()
                    unreleased = 0
            # Release the batch before waiting for the next one: its buffers are recycled.
            del output
            if placing is not None:
                placing.ask()
            end_ns = time.perf_counter_ns()
            recorder.add("training", start_ns, end_ns, epoch=key.epoch, batch=key.batch)
            start_ns = end_ns
    iteration.close()
