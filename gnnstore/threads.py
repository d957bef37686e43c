"""Threads: calls ahead of a consumer and in its order, in the background, or whole.

A signal's handler, as for Ctrl-C, runs in the main thread between any two steps of Python
code, and may raise. `threading.Condition`, of which events, semaphores, futures and executors are
made, takes its lock in Python code: an exception right after that leaves it locked, and threads
that need it wait for ever. Here the consumer's thread takes locks in one step of the interpreter
(`with lock:` of a lock in C) and passes calls on in a `SimpleQueue`; waiting threads look again now
and then. So `concurrent.futures` does not serve: one Ctrl-C in 500 left a worker waiting, or became
a RuntimeError.
"""

from __future__ import annotations

import atexit
import gc
import operator
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, islice, repeat
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.errors import GnnstoreError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")
R = TypeVar("R")

_NAME_PREFIX = "gnnstore-"  # prefix of the names of all threads that gnnstore starts
THREAD_NAME = f"{_NAME_PREFIX}loader"
# Bytes that take a second or longer to read in order: batches should not wait for so much.
LONG_READ_BYTES = 1 << 30
SMALLER_BATCHES = "choose a smaller batch_size or fan-out"
_POLL_SECONDS = 0.05  # the longest delay of a change without a notification


class CancelledError(GnnstoreError):
    """Raised in background work that was cancelled. Its partial files are deleted."""


class Condition:
    """A lock, and threads that wait for a change of what it protects."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may free what notifies in the middle of anything.
        self.lock = threading.RLock()
        self._waiting: deque[threading.Lock] = deque()

    def notify_all(self) -> None:
        """Wake all waiting threads, so that they look again."""
        with self.lock:
            try:
                while self._waiting:  # one by one, for the same reason
                    self._waiting.pop().release()
            except IndexError:  # that notified too, in between
                pass

    def wait_until(self, look: Callable[[], R | None], timeout: float | None = None) -> R | None:
        """Call a function with the lock held, until it returns something, and return that."""
        ends = monotonic() + (inf if timeout is None else timeout)
        waiter = threading.Lock()
        waiter.acquire()
        try:
            while True:
                with self.lock:
                    if (found := look()) is not None:
                        return found
                    if waiter not in self._waiting:
                        self._waiting.append(waiter)
                left = min(_POLL_SECONDS, ends - monotonic())
                if left <= 0:
                    return None
                waiter.acquire(timeout=left)
        finally:
            with self.lock, suppress(ValueError):
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


class Pending(Flag, Generic[R]):
    """The result of a call that a thread makes, once; set once the call has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._claims = count()  # `next` of it is one step of the interpreter
        self._value: R
        self.error: BaseException | None = None  # until it is raised

    def make(self, function: Callable[..., R], *args: Any) -> None:
        """Make the call, unless it was cancelled."""
        if next(self._claims):
            return
        try:
            self._value = function(*args)
        except BaseException as error:  # raised where the result is asked for
            self.error = error
        self.set()
        del self, function, args  # of this frame, which the error's traceback keeps

    def cancel(self) -> bool:
        """Fail the call if it has not begun; return whether it is so."""
        if next(self._claims):
            return False
        self.error = CancelledError("it was ended before this began")
        self.set()
        return True

    def wait_whole(self) -> BaseException | None:
        """Wait until the call has ended, through all interrupts; return the last of them."""
        interrupt: BaseException | None = None
        try:
            while not self.is_set():
                try:
                    self.wait()
                except BaseException as error:
                    interrupt = error
            return interrupt
        finally:
            del interrupt  # else error, traceback and frame hold each other

    def result(self) -> R:
        """Wait, and return the value, or raise the error, once."""
        self.wait()
        error, self.error = self.error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            del error, self  # else call, error, traceback and frame hold each other


class Thread(threading.Thread):
    """A thread whose start can be interrupted: it then runs or not, and waits for nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._started = Flag()  # what `start` waits for


class Background(Pending[R]):
    """One call in a thread of its own; made at once where no thread can be started."""

    def __init__(self, function: Callable[[], R], name: str, *, daemon: bool = False) -> None:
        super().__init__()
        self._thread: Thread | None = Thread(
            target=self.make, args=(function,), name=name, daemon=daemon
        )
        try:
            self._thread.start()
        except RuntimeError:  # no more threads: less overlap changes the time, not the result
            self._thread = None
            self.make(function)
        except BaseException as interrupt:
            if self.cancel():
                raise
            self.wait_whole()
            raise interrupt from self.error

    def result(self) -> R:
        """Wait, and return the value or raise the error."""
        self.join()
        return super().result()

    def join(self) -> None:
        """Wait until it has ended, by a result or an error."""
        self.wait()  # not for the thread alone: an interrupted `join` takes it for ended
        if self._thread is not None:
            self._thread.join()


def uninterrupted(work: Callable[[], R]) -> R:
    """Do some work whole, through all signals: in a thread of its own, which gets none."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    call = Background(work, f"{_NAME_PREFIX}whole")
    interrupt = call.wait_whole()
    if interrupt is None:
        return call.result()
    failure = call.error
    try:
        raise interrupt from failure
    finally:
        del interrupt, failure, call, work  # as above


def in_one_step(*calls: Callable[[], object]) -> None:
    """Make calls such that a signal is handled before all of them or after."""
    deque(map(operator.call, calls), maxlen=0)


def interruptible(
    work: Callable[[], R],
    name: str,
    progress: npt.NDArray[np.int64],
    stop: Flag | None = None,
    advance: Callable[[int], None] | None = None,
) -> R:
    """Run a kernel on a thread of its own, so that it can be interrupted."""
    call = Background(work, name)
    done, is_over = 0, False
    try:
        while not is_over:
            is_over = call.wait(_POLL_SECONDS)
            now = int(progress[0])  # once: it goes up meanwhile
            if advance is not None and now > done:
                advance(now - done)
            done = now
            if stop is not None and stop.is_set():
                progress[1] = 1
    finally:
        progress[1] = 1  # an exception, such as KeyboardInterrupt, ends the work
        call.wait_whole()  # files would be removed that are being written
    if call.error is not None and stop is not None and stop.is_set():
        raise CancelledError("it was stopped; what was written has been removed")
    return call.result()


def for_each(num_tasks: int, num_threads: int, work: Callable[[int], None], name: str) -> None:
    """Call work(0), ... work(num_tasks - 1), on some threads, until one fails."""
    numbers = count()  # `next` of it is one step of the interpreter
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not failures and (i := next(numbers)) < num_tasks:
                work(i)
        except BaseException as error:
            failures.append(error)

    threads = [Background(run, name) for _ in range(min(num_threads, num_tasks))]
    try:
        for thread in threads:
            thread.join()
    except BaseException as error:  # an interrupt ends the work, too
        failures.append(error)
        for thread in threads:
            thread.wait_whole()
        raise
    if failures:
        raise failures[0]


class Finalizer:
    """Ends what works for an object: when called, or when the object is garbage; once.

    The garbage collector may find this in any thread, even in one that works for it,
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
    if os.getpid() == pid:  # else threads and files belong to the process before the fork
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
    frame = sys._getframe(2).f_back  # of what `weakref.finalize` interrupted
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            return True
        frame = frame.f_back
    return False


def run_in_background(owner: object, work: Callable[[Flag], None], name: str) -> Finalizer:
    """Work in a thread of its own for as long as an object lives."""
    stop = Flag()
    call = Background(partial(work, stop), name, daemon=True)
    return Finalizer(owner, _end_background, stop, call)


def _end_background(stop: Flag, call: Background[None]) -> None:
    stop.set()
    call.join()


class Workers:
    """Threads that make calls in the order in which they are submitted; a context manager.

    They are daemons, and closed when the interpreter ends: it joins others before anything can tell
    them to end, and would wait for ever for one that waits for the consumer. Without threads, calls
    are made where they are submitted.
    """

    def __init__(
        self,
        num_threads: int,
        name: str = f"{_NAME_PREFIX}worker",
        initializer: Callable[[], None] | None = None,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._num_threads, self._name, self._pid = num_threads, name, os.getpid()
        self._calls = _Calls(initializer or (lambda: None))
        # If an interrupt cuts `close` short, they end with this: nothing interrupts this call.
        self._calls.owner = weakref.ref(self, self._calls.queue.put)
        self.close = Finalizer(self, self._calls.close, stop)  # wakes calls by `stop`, and joins

    def submit(self, function: Callable[..., R], *args: Any) -> Pending[R]:
        """Submit a call."""
        self.refuse_fork()
        pending: Pending[R] = Pending()
        if self._num_threads == 0:
            pending.make(function, *args)
            return pending
        calls, threads = self._calls, self._calls.threads
        calls.queue.put((pending, function, args))
        if len(threads) < self._num_threads:
            name = f"{self._name}_{len(threads)}"
            thread = Thread(target=calls.make, name=name, daemon=True)
            threads.append(thread)
            try:
                thread.start()
            except RuntimeError:  # fewer threads change the time, not the result
                threads.remove(thread)
                if not threads:
                    raise
        if calls.is_over:  # the interpreter ends, and this is one of its daemons
            calls.refuse()
        return pending

    def refuse_fork(self) -> None:
        """Refuse to go on in a process that has none of these threads."""
        if self._num_threads and os.getpid() != self._pid:
            raise UsageError(
                f"this iterator was begun in process {self._pid}, whose threads a fork of it "
                "does not have; begin a new one after the fork, with iter()"
            )

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
        self.close()


class _Calls:
    """State shared by threads; it must not keep alive the object that closes them."""

    owner: weakref.ref[Workers]

    def __init__(self, initializer: Callable[[], None]) -> None:
        # Calls as (pending, function, arguments); anything else ends the threads.
        self.queue: SimpleQueue[Any] = SimpleQueue()
        self.threads: list[Thread] = []
        self.is_over = False
        self._initializer = initializer

    def make(self) -> None:
        """Make calls until there are no more."""
        begun: Pending[None] = Pending()
        begun.make(self._initializer)
        # What is taken is made: a later call that has begun may wait for it.
        while not self.is_over and isinstance(call := self.queue.get(), tuple):
            pending, function, args = call
            if begun.error is not None:
                pending.make(_raise, begun.error)
            else:
                pending.make(function, *args)
            # Free their memory before the next call comes.
            del call, pending, function, args
        self.queue.put(None)  # for the others

    def close(self, stop: Callable[[], None]) -> None:
        """Make no more calls; wait for those that have begun."""
        self.is_over = True
        try:
            stop()
        finally:
            self.queue.put(None)
        for thread in self.threads:
            if thread.is_alive():  # not where an interrupt came before it was started
                thread.join()
        self.refuse()

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


class Lookahead:
    """The limit on batches prepared ahead: a number, and under a budget also their bytes."""

    def __init__(
        self,
        num_batches: int,
        spare_bytes: int | None = None,
        *,
        admits: bool = False,
        before: MemoryGate | None = None,
    ) -> None:
        # Where each batch waits for its memory; then more of them may be sampled. Batches of the
        # iteration before count, which the consumer may still have.
        self.gate: MemoryGate | None = None
        if admits and spare_bytes is not None:
            self.gate = MemoryGate(lambda: self.num_living, before)
        self._num_batches = num_batches
        self._spare_bytes = spare_bytes
        self._largest_bytes = self._largest_sample_bytes = self._largest_working_bytes = 0

    def __call__(self) -> int:
        """Return the number of batches that may be in the queue now, at least 1."""
        most = self.num_living - 1
        if self.gate is None or self._spare_bytes is None or not self._largest_sample_bytes:
            return most
        free = self._spare_bytes - self._living_bytes(self.num_living)
        return min(self._num_batches, most + free // self._largest_sample_bytes)

    @property
    def num_living(self) -> int:
        """The number of batches that may have memory, with the one at the consumer: at least 2."""
        if self._spare_bytes is None:
            return self._num_batches + 1
        if self._largest_bytes == 0:
            return 2
        working = self._largest_working_bytes  # the consumer's batch has none
        fitting = (self._spare_bytes + working) // (self._largest_bytes + working)
        return max(2, min(self._num_batches + 1, fitting))

    def _living_bytes(self, num_batches: int) -> int:
        working = max(0, num_batches - 1) * self._largest_working_bytes
        return num_batches * self._largest_bytes + working

    @property
    def recycled_bytes(self) -> int | None:
        """Bytes of buffers that may lie free next to batches and samples; None without a budget."""
        if self._spare_bytes is None:
            return None
        living, waiting = self.num_living - 1, 0
        if self.gate is not None:
            # Batches that were just admitted take what others have left free.
            living = self.gate.num_living - len(self.gate.empty)
            waiting = self.gate.num_waiting
        used = self._living_bytes(living) + waiting * self._largest_sample_bytes
        return max(0, self._spare_bytes - used)

    def observe(self, batch_bytes: int, sample_bytes: int = 0, working_bytes: int = 0) -> None:
        """Learn the size of a batch, of the part before its rows, and of what preparing takes."""
        self._largest_bytes = max(self._largest_bytes, batch_bytes)
        self._largest_sample_bytes = max(self._largest_sample_bytes, sample_bytes)
        self._largest_working_bytes = max(self._largest_working_bytes, working_bytes)
        if self._spare_bytes is not None and 2 * batch_bytes > self._spare_bytes:
            two = Reservation("a batch and the one before it", 2 * batch_bytes)
            ledger = Ledger(self._spare_bytes, (two,), "a loader", "of memory= left for batches")
            raise ledger.refusal(None, SMALLER_BATCHES)


class MemoryGate:
    """Admits the batches of an iteration to memory in order, each once an earlier one has left."""

    def __init__(self, most: Callable[[], int], before: MemoryGate | None = None) -> None:
        self._most, self._before = most, before
        self._changed = Condition()
        self._coming: deque[Hashable] = deque()
        self._num_admitted = self._num_wanted = self._num_living = 0
        self.empty = set[int]()  # the numbers of admitted batches that have taken no memory yet
        self._is_closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # none of its batches are in another process

    @property
    def num_living(self) -> int:
        """Batches in memory, with the gate's before."""
        return self._num_living + (0 if self._before is None else self._before.num_living)

    @property
    def num_waiting(self) -> int:
        """Batches that may have a sample, and wait for the memory of their rows."""
        return len(self._coming)

    def expect(self, batch: Hashable) -> None:
        """Admit a batch after all that were expected before."""
        self._coming.append(batch)

    def want(self, num_batches: int) -> None:
        """Admit so many batches in all, even if the consumer holds on to others."""
        self._num_wanted = num_batches
        self._changed.notify_all()

    @contextmanager
    def enter(self, batch: Hashable) -> Iterator[Admitted]:
        """Wait until a batch may have memory; it leaves with the last that it holds."""

        def look() -> int | None:
            if self._is_closed:
                raise CancelledError(f"batch {batch} is not wanted any more")
            has_room = self.num_living < self._most() or self._num_admitted < self._num_wanted
            if self._coming[0] != batch or not has_room:
                return None
            self._coming.popleft()
            self._num_admitted += 1
            self._num_living += 1
            self.empty.add(self._num_admitted)
            self._changed.notify_all()
            return self._num_admitted

        number = self._changed.wait_until(look) or 0
        admitted = Admitted(number, self.empty)
        weakref.finalize(admitted, self._leave, number).atexit = False
        yield admitted

    def close(self) -> None:
        """Admit no more; those that wait fail. Idempotent."""
        with self._changed.lock:
            self._is_closed, self._before = True, None
            self._coming.clear()  # batches that will not come
            self._changed.notify_all()

    def _leave(self, number: int) -> None:
        with self._changed.lock:
            self._num_living -= 1
            self.empty.discard(number)
            self._changed.notify_all()


@dataclass(eq=False)
class Admitted:
    """A batch in memory, to which all refers that it holds."""

    number: int
    empty: set[int]  # of the gate

    def filled_by(self, make: Callable[..., R]) -> Callable[..., R]:
        """Return what makes arrays of the batch, which has memory from the first one on."""
        number, empty = self.number, self.empty  # arrays alone keep the batch in memory

        def fill(*args: Any) -> R:
            empty.discard(number)
            return make(*args)

        return fill

    def hold(self, memory: Any) -> None:
        """Stay in memory as long as an array, or a storage of torch's, lives."""
        self.empty.discard(self.number)
        weakref.finalize(memory, id, self).atexit = False


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

    Items that have a method `is_ready` may take long to come: while it is false, the next one is
    not asked for as long as others are in the queue.
    """
    workers = Workers(num_threads, THREAD_NAME, initializer, stop)
    try:
        queue: deque[Pending[R]] = deque()
        is_ready = getattr(items, "is_ready", None)
        source = iter(items)
        failure: Exception | None = None
        is_over = False
        for index in count():
            workers.refuse_fork()
            # What makes an item may take long even where the next result is there.
            is_there = bool(queue) and queue[0].is_set() and is_ready is None
            found: list[R] = []
            with nullcontext() if is_there else waiting(index):
                while not is_over and (not queue or (num_threads and len(queue) < lookahead())):
                    if queue and is_ready is not None and not is_ready():
                        break
                    try:
                        item = next(source)
                    except StopIteration:
                        is_over = True  # its traceback would keep this frame and its locals
                    except Exception as error:
                        failure, is_over = error, True  # first comes what came before
                    else:
                        queue.append(workers.submit(function, item))
                        del item  # what it holds is free once the function is done with it
                if queue:
                    where = partial(describe, index)
                    found.append(_result_of(queue.popleft(), timeout_seconds, where))
            if not found:
                if failure is not None:
                    raise failure
                return
            yield found.pop()  # held by the consumer alone
    finally:
        failure = None  # else error, traceback and frame hold each other, and the threads
        workers.close()


def _result_of(
    pending: Pending[R], timeout_seconds: float | None, describe: Callable[[], str]
) -> R:
    if timeout_seconds is not None and not pending.wait(timeout_seconds):
        raise TimeoutError(
            f"nothing came for {timeout_seconds:g} seconds {describe()}; "
            "raise timeout=, or look for what blocks the disk, or the device of device="
        )
    try:
        return pending.result()
    except Exception as error:
        error.add_note(describe())
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
            yield found.pop()  # held by the consumer alone
