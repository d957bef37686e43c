"""Loading batches when memory holds a tenth of the features: each strategy beside the others.

Every round runs each strategy once, in a process of its own, on the same batches. The process
lies in a memory cgroup, page cache included, that allows what it holds with the graph's
structure and labels loaded, and beyond that 10 % of the features and 0.2 GB of slack. `memory`
runs without a limit: what out-of-core loading is measured against.

`map` is what many write today: our sampler, and NumPy gathering rows from a mapping of the
features with MADV_RANDOM by 32 threads (with 2 threads, or without the advice, it is several
times slower). The bar: `static-frequency` is 4 times as fast as `map` on W.

Run `python -m benchmarks.out_of_core --workload W --cache DIR` as a user who may make memory
cgroups (root), with DIR on the disk in question: the store is kept there, 11 GB for W and 6 GB
for F. Without such a right, `--no-limit` compares what an unlimited page cache hides.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

import gnnstore
from benchmarks.harness import drop_from_cache, parser, report, spread
from benchmarks.parts.strategies import STRATEGIES
from benchmarks.parts.workloads import BATCH_SIZE, FANOUTS, SEED, WORKLOADS
from benchmarks.reads import Table
from gnnstore.disk.profile.cgroup import memory_group
from gnnstore.tools.bench.task import ALLOWANCE_BYTES, Outcome, Task, run_task
from gnnstore.tools.bench.ways import ways
from gnnstore.units import format_size, parse_size

BAR = 4.0
# Reads above are not of single rows.
LARGE_READ_BYTES = 16 << 10
BASELINE, HELD_TO_THE_BAR = "map", "static-frequency"
SHARE = 0.1
# They take their time, and every batch takes the same.
PER_BATCH = {"map", "mmap", "pyg"}
DEFAULT = tuple(name for name, way in ways().items() if way.is_compared and not way.is_made_ahead)
WORKER = "benchmarks.parts.strategies"


def play(arguments: argparse.Namespace, tasks: dict[str, Task]) -> dict[str, list[Outcome | str]]:
    """Run all strategies in turns, round by round; one that failed is not tried again."""
    outcomes: dict[str, list[Outcome | str]] = {name: [] for name in tasks}
    for number in range(arguments.repeats):
        for name, task in tasks.items():
            if any(isinstance(outcome, str) for outcome in outcomes[name]):
                continue
            limited = not (arguments.no_limit or not ways()[name].is_limited)
            with memory_group() if limited else nullcontext() as group:
                drop_from_cache([Path(task.store)])
                own = replace(task, round=number)
                if group is not None:
                    own = replace(own, group=str(group.path), group_version=group.version)
                outcomes[name].append(run_task(own, group, worker=WORKER))
            print(f"round {number}: {name}: {brief(outcomes[name][-1])}", file=sys.stderr)
    return outcomes


def brief(outcome: Outcome | str) -> str:
    """Return one line for whoever waits."""
    return outcome if isinstance(outcome, str) else f"{outcome.seconds:.3f} s a batch"


def medians(outcomes: list[Outcome]) -> dict[str, float]:
    """Return the median of each amount."""
    table = [asdict(outcome) for outcome in outcomes]
    names = [name for name, value in table[0].items() if not isinstance(value, str)]
    return {name: float(np.median([row[name] for row in table])) for name in names}


def describe(
    name: str, outcomes: list[Outcome], baseline: list[Outcome], first_epoch: int = 0
) -> list[tuple[str, str]]:
    """Return a strategy's rows of the table; `first_epoch` batches came before the clock."""
    mid = medians(outcomes)
    rows = [(name, f"{spread((o.seconds for o in outcomes), '.3f')} s a batch")]
    if baseline and name != BASELINE:
        rows[0] = (name, f"{rows[0][1]}; {spread(speedups(outcomes, baseline))} x {BASELINE}")
    disk = f"{format_size(mid['disk_bytes'])} from disk"
    if mid["reads"]:
        hits = f", {mid['hit_rate']:.1%} of the rows cached" if mid["hit_rate"] else ""
        disk += f" in {mid['reads']:,.0f} reads, {mid['rows_read']:,.0f} rows read{hits}"
    else:
        disk += f", {mid['major_faults']:,.0f} page faults waited for it"
    rows.append(("", f"{mid['nodes']:,.0f} nodes a batch; {disk}"))
    if first_epoch and name not in PER_BATCH:
        firsts = [(o.seconds_to_prepare + o.seconds_warming_up) / first_epoch for o in outcomes]
        rows.append(("", f"{spread(firsts, '.3f')} s a batch in the first epoch, all included"))
        if baseline:
            times = [b.seconds / first for b, first in zip(baseline, firsts, strict=True)]
            rows.append(("", f"that is {spread(times)} x {BASELINE}"))
    peak = f"peak RSS {format_size(mid['peak_rss_bytes'])}"
    if mid["limit_bytes"]:
        used = f"{format_size(mid['group_peak_bytes'])} of {format_size(mid['limit_bytes'])}"
        peak = f"{used} allowed, page cache included; {peak}"
    prepared = f"prepared in {mid['seconds_to_prepare']:.1f} s"
    cache = f", {mid['cache_rows']:,.0f} rows cached" if mid["cache_rows"] else ""
    if mid["superbatch"]:
        share = mid["seconds_planning"] / max(1e-9, mid["seconds_sampling"])
        cache += f", {mid['superbatch']:,.0f} batches planned at a time "
        cache += f"({mid['seconds_planning'] * 1e3:.1f} ms a batch, {share:.0%} of sampling)"
    rows.append(("", f"{peak}; {prepared}{cache}"))
    return rows


def speedups(outcomes: list[Outcome], baseline: list[Outcome]) -> list[float]:
    """Return how many times as fast as the baseline, round by round."""
    return [b.seconds / o.seconds for o, b in zip(outcomes, baseline, strict=True)]


def device_rates(store: Path, num_reads: int) -> list[tuple[float, float]]:
    """Return random reads of 4 KiB a second, and bytes a second in order, a few times."""
    reader = gnnstore.open(store).reader
    table = Table(reader.paged(reader.schema.node.attributes["x"]), num_reads, 1.0)
    engine = "io_uring" if table.has_ring() else "pread"
    return [(table.blocks(128, engine).rate, table.plain(4).rate) for _ in range(3)]


def device_rows(rates: list[tuple[float, float]]) -> tuple[list[tuple[str, str]], dict[str, float]]:
    """Return what the disk itself does, before the strategies and after them."""
    random, in_order = zip(*rates, strict=True)
    text = f"{spread((rate / 1e3 for rate in random), '.1f')} k random reads of 4 KiB a second, "
    text += f"{spread(rate / 1e9 for rate in in_order)} GB/s in order"
    numbers = {
        "random_reads_per_second": float(np.median(random)),
        "bytes_per_second": float(np.median(in_order)),
    }
    return [("the disk", text)], numbers


def reading_rows(outcomes: list[Outcome], reads_per_second: float) -> list[tuple[str, str]]:
    """Return how busy a strategy keeps the disk that reads row by row."""
    mid = medians(outcomes)
    if not mid["reads"] or mid["disk_bytes"] / mid["reads"] > LARGE_READ_BYTES:
        return []
    rate = mid["reads"] / mid["seconds"]
    share = rate / reads_per_second
    return [("", f"{rate / 1e3:.1f} k reads a second all in all, {share:.2f} of the disk's")]


def compare(arguments: argparse.Namespace, directory: Path, note: str) -> None:
    """Make the store, play the rounds, and print."""
    workload = replace(
        WORKLOADS[arguments.workload],
        scale=arguments.scale or WORKLOADS[arguments.workload].scale,
    )
    store = workload.store(directory)
    seeds = directory / f"seeds-{store.stem}.npy"
    np.save(seeds, workload.seeds())
    num_reads = 5_000 if arguments.quick else 50_000
    rates = device_rates(store, num_reads)
    task = Task(
        strategy="",
        store=str(store),
        seeds=str(seeds),
        group="",
        group_version=0,
        share=SHARE,
        slack_bytes=arguments.slack,
        warm_up=arguments.warm_up,
        batches=arguments.batches,
        round=0,
        fanouts=FANOUTS,
        batch_size=BATCH_SIZE,
        seed=SEED,
    )
    tasks = {name: replace(task, strategy=name) for name in arguments.strategies}
    whole = 0
    if arguments.epoch:
        whole = len(np.load(seeds)) // BATCH_SIZE
        for name in tasks.keys() - PER_BATCH:
            tasks[name] = replace(tasks[name], warm_up=whole, batches=whole)
    played = play(arguments, tasks)
    rows, device = device_rows(rates + device_rates(store, num_reads))
    results = {
        name: [outcome for outcome in outcomes if isinstance(outcome, Outcome)]
        for name, outcomes in played.items()
    }
    baseline = results.get(BASELINE, [])
    for name, outcomes in results.items():
        complete = len(outcomes) == arguments.repeats
        if complete:
            beside = baseline if len(baseline) == len(outcomes) else []
            rows += describe(name, outcomes, beside, whole)
            rows += reading_rows(outcomes, device["random_reads_per_second"])
        else:
            rows.append((name, str(played[name][-1])))
    ours = results.get(HELD_TO_THE_BAR, [])
    if workload == WORKLOADS["W"] and baseline and len(ours) == len(baseline) and not note:
        verdict = "reached" if np.median(speedups(ours, baseline)) >= BAR else "MISSED"
        rows.append((f"the bar of {BAR:.0f} x {BASELINE}", f"{HELD_TO_THE_BAR}: {verdict}"))
    slack = f"{format_size(arguments.slack)} of slack ({format_size(ALLOWANCE_BYTES)} of it for"
    rows.append(
        ("the limit", f"structure, labels, {SHARE:.0%} of the features and {slack} Python)")
    )
    if note:
        rows.append(("note", note))
    report(
        f"load {workload.name} (2^{workload.scale} nodes) from disk, without a model",
        rows,
        as_json=arguments.json,
        device=device,
        note=note,
        outcomes={
            name: [o if isinstance(o, str) else asdict(o) for o in outcomes]
            for name, outcomes in played.items()
        },
    )


def main() -> None:
    """Read the options, see whether a limit can be had, and compare."""
    options = parser(__doc__)
    options.set_defaults(repeats=3)
    options.add_argument("--workload", choices=sorted(WORKLOADS), default="W", help="(W)")
    options.add_argument("--scale", type=int, help="2^scale nodes instead of the workload's")
    options.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=[*DEFAULT])
    options.add_argument("--pyg", action="store_true", help="PyG's loader too (torch-sparse)")
    options.add_argument("--slack", type=parse_size, default=200 * 10**6, help="(200MB)")
    options.add_argument("--warm-up", type=int, default=6, help="batches before the clock (6)")
    options.add_argument("--batches", type=int, default=24, help="batches on the clock (24)")
    options.add_argument(
        "--epoch",
        action="store_true",
        help="two whole epochs, of which the second is on the clock, for all but map, mmap and pyg",
    )
    options.add_argument("--cache", type=Path, help="directory that keeps the store")
    options.add_argument("--no-limit", action="store_true", help="go on without a cgroup")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.workload, arguments.repeats = arguments.workload.lower(), 1
        arguments.warm_up, arguments.batches = 2, 6
        arguments.strategies = [DEFAULT[0], *DEFAULT[-2:]]
    if arguments.pyg:
        arguments.strategies = [*arguments.strategies, "pyg"]
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
        note = "the slack alone holds these features: this shows that all runs, not how fast"
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-") as temporary:
        compare(arguments, arguments.cache or Path(temporary), note)


if __name__ == "__main__":
    main()
