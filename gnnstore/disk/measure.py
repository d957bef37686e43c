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
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
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
    storage_error,
    storage_errors,
)
from gnnstore.formats.container.files import free_bytes
from gnnstore.formats.container.workdir import take_lock
from gnnstore.progress import NullProgress, Progress
from gnnstore.units import format_size

BLOCK_BYTES: Final = (512, 4 << 10, 64 << 10)
QUEUE_DEPTHS: Final = tuple(2**k for k in range(9))  # 1 to 256

_MIB, _FREE_SHARE = 1 << 20, 10
_SEQUENTIAL_DEPTH = 8  # of 1 MiB: 8 MiB in flight are a millisecond of the fastest drive
_WRITE_SHARE, _SEQUENTIAL_SHARE = 0.25, 0.1  # of the time
_NUM_ROUNDS = 3
# If the second best of three is farther than this from the best, a queue depth or a gap that
# follows from the numbers is a matter of chance.
_MAX_SPREAD = 0.3

# The queue fills at the beginning of a slice and runs empty at its end. With 16 times the depth in
# between, at most 1 read in 16 meets a shorter queue.
_READS_PER_DEPTH, _WARM_UP_PER_DEPTH = 16, 4
_BUFFER_BYTES = 2 << 20
# Ctrl-C waits for the kernel, so slices are short.
_MAX_SLICE_SECONDS = 0.5

# 8 MiB a write: the kernel cuts it into requests that a drive works on side by side.
_WRITE_BYTES, _BLOCK_BYTES = 8 << 20, 4 << 10
_SYNC_BYTES = 32 << 20  # without O_DIRECT a write is a copy into memory until it is synchronised

# Of a measurement at the first use: enough for every point on flash.
_FIRST_SECONDS, _FIRST_BYTES = 3.0, 256 << 20
_MAX_AGE_SECONDS = 30 * 86400.0
# The processes of a distributed run start together: one measures, and the others wait for it.
_MAX_ATTEMPTS = 100  # to lock, ten a second
# Of a disk that cannot be measured: flash behind a SATA bus, or a virtual one.
_ASSUMED_READS = {4 << 10: {1: 8_000.0, 128: 80_000.0}, 64 << 10: {1: 4_000.0, 128: 8_000.0}}
_ASSUMED_BYTES_PER_SECOND = 5e8

Draw = Callable[[int], npt.NDArray[np.int64]]  # offsets in bytes, of a number of reads

_log = logging.getLogger(__name__)
_kept: dict[str, DeviceProfile] = {}  # profiles that could not be saved, for the process
_lock = threading.Lock()


def disk_profile(path: Path, progress: Progress | None = None) -> DeviceProfile:
    """Return the profile of a store's disk: the saved one, or one that is measured now.

    Measuring takes some seconds, once in 30 days for each file system.
    """
    identity = filesystem_id(path)
    with _lock:
        if identity in _kept:
            return _kept[identity]
        saved = load_profile(path)
        if saved is None or _is_old(identity):
            with _alone(identity):
                saved = load_profile(path)
                if saved is None or _is_old(identity):
                    return _measured(path, identity, saved, progress)
        return saved


def _is_old(identity: str) -> bool:
    try:
        return time.time() - profile_path(identity).stat().st_mtime > _MAX_AGE_SECONDS
    except FileNotFoundError:  # removed meanwhile
        return True


def _measured(
    path: Path, identity: str, saved: DeviceProfile | None, progress: Progress | None
) -> DeviceProfile:
    """Return a new profile, saved if possible; where there is none, the old or an assumed one."""
    try:
        profile = measure_disk(
            path, num_bytes=_FIRST_BYTES, seconds=_FIRST_SECONDS, progress=progress
        ).profile
        if saved is None or profile.is_direct or not saved.is_direct:
            _kept[identity] = profile
            save_profile(profile)
            del _kept[identity]
            return profile
        problem = "only through the page cache"
    except (GnnstoreError, OSError) as error:
        if identity in _kept:
            _log.info("%s; they are kept for the rest of this process", error)
            return _kept[identity]
        problem = str(error)
    _kept[identity] = saved or _assumed(identity)
    _log.info(
        "the disk below %s cannot be measured (%s); %s. 'gnnstore bench disk' can measure another "
        "directory on it",
        path,
        problem,
        f"the measurements of {saved.measured_at} are used"
        if saved
        else f"{format_size(int(_ASSUMED_BYTES_PER_SECOND))} a second in order and 80,000 reads a "
        "second are assumed",
    )
    return _kept[identity]


def _assumed(identity: str) -> DeviceProfile:
    where, rate = ("unknown", "unknown", "unknown", "assumed"), _ASSUMED_BYTES_PER_SECOND
    return DeviceProfile(identity, *where, False, "never", rate, rate, _ASSUMED_READS)


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
        raise UsageError(f"seconds={seconds} is no time to measure in; give a positive number")
    if num_bytes < _MIB:
        raise UsageError(f"a file of {num_bytes} bytes is too small to measure with; give 1 MiB")
    directory = _directory_of(Path(path))
    size = _affordable(directory, num_bytes)
    remarks: list[str] = []
    if size < num_bytes // _MIB * _MIB:
        remarks.append(
            f"the file has {format_size(size)} instead of {format_size(num_bytes)}: a tenth of "
            "what is free"
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
        if written < size:
            remarks.append(
                f"writing was so slow that the file has {format_size(written)} instead of "
                f"{format_size(size)}; more --seconds allow more"
            )
        with storage_errors("read the file to measure with", directory):
            files = _core.FileSet([name], [written])
            sequential, random = _read(
                files,
                written,
                choice.name,
                deadline=started + seconds,
                seconds=_SEQUENTIAL_SHARE * seconds,
                progress=progress,
                remarks=remarks,
            )
    mount = find_mount(directory)
    if mount and mount.kind in ("tmpfs", "ramfs", "devtmpfs"):
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
    seconds = perf_counter() - started
    return DiskMeasurement(profile, str(directory), choice.reason, written, seconds, tuple(remarks))


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


def _affordable(directory: Path, num_bytes: int) -> int:
    """Return the size of the file: as requested, or less where space is short."""
    free = free_bytes(directory)
    size = min(num_bytes, free // _FREE_SHARE) // _MIB * _MIB
    if size < _MIB:
        raise NoSpaceError(
            f"{directory}: {format_size(free)} are free; measuring takes a tenth of the free space "
            f"at most, and needs {format_size(_MIB)}. Free {format_size(_FREE_SHARE * _MIB)}",
            path=directory,
        )
    return size


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
    chunk = mmap.mmap(-1, min(_WRITE_BYTES, num_bytes))  # aligned, for direct writes
    chunk.write(np.random.default_rng().bytes(len(chunk)))
    marks = np.frombuffer(chunk, np.uint64)[:: _BLOCK_BYTES // 8]
    is_direct = _set_direct(descriptor, wanted=True)
    written = unsynced = 0
    elapsed = 0.0
    try:
        while written < num_bytes and (written == 0 or elapsed < seconds):
            # Each block differs from all others: some disks store equal blocks once.
            marks += np.uint64(marks.size)
            data = memoryview(chunk)[: num_bytes - written]
            size = len(data)
            started = perf_counter()
            while data:
                try:
                    done = os.pwrite(descriptor, data, written)
                except OSError as error:
                    # Some file systems take the flag and refuse the write.
                    if error.errno != errno.EINVAL or not is_direct:
                        raise
                    is_direct = _set_direct(descriptor, wanted=False)
                    continue
                data, written = data[done:], written + done
            unsynced += size
            if not is_direct and unsynced >= _SYNC_BYTES:
                os.fdatasync(descriptor)
                unsynced = 0
            elapsed += perf_counter() - started
            on_bytes(size)
        started = perf_counter()
        os.fdatasync(descriptor)
        elapsed += perf_counter() - started
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise storage_error(error, "write a file to measure with", directory) from error
        raise NoSpaceError(
            f"{directory}: no space left after {format_size(written)} of a file of "
            f"{format_size(num_bytes)} to measure with ({error.strerror}); it has been removed. "
            f"Give a smaller --size, or free some space",
            path=directory,
        ) from error
    # Pages that buffered writes left in the page cache must not serve the reads.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return written, elapsed


def _set_direct(descriptor: int, *, wanted: bool) -> bool:
    """Turn O_DIRECT on or off, and return whether it is on."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if wanted else 0))
        return wanted
    return False


def _read(
    files: _core.FileSet,
    num_bytes: int,
    engine: str,
    *,
    deadline: float,
    seconds: float,
    progress: Progress,
    remarks: list[str],
) -> tuple[float, dict[int, dict[int, float]]]:
    """Return bytes per second in sequence, in `seconds`; and reads per second by block, depth."""
    if not files.is_direct:
        remarks.append(
            f"{files.buffered_because}; so these are mostly the numbers of the page cache, not "
            "of the disk, and loaders do not go by them"
        )
    blocks = [block for block in BLOCK_BYTES if block >= min(files.alignment_bytes, 4 << 10)]
    if blocks[0] > BLOCK_BYTES[0]:
        unit = files.alignment_bytes
        longer = f", and one of {BLOCK_BYTES[1]} reads {unit}" if unit > BLOCK_BYTES[1] else ""
        remarks.append(
            f"direct reads are multiples of {unit} bytes here: there are none of 512{longer}"
        )
    in_order = ReadRate(
        files,
        engine,
        block_bytes=_MIB,
        depth=_SEQUENTIAL_DEPTH,
        draw=in_sequence(num_bytes, _MIB),
        max_reads=num_bytes // _MIB,
    )
    points = {
        (block, depth): ReadRate(
            files, engine, block_bytes=block, depth=depth, draw=at_random(num_bytes, block)
        )
        for block in blocks
        for depth in QUEUE_DEPTHS
    }
    sequential: list[float] = []
    slices: dict[int, dict[int, list[float]]] = {block: {} for block in blocks}
    num_left = _NUM_ROUNDS * len(points)
    with progress.phase("read", num_left, "measurements") as phase:
        for _ in range(_NUM_ROUNDS):
            share = seconds / _NUM_ROUNDS
            if not sequential or in_order.least_reads / max(sequential) <= 2 * share:
                sequential.append(in_order.measure(share))
            for (block, depth), point in points.items():
                share = max(0.0, (deadline - perf_counter()) / num_left)
                rates = slices[block]
                # A deeper queue is no slower, so what is known of shallower ones bounds the time.
                known = max((rate for found in rates.values() for rate in found), default=0.0)
                is_next = depth == 1 or depth // 2 in rates
                if is_next and (not known or point.least_reads <= 2 * share * known):
                    rates.setdefault(depth, []).append(point.measure(share))
                num_left -= 1
                phase.advance()
    ordered = [sorted(f) for rates in slices.values() for f in rates.values() if len(f) > 1]
    spread = median([0.0, *(1 - found[-2] / found[-1] for found in ordered)])
    if spread > _MAX_SPREAD:
        remarks.append(
            f"measurements of the same thing differed by {spread:.0%}: something else uses the "
            "disk or the processors; measure again when nothing does"
        )
    remarks += [
        f"reads of {block} bytes with more than {max(rates)} in flight are missing: too slow "
        "for the time; more --seconds allow them"
        for block, rates in slices.items()
        if max(rates) < QUEUE_DEPTHS[-1]
    ]
    best = {block: {d: max(found) for d, found in r.items()} for block, r in slices.items()}
    return max(sequential) * _MIB, best


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


class ReadRate:
    """A measurement of the reads of one size a second at one queue depth."""

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
        self._num_places = max(1, min(2 * depth, _BUFFER_BYTES // block_bytes))
        self._out = np.frombuffer(mmap.mmap(-1, self._num_places * block_bytes), np.uint8)

    @property
    def least_reads(self) -> int:
        """Number of reads in the shortest possible slice."""
        return (_WARM_UP_PER_DEPTH + _READS_PER_DEPTH) * self._depth

    def measure(self, seconds: float) -> float:
        """Return the reads per second of one slice that takes about `seconds`."""
        # A new reader each time: thirty readers would take 100 MB.
        reader = _core.Reader(
            self._engine,
            queue_depth=self._depth,
            num_threads=self._depth,  # of the engine "pread": one for each read in flight
            max_read_bytes=max(self._block_bytes, 4096, self._files.alignment_bytes),
        )
        reader.describe()  # starts the engine before the measurement
        size = min(_WARM_UP_PER_DEPTH * self._depth, self._max_reads)
        elapsed = self._seconds_of(reader, size)
        wanted = int(size / elapsed * min(seconds - elapsed, _MAX_SLICE_SECONDS))
        size = min(max(wanted, _READS_PER_DEPTH * self._depth), self._max_reads)
        return size / self._seconds_of(reader, size)

    def _seconds_of(self, reader: _core.Reader, size: int) -> float:
        file_index = np.zeros(size, np.int64)
        offsets = self._draw(size)
        num_bytes = np.full(size, self._block_bytes)
        places = np.arange(size) % self._num_places * self._block_bytes
        begin = perf_counter()
        reader.read_ranges(self._files, file_index, offsets, num_bytes, places, self._out)
        return max(perf_counter() - begin, 1e-9)
