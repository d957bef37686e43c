"""Features as int8 with a scale per column: a quarter of float32's bytes for 1/254 of a range.

x is stored as rint(x / scale), and the scales as the graph-level array `x_scale`, so that
`batch.x * batch.x_scale` is the features again; on a GPU that costs less than moving four
times the bytes would. The scale of a column is its largest magnitude / 127, which takes one
pass over the input before the one that writes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.arrays.source import ArraySource
from gnnstore.converters.read_ahead import read_ahead
from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import from_bfloat16_bits
from gnnstore.progress import Phase

LARGEST = 127  # -128 is left out, so that negating never overflows


def column_scales(
    source: ArraySource, dtype: str, step: int, phase: Phase
) -> npt.NDArray[np.float32]:
    """Return the scale of every column.

    Parameters
    ----------
    source : ArraySource [N, ...]
        The features.
    dtype : str
        Their element type by its name in a store.
    step : int
        Rows to read at a time.

    Returns
    -------
    ndarray of float32, shape of a row
        Above 0; 1 for columns of zeros.

    Raises
    ------
    InputError
        Naming the first value that is not finite.
    """
    largest = np.zeros(source.shape[1:], np.float32)
    rows_done = 0
    for rows in read_ahead(source.rows(step)):
        magnitudes = np.abs(_to_float32(rows, dtype))
        # NaN spreads through maxima, so one look at them covers every value.
        np.maximum(largest, magnitudes.max(axis=0), out=largest)
        if not np.isfinite(largest).all():
            place = np.unravel_index(int(np.argmax(~np.isfinite(magnitudes))), magnitudes.shape)
            column = ", ".join(map(str, place[1:]))
            raise InputError(
                f"{source.label}: row {rows_done + int(place[0])}"
                f"{f', column {column}' if column else ''}: {rows[place]!s} has no place in int8 "
                "with a scale; replace it, or use feature_dtype float16 or bfloat16"
            )
        rows_done += len(rows)
        phase.advance(len(rows))
    scales = largest / np.float32(LARGEST)
    # Below the smallest normal number a scale has too few bits to divide by.
    return np.where(scales < np.finfo(np.float32).tiny, np.float32(1), scales).astype(np.float32)


class ScalingCaster:
    """Casts pieces of an attribute to int8 by their columns' scales, as `Caster` does."""

    target = "int8"

    def __init__(self, source: str, scales: npt.NDArray[np.float32]) -> None:
        self.source = source
        self._scales = scales

    def skip(self, num_rows: int) -> None:
        """Do nothing: no row depends on another, and none is refused."""

    def __call__(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
        """Return rows [k, ...] as int8."""
        quotients = np.rint(_to_float32(rows, self.source) / self._scales)
        # x / (x / 127) may round to just above 127.
        stored: npt.NDArray[np.int8] = np.clip(quotients, -LARGEST, LARGEST).astype(np.int8)
        return stored


def _to_float32(rows: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "bfloat16":
        return from_bfloat16_bits(rows)
    with np.errstate(over="ignore"):  # what overflows is infinite, and refused as such
        return rows.astype(np.float32, copy=False)
