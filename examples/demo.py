"""From nothing to a trained model in about a minute: make a graph, convert it and train on it.

    python examples/demo.py
    python examples/demo.py --dir /data/demo --scale 20

Makes a random graph of 2^SCALE nodes with planted communities, and trains three models on it:
GraphSAGE through `gnnstore.NeighborLoader` with the features on disk, a network that does not use
the graph, and GraphSAGE on features that were shuffled among the nodes. The first should be far
more accurate than the others. Prints the accuracies, sizes, memory and seconds.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import gnnstore
from gnnstore.units import format_size

HIDDEN = 64
BATCH_SIZE = 256
LEARNING_RATE = 0.01
NEXT = """Now with your own graph:
  gnnstore convert numpy graph.npz graph.gnn   # or: snap, ogb, table, ... (gnnstore convert --help)
  python examples/train_sage.py graph.gnn --fanouts 10,10
A PyG Data object needs no files: gnnstore.converters.from_pyg(data, "graph.gnn")"""


class GraphSAGE(torch.nn.Module):
    """A node's class from its own features and its neighbours'."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.first = SAGEConv(num_features, HIDDEN)
        self.second = SAGEConv(HIDDEN, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return scores [n, classes] for features [n, F] and a sampled subgraph [2, m]."""
        scores: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return scores


class MLP(torch.nn.Module):
    """A node's class from its own features alone."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(num_features, HIDDEN)
        self.second = torch.nn.Linear(HIDDEN, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # noqa: ARG002
        """Return scores [n, classes] for features [n, F]."""
        scores: Tensor = self.second(self.first(x).relu())
        return scores


def anonymous_bytes() -> int:
    """Return the memory of this process that belongs to no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def train_and_test(
    model: torch.nn.Module,
    store: gnnstore.GraphStore,
    arguments: argparse.Namespace,
    transform: Callable[[Data], Data] | None = None,
) -> tuple[float, int, gnnstore.NeighborLoader]:
    """Return the accuracy on test nodes, the peak of anonymous memory, and the training loader."""
    train, test = (
        gnnstore.NeighborLoader(
            store,
            [10, 5],
            input_nodes=split,
            batch_size=BATCH_SIZE,
            shuffle=split == "train",
            transform=transform,
            strategy="mmap",  # the features stay on disk, as a larger store's would
            seed=arguments.seed,
        )
        for split in ("train", "test")
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    peak = 0
    for _ in range(arguments.epochs):
        for batch in train:
            optimizer.zero_grad()
            scores = model(batch.x, batch.edge_index)[: batch.batch_size]
            cross_entropy(scores, batch.y[: batch.batch_size]).backward()
            optimizer.step()
            peak = max(peak, anonymous_bytes())
    right = 0
    with torch.no_grad():
        for batch in test:
            scores = model(batch.x, batch.edge_index)[: batch.batch_size]
            right += int((scores.argmax(1) == batch.y[: batch.batch_size]).sum())
    return right / max(1, len(store.splits["test"])), peak, train


def shuffled_features(store: gnnstore.GraphStore, seed: int) -> Callable[[Data], Data]:
    """Return a transform that gives every node the features of another, always the same one.

    A model that still scores well learns from something other than the features: this control
    separates a working loader from one that delivers rows of the wrong nodes.
    """
    other = torch.randperm(store.num_nodes, generator=torch.Generator().manual_seed(seed))

    def shuffle(batch: Data) -> Data:
        batch.x = store.features.tensor(other[batch.n_id])
        return batch

    return shuffle


def convert(path: Path, scale: int, seed: int) -> None:
    """Make a random graph with few labelled nodes, as in real data sets; print what was written."""
    words = ["convert", "rmat", str(path), "--scale", str(scale), "--seed", str(seed)]
    words += ["--feature-dim", "128", "--split-fractions", "0.025,0.025,0.05"]
    words += ["--undirected", "--overwrite"]
    print(f"$ gnnstore {shlex.join(words)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "gnnstore", *words], check=False)  # noqa: S603
    if done.returncode:
        sys.exit(done.returncode)


def run(arguments: argparse.Namespace) -> dict[str, float]:
    """Make the store, train and test; return the accuracies by model."""
    arguments.dir.mkdir(parents=True, exist_ok=True)
    path = arguments.dir / "demo.gnn"
    convert(path, arguments.scale, arguments.seed)
    store = gnnstore.open(path)
    shuffled = shuffled_features(store, arguments.seed)
    print("\nAccuracy on test nodes", flush=True)
    accuracies: dict[str, float] = {}
    remarks = []
    for name, sees, kind, transform in (
        ("GraphSAGE", "graph and features", GraphSAGE, None),
        ("MLP", "features only", MLP, None),
        ("GraphSAGE, shuffled", "graph, and the features of other nodes", GraphSAGE, shuffled),
    ):
        torch.manual_seed(arguments.seed)
        before, started = anonymous_bytes(), time.perf_counter()
        model = kind(store.features.shape[1], int(store.labels.max()) + 1)
        accuracies[name], peak, loader = train_and_test(model, store, arguments, transform)
        seconds = time.perf_counter() - started
        print(f"  {name:<20} {accuracies[name]:6.1%}  {seconds:7.1f} s  {sees}", flush=True)
        remarks.append(
            f"{format_size(peak - before)} of memory for topology, batches and model (before that, "
            f"Python and torch: {format_size(before)}), and waited "
            f"{loader.stats().seconds_waiting:.1f} s for its batches."
        )
    print(
        f"\nGraphSAGE took {remarks[0]}\n"
        f"{format_size(store.features.spec.num_bytes)} of features stayed on disk.\n\n{NEXT}"
    )
    return accuracies


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dir", type=Path, default=Path("gnnstore-demo"), help="of the store")
    parser.add_argument("--scale", type=int, default=18, help="2^SCALE nodes (18)")
    parser.add_argument("--epochs", type=int, default=3, help="to train each model (3)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run(parse())
