"""Loading batches when memory holds a tenth of the features, with each strategy.

Times with the harness of `gnnstore bench load`, on a generated graph: every round runs each
strategy once, in a process of its own, on the same batches. The process lies in a memory cgroup,
page cache included, that allows what it holds with the graph's structure and labels loaded, and
beyond that 10 % of the features and 0.2 GB of slack. `memory` runs without a limit, as the upper
bound.

`numpy-mmap` is the usual solution: our sampler, and NumPy gathering rows from a mapping of the
features with MADV_RANDOM by 32 threads (with 2 threads, or without the advice, it is several
times slower). The bar: `static-frequency` is 4 times as fast as `numpy-mmap` on W.

Run `python -m benchmarks.out_of_core --workload W --cache DIR` as a user who may make memory
cgroups (root), with DIR on the disk in question: the store is kept there, 11 GB for W and 6 GB
for F. Without this right, `--no-limit` runs without a limit: the page cache then serves most reads.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

import gnnstore
from benchmarks.harness import (
    add_limit_options,
    directory_of,
    limit_version,
    parser,
    report,
    several,
)
from benchmarks.parts.peers import missing, peers_of
from benchmarks.parts.strategies import PEERS, WAYS
from benchmarks.parts.workloads import BATCH_SIZE, FANOUTS, SEED, WORKLOADS
from gnnstore.tools.bench.harness import BASELINE, Task
from gnnstore.tools.bench.load import LOAD
from gnnstore.tools.bench.load import compare as compare_ways
from gnnstore.tools.session import print_text

BAR, HELD_TO_THE_BAR = 4.0, "static-frequency"
SHARE = 0.1
DEFAULT = tuple(name for name, way in WAYS.items() if way.is_compared and not way.is_made_ahead)
# They take their time, and every batch takes the same.
PER_BATCH = {"numpy-mmap", "mmap", *PEERS}
WORKER = "benchmarks.parts.strategies"
RATES = ("random_reads_per_second", "bytes_per_second")
QUICK = "the slack alone holds these features: this shows that all runs, not how fast"


def compare(arguments: argparse.Namespace, directory: Path, cgroup_version: int) -> None:
    """Make the store, play the rounds, and print."""
    started = perf_counter()
    workload = replace(
        WORKLOADS[arguments.workload],
        scale=arguments.scale or WORKLOADS[arguments.workload].scale,
    )
    store = workload.store(directory)
    seeds = directory / f"seeds-{store.stem}.npy"
    np.save(seeds, workload.seeds())
    epoch = max(1, len(workload.seeds()) // BATCH_SIZE)
    task = Task(
        strategy="",
        store=str(store),
        seeds=str(seeds),
        share=SHARE,
        slack_bytes=arguments.slack,
        warm_up=arguments.warm_up,
        batches=arguments.batches,
        fanouts=FANOUTS,
        batch_size=BATCH_SIZE,
        seed=SEED,
    )
    tasks = [replace(task, strategy=name) for name in arguments.ways]
    if arguments.epoch:
        tasks = [
            one if one.strategy in PER_BATCH else replace(one, warm_up=epoch, batches=epoch)
            for one in tasks
        ]
    document = compare_ways(
        gnnstore.open(store),
        tasks,
        WAYS,
        repeats=arguments.repeats,
        cgroup_version=cgroup_version,
        epoch_batches=epoch,
        worker=WORKER,
        seeds={"input_nodes": "drawn at random", "num_input_nodes": epoch * BATCH_SIZE},
    )
    document["seconds"] = perf_counter() - started
    document["remarks"] += [QUICK] if arguments.quick and cgroup_version else []
    rows = [("the remarks", "; ".join(document["remarks"]) or "none")]
    rows += missing(*PEERS.values()) if arguments.peers else []
    held = next((f for f in document["strategies"] if f["strategy"] == HELD_TO_THE_BAR), None)
    if workload == WORKLOADS["W"] and cgroup_version and held and held["times_baseline"]:
        verdict = "reached" if held["times_baseline"] >= BAR else "MISSED"
        rows.append((f"the bar of {BAR:.0f} x {BASELINE}", f"{HELD_TO_THE_BAR}: {verdict}"))
    device = document["device"]
    report(
        f"load {workload.name} (2^{workload.scale} nodes) from disk, without a model",
        rows,
        as_json=arguments.json,
        **document | {"device": {name: median(device[name]) for name in RATES}},
        outcomes={
            item["strategy"]: item["rounds"] + ([item["problem"]] if item["problem"] else [])
            for item in document["strategies"]
        },
    )
    if not arguments.json:
        print_text(document, LOAD)


def main() -> None:
    """Read the options, see whether a limit can be had, and compare."""
    options = parser(__doc__)
    options.set_defaults(repeats=3)
    options.add_argument("--workload", choices=sorted(WORKLOADS), default="W", help="(W)")
    options.add_argument("--scale", type=int, help="2^scale nodes instead of the workload's")
    options.add_argument(
        "--strategies", dest="ways", type=several(choices=tuple(WAYS)), default=[*DEFAULT]
    )
    options.add_argument(
        "--peers", action="store_true", help="the peers that can be had, too (make bench-peers)"
    )
    options.add_argument("--warm-up", type=int, default=6, help="batches before the clock (6)")
    options.add_argument("--batches", type=int, default=24, help="batches on the clock (24)")
    options.add_argument(
        "--epoch",
        action="store_true",
        help="time the second of two whole epochs, for all but numpy-mmap, mmap and peers",
    )
    add_limit_options(options)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.workload, arguments.repeats = arguments.workload.lower(), 1
        arguments.warm_up, arguments.batches = 2, 6
        arguments.ways = [DEFAULT[0], *DEFAULT[-2:]]
    if arguments.peers:
        arguments.ways += [way for way, name in PEERS.items() if peers_of(name)]
    version = limit_version(arguments)
    with directory_of(arguments) as directory:
        compare(arguments, directory, version)


if __name__ == "__main__":
    main()
