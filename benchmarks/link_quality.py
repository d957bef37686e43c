"""Ranks after training through the loader of links, compared with full-batch training in memory.

Facebook's pages, or another graph of a .npz file with `edge_index` (each undirected edge once) and
`x`: 80 % of the edges to train with, 10 % to validate and 10 % to test. GraphSAGE with two layers
and a dot product; Adam; binary negatives, one for each edge. Batches are sampled without the edges
that are predicted (`exclude_edges="reverse"`), while full-batch training passes messages over all
training edges, as PyTorch Geometric's examples do. Each has its own learning rate, trains until the
validation's MRR has not improved for some evaluations, and keeps its best weights.

Both are evaluated on the whole graph, with the same 1,000 fixed negatives for each test edge: MRR;
and AUC with one negative pair for each. The bar: our means are not below by more than two standard
errors of the difference. Run `python -m benchmarks.link_quality facebook.npz`.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.nn import GraphSAGE

import gnnstore
from benchmarks.harness import parser, report
from gnnstore.converters import ConvertOptions, from_numpy, from_rmat, split_edges
from gnnstore.evaluation import auc, mrr, ranks_among

FANOUTS, NUM_NEGATIVES = [10, 10], 1000
# Edges by which the MRR of the validation is computed, and negatives of each.
VALID_EDGES, VALID_NEGATIVES = 4000, 100

Score = dict[str, float]


class Judge:
    """The graph in memory, and fixed negatives of its splits."""

    def __init__(self, store: gnnstore.GraphStore) -> None:
        generator = torch.Generator().manual_seed(1)

        def nodes(*shape: int) -> Tensor:
            return torch.randint(store.num_nodes, shape, generator=generator)

        self.x, self.edge_index = store.features.tensor(), store.edge_index.tensor().long()
        # As a matrix by target: messages over all edges cost a third less than with lists of edges.
        source, target = self.edge_index
        ones = torch.ones(len(source))
        with warnings.catch_warnings(action="ignore"):  # torch calls such matrices a beta
            coo = torch.sparse_coo_tensor(
                torch.stack([target, source]), ones, [store.num_nodes] * 2
            )
            self.adjacency = coo.to_sparse_csr()
        self.valid = store.edge_splits["valid"].edge_index[:, :VALID_EDGES]
        self.test = store.edge_splits["test"].edge_index
        self.valid_negatives = nodes(self.valid.shape[1], VALID_NEGATIVES)
        self.test_negatives = nodes(self.test.shape[1], NUM_NEGATIVES)
        self.negative_pairs = nodes(2, self.test.shape[1])

    @torch.no_grad()
    def _embeddings(self, model: GraphSAGE) -> Tensor:
        model.eval()
        h: Tensor = model(self.x, self.adjacency)
        return h

    @staticmethod
    def _mrr(h: Tensor, edges: Tensor, negatives: Tensor) -> float:
        source, target = edges
        positive = (h[source] * h[target]).sum(dim=1)
        negative = torch.stack([(h[source] * h[n]).sum(dim=1) for n in negatives.T], dim=1)
        return mrr(ranks_among(positive, negative))

    def validate(self, model: GraphSAGE) -> float:
        """Return the MRR of validation edges."""
        return self._mrr(self._embeddings(model), self.valid, self.valid_negatives)

    def score(self, model: GraphSAGE) -> Score:
        """Return MRR and AUC of the test edges."""
        h = self._embeddings(model)
        (s, t), (u, v) = self.test, self.negative_pairs
        area = auc((h[s] * h[t]).sum(dim=1), (h[u] * h[v]).sum(dim=1))
        return {"MRR": self._mrr(h, self.test, self.test_negatives), "AUC": area}


def step(
    model: GraphSAGE,
    optimizer: torch.optim.Optimizer,
    graph: tuple[Tensor, Tensor],
    labelled: tuple[Tensor, Tensor],
) -> None:
    """Take a step of the optimizer."""
    model.train()
    optimizer.zero_grad()
    h, ((source, target), label) = model(*graph), labelled
    score = (h[source] * h[target]).sum(dim=1)
    binary_cross_entropy_with_logits(score, label).backward()
    optimizer.step()


def until_it_stops(
    judge: Judge, model: GraphSAGE, train: Callable[[], None], arguments: argparse.Namespace
) -> Score:
    """Train until the validation stops improving, and return the best model's scores."""
    best, weights, since = 0.0, model.state_dict(), 0
    for _ in range(arguments.most):
        train()
        found = judge.validate(model)
        since += 1
        if found > best:
            best, weights, since = found, copy.deepcopy(model.state_dict()), 0
        if since == arguments.patience:
            break
    model.load_state_dict(weights)
    return judge.score(model)


def sampled(
    store: gnnstore.GraphStore, judge: Judge, seed: int, arguments: argparse.Namespace
) -> Score:
    """Train on sampled neighbourhoods, an epoch between two evaluations."""
    model, optimizer = new_model(judge, seed, arguments, arguments.lr)
    loader = gnnstore.LinkNeighborLoader(
        store,
        FANOUTS,
        "train",
        neg_sampling="binary",
        exclude_edges="reverse",
        batch_size=arguments.batch_size,
        shuffle=True,
        seed=seed,
    )

    def train() -> None:
        for batch in loader:
            graph = (batch.x, batch.edge_index)
            step(model, optimizer, graph, (batch.edge_label_index, batch.edge_label))

    return until_it_stops(judge, model, train, arguments)


def full_batch(judge: Judge, seed: int, arguments: argparse.Namespace) -> Score:
    """Train on all edges at once, some steps between two evaluations."""
    model, optimizer = new_model(judge, seed, arguments, arguments.full_batch_lr)
    source, target = judge.edge_index
    edges = judge.edge_index[:, source <= target]  # a dot product is the same both ways
    label = torch.cat([torch.ones(edges.shape[1]), torch.zeros(edges.shape[1])])

    def train() -> None:
        for _ in range(arguments.steps):
            pairs = torch.cat([edges, torch.randint(len(judge.x), edges.shape)], dim=1)
            step(model, optimizer, (judge.x, judge.adjacency), (pairs, label))

    return until_it_stops(judge, model, train, arguments)


def new_model(
    judge: Judge, seed: int, arguments: argparse.Namespace, lr: float
) -> tuple[GraphSAGE, torch.optim.Optimizer]:
    """Return a model, the same for a seed, and its optimizer."""
    torch.manual_seed(seed)
    model = GraphSAGE(judge.x.shape[1], arguments.hidden, len(FANOUTS))
    return model, torch.optim.Adam(model.parameters(), lr=lr)


def compare(ours: list[float], theirs: list[float]) -> tuple[str, bool]:
    """Return means with standard errors and the difference, and whether the bar is reached."""
    errors = [stdev(values) / len(values) ** 0.5 for values in (ours, theirs)]
    difference, error = mean(ours) - mean(theirs), float(np.hypot(*errors))
    is_reached = difference >= -2 * error
    text = f"{mean(ours):.4f} ± {errors[0]:.4f}, full batch {mean(theirs):.4f} ± {errors[1]:.4f}, "
    text += f"difference {difference:+.4f} ± {error:.4f}: {'reached' if is_reached else 'MISSED'}"
    return text, is_reached


def main() -> None:
    """Train with every seed, both ways, and print what they reach."""
    options = parser(__doc__)
    options.add_argument("graph", type=Path, nargs="?", help="a .npz file; by default R-MAT")
    options.add_argument("--seeds", type=int, default=5, help="(5)")
    options.add_argument("--hidden", type=int, default=64, help="width of embeddings (64)")
    options.add_argument("--lr", type=float, default=0.005, help="of sampled batches (0.005)")
    options.add_argument("--full-batch-lr", type=float, default=0.02, help="(0.02)")
    options.add_argument("--batch-size", type=int, default=4096, help="(4096)")
    options.add_argument("--steps", type=int, default=10, help="of an evaluation, full batch (10)")
    options.add_argument("--patience", type=int, default=3, help="evaluations (3)")
    options.add_argument("--most", type=int, default=1000, help="evaluations (1000)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.seeds, arguments.most = 2, 2
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-") as temporary:
        store = gnnstore.open(make_store(arguments.graph, Path(temporary)))
        judge = Judge(store)
        scores: dict[str, list[Score]] = {"ours": [], "full batch": []}
        for seed in range(arguments.seeds):
            scores["ours"].append(sampled(store, judge, seed, arguments))
            scores["full batch"].append(full_batch(judge, seed, arguments))
    rows, numbers = [], dict[str, Any](scores=scores)
    for metric in ("MRR", "AUC"):
        ours, theirs = ([score[metric] for score in scores[name]] for name in scores)
        text, numbers[metric] = compare(ours, theirs)
        rows.append((metric, text))
    name = arguments.graph.stem if arguments.graph else "R-MAT, 2^10 nodes"
    title = f"predict edges of {name}, {arguments.seeds} seeds"
    report(title, rows, as_json=arguments.json, **numbers)


def make_store(graph: Path | None, directory: Path) -> Path:
    """Convert a graph, or make one, and split its edges."""
    options, whole = ConvertOptions(undirected=True), directory / "whole.gnn"
    if graph is not None:
        from_numpy(graph, whole, options=options)
    else:
        from_rmat(whole, scale=10, feature_dim=16, options=options)
    return split_edges(whole, directory / "links.gnn", (0.8, 0.1, 0.1))


if __name__ == "__main__":
    main()
