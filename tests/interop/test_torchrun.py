"""Two processes under torchrun: their batches are one epoch, and neither waits for ever."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

import gnnstore
from gnnstore.converters import from_rmat
from tests.support.batches import ranks_in_forks, two_forks
from tests.support.effort import is_long
from tests.support.forks import ForkServer

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
        reason="torch was built without gloo",
    ),
]

EXAMPLES = Path(__file__).parents[2] / "examples"

# Notes every batch, and makes a step with it for which both processes wait for each other: two
# whole epochs; then some batches of one, and what is left in a loader with the other's state.
WORKER = """
import json, sys
from itertools import islice
from pathlib import Path
import torch
import torch.distributed as dist
import gnnstore

sys.path.insert(0, sys.argv[2])
from noting import noted

dist.init_process_group("gloo")
rank = dist.get_rank()
said = {}
for options in json.loads(sys.argv[3]):
    def make():
        return gnnstore.NeighborLoader(
            sys.argv[1], [4, 4], "train", shuffle=True, seed=5, num_threads=2,
            rank=rank, world_size=dist.get_world_size(), **options,
        )

    def run(loader, num_batches=None):
        found = []
        for batch in islice(loader, num_batches):
            found.append(noted(batch))
            dist.all_reduce(torch.ones(1))
        return found

    loader = make()
    whole = [run(loader), run(loader)]
    stopped, resumed = make(), make()
    before = run(stopped, 2)
    states = [None, None]
    dist.all_gather_object(states, stopped.state_dict())
    resumed.load_state_dict(json.loads(json.dumps(states[1 - rank])))
    after = run(resumed)
    used = loader.stats().strategy
    said[used] = {"whole": whole, "before": before, "after": after, "states": states}
Path(sys.argv[2], f"{rank}.json").write_text(json.dumps(said))
dist.destroy_process_group()
"""

NOTING = """
import hashlib

def noted(batch):
    names = ("n_id", "edge_index", "e_id", "x", "y")
    everything = b"".join(batch[name].numpy().tobytes() for name in names)
    return [batch.input_id.tolist(), hashlib.sha256(everything).hexdigest()]
"""

NUM_SEEDS = 217
BATCH_SIZE = 32
NUM_BATCHES = 7  # the last of 25 seeds, and none for rank 1 to match the last of rank 0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = from_rmat(tmp_path_factory.mktemp("torchrun") / "r.gnn", scale=9, feature_dim=16)
    assert len(gnnstore.open(path).splits["train"]) == NUM_SEEDS
    return path


# The launcher is a fork; it starts the processes as it always does, as new interpreters.
LAUNCH = "import sys; from torch.distributed.run import main; main(sys.argv[1:])"


def torchrun(forks: ForkServer, script: Path, *arguments: object) -> str:
    """Run a script as torchrun does, in the long form by torchrun; return what it prints."""
    if not is_long():  # which imports torch twice
        return two_forks(forks, script, *arguments)
    launcher = ("--standalone", "--nproc-per-node", 2)
    done = forks.run(
        LAUNCH,
        *launcher,
        script,
        *arguments,
        environment=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_ranks(store: Path, tmp_path: Path, forks: ForkServer) -> None:
    """Every batch is one of the single process's, and both go on in the middle of an epoch."""
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "noting.py").write_text(NOTING)
    names: dict[str, Any] = {}
    exec(NOTING, names)  # noqa: S102 - our own
    alone = gnnstore.NeighborLoader(
        store, [4, 4], "train", shuffle=True, seed=5, batch_size=BATCH_SIZE, strategy="mmap"
    )
    single = [[names["noted"](batch) for batch in alone] for _ in range(2)]
    assert [len(epoch) for epoch in single] == [NUM_BATCHES] * 2

    ways: list[dict[str, Any]] = [
        {"strategy": "memory"},
        {"strategy": "belady", "memory": "64MB", "superbatch": 2},
    ]
    ways = [way | {"batch_size": BATCH_SIZE} for way in ways]
    two_forks(forks, tmp_path / "worker.py", store, tmp_path, json.dumps(ways))
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for strategy in ("memory", "belady"):
        first, second = (said[strategy] for said in ranks)
        for epoch, batches in enumerate(single):
            assert first["whole"][epoch] == batches[0::2]
            # As many as the other: the eighth of seven batches is the first once more.
            assert second["whole"][epoch] == [*batches[1::2], batches[0]]
        both = [*first["whole"][0], *second["whole"][0]]
        assert {seed for seeds, _ in both for seed in seeds} == set(range(NUM_SEEDS))
        for said in (first, second):
            assert said["states"][0] == said["states"][1]
            assert said["before"] + said["after"] == said["whole"][0]


# The model, and its loss on a batch; of the worker, and of the single process that it is compared
# with.
MODEL = """
import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

def made():
    torch.manual_seed(0)
    model = SAGEConv(16, 8)
    return model, torch.optim.SGD(model.parameters(), lr=0.05)

def loss_of(model, batch):
    out = model(batch.x, batch.edge_index)[: batch.batch_size]
    return F.cross_entropy(out, batch.input_id % 8)

def gradient_of(model):
    return torch.cat([each.grad.reshape(-1) for each in model.parameters()])
"""

# Trains two epochs, from the last checkpoint on, and is killed after some steps.
TRAINING = """
import json, os, signal, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gnnstore

folder, num_steps = Path(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, str(folder))
from model import gradient_of, loss_of, made

def train():
    model, optimizer = made()
    rank, size, done = dist.get_rank(), dist.get_world_size(), 0
    loader = gnnstore.NeighborLoader(
        sys.argv[1], [4, 4], "train", batch_size=32, shuffle=True, seed=5, num_threads=1,
        rank=rank, world_size=size,
    )
    checkpoint = folder / "run.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
    parallel = DistributedDataParallel(model)
    with open(folder / f"{size}-{rank}.jsonl", "w") as notes:
        for _ in range(loader.epoch, 2):
            for batch in loader:
                optimizer.zero_grad()
                loss_of(parallel, batch).backward()
                said = {"seeds": batch.input_id.tolist(), "gradient": gradient_of(model).tolist()}
                print(json.dumps(said), file=notes, flush=True)
                optimizer.step()
                if rank == 0:
                    state = {"model": model.state_dict(), "loader": loader.state_dict()}
                    torch.save(state, checkpoint.with_suffix(".tmp"))
                    checkpoint.with_suffix(".tmp").replace(checkpoint)
                dist.barrier()
                done += 1
                if done == num_steps:
                    os.kill(os.getpid(), signal.SIGKILL)

dist.init_process_group("gloo")
train()
dist.destroy_process_group()
"""


def test_killed_and_resumed_by_other_numbers_of_ranks(
    store: Path, tmp_path: Path, forks: ForkServer
) -> None:
    """With 2 ranks, then 1, then 3: the steps of one process that has the same batches."""
    (tmp_path / "worker.py").write_text(TRAINING)
    (tmp_path / "model.py").write_text(MODEL)
    names: dict[str, Any] = {}
    exec(MODEL, names)  # noqa: S102 - our own
    for num_ranks, num_steps in ((2, 2), (1, 2), (3, 0)):
        run_ranks(forks, num_ranks, num_steps, tmp_path / "worker.py", store, tmp_path)
    loader = gnnstore.NeighborLoader(
        store, [4, 4], "train", batch_size=BATCH_SIZE, shuffle=True, seed=5, strategy="mmap"
    )
    batches = {(epoch, k): batch for epoch in range(2) for k, batch in enumerate(loader)}
    numbers = {str(batch.input_id.tolist()): key for key, batch in batches.items()}
    model, optimizer = names["made"]()
    taken: list[tuple[int, int]] = []
    for num_ranks in (2, 1, 3):
        files = [tmp_path / f"{num_ranks}-{rank}.jsonl" for rank in range(num_ranks)]
        for lines in zip(*(file.read_text().splitlines() for file in files), strict=True):
            notes = [json.loads(line) for line in lines]
            gradients = []
            for said in notes:
                taken.append(numbers[str(said["seeds"])])
                optimizer.zero_grad()
                names["loss_of"](model, batches[taken[-1]]).backward()
                gradients.append(names["gradient_of"](model))
            mean = torch.stack(gradients).mean(dim=0)
            for said in notes:
                found = torch.tensor(said["gradient"])
                torch.testing.assert_close(found, mean, rtol=1e-5, atol=1e-7)
            place = 0
            for each in model.parameters():
                each.grad = mean[place : place + each.numel()].view_as(each)
                place += each.numel()
            optimizer.step()
    first, second = ([k for of, k in taken if of == epoch] for epoch in range(2))
    # Of the first epoch, two steps of 2, two of 1, and one of 3; of the second, three of 3.
    assert first == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert second == [0, 1, 2, 3, 4, 5, 6, 0, 1]


def run_ranks(
    forks: ForkServer, num_ranks: int, num_steps: int, script: Path, *arguments: object
) -> None:
    """Run some steps on ranks, which are killed then; with 0 steps, all of them."""
    arguments = (*arguments, num_steps)
    if not is_long():
        # What the first rank ends with, whose end the others do not wait for.
        status = -signal.SIGKILL if num_steps else 0
        ranks_in_forks(forks, num_ranks, script, *arguments, status=status)
        return
    launcher = ("--standalone", "--nproc-per-node", num_ranks)
    done = forks.run(
        LAUNCH, *launcher, script, *arguments, environment=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert (done.returncode == 0) == (num_steps == 0), done.stderr


def losses(output: str, rank: int) -> list[tuple[str, str]]:
    # Lines of two processes may be mixed, since Python writes the end of a line by itself.
    return re.findall(rf"rank {rank} epoch (\d+) loss (\d+\.\d+)", output)


def test_the_example(store: Path, tmp_path: Path, forks: ForkServer) -> None:
    """Under torchrun; and it goes on after its last checkpoint, dropout included."""
    options: Sequence[object] = (store, "--fanouts", "5,5", "--hidden", 16, "--batch-size", 32)
    options = (*options, "--epochs", 2)
    script = EXAMPLES / "train_distributed.py"
    whole = torchrun(forks, script, *options, "--checkpoint", tmp_path / "run.pt", "--every", 3)
    assert whole.count("valid") == 2
    resumed = two_forks(forks, script, *options, "--checkpoint", tmp_path / "run.pt")
    for rank in range(2):
        assert len(losses(whole, rank)) == 8  # four of each epoch
        assert losses(resumed, rank) == losses(whole, rank)[7:]
