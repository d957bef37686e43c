"""Packing in plain Python: which rows are packed for each batch, where they go, and the bytes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

RUN_ALIGNMENT_BYTES = 4096


def index_misses(
    ids: NDArray[Any], offsets: NDArray[np.int64], slots: NDArray[np.int32]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return what `_core.index_misses` returns, as lists: positions, begins, rows, sources.

    The missed accesses of a batch are taken in the order of (row, position). Those that come
    first of their row stand before those that repeat one.
    """
    positions: list[int] = []
    sources: list[int] = []
    begins, num_rows = [0], []
    for begin, end in pairwise(offsets.tolist()):
        first: dict[int, int] = {}  # row -> position
        repeats = []
        for row, k in sorted(
            (row, k)
            for k, (row, slot) in enumerate(
                zip(ids[begin:end].tolist(), slots[begin:end].tolist(), strict=True)
            )
            if slot < 0
        ):
            if row in first:
                repeats.append(k)
                sources.append(first[row])
            else:
                first[row] = k
        positions += [*first.values(), *repeats]
        num_rows.append(len(first))
        begins.append(len(positions))
    return positions, begins, num_rows, sources


def packed_file(
    rows: NDArray[np.uint8],
    ids: NDArray[Any],
    offsets: NDArray[np.int64],
    slots: NDArray[np.int32],
) -> bytes:
    """Return the file that packing makes of a table's rows [N, row_bytes].

    Each batch has a run: its distinct missed rows in ascending order, and zeros up to a
    multiple of 4096 bytes.
    """
    runs = []
    for begin, end in pairwise(offsets):
        missed = np.unique(ids[begin:end][slots[begin:end] < 0])
        run = rows[missed].tobytes()
        runs.append(run + bytes(-len(run) % RUN_ALIGNMENT_BYTES))
    return b"".join(runs)


def needed_pages(
    ids: NDArray[Any],
    slots: NDArray[np.int32],
    *,
    row_bytes: int,
    rows_per_page: int,
    page_stride_bytes: int,
) -> int:
    """Return how many blocks of 4096 bytes of a table hold missed rows of any batch."""
    missed = np.unique(ids[slots < 0]).astype(np.int64)
    begins = missed // rows_per_page * page_stride_bytes + missed % rows_per_page * row_bytes
    blocks: set[int] = set()
    for begin in begins.tolist():
        blocks.update(range(begin // 4096, (begin + row_bytes - 1) // 4096 + 1))
    return len(blocks)
