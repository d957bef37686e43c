"""What the batches in flight get of a budget, and what they leave to a cache."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal

from gnnstore.caching.scores import CacheCost, CacheSettings
from gnnstore.errors import BudgetError
from gnnstore.sizing.placement import Placement
from gnnstore.units import format_at_least, format_size

# A few batches are sampled to learn their size, and an eighth is added: on an R-MAT graph the
# largest of an epoch has 2 % more nodes than the mean with 1,024 seeds, and 27 % with 64.
_MARGIN = 1 / 8
# Where there is no room for that and half a batch more, how much to add is told from how much a
# larger sample varies. One of three million normal draws is 5 deviations above the mean, and of 64
# draws the deviation is known to 9 %. Sizes of batches have a longer tail than normal ones where
# few seeds are in them; but then they vary so much that it comes to more than there is room for.
_LEAST_MARGIN, _DEVIATIONS = 1 / 64, 5.0
MANY_BATCHES = 64
# With a batch for each thread, one that waits and one at the consumer, threads never wait for
# memory. That is not worth more than a quarter of what a cache could have. But with two beside the
# one at the consumer the disk is read for one while the other is put together: worth a third.
# Where there are only two in all, half a batch more, since later ones may be larger than any of
# the sample: on R-MAT, by 27 % with 64 seeds, and 2 % with 1,024.
_BATCH_SHARE = 4
_OVERLAPPING, _OVERLAPPING_SHARE = 3, 3
_LEAST_HALF_BATCHES = 5
# Without memory= nobody has said what the model needs besides.
_CACHE_SHARE = 2

# For how many batches there is room. "overlapping": so many that reading and assembling overlap,
# whatever that leaves; "usual": as many as leave enough to a cache; "fewest": one and the one
# before it, where otherwise it would have to be refused.
Crowd = Literal["overlapping", "usual", "fewest"]


def expected_bytes(largest_bytes: int, margin: float = _MARGIN) -> int:
    """Return what a batch may take, from the largest of a sample."""
    return largest_bytes + int(largest_bytes * margin)


def margin_of(sizes: Sequence[int]) -> float:
    """Return by which part batches may exceed the largest of a sample, from how it varies.

    Parameters
    ----------
    sizes : sequence of int
        Of some batches, `MANY_BATCHES` or so; at least two.
    """
    # The deviation of n draws is itself known to one in the root of 2 (n - 1).
    deviation: float = stdev(sizes) * (1 + (2 * (len(sizes) - 1)) ** -0.5)
    most = fmean(sizes) + _DEVIATIONS * deviation
    return max(_LEAST_MARGIN, most / max(1, *sizes) - 1)


def check_two_batches(placement: Placement, batch_bytes: int) -> None:
    """Check that the budget has room for a batch and the one before it.

    Raises
    ------
    BudgetError
        If it has not; says how much is needed.
    """
    left = placement.left_bytes
    if 2 * batch_bytes > left:
        missing = placement.memory_for(2 * batch_bytes - left)
        needed = placement.budget_bytes + missing
        raise BudgetError(
            f"strategy {placement.strategy.name!r} needs {needed} bytes: "
            f"{needed - 2 * batch_bytes} that it holds{_besides(placement)}, and 2 batches of up "
            f"to {batch_bytes} bytes; memory={placement.budget_bytes} is {missing} bytes too few; "
            f"raise memory= by at least {format_at_least(missing)}, or choose a smaller batch_size "
            "or fan-out"
        )


def cache_rows(
    placement: Placement,
    settings: CacheSettings,
    cost: CacheCost,
    batch_bytes: int,
    num_threads: int,
) -> int:
    """Return the number of nodes whose rows can be cached.

    Parameters
    ----------
    batch_bytes : int
        What a batch may take; 0 if no budget was promised.
    num_threads : int
        Preparing threads.

    Raises
    ------
    BudgetError
        If the cache was given a size that does not fit beside two batches.
    """
    left = placement.left_bytes
    if settings.num_bytes is not None:
        num_rows = cost.rows_in(settings.num_bytes)
        missing = cost.bytes_of(num_rows) + 2 * batch_bytes - left
        if missing > 0:
            batches = f" beside 2 batches of up to {batch_bytes} bytes" if batch_bytes else ""
            raise BudgetError(
                f"cache_bytes={settings.num_bytes} does not fit{batches}: of "
                f"{placement.budget_bytes} bytes in all, {left} are left after what strategy "
                f"'static' holds{_besides(placement)}; {missing} bytes too few: lower cache_bytes= "
                f"or raise memory= by at least {format_at_least(placement.memory_for(missing))}"
            )
        return num_rows
    if not placement.budget_is_promise:
        return cost.rows_in(left // _CACHE_SHARE)
    return cost.rows_in(left - in_flight_bytes(placement, batch_bytes, num_threads))


def in_flight_bytes(
    placement: Placement, batch_bytes: int, num_threads: int, crowd: Crowd = "usual"
) -> int:
    """Return what is left to batches in flight where a cache is to have the rest.

    Parameters
    ----------
    crowd : "overlapping", "usual" or "fewest"
        How many there should be. Overlap is worth any cache that it leaves where rows that are
        not cached are packed: they cost little.
    """
    if crowd == "fewest":
        return 2 * batch_bytes
    left = placement.left_bytes
    wanted = (num_threads + 2) * batch_bytes
    least = _LEAST_HALF_BATCHES * batch_bytes // 2
    if crowd == "overlapping" or _OVERLAPPING * batch_bytes <= left // _OVERLAPPING_SHARE:
        least = _OVERLAPPING * batch_bytes
    return min(wanted, max(least, left // _BATCH_SHARE))


def _besides(placement: Placement) -> str:
    staging = placement.staging_bytes
    return f" ({format_size(staging)} of it staging for reads)" if staging else ""
