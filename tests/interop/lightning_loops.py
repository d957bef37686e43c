"""Loops of Lightning's trainer over a loader whose class is first used within a hook.

`python lightning_loops.py STORE DIRECTORY LOOP...` writes a file LOOP-RANK.json for each loop and
rank, with the seeds of each batch. Each loop runs in a forked process of its own, where the class
has not been used before; "ddp" in two, as torchrun starts them. Loops over batches with types take
the store `typed.gnn` next to STORE.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
import torch_geometric.loader  # noqa: F401 - here, so that forked processes need not
from lightning.pytorch.demos.boring_classes import BoringModel

import gnnstore

ALONE: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}
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

    def predict_dataloader(self) -> Any:
        """Go in order."""
        return self.loader("test")

    def training_step(self, batch: Any) -> torch.Tensor:
        """Remember the seeds."""
        self.seeds.append(batch.n_id[: batch.batch_size].tolist())
        return self.layer(batch.x[: batch.batch_size]).square().mean()  # type: ignore[no-any-return]

    predict_step = training_step

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


class TypedModel(Model):
    """Remembers the seeds of its batches, which are papers among other types."""

    def __init__(self, path: str) -> None:
        super().__init__(str(Path(path).with_name("typed.gnn")))
        self.layer = torch.nn.Linear(8, 4)

    def loader(self, split: str, **options: Any) -> Any:
        """Return a loader of a split of the papers."""
        return gnnstore.NeighborLoader(
            self.path, [3, 2], ("paper", split), batch_size=4, num_threads=1, seed=7, **options
        )

    def training_step(self, batch: Any) -> torch.Tensor:
        """Remember the seeds."""
        papers = batch["paper"]
        self.seeds.append(papers.n_id[: papers.batch_size].tolist())
        return self.layer(papers.x[: papers.batch_size]).square().mean()  # type: ignore[no-any-return]


# What is before a loop's name.
MODELS = {"links": LinkModel, "typed": TypedModel}


def run(path: str, directory: str, named: str) -> None:
    """Run a loop, and write its seeds."""
    before, _, loop = named.rpartition("-")
    assert "gnnstore.loaders.base" not in sys.modules
    trainer = lightning.Trainer(**ALONE | OPTIONS.get(loop, {}))
    model = MODELS.get(before, Model)(path)
    getattr(trainer, loop if loop in {"validate", "predict"} else "fit")(model)
    file = Path(directory, f"{named}-{trainer.global_rank}.json")
    file.write_text(json.dumps(model.seeds))


def main(path: str, directory: str, *loops: str) -> None:
    """Run loops one after the other."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # a forked process has no others
    # What Lightning imports when a loop begins, forked processes need not import either.
    lightning.Trainer(**ALONE, max_epochs=1, limit_train_batches=1).fit(BoringModel())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for loop in loops:
        children = set()
        is_shared = loop.endswith("ddp")
        for rank in range(2 if is_shared else 1):
            child = os.fork()
            if child == 0:
                if is_shared:
                    os.environ.update(of_torchrun(rank, port))
                run(path, directory, loop)
                os._exit(0)
            children.add(child)
        while children:
            child, status = os.wait()
            children.remove(child)
            if status != 0:
                for other in children:  # it would wait for this one
                    os.kill(other, signal.SIGKILL)
                sys.exit(f"{loop} ended with status {status}")


def of_torchrun(rank: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets in one of two processes."""
    return {
        "RANK": f"{rank}",
        "LOCAL_RANK": f"{rank}",
        "GROUP_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "loops",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{port}",
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
