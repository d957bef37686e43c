"""Which engine is chosen, what is said where one does not work, and what an engine holds."""

from __future__ import annotations

import errno
import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore import _core
from gnnstore.disk import engines
from gnnstore.disk.engines import (
    ENGINES,
    ENVIRONMENT_VARIABLE,
    choose_engine,
    open_engine,
    probe_engines,
)
from gnnstore.disk.profile import save_profile
from gnnstore.errors import StorageError, UsageError
from tests.support.disks import usual_profile
from tests.support.faults import Fault, SystemCall, inject, inject_all
from tests.support.twins.reads import available

T = TypeVar("T")

FILE_BYTES = 1 << 20
WITHOUT_RING: dict[str, Any] = {"call": "io_uring_setup", "times": -1}  # and an errno


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine asked for, no measurements of this disk, and nothing said so far."""
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(engines, "_said", set())


@pytest.fixture
def values() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, FILE_BYTES, dtype=np.uint8)


@pytest.fixture
def file(tmp_path: Path, values: NDArray[np.uint8]) -> Path:
    path = tmp_path / "file"
    path.write_bytes(values.tobytes())
    return path


@pytest.fixture
def uring(tmp_path: Path) -> None:
    available("io_uring", tmp_path)


def read_pieces(
    reader: _core.Reader, path: Path, offsets: NDArray[np.int64], piece_bytes: int
) -> NDArray[np.uint8]:
    """Read ranges of one file, one behind the other."""
    files = _core.FileSet([path], [path.stat().st_size])
    out = np.zeros((len(offsets), piece_bytes), np.uint8)
    counts = np.full(len(offsets), piece_bytes, np.int64)
    places = np.arange(len(offsets), dtype=np.int64) * piece_bytes
    index = np.zeros(len(offsets), np.int64)
    reader.read_ranges(files, index, offsets, counts, places, out.reshape(-1))
    return out


# --- the choice ------------------------------------------------------------------------------


def test_every_engine_that_works_says_how(file: Path) -> None:
    probes = probe_engines(file)
    assert [probe.name for probe in probes] == list(ENGINES)
    for probe in probes:
        assert probe.is_available or probe.name == "io_uring"
        if probe.is_available:
            assert probe.detail.startswith(probe.name)
            assert probe.remedy == ""


def test_the_fastest_that_works(file: Path, uring: None) -> None:
    choice = choose_engine(file)
    assert choice.name == "io_uring"
    assert choice.reason == "io_uring, the fastest that works here"


def test_the_next_one_where_io_uring_is_forbidden(file: Path) -> None:
    with inject(errno=errno.EPERM, **WITHOUT_RING) as fault:
        choice = choose_engine(file)
    assert fault.count == 1
    assert choice.name == "pread"
    assert "because there is no io_uring (io_uring_setup: Operation not permitted)" in choice.reason


def test_the_last_one_where_no_thread_starts_reading(file: Path) -> None:
    """A probe reads: an engine whose reads fail is as unavailable as one that is not there."""
    with inject_all(
        Fault(errno=errno.ENOSYS, **WITHOUT_RING), Fault("pread", errno.EPERM, times=-1)
    ):
        choice = choose_engine(file)
    assert choice.name == "mmap"
    assert "no io_uring" in choice.reason
    assert "nor pread" in choice.reason


def test_no_engine_at_all(file: Path) -> None:
    with (
        inject_all(
            Fault(errno=errno.EPERM, **WITHOUT_RING), Fault("thread", errno.EAGAIN, times=-1)
        ),
        pytest.raises(UsageError) as caught,
    ):
        choose_engine(file)
    for text in (str(file), "io_uring_setup", "cannot start a thread", "ulimit -u"):
        assert text in str(caught.value)


def test_an_engine_that_is_asked_for(file: Path, engine: str) -> None:
    choice = choose_engine(file, engine)
    assert (choice.name, choice.reason) == (engine, f"{engine} because it was asked for")


def test_the_environment_asks(file: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, engine)
    choice = choose_engine(file)
    assert choice.name == engine
    assert choice.reason == f"{engine} because {ENVIRONMENT_VARIABLE} asks for it"
    assert choose_engine(file, "mmap").name == "mmap"  # the argument comes first
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
    assert "asks for it" not in choose_engine(file).reason


@pytest.mark.parametrize("name", ["libaio", "IO_URING", "io_uring "])
def test_an_unknown_engine(file: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = f"'{name}' is unknown; choose one of io_uring, pread, mmap"
    with pytest.raises(UsageError, match=f"io_engine={expected}"):
        choose_engine(file, name)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, name)
    with pytest.raises(UsageError, match=f"{ENVIRONMENT_VARIABLE}={expected}"):
        choose_engine(file)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EPERM, "seccomp"),
        (errno.EACCES, r"kernel\.io_uring_disabled=0"),
        (errno.ENOMEM, "ulimit -l"),
        (errno.ENOSYS, r"Linux 5\.6"),
        (errno.EINVAL, r"Linux 5\.6"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "Ask for another one"),
    ],
)
@pytest.mark.parametrize("by_environment", [False, True])
def test_an_engine_that_is_asked_for_and_does_not_work(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    code: int,
    remedy: str,
    by_environment: bool,
) -> None:
    if by_environment:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, "io_uring")
    with inject(errno=code, **WITHOUT_RING), pytest.raises(UsageError) as caught:
        choose_engine(file, None if by_environment else "io_uring")
    message = str(caught.value)
    asked = f"{ENVIRONMENT_VARIABLE}=" if by_environment else "io_engine="
    assert message.startswith(f"{asked}'io_uring' is not available here: io_uring_setup: ")
    assert os.strerror(code) in message
    assert re.search(remedy, message)


def test_a_kernel_that_has_rings_but_not_this_read(file: Path, uring: None) -> None:
    """Linux 5.1 to 5.5."""
    with (
        inject("io_uring_read", errno=errno.EINVAL, times=-1),
        pytest.raises(UsageError, match=r"Invalid argument\. It needs Linux 5\.6"),
    ):
        choose_engine(file, "io_uring")


@pytest.mark.parametrize("forced", [None, "pread", "mmap"])
def test_a_file_that_cannot_be_read_is_not_the_engines_fault(
    tmp_path: Path, forced: str | None
) -> None:
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.touch()
    for path, text in [(missing, "No such file"), (empty, "the file is empty")]:
        with pytest.raises(StorageError, match=text) as caught:
            choose_engine(path, forced)
        assert caught.value.path == str(path)


# --- engines that are shared -----------------------------------------------------------------


def test_loaders_share_their_engines(file: Path, engine: str) -> None:
    one, other = open_engine(file, engine), open_engine(file, engine)
    assert one.reader is other.reader
    assert one.name == engine
    assert f"{one.tuning.queue_depth} reads in flight (defaults)" in one.reason
    assert one.staging_bytes == one.reader.staging_bytes > 0
    another = open_engine(file, "mmap" if engine == "pread" else "pread")
    assert another.reader is not one.reader


def test_engines_end_with_their_last_user(
    file: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Loaders of other tests may have left garbage that holds an engine.
    monkeypatch.setattr(engines, "_readers", WeakValueDictionary())
    before = settled(resources)
    first, second = open_engine(file, engine), open_engine(file, engine)
    offsets = np.arange(64, dtype=np.int64) * 4096
    read_pieces(first.reader, file, offsets, 512)
    during = resources()
    assert during["pool bytes"] > before["pool bytes"]
    assert (during["threads"] > before["threads"]) == (engine != "io_uring")
    # What the kernel reads into must not be in two processes after a fork.
    kept = during["mappings kept from children"] - before["mappings kept from children"]
    assert (kept > 0) == (engine != "mmap")
    del first
    read_pieces(second.reader, file, offsets, 512)
    del second
    assert settled(resources) == before


def settled(look: Callable[[], T]) -> T:
    """Return what `look` sees as soon as that stays the same: ended threads linger a moment."""
    found = look()
    for _ in range(100):
        time.sleep(0.05)
        before, found = found, look()
        if found == before:
            break
    return found


def threads() -> set[str]:
    """Return the ids of our threads: the kernel's own, which help a ring, are not ours to end."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text()
        except OSError:  # it has just ended
            continue
        if not name.startswith("iou-"):
            found.add(task.name)
    return found


def resources() -> dict[str, int]:
    """Return what engines hold: descriptors, threads, memory, and memory no child gets."""
    gc.collect()
    flags = re.findall(r"^VmFlags:.*\bdc\b", Path("/proc/self/smaps").read_text(), re.MULTILINE)
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(threads()),
        "pool bytes": _core.pool_stats()["bytes_in_use"],
        "mappings kept from children": len(flags),
    }


def test_measurements_of_the_disk_are_heeded(file: Path) -> None:
    save_profile(
        usual_profile(
            file,
            engine="io_uring",
            measured_at="2026-01-02T03:04:05+00:00",
            random_reads_per_second={
                4096: {1: 1e4, 32: 9e4, 64: 9.1e4},
                65536: {1: 5e3, 8: 1.5e4},
            },
        )
    )
    tuned = open_engine(file, "pread")
    assert tuned.tuning.queue_depth == 32
    assert "32 reads in flight (profile of 2026-01-02" in tuned.reason


# --- mapped files ----------------------------------------------------------------------------


def mapped(file: Path) -> NDArray[np.uint8]:
    reader = _core.Reader("mmap", queue_depth=4, num_threads=2)
    return read_pieces(reader, file, np.arange(10, dtype=np.int64) * 50_000, 10_000)


TRUNCATED = """
import os, sys
import numpy as np
from gnnstore import _core
path = sys.argv[1]
size = os.stat(path).st_size
files = _core.FileSet([path], [size])
reader = _core.Reader("mmap", queue_depth=4, num_threads=2)
def read(offset):
    out = np.zeros(512, np.uint8)
    one = lambda value: np.array([value], np.int64)
    reader.read_ranges(files, one(0), one(offset), one(512), one(0), out)
    return out
read(size - 512)  # its page is mapped now
os.truncate(path, 4096)
read(0)
for offset in (4096, 8192, size - 512):
    try:
        read(offset)
    except OSError as error:
        assert "the file ends at byte 4096" in str(error), error
    else:
        sys.exit("no error")
print("no crash")
"""


def test_a_mapped_file_that_is_truncated_is_no_crash(file: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", TRUNCATED, str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (finished.returncode, finished.stdout) == (0, "no crash\n"), finished.stderr


@pytest.mark.parametrize("engine", ["io_uring", "pread"])
def test_a_file_system_that_opens_for_direct_reads_and_refuses_them(
    tmp_path: Path, engine: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    call: SystemCall = "io_uring_read" if engine == "io_uring" else "pread"
    with inject(call, errno=errno.EINVAL):
        choice = choose_engine(path, engine)
    assert (choice.name, choice.is_direct) == (engine, False)
    assert choose_engine(path, engine).is_direct
