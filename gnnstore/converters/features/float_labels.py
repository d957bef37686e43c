"""Reads labels that were saved as floats as whole numbers, if all of them are.

Public data sets keep class numbers as float32 to have NaN for nodes without one. Where every
node has one they are integers, which is what a loss expects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.arrays.source import ArraySource, SequentialArray

_STEP = 2**20


class FloatLabels(SequentialArray):
    """Labels as int64, or as float32 if some are fractions or NaN."""

    def __init__(self, source: ArraySource) -> None:
        self.label = source.label
        self.shape = source.shape
        self._source = source
        is_whole = source.dtype.kind != "f" or all(map(_is_whole, source.rows(_STEP)))
        self.dtype: np.dtype[Any] = np.dtype(np.int64 if is_whole else np.float32)

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the array along its first axis from row `start` on, `step` rows at a time."""
        for piece in self._source.rows(step, start):
            yield piece.astype(self.dtype, copy=False)

    def read(self) -> npt.NDArray[Any]:
        """Return the whole array."""
        return self._source.read().astype(self.dtype, copy=False)


def _is_whole(values: npt.NDArray[Any]) -> bool:
    # NaN is unequal to itself; an infinity is not a class, and would not fit int64.
    return bool(np.all((values == np.rint(values)) & np.isfinite(values)))
