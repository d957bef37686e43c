"""Compares caches for `gnnstore predict` on sampled batches, and counts their reads."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gnnstore.caching.policies.simulate import PolicyRun, distinct_rows, policies, run_policy
from gnnstore.disk.profile import DeviceProfile, load_profile, tune_reads
from gnnstore.errors import UsageError
from gnnstore.features.tables import CachedTables
from gnnstore.graph.store import open as open_store
from gnnstore.pictures import draw_into
from gnnstore.pipeline.lookahead.presample import Presampler
from gnnstore.strategies.builtin import auto
from gnnstore.strategies.predict.reads import ReadTotals
from gnnstore.strategies.predict.workload import TableReads
from gnnstore.strategies.sizes.placement import read_tables
from gnnstore.tools.inspect.programs import program
from gnnstore.tools.plots import draw_predictions
from gnnstore.tools.predict import layouts
from gnnstore.tools.predict.seeds import choose_seeds, config_of
from gnnstore.tools.predict.strategies import predict_strategies
from gnnstore.tools.predict.trace import TracedEpoch, sample_epoch
from gnnstore.tools.ui import exits
from gnnstore.tools.ui.session import Session

if TYPE_CHECKING:
    from gnnstore.caching.plan import Trace
    from gnnstore.formats.arrays.paged_array import PagedArray
    from gnnstore.graph.store import GraphStore
    from gnnstore.progress import Progress
    from gnnstore.tools.ui.options import SamplingOptions, SeedOptions

_SHARES = (0.05, 0.1, 0.2)
# A curve needs more points, most of them at small sizes.
_DRAWN_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True, eq=False)
class _Disk:
    """The tables whose rows are read from disk, and the rules of their reads."""

    tables: CachedTables
    arrays: tuple[PagedArray, ...]
    reads: TableReads
    profile: DeviceProfile | None  # measurements, unless they were made through the page cache

    @classmethod
    def of(cls, store: GraphStore) -> Self:
        """Find the node attributes that a loader reads from disk if memory is short."""
        specs = read_tables(store.schema.node_attributes())
        arrays = [store.reader.paged(spec) for spec in specs]
        if not arrays:
            raise UsageError(
                f"{store.path}: no node attribute is stored in pages, so no rows are read from "
                "disk and there is nothing to cache"
            )
        profile = load_profile(store.path)
        usable = profile if profile is not None and profile.is_direct else None
        tables = CachedTables.of(store.schema, {spec.path for spec in specs})
        reads = TableReads.of(arrays, tune_reads(profile), tables.ranges)
        return cls(tables, tuple(arrays), reads, usable)


def predict_caches(
    session: Session,
    path: str,
    *,
    plot_file: Path | None,
    sampling: SamplingOptions,
    batch_size: int,
    seeds_asked: SeedOptions,
    num_batches: int,
    caches: tuple[float | int, ...] | None,
    seed: int,
    threads: int | None,
    memory_bytes: int | None = None,
    disk_bytes: int | None = None,
    strategies: tuple[str, ...] | None = None,
) -> int:
    """Sample, compare, draw, print, and return the exit status."""
    store = open_store(path)
    _Disk.of(store)  # before the disk is measured, if there is nothing to read from it
    sizes = caches or (_SHARES if plot_file is None else _DRAWN_SHARES)
    config, num_cores = config_of(store, sampling, seed=seed), len(os.sched_getaffinity(0))
    names, seeds = choose_seeds(store, config, seeds_asked)
    with session.progress() as progress:
        chosen = [c for c in auto().candidates if strategies is None or c.choice in strategies]
        predicted = predict_strategies(
            store,
            Presampler.of(store, config, seeds, batch_size, False),
            seeds,
            num_threads=threads or num_cores + 1,  # as a loader that waits for a disk
            memory_bytes=memory_bytes,
            disk_bytes=disk_bytes,
            candidates=tuple(chosen),
            draws_curve=plot_file is not None,
            progress=progress,
        )
        disk = _Disk.of(store)  # with the measurement just made
        epoch = sample_epoch(
            store,
            config,
            seeds,
            disk.tables.space,
            batch_size=batch_size,
            num_batches=num_batches,
            num_threads=threads or num_cores,
            progress=progress,
        )
        compared = _compare(disk, epoch, sizes, progress)
    needed, trace, profile = distinct_rows(epoch.trace), epoch.trace, disk.profile
    document: dict[str, Any] = {
        "store": str(store.path),
        "num_neighbors": sampling.shown_fanouts,
        **sampling.of_loader,
        "batch_size": batch_size,
        "seed": seed,
        **names,
        "num_input_nodes": len(seeds),
        "num_batches": trace.num_batches,
        "epoch_batches": epoch.epoch_batches,
        "rows_needed": needed,
        "rows_per_batch": needed / max(1, trace.num_batches),
        "sampling_seconds": epoch.seconds,
        "arrays": [array.spec.path for array in disk.arrays],
        "row_bytes": disk.tables.slot_bytes,
        "alignment_bytes": max(disk.reads.alignments),
        "gap_bytes": disk.reads.tuning.gap_bytes,
        "max_read_bytes": disk.reads.tuning.max_read_bytes,
        "measured_at": None if profile is None else profile.measured_at,
        "caches": compared,
        "predictions": predicted,
    }
    document["remarks"] = [*layouts.remarks(document)]
    draw_into(document, plot_file, draw_predictions)
    session.emit(document, layouts.PREDICTIONS, *_next(document))
    return exits.STORAGE if document["problems"] else exits.OK


def _next(document: dict[str, Any]) -> tuple[list[tuple[str, ...]], str]:
    """Return the commands to try next, and a program."""
    found, store = document["predictions"]["strategies"], document["store"]
    if found and all(one["problem"] is not None for one in found):
        return [], ""
    # Rows in memory leave a benchmark of strategies nothing to limit.
    commands: list[tuple[str, ...]] = [("gnnstore", "bench", "load", store)] if found else []
    if document["measured_at"] is None:
        commands = [("gnnstore", "bench", "disk", store)]
    memory = document["predictions"]["memory_bytes"]
    of_batches = {name: document[name] for name in ("links", "num_neighbors", "batch_size")}
    words = [f"memory={memory:_}"] if memory else []
    return commands, program(store, document["input_nodes"], *words, **of_batches)


def _compare(
    disk: _Disk,
    epoch: TracedEpoch,
    sizes: tuple[float | int, ...],
    progress: Progress,
) -> list[dict[str, Any]]:
    """Return the rows that each policy reads for each size, as JSON values."""
    compared = []
    row_bytes, num_nodes = disk.tables.slot_bytes, disk.tables.space.num_rows
    with progress.phase("compare", len(sizes) * len(policies()), "caches") as phase:
        for size in sizes:
            rows = round(size * num_nodes) if isinstance(size, float) else size // row_bytes
            num_rows = min(rows, num_nodes)
            outcomes = []
            for policy in policies():
                outcomes.append(_run(policy, num_rows, disk, epoch))
                phase.advance()
            compared.append(
                {
                    "num_rows": num_rows,
                    "num_bytes": num_rows * row_bytes,
                    "share": num_rows / num_nodes,
                    "policies": outcomes,
                }
            )
    return compared


def _run(policy: str, num_rows: int, disk: _Disk, epoch: TracedEpoch) -> dict[str, Any]:
    trace = epoch.trace
    began = time.perf_counter()
    run = run_policy(policy, trace, num_rows, epoch.scores)
    seconds = time.perf_counter() - began
    totals = _reads(run, trace, disk)
    fill = disk.reads.count(run.filled)
    # Whole epochs are compared; reads before the first one are counted separately.
    scale = epoch.epoch_batches / trace.num_batches
    scaled = ReadTotals(round(totals.reads * scale), round(totals.num_bytes * scale))
    return {
        "policy": policy,
        "misses": run.num_misses,
        "miss_share": run.num_misses / max(1, distinct_rows(trace)),
        "filled_rows": len(run.filled),
        "fill_reads": fill.reads,
        "fill_bytes": fill.num_bytes,
        "reads_per_epoch": scaled.reads,
        "bytes_per_epoch": scaled.num_bytes,
        "seconds_per_epoch": None if disk.profile is None else scaled.seconds_on(disk.profile),
        "planning_seconds": seconds,
    }


def _reads(run: PolicyRun, trace: Trace, disk: _Disk) -> ReadTotals:
    totals = ReadTotals()
    for i in range(trace.num_batches):
        totals += disk.reads.count(run.missed_rows(trace, i))
    return totals
