"""Partitioning that is killed, or finds the disk full: clean, or resumed to the same bytes."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gnnstore.converters import partition
from gnnstore.converters.stores import partition as work
from gnnstore.errors import NoSpaceError, StorageError, StoreExistsError, UsageError
from gnnstore.formats.arrays import pages
from gnnstore.formats.base import files
from gnnstore.formats.container.workdir import find_leftovers
from gnnstore.pipeline.check import verify
from gnnstore.testing.graphs import random_graph
from tests.support.effort import choose
from tests.support.forks import ForkServer
from tests.support.stores import assert_same_files

NUM_KILLS = choose(5, 30)
SHARD_BYTES = 2**16

# Partitions in a forked child for each line that is read, and kills it at its k-th touch of the
# file system; prints how it ended. Edges and rows of test size do not fit in the memory given.
_SERVER = """
import os, signal, sys

from gnnstore.converters import partition
from gnnstore.converters.stores import partition as work
from gnnstore.formats.arrays import pages
from tests.support.filesystem_calls import signal_at_filesystem_call, serve

store = sys.argv[1]
os.fsync = lambda file: None  # what a process has written outlives it without
pages.MIN_DEFAULT_SHARD_BYTES = int(sys.argv[2])
work._WORK_BYTES = work._BUFFER_BYTES = 0
work._LEAST_TO_SORT = 2**12

def run(task):
    signal_at_filesystem_call(task["touch"], os.path.dirname(store), signal.SIGKILL)
    partition(store, 5, name="small", train_first="train", resume=True, memory_bytes=task["memory"])
    return 0

serve(run)
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    graph = random_graph(3000, 20_000, seed=5, feature_dim=50, num_classes=7, skew=2)
    return graph.write(tmp_path / "s.gnn")


@pytest.fixture
def whole(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Partition in one go, with all memory there is."""
    monkeypatch.setattr(pages, "MIN_DEFAULT_SHARD_BYTES", SHARD_BYTES)
    return partition(store, 5, output=tmp_path / "whole", train_first="train")


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return arguments with which edges and rows go to the disk."""
    for name in ("_WORK_BYTES", "_BUFFER_BYTES"):
        monkeypatch.setattr(work, name, 0)
    monkeypatch.setattr(work, "_LEAST_TO_SORT", 2**12)
    return {"name": "small", "train_first": "train", "memory_bytes": 200_000}


@contextmanager
def failing_writes(number: int, skip: int) -> Iterator[None]:
    """Have all writes of arrays fail but the first ones."""
    real, calls = files.write_all, count()

    def write(file: FileIO, data: memoryview) -> None:
        if next(calls) >= skip:
            raise OSError(number, os.strerror(number))
        real(file, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_all", write)
        yield


@pytest.mark.timeout(600)
def test_killed_at_random_points(store: Path, whole: Path, forks: ForkServer) -> None:
    output = store / "partitions" / "small"
    draw = random.Random(1)
    kills = resumed = 0
    with forks.start(_SERVER, store, SHARD_BYTES) as process:

        def attempt(touch: int) -> int:
            # Another budget makes no difference to the bytes, also of an attempt that goes on.
            task = {"touch": touch, "memory": draw.choice([100_000, 200_000, 10**8])}
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            return int(json.loads(process.stdout.readline()))

        while kills < NUM_KILLS:
            while not output.exists():
                if output.parent.exists():
                    left = [item.state for item in find_leftovers(output.parent)]
                    assert set(left) <= {"resumable", "unfinished"}
                    resumed += left == ["resumable"]
                status = attempt(draw.randrange(1, 250))
                assert status in {0, -signal.SIGKILL}
                kills += status != 0
            assert_same_files(output, whole)
            assert sorted(p.name for p in output.parent.iterdir()) == ["small", "zarr.json"]
            shutil.rmtree(output.parent)
    assert resumed > NUM_KILLS // 4


def test_a_full_disk(store: Path, whole: Path, small_memory: dict[str, Any]) -> None:
    with (
        failing_writes(errno.ENOSPC, 8),
        pytest.raises(NoSpaceError, match=r"no space left.*is kept in .*resume=True"),
    ):
        partition(store, 5, **small_memory)
    assert [i.state for i in find_leftovers(store / "partitions")] == ["resumable"]
    with pytest.raises(UsageError, match="seed was 0 and is 1 now"):
        partition(store, 5, seed=1, resume=True, **small_memory)
    assert_same_files(partition(store, 5, resume=True, **small_memory), whole)
    assert list(find_leftovers(store / "partitions")) == []
    with pytest.raises(StoreExistsError, match="exists"):
        partition(store, 5, **small_memory)


def test_too_little_space_is_told_before_anything_is_written(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnstore.formats.base.files.free_bytes", lambda _: 10_000)
    with pytest.raises(NoSpaceError, match=r"about .* needed, and 10 kB are free\. Free .* or "):
        partition(store, 5)
    assert not (store / "partitions").exists()


@pytest.mark.parametrize("skip", choose([3], [0, 3, 12]))
def test_an_error_of_the_disk(
    store: Path, whole: Path, small_memory: dict[str, Any], skip: int
) -> None:
    with failing_writes(errno.EIO, skip), pytest.raises(StorageError):
        partition(store, 5, **small_memory)
    assert_same_files(partition(store, 5, resume=True, **small_memory), whole)


def test_replacing(store: Path) -> None:
    """Partitions stay until those that replace them are complete."""
    path = partition(store, 5, name="a")
    with failing_writes(errno.EIO, 2), pytest.raises(StorageError):
        partition(store, 4, name="a", overwrite=True)
    assert verify(store, "full").ok
    assert (path / "zarr.json").read_text().count('"num_partitions": 5') == 1
    partition(store, 4, name="a", overwrite=True)
    assert (path / "zarr.json").read_text().count('"num_partitions": 4') == 1
    assert sorted(p.name for p in path.parent.iterdir()) == ["a", "zarr.json"]
