"""Times the strategies on a store; prints and plots that."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from gnnstore.budget.limits import memory_of
from gnnstore.disk.spool import default_parent, sweep_stale
from gnnstore.errors import UsageError
from gnnstore.graph.store import GraphStore
from gnnstore.graph.store import open as open_store
from gnnstore.pictures import draw_into
from gnnstore.pipeline.shuffle import epoch_order
from gnnstore.progress import NullProgress, Progress
from gnnstore.sampling.neighbor import only
from gnnstore.seeds.links import Links
from gnnstore.seeds.nodes import InputNodes
from gnnstore.strategies.registry import auto
from gnnstore.tools.batches import choose_seeds, config_of
from gnnstore.tools.bench import harness
from gnnstore.tools.bench.harness import BASELINE, STAGES, Task, Way, split_tables, ways
from gnnstore.tools.bench.picture import draw_load
from gnnstore.tools.layout import Block, Layout, program
from gnnstore.tools.options import BatchOptions, shown_fanouts
from gnnstore.tools.session import OK, STORAGE, USAGE, Session
from gnnstore.units import format_size, parse_size

WORKER = "gnnstore.tools.bench.worker"
NO_LIMIT = "without a limit: the page cache serves every strategy that reads through it"
_NOT_DIRECT = (
    "reads cannot bypass the page cache here, so the numbers of the disk are mostly memory's"
)
_SAMPLE_BATCHES, _WARM_UP = 24, 6


LOAD: Layout = (
    "Loading {store}",
    Block(
        "",
        {
            "epoch": "{epoch_batches:batch} of {batch_size:seed} ([input nodes {input_nodes}]"
            "[links {links}]); fan-out {num_neighbors}",
            "memory": "topology and labels, {limit.share} of {feature_bytes} of features, and "
            "{limit.slack_bytes} of slack[, kept by a cgroup of version {limit.cgroup}]",
            "disk": "{device.random_reads_per_second:~} random reads of 4 KiB a second, "
            "{device.bytes_per_second:~} sequentially ({device.engine})",
            "took": "{seconds}",
        },
    ),
    Block(
        "Batches",
        {
            "strategy": "{strategy}[ ({chosen})]",
            "an epoch": "{seconds_per_epoch}",
            "speed-up": "{times_baseline:.1f}",
            "memory": "{peak_bytes}",
            "setup": "{seconds_to_prepare}",
            "a batch": "{seconds_by_round:~}",
            "from disk": "{disk_bytes:-}",
            "reads": "{reads:-}",
            "cached": "{hit_rate:-}",
        },
        "strategies",
    ),
    (
        "Speed-up: over numpy-mmap. Memory: the most that the process held, page cache included. "
        "Setup: one-time work, before or during the first epoch. From disk, and reads: of a batch "
        "(-: none, or not counted). Cached: of its rows."
    ),
    Block(
        "Where the time of an epoch goes",
        {"strategy": "{strategy}", **{stage: f"{{stages.{stage}:-}}" for stage in STAGES}},
        "strategies",
    ),
    (
        "A moment in which several threads work is divided evenly among what they do, so that a "
        "row adds up to the time of an epoch. For numpy-mmap and mmap, reading is page faults and "
        "copying."
    ),
    Block("", "\n{strategy}: {problem}", "strategies"),
)


def bench_load(
    session: Session,
    path: str,
    *,
    batches: BatchOptions,
    strategies: Sequence[str],
    memory: int | str,
    num_batches: int | None,
    repeats: int,
    no_limit: bool,
    plot_file: Path | None,
    **task: Any,
) -> int:
    """Time, draw, print, and return the exit status; other options are fields of a `Task`."""
    started, store = perf_counter(), open_store(path)
    config = config_of(store, batches, seed=task["seed"])
    names, seeds = choose_seeds(store, config, batches)
    feature_bytes = sum(spec.num_bytes for spec in split_tables(store.schema)[0])
    memory_bytes = parse_size(memory_of(memory, store.schema.bytes_in_memory) or 0)
    share = memory_bytes / max(1, feature_bytes)
    version = 0 if no_limit else harness.require_group()
    room_bytes = memory_bytes + task["slack_bytes"]
    if version and room_bytes >= feature_bytes:
        raise UsageError(
            f"--loader-memory and --slack leave {format_size(room_bytes)} to features of "
            f"{format_size(feature_bytes)}, so the limit would limit nothing; lower them (--slack "
            f"is now {format_size(task['slack_bytes'])}), take a larger store, or give --no-limit"
        )
    with tempfile.TemporaryDirectory(prefix="gnnstore-bench-") as scratch:
        suffix = "npz" if isinstance(seeds, InputNodes) and seeds.is_typed else "npy"
        file = Path(scratch, f"seeds.{suffix}")
        count = _write_seeds(file, seeds, batches.batch_size, num_batches, task["seed"])
        edge_type = seeds.edge_type if isinstance(seeds, Links) else ()
        # With 0, some options are left to the loader.
        own: dict[str, Any] = {name: value or 0 for name, value in task.items()}
        epoch = Task(
            strategy="",
            store=str(store.path),
            batches=count,
            batch_size=batches.batch_size,
            seeds=str(file) if file.exists() else "",
            links=None if batches.links is None else dict(batches.of_links),
            edge_type=() if store.schema.is_homogeneous else edge_type,
            share=share,
            fanouts=batches.fanouts,
            sampling=dict(batches.of_sampling),
            **own,
        )
        tasks = [_task(replace(epoch, strategy=way)) for way in dict.fromkeys(strategies)]
        with session.progress() as progress:
            document = compare(
                store,
                tasks,
                ways(),
                repeats=repeats,
                cgroup_version=version,
                epoch_batches=count,
                progress=progress,
                seeds={**names, "num_input_nodes": len(seeds)},
            )
    document["seconds"] = perf_counter() - started
    timed = [found for found in document["strategies"] if found["rounds"]]
    draw_into(document, plot_file if timed else None, draw_load)
    fastest = min(timed, key=lambda each: each["seconds_per_epoch"], default=None)
    text = ""
    if fastest is not None and fastest["strategy"] != BASELINE:
        of_batches = {name: document[name] for name in ("num_neighbors", "batch_size", "links")}
        strategy = f'strategy="{fastest["strategy"]}"'
        text = program(document["store"], document["input_nodes"], strategy, **of_batches)
    session.emit(document, LOAD, (), text)
    if document["problems"]:
        return STORAGE
    return OK if timed else USAGE


def _write_seeds(
    file: Path,
    seeds: InputNodes | Links,
    batch_size: int,
    num_batches: int | None,
    seed: int,
) -> int:
    """Write the seeds of an epoch in a loader's shuffled order; return the number of batches."""
    # Full batches, unless there is none, so that all have the same weight.
    whole = len(seeds) // batch_size
    count = max(1, whole if num_batches is None else min(whole, num_batches))
    if isinstance(seeds, Links) and seeds.edges is None and count == whole:
        return count  # a loader has all edges without a copy
    positions = epoch_order(len(seeds), seed, 0)[: count * batch_size]
    if isinstance(seeds, Links):
        links = seeds.over(seeds.store.topology_at_hand())
        np.save(file, np.stack(links.ends(positions)))
    elif seeds.is_typed:
        by_type: dict[str, Any] = {**seeds.select(positions).nodes}
        np.savez(file, **by_type)
    else:
        np.save(file, only(seeds.select(positions).nodes))
    return count


def _task(epoch: Task) -> Task:
    """Return the batches to time: an epoch, or a sample where all batches cost the same."""
    way = ways()[epoch.strategy]
    if way.is_made_ahead:
        return replace(epoch, warm_up=epoch.batches)
    if not way.is_even:
        return epoch
    batches = min(epoch.batches, _SAMPLE_BATCHES)
    return replace(epoch, batches=batches, warm_up=min(epoch.batches - batches, _WARM_UP))


def compare(
    store: GraphStore,
    tasks: Sequence[Task],
    ways: Mapping[str, Way],
    *,
    repeats: int,
    cgroup_version: int,
    epoch_batches: int,
    seeds: Mapping[str, Any],
    worker: str = WORKER,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Time ways in turns, and return the JSON document; a way that failed is not tried again."""
    devices: list[harness.DeviceLimits] = []
    rounds: dict[str, list[dict[str, Any]]] = {task.strategy: [] for task in tasks}
    problems: dict[str, str] = {}
    for number in range(repeats):
        for task in tasks:
            if (name := task.strategy) in problems:
                continue
            devices.append(harness.measure_disk_of(store))
            title = name if repeats == 1 else f"{name}, round {number + 1}"
            num_batches = task.warm_up + task.batches
            with (progress or NullProgress()).phase(title, num_batches, "batches") as phase:
                found = harness.run_task(
                    replace(task, round=number),
                    worker=worker,
                    is_limited=cgroup_version > 0 and ways[name].is_limited,
                    on_batch=phase.advance,
                )
            if isinstance(found, str):
                problems[name] = found
                sweep_stale(default_parent(store.path))  # a killed process leaves its files
            else:
                rounds[name].append(found)
    first, features, device = tasks[0], split_tables(store.schema)[0], devices[0]
    remarks = [] if cgroup_version else [NO_LIMIT]
    remarks += [] if device.is_direct else [_NOT_DIRECT]
    limit = {"cgroup": cgroup_version or None, "share": first.share}
    baseline = rounds.get(BASELINE, [])
    return {
        "what": "load",
        "store": str(store.path),
        "num_neighbors": shown_fanouts(first.fanouts),
        "batch_size": first.batch_size,
        "seed": first.seed,
        **seeds,
        "epoch_batches": epoch_batches,
        "features": [spec.path for spec in features],
        "feature_bytes": sum(spec.num_bytes for spec in features),
        "limit": {**limit, "slack_bytes": first.slack_bytes},
        "remarks": remarks,
        "device": {
            **{name: [getattr(each, name) for each in devices] for name in device._fields},
            **{name: getattr(device, name) for name in ("engine", "is_direct")},
        },
        "baseline": BASELINE if baseline else None,
        "strategies": [
            {
                "strategy": task.strategy,
                "problem": problems.get(task.strategy),
                "is_limited": ways[task.strategy].is_limited,
                "batches": task.batches,
                "warm_up": task.warm_up,
                **_times(ways[task.strategy], task, rounds[task.strategy], baseline, epoch_batches),
                "rounds": rounds[task.strategy],
            }
            for task in tasks
        ],
    }


def _times(
    way: Way,
    task: Task,
    rounds: Sequence[Mapping[str, Any]],
    baseline: Sequence[Mapping[str, Any]],
    epoch_batches: int,
) -> dict[str, Any]:
    """Return the times of a way; the stages of an epoch come from its median round."""
    if not rounds:
        return {}
    ordered = sorted(rounds, key=lambda each: each["seconds"])
    seconds = median(each["seconds"] for each in rounds)
    once = [each["seconds_to_prepare"] for each in rounds]
    if way.is_made_ahead:  # time that the first epoch takes beyond others
        more = (r["seconds_warming_up"] - r["seconds"] * task.warm_up for r in rounds)
        once = [a + max(0.0, b) for a, b in zip(once, more, strict=True)]
    pairs = zip(baseline, rounds, strict=False)
    ratios = [before["seconds"] / max(1e-9, each["seconds"]) for before, each in pairs]
    by_stage = ordered[len(ordered) // 2]["stages"]
    return {
        "times_baseline": median(ratios) if ratios else None,
        "times_baseline_by_round": ratios,
        "seconds_by_round": [each["seconds"] for each in rounds],
        "seconds_per_batch": seconds,
        "seconds_per_epoch": seconds * epoch_batches,
        "seconds_to_prepare": median(once),
        "stages": {name: each * epoch_batches for name, each in by_stage.items()},
        "chosen": rounds[-1]["chosen"] if way.strategy == auto().name else None,
        "peak_bytes": max(r["group_peak_bytes"] or r["peak_rss_bytes"] for r in rounds),
        **{name: median(r[name] for r in rounds) for name in ("disk_bytes", "reads", "hit_rate")},
    }
