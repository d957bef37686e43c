"""Train with checkpoints: a run that is killed continues exactly at its last checkpoint.

    python examples/train_with_checkpoints.py products.gnn --checkpoint run.pt --every 100

Run it again after a crash to continue. On a CPU the losses equal an uninterrupted
run's to the last bit, after a checkpoint at any batch. Prints the loss of every batch and the
validation accuracy of every epoch.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor
from torch_geometric.nn import GraphSAGE

import gnnstore


class Run:
    """The parts of a run, all of which a checkpoint holds.

    Parameters
    ----------
    arguments : argparse.Namespace
        The command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        store = gnnstore.open(arguments.store)
        options: dict[str, Any] = {
            "batch_size": arguments.batch_size,
            "strategy": arguments.strategy,
            "num_threads": arguments.threads,
            "seed": arguments.seed,
            "device": self.device,
        }
        fanouts = arguments.fanouts
        self.train_loader = gnnstore.NeighborLoader(
            store, fanouts, input_nodes="train", shuffle=True, **options
        )
        self.valid_loader = gnnstore.NeighborLoader(store, fanouts, input_nodes="valid", **options)
        num_classes = int(store.labels[store.splits["train"]].max()) + 1
        self.model = GraphSAGE(
            store.features.shape[1], arguments.hidden, len(fanouts), num_classes, dropout=0.5
        ).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=arguments.lr)
        # The epoch that is under way.
        self.epoch = 0
        self.loss = 0.0
        self.num_seeds = 0

    def save(self, path: Path) -> None:
        """Write a checkpoint; whenever the machine stops, the old or the new one is there."""
        checkpoint = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "train_loader": self.train_loader.state_dict(),
            "valid_loader": self.valid_loader.state_dict(),
            # Dropout draws from these.
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "progress": {"epoch": self.epoch, "loss": self.loss, "num_seeds": self.num_seeds},
        }
        unfinished = path.with_name(f"{path.name}.tmp")
        with unfinished.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint."""
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.train_loader.load_state_dict(checkpoint["train_loader"])
        self.valid_loader.load_state_dict(checkpoint["valid_loader"])
        torch.set_rng_state(checkpoint["rng"])
        if torch.cuda.is_available() and checkpoint["cuda_rng"]:
            torch.cuda.set_rng_state_all(checkpoint["cuda_rng"])
        self.epoch = checkpoint["progress"]["epoch"]
        self.loss = checkpoint["progress"]["loss"]
        self.num_seeds = checkpoint["progress"]["num_seeds"]

    def train(self, checkpoint: Path, every: int) -> None:
        """Train for the rest of the epoch."""
        self.model.train()
        for batch in self.train_loader:
            self.optimizer.zero_grad()
            out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, labels_of_seeds(batch))
            loss.backward()
            self.optimizer.step()
            self.loss += loss.item() * batch.batch_size
            self.num_seeds += batch.batch_size
            done = self.train_loader.state_dict()["batches"]
            print(f"epoch {self.epoch} batch {done}: loss {loss.item():.4f}", flush=True)
            if done % every == 0:
                self.save(checkpoint)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the share of the validation nodes that are classified rightly."""
        self.model.eval()
        right = num_seeds = 0
        for batch in self.valid_loader:
            out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
            right += int((out.argmax(dim=-1) == labels_of_seeds(batch)).sum())
            num_seeds += batch.batch_size
        return right / max(1, num_seeds)


def labels_of_seeds(batch: Any) -> Tensor:
    """Return the labels [B] of a batch's seeds; OGB keeps them as [N, 1]."""
    labels: Tensor = batch.y[: batch.batch_size].view(-1).long()
    return labels


def main(arguments: argparse.Namespace) -> None:
    """Train as the command line says, from the checkpoint if there is one."""
    torch.use_deterministic_algorithms(True)
    run = Run(arguments)
    if arguments.checkpoint.exists():
        run.load(arguments.checkpoint)
        print(f"going on in epoch {run.epoch} of {arguments.checkpoint}", flush=True)
    while run.epoch < arguments.epochs:
        run.train(arguments.checkpoint, arguments.every)
        loss, accuracy = run.loss / max(1, run.num_seeds), run.evaluate()
        print(f"epoch {run.epoch}: mean loss {loss:.4f}, valid {accuracy:.2%}", flush=True)
        run.epoch, run.loss, run.num_seeds = run.epoch + 1, 0.0, 0
        run.save(arguments.checkpoint)
    print(f"finished {run.epoch} epochs: {arguments.checkpoint}; --epochs N trains on", flush=True)


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
    parser.add_argument("--checkpoint", type=Path, required=True, help="read if there, and written")
    parser.add_argument("--every", type=int, default=100, help="batches between checkpoints")
    parser.add_argument("--fanouts", type=numbers, default=[10, 10], metavar="N,N,...")
    parser.add_argument("--hidden", type=int, default=256, help="width of hidden layers")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--strategy", default="auto", help="where attributes lie")
    parser.add_argument("--threads", type=int, help="preparing threads; by default one per core")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(parse())
