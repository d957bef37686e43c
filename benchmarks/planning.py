"""Planning a cache, compared with sampling: in memory, in files, in a full memory cgroup.

Every round samples a superbatch, an epoch of W, as a loader does, and plans it for a cache of a
tenth of the rows. `memory` keeps samples, trace and plan in memory; `files` has them in files, and
a table for all nodes; `files-full` is the same in a memory cgroup that allows what the process
holds, what planning reserves and 0.2 GB of slack, page cache included; `passes-full` has a quarter
of the table, and so goes through the trace four times. Each way is a process of its own. A quarter
of the slots have pinned rows, as a loader's have; with `--unpinned` all slots are planned.

The bar: planning takes at most 15 % of sampling. On a busy machine the share of the processors'
time is the one to look at. Run `python -m benchmarks.planning --cache DIR` as a user who may make
memory cgroups (root), with DIR on the disk in question: the store is kept there, 11 GB for W.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.harness import (
    Timing,
    add_limit_options,
    directory_of,
    limit_version,
    parser,
    report,
    several,
)
from benchmarks.parts.planning import UNPINNED, WAYS, Outcome
from benchmarks.parts.workloads import BATCH_SIZE, FANOUTS, SEED, WORKLOADS
from gnnstore.tools.bench.harness import Task, run_task
from gnnstore.units import spread

BAR = 0.15
SHARE = 0.1


def play(task: Task, *, limited: bool) -> Outcome:
    """Run one way in a process of its own."""
    is_limited = limited and task.strategy.endswith("full")
    answer = run_task(task, worker="benchmarks.parts.planning", is_limited=is_limited)
    if isinstance(answer, str):
        raise SystemExit(f"{task.strategy}: {answer}")
    print(f"{task.strategy}: done", file=sys.stderr)
    return Outcome(**answer)


def shares(planning: list[float], sampling: list[float]) -> list[float]:
    """Return planning over sampling, round by round."""
    return [a / b for a, b in zip(planning, sampling, strict=True)]


def each(seconds: list[float], outcome: Outcome) -> Timing:
    """Return the times of a batch."""
    return Timing(tuple(value / outcome.num_batches for value in seconds))


def compare(arguments: argparse.Namespace, directory: Path, *, limited: bool) -> None:
    """Make the store, play the ways, and print."""
    workload = WORKLOADS[arguments.workload]
    store, seeds = workload.store(directory), workload.seeds()
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-") as temporary:
        seeds_path = Path(temporary) / "seeds.npy"
        np.save(seeds_path, seeds)
        for way in arguments.ways:
            task = Task(
                strategy=UNPINNED * arguments.unpinned + way,
                store=str(store),
                seeds=str(seeds_path),
                share=SHARE,
                slack_bytes=arguments.slack,
                batches=len(seeds) // BATCH_SIZE,
                fanouts=FANOUTS,
                batch_size=BATCH_SIZE,
                seed=SEED,
                round=arguments.repeats,
                num_threads=2,
            )
            outcomes[way] = play(task, limited=limited)
    if len({tuple(outcome.misses) for outcome in outcomes.values()}) > 1:
        raise SystemExit("the ways have planned different misses")
    rows: list[tuple[str, str]] = []
    timings: dict[str, Timing] = {}
    for way, one in outcomes.items():
        cpu = shares(one.planning_cpu, one.sampling_cpu)
        elapsed = shares(one.planning, one.sampling)
        timings |= {
            f"{way}: planning": each(one.planning, one),
            f"{way}: sampling": each(one.sampling, one),
        }
        verdict = "reached" if statistics.median(elapsed) <= BAR else "MISSED"
        rows += [
            (way, f"{timings[f'{way}: planning'].milliseconds()} a batch"),
            ("", f"sampling {timings[f'{way}: sampling'].milliseconds()}, by two threads"),
            ("", f"{spread(elapsed)} of sampling; of the processors' time {spread(cpu)}"),
        ]
        if arguments.workload == "W":
            rows.append(("", f"the bar of {BAR:.0%}: {verdict}"))
    if not limited:
        rows.append(("note", "no memory limit was kept"))
    report(
        f"plan the batches of {workload.name} (2^{workload.scale} nodes)",
        rows,
        as_json=arguments.json,
        timings=timings,
        outcomes={way: asdict(one) for way, one in outcomes.items()},
    )


def main() -> None:
    """Read the options, see whether a limit can be had, and compare."""
    options = parser(__doc__)
    options.set_defaults(repeats=5)
    options.add_argument("--workload", choices=sorted(WORKLOADS), default="W", help="(W)")
    options.add_argument("--ways", type=several(choices=WAYS), default=[*WAYS])
    options.add_argument("--unpinned", action="store_true", help="no row is pinned")
    add_limit_options(options)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.workload, arguments.repeats = arguments.workload.lower(), 2
        arguments.ways = ["memory", "passes-full"]
    limited = bool(limit_version(arguments))
    with directory_of(arguments) as directory:
        compare(arguments, directory, limited=limited)


if __name__ == "__main__":
    main()
