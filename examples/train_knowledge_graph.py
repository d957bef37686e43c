"""Learn embeddings of a knowledge graph: DistMult, ComplEx or TransE, and filtered ranks.

    python examples/train_knowledge_graph.py
    python examples/train_knowledge_graph.py fb15k-237.gnn --model distmult --dim 256 --epochs 30

Takes a store that `gnnstore convert triples` made, with the relation of each edge as `edge_type`
and edge splits "valid" and "test"; by default a small graph is made. The embeddings of entities are
rows of a `gnnstore.EmbeddingTable`, and the embeddings of relations a torch module. Prints the loss
of every epoch, and the mean reciprocal rank (MRR) among all entities, of heads and of tails,
without other true answers.

With `--capacity`, a share of the rows is in memory at a time: partitions of the store, which
`gnnstore partition` makes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

import gnnstore
from gnnstore.converters import from_triples
from gnnstore.evaluation import hits_at, mrr


class DistMult(torch.nn.Module):
    """Score triples by sum_k h_k w_k t_k (Yang et al. 2015).

    A relation turns the end that is known into a query, to which the rows of all candidates for the
    other end are compared: one product of matrices. The other models are written the same way.
    """

    def __init__(self, num_relations: int, dim: int) -> None:
        super().__init__()
        self.relations = torch.nn.Embedding(num_relations, dim)
        torch.nn.init.xavier_uniform_(self.relations.weight)

    def query(self, known: Tensor, relation: Tensor, replaced: str) -> Tensor:  # noqa: ARG002
        """Return [q, d] for known ends [q, d] and their relations [q]; `replaced`: src or dst."""
        found: Tensor = known * self.relations(relation)
        return found

    def score(self, query: Tensor, rows: Tensor) -> Tensor:
        """Return the scores [q, n] of n candidates for each query."""
        return query @ rows.T

    def score_own(self, query: Tensor, rows: Tensor) -> Tensor:
        """Return the score [q] of one candidate for each query."""
        return (query * rows).sum(dim=-1)


class ComplEx(DistMult):
    """Score triples by Re sum_k h_k w_k conj(t_k) (Trouillon et al. 2016).

    A row has real parts, then imaginary parts.
    """

    def query(self, known: Tensor, relation: Tensor, replaced: str) -> Tensor:
        """Return h w to ask for tails, t conj(w) to ask for heads."""
        (a, b), (c, d) = known.chunk(2, dim=-1), self.relations(relation).chunk(2, dim=-1)
        if replaced == "src":
            d = -d
        return torch.cat([a * c - b * d, a * d + b * c], dim=-1)


class TransE(DistMult):
    """Score triples by -|h + w - t| (Bordes et al. 2013)."""

    def query(self, known: Tensor, relation: Tensor, replaced: str) -> Tensor:
        """Return the place where the other end should be."""
        w: Tensor = self.relations(relation)
        return known + w if replaced == "dst" else known - w

    def score(self, query: Tensor, rows: Tensor) -> Tensor:
        """Return distances, negative."""
        return -torch.cdist(query, rows)

    def score_own(self, query: Tensor, rows: Tensor) -> Tensor:
        """Return distances, negative."""
        distance: Tensor = torch.linalg.vector_norm(query - rows, dim=-1)
        return -distance


MODELS = {"distmult": DistMult, "complex": ComplEx, "transe": TransE}


def parts_of(num_positives: int, num_chunks: int) -> Iterator[slice]:
    """Yield the positives of each chunk, which share their negatives: i is of i C // P."""
    bounds = [-(-num_positives * chunk // num_chunks) for chunk in range(num_chunks + 1)]
    yield from map(slice, bounds, bounds[1:])


def loss_of(model: DistMult, z: Tensor, batch: Data, num_chunks: int) -> Tensor:
    """Return the mean cross entropy of the true end among its negatives, over both ends.

    `z` has a row for each node of the batch.
    """
    relation = batch.label_edge_type.flatten()
    ends = {"src": z[batch.src_index], "dst": z[batch.dst_pos_index]}
    negatives = {"src": batch.src_neg_index, "dst": batch.dst_neg_index}
    losses = []
    for known, replaced in (("src", "dst"), ("dst", "src")):
        query = model.query(ends[known], relation, replaced)
        own = model.score_own(query, ends[replaced])
        for part in parts_of(len(own), min(num_chunks, len(own))):
            others = model.score(query[part], z[negatives[replaced][part.start]])
            scores = torch.cat([own[part, None], others], dim=1)
            losses.append(cross_entropy(scores, torch.zeros_like(scores[:, 0], dtype=torch.long)))
    return torch.stack(losses).mean()


def write_triples(directory: Path, seed: int) -> None:
    """Write triples of 1,000 entities, in the form that `gnnstore convert triples` reads.

    The heads of a group of 20 have the same two tails by a relation, so that they can be learned.
    """
    numbers = np.random.default_rng(seed).permutation(20_000)
    heads, relations, places = numbers % 1000, numbers // 1000 % 10, numbers // 10_000
    triples = np.stack([heads, relations, heads % 50 * 20 + relations * 2 + places], axis=1)
    parts = {"train": triples[1000:16_000], "valid": triples[:500], "test": triples[500:1000]}
    for split, part in parts.items():
        np.savetxt(directory / f"{split}.txt", part, "e%d\tr%d\te%d")


def train(
    model: DistMult,
    table: gnnstore.EmbeddingTable,
    loader: gnnstore.LinkNeighborLoader,
    optimizers: Sequence[torch.optim.Optimizer],
    num_chunks: int,
) -> float:
    """Train for one epoch and return the mean loss of a batch."""
    model.train(), table.train()
    losses = []
    for batch in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(model, table(batch.n_id), batch, num_chunks)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def ranks_of(
    model: DistMult, table: Any, store: gnnstore.GraphStore, split: str, memory: str | None
) -> Tensor:
    """Return the filtered ranks of heads and tails of a split among all entities, [2, L]."""
    model.eval()

    def score(known: Tensor, rows: Tensor, queries: Any) -> Tensor:
        return model.score(model.query(known, queries.relation, queries.side), rows)

    return gnnstore.link_ranks(
        score,
        store.edge_splits[split],
        table,
        side="both",
        filter=[store, *store.edge_splits.values()],
        relation="edge_type",
        memory=memory,
    )


def run(arguments: argparse.Namespace) -> float:
    """Train and evaluate as the command line says; return the MRR of the test triples."""
    torch.manual_seed(arguments.seed)
    with tempfile.TemporaryDirectory() as directory:
        if arguments.graph is None:
            write_triples(Path(directory), arguments.seed)
            path = from_triples(directory, Path(directory) / "kg.gnn")
        store = gnnstore.open(path if arguments.graph is None else arguments.graph)
        names = store.relation_names
        if names is None:
            raise SystemExit(f"{store.path}: relations have no names, so their number is unknown")
        model = MODELS[arguments.model](len(names), arguments.dim)
        policy = None
        if arguments.capacity is not None:
            policy = gnnstore.PartitionPolicy("two-level", capacity=arguments.capacity)
        table = gnnstore.EmbeddingTable.create(
            arguments.table or Path(directory) / "entities.emb",
            store,
            dim=arguments.dim,
            partitions=policy,
            seed=arguments.seed,
        )
        loader = gnnstore.LinkNeighborLoader(
            store,
            [],  # triples alone, without neighbours
            neg_sampling={"mode": "triplet", "amount": arguments.negatives},
            neg_side="both",
            negative_chunks=arguments.negative_chunks,
            edge_label_attrs=("edge_type",),
            batch_size=arguments.batch_size,
            shuffle=True,
            seed=arguments.seed,
            memory=arguments.memory,
            partitions=policy,
            tables=[table],
        )
        optimizers = [
            torch.optim.Adagrad(model.parameters(), lr=arguments.lr),
            gnnstore.RowwiseAdagrad(table, lr=arguments.lr),
        ]
        print(store, flush=True)
        for epoch in range(1, arguments.epochs + 1):
            loss = train(model, table, loader, optimizers, arguments.negative_chunks)
            valid = mrr(ranks_of(model, table, store, "valid", arguments.memory))
            print(f"epoch {epoch:3d}  loss {loss:.4f}  valid MRR {valid:.4f}", flush=True)
        ranks = ranks_of(model, table, store, "test", arguments.memory)
        print(f"finished {arguments.epochs} epochs: test MRR {mrr(ranks):.4f}, ", end="")
        print(f"Hits@10 {hits_at(ranks, 10):.2%}")
        if arguments.table is not None:
            table.commit()
        table.close()
        return mrr(ranks)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("graph", type=Path, nargs="?", help="a store; by default a small graph")
    parser.add_argument("--model", choices=list(MODELS), default="complex")
    parser.add_argument("--dim", type=int, default=64, help="width of a row; even for ComplEx")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1024, help="triples of a batch")
    parser.add_argument("--negatives", type=int, default=128, help="entities that a chunk shares")
    parser.add_argument("--negative-chunks", type=int, default=4, help="parts of a batch")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--capacity", type=float, help="share of partitions in memory")
    parser.add_argument("--table", type=Path, help="where the rows of entities are kept")
    parser.add_argument("--memory", help="budget, such as 8GB; by default what is available")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run(parse())
