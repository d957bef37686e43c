"""Which measurement of a disk is believed, when they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gnnstore.disk.profile.device_profile import DeviceProfile, SavedMeasurements
from gnnstore.disk.profile.merge_profiles import compare, confirmed, is_due, judge, merged
from tests.support.disks import usual_profile

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
GOOD = usual_profile(
    "/",
    filesystem_id="ext4-1",
    random_reads_per_second={4096: {1: 1e4, 64: 1e5}, 65536: {1: 5e3, 64: 1.5e4}},
)


def times(factor: float, at: datetime = NOON, *, only: str = "") -> DeviceProfile:
    """Return measurements of the same disk that are so many times higher, all or one kind."""
    rates = GOOD.random_reads_per_second
    small, large, sequence = (
        factor if only in {"", what} else 1.0 for what in ("small", "large", "sequence")
    )
    return replace(
        GOOD,
        measured_at=at.isoformat(),
        sequential_read_bytes_per_second=sequence * 1e9,
        random_reads_per_second={
            4096: {depth: rate * small for depth, rate in rates[4096].items()},
            65536: {depth: rate * large for depth, rate in rates[65536].items()},
        },
    )


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.0, 1.0), "agrees"),
        ((0.51, 1.99), "agrees"),
        ((2.01, 1.0), "faster"),
        ((1.0, 0.49), "slower"),
        ((10.0, 0.49), "slower"),
    ],
)
def test_a_factor_of_two_is_a_difference(ratios: Sequence[float], verdict: str) -> None:
    assert judge(ratios) == verdict


@pytest.mark.parametrize("what", ["small", "large", "sequence"])
def test_each_kind_of_read_counts(what: str) -> None:
    assert compare(times(3.0, only=what), GOOD) == "faster"
    assert compare(times(0.3, only=what), GOOD) == "slower"
    assert compare(times(0.7, only=what), GOOD) == "agrees"


def test_queues_that_only_one_of_them_has_do_not_count() -> None:
    shallow = replace(GOOD, random_reads_per_second={4096: {1: 1e4}, 65536: {1: 5e3}})
    assert compare(shallow, GOOD) == compare(GOOD, shallow) == "agrees"
    strange = replace(GOOD, random_reads_per_second={4096: {3: 1e4}, 65536: {3: 1.5e4}})
    assert compare(strange, GOOD) == "slower"
    assert compare(GOOD, strange) == "faster"


def test_a_faster_one_is_believed_at_once() -> None:
    faster = times(10)
    assert merged(SavedMeasurements(GOOD), faster) == SavedMeasurements(faster)
    assert merged(SavedMeasurements(GOOD, times(0.1)), faster) == SavedMeasurements(faster)


def test_a_slower_one_is_believed_the_second_time() -> None:
    first, second = times(0.1), times(0.2, NOON + timedelta(hours=2))
    kept = merged(SavedMeasurements(GOOD), first)
    assert kept == SavedMeasurements(GOOD, first)
    # The faster of the two: something else may still have used the disk.
    assert merged(kept, second) == SavedMeasurements(second)
    assert merged(SavedMeasurements(GOOD, second), first) == SavedMeasurements(second)


def test_what_comes_between_two_slower_ones_saves_the_first() -> None:
    slower, same = times(0.1), times(1.2)
    kept = merged(SavedMeasurements(GOOD, slower), same)
    assert kept == SavedMeasurements(GOOD, same)
    assert merged(kept, slower) == SavedMeasurements(GOOD, slower)
    assert confirmed(SavedMeasurements(GOOD, slower)) == SavedMeasurements(GOOD)


def test_a_check_that_agrees_changes_nothing_else() -> None:
    for kept in (SavedMeasurements(GOOD), SavedMeasurements(GOOD, times(1.2))):
        assert confirmed(kept) is kept


def test_the_page_cache_is_not_believed() -> None:
    memory = replace(times(30), is_direct=False)
    assert merged(SavedMeasurements(GOOD), memory) == SavedMeasurements(GOOD)


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (timedelta(minutes=59), False),
        (timedelta(0), False),
        (timedelta(hours=1), True),
        (timedelta(days=400), True),
        # The clock was set back since: when it really was cannot be known.
        (timedelta(hours=-1), True),
    ],
)
def test_doubts_are_followed_once_an_hour(age: timedelta, expected: bool) -> None:
    assert is_due(SavedMeasurements(GOOD, times(0.1)), NOON + age) == expected


@pytest.mark.parametrize(
    ("measured_at", "expected"),
    [("2026-03-04T11:30:00", False), ("2026-03-04T11:30:00+02:00", True), ("never", True)],
)
def test_times_that_somebody_else_wrote(measured_at: str, expected: bool) -> None:
    again = replace(GOOD, measured_at=measured_at)
    assert is_due(SavedMeasurements(GOOD, again), NOON) == expected


def test_without_an_earlier_doubt_one_is_followed() -> None:
    assert is_due(SavedMeasurements(GOOD), NOON)
