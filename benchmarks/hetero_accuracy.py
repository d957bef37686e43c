"""Accuracy on a graph of several types: trained from the loader, and on the whole graph by PyG.

Papers, authors and institutions with planted classes, each edge type with its reverse; the model is
the one of `examples/train_hetero.py`, a GraphSAGE layer for each edge type, summed. It is trained
on batches with fan-outs, whose features are read from disk under "belady", and for as many steps on
the whole graph, which PyG holds as `HeteroData`. Both are evaluated by PyG on the whole graph after
every epoch; the result of a seed is the test accuracy after the epoch with the best validation. The
bar is that the means over the seeds differ by at most two standard errors of their difference.

Run `python -m benchmarks.hetero_accuracy`; it takes a minute.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, variance
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import HeteroData

import gnnstore
from benchmarks.harness import parser, report
from examples.train_hetero import RelationalSage
from gnnstore.converters import ConvertOptions, from_planted_types

TARGET, FANOUTS, BATCH_SIZE, HIDDEN, LEARNING_RATE = "paper", (10, 5), 128, 32, 0.01
OURS, THEIRS = "gnnstore", "PyG, whole graph"
NUM_PAPERS, EPOCHS, SEEDS, BAR = 2000, 20, 5, 2.0


def make_store(path: Path, num_papers: int) -> Path:
    """Generate the graph, noisy enough that neither way gets everything right."""
    return from_planted_types(
        path,
        num_papers=num_papers,
        feature_dim=32,
        author_dim=16,
        degree=4,
        homophily=0.5,
        feature_noise=1.0,
        options=ConvertOptions(reverse=("all",)),
    )


def whole_graph(store: gnnstore.GraphStore) -> HeteroData:
    """Return the graph as one batch of which no hop is trimmed."""
    data = store.to_pyg()
    for node_type in data.node_types:
        data[node_type].num_sampled_nodes = [data[node_type].num_nodes, 0, 0]
    for edge_type in data.edge_types:
        data[edge_type].num_sampled_edges = [data[edge_type].num_edges, 0]
    return data


def accuracies(store: gnnstore.GraphStore, seed: int, epochs: int) -> dict[str, float]:
    """Train in both ways from one initialization, and return the test accuracies."""
    data, splits = whole_graph(store), store[TARGET].splits
    labels = data[TARGET].y
    num_classes = int(labels.max()) + 1
    loader = gnnstore.NeighborLoader(
        gnnstore.open(store.path),
        FANOUTS,
        (TARGET, "train"),
        batch_size=BATCH_SIZE,
        shuffle=True,
        seed=seed,
        strategy="belady",
        cache_bytes="50kB",
        num_threads=1,
    )

    def batches(name: str) -> Iterator[tuple[HeteroData, Any]]:
        """Yield the batches of an epoch, and where their seeds are."""
        if name == OURS:
            yield from ((batch, slice(batch[TARGET].batch_size)) for batch in loader)
        else:
            yield from ((data, splits["train"]) for _ in range(len(loader)))

    found = {}
    for name in (OURS, THEIRS):
        torch.manual_seed(seed)
        model = RelationalSage(store, TARGET, HIDDEN, len(FANOUTS), num_classes)
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, weight_decay=5e-4)
        best = (0.0, 0.0)
        for _ in range(epochs):
            model.train()
            for batch, seeds in batches(name):
                optimizer.zero_grad()
                cross_entropy(model(batch)[seeds], batch[TARGET].y[seeds]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                right = (model(data).argmax(dim=-1) == labels).float()
            valid, test = (float(right[splits[of]].mean()) for of in ("valid", "test"))
            best = max(best, (valid, test))
        found[name] = best[1]
    return found


def compare(path: Path, seeds: int, epochs: int) -> dict[str, Any]:
    """Return the accuracies of both ways, and how many standard errors their means differ by."""
    store = gnnstore.open(path)
    runs = [accuracies(store, seed, epochs) for seed in range(seeds)]
    found = {name: [run[name] for run in runs] for name in runs[0]}
    ours, theirs = found.values()
    error = math.sqrt((variance(ours) + variance(theirs)) / seeds)
    difference = mean(ours) - mean(theirs)
    return {"accuracies": found, "difference": difference, "standard_errors": difference / error}


def main() -> None:
    """Read the options and run."""
    options = parser(__doc__)
    options.add_argument("--papers", type=int, default=NUM_PAPERS, help=f"({NUM_PAPERS})")
    options.add_argument("--epochs", type=int, default=EPOCHS, help=f"({EPOCHS})")
    options.add_argument("--seeds", type=int, default=SEEDS, help=f"({SEEDS})")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.papers, arguments.epochs, arguments.seeds = 600, 20, 3
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-") as directory:
        path = make_store(Path(directory, "planted-types.gnn"), arguments.papers)
        found = compare(path, arguments.seeds, arguments.epochs)
    rows = [
        (name, f"{mean(values):.2%} [{min(values):.2%}, {max(values):.2%}]")
        for name, values in found["accuracies"].items()
    ]
    apart = found["standard_errors"]
    bar = f"the bar of {BAR:g}: {'reached' if abs(apart) <= BAR else 'MISSED'}"
    rows.append(("difference", f"{found['difference']:+.2%}, {apart:+.2f} standard errors, {bar}"))
    report("accuracy on a graph of several types", rows, as_json=arguments.json, **found)


if __name__ == "__main__":
    main()
