"""Train GraphSAGE on a gnnstore: plain PyTorch Geometric code, but for two lines.

    gnnstore convert ogb path/to/ogbn_products products.gnn --undirected
    python examples/train_sage.py products.gnn --fanouts 15,10,5

Prints the loss of every epoch, where the time went (on a GPU, "waited" is also the time that the
loop waits for it) and what was read from disk; and every few epochs the accuracy of all splits, for
which `gnnstore.inference` runs the model once over all nodes. A loader with all neighbours would
compute most nodes many times, and take longer than training.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import gnnstore
from gnnstore.pipeline.stats import LoaderStats

SCORES = ("degree", "frequency")


class GraphSAGE(torch.nn.Module):
    """Layers of SAGEConv with ReLU and dropout between them."""

    def __init__(self, widths: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(
            SAGEConv(width, next_width) for width, next_width in itertools.pairwise(widths)
        )
        self.dropout = dropout

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return class scores [n, C] of the n nodes of a batch; the first B are the seeds'."""
        for i, conv in enumerate(self.convs):
            x = F.dropout(x, self.dropout, self.training)
            x = conv(x, edges)
            if i + 1 < len(self.convs):
                x = x.relu()
        return x

    def layers(self) -> list[Callable[..., Tensor]]:
        """Return the layers in order, as `gnnstore.inference` takes them: without dropout."""
        layers: list[Callable[..., Tensor]] = [self.convs[0]]
        for conv in self.convs[1:]:
            layers += [torch.relu, conv]
        return layers


@dataclass(frozen=True)
class Epoch:
    """Results of one epoch: accuracies are fractions of 1."""

    epoch: int
    loss: float
    valid: float
    test: float


@dataclass(frozen=True)
class Result:
    """Results of all evaluated epochs, and of the one that did best on the validation nodes."""

    epochs: list[Epoch]
    best: Epoch


def run(arguments: argparse.Namespace) -> Result:
    """Train and evaluate as the command line says."""
    torch.manual_seed(arguments.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    store = gnnstore.open(arguments.store)
    options: dict[str, Any] = {
        "batch_size": arguments.batch_size,
        "strategy": arguments.strategy,
        "memory": arguments.memory,
        "io_engine": arguments.io_engine,
        "cache": arguments.cache_by,
        "cache_bytes": arguments.cache_bytes,
        "num_threads": arguments.threads,
        "seed": arguments.seed,
        "transform": normalize_batch if arguments.normalize else None,
        "edge_format": "csr" if arguments.csr else "coo",
        "device": device,
    }
    train_loader = gnnstore.NeighborLoader(
        store, arguments.fanouts, input_nodes="train", shuffle=True, **options
    )
    num_classes = int(store.labels[store.splits["train"]].max()) + 1
    hidden = [arguments.hidden] * (len(arguments.fanouts) - 1)
    model = GraphSAGE([store.features.shape[1], *hidden, num_classes], arguments.dropout)
    model = model.to(device)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=arguments.lr, weight_decay=arguments.weight_decay
    )
    print(f"{store}\n{train_loader.stats().reason}\ntraining on {device}", flush=True)

    epochs = []
    began = time.perf_counter()
    for number in range(1, arguments.epochs + 1):
        before, start = train_loader.stats(), time.perf_counter()
        loss = train(model, train_loader, optimizer)
        seconds_training = time.perf_counter() - start
        stats = train_loader.stats().since(before)
        print(
            f"epoch {number:3d}  loss {loss:.4f}  |  {seconds_training:.2f} s, waited "
            f"{stats.seconds_waiting:.2f}  |  in the threads: sampling "
            f"{stats.seconds_sampling:.2f}, gathering {stats.seconds_gathering:.2f}"
            f"{reading(stats)}",
            flush=True,
        )
        if number % arguments.eval_every and number != arguments.epochs:
            continue
        start = time.perf_counter()
        found = evaluate(model, store, memory=arguments.memory, is_normalized=arguments.normalize)
        epochs.append(Epoch(number, loss, found["valid"], found["test"]))
        print(
            f"           valid {found['valid']:.2%}  test {found['test']:.2%}  |  "
            f"{time.perf_counter() - start:.2f} s, all nodes",
            flush=True,
        )
    best = max(epochs, key=lambda epoch: epoch.valid)
    print(
        f"finished {arguments.epochs} epochs in {time.perf_counter() - began:.1f} s; best by "
        f"validation: epoch {best.epoch}, valid {best.valid:.2%}, test {best.test:.2%}\n"
        f"training: {train_loader.stats()}"
    )
    return Result(epochs, best)


def reading(stats: LoaderStats) -> str:
    """Return what was read from disk during an epoch; empty if nothing is read by an engine."""
    if not stats.io_engine:
        return ""
    hits = f", {stats.hit_rate:.1%} of rows cached" if stats.cache else ""
    return (
        f", waiting for the disk {stats.seconds_reading:.2f}  |  {stats.reads} reads, "
        f"{stats.bytes_read / 1e6:.1f} MB, {stats.amplification:.2f} x what was asked for, "
        f"{stats.mean_queue_depth:.0f} deep{hits}"
    )


def train(
    model: GraphSAGE, loader: gnnstore.NeighborLoader, optimizer: torch.optim.Optimizer
) -> float:
    """Train for one epoch and return the mean loss of a seed node."""
    model.train()
    total, num_seeds = torch.zeros(()), 0
    for batch in loader:  # on the device
        optimizer.zero_grad()
        out = model(batch.x, edges_of(batch))[: batch.batch_size]
        loss = F.cross_entropy(out, labels_of_seeds(batch))
        loss.backward()
        optimizer.step()
        # Not `loss.item()`, which would wait for a GPU.
        total = total + loss.detach() * batch.batch_size
        num_seeds += batch.batch_size
    return total.item() / max(1, num_seeds)


def evaluate(
    model: GraphSAGE,
    store: gnnstore.GraphStore,
    *,
    memory: str | None = None,
    is_normalized: bool = False,
) -> dict[str, float]:
    """Return the share of each split's nodes that are classified rightly, with all neighbours.

    `memory` limits what inference holds, in addition to what the loader holds.
    """
    layers = [normalize, *model.layers()] if is_normalized else model.layers()
    with tempfile.TemporaryDirectory(prefix=".scores-", dir=store.path.parent) as directory:
        scores: Any = gnnstore.inference(
            layers, store, Path(directory) / "scores.gnn", memory=memory
        )
        labels = store.labels.view(-1)
        return {
            split: float((scores.tensor(nodes).argmax(dim=-1) == labels[nodes]).float().mean())
            for split, nodes in store.splits.items()
        }


def normalize(x: Tensor) -> Tensor:
    """Scale each row to a sum of 1, row by row: batches and inference do the same."""
    return x / x.sum(dim=-1, keepdim=True).clamp(min=1)


def normalize_batch(batch: Data) -> Data:
    """Scale the features of a batch."""
    batch.x = normalize(batch.x)
    return batch


def edges_of(batch: Any) -> Tensor:
    """Return the edges of a batch in the format of its loader."""
    edges: Tensor = batch.adj_t if "adj_t" in batch else batch.edge_index
    return edges


def labels_of_seeds(batch: Any) -> Tensor:
    """Return the labels [B] of a batch's seeds; OGB keeps them as [N, 1]."""
    labels: Tensor = batch.y[: batch.batch_size].view(-1).long()
    return labels


def numbers(text: str) -> list[int]:
    """Return the numbers in a text such as "15,10,5"."""
    return [int(part) for part in text.split(",")]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("store", help="a store, as gnnstore convert makes it")
    parser.add_argument(
        "--fanouts",
        type=numbers,
        default=[10],
        metavar="N,N,...",
        help="neighbours to sample per hop, -1 for all; a single number holds for all layers",
    )
    parser.add_argument("--layers", type=int, help="by default one per fan-out, at least 2")
    parser.add_argument("--hidden", type=int, default=256, help="width of hidden layers")
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument(
        "--eval-every", type=int, default=5, help="epochs from one evaluation to the next"
    )
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--normalize", action="store_true", help="scale each x to a sum of 1")
    parser.add_argument("--strategy", default="auto", help="as in NeighborLoader (auto)")
    parser.add_argument("--memory", help="budget, such as 8GB; by default what is available")
    parser.add_argument("--io-engine", help="what reads rows from disk; by default the fastest")
    parser.add_argument("--cache-by", choices=SCORES, help="which rows to cache in memory")
    parser.add_argument("--cache-bytes", help="memory for the cache, such as 1GB")
    parser.add_argument(
        "--threads",
        type=int,
        help="preparing threads; by default one per core, and one more if they wait for a disk",
    )
    parser.add_argument(
        "--csr", action="store_true", help="batches with edges in CSR: the same results, faster"
    )
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args(arguments)
    layers = parsed.layers or max(2, len(parsed.fanouts))
    if len(parsed.fanouts) == 1:
        parsed.fanouts = parsed.fanouts * layers
    if len(parsed.fanouts) != layers:
        parser.error(f"--layers {layers} and {len(parsed.fanouts)} --fanouts do not agree")
    return parsed


if __name__ == "__main__":
    run(parse())
