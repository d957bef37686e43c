"""Checks on a store's own file whether a disk is as fast as its measurements say.

The check takes a fifth of a second and writes nothing, so it can be made at every start. It is too
coarse to replace a measurement: if it disagrees, the disk is measured again.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gnnstore import _core
from gnnstore.disk.profile.device_profile import DeviceProfile
from gnnstore.disk.profile.merge_profiles import Verdict, judge
from gnnstore.disk.profile.rates import Draw, ReadRate, at_random, in_sequence

# Time of each of the two checks. On a disk ten times slower than expected, a slice at random takes
# a quarter of a second.
_SECONDS = 0.1
_SLICES = 8

# The size of the file of a first measurement. On a spinning disk reads in a far larger file are
# slower, as its arm moves farther; in a smaller one, faster.
_WINDOW_BYTES = 256 << 20

_SMALL_BYTES = 4 << 10
# As in `measure_disk`.
_LARGE_BYTES, _LARGE_DEPTH, _MAX_DEPTH = 1 << 20, 8, 256
# In a slice at random that is this many queues long, the queue is full for most of the time.
_READS_PER_DEPTH = 4

_MAX_ENTRIES = 4096
_BLOCK_UNIT = 512  # of st_blocks, on every file system
_ENGINES = ("io_uring", "pread")


@dataclass(frozen=True)
class SpotCheck:
    """The rates that a check has measured, and the expected rates."""

    reads_per_second: float  # random reads of 4 KiB, as checked
    expected_reads_per_second: float  # the same by the disk's measurements
    bytes_per_second: float  # reading large blocks in order, as checked
    expected_bytes_per_second: float  # the same by the disk's measurements

    @property
    def verdict(self) -> Verdict:
        """Whether the disk is as fast as expected, faster or slower."""
        return judge(
            (
                self.reads_per_second / self.expected_reads_per_second,
                self.bytes_per_second / self.expected_bytes_per_second,
            )
        )


def spot_check(path: Path, profile: DeviceProfile) -> SpotCheck | None:
    """Read a little of a store, in about 0.2 s; None if the disk cannot be checked with it."""
    if not profile.is_direct or profile.engine not in _ENGINES:
        return None
    rates = profile.random_reads_per_second[_SMALL_BYTES]
    usable = {depth: rate for depth, rate in rates.items() if depth <= _MAX_DEPTH}
    found = _large_file(path)
    if found is None or not usable:
        return None
    file, num_bytes = found
    files = _core.FileSet([str(file)], [num_bytes])
    if not files.is_direct:
        return None
    depth = _depth(usable, profile.best_depth(_SMALL_BYTES))
    # At a new place each time: the drive may still hold the blocks that it read a minute ago.
    begin = random.randrange((num_bytes - _WINDOW_BYTES) // _LARGE_BYTES + 1) * _LARGE_BYTES  # noqa: S311
    small = ReadRate(
        files,
        profile.engine,
        block_bytes=_SMALL_BYTES,
        depth=depth,
        draw=_from(begin, at_random(_WINDOW_BYTES, _SMALL_BYTES)),
    )
    large = ReadRate(
        files,
        profile.engine,
        block_bytes=_LARGE_BYTES,
        depth=_LARGE_DEPTH,
        draw=_from(begin, in_sequence(_WINDOW_BYTES, _LARGE_BYTES)),
    )
    expected_bytes = profile.sequential_read_bytes_per_second
    num_small = max(_READS_PER_DEPTH * depth, int(usable[depth] * _SECONDS / _SLICES))
    num_large = max(_LARGE_DEPTH, int(expected_bytes / _LARGE_BYTES * _SECONDS / _SLICES))
    return SpotCheck(
        small.glance(num_small, _SECONDS),
        usable[depth],
        large.glance(num_large, _SECONDS) * _LARGE_BYTES,
        expected_bytes,
    )


def _from(begin: int, draw: Draw) -> Draw:
    return lambda size: begin + draw(size)


def _depth(rates: dict[int, float], best: int) -> int:
    """Return the deepest queue up to `best` with time for some slices; else the shallowest."""
    short = _SECONDS / 4
    fits = [d for d, rate in rates.items() if d <= best and _READS_PER_DEPTH * d <= rate * short]
    return max(fits, default=min(rates))


def _large_file(path: Path) -> tuple[Path, int] | None:
    """Return a file of a store that is large enough, and its size in whole MiB."""
    device = path.stat().st_dev
    for file in islice(_files(path), _MAX_ENTRIES):
        entry = file.lstat()
        if (
            stat.S_ISREG(entry.st_mode)
            and entry.st_size >= _WINDOW_BYTES
            and entry.st_dev == device
            # Holes of a file are not read from a disk.
            and entry.st_blocks * _BLOCK_UNIT >= entry.st_size
        ):
            return file, entry.st_size // _LARGE_BYTES * _LARGE_BYTES
    return None


def _files(path: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(path):
        yield from (Path(directory, name) for name in names)
