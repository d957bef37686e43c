"""Time ways of loading for `gnnstore bench load`: one after the other, under one limit."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnstore.disk.profile.cgroup import MemoryGroup, memory_group
from gnnstore.disk.profile.page_cache import drop_from_cache
from gnnstore.disk.scratch import default_parent, sweep_stale
from gnnstore.errors import StorageError, UsageError
from gnnstore.graph.store import open as open_store
from gnnstore.pipeline.order.epoch import epoch_permutation
from gnnstore.pipeline.seeds.nodes import resolve_input_nodes
from gnnstore.tools.bench.device import DeviceLimits, measure_device
from gnnstore.tools.bench.render import render_load
from gnnstore.tools.bench.setup import split_tables
from gnnstore.tools.bench.stages import STAGES, stages_of
from gnnstore.tools.bench.task import Outcome, Task, run_task
from gnnstore.tools.bench.ways import BASELINE, ways
from gnnstore.tools.plots.load import draw_load
from gnnstore.tools.plots.pictures import check_picture
from gnnstore.tools.ui import exits
from gnnstore.tools.ui.session import Session

if TYPE_CHECKING:
    from gnnstore.graph.store import GraphStore
    from gnnstore.progress import Progress

_SAMPLE_BATCHES, _WARM_UP = 24, 6
_ALL_NODES = "all"
_NO_LIMIT = "without a limit: the page cache serves whoever reads through it"


@dataclass(frozen=True, eq=False)
class Timed:
    """One run of a strategy.

    Attributes
    ----------
    outcome : Outcome
        What the process answered.
    stages : dict of str to float
        Seconds of a batch in each stage.
    """

    outcome: Outcome
    stages: dict[str, float]


@dataclass(eq=False)
class Runs:
    """What is known of a strategy so far: its runs, or why there are none."""

    strategy: str
    task: Task
    timed: list[Timed]
    problem: str | None = None


@dataclass(frozen=True, eq=False)
class _Epoch:
    """The batches of an epoch: what they start from, and how many there are."""

    input_nodes: str
    num_seeds: int
    num_batches: int


def bench_load(
    session: Session,
    path: str,
    *,
    fanouts: tuple[int, ...],
    batch_size: int,
    input_nodes: str | None,
    strategies: Sequence[str],
    memory: float | int,
    slack_bytes: int,
    disk_bytes: int | None,
    num_batches: int | None,
    whole_epochs: bool,
    repeats: int,
    seed: int,
    num_threads: int | None,
    no_limit: bool,
    plot_file: Path | None,
) -> int:
    """Time, draw, print, and return the exit status.

    Parameters
    ----------
    memory : float or int
        Share of the features, or bytes.

    Raises
    ------
    UsageError
        If there is nothing to read, no limit can be set and `no_limit` is not given, or
        nothing could be drawn.
    NotFoundError, CorruptStoreError, StorageError
        If the store or the split cannot be read.
    """
    if plot_file is not None:
        check_picture(plot_file)
    started = perf_counter()
    store = open_store(path)
    features = split_tables(store.schema)[0]
    feature_bytes = sum(spec.num_bytes for spec in features)
    share = memory if isinstance(memory, float) else memory / feature_bytes
    version = 0 if no_limit else _require_group()
    with tempfile.TemporaryDirectory(prefix="gnnstore-bench-") as temporary:
        scratch = Path(temporary)
        epoch = _write_seeds(
            store,
            scratch,
            input_nodes=input_nodes,
            batch_size=batch_size,
            num_batches=num_batches,
            seed=seed,
        )
        task = Task(
            strategy="",
            store=str(store.path),
            seeds=str(scratch / "seeds.npy"),
            group="",
            group_version=0,
            share=share,
            slack_bytes=slack_bytes,
            warm_up=0,
            batches=epoch.num_batches,
            round=0,
            fanouts=fanouts,
            batch_size=batch_size,
            seed=seed,
            num_threads=num_threads or 0,
            disk_bytes=disk_bytes or 0,
            trace=str(scratch / "trace.json"),
        )
        runs = [
            Runs(name, _task_of(task, name, whole_epochs), []) for name in dict.fromkeys(strategies)
        ]
        with session.progress() as progress:
            devices = _play(runs, store, repeats, not no_limit, progress)
    document = {
        "what": "load",
        "store": str(store.path),
        "num_neighbors": list(fanouts),
        "batch_size": batch_size,
        "seed": seed,
        "input_nodes": epoch.input_nodes,
        "num_input_nodes": epoch.num_seeds,
        "epoch_batches": epoch.num_batches,
        "features": [spec.path for spec in features],
        "feature_bytes": feature_bytes,
        "limit": {"cgroup": version or None, "share": share, "slack_bytes": slack_bytes},
        "remarks": _remarks(devices, no_limit),
        "device": _describe_devices(devices),
        "baseline": BASELINE if any(r.strategy == BASELINE and r.timed for r in runs) else None,
        "strategies": [_describe(r, _timed_of(runs, BASELINE), epoch.num_batches) for r in runs],
        "seconds": perf_counter() - started,
    }
    drawn_to, problems = None, []
    if plot_file is not None and any(r.timed for r in runs):
        try:
            drawn_to = str(draw_load(document, plot_file))
        except StorageError as error:
            problems.append(str(error))
    document |= {"drawn_to": drawn_to, "problems": problems}
    session.emit(document, lambda console: render_load(console, document))
    if problems:
        return exits.STORAGE
    return exits.OK if any(r.timed for r in runs) else exits.USAGE


def _require_group() -> int:
    with memory_group() as group:
        if group is not None:
            return group.version
    raise UsageError(
        "no memory cgroup can be made here, so nothing would keep the memory limit: that needs "
        "root, or a part of the cgroup tree that was handed over to you. --no-limit compares "
        "without a limit, where the page cache serves whoever reads through it"
    )


def _write_seeds(
    store: GraphStore,
    scratch: Path,
    *,
    input_nodes: str | None,
    batch_size: int,
    num_batches: int | None,
    seed: int,
) -> _Epoch:
    """Write the seed nodes of an epoch in the order that a loader shuffles them to."""
    name = input_nodes or ("train" if "train" in store.splits else _ALL_NODES)
    seeds = resolve_input_nodes(store, None if name == _ALL_NODES else name)
    if seeds.num_seeds == 0:
        raise UsageError(
            f"{store.path}: the input nodes {name!r} are empty, so there are no batches; choose "
            "others with --input-nodes"
        )
    # Full batches, unless there is not even one, so that all of them weigh the same.
    count = max(1, seeds.num_seeds // batch_size)
    count = count if num_batches is None else min(count, num_batches)
    positions = epoch_permutation(seeds.num_seeds, seed, 0)[: count * batch_size]
    np.save(scratch / "seeds.npy", seeds.select(positions)[0])
    return _Epoch(name, seeds.num_seeds, count)


def _task_of(task: Task, strategy: str, whole_epochs: bool) -> Task:
    way = ways()[strategy]
    if way.is_made_ahead:
        return replace(task, strategy=strategy, warm_up=task.batches)
    if not way.is_even or whole_epochs:
        return replace(task, strategy=strategy)
    batches = min(task.batches, _SAMPLE_BATCHES)
    warm_up = min(task.batches - batches, _WARM_UP)
    return replace(task, strategy=strategy, warm_up=warm_up, batches=batches)


def _play(
    runs: list[Runs], store: GraphStore, repeats: int, is_limited: bool, progress: Progress
) -> list[DeviceLimits]:
    """Run all strategies in turns, round by round; one that failed is not tried again."""
    devices = []
    features = store.reader.paged(split_tables(store.schema)[0][0])
    for number in range(repeats):
        for run in runs:
            if run.problem is not None:
                continue
            devices.append(measure_device(features))
            name = run.strategy if repeats == 1 else f"{run.strategy}, round {number + 1}"
            limited = is_limited and ways()[run.strategy].is_limited
            with (
                progress.phase(name, run.task.warm_up + run.task.batches, "batches") as phase,
                memory_group() if limited else nullcontext() as group,
            ):
                drop_from_cache([store.path])
                found = _run_once(replace(run.task, round=number), group, phase.advance)
            if isinstance(found, str):
                run.problem = found
                sweep_stale(default_parent(store.path))  # a killed process leaves its own
            else:
                run.timed.append(found)
    return devices


def _run_once(task: Task, group: MemoryGroup | None, on_batch: Any) -> Timed | str:
    if group is not None:
        task = replace(task, group=str(group.path), group_version=group.version)
    outcome = run_task(task, group, on_batch=on_batch)
    if isinstance(outcome, str):
        return outcome
    seconds = outcome.seconds * task.batches
    way = ways().get(outcome.chosen or task.strategy)
    faults_are_reads = way is not None and way.reads_by_faults
    stages = stages_of(Path(task.trace), seconds, faults_are_reads=faults_are_reads)
    return Timed(outcome, {name: stages[name] / task.batches for name in STAGES})


def _timed_of(runs: list[Runs], strategy: str) -> list[Timed]:
    return next((run.timed for run in runs if run.strategy == strategy), [])


def _describe(run: Runs, baseline: list[Timed], epoch_batches: int) -> dict[str, Any]:
    """Return what --json prints of a strategy; sums of an epoch are those of its median round."""
    description: dict[str, Any] = {
        "strategy": run.strategy,
        "problem": run.problem,
        "batches": run.task.batches,
        "warm_up": run.task.warm_up,
        "seconds_per_batch": None,
        "seconds_per_epoch": None,
        "seconds_to_prepare": None,
        "times_baseline": None,
        "stages": None,
        "rounds": [
            {**asdict(timed.outcome), "seconds_by_stage": timed.stages} for timed in run.timed
        ],
    }
    if not run.timed:
        return description
    ordered = sorted(run.timed, key=lambda timed: timed.outcome.seconds)
    middle = ordered[len(ordered) // 2]
    seconds = median(timed.outcome.seconds for timed in run.timed)
    pairs = zip(baseline, run.timed, strict=False)
    ratios = [b.outcome.seconds / max(1e-9, t.outcome.seconds) for b, t in pairs]
    description |= {
        "seconds_per_batch": seconds,
        "seconds_per_epoch": seconds * epoch_batches,
        "seconds_to_prepare": median(_once(timed.outcome, run.task) for timed in run.timed),
        "times_baseline": median(ratios) if ratios else None,
        "stages": {name: middle.stages[name] * epoch_batches for name in STAGES},
    }
    return description


def _once(outcome: Outcome, task: Task) -> float:
    """Return the seconds that come once: before the first epoch, and more in it than in others."""
    more = 0.0
    if ways()[task.strategy].is_made_ahead:
        more = max(0.0, outcome.seconds_warming_up - outcome.seconds * task.warm_up)
    return outcome.seconds_to_prepare + more


def _describe_devices(devices: list[DeviceLimits]) -> dict[str, Any]:
    return {
        "engine": devices[0].engine,
        "is_direct": devices[0].is_direct,
        "random_reads_per_second": [device.random_reads_per_second for device in devices],
        "bytes_per_second": [device.bytes_per_second for device in devices],
    }


def _remarks(devices: list[DeviceLimits], no_limit: bool) -> list[str]:
    remarks = [_NO_LIMIT] if no_limit else []
    if not devices[0].is_direct:
        remarks.append(
            "files cannot be read around the page cache here, so the numbers of the disk are "
            "mostly those of memory"
        )
    return remarks
