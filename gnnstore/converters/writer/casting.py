"""Casts features to their stored element type.

Numbers are rounded to the floats that the user asks for. A finite value that would become infinite,
or a number that is no integer of an integer type, stops the conversion.

Features as int8 have a scale per column: a quarter of float32's bytes for 1/254 of a range. x is
stored as rint(x / scale), and the scales as the graph-level array `x_scale`, so that
`batch.x * batch.x_scale` is the features again; on a GPU that costs less than moving four
times the bytes would. The scale of a column is its largest magnitude / 127, which takes one
pass over the input before the one that writes.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.read_ahead import read_ahead
from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import (
    STORAGE_DTYPES,
    from_bfloat16_bits,
    storage_dtype,
    to_bfloat16_bits,
)
from gnnstore.progress import Phase

SCALES = "x_scale"  # the graph array with the scales of features that are stored as multiples


class Caster:
    """Casts pieces of one attribute from their element type to the stored type."""

    def __init__(self, name: str, source: str, target: str) -> None:
        storage_dtype(source, what=f"the attribute {name!r}")
        storage_dtype(target, what=f"the attribute {name!r}")
        self.name = name
        self.source = source
        self.target = target
        self._rows_done = 0

    def skip(self, num_rows: int) -> None:
        """Count rows that need no cast, so that later messages name the right rows."""
        self._rows_done += num_rows

    def __call__(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return rows in the storage type of the target."""
        first_row = self._rows_done
        self._rows_done += len(rows)
        if self.source == self.target:
            return np.asarray(rows, dtype=STORAGE_DTYPES[self.target])
        values = from_bfloat16_bits(rows) if self.source == "bfloat16" else rows
        if self.target == "bfloat16":
            wide = self._checked_float(values, np.dtype(np.float32), first_row)
            bits = to_bfloat16_bits(wide)
            self._check_overflow(values, from_bfloat16_bits(bits), first_row)
            return bits
        target = STORAGE_DTYPES[self.target]
        if target.kind == "f":
            return self._checked_float(values, target, first_row)
        return self._checked_integer(values, target, first_row)

    def _checked_float(
        self, values: npt.NDArray[Any], target: np.dtype[Any], first_row: int
    ) -> npt.NDArray[Any]:
        with np.errstate(over="ignore"):
            cast = values.astype(target)
        self._check_overflow(values, cast, first_row)
        return cast

    def _check_overflow(
        self, values: npt.NDArray[Any], cast: npt.NDArray[Any], first_row: int
    ) -> None:
        # Infinities are rare: search for their cause only where one occurs.
        infinite = np.isinf(cast)
        if infinite.any():
            self._refuse(infinite & np.isfinite(values), values, first_row, "overflows")

    def _checked_integer(
        self, values: npt.NDArray[Any], target: np.dtype[Any], first_row: int
    ) -> npt.NDArray[Any]:
        with np.errstate(invalid="ignore"):
            cast = values.astype(target)
            # float64 holds 2**63 but int64 does not, and the two would compare as equal.
            changed = (cast != values) | ((cast < 0) != (values < 0))
            if values.dtype.kind == "f":
                wide = np.abs(values.astype(np.float64, copy=False))
                changed |= ~np.isfinite(wide) | (wide >= 2.0**63)
        self._refuse(changed, values, first_row, "has no exact value in")
        return cast

    def _refuse(
        self, bad: npt.NDArray[np.bool_], values: npt.NDArray[Any], first_row: int, problem: str
    ) -> None:
        if bad.any():
            place = np.unravel_index(int(np.argmax(bad)), bad.shape)
            self._fail(first_row + int(place[0]), place[1:], values[place], problem)

    def _fail(self, row: int, column: tuple[Any, ...], value: object, problem: str) -> NoReturn:
        where = f"row {row}" + (f", column {', '.join(map(str, column))}" if column else "")
        raise InputError(
            f"the attribute {self.name!r}, {where}: {value!s} {problem} {self.target}; "
            "choose a wider type or rescale the data"
        )


LARGEST = 127  # -128 is left out, so that negating never overflows


def column_scales(
    source: ArraySource, dtype: str, step: int, phase: Phase
) -> npt.NDArray[np.float32]:
    """Return the scale of every column."""
    largest = np.zeros(source.shape[1:], np.float32)
    rows_done = 0
    for rows in read_ahead(source.rows(step)):
        magnitudes = np.abs(_to_float32(rows, dtype))
        # NaN spreads through maxima, so checking these covers every value.
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
