"""The crc32c of each partition's rows of an array, or of each bucket of edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core


class RangeCrcs:
    """The crc32c of each of several ranges of rows; the rows come in order, in pieces."""

    def __init__(self, bounds: npt.NDArray[np.int64]) -> None:
        self.crcs = np.zeros(len(bounds) - 1, np.uint32)
        self._bounds, self._done = bounds, 0

    def add(self, rows: npt.NDArray[Any]) -> None:
        """Add the rows that come next."""
        if not len(rows):
            return
        begin, end = self._done, self._done + len(rows)
        first = int(np.searchsorted(self._bounds, begin, side="right")) - 1
        last = int(np.searchsorted(self._bounds, end))
        cuts = np.clip(self._bounds[first : last + 1], begin, end) - begin
        add_crcs(rows, cuts[:-1], cuts[1:], self.crcs[first:last])
        self._done = end


def add_crcs(
    rows: npt.NDArray[Any],
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    crcs: npt.NDArray[np.uint32],
) -> None:
    """Continue the crc32c of each range by rows of an array."""
    row_bytes = rows[:1].nbytes
    data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    _core.crc32c_ranges(data, begins * row_bytes, ends * row_bytes, crcs)
