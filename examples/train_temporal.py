"""Train on what was known at the time, and test on what came later: PyTorch Geometric's code.

    python examples/train_temporal.py
    python examples/train_temporal.py --weighted --memory 100MB

Makes papers with planted classes and years. A paper's batch has only papers that are not newer than
it, the latest of them first (`temporal_strategy="last"`), so that nothing of the future leaks into
training. With `--weighted`, neighbours are chosen in proportion to the edges' weights instead.
Papers are trained on up to a year, and tested on those after it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import cross_entropy
from torch_geometric.data import HeteroData
from torch_geometric.nn import SAGEConv

import gnnstore
from gnnstore.converters import ConvertOptions, from_planted_types

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


class Net(torch.nn.Module):
    """Two layers over the papers that a paper cites, and their authors."""

    def __init__(self, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.cited = SAGEConv((-1, -1), hidden)
        self.written = SAGEConv((-1, -1), hidden)
        self.second = SAGEConv(hidden, hidden)
        self.output = Linear(hidden, num_classes)

    def forward(self, batch: HeteroData) -> Tensor:
        """Return the scores of the batch's papers."""
        x, edges = batch.x_dict, batch.edge_index_dict
        papers = self.cited(x["paper"], edges[CITES])
        papers = papers + self.written((x["author"], x["paper"]), edges[WRITES])
        papers = self.second(papers.relu(), edges[CITES])
        scores: Tensor = self.output(papers.relu())
        return scores


def main() -> None:
    """Train, and print losses and the accuracy on later papers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--papers", type=int, default=3000)
    parser.add_argument("--weighted", action="store_true", help="choose by weight, not by time")
    parser.add_argument("--window", type=int, help="seconds before a paper that it may see")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--memory", help="budget of the loaders, such as 8GB")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="gnnstore-") as scratch:
        path = Path(scratch, "planted.gnn")
        options = ConvertOptions(time_attr=("time",), weight_attr=("weight",))
        from_planted_types(path, num_papers=arguments.papers, seed=arguments.seed, options=options)
        store = gnnstore.open(path)
        times = store["paper"].time[:]
        order = times.argsort()
        cut = int(0.7 * len(order))
        how: dict[str, Any] = {"weight_attr": "weight"}
        if not arguments.weighted:
            how = {
                "time_attr": "time",
                "temporal_strategy": "last",
                "time_window": arguments.window,
            }
        loaders = [
            gnnstore.NeighborLoader(
                store,
                [8, 4],
                ("paper", papers),
                batch_size=arguments.batch_size,
                shuffle=True,
                seed=arguments.seed,
                memory=arguments.memory,
                **how,
            )
            for papers in (order[:cut], order[cut:])
        ]
        model = Net(32, int(store["paper"].labels.max()) + 1)
        optimizer = None
        for epoch in range(arguments.epochs):
            total = 0.0
            for batch in loaders[0]:
                seeds = batch["paper"].batch_size
                loss = cross_entropy(model(batch)[:seeds], batch["paper"].y[:seeds])
                optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.01)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * seeds
            print(f"epoch {epoch}: loss {total / cut:.4f}")
        right = 0
        with torch.no_grad():
            for batch in loaders[1]:
                seeds = batch["paper"].batch_size
                guessed = model(batch)[:seeds].argmax(dim=-1)
                right += int((guessed == batch["paper"].y[:seeds]).sum())
        print(f"finished {arguments.epochs} epochs")
        print(f"papers from {int(times[order[cut]])} on: accuracy {right / (len(order) - cut):.4f}")


if __name__ == "__main__":
    main()
