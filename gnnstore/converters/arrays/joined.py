"""Joins arrays end to end: data sets that many processes wrote come in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy.typing as npt

from gnnstore.converters.arrays.source import ArraySource, SequentialArray
from gnnstore.errors import InputError


class JoinedArrays(SequentialArray):
    """Arrays of like rows, joined along their first axis.

    Raises
    ------
    InputError
        Naming the first part whose rows are not like those of the first.
    """

    def __init__(self, parts: Sequence[ArraySource]) -> None:
        first = parts[0]
        for part in parts:
            if part.shape[1:] != first.shape[1:] or not part.shape or part.dtype != first.dtype:
                raise InputError(
                    f"{part.label}: is {_describe(part)}, but {first.label} is "
                    f"{_describe(first)}; files of one array need rows of the same shape and type"
                )
        self.label = f"{first.label} to {parts[-1].label}"
        self.shape: tuple[int, ...] = (sum(part.shape[0] for part in parts), *first.shape[1:])
        self.dtype = first.dtype
        self._parts = parts

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time, never across a part's end."""
        for part in self._parts:
            if start < part.shape[0]:
                yield from part.rows(step, start)
            start = max(0, start - part.shape[0])


def _describe(part: ArraySource) -> str:
    if not part.shape:
        return f"a single {part.dtype}"
    return f"an array of {part.dtype} with rows of shape {list(part.shape[1:])}"
