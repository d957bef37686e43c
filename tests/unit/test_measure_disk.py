"""Measuring a disk: honest numbers, in bounded time and space, and nothing left behind."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import _core
from gnnstore.disk import measure as module
from gnnstore.disk.engines import EngineChoice
from gnnstore.disk.measure import (
    BLOCK_BYTES,
    QUEUE_DEPTHS,
    DiskMeasurement,
    at_random,
    measure_disk,
    open_scratch_file,
    read_rate,
    write_file,
)
from gnnstore.disk.profile import filesystem_id
from gnnstore.errors import NoSpaceError, NotFoundError, StorageError, UsageError
from tests.support.effort import choose
from tests.support.faults import inject

MIB = 1 << 20


def ignore(_: int) -> None:
    """Take no notice of progress."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return an empty directory, where nothing may be left."""
    directory = tmp_path / "place"
    directory.mkdir()
    return directory


@pytest.fixture(params=["nameless", "named"])
def naming(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the file system have files without names, or not."""
    if request.param == "named":
        real = os.open

        def no_tmpfile(path: Any, flags: int, *arguments: Any, **keywords: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "Operation not supported")
            return real(path, flags, *arguments, **keywords)

        monkeypatch.setattr(os, "open", no_tmpfile)
    return str(request.param)


def quick(place: Path, **changes: Any) -> DiskMeasurement:
    return measure_disk(place, **{"num_bytes": 4 * MIB, "seconds": 0.3, **changes})


# --- a real measurement -----------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["io_uring", "pread"])
def test_it_measures_and_leaves_nothing(engine: str, naming: str, place: Path) -> None:
    (place / "file").write_bytes(b"x")
    try:
        _core.probe_engine(engine, place / "file")
    except OSError as error:
        pytest.skip(f"{engine} is not available here: {error}")
    (place / "file").unlink()
    measured = quick(place, engine=engine)
    assert list(place.iterdir()) == []
    assert measured.file_bytes == 4 * MIB
    assert measured.directory == str(place)
    profile = measured.profile
    assert profile.engine == engine
    assert profile.filesystem_id == filesystem_id(place)
    assert set(profile.random_reads_per_second) <= set(BLOCK_BYTES)
    assert {4096, 65536} <= set(profile.random_reads_per_second)
    for rates in profile.random_reads_per_second.values():
        # The shallowest first, and none left out in between.
        assert tuple(rates) == QUEUE_DEPTHS[: len(rates)]
        assert len(rates) >= 1
        assert all(1 <= rate < 1e9 for rate in rates.values())
    assert profile.sequential_read_bytes_per_second > MIB
    assert profile.sequential_write_bytes_per_second > MIB


def test_a_file_stands_for_its_directory(place: Path) -> None:
    file = place / "graph"
    file.write_bytes(b"x" * 100)
    assert quick(file).directory == str(place)
    assert list(place.iterdir()) == [file]
    assert file.read_bytes() == b"x" * 100


@pytest.fixture
def file_of_4_mib(tmp_path: Path) -> _core.FileSet:
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(0).bytes(4 * MIB))
    return _core.FileSet([path], [4 * MIB])


@pytest.mark.parametrize("depth", [1, *choose([], [2, 256]), 16])
def test_as_many_reads_are_in_flight_as_it_says(
    depth: int, file_of_4_mib: _core.FileSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[_core.ReadCounts] = []
    threads: list[int] = []
    real = _core.Reader

    class Recording:
        def __init__(self, engine: str, **options: int) -> None:
            threads.append(options["num_threads"])
            self._reader = real(engine, **options)

        def describe(self) -> str:
            return self._reader.describe()

        def read_ranges(self, *arguments: Any) -> _core.ReadCounts:
            calls.append(self._reader.read_ranges(*arguments))
            return calls[-1]

    monkeypatch.setattr(_core, "Reader", Recording)
    # Long enough for many waits: on a busy machine most of the queue is finished at each, and the
    # end, where it runs empty, would be a good part of a few dozen.
    draw = at_random(4 * MIB, 4096)
    rate = read_rate(file_of_4_mib, "pread", block_bytes=4096, depth=depth, draw=draw, seconds=0.5)
    assert rate > 0
    assert threads == [depth]
    for counts in calls[1:]:
        assert counts.reads >= 16 * depth
        assert counts.bytes_read == 4096 * counts.reads
    # An eighth of the queue may be finished before it is filled up again, and it runs empty once in
    # 16 times the depth. Of several calls one shows it: at others another process has the core. On
    # a busy machine more is finished at a time; a queue of half the depth would show less.
    assert max(counts.depth_sum / counts.waits for counts in calls[1:]) > 0.5 * depth


# --- arithmetic, on a clock of its own ----------------------------------------------------------


class Clock:
    """Time that passes when a simulated disk reads."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def simulated_disk(
    monkeypatch: pytest.MonkeyPatch, seconds_of_a_read: Any, write_seconds: float = 0.0
) -> Iterator[Clock]:
    """Let reads take `seconds_of_a_read(block_bytes, depth)` each, with the queue full."""
    clock = Clock()

    class SimulatedReader:
        def __init__(self, _engine: str, *, queue_depth: int, **_options: int) -> None:
            self._depth = queue_depth

        def describe(self) -> str:
            clock.now += 0.001
            return "simulated"

        def read_ranges(
            self, _files: Any, _index: Any, _offsets: Any, num_bytes: Any, _places: Any, _out: Any
        ) -> None:
            clock.now += num_bytes.size * seconds_of_a_read(int(num_bytes[0]), self._depth)

    with monkeypatch.context() as patch:
        patch.setattr(_core, "Reader", SimulatedReader)
        patch.setattr("gnnstore.disk.measure.perf_counter", clock)
        yield clock


def nvme(block_bytes: int, depth: int) -> float:
    return max(80e-6 / depth, 1e-6, block_bytes / 3e9)


def spinning(block_bytes: int, depth: int) -> float:
    return 0.01 / (1 + math.log2(depth) / 4) + block_bytes / 150e6 if block_bytes < MIB else 1 / 150


def test_the_numbers_are_the_disks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_disk(monkeypatch, nvme):
        measured = quick(place, seconds=15)
    assert measured.remarks == ()
    profile = measured.profile
    assert profile.sequential_read_bytes_per_second == pytest.approx(3e9)
    for block, rates in profile.random_reads_per_second.items():
        assert list(rates) == list(QUEUE_DEPTHS)
        for depth, rate in rates.items():
            assert rate == pytest.approx(1 / nvme(block, depth))


@pytest.mark.parametrize("seconds", [1, 15, *choose([], [5, 60, 600])])
@pytest.mark.parametrize("disk", [nvme, spinning])
def test_the_time_is_kept_on_a_fast_disk_and_on_a_slow_one(
    disk: Any, seconds: float, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated_disk(monkeypatch, disk) as clock:
        start = clock.now
        measured = quick(place, seconds=seconds)
        elapsed = clock.now - start
    # A spinning disk needs 20 reads of each size at the least: three times 0.2 s.
    assert elapsed <= 1.25 * seconds + 1
    for rates in measured.profile.random_reads_per_second.values():
        assert 1 in rates
    depths = [max(rates) for rates in measured.profile.random_reads_per_second.values()]
    if disk is spinning and seconds == 15:
        assert max(depths) < 256  # 20 x 256 reads alone would take 20 s


def test_a_neighbours_burst_does_not_show(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def disturbed(block_bytes: int, depth: int) -> float:
        nonlocal calls
        calls += 1
        # Fourteen slow calls in a row, once in a round of 28 points with 2 calls each.
        return nvme(block_bytes, depth) * (30 if calls % 63 < 14 else 1)

    with simulated_disk(monkeypatch, disturbed):
        profile = quick(place, seconds=60).profile
    assert profile.sequential_read_bytes_per_second == pytest.approx(3e9)
    for block, rates in profile.random_reads_per_second.items():
        for depth, rate in rates.items():
            assert rate == pytest.approx(1 / nvme(block, depth))


# --- the file -----------------------------------------------------------------------------------


def test_its_bytes_cannot_be_compressed_or_shared(naming: str, place: Path) -> None:
    with open_scratch_file(place) as file:
        assert list(place.iterdir()) == [], naming
        seen: list[int] = []
        written, seconds = write_file(file, place, 20 * MIB, 60.0, seen.append)
        assert (written, sum(seen)) == (20 * MIB, 20 * MIB)
        assert seconds > 0
        data = Path(f"/proc/self/fd/{file}").read_bytes()
    assert len(data) == 20 * MIB
    assert len(zlib.compress(data[: 2 * MIB], 1)) > 2 * MIB
    assert len({data[i : i + 4096] for i in range(0, len(data), 4096)}) == len(data) // 4096


def test_writing_stops_when_the_time_is_up(place: Path) -> None:
    with open_scratch_file(place) as file:
        written, _ = write_file(file, place, 1 << 40, 0.0, ignore)
        assert written == os.fstat(file).st_size == 8 * MIB


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_by_an_error(naming: str, place: Path, error: Any) -> None:
    def fail(_: int) -> None:
        raise error

    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(error), open_scratch_file(place) as file:
        write_file(file, place, MIB, 1.0, fail)
    assert list(place.iterdir()) == [], naming
    assert len(list(Path("/proc/self/fd").iterdir())) == before


class Interrupting:
    """Progress that is interrupted when a phase advances."""

    def __init__(self, phase: str) -> None:
        self._phase = phase
        self._name = ""

    @contextmanager
    def phase(
        self,
        name: str,
        total: int | None = None,  # noqa: ARG002 - the protocol's
        unit: str = "",  # noqa: ARG002
    ) -> Iterator[Interrupting]:
        self._name = name
        yield self

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:
        """Say nothing."""

    def advance(self, n: int = 1) -> None:  # noqa: ARG002
        if self._name == self._phase:
            raise KeyboardInterrupt


@pytest.mark.parametrize("phase", ["write a file", "read"])
def test_nothing_is_left_by_an_interrupt(naming: str, phase: str, place: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        quick(place, progress=Interrupting(phase))
    assert list(place.iterdir()) == []


# --- space --------------------------------------------------------------------------------------


def with_free_bytes(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    real = os.statvfs

    class Nearly:
        f_frsize = 1
        f_bavail = free
        f_fsid = real("/").f_fsid

    monkeypatch.setattr(os, "statvfs", lambda _: Nearly)


def test_a_tenth_of_the_free_space_is_taken_at_most(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free_bytes(monkeypatch, 25 * MIB)
    measured = quick(place)
    assert measured.file_bytes == 2 * MIB
    assert any("a tenth of what is free" in remark for remark in measured.remarks)


def test_a_full_disk_is_not_measured(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free_bytes(monkeypatch, 10 * MIB - 1)
    with pytest.raises(NoSpaceError, match=r"Free 10\.5 MB"):
        quick(place)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_space_that_runs_out_is_given_back(
    number: int, naming: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def full(descriptor: int, data: Any, offset: int) -> int:
        if offset >= 8 * MIB:
            raise OSError(number, "full")
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NoSpaceError, match="cannot write a file to measure with: no space left"):
        quick(place, num_bytes=16 * MIB)
    assert list(place.iterdir()) == []


# --- what is wrong is said --------------------------------------------------------------------


def test_wrong_arguments(place: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file or directory"):
        quick(place / "missing")
    with pytest.raises(NotFoundError, match="not the device"):
        quick(Path("/dev/null"))
    for seconds in (0, -1, math.nan):
        with pytest.raises(UsageError, match="positive"):
            quick(place, seconds=seconds)
    with pytest.raises(UsageError, match="too small"):
        quick(place, num_bytes=MIB - 1)
    with pytest.raises(UsageError, match="no queue to measure"):
        quick(place, engine="mmap")
    with pytest.raises(UsageError, match="tape"):
        quick(place, engine="tape")
    assert list(place.iterdir()) == []


def test_a_directory_that_takes_no_files() -> None:
    with pytest.raises(StorageError, match="any directory on the same file system"):  # noqa: SIM117
        with open_scratch_file(Path("/proc/self")):
            pass


def test_a_read_that_fails_is_an_error(place: Path) -> None:
    with (
        # A disk that others keep busy does not always get to 100 in the time that there is.
        inject("pread", errno=errno.EIO, skip=16),
        pytest.raises(StorageError, match="cannot read the file to measure with") as caught,
    ):
        quick(place, engine="pread")
    assert str(place) in str(caught.value)
    assert list(place.iterdir()) == []


@pytest.fixture
def chosen_pread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the engine without opening a file, so that the first open is the measurement's."""
    choice = EngineChoice("pread", "pread for a test")
    monkeypatch.setattr(module, "choose_engine", lambda _path, _forced: choice)


@pytest.mark.usefixtures("chosen_pread")
def test_numbers_of_the_page_cache_are_called_so(place: Path) -> None:
    with inject("open", errno=errno.EINVAL):
        measured = quick(place)
    assert not measured.profile.is_direct
    assert any("page cache" in remark and "O_DIRECT" in remark for remark in measured.remarks)
    assert set(measured.profile.random_reads_per_second) == set(BLOCK_BYTES)


def test_a_refusal_of_direct_writes_is_met_with_buffered_ones(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    refused: list[int] = []

    def refuse_direct(descriptor: int, data: Any, offset: int) -> int:
        if not refused:
            refused.append(offset)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, data[: len(data) // 2 + 1], offset)  # short ones besides

    monkeypatch.setattr(os, "pwrite", refuse_direct)
    with open_scratch_file(place) as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_DIRECT)
        except OSError:
            pytest.skip("this file system knows no direct writes")
        assert write_file(file, place, 2 * MIB, 60.0, ignore)[0] == 2 * MIB
        assert not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT
        assert os.fstat(file).st_size == 2 * MIB
