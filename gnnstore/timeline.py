"""Records when each stage of a loader ran, and on which thread, to show where an epoch's time goes.

Files are in the format of chrome://tracing and ui.perfetto.dev: complete events ("X") with times in
microseconds, and names of threads as metadata. `OFF` is a timeline that keeps nothing.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias

from gnnstore.errors import (
    NotFoundError,
    StorageError,
    UsageError,
    as_plain,
    storage_error,
    storage_errors,
)

# Most events: some 460 bytes each in memory, 170 in the file, and 4 to 7 a batch, so 30 MB for 10
# 000 batches.
MAX_EVENTS = 2**16


# Start and end in nanoseconds, thread, name, arguments.
Event: TypeAlias = tuple[int, int, int, str, dict[str, Any]]


class Recording(NamedTuple):
    """What a timeline has recorded."""

    begin_ns: int
    events: list[Event]  # by their start, those before others that lie within them
    threads: dict[int, str]  # names; the thread that began the recording comes first
    num_dropped: int  # events that were not kept


class Timeline:
    """Records stages from many threads, in bounded memory."""

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        if max_events < 1:
            raise UsageError(f"max_events={max_events}: a timeline keeps at least 1 event")
        self._max_events = max_events
        self._begin_ns = time.perf_counter_ns()
        self._events: list[Event] = []
        self._num_dropped = 0
        # The thread that begins the recording stands on top.
        self._threads = {threading.get_native_id(): threading.current_thread().name}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Timeline.off, ())  # a loader's copy in another process records nothing

    @staticmethod
    def off() -> Timeline:
        """Return the timeline that keeps nothing."""
        return OFF

    @contextmanager
    def span(self, name: str, /, **args: Any) -> Iterator[dict[str, Any]]:
        """Record the time of a `with` block; `as` gives its arguments, which may be extended."""
        start_ns = time.perf_counter_ns()
        try:
            yield args
        except BaseException as error:
            args["error"] = type(error).__name__
            raise
        finally:
            self.add(name, start_ns, time.perf_counter_ns(), **args)

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
                # Not through `tempfile`, whose files other users cannot read.
                with temporary.open("x", encoding="ascii") as opened:
                    self._write(opened)
                temporary.replace(file)
            finally:
                temporary.unlink(missing_ok=True)

    def recording(self) -> Recording:
        """Return the events so far, in order."""
        with self._lock:
            events, names, num_dropped = [*self._events], {**self._threads}, self._num_dropped
        seen, threads = Counter[str](), {}
        for thread, name in names.items():  # two loaders name their threads alike
            seen[name] += 1
            threads[thread] = name if seen[name] == 1 else f"{name} ({seen[name]})"
        # Longer ones first: others with the same beginning lie within them.
        events.sort(key=lambda event: (event[0], -event[1]))
        return Recording(self._begin_ns, events, threads, num_dropped)

    def _write(self, file: TextIO) -> None:
        _, events, threads, num_dropped = self.recording()
        pid = os.getpid()

        def write(end: str = ",\n", /, **event: Any) -> None:
            file.write(json.dumps({**event, "pid": pid}, default=as_plain) + end)

        head = f'"displayTimeUnit": "ms", "otherData": {{"dropped_events": {num_dropped}}}'
        file.write(f'{{{head}, "traceEvents": [\n')
        for place, (tid, of_thread) in enumerate(threads.items()):
            write(name="thread_name", ph="M", tid=tid, args={"name": of_thread})
            write(name="thread_sort_index", ph="M", tid=tid, args={"sort_index": place})
        for start_ns, end_ns, tid, stage, args in events:
            ts, dur = (start_ns - self._begin_ns) / 1000, max(0, end_ns - start_ns) / 1000
            write(name=stage, ph="X", ts=ts, dur=dur, tid=tid, args=args)
        write("\n]}\n", name="process_name", ph="M", args={"name": "gnnstore"})


class _Off(Timeline):
    """Records nothing."""

    def add(self, *_: Any, **__: Any) -> None: ...


OFF: Timeline = _Off()


@contextmanager
def recorded(
    path: str | os.PathLike[str],
    max_events: int = MAX_EVENTS,
    write: Callable[[Timeline, Path], object] = Timeline.write,
) -> Iterator[Timeline]:
    """Yield a timeline for a path that is checked now; write it as the block ends, however."""
    file = Path(path).absolute()
    if not file.parent.is_dir():
        raise NotFoundError(f"{file}: the directory of the timeline does not exist", path=file)
    if file.is_dir() or not os.access(file.parent, os.W_OK | os.X_OK):
        code = errno.EISDIR if file.is_dir() else errno.EACCES
        raise storage_error(OSError(code, os.strerror(code)), "write the timeline", file)
    timeline = Timeline(max_events)
    try:
        yield timeline
    except BaseException as error:
        try:
            write(timeline, file)
        except StorageError as second:
            error.add_note(f"and no timeline has been written: {second}")
        raise
    write(timeline, file)
