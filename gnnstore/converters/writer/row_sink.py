"""Where the rows of a large attribute go: cast on their way, and skipped if they are there."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from gnnstore.converters.features.casting import Caster
from gnnstore.converters.features.scaling import ScalingCaster
from gnnstore.formats.arrays.paged_writer import PagedArrayWriter
from gnnstore.progress import Phase


class RowSink:
    """Takes the rows of one paged attribute, in any pieces, cast on their way."""

    def __init__(
        self, array: PagedArrayWriter, caster: Caster | ScalingCaster, phase: Phase
    ) -> None:
        self._array = array
        self._caster = caster
        self._phase = phase

    @property
    def num_committed_rows(self) -> int:
        """Rows, from the first, that an interrupted conversion has written already."""
        return self._array.num_committed_rows

    def skip(self, num_rows: int) -> int:
        """Pass over rows that are written already, instead of reading and appending them.

        Parameters
        ----------
        num_rows : int
            How many rows come next.

        Returns
        -------
        int
            How many of them count as appended now; the others are still to come.
        """
        known = self._array.skip(num_rows)
        self._caster.skip(known)
        self._phase.advance(known)
        return known

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Append rows [k, *row_shape] in the type they were announced with.

        Those that are written already are neither cast nor written.

        Raises
        ------
        InputError
            If there are more than announced, their shape differs, or a value cannot be cast.
        """
        rows = rows[self.skip(len(rows)) :]
        if len(rows):
            self._array.append(self._caster(rows))
            self._phase.advance(len(rows))
