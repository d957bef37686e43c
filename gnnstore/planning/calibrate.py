"""Measures the rate at which this machine gathers rows, in some hundredths of a second."""

from __future__ import annotations

from functools import lru_cache
from time import perf_counter

import numpy as np

from gnnstore.features.memory import MemoryRows

# Far more than caches hold, if there is room for it.
_TABLE_BYTES = 64 << 20
_LEAST_BYTES = 1 << 20
_ROWS = 1 << 15
_SECONDS = 0.03


def gather_bandwidth(row_bytes: int, spare_bytes: int) -> float:
    """Return the bytes a second that one thread gathers from random places in memory.

    Parameters
    ----------
    spare_bytes : int
        Free memory, of which a quarter may be taken for a while.
    """
    table_bytes = max(_LEAST_BYTES, min(_TABLE_BYTES, spare_bytes // 4))
    return _measured(max(1, row_bytes), 1 << (table_bytes.bit_length() - 1))


@lru_cache(maxsize=8)
def _measured(row_bytes: int, table_bytes: int) -> float:
    num_rows = max(1, table_bytes // row_bytes)
    # Ones: zeros would all lie on the one page that the kernel keeps of them.
    rows = MemoryRows.from_array(np.ones((num_rows, row_bytes), np.uint8))
    wanted = max(1, min(_ROWS, table_bytes // 4 // row_bytes))
    ids = np.random.default_rng(0).integers(0, num_rows, wanted)
    best, spent = float("inf"), 0.0
    rows.gather(ids)  # faults in the pages, and the buffer that is used again
    while spent < _SECONDS:
        start = perf_counter()
        rows.gather(ids)
        seconds = perf_counter() - start
        best, spent = min(best, seconds), spent + seconds
    return wanted * row_bytes / best
