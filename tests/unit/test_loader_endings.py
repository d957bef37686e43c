"""However a loop over a loader ends, nothing is left: no thread, no hang, no noise."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch_geometric.data import Data

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.sampling.neighbor import BatchRequest
from tests.support.effort import choose
from tests.support.forks import ForkServer
from tests.support.loaders import nothing_collected, threads_of_loaders
from tests.support.stores import write_example_store

pytestmark = pytest.mark.usefixtures("way_of_reading")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("endings")
    return write_example_store(directory / "s.gnn", num_nodes=2000, num_edges=20_000).path


@pytest.fixture
def loader(path: Path) -> NeighborLoader:
    return NeighborLoader(path, [5, 5], batch_size=20, num_threads=3, seed=0)


class IterableOf:
    """What a function yields, anew for each epoch."""

    def __init__(self, function: Callable[[], Iterator[int]]) -> None:
        self._function = function

    def __iter__(self) -> Iterator[int]:
        return self._function()


def test_break(loader: NeighborLoader) -> None:
    for _ in loader:
        assert threads_of_loaders()
        break
    assert threads_of_loaders() == []
    assert sum(1 for _ in loader) == 100


def test_an_error_in_the_loops_body(loader: NeighborLoader) -> None:
    def body() -> None:
        for _ in loader:
            raise KeyError("body")

    with pytest.raises(KeyError, match="body"):
        body()
    assert threads_of_loaders() == []


@pytest.mark.parametrize("stage", ["transform", "transform_sampler_output"])
def test_an_error_in_a_transform(path: Path, stage: str) -> None:
    def fail(_: object) -> Data:
        raise KeyError("transform")

    stages: dict[str, Any] = {stage: fail}
    loader = NeighborLoader(path, [5], batch_size=10, num_threads=2, **stages)
    with pytest.raises(KeyError, match="transform"):
        next(iter(loader))
    assert threads_of_loaders() == []


def test_an_error_in_the_sampling_kernel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = NeighborLoader(path, [5], batch_size=10, num_threads=2, seed=0)
    draw: Any = loader._source.sampler.draw

    def fail_at_3(request: BatchRequest) -> object:
        if request.batch == 3:
            raise gnnstore.CorruptStoreError("the topology is damaged")
        return draw(request)

    monkeypatch.setattr(loader._source.sampler, "draw", fail_at_3)
    batches = iter(loader)
    assert [int(next(batches).input_id[0]) for _ in range(3)] == [0, 10, 20]
    with pytest.raises(gnnstore.CorruptStoreError, match="damaged") as caught:
        next(batches)
    assert caught.value.__notes__ == ["while preparing batch 3 of epoch 0"]
    assert threads_of_loaders() == []


def test_an_error_in_the_users_sampler(path: Path) -> None:
    class Broken:
        def __iter__(self):  # type: ignore[no-untyped-def]
            assert threading.current_thread() is threading.main_thread()
            yield from range(25)
            raise KeyError("sampler")

    loader = NeighborLoader(path, [5], batch_size=10, num_threads=2, sampler=Broken())
    batches = iter(loader)
    assert [next(batches).batch_size for _ in range(2)] == [10, 10]
    with pytest.raises(KeyError, match="sampler"):
        next(batches)
    assert threads_of_loaders() == []


@pytest.mark.ways("memory", "belady")
@pytest.mark.parametrize("stage", ["sampler", "kernel", "transform"])
def test_an_error_keeps_nothing_once_it_is_handled(
    path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Else what failed, its threads and their memory stay until the garbage collector runs."""
    raised: list[weakref.ref[KeyError]] = []

    class FailureError(KeyError):
        def __init__(self) -> None:
            raised.append(weakref.ref(self))

    def fail(*_: object) -> Any:
        raise FailureError

    def broken() -> Iterator[int]:
        yield from range(25)
        fail()

    options: dict[str, Any] = {
        "sampler": {"sampler": IterableOf(broken)},
        "transform": {"transform": fail},
        "kernel": {},
    }
    loader = NeighborLoader(path, [5], batch_size=10, num_threads=2, seed=0, **options[stage])
    if stage == "kernel":
        monkeypatch.setattr(loader._source.sampler, "draw", fail)
    with nothing_collected():
        try:
            for _ in loader:
                pass
        except FailureError:
            pass
        assert raised
        assert [error() for error in raised] == [None] * len(raised)
        loader_, loader = weakref.ref(loader), None  # type: ignore[assignment]
        assert loader_() is None
        assert threads_of_loaders() == []


def test_threads_start_with_the_first_batch_and_end_with_the_last(
    loader: NeighborLoader, way_of_reading: Any
) -> None:
    batches = iter(loader)
    assert threads_of_loaders() == []
    # As many sample ahead, and one plans.
    most = 7 if way_of_reading.strategy == "belady" else 3
    for _ in batches:
        assert 1 <= len(threads_of_loaders()) <= most
    assert threads_of_loaders() == []


def test_a_thread_that_takes_too_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = NeighborLoader(path, [5], batch_size=10, num_threads=1, timeout=0.05, seed=0)
    draw: Any = loader._source.sampler.draw
    asleep = threading.Event()

    def dawdle(request: BatchRequest) -> object:
        asleep.wait(0.5)
        return draw(request)

    monkeypatch.setattr(loader._source.sampler, "draw", dawdle)
    with pytest.raises(TimeoutError, match=r"0\.05 seconds while preparing batch 0 of epoch 0"):
        next(iter(loader))
    assert threads_of_loaders() == []


# --- the end of the process ----------------------------------------------------------------

PRELUDE = """
import os, sys, threading, time
import gnnstore
path, strategy = sys.argv[1:]
loader = gnnstore.NeighborLoader(
    path, [5, 5], batch_size=10, num_threads=2, seed=0, strategy=strategy
)
"""


@pytest.mark.parametrize(
    "case",
    [
        ("for batch in loader: sys.exit(7)", 7, ""),
        # Those that follow end a pipeline in test_pipeline too.
        *choose(
            [],
            [
                ("batches = iter(loader); next(batches)", 0, ""),
                ("for batch in loader: break", 0, ""),
                ("for batch in loader: raise ValueError('here')", 1, "ValueError: here\n"),
            ],
        ),
        # In a cycle, so that only the garbage collector could have closed it.
        ("batches = iter(loader); next(batches); loader.batches = batches", 0, ""),
    ],
    ids=lambda case: case[0],
)
@pytest.mark.ways("mmap", "direct-io_uring")
def test_the_interpreter_ends(
    path: Path, forks: ForkServer, case: tuple[str, int, str], way_of_reading: Any
) -> None:
    code, status, stderr = case
    ended = forks.run(PRELUDE + code, path, way_of_reading.strategy, unloads=True)
    assert ended.returncode == status
    assert ended.stderr.endswith(stderr) if stderr else ended.stderr == ""


@pytest.mark.ways("mmap", "direct-io_uring", "direct-pread")
def test_ctrl_c(path: Path, forks: ForkServer, way_of_reading: Any) -> None:
    code = """
try:
    while True:
        for batch in loader:
            os.write(1, b"batch\\n")  # print would leave a moment before the newline
except KeyboardInterrupt:
    print("threads", [t.name for t in threading.enumerate() if "gnnstore" in t.name])
    print("again", sum(1 for _ in loader))
"""
    with forks.start(PRELUDE + code, path, way_of_reading.strategy) as process:
        assert process.stdout.readline() == "batch\n"
        process.send_signal(signal.SIGINT)
        out = process.stdout.read()
    assert out.splitlines()[-2:] == ["threads []", "again 200"]
    assert process.returncode == 0
