"""The measured rates of a disk, saved per file system in the user's cache directory.

The best distance over which rows share a read, and the best queue depth, differ by a factor of a
hundred between a spinning disk and an NVMe drive. So a disk is measured once (`gnnstore bench
disk`), and all loaders on its file system use the result. `merge_profiles` decides between earlier
and later measurements.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnstore.disk.profile.filesystems import filesystem_id
from gnnstore.disk.profile.user_cache import user_cache_directory, write_whole
from gnnstore.errors import CorruptStoreError, StorageError, storage_errors
from gnnstore.formats.container.regular_files import open_binary
from gnnstore.formats.container.strict_json import Fields, parse_object

__all__ = [
    "DeviceProfile",
    "SavedMeasurements",
    "filesystem_id",
    "load_measurements",
    "load_profile",
    "profile_path",
    "save_measurements",
    "save_profile",
]

_FORMAT_VERSION = 1
# Two profiles take 4 kB; a file that is far larger is something else.
_MAX_FILE_BYTES = 1 << 20
_MAX_BLOCK_BYTES = 1 << 30
_MAX_QUEUE_DEPTH = 4096

# The two block sizes that fix the line through a disk's times. Smaller blocks are
# padded to 4 KiB inside most drives; at 64 KiB most reach their full bandwidth.
_SMALL_BYTES = 4 << 10
_LARGE_BYTES = 64 << 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeviceProfile:
    """The measured rates of a file system."""

    filesystem_id: str  # see `gnnstore.disk.profile.filesystems.filesystem_id`
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

    def to_document(self) -> dict[str, Any]:
        """Return the profile as JSON values."""
        return {
            "filesystem_id": self.filesystem_id,
            "mount_point": self.mount_point,
            "device": self.device,
            "filesystem_type": self.filesystem_type,
            "engine": self.engine,
            "is_direct": self.is_direct,
            "measured_at": self.measured_at,
            "sequential_read_bytes_per_second": self.sequential_read_bytes_per_second,
            "sequential_write_bytes_per_second": self.sequential_write_bytes_per_second,
            "random_reads_per_second": {
                str(block): {str(depth): rate for depth, rate in rates.items()}
                for block, rates in self.random_reads_per_second.items()
            },
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], path: str) -> DeviceProfile:
        """Read a profile from untrusted JSON values."""
        fields = Fields(document, path)
        if not isinstance(fields.document.get("is_direct"), bool):
            raise fields.fail("is_direct", "true or false")
        blocks = fields.fields("random_reads_per_second")
        random = {
            _integer(blocks, block, _MAX_BLOCK_BYTES): _rates(blocks.fields(block))
            for block in blocks.document
        }
        if not {_SMALL_BYTES, _LARGE_BYTES} <= random.keys():
            raise fields.fail(
                "random_reads_per_second", f"entries for {_SMALL_BYTES} and {_LARGE_BYTES}"
            )
        return cls(
            filesystem_id=fields.text("filesystem_id"),
            mount_point=fields.text("mount_point"),
            device=fields.text("device"),
            filesystem_type=fields.text("filesystem_type"),
            engine=fields.text("engine"),
            is_direct=fields.document["is_direct"],
            measured_at=fields.text("measured_at"),
            sequential_read_bytes_per_second=_rate(fields, "sequential_read_bytes_per_second"),
            sequential_write_bytes_per_second=_rate(fields, "sequential_write_bytes_per_second"),
            random_reads_per_second=random,
        )


@dataclass(frozen=True)
class SavedMeasurements:
    """The saved measurements of one file system."""

    profile: DeviceProfile  # the measurement that is used
    # A later measurement, made because the other was in doubt, which did not replace it.
    again: DeviceProfile | None = None


def _rates(fields: Fields) -> dict[int, float]:
    rates = {
        _integer(fields, depth, _MAX_QUEUE_DEPTH): _rate(fields, depth) for depth in fields.document
    }
    if not rates:
        raise CorruptStoreError(
            f"{fields.path}: malformed metadata: {fields.where} is empty", path=fields.path
        )
    return rates


def _integer(fields: Fields, key: str, high: int) -> int:
    # At most ten digits, so that int() never gets a megabyte of digits.
    if not (key.isascii() and key.isdecimal() and len(key) <= 10 and 1 <= int(key) <= high):
        raise CorruptStoreError(
            f"{fields.path}: malformed metadata: {fields.where}: expected names that are "
            f"numbers from 1 to {high}, found {key[:40]!r}",
            path=fields.path,
        )
    return int(key)


def _rate(fields: Fields, key: str) -> float:
    value = fields.document.get(key)
    # Between one an hour and far beyond any disk: nothing computed from a rate may overflow.
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not math.isfinite(value)
        or not 1e-4 <= value <= 1e15
    ):
        raise fields.fail(key, "a number per second")
    return float(value)


def profile_path(filesystem: str) -> Path:
    """Return the path of a file system's profile: `devices/ID.json` in the user's cache."""
    return user_cache_directory("devices") / f"{filesystem}.json"


def load_profile(path: str | os.PathLike[str]) -> DeviceProfile | None:
    """Return the profile of the file system of `path`; None if there is none."""
    saved = load_measurements(path)
    return None if saved is None else saved.profile


def load_measurements(path: str | os.PathLike[str]) -> SavedMeasurements | None:
    """Return the saved measurements of the file system of `path`; None as in `load_profile`."""
    try:
        identity = filesystem_id(path)
        file = profile_path(identity)
        with open_binary(file, error=StorageError, root=file.parent) as opened:
            text = opened.read(_MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _log.warning("the measurements of the disk below %s are not used: %s", path, error)
        return None
    try:
        return _parse(text, identity, str(file))
    except CorruptStoreError as error:
        _log.warning(
            "%s; the measurements are not used. Make new ones: gnnstore bench disk %s", error, path
        )
        return None


def _parse(text: bytes, identity: str, file: str) -> SavedMeasurements:
    if len(text) > _MAX_FILE_BYTES:
        raise CorruptStoreError(f"{file}: larger than {_MAX_FILE_BYTES} bytes", path=file)
    fields = Fields(parse_object(text, path=file), file)
    if fields.integer("format_version") != _FORMAT_VERSION:
        raise fields.fail("format_version", str(_FORMAT_VERSION))
    profile = _profile_in(fields, "profile", identity)
    # Older versions ignore the second measurement, and write files without one.
    has_two = fields.document.get("again") is not None
    return SavedMeasurements(profile, _profile_in(fields, "again", identity) if has_two else None)


def _profile_in(fields: Fields, key: str, identity: str) -> DeviceProfile:
    profile = DeviceProfile.from_document(fields.mapping(key), fields.path)
    if profile.filesystem_id != identity:
        raise CorruptStoreError(
            f"{fields.path}: expected the measurements of {identity}, found those of "
            f"{profile.filesystem_id[:80]!r}",
            path=fields.path,
        )
    return profile


def save_profile(profile: DeviceProfile) -> Path:
    """Save a profile for all later loaders on its file system, and return the file."""
    return save_measurements(SavedMeasurements(profile))


def save_measurements(saved: SavedMeasurements) -> Path:
    """Save a profile and the measurement made when it was in doubt; as `save_profile`."""
    file = profile_path(saved.profile.filesystem_id)
    document = {"format_version": _FORMAT_VERSION, "profile": saved.profile.to_document()}
    if saved.again is not None:
        document["again"] = saved.again.to_document()
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    with storage_errors("keep the measurements", file):
        write_whole(file, [text.encode()])
    return file
