"""Measurements that are kept: when they are believed, checked, and made again."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnnstore.disk.profile import first_use as module
from gnnstore.disk.profile.device_profile import (
    DeviceProfile,
    SavedMeasurements,
    filesystem_id,
    load_measurements,
    load_profile,
    profile_path,
    save_measurements,
    save_profile,
)
from gnnstore.disk.profile.first_use import disk_profile
from gnnstore.disk.profile.spot_check import SpotCheck
from gnnstore.errors import StorageError
from tests.support.disks import usual_profile


class Disk:
    """A disk whose speed is set, in multiples of what it usually does; and its user."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.speed = 1.0
        self.seen_speed: float | None = None  # by a look, where that differs
        self.looks = 0
        self.measurements = 0
        self._patch = monkeypatch
        monkeypatch.setattr(module, "measure_disk", self._measure)
        monkeypatch.setattr(module, "spot_check", self._look)

    def profile(self, speed: float = 1.0, age: timedelta = timedelta(0)) -> DeviceProfile:
        return usual_profile(
            self.path,
            measured_at=(datetime.now(UTC) - age).isoformat(timespec="seconds"),
            sequential_read_bytes_per_second=speed * 1e9,
            random_reads_per_second={
                4096: {1: speed * 1e4, 64: speed * 1e5},
                65536: {1: speed * 5e3, 64: speed * 1.5e4},
            },
        )

    def next_process(self, after: timedelta = timedelta(minutes=5)) -> float:
        """Return the speed that another process goes by, some time later."""
        self._patch.setattr(module, "_kept", {})
        self._patch.setattr(module, "_checked", set())
        kept = load_measurements(self.path)
        if kept is not None:
            changed = profile_path(kept.profile.filesystem_id).stat().st_mtime
            if kept.again is not None:
                then = datetime.fromisoformat(kept.again.measured_at) - after
                kept = SavedMeasurements(
                    kept.profile, replace(kept.again, measured_at=then.isoformat())
                )
            file = save_measurements(kept)
            os.utime(file, (0, changed - after.total_seconds()))
        return self.used_speed()

    def used_speed(self) -> float:
        return disk_profile(self.path).best_rate(4096) / 1e5

    def _measure(self, path: Path, **_: Any) -> Any:
        assert path == self.path
        self.measurements += 1
        return SimpleNamespace(profile=self.profile(self.speed))

    def _look(self, path: Path, profile: DeviceProfile) -> SpotCheck:
        assert path == self.path
        self.looks += 1
        speed = self.speed if self.seen_speed is None else self.seen_speed
        expected = profile.best_rate(4096), profile.sequential_read_bytes_per_second
        return SpotCheck(speed * 1e5, expected[0], speed * 1e9, expected[1])


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(module, "_kept", {})
    monkeypatch.setattr(module, "_checked", set())
    return Disk(tmp_path, monkeypatch)


HOUR = timedelta(hours=1)


def test_a_disk_that_stays_the_same_is_measured_once(disk: Disk) -> None:
    assert disk.used_speed() == 1
    assert disk.next_process() == 1
    assert disk.next_process(100 * HOUR) == 1
    assert (disk.measurements, disk.looks) == (1, 2)


def test_a_process_looks_once(disk: Disk) -> None:
    disk.used_speed()
    assert disk.looks == 0, "it was measured just now"
    disk.next_process()
    disk.speed = 0.1
    assert disk.used_speed() == 1
    assert (disk.measurements, disk.looks) == (1, 1)


def test_processes_that_start_together_look_once(disk: Disk) -> None:
    disk.used_speed()
    disk.next_process()
    for _ in range(7):
        disk.next_process(timedelta(seconds=1))
    assert (disk.measurements, disk.looks) == (1, 1)
    disk.next_process(timedelta(minutes=1))
    assert disk.looks == 2


def test_a_file_from_the_future_is_looked_at(disk: Disk) -> None:
    save_profile(disk.profile())
    disk.next_process(-HOUR)
    assert disk.looks == 1


def test_what_was_measured_in_a_busy_minute_is_corrected(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.speed = 0.1
    assert disk.used_speed() == pytest.approx(0.1)
    disk.speed = 1.0
    with caplog.at_level(logging.INFO):
        assert disk.next_process() == 1
    assert disk.measurements == 2
    (record,) = caplog.records
    text = record.getMessage()
    assert "did 100,000 random reads and 1 GB in order a second" in text
    assert "have 10,000 and 100 MB" in text
    assert "it was measured again, and the new measurements are used from now on" in text
    assert disk.next_process() == 1
    assert disk.measurements == 2


def test_a_busy_minute_does_not_take_a_good_profile_away(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.used_speed()
    disk.speed = 0.1
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert disk.next_process() == 1
    assert disk.measurements == 2, "not again within the hour"
    first, *others = [record.getMessage() for record in caplog.records]
    assert "was slower. Something else may be using it" in first
    assert len(others) == 2
    assert all("measured again less than an hour ago" in text for text in others)
    # What is seen when nothing uses it any more saves it for good.
    disk.speed = 1.0
    assert disk.next_process() == 1
    disk.speed = 0.1
    assert disk.next_process(5 * HOUR) == 1
    assert disk.measurements == 3


def test_a_disk_that_became_slower_is_believed_the_second_time(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.used_speed()
    disk.speed = 0.1
    assert disk.next_process() == 1
    with caplog.at_level(logging.INFO):
        assert disk.next_process(2 * HOUR) == pytest.approx(0.1)
    assert "it was measured again twice, an hour apart or more" in caplog.text
    assert disk.next_process() == pytest.approx(0.1)
    assert disk.measurements == 3
    disk.speed = 1.0
    assert disk.next_process() == 1


def test_where_looks_and_measurements_differ_it_is_measured_once_an_hour(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.used_speed()
    for speed in (0.1, 10.0):
        disk.seen_speed = speed
        measured = disk.measurements
        with caplog.at_level(logging.INFO):
            assert disk.next_process(2 * HOUR) == 1
            assert disk.next_process() == 1
        assert disk.measurements == measured + 1
    assert "which agreed with these; they are used" in caplog.text


def test_a_measurement_by_hand_takes_the_place_of_all(disk: Disk) -> None:
    disk.used_speed()
    disk.speed = 0.1
    disk.next_process()
    by_hand = disk.profile(0.1)
    save_profile(by_hand)
    assert load_measurements(disk.path) == SavedMeasurements(by_hand)
    assert disk.next_process() == pytest.approx(0.1)
    assert disk.measurements == 2


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), StorageError("no")])
def test_a_look_that_fails_changes_nothing(
    disk: Disk, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.used_speed()

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(module, "spot_check", fail)
    disk.speed = 10.0
    assert disk.next_process() == 1
    assert disk.measurements == 1


def test_a_store_that_is_too_small_says_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.used_speed()
    disk.speed = 10.0
    with monkeypatch.context() as patch:
        patch.setattr(module, "spot_check", lambda *_: None)
        assert disk.next_process() == 1
        assert disk.measurements == 1
    # A larger one in the same process does.
    assert disk.used_speed() == 10


@pytest.mark.parametrize("error", [OSError(30, "Read-only file system"), StorageError("full")])
def test_a_disk_that_cannot_be_measured_again(
    disk: Disk,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk.used_speed()
    before = load_measurements(disk.path)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(module, "measure_disk", fail)
    disk.speed = 10.0
    with caplog.at_level(logging.INFO):
        assert disk.next_process() == 1
    assert "it cannot be measured again" in caplog.text
    assert load_measurements(disk.path) == before


def test_the_page_cache_is_not_believed(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk.used_speed()
    disk.speed = 10.0
    memory = SimpleNamespace(profile=replace(disk.profile(50), is_direct=False))
    monkeypatch.setattr(module, "measure_disk", lambda *_, **__: memory)
    with caplog.at_level(logging.INFO):
        assert disk.next_process() == 1
    assert "only be measured through the page cache" in caplog.text


def test_what_cannot_be_kept_is_used_for_the_process(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_profile(disk.profile(0.1))

    def refuse(_: SavedMeasurements) -> Path:
        raise StorageError("cannot keep the measurements")

    with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(module, "save_measurements", refuse)
        assert disk.next_process() == 1
        assert disk.used_speed() == 1
    assert "they are kept for the rest of this process" in caplog.text
    found = load_profile(disk.path)
    assert found is not None
    assert found.best_rate(4096) == pytest.approx(1e4)
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
    assert (disk.measurements, disk.looks) == (0, 0)


def test_nobody_waits_for_ever(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_WAIT_SECONDS", 0.1)
    directory = profile_path(filesystem_id(disk.path)).parent
    directory.mkdir(parents=True)
    other = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert disk.used_speed() == 1
    finally:
        os.close(other)


def test_a_file_system_without_locks(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    started = time.monotonic()
    assert disk.used_speed() == 1
    assert time.monotonic() - started < module._MAX_WAIT_SECONDS


def test_the_lock_is_given_back(disk: Disk) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    disk.used_speed()
    disk.next_process()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
