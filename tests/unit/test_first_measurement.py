"""Saved measurements: made at the first use, used for 30 days, made again after them."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnnstore.disk import measure as module
from gnnstore.disk.measure import disk_profile
from gnnstore.disk.profile import (
    DeviceProfile,
    filesystem_id,
    load_profile,
    profile_path,
    save_profile,
)
from gnnstore.errors import StorageError
from tests.support.disks import usual_profile

DAY = 86400.0


class Disk:
    """A disk whose speed is set, in multiples of what it usually does; and its user."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.speed = 1.0
        self.is_direct = True
        self.error: Exception | None = None
        self.measurements = 0
        self._patch = monkeypatch
        monkeypatch.setattr(module, "measure_disk", self._measure)

    def profile(self, speed: float = 1.0) -> DeviceProfile:
        rates = {4096: {1: speed * 1e4, 64: speed * 1e5}, 65536: {1: speed * 5e3}}
        return usual_profile(self.path, random_reads_per_second=rates)

    def next_process(self, after: float = DAY) -> float:
        """Return the speed that another process goes by, some time later."""
        self._patch.setattr(module, "_kept", {})
        file = profile_path(filesystem_id(self.path))
        if file.exists():
            changed = file.stat().st_mtime - after
            os.utime(file, (changed, changed))
        return self.used_speed()

    def used_speed(self) -> float:
        return disk_profile(self.path).best_rate(4096) / 1e5

    def _measure(self, path: Path, **_: Any) -> Any:
        assert path == self.path
        self.measurements += 1
        if self.error is not None:
            raise self.error
        return SimpleNamespace(profile=replace(self.profile(self.speed), is_direct=self.is_direct))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(module, "_kept", {})
    return Disk(tmp_path, monkeypatch)


def test_a_disk_is_measured_again_after_30_days(disk: Disk) -> None:
    assert disk.used_speed() == 1
    disk.speed = 3.0
    assert disk.next_process(29 * DAY) == 1
    assert disk.measurements == 1
    assert disk.next_process(2 * DAY) == 3
    assert disk.next_process() == 3
    assert disk.measurements == 2


def test_a_measurement_by_hand_is_used(disk: Disk) -> None:
    disk.used_speed()
    save_profile(disk.profile(0.1))
    assert disk.used_speed() == disk.next_process() == pytest.approx(0.1)
    assert disk.measurements == 1


def test_a_damaged_measurement_is_made_again(disk: Disk) -> None:
    save_profile(disk.profile(0.1)).write_text("{")
    assert disk.used_speed() == 1
    assert load_profile(disk.path) == disk.profile()


@pytest.mark.parametrize("error", [OSError(30, "read-only"), StorageError("full"), None])
def test_where_it_cannot_be_measured_again_the_old_one_is_used(
    disk: Disk, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    disk.used_speed()
    disk.speed, disk.is_direct, disk.error = 50.0, False, error  # the page cache's speed
    with caplog.at_level(logging.INFO):
        assert disk.next_process(31 * DAY) == 1
    assert disk.used_speed() == 1
    assert disk.measurements == 2
    (record,) = caplog.records
    assert "rates come from a profile of 2026-01-02T00:00:00+00:00" in record.getMessage()
    assert load_profile(disk.path) == disk.profile()


def test_what_cannot_be_measured_is_assumed(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    disk.error = OSError(30, "Read-only file system")
    with caplog.at_level(logging.INFO):
        assert disk.used_speed() == disk.used_speed() == 0.8
    assert "rates of flash are assumed" in caplog.text
    assert disk.measurements == 1
    assert load_profile(disk.path) is None


def test_what_cannot_be_kept_is_used_for_the_process(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: DeviceProfile) -> Path:
        raise StorageError("cannot keep the measurements")

    monkeypatch.setattr(module, "save_profile", refuse)
    with caplog.at_level(logging.INFO):
        assert disk.used_speed() == disk.used_speed() == 1
    assert "they are kept for the rest of this process" in caplog.text
    assert disk.measurements == 1


# --- several processes --------------------------------------------------------------------------


def test_only_one_process_measures_at_a_time(disk: Disk) -> None:
    directory = profile_path(filesystem_id(disk.path)).parent
    directory.mkdir(parents=True)
    other = os.open(directory, os.O_RDONLY)
    found: list[float] = []
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: found.append(disk.used_speed()))
        waiting.start()
        time.sleep(0.2)
        assert (disk.measurements, found) == (0, [])
        save_profile(disk.profile(3))
    finally:
        os.close(other)
    waiting.join(30)
    assert found == [3], "what the other found"
    assert disk.measurements == 0


def test_nobody_waits_for_ever(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ATTEMPTS", 2)
    directory = profile_path(filesystem_id(disk.path)).parent
    directory.mkdir(parents=True)
    other = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert disk.used_speed() == 1
    finally:
        os.close(other)
