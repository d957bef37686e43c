"""Checks and reads node ids, alone or as pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.files import FileArray
from gnnstore.converters.inputs.source import ArraySource, read_ahead
from gnnstore.errors import InputError

_CHUNK_BYTES = 2**22
# Targets are sampled in at most this many places, a kilobyte or two in each.
_MAX_GLIMPSES, _GLIMPSE_TARGETS = 2**12, 2**8

# More than any disk has bytes: a larger id or count is garbage, not a graph.
MAX_NODES = 2**48


def check_ids(ids: npt.NDArray[Any], limit: int | None, what: str, first_position: int = 0) -> int:
    """Return the largest of some ids, -1 if there are none."""
    if ids.dtype.kind not in "iu":
        raise InputError(f"{what}: has the element type {ids.dtype}; ids are integers")
    if not len(ids):
        return -1
    low, high = int(ids.min()), int(ids.max())
    if low >= 0 and (limit is None or high < limit):
        return high
    bad = (ids < 0) if limit is None else (ids < 0) | (ids >= limit)
    position = int(np.argmax(bad))
    allowed = f"[0, {limit}): there are {limit} nodes" if limit is not None else "[0, 2^63)"
    raise InputError(
        f"{what} {int(ids[position])} at position {first_position + position} is outside {allowed}"
    )


def check_edge_index(source: ArraySource) -> None:
    """Raise unless an array can be `edge_index` [2, E]."""
    if len(source.shape) != 2 or source.shape[0] != 2:
        raise InputError(
            f"{source.label}: has shape {list(source.shape)}, expected [2, E]: sources above "
            "targets"
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
    num_edges = _CHUNK_BYTES // (2 * source.dtype.itemsize)
    if by_row:
        for rows in read_ahead(source.rows(num_edges)):
            yield rows[:, 0], rows[:, 1]
    else:
        for columns in read_ahead(source.columns(num_edges)):
            yield columns[0], columns[1]


def glimpses(num_targets: int) -> Iterator[slice]:
    """Yield the places of a sample, all over a number of targets."""
    step = max(_GLIMPSE_TARGETS, num_targets // _MAX_GLIMPSES)
    for begin in range(0, num_targets, step):
        yield slice(begin, min(begin + _GLIMPSE_TARGETS, num_targets))


def some_targets(source: ArraySource) -> Iterator[npt.NDArray[Any]] | None:
    """Return targets from all over an array [2, E]; None if they do not lie together in a file."""
    if not isinstance(source, FileArray) or source.fortran_order:
        return None
    return source.look_at(1, glimpses(source.shape[1]))


def columns_of_edges(
    first: int, indptr: npt.NDArray[np.int64], max_edges: int
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the edges of consecutive columns as (first edge, column of each edge), in pieces."""
    for begin in range(int(indptr[0]), int(indptr[-1]), max_edges):
        end = min(begin + max_edges, int(indptr[-1]))
        # Edge e is of the column v with indptr[v] <= e < indptr[v + 1].
        low, high = np.searchsorted(indptr, (begin, end - 1), side="right") - 1
        bounds = np.clip(indptr[low : high + 2], begin, end)
        yield begin, np.repeat(np.arange(first + low, first + high + 1), np.diff(bounds))
