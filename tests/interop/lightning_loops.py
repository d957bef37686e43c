"""Loops of Lightning's trainer over a loader whose class is first used within a hook.

`python lightning_loops.py STORE DIRECTORY LOOP...` writes a file LOOP-RANK.json for each loop and
rank, with the seeds of each batch. Each loop but "ddp" runs in a forked process of its own, where
the class has not been used before; "ddp", the last one, starts this file anew, as Lightning does.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
import torch_geometric.loader  # noqa: F401 - here, so that forked processes need not

import gnnstore

OPTIONS: dict[str, dict[str, Any]] = {
    "fit": {"max_epochs": 1},
    "overfit": {"overfit_batches": 2, "max_epochs": 2},
    "ddp": {"strategy": "ddp", "devices": 2, "max_epochs": 2},
}


class Model(lightning.LightningModule):
    """Remembers the seeds of its batches."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.layer = torch.nn.Linear(16, 4)
        self.seeds: list[list[int]] = []

    def loader(self, split: str, **options: Any) -> Any:
        """Return a loader of a split."""
        return gnnstore.NeighborLoader(
            self.path, [3], split, batch_size=32, num_threads=1, seed=7, **options
        )

    def train_dataloader(self) -> Any:
        """Shuffle."""
        return self.loader("train", shuffle=True)

    def val_dataloader(self) -> Any:
        """Go in order."""
        return self.loader("valid")

    def test_dataloader(self) -> Any:
        """Go in order."""
        return self.loader("test")

    predict_dataloader = test_dataloader

    def training_step(self, batch: Any) -> torch.Tensor:
        """Remember the seeds."""
        self.seeds.append(batch.n_id[: batch.batch_size].tolist())
        return self.layer(batch.x[: batch.batch_size]).square().mean()  # type: ignore[no-any-return]

    test_step = predict_step = training_step

    def validation_step(self, batch: Any) -> None:
        """Remember the seeds, unless training only validates by the way."""
        if not self.trainer.training and self.trainer.state.fn == "validate":
            self.training_step(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Learn by plain descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class LinkModel(Model):
    """Remembers the seed edges of its batches, by id or position."""

    def loader(self, split: str, **options: Any) -> Any:
        """Return a loader of all edges to train on, and of some pairs for the rest."""
        nodes = torch.arange(100)
        pairs = {"valid": nodes.expand(2, -1), "test": torch.stack([nodes, nodes + 7])}
        return gnnstore.LinkNeighborLoader(
            self.path,
            [3],
            pairs.get(split),
            neg_sampling="binary",
            exclude_edges="self",
            batch_size=300 if split == "train" else 32,
            num_threads=1,
            seed=7,
            **options,
        )

    def training_step(self, batch: Any) -> torch.Tensor:
        """Remember the seeds, and score pairs."""
        self.seeds.append(batch.input_id.tolist())
        source, target = self.layer(batch.x)[batch.edge_label_index]
        score = (source * target).sum(dim=-1)
        return torch.nn.functional.binary_cross_entropy_with_logits(score, batch.edge_label)

    predict_step = training_step


# What is before the loop's name, if the loader is one of edges.
LINKS = "links-"


def run(path: str, directory: str, named: str) -> None:
    """Run a loop, and write its seeds."""
    loop = named.removeprefix(LINKS)
    assert "gnnstore.loaders.base" not in sys.modules
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **{"devices": 1, **OPTIONS.get(loop, {})},
    )
    model = Model(path) if loop == named else LinkModel(path)
    getattr(trainer, loop if loop in {"validate", "test", "predict"} else "fit")(model)
    file = Path(directory, f"{named}-{trainer.global_rank}.json")
    file.write_text(json.dumps(model.seeds))


def main(path: str, directory: str, *loops: str) -> None:
    """Run loops one after the other."""
    warnings.simplefilter("ignore")
    for loop in loops:
        if loop == "ddp":
            sys.argv[1:] = [path, directory, loop]  # of the other process
            run(path, directory, loop)
        elif (child := os.fork()) == 0:
            run(path, directory, loop)
            os._exit(0)
        elif (status := os.waitpid(child, 0)[1]) != 0:
            sys.exit(f"{loop} ended with status {status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
