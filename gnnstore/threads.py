"""Calls beside the caller: in a thread of its own, in several, or so that they can be interrupted.

Work that is done ahead and handed over in order is in `gnnstore.parallel`.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from types import FrameType
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore.interrupts import CancelledError, Condition, Flag, Pending, Thread

R = TypeVar("R")

_NAME_PREFIX = "gnnstore-"  # of all threads that gnnstore starts
THREAD_NAME = f"{_NAME_PREFIX}loader"
_POLL_SECONDS = 0.05


class Ending:
    """Ends what works for an object: when called, or when nobody has the object any more; once.

    The garbage collector may find in any thread that nobody has it, even in one that works for it,
    or that has a lock which such a thread waits for.
    """

    def __init__(self, owner: object, end: Callable[..., object], *args: object) -> None:
        self._end = partial(_end_here, os.getpid(), end, *args)
        self._finalizer = weakref.finalize(owner, _end_found, self._end)

    def __call__(self) -> None:
        """End it, unless that has been done."""
        if self.detach():
            self._end()

    def detach(self) -> bool:
        """Leave it as it is from now on; returns whether it was going to be ended."""
        return self._finalizer.detach() is not None


def _end_here(pid: int, end: Callable[..., object], *args: object) -> None:
    if os.getpid() == pid:  # else threads and files are those of the process before the fork
        end(*args)


def _end_found(end: Callable[[], None]) -> None:
    is_ours = threading.current_thread().name.startswith(_NAME_PREFIX)
    if not is_ours and not (_collecting == threading.get_ident() and _is_within_ours()):
        return end()
    try:
        threading.Thread(target=end, name=f"{_NAME_PREFIX}end").start()
    except RuntimeError:  # no more threads
        atexit.register(end)


_collecting = 0  # the thread in which the garbage collector runs


def _note_collecting(
    phase: str, _: object, get_ident: Callable[[], int] = threading.get_ident
) -> None:
    # Called until the interpreter is gone, when what modules have imported is gone already.
    global _collecting  # noqa: PLW0603 - the interpreter has one collector
    _collecting = get_ident() if phase == "start" else 0


gc.callbacks.append(_note_collecting)


def _is_within_ours() -> bool:
    """Whether a function of this package has been interrupted, which may have a lock."""
    package = __name__.partition(".")[0]
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") in (__name__, weakref.__name__):
        frame = frame.f_back
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            return True
        frame = frame.f_back
    return False


class SharedLock:
    """A lock that many threads share, or one has alone, which comes before others that would share.

    Whoever waits for it looks now and then whether it is still worth it.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._num_sharing = 0
        self._is_alone = False

    @property
    def is_alone(self) -> bool:
        """Whether somebody has it alone, or is about to."""
        return self._is_alone

    @contextmanager
    def shared(self, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold it together with others."""
        is_held: list[bool] = []  # an interrupt may come as soon as it is

        def look() -> bool | None:
            if self._is_alone:
                return None
            self._num_sharing += 1
            is_held.append(True)
            return True

        try:
            self._changed.wait_until(look, check)
            yield
        finally:
            with self._changed:
                self._num_sharing -= len(is_held)
                self._changed.notify_all()

    @contextmanager
    def alone(self, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold it alone, once those that share it are done; see `shared`."""
        is_mine: list[bool] = []

        def look() -> bool | None:
            if self._is_alone:
                return None
            self._is_alone = True
            is_mine.append(True)
            return True

        with self._had(is_mine):
            self._changed.wait_until(look, check)
            self._wait_for_others(check)
            yield

    @contextmanager
    def alone_unless_taken(self) -> Iterator[bool]:
        """Hold it alone, unless somebody has it so; gives whether it is held."""
        is_mine: list[bool] = []
        with self._had(is_mine):
            with self._changed:
                if not self._is_alone:
                    self._is_alone = True
                    is_mine.append(True)
            if is_mine:
                self._wait_for_others(lambda: None)
            yield bool(is_mine)

    @contextmanager
    def _had(self, is_mine: list[bool]) -> Iterator[None]:
        try:
            yield
        finally:
            if is_mine:
                with self._changed:
                    self._is_alone = False
                    self._changed.notify_all()

    def _wait_for_others(self, check: Callable[[], None]) -> None:
        self._changed.wait_until(lambda: True if self._num_sharing == 0 else None, check)


class Background(Generic[R]):
    """One call in a thread of its own; made at once where no thread can be started."""

    def __init__(self, function: Callable[[], R], name: str) -> None:
        self._call: Pending[R] = Pending()
        self._thread: Thread | None = Thread(target=self._call.make, args=(function,), name=name)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads: less overlap changes the time, not the result
            self._thread = None
            self._call.make(function)
        except BaseException:
            if not self._call.cancel():
                self._call.wait()
            raise

    def result(self) -> R:
        """Wait, and return the value or raise the error."""
        self.finish()
        return self._call.result()

    def finish(self) -> None:
        """Wait, whatever comes of it."""
        self._call.wait()  # not for the thread alone: an interrupted `join` takes it for ended
        if self._thread is not None:
            self._thread.join()


def run_beside(owner: object, work: Callable[[Flag], None], name: str) -> Callable[[], object]:
    """Work in a thread of its own for as long as an object lives."""
    stop = Flag()
    thread = Thread(target=work, args=(stop,), name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads: less overlap changes the time, not the result
        work(stop)
        return lambda: None
    return Ending(owner, _end_beside, stop, thread)


def _end_beside(stop: Flag, thread: Thread) -> None:
    stop.set()
    thread.join()


def for_each(num_tasks: int, num_threads: int, work: Callable[[int], None], name: str) -> None:
    """Call work(0), ... work(num_tasks - 1), on some threads; the calling one is among them."""
    numbers = count()  # `next` of it is one step of the interpreter
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not failures and (i := next(numbers)) < num_tasks:
                work(i)
        except BaseException as error:
            failures.append(error)

    helpers = [Thread(target=run, name=name) for _ in range(min(num_threads, num_tasks) - 1)]
    started = []
    for helper in helpers:
        with suppress(RuntimeError):  # fewer threads change the time, not the result
            helper.start()
            started.append(helper)
    run()
    for helper in started:
        helper.join()
    if failures:
        raise failures[0]


def interruptible(
    work: Callable[[], R],
    name: str,
    progress: npt.NDArray[np.int64],
    stop: Flag | None = None,
    advance: Callable[[int], None] | None = None,
) -> R:
    """Run a kernel on a thread of its own, so that it can be interrupted."""
    result: list[R] = []
    failure: list[BaseException] = []
    # Not `Thread.join`: an interrupted one takes the thread for ended, in CPython 3.11, and files
    # would be removed that are being written.
    running = threading.Lock()
    running.acquire()

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)
        running.release()

    thread = Thread(target=run, name=name)
    thread.start()
    done = 0

    def report() -> None:
        nonlocal done
        now = int(progress[0])  # once: it goes up meanwhile
        if advance is not None and now > done:
            advance(now - done)
            done = now

    try:
        while not result and not failure:
            running.acquire(timeout=_POLL_SECONDS)
            report()
            if stop is not None and stop.is_set():
                progress[1] = 1
    finally:
        progress[1] = 1  # an exception, such as KeyboardInterrupt, ends the work
        while not result and not failure:
            with suppress(KeyboardInterrupt):  # the first one is on its way
                running.acquire(timeout=_POLL_SECONDS)
        thread.join()
    if failure and stop is not None and stop.is_set():
        raise CancelledError("it was stopped; what was written has been removed")
    if failure:
        raise failure[0]
    report()
    return result[0]
