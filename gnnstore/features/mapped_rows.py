"""Rows in mapped files: the operating system reads pages, and takes them back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts
from gnnstore.features.memory_rows import copy_rows
from gnnstore.features.source import Decoding, RowRequest, RowSource, RowSpec
from gnnstore.formats.arrays.paged import PagedArray

# Most threads that take page faults, which block them: a mapping is read faster by more threads
# than there are cores. A batch of 136,000 rows, none of them cached, two batches at a time, on a
# disk of 100,000 reads a second: 3.9 s with 1 thread, 0.54 s with 4, 0.27 s with 16, 0.21 s with
# 32. Their cost when every page is cached: half a millisecond.
MAX_FAULT_THREADS = 32
MIN_ROWS_PER_FAULT_THREAD = 512


@dataclass(frozen=True, eq=False)
class MappedRows(RowSource):
    """A stored table, mapped: the operating system reads a page on the first access to it."""

    array: PagedArray
    body: npt.NDArray[np.uint8]

    @classmethod
    def map(cls, array: PagedArray) -> Self:
        """Map a stored array, advising the system not to read ahead."""
        return cls(array, array.map("random"))

    @cached_property
    def spec(self) -> RowSpec:
        """The rows of the array."""
        return RowSpec.of(self.array.spec)

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Copy the rows of `ids` to `out`."""
        return self._copy(ids, out)

    def read_decoded(
        self, request: RowRequest, decoding: Decoding, out: npt.NDArray[Any]
    ) -> ReadCounts:
        """Decode the rows of a request to `out`."""
        if request.slots is not None:
            return super().read_decoded(request, decoding, out)
        return self._copy(request.ids, out, decoding)

    def _copy(
        self, ids: npt.NDArray[Any], out: npt.NDArray[Any], decoding: Decoding | None = None
    ) -> ReadCounts:
        """Copy rows; several threads share one call, so that their page faults overlap."""
        num_threads = max(1, min(MAX_FAULT_THREADS, ids.size // MIN_ROWS_PER_FAULT_THREAD))
        layout = {**self.array.kernel_layout, "num_threads": num_threads}
        return copy_rows(self.body, ids, out, decoding, **layout)
