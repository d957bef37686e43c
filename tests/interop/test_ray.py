"""Parts packed as tasks on a Ray cluster, and Ray Train with workers that come and go."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch_geometric")

import gnnstore
from gnnstore.errors import InputError, StorageError
from gnnstore.packing.on_ray import run_on_ray
from gnnstore.tools import cli
from tests.support.graphs import graph_with_hubs
from tests.support.stores import assert_same_files

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.timeout(600)
WORDS = ("--num-neighbors", "4,4", "--batch-size", "50", "--cache-by", "degree")
BUDGETS = ("--cache-bytes", "50kB", "--memory", "200MB", "--threads", "1")
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_ray.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


def run(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> Any:
    assert cli.main([*map(str, words), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_parts_are_those_of_single_tasks(
    cluster: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = graph_with_hubs().write(tmp_path / "g.gnn")
    for number in range(3):
        run(
            capsys,
            "pack",
            path,
            "--output",
            tmp_path / "one",
            "--part",
            f"{number}/3",
            *WORDS,
            *BUDGETS,
        )
    found = run(capsys, "pack", path, "--output", tmp_path / "ray", "--ray", 3, *WORDS, *BUDGETS)
    assert (found["num_parts"], found["num_batches"]) == (3, 12)
    assert_same_files(tmp_path / "one", tmp_path / "ray")
    (tmp_path / "one").rename(tmp_path / "other")
    message = run(
        capsys, "pack", path, "--output", tmp_path / "other", "--ray", 3, *WORDS, *BUDGETS,
        "--seed", "1", status=2,
    )["error"]["message"]  # fmt: skip
    assert "is there, and was packed otherwise: seed is 0, not 1" in message
    message = run(
        capsys, "pack", path, "--output", tmp_path / "more", "--ray", 3, *WORDS, *BUDGETS[:-1],
        "500", status=2,
    )["error"]["message"]  # fmt: skip
    assert "a task takes 500 processors and 200 MB, and no node of the cluster has both" in message


def test_lost_workers_and_errors(cluster: None, tmp_path: Path) -> None:
    given: dict[str, Any] = {"num_cpus": 1, "memory_bytes": 10**6}

    def killed_at_first(number: int) -> int:
        marker = tmp_path / str(number)
        if number == 1 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number

    done: dict[int, int] = {}
    run_on_ray(killed_at_first, 4, on_done=done.__setitem__, **given)
    assert done == {0: 0, 1: 1, 2: 4, 3: 9}

    def wrong(number: int) -> int:
        marker = tmp_path / f"wrong{number}"
        assert not marker.exists()  # it is not tried again
        marker.touch()
        raise InputError(f"task {number}: bad input", path="x")

    with pytest.raises(InputError, match="task 0: bad input") as info:
        run_on_ray(wrong, 1, on_done=done.__setitem__, **given)
    assert info.value.path == "x"


def test_no_cluster_where_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(StorageError, match=r"no Ray cluster at RAY_ADDRESS=127\.0\.0\.1:9 \("):
        run_on_ray(int, 1, num_cpus=1, memory_bytes=1, on_done=lambda *_: None)


# Trains as the example does, and notes each batch that a worker gets.
_TRAIN = """
import os, sys
import ray

EXAMPLES, NOTED, PATH, WORKERS, EPOCHS, STORAGE = sys.argv[1:]
sys.path.insert(0, EXAMPLES)
import train_ray

def train(config):
    import hashlib, os, sys, types, uuid
    import gnnstore, ray.train

    sys.path.insert(0, config["examples"])
    import train_ray

    class Noting(gnnstore.NeighborLoader):
        def __iter__(self):
            context, epoch = ray.train.get_context(), self.epoch
            for step, batch in enumerate(super().__iter__()):
                values = batch.input_id.numpy().tobytes() + batch.n_id.numpy().tobytes()
                digest = hashlib.sha256(values).hexdigest()
                name = f"{context.get_world_size()}-{step}-{uuid.uuid4().hex}"
                hidden = os.path.join(config["noted"], f".{name}")
                with open(hidden, "w") as file:
                    file.write(f"{os.getpid()} {epoch} {digest}")
                os.rename(hidden, os.path.join(config["noted"], name))
                yield batch

    train_ray.gnnstore = types.SimpleNamespace(open=gnnstore.open, NeighborLoader=Noting)
    train_ray.train(config)

train_ray.train = train
words = [PATH, "--workers", WORKERS, WORKERS, "--epochs", EPOCHS, "--storage", STORAGE]
words += ["--fanouts", "4,4", "--batch-size", "50", "--every", "1", "--hidden", "8"]
arguments = train_ray.parse([*words, "--memory", "300MB"])
arguments.examples, arguments.noted = EXAMPLES, NOTED
ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
train_ray.main(arguments)
"""


@pytest.mark.long("Ray Train takes minutes")
def test_training_goes_on_with_other_numbers_of_workers(tmp_path: Path) -> None:
    """Two workers, of which one is killed; then one; then three: the batches are those of one."""
    path, noted = graph_with_hubs().write(tmp_path / "g.gnn"), tmp_path / "noted"
    noted.mkdir()
    for epochs, workers in enumerate((2, 1, 3), 1):
        words = [EXAMPLE.parent, noted, path, workers, epochs, tmp_path / "runs"]
        process = subprocess.Popen([sys.executable, "-c", _TRAIN, *map(str, words)])
        if workers == 2:
            while not (files := list(noted.glob("2-3-*"))):
                time.sleep(0.05)
                assert process.poll() is None
            os.kill(int(files[0].read_text().split()[0]), signal.SIGKILL)
        assert process.wait(timeout=300) == 0
    found = [set[str](), set[str](), set[str]()]
    for file in noted.iterdir():
        _, epoch, digest = file.read_text().split()
        found[int(epoch)].add(digest)
    loader = gnnstore.NeighborLoader(path, [4, 4], "train", batch_size=50, shuffle=True, seed=0)
    for own in found:
        values = (b.input_id.numpy().tobytes() + b.n_id.numpy().tobytes() for b in loader)
        assert own == {hashlib.sha256(each).hexdigest() for each in values}


def test_the_extra_names_ray() -> None:
    text = (EXAMPLE.parents[1] / "pyproject.toml").read_text()
    assert re.search(r'^ray = \["ray\[train\]>=2.60"\]$', text, re.MULTILINE)
