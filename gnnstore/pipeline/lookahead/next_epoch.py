"""The first superbatch of the next epoch, made by a thread while this one comes to its end.

Where an epoch is one superbatch, nothing else would be sampled, planned and packed beside training.
The thread ends with it. If the next iteration is another one, the loader is forgotten, or the
interpreter ends, it is given up, and its files go.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Hashable

from gnnstore.parallel import THREAD_NAME
from gnnstore.pipeline.batch import Planned
from gnnstore.pipeline.lookahead.driver import SampledSuperbatch
from gnnstore.pipeline.lookahead.producer import LookaheadProducer
from gnnstore.pipeline.lookahead.superbatch import Superbatch

_log = logging.getLogger(__name__)

Made = Superbatch | SampledSuperbatch
# Batches, by their place in the iteration.
Chunk = list[tuple[int, Planned]]


class NextSuperbatch:
    """A superbatch that is being made, or was.

    Parameters
    ----------
    key : object
        What the iteration must be that it is for.
    plans : bool
        Whether it is planned and packed as well; else only sampled.
    """

    def __init__(
        self,
        key: Hashable,
        producer: LookaheadProducer,
        chunk: Chunk,
        *,
        plans: bool,
    ) -> None:
        self.key = key
        self.producer = producer
        self._making = _Making(producer, chunk, plans)
        # Of none of these does the thread know: it shall not keep the loader alive.
        self._thread = threading.Thread(target=self._making.work, name=THREAD_NAME, daemon=True)
        self._pid = os.getpid()
        self.abandon = weakref.finalize(self, _abandon, self._making, self._thread, self._pid)
        producer.waits_for_others = True
        self._thread.start()

    def take(self) -> Made | None:
        """Return it once it is made; None if that failed, or it is of a process before a fork.

        Whoever takes it closes the producer.
        """
        if os.getpid() != self._pid:
            return None
        self.producer.waits_for_others = False
        self._thread.join()
        if self._making.made is None:
            self.abandon()
        else:
            self.abandon.detach()
        return self._making.made


class _Making:
    """What the thread does."""

    def __init__(self, producer: LookaheadProducer, chunk: Chunk, plans: bool) -> None:
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
            # What stands in the way will be met again when it is made for whoever asks for it.
            _log.debug("the next superbatch cannot be made yet: %s", error)
        if self.is_abandoned:
            self.producer.close()


def _abandon(making: _Making, thread: threading.Thread, pid: int) -> None:
    if os.getpid() != pid:
        return  # files and thread are the parent's
    making.producer.stop()
    making.is_abandoned = True
    # The garbage collector may do this from any thread, even from that one, which closes itself.
    if thread is threading.current_thread():
        return
    try:
        thread.join()
    finally:  # after an interrupt the thread does it, which may be over by now
        if not thread.is_alive():
            making.producer.close()
