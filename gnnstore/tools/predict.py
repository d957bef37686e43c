"""Predicts epochs and compares caches on sampled batches, for `gnnstore predict`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnstore.budget.limits import Memory, memory_of
from gnnstore.caching.belady import distinct_rows, policies, run_policy
from gnnstore.disk.profile import DeviceProfile, load_profile, tune_reads
from gnnstore.errors import BudgetError, UsageError
from gnnstore.features.tables import CachedTables
from gnnstore.graph.sizes import StoreSizes, saved_by_int8
from gnnstore.graph.store import open as open_store
from gnnstore.pictures import draw_into
from gnnstore.pipeline.lookahead.presample import Presampler
from gnnstore.pipeline.shuffle import order_bytes
from gnnstore.strategies.auto import StrategyOptimizer, choices_for, first_choice
from gnnstore.strategies.device_rows import reservations
from gnnstore.strategies.loader_spec import LoaderSpec, ReadOptions, place_for
from gnnstore.strategies.options import DeviceCache, PlannedSettings
from gnnstore.strategies.placement import read_tables
from gnnstore.strategies.registry import STATIC, auto
from gnnstore.strategies.workload import ReadTotals, TableReads
from gnnstore.tools.batches import TracedEpoch, choose_seeds, config_of, sample_epoch
from gnnstore.tools.layout import Block, Document, Layout, program
from gnnstore.tools.options import LOADER_SHARE, SLACK_BYTES, shown_fanouts
from gnnstore.tools.plots import draw_predictions
from gnnstore.tools.session import OK, STORAGE, Session

if TYPE_CHECKING:
    from gnnstore.progress import Progress
    from gnnstore.strategies.base import Strategy
    from gnnstore.strategies.prediction import Prediction
    from gnnstore.tools.options import BatchOptions


_SHARES = (0.05, 0.1, 0.2)
_QUANTIZE = (
    "Rows of x are floats: 'gnnstore quantize' keeps them as int8, of which caches hold more and "
    "an epoch reads less; batches have them decoded."
)
# Shares of rows at which curves are drawn: more points than a table has, most at small sizes.
_DRAWN_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
# Points of a curve, from a hundredth of the store's bytes in memory to all bytes.
_CURVE_POINTS = 13
_LEAST_SHARE = 0.01
_MOST_SHARE = 1.1

PREDICTIONS: Layout = (
    "Predictions for {store}",
    Block(
        "",
        {
            "batches": "{num_batches} of an epoch's {epoch_batches}, each of about "
            "{rows_per_batch:,.0f} rows of {row_bytes:,} bytes",
            "seeds": "{batch_size} a batch, of {num_input_nodes} ([input nodes {input_nodes}]"
            "[links {links}]); fan-out {num_neighbors}",
            "took": "{sampling_seconds} to sample",
            "rows of": "{arrays}",
            "on the device": "{device_rows} rows; {bytes_to_device} of others are copied an epoch",
            "reads": "in units of {alignment_bytes}; rows up to {gap_bytes} apart in one",
            "disk": "as measured at {measured_at}",
        },
    ),
    Block(
        "An epoch, predicted, with {predictions.memory_bytes} of memory and "
        "{predictions.disk_bytes} of disk",
        {
            "strategy": "{strategy}[ {is_chosen:*}]",
            "epoch": "{seconds_per_epoch}",
            "setup": "{seconds_once:-}",
            "memory": "[{memory_bytes}][needs {needed_memory_bytes}]",
            "disk": "[{disk_bytes:-}][needs {needed_disk_bytes}]",
            "bottleneck": "{bottleneck}",
            "random": "{random_reads:-}",
            "sequential": "{sequential_bytes:-}",
            "written": "{written_bytes:-}",
            "cached": "{cached_bytes:-}",
        },
        "predictions.strategies",
    ),
    Block(
        "What caches read from disk",
        {
            "cache": "{share} ({num_bytes})",
            "policy": "{policy}",
            "misses": "{miss_share}",
            "time an epoch": "{seconds_per_epoch}",
            "reads an epoch": "{reads_per_epoch}",
            "bytes an epoch": "{bytes_per_epoch}",
            "fill": "{fill_reads:-}",
        },
        "caches.policies",
    ),
)


def predict_caches(
    session: Session,
    path: str,
    *,
    plot_file: Path | None,
    batches: BatchOptions,
    num_batches: int,
    caches: bool,
    cache_bytes: tuple[float | int, ...] | None,
    seed: int,
    threads: int | None,
    memory_bytes: Memory = None,
    disk_bytes: int | None = None,
    device_cache: int | None = None,
    strategies: tuple[str, ...] | None = None,
) -> int:
    """Sample, compare, draw, print, and return the exit status."""
    store = open_store(path)
    memory_bytes = memory_of(memory_bytes, store.schema.bytes_in_memory)
    specs = read_tables(store.schema.node_attributes())
    if not specs:
        raise UsageError(
            f"{store.path}: no node attribute is stored in pages, so no rows are read from "
            "disk and there is nothing to cache"
        )
    config, num_cores = config_of(store, batches, seed=seed), len(os.sched_getaffinity(0))
    names, seeds = choose_seeds(store, config, batches)
    tables = CachedTables.from_schema(store.schema, {spec.path for spec in specs})
    on_device = None if not device_cache else DeviceCache(device_cache, device="a device")
    with session.progress() as progress:
        spec = LoaderSpec(
            store,
            ReadOptions(
                auto(),
                memory=memory_bytes,
                planned=PlannedSettings(disk_bytes=disk_bytes),
                device_cache=on_device,
            ),
            Presampler.from_store(store, config, seeds, batches.batch_size, False),
            seeds_bytes=seeds.num_bytes + order_bytes(len(seeds), shuffles=True),
            num_threads=threads or num_cores + 1,  # as a loader that waits for a disk
            may_use_fewer=True,
            knows_epochs=True,
            of_device=tuple(reservations(on_device, store.schema)),
        )
        chosen = [c for c in auto().candidates if strategies is None or c.choice in strategies]
        predicted = _predict(spec, chosen, draws_curve=plot_file is not None, progress=progress)
        held = next((own.held for own in spec.chosen.values()), None)
        epoch = sample_epoch(
            store,
            config,
            seeds,
            tables.space,
            batch_size=batches.batch_size,
            num_batches=num_batches,
            num_threads=threads or num_cores,
            progress=progress,
            held=held,
        )
        measured = load_profile(store.path)  # perhaps a moment ago, for the predictions
        arrays = [store.reader.paged(spec) for spec in specs]
        reads = TableReads.from_arrays(arrays, tune_reads(measured), tables.ranges)
        # Times through the page cache are not a disk's.
        profile = measured if measured is not None and measured.is_direct else None
        sizes = cache_bytes or (_SHARES if plot_file is None else _DRAWN_SHARES)
        if not (caches or cache_bytes or plot_file):
            sizes = ()
        compared, num_nodes, row_bytes = [], tables.space.num_rows, tables.slot_bytes
        with progress.phase("compare", len(sizes) * len(policies()), "caches") as phase:
            for size in sizes:
                rows = round(size * num_nodes) if isinstance(size, float) else size // row_bytes
                num_rows = min(rows, num_nodes)
                outcomes = []
                for policy in policies():
                    outcomes.append(_simulate(policy, num_rows, reads, epoch, profile))
                    phase.advance()
                compared.append(
                    {
                        "num_rows": num_rows,
                        "num_bytes": num_rows * row_bytes,
                        "share": num_rows / num_nodes,
                        "policies": outcomes,
                    }
                )
    needed, num_sampled = distinct_rows(epoch.trace), epoch.trace.num_batches
    document: dict[str, Any] = {
        "store": str(store.path),
        "num_neighbors": shown_fanouts(batches.fanouts),
        **batches.of_sampling,
        "batch_size": batches.batch_size,
        "seed": seed,
        **names,
        "num_input_nodes": len(seeds),
        "num_batches": num_sampled,
        "epoch_batches": epoch.epoch_batches,
        "rows_needed": needed,
        "rows_per_batch": needed / max(1, num_sampled),
        "sampling_seconds": epoch.seconds,
        "arrays": [spec.path for spec in specs],
        "row_bytes": row_bytes,
        "table_bytes": sum(spec.num_bytes for spec in specs),
        "alignment_bytes": max(reads.alignments),
        "gap_bytes": reads.tuning.gap_bytes,
        "max_read_bytes": reads.tuning.max_read_bytes,
        "measured_at": None if profile is None else profile.measured_at,
        "device_cache": device_cache or None,
        "device_rows": None if held is None else held.num_rows,
        "bytes_to_device": None if held is None else _row_bytes_of(epoch, tables),
        "caches": compared,
        "predictions": predicted,
    }
    chosen_one = next((one for one in predicted["strategies"] if one["is_chosen"]), None)
    reads_disk = chosen_one is not None and chosen_one["strategy"] != "memory"
    narrow = any(map(saved_by_int8, specs)) and reads_disk
    document["remarks"] = [*_remarks(document), *[_QUANTIZE] * narrow]
    draw_into(document, plot_file, draw_predictions)
    session.emit(document, PREDICTIONS, *_next(document, store.schema.bytes_in_memory))
    return STORAGE if document["problems"] else OK


def _row_bytes_of(epoch: TracedEpoch, tables: CachedTables) -> int:
    """Return the bytes of the rows of an epoch that a device does not hold."""
    trace, total = epoch.trace, 0
    for i in range(trace.num_batches):
        rows = trace.batch(i)
        for own, width in tables.widths.items():
            places = own.within(rows)
            total += width * (places.stop - places.start)
    return round(total * epoch.epoch_batches / max(1, trace.num_batches))


def _next(document: dict[str, Any], whole_bytes: int) -> tuple[list[tuple[str, ...]], str]:
    """Return the commands to try next, and a program, for a store that takes some memory."""
    found, store = document["predictions"]["strategies"], document["store"]
    if document["predictions"].get("refusal") or (
        found and all(one["problem"] is not None for one in found)
    ):
        return [], ""
    # Rows in memory leave a benchmark of strategies nothing to limit, and no limit is below what
    # small tables take.
    commands: list[tuple[str, ...]] = [("gnnstore", "bench", "load", store)] if found else []
    if commands and document["table_bytes"] <= LOADER_SHARE * whole_bytes + SLACK_BYTES:
        commands[0] += ("--no-limit",)
    if document["measured_at"] is None:
        commands = [("gnnstore", "bench", "disk", store)]
    memory = document["predictions"]["memory_bytes"]
    is_asked = document["predictions"]["is_memory_asked"]
    of_batches = {name: document[name] for name in ("links", "num_neighbors", "batch_size")}
    words = [f"memory={memory:_}"] if is_asked else []
    if (on_device := document["device_cache"]) is not None:
        words += ['device="cuda"', f"device_cache={on_device:_}"]
    return commands, program(store, document["input_nodes"], *words, **of_batches)


def _simulate(
    policy: str, num_rows: int, reads: TableReads, epoch: TracedEpoch, profile: DeviceProfile | None
) -> dict[str, Any]:
    """Return what a cache of some policy and size reads, as JSON values."""
    trace, began = epoch.trace, time.perf_counter()
    run = run_policy(policy, trace, num_rows, epoch.scores)
    seconds = time.perf_counter() - began
    totals, fill = ReadTotals(), reads.count(run.filled)
    for i in range(trace.num_batches):
        totals += reads.count(run.missed_rows(trace, i))
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
        "seconds_per_epoch": None if profile is None else scaled.seconds_on(profile),
        "planning_seconds": seconds,
    }


def _predict(
    spec: LoaderSpec, candidates: Sequence[Strategy], *, draws_curve: bool, progress: Progress
) -> dict[str, Any]:
    """Measure the disk if it has not been, sample, and predict the epoch of each strategy."""
    asked = spec.options.memory
    memory = {"memory_bytes": asked, "is_memory_asked": asked is not None}
    try:
        placement = place_for(spec, STATIC)
    except BudgetError:
        # An epoch may be sampled with more memory than its prediction has.
        placement = place_for(replace(spec, options=replace(spec.options, memory=None)), STATIC)
    optimizer = StrategyOptimizer.for_loader(spec, placement, progress)
    if optimizer is None:
        refusal = None
        try:
            first_choice(spec, choices_for(spec, auto()))
        except BudgetError as error:
            refusal = str(error)
        return {**memory, "disk_bytes": 0, "strategies": [], "curve": [], "refusal": refusal}
    if any(candidate.score == "degree" for candidate in candidates):
        with progress.phase("count degrees"):
            optimizer = optimizer.with_degrees()
    predictions = optimizer.predictions(candidates)
    chosen = optimizer.choice(auto(), predictions)
    return {
        **memory,
        "memory_bytes": asked or placement.budget_bytes,
        "disk_bytes": spec.disk_bytes(),
        "sampled_batches": optimizer.epoch.workload.sampled_batches,
        "disk_is_assumed": optimizer.epoch.machine.disk.engine == "assumed",
        "strategies": [
            _describe(p, is_chosen=p.strategy == chosen and p.is_feasible) for p in predictions
        ],
        "curve": _curve(candidates, optimizer, progress) if draws_curve else [],
    }


def _describe(prediction: Prediction, *, is_chosen: bool) -> dict[str, Any]:
    resources = prediction.resources
    return {
        "strategy": prediction.strategy.choice,
        "is_chosen": is_chosen,
        "problem": prediction.problem or None,
        "edge_ids": prediction.ids_note or None,
        "seconds_per_epoch": _number(prediction.seconds),
        "seconds_once": _number(prediction.seconds_once),
        "stages": dict(prediction.stages),
        "bottleneck": prediction.bottleneck or None,
        "random_reads": prediction.reads.reads,
        "random_bytes": prediction.reads.num_bytes,
        "sequential_bytes": prediction.sequential_bytes,
        "written_bytes": prediction.written_bytes,
        "memory_bytes": resources.memory_bytes if prediction.is_feasible else None,
        "disk_bytes": resources.disk_bytes if prediction.is_feasible else None,
        "needed_memory_bytes": prediction.needed_memory_bytes,
        "needed_disk_bytes": prediction.needed_disk_bytes,
        "cached_bytes": resources.cached_bytes,
        "superbatch": resources.superbatch,
    }


def _number(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds


def _curve(
    candidates: Sequence[Strategy], optimizer: StrategyOptimizer, progress: Progress
) -> list[dict[str, Any]]:
    """Return the seconds of an epoch with several budgets of memory."""
    shares = np.geomspace(_LEAST_SHARE, _MOST_SHARE, _CURVE_POINTS)
    points = []
    with progress.phase("predict", _CURVE_POINTS, "budgets") as phase:
        whole = StoreSizes.from_schema(optimizer.loader.store.schema).total_bytes
        for memory in (whole * shares).round().astype(int).tolist():
            predictions = optimizer.predictions(candidates, memory=memory)
            seconds = {p.strategy.choice: _number(p.seconds) for p in predictions}
            points.append({"memory_bytes": memory, "seconds_per_epoch": seconds})
            phase.advance()
    return points


def _remarks(document: Document) -> Iterator[str]:
    """Yield what is to be known of predictions."""
    found = document["predictions"]["strategies"]
    if not found:
        yield "No strategy is predicted: rows are so narrow that loaders hold them in memory."
        if refusal := document["predictions"].get("refusal"):
            yield f"A loader refuses this budget: {refusal}"
    elif any(one["problem"] is None for one in found):
        yield (
            "*: the choice of strategy='auto'. Setup: work before or during the first epoch. "
            "Memory: what a loader reserves; batches in flight have the rest. Random: reads of "
            "rows or pages. Packed-epochs: what 'gnnstore pack' makes."
        )
    yield from _what_to_do(found)
    for names, note in _by_text(found, "edge_ids"):
        yield f"{names}: {note}"
    if document["predictions"].get("disk_is_assumed"):
        yield (
            "The disk could not be measured, so these times are a usual one's: 80,000 reads "
            "and 500 MB a second."
        )
    if not document["caches"]:
        return
    yield (
        "Misses are fractions of the rows that batches need. Static caches are filled once, with "
        "the reads under 'fill'; the other caches start empty, and their first misses fill them."
    )
    if document["num_batches"] < document["epoch_batches"]:
        yield (
            "Not all of the epoch was sampled, so misses of caches that start empty are "
            "overestimated; raise --batches for better estimates."
        )
    if document["measured_at"] is None:
        yield "The time of the reads is unknown: the disk has not been measured."


def _what_to_do(found: Sequence[Document]) -> Iterator[str]:
    """Yield what to do for strategies that do not fit, and why others are impossible."""
    short = [one for one in found if one["needed_memory_bytes"] or one["needed_disk_bytes"]]
    others = [one for one in found if one["problem"] and one not in short]
    if short:
        options = [
            f"--{what}"
            for what in ("memory", "disk")
            if any(o[f"needed_{what}_bytes"] for o in short)
        ]
        names = ", ".join(one["strategy"] for one in short)
        who = f"{names} {'does' if len(short) == 1 else 'do'} not fit"
        if len(short) == len(found):
            who = "No strategy fits"
        less = ", or choose a smaller --batch-size or fan-out" if "--memory" in options else ""
        yield f"{who}: raise {' or '.join(options)} to what the table has{less}."
    for names, why in _by_text(others, "problem"):
        yield f"{names}: {why}"


def _by_text(found: Sequence[Document], field: str) -> Iterator[tuple[str, str]]:
    """Yield each text of a field once, after the names of the strategies that have it."""
    by_text: dict[str, list[str]] = {}
    for one in found:
        by_text.setdefault(one[field] or "", []).append(one["strategy"])
    for text in filter(None, by_text):
        yield ", ".join(by_text[text]), text
