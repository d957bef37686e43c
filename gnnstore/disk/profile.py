"""The measured rates of a file system, and how rows are read from it by them.

The best distance over which rows share a read, and the best queue depth, differ by a factor of a
hundred between a spinning disk and an NVMe drive. So a disk is measured (`gnnstore.disk.measure`),
and the result is saved in the user's cache directory for all loaders on its file system. It changes
the speed of reads, never their result.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnnstore.errors import StorageError, storage_errors
from gnnstore.formats.base.files import read_small
from gnnstore.formats.base.strict_json import parse_object

_FORMAT_VERSION = 1
# Most bytes of a file with a profile, which takes 2 kB.
_MAX_FILE_BYTES = 1 << 20
_MIN_RATE = 1e-4

# The two block sizes that fix the line through a disk's times. Smaller blocks are
# padded to 4 KiB inside most drives; at 64 KiB most reach their full bandwidth.
_SMALL_BYTES = 4 << 10
_LARGE_BYTES = 64 << 10

_MOUNTS = Path("/proc/self/mounts")
# A space, tab, newline or backslash of a name, which the kernel writes as three octal digits.
_OCTAL = re.compile(r"\\([0-7]{3})")

# The gap across which two reads are one, without measurements, as suits flash. A virtual disk of
# 100,000 reads a second needed 128 in flight for them, gained nothing from 256, and read 12 kB in
# the time of one read more.
_DEFAULT_GAP_BYTES = 4 << 10
_DEFAULT_QUEUE_DEPTH = 128
_DEFAULT_MAX_READ_BYTES = 64 << 10
# Most bytes for reads in flight of each thread that prepares batches: no more with a profile.
_MAX_STAGING_BYTES = _DEFAULT_QUEUE_DEPTH * _DEFAULT_MAX_READ_BYTES

_GAP_UNIT_BYTES = 512
# Longest gap unless reads are slow for certain: two measurements of one busy disk gave gaps of
# 10,752 and 51,200 bytes.
_MAX_FAST_GAP_BYTES = 16 << 10
_FAST_READS_PER_SECOND = 10_000
# Largest gap: a spinning disk would have 100 MB/s x 8 ms = 800 kB, and more is an error of
# measurement.
_MAX_SLOW_BYTES = 1 << 20
# Gaps in a piece of a merged extent: cutting costs a read that merging had saved; with pieces of
# four gaps, at most a quarter of the saved reads.
_GAPS_PER_READ = 4
# Least reads in flight: a measured rate that is flat from the start predicts little for a disk
# under another load.
_MIN_QUEUE_DEPTH = 16
_ROW_BLOCK_BYTES = (512, 4 << 10)  # bytes of the reads that rows of features need

_log = logging.getLogger(__name__)
_warned: set[str] = set()  # disks, and files with what is wrong with them, in this process


@dataclass(frozen=True)
class Mount:
    """A mounted file system, as the kernel lists it."""

    point: str = ""
    device: str = "unknown"  # a block device, a server's export, or just a name
    kind: str = "unknown"  # its type, such as "ext4"


def find_mount(path: str | os.PathLike[str], mounts: Path = _MOUNTS) -> Mount:
    """Return the mount with the longest mount point above `path`, as far as it is known."""
    place, best, lines = Path(path).resolve(), Mount(), []
    with suppress(OSError):
        lines = os.fsdecode(mounts.read_bytes()).strip().split("\n")
    for line in lines:
        device, point, kind = (
            _OCTAL.sub(lambda match: chr(int(match[1], 8)), word)
            for word in (*line.split(" "), "", "")[:3]
        )
        # The later of two mounts on one point covers the earlier one.
        if place.is_relative_to(point) and len(point) >= len(best.point):
            best = Mount(point, device, kind)
    return best


def filesystem_id(path: str | os.PathLike[str]) -> str:
    """Return a name for the file system of `path`, such as "ext4-160a81ff238cf016"."""
    identity = os.statvfs(path).f_fsid
    mount = find_mount(path)
    if identity == 0:
        # NFS and old layered file systems have none: device and mount point replace it.
        identity = zlib.crc32(os.fsencode(f"{mount.device} {mount.point}"))
    return f"{re.sub('[^A-Za-z0-9._-]', '_', mount.kind)}-{identity:x}"


@dataclass(frozen=True)
class DeviceProfile:
    """The measured rates of a file system."""

    filesystem_id: str  # see `filesystem_id`
    mount_point: str  # where it is mounted; like the next two, for people only
    device: str  # the mounted device, or a server's export
    filesystem_type: str  # such as "ext4"
    engine: str  # the engine that read: "io_uring" or "pread"
    is_direct: bool  # whether reads bypassed the page cache
    measured_at: str  # ISO 8601, UTC
    sequential_read_bytes_per_second: float  # reading large blocks in order
    sequential_write_bytes_per_second: float  # writing large blocks in order
    # Block size in bytes -> reads in flight -> reads per second. 4 KiB and 64 KiB are always there;
    # 512 B where the disk can be read in units that small.
    random_reads_per_second: Mapping[int, Mapping[int, float]]

    def best_rate(self, block_bytes: int) -> float:
        """Return the reads per second of a block size at its best queue depth."""
        return max(self.random_reads_per_second[block_bytes].values())

    def best_depth(self, block_bytes: int, share: float = 0.97) -> int:
        """Return the smallest queue depth that reaches a share of the best rate."""
        rates = self.random_reads_per_second[block_bytes]
        enough = share * max(rates.values())
        return min(depth for depth, rate in rates.items() if rate >= enough)

    def sequential_seconds(self, read_bytes: float = 0, written_bytes: float = 0) -> float:
        """Return the seconds of reading and writing bytes in order, in large blocks."""
        reading = read_bytes / self.sequential_read_bytes_per_second
        return reading + written_bytes / self.sequential_write_bytes_per_second

    @property
    def seconds_per_byte(self) -> float:
        """Seconds for each byte of a read: the slope of t(n) = a + b n through 4 and 64 KiB."""
        more_seconds = 1 / self.best_rate(_LARGE_BYTES) - 1 / self.best_rate(_SMALL_BYTES)
        if more_seconds > 0:
            return more_seconds / (_LARGE_BYTES - _SMALL_BYTES)
        return 1 / self.sequential_read_bytes_per_second

    @property
    def seconds_per_read(self) -> float:
        """Seconds of a read, however short: the intercept of that line, at least 0."""
        seconds = 1 / self.best_rate(_SMALL_BYTES)
        return max(0.0, seconds - _SMALL_BYTES * self.seconds_per_byte)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> DeviceProfile:
        """Return the profile of JSON values."""
        random = {
            int(block): {int(depth): float(rate) for depth, rate in rates.items()}
            for block, rates in document["random_reads_per_second"].items()
        }
        found = cls(**{**document, "random_reads_per_second": random})
        rates = [rate for of in random.values() for rate in of.values()]
        rates += [found.sequential_read_bytes_per_second, found.sequential_write_bytes_per_second]
        if not (random[_SMALL_BYTES] and random[_LARGE_BYTES] and min(rates) >= _MIN_RATE):
            raise ValueError(f"rates for {_SMALL_BYTES} and {_LARGE_BYTES} bytes were expected")
        return found


def profile_path(filesystem: str) -> Path:
    """Return the path of a file system's profile: `$XDG_CACHE_HOME/gnnstore/devices/ID.json`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        try:
            cache = Path.home() / ".cache"
        except RuntimeError:
            raise StorageError(
                "there is no home directory to keep measurements of disks in; set XDG_CACHE_HOME"
            ) from None
    return cache / "gnnstore" / "devices" / f"{filesystem}.json"


def load_profile(path: str | os.PathLike[str]) -> DeviceProfile | None:
    """Return the saved profile of the file system of `path`; None if there is none."""
    where: object = path
    try:
        identity = filesystem_id(path)
        try:
            where = file = profile_path(identity)
        except StorageError:  # without a home directory
            _warn_once(
                identity,
                "measurements of disks are not kept: there is no home directory. Where "
                f"XDG_CACHE_HOME names one, `gnnstore bench disk {path}` keeps them in "
                f"$XDG_CACHE_HOME/gnnstore/devices/{identity}.json",
            )
            return None
        if not file.exists():
            return None
        document = parse_object(read_small(file, _MAX_FILE_BYTES), path=str(file))
        if document["format_version"] != _FORMAT_VERSION:
            raise ValueError(f"format_version is not {_FORMAT_VERSION}")
        profile = DeviceProfile.from_document(document["profile"])
        if profile.filesystem_id != identity:
            raise ValueError(f"these are not the measurements of {identity}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # it may have been written by another program
        _warn_once(
            f"{where}: {error}",
            f"{where}: {error}; the measurements of the disk are not used. Make new ones: gnnstore "
            f"bench disk {path}",
        )
        return None
    return profile


def _warn_once(what: str, message: str) -> None:
    """Log a warning, unless there was one on the same before."""
    if what not in _warned:
        _warned.add(what)
        _log.warning("%s", message)


def save_profile(profile: DeviceProfile) -> Path:
    """Save a profile for all later loaders on its file system, and return the file."""
    file = profile_path(profile.filesystem_id)
    document = {"format_version": _FORMAT_VERSION, "profile": asdict(profile)}
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    whole = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    with storage_errors("keep the measurements", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            whole.write_text(text)
            whole.replace(file)  # readers see the new file or the old one, never a part
        except BaseException:
            whole.unlink(missing_ok=True)
            raise
    return file


@dataclass(frozen=True)
class ReadTuning:
    """The parameters of an engine's reads."""

    gap_bytes: int  # rows at most this far apart share a read; a multiple of 512
    queue_depth: int  # reads in flight
    max_read_bytes: int  # a longer read is cut into pieces of this size; a multiple of 4096
    source: str  # "defaults", or "profile of" and the time of the measurement


def tune_reads(profile: DeviceProfile | None) -> ReadTuning:
    """Return the tuning for a disk: as for flash, changed within bounds by its measurements."""
    if profile is None or not profile.is_direct:
        return ReadTuning(
            _DEFAULT_GAP_BYTES, _DEFAULT_QUEUE_DEPTH, _DEFAULT_MAX_READ_BYTES, "defaults"
        )
    # Reading a gap along pays as long as its bytes cost less than one more read.
    gap = profile.seconds_per_read / profile.seconds_per_byte
    if profile.best_rate(_SMALL_BYTES) >= _FAST_READS_PER_SECOND:
        gap = min(gap, _MAX_FAST_GAP_BYTES)
    gap_bytes = int(min(gap, _MAX_SLOW_BYTES)) // _GAP_UNIT_BYTES * _GAP_UNIT_BYTES
    measured = profile.random_reads_per_second.keys()
    deepest = max(profile.best_depth(block) for block in _ROW_BLOCK_BYTES if block in measured)
    queue_depth = min(max(deepest, _MIN_QUEUE_DEPTH), _DEFAULT_QUEUE_DEPTH)
    max_read_bytes = _DEFAULT_MAX_READ_BYTES
    while (
        max_read_bytes < min(_GAPS_PER_READ * gap_bytes, _MAX_SLOW_BYTES)
        and 2 * max_read_bytes * queue_depth <= _MAX_STAGING_BYTES
    ):
        max_read_bytes *= 2
    return ReadTuning(gap_bytes, queue_depth, max_read_bytes, f"profile of {profile.measured_at}")
