"""Hands one shared thing to the batches of an iteration, in order.

A lock alone is not enough: a batch that fails, an iteration that is left or overtaken by another,
and an interrupt at any point must not leave a thread waiting. All that wait look again whenever
anything changes.
"""

from __future__ import annotations

import os
from typing import Literal
from weakref import WeakSet

from gnnstore.errors import GnnstoreError, UsageError, described
from gnnstore.threads import Condition

Turn = Literal["now", "later", "never"]


class Sequencer:
    """Hands one shared thing to the batches of an iteration, in order.

    Several iterations may hold a ticket for it; the one that began last gets the turns. A forked
    process has none of the threads that take turns, and begins anew.
    """

    def __init__(self) -> None:
        self._is_retired = False
        self._begin_anew()
        _sequencers.add(self)

    def _begin_anew(self) -> None:
        self.changed = Condition()
        self.latest: Ticket | None = None
        self.in_use: tuple[Ticket, int] | None = None

    @property
    def is_free(self) -> bool:
        """Whether nobody has use for further turns, as far as is known."""
        with self.changed.lock:
            is_wanted = self.latest is not None and self.latest.wants_turns
            return not is_wanted and not self._is_retired

    def begin(self) -> Ticket:
        """Issue a ticket; the holder of the one before does not get another turn."""
        ticket = Ticket(self)
        self._hand_over(ticket)
        return ticket

    def retire(self) -> None:
        """Give no more turns, nor to tickets that are issued later."""
        self._is_retired = True
        self._hand_over(None)

    def _hand_over(self, ticket: Ticket | None) -> None:
        with self.changed.lock:
            self.latest = None if self._is_retired else ticket
            self.changed.notify_all()
        self.changed.wait_until(lambda: self.in_use is None or None)

    def release(self, ticket: Ticket, number: int) -> None:
        """End the turn of a batch, if it has it."""
        with self.changed.lock:
            if self.in_use == (ticket, number):
                self.in_use = None
            self.changed.notify_all()


class Ticket:
    """The turns of one iteration: its batches 0, 1, 2, ... get theirs one after the other.

    Every number must take its turn or fail, because later ones wait for it.
    """

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self._next = 0
        self._waiting: set[int] = set()
        self._failure: tuple[int, str] | None = None
        self._is_closed = False
        self.is_resting = False

    @property
    def is_overtaken(self) -> bool:
        """Whether another ticket was issued since, and nothing else has gone wrong."""
        with self._sequencer.changed.lock:
            is_open = not self._is_closed and self._failure is None
            return is_open and self._sequencer.latest is not self

    @property
    def wants_turns(self) -> bool:
        """Whether more batches may come: it is current, and nobody has said that it rests."""
        return self.is_current and not self.is_resting

    @property
    def is_current(self) -> bool:
        """Whether later batches can have a turn: no other ticket, not closed, none failed."""
        with self._sequencer.changed.lock:
            is_open = not self._is_closed and self._failure is None
            return is_open and self._sequencer.latest is self

    @property
    def num_done(self) -> int:
        """Batches that have had their turn, from the first on."""
        return self._next

    def look(self, number: int) -> Turn:
        """Take the turn of a batch if it has come; say if it has ("now") or will come."""
        with self._sequencer.changed.lock:
            self._check(number)
            if self._sequencer.latest is not self:
                return "never"
            if number > self._next:
                return "later"
            self._sequencer.in_use = (self, number)
            return "now"

    def wait(self, number: int) -> bool:
        """Take the turn of a batch when it comes; return False if another ticket was issued."""
        is_waiting = False

        def look() -> bool | None:
            nonlocal is_waiting
            if is_waiting:
                self._waiting.discard(number)
            turn = self.look(number)
            if is_waiting := turn == "later":
                self._waiting.add(number)
                return None
            return turn == "now"

        return bool(self._sequencer.changed.wait_until(look))

    def done(self, number: int) -> None:
        """End the turn of a batch; the next one's begins."""
        with self._sequencer.changed.lock:
            self._next = number + 1
            self._sequencer.release(self, number)

    def fail(self, number: int, error: BaseException) -> None:
        """Give up a batch: those after it fail when they look, or now if they wait."""
        with self._sequencer.changed.lock:
            is_first = self._failure is None or number < self._failure[0]
            if is_first and not self._is_closed:
                # Not the error itself, whose traceback would keep the buffers of the batch.
                self._failure = (number, described(error))
            self._waiting.discard(number)  # there still if its wait was interrupted
            self._sequencer.release(self, number)

    def close(self) -> None:
        """End the ticket; batches that wait fail. May be called again."""
        with self._sequencer.changed.lock:
            self._is_closed = True
            self._sequencer.changed.notify_all()

    def _check(self, number: int) -> None:
        if self._failure is not None and number > self._failure[0]:
            failed, error = self._failure
            raise GnnstoreError(
                f"cannot assemble batch {number}: an earlier batch failed, {failed}, whose rows "
                f"the cache was to receive ({error}). Begin the iteration anew"
            )
        if self._is_closed:
            raise UsageError(f"cannot assemble batch {number}: its iteration was ended")
        has_turn = self._sequencer.in_use == (self, number)
        has_failed = self._failure is not None and number == self._failure[0]
        if number < self._next or number in self._waiting or has_turn or has_failed:
            raise UsageError(f"batch {number} comes twice; batches take one turn each")


_sequencers: WeakSet[Sequencer] = WeakSet()


def _begin_anew_after_a_fork() -> None:
    for sequencer in _sequencers:
        sequencer._begin_anew()


os.register_at_fork(after_in_child=_begin_anew_after_a_fork)
