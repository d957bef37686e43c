"""Measurements of a disk that are kept beforehand, so that choices do not depend on the hour."""

from __future__ import annotations

from pathlib import Path

from gnnstore.planning.device_profile import DeviceProfile, filesystem_id, save_profile


def keep_usual_profile(path: Path) -> None:
    """Keep what a usual flash disk does as if it had been measured where `path` is, just now."""
    save_profile(
        DeviceProfile(
            filesystem_id=filesystem_id(path),
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
    )
