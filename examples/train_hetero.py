"""Train a relational GraphSAGE on a graph of several types: PyTorch Geometric's code.

    python examples/train_hetero.py
    python examples/train_hetero.py ogbn-mag.gnn --target paper --epochs 10 --memory 8GB

Takes a store with types, such as `gnnstore convert ogb dataset/ogbn_mag ogbn-mag.gnn --reverse all`
makes; by default papers, authors and institutions with planted classes are made. Node types without
features have a trained vector each. Prints the loss of every epoch, and the accuracy of each split.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Linear, ModuleDict, ModuleList, Parameter, ParameterDict
from torch.nn.functional import cross_entropy
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

import gnnstore
from gnnstore.converters import ConvertOptions, from_planted_types


class RelationalSage(torch.nn.Module):
    """A GraphSAGE layer for each edge type, summed, as in R-GCN; trimmed hop by hop."""

    def __init__(
        self,
        store: gnnstore.GraphStore,
        target: str,
        hidden: int,
        num_layers: int,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.target = target
        widths = {
            name: store[name].features.shape[1] for name in store.node_types if has_x(store, name)
        }
        self.inputs = ModuleDict({name: Linear(width, hidden) for name, width in widths.items()})
        self.others = ParameterDict(
            {
                name: Parameter(torch.zeros(hidden))
                for name in store.node_types
                if name not in widths
            }
        )
        self.layers = ModuleList(
            HeteroConv({kind: SAGEConv(hidden, hidden) for kind in store.edge_types})
            for _ in range(num_layers)
        )
        self.output = Linear(hidden, num_classes)

    def forward(self, batch: HeteroData) -> Tensor:
        """Return the scores of the batch's nodes of the target type."""
        h = {name: layer(batch[name].x.float()).relu() for name, layer in self.inputs.items()}
        h |= {name: row.expand(batch[name].num_nodes, -1) for name, row in self.others.items()}
        edges = batch.edge_index_dict
        for number, layer in enumerate(self.layers):
            h, edges, _ = trim_to_layer(
                number, batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict, h, edges
            )
            h = h | {name: rows.relu() for name, rows in layer(h, edges).items()}
        scores: Tensor = self.output(h[self.target])
        return scores


def has_x(store: gnnstore.GraphStore, node_type: str) -> bool:
    """Whether nodes of a type have features."""
    return "x" in store.schema.node_of(node_type).attributes


def train(
    model: RelationalSage, loader: gnnstore.NeighborLoader, optimizer: torch.optim.Optimizer
) -> float:
    """Train for one epoch and return the mean loss of a seed."""
    model.train()
    total, count = 0.0, 0
    for batch in loader:
        optimizer.zero_grad()
        seeds = batch[model.target].batch_size
        labels = batch[model.target].y[:seeds].reshape(-1).long()
        loss = cross_entropy(model(batch)[:seeds], labels)
        loss.backward()
        optimizer.step()
        total, count = total + loss.item() * seeds, count + seeds
    return total / max(1, count)


@torch.no_grad()
def accuracy(model: RelationalSage, loader: gnnstore.NeighborLoader) -> float:
    """Return the share of seeds that get their label."""
    model.eval()
    right = count = 0
    for batch in loader:
        seeds = batch[model.target].batch_size
        labels = batch[model.target].y[:seeds].reshape(-1)
        right += int((model(batch)[:seeds].argmax(dim=-1) == labels).sum())
        count += seeds
    return right / max(1, count)


def numbers(text: str) -> list[int]:
    """Return the numbers in a text such as "15,10,5"."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Train, and print losses and accuracies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", nargs="?", type=Path, help="default: a generated graph")
    parser.add_argument("--target", default="paper", help="node type whose labels are learned")
    parser.add_argument("--papers", type=int, default=3000, help="of the generated graph")
    parser.add_argument(
        "--fanouts", type=numbers, default=[8, 4], metavar="N,N,...", help="of every edge type"
    )
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--memory", help="budget of the loaders, such as 8GB")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="gnnstore-") as scratch:
        path = arguments.store
        if path is None:
            options = ConvertOptions(reverse=("all",))
            path = Path(scratch, "planted.gnn")
            from_planted_types(
                path, num_papers=arguments.papers, seed=arguments.seed, options=options
            )
        store, target = gnnstore.open(path), arguments.target
        num_classes = int(store[target].labels.max()) + 1
        loaders = {
            split: gnnstore.NeighborLoader(
                store,
                arguments.fanouts,
                (target, split),
                batch_size=arguments.batch_size,
                shuffle=split == "train",
                seed=arguments.seed,
                strategy=arguments.strategy,
                memory=arguments.memory,
            )
            for split in ("train", "valid", "test")
        }
        model = RelationalSage(store, target, arguments.hidden, len(arguments.fanouts), num_classes)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(arguments.epochs):
            print(f"epoch {epoch}: loss {train(model, loaders['train'], optimizer):.4f}")
        print(f"finished {arguments.epochs} epochs")
        for split, loader in loaders.items():
            print(f"{split}: accuracy {accuracy(model, loader):.4f}")


if __name__ == "__main__":
    main()
