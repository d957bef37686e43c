"""Provides the measurements of a disk to decisions: made at the first use, then saved.

`gnnstore bench disk` measures for longer, and replaces these measurements. Those that were made
while something else used the disk are wrong by up to ten times, so saved ones are not trusted for
ever: a process that uses them first checks for a fifth of a second whether the disk is still as
fast (`spot_check`), and if not, measures it again. `gnnstore.disk.profile.merge_profiles` decides
which of the measurements is used then.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from gnnstore.disk.profile.device_profile import (
    DeviceProfile,
    SavedMeasurements,
    filesystem_id,
    load_measurements,
    load_profile,
    profile_path,
    save_measurements,
)
from gnnstore.disk.profile.measure import measure_disk
from gnnstore.disk.profile.merge_profiles import compare, confirmed, is_due, merged
from gnnstore.disk.profile.spot_check import SpotCheck, spot_check
from gnnstore.errors import GnnstoreError, StorageError
from gnnstore.progress import Progress
from gnnstore.units import format_size

# Enough to measure every point on flash; on a spinning disk deep queues are left out.
_SECONDS = 3.0
_NUM_BYTES = 256 << 20

# The processes of a distributed run start together. One measures or checks at a time, or the
# processes would measure each other; those that start within the minute use the first's result.
_FRESH_SECONDS = 60.0
_MAX_WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.05

# Of a disk that cannot be measured: flash behind a SATA bus, or a virtual one.
_ASSUMED_READS = {4 << 10: {1: 8_000.0, 128: 80_000.0}, 64 << 10: {1: 4_000.0, 128: 8_000.0}}
_ASSUMED_BYTES_PER_SECOND = 5e8

_log = logging.getLogger(__name__)
# Profiles that could not be saved, for the rest of the process.
_kept: dict[str, DeviceProfile] = {}
# File systems that this process has measured or checked.
_checked: set[str] = set()
_lock = threading.Lock()


def disk_profile(path: Path, progress: Progress | None = None) -> DeviceProfile:
    """Return the measurements of a store's disk; measure the disk if there are none.

    Measuring takes some seconds, once for each file system.
    """
    identity = filesystem_id(path)
    with _lock:
        if identity in _kept:
            return _kept[identity]
        if identity in _checked and (found := load_profile(path)) is not None:
            return found
        with _alone(identity):
            saved = load_measurements(path)
            if saved is None:
                _checked.add(identity)
                return _first(path, identity, progress)
            if _is_fresh(identity):
                _checked.add(identity)
            elif (seen := _look(path, saved.profile)) is not None:
                saved = _after_look(path, seen, saved, progress)
                with suppress(OSError, StorageError):
                    os.utime(profile_path(identity))
            return saved.profile


def _first(path: Path, identity: str, progress: Progress | None) -> DeviceProfile:
    try:
        profile = _measured(path, progress)
    except (GnnstoreError, OSError) as error:
        _log.info(
            "the disk below %s cannot be measured (%s); %s a second in order and 80,000 reads "
            "a second are assumed. 'gnnstore bench disk' can measure another directory on it",
            path,
            error,
            format_size(int(_ASSUMED_BYTES_PER_SECOND)),
        )
        _kept[identity] = _assumed(identity)
        return _kept[identity]
    _keep(SavedMeasurements(profile))
    return profile


def _measured(path: Path, progress: Progress | None) -> DeviceProfile:
    return measure_disk(path, num_bytes=_NUM_BYTES, seconds=_SECONDS, progress=progress).profile


def _keep(saved: SavedMeasurements) -> None:
    try:
        save_measurements(saved)
    except StorageError as error:
        _log.info("%s; they are kept for the rest of this process", error)
        _kept[saved.profile.filesystem_id] = saved.profile


def _look(path: Path, profile: DeviceProfile) -> SpotCheck | None:
    """Check the disk; return None if that is not possible."""
    try:
        seen = spot_check(path, profile)
    except (GnnstoreError, OSError) as error:
        _log.debug("the measurements of the disk below %s are not checked: %s", path, error)
        _checked.add(profile.filesystem_id)
        return None
    # Where this store is too small, another one may be large enough.
    if seen is not None:
        _checked.add(profile.filesystem_id)
    return seen


def _after_look(
    path: Path, seen: SpotCheck, saved: SavedMeasurements, progress: Progress | None
) -> SavedMeasurements:
    """Return the profile to use after a check, measuring the disk again if need be."""
    if seen.verdict == "agrees":
        new = confirmed(saved)
        outcome = ""
    elif not is_due(saved, datetime.now(UTC)):
        new = saved
        outcome = "it was measured again less than an hour ago, and these are used"
    else:
        try:
            profile = _measured(path, progress)
        except (GnnstoreError, OSError) as error:
            new = saved
            outcome = f"it cannot be measured again ({error}), and these are used"
        else:
            new = merged(saved, profile)
            outcome = _outcome(saved, new, profile)
    if outcome:
        _log.info("%s; %s", _description(path, seen, saved), outcome)
    if new != saved:
        _keep(new)
    return new


def _description(path: Path, seen: SpotCheck, saved: SavedMeasurements) -> str:
    return (
        f"the disk below {path} did {seen.reads_per_second:,.0f} random reads and "
        f"{format_size(int(seen.bytes_per_second))} in order a second, where its measurements of "
        f"{saved.profile.measured_at} have {seen.expected_reads_per_second:,.0f} and "
        f"{format_size(int(seen.expected_bytes_per_second))}"
    )


def _outcome(saved: SavedMeasurements, new: SavedMeasurements, measured: DeviceProfile) -> str:
    if new.profile != saved.profile:
        times = (
            " twice, an hour apart or more"
            if compare(new.profile, saved.profile) == "slower"
            else ""
        )
        return f"it was measured again{times}, and the new measurements are used from now on"
    if not measured.is_direct:
        return "it could only be measured through the page cache, and these are used"
    if compare(measured, saved.profile) == "agrees":
        return "it was measured again, which agreed with these; they are used"
    return (
        "it was measured again, and was slower. Something else may be using it, so these are used "
        "until a measurement an hour from now or later says the same"
    )


def _is_fresh(identity: str) -> bool:
    """Return whether the saved profile was measured or checked a moment ago."""
    try:
        changed = profile_path(identity).stat().st_mtime
    except (OSError, StorageError):
        return False
    return 0 <= time.time() - changed < _FRESH_SECONDS


@contextmanager
def _alone(identity: str) -> Iterator[None]:
    """Wait until no other process of the user measures or checks a disk, if locks work."""
    try:
        directory = profile_path(identity).parent
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, StorageError):
        yield
        return
    try:
        deadline = time.monotonic() + _MAX_WAIT_SECONDS
        while not _try_lock(descriptor) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Return whether the lock is held, or locks do not work here."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _assumed(identity: str) -> DeviceProfile:
    return DeviceProfile(
        filesystem_id=identity,
        mount_point="unknown",
        device="unknown",
        filesystem_type="unknown",
        engine="assumed",
        is_direct=False,
        measured_at="never",
        sequential_read_bytes_per_second=_ASSUMED_BYTES_PER_SECOND,
        sequential_write_bytes_per_second=_ASSUMED_BYTES_PER_SECOND,
        random_reads_per_second=_ASSUMED_READS,
    )
