"""Packing the rows of one epoch, and of several, in a pass over the table.

An epoch of W is one superbatch. With `strategy="packed"` and memory for a tenth of the rows, one
loader has superbatches of an epoch (`superbatch=` the batches of one) and one those that the loader
chooses: as many epochs as have begun, at most four. Each on the graph as it was made and numbered
by degree; batches are dropped, not trained on. For each epoch: the bytes that it reads from the
table, the packed ones that are written to disk and read again, and the time; the first epoch too.
The disk's own rates are measured before and after each loader. The sequential time is the time
that the bytes take at the disk's sequential rate.

With `--whole` instead: five epochs of a loader with the superbatches that it chooses, in each order
in turns, with the same budget: the seconds of each, and the sum of epochs 2 to 5 over the sum on
the graph as it was made.

Run `python -m benchmarks.epochs_ahead --workload W --cache DIR` with DIR on the disk in question:
two stores are kept there, 22 GB for W, and packed rows need 20 GB for a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import gnnstore
from benchmarks.harness import device_numbers, device_row, directory_of, parser, report, several
from benchmarks.parts.workloads import BATCH_SIZE, FANOUTS, SEED, WORKLOADS, Workload
from gnnstore.converters import reorder
from gnnstore.graph.sizes import StoreSizes
from gnnstore.tools.bench.harness import DeviceLimits, measure_disk_of
from gnnstore.units import spread

ORDERS = ("none", "degree")
SHARE, SLACK_BYTES = 0.1, 200_000_000
ALONE, SEVERAL, WHOLE = "one epoch", "several", "whole epochs"
# The first superbatch of four epochs begins with the eighth epoch.
EPOCHS = {ALONE: 4, SEVERAL: 12, WHOLE: 5}
STEADY = {ALONE: slice(1, None), SEVERAL: slice(7, 11), WHOLE: slice(1, None)}


Numbers = dict[str, Any]


@dataclass(frozen=True)
class Epoch:
    """One epoch of a loader, each number of a batch."""

    seconds: float
    first_seconds: float
    table_bytes: float
    packed_bytes: float
    written_bytes: float

    @property
    def moved_bytes(self) -> float:
        """Bytes read and written."""
        return self.table_bytes + self.packed_bytes + self.written_bytes


def store_of(workload: Workload, directory: Path, order: str) -> Path:
    """Return the graph with its nodes in an order, made unless it is there already."""
    plain = workload.store(directory)
    if order == "none":
        return plain
    path = plain.with_name(f"{plain.stem}-{order}.gnn")
    if not path.exists():
        reorder(plain, path, "degree")
    return path


def epochs(path: Path, seeds: npt.NDArray[np.int64], way: str) -> tuple[list[Epoch], int]:
    """Load some epochs; return them, and the batches of a superbatch."""
    store = gnnstore.open(path)
    sizes, num_batches = StoreSizes.from_schema(store.schema), len(seeds) // BATCH_SIZE
    found = store.ids_of(seeds) if store.original_ids is not None else seeds
    loader = gnnstore.NeighborLoader(
        store,
        list(FANOUTS),
        torch.from_numpy(np.ascontiguousarray(found)),
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=SEED,
        num_threads=2,
        strategy="packed",
        memory=int(sizes.topology_bytes + SHARE * sizes.rows_bytes + SLACK_BYTES),
        superbatch=num_batches if way == ALONE else "auto",
    )
    rows = []
    for _ in range(EPOCHS[way]):
        before, start, first = loader.stats(), perf_counter(), 0.0
        for batch in loader:
            first = first or perf_counter() - start
            del batch
        seconds, since = perf_counter() - start, loader.stats().since(before)
        each = (seconds, first * num_batches, since.bytes_packing)
        amounts = (*each, since.bytes_read, since.bytes_spilled)
        rows.append(Epoch(*(amount / num_batches for amount in amounts)))
    return rows, loader.stats().superbatch


def measure_ways(
    paths: Mapping[str, Path], seeds: npt.NDArray[np.int64], devices: list[DeviceLimits]
) -> tuple[list[tuple[str, str]], Numbers]:
    """Load with superbatches of an epoch and of several, in each order."""
    rows: list[tuple[str, str]] = []
    numbers: Numbers = {}
    for order, path in paths.items():
        for way in (ALONE, SEVERAL):
            devices.append(measure_disk_of(gnnstore.open(path)))
            found, superbatch = epochs(path, seeds, way)
            devices.append(measure_disk_of(gnnstore.open(path)))
            numbers[f"{order}, {way}"] = [asdict(epoch) for epoch in found]
            rate = median(device.bytes_per_second for device in devices[-2:])
            rows.append((f"{order}, {way}", f"{superbatch} batches in a superbatch"))
            steady = found[STEADY[way]]
            for name, some in (("first", found[:1]), ("later", steady)):
                moved = median(epoch.moved_bytes for epoch in some)
                seconds = median(epoch.seconds for epoch in some)
                amounts = amounts_of(some)
                times = f"{seconds:.3f} s, {seconds / (moved / rate):.2f} of the time in order"
                rows.append((f"  {name}", f"{moved / 1e6:.1f} MB a batch ({amounts}), {times}"))
            rows.append(("  first batch", f"{found[0].first_seconds:.1f} s"))
    return rows, numbers


def amounts_of(some: list[Epoch]) -> str:
    """Return the megabytes of a batch, medians of some epochs."""
    parts = [
        median(getattr(epoch, f"{part}_bytes") for epoch in some) / 1e6
        for part in ("table", "packed", "written")
    ]
    return "table {:.1f}, packed {:.1f}, written {:.1f}".format(*parts)


def measure_whole(
    paths: Mapping[str, Path],
    seeds: npt.NDArray[np.int64],
    devices: list[DeviceLimits],
    repeats: int,
) -> tuple[list[tuple[str, str]], Numbers]:
    """Load whole epochs in each order, in turns, and compare the sums of those after the first."""
    num_batches = len(seeds) // BATCH_SIZE
    rounds: dict[str, list[list[Epoch]]] = {order: [] for order in paths}
    for _ in range(repeats):
        for order, path in paths.items():
            devices.append(measure_disk_of(gnnstore.open(path)))
            rounds[order].append(epochs(path, seeds, WHOLE)[0])
    devices.append(measure_disk_of(gnnstore.open(path)))

    def later(found: list[Epoch], what: str = "seconds") -> float:
        return num_batches * sum(float(getattr(epoch, what)) for epoch in found[STEADY[WHOLE]])

    rows = []
    for order, own in rounds.items():
        pairs = list(zip(own, rounds[next(iter(rounds))], strict=True))
        times, moved = (
            spread(later(found, what) / later(base, what) for found, base in pairs)
            for what in ("seconds", "moved_bytes")
        )
        sums = spread((later(found) for found in own), ".1f")
        rows.append(
            (order, f"epochs 2 to 5 in {sums} s, {times} of the time, {moved} of the bytes")
        )
        for number, found in enumerate(own, 1):
            seconds = ", ".join(f"{num_batches * epoch.seconds:.1f}" for epoch in found)
            amounts = amounts_of(found[STEADY[WHOLE]])
            rows.append((f"  round {number}", f"epochs of {seconds} s; MB a batch: {amounts}"))
    return rows, {order: [list(map(asdict, e)) for e in own] for order, own in rounds.items()}


def main() -> None:
    """Make the stores, load, and print."""
    options = parser(__doc__)
    options.add_argument("--workload", choices=sorted(WORKLOADS), default="W", help="(%(default)s)")
    options.add_argument("--orders", type=several(choices=ORDERS), default=ORDERS)
    options.add_argument("--whole", action="store_true", help="five epochs of each order in turns")
    options.add_argument("--cache", type=Path, help="directory that keeps the stores")
    arguments = options.parse_args()
    workload = WORKLOADS["w" if arguments.quick else arguments.workload]
    devices: list[DeviceLimits] = []
    with directory_of(arguments) as directory:
        paths = {order: store_of(workload, directory, order) for order in arguments.orders}
        if arguments.whole:
            rows, numbers = measure_whole(paths, workload.seeds(), devices, arguments.repeats)
        else:
            rows, numbers = measure_ways(paths, workload.seeds(), devices)
    what = WHOLE if arguments.whole else "packing one epoch and several in a pass"
    report(
        f"{what}, {workload.name}",
        [*rows, device_row(devices)],
        as_json=arguments.json,
        epochs=numbers,
        disk=device_numbers(devices),
    )


if __name__ == "__main__":
    main()
