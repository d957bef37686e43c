"""Finds the lowest key that fits, by histograms.

Sorting the keys of 10^8 nodes would take 800 MB for their order alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

# Keys, uint32 [n], and the weight of each, int64 [n]; None: 1 each.
Pieces = Iterable[tuple[npt.NDArray[Any], npt.NDArray[np.int64] | None]]

_NUM_BINS = 1 << 16


def highest_that_overflows(pieces: Callable[[], Pieces], room: int) -> tuple[int, int]:
    """Return the highest key that does not fit with all above it, and the room left by these."""
    # By their upper and, within the bin that matters, their lower 16 bits.
    upper, left = _highest_bin(((keys >> 16, weights) for keys, weights in pieces()), room)
    if upper < 0:
        return 0, left
    lower, left = _highest_bin(_within(pieces(), upper), left)
    return (upper << 16) + lower, left


def _within(pieces: Pieces, upper: int) -> Pieces:
    for keys, weights in pieces:
        inside = keys >> 16 == upper
        yield keys[inside] & 0xFFFF, None if weights is None else weights[inside]


def _highest_bin(pieces: Pieces, room: int) -> tuple[int, int]:
    """Return the highest bin that does not fit with those above it; -1: none."""
    sums = np.zeros(_NUM_BINS, np.int64)
    for bins, weights in pieces:
        sums += np.bincount(bins, weights, _NUM_BINS).astype(np.int64, copy=False)
    reached = np.cumsum(sums[::-1])
    place = int(np.searchsorted(reached, room, side="right"))
    return _NUM_BINS - 1 - place, room - (int(reached[place - 1]) if place else 0)
