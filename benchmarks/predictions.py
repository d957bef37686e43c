"""Predictions and choices of `strategy="auto"`, compared with measurements of each strategy.

A grid of workloads, memory (a share of the features, as in `benchmarks.out_of_core` with a cgroup
that keeps it) and disk space (none, or a multiple of the features). In each cell every possible
strategy runs in a process of its own for two epochs, the second of which is compared with the
prediction; where batches or superbatches are alike, only some run.

The bars: a prediction is within a factor of 1.5 of what was measured, and what "auto" takes is the
fastest or within 15 % of the fastest. Strategies that are predicted to take more than `--far` times
as long as the fastest are not run.

Run `python -m benchmarks.predictions --cache DIR` as a user who may make memory cgroups (root).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import gnnstore
from benchmarks.harness import (
    add_limit_options,
    device_numbers,
    device_row,
    directory_of,
    limit_version,
    parser,
    report,
    several,
)
from benchmarks.parts.workloads import BATCH_SIZE, FANOUTS, SEED, WORKLOADS
from gnnstore.tools.bench.harness import Task, measure_disk_of, run_task

FACTOR, CLOSE = 1.5, 1.15
WORKER = "benchmarks.parts.predicted"
SHARES, DISK = (0.02, 0.1, 0.3, 1.0), (0.0, 0.5, 3.0)


def play(task: Task, *, limited: bool, far: float) -> dict[str, Any]:
    """Predict and measure all strategies under the budgets of a task."""
    foretold = run_task(task, worker=WORKER, is_limited=limited)
    if isinstance(foretold, str):
        return {"problem": foretold}
    feasible = [
        p for p in foretold["predictions"] if not p["problem"] and p["choice"] != "packed-epochs"
    ]
    fastest = min((p["seconds"] for p in feasible), default=0.0)
    for predicted in feasible:
        if predicted["seconds"] > far * fastest:
            continue
        own = replace(task, strategy=predicted["choice"])
        measured = run_task(own, worker=WORKER, is_limited=limited)
        predicted["measured"] = measured
        print(f"  {predicted['choice']}: {describe(predicted)}", file=sys.stderr)
    return foretold


def describe(predicted: dict[str, Any]) -> str:
    """Return what was predicted and measured, in a line."""
    text = f"{predicted['seconds']:.2f} s predicted"
    measured = predicted.get("measured")
    if measured is None:
        return f"{text}, not run"
    if isinstance(measured, str):
        return f"{text}; {measured}"
    factor = measured["seconds"] / max(1e-9, predicted["seconds"])
    mark = "" if 1 / FACTOR <= factor <= FACTOR else " MISSED"
    return f"{text}, {measured['seconds']:.2f} s measured ({factor:.2f} times){mark}"


def verdict(played: dict[str, Any]) -> str:
    """Return how what "auto" took compares with the fastest."""
    times = {
        p["choice"]: p["measured"]["seconds"]
        for p in played["predictions"]
        if isinstance(p.get("measured"), dict)
    }
    auto = played["auto"]
    if not times:
        return f"auto takes {auto}"
    if auto not in times:
        return f"auto takes {auto}, which was not measured"
    fastest = min(times, key=lambda name: times[name])
    ratio = times[auto] / times[fastest]
    mark = "reached" if ratio <= CLOSE else "MISSED"
    return f"auto takes {auto}, {ratio:.2f} times the fastest ({fastest}): {mark}"


def compare(arguments: argparse.Namespace, directory: Path, *, limited: bool) -> None:
    """Make the stores, play the grid, and print."""
    rows: list[tuple[str, str]] = []
    cells = []
    for name in arguments.workloads:
        workload = WORKLOADS[name]
        store = workload.store(directory)
        seeds = directory / f"seeds-{store.stem}.npy"
        np.save(seeds, workload.seeds())
        opened = gnnstore.open(store)
        features = opened.schema.node.attributes["x"].num_bytes
        for share in arguments.shares:
            for times in arguments.disk:
                task = Task(
                    strategy="",
                    store=str(store),
                    seeds=str(seeds),
                    share=share,
                    slack_bytes=arguments.slack,
                    fanouts=FANOUTS,
                    batch_size=arguments.batch_size,
                    seed=SEED,
                    disk_bytes=int(times * features),
                )
                label = f"{name}, {share:.0%} in memory, {times:g} x on disk"
                print(label, file=sys.stderr)
                devices = [measure_disk_of(opened)]
                played = play(task, limited=limited, far=arguments.far)
                devices.append(measure_disk_of(opened))
                disk, device = device_numbers(devices), device_row(devices)
                cells.append(
                    {"workload": name, "memory": share, "disk": times, "device": disk, **played}
                )
                if "problem" in played:
                    rows.append((label, played["problem"]))
                    continue
                rows.append((label, verdict(played)))
                print(f"  {rows[-1][1]}; the disk: {device[1]}", file=sys.stderr)
                rows.append((f"  {device[0]}", device[1]))
                for predicted in played["predictions"]:
                    text = predicted["problem"] or describe(predicted)
                    rows.append((f"  {predicted['choice']}", text[:110]))
    report("what auto predicts", rows, as_json=arguments.json, cells=cells)


def main() -> None:
    """Read the options, and compare."""
    options = parser(__doc__)
    options.add_argument("--workloads", type=several(choices=sorted(WORKLOADS)), default=["W", "F"])
    options.add_argument("--shares", type=several(float), default=[*SHARES], help="of memory")
    options.add_argument("--disk", type=several(float), default=[*DISK], help="times")
    options.set_defaults(batch_size=BATCH_SIZE)
    options.add_argument("--far", type=float, default=3.0, help="times the fastest (3)")
    add_limit_options(options)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.workloads, arguments.shares, arguments.disk = ["w", "f"], [0.1], [0.0, 3.0]
        arguments.batch_size, arguments.slack = 64, 110 * 10**6
    limited = bool(limit_version(arguments))
    with directory_of(arguments) as directory:
        compare(arguments, directory, limited=limited)


if __name__ == "__main__":
    main()
