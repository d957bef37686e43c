"""Loss of quality by training by partitions: accuracy of nodes, ranks of triples.

*Nodes*: a two-layer GraphSAGE with all of the graph to sample from, and by partitions of which a
half or a quarter are in memory: "dispersed", and "sequential" of a partitioning whose first
partitions hold the training nodes. `--graph` takes a .npz file or a directory of OGB's layout; by
default a small R-MAT graph. Accuracy of the test nodes in the epoch whose validation is best, on
the whole graph.

*Triples*: ComplEx on a planted knowledge graph of FB15k-237's size, with the rows of all entities
in memory, and by partitions of which a quarter are: Marius' BETA order, its edges assigned to the
first state ("beta, greedy") or to a random one ("beta"), and the even order ("even"). These swap
the same bytes. Then BETA and the even order with equal memory, a quarter of the rows for the state
and for what is read and written in the background: BETA divides it into the number of groups that
reads least. Filtered MRR of the test triples after the last epoch, among all entities; processor
seconds and partitions read of an epoch. With `--encoder` a layer of GraphSAGE over ten neighbours
turns rows into what is scored, as by MariusGNN.

*Sizes*: the same, for a quarter of the rows as memory in all, with the sizes that gnnstore chooses
and with others that fit it, in a scan over the number of partitions and of groups. The aim: within
10 % of the fastest epoch, and within 0.5 % of the best MRR.

Seeds are paired: each differs from the others in the split of the graph into partitions, too. Means
and standard errors of the differences to training in memory. Run
`python -m benchmarks.partition_quality --graph facebook.npz`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE, SAGEConv

import gnnstore
from benchmarks.harness import parser, report
from benchmarks.parts.planted_kg import from_planted_kg
from examples.train_knowledge_graph import ComplEx, loss_of, ranks_of
from gnnstore.converters import ConvertOptions, from_numpy, from_ogb, from_rmat
from gnnstore.converters.stores.partition import partition
from gnnstore.evaluation import mrr
from gnnstore.partitions.policy import Contents, places_bytes, sizes_of_partitions

IN_MEMORY = "in memory"
SHARES = {"1/2": 0.5, "1/4": 0.25}
# As FB15k-237; fewer triples are ranked.
KNOWLEDGE_GRAPH = {"num_triples": (272_115, 2000, 4000)}
QUICK_GRAPH = {
    "num_entities": 600,
    "num_relations": 30,
    "num_triples": (8000, 300, 300),
    "num_communities": 6,
}
DIM, CHUNKS = 64, 4

# With what is read ahead and written back; the last, short partition takes a whole slot.
SHARE_OF_ROWS = 0.26
NODES_PER_BATCH, TRIPLES_PER_BATCH = 128, 1024

Scores = dict[str, list[float]]


def graph_of(path: Path | None, directory: Path, *, quick: bool) -> Path:
    """Return a store of the graph to classify nodes of."""
    store = directory / "graph.gnn"
    if path is None:
        few = (0.1, 0.2, 0.7)
        return from_rmat(store, scale=10 if quick else 13, homophily=0.6, split_fractions=few)
    if path.is_dir():
        return from_ogb(path, store)
    return from_numpy(path, store, options=ConvertOptions(undirected=True))


def accuracy(store: gnnstore.GraphStore, seed: int, policy: Any, args: argparse.Namespace) -> float:
    """Train a classifier, and return the accuracy of the test nodes."""
    torch.manual_seed(seed)
    labels = store.y.tensor().flatten()
    model = GraphSAGE(store.num_features, 64, 2, int(labels.max()) + 1, dropout=0.4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)
    loader = gnnstore.NeighborLoader(
        store,
        [10, 10],
        "train",
        batch_size=args.batch_size or NODES_PER_BATCH,
        shuffle=True,
        seed=seed,
        partitions=policy,
    )
    splits = {name: store.splits[name] for name in ("valid", "test")}
    best = {"valid": -1.0, "test": 0.0}
    for _ in range(args.epochs):
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            cross_entropy(out, batch.y[: batch.batch_size].flatten()).backward()
            optimizer.step()
        found = gnnstore.inference(model, store)
        assert isinstance(found, Tensor)
        right = found.argmax(dim=1) == labels
        now = {name: float(right[nodes].float().mean()) for name, nodes in splits.items()}
        best = now if now["valid"] > best["valid"] else best
    return best["test"]


def nodes(directory: Path, args: argparse.Namespace) -> Scores:
    """Return the accuracies of each way, by seed."""
    path = graph_of(args.graph, directory, quick=args.quick)
    scores: Scores = {}
    for seed in range(args.seeds):
        random, first = f"random{seed}", f"train{seed}"
        partition(path, args.partitions, name=random, seed=seed)
        partition(path, args.partitions, name=first, seed=seed, train_first="train")
        store = gnnstore.open(path)
        policies: dict[str, Any] = {IN_MEMORY: None}
        for name, share in SHARES.items():
            policies[f"dispersed {name}"] = gnnstore.PartitionPolicy(
                "dispersed", capacity=share, name=random
            )
            policies[f"sequential {name}"] = gnnstore.PartitionPolicy(
                "sequential", capacity=share, name=first
            )
        for name, policy in policies.items():
            scores.setdefault(name, []).append(accuracy(store, seed, policy, args))
    return scores


class Encoder(torch.nn.Module):
    """A layer of GraphSAGE that adds to a row what it makes of its neighbours' mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = SAGEConv(DIM, DIM)

    def forward(self, rows: Tensor, edge_index: Tensor) -> Tensor:
        """Return a row for each node."""
        return rows + torch.tanh(self.layer(rows, edge_index))


def train(
    model: ComplEx,
    encoder: Encoder | None,
    table: gnnstore.EmbeddingTable,
    loader: gnnstore.LinkNeighborLoader,
    optimizers: list[torch.optim.Optimizer],
) -> None:
    """Train for one epoch."""
    model.train(), table.train()
    for batch in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        z = table(batch.n_id)
        z = z if encoder is None else encoder(z, batch.edge_index)
        loss_of(model, z, batch, CHUNKS).backward()
        for optimizer in optimizers:
            optimizer.step()


@torch.no_grad()
def encoded(
    encoder: Encoder | None, table: gnnstore.EmbeddingTable, store: gnnstore.GraphStore
) -> Any:
    """Return the rows that are ranked: of all nodes, with all of their neighbours."""
    if encoder is None:
        return table
    csc = store.topology().columns()
    targets = np.repeat(np.arange(store.num_nodes), np.diff(csc.indptr))
    edges = torch.from_numpy(np.stack([csc.indices.astype(np.int64), targets]))
    return encoder(table[:], edges)


def rank(
    store: gnnstore.GraphStore, path: Path, seed: int, policy: Any, args: argparse.Namespace
) -> dict[str, float]:
    """Train embeddings; return the MRR of the test triples, and what an epoch took."""
    torch.manual_seed(seed)
    assert store.relation_names is not None
    model = ComplEx(len(store.relation_names), DIM)
    encoder = Encoder() if args.encoder else None
    table = gnnstore.EmbeddingTable.create(
        path, store, dim=DIM, partitions=policy, seed=seed, overwrite=True
    )
    by_partitions: dict[str, Any] = (
        {} if policy is None else {"partitions": policy, "tables": [table]}
    )
    loader = gnnstore.LinkNeighborLoader(
        store,
        [10] if args.encoder else [],
        exclude_edges="self" if args.encoder else None,
        neg_sampling={"mode": "triplet", "amount": 128},
        neg_side="both",
        negative_chunks=CHUNKS,
        edge_label_attrs=("edge_type",),
        batch_size=args.batch_size or TRIPLES_PER_BATCH,
        shuffle=True,
        seed=seed,
        **by_partitions,
    )
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adagrad(model.parameters(), lr=0.2),
        gnnstore.RowwiseAdagrad(table, lr=0.2),
    ]
    if encoder is not None:
        optimizers.append(torch.optim.Adam(encoder.parameters(), lr=0.01))
    start = time.process_time()
    for _ in range(args.epochs):
        train(model, encoder, table, loader, optimizers)
    found = {
        "mrr": 0.0,
        "seconds": (time.process_time() - start) / args.epochs,
        "partitions": loader.stats().partitions_read / args.epochs,
    }
    found["mrr"] = mrr(ranks_of(model, encoded(encoder, table, store), store, "test", None))
    table.close()
    return found


def quarter_of_rows(store: gnnstore.GraphStore, num_partitions: int) -> tuple[Contents, int]:
    """Return the contents of a buffer of rows, and the memory of a quarter of all rows."""
    rows = Contents(store.num_nodes, 4 * (DIM + 1), edges="none", writes=True)
    return rows, int(SHARE_OF_ROWS * rows.node_bytes) + places_bytes(num_partitions)


def of_equal_memory(store: gnnstore.GraphStore, num_partitions: int, order: str) -> dict[str, Any]:
    """Return the sizes of a policy that has room for a quarter of the rows, in all."""
    rows, memory = quarter_of_rows(store, num_partitions)
    best = sizes_of_partitions(rows, memory, num_partitions, order=order)[0]
    return {"capacity": best.capacity, "logical": best.num_groups, "order": order}


def knowledge_graph(directory: Path, args: argparse.Namespace) -> Path:
    """Return a store of the graph whose entities are learned."""
    size: dict[str, Any] = QUICK_GRAPH if args.quick else KNOWLEDGE_GRAPH
    return from_planted_kg(directory / "kg.gnn", **size)


def triples(directory: Path, args: argparse.Namespace) -> Scores:
    """Return the MRR of each way, by seed."""
    path = knowledge_graph(directory, args)
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(args.seeds):
        name = f"random{seed}"
        partition(path, args.partitions, name=name, seed=seed)
        store = gnnstore.open(path)
        ways: dict[str, dict[str, Any]] = {
            "beta, greedy": {"capacity": 0.25, "order": "beta", "assignment": "greedy"},
            "beta": {"capacity": 0.25, "order": "beta"},
            "even": {"capacity": 0.25, "order": "even"},
        }
        for order in ("beta", "even"):
            ways[f"{order}, equal memory"] = of_equal_memory(store, args.partitions, order)
        policies: dict[str, Any] = {IN_MEMORY: None} | {
            way: gnnstore.PartitionPolicy("two-level", name=name, **options)
            for way, options in ways.items()
        }
        for way, policy in policies.items():
            emb = directory / "entities.emb"
            found.setdefault(way, []).append(rank(store, emb, seed, policy, args))
    return {
        _with_costs(way, costs): [cost["mrr"] for cost in costs] for way, costs in found.items()
    }


def sizes(directory: Path, args: argparse.Namespace) -> Scores:
    """Return the MRR of each choice of sizes, by seed; the first is the one that is chosen."""
    path = knowledge_graph(directory, args)
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(args.seeds):
        for num_partitions in (args.partitions, args.partitions // 2, args.partitions // 4):
            partition(path, num_partitions, name=f"seed{seed}-{num_partitions}", seed=seed)
        store = gnnstore.open(path)
        for num_partitions in (args.partitions, args.partitions // 2, args.partitions // 4):
            rows, memory = quarter_of_rows(store, num_partitions)
            fitting = [
                each
                for order in ("beta", "even")
                for each in sizes_of_partitions(rows, memory, num_partitions, order=order)
                if each.memory_bytes <= memory and each.num_groups > each.resident_groups
            ]
            # As many in memory as there is room for, for each order and number of groups.
            most = {
                (each.order, each.num_groups): each
                for each in sorted(fitting, key=lambda each: each.capacity)
            }
            best = fitting[0]  # of "beta", the default order
            for each in [best, *(each for each in most.values() if each != best)]:
                policy = gnnstore.PartitionPolicy(
                    "two-level",
                    name=f"seed{seed}-{num_partitions}",
                    capacity=each.capacity,
                    logical=each.num_groups,
                    order=each.order,
                )
                way = (
                    f"{each.order}, {each.resident_groups} of {each.num_groups} groups of "
                    f"{num_partitions} partitions{', chosen' if each == best else ''}"
                )
                emb = directory / "entities.emb"
                found.setdefault(way, []).append(rank(store, emb, seed, policy, args))
    return {
        _with_costs(way, costs): [cost["mrr"] for cost in costs] for way, costs in found.items()
    }


def _with_costs(way: str, costs: list[dict[str, float]]) -> str:
    if way == IN_MEMORY:
        return way
    seconds, partitions = (mean(cost[of] for cost in costs) for of in ("seconds", "partitions"))
    return f"{way} ({seconds:.1f} s, {partitions:.0f} read)"


def rows_of(scores: Scores) -> list[tuple[str, str]]:
    """Return the rows of a table: means, and paired differences with their standard errors.

    Differences are those to the first way.
    """
    first = next(iter(scores))
    base = scores[first]
    rows = []
    for name, found in scores.items():
        text = f"{mean(found):.4f}"
        if name != first:
            differences = [a - b for a, b in zip(found, base, strict=True)]
            error = stdev(differences) / len(found) ** 0.5 if len(found) > 1 else float("nan")
            text += f"  {mean(differences):+.4f} ± {error:.4f}"
        rows.append((name, text))
    return rows


TASKS: dict[str, tuple[str, Callable[[Path, argparse.Namespace], Scores]]] = {
    "nodes": ("accuracy of test nodes", nodes),
    "triples": ("filtered MRR of test triples", triples),
    "sizes": ("filtered MRR of test triples, by sizes", sizes),
}


def run(arguments: argparse.Namespace, tasks: Sequence[str]) -> None:
    """Train everything, and print."""
    rows, found = [], {}
    for task in tasks:
        title, work = TASKS[task]
        with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-") as directory:
            found[task] = work(Path(directory), arguments)
        rows += [(title, f"{arguments.seeds} seeds, {arguments.epochs} epochs")]
        rows += [(f"  {name}", text) for name, text in rows_of(found[task])]
    report("benchmarks.partition_quality", rows, as_json=arguments.json, scores=found)


def main() -> None:
    """Read the command line and run."""
    options = parser(__doc__)
    options.add_argument("--task", choices=list(TASKS), help="by default nodes and triples")
    options.add_argument("--graph", type=Path, help="whose nodes are classified")
    options.add_argument("--partitions", type=int, help="(64; 40 with --quick)")
    options.add_argument("--encoder", action="store_true", help="a layer of GraphSAGE over rows")
    options.add_argument("--seeds", type=int, help="(5; 2 with --quick)")
    options.add_argument("--epochs", type=int, help="(25; 3 with --quick)")
    options.add_argument("--batch-size", type=int, help="(128 nodes, or 1024 triples)")
    arguments = options.parse_args()
    arguments.seeds = arguments.seeds or (2 if arguments.quick else 5)
    arguments.epochs = arguments.epochs or (3 if arguments.quick else 25)
    arguments.partitions = arguments.partitions or (40 if arguments.quick else 64)
    run(arguments, [arguments.task] if arguments.task else ["nodes", "triples"])


if __name__ == "__main__":
    main()
