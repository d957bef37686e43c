"""Measures the disk on a file of the store, between the runs of strategies.

Nothing is written, and it takes a second: a shared disk changes from minute to minute, so the
limits that strategies are compared with have to be of the same minute.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnstore import _core
from gnnstore.disk.engines import choose_engine
from gnnstore.disk.profile.rates import ReadRate, at_random, in_sequence
from gnnstore.errors import storage_errors

if TYPE_CHECKING:
    from gnnstore.formats.arrays.paged_array import PagedArray

_BLOCK_BYTES = 4 << 10
_LARGE_BYTES = 1 << 20
_RANDOM_DEPTHS = (64, 128, 256)
_LARGE_DEPTH = 8
_SLICE_SECONDS = 0.2


@dataclass(frozen=True)
class DeviceLimits:
    """Speed of a disk by one measurement."""

    random_reads_per_second: float  # of 4 KiB, at the best of some queue depths
    bytes_per_second: float  # in order, in large blocks
    engine: str  # engine that read
    is_direct: bool  # whether reads bypassed the page cache
    seconds: float  # duration of the measurement


def measure_device(array: PagedArray) -> DeviceLimits:
    """Read some of the largest file of an array, at random and in order."""
    started = time.perf_counter()
    sizes = array.body_bytes
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    path, num_bytes = array.file_paths[largest], sizes[largest]
    engine = choose_engine(path).name
    # Page faults have no queue; threads with pread are there everywhere.
    engine = "pread" if engine == "mmap" else engine
    block = min(_BLOCK_BYTES, 1 << (num_bytes.bit_length() - 1))
    large = min(_LARGE_BYTES, 1 << (num_bytes.bit_length() - 1))
    with storage_errors("measure the disk on", path):
        files = _core.FileSet([str(path)], [num_bytes])
        random = max(
            ReadRate(
                files, engine, block_bytes=block, depth=depth, draw=at_random(num_bytes, block)
            ).measure(_SLICE_SECONDS)
            for depth in _RANDOM_DEPTHS
        )
        in_order = ReadRate(
            files,
            engine,
            block_bytes=large,
            depth=_LARGE_DEPTH,
            draw=in_sequence(num_bytes, large),
            max_reads=max(1, num_bytes // large),
        ).measure(_SLICE_SECONDS)
    return DeviceLimits(
        random, in_order * large, engine, files.is_direct, time.perf_counter() - started
    )
