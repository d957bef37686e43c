"""Epochs out of core with features as float32, as float16, and as int8 with scales.

One graph in three stores. Memory is what the structure takes, a tenth of the features as float32,
and 0.2 GB, for all three: the narrower rows are, the more of them fit. Batches come in rounds, each
with every store and strategy, and `memory` has no budget; the first epoch of a round, in which
caches are filled, is not timed. Batches of int8 rows are decoded, to float32.

The bars, on W: with `static` int8 takes at most 0.15 of float32's time, with `packed` at most 0.45,
or at most 1.5 of the time that int8 takes in memory; in memory at most as long as float32.

Then GraphSAGE is trained on x as float32 and as int8: the mean test accuracy of six seeds, with its
standard error, on planted types and, with `--data DIR`, on DIR/cora and DIR/facebook. The bar:
within 0.3 points. On Facebook's pages once more with heavy tails, each row times a number whose
logarithm is normal: their columns are refused without `allow_error`, with which they are trained.

Run `python -m benchmarks.quarter --workload W --cache DIR`, with DIR on the disk in question.
"""

from __future__ import annotations

import contextlib
import io
import math
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, median, stdev
from time import perf_counter

import numpy as np

import gnnstore
from benchmarks import hetero_accuracy
from benchmarks.harness import directory_of, parser, report, several
from benchmarks.parts.workloads import (
    BATCH_SIZE,
    EDGE_FACTOR,
    FANOUTS,
    FEATURE_DIM,
    SEED,
    WORKLOADS,
    Workload,
)
from examples import train_sage
from gnnstore.converters import ConvertOptions, from_numpy, from_ogb, from_rmat, quantize
from gnnstore.errors import InputError

DTYPES, STRATEGIES, SHARE, SEEDS = ("float32", "float16", "int8"), ("static", "packed"), 0.1, 6
BARS, IN_MEMORY_BAR, POINTS_BAR = {"static": 0.15, "packed": 0.45, "memory": 1.0}, 1.5, 0.3
PLANTED, HEAVY, TAIL = "planted types", "heavy tails", 2.0
PAGES = "--fanouts 25 --layers 2 --hidden 64 --dropout 0.4 --lr 0.02 --weight-decay 1e-4 "
PAGES += "--batch-size 1124"
PAPERS = "--fanouts 10,10 --hidden 64 --lr 0.01 --weight-decay 5e-4 --normalize --batch-size 140"
TRAINING = {"Cora": PAPERS, "Facebook": PAGES, HEAVY: PAGES}
Case = tuple[str, str]  # strategy and type


def make_stores(directory: Path, workload: Workload, dtypes: Collection[str]) -> dict[str, Path]:
    """Return the stores, converted unless they are there already."""
    found = {"float32": workload.store(directory)}
    for dtype in (each for each in dtypes if each != "float32"):
        path = found["float32"].with_suffix(f".{dtype}.gnn")
        found[dtype] = path
        if path.exists():
            continue
        if dtype == "int8":
            quantize(found["float32"], path)
            continue
        from_rmat(
            path,
            scale=workload.scale,
            edge_factor=EDGE_FACTOR,
            feature_dim=FEATURE_DIM,
            homophily=None,
            probabilities=workload.probabilities,
            options=ConvertOptions(feature_dtype=dtype),
        )
    return found


def memory_of(store: gnnstore.GraphStore, slack: int) -> int:
    """Return the budget: structure, labels, a tenth of the features as float32, and slack."""
    schema = store.reader.schema
    held = schema.edge.indptr.num_bytes + schema.edge.indices.num_bytes
    held += schema.node.attributes["y"].num_bytes
    return held + round(SHARE * 4 * math.prod(schema.node.attributes["x"].shape)) + slack


def time_epochs(path: Path, strategy: str, workload: Workload, slack: int, epochs: int) -> float:
    """Return the seconds of a batch in the epochs after the first."""
    store = gnnstore.open(path)
    memory = None if strategy == "memory" else memory_of(store, slack)
    loader = gnnstore.NeighborLoader(
        store,
        FANOUTS,
        workload.seeds(),
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=SEED,
        strategy=strategy,
        memory=memory,
    )
    num_batches, began = 0, perf_counter()
    for epoch in range(epochs):
        if epoch == 1:
            began = perf_counter()
        for _ in loader:
            num_batches += epoch > 0
    return (perf_counter() - began) / num_batches


def make_graphs(directory: Path, data: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield the graphs that are trained on, by name, as stores of float32."""
    yield PLANTED, hetero_accuracy.make_store(directory / "planted.gnn", hetero_accuracy.NUM_PAPERS)
    if data is None:
        return
    yield "Cora", from_ogb(data / "cora", directory / "cora.gnn")
    options = ConvertOptions(undirected=True)
    with np.load(data / "facebook" / "facebook.npz") as arrays:
        graph = dict(arrays)
    for name, tail in (("Facebook", 0.0), (HEAVY, TAIL)):
        factors = np.exp(np.random.default_rng(SEED).normal(0, tail, len(graph["x"])))
        own = {**graph, "x": graph["x"] * factors[:, None].astype(np.float32)}
        np.savez(directory / "graph.npz", **own)
        yield name, from_numpy(directory / "graph.npz", directory / f"{name}.gnn", options=options)


def accuracies(
    data: Path | None, epochs: int, num_seeds: int
) -> tuple[dict[str, dict[str, list[float]]], list[str]]:
    """Return test accuracies, in percent, by graph and type; and graphs that need allow_error."""
    found: dict[str, dict[str, list[float]]] = {}
    refused = []
    with tempfile.TemporaryDirectory() as name:
        for graph, path in make_graphs(Path(name), data):
            stores = {"float32": path, "int8": path.with_suffix(".int8.gnn")}
            try:
                quantize(path, stores["int8"])
            except InputError:
                refused.append(graph)
                quantize(path, stores["int8"], allow_error=True)
            found[graph] = {
                dtype: [100 * train(graph, store, epochs, seed) for seed in range(num_seeds)]
                for dtype, store in stores.items()
            }
    return found, refused


def train(graph: str, path: Path, epochs: int, seed: int) -> float:
    """Return the test accuracy in the epoch with the best validation accuracy."""
    if graph == PLANTED:
        ours = hetero_accuracy.accuracies(
            gnnstore.open(path), seed, min(epochs, hetero_accuracy.EPOCHS)
        )
        return ours[hetero_accuracy.OURS]
    words = [str(path), *TRAINING[graph].split(), "--epochs", str(epochs), "--eval-every", "5"]
    arguments = train_sage.parse([*words, "--seed", str(seed)])
    with contextlib.redirect_stdout(io.StringIO()):
        return train_sage.run(arguments).best.test


def main() -> None:
    """Read the options, make the stores, time the rounds, train, and print."""
    options = parser(__doc__)
    options.set_defaults(repeats=1)
    options.add_argument("--workload", choices=sorted(WORKLOADS), default="W", help="(W)")
    options.add_argument("--scale", type=int, help="2^scale nodes instead of the workload's")
    options.add_argument("--epochs", type=int, default=5, help="the first is not timed (5)")
    options.add_argument("--strategies", type=several(), default=[*STRATEGIES, "memory"])
    options.add_argument("--dtypes", type=several(choices=DTYPES), default=DTYPES)
    options.add_argument("--slack", type=int, default=200 * 10**6, help="bytes (200,000,000)")
    options.add_argument("--data", type=Path, help="directory with cora and facebook")
    options.add_argument("--training-epochs", type=int, default=40, help="0: no training (40)")
    options.add_argument("--cache", type=Path, help="directory that keeps the stores")
    arguments = options.parse_args()
    workload = WORKLOADS[arguments.workload]
    num_seeds = SEEDS
    if arguments.quick:
        workload = replace(workload, name=workload.name.lower(), scale=15, seeds_share=0.1)
        arguments.epochs, arguments.training_epochs, num_seeds = 2, 5, 2
    workload = replace(workload, scale=arguments.scale or workload.scale)
    seconds: dict[Case, list[float]] = {}
    with directory_of(arguments) as directory:
        stores = make_stores(directory, workload, arguments.dtypes)
        for _ in range(arguments.repeats):
            for strategy in arguments.strategies:
                for dtype, path in stores.items():
                    took = time_epochs(path, strategy, workload, arguments.slack, arguments.epochs)
                    seconds.setdefault((strategy, dtype), []).append(took)
    middle = {case: median(own) for case, own in seconds.items()}
    rows = [
        (" ".join(case), f"{1000 * took:.1f} ms a batch, {took / middle[case[0], 'float32']:.2f} x")
        for case, took in middle.items()
    ]
    for strategy in arguments.strategies:
        ratio = middle[strategy, "int8"] / middle[strategy, "float32"]
        reached = ratio <= BARS[strategy]
        if strategy == "packed" and (in_memory := middle.get(("memory", "int8"))) is not None:
            reached |= middle[strategy, "int8"] <= IN_MEMORY_BAR * in_memory
        rows.append((f"the bar of {strategy}", "reached" if reached else "MISSED"))
    found: dict[str, dict[str, list[float]]] = {}
    refused: Collection[str] = ()
    if arguments.training_epochs:
        found, refused = accuracies(arguments.data, arguments.training_epochs, num_seeds)
    for graph, by_type in found.items():
        for dtype, own in by_type.items():
            error = stdev(own) / math.sqrt(len(own))
            rows.append((f"{graph}, {dtype}", f"{mean(own):.2f} ± {error:.2f} %"))
        if graph in refused:
            rows.append((f"{graph}, int8", "refused without allow_error"))
        if graph == HEAVY:
            reached = graph in refused
        else:
            reached = abs(mean(by_type["int8"]) - mean(by_type["float32"])) <= POINTS_BAR
        rows.append((f"the bar of {graph}", "reached" if reached else "MISSED"))
    report(
        f"epochs of {workload.name} (2^{workload.scale} nodes) out of core, by the type of x",
        rows,
        as_json=arguments.json,
        seconds={" ".join(case): own for case, own in seconds.items()},
        accuracies=found,
    )


if __name__ == "__main__":
    main()
