"""Progress that people can follow: bars on a terminal, plain lines everywhere else.

A log file full of redrawn bars is unreadable and a silent hour is worrying, so output that
is not a terminal gets one line every few seconds, and one when a long phase ends.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TextIO

import rich.progress as bars
from rich.console import Console
from rich.text import Text

from gnnstore.progress import NullProgress, Phase, Progress
from gnnstore.units import format_size

# A line every 10 s: a convert of an hour leaves 360 lines, not a gigabyte.
_LINE_SECONDS = 10.0


def open_progress(*, quiet: bool = False) -> AbstractContextManager[Progress]:
    """Return the progress display that suits stderr, as a context manager."""
    if quiet:
        return _quiet()
    return _bars() if sys.stderr.isatty() else _lines(sys.stderr)


@contextmanager
def _quiet() -> Iterator[Progress]:
    yield NullProgress()


@contextmanager
def _bars() -> Iterator[Progress]:
    display = bars.Progress(
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        _AmountColumn(),
        bars.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with display:
        yield _BarProgress(display)


@contextmanager
def _lines(stream: TextIO) -> Iterator[Progress]:
    yield LineProgress(stream)


def format_amount(done: int, total: int | None, unit: str) -> str:
    """Return "3 of 10 edges" or "1.2 of 3.4 GB", as far as the total is known."""
    show: Callable[[int], str]
    if unit in ("byte", "bytes"):
        show, suffix = format_size, ""
    else:
        show, suffix = "{:,}".format, f" {unit}"
    return f"{show(done)}{suffix}" if total is None else f"{show(done)} of {show(total)}{suffix}"


class _AmountColumn(bars.ProgressColumn):
    """How much is done, in the phase's own unit."""

    def render(self, task: bars.Task) -> Text:
        """Return the text for one phase."""
        total = None if task.total is None else int(task.total)
        return Text(format_amount(int(task.completed), total, task.fields["unit"]))


class _BarPhase:
    def __init__(self, display: bars.Progress, task: bars.TaskID) -> None:
        self._display = display
        self._task = task

    def advance(self, n: int = 1) -> None:
        self._display.advance(self._task, n)


class _BarProgress:
    """One bar a phase, drawn by rich; a finished phase makes room for the next."""

    def __init__(self, display: bars.Progress) -> None:
        self._display = display

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "items") -> Iterator[Phase]:
        task = self._display.add_task(name, total=total, unit=unit)
        try:
            yield _BarPhase(self._display, task)
        finally:
            self._display.remove_task(task)


class _LinePhase:
    def __init__(self, owner: LineProgress, name: str, total: int | None, unit: str) -> None:
        self._owner = owner
        self._name = name
        self._total = total
        self._unit = unit
        self._done = 0
        self._started = self._reported = owner.clock()
        self._lock = threading.Lock()  # several threads may advance one phase

    def advance(self, n: int = 1) -> None:
        with self._lock:
            self._done += n
            now = self._owner.clock()
            if now - self._reported < self._owner.interval_seconds:
                return
            self._reported = now
        share = f" ({self._done / self._total:.0%})" if self._total else ""
        self._owner.print(f"{self._line()}{share}, {now - self._started:.0f} s")

    def finish(self) -> None:
        elapsed = self._owner.clock() - self._started
        if elapsed >= self._owner.interval_seconds:
            self._owner.print(f"{self._line()}, done in {elapsed:.0f} s")

    def _line(self) -> str:
        return f"{self._name}: {format_amount(self._done, self._total, self._unit)}"


class LineProgress:
    """One plain line every `interval_seconds` for work that takes that long.

    Parameters
    ----------
    stream : text file
        Where the lines go.
    interval_seconds : float
        The least time between two lines of a phase; a shorter phase prints nothing.
    clock : callable
        Returns seconds; replaced in tests.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        interval_seconds: float = _LINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream = stream
        self.interval_seconds = interval_seconds
        self.clock = clock

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "items") -> Iterator[Phase]:
        """Follow one phase; the yielded object's `advance(n)` counts."""
        phase = _LinePhase(self, name, total, unit)
        yield phase
        phase.finish()

    def print(self, line: str) -> None:
        """Write one line at once."""
        self.stream.write(line + "\n")
        self.stream.flush()
