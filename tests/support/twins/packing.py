"""Packing in plain Python: which rows are packed for each batch, where they go, and the bytes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnstore import _core

CHUNK_ALIGNMENT_BYTES = 4096


def sort_misses(
    ids: NDArray[Any], slots: NDArray[np.int32]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return rows, positions, repeat targets and sources of a batch, as lists.

    The missed accesses are taken in the order of (row, position). Those that come first of
    their row stand apart from those that repeat one.
    """
    first: dict[int, int] = {}  # row -> position
    targets: list[int] = []
    sources: list[int] = []
    for row, k in sorted((row, k) for k, row in enumerate(ids.tolist()) if slots[k] < 0):
        if row in first:
            targets.append(k)
            sources.append(first[row])
        else:
            first[row] = k
    return list(first), list(first.values()), targets, sources


def packed_file(
    rows: NDArray[np.uint8],
    ids: NDArray[Any],
    offsets: NDArray[np.int64],
    slots: NDArray[np.int32],
) -> bytes:
    """Return the file that packing makes of a table's rows [N, row_bytes].

    Each batch has a chunk: its distinct missed rows in ascending order, and zeros up to a
    multiple of 4096 bytes.
    """
    chunks = []
    for begin, end in pairwise(offsets):
        missed = np.unique(ids[begin:end][slots[begin:end] < 0])
        chunk = rows[missed].tobytes()
        chunks.append(chunk + bytes(-len(chunk) % CHUNK_ALIGNMENT_BYTES))
    return b"".join(chunks)


def piece_crcs(
    file: bytes, offsets: Iterable[int], chunk_bytes: Iterable[int], piece_bytes: int
) -> list[int]:
    """Return the crc32c of each piece of chunks that lie in a file, without the padding behind."""
    return [
        _core.crc32c_portable(np.frombuffer(file[place : min(place + piece_bytes, end)], np.uint8))
        for offset, end in ((o, o + n) for o, n in zip(offsets, chunk_bytes, strict=True))
        for place in range(offset, end, piece_bytes)
    ]


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
