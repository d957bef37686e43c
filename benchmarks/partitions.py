"""Training on some partitions of a graph at a time, compared with the disk's sequential speed.

An R-MAT graph is partitioned, and a loader of nodes goes through it by "dispersed" partitions, a
quarter in memory, for two epochs and in two ways. *Swapping alone*: one seed for each partition, so
that states are read, built and left at once. *Training*: all seeds, and a consumer that takes half
as long again for each state as reading it took. In the same rounds the largest file of the
partitions is read sequentially by large direct reads.

Reported, with the bars of the project:

- bytes read over the bytes of the partitions and buckets that become resident, by formula (at most
  1.02), and bytes written to the partitions (none);
- bytes a second while states are read, over the disk's sequential bandwidth (at least 0.9);
- the share of reading that is hidden by training, in the second epoch (at least 0.9): the first one
  begins with nothing in memory;
- building the graph of a state over reading it (at most 0.1).

Run `python -m benchmarks.partitions --cache DIR` with DIR on the disk in question.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import gnnstore
from benchmarks.harness import add_partition_options, directory_of, parser, report
from benchmarks.parts import sequential
from gnnstore.converters import from_rmat
from gnnstore.converters.stores.partition import partition
from gnnstore.formats.partitions import PartitionsReader, open_partitions
from gnnstore.partitions.buffer import PartitionFiles
from gnnstore.sampling.resident import ResidentGraph
from gnnstore.tools.bench.harness import drop_from_cache
from gnnstore.units import spread

SEED, FEATURE_DIM, EDGE_FACTOR, FANOUTS = 0, 128, 15, [5, 5]
SHARE, READING_THREADS = 0.25, 4

Found = dict[str, float]


def make_unit(directory: Path, scale: int, num_partitions: int) -> gnnstore.GraphStore:
    """Return a partitioned store."""
    path = directory / f"rmat{scale}.gnn"
    if not path.exists():
        from_rmat(path, scale=scale, edge_factor=EDGE_FACTOR, feature_dim=FEATURE_DIM, seed=SEED)
    if not (path / "partitions" / f"random-{num_partitions}").exists():
        partition(path, num_partitions)
    return gnnstore.open(path)


class Seconds:
    """Seconds that calls of some methods took, by name."""

    def __init__(self) -> None:
        self.of: dict[str, float] = {}

    @contextmanager
    def timed(self, owner: Any, method: str, name: str) -> Iterator[None]:
        """Time all calls of a method meanwhile."""
        whole = getattr(owner, method)  # of a class method: bound

        def call(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return whole(*arguments, **options)
            finally:
                self.of[name] = self.of.get(name, 0) + time.perf_counter() - start

        with patch.object(owner, method, call):
            yield


def expected_bytes(unit: PartitionsReader, schedules: list[Any], num_read: int) -> int:
    """Return the bytes that epochs read by formula: partitions, and buckets that become resident.

    Parameters
    ----------
    num_read : int
        Partitions that were read. The next epoch's, which are read while the last state trains,
        count, and partitions that were still in memory do not.
    """
    row_bytes = unit.order_spec.row_bytes + sum(spec.row_bytes for spec in unit.nodes.values())
    edge_bytes = sum(
        spec.row_bytes for spec in (unit.source_spec, unit.target_spec, unit.position_spec)
    )
    p, before = unit.num_partitions, set[int]()
    total = row_bytes * unit.num_nodes * num_read // p
    for schedule in schedules:
        for state in range(len(schedule.states)):
            there = {*schedule.partitions(state).tolist()}
            for i in there:
                for j in there:
                    if not {i, j} <= before:
                        entry = j * p + i
                        num_edges = int(unit.bucket_ptr[entry + 1] - unit.bucket_ptr[entry])
                        total += edge_bytes * num_edges
            before = there
    return total


def run_epochs(
    store: gnnstore.GraphStore, seeds: Any, pause: float, arguments: argparse.Namespace
) -> Found:
    """Go through two epochs from cold; sleep for each state in place of training on it."""
    policy = gnnstore.PartitionPolicy("dispersed", capacity=SHARE)
    loader = gnnstore.NeighborLoader(
        store,
        FANOUTS,
        seeds,
        batch_size=arguments.batch_size,
        shuffle=True,
        seed=SEED,
        partitions=policy,
        memory=arguments.memory,
    )
    unit = open_partitions(store.path, None, store_uuid=store.reader.uuid)
    drop_from_cache([unit.path])
    seconds, start = Seconds(), time.perf_counter()
    ends = []  # for each epoch: all seconds, seconds of reading, seconds of waiting for a state
    with (
        seconds.timed(PartitionFiles, "read_rows", "reading"),
        seconds.timed(PartitionFiles, "read_edges", "reading"),
        seconds.timed(PartitionFiles, "settle", "reading"),
        seconds.timed(ResidentGraph, "build", "building"),
    ):
        for epoch in range(2):
            num_batches = loader.len_of(epoch)
            for _ in loader:
                time.sleep(pause / num_batches)
            stats, now = loader.stats(), time.perf_counter()
            ends.append((now - start, seconds.of["reading"], stats.seconds_swapping))
    (shape,) = policy.shapes(unit.num_partitions, for_edges=False)
    schedules = [shape.schedule(SEED, epoch) for epoch in range(2)]
    first, second = ends
    return {
        "first_epoch": first[0],
        "seconds": second[0] - first[0],
        "bytes": stats.bytes_read,
        "expected": expected_bytes(unit, schedules, stats.partitions_read),
        "partitions": stats.partitions_read,
        "reading": second[1],
        "reading_again": second[1] - first[1],
        "building": seconds.of["building"],
        "swapping": second[2] - first[2],
        "waiting": stats.seconds_waiting,
        "states": stats.states,
    }


def one_seed_each(unit: PartitionsReader) -> torch.Tensor:
    """Return a node of each partition."""
    order = unit.paged(unit.order_spec).load()
    return torch.from_numpy(
        np.array([int(order[unit.rows(k).start]) for k in range(unit.num_partitions)])
    )


def read_in_order(unit: PartitionsReader) -> float:
    """Return bytes a second of the largest file of the partitions, read sequentially."""
    paths = (unit.path / entry.path for entry in unit.manifest.files)
    path = max(paths, key=lambda path: path.stat().st_size)
    drop_from_cache([path])
    return sequential.read(path, path.stat().st_size, READING_THREADS).rate


def run(arguments: argparse.Namespace) -> None:
    """Measure in rounds, and print."""
    with directory_of(arguments) as directory:
        store = make_unit(directory, arguments.scale, arguments.partitions)
        unit = open_partitions(store.path, None, store_uuid=store.reader.uuid)
        files = [unit.path / entry.path for entry in unit.manifest.files]
        before = [path.stat().st_mtime_ns for path in files]
        disk, swaps, epochs = [], [], []
        for _ in range(arguments.repeats):
            disk.append(read_in_order(unit))
            swaps.append(run_epochs(store, one_seed_each(unit), 0, arguments))
            pause = 1.5 * swaps[-1]["reading"] / 2  # of each of the two epochs
            epochs.append(run_epochs(store, "train", pause, arguments))
        written = sum(
            path.stat().st_mtime_ns != time for path, time in zip(files, before, strict=True)
        )
    ratios = {
        "bytes": [e["bytes"] / e["expected"] for e in swaps],
        "bandwidth": [s["bytes"] / s["reading"] / d for s, d in zip(swaps, disk, strict=True)],
        "hidden": [1 - e["swapping"] / e["reading_again"] for e in epochs],
        "building": [e["building"] / e["reading"] for e in swaps],
    }
    size = swaps[0]["expected"]
    share = f"{arguments.partitions} partitions, a quarter in memory"
    waiting = f"{median(e['waiting'] for e in epochs):.2f} s waiting"
    report(
        "benchmarks.partitions",
        [
            ("graph", f"2^{arguments.scale} nodes, {size / 1e6:,.0f} MB; {share}"),
            ("the disk in order", f"{spread(d / 1e9 for d in disk)} GB/s"),
            ("bytes read / by formula", f"{spread(ratios['bytes'], '.3f')} (at most 1.02)"),
            ("files of the partitions that changed", f"{written} (none)"),
            ("reading / the disk in order", f"{spread(ratios['bandwidth'])} (at least 0.9)"),
            ("reading hidden by training", f"{spread(ratios['hidden'])} (at least 0.9)"),
            ("building / reading", f"{spread(ratios['building'])} (at most 0.1)"),
            ("epoch of swapping alone", f"{spread(s['seconds'] for s in swaps)} s"),
            ("epoch with training", f"{spread(e['seconds'] for e in epochs)} s, {waiting}"),
        ],
        as_json=arguments.json,
        disk_bytes_per_second=disk,
        swapping_alone=swaps,
        training=epochs,
        files_written=written,
    )


def main() -> None:
    """Read the command line and run."""
    options = parser(__doc__)
    options.add_argument("--scale", type=int, help="2^SCALE nodes (21; 15 with --quick)")
    add_partition_options(options, batch_size=1024)
    arguments = options.parse_args()
    arguments.scale = arguments.scale or (15 if arguments.quick else 21)
    run(arguments)


if __name__ == "__main__":
    main()
