"""The loader of links without a model, compared with PyG's, and what its extensions cost.

An R-MAT graph with Graph500's parameters, 15 edges a node, 32 float32 features; a million of its
edges, drawn once, are seeds: batches of 1,024, fan-out 10, 10, a negative pair for each. W's graph
with `--scale 24`; PyG holds edges as pairs of int64, in the order that its sampler needs, so that
it does not fit every machine.

A round loads the same number of batches with each contestant in turn. The bars are 4 times the
speed of PyG's `LinkNeighborLoader` with torch-sparse, in a process of its own, with the best number
of workers, where it is installed (`make bench-peers`), and at most 1.1 times the CPU time with
`exclude_edges` or `strict_negatives`: CPU time, which a busy machine disturbs least.
Run `python -m benchmarks.links`; with `--cache DIR` the store is made once.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gnnstore
from benchmarks.harness import Timing, add_loader_options, directory_of, parser, report
from benchmarks.parts.peers import PeerLoader, arrays_of, missing, peers_of
from benchmarks.parts.workloads import make_store
from gnnstore.units import spread

FANOUTS, BATCH_SIZE, SEED, FEATURE_DIM = [10, 10], 1024, 0, 32
BAR_PYG, BAR_EXTENSION = 4.0, 1.1
PLAIN = "plain"
EXTENSIONS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "exclude_edges='self'": {"exclude_edges": "self"},
    "exclude_edges='reverse'": {"exclude_edges": "reverse"},
    "strict_negatives": {"strict_negatives": True},
}

# Takes a number of batches; returns seconds a batch, elapsed and of CPU.
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
    csc = store.topology("memory").columns()
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


def measure(arguments: argparse.Namespace, directory: Path, stack: ExitStack) -> None:
    """Run the benchmark on the store in a directory."""
    store = gnnstore.open(make_store(directory, arguments.scale, feature_dim=FEATURE_DIM))
    edges = label_edges(store, arguments.edges)
    contestants: dict[str, Contestant] = ours(store, edges, arguments)
    arrays = arrays_of(store, edges.numpy())
    others: dict[str, Contestant] = {
        f"PyG, {workers} workers": stack.enter_context(
            PeerLoader(
                name,
                "links",
                arrays,
                FANOUTS,
                BATCH_SIZE,
                workers=workers,
                num_batches=arguments.peer_batches,
            )
        )
        for name in peers_of("torch-sparse")
        for workers in arguments.peer_workers
    }
    contestants |= others
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
    rows += missing("torch-sparse")
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
    add_loader_options(options)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.scale, arguments.repeats = min(arguments.scale, 14), min(arguments.repeats, 2)
        arguments.batches, arguments.edges = min(arguments.batches, 20), 10**5
    torch.set_num_threads(1)
    with directory_of(arguments) as directory, ExitStack() as stack:
        measure(arguments, directory, stack)


if __name__ == "__main__":
    main()
