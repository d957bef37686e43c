"""Sampling when memory holds a fifth of the topology: fetched through the engines, or mapped.

Every round runs each way once, in a process of its own, on the same batches. The process lies in
a memory cgroup, page cache included, that allows what it holds before it opens the topology, and
beyond that 20 % of `indptr` and `indices`, and 0.2 GB of slack. `map` is the sampler of graphs in
memory over a mapping, with a thread a core; `map-8` with 8 threads, whose page faults overlap.
`disk` has `indptr` in memory and a neighbour cache, and fetches the other lists of a batch hop by
hop; `bulk` fetches for groups of batches together. `memory` runs without a limit.

The bar: the better of `disk` and `bulk` is 5 times as fast as `map` on W. All ways must sample
the same batches. Run `python -m benchmarks.disk_sampling --workload W --cache DIR` as a user who
may make memory cgroups (root), with DIR on the disk in question.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

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
from benchmarks.parts.topology import WAYS, Outcome
from benchmarks.parts.workloads import WORKLOADS
from gnnstore.tools.bench.harness import Task, measure_disk_of, run_task
from gnnstore.tools.bench.load import NO_LIMIT
from gnnstore.units import format_size, spread

BAR = 5.0
BASELINE, HELD_TO_THE_BAR = "map", ("disk", "bulk")
# Bulk sampling is for superbatches; the mapped sampler takes seconds for a batch.
BATCHES = {"map": 6, "map-8": 16, "disk": 24, "bulk": 96, "memory": 48}
QUICK = "the slack alone holds this topology: this shows that all runs, not how fast"
WARM_UP = {"map": 4, "map-8": 8, "disk": 4, "bulk": 8, "memory": 4}


def play(arguments: argparse.Namespace, task: Task, *, limited: bool) -> dict[str, list[Outcome]]:
    """Run all ways in turns, round by round."""
    outcomes: dict[str, list[Outcome]] = {way: [] for way in arguments.ways}
    for number in range(arguments.repeats):
        for way in arguments.ways:
            own = replace(
                task,
                strategy=way,
                round=number,
                warm_up=WARM_UP[way],
                batches=max(2, int(BATCHES[way] * arguments.amount)),
            )
            is_limited = limited and way != "memory"
            answer = run_task(own, worker="benchmarks.parts.topology", is_limited=is_limited)
            if isinstance(answer, str):
                raise SystemExit(f"round {number}: {way}: {answer}")
            outcomes[way].append(Outcome(**answer))
            print(f"round {number}: {way}: {answer['seconds']:.3f} s a batch", file=sys.stderr)
    return outcomes


def describe(way: str, outcomes: list[Outcome], baseline: list[Outcome]) -> list[tuple[str, str]]:
    """Return a way's rows of the printed table."""
    text = f"{spread((o.seconds for o in outcomes), '.3f')} s a batch"
    if baseline and way != BASELINE:
        text += f"; {spread(speedups(outcomes, baseline), '.1f')} x {BASELINE}"
    one = outcomes[-1]
    more = f"{format_size(one.disk_bytes)} from disk"
    if one.major_faults >= 1:
        more += f", {one.major_faults:,.0f} page faults waited for it"
    if one.cache_bytes:
        more += f"; {format_size(one.cache_bytes)} of in-neighbours in memory"
        more += f", made in {one.seconds_to_prepare:.1f} s"
    if one.limit_bytes:
        used = f"{format_size(one.group_peak_bytes)} of {format_size(one.limit_bytes)}"
        more += f"; {used} allowed, page cache included"
    return [(way, text), ("", more)]


def speedups(outcomes: list[Outcome], baseline: list[Outcome]) -> list[float]:
    """Return how many times as fast as the baseline, round by round."""
    return [b.seconds / o.seconds for o, b in zip(outcomes, baseline, strict=True)]


def compare(arguments: argparse.Namespace, directory: Path, *, limited: bool) -> None:
    """Make the store, play the rounds, and print."""
    workload = WORKLOADS[arguments.workload]
    store = workload.store(directory)
    devices = [measure_disk_of(gnnstore.open(store))]
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-") as temporary:
        seeds = Path(temporary) / "seeds.npy"
        np.save(seeds, workload.seeds())
        task = Task(
            strategy="",
            store=str(store),
            seeds=str(seeds),
            share=arguments.share,
            slack_bytes=arguments.slack,
        )
        results = play(arguments, task, limited=limited)
    for in_round in zip(*results.values(), strict=True):
        if len({outcome.checksum for outcome in in_round}) > 1:
            raise SystemExit("the ways have sampled different batches")
    baseline = results.get(BASELINE, [])
    rows = [device_row(devices)]
    for way, outcomes in results.items():
        rows += describe(way, outcomes, baseline)
    if workload == WORKLOADS["W"] and baseline and limited:
        best = max(
            float(np.median(speedups(results[way], baseline)))
            for way in HELD_TO_THE_BAR
            if way in results
        )
        rows.append((f"the bar of {BAR:.0f} x {BASELINE}", "reached" if best >= BAR else "MISSED"))
    rows.append(("the limit", f"{arguments.share:.0%} and {format_size(arguments.slack)} of slack"))
    note = NO_LIMIT if not limited else QUICK if arguments.quick else ""
    if note:
        rows.append(("note", note))
    report(
        f"sample from {workload.name} (2^{workload.scale} nodes) with the topology on disk",
        rows,
        as_json=arguments.json,
        device=device_numbers(devices),
        note=note,
        outcomes={way: [asdict(o) for o in outcomes] for way, outcomes in results.items()},
    )


def main() -> None:
    """Read the options, see whether a limit can be had, and compare."""
    options = parser(__doc__)
    options.set_defaults(repeats=3)
    options.add_argument("--workload", choices=sorted(WORKLOADS), default="W", help="(W)")
    options.add_argument("--ways", type=several(choices=WAYS), default=[*WAYS])
    options.add_argument("--share", type=float, default=0.2, help="of the topology (0.2)")
    options.add_argument("--amount", type=float, default=1.0, help="factor of the batches (1)")
    add_limit_options(options)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.workload, arguments.repeats = arguments.workload.lower(), 1
        arguments.amount = min(arguments.amount, 0.04)
    limited = bool(limit_version(arguments))
    with directory_of(arguments) as directory:
        compare(arguments, directory, limited=limited)


if __name__ == "__main__":
    main()
