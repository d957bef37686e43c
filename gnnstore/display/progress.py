"""Progress on stderr: bars on a terminal, lines elsewhere.

Both show the phase, its amount, its rate and the time left and, for work that writes, the bytes
written and the peak memory so far.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import rich.progress as bars
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Column, Table

from gnnstore.display.lines import (
    JsonProgress,
    LineProgress,
    Usage,
    format_amount,
    format_rate,
)
from gnnstore.progress import NullProgress, Phase, Progress
from gnnstore.units import format_duration

# How progress is shown; "auto": as suits what stderr is.
Style = Literal["auto", "bar", "lines", "json", "none"]

_SPINNER_CELLS = 2
_LEAST_BAR, _MOST_BAR = 8, 40


@contextmanager
def open_progress(
    *, quiet: bool = False, show_usage: bool = False, style: Style = "auto"
) -> Iterator[Progress]:
    """Show progress on stderr while the context lasts."""
    usage = Usage() if show_usage else None
    if style == "auto":
        style = "bar" if sys.stderr.isatty() else "lines"
    if quiet or style == "none":
        yield NullProgress()
    elif style == "lines":
        yield LineProgress(sys.stderr, usage=usage)
    elif style == "json":
        events = JsonProgress(sys.stderr, usage=usage)
        try:
            yield events
        except BaseException as error:
            events.end(error)
            raise
        events.end(None)
    else:
        console = Console(stderr=True)
        columns = (bars.SpinnerColumn(), _PhaseColumn(console, usage))
        with bars.Progress(*columns, console=console, transient=True) as display:
            yield _BarProgress(display)


class _PhaseColumn(bars.ProgressColumn):
    """A phase in one line: name, bar, amount, rate, time left and usage, as far as there is room.

    The name and the amount are always there. On a narrow terminal usage, rate and time left go, in
    this order, and the bar where less than `_LEAST_BAR` cells are left for it.
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
