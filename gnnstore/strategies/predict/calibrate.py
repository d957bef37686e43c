"""Measures the rate at which this machine gathers rows, in some tenths of a second."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from gnnstore.features.source import MemoryRows
from gnnstore.threads import for_each

# Bytes of the table, and of the gathered rows: far more than caches of processors hold.
_MOST_BYTES, _LEAST_BYTES = 128 << 20, 1 << 20
_ID_BYTES = 8
# Bytes that each thread gathers between two looks at the clock, so that its start does not count.
_TIMED_BYTES = 32 << 20
_ROUNDS = 3


def gather_bandwidth(
    row_bytes: int, num_rows: int, batch_rows: float, *, num_threads: int, spare_bytes: int
) -> float:
    """Return the bytes a second that a thread gathers from random places, among several threads.

    A batch that does not fit the processor's cache takes two or three times as long as one that
    fits, and threads share the bandwidth of memory.
    """
    row_bytes = max(1, row_bytes)
    each_bytes = max(_LEAST_BYTES, min(_MOST_BYTES, spare_bytes // 8))
    wanted = max(1, int(min(batch_rows, each_bytes / num_threads / (row_bytes + _ID_BYTES))))
    # Ones: all zeros would lie on one page, which the kernel shares.
    table = np.ones((max(1, min(num_rows, each_bytes // row_bytes)), row_bytes), np.uint8)
    rows = MemoryRows.from_array(table)
    ids = np.random.default_rng(0).integers(0, len(table), (num_threads, wanted))
    found = np.ones((num_threads, wanted, row_bytes), np.uint8)  # faults in its pages
    repeats = -(-_TIMED_BYTES // (wanted * row_bytes))
    repeats = min(repeats, -(-(1 << 16) // wanted))

    def gather(thread: int) -> None:
        for _ in range(repeats):
            rows.read_rows(ids[thread], found[thread])

    best = float("inf")
    for _ in range(_ROUNDS):
        start = perf_counter()
        for_each(num_threads, num_threads, gather, "gnnstore-gather-rate")
        best = min(best, perf_counter() - start)
    return repeats * wanted * row_bytes / best
