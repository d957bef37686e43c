"""A thread for what packing does in kernels, so that it can be interrupted, or told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore.errors import GnnstoreError

_T = TypeVar("_T")
_POLL_SECONDS = 0.05


class PackingStoppedError(GnnstoreError):
    """Packing was told to stop; what it had written has been removed."""


def watched(
    work: Callable[[], _T],
    progress: npt.NDArray[np.int64],
    stop: threading.Event | None,
    advance: Callable[[int], None] | None,
) -> _T:
    """Run a kernel on a thread of its own, so that it can be interrupted.

    Parameters
    ----------
    work : callable
    progress : ndarray of int64 [2]
        The first counts up; the second is made 1 for `work` to end early.
    stop : threading.Event, optional
        Once it is set, so is that.
    advance : callable, optional
        Called now and then with what was counted since the last call.

    Raises
    ------
    PackingStoppedError
        If `work` failed after `stop` was set.
    """
    result: list[_T] = []
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
        raise PackingStoppedError("packing was stopped; what was written has been removed")
    if failure:
        raise failure[0]
    report()
    return result[0]
