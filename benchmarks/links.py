"""The loader of links without a model, beside PyG's, and what its extensions cost.

An R-MAT graph with Graph500's parameters, 15 edges a node, 32 float32 features; a million of its
edges, drawn once, are seeds: batches of 1,024, fan-out 10, 10, a negative pair for each. W's graph
with `--scale 24`; PyG holds edges as pairs of int64, in the order that its sampler wants, so that
it does not fit every machine.

A round loads the same number of batches with each contestant in turn. The bars are 4 times the
speed of PyG's `LinkNeighborLoader` with the number of workers that suits it best, where it can
sample (torch-sparse or pyg-lib), and at most 1.1 times the CPU time with `exclude_edges` or
`strict_negatives`: CPU time, which a busy machine disturbs least.
Run `python -m benchmarks.links`; with `--cache DIR` the store is made once.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric import typing

import gnnstore
from benchmarks.harness import Timing, directory_of, parser, report, spread
from benchmarks.parts.workloads import make_store

FANOUTS, BATCH_SIZE, SEED, FEATURE_DIM = [10, 10], 1024, 0, 32
BAR_PYG, BAR_EXTENSION = 4.0, 1.1
PLAIN = "plain"
EXTENSIONS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "exclude_edges='self'": {"exclude_edges": "self"},
    "exclude_edges='reverse'": {"exclude_edges": "reverse"},
    "strict_negatives": {"strict_negatives": True},
}

# Returns seconds a batch, elapsed and of CPU, of so many batches.
Contestant = Callable[[int], tuple[float, float]]


def seconds_a_batch(loader: Any, num_batches: int, first: int) -> tuple[float, float]:
    """Return the mean seconds of batches that are dropped at once, after the first ones."""
    batches: Iterator[Any] = islice(loader, first + num_batches)
    for _ in range(first):
        next(batches)
    start, cpu_start = perf_counter(), process_time()
    for batch in batches:
        del batch
    seconds, cpu_seconds = perf_counter() - start, process_time() - cpu_start
    return seconds / num_batches, cpu_seconds / num_batches


def label_edges(store: gnnstore.GraphStore, num_edges: int) -> Tensor:
    """Draw edges of the graph, in a random order: [2, L]."""
    csc = store.topology("memory")
    places = np.random.default_rng(1).integers(0, csc.num_edges, num_edges)
    targets = np.searchsorted(csc.indptr, places, side="right") - 1
    return torch.from_numpy(np.stack([csc.indices[places].astype(np.int64), targets]))


def ours(store: gnnstore.GraphStore, edges: Tensor, arguments: argparse.Namespace) -> Any:
    """Return our loaders by name, each a contestant."""

    def contestant(options: dict[str, Any]) -> Contestant:
        loader = gnnstore.LinkNeighborLoader(
            store,
            FANOUTS,
            edges,
            neg_sampling="binary",
            batch_size=BATCH_SIZE,
            strategy="memory",
            num_threads=arguments.threads,
            seed=SEED,
            **options,
        )
        return lambda num_batches: seconds_a_batch(loader, num_batches, first=2)

    return {name: contestant(options) for name, options in EXTENSIONS.items()}


def peers(store: gnnstore.GraphStore, edges: Tensor, arguments: argparse.Namespace) -> Any:
    """Return PyG's loaders by the number of their workers; none where it cannot sample."""
    if not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
        return {}
    from torch_geometric.data import Data  # noqa: PLC0415
    from torch_geometric.loader import LinkNeighborLoader  # noqa: PLC0415

    csc = store.topology("memory")
    edge_index = np.empty((2, csc.num_edges), np.int64)
    edge_index[0] = csc.indices
    edge_index[1] = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    data = Data(
        x=store.features.tensor(),
        y=torch.from_numpy(store.labels),
        edge_index=torch.from_numpy(edge_index),
    )

    def contestant(num_workers: int) -> Contestant:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch-sparse is deprecated beside pyg-lib
            loader = LinkNeighborLoader(
                data,
                FANOUTS,
                edges,
                neg_sampling="binary",
                batch_size=BATCH_SIZE,
                is_sorted=True,
                num_workers=num_workers,
            )
        # Workers must start, and have prepared the next batches by then.
        num_batches, first = arguments.peer_batches, max(1, 2 * num_workers)
        return lambda _: seconds_a_batch(loader, num_batches, first)

    return {f"PyG, {n} workers": contestant(n) for n in arguments.peer_workers}


def measure(arguments: argparse.Namespace, directory: Path) -> None:
    """Run the benchmark on the store in a directory."""
    store = gnnstore.open(make_store(directory, arguments.scale, feature_dim=FEATURE_DIM))
    edges = label_edges(store, arguments.edges)
    others = peers(store, edges, arguments)
    contestants: dict[str, Contestant] = {**ours(store, edges, arguments), **others}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for turn in range(arguments.repeats + 1):
        for name, run in contestants.items():
            seconds = run(arguments.batches)
            if turn:  # the first warms up
                found[name].append(seconds)
    timings = {name: Timing(tuple(s for s, _ in found[name])) for name in contestants}

    def ratios(name: str, what: int) -> list[float]:
        """Return elapsed time or CPU time in units of the plain loader's, round by round."""
        return [a[what] / b[what] for a, b in zip(found[name], found[PLAIN], strict=True)]

    cpu = spread((1e3 * seconds for _, seconds in found[PLAIN]))
    rows = [(f"ours, {PLAIN}", f"{timings[PLAIN].milliseconds()} a batch, {cpu} ms of CPU")]
    for name in [name for name in contestants if name != PLAIN]:
        text = f"{timings[name].milliseconds()} a batch; {spread(ratios(name, 0))} x {PLAIN}"
        if name in EXTENSIONS:
            text += f", of CPU {spread(ratios(name, 1))} x"
        rows.append((name, text))
    numbers = {name: statistics.median(ratios(name, 0)) for name in contestants}
    costs = {name: statistics.median(ratios(name, 1)) for name in EXTENSIONS}
    rows += [
        (f"the bar of {BAR_EXTENSION} for {name}", _verdict(cost <= BAR_EXTENSION))
        for name, cost in costs.items()
        if name != PLAIN
    ]
    if others:
        ratio = min(numbers[name] for name in others)
        rows.append((f"the bar of {BAR_PYG:.0f} x PyG", _verdict(ratio >= BAR_PYG)))
    else:
        rows.append(("PyG's LinkNeighborLoader", "cannot sample: install torch-sparse or pyg-lib"))
    title = f"load {BATCH_SIZE} edges and as many negatives from R-MAT, 2^{arguments.scale} nodes"
    report(title, rows, as_json=arguments.json, timings=timings, ratios=numbers, cpu=costs)


def _verdict(is_reached: bool) -> str:
    return "reached" if is_reached else "MISSED"


def main() -> None:
    """Time the contestants in turns, and print times and ratios."""
    options = parser(__doc__)
    options.add_argument("--scale", type=int, default=20, help="2^scale nodes (20; W: 24)")
    options.add_argument("--edges", type=int, default=10**6, help="seed edges (1,000,000)")
    options.add_argument("--batches", type=int, default=100, help="batches a round (100)")
    options.add_argument("--threads", type=int, help="threads of the loader (all cores)")
    options.add_argument("--peer-batches", type=int, default=12, help="batches of PyG (12)")
    options.add_argument("--peer-workers", type=int, nargs="+", default=[0, 2], help="(0 2)")
    options.add_argument("--cache", type=Path, help="directory that keeps the store")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.scale, arguments.repeats = min(arguments.scale, 14), min(arguments.repeats, 2)
        arguments.batches, arguments.edges = min(arguments.batches, 20), 10**5
    torch.set_num_threads(1)
    with directory_of(arguments) as directory:
        measure(arguments, directory)


if __name__ == "__main__":
    main()
