"""Progress that people can follow: bars on a terminal, plain lines everywhere else.

A log file full of redrawn bars is unreadable and a silent hour is worrying, so output that
is not a terminal gets one line every few seconds, and one when a long phase ends. Both show
the phase, how far it is, its rate and the time left and, for work that writes, the bytes
written and the peak memory so far.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TextIO

import rich.progress as bars
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Column, Table

from gnnstore.progress import NullProgress, Phase, Progress
from gnnstore.tools.ui.json_progress import JsonProgress
from gnnstore.tools.ui.usage import Usage
from gnnstore.units import format_duration, format_size

# How progress is shown; "auto": as suits what stderr is.
Style = Literal["auto", "bar", "lines", "json", "none"]

# A line every 10 s: a convert of an hour leaves 360 lines, not a gigabyte.
_LINE_SECONDS = 10.0
_SPINNER_CELLS = 2
_LEAST_BAR, _MOST_BAR = 8, 40


def open_progress(
    *, quiet: bool = False, show_usage: bool = False, style: Style = "auto"
) -> AbstractContextManager[Progress]:
    """Return the progress display that suits stderr, as a context manager.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    show_usage : bool
        Show the bytes written and the peak memory, too.
    style : str
        How to show it; "auto": as bars on a terminal, else as lines.
    """
    if quiet or style == "none":
        return _quiet()
    usage = Usage() if show_usage else None
    if style == "auto":
        style = "bar" if sys.stderr.isatty() else "lines"
    if style == "json":
        return _events(sys.stderr, usage)
    return _bars(usage) if style == "bar" else _lines(sys.stderr, usage)


@contextmanager
def _quiet() -> Iterator[Progress]:
    yield NullProgress()


@contextmanager
def _bars(usage: Usage | None) -> Iterator[Progress]:
    console = Console(stderr=True)
    display = bars.Progress(
        bars.SpinnerColumn(),
        _PhaseColumn(console, usage),
        console=console,
        transient=True,
    )
    with display:
        yield _BarProgress(display)


@contextmanager
def _lines(stream: TextIO, usage: Usage | None) -> Iterator[Progress]:
    yield LineProgress(stream, usage=usage)


@contextmanager
def _events(stream: TextIO, usage: Usage | None) -> Iterator[Progress]:
    progress = JsonProgress(stream, usage=usage)
    try:
        yield progress
    except BaseException as error:
        progress.end(error)
        raise
    progress.end(None)


def format_amount(done: int, total: int | None, unit: str) -> str:
    """Return "3 of 10 edges" or "1.2 of 3.4 GB", as far as the total is known."""
    show: Callable[[int], str]
    if unit in ("byte", "bytes"):
        show, suffix = format_size, ""
    else:
        show, suffix = "{:,}".format, f" {unit}"
    return f"{show(done)}{suffix}" if total is None else f"{show(done)} of {show(total)}{suffix}"


def format_rate(per_second: float, unit: str) -> str:
    """Return "1,200 edges/s" or "35 MB/s"."""
    if unit in ("byte", "bytes"):
        return f"{format_size(per_second)}/s"
    number = f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"
    return f"{number} {unit}/s"


class _PhaseColumn(bars.ProgressColumn):
    """A phase in one line: name, bar, amount, rate, time left and usage, as far as there is room.

    The name and the amount are always there. On a narrow terminal usage, rate and time left go,
    in this order, and the bar where less than `_LEAST_BAR` cells are left for it.
    """

    def __init__(self, console: Console, usage: Usage | None) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis"))
        self._console, self._usage = console, usage

    def render(self, task: bars.Task) -> RenderableType:
        """Return the line for one phase."""
        unit, left = task.fields["unit"], task.time_remaining
        total = None if task.total is None else int(task.total)
        name, amount = task.description, format_amount(int(task.completed), total, unit)
        rate = format_rate(task.speed, unit) if task.speed else ""
        time_left = f"{format_duration(left)} left" if left else ""
        usage = "" if self._usage is None else str(self._usage)
        details = [text for text in (time_left, rate, usage) if text]
        room = self._console.width - _SPINNER_CELLS - len(f"{name} {amount}")
        while details and len(" ".join(details)) + 1 > room:
            details.pop()
        room -= sum(len(text) + 1 for text in details) + 1
        cells: list[RenderableType] = [name]
        if room >= _LEAST_BAR:
            width = min(room, _MOST_BAR)
            bar = ProgressBar(total=task.total, completed=task.completed, width=width)
            bar.pulse, bar.animation_time = task.total is None, task.get_time()
            cells.append(bar)
        cells += [amount, *sorted(details, key=(rate, time_left, usage).index)]
        line = Table.grid(padding=(0, 1))
        for _ in cells:
            line.add_column(no_wrap=True, overflow="ellipsis")
        line.add_row(*cells)
        return line


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

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:
        del facts
        self._display.console.print(text, soft_wrap=True, highlight=False, markup=False)


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
        elapsed = now - self._started
        parts = [f"{self._line()}{self._share()}", f"{elapsed:.0f} s", *self._outlook(elapsed)]
        self._owner.print(", ".join(parts))

    def finish(self) -> None:
        elapsed = self._owner.clock() - self._started
        if elapsed >= self._owner.interval_seconds:
            parts = [self._line(), f"done in {elapsed:.0f} s", *self._rate(elapsed)]
            self._owner.print(", ".join([*parts, *self._usage()]))

    def _share(self) -> str:
        return f" ({self._done / self._total:.0%})" if self._total else ""

    def _rate(self, elapsed: float) -> list[str]:
        return [format_rate(self._done / elapsed, self._unit)] if elapsed > 0 else []

    def _outlook(self, elapsed: float) -> list[str]:
        """Return rate, time left and usage, as far as they are known."""
        left = []
        if self._total and 0 < self._done < self._total:
            seconds = elapsed * (self._total - self._done) / self._done
            left = [f"{format_duration(seconds)} left"]
        return [*self._rate(elapsed), *left, *self._usage()]

    def _usage(self) -> list[str]:
        return [] if self._owner.usage is None else [str(self._owner.usage)]

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
    usage : Usage, optional
        What the process uses, to be shown as well.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        interval_seconds: float = _LINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        usage: Usage | None = None,
    ) -> None:
        self.stream = stream
        self.interval_seconds = interval_seconds
        self.clock = clock
        self.usage = usage

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "items") -> Iterator[Phase]:
        """Follow one phase; the yielded object's `advance(n)` counts."""
        phase = _LinePhase(self, name, total, unit)
        yield phase
        phase.finish()

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:
        """Write a remark as a line of its own."""
        del facts
        self.print(text)

    def print(self, line: str) -> None:
        """Write one line at once."""
        self.stream.write(line + "\n")
        self.stream.flush()
