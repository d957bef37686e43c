"""Progress for machines: one JSON object a line.

A scheduler or a notebook wants numbers, not a sentence whose wording may change. Events
of one kind have the same fields, null where there is nothing to say, so that a reader needs no
cases; sizes are in bytes, times in seconds.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from gnnstore.progress import Phase
from gnnstore.tools.ui.usage import Usage

# Ten times as often as lines for people: a program may draw from it.
_EVENT_SECONDS = 1.0


class JsonProgress:
    """Writes events: start, progress, phase (one has ended), note, end.

    Parameters
    ----------
    stream : text file
        Where the lines go.
    interval_seconds : float
        The least time between two `progress` events of a phase, but for its first.
    clock : callable
        Returns seconds; replaced in tests.
    usage : Usage, optional
        What the process uses.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        interval_seconds: float = _EVENT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        usage: Usage | None = None,
    ) -> None:
        self.interval_seconds = interval_seconds
        self.clock = clock
        self._stream = stream
        self._usage = usage or Usage()
        self._began = clock()
        self._has_started = False
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, name: str, total: int | None = None, unit: str = "items") -> Iterator[Phase]:
        """Follow one phase; the yielded object's `advance(n)` counts."""
        phase = _JsonPhase(self, name, total, unit)
        yield phase
        phase.finish()

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:
        """Tell what the work is expected to take, or else a remark."""
        if facts is None:
            self.emit("note", text=text)
        else:
            self._start(facts)

    def end(self, error: BaseException | None) -> None:
        """Tell how the work ended; the last event."""
        failed = None
        if error is not None:
            failed = {"kind": type(error).__name__, "message": str(error)}
        self.emit("end", ok=error is None, error=failed)

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event; the first one is led by `start`."""
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
            "bytes_written": self._usage.written_bytes(),
            "peak_memory_bytes": self._usage.peak_memory_bytes(),
            "elapsed_seconds": round(self.clock() - self._began, 3),
        }
        with self._lock:  # several threads may advance a phase
            self._stream.write(json.dumps(document, allow_nan=False) + "\n")
            self._stream.flush()


class _JsonPhase:
    def __init__(self, owner: JsonProgress, name: str, total: int | None, unit: str) -> None:
        self._owner = owner
        self._name = name
        self._total = total
        self._unit = unit
        self._done = 0
        self._began = self._reported = owner.clock()
        self._lock = threading.Lock()
        self._emit("progress", 0, 0.0)

    def advance(self, n: int = 1) -> None:
        with self._lock:
            self._done += n
            done, now = self._done, self._owner.clock()
            if now - self._reported < self._owner.interval_seconds:
                return
            self._reported = now
        self._emit("progress", done, now - self._began)

    def finish(self) -> None:
        self._emit("phase", self._done, self._owner.clock() - self._began)

    def _emit(self, event: str, done: int, seconds: float) -> None:
        rate = done / seconds if seconds > 0 else None
        left = None
        if self._total is not None and rate:
            left = round(max(0, self._total - done) / rate, 3)
        self._owner.emit(
            event,
            phase=self._name,
            done=done,
            total=self._total,
            unit=self._unit,
            rate=rate,
            eta_seconds=left,
            phase_seconds=round(seconds, 3),
        )
