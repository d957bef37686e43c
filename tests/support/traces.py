"""Traces and plans in files, as superbatches that a budget has no room for have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gnnstore.caching.belady import BeladyPlanner
from gnnstore.caching.plan import CachePlan, PlanLocation, Trace, TraceBuilder
from gnnstore.progress import Phase


class Spilled(NamedTuple):
    """A superbatch on disk."""

    trace: Trace
    plan: CachePlan

    def close(self) -> None:
        self.trace.close()
        self.plan.close()


def spill_trace(trace: Trace, num_nodes: int, path: Path) -> Trace:
    """Write a trace to a file, the last batch first."""
    file = TraceBuilder(trace.num_batches, num_nodes, path)
    for i in reversed(range(trace.num_batches)):
        file.put(i, trace.batch(i))
    return file.build()


def spill(trace: Trace, planner: BeladyPlanner, directory: Path, num_nodes: int) -> Spilled:
    """Write a trace and its plan to files of a directory."""
    on_disk = spill_trace(trace, num_nodes, directory / "trace")
    plan = planner.plan(on_disk, PlanLocation(directory / "plan", 4 * num_nodes))
    return Spilled(on_disk, plan)


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
