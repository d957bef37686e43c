"""Measures the rate at which this machine gathers rows, in some tenths of a second."""

from __future__ import annotations

from functools import lru_cache
from time import perf_counter

import numpy as np

from gnnstore.features.source import MemoryRows
from gnnstore.threads import for_each

# Bytes of the table, and of the gathered rows: far more than caches of processors hold.
_MOST_BYTES = 128 << 20
_LEAST_BYTES = 1 << 20
_ID_BYTES = 8
_SECONDS = 0.05
# Bytes that each thread gathers between two looks at the clock, so that its start does not count.
_TIMED_ROWS, _TIMED_BYTES = 1 << 16, 32 << 20


def gather_bandwidth(
    row_bytes: int, num_rows: int, batch_rows: float, *, num_threads: int, spare_bytes: int
) -> float:
    """Return the bytes a second that a thread gathers from random places, among several threads.

    A batch that does not fit the processor's cache takes two or three times as long as one that
    fits, and threads share the bandwidth of memory.
    """
    row_bytes = max(1, row_bytes)
    each_bytes = max(_LEAST_BYTES, min(_MOST_BYTES, spare_bytes // 8))
    wanted = min(batch_rows, each_bytes / num_threads / (row_bytes + _ID_BYTES))
    # Powers of 2, so that similar loaders share a measurement.
    table_rows = _rounded(min(num_rows, each_bytes // row_bytes))
    return _measured(row_bytes, table_rows, _rounded(int(wanted)), num_threads)


def _rounded(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


@lru_cache(maxsize=8)
def _measured(row_bytes: int, table_rows: int, batch_rows: int, num_threads: int) -> float:
    # Ones: all zeros would lie on one page, which the kernel shares.
    rows = MemoryRows.from_array(np.ones((table_rows, row_bytes), np.uint8))
    ids = np.random.default_rng(0).integers(0, table_rows, (num_threads, batch_rows))
    found = np.ones((num_threads, batch_rows, row_bytes), np.uint8)  # faults in its pages
    timed_rows = min(_TIMED_ROWS, -(-_TIMED_BYTES // row_bytes))
    repeats = -(-timed_rows // batch_rows)

    def gather(thread: int) -> None:
        for _ in range(repeats):
            rows.read_rows(ids[thread], found[thread])

    best, spent = float("inf"), 0.0
    while spent < _SECONDS:
        start = perf_counter()
        for_each(num_threads, num_threads, gather, "gnnstore-gather-rate")
        seconds = perf_counter() - start
        best, spent = min(best, seconds), spent + seconds
    return repeats * batch_rows * row_bytes / best
