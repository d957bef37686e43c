"""Measures the rates of a disk with the engine that loaders will read with.

A file of random bytes is written, read in sequence, and then read at random with 1 to 256 reads in
flight. Everything is bounded: the file to a tenth of the free space, and each measurement to its
share of the time, so that a spinning disk and an NVMe drive both take the requested seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from gnnstore import _core
from gnnstore.disk.engines import choose_engine
from gnnstore.disk.profile.device_profile import DeviceProfile
from gnnstore.disk.profile.filesystems import filesystem_id, find_mount
from gnnstore.disk.profile.rates import ReadRate, at_random, in_sequence
from gnnstore.disk.profile.scratch_file import open_scratch_file
from gnnstore.errors import NoSpaceError, NotFoundError, UsageError, storage_errors
from gnnstore.formats.container.files import free_bytes
from gnnstore.progress import NullProgress, Progress
from gnnstore.units import format_size

BLOCK_BYTES: Final = (512, 4 << 10, 64 << 10)
QUEUE_DEPTHS: Final = tuple(2**k for k in range(9))  # 1 to 256

_FREE_SHARE = 10

_MIB = 1 << 20
_SEQUENTIAL_DEPTH = 8  # of 1 MiB: 8 MiB in flight are a millisecond of the fastest drive
_WRITE_SHARE = 0.25
_SEQUENTIAL_SHARE = 0.1

# All points are measured in turn, this many times: a neighbour that keeps the disk busy for a
# second then spoils one slice of some points, which the median leaves out.
_NUM_ROUNDS = 5

# If the second best slice of a point is farther than this from the second worst, a queue depth or a
# gap that follows from the numbers is a matter of chance.
_MAX_SPREAD = 0.3

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


@dataclass(frozen=True)
class DiskMeasurement:
    """A measurement of a disk, with its circumstances."""

    profile: DeviceProfile
    directory: str  # the directory of the file
    engine_reason: str  # the engine, and the reason for its choice
    file_bytes: int  # size of the file; less than requested if space or time did not suffice
    seconds: float  # in all
    remarks: tuple[str, ...]  # reservations about the rates; empty if there are none


def measure_disk(
    path: str | os.PathLike[str],
    *,
    num_bytes: int,
    seconds: float,
    engine: str | None = None,
    progress: Progress | None = None,
) -> DiskMeasurement:
    """Measure the disk of `path`. Leaves nothing on it."""
    started = perf_counter()
    if not seconds > 0:
        raise UsageError(f"seconds={seconds} is no time to measure in; give a positive number")
    if num_bytes < _MIB:
        raise UsageError(f"a file of {num_bytes} bytes is too small to measure with; give 1 MiB")
    directory = _directory_of(Path(path))
    remarks: list[str] = []
    size = _affordable(directory, num_bytes, remarks)
    progress = progress or NullProgress()
    with open_scratch_file(directory) as file:
        # The first block, on which the engine is tried before the long write.
        file.write(_MIB, 0.0, lambda _: None)
        choice = choose_engine(Path(file.path), engine)
        if choice.name == "mmap":
            raise UsageError(
                "the engine 'mmap' reads by page faults, one at a time for each thread, so it has "
                "no queue to measure; measure with engine 'io_uring' or 'pread' (--engine)"
            )
        with progress.phase("write a file", size, "bytes") as phase:
            written, write_seconds = file.write(size, _WRITE_SHARE * seconds, phase.advance)
        if written < size:
            remarks.append(
                f"writing was so slow that the file has {format_size(written)} instead of "
                f"{format_size(size)}; more --seconds allow more"
            )
        with storage_errors("read the file to measure with", directory):
            files = _core.FileSet([file.path], [written])
            file.remove_name()
            readings = _Readings(files, written, choice.name)
            sequential, random = readings.measure(
                started + seconds, _SEQUENTIAL_SHARE * seconds, progress
            )
    mount = find_mount(directory)
    if mount and mount.kind in _IN_MEMORY:
        remarks.append(f"{mount.point} ({mount.kind}) lies in memory; there is no disk below it")
    profile = DeviceProfile(
        filesystem_id=filesystem_id(directory),
        mount_point=mount.point if mount else "unknown",
        device=mount.device if mount else "unknown",
        filesystem_type=mount.kind if mount else "unknown",
        engine=choice.name,
        is_direct=files.is_direct,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        sequential_read_bytes_per_second=sequential,
        sequential_write_bytes_per_second=written / max(write_seconds, 1e-9),
        random_reads_per_second=random,
    )
    return DiskMeasurement(
        profile=profile,
        directory=str(directory),
        engine_reason=choice.reason,
        file_bytes=written,
        seconds=perf_counter() - started,
        remarks=(*remarks, *readings.remarks),
    )


def _directory_of(path: Path) -> Path:
    if path.is_dir():
        return path
    if path.is_file():
        return path.absolute().parent
    if not path.exists():
        raise NotFoundError(f"{path}: no such file or directory", path=path)
    raise UsageError(
        f"{path} is neither a directory nor a file; give a directory on the mounted file system, "
        "not the device below it"
    )


def _affordable(directory: Path, num_bytes: int, remarks: list[str]) -> int:
    """Return the size of the file: as requested, or less where space is short."""
    free = free_bytes(directory)
    size = min(num_bytes, free // _FREE_SHARE) // _MIB * _MIB
    if size < _MIB:
        raise NoSpaceError(
            f"{directory}: {format_size(free)} are free; measuring takes a tenth of the free space "
            f"at most, and needs {format_size(_MIB)}. Free {format_size(_FREE_SHARE * _MIB)}",
            path=directory,
        )
    if size < num_bytes // _MIB * _MIB:
        remarks.append(
            f"the file has {format_size(size)} instead of {format_size(num_bytes)}: a tenth of "
            "what is free"
        )
    return size


class _Readings:
    """The readings of a file, in sequence and at random."""

    def __init__(self, files: _core.FileSet, num_bytes: int, engine: str) -> None:
        self._files = files
        self._num_bytes = num_bytes
        self._engine = engine
        self.remarks: list[str] = []
        if not files.is_direct:
            self.remarks.append(
                f"{files.buffered_because}; so these are mostly the numbers of the page cache, not "
                "of the disk, and loaders do not go by them"
            )

    def measure(
        self, deadline: float, sequential_seconds: float, progress: Progress
    ) -> tuple[float, dict[int, dict[int, float]]]:
        """Return bytes per second in sequence, and reads per second at random."""
        in_order = ReadRate(
            self._files,
            self._engine,
            block_bytes=_MIB,
            depth=_SEQUENTIAL_DEPTH,
            draw=in_sequence(self._num_bytes, _MIB),
            max_reads=self._num_bytes // _MIB,
        )
        sequential: list[float] = []
        points = [(block, depth) for block in self._blocks() for depth in QUEUE_DEPTHS]
        sweep = _Sweep(self._files, self._engine, self._num_bytes, points)
        num_left = _NUM_ROUNDS * len(points)
        with progress.phase("read", num_left, "measurements") as phase:
            for num_rounds_left in range(_NUM_ROUNDS, 0, -1):
                share = sequential_seconds / num_rounds_left
                if not sequential or in_order.least_reads / max(sequential) <= 2 * share:
                    started = perf_counter()
                    sequential.append(in_order.measure(share))
                    sequential_seconds -= perf_counter() - started
                for point in points:
                    left = deadline - perf_counter() - max(0.0, sequential_seconds)
                    sweep.measure(point, left / num_left)
                    num_left -= 1
                    phase.advance()
        if (spread := _spread(sweep.slices.values())) > _MAX_SPREAD:
            self.remarks.append(
                f"measurements of the same thing differed by {spread:.0%}: something else uses the "
                "disk or the processors; measure again when nothing does"
            )
        result: dict[int, dict[int, float]] = {}
        for (block, depth), slices in sweep.slices.items():
            if slices:
                result.setdefault(block, {})[depth] = median(slices)
        self.remarks += [
            f"reads of {block} bytes with more than {max(rates)} in flight are missing: too slow "
            "for the time; more --seconds allow them"
            for block, rates in result.items()
            if max(rates) < QUEUE_DEPTHS[-1]
        ]
        return median(sequential) * _MIB, result

    def _blocks(self) -> list[int]:
        alignment = self._files.alignment_bytes
        if alignment <= BLOCK_BYTES[0]:
            return list(BLOCK_BYTES)
        remark = f"direct reads are multiples of {alignment} bytes here: there are none of 512"
        if alignment > BLOCK_BYTES[1]:
            remark += f", and one of {BLOCK_BYTES[1]} reads {alignment}"
        self.remarks.append(remark)
        return list(BLOCK_BYTES[1:])


def _spread(points: Iterable[Sequence[float]]) -> float:
    """Return the difference of the slices of a typical point, as a share of their median."""
    ordered = [sorted(slices) for slices in points if len(slices) == _NUM_ROUNDS]
    if not ordered:
        return 0.0
    return median((slices[-2] - slices[1]) / median(slices) for slices in ordered)


class _Sweep:
    """Slices of measurements, in reads per second, by block size and depth."""

    def __init__(
        self,
        files: _core.FileSet,
        engine: str,
        num_bytes: int,
        points: Sequence[tuple[int, int]],
    ) -> None:
        self._rates = {
            (block, depth): ReadRate(
                files, engine, block_bytes=block, depth=depth, draw=at_random(num_bytes, block)
            )
            for block, depth in points
        }
        self._too_slow: set[int] = set()  # block sizes whose deeper queues are left out
        self.slices: dict[tuple[int, int], list[float]] = {point: [] for point in points}

    def measure(self, point: tuple[int, int], seconds: float) -> None:
        """Measure one slice in its share of the time, unless it would take far longer."""
        block, depth = point
        # A deeper queue is no slower. Counting the shallower ones keeps a slice that was
        # disturbed from ruling out all others of its point.
        known = [
            rate
            for (other_block, other_depth), slices in self.slices.items()
            if other_block == block and other_depth <= depth
            for rate in slices
        ]
        if known:
            least_seconds = self._rates[point].least_reads / max(known)
            if self.slices[point]:
                if least_seconds > 2 * seconds:
                    return
            elif block in self._too_slow or least_seconds > 2 * _NUM_ROUNDS * seconds:
                self._too_slow.add(block)
                return
        self.slices[point].append(self._rates[point].measure(max(seconds, 0.0)))
