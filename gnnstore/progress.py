"""Progress of long work: not shown by default, else on stderr or as a program likes.

The library announces phases and counts. On a terminal `open_progress` draws bars; elsewhere it logs
a line every ten seconds. Loaders display the work that is waited for.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gnnstore.errors import UsageError
from gnnstore.units import format_duration, format_size, wrapped

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import Task

# Lines go here: to the handlers that a program has set up, or else to stderr.
LOGGER = logging.getLogger("gnnstore.progress")
# How progress is shown; "auto": as suits what stderr is.
Style = Literal["auto", "bar", "lines", "none"]

# Seconds between lines: an hour leaves 360 lines, not a gigabyte.
_LINE_SECONDS = 10.0


class Phase(Protocol):
    """A step of the work, while it runs."""

    def advance(self, n: int = 1) -> None:
        """Report that `n` more units are done."""


class Progress(Protocol):
    """Receives the phases of a piece of work, one after the other."""

    def phase(
        self, name: str, total: int | None = None, unit: str = "items"
    ) -> AbstractContextManager[Phase]:
        """Begin a phase that lasts as long as the context.

        Parameters
        ----------
        name : str
            The task, as in "read edges".
        total : int, optional
            Units in all; None if it is not known.
        unit : str
            The unit: "edges", "rows", or "bytes", which is displayed as a size.
        """

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:
        """Report a message, such as how long the work is expected to take, also as facts."""


class NullPhase:
    """A phase that is not displayed."""

    def advance(self, n: int = 1) -> None:
        """Do nothing."""


class NullProgress:
    """Displays nothing; the default."""

    @contextmanager
    def phase(
        self,
        name: str,  # noqa: ARG002 - the protocol's
        total: int | None = None,  # noqa: ARG002
        unit: str = "items",  # noqa: ARG002
    ) -> Iterator[Phase]:
        """Return a phase that ignores its counts."""
        yield NullPhase()

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:
        """Ignore the message."""


def checked_progress(progress: Progress | None) -> Progress:
    """Return what displays nothing for None, and refuse what has not the methods of `Progress`."""
    if progress is None:
        return NullProgress()
    if not (hasattr(progress, "phase") and hasattr(progress, "note")):
        raise UsageError(
            f"progress={progress!r}: expected an object with the methods of "
            "gnnstore.progress.Progress; leave it out to display nothing"
        )
    return progress


class WaitProgress:
    """Displays work that is waited for, once the wait takes longer than two seconds.

    Phases may run in any thread, beside work that is not waited for; the display goes when the
    wait ends. In another process it displays nothing.
    """

    def __init__(
        self,
        show: Callable[[], AbstractContextManager[Progress]] | None = None,
        after_seconds: float = 2.0,
    ) -> None:
        self._show = show
        self._after_seconds = after_seconds
        self._since: float | None = None  # when the wait began, if there is one
        self._display: Progress | None = None
        self._closing = ExitStack()
        self._phases: list[_WaitPhase] = []
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), ())

    def another(self) -> WaitProgress:
        """Return the display of another loader, of the same kind."""
        return WaitProgress(self._show, self._after_seconds)

    @property
    def is_shown(self) -> bool:
        """Whether anything will be displayed."""
        return self._show is not None

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "items") -> Iterator[Phase]:
        """Begin a phase, displayed while it is waited for."""
        phase = _WaitPhase(self, name, total, unit)
        with self._lock:
            self._phases.append(phase)
        try:
            self.look()
            yield phase
        finally:
            with self._lock:
                self._phases.remove(phase)
                phase.hide()

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:
        """Ignore the message: it is for those who asked for the work."""

    @contextmanager
    def waiting(self, k: int = 0) -> Iterator[None]:  # noqa: ARG002 - asked for by `ordered_map`
        """Wait in the context for the k-th of some items."""
        if self._show is None:
            yield
            return
        self._since = monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._since = self._display = None
                for phase in self._phases:
                    phase.hide()
                self._closing.close()

    def look(self) -> None:
        """Display what goes on, if it has been waited for long."""
        since = self._since
        if since is None or monotonic() - since < self._after_seconds or self._pid != os.getpid():
            return
        with self._lock:
            if self._since is None or self._show is None or not self._phases:
                return
            if self._display is None:
                self._display = self._closing.enter_context(self._show())
            for phase in self._phases:
                phase.show(self._display)


class _WaitPhase:
    """A phase that counts by itself, until it is displayed."""

    def __init__(self, progress: WaitProgress, name: str, total: int | None, unit: str) -> None:
        self._progress = progress
        self._what = name, total, unit
        self._num_done = self._num_shown = 0
        self._shown: Phase | None = None
        self._closing = ExitStack()

    def advance(self, n: int = 1) -> None:
        """Count, from one thread at a time."""
        self._num_done += n
        self._progress.look()

    def show(self, display: Progress) -> None:
        """Display what is done; the caller has the lock."""
        if self._shown is None:
            self._shown = self._closing.enter_context(display.phase(*self._what))
        done, self._num_shown = self._num_done - self._num_shown, self._num_done
        self._shown.advance(done)

    def hide(self) -> None:
        """End the display; the caller has the lock."""
        self._shown, self._num_shown = None, 0
        self._closing.close()


@contextmanager
def open_progress(*, quiet: bool = False, style: Style = "auto") -> Iterator[Progress]:
    """Show progress while the context lasts."""
    if style == "auto":
        style = "bar" if is_terminal(sys.stderr) else "lines"
    if quiet or style == "none" or (style == "bar" and not is_open(sys.stderr)):
        yield NullProgress()
    elif style == "bar":
        with _bars() as bars:
            yield _BarProgress(bars)
    else:
        if LOGGER.level == logging.NOTSET:
            LOGGER.setLevel(logging.INFO)
        if not LOGGER.hasHandlers():
            LOGGER.addHandler(_StderrHandler())
        yield LineProgress()


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if is_open(sys.stderr):  # `print` without a stream would write to stdout
            print(record.getMessage(), file=sys.stderr, flush=True)


def is_terminal(stream: Any) -> bool:
    """Whether a stream is there, open, and a terminal."""
    return is_open(stream) and hasattr(stream, "isatty") and bool(stream.isatty())


def is_open(stream: Any) -> bool:
    """Whether a stream is there and open."""
    return stream is not None and not getattr(stream, "closed", False)


class LineProgress:
    """Logs a line every ten seconds, and one as a long phase ends."""

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "items") -> Iterator[Phase]:
        """Begin a phase."""
        phase = _LinePhase(name, total, unit)
        yield phase
        phase.end()

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        """Log the message."""
        LOGGER.info("%s", text)


class _LinePhase:
    """Counts from any thread."""

    def __init__(self, name: str, total: int | None, unit: str) -> None:
        self._name, self._total, self._unit = name, total, unit
        self._done = 0
        self._rate = _Rate()
        self._began = self._logged = monotonic()
        self._lock = threading.Lock()

    def advance(self, n: int = 1) -> None:
        with self._lock:
            self._done += n
            done, now = self._done, monotonic()
            rate = self._rate.after(done, now)
            if now - self._logged < _LINE_SECONDS:
                return
            self._logged = now
        share = f" ({done / self._total:.0%})" if self._total else ""
        self._log(done, f"{share}, {now - self._began:.0f} s", rate)

    def end(self) -> None:
        seconds = monotonic() - self._began
        if seconds >= _LINE_SECONDS:
            rate = self._done / seconds if seconds else 0.0
            self._log(self._done, f", done in {seconds:.0f} s", rate)

    def _log(self, done: int, state: str, rate: float) -> None:
        details = describe_rate(done, self._total, self._unit, rate)
        amount = describe_amount(done, self._total, self._unit)
        LOGGER.info("%s", ", ".join([f"{self._name}: {amount}{state}", *details]))


class _BarProgress:
    """One bar a phase, drawn by rich; a finished phase makes room for the next."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "items") -> Iterator[Phase]:
        task = self._bars.add_task(name, total=total, unit=unit, rate=_Rate())
        try:
            yield _BarPhase(lambda n: self._bars.advance(task, n))
        finally:
            self._bars.remove_task(task)

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        text = wrapped(text, self._bars.console.width)
        self._bars.console.print(text, soft_wrap=True, highlight=False, markup=False)


class _BarPhase:
    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance

    def advance(self, n: int = 1) -> None:
        self._advance(n)


def _bars() -> Bars:
    """Return bars on stderr, each in one line: what has no room at its end is cut off."""
    import rich.progress as bars  # noqa: PLC0415 - on demand
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    class Details(bars.ProgressColumn):
        def render(self, task: Task) -> Text:
            done, total = int(task.completed), None if task.total is None else int(task.total)
            unit: str = task.fields["unit"]
            rate = task.fields["rate"].after(done, monotonic())
            details = describe_rate(done, total, unit, rate)
            line = ", ".join([describe_amount(done, total, unit), *details])
            return Text(line, no_wrap=True, overflow="ellipsis")

    # A quarter of the line after the name is the bar; neither part moves as the other grows.
    details = Details(table_column=Column(no_wrap=True, ratio=3))
    bar = bars.BarColumn(bar_width=None, table_column=Column(ratio=1))
    name = bars.TextColumn(
        "{task.description}",
        markup=False,
        table_column=Column(no_wrap=True, overflow="ellipsis"),
    )
    columns = (bars.SpinnerColumn(), name, bar, details)
    return bars.Progress(*columns, console=Console(stderr=True), transient=True, expand=True)


class _Rate:
    """Units a second since the first ones were done: before these, work is prepared."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def after(self, done: int, now: float) -> float:
        """Return the rate, or 0 while it is not known."""
        if not done:
            return 0.0
        if self._first is None:
            self._first = done, now
        first, since = self._first
        return (done - first) / (now - since) if now > since else 0.0


def peak_rss_bytes() -> int:
    """Return the most memory that this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def describe_amount(done: int, total: int | None, unit: str) -> str:
    """Return "3 of 10 edges" or "1.2 MB of 3.4 GB", as far as the total is known."""
    show: Callable[[int], str] = format_size if unit == "bytes" else "{:,}".format
    amount = show(done) if total is None else f"{show(done)} of {show(total)}"
    return amount if unit == "bytes" else f"{amount} {unit}"


def describe_rate(done: int, total: int | None, unit: str, rate: float) -> list[str]:
    """Return "1,200 edges/s" or "35 MB/s", and "15 s left", as far as they are known."""
    if rate <= 0:
        return []
    number = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
    found = [f"{format_size(rate)}/s" if unit == "bytes" else f"{number} {unit}/s"]
    if total is not None and done < total:
        found.append(f"{format_duration((total - done) / rate)} left")
    return found
