"""Reports the progress of long work, without knowing how it is displayed.

A conversion may run for hours. The library only announces phases and counts; the command line
draws bars, a notebook may draw its own, and by default nothing is displayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol


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
