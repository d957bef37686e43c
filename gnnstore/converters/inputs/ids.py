"""Node ids of an input: integers in a range."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import InputError
from gnnstore.units import format_count


def check_ids(ids: npt.NDArray[Any], limit: int | None, what: str, first_position: int = 0) -> int:
    """Return the largest of some ids, -1 if there are none."""
    if ids.dtype.kind not in "iu":
        raise InputError(f"{what}: has the element type {ids.dtype}; ids are integers")
    if not len(ids):
        return -1
    low, high = int(ids.min()), int(ids.max())
    if low >= 0 and (limit is None or high < limit):
        return high
    bad = (ids < 0) if limit is None else (ids < 0) | (ids >= limit)
    position = int(np.argmax(bad))
    allowed = f"[0, {limit}) of {format_count(limit, 'node')}" if limit is not None else "[0, 2^63)"
    raise InputError(
        f"{what} {int(ids[position])} at position {first_position + position} is outside {allowed}"
    )
