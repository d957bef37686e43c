"""Progress as lines: for people where there is no terminal, and as JSON objects for programs.

A log file full of redrawn bars is unreadable and a silent hour is worrying, so people get a plain
line every few seconds, and one when a long phase ends. A scheduler or a notebook needs numbers and
not a sentence whose wording may change, so programs get one JSON object per line. Events of one
kind have the same fields, null where there is no value; sizes are in bytes, times in seconds.
"""

from __future__ import annotations

import json
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from gnnstore.pipeline.stats import peak_rss_bytes
from gnnstore.progress import Phase
from gnnstore.units import format_duration, format_size

_IO = Path("/proc/self/io")
# A line every 10 s: an hour leaves 360 lines, not a gigabyte. A program may draw from its events.
_LINE_SECONDS, _EVENT_SECONDS = 10.0, 1.0


class Usage:
    """Resources that this process has used: bytes written since now, and peak memory."""

    def __init__(self, io: Path = _IO) -> None:
        self._io = io
        self._written_before = self._read_written()

    def written_bytes(self) -> int | None:
        """Return the bytes passed to write calls; None where the kernel does not count them."""
        now = self._read_written()
        if now is None or self._written_before is None:
            return None
        return now - self._written_before

    def __str__(self) -> str:
        """Return both for people."""
        written = self.written_bytes()
        peak = f"{format_size(peak_rss_bytes())} memory at the peak"
        return peak if written is None else f"{format_size(written)} written, {peak}"

    def _read_written(self) -> int | None:
        try:
            found = re.search(r"^wchar: (\d+)$", self._io.read_text(), re.MULTILINE)
        except OSError:  # some containers hide it
            return None
        return None if found is None else int(found[1])


class _PhaseCount:
    """Counts the units of a phase, from any thread, and reports now and then."""

    def __init__(self, owner: _Lines, name: str, total: int | None, unit: str) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done = 0
        self._owner = owner
        self._began = self._reported = owner.clock()
        self._lock = threading.Lock()

    def advance(self, n: int = 1) -> None:
        with self._lock:
            self.done += n
            done, now = self.done, self._owner.clock()
            if now - self._reported < self._owner.interval_seconds:
                return
            self._reported = now
        self._owner.report(self, done, now - self._began)

    def seconds(self) -> float:
        return self._owner.clock() - self._began


class _Lines(ABC):
    """Writes about phases to a stream."""

    reports_beginning = False

    def __init__(
        self,
        stream: TextIO,
        *,
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        usage: Usage | None = None,
    ) -> None:
        self.stream = stream
        self.interval_seconds = interval_seconds
        self.clock = clock
        self.usage = usage
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "items") -> Iterator[Phase]:
        """Report on one phase; `advance(n)` of the yielded object counts."""
        phase = _PhaseCount(self, name, total, unit)
        if self.reports_beginning:
            self.report(phase, 0, 0.0)
        yield phase
        self.finish(phase)

    @abstractmethod
    def report(self, phase: _PhaseCount, done: int, seconds: float) -> None:
        """Report how far a phase is after some seconds."""

    @abstractmethod
    def finish(self, phase: _PhaseCount) -> None:
        """Report that a phase has ended."""

    def print(self, line: str) -> None:
        """Write one line at once, whole even if several threads write."""
        with self._lock:
            self.stream.write(line + "\n")
            self.stream.flush()


class LineProgress(_Lines):
    """Writes a plain line every `interval_seconds`; nothing about a shorter phase."""

    def __init__(
        self, stream: TextIO, *, interval_seconds: float = _LINE_SECONDS, **options: Any
    ) -> None:
        super().__init__(stream, interval_seconds=interval_seconds, **options)

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:
        """Write a remark on a line of its own."""
        del facts
        self.print(text)

    def report(self, phase: _PhaseCount, done: int, seconds: float) -> None:
        """Write amount, share, rate, time left and usage, as far as they are known."""
        amount = format_amount(done, phase.total, phase.unit)
        share = f" ({done / phase.total:.0%})" if phase.total else ""
        left = []
        if phase.total and 0 < done < phase.total:
            left = [f"{format_duration(seconds * (phase.total - done) / done)} left"]
        rate = self._rate(phase, done, seconds)
        self._write(f"{phase.name}: {amount}{share}", f"{seconds:.0f} s", *rate, *left)

    def finish(self, phase: _PhaseCount) -> None:
        """Write how long a long phase took."""
        seconds = phase.seconds()
        if seconds >= self.interval_seconds:
            amount = format_amount(phase.done, phase.total, phase.unit)
            rate = self._rate(phase, phase.done, seconds)
            self._write(f"{phase.name}: {amount}", f"done in {seconds:.0f} s", *rate)

    @staticmethod
    def _rate(phase: _PhaseCount, done: int, seconds: float) -> list[str]:
        return [format_rate(done / seconds, phase.unit)] if seconds > 0 else []

    def _write(self, *parts: str) -> None:
        self.print(", ".join([*parts, *([str(self.usage)] if self.usage else [])]))


class JsonProgress(_Lines):
    """Writes events: start, progress, phase (as one ends), note, end."""

    reports_beginning = True

    def __init__(
        self,
        stream: TextIO,
        *,
        interval_seconds: float = _EVENT_SECONDS,
        usage: Usage | None = None,
        **options: Any,
    ) -> None:
        options["usage"] = usage or Usage()
        super().__init__(stream, interval_seconds=interval_seconds, **options)
        self._began = self.clock()
        self._has_started = False

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:
        """Write the estimate of the work, or else a remark."""
        if facts is None:
            self._emit("note", text=text)
        else:
            self._start(facts)

    def end(self, error: BaseException | None) -> None:
        """Write the last event: how the work ended."""
        failed = None
        if error is not None:
            failed = {"kind": type(error).__name__, "message": str(error)}
        self._emit("end", ok=error is None, error=failed)

    def report(self, phase: _PhaseCount, done: int, seconds: float) -> None:
        """Write how far a phase is."""
        self._emit_phase("progress", phase, done, seconds)

    def finish(self, phase: _PhaseCount) -> None:
        """Write the last event of a phase."""
        self._emit_phase("phase", phase, phase.done, phase.seconds())

    def _emit_phase(self, event: str, phase: _PhaseCount, done: int, seconds: float) -> None:
        rate = done / seconds if seconds > 0 else None
        left = None
        if phase.total is not None and rate:
            left = round(max(0, phase.total - done) / rate, 3)
        self._emit(
            event,
            phase=phase.name,
            done=done,
            total=phase.total,
            unit=phase.unit,
            rate=rate,
            eta_seconds=left,
            phase_seconds=round(seconds, 3),
        )

    def _emit(self, event: str, **fields: Any) -> None:
        """Write one event; `start` comes before all others."""
        if not self._has_started:
            self._start(None)
        self._write(event, fields)

    def _start(self, estimate: Mapping[str, Any] | None) -> None:
        self._has_started = True
        self._write("start", {"estimate": None if estimate is None else dict(estimate)})

    def _write(self, event: str, fields: Mapping[str, Any]) -> None:
        document = {
            "event": event,
            **fields,
            "bytes_written": None if self.usage is None else self.usage.written_bytes(),
            "peak_memory_bytes": peak_rss_bytes(),
            "elapsed_seconds": round(self.clock() - self._began, 3),
        }
        self.print(json.dumps(document, allow_nan=False))


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
