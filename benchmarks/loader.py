"""The whole loader without a model, compared with its own kernels and with PyG's loader.

Workload w by default, W with `--scale 24`: an R-MAT graph with Graph500's parameters, 15
edges a node, 128 float32 features; batches of 1,024 random nodes, fan-out 10, 10, 10.

A round times the stages of every batch (sampling, gathering) on one thread, then the loader with
all threads on the same batches. The bar is 1.3 times (sampling + gathering) / threads. PyG's
`NeighborLoader` with torch-sparse and GraphBolt's loader are timed on the same arrays where they
are installed (`make bench-peers`), after ours has released its memory; the bar is 8 times the speed
of PyG's with its best number of workers.
Run `python -m benchmarks.loader`; with `--cache DIR` the store is made once.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import gnnstore
from benchmarks.harness import Timing, add_loader_options, directory_of, parser, report
from benchmarks.parts.peers import LOADERS, PeerLoader, arrays_of, missing, peers_of
from benchmarks.parts.workloads import make_store
from gnnstore.features.source import RowSource
from gnnstore.graph.table_registry import shared_tables
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.units import format_size

FANOUTS, BATCH_SIZE, SEED = (10, 10, 10), 1024, 0
BAR_STAGES, BAR_PYG = 1.3, 8.0
PEER_REPEATS = 3


class Stages:
    """The work of the loader's threads for a batch, on one thread and timed apart."""

    def __init__(self, loader: gnnstore.NeighborLoader, seeds: NDArray[np.int64]) -> None:
        store: gnnstore.GraphStore = loader.data
        shared = shared_tables(store)
        config = SamplingConfig(FANOUTS, seed=SEED)
        self.sampler = shared.topology(store, "memory", 1).sampler(config, "int64")
        self.tables: list[RowSource] = [
            shared.rows(store, spec, "memory", 1) for spec in store.schema.node.attributes.values()
        ]
        self.seeds = seeds

    def run(self, epoch: int) -> tuple[float, float]:
        """Return seconds of sampling and of gathering, of all batches of an epoch."""
        sampling = gathering = 0.0
        for batch, seeds in enumerate(self.seeds):
            start = perf_counter()
            subgraph = self.sampler.sample(seeds, epoch=epoch, batch=batch)
            sampled = perf_counter()
            rows = [table.gather(subgraph.n_id).values for table in self.tables]
            gathering += perf_counter() - sampled
            sampling += sampled - start
            del subgraph, rows
        return sampling, gathering


def seconds_of(loader: Any) -> float:
    """Return the seconds of one epoch of a loader, whose batches are dropped at once."""
    start = perf_counter()
    for batch in loader:
        del batch
    return perf_counter() - start


def time_rounds(loader: gnnstore.NeighborLoader, stages: Stages, repeats: int) -> dict[str, Timing]:
    """Return seconds a batch of sampling, of gathering, and of the loader, round by round."""
    stages.run(epoch=0)
    seconds_of(loader)
    rounds = []
    gc.disable()
    try:
        for epoch in range(1, repeats + 1):
            loader.set_epoch(epoch)
            rounds.append((*stages.run(epoch), seconds_of(loader)))
    finally:
        gc.enable()
    columns = (np.array(rounds) / len(stages.seeds)).T
    names = ("sampling", "gathering", "loader")
    return {name: Timing(tuple(c)) for name, c in zip(names, columns.tolist(), strict=True)}


def overhead_of(loader: gnnstore.NeighborLoader) -> float:
    """Return seconds a batch when there is nothing to sample: Python, threads and `Data`."""
    bare = gnnstore.NeighborLoader(
        loader.data, [], np.zeros(2000, np.int64), num_threads=loader.num_threads, seed=0
    )
    return seconds_of(bare) / len(bare)


def main() -> None:
    """Time rounds and peers, and print times and ratios."""
    options = parser(__doc__)
    options.add_argument("--scale", type=int, default=18, help="2^scale nodes (18; W: 24)")
    options.add_argument("--edge-factor", type=int, default=15, help="edges a node (15)")
    options.add_argument("--feature-dim", type=int, default=128, help="float32 features (128)")
    options.add_argument("--batches", type=int, help="batches a round (1 %% of W's nodes; 64)")
    add_loader_options(options)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.scale, arguments.repeats = min(arguments.scale, 16), min(arguments.repeats, 3)
    torch.set_num_threads(1)
    with directory_of(arguments) as directory:
        measure(arguments, directory)


def measure(arguments: argparse.Namespace, directory: Path) -> None:
    """Run the benchmark on the store in a directory."""
    scale: int = arguments.scale
    path = make_store(directory, scale, arguments.edge_factor, arguments.feature_dim)
    # An epoch has 1 % of W's nodes; of w's, too few to forget how a round begins and ends.
    num_batches = arguments.batches or max(64, (1 << scale) // 100 // BATCH_SIZE)
    rng = np.random.default_rng(1)
    seeds = rng.integers(0, 1 << scale, (num_batches, BATCH_SIZE))
    loader = gnnstore.NeighborLoader(
        path,
        FANOUTS,
        seeds.reshape(-1),
        batch_size=BATCH_SIZE,
        strategy="memory",
        seed=SEED,
        num_threads=arguments.threads,
    )
    timings = time_rounds(loader, Stages(loader, seeds), arguments.repeats)
    rows, numbers = compare_with_stages(loader, timings)
    arrays = arrays_of(loader.data, seeds.reshape(-1))
    del loader
    ours, ratios = timings["loader"], dict[str, float]()
    for name in peers_of(*LOADERS):
        for workers in arguments.peer_workers:
            label = f"{name}, {workers} workers"
            peer = PeerLoader(name, "load", arrays, FANOUTS, BATCH_SIZE, workers=workers)
            with peer:
                timing = Timing(tuple(peer(arguments.peer_batches)[0] for _ in range(PEER_REPEATS)))
            timings[label], ratios[label] = timing, timing.median / ours.median
            rows.append((label, f"{timing.milliseconds()} a batch; {ratios[label]:.1f} x ours"))
    rows += missing(*LOADERS)
    of_pyg = [ratio for label, ratio in ratios.items() if label.startswith("torch-sparse")]
    if of_pyg:
        rows.append(
            (f"the bar of {BAR_PYG:.0f} x PyG", "reached" if min(of_pyg) >= BAR_PYG else "MISSED")
        )
    title = f"load from R-MAT, 2^{scale} nodes, strategy memory, without a model"
    report(title, rows, as_json=arguments.json, timings=timings, peers=ratios, **numbers)


def compare_with_stages(
    loader: gnnstore.NeighborLoader, timings: dict[str, Timing]
) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Return rows and numbers: the loader and its stages, round by round."""
    threads, stats, whole = loader.num_threads, loader.stats(), timings["loader"]
    stages = zip(timings["sampling"].seconds, timings["gathering"].seconds, strict=True)
    floors = [(sampling + gathering) / threads for sampling, gathering in stages]
    ratios = [seconds / floor for seconds, floor in zip(whole.seconds, floors, strict=True)]
    ratio = float(np.median(ratios))
    nodes, edges = (round(count / stats.batches) for count in (stats.nodes, stats.edges))
    gathered = format_size(stats.bytes_gathered / stats.batches)
    rows = [
        ("a batch", f"{nodes:,} nodes, {edges:,} edges, {gathered} gathered"),
        ("sampling, one thread", f"{timings['sampling'].milliseconds()} a batch"),
        ("gathering, one thread", f"{timings['gathering'].milliseconds()} a batch"),
        ("(sampling + gathering) / threads", f"{1e3 * np.median(floors):.2f} ms"),
        (f"the loader, {threads} threads", f"{whole.milliseconds()} a batch"),
        ("the loader, in units of these", f"{ratio:.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"),
        (f"the bar of {BAR_STAGES}", "reached" if ratio <= BAR_STAGES else "MISSED"),
        ("a batch of one seed and no hop", f"{1e6 * overhead_of(loader):.0f} us"),
    ]
    numbers = {"num_threads": threads, "nodes_per_batch": nodes, "edges_per_batch": edges}
    return rows, {**numbers, "stages_ratio": ratio}


if __name__ == "__main__":
    main()
