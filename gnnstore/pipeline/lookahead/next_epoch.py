"""The superbatch that comes after this epoch's last, made by a thread while that one is followed.

Where an epoch is one superbatch, nothing else would be sampled, planned and packed beside training.
One that is longer than an epoch has the batches of several, which take their shares one after the
other. The thread ends with the superbatch. If the next iteration is another one, the loader is
forgotten, or the interpreter ends, it is given up, and its files go.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Hashable
from dataclasses import dataclass, field

from gnnstore.pipeline.lookahead.driver import Coming, SamplingJob
from gnnstore.pipeline.lookahead.producer import LookaheadProducer
from gnnstore.pipeline.lookahead.spools import SampledSuperbatch
from gnnstore.pipeline.lookahead.superbatch import Portion, Superbatch
from gnnstore.threads import THREAD_NAME, Finalizer, Thread

_log = logging.getLogger(__name__)

Made = Superbatch | SampledSuperbatch


@dataclass(frozen=True)
class Share:
    """The batches that an iteration has of a superbatch that was made before it began."""

    key: Hashable  # identity of the iteration
    num_batches: int  # batches of it, from its first on


@dataclass(eq=False)
class Carried:
    """A superbatch that was made before the iterations that have its batches."""

    producer: LookaheadProducer  # made it, and keeps its files
    made: Made
    shares: list[Share]  # of the iterations that are still to come, in order
    begin: int = 0  # the first batch that has not been handed out
    _pid: int = field(default_factory=os.getpid, init=False)
    _abandon: Finalizer | None = field(default=None, init=False)

    def is_for(self, key: Hashable, sampling: SamplingJob) -> bool:
        """Whether an iteration is the one that has the next share, in this process."""
        is_next = self.has_more and self.shares[0].key == key and os.getpid() == self._pid
        return is_next and self.producer.sampling.sampler is sampling.sampler

    @property
    def has_more(self) -> bool:
        """Whether batches are left for another iteration."""
        made = self.made
        num_batches = len(made) if isinstance(made, Superbatch) else len(made.notes)
        return bool(self.shares) and self.begin < num_batches

    def take(self) -> Portion:
        """Return the next share, planned."""
        if isinstance(self.made, SampledSuperbatch):
            self.made = self.producer.finish(self.made)
        portion = Portion.of(self.made, self.begin, self.shares.pop(0).num_batches)
        self.begin = portion.end
        return portion

    def keep(self) -> None:
        """Wait for the next iteration; if nobody begins it, the files go with this."""
        if self.producer.session.lease.is_current:
            self.producer.session.lease.rest()
        self._abandon = Finalizer(self, self.producer.close)

    def go_on(self, sampling: SamplingJob) -> None:
        """Go on with the next iteration."""
        if self._abandon is not None:
            self._abandon.detach()
            self.producer.go_on(sampling)

    def abandon(self) -> None:
        """Let go of what nobody will ask for. Idempotent."""
        if self._abandon is not None:
            self._abandon()


class NextSuperbatch:
    """A superbatch that is being made, or was."""

    def __init__(
        self,
        producer: LookaheadProducer,
        chunk: list[Coming],
        shares: list[Share],
        *,
        plans: bool,
    ) -> None:
        self.shares = shares
        self.producer = producer
        self._making = _Making(producer, chunk, plans)
        # Of none of these does the thread know: it shall not keep the loader alive.
        self._thread = Thread(target=self._making.work, name=THREAD_NAME, daemon=True)
        self._pid = os.getpid()
        self.abandon = Finalizer(self, _abandon, self._making, self._thread)
        producer.waits_for_others = True
        self._thread.start()

    def is_for(self, key: Hashable, sampling: SamplingJob) -> bool:
        """Whether an iteration is the first that it is for."""
        return self.shares[0].key == key and self.producer.sampling.sampler is sampling.sampler

    def take(self) -> Carried | None:
        """Return it once it is made; None if that failed, or it is of a process before a fork.

        Whoever takes it closes the producer.
        """
        if os.getpid() != self._pid:
            return None
        self.producer.waits_for_others = False
        self._thread.join()
        made = self._making.made
        if made is None:
            self.abandon()
            return None
        self.abandon.detach()
        return Carried(self.producer, made, self.shares)


class _Making:
    """The work of the thread that makes a superbatch."""

    def __init__(self, producer: LookaheadProducer, chunk: list[Coming], plans: bool) -> None:
        self.producer = producer
        self.made: Made | None = None
        self.is_abandoned = False
        self._chunk = chunk
        self._plans = plans

    def work(self) -> None:
        """Make the superbatch."""
        try:
            chunk, self._chunk = self._chunk, []
            sampled, session = self.producer.sample(chunk), self.producer.session
            if self._plans and session.lease.is_current:  # nobody else uses the cache
                self.made = self.producer.finish(sampled)
                if self.producer.session is not session:  # somebody has begun to in between
                    self.producer.session.lease.rest()
            else:
                self.made = sampled
        except Exception as error:
            # A lasting cause shows again when an iteration that wants the superbatch makes it.
            _log.debug("the next superbatch cannot be made yet: %s", error)
        if self.is_abandoned:
            self.producer.close()


def _abandon(making: _Making, thread: Thread) -> None:
    making.producer.stop()
    making.is_abandoned = True
    try:
        if thread.is_alive():  # not where an interrupt came before it was started
            thread.join()
    finally:  # after an interrupt the thread does it, which may be over by now
        if not thread.is_alive():
            making.producer.close()
