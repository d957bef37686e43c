"""Loading epochs that were packed before, next to a loader that has everything in memory.

Two epochs are packed as `gnnstore pack` does. Then, in turns, each in a process of its own:
the packed epochs are read in a memory cgroup of 10 % of the features and some slack, page cache
included, as in `benchmarks.out_of_core`; and the same batches are taken by `strategy="memory"`,
without a limit. Both are timed in the second epoch, when all memory has been touched once.

The bars, as ratios of a batch's time: 1.3 on W; 2 on F, whose packed rows are some 80 MB a batch,
so that the disk is the limit. The disk's sequential bandwidth is measured in the same run, and the
share of the bandwidth that packed batches reach.

Run `python -m benchmarks.prepared --workload W --cache DIR` as a user who may make memory cgroups
(root), with DIR on the disk in question; they are written there too, 5 GB for W, 62 GB for F.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import gnnstore
from benchmarks.harness import (
    add_limit_options,
    device_numbers,
    device_row,
    limit_version,
    parser,
    report,
)
from benchmarks.out_of_core import SHARE, WORKER
from benchmarks.parts.workloads import BATCH_SIZE, FANOUTS, SEED, WORKLOADS
from gnnstore.packing.job import EpochPacker
from gnnstore.packing.sampling import PackSettings
from gnnstore.pipeline.lookahead.presample import Presampler, with_margin
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.seeds.nodes import resolve_input_nodes
from gnnstore.tools.bench.harness import Task, measure_disk_of, run_task
from gnnstore.tools.bench.worker import ALLOWANCE_BYTES, Run
from gnnstore.units import format_size, spread

BARS = {"W": 1.3, "F": 2.0}
EPOCHS = 2
BATCHES, STAGING_BYTES = 3, 64 * 10**6


def pack(task: Task, directory: Path) -> tuple[Path, float]:
    """Pack two epochs for the task's loader; return their path, and the seconds that it took."""
    run = Run(task)
    config = SamplingConfig(task.fanouts, seed=task.seed)
    # In addition to the cache: batches for two threads and the consumer, and reads for these.
    seen = Presampler.from_store(
        run.store,
        config,
        resolve_input_nodes(run.store, run.seeds),
        task.batch_size,
        in_order=False,
    ).run(run.topology, run.num_threads)
    in_flight = BATCHES * with_margin(seen.largest_bytes) + STAGING_BYTES
    settings = PackSettings(
        config,
        input_nodes=run.seeds,
        batch_size=task.batch_size,
        epochs=EPOCHS,
        memory=run.memory_bytes,
        cache_bytes=max(0, run.room_bytes - ALLOWANCE_BYTES - in_flight),
        topology="memory",
        spill_dir=directory,
        num_threads=run.num_threads,
    )
    start = perf_counter()
    packer = EpochPacker(run.store, settings)
    try:
        packed = packer.pack(directory / "prepared.packed")
    finally:
        packer.close()
    return packed, perf_counter() - start


def play(task: Task, *, limited: bool) -> dict[str, Any]:
    """Perform a task in a process of its own.

    Raises
    ------
    SystemExit
        If it fails; the message gives the reason.
    """
    outcome = run_task(task, worker=WORKER, is_limited=limited)
    name = "packed" if task.packed else task.strategy
    if isinstance(outcome, str):
        raise SystemExit(f"{name}: {outcome}")
    print(f"{name}: {outcome['seconds']:.3f} s a batch", file=sys.stderr)
    return outcome


def size_of(directory: Path) -> int:
    """Return the bytes of all files."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def compare(arguments: argparse.Namespace, stores: Path, directory: Path, *, limited: bool) -> None:
    """Pack, load in turns, and print."""
    workload = WORKLOADS[arguments.workload]
    store, seeds = workload.store(stores), directory / "seeds.npy"
    np.save(seeds, workload.seeds())
    epoch = workload.seeds().size // BATCH_SIZE
    task = Task(
        strategy="packed",
        store=str(store),
        seeds=str(seeds),
        share=SHARE,
        slack_bytes=arguments.slack,
        warm_up=(EPOCHS - 1) * epoch,
        batches=epoch,
        fanouts=FANOUTS,
        batch_size=BATCH_SIZE,
        seed=SEED,
    )
    packed, seconds_packing = pack(task, directory)
    opened, devices, turns = gnnstore.open(store), [], []
    for _ in range(arguments.repeats):
        devices.append(measure_disk_of(opened))
        followed = play(replace(task, packed=str(packed)), limited=limited)
        turns.append((followed, play(replace(task, strategy="memory"), limited=False)))
    disk = device_numbers(devices)
    by_packed, resident = zip(*turns, strict=True)
    ratios = [a["seconds"] / b["seconds"] for a, b in turns]
    share = [o["disk_bytes"] / o["seconds"] / disk["bytes_per_second"] for o in by_packed]
    bytes_each = float(np.median([o["disk_bytes"] for o in by_packed]))
    rows = [
        device_row(devices),
        (
            "packing",
            f"{EPOCHS * epoch} batches in {seconds_packing:.1f} s, {format_size(size_of(packed))}",
        ),
        ("packed", f"{spread((o['seconds'] for o in by_packed), '.4f')} s a batch"),
        ("", f"{format_size(bytes_each)} a batch, {spread(share)} of the disk in order"),
        ("memory", f"{spread((o['seconds'] for o in resident), '.4f')} s a batch"),
        ("packed / memory", spread(ratios)),
    ]
    if (bar := BARS.get(arguments.workload)) is not None and limited:
        verdict = "reached" if np.median(ratios) <= bar else "MISSED"
        rows.append((f"the bar of {bar:g}", verdict))
    report(
        f"{arguments.workload} from epochs packed before",
        rows,
        as_json=arguments.json,
        device=disk,
        seconds_packing=seconds_packing,
        packed=by_packed,
        memory=resident,
    )


def main() -> None:
    """Read the options, and compare."""
    options = parser(__doc__)
    options.set_defaults(repeats=3)
    options.add_argument("--workload", choices=sorted(WORKLOADS), default="W", help="(W)")
    add_limit_options(options)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.workload, arguments.repeats = arguments.workload.lower(), 1
    limited = bool(limit_version(arguments))
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-", dir=arguments.cache) as made:
        compare(arguments, arguments.cache or Path(made), Path(made), limited=limited)


if __name__ == "__main__":
    main()
