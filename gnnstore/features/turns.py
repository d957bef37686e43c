"""Turns at one shared thing, for the batches of an iteration, in order.

A lock alone is not enough: a batch that fails, an iteration that is left, and an interrupt at any
point must not leave a thread waiting. All that wait look again whenever anything changes.
"""

from __future__ import annotations

import os

from gnnstore.errors import GnnstoreError, UsageError, described
from gnnstore.threads import Condition


class TurnLock:
    """The turns of batches 0, 1, 2, ..., one after the other.

    Each number must take its turn or fail, because later ones wait for it. A forked process has
    none of the threads that take turns or have the lock: it can only end them.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._pid = os.getpid()
        self._next = 0
        self._in_turn: int | None = None
        self._waiting: set[int] = set()
        self._failure: tuple[int, str] | None = None
        self._is_closed = False
        self._is_left = False

    @property
    def num_done(self) -> int:
        """Batches that have had their turn, from the first on."""
        return self._next

    @property
    def is_left(self) -> bool:
        """Whether no batch gets a turn any more, for others have begun anew."""
        return self._is_left

    def look(self, number: int) -> bool | None:
        """Take the turn of a batch if it has come; return whether it has, None if it never will."""
        with self._changed.lock:
            self._check(number)
            if self._is_left:
                return None
            if number > self._next:
                return False
            self._in_turn = number
            return True

    def wait(self, number: int) -> bool:
        """Take the turn of a batch when it comes; return False if turns are left."""
        is_waiting = False

        def look() -> bool | None:
            nonlocal is_waiting
            if is_waiting:
                self._waiting.discard(number)
            has_turn = self.look(number)
            if is_waiting := has_turn is False:
                self._waiting.add(number)
                return None
            return has_turn is True

        return bool(self._changed.wait_until(look))

    def done(self, number: int) -> None:
        """End the turn of a batch; the next one's begins."""
        with self._changed.lock:
            self._next = number + 1
            self._release(number)

    def fail(self, number: int, error: BaseException) -> None:
        """Give up a batch: those after it fail when they look, or now if they wait."""
        with self._changed.lock:
            is_first = self._failure is None or number < self._failure[0]
            if is_first and not self._is_closed:
                # Not the error itself, whose traceback would keep the buffers of the batch.
                self._failure = (number, described(error))
            self._waiting.discard(number)  # there still if its wait was interrupted
            self._release(number)

    def close(self) -> None:
        """End all turns; batches that wait fail. Idempotent."""
        self._is_closed = True
        if os.getpid() == self._pid:
            self._changed.notify_all()

    def leave(self) -> None:
        """Give no more turns, once the batch that has one is done."""
        self._is_left = True
        if os.getpid() == self._pid:
            self._changed.notify_all()
            self._changed.wait_until(lambda: self._in_turn is None or None)

    def _release(self, number: int) -> None:
        if self._in_turn == number:
            self._in_turn = None
        self._changed.notify_all()

    def _check(self, number: int) -> None:
        if self._failure is not None and number > self._failure[0]:
            failed, error = self._failure
            raise GnnstoreError(
                f"cannot assemble batch {number}: an earlier batch failed, {failed}, whose rows "
                f"the cache was to receive ({error}). Begin the iteration anew"
            )
        if self._is_closed:
            raise UsageError(f"cannot assemble batch {number}: its iteration was ended")
        has_failed = self._failure is not None and number == self._failure[0]
        is_taken = number in self._waiting or number == self._in_turn
        if number < self._next or is_taken or has_failed:
            raise UsageError(f"batch {number} comes twice; batches take one turn each")
