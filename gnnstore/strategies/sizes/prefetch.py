"""Finds the part of a budget for batches in flight, if a cache gets the rest."""

from __future__ import annotations

from gnnstore.budget.ledger import IN_FLIGHT, Ledger, Reservation, Wish
from gnnstore.threads import SMALLER_BATCHES

# While the consumer has a batch, the next one is read: next to these two, threads have samples, and
# wait for the memory of the batch that the consumer frees. With a batch for each thread, one that
# waits and one at the consumer, they never wait. That is not worth more than a quarter of the
# cache's memory. With only two batches, half a batch more, since later ones may be larger than any
# of the sample: on R-MAT, by 27 % with 64 seeds.
_BATCH_SHARE = 4
_LEAST, _LEAST_HALF_BATCHES = 2, 5


def with_batches(memory: Ledger) -> Ledger:
    """Return the ledger with batches in flight, by their bytes."""
    return memory.add(Reservation("batches in flight", 0, {IN_FLIGHT: 1}))


def check_two_batches(memory: Ledger, batch_bytes: int, *remedies: str) -> None:
    """Check that there is room for a batch and the one before it."""
    with_batches(memory).check({IN_FLIGHT: 2 * batch_bytes}, *(remedies or (SMALLER_BATCHES,)))


def has_two_batches(memory: Ledger, batch_bytes: int) -> bool:
    """Whether there is room for a batch and the one before it."""
    return with_batches(memory).left({IN_FLIGHT: 2 * batch_bytes}) >= 0


def prefetch_wish(left_bytes: int, batch_bytes: int, sample_bytes: int, num_threads: int) -> Wish:
    """Return the preferred bytes for batches in flight."""
    least = _LEAST * batch_bytes
    enough = max(_LEAST_HALF_BATCHES * batch_bytes // 2, least + num_threads * sample_bytes)
    most = (num_threads + 2) * batch_bytes
    return Wish(IN_FLIGHT, least, max(enough, min(left_bytes // _BATCH_SHARE, most)))
