"""Learning that is killed at any moment goes on from a whole commit, with the same losses."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnstore
from gnnstore.converters import from_rmat
from gnnstore.converters.stores.partition import partition
from tests.support.effort import choose
from tests.support.forks import RUN_SCRIPT, ForkServer
from tests.support.stores import write_example_store

pytest.importorskip("torch_geometric")

SCRIPT = Path(__file__).with_name("learn_embeddings.py")
NUM_EPOCHS, EVERY = choose(2, 4), 2
N, DIM = 40, 4
CALLS = ("pwrite", "fsync", "replace", "unlink")


def learn(table: gnnstore.EmbeddingTable, ids: list[int]) -> None:
    """Make a step without autograd, which a fork need not have."""
    optimizer = gnnstore.RowwiseAdagrad(table, lr=0.1)
    rows = table(torch.tensor(ids))
    rows.grad = torch.ones_like(rows)
    optimizer.step()


def perform(path: Path, store: Path, before: Callable[[], None] = lambda: None) -> list[Any]:
    """Commit three times; return the rows after each, as they stand in a new process."""
    table = gnnstore.EmbeddingTable.open(path, store)
    found = [table[:]]
    before()
    for ids in ([1, 2], [2, 3], [1, 4]):
        learn(table, ids)
        table.commit()
        found.append(table[:])
    table.close()
    return found


def kill_at(point: int) -> None:
    """Let this process be killed at its point-th call; half of a write is done then."""
    calls = 0

    def counted(name: str) -> Any:
        call = getattr(os, name)

        def wrapper(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == point:
                if name == "pwrite":
                    descriptor, data, offset = arguments
                    call(descriptor, data[: len(data) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return wrapper

    for name in CALLS:
        setattr(os, name, counted(name))


def test_killed_at_every_call_of_a_commit(tmp_path: Path) -> None:
    store = write_example_store(tmp_path / "a.gnn", num_nodes=N).path
    path, number = tmp_path / "a.emb", 0
    create = gnnstore.EmbeddingTable.create
    create(path, store, dim=DIM).close()
    expected = perform(path, store)
    statuses: list[int] = []
    at = set()
    while not statuses or statuses[-1] != 0:
        number += choose(3, 1)
        create(path, store, dim=DIM, overwrite=True).close()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                perform(path, store, before=partial(kill_at, number))
                status = 0
            finally:
                os._exit(status)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert gnnstore.verify(path).ok
        table = gnnstore.EmbeddingTable.open(path, store)
        at.add(next(i for i, rows in enumerate(expected) if torch.equal(table[:], rows)))
        learn(table, [1])  # it can go on
        table.commit()
        table.close()
        assert gnnstore.verify(path).ok
    assert set(statuses[:-1]) == {-signal.SIGKILL}
    assert len(statuses) > choose(4, 3 * 4)
    assert at == {0, 1, 2, 3}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("partitions", choose([True], [False, True]))
def test_killed_and_resumed(tmp_path: Path, forks: ForkServer, partitions: bool) -> None:
    store = from_rmat(tmp_path / "s.gnn", scale=9, edge_factor=4, feature_dim=1, seed=1)
    partition(store, 4)

    def command(run: Path) -> list[str]:
        run.mkdir(exist_ok=True)
        words = f"--epochs {NUM_EPOCHS} --every {EVERY}" + " --partitions" * partitions
        return [str(SCRIPT), str(store), str(run), *words.split()]

    whole = forks.run(RUN_SCRIPT, *command(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    expected = dict(re.findall(r"(epoch \d+ batch \d+): (.*)\n", whole.stdout))
    assert len(expected) > 5 * NUM_EPOCHS

    chance = random.Random(3)
    seen: dict[str, str] = {}
    starts = set()
    num_kills = choose(2, 30)
    for i in range(num_kills + 1):
        lines = chance.randrange(1, 2 * EVERY + 2)
        with forks.start(RUN_SCRIPT, *command(tmp_path / "killed")) as process:
            for number, line in enumerate(process.stdout, 1):
                name, _, loss = line.partition(": ")
                if number == 1:
                    starts.add(name)
                if not line.endswith("\n"):
                    break  # it was killed in the middle
                assert expected[name] == loss.rstrip(), f"after {i} kills"
                seen[name] = loss.rstrip()
                if number == lines and i < num_kills:
                    process.send_signal(signal.SIGKILL)  # which it may yet go on until
        if process.returncode == 0:
            break
    assert seen == expected
    assert len(starts) > 1
    tables = [
        gnnstore.EmbeddingTable.open(tmp_path / run / "rows.emb", store)
        for run in ("whole", "killed")
    ]
    assert torch.equal(tables[0][:], tables[1][:])
    for table in tables:
        assert gnnstore.verify(table.path).ok
        table.close()
