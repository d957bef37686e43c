"""Ctrl-C in the middle of anything: nothing stays locked, nobody waits for ever."""

from __future__ import annotations

import _thread
import gc
import os
import random
import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnstore
from gnnstore.converters import partition
from gnnstore.embeddings import table as embedding_table
from gnnstore.embeddings.rows import PartitionBuffer
from gnnstore.strategies.registry import STRATEGIES
from gnnstore.testing.graphs import random_graph
from gnnstore.threads import (
    Background,
    CancelledError,
    Condition,
    Flag,
    Pending,
    Thread,
    Workers,
    in_one_step,
    uninterrupted,
)
from tests.support.effort import choose, is_long

PACKAGE = str(Path(gnnstore.__file__).parent)
PLANNED = [each.name for each in STRATEGIES if each.plans]
SMALL: dict[str, Any] = {"cache_bytes": "20kB", "superbatch": 3}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = random_graph(2000, 12_000, seed=3, feature_dim=9).write(
        tmp_path_factory.mktemp("interrupts") / "s.gnn"
    )
    partition(path, 8, name="eight")
    return path


@pytest.fixture
def interrupt_soon() -> Iterator[Callable[[float], object]]:
    """Return a function that has Ctrl-C come after some seconds; 0: not any more."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def interrupt_now() -> Iterator[Callable[[], object]]:
    """Return a function for other threads: Ctrl-C has come when it returns."""
    handled = threading.Event()

    def handler(*_: object) -> None:
        handled.set()
        raise KeyboardInterrupt

    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        assert handled.wait(20)

    before = signal.signal(signal.SIGALRM, handler)
    yield interrupt
    signal.signal(signal.SIGALRM, before)


def loader_of(store: Path, **options: Any) -> gnnstore.NeighborLoader:
    if options.get("strategy") in PLANNED:
        options = SMALL | options
    return gnnstore.NeighborLoader(
        store, [3, 3], batch_size=100, shuffle=True, seed=1, num_threads=2, **options
    )


WAYS: dict[str, dict[str, Any]] = {
    **{each.name: {"strategy": each.name} for each in STRATEGIES},
    "topology on disk": {"strategy": "belady", "topology": "disk"},
    "a budget": {"strategy": "memory", "memory": "50MB"},
    "partitions": {"partitions": gnnstore.PartitionPolicy("dispersed", capacity=4)},
}


@pytest.mark.parametrize(
    "way", [way for way in WAYS if is_long() or way not in {"memory", "mmap", "direct", "a budget"}]
)
def test_the_consumers_thread_takes_no_lock_in_python_code(
    store: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt right after that would leave it locked: `threading.Condition` does so."""
    taken: list[str] = []
    enter = threading.Condition.__enter__

    def watched(condition: threading.Condition) -> bool:
        if threading.current_thread() is threading.main_thread():
            frame: Any = sys._getframe(1)
            while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
                frame = frame.f_back
            if frame is not None and "/threading.py" in sys._getframe(1).f_code.co_filename:
                taken.append(frame.f_code.co_qualname)
        return enter(condition)

    monkeypatch.setattr(threading.Condition, "__enter__", watched)
    loader = loader_of(store, **WAYS[way])
    for number, _ in enumerate(loader):
        if number == 4:
            break
    assert len(list(loader)) == len(loader)
    del loader
    assert taken == []


def test_modules_use_what_an_interrupt_cannot_leave_locked() -> None:
    """Commands measure and show with others; loaders and converters do not wait for these."""
    unsafe = re.compile(
        r"threading\.(Condition|Event|Semaphore|Barrier|Timer)\(|ThreadPoolExecutor"
    )
    for path in Path(PACKAGE).rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        # The methods of the second run in threads that get no signals.
        if not name.startswith(("tools/", "testing/", "embeddings/rows.py")):
            assert not unsafe.search(path.read_text()), path


@pytest.mark.parametrize("way", [*choose([], ["memory"]), *PLANNED, "partitions"])
def test_loops_that_are_interrupted_anywhere(
    store: Path,
    way: str,
    interrupt_soon: Callable[[float], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The interpreter drops an interrupt that comes in the callback of a weak reference. pytest
    # would keep it, and with it the frames of what is to end.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    loader, rng = loader_of(store, **WAYS[way]), random.Random(4)
    began = time.perf_counter()
    expected = [batch.n_id.tolist() for batch in loader]
    epoch_seconds = time.perf_counter() - began
    ends = time.monotonic() + choose(0.15, 60)
    while time.monotonic() < ends:
        try:
            interrupt_soon(1e-5 + rng.random() * epoch_seconds)
            for _ in loader:
                pass
            interrupt_soon(0)
        except KeyboardInterrupt:
            pass
    interrupt_soon(0)
    loader.set_epoch(0)
    assert [batch.n_id.tolist() for batch in loader] == expected
    gc.collect()  # an interrupt of what ends threads leaves that to the garbage collector


@pytest.mark.parametrize("strategy", choose(("direct", "packed"), STRATEGIES.names))
def test_a_new_iteration_in_a_forked_process(store: Path, strategy: str) -> None:
    """While a thread of the parent is gathering a batch, which the child does not have."""
    loader = loader_of(store, strategy=strategy)
    for _ in range(choose(1, 3)):
        batches = iter(loader)
        next(batches)
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # it would hang
            os._exit(len(list(loader)) != len(loader))
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(batches)) == len(loader) - 1


# --- embeddings -------------------------------------------------------------------------------


def learner(
    store: Path, path: Path, lr: float
) -> tuple[gnnstore.EmbeddingTable, gnnstore.SGD, gnnstore.LinkNeighborLoader]:
    policy = gnnstore.PartitionPolicy("two-level", capacity=4, name="eight")
    table = gnnstore.EmbeddingTable.create(
        path, store, dim=3, partitions=policy, optimizer="sgd", seed=1
    )
    loader = gnnstore.LinkNeighborLoader(
        store,
        [],
        neg_sampling="binary",
        batch_size=500,
        seed=0,
        partitions=policy,
        tables=[table],
    )
    return table, gnnstore.SGD(table, lr=lr), loader


def test_a_step_is_made_whole(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it changed is what a commit writes, with an interrupt right after the kernel."""
    table, optimizer, loader = learner(store, tmp_path / "a.emb", lr=1.0)

    def interrupted(*calls: Callable[[], object]) -> None:
        in_one_step(calls[0], _thread.interrupt_main, *calls[1:])

    monkeypatch.setattr(embedding_table, "in_one_step", interrupted)
    batch = next(iter(loader))
    before = table[batch.n_id].clone()
    table(batch.n_id).sum().backward()
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert table.leaves == []  # it is not made twice
    torch.testing.assert_close(table[batch.n_id], before - 1)
    table.commit()
    table.close()
    again = gnnstore.EmbeddingTable.open(tmp_path / "a.emb", store)
    torch.testing.assert_close(again[batch.n_id], before - 1)
    again.close()


def test_partitions_are_swapped_whole(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, optimizer, loader = learner(store, tmp_path / "a.emb", lr=0.0)
    before, threads, numbers = table[:].clone(), PartitionBuffer._threads, count()

    def interrupted(buffer: PartitionBuffer) -> Any:
        if next(numbers) in {6, 9, 14}:  # a slot is taken, and nothing is read to it yet
            signal.raise_signal(signal.SIGINT)
        return threads(buffer)

    monkeypatch.setattr(PartitionBuffer, "_threads", interrupted)
    num_interrupts = 0
    for _ in range(5):
        try:
            for batch in loader:
                table(batch.n_id).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        except KeyboardInterrupt:
            num_interrupts += 1
            optimizer.zero_grad()
    assert num_interrupts == 3
    assert torch.equal(table[:], before)
    table.commit()
    table.close()
    again = gnnstore.EmbeddingTable.open(tmp_path / "a.emb", store)
    assert torch.equal(again[:], before)
    again.close()


# --- what threads wait for --------------------------------------------------------------------


def test_work_is_done_whole_and_then_interrupted(interrupt_now: Callable[[], object]) -> None:
    done: list[int] = []

    def work() -> None:
        interrupt_now()
        done.append(1)

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(work)
    assert done == [1]
    assert uninterrupted(lambda: 3) == 3
    with pytest.raises(ValueError, match="no"):
        uninterrupted(lambda: int("no"))


def test_an_interrupt_of_work_is_told_of_with_what_failed_in_it(
    interrupt_now: Callable[[], object],
) -> None:
    class Held:
        pass

    held = Held()
    is_held = weakref.ref(held)

    def work(_: object = held) -> None:
        interrupt_now()
        raise OSError("full")

    gc.disable()
    try:
        with pytest.raises(KeyboardInterrupt) as raised:
            uninterrupted(work)
        assert isinstance(raised.value.__cause__, OSError)
        del held, work, raised
        assert is_held() is None  # without the garbage collector: no frame and error hold it
    finally:
        gc.enable()


def test_work_is_done_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert uninterrupted(lambda: 3) == 3
    assert Background(lambda: 4, "a").result() == 4
    with pytest.raises(RuntimeError, match="start"), Workers(2) as workers:
        workers.run([lambda: 1])


def test_a_start_that_is_interrupted_ends_or_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the interrupt comes before the thread is there, or after."""
    start = threading.Thread.start

    def before(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    def after(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    for interrupted, most in ((before, 0), (after, 1)):
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        begins: list[Callable[[Callable[[], None]], object]] = [
            uninterrupted,
            lambda work: Background(work, "a"),
        ]
        for begin in begins:
            calls: list[int] = []
            with pytest.raises(KeyboardInterrupt):
                begin(partial(calls.append, 1))
            time.sleep(0.05)
            assert len(calls) <= most


def test_a_fork_beside_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child knows that it has no thread but its own."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    release = Flag()
    thread = Thread(target=release.wait)
    thread.start()
    child = os.fork()
    if child == 0:
        others = [each for each in threading.enumerate() if each is not threading.current_thread()]
        os._exit(bool(ignored or others or thread.is_alive()))
    release.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_flag() -> None:
    flag = Flag()
    assert not flag.wait(0.01)
    threading.Timer(0.05, flag.set).start()
    assert flag.wait(10)
    assert flag.is_set()
    flag.clear()
    assert not flag.wait(0)


def test_a_condition_is_looked_at_after_each_change() -> None:
    condition, values = Condition(), [0]

    def add() -> None:
        for _ in range(3):
            with condition.lock:
                values[0] += 1
                condition.notify_all()

    thread = Thread(target=add)
    thread.start()
    assert condition.wait_until(lambda: values[0] if values[0] == 3 else None) == 3
    thread.join()

    def over() -> None:
        raise CancelledError("over")

    with pytest.raises(CancelledError):
        condition.wait_until(over)
    assert condition.wait_until(lambda: None, timeout=0.01) is None
    assert not condition._waiting  # none is kept of those that no longer wait


def test_a_condition_is_told_of_changes_while_it_tells_of_one() -> None:
    condition = Condition()

    class Finalized:
        """Notifies where the garbage collector would: while waiters are released."""

        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.lock.acquire()

        def release(self) -> None:
            self.lock.release()
            condition.notify_all()

    waiters = [Finalized() for _ in range(3)]
    condition._waiting.extend(waiters)  # type: ignore[arg-type]
    with condition.lock:
        condition.notify_all()
    assert not any(waiter.lock.locked() for waiter in waiters)


def test_a_result_is_there_once() -> None:
    call: Pending[int] = Pending()
    assert not call.wait(0.01)
    call.make(int, "3")
    call.make(int, "4")
    assert (call.result(), call.cancel()) == (3, False)
    cancelled: Pending[int] = Pending()
    assert cancelled.cancel()
    cancelled.make(int, "3")
    with pytest.raises(CancelledError):
        cancelled.result()
