"""Packing the rows of one epoch, and of several, in a pass over the table.

An epoch of W is one superbatch. With `strategy="packed"` and memory for a tenth of the rows, one
loader has superbatches of an epoch (`superbatch=` the batches of one) and one those that the loader
chooses: as many epochs as have begun, at most four. Each on the graph as it was made and numbered
by degree; batches are dropped, not trained on. For each epoch: the bytes that it reads from the
table, the packed ones that are written to disk and read again, and the time; the first epoch too.
The disk's own rates are measured before and after each loader. The sequential time is that of the
bytes at the disk's sequential rate.

Run `python -m benchmarks.epochs_ahead --workload W --cache DIR` with DIR on the disk in question:
two stores are kept there, 22 GB for W, and packed rows need 20 GB for a while.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch

import gnnstore
from benchmarks.harness import device_numbers, device_row, directory_of, parser, report
from benchmarks.parts.workloads import BATCH_SIZE, FANOUTS, SEED, WORKLOADS, Workload
from gnnstore.converters import ConvertOptions, reorder
from gnnstore.graph.sizes import StoreSizes
from gnnstore.tools.bench.harness import DeviceLimits, measure_disk_of

ORDERS = ("none", "degree")
SHARE, SLACK_BYTES = 0.1, 200_000_000
ALONE, SEVERAL = "one epoch", "several"
# The first superbatch of four epochs begins with the eighth epoch.
EPOCHS = {ALONE: 4, SEVERAL: 12}
STEADY = {ALONE: slice(1, None), SEVERAL: slice(7, 11)}


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
        reorder(plain, path, "degree", options=ConvertOptions(edge_ids=False))
    return path


def epochs(path: Path, seeds: npt.NDArray[np.int64], way: str) -> tuple[list[Epoch], int]:
    """Load some epochs; return them, and the batches of a superbatch."""
    store = gnnstore.open(path)
    sizes, num_batches = StoreSizes.of(store.schema), len(seeds) // BATCH_SIZE
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


def main() -> None:
    """Make the stores, load, and print."""
    options = parser(__doc__)
    options.add_argument("--workload", choices=sorted(WORKLOADS), default="W", help="(%(default)s)")
    options.add_argument("--orders", nargs="+", choices=ORDERS, default=ORDERS)
    options.add_argument("--cache", type=Path, help="directory that keeps the stores")
    arguments = options.parse_args()
    workload = WORKLOADS["w" if arguments.quick else arguments.workload]
    devices: list[DeviceLimits] = []
    rows: list[tuple[str, str]] = []
    numbers = {}
    with directory_of(arguments) as directory:
        for order in arguments.orders:
            path = store_of(workload, directory, order)
            for way in EPOCHS:
                devices.append(measure_disk_of(gnnstore.open(path)))
                found, superbatch = epochs(path, workload.seeds(), way)
                devices.append(measure_disk_of(gnnstore.open(path)))
                numbers[f"{order}, {way}"] = [asdict(epoch) for epoch in found]
                rate = median(device.bytes_per_second for device in devices[-2:])
                rows.append((f"{order}, {way}", f"{superbatch} batches in a superbatch"))
                steady = found[STEADY[way]]
                for name, some in (("first", found[:1]), ("later", steady)):
                    moved = median(epoch.moved_bytes for epoch in some)
                    seconds = median(epoch.seconds for epoch in some)
                    parts = [
                        median(getattr(epoch, f"{part}_bytes") for epoch in some) / 1e6
                        for part in ("table", "packed", "written")
                    ]
                    amounts = "table {:.1f}, packed {:.1f}, written {:.1f}".format(*parts)
                    times = f"{seconds:.3f} s, {seconds / (moved / rate):.2f} of the time in order"
                    rows.append((f"  {name}", f"{moved / 1e6:.1f} MB a batch ({amounts}), {times}"))
                rows.append(("  first batch", f"{found[0].first_seconds:.1f} s"))
    report(
        f"packing one epoch and several in a pass, {workload.name}",
        [*rows, device_row(devices)],
        as_json=arguments.json,
        epochs=numbers,
        disk=device_numbers(devices),
    )


if __name__ == "__main__":
    main()
