"""From a disk's measurements to how rows are read from it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gnnstore.disk.profile import DeviceProfile, ReadTuning, tune_reads
from tests.support.disks import usual_profile

MIB = 1 << 20


def profile(rates: Mapping[int, Mapping[int, float]], *, is_direct: bool = True) -> DeviceProfile:
    return usual_profile(
        "/",
        is_direct=is_direct,
        measured_at="2026-01-02T03:04:05+00:00",
        sequential_read_bytes_per_second=2e9,
        random_reads_per_second=rates,
    )


def line(seconds_per_read: float, seconds_per_byte: float, depth: int = 64) -> DeviceProfile:
    """Return a disk whose reads take exactly a + b n."""
    return profile(
        {n: {depth: 1 / (seconds_per_read + n * seconds_per_byte)} for n in (512, 4096, 65536)}
    )


@pytest.mark.parametrize("disk", [None, profile({4096: {256: 1e6}, 65536: {1: 1e5}})])
def test_a_page_cache_counts_as_no_measurement(disk: DeviceProfile | None) -> None:
    if disk is not None:
        disk = profile(disk.random_reads_per_second, is_direct=False)
    assert tune_reads(disk) == ReadTuning(4096, 128, 65536, "defaults")


def test_a_gap_is_read_along_while_it_costs_less_than_a_read() -> None:
    # 8 us a read and 0.5 ns a byte: 16000 bytes cost as much as a read, which is 31.25 x 512.
    tuning = tune_reads(line(8e-6, 0.5e-9))
    assert tuning.gap_bytes == 31 * 512
    assert tuning.source == "profile of 2026-01-02T03:04:05+00:00"


def test_gaps_of_every_disk_are_whole_sectors_within_bounds() -> None:
    for read in (0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 10.0):
        for byte in (1e-11, 1e-10, 1e-9, 1e-8, 1e-7):
            disk = line(read, byte)
            gap = tune_reads(disk).gap_bytes
            assert gap % 512 == 0
            most = 16 << 10 if disk.best_rate(4096) >= 10_000 else MIB
            assert 0 <= gap <= most
            if gap < most:
                assert read / byte - 512 * 1.001 <= gap <= read / byte * 1.001


def test_two_measurements_of_a_busy_disk_differ_within_bounds() -> None:
    quiet, busy = (tune_reads(line(gap * 0.5e-9, 0.5e-9)) for gap in (10_752, 51_200))
    assert (quiet.gap_bytes, busy.gap_bytes) == (10_752, 16_384)
    assert quiet.max_read_bytes == busy.max_read_bytes == 65_536


def test_a_spinning_disk_reads_much_at_once() -> None:
    tuning = tune_reads(line(8e-3, 1 / 150e6, depth=8))  # 8 ms, 150 MB/s
    assert tuning == ReadTuning(MIB, 16, MIB // 2, tuning.source)


@pytest.mark.parametrize(
    ("seconds_per_read", "depth", "max_read_bytes"),
    [
        (8e-6, 64, 64 << 10),  # a gap of 16 kB: four are 64 kB
        (200e-6, 16, 512 << 10),
        (200e-6, 64, 128 << 10),  # 64 x 128 KiB are the 8 MiB that staging may take
        (200e-6, 128, 64 << 10),
    ],
)
def test_longer_reads_where_gaps_are_long_and_memory_allows_it(
    seconds_per_read: float, depth: int, max_read_bytes: int
) -> None:
    tuning = tune_reads(line(seconds_per_read, 0.5e-9, depth))
    assert tuning.queue_depth == depth
    assert tuning.max_read_bytes == max_read_bytes
    assert tuning.max_read_bytes * depth <= 8 * MIB


def test_the_queue_is_as_deep_as_either_size_of_rows_needs() -> None:
    large = {65536: {1: 1e4, 256: 2e4}}  # what large reads need does not count
    both = {512: {32: 1e5, 64: 2e5}, 4096: {32: 1e5, 64: 1.01e5}, **large}
    assert tune_reads(profile(both)).queue_depth == 64
    del both[512]
    assert tune_reads(profile(both)).queue_depth == 32


def test_the_queue_stays_within_bounds() -> None:
    for depth, expected in ((1, 16), (16, 16), (17, 17), (128, 128), (4096, 128)):
        assert tune_reads(line(1e-5, 1e-9, depth)).queue_depth == expected
