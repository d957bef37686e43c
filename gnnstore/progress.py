"""Reports the progress of long work, without knowing how it is displayed.

A conversion may run for hours. The library only announces phases and counts; the command line
draws bars, a notebook may draw its own, and by default nothing is displayed. Loaders display what
somebody waits for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from time import monotonic
from typing import Any, Protocol

from gnnstore.threads import Flag, Thread


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
        """Report a message, such as how long the work is expected to take.

        Parameters
        ----------
        text : str
            For people.
        facts : Mapping, optional
            The same for programs: JSON values, such as the fields of an estimate.
        """


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


class WaitProgress:
    """Displays work that somebody waits for, once the wait takes longer than two seconds.

    Phases may run in any thread, beside work that nobody waits for; what is displayed goes when the
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

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "items") -> Iterator[Phase]:
        """Begin a phase, displayed while somebody waits."""
        if self._show is None:
            yield NullPhase()
            return
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
    def waiting(self, k: int = 0) -> Iterator[None]:
        """Wait in the context for the k-th of some items."""
        if self._show is None:
            yield
            return
        self._since = monotonic()
        is_over = Flag()
        timer = self._start_timer(is_over) if k == 0 else None
        try:
            yield
        finally:
            is_over.set()
            self._end()
            if timer is not None:
                timer.join()

    def _start_timer(self, is_over: Flag) -> Thread | None:
        def look() -> None:
            if not is_over.wait(self._after_seconds):
                self.look()

        timer = Thread(target=look, daemon=True)
        try:
            timer.start()
        except RuntimeError:  # no more threads: displayed once a phase counts
            return None
        return timer

    def look(self) -> None:
        """Display what goes on, if somebody has waited long."""
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

    def _end(self) -> None:
        with self._lock:
            self._since = None
            if self._display is None:
                return
            for phase in self._phases:
                phase.hide()
            self._display = None
            self._closing.close()


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
