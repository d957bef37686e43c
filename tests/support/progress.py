"""A progress that remembers what it is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gnnstore.progress import Phase


class Recorder:
    """Remembers each phase as [name, unit, total, done]."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, str, int | None, int]] = []
        self.notes: list[str] = []

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "items") -> Iterator[Phase]:
        counter = Counter()
        yield counter
        self.phases.append((name, unit, total, counter.done))

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:
        del facts
        self.notes.append(text)


class Counter:
    def __init__(self) -> None:
        self.done = 0

    def advance(self, n: int = 1) -> None:
        self.done += n
