"""Sampling when memory holds a fifth of the topology: fetched through the engines, or mapped.

Every round runs each way once, in a process of its own, on the same batches. The process lies in
a memory cgroup, page cache included, that allows what it holds before it opens the topology, and
beyond that 20 % of `indptr` and `indices`, and 0.2 GB of slack. `map` is the sampler of graphs in
memory over a mapping, with a thread a core; `map-8` with 8 threads, whose page faults overlap.
`disk` has `indptr` in memory and a neighbour cache, and fetches what a batch lacks hop by hop;
`bulk` fetches for groups of batches together. `memory` runs without a limit.

The bar: the better of `disk` and `bulk` is 5 times as fast as `map` on W. All ways must sample
the same batches. Run `python -m benchmarks.disk_sampling --workload W --cache DIR` as a user who
may make memory cgroups (root), with DIR on the disk in question.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from benchmarks.harness import drop_from_cache, parser, report, spread
from benchmarks.out_of_core import device_rates, device_rows
from benchmarks.parts.topology import WAYS, Outcome, Task
from benchmarks.parts.workloads import WORKLOADS
from gnnstore.disk.profile.cgroup import MemoryGroup, memory_group
from gnnstore.tools.bench.task import ENTER
from gnnstore.units import format_size, parse_size

BAR = 5.0
BASELINE, HELD_TO_THE_BAR = "map", ("disk", "bulk")
# Bulk sampling is for superbatches; the mapped sampler takes seconds for a batch.
BATCHES = {"map": 6, "map-8": 16, "disk": 24, "bulk": 96, "memory": 48}
WARM_UP = {"map": 4, "map-8": 8, "disk": 4, "bulk": 8, "memory": 4}


def perform(task: Task, group: MemoryGroup | None) -> Outcome | str:
    """Run a task in a process of its own; return why it has no outcome if it has none."""
    command = [sys.executable, "-m", "benchmarks.parts.topology", json.dumps(asdict(task))]
    if group is not None:
        command = ["sh", "-c", ENTER, str(group.processes), *command]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode == -9:
        return "killed by the kernel: it took more than the limit"
    if finished.returncode != 0:
        return finished.stderr.strip().rpartition("\n")[2] or f"status {finished.returncode}"
    return Outcome(**json.loads(finished.stdout))


def play(arguments: argparse.Namespace, task: Task) -> dict[str, list[Outcome]]:
    """Run all ways in turns, round by round."""
    outcomes: dict[str, list[Outcome]] = {way: [] for way in arguments.ways}
    for number in range(arguments.repeats):
        for way in arguments.ways:
            limited = not (arguments.no_limit or way == "memory")
            with memory_group() if limited else nullcontext() as group:
                drop_from_cache([Path(task.store)])
                own = replace(
                    task,
                    way=way,
                    round=number,
                    warm_up=WARM_UP[way],
                    batches=max(2, int(BATCHES[way] * arguments.amount)),
                )
                if group is not None:
                    own = replace(own, group=str(group.path), group_version=group.version)
                outcome = perform(own, group)
            if isinstance(outcome, str):
                raise SystemExit(f"round {number}: {way}: {outcome}")
            outcomes[way].append(outcome)
            print(f"round {number}: {way}: {outcome.seconds:.3f} s a batch", file=sys.stderr)
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
        more += f"; {one.hit_rate:.1%} of the in-neighbours from {format_size(one.cache_bytes)}"
        more += f", made in {one.seconds_to_prepare:.1f} s"
    if one.limit_bytes:
        used = f"{format_size(one.group_peak_bytes)} of {format_size(one.limit_bytes)}"
        more += f"; {used} allowed, page cache included"
    return [(way, text), ("", more)]


def speedups(outcomes: list[Outcome], baseline: list[Outcome]) -> list[float]:
    """Return how many times as fast as the baseline, round by round."""
    return [b.seconds / o.seconds for o, b in zip(outcomes, baseline, strict=True)]


def compare(arguments: argparse.Namespace, directory: Path, note: str) -> None:
    """Make the store, play the rounds, and print."""
    workload = WORKLOADS[arguments.workload]
    store = workload.store(directory)
    rows, device = device_rows(device_rates(store, 5_000 if arguments.quick else 50_000))
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-") as temporary:
        seeds = Path(temporary) / "seeds.npy"
        np.save(seeds, workload.seeds())
        task = Task(
            way="",
            store=str(store),
            seeds=str(seeds),
            group="",
            group_version=0,
            share=arguments.share,
            slack_bytes=arguments.slack,
            warm_up=0,
            batches=0,
            round=0,
        )
        results = play(arguments, task)
    for in_round in zip(*results.values(), strict=True):
        if len({outcome.checksum for outcome in in_round}) > 1:
            raise SystemExit("the ways have sampled different batches")
    baseline = results.get(BASELINE, [])
    for way, outcomes in results.items():
        rows += describe(way, outcomes, baseline)
    if workload == WORKLOADS["W"] and baseline and not note:
        best = max(
            float(np.median(speedups(results[way], baseline)))
            for way in HELD_TO_THE_BAR
            if way in results
        )
        rows.append((f"the bar of {BAR:.0f} x {BASELINE}", "reached" if best >= BAR else "MISSED"))
    rows.append(("the limit", f"{arguments.share:.0%} and {format_size(arguments.slack)} of slack"))
    if note:
        rows.append(("note", note))
    report(
        f"sample from {workload.name} (2^{workload.scale} nodes) with the topology on disk",
        rows,
        as_json=arguments.json,
        device=device,
        note=note,
        outcomes={way: [asdict(o) for o in outcomes] for way, outcomes in results.items()},
    )


def main() -> None:
    """Read the options, see whether a limit can be had, and compare."""
    options = parser(__doc__)
    options.set_defaults(repeats=3)
    options.add_argument("--workload", choices=sorted(WORKLOADS), default="W", help="(W)")
    options.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    options.add_argument("--share", type=float, default=0.2, help="of the topology (0.2)")
    options.add_argument("--slack", type=parse_size, default=200 * 10**6, help="(200MB)")
    options.add_argument("--amount", type=float, default=1.0, help="factor of the batches (1)")
    options.add_argument("--cache", type=Path, help="directory that keeps the store")
    options.add_argument("--no-limit", action="store_true", help="go on without a cgroup")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.workload, arguments.repeats = arguments.workload.lower(), 1
        arguments.amount = min(arguments.amount, 0.04)
    note = ""
    if not arguments.no_limit:
        with memory_group() as group:
            arguments.no_limit = group is None
        if arguments.no_limit:
            note = "no memory cgroup can be made here (it needs root, or delegation)"
            if not arguments.quick:
                raise SystemExit(f"{note}; --no-limit compares without one")
    if arguments.no_limit:
        note = f"{note or 'without a limit'}: the page cache serves whoever reads through it"
    elif arguments.quick:
        note = "the slack alone holds this topology: this shows that all runs, not how fast"
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-") as temporary:
        compare(arguments, arguments.cache or Path(temporary), note)


if __name__ == "__main__":
    main()
