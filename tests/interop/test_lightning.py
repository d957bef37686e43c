"""Lightning's checkpoints hold loaders' states, and its loops rebuild loaders as they need them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import gnnstore
from gnnstore.converters import from_rmat
from gnnstore.converters.stores.partition import partition
from tests.support.effort import choose
from tests.support.forks import RUN_SCRIPT, ForkServer
from tests.support.hetero import hetero_store
from tests.support.modules import import_file

pytest.importorskip("lightning")

pytestmark = [
    pytest.mark.timeout(300),
    # Lightning's own: of torch's newer names, and of the directory that a resumed run goes on in.
    pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*treespec:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*treespec:UserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
]

EPOCHS = 2
BATCHES = 7  # an epoch's
OPTIONS = ["--fanouts", "5,5", "--hidden", "16", "--batch-size", "32", "--threads", "2"]


class Killed(Exception):  # noqa: N818 - not an error of the code under test
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return from_rmat(tmp_path_factory.mktemp("lightning") / "r.gnn", scale=9, feature_dim=16)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "train_lightning.py"
    return import_file(path)


def run(
    example: ModuleType,
    store: Path,
    directory: Path,
    *,
    strategy: str = "memory",
    every: int = 1,
    kill_after: int | None = None,
) -> list[tuple[int, list[int], float]]:
    """Return epoch, seeds and loss of every step, until the run ends or is killed."""
    steps: list[tuple[int, list[int], float]] = []

    class Recording(example.Sage):  # type: ignore[misc, name-defined]
        def on_train_batch_start(self, *_: Any) -> None:
            # What comes after the checkpoint of the step before is lost.
            if kill_after is not None and self.trainer.global_step >= kill_after:
                raise Killed

        def training_step(self, batch: Any) -> torch.Tensor:
            loss: torch.Tensor = super().training_step(batch)
            steps.append((self.current_epoch, batch.input_id.tolist(), loss.item()))
            return loss

    original, example.Sage = example.Sage, Recording  # type: ignore[attr-defined]
    words = [str(store), "--checkpoints", str(directory), "--epochs", str(EPOCHS), *OPTIONS]
    words += ["--every", str(every), "--strategy", strategy]
    try:
        example.main(
            example.parse(words),
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            accelerator="cpu",
        )
    except Killed:
        pass
    finally:
        example.Sage = original  # type: ignore[attr-defined]
    return steps


def test_it_goes_on_after_any_step(example: ModuleType, store: Path, tmp_path: Path) -> None:
    """In the middle of an epoch; in `make long` about its last batch, and later."""
    whole = run(example, store, tmp_path / "whole")
    assert [epoch for epoch, _, _ in whole] == [0] * BATCHES + [1] * BATCHES
    for steps in choose((1,), (1, BATCHES - 1, BATCHES, BATCHES + 3)):
        directory = tmp_path / str(steps)
        assert run(example, store, directory, kill_after=steps) == whole[:steps]
        assert run(example, store, directory) == whole[steps:], f"after {steps} steps"


def test_steps_since_the_last_checkpoint_are_done_again(
    example: ModuleType, store: Path, tmp_path: Path
) -> None:
    """Under a strategy that has prepared much further ahead than was trained on."""
    whole = run(example, store, tmp_path / "whole", strategy="belady")
    assert run(example, store, tmp_path / "runs", every=4, kill_after=6) == whole[:6]
    assert run(example, store, tmp_path / "runs", every=4, strategy="belady") == whole[4:]


@pytest.mark.parametrize("ranks", [{}, {"rank": 1, "world_size": 2}])
def test_it_goes_on_after_an_epoch(store: Path, tmp_path: Path, ranks: dict[str, Any]) -> None:
    """Lightning loads no loader's state from a checkpoint at the end of an epoch."""
    import lightning  # noqa: PLC0415
    from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: PLC0415

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 1)
            self.seen: list[tuple[int, list[int], int]] = []

        def training_step(self, batch: Any) -> torch.Tensor:
            self.seen.append((self.current_epoch, batch.input_id.tolist(), batch.num_edges))
            loss: torch.Tensor = self.layer(batch.x).mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(max_epochs: int, **options: Any) -> tuple[list[Any], gnnstore.NeighborLoader]:
        loader = gnnstore.NeighborLoader(
            store, [2], torch.arange(100), batch_size=32, shuffle=True, seed=0, **ranks
        )
        model = Model()
        lightning.Trainer(
            max_epochs=max_epochs,
            accelerator="cpu",
            logger=False,
            callbacks=[ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)],
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        ).fit(model, loader, weights_only=False, **options)
        return model.seen, loader

    num_epochs = choose(3, 4)
    whole, loader = fit(num_epochs)
    assert len({tuple(seeds) for _, seeds, _ in whole}) == len(whole)
    state = loader.state_dict()
    for epoch in (0, 1):
        rest, loader = fit(num_epochs, ckpt_path=tmp_path / f"epoch={epoch}.ckpt")
        assert rest == [step for step in whole if step[0] > epoch]
        assert (loader.epoch, loader.state_dict()) == (num_epochs, state)


# --- loops, with a loader that is first used within a hook --------------------------------------

LOOPS = Path(__file__).with_name("lightning_loops.py")
LOOPS_RUN = ("predict", "overfit", "links-fit", *choose((), ("fit", "validate", "links-predict")))
DDP = ("typed-ddp", *choose((), ("ddp",)))


# The server has imported the loaders, which no loop may have: each imports them within a hook.
ANEW = """
import sys
for name in [name for name in sys.modules if name.startswith("gnnstore") and "_core" not in name]:
    del sys.modules[name]
"""


@pytest.fixture(scope="module")
def found(
    store: Path, tmp_path_factory: pytest.TempPathFactory, forks: ForkServer
) -> dict[str, list[Any]]:
    """Return the seeds of each batch, by loop and rank."""
    directory = tmp_path_factory.mktemp("loops")
    hetero_store(store.with_name("typed.gnn"))
    done = forks.run(ANEW + RUN_SCRIPT, LOOPS, store, directory, *LOOPS_RUN, *DDP)
    found = {
        loop: [
            json.loads(file.read_text()) for file in sorted(directory.glob(f"{loop}-[0-9]*.json"))
        ]
        for loop in (*LOOPS_RUN, *DDP)
    }
    assert all(found.values()), done.stderr
    return found


def joined(batches: list[list[int]]) -> list[int]:
    return [seed for batch in batches for seed in batch]


def test_every_loop_gets_its_batches(store: Path, found: dict[str, list[Any]]) -> None:
    splits = gnnstore.open(store).splits
    for (fit,) in [found["fit"]] if "fit" in found else []:
        assert sorted(joined(fit)) == sorted(splits["train"].tolist())
        assert joined(fit) != splits["train"].tolist()
    for loop, split in (("predict", "test"), *choose((), (("validate", "valid"),))):
        (seeds,) = found[loop]
        assert joined(seeds) == splits[split].tolist(), loop
    (overfit,) = found["overfit"]  # the same two batches in both epochs, in order
    assert joined(overfit) == splits["train"][:64].tolist() * 2
    (fit,) = found["links-fit"]
    assert sorted(joined(fit)) == list(range(gnnstore.open(store).num_edges))
    assert joined(fit) != sorted(joined(fit))
    for positions in found.get("links-predict", []):
        assert joined(positions) == list(range(100))


@pytest.mark.parametrize("loop", DDP)
def test_two_processes_share_an_epoch(store: Path, found: dict[str, list[Any]], loop: str) -> None:
    """By Lightning's own sampler, as of any loader that is not told of ranks."""
    train = gnnstore.open(store).splits["train"].tolist()
    if loop == "typed-ddp":
        train = gnnstore.open(store.with_name("typed.gnn"))["paper"].splits["train"].tolist()
    ranks = found[loop]
    assert len(ranks) == 2
    for rank in ranks:
        assert len(rank) == len(ranks[0])
    num_batches = len(ranks[0]) // 2
    epochs = [
        joined(ranks[0][first : first + num_batches])
        + joined(ranks[1][first : first + num_batches])
        for first in (0, num_batches)
    ]
    for epoch in epochs:
        assert set(epoch) == set(train)
        assert len(epoch) - len(train) in {0, 1}  # the one that makes both equally long
    assert epochs[0] != epochs[1]


def test_epochs_of_different_lengths_are_trained_whole(store: Path) -> None:
    """The loader of the how-to does not tell its length, which Lightning would ask for once."""
    import lightning  # noqa: PLC0415

    partition(store, 8, seed=0)

    class TrainLoader(gnnstore.NeighborLoader):
        def __len__(self) -> int:
            raise NotImplementedError("epochs differ in their number of batches")

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 1)
            self.seen = [0]

        def train_dataloader(self) -> Any:
            return loader

        def training_step(self, batch: Any) -> torch.Tensor:
            self.seen[-1] += 1
            loss: torch.Tensor = self.layer(batch.x).mean()
            return loss

        def on_train_epoch_end(self) -> None:
            self.seen.append(0)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    policy = gnnstore.PartitionPolicy("dispersed", capacity=4, logical=8)
    loader = TrainLoader(
        store, [2], batch_size=9, shuffle=True, seed=0, num_threads=1, partitions=policy
    )
    model = Model()
    lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(model)
    lengths = [loader.len_of(epoch) for epoch in range(2)]
    assert model.seen[:-1] == lengths
    assert len(set(lengths)) > 1
