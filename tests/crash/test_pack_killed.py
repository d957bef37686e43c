"""Packing that is killed, or finds the disk full: clean, or resumed to the same bytes."""

from __future__ import annotations

import errno
import json
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import gnnstore
from gnnstore.errors import NoSpaceError, StorageError, UsageError
from gnnstore.formats.container.workdir import find_leftovers
from gnnstore.testing.graphs import random_graph
from tests.support.batches import assert_same_batches, batches_of
from tests.support.effort import choose
from tests.support.faults import inject
from tests.support.forks import ForkServer
from tests.support.packing import pack, pack_part
from tests.support.stores import assert_same_files

NUM_KILLS = choose(4, 30)
MAX_TOUCH = 100  # packing that nothing stops touches their directory about as often
EPOCHS = 2

# Packs in a forked child for each line that is read: kills it at its k-th touch of the file
# system, or after so many seconds; prints how it ended.
_SERVER = """
import os, signal, sys, traceback
from pathlib import Path

from tests.support.packing import pack, pack_part
from tests.support.filesystem_calls import signal_at_filesystem_call, serve

# What a process has written outlives it without; 40 of them are half of the time.
os.fsync = lambda file: None

store, output = map(Path, sys.argv[1:])

def run_together(tasks):
    children = []
    for task in tasks:
        if not (child := os.fork()):
            try:
                os._exit(run(task))
            except BaseException:
                traceback.print_exc()
                os._exit(99)
        children.append(child)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return ended.count(-signal.SIGKILL) if set(ended) <= {0, -signal.SIGKILL} else 99

def run(task):
    if both := task["options"].get("both"):
        return run_together(both)
    signal_at_filesystem_call(task["touch"], str(output.parent), signal.SIGKILL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process at once
    signal.setitimer(signal.ITIMER_REAL, task["seconds"])
    options = {"superbatch": 2, "batch_size": 100, **task["options"]}
    if part := options.pop("part", None):
        pack_part(store, output, *part, **options)
    else:
        pack(store, [4, 4], output=output, **options)
    return 0

serve(run)
"""

Attempt = Callable[..., int]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that no test changes."""
    graph = random_graph(1000, 12_000, seed=5, feature_dim=100, num_classes=7, edge_feature_dim=3)
    return graph.write(tmp_path_factory.mktemp("store") / "s.gnn")


@pytest.fixture(scope="module")
def whole(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return epochs that were packed in one go."""
    return pack(store, [4, 4], output=tmp_path_factory.mktemp("whole") / "p", superbatch=2)


@contextmanager
def server(forks: ForkServer, store: Path, output: Path) -> Iterator[Attempt]:
    """Yield a function that packs in a process of its own, and returns how that ended."""
    with forks.start(_SERVER, store, output) as process:

        def attempt(*, touch: int = 0, seconds: float = 0, **options: Any) -> int:
            task = {"touch": touch, "seconds": seconds, "options": options}
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            return int(json.loads(process.stdout.readline()))

        yield attempt


@pytest.mark.timeout(600)
def test_parts_killed_and_two_at_once(tmp_path: Path, store: Path, forks: ForkServer) -> None:
    """Whatever attempt ends, at whatever memory and in whatever order: the same bytes."""
    expected, output, num_parts = tmp_path / "expected", tmp_path / "out" / "parts", 3
    output.parent.mkdir()
    for number in range(num_parts):
        pack_part(store, expected, number, num_parts, batch_size=100)
    draw, kills = random.Random(2), 0

    def attempt_at(number: int, *, killed: bool) -> dict[str, Any]:
        options: dict[str, Any] = {"memory": draw.choice(["60MB", "200MB", "1GB"])}
        options |= {"superbatch": draw.choice([1, 2, 5]), "part": [number, num_parts]}
        touch = draw.choice(range(1, 60)) if killed else 0
        return {"touch": touch, "seconds": 0, "options": options}

    with server(forks, store, output) as attempt:
        while kills < choose(2, 30):
            for number in draw.sample(range(num_parts), num_parts):
                while not (output / f"part-{number:05d}-of-00003").exists():
                    second = attempt_at(number, killed=draw.random() < 0.5)
                    found = attempt(both=[attempt_at(number, killed=True), second])
                    assert found in {0, 1, 2}
                    kills += found
                assert attempt(both=[attempt_at(number, killed=False)]) == 0  # it is there
            assert_same_files(output, expected)
            shutil.rmtree(output)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("segment", "kills_at"),
    # Of the 67 touches with segments, those from 21 to 36 come after some superbatch.
    [(1, (NUM_KILLS, range(1, MAX_TOUCH))), (2, (NUM_KILLS // 2, range(21, 60)))],
)
def test_killed_at_random_points(
    tmp_path: Path, store: Path, forks: ForkServer, segment: int, kills_at: tuple[int, range]
) -> None:
    num_kills, touches = kills_at
    untouched = shutil.copytree(store, tmp_path / "untouched.gnn")
    options: dict[str, Any] = {"segment": segment}
    whole = pack(store, [4, 4], output=tmp_path / "whole", superbatch=2, batch_size=100, **options)
    folder = tmp_path / "out"
    folder.mkdir()
    output = folder / "packed"
    draw = random.Random(1)
    kills = resumed = 0
    with server(forks, store, output) as attempt:
        began = time.monotonic()
        assert attempt(**options) == 0
        seconds = time.monotonic() - began
        assert_same_files(output, whole)
        shutil.rmtree(output)
        while kills < num_kills:
            while not output.exists():
                point: dict[str, Any] = {"touch": draw.choice(touches)}
                if draw.random() < 0.5:
                    point = {"seconds": draw.uniform(0.02, 0.95) * seconds}
                left = [item.state for item in find_leftovers(folder)]
                assert set(left) <= {"resumable", "unfinished"}
                resumed += left == ["resumable"]
                status = attempt(**point, resume=True, **options)
                assert status in {0, -signal.SIGKILL, -signal.SIGALRM}
                kills += status != 0
            assert_same_files(output, whole)
            assert [item.name for item in folder.iterdir()] == ["packed"]
            shutil.rmtree(output)
    assert resumed > num_kills // 4
    assert_same_files(store, untouched)


def test_without_resume_it_starts_anew(tmp_path: Path, store: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    leave_unfinished(store, folder / "packed")
    assert [item.state for item in find_leftovers(folder)] == ["resumable"]
    packed = pack(store, [4, 4], output=folder / "packed", superbatch=2)
    assert [item.name for item in folder.iterdir()] == ["packed"]
    assert gnnstore.verify(packed).ok


def leave_unfinished(store: Path, output: Path, **options: Any) -> None:
    """Leave packed epochs of which some superbatches are finished, the disk being full."""
    with (
        inject("fallocate", errno=errno.ENOSPC, skip=3, times=-1),
        pytest.raises(NoSpaceError, match=r"no space left.*What was finished .*resume=True"),
    ):
        pack(store, [4, 4], output=output, superbatch=2, **options)


def test_a_full_disk(tmp_path: Path, store: Path, whole: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    leave_unfinished(store, folder / "packed")
    assert not (folder / "packed").exists()
    # Another thread count, or another budget of disk, makes no difference to the bytes.
    packed = pack(
        store,
        [4, 4],
        output=folder / "packed",
        superbatch=2,
        resume=True,
        num_threads=1,
        disk_bytes=10**9,
    )
    assert_same_files(packed, whole)
    assert [item.name for item in folder.iterdir()] == ["packed"]


def test_an_error_of_the_disk(tmp_path: Path, store: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with inject("pwrite", errno=errno.EIO, skip=20, times=-1), pytest.raises(StorageError):
        pack(store, [4, 4], output=folder / "packed", superbatch=2)
    packed = pack(store, [4, 4], output=folder / "packed", superbatch=2, resume=True)
    assert_same_batches(
        batches_of(gnnstore.open_packed(packed).loader(), EPOCHS),
        batches_of(
            gnnstore.NeighborLoader(
                store, [4, 4], "train", batch_size=50, shuffle=True, seed=3, strategy="memory"
            ),
            EPOCHS,
        ),
    )


def test_a_budget_of_disk_that_runs_out(tmp_path: Path, store: Path, whole: Path) -> None:
    size = gnnstore.open_packed(whole).reader.total_bytes
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(NoSpaceError, match=r"of 24 batches take .* raise --disk.*resume=True"):
        pack(store, [4, 4], output=folder / "packed", superbatch=2, disk_bytes=size // 2)
    options: dict[str, Any] = {"output": folder / "packed", "superbatch": 2, "resume": True}
    assert_same_files(pack(store, [4, 4], disk_bytes=2 * size, **options), whole)


def test_other_epochs_are_not_continued(tmp_path: Path, store: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    leave_unfinished(store, folder / "packed")
    others: dict[str, Any] = {
        "seed": 4,
        "epochs": 3,
        "batch_size": 60,
        "cache_bytes": "50kB",
        "shuffle": False,
        "segment": 2,
    }
    for name, value in others.items():
        options = {"superbatch": 2, "resume": True, name: value}
        with pytest.raises(UsageError, match=f"cannot be continued.*{name} was"):
            pack(store, [4, 4], output=folder / "packed", **options)
        assert [item.state for item in find_leftovers(folder)] == ["resumable"]


def test_a_full_disk_while_segments_are_packed(tmp_path: Path, store: Path) -> None:
    whole = pack(store, [4, 4], output=tmp_path / "whole", superbatch=2, segment=2)
    folder = tmp_path / "out"
    folder.mkdir()
    leave_unfinished(store, folder / "packed", segment=2)
    packed = pack(store, [4, 4], output=folder / "packed", superbatch=2, segment=2, resume=True)
    assert_same_files(packed, whole)


def test_what_was_damaged_meanwhile_is_packed_again(
    tmp_path: Path, store: Path, whole: Path
) -> None:
    for name in ("batches/c.0", "rows/x/c.0"):
        folder = tmp_path / name.split("/", maxsplit=1)[0]
        folder.mkdir()
        leave_unfinished(store, folder / "packed")
        (left,) = folder.iterdir()
        with (left / name).open("r+b") as file:
            file.seek((left / name).stat().st_size // 2)
            file.write(b"damage")
        packed = pack(store, [4, 4], output=folder / "packed", superbatch=2, resume=True)
        assert_same_files(packed, whole)
