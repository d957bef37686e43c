"""A torch `DataLoader` with an order of epochs, a source of batches and a finisher.

It is the loader that torch, PyG and frameworks see; the way of a batch is in `pipeline.batch`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, SupportsIndex, cast

from torch.utils.data import DataLoader, get_worker_info
from torch_geometric.sampler import SamplerOutput

from gnnstore.errors import UsageError, whole_number
from gnnstore.formats.store.schema import Schema
from gnnstore.loaders.assemble import Assembler, OutputAssembler
from gnnstore.loaders.explain import (
    Explanation,
    describe,
    draw_memory,
    writer_of,
)
from gnnstore.loaders.options import (
    displayed,
    forget_records_of_bases,
    is_called_by_lightning,
    threads_given,
    warn_of_idle,
    warn_of_no_batch,
)
from gnnstore.loaders.pinning import can_pin, pinned
from gnnstore.pipeline.batch import (
    Batch,
    BatchSource,
    EpochRun,
    Finisher,
    Recorder,
    Totals,
    load_batches,
)
from gnnstore.pipeline.order import EpochCursor, EpochOrder, Position
from gnnstore.pipeline.ranks import ALONE, RankSampler, RankShard
from gnnstore.pipeline.shown_samplers import (
    SeededShuffle,
    SeedPositions,
    drawn_seed,
    order_of,
    own_sampler,
    shuffles,
)
from gnnstore.pipeline.states import LoaderState, OrderFields
from gnnstore.pipeline.stats import LoaderStats
from gnnstore.progress import peak_rss_bytes
from gnnstore.sampling.neighbor import check_word
from gnnstore.seeds.base import ON_DEMAND_EPOCH, BatchKey, SeedLabels
from gnnstore.strategies.base import Sources
from gnnstore.threads import Lookahead, MemoryGate
from gnnstore.timeline import MAX_EVENTS, OFF, Timeline, recorded
from gnnstore.units import format_count


class BatchLoader(DataLoader[Any]):
    """Base of the loaders: each calls `_read_from` with the source of its batches."""

    filter_per_worker = True

    def __init__(
        self,
        num_seeds: int,
        *,
        labels: type[SeedLabels],
        fingerprint: Callable[[], Mapping[str, Any]],  # what batches depend on but seed and order
        seed: int | None,
        transform: Callable[[Any], Any] | None,
        transform_sampler_output: Callable[[Any], Any] | None,
        num_threads: int | None,
        prefetch_batches: int | None,
        options: dict[str, Any],  # torch's
        shard: RankShard = ALONE,
        own_order: Callable[[EpochOrder], EpochOrder] | None = None,
        progress: bool | None = None,
    ) -> None:
        # Frameworks that build a loader anew pass these two, which the loader sets itself.
        options = {k: v for k, v in options.items() if k not in {"dataset", "collate_fn"}}
        options |= own_sampler(num_seeds, seed, shard, options)
        positions: Any = SeedPositions(num_seeds)
        # By name: the next class in line may be PyG's loader.
        DataLoader.__init__(self, positions, collate_fn=self.collate_fn, **options)
        self.seed = None if seed is None else check_word("seed", seed)
        self.transform = transform
        self.transform_sampler_output = transform_sampler_output
        self._labels = labels
        self._fingerprint = fingerprint
        self._shard = shard
        self._order: EpochOrder = order_of(self, num_seeds, shard, shuffles=shuffles(options))
        if own_order is not None:
            self._order = own_order(self._order)
        self._cursor = EpochCursor(self._order)
        if isinstance(self.sampler, (SeededShuffle, RankSampler)):
            self.sampler.cursor = self._cursor
        self._totals = Totals()
        self._recorder = Recorder(displayed(progress, shard))
        self._num_iterations = self._num_calls = 0
        self._num_threads_given = threads_given(num_threads, self.num_workers)
        if prefetch_batches is not None and whole_number("prefetch_batches", prefetch_batches) < 1:
            raise UsageError(f"prefetch_batches={prefetch_batches}: at least 1 is needed")
        self._prefetch_given = None if prefetch_batches is None else int(prefetch_batches)
        self._loader_cores: set[int] | None = None
        warn_of_idle(self)
        least = (self.batch_size or 0) * shard.world_size  # seeds of a batch for each rank
        if self.drop_last and 0 < num_seeds < least and not self._order.varies:
            warn_of_no_batch(self, num_seeds, shard.world_size)

    def _most_threads(self, *, waits_for_disk: bool = True) -> int:
        """Return the number of preparing threads, if memory does not limit it."""
        if self._num_threads_given is not None:
            return self._num_threads_given
        # A thread that waits for the disk computes nothing: one more keeps the cores busy.
        return len(os.sched_getaffinity(0)) + (1 if waits_for_disk else 0)

    def _read_from(
        self,
        opened: Sources,
        source: BatchSource,
        assembler: Assembler,
        *,
        epoch_batches: int = 0,
    ) -> None:
        """Take batches from a source, in as many threads as fit its memory."""
        placement = opened.placement
        self.num_threads = self._most_threads(waits_for_disk=placement.reads_disk)
        if self._num_threads_given is None:
            self.num_threads = min(self.num_threads, opened.num_threads)
        ahead = max(1, self.num_threads) * (self.prefetch_factor or 2)
        self.prefetch_batches = self._prefetch_given or ahead
        self._spare_bytes = placement.spare_bytes
        self._gate: MemoryGate | None = None  # of the last iteration
        self._sources: Any = opened
        self._source = source
        self._assembler = assembler
        self.seed = source.agree(self._all_fingerprints(), self.seed, self._shard.world_size)
        self._seed_is_given = self.seed is not None
        if isinstance(self.sampler, SeededShuffle):
            self.sampler.seed = self.seed
        predicted = placement.predicted
        self._stats = LoaderStats(
            strategy=placement.strategy.choice,
            topology=placement.topology,
            reason=placement.reason,
            num_threads=self.num_threads,
            prefetch_batches=self.prefetch_batches,
            io_engine="" if opened.engine is None else opened.engine.name,
            cache=opened.cached_by,
            superbatch=0 if placement.superbatch is None else placement.superbatch.num_batches,
            predicted_epoch_seconds=None if predicted is None else predicted.seconds,
            predicted_first_epoch_seconds=None if predicted is None else predicted.first_seconds,
            predicted_epoch_bytes=None if predicted is None else predicted.moved_bytes,
            epoch_batches=epoch_batches,
        )
        forget_records_of_bases(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _described(self) -> str:
        """Return the graph, the seeds, and the strategy with its reason, each in a line."""
        path, schema, name = self._origin()
        order, shard, positions = self._order, self._shard, cast("Any", self.dataset)
        named = "" if name is None else f" ({name})"
        seeds = [f"{len(positions):,} {self._labels.name}{named}"]
        if self.batch_size is not None:
            seeds.append(f"{self.batch_size:,} a batch")
        in_order = "shuffled" if order.shuffles else "in order"
        seeds.append(in_order if order.name is None else f"in the order of {order.name}")
        if shard.world_size > 1:
            seeds.append(f"rank {shard.rank} of {shard.world_size}")
        if order.varies:
            seeds.append("epochs differ in their number of batches")
        else:
            with suppress(TypeError):  # of a user's sampler without a length
                seeds[-1] += f": {format_count(len(self), 'batch')} an epoch"
        graph = f"{type(self).__name__} of {path}"
        return describe(graph, schema, self._sources.placement, seeds)

    def _origin(self) -> tuple[Path, Schema, str | None]:
        """Return path and schema of what is read, and the name of all seeds, if any."""
        raise NotImplementedError

    def __copy__(self) -> Self:
        """Return a loader at the same position, which advances on its own, on the same data."""
        copied = object.__new__(type(self))
        shared = {id(self._order): self._order}  # with the user's sampler, as torch's loaders do
        own = {
            name: copy.deepcopy(vars(self)[name], shared)
            for name in ("_cursor", "_recorder", "_totals")
        }
        vars(copied).update(vars(self) | own)
        copied._recorder.progress = self._recorder.progress.another()
        return copied

    @property
    def batches_left(self) -> int:
        """Batches of the epoch that are still to be handed out; all batches before it begins.

        0 between the last batch and the end of the loop: the next epoch has not begun.
        """
        return self._order.num_left(self._cursor.position(self.epoch), self._known_seed())

    def __len__(self) -> int:
        """Return the number of batches of the epoch that comes next."""
        return self.len_of(self.epoch) if self._order.varies else DataLoader.__len__(self)

    def len_of(self, epoch: int) -> int:
        """Return the number of batches of an epoch; with `partitions=`, epochs differ."""
        return self._order.num_left(Position(_checked_epoch(epoch)), self._known_seed())

    def _known_seed(self) -> int | None:
        return self._draw_seed() if self._order.varies else self.seed

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next iteration will be."""
        return self._cursor.epoch

    @epoch.setter
    def epoch(self, value: int) -> None:
        self._cursor.epoch = value

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own class
        """Start the next epoch."""
        return self._get_iterator()

    def _get_iterator(self) -> Generator[Any, None, None]:  # type: ignore[override]
        self._refuse_steps_of_others()
        seed = self._draw_seed()
        iteration = self._cursor.begin(_checked_epoch(self.epoch))
        self.epoch += 1
        self._num_iterations += 1
        pin = None
        if self.pin_memory and can_pin():
            pin = partial(pinned, device=self.pin_memory_device)
        # Batches that are joined in the consumer's thread are few.
        waits = self.transform_sampler_output is None
        lookahead = Lookahead(
            self.prefetch_batches, self._spare_bytes, admits=waits, before=self._gate
        )
        if waits:
            self._gate = lookahead.gate
        finisher = Finisher(
            self._source,
            self._assembler,
            self.transform,
            self.transform_sampler_output,
            None if self.transform_sampler_output is None else self._outputs,
            pin,
            self._totals,
            self._recorder,
            lookahead.gate,
        )
        order, cores = self._order, self._loader_cores
        # 0 is the calling thread.
        initializer = None if cores is None else lambda: os.sched_setaffinity(0, cores)
        # Without the loader, which may be forgotten before its batches.
        run_from = partial(
            EpochRun,
            seed,
            num_threads=self.num_threads,
            joins_in_threads=bool(self.num_threads) and self.transform_sampler_output is None,
            initializer=initializer,
            timeout_seconds=self.timeout or None,
            recorder=self._recorder,
        )
        # A loader that does not shuffle evaluates, often once.
        is_followed = order.is_keyed and (order.shuffles or self._num_iterations > 1)
        return load_batches(
            partial(_run_from, run_from, order, is_followed),
            iteration,
            order,
            finisher,
            lookahead=lookahead,
            initializer=initializer,
        )

    def __call__(self, index: Any) -> Any:
        """Return the batch of some positions among the seeds, prepared in this thread."""
        output = self.collate_fn(index)
        return output if self.filter_per_worker else self.filter_fn(output)

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """The function that prepares a batch on demand, from positions in the input nodes."""
        return self._collate

    @collate_fn.setter
    def collate_fn(self, value: Any) -> None:
        if getattr(value, "__func__", value) is not type(self)._collate:
            raise _no_step_of("collate_fn")
        # Torch sets it, and frameworks look for it among a loader's attributes. Bound to the loader
        # it would keep the loader and its files alive.
        self.__dict__["collate_fn"] = type(self)._collate

    def _refuse_steps_of_others(self) -> None:
        """Refuse to iterate if a user has replaced a step that only PyG's iterations call."""
        if getattr(self.filter_fn, "__func__", None) is not BatchLoader.filter_fn:
            raise _no_step_of("filter_fn")
        if type(self).collate_fn is not BatchLoader.collate_fn:
            raise _no_step_of("collate_fn")

    @property
    def _outputs(self) -> OutputAssembler:
        """The round trip through PyG's `SamplerOutput`."""
        return OutputAssembler(self._assembler, self._source.refusal)

    def _collate(self, index: Any) -> Any:
        """Sample a batch; join it with its attributes too if `filter_per_worker` is set."""
        seed = self._draw_seed()
        worker = get_worker_info()
        epoch = ON_DEMAND_EPOCH if worker is None else worker.seed
        call, self._num_calls = self._num_calls, self._num_calls + 1
        batch = Batch(BatchKey(seed, epoch, call), index)
        self._source.prepare(batch)
        output = self._outputs.output(batch)
        return self.filter_fn(output) if self.filter_per_worker else output

    def filter_fn(self, out: SamplerOutput) -> Any:
        """Join sampler output with its attributes, and apply the transforms."""
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        labels = self._labels.from_metadata(out.metadata)
        data = self._outputs.join(out, labels)
        return data if self.transform is None else self.transform(data)

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Set the epoch that the next iteration will be: whole, or the rest of a loaded state's."""
        self.epoch = _checked_epoch(epoch)
        self._cursor.leave()

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position: after the batch that was last handed out.

        As in torchdata's `StatefulDataLoader`, it is that of the newest iterator; before the
        first one and after the end of an epoch, that of the start of the next epoch. A state that
        is taken after the last batch and before the loop ends has no batches left: a loop that
        resumes there ends at once, and the code after it runs.

        Returns
        -------
        dict
            Of values that JSON knows, with the state of a user's sampler if it has one.
        """
        seed = self._draw_seed()
        position = self._cursor.position(self.epoch)
        return LoaderState(position, seed, self._all_fingerprints()).as_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration begin where a loader stood when its state was taken.

        The batches that remain are the same on any machine and under any strategy. If Lightning
        calls it with a state after the last batch of an epoch, the next epoch follows.

        Raises
        ------
        UsageError
            If it is malformed, or of other batches, with every difference; nothing changes then.
        """
        found = LoaderState.from_dict(state)
        given = self.seed if self._seed_is_given else None
        found.refuse_unless_of(self._all_fingerprints(), given)
        self._order.check(found.position, found.seed)
        if self.seed != found.seed:
            self._use_seed(found.seed)
        self.epoch = found.position.epoch
        self._cursor.load(found.position)
        if self.batches_left == 0 and is_called_by_lightning():
            self.set_epoch(self.epoch + 1)

    def _all_fingerprints(self) -> dict[str, Any]:
        order = OrderFields(self.batch_size, self.drop_last, self._order.shuffles, self._order.name)
        return {**self._fingerprint(), **order._asdict()}

    def _draw_seed(self) -> int:
        """Draw the seed if none was given: late, so that `torch.manual_seed` may come late."""
        if self.seed is None:
            shown: Any = self.sampler
            is_shared = isinstance(shown, SeededShuffle)
            self._use_seed(shown.draw_seed() if is_shared else drawn_seed(self.generator))
        return cast("int", self.seed)

    def _use_seed(self, seed: int) -> None:
        self.seed = seed
        if isinstance(self.sampler, SeededShuffle):
            self.sampler.seed = seed
        self._source = self._source.with_seed(seed)

    def stats(self) -> LoaderStats:
        """Return statistics of the loader since it was made; `since` subtracts a reading."""
        stats = self._stats.plus(**self._totals.amounts).plus_reads(self._totals.counts)
        stats = replace(stats, peak_rss_bytes=peak_rss_bytes())
        return cast("LoaderStats", self._sources.account(stats))

    def explain(self, plot: str | os.PathLike[str] | None = None) -> Explanation:
        """Return what the loader reads and why, and its memory by its parts; it prints as a table.

        Parameters
        ----------
        plot : path-like, optional
            A file to draw stacked bars to, SVG or PNG by its suffix; needs matplotlib.
        """
        placement = self._sources.placement
        found = Explanation.of(type(self).__name__, self._described(), placement)
        if plot is not None:
            draw_memory(found, Path(plot))
        return found

    @contextmanager
    def trace(
        self, path: str | os.PathLike[str], *, max_events: int = MAX_EVENTS
    ) -> Iterator[Timeline]:
        """Record stages within the context, which yields a `Timeline`, and write them to a file.

        The timeline takes stages of the caller's own, too.

        Parameters
        ----------
        path : path-like
            A ``.json`` file for chrome://tracing or ui.perfetto.dev, or a picture of the stages
            by thread, ``.png`` or ``.svg``; replaced if it is there.
        max_events : int
            The most events to record; those after them are left out, and counted in the file.

        Raises
        ------
        UsageError, NotFoundError, StorageError
            If the loader is being traced already, or the file cannot be written.
        """
        if self._recorder.timeline is not OFF:
            raise UsageError("the loader is being traced already; traces do not nest")
        with recorded(path, max_events, writer_of(path)) as timeline:
            self._recorder.timeline = timeline
            try:
                yield timeline
            finally:
                self._recorder.timeline = OFF

    @contextmanager
    def enable_cpu_affinity(self, loader_cores: list[Any] | None = None) -> Iterator[None]:
        """Bind preparing threads that start within the context to cores, or lists of cores."""
        cores = os.sched_getaffinity(0) if loader_cores is None else loader_cores
        self._loader_cores = {
            core for each in cores for core in ([each] if isinstance(each, int) else each)
        }
        try:
            yield
        finally:
            self._loader_cores = None

    @contextmanager
    def enable_multithreading(self, worker_threads: int | None = None) -> Iterator[None]:  # noqa: ARG002
        """Do nothing: threads prepare batches anyway, as many as `num_threads` says."""
        yield

    def check_worker_number_rationality(self) -> None:
        """Do nothing: torch's check counts processes, but none are started."""


def _no_step_of(name: str) -> UsageError:
    return UsageError(
        f"{name} was replaced, but iterations prepare batches ahead without it; change batches "
        "with transform=, and samples with transform_sampler_output="
    )


def _checked_epoch(epoch: SupportsIndex) -> int:
    number = whole_number("epoch", epoch)
    if not 0 <= number < 2**63:
        raise UsageError(f"epoch={epoch} is outside [0, 2^63); epochs count from 0")
    return number


def _run_from(
    make: Callable[..., EpochRun], order: EpochOrder, is_followed: bool, start: Position
) -> EpochRun:
    """Return the run that begins at a position."""

    def describe(k: int) -> str:
        return f"while preparing batch {order.number(start.batches, k)} of epoch {start.epoch}"

    def following() -> tuple[EpochRun, Iterator[Batch]] | None:
        if not is_followed:
            return None
        first = Position(start.epoch + 1)
        coming = _run_from(make, order, True, first)
        return coming, coming.batches(order, first)

    return make(start.epoch, start.batches, describe=describe, following=following)
