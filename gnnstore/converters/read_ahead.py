"""Works on the next pieces while the last one is in use.

Reading, decompressing, parsing and writing all release the interpreter's lock for most of
their time, so that a thread per piece is all it takes to overlap them. Threads live no
longer than their piece: stopping the iteration in the middle leaves nothing behind. And unlike
`threads.ordered_map`, a conversion goes on, without overlap, where no thread can be started.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from gnnstore import _core
from gnnstore.threads import Background

T = TypeVar("T")
R = TypeVar("R")

_END: Any = object()
_THREAD_NAME = "gnnstore-convert"


def num_threads() -> int:
    """Return the number of pieces to work on at a time: our processors, at most 8."""
    return min(8, len(os.sched_getaffinity(0)))


def read_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items of an iterable, making the next item while one is in use."""
    iterator = iter(items)
    task: Background[T] = Background(partial(next, iterator, _END), _THREAD_NAME)
    while (item := task.result()) is not _END:
        task = Background(partial(next, iterator, _END), _THREAD_NAME)
        yield item
        del item
    _core.release_memory()  # later allocations have other sizes


def map_in_order(
    function: Callable[[T], R], items: Iterable[T], threads: int
) -> Generator[R, None, None]:
    """Yield function(item) for each item, in order, with up to `threads` calls at a time.

    The items themselves are made by the caller's thread, between the results it takes.
    """
    waiting: deque[Background[R]] = deque()
    for item in items:
        waiting.append(Background(partial(function, item), _THREAD_NAME))
        if len(waiting) > threads:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
