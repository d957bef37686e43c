"""Train with PyTorch Lightning: a module, a data module, and checkpoints in mid-epoch.

    pip install lightning
    python examples/train_lightning.py products.gnn --checkpoints runs --every 100

Run it again after a crash, and it continues after the last checkpoint with the remaining batches of
the epoch. On a CPU the training losses equal an uninterrupted run's to the last bit.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch_geometric.nn import GraphSAGE

import gnnstore


class StoreData(lightning.LightningDataModule):
    """Loaders over the training and the validation nodes of a store, under one budget.

    Parameters
    ----------
    path : Path
        The store.
    **options
        Of `NeighborLoader`.
    """

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__()
        self.store = gnnstore.open(path)
        self.options = options

    def train_dataloader(self) -> gnnstore.NeighborLoader:
        """Return batches to train on: all on one device, or the share of this one."""
        rank, world_size = self._ranks()
        return gnnstore.NeighborLoader(
            self.store,
            input_nodes="train",
            shuffle=True,
            rank=rank,
            world_size=world_size,
            device=self._device(),
            **self.options,
        )

    def val_dataloader(self) -> gnnstore.NeighborLoader:
        """Return batches to evaluate on; they share the tables and caches of training."""
        rank, world_size = self._ranks()
        valid = self.store.splits["valid"][rank::world_size]
        return gnnstore.NeighborLoader(
            self.store, input_nodes=valid, device=self._device(), **self.options
        )

    def _ranks(self) -> tuple[int, int]:
        trainer = self.trainer
        return (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)

    def _device(self) -> torch.device | None:
        """Return where the model is."""
        return None if self.trainer is None else self.trainer.strategy.root_device


class Sage(lightning.LightningModule):
    """GraphSAGE that classifies nodes."""

    def __init__(self, widths: tuple[int, int, int], num_layers: int, lr: float) -> None:
        super().__init__()
        num_features, hidden, num_classes = widths
        self.model = GraphSAGE(num_features, hidden, num_layers, num_classes, dropout=0.5)
        self.lr = lr
        self._rng_state: Tensor | None = None

    def training_step(self, batch: Any) -> Tensor:
        """Return the loss of a batch's seeds."""
        out, labels = self._seeds_of(batch)
        loss = F.cross_entropy(out, labels)
        self.log("loss", loss, batch_size=batch.batch_size, prog_bar=True)
        return loss

    def validation_step(self, batch: Any) -> None:
        """Count how many of a batch's seeds are classified rightly."""
        out, labels = self._seeds_of(batch)
        accuracy = (out.argmax(dim=-1) == labels).float().mean()
        self.log("valid", accuracy, batch_size=batch.batch_size, prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over all weights."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)

    # Lightning keeps weights, optimisers, counters and loaders; not what dropout draws from.
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the state of torch's generator to a checkpoint."""
        checkpoint["rng"] = torch.get_rng_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the state of torch's generator until training continues."""
        self._rng_state = checkpoint["rng"].cpu()

    def on_train_start(self) -> None:
        """Let dropout go on where it was."""
        if self._rng_state is not None:
            torch.set_rng_state(self._rng_state)

    def _seeds_of(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return class scores and labels of the seeds; OGB keeps labels as [N, 1]."""
        out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        return out, batch.y[: batch.batch_size].view(-1).long()


def main(arguments: argparse.Namespace, **trainer_options: Any) -> lightning.Trainer:
    """Train as the command line says, from the last checkpoint if there is one."""
    lightning.seed_everything(arguments.seed)
    data = StoreData(
        arguments.store,
        num_neighbors=arguments.fanouts,
        batch_size=arguments.batch_size,
        strategy=arguments.strategy,
        memory=arguments.memory,
        num_workers=arguments.threads,  # threads, which Lightning calls workers
        seed=arguments.seed,
    )
    store = data.store
    num_classes = int(store.labels[store.splits["train"]].max()) + 1
    widths = (store.features.shape[1], arguments.hidden, num_classes)
    last = arguments.checkpoints / "last.ckpt"
    trainer = lightning.Trainer(
        max_epochs=arguments.epochs,
        use_distributed_sampler=False,  # loaders deal out batches themselves
        callbacks=[
            ModelCheckpoint(
                arguments.checkpoints,
                filename="last",
                every_n_train_steps=arguments.every,
                enable_version_counter=False,
            )
        ],
        logger=False,
        **trainer_options,
    )
    model = Sage(widths, len(arguments.fanouts), arguments.lr)
    trainer.fit(model, data, ckpt_path=last if last.exists() else None)
    metrics = (f"{name} {value:.4f}" for name, value in trainer.callback_metrics.items())
    print(f"finished {arguments.epochs} epochs: {', '.join(metrics)}")
    return trainer


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
    parser.add_argument("--checkpoints", type=Path, default=Path("runs"), help="their directory")
    parser.add_argument("--every", type=int, default=100, help="batches between checkpoints")
    parser.add_argument("--fanouts", type=numbers, default=[10, 10], metavar="N,N,...")
    parser.add_argument("--hidden", type=int, default=256, help="width of hidden layers")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--strategy", default="auto", help="where attributes lie")
    parser.add_argument("--memory", help="budget of both loaders, such as 8GB")
    parser.add_argument("--threads", type=int, default=2, help="preparing threads")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(parse())
