"""Ways of loading timed in turns, round by round, each in a process of its own under one limit.

`gnnstore bench load` and the benchmarks of the source tree time with it; they differ in which
graph and which ways they compare, and in what they print.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from gnnstore.disk.profile.page_cache import drop_from_cache
from gnnstore.disk.scratch import default_parent, sweep_stale
from gnnstore.errors import UsageError
from gnnstore.graph.store import GraphStore
from gnnstore.progress import NullProgress, Progress
from gnnstore.tools.bench.device import DeviceLimits, measure_device
from gnnstore.tools.bench.process import group_if
from gnnstore.tools.bench.setup import split_tables
from gnnstore.tools.bench.stages import STAGES, stages_of
from gnnstore.tools.bench.task import WORKER, Outcome, Task, run_task
from gnnstore.tools.bench.ways import BASELINE, Way, ways

NO_LIMIT = "without a limit: the page cache serves whoever reads through it"


@dataclass(frozen=True, eq=False)
class Round:
    """Result of one run of a way of loading."""

    outcome: Outcome  # answer of its process
    stages: dict[str, float]  # seconds of a batch in each stage; empty if the task records none


@dataclass(eq=False)
class Contender:
    """A way that is timed: its task, and its rounds so far or why there are none."""

    way: Way
    task: Task
    rounds: list[Round] = field(default_factory=list)
    problem: str | None = None

    @property
    def name(self) -> str:
        """The strategy, as `ways` names it."""
        return self.task.strategy

    @property
    def seconds(self) -> list[float]:
        """Seconds of a batch, by round."""
        return [each.outcome.seconds for each in self.rounds]


def require_group() -> int:
    """Return the version of the memory cgroups that can be made here."""
    with group_if(is_limited=True) as group:
        if group is not None:
            return group.version
    raise UsageError(
        "no memory cgroup can be made here, so nothing would keep the memory limit: that needs "
        "root, or a part of the cgroup tree that was handed over to you. --no-limit compares "
        "without a limit, where the page cache serves whoever reads through it"
    )


def measure_disk_of(store: GraphStore) -> DeviceLimits:
    """Measure the disk on the first table of a store that is read from it."""
    return measure_device(store.reader.paged(split_tables(store.schema)[0][0]))


def play(
    contenders: Sequence[Contender],
    store: GraphStore,
    *,
    repeats: int,
    is_limited: bool,
    worker: str = WORKER,
    progress: Progress | None = None,
) -> list[DeviceLimits]:
    """Time all ways in turns; one that failed is not tried again."""
    devices = []
    shown = progress or NullProgress()
    for number in range(repeats):
        for contender in contenders:
            if contender.problem is not None:
                continue
            devices.append(measure_disk_of(store))
            task = replace(contender.task, round=number)
            title = contender.name if repeats == 1 else f"{contender.name}, round {number + 1}"
            limited = is_limited and contender.way.is_limited
            with shown.phase(title, task.warm_up + task.batches, "batches") as phase:
                found = run_cold(task, is_limited=limited, worker=worker, on_batch=phase.advance)
            if isinstance(found, str):
                contender.problem = found
                sweep_stale(default_parent(store.path))  # a killed process leaves its own
            else:
                contender.rounds.append(Round(found, _stages(task, found)))
    return devices


def run_cold(
    task: Task,
    *,
    is_limited: bool,
    worker: str = WORKER,
    on_batch: Callable[[], None] = lambda: None,
) -> Outcome | str:
    """Perform a task with nothing of its files in the page cache, in a new group if limited."""
    with group_if(is_limited) as group:
        drop_from_cache([Path(path) for path in (task.store, task.packed) if path])
        return run_task(task, group, worker=worker, on_batch=on_batch)


def _stages(task: Task, outcome: Outcome) -> dict[str, float]:
    if not task.trace:
        return {}
    way = ways().get(outcome.chosen or task.strategy)
    seconds = outcome.seconds * task.batches
    faults_are_reads = way is not None and way.reads_by_faults
    stages = stages_of(Path(task.trace), seconds, faults_are_reads=faults_are_reads)
    return {name: stages[name] / task.batches for name in STAGES}


# --- results ------------------------------------------------------------------------------------


def describe(
    store: GraphStore,
    contenders: Sequence[Contender],
    devices: Sequence[DeviceLimits],
    *,
    names: Mapping[str, str | None],
    num_seeds: int,
    epoch_batches: int,
    cgroup_version: int,
) -> dict[str, Any]:
    """Return the results as the JSON document of `gnnstore bench load`."""
    task, features = contenders[0].task, split_tables(store.schema)[0]
    timed = {contender.name: contender for contender in contenders if contender.rounds}
    baseline = timed.get(BASELINE)
    return {
        "what": "load",
        "store": str(store.path),
        "num_neighbors": list(task.fanouts),
        "batch_size": task.batch_size,
        "seed": task.seed,
        **names,
        "num_input_nodes": num_seeds,
        "epoch_batches": epoch_batches,
        "features": [spec.path for spec in features],
        "feature_bytes": sum(spec.num_bytes for spec in features),
        "limit": {
            "cgroup": cgroup_version or None,
            "share": task.share,
            "slack_bytes": task.slack_bytes,
        },
        "remarks": _remarks(devices, is_limited=bool(cgroup_version)),
        "device": {
            "engine": devices[0].engine,
            "is_direct": devices[0].is_direct,
            "random_reads_per_second": [device.random_reads_per_second for device in devices],
            "bytes_per_second": [device.bytes_per_second for device in devices],
        },
        "baseline": BASELINE if baseline else None,
        "strategies": [_describe(each, baseline, epoch_batches) for each in contenders],
    }


def speedups(contender: Contender, baseline: Contender | None) -> list[float]:
    """Return how many times as fast as the baseline each round was."""
    pairs = zip([] if baseline is None else baseline.seconds, contender.seconds, strict=False)
    return [before / max(1e-9, seconds) for before, seconds in pairs]


def _describe(
    contender: Contender, baseline: Contender | None, epoch_batches: int
) -> dict[str, Any]:
    """Return the results of one way; the stages of an epoch are those of its median round."""
    ratios = speedups(contender, baseline)
    description: dict[str, Any] = {
        "strategy": contender.name,
        "problem": contender.problem,
        "is_limited": contender.way.is_limited,
        "batches": contender.task.batches,
        "warm_up": contender.task.warm_up,
        "seconds_per_batch": None,
        "seconds_per_epoch": None,
        "seconds_to_prepare": None,
        "times_baseline": median(ratios) if ratios else None,
        "times_baseline_by_round": ratios,
        "stages": None,
        "rounds": [
            {**asdict(each.outcome), "seconds_by_stage": each.stages} for each in contender.rounds
        ],
    }
    if not contender.rounds:
        return description
    seconds = median(contender.seconds)
    ordered = sorted(contender.rounds, key=lambda each: each.outcome.seconds)
    stages = ordered[len(ordered) // 2].stages
    return description | {
        "seconds_per_batch": seconds,
        "seconds_per_epoch": seconds * epoch_batches,
        "seconds_to_prepare": median(_once(contender, each.outcome) for each in contender.rounds),
        "stages": {name: stages[name] * epoch_batches for name in stages},
    }


def _once(contender: Contender, outcome: Outcome) -> float:
    """Return the seconds that come once: before the first epoch, and more in it than in others."""
    more = 0.0
    if contender.way.is_made_ahead:
        usual = outcome.seconds * contender.task.warm_up
        more = max(0.0, outcome.seconds_warming_up - usual)
    return outcome.seconds_to_prepare + more


def _remarks(devices: Sequence[DeviceLimits], *, is_limited: bool) -> list[str]:
    """Return the conditions that the numbers hold under."""
    found = [] if is_limited else [NO_LIMIT]
    if not devices[0].is_direct:
        found.append(
            "reads cannot bypass the page cache here, so the numbers of the disk are "
            "mostly those of memory"
        )
    return found
