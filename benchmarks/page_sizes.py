"""Loading rows of 1,536 bytes from pages of 4 KiB, and from those that the writer chooses.

An R-MAT graph of 2^21 nodes with 15 edges and 384 float32 a node, the width of many text
embeddings: two rows fill three quarters of a page of 4 KiB. The same graph is converted with
`page_bytes=4096` and with the default, and each strategy loads epochs of each store in turns, with
memory for the topology and a tenth of the rows. Batches are dropped, not trained on. The first
epoch, which fills the cache, is not counted.

Run `python -m benchmarks.page_sizes --cache DIR` with DIR on the disk in question: the two stores
take 7.7 GB there.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np
import torch

import gnnstore
from benchmarks.harness import Timing, device_numbers, device_row, directory_of, parser, report
from benchmarks.parts.workloads import BATCH_SIZE, EDGE_FACTOR, SEED, make_store
from gnnstore.formats.base.files import directory_bytes
from gnnstore.graph.sizes import StoreSizes
from gnnstore.tools.bench.harness import DeviceLimits, measure_disk_of
from gnnstore.units import format_size, spread

SCALE, QUICK_SCALE, FEATURE_DIM = 21, 16, 384
FANOUTS = (10, 5)
SHARE, SLACK_BYTES = 0.1, 100_000_000
STRATEGIES = ("packed", "belady", "static")
PAGES = {"pages of 4 KiB": 4096, "default": None}
NUM_BATCHES, EPOCHS = 40, 4


def seconds_of(path: Path, seeds: torch.Tensor, strategy: str) -> float:
    """Load epochs with one strategy, and return the seconds of a batch after the first epoch."""
    store = gnnstore.open(path)
    sizes = StoreSizes.from_schema(store.schema)
    loader = gnnstore.NeighborLoader(
        store,
        list(FANOUTS),
        seeds,
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=SEED,
        num_threads=2,
        strategy=strategy,
        memory=int(sizes.topology_bytes + SHARE * sizes.rows_bytes + SLACK_BYTES),
    )
    for epoch in range(EPOCHS):
        if epoch == 1:
            start = perf_counter()
        for batch in loader:
            del batch
    return (perf_counter() - start) / ((EPOCHS - 1) * len(loader))


def main() -> None:
    """Make the stores, load, and print."""
    options = parser(__doc__)
    options.set_defaults(repeats=3)
    options.add_argument("--cache", type=Path, help="directory that keeps the stores")
    arguments = options.parse_args()
    scale = QUICK_SCALE if arguments.quick else SCALE
    num_batches = 4 if arguments.quick else NUM_BATCHES
    drawn = np.random.default_rng(1).integers(0, 1 << scale, num_batches * BATCH_SIZE)
    devices: list[DeviceLimits] = []
    times: dict[str, dict[str, list[float]]] = {
        strategy: {name: [] for name in PAGES} for strategy in STRATEGIES
    }
    with directory_of(arguments) as directory:
        paths = {
            name: make_store(directory, scale, EDGE_FACTOR, FEATURE_DIM, page_bytes=page_bytes)
            for name, page_bytes in PAGES.items()
        }
        rows = [(f"features, {name}", format_size(features_bytes(p))) for name, p in paths.items()]
        for _ in range(arguments.repeats):
            devices.append(measure_disk_of(gnnstore.open(paths["default"])))
            for strategy, own in times.items():
                for name, path in paths.items():
                    own[name].append(seconds_of(path, torch.from_numpy(drawn), strategy))
    for strategy, own in times.items():
        fixed, default = own.values()
        ratio = spread(after / before for before, after in zip(fixed, default, strict=True))
        each = ", ".join(f"{name} {Timing(tuple(own[name])).milliseconds()}" for name in PAGES)
        rows.append((strategy, f"{each} a batch; default {ratio} of the time"))
    report(
        f"page sizes, R-MAT of 2^{scale} nodes, {FEATURE_DIM} float32",
        [*rows, device_row(devices)],
        as_json=arguments.json,
        seconds_a_batch=times,
        disk=device_numbers(devices),
    )


def features_bytes(path: Path) -> int:
    """Return the bytes of the node features on disk."""
    return directory_bytes(path / "nodes" / "node" / "x")


if __name__ == "__main__":
    main()
