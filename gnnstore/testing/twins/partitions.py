"""NumPy twins of what a partition buffer computes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def resident_csc(
    starts: NDArray[np.int64],
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    position: NDArray[Any],
    *,
    count: int,
    rows: int,
    num_nodes: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[Any]]:
    """Return (indptr, indices, positions) of the buckets of partitions in memory."""
    to, origin = np.divmod(np.repeat(np.arange(count * count), np.diff(starts)), count)
    sources, targets = origin * rows + source, to * rows + target
    order = np.lexsort((position, sources, targets))
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(targets, minlength=num_nodes), out=indptr[1:])
    return indptr, sources[order].astype(np.int32), position[order]
