"""Fills slots with the rows that batches need most, in the order of the table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts, empty
from gnnstore.features.source import RowSource

# Pinned rows and others are read together, in the order of the table, through a buffer of this many
# bytes, or a fraction of the pinned bytes: enough for many reads in flight.
_BUFFER_BYTES, _BUFFER_SHARE = 8 << 20, 64
# Without pinned rows: memory for sorting the ids of rows that are read straight into their slots.
_UNPINNED_BUFFER_BYTES = 2 << 20
# Of each row in the buffer: its id, place and slot.
_ROW_ON_ITS_WAY_BYTES = 4 * 8

# The places of a type's rows among those of all types, and its node ids there, ascending.
Part = tuple[slice, npt.NDArray[np.int64]]


def fill_slots(
    table: RowSource, slots: npt.NDArray[np.uint8], num_planned: int, planned: Part, kept: Part
) -> ReadCounts:
    """Read the first rows of planned slots, and pinned rows behind them, in one pass."""
    counts, row_bytes, num_pinned = ReadCounts(), table.row_bytes, len(slots) - num_planned
    (places, nodes), (pinned_places, pinned) = planned, kept
    first_pinned = num_planned + pinned_places.start
    num_bytes = _UNPINNED_BUFFER_BYTES
    if num_pinned:
        num_bytes = buffer_bytes(num_pinned * row_bytes, row_bytes)
    most = max(1, num_bytes // (2 * (row_bytes + _ROW_ON_ITS_WAY_BYTES)))
    buffer = empty((2 * most * row_bytes,), np.uint8)
    for begin, end, first, last in _merged(nodes, pinned, most):
        ids = np.concatenate([nodes[begin:end], pinned[first:last]])
        into = np.arange(len(ids), dtype=np.int32)
        into[: end - begin] += places.start + begin
        into[end - begin :] += first_pinned + first - (end - begin)
        order = np.argsort(ids, kind="stable")
        part = buffer[: len(ids) * row_bytes]
        counts += table.read_rows(ids[order], part.reshape(len(ids), row_bytes))
        if row_bytes:
            positions = np.arange(len(ids), dtype=np.int32)
            _core.copy_to_slots(part, positions, slots, into[order])
    return counts


def buffer_bytes(pinned_bytes: int, row_bytes: int) -> int:
    """Return the bytes of the buffer for pinned rows, with their ids, places and slots."""
    least = 2 * (row_bytes + _ROW_ON_ITS_WAY_BYTES)
    return max(least, min(_BUFFER_BYTES, pinned_bytes // _BUFFER_SHARE))


def _merged(
    a: npt.NDArray[np.int64], b: npt.NDArray[np.int64], most: int
) -> Iterator[tuple[int, int, int, int]]:
    """Cut two ascending arrays at the same values, into pieces of at most `most` of each."""
    begin = first = 0
    while begin < len(a) or first < len(b):
        some = [part for part in (a[begin : begin + most], b[first : first + most]) if len(part)]
        highest = min(part[-1] for part in some)
        end, last = (int(np.searchsorted(part, highest, side="right")) for part in (a, b))
        yield begin, end, first, last
        begin, first = end, last
