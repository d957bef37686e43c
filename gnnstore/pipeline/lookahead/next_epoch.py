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
from gnnstore.pipeline.lookahead.maker import SuperbatchMaker
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
    maker : SuperbatchMaker
        Of that iteration.
    chunk : list
        Its first batches.
    plans : bool
        Whether it is planned and packed as well; else only sampled.
    """

    def __init__(
        self,
        key: Hashable,
        maker: SuperbatchMaker,
        chunk: Chunk,
        *,
        plans: bool,
    ) -> None:
        self.key = key
        self.maker = maker
        self._making = _Making(maker, chunk, plans)
        # Of none of these does the thread know: it shall not keep the loader alive.
        self._thread = threading.Thread(target=self._making.work, name=THREAD_NAME, daemon=True)
        self._pid = os.getpid()
        self.give_up = weakref.finalize(self, _give_up, self._making, self._thread, self._pid)
        maker.waits_for_others = True
        self._thread.start()

    def take(self) -> Made | None:
        """Return it once it is made; None if that failed, or it is of a process before a fork.

        Whoever takes it closes the maker.
        """
        if os.getpid() != self._pid:
            return None
        self.maker.waits_for_others = False
        self._thread.join()
        if self._making.made is None:
            self.give_up()
        else:
            self.give_up.detach()
        return self._making.made


class _Making:
    """What the thread does."""

    def __init__(self, maker: SuperbatchMaker, chunk: Chunk, plans: bool) -> None:
        self.maker = maker
        self.made: Made | None = None
        self.is_given_up = False
        self._chunk = chunk
        self._plans = plans

    def work(self) -> None:
        """Make the superbatch."""
        try:
            chunk, self._chunk = self._chunk, []
            sampled, course = self.maker.sample(chunk), self.maker.course
            if self._plans and course.lease.is_current:  # nobody else uses the cache
                self.made = self.maker.finish(sampled)
                if self.maker.course is not course:  # somebody has begun to in between
                    self.maker.course.lease.rest()
            else:
                self.made = sampled
        except Exception as error:
            # What stands in the way will be met again when it is made for whoever asks for it.
            _log.debug("the next superbatch cannot be made yet: %s", error)
        if self.is_given_up:
            self.maker.close()


def _give_up(making: _Making, thread: threading.Thread, pid: int) -> None:
    if os.getpid() != pid:
        return  # files and thread are the parent's
    making.maker.stop()
    making.is_given_up = True
    # The garbage collector may do this from any thread, even from that one, which closes itself.
    if thread is threading.current_thread():
        return
    try:
        thread.join()
    finally:  # after an interrupt the thread does it, which may be over by now
        if not thread.is_alive():
            making.maker.close()
