"""Threads and what they wait for, such that an interrupt leaves nothing locked and nobody waiting.

A signal's handler, such as that of Ctrl-C, runs in the main thread between any two steps of Python
code, and may raise. `threading.Condition`, and events, semaphores, futures and the start of a
thread, which are made of it, take their lock in Python code: an exception right after that leaves
it locked, and threads that need it wait for ever. Here locks are taken by the interpreter in one
step (`with lock:` of a lock in C), and whoever waits looks again now and then.
"""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gnnstore.errors import GnnstoreError

R = TypeVar("R")

_POLL_SECONDS = 0.05  # a change that was not told of is found out after this

if TYPE_CHECKING:

    class _RLock:
        def __enter__(self) -> bool: ...
        def __exit__(self, *_: object) -> None: ...

else:
    _RLock = type(threading.RLock())


class CancelledError(GnnstoreError):
    """An error of work cancelled because nobody wants its result; files it wrote are removed."""


class Condition(_RLock):
    """A reentrant lock, with threads that wait for a change of what it protects."""

    def __init__(self) -> None:
        self._waiting: deque[threading.Lock] = deque()

    def notify_all(self) -> None:
        """Wake all waiting threads, so that they look again; to be called with the lock held."""
        # One by one: the garbage collector may come in between, and free what notifies too.
        with suppress(IndexError):
            while True:
                self._waiting.pop().release()

    def wait_until(
        self,
        look: Callable[[], R | None],
        check: Callable[[], None] = lambda: None,
        timeout: float | None = None,
    ) -> R | None:
        """Call a function with the lock held, until it returns something, and return that."""
        ends = None if timeout is None else monotonic() + timeout
        waiter = locked()
        is_listed = False
        try:
            while True:
                with self:
                    if (found := look()) is not None:
                        return found
                    if not is_listed:
                        self._waiting.append(waiter)
                        is_listed = True
                left = _POLL_SECONDS if ends is None else min(_POLL_SECONDS, ends - monotonic())
                if left <= 0:
                    return None
                if waiter.acquire(timeout=left):
                    is_listed = False
                check()
        finally:
            with self, suppress(ValueError):
                self._waiting.remove(waiter)


class Flag:
    """A flag that is set once something has happened, as `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._changed = Condition()

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag."""
        self._is_set = True
        with self._changed:
            self._changed.notify_all()

    def clear(self) -> None:
        """Clear the flag."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for so many seconds; return whether it is."""
        if not self._is_set:
            self._changed.wait_until(lambda: self._is_set or None, timeout=timeout)
        return self._is_set

    def _at_fork_reinit(self) -> None:  # asked for by `threading` of what a thread has
        self._changed = Condition()


class Pending(Generic[R]):
    """The result of a call that a thread makes, once."""

    def __init__(self) -> None:
        self._there = locked()
        self._claims = count()  # `next` of it is one step of the interpreter
        self._value: R
        self._error: BaseException | None = None
        self.is_done = False

    def make(self, function: Callable[..., R], *args: Any) -> None:
        """Make the call, unless it was cancelled."""
        if next(self._claims):
            return
        try:
            self._value = function(*args)
        except BaseException as error:  # raised where the result is asked for
            self._error = error
        self._finish()
        del self, function, args  # of this frame, which the error's traceback keeps

    def cancel(self) -> bool:
        """Fail the call if it has not begun; return whether it is so."""
        if next(self._claims):
            return False
        self._error = CancelledError("it was ended before this began")
        self._finish()
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the call has ended, or for so many seconds; return whether it has."""
        ends = None if timeout is None else monotonic() + timeout
        while not self.is_done:
            left = _POLL_SECONDS if ends is None else min(_POLL_SECONDS, ends - monotonic())
            if left <= 0:
                break
            self._there.acquire(timeout=left)
        return self.is_done

    def result(self) -> R:
        """Wait, and return the value, or raise the error, once."""
        self.wait()
        if self._error is None:
            return self._value
        error, self._error = self._error, None
        try:
            raise error
        finally:
            del error, self  # else call, error, traceback and frame hold each other

    def _finish(self) -> None:
        self.is_done = True
        self._there.release()


class Thread(threading.Thread):
    """A thread whose start can be interrupted: it then runs or not, and waits for nobody."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._started = Flag()  # what `start` waits for


def uninterrupted(work: Callable[[], R]) -> R:
    """Do some work whole, whatever signal comes: in a thread of its own, which gets none."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    call: Pending[R] = Pending()
    thread = Thread(target=call.make, args=(work,), name="gnnstore-whole")
    interrupt: BaseException | None = None
    try:
        thread.start()
    except RuntimeError:  # no more threads
        call.make(work)
    except BaseException as error:
        if call.cancel():  # it has not begun, and will not
            raise
        interrupt = error
    while True:
        try:
            call.wait()
            break
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        failure = call._error
        try:
            raise interrupt from failure
        finally:
            del interrupt, failure, call, work  # else error, traceback and frame hold each other
    return call.result()


def in_one_step(*calls: Callable[[], object]) -> None:
    """Make calls such that a signal is handled before all of them or after."""
    deque(map(operator.call, calls), maxlen=0)


def locked() -> threading.Lock:
    """Return a lock that is held, for a thread to wait for."""
    lock = threading.Lock()
    lock.acquire()
    return lock
