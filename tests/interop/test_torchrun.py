"""Two processes under torchrun: their batches are one epoch, and neither waits for ever."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

import gnnstore
from gnnstore.converters import from_rmat
from tests.support.batches import two_forks
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
