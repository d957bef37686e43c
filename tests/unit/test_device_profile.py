"""What is kept of a disk's measurements, and what is made of a file that is not one of ours."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnnstore.disk import profile as module
from gnnstore.disk.profile import (
    DeviceProfile,
    Mount,
    filesystem_id,
    find_mount,
    load_profile,
    profile_path,
    save_profile,
)
from gnnstore.errors import StorageError

RATES = {
    512: {1: 10_000.0, 64: 100_000.0},
    4096: {1: 9_000.0, 32: 97_000.0, 64: 100_000.0, 128: 99_000.0},
    65536: {1: 4_000.0, 8: 20_000.0},
}


def make_profile(path: Path, **changes: Any) -> DeviceProfile:
    fields: dict[str, Any] = {
        "filesystem_id": filesystem_id(path),
        "mount_point": "/data",
        "device": "/dev/disk",
        "filesystem_type": "ext4",
        "engine": "io_uring",
        "is_direct": True,
        "measured_at": "2026-01-02T03:04:05+00:00",
        "sequential_read_bytes_per_second": 2e9,
        "sequential_write_bytes_per_second": 1e9,
        "random_reads_per_second": RATES,
    }
    return DeviceProfile(**{**fields, **changes})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep profiles in a directory of the test's own."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    return directory


def test_what_is_saved_is_loaded(tmp_path: Path, cache: Path) -> None:
    profile = make_profile(tmp_path)
    file = save_profile(profile)
    assert file == cache / "gnnstore" / "devices" / f"{profile.filesystem_id}.json"
    assert load_profile(tmp_path) == profile
    # A later measurement takes its place, and nothing else is left there.
    later = make_profile(tmp_path, measured_at="2026-02-02T00:00:00+00:00")
    save_profile(later)
    assert load_profile(tmp_path) == later
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_every_path_of_a_file_system_finds_it(tmp_path: Path) -> None:
    profile = make_profile(tmp_path)
    save_profile(profile)
    file = tmp_path / "a" / "file"
    file.parent.mkdir()
    file.write_bytes(b"x")
    assert load_profile(file) == load_profile(str(file.parent)) == profile


def test_without_a_measurement_there_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_profile(tmp_path) is None
    assert load_profile(tmp_path / "missing") is None
    assert not caplog.records


def test_the_best_rates_and_depths(tmp_path: Path) -> None:
    profile = make_profile(tmp_path)
    assert profile.best_rate(4096) == 100_000
    assert profile.best_depth(4096) == 32
    assert profile.best_depth(4096, share=0.98) == 64
    assert profile.best_depth(4096, share=1.0) == 64
    assert profile.best_depth(65536, share=0.1) == 1
    with pytest.raises(KeyError):
        profile.best_rate(8192)


def test_the_line_through_4_and_64_kib(tmp_path: Path) -> None:
    profile = make_profile(tmp_path)
    # 10 us for 4 KiB and 50 us for 64 KiB: 40 us for 61440 bytes.
    assert math.isclose(profile.seconds_per_byte, 40e-6 / 61440)
    assert math.isclose(profile.seconds_per_read, 10e-6 - 4096 * 40e-6 / 61440)
    at = [profile.seconds_per_read + n * profile.seconds_per_byte for n in (4096, 65536)]
    assert at == pytest.approx([1 / 100_000, 1 / 20_000])


def test_noise_does_not_make_bytes_free(tmp_path: Path) -> None:
    same = make_profile(tmp_path, random_reads_per_second={4096: {1: 50.0}, 65536: {1: 51.0}})
    assert same.seconds_per_byte == 1 / 2e9
    assert math.isclose(same.seconds_per_read, 1 / 50 - 4096 / 2e9)
    # Limited by its bandwidth alone: a read costs nothing beside its bytes.
    slope = make_profile(tmp_path, random_reads_per_second={4096: {1: 3200.0}, 65536: {1: 100.0}})
    assert slope.seconds_per_read == 0.0


def _truncated(text: str) -> str:
    return text[: len(text) // 2]


def _with(**changes: Any) -> Callable[[str], str]:
    def change(text: str) -> str:
        document = json.loads(text)
        document["profile"].update(changes)
        return json.dumps(document)

    return change


DAMAGE: dict[str, Callable[[str], str]] = {
    "empty": lambda _: "",
    "truncated": _truncated,
    "not an object": lambda _: "[1, 2]",
    "another file's": lambda _: '{"name": "something else"}',
    "a later version": lambda text: text.replace('"format_version": 1', '"format_version": 2'),
    "another file system's": _with(filesystem_id="xfs-1"),
    "no profile": lambda text: json.dumps({**json.loads(text), "profile": None}),
    "text for a rate": _with(sequential_read_bytes_per_second="fast"),
    "no bandwidth": _with(sequential_read_bytes_per_second=0),
    "negative": _with(sequential_write_bytes_per_second=-1.0),
    "infinite": lambda text: text.replace("2000000000.0", "Infinity"),
    "no blocks": _with(random_reads_per_second={}),
    "no 64 KiB": _with(random_reads_per_second={"4096": {"1": 5.0}}),
    "no depth": _with(random_reads_per_second={"4096": {}, "65536": {"1": 5.0}}),
    "a block in words": _with(random_reads_per_second={"4 KiB": {"1": 5.0}}),
    "a list of rates": _with(random_reads_per_second={"4096": [5.0], "65536": {"1": 5.0}}),
    "a rate that is null": _with(random_reads_per_second={"4096": {"1": None}}),
    "too large": lambda text: text + " " * (1 << 20),
    "deep": lambda _: '{"a":' * 2000 + "1" + "}" * 2000,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_profile_is_reported_and_ignored(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = save_profile(make_profile(tmp_path))
    damaged = DAMAGE[kind](file.read_text())
    assert damaged != file.read_text()
    file.write_text(damaged)
    assert load_profile(tmp_path) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(file) in record.getMessage()
    assert "gnnstore bench disk" in record.getMessage()


def test_a_profile_that_cannot_be_read_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = profile_path(filesystem_id(tmp_path))
    file.mkdir(parents=True)
    assert load_profile(tmp_path) is None
    assert "are not used" in caplog.text


def test_a_profile_that_cannot_be_kept_is_an_error(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file where the directory should be")
    with pytest.raises(StorageError, match="cannot keep the measurements"):
        save_profile(make_profile(tmp_path))
    assert load_profile(tmp_path) is None


def test_a_failed_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = make_profile(tmp_path)
    file = save_profile(profile)

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StorageError, match="no space left"):
        save_profile(make_profile(tmp_path, engine="pread"))
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]
    assert load_profile(tmp_path) == profile


@pytest.mark.parametrize("value", ["", "relative/cache"])
def test_where_the_variable_says_nothing_the_home_directory_does(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert profile_path("x-1") == tmp_path / "home/.cache/gnnstore/devices/x-1.json"
    save_profile(make_profile(tmp_path))
    assert (tmp_path / "home/.cache/gnnstore/devices").is_dir()


def test_a_user_without_a_home_has_no_profiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr("gnnstore.disk.profile._warned", set(), raising=False)
    with pytest.raises(StorageError, match="set XDG_CACHE_HOME"):
        save_profile(make_profile(tmp_path))
    (tmp_path / "other").mkdir()
    for path in (tmp_path, tmp_path, tmp_path / "other"):
        assert load_profile(path) is None
    (said,) = (record.getMessage() for record in caplog.records)  # once for a disk
    kept = f"$XDG_CACHE_HOME/gnnstore/devices/{filesystem_id(tmp_path)}.json"
    assert said.endswith(f"`gnnstore bench disk {tmp_path}` keeps them in {kept}")


# --- the file system's name ---------------------------------------------------------------------


def test_a_file_system_has_one_name(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    assert filesystem_id(tmp_path) == filesystem_id(tmp_path / "deeper")
    assert filesystem_id(tmp_path) != filesystem_id("/proc")
    assert "/" not in filesystem_id(tmp_path)
    with pytest.raises(FileNotFoundError):
        filesystem_id(tmp_path / "missing")


def test_mounts_are_found_by_the_longest_point(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    # `home` is no prefix of `homes`, and of two mounts on one point the later counts.
    mounts.write_text(
        "/dev/a / ext4 rw 0 0\n"
        "/dev/b /home xfs rw 0 0\n"
        "old /home/u tmpfs rw 0 0\n"
        "server:/x /home/u fuse.sshfs rw 0 0\n"
        "/dev/c /mnt/with\\040space\\134 ext4 rw 0 0\n"
        "\n"
    )
    assert find_mount("/homes/u", mounts) == Mount("/", "/dev/a", "ext4")
    assert find_mount("/home/v", mounts) == Mount("/home", "/dev/b", "xfs")
    assert find_mount("/home/u/w", mounts) == Mount("/home/u", "server:/x", "fuse.sshfs")
    found = find_mount("/mnt/with space\\/d", mounts)
    assert found.point == "/mnt/with space\\"
    assert find_mount("/", tmp_path / "missing") == Mount()


def test_file_systems_without_an_identity_are_told_apart_by_their_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoIdentity:
        f_fsid = 0

    mounts = {"/a": Mount("/a", "server:/x", "nfs4"), "/b": Mount("/b", "server:/y", "nfs4")}
    monkeypatch.setattr(os, "statvfs", lambda _: NoIdentity)
    monkeypatch.setattr(module, "find_mount", lambda path: mounts.get(str(path), Mount()))
    assert filesystem_id("/a") != filesystem_id("/b")
    assert filesystem_id("/a") == filesystem_id("/a")
    assert filesystem_id("/a").startswith("nfs4-")
    assert filesystem_id("/c").startswith("unknown-")
