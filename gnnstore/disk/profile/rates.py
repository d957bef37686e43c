"""Measures the reads a second that a disk completes at a given queue depth.

The number is only valid if the queue is full all the time, so reads are submitted in slices that
are long compared to the queue.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from statistics import median_low
from time import perf_counter

import numpy as np
import numpy.typing as npt

from gnnstore import _core

# The queue fills at the beginning of a slice and runs empty at its end. With 16 times the depth in
# between, at most 1 read in 16 meets a shorter queue.
_READS_PER_DEPTH = 16
_WARM_UP_PER_DEPTH = 4
# With a place for each read in flight, the points of one measurement took 76 MB together.
_PLACES_BYTES = 2 << 20
# Ctrl-C waits for the kernel, so slices are short.
_MAX_SLICE_SECONDS = 0.5

# Returns the offsets of a number of reads, in bytes from the file's beginning.
Draw = Callable[[int], npt.NDArray[np.int64]]


def at_random(num_bytes: int, block_bytes: int) -> Draw:
    """Return a function that draws blocks of a file independently of each other."""
    rng = np.random.default_rng()
    num_blocks = num_bytes // block_bytes
    return lambda size: rng.integers(0, num_blocks, size) * block_bytes


def in_sequence(num_bytes: int, block_bytes: int) -> Draw:
    """Return a function that draws a file's blocks in order, and then again from the beginning."""
    num_blocks = num_bytes // block_bytes
    begin = 0

    def draw(size: int) -> npt.NDArray[np.int64]:
        nonlocal begin
        offsets = (begin + np.arange(size)) % num_blocks * block_bytes
        begin += size
        return offsets

    return draw


class ReadRate:
    """A measurement of reads of one size at one queue depth."""

    def __init__(
        self,
        files: _core.FileSet,
        engine: str,
        *,
        block_bytes: int,
        depth: int,
        draw: Draw,
        max_reads: int = 1 << 20,
    ) -> None:
        self._files = files
        self._engine = engine
        self._block_bytes = block_bytes
        self._depth = depth
        self._draw = draw
        self._max_reads = max_reads
        # Reads in flight share buffers: their content is not used, and loaders with little memory
        # measure too. Aligned to pages, for direct reads.
        self._num_places = max(1, min(2 * depth, _PLACES_BYTES // block_bytes))
        self._out = np.frombuffer(mmap.mmap(-1, self._num_places * block_bytes), np.uint8)

    @property
    def num_bytes(self) -> int:
        """Bytes of the buffers."""
        return self._out.nbytes

    @property
    def least_reads(self) -> int:
        """Number of reads in the shortest possible slice."""
        return (_WARM_UP_PER_DEPTH + _READS_PER_DEPTH) * self._depth

    def measure(self, seconds: float) -> float:
        """Return the reads per second of one slice that takes about `seconds`."""
        reader = self._open_reader()
        size = min(_WARM_UP_PER_DEPTH * self._depth, self._max_reads)
        elapsed = self._seconds_of(reader, size)
        wanted = int(size / elapsed * min(seconds - elapsed, _MAX_SLICE_SECONDS))
        size = min(max(wanted, _READS_PER_DEPTH * self._depth), self._max_reads)
        return size / self._seconds_of(reader, size)

    def glance(self, num_reads: int, seconds: float) -> float:
        """Return the median rate, in reads per second, of short slices of `num_reads` each.

        For checks that must be short on any disk: as many slices as fit in `seconds`, at least
        one; of two, the faster counts.
        """
        reader = self._open_reader()
        deadline = perf_counter() + seconds
        taken = [self._seconds_of(reader, num_reads)]
        # After a slice that stalled there may be time for others.
        while perf_counter() + min(taken) <= deadline:
            taken.append(self._seconds_of(reader, num_reads))
        return num_reads / median_low(taken)

    def _open_reader(self) -> _core.Reader:
        # A new reader each time: thirty readers would take 100 MB.
        reader = _core.Reader(
            self._engine,
            queue_depth=self._depth,
            num_threads=self._depth,  # of the engine "pread": one for each read in flight
            max_read_bytes=max(self._block_bytes, 4096, self._files.alignment_bytes),
        )
        reader.describe()  # starts the engine before the measurement
        return reader

    def _seconds_of(self, reader: _core.Reader, size: int) -> float:
        file_index = np.zeros(size, np.int64)
        offsets = self._draw(size)
        num_bytes = np.full(size, self._block_bytes)
        places = np.arange(size) % self._num_places * self._block_bytes
        begin = perf_counter()
        reader.read_ranges(self._files, file_index, offsets, num_bytes, places, self._out)
        return max(perf_counter() - begin, 1e-9)
