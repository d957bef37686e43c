"""Records when each stage of a loader ran, and on which thread, to show where an epoch's time goes.

Timelines are written in the format that chrome://tracing and ui.perfetto.dev open: complete events
("X") with times in microseconds, and names of threads as metadata. Without a recording, `OFF` takes
the place of a timeline and keeps nothing.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from gnnstore.errors import NotFoundError, StorageError, UsageError, storage_error, storage_errors

__all__ = ["MAX_EVENTS", "OFF", "Timeline", "recorded"]

# Some 460 bytes each in memory, 170 in the file, and 4 to 7 a batch: 30 MB for 10 000 batches.
MAX_EVENTS = 2**16

_Event = tuple[int, int, int, str, dict[str, Any]]  # start, end, thread, name, args


class Timeline:
    """Records stages from many threads, in bounded memory."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        if max_events < 1:
            raise UsageError(f"max_events={max_events}: a timeline keeps at least 1 event")
        self._max_events = max_events
        self._begin_ns = time.perf_counter_ns()
        self._events: list[_Event] = []
        self._num_dropped = 0
        # The thread that begins the recording stands on top.
        self._threads = {threading.get_native_id(): threading.current_thread().name}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_off, ())  # a loader's copy in another process records nothing

    def span(self, name: str, /, **args: Any) -> _Span:
        """Record the time of a `with` block; `as` gives its arguments, which may be extended."""
        return _Span(self, name, args)

    def add(self, name: str, start_ns: int, end_ns: int, /, **args: Any) -> None:
        """Record a stage of the calling thread."""
        thread, start_ns = threading.get_native_id(), max(start_ns, self._begin_ns)
        with self._lock:
            if len(self._events) >= self._max_events:
                self._num_dropped += 1
                return
            self._events.append((start_ns, end_ns, thread, name, args))
            if thread not in self._threads:
                self._threads[thread] = threading.current_thread().name

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the events so far to a file, which is replaced atomically."""
        file = Path(path)
        temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
        with storage_errors("write the timeline", file):
            try:
                # Not through `tempfile`, whose files nobody else may read.
                with temporary.open("x", encoding="ascii") as opened:
                    self._write(opened)
                temporary.replace(file)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def _write(self, file: TextIO) -> None:
        with self._lock:
            events, threads = list(self._events), dict(self._threads)
            num_dropped = self._num_dropped
        # Longer ones first: others with the same beginning lie within them.
        events.sort(key=lambda event: (event[0], -event[1]))
        pid = os.getpid()
        file.write('{"displayTimeUnit": "ms", "otherData": ')
        file.write(json.dumps({"dropped_events": num_dropped}))
        file.write(', "traceEvents": [\n')
        lines = [{"name": "process_name", "ph": "M", "pid": pid, "args": {"name": "gnnstore"}}]
        for place, (thread, name) in enumerate(threads.items()):
            at = {"ph": "M", "pid": pid, "tid": thread}
            lines += [
                {"name": "thread_name", **at, "args": {"name": name}},
                {"name": "thread_sort_index", **at, "args": {"sort_index": place}},
            ]
        file.write(",\n".join(map(json.dumps, lines)))
        for start_ns, end_ns, thread, name, args in events:
            event = {
                "name": name,
                "ph": "X",
                "ts": (start_ns - self._begin_ns) / 1000,
                "dur": max(0, end_ns - start_ns) / 1000,
                "pid": pid,
                "tid": thread,
                "args": {key: _plain(value) for key, value in args.items()},
            }
            file.write(",\n" + json.dumps(event, allow_nan=False))
        if num_dropped:
            last = max(end_ns for _, end_ns, *_ in events)
            event = {
                "name": f"{num_dropped} events after this one are left out",
                "ph": "i",
                "s": "g",  # a line through all threads
                "ts": (last - self._begin_ns) / 1000,
                "pid": pid,
                "tid": next(iter(threads)),
            }
            file.write(",\n" + json.dumps(event))
        file.write("\n]}\n")


class _Span:
    """A stage that is running."""

    __slots__ = ("_args", "_name", "_start_ns", "_timeline")

    def __init__(self, timeline: Timeline, name: str, args: dict[str, Any]) -> None:
        self._timeline = timeline
        self._name = name
        self._args = args

    def __enter__(self) -> dict[str, Any]:
        self._start_ns = time.perf_counter_ns()
        return self._args

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end_ns = time.perf_counter_ns()
        if kind is not None:
            self._args["error"] = kind.__name__
        self._timeline.add(self._name, self._start_ns, end_ns, **self._args)


class _Off(Timeline):
    """Records nothing."""

    def span(self, name: str, /, **args: Any) -> _Span:  # noqa: ARG002
        """Do nothing."""
        return _NO_SPAN

    def add(self, name: str, start_ns: int, end_ns: int, /, **args: Any) -> None:
        """Do nothing."""


class _NoSpan(_Span):
    __slots__ = ()

    def __enter__(self) -> dict[str, Any]:
        return {}

    def __exit__(self, *_: object) -> None:
        pass


OFF: Timeline = _Off()
_NO_SPAN = _NoSpan(OFF, "", {})


def _off() -> Timeline:
    return OFF


@contextmanager
def recorded(path: str | os.PathLike[str], max_events: int = MAX_EVENTS) -> Iterator[Timeline]:
    """Yield a timeline, and write it when the `with` block is left, by an error too."""
    file = Path(path).absolute()
    _refuse_unwritable(file)
    timeline = Timeline(max_events)
    try:
        yield timeline
    except BaseException as error:
        try:
            timeline.write(file)
        except StorageError as second:
            error.add_note(f"and no timeline has been written: {second}")
        raise
    timeline.write(file)


def _refuse_unwritable(file: Path) -> None:
    """Raise before an epoch the error that writing would raise after it."""
    if not file.parent.is_dir():
        raise NotFoundError(
            f"{file}: the directory to write the timeline into does not exist", path=file
        )
    code = 0
    if file.is_dir():
        code = errno.EISDIR
    elif not os.access(file.parent, os.W_OK | os.X_OK):
        code = errno.EACCES
    if code:
        error = OSError(code, os.strerror(code))
        raise storage_error(error, "write the timeline", file)


def _plain(value: Any) -> Any:
    """Return a JSON value for an argument, such as one of NumPy's numbers."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
