"""A superbatch of a later iteration, made while the batches of this one are assembled.

It may have the batches of several epochs: then it is carried from one iteration to the next.
"""

from __future__ import annotations

import logging
import os
from functools import partial

from gnnstore.pipeline.batch import Batch
from gnnstore.pipeline.lookahead.producer import Producer
from gnnstore.pipeline.lookahead.superbatch import EpochSlice, Superbatch
from gnnstore.sampling.neighbor import NeighborSampler
from gnnstore.threads import THREAD_NAME, Background, Finalizer

_log = logging.getLogger(__name__)


# The identity of an iteration: its epoch, and the batches of that which were handed out before.
EpochKey = tuple[int, int]


class NextSuperbatch:
    """A superbatch that a thread makes before the iterations that have its batches begin.

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
        self.producer = producer  # keeps its files
        self.shares = shares  # iterations still to come, and their numbers of batches
        self.plans = plans  # whether it is planned, and not only sampled
        self._begin = 0  # the first batch that has not been handed out
        producer.waits_for_others = True
        # The thread does not know this: it shall not keep the loader alive.
        work = partial(_make, producer, batches, plans)
        self.making = Background(work, THREAD_NAME, daemon=True)
        self.abandon = Finalizer(self, _abandon, producer, self.making)

    def is_for(self, key: EpochKey, sampler: NeighborSampler) -> bool:
        """Whether an iteration is the one that has the next batches, in this process."""
        is_next = bool(self.shares) and self.shares[0][0] == key
        return is_next and os.getpid() == self.producer.pid and self.producer.sampler is sampler

    def is_made(self) -> bool:
        """Wait until it is made; return whether it could be."""
        self.producer.waits_for_others = False
        try:
            self.making.result()
        except Exception as error:
            # A lasting cause shows again when an iteration that wants the superbatch makes it.
            _log.debug("the next superbatch cannot be made yet: %s", error)
            return False
        return True

    @property
    def superbatch(self) -> Superbatch:
        """The superbatch, once it is made."""
        return self.making.result()

    @property
    def num_left(self) -> int:
        """Batches that have not been handed out."""
        return len(self.superbatch) - self._begin

    @property
    def is_planned(self) -> bool:
        """Whether it was planned for what the slots held then."""
        return self.superbatch.slots is not None

    def take(self) -> EpochSlice:
        """Return the batches of the next iteration, planned."""
        if not self.is_planned:
            self.producer.finish(self.superbatch)
        _, num_batches = self.shares.pop(0)
        taken = EpochSlice.of(self.superbatch, self._begin, num_batches)
        self._begin = taken.end
        return taken


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
