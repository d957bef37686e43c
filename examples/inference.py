"""Train GraphSAGE on sampled neighbourhoods, then evaluate it on whole ones, all nodes at once.

    gnnstore convert ogb path/to/ogbn_products products.gnn --undirected
    python examples/inference.py products.gnn --output scores.gnn --memory 4GB

Prints the loss of every epoch, and the accuracy of all splits after one pass over the graph for
each layer. A run that was interrupted during inference continues with --resume and --model.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch_geometric.nn.models import GraphSAGE

import gnnstore
from gnnstore.progress import NullProgress


class Printed(NullProgress):
    """Prints what inference says of each layer."""

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        """Print a line."""
        print(text, flush=True)


def train(model: GraphSAGE, store: gnnstore.GraphStore, arguments: argparse.Namespace) -> None:
    """Train on sampled neighbourhoods."""
    loader = gnnstore.NeighborLoader(
        store,
        [arguments.fanout] * arguments.layers,
        input_nodes="train",
        batch_size=arguments.batch_size,
        shuffle=True,
        memory=arguments.memory,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    model.train()
    for epoch in range(1, arguments.epochs + 1):
        total = num_seeds = 0.0
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size].view(-1).long())
            loss.backward()
            optimizer.step()
            total += loss.item() * batch.batch_size
            num_seeds += batch.batch_size
        print(f"epoch {epoch}: loss {total / max(1, num_seeds):.4f}", flush=True)


def run(arguments: argparse.Namespace) -> dict[str, float]:
    """Train unless there is a model, run it over all nodes, and return accuracies by split."""
    torch.manual_seed(arguments.seed)
    store = gnnstore.open(arguments.store)
    num_classes = int(store.labels[store.splits["train"]].max()) + 1
    model = GraphSAGE(
        store.features.shape[1], arguments.hidden, arguments.layers, num_classes, dropout=0.5
    )
    if arguments.model is not None and arguments.model.exists():
        model.load_state_dict(torch.load(arguments.model, weights_only=True))
    else:
        train(model, store, arguments)
        if arguments.model is not None:
            torch.save(model.state_dict(), arguments.model)
    scores: Any = gnnstore.inference(
        model,
        store,
        arguments.output,
        memory=arguments.memory,
        resume=arguments.resume,
        overwrite=not arguments.resume,
        progress=Printed(),
    )
    labels = store.labels.view(-1)
    accuracies = {}
    for split, nodes in store.splits.items():
        right = scores.tensor(nodes).argmax(dim=-1) == labels[nodes]
        accuracies[split] = float(right.float().mean())
        print(f"{split}: {accuracies[split]:.2%} of {len(nodes)} nodes", flush=True)
    print(f"finished; the scores of all nodes are in {arguments.output}")
    return accuracies


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", help="a store, as gnnstore convert makes it")
    parser.add_argument("--output", default="scores.gnn", help="directory for all nodes' scores")
    parser.add_argument("--model", type=Path, help="weights to load, or to save after training")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted inference")
    parser.add_argument("--memory", help="budget, such as 8GB; by default what is available")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--fanout", type=int, default=10, help="neighbours to sample per hop")
    parser.add_argument("--hidden", type=int, default=128, help="width of hidden layers")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run(parse())
