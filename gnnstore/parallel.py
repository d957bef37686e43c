"""Work done ahead by threads, handed over in order, and never left behind.

The kernels release the GIL, so threads are all that is needed to prepare batches while a
model trains: nothing is forked, pickled or copied between processes. A `break`, an error in any
stage, Ctrl-C or the end of the interpreter leaves neither a thread nor a hang behind.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from itertools import count, islice, repeat
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, Self, TypeVar

import numpy.typing as npt

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.errors import UsageError
from gnnstore.interrupts import CancelledError, Condition, Pending, Thread
from gnnstore.threads import THREAD_NAME, Ending

T = TypeVar("T")
R = TypeVar("R")

# To read more than this in order takes a second or longer: batches should not wait for it.
LONG_READ_BYTES = 1 << 30
SMALLER_BATCHES = "choose a smaller batch_size or fan-out"


class Lookahead:
    """The limit on batches prepared ahead: a number, and under a budget also their bytes."""

    def __init__(self, num_batches: int, spare_bytes: int | None = None) -> None:
        # Whether the consumer would have to wait before the next batch can be prepared: it is not
        # asked for then as long as others are in the queue.
        self.must_wait: Callable[[], bool] = lambda: False
        # Where each batch waits for its memory; then more of them may be sampled.
        self.admission: Admission | None = None
        self._num_batches = num_batches
        self._spare_bytes = spare_bytes
        self._largest_bytes = self._largest_sample_bytes = 0

    @classmethod
    def admitting(cls, num_batches: int, spare_bytes: int | None = None) -> Self:
        """Return one by which batches wait for their memory, if there is a limit to that."""
        lookahead = cls(num_batches, spare_bytes)
        if spare_bytes is not None:
            lookahead.admission = Admission(lambda: lookahead.num_living)
        return lookahead

    def __call__(self) -> int:
        """Return the number of batches that may be in the queue now, at least 1."""
        if self.must_wait():
            return 1
        most = self.num_living - 1
        if self.admission is None or self._spare_bytes is None or not self._largest_sample_bytes:
            return most
        free = self._spare_bytes - self.num_living * self._largest_bytes
        return min(self._num_batches, most + free // self._largest_sample_bytes)

    @property
    def num_living(self) -> int:
        """The number of batches that may have memory, with the one at the consumer: at least 2."""
        if self._spare_bytes is None:
            return self._num_batches + 1
        if self._largest_bytes == 0:
            return 2
        return max(2, min(self._num_batches + 1, self._spare_bytes // self._largest_bytes))

    @property
    def recycled_bytes(self) -> int | None:
        """Bytes of buffers that may lie free; None without a budget.

        Once the consumer lets go of a batch, its buffers lie free until the newest has them.
        """
        if self._spare_bytes is None:
            return None
        return max(0, self._spare_bytes - (self.num_living - 1) * self._largest_bytes)

    def observe(self, batch_bytes: int, sample_bytes: int = 0) -> None:
        """Learn the size of a batch, and of the part that is there before its rows."""
        self._largest_bytes = max(self._largest_bytes, batch_bytes)
        self._largest_sample_bytes = max(self._largest_sample_bytes, sample_bytes)
        if self._spare_bytes is not None and 2 * batch_bytes > self._spare_bytes:
            two = Reservation("a batch and the one before it", 2 * batch_bytes)
            ledger = Ledger(self._spare_bytes, (two,), "a loader", "of memory= left for batches")
            raise ledger.refusal(None, SMALLER_BATCHES)


class Admission:
    """Admits batches to memory in order, each once an earlier one has left it.

    A batch is in memory until the last of the arrays that `hold` was told of is gone: until the
    consumer has let go of it.
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        # Reentrant: the garbage collector may free arrays in the middle of anything.
        self._changed = Condition()
        self._coming: deque[Hashable] = deque()
        self._num_admitted = self._num_wanted = self._num_living = 0
        self._is_closed = False

    def expect(self, batch: Hashable) -> None:
        """Admit a batch after all that were expected before."""
        self._coming.append(batch)

    def want(self, num_batches: int) -> None:
        """Admit so many batches in all, even if the consumer holds on to others."""
        with self._changed:
            self._num_wanted = num_batches
            self._changed.notify_all()

    def enter(self, batch: Hashable) -> Admitted:
        """Wait until a batch may have memory."""

        def look() -> bool | None:
            if self._is_closed:
                raise CancelledError(f"batch {batch} is not wanted any more")
            if self._coming[0] != batch or not self._has_room:
                return None
            self._coming.popleft()
            self._num_admitted += 1
            self._num_living += 1
            self._changed.notify_all()
            return True

        self._changed.wait_until(look)
        return Admitted(self)

    def close(self) -> None:
        """Admit no more; those that wait fail. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def leave(self) -> None:
        """Note that a batch has left memory."""
        with self._changed:
            self._num_living -= 1
            self._changed.notify_all()

    @property
    def _has_room(self) -> bool:
        return self._num_living < self._most() or self._num_admitted < self._num_wanted


class Admitted(AbstractContextManager["Admitted"]):
    """A batch in memory: within the context, and until the arrays that it holds are gone."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._holders = count(2)  # counts without a lock, as a finalizer must
        self._gone = count(1)
        self._num_holders = 1

    def hold(self, array: npt.NDArray[Any]) -> None:
        """Count a batch as long as an array lives."""
        self._num_holders = next(self._holders)
        weakref.finalize(array, self._let_go).atexit = False

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if next(self._gone) == self._num_holders:
            self._admission.leave()


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
    is_held_up: Callable[[], bool] = lambda: False,
) -> Generator[R, None, None]:
    """Apply a function to items in threads, ahead of the consumer, and yield in order."""
    if num_threads == 0:
        yield from _in_turn(function, iter(items), describe, waiting)
        return

    process = os.getpid()
    threads = _Threads(num_threads, initializer, stop)
    try:
        queue: deque[Pending[R]] = deque()
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
            is_there = bool(queue) and queue[0].is_done and not isinstance(source, Paced)
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
                        queue.append(threads.submit(function, item))
                        del item  # what it holds is free once the function is done with it
                if queue:
                    late = timeout_seconds, is_held_up
                    found.append(_result_of(queue.popleft(), index, *late, describe))
            if not found:
                if failure is not None:
                    raise failure
                return
            yield found.pop()  # held by nobody but the consumer
            index += 1
    finally:
        threads.close()


class _Threads:
    """Threads that make the calls that are submitted, in order. `close` ends and joins them.

    They are daemons, and closed when the interpreter ends: it joins others before anything can tell
    them to end, and would wait for ever for one that waits for the consumer.
    """

    def __init__(
        self,
        num_threads: int,
        initializer: Callable[[], None] | None = None,
        stop: Callable[[], None] = lambda: None,
        name: str = THREAD_NAME,
    ) -> None:
        self._num_threads, self._name = num_threads, name
        self._calls = _Calls(initializer or (lambda: None))
        # Whatever an interrupt does to `close`, they end with this: nothing interrupts this call.
        self._calls.owner = weakref.ref(self, self._calls.queue.put)
        self.close = Ending(self, _end_threads, self._calls, stop)

    def submit(self, function: Callable[[T], R], item: T) -> Pending[R]:
        """Submit a call, to a new thread if none is idle and there may be one more."""
        pending: Pending[R] = Pending()
        calls = self._calls
        calls.queue.put((pending, function, item))
        if not calls.take_idle() and len(calls.threads) < self._num_threads:
            name = f"{self._name}_{len(calls.threads)}"
            thread = Thread(target=calls.make, name=name, daemon=True)
            calls.threads.append(thread)
            try:
                thread.start()
            except RuntimeError:  # fewer threads change the time, not the result
                calls.threads.remove(thread)
                if not calls.threads:
                    raise
        if calls.is_over:  # the interpreter ends, and this is one of its daemons
            calls.refuse()
        return pending


class _Calls:
    """State shared by threads; it must not keep alive the object that closes them."""

    owner: weakref.ref[_Threads]

    def __init__(self, initializer: Callable[[], None]) -> None:
        # Calls as (pending, function, argument); anything else ends the threads.
        self.queue: SimpleQueue[Any] = SimpleQueue()
        self.threads: list[Thread] = []
        self.is_over = False
        self._initializer = initializer
        self._idle: SimpleQueue[None] = SimpleQueue()  # as many as threads that wait for a call

    def take_idle(self) -> bool:
        """Whether a thread waits for a call; it counts for one call only."""
        try:
            self._idle.get_nowait()
        except Empty:
            return False
        return True

    def make(self) -> None:
        """Make calls until there are no more."""
        failure: BaseException | None = None
        try:
            self._initializer()
        except BaseException as error:
            failure = error
        while isinstance(call := self.queue.get(), tuple):
            pending, function, item = call
            if self.is_over:
                pending.cancel()
            elif failure is not None:
                pending.make(_raise, failure)
            else:
                pending.make(function, item)
            # Free their memory before the next call comes.
            del call, pending, function, item
            self._idle.put(None)
        self.queue.put(call)  # for the others

    def refuse(self) -> None:
        """Fail the calls that no thread is there to make any more."""
        with suppress(Empty):
            while True:
                call = self.queue.get_nowait()
                if isinstance(call, tuple):
                    call[0].cancel()
        self.queue.put(None)


def _raise(error: BaseException) -> NoReturn:
    raise error


def _end_threads(calls: _Calls, stop: Callable[[], None]) -> None:
    calls.is_over = True
    try:
        stop()
    finally:
        calls.queue.put(None)
    for thread in calls.threads:
        if thread.is_alive():  # not where an interrupt came before it was started
            thread.join()
    calls.refuse()


class Workers:
    """Threads that make calls side by side; a context manager that ends and joins them."""

    def __init__(self, num_threads: int, name: str = "gnnstore-worker") -> None:
        self._threads = _Threads(num_threads, name=name)

    def submit(self, task: Callable[[], R]) -> Pending[R]:
        """Submit a call."""
        return self._threads.submit(_call, task)

    def run(self, tasks: Iterable[Callable[[], R]]) -> list[R]:
        """Return the results of tasks, in their order, once all of them have ended."""
        calls = [self.submit(task) for task in tasks]
        # All of them, also if one fails: what they fill must not be taken from them.
        for call in calls:
            call.wait()
        return [call.result() for call in calls]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.close()


def _call(task: Callable[[], R]) -> R:
    return task()


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
    pending: Pending[R],
    index: int,
    timeout_seconds: float | None,
    is_held_up: Callable[[], bool],
    describe: Callable[[int], str],
) -> R:
    while timeout_seconds is not None:
        held_up = is_held_up()  # now, or at the end of that time
        if pending.wait(timeout_seconds):
            break
        if not (held_up or is_held_up()):
            raise TimeoutError(
                f"nothing came for {timeout_seconds:g} seconds {describe(index)}; "
                "raise timeout=, or look for what blocks the disk"
            )
    try:
        return pending.result()
    except Exception as error:
        error.add_note(describe(index))
        raise


def prefetch(
    items: Iterator[T],
    *,
    num_ahead: int = 1,
    describe: Callable[[int], str] = "while preparing item {}".format,
    stop: Callable[[], None] = lambda: None,
) -> Generator[T, None, None]:
    """Take the items of an iterator in a thread of its own, ahead of the consumer."""
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
