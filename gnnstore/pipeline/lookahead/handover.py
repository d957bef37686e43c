"""Hands out the batches of one iteration, superbatch by superbatch.

Its course may be overtaken: where another loader takes the cache over, batches that were planned
before would read every row. When that loader is done, the rest is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gnnstore.pipeline.lookahead.maker import SuperbatchMaker
from gnnstore.pipeline.lookahead.superbatch import PlannedTask, Superbatch

# A lease that was lost is not worth taking back for less: a plan is made, and its trace written.
_WORTH_PLANNING = 2


def hand_out(
    maker: SuperbatchMaker,
    superbatches: Iterator[Superbatch],
    then: Callable[[], None],
) -> Iterator[PlannedTask]:
    """Yield the batches of some superbatches, one superbatch after the other.

    Parameters
    ----------
    maker : SuperbatchMaker
        That has made them.
    then : callable
        Called once a superbatch is made, before its first batch.
    """
    job = maker.job
    for superbatch in superbatches:
        job.totals.seconds_planning += superbatch.seconds_planning
        job.totals.bytes_spilled += superbatch.bytes_spilled
        for i in range(len(superbatch)):
            if _may_take_back(maker, superbatch, len(superbatch) - i):
                maker.plan_again(superbatch, i)
            if i == 0 and superbatch.sampled.error is None:
                then()
            yield PlannedTask(superbatch, superbatch.part, i, job.index_dtype)
        if superbatch.sampled.error is not None:
            raise superbatch.sampled.error


def _may_take_back(maker: SuperbatchMaker, superbatch: Superbatch, num_left: int) -> bool:
    """Whether another loader took the cache over, and has no use for it any more.

    Not where the next superbatch may be sampled in the memory that planning takes.
    """
    if not superbatch.part.lease.is_overtaken or maker.job.size.lends:
        return False
    is_free = maker.job.cache().is_free or maker.course.lease.is_current
    return is_free and num_left >= _WORTH_PLANNING
