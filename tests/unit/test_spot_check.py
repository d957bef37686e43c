"""The look at a disk before its measurements are used: what it reads, how long, and when not."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import _core
from gnnstore.disk.profile import spot_check as module
from gnnstore.disk.profile.device_profile import DeviceProfile
from gnnstore.disk.profile.spot_check import SpotCheck, spot_check
from gnnstore.testing.faults import inject
from tests.support.disks import usual_profile

MIB = 1 << 20
WINDOW = 2 * MIB


def profile_of(seconds_of_a_read: Callable[[int, int], float]) -> DeviceProfile:
    depths = [2**k for k in range(9)]
    return usual_profile(
        "/",
        sequential_read_bytes_per_second=MIB / seconds_of_a_read(MIB, 8),
        random_reads_per_second={
            block: {depth: 1 / seconds_of_a_read(block, depth) for depth in depths}
            for block in (4096, 65536)
        },
    )


def nvme(block_bytes: int, depth: int) -> float:
    return max(80e-6 / depth, 2e-6, block_bytes / 3e9)


def sata(block_bytes: int, depth: int) -> float:
    return max(120e-6 / depth, 12e-6, block_bytes / 5e8)


def virtual(block_bytes: int, depth: int) -> float:
    return max(1e-3 / depth, 1 / 3000, block_bytes / 1e8)


def spinning(block_bytes: int, depth: int) -> float:
    return block_bytes / 150e6 + (0.01 if block_bytes < MIB else 0)


DISKS = (nvme, sata, virtual, spinning)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with a file that is worth reading, among others that are not."""
    monkeypatch.setattr(module, "_WINDOW_BYTES", WINDOW)
    rng = np.random.default_rng(0)
    directory = tmp_path / "g.gnn"
    (directory / "nodes" / "x").mkdir(parents=True)
    (directory / "small").write_bytes(rng.bytes(WINDOW - 1))
    with (directory / "sparse").open("wb") as file:
        file.truncate(4 * WINDOW)
    (directory / "nodes" / "x" / "c.0").write_bytes(rng.bytes(4 * MIB + 123))
    return directory


class Simulated:
    """A disk with a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds_of_a_read: Any) -> None:
        self.now = 0.0
        self.files: list[tuple[str, int]] = []
        self.reads: list[tuple[int, int, np.ndarray[Any, Any]]] = []  # block, depth, offsets
        disk = self

        class Files:
            is_direct = True
            alignment_bytes = 512

            def __init__(self, paths: Any, body_bytes: Any) -> None:
                disk.files.append((paths[0], body_bytes[0]))

        class Reader:
            def __init__(self, _engine: str, *, queue_depth: int, **_options: int) -> None:
                self._depth = queue_depth

            def describe(self) -> str:
                return "simulated"

            def read_ranges(
                self, _files: Any, _i: Any, offsets: Any, num_bytes: Any, _p: Any, _out: Any
            ) -> None:
                block = int(num_bytes[0])
                disk.reads.append((block, self._depth, offsets))
                disk.now += offsets.size * seconds_of_a_read(block, self._depth)

        monkeypatch.setattr(_core, "FileSet", Files)
        monkeypatch.setattr(_core, "Reader", Reader)
        monkeypatch.setattr("gnnstore.disk.profile.rates.perf_counter", lambda: disk.now)


def checked(store: Path, profile: DeviceProfile) -> SpotCheck:
    found = spot_check(store, profile)
    assert found is not None
    return found


@pytest.mark.parametrize("disk", DISKS)
def test_a_disk_is_what_it_was(disk: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = Simulated(monkeypatch, disk)
    found = checked(store, profile_of(disk))
    assert found.verdict == "agrees"
    assert found.reads_per_second == pytest.approx(found.expected_reads_per_second)
    assert found.bytes_per_second == pytest.approx(found.expected_bytes_per_second)
    assert simulated.now <= 0.2
    # Several slices, so that a stall in one of them does not decide.
    assert sum(block == 4096 for block, _, _ in simulated.reads) >= 2


@pytest.mark.parametrize(("factor", "verdict"), [(3, "slower"), (1 / 3, "faster"), (1.8, "agrees")])
@pytest.mark.parametrize("disk", DISKS)
def test_a_disk_that_is_not(
    disk: Any, factor: float, verdict: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = Simulated(monkeypatch, lambda block, depth: factor * disk(block, depth))
    found = checked(store, profile_of(disk))
    assert found.verdict == verdict
    assert found.reads_per_second * factor == pytest.approx(found.expected_reads_per_second)
    assert simulated.now <= 0.5


@pytest.mark.parametrize("disk", DISKS)
def test_a_disk_that_hardly_answers_does_not_take_long(
    disk: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = Simulated(monkeypatch, lambda block, depth: 10 * disk(block, depth))
    assert checked(store, profile_of(disk)).verdict == "slower"
    assert simulated.now <= 1.0


@pytest.mark.parametrize("size", [4096, MIB])
def test_each_of_the_two_looks_counts(
    size: int, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(monkeypatch, lambda block, depth: nvme(block, depth) * (3 if block == size else 1))
    assert checked(store, profile_of(nvme)).verdict == "slower"


def test_a_stall_does_not_count(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def stalling(block: int, depth: int) -> float:
        nonlocal calls
        calls += 1
        return sata(block, depth) * (5 if calls % 8 == 2 else 1)

    Simulated(monkeypatch, stalling)
    assert checked(store, profile_of(sata)).verdict == "agrees"


def test_what_is_read(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = Simulated(monkeypatch, nvme)
    begins = set()
    for _ in range(30):
        simulated.reads.clear()
        checked(store, profile_of(nvme))
        offsets = np.concatenate([offsets for _, _, offsets in simulated.reads])
        ends = np.concatenate([offsets + block for block, _, offsets in simulated.reads])
        begins.add(int(offsets.min()))
        assert not (offsets % 4096).any()
        assert ends.max() <= offsets.min() + WINDOW
        assert ends.max() <= 4 * MIB
    assert begins == {0, MIB, 2 * MIB}, "not the same part each time"
    # Neither the small one nor the one without blocks; and whole blocks of it.
    assert set(simulated.files) == {(str(store / "nodes" / "x" / "c.0"), 4 * MIB)}


def test_deep_queues_are_for_disks_that_need_them(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for disk in DISKS:
        simulated = Simulated(monkeypatch, disk)
        checked(store, profile_of(disk))
        found[disk] = {depth for block, depth, _ in simulated.reads if block == 4096}
    assert found == {nvme: {64}, sata: {16}, virtual: {4}, spinning: {1}}


# --- where there is none ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"is_direct": False},
        {"engine": "assumed"},
        {"random_reads_per_second": {4096: {4000: 1e5}, 65536: {1: 1e4}}},
    ],
)
def test_not_every_profile_can_be_checked(
    changes: dict[str, Any], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = Simulated(monkeypatch, nvme)
    assert spot_check(store, replace(profile_of(nvme), **changes)) is None
    assert simulated.reads == []


def test_small_stores_are_not_read(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = Simulated(monkeypatch, nvme)
    (store / "nodes" / "x" / "c.0").unlink()
    assert spot_check(store, profile_of(nvme)) is None
    assert simulated.files == []


def test_a_file_on_another_disk_is_not_read(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Simulated(monkeypatch, nvme)
    real = Path.stat

    def elsewhere(self: Path, **options: Any) -> os.stat_result:
        entry = real(self, **options)
        if self.name != "c.0":
            return entry
        return os.stat_result((*entry[:2], entry.st_dev + 1, *entry[3:]), {"st_blocks": 1 << 40})

    monkeypatch.setattr(Path, "stat", elsewhere)
    assert spot_check(store, profile_of(nvme)) is None


def test_the_page_cache_is_not_asked(store: Path) -> None:
    with inject("open", errno=errno.EINVAL):
        assert spot_check(store, profile_of(nvme)) is None


def test_it_looks_at_the_real_disk(store: Path) -> None:
    before = sorted(store.rglob("*"))
    started = time.perf_counter()
    found = spot_check(store, profile_of(sata))
    elapsed = time.perf_counter() - started
    if found is None:
        pytest.skip("this file system knows no direct reads")
    assert found.reads_per_second > 0
    assert found.bytes_per_second > 0
    assert elapsed < 30  # whatever else runs here
    assert sorted(store.rglob("*")) == before


def test_a_read_that_fails_is_an_error(store: Path) -> None:
    if spot_check(store, profile_of(sata)) is None:
        pytest.skip("this file system knows no direct reads")
    with inject("pread", errno=errno.EIO, skip=10), pytest.raises(OSError, match=r"c\.0"):
        spot_check(store, profile_of(sata))


def test_a_store_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        spot_check(tmp_path / "missing", profile_of(nvme))
