"""Trains GraphSAGE for whole epochs in the process that it is started in, under a memory limit.

`benchmarks.epoch` starts this with a `Task`; it prints one JSON object. The limit is the one of
`gnnstore bench load`, plus the memory of a step of the model, which one step measures beforehand.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import gnnstore
from benchmarks.parts.strategies import WAYS
from gnnstore.errors import GnnstoreError
from gnnstore.nn import trim
from gnnstore.progress import peak_rss_bytes
from gnnstore.tools.bench.harness import Task, drop_from_cache
from gnnstore.tools.bench.worker import Run

LEARNING_RATE = 0.01
# First batches of the epoch, timed apart: the wait of a user who tries a loader.
TRIED = 40
# Factor on a step's memory, for a batch that is larger than the one before the limit.
_STEP_MARGIN = 1.3


@dataclass(frozen=True)
class Epoch:
    """Times of an epoch, in seconds.

    Attributes
    ----------
    seconds : float
        From the loop's start to its end.
    first, tried : float
        Until the first batch came, and until the first 40 were done.
    waiting : float
        While the consumer had no batch.
    """

    seconds: float
    first: float
    tried: float
    waiting: float


class Training:
    """A model of three layers, its optimizer, and a loop over batches."""

    def __init__(self, num_features: int, num_classes: int, hidden: int, depth: int) -> None:
        torch.manual_seed(0)
        self.model = GraphSAGE(num_features, hidden, num_layers=depth, out_channels=num_classes)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)

    def scores(self, batch: Any) -> torch.Tensor:
        """Return the classes' scores of the seeds; layers take the nodes that they need only."""
        if "adj_t" in batch:
            return self._scores_by_csr(batch)[: batch.batch_size]
        found: torch.Tensor = self.model(
            batch.x,
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )
        return found[: batch.batch_size]

    def _scores_by_csr(self, batch: Any) -> torch.Tensor:
        x, adj_t, layers = batch.x, batch.adj_t, self.model.convs
        hops = (batch.num_sampled_nodes, batch.num_sampled_edges)
        for i, layer in enumerate(layers):
            x, adj_t, _ = trim(i, *hops, x, adj_t, pairs=True)
            x = layer(x, adj_t)
            if i + 1 < len(layers):
                x = x.relu()
        found: torch.Tensor = x
        return found

    def step(self, batch: Any) -> None:
        """Take a step of the optimizer."""
        self.optimizer.zero_grad()
        cross_entropy(self.scores(batch), batch.y[: batch.batch_size].long()).backward()
        self.optimizer.step()

    def epoch(self, loader: Any, *, trains: bool) -> Epoch:
        """Go through an epoch, training or only loading."""
        self.model.train()
        before, marks, start = loader.stats(), [], perf_counter()
        first = 0.0
        for batch in loader:
            first = first or perf_counter() - start
            if trains:
                self.step(batch)
            marks.append(perf_counter() - start)
        waiting = loader.stats().since(before).seconds_waiting
        return Epoch(marks[-1], first, marks[:TRIED][-1], waiting)

    @torch.no_grad()
    def accuracy(self, loader: Any) -> float:
        """Return the share of seeds whose class is found."""
        self.model.eval()
        right = [self.scores(batch).argmax(1) == batch.y[: batch.batch_size] for batch in loader]
        return float(torch.cat(right).float().mean())


def train(
    task: Task, hidden: int, tests: str, num_epochs: int, edge_format: str = "coo"
) -> dict[str, Any]:
    """Train for some epochs, load for one more, and test.

    Raises
    ------
    GnnstoreError
        As the loader, such as for a budget that is too small.
    """
    run, way = Run(task), WAYS[task.strategy]
    store, depth = run.store, len(task.fanouts)
    num_classes = int(store.labels.max()) + 1
    training = Training(store.features.shape[1], num_classes, hidden, depth)
    before = peak_rss_bytes()
    training.step(next(iter(run.loader(strategy="mmap", edge_format=edge_format))))
    step_bytes = int(_STEP_MARGIN * (peak_rss_bytes() - before))
    options: dict[str, Any] = {"strategy": way.strategy, "edge_format": edge_format}
    if way.is_limited:
        options["memory"] = run.memory_bytes
        drop_from_cache([Path(task.store)])
        if (group := task.memory_group) is not None:
            group.limit(group.held_bytes() + run.room_bytes + step_bytes)
    start = perf_counter()
    loader = run.loader(**options)
    made = perf_counter() - start
    epochs = [training.epoch(loader, trains=True) for _ in range(num_epochs)]
    alone = training.epoch(loader, trains=False)
    test = gnnstore.NeighborLoader(
        store,
        list(task.fanouts),
        np.load(tests),
        batch_size=task.batch_size,
        seed=task.seed,
        **({"topology": "memory"} | options),
    )
    return {
        "seconds_to_make": made,
        "epochs": [asdict(epoch) for epoch in epochs],
        "alone": asdict(alone),
        "accuracy": training.accuracy(test),
        "reason": loader.stats().reason,
    }


def main() -> None:
    """Train as the arguments say, and print what it took."""
    task, given = Task.of_json(sys.argv[1]), json.loads(sys.argv[2])
    try:
        answer = train(task, **given)
    except (GnnstoreError, MemoryError, OSError) as error:
        answer = {"problem": str(error) or type(error).__name__}
    print()
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
