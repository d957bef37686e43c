"""Times the strategies on a store for `gnnstore bench load`, and prints and plots the times."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console

from gnnstore.disk.scratch import default_parent, sweep_stale
from gnnstore.errors import UsageError
from gnnstore.graph.sizes import StoreSizes
from gnnstore.graph.store import GraphStore
from gnnstore.graph.store import open as open_store
from gnnstore.pictures import draw_into
from gnnstore.pipeline.order.epoch import epoch_order
from gnnstore.progress import NullProgress, Progress
from gnnstore.sampling.neighbor import only
from gnnstore.seeds.links import Links
from gnnstore.seeds.nodes import InputNodes
from gnnstore.seeds.typed import TypedInputNodes
from gnnstore.tools.bench import harness
from gnnstore.tools.bench.harness import Task, split_tables, spread
from gnnstore.tools.bench.stages import STAGES, stages_of
from gnnstore.tools.bench.ways import BASELINE, Way, ways
from gnnstore.tools.bench.worker import ALLOWANCE_BYTES
from gnnstore.tools.inspect.programs import program
from gnnstore.tools.plots import draw_load
from gnnstore.tools.predict.seeds import choose_seeds, config_of
from gnnstore.tools.ui import exits
from gnnstore.tools.ui.options import (
    SamplingOptions,
    SeedOptions,
    describe_fanouts,
    describe_seeds,
)
from gnnstore.tools.ui.session import Session
from gnnstore.tools.ui.tables import print_facts, print_next, print_table, print_text, print_title
from gnnstore.units import format_at_least, format_duration, format_size

WORKER = "gnnstore.tools.bench.worker"
NO_LIMIT = "without a limit: the page cache serves every strategy that reads through it"
_NOT_DIRECT = (
    "reads cannot bypass the page cache here, so the numbers of the disk are mostly those of memory"
)
_COLUMNS = """\
Speed-up: over {}. From disk, and reads: of a batch (-: none, or not counted). Cached: of its \
rows. Memory: the most that the process held, page cache included (*: without a limit). Setup: \
one-time work, before or during the first epoch."""
_STAGES = """\
A moment in which several threads work is divided evenly among what they do, so that a row adds up \
to the time of an epoch. For numpy-mmap and mmap, reading is page faults, and copying is counted \
with them; what is left over is under other."""
_SAMPLE_BATCHES, _WARM_UP = 24, 6


def bench_load(
    session: Session,
    path: str,
    *,
    seeds_asked: SeedOptions,
    sampling: SamplingOptions,
    strategies: Sequence[str],
    memory: float | int,
    num_batches: int | None,
    whole_epochs: bool,
    repeats: int,
    no_limit: bool,
    plot_file: Path | None,
    **task: Any,
) -> int:
    """Time, draw, print, and return the exit status; other options are fields of a `Task`."""
    started, store = perf_counter(), open_store(path)
    config = config_of(store, sampling, seed=task["seed"])
    names, seeds = choose_seeds(store, config, seeds_asked)
    feature_bytes = sum(spec.num_bytes for spec in split_tables(store.schema)[0])
    share = memory if isinstance(memory, float) else memory / max(1, feature_bytes)
    version = 0 if no_limit else harness.require_group()
    _check_limit(store, feature_bytes, share, task["slack_bytes"], is_limited=version > 0)
    with tempfile.TemporaryDirectory(prefix="gnnstore-bench-") as scratch:
        suffix = "npz" if isinstance(seeds, TypedInputNodes) else "npy"
        file = Path(scratch, f"seeds.{suffix}")
        # Of some options 0 is a loader's own choice.
        own: dict[str, Any] = {name: value or 0 for name, value in task.items()}
        epoch = Task(
            strategy="",
            store=str(store.path),
            batches=_write_seeds(file, seeds, task["batch_size"], num_batches, task["seed"]),
            seeds=str(file) if file.exists() else "",
            links=None if seeds_asked.links is None else seeds_asked.of_links,
            edge_type=_edge_type(seeds),
            share=share,
            trace=str(Path(scratch, "trace.json")),
            fanouts=sampling.fanouts,
            sampling=sampling.of_loader,
            **own,
        )
        tasks = [
            _task(replace(epoch, strategy=way), whole_epochs) for way in dict.fromkeys(strategies)
        ]
        with session.progress() as progress:
            document = compare(
                store,
                tasks,
                ways(),
                repeats=repeats,
                cgroup_version=version,
                epoch_batches=epoch.batches,
                progress=progress,
                seeds={**names, "num_input_nodes": len(seeds)},
            )
    document["seconds"] = perf_counter() - started
    is_timed = any(found["rounds"] for found in document["strategies"])
    draw_into(document, plot_file if is_timed else None, draw_load)
    session.emit(document, lambda console: render_load(console, document))
    if document["problems"]:
        return exits.STORAGE
    return exits.OK if is_timed else exits.USAGE


def _check_limit(
    store: GraphStore, feature_bytes: int, share: float, slack_bytes: int, *, is_limited: bool
) -> None:
    """Refuse a limit that holds all features, and one that leaves a loader no memory at all."""
    room_bytes = round(share * feature_bytes) + slack_bytes
    if is_limited and room_bytes >= feature_bytes:
        raise UsageError(
            f"--loader-memory and --slack leave {format_size(room_bytes)} to features of "
            f"{format_size(feature_bytes)}, so the limit would limit nothing; lower --slack (now "
            f"{format_size(slack_bytes)}) or --loader-memory, take a larger store, or give "
            "--no-limit"
        )
    held = StoreSizes.of(store.schema).topology_bytes
    held += sum(spec.num_bytes for spec in split_tables(store.schema)[1])
    if (missing := ALLOWANCE_BYTES - room_bytes - held) >= 0:
        raise UsageError(
            "--loader-memory and --slack leave a loader no memory: "
            f"{format_size(ALLOWANCE_BYTES)} of them are for Python and the kernel; raise "
            f"--slack by {format_at_least(missing + 1)}"
        )


def _write_seeds(
    file: Path,
    seeds: InputNodes | TypedInputNodes | Links,
    batch_size: int,
    num_batches: int | None,
    seed: int,
) -> int:
    """Write the seeds of an epoch in a loader's shuffled order; return the number of batches."""
    # Full batches, unless there is none, so that all have the same weight.
    whole = len(seeds) // batch_size
    count = max(1, whole if num_batches is None else min(whole, num_batches))
    if isinstance(seeds, Links) and seeds.edges is None and count == whole:
        return count  # a loader knows all edges without a copy
    positions = epoch_order(len(seeds), seed, 0)[: count * batch_size]
    if isinstance(seeds, Links):
        np.save(file, np.stack(seeds.ends(positions)))
    elif isinstance(seeds, TypedInputNodes):
        by_type: dict[str, Any] = {**seeds.select(positions).nodes}
        np.savez(file, **by_type)
    else:
        np.save(file, only(seeds.select(positions).nodes))
    return count


def _edge_type(seeds: InputNodes | TypedInputNodes | Links) -> tuple[str, ...]:
    if not isinstance(seeds, Links) or seeds.store.schema.is_homogeneous:
        return ()
    return seeds.edge_type


def _task(epoch: Task, whole_epochs: bool) -> Task:
    """Return the batches to time: an epoch, or a sample where all batches cost the same."""
    way = ways()[epoch.strategy]
    if way.is_made_ahead:
        return replace(epoch, warm_up=epoch.batches)
    if whole_epochs or not way.is_even:
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
                rounds[name].append(found | {"seconds_by_stage": _stages(task, found, ways)})
    first, features, device = tasks[0], split_tables(store.schema)[0], devices[0]
    remarks = [] if cgroup_version else [NO_LIMIT]
    remarks += [] if device.is_direct else [_NOT_DIRECT]
    limit = {"cgroup": cgroup_version or None, "share": first.share}
    baseline = rounds.get(BASELINE, [])
    return {
        "what": "load",
        "store": str(store.path),
        "num_neighbors": SamplingOptions(first.fanouts).shown_fanouts,
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


def _stages(task: Task, found: Mapping[str, Any], ways: Mapping[str, Way]) -> dict[str, float]:
    """Return the seconds of a batch in each stage; nothing if the task records none."""
    if not task.trace:
        return {}
    way = ways.get(found["chosen"] or task.strategy, Way())
    seconds = found["seconds"] * task.batches
    stages = stages_of(Path(task.trace), seconds, faults_are_reads=way.reads_by_faults)
    return {name: each / task.batches for name, each in stages.items()}


def _times(
    way: Way,
    task: Task,
    rounds: Sequence[Mapping[str, Any]],
    baseline: Sequence[Mapping[str, Any]],
    epoch_batches: int,
) -> dict[str, Any]:
    """Return the times of a way; the stages of an epoch are those of its median round."""
    pairs = zip(baseline, rounds, strict=False)
    ratios = [before["seconds"] / max(1e-9, each["seconds"]) for before, each in pairs]
    found: dict[str, Any] = {
        "times_baseline": median(ratios) if ratios else None,
        "times_baseline_by_round": ratios,
        **dict.fromkeys(("seconds_per_batch", "seconds_per_epoch", "seconds_to_prepare", "stages")),
    }
    if not rounds:
        return found
    ordered = sorted(rounds, key=lambda each: each["seconds"])
    seconds = median(each["seconds"] for each in rounds)
    once = [each["seconds_to_prepare"] for each in rounds]
    if way.is_made_ahead:  # time that the first epoch takes beyond others
        more = (r["seconds_warming_up"] - r["seconds"] * task.warm_up for r in rounds)
        once = [a + max(0.0, b) for a, b in zip(once, more, strict=True)]
    by_stage = ordered[len(ordered) // 2]["seconds_by_stage"]
    return found | {
        "seconds_per_batch": seconds,
        "seconds_per_epoch": seconds * epoch_batches,
        "seconds_to_prepare": median(once),
        "stages": {name: each * epoch_batches for name, each in by_stage.items()},
    }


def render_load(console: Console, document: Mapping[str, Any]) -> None:
    """Print the settings, a table of times, and one of stages."""
    limit, device, batch = document["limit"], document["device"], document["batch_size"]
    fanouts = describe_fanouts(document)
    kept = f"kept by a cgroup (version {limit['cgroup']})" if limit["cgroup"] else "not kept"
    reads = spread((rate / 1e3 for rate in device["random_reads_per_second"]), ".1f")
    rate = spread((rate / 1e9 for rate in device["bytes_per_second"]), ".2f")
    facts = {
        "epoch": f"{document['epoch_batches']:,} batches of {batch:,} seeds "
        f"({describe_seeds(document)}); fan-out {fanouts}",
        "memory": f"structure and labels, {limit['share']:.1%} of "
        f"{format_size(document['feature_bytes'])} of features, and "
        f"{format_size(limit['slack_bytes'])} of slack, {kept}",
        "disk": f"{reads} k random reads of 4 KiB a second, {rate} GB/s sequentially "
        f"({device['engine']})",
        "took": format_duration(document["seconds"]),
        "drawn in": document.get("drawn_to"),
    }
    console.print(f"Loading {document['store']}", style="bold")
    print_facts(console, facts)
    timed = [found for found in document["strategies"] if found["rounds"]]
    if timed:
        columns = ["strategy", "a batch", "an epoch", "speed-up", "from disk", "reads", "cached"]
        columns += ["memory", "setup"]
        print_title(console, f"Batches of {Path(document['store']).name}")
        optional = ["cached", "reads", "setup", "from disk", "a batch"]
        print_table(console, columns, map(_row, timed), right=columns[1:], optional=optional)
        print_text(console, _COLUMNS.format(document["baseline"] or BASELINE))
    if shown := [name for name in STAGES if any(found["stages"].get(name) for found in timed)]:
        print_title(console, "Where the time of an epoch goes")
        rows = [
            [each["strategy"], *(_time(each["stages"][name]) for name in shown)] for each in timed
        ]
        print_table(console, ["strategy", *shown], rows, right=shown)
        print_text(console, _STAGES)
    failed = [found for found in document["strategies"] if found["problem"] is not None]
    if failed:
        print_title(console, "Not timed")
    for found in failed:
        console.print(f"  {found['strategy']}: {found['problem']}", soft_wrap=True)
    for text in (*document["remarks"], *document.get("problems", ())):
        print_text(console, text)
    fastest = min(timed, key=lambda each: each["seconds_per_epoch"], default=None)
    if fastest is not None and fastest["strategy"] != BASELINE:
        of_batches = {name: document[name] for name in ("num_neighbors", "batch_size", "links")}
        strategy = f'strategy="{fastest["strategy"]}"'
        text = program(document["store"], document["input_nodes"], strategy, **of_batches)
        print_next(console, [], text)


def _row(found: Mapping[str, Any]) -> list[str]:
    rounds, name = found["rounds"], found["strategy"]
    disk, reads, hits = (median(r[n] for r in rounds) for n in ("disk_bytes", "reads", "hit_rate"))
    memory = max(r["group_peak_bytes"] or r["peak_rss_bytes"] for r in rounds)
    return [
        f"auto ({rounds[-1]['chosen']})" if name == "auto" else name,
        spread((r["seconds"] for r in rounds), ".3f") + " s",
        _time(found["seconds_per_epoch"]),
        spread(found["times_baseline_by_round"], ".1f"),
        format_size(disk) if disk else "-",
        f"{reads:,.0f}" if reads else "-",
        f"{hits:.1%}" if hits else "-",
        format_size(memory) + ("" if found["is_limited"] else " *"),
        _time(found["seconds_to_prepare"]),
    ]


def _time(seconds: float) -> str:
    if seconds < 0.0005:
        return "-"
    return f"{seconds:.3g} s" if seconds < 100 else format_duration(seconds)
