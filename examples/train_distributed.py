"""Train one model with several processes, each of which takes its share of the batches.

    torchrun --nproc-per-node 2 examples/train_distributed.py products.gnn --memory 4GB

The processes share the batches of a single-process run, so the losses equal that run's with
batches `nproc` times as large. Run it again with the same --checkpoint after a crash, and it
continues after the last checkpoint, also with another number of processes. Prints the loss of
every step and the validation accuracy of every epoch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

import gnnstore


def labels_of_seeds(batch: Any) -> Tensor:
    """Return the labels [B] of a batch's seeds; OGB keeps them as [N, 1]."""
    labels: Tensor = batch.y[: batch.batch_size].view(-1).long()
    return labels


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: gnnstore.NeighborLoader) -> float:
    """Return the share of all ranks' seed nodes that are classified rightly."""
    model.eval()
    counts = torch.zeros(2)
    for batch in loader:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        right = (out.argmax(dim=-1) == labels_of_seeds(batch)).sum()
        counts += torch.tensor([int(right), batch.batch_size])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1].clamp(min=1))


def save(path: Path, model: torch.nn.Module, optimizer: Any, loader: Any) -> None:
    """Write a checkpoint on rank 0: a loader's state is the same on all, random states are not."""
    rng_states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(rng_states, torch.get_rng_state())
    if dist.get_rank() == 0:
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),
            "rng": rng_states,
        }
        unfinished = path.with_name(f"{path.name}.tmp")
        torch.save(checkpoint, unfinished)
        unfinished.replace(path)


def load(path: Path, model: torch.nn.Module, optimizer: Any, loader: Any) -> None:
    """Go on from a checkpoint, on every rank."""
    checkpoint = torch.load(path, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    loader.load_state_dict(checkpoint["loader"])
    if len(checkpoint["rng"]) == dist.get_world_size():
        torch.set_rng_state(checkpoint["rng"][dist.get_rank()])


def main(arguments: argparse.Namespace) -> None:
    """Train as the command line says."""
    dist.init_process_group("gloo")
    try:
        train(arguments)
    finally:
        # When the model is gone: if that were the last to release the group, threads of
        # gloo's could wait for Python and Python for them.
        dist.destroy_process_group()


def train(arguments: argparse.Namespace) -> None:
    """Train on this rank, from the checkpoint if there is one."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(arguments.seed + rank)  # of dropout; DDP hands out the weights of rank 0

    # Every rank opens the same store, and has a budget of its own.
    store = gnnstore.open(arguments.store)
    options: dict[str, Any] = {
        "num_neighbors": arguments.fanouts,
        "batch_size": arguments.batch_size,
        "strategy": arguments.strategy,
        "memory": arguments.memory,
        "num_threads": arguments.threads,
        "seed": arguments.seed,
    }
    train_loader = gnnstore.NeighborLoader(
        store, input_nodes="train", shuffle=True, rank=rank, world_size=world_size, **options
    )
    # Ranks wait for one another in training only. Nodes dealt out to evaluate are counted once.
    valid = store.splits["valid"][rank::world_size]
    valid_loader = gnnstore.NeighborLoader(store, input_nodes=valid, **options)

    num_classes = int(store.labels[store.splits["train"]].max()) + 1
    sage = GraphSAGE(
        store.features.shape[1], arguments.hidden, len(arguments.fanouts), num_classes, dropout=0.5
    )
    model = DistributedDataParallel(sage)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    if arguments.checkpoint is not None and arguments.checkpoint.exists():
        load(arguments.checkpoint, model, optimizer, train_loader)

    for epoch in range(train_loader.epoch, arguments.epochs):
        model.train()
        for step, batch in enumerate(train_loader, 1):
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, labels_of_seeds(batch))
            loss.backward()
            optimizer.step()
            print(f"rank {rank} epoch {epoch} loss {loss.item():.4f}", flush=True)
            if arguments.checkpoint is not None and step % arguments.every == 0:
                save(arguments.checkpoint, model, optimizer, train_loader)
        accuracy = evaluate(sage, valid_loader)
        if rank == 0:
            print(f"epoch {epoch}: valid {accuracy:.2%}; {train_loader.stats()}", flush=True)
    if rank == 0:
        print(f"finished {arguments.epochs} epochs with {world_size} processes", flush=True)


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
    parser.add_argument("--checkpoint", type=Path, help="read if there, and written")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--fanouts", type=numbers, default=[10, 10], metavar="N,N,...")
    parser.add_argument("--hidden", type=int, default=256, help="width of hidden layers")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1024, help="of each process")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--strategy", default="auto", help="where attributes lie")
    parser.add_argument("--memory", help="budget of each process, such as 4GB")
    parser.add_argument("--threads", type=int, default=1, help="preparing threads of each process")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(parse())
