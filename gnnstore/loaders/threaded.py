"""A torch `DataLoader` whose batches are prepared ahead by threads, in a seeded order.

What all loaders share, whatever they sample: the pipeline, transforms, pinning and statistics.
A loader says how it samples a batch and how it joins the sample with its attributes; which
batch is the next is decided in `resumable`, everything else is here.
"""

from __future__ import annotations

import os
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from gnnstore.disk.buffers import keep_within_budget, trim
from gnnstore.errors import UsageError
from gnnstore.loaders.resumable import ResumableLoader
from gnnstore.parallel import Lookahead, ordered_map
from gnnstore.pipeline.order.cursor import Iteration
from gnnstore.pipeline.order.ranks import ALONE, RankShard
from gnnstore.pipeline.order.state import Position
from gnnstore.pipeline.prepared import PreparedBatch
from gnnstore.pipeline.stats import LoaderStats, peak_rss_bytes
from gnnstore.strategies.saved_batches import SavedBatch, SavedBatches
from gnnstore.timeline import MAX_EVENTS, OFF, Timeline, recorded

_IDLE_OPTIONS = ("worker_init_fn", "multiprocessing_context")


class ThreadedLoader(ResumableLoader):
    """Base of the loaders. Subclasses set `_stats`, and give `_sample` and `_join`.

    What can be prepared ahead depends on where data lies, which a subclass may find out
    with the help of this object's options; it then calls `_prepare_ahead`.

    Parameters
    ----------
    num_seeds : int
        Samplers give positions from 0 to num_seeds - 1.
    seed : int or None
        Key of shuffling and sampling; None: drawn at the first use.
    transform, transform_sampler_output : callable or None
        Called in the consumer's thread, in the order of the batches.
    num_threads : int or None
        Preparing threads; None: `num_workers` if given, else one per usable core, and one
        more where they wait for a disk.
    prefetch_batches : int or None
        The most batches prepared ahead; None: `prefetch_factor` (2) per thread.
    options : dict
        Keyword arguments of torch's `DataLoader`.
    shard : RankShard
        Which of the batches are this process's.
    """

    # Class-wide, so that an unpickled loader has it; `trace` sets that of one loader.
    _timeline: Timeline = OFF
    # What a loader follows that has a packed plan.
    _saved: SavedBatches | None = None

    def __init__(
        self,
        num_seeds: int,
        *,
        seed: int | None,
        transform: Callable[[Any], Any] | None,
        transform_sampler_output: Callable[[Any], Any] | None,
        num_threads: int | None,
        prefetch_batches: int | None,
        options: dict[str, Any],
        shard: RankShard = ALONE,
    ) -> None:
        super().__init__(num_seeds, seed=seed, options=options, shard=shard)
        self.transform = transform
        self.transform_sampler_output = transform_sampler_output
        self._num_threads_given = _threads_given(num_threads, self.num_workers)
        if prefetch_batches is not None and prefetch_batches < 1:
            raise UsageError(f"prefetch_batches={prefetch_batches}: at least 1 is needed")
        self._prefetch_given = prefetch_batches
        self._loader_cores: list[Any] | None = None
        self._stats: LoaderStats
        self._prepare_ahead(waits_for_disk=False)
        self._warn_of_what_is_idle()

    def _prepare_ahead(
        self,
        *,
        waits_for_disk: bool,
        most_threads: int | None = None,
        spare_bytes: int | None = None,
    ) -> None:
        """Set how many batches are prepared at once, and how far ahead.

        Parameters
        ----------
        waits_for_disk : bool
            Whether threads wait for reads.
        most_threads : int or None
            For how many there is memory; no limit to a number that the user gave.
        spare_bytes : int or None
            What batches may take in all; None: no limit.
        """
        self.num_threads = self._thread_count(waits_for_disk)
        if self._num_threads_given is None and most_threads is not None:
            self.num_threads = min(self.num_threads, most_threads)
        ahead = max(1, self.num_threads) * (self.prefetch_factor or 2)
        self.prefetch_batches = self._prefetch_given or ahead
        self._spare_bytes = spare_bytes

    def _follow(self, saved: SavedBatches | None) -> None:
        """Take batches from a packed plan, if there is one, instead of sampling them.

        Raises
        ------
        UsageError
            If the plan was packed for a loader with other batches.
        """
        if saved is not None:
            if self._shard.world_size > 1:
                raise UsageError(
                    "plan= and rank= exclude one another: a plan is followed from batch to batch, "
                    "by one process; leave out one of them"
                )
            saved.check(self._all_fingerprints(), self.seed)
            self.seed = saved.seed
        self._saved = saved

    def _upcoming(
        self, numbered: Iterator[tuple[int, Any]], start: Position, describe: Callable[[int], str]
    ) -> AbstractContextManager[Iterator[Any]]:
        if self._saved is None:
            return self._ahead(numbered, start, describe)
        return self._saved.run(numbered, start.epoch, num_threads=self.num_threads)

    def _thread_count(self, waits_for_disk: bool) -> int:
        if self._num_threads_given is not None:
            return self._num_threads_given
        # A thread that waits for the disk computes nothing: one more keeps the cores busy.
        return len(os.sched_getaffinity(0)) + (1 if waits_for_disk else 0)

    @abstractmethod
    def _sample(self, index: Any, *, epoch: int, batch: int) -> PreparedBatch:
        """Sample the batch of some positions; in any thread."""

    @contextmanager
    def _ahead(
        self,
        numbered: Iterator[tuple[int, Any]],
        start: Position,  # noqa: ARG002 - for subclasses
        describe: Callable[[int], str],  # noqa: ARG002
    ) -> Iterator[Iterator[Any]]:
        """Yield what batches are prepared from: number and positions, or more done beforehand.

        Parameters
        ----------
        start : Position
            Where the iteration begins.
        describe : callable
            What the k-th batch of the iteration is, to be noted on errors.
        """
        yield numbered

    def _take(self, item: Any, epoch: int) -> PreparedBatch:
        """Return the sample of something that `_ahead` has yielded; in any thread."""
        if isinstance(item, SavedBatch):
            with self._timeline.span("recalling", epoch=epoch, batch=item.batch):
                return item.recall()
        batch, index = item
        with self._timeline.span("sampling", epoch=epoch, batch=batch) as args:
            sampled = self._sample(index, epoch=epoch, batch=batch)
            args |= {"nodes": sampled.num_nodes, "edges": sampled.num_edges}
        return sampled

    @abstractmethod
    def _join(self, sampled: PreparedBatch) -> PreparedBatch:
        """Join a sample with its attributes; in any thread."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def stats(self) -> LoaderStats:
        """Return what the loader has done since it was made; `since` subtracts a reading."""
        return replace(self._stats, peak_rss_bytes=peak_rss_bytes())

    @contextmanager
    def trace(
        self, path: str | os.PathLike[str], *, max_events: int = MAX_EVENTS
    ) -> Iterator[Timeline]:
        """Record the stages of the loader within the context, and write them to a file.

        Parameters
        ----------
        path : path-like
            A JSON file for chrome://tracing or ui.perfetto.dev; replaced if it is there.
        max_events : int
            What comes after so many is left out, and counted in the file.

        Yields
        ------
        Timeline
            Takes stages of the caller's own, too.

        Raises
        ------
        UsageError
            If the loader is being traced already.
        NotFoundError, StorageError
            If the file cannot be written; found out before anything else where possible.
        """
        if self._timeline is not OFF:
            raise UsageError("the loader is being traced already; traces do not nest")
        with recorded(path, max_events) as timeline:
            self._timeline = timeline
            try:
                yield timeline
            finally:
                self._timeline = OFF

    @contextmanager
    def enable_cpu_affinity(self, loader_cores: list[Any] | None = None) -> Iterator[None]:
        """Bind preparing threads that start within the context to cores.

        Parameters
        ----------
        loader_cores : list of int or list of list of int, optional
            Cores of each thread; by default one of the usable cores each.
        """
        usable = sorted(os.sched_getaffinity(0))
        one_each = [usable[i % len(usable)] for i in range(self.num_threads)]
        cores = one_each if loader_cores is None else list(loader_cores)
        if len(cores) != self.num_threads:
            raise UsageError(
                f"loader_cores names the cores of {len(cores)} threads, but the loader has "
                f"{self.num_threads}"
            )
        self._loader_cores = cores
        try:
            yield
        finally:
            self._loader_cores = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own class
        """Start the next epoch."""
        return self._get_iterator()

    def _get_iterator(self) -> Generator[Any, None, None]:  # type: ignore[override]
        self._draw_seed()
        iteration = self._cursor.begin(self.epoch)
        self.epoch += 1
        return self._batches(iteration)

    def _batches(self, iteration: Iteration) -> Generator[Any, None, None]:
        epoch, first = iteration.start.epoch, iteration.start.batches

        def prepare(numbered: tuple[int, Any]) -> PreparedBatch:
            k, item = numbered
            batch = self._order.number(first, k)
            prepared = self._take(item, epoch)
            if self.transform_sampler_output is not None:
                return prepared
            prepared = self._gathered(prepared, epoch, batch)
            return prepared if self.transform is not None else self._pinned(prepared)

        describe = self._describe(iteration.start)
        lookahead = Lookahead(self.prefetch_batches, self._spare_bytes)
        if self._spare_bytes is not None:
            keep_within_budget()
        with ExitStack() as stack:
            numbered = iteration.number(self._order.batches(iteration.start, self.seed or 0))
            batches = ordered_map(
                prepare,
                enumerate(stack.enter_context(self._upcoming(numbered, iteration.start, describe))),
                num_threads=self.num_threads,
                lookahead=lookahead,
                timeout_seconds=self.timeout or None,
                initializer=self._thread_initializer(),
                describe=describe,
            )
            stack.enter_context(closing(batches))
            # `enumerate` would hold on to the one before.
            k, batch = 0, self._order.number(first, 0)
            start_ns = time.perf_counter_ns()
            for prepared in batches:
                end_ns = time.perf_counter_ns()
                waited = (end_ns - start_ns) * 1e-9
                self._timeline.add("wait", start_ns, end_ns, epoch=epoch, batch=batch)
                lookahead.observe(prepared.num_bytes)
                if lookahead.recycled_bytes is not None:
                    trim(lookahead.recycled_bytes)
                output = self._finish(prepared, waited, epoch, batch)
                iteration.hand_out()
                start_ns = time.perf_counter_ns()
                yield output
                # Let go of it before the next is waited for: its buffers are recycled.
                del prepared, output
                end_ns = time.perf_counter_ns()
                self._timeline.add("training", start_ns, end_ns, epoch=epoch, batch=batch)
                start_ns = end_ns
                k, batch = k + 1, self._order.number(first, k + 1)
        iteration.end()

    def _describe(self, start: Position) -> Callable[[int], str]:
        """Return what says which batch the k-th of an iteration is; it does not hold the loader."""
        order = self._order
        return lambda k: (
            f"while preparing batch {order.number(start.batches, k)} of epoch {start.epoch}"
        )

    def _gathered(self, sampled: PreparedBatch, epoch: int, batch: int) -> PreparedBatch:
        """Join a sample with its attributes, and record it."""
        with self._timeline.span("gathering", epoch=epoch, batch=batch) as args:
            prepared = self._join(sampled)
            counts = prepared.counts
            args |= {
                "bytes": prepared.bytes_gathered,
                "rows_read": counts.rows_read,
                "rows_cached": counts.rows_cached,
                "reads": counts.reads,
                "bytes_read": counts.bytes_read,
                "ms_reading": round(counts.seconds_waiting * 1e3, 3),
            }
        return prepared

    def _finish(self, prepared: PreparedBatch, waited: float, epoch: int, batch: int) -> Any:
        """Do in the consumer's thread what must happen in the order of the batches."""
        start = time.perf_counter()
        gathering = 0.0
        if self.transform_sampler_output is not None:
            with self._timeline.span("transform_sampler_output", epoch=epoch, batch=batch):
                output = self.transform_sampler_output(prepared.output)
            prepared = self._gathered(replace(prepared, output=output), epoch, batch)
            gathering = prepared.seconds_gathering
        if self.transform is not None:
            with self._timeline.span("transform", epoch=epoch, batch=batch):
                prepared = replace(prepared, output=self.transform(prepared.output))
        if self.transform is not None or self.transform_sampler_output is not None:
            prepared = self._pinned(prepared)
        self._stats = self._stats.plus(
            batches=1,
            nodes=prepared.num_nodes,
            edges=prepared.num_edges,
            seconds_sampling=prepared.seconds_sampling,
            seconds_gathering=prepared.seconds_gathering,
            seconds_transforming=time.perf_counter() - start - gathering,
            seconds_waiting=waited + gathering,
            bytes_gathered=prepared.bytes_gathered,
        ).plus_reads(prepared.counts)
        return prepared.output

    def _pinned(self, prepared: PreparedBatch) -> PreparedBatch:
        """Copy the output to where a GPU can fetch it by itself, if that is wanted."""
        if not self.pin_memory or not torch.cuda.is_available():
            return prepared
        with self._timeline.span("pinning"):
            return replace(prepared, output=pin_memory(prepared.output, self.pin_memory_device))

    def _thread_initializer(self) -> Callable[[], None] | None:
        if self._loader_cores is None:
            return None
        cores: SimpleQueue[Any] = SimpleQueue()
        for own in self._loader_cores:
            cores.put([own] if isinstance(own, int) else own)
        # 0 is the calling thread.
        return lambda: os.sched_setaffinity(0, cores.get_nowait())

    def check_worker_number_rationality(self) -> None:
        """Do nothing: torch's check counts processes, and none are started."""

    def _warn_of_what_is_idle(self) -> None:
        idle = [name for name in _IDLE_OPTIONS if getattr(self, name) is not None]
        if idle:
            warnings.warn(
                f"{' and '.join(idle)} of {type(self).__name__} have nothing to apply to: batches "
                "are prepared by threads, not by worker processes",
                UserWarning,
                stacklevel=4,
            )
        if self.pin_memory and not torch.cuda.is_available():
            warnings.warn(
                "pin_memory=True, but no accelerator is found: batches are not pinned",
                UserWarning,
                stacklevel=4,
            )


def _threads_given(num_threads: int | None, num_workers: int) -> int | None:
    if num_threads is None:
        return num_workers or None
    if num_threads < 0:
        raise UsageError(f"num_threads={num_threads} is negative; 0 prepares without threads")
    if num_workers and num_workers != num_threads:
        raise UsageError(
            f"num_workers={num_workers} and num_threads={num_threads} both name the number of "
            "preparing threads; give one of them"
        )
    return num_threads


def any_core(each: list[Any] | None) -> Callable[[], None] | None:
    """Return what binds the calling thread to the cores of all threads, if they are bound."""
    if each is None:
        return None
    cores = set[int]().union(*([own] if isinstance(own, int) else own for own in each))
    return lambda: os.sched_setaffinity(0, cores)
