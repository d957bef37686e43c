"""Loaders under accelerate: ours itself by the recipe, and built anew by `prepare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

import gnnstore
from gnnstore.converters import from_rmat
from tests.support.batches import two_forks
from tests.support.forks import RUN_SCRIPT, ForkServer

pytest.importorskip("accelerate")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
        reason="torch was built without gloo",
    ),
]

# Trains two epochs by the recipe of docs/howto-distributed.md, then on a loader that `prepare`
# builds anew, and notes the seeds of each batch.
WORKER = """
import json, sys, warnings
from pathlib import Path
import torch
from accelerate import Accelerator
import gnnstore

accelerator = Accelerator(cpu=True)
rank, size = accelerator.process_index, accelerator.num_processes

def make(**options):
    return gnnstore.NeighborLoader(
        sys.argv[1], [4], "train", batch_size=32, shuffle=True, strategy="mmap", **options
    )

loader = make(seed=5, rank=rank, world_size=size, device=accelerator.device)
model = torch.nn.Linear(16, 2)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
recipe = []
for epoch in range(2):
    seeds = []
    for batch in loader:
        accelerator.backward(model(batch.x).sum())
        optimizer.step()
        optimizer.zero_grad()
        seeds.append(batch.input_id.tolist())
    recipe.append(seeds)
stats = loader.stats()

anew = {}
for name, seed in (("seed", 5), ("none", None)):
    torch.manual_seed(rank)  # which accelerate makes equal on all ranks
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        prepared = accelerator.prepare(make(seed=seed))
        anew[name] = [[batch.input_id.tolist() for batch in prepared] for _ in range(3)]
    messages = [str(one.message) for one in told if "another DataLoader" in str(one.message)]
    anew["warnings of " + name] = messages
text = json.dumps({"recipe": recipe, "batches": stats.batches, "strategy": stats.strategy, **anew})
Path(sys.argv[2], f"{rank}.json").write_text(text)
accelerator.end_training()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return from_rmat(tmp_path_factory.mktemp("accelerate") / "r.gnn", scale=9, feature_dim=16)


@pytest.fixture(scope="module")
def whole(store: Path) -> list[list[list[int]]]:
    """Return the seeds of two epochs of a single process without accelerate."""
    loader = gnnstore.NeighborLoader(store, [4], "train", batch_size=32, shuffle=True, seed=5)
    return [[batch.input_id.tolist() for batch in loader] for _ in range(2)]


def check_anew(ranks: list[dict[str, Any]], num_seeds: int) -> None:
    """Every epoch has each seed, in an order of its own, and there is one warning."""
    for name in ("seed", "none"):
        epochs = [[of for rank in ranks for of in rank[name][epoch]] for epoch in range(3)]
        for epoch in epochs:
            assert {seed for batch in epoch for seed in batch} == set(range(num_seeds))
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
        for rank in ranks:
            (message,) = rank[f"warnings of {name}"]
            assert "rank=accelerator.process_index" in message


def test_one_process(
    store: Path, whole: list[list[list[int]]], tmp_path: Path, forks: ForkServer
) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    done = forks.run(RUN_SCRIPT, tmp_path / "worker.py", store, tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "0.json").read_text())
    assert said["recipe"] == whole
    assert (said["batches"], said["strategy"]) == (len(whole[0]) + len(whole[1]), "mmap")
    assert said["seed"][:2] == whole
    check_anew([said], len(gnnstore.open(store).splits["train"]))


def test_two_processes(
    store: Path, whole: list[list[list[int]]], tmp_path: Path, forks: ForkServer
) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    two_forks(forks, tmp_path / "worker.py", store, tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch, batches in enumerate(whole):
        assert ranks[0]["recipe"][epoch] == batches[0::2]
        assert ranks[1]["recipe"][epoch][: len(batches) // 2] == batches[1::2]
    check_anew(ranks, len(gnnstore.open(store).splits["train"]))
