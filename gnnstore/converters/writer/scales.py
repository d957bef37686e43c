"""Attributes of nodes as multiples of scales: int8, with a scale per column, and its error.

x is stored as rint(x / scale), where the scale is the column's largest magnitude / 127. The first
pass over an attribute finds the scales, the second one rounds to multiples and measures by how much
the decoded values differ from the input. Inputs that float32 does not hold are measured in float64.
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

LARGEST = 127  # largest value; -128 is left out, so that negating never overflows
MAX_ERROR = 0.05  # largest error, as a share of a column's standard deviation
MAX_LOST = 0.5  # largest share of a column's values that become 0, but were not
_SMALLEST = np.finfo(np.float32).tiny  # smallest scale that has enough bits to divide by
_EXACT = 2.0**-22  # relative error of a constant column that is rounding alone
_HUGE = 1e9  # larger errors are reported as this one
# Values of a chunk: intermediate results stay in a core's cache, and 16 bits count the rows.
_CHUNK_VALUES = 2**16 - 1

Floats = npt.NDArray[np.float32]
Measured = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Sums = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Columns:
    """What the first pass finds; all arrays have the shape of a row."""

    scales: Floats
    means: Measured  # in units of the scales
    is_constant: npt.NDArray[np.bool_]
    lowest: Measured
    largest: Floats  # magnitudes

    def cause_of_error(self, place: tuple[int, ...]) -> tuple[str, str]:
        """Return why multiples differ much from a column's values, and what to do about it."""
        if self.scales[place] == _SMALLEST:
            largest = f"its largest magnitude is {self.largest[place]:.3g}"
            return f"{largest}, and scales are at least 2^-126", "multiply it by a constant"
        if abs(float(self.means[place])) > LARGEST / 2:
            return "its mean is far above that deviation", "subtract it"
        return "its largest magnitude is far above that deviation", ""


def decoded_dtype(dtype: str) -> DecodedDtype:
    """Return the type that batches have of an attribute whose input has some type."""
    found: dict[str, DecodedDtype] = {"float16": "float16", "bfloat16": "bfloat16"}
    return found.get(dtype, "float32")


def find_columns(source: ArraySource, dtype: str, phase: Phase) -> Columns:
    """Return the scales of an attribute's columns; refuse NaN and infinities."""
    low = high = np.zeros(source.shape[1:], np.float32)
    sums, are_whole = np.zeros(low.shape), np.ones(low.shape, np.bool_)
    num_rows = 0
    for rows in read_ahead(source.pieces()):
        for _, own in _chunks(rows, dtype):
            values = _measured(own)
            # Large integers in the type of the input, since they differ in no other.
            compared = own if own.dtype.kind in "iu" else values
            least, most = compared.min(axis=0), compared.max(axis=0)
            low = np.minimum(low, least) if num_rows else least
            high = np.maximum(high, most) if num_rows else most
            # NaN spreads through both, so checking these covers every value.
            if not (_is_held(low) & _is_held(high)).all():
                raise InputError(f"{source.label}: {_refusal(own, num_rows)}")
            sums += values.sum(axis=0, dtype=np.float64)
            if are_whole.any():
                are_whole &= (values == np.rint(values)).all(axis=0)
            num_rows += len(values)
        phase.advance(len(rows))
    is_constant = np.asarray(low == high)
    lowest, highest = _measured(low), _measured(high)
    largest: Floats = np.asarray(np.maximum(-lowest, highest), np.float32)
    scales = largest / np.float32(LARGEST)
    with np.errstate(over="ignore"):
        overflows = np.isinf(scales * np.float32(LARGEST))  # the division rounded up
    scales = np.where(overflows, np.nextafter(scales, np.float32(0)), scales)
    least = np.where(is_constant & (largest >= _SMALLEST), largest, _SMALLEST)
    scales = np.where(scales < _SMALLEST, least, scales)
    found: Floats = np.where(are_whole & (largest <= LARGEST), 1, scales).astype(np.float32)
    means: Any = (sums / max(1, num_rows) / found).astype(lowest.dtype)
    return Columns(found, means, is_constant, lowest, largest)


def _is_held(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which values are finite as float32."""
    with np.errstate(over="ignore"):
        return np.isfinite(values.astype(np.float32))


def _refusal(own: npt.NDArray[Any], first_row: int) -> str:
    """Return the place of the first value that no multiple is near to, and what to do."""
    bad = ~_is_held(own)
    value = own.flat[np.argmax(bad)]
    problem = "has no place in int8 with a scale; replace it, or use feature_dtype float16"
    if np.isfinite(value):
        problem = "is beyond float32, which scales have; rescale the data"
    else:
        problem += " or bfloat16"
    return f"{location(bad, first_row)}: {value!s} {problem}"


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
        for first, own in _chunks(rows, self._dtype):
            values = _measured(own)
            units = values / scales
            # x / (x / 127) may round to just above 127.
            near = np.clip(np.rint(units), -LARGEST, LARGEST).astype(np.float32, copy=False)
            found[first : first + len(values)] = near
            shown = near if self._decoded == "float32" else self._shown(near) / scales
            self._errors.add(values, units, shown)
        return found

    def _shown(self, multiples: Floats) -> Floats:
        return _rounded(multiples * self._columns.scales, self._decoded)

    def errors(self) -> Sums:
        """Return the root mean square of (decoded - input) / the standard deviation, by column.

        In a constant column it is the relative difference, if it is more than rounding.
        """
        units = np.rint(self._columns.lowest / self._columns.scales)
        return self._errors.by_column(self._shown(units.astype(np.float32, copy=False)))

    def lost(self) -> Sums:
        """Return the share of the values that are not 0 whose decoded value is, by column."""
        return self._errors.lost()


def float16_errors(source: ArraySource, dtype: str, columns: Columns) -> Sums:
    """Return the errors of an attribute's columns as float16."""
    sums = _ErrorSums(columns)
    for rows in read_ahead(source.pieces()):
        for _, own in _chunks(rows, dtype):
            values = _measured(own)
            with np.errstate(over="ignore"):  # float16's infinities
                shown = _rounded(values, "float16") / columns.scales
            sums.add(values, values / columns.scales, shown)
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
        self._off, self._squares = (np.zeros(columns.scales.shape) for _ in range(2))
        # Values that are not 0, and decoded ones that are not.
        self._some, self._kept = (np.zeros(columns.scales.shape, np.int64) for _ in range(2))

    def add(self, values: Measured, units: Measured, shown: Floats) -> None:
        """Add rows; and in units of the scales the same, and what is shown of them."""
        with np.errstate(over="ignore", invalid="ignore"):  # float16's infinities
            self._off += _squares(shown - units)
        self._some += _count(values != 0)
        self._kept += _count(shown != 0)
        self._squares += _squares(units - self._columns.means)

    def by_column(self, shown: Floats) -> Sums:
        """Return the errors; `shown` is what is shown of a row of the lowest values."""
        own = self._columns
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # A deviation that is lost in rounding is 0 here.
            errors = np.where(self._squares > 0, np.sqrt(self._off / self._squares), np.inf)
            lowest = own.lowest.astype(np.float64)
            relative = np.where(lowest == 0, 0.0, np.abs((shown - lowest) / lowest))
        relative[...] = np.where(relative <= _EXACT, 0, relative)
        return np.minimum(np.where(own.is_constant, relative, errors), _HUGE)

    def lost(self) -> Sums:
        """Return the share of the values that are not 0 of which 0 is shown."""
        return np.asarray(1 - self._kept / np.maximum(1, self._some) - (self._some == 0))


def _squares(values: Measured) -> Sums:
    return np.asarray(np.square(values).sum(axis=0, dtype=np.float64))


def _count(chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint16]:
    return np.asarray(chosen.sum(axis=0, dtype=np.uint16))


def location(bad: npt.NDArray[np.bool_], first_row: int) -> str:
    """Return the row and the column of the first value that is bad."""
    row, *columns = np.unravel_index(int(np.argmax(bad)), bad.shape)
    column = ", ".join(map(str, columns))
    return f"row {first_row + int(row)}" + (f", column {column}" if column else "")


def _chunks(rows: npt.NDArray[Any], dtype: str) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield rows in a type of NumPy, a few at a time, and the place of the first."""
    step = max(1, _CHUNK_VALUES * len(rows) // max(1, rows.size))
    for first in range(0, len(rows), step):
        own = rows[first : first + step]
        yield first, from_bfloat16_bits(own) if dtype == "bfloat16" else own


def _measured(own: npt.NDArray[Any]) -> Measured:
    """Return values as float32 if it holds all of their type, else as float64."""
    is_narrow = np.can_cast(own.dtype, np.float32)
    if is_narrow:
        return own.astype(np.float32, copy=False)
    return own.astype(np.float64, copy=False)


def _rounded(values: Measured, dtype: Literal["float16", "bfloat16", "float32"]) -> Floats:
    with np.errstate(over="ignore"):
        if dtype == "bfloat16":
            return from_bfloat16_bits(to_bfloat16_bits(values.astype(np.float32, copy=False)))
        return values.astype(dtype, copy=False).astype(np.float32, copy=False)
