"""Planned strategies on a bad day: nothing hangs, nothing is left behind, and the next run works.

What is looked for is a thread that waits for a batch, a superbatch or a disk that will never
come. Each of these tests would then reach its time limit.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import NeighborLoader
from gnnstore.disk.spool import FileSpool
from gnnstore.errors import NoSpaceError, StorageError
from gnnstore.features.packed.chunks import PackedSuperbatch
from gnnstore.features.planned import TurnLock
from gnnstore.pipeline import batch as pipeline
from gnnstore.pipeline.lookahead.producer import Producer
from gnnstore.pipeline.lookahead.superbatch import DiskQuota
from gnnstore.strategies.builtin import STRATEGIES
from gnnstore.testing.faults import inject
from gnnstore.testing.graphs import random_graph
from gnnstore.threads import interruptible
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.forks import ForkServer
from tests.support.loaders import override_sizes
from tests.support.packed import pack

pytestmark = pytest.mark.timeout(120)

OPTIONS: dict[str, Any] = {"batch_size": 25, "shuffle": True, "seed": 3}


@pytest.fixture(scope="module")
def expected(path: Path) -> Batches:
    return batches_of(NeighborLoader(path, [4, 4], "train", strategy="memory", **OPTIONS))


def loader_of(path: Any, **options: Any) -> NeighborLoader:
    defaults: dict[str, Any] = {"strategy": "belady", "cache_bytes": "20kB", "superbatch": 5}
    return NeighborLoader(path, [4, 4], "train", **(defaults | OPTIONS | options))


def threads(wait_seconds: float = 10) -> list[str]:
    """Return the threads that do not end by themselves: one that ends others may still do so."""
    deadline = time.monotonic() + wait_seconds
    while True:
        found = [each.name for each in threading.enumerate() if each.name.startswith("gnnstore")]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def wait_for(condition: Callable[[], object], wait_seconds: float = 20) -> None:
    deadline = time.monotonic() + wait_seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- a superbatch that is never done with ------------------------------------------------------


@pytest.mark.parametrize("superbatch", [1, 2])
def test_packed_rows_that_cannot_be_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, superbatch: int
) -> None:
    """With many batches in flight the consumer waits for a superbatch beyond the failed one.

    That is packed when there is room, and room comes when the failed one has been given up.
    """
    loader = loader_of(
        path, strategy="packed", superbatch=superbatch, num_threads=4, prefetch_batches=16,
        spill_dir=tmp_path, cache_bytes=1000,
    )  # fmt: skip
    read, calls = PackedSuperbatch.read, iter(range(10**6))

    def failing(self: PackedSuperbatch, *arguments: Any) -> Any:
        if next(calls) == 2:
            raise StorageError("out of order", path="here")
        return read(self, *arguments)

    monkeypatch.setattr(PackedSuperbatch, "read", failing)
    with pytest.raises(StorageError, match="out of order"):
        list(loader)
    monkeypatch.undo()
    assert not threads()
    assert not list(tmp_path.iterdir())
    loader.set_epoch(0)
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("kind", ["belady", "packed", "packed before"])
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
        turns.close()  # or a failure of this test would hold up all others
    training.join()
    monkeypatch.undo()
    assert is_waited_for.is_set()
    assert not is_held_up
    assert "out of memory" in str(errors[0])
    assert not threads()
    loader.set_epoch(0)
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("superbatch", [1, 3])
def test_spilled_subgraphs_that_cannot_be_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, superbatch: int
) -> None:
    loader = override_sizes(
        loader_of(
            path, strategy="packed", superbatch=superbatch, num_threads=4, prefetch_batches=16,
            spill_dir=tmp_path,
        ),
        in_memory=False,
    )  # fmt: skip
    read, calls = FileSpool.read, iter(range(10**6))

    def failing(self: FileSpool, i: int) -> Any:
        if next(calls) == 3:
            os.truncate(self.path, 0)
        return read(self, i)

    monkeypatch.setattr(FileSpool, "read", failing)
    with pytest.raises(StorageError, match="read the subgraph of batch"):
        list(loader)
    assert not threads()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("prefetch_batches", [1, 40])
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


def test_two_superbatches_stay_within_what_is_given_on_disk(
    path: Path, tmp_path: Path, expected: Batches
) -> None:
    """A second one waits until there is room beside, or in place of, the first."""
    loader = loader_of(
        path, strategy="packed", superbatch=3, num_threads=2, spill_dir=tmp_path, prefetch_batches=8
    )
    superbatches = loader._sources.superbatches
    assert superbatches is not None
    list(loader)
    each = superbatches.job.totals.bytes_spilled // -(-len(loader) // 3)
    superbatches.job.quota = DiskQuota(each + each // 2)
    found, most = [], 0
    loader.set_epoch(0)
    for batch in loader:
        found.append(batch.to_dict())
        # os.walk passes over what is removed meanwhile.
        files = [Path(of, name) for of, _, names in os.walk(tmp_path) for name in names]
        packed = [file for file in files if file.parent.name.startswith("packed-")]
        most = max(most, sum(_size_of(file) for file in packed))
    assert_same_batches(found, expected)
    assert 0 < most <= each + each // 2


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_more_is_missed_than_there_is_disk_for(
    path: Path, tmp_path: Path, expected: Batches, share: float, on_disk: bool
) -> None:
    """What does not fit is read from the table."""
    loader = loader_of(path, strategy="packed", superbatch=6, spill_dir=tmp_path)
    superbatches = loader._sources.superbatches
    assert superbatches is not None
    if on_disk:
        superbatches.job.size = replace(superbatches.job.size, table_bytes=256)
    list(loader)
    packed = superbatches.job.totals.bytes_spilled // -(-len(loader) // 6)
    superbatches.job.quota = DiskQuota(int(share * packed))
    loader.set_epoch(0)
    most = 0
    for batch, wanted in zip(loader, expected, strict=True):
        assert_same_batches([batch.to_dict()], [wanted])
        files = [Path(of, name) for of, _, names in os.walk(tmp_path) for name in names]
        runs = [file for file in files if file.parent.name.startswith("packed-")]
        most = max(most, sum(_size_of(file) for file in runs))
    assert most <= superbatches.job.quota.num_bytes
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
@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES if s.plans])
def test_a_disk_that_is_full(
    path: Path, tiny_disk: Path, expected: Batches, strategy: str, num_threads: int
) -> None:
    tmp_path = tiny_disk.parent
    loader = loader_of(
        path, strategy=strategy, superbatch=20, spill_dir=tmp_path, num_threads=num_threads
    )
    override_sizes(loader, in_memory=False)
    superbatches = loader._sources.superbatches
    assert superbatches is not None
    superbatches.job.spill_dir = tiny_disk
    got: list[Any] = []
    with pytest.raises(NoSpaceError, match=r"no space left .* Free "):
        got.extend(loader)
    assert not list(tiny_disk.iterdir())
    assert not threads()
    superbatches.job.spill_dir = tmp_path
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
    assert not list(tmp_path.iterdir())
    assert not threads()


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
        wait_for(lambda: list(tmp_path.rglob("*/*")))  # made while the first batches are read
        (left,) = tmp_path.iterdir()
        # The run is alive: its directory is not swept.
        list(loader_of(path, strategy="packed", spill_dir=tmp_path))
        assert left.exists()
        run.send_signal(signal.SIGKILL)
    assert left.exists()
    list(loader_of(path, strategy="packed", spill_dir=tmp_path))
    assert not list(tmp_path.iterdir())


# --- interrupts, time limits, forks -------------------------------------------------------------


def test_an_interrupt_waits_for_the_kernel_that_packs() -> None:
    """It writes to files that are about to be removed, and reads arrays that are let go of."""
    progress = np.zeros(2, np.int64)
    ended = threading.Event()

    def work() -> dict[str, int]:
        while progress[1] == 0:
            time.sleep(0.001)
        time.sleep(0.2)
        ended.set()
        return {}

    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        interruptible(work, "gnnstore-pack", progress, None, None)
    assert ended.is_set()
    timer.join()


@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES if s.plans])
@pytest.mark.parametrize("num_threads", [0, 3])
def test_interrupts_at_any_time(
    path: Path, tmp_path: Path, expected: Batches, strategy: str, num_threads: int
) -> None:
    loader = loader_of(
        path, strategy=strategy, superbatch=2, num_threads=num_threads, spill_dir=tmp_path
    )
    override_sizes(loader, in_memory=False)
    gc.collect()  # what tests before have left would be closed in the middle of an interrupt
    for delay_seconds in (0.002, 0.01, 0.03, 0.06):
        timer = threading.Timer(delay_seconds, os.kill, (os.getpid(), signal.SIGINT))
        loader.set_epoch(0)
        try:
            timer.start()
            with closing(iter(loader)) as running:  # type: ignore[type-var]
                for _ in running:
                    pass
            time.sleep(1)
        except KeyboardInterrupt:
            pass
        timer.join()
        superbatches = loader._sources.superbatches
        assert superbatches is not None
        superbatches.lose_slots()  # which ends what is being made
        superbatches._next = None
        # If that came while threads were waited for, they end a little later.
        deadline = time.monotonic() + 20
        while threads(0) or any(tmp_path.iterdir()):
            assert time.monotonic() < deadline, [*threads(0), *tmp_path.rglob("*")]
            gc.collect()  # what the error's traceback held
            time.sleep(0.01)
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader), expected)


@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES if s.plans])
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

    def is_clean() -> bool:
        gc.collect()
        return not threads(0) and not any(tmp_path.iterdir())

    wait_for(is_clean)
    monkeypatch.undo()
    assert len(list(loader)) == len(loader)


def test_a_batch_that_takes_too_long_to_sample(
    path: Path, monkeypatch: pytest.MonkeyPatch, expected: Batches
) -> None:
    loader = loader_of(path, num_threads=2, timeout=0.3)
    sampler = loader._source.sampler
    sample = sampler.sample

    def stuck(seeds: Any, *, epoch: int, batch: int, **_: Any) -> Any:
        if batch == 7:
            time.sleep(1.0)
        return sample(seeds, epoch=epoch, batch=batch)

    monkeypatch.setattr(sampler, "sample", stuck)
    got: list[Any] = []
    with pytest.raises(TimeoutError, match="batch 7 of epoch 0"):
        got.extend(loader)
    assert len(got) == 7
    assert not threads()
    monkeypatch.undo()
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader), expected)


@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES if s.plans])
def test_a_fork_in_the_middle(path: Path, tmp_path: Path, expected: Batches, strategy: str) -> None:
    """A child that lets go of an iterator, and begins another, takes nothing from its parent."""
    loader = loader_of(path, strategy=strategy, num_threads=2, spill_dir=tmp_path)
    override_sizes(loader, in_memory=False)
    running: Any = iter(loader)
    found = batches_of(islice(running, 2))
    features = [batch["x"].numpy() for batch in expected]
    child = os.fork()
    if child == 0:
        status = 1
        signal.alarm(20)  # ends the child if it waits for threads that are not there
        try:
            del running
            loader.set_epoch(0)
            for batch, rows in zip(loader, features, strict=True):
                assert np.array_equal(batch.x.numpy(), rows)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    found += batches_of(running)
    assert_same_batches(found, expected)
    del loader, running
    assert not list(tmp_path.iterdir())
