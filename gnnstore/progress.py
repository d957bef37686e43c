"""How long work tells its caller how far it is, without knowing who shows it.

A conversion may run for hours. The library only announces phases and counts; the command
line draws bars, a notebook may draw its own, and by default nothing is shown at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol


class Phase(Protocol):
    """One step of the work, while it runs."""

    def advance(self, n: int = 1) -> None:
        """Say that `n` more units are done."""


class Progress(Protocol):
    """Receives the phases of a piece of work, one after the other."""

    def phase(
        self, name: str, total: int | None = None, unit: str = "items"
    ) -> AbstractContextManager[Phase]:
        """Begin a phase that lasts as long as the context.

        Parameters
        ----------
        name : str
            What is being done, as in "read edges".
        total : int, optional
            Units in all; None if nobody knows.
        unit : str
            What is counted: "edges", "rows", or "bytes", which is shown as a size.
        """

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:
        """Say something once, such as how long the work is expected to take.

        Parameters
        ----------
        text : str
            For people.
        facts : Mapping, optional
            The same for programs: JSON values, such as the fields of an estimate.
        """


class NullPhase:
    """A phase that nobody watches."""

    def advance(self, n: int = 1) -> None:
        """Do nothing."""


class NullProgress:
    """The default: shows nothing."""

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
        """Say nothing."""
