"""Train one model on a Ray cluster whose workers come and go.

    python examples/train_ray.py products.gnn --workers 1 3 --storage /nfs/runs --memory 4GB

Needs Ray (pip install 'gnnstore[ray]'), and a place for checkpoints that all nodes see: a shared
directory or a bucket. As many workers train as there is room for, within the two numbers. When one
is lost, or more can be had, Ray starts them anew, and they go on from the last checkpoint: a
loader's state is independent of the number of workers, so that the batches of a single process are
dealt out to however many there are. A shared store is best opened with --cache-dir, or by its URL.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch_geometric.nn import GraphSAGE

import gnnstore


def save(directory: Path, **states: Any) -> None:
    """Write what training goes on from; a loader's state is the same on all workers."""
    torch.save({name: each.state_dict() for name, each in states.items()}, directory / "state.pt")


def load(directory: Path, **states: Any) -> None:
    """Go on from what was written, on any number of workers."""
    found = torch.load(directory / "state.pt", weights_only=True)
    for name, each in states.items():
        each.load_state_dict(found[name])


def train(config: dict[str, Any]) -> None:
    """Train on this worker, from the last checkpoint if there is one."""
    context = ray.train.get_context()
    store = gnnstore.open(config["store"], cache_dir=config["cache_dir"])
    # No `prepare_data_loader`: the batches are dealt out already.
    loader = gnnstore.NeighborLoader(
        store,
        config["fanouts"],
        "train",
        batch_size=config["batch_size"],
        shuffle=True,
        seed=0,
        memory=config["memory"],
        num_threads=1,
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_world_size=context.get_local_world_size(),
    )
    torch.manual_seed(0)  # the same weights at first, also where there is one worker
    num_classes = int(store.labels[store.splits["train"]].max()) + 1
    depth, width = len(config["fanouts"]), store.features.shape[1]
    sage = GraphSAGE(width, config["hidden"], depth, num_classes)
    model = prepare_model(sage, parallel_strategy_kwargs={"broadcast_buffers": False})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    states = {"model": sage, "optimizer": optimizer, "loader": loader}
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as directory:
            load(Path(directory), **states)
    for epoch in range(loader.epoch, config["epochs"]):
        for step, batch in enumerate(loader, 1):
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size].view(-1).long())
            loss.backward()
            optimizer.step()
            noted = {"epoch": epoch, "loss": loss.item(), "workers": context.get_world_size()}
            if step % config["every"]:
                continue
            with tempfile.TemporaryDirectory() as directory:
                is_first = context.get_world_rank() == 0
                if is_first:
                    save(Path(directory), **states)
                written = Checkpoint.from_directory(directory) if is_first else None
                ray.train.report(noted, checkpoint=written)


def main(arguments: argparse.Namespace) -> None:
    """Train as the command line says."""
    least, most = arguments.workers
    trainer = TorchTrainer(
        train,
        train_loop_config=vars(arguments),
        scaling_config=ScalingConfig(num_workers=least if least == most else (least, most)),
        run_config=RunConfig(
            name=arguments.name,
            storage_path=arguments.storage,
            failure_config=FailureConfig(max_failures=arguments.failures),
        ),
    )
    print(trainer.fit().metrics)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers: Any = {"type": lambda text: [int(part) for part in text.split(",")]}
    parser.add_argument("store", help="a store that all nodes see, or its URL")
    parser.add_argument("--storage", required=True, help="directory or URL of checkpoints")
    parser.add_argument("--name", default="gnnstore", help="of the run: the same to go on with it")
    parser.add_argument("--workers", type=int, nargs=2, default=[1, 3], metavar="N")
    parser.add_argument("--failures", type=int, default=3, help="workers that may be lost")
    parser.add_argument("--cache-dir", help="directory on each node for a copy of the store")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--fanouts", default=[10, 10], metavar="N,N,...", **numbers)
    parser.add_argument("--hidden", type=int, default=256, help="width of hidden layers")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1024, help="of each worker")
    parser.add_argument("--memory", help="budget of each worker, such as 4GB")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(parse())
