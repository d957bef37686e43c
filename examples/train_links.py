"""Train GraphSAGE to predict edges, with a dot product of embeddings: PyTorch Geometric's code.

    python examples/train_links.py
    python examples/train_links.py pages.npz --epochs 10
    python examples/train_links.py friends.txt.gz --learned 64

Takes arrays in a .npz file, `edge_index` [2, E] (each undirected edge once) and `x`, or a text edge
list, which it converts; by default a small graph with planted communities is made. With
`--learned`, nodes have trainable embeddings instead of features. A tenth of the edges is
held out for validation and another tenth for the test. Prints the loss of every epoch and the mean
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
from gnnstore.converters import ConvertOptions, from_numpy, from_rmat, from_snap, split_edges
from gnnstore.evaluation import hits_at, mrr, ranks_among


def convert(graph: Path | None, path: Path, seed: int) -> gnnstore.GraphStore:
    """Return a store of a tenth of the edges to validate with, and a tenth to test."""
    options = ConvertOptions(undirected=True)
    whole = path.with_name(f"whole-{path.name}")
    if graph is None:
        from_rmat(whole, scale=10, feature_dim=16, num_communities=8, seed=seed, options=options)
    else:
        (from_numpy if graph.suffix == ".npz" else from_snap)(graph, whole, options=options)
    return gnnstore.open(split_edges(whole, path, (0.8, 0.1, 0.1), seed=seed))


def train(
    model: GraphSAGE,
    table: gnnstore.EmbeddingTable | None,
    loader: gnnstore.LinkNeighborLoader,
    optimizers: Sequence[torch.optim.Optimizer],
) -> float:
    """Train for one epoch and return the mean loss of a batch."""
    model.train()
    losses = []
    for batch in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        h = model(batch.x if table is None else table(batch.n_id), batch.edge_index)
        source, target = batch.edge_label_index
        score = (h[source] * h[target]).sum(dim=-1)
        loss = binary_cross_entropy_with_logits(score, batch.edge_label)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def embed(
    model: GraphSAGE, table: gnnstore.EmbeddingTable | None, store: gnnstore.GraphStore
) -> Tensor:
    """Return what the model makes of all nodes."""
    if table is None:
        h = gnnstore.inference(model, store)
        assert isinstance(h, Tensor)
        return h
    model.eval()
    out: Tensor = model(table[:], store.to_pyg().edge_index)  # the whole graph, in memory
    return out


def evaluate(
    h: Tensor, store: gnnstore.GraphStore, split: str, arguments: argparse.Namespace
) -> Tensor:
    """Return the rank of the target of each edge of a split among fixed negatives."""
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
        table, width = None, arguments.learned or store.num_features
        model = GraphSAGE(width, arguments.hidden, len(arguments.fanouts))
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(model.parameters(), lr=arguments.lr)
        ]
        if arguments.learned:
            path = Path(directory) / "nodes.emb"
            table = gnnstore.EmbeddingTable.create(
                path, store, dim=width, optimizer="sparse_adam", seed=arguments.seed
            )
            optimizers.append(gnnstore.SparseAdam(table, lr=arguments.lr))
        print(f"{store}\n{loader.stats().reason}", flush=True)
        for epoch in range(1, arguments.epochs + 1):
            loss = train(model, table, loader, optimizers)
            valid = mrr(evaluate(embed(model, table, store), store, "valid", arguments))
            print(f"epoch {epoch:3d}  loss {loss:.4f}  valid MRR {valid:.4f}", flush=True)
        ranks = evaluate(embed(model, table, store), store, "test", arguments)
        if table is not None:
            table.close()
        constant = 1 / (1 + arguments.negatives / 2)
        print(f"finished {arguments.epochs} epochs: test MRR {mrr(ranks):.4f}, ", end="")
        print(f"Hits@10 {hits_at(ranks, 10):.2%} among", end=" ")
        print(f"{arguments.negatives} negatives; a model that learns nothing: {constant:.4f}")
        return mrr(ranks)


def numbers(text: str) -> list[int]:
    """Return the numbers in a text such as "15,10,5"."""
    return [int(part) for part in text.split(",")]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("graph", type=Path, nargs="?", help="a .npz file or a text edge list")
    parser.add_argument("--fanouts", type=numbers, default=[10, 10], metavar="N,N,...")
    parser.add_argument("--hidden", type=int, default=64, help="width of the embeddings")
    parser.add_argument("--learned", type=int, metavar="DIM", help="learn embeddings of nodes")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--negatives", type=int, default=100, help="for each edge of evaluation")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--memory", help="budget, such as 8GB; by default what is available")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run(parse())
