"""Attributes of nodes as multiples of scales: int8, with a scale per column, and its error.

x is stored as rint(x / scale), where the scale is the column's largest magnitude / 127. The first
pass over an attribute finds the scales, the second one rounds to multiples and measures by how much
these differ from the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.source import ArraySource, read_ahead
from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import from_bfloat16_bits, to_bfloat16_bits
from gnnstore.formats.arrays.spec import DecodedDtype, ScaleError
from gnnstore.progress import Phase

LARGEST = 127  # -128 is left out, so that negating never overflows
MAX_ERROR = 0.05  # of a column's standard deviation
_SMALLEST = np.finfo(np.float32).tiny  # below it, a scale has too few bits to divide by
_EXACT = 2.0**-22  # relative error of a constant column that is rounding alone
_HUGE = 1e9  # errors above it are not told apart
_CHUNK_VALUES = 2**16  # intermediate results stay in a core's cache

Floats = npt.NDArray[np.float32]
Sums = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Columns:
    """What the first pass finds; all arrays have the shape of a row."""

    scales: Floats
    means: Floats  # in units of the scales
    is_constant: npt.NDArray[np.bool_]
    lowest: Floats


def decoded_dtype(dtype: str) -> DecodedDtype:
    """Return the type that batches have of an attribute whose input has some type."""
    found: dict[str, DecodedDtype] = {"float16": "float16", "bfloat16": "bfloat16"}
    return found.get(dtype, "float32")


def find_columns(source: ArraySource, dtype: str, phase: Phase) -> Columns:
    """Return the scales of an attribute's columns; refuse NaN and infinities."""
    low, high = (np.full(source.shape[1:], end, np.float32) for end in (np.inf, -np.inf))
    sums, are_whole = np.zeros(low.shape), np.ones(low.shape, np.bool_)
    num_rows = 0
    for rows in read_ahead(source.pieces()):
        for first, values in _chunks(rows, dtype):
            np.minimum(low, values.min(axis=0), out=low)
            np.maximum(high, values.max(axis=0), out=high)
            # NaN spreads through both, so checking these covers every value.
            if not (np.isfinite(low) & np.isfinite(high)).all():
                bad = ~np.isfinite(values)
                raise InputError(
                    f"{source.label}: {location(bad, num_rows)}: "
                    f"{rows[first:].flat[np.argmax(bad)]!s} has no place in int8 with a scale; "
                    "replace it, or use feature_dtype float16 or bfloat16"
                )
            sums += values.sum(axis=0, dtype=np.float64)
            if are_whole.any():
                are_whole &= (values == np.rint(values)).all(axis=0)
            num_rows += len(values)
        phase.advance(len(rows))
    if not num_rows:
        low[...] = high[...] = 0
    largest = np.maximum(-low, high)
    is_constant = np.asarray(low == high)
    scales = largest / np.float32(LARGEST)
    least = np.where(is_constant & (largest >= _SMALLEST), largest, _SMALLEST)
    scales = np.where(scales < _SMALLEST, least, scales)
    found: Floats = np.where(are_whole & (largest <= LARGEST), 1, scales).astype(np.float32)
    means: Floats = np.asarray(sums / max(1, num_rows) / found, np.float32)
    return Columns(found, means, is_constant, low)


class Quantizer:
    """Turns rows, from the first to the last, into multiples; then `errors` are measured."""

    def __init__(self, columns: Columns, dtype: str) -> None:
        self._columns = columns
        self._dtype = dtype
        self._decoded = decoded_dtype(dtype)
        self._errors = _ErrorSums(columns)

    def __call__(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
        """Return the multiples of rows, int8."""
        found, scales = np.empty(rows.shape, np.int8), self._columns.scales
        for first, values in _chunks(rows, self._dtype):
            units = values / scales
            # x / (x / 127) may round to just above 127.
            near = np.clip(np.rint(units), -LARGEST, LARGEST)
            found[first : first + len(values)] = near
            is_rounded = self._decoded != "float32"
            self._errors.add(units, self._shown(near) / scales if is_rounded else near)
        return found

    def _shown(self, multiples: Floats) -> Floats:
        return _rounded(multiples * self._columns.scales, self._decoded)

    def errors(self) -> Sums:
        """Return the root mean square of (decoded - input) / the standard deviation, by column.

        In a constant column it is the relative difference, if it is more than rounding.
        """
        units = self._columns.lowest / self._columns.scales
        return self._errors.by_column(self._shown(np.rint(units)))


def float16_errors(source: ArraySource, dtype: str, columns: Columns) -> Sums:
    """Return the errors of an attribute's columns as float16."""
    sums = _ErrorSums(columns)
    for rows in read_ahead(source.pieces()):
        for _, values in _chunks(rows, dtype):
            units = values / columns.scales
            sums.add(units, _rounded(values, "float16") / columns.scales)
    return sums.by_column(_rounded(columns.lowest, "float16"))


def summary_of(errors: Sums) -> ScaleError:
    """Return the largest error and the median one, with four digits."""
    worst, column = float(errors.max()), int(errors.argmax())
    median = float(np.median(errors))
    return ScaleError(float(f"{worst:.4g}"), column, float(f"{median:.4g}"))


def column_name(row_shape: tuple[int, ...], column: int) -> str:
    """Return the place of a column, numbered in C order, in a row."""
    return ", ".join(str(int(place)) for place in np.unravel_index(column, row_shape))


class _ErrorSums:
    """Sums over the rows, by column, in units of the scales: float32 cannot overflow."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._num_rows = 0
        self._off, self._sums, self._squares = (np.zeros(columns.scales.shape) for _ in range(3))

    def add(self, units: Floats, shown: Floats) -> None:
        """Add rows, and what is shown of them."""
        with np.errstate(over="ignore", invalid="ignore"):  # float16's infinities
            self._off += np.square(shown - units).sum(axis=0, dtype=np.float64)
        units = units - self._columns.means
        self._sums += units.sum(axis=0, dtype=np.float64)
        self._squares += np.square(units).sum(axis=0, dtype=np.float64)
        self._num_rows += len(units)

    def by_column(self, shown: Floats) -> Sums:
        """Return the errors; `shown` is what is shown of a row of the lowest values."""
        own = self._columns
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            squares = np.maximum(self._squares - self._sums**2 / max(1, self._num_rows), 0)
            errors = np.where(self._off > 0, np.sqrt(self._off / squares), 0.0)
            lowest = own.lowest.astype(np.float64)
            relative = np.where(lowest == 0, 0.0, np.abs((shown - lowest) / lowest))
        relative[...] = np.where(relative <= _EXACT, 0, relative)
        return np.minimum(np.where(own.is_constant, relative, errors), _HUGE)


def location(bad: npt.NDArray[np.bool_], first_row: int) -> str:
    """Return the row and the column of the first value that is bad."""
    row, *columns = np.unravel_index(int(np.argmax(bad)), bad.shape)
    column = ", ".join(map(str, columns))
    return f"row {first_row + int(row)}" + (f", column {column}" if column else "")


def _chunks(rows: npt.NDArray[Any], dtype: str) -> Iterator[tuple[int, Floats]]:
    """Yield rows as float32, a few at a time, and the place of the first."""
    step = max(1, _CHUNK_VALUES * len(rows) // max(1, rows.size))
    for first in range(0, len(rows), step):
        yield first, _to_float32(rows[first : first + step], dtype)


def _to_float32(rows: npt.NDArray[Any], dtype: str) -> Floats:
    if dtype == "bfloat16":
        return from_bfloat16_bits(rows)
    with np.errstate(over="ignore"):  # what overflows is infinite, and refused as such
        return rows.astype(np.float32, copy=False)


def _rounded(values: Floats, dtype: Literal["float16", "bfloat16", "float32"]) -> Floats:
    if dtype == "bfloat16":
        return from_bfloat16_bits(to_bfloat16_bits(values))
    with np.errstate(over="ignore"):
        return values.astype(dtype).astype(np.float32)
