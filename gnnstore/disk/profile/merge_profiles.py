"""Merges a new measurement of a disk with the saved one.

Other users of a disk make it slower, and hardly anything makes it faster. So a measurement that is
more than twice as fast as the saved one replaces it at once, and one that is less than half as fast
only when it is the second in a row, an hour or more after the first. One in between agrees with the
saved one, which stays: it may have taken longer to make. At most one measurement an hour is made
because of doubts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from gnnstore.disk.profile.device_profile import DeviceProfile, SavedMeasurements

Verdict = Literal["agrees", "faster", "slower"]

# Measurements of three seconds on a virtual machine with neighbours differ by a half; a busy disk
# makes a difference of a factor of ten.
_FACTOR = 2.0
# Copying a data set, or checking one, keeps a disk busy for minutes.
_APART: Final = timedelta(hours=1)

_SMALL_BYTES, _LARGE_BYTES = 4 << 10, 64 << 10


def judge(ratios: Iterable[float]) -> Verdict:
    """Return the verdict of the ratios of measured rates to expected ones."""
    found = tuple(ratios)
    if min(found) < 1 / _FACTOR:
        return "slower"
    return "faster" if max(found) > _FACTOR else "agrees"


def compare(new: DeviceProfile, old: DeviceProfile) -> Verdict:
    """Return whether a disk is faster or slower by a new measurement than by an old one."""
    in_sequence = new.sequential_read_bytes_per_second / old.sequential_read_bytes_per_second
    blocks = (_SMALL_BYTES, _LARGE_BYTES)
    rates = ((new.random_reads_per_second[n], old.random_reads_per_second[n]) for n in blocks)
    return judge((in_sequence, *(_ratio(*pair) for pair in rates)))


def _ratio(new: Mapping[int, float], old: Mapping[int, float]) -> float:
    # A short measurement of a slow disk lacks the deep queues, where a longer one was fastest.
    common = new.keys() & old.keys()
    return max(new[d] for d in common or new) / max(old[d] for d in common or old)


def is_due(saved: SavedMeasurements, now: datetime) -> bool:
    """Return whether another measurement would count, if the saved one is in doubt."""
    if saved.again is None:
        return True
    try:
        then = datetime.fromisoformat(saved.again.measured_at)
    except ValueError:
        return True  # written by hand
    age = now - (then if then.tzinfo else then.replace(tzinfo=UTC))
    return not timedelta(0) <= age < _APART


def merged(saved: SavedMeasurements, new: DeviceProfile) -> SavedMeasurements:
    """Return the profile to save after another measurement, made when `is_due`."""
    if not new.is_direct:
        return saved  # it is memory's speed, not the disk's
    verdict = compare(new, saved.profile)
    if verdict == "faster":
        return SavedMeasurements(new)
    first = saved.again
    if verdict == "slower" and first is not None and compare(first, saved.profile) == "slower":
        return SavedMeasurements(
            max(first, new, key=lambda profile: profile.best_rate(_SMALL_BYTES))
        )
    return SavedMeasurements(saved.profile, new)


def confirmed(saved: SavedMeasurements) -> SavedMeasurements:
    """Return the profile to save after a check has found the disk to be as fast as it says."""
    if saved.again is not None and compare(saved.again, saved.profile) == "slower":
        return SavedMeasurements(saved.profile)
    return saved
