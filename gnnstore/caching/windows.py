"""The order of the batches of a window, in which neighbours share rows (FastGL, section 4.1).

A row that the batch before has had is on the device already. Inside a window of some batches that
are sampled ahead, the next batch is the one with the largest match to the last, |N_i & N_j| of the
smaller one's distinct rows. The order depends on these rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core

_WORD_BITS = 64
# Most memory of a table for each of its ids, in ids (see `_core.places_of`).
_TABLE_IDS = 8


def working_bytes(num_rows: int, batch_rows: int, id_bytes: int) -> int:
    """Return the bytes that `distinct` and `overlaps` take besides rows and results, at most.

    That is the bitmap of so many rows in the graph, and of a batch either a table of its rows and
    their places, or its rows and their words as int64, and the rows that another batch has alone.
    """
    of_row = max(_TABLE_IDS * id_bytes + 4 + 8 + 1, 8 + 8 + id_bytes)
    return _num_words(num_rows) * 8 + batch_rows * of_row


def match_bytes(id_bytes: int) -> int:
    """Return what each node of a batch takes while it is looked for in the batch before, at most.

    That is the table of the nodes of the one before, and the places and the ids that are left.
    """
    return _TABLE_IDS * id_bytes + 4 + 1 + 2 * id_bytes


def overlaps(
    batches: Sequence[npt.NDArray[Any]],
    num_rows: int,
    check: Callable[[], None] = lambda: None,
) -> npt.NDArray[np.int64]:
    """Return the number of rows that each two batches share, int64 [n, n].

    Batches have distinct rows (int32 or int64), as `distinct` returns them, below `num_rows`. Each
    is compared with all after it; `check` is called before, and may raise.
    """
    shared = np.zeros((len(batches), len(batches)), np.int64)
    marks = np.zeros(_num_words(num_rows), np.uint64)
    for i, rows in enumerate(batches):
        check()
        wide = rows.astype(np.int64, copy=False)
        _core.bitmap_mark(marks, wide)
        shared[i, i] = len(rows)
        for j in range(i + 1, len(batches)):
            others = batches[j]
            shared[i, j] = shared[j, i] = len(others) - len(_core.drop_pinned(marks, others))
        marks[wide // _WORD_BITS] = 0
    return shared


def distinct(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the rows of a batch (int32 or int64) once each, in the order of their first places.

    Rows that do not repeat are returned themselves.
    """
    is_first: npt.NDArray[np.bool_] = _core.places_of(rows, rows) == np.arange(len(rows))
    return rows if is_first.all() else np.compress(is_first, rows)


def window_order(shared: npt.NDArray[np.int64]) -> list[int]:
    """Return the order of a window's batches by the rows that they share, as `overlaps` counts.

    The first batch begins; then comes the one with the largest match to the last, of equal ones the
    first. If the plain order shares as many rows, it stays.
    """
    num_batches = len(shared)
    plain = list(range(num_batches))
    if num_batches < 3:
        return plain
    sizes = shared.diagonal()
    smaller = np.minimum.outer(sizes, sizes)
    match = shared / np.maximum(smaller, 1)
    order, is_left = [0], np.ones(num_batches, bool)
    is_left[0] = False
    while len(order) < num_batches:
        # A batch that was taken is never the best, not even where none shares a row with the last.
        order.append(int(np.where(is_left, match[order[-1]], -1.0).argmax()))
        is_left[order[-1]] = False
    return order if _kept(shared, order) > _kept(shared, plain) else plain


def _kept(shared: npt.NDArray[np.int64], order: list[int]) -> int:
    """Return the rows that batches share with the one before them."""
    return int(shared[order[:-1], order[1:]].sum())


def _num_words(num_rows: int) -> int:
    """Return the words of a bitmap of rows."""
    return -(-num_rows // _WORD_BITS)
