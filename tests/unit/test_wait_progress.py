"""Work that somebody waits for is displayed once it takes long, and nothing else ever is."""

from __future__ import annotations

import io
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gnnstore import LinkNeighborLoader, NeighborLoader
from gnnstore.loaders import options as loader_options
from gnnstore.progress import NullProgress, Phase, WaitProgress
from gnnstore.strategies.registry import STRATEGIES
from gnnstore.testing.graphs import random_graph
from gnnstore.threads import ordered_map

AT_ONCE, NEVER = 0.0, 1e9


class Display(NullProgress):
    """Notes what is displayed."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    @contextmanager
    def opened(self) -> Iterator[Display]:
        self.events.append("open")
        yield self
        self.events.append("close")

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "items") -> Iterator[Phase]:
        events = self.events

        class Shown:
            def advance(self, n: int = 1) -> None:
                events.append((name, n))

        events.append((name, total, unit))
        yield Shown()
        events.append(f"end of {name}")


@pytest.fixture
def shown() -> Display:
    return Display()


def test_a_long_wait_shows_what_is_done_so_far(shown: Display) -> None:
    progress = WaitProgress(shown.opened, AT_ONCE)
    with progress.phase("sample", 3, "batches") as phase:
        phase.advance(2)
        assert not shown.events, "nobody waits"
        with progress.waiting():
            phase.advance()
        phase.advance()
    # A timer may have displayed it before.
    events = [event for event in shown.events if event != ("sample", 0)]
    counts = [event[1] for event in events if isinstance(event, tuple) and len(event) == 2]
    assert events[:2] == ["open", ("sample", 3, "batches")]
    assert sum(counts) == 3
    assert events[-2:] == ["end of sample", "close"]


def test_a_short_wait_shows_nothing(shown: Display) -> None:
    progress = WaitProgress(shown.opened, NEVER)
    with progress.waiting(), progress.phase("sample") as phase:
        phase.advance()
    assert not shown.events


def waited(progress: WaitProgress, items: Iterator[Any]) -> Iterator[Any]:
    """Yield items as they are made, waiting for each of them."""
    return ordered_map(list, items, num_threads=0, lookahead=lambda: 1, waiting=progress.waiting)


def test_another_thread_works_while_the_consumer_waits(shown: Display) -> None:
    progress = WaitProgress(shown.opened, AT_ONCE)
    go_on = threading.Semaphore(0)

    def work() -> None:
        with progress.phase("plan", 2, "batches") as phase:
            for _ in range(2):
                phase.advance()
                go_on.release()

    def items() -> Iterator[list[int]]:
        for k in range(2):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            yield [k]

    assert list(waited(progress, items())) == [[0], [1]]
    assert shown.events.count("open") == shown.events.count("close") == 2
    assert shown.events[-2:] == ["end of plan", "close"]


def test_errors_end_the_display(shown: Display) -> None:
    progress = WaitProgress(shown.opened, AT_ONCE)

    def items() -> Iterator[list[int]]:
        yield [1]
        with progress.phase("sample"):
            raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        list(waited(progress, items()))
    assert shown.events[-2:] == ["end of sample", "close"]


@pytest.mark.parametrize("copied", [True, False])
def test_other_processes_are_quiet(
    shown: Display, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = WaitProgress(shown.opened, AT_ONCE)
    if copied:
        progress = pickle.loads(pickle.dumps(progress))  # noqa: S301 - our own
    else:
        monkeypatch.setattr(os, "getpid", lambda: -1)
    with progress.waiting(), progress.phase("sample") as phase:
        phase.advance()
    assert not shown.events


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(500, 4000, seed=5, feature_dim=100)
    return graph.write(tmp_path_factory.mktemp("progress") / "s.gnn")


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Display whatever is waited for."""
    init = WaitProgress.__init__

    def at_once(progress: Any, show: Callable[[], Any] | None = None) -> None:
        init(progress, show, AT_ONCE)

    monkeypatch.setattr(WaitProgress, "__init__", at_once)


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("strategy", ["memory", *(s.name for s in STRATEGIES if s.plans)])
def test_loaders(
    path: Path, shown: Display, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setattr(loader_options, "open_progress", shown.opened)
    memory = None if strategy == "memory" else "100MB"
    loader = NeighborLoader(
        path, [4], range(100), batch_size=10, strategy=strategy, memory=memory, progress=True
    )
    first = "load nodes/node/x" if strategy == "memory" else "sample batches beforehand"
    assert first in {event[0] for event in shown.events}
    shown.events = []
    assert len(list(loader)) == 10
    ahead = {event[0] for event in shown.events}
    assert ("sample ahead" in ahead) == ("plan" in ahead) == (strategy != "memory")
    assert ("pack rows" in ahead) == (strategy == "packed")
    assert shown.events.count("open") == shown.events.count("close")


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("progress", [True, False, None])
def test_logs_are_quiet(
    path: Path,
    shown: Display,
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
    progress: bool | None,
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal() if is_terminal else io.StringIO())
    monkeypatch.setattr(loader_options, "open_progress", shown.opened)
    options: dict[str, Any] = {} if progress is None else {"progress": progress}
    loader = NeighborLoader(path, [4], range(9), strategy="memory", **options)
    assert len(list(loader)) == 9
    assert bool(shown.events) == (is_terminal if progress is None else progress)


def test_ranks_but_the_first_are_quiet(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())

    def shows(**options: Any) -> bool:
        loader = LinkNeighborLoader(path, [4], batch_size=100, seed=1, **options)
        return loader._recorder.progress._show is not None

    assert shows()
    assert shows(rank=0, world_size=2)
    assert not shows(rank=1, world_size=2)
    assert shows(rank=1, world_size=2, progress=True)
    monkeypatch.setenv("RANK", "1")
    assert not shows()
