"""The epochs of a loader: threads, a source of batches and a preparer; statistics of them all.

The way of a batch is in `pipeline.batch`; the loader's state is in `loaders.stateful`, and what
else torch, PyG and frameworks find in it in `loaders.torch_loader`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from gnnstore.errors import UsageError, whole_number
from gnnstore.formats.store.schema import Schema
from gnnstore.loaders.assemble import Assembler
from gnnstore.loaders.explain import Explanation, describe, draw_memory, writer_of
from gnnstore.loaders.options import (
    displayed,
    forget_records_of_bases,
    threads_given,
    warn_of_idle,
    warn_of_no_batch,
)
from gnnstore.loaders.pinning import can_pin, pinned
from gnnstore.loaders.stateful import checked_epoch
from gnnstore.loaders.torch_loader import TorchLoader
from gnnstore.machine import PRIVATE, Machine, SharedMachine
from gnnstore.pipeline.batch import (
    Batch,
    BatchPreparer,
    BatchSource,
    EpochRun,
    Recorder,
    Totals,
    load_batches,
)
from gnnstore.pipeline.order import EpochOrder, Position
from gnnstore.pipeline.ranks import ALONE, RankShard
from gnnstore.pipeline.shown_samplers import SeededShuffle
from gnnstore.pipeline.stats import LoaderStats
from gnnstore.progress import peak_rss_bytes
from gnnstore.seeds.base import SeedLabels
from gnnstore.strategies.base import Sources
from gnnstore.threads import Lookahead, MemoryGate
from gnnstore.timeline import MAX_EVENTS, OFF, Timeline, recorded
from gnnstore.units import format_count


class BatchLoader(TorchLoader):
    """Base of the loaders: each calls `_read_from` with the source of its batches."""

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
        device: torch.device | None = None,
        reorder: int = 0,
        shard: RankShard = ALONE,
        own_order: Callable[[EpochOrder], EpochOrder] | None = None,
        progress: bool | None = None,
    ) -> None:
        super().__init__(
            num_seeds,
            labels=labels,
            fingerprint=fingerprint,
            seed=seed,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            device=device,
            reorder=reorder,
            options=options,
            shard=shard,
            own_order=own_order,
        )
        self._window = max(1, reorder)  # batches that are put in order together
        if self._window > 1 and not self._order.is_keyed:
            raise UsageError(
                f"reorder={reorder} puts batches in another order than {self._order.name} gives; "
                "leave out sampler= and batch_sampler=, or choose reorder=1"
            )
        self._machine: Machine = PRIVATE  # the place of what is loaded whole
        self._totals = Totals()
        self._recorder = Recorder(displayed(progress, shard))
        self._num_iterations = 0
        self._num_threads_given = threads_given(num_threads, self.num_workers)
        if prefetch_batches is not None and whole_number("prefetch_batches", prefetch_batches) < 1:
            raise UsageError(f"prefetch_batches={prefetch_batches}: at least 1 is needed")
        self._prefetch_given = None if prefetch_batches is None else int(prefetch_batches)
        warn_of_idle(self, is_placed=self._placer is not None)
        order = self._order
        if self.drop_last and num_seeds and order.is_keyed and not (order.varies or len(self)):
            warn_of_no_batch(self, num_seeds, shard.world_size)

    def _copies_batches(self) -> bool:
        """Return whether batches are copied to where a GPU fetches them, which takes memory."""
        return self._placer is not None or bool(self.pin_memory and can_pin())

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
        if self._placer is not None:
            self._placer.sources = opened
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

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own class
        """Start the next epoch."""
        return self._get_iterator()

    def _get_iterator(self) -> Generator[Any, None, None]:  # type: ignore[override]
        if isinstance(self._machine, SharedMachine):
            self._machine.look_around()
        self._refuse_steps_of_others()
        seed = self._draw_seed()
        iteration = self._cursor.begin(checked_epoch(self.epoch))
        self.epoch += 1
        self._num_iterations += 1
        pin, placing = None, None
        if self._placer is not None:
            placing = self._placer.run(self._assembler.shared_tensors())
        elif self.pin_memory and can_pin():
            pin = partial(pinned, device=self.pin_memory_device)
        # Batches that are joined in the consumer's thread are few.
        waits = self.transform_sampler_output is None
        lookahead = Lookahead(
            self.prefetch_batches, self._spare_bytes, admits=waits, before=self._gate
        )
        if waits:
            self._gate = lookahead.gate
        preparer = BatchPreparer(
            self._source,
            self._assembler,
            self.transform,
            self.transform_sampler_output,
            None if self.transform_sampler_output is None else self._outputs,
            pin,
            self._totals,
            self._recorder,
            lookahead.gate,
            placing,
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
            # Without windows a state may be of another number of ranks.
            window=self._window * self._shard.world_size if self._window > 1 else 1,
        )
        # A loader that does not shuffle evaluates, often once.
        is_followed = order.is_keyed and (order.shuffles or self._num_iterations > 1)
        return load_batches(
            partial(_run_from, run_from, order, is_followed),
            iteration,
            order,
            preparer,
            lookahead=lookahead,
            initializer=initializer,
        )

    def stats(self) -> LoaderStats:
        """Return statistics of the loader since it was made; `since` subtracts a reading."""
        stats = self._stats.plus(**self._totals.amounts).plus_reads(self._totals.counts)
        rows = None if self._placer is None else self._placer.rows
        stats = replace(
            stats,
            peak_rss_bytes=peak_rss_bytes(),
            device_cache_bytes=0 if rows is None else rows.num_bytes,
        )
        return cast("LoaderStats", self._sources.account(stats))

    def explain(self, plot: str | os.PathLike[str] | None = None) -> Explanation:
        """Return what the loader reads and why, and its memory by its parts; it prints as a table.

        Parameters
        ----------
        plot : path-like, optional
            A file to draw stacked bars to, SVG or PNG by its suffix; needs matplotlib.
        """
        placement = self._sources.placement
        found = Explanation.from_placement(type(self).__name__, self._described(), placement)
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
