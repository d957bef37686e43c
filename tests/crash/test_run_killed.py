"""A run that is killed leaves its directory to the next run, and to nobody before it is dead."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnnstore.disk.spool import RunDirectory, sweep_stale
from gnnstore.formats.container.workdir import find_leftovers
from tests.support.effort import choose

NUM_KILLS = choose(2, 12)

# Makes and closes directories all the time, or writes to one for ever, batch by batch.
SPILLING = """
import sys
from pathlib import Path
import numpy as np
from gnnstore.disk.spool import RunDirectory
from gnnstore.disk.spool import FileSpool

parent, num_batches = Path(sys.argv[1]), int(sys.argv[2])
if num_batches:
    print("ready", flush=True)
while True:
    with RunDirectory.create(parent, purpose="tests") as run:
        file = FileSpool(run.path / "subgraphs", num_batches or 10**6)
        i = 0
        while not num_batches or i < num_batches:
            file.append(i, [np.arange(1000 * (i % 20))])
            assert len(file.read(i)[0]) == 1000 * (i % 20)
            file.drop(i)
            i += 1
            if i == 1 and not num_batches:
                print("ready", flush=True)
        file.close()
"""

# Makes one, and lets a process of its own live on that it has forked off.
FORKING = """
import os, signal, sys
from pathlib import Path
from gnnstore.disk.spool import RunDirectory

run = RunDirectory.create(Path(sys.argv[1]), purpose="tests")
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
signal.pause()
"""


@contextmanager
def running(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(300)
def test_killed_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(0)
    for kill in range(NUM_KILLS):
        num_batches = kill % 2 * 20
        before = set(tmp_path.iterdir())
        with running(SPILLING, tmp_path, num_batches) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0, 0.05))
            # One that is made, and not locked yet, may be swept: its run makes another.
            assert len(sweep_stale(tmp_path)) <= (num_batches > 0)
            assert process.poll() is None
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        left = [found for found in find_leftovers(tmp_path) if found.path not in before]
        if num_batches == 0:  # it was killed within its directory, not between two
            assert [found.state for found in left] == ["stale"]
            assert left[0].num_bytes > 0
        with RunDirectory.create(tmp_path, purpose="tests") as run:
            others = [path for path in tmp_path.iterdir() if path != run.path]
            assert others == []


def test_the_directory_lives_as_long_as_a_child(tmp_path: Path) -> None:
    with running(FORKING, tmp_path) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        try:
            assert sweep_stale(tmp_path) == []
            assert [found.state for found in find_leftovers(tmp_path)] == ["running"]
        finally:
            os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + 10
    removed: list[Path] = []
    while not removed and time.monotonic() < deadline:
        removed = sweep_stale(tmp_path)
        time.sleep(0.01)
    assert len(removed) == 1
    assert list(tmp_path.iterdir()) == []
