"""Edges as arrays of pairs, [2, E] or [E, 2]: checked, and read in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

from gnnstore.converters.arrays.source import ArraySource
from gnnstore.converters.read_ahead import read_ahead
from gnnstore.errors import InputError

CHUNK_EDGES = 2**18


def check_edge_index(source: ArraySource) -> None:
    """Raise unless an array can be `edge_index` [2, E].

    Raises
    ------
    InputError
        If it has another shape, or holds no integers.
    """
    if len(source.shape) != 2 or source.shape[0] != 2:
        hint = "; transpose it" if source.shape[1:] == (2,) else ""
        raise InputError(
            f"{source.label}: has shape {list(source.shape)}, expected [2, E]: sources above "
            f"targets{hint}"
        )
    check_integers(source)


def check_integers(source: ArraySource) -> None:
    """Raise unless an array holds integers."""
    if source.dtype.kind not in "iu":
        raise InputError(
            f"{source.label}: has the element type {source.dtype}, expected integers: node ids "
            "are never fractions or NaN"
        )


def edge_pairs(
    source: ArraySource, *, by_row: bool = False
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield sources and targets of an array [2, E], or [E, 2] if edges lie by row."""
    if by_row:
        for rows in read_ahead(source.rows(CHUNK_EDGES)):
            yield rows[:, 0], rows[:, 1]
    else:
        for columns in read_ahead(source.columns(CHUNK_EDGES)):
            yield columns[0], columns[1]
