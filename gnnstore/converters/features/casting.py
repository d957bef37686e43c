"""Change the element type of features on their way into a store, and never silently their value.

Rounding a float to a narrower float is what the user asked for; turning a finite value into
infinity, or an integer into another one, is damage, and stops the conversion.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import (
    STORAGE_DTYPES,
    from_bfloat16_bits,
    storage_dtype,
    to_bfloat16_bits,
)


class Caster:
    """Casts pieces of one attribute from the type they come in to the type they are stored in.

    Parameters
    ----------
    name : str
        The attribute's name, for messages.
    source, target : str
        Element types by their names in a store ("float32", "bfloat16", ...).

    Raises
    ------
    InputError
        If a store cannot hold either type.
    """

    def __init__(self, name: str, source: str, target: str) -> None:
        storage_dtype(source, what=f"the attribute {name!r}")
        storage_dtype(target, what=f"the attribute {name!r}")
        self.name = name
        self.source = source
        self.target = target
        self._rows_done = 0

    def skip(self, num_rows: int) -> None:
        """Count rows that need no cast, so that messages name the right ones after them."""
        self._rows_done += num_rows

    def __call__(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return rows in the storage type of the target.

        Parameters
        ----------
        rows : ndarray [k, ...]
            In the storage type of the source; bfloat16 as its bits.

        Raises
        ------
        InputError
            Naming the row and the value that the target cannot hold.
        """
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
        # Infinities are rare: look for their cause only where there is one.
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
            changed |= ~np.isfinite(values) | (np.abs(values) >= 2.0**63)
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
