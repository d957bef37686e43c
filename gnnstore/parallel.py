"""Work done ahead by threads, handed over in order, and never left behind.

The kernels release the GIL, so threads are all that is needed to prepare batches while a
model trains: nothing is forked, pickled or copied between processes. A `break`, an error in any
stage, Ctrl-C or the end of the interpreter leaves neither a thread nor a hang behind.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from itertools import count, islice, repeat
from typing import Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.errors import GnnstoreError, UsageError

T = TypeVar("T")
R = TypeVar("R")

THREAD_NAME = "gnnstore-loader"
_POLL_SECONDS = 0.05
# To read more than this in order takes a second or longer: batches should not wait for it.
LONG_READ_BYTES = 1 << 30
SMALLER_BATCHES = "choose a smaller batch_size or fan-out"


class CancelledError(GnnstoreError):
    """Work was cancelled because its result is no longer wanted; files it wrote are removed."""


class Lookahead:
    """The limit on batches prepared ahead: a number, and under a budget also their bytes.

    A consumer usually holds one batch while it asks for the next; the queue gets the rest. Once
    that batch is let go of, its buffers lie free until the newest in the queue has them.

    Parameters
    ----------
    num_batches : int
        The most batches in the queue.
    spare_bytes : int, optional
        Memory for batches. Until the first batch is seen, one is prepared at a time.

    Attributes
    ----------
    must_wait : callable
        Whether the consumer would have to wait before the next batch can be prepared: it is not
        asked for then as long as others are in the queue.
    """

    def __init__(self, num_batches: int, spare_bytes: int | None = None) -> None:
        self.must_wait: Callable[[], bool] = lambda: False
        self._num_batches = num_batches
        self._spare_bytes = spare_bytes
        self._largest_bytes = 0

    def __call__(self) -> int:
        """Return the number of batches that may be in the queue now, at least 1."""
        return 1 if self.must_wait() else self._most()

    def _most(self) -> int:
        if self._spare_bytes is None:
            return self._num_batches
        if self._largest_bytes == 0:
            return 1
        return max(1, min(self._num_batches, self._spare_bytes // self._largest_bytes - 1))

    @property
    def recycled_bytes(self) -> int | None:
        """Bytes of buffers that may lie free; None without a budget."""
        if self._spare_bytes is None:
            return None
        return max(0, self._spare_bytes - self._most() * self._largest_bytes)

    def observe(self, batch_bytes: int) -> None:
        """Learn the size of a batch.

        Raises
        ------
        BudgetError
            If the budget does not hold two such batches: the one in use and the next.
        """
        self._largest_bytes = max(self._largest_bytes, batch_bytes)
        if self._spare_bytes is not None and 2 * batch_bytes > self._spare_bytes:
            two = Reservation("a batch and the one before it", 2 * batch_bytes)
            ledger = Ledger(self._spare_bytes, (two,), "a loader", "of memory= left for batches")
            raise ledger.refusal(None, SMALLER_BATCHES)


class Background(threading.Thread, Generic[R]):
    """One call in a thread of its own; made at once where no thread can be started.

    Parameters
    ----------
    function : callable
        Called once.
    name : str
        Name of the thread.
    """

    def __init__(self, function: Callable[[], R], name: str) -> None:
        super().__init__(name=name)
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
        """Call the function."""
        try:
            self._value = self._function()
        except BaseException as error:  # raised where the result is asked for
            self._error = error

    def result(self) -> R:
        """Wait, and return the value or raise the error."""
        self.finish()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # else call, error, traceback and frame hold each other
        return self._value

    def finish(self) -> None:
        """Wait, whatever comes of it."""
        if self._has_thread:
            self.join()


def run_beside(
    owner: object, work: Callable[[threading.Event], None], name: str
) -> Callable[[], object]:
    """Work in a thread of its own for as long as an object lives.

    Parameters
    ----------
    owner : object
        Weakly referenced; what `work` holds must not hold it.
    work : callable
        Called with an event, once, and ends soon after it is set. It is called at once where no
        thread can be started.
    name : str
        Name of the thread.

    Returns
    -------
    callable
        Ends the work and waits for its end, as the end of the owner does.
    """
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads: less overlap changes the time, not the result
        work(stop)
        return lambda: None
    return weakref.finalize(owner, _end_beside, stop, thread, os.getpid())


def _end_beside(stop: threading.Event, thread: threading.Thread, pid: int) -> None:
    stop.set()
    # The garbage collector may do this in any thread; a forked process does not have this one.
    if os.getpid() == pid and thread is not threading.current_thread():
        thread.join()


class Paced(Iterator[T], ABC):
    """An iterator some of whose items take long to come."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the next item comes without a wait, as far as is known."""


def ordered_map(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    num_threads: int,
    lookahead: Callable[[], int],
    timeout_seconds: float | None = None,
    initializer: Callable[[], None] | None = None,
    describe: Callable[[int], str] = "while preparing item {}".format,
    stop: Callable[[], None] = lambda: None,
    waiting: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> Generator[R, None, None]:
    """Apply a function to items in threads, ahead of the consumer, and yield in order.

    Parameters
    ----------
    function : callable
        Called in one of the threads, or in the consumer's if there are none.
    items : iterable
        Consumed in the consumer's thread, as far ahead as `lookahead` allows. If they are `Paced`,
        one that is not ready is asked for once all results before it have been yielded.
    num_threads : int
        Threads; 0 computes each result when it is asked for.
    lookahead : callable
        Number of results that may be under way or waiting, asked before each submission.
    timeout_seconds : float, optional
        The longest wait for one result.
    initializer : callable, optional
        Called once in each thread.
    describe : callable
        Returns the purpose of item k, which is noted on an exception that `function` raises for it.
    stop : callable, optional
        Called before running items are waited for, or after the last item.
    waiting : callable
        Returns a context in which the consumer waits for item k, unless that is there already.

    Yields
    ------
    object
        `function(item)` of each item, in the order of the items.

    Raises
    ------
    TimeoutError
        If a result takes longer than `timeout_seconds`.
    UsageError
        In a forked process, if there are threads: it has none of them, and would wait for ever.

    Notes
    -----
    Closing the generator cancels items that have not begun, waits for the others, and joins
    the threads. Leaving a `for` loop closes it at once.
    """
    if num_threads == 0:
        yield from _in_turn(function, iter(items), describe, waiting)
        return

    own_threads: set[int] = set()

    def start_thread() -> None:
        own_threads.add(threading.get_ident())
        if initializer is not None:
            initializer()

    process = os.getpid()
    executor = ThreadPoolExecutor(num_threads, THREAD_NAME, start_thread)
    try:
        queue: deque[Future[R]] = deque()
        source = iter(items)
        is_ready = source.is_ready if isinstance(source, Paced) else lambda: True
        failure: Exception | None = None
        is_over = False
        index = 0
        while True:
            if os.getpid() != process:
                raise UsageError(
                    f"this iterator was begun in process {process}, whose threads a fork of it "
                    "does not have; begin a new one after the fork, with iter()"
                )
            # Paced items may take long to come even where the next result is there.
            is_there = bool(queue) and queue[0].done() and not isinstance(source, Paced)
            found: list[R] = []
            with nullcontext() if is_there else waiting(index):
                while not is_over and len(queue) < lookahead() and (not queue or is_ready()):
                    try:
                        item = next(source)
                    except StopIteration:
                        is_over = True  # its traceback would keep this frame, and what it knows
                    except Exception as error:
                        failure, is_over = error, True  # first comes what came before
                    else:
                        queue.append(executor.submit(function, item))
                        del item  # what it holds is free once the function is done with it
                if queue:
                    found.append(_result_of(queue.popleft(), index, timeout_seconds, describe))
            if not found:
                if failure is not None:
                    raise failure
                return
            yield found.pop()  # held by nobody but the consumer
            index += 1
    finally:
        stop()
        # The garbage collector may close a forgotten generator from any thread, even from
        # one of ours, which cannot join itself.
        executor.shutdown(wait=threading.get_ident() not in own_threads, cancel_futures=True)


def _in_turn(
    function: Callable[[T], R],
    items: Iterator[T],
    describe: Callable[[int], str],
    waiting: Callable[[int], AbstractContextManager[object]],
) -> Generator[R, None, None]:
    """Apply a function to each item when its result is asked for."""
    for index in count():
        found: list[R] = []
        with waiting(index):
            for item in islice(items, 1):
                try:
                    found.append(function(item))
                except Exception as error:
                    error.add_note(describe(index))
                    raise
        if not found:
            return
        yield found.pop()  # held by nobody but the consumer


def _result_of(
    future: Future[R], index: int, timeout_seconds: float | None, describe: Callable[[int], str]
) -> R:
    try:
        return future.result(timeout_seconds)
    except TimeoutError as error:
        if not future.done():
            raise TimeoutError(
                f"nothing came for {timeout_seconds:g} seconds {describe(index)}; "
                "raise timeout=, or look for what blocks the disk"
            ) from None
        error.add_note(describe(index))
        raise
    except Exception as error:
        error.add_note(describe(index))
        raise


def for_each(num_tasks: int, num_threads: int, work: Callable[[int], None]) -> None:
    """Call work(0), ... work(num_tasks - 1), on some threads; the calling one is among them."""
    numbers = count()  # `next` of it is one step of the interpreter
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not failures and (i := next(numbers)) < num_tasks:
                work(i)
        except BaseException as error:
            failures.append(error)

    helpers = [
        threading.Thread(target=run, name="gnnstore-sort")
        for _ in range(min(num_threads, num_tasks) - 1)
    ]
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
    progress: npt.NDArray[np.int64],
    stop: threading.Event | None = None,
    advance: Callable[[int], None] | None = None,
) -> R:
    """Run a kernel on a thread of its own, so that it can be interrupted.

    Parameters
    ----------
    work : callable
    progress : ndarray of int64 [2]
        The first counts up; the second is made 1 for `work` to end early.
    stop : threading.Event, optional
        Once it is set, so is that.
    advance : callable, optional
        Called now and then with the progress since the last call.

    Raises
    ------
    CancelledError
        If `work` failed after `stop` was set.
    """
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

    thread = threading.Thread(target=run, name="gnnstore-pack")
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


def prefetch(
    items: Iterator[T],
    *,
    num_ahead: int = 1,
    describe: Callable[[int], str] = "while preparing item {}".format,
    stop: Callable[[], None] = lambda: None,
) -> Generator[T, None, None]:
    """Take the items of an iterator in a thread of its own, ahead of the consumer.

    Parameters
    ----------
    items : iterator
        Used in that thread only.
    num_ahead : int
        Items that are taken while the consumer works on one; 0 takes each when it is asked for.
    describe, stop : callable
        As in `ordered_map`.
    """
    taken = ordered_map(
        lambda _: [*islice(items, 1)],
        repeat(None),
        num_threads=1,
        lookahead=lambda: num_ahead + 1,
        describe=describe,
        stop=stop,
    )
    with closing(taken):
        for found in taken:
            if not found:
                return
            yield found.pop()  # held by nobody but the consumer


class Workers:
    """Threads that run parts of a task side by side; a context manager that joins them."""

    def __init__(self, num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, "gnnstore-worker")

    def run(self, tasks: Iterable[Callable[[], R]]) -> list[R]:
        """Return the results of tasks, in their order, once all of them have ended.

        Raises
        ------
        Exception
            That of the first task that failed.
        """
        futures = [self._pool.submit(task) for task in tasks]
        # All of them, also if one fails: what they fill must not be taken from them.
        wait(futures)
        return [future.result() for future in futures]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
