"""Reads the rows of one input in the pieces that another one comes in: edges with attributes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.arrays.source import ArraySource
from gnnstore.errors import InputError

_STEP_BYTES = 2**23


class RowTaker:
    """Hands out the rows of an array, as many at a time as are asked for.

    Parameters
    ----------
    source : ArraySource
        The attribute, a row per edge.
    """

    def __init__(self, source: ArraySource) -> None:
        if not source.shape:
            raise InputError(f"{source.label}: is a single value; expected a row for each edge")
        self.source = source
        row_bytes = source.dtype.itemsize * math.prod(source.shape[1:])
        self._pieces = source.rows(max(1, _STEP_BYTES // max(1, row_bytes)))
        self._held: list[npt.NDArray[Any]] = []
        self._num_held = 0
        self._num_taken = 0

    def take(self, num_rows: int) -> npt.NDArray[Any]:
        """Return the next rows [num_rows, ...].

        Raises
        ------
        InputError
            If there are not so many.
        """
        while self._num_held < num_rows:
            piece = next(self._pieces, None)
            if piece is None:
                self.check(self._num_taken + num_rows, "at least ")
                raise AssertionError("the source ended before its shape does")
            self._held.append(piece)
            self._num_held += len(piece)
        empty = np.empty((0, *self.source.shape[1:]), self.source.dtype)
        rows = self._held[0] if len(self._held) == 1 else np.concatenate([empty, *self._held])
        self._held = [rows[num_rows:]]
        self._num_held -= num_rows
        self._num_taken += num_rows
        return rows[:num_rows]

    def finish(self, num_edges: int) -> None:
        """Raise unless that was all, and read on to the end, where sources are checked."""
        self.check(num_edges)
        for _ in self._pieces:
            raise AssertionError("the source goes on after its shape ends")

    def check(self, num_edges: int, least: str = "") -> None:
        """Raise unless there is a row for each of so many edges."""
        if self.source.shape[0] != num_edges:
            raise InputError(
                f"{self.source.label}: has {self.source.shape[0]} rows, but there are "
                f"{least}{num_edges} edges; every edge needs exactly one row"
            )
