"""Planned strategies on a bad day: nothing hangs, nothing is left behind, and the next run works.

A thread that waits for a batch, a superbatch or a disk that never comes reaches the time limit.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.disk.spool import FileSpool
from gnnstore.errors import NoSpaceError, StorageError
from gnnstore.features.chunks import PackedSuperbatch
from gnnstore.features.planned import TurnLock
from gnnstore.pipeline import batch as pipeline
from gnnstore.pipeline.lookahead.epochs import LookaheadEpochs
from gnnstore.pipeline.lookahead.producer import Producer
from gnnstore.pipeline.lookahead.superbatch import DiskQuota
from gnnstore.strategies.registry import STRATEGIES
from gnnstore.testing.graphs import random_graph
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import choose
from tests.support.faults import inject
from tests.support.forks import ForkServer, check_in_fork
from tests.support.loaders import (
    override_sizes,
    superbatches_of,
    threads_of_loaders,
    wait_for,
    wait_until_nothing_is_left,
)
from tests.support.packing import pack

pytestmark = pytest.mark.timeout(120)

PLANNED = [strategy.name for strategy in STRATEGIES if strategy.plans]
OPTIONS: dict[str, Any] = {"batch_size": 25, "shuffle": True, "seed": 3}


@pytest.fixture(scope="module")
def expected(path: Path) -> Batches:
    return batches_of(NeighborLoader(path, [4, 4], "train", strategy="memory", **OPTIONS))


def loader_of(path: Any, **options: Any) -> NeighborLoader:
    defaults: dict[str, Any] = {"strategy": "belady", "cache_bytes": "20kB", "superbatch": 5}
    return NeighborLoader(path, [4, 4], "train", **(defaults | OPTIONS | options))


# --- a superbatch that is never done with ------------------------------------------------------


@pytest.mark.parametrize("superbatch", choose([3], [1, 3]))
@pytest.mark.parametrize("what", ["packed rows", "subgraphs"])
def test_packed_rows_that_cannot_be_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, superbatch: int, what: str
) -> None:
    """With many batches in flight the consumer waits for a superbatch beyond the failed one.

    That is packed when there is room, and room comes when the failed one has been given up.
    """
    loader = loader_of(
        path, strategy="packed", superbatch=superbatch, num_threads=4, prefetch_batches=16,
        spill_dir=tmp_path, cache_bytes=1000,
    )  # fmt: skip
    override_sizes(loader, in_memory=what == "packed rows")
    read_rows, read_subgraph, calls = PackedSuperbatch.read, FileSpool.read, iter(range(10**6))

    def failing(self: PackedSuperbatch, *arguments: Any) -> Any:
        if next(calls) == 2:
            raise StorageError("out of order", path="here")
        return read_rows(self, *arguments)

    def truncated(self: FileSpool, i: int) -> Any:
        if next(calls) == 3:
            os.truncate(self.path, 0)
        return read_subgraph(self, i)

    if what == "packed rows":
        monkeypatch.setattr(PackedSuperbatch, "read", failing)
    else:
        monkeypatch.setattr(FileSpool, "read", truncated)
    with pytest.raises(StorageError, match=r"out of order|read the subgraph of batch"):
        list(loader)
    monkeypatch.undo()
    wait_until_nothing_is_left(tmp_path)
    loader.set_epoch(0)
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("kind", choose(["belady"], ["belady", "packed before", "packed"]))
def test_a_batch_that_fails_between_its_sample_and_its_rows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The next one waits for it to have taken its turn; the consumer waits for that thread."""
    options: dict[str, Any] = {"num_threads": 2, "spill_dir": tmp_path, "strategy": kind}
    if kind == "packed before":
        packed = pack(path, [4, 4], batch_size=25, output=tmp_path / "packed", cache_bytes="20kB")
        options = {"num_threads": 2, "packed": packed, "strategy": "auto", "cache_bytes": None}
        options |= {"superbatch": None}
    loader = loader_of(path, **options)
    wait, measure = TurnLock.wait, pipeline._measure
    locks: list[TurnLock] = []
    calls, is_waited_for = iter(range(10**6)), threading.Event()

    def noted(self: TurnLock, number: int) -> bool:
        locks.append(self)
        is_waited_for.set()
        return wait(self, number)

    def failing(batch: pipeline.Batch) -> None:
        if next(calls) == 0:
            is_waited_for.wait(10)
            raise MemoryError("out of memory")
        measure(batch)

    errors: list[BaseException] = []

    def train() -> None:
        try:
            list(loader)
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(TurnLock, "wait", noted)
    monkeypatch.setattr(pipeline, "_measure", failing)
    training = threading.Thread(target=train, daemon=True)
    training.start()
    training.join(30)
    is_held_up = training.is_alive()
    for turns in locks:
        turns.cancel()  # or a failure of this test would hold up all others
    training.join()
    monkeypatch.undo()
    assert is_waited_for.is_set()
    assert not is_held_up
    assert "out of memory" in str(errors[0])
    wait_for(lambda: not threads_of_loaders())
    loader.set_epoch(0)
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("prefetch_batches", choose([40], [1, 40]))
def test_no_more_than_two_superbatches_are_packed(
    path: Path, tmp_path: Path, expected: Batches, prefetch_batches: int
) -> None:
    """Where the consumer itself assembles batches, it cannot wait until others have: it reads."""
    most = 0

    def look(output: Any) -> Any:
        nonlocal most
        most = max(most, len(list(tmp_path.glob(".gnnstore-run-*/packed-*"))))
        return output

    loader = loader_of(
        path, strategy="packed", superbatch=1, num_threads=3, spill_dir=tmp_path,
        prefetch_batches=prefetch_batches, transform_sampler_output=look,
    )  # fmt: skip
    assert_same_batches(batches_of(loader), expected)
    assert 1 <= most <= 2


@pytest.mark.parametrize("on_disk", choose([True], [False, True]))
@pytest.mark.parametrize("share", choose([0.6], [0.0, 0.6, 1.5]))
def test_more_is_missed_than_there_is_disk_for(
    path: Path, tmp_path: Path, expected: Batches, share: float, on_disk: bool
) -> None:
    """What does not fit is read from the table; a second superbatch waits until there is room."""
    loader = loader_of(
        path, strategy="packed", superbatch=3, num_threads=2, spill_dir=tmp_path, prefetch_batches=8
    )
    job = superbatches_of(loader).job
    if on_disk:
        override_sizes(loader, table_bytes=256)
    list(loader)
    packed = job.totals.bytes_spilled // -(-len(loader) // 3)
    job.quota = DiskQuota(int(share * packed))
    loader.set_epoch(0)
    most = 0
    for batch, wanted in zip(loader, expected, strict=True):
        assert_same_batches([batch.to_dict()], [wanted])
        # os.walk passes over what is removed meanwhile.
        files = [Path(of, name) for of, _, names in os.walk(tmp_path) for name in names]
        runs = [file for file in files if file.parent.name.startswith("packed-")]
        most = max(most, sum(_size_of(file) for file in runs))
    assert most <= job.quota.num_bytes
    assert (most > 0) == (share > 0)


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # it has just been done with
        return 0


@pytest.mark.parametrize("kind", ["no features", "features of edges", "held in memory"])
def test_there_may_be_nothing_to_pack(tmp_path: Path, kind: str) -> None:
    graph = random_graph(200, 1500, seed=5, feature_dim=3)
    rng = np.random.default_rng(1)
    if kind != "held in memory":
        graph.attributes.clear()
    if kind == "features of edges":
        graph.attributes["edge_attr"] = rng.random((1500, 20), dtype=np.float32)
    path = graph.write(tmp_path / "s.gnn")
    options: dict[str, Any] = {"batch_size": 20, "seed": 1}
    loader = NeighborLoader(
        path, [3], strategy="packed", superbatch=2, memory="60MB", num_threads=1, **options
    )
    plain = NeighborLoader(path, [3], strategy="memory", **options)
    assert_same_batches(batches_of(loader), batches_of(plain))


# --- disks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tiny_disk", ["32k"], indirect=True)
@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("strategy", PLANNED)
def test_a_disk_that_is_full(
    path: Path, tiny_disk: Path, expected: Batches, strategy: str, num_threads: int
) -> None:
    tmp_path = tiny_disk.parent
    loader = loader_of(
        path, strategy=strategy, superbatch=20, spill_dir=tmp_path, num_threads=num_threads
    )
    override_sizes(loader, in_memory=False)
    job = superbatches_of(loader).job
    job.spill_dir = tiny_disk
    got: list[Any] = []
    with pytest.raises(NoSpaceError, match=r"no space left .* Free "):
        got.extend(loader)
    wait_until_nothing_is_left(tiny_disk)
    job.spill_dir = tmp_path
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader), expected)


def test_a_disk_that_is_full_while_rows_are_packed(path: Path, tmp_path: Path) -> None:
    loader = loader_of(path, strategy="packed", num_threads=2, spill_dir=tmp_path, cache_bytes=0)
    with (
        inject("pwrite", errno=errno.ENOSPC, skip=2, times=10**6) as fault,
        pytest.raises(NoSpaceError),
    ):
        list(loader)
    assert fault.count > 0
    wait_until_nothing_is_left(tmp_path)


KILLED = """
import sys
from gnnstore import NeighborLoader
loader = NeighborLoader(
    sys.argv[1], [4, 4], "train", batch_size=25, strategy="packed", superbatch=2,
    cache_bytes=1000, spill_dir=sys.argv[2],
)
for batch in loader:
    print("one", flush=True)
    sys.stdin.readline()
"""


def test_what_a_killed_run_leaves_is_swept_by_the_next(
    path: Path, tmp_path: Path, forks: ForkServer
) -> None:
    with forks.start(KILLED, path, tmp_path) as run:
        assert run.stdout.readline() == "one\n"
        wait_for(lambda: list(tmp_path.glob("*/*")))  # made while the first batches are read
        (left,) = tmp_path.iterdir()
        # The run is alive: its directory is not swept.
        list(loader_of(path, strategy="packed", spill_dir=tmp_path))
        assert left.exists()
        run.send_signal(signal.SIGKILL)
    assert left.exists()
    list(loader_of(path, strategy="packed", spill_dir=tmp_path))
    assert not list(tmp_path.iterdir())


# --- interrupts, time limits, forks -------------------------------------------------------------


def is_clean(directory: Path) -> bool:
    """Whether neither a thread nor a file is left, once what a traceback held is collected."""
    gc.collect()
    return not threads_of_loaders() and not any(directory.iterdir())


@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.parametrize("num_threads", [0, 3])
def test_interrupts_at_any_time(
    path: Path, tmp_path: Path, expected: Batches, strategy: str, num_threads: int
) -> None:
    gc.collect()  # what tests before have left would be closed in the middle of an interrupt
    for delay_seconds in (0.02, *choose((), (0.01, 0.03, 0.002, 0.06))):
        loader = loader_of(
            path, strategy=strategy, superbatch=2, num_threads=num_threads, spill_dir=tmp_path
        )
        override_sizes(loader, in_memory=False)
        timer = threading.Timer(delay_seconds, os.kill, (os.getpid(), signal.SIGINT))
        running = None
        try:
            timer.start()
            with closing(iter(loader)) as running:  # type: ignore[type-var]
                for _ in running:
                    pass
            time.sleep(1)
        except KeyboardInterrupt:
            pass
        timer.join()
        loader.set_epoch(0)
        assert_same_batches(batches_of(loader), expected)
        del loader, running
        # If that came while threads were waited for, they end a little later.
        wait_for(lambda: is_clean(tmp_path))


@pytest.mark.parametrize("strategy", choose(["packed"], PLANNED))
def test_an_interrupt_while_an_iteration_is_closed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    loader = loader_of(path, strategy=strategy, superbatch=2, num_threads=3, spill_dir=tmp_path)
    override_sizes(loader, in_memory=False)
    close, calls = Producer.close, iter(range(10**6))

    def interrupted(self: Producer) -> None:
        if next(calls) == 0:
            raise KeyboardInterrupt
        close(self)

    monkeypatch.setattr(Producer, "close", interrupted)
    running: Any = iter(loader)
    next(running)
    assert any(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        running.close()
    del running
    wait_for(lambda: is_clean(tmp_path))
    monkeypatch.undo()
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("strategy", choose(["packed"], PLANNED))
def test_a_fork_in_the_middle(path: Path, tmp_path: Path, expected: Batches, strategy: str) -> None:
    """A child that lets go of an iterator, and begins another, takes nothing from its parent."""
    loader = loader_of(path, strategy=strategy, num_threads=2, spill_dir=tmp_path)
    override_sizes(loader, in_memory=False)
    running: Any = iter(loader)
    found = batches_of(islice(running, 2))

    def check() -> None:
        nonlocal running
        running = None
        loader.set_epoch(0)
        for batch, wanted in zip(loader, expected, strict=True):
            assert np.array_equal(batch.x.numpy(), wanted["x"].numpy())

    check_in_fork(check)
    found += batches_of(running)
    assert_same_batches(found, expected)


def test_another_loader_begins_while_one_does(
    path: Path, expected: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one keeps the slots that it was given, though it has no superbatch as yet."""
    store = gnnstore.open(path)
    first, second = loader_of(store), loader_of(store)
    begin, own = LookaheadEpochs._begin, first._sources.superbatches
    is_inside, may_go_on = threading.Event(), threading.Event()

    def waiting(self: LookaheadEpochs, *arguments: Any) -> Any:
        if self is own and not is_inside.is_set():
            is_inside.set()
            assert may_go_on.wait(60)
        return begin(self, *arguments)

    monkeypatch.setattr(LookaheadEpochs, "_begin", waiting)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(batches_of, first)
        assert is_inside.wait(60)
        others = batches_of(second)
        may_go_on.set()
        assert_same_batches(found.result(60), expected)
    assert_same_batches(others, expected)
