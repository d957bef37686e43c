"""Train GraphSAGE to predict edges, with a dot product of embeddings: PyTorch Geometric's code.

    python examples/train_links.py
    python examples/train_links.py pages.npz --epochs 10

Takes arrays in a .npz file, `edge_index` [2, E] (each undirected edge once) and `x`, which it
converts; by default a small graph with planted communities is made. A tenth of the edges is held
out for validation and another tenth for the test. Prints the loss of every epoch and the mean
reciprocal rank (MRR) among fixed negatives.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.nn import GraphSAGE

import gnnstore
from gnnstore.converters import ConvertOptions, from_numpy, from_rmat
from gnnstore.evaluation import hits_at, mrr, ranks_among


def convert(graph: Path | None, path: Path, seed: int) -> gnnstore.GraphStore:
    """Return a store of a tenth of the edges to validate with, and a tenth to test."""
    options = ConvertOptions(undirected=True, edge_split=(0.8, 0.1, 0.1), edge_split_seed=seed)
    if graph is None:
        from_rmat(path, scale=10, feature_dim=16, num_communities=8, seed=seed, options=options)
    else:
        from_numpy(graph, path, options=options)
    return gnnstore.open(path)


def train(
    model: GraphSAGE, loader: gnnstore.LinkNeighborLoader, optimizer: torch.optim.Optimizer
) -> float:
    """Train for one epoch and return the mean loss of a batch."""
    model.train()
    losses = []
    for batch in loader:
        optimizer.zero_grad()
        h = model(batch.x, batch.edge_index)
        source, target = batch.edge_label_index
        score = (h[source] * h[target]).sum(dim=-1)
        loss = binary_cross_entropy_with_logits(score, batch.edge_label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def evaluate(
    model: GraphSAGE, store: gnnstore.GraphStore, split: str, arguments: argparse.Namespace
) -> Tensor:
    """Return the rank of the target of each edge of a split among fixed negatives."""
    h = gnnstore.inference(model, store)
    assert isinstance(h, Tensor)
    source, target = store.edge_splits[split].edge_index
    generator = torch.Generator().manual_seed(arguments.seed)  # the same each time
    nodes = torch.randint(store.num_nodes, (arguments.negatives, len(source)), generator=generator)
    positive = (h[source] * h[target]).sum(dim=-1)
    negative = torch.stack([(h[source] * h[others]).sum(dim=-1) for others in nodes], dim=1)
    return ranks_among(positive, negative)


def run(arguments: argparse.Namespace) -> float:
    """Train and evaluate as the command line says; return the MRR of the test edges."""
    torch.manual_seed(arguments.seed)
    with tempfile.TemporaryDirectory() as directory:
        store = convert(arguments.graph, Path(directory) / "links.gnn", arguments.seed)
        loader = gnnstore.LinkNeighborLoader(
            store,
            arguments.fanouts,
            "train",
            neg_sampling="binary",
            exclude_edges="reverse",  # what is to be predicted must not be seen
            batch_size=arguments.batch_size,
            shuffle=True,
            memory=arguments.memory,
            seed=arguments.seed,
        )
        model = GraphSAGE(store.num_features, arguments.hidden, len(arguments.fanouts))
        optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
        print(f"{store}\n{loader.stats().reason}", flush=True)
        for epoch in range(1, arguments.epochs + 1):
            loss = train(model, loader, optimizer)
            valid = mrr(evaluate(model, store, "valid", arguments))
            print(f"epoch {epoch:3d}  loss {loss:.4f}  valid MRR {valid:.4f}", flush=True)
        ranks = evaluate(model, store, "test", arguments)
        constant = 1 / (1 + arguments.negatives / 2)
        print(f"test MRR {mrr(ranks):.4f}, Hits@10 {hits_at(ranks, 10):.2%} among", end=" ")
        print(f"{arguments.negatives} negatives; a model that learns nothing: {constant:.4f}")
        return mrr(ranks)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("graph", type=Path, nargs="?", help="a .npz file; by default a demo graph")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 10])
    parser.add_argument("--hidden", type=int, default=64, help="width of the embeddings")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--negatives", type=int, default=100, help="for each edge of evaluation")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--memory", help="budget, such as 8GB; by default what is available")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run(parse())
