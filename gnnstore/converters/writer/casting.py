"""Casts features to their stored element type.

Numbers are rounded to the floats that the user asks for. A finite value that would become infinite,
or a number that is no integer of an integer type, stops the conversion.

Features as int8 have a scale per column: x is stored as rint(x / scale), and the scales as the
graph-level array `x_scale`, so that `batch.x * batch.x_scale` is the features again. The scale of
a column is its largest magnitude / 127, which takes one pass before the one that writes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.source import ArraySource, read_ahead
from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import (
    STORAGE_DTYPES,
    from_bfloat16_bits,
    storage_dtype,
    to_bfloat16_bits,
)
from gnnstore.progress import Phase

SCALES = "x_scale"  # the graph array with the scales of features that are stored as multiples
LARGEST = 127  # -128 is left out, so that negating never overflows


class Caster:
    """Casts pieces of one attribute from their element type to the stored type."""

    def __init__(
        self, name: str, source: str, target: str, scales: npt.NDArray[np.float32] | None = None
    ) -> None:
        for dtype in (source, target):
            storage_dtype(dtype, what=f"the attribute {name!r}")
        self.name = name
        self.source = source
        self.target = target
        self.num_rows_done = 0  # also rows that need no cast, so that messages name the right ones
        self._scales = scales

    def __call__(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return rows in the storage type of the target."""
        values, target = rows, STORAGE_DTYPES[self.target]
        if self._scales is not None:
            quotients = np.rint(_to_float32(rows, self.source) / self._scales)
            # x / (x / 127) may round to just above 127.
            values = np.clip(quotients, -LARGEST, LARGEST).astype(np.int8)
        elif self.source != self.target:
            if self.source == "bfloat16":
                values = from_bfloat16_bits(rows)
            values = self._cast(values, target)
        self.num_rows_done += len(rows)
        return np.asarray(values, dtype=target)

    def _cast(self, values: npt.NDArray[Any], target: np.dtype[Any]) -> npt.NDArray[Any]:
        is_bfloat16 = self.target == "bfloat16"
        with np.errstate(over="ignore", invalid="ignore"):
            cast = values.astype(np.float32 if is_bfloat16 else target)
            if is_bfloat16:
                cast = to_bfloat16_bits(cast)
            wide = from_bfloat16_bits(cast) if is_bfloat16 else cast
            if wide.dtype.kind == "f":
                infinite = np.isinf(wide)  # rare: search for their cause only where one occurs
                if infinite.any():
                    self._refuse(infinite & np.isfinite(values), values, "overflows")
                return cast
            # float64 holds 2**63 but int64 does not, and the two would compare as equal.
            changed = (cast != values) | ((cast < 0) != (values < 0))
            if values.dtype.kind == "f":
                wide = np.abs(values.astype(np.float64, copy=False))
                changed |= ~np.isfinite(wide) | (wide >= 2.0**63)
        self._refuse(changed, values, "has no exact value in")
        return cast

    def _refuse(self, bad: npt.NDArray[np.bool_], values: npt.NDArray[Any], problem: str) -> None:
        if bad.any():
            raise InputError(
                f"the attribute {self.name!r}, {_place(bad, self.num_rows_done)}: "
                f"{values.flat[np.argmax(bad)]!s} {problem} {self.target}; choose a wider type or "
                "rescale the data"
            )


def column_scales(source: ArraySource, dtype: str, phase: Phase) -> npt.NDArray[np.float32]:
    """Return the scale of every column."""
    largest = np.zeros(source.shape[1:], np.float32)
    num_rows_done = 0
    for rows in read_ahead(source.pieces()):
        magnitudes = np.abs(_to_float32(rows, dtype))
        # NaN spreads through maxima, so checking these covers every value.
        np.maximum(largest, magnitudes.max(axis=0), out=largest)
        if not np.isfinite(largest).all():
            bad = ~np.isfinite(magnitudes)
            raise InputError(
                f"{source.label}: {_place(bad, num_rows_done)}: {rows.flat[np.argmax(bad)]!s} has "
                "no place in int8 with a scale; replace it, or use feature_dtype float16 or "
                "bfloat16"
            )
        num_rows_done += len(rows)
        phase.advance(len(rows))
    scales = largest / np.float32(LARGEST)
    # Below the smallest normal number a scale has too few bits to divide by.
    return np.where(scales < np.finfo(np.float32).tiny, np.float32(1), scales).astype(np.float32)


def _place(bad: npt.NDArray[np.bool_], first_row: int) -> str:
    """Return the row and the column of the first value that is bad."""
    row, *columns = np.unravel_index(int(np.argmax(bad)), bad.shape)
    column = ", ".join(map(str, columns))
    return f"row {first_row + int(row)}" + (f", column {column}" if column else "")


def _to_float32(rows: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "bfloat16":
        return from_bfloat16_bits(rows)
    with np.errstate(over="ignore"):  # what overflows is infinite, and refused as such
        return rows.astype(np.float32, copy=False)
