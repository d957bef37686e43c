"""How packing shares out its memory, and the least that it needs.

It holds windows of the table, which are being read or copied; for each batch a buffer with the
rows that are to be written next; and the missed rows by id, of as large a range of ids as fits:
where there are more, one range is worked through after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import BudgetError
from gnnstore.io.direct_rows import DirectRows
from gnnstore.io.packed_rows import RUN_ALIGNMENT_BYTES
from gnnstore.units import format_at_least, format_size


@dataclass(frozen=True)
class Shares:
    """A few large windows and buffers, or less where memory is short.

    Attributes
    ----------
    num_windows : int
        Parts of the table that are being read or copied.
    extra_window_bytes : int
        What a window holds above the least.
    buffer_bytes : int
        What is collected of a batch before it is written.
    num_spare_buffers : int
        Buffers that are being written.
    """

    num_windows: int
    extra_window_bytes: int
    buffer_bytes: int
    num_spare_buffers: int

    def window_bytes(self, table: DirectRows) -> int:
        """Return the size of a window of a table."""
        least = _core.min_pack_window_bytes(table.files, **place_of(table))
        unit = RUN_ALIGNMENT_BYTES
        return -(-(least + self.extra_window_bytes) // unit) * unit

    def num_bytes(self, table: DirectRows, num_batches: int) -> int:
        """Return the memory for windows and buffers."""
        windows = self.num_windows * self.window_bytes(table)
        return windows + (num_batches + self.num_spare_buffers) * self.buffer_bytes


# From the most memory to the least; the first that fits is taken. Writes of 256 KiB reach a
# disk's bandwidth (1.9 GB/s, as 1 MiB does), of 64 KiB three quarters of it.
_CHOICES = tuple(
    Shares(num_windows, extra_kib << 10, buffer_kib << 10, num_spare_buffers)
    for num_windows, extra_kib, num_spare_buffers, buffers in (
        (16, 768, 16, (256, 128, 64)),
        (8, 256, 8, (32, 16)),
        (3, 0, 4, (8, 4)),
    )
    for buffer_kib in buffers
)
_SMALLEST = _CHOICES[-1]
# At least an eighth of the rows at a time, if smaller buffers allow it: each range of ids costs
# some 20 ms in which nothing is read.
_MAX_RANGES = 8
# With fewer at a time, ranges of ids would be so short that their pages are read again for the
# next one. 64 KiB, or 128.
_LEAST_INDEXED_ROWS = 1 << 14


def place_of(table: DirectRows) -> dict[str, int]:
    """Return the arguments that tell the kernels where a table's rows lie, and how to read."""
    geometry = table.array.geometry
    return {
        "num_rows": table.num_rows,
        "row_bytes": geometry.row_bytes,
        "rows_per_page": geometry.rows_per_page,
        "page_stride_bytes": geometry.page_stride_bytes,
        "gap_bytes": table.engine.tuning.gap_bytes,
    }


def sorting_bytes(misses: npt.NDArray[np.int64], num_threads: int) -> int:
    """Return what sorting the misses of batches takes: keys of 8 bytes, twice."""
    return 16 * int(misses.max(initial=0)) * min(num_threads, len(misses))


def least_memory(
    tables: Mapping[str, DirectRows], misses: npt.NDArray[np.int64], id_bytes: int
) -> int:
    """Return the least `memory_bytes` that packing works with; with more it is faster.

    Parameters
    ----------
    tables : Mapping of str to DirectRows
    misses : ndarray of int64 [S]
        Missed rows of each batch. One that a batch has twice counts twice here, and takes 4
        bytes more.
    id_bytes : int
        4 or 8, as the trace has them.
    """
    num_batches, total = len(misses), int(misses.sum())
    kept = 4 * total + 16 * num_batches + 8
    indexed_bytes = id_bytes * _least_rows(num_batches, total)
    working = [_SMALLEST.num_bytes(t, num_batches) + indexed_bytes for t in tables.values()]
    return kept + max(sorting_bytes(misses, 1), *working)


def _least_rows(num_batches: int, total: int) -> int:
    """Return how many rows are sorted out at a time at least: all, or some of each batch."""
    return max(num_batches, min(total, _LEAST_INDEXED_ROWS), 1)


def share_out(
    table: DirectRows, num_rows: npt.NDArray[np.int64], id_bytes: int, memory_bytes: int
) -> tuple[Shares, int]:
    """Decide how memory is used while a table is packed.

    Parameters
    ----------
    table : DirectRows
    num_rows : ndarray of int64 [S]
        Rows that are packed for each batch.
    id_bytes : int
        4 or 8, as the trace has them.
    memory_bytes : int
        What there is, less what is kept afterwards.

    Returns
    -------
    Shares
    max_indexed_rows : int
        Rows of all batches that are sorted out at a time.

    Raises
    ------
    BudgetError
        If there is too little.
    """
    num_batches, total = len(num_rows), int(num_rows.sum())
    least = _least_rows(num_batches, total)
    for shares in _CHOICES:
        rows = (memory_bytes - shares.num_bytes(table, num_batches)) // id_bytes
        wanted = 0 if shares is _SMALLEST else total // _MAX_RANGES
        if rows >= max(least, wanted):
            return shares, min(rows, max(total, least))
    missing = _SMALLEST.num_bytes(table, num_batches) + id_bytes * least - memory_bytes
    raise too_little_memory(num_batches, memory_bytes, missing)


def too_little_memory(num_batches: int, memory_bytes: int, missing_bytes: int) -> BudgetError:
    """Return that packing needs more memory than there is."""
    return BudgetError(
        f"packing the rows of {num_batches} batches needs {format_at_least(missing_bytes)} more "
        f"than the {format_size(max(memory_bytes, 0))} of memory that are left for it; raise the "
        "memory budget, or make superbatches smaller"
    )
