"""Saved measurements of a disk, so that choices in tests do not depend on its load."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from gnnstore.disk import measure
from gnnstore.disk.profile import DeviceProfile, filesystem_id, save_profile


def usual_profile(place: str | os.PathLike[str], **changes: Any) -> DeviceProfile:
    """Return the profile of a common flash disk, for the file system of `place`."""
    profile = DeviceProfile(
        filesystem_id=filesystem_id(place),
        mount_point="/",
        device="disk",
        filesystem_type="ext4",
        engine="pread",
        is_direct=True,
        measured_at="2026-01-02T00:00:00+00:00",
        sequential_read_bytes_per_second=1e9,
        sequential_write_bytes_per_second=1e9,
        random_reads_per_second={
            4096: {1: 8_000.0, 64: 80_000.0},
            65536: {1: 4_000.0, 64: 10_000.0},
        },
    )
    return replace(profile, **changes)


def keep_usual_profile(place: str | os.PathLike[str]) -> None:
    """Save the profile of a common flash disk as if it had been measured at `place` just now."""
    save_profile(usual_profile(place))


def measure_in_no_time() -> None:
    """Let this process measure disks for a moment at their first use, not for 3 seconds."""
    measure._FIRST_SECONDS, measure._FIRST_BYTES = 0.1, 1 << 20
