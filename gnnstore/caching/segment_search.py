"""Searches the shortest segments with which packed rows fit a disk budget.

Short segments store more rows more than once; long ones scatter the rows of a batch among those of
more batches. DiskGNN's search (section 5.1, algorithm 2) lengthens the segment until the space
estimated from the first segment fits. Here one pass over the batches counts how far apart rows are
missed again, which gives exactly the rows that segments of every length store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore.caching.segments import check_num_batches, ranges_of, segments_of


@dataclass(frozen=True, eq=False)
class Recurrences:
    """Counts of the rows that are missed again, by the two batches that miss them."""

    num_distinct: int  # distinct rows that the S batches miss
    # int64 [S + 1, S + 1]: ``sums[a, b]``: misses of the batches before b whose row was last missed
    # by a batch before a.
    sums: npt.NDArray[np.int64]

    @classmethod
    def of(cls, missed: Sequence[npt.NDArray[Any]], num_rows: int) -> Self:
        """Count the recurrences in some batches."""
        size = len(missed)
        check_num_batches(size)
        pairs = np.zeros((size, size), np.int64)
        num_distinct = 0
        for _, parts in ranges_of(missed, num_rows):
            # One more than the number of the batch that had the row last; 0: none.
            last = np.zeros(max((int(p[-1]) + 1 for p in parts if len(p)), default=0), np.uint16)
            for batch, part in enumerate(parts):
                found = np.bincount(last[part], minlength=size + 1)
                num_distinct += int(found[0])
                pairs[:, batch] += found[1:]
                last[part] = batch + 1
        sums = np.zeros((size + 1, size + 1), np.int64)
        np.cumsum(np.cumsum(pairs, axis=0), axis=1, out=sums[1:, 1:])
        return cls(num_distinct, sums)

    @property
    def num_batches(self) -> int:
        """Number of batches, S."""
        return len(self.sums) - 1

    @property
    def num_missed(self) -> int:
        """Misses of all batches: the rows that are stored without segments."""
        return self.num_distinct + int(self.sums[-1, -1])

    def stored_rows(self, segment: int) -> int:
        """Return the number of rows that all segments of `segment` batches store."""
        sums = self.sums
        bounds = [part.start for part in segments_of(self.num_batches, segment)]
        spared = 0
        for a, b in pairwise([*bounds, self.num_batches]):
            spared += int(sums[b, b] - sums[a, b] - sums[b, a] + sums[a, a])
        return self.num_missed - spared


def search_segment(recurrences: Recurrences, fits: Callable[[float], bool]) -> int | None:
    """Return the length of the shortest segments that fit; 1 is packing without any."""
    missed = max(1, recurrences.num_missed)
    for segment in range(1, max(1, recurrences.num_batches) + 1):
        if fits(recurrences.stored_rows(segment) / missed):
            return segment
    return None
