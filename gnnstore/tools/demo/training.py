"""Trains and tests two models on a store: one that uses the graph, and one that does not.

The GraphSAGE loop is the one that a user would write: a PyG model, a torch optimizer, and
`gnnstore.NeighborLoader` in place of PyG's loader.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from gnnstore.graph.store import GraphStore
from gnnstore.loaders.node import NeighborLoader
from gnnstore.pipeline.stats import LoaderStats
from gnnstore.progress import Progress

HIDDEN = 64
FANOUTS = [10, 5]
BATCH_SIZE = 256
LEARNING_RATE = 0.01
# The features stay on disk: the store is read as one larger than memory would be.
STRATEGY = "mmap"


class GraphSage(torch.nn.Module):
    """Two GraphSAGE layers: a node's class from its own features and its neighbours'."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.first = SAGEConv(num_features, HIDDEN)
        self.second = SAGEConv(HIDDEN, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return scores [n, classes] for features [n, F] and a sampled subgraph [2, m]."""
        return self.second(self.first(x, edge_index).relu(), edge_index)  # type: ignore[no-any-return]


class Mlp(torch.nn.Module):
    """A perceptron of the same size: a node's class from its own features alone."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(num_features, HIDDEN)
        self.second = torch.nn.Linear(HIDDEN, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [n, classes] for features [n, F]."""
        return self.second(self.first(x).relu())  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Outcome:
    """Result of training one model."""

    model: str
    test_accuracy: float  # share of test nodes that are classified correctly, 0 to 1
    seconds: float  # training and testing together
    # Statistics of the training loader; None for a model without one.
    stats: LoaderStats | None = None


def train_sage(
    store: GraphStore,
    *,
    name: str,
    epochs: int,
    seed: int,
    progress: Progress,
    transform: Callable[[Data], Data] | None = None,
) -> Outcome:
    """Train GraphSAGE out of core and test it."""
    started = time.perf_counter()
    torch.manual_seed(seed)

    def loader(split: str, *, shuffle: bool) -> NeighborLoader:
        return NeighborLoader(
            store,
            FANOUTS,
            input_nodes=split,
            batch_size=BATCH_SIZE,
            shuffle=shuffle,
            transform=transform,
            strategy=STRATEGY,
            seed=seed,
        )

    model = GraphSage(store.features.shape[1], num_classes(store))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    train, test = loader("train", shuffle=True), loader("test", shuffle=False)
    with progress.phase(f"train {name}", epochs * len(train) + len(test), "batches") as phase:
        model.train()
        for _ in range(epochs):
            for batch in train:
                optimizer.zero_grad()
                scores = model(batch.x, batch.edge_index)[: batch.batch_size]
                cross_entropy(scores, batch.y[: batch.batch_size]).backward()
                optimizer.step()
                phase.advance()
        model.eval()
        correct = 0
        with torch.no_grad():
            for batch in test:
                scores = model(batch.x, batch.edge_index)[: batch.batch_size]
                correct += int((scores.argmax(1) == batch.y[: batch.batch_size]).sum())
                phase.advance()
    accuracy = correct / max(1, len(store.splits["test"]))
    return Outcome(name, accuracy, time.perf_counter() - started, train.stats())


def train_mlp(
    store: GraphStore, *, name: str, epochs: int, seed: int, progress: Progress
) -> Outcome:
    """Train the model that does not use the graph, on the same features and nodes."""
    started = time.perf_counter()
    torch.manual_seed(seed)
    labels = torch.from_numpy(store.labels)
    train, test = (torch.from_numpy(store.splits[split]) for split in ("train", "test"))
    model = Mlp(store.features.shape[1], num_classes(store))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    with progress.phase(f"train {name}", epochs, "epochs") as phase:
        for _ in range(epochs):
            for ids in train[torch.randperm(len(train))].split(BATCH_SIZE):
                optimizer.zero_grad()
                cross_entropy(model(store.features.tensor(ids)), labels[ids]).backward()
                optimizer.step()
            phase.advance()
    correct = 0
    with torch.no_grad():
        for ids in test.split(4096):
            scores = model(store.features.tensor(ids))
            correct += int((scores.argmax(1) == labels[ids]).sum())
    accuracy = correct / max(1, len(test))
    return Outcome(name, accuracy, time.perf_counter() - started)


def shuffled_features(store: GraphStore, seed: int) -> Callable[[Data], Data]:
    """Return a transform that gives every node the features of another, always the same one.

    A model that still scores well under it learns from something other than the features: the
    control that tells a working loader from one that delivers rows of the wrong nodes.
    """
    other = torch.from_numpy(np.random.default_rng(seed).permutation(store.num_nodes))

    def shuffle(batch: Data) -> Data:
        batch.x = store.features.tensor(other[batch.n_id])
        return batch

    return shuffle


def num_classes(store: GraphStore) -> int:
    """Return the number of classes: labels count from 0."""
    return int(store.labels.max()) + 1
