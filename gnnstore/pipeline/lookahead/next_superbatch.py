"""A superbatch of a later iteration, made while the batches of this one are assembled.

It may have the batches of several epochs: then it is carried from one iteration to the next.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from functools import partial

from gnnstore.pipeline.batch import Batch, EpochRun
from gnnstore.pipeline.lookahead.producer import Producer
from gnnstore.pipeline.lookahead.superbatch import EpochSlice, Superbatch
from gnnstore.sampling.neighbor import NeighborSampler
from gnnstore.threads import THREAD_NAME, Background, Finalizer

_log = logging.getLogger(__name__)


# The identity of an iteration: its epoch, and the batches of that which were handed out before.
EpochKey = tuple[int, int]


@dataclass(eq=False)
class MadeAhead:
    """A superbatch that was made before the iterations that have its batches began."""

    producer: Producer  # made it, and keeps its files
    superbatch: Superbatch
    shares: list[tuple[EpochKey, int]]  # iterations still to come, and their numbers of batches
    begin: int = 0  # the first batch that has not been handed out
    _abandon: Finalizer | None = field(default=None, init=False)

    def is_for(self, key: EpochKey, sampler: NeighborSampler) -> bool:
        """Whether an iteration is the one that has the next batches, in this process."""
        is_next = self.has_more and self.shares[0][0] == key and os.getpid() == self.producer.pid
        return is_next and self.producer.sampler is sampler

    @property
    def has_more(self) -> bool:
        """Whether batches are left for another iteration."""
        return bool(self.shares) and self.num_left > 0

    @property
    def num_left(self) -> int:
        """Batches that have not been handed out."""
        return len(self.superbatch) - self.begin

    @property
    def is_planned(self) -> bool:
        """Whether it was planned for what the slots held then."""
        return self.superbatch.slots is not None

    def take(self) -> EpochSlice:
        """Return the batches of the next iteration, planned."""
        if not self.is_planned:
            self.producer.finish(self.superbatch)
        _, num_batches = self.shares.pop(0)
        taken = EpochSlice.of(self.superbatch, self.begin, num_batches)
        self.begin = taken.end
        return taken

    def keep(self) -> None:
        """Wait for the next iteration; if none begins, the files go with this."""
        self._abandon = Finalizer(self, self.producer.close)

    def go_on(self, run: EpochRun) -> None:
        """Go on with the next iteration."""
        if self._abandon is not None:
            self._abandon.detach()
            self.producer.go_on(run)

    def abandon(self) -> None:
        """Free what nobody will ask for. Idempotent."""
        self.producer.close()


class NextSuperbatch:
    """A superbatch that a thread is making, or has made.

    If the next iteration is another one, the loader is forgotten, or the interpreter ends, it is
    given up, and its files go.
    """

    def __init__(
        self,
        producer: Producer,
        batches: list[Batch],
        shares: list[tuple[EpochKey, int]],
        *,
        plans: bool,
    ) -> None:
        self.shares = shares
        self.producer = producer
        self.plans = plans  # whether it is planned, and not only sampled
        self._pid = os.getpid()
        producer.waits_for_others = True
        # The thread does not know this: it shall not keep the loader alive.
        work = partial(_make, producer, batches, plans)
        self.making = Background(work, THREAD_NAME, daemon=True)
        self.abandon = Finalizer(self, _abandon, producer, self.making)

    def is_for(self, key: EpochKey, sampler: NeighborSampler) -> bool:
        """Whether an iteration is the first that it is for."""
        return self.shares[0][0] == key and self.producer.sampler is sampler

    def take(self) -> MadeAhead | None:
        """Return it once it is made; None if that failed, or it is of a process before a fork.

        The caller closes the producer.
        """
        if os.getpid() != self._pid:
            return None
        self.producer.waits_for_others = False
        try:
            made = self.making.result()
        except Exception as error:
            # A lasting cause shows again when an iteration that wants the superbatch makes it.
            _log.debug("the next superbatch cannot be made yet: %s", error)
            self.abandon()
            return None
        self.abandon.detach()
        return MadeAhead(self.producer, made, self.shares)


def _make(producer: Producer, batches: list[Batch], plans: bool) -> Superbatch:
    superbatch = producer.sample(0, batches)
    if plans:
        return producer.finish(superbatch)
    producer.session = None  # whose slots may be another loader's by then
    return superbatch


def _abandon(producer: Producer, making: Background[Superbatch]) -> None:
    producer.stop()
    try:
        making.finish()
    finally:
        producer.close()
