"""Do the next pieces of work while the last one is being used.

Reading, decompressing, parsing and writing all release the interpreter's lock for most of
their time, so that a thread per piece is all it takes to overlap them. Threads live no
longer than their piece: whoever stops iterating in the middle leaves nothing behind. And unlike
`parallel.ordered_map`, a conversion goes on, without overlap, where no thread can be started.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_END: Any = object()


def num_threads() -> int:
    """Return how many pieces to work on at a time: the processors we may use, at most 8."""
    return min(8, len(os.sched_getaffinity(0)))


class _Task(threading.Thread, Generic[R]):
    """One call in a thread of its own."""

    def __init__(self, function: Callable[[], R]) -> None:
        super().__init__(name="gnnstore-convert")
        self._function = function
        self._value: R
        self._error: BaseException | None = None
        self._has_thread = True
        try:
            self.start()
        except RuntimeError:  # no more threads: less overlap changes the time, not the result
            self._has_thread = False
            self.run()

    def run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # raised where the result is asked for
            self._error = error

    def result(self) -> R:
        """Wait, and return the value or raise the error."""
        if self._has_thread:
            self.join()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # else task, error, traceback and frame hold each other
        return self._value


def read_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items of an iterable, making the next one while one is used."""
    iterator = iter(items)
    task: _Task[T] = _Task(partial(next, iterator, _END))
    while (item := task.result()) is not _END:
        task = _Task(partial(next, iterator, _END))
        yield item


def map_in_order(
    function: Callable[[T], R], items: Iterable[T], threads: int
) -> Generator[R, None, None]:
    """Yield function(item) for each item, in order, with up to `threads` calls at a time.

    The items themselves are made by the caller's thread, between the results it takes.
    """
    waiting: deque[_Task[R]] = deque()
    for item in items:
        waiting.append(_Task(partial(function, item)))
        if len(waiting) > threads:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
