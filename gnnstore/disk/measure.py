"""Measures the rates of a disk with the engine that loaders will read with.

A file of random bytes is written, read in sequence, and then read at random with 1 to 256 reads in
flight, all three times, of which the fastest counts: other users of a disk make it slower, and
nothing makes it faster. The file takes a tenth of the free space at most, and each measurement its
share of the time, so that a spinning disk and an NVMe drive both take the requested seconds.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Final

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.disk.engines import choose_engine
from gnnstore.disk.profile import (
    DeviceProfile,
    filesystem_id,
    find_mount,
    load_profile,
    profile_path,
    save_profile,
)
from gnnstore.errors import (
    GnnstoreError,
    NoSpaceError,
    NotFoundError,
    StorageError,
    UsageError,
    storage_errors,
)
from gnnstore.formats.base.files import free_bytes, page_aligned
from gnnstore.formats.container.workdir import take_lock
from gnnstore.progress import NullProgress, Phase, Progress
from gnnstore.units import format_size

BLOCK_BYTES: Final = (512, 4 << 10, 64 << 10)
QUEUE_DEPTHS: Final = tuple(2**k for k in range(9))  # 1 to 256

_MIB, _FREE_SHARE = 1 << 20, 10
_SEQUENTIAL_DEPTH = 8  # reads of 1 MiB in flight: 8 MiB are a millisecond of the fastest drive
_WRITE_SHARE, _SEQUENTIAL_SHARE = 0.25, 0.1  # shares of the time
_NUM_ROUNDS = 3
# Reads of a slice, and before it, in times of the depth. The queue fills at the beginning of a
# slice and runs empty at its end: with 16 times the depth in between, at most 1 read in 16 meets a
# shorter queue.
_READS_PER_DEPTH, _WARM_UP_PER_DEPTH = 16, 4
_BUFFER_BYTES = 2 << 20
# Longest slice: Ctrl-C waits for the kernel.
_MAX_SLICE_SECONDS = 0.5
# Bytes of a write: the kernel cuts it into requests that a drive works on side by side.
_WRITE_BYTES = 8 << 20

# Seconds of a measurement at the first use: enough for every point on flash.
_FIRST_SECONDS, _FIRST_BYTES = 3.0, 256 << 20
_MAX_AGE_SECONDS = 30 * 86400.0
# The processes of a distributed run start together: one measures, and the others wait for it.
_MAX_ATTEMPTS = 100  # to lock, ten a second
# The profile of a disk that cannot be measured: flash behind a SATA bus, or a virtual one.
_ASSUMED_READS = {4 << 10: {1: 8_000.0, 128: 80_000.0}, 64 << 10: {1: 4_000.0, 128: 8_000.0}}
_ASSUMED_BYTES_PER_SECOND = 5e8
_ASSUMED_PLACE = ("unknown", "unknown", "unknown", "assumed")

Draw = Callable[[int], npt.NDArray[np.int64]]  # offsets in bytes, of a number of reads

_log = logging.getLogger(__name__)
_kept: dict[str, DeviceProfile] = {}  # profiles that could not be saved, for the process


def disk_profile(path: Path, progress: Progress | None = None) -> DeviceProfile:
    """Return the profile of a store's disk: the saved one, or one that is measured now.

    Measuring takes some seconds, once in 30 days for each file system.
    """
    identity = filesystem_id(path)
    found = _kept.get(identity) or _recent(path, identity)
    if found is None:
        with _alone(identity):  # a thread or process
            found = _recent(path, identity) or _measured(path, identity, progress)
    return found


def _recent(path: Path, identity: str) -> DeviceProfile | None:
    saved = load_profile(path)
    if saved and time.time() - profile_path(identity).stat().st_mtime > _MAX_AGE_SECONDS:
        return None
    return saved


def _measured(path: Path, identity: str, progress: Progress | None) -> DeviceProfile:
    """Return a new profile, saved if possible; where there is none, the old or an assumed one."""
    rate = _ASSUMED_BYTES_PER_SECOND
    before = load_profile(path) or DeviceProfile(
        identity, *_ASSUMED_PLACE, False, "never", rate, rate, _ASSUMED_READS
    )
    try:
        profile = measure_disk(
            path, num_bytes=_FIRST_BYTES, seconds=_FIRST_SECONDS, progress=progress
        ).profile
        if before.is_direct and not profile.is_direct:
            raise StorageError("it can be read only through the page cache")
    except (GnnstoreError, OSError) as error:
        used = f"rates come from a profile of {before.measured_at}"
        if before.measured_at == "never":
            used = "rates of flash are assumed"
        _log.info("the disk below %s cannot be measured (%s); %s", path, error, used)
        _kept[identity] = before
        return before
    try:
        save_profile(profile)
    except StorageError as error:
        _log.info("%s; they are kept for the rest of this process", error)
        _kept[identity] = profile
    return profile


@contextmanager
def _alone(identity: str) -> Iterator[None]:
    """Wait until no other process of the user measures a disk, if locks work."""
    lock = None
    with suppress(OSError, StorageError):
        directory = profile_path(identity).parent
        directory.mkdir(parents=True, exist_ok=True)
        lock = take_lock(directory, _MAX_ATTEMPTS)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


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
        raise UsageError(f"seconds={seconds} must be positive")
    if num_bytes < _MIB:
        raise UsageError(f"a file of {num_bytes} bytes is too small to measure with; give 1 MiB")
    directory = Path(path)
    if directory.is_file():
        directory = directory.absolute().parent
    if not directory.is_dir():
        advice = "give a directory on the mounted file system, not the device below it"
        raise NotFoundError(f"{directory}: no such file or directory; {advice}", path=directory)
    size = min(num_bytes, free_bytes(directory) // _FREE_SHARE) // _MIB * _MIB
    if size < _MIB:
        raise NoSpaceError(
            f"{directory}: measuring takes a tenth of the free space at most, and needs "
            f"{format_size(_MIB)}. Free {format_size(_FREE_SHARE * _MIB)}",
            path=directory,
        )
    progress = progress or NullProgress()
    with open_scratch_file(directory) as file:
        # The first block, on which the engine is tried before the long write.
        write_file(file, directory, _MIB, 0.0, lambda _: None)
        name = f"/proc/self/fd/{file}"
        choice = choose_engine(Path(name), engine)
        if choice.name == "mmap":
            raise UsageError(
                "the engine 'mmap' reads by page faults, one at a time for each thread, so it has "
                "no queue to measure; measure with engine 'io_uring' or 'pread' (--engine)"
            )
        with progress.phase("write a file", size, "bytes") as phase:
            written, write_seconds = write_file(
                file, directory, size, _WRITE_SHARE * seconds, phase.advance
            )
        with storage_errors("read the file to measure with", directory):
            files = _core.FileSet([name], [written])
            num_points = _NUM_ROUNDS * len(BLOCK_BYTES) * len(QUEUE_DEPTHS)
            with progress.phase("read", num_points, "measurements") as phase:
                sequential, random = _measure_reads(
                    files,
                    written,
                    choice.name,
                    deadline=started + seconds,
                    sequential_seconds=_SEQUENTIAL_SHARE * seconds,
                    phase=phase,
                )
    mount = find_mount(directory)
    remarks = []
    if written < num_bytes // _MIB * _MIB:
        remarks.append(
            f"the file has {format_size(written)} instead of {format_size(num_bytes)}: a tenth of "
            "what is free, and no more than can be written in the time (--seconds)"
        )
    if not files.is_direct:
        remarks.append(
            f"{files.buffered_because}; so these are mostly the numbers of the page cache, not "
            "of the disk, and loaders do not go by them"
        )
    profile = DeviceProfile(
        filesystem_id=filesystem_id(directory),
        mount_point=mount.point,
        device=mount.device,
        filesystem_type=mount.kind,
        engine=choice.name,
        is_direct=files.is_direct,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        sequential_read_bytes_per_second=sequential,
        sequential_write_bytes_per_second=written / max(write_seconds, 1e-9),
        random_reads_per_second=random,
    )
    seconds = perf_counter() - started
    return DiskMeasurement(profile, str(directory), choice.reason, written, seconds, tuple(remarks))


@contextmanager
def open_scratch_file(directory: Path) -> Iterator[int]:
    """Yield the descriptor of an empty file without a name, which vanishes with it."""
    with storage_errors(
        "make a file to measure with (any directory on the same file system will do)", directory
    ):
        file = tempfile.TemporaryFile(  # noqa: SIM115 - closed below
            dir=directory, prefix=".gnnstore-bench-", buffering=0
        )
    with file:
        yield file.fileno()


def write_file(
    descriptor: int,
    directory: Path,
    num_bytes: int,
    seconds: float,
    on_bytes: Callable[[int], None],
) -> tuple[int, float]:
    """Fill a file with incompressible bytes; return how many, and the seconds that it took."""
    chunk = page_aligned(min(_WRITE_BYTES, num_bytes)).data
    rng = np.random.default_rng()
    is_direct = False
    with suppress(OSError):  # else writes are copied into the page cache
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
        is_direct = True
    written, elapsed = 0, 0.0
    with storage_errors("write a file to measure with", directory):
        while written < num_bytes and (written == 0 or elapsed < seconds):
            chunk[:] = rng.bytes(len(chunk))  # other ones: some disks store equal blocks once
            data = chunk[: num_bytes - written]
            size, started = len(data), perf_counter()
            while data:
                try:
                    done = os.pwrite(descriptor, data, written)
                except OSError as error:
                    if error.errno != errno.EINVAL or not is_direct:
                        raise
                    # Some file systems take the flag and refuse the write.
                    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
                    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
                    is_direct = False
                    continue
                data, written = data[done:], written + done
            if not is_direct or written == num_bytes:  # else a write is a copy into memory
                os.fdatasync(descriptor)
            elapsed += perf_counter() - started
            on_bytes(size)
    # Pages that buffered writes left in the page cache must not serve the reads.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return written, elapsed


def _measure_reads(
    files: _core.FileSet,
    num_bytes: int,
    engine: str,
    *,
    deadline: float,
    sequential_seconds: float,
    phase: Phase,
) -> tuple[float, dict[int, dict[int, float]]]:
    """Return bytes per second in sequence, and reads per second by block size and queue depth."""
    blocks = [block for block in BLOCK_BYTES if block >= min(files.alignment_bytes, 4 << 10)]
    points = [(block, depth) for block in blocks for depth in QUEUE_DEPTHS]
    in_order = in_sequence(num_bytes, _MIB)
    # A round measures everything, so that no burst of others is in all measurements of a thing.
    best: dict[int, dict[int, float]] = {_MIB: {}, **{block: {} for block in blocks}}
    num_left = _NUM_ROUNDS * len(points)
    for block, depth in [(_MIB, _SEQUENTIAL_DEPTH), *points] * _NUM_ROUNDS:
        rates, is_in_order = best[block], block == _MIB
        share = max(0.0, (deadline - perf_counter()) / max(1, num_left))
        share = sequential_seconds / _NUM_ROUNDS if is_in_order else share
        # A deeper queue is not slower, so the times of shallower ones are a bound.
        known = max(rates.values(), default=0.0)
        is_next = is_in_order or depth == 1 or depth // 2 in rates
        if is_next and (not known or least_reads(depth) <= 2 * share * known):
            rate = read_rate(
                files,
                engine,
                block_bytes=block,
                depth=depth,
                draw=in_order if is_in_order else at_random(num_bytes, block),
                seconds=share,
                max_reads=num_bytes // _MIB if is_in_order else 1 << 20,
            )
            rates[depth] = max(rate, rates.get(depth, 0.0))
        if not is_in_order:
            num_left -= 1
            phase.advance()
    return max(best.pop(_MIB).values()) * _MIB, best


def at_random(num_bytes: int, block_bytes: int) -> Draw:
    """Return a function that draws blocks of a file independently of each other."""
    rng = np.random.default_rng()
    return lambda size: rng.integers(0, num_bytes // block_bytes, size) * block_bytes


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


def least_reads(depth: int) -> int:
    """Return the number of reads in the shortest possible slice."""
    return (_WARM_UP_PER_DEPTH + _READS_PER_DEPTH) * depth


def read_rate(
    files: _core.FileSet,
    engine: str,
    *,
    block_bytes: int,
    depth: int,
    draw: Draw,
    seconds: float,
    max_reads: int = 1 << 20,
) -> float:
    """Return the reads per second of one size and queue depth, of a slice of about `seconds`."""
    reader = _core.Reader(
        engine,
        queue_depth=depth,
        num_threads=depth,  # of the engine "pread": one for each read in flight
        max_read_bytes=max(block_bytes, 4096, files.alignment_bytes),
    )
    reader.describe()  # starts the engine before the measurement
    # Reads in flight share buffers: their content is not used, and loaders with little memory
    # measure too.
    num_places = max(1, min(2 * depth, _BUFFER_BYTES // block_bytes))
    out = page_aligned(num_places * block_bytes)

    def seconds_of(size: int) -> float:
        offsets, places = draw(size), np.arange(size) % num_places * block_bytes
        file_index, num_bytes = np.zeros(size, np.int64), np.full(size, block_bytes)
        begin = perf_counter()
        reader.read_ranges(files, file_index, offsets, num_bytes, places, out)
        return max(perf_counter() - begin, 1e-9)

    size = min(_WARM_UP_PER_DEPTH * depth, max_reads)
    elapsed = seconds_of(size)
    wanted = int(size / elapsed * min(seconds - elapsed, _MAX_SLICE_SECONDS))
    size = min(max(wanted, _READS_PER_DEPTH * depth), max_reads)
    return size / seconds_of(size)
